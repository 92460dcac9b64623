/* How much each owner has of something that is bounded.
 *
 * Many users share this agent, and most of what it has is bounded: connections, bytes, descriptors,
 * bundles. A Bound is one such thing, with a cap for each owner and one for all owners together.
 * Both are fixed. A request that would exceed one of them is refused; the Bound counts that, for
 * the status and the metrics, and logs it at most once a minute. It neither keeps the request nor
 * takes anything from another owner: whoever asked makes do without, and asks again later. So one
 * owner alone never keeps another one out, as long as his cap is smaller than that of all.
 *
 * What an owner has is given back in one of two ways, and a Bound is used for one of them only:
 *
 *   - A Charge is embedded in the struct that it pays for, and is released with it. It points to
 *     its owner's account, so that releasing it needs neither the owner nor the Bound.
 *   - What is spent has no Charge. It fades as time passes (a rate: `max_each` at once, then one in
 *     each `fade_usec`), is taken back from everybody when a pass is over (bound_reset()), or is
 *     given back by whoever spent it (bound_give_back()).
 *
 * A Bound without caps is a measure: it tells who has used the least lately, for those who decide
 * whose turn it is.
 *
 * Not thread-safe. A Bound without a clock may be used in a worker: it logs nothing. */
#include "lib/base/bound.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "lib/base/array.h"
#include "lib/base/cleanup.h"
#include "lib/base/log.h"

#define LOG_INTERVAL_USEC USEC_PER_MINUTE

struct BoundAccount {
        Bound *bound; /* NULL: it has ended, and charges are still out */
        Owner owner;
        uint64_t amount;  /* > 0 */
        uint64_t charged; /* of `amount`, by charges that are out */
};

/* ---- accounts ---- */

/* @return the index of the owner's account, or where it belongs */
static size_t find_account(const Bound *b, const Owner *o, bool *ret_found) {
        size_t low = 0, high = b->n_accounts;
        while (low < high) {
                size_t middle = low + (high - low) / 2;
                int order = owner_compare(&b->accounts[middle]->owner, o);
                if (order == 0) {
                        *ret_found = true;
                        return middle;
                }
                if (order < 0)
                        low = middle + 1;
                else
                        high = middle;
        }
        *ret_found = false;
        return low;
}

/* @return a new account at this index, without anything; NULL: no memory */
static BoundAccount *add_account(Bound *b, size_t at, const Owner *o) {
        BoundAccount *a = malloc(sizeof *a);
        if (!a || array_grow((void *)&b->accounts, b->n_accounts, sizeof *b->accounts) < 0) {
                free(a);
                return NULL;
        }
        *a = (BoundAccount){ .bound = b, .owner = *o };
        memmove(&b->accounts[at + 1], &b->accounts[at], (b->n_accounts - at) * sizeof *b->accounts);
        b->accounts[at] = a;
        b->n_accounts++;
        return a;
}

static void remove_account(Bound *b, size_t at) {
        free(b->accounts[at]);
        b->n_accounts--;
        memmove(&b->accounts[at], &b->accounts[at + 1], (b->n_accounts - at) * sizeof *b->accounts);
}

static void take_back(Bound *b, BoundAccount *a, uint64_t amount) {
        bool found;
        a->amount -= amount;
        b->total -= amount;
        if (a->amount == 0)
                remove_account(b, find_account(b, &a->owner, &found));
}

/* ---- what is refused ---- */

static BoundAnswer refuse(Bound *b, const Owner *o, uint64_t has, BoundAnswer answer) {
        char text[OWNER_TEXT_SIZE];
        b->n_refused++;
        b->last_refused = *o;
        if (!b->clock || !b->what)
                return answer;
        const uint64_t now = b->clock->boottime_usec(b->clock);
        b->last_refused_usec = now;
        b->n_unlogged++;
        if (b->logged_usec > 0 && now - b->logged_usec < LOG_INTERVAL_USEC)
                return answer;
        log_warning(0,
                    "%" PRIu64 " %s were refused since they are bounded, the last of %s, who has "
                    "%" PRIu64 " of %" PRIu64,
                    b->n_unlogged, b->what, owner_text(o, text), has, MIN(b->max_each, b->max));
        b->n_unlogged = 0;
        b->logged_usec = now;
        return answer;
}

/* ---- charges ---- */

/* @param ret  set when it is charged */
static BoundAnswer add(Bound *b, const Owner *o, uint64_t amount, BoundAccount **ret) {
        bool has_account;
        size_t at = find_account(b, o, &has_account);
        const uint64_t has = has_account ? b->accounts[at]->amount : 0;
        if (amount > b->max_each || has > b->max_each - amount)
                return refuse(b, o, has, BOUND_E_OWNER);
        BoundAccount *a = amount > b->max - b->total ? NULL
                          : has_account              ? b->accounts[at]
                                                     : add_account(b, at, o);
        if (!a)
                return refuse(b, o, has, BOUND_E_ALL);
        a->amount += amount;
        b->total += amount;
        *ret = a;
        return BOUND_OK;
}

BoundAnswer bound_charge(Bound *b, Charge *c, const Owner *o, uint64_t amount) {
        if (amount == 0) /* a charge of nothing would not keep its account */
                return BOUND_OK;
        BoundAnswer answer = add(b, o, amount, &c->account);
        if (answer == BOUND_OK) {
                c->amount += amount;
                c->account->charged += amount;
        }
        return answer;
}

void bound_release(Charge *c) {
        BoundAccount *a = c->account;
        const uint64_t amount = c->amount;
        *c = (Charge){ 0 };
        if (!a)
                return;
        a->charged -= amount;
        if (!a->bound) {
                if (a->charged == 0)
                        free(a);
                return;
        }
        take_back(a->bound, a, amount);
}

const Owner *bound_owner(const Charge *c) {
        return c->account ? &c->account->owner : NULL;
}

/* ---- what is spent ---- */

/* @return how much of each owner has faded since `faded_usec` */
static uint64_t count_faded(const Bound *b) {
        if (b->fade_usec == 0 || !b->clock || b->n_accounts == 0)
                return 0;
        return (b->clock->boottime_usec(b->clock) - b->faded_usec) / b->fade_usec;
}

static uint64_t faded_of(const BoundAccount *a, uint64_t n) {
        return MIN(n, a->amount - a->charged);
}

static void fade(Bound *b) {
        const uint64_t n = count_faded(b);
        if (b->n_accounts == 0 && b->clock)
                b->faded_usec = b->clock->boottime_usec(b->clock);
        b->faded_usec += n * b->fade_usec;
        for (size_t i = n > 0 ? b->n_accounts : 0; i > 0; i--)
                take_back(b, b->accounts[i - 1], faded_of(b->accounts[i - 1], n));
}

BoundAnswer bound_spend(Bound *b, const Owner *o, uint64_t amount) {
        BoundAccount *a;
        fade(b);
        return amount > 0 ? add(b, o, amount, &a) : BOUND_OK;
}

void bound_give_back(Bound *b, const Owner *o, uint64_t amount) {
        bool found;
        size_t at = find_account(b, o, &found);
        if (!found)
                return;
        BoundAccount *a = b->accounts[at];
        take_back(b, a, MIN(amount, a->amount - a->charged));
}

uint64_t bound_amount(Bound *b, const Owner *o) {
        bool found;
        fade(b);
        size_t at = find_account(b, o, &found);
        return found ? b->accounts[at]->amount : 0;
}

uint64_t bound_total(const Bound *b) {
        const uint64_t n = count_faded(b);
        uint64_t total = b->total;
        for (size_t i = n > 0 ? b->n_accounts : 0; i > 0; i--)
                total -= faded_of(b->accounts[i - 1], n);
        return total;
}

bool bound_has_space(Bound *b, const Owner *o, uint64_t amount) {
        const uint64_t has = bound_amount(b, o);
        return amount <= b->max_each && has <= b->max_each - amount && amount <= b->max - b->total;
}

/* ---- its end ---- */

void bound_reset(Bound *b) {
        for (size_t i = 0; i < b->n_accounts; i++) {
                BoundAccount *a = b->accounts[i];
                if (a->charged == 0)
                        free(a);
                else
                        a->bound = NULL; /* the last charge frees it */
        }
        b->n_accounts = 0;
        b->total = 0;
}

void bound_done(Bound *b) {
        bound_reset(b);
        free(b->accounts);
        b->accounts = NULL;
}
