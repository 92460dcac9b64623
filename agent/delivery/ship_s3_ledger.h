/* Between the ledger's rows and what packer and upload want to know of an earlier run. */
#pragma once

#include "agent/store/ledger.h"
#include "lib/bundle/packer.h"
#include "uploaders/s3/s3.h"

typedef struct ShipS3Rows {
        PackedRow *items;   /* of an earlier run, owned; 0 when there is nothing to go on with */
        S3KnownPart *known; /* the same for the upload */
        size_t n;
        char *upload_id; /* NULL = begin anew */
        /* Where new rows go. */
        char *bundle, *destination;
        bool has_intent;  /* the ledger has it: rows may be written */
        PackedRow *early; /* made before the intent was written; owned */
        size_t n_early;
} ShipS3Rows;

typedef struct ShipS3Wanted { /* borrowed: what the ledger's upload must be to be gone on with */
        const char *bundle, *destination, *key, *signature;
        const uint8_t *plan; /* SHA256_SIZE */
} ShipS3Wanted;

/** Reads the ledger. An upload that does not fit is moved to those to be aborted, and there are no rows. @return 0, -errno of the store */
int ship_s3_rows_load(ShipS3Rows *rows, Store *store, const ShipS3Wanted *wanted);
/** Writes a row down before its part is sent; before the intent was written it is kept for it. Rows of the earlier run are there already. */
int ship_s3_rows_add(ShipS3Rows *rows, Store *store, unsigned number, const PackedRow *row);
/** Writes the intent, and with it what was kept, as one; in memory where the state directory is full or fails. */
int ship_s3_rows_begin(ShipS3Rows *rows, Store *store, const LedgerUpload *upload);
/** Of the parts of the earlier run. */
uint64_t ship_s3_rows_bytes(const ShipS3Rows *rows);
void ship_s3_rows_done(ShipS3Rows *rows);
