/* Sets of claims merge in any order, any number of times, to the same set; keys and names. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/harness/unit.h"

#include "agent/peers/agreement.h"
#include "agent/peers/claim.h"
#include "lib/base/cleanup.h"

#define SEEDS 2000

static uint64_t state;

static unsigned chance(unsigned n) {
        state = state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
        return (unsigned)((state >> 33) % n);
}

/* From few processes and few values, so that they meet. */
static Claim random_claim(void) {
        Claim c = { .pid = 1 + chance(4), .start_ticks = chance(2), .revision = chance(3) };
        snprintf(c.boot_id, sizeof c.boot_id, "boot-%u", chance(2));
        snprintf(c.instance_id, sizeof c.instance_id, "i-%u", chance(2));
        snprintf(c.cluster_id, sizeof c.cluster_id, "%u", chance(2));
        snprintf(c.date_time, sizeof c.date_time, "%u", chance(2));
        snprintf(c.bundle, sizeof c.bundle, "%u", chance(2));
        snprintf(c.error_location, sizeof c.error_location, "%u", chance(2));
        c.state = (ClaimState)chance(N_CLAIM_STATES);
        c.bundle_state = (ClaimBundle)chance(N_CLAIM_BUNDLES);
        c.rank = (int64_t)chance(3) - 1;
        c.world_size = (int64_t)chance(3) - 1;
        c.has_error = chance(2);
        c.error_code = chance(2);
        c.started_usec = chance(2) ? INT64_MIN : 7;
        c.event_usec = chance(2) ? INT64_MAX : -7;
        return c;
}

static ClaimSet random_set(void) {
        ClaimSet s = { 0 };
        for (unsigned n = chance(12); n > 0; n--) {
                const Claim c = random_claim();
                assert_true(claim_set_add(&s, &c) >= 0);
        }
        return s;
}

static ClaimSet merged(const ClaimSet *a, const ClaimSet *b) {
        ClaimSet s = { 0 };
        assert_true(claim_set_merge(&s, a) >= 0);
        assert_true(claim_set_merge(&s, b) >= 0);
        return s;
}

static void assert_same_claim(const Claim *a, const Claim *b) {
        assert_int_equal(claim_compare_process(a, b), 0);
        assert_int_equal(a->revision, b->revision);
        assert_int_equal(a->state, b->state);
        assert_int_equal(a->bundle_state, b->bundle_state);
        assert_int_equal(a->rank, b->rank);
        assert_int_equal(a->world_size, b->world_size);
        assert_int_equal(a->has_error, b->has_error);
        assert_int_equal(a->error_code, b->error_code);
        assert_true(a->started_usec == b->started_usec && a->event_usec == b->event_usec);
        assert_string_equal(a->instance_id, b->instance_id);
        assert_string_equal(a->cluster_id, b->cluster_id);
        assert_string_equal(a->date_time, b->date_time);
        assert_string_equal(a->bundle, b->bundle);
        assert_string_equal(a->error_location, b->error_location);
}

static void assert_same(ClaimSet a, ClaimSet b) {
        assert_int_equal(a.n, b.n);
        for (size_t i = 0; i < a.n; i++)
                assert_same_claim(&a.items[i], &b.items[i]);
        claim_set_done(&a);
        claim_set_done(&b);
}

static void merging_is_commutative_associative_and_idempotent(void **test_state) {
        for (unsigned seed = 1; seed <= SEEDS; seed++) {
                state = seed;
                ClaimSet a = random_set(), b = random_set(), c = random_set();

                assert_same(merged(&a, &b), merged(&b, &a));
                ClaimSet ab = merged(&a, &b), bc = merged(&b, &c);
                assert_same(merged(&ab, &c), merged(&a, &bc));
                assert_same(merged(&ab, &b), merged(&a, &b));
                assert_int_equal(claim_set_merge(&ab, &a), 0);
                assert_int_equal(claim_set_merge(&ab, &b), 0);
                claim_set_done(&ab);
                claim_set_done(&bc);
                claim_set_done(&a);
                claim_set_done(&b);
                claim_set_done(&c);
        }
}

static void a_set_is_sorted_and_has_each_process_once(void **test_state) {
        for (unsigned seed = 1; seed <= SEEDS; seed++) {
                state = seed;
                ClaimSet s = random_set();
                for (size_t i = 1; i < s.n; i++)
                        assert_true(claim_compare_process(&s.items[i - 1], &s.items[i]) < 0);
                for (size_t i = 0; i < s.n; i++)
                        assert_ptr_equal(claim_set_find(&s, &s.items[i]), &s.items[i]);
                claim_set_done(&s);
        }
}

static void the_higher_revision_wins(void **test_state) {
        Claim old = { .pid = 1, .revision = 1, .state = CLAIM_FAILED, .rank = 9 };
        Claim new = { .pid = 1, .revision = 2, .state = CLAIM_ALIVE };
        ClaimSet s = { 0 };

        assert_int_equal(claim_set_add(&s, &new), 1);
        assert_int_equal(claim_set_add(&s, &old), 0);
        assert_int_equal(claim_set_find(&s, &old)->state, CLAIM_ALIVE);
        old.revision = 3;
        assert_int_equal(claim_set_add(&s, &old), 1);
        assert_int_equal(claim_set_find(&s, &new)->state, CLAIM_FAILED);
        assert_int_equal(s.n, 1);
        claim_set_done(&s);
}

static void a_set_is_bounded(void **test_state) {
        ClaimSet s = { 0 };
        Claim c = { .revision = 1 };

        for (uint32_t i = 0; i < CLAIMS_MAX; i++) {
                c.pid = i;
                assert_int_equal(claim_set_add(&s, &c), 1);
        }
        c.pid = CLAIMS_MAX;
        assert_int_equal(claim_set_add(&s, &c), -ENOSPC);
        c.pid = 7;
        c.revision = 2;
        assert_int_equal(claim_set_add(&s, &c), 1);
        assert_int_equal(s.n, CLAIMS_MAX);
        claim_set_done(&s);
}

static void a_key_is_the_hash_of_the_job_key_else_of_the_cluster_id(void **test_state) {
        char by_job[CLAIM_KEY_SIZE], other[CLAIM_KEY_SIZE];

        assert_true(claim_key_build("abc", "1f", by_job));
        assert_string_equal(by_job, "ba7816bf8f01cfea"); /* FIPS 180-2, B.1 */
        assert_true(claim_key_build("abc", "2f", other));
        assert_string_equal(by_job, other);
        assert_true(claim_key_build("", "abc", other));
        assert_string_equal(by_job, other);
        assert_true(claim_key_is_valid(by_job));
        assert_false(claim_key_build("", "", other));
        assert_false(claim_key_build(NULL, NULL, other));
        assert_false(claim_key_build("", "0000000000000000", other));
}

static void only_16_lower_case_hex_digits_are_a_key(void **test_state) {
        static const char *const bad[] = { "",
                                           "0123456789abcde",
                                           "0123456789abcdef0",
                                           "0123456789ABCDEF",
                                           "../../etc/passwd",
                                           "0123456789abcde/" };
        assert_true(claim_key_is_valid("0123456789abcdef"));
        for (size_t i = 0; i < ELEMENTSOF(bad); i++)
                assert_false(claim_key_is_valid(bad[i]));
}

static void zeros_are_no_cluster_id(void **test_state) {
        assert_false(cluster_id_is_set(""));
        assert_false(cluster_id_is_set("0"));
        assert_false(cluster_id_is_set("0000000000000000"));
        assert_true(cluster_id_is_set("0000000000000001"));
}

static Decision named(const char *cluster_id, const char *date_time) {
        Decision d = { 0 };
        snprintf(d.cluster_id, sizeof d.cluster_id, "%s", cluster_id);
        snprintf(d.date_time, sizeof d.date_time, "%s", date_time);
        return d;
}

static void a_name_that_may_not_enter_a_path_is_refused(void **test_state) {
        static const char *const bad[][2] = {
                { "", "20260527-051233" },
                { "0000000000000000", "20260527-051233" },
                { "..", "20260527-051233" },
                { "a/b", "20260527-051233" },
                { "a%d", "20260527-051233" },
                { "a b", "20260527-051233" },
                { "d99e36ea74c263ca", "" },
                { "d99e36ea74c263ca", "../20260527-051233" },
                { "d99e36ea74c263ca", "20261327-051233" },
                { "d99e36ea74c263ca", "now" },
        };
        Decision d = named("d99e36ea74c263ca", "20260527-051233");
        assert_true(decision_name_is_valid(&d));
        d = named("d99e36ea74c263ca", "2026-05-27-05-12");
        assert_true(decision_name_is_valid(&d));
        for (size_t i = 0; i < ELEMENTSOF(bad); i++) {
                d = named(bad[i][0], bad[i][1]);
                assert_false(decision_name_is_valid(&d));
        }
}

static void a_derived_cluster_id_is_another_one_for_each_failure(void **test_state) {
        char a[CLUSTER_ID_SIZE], b[CLUSTER_ID_SIZE];

        decision_derive_cluster_id("0123456789abcdef", 1, a);
        decision_derive_cluster_id("0123456789abcdef", 2, b);
        assert_string_equal(a, "b551ec5b755b3450"); /* printf 0123456789abcdef/1 | sha256sum */
        assert_string_not_equal(a, b);
        Decision d = named(a, "20260527-051233");
        assert_true(decision_name_is_valid(&d));
}

static void words_are_those_of_the_documents(void **test_state) {
        assert_string_equal(claim_state_name(CLAIM_ALIVE), "alive");
        assert_string_equal(claim_state_name(CLAIM_ENDED), "ended");
        assert_string_equal(claim_state_name(CLAIM_FAILED), "failed");
        assert_null(claim_state_name(N_CLAIM_STATES));
        assert_string_equal(claim_bundle_name(CLAIM_BUNDLE_EMPTY), "empty");
        assert_null(claim_bundle_name(N_CLAIM_BUNDLES));
        assert_null(agreed_name(AGREED_NOT));
        assert_string_equal(agreed_name(AGREED_ALONE), "alone");
        assert_string_equal(agreed_name(AGREED_BUS), "bus");
        assert_string_equal(agreed_name(AGREED_STORE), "store");
}

int main(void) {
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(merging_is_commutative_associative_and_idempotent),
                cmocka_unit_test(a_set_is_sorted_and_has_each_process_once),
                cmocka_unit_test(the_higher_revision_wins),
                cmocka_unit_test(a_set_is_bounded),
                cmocka_unit_test(a_key_is_the_hash_of_the_job_key_else_of_the_cluster_id),
                cmocka_unit_test(only_16_lower_case_hex_digits_are_a_key),
                cmocka_unit_test(zeros_are_no_cluster_id),
                cmocka_unit_test(a_name_that_may_not_enter_a_path_is_refused),
                cmocka_unit_test(a_derived_cluster_id_is_another_one_for_each_failure),
                cmocka_unit_test(words_are_those_of_the_documents),
        };
        return cmocka_run_group_tests(tests, NULL, NULL);
}
