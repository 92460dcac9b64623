/* The ledger of one upload to a bucket, from which an upload that was cut is resumed: its rows as
 * the packer and the upload need them. Private to this folder. */
#pragma once

#include "agent/store/store.h"
#include "lib/bundle/packer.h"
#include "uploaders/s3/s3_upload.h"

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
/** Write what is learned of the upload. @return 0; -ENOENT: the bundle was cancelled; -errno */
int delivery_s3_ledger_set_upload_id(const DeliveryS3Ledger *l, Store *store,
                                     const char *upload_id);
int delivery_s3_ledger_set_etag(const DeliveryS3Ledger *l, Store *store, unsigned number,
                                const char *etag);
/** Of the parts of the earlier run. */
uint64_t delivery_s3_ledger_bytes(const DeliveryS3Ledger *l);
void delivery_s3_ledger_done(DeliveryS3Ledger *l);
