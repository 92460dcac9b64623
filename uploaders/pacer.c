/* @see ITU-T I.371, the generic cell rate algorithm in its form of virtual scheduling */
#include "uploaders/pacer.h"

#include <stdbool.h>

#include "lib/base/cleanup.h"

#define NSEC_PER_USEC UINT64_C(1000)
#define LINE_MAX_NSEC (UINT64_MAX / 4) /* 146 years: sums of two stay in range */

static uint64_t nsec_of(uint64_t usec) {
        return usec > LINE_MAX_NSEC / NSEC_PER_USEC ? LINE_MAX_NSEC : usec * NSEC_PER_USEC;
}

/* How long n takes, rounded up. */
uint64_t pacer_span_nsec(const PacerRule *rule, uint64_t n) {
        double span;
        uint64_t whole;

        if (rule->rate == 0)
                return 0;
        span = (double)n * (double)NSEC_PER_SEC / (double)rule->rate;
        if (span >= (double)LINE_MAX_NSEC)
                return LINE_MAX_NSEC;
        whole = (uint64_t)span;
        return whole + ((double)whole < span);
}

uint64_t pacer_book(const PacerRule *rule, uint64_t booked_nsec, uint64_t n, uint64_t now_usec) {
        uint64_t now = nsec_of(now_usec), saving = nsec_of(rule->saving_usec);
        uint64_t begin = now - MIN(now, saving);

        if (rule->rate == 0)
                return booked_nsec;
        begin = MAX(begin, booked_nsec);
        return begin < LINE_MAX_NSEC ? begin + pacer_span_nsec(rule, n) : begin;
}

uint64_t pacer_wait_usec(uint64_t booked_nsec, uint64_t now_usec) {
        uint64_t now = nsec_of(now_usec);

        return booked_nsec > now ? (booked_nsec - now + NSEC_PER_USEC - 1) / NSEC_PER_USEC : 0;
}

uint64_t pacer_return(uint64_t booked_nsec, uint64_t span_nsec) {
        return booked_nsec - MIN(booked_nsec, span_nsec);
}

uint64_t pacer_waste(uint64_t booked_nsec, uint64_t now_usec) {
        uint64_t now = nsec_of(now_usec);

        return MAX(booked_nsec, now);
}

static bool holds(const PacerWindow *w, unsigned minute) {
        if (w->from_minute < w->to_minute)
                return minute >= w->from_minute && minute < w->to_minute;
        return minute >= w->from_minute || minute < w->to_minute;
}

uint64_t pacer_rate_at(const PacerSchedule *s, unsigned minute) {
        for (size_t i = 0; i < s->n_windows; i++)
                if (holds(&s->windows[i], minute))
                        return s->windows[i].rate;
        return s->rate;
}
