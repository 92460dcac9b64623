/* Tells work that stands still from work that is slow. Pure. */
#pragma once

#include <stdint.h>

#include "lib/base/cleanup.h"

/* So long without a sign of life. As long as what S3's request_timeout is by default. */
#define STALL_USEC (60 * USEC_PER_SEC)

typedef struct Stall {
        uint64_t begun_usec, progress, since_usec; /* as of the last look */
} Stall;

/**
 * To be called whenever somebody looks at work that is going on.
 * @param begun_usec  when the work began, which also tells one piece of work from the next
 * @param progress    any number that changes as the work goes on
 * @param now_usec    of the same clock as begun_usec
 * @return for how long it has stood still, when that is longer than STALL_USEC; else 0
 */
uint64_t stall_look(Stall *s, uint64_t begun_usec, uint64_t progress, uint64_t now_usec);
