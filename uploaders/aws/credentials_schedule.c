#include "uploaders/aws/credentials_schedule.h"

#include "lib/base/cleanup.h"

#define EARLY_USEC (5 * USEC_PER_MINUTE)
#define MAX_BACKOFF_USEC USEC_PER_MINUTE

bool credentials_schedule_is_good(uint64_t got_usec, uint64_t expires_usec, uint64_t now_usec) {
        if (expires_usec == 0)
                return true;
        if (expires_usec <= now_usec || expires_usec <= got_usec)
                return false;
        return expires_usec - now_usec > MIN(USEC_PER_MINUTE, (expires_usec - got_usec) / 10);
}

uint64_t credentials_schedule_refresh_usec(uint64_t got_usec, uint64_t expires_usec,
                                           uint64_t random) {
        if (expires_usec == 0)
                return USEC_INFINITY;
        uint64_t life = expires_usec > got_usec ? expires_usec - got_usec : 0;

        if (life <= EARLY_USEC + USEC_PER_MINUTE)
                return got_usec + MAX(MIN(life / 2, USEC_PER_MINUTE), USEC_PER_SEC);
        uint64_t jitter = random % (life / 10);
        return MIN(got_usec + life / 10 * 8 - jitter, expires_usec - EARLY_USEC);
}

uint64_t credentials_schedule_backoff_usec(unsigned n_failures) {
        if (n_failures == 0)
                return 0;
        return n_failures > 6 ? MAX_BACKOFF_USEC
                              : MIN(USEC_PER_SEC << (n_failures - 1), MAX_BACKOFF_USEC);
}
