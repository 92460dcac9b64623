/* The requests of a pool: each waits for its turn, is one transfer of libcurl's, and ends with one
 * HttpReply.
 *
 *   QUEUED ──► HAS_TURN ◄──► IN_CURL   the transfer has ended: on_done, freed; or sent again
 *                               │
 *                               ├──► CANCELED  from inside of libcurl, which holds the handle
 *                               └──► LOOKUP    during a look-up, for whose end an older libcurl
 *                                              would wait
 *
 * A request that has its turn may still wait for the rate limit. Requests are queued here and not
 * by libcurl, in whose queue the time to connect would run.
 *
 * This file has the queue, and of each request libcurl's callbacks, the timer and the end. It
 * leaves the handle to http_request.c, running libcurl to curl_loop.c, parsing what comes to
 * http_reply.c, and the decisions to http_timeout.c (what takes too long), http_ratelimit.c (when
 * something may be sent) and http_error.c (what went wrong). */
#include "lib/http/http.h"

#include <curl/curl.h>
#include <errno.h>
#include <jansson.h>
#include <linux/sockios.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include "lib/base/clock.h"
#include "lib/base/digest.h"
#include "lib/base/list.h"
#include "lib/base/strbuf.h"
#include "lib/base/transition.h"
#include "lib/http/curl_loop.h"
#include "lib/http/http_error.h"
#include "lib/http/http_ratelimit.h"
#include "lib/http/http_reply.h"
#include "lib/http/http_request.h"
#include "lib/http/http_timeout.h"
#include "lib/http/url.h"

#define CONNECT_TIMEOUT_USEC (10 * USEC_PER_SEC)
#define STALL_USEC USEC_PER_MINUTE
#define REPLY_MAX_BYTES MIB
#define TIMER_ACCURACY_USEC (10 * USEC_PER_MSEC)

typedef enum HttpCallState {
        HTTP_CALL_QUEUED,
        HTTP_CALL_HAS_TURN, /* counted in n_turns of the pool */
        HTTP_CALL_IN_CURL,  /* libcurl holds it */
        HTTP_CALL_CANCELED, /* no callback any more, but libcurl still holds it … */
        HTTP_CALL_LOOKUP,   /* … and its handle must not be removed */
        N_HTTP_CALL_STATES
} HttpCallState;

/* A connection that was kept may be dead, which only shows when a request is sent on it. libcurl
 * repeats such a request when reading has failed, and this file when sending has. */
typedef enum HttpCallSending {
        HTTP_CALL_UNSENT,    /* on no connection yet */
        HTTP_CALL_SENT,      /* on a connection; perhaps by libcurl on another one after that */
        HTTP_CALL_REPEATED,  /* by this file, on a new connection, once */
        HTTP_CALL_KEPT_DEAD, /* the caller repeats it: see HttpReply.was_kept_dead */
        N_HTTP_CALL_SENDINGS
} HttpCallSending;

struct HttpCall {
        ListLink link;           /* in one of the pool's lists */
        HttpCallState state;     /* set_state() */
        HttpCallSending sending; /* set_sending() */
        HttpPool *pool;
        HttpRequest request;
        int fd;      /* libcurl's, which reports its end; -1 = none, or more than one is tried */
        int last_fd; /* the last one that was open */
        bool is_tls;
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
        bool reports_kept_dead; /* as the caller has said */
        bool has_grace;         /* by the timer, once */

        sd_event_source *timer;
        HttpTimeout timeout;
        HttpRateLimitCall ratelimit;
        uint64_t started_usec; /* when it left the queue */
        uint64_t n_up, n_down; /* bytes of the bodies that have moved */

        char curl_text[CURL_ERROR_SIZE]; /* by libcurl */
        char text[CURL_ERROR_SIZE + 256];
};

struct HttpPool {
        sd_event *event;
        CurlLoop *curl;
        HttpRequestPattern pattern;
        sd_event_source *wake; /* runs the turns, outside of libcurl */
        HttpRateLimit ratelimit;
        ListLink waiting, running, canceled;
        unsigned n_turns, n_max; /* calls that left the queue */
        uint64_t connect_timeout_usec, stall_usec;
};

#define TO(state) (1U << (state))
static const StateTable state_table = {
        .machine = "HTTP call",
        .names = (const char *const[]){ "queued", "has-turn", "in-curl", "canceled", "lookup" },
        .moves =
                (const unsigned[N_HTTP_CALL_STATES]){
                        [HTTP_CALL_QUEUED] = TO(HTTP_CALL_HAS_TURN),
                        [HTTP_CALL_HAS_TURN] = TO(HTTP_CALL_IN_CURL),
                        [HTTP_CALL_IN_CURL] = TO(HTTP_CALL_HAS_TURN) | TO(HTTP_CALL_CANCELED) |
                                              TO(HTTP_CALL_LOOKUP),
                        [HTTP_CALL_CANCELED] = TO(HTTP_CALL_HAS_TURN),
                        [HTTP_CALL_LOOKUP] = TO(HTTP_CALL_HAS_TURN),
                },
        .n_states = N_HTTP_CALL_STATES,
};
static const StateTable sending_table = {
        .machine = "sending of an HTTP call",
        .names = (const char *const[]){ "unsent", "sent", "repeated", "kept-dead" },
        .moves =
                (const unsigned[N_HTTP_CALL_SENDINGS]){
                        [HTTP_CALL_UNSENT] = TO(HTTP_CALL_SENT),
                        [HTTP_CALL_SENT] = TO(HTTP_CALL_REPEATED) | TO(HTTP_CALL_KEPT_DEAD),
                },
        .n_states = N_HTTP_CALL_SENDINGS,
};

static void set_state(HttpCall *c, HttpCallState state) {
        if (transition_check(&state_table, c->state, state, NULL) == 0)
                c->state = state;
}

static void set_sending(HttpCall *c, HttpCallSending sending) {
        if (transition_check(&sending_table, c->sending, sending, NULL) == 0)
                c->sending = sending;
}

static HttpCall *call_free(HttpCall *c);
static void call_end(HttpCall *c, int error);
DEFINE_CLEANUP(HttpCall, call_free);

static inline uint64_t pool_now_usec(const HttpPool *p) {
        uint64_t usec = 0;

        (void)sd_event_now(p->event, CLOCK_MONOTONIC, &usec); /* fails only in another process */
        return usec;
}

static void wake_pool(HttpPool *p) {
        (void)sd_event_source_set_enabled(p->wake,
                                          SD_EVENT_ONESHOT); /* fails only in another process */
}

uint64_t http_call_sent_bytes(const HttpCall *call) {
        curl_off_t n = 0;

        return curl_easy_getinfo(call->request.easy, CURLINFO_SIZE_UPLOAD_T, &n) == CURLE_OK
                       ? (uint64_t)n
                       : 0;
}

/* ── its time ── */

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
        if (http_ratelimit_is_waiting(&c->ratelimit)) /* it waits for its turn */
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

/* ── its end ── */

/* A proxy that refuses replies before the connection is made. */
static unsigned proxy_status(const HttpCall *c) {
        long status = 0;

        (void)curl_easy_getinfo(c->request.easy, CURLINFO_HTTP_CONNECTCODE,
                                &status); /* stays 0 when there is none */
        return c->reply.status == 407 ? 407 : status >= 300 ? (unsigned)status : 0;
}

static int classify_curl_code(const HttpCall *c, CURLcode code) {
        if (c->fault)
                return c->fault;
        if (proxy_status(c) > 0)
                return HTTP_E_PROXY;
        return http_error_of_curl(code, c->curl_text, c->place,
                                  c->timeout.phase == HTTP_PHASE_TRANSFER);
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
        (void)curl_easy_getinfo(c->request.easy, CURLINFO_OS_ERRNO,
                                &saved_errno); /* not known stays 0 */
        if (code == CURLE_OK)
                fault.cause = NULL;
        else if (code == CURLE_COULDNT_CONNECT && saved_errno > 0)
                fault.cause = strerror((int)saved_errno);
        fault.curl_text = c->curl_text;
        (void)http_error_explain(&fault, c->text, sizeof c->text);
}

static HttpCall *call_free(HttpCall *c) {
        if (!c)
                return NULL;
        sd_event_source_disable_unref(c->timer);
        http_ratelimit_call_done(&c->ratelimit);
        http_request_done(&c->request);
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
        bool is_in_lookup = in_curl && c->timeout.phase == HTTP_PHASE_RESOLVING &&
                            !p->pattern.can_abandon_lookups;

        list_remove(&c->link);
        c->timer = sd_event_source_disable_unref(c->timer);
        http_ratelimit_call_done(&c->ratelimit);
        if (is_in_lookup || (in_curl && curl_loop_is_inside(p->curl))) {
                set_state(c, is_in_lookup ? HTTP_CALL_LOOKUP : HTTP_CALL_CANCELED);
                if (is_in_lookup) /* its own limit would wait in the same way */
                        (void)curl_easy_setopt(c->request.easy, CURLOPT_CONNECTTIMEOUT_MS,
                                               (long)INT32_MAX);
                list_append(&p->canceled, &c->link);
                wake_pool(p);
                return;
        }
        if (in_curl)
                curl_loop_remove(p->curl, c->request.easy);
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
                .was_kept_dead = error == HTTP_E_CUT && c->sending == HTTP_CALL_KEPT_DEAD,
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
            c->fault || c->reply.status > 0 || c->sending != HTTP_CALL_SENT ||
            curl_easy_getinfo(c->request.easy, CURLINFO_NUM_CONNECTS, &n_connects) != CURLE_OK ||
            n_connects > 0)
                return false;
        if (c->reports_kept_dead) {
                set_sending(c, HTTP_CALL_KEPT_DEAD);
                return false;
        }
        set_sending(c, HTTP_CALL_REPEATED);
        c->next_byte = 0;
        c->n_up = c->n_down = 0;
        c->curl_text[0] = '\0';
        if (curl_easy_setopt(c->request.easy, CURLOPT_FRESH_CONNECT, 1L) != CURLE_OK ||
            curl_loop_add(c->pool->curl, c->request.easy) < 0)
                return false;
        set_state(c, HTTP_CALL_IN_CURL);
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
        set_state(c, HTTP_CALL_HAS_TURN);
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
        if (c->sending == HTTP_CALL_UNSENT || !c->reports_kept_dead)
                return false;
        if (c->sending == HTTP_CALL_SENT)
                set_sending(c, HTTP_CALL_KEPT_DEAD);
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
                http_ratelimit_call_closing(&c->ratelimit, fd);
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
        if (c->sending == HTTP_CALL_UNSENT)
                set_sending(c, HTTP_CALL_SENT);
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

        CURL_SET(CURLOPT_PRIVATE, c);
        CURL_SET(CURLOPT_ERRORBUFFER, c->curl_text);
        CURL_SET(CURLOPT_NOPROGRESS, 0L);
        CURL_SET(CURLOPT_XFERINFOFUNCTION, on_progress);
        CURL_SET(CURLOPT_XFERINFODATA, c);
        CURL_SET(CURLOPT_OPENSOCKETFUNCTION, on_open_socket);
        CURL_SET(CURLOPT_OPENSOCKETDATA, c);
        CURL_SET(CURLOPT_CLOSESOCKETFUNCTION, on_close_socket);
        CURL_SET(CURLOPT_CLOSESOCKETDATA, c->pool); /* the connection may outlive the call */
        CURL_SET(CURLOPT_PREREQFUNCTION, on_connected);
        CURL_SET(CURLOPT_PREREQDATA, c);
        CURL_SET(CURLOPT_HEADERFUNCTION, on_header);
        CURL_SET(CURLOPT_HEADERDATA, c);
        CURL_SET(CURLOPT_WRITEFUNCTION, on_body);
        CURL_SET(CURLOPT_WRITEDATA, c);
        CURL_SET(CURLOPT_READFUNCTION, on_read);
        CURL_SET(CURLOPT_READDATA, c);
        CURL_SET(CURLOPT_SEEKFUNCTION, on_seek);
        CURL_SET(CURLOPT_SEEKDATA, c);
        return code;
}

/* ── the queue ── */

static void call_start(HttpCall *c) {
        HttpPool *p = c->pool;

        if (curl_loop_add(p->curl, c->request.easy) < 0) {
                call_end(c, HTTP_E_MEMORY);
                return;
        }
        set_state(c, HTTP_CALL_IN_CURL);
        c->started_usec = pool_now_usec(p);
        call_enter_phase(c, HTTP_PHASE_RESOLVING);
}

static void call_assign_turn(HttpCall *c) {
        HttpPool *p = c->pool;

        list_remove(&c->link);
        list_append(&p->running, &c->link);
        p->n_turns++;
        set_state(c, HTTP_CALL_HAS_TURN);
        if (http_ratelimit_start(&c->ratelimit, c->request.head_bytes))
                call_start(c);
}

/* Outside of libcurl. */
static void on_ratelimit_ready(void *userdata) {
        HttpCall *c = userdata;

        if (c->state == HTTP_CALL_HAS_TURN) {
                if (http_ratelimit_start(&c->ratelimit, c->request.head_bytes))
                        call_start(c);
                return;
        }
        if (!http_ratelimit_is_stuck(&c->ratelimit))
                call_on_progress(c); /* the rate limit made it wait */
        /* Also delivers what was received meanwhile: a paused transfer does not end by itself.
         * Fails only when the connection is closed, which is reported elsewhere. */
        (void)curl_easy_pause(c->request.easy, CURLPAUSE_CONT);
}

static HttpCall *first(const ListLink *list) {
        return list_is_empty(list) ? NULL : CONTAINER_OF(list->next, HttpCall, link);
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

static int on_wake(sd_event_source *s, void *userdata) {
        HttpPool *p = userdata;

        (void)s;
        run_turns(p);
        return 0;
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
        if (r < 0)
                return r;
        r = http_request_init(&c->request, &p->pattern, o);
        if (r < 0)
                return r;
        return set_callbacks(c->request.easy, c) == CURLE_OK ? 0 : -ENOMEM;
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
                .is_head = http_request_is_head(options),
                .timeout = { .connect_timeout_usec = pool->connect_timeout_usec,
                             .stall_usec = pool->stall_usec,
                             .timeout_usec = options->timeout_usec,
                             .created_usec = pool_now_usec(pool),
                             .n_unsent = -1 },
        };
        list_init(&c->link);
        http_ratelimit_call_init(&c->ratelimit, &pool->ratelimit, on_ratelimit_ready, c);
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

static void on_socket(CURL *easy, int fd) {
        HttpCall *c = NULL;

        if (curl_easy_getinfo(easy, CURLINFO_PRIVATE, (char **)&c) != CURLE_OK || !c)
                return; /* a handle of libcurl's own */
        c->last_fd = fd >= 0 ? fd : c->last_fd;
        c->fd = fd;
}

/* Takes the turns that libcurl's call may have ended. */
static void on_curl_called(void *userdata) {
        run_turns(userdata);
}

static const CurlLoopHandlers curl_handlers = { .on_socket = on_socket,
                                                .on_ended = on_transfer_ended,
                                                .on_called = on_curl_called };

static int add_wake(HttpPool *p) {
        int r = sd_event_add_defer(p->event, &p->wake, on_wake, p);
        if (r < 0)
                return r;
        (void)sd_event_source_set_description(p->wake, "http-wake"); /* for debugging only */
        return sd_event_source_set_enabled(p->wake, SD_EVENT_OFF);
}

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
        int r = http_request_pattern_init(&p->pattern, options, p->connect_timeout_usec);
        if (r < 0)
                return r;
        r = curl_loop_new(&p->curl, p->event, options->max_connections, &curl_handlers, p);
        if (r < 0)
                return r;
        r = add_wake(p);
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
                        curl_loop_remove(p->curl, c->request.easy);
                call_free(c);
        }
}

HttpPool *http_pool_free(HttpPool *p) {
        if (!p)
                return NULL;
        free_all(p, &p->waiting);
        free_all(p, &p->running);
        free_all(p, &p->canceled);
        curl_loop_free(p->curl);
        http_request_pattern_done(&p->pattern);
        sd_event_source_disable_unref(p->wake);
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
