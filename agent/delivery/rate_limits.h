/* What this node's limits let through: bytes sent, requests, bytes read; and how much of the time
 * workers may work. One for all destinations, made of config.limits; counted references, since a
 * worker that hangs may outlive the scheduler. */
#pragma once

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "agent/delivery/pressure.h"
#include "config/config.h"
#include "lib/base/cleanup.h"
#include "lib/base/clock.h"
#include "uploaders/ratelimit.h"

typedef struct RateLimits {
        atomic_uint n_refs;  /* private */
        Clock *clock;        /* private */
        RateLimit *upload;   /* NULL = no limit, as the others */
        RateLimit *requests; /* a second's worth may be saved up */
        RateLimit *read;
        Pressure *pressure;    /* NULL: compression_threads is a number, or the kernel has no PSI */
        atomic_bool is_urgent; /* the node is drained or ends: workers do not rest */
        char *note;            /* shown in status: no PSI; NULL */
} RateLimits;

/* A worker does not rest before it has read so much of a bundle: a small one is shipped at once,
 * however pressed the machine is. */
#define RATE_LIMITS_UNPAUSED_BYTES (4 * MIB)

/** @param clock  borrowed; must outlive all references  @return 0, -ENOMEM, or pressure_new()'s
 * errno */
int rate_limits_new(RateLimits **ret, Clock *clock, const Config *config);
RateLimits *rate_limits_ref(RateLimits *l);
RateLimits *rate_limits_unref(RateLimits *l); /* takes NULL, returns NULL */
DEFINE_CLEANUP(RateLimits, rate_limits_unref);

/* What one worker knows of its own pauses. */
typedef struct ReaderLimits {
        RateLimits *limits;                   /* borrowed; NULL = no limits */
        const atomic_bool *abort;             /* ends a pause */
        uint64_t working_since_usec, n_bytes; /* that were read so far */
} ReaderLimits;

/** Before so many bytes of a source are read: sleeps as long as read_rate and the machine's
 * pressure ask for. Returns early, and at once, when *abort is set. Workers only. */
void rate_limits_before_read(ReaderLimits *t, size_t n);
