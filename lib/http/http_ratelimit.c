/* Makes requests wait until the throttle (HttpRateLimitHooks) lets them send, and charges it for
 * what really left the node: bodies, heads, TLS and what is sent again.
 *
 * A request books before it sends. What is booked comes due later (`booked`, a timer runs), then
 * may be sent (`granted`), then is charged to the connection that it went through. libcurl does not
 * say how much it writes to a connection, so the kernel is asked (TCP_INFO) and the difference is
 * charged or refunded: settle(). A kept connection outlives its requests, so connections have a
 * list of their own.
 *
 * Nothing here calls libcurl. on_ready, when a wait is over, is the caller's. */
#include "lib/http/http_ratelimit.h"

#include <arpa/inet.h>
#include <errno.h>
#include <linux/sockios.h>
#include <linux/tcp.h>
#include <stdlib.h>
#include <sys/ioctl.h>
#include <sys/socket.h>

#include "lib/base/cleanup.h"
#include "lib/base/clock.h"

#define UNLIMITED_PIECE (128 * KIB) /* soon enough to notice that there is a limit now */
#define PIECE_MIN KIB
#define STUCK_POLL_USEC USEC_PER_MSEC /* then twice as long, and so on, … */
#define STUCK_DOUBLINGS_MAX 4U        /* … so often */
#define STUCK_IS_STALLED 3            /* and from then on nothing is saved up */
#define BOOKING_ACCURACY_USEC 200
typedef struct Wire { /* one connection */
        ListLink link;
        int fd;
        uint64_t settled; /* bytes that were asked for, or charged, and have gone … */
        HttpBooking open; /* … and since then */
} Wire;

static bool is_on(const HttpRateLimit *p) {
        return p->throttle.book != NULL;
}

/* @param ret_paid  gets them. @return as HttpRateLimitHooks.book */
static uint64_t book(HttpRateLimit *p, uint64_t n, HttpBooking *ret_paid) {
        ret_paid->n = n;
        return p->throttle.book(n, &ret_paid->cost, p->throttle.userdata);
}

static void add_booking(HttpBooking *to, HttpBooking paid) {
        to->n += paid.n;
        to->cost += paid.cost;
}

static HttpBooking split_booking(HttpBooking *from, uint64_t n) {
        HttpBooking share = *from;

        if (n < from->n) {
                double cost = (double)from->cost * (double)n / (double)from->n;
                share = (HttpBooking){ .n = n, .cost = MIN((uint64_t)cost, from->cost) };
        }
        from->n -= share.n;
        from->cost -= share.cost;
        return share;
}

/* ── connections ── */

void http_ratelimit_init(HttpRateLimit *p, sd_event *event, const HttpRateLimitHooks *throttle) {
        *p = (HttpRateLimit){ .event = event };
        if (throttle)
                p->throttle = *throttle;
        list_init(&p->wires);
}

void http_ratelimit_done(HttpRateLimit *p) {
        LIST_FOREACH_SAFE (link, &p->wires)
                free(CONTAINER_OF(link, Wire, link));
        list_init(&p->wires);
}

static Wire *wire_of(const HttpRateLimit *p, int fd) {
        LIST_FOREACH (link, &p->wires) {
                Wire *w = CONTAINER_OF(link, Wire, link);
                if (w->fd == fd)
                        return w;
        }
        return NULL;
}

int http_ratelimit_opened(HttpRateLimit *p, int fd) {
        Wire *w;

        if (!is_on(p))
                return 0;
        w = calloc(1, sizeof *w);
        if (!w)
                return -ENOMEM;
        w->fd = fd;
        list_append(&p->wires, &w->link);
        return 0;
}

typedef struct Flow {
        uint64_t written; /* handed to the kernel since the connection was made: TLS and all */
        uint64_t unsent;  /* of that: has not left yet */
} Flow;

/* @return false: the kernel does not say */
static bool flow_of(int fd, Flow *ret) {
        struct tcp_info info = { 0 };
        socklen_t n = sizeof info;
        int n_unacked;

        if (getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &n) < 0 ||
            n < offsetof(struct tcp_info, tcpi_notsent_bytes) + sizeof info.tcpi_notsent_bytes ||
            ioctl(fd, SIOCOUTQ, &n_unacked) < 0 || n_unacked < 0)
                return false;
        *ret = (Flow){ .written = info.tcpi_bytes_acked + (uint64_t)n_unacked,
                       .unsent = info.tcpi_notsent_bytes };
        return true;
}

/* Charges what was sent beyond what was booked. */
static void settle(HttpRateLimit *p, Wire *w, Flow *ret) {
        uint64_t paid = w->settled + w->open.n;
        HttpBooking more;

        if (!flow_of(w->fd, ret))
                *ret = (Flow){ .written = paid };
        if (ret->written > paid) {
                (void)book(p, ret->written - paid, &more); /* the next one waits for it */
                add_booking(&w->open, more);
        }
}

/* Only when nothing is on its way to the kernel: refunds also what was not needed. @return bytes
 * that the kernel has not sent yet */
static uint64_t settle_all(HttpRateLimit *p, Wire *w) {
        Flow flow;

        settle(p, w, &flow);
        uint64_t paid = w->settled + w->open.n;
        if (flow.written < paid)
                p->throttle.refund(split_booking(&w->open, paid - flow.written).cost,
                                   p->throttle.userdata);
        w->settled = flow.written;
        w->open = (HttpBooking){ 0 };
        return flow.unsent;
}

void http_ratelimit_closing(HttpRateLimit *p, int fd) {
        Wire *w = wire_of(p, fd);

        if (!w)
                return;
        (void)settle_all(p, w);
        list_remove(&w->link);
        free(w);
}

static Wire *wire_at(const HttpRateLimit *p, int local_port) {
        LIST_FOREACH (link, &p->wires) {
                Wire *w = CONTAINER_OF(link, Wire, link);
                struct sockaddr_storage address = { 0 };
                socklen_t n = sizeof address;
                const struct sockaddr_in *v4 = (const void *)&address;
                const struct sockaddr_in6 *v6 = (const void *)&address;

                if (getsockname(w->fd, (struct sockaddr *)&address, &n) == 0 &&
                    ntohs(address.ss_family == AF_INET6 ? v6->sin6_port : v4->sin_port) ==
                            local_port)
                        return w;
        }
        return NULL;
}

/* ── calls ── */

void http_ratelimit_call_init(HttpRateLimitCall *c, HttpRateLimit *limit,
                              void (*on_ready)(void *userdata), void *userdata) {
        *c = (HttpRateLimitCall){
                .limit = limit, .fd = -1, .on_ready = on_ready, .userdata = userdata
        };
}

void http_ratelimit_call_done(HttpRateLimitCall *c) {
        uint64_t unused = c->booked.cost + c->granted.cost + c->head.cost;

        c->timer = sd_event_source_disable_unref(c->timer);
        if (unused > 0)
                c->limit->throttle.refund(unused, c->limit->throttle.userdata);
        c->booked = c->granted = c->head = (HttpBooking){ 0 };
        c->limit->n_calls -= c->has_started;
        c->has_started = false;
}

static int on_timer(sd_event_source *s, uint64_t usec, void *userdata) {
        HttpRateLimitCall *c = userdata;

        (void)s, (void)usec;
        add_booking(&c->granted, c->booked);
        c->booked = (HttpBooking){ 0 };
        c->on_ready(c->userdata);
        return 0;
}

/* Calls on_ready then. @return false for lack of memory */
static bool arm_timer(HttpRateLimitCall *c, uint64_t wait_usec) {
        Clock *clock = clock_system();
        /* Not the loop's idea of now, which is that of its turn's beginning: then it would be too
         * early. */
        uint64_t when = clock->boottime_usec(clock) + wait_usec;

        if (!c->timer)
                return sd_event_add_time(c->limit->event, &c->timer, CLOCK_BOOTTIME, when,
                                         BOOKING_ACCURACY_USEC, on_timer, c) >= 0;
        return sd_event_source_set_time(c->timer, when) >= 0 &&
               sd_event_source_set_enabled(c->timer, SD_EVENT_ONESHOT) >= 0;
}

/* @return whether c->granted is there now */
static bool book_or_wait(HttpRateLimitCall *c, size_t n) {
        HttpBooking paid;
        uint64_t wait = book(c->limit, n, &paid);

        if (wait > 0 && arm_timer(c, wait)) {
                c->booked = paid;
                return false;
        }
        c->granted = paid;
        return true;
}

bool http_ratelimit_start(HttpRateLimitCall *c, size_t n_head) {
        if (!is_on(c->limit))
                return true;
        if (!c->has_started) {
                c->has_started = true;
                c->limit->n_calls++;
                if (!book_or_wait(c, n_head))
                        return false;
        }
        c->head = c->granted;
        c->granted = (HttpBooking){ 0 };
        return true;
}

void http_ratelimit_connected(HttpRateLimitCall *c, int local_port) {
        HttpRateLimit *p = c->limit;
        Wire *w = is_on(p) ? wire_at(p, local_port) : NULL;
        Flow flow;

        if (!w)
                return;
        c->fd = w->fd;
        settle(p, w, &flow); /* connecting has sent bytes: TLS, the request to a proxy */
        add_booking(&w->open, c->head);
        c->head = (HttpBooking){ 0 };
}

void http_ratelimit_call_closing(HttpRateLimitCall *c, int fd) {
        if (c->fd == fd)
                c->fd = -1;
}

bool http_ratelimit_is_waiting(const HttpRateLimitCall *c) {
        return c->booked.n > 0;
}

bool http_ratelimit_is_stuck(const HttpRateLimitCall *c) {
        return c->n_stuck > 0;
}

void http_ratelimit_answered(HttpRateLimitCall *c) {
        Wire *w = wire_of(c->limit, c->fd);

        if (w)
                (void)settle_all(c->limit, w);
}

/* A connection gets its next piece when the kernel has sent the last one. So what buffers hold
 * while the network is stalled, and send at once when it recovers, is one piece a connection. */
static bool is_stuck(HttpRateLimitCall *c, Wire *w) {
        HttpRateLimit *p = c->limit;

        /* libcurl reads more when it has written all that it had. */
        if (!w || settle_all(p, w) == 0) {
                c->n_stuck = 0;
                return false;
        }
        if (++c->n_stuck >= STUCK_IS_STALLED)
                p->throttle.discard_savings(p->throttle.userdata);
        return arm_timer(c, STUCK_POLL_USEC << MIN(c->n_stuck - 1, STUCK_DOUBLINGS_MAX));
}

/* @return whether c->granted is there now */
static bool book_piece(HttpRateLimitCall *c, Wire *w, size_t left) {
        HttpRateLimit *p = c->limit;
        size_t piece = p->throttle.piece(p->throttle.userdata);

        if (piece == SIZE_MAX)
                return book_or_wait(c, MIN(left, UNLIMITED_PIECE));
        piece = MAX(piece / p->n_calls, PIECE_MIN);
        return !is_stuck(c, w) && book_or_wait(c, MIN(left, piece));
}

size_t http_ratelimit_read(HttpRateLimitCall *c, size_t wanted, size_t left) {
        Wire *w = wire_of(c->limit, c->fd);

        if (!is_on(c->limit))
                return wanted;
        if (http_ratelimit_is_waiting(c)) /* the booking is not due yet */
                return 0;
        if (c->granted.n == 0 && !book_piece(c, w, left))
                return 0;
        const HttpBooking paid = split_booking(&c->granted, wanted);
        if (w)
                add_booking(&w->open, paid);
        return paid.n;
}
