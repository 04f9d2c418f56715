/* A CollNet plugin for the tests: a network that reduces, played by head 0, to which all others are connected by TCP over 127.0.0.1.
 * Built once for each version of NCCL's table (-DVERSION=8 to 12), alone or into one library with net_plugin.c.
 *
 * A head sends what it does (struct header) and its input to head 0, which combines all inputs in the heads' order and sends each
 * head its output. One operation after the other; nothing blocks. fp8 is not reduced.
 *
 * -DFAULT="..." builds one that fails: "init"; "devices" (it has none); "connect"; "wait" (connect blocks until all heads have come,
 * as some plugins' does); "allreduce" (from the -DFAULT_AT-th on); "silent" (the same begin, and never end); "product" (does not
 * multiply); "sum" (does not add 64-bit integers). -DREDUCES_ONLY leaves out iallgather and ireducescatter. */
#include "plugin.h"

#ifndef FAULT_AT
#define FAULT_AT 0
#endif

enum { MAGIC = 0x0cc1c011, HEADS_MAX = 64 };
enum { ALL_REDUCE, ALL_GATHER, REDUCE_SCATTER };
enum { SUM, PROD, MAX, MIN };
enum { INT8, UINT8, INT32, UINT32, INT64, UINT64, FLOAT16, FLOAT32, FLOAT64, BFLOAT16 };

#if VERSION >= 9
typedef size_t count_t, part_size;
#else
typedef int count_t;
typedef uint32_t part_size;
#endif

typedef struct {
    void *mr, *address;
    part_size size;
} sge;

typedef struct {
    uint32_t magic;
    uint16_t port;
} handle;

typedef struct {
    uint32_t kind, dtype, op, unused;
    uint64_t bytes;             /* of an all-reduce, or of the window */
    uint64_t head_bytes, start; /* of a window: a head's block, and where it begins in all heads' blocks */
} header;

struct comm;
typedef struct {
    struct comm *comm;
    header header;
    const char *in;
    char *out;
    int in_use, done, failed;
} request;

typedef struct {
    int fd;
    header header;
    char *in;               /* head 0: what this head sent */
    uint64_t taken, given;  /* bytes of the operation under way, from this head and to it; the header counts among the taken */
} peer;

typedef struct comm {
    int nheads, head, posts;
    peer peers[HEADS_MAX]; /* head 0: one for each other head; others: peers[0] is head 0 */
    char *all;             /* head 0: the result, once it is there */
    unsigned posted, ended; /* requests [ended, posted) are under way, in this order */
    request requests[REQUESTS];
} comm;

typedef struct {
    int fd, met;    /* heads that have come to head 0 */
    int waiting_fd; /* of one that has not said which it is */
    comm *comm;
} listener;

#if VERSION >= 11
static int the_context;
static int contexts;
#endif

/* ---- arithmetic ---- */

static float from_bf16(uint16_t bits) {
    uint32_t wide = (uint32_t)bits << 16;
    float value;
    memcpy(&value, &wide, sizeof value);
    return value;
}

static uint16_t to_bf16(float value) {
    uint32_t wide;
    memcpy(&wide, &value, sizeof wide);
    return (uint16_t)((wide + 0x7fff + (wide >> 16 & 1)) >> 16);
}

#define COMBINE(a, b) (op == SUM ? (a) + (b) : op == PROD ? (a) * (b) : op == MAX ? ((a) > (b) ? (a) : (b)) : (a) < (b) ? (a) : (b))
#define EACH(type)                                                     \
    for (uint64_t i = 0; i < bytes / sizeof(type); i++) {              \
        type a, b;                                                     \
        memcpy(&a, to + i * sizeof(type), sizeof a);                   \
        memcpy(&b, from + i * sizeof(type), sizeof b);                 \
        type c = (type)COMBINE(a, b);                                  \
        memcpy(to + i * sizeof(type), &c, sizeof c);                   \
    }                                                                  \
    break

static void combine(char *to, const char *from, uint64_t bytes, int dtype, int op) {
    switch (dtype) {
    case INT8: case UINT8:
        if (dtype == UINT8 || op <= PROD) { EACH(uint8_t); }
        EACH(int8_t);
    case INT32: case UINT32:
        if (dtype == UINT32 || op <= PROD) { EACH(uint32_t); }
        EACH(int32_t);
    case INT64: case UINT64:
        if (dtype == UINT64 || op <= PROD) { EACH(uint64_t); }
        EACH(int64_t);
    case FLOAT16: EACH(_Float16);
    case FLOAT32: EACH(float);
    case FLOAT64: EACH(double);
    case BFLOAT16:
        for (uint64_t i = 0; i < bytes / 2; i++) {
            uint16_t a, b;
            memcpy(&a, to + i * 2, 2);
            memcpy(&b, from + i * 2, 2);
            uint16_t c = to_bf16(COMBINE(from_bf16(a), from_bf16(b)));
            memcpy(to + i * 2, &c, 2);
        }
    }
}

static int size_of(int dtype) {
    static const int sizes[] = {1, 1, 4, 4, 8, 8, 2, 4, 8, 2};
    return sizes[dtype];
}

/* ---- what heads send and get ---- */

typedef struct {
    uint64_t from, len;
} range;

static uint64_t clamped(const header *h, uint64_t at) {
    uint64_t end = h->start + h->bytes;
    return (at < h->start ? h->start : at > end ? end : at) - h->start;
}

/* Of a window's bytes, those of a head's block. */
static range share(const header *h, int head) {
    uint64_t from = clamped(h, head * h->head_bytes);
    return (range){from, clamped(h, (head + 1) * h->head_bytes) - from};
}

static range input(const header *h, int head) {
    return h->kind == ALL_GATHER ? share(h, head) : (range){0, h->bytes};
}

static range output(const header *h, int head) {
    return h->kind == REDUCE_SCATTER ? share(h, head) : (range){0, h->bytes};
}

/* ---- progress ---- */

/* Moves bytes [*moved, len) of `data`; 1 when all have been, 0 when not now, negative when the other end is gone. */
static int move(int fd, int sends, char *data, uint64_t len, uint64_t *moved) {
    while (*moved < len) {
        char *at = data + *moved;
        ssize_t n = sends ? send(fd, at, len - *moved, MSG_NOSIGNAL) : recv(fd, at, len - *moved, 0);
        if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return 0;
        if (n <= 0) {
            SAY(WARN, "%s: %s", sends ? "send" : "recv", n ? strerror(errno) : "a head is gone");
            return -1;
        }
        *moved += n;
    }
    return 1;
}

/* Two pieces, the header and what follows it, as one. */
static int move_both(int fd, int sends, header *h, char *data, uint64_t len, uint64_t *moved) {
    if (*moved < sizeof *h) {
        int state = move(fd, sends, (char *)h, sizeof *h, moved);
        if (state <= 0) return state;
    }
    uint64_t behind = *moved - sizeof *h;
    int state = move(fd, sends, data, len, &behind);
    *moved = behind + sizeof *h;
    return state;
}

/* A head that is not head 0: sends, then receives. */
static int leaf(request *r) {
    peer *root = &r->comm->peers[0];
    uint64_t in = input(&r->header, r->comm->head).len, out = output(&r->header, r->comm->head).len;
    int state = move_both(root->fd, 1, &r->header, (char *)r->in, in, &root->taken);
    return state <= 0 ? state : move(root->fd, 0, r->out, out, &root->given);
}

/* Everything that head `h` sent of the operation; another operation than ours is an error. */
static int take(request *r, peer *from, int h) {
    if (from->taken < sizeof(header)) {
        int state = move(from->fd, 0, (char *)&from->header, sizeof(header), &from->taken);
        if (state <= 0) return state;
        if (memcmp(&from->header, &r->header, sizeof(header))) {
            SAY(WARN, "head %d does another operation than head 0", h);
            return -2;
        }
        from->in = malloc(input(&r->header, h).len + 1);
    }
    return move_both(from->fd, 0, &from->header, from->in, input(&r->header, h).len, &from->taken);
}

/* All heads' inputs in one. */
static void reduce(request *r) {
    comm *c = r->comm;
    c->all = malloc(r->header.bytes + 1);
    for (int h = 0; h < c->nheads; h++) {
        const char *in = h ? c->peers[h].in : r->in;
        range at = input(&r->header, h);
        if (h == 0 || r->header.kind == ALL_GATHER)
            memcpy(c->all + at.from, in, at.len);
        else
            combine(c->all, in, at.len, r->header.dtype, r->header.op);
    }
    range mine = output(&r->header, 0);
    memcpy(r->out, c->all + mine.from, mine.len);
}

static int root(request *r) {
    comm *c = r->comm;
    int done = 1;
    for (int h = 1; h < c->nheads; h++) {
        int state = take(r, &c->peers[h], h);
        if (state < 0) return state;
        done &= state;
    }
    if (!done) return 0;
    if (!c->all) reduce(r);
    for (int h = 1; h < c->nheads; h++) {
        peer *to = &c->peers[h];
        range theirs = output(&r->header, h);
        int state = move(to->fd, 1, c->all + theirs.from, theirs.len, &to->given);
        if (state < 0) return state;
        done &= state;
    }
    return done;
}

static void progress(comm *c) {
    while (c->ended != c->posted) {
        request *r = &c->requests[c->ended % REQUESTS];
        if (r->failed || (fault("silent") && c->posts > FAULT_AT)) return;
        int state = c->head ? leaf(r) : root(r);
        if (state == 0) return;
        if (state < 0) {
            r->failed = state == -1 ? REMOTE : INTERNAL;
            return;
        }
        r->done = 1;
        for (int h = 0; h < c->nheads; h++) {
            free(c->peers[h].in);
            c->peers[h].in = NULL;
            c->peers[h].taken = c->peers[h].given = 0;
        }
        free(c->all);
        c->all = NULL;
        c->ended++;
    }
}

static int post(comm *c, header h, const void *in, void *out, void **result) {
    *result = NULL;
    request *r = &c->requests[c->posted % REQUESTS];
    if (r->in_use) return SUCCESS;
    if (fault("allreduce") && c->posts >= FAULT_AT) {
        SAY(WARN, "told to fail");
        return SYSTEM;
    }
    *r = (request){.comm = c, .header = h, .in = in, .out = out, .in_use = 1};
    c->posted++;
    c->posts++;
    progress(c);
    *result = r;
    return SUCCESS;
}

/* ---- the table ---- */

#if VERSION >= 11
static int init(void **context, uint64_t communicator, logger log) {
    say = log;
    if (!communicator) return INTERNAL;
    *context = &the_context;
    contexts++;
#else
static int init(logger log) {
    say = log;
#endif
    SAY(INFO, "the test's network that reduces, version %d", VERSION);
    if (fault("init")) {
        SAY(WARN, "told to fail in version %d", VERSION);
        return SYSTEM;
    }
    return SUCCESS;
}

static int devices(int *n) {
    *n = fault("devices") ? 0 : 2;
    return SUCCESS;
}

static int get_properties(int device, properties *p) {
    static const char *names[] = {"coll0", "coll1"};
    return properties_of(device, names[device], p);
}

static int listen_(CONTEXT int device, void *opaque, void **out) {
    (void)device;
    CHECK_CONTEXT
    handle h = {.magic = MAGIC};
    int fd = listening(&h.port);
    if (fd < 0) return SYSTEM;
    memcpy(opaque, &h, sizeof h);
    listener *l = calloc(1, sizeof *l);
    l->fd = fd;
    l->waiting_fd = -1;
    *out = l;
    return SUCCESS;
}

/* Head 0 meets the others; 1 when all have come. */
static int meet(listener *l) {
    while (l->met < l->comm->nheads - 1) {
        if (l->waiting_fd < 0) {
            l->waiting_fd = accept4(l->fd, NULL, NULL, SOCK_CLOEXEC);
            if (l->waiting_fd < 0) return errno == EAGAIN ? 0 : -1;
            nonblocking(l->waiting_fd);
        }
        uint32_t head;
        ssize_t n = recv(l->waiting_fd, &head, sizeof head, MSG_PEEK);
        if (n < 0 && errno == EAGAIN) return 0;
        if (n < (ssize_t)sizeof head) return -1;
        recv(l->waiting_fd, &head, sizeof head, 0);
        if (head == 0 || head >= (uint32_t)l->comm->nheads || l->comm->peers[head].fd >= 0) return -1;
        l->comm->peers[head].fd = l->waiting_fd;
        l->waiting_fd = -1;
        l->met++;
    }
    return 1;
}

static int connect_(void *handles[], int nheads, int head, void *opaque, void **out) {
    listener *l = opaque;
    *out = NULL;
    for (int h = 0; h < nheads; h++) {
        if (((handle *)handles[h])->magic != MAGIC) {
            SAY(WARN, "head %d's handle is of another network", h);
            return INTERNAL;
        }
    }
    if (fault("connect") || nheads > HEADS_MAX) {
        SAY(WARN, "told to fail");
        return SYSTEM;
    }
    if (!l->comm) {
        l->comm = calloc(1, sizeof *l->comm);
        l->comm->nheads = nheads;
        l->comm->head = head;
        for (int h = 0; h < HEADS_MAX; h++) l->comm->peers[h].fd = -1;
        if (head) {
            uint32_t me = head;
            int fd = connected(((handle *)handles[0])->port);
            if (fd < 0 || send(fd, &me, sizeof me, MSG_NOSIGNAL) != sizeof me) return SYSTEM;
            l->comm->peers[0].fd = fd;
        }
        if (!fault("wait")) return SUCCESS;
    }
    int met = 1;
    if (!head)
        while ((met = meet(l)) == 0 && fault("wait")) usleep(1000);
    if (met < 0) {
        SAY(WARN, "a stranger came");
        return INTERNAL;
    }
    if (met) {
        *out = l->comm;
        l->comm = NULL;
    }
    return SUCCESS;
}

static int reduce_support(int dtype, int op, int *supported) {
    *supported = dtype <= BFLOAT16 && op <= MIN && !(op == PROD && fault("product")) &&
                 !(op == SUM && dtype == UINT64 && fault("sum"));
    return SUCCESS;
}

/* The handle is the memory's first byte, which operations check. */
static int reg_mr(void *c, void *data, size_t len, int kind, void **out) {
    (void)c, (void)len;
    if (kind != 1) {
        SAY(WARN, "memory of kind %d", kind);
        return INTERNAL;
    }
    *out = data;
    return SUCCESS;
}

static int dereg_mr(void *c, void *mr) {
    (void)c;
    return mr ? SUCCESS : INTERNAL;
}

static int unregistered(const void *data, const void *mr) {
    if (mr && (const char *)data >= (const char *)mr) return 0;
    SAY(WARN, "memory that was not registered");
    return 1;
}

static int iallreduce(void *c, void *in, void *out, count_t count, int dtype, int op, void *in_mr, void *out_mr,
                      void **result) {
    if (unregistered(in, in_mr) || unregistered(out, out_mr)) return INTERNAL;
    uint64_t bytes = (uint64_t)count * size_of(dtype);
    return post(c, (header){ALL_REDUCE, dtype, op, 0, bytes, 0, 0}, in, out, result);
}

static int iallgather(void *opaque, void *in, int nparts, sge *parts, size_t head_bytes, size_t offset,
                      size_t window, void *in_mr, void **result) {
    comm *c = opaque;
    uint64_t all = head_bytes * c->nheads;
    if (unregistered(in, in_mr) || nparts != 1 || unregistered(parts->address, parts->mr)) return INTERNAL;
    if (offset > all || window > all - offset || parts->size != window) return INTERNAL;
    return post(c, (header){ALL_GATHER, 0, 0, 0, window, head_bytes, offset}, in, parts->address, result);
}

static int ireducescatter(void *opaque, int nparts, sge *parts, void *out, size_t head_bytes, size_t offset,
                          size_t window, int dtype, int op, void *out_mr, void **result) {
    comm *c = opaque;
    uint64_t all = head_bytes * c->nheads;
    if (unregistered(out, out_mr) || nparts != 1 || unregistered(parts->address, parts->mr)) return INTERNAL;
    if (offset > all || window > all - offset || parts->size != window) return INTERNAL;
    return post(c, (header){REDUCE_SCATTER, dtype, op, 0, window, head_bytes, offset}, parts->address, out, result);
}

static int iflush(void *c, void *data, int len, void *mr, void **result) {
    (void)c, (void)data, (void)len, (void)mr;
    *result = NULL;
    return SUCCESS;
}

/* Plugins say this and that of an operation's bytes: this one nothing that could be right. */
static int test(void *opaque, int *done, int *size) {
    request *r = opaque;
    progress(r->comm);
    *done = r->done;
    if (r->failed) return r->failed;
    if (r->done) {
        if (size) *size = -1;
        r->in_use = 0;
    }
    return SUCCESS;
}

static int close_coll(void *opaque) {
    comm *c = opaque;
    for (int h = 0; h < HEADS_MAX; h++) {
        if (c->peers[h].fd >= 0) close(c->peers[h].fd);
        free(c->peers[h].in);
    }
    free(c->all);
    free(c);
    return SUCCESS;
}

static int close_listen(void *opaque) {
    listener *l = opaque;
    if (l->waiting_fd >= 0) close(l->waiting_fd);
    if (l->comm) close_coll(l->comm);
    close(l->fd);
    free(l);
    return SUCCESS;
}

#if VERSION >= 11
static int finalize(void *context) {
    CHECK_CONTEXT
    return contexts-- > 0 ? SUCCESS : INTERNAL;
}
#endif

struct coll_table {
    const char *name;
    __typeof__(&init) init;
    __typeof__(&devices) devices;
    __typeof__(&get_properties) get_properties;
    __typeof__(&listen_) listen;
    __typeof__(&connect_) connect;
    __typeof__(&reduce_support) reduce_support;
    __typeof__(&reg_mr) reg_mr;
    unused reg_mr_dma_buf;
    __typeof__(&dereg_mr) dereg_mr;
    __typeof__(&iallreduce) iallreduce;
    __typeof__(&iallgather) iallgather;
    __typeof__(&ireducescatter) ireducescatter;
    __typeof__(&iflush) iflush;
    __typeof__(&test) test;
    __typeof__(&close_coll) close_coll;
    __typeof__(&close_listen) close_listen;
#if VERSION >= 9
    unused make_v_device;
#endif
#if VERSION >= 11
    __typeof__(&finalize) finalize;
#endif
};

const struct coll_table SYMBOL(ncclCollNetPlugin_v, VERSION) = {
    .name = "Coll",
    .init = init,
    .devices = devices,
    .get_properties = get_properties,
    .listen = listen_,
    .connect = connect_,
    .reduce_support = reduce_support,
    .reg_mr = reg_mr,
    .dereg_mr = dereg_mr,
    .iallreduce = iallreduce,
#ifndef REDUCES_ONLY
    .iallgather = iallgather,
    .ireducescatter = ireducescatter,
#endif
    .iflush = iflush,
    .test = test,
    .close_coll = close_coll,
    .close_listen = close_listen,
#if VERSION >= 11
    .finalize = finalize,
#endif
};
