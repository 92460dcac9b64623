/* One object on its way to S3: the machine. What it asks is in s3_upload_asks.c, what it knows of parts in s3_upload_parts.c.
 *
 *   FIRST ─ ends with part 1 ─────────────────────────────→ PUT ──────→ PROVE
 *     └───→ CREATE ───→ PARTS → LOOK → COMPLETE ──────────────────────→ PROVE
 *   resumed:  LIST ───────┘              │ 412 → JUDGE → again, or the end
 *                                        └ gone, 409 → TRACE → the end, which is ABORT first when an upload is left over
 *   LOOK and JUDGE lead to GUARD before what they saw is replaced. */
#include "uploaders/s3.h"

#include <errno.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "lib/base/log.h"
#include "lib/base/strbuf.h"
#include "uploaders/s3_upload_private.h"

#define ROUNDS_MAX 4 /* of looking at who is in the way, and writing again */

/* The state */

static const char *state_name(UploadState state) {
        static const char *const names[N_UPLOAD_STATES] = {
                [UPLOAD_NEW] = "new",     [UPLOAD_FIRST] = "first",
                [UPLOAD_PUT] = "put",     [UPLOAD_CREATE] = "create",
                [UPLOAD_LIST] = "list",   [UPLOAD_PARTS] = "parts",
                [UPLOAD_LOOK] = "look",   [UPLOAD_COMPLETE] = "complete",
                [UPLOAD_JUDGE] = "judge", [UPLOAD_TRACE] = "trace",
                [UPLOAD_PROVE] = "prove", [UPLOAD_ABORT] = "abort",
                [UPLOAD_ENDED] = "ended", [UPLOAD_GUARD] = "guard",
        };

        return names[state];
}

#define TO(state) (1U << (state))
#define TO_END (TO(UPLOAD_ABORT) | TO(UPLOAD_ENDED))
static const unsigned moves[N_UPLOAD_STATES] = {
        [UPLOAD_NEW] = TO(UPLOAD_FIRST) | TO(UPLOAD_LIST) | TO_END,
        [UPLOAD_FIRST] = TO(UPLOAD_PUT) | TO(UPLOAD_LOOK) | TO(UPLOAD_CREATE) | TO_END,
        [UPLOAD_PUT] = TO(UPLOAD_LOOK) | TO(UPLOAD_JUDGE) | TO(UPLOAD_PROVE) | TO_END,
        [UPLOAD_CREATE] = TO(UPLOAD_PARTS) | TO_END,
        [UPLOAD_LIST] = TO(UPLOAD_LIST) | TO(UPLOAD_PARTS) | TO(UPLOAD_TRACE) | TO_END,
        [UPLOAD_PARTS] = TO(UPLOAD_LOOK) | TO(UPLOAD_COMPLETE) | TO_END,
        [UPLOAD_LOOK] = TO(UPLOAD_PUT) | TO(UPLOAD_COMPLETE) | TO(UPLOAD_GUARD) | TO_END,
        [UPLOAD_COMPLETE] = TO(UPLOAD_COMPLETE) | TO(UPLOAD_LOOK) | TO(UPLOAD_JUDGE) |
                            TO(UPLOAD_TRACE) | TO(UPLOAD_PROVE) | TO_END,
        [UPLOAD_JUDGE] = TO(UPLOAD_PUT) | TO(UPLOAD_COMPLETE) | TO(UPLOAD_GUARD) | TO_END,
        [UPLOAD_GUARD] = TO(UPLOAD_PUT) | TO(UPLOAD_COMPLETE) | TO_END,
        [UPLOAD_TRACE] = TO_END,
        [UPLOAD_PROVE] = TO_END,
        [UPLOAD_ABORT] = TO(UPLOAD_ENDED),
};

/* @return false: there is no such move, which is a fault of ours; nothing has changed */
static bool set_state(S3Upload *u, UploadState state) {
        bool may = moves[u->state] & TO(state);

        log_debug("upload of '%s': %s %s %s", u->order.key, state_name(u->state),
                  may ? "→" : "does not lead to", state_name(state));
        if (may)
                u->state = state;
        return may;
}

/* The end */

static const char *error_of(const S3Upload *u, int outcome) {
        if (outcome == 0 || outcome == UPLOAD_E_SAME || outcome == UPLOAD_E_PAUSED)
                return NULL;
        if (outcome < 0)
                return strerror(-outcome);
        return u->error ? u->error : "out of memory";
}

/* The one way out. */
static void finish(S3Upload *u, int outcome) {
        const S3UploadResult result = {
                .outcome = outcome,
                .error = error_of(u, outcome),
                .proof = u->proof,
                .bytes = upload_parts_bytes(&u->parts),
                .etag = u->etag,
                .is_upload_left = u->has_strays || (u->state == UPLOAD_ABORT && !u->upload_is_gone),
        };

        upload_parts_drop_jobs(&u->parts);
        u->call = s3_call_cancel(u->call);
        if (!set_state(u, UPLOAD_ENDED))
                return; /* it has told */
        u->order.on_done(&result, u->order.userdata);
}

/* Whether nobody will go on with the upload, so that it is not left to be paid for. */
static bool is_left_over(const S3Upload *u, int outcome) {
        if (!u->upload_id || u->upload_is_gone)
                return false;
        return outcome == UPLOAD_E_SAME || outcome == UPLOAD_E_EXISTS ||
               outcome == UPLOAD_E_STALE || outcome == UPLOAD_E_REFUSED;
}

static void go(S3Upload *u, UploadState state);

static void end(S3Upload *u, int outcome) {
        if (!is_left_over(u, outcome)) {
                finish(u, outcome);
                return;
        }
        upload_parts_drop_jobs(&u->parts);
        u->outcome = outcome;
        go(u, UPLOAD_ABORT);
}

/* Ends with a sentence of our own, about the object. */
static void _printf_(3, 4) end_saying(S3Upload *u, int outcome, const char *fmt, ...) {
        StrBuf text = STRBUF_INIT;
        char what[256];
        va_list args;

        va_start(args, fmt);
        (void)vsnprintf(what, sizeof what, fmt, args);
        va_end(args);
        strbuf_addf(&text, "'s3://%s/%s': %s", s3_client_bucket(u->client), u->order.key, what);
        free(u->error);
        u->error = strbuf_take(&text);
        end(u, outcome);
}

/* Ends with what the server said. */
static void end_heard(S3Upload *u, int outcome) {
        free(u->error);
        u->error = TAKE_PTR(u->heard.sentence);
        end(u, outcome);
}

/* Beginning a request */

static bool is_conditional(const S3Upload *u) {
        return !u->may_write_over && s3_client_has_conditions(u->client);
}

static void go(S3Upload *u, UploadState state) {
        int r = 0;

        if (!set_state(u, state)) {
                finish(u, -EPROTO);
                return;
        }
        switch (state) {
        case UPLOAD_PUT:
                r = s3_upload_ask_put(u, is_conditional(u));
                break;
        case UPLOAD_CREATE:
                r = s3_upload_ask_create(u);
                break;
        case UPLOAD_LIST:
                r = s3_upload_ask_list(u);
                break;
        case UPLOAD_LOOK:
        case UPLOAD_JUDGE:
        case UPLOAD_TRACE:
        case UPLOAD_PROVE:
                r = s3_upload_ask_head(u);
                break;
        case UPLOAD_GUARD:
                r = s3_upload_ask_guard(u);
                break;
        case UPLOAD_COMPLETE:
                r = s3_upload_ask_complete(u, is_conditional(u));
                break;
        case UPLOAD_ABORT:
                r = s3_upload_ask_abort(u);
                break;
        default:
                s3_upload_step(u); /* nothing to wait for */
                return;
        }
        if (r < 0)
                finish(u, r);
}

/* Makes the object visible, after all that had to be looked at. */
static void write_object(S3Upload *u) {
        go(u, u->upload_id ? UPLOAD_COMPLETE : UPLOAD_PUT);
}

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
        bool is_safe = is_conditional(u); /* the server itself will look */

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

static void write_over(S3Upload *u) {
        u->may_write_over = true;
        write_object(u);
}

static void after_look(S3Upload *u) {
        switch (decide_by_look(u)) {
        case LOOK_WRITE_OVER:
                if (u->order.guard_key && !u->order.write_over)
                        go(u, UPLOAD_GUARD);
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
                end(u, u->order.write_over ? 0 : UPLOAD_E_SAME);
                break;
        case LOOK_EXISTS:
                end_saying(u, UPLOAD_E_EXISTS,
                           "is there already and is something else: it is not overwritten; move it "
                           "away");
                break;
        case LOOK_HIDDEN:
                end_saying(u, UPLOAD_E_EXISTS,
                           "there is an object already, and looking whether it is ours is "
                           "forbidden: permit s3:GetObject and s3:ListBucket, or move it away");
                break;
        case LOOK_DENIED:
                end_saying(
                        u, UPLOAD_E_DENIED,
                        "cannot be written safely: there may be an object already, and looking is "
                        "forbidden: permit s3:GetObject and s3:ListBucket");
                break;
        case LOOK_STALE:
                end_saying(u, UPLOAD_E_STALE,
                           u->upload_is_gone
                                   ? "the upload is not on the server any more: it begins anew"
                                   : "another writer was in the way of its end: it begins anew");
                break;
        case LOOK_FAILED:
                end_heard(u, s3_verdict_outcome(u->heard.verdict));
                break;
        }
}

static void after_guard(S3Upload *u) {
        switch (u->heard.there) {
        case THERE_NOTHING:
        case THERE_OURS:
                write_over(u);
                break;
        case THERE_OTHER:
                end_saying(u, UPLOAD_E_EXISTS,
                           "a bundle of other content was delivered under this name meanwhile: it "
                           "is not overwritten; move it and its manifest away");
                break;
        case THERE_FORBIDDEN:
                end_saying(u, UPLOAD_E_EXISTS,
                           "there is an object already, and looking whether it has a manifest is "
                           "forbidden: permit s3:GetObject and s3:ListBucket, or move it away");
                break;
        case THERE_UNKNOWN:
                end_heard(u, s3_verdict_outcome(u->heard.verdict));
                break;
        }
}

/* Somebody was quicker, or an answer of ours was lost: HEAD tells. */
static void look_who_is_there(S3Upload *u) {
        u->written = u->heard.verdict;
        if (++u->n_rounds > ROUNDS_MAX)
                end_heard(u, UPLOAD_E_AWAY);
        else
                go(u, UPLOAD_JUDGE);
}

static void after_proof(S3Upload *u) {
        UploadHeard *h = &u->heard;
        uint64_t bytes = upload_parts_bytes(&u->parts);

        if (h->there == THERE_UNKNOWN) {
                end_heard(u, s3_verdict_outcome(h->verdict));
        } else if (h->there == THERE_FORBIDDEN) {
                u->proof = S3_PROOF_RESPONSE;
                end(u, 0);
        } else if (h->there == THERE_OURS && strcmp(h->there_etag, u->etag) == 0) {
                u->proof = S3_PROOF_HEAD;
                end(u, 0);
        } else if (h->there == THERE_NOTHING) {
                end_saying(u, UPLOAD_E_MISMATCH,
                           "it was accepted, and is not there: it is sent again");
        } else {
                end_saying(u, UPLOAD_E_MISMATCH,
                           "is not what was sent: %" PRIu64 " bytes with ETag '%s', not %" PRIu64
                           " with '%s', or of another plan or content",
                           h->there_bytes, h->there_etag, bytes, u->etag);
        }
}

/* The single PUT */

static void after_put(S3Upload *u) {
        switch (u->heard.verdict) {
        case S3_OK:
                (void)snprintf(u->etag, sizeof u->etag, "%s", u->heard.etag);
                if (u->etag[0])
                        go(u, UPLOAD_PROVE);
                else
                        look_who_is_there(u); /* an answer that proves nothing */
                return;
        case S3_UNCONDITIONAL:
                go(u, UPLOAD_LOOK); /* known from now on: without condition, then */
                return;
        case S3_EXISTS:
        case S3_CONFLICT:
                look_who_is_there(u);
                return;
        default:
                break;
        }
        end_heard(u, s3_verdict_outcome(u->heard.verdict));
}

/* Several parts */

static void after_create(S3Upload *u) {
        int r;

        if (u->heard.verdict != S3_OK) {
                end_heard(u, s3_verdict_outcome(u->heard.verdict));
                return;
        }
        if (!u->upload_id) {
                end_saying(u, UPLOAD_E_AWAY,
                           "the answer to CreateMultipartUpload has no upload id");
                return;
        }
        r = u->order.on_upload_id(u, u->upload_id, u->order.userdata);
        if (r < 0)
                finish(u, r);
        else
                go(u, UPLOAD_PARTS);
}

static void resume_parts(S3Upload *u) {
        unsigned missing = upload_parts_unlisted(&u->parts);

        if (missing)
                end_saying(u, UPLOAD_E_STALE,
                           "part %u is not on the server any more: it begins anew", missing);
        else
                go(u, UPLOAD_PARTS);
}

static void after_list(S3Upload *u) {
        switch (u->heard.verdict) {
        case S3_OK:
                if (u->list_marker)
                        go(u, UPLOAD_LIST);
                else
                        resume_parts(u);
                return;
        case S3_BAD_PART:
                end_saying(u, UPLOAD_E_STALE,
                           "the parts on the server are not those that were sent: it begins anew");
                return;
        case S3_NO_UPLOAD:
                u->upload_is_gone = true;
                if (upload_parts_are_all_there(&u->parts))
                        go(u, UPLOAD_TRACE); /* the answer of Complete may have been lost */
                else
                        end_heard(u, UPLOAD_E_STALE);
                return;
        case S3_DENIED:
        case S3_REFUSED: /* the ledger alone will do: a part that is not there is found by Complete */
                go(u, UPLOAD_PARTS);
                return;
        default:
                end_heard(u, s3_verdict_outcome(u->heard.verdict));
        }
}

static void want_next(S3Upload *u) {
        unsigned number = upload_parts_next(&u->parts, u->order.max_parts_in_flight);

        if (u->pausing && u->parts.n_jobs == 0 && u->parts.wanted == 0) {
                finish(u, UPLOAD_E_PAUSED);
                return;
        }
        if (number == 0 || u->pausing)
                return;
        if (number > S3_PARTS_MAX) {
                end_saying(u, UPLOAD_E_REFUSED, "needs more than %d parts", S3_PARTS_MAX);
                return;
        }
        u->parts.wanted = number;
        u->order.on_want(u, number, u->order.userdata);
}

/* Parts that were given and are not on their way yet. @return 0, -errno */
static int send_given(S3Upload *u) {
        int r = 0;

        LIST_FOREACH (link, &u->parts.jobs) {
                UploadJob *job = CONTAINER_OF(link, UploadJob, link);

                if (r == 0 && !job->call)
                        r = s3_upload_ask_part(job);
        }
        return r;
}

static void step_parts(S3Upload *u) {
        int r;

        if (u->part_failed) {
                u->upload_is_gone = u->heard.verdict == S3_NO_UPLOAD;
                end_heard(u, s3_verdict_outcome(u->heard.verdict));
                return;
        }
        if (upload_parts_are_all_there(&u->parts)) {
                go(u, u->may_write_over ? UPLOAD_COMPLETE : UPLOAD_LOOK);
                return;
        }
        r = send_given(u);
        if (r < 0)
                finish(u, r);
        else
                want_next(u);
}

static void step_first(S3Upload *u) {
        int r;

        if (u->parts.n_jobs == 0) {
                want_next(u);
                return;
        }
        if (u->parts.last == 1) {
                go(u, u->may_write_over || s3_client_has_conditions(u->client) ? UPLOAD_PUT
                                                                               : UPLOAD_LOOK);
                return;
        }
        r = u->order.on_begin(u, u->order.userdata);
        if (r < 0)
                finish(u, r);
        else
                go(u, UPLOAD_CREATE);
}

static void after_complete(S3Upload *u) {
        switch (u->heard.verdict) {
        case S3_OK:
                u->upload_is_gone = true;
                (void)snprintf(u->etag, sizeof u->etag, "%s", u->heard.etag);
                go(u, u->etag[0] ? UPLOAD_PROVE : UPLOAD_TRACE);
                return;
        case S3_NO_UPLOAD: /* an earlier try was carried out, and its answer lost; or somebody aborted it */
                u->upload_is_gone = true;
                go(u, UPLOAD_TRACE);
                return;
        case S3_UNCONDITIONAL:
                go(u, UPLOAD_LOOK); /* known from now on: without condition, then */
                return;
        case S3_EXISTS:
                look_who_is_there(u);
                return;
        case S3_REFUSED:
                if (!u->heard.is_malformed || u->omits_checksums)
                        break;
                u->omits_checksums = true;
                go(u, UPLOAD_COMPLETE);
                return;
        case S3_CONFLICT: /* S3 wants the upload to be begun anew; unless it is ours: an earlier try whose answer was lost */
                go(u, UPLOAD_TRACE);
                return;
        default:
                break;
        }
        end_heard(u, s3_verdict_outcome(u->heard.verdict));
}

static void after_abort(S3Upload *u) {
        u->upload_is_gone = u->heard.verdict == S3_OK || u->heard.verdict == S3_NO_UPLOAD;
        finish(u, u->outcome);
}

void s3_upload_step(S3Upload *u) {
        if (u->state == UPLOAD_ENDED || u->call)
                return; /* what is underway will call again */
        if (u->failure < 0) {
                finish(u, u->failure);
                return;
        }
        switch (u->state) {
        case UPLOAD_NEW:
                go(u, u->upload_id ? UPLOAD_LIST : UPLOAD_FIRST);
                break;
        case UPLOAD_FIRST:
                step_first(u);
                break;
        case UPLOAD_PUT:
                after_put(u);
                break;
        case UPLOAD_CREATE:
                after_create(u);
                break;
        case UPLOAD_LIST:
                after_list(u);
                break;
        case UPLOAD_PARTS:
                step_parts(u);
                break;
        case UPLOAD_LOOK:
        case UPLOAD_JUDGE:
        case UPLOAD_TRACE:
                after_look(u);
                break;
        case UPLOAD_GUARD:
                after_guard(u);
                break;
        case UPLOAD_COMPLETE:
                after_complete(u);
                break;
        case UPLOAD_PROVE:
                after_proof(u);
                break;
        case UPLOAD_ABORT:
                after_abort(u);
                break;
        case UPLOAD_ENDED:
        case N_UPLOAD_STATES:
                break;
        }
}

/* The parent's side */

static int on_kick(sd_event_source *source, void *userdata) {
        (void)source;
        s3_upload_step(userdata);
        return 0;
}

static void kick(S3Upload *u) {
        (void)sd_event_source_set_enabled(u->kick,
                                          SD_EVENT_ONESHOT); /* fails for no valid source */
}

static int copy_order(S3Upload *u, const S3UploadOrder *order) {
        u->order = *order;
        u->order.max_parts_in_flight = MAX(order->max_parts_in_flight, 1U);
        u->order.parts = NULL;
        u->order.upload_id = NULL;
        u->order.key = strdup(order->key);
        u->order.content_type = strdup(order->content_type ? order->content_type : "");
        u->order.plan_hex = strdup(order->plan_hex);
        u->order.guard_key = order->guard_key ? strdup(order->guard_key) : NULL;
        u->may_write_over = order->write_over;
        u->upload_id = order->upload_id ? strdup(order->upload_id) : NULL;
        if (!u->order.key || !u->order.content_type || !u->order.plan_hex ||
            (order->guard_key && !u->order.guard_key) || (order->upload_id && !u->upload_id))
                return -ENOMEM;
        return upload_parts_init(&u->parts, order);
}

int s3_upload_new(S3Upload **ret, S3Client *client, const S3UploadOrder *order) {
        _cleanup_(s3_upload_freep) S3Upload *u = calloc(1, sizeof *u);
        int r;

        if (!u)
                return -ENOMEM;
        u->client = client;
        r = copy_order(u, order);
        if (r < 0)
                return r;
        r = sd_event_add_defer(s3_client_event(client), &u->kick, on_kick, u);
        if (r < 0)
                return r;
        *ret = TAKE_PTR(u);
        return 0;
}

void s3_upload_give(S3Upload *u, S3Part *part) {
        if (u->state == UPLOAD_ENDED || u->state == UPLOAD_ABORT) {
                part->release(part);
                return;
        }
        int r = upload_parts_give(&u->parts, u, part);
        if (r < 0)
                u->failure = r;
        kick(u); /* not from inside: the caller may be in on_want */
}

void s3_upload_pause(S3Upload *u) {
        u->pausing = true;
        kick(u);
}

S3Upload *s3_upload_free(S3Upload *u) {
        if (!u)
                return NULL;
        s3_call_cancel(u->call);
        upload_parts_done(&u->parts);
        sd_event_source_disable_unref(u->kick);
        s3_upload_heard_done(&u->heard);
        free((char *)u->order.key);
        free((char *)u->order.content_type);
        free((char *)u->order.plan_hex);
        free((char *)u->order.guard_key);
        free(u->upload_id);
        free(u->body);
        free(u->error);
        free(u);
        return NULL;
}

uint64_t s3_upload_sent_bytes(const S3Upload *u) {
        uint64_t bytes = u->parts.there_bytes;

        if (u->etag[0])
                return upload_parts_bytes(&u->parts); /* it was accepted as a whole */
        if (u->call && u->state == UPLOAD_PUT)
                return s3_call_sent_bytes(u->call);
        LIST_FOREACH (link, &u->parts.jobs) {
                const UploadJob *job = CONTAINER_OF(link, UploadJob, link);

                if (job->call)
                        bytes += s3_call_sent_bytes(job->call);
        }
        return bytes;
}
