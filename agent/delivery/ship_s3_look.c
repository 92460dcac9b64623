/* Whether the bundle is at its destination already: is there a manifest of this plan, and is its object whole? */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "agent/delivery/ship_s3_private.h"
#include "lib/base/parse.h"

#define TRIES 4

static bool end_answer(ShipS3 *x, const S3Answer *answer) {
        return ship_end_upload(&x->ship, s3_verdict_outcome(answer->verdict),
                               answer->sentence ? strdup(answer->sentence) : NULL);
}

static bool note_manifest(ShipS3 *x, const S3Result *result) {
        /* DENIED is also what AWS says of a missing key to those who may not list the bucket */
        x->is_looked_at = result->answer->verdict != S3_DENIED;
        if (!x->is_looked_at || result->answer->verdict == S3_NOT_FOUND)
                return true;
        if (result->answer->verdict != S3_OK)
                return end_answer(x, result->answer);
        _cleanup_free_ char *where = NULL;
        if (asprintf(&where, "s3://%s/%s", s3_client_bucket(x->order.client), x->manifest_key) < 0)
                where = NULL;
        x->is_found = ship_attempt_is_ours(&x->attempt, result->body, result->body_bytes,
                                           where ? where : x->manifest_key, &x->found);
        return x->is_found;
}

static void on_manifest_read(const S3Result *result, void *userdata) {
        ShipS3 *x = userdata;
        x->call = NULL;
        x->has_ended = !note_manifest(x, result);
        ship_s3_next(x);
}

static bool note_object(ShipS3 *x, const S3Result *result) {
        const char *length = result->header(result, "content-length"),
                   *its_plan = result->header(result, S3_PLAN_HEADER);
        uint64_t bytes = 0;
        switch (result->answer->verdict) {
        case S3_OK:
                x->ship.proof = PROOF_HEAD;
                x->is_whole = length && parse_u64(length, &bytes) == 0 && bytes == x->found.bytes &&
                              its_plan && strcmp(its_plan, x->plan_hex) == 0;
                return true;
        case S3_DENIED: /* the manifest is the commit */
                x->ship.proof = PROOF_RESPONSE;
                x->is_whole = true;
                return true;
        case S3_NOT_FOUND:
                return true;
        default:
                return end_answer(x, result->answer);
        }
}

static void on_object_compared(const S3Result *result, void *userdata) {
        ShipS3 *x = userdata;
        x->call = NULL;
        x->has_ended = !note_object(x, result);
        ship_s3_next(x);
}

static bool ask(ShipS3 *x, const S3Order *order) {
        int r = s3_call_new(&x->call, x->order.client, order);
        return r == 0 ||
               ship_endf(&x->ship, SHIP_RESOURCES, "cannot ask the store: %s", strerror(-r));
}

/* There is something: what does it say? */
static bool read_manifest(ShipS3 *x) {
        char range[64];
        (void)snprintf(range, sizeof range, "bytes=0-%u", MANIFEST_HEAD_MAX_BYTES - 1);
        return ask(x, &(S3Order){ .operation = S3_GET_OBJECT,
                                  .key = x->manifest_key,
                                  .headers = &(SignPair){ "Range", range },
                                  .n_headers = 1,
                                  .reply_max_bytes = MANIFEST_HEAD_MAX_BYTES + 1,
                                  .max_tries = TRIES,
                                  .on_done = on_manifest_read,
                                  .userdata = x });
}

static void on_manifest_looked(const S3Result *result, void *userdata) {
        ShipS3 *x = userdata;
        x->call = NULL;
        if (result->answer->verdict == S3_OK)
                x->has_ended = !read_manifest(x);
        else
                x->has_ended = !note_manifest(x, result);
        ship_s3_next(x);
}

bool ship_s3_look(ShipS3 *x) {
        ship_s3_set_state(x, SHIP_S3_LOOKING);
        return ask(x, &(S3Order){ .operation = S3_HEAD_OBJECT,
                                  .key = x->manifest_key,
                                  .max_tries = TRIES,
                                  .on_done = on_manifest_looked,
                                  .userdata = x });
}

bool ship_s3_compare(ShipS3 *x) {
        ship_s3_set_state(x, SHIP_S3_COMPARING);
        return ask(x, &(S3Order){ .operation = S3_HEAD_OBJECT,
                                  .key = x->key,
                                  .max_tries = TRIES,
                                  .on_done = on_object_compared,
                                  .userdata = x });
}
