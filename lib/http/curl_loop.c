/* The marriage: libcurl tells which sockets it waits for and until when, sd-event waits, and libcurl is told what happened. Here is also
 * what all transfers have in common: how is spoken, and with whom.
 * @see libcurl-multi(3), "MULTI_SOCKET" */
#include "lib/http/curl_loop.h"

#include <curl/curl.h>
#include <errno.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>

#include "lib/base/cleanup.h"

#define QUICK_EXIT_SINCE 0x075700 /* libcurl 7.87.0 */

struct CurlLoop {
        sd_event *event; /* borrowed: the pool above keeps a reference */
        CURLM *multi;
        CURL *pattern; /* of the handles: only the options that all have */
        struct curl_slist *resolve;
        bool can_leave_lookups;
        sd_event_source *timer, *wake;
        CurlLoopCallbacks callbacks;
        bool inside;
};

/* ── from libcurl ──────────────────────────────────────────────────────────────────────────────────────────── */

static void act(CurlLoop *l, curl_socket_t fd, int what);

static int on_io(sd_event_source *s, int fd, uint32_t revents, void *userdata) {
        int what = 0;

        (void)s;
        /* An error is told as both: libcurl then makes its system calls, reads what had come before the error, and learns the errno,
         * where CURL_CSELECT_ERR would end the transfer without either. */
        if (revents & (EPOLLIN | EPOLLRDHUP | EPOLLHUP | EPOLLERR))
                what |= CURL_CSELECT_IN;
        if (revents & (EPOLLOUT | EPOLLHUP | EPOLLERR))
                what |= CURL_CSELECT_OUT;
        act(userdata, fd, what);
        return 0;
}

/* Always says 0: anything else would end this and all future transfers of the multi handle. A socket that cannot be watched leaves
 * its transfer waiting, and the transfer's own timer ends it.
 * @param source  what curl_multi_assign() keeps for this socket */
static int watch_socket(CURL *easy, curl_socket_t fd, int what, void *userdata, void *source) {
        uint32_t events =
                (what & CURL_POLL_IN ? EPOLLIN : 0) | (what & CURL_POLL_OUT ? EPOLLOUT : 0);
        CurlLoop *l = userdata;
        sd_event_source *s = source;

        l->callbacks.on_socket(easy, what == CURL_POLL_REMOVE ? -1 : fd, l->callbacks.userdata);
        if (what == CURL_POLL_REMOVE) /* called before the socket is closed */
                s = sd_event_source_disable_unref(s);
        else if (s)
                (void)sd_event_source_set_io_events(s, events);
        else if (sd_event_add_io(l->event, &s, fd, events, on_io, l) < 0)
                s = NULL;
        else
                (void)sd_event_source_set_description(s, "http"); /* for debugging only */
        if (curl_multi_assign(l->multi, fd, s) != CURLM_OK)
                sd_event_source_disable_unref(
                        s); /* not a socket that it knows: it will not tell when to remove it */
        return 0;
}

static int set_timer(CURLM *multi, long msec, void *userdata) {
        CurlLoop *l = userdata;

        (void)multi;
        /* These fail only in another process than the one that made the loop. */
        if (msec >= 0)
                (void)sd_event_source_set_time_relative(l->timer, (uint64_t)msec * USEC_PER_MSEC);
        (void)sd_event_source_set_enabled(l->timer, msec >= 0 ? SD_EVENT_ONESHOT : SD_EVENT_OFF);
        return 0;
}

/* ── to libcurl ────────────────────────────────────────────────────────────────────────────────────────────── */

static void hear_ends(CurlLoop *l) {
        CURLMsg *m;
        int left;

        while ((m = curl_multi_info_read(l->multi, &left))) {
                CURL *easy = m->easy_handle; /* the message is gone once its handle is */
                CURLcode code = m->data.result;

                if (m->msg != CURLMSG_DONE)
                        continue;
                curl_loop_remove(l, easy);
                l->callbacks.on_ended(easy, (int)code, l->callbacks.userdata);
        }
}

static void act(CurlLoop *l, curl_socket_t fd, int what) {
        int running;

        l->inside = true;
        /* Fails only for a socket that it does not know any more; transfers tell of their faults in messages. */
        (void)curl_multi_socket_action(l->multi, fd, what, &running);
        l->inside = false;
        hear_ends(l);
        l->callbacks.on_turn(l->callbacks.userdata);
}

static int on_timer(sd_event_source *s, uint64_t usec, void *userdata) {
        (void)s;
        (void)usec;
        act(userdata, CURL_SOCKET_TIMEOUT, 0);
        return 0;
}

static int on_wake(sd_event_source *s, void *userdata) {
        CurlLoop *l = userdata;

        (void)s;
        l->callbacks.on_turn(l->callbacks.userdata);
        return 0;
}

/* ── how to talk ───────────────────────────────────────────────────────────────────────────────────────────── */

#define SET(option, value)                                                                         \
        do {                                                                                       \
                if (code == CURLE_OK)                                                              \
                        code = curl_easy_setopt(easy, option, value);                              \
        } while (0)

static CURLcode set_pattern(CURL *easy, const CurlLoop *l, const CurlLoopOptions *o) {
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
        /* Ours comes first. At half of its own libcurl goes on to a host's next address. */
        SET(CURLOPT_CONNECTTIMEOUT_MS,
            (long)MIN(o->connect_timeout_usec / USEC_PER_MSEC * 3 / 2 + 100, (uint64_t)INT32_MAX));
#if LIBCURL_VERSION_NUM >= QUICK_EXIT_SINCE
        if (l->can_leave_lookups)
                SET(CURLOPT_QUICK_EXIT, 1L);
#else
        (void)l;
#endif
        return code;
}

void *curl_loop_handle(const CurlLoop *l) {
        CURL *easy = curl_easy_duphandle(l->pattern);

        if (easy && curl_easy_setopt(easy, CURLOPT_RESOLVE, l->resolve) != CURLE_OK) {
                curl_easy_cleanup(easy);
                return NULL;
        }
        return easy;
}

/* ── for http.c ────────────────────────────────────────────────────────────────────────────────────────────── */

static int add_sources(CurlLoop *l) {
        int r = sd_event_add_time_relative(l->event, &l->timer, CLOCK_MONOTONIC, 0, USEC_PER_MSEC,
                                           on_timer, l);
        if (r < 0)
                return r;
        r = sd_event_source_set_enabled(l->timer, SD_EVENT_OFF);
        if (r < 0)
                return r;
        r = sd_event_add_defer(l->event, &l->wake, on_wake, l);
        if (r < 0)
                return r;
        (void)sd_event_source_set_description(l->timer, "http-timer"); /* for debugging only */
        (void)sd_event_source_set_description(l->wake, "http-wake");
        return sd_event_source_set_enabled(l->wake, SD_EVENT_OFF);
}

static int set_multi(CurlLoop *l, unsigned max_connections) {
        CURLMcode c = curl_multi_setopt(l->multi, CURLMOPT_SOCKETFUNCTION, watch_socket);

        if (c == CURLM_OK)
                c = curl_multi_setopt(l->multi, CURLMOPT_SOCKETDATA, l);
        if (c == CURLM_OK)
                c = curl_multi_setopt(l->multi, CURLMOPT_TIMERFUNCTION, set_timer);
        if (c == CURLM_OK)
                c = curl_multi_setopt(l->multi, CURLMOPT_TIMERDATA, l);
        if (c == CURLM_OK)
                c = curl_multi_setopt(l->multi, CURLMOPT_PIPELINING, CURLPIPE_NOTHING);
        /* Of all that is connected, used or not: what is idle gives way to what is wanted. */
        if (c == CURLM_OK && max_connections > 0)
                c = curl_multi_setopt(l->multi, CURLMOPT_MAX_TOTAL_CONNECTIONS,
                                      (long)max_connections);
        if (c == CURLM_OK && max_connections > 0)
                c = curl_multi_setopt(l->multi, CURLMOPT_MAXCONNECTS, (long)max_connections);
        return c == CURLM_OK ? 0 : -ENOMEM;
}

static int set_up(CurlLoop *l, const CurlLoopOptions *o) {
        int r;

        l->multi = curl_multi_init();
        l->pattern = curl_easy_init();
        if (!l->multi || !l->pattern || set_pattern(l->pattern, l, o) != CURLE_OK)
                return -ENOMEM;
        for (const char *const *line = o->resolve; line && *line; line++) {
                struct curl_slist *longer = curl_slist_append(l->resolve, *line);

                if (!longer)
                        return -ENOMEM;
                l->resolve = longer;
        }
        r = add_sources(l);
        return r < 0 ? r : set_multi(l, o->max_connections);
}

DEFINE_CLEANUP(CurlLoop, curl_loop_free);

int curl_loop_new(CurlLoop **ret, sd_event *event, const CurlLoopOptions *options,
                  const CurlLoopCallbacks *callbacks) {
        const curl_version_info_data *curl = curl_version_info(CURLVERSION_NOW);
        _cleanup_(curl_loop_freep) CurlLoop *l = NULL;
        int r;

        if (!(curl->features & CURL_VERSION_ASYNCHDNS) || !(curl->features & CURL_VERSION_SSL))
                return -EOPNOTSUPP;
        l = calloc(1, sizeof *l);
        if (!l)
                return -ENOMEM;
        l->event = event;
        l->callbacks = *callbacks;
        l->can_leave_lookups =
                LIBCURL_VERSION_NUM >= QUICK_EXIT_SINCE && curl->version_num >= QUICK_EXIT_SINCE;
        r = set_up(l, options);
        if (r < 0)
                return r;
        *ret = TAKE_PTR(l);
        return 0;
}

CurlLoop *curl_loop_free(CurlLoop *l) {
        if (!l)
                return NULL;
        if (l->multi)
                (void)curl_multi_cleanup(
                        l->multi); /* closes what is kept alive: still needs the sources below */
        if (l->pattern)
                curl_easy_cleanup(l->pattern);
        curl_slist_free_all(l->resolve);
        sd_event_source_disable_unref(l->timer);
        sd_event_source_disable_unref(l->wake);
        free(l);
        return NULL;
}

int curl_loop_add(CurlLoop *l, void *easy) {
        return curl_multi_add_handle(l->multi, easy) == CURLM_OK ? 0 : -ENOMEM;
}

void curl_loop_remove(CurlLoop *l, void *easy) {
        (void)curl_multi_remove_handle(
                l->multi, easy); /* fails only for what is no handle, or from inside of libcurl */
}

bool curl_loop_is_inside(const CurlLoop *l) {
        return l->inside;
}

bool curl_loop_can_leave_lookups(const CurlLoop *l) {
        return l->can_leave_lookups;
}

void curl_loop_wake(CurlLoop *l) {
        (void)sd_event_source_set_enabled(l->wake,
                                          SD_EVENT_ONESHOT); /* fails only in another process */
}
