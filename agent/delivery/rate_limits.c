/* The limits of this node: how many bytes are sent, how many requests are made and how many bytes
 * are read in a second, and when a reader rests because the machine is pressed (pressure.c).
 * Readers wait here, in their workers; uploads and requests wait in uploaders/, for the limits that
 * are kept here. */
#include "agent/delivery/rate_limits.h"

#include <errno.h>
#include <stdlib.h>

#define REQUEST_SAVING_USEC USEC_PER_SEC

/* @return 0 and *ret, which stays NULL where nothing limits; -ENOMEM */
static int create_throttle(RateLimit **ret, Clock *clock, const RateSchedule *schedule,
                           uint64_t saving_usec) {
        if (schedule->rate == 0 && schedule->n_windows == 0)
                return 0;
        return ratelimit_new(ret, clock, schedule, saving_usec);
}

static int create_upload_throttle(RateLimits *l, Clock *clock, const Config *config) {
        size_t n = config->limits.n_upload_windows;
        _cleanup_free_ RateWindow *windows = calloc(MAX(n, (size_t)1), sizeof *windows);

        if (!windows)
                return -ENOMEM;
        for (size_t i = 0; i < n; i++) {
                const ConfigWindow *w = &config->limits.upload_windows[i];
                windows[i] = (RateWindow){ .from_minute = w->from_minute,
                                           .to_minute = w->to_minute,
                                           .rate = w->rate };
        }
        const RateSchedule schedule = { .rate = config->limits.upload_rate,
                                        .windows = windows,
                                        .n_windows = n };
        return create_throttle(&l->upload, clock, &schedule, RATE_SAVING_USEC);
}

int rate_limits_new(RateLimits **ret, Clock *clock, const Config *config) {
        _cleanup_(rate_limits_unrefp) RateLimits *l = calloc(1, sizeof *l);

        if (!l)
                return -ENOMEM;
        atomic_init(&l->n_refs, 1);
        l->clock = clock;
        int r = create_upload_throttle(l, clock, config);
        if (r == 0)
                r = create_throttle(&l->requests, clock,
                                    &(RateSchedule){ .rate = config->limits.request_rate },
                                    REQUEST_SAVING_USEC);
        if (r == 0)
                r = create_throttle(&l->read, clock,
                                    &(RateSchedule){ .rate = config->limits.read_rate },
                                    RATE_SAVING_USEC);
        if (r == 0 && config->limits.compression_threads == 0) /* auto */
                r = pressure_new(&l->pressure, clock, config->snapshot.proc_root, &l->note);
        if (r < 0)
                return r;
        *ret = TAKE_PTR(l);
        return 0;
}

RateLimits *rate_limits_ref(RateLimits *l) {
        atomic_fetch_add(&l->n_refs, 1);
        return l;
}

RateLimits *rate_limits_unref(RateLimits *l) {
        if (!l || atomic_fetch_sub(&l->n_refs, 1) > 1)
                return NULL;
        ratelimit_unref(l->upload);
        ratelimit_unref(l->requests);
        ratelimit_unref(l->read);
        pressure_free(l->pressure);
        free(l->note);
        free(l);
        return NULL;
}

/* @return false: it is to stop */
static bool wait_for_read_rate(ReaderLimits *t, size_t n) {
        RateLimit *read = t->limits->read;
        uint64_t nsec;
        bool may_go = ratelimit_sleep(ratelimit_book(read, n, &nsec), t->abort);

        if (!may_go)
                ratelimit_refund(read, nsec);
        return may_go;
}

static void pause_for_pressure(ReaderLimits *t) {
        RateLimits *l = t->limits;
        uint64_t now, since = t->working_since_usec;

        if (!l->pressure || atomic_load(&l->is_urgent) || t->n_bytes <= RATE_LIMITS_UNPAUSED_BYTES)
                return;
        now = l->clock->boottime_usec(l->clock);
        if (since > 0)
                (void)ratelimit_sleep(pressure_pause_usec(l->pressure, now - MIN(now, since)),
                                      t->abort); /* the reader checks *abort itself */
        t->working_since_usec = l->clock->boottime_usec(l->clock);
}

void rate_limits_before_read(ReaderLimits *t, size_t n) {
        if (!t->limits || !wait_for_read_rate(t, n))
                return;
        t->n_bytes += n;
        pause_for_pressure(t);
}
