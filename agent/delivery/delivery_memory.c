/* limits.memory: how much of it each delivery may use.
 *
 * All deliveries together stay below limits.memory, which the destinations share equally. A
 * delivery is charged for what it may use when it starts, and its MemoryCharge is released when it
 * has ended. One that cannot do with its share, since the parts of its bundle are larger, is
 * charged more, up to limits.memory_max, when the others leave that much: until then its
 * destination is the next one, and the others start nothing, since otherwise there would never be
 * enough.
 *
 * In a delivery to a bucket, each part that is sent or packed has a buffer, and the writer has
 * contexts of compression. Where memory is short there are fewer buffers first, so fewer parts are
 * sent at once. What a writer does with its bytes is lib/bundle's. */
#include "agent/delivery/delivery_memory.h"

#include <errno.h>

#include "lib/base/cleanup.h"
#include "lib/bundle/packer.h"

/* A volume gets a second worker where a destination's share of memory is so many times its needs.
 */
#define SECOND_WORKER_SHARE 3

/* ---- what is used ---- */

/* One delivery that cannot do with less may use what limits.memory_max allows. */
static uint64_t limit_for(const DeliveryMemory *m, uint64_t bytes) {
        return bytes > m->config->limits.memory_bytes ? m->config->limits.memory_max_bytes
                                                      : m->config->limits.memory_bytes;
}

bool delivery_memory_may_start(const DeliveryMemory *m, const void *destination, uint64_t bytes) {
        return (!m->next || m->next == destination) && m->used_bytes + bytes <= limit_for(m, bytes);
}

void delivery_memory_charge(DeliveryMemory *m, MemoryCharge *c) {
        c->memory = m;
        m->used_bytes += c->bytes;
}

int delivery_memory_grow(MemoryCharge *c, const void *destination, uint64_t bytes,
                         uint64_t *ret_limit) {
        DeliveryMemory *m = c->memory;
        const uint64_t others = m->used_bytes - c->bytes;
        *ret_limit = limit_for(m, bytes);
        if (bytes > *ret_limit)
                return -EOVERFLOW;
        if (others + bytes > *ret_limit) {
                m->next = destination;
                return -EAGAIN;
        }
        m->next = NULL;
        m->used_bytes = others + bytes;
        c->bytes = bytes;
        return 0;
}

void delivery_memory_release(MemoryCharge *c) {
        if (c->memory)
                c->memory->used_bytes -= c->bytes;
        c->memory = NULL;
}

bool delivery_memory_is_next(const DeliveryMemory *m, const void *destination) {
        return m->next == destination;
}

void delivery_memory_stop_waiting(DeliveryMemory *m, const void *destination) {
        if (m->next == destination)
                m->next = NULL;
}

/* ---- shares ---- */

static int level_of(const DeliveryMemory *m) {
        return (int)m->config->limits.compression_level;
}

uint64_t delivery_memory_share(const DeliveryMemory *m) {
        return (m->config->limits.memory_bytes - m->reserved_bytes) /
               MAX(m->config->n_destinations, (size_t)1);
}

bool delivery_memory_allows_second_workers(const DeliveryMemory *m) {
        return delivery_memory_share(m) >=
               SECOND_WORKER_SHARE * bundle_writer_memory_min(level_of(m));
}

void delivery_memory_reserve_second_worker(DeliveryMemory *m) {
        m->reserved_bytes += bundle_writer_memory_min(level_of(m));
}

uint64_t delivery_memory_of_volume(const DeliveryMemory *m, bool is_second_worker) {
        const uint64_t least = bundle_writer_memory_min(level_of(m)),
                       best = bundle_writer_memory_best(level_of(m), m->n_compressors);
        return is_second_worker ? least : MAX(MIN(best, delivery_memory_share(m)), least);
}

uint64_t delivery_memory_of_bucket(const DeliveryMemory *m, const ConfigDestination *d) {
        BucketMemory b = { .part_bytes = packer_part_bytes_max(d->part_size_bytes, 0, 0),
                           .connections = (unsigned)d->connections,
                           .level = level_of(m),
                           .n_compressors = m->n_compressors };
        uint64_t wanted = (b.connections + 1) * b.part_bytes +
                          bundle_writer_memory_best(b.level, b.n_compressors),
                 writer;
        b.bytes = MIN(wanted, delivery_memory_share(m));
        unsigned n = delivery_memory_split(&b, &writer);
        return n > 0 ? n * b.part_bytes + writer
                     : delivery_memory_bucket_min(b.part_bytes, b.level);
}

/* ---- a delivery to a bucket ---- */

unsigned delivery_memory_split(const BucketMemory *m, uint64_t *ret_writer_bytes) {
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

uint64_t delivery_memory_bucket_min(uint64_t part_bytes, int level) {
        return 2 * part_bytes + bundle_writer_memory_min(level);
}

/* Of a part that is sent while another one is, and of one that is packed. */
#define AUTO_BUFFERS_MIN 3U

/* All CPUs allowed, unless their memory would leave a bucket without parallel parts: idle priority
 * and the resting under pressure keep them out of the job's way. */
unsigned delivery_memory_auto_compressors(const Config *config, unsigned n_cpus) {
        unsigned n = MAX(n_cpus, 1U);
        for (size_t i = 0; i < config->n_destinations; i++) {
                const ConfigDestination *d = &config->destinations[i];
                BucketMemory m = { .bytes = config->limits.memory_bytes / config->n_destinations,
                                   .part_bytes = packer_part_bytes_max(d->part_size_bytes, 0, 0),
                                   .connections = (unsigned)d->connections,
                                   .level = (int)config->limits.compression_level,
                                   .n_compressors = 1 };
                uint64_t writer;
                if (d->type != CONFIG_S3)
                        continue;
                unsigned wanted = MIN(delivery_memory_split(&m, &writer), AUTO_BUFFERS_MIN);
                for (m.n_compressors = n; n > 1 && delivery_memory_split(&m, &writer) < wanted;)
                        m.n_compressors = --n;
        }
        return n;
}
