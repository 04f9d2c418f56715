/* Plugins log through a function with a variable number of arguments, which only C can define. */
#include <stdarg.h>
#include <stdio.h>

typedef void (*oxccl_plugin_sink)(int level, const char *file, int line, const char *text);

static oxccl_plugin_sink sink;

void oxccl_plugin_set_sink(oxccl_plugin_sink to) { sink = to; }

void oxccl_plugin_log(int level, unsigned long flags, const char *file, int line, const char *format, ...) {
    char text[1024];
    va_list arguments;
    (void)flags;
    if (!sink || !format) return;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    sink(level, file, line, text);
}
