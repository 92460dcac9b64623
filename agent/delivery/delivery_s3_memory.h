/* The memory of a delivery to a bucket: how it is split between the writer and the buffers of
 * parts. Private to this folder. */
#pragma once

#include "agent/delivery/destination.h"
#include "config/config.h"

typedef struct DeliveryS3Memory {
        uint64_t bytes, part_bytes; /* in all; the largest buffer of a part */
        unsigned connections;
        int level; /* of compression */
        unsigned n_compressors;
} DeliveryS3Memory;

/** Splits memory between the writer and the buffers of parts. Pure.
 * @return the number of buffers: connections + 1, fewer where memory is short, 0 when not even two
 * fit; *ret_writer_bytes is what is left for the writer */
unsigned delivery_s3_memory_split(const DeliveryS3Memory *m, uint64_t *ret_writer_bytes);
/** The least that such a bundle needs. */
uint64_t delivery_s3_memory_min(uint64_t part_bytes, int level);

/** @return what a delivery to this bucket starts with: limits.memory's share, as far as it is of
 * use */
uint64_t delivery_s3_memory_bytes(const Destination *d);
/** Reserves more for a bundle whose parts need it, and splits what is reserved.
 * @param part_bytes  of the largest part  @param ret_n  the number of buffers
 * @return false: there is too little, and the delivery has ended */
bool delivery_s3_memory_reserve(Delivery *job, const Destination *at, uint64_t part_bytes,
                                unsigned *ret_n, uint64_t *ret_writer_bytes);

/** @return how many threads `compression_threads: auto` means. Pure */
unsigned delivery_s3_memory_auto_compressors(const Config *config, unsigned n_cpus);
