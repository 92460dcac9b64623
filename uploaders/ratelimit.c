/* A rate limit as a line in which each caller books behind the bookings before it, and waits until
 * its turn. The arithmetic is pure; the rest puts a lock and the rate of the time of day around it.
 * What is paced is left to the callers.
 * @see ITU-T I.371, the generic cell rate algorithm in its form of virtual scheduling */
#include "uploaders/ratelimit.h"

#include <errno.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "lib/base/cleanup.h"

#define NSEC_PER_USEC UINT64_C(1000)
#define LINE_MAX_NSEC (UINT64_MAX / 4) /* 146 years: sums of two stay in range */
static uint64_t nsec_of(uint64_t usec) {
        return usec > LINE_MAX_NSEC / NSEC_PER_USEC ? LINE_MAX_NSEC : usec * NSEC_PER_USEC;
}

/* How long n takes, rounded up. */
uint64_t rate_span_nsec(const RateRule *rule, uint64_t n) {
        if (rule->rate == 0)
                return 0;
        double span = (double)n * (double)NSEC_PER_SEC / (double)rule->rate;
        if (span >= (double)LINE_MAX_NSEC)
                return LINE_MAX_NSEC;
        uint64_t whole = (uint64_t)span;
        return whole + ((double)whole < span);
}

uint64_t rate_book(const RateRule *rule, uint64_t booked_nsec, uint64_t n, uint64_t now_usec) {
        uint64_t now = nsec_of(now_usec), saving = nsec_of(rule->saving_usec);
        uint64_t begin = now - MIN(now, saving);

        if (rule->rate == 0)
                return booked_nsec;
        begin = MAX(begin, booked_nsec);
        return begin < LINE_MAX_NSEC ? begin + rate_span_nsec(rule, n) : begin;
}

uint64_t rate_wait_usec(uint64_t booked_nsec, uint64_t now_usec) {
        uint64_t now = nsec_of(now_usec);

        return booked_nsec > now ? (booked_nsec - now + NSEC_PER_USEC - 1) / NSEC_PER_USEC : 0;
}

uint64_t rate_refund(uint64_t booked_nsec, uint64_t span_nsec) {
        return booked_nsec - MIN(booked_nsec, span_nsec);
}

uint64_t rate_discard_savings(uint64_t booked_nsec, uint64_t now_usec) {
        uint64_t now = nsec_of(now_usec);

        return MAX(booked_nsec, now);
}

static bool holds(const RateWindow *w, unsigned minute) {
        if (w->from_minute < w->to_minute)
                return minute >= w->from_minute && minute < w->to_minute;
        return minute >= w->from_minute || minute < w->to_minute;
}

uint64_t rate_at(const RateSchedule *s, unsigned minute) {
        for (size_t i = 0; i < s->n_windows; i++)
                if (holds(&s->windows[i], minute))
                        return s->windows[i].rate;
        return s->rate;
}

#define SLEEP_USEC (20 * USEC_PER_MSEC) /* an abort is checked this often */
#define PIECE_MIN KIB
struct RateLimit {
        atomic_uint n_refs;
        Clock *clock;
        RateSchedule schedule; /* windows are ours */
        uint64_t saving_usec;
        atomic_uint_fast64_t booked_nsec;
        atomic_uint_fast64_t rate;         /* as last looked up */
        atomic_uint_fast64_t checked_usec; /* when it is to be looked up again, CLOCK_BOOTTIME */
};

int ratelimit_new(RateLimit **ret, Clock *clock, const RateSchedule *schedule,
                  uint64_t saving_usec) {
        RateLimit *t = calloc(1, sizeof *t);
        RateWindow *windows = calloc(MAX(schedule->n_windows, (size_t)1), sizeof *windows);

        if (!t || !windows) {
                free(t);
                free(windows);
                return -ENOMEM;
        }
        if (schedule->n_windows > 0)
                memcpy(windows, schedule->windows, schedule->n_windows * sizeof *windows);
        t->clock = clock;
        t->schedule = *schedule;
        t->schedule.windows = windows;
        t->saving_usec = saving_usec;
        atomic_init(&t->n_refs, 1);
        atomic_init(&t->rate, schedule->rate);
        atomic_init(&t->checked_usec, schedule->n_windows > 0 ? 0 : USEC_INFINITY);
        atomic_init(&t->booked_nsec, 0);
        *ret = t;
        return 0;
}

RateLimit *ratelimit_ref(RateLimit *t) {
        if (t)
                atomic_fetch_add(&t->n_refs, 1);
        return t;
}

RateLimit *ratelimit_unref(RateLimit *t) {
        if (!t || atomic_fetch_sub(&t->n_refs, 1) > 1)
                return NULL;
        free((RateWindow *)t->schedule.windows);
        free(t);
        return NULL;
}

static unsigned local_minute(uint64_t realtime_usec) {
        time_t sec = (time_t)(realtime_usec / USEC_PER_SEC);
        struct tm tm = { 0 };

        (void)localtime_r(&sec, &tm); /* fails only for years that no int can hold */
        return (unsigned)(tm.tm_hour * 60 + tm.tm_min) % (24 * 60);
}

static uint64_t rate_now(RateLimit *t, uint64_t now_usec) {
        uint64_t check = atomic_load(&t->checked_usec), realtime;

        if (now_usec < check)
                return atomic_load(&t->rate);
        realtime = t->clock->realtime_usec(t->clock);
        /* The first caller reads it; the others go by the old rate for that moment. */
        if (atomic_compare_exchange_strong(&t->checked_usec, &check,
                                           now_usec + USEC_PER_SEC - realtime % USEC_PER_SEC))
                atomic_store(&t->rate, rate_at(&t->schedule, local_minute(realtime)));
        return atomic_load(&t->rate);
}

static RateRule rule_at(RateLimit *t, uint64_t now_usec) {
        return (RateRule){ .rate = rate_now(t, now_usec), .saving_usec = t->saving_usec };
}

static uint64_t book_by(RateLimit *t, const RateRule *rule, uint64_t n, uint64_t now_usec) {
        uint64_t booked = atomic_load(&t->booked_nsec), next;

        if (rule->rate == 0)
                return 0;
        do
                next = rate_book(rule, booked, n, now_usec);
        while (!atomic_compare_exchange_weak(&t->booked_nsec, &booked, next));
        return rate_wait_usec(next, now_usec);
}

uint64_t ratelimit_book(RateLimit *t, uint64_t n, uint64_t *ret_nsec) {
        uint64_t now = t ? t->clock->boottime_usec(t->clock) : 0;
        const RateRule rule = t ? rule_at(t, now) : (RateRule){ 0 };

        if (ret_nsec)
                *ret_nsec = rate_span_nsec(&rule, n);
        return t ? book_by(t, &rule, n, now) : 0;
}

void ratelimit_refund(RateLimit *t, uint64_t nsec) {
        if (!t || nsec == 0)
                return;
        uint64_t booked = atomic_load(&t->booked_nsec);
        while (!atomic_compare_exchange_weak(&t->booked_nsec, &booked, rate_refund(booked, nsec)))
                ;
}

void ratelimit_discard_savings(RateLimit *t) {
        uint64_t now, booked;

        if (!t)
                return;
        now = t->clock->boottime_usec(t->clock);
        booked = atomic_load(&t->booked_nsec);
        while (!atomic_compare_exchange_weak(&t->booked_nsec, &booked,
                                             rate_discard_savings(booked, now)))
                ;
}

uint64_t ratelimit_rate(RateLimit *t) {
        return t ? rate_now(t, t->clock->boottime_usec(t->clock)) : 0;
}

static size_t piece_by(const RateRule *rule) {
        double piece;

        if (rule->rate == 0)
                return SIZE_MAX;
        piece = (double)rule->rate * (double)rule->saving_usec / (2.0 * (double)USEC_PER_SEC);
        piece = MAX(piece, (double)PIECE_MIN);
        return (size_t)MIN(piece, (double)GIB);
}

size_t ratelimit_piece(RateLimit *t) {
        if (!t)
                return SIZE_MAX;
        const RateRule rule = rule_at(t, t->clock->boottime_usec(t->clock));
        return piece_by(&rule);
}

bool ratelimit_sleep(uint64_t usec, const atomic_bool *abort) {
        while (!abort || !atomic_load(abort)) {
                uint64_t step = MIN(usec, SLEEP_USEC);
                const struct timespec pause = { .tv_nsec = (long)(step * 1000) };

                if (step == 0)
                        return true;
                (void)clock_nanosleep(CLOCK_MONOTONIC, 0, &pause,
                                      NULL); /* a signal shortens it: workers block them all */
                usec -= step;
        }
        return false;
}

size_t ratelimit_wait(RateLimit *t, size_t wanted, const atomic_bool *abort) {
        uint64_t now = t ? t->clock->boottime_usec(t->clock) : 0;
        /* One rate for the piece and its booking: else a piece of no limit could be booked at a
         * slow one. */
        const RateRule rule = t ? rule_at(t, now) : (RateRule){ 0 };
        size_t n = MIN(wanted, piece_by(&rule));

        if (ratelimit_sleep(t ? book_by(t, &rule, n, now) : 0, abort))
                return n;
        ratelimit_refund(t, rate_span_nsec(&rule, n));
        return 0;
}
