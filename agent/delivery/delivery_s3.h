/* A delivery to S3: plan, a look for an earlier run's manifest, the ledger, the object, the manifest. A state machine on the loop; what reads
 * and packs are steps in the destination's own worker. After a crash it goes on from the ledger. */
#pragma once

#include "agent/delivery/delivery.h"
#include "agent/store/ledger.h"
#include "lib/bundle/packer.h"
#include "uploaders/s3/s3.h"

typedef struct DeliveryS3Options { /* borrowed; all of it outlives the job */
        sd_event *event;
        S3Client *client;
        Store *store;
        Clock *clock;
        WorkerPool *worker;      /* one thread: plans and packs */
        const char *destination; /* its name */
        uint64_t part_size;
        unsigned connections;
        unsigned n_compressors;
        /* Asks for more memory than was reserved, before anything was packed; d->memory_bytes is set when it is granted.
         * @return 0; -EAGAIN not now; -EOVERFLOW never: *ret_limit is what there is */
        int (*reserve)(Delivery *d, uint64_t bytes, uint64_t *ret_limit);
} DeliveryS3Options;

int delivery_s3_new(Delivery **ret, const DeliveryRequest *order, const DeliveryS3Options *s3);
/** @return 0; on_done comes later, never from inside. -errno: nothing was begun */
int delivery_s3_start(Delivery *d);
/** Ends it soon: on_done says RESULT_ABORTED. The upload can be gone on with. */
void delivery_s3_abort(Delivery *d);
/** Ends it as soon as nothing that is under way would have to be sent again: no further part is made. on_done says RESULT_ABORTED, or that it was
 * delivered when little was missing. */
void delivery_s3_wind_down(Delivery *d);
/** Brings sent_bytes and done_bytes up to date. */
void delivery_s3_refresh(Delivery *d);
/**
 * Whose move it is: the store's while it is asked for anything, else that of the worker, which plans, reads and packs.
 * @param ret_since_usec  CLOCK_BOOTTIME, since when; 0: it goes on in this turn of the loop  @return whether it is the store's
 */
bool delivery_s3_awaits_store(const Delivery *d, uint64_t *ret_since_usec);
/** Its worker hangs and is left behind, and so is the job: what it has on the loop is taken away, so that it cannot speak into the delivery
 * that follows it. */
void delivery_s3_abandon(Delivery *d);
/** No worker may be in it any more. What was underway on the server stays, the ledger knows it. */
Delivery *delivery_s3_free(Delivery *d);

typedef struct DeliveryS3Memory {
        uint64_t bytes, part_bytes; /* in all; the largest buffer of a part */
        unsigned connections;
        int level; /* of compression */
        unsigned n_compressors;
} DeliveryS3Memory;

/** Splits memory between the writer and the buffers of parts. Pure.
 * @return how many buffers there may be: connections + 1, fewer where memory is short, 0 when not even two fit; *ret_writer_bytes is what is
 * left for the writer */
unsigned delivery_s3_buffers(const DeliveryS3Memory *m, uint64_t *ret_writer_bytes);
/** The least that such a bundle needs. */
uint64_t delivery_s3_memory_min(uint64_t part_bytes, int level);

/* Between the ledger's rows and what packer and upload want to know of an earlier run. */
typedef struct DeliveryS3Ledger {
        PackedRow *items;   /* of an earlier run, owned; 0 when there is nothing to go on with */
        S3KnownPart *known; /* the same for the upload */
        size_t n;
        char *upload_id; /* NULL = begin anew */
        /* Where new rows go. */
        char *bundle, *destination;
        bool has_intent;  /* the ledger has it: rows may be written */
        PackedRow *early; /* made before the intent was written; owned */
        size_t n_early;
} DeliveryS3Ledger;

typedef struct
        DeliveryS3Expected { /* borrowed: what the ledger's upload must be to be gone on with */
        const char *bundle, *destination, *key, *signature;
        const uint8_t *plan; /* SHA256_SIZE */
} DeliveryS3Expected;

/** Reads the ledger. An upload that does not fit is moved to those to be aborted, and there are no rows. @return 0, -errno of the store */
int delivery_s3_ledger_load(DeliveryS3Ledger *l, Store *store, const DeliveryS3Expected *wanted);
/** Writes a row down before its part is sent; before the intent was written it is kept for it. Rows of the earlier run are there already. */
int delivery_s3_ledger_add_part(DeliveryS3Ledger *l, Store *store, unsigned number,
                                const PackedRow *row);
/** Writes the intent, and with it what was kept, as one; in memory where the state directory is full or fails. */
int delivery_s3_ledger_start(DeliveryS3Ledger *l, Store *store, const LedgerUpload *upload);
/** Of the parts of the earlier run. */
uint64_t delivery_s3_ledger_bytes(const DeliveryS3Ledger *l);
void delivery_s3_ledger_done(DeliveryS3Ledger *l);
