/* What the files of a request share: http.c has the pool, the turns and the beginning; http_call.c a request's time and its end; http_curl.c
 * what is said to libcurl and what it says. Nobody else includes this. */
#pragma once

#include <curl/curl.h>

#include "lib/base/list.h"
#include "lib/http/curl_loop.h"
#include "lib/http/http.h"
#include "lib/http/http_heard.h"
#include "lib/http/http_pace.h"
#include "lib/http/http_patience.h"

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

static inline uint64_t http_pool_now_usec(const HttpPool *p) {
        uint64_t usec = 0;

        (void)sd_event_now(p->event, CLOCK_MONOTONIC, &usec); /* fails only in another process */
        return usec;
}

/* http_call.c */
/** A byte has moved, or it was us who let it wait. */
void http_call_moved(HttpCall *c);
void http_call_enter(HttpCall *c, HttpPhase phase);
int http_call_on_timer(sd_event_source *s, uint64_t usec, void *userdata);
/** The one way out of a call that libcurl still holds, or has not seen yet. @param error  0 or HTTP_E_* */
void http_call_end(HttpCall *c, int error);
/** libcurl has ended it. @param code  a CURLcode */
void http_call_on_ended(void *easy, int code, void *userdata);
/** Takes it out of libcurl's hands and frees it; later, when that cannot be now. */
void http_call_drop(HttpCall *c);
HttpCall *http_call_free(HttpCall *c);
DEFINE_CLEANUP(HttpCall, http_call_free);

/* http_curl.c */
/** Makes c->easy of the order. @return 0, -ENOMEM */
int http_curl_set_up(HttpCall *c, const HttpOrder *o);
/** libcurl has opened a socket for it, or closed that: CurlLoopCallbacks.on_socket */
void http_curl_on_socket(void *easy, int fd, void *userdata);
/** @return HTTP_E_* or 0 */
int http_curl_error(const HttpCall *c, CURLcode code);
/** Writes c->text. @param code  CURLE_OK when it was not libcurl that found the fault */
void http_curl_explain(HttpCall *c, int error, CURLcode code);
