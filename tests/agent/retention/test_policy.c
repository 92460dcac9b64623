/* What may go and what must: the order, the bounds, and by thousands of seeds that nothing goes
 * that must not. */
#include <stdlib.h>
#include <string.h>

#include "tests/harness/unit.h"

#include "agent/retention/policy.h"
#include "lib/base/cleanup.h"

#define NOW (UINT64_C(1800000000) * USEC_PER_SEC)
#define ITEMS_MAX 24
#define SEEDS 20000

typedef struct Case {
        RetentionPolicy policy;
        RetentionSpace space;
        RetentionItem items[ITEMS_MAX];
        size_t n;
        RetentionVerdict verdicts[ITEMS_MAX];
        RetentionReport report;
} Case;

static void decide(Case *c) {
        RetentionState state = { c->space, NOW, c->items, c->n };
        assert_int_equal(retention_decide(&c->policy, &state, c->verdicts, &c->report), 0);
}

static Case roomy(void) {
        return (Case){
                .policy = { .may_delete = true,
                            .keep_for_usec = USEC_PER_DAY,
                            .max_use = { .is_on = true, .is_permille = true, .permille = 100 },
                            .keep_free = { .is_on = true, .is_permille = true, .permille = 150 },
                            .keep_free_undelivered = { .is_on = true,
                                                       .is_permille = true,
                                                       .permille = 150 } },
                .space = { .total_bytes = 1000 * GIB,
                           .free_bytes = 900 * GIB,
                           .total_inodes = 100000,
                           .free_inodes = 90000 }
        };
}

static RetentionItem item(uint64_t bytes, uint64_t age_usec, bool delivered) {
        return (RetentionItem){ .bytes = bytes,
                                .n_inodes = 3,
                                .used_bytes = bytes,
                                .first_seen_usec = NOW - age_usec,
                                .delivered_usec = delivered ? NOW - age_usec : 0 };
}

static void add_item(Case *c, RetentionItem i) {
        c->items[c->n++] = i;
}

static void assert_act(const Case *c, size_t i, RetentionAct act, RetentionWhy why) {
        assert_int_equal(c->verdicts[i].act, act);
        assert_int_equal(c->verdicts[i].why, why);
}

static void assert_kept(const Case *c, size_t i) {
        assert_act(c, i, RETENTION_KEEP, RETENTION_NO_REASON);
}

static void a_delivered_source_is_released_when_keep_for_ends(void **state) {
        Case c = roomy();
        add_item(&c, item(GIB, USEC_PER_DAY - 1, true));
        add_item(&c, item(GIB, USEC_PER_DAY, true));
        add_item(&c, item(GIB, 2 * USEC_PER_DAY, false));
        decide(&c);
        assert_kept(&c, 0);
        assert_act(&c, 1, RETENTION_DELETE, RETENTION_KEEP_FOR);
        assert_kept(&c, 2);
        assert_true(c.report.next_usec == NOW + 1);
}

static void with_keep_nothing_delivered_goes_whatever_is_violated(void **state) {
        Case c = roomy();
        c.policy.may_delete = false;
        c.policy.may_evict = true; /* --check refuses this; it must not matter */
        c.space.free_bytes = 0;
        add_item(&c, item(500 * GIB, 9 * USEC_PER_DAY, true));
        add_item(&c, item(400 * GIB, 9 * USEC_PER_DAY, false));
        decide(&c);
        assert_kept(&c, 0);
        assert_kept(&c, 1);
        assert_true(c.report.stays_above_max_use);
        assert_true(c.report.stays_short);
        assert_true(c.report.used_bytes == 900 * GIB && c.report.max_use_bytes == 100 * GIB);
        assert_true(c.report.next_usec == UINT64_MAX);
}

static void above_max_use_the_oldest_delivered_are_released_until_it_holds(void **state) {
        Case c = roomy();
        add_item(&c, item(40 * GIB, 1 * USEC_PER_HOUR, true));
        add_item(&c, item(40 * GIB, 3 * USEC_PER_HOUR, true));
        add_item(&c, item(40 * GIB, 2 * USEC_PER_HOUR, true));
        add_item(&c, item(30 * GIB, 20 * USEC_PER_HOUR, false));
        decide(&c);
        assert_kept(&c, 0);
        assert_act(&c, 1, RETENTION_DELETE, RETENTION_MAX_USE);
        assert_act(&c, 2, RETENTION_DELETE, RETENTION_MAX_USE); /* 110 GiB are still too much */
        assert_kept(&c, 3);
        assert_true(!c.report.stays_above_max_use);
}

static void short_of_space_delivered_go_first_then_what_is_only_ours_then_the_oldest(void **state) {
        Case c = roomy();
        c.policy.max_use.is_on = false;
        c.policy.may_evict = true;
        c.space.free_bytes = 100 * GIB;                         /* 50 GiB short */
        add_item(&c, item(30 * GIB, 9 * USEC_PER_HOUR, false)); /* the oldest of all */
        add_item(&c, item(10 * GIB, 5 * USEC_PER_HOUR, false));
        c.items[1].is_only_ours = true;
        add_item(&c, item(20 * GIB, 2 * USEC_PER_HOUR, true));
        add_item(&c, item(30 * GIB, 8 * USEC_PER_HOUR, false));
        decide(&c);
        assert_act(&c, 2, RETENTION_DELETE, RETENTION_KEEP_FREE);
        assert_act(&c, 1, RETENTION_RELEASE, RETENTION_KEEP_FREE);
        assert_act(&c, 0, RETENTION_EVICT, RETENTION_KEEP_FREE);
        assert_kept(&c, 3); /* 20 + 10 + 30 is enough */
        assert_false(c.report.stays_short);
        c.policy.may_evict = false;
        decide(&c);
        assert_kept(&c, 0);
        assert_act(&c, 1, RETENTION_RELEASE, RETENTION_KEEP_FREE);
        assert_true(c.report.stays_short);
}

static void what_is_only_ours_stays_while_there_is_space(void **state) {
        Case c = roomy();
        c.policy.may_delete = false;
        add_item(&c, item(GIB, 90 * USEC_PER_DAY, false));
        c.items[0].is_only_ours = true;
        decide(&c);
        assert_kept(&c, 0);
        c.space.free_bytes = 150 * GIB - 1;
        decide(&c);
        assert_act(&c, 0, RETENTION_RELEASE, RETENTION_KEEP_FREE);
}

static void undelivered_links_give_way_below_a_bound_of_their_own(void **state) {
        for (int may_delete = 0; may_delete < 2; may_delete++) {
                Case c = roomy();
                c.policy.may_delete = may_delete;
                c.policy.max_use.is_on = false;
                c.policy.keep_free_undelivered.permille = 30;
                add_item(&c, item(GIB, 9 * USEC_PER_HOUR, false));
                c.items[0].is_only_ours = true;
                c.space.free_bytes = 30 * GIB;
                decide(&c);
                assert_kept(&c, 0);
                assert_true(c.report.stays_short);
                c.space.free_bytes = 30 * GIB - 1;
                decide(&c);
                assert_act(&c, 0, RETENTION_RELEASE, RETENTION_KEEP_FREE);
                c.policy.keep_free.is_on = false; /* one bound does not need the other */
                decide(&c);
                assert_act(&c, 0, RETENTION_RELEASE, RETENTION_KEEP_FREE);
                c.policy.keep_free_undelivered.is_on = false;
                c.policy.keep_free.is_on = true;
                decide(&c);
                assert_kept(&c, 0);
        }
}

/* Not of the owner of the most files, nor of the oldest link. */
static void links_are_released_of_the_owner_whose_links_take_most(void **state) {
        Case c = roomy();
        c.policy.max_use.is_on = false;
        c.space.free_bytes = 149 * GIB;
        add_item(&c, item(GIB, 9 * USEC_PER_HOUR, false)); /* the oldest */
        add_item(&c, item(90 * GIB, 9 * USEC_PER_HOUR, false));
        add_item(&c, item(2 * GIB, 2 * USEC_PER_HOUR, false));
        add_item(&c, item(2 * GIB, 3 * USEC_PER_HOUR, false));
        for (size_t i = 0; i < c.n; i++) {
                c.items[i].is_only_ours = i != 1;
                c.items[i].uid = i < 2 ? 1000 : 2000;
        }
        decide(&c);
        for (size_t i = 0; i < 3; i++)
                assert_kept(&c, i);
        assert_act(&c, 3, RETENTION_RELEASE, RETENTION_KEEP_FREE);
}

static void inodes_run_short_as_bytes_do_but_only_where_they_are_counted(void **state) {
        Case c = roomy();
        add_item(&c, item(0, USEC_PER_HOUR, true));
        c.space.free_inodes = 14998; /* two short of 15 % */
        decide(&c);
        assert_act(&c, 0, RETENTION_DELETE, RETENTION_KEEP_FREE);
        assert_true(!c.report.stays_short);
        c.items[0].n_inodes = 0; /* its going would not help */
        decide(&c);
        assert_kept(&c, 0);
        c.items[0].n_inodes = 3;
        c.space.total_inodes = c.space.free_inodes = 0; /* btrfs */
        decide(&c);
        assert_kept(&c, 0);
        assert_false(c.report.stays_short);
        c.policy.keep_free = (RetentionBound){ .is_on = true, .bytes = GIB };
        c.space.total_inodes = 100000;
        c.space.free_inodes = 999; /* below one per cent */
        decide(&c);
        assert_act(&c, 0, RETENTION_DELETE, RETENTION_KEEP_FREE);
        c.policy.keep_free.is_on = false;
        decide(&c);
        assert_kept(&c, 0);
}

static void what_the_operator_pinned_and_what_is_busy_is_skipped(void **state) {
        Case c = roomy();
        c.policy.may_evict = true;
        c.space.free_bytes = 0;
        for (size_t i = 0; i < 6; i++) {
                add_item(&c, item(GIB, 9 * USEC_PER_DAY, i < 2));
                c.items[i].is_only_ours = i == 2 || i == 3;
                c.items[i].is_pinned = i % 2 == 0;
                c.items[i].is_busy = i % 2 == 1;
        }
        decide(&c);
        for (size_t i = 0; i < 6; i++)
                assert_kept(&c, i);
        assert_true(c.report.next_usec == UINT64_MAX);
}

static void absurd_figures_do_not_wrap_around(void **state) {
        Case c = roomy();
        c.policy.keep_for_usec = UINT64_MAX;
        c.space = (RetentionSpace){ UINT64_MAX, UINT64_MAX, UINT64_MAX, UINT64_MAX };
        add_item(&c, item(UINT64_MAX, USEC_PER_HOUR, true));
        add_item(&c, item(UINT64_MAX, USEC_PER_HOUR, true));
        decide(&c);
        assert_true(c.report.used_bytes == UINT64_MAX);
        assert_act(&c, 0, RETENTION_DELETE, RETENTION_MAX_USE);
        assert_false(c.report.stays_short);
        c.n = 0;
        decide(&c);
        assert_true(c.report.used_bytes == 0 && c.report.next_usec == UINT64_MAX);
}

/* ---- chance ---- */

static uint64_t next_random(uint64_t *seed) {
        *seed ^= *seed >> 12;
        *seed ^= *seed << 25;
        *seed ^= *seed >> 27;
        return *seed * UINT64_C(2685821657736338717);
}

static bool coin(uint64_t *seed) {
        return next_random(seed) >> 63;
}

static RetentionBound random_bound(uint64_t *seed) {
        return (RetentionBound){ .is_on = coin(seed),
                                 .is_permille = coin(seed),
                                 .permille = (unsigned)(next_random(seed) % 1001),
                                 .bytes = next_random(seed) % 1200 };
}

static Case random_case(uint64_t *seed) {
        Case c = { .policy = { .may_delete = coin(seed),
                               .may_evict = coin(seed),
                               .keep_for_usec = next_random(seed) % 100,
                               .max_use = random_bound(seed),
                               .keep_free = random_bound(seed) },
                   .space = { .total_bytes = 1000, .total_inodes = coin(seed) ? 1000 : 0 } };
        c.policy.keep_free_undelivered = c.policy.keep_free;
        c.space.free_bytes = next_random(seed) % 1001;
        c.space.free_inodes = c.space.total_inodes ? next_random(seed) % 1001 : 0;
        c.n = next_random(seed) % (ITEMS_MAX + 1);
        for (size_t i = 0; i < c.n; i++) {
                uint64_t bytes = next_random(seed) % 100, seen = NOW - next_random(seed) % 200;
                c.items[i] = (RetentionItem){
                        .bytes = coin(seed) ? bytes : 0,
                        .n_inodes = next_random(seed) % 20,
                        .used_bytes = bytes,
                        .first_seen_usec = seen,
                        .delivered_usec =
                                coin(seed) ? seen + next_random(seed) % (NOW - seen + 1) : 0,
                        .is_pinned = next_random(seed) % 5 == 0,
                        .is_busy = next_random(seed) % 5 == 0,
                        .is_only_ours = next_random(seed) % 3 == 0,
                };
        }
        return c;
}

static uint64_t bound_of(const RetentionBound *b, uint64_t total) {
        return !b->is_on ? 0 : b->is_permille ? total * b->permille / 1000 : b->bytes;
}

/* What is free and used once the acts of `c` are done, without that on item `but` (c->n: with all).
 */
static void after_acts(const Case *c, size_t but, RetentionSpace *ret_space, uint64_t *ret_used) {
        *ret_space = c->space;
        *ret_used = 0;
        for (size_t i = 0; i < c->n; i++) {
                bool gone = c->verdicts[i].act != RETENTION_KEEP && i != but;
                ret_space->free_bytes += gone ? c->items[i].bytes : 0;
                ret_space->free_inodes += gone ? c->items[i].n_inodes : 0;
                *ret_used += gone ? 0 : c->items[i].used_bytes;
        }
}

static bool exceeds_use(const Case *c, uint64_t used) {
        uint64_t max = bound_of(&c->policy.max_use, c->space.total_bytes);
        return max > 0 && used > max;
}

static void assert_allowed(const Case *c, size_t i) {
        const RetentionItem *x = &c->items[i];
        const RetentionVerdict *v = &c->verdicts[i];
        if (v->act == RETENTION_KEEP) {
                assert_int_equal(v->why, RETENTION_NO_REASON);
                return;
        }
        assert_false(x->is_pinned);
        assert_false(x->is_busy);
        assert_int_not_equal(v->why, RETENTION_NO_REASON);
        assert_true(c->policy.may_delete || v->act == RETENTION_RELEASE);
        if (v->act == RETENTION_DELETE) {
                assert_true(x->delivered_usec > 0);
        } else {
                assert_true(x->delivered_usec == 0);
                assert_int_equal(v->why, RETENTION_KEEP_FREE);
                assert_true(v->act == RETENTION_RELEASE ? x->is_only_ours : c->policy.may_evict);
        }
        if (v->why == RETENTION_KEEP_FOR)
                assert_true(x->delivered_usec + c->policy.keep_for_usec <= NOW);
        if (v->why == RETENTION_MAX_USE)
                assert_true(exceeds_use(c, c->report.used_bytes));
        if (v->why == RETENTION_KEEP_FREE)
                assert_true(retention_is_short(&c->policy, &c->space));
}

static bool is_older(const RetentionItem *a, const RetentionItem *b) {
        if (a->delivered_usec > 0 && b->delivered_usec > 0)
                return a->delivered_usec < b->delivered_usec;
        return a->first_seen_usec < b->first_seen_usec;
}

/* Whoever is older and could have gone for the same reason has gone, unless its going would not
 * have helped. */
static void assert_oldest_first(const Case *c, size_t i) {
        for (size_t k = 0; k < c->n; k++) {
                const RetentionItem *old = &c->items[k], *x = &c->items[i];
                bool same_kind = (old->delivered_usec > 0) == (x->delivered_usec > 0) &&
                                 (x->delivered_usec > 0 || old->is_only_ours == x->is_only_ours);
                if (c->verdicts[k].act != RETENTION_KEEP || old->is_pinned || old->is_busy ||
                    !same_kind || !is_older(old, x) || c->verdicts[i].why == RETENTION_KEEP_FOR)
                        continue;
                if (c->verdicts[i].why == RETENTION_MAX_USE)
                        assert_true(old->used_bytes == 0);
                else
                        assert_true(old->bytes == 0 || old->n_inodes == 0);
        }
}

/* The last one that goes for a bound is needed: without it the bound would be violated. Only the
 * youngest of the last kind can be said to be the last; every one is needed when its going is left
 * out and all others' stay, but for those that are smaller. */
static void assert_not_in_vain(const Case *c) {
        size_t last = c->n;
        for (size_t i = 0; i < c->n; i++) {
                if (c->verdicts[i].why != RETENTION_KEEP_FREE)
                        continue;
                if (last == c->n || c->verdicts[i].act > c->verdicts[last].act ||
                    (c->verdicts[i].act == c->verdicts[last].act &&
                     is_older(&c->items[last], &c->items[i])))
                        last = i;
        }
        RetentionSpace space;
        uint64_t used;
        after_acts(c, last, &space, &used);
        if (last < c->n)
                assert_true(retention_is_short(&c->policy, &space));
}

/* As long as a bound is violated nobody who may go and would help has been left. */
static void assert_all_done(const Case *c) {
        RetentionSpace space;
        uint64_t used;
        after_acts(c, c->n, &space, &used);
        assert_int_equal(c->report.stays_short, retention_is_short(&c->policy, &space));
        assert_int_equal(c->report.stays_above_max_use, exceeds_use(c, used));
        for (size_t i = 0; i < c->n; i++) {
                const RetentionItem *x = &c->items[i];
                if (c->verdicts[i].act != RETENTION_KEEP || x->is_pinned || x->is_busy)
                        continue;
                bool may = x->delivered_usec > 0 ? c->policy.may_delete
                                                 : x->is_only_ours || (c->policy.may_delete &&
                                                                       c->policy.may_evict);
                if (may && c->report.stays_short)
                        assert_true(x->bytes == 0 || x->n_inodes == 0);
                if (may && x->delivered_usec > 0 && c->report.stays_above_max_use)
                        assert_true(x->used_bytes == 0);
                if (may && x->delivered_usec > 0)
                        assert_true(x->delivered_usec + c->policy.keep_for_usec > NOW &&
                                    x->delivered_usec + c->policy.keep_for_usec >=
                                            c->report.next_usec);
        }
}

static void whatever_the_case_nothing_goes_without_a_reason_and_nothing_protected_goes(
        void **state) {
        const char *given = getenv("NC_SEED");
        uint64_t first = given ? strtoull(given, NULL, 10) : 20260527;
        unsigned n_acts[4] = { 0 };
        for (uint64_t k = 0; k < SEEDS; k++) {
                uint64_t seed = first + k + 1;
                for (int i = 0; i < 8; i++)
                        (void)next_random(&seed);
                Case c = random_case(&seed);
                decide(&c);
                for (size_t i = 0; i < c.n; i++) {
                        assert_allowed(&c, i);
                        if (c.verdicts[i].act != RETENTION_KEEP)
                                assert_oldest_first(&c, i);
                        n_acts[c.verdicts[i].act]++;
                }
                assert_not_in_vain(&c);
                assert_all_done(&c);
        }
        for (size_t i = 0; i < ELEMENTSOF(n_acts); i++) /* chance has met them all */
                assert_true(n_acts[i] > SEEDS / 100);
}

/* @return the index of the one item that was released, n for none, and fails for several */
static size_t released(const Case *c) {
        size_t found = c->n;
        for (size_t i = 0; i < c->n; i++)
                if (c->verdicts[i].act != RETENTION_KEEP) {
                        assert_int_equal(found, c->n);
                        found = i;
                }
        return found;
}

static void keep_free_releases_from_the_owner_whose_files_use_most(void **state) {
        for (RetentionAct act = RETENTION_DELETE; act <= RETENTION_EVICT; act++) {
                Case c = roomy();
                c.policy.may_evict = act == RETENTION_EVICT;
                c.policy.max_use.is_on = false;
                c.policy.keep_for_usec = 30 * USEC_PER_DAY;
                c.space.free_bytes = 149 * GIB; /* one GiB is short */
                bool delivered = act == RETENTION_DELETE;
                add_item(&c, item(2 * GIB, 90 * USEC_PER_MINUTE, delivered)); /* the victim's */
                for (size_t i = 0; i < 5; i++)
                        add_item(&c, item(GIB, (60 - i) * USEC_PER_MINUTE, delivered));
                for (size_t i = 0; i < c.n; i++) {
                        c.items[i].uid = i == 0 ? 1000 : 2000;
                        c.items[i].is_only_ours = act == RETENTION_RELEASE;
                }
                decide(&c);
                assert_int_equal(released(&c), 1); /* the oldest of the other one's */
                assert_act(&c, 1, act, RETENTION_KEEP_FREE);
                c.items[0] = item(9 * GIB, 50 * USEC_PER_MINUTE, delivered); /* and the youngest */
                c.items[0].uid = 1000;
                c.items[0].is_only_ours = act == RETENTION_RELEASE;
                decide(&c);
                assert_int_equal(released(&c), 0);
                for (size_t i = 1; i < c.n; i++) /* inodes, when they are what is short */
                        c.items[i].n_inodes = 100;
                c.space.free_bytes = 900 * GIB;
                c.space.free_inodes = 14999;
                decide(&c);
                assert_int_equal(released(&c), 1);
        }
}

int main(void) {
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(keep_free_releases_from_the_owner_whose_files_use_most),
                cmocka_unit_test(a_delivered_source_is_released_when_keep_for_ends),
                cmocka_unit_test(with_keep_nothing_delivered_goes_whatever_is_violated),
                cmocka_unit_test(above_max_use_the_oldest_delivered_are_released_until_it_holds),
                cmocka_unit_test(
                        short_of_space_delivered_go_first_then_what_is_only_ours_then_the_oldest),
                cmocka_unit_test(what_is_only_ours_stays_while_there_is_space),
                cmocka_unit_test(undelivered_links_give_way_below_a_bound_of_their_own),
                cmocka_unit_test(links_are_released_of_the_owner_whose_links_take_most),
                cmocka_unit_test(inodes_run_short_as_bytes_do_but_only_where_they_are_counted),
                cmocka_unit_test(what_the_operator_pinned_and_what_is_busy_is_skipped),
                cmocka_unit_test(absurd_figures_do_not_wrap_around),
                cmocka_unit_test(
                        whatever_the_case_nothing_goes_without_a_reason_and_nothing_protected_goes),
        };
        return cmocka_run_group_tests_name("retention", tests, NULL, NULL);
}
