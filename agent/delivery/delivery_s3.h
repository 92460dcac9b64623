/* A delivery to S3: plan, check for an earlier run's manifest, ledger, object, manifest. A state
 * machine on the loop; what reads and packs runs in the destination's worker. After a crash it
 * resumes from the ledger. */
#pragma once

#include "agent/delivery/delivery.h"
#include "agent/store/ledger.h"
#include "lib/bundle/packer.h"
#include "uploaders/s3/s3_upload.h"

typedef struct DeliveryS3Options { /* borrowed; all of it outlives the delivery */
        sd_event *event;
        S3Client *client;
        Store *store;
        Clock *clock;
        WorkerPool *worker;      /* one thread: plans and packs */
        const char *destination; /* its name */
        uint64_t part_size;
        unsigned connections;
        unsigned n_compressors;
        /* Reserves more memory, before anything was packed; sets d->memory_bytes.
         * @return 0; -EAGAIN not now; -EOVERFLOW never: *ret_limit is what there is */
        int (*reserve)(Delivery *d, uint64_t bytes, uint64_t *ret_limit);
} DeliveryS3Options;

int delivery_s3_new(Delivery **ret, const DeliveryRequest *request,
                    const DeliveryS3Options *options);
/** @return 0; on_done is called later, never from inside. -errno: nothing was started */
int delivery_s3_start(Delivery *d);
/** Ends it soon with RESULT_ABORTED; the upload can be resumed. */
void delivery_s3_abort(Delivery *d);
/** Ends it as soon as nothing would have to be sent again; it may be delivered when little was
 * missing. */
void delivery_s3_wind_down(Delivery *d);
/** Updates sent_bytes and done_bytes. */
void delivery_s3_refresh(Delivery *d);
/** @param ret_since_usec  CLOCK_BOOTTIME; 0: it continues in this turn of the loop
 * @return whether it waits for the store; else for the worker */
bool delivery_s3_awaits_store(const Delivery *d, uint64_t *ret_since_usec);
/** Its worker hangs and is left behind with it: releases what it has on the loop. */
void delivery_s3_abandon(Delivery *d);
/** No worker may be in it any more. What is on the server stays: the ledger knows it. */
Delivery *delivery_s3_free(Delivery *d);

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

/* ---- the ledger: its rows as the packer and the upload need them. Exported for the tests ---- */

typedef struct DeliveryS3Ledger {
        PackedRow *items;   /* of an earlier run, owned; 0 when there is nothing to resume */
        S3KnownPart *known; /* the same for the upload */
        size_t n;
        char *upload_id; /* NULL = a new upload */
        /* New rows. */
        char *bundle, *destination;
        bool has_intent;  /* it is in the store: rows may be written */
        PackedRow *early; /* built before the intent was written; owned */
        size_t n_early;
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
