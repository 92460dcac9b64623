/* One object on its way to S3: the machine, one step at a time. Its states and its end are in s3_upload_state.c, what it asks in
 * s3_upload_asks.c, what it makes of an object that is there in s3_upload_judge.c, what it knows of parts in s3_upload_parts.c.
 *
 *   FIRST ─ ends with part 1 ─────────────────────────────→ PUT ──────→ PROVE
 *     └───→ CREATE ───→ PARTS → LOOK → COMPLETE ──────────────────────→ PROVE
 *   resumed:  LIST ───────┘              │ 412 → JUDGE → again, or the end
 *                                        └ gone, 409 → TRACE → the end, which is ABORT first when an upload is left over
 *   LOOK and JUDGE lead to GUARD before what they saw is replaced. */
#include "uploaders/s3/s3.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "uploaders/s3/s3_upload_private.h"

/* The single PUT */

static void after_put(S3Upload *u) {
        switch (u->heard.verdict) {
        case S3_OK:
                (void)snprintf(u->etag, sizeof u->etag, "%s", u->heard.etag);
                if (u->etag[0])
                        s3_upload_go(u, UPLOAD_PROVE);
                else
                        s3_upload_look_who_is_there(u); /* an answer that proves nothing */
                return;
        case S3_UNCONDITIONAL:
                s3_upload_go(u, UPLOAD_LOOK); /* known from now on: without condition, then */
                return;
        case S3_EXISTS:
        case S3_CONFLICT:
                s3_upload_look_who_is_there(u);
                return;
        default:
                break;
        }
        s3_upload_end_heard(u, s3_verdict_outcome(u->heard.verdict));
}

/* Several parts */

static void after_create(S3Upload *u) {
        int r;

        if (u->heard.verdict != S3_OK) {
                s3_upload_end_heard(u, s3_verdict_outcome(u->heard.verdict));
                return;
        }
        if (!u->upload_id) {
                s3_upload_end_saying(u, UPLOAD_E_AWAY,
                                     "the answer to CreateMultipartUpload has no upload id");
                return;
        }
        r = u->order.on_upload_id(u, u->upload_id, u->order.userdata);
        if (r < 0)
                s3_upload_finish(u, r);
        else
                s3_upload_go(u, UPLOAD_PARTS);
}

static void resume_parts(S3Upload *u) {
        unsigned missing = upload_parts_unlisted(&u->parts);

        if (missing)
                s3_upload_end_saying(u, UPLOAD_E_STALE,
                                     "part %u is not on the server any more: it begins anew",
                                     missing);
        else
                s3_upload_go(u, UPLOAD_PARTS);
}

static void after_list(S3Upload *u) {
        switch (u->heard.verdict) {
        case S3_OK:
                if (u->list_marker)
                        s3_upload_go(u, UPLOAD_LIST);
                else
                        resume_parts(u);
                return;
        case S3_BAD_PART:
                s3_upload_end_saying(
                        u, UPLOAD_E_STALE,
                        "the parts on the server are not those that were sent: it begins anew");
                return;
        case S3_NO_UPLOAD:
                u->upload_is_gone = true;
                if (upload_parts_are_all_there(&u->parts))
                        s3_upload_go(u,
                                     UPLOAD_TRACE); /* the answer of Complete may have been lost */
                else
                        s3_upload_end_heard(u, UPLOAD_E_STALE);
                return;
        case S3_DENIED:
        case S3_REFUSED: /* the ledger alone will do: a part that is not there is found by Complete */
                s3_upload_go(u, UPLOAD_PARTS);
                return;
        default:
                s3_upload_end_heard(u, s3_verdict_outcome(u->heard.verdict));
        }
}

static void want_next(S3Upload *u) {
        unsigned number = upload_parts_next(&u->parts, u->order.max_parts_in_flight);

        if (u->pausing && u->parts.n_jobs == 0 && u->parts.wanted == 0) {
                s3_upload_finish(u, UPLOAD_E_PAUSED);
                return;
        }
        if (number == 0 || u->pausing)
                return;
        if (number > S3_PARTS_MAX) {
                s3_upload_end_saying(u, UPLOAD_E_REFUSED, "needs more than %d parts", S3_PARTS_MAX);
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
                s3_upload_end_heard(u, s3_verdict_outcome(u->heard.verdict));
                return;
        }
        if (upload_parts_are_all_there(&u->parts)) {
                s3_upload_go(u, u->may_write_over ? UPLOAD_COMPLETE : UPLOAD_LOOK);
                return;
        }
        r = send_given(u);
        if (r < 0)
                s3_upload_finish(u, r);
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
                s3_upload_go(u, u->may_write_over || s3_client_has_conditions(u->client)
                                        ? UPLOAD_PUT
                                        : UPLOAD_LOOK);
                return;
        }
        r = u->order.on_begin(u, u->order.userdata);
        if (r < 0)
                s3_upload_finish(u, r);
        else
                s3_upload_go(u, UPLOAD_CREATE);
}

static void after_complete(S3Upload *u) {
        switch (u->heard.verdict) {
        case S3_OK:
                u->upload_is_gone = true;
                (void)snprintf(u->etag, sizeof u->etag, "%s", u->heard.etag);
                s3_upload_go(u, u->etag[0] ? UPLOAD_PROVE : UPLOAD_TRACE);
                return;
        case S3_NO_UPLOAD: /* an earlier try was carried out, and its answer lost; or somebody aborted it */
                u->upload_is_gone = true;
                s3_upload_go(u, UPLOAD_TRACE);
                return;
        case S3_UNCONDITIONAL:
                s3_upload_go(u, UPLOAD_LOOK); /* known from now on: without condition, then */
                return;
        case S3_EXISTS:
                s3_upload_look_who_is_there(u);
                return;
        case S3_REFUSED:
                if (!u->heard.is_malformed || u->omits_checksums)
                        break;
                u->omits_checksums = true;
                s3_upload_go(u, UPLOAD_COMPLETE);
                return;
        case S3_CONFLICT: /* S3 wants the upload to be begun anew; unless it is ours: an earlier try whose answer was lost */
                s3_upload_go(u, UPLOAD_TRACE);
                return;
        default:
                break;
        }
        s3_upload_end_heard(u, s3_verdict_outcome(u->heard.verdict));
}

static void after_abort(S3Upload *u) {
        u->upload_is_gone = u->heard.verdict == S3_OK || u->heard.verdict == S3_NO_UPLOAD;
        s3_upload_finish(u, u->outcome);
}

void s3_upload_step(S3Upload *u) {
        if (u->state == UPLOAD_ENDED || u->call)
                return; /* what is underway will call again */
        if (u->failure < 0) {
                s3_upload_finish(u, u->failure);
                return;
        }
        switch (u->state) {
        case UPLOAD_NEW:
                s3_upload_go(u, u->upload_id ? UPLOAD_LIST : UPLOAD_FIRST);
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
                s3_upload_after_look(u);
                break;
        case UPLOAD_GUARD:
                s3_upload_after_guard(u);
                break;
        case UPLOAD_COMPLETE:
                after_complete(u);
                break;
        case UPLOAD_PROVE:
                s3_upload_after_proof(u);
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
