/* A clock that stands still until a test moves it. */
#pragma once

#include <stdint.h>

#include "lib/base/clock.h"

typedef struct FakeClock {
        Clock clock; /* first: what a module under test gets is &fake.clock */
        uint64_t now_realtime_usec, now_boottime_usec, now_cpu_usec;
} FakeClock;

static inline uint64_t fake_clock_realtime_usec(Clock *c) {
        return ((FakeClock *)(void *)c)->now_realtime_usec;
}

static inline uint64_t fake_clock_boottime_usec(Clock *c) {
        return ((FakeClock *)(void *)c)->now_boottime_usec;
}

static inline uint64_t fake_clock_cpu_usec(Clock *c) {
        return ((FakeClock *)(void *)c)->now_cpu_usec;
}

/* `FakeClock fake = FAKE_CLOCK(realtime, boottime);` */
#define FAKE_CLOCK(realtime_usec_, boottime_usec_)                                                 \
        ((FakeClock){                                                                              \
                .clock = { .realtime_usec = fake_clock_realtime_usec,                              \
                           .boottime_usec = fake_clock_boottime_usec,                              \
                           .cpu_usec = fake_clock_cpu_usec },                                      \
                .now_realtime_usec = (realtime_usec_),                                             \
                .now_boottime_usec = (boottime_usec_),                                             \
        })

/* Both clocks continue by the same time, as they do while nobody sets the date. */
static inline void fake_clock_advance(FakeClock *f, uint64_t usec) {
        f->now_realtime_usec += usec;
        f->now_boottime_usec += usec;
}

/* Somebody sets the date: only the clock on the wall jumps, forward or back. */
static inline void fake_clock_set_date(FakeClock *f, uint64_t realtime_usec) {
        f->now_realtime_usec = realtime_usec;
}
