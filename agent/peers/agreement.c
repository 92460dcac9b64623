/* The agreement as its users see it: claims go in, decisions come out, and what is due next is
 * found in all keys. A key holds the claims of a job and the failures that they have been placed
 * in. Claims that are not placed need a decision: the arbiter is listed, decisions are read, one is
 * created; or the centre of the bus decides. agreement_private.h shows which file does what. */
#include "agent/peers/agreement.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "agent/peers/agreement_private.h"
#include "lib/base/cleanup.h"

int agreement_new(Agreement **ret, const AgreementOptions *options) {
        Agreement *a = calloc(1, sizeof *a);

        if (!a)
                return -ENOMEM;
        strncpy(a->instance_id, options->instance_id, sizeof a->instance_id - 1);
        a->node = agreement_node_of(a->instance_id);
        agreement_set_times(a, options->settle_usec, options->window_usec);
        a->random = options->seed;
        *ret = a;
        return 0;
}

Agreement *agreement_free(Agreement *a) {
        if (!a)
                return NULL;
        while (a->n_keys > 0)
                agreement_remove_key(a, a->n_keys - 1);
        free(a);
        return NULL;
}

void agreement_set_times(Agreement *a, int64_t settle_usec, int64_t window_usec) {
        a->settle_usec = MIN(settle_usec, AGREEMENT_TIME_MAX);
        a->window_usec = MIN(window_usec, AGREEMENT_TIME_MAX);
}

int agreement_set_arbiter(Agreement *a, const char *key, bool has_arbiter) {
        AgreementKey *k;
        const int r = agreement_add_key(a, key, &k);
        if (r < 0)
                return r;
        if (k->has_arbiter != has_arbiter)
                k->question = ACTION_LIST; /* it starts with a listing */
        k->has_arbiter = has_arbiter;
        k->is_unable = k->is_unable && has_arbiter;
        return 0;
}

int agreement_set_role(Agreement *a, const char *key, Role role) {
        AgreementKey *k;
        const int r = agreement_add_key(a, key, &k);
        if (r < 0 || k->role == role)
                return r;
        k->role = role;
        k->send_usec = AGREEMENT_NEVER;
        if (k->n_failures > 0 || k->first_usec != AGREEMENT_NEVER)
                agreement_send_soon(k, a->now_usec);
        agreement_refresh(a, k, a->now_usec);
        return 0;
}

void agreement_hurry(Agreement *a, bool on) {
        a->hurry = on;
}

void agreement_forget(Agreement *a, const char *key) {
        for (size_t i = 0; i < a->n_keys; i++)
                if (strcmp(a->keys[i]->key, key) == 0) {
                        agreement_remove_key(a, i);
                        return;
                }
}

/* ---- claims ---- */

/* @return 1: it is new in the key; 0; -errno */
static int add_own_claim(Agreement *a, const char *key, Claim *c, int64_t now, AgreementKey **ret) {
        a->now_usec = now;
        if (!agreement_normalize_claim(c, now))
                return -EINVAL;
        const int r = agreement_add_key(a, key, ret);
        memcpy(c->instance_id, a->instance_id, sizeof c->instance_id);
        return r < 0 ? r : agreement_add_claim(a, *ret, c);
}

int agreement_claim(Agreement *a, const char *key, const Claim *c, bool is_local, int64_t now) {
        Claim own = *c;
        AgreementKey *k;

        const int r = add_own_claim(a, key, &own, now, &k);
        if (r <= 0)
                return r;
        agreement_refresh(a, k, now);
        if (claim_is_failure(&own) || k->n_failures > 0)
                agreement_send_soon(k, now);
        if (is_local && claim_is_failure(&own) && !agreement_find_placed(k, &own))
                agreement_decide(a, k, AGREED_ALONE, now);
        return 0;
}

void agreement_on_bundle(Agreement *a, const char *key, uint32_t n, int64_t now) {
        const AgreementKey *k = agreement_find_key(a, key);
        AgreedFailure *f = k ? agreement_find_failure(k, n) : NULL;
        if (f)
                agreement_record_soon(a, f, now);
}

int agreement_restore(Agreement *a, const Decision *d, const Claim *c, int64_t now) {
        Claim own = *c;
        AgreementKey *k;

        if (!agreement_decision_is_usable(d, d->key) || (d->n == 0 && d->agreed != AGREED_ALONE))
                return -EINVAL;
        int r = add_own_claim(a, d->key, &own, now, &k);
        if (r < 0)
                return r;
        AgreedFailure *f =
                d->n > 0 ? agreement_find_failure(k, d->n) : agreement_find_same_name(a, k, d);
        if (!f) {
                r = agreement_add_failure(a, k, d, now, &f);
                if (r < 0)
                        return r;
                k->n_named += d->agreed == AGREED_ALONE;
        }
        (void)agreement_add_to_failure(a, k, f, &own, now);
        agreement_refresh(a, k, now);
        return 0;
}

const Decision *agreement_find(const Agreement *a, const char *key, const Claim *process) {
        const AgreementKey *k = agreement_find_key(a, key);
        if (!k)
                return NULL;
        const AgreedFailure *f = agreement_find_placed(k, process);
        const Claim *c = claim_set_find(&k->claims, process);
        for (size_t i = k->n_failures; !f && c && c->state == CLAIM_ALIVE && i-- > 0;)
                if (claim_set_find(&k->failures[i]->claims, process))
                        f = k->failures[i]; /* the last failure */
        return f ? &f->d : NULL;
}

bool agreement_is_pending(const Agreement *a, const char *key, const Claim *process) {
        const AgreementKey *k = agreement_find_key(a, key);
        const Claim *c = k ? claim_set_find(&k->claims, process) : NULL;
        return c && agreement_is_open_claim(a, k, c) &&
               (agreement_can_query(k) || k->role != ROLE_NONE);
}

bool agreement_is_asking(const Agreement *a, const char *key, int64_t now) {
        const AgreementKey *k = agreement_find_key(a, key);
        return k && agreement_can_query(k) &&
               (k->in_flight != ACTION_NONE || k->question != ACTION_LIST || k->retry_usec > now);
}

bool agreement_is_recording(const Agreement *a) {
        for (size_t i = 0; i < a->n_keys; i++) {
                const AgreementKey *k = a->keys[i];
                for (size_t j = 0; agreement_can_query(k) && k->n_errors == 0 && j < k->n_failures;
                     j++) {
                        const AgreedFailure *f = k->failures[j];
                        bool is_for_store = f->d.n == 0 || agreement_is_in_store(&f->d);
                        if (is_for_store && f->changes != f->n_recorded)
                                return true;
                }
        }
        return false;
}

/* ---- what is due ---- */

typedef struct DueAction {
        int64_t at; /* AGREEMENT_NEVER: nothing */
        ActionKind kind;
        AgreedFailure *failure; /* RECORD, PUBLISH */
} DueAction;

static void add_due(DueAction *due, int64_t at, ActionKind kind, AgreedFailure *f) {
        if (at < due->at)
                *due = (DueAction){ at, kind, f };
}

/* @return the earliest action of a key */
static DueAction find_due(const Agreement *a, const AgreementKey *k) {
        DueAction due = { .at = AGREEMENT_NEVER };

        if (k->role == ROLE_LEAF)
                add_due(&due, k->send_usec, ACTION_SEND, NULL);
        else if (k->role == ROLE_CENTRE && (k->n_acks > 0 || agreement_find_news(k)))
                add_due(&due, k->news_usec, ACTION_SEND, NULL);
        if (!agreement_can_query(k) || k->in_flight != ACTION_NONE)
                return due;
        add_due(&due, agreement_query_time(a, k), k->question, NULL);
        for (size_t i = 0; i < k->n_failures; i++) {
                AgreedFailure *f = k->failures[i];
                if (!agreement_is_in_store(&f->d))
                        continue;
                /* In a hurry at once: nobody may be there to write it later. */
                int64_t record_usec = a->hurry ? k->retry_usec : MAX(f->record_usec, k->retry_usec);
                if (f->changes != f->n_recorded)
                        add_due(&due, record_usec, ACTION_RECORD, f);
                add_due(&due, MAX(f->publish_usec, k->retry_usec), ACTION_PUBLISH, f);
        }
        return due;
}

/* @return when the centre decides by itself; AGREEMENT_NEVER */
static int64_t decide_time(const Agreement *a, const AgreementKey *k) {
        return k->role == ROLE_CENTRE && !agreement_can_query(k)
                       ? MAX(agreement_open_time(a, k), k->retry_usec)
                       : AGREEMENT_NEVER;
}

static void start_action(Agreement *a, AgreementKey *k, const DueAction *due, int64_t now,
                         Action *ret) {
        const AgreedFailure *f = due->failure;

        *ret = (Action){ .kind = due->kind };
        memcpy(ret->key, k->key, sizeof ret->key);
        if (due->kind == ACTION_SEND) {
                ret->message = agreement_write_message(a, k, now);
                return;
        }
        if (due->kind == ACTION_READ)
                ret->n = k->candidates[0].n;
        else if (due->kind != ACTION_LIST) {
                ret->decision = f ? f->d : k->proposal;
                ret->n = ret->decision.n;
        }
        if (due->kind == ACTION_PUBLISH) /* else it is its creator, at a fixed time */
                ret->unless_listed =
                        f->publish_usec >= f->d.opened_usec + AGREEMENT_PUBLISH_STAND_IN;
        k->in_flight = due->kind;
        k->in_flight_n = ret->n;
        k->in_flight_changes = f ? f->changes : 0;
}

ActionKind agreement_next_action(Agreement *a, int64_t now, Action *ret) {
        a->now_usec = now;
        agreement_expire(a, now);
        *ret = (Action){ .kind = ACTION_NONE };
        for (size_t i = 0; i < a->n_keys && ret->kind == ACTION_NONE; i++) {
                AgreementKey *k = a->keys[i];
                if (decide_time(a, k) <= now)
                        agreement_decide(a, k, AGREED_BUS, now); /* one failure in each call */
                const DueAction due = find_due(a, k);
                if (due.at <= now)
                        start_action(a, k, &due, now, ret);
        }
        return ret->kind;
}

int64_t agreement_next_time(const Agreement *a) {
        int64_t t = AGREEMENT_NEVER;
        for (size_t i = 0; i < a->n_keys; i++) {
                t = MIN(t, find_due(a, a->keys[i]).at);
                t = MIN(t, decide_time(a, a->keys[i]));
        }
        return t;
}

/* ---- views ---- */

const ClaimSet *agreement_claims(const Agreement *a, const char *key, uint32_t n) {
        const AgreedFailure *f = agreement_find_failure(agreement_find_key(a, key), n);
        return f ? &f->claims : NULL;
}

bool agreement_failure(const Agreement *a, size_t i, AgreementFailure *ret) {
        for (size_t j = 0; j < a->n_keys; j++) {
                const AgreementKey *k = a->keys[j];
                if (i < k->n_failures) {
                        *ret = (AgreementFailure){ &k->failures[i]->d, &k->failures[i]->claims };
                        return true;
                }
                i -= k->n_failures;
        }
        return false;
}
