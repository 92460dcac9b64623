/* When a request has taken too long, and which error that is. A request is in one phase at a time:
 *
 *   WAITING ──► RESOLVING ──► CONNECTING ──► TRANSFER
 *                                 ▲              │
 *                                 └──────────────┘ a kept connection was dead
 *
 * RESOLVING and CONNECTING share connect_timeout_usec. TRANSFER ends when no byte has moved for
 * stall_usec. timeout_usec limits all phases together. The functions are pure: the caller supplies
 * the time (CLOCK_MONOTONIC), arms the timer, and reports the bytes that move. */
#include "lib/http/http_timeout.h"

#include "lib/base/cleanup.h"
#include "lib/base/clock.h"
#include "lib/http/http.h"

void http_timeout_on_progress(HttpTimeout *p, uint64_t now_usec) {
        p->progress_usec = now_usec;
        p->n_unsent = -1;
}

void http_timeout_enter_phase(HttpTimeout *p, HttpPhase phase, uint64_t now_usec) {
        if (phase == HTTP_PHASE_RESOLVING ||
            (phase == HTTP_PHASE_CONNECTING && p->phase == HTTP_PHASE_TRANSFER))
                p->connect_start_usec = now_usec;
        if (phase == HTTP_PHASE_TRANSFER)
                http_timeout_on_progress(p, now_usec);
        p->phase = phase;
}

void http_timeout_on_unsent(HttpTimeout *p, int n_unsent, uint64_t now_usec) {
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

uint64_t http_timeout_next_usec(const HttpTimeout *p, uint64_t now_usec) {
        uint64_t end = MIN(phase_end(p), total_end(p));

        /* Four times as often, to see the kernel's send buffer drain. */
        if (p->phase != HTTP_PHASE_TRANSFER)
                return end;
        uint64_t check_usec = add_span(now_usec, p->stall_usec / 4);
        return MIN(end, check_usec);
}

int http_timeout_check(const HttpTimeout *p, uint64_t now_usec) {
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
