/* Requests by libcurl inside the loop. libcurl names the sockets and the timeout it waits for,
 * sd-event waits and passes the events back. One request is one easy handle, queued in the pool
 * (in libcurl's own queue the time to connect would run).
 * @see libcurl-multi(3), "MULTI_SOCKET" */
#include "lib/http/http.h"

#include <arpa/inet.h>
#include <curl/curl.h>
#include <errno.h>
#include <fcntl.h>
#include <jansson.h>
#include <limits.h>
#include <linux/sockios.h>
#include <linux/tcp.h>
#include <poll.h>
#include <signal.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <systemd/sd-event.h>

#include "lib/base/cleanup.h"
#include "lib/base/clock.h"
#include "lib/base/digest.h"
#include "lib/base/list.h"
#include "lib/base/parse.h"
#include "lib/base/strbuf.h"
#include "lib/http/url.h"

#define HTTP_HEADERS_MAX (64 * KIB) /* names and values of one reply */
typedef struct HttpHeaders {
        char *text; /* name NUL value NUL …, names in lower case; owned */
        size_t n, n_allocated;
} HttpHeaders;

typedef struct HttpReplyState { /* what was received so far */
        HttpHeaders headers;
        unsigned status;       /* of the last status line, 1xx as well; 0 = none */
        bool headers_ended;    /* of a status that is not 1xx */
        int64_t content_bytes; /* Content-Length, -1 = unknown */
        uint64_t n_received;   /* of the body, kept or not */
        char *body;            /* NUL-terminated when not NULL; owned */
        size_t n_body, n_allocated;
} HttpReplyState;

/* Time limits; CLOCK_MONOTONIC in microseconds. */
typedef enum HttpPhase {
        HTTP_PHASE_WAITING,    /* for its turn: only the limit on the total runs */
        HTTP_PHASE_RESOLVING,  /* a name may be looked up */
        HTTP_PHASE_CONNECTING, /* the name is known */
        HTTP_PHASE_TRANSFER,   /* the request is on its way, or its reply */
} HttpPhase;

typedef struct HttpTimeout {
        uint64_t connect_timeout_usec, stall_usec, timeout_usec; /* timeout 0 = none */
        HttpPhase phase;
        uint64_t created_usec;
        /* of the last attempt: a second one when a kept connection was dead */
        uint64_t connect_start_usec;
        uint64_t progress_usec; /* when a byte was last seen to move */
        /* bytes in the kernel's send buffer when last checked, -1 = not since a byte moved */
        int n_unsent;
} HttpTimeout;

typedef struct HttpErrorCause { /* borrowed */
        int error;              /* HTTP_E_* */
        const char *place;      /* `host:port` */
        const char *cause;      /* by libcurl or the kernel; NULL or "" = none: it took too long */
        const char *curl_text;  /* names a proxy that could not be connected to; NULL = nothing */
        bool was_connected;     /* and then nothing could be sent */
        unsigned proxy_status;  /* by which a proxy refused; 0 = it did not */
        uint64_t connect_timeout_usec, stall_usec, timeout_usec;
        size_t reply_max_bytes;
} HttpErrorCause;

typedef struct HttpRateLimit { /* of a pool */
        sd_event *event;       /* borrowed */
        HttpRateLimitHooks throttle;
        ListLink wires;   /* the connections that are open */
        unsigned n_calls; /* that have started: each gets its share */
} HttpRateLimit;

typedef struct HttpBooking {
        uint64_t n;    /* bytes */
        uint64_t cost; /* of all of them, as it was when they were booked */
} HttpBooking;

typedef struct HttpRateLimitCall { /* of a call */
        HttpRateLimit *limit;
        sd_event_source *timer;
        int fd; /* its connection; -1: none so far */
        bool has_started;
        HttpBooking booked;  /* not due yet */
        HttpBooking granted; /* may be sent */
        HttpBooking head;    /* granted for the request's head, which has no connection yet */
        /* how often in a row the kernel had not sent what was written before */
        unsigned n_stuck;
} HttpRateLimitCall;

typedef enum HttpCallState {
        HTTP_CALL_QUEUED,
        HTTP_CALL_HAS_TURN, /* counted in n_turns of the pool */
        HTTP_CALL_IN_CURL,  /* libcurl holds it */
        HTTP_CALL_CANCELED, /* no callback any more, but libcurl still holds it … */
        HTTP_CALL_LOOKUP,   /* … and its handle must not be removed */
} HttpCallState;

struct HttpCall {
        ListLink link; /* in one of the pool's lists */
        HttpCallState state;
        HttpPool *pool;
        CURL *easy;
        int fd;      /* libcurl's, which reports its end; -1 = none, or more than one is tried */
        int last_fd; /* the last one that was open */
        bool is_tls;
        struct curl_slist *headers;
        char *place; /* `host:port`, for people */

        const char *body; /* borrowed */
        size_t body_bytes, next_byte;
        size_t reply_max_bytes;
        int (*on_data)(HttpCall *call, const void *data, size_t n, void *userdata);
        void (*on_done)(const HttpReply *reply, void *userdata);
        void *userdata;

        HttpReplyState reply;
        int fault; /* HTTP_E_* that a callback found; libcurl only knows that it was stopped */
        bool is_head;
        bool was_sent; /* on some connection */
        bool reports_kept_dead, was_kept_dead;
        bool is_repeated; /* by us, on a new connection */
        bool has_grace;   /* by the timer, once */

        sd_event_source *timer;
        HttpTimeout timeout;
        HttpRateLimitCall ratelimit;
        size_t head_bytes;
        uint64_t started_usec; /* when it left the queue */
        uint64_t n_up, n_down; /* bytes of the bodies that have moved */

        char curl_text[CURL_ERROR_SIZE]; /* by libcurl */
        char text[CURL_ERROR_SIZE + 256];
};

struct HttpPool {
        sd_event *event;
        CURLM *multi;
        CURL *pattern; /* of the handles: only the options that all have */
        struct curl_slist *resolve;
        /* a handle can be removed in the middle of a look-up without waiting for its end */
        bool can_abandon_lookups;
        bool is_inside_curl; /* in one of its callbacks, from which it must not be called */
        sd_event_source *curl_timer, *wake;
        HttpRateLimit ratelimit;
        ListLink waiting, running, canceled;
        unsigned n_turns, n_max; /* calls that left the queue */
        uint64_t connect_timeout_usec, stall_usec;
};

/* A key of 1,024 bytes is 3 KiB when all of it is escaped; queries may have several such. */
#define URL_MAX (32 * KIB)
static bool is_url(const char *url) {
        size_t n = 0;

        for (; url[n] && n <= URL_MAX; n++)
                if (url[n] <= ' ' || url[n] >= 0x7f ||
                    url[n] == '#') /* char may be signed or not */
                        return false;
        return n > 0 && n <= URL_MAX;
}

/* @return whether the method is known, the body fits it, and the URL can be sent as it is:
 *   printable ASCII without blanks and `#`, at most 32 KiB. url_parse() checks the rest. */
static bool http_request_is_valid(const HttpRequestOptions *o) {
        static const char *const methods[] = { "GET", "PUT", "POST", "HEAD", "DELETE" };

        if (parse_word(o->method, methods, ELEMENTSOF(methods)) < 0 || !is_url(o->url) ||
            !o->on_done)
                return false;
        if (o->body)
                return strcmp(o->method, "HEAD") != 0;
        return o->body_bytes == 0;
}

static bool is_token_char(char c) { /* RFC 9110, 5.6.2 */
        return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
               (c && strchr("!#$%&'*+-.^_`|~", c));
}

/* Formats a `Name: value` line as libcurl requires it: an empty value, with which libcurl would
 * omit the header, by a semicolon. */
static int http_request_format_header(const char *line, char **ret) {
        size_t n_name = 0;

        while (is_token_char(line[n_name]))
                n_name++;
        if (n_name == 0 || line[n_name] != ':' || strpbrk(line, "\r\n"))
                return -EINVAL;
        char *copy = strdup(line);
        if (!copy)
                return -ENOMEM;
        if (copy[n_name + 1 + strspn(copy + n_name + 1, " \t")] == '\0') {
                copy[n_name] = ';';
                copy[n_name + 1] = '\0';
        }
        *ret = copy;
        return 0;
}

static void http_reply_init(HttpReplyState *h) {
        *h = (HttpReplyState){ .content_bytes = -1 };
}

static void free_body(HttpReplyState *h) {
        if (h->body)
                digest_wipe(h->body, h->n_allocated);
        free(h->body);
        h->body = NULL;
        h->n_body = h->n_allocated = 0;
}

static void http_reply_done(HttpReplyState *h) {
        free_body(h);
        free(h->headers.text);
        http_reply_init(h);
}

/* ── headers ── */

/* Adds name NUL value NUL. */
static int headers_add(HttpHeaders *h, const char *line, size_t n_name, size_t n_line) {
        const char *value = line + n_name + 1, *end = line + n_line;
        size_t n_value, n;

        while (value < end && (*value == ' ' || *value == '\t'))
                value++;
        while (value < end && (end[-1] == ' ' || end[-1] == '\t'))
                end--;
        n_value = (size_t)(end - value);
        n = n_name + n_value + 2; /* within n_line + 2 */
        if (n > HTTP_HEADERS_MAX - h->n)
                return -EFBIG;
        if (n > h->n_allocated - h->n) {
                size_t n_allocated = MAX(h->n + n, 2 * h->n_allocated + 1024);
                char *text = realloc(h->text, n_allocated);

                if (!text)
                        return -ENOMEM;
                h->text = text;
                h->n_allocated = n_allocated;
        }
        char *to = h->text + h->n;
        for (size_t i = 0; i < n_name; i++)
                to[i] = line[i] >= 'A' && line[i] <= 'Z' ? (char)(line[i] - 'A' + 'a') : line[i];
        to[n_name] = '\0';
        memcpy(to + n_name + 1, value, n_value);
        to[n_name + 1 + n_value] = '\0';
        h->n += n;
        return 0;
}

static const char *headers_get(const HttpHeaders *h, const char *name) {
        const char *found = NULL;

        for (size_t at = 0; at < h->n;) {
                const char *value = h->text + at + strlen(h->text + at) + 1;

                if (strcmp(h->text + at, name) == 0)
                        found = value;
                at = (size_t)(value - h->text) + strlen(value) + 1;
        }
        return found;
}

const char *http_reply_header(const HttpReply *r, const char *name) {
        return headers_get(r->headers, name);
}

/* A status line starts a reply and discards an interim one (1xx). @return whether it is one */
static bool parse_status(HttpReplyState *h, const char *line, size_t n) {
        const char *blank = memchr(line, ' ', n);
        unsigned status = 0;

        if (n < 5 || memcmp(line, "HTTP/", 5) != 0 || !blank)
                return false;
        for (const char *p = blank + 1; p < line + n && *p >= '0' && *p <= '9' && status < 1000;
             p++)
                status = 10 * status + (unsigned)(*p - '0');
        if (status < 100 || status > 999)
                return false;
        h->status = status;
        h->headers.n = 0;
        h->headers_ended = false;
        return true;
}

static void end_headers(HttpReplyState *h) {
        const char *length = headers_get(&h->headers, "content-length");
        uint64_t n;

        if (h->status < 200)
                return;
        h->headers_ended = true;
        if (h->status == 204 || h->status == 304) /* never have a body */
                h->content_bytes = 0;
        else if (!headers_get(&h->headers, "transfer-encoding") && length &&
                 parse_u64_range(length, 0, INT64_MAX, &n) == 0)
                h->content_bytes = (int64_t)n;
}

/* Parses a status line, a header or the empty line at their end. Trailers are ignored.
 * @return 0, -EFBIG more than HTTP_HEADERS_MAX, -EBADMSG no HTTP, -ENOMEM */
static int http_reply_add_line(HttpReplyState *h, const char *line, size_t n) {
        while (n > 0 && (line[n - 1] == '\n' || line[n - 1] == '\r'))
                n--;
        if (h->headers_ended)
                return 0; /* trailers, and the empty line behind them */
        if (n == 0) {
                end_headers(h);
                return 0;
        }
        if (memchr(line, '\0', n))
                return -EBADMSG;
        if (h->status < 200 && parse_status(h, line, n))
                return 0;
        if (h->status == 0)
                return -EBADMSG;
        const char *colon = memchr(line, ':', n);
        if (!colon || colon == line)
                return 0; /* a folded line, which RFC 9112 permits to ignore, or garbage */
        return headers_add(&h->headers, line, (size_t)(colon - line), n);
}

/* ── body ── */

static int http_reply_add_body(HttpReplyState *h, const void *data, size_t n, size_t max_bytes) {
        if (n > max_bytes - h->n_body)
                return -EFBIG;
        if (h->n_body + n >= h->n_allocated) {
                size_t n_body = h->n_body, n_allocated = MAX(n_body + n, 2 * n_body);
                char *body;

                if (h->content_bytes > 0 && (uint64_t)h->content_bytes <= max_bytes)
                        n_allocated = MAX(n_allocated, (size_t)h->content_bytes);
                body = malloc(++n_allocated); /* not realloc(): the old place would keep a copy */
                if (!body)
                        return -ENOMEM;
                if (h->body)
                        memcpy(body, h->body, n_body);
                free_body(h);
                h->body = body;
                h->n_body = n_body;
                h->n_allocated = n_allocated;
        }
        memcpy(h->body + h->n_body, data, n);
        h->n_body += n;
        h->body[h->n_body] = '\0';
        h->n_received += n;
        return 0;
}

/* Parses what a connection received, from the status line on: headers, and the body up to
 * Content-Length. */
static int http_reply_add_raw(HttpReplyState *h, const char *data, size_t n, size_t max_bytes) {
        while (!h->headers_ended) {
                const char *end = memchr(data, '\n', n);
                size_t n_line = end ? (size_t)(end - data) + 1 : 0;
                int r;

                if (!end)
                        return 0;
                r = http_reply_add_line(h, data, n_line);
                if (r < 0)
                        return r;
                data += n_line;
                n -= n_line;
        }
        if (h->content_bytes < 0)
                return 0;
        return http_reply_add_body(h, data, (size_t)MIN((uint64_t)n, (uint64_t)h->content_bytes),
                                   max_bytes);
}

static bool http_reply_is_complete(const HttpReplyState *h, bool is_head) {
        return h->headers_ended &&
               (is_head || (h->content_bytes >= 0 && h->n_received == (uint64_t)h->content_bytes));
}

static void http_timeout_on_progress(HttpTimeout *p, uint64_t now_usec) {
        p->progress_usec = now_usec;
        p->n_unsent = -1;
}

static void http_timeout_enter_phase(HttpTimeout *p, HttpPhase phase, uint64_t now_usec) {
        if (phase == HTTP_PHASE_RESOLVING ||
            (phase == HTTP_PHASE_CONNECTING && p->phase == HTTP_PHASE_TRANSFER))
                p->connect_start_usec = now_usec;
        if (phase == HTTP_PHASE_TRANSFER)
                http_timeout_on_progress(p, now_usec);
        p->phase = phase;
}

/* A slow line empties the kernel's send buffer, several MiB, long after the last byte was handed
 * over: that is progress too.
 * @param n_unsent bytes that the peer has not confirmed, by ioctl(SIOCOUTQ), see tcp(7) */
static void http_timeout_on_unsent(HttpTimeout *p, int n_unsent, uint64_t now_usec) {
        if (p->n_unsent >= 0 && n_unsent < p->n_unsent)
                p->progress_usec = now_usec;
        p->n_unsent = n_unsent;
}

static uint64_t add_span(uint64_t usec, uint64_t span_usec) {
        return span_usec > USEC_INFINITY - usec ? USEC_INFINITY : usec + span_usec;
}

/* When the phase's own limit is reached. */
static uint64_t phase_end(const HttpTimeout *p) {
        switch (p->phase) {
        case HTTP_PHASE_RESOLVING:
        case HTTP_PHASE_CONNECTING:
                return add_span(p->connect_start_usec, p->connect_timeout_usec);
        case HTTP_PHASE_TRANSFER:
                return add_span(p->progress_usec, p->stall_usec);
        case HTTP_PHASE_WAITING:
        default:
                return USEC_INFINITY;
        }
}

static uint64_t total_end(const HttpTimeout *p) {
        return p->timeout_usec > 0 ? add_span(p->created_usec, p->timeout_usec) : USEC_INFINITY;
}

static uint64_t http_timeout_next_usec(const HttpTimeout *p, uint64_t now_usec) {
        uint64_t end = MIN(phase_end(p), total_end(p));

        /* Four times as often, to see the kernel's send buffer drain. */
        if (p->phase != HTTP_PHASE_TRANSFER)
                return end;
        uint64_t check_usec = add_span(now_usec, p->stall_usec / 4);
        return MIN(end, check_usec);
}

static int http_timeout_check(const HttpTimeout *p, uint64_t now_usec) {
        if (now_usec >= total_end(p))
                return HTTP_E_TIMEOUT;
        if (now_usec < phase_end(p))
                return 0;
        switch (p->phase) {
        case HTTP_PHASE_RESOLVING:
                return HTTP_E_RESOLVE;
        case HTTP_PHASE_CONNECTING:
                return HTTP_E_CONNECT;
        case HTTP_PHASE_TRANSFER:
                return HTTP_E_STALLED;
        case HTTP_PHASE_WAITING:
        default:
                return 0;
        }
}

/* libcurl names the peer it could not connect to, `Failed to connect to HOST port N after …`.
 * @return whether it does; then *buf is `host:port` */
static bool parse_peer(const char *curl_text, char *buf, size_t size) {
        static const char beginning[] = "Failed to connect to ", between[] = " port ";
        const char *host = curl_text ? curl_text + strlen(beginning) : "", *port;

        if (!curl_text || strncmp(curl_text, beginning, strlen(beginning)) != 0 ||
            !(port = strstr(host, between)))
                return false;
        int n = (int)(port - host);
        port += strlen(between);
        (void)snprintf(buf, size, memchr(host, ':', (size_t)n) ? "[%.*s]:%.*s" : "%.*s:%.*s", n,
                       host, (int)strspn(port, "0123456789"), port);
        return true;
}

/* @return whether that peer is not `place`: a proxy then, ours or the environment's */
static bool http_error_is_of_proxy(const char *curl_text, const char *place) {
        char there[320];

        return curl_text && parse_peer(curl_text, there, sizeof there) &&
               (strcasecmp(there, place) != 0 || strstr(curl_text, " via "));
}

/* @param f  cause is not NULL. @param buf  for what is formatted */
static const char *sentence(const HttpErrorCause *f, char *buf, size_t size) {
        char text[PARSE_FORMAT_SIZE], more[PARSE_FORMAT_SIZE], proxy[320];
        const char *cause = *f->cause ? f->cause : "unknown cause";

        switch (f->error) {
        case HTTP_E_RESOLVE:
        case HTTP_E_CONNECT:
                if (*f->cause)
                        return cause;
                (void)snprintf(buf, size, "%s within %s",
                               f->error == HTTP_E_RESOLVE ? "the name was not found"
                               : f->was_connected         ? "connected, but nothing could be sent"
                                                          : "no answer",
                               parse_format_duration(text, f->connect_timeout_usec));
                return buf;
        case HTTP_E_STALLED:
                (void)snprintf(buf, size, "nothing moved for %s",
                               parse_format_duration(text, f->stall_usec));
                return buf;
        case HTTP_E_TIMEOUT:
                (void)snprintf(buf, size, "not done within %s",
                               parse_format_duration(text, f->timeout_usec));
                return buf;
        case HTTP_E_TOO_LARGE:
                (void)snprintf(buf, size, "the reply is larger than %s, or its headers than %s",
                               parse_format_bytes(text, f->reply_max_bytes),
                               parse_format_bytes(more, HTTP_HEADERS_MAX));
                return buf;
        case HTTP_E_STOPPED:
                return "stopped by its receiver";
        case HTTP_E_PROXY:
                if (f->proxy_status > 0)
                        (void)snprintf(buf, size, "the proxy refuses with status %u",
                                       f->proxy_status);
                else if (parse_peer(f->curl_text, proxy, sizeof proxy))
                        (void)snprintf(buf, size, "the proxy %s cannot be used: %s", proxy, cause);
                else
                        (void)snprintf(buf, size, "the proxy cannot be used: %s", cause);
                return buf;
        case HTTP_E_MEMORY:
                return "out of memory";
        default:
                return cause;
        }
}

/* Writes `place: what`, cut at size, without URLs and headers, which may hold secrets. A cause
 * loses its control characters and the capital at its beginning. */
static const char *http_error_explain(const HttpErrorCause *f, char *buf, size_t size) {
        char clean[512], formatted[1024];
        HttpErrorCause tidy = *f;

        (void)snprintf(clean, sizeof clean, "%s", f->cause ? f->cause : "");
        for (char *p = clean; *p; p++) /* a server may have had a hand in it */
                if ((unsigned char)*p < ' ' || *p == 0x7f)
                        *p = ' ';
        if (clean[0] >= 'A' && clean[0] <= 'Z' && clean[1] >= 'a' && clean[1] <= 'z')
                clean[0] = (char)(clean[0] - 'A' + 'a');
        tidy.cause = clean;
        (void)snprintf(buf, size, "%s: %.500s", f->place,
                       sentence(&tidy, formatted, sizeof formatted));
        return buf;
}

static void run_curl(HttpPool *p, curl_socket_t fd, int what);
static void remove_handle(HttpPool *p, CURL *easy);
static HttpCall *call_free(HttpCall *c);
static void call_end(HttpCall *c, int error);
static void on_transfer_ended(CURL *easy, CURLcode code);
static void on_ratelimit_ready(HttpCall *c);
static void run_turns(HttpPool *p);

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

static void http_ratelimit_init(HttpRateLimit *p, sd_event *event,
                                const HttpRateLimitHooks *throttle) {
        *p = (HttpRateLimit){ .event = event };
        if (throttle)
                p->throttle = *throttle;
        list_init(&p->wires);
}

static void http_ratelimit_done(HttpRateLimit *p) {
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

static int http_ratelimit_opened(HttpRateLimit *p, int fd) {
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

static void http_ratelimit_closing(HttpRateLimit *p, int fd) {
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

static void http_ratelimit_call_done(HttpRateLimitCall *c) {
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
        on_ratelimit_ready(CONTAINER_OF(c, HttpCall, ratelimit));
        return 0;
}

/* Calls on_ratelimit_ready() then. @return false for lack of memory */
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

static bool http_ratelimit_start(HttpRateLimitCall *c, size_t n_head) {
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

static void http_ratelimit_connected(HttpRateLimitCall *c, int local_port) {
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

static void http_ratelimit_answered(HttpRateLimitCall *c) {
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

static size_t http_ratelimit_read(HttpRateLimitCall *c, size_t wanted, size_t left) {
        Wire *w = wire_of(c->limit, c->fd);

        if (!is_on(c->limit))
                return wanted;
        if (c->booked.n > 0) /* the booking is not due yet */
                return 0;
        if (c->granted.n == 0 && !book_piece(c, w, left))
                return 0;
        const HttpBooking paid = split_booking(&c->granted, wanted);
        if (w)
                add_booking(&w->open, paid);
        return paid.n;
}

static inline uint64_t pool_now_usec(const HttpPool *p) {
        uint64_t usec = 0;

        (void)sd_event_now(p->event, CLOCK_MONOTONIC, &usec); /* fails only in another process */
        return usec;
}

DEFINE_CLEANUP(HttpCall, call_free);

#define QUICK_EXIT_SINCE 0x075700 /* libcurl 7.87.0 */
/* ── from libcurl ── */

static void set_call_socket(CURL *easy, int fd) {
        HttpCall *c = NULL;

        if (curl_easy_getinfo(easy, CURLINFO_PRIVATE, (char **)&c) == CURLE_OK &&
            c) { /* libcurl has handles of its own */
                c->last_fd = fd >= 0 ? fd : c->last_fd;
                c->fd = fd;
        }
}

static int on_io(sd_event_source *s, int fd, uint32_t revents, void *userdata) {
        int what = 0;

        (void)s;
        /* An error is passed on as both: libcurl then makes its system calls, reads what was
         * received before the error, and gets the errno; CURL_CSELECT_ERR would end the transfer
         * without either. */
        if (revents & (EPOLLIN | EPOLLRDHUP | EPOLLHUP | EPOLLERR))
                what |= CURL_CSELECT_IN;
        if (revents & (EPOLLOUT | EPOLLHUP | EPOLLERR))
                what |= CURL_CSELECT_OUT;
        run_curl(userdata, fd, what);
        return 0;
}

/* Always returns 0: anything else would end this and all future transfers of the multi handle. A
 * transfer whose socket cannot be watched is ended by its own timer.
 * @param source what curl_multi_assign() keeps for this socket */
static int watch_socket(CURL *easy, curl_socket_t fd, int what, void *userdata, void *source) {
        uint32_t events =
                (what & CURL_POLL_IN ? EPOLLIN : 0) | (what & CURL_POLL_OUT ? EPOLLOUT : 0);
        HttpPool *p = userdata;
        sd_event_source *s = source;

        set_call_socket(easy, what == CURL_POLL_REMOVE ? -1 : fd);
        if (what == CURL_POLL_REMOVE) /* called before the socket is closed */
                s = sd_event_source_disable_unref(s);
        else if (s)
                (void)sd_event_source_set_io_events(s, events);
        else if (sd_event_add_io(p->event, &s, fd, events, on_io, p) < 0)
                s = NULL;
        else
                (void)sd_event_source_set_description(s, "http"); /* for debugging only */
        if (curl_multi_assign(p->multi, fd, s) != CURLM_OK)
                sd_event_source_disable_unref(
                        s); /* unknown to it: it will not report when to remove it */
        return 0;
}

static int set_timer(CURLM *multi, long msec, void *userdata) {
        HttpPool *p = userdata;

        (void)multi;
        /* These fail only in another process than the one that made the loop. */
        if (msec >= 0)
                (void)sd_event_source_set_time_relative(p->curl_timer,
                                                        (uint64_t)msec * USEC_PER_MSEC);
        (void)sd_event_source_set_enabled(p->curl_timer,
                                          msec >= 0 ? SD_EVENT_ONESHOT : SD_EVENT_OFF);
        return 0;
}

/* ── to libcurl ── */

static void collect_transfers(HttpPool *p) {
        CURLMsg *m;
        int left;

        while ((m = curl_multi_info_read(p->multi, &left))) {
                CURL *easy = m->easy_handle; /* the message is gone once its handle is */
                CURLcode code = m->data.result;

                if (m->msg != CURLMSG_DONE)
                        continue;
                remove_handle(p, easy);
                on_transfer_ended(easy, code);
        }
}

static HttpCall *first(const ListLink *list) {
        return list_is_empty(list) ? NULL : CONTAINER_OF(list->next, HttpCall, link);
}

static void run_curl(HttpPool *p, curl_socket_t fd, int what) {
        int running;

        p->is_inside_curl = true;
        /* Fails only for a socket that it does not know any more; errors of transfers come as
         * messages. */
        (void)curl_multi_socket_action(p->multi, fd, what, &running);
        p->is_inside_curl = false;
        collect_transfers(p);
        run_turns(p);
}

static int on_curl_timer(sd_event_source *s, uint64_t usec, void *userdata) {
        (void)s, (void)usec;
        run_curl(userdata, CURL_SOCKET_TIMEOUT, 0);
        return 0;
}

static int on_wake(sd_event_source *s, void *userdata) {
        HttpPool *p = userdata;

        (void)s;
        run_turns(p);
        return 0;
}

/* ── options ── */

#define SET(option, value)                                                                         \
        do {                                                                                       \
                if (code == CURLE_OK)                                                              \
                        code = curl_easy_setopt(easy, option, value);                              \
        } while (0)

static CURLcode set_pattern(CURL *easy, const HttpPool *p, const HttpPoolOptions *o) {
        CURLcode code = CURLE_OK;

#if LIBCURL_VERSION_NUM >= 0x075500
        SET(CURLOPT_PROTOCOLS_STR, "http,https");
#else
        SET(CURLOPT_PROTOCOLS, (long)(CURLPROTO_HTTP | CURLPROTO_HTTPS));
#endif
        SET(CURLOPT_HTTP_VERSION, (long)CURL_HTTP_VERSION_1_1);
        SET(CURLOPT_NOSIGNAL, 1L);
        SET(CURLOPT_TCP_NODELAY, 1L);
        SET(CURLOPT_TCP_KEEPALIVE, 1L);
        SET(CURLOPT_TCP_KEEPIDLE, 30L);
        SET(CURLOPT_TCP_KEEPINTVL, 15L);
        SET(CURLOPT_SSLVERSION, (long)CURL_SSLVERSION_TLSv1_2);
        SET(CURLOPT_SSL_VERIFYPEER, 1L);
        SET(CURLOPT_SSL_VERIFYHOST, 2L);
        if (o->ca_file && *o->ca_file) {
                SET(CURLOPT_CAINFO, o->ca_file);
                SET(CURLOPT_CAPATH, NULL); /* that file instead of the system's, not on top of it */
        }
        if (o->proxy && *o->proxy)
                SET(CURLOPT_PROXY, strcmp(o->proxy, "-") == 0 ? "" : o->proxy);
        SET(CURLOPT_SUPPRESS_CONNECT_HEADERS, 1L);
        /* Ours ends first. At half of its own libcurl tries a host's next address. */
        SET(CURLOPT_CONNECTTIMEOUT_MS,
            (long)MIN(p->connect_timeout_usec / USEC_PER_MSEC * 3 / 2 + 100, (uint64_t)INT32_MAX));
#if LIBCURL_VERSION_NUM >= QUICK_EXIT_SINCE
        if (p->can_abandon_lookups)
                SET(CURLOPT_QUICK_EXIT, 1L);
#else
        (void)p;
#endif
        return code;
}

static CURL *new_handle(const HttpPool *p) {
        CURL *easy = curl_easy_duphandle(p->pattern);

        if (easy && curl_easy_setopt(easy, CURLOPT_RESOLVE, p->resolve) != CURLE_OK) {
                curl_easy_cleanup(easy);
                return NULL;
        }
        return easy;
}

/* ── the pool's share of libcurl ── */

static int add_sources(HttpPool *p) {
        int r = sd_event_add_time_relative(p->event, &p->curl_timer, CLOCK_MONOTONIC, 0,
                                           USEC_PER_MSEC, on_curl_timer, p);
        if (r < 0)
                return r;
        r = sd_event_source_set_enabled(p->curl_timer, SD_EVENT_OFF);
        if (r < 0)
                return r;
        r = sd_event_add_defer(p->event, &p->wake, on_wake, p);
        if (r < 0)
                return r;
        (void)sd_event_source_set_description(p->curl_timer, "http-timer"); /* for debugging only */
        (void)sd_event_source_set_description(p->wake, "http-wake");
        return sd_event_source_set_enabled(p->wake, SD_EVENT_OFF);
}

static int set_multi(HttpPool *p, unsigned max_connections) {
        CURLMcode c = curl_multi_setopt(p->multi, CURLMOPT_SOCKETFUNCTION, watch_socket);

        if (c == CURLM_OK)
                c = curl_multi_setopt(p->multi, CURLMOPT_SOCKETDATA, p);
        if (c == CURLM_OK)
                c = curl_multi_setopt(p->multi, CURLMOPT_TIMERFUNCTION, set_timer);
        if (c == CURLM_OK)
                c = curl_multi_setopt(p->multi, CURLMOPT_TIMERDATA, p);
        if (c == CURLM_OK)
                c = curl_multi_setopt(p->multi, CURLMOPT_PIPELINING, CURLPIPE_NOTHING);
        /* All connections, used or not: idle ones are closed for new ones. */
        if (c == CURLM_OK && max_connections > 0)
                c = curl_multi_setopt(p->multi, CURLMOPT_MAX_TOTAL_CONNECTIONS,
                                      (long)max_connections);
        if (c == CURLM_OK && max_connections > 0)
                c = curl_multi_setopt(p->multi, CURLMOPT_MAXCONNECTS, (long)max_connections);
        return c == CURLM_OK ? 0 : -ENOMEM;
}

static int append(struct curl_slist **list, const char *line) {
        struct curl_slist *longer = curl_slist_append(*list, line);

        if (!longer)
                return -ENOMEM;
        *list = longer;
        return 0;
}

static int set_up_curl(HttpPool *p, const HttpPoolOptions *o) {
        p->multi = curl_multi_init();
        p->pattern = curl_easy_init();
        if (!p->multi || !p->pattern || set_pattern(p->pattern, p, o) != CURLE_OK)
                return -ENOMEM;
        for (const char *const *line = o->resolve; line && *line; line++) {
                int r = append(&p->resolve, *line);
                if (r < 0)
                        return r;
        }
        int r = add_sources(p);
        return r < 0 ? r : set_multi(p, o->max_connections);
}

static int start_curl(HttpPool *p, const HttpPoolOptions *options) {
        const curl_version_info_data *curl = curl_version_info(CURLVERSION_NOW);

        if (!(curl->features & CURL_VERSION_ASYNCHDNS) || !(curl->features & CURL_VERSION_SSL))
                return -EOPNOTSUPP;
        p->can_abandon_lookups =
                LIBCURL_VERSION_NUM >= QUICK_EXIT_SINCE && curl->version_num >= QUICK_EXIT_SINCE;
        return set_up_curl(p, options);
}

/* All handles must have been removed. */
static void stop_curl(HttpPool *p) {
        if (p->multi) /* closes what is kept alive: still needs the sources below */
                (void)curl_multi_cleanup(p->multi);
        if (p->pattern)
                curl_easy_cleanup(p->pattern);
        curl_slist_free_all(p->resolve);
        sd_event_source_disable_unref(p->curl_timer);
        sd_event_source_disable_unref(p->wake);
}

static int add_handle(HttpPool *p, CURL *easy) {
        return curl_multi_add_handle(p->multi, easy) == CURLM_OK ? 0 : -ENOMEM;
}

static void remove_handle(HttpPool *p, CURL *easy) {
        (void)curl_multi_remove_handle(
                p->multi, easy); /* fails only for what is no handle, or from inside of libcurl */
}

static void wake_pool(HttpPool *p) {
        (void)sd_event_source_set_enabled(p->wake,
                                          SD_EVENT_ONESHOT); /* fails only in another process */
}

uint64_t http_call_sent_bytes(const HttpCall *call) {
        curl_off_t n = 0;

        return curl_easy_getinfo(call->easy, CURLINFO_SIZE_UPLOAD_T, &n) == CURLE_OK ? (uint64_t)n
                                                                                     : 0;
}

static void call_on_progress(HttpCall *c) {
        http_timeout_on_progress(&c->timeout, pool_now_usec(c->pool));
}

static void call_arm(HttpCall *c) {
        uint64_t next = http_timeout_next_usec(&c->timeout, pool_now_usec(c->pool));

        /* These fail only in another process than the one that made the loop. */
        (void)sd_event_source_set_time(c->timer, next);
        (void)sd_event_source_set_enabled(c->timer,
                                          next == USEC_INFINITY ? SD_EVENT_OFF : SD_EVENT_ONESHOT);
}

static void call_enter_phase(HttpCall *c, HttpPhase phase) {
        http_timeout_enter_phase(&c->timeout, phase, pool_now_usec(c->pool));
        call_arm(c);
}

/* @return whether the socket has events that libcurl has not processed yet */
static bool has_socket_events(const HttpCall *c) {
        struct pollfd p = { .fd = c->fd, .events = POLLIN | POLLOUT };

        return c->fd >= 0 && poll(&p, 1, 0) > 0;
}

static int on_call_timer(sd_event_source *s, uint64_t usec, void *userdata) {
        HttpCall *c = userdata;
        uint64_t now = pool_now_usec(c->pool);
        int n_unsent, error;

        (void)s, (void)usec;
        if (c->ratelimit.booked.n > 0) /* it waits for its turn */
                http_timeout_on_progress(&c->timeout, now);
        if (c->fd >= 0 && ioctl(c->fd, SIOCOUTQ, &n_unsent) == 0)
                http_timeout_on_unsent(&c->timeout, n_unsent, now);
        error = http_timeout_check(&c->timeout, now);
        if (error && error != HTTP_E_TIMEOUT && !c->has_grace && has_socket_events(c)) {
                /* Perhaps the loop was delayed: then what was received meanwhile is processed
                 * first. */
                c->has_grace = true;
                (void)sd_event_source_set_time(c->timer, now); /* fails as in call_arm() */
                (void)sd_event_source_set_enabled(c->timer, SD_EVENT_ONESHOT);
        } else if (error)
                call_end(c, error);
        else {
                c->has_grace = false;
                call_arm(c);
        }
        return 0;
}

/* A proxy that refuses replies before the connection is made. */
static unsigned proxy_status(const HttpCall *c) {
        long status = 0;

        (void)curl_easy_getinfo(c->easy, CURLINFO_HTTP_CONNECTCODE,
                                &status); /* stays 0 when there is none */
        return c->reply.status == 407 ? 407 : status >= 300 ? (unsigned)status : 0;
}

static int classify_curl_code(const HttpCall *c, CURLcode code) {
        if (c->fault)
                return c->fault;
        if (proxy_status(c) > 0)
                return HTTP_E_PROXY;
        switch (code) {
        case CURLE_OK:
                return 0;
        case CURLE_COULDNT_RESOLVE_HOST:
                return HTTP_E_RESOLVE;
        case CURLE_COULDNT_RESOLVE_PROXY:
        case CURLE_PROXY:
                return HTTP_E_PROXY;
        case CURLE_COULDNT_CONNECT:
                return http_error_is_of_proxy(c->curl_text, c->place) ? HTTP_E_PROXY
                                                                      : HTTP_E_CONNECT;
        case CURLE_INTERFACE_FAILED:
        /* libcurl's own limit on connecting: the only one it knows of */
        case CURLE_OPERATION_TIMEDOUT:
                return HTTP_E_CONNECT;
        case CURLE_SSL_CONNECT_ERROR:
        case CURLE_SSL_CERTPROBLEM:
        case CURLE_SSL_CIPHER:
        case CURLE_SSL_CACERT_BADFILE:
        case CURLE_SSL_ENGINE_INITFAILED:
        case CURLE_SSL_ISSUER_ERROR:
        case CURLE_PEER_FAILED_VERIFICATION:
                return HTTP_E_TLS;
        case CURLE_OUT_OF_MEMORY:
                return HTTP_E_MEMORY;
        default:
                return c->timeout.phase == HTTP_PHASE_TRANSFER ? HTTP_E_CUT : HTTP_E_CONNECT;
        }
}

static void explain_error(HttpCall *c, int error, CURLcode code) {
        struct sockaddr_storage peer;
        socklen_t n_peer = sizeof peer;
        long saved_errno = 0;
        HttpErrorCause fault = {
                .error = error,
                .place = c->place,
                .cause = c->curl_text[0] ? c->curl_text : curl_easy_strerror(code),
                .proxy_status = proxy_status(c),
                .connect_timeout_usec = c->timeout.connect_timeout_usec,
                .stall_usec = c->timeout.stall_usec,
                .timeout_usec = c->timeout.timeout_usec,
                .reply_max_bytes = c->reply_max_bytes,
        };

        fault.was_connected =
                c->fd >= 0 && getpeername(c->fd, (struct sockaddr *)&peer, &n_peer) == 0;
        (void)curl_easy_getinfo(c->easy, CURLINFO_OS_ERRNO, &saved_errno); /* not known stays 0 */
        if (code == CURLE_OK)
                fault.cause = NULL;
        else if (code == CURLE_COULDNT_CONNECT && saved_errno > 0)
                fault.cause = strerror((int)saved_errno);
        fault.curl_text = c->curl_text;
        (void)http_error_explain(&fault, c->text, sizeof c->text);
}

/* ── its end ── */

static HttpCall *call_free(HttpCall *c) {
        if (!c)
                return NULL;
        sd_event_source_disable_unref(c->timer);
        http_ratelimit_call_done(&c->ratelimit);
        if (c->easy)
                curl_easy_cleanup(c->easy);
        curl_slist_free_all(c->headers);
        http_reply_done(&c->reply);
        free(c->place);
        free(c);
        return NULL;
}

static void call_close(HttpCall *c) {
        HttpPool *p = c->pool;
        /* Older libcurls wait for the end of a name resolution when its handle is removed, up to
         * half a minute. So it stays, keeps its turn, and is freed when libcurl has ended it. */
        bool in_curl = c->state >= HTTP_CALL_IN_CURL;
        bool is_in_lookup =
                in_curl && c->timeout.phase == HTTP_PHASE_RESOLVING && !p->can_abandon_lookups;

        list_remove(&c->link);
        c->timer = sd_event_source_disable_unref(c->timer);
        http_ratelimit_call_done(&c->ratelimit);
        if (is_in_lookup || (in_curl && p->is_inside_curl)) {
                c->state = is_in_lookup ? HTTP_CALL_LOOKUP : HTTP_CALL_CANCELED;
                if (is_in_lookup) /* its own limit would wait in the same way */
                        (void)curl_easy_setopt(c->easy, CURLOPT_CONNECTTIMEOUT_MS, (long)INT32_MAX);
                list_append(&p->canceled, &c->link);
                wake_pool(p);
                return;
        }
        if (in_curl)
                remove_handle(p, c->easy);
        p->n_turns -= c->state != HTTP_CALL_QUEUED;
        wake_pool(p); /* starts the next one */
        call_free(c);
}

/* @param error  0 or HTTP_E_*, which c->text explains */
static void call_report(HttpCall *c, int error) {
        bool has_status = c->reply.status >= 200;
        HttpReply reply = {
                .error = error,
                .text = error ? c->text : NULL,
                .was_kept_dead = error == HTTP_E_CUT && c->was_kept_dead,
                .status = has_status ? c->reply.status : 0,
                .body = c->reply.body ? c->reply.body : "",
                .body_bytes = c->reply.n_body,
                .sent_bytes = http_call_sent_bytes(c),
                .received_bytes = c->reply.n_received,
                .duration_usec = c->timeout.phase == HTTP_PHASE_WAITING
                                         ? 0
                                         : pool_now_usec(c->pool) - c->started_usec,
                .headers = &c->reply.headers,
        };

        if (!has_status)
                c->reply.headers.n = 0; /* an interim reply's are not the reply's */
        (void)sd_event_source_set_enabled(c->timer, SD_EVENT_OFF);
        http_ratelimit_answered(&c->ratelimit);
        c->on_done(&reply, c->userdata);
        call_close(c);
}

static void call_end(HttpCall *c, int error) {
        /* A complete error reply counts, whatever happened afterwards. */
        if (c->reply.status >= 300 && c->reply.status != 407 &&
            http_reply_is_complete(&c->reply, c->is_head))
                error = 0;
        if (error)
                explain_error(c, error, CURLE_OK);
        call_report(c, error);
}

/* libcurl itself repeats a request when reading shows that a kept connection is dead, but not when
 * sending does. */
static bool call_repeat(HttpCall *c, CURLcode code) {
        long n_connects = 1;

        if ((code != CURLE_SEND_ERROR && code != CURLE_RECV_ERROR && code != CURLE_GOT_NOTHING) ||
            c->fault || c->reply.status > 0 || c->is_repeated ||
            curl_easy_getinfo(c->easy, CURLINFO_NUM_CONNECTS, &n_connects) != CURLE_OK ||
            n_connects > 0)
                return false;
        if (c->reports_kept_dead) {
                c->was_kept_dead = true;
                return false;
        }
        c->is_repeated = true;
        c->next_byte = 0;
        c->n_up = c->n_down = 0;
        c->curl_text[0] = '\0';
        if (curl_easy_setopt(c->easy, CURLOPT_FRESH_CONNECT, 1L) != CURLE_OK ||
            add_handle(c->pool, c->easy) < 0)
                return false;
        c->state = HTTP_CALL_IN_CURL;
        call_enter_phase(c, HTTP_PHASE_RESOLVING);
        return true;
}

static bool is_call_canceled(const HttpCall *c) {
        return c->state >= HTTP_CALL_CANCELED;
}

static void on_transfer_ended(CURL *easy, CURLcode code) {
        HttpCall *c = NULL;

        (void)curl_easy_getinfo(easy, CURLINFO_PRIVATE,
                                (char **)&c); /* cannot fail for a handle of ours */
        bool is_canceled = is_call_canceled(c);
        c->state = HTTP_CALL_HAS_TURN;
        if (is_canceled) {
                call_close(c);
                return;
        }
        if (call_repeat(c, code))
                return;
        if (code == CURLE_OK && !c->reply.headers_ended) {
                code = CURLE_RECV_ERROR; /* libcurl accepts headers that end with the connection */
                (void)snprintf(c->curl_text, sizeof c->curl_text,
                               "the reply ends within its headers");
        }
        int error = classify_curl_code(c, code);
        if (error && !c->fault && error != HTTP_E_PROXY) {
                if (c->reply.status >= 300 && http_reply_is_complete(&c->reply, c->is_head))
                        error = 0; /* the reply was complete before the error */
        }
        if (error)
                explain_error(c, error, code);
        call_report(c, error);
}

#define SEND_BUFFER_MIN (16 * KIB)  /* CURLOPT_UPLOAD_BUFFERSIZE takes no less */
#define SEND_BUFFER_MAX (128 * KIB) /* larger ones need as much CPU, measured up to 2 MiB */
#define RECEIVE_BUFFER (128 * KIB)  /* of pieces for on_data */
/* ── libcurl's callbacks ── */

static int on_progress(void *userdata, curl_off_t down_max, curl_off_t down, curl_off_t up_max,
                       curl_off_t up) {
        HttpCall *c = userdata;

        (void)down_max, (void)up_max;
        if ((uint64_t)down != c->n_down || (uint64_t)up != c->n_up) {
                c->n_down = (uint64_t)down;
                c->n_up = (uint64_t)up;
                call_on_progress(c);
        }
        /* never stops a cancelled call: during a name resolution libcurl would wait for its end */
        return 0;
}

/* libcurl is about to send the request once more. @return whether it must not */
static bool refuse_repeat(HttpCall *c) {
        if (!c->was_sent || !c->reports_kept_dead)
                return false;
        c->was_kept_dead = true;
        c->fault = HTTP_E_CUT;
        return true;
}

static curl_socket_t on_open_socket(void *userdata, curlsocktype purpose,
                                    struct curl_sockaddr *address) {
        HttpCall *c = userdata;

        (void)purpose;
        if (is_call_canceled(c) || refuse_repeat(c))
                return CURL_SOCKET_BAD;
        /* Older libcurls do not set SOCK_CLOEXEC. */
        int fd = socket(address->family, address->socktype | SOCK_CLOEXEC, address->protocol);
        if (fd >= 0 && http_ratelimit_opened(&c->pool->ratelimit, fd) < 0) {
                (void)close(fd); /* unused */
                fd = -1;
        }
        if (c->timeout.phase != HTTP_PHASE_CONNECTING)
                call_enter_phase(c, HTTP_PHASE_CONNECTING);
        return fd < 0 ? CURL_SOCKET_BAD : fd;
}

/* A server that refuses early replies, closes, and resets what it did not read. While sending,
 * libcurl sees only the reset and gives the connection up; but the kernel still has the reply.
 * With TLS it cannot be read. */
static bool may_have_early_answer(const HttpCall *c) {
        return !c->is_tls && c->timeout.phase == HTTP_PHASE_TRANSFER && c->reply.status == 0 &&
               http_call_sent_bytes(c) < c->body_bytes;
}

#define REST_MAX (64 * KIB)
/* Reads, without blocking, what a connection that is about to be closed has received and libcurl
 * has not read: a reply from its status line on, possibly cut, or nothing. */
static void read_rest(HttpReplyState *h, int fd, size_t max_bytes) {
        _cleanup_free_ char *data = malloc(REST_MAX);
        size_t n = 0;

        while (data && n < REST_MAX) {
                ssize_t got = recv(fd, data + n, REST_MAX - n, MSG_DONTWAIT);

                if (got <= 0)
                        break; /* that was all */
                n += (size_t)got;
        }
        if (n > 0 && http_reply_add_raw(h, data, n, max_bytes) < 0)
                http_reply_done(h); /* no reply, or one that is too large: the reset is reported */
}

static int on_close_socket(void *userdata, curl_socket_t fd) {
        HttpPool *p = userdata;

        LIST_FOREACH (link, &p->running) {
                HttpCall *c = CONTAINER_OF(link, HttpCall, link);

                if (c->last_fd == fd && may_have_early_answer(c))
                        read_rest(&c->reply, fd, c->reply_max_bytes);
                if (c->ratelimit.fd == fd)
                        c->ratelimit.fd = -1;
        }
        http_ratelimit_closing(&p->ratelimit, fd);
        return close(fd);
}

/* There is a connection, old or new, and the request is about to be sent. */
static int on_connected(void *userdata, char *remote, char *local, int remote_port,
                        int local_port) {
        HttpCall *c = userdata;

        (void)remote, (void)local, (void)remote_port;
        if (is_call_canceled(c) || refuse_repeat(c))
                return CURL_PREREQFUNC_ABORT;
        c->was_sent = true;
        http_ratelimit_connected(&c->ratelimit, local_port);
        call_enter_phase(c, HTTP_PHASE_TRANSFER);
        return CURL_PREREQFUNC_OK;
}

static size_t on_read(char *to, size_t size, size_t n, void *userdata) {
        HttpCall *c = userdata;

        if (is_call_canceled(c))
                return CURL_READFUNC_ABORT; /* the body may have been freed */
        n = MIN(size * n, c->body_bytes - c->next_byte);
        if (n > 0) {
                n = http_ratelimit_read(&c->ratelimit, n, c->body_bytes - c->next_byte);
                if (n == 0)
                        return CURL_READFUNC_PAUSE; /* on_ratelimit_ready() comes */
        }
        if (n > 0)
                memcpy(to, c->body + c->next_byte, n);
        c->next_byte += n;
        return n;
}

/* For a request that is sent again because its kept connection was dead. */
static int on_seek(void *userdata, curl_off_t offset, int origin) {
        HttpCall *c = userdata;

        if (origin != SEEK_SET || offset < 0 || (uint64_t)offset > c->body_bytes)
                return CURL_SEEKFUNC_FAIL;
        c->next_byte = (size_t)offset;
        return CURL_SEEKFUNC_OK;
}

static bool streams_body(const HttpCall *c) {
        return c->on_data && c->reply.status >= 200 && c->reply.status <= 299;
}

/* @param r  of http_reply_add_*. @return whether libcurl may continue */
static bool check_parsed(HttpCall *c, int r) {
        if (r == 0)
                return true;
        c->fault = r == -EFBIG ? HTTP_E_TOO_LARGE : r == -ENOMEM ? HTTP_E_MEMORY : HTTP_E_CUT;
        return false;
}

static size_t on_header(char *line, size_t size, size_t n, void *userdata) {
        HttpCall *c = userdata;

        if (is_call_canceled(c))
                return 0;
        call_on_progress(c);
        int r = http_reply_add_line(&c->reply, line, size * n);
        if (r == 0 && c->reply.headers_ended && !c->is_head && !streams_body(c) &&
            c->reply.content_bytes > 0 && (uint64_t)c->reply.content_bytes > c->reply_max_bytes)
                r = -EFBIG;
        return check_parsed(c, r) ? size * n : 0;
}

static size_t on_body(char *data, size_t size, size_t n, void *userdata) {
        HttpCall *c = userdata;

        n *= size;
        if (is_call_canceled(c))
                return 0;
        call_on_progress(c);
        if (!streams_body(c))
                return check_parsed(c, http_reply_add_body(&c->reply, data, n, c->reply_max_bytes))
                               ? n
                               : 0;
        c->reply.n_received += n;
        if (c->on_data(c, data, n, c->userdata) >= 0)
                return n;
        c->fault = HTTP_E_STOPPED;
        return 0;
}

/* ── a new request ── */

static CURLcode set_callbacks(CURL *easy, HttpCall *c) {
        CURLcode code = CURLE_OK;

        SET(CURLOPT_PRIVATE, c);
        SET(CURLOPT_ERRORBUFFER, c->curl_text);
        SET(CURLOPT_NOPROGRESS, 0L);
        SET(CURLOPT_XFERINFOFUNCTION, on_progress);
        SET(CURLOPT_XFERINFODATA, c);
        SET(CURLOPT_OPENSOCKETFUNCTION, on_open_socket);
        SET(CURLOPT_OPENSOCKETDATA, c);
        SET(CURLOPT_CLOSESOCKETFUNCTION, on_close_socket);
        SET(CURLOPT_CLOSESOCKETDATA, c->pool); /* the connection may outlive the call */
        SET(CURLOPT_PREREQFUNCTION, on_connected);
        SET(CURLOPT_PREREQDATA, c);
        SET(CURLOPT_HEADERFUNCTION, on_header);
        SET(CURLOPT_HEADERDATA, c);
        SET(CURLOPT_WRITEFUNCTION, on_body);
        SET(CURLOPT_WRITEDATA, c);
        SET(CURLOPT_READFUNCTION, on_read);
        SET(CURLOPT_READDATA, c);
        SET(CURLOPT_SEEKFUNCTION, on_seek);
        SET(CURLOPT_SEEKDATA, c);
        return code;
}

static CURLcode set_request(CURL *easy, const HttpCall *c, const HttpRequestOptions *o) {
        bool has_body = o->body || strcmp(o->method, "PUT") == 0 || strcmp(o->method, "POST") == 0;
        CURLcode code = CURLE_OK;

        SET(CURLOPT_URL, o->url);
        SET(CURLOPT_PATH_AS_IS, 1L);
        SET(CURLOPT_USERAGENT, "neuron-collectd/" PACKAGE_VERSION);
        SET(CURLOPT_HTTPHEADER, c->headers);
        SET(CURLOPT_FRESH_CONNECT, o->never_repeat ? 1L : 0L);
        if (c->on_data)
                SET(CURLOPT_BUFFERSIZE, (long)RECEIVE_BUFFER);
        /* of whatever method: the upload is the one way of sending that adds no Content-Type */
        if (has_body) {
                SET(CURLOPT_UPLOAD, 1L);
                SET(CURLOPT_INFILESIZE_LARGE, (curl_off_t)o->body_bytes);
                SET(CURLOPT_UPLOAD_BUFFERSIZE,
                    (long)MIN(MAX(o->body_bytes, SEND_BUFFER_MIN), SEND_BUFFER_MAX));
        }
        if (c->is_head)
                SET(CURLOPT_NOBODY, 1L);
        else
                SET(CURLOPT_CUSTOMREQUEST, o->method);
        return code;
}

static int set_headers(HttpCall *c, const HttpRequestOptions *o) {
        for (const char *const *line = o->headers; line && *line; line++) {
                _cleanup_free_ char *spelled = NULL;
                int r = http_request_format_header(*line, &spelled);

                if (r == 0)
                        r = append(&c->headers, spelled);
                if (r < 0)
                        return r;
                c->head_bytes += strlen(*line) + 2;
        }
        return append(&c->headers,
                      "Expect:"); /* else libcurl waits a second for servers that do not know it */
}

static int set_up_handle(HttpCall *c, const HttpRequestOptions *o) {
        int r = set_headers(c, o);

        if (r < 0)
                return r;
        c->easy = new_handle(c->pool);
        if (!c->easy)
                return -ENOMEM;
        CURLcode code = set_callbacks(c->easy, c);
        if (code == CURLE_OK)
                code = set_request(c->easy, c, o);
        return code == CURLE_OK ? 0 : -ENOMEM;
}

#define CONNECT_TIMEOUT_USEC (10 * USEC_PER_SEC)
#define STALL_USEC USEC_PER_MINUTE
#define REPLY_MAX_BYTES MIB
#define HEAD_BYTES 128 /* of the request line and headers that are made here, about */
#define TIMER_ACCURACY_USEC (10 * USEC_PER_MSEC)
/* ── the queue ── */

static void call_start(HttpCall *c) {
        HttpPool *p = c->pool;

        if (add_handle(p, c->easy) < 0) {
                call_end(c, HTTP_E_MEMORY);
                return;
        }
        c->state = HTTP_CALL_IN_CURL;
        c->started_usec = pool_now_usec(p);
        call_enter_phase(c, HTTP_PHASE_RESOLVING);
}

static void call_assign_turn(HttpCall *c) {
        HttpPool *p = c->pool;

        list_remove(&c->link);
        list_append(&p->running, &c->link);
        p->n_turns++;
        c->state = HTTP_CALL_HAS_TURN;
        if (http_ratelimit_start(&c->ratelimit, c->head_bytes))
                call_start(c);
}

/* Outside of libcurl. */
static void on_ratelimit_ready(HttpCall *c) {
        if (c->state == HTTP_CALL_HAS_TURN) {
                if (http_ratelimit_start(&c->ratelimit, c->head_bytes))
                        call_start(c);
                return;
        }
        if (c->ratelimit.n_stuck == 0)
                call_on_progress(c); /* the rate limit made it wait */
        /* Also delivers what was received meanwhile: a paused transfer does not end by itself.
         * Fails only when the connection is closed, which is reported elsewhere. */
        (void)curl_easy_pause(c->easy, CURLPAUSE_CONT);
}

/* Outside of libcurl: handles can be added and removed. */
static void run_turns(HttpPool *p) {
        HttpCall *c;

        LIST_FOREACH_SAFE (link, &p->canceled) {
                c = CONTAINER_OF(link, HttpCall, link);
                if (c->state != HTTP_CALL_LOOKUP)
                        call_close(c);
        }
        while ((p->n_max == 0 || p->n_turns < p->n_max) && (c = first(&p->waiting)))
                call_assign_turn(c);
}

HttpCall *http_call_cancel(HttpCall *call) {
        if (call)
                call_close(call);
        return NULL;
}

/* ── a new call ── */

static int call_set_up(HttpCall *c, const HttpRequestOptions *o) {
        HttpPool *p = c->pool;
        _cleanup_(url_done) Url url = { 0 };
        int r = url_parse(&url, o->url);
        if (r < 0)
                return r;
        if (!url_is_http(&url))
                return -EINVAL;
        c->is_tls = strcmp(url.scheme, "https") == 0;
        c->place = strbuf_format("%s:%u", url.host, url.port);
        if (!c->place)
                return -ENOMEM;
        r = sd_event_add_time(p->event, &c->timer, CLOCK_MONOTONIC, USEC_INFINITY,
                              TIMER_ACCURACY_USEC, on_call_timer, c);
        return r < 0 ? r : set_up_handle(c, o);
}

int http_call_new(HttpCall **ret, HttpPool *pool, const HttpRequestOptions *options) {
        _cleanup_(call_freep) HttpCall *c = NULL;

        if (!http_request_is_valid(options))
                return -EINVAL;
        c = calloc(1, sizeof *c);
        if (!c)
                return -ENOMEM;
        *c = (HttpCall){
                .pool = pool,
                .fd = -1,
                .last_fd = -1,
                .body = options->body,
                .body_bytes = options->body_bytes,
                .reply_max_bytes =
                        options->reply_max_bytes > 0 ? options->reply_max_bytes : REPLY_MAX_BYTES,
                .on_data = options->on_data,
                .reports_kept_dead = options->reports_kept_dead,
                .on_done = options->on_done,
                .userdata = options->userdata,
                .is_head = strcmp(options->method, "HEAD") == 0,
                .timeout = { .connect_timeout_usec = pool->connect_timeout_usec,
                             .stall_usec = pool->stall_usec,
                             .timeout_usec = options->timeout_usec,
                             .created_usec = pool_now_usec(pool),
                             .n_unsent = -1 },
        };
        list_init(&c->link);
        c->head_bytes = HEAD_BYTES + strlen(options->url);
        c->ratelimit = (HttpRateLimitCall){ .limit = &pool->ratelimit, .fd = -1 };
        http_reply_init(&c->reply);
        int r = call_set_up(c, options);
        if (r < 0)
                return r;
        list_append(&pool->waiting, &c->link);
        call_enter_phase(c, HTTP_PHASE_WAITING);
        wake_pool(pool);
        if (ret)
                *ret = c;
        c = NULL;
        return 0;
}

/* ── the pool ── */

int http_pool_new(HttpPool **ret, sd_event *event, const HttpPoolOptions *options) {
        _cleanup_(http_pool_freep) HttpPool *p = calloc(1, sizeof *p);

        if (!p)
                return -ENOMEM;
        *p = (HttpPool){
                .event = sd_event_ref(event),
                .n_max = options->max_connections,
                .connect_timeout_usec = options->connect_timeout_usec,
                .stall_usec = options->stall_usec > 0 ? options->stall_usec : STALL_USEC,
        };
        if (p->connect_timeout_usec == 0)
                p->connect_timeout_usec = CONNECT_TIMEOUT_USEC;
        http_ratelimit_init(&p->ratelimit, p->event, options->throttle);
        list_init(&p->waiting);
        list_init(&p->running);
        list_init(&p->canceled);
        int r = start_curl(p, options);
        if (r < 0)
                return r;
        *ret = TAKE_PTR(p);
        return 0;
}

static void free_all(HttpPool *p, ListLink *list) {
        HttpCall *c;

        while ((c = first(list))) {
                list_remove(&c->link);
                if (c->state >=
                    HTTP_CALL_IN_CURL) /* an older libcurl may wait for a name resolution here */
                        remove_handle(p, c->easy);
                call_free(c);
        }
}

HttpPool *http_pool_free(HttpPool *p) {
        if (!p)
                return NULL;
        free_all(p, &p->waiting);
        free_all(p, &p->running);
        free_all(p, &p->canceled);
        stop_curl(p);
        http_ratelimit_done(&p->ratelimit);
        sd_event_unref(p->event);
        free(p);
        return NULL;
}

int http_global_init(void) {
        /* A TLS library that writes to a closed connection raises it, and with CURLOPT_NOSIGNAL
         * libcurl does not block it. */
        if (signal(SIGPIPE, SIG_IGN) == SIG_ERR)
                return -EIO;
        /* Tokens, signed requests and credentials in JSON pass through them. */
        json_set_alloc_funcs(malloc, digest_wipe_free);
        return curl_global_init_mem(CURL_GLOBAL_DEFAULT, malloc, digest_wipe_free,
                                    digest_wipe_realloc, strdup, calloc) == CURLE_OK
                       ? 0
                       : -EIO;
}
