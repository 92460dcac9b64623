/* How long to wait before the next try: exponential with full jitter. Pure. */
#pragma once

#include <stdint.h>

/** @param n_failures  in a row, at least 1
 * @param initial_usec  bound of the first wait, doubled with each failure up to maximum_usec
 * @param random        any number from a good source
 * @return a wait between a tenth of the bound and the bound: never nothing, so that a destination that fails at once is not hammered
 * @see AWS Architecture Blog, "Exponential Backoff And Jitter" */
uint64_t backoff_next_usec(unsigned n_failures, uint64_t initial_usec, uint64_t maximum_usec,
                           uint64_t random);
