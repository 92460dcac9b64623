/* One request is one easy handle of libcurl. It waits for its turn in a queue of ours (libcurl's own would let the time to connect run
 * meanwhile), has one timer for all that can take too long, and ends in call_end(). */
#include "lib/loop/http.h"

#include <curl/curl.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/sockios.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/ioctl.h>
#include <sys/socket.h>

#include "lib/base/list.h"
#include "lib/base/wipe.h"
#include "lib/loop/curl_loop.h"
#include "lib/loop/http_fault.h"
#include "lib/loop/http_heard.h"
#include "lib/loop/http_order.h"
#include "lib/loop/http_pace.h"
#include "lib/loop/http_patience.h"

#define CONNECT_TIMEOUT_USEC (10 * USEC_PER_SEC)
#define STALL_USEC USEC_PER_MINUTE
#define REPLY_MAX_BYTES MIB
#define SEND_BUFFER_MIN (16 * KIB)  /* CURLOPT_UPLOAD_BUFFERSIZE takes no less */
#define SEND_BUFFER_MAX (128 * KIB) /* larger ones need as much CPU, measured up to 2 MiB */
#define RECEIVE_BUFFER (128 * KIB)  /* for pieces that are handed on */
#define HEAD_BYTES 128              /* of the request line and headers that are made here, about */
#define TIMER_ACCURACY_USEC (10 * USEC_PER_MSEC)

struct HttpCall {
        ListLink link; /* in one of the pool's lists */
        HttpPool *pool;
        CURL *easy;
        int fd; /* libcurl's, which tells when it is gone; -1 = none, or more than one is tried */
        int last_fd; /* when that was closed, it was this one */
        bool is_tls;
        struct curl_slist *headers;
        char *place; /* `host:port`, for people */

        const char *body; /* borrowed */
        size_t body_bytes, next_byte;
        size_t reply_max_bytes;
        int (*on_data)(HttpCall *call, const void *data, size_t n, void *userdata);
        void (*on_done)(const HttpReply *reply, void *userdata);
        void *userdata;

        HttpHeard heard;
        int fault; /* HTTP_E_* that a callback found; libcurl only knows that it was stopped */
        bool is_head;
        bool was_repeated; /* by us, on a new connection */
        bool was_spared;   /* by the timer, once */
        bool has_turn;     /* one of the pool's */
        bool in_curl;      /* libcurl holds it */
        bool is_dropped;   /* nobody wants to hear of it any more, but libcurl still holds it … */
        bool waits_for_lookup; /* … and must not be asked to let go */

        sd_event_source *timer;
        HttpPatience patience;
        HttpPaceCall pace;
        size_t head_bytes;
        uint64_t begun_usec;   /* when its turn came */
        uint64_t n_up, n_down; /* bytes of the bodies that have moved */

        char told[CURL_ERROR_SIZE]; /* by libcurl */
        char text[CURL_ERROR_SIZE + 256];
};

struct HttpPool {
        sd_event *event;
        CurlLoop *loop;
        HttpPace pace;
        ListLink waiting, running, dropped;
        unsigned n_taken, n_max; /* turns that are taken */
        uint64_t connect_timeout_usec, stall_usec;
};

static void call_end(HttpCall *c, int error);

static uint64_t now_usec(const HttpPool *p) {
        uint64_t usec = 0;

        (void)sd_event_now(p->event, CLOCK_MONOTONIC, &usec); /* fails only in another process */
        return usec;
}

static uint64_t sent_bytes(const HttpCall *c) {
        curl_off_t n = 0;

        return curl_easy_getinfo(c->easy, CURLINFO_SIZE_UPLOAD_T, &n) == CURLE_OK ? (uint64_t)n : 0;
}

uint64_t http_call_sent_bytes(const HttpCall *call) {
        return sent_bytes(call);
}

/* ── its time ──────────────────────────────────────────────────────────────────────────────────────────────── */

static void call_moved(HttpCall *c) {
        http_patience_moved(&c->patience, now_usec(c->pool));
}

static void call_arm(HttpCall *c) {
        uint64_t next = http_patience_next_usec(&c->patience, now_usec(c->pool));

        /* These fail only in another process than the one that made the loop. */
        (void)sd_event_source_set_time(c->timer, next);
        (void)sd_event_source_set_enabled(c->timer,
                                          next == USEC_INFINITY ? SD_EVENT_OFF : SD_EVENT_ONESHOT);
}

static void call_enter(HttpCall *c, HttpPhase phase) {
        http_patience_enter(&c->patience, phase, now_usec(c->pool));
        call_arm(c);
}

/* @return whether the kernel has news for it that libcurl has not had yet */
static bool has_news(const HttpCall *c) {
        struct pollfd p = { .fd = c->fd, .events = POLLIN | POLLOUT };

        return c->fd >= 0 && poll(&p, 1, 0) > 0;
}

static int on_call_timer(sd_event_source *s, uint64_t usec, void *userdata) {
        HttpCall *c = userdata;
        uint64_t now = now_usec(c->pool);
        int n_unsent, error;

        (void)s;
        (void)usec;
        if (http_pace_waits(&c->pace))
                http_patience_moved(&c->patience, now);
        if (c->fd >= 0 && ioctl(c->fd, SIOCOUTQ, &n_unsent) == 0)
                http_patience_unsent(&c->patience, n_unsent, now);
        error = http_patience_verdict(&c->patience, now);
        if (error && error != HTTP_E_TIMEOUT && !c->was_spared && has_news(c)) {
                /* Was it the loop that was held up? Then what has come meanwhile has its turn first. */
                c->was_spared = true;
                (void)sd_event_source_set_time(c->timer, now); /* fails as in call_arm() */
                (void)sd_event_source_set_enabled(c->timer, SD_EVENT_ONESHOT);
        } else if (error)
                call_end(c, error);
        else {
                c->was_spared = false;
                call_arm(c);
        }
        return 0;
}

/* ── from libcurl ──────────────────────────────────────────────────────────────────────────────────────────── */

static int on_progress(void *userdata, curl_off_t down_max, curl_off_t down, curl_off_t up_max,
                       curl_off_t up) {
        HttpCall *c = userdata;

        (void)down_max;
        (void)up_max;
        if ((uint64_t)down != c->n_down || (uint64_t)up != c->n_up) {
                c->n_down = (uint64_t)down;
                c->n_up = (uint64_t)up;
                call_moved(c);
        }
        return 0; /* not to stop a dropped call: in the middle of a look-up libcurl would wait for its end */
}

static curl_socket_t on_open_socket(void *userdata, curlsocktype purpose,
                                    struct curl_sockaddr *address) {
        HttpCall *c = userdata;
        int fd;

        (void)purpose;
        if (c->is_dropped)
                return CURL_SOCKET_BAD;
        /* Closed in what we execute: older libcurls leave that out. */
        fd = socket(address->family, address->socktype | SOCK_CLOEXEC, address->protocol);
        if (fd >= 0 && http_pace_opened(&c->pool->pace, fd) < 0) {
                (void)close(fd); /* nothing was done with it */
                fd = -1;
        }
        if (c->patience.phase != HTTP_PHASE_CONNECTING)
                call_enter(c, HTTP_PHASE_CONNECTING);
        return fd < 0 ? CURL_SOCKET_BAD : fd;
}

static void on_socket(void *easy, int fd, void *userdata) {
        HttpCall *c = NULL;

        (void)userdata;
        if (curl_easy_getinfo(easy, CURLINFO_PRIVATE, (char **)&c) == CURLE_OK &&
            c) { /* libcurl has handles of its own */
                c->last_fd = fd >= 0 ? fd : c->last_fd;
                c->fd = fd;
        }
}

/* A server that refuses early answers, closes, and resets what it did not read. Who is just sending learns of the reset alone, and libcurl
 * gives the connection up; but the kernel still has the answer. Encrypted, it is out of reach. */
static bool may_have_early_answer(const HttpCall *c) {
        return !c->is_tls && c->patience.phase == HTTP_PHASE_TALKING && c->heard.status == 0 &&
               sent_bytes(c) < c->body_bytes;
}

static int on_close_socket(void *userdata, curl_socket_t fd) {
        HttpPool *p = userdata;

        LIST_FOREACH (link, &p->running) {
                HttpCall *c = CONTAINER_OF(link, HttpCall, link);

                if (c->last_fd == fd && may_have_early_answer(c))
                        http_heard_rest(&c->heard, fd, c->reply_max_bytes);
                http_pace_lost(&c->pace, fd);
        }
        http_pace_closing(&p->pace, fd);
        return close(fd);
}

/* There is a connection, old or new, and the request is about to be sent. */
static int on_connected(void *userdata, char *remote, char *local, int remote_port,
                        int local_port) {
        HttpCall *c = userdata;

        (void)remote;
        (void)local;
        (void)remote_port;
        if (c->is_dropped)
                return CURL_PREREQFUNC_ABORT;
        http_pace_connected(&c->pace, local_port);
        call_enter(c, HTTP_PHASE_TALKING);
        return CURL_PREREQFUNC_OK;
}

static size_t on_read(char *to, size_t size, size_t n, void *userdata) {
        HttpCall *c = userdata;

        if (c->is_dropped)
                return CURL_READFUNC_ABORT; /* the body may be gone */
        n = MIN(size * n, c->body_bytes - c->next_byte);
        if (n > 0) {
                n = http_pace_read(&c->pace, n, c->body_bytes - c->next_byte);
                if (n == 0)
                        return CURL_READFUNC_PAUSE; /* on_go() comes */
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

static bool has_data_taker(const HttpCall *c) {
        return c->on_data && c->heard.status >= 200 && c->heard.status <= 299;
}

/* @param r  of http_heard_*. @return whether libcurl may go on */
static bool took(HttpCall *c, int r) {
        if (r == 0)
                return true;
        c->fault = r == -EFBIG ? HTTP_E_TOO_LARGE : r == -ENOMEM ? HTTP_E_MEMORY : HTTP_E_CUT;
        return false;
}

static size_t on_header(char *line, size_t size, size_t n, void *userdata) {
        HttpCall *c = userdata;
        int r;

        if (c->is_dropped)
                return 0;
        call_moved(c);
        r = http_heard_line(&c->heard, line, size * n);
        if (r == 0 && c->heard.headers_ended && !c->is_head && !has_data_taker(c) &&
            c->heard.told_bytes > 0 && (uint64_t)c->heard.told_bytes > c->reply_max_bytes)
                r = -EFBIG;
        return took(c, r) ? size * n : 0;
}

static size_t on_body(char *data, size_t size, size_t n, void *userdata) {
        HttpCall *c = userdata;

        n *= size;
        if (c->is_dropped)
                return 0;
        call_moved(c);
        if (!has_data_taker(c))
                return took(c, http_heard_body(&c->heard, data, n, c->reply_max_bytes)) ? n : 0;
        http_heard_pass(&c->heard, n);
        if (c->on_data(c, data, n, c->userdata) >= 0)
                return n;
        c->fault = HTTP_E_STOPPED;
        return 0;
}

/* ── what went wrong, for people ───────────────────────────────────────────────────────────────────────────── */

/* A proxy that turns us away answers before the connection is made. */
static unsigned proxy_status(const HttpCall *c) {
        long status = 0;

        (void)curl_easy_getinfo(c->easy, CURLINFO_HTTP_CONNECTCODE,
                                &status); /* stays 0 when there is none */
        return c->heard.status == 407 ? 407 : status >= 300 ? (unsigned)status : 0;
}

static int error_of(const HttpCall *c, CURLcode code) {
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
                return http_fault_is_elsewhere(c->told, c->place) ? HTTP_E_PROXY : HTTP_E_CONNECT;
        case CURLE_INTERFACE_FAILED:
        case CURLE_OPERATION_TIMEDOUT: /* libcurl's own limit on connecting: the only one it knows of */
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
                return c->patience.phase == HTTP_PHASE_TALKING ? HTTP_E_CUT : HTTP_E_CONNECT;
        }
}

/* Writes c->text. @param code  CURLE_OK when it was not libcurl that found the fault */
static void explain(HttpCall *c, int error, CURLcode code) {
        struct sockaddr_storage peer;
        socklen_t n_peer = sizeof peer;
        long saved_errno = 0;
        HttpFault fault = {
                .error = error,
                .place = c->place,
                .cause = c->told[0] ? c->told : curl_easy_strerror(code),
                .proxy_status = proxy_status(c),
                .connect_timeout_usec = c->patience.connect_timeout_usec,
                .stall_usec = c->patience.stall_usec,
                .timeout_usec = c->patience.timeout_usec,
                .reply_max_bytes = c->reply_max_bytes,
        };

        fault.was_connected =
                c->fd >= 0 && getpeername(c->fd, (struct sockaddr *)&peer, &n_peer) == 0;
        (void)curl_easy_getinfo(c->easy, CURLINFO_OS_ERRNO, &saved_errno); /* not known stays 0 */
        if (code == CURLE_OK)
                fault.cause = NULL;
        else if (code == CURLE_COULDNT_CONNECT && saved_errno > 0)
                fault.cause = strerror((int)saved_errno);
        fault.told = c->told;
        (void)http_fault_explain(&fault, c->text, sizeof c->text);
}

/* ── its end ───────────────────────────────────────────────────────────────────────────────────────────────── */

static HttpCall *call_free(HttpCall *c) {
        if (!c)
                return NULL;
        sd_event_source_disable_unref(c->timer);
        http_pace_call_done(&c->pace);
        if (c->easy)
                curl_easy_cleanup(c->easy);
        curl_slist_free_all(c->headers);
        http_heard_done(&c->heard);
        free(c->place);
        free(c);
        return NULL;
}
DEFINE_CLEANUP(HttpCall, call_free);

/* Takes it out of libcurl's hands and frees it; later, when that cannot be now. */
static void call_drop(HttpCall *c) {
        HttpPool *p = c->pool;
        /* Older libcurls wait for the end of a look-up when its handle is removed, which may be half a minute. So it stays, keeps its turn, and is
         * freed when libcurl is done with it. */
        bool waits_for_lookup = c->in_curl && c->patience.phase == HTTP_PHASE_RESOLVING &&
                                !curl_loop_can_leave_lookups(p->loop);

        list_remove(&c->link);
        c->timer = sd_event_source_disable_unref(c->timer);
        http_pace_call_done(&c->pace);
        if (waits_for_lookup || (c->in_curl && curl_loop_is_inside(p->loop))) {
                c->waits_for_lookup = waits_for_lookup;
                if (waits_for_lookup) /* its own limit would come to the same waiting */
                        (void)curl_easy_setopt(c->easy, CURLOPT_CONNECTTIMEOUT_MS, (long)INT32_MAX);
                c->is_dropped = true;
                list_append(&p->dropped, &c->link);
                curl_loop_wake(p->loop);
                return;
        }
        if (c->in_curl)
                curl_loop_remove(p->loop, c->easy);
        p->n_taken -= c->has_turn;
        curl_loop_wake(p->loop); /* the next one's turn */
        call_free(c);
}

/* @param error  0 or HTTP_E_*, for which c->text has been written */
static void call_tell(HttpCall *c, int error) {
        bool has_status = c->heard.status >= 200;
        HttpReply reply = {
                .error = error,
                .text = error ? c->text : NULL,
                .status = has_status ? c->heard.status : 0,
                .body = c->heard.body ? c->heard.body : "",
                .body_bytes = c->heard.n_body,
                .sent_bytes = sent_bytes(c),
                .received_bytes = c->heard.n_received,
                .duration_usec = c->patience.phase == HTTP_PHASE_WAITING
                                         ? 0
                                         : now_usec(c->pool) - c->begun_usec,
                .headers = &c->heard.headers,
        };

        if (!has_status)
                c->heard.headers.n = 0; /* an interim reply's are not the reply's */
        (void)sd_event_source_set_enabled(c->timer, SD_EVENT_OFF);
        http_pace_answered(&c->pace);
        c->on_done(&reply, c->userdata);
        call_drop(c);
}

/* The one way out of a call that libcurl still holds, or has not seen yet. */
static void call_end(HttpCall *c, int error) {
        /* Whatever came afterwards: an answer is an answer. */
        if (c->heard.status >= 300 && c->heard.status != 407 &&
            http_heard_is_whole(&c->heard, c->is_head))
                error = 0;
        if (error)
                explain(c, error, CURLE_OK);
        call_tell(c, error);
}

/* libcurl sends again by itself when it reads that a kept connection is dead, but not when it learns so while sending. */
static bool call_repeat(HttpCall *c, CURLcode code) {
        long n_connects = 1;

        if ((code != CURLE_SEND_ERROR && code != CURLE_RECV_ERROR && code != CURLE_GOT_NOTHING) ||
            c->fault || c->heard.status > 0 || c->was_repeated ||
            curl_easy_getinfo(c->easy, CURLINFO_NUM_CONNECTS, &n_connects) != CURLE_OK ||
            n_connects > 0)
                return false;
        c->was_repeated = true;
        c->next_byte = 0;
        c->n_up = c->n_down = 0;
        c->told[0] = '\0';
        if (curl_easy_setopt(c->easy, CURLOPT_FRESH_CONNECT, 1L) != CURLE_OK ||
            curl_loop_add(c->pool->loop, c->easy) < 0)
                return false;
        c->in_curl = true;
        call_enter(c, HTTP_PHASE_RESOLVING);
        return true;
}

static void on_ended(void *easy, int code, void *userdata) {
        HttpCall *c = NULL;
        int error;

        (void)userdata;
        (void)curl_easy_getinfo(easy, CURLINFO_PRIVATE,
                                (char **)&c); /* cannot fail for a handle of ours */
        c->in_curl = false;
        if (c->is_dropped) {
                call_drop(c);
                return;
        }
        if (call_repeat(c, (CURLcode)code))
                return;
        if (code == CURLE_OK && !c->heard.headers_ended) {
                code = CURLE_RECV_ERROR; /* libcurl lets headers end with the connection */
                (void)snprintf(c->told, sizeof c->told, "the reply ends within its headers");
        }
        error = error_of(c, (CURLcode)code);
        if (error && !c->fault && error != HTTP_E_PROXY) {
                if (c->heard.status >= 300 && http_heard_is_whole(&c->heard, c->is_head))
                        error = 0; /* the fault came when all had been said */
        }
        if (error)
                explain(c, error, (CURLcode)code);
        call_tell(c, error);
}

/* ── taking turns ──────────────────────────────────────────────────────────────────────────────────────────── */

static HttpCall *first(const ListLink *list) {
        return list_is_empty(list) ? NULL : CONTAINER_OF(list->next, HttpCall, link);
}

static void call_begin(HttpCall *c) {
        HttpPool *p = c->pool;

        if (curl_loop_add(p->loop, c->easy) < 0) {
                call_end(c, HTTP_E_MEMORY);
                return;
        }
        c->in_curl = true;
        c->begun_usec = now_usec(p);
        call_enter(c, HTTP_PHASE_RESOLVING);
}

static void call_take_turn(HttpCall *c) {
        HttpPool *p = c->pool;

        list_remove(&c->link);
        list_append(&p->running, &c->link);
        p->n_taken++;
        c->has_turn = true;
        if (http_pace_begin(&c->pace, c->head_bytes))
                call_begin(c);
}

/* Outside of libcurl. */
static void on_go(void *userdata) {
        HttpCall *c = userdata;

        if (!c->in_curl) {
                if (http_pace_begin(&c->pace, c->head_bytes))
                        call_begin(c);
                return;
        }
        if (c->pace.n_stuck == 0)
                call_moved(c); /* it was us who let it wait */
        /* Also calls for what has been heard meanwhile: paused, a transfer does not end by itself. Fails only when the connection is gone, and
         * then something else tells. */
        (void)curl_easy_pause(c->easy, CURLPAUSE_CONT);
}

static void on_turn(void *userdata) {
        HttpPool *p = userdata;
        HttpCall *c;

        LIST_FOREACH_SAFE (link, &p->dropped) {
                c = CONTAINER_OF(link, HttpCall, link);
                if (!c->waits_for_lookup)
                        call_drop(c);
        }
        while ((p->n_max == 0 || p->n_taken < p->n_max) && (c = first(&p->waiting)))
                call_take_turn(c);
}

HttpCall *http_call_cancel(HttpCall *call) {
        if (call)
                call_drop(call);
        return NULL;
}

/* ── a new call ────────────────────────────────────────────────────────────────────────────────────────────── */

#define SET(option, value)                                                                         \
        do {                                                                                       \
                if (code == CURLE_OK)                                                              \
                        code = curl_easy_setopt(easy, option, value);                              \
        } while (0)

static CURLcode set_callbacks(CURL *easy, HttpCall *c) {
        CURLcode code = CURLE_OK;

        SET(CURLOPT_PRIVATE, c);
        SET(CURLOPT_ERRORBUFFER, c->told);
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

static CURLcode set_request(CURL *easy, const HttpCall *c, const HttpOrder *o) {
        bool has_body = o->body || strcmp(o->method, "PUT") == 0 || strcmp(o->method, "POST") == 0;
        CURLcode code = CURLE_OK;

        SET(CURLOPT_URL, o->url);
        SET(CURLOPT_PATH_AS_IS, 1L);
        SET(CURLOPT_USERAGENT, "neuron-collectd/" PACKAGE_VERSION);
        SET(CURLOPT_HTTPHEADER, c->headers);
        SET(CURLOPT_FRESH_CONNECT, o->never_repeat ? 1L : 0L);
        if (c->on_data)
                SET(CURLOPT_BUFFERSIZE, (long)RECEIVE_BUFFER);
        if (has_body) { /* of whatever method: the upload is the one way of sending that adds no Content-Type */
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

static int append(struct curl_slist **list, const char *line) {
        struct curl_slist *longer = curl_slist_append(*list, line);

        if (!longer)
                return -ENOMEM;
        *list = longer;
        return 0;
}

static int set_headers(HttpCall *c, const HttpOrder *o) {
        for (const char *const *line = o->headers; line && *line; line++) {
                _cleanup_free_ char *spelled = NULL;
                int r = http_order_header(*line, &spelled);

                if (r == 0)
                        r = append(&c->headers, spelled);
                if (r < 0)
                        return r;
                c->head_bytes += strlen(*line) + 2;
        }
        if (http_order_has_header(o, "Expect"))
                return 0;
        return append(
                &c->headers,
                "Expect:"); /* or libcurl asks first, and waits a second for who does not know it */
}

static int call_set_up(HttpCall *c, const HttpOrder *o) {
        HttpPool *p = c->pool;
        CURLcode code;
        int r = curl_loop_place(o->url, &c->place);

        if (r < 0)
                return r;
        r = set_headers(c, o);
        if (r < 0)
                return r;
        r = sd_event_add_time(p->event, &c->timer, CLOCK_MONOTONIC, USEC_INFINITY,
                              TIMER_ACCURACY_USEC, on_call_timer, c);
        if (r < 0)
                return r;
        c->easy = curl_loop_handle(p->loop);
        if (!c->easy)
                return -ENOMEM;
        code = set_callbacks(c->easy, c);
        if (code == CURLE_OK)
                code = set_request(c->easy, c, o);
        return code == CURLE_OK ? 0 : -ENOMEM;
}

int http_call_new(HttpCall **ret, HttpPool *pool, const HttpOrder *order) {
        _cleanup_(call_freep) HttpCall *c = NULL;
        int r;

        if (!http_order_is_sound(order))
                return -EINVAL;
        c = calloc(1, sizeof *c);
        if (!c)
                return -ENOMEM;
        *c = (HttpCall){
                .pool = pool,
                .fd = -1,
                .last_fd = -1,
                .is_tls = strncasecmp(order->url, "https:", 6) == 0,
                .body = order->body,
                .body_bytes = order->body_bytes,
                .reply_max_bytes =
                        order->reply_max_bytes > 0 ? order->reply_max_bytes : REPLY_MAX_BYTES,
                .on_data = order->on_data,
                .on_done = order->on_done,
                .userdata = order->userdata,
                .is_head = strcmp(order->method, "HEAD") == 0,
                .patience = { .connect_timeout_usec = pool->connect_timeout_usec,
                              .stall_usec = pool->stall_usec,
                              .timeout_usec = order->timeout_usec,
                              .ordered_usec = now_usec(pool),
                              .n_unsent = -1 },
        };
        list_init(&c->link);
        c->head_bytes = HEAD_BYTES + strlen(order->url);
        http_pace_call_init(&c->pace, &pool->pace, on_go, c);
        http_heard_init(&c->heard);
        r = call_set_up(c, order);
        if (r < 0)
                return r;
        list_append(&pool->waiting, &c->link);
        call_enter(c, HTTP_PHASE_WAITING);
        curl_loop_wake(pool->loop);
        if (ret)
                *ret = c;
        c = NULL;
        return 0;
}

/* ── the pool ──────────────────────────────────────────────────────────────────────────────────────────────── */

int http_pool_new(HttpPool **ret, sd_event *event, const HttpPoolOptions *options) {
        _cleanup_(http_pool_freep) HttpPool *p = calloc(1, sizeof *p);
        int r;

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
        http_pace_init(&p->pace, p->event, options->throttle);
        list_init(&p->waiting);
        list_init(&p->running);
        list_init(&p->dropped);
        r = curl_loop_new(&p->loop, event,
                          &(CurlLoopOptions){ .max_connections = options->max_connections,
                                              .ca_file = options->ca_file,
                                              .proxy = options->proxy,
                                              .resolve = options->resolve,
                                              .connect_timeout_usec = p->connect_timeout_usec },
                          &(CurlLoopCallbacks){ .on_ended = on_ended,
                                                .on_turn = on_turn,
                                                .on_socket = on_socket,
                                                .userdata = p });
        if (r < 0)
                return r;
        *ret = TAKE_PTR(p);
        return 0;
}

static void free_all(HttpPool *p, ListLink *list) {
        HttpCall *c;

        while ((c = first(list))) {
                list_remove(&c->link);
                if (c->in_curl) /* an older libcurl may wait for a look-up here */
                        curl_loop_remove(p->loop, c->easy);
                call_free(c);
        }
}

HttpPool *http_pool_free(HttpPool *p) {
        if (!p)
                return NULL;
        free_all(p, &p->waiting);
        free_all(p, &p->running);
        free_all(p, &p->dropped);
        curl_loop_free(p->loop);
        http_pace_done(&p->pace);
        sd_event_unref(p->event);
        free(p);
        return NULL;
}

int http_global_init(void) {
        /* A TLS library that writes to a closed connection itself raises it, and CURLOPT_NOSIGNAL leaves it to us. */
        if (signal(SIGPIPE, SIG_IGN) == SIG_ERR)
                return -EIO;
        /* tokens and signed requests pass through it */
        return curl_global_init_mem(CURL_GLOBAL_DEFAULT, malloc, wipe_free, wipe_realloc, strdup,
                                    calloc) == CURLE_OK
                       ? 0
                       : -EIO;
}
