/* Time as a parameter: modules get a Clock, tests pass a fake one. */
#pragma once

#include <stdint.h>

typedef struct Clock {
        uint64_t (*realtime_usec)(struct Clock *c); /* CLOCK_REALTIME, for people and file times */
        uint64_t (*boottime_usec)(
                struct Clock *c); /* CLOCK_BOOTTIME, for waiting: never goes back */
} Clock;

/** @return the system's clock; static, never freed. */
Clock *clock_system(void);

/** Formats UTC as `2026-05-27T05:21:35.123456Z`. @param buf  at least CLOCK_ISO_SIZE bytes */
#define CLOCK_ISO_SIZE 40
const char *clock_format_iso(char *buf, uint64_t realtime_usec);

/** As clock_format_iso with nanoseconds (manifest mtimes): `…35.123456789Z`; negative seconds allowed. */
const char *clock_format_iso_nsec(char *buf, int64_t sec, uint32_t nsec);

/** Formats UTC as `yyyymmddTHHMMSS` (bundle ids) with sep 'T', or `yyyymmdd-HHMMSS` (%d) with sep '-'. */
const char *clock_format_compact(char *buf, uint64_t realtime_usec, char sep);

/** Formats a duration for people: `250ms`, `5s`, `2h 3m`. */
const char *clock_format_span(char *buf, uint64_t usec);
