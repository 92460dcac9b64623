/* The scheduler's struct, for the files of this folder that are parts of it. */
#pragma once

#include "agent/delivery/destination.h"
#include "agent/delivery/scheduler.h"
#include "lib/base/list.h"

struct Scheduler {
        SchedulerContext context;
        DestinationShared shared;
        Destination *destinations; /* shared.n_destinations of the configuration */
        size_t n_all;              /* the second ones of volumes follow */
        bool is_urgent;            /* drained, or --once: nothing waits for the sake of others */
        bool is_stopping;
        uint64_t stop_usec; /* CLOCK_BOOTTIME: what runs then is left behind; 0 = not stopping */
        uint64_t n_retries[N_SCHEDULER_RETRIES]; /* but for those that shared counts */
};

static inline Scheduler *scheduler_of(const Destination *d) {
        return CONTAINER_OF(d->shared, Scheduler, shared);
}

static inline uint64_t scheduler_boottime_usec(const Scheduler *s) {
        return s->context.clock->boottime_usec(s->context.clock);
}

static inline uint64_t scheduler_realtime_usec(const Scheduler *s) {
        return s->context.clock->realtime_usec(s->context.clock);
}

/** @return NULL: there is none of this name */
Destination *scheduler_find_destination(const Scheduler *s, const char *name);
