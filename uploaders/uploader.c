/* What all uploaders share: comparing the sentences of two failures, and the wait before the next
 * try. Pure; what an outcome means for a bundle is left to agent/delivery. */
#include "uploaders/uploader.h"

#include <string.h>

#include "lib/base/cleanup.h"

static size_t length_without_ids(const char *text) {
        const char *ids = strstr(text, UPLOAD_REQUEST_ID_TEXT);

        return ids ? (size_t)(ids - text) : strlen(text);
}

bool upload_error_is_same(const char *a, const char *b) {
        if (!a || !b)
                return a == b;
        size_t n = length_without_ids(a);
        return n == length_without_ids(b) && memcmp(a, b, n) == 0;
}

uint64_t backoff_next_usec(unsigned n_failures, uint64_t initial_usec, uint64_t maximum_usec,
                           uint64_t random) {
        uint64_t bound = MAX(initial_usec, UINT64_C(1));
        for (unsigned i = 1; i < n_failures && bound < maximum_usec; i++)
                bound = bound > UINT64_MAX / 2 ? UINT64_MAX : 2 * bound;
        bound = MIN(bound, MAX(maximum_usec, UINT64_C(1)));
        uint64_t least = MAX(bound / 10, UINT64_C(1));
        return least + random % (bound - least + 1);
}
