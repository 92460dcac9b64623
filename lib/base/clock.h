/* Time as a parameter: modules get a Clock, tests pass a fake one. */
#pragma once

#include <stdint.h>

typedef struct Clock {
        uint64_t (*realtime_usec)(struct Clock *c); /* CLOCK_REALTIME, for people and file times */
        uint64_t (*boottime_usec)(
                struct Clock *c);              /* CLOCK_BOOTTIME, for waiting: never goes back */
        uint64_t (*cpu_usec)(struct Clock *c); /* as clock_cpu_usec() */
} Clock;

/** @return the system's clock; static, never freed. */
Clock *clock_system(void);

/** The same, where no Clock is handed in: children of the agent, and programs that end soon. */
uint64_t clock_realtime_usec(void);
uint64_t clock_boottime_usec(void);
/** @return how long processors have worked for this process: what others keep it waiting does not
 * count */
uint64_t clock_cpu_usec(void);

/* Whether CLOCK_REALTIME can be trusted for waiting. All zero: not checked yet. */
typedef struct ClockStep {
        uint64_t boot_usec, real_usec; /* at the last check; boot_usec 0 = none */
        uint64_t since_usec;           /* CLOCK_BOOTTIME of the check that found a step; 0 = none */
} ClockStep;

/** Checks the clocks. A step is when CLOCK_REALTIME has come an hour further than CLOCK_BOOTTIME
 * since the last check: what is old by it may be young.
 * @return for how long, by CLOCK_BOOTTIME, it has not been set forward; USEC_INFINITY = not since
 * the first check */
uint64_t clock_step_age_usec(ClockStep *s, Clock *c);

/** Formats UTC as `2026-05-27T05:21:35.123456Z`. @param buf  at least CLOCK_ISO_SIZE bytes */
#define CLOCK_ISO_SIZE 40
const char *clock_format_iso(char *buf, uint64_t realtime_usec);

/** As clock_format_iso with nanoseconds (manifest mtimes): `…35.123456789Z`; negative seconds
 * allowed. */
const char *clock_format_iso_nsec(char *buf, int64_t sec, uint32_t nsec);

/** Formats UTC as `yyyymmddTHHMMSS` (bundle ids) with sep 'T', or `yyyymmdd-HHMMSS` (%d) with sep
 * '-'. */
const char *clock_format_compact(char *buf, uint64_t realtime_usec, char sep);

/** Formats a duration for people: `250ms`, `5s`, `2h 3m`. */
const char *clock_format_duration(char *buf, uint64_t usec);
