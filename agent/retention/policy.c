/* Decides which source files are released, in this order:
 *
 *     1. what was delivered longer than keep_for ago
 *     2. the oldest that was delivered, until max_use holds
 *     3. what was delivered, until keep_free holds
 *     4. undelivered links that alone hold their files, until keep_free_undelivered holds
 *     5. undelivered files, if the operator allows it, until keep_free holds
 *
 * In 3 to 5 the owner whose files take most of what is short loses the oldest one, so that no
 * user's evidence gives way to another user's. A pinned bundle is never released. */
#include "agent/retention/policy.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>

#include "lib/base/cleanup.h"
#include "lib/base/parse.h"
#include "lib/base/strbuf.h"

/* Inodes that are kept free where keep_free is a size: without any a job cannot create a file. */
#define INODES_PERMILLE 10

/* What the files of an owner use that are not released. */
typedef struct OwnerUse {
        uint64_t bytes, n_inodes;
        size_t begin, next, end; /* in by_owner; next: the oldest that may be released */
} OwnerUse;

typedef struct RetentionPlan {
        const RetentionPolicy *policy;
        const RetentionItem *items;
        size_t n;
        RetentionVerdict *verdicts;
        size_t *order;    /* of items, oldest first */
        size_t *by_owner; /* the same, those of one owner together */
        OwnerUse *owners; /* in the order of by_owner */
        size_t n_owners;
        uint64_t used_bytes, free_bytes, free_inodes;              /* after the acts so far */
        uint64_t max_use_bytes, keep_free_bytes, keep_free_inodes; /* 0 = no bound */
        RetentionAct act; /* for which keep_free_… and the owners' use hold */
} RetentionPlan;

static uint64_t share(uint64_t total, unsigned permille) {
        return total / 1000 * permille + total % 1000 * permille / 1000;
}

static uint64_t bound_bytes(const RetentionBound *b, uint64_t total) {
        if (!b->is_on)
                return 0;
        return b->is_permille ? share(total, b->permille) : b->bytes;
}

static uint64_t bound_inodes(const RetentionBound *b, uint64_t total) {
        if (!b->is_on || (!b->is_permille && b->bytes == 0))
                return 0;
        return share(total, b->is_permille ? b->permille : INODES_PERMILLE);
}

static bool violates(const RetentionBound *b, const RetentionSpace *space) {
        return space->free_bytes < bound_bytes(b, space->total_bytes) ||
               space->free_inodes < bound_inodes(b, space->total_inodes);
}

bool retention_is_short(const RetentionPolicy *policy, const RetentionSpace *space) {
        return violates(&policy->keep_free, space);
}

bool retention_is_short_undelivered(const RetentionPolicy *policy, const RetentionSpace *space) {
        return violates(&policy->keep_free_undelivered, space);
}

static uint64_t add_saturated(uint64_t a, uint64_t b) {
        uint64_t sum;
        return __builtin_add_overflow(a, b, &sum) ? UINT64_MAX : sum;
}

static bool exceeds_max_use(const RetentionPlan *d) {
        return d->max_use_bytes > 0 && d->used_bytes > d->max_use_bytes;
}

static bool lacks_bytes(const RetentionPlan *d) {
        return d->free_bytes < d->keep_free_bytes;
}

static bool lacks_inodes(const RetentionPlan *d) {
        return d->free_inodes < d->keep_free_inodes;
}

static bool is_short(const RetentionPlan *d) {
        return lacks_bytes(d) || lacks_inodes(d);
}

/* @return whether a release brings the bound nearer that it is for */
static bool brings_nearer(const RetentionPlan *d, const RetentionItem *item, RetentionWhy why) {
        switch (why) {
        case RETENTION_KEEP_FOR:
                return true;
        case RETENTION_MAX_USE:
                return exceeds_max_use(d) && item->used_bytes > 0;
        case RETENTION_KEEP_FREE:
                return (lacks_bytes(d) && item->bytes > 0) ||
                       (lacks_inodes(d) && item->n_inodes > 0);
        default:
                return false;
        }
}

static bool is_allowed(const RetentionPlan *d, size_t i, RetentionAct act) {
        const RetentionItem *item = &d->items[i];
        if (item->is_pinned || item->is_busy || d->verdicts[i].act != RETENTION_KEEP)
                return false;
        switch (act) {
        case RETENTION_DELETE:
                return d->policy->may_delete && item->delivered_usec > 0;
        case RETENTION_RELEASE:
                return item->delivered_usec == 0 && item->is_only_ours;
        case RETENTION_EVICT:
                return d->policy->may_delete && d->policy->may_evict && item->delivered_usec == 0 &&
                       !item->is_only_ours;
        default:
                return false;
        }
}

/* Delivered ones by when they were delivered, before all others by when they were first seen. */
static int compare_age(const void *a, const void *b, void *items) {
        const RetentionItem *x = (const RetentionItem *)items + *(const size_t *)a,
                            *y = (const RetentionItem *)items + *(const size_t *)b;
        if ((x->delivered_usec == 0) != (y->delivered_usec == 0))
                return x->delivered_usec == 0 ? 1 : -1;
        if (x->delivered_usec != y->delivered_usec)
                return x->delivered_usec < y->delivered_usec ? -1 : 1;
        if (x->first_seen_usec != y->first_seen_usec)
                return x->first_seen_usec < y->first_seen_usec ? -1 : 1;
        return (x > y) - (x < y);
}

static int compare_owner_and_age(const void *a, const void *b, void *userdata) {
        const RetentionPlan *d = userdata;
        uid_t x = d->items[*(const size_t *)a].uid, y = d->items[*(const size_t *)b].uid;
        return x != y ? (x > y) - (x < y) : compare_age(a, b, (void *)d->items);
}

static void release(RetentionPlan *d, size_t i, RetentionAct act, RetentionWhy why) {
        const RetentionItem *item = &d->items[i];
        d->verdicts[i] = (RetentionVerdict){ act, why };
        d->used_bytes -= MIN(d->used_bytes, item->used_bytes);
        d->free_bytes = add_saturated(d->free_bytes, item->bytes);
        d->free_inodes = add_saturated(d->free_inodes, item->n_inodes);
}

static int group_by_owner(RetentionPlan *d) {
        d->by_owner = reallocarray(NULL, MAX(d->n, (size_t)1), sizeof *d->by_owner);
        d->owners = reallocarray(NULL, MAX(d->n, (size_t)1), sizeof *d->owners);
        if (!d->by_owner || !d->owners)
                return -ENOMEM;
        for (size_t i = 0; i < d->n; i++)
                d->by_owner[i] = i;
        qsort_r(d->by_owner, d->n, sizeof *d->by_owner, compare_owner_and_age, d);
        for (size_t k = 0; k < d->n; k++) {
                const RetentionItem *item = &d->items[d->by_owner[k]];
                if (k == 0 || item->uid != d->items[d->by_owner[k - 1]].uid)
                        d->owners[d->n_owners++] = (OwnerUse){ .begin = k };
                d->owners[d->n_owners - 1].end = k + 1;
        }
        return 0;
}

/* @return whether an item counts as its owner's use: links alone when links are to be released */
static bool is_counted(const RetentionPlan *d, size_t i) {
        const RetentionItem *item = &d->items[i];
        return d->verdicts[i].act == RETENTION_KEEP &&
               (d->act != RETENTION_RELEASE || (item->delivered_usec == 0 && item->is_only_ours));
}

static void count_use(RetentionPlan *d, OwnerUse *o) {
        o->bytes = o->n_inodes = 0;
        for (size_t k = o->begin; k < o->end; k++)
                if (is_counted(d, d->by_owner[k])) {
                        o->bytes = add_saturated(o->bytes, d->items[d->by_owner[k]].bytes);
                        o->n_inodes = add_saturated(o->n_inodes, d->items[d->by_owner[k]].n_inodes);
                }
}

/* Of those who have something that may be released: whose files take most of what is short; of
 * several the one with the oldest. */
static OwnerUse *largest_owner(RetentionPlan *d) {
        OwnerUse *best = NULL;
        for (size_t i = 0; i < d->n_owners; i++) {
                OwnerUse *o = &d->owners[i];
                while (o->next < o->end &&
                       !(is_allowed(d, d->by_owner[o->next], d->act) &&
                         brings_nearer(d, &d->items[d->by_owner[o->next]], RETENTION_KEEP_FREE)))
                        o->next++;
                if (o->next == o->end)
                        continue;
                uint64_t use = lacks_bytes(d) ? o->bytes : o->n_inodes;
                uint64_t most = !best ? 0 : lacks_bytes(d) ? best->bytes : best->n_inodes;
                if (!best || use > most ||
                    (use == most && compare_age(&d->by_owner[o->next], &d->by_owner[best->next],
                                                (void *)d->items) < 0))
                        best = o;
        }
        return best;
}

static void set_keep_free(RetentionPlan *d, const RetentionBound *b, const RetentionSpace *space) {
        d->keep_free_bytes = bound_bytes(b, space->total_bytes);
        d->keep_free_inodes = bound_inodes(b, space->total_inodes);
}

static void release_for_keep_free(RetentionPlan *d, const RetentionSpace *space, RetentionAct act) {
        OwnerUse *o;
        d->act = act;
        set_keep_free(d,
                      act == RETENTION_RELEASE ? &d->policy->keep_free_undelivered
                                               : &d->policy->keep_free,
                      space);
        for (size_t i = 0; i < d->n_owners; i++) {
                d->owners[i].next = d->owners[i].begin;
                count_use(d, &d->owners[i]);
        }
        while (is_short(d) && (o = largest_owner(d))) {
                size_t i = d->by_owner[o->next++];
                o->bytes -= MIN(o->bytes, d->items[i].bytes);
                o->n_inodes -= MIN(o->n_inodes, d->items[i].n_inodes);
                release(d, i, act, RETENTION_KEEP_FREE);
        }
}

/* What is delivered, oldest first. */
static void release_for_max_use(RetentionPlan *d) {
        for (size_t k = 0; k < d->n; k++) {
                size_t i = d->order[k];
                if (is_allowed(d, i, RETENTION_DELETE) &&
                    brings_nearer(d, &d->items[i], RETENTION_MAX_USE))
                        release(d, i, RETENTION_DELETE, RETENTION_MAX_USE);
        }
}

static uint64_t due_usec(const RetentionPlan *d, const RetentionItem *item) {
        return add_saturated(item->delivered_usec, d->policy->keep_for_usec);
}

static void release_expired(RetentionPlan *d, uint64_t now_usec) {
        for (size_t i = 0; i < d->n; i++)
                if (is_allowed(d, i, RETENTION_DELETE) && due_usec(d, &d->items[i]) <= now_usec)
                        release(d, i, RETENTION_DELETE, RETENTION_KEEP_FOR);
}

static uint64_t next_due_usec(const RetentionPlan *d) {
        uint64_t next = UINT64_MAX;
        for (size_t i = 0; i < d->n; i++)
                if (is_allowed(d, i, RETENTION_DELETE))
                        next = MIN(next, due_usec(d, &d->items[i]));
        return next;
}

static int sort_by_age(RetentionPlan *d) {
        d->order = reallocarray(NULL, MAX(d->n, (size_t)1), sizeof *d->order);
        if (!d->order)
                return -ENOMEM;
        for (size_t i = 0; i < d->n; i++)
                d->order[i] = i;
        qsort_r(d->order, d->n, sizeof *d->order, compare_age, (void *)d->items);
        return 0;
}

int retention_decide(const RetentionPolicy *policy, const RetentionState *state,
                     RetentionVerdict *ret, RetentionReport *ret_report) {
        const RetentionSpace *space = &state->space;
        RetentionPlan d = { .policy = policy,
                            .items = state->items,
                            .n = state->n,
                            .verdicts = ret,
                            .free_bytes = space->free_bytes,
                            .free_inodes = space->free_inodes,
                            .max_use_bytes = bound_bytes(&policy->max_use, space->total_bytes) };
        int r = sort_by_age(&d);
        if (r < 0)
                return r;
        for (size_t i = 0; i < d.n; i++) {
                d.used_bytes = add_saturated(d.used_bytes, d.items[i].used_bytes);
                ret[i] = (RetentionVerdict){ RETENTION_KEEP, RETENTION_NO_REASON };
        }
        *ret_report = (RetentionReport){
                .used_bytes = d.used_bytes,
                .max_use_bytes = d.max_use_bytes,
                .free_bytes = d.free_bytes,
                .keep_free_bytes = bound_bytes(&policy->keep_free, space->total_bytes),
                .keep_free_undelivered_bytes =
                        bound_bytes(&policy->keep_free_undelivered, space->total_bytes)
        };
        release_expired(&d, state->now_usec);
        release_for_max_use(&d);
        r = group_by_owner(&d);
        if (r == 0) {
                release_for_keep_free(&d, space, RETENTION_DELETE);
                release_for_keep_free(&d, space, RETENTION_RELEASE);
                release_for_keep_free(&d, space, RETENTION_EVICT);
        }
        set_keep_free(&d, &policy->keep_free, space);
        ret_report->stays_short = is_short(&d);
        ret_report->stays_above_max_use = exceeds_max_use(&d);
        ret_report->next_usec = next_due_usec(&d);
        free(d.by_owner);
        free(d.owners);
        free(d.order);
        return r;
}

const char *retention_report_shortage(const RetentionReport *report, const char *key,
                                      uint64_t keep_bytes,
                                      char ret[static RETENTION_SHORTAGE_SIZE]) {
        char free_text[PARSE_FORMAT_SIZE], keep_text[PARSE_FORMAT_SIZE];
        if (report->free_bytes < keep_bytes)
                (void)snprintf(ret, RETENTION_SHORTAGE_SIZE, "%s were free and %s requires %s",
                               parse_format_human(free_text, report->free_bytes), key,
                               parse_format_human(keep_text, keep_bytes));
        else
                (void)snprintf(ret, RETENTION_SHORTAGE_SIZE,
                               "fewer inodes were free than %s requires", key);
        return ret;
}

char *retention_report_explain(const RetentionReport *r, const RetentionPolicy *t) {
        char a[PARSE_FORMAT_SIZE], b[PARSE_FORMAT_SIZE], shortage[RETENTION_SHORTAGE_SIZE];
        if (r->stays_short)
                return strbuf_format(
                        "short of free space: %s, and nothing more may be released; "
                        "free some, or %s",
                        retention_report_shortage(r, "keep_free", r->keep_free_bytes, shortage),
                        !t->may_delete  ? "set retention.after_delivery: delete"
                        : !t->may_evict ? "set retention.evict_undelivered: oldest"
                                        : "unpin what is not needed");
        if (r->stays_above_max_use)
                return strbuf_format("over max_use: sources use %s, max_use is %s; %s",
                                     parse_format_human(a, r->used_bytes),
                                     parse_format_human(b, r->max_use_bytes),
                                     t->may_delete
                                             ? "the rest is not delivered yet, or pinned"
                                             : "with after_delivery: keep this is only reported");
        return NULL;
}
