/* Words and states: every word reads back, and only the moves of the table are legal. */
#include "lib/neuron/record.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "tests/harness/unit.h"

#include "lib/base/cleanup.h"

static void every_word_reads_back_as_what_it_names(void **state) {
        for (SourceKind k = 0; k < N_SOURCE_KINDS; k++) {
                SourceKind back = N_SOURCE_KINDS;

                assert_int_equal(source_kind_parse(source_kind_name(k), &back), 0);
                assert_int_equal(back, k);
        }
        for (BundleState s = 0; s < N_BUNDLE_STATES; s++) {
                BundleState back = N_BUNDLE_STATES;

                assert_int_equal(bundle_state_parse(bundle_state_name(s), &back), 0);
                assert_int_equal(back, s);
        }
        for (DeliveryState s = 0; s < N_DELIVERY_STATES; s++) {
                DeliveryState back = N_DELIVERY_STATES;

                assert_int_equal(delivery_state_parse(delivery_state_name(s), &back), 0);
                assert_int_equal(back, s);
        }
        for (Origin o = 0; o < N_ORIGINS; o++) {
                Origin back = N_ORIGINS;

                assert_int_equal(origin_parse(origin_name(o), &back), 0);
                assert_int_equal(back, o);
        }
        for (Proof p = 0; p < N_PROOFS; p++) {
                Proof back = N_PROOFS;

                assert_int_equal(proof_parse(proof_name(p), &back), 0);
                assert_int_equal(back, p);
        }
}

/* The words themselves are a contract with scripts: docs/API.md. */
static void the_words_are_those_of_the_interface(void **state) {
        static const char *const kinds[] = {
                "neuron-core-dump", "neuron-profile", "process-core", "directory",
                "snapshot",         "crash-report",   "oom"
        };
        static const char *const states[] = { "settling",    "ready",   "shipping",  "delivered",
                                              "quarantined", "evicted", "cancelled", "vanished" };
        static const char *const deliveries[] = { "pending", "shipping", "delivered" };

        for (size_t i = 0; i < ELEMENTSOF(kinds); i++)
                assert_string_equal(source_kind_name((SourceKind)i), kinds[i]);
        for (size_t i = 0; i < ELEMENTSOF(states); i++)
                assert_string_equal(bundle_state_name((BundleState)i), states[i]);
        for (size_t i = 0; i < ELEMENTSOF(deliveries); i++)
                assert_string_equal(delivery_state_name((DeliveryState)i), deliveries[i]);
        assert_null(proof_name(PROOF_NONE));
        assert_string_equal(proof_name(PROOF_HEAD), "head");
        assert_string_equal(proof_name(PROOF_RESPONSE), "response");
        assert_string_equal(proof_name(PROOF_READBACK), "readback");
}

static void an_unknown_word_is_refused_and_nothing_is_written(void **state) {
        static const char *const words[] = { "", "Ready", "ready ", " ready", "settlin", NULL };
        BundleState s = BUNDLE_VANISHED;
        SourceKind k = SOURCE_DIRECTORY;
        DeliveryState d = DELIVERY_DONE;
        Proof p = PROOF_HEAD;

        for (size_t i = 0; i < ELEMENTSOF(words); i++) {
                assert_int_equal(bundle_state_parse(words[i], &s), -EINVAL);
                assert_int_equal(source_kind_parse(words[i], &k), -EINVAL);
                assert_int_equal(delivery_state_parse(words[i], &d), -EINVAL);
        }
        assert_int_equal(proof_parse("Head", &p), -EINVAL);
        assert_int_equal(s, BUNDLE_VANISHED);
        assert_int_equal(k, SOURCE_DIRECTORY);
        assert_int_equal(d, DELIVERY_DONE);
        assert_int_equal(p, PROOF_HEAD);
        assert_int_equal(proof_parse("", &p), 0);
        assert_int_equal(p, PROOF_NONE);
        assert_null(bundle_state_name(N_BUNDLE_STATES));
        assert_null(source_kind_name(N_SOURCE_KINDS));
}

static void only_core_dumps_belong_to_an_incident(void **state) {
        for (SourceKind k = 0; k < N_SOURCE_KINDS; k++)
                assert_int_equal(source_kind_has_incident(k), k == SOURCE_NEURON_CORE_DUMP);
}

static void what_the_agent_makes_itself_has_kinds_of_its_own(void **state) {
        for (SourceKind k = 0; k < N_SOURCE_KINDS; k++)
                assert_int_equal(source_kind_is_own(k), k > SOURCE_DIRECTORY);
}

/* Row = from, column = to, in the order of the enum: settling ready shipping delivered quarantined
 * evicted cancelled vanished. */
static const char *const moves[N_BUNDLE_STATES] = {
        [BUNDLE_SETTLING] = ".R...ECV",    /* found whole, or lost, cancelled, let go */
        [BUNDLE_READY] = "S.S..ECV",       /* changed again; its turn */
        [BUNDLE_SHIPPING] = "SR.DQ.CV",    /* source changed; try again; proven; gave up */
        [BUNDLE_DELIVERED] = ".R......",   /* redelivered */
        [BUNDLE_QUARANTINED] = ".R...EC.", /* the operator's retry */
        [BUNDLE_EVICTED] = "........",     /* final */
        [BUNDLE_CANCELLED] = "........",   /* final */
        [BUNDLE_VANISHED] = "........",    /* final */
};

static void only_the_moves_of_the_table_are_legal(void **state) {
        for (BundleState from = 0; from < N_BUNDLE_STATES; from++) {
                assert_int_equal(strlen(moves[from]), N_BUNDLE_STATES);
                for (BundleState to = 0; to < N_BUNDLE_STATES; to++)
                        if (transition_is_legal(&bundle_state_table, from, to) !=
                            (moves[from][to] != '.'))
                                fail_msg("%s -> %s", bundle_state_name(from),
                                         bundle_state_name(to));
        }
        assert_false(transition_is_legal(&bundle_state_table, N_BUNDLE_STATES, BUNDLE_READY));
        assert_false(transition_is_legal(&bundle_state_table, BUNDLE_READY, N_BUNDLE_STATES));
}

static void a_state_without_moves_is_final_and_quarantine_waits_for_a_person(void **state) {
        for (BundleState s = 0; s < N_BUNDLE_STATES; s++) {
                bool stuck = strcmp(moves[s], "........") == 0 || s == BUNDLE_QUARANTINED ||
                             s == BUNDLE_DELIVERED; /* the operator's redeliver */

                assert_int_equal(bundle_state_is_inactive(s), stuck);
                assert_int_equal(bundle_state_is_terminal(s), stuck && s != BUNDLE_QUARANTINED);
        }
}

static void a_copy_shares_nothing_with_its_original(void **state) {
        DeliveryRecord *deliveries = calloc(2, sizeof *deliveries);
        BundleRecord a = { .id = "directory-20260527T051233-0123456789ab",
                           .source = strdup("core-dumps"),
                           .path = strdup("/tmp/x\n\xff"),
                           .state = BUNDLE_SHIPPING,
                           .incomplete = strdup("[\"too-deep\"]"),
                           .digest = 7,
                           .deliveries = deliveries,
                           .n_deliveries = 2 };
        BundleRecord b;

        deliveries[0] = (DeliveryRecord){ .destination = strdup("fsx"), .attempts = 3 };
        deliveries[1] = (DeliveryRecord){ .destination = strdup("archive"),
                                          .object = strdup("o"),
                                          .last_error = strdup("full"),
                                          .proof = PROOF_HEAD };
        assert_int_equal(bundle_record_copy(&b, &a), 0);
        a.path[0] = '!';
        deliveries[1].last_error[0] = '!';
        bundle_record_done(&a);
        assert_null(a.path);
        assert_int_equal(a.n_deliveries, 0);

        assert_string_equal(b.id, "directory-20260527T051233-0123456789ab");
        assert_string_equal(b.source, "core-dumps");
        assert_string_equal(b.path, "/tmp/x\n\xff");
        assert_null(b.reason);
        assert_string_equal(b.incomplete, "[\"too-deep\"]");
        assert_int_equal(b.digest, 7);
        assert_int_equal(b.n_deliveries, 2);
        assert_string_equal(b.deliveries[0].destination, "fsx");
        assert_null(b.deliveries[0].object);
        assert_int_equal(b.deliveries[0].attempts, 3);
        assert_string_equal(b.deliveries[1].last_error, "full");
        assert_int_equal(b.deliveries[1].proof, PROOF_HEAD);
        bundle_record_done(&b);
        bundle_record_done(&b); /* twice is once */
}

int main(void) {
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(every_word_reads_back_as_what_it_names),
                cmocka_unit_test(the_words_are_those_of_the_interface),
                cmocka_unit_test(an_unknown_word_is_refused_and_nothing_is_written),
                cmocka_unit_test(only_core_dumps_belong_to_an_incident),
                cmocka_unit_test(what_the_agent_makes_itself_has_kinds_of_its_own),
                cmocka_unit_test(only_the_moves_of_the_table_are_legal),
                cmocka_unit_test(a_state_without_moves_is_final_and_quarantine_waits_for_a_person),
                cmocka_unit_test(a_copy_shares_nothing_with_its_original),
        };

        return cmocka_run_group_tests_name("record", tests, NULL, NULL);
}
