/* A request from its beginning to its end: what can take too long, how it ends, and that a kept connection that was dead is no end. */
#include <errno.h>
#include <linux/sockios.h>
#include <poll.h>
#include <stdio.h>
#include <sys/ioctl.h>

#include "lib/http/http_private.h"

uint64_t http_call_sent_bytes(const HttpCall *call) {
        curl_off_t n = 0;

        return curl_easy_getinfo(call->easy, CURLINFO_SIZE_UPLOAD_T, &n) == CURLE_OK ? (uint64_t)n
                                                                                     : 0;
}

/* ── its time ──────────────────────────────────────────────────────────────────────────────────────────────── */

void http_call_moved(HttpCall *c) {
        http_patience_moved(&c->patience, http_pool_now_usec(c->pool));
}

static void call_arm(HttpCall *c) {
        uint64_t next = http_patience_next_usec(&c->patience, http_pool_now_usec(c->pool));

        /* These fail only in another process than the one that made the loop. */
        (void)sd_event_source_set_time(c->timer, next);
        (void)sd_event_source_set_enabled(c->timer,
                                          next == USEC_INFINITY ? SD_EVENT_OFF : SD_EVENT_ONESHOT);
}

void http_call_enter(HttpCall *c, HttpPhase phase) {
        http_patience_enter(&c->patience, phase, http_pool_now_usec(c->pool));
        call_arm(c);
}

/* @return whether the kernel has news for it that libcurl has not had yet */
static bool has_news(const HttpCall *c) {
        struct pollfd p = { .fd = c->fd, .events = POLLIN | POLLOUT };

        return c->fd >= 0 && poll(&p, 1, 0) > 0;
}

int http_call_on_timer(sd_event_source *s, uint64_t usec, void *userdata) {
        HttpCall *c = userdata;
        uint64_t now = http_pool_now_usec(c->pool);
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
                http_call_end(c, error);
        else {
                c->was_spared = false;
                call_arm(c);
        }
        return 0;
}

/* ── its end ───────────────────────────────────────────────────────────────────────────────────────────────── */

HttpCall *http_call_free(HttpCall *c) {
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

void http_call_drop(HttpCall *c) {
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
        http_call_free(c);
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
                .sent_bytes = http_call_sent_bytes(c),
                .received_bytes = c->heard.n_received,
                .duration_usec = c->patience.phase == HTTP_PHASE_WAITING
                                         ? 0
                                         : http_pool_now_usec(c->pool) - c->begun_usec,
                .headers = &c->heard.headers,
        };

        if (!has_status)
                c->heard.headers.n = 0; /* an interim reply's are not the reply's */
        (void)sd_event_source_set_enabled(c->timer, SD_EVENT_OFF);
        http_pace_answered(&c->pace);
        c->on_done(&reply, c->userdata);
        http_call_drop(c);
}

void http_call_end(HttpCall *c, int error) {
        /* Whatever came afterwards: an answer is an answer. */
        if (c->heard.status >= 300 && c->heard.status != 407 &&
            http_heard_is_whole(&c->heard, c->is_head))
                error = 0;
        if (error)
                http_curl_explain(c, error, CURLE_OK);
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
        http_call_enter(c, HTTP_PHASE_RESOLVING);
        return true;
}

void http_call_on_ended(void *easy, int code, void *userdata) {
        HttpCall *c = NULL;
        int error;

        (void)userdata;
        (void)curl_easy_getinfo(easy, CURLINFO_PRIVATE,
                                (char **)&c); /* cannot fail for a handle of ours */
        c->in_curl = false;
        if (c->is_dropped) {
                http_call_drop(c);
                return;
        }
        if (call_repeat(c, (CURLcode)code))
                return;
        if (code == CURLE_OK && !c->heard.headers_ended) {
                code = CURLE_RECV_ERROR; /* libcurl lets headers end with the connection */
                (void)snprintf(c->told, sizeof c->told, "the reply ends within its headers");
        }
        error = http_curl_error(c, (CURLcode)code);
        if (error && !c->fault && error != HTTP_E_PROXY) {
                if (c->heard.status >= 300 && http_heard_is_whole(&c->heard, c->is_head))
                        error = 0; /* the fault came when all had been said */
        }
        if (error)
                http_curl_explain(c, error, (CURLcode)code);
        call_tell(c, error);
}
