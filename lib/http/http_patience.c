#include "lib/http/http_patience.h"

#include "lib/base/cleanup.h"
#include "lib/http/http.h"

void http_patience_enter(HttpPatience *p, HttpPhase phase, uint64_t now_usec) {
        if (phase == HTTP_PHASE_RESOLVING ||
            (phase == HTTP_PHASE_CONNECTING && p->phase == HTTP_PHASE_TALKING))
                p->connecting_usec = now_usec;
        if (phase == HTTP_PHASE_TALKING)
                http_patience_moved(p, now_usec);
        p->phase = phase;
}

void http_patience_moved(HttpPatience *p, uint64_t now_usec) {
        p->moved_usec = now_usec;
        p->n_unsent = -1;
}

void http_patience_unsent(HttpPatience *p, int n_unsent, uint64_t now_usec) {
        if (p->n_unsent >= 0 && n_unsent < p->n_unsent)
                p->moved_usec = now_usec;
        p->n_unsent = n_unsent;
}

static uint64_t later(uint64_t usec, uint64_t span_usec) {
        return span_usec > USEC_INFINITY - usec ? USEC_INFINITY : usec + span_usec;
}

/* When the phase's own limit is reached. */
static uint64_t phase_end(const HttpPatience *p) {
        switch (p->phase) {
        case HTTP_PHASE_RESOLVING:
        case HTTP_PHASE_CONNECTING:
                return later(p->connecting_usec, p->connect_timeout_usec);
        case HTTP_PHASE_TALKING:
                return later(p->moved_usec, p->stall_usec);
        case HTTP_PHASE_WAITING:
        default:
                return USEC_INFINITY;
        }
}

static uint64_t whole_end(const HttpPatience *p) {
        return p->timeout_usec > 0 ? later(p->ordered_usec, p->timeout_usec) : USEC_INFINITY;
}

uint64_t http_patience_next_usec(const HttpPatience *p, uint64_t now_usec) {
        uint64_t end = phase_end(p), whole = whole_end(p);

        if (p->phase ==
            HTTP_PHASE_TALKING) { /* four times as often, to see the kernel's buffer get emptier */
                uint64_t look = later(now_usec, p->stall_usec / 4);

                end = MIN(end, look);
        }
        return MIN(end, whole);
}

int http_patience_verdict(const HttpPatience *p, uint64_t now_usec) {
        if (now_usec >= whole_end(p))
                return HTTP_E_TIMEOUT;
        if (now_usec < phase_end(p))
                return 0;
        switch (p->phase) {
        case HTTP_PHASE_RESOLVING:
                return HTTP_E_RESOLVE;
        case HTTP_PHASE_CONNECTING:
                return HTTP_E_CONNECT;
        case HTTP_PHASE_TALKING:
                return HTTP_E_STALLED;
        case HTTP_PHASE_WAITING:
        default:
                return 0;
        }
}
