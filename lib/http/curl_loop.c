/* libcurl's multi handle inside the sd-event loop: libcurl names the sockets and the timeout that
 * it waits for, sd-event waits and passes the events back, and this file reports each transfer that
 * has ended. The caller adds and removes transfers, and decides what follows when one has ended.
 * @see libcurl-multi(3), "MULTI_SOCKET" */
#include "lib/http/curl_loop.h"

#include <errno.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/epoll.h>

#include "lib/base/clock.h"

struct CurlLoop {
        sd_event *event; /* borrowed */
        CURLM *multi;
        sd_event_source *timer;
        bool is_inside; /* in one of libcurl's callbacks, from which it must not be called */
        const CurlLoopHandlers *handlers;
        void *userdata;
};

/* ── to libcurl ── */

static void collect_transfers(CurlLoop *l) {
        CURLMsg *m;
        int left;

        while ((m = curl_multi_info_read(l->multi, &left))) {
                CURL *easy = m->easy_handle; /* the message is gone once its handle is */
                CURLcode code = m->data.result;

                if (m->msg != CURLMSG_DONE)
                        continue;
                curl_loop_remove(l, easy);
                l->handlers->on_ended(easy, code);
        }
}

static void run_curl(CurlLoop *l, curl_socket_t fd, int what) {
        int running;

        l->is_inside = true;
        /* Fails only for a socket that it does not know any more; errors of transfers come as
         * messages. */
        (void)curl_multi_socket_action(l->multi, fd, what, &running);
        l->is_inside = false;
        collect_transfers(l);
        l->handlers->on_called(l->userdata);
}

static int on_timer(sd_event_source *s, uint64_t usec, void *userdata) {
        (void)s, (void)usec;
        run_curl(userdata, CURL_SOCKET_TIMEOUT, 0);
        return 0;
}

/* ── from libcurl ── */

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
        CurlLoop *l = userdata;
        sd_event_source *s = source;

        l->handlers->on_socket(easy, what == CURL_POLL_REMOVE ? -1 : fd);
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
                        s); /* unknown to it: it will not report when to remove it */
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
        /* All connections, used or not: idle ones are closed for new ones. */
        if (c == CURLM_OK && max_connections > 0)
                c = curl_multi_setopt(l->multi, CURLMOPT_MAX_TOTAL_CONNECTIONS,
                                      (long)max_connections);
        if (c == CURLM_OK && max_connections > 0)
                c = curl_multi_setopt(l->multi, CURLMOPT_MAXCONNECTS, (long)max_connections);
        return c == CURLM_OK ? 0 : -ENOMEM;
}

static int add_timer(CurlLoop *l) {
        int r = sd_event_add_time_relative(l->event, &l->timer, CLOCK_MONOTONIC, 0, USEC_PER_MSEC,
                                           on_timer, l);
        if (r < 0)
                return r;
        (void)sd_event_source_set_description(l->timer, "http-timer"); /* for debugging only */
        return sd_event_source_set_enabled(l->timer, SD_EVENT_OFF);
}

int curl_loop_new(CurlLoop **ret, sd_event *event, unsigned max_connections,
                  const CurlLoopHandlers *handlers, void *userdata) {
        _cleanup_(curl_loop_freep) CurlLoop *l = calloc(1, sizeof *l);

        if (!l)
                return -ENOMEM;
        *l = (CurlLoop){ .event = event, .handlers = handlers, .userdata = userdata };
        l->multi = curl_multi_init();
        if (!l->multi)
                return -ENOMEM;
        int r = add_timer(l);
        if (r < 0)
                return r;
        r = set_multi(l, max_connections);
        if (r < 0)
                return r;
        *ret = TAKE_PTR(l);
        return 0;
}

CurlLoop *curl_loop_free(CurlLoop *l) {
        if (!l)
                return NULL;
        if (l->multi) /* closes what is kept alive: still needs the timer below */
                (void)curl_multi_cleanup(l->multi);
        sd_event_source_disable_unref(l->timer);
        free(l);
        return NULL;
}

int curl_loop_add(CurlLoop *l, CURL *easy) {
        return curl_multi_add_handle(l->multi, easy) == CURLM_OK ? 0 : -ENOMEM;
}

void curl_loop_remove(CurlLoop *l, CURL *easy) {
        (void)curl_multi_remove_handle(
                l->multi, easy); /* fails only for what is no handle, or from inside of libcurl */
}

bool curl_loop_is_inside(const CurlLoop *l) {
        return l->is_inside;
}
