/* A tuner as users of NCCL have them: trees for all-reduces of up to 4 KiB, rings for those of up to 1 MiB, one channel for broadcasts;
 * for all-gathers an algorithm that nobody has (NVLS).
 *
 * -DVERSION=2 to 6 is the table's; -DFAULT="call" builds one whose call of that name fails, "lack" one without getCollInfo. */
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

enum { SUCCESS = 0, INTERNAL = 3, USAGE = 5 };
enum { WARN = 2, INFO = 3, SUBSYSTEM_TUNING = 128 };
enum { BROADCAST = 0, ALL_GATHER = 2, ALL_REDUCE = 4 };
enum { TREE = 0, RING = 1, NVLS = 4, ALGORITHMS = 7 };
enum { SIMPLE = 2, PROTOCOLS = 3 };

typedef void (*logger)(int level, unsigned long flags, const char *file, int line, const char *format, ...);
static logger say;
#define SAY(level, ...) say(level, SUBSYSTEM_TUNING, __FILE__, __LINE__, __VA_ARGS__)

#ifndef FAULT
#define FAULT ""
#endif
static int fault(const char *call) {
    if (strcmp(FAULT, call)) return 0;
    SAY(WARN, "told to fail in version %d", VERSION);
    return 1;
}

struct communicator { size_t nranks, nnodes; int live; };

/* For the test, which looks them up. */
atomic_int tuner_contexts, tuner_calls, tuner_nranks, tuner_nnodes, tuner_least, tuner_most;

static int begin(size_t nranks, size_t nnodes, logger log, void **context) {
    say = log;
    if (fault("init")) return INTERNAL;
    struct communicator *mine = calloc(1, sizeof *mine);
    *mine = (struct communicator){nranks, nnodes, 1};
    tuner_nranks = (int)nranks;
    tuner_nnodes = (int)nnodes;
    tuner_contexts++;
    *context = mine;
    SAY(INFO, "%zu ranks on %zu hosts", nranks, nnodes);
    return SUCCESS;
}

static int end(void *context) {
    struct communicator *mine = context;
    if (!mine->live) abort();
    mine->live = 0;
    free(mine);
    tuner_contexts--;
    return SUCCESS;
}

/* The algorithm that is wanted, or -1. */
static int wanted(void *context, int function, size_t bytes, int *channels) {
    if (!((struct communicator *)context)->live) abort();
    tuner_calls++;
    if (function == BROADCAST) *channels = 1;
    if (function == ALL_GATHER) return NVLS;
    if (function != ALL_REDUCE) return -1;
    return bytes <= 4096 ? TREE : bytes <= 1 << 20 ? RING : -1;
}

#if VERSION == 2
static int coll_info(void *context, int function, size_t bytes, int collnet, int nvls, int pipe_ops, int *algorithm, int *protocol,
                     int *channels) {
    if (fault("coll_info")) return INTERNAL;
    if (pipe_ops != 1 || nvls || collnet) return USAGE;
    int order = wanted(context, function, bytes, channels);
    if (order >= 0) *algorithm = order, *protocol = SIMPLE;
    return SUCCESS;
}
#else
static int by_table(void *context, int function, size_t bytes, float **costs, int algorithms, int protocols, int *channels) {
    if (fault("coll_info")) return INTERNAL;
    if (algorithms != ALGORITHMS || protocols != PROTOCOLS) return USAGE;
    float(*table)[PROTOCOLS] = (float(*)[PROTOCOLS])costs;
    int order = wanted(context, function, bytes, channels);
    if (order >= 0) table[order][SIMPLE] = 0;
    return SUCCESS;
}
#endif

#if VERSION == 3
static int coll_info(void *context, int function, size_t bytes, int pipe_ops, float **costs, int algorithms, int protocols, int *channels) {
    return by_table(context, function, bytes, costs, algorithms, protocols, channels);
}
#elif VERSION > 3
static int coll_info(void *context, int function, size_t bytes, int pipe_ops, float **costs, int algorithms, int protocols, int registered,
                     int *channels) {
    return by_table(context, function, bytes, costs, algorithms, protocols, channels);
}
#endif

#if VERSION < 5
static int init(size_t nranks, size_t nnodes, logger log, void **context) { return begin(nranks, nnodes, log, context); }
#else
struct domains { int count, least, most; };
static int init(void **context, uint64_t id, size_t nranks, size_t nnodes, logger log, struct domains *domains, double *constants) {
    tuner_least = domains->least;
    tuner_most = domains->most;
    /* The last of the constants, which must be there. */
    constants[ALGORITHMS * PROTOCOLS * 4 + 5 * 12 - 1] *= 2;
    return id ? begin(nranks, nnodes, log, context) : USAGE;
}
#endif

#ifdef LACKS
#define COLL_INFO NULL
#else
#define COLL_INFO (void *)coll_info
#endif

/* Chunk sizes are NCCL's: nobody may ask. */
static int chunk_size(void) { abort(); }

#define JOIN(a, b) a##b
#define TABLE(version) JOIN(ncclTunerPlugin_v, version)
const struct {
    const char *name;
    void *init, *coll_info, *end, *chunk_size;
} TABLE(VERSION) = {"Sizes", (void *)init, COLL_INFO, (void *)end, (void *)chunk_size};
