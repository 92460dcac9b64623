#include "lib/neuron/owners.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "lib/base/array.h"
#include "lib/base/cleanup.h"
#include "lib/base/clock.h"
#include "lib/base/log.h"

#define LOG_INTERVAL_USEC (60 * USEC_PER_SEC)

void owners_done(Owners *s) {
        free(s->shares);
        s->shares = NULL;
        s->n_shares = 0;
        s->total = 0;
}

/* @return the index of the owner's share, or where it belongs */
static size_t find(const Owners *s, const Owner *o, bool *ret_found) {
        size_t low = 0, high = s->n_shares;
        while (low < high) {
                size_t middle = low + (high - low) / 2;
                int order = owner_compare(&s->shares[middle].owner, o);
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

uint64_t owners_amount(const Owners *s, const Owner *o) {
        bool found;
        size_t i = find(s, o, &found);
        return found ? s->shares[i].amount : 0;
}

static const OwnerShare *find_largest(const Owners *s) {
        const OwnerShare *most = NULL;
        for (size_t i = 0; i < s->n_shares; i++)
                if (!most || s->shares[i].amount > most->amount)
                        most = &s->shares[i];
        return most;
}

int owners_request(Owners *s, const Owner *o, uint64_t amount, Owner *ret_largest) {
        bool found;
        size_t i = find(s, o, &found);
        uint64_t own = found ? s->shares[i].amount : 0;
        if (own + amount > owners_bound(s))
                return OWNERS_REFUSED;
        if (s->total > s->max - amount) {
                const OwnerShare *most = find_largest(s);
                if (!most || most->amount < own + amount || owner_compare(&most->owner, o) == 0)
                        return OWNERS_REFUSED;
                if (ret_largest)
                        *ret_largest = most->owner;
                return OWNERS_DISPLACE;
        }
        if (!found) {
                int r = array_grow((void *)&s->shares, s->n_shares, sizeof *s->shares);
                if (r < 0)
                        return r;
                memmove(&s->shares[i + 1], &s->shares[i], (s->n_shares - i) * sizeof *s->shares);
                s->n_shares++;
                s->shares[i] = (OwnerShare){ .owner = *o };
        }
        s->shares[i].amount += amount;
        s->total += amount;
        return OWNERS_GRANTED;
}

void owners_release(Owners *s, const Owner *o, uint64_t amount) {
        bool found;
        size_t i = find(s, o, &found);
        if (!found)
                return;
        amount = MIN(amount, s->shares[i].amount);
        s->shares[i].amount -= amount;
        s->total -= amount;
        if (s->shares[i].amount > 0)
                return;
        s->n_shares--;
        memmove(&s->shares[i], &s->shares[i + 1], (s->n_shares - i) * sizeof *s->shares);
}

void owners_release_each(Owners *s, uint64_t amount) {
        for (size_t i = s->n_shares; i > 0; i--) {
                const Owner o = s->shares[i - 1].owner;
                owners_release(s, &o, amount);
        }
}

void owners_count_refused(Owners *s, const Owner *o, uint64_t now_usec) {
        char text[OWNER_TEXT_SIZE];
        s->n_refused++;
        s->n_unlogged++;
        if (s->logged_usec > 0 && now_usec - s->logged_usec < LOG_INTERVAL_USEC)
                return;
        log_warning(0,
                    "%" PRIu64 " %s were refused since they are bounded, the last of %s, who has "
                    "%" PRIu64 " of %" PRIu64,
                    s->n_unlogged, s->what, owner_text(o, text), owners_amount(s, o),
                    owners_bound(s));
        s->n_unlogged = 0;
        s->logged_usec = now_usec;
}
