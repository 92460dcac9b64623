/* limits.memory: how much of it each delivery may use. See delivery_memory.c. Private to this
 * folder. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "config/config.h"

typedef struct DeliveryMemory { /* of one scheduler; nothing is used if it is zero but for the first
                                   two */
        const Config *config;   /* borrowed */
        unsigned n_compressors;
        uint64_t reserved_bytes; /* of limits.memory, for second workers of volumes */
        uint64_t used_bytes;     /* by running deliveries */
        const void *next;        /* the destination that waits for memory, an identity: the others
                                    start nothing meanwhile. NULL: none does */
} DeliveryMemory;

/* What a delivery may use: a member of it. */
typedef struct MemoryCharge {
        DeliveryMemory *memory; /* NULL: it is not charged, now */
        uint64_t bytes;
} MemoryCharge;

/* ---- what is used ---- */

/** @return whether a delivery that needs so much may start at this destination */
bool delivery_memory_may_start(const DeliveryMemory *m, const void *destination, uint64_t bytes);
/** Charges c->bytes: the delivery starts. */
void delivery_memory_charge(DeliveryMemory *m, MemoryCharge *c);
/** Charges so much in all, for a delivery that cannot do with less. @param ret_limit  for messages
 * @return 0; -EAGAIN: others have it now, and the destination is next; -EOVERFLOW: never */
int delivery_memory_grow(MemoryCharge *c, const void *destination, uint64_t bytes,
                         uint64_t *ret_limit);
/** The delivery has ended. Nothing, if it was not charged. */
void delivery_memory_release(MemoryCharge *c);
/** @return whether the destination waits for memory, and is next */
bool delivery_memory_is_next(const DeliveryMemory *m, const void *destination);
/** The destination does not wait for memory any more: the others may start. */
void delivery_memory_stop_waiting(DeliveryMemory *m, const void *destination);

/* ---- shares ---- */

/** @return limits.memory's share of one destination */
uint64_t delivery_memory_share(const DeliveryMemory *m);
/** @return whether there is enough for a second worker of each volume */
bool delivery_memory_allows_second_workers(const DeliveryMemory *m);
/** Reserves what a second worker needs. */
void delivery_memory_reserve_second_worker(DeliveryMemory *m);
/** @return what a delivery to a volume gets */
uint64_t delivery_memory_of_volume(const DeliveryMemory *m, bool is_second_worker);
/** @return what a delivery to this bucket starts with: the share, as far as it is of use */
uint64_t delivery_memory_of_bucket(const DeliveryMemory *m, const ConfigDestination *d);

/* ---- a delivery to a bucket: the writer, and the buffers of parts. Pure ---- */

typedef struct BucketMemory {
        uint64_t bytes, part_bytes; /* in all; the largest buffer of a part */
        unsigned connections;
        int level; /* of compression */
        unsigned n_compressors;
} BucketMemory;

/** Splits memory between the writer and the buffers of parts.
 * @return the number of buffers: connections + 1, fewer where memory is short, 0 when not even two
 * fit; *ret_writer_bytes is what is left for the writer */
unsigned delivery_memory_split(const BucketMemory *m, uint64_t *ret_writer_bytes);
/** The least that such a bundle needs. */
uint64_t delivery_memory_bucket_min(uint64_t part_bytes, int level);
/** @return how many threads `compression_threads: auto` means */
unsigned delivery_memory_auto_compressors(const Config *config, unsigned n_cpus);
