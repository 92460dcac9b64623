/* How much of a bounded thing each owner has. One rule for all of them: until the bound is reached
 * everybody gets what they ask for; then whoever has most gives way first. Where each owner has a
 * bound of his own, nobody gets more than that. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "lib/base/owner.h"

typedef struct OwnerShare {
        Owner owner;
        uint64_t amount; /* > 0 */
} OwnerShare;

typedef struct Owners {     /* zero but for `what` and `max`: nobody has anything */
        const char *what;   /* for the log, plural: `active units`; static */
        uint64_t max;       /* of all owners together */
        uint64_t max_each;  /* of one owner; 0 = max */
        uint64_t total;     /* never above max */
        OwnerShare *shares; /* by owner, ascending */
        size_t n_shares;
        uint64_t n_refused; /* since the start, for the status and the metrics */
        uint64_t n_unlogged, logged_usec;
} Owners;
void owners_done(Owners *s);

/** @return what one owner can have at most */
static inline uint64_t owners_bound(const Owners *s) {
        return s->max_each > 0 ? s->max_each : s->max;
}

typedef enum OwnersAnswer {
        OWNERS_GRANTED,  /* it is counted */
        OWNERS_DISPLACE, /* not counted: another owner has more and gives way first. The caller
                            releases something of that owner and asks again, or refuses */
        OWNERS_REFUSED,  /* not counted: nobody has more than the one who asks */
} OwnersAnswer;

/** Asks for a share. @param amount  > 0; more than `max` is refused
 * @param ret_largest  set with OWNERS_DISPLACE; NULL: of no interest
 * @return OwnersAnswer, -ENOMEM */
int owners_request(Owners *s, const Owner *o, uint64_t amount, Owner *ret_largest);

/** Gives back at most what the owner has. */
void owners_release(Owners *s, const Owner *o, uint64_t amount);

/** Gives back as much of everybody: for what is bounded in a time. */
void owners_release_each(Owners *s, uint64_t amount);

/** @return how much the owner has */
uint64_t owners_amount(const Owners *s, const Owner *o);

/** Counts something that was refused, or dropped to give way, and logs it at most once a minute
 * with the count since. @param now_usec  CLOCK_BOOTTIME */
void owners_count_refused(Owners *s, const Owner *o, uint64_t now_usec);
