/* How the memory of a delivery to a bucket is split: each part that is sent or packed has a buffer,
 * the writer has contexts of compression. Where memory is short there are fewer buffers first, so
 * fewer parts are sent at once; a bundle whose parts are larger than that reserves more, within
 * limits.memory_max. What is reserved is counted by destination.c. */
#include "agent/delivery/delivery_s3_memory.h"

#include <errno.h>

#include "lib/base/parse.h"
#include "lib/bundle/packer.h"

unsigned delivery_s3_memory_split(const DeliveryS3Memory *m, uint64_t *ret_writer_bytes) {
        uint64_t least = bundle_writer_memory_min(m->level),
                 best = bundle_writer_memory_best(m->level, m->n_compressors);
        /* a context and a slot for each further thread: bundle_writer_memory_best(n) is n contexts
         * and 2n + 2 slots */
        uint64_t slot = (bundle_writer_memory_best(m->level, 1) - least) / 2;
        uint64_t lean = least + (m->n_compressors - 1) * (least - slot);
        for (unsigned n = m->connections + 1; n >= 2; n--) {
                uint64_t parts = n * m->part_bytes, writer = n > 2 ? lean : least;
                if (parts + writer > m->bytes)
                        continue;
                *ret_writer_bytes = MIN(best, m->bytes - parts);
                return n;
        }
        return 0;
}

uint64_t delivery_s3_memory_min(uint64_t part_bytes, int level) {
        return 2 * part_bytes + bundle_writer_memory_min(level);
}

uint64_t delivery_s3_memory_bytes(const Destination *d) {
        const DestinationShared *s = d->shared;
        DeliveryS3Memory m = { .part_bytes =
                                       packer_part_bytes_max(d->config->part_size_bytes, 0, 0),
                               .connections = (unsigned)d->config->connections,
                               .level = (int)s->config->limits.compression_level,
                               .n_compressors = s->n_compressors };
        uint64_t wanted = (m.connections + 1) * m.part_bytes +
                          bundle_writer_memory_best(m.level, m.n_compressors),
                 writer;
        m.bytes = MIN(wanted, destination_memory_share(s));
        unsigned n = delivery_s3_memory_split(&m, &writer);
        return n > 0 ? n * m.part_bytes + writer : delivery_s3_memory_min(m.part_bytes, m.level);
}

bool delivery_s3_memory_reserve(Delivery *job, const Destination *at, uint64_t part_bytes,
                                unsigned *ret_n, uint64_t *ret_writer_bytes) {
        uint64_t limit = 0, least = delivery_s3_memory_min(part_bytes, job->level);
        char need[PARSE_FORMAT_SIZE], have[PARSE_FORMAT_SIZE];
        int r = job->memory_bytes < least ? destination_reserve_memory(job, least, &limit) : 0;
        parse_format_human(need, least);
        parse_format_human(have, limit);
        if (r == -EAGAIN)
                return delivery_endf(job, RESULT_NO_RESOURCES,
                                     "its parts need %s of memory, which others have now", need);
        if (r < 0)
                return delivery_endf(job, RESULT_NO_RESOURCES,
                                     "its parts need %s of memory and limits.memory_max allows %s; "
                                     "set limits.memory_max to at least %llu",
                                     need, have, (unsigned long long)least);
        *ret_n = delivery_s3_memory_split(
                &(DeliveryS3Memory){ .bytes = job->memory_bytes,
                                     .part_bytes = part_bytes,
                                     .connections = (unsigned)at->config->connections,
                                     .level = job->level,
                                     .n_compressors = at->shared->n_compressors },
                ret_writer_bytes);
        return true;
}

/* Of a part that is sent while another one is, and of one that is packed. */
#define AUTO_BUFFERS_MIN 3U

/* All CPUs allowed, unless their memory would leave a bucket without parallel parts: idle priority
 * and the resting under pressure keep them out of the job's way. */
unsigned delivery_s3_memory_auto_compressors(const Config *config, unsigned n_cpus) {
        unsigned n = MAX(n_cpus, 1U);
        for (size_t i = 0; i < config->n_destinations; i++) {
                const ConfigDestination *d = &config->destinations[i];
                DeliveryS3Memory m = { .bytes =
                                               config->limits.memory_bytes / config->n_destinations,
                                       .part_bytes =
                                               packer_part_bytes_max(d->part_size_bytes, 0, 0),
                                       .connections = (unsigned)d->connections,
                                       .level = (int)config->limits.compression_level,
                                       .n_compressors = 1 };
                uint64_t writer;
                if (d->type != CONFIG_S3)
                        continue;
                unsigned wanted = MIN(delivery_s3_memory_split(&m, &writer), AUTO_BUFFERS_MIN);
                for (m.n_compressors = n; n > 1 && delivery_s3_memory_split(&m, &writer) < wanted;)
                        m.n_compressors = --n;
        }
        return n;
}
