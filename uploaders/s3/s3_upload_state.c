/* The states of an upload, the moves between them, and its end. Which state comes next is others' business: s3.c, s3_upload_judge.c. */
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "lib/base/log.h"
#include "lib/base/strbuf.h"
#include "uploaders/s3/s3_upload_private.h"

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

void s3_upload_finish(S3Upload *u, int outcome) {
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

void s3_upload_end(S3Upload *u, int outcome) {
        if (!is_left_over(u, outcome)) {
                s3_upload_finish(u, outcome);
                return;
        }
        upload_parts_drop_jobs(&u->parts);
        u->outcome = outcome;
        s3_upload_go(u, UPLOAD_ABORT);
}

void s3_upload_end_saying(S3Upload *u, int outcome, const char *fmt, ...) {
        StrBuf text = STRBUF_INIT;
        char what[256];
        va_list args;

        va_start(args, fmt);
        (void)vsnprintf(what, sizeof what, fmt, args);
        va_end(args);
        strbuf_addf(&text, "'s3://%s/%s': %s", s3_client_bucket(u->client), u->order.key, what);
        free(u->error);
        u->error = strbuf_take(&text);
        s3_upload_end(u, outcome);
}

void s3_upload_end_heard(S3Upload *u, int outcome) {
        free(u->error);
        u->error = TAKE_PTR(u->heard.sentence);
        s3_upload_end(u, outcome);
}

/* Beginning a request */

bool s3_upload_is_conditional(const S3Upload *u) {
        return !u->may_write_over && s3_client_has_conditions(u->client);
}

void s3_upload_go(S3Upload *u, UploadState state) {
        int r = 0;

        if (!set_state(u, state)) {
                s3_upload_finish(u, -EPROTO);
                return;
        }
        switch (state) {
        case UPLOAD_PUT:
                r = s3_upload_ask_put(u, s3_upload_is_conditional(u));
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
                r = s3_upload_ask_complete(u, s3_upload_is_conditional(u));
                break;
        case UPLOAD_ABORT:
                r = s3_upload_ask_abort(u);
                break;
        default:
                s3_upload_step(u); /* nothing to wait for */
                return;
        }
        if (r < 0)
                s3_upload_finish(u, r);
}
