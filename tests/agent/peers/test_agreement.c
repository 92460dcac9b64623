/* One agreement, step by step: what it asks, what it decides, what it refuses. Many of them
 * together: tests/sim. */
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "tests/harness/unit.h"

#include "agent/peers/agreement.h"
#include "lib/base/cleanup.h"
#include "lib/base/digest.h"

#define SEC INT64_C(1000000)
#define NOW (1000 * SEC)
#define SETTLE (10 * SEC)
#define WINDOW (600 * SEC)
#define KEY "0123456789abcdef"
#define ME "i-0000000000000000a"
#define PEER "i-0000000000000000b"

static Agreement *new_agreement(bool has_arbiter, Role role) {
        const AgreementOptions o = { ME, SETTLE, WINDOW, 7 };
        Agreement *a;

        assert_int_equal(agreement_new(&a, &o), 0);
        assert_int_equal(agreement_set_arbiter(a, KEY, has_arbiter), 0);
        assert_int_equal(agreement_set_role(a, KEY, role), 0);
        return a;
}

static Claim process(uint32_t pid, ClaimState s, const char *cluster_id, int64_t event) {
        Claim c = { .pid = pid,
                    .start_ticks = pid,
                    .revision = 1,
                    .rank = pid,
                    .world_size = 64,
                    .state = s,
                    .started_usec = event - 100 * SEC,
                    .event_usec = event };
        (void)strcpy(c.boot_id, "boot");
        (void)strcpy(c.instance_id, ME);
        snprintf(c.cluster_id, sizeof c.cluster_id, "%s", cluster_id);
        (void)strcpy(c.date_time, "20260527-051233");
        return c;
}

static Decision decision(uint32_t n, Agreed agreed, const char *cluster_id, int64_t opened) {
        Decision d = { .agreed = agreed, .n = n, .world_size = 64, .opened_usec = opened };
        (void)strcpy(d.key, KEY);
        snprintf(d.cluster_id, sizeof d.cluster_id, "%s", cluster_id);
        (void)strcpy(d.date_time, "20260527-051233");
        (void)strcpy(d.created_by, PEER);
        return d;
}

static void claim(Agreement *a, const Claim *c, int64_t now) {
        assert_int_equal(agreement_claim(a, KEY, c, false, now), 0);
}

static Action next(Agreement *a, ActionKind kind, int64_t now) {
        Action action;
        agreement_next_action(a, now, &action);
        assert_int_equal(action.kind, kind);
        return action;
}

/* @return when the action is due, which is then started */
static int64_t wait_for(Agreement *a, ActionKind kind, int64_t now, Action *ret) {
        for (int i = 0; i < 100; i++) {
                if (agreement_next_action(a, now, ret) != ACTION_NONE) {
                        assert_int_equal(ret->kind, kind);
                        return now;
                }
                now = agreement_next_time(a);
                assert_true(now < AGREEMENT_NEVER);
        }
        fail();
        return 0;
}

static void on_listed(Agreement *a, const char *key, StoreOutcome outcome,
                      const ListedFailure *listed, size_t n_listed, int64_t now) {
        agreement_on_done(
                a, key, ACTION_LIST, 0,
                &(StoreResult){ .outcome = outcome, .listed = listed, .n_listed = n_listed }, now);
}

static void on_read(Agreement *a, const char *key, uint32_t n, StoreOutcome outcome,
                    const Decision *d, int64_t now) {
        agreement_on_done(a, key, ACTION_READ, n,
                          &(StoreResult){ .outcome = outcome, .decision = d }, now);
}

static void on_created(Agreement *a, const char *key, uint32_t n, StoreOutcome outcome,
                       int64_t opened_usec, int64_t now) {
        agreement_on_done(a, key, ACTION_CREATE, n,
                          &(StoreResult){ .outcome = outcome, .opened_usec = opened_usec }, now);
}

static void on_recorded(Agreement *a, const char *key, uint32_t n, StoreOutcome outcome,
                        int64_t now) {
        agreement_on_done(a, key, ACTION_RECORD, n, &(StoreResult){ .outcome = outcome }, now);
}

static void on_published(Agreement *a, const char *key, uint32_t n, StoreOutcome outcome,
                         int64_t now) {
        agreement_on_done(a, key, ACTION_PUBLISH, n, &(StoreResult){ .outcome = outcome }, now);
}

static void list(Agreement *a, const ListedFailure *l, size_t n, int64_t now) {
        next(a, ACTION_LIST, now);
        on_listed(a, KEY, STORE_OUTCOME_OK, l, n, now);
}

/* Claims, settles, lists nothing and creates 1. */
static void create_first(Agreement *a, const Claim *c) {
        claim(a, c, NOW);
        list(a, NULL, 0, NOW + SETTLE);
        assert_int_equal(next(a, ACTION_CREATE, NOW + SETTLE).n, 1);
        on_created(a, KEY, 1, STORE_OUTCOME_OK, NOW + SETTLE, NOW + SETTLE);
}

static void a_claim_without_a_cluster_id_settles_first(void **state) {
        Agreement *a = new_agreement(true, ROLE_NONE);
        const Claim c = process(1, CLAIM_FAILED, "0000000000000000", NOW);

        claim(a, &c, NOW);
        assert_null(agreement_find(a, KEY, &c));
        assert_true(agreement_is_pending(a, KEY, &c));
        next(a, ACTION_NONE, NOW + SETTLE - 1);
        assert_true(agreement_next_time(a) == NOW + SETTLE);
        list(a, NULL, 0, NOW + SETTLE);
        const Action create = next(a, ACTION_CREATE, NOW + SETTLE);
        assert_int_equal(create.n, 1);
        assert_true(create.decision.derived);
        assert_string_equal(create.decision.cluster_id, "b551ec5b755b3450");
        assert_string_equal(create.decision.created_by, ME);
        assert_int_equal(create.decision.world_size, 64);
        next(a, ACTION_NONE, NOW + SETTLE); /* one at a time */
        on_created(a, KEY, 1, STORE_OUTCOME_OK, NOW + SETTLE, NOW + SETTLE);
        assert_int_equal(agreement_find(a, KEY, &c)->n, 1);
        assert_int_equal(agreement_find(a, KEY, &c)->agreed, AGREED_STORE);
        assert_false(agreement_is_pending(a, KEY, &c));
        agreement_free(a);
}

static void the_world_size_is_that_of_the_launch_that_failed(void **state) {
        Agreement *a = new_agreement(true, ROLE_NONE);
        Claim before = process(1, CLAIM_ENDED, "", NOW - 60 * SEC),
              after = process(3, CLAIM_ALIVE, "", NOW);
        const Claim failed = process(2, CLAIM_FAILED, "0000000000000000", NOW);
        before.world_size = 96; /* it was started before, and one that was started afterwards */
        after.world_size = 32;
        after.started_usec = NOW + 3 * SEC;
        after.event_usec = NOW + 3 * SEC;
        claim(a, &before, NOW);
        claim(a, &failed, NOW);
        claim(a, &after, NOW + 3 * SEC);
        list(a, NULL, 0, NOW + SETTLE);
        assert_int_equal(next(a, ACTION_CREATE, NOW + SETTLE).decision.world_size, 64);
        agreement_free(a);
}

static void a_claim_with_a_cluster_id_asks_at_once_and_names_the_failure(void **state) {
        Agreement *a = new_agreement(true, ROLE_NONE);
        const Claim c = process(1, CLAIM_FAILED, "d99e36ea74c263ca", NOW);

        claim(a, &c, NOW);
        list(a, NULL, 0, NOW);
        const Action create = next(a, ACTION_CREATE, NOW);
        assert_string_equal(create.decision.cluster_id, "d99e36ea74c263ca");
        assert_string_equal(create.decision.date_time, "20260527-051233");
        assert_false(create.decision.derived);
        agreement_free(a);
}

static void hurrying_ends_the_settling(void **state) {
        Agreement *a = new_agreement(true, ROLE_LEAF);
        const Claim c = process(1, CLAIM_FAILED, "", NOW);

        claim(a, &c, NOW);
        next(a, ACTION_SEND, NOW);
        next(a, ACTION_NONE, NOW);
        agreement_hurry(a, true);
        next(a, ACTION_LIST, NOW);
        agreement_free(a);
}

static void what_is_listed_is_read_and_adopted(void **state) {
        Agreement *a = new_agreement(true, ROLE_NONE);
        const Claim c = process(1, CLAIM_FAILED, "", NOW);
        const ListedFailure l[] = { { 1, true, NOW - 2000 * SEC, NOW - 2000 * SEC },
                                    { 2, true, NOW + SEC, NOW } };
        const Decision d = decision(2, AGREED_STORE, "d99e36ea74c263ca", NOW + SEC);

        claim(a, &c, NOW);
        list(a, l, 2, NOW + SETTLE); /* 1 is too old: started too late for it */
        assert_int_equal(next(a, ACTION_READ, NOW + SETTLE).n, 2);
        on_read(a, KEY, 2, STORE_OUTCOME_OK, &d, NOW + SETTLE);
        assert_int_equal(agreement_find(a, KEY, &c)->n, 2);
        assert_string_equal(agreement_find(a, KEY, &c)->cluster_id, "d99e36ea74c263ca");
        agreement_free(a);
}

/* The store was away for an hour: the failure was opened long after what it is about. */
static void what_was_read_in_order_is_adopted_however_late_it_was_opened(void **state) {
        Agreement *a = new_agreement(true, ROLE_NONE);
        const Claim c = process(1, CLAIM_FAILED, "", NOW);
        const ListedFailure l[] = { { 1, true, NOW - 2000 * SEC, NOW - 2000 * SEC },
                                    { 2, true, NOW + 3600 * SEC, NOW } };
        const Decision d = decision(2, AGREED_STORE, "d99e36ea74c263ca", NOW + 3600 * SEC);

        claim(a, &c, NOW);
        list(a, l, 2, NOW + 3610 * SEC);
        assert_int_equal(next(a, ACTION_READ, NOW + 3610 * SEC).n, 2);
        on_read(a, KEY, 2, STORE_OUTCOME_OK, &d, NOW + 3610 * SEC);
        assert_int_equal(agreement_find(a, KEY, &c)->n, 2);
        agreement_free(a);
}

static void what_started_later_is_the_next_failure(void **state) {
        Agreement *a = new_agreement(true, ROLE_NONE);
        Claim c = process(1, CLAIM_FAILED, "", NOW);
        const int64_t opened = c.started_usec - AGREEMENT_START_SLACK_USEC;
        const ListedFailure just = { 1, true, opened, NOW };
        const ListedFailure earlier = { 1, true, opened - 1, NOW };
        const Decision d = decision(1, AGREED_STORE, "d99e36ea74c263ca", opened - 1);

        claim(a, &c, NOW);
        list(a, &earlier, 1, NOW + SETTLE);
        assert_int_equal(next(a, ACTION_READ, NOW + SETTLE).n, 1); /* the highest: its id counts */
        on_read(a, KEY, 1, STORE_OUTCOME_OK, &d, NOW + SETTLE);
        assert_int_equal(next(a, ACTION_CREATE, NOW + SETTLE).n, 2);
        on_created(a, KEY, 2, STORE_OUTCOME_EXISTS, 0, NOW + SETTLE);
        assert_int_equal(next(a, ACTION_READ, NOW + SETTLE).n, 2);
        on_read(a, KEY, 2, STORE_OUTCOME_NOT_FOUND, NULL, NOW + SETTLE);
        next(a, ACTION_NONE, NOW + SETTLE + SEC / 20);
        list(a, &just, 1, NOW + SETTLE + SEC);
        Decision same = d;
        same.opened_usec = opened;
        next(a, ACTION_READ, NOW + SETTLE + SEC);
        on_read(a, KEY, 1, STORE_OUTCOME_OK, &same, NOW + SETTLE + SEC);
        assert_int_equal(agreement_find(a, KEY, &c)->n, 1);
        agreement_free(a);
}

static void what_another_node_created_first_is_read(void **state) {
        Agreement *a = new_agreement(true, ROLE_NONE);
        const Claim c = process(1, CLAIM_FAILED, "", NOW);
        const Decision earlier =
                decision(1, AGREED_STORE, "d99e36ea74c263ca", c.started_usec - 10 * SEC);
        const Decision d = decision(2, AGREED_STORE, "c99e36ea74c263ca", NOW + SETTLE);

        claim(a, &c, NOW);
        list(a, NULL, 0, NOW + SETTLE);
        next(a, ACTION_CREATE, NOW + SETTLE);
        on_created(a, KEY, 1, STORE_OUTCOME_EXISTS, 0, NOW + SETTLE);
        next(a, ACTION_READ, NOW + SETTLE);
        on_read(a, KEY, 1, STORE_OUTCOME_OK, &earlier, NOW + SETTLE);
        assert_int_equal(next(a, ACTION_CREATE, NOW + SETTLE).n, 2);
        on_created(a, KEY, 2, STORE_OUTCOME_EXISTS, 0, NOW + SETTLE);
        next(a, ACTION_READ, NOW + SETTLE);
        on_read(a, KEY, 2, STORE_OUTCOME_OK, &d, NOW + SETTLE);
        assert_int_equal(agreement_find(a, KEY, &c)->n, 2);
        agreement_free(a);
}

static void a_cluster_id_counts_more_than_times(void **state) {
        Agreement *a = new_agreement(true, ROLE_NONE);
        const Claim c = process(1, CLAIM_FAILED, "d99e36ea74c263ca", NOW);
        const ListedFailure l = { 4, true, NOW - 5000 * SEC, NOW - 5000 * SEC };
        const Decision d = decision(4, AGREED_STORE, "d99e36ea74c263ca", NOW - 5000 * SEC);

        claim(a, &c, NOW);
        list(a, &l, 1, NOW);
        next(a, ACTION_READ, NOW);
        on_read(a, KEY, 4, STORE_OUTCOME_OK, &d, NOW);
        assert_int_equal(agreement_find(a, KEY, &c)->n, 4);
        agreement_free(a);
}

static void hostile_decisions_are_not_adopted(void **state) {
        Agreement *a = new_agreement(true, ROLE_NONE);
        const Claim c = process(1, CLAIM_FAILED, "", NOW);
        const ListedFailure l = { 1, true, NOW, NOW };
        Decision d = decision(1, AGREED_STORE, "../../x", NOW);

        claim(a, &c, NOW);
        list(a, &l, 1, NOW + SETTLE);
        next(a, ACTION_READ, NOW + SETTLE);
        on_read(a, KEY, 1, STORE_OUTCOME_OK, &d, NOW + SETTLE);
        assert_null(agreement_find(a, KEY, &c));
        assert_int_equal(next(a, ACTION_CREATE, NOW + SETTLE).n, 2);
        agreement_free(a);
}

static void a_listing_full_of_nonsense_is_no_arbiter(void **state) {
        Agreement *a = new_agreement(true, ROLE_NONE);
        const Claim c = process(1, CLAIM_FAILED, "", NOW);
        const ListedFailure l[] = { { 3, true, INT64_MAX, INT64_MAX },
                                    { UINT32_MAX, false, INT64_MIN, INT64_MAX } };

        claim(a, &c, NOW);
        list(a, l, 2, NOW + SETTLE);
        next(a, ACTION_NONE, NOW + SETTLE);
        assert_false(agreement_is_pending(a, KEY, &c));
        agreement_free(a);
}

static void the_unreachable_is_asked_again_for_ever_and_the_unable_never(void **state) {
        Agreement *a = new_agreement(true, ROLE_NONE);
        const Claim c = process(1, CLAIM_FAILED, "d99e36ea74c263ca", NOW);
        int64_t now = NOW, last = NOW;
        Action action;

        claim(a, &c, NOW);
        for (int i = 0; i < 100; i++) {
                now = wait_for(a, ACTION_LIST, now, &action);
                assert_true(now - last <= 30 * SEC);
                assert_true(i == 0 || now - last >= SEC / 2);
                on_listed(a, KEY, STORE_OUTCOME_UNREACHABLE, NULL, 0, now);
                assert_true(agreement_is_pending(a, KEY, &c));
                last = now;
        }
        now = wait_for(a, ACTION_LIST, now, &action);
        on_listed(a, KEY, STORE_OUTCOME_UNABLE, NULL, 0, now);
        assert_false(agreement_is_pending(a, KEY, &c));
        assert_true(agreement_next_time(a) == AGREEMENT_NEVER);
        assert_int_equal(agreement_set_arbiter(a, KEY, true), 0); /* it is still the same one */
        next(a, ACTION_NONE, now + 1000 * SEC);
        assert_int_equal(agreement_set_arbiter(a, KEY, false), 0);
        assert_int_equal(agreement_set_arbiter(a, KEY, true), 0);
        next(a, ACTION_LIST, now + 1000 * SEC);
        agreement_free(a);
}

static void records_follow_changes_less_and_less_often(void **state) {
        Agreement *a = new_agreement(true, ROLE_NONE);
        Claim c = process(1, CLAIM_FAILED, "", NOW);
        int64_t last = 0;
        unsigned n = 0;
        Action action;

        create_first(a, &c);
        for (int64_t now = NOW + SETTLE; now < NOW + SETTLE + 100 * SEC; now += SEC / 10) {
                if (now % SEC == 0) {
                        c.revision++;
                        claim(a, &c, now);
                }
                while (agreement_next_action(a, now, &action) != ACTION_NONE) {
                        if (action.kind == ACTION_PUBLISH) {
                                on_published(a, KEY, 1, STORE_OUTCOME_OK, now);
                                continue;
                        }
                        assert_int_equal(action.kind, ACTION_RECORD);
                        const ClaimSet *claims = agreement_claims(a, KEY, 1);
                        assert_int_equal(claims->n, 1);
                        assert_int_equal(claims->items[0].revision, c.revision);
                        assert_true(n > 0 ? now - last >= (2 * SEC << (n - 1 < 4 ? n - 1 : 3))
                                          : now <= NOW + SETTLE + SEC);
                        last = now;
                        n++;
                        on_recorded(a, KEY, 1, STORE_OUTCOME_OK, now);
                }
        }
        assert_in_range(n, 5, 8);
        agreement_free(a);
}

static void the_creator_publishes_three_times_then_when_its_record_is_missing(void **state) {
        Agreement *a = new_agreement(true, ROLE_NONE);
        Claim c = process(1, CLAIM_FAILED, "", NOW);
        int64_t now = NOW + SETTLE;
        Action action;

        create_first(a, &c);
        now = wait_for(a, ACTION_RECORD, now, &action);
        on_recorded(a, KEY, 1, STORE_OUTCOME_OK, now);
        static const int64_t times[] = { 2 * SEC, 15 * SEC, 60 * SEC };
        for (size_t i = 0; i < ELEMENTSOF(times); i++) {
                now = wait_for(a, ACTION_PUBLISH, now, &action);
                assert_true(now == NOW + SETTLE + times[i]);
                assert_false(action.unless_listed);
                if (i == 2) {
                        on_published(a, KEY, 1, STORE_OUTCOME_UNREACHABLE, now);
                        now = wait_for(a, ACTION_PUBLISH, now, &action);
                }
                on_published(a, KEY, 1, STORE_OUTCOME_OK, now);
        }
        assert_true(agreement_next_time(a) == AGREEMENT_NEVER);
        c.revision++;
        claim(a, &c, now);
        now = wait_for(a, ACTION_RECORD, now, &action);
        on_recorded(a, KEY, 1, STORE_OUTCOME_OK, now);
        now = wait_for(a, ACTION_PUBLISH, now, &action);
        assert_true(action.unless_listed);
        agreement_free(a);
}

static void who_did_not_create_it_stands_in_for_a_dead_creator(void **state) {
        Agreement *a = new_agreement(true, ROLE_NONE);
        const Claim c = process(1, CLAIM_FAILED, "", NOW);
        const Decision d = decision(1, AGREED_STORE, "d99e36ea74c263ca", NOW);
        Action action;

        assert_int_equal(agreement_restore(a, &d, &c, NOW), 0);
        assert_int_equal(agreement_find(a, KEY, &c)->n, 1);
        int64_t now = wait_for(a, ACTION_RECORD, NOW, &action);
        on_recorded(a, KEY, 1, STORE_OUTCOME_OK, now);
        now = wait_for(a, ACTION_PUBLISH, now, &action);
        assert_true(now >= NOW + 75 * SEC && now <= NOW + 135 * SEC);
        assert_true(action.unless_listed);
        agreement_free(a);
}

static void a_job_on_this_node_waits_for_nobody(void **state) {
        Agreement *a = new_agreement(true, ROLE_NONE);
        const Claim c = process(1, CLAIM_FAILED, "", NOW);
        const ListedFailure l = { 3, true, NOW - 900 * SEC, NOW - 900 * SEC };
        const Decision other = decision(3, AGREED_STORE, "d99e36ea74c263ca", NOW - 900 * SEC);

        assert_int_equal(agreement_claim(a, KEY, &c, true, NOW), 0);
        const Decision named = *agreement_find(a, KEY, &c);
        assert_int_equal(named.n, 0);
        assert_int_equal(named.agreed, AGREED_ALONE);
        list(a, &l, 1, NOW); /* in the background */
        next(a, ACTION_READ, NOW);
        on_read(a, KEY, 3, STORE_OUTCOME_OK, &other, NOW);
        assert_string_equal(next(a, ACTION_CREATE, NOW).decision.cluster_id, named.cluster_id);
        on_created(a, KEY, 4, STORE_OUTCOME_OK, NOW + SEC, NOW + SEC);
        assert_int_equal(agreement_find(a, KEY, &c)->n, 4);
        assert_string_equal(agreement_find(a, KEY, &c)->cluster_id, named.cluster_id);
        agreement_free(a);
}

static void a_job_on_this_node_finds_the_number_whose_answer_was_lost(void **state) {
        Agreement *a = new_agreement(true, ROLE_NONE);
        const Claim c = process(1, CLAIM_FAILED, "", NOW);
        const ListedFailure l = { 1, true, NOW, INT64_MIN };
        Action action;

        assert_int_equal(agreement_claim(a, KEY, &c, true, NOW), 0);
        list(a, NULL, 0, NOW);
        const Decision d = next(a, ACTION_CREATE, NOW).decision;
        on_created(a, KEY, 1, STORE_OUTCOME_UNREACHABLE, 0, NOW);
        const int64_t now = wait_for(a, ACTION_LIST, NOW, &action);
        on_listed(a, KEY, STORE_OUTCOME_OK, &l, 1, now);
        next(a, ACTION_READ, now);
        on_read(a, KEY, 1, STORE_OUTCOME_OK, &d, now);
        assert_int_equal(agreement_find(a, KEY, &c)->n, 1);
        agreement_free(a);
}

static void who_ended_without_a_dump_looks_for_the_failure(void **state) {
        Agreement *a = new_agreement(true, ROLE_NONE);
        const Claim c = process(1, CLAIM_ENDED, "", NOW);
        const ListedFailure l = { 1, true, NOW + SEC, NOW };
        const Decision d = decision(1, AGREED_STORE, "d99e36ea74c263ca", NOW + SEC);
        Action action;

        claim(a, &c, NOW);
        assert_false(agreement_is_pending(a, KEY, &c));
        int64_t now = wait_for(a, ACTION_LIST, NOW, &action);
        assert_true(now == NOW + 10 * SEC);
        on_listed(a, KEY, STORE_OUTCOME_OK, NULL, 0, now);
        next(a, ACTION_NONE, now); /* it creates nothing */
        now = wait_for(a, ACTION_LIST, now, &action);
        assert_true(now == NOW + 20 * SEC);
        on_listed(a, KEY, STORE_OUTCOME_OK, &l, 1, now);
        next(a, ACTION_READ, now);
        on_read(a, KEY, 1, STORE_OUTCOME_OK, &d, now);
        assert_int_equal(agreement_find(a, KEY, &c)->n, 1);
        agreement_free(a);
}

static void looking_ends_with_the_window(void **state) {
        Agreement *a = new_agreement(true, ROLE_NONE);
        const Claim c = process(1, CLAIM_ENDED, "", NOW);
        unsigned n = 0;
        Action action;

        claim(a, &c, NOW);
        for (int64_t now = NOW; (now = agreement_next_time(a)) != AGREEMENT_NEVER; n++) {
                assert_int_equal(agreement_next_action(a, now, &action), ACTION_LIST);
                on_listed(a, KEY, STORE_OUTCOME_OK, NULL, 0, now);
                assert_true(n < 10);
        }
        assert_int_equal(n, 7); /* after 10, 20, 40 … 640 s */
        agreement_free(a);
}

/* ---- the bus ---- */

static uint64_t node_of(const char *instance_id) {
        uint8_t digest[SHA256_SIZE];
        uint64_t node = 0;
        sha256_of(instance_id, strlen(instance_id), digest);
        for (size_t i = 0; i < 8; i++)
                node = node << 8 | digest[i];
        return node;
}

static Message message(MessageKind kind) {
        Message m = { .kind = kind };
        (void)strcpy(m.sender, PEER);
        (void)strcpy(m.key, KEY);
        return m;
}

static void a_leaf_sends_until_it_is_heard(void **state) {
        Agreement *a = new_agreement(false, ROLE_LEAF);
        const Claim c = process(1, CLAIM_FAILED, "", NOW);
        static Message news;
        int64_t now = NOW;
        Action action;

        claim(a, &c, NOW);
        static const int64_t times[] = { 0, 300000, 1300000, 4300000 };
        for (size_t i = 0; i < ELEMENTSOF(times); i++) {
                now = wait_for(a, ACTION_SEND, now, &action);
                assert_true(now == NOW + times[i]);
                assert_int_equal(action.message->kind, MESSAGE_CLAIMS);
                assert_int_equal(action.message->n_claims, 1);
                assert_string_equal(action.message->sender, ME);
        }
        assert_true(agreement_is_pending(a, KEY, &c));
        news = message(MESSAGE_NEWS);
        news.has_decision = true;
        news.decision = decision(1, AGREED_BUS, "d99e36ea74c263ca", NOW + SETTLE);
        news.heard[news.n_heard++] = (Heard){ node_of(ME), 1 };
        assert_int_equal(agreement_hear(a, &news, now), 0);
        assert_int_equal(agreement_find(a, KEY, &c)->agreed, AGREED_BUS);
        assert_true(agreement_next_time(a) == AGREEMENT_NEVER);
        agreement_free(a);
}

static void a_leaf_that_is_heard_but_undecided_sends_now_and_then(void **state) {
        Agreement *a = new_agreement(false, ROLE_LEAF);
        const Claim c = process(1, CLAIM_FAILED, "", NOW);
        static Message news;
        Action action;

        claim(a, &c, NOW);
        next(a, ACTION_SEND, NOW);
        news = message(MESSAGE_NEWS);
        news.heard[news.n_heard++] = (Heard){ node_of(ME), 1 };
        assert_int_equal(agreement_hear(a, &news, NOW), 0);
        const int64_t at = wait_for(a, ACTION_SEND, NOW, &action);
        assert_true(at >= NOW + SETTLE + SEC && at <= NOW + SETTLE + 3 * SEC);
        news = message(MESSAGE_NEWS); /* which does not say again that it was heard */
        news.has_decision = true;
        news.decision = decision(1, AGREED_BUS, "d99e36ea74c263ca", NOW);
        assert_int_equal(agreement_hear(a, &news, at), 0);
        assert_int_equal(agreement_find(a, KEY, &c)->n, 1);
        assert_true(agreement_next_time(a) == AGREEMENT_NEVER);
        agreement_free(a);
}

/* @return of the first failure */
static size_t n_claims(const Agreement *a) {
        AgreementFailure f;
        assert_true(agreement_failure(a, 0, &f));
        return f.claims->n;
}

static void a_contradicting_decision_is_ignored(void **state) {
        Agreement *a = new_agreement(false, ROLE_LEAF);
        const Claim c = process(1, CLAIM_FAILED, "", NOW);
        static Message news;

        claim(a, &c, NOW);
        news = message(MESSAGE_NEWS);
        news.has_decision = true;
        news.decision = decision(1, AGREED_BUS, "d99e36ea74c263ca", NOW);
        assert_int_equal(agreement_hear(a, &news, NOW), 0);
        news.decision = decision(1, AGREED_BUS, "aaaaaaaaaaaaaaaa", NOW);
        assert_int_equal(agreement_hear(a, &news, NOW), 0);
        assert_string_equal(agreement_find(a, KEY, &c)->cluster_id, "d99e36ea74c263ca");
        agreement_free(a);
}

static void a_claim_stays_in_its_failure(void **state) {
        Agreement *a = new_agreement(false, ROLE_LEAF);
        Claim c = process(1, CLAIM_FAILED, "", NOW);
        const Decision second = decision(2, AGREED_BUS, "d99e36ea74c263ca", NOW - 60 * SEC);
        static Message news;

        assert_int_equal(agreement_restore(a, &second, &c, NOW), 0);
        news = message(MESSAGE_NEWS);
        news.has_decision = true;
        news.decision = decision(1, AGREED_BUS, "aaaaaaaaaaaaaaaa", NOW - 50 * SEC);
        Claim other = process(2, CLAIM_FAILED, "aaaaaaaaaaaaaaaa", NOW);
        other.started_usec = NOW - 50 * SEC;
        claim(a, &other, NOW);
        assert_int_equal(agreement_hear(a, &news, NOW), 0);
        assert_int_equal(agreement_find(a, KEY, &other)->n, 1);
        c.revision++;
        claim(a, &c, NOW); /* 1 is the first one that it would belong to */
        assert_int_equal(agreement_find(a, KEY, &c)->n, 2);
        assert_int_equal(n_claims(a), 1);
        agreement_free(a);
}

static void news_of_a_job_whose_ranks_live_here_is_kept(void **state) {
        Agreement *a = new_agreement(false, ROLE_LEAF);
        const Claim c = process(1, CLAIM_ALIVE, "", NOW);
        AgreementFailure f;
        static Message news;

        claim(a, &c, NOW);
        next(a, ACTION_NONE, NOW); /* nothing has failed: nothing to say */
        assert_false(agreement_failure(a, 0, &f));
        news = message(MESSAGE_NEWS);
        news.has_decision = true;
        news.decision = decision(1, AGREED_BUS, "d99e36ea74c263ca", NOW + 5000 * SEC);
        assert_int_equal(agreement_hear(a, &news, NOW + 5000 * SEC), 0);
        assert_true(agreement_failure(a, 0, &f));
        assert_int_equal(f.claims->n, 1);
        assert_int_equal(agreement_find(a, KEY, &c)->n, 1);
        assert_int_equal(next(a, ACTION_SEND, NOW + 5000 * SEC).message->n_claims, 1);
        assert_false(agreement_failure(a, 1, &f));
        agreement_free(a);
}

static void the_centre_decides_alone_without_an_arbiter(void **state) {
        Agreement *a = new_agreement(false, ROLE_CENTRE);
        static Message m;
        Action action;

        m = message(MESSAGE_CLAIMS);
        m.claims[m.n_claims] = process(1, CLAIM_FAILED, "", NOW);
        (void)strcpy(m.claims[m.n_claims++].instance_id, PEER);
        m.claims[m.n_claims] = process(2, CLAIM_FAILED, "", NOW); /* not the sender's */
        (void)strcpy(m.claims[m.n_claims++].instance_id, "i-0000000000000000c");
        assert_int_equal(agreement_hear(a, &m, NOW), 0);
        action = next(a, ACTION_SEND, NOW);
        assert_int_equal(action.message->kind, MESSAGE_NEWS);
        assert_false(action.message->has_decision);
        assert_int_equal(action.message->n_heard, 1);
        assert_true(action.message->heard[0].node == node_of(PEER));
        assert_int_equal(action.message->heard[0].revisions, 1);
        next(a, ACTION_NONE, NOW + SETTLE - 1);
        action = next(a, ACTION_SEND, NOW + SETTLE);
        assert_true(action.message->has_decision);
        assert_int_equal(action.message->decision.n, 1);
        assert_int_equal(action.message->decision.agreed, AGREED_BUS);
        assert_int_equal(n_claims(a), 1);
        assert_int_equal(agreement_hear(a, &m, NOW + SETTLE), 0); /* it missed the news */
        next(a, ACTION_NONE, NOW + SETTLE + 199999);
        assert_true(next(a, ACTION_SEND, NOW + SETTLE + 200000).message->has_decision);
        agreement_free(a);
}

/* A failure that is dropped at the limit of claims is forgotten; its number is not given again. */
static void a_number_of_the_bus_has_one_name(void **state) {
        Agreement *a = new_agreement(false, ROLE_CENTRE);
        Action action;
        uint32_t n = 0;
        const Claim first = process(1, CLAIM_FAILED, "", NOW);
        claim(a, &first, NOW);
        while (agreement_next_action(a, NOW + SETTLE, &action) != ACTION_NONE)
                n = action.message->has_decision ? action.message->decision.n : n;
        assert_int_equal(n, 1);
        for (uint32_t pid = 2; pid <= CLAIMS_MAX + 1; pid++) {
                const Claim c = process(pid, CLAIM_FAILED, "", NOW + SETTLE);
                claim(a, &c, NOW + SETTLE);
        }
        assert_null(agreement_find(a, KEY, &first));
        while (agreement_next_action(a, NOW + 3 * SETTLE, &action) != ACTION_NONE)
                n = action.message->has_decision ? action.message->decision.n : n;
        assert_int_equal(n, 2);
        agreement_free(a);
}

static void what_fails_after_the_window_is_the_next_failure(void **state) {
        Agreement *a = new_agreement(false, ROLE_CENTRE);
        const int64_t times[] = { NOW, NOW + WINDOW, NOW + 2 * WINDOW + 1 };
        static const uint32_t numbers[] = { 1, 1, 2 };

        for (uint32_t i = 0; i < ELEMENTSOF(times); i++) {
                Claim c = process(i + 1, CLAIM_FAILED, "", times[i]);
                c.started_usec = NOW - 100 * SEC;
                claim(a, &c, times[i]);
                agreement_hurry(a, true);
                (void)next(a, i == 1 ? ACTION_NONE : ACTION_SEND, times[i]);
                assert_int_equal(agreement_find(a, KEY, &c)->n, numbers[i]);
        }
        agreement_free(a);
}

/* ---- hostile input, bounds ---- */

static void what_cannot_be_named_or_placed_is_refused(void **state) {
        Agreement *a = new_agreement(true, ROLE_NONE);
        Claim c = process(1, CLAIM_FAILED, "", NOW);

        (void)strcpy(c.date_time, "../x");
        assert_int_equal(agreement_claim(a, KEY, &c, false, NOW), -EINVAL);
        c = process(1, CLAIM_FAILED, "", NOW);
        c.event_usec = INT64_MIN + 1;
        assert_int_equal(agreement_claim(a, KEY, &c, false, NOW), -EINVAL);
        c = process(1, CLAIM_FAILED, "", NOW);
        assert_int_equal(agreement_claim(a, "../../etc", &c, false, NOW), -EINVAL);
        agreement_free(a);
}

static void times_of_the_future_do_not_make_failures_without_end(void **state) {
        Agreement *a = new_agreement(true, ROLE_NONE);
        Claim c = process(1, CLAIM_FAILED, "", NOW);

        c.started_usec = c.event_usec = INT64_MAX;
        claim(a, &c, NOW);
        list(a, NULL, 0, NOW + SETTLE);
        next(a, ACTION_CREATE, NOW + SETTLE);
        /* The store's clock is an hour behind. */
        on_created(a, KEY, 1, STORE_OUTCOME_OK, NOW - 3600 * SEC, NOW + SETTLE);
        assert_int_equal(agreement_find(a, KEY, &c)->n, 1);
        agreement_free(a);
}

static void keys_are_bounded(void **state) {
        Agreement *a = new_agreement(true, ROLE_NONE);
        char key[CLAIM_KEY_SIZE];

        for (uint32_t i = 0; i < AGREEMENT_KEYS_MAX + 10; i++) {
                snprintf(key, sizeof key, "%016x", i);
                const Claim c = process(i + 1, CLAIM_FAILED, "", NOW);
                assert_int_equal(agreement_claim(a, key, &c, false, NOW + i),
                                 i + 1 < AGREEMENT_KEYS_MAX ? 0 : -ENOSPC); /* and KEY */
        }
        agreement_free(a);
}

static void ranks_that_ended_long_ago_give_way(void **state) {
        Agreement *a = new_agreement(true, ROLE_NONE);
        const int64_t later = NOW + WINDOW + SEC;

        for (uint32_t i = 1; i <= CLAIMS_MAX; i++) {
                const Claim c = process(i, i > 2 ? CLAIM_ENDED : CLAIM_ALIVE, "", NOW);
                claim(a, &c, NOW);
        }
        const Claim more = process(CLAIMS_MAX + 1, CLAIM_ENDED, "", NOW + WINDOW);
        assert_int_equal(agreement_claim(a, KEY, &more, false, NOW + WINDOW), -ENOSPC);
        const Claim c = process(CLAIMS_MAX + 2, CLAIM_FAILED, "", later);
        claim(a, &c, later);
        assert_true(agreement_is_pending(a, KEY, &c));
        agreement_free(a);
}

/* Else the others could not read the decision. */
static void ranks_that_cannot_be_are_not_known(void **state) {
        const int64_t impossible[] = { -2, 0, CLAIM_RANKS_MAX + 1, INT64_MAX };
        for (size_t i = 0; i < ELEMENTSOF(impossible); i++) {
                Agreement *a = new_agreement(true, ROLE_CENTRE);
                Claim own = process(1, CLAIM_FAILED, "00000000000000ab", NOW);
                Message m = { .kind = MESSAGE_CLAIMS, .n_claims = 1 };
                m.claims[0] = process(2, CLAIM_FAILED, "", NOW);
                m.claims[0].world_size = own.world_size = impossible[i];
                own.rank = impossible[i] == 0 ? CLAIM_RANKS_MAX : impossible[i];
                (void)strcpy(m.sender, PEER);
                (void)strcpy(m.claims[0].instance_id, PEER);
                (void)strcpy(m.key, KEY);
                claim(a, &own, NOW);
                assert_int_equal(agreement_hear(a, &m, NOW), 0);
                Action action = next(a, ACTION_SEND, NOW); /* an acknowledgement */
                list(a, NULL, 0, NOW);
                (void)wait_for(a, ACTION_CREATE, NOW, &action);
                assert_int_equal(action.decision.world_size, -1);
                on_created(a, KEY, 1, STORE_OUTCOME_OK, NOW, NOW);
                const Claim *recorded = claim_set_find(agreement_claims(a, KEY, 1), &own);
                assert_non_null(recorded);
                assert_int_equal(recorded->rank, -1);
                assert_int_equal(recorded->world_size, -1);
                agreement_free(a);
        }
}

static void who_has_no_part_on_the_bus_is_told_nothing(void **state) {
        Agreement *a = new_agreement(true, ROLE_NONE);
        const Claim c = process(1, CLAIM_FAILED, "", NOW);
        Message m = { .kind = MESSAGE_NEWS, .has_decision = true };

        claim(a, &c, NOW);
        (void)strcpy(m.sender, PEER);
        (void)strcpy(m.key, KEY);
        m.decision = decision(1, AGREED_STORE, "00000000000000ab", NOW);
        assert_int_equal(agreement_hear(a, &m, NOW), 0);
        assert_null(agreement_find(a, KEY, &c));
        assert_int_equal(agreement_set_role(a, KEY, ROLE_LEAF), 0);
        assert_int_equal(agreement_hear(a, &m, NOW), 0);
        assert_non_null(agreement_find(a, KEY, &c));
        agreement_free(a);
}

static void what_is_forgotten_asks_for_nothing(void **state) {
        Agreement *a = new_agreement(true, ROLE_NONE);
        const Claim c = process(1, CLAIM_FAILED, "00000000000000ab", NOW);

        claim(a, &c, NOW);
        next(a, ACTION_LIST, NOW);
        agreement_forget(a, KEY);
        assert_int_equal(agreement_next_time(a), AGREEMENT_NEVER);
        on_listed(a, KEY, STORE_OUTCOME_OK, NULL, 0, NOW);
        assert_int_equal(agreement_set_arbiter(a, KEY, true), 0);
        claim(a, &c, NOW + SEC); /* as if it was new */
        next(a, ACTION_LIST, NOW + SEC);
        agreement_free(a);
}

/* @param n_keys  of one job each, but for the first one, which failed once before */
static void fail_often(uint32_t n_keys, size_t n_kept) {
        Agreement *a = new_agreement(false, ROLE_NONE);
        const Claim before = process(1, CLAIM_FAILED, "", NOW - SEC);
        char key[CLAIM_KEY_SIZE];
        AgreementFailure f;
        size_t n = 0;

        assert_int_equal(agreement_claim(a, KEY, &before, true, NOW - SEC), 0);
        for (uint32_t i = 0; i < AGREEMENT_FAILURES_MAX + 10; i++) {
                const int64_t now = NOW + i * (WINDOW + 200 * SEC);
                const Claim c = process(i + 2, CLAIM_FAILED, "", now);
                snprintf(key, sizeof key, "%016x", i % n_keys);
                assert_int_equal(agreement_claim(a, key, &c, true, now), 0);
                assert_non_null(agreement_find(a, key, &c));
        }
        while (agreement_failure(a, n, &f))
                n++;
        assert_int_equal(n, n_kept);
        assert_non_null(agreement_find(a, KEY, &before));
        const Claim first = process(2, CLAIM_FAILED, "", NOW);
        assert_null(agreement_find(a, "0000000000000000", &first));
        assert_false(agreement_is_pending(a, "0000000000000000", &first));
        agreement_free(a);
}

static void failures_are_bounded_and_the_oldest_of_who_has_most_gives_way(void **state) {
        fail_often(1, 32 + 1);
        fail_often(16, AGREEMENT_FAILURES_MAX);
}

static void failures_are_kept_seven_days(void **state) {
        Agreement *a = new_agreement(true, ROLE_NONE);
        const Claim c = process(1, CLAIM_FAILED, "", NOW);
        AgreementFailure f;
        Action action;

        create_first(a, &c);
        int64_t now = wait_for(a, ACTION_RECORD, NOW + SETTLE, &action);
        on_recorded(a, KEY, 1, STORE_OUTCOME_OK, now);
        (void)agreement_next_action(a, NOW + AGREEMENT_KEEP_USEC, &action);
        assert_true(agreement_failure(a, 0, &f));
        if (action.kind == ACTION_PUBLISH)
                on_published(a, KEY, 1, STORE_OUTCOME_OK, NOW + AGREEMENT_KEEP_USEC);
        now = NOW + AGREEMENT_KEEP_USEC + 3700 * SEC;
        (void)agreement_next_action(a, now, &action);
        assert_false(agreement_failure(a, 0, &f));
        const Claim later = process(2, CLAIM_FAILED, "", now); /* the key has its arbiter still */
        claim(a, &later, now);
        assert_true(agreement_is_pending(a, KEY, &later));
        agreement_free(a);
}

int main(void) {
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(a_claim_without_a_cluster_id_settles_first),
                cmocka_unit_test(the_world_size_is_that_of_the_launch_that_failed),
                cmocka_unit_test(a_claim_with_a_cluster_id_asks_at_once_and_names_the_failure),
                cmocka_unit_test(hurrying_ends_the_settling),
                cmocka_unit_test(what_is_listed_is_read_and_adopted),
                cmocka_unit_test(what_was_read_in_order_is_adopted_however_late_it_was_opened),
                cmocka_unit_test(what_started_later_is_the_next_failure),
                cmocka_unit_test(what_another_node_created_first_is_read),
                cmocka_unit_test(a_cluster_id_counts_more_than_times),
                cmocka_unit_test(hostile_decisions_are_not_adopted),
                cmocka_unit_test(a_listing_full_of_nonsense_is_no_arbiter),
                cmocka_unit_test(the_unreachable_is_asked_again_for_ever_and_the_unable_never),
                cmocka_unit_test(records_follow_changes_less_and_less_often),
                cmocka_unit_test(the_creator_publishes_three_times_then_when_its_record_is_missing),
                cmocka_unit_test(who_did_not_create_it_stands_in_for_a_dead_creator),
                cmocka_unit_test(a_job_on_this_node_waits_for_nobody),
                cmocka_unit_test(a_job_on_this_node_finds_the_number_whose_answer_was_lost),
                cmocka_unit_test(who_ended_without_a_dump_looks_for_the_failure),
                cmocka_unit_test(looking_ends_with_the_window),
                cmocka_unit_test(a_leaf_sends_until_it_is_heard),
                cmocka_unit_test(a_leaf_that_is_heard_but_undecided_sends_now_and_then),
                cmocka_unit_test(a_contradicting_decision_is_ignored),
                cmocka_unit_test(a_claim_stays_in_its_failure),
                cmocka_unit_test(news_of_a_job_whose_ranks_live_here_is_kept),
                cmocka_unit_test(the_centre_decides_alone_without_an_arbiter),
                cmocka_unit_test(a_number_of_the_bus_has_one_name),
                cmocka_unit_test(what_fails_after_the_window_is_the_next_failure),
                cmocka_unit_test(what_cannot_be_named_or_placed_is_refused),
                cmocka_unit_test(times_of_the_future_do_not_make_failures_without_end),
                cmocka_unit_test(keys_are_bounded),
                cmocka_unit_test(ranks_that_ended_long_ago_give_way),
                cmocka_unit_test(ranks_that_cannot_be_are_not_known),
                cmocka_unit_test(what_is_forgotten_asks_for_nothing),
                cmocka_unit_test(who_has_no_part_on_the_bus_is_told_nothing),
                cmocka_unit_test(failures_are_bounded_and_the_oldest_of_who_has_most_gives_way),
                cmocka_unit_test(failures_are_kept_seven_days),
        };
        return cmocka_run_group_tests(tests, NULL, NULL);
}
