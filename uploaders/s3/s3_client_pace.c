/* How fast, and how many at once: what the node's limits leave, and what the store can bear. */
#include <string.h>

#include "uploaders/s3/s3_client_private.h"

/* A store may ask for more time than retry.maximum is; at least so much is granted. */
#define RETRY_AFTER_HEEDED_USEC (10 * USEC_PER_SEC)

/* ── bytes: what lib/http/http asks ── */

static uint64_t book(uint64_t n, uint64_t *ret_nsec, void *userdata) {
        return throttle_book(userdata, n, ret_nsec);
}

static void give_back(uint64_t nsec, void *userdata) {
        throttle_return(userdata, nsec);
}

static void waste(void *userdata) {
        throttle_waste(userdata);
}

static size_t piece(void *userdata) {
        return throttle_piece(userdata);
}

HttpThrottle s3_client_throttle(const S3Client *c) {
        return (HttpThrottle){ .book = book,
                               .give_back = give_back,
                               .waste = waste,
                               .piece = piece,
                               .userdata = c->options.upload };
}

/* ── requests ── */

static uint64_t now_usec(const S3Client *c) {
        return c->clock->boottime_usec(c->clock);
}

uint64_t s3_call_wait_usec(S3Call *call) {
        S3Client *c = call->client;
        uint64_t now = now_usec(c);

        if (now < c->aimd.not_before_usec)
                return c->aimd.not_before_usec - now;
        if (call->has_token)
                return 0;
        call->has_token = true;
        return throttle_book(c->options.requests, 1, &call->token_nsec);
}

void s3_call_use_token(S3Call *call) {
        call->has_token = false;
        call->begun_usec = now_usec(call->client);
}

void s3_call_return_token(S3Call *call) {
        if (call->has_token)
                throttle_return(call->client->options.requests, call->token_nsec);
        call->has_token = false;
}

/* ── what the store says of it ── */

unsigned s3_client_large_max(const S3Client *c) {
        return c->aimd.limit; /* at most options.connections */
}

static bool wants_less(const S3Answer *answer, unsigned status) {
        static const char *const codes[] = { "SlowDown",
                                             "Throttling",
                                             "TooManyRequests",
                                             "RequestLimitExceeded",
                                             "BandwidthLimitExceeded",
                                             "KMS.Throttling" };

        if (answer->verdict != S3_RETRY)
                return false;
        for (size_t i = 0; i < ELEMENTSOF(codes); i++)
                if (strncmp(answer->error.code, codes[i], strlen(codes[i])) == 0)
                        return true;
        return status == 503 || status == 429;
}

uint64_t s3_call_retry_after_usec(const S3Call *call, const S3Answer *answer) {
        const S3ClientOptions *o = &call->client->options;

        return MIN(answer->retry_after_usec, MAX(o->retry_maximum_usec, RETRY_AFTER_HEEDED_USEC));
}

void s3_call_heard(S3Call *call, const S3Answer *answer, unsigned status) {
        S3Client *c = call->client;

        if (wants_less(answer, status))
                aimd_slowed_down(&c->aimd, call->begun_usec, now_usec(c));
        else if (answer->verdict == S3_OK && call->is_large)
                aimd_succeeded(&c->aimd);
        if (answer->verdict == S3_RETRY && answer->retry_after_usec > 0)
                aimd_hold(&c->aimd, now_usec(c), s3_call_retry_after_usec(call, answer));
}
