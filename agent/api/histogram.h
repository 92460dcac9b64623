/* How many values lie below which bound. */
#pragma once

#include <stdint.h>

#define HISTOGRAM_BUCKETS 12
typedef struct Histogram {
        double le[HISTOGRAM_BUCKETS];      /* upper bounds; +Inf is implied */
        uint64_t count[HISTOGRAM_BUCKETS]; /* not cumulative */
        uint64_t total;
        double sum;
} Histogram;

/** Counts a value in the first bucket that it is not above; what is above all counts in `total`
 * alone. */
void histogram_add(Histogram *h, double value);
