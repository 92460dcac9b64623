/* What the files of a delivery to S3 share. Nobody else includes this. */
#pragma once

#include "agent/delivery/ship_attempt.h"
#include "agent/delivery/ship_s3.h"
#include "agent/delivery/ship_s3_ledger.h"
#include "lib/bundle/packer.h"

typedef enum ShipS3State {
        SHIP_S3_PLANNING,
        SHIP_S3_LOOKING,
        SHIP_S3_COMPARING,
        SHIP_S3_OPENING,
        SHIP_S3_SENDING,
        SHIP_S3_CLOSING,
        SHIP_S3_PUBLISHING,
        SHIP_S3_ENDED,
        N_SHIP_S3_STATES
} ShipS3State;

/* A part on its way, or a window of the manifest. */
typedef struct ShipS3Buffer {
        S3Part part;
        PackedPart packed;
        uint8_t *window; /* owned */
} ShipS3Buffer;

/* A manifest goes in parts of this size; a window of it is made at a time. */
#define SHIP_S3_WINDOW_BYTES (8 * MIB)

typedef struct ShipS3 {
        ShipJob ship;
        ShipS3Order order;
        char *destination;
        ShipS3State state;
        bool has_ended;  /* ship has its end, or begin_anew is set */
        bool begin_anew; /* not the bundle's fault: what was to be gone on with cannot be */
        unsigned n_plans, n_anew;
        uint64_t sent_bytes; /* of bodies, in tries that have ended */
        sd_event_source *end_source;

        /* one attempt */
        ShipAttempt attempt;
        bool has_attempt;
        char *key, *manifest_key, *signature;
        char plan_hex[SHA256_HEX_SIZE];

        /* looking */
        S3Call *call;
        ManifestHead found;
        bool is_found, is_whole; /* a manifest of this plan; and its object */
        bool is_looked_at;       /* it is known that there is no manifest of another plan */

        /* the object */
        ShipS3Rows rows; /* of the ledger */
        Packer *packer;
        uint64_t packed_bytes,
                packed_stream_bytes; /* so far: of the object, and what of the tar stream that is */
        unsigned n_buffers;
        uint64_t writer_bytes;

        /* the upload, of the object or of the manifest */
        S3Upload *upload;
        sd_event_source *
                turn; /* the machine goes on when the upload has told us, never from inside its callbacks */
        unsigned wanted; /* number of the part it waits for, 0 = none */
        bool upload_done;
        S3UploadResult told; /* its end; error is owned */
        uint64_t manifest_bytes;
        int64_t abort_id; /* of the manifest's upload */

        /* the worker's turn: until it is over the loop only records facts */
        bool working;
        uint64_t work_begun_usec;       /* CLOCK_BOOTTIME */
        bool (*work)(struct ShipS3 *x); /* false: ship has ended */
        bool work_ended;
        unsigned number;    /* of the part to be made */
        ShipS3Buffer *made; /* owned */
} ShipS3;

/* ship_s3.c. Who gets false returns it: ship has its end. */
void ship_s3_set_state(ShipS3 *x, ShipS3State to);
/* Does what the facts call for; after a fact was recorded, never from inside an upload's callback. x may be gone a turn later. */
void ship_s3_next(ShipS3 *x);
bool ship_s3_begin_step(ShipS3 *x, bool (*work)(ShipS3 *x));
bool ship_s3_end_store(ShipS3 *x, int r); /* r: of the store, negative */

/* ship_s3_look.c: into is_found, is_looked_at, is_whole; `call` is there as long as the answer is not. @return false: ship has ended */
bool ship_s3_look(ShipS3 *x);
bool ship_s3_compare(ShipS3 *x);

/* ship_s3_send.c: `upload_done` says that there is something to take. @return false: ship has ended */
bool ship_s3_send_object(ShipS3 *x);
bool ship_s3_publish(ShipS3 *x);
bool ship_s3_feed_upload(
        ShipS3 *x); /* gives it the part that was made, or has one made that is wanted */
bool ship_s3_take_object(ShipS3 *x);
bool ship_s3_take_manifest(ShipS3 *x);

/* ship_s3_steps.c: what the worker does. @return false: ship has ended */
bool ship_s3_plan(ShipS3 *x);
bool ship_s3_open_packer(ShipS3 *x);
bool ship_s3_pack(ShipS3 *x);        /* part `number`, into `made` */
bool ship_s3_close(ShipS3 *x);       /* the members' results, and the manifest's size */
bool ship_s3_make_window(ShipS3 *x); /* of the manifest, into `made` */
void ship_s3_drop_made(ShipS3 *x);

/* ship_s3_memory.c */
bool ship_s3_find_memory(ShipS3 *x);
