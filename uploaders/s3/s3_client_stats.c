/* What was asked how often, and how long it took. */
#include <stdlib.h>
#include <string.h>

#include "uploaders/s3/s3_client_private.h"

void s3_counts_init(S3Counts *c) {
        static const double le[S3_LATENCY_BUCKETS] = { 0.01, 0.025, 0.05, 0.1, 0.25, 0.5,
                                                       1,    2.5,   5,    10,  30,   60 };

        memcpy(c->stats.le, le, sizeof le);
}

void s3_counts_done(S3Counts *c) {
        free(c->items);
}

static S3Stat *find_stat(S3Counts *c, S3Operation operation, unsigned status) {
        for (size_t i = 0; i < c->stats.n; i++)
                if (c->items[i].operation == operation && c->items[i].status == status)
                        return &c->items[i];
        S3Stat *items = reallocarray(c->items, c->stats.n + 1, sizeof *items);
        if (!items)
                return NULL; /* a count is not worth a failure */
        c->items = items;
        c->stats.items = items;
        items[c->stats.n] = (S3Stat){ .operation = operation, .status = status };
        return &items[c->stats.n++];
}

void s3_counts_add(S3Counts *c, S3Operation operation, const HttpReply *reply) {
        S3Stat *stat = find_stat(c, operation, reply->error ? 0 : reply->status);
        double sec = (double)reply->duration_usec / (double)USEC_PER_SEC;

        if (stat)
                stat->n++;
        c->stats.total++;
        c->stats.sum += sec;
        for (size_t i = 0; i < S3_LATENCY_BUCKETS; i++)
                if (sec <= c->stats.le[i]) {
                        c->stats.count[i]++;
                        break;
                }
}

void s3_client_stats(const S3Client *c, S3Stats *ret) {
        *ret = c->counts.stats;
        LIST_FOREACH (link, &c->calls) {
                const S3Call *call = CONTAINER_OF(link, S3Call, link);
                ret->sent_bytes += s3_call_sent_bytes(call);
        }
}
