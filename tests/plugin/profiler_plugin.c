/* A profiler as users of NCCL have them: counts events, and looks whether they nest.
 *
 * -DVERSION=4 to 6 is the table's; -DFAULT="init" builds one that refuses, -DMASK=0 one that wants nothing. */
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

enum { SUCCESS = 0, INTERNAL = 3 };
enum { WARN = 2, SUBSYSTEM_PROFILE = 8192 };
enum { GROUP = 1, COLL = 2, P2P = 4, GROUP_API = 256, COLL_API = 512, P2P_API = 1024, KINDS = 11 };

#ifndef MASK
#define MASK 0x7fff
#endif
#ifndef FAULT
#define FAULT ""
#endif

typedef void (*logger)(int level, unsigned long flags, const char *file, int line, const char *format, ...);

struct communicator { int rank, nranks, events; };
struct event { struct communicator *of; unsigned kind; struct event *parent; int children; };

#if VERSION == 4
typedef uint8_t kind_type;
#else
typedef uint64_t kind_type;
#endif

struct descr {
    kind_type kind;
    void *parent;
    int rank;
    union {
        struct { bool captured; int depth; } group_api;
        struct { const char *func; size_t count; const char *datatype; int root; void *stream; bool captured; } coll_api;
        struct { const char *func; size_t count; const char *datatype; void *stream; bool captured; } p2p_api;
        struct {
            uint64_t number;
            const char *func;
            const void *send;
            void *recv;
            size_t count;
            int root;
            const char *datatype;
            uint8_t channels, warps;
            const char *algo, *proto;
#if VERSION > 4
            void *group;
#endif
        } coll;
        struct {
            const char *func;
            void *buffer;
            const char *datatype;
            size_t count;
            int peer;
            uint8_t channels;
#if VERSION > 4
            void *group;
#endif
        } p2p;
    };
};

/* For the test, which looks them up. `profiler_wrong` counts what must not be. */
atomic_int profiler_contexts, profiler_live, profiler_wrong, profiler_started[KINDS], profiler_rings, profiler_elements, profiler_named;

static int place(unsigned kind) { return __builtin_ctz(kind); }

static int begin(void **context, int *mask, const char *name, int nodes, int nranks, int rank, logger log) {
    if (!strcmp(FAULT, "init")) {
        log(WARN, SUBSYSTEM_PROFILE, __FILE__, __LINE__, "told to fail in version %d", VERSION);
        return INTERNAL;
    }
    struct communicator *mine = calloc(1, sizeof *mine);
    *mine = (struct communicator){rank, nranks, 0};
    if (nodes != 1 || rank >= nranks) profiler_wrong++;
    if (!strcmp(name, "work")) profiler_named++;
    profiler_contexts++;
    *mask = MASK;
    *context = mine;
    return SUCCESS;
}

/* Whether an event of this kind may lie in that one. */
static bool fits(unsigned kind, unsigned parent) {
#if VERSION == 4
    return kind == GROUP ? parent == 0 : parent == GROUP;
#else
    switch (kind) {
    case GROUP_API: return parent == 0;
    case GROUP: case COLL_API: case P2P_API: return parent == GROUP_API;
    case COLL: return parent == COLL_API;
    case P2P: return parent == P2P_API;
    }
    return false;
#endif
}

static int start(void *context, void **handle, struct descr *descr) {
    struct communicator *mine = context;
    struct event *parent = descr->parent, *event = calloc(1, sizeof *event);
    *event = (struct event){mine, descr->kind, parent, 0};
    if (descr->rank != mine->rank || !(MASK & descr->kind)) profiler_wrong++;
    if (!fits(descr->kind, parent ? parent->kind : 0) || (parent && parent->of != mine)) profiler_wrong++;
    if (parent) parent->children++;
    if (descr->kind == COLL) {
        if (!strcmp(descr->coll.algo, "RING") && !strcmp(descr->coll.proto, "SIMPLE")) profiler_rings++;
        if (!strcmp(descr->coll.func, "AllReduce") && strcmp(descr->coll.datatype, "ncclFloat32")) profiler_wrong++;
        if (!descr->coll.send || !descr->coll.recv) profiler_wrong++;
        profiler_elements += descr->coll.count;
#if VERSION > 4
        if (!descr->coll.group || ((struct event *)descr->coll.group)->kind != GROUP) profiler_wrong++;
#endif
    }
    if (descr->kind == P2P) {
        bool sends = !strcmp(descr->p2p.func, "Send"), receives = !strcmp(descr->p2p.func, "Recv");
        if (sends == receives || !descr->p2p.buffer || descr->p2p.peer == mine->rank) profiler_wrong++;
        profiler_elements += descr->p2p.count;
    }
    profiler_started[place(descr->kind)]++;
    profiler_live++;
    mine->events++;
    *handle = event;
    return SUCCESS;
}

static int stop(void *handle) {
    struct event *event = handle;
    /* What is in it is over. */
    if (event->children) profiler_wrong++;
    if (event->parent) event->parent->children--;
    event->of->events--;
    profiler_live--;
    free(event);
    return SUCCESS;
}

static int state(void *event, int state, void *arguments) { abort(); }

static int end(void *context) {
    struct communicator *mine = context;
    if (mine->events) profiler_wrong++;
    profiler_contexts--;
    free(mine);
    return SUCCESS;
}

#if VERSION == 4
static int init(void **context, int *mask, const char *name, uint64_t id, int nodes, int nranks, int rank, logger log) {
    if (!id) profiler_wrong++;
    return begin(context, mask, name, nodes, nranks, rank, log);
}
#else
static int init(void **context, uint64_t id, int *mask, const char *name, int nodes, int nranks, int rank, logger log) {
    if (!id) profiler_wrong++;
    return begin(context, mask, name, nodes, nranks, rank, log);
}
#endif

#define JOIN(a, b) a##b
#define TABLE(version) JOIN(ncclProfiler_v, version)
const struct {
    const char *name;
    void *init, *start, *stop, *state, *end;
} TABLE(VERSION) = {"Counts", (void *)init, (void *)start, (void *)stop, (void *)state, (void *)end};
