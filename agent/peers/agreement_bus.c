/* The bus: a leaf sends the claims of its node to the centre of the job, and the centre sends news
 * of failures to all leaves. Messages may be lost, so a leaf sends again, less and less often,
 * until the centre acknowledges all revisions and has decided. */
#include "agent/peers/agreement_private.h"

#include <string.h>

#include "lib/base/cleanup.h"

#define NEWS_GAP (200 * AGREEMENT_MSEC)
#define SEND_STEP_SLOW 3

/* How long after each sending a leaf sends again. */
static const int64_t send_steps[] = { 0,
                                      AGREEMENT_RESEND_USEC,
                                      AGREEMENT_SEC,
                                      3 * AGREEMENT_SEC,
                                      6 * AGREEMENT_SEC,
                                      12 * AGREEMENT_SEC,
                                      30 * AGREEMENT_SEC };

/* Acknowledges, with the next news, what the centre has of a leaf. When there are too many, the
 * leaf sends again. */
static void acknowledge(AgreementKey *k, const char *instance_id) {
        const Heard heard = { agreement_node_of(instance_id),
                              agreement_sum_revisions(k, instance_id) };
        size_t i = 0;

        while (i < k->n_acks && k->acks[i].node != heard.node)
                i++;
        if (i == MESSAGE_HEARD_MAX)
                return;
        k->acks[i] = heard;
        k->n_acks = MAX(k->n_acks, i + 1);
}

/* Adds a leaf's claims at the centre. The leaf gets news of the failures that they belong to, also
 * when nothing is new, since it has missed the last news then. */
static int hear_claims(Agreement *a, AgreementKey *k, const Message *m, int64_t now) {
        for (size_t i = 0; i < m->n_claims; i++) {
                Claim c = m->claims[i];
                const Claim *old = claim_set_find(&k->claims, &c);
                if (strcmp(c.instance_id, m->sender) != 0 || !agreement_normalize_claim(&c, now) ||
                    (old && strcmp(old->instance_id, m->sender) != 0))
                        continue;
                const int r = agreement_add_claim(a, k, &c);
                if (r < 0)
                        return r;
        }
        agreement_refresh(a, k, now);
        for (size_t i = 0; i < m->n_claims; i++) {
                AgreedFailure *f = agreement_find_placed(k, &m->claims[i]);
                if (f)
                        f->has_news = true;
        }
        acknowledge(k, m->sender);
        return 0;
}

/* @return whether the news says what the centre has of this node */
static bool handle_heard(const Agreement *a, AgreementKey *k, const Message *m) {
        for (size_t i = 0; i < m->n_heard; i++)
                if (m->heard[i].node == a->node) {
                        k->heard_revisions = m->heard[i].revisions;
                        return true;
                }
        return false;
}

/* Sends less often what the centre has acknowledged. It does not stop while claims have no
 * decision, since the centre may have forgotten them, or its news was lost. */
static void send_less(const Agreement *a, AgreementKey *k, bool is_mentioned, int64_t now) {
        if (!agreement_is_heard(a, k))
                return;
        if (k->first_usec == AGREEMENT_NEVER)
                k->send_usec = AGREEMENT_NEVER;
        else if (is_mentioned && k->send_step < SEND_STEP_SLOW) {
                k->send_step = SEND_STEP_SLOW;
                k->send_usec = MAX(now + send_steps[SEND_STEP_SLOW], agreement_open_time(a, k));
        }
}

/* @return the failed claim whose event is the newest; NULL */
static const Claim *find_newest(const Claim *claims, size_t n) {
        const Claim *newest = NULL;
        for (const Claim *c = claims; c < claims + n; c++)
                if (claim_is_failure(c) && (!newest || c->event_usec > newest->event_usec))
                        newest = c;
        return newest;
}

int agreement_hear(Agreement *a, const Message *m, int64_t now) {
        AgreementKey *k = agreement_find_key(a, m->key);
        int r = 0;

        a->now_usec = now;
        if (!k || k->role == ROLE_NONE || strcmp(m->sender, a->instance_id) == 0 ||
            (m->kind == MESSAGE_CLAIMS && k->role != ROLE_CENTRE))
                return 0;
        const bool is_leaf = m->kind == MESSAGE_NEWS && k->role == ROLE_LEAF;
        const bool is_mentioned = is_leaf && handle_heard(a, k, m);
        if (m->kind == MESSAGE_CLAIMS)
                r = hear_claims(a, k, m, now);
        if (r == 0 && m->has_decision && m->decision.n > 0 &&
            agreement_decision_is_usable(&m->decision, k->key) &&
            m->decision.agreed != AGREED_ALONE) {
                /* When the centre has heard all claims of this node in one message, its news begins
                 * with the first failure that they are in. */
                k->is_listed = is_mentioned && agreement_is_heard(a, k) &&
                               k->claims.n <= MESSAGE_CLAIMS_MAX;
                const Claim *newest =
                        m->kind == MESSAGE_NEWS ? find_newest(m->claims, m->n_claims) : NULL;
                r = agreement_adopt(a, k, &m->decision,
                                    newest ? MIN(newest->event_usec, now) : INT64_MIN, now);
                k->is_listed = false;
        }
        if (is_leaf)
                send_less(a, k, is_mentioned, now);
        return r;
}

static void write_claims(const Agreement *a, AgreementKey *k, Message *m, int64_t now) {
        size_t n_own = 0;

        for (size_t i = 0; i < k->claims.n; i++)
                if (agreement_is_own_claim(a, &k->claims.items[i]) && n_own++ >= k->send_at &&
                    m->n_claims < MESSAGE_CLAIMS_MAX)
                        m->claims[m->n_claims++] = k->claims.items[i];
        for (size_t i = 0; i < k->n_failures; i++)
                if (k->failures[i]->d.agreed != AGREED_ALONE) {
                        m->decision = k->failures[i]->d;
                        m->has_decision = true;
                }
        k->sent_usec = now;
        k->send_at += m->n_claims;
        if (k->send_at < n_own)
                return;
        k->send_at = 0;
        k->send_step = MIN(k->send_step + 1, ELEMENTSOF(send_steps) - 1);
        k->send_usec = now + send_steps[k->send_step];
}

AgreedFailure *agreement_find_news(const AgreementKey *k) {
        for (size_t i = 0; i < k->n_failures; i++)
                if (k->failures[i]->has_news && k->failures[i]->d.n > 0)
                        return k->failures[i];
        return NULL;
}

static void write_news(AgreementKey *k, Message *m, int64_t now) {
        AgreedFailure *f = agreement_find_news(k);

        if (f) {
                m->decision = f->d;
                m->has_decision = true;
                const Claim *newest = find_newest(f->claims.items, f->claims.n);
                if (newest) /* tells a leaf how long the window is open */
                        m->claims[m->n_claims++] = *newest;
                f->has_news = false;
        }
        while (k->n_acks > 0)
                m->heard[m->n_heard++] = k->acks[--k->n_acks];
        k->news_usec = now + NEWS_GAP;
}

const Message *agreement_write_message(Agreement *a, AgreementKey *k, int64_t now) {
        Message *m = &a->message;

        *m = (Message){ .kind = k->role == ROLE_LEAF ? MESSAGE_CLAIMS : MESSAGE_NEWS };
        memcpy(m->sender, a->instance_id, sizeof m->sender);
        memcpy(m->key, k->key, sizeof m->key);
        if (k->role == ROLE_LEAF)
                write_claims(a, k, m, now);
        else
                write_news(k, m, now);
        return m;
}
