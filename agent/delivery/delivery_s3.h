/* A delivery to S3: plan, a look for an earlier run's manifest, the ledger, the object, the manifest. A state machine on the loop; what reads
 * and packs are steps in the destination's own worker. After a crash it goes on from the ledger. */
#pragma once

#include "agent/delivery/delivery.h"
#include "agent/store/ledger.h"
#include "lib/bundle/packer.h"
#include "uploaders/s3/s3.h"

typedef struct ShipS3Order { /* borrowed; all of it outlives the job */
        sd_event *event;
        S3Client *client;
        Store *store;
        Clock *clock;
        WorkerPool *worker;      /* one thread: plans and packs */
        const char *destination; /* its name */
        uint64_t part_size;
        unsigned connections;
        unsigned n_compressors;
        /* Asks for more memory than was reserved, before anything was packed; ship->memory_bytes is set when it is granted.
         * @return 0; -EAGAIN not now; -EOVERFLOW never: *ret_limit is what there is */
        int (*reserve)(ShipJob *ship, uint64_t bytes, uint64_t *ret_limit);
} ShipS3Order;

int ship_s3_new(ShipJob **ret, const ShipOrder *order, const ShipS3Order *s3);
/** @return 0; on_done comes later, never from inside. -errno: nothing was begun */
int ship_s3_begin(ShipJob *s);
/** Ends it soon: on_done says SHIP_ABORTED. The upload can be gone on with. */
void ship_s3_abort(ShipJob *s);
/** Ends it as soon as nothing that is under way would have to be sent again: no further part is made. on_done says SHIP_ABORTED, or that it was
 * delivered when little was missing. */
void ship_s3_wind_down(ShipJob *s);
/** Brings sent_bytes and done_bytes up to date. */
void ship_s3_refresh(ShipJob *s);
/**
 * Whose move it is: the store's while it is asked for anything, else that of the worker, which plans, reads and packs.
 * @param ret_since_usec  CLOCK_BOOTTIME, since when; 0: it goes on in this turn of the loop  @return whether it is the store's
 */
bool ship_s3_awaits_store(const ShipJob *s, uint64_t *ret_since_usec);
/** Its worker hangs and is left behind, and so is the job: what it has on the loop is taken away, so that it cannot speak into the delivery
 * that follows it. */
void ship_s3_leave(ShipJob *s);
/** No worker may be in it any more. What was underway on the server stays, the ledger knows it. */
ShipJob *ship_s3_free(ShipJob *s);

typedef struct ShipS3Memory {
        uint64_t bytes, part_bytes; /* in all; the largest buffer of a part */
        unsigned connections;
        int level; /* of compression */
        unsigned n_compressors;
} ShipS3Memory;

/** Splits memory between the writer and the buffers of parts. Pure.
 * @return how many buffers there may be: connections + 1, fewer where memory is short, 0 when not even two fit; *ret_writer_bytes is what is
 * left for the writer */
unsigned ship_s3_buffers(const ShipS3Memory *m, uint64_t *ret_writer_bytes);
/** The least that such a bundle needs. */
uint64_t ship_s3_memory_min(uint64_t part_bytes, int level);

/* Between the ledger's rows and what packer and upload want to know of an earlier run. */
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
