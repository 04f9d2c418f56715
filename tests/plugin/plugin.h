/* What the tests' plugins have in common: how they speak, how they fail when told to, and how versions of NCCL's tables differ.
 *
 * -DVERSION=8 to 12 is the table's; -DFAULT="call" builds a plugin whose call of that name fails. */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/tcp.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

enum { SUCCESS = 0, SYSTEM = 2, INTERNAL = 3, REMOTE = 6 };
enum { WARN = 2, INFO = 3, SUBSYSTEM_NET = 16, REQUESTS = 32 };

typedef void (*logger)(int level, unsigned long flags, const char *file, int line, const char *format, ...);
static logger say;
#define SAY(level, ...) say(level, SUBSYSTEM_NET, __FILE__, __LINE__, __VA_ARGS__)

#ifndef FAULT
#define FAULT ""
#endif
static int fault(const char *call) { return !strcmp(FAULT, call); }

/* ---- what versions differ in ---- */

#if VERSION == 12
#define MERGED_MAX 8
#else
#define MERGED_MAX 4
#endif
#if VERSION >= 11
#define CONTEXT void *context,
#define CHECK_CONTEXT                     \
    if (context != &the_context) {        \
        SAY(WARN, "not my context");      \
        return INTERNAL;                  \
    }
#else
#define CONTEXT
#define CHECK_CONTEXT
#endif

typedef struct {
    const char *name, *pci_path;
    uint64_t guid;
    int ptr_support, reg_is_global;
#if VERSION >= 9
    int force_flush;
#endif
    int speed, port;
    float latency;
    int max_comms, max_recvs, device_type, device_version;
#if VERSION >= 9
    int merged, merged_devices[MERGED_MAX];
    size_t max_p2p_bytes, max_coll_bytes;
#endif
#if VERSION >= 11
    int max_multi_request_size;
#endif
#if VERSION >= 12
    int16_t rail, plane;
#endif
} properties;

static int nonblocking(int fd) {
    int one = 1;
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    return fcntl(fd, F_SETFL, O_NONBLOCK);
}

/* A socket on 127.0.0.1 that listens, and its port; -1 if there is none. */
static int listening(uint16_t *port) {
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t len = sizeof a;
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd < 0 || bind(fd, (void *)&a, len) || listen(fd, 64) || getsockname(fd, (void *)&a, &len)) return -1;
    nonblocking(fd);
    *port = ntohs(a.sin_port);
    return fd;
}

/* A socket that is connected to that port; -1, having said so, if it cannot be. */
static int connected(uint16_t port) {
    struct sockaddr_in a = {
        .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK), .sin_port = htons(port)};
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd < 0 || connect(fd, (void *)&a, sizeof a)) {
        SAY(WARN, "connect to port %d: %s", port, strerror(errno));
        return -1;
    }
    nonblocking(fd);
    return fd;
}

/* What both say of a device by number. */
static int properties_of(int device, const char *name, properties *p) {
    memset(p, 0, sizeof *p);
    p->name = name;
    p->guid = 40 + device;
    p->ptr_support = 1;
    p->speed = 10000 * (device + 1);
    p->port = 1;
    p->latency = 2.5f;
    p->max_comms = 1000;
    p->max_recvs = 1;
#if VERSION >= 9
    p->max_p2p_bytes = 1 << 30;
    p->max_coll_bytes = 1 << 29;
#endif
#if VERSION >= 11
    p->max_multi_request_size = 1;
#endif
#if VERSION >= 12
    p->rail = p->plane = -1;
#endif
    return SUCCESS;
}

typedef void (*unused)(void);
#define JOINED(prefix, version) prefix##version
#define SYMBOL(prefix, version) JOINED(prefix, version)
