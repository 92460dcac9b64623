/* The pool, and a request's beginning: one request is one easy handle of libcurl, and waits for its turn in a queue of ours (libcurl's own
 * would let the time to connect run meanwhile). How it goes on is http_call.c's, what is said to libcurl http_curl.c's. */
#include "lib/http/http.h"

#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>

#include "lib/base/digest.h"
#include "lib/http/http_order.h"
#include "lib/http/http_private.h"
#include "lib/http/url.h"

#define CONNECT_TIMEOUT_USEC (10 * USEC_PER_SEC)
#define STALL_USEC USEC_PER_MINUTE
#define REPLY_MAX_BYTES MIB
#define HEAD_BYTES 128 /* of the request line and headers that are made here, about */
#define TIMER_ACCURACY_USEC (10 * USEC_PER_MSEC)

/* ── taking turns ──────────────────────────────────────────────────────────────────────────────────────────── */

static HttpCall *first(const ListLink *list) {
        return list_is_empty(list) ? NULL : CONTAINER_OF(list->next, HttpCall, link);
}

static void call_begin(HttpCall *c) {
        HttpPool *p = c->pool;

        if (curl_loop_add(p->loop, c->easy) < 0) {
                http_call_end(c, HTTP_E_MEMORY);
                return;
        }
        c->in_curl = true;
        c->begun_usec = http_pool_now_usec(p);
        http_call_enter(c, HTTP_PHASE_RESOLVING);
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
                http_call_moved(c); /* it was us who let it wait */
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
                        http_call_drop(c);
        }
        while ((p->n_max == 0 || p->n_taken < p->n_max) && (c = first(&p->waiting)))
                call_take_turn(c);
}

HttpCall *http_call_cancel(HttpCall *call) {
        if (call)
                http_call_drop(call);
        return NULL;
}

/* ── a new call ────────────────────────────────────────────────────────────────────────────────────────────── */

static int call_set_up(HttpCall *c, const HttpOrder *o) {
        HttpPool *p = c->pool;
        _cleanup_(url_done) Url url = { 0 };
        int r = url_parse(&url, o->url);
        if (r < 0)
                return r;
        if (!url_is_http(&url))
                return -EINVAL;
        c->is_tls = strcmp(url.scheme, "https") == 0;
        if (asprintf(&c->place, "%s:%u", url.host, url.port) < 0) {
                c->place = NULL;
                return -ENOMEM;
        }
        r = sd_event_add_time(p->event, &c->timer, CLOCK_MONOTONIC, USEC_INFINITY,
                              TIMER_ACCURACY_USEC, http_call_on_timer, c);
        return r < 0 ? r : http_curl_set_up(c, o);
}

int http_call_new(HttpCall **ret, HttpPool *pool, const HttpOrder *order) {
        _cleanup_(http_call_freep) HttpCall *c = NULL;
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
                              .ordered_usec = http_pool_now_usec(pool),
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
        http_call_enter(c, HTTP_PHASE_WAITING);
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
                          &(CurlLoopCallbacks){ .on_ended = http_call_on_ended,
                                                .on_turn = on_turn,
                                                .on_socket = http_curl_on_socket,
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
                http_call_free(c);
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
        return curl_global_init_mem(CURL_GLOBAL_DEFAULT, malloc, digest_wipe_free,
                                    digest_wipe_realloc, strdup, calloc) == CURLE_OK
                       ? 0
                       : -EIO;
}
