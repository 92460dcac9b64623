/* The only user of nanomsg. Facts of nanomsg 1.1.5 that it is built on: it aborts its process after
 * some failed binds, has no limit of connections and spins at EMFILE, never resets its backoff, has
 * no keepalive, and resolves names by itself. So each address has a socket of its own, whose
 * statistics say how that address is doing, and which is closed and made again. */
#include "lib/event/bus_child.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/landlock.h>
#include <malloc.h>
#include <nanomsg/bus.h>
#include <nanomsg/nn.h>
#include <nanomsg/tcp.h>
#include <poll.h>
#include <signal.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/syscall.h>

#include "lib/base/cleanup.h"
#include "lib/base/clock.h"
#include "lib/base/syscall_filter.h"

#define DESCRIPTORS_MAX 2048
#define CONNECTIONS_MAX 1500  /* above, the listener closes */
#define MEMORY_MAX (16 * MIB) /* as well */
#define DATA_MAX (64 * MIB)
#define CLOSED_USEC (10 * USEC_PER_SEC)
#define SILENCE_USEC (90 * USEC_PER_SEC)
#define CONNECT_USEC (10 * USEC_PER_SEC)
#define BACKOFF_MIN_USEC USEC_PER_SEC
#define BACKOFF_MAX_USEC (30 * USEC_PER_SEC)
#define TICK_USEC USEC_PER_SEC
#define BUSY_TICK_USEC (100 * USEC_PER_MSEC)
/* Our own, not nanomsg's: an endpoint that fails is made again. */
#define NEVER_MSEC (24 * 3600 * 1000)
#define SEND_BUFFER (256 * 1024) /* of each connection, in the kernel */
#define RATE_MAX 2000            /* messages a second that its parent gets */
#define BURST_MAX 1000
#define TURN_MAX 64 /* of an endpoint, or of its parent, before others are looked at */

typedef struct BusEndpoint {
        char address[BUS_ADDRESS_SIZE]; /* "" = free */
        char error[BUS_ERROR_SIZE];     /* why it is not open, or not connected; "" */
        bool listens, was_connected;
        int socket, fd; /* -1 = closed, until due_usec */
        uint64_t due_usec, opened_usec, heard_usec, n_accepted;
        unsigned n_failures; /* since a message was received */
} BusEndpoint;

typedef struct BusChild {
        BusEndpoint endpoints[BUS_ENDPOINTS_MAX];
        BusChildState state, sent;
        uint64_t state_usec, ticked_usec, refilled_usec;
        unsigned credit, descriptors_max;
        bool is_confined, has_ipv6, is_busy;
        uint8_t packet[BUS_PACKET_MAX];
} BusChild;

/* ---- confinement ---- */

static int limit(__rlimit_resource_t what, rlim_t value) {
        struct rlimit now;
        if (getrlimit(what, &now) < 0)
                return -errno;
        rlim_t v = MIN(value, now.rlim_max);
        return setrlimit(what, &(struct rlimit){ v, v }) < 0 ? -errno
                                                             : (int)MIN(v, (rlim_t)INT32_MAX);
}

/* No file can be opened or made; with `ipc://`, sockets are made and removed. All that Linux 5.13
 * knows; what later ones added is refused by the filter of system calls, as is this. */
static void enter_landlock(bool allows_ipc) {
        const uint64_t sockets = LANDLOCK_ACCESS_FS_MAKE_SOCK | LANDLOCK_ACCESS_FS_REMOVE_FILE;
        struct landlock_ruleset_attr attr = { .handled_access_fs =
                                                      (LANDLOCK_ACCESS_FS_MAKE_SYM << 1) - 1 };
        if (allows_ipc)
                attr.handled_access_fs &= ~sockets;
        _cleanup_close_ int fd = (int)syscall(SYS_landlock_create_ruleset, &attr, sizeof attr, 0);
        if (fd >= 0)
                (void)syscall(SYS_landlock_restrict_self, fd, 0); /* else the kernel has it not */
}

/* What nanomsg, poll(2) and send(2) need beside the basics, and a thread that has just begun. */
/* clang-format off */
static const unsigned short allowed[] = {
        SYS_bind, SYS_listen, SYS_accept, SYS_accept4, SYS_connect, SYS_sendto, SYS_recvfrom,
        SYS_getsockopt, SYS_setsockopt, SYS_epoll_create1, SYS_epoll_ctl, SYS_epoll_pwait,
        SYS_eventfd2, SYS_ppoll, SYS_set_robust_list,
#ifdef SYS_rseq
        SYS_rseq,
#endif
#ifdef __x86_64__
        SYS_poll, SYS_epoll_wait,
#endif
};
static const unsigned short allowed_with_ipc[] = {
        SYS_socket, SYS_unlinkat,
#ifdef __x86_64__
        SYS_unlink,
#endif
};
/* clang-format on */

/* Its parent, which has the same user, cannot be reached: no socket of its API or of the probe, no
 * signal (F_SETOWN of fcntl(2) would have the kernel send some), no view of its memory. */
static int enter_seccomp(bool allows_ipc) {
        static const uint32_t domains[] = { AF_INET, AF_INET6 };
        static const uint32_t of_fcntl[] = { F_SETFD, F_GETFL, F_SETFL };
        SyscallFilter f;
        syscall_filter_init(&f);
        syscall_filter_allow_basics(&f);
        syscall_filter_allow(&f, allowed, ELEMENTSOF(allowed));
        if (allows_ipc)
                syscall_filter_allow(&f, allowed_with_ipc, ELEMENTSOF(allowed_with_ipc));
        syscall_filter_allow_values(&f, SYS_socket, 0, domains, ELEMENTSOF(domains));
        syscall_filter_allow_values(&f, SYS_fcntl, 1, of_fcntl, ELEMENTSOF(of_fcntl));
        syscall_filter_return(&f, EPERM);
        return syscall_filter_install(&f, true);
}

/* Capabilities were dropped when it was started. With the first packet, since its parent still
 * changes its limits until then, and the thread that started it may end, of which it would die.
 * nanomsg ends its thread with its last socket: one that stays open has it started here, before
 * none can be started any more. */
static int confine(BusChild *c, bool allows_ipc) {
        if (prctl(PR_SET_PDEATHSIG, SIGKILL) < 0 || prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) < 0)
                return -errno;
        int r = limit(RLIMIT_NOFILE, DESCRIPTORS_MAX);
        if (r < 0)
                return r;
        c->descriptors_max = MIN((unsigned)CONNECTIONS_MAX, (unsigned)r / 4 * 3);
        r = limit(RLIMIT_CORE, 0);
#ifndef __SANITIZE_ADDRESS__
        if (r >= 0)
                r = limit(RLIMIT_DATA, DATA_MAX);
#endif
        if (r < 0)
                return r;
        enter_landlock(allows_ipc);
        int kept = nn_socket(AF_SP_RAW, NN_BUS), other = nn_socket(AF_SP_RAW, NN_BUS);
        if (kept < 0 || other < 0 || nn_connect(other, "ipc:///proc/none") < 0 ||
            nn_close(other) < 0) /* which waits for the thread */
                return -nn_errno();
        c->is_confined = true;
        return enter_seccomp(allows_ipc);
}

/* ---- endpoints ---- */

/* `tcp://1.2.3.4:5` on a socket of IPv6: nanomsg aborts when it is not written so. */
static void spell(const BusChild *c, const char *address, char ret[BUS_ADDRESS_SIZE + 16]) {
        const char *host = address + strlen("tcp://"), *colon = strrchr(address, ':');
        bool is_ipv4 = strncmp(address, "tcp://", 6) == 0 && *host != '[';
        if (c->has_ipv6 && is_ipv4)
                (void)snprintf(ret, BUS_ADDRESS_SIZE + 16, "tcp://[::ffff:%.*s]%s",
                               (int)(colon - host), host, colon);
        else
                (void)snprintf(ret, BUS_ADDRESS_SIZE + 16, "%s", address);
}

static uint64_t statistic(const BusEndpoint *e, int which) {
        return e->socket < 0 ? 0 : nn_get_statistic(e->socket, which);
}

static void close_endpoint(BusEndpoint *e) {
        if (e->socket >= 0)
                (void)nn_close(TAKE_FD(e->socket)); /* fails only for one that is not open */
        e->fd = -1;
        e->was_connected = false;
        e->n_accepted = 0;
}

/* It is made again after 1 to 30 s, each time later; half of that is chance. */
static void retry_endpoint(BusEndpoint *e, const char *fault, uint64_t now) {
        uint64_t wait = BACKOFF_MIN_USEC << MIN(e->n_failures, 5U);
        wait = MIN(wait, BACKOFF_MAX_USEC);
        close_endpoint(e);
        e->n_failures++;
        e->due_usec = now + wait / 2 + (uint64_t)random() % (wait / 2);
        (void)snprintf(e->error, sizeof e->error, "%s: %s", e->address, fault);
}

static int set_option(const BusEndpoint *e, int level, int option, int value) {
        return nn_setsockopt(e->socket, level, option, &value, sizeof value);
}

static int open_socket(const BusChild *c, BusEndpoint *e) {
        size_t n = sizeof e->fd;
        char address[BUS_ADDRESS_SIZE + 16];
        e->socket = nn_socket(AF_SP_RAW, NN_BUS);
        if (e->socket < 0 || set_option(e, NN_SOL_SOCKET, NN_RCVMAXSIZE, BUS_BYTES_MAX) < 0 ||
            set_option(e, NN_SOL_SOCKET, NN_SNDBUF, SEND_BUFFER) < 0 ||
            set_option(e, NN_SOL_SOCKET, NN_RECONNECT_IVL, NEVER_MSEC) < 0 ||
            set_option(e, NN_SOL_SOCKET, NN_IPV4ONLY, !c->has_ipv6) < 0 ||
            set_option(e, NN_TCP, NN_TCP_NODELAY, 1) < 0 ||
            nn_getsockopt(e->socket, NN_SOL_SOCKET, NN_RCVFD, &e->fd, &n) < 0)
                return -1;
        spell(c, e->address, address);
        return e->listens ? nn_bind(e->socket, address) : nn_connect(e->socket, address);
}

static void open_endpoint(const BusChild *c, BusEndpoint *e, uint64_t now) {
        if (open_socket(c, e) < 0) {
                retry_endpoint(e, nn_strerror(nn_errno()), now);
                return;
        }
        e->opened_usec = e->heard_usec = now;
        if (e->listens)
                e->error[0] = '\0';
}

/* Descriptors are given out from the lowest on. A connection holds up to a message of memory. */
static bool is_flooded(const BusChild *c) {
        _cleanup_close_ int fd = eventfd(0, EFD_CLOEXEC);
        return fd < 0 || (unsigned)fd > c->descriptors_max || mallinfo2().uordblks > MEMORY_MAX;
}

static void check_listener(BusChild *c, BusEndpoint *e, uint64_t now) {
        uint64_t n = statistic(e, NN_STAT_ACCEPTED_CONNECTIONS);
        c->is_busy = c->is_busy || n != e->n_accepted;
        e->n_accepted = n;
        if (!is_flooded(c))
                return;
        close_endpoint(e);
        (void)malloc_trim(0);
        e->due_usec = now + CLOSED_USEC;
        (void)snprintf(e->error, sizeof e->error, "%s: too many connections, closed for 10s",
                       e->address);
}

static void check_dialled(BusChild *c, BusEndpoint *e, uint64_t now) {
        bool is_connected = statistic(e, NN_STAT_CURRENT_CONNECTIONS) > 0;
        c->is_busy = c->is_busy || !is_connected;
        if (is_connected && !e->was_connected) {
                e->was_connected = true;
                e->heard_usec = now;
                e->error[0] = '\0';
        }
        if (e->was_connected && !is_connected)
                retry_endpoint(e, "the connection broke", now);
        else if (is_connected && now - e->heard_usec > SILENCE_USEC)
                retry_endpoint(e, "silent for 90s", now);
        else if (!is_connected &&
                 (statistic(e, NN_STAT_CONNECT_ERRORS) > 0 || now - e->opened_usec > CONNECT_USEC))
                retry_endpoint(e, "cannot connect", now);
}

static BusEndpoint *find_endpoint(BusChild *c, const char *address) {
        for (size_t i = 0; i < BUS_ENDPOINTS_MAX; i++)
                if (strcmp(c->endpoints[i].address, address) == 0)
                        return &c->endpoints[i];
        return NULL;
}

static void add_endpoint(BusChild *c, const BusAddress *a, uint64_t now) {
        BusEndpoint *e = find_endpoint(c, a->text) ? NULL : find_endpoint(c, "");
        if (!e)
                return; /* it is open, or there are too many */
        *e = (BusEndpoint){ .listens = a->listens, .socket = -1, .fd = -1 };
        memcpy(e->address, a->text, sizeof e->address);
        open_endpoint(c, e, now);
}

static bool is_wanted(const BusAddress *wanted, size_t n, const BusEndpoint *e) {
        for (size_t i = 0; i < n; i++)
                if (strcmp(wanted[i].text, e->address) == 0)
                        return true;
        return false;
}

static void set_endpoints(BusChild *c, const BusAddress *wanted, size_t n, uint64_t now) {
        for (BusEndpoint *e = c->endpoints; e < c->endpoints + BUS_ENDPOINTS_MAX; e++)
                if (!is_wanted(wanted, n, e)) {
                        close_endpoint(e);
                        e->address[0] = '\0';
                }
        for (size_t i = 0; i < n; i++)
                add_endpoint(c, &wanted[i], now);
}

/* ---- its parent ---- */

static void count_state(BusChild *c) {
        BusChildState *s = &c->state;
        s->n_bound = s->n_dialled = s->n_connected = 0;
        memset(s->error, 0, sizeof s->error);
        for (size_t i = 0; i < BUS_ENDPOINTS_MAX; i++) {
                const BusEndpoint *e = &c->endpoints[i];
                if (!*e->address)
                        continue;
                s->n_bound += e->listens && e->socket >= 0;
                s->n_dialled += !e->listens;
                s->n_connected += (uint32_t)statistic(e, NN_STAT_CURRENT_CONNECTIONS);
                if (*e->error && !*s->error)
                        (void)snprintf(s->error, sizeof s->error, "%s", e->error);
        }
}

static void send_state(BusChild *c, uint64_t now) {
        struct __attribute__((packed)) {
                uint8_t what;
                BusChildState state;
        } packet = { BUS_STATE, c->state };
        if (memcmp(&c->state, &c->sent, sizeof c->state) == 0 &&
            now - c->state_usec < BUS_STATE_USEC)
                return;
        if (send(BUS_CHILD_FD, &packet, sizeof packet, MSG_DONTWAIT | MSG_NOSIGNAL) < 0)
                return; /* it does not read; again with the next tick */
        c->sent = c->state;
        c->state_usec = now;
}

static void send_to_peers(BusChild *c, const void *data, size_t n) {
        for (size_t i = 0; i < BUS_ENDPOINTS_MAX; i++) {
                BusEndpoint *e = &c->endpoints[i];
                uint64_t n_connected = statistic(e, NN_STAT_CURRENT_CONNECTIONS);
                if (n_connected == 0)
                        continue;
                if (nn_send(e->socket, data, n, NN_DONTWAIT) >= 0)
                        c->state.n_sent_bytes += n * n_connected;
        }
}

/* @param n  of the packet, > 0  @return whether it wants Unix sockets opened */
static bool wants_ipc(const BusChild *c, size_t n) {
        BusAddress a;
        for (size_t at = 1; c->packet[0] == BUS_OPEN && at + sizeof a <= n; at += sizeof a) {
                memcpy(&a, c->packet + at, sizeof a);
                if (strncmp(a.text, "ipc://", 6) == 0)
                        return true;
        }
        return false;
}

/* @param n  of the packet, > 0 */
static void handle_packet(BusChild *c, size_t n, uint64_t now) {
        BusAddress wanted[BUS_ENDPOINTS_MAX];
        c->is_busy = true;
        if (c->packet[0] == BUS_SEND)
                send_to_peers(c, c->packet + 1, n - 1);
        else if (c->packet[0] == BUS_OPEN && n - 1 <= sizeof wanted) {
                memcpy(wanted, c->packet + 1, n - 1);
                set_endpoints(c, wanted, (n - 1) / sizeof *wanted, now);
        }
}

/* @return 0; -ECONNRESET: its parent is gone; -errno */
static int read_packets(BusChild *c, uint64_t now) {
        for (unsigned i = 0; i < TURN_MAX; i++) {
                ssize_t n = recv(BUS_CHILD_FD, c->packet, sizeof c->packet, MSG_DONTWAIT);
                if (n < 0)
                        return errno == EAGAIN || errno == EINTR ? 0 : -errno;
                if (n == 0)
                        return -ECONNRESET;
                int r = c->is_confined ? 0 : confine(c, wants_ipc(c, (size_t)n));
                if (r < 0)
                        return r;
                handle_packet(c, (size_t)n, now);
        }
        return 0;
}

/* What came in. nanomsg takes from its connections by turns, so that one that floods only waits. */
static void read_endpoint(BusChild *c, BusEndpoint *e, uint64_t now) {
        for (unsigned i = 0; i < TURN_MAX && c->credit > 0; i++) {
                int n = nn_recv(e->socket, c->packet + 1, BUS_BYTES_MAX, NN_DONTWAIT);
                if (n < 0)
                        return;
                c->credit--;
                c->is_busy = true;
                e->heard_usec = now;
                e->n_failures = 0;
                c->packet[0] = BUS_RECEIVED;
                if (n > BUS_BYTES_MAX ||
                    send(BUS_CHILD_FD, c->packet, (size_t)n + 1, MSG_DONTWAIT | MSG_NOSIGNAL) < 0)
                        c->state.n_dropped++;
        }
}

/* ---- the loop ---- */

static void tick(BusChild *c, uint64_t now) {
        c->ticked_usec = now;
        c->is_busy = false;
        for (size_t i = 0; i < BUS_ENDPOINTS_MAX; i++) {
                BusEndpoint *e = &c->endpoints[i];
                if (!*e->address)
                        continue;
                if (e->socket < 0 && now >= e->due_usec)
                        open_endpoint(c, e, now);
                else if (e->socket >= 0 && e->listens)
                        check_listener(c, e, now);
                else if (e->socket >= 0)
                        check_dialled(c, e, now);
        }
        count_state(c);
        send_state(c, now);
}

static void refill(BusChild *c, uint64_t now) {
        uint64_t earned = (now - c->refilled_usec) * RATE_MAX / USEC_PER_SEC;
        if (earned == 0)
                return;
        c->credit = (unsigned)MIN((uint64_t)c->credit + earned, (uint64_t)BURST_MAX);
        c->refilled_usec = now;
}

/* @return -errno: it ends */
static int turn(BusChild *c) {
        struct pollfd fds[1 + BUS_ENDPOINTS_MAX] = { { .fd = BUS_CHILD_FD, .events = POLLIN } };
        uint64_t now = clock_boottime_usec();
        uint64_t due = c->ticked_usec + (c->is_busy ? BUSY_TICK_USEC : TICK_USEC);
        int timeout_msec = due > now ? (int)((due - now) / USEC_PER_MSEC) + 1 : 0;
        for (size_t i = 0; i < BUS_ENDPOINTS_MAX; i++)
                fds[1 + i] = (struct pollfd){ .fd = c->credit > 0 ? c->endpoints[i].fd : -1,
                                              .events = POLLIN };
        if (c->credit == 0)
                timeout_msec = MIN(timeout_msec, 10);
        if (poll(fds, ELEMENTSOF(fds), timeout_msec) < 0 && errno != EINTR)
                return -errno;
        now = clock_boottime_usec();
        refill(c, now);
        int r = fds[0].revents ? read_packets(c, now) : 0;
        if (c->state.n_connected == 0)
                tick(c, now); /* its parent knows that somebody is connected before it hears him */
        for (size_t i = 0; i < BUS_ENDPOINTS_MAX && r == 0; i++)
                if (fds[1 + i].revents && c->endpoints[i].socket >= 0)
                        read_endpoint(c, &c->endpoints[i], now);
        if (now >= c->ticked_usec + (c->is_busy ? BUSY_TICK_USEC : TICK_USEC))
                tick(c, now);
        return r;
}

static bool has_ipv6(void) {
        _cleanup_close_ int fd = socket(AF_INET6, SOCK_STREAM | SOCK_CLOEXEC, 0);
        return fd >= 0;
}

int bus_child_main(void) {
        int type = 0, r = 0;
        socklen_t n = sizeof type;
        if (getsockopt(BUS_CHILD_FD, SOL_SOCKET, SO_TYPE, &type, &n) < 0 ||
            type != SOCK_SEQPACKET) {
                fputs("neuron-collectd: --child=bus is for neuron-collectd itself\n", stderr);
                return 2;
        }
        BusChild *c = calloc(1, sizeof *c);
        if (!c)
                return 1;
        (void)mallopt(M_ARENA_MAX, 1);
        srandom((unsigned)clock_boottime_usec() ^ (unsigned)getpid());
        for (size_t i = 0; i < BUS_ENDPOINTS_MAX; i++)
                c->endpoints[i].socket = c->endpoints[i].fd = -1;
        c->has_ipv6 = has_ipv6();
        c->refilled_usec = clock_boottime_usec();
        while (r == 0)
                r = turn(c);
        free(c);
        if (r != -ECONNRESET)
                fprintf(stderr, "it ended: %s\n", strerror(-r));
        return r == -ECONNRESET ? 0 : 1;
}
