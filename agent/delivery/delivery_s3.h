/* The memory and the ledger of a delivery to S3: inside of delivery_s3.c, declared for the tests.
 */
#pragma once

#include "agent/delivery/destination.h"
#include "agent/store/store.h"
#include "lib/bundle/packer.h"
#include "uploaders/s3/s3_upload.h"

extern const DestinationType destination_s3_type;

/** @return the bucket's client; NULL and *ret_error (borrowed): its configuration cannot be used */
S3Client *delivery_s3_client(const Destination *d, const char **ret_error);

typedef struct DeliveryS3Memory {
        uint64_t bytes, part_bytes; /* in all; the largest buffer of a part */
        unsigned connections;
        int level; /* of compression */
        unsigned n_compressors;
} DeliveryS3Memory;

/** Splits memory between the writer and the buffers of parts. Pure.
 * @return the number of buffers: connections + 1, fewer where memory is short, 0 when not even two
 * fit; *ret_writer_bytes is what is left for the writer */
unsigned delivery_s3_buffers(const DeliveryS3Memory *m, uint64_t *ret_writer_bytes);
/** The least that such a bundle needs. */
uint64_t delivery_s3_memory_min(uint64_t part_bytes, int level);

/* ---- the ledger: its rows as the packer and the upload need them ---- */

typedef struct DeliveryS3Ledger {
        PackedRow *items;   /* of an earlier run, owned; 0 when there is nothing to resume */
        S3KnownPart *known; /* the same for the upload */
        size_t n;
        char *upload_id; /* NULL = a new upload */
        /* New rows. */
        const char *bundle; /* borrowed */
        char *destination;  /* owned: its configuration may be replaced meanwhile */
        bool has_intent;    /* it is in the store: rows may be written */
        PackedRow first;    /* of part 1, the only one that is built before the intent is written */
} DeliveryS3Ledger;

typedef struct DeliveryS3Expected { /* borrowed: what an upload must match to be resumed */
        const char *bundle, *destination, *key, *signature;
        const uint8_t *plan; /* SHA256_SIZE */
} DeliveryS3Expected;

/** Reads the ledger. An upload that does not match is queued to be aborted, and there are no rows.
 * @return 0, -errno of the store */
int delivery_s3_ledger_load(DeliveryS3Ledger *l, Store *store, const DeliveryS3Expected *expected);
/** Writes the row of a part that is about to be sent; before the intent was written it is kept in
 * memory. Rows of the earlier run are there already. */
int delivery_s3_ledger_add_part(DeliveryS3Ledger *l, Store *store, unsigned number,
                                const PackedRow *row);
/** Writes the intent and the rows kept in memory in one transaction. */
int delivery_s3_ledger_start(DeliveryS3Ledger *l, Store *store, const LedgerUpload *upload);
/** Of the parts of the earlier run. */
uint64_t delivery_s3_ledger_bytes(const DeliveryS3Ledger *l);
void delivery_s3_ledger_done(DeliveryS3Ledger *l);
