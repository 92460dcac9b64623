/* What all uploaders share: their outcomes, and the wait before the next try. Pure. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

enum {
        UPLOAD_E_EXISTS = 1, /* another object has the name: it is never overwritten */
        UPLOAD_E_SAME = 2,   /* the same object has the name, proven */
        UPLOAD_E_FULL = 3,   /* no space (ENOSPC, EDQUOT, below min_free, a quota): wait for it */
        /* the destination cannot be reached or written (read-only, not mounted, stale, EIO; no
         * answer, 5xx): wait for it */
        UPLOAD_E_UNREACHABLE = 4,
        /* the object differs from what was written: it was removed or is not visible yet, try
         * again */
        UPLOAD_E_MISMATCH = 5,
        /* no credentials, refused credentials, or no permission: wait until an operator fixes it */
        UPLOAD_E_DENIED = 6,
        /* The destination refuses it. If the destination accepts other bundles meanwhile, this
         * bundle is at fault and waiting does not help; otherwise the destination or its
         * configuration is at fault. */
        UPLOAD_E_REFUSED = 7,
        UPLOAD_E_STALE = 8, /* the upload cannot be resumed: start again */
        UPLOAD_E_PAUSED =
                9, /* stopped on request; the parts that arrived are recorded, to continue later */
        /* no connection to the destination, or one that ended or stalled: never the bundle's fault,
         * however often it happens */
        UPLOAD_E_NETWORK = 10,
};

/* Separates a sentence about a failure from ids that differ with each request:
 * `…; correct endpoint [x-amz-request-id 4442587FB7D0A2F9]`. */
#define UPLOAD_REQUEST_ID_TEXT " [x-amz-"

/** @return whether two sentences are equal apart from these ids; NULL equals only NULL */
bool upload_error_is_same(const char *a, const char *b);

/** The wait before the next try: exponential with full jitter.
 * @param n_failures in a row, at least 1
 * @param initial_usec bound of the first wait, doubled with each failure up to maximum_usec
 * @param random any number from a good source
 * @return a wait between a tenth of the bound and the bound: never nothing, so that a destination
 *   that fails at once is not hammered
 * @see AWS Architecture Blog, "Exponential Backoff And Jitter" */
uint64_t backoff_next_usec(unsigned n_failures, uint64_t initial_usec, uint64_t maximum_usec,
                           uint64_t random);
