#include "agent/api/histogram.h"

#include <stddef.h>

void histogram_add(Histogram *h, double value) {
        h->sum += value;
        h->total++;
        for (size_t i = 0; i < HISTOGRAM_BUCKETS; i++)
                if (value <= h->le[i]) {
                        h->count[i]++;
                        return;
                }
}
