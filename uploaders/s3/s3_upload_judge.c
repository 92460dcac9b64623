/* What is under the key, as a HEAD has told, and what follows for the upload: to write, to write over, to leave it alone. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "uploaders/s3/s3_upload_private.h"

#define ROUNDS_MAX 4 /* of looking at who is in the way, and writing again */

/* Deciding by what is there */

typedef enum Look {
        LOOK_WRITE,
        LOOK_WRITE_OVER,
        LOOK_SAME,
        LOOK_EXISTS,
        LOOK_HIDDEN,
        LOOK_DENIED,
        LOOK_STALE,
        LOOK_FAILED
} Look;

static bool may_replace(const S3Upload *u) {
        return u->order.may_replace || u->order.write_over;
}

static Look decide_unseen(const S3Upload *u) {
        bool is_safe = s3_upload_is_conditional(u); /* the server itself will look */

        if (u->state == UPLOAD_TRACE)
                return LOOK_STALE;
        if (u->state == UPLOAD_LOOK && is_safe)
                return LOOK_WRITE;
        if (may_replace(u))
                return LOOK_WRITE_OVER;
        if (u->state == UPLOAD_JUDGE && u->written == S3_EXISTS)
                return LOOK_HIDDEN;
        if (u->state == UPLOAD_JUDGE && u->written == S3_CONFLICT && is_safe)
                return LOOK_WRITE;
        return LOOK_DENIED;
}

static Look decide_by_look(const S3Upload *u) {
        bool is_traced = u->state == UPLOAD_TRACE;

        switch (u->heard.there) {
        case THERE_OURS:
                /* What is to be written over may itself be of this plan and size. */
                if (!u->order.write_over || !u->upload_id)
                        return LOOK_SAME;
                return is_traced ? LOOK_STALE : LOOK_WRITE_OVER;
        case THERE_NOTHING:
                return is_traced ? LOOK_STALE : LOOK_WRITE;
        case THERE_OTHER:
                if (!may_replace(u))
                        return LOOK_EXISTS;
                return is_traced ? LOOK_STALE : LOOK_WRITE_OVER;
        case THERE_FORBIDDEN:
                return decide_unseen(u);
        case THERE_UNKNOWN:
                break;
        }
        return LOOK_FAILED;
}

/* Makes the object visible, after all that had to be looked at. */
static void write_object(S3Upload *u) {
        s3_upload_go(u, u->upload_id ? UPLOAD_COMPLETE : UPLOAD_PUT);
}

static void write_over(S3Upload *u) {
        u->may_write_over = true;
        write_object(u);
}

void s3_upload_after_look(S3Upload *u) {
        switch (decide_by_look(u)) {
        case LOOK_WRITE_OVER:
                if (u->order.guard_key && !u->order.write_over)
                        s3_upload_go(u, UPLOAD_GUARD);
                else
                        write_over(u);
                break;
        case LOOK_WRITE:
                u->may_write_over = u->order.write_over; /* what was there before is not any more */
                write_object(u);
                break;
        case LOOK_SAME:
                (void)snprintf(u->etag, sizeof u->etag, "%s", u->heard.there_etag);
                u->proof = S3_PROOF_HEAD;
                s3_upload_end(u, u->order.write_over ? 0 : UPLOAD_E_SAME);
                break;
        case LOOK_EXISTS:
                s3_upload_end_saying(
                        u, UPLOAD_E_EXISTS,
                        "is there already and is something else: it is not overwritten; move it "
                        "away");
                break;
        case LOOK_HIDDEN:
                s3_upload_end_saying(
                        u, UPLOAD_E_EXISTS,
                        "there is an object already, and looking whether it is ours is "
                        "forbidden: permit s3:GetObject and s3:ListBucket, or move it away");
                break;
        case LOOK_DENIED:
                s3_upload_end_saying(
                        u, UPLOAD_E_DENIED,
                        "cannot be written safely: there may be an object already, and looking is "
                        "forbidden: permit s3:GetObject and s3:ListBucket");
                break;
        case LOOK_STALE:
                s3_upload_end_saying(
                        u, UPLOAD_E_STALE,
                        u->upload_is_gone
                                ? "the upload is not on the server any more: it begins anew"
                                : "another writer was in the way of its end: it begins anew");
                break;
        case LOOK_FAILED:
                s3_upload_end_heard(u, s3_verdict_outcome(u->heard.verdict));
                break;
        }
}

void s3_upload_after_guard(S3Upload *u) {
        switch (u->heard.there) {
        case THERE_NOTHING:
        case THERE_OURS:
                write_over(u);
                break;
        case THERE_OTHER:
                s3_upload_end_saying(
                        u, UPLOAD_E_EXISTS,
                        "a bundle of other content was delivered under this name meanwhile: it "
                        "is not overwritten; move it and its manifest away");
                break;
        case THERE_FORBIDDEN:
                s3_upload_end_saying(
                        u, UPLOAD_E_EXISTS,
                        "there is an object already, and looking whether it has a manifest is "
                        "forbidden: permit s3:GetObject and s3:ListBucket, or move it away");
                break;
        case THERE_UNKNOWN:
                s3_upload_end_heard(u, s3_verdict_outcome(u->heard.verdict));
                break;
        }
}

void s3_upload_look_who_is_there(S3Upload *u) {
        u->written = u->heard.verdict;
        if (++u->n_rounds > ROUNDS_MAX)
                s3_upload_end_heard(u, UPLOAD_E_AWAY);
        else
                s3_upload_go(u, UPLOAD_JUDGE);
}

void s3_upload_after_proof(S3Upload *u) {
        UploadHeard *h = &u->heard;
        uint64_t bytes = upload_parts_bytes(&u->parts);

        if (h->there == THERE_UNKNOWN) {
                s3_upload_end_heard(u, s3_verdict_outcome(h->verdict));
        } else if (h->there == THERE_FORBIDDEN) {
                u->proof = S3_PROOF_RESPONSE;
                s3_upload_end(u, 0);
        } else if (h->there == THERE_OURS && strcmp(h->there_etag, u->etag) == 0) {
                u->proof = S3_PROOF_HEAD;
                s3_upload_end(u, 0);
        } else if (h->there == THERE_NOTHING) {
                s3_upload_end_saying(u, UPLOAD_E_MISMATCH,
                                     "it was accepted, and is not there: it is sent again");
        } else {
                s3_upload_end_saying(u, UPLOAD_E_MISMATCH,
                                     "is not what was sent: %" PRIu64
                                     " bytes with ETag '%s', not %" PRIu64
                                     " with '%s', or of another plan or content",
                                     h->there_bytes, h->there_etag, bytes, u->etag);
        }
}
