/* The system's clocks, and times as text. All text is UTC. */
#include "lib/base/clock.h"

#include <inttypes.h>
#include <stdio.h>
#include <time.h>

#include "lib/base/cleanup.h"

/* The last second whose year still fits in struct tm's int. */
#define CLOCK_SEC_MAX INT64_C(67768036191676799)
#define CLOCK_SEC_MIN (-INT64_C(67768040609740800))

static uint64_t clock_read_usec(clockid_t id) {
        struct timespec ts;

        /* These clocks are in every kernel that we run on; the call has no other way to fail. */
        (void)clock_gettime(id, &ts);
        return (uint64_t)ts.tv_sec * USEC_PER_SEC + (uint64_t)ts.tv_nsec / 1000;
}

uint64_t clock_realtime_usec(void) {
        return clock_read_usec(CLOCK_REALTIME);
}

uint64_t clock_boottime_usec(void) {
        return clock_read_usec(CLOCK_BOOTTIME);
}

uint64_t clock_cpu_usec(void) {
        return clock_read_usec(CLOCK_PROCESS_CPUTIME_ID);
}

static uint64_t clock_system_realtime_usec(Clock *c) {
        (void)c;
        return clock_realtime_usec();
}

static uint64_t clock_system_boottime_usec(Clock *c) {
        (void)c;
        return clock_boottime_usec();
}

static uint64_t clock_system_cpu_usec(Clock *c) {
        (void)c;
        return clock_cpu_usec();
}

Clock *clock_system(void) {
        static Clock system_clock = {
                .realtime_usec = clock_system_realtime_usec,
                .boottime_usec = clock_system_boottime_usec,
                .cpu_usec = clock_system_cpu_usec,
        };

        return &system_clock;
}

uint64_t clock_step_age_usec(ClockStep *s, Clock *c) {
        uint64_t boot = c->boottime_usec(c), real = c->realtime_usec(c);

        if (s->boot_usec > 0 && real > s->real_usec + (boot - s->boot_usec) + USEC_PER_HOUR)
                s->since_usec = boot;
        s->boot_usec = boot;
        s->real_usec = real;
        return s->since_usec > 0 ? boot - s->since_usec : USEC_INFINITY;
}

static struct tm clock_split(int64_t sec) {
        struct tm tm = { 0 };
        time_t t = (time_t)MAX(MIN(sec, CLOCK_SEC_MAX), CLOCK_SEC_MIN);

        (void)gmtime_r(&t, &tm); /* fails only outside of the bounds above */
        return tm;
}

static const char *clock_format(char *buf, int64_t sec, uint64_t fraction, int n_digits) {
        struct tm tm = clock_split(sec);

        /* The remainders change nothing; they let the compiler see that the text fits. */
        (void)snprintf(buf, CLOCK_ISO_SIZE, "%04" PRId64 "-%02u-%02uT%02u:%02u:%02u.%0*" PRIu64 "Z",
                       (int64_t)tm.tm_year + 1900, ((unsigned)tm.tm_mon + 1) % 100,
                       (unsigned)tm.tm_mday % 100, (unsigned)tm.tm_hour % 100,
                       (unsigned)tm.tm_min % 100, (unsigned)tm.tm_sec % 100, n_digits, fraction);
        return buf;
}

const char *clock_format_iso(char *buf, uint64_t realtime_usec) {
        return clock_format(buf, (int64_t)(realtime_usec / USEC_PER_SEC),
                            realtime_usec % USEC_PER_SEC, 6);
}

const char *clock_format_iso_nsec(char *buf, int64_t sec, uint32_t nsec) {
        return clock_format(buf, sec, MIN((uint64_t)nsec, NSEC_PER_SEC - 1), 9);
}

const char *clock_format_compact(char *buf, uint64_t realtime_usec, char sep) {
        struct tm tm = clock_split((int64_t)(realtime_usec / USEC_PER_SEC));

        (void)strftime(buf, CLOCK_ISO_SIZE, sep == 'T' ? "%Y%m%dT%H%M%S" : "%Y%m%d-%H%M%S", &tm);
        return buf;
}

const char *clock_format_duration(char *buf, uint64_t usec) {
        static const struct {
                const char *name;
                uint64_t usec;
        } units[] = {
                { "d", USEC_PER_DAY }, { "h", USEC_PER_HOUR },  { "m", USEC_PER_MINUTE },
                { "s", USEC_PER_SEC }, { "ms", USEC_PER_MSEC }, { "us", 1 },
        };

        if (usec == USEC_INFINITY) {
                (void)snprintf(buf, CLOCK_ISO_SIZE, "forever");
                return buf;
        }
        for (size_t i = 0; i < ELEMENTSOF(units); i++) {
                uint64_t n = usec / units[i].usec;
                unsigned rest = 0;

                if (n == 0)
                        continue;
                if (i + 1 < ELEMENTSOF(units)) /* below 1000: so many of one unit make the next */
                        rest = (unsigned)(usec % units[i].usec / units[i + 1].usec);
                if (rest == 0)
                        (void)snprintf(buf, CLOCK_ISO_SIZE, "%" PRIu64 "%s", n, units[i].name);
                else
                        (void)snprintf(buf, CLOCK_ISO_SIZE, "%" PRIu64 "%s %u%s", n, units[i].name,
                                       rest, units[i + 1].name);
                return buf;
        }
        (void)snprintf(buf, CLOCK_ISO_SIZE, "0s");
        return buf;
}
