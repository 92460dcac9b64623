/* The parent's side of the bus. A tick every few seconds looks at the key file, at what is to be
 * listened on and dialled, and at the child: whatever that does, it is killed and started again. */
#include "agent/peers/bus.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <net/if.h>
#include <netdb.h>
#include <netinet/in.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/wait.h>

#include "agent/peers/bus_keys.h"
#include "agent/peers/wire.h"
#include "lib/base/array.h"
#include "lib/base/digest.h"
#include "lib/base/log.h"
#include "lib/event/bus_child.h"
#include "lib/event/child.h"
#include "lib/event/timer.h"
#include "lib/event/worker_pool.h"

#define TICK_USEC (5 * USEC_PER_SEC)
#define HEARTBEAT_USEC (30 * USEC_PER_SEC)
#define CHILD_SILENCE_USEC (4 * BUS_STATE_USEC)
#define PACKETS_MAX 32 /* in a turn of the loop */
#define HOSTS_MAX 64
#define HOST_SIZE 254
#define LITERAL_SIZE (INET6_ADDRSTRLEN + IF_NAMESIZE)
#define LOG_USEC ((int64_t)(10 * USEC_PER_MINUTE))
#define LOOKUP_USEC USEC_PER_MINUTE /* names are looked up again after it */
#define ADDRESSES_MAX (1 + BUS_PEERS_MAX)
#define ERROR_SIZE 384
#define SEQUENCE_AHEAD_USEC (10 * USEC_PER_MINUTE) /* as far as a clock may be ahead, wire.c */
#define SENDERS_MAX 4096 /* whose last sequence is known; two may share a place */

static_assert(ADDRESSES_MAX <= BUS_ENDPOINTS_MAX && WIRE_BYTES_MAX <= BUS_BYTES_MAX,
              "the child opens the default addresses");

/* What a name, or a literal, stands for. */
typedef struct HostAddress {
        char literal[LITERAL_SIZE]; /* "" = not known */
        bool is_loopback;
        bool is_own; /* any of its addresses */
} HostAddress;

typedef struct Host {
        char name[HOST_SIZE];
        HostAddress address;
        uint64_t requested_usec, resolved_usec; /* resolved: 0 = not yet */
} Host;

/* In a thread, since getaddrinfo(3) blocks; one at a time. */
typedef struct Resolution {
        WorkJob job; /* first */
        Bus *bus;
        char name[HOST_SIZE];
        HostAddress address;
} Resolution;

typedef struct Sender {
        uint64_t hash, sequence;
} Sender;

struct Bus {
        BusOptions options;
        char **rendezvous; /* NULL-terminated; NULL = none */
        BusKeyFile key_file;
        Host hosts[HOSTS_MAX];
        Sender senders[SENDERS_MAX];
        WorkerPool *pool;       /* NULL = nothing was looked up yet */
        Resolution *resolution; /* the thread's while it runs; NULL = none */
        sd_event_source *timer;

        Child *child;
        int fd; /* to the child; -1 = there is none */
        sd_event_source *io;
        BusAddress opened[ADDRESSES_MAX]; /* what this child was told */
        size_t n_opened;
        BusChildState state;
        uint64_t heard_usec, beat_usec;

        uint64_t sequence;
        BusView counts;               /* of what was sent and received */
        char error[ERROR_SIZE];       /* of keys and messages; "" */
        int64_t child_log_usec;       /* an end of it is logged again from this time on */
        char child_error[ERROR_SIZE]; /* "" since it runs again */
        int64_t log_usec;             /* from when on a rejected message is logged again */
        Message message;
        uint8_t packet[BUS_PACKET_MAX];
};

static uint64_t now_usec(const Bus *b) {
        return b->options.clock->boottime_usec(b->options.clock);
}

/* ---- hosts ---- */

static bool is_loopback(const struct sockaddr *address) {
        const struct sockaddr_in *v4 = (const void *)address;
        const struct sockaddr_in6 *v6 = (const void *)address;
        if (address->sa_family == AF_INET)
                return ntohl(v4->sin_addr.s_addr) >> 24 == IN_LOOPBACKNET;
        return IN6_IS_ADDR_LOOPBACK(&v6->sin6_addr) ||
               (IN6_IS_ADDR_V4MAPPED(&v6->sin6_addr) &&
                v6->sin6_addr.s6_addr[12] == IN_LOOPBACKNET);
}

/* Whether a socket may have it: the service's sandbox has no AF_NETLINK, which lists addresses. */
static bool is_own_address(const struct addrinfo *a) {
        _cleanup_close_ int fd = socket(a->ai_family, a->ai_socktype | SOCK_CLOEXEC, 0);
        return fd >= 0 && bind(fd, a->ai_addr, a->ai_addrlen) == 0;
}

/* @param flags  AI_NUMERICHOST: a literal, which needs no look-up
 * @return whether it is known now, and *ret: the first address */
static bool resolve_host(const char *name, int flags, HostAddress *ret) {
        struct addrinfo hints = { .ai_socktype = SOCK_STREAM, .ai_flags = flags };
        struct addrinfo *list;
        if (getaddrinfo(name, NULL, &hints, &list) != 0)
                return false;
        *ret = (HostAddress){ .is_loopback = is_loopback(list->ai_addr) };
        for (const struct addrinfo *i = list; i; i = i->ai_next)
                ret->is_own = ret->is_own || is_loopback(i->ai_addr) || is_own_address(i);
        int r = getnameinfo(list->ai_addr, list->ai_addrlen, ret->literal, sizeof ret->literal,
                            NULL, 0, NI_NUMERICHOST);
        freeaddrinfo(list);
        return r == 0;
}

static void run_resolution(WorkJob *job) {
        Resolution *l = (Resolution *)job;
        (void)resolve_host(l->name, AI_ADDRCONFIG, &l->address); /* else it stays as it was */
}

static Host *find_known_host(Bus *b, const char *name) {
        for (Host *h = b->hosts; h < b->hosts + HOSTS_MAX; h++)
                if (strcmp(h->name, name) == 0)
                        return h;
        return NULL;
}

static void tick(Bus *b);

static void end_resolution(WorkJob *job) {
        Resolution *l = (Resolution *)job;
        Bus *b = l->bus;
        b->resolution = NULL;
        Host *h = find_known_host(b, l->name);
        if (h) {
                h->resolved_usec = now_usec(b);
                h->address = l->address;
        }
        free(l);
        tick(b);
}

/* Starts to look a name up, if no other one is looked up now. */
static void start_resolution(Bus *b, const Host *h) {
        if (b->resolution || (!b->pool && worker_pool_new(&b->pool, b->options.event, "bus-names",
                                                          1, WORKER_NORMAL) < 0))
                return;
        Resolution *l = calloc(1, sizeof *l);
        if (!l)
                return;
        l->job = (WorkJob){ .run = run_resolution, .done = end_resolution };
        l->bus = b;
        memcpy(l->name, h->name, sizeof l->name);
        l->address = h->address;
        if (worker_pool_submit(b->pool, &l->job) < 0)
                free(l);
        else
                b->resolution = l;
}

/* @return what is known of it now, borrowed until the next call; NULL: the name is too long */
static const Host *find_host(Bus *b, const char *name) {
        if (!*name || strlen(name) >= HOST_SIZE)
                return NULL;
        Host *h = find_known_host(b, name);
        if (!h) { /* instead of the one that nobody has asked for longest */
                h = &b->hosts[0];
                for (size_t i = 1; i < HOSTS_MAX; i++)
                        if (b->hosts[i].requested_usec < h->requested_usec)
                                h = &b->hosts[i];
                *h = (Host){ .name = "" };
                memcpy(h->name, name, strlen(name));
        }
        h->requested_usec = now_usec(b);
        if (!resolve_host(name, AI_NUMERICHOST, &h->address) &&
            (h->resolved_usec == 0 || h->requested_usec - h->resolved_usec > LOOKUP_USEC))
                start_resolution(b, h);
        return h;
}

bool bus_is_own_host(Bus *b, const char *host) {
        const Host *h = find_host(b, host);
        return h && h->address.is_own;
}

/* ---- addresses ---- */

static bool has_key(const Bus *b) {
        return b->key_file.keys.n > 0;
}

/* @return at least one, the first of which signs: without a key file it is all zeros */
static const WireKey *wire_keys(const Bus *b) {
        static const WireKey none = { .id = "" };
        return has_key(b) ? b->key_file.keys.items : &none;
}

/* `tcp://HOST:PORT`. @return whether it is one */
static bool split_address(const char *text, char host[HOST_SIZE], const char **ret_port) {
        const char *colon = strrchr(text, ':');
        if (strncmp(text, "tcp://", 6) != 0 || colon < text + 6)
                return false;
        const char *begin = text + 6, *end = colon;
        if (*begin == '[' && end - begin > 2 && end[-1] == ']') {
                begin++;
                end--;
        }
        if (end == begin || end - begin >= HOST_SIZE)
                return false;
        (void)snprintf(host, HOST_SIZE, "%.*s", (int)(end - begin), begin);
        *ret_port = colon + 1;
        return true;
}

/* This node is not dialled on the port where it listens itself.
 * @return whether it may be opened, and *ret as the child wants it */
static bool resolve_address(Bus *b, const char *text, bool listens, BusAddress *ret) {
        char host[HOST_SIZE];
        const char *port, *own_port = strrchr(b->options.listen, ':');
        memset(ret, 0, sizeof *ret); /* they are compared byte for byte */
        ret->listens = listens;
        if (strncmp(text, "ipc://", 6) == 0)
                return (size_t)snprintf(ret->text, sizeof ret->text, "%s", text) < sizeof ret->text;
        if (!split_address(text, host, &port))
                return false;
        const Host *h = find_host(b, strcmp(host, "*") == 0 ? "::" : host);
        if (!h || !*h->address.literal || (!h->address.is_loopback && !has_key(b)) ||
            (!listens && h->address.is_own && own_port && strcmp(own_port + 1, port) == 0))
                return false;
        const bool is_v6 = strchr(h->address.literal, ':');
        return (size_t)snprintf(ret->text, sizeof ret->text,
                                is_v6 ? "tcp://[%s]:%s" : "tcp://%s:%s", h->address.literal,
                                port) < sizeof ret->text;
}

static bool is_listed(const BusAddress *list, size_t n, const BusAddress *a) {
        for (size_t i = 0; i < n; i++)
                if (strcmp(list[i].text, a->text) == 0)
                        return true;
        return false;
}

/* What is to be open now: what was configured first. @return how many */
static size_t list_addresses(Bus *b, BusAddress ret[static ADDRESSES_MAX]) {
        char text[HOST_SIZE + BUS_ADDRESS_SIZE], host[HOST_SIZE];
        const char *port;
        size_t n = resolve_address(b, b->options.listen, true, ret), max = n + BUS_PEERS_MAX;
        for (char *const *peer = b->options.peers; peer && *peer && n < max; peer++)
                n += resolve_address(b, *peer, false, &ret[n]) && !is_listed(ret, n, &ret[n]);
        if (!split_address(b->options.listen, host, &port))
                return n;
        for (char **other = b->rendezvous; other && *other && n < max; other++) {
                (void)snprintf(text, sizeof text, "tcp://[%s]:%s", *other, port);
                n += resolve_address(b, text, false, &ret[n]) && !is_listed(ret, n, &ret[n]);
        }
        return n;
}

/* ---- the child ---- */

static void plan_tick(Bus *b, uint64_t usec) {
        int r = timer_rearm(b->timer, usec);
        if (r < 0)
                log_error(r, "cannot arm the timer of the bus; it is no longer supervised");
}

/* Forgets the child, which a later tick starts again. @param why  NULL: nobody needs it */
static void stop_child(Bus *b, const char *why) {
        if (b->child && why) {
                int64_t now = (int64_t)now_usec(b);
                (void)snprintf(b->child_error, sizeof b->child_error, "the bus process ended: %s",
                               why);
                if (now >= b->child_log_usec) { /* one that crashes again and again, too */
                        log_warning(0, "%s; it is started again", b->child_error);
                        b->child_log_usec = now + LOG_USEC;
                }
        }
        b->io = sd_event_source_disable_unref(b->io);
        if (b->fd >= 0)
                (void)close(TAKE_FD(b->fd));
        b->child = child_free(b->child);
        b->counts.n_sent_bytes += b->state.n_sent_bytes; /* the next one begins at 0 */
        b->n_opened = 0;
        b->state = (BusChildState){ .n_bound = 0 };
}

static void on_child_done(const ChildResult *result, void *userdata) {
        char why[128];
        const bool is_signal = WIFSIGNALED(result->status);
        if (result->error < 0)
                (void)snprintf(why, sizeof why, "%s", strerror(-result->error));
        else
                (void)snprintf(why, sizeof why, "%s %d%s%.80s", is_signal ? "signal" : "exit code",
                               is_signal ? WTERMSIG(result->status) : WEXITSTATUS(result->status),
                               *result->error_line ? ", " : "", result->error_line);
        stop_child(userdata, why);
}

/* Ages in a packet count from when it was sent, so those of an old packet are wrong. A sequence is
 * a time: one far ahead of this node's clock would mute the named sender, and every node with the
 * key can write any name. */
static bool is_replay(Bus *b, const Message *m) {
        uint8_t digest[SHA256_SIZE];
        uint64_t hash, now = b->options.clock->realtime_usec(b->options.clock);
        if (m->sequence > now + SEQUENCE_AHEAD_USEC)
                return true;
        sha256_of(m->sender, strlen(m->sender), digest);
        memcpy(&hash, digest, sizeof hash);
        Sender *s = &b->senders[hash % SENDERS_MAX];
        if (s->hash == hash && m->sequence <= s->sequence)
                return true;
        *s = (Sender){ .hash = hash, .sequence = m->sequence };
        return false;
}

/* Why, and what to do. */
static const char *verdict_text(WireVerdict v) {
        static const char *const texts[N_WIRE_VERDICTS] = {
                [WIRE_OK] = "accepted",
                [WIRE_FOREIGN] = "it is not a message of this version; use one version on all "
                                 "nodes, and let nothing else connect to this port",
                [WIRE_UNKNOWN_KEY] = "its key is not in agreement.key_file; add the key here, or "
                                     "remove it there",
                [WIRE_FORGED] = "its signature is wrong; use the same key for an id everywhere",
                [WIRE_STALE] = "its time differs by more than 10 minutes; synchronize the clocks",
                [WIRE_MALFORMED] = "it is signed, but malformed; use one version on all nodes",
        };
        return v < N_WIRE_VERDICTS ? texts[v] : NULL;
}
static void handle_message(Bus *b, size_t n) {
        WireReader reader = { .keys = wire_keys(b),
                              .n_keys = MAX(b->key_file.keys.n, (size_t)1),
                              .boot_usec = (int64_t)now_usec(b),
                              .real_usec =
                                      (int64_t)b->options.clock->realtime_usec(b->options.clock) };
        WireVerdict v = wire_decode(b->packet + 1, n, &reader, &b->message);
        b->counts.n_received++;
        if (v != WIRE_OK) {
                b->counts.n_rejected++;
                (void)snprintf(b->error, sizeof b->error, "a message was rejected: %s",
                               verdict_text(v));
                if (reader.boot_usec >= b->log_usec) { /* however many there are */
                        log_warning(0, "%s", b->error);
                        b->log_usec = reader.boot_usec + LOG_USEC;
                }
        } else if (!is_replay(b, &b->message) && b->message.kind != MESSAGE_HEARTBEAT &&
                   strcmp(b->message.sender, b->options.instance_id) != 0)
                b->options.on_message(&b->message, b->options.userdata);
}

/* @return whether there may be another one */
static bool handle_packet(Bus *b) {
        ssize_t n = recv(b->fd, b->packet, sizeof b->packet, MSG_DONTWAIT);
        if (n < 0 && (errno == EAGAIN || errno == EINTR))
                return false;
        if (n <= 0) { /* on_child_done() says why */
                b->io = sd_event_source_disable_unref(b->io);
                return false;
        }
        b->heard_usec = now_usec(b);
        if (b->packet[0] == BUS_RECEIVED)
                handle_message(b, (size_t)n - 1);
        else if (b->packet[0] == BUS_STATE && (size_t)n == 1 + sizeof b->state) {
                memcpy(&b->state, b->packet + 1, sizeof b->state);
                b->state.error[sizeof b->state.error - 1] = '\0';
                b->child_error[0] = '\0';
        }
        return true;
}

static int on_readable(sd_event_source *s, int fd, uint32_t revents, void *userdata) {
        Bus *b = userdata;
        (void)s, (void)fd, (void)revents;
        for (unsigned i = 0; i < PACKETS_MAX && b->io && handle_packet(b); i++)
                ;
        return 0;
}

static int start_child(Bus *b) {
        static char *const environment[] = { (char *)"PATH=/usr/bin:/bin", (char *)"LANG=C.UTF-8",
                                             NULL };
        char *argv[] = { (char *)"neuron-collectd", (char *)"--child=bus", NULL };
        int fds[2];
        if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, fds) < 0)
                return -errno;
        _cleanup_close_ int fd = fds[1];
        b->fd = fds[0];
        int r = child_new(&b->child, b->options.event,
                          &(ChildOptions){ .program = "/proc/self/exe",
                                           .argv = argv,
                                           .environment = environment,
                                           .third_fd = fd,
                                           .timeout_usec = USEC_INFINITY,
                                           .cuts_output = true,
                                           .on_done = on_child_done,
                                           .userdata = b });
        if (r == 0)
                r = sd_event_add_io(b->options.event, &b->io, b->fd, EPOLLIN, on_readable, b);
        if (r < 0) {
                stop_child(b, NULL);
                return r;
        }
        b->heard_usec = now_usec(b);
        return 0;
}

/* @return 0; -errno: it does not read, and is found out by its silence */
static int send_packet(Bus *b, char what, const void *data, size_t n) {
        struct iovec parts[] = { { .iov_base = &what, .iov_len = 1 },
                                 { .iov_base = (void *)data, .iov_len = n } };
        struct msghdr m = { .msg_iov = parts, .msg_iovlen = ELEMENTSOF(parts) };
        return sendmsg(b->fd, &m, MSG_DONTWAIT | MSG_NOSIGNAL) < 0 ? -errno : 0;
}

/* Tells the child what is to be open, when that has changed. What cannot be told is told later. */
static void apply_addresses(Bus *b, const BusAddress *wanted, size_t n) {
        if ((n == b->n_opened && memcmp(wanted, b->opened, n * sizeof *wanted) == 0) ||
            send_packet(b, BUS_OPEN, wanted, n * sizeof *wanted) < 0)
                return;
        memcpy(b->opened, wanted, n * sizeof *wanted);
        b->n_opened = n;
}

/* ---- the tick ---- */

static void check_keys(Bus *b) {
        Diags faults = { .n = 0 };
        int r = bus_key_file_check(&b->key_file, &faults);
        for (size_t i = 0; i < faults.n; i++) {
                _cleanup_free_ char *text = diag_format(&faults.items[i]);
                (void)snprintf(b->error, sizeof b->error, "%s", text ? text : strerror(ENOMEM));
                log_warning(0, "%s", b->error);
        }
        diag_done(&faults);
        if (r <= 0)
                return;
        b->error[0] = '\0';
        log_info("the bus signs with key '%s' of %zu", b->key_file.keys.items[0].id,
                 b->key_file.keys.n);
}

static void send_heartbeat(Bus *b, uint64_t now) {
        if (now < b->beat_usec + HEARTBEAT_USEC && b->beat_usec > 0)
                return;
        b->beat_usec = now;
        const Message m = { .kind = MESSAGE_HEARTBEAT };
        (void)bus_send(b, &m); /* may be lost: there is another one */
}

static void tick(Bus *b) {
        BusAddress wanted[ADDRESSES_MAX];
        uint64_t now = now_usec(b);
        check_keys(b);
        size_t n = list_addresses(b, wanted);
        if (b->child && now - b->heard_usec > CHILD_SILENCE_USEC)
                stop_child(b, "it did not respond and was killed");
        if (n == 0 && b->child)
                stop_child(b, NULL);
        if (n > 0 && !b->child) {
                int r = start_child(b);
                b->counts.n_restarts += r == 0 && *b->child_error;
                if (r < 0)
                        (void)snprintf(b->error, sizeof b->error,
                                       "cannot start the bus process: %s", strerror(-r));
        }
        if (b->child) {
                apply_addresses(b, wanted, n);
                if (b->state.n_connected > 0)
                        send_heartbeat(b, now);
        }
}

static int on_tick(sd_event_source *s, uint64_t usec, void *userdata) {
        (void)s, (void)usec;
        plan_tick(userdata, TICK_USEC);
        tick(userdata);
        return 0;
}

/* ---- for others ---- */

int bus_send(Bus *b, const Message *m) {
        size_t n;
        uint8_t bytes[WIRE_BYTES_MAX];
        if (!b->child || b->state.n_connected == 0)
                return -ENOTCONN;
        uint64_t real_usec = b->options.clock->realtime_usec(b->options.clock);
        /* It also grows over a restart. After a clock that was far ahead it starts from the current
         * time: no peer has accepted those sequences. */
        bool is_ahead = b->sequence > real_usec + SEQUENCE_AHEAD_USEC;
        b->sequence = is_ahead ? real_usec : MAX(b->sequence + 1, real_usec);
        WireStamp stamp = { .key = wire_keys(b),
                            .sender = b->options.instance_id,
                            .sequence = b->sequence,
                            .boot_usec = (int64_t)now_usec(b),
                            .real_usec = (int64_t)real_usec };
        int r = wire_encode(m, &stamp, bytes, &n);
        if (r < 0)
                return r;
        if (send_packet(b, BUS_SEND, bytes, n) < 0)
                return -ENOTCONN;
        b->counts.n_sent++;
        return 0;
}

void bus_set_rendezvous(Bus *b, char *const *hosts) {
        char **copy = strings_copy(hosts);
        if (!copy)
                return; /* the next call comes soon */
        strings_free(b->rendezvous);
        b->rendezvous = copy;
        plan_tick(b, 0);
}

void bus_view(const Bus *b, BusView *ret) {
        bool is_open = b->state.n_bound > 0 || b->state.n_connected > 0;
        *ret = b->counts;
        ret->state = !b->child         ? (*b->child_error ? "failing" : "off")
                     : is_open         ? "listening"
                     : *b->state.error ? "failing"
                                       : "starting";
        ret->last_error = *b->state.error   ? b->state.error
                          : *b->child_error ? b->child_error
                          : *b->error       ? b->error
                                            : NULL;
        ret->has_key = has_key(b);
        ret->n_connected = b->state.n_connected;
        ret->n_dialled = b->state.n_dialled;
        ret->n_sent_bytes += b->state.n_sent_bytes;
}

int bus_new(Bus **ret, const BusOptions *o) {
        _cleanup_(bus_freep) Bus *b = calloc(1, sizeof *b);
        if (!b)
                return -ENOMEM;
        b->fd = -1;
        b->options = *o;
        b->key_file.path = o->key_file;
        int r = timer_arm(&b->timer, &(TimerOptions){ .event = b->options.event,
                                                      .slack_usec = USEC_PER_MSEC,
                                                      .handler = on_tick,
                                                      .userdata = b });
        if (r < 0)
                return r;
        *ret = TAKE_PTR(b);
        return 0;
}

Bus *bus_free(Bus *b) {
        if (!b)
                return NULL;
        stop_child(b, NULL);
        if (b->pool)
                worker_pool_abandon(TAKE_PTR(b->pool));
        if (b->resolution && !worker_pool_is_running(&b->resolution->job))
                free(b->resolution); /* else it is the thread's for ever */
        b->timer = sd_event_source_disable_unref(b->timer);
        bus_key_file_done(&b->key_file);
        strings_free(b->rendezvous);
        free(b);
        return NULL;
}
