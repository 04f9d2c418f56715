/* A net plugin for the tests: TCP over 127.0.0.1, built once for each version of NCCL's table (-DVERSION=8 to 12).
 *
 * A message is its length in eight bytes, then its bytes. Nothing blocks. Connecting takes at least two calls, its progress being
 * kept in the handle, since plugins may do that. -DFAULT="init", "devices" or "send" builds one whose call of that name fails. */
#include "plugin.h"

enum { MAGIC = 0x0cc10cc1 };

typedef int (*profiler)(void **event, int kind, void *parent, int64_t plugin, void *extra);
#if VERSION >= 9
typedef size_t length;
#else
typedef int length;
#endif
#if VERSION >= 10
#define PROFILED(x) x,
#else
#define PROFILED(x)
#endif

typedef struct {
    int traffic_class;
} config;

/* ---- state ---- */

typedef struct {
    uint32_t magic;
    uint16_t port;
    int calls;        /* of connect, in the caller's copy */
    int fd;           /* the socket, once it is being connected */
} handle;

struct comm;
typedef struct {
    struct comm *comm;
    char *data;
    uint64_t len, header, moved; /* `moved` counts the header too */
    int in_use, done, failed;
} request;

typedef struct comm {
    int fd, sends;
    unsigned posted, ended; /* requests [ended, posted) are under way, in this order */
    request requests[REQUESTS];
} comm;

#if VERSION >= 11
static int the_context;
static int contexts;
#endif

static void *new_comm(int fd, int sends) {
    comm *c = calloc(1, sizeof *c);
    c->fd = fd;
    c->sends = sends;
    return c;
}

/* Moves what can be moved, message by message. */
static void progress(comm *c) {
    while (c->ended != c->posted) {
        request *r = &c->requests[c->ended % REQUESTS];
        while (!r->done && !r->failed) {
            int in_header = r->moved < 8;
            char *at = in_header ? (char *)&r->header + r->moved : r->data + (r->moved - 8);
            size_t left = in_header ? 8 - r->moved : r->header + 8 - r->moved;
            ssize_t n = 0;
            if (left) n = c->sends ? send(c->fd, at, left, MSG_NOSIGNAL) : recv(c->fd, at, left, 0);
            if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return;
            if (left && n <= 0) {
                SAY(WARN, "%s: %s", c->sends ? "send" : "recv", n ? strerror(errno) : "the other end is closed");
                r->failed = REMOTE;
                return;
            }
            r->moved += n;
            if (r->moved >= 8 && r->header > r->len) {
                SAY(WARN, "a message of %llu bytes for a buffer of %llu", (unsigned long long)r->header,
                    (unsigned long long)r->len);
                r->failed = INTERNAL;
                return;
            }
            r->done = r->moved >= 8 && r->moved == r->header + 8;
        }
        if (r->failed) return;
        c->ended++;
    }
}

static int post(comm *c, void *data, uint64_t len, void **out) {
    *out = NULL;
    request *r = &c->requests[c->posted % REQUESTS];
    if (r->in_use) return SUCCESS;
    memset(r, 0, sizeof *r);
    r->comm = c;
    r->data = data;
    r->len = len;
    r->header = c->sends ? len : 0;
    r->in_use = 1;
    c->posted++;
    progress(c);
    *out = r;
    return SUCCESS;
}

/* ---- the table ---- */

#if VERSION >= 11
static int init(void **context, uint64_t communicator, config *c, logger log, profiler p) {
    say = log;
    if (!communicator || c->traffic_class != -1 || p(NULL, 0, NULL, 0, NULL)) return INTERNAL;
    *context = &the_context;
    contexts++;
#elif VERSION == 10
static int init(logger log, profiler p) {
    say = log;
    if (p(NULL, 0, NULL, 0, NULL)) return INTERNAL;
#else
static int init(logger log) {
    say = log;
#endif
    SAY(INFO, "the test's plugin, version %d", VERSION);
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
    static const char *names[] = {"plug0", "plug1"};
    return properties_of(device, names[device], p);
}

static int listen_(CONTEXT int device, void *opaque, void **out) {
    (void)device;
    CHECK_CONTEXT
    handle h = {.magic = MAGIC};
    int fd = listening(&h.port);
    if (fd < 0) return SYSTEM;
    memcpy(opaque, &h, sizeof h);
    *out = new_comm(fd, 0);
    return SUCCESS;
}

#if VERSION == 10
static int connect_(int device, config *c, void *opaque, void **out, void **device_comm) {
    if (c->traffic_class != -1) return INTERNAL;
#else
static int connect_(CONTEXT int device, void *opaque, void **out, void **device_comm) {
    CHECK_CONTEXT
#endif
    (void)device;
    handle *h = opaque;
    *out = NULL;
    if (*device_comm) return INTERNAL;
    if (h->magic != MAGIC) {
        SAY(WARN, "a handle of another network");
        return INTERNAL;
    }
    if (h->calls++ == 0) {
        h->fd = connected(h->port);
        return h->fd < 0 ? SYSTEM : SUCCESS;
    }
    *out = new_comm(h->fd, 1);
    return SUCCESS;
}

static int accept_(void *opaque, void **out, void **device_comm) {
    comm *c = opaque;
    *out = NULL;
    if (*device_comm) return INTERNAL;
    int fd = accept4(c->fd, NULL, NULL, SOCK_CLOEXEC);
    if (fd < 0) return errno == EAGAIN ? SUCCESS : SYSTEM;
    nonblocking(fd);
    *out = new_comm(fd, 0);
    return SUCCESS;
}

static int reg_mr(void *c, void *data, size_t len, int kind, void **out) {
    (void)c, (void)data, (void)len;
    if (kind != 1) {
        SAY(WARN, "memory of kind %d", kind);
        return INTERNAL;
    }
    *out = NULL; /* sockets need none */
    return SUCCESS;
}

static int dereg_mr(void *c, void *mr) {
    (void)c;
    return mr ? INTERNAL : SUCCESS;
}

static int isend(void *c, void *data, length len, int tag, void *mr, PROFILED(void *parent) void **out) {
    (void)mr, (void)tag;
    if (fault("send")) {
        SAY(WARN, "told to fail");
        return SYSTEM;
    }
    return post(c, data, len, out);
}

static int irecv(void *c, int n, void **data, length *lens, int *tags, void **mrs, PROFILED(void **parents) void **out) {
    (void)tags, (void)mrs;
    return n == 1 ? post(c, data[0], lens[0], out) : INTERNAL;
}

static int iflush(void *c, int n, void **data, int *lens, void **mrs, void **out) {
    (void)c, (void)n, (void)data, (void)lens, (void)mrs;
    *out = NULL;
    return SUCCESS;
}

static int test(void *opaque, int *done, int *lens) {
    request *r = opaque;
    progress(r->comm);
    *done = r->done;
    if (r->failed) return r->failed;
    if (r->done) {
        if (lens) lens[0] = (int)r->header;
        r->in_use = 0;
    }
    return SUCCESS;
}

static int close_(void *opaque) {
    comm *c = opaque;
    close(c->fd);
    free(c);
    return SUCCESS;
}

#if VERSION >= 11
static int finalize(void *context) {
    CHECK_CONTEXT
    return contexts-- > 0 ? SUCCESS : INTERNAL;
}
#endif

struct table {
    const char *name;
    __typeof__(&init) init;
    __typeof__(&devices) devices;
    __typeof__(&get_properties) get_properties;
    __typeof__(&listen_) listen;
    __typeof__(&connect_) connect;
    __typeof__(&accept_) accept;
    __typeof__(&reg_mr) reg_mr;
    unused reg_mr_dma_buf;
    __typeof__(&dereg_mr) dereg_mr;
    __typeof__(&isend) isend;
    __typeof__(&irecv) irecv;
    __typeof__(&iflush) iflush;
    __typeof__(&test) test;
    __typeof__(&close_) close_send, close_recv, close_listen;
    unused get_device_mr, irecv_consumed;
#if VERSION >= 9
    unused make_v_device;
#endif
#if VERSION >= 11
    __typeof__(&finalize) finalize;
    unused set_net_attr;
#endif
};

const struct table SYMBOL(ncclNetPlugin_v, VERSION) = {
    .name = "Plug",
    .init = init,
    .devices = devices,
    .get_properties = get_properties,
    .listen = listen_,
    .connect = connect_,
    .accept = accept_,
    .reg_mr = reg_mr,
    .dereg_mr = dereg_mr,
    .isend = isend,
    .irecv = irecv,
    .iflush = iflush,
    .test = test,
    .close_send = close_,
    .close_recv = close_,
    .close_listen = close_,
#if VERSION >= 11
    .finalize = finalize,
#endif
};
