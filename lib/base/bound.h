/* How much each owner has of something that is bounded: one cap for each owner, one for all. A
 * request beyond a cap is refused, counted and logged; whoever made it makes it again later. Nobody
 * loses what he has. See bound.c. */
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "lib/base/clock.h"
#include "lib/base/owner.h"

typedef struct BoundAccount BoundAccount; /* what one owner has */

typedef struct Bound { /* zero but for the first five: nobody has anything. It must not move while
                          somebody has something */
        const char *what;   /* for the status, the metrics and the log, plural; static; NULL: it is
                               shown nowhere */
        uint64_t max;       /* of all owners together; UINT64_MAX: only each one is bounded */
        uint64_t max_each;  /* of one owner */
        uint64_t fade_usec; /* each owner gets one back in this time; 0: nothing fades */
        Clock *clock;       /* for the log and for fading; NULL: neither, as in a worker */

        uint64_t total;          /* with what has faded since `faded_usec` */
        BoundAccount **accounts; /* of owners who have something, by owner, ascending */
        size_t n_accounts;
        uint64_t faded_usec;        /* until then, CLOCK_BOOTTIME */
        uint64_t n_refused;         /* since the start */
        Owner last_refused;         /* with n_refused > 0 */
        uint64_t last_refused_usec; /* CLOCK_BOOTTIME; 0 without a clock */
        uint64_t n_unlogged, logged_usec;
} Bound;

/** Charges that are still out are released without it. */
void bound_done(Bound *b);
/** Takes back what was spent. What was refused stays counted. */
void bound_reset(Bound *b);

typedef enum BoundAnswer {
        BOUND_OK,      /* it is charged */
        BOUND_E_OWNER, /* refused: the owner has all that one may have */
        BOUND_E_ALL,   /* refused: all together have all that there is, or memory is short */
} BoundAnswer;

/* What an owner was charged for one thing: a member of the struct that it pays for. Zero: nothing.
 * It may be moved by assignment. */
typedef struct Charge {
        BoundAccount *account;
        uint64_t amount;
} Charge;

/** Charges an owner. @param c  zero, or charged to this owner already: it is charged more
 * @param amount  0: nothing is charged */
BoundAnswer bound_charge(Bound *b, Charge *c, const Owner *o, uint64_t amount);
/** Gives back all of a charge, which is zero afterwards; nothing if it was zero. */
void bound_release(Charge *c);
/** @return whose charge it is, borrowed until it is released; NULL: nobody's, it is zero */
const Owner *bound_owner(const Charge *c);

/** Charges an owner what comes back only by fading, bound_reset() or bound_give_back(). */
BoundAnswer bound_spend(Bound *b, const Owner *o, uint64_t amount);

/** Gives back a part of what an owner has spent, at most all of it: for things of which there are
 * too many for each to hold a Charge. */
void bound_give_back(Bound *b, const Owner *o, uint64_t amount);

/** @return whether a charge would be granted now; nothing is counted @param amount  > 0 */
bool bound_has_space(Bound *b, const Owner *o, uint64_t amount);
/** @return how much the owner has now */
uint64_t bound_amount(Bound *b, const Owner *o);
/** @return how much all owners have now */
uint64_t bound_total(const Bound *b);
