/* What an answer means to a call, what the client learns from it, and what is to be done next. */
#include <string.h>

#include "lib/base/log.h"
#include "uploaders/s3/s3_client_private.h"

void s3_call_judge(S3Call *call, const HttpReply *reply, S3Answer *ret) {
        S3Client *c = call->client;
        bool has_id = http_reply_header(reply, "x-amz-request-id") ||
                      http_reply_header(reply, "x-amz-id-2");

        c->has_request_ids |= has_id;
        const S3AnswerInput in = {
                .operation = call->order.operation,
                .is_conditional = call->order.is_conditional,
                .is_foreign = c->has_request_ids && !has_id,
                .http_error = reply->error,
                .http_text = reply->text,
                .status = reply->status,
                .body = reply->body ? reply->body : "",
                .body_bytes = reply->body ? reply->body_bytes : 0,
                .retry_after = http_reply_header(reply, "retry-after"),
                .date = http_reply_header(reply, "date"),
                .now_usec = call->signed_usec,
                .bucket_region = http_reply_header(reply, "x-amz-bucket-region"),
                .bucket = c->options.bucket,
                .key = call->order.key,
                .region = call->region,
                .host = c->place.host,
                .credentials_origin = credentials_origin(c->credentials),
                .expected_owner = c->options.expected_bucket_owner,
        };

        if (s3_answer_judge(&in, ret) < 0)
                *ret = (S3Answer){ .verdict = S3_RETRY };
}

static CallNext try_after_failure(S3Call *call) {
        if (call->was_handed_out || ++call->n_failures >= MAX(call->order.max_tries, 1U))
                return NEXT_END;
        return NEXT_PAUSE;
}

static CallNext follow_redirect(S3Call *call, const S3Answer *answer) {
        S3Client *c = call->client;

        if (strcmp(c->place.region, call->region) != 0)
                return NEXT_AGAIN; /* another call has learned it meanwhile */
        if (answer->region[0] == '\0')
                return try_after_failure(call); /* as S3 does for minutes after a bucket was made */
        if (strcmp(answer->region, call->region) == 0 || ++call->n_redirects >= S3_REGIONS_MAX ||
            s3_client_move(c, answer->region) < 0)
                return NEXT_END;
        log_debug("bucket '%s' is in region '%s', not in '%s'", c->options.bucket, answer->region,
                  call->region);
        return NEXT_AGAIN;
}

static CallNext learn_clock(S3Call *call) {
        S3Client *c = call->client;

        if (call->clock_was_learned || call->signed_ahead_usec == c->clock_ahead_usec)
                return NEXT_END; /* told before, or it has not told its time */
        call->clock_was_learned = true;
        c->sign_ahead_usec = c->clock_ahead_usec;
        return NEXT_AGAIN;
}

/* Keys that are denied may have been replaced at their source, whatever the reason that is given: a wrong secret, a role that lost its
 * permission. How often that is looked at is the source's business. */
static CallNext renew_keys(S3Call *call) {
        if (call->keys_were_renewed)
                return NEXT_END;
        call->keys_were_renewed = true;
        return credentials_refused(call->client->credentials, call->serial) ? NEXT_KEYS : NEXT_END;
}

CallNext s3_call_decide(S3Call *call, S3Answer *answer) {
        switch (answer->verdict) {
        case S3_RETRY:
        case S3_CORRUPTED:
        case S3_UNREACHABLE:
                return try_after_failure(call);
        case S3_SKEWED:
                return learn_clock(call);
        case S3_REDIRECT:
                return follow_redirect(call, answer);
        case S3_EXPIRED:
                answer->verdict = S3_DENIED; /* unless others come */
                return renew_keys(call);
        case S3_DENIED:
                return renew_keys(call);
        case S3_UNCONDITIONAL:
                call->client->has_no_conditions = true;
                return NEXT_END;
        default:
                return NEXT_END;
        }
}
