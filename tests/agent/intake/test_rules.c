/* When is a bundle complete: every branch of the pure rules, and two clocks that misbehave. */

#include "tests/harness/unit.h"

#include <string.h>

#include "agent/intake/rules.h"
#include "lib/base/cleanup.h"

#define SEC USEC_PER_SEC

static const IntakeLimits terms = { .settle_usec = 10 * SEC,
                                    .max_wait_usec = 1800 * SEC,
                                    .waited_usec = 30 * SEC };

static IntakeAnswer decide(IntakeFacts f) {
        return intake_decide(&f, &terms);
}

static IntakeAnswer decide_after(IntakeFacts f, uint64_t waited_usec, bool flush) {
        IntakeLimits t = terms;
        t.waited_usec = waited_usec;
        t.flush = flush;
        return intake_decide(&f, &t);
}

static void quiet_without_a_writer_is_complete(void **state) {
        assert_int_equal(
                decide((IntakeFacts){ .writers = INTAKE_WRITERS_NONE, .quiet_usec = 10 * SEC })
                        .verdict,
                INTAKE_COMPLETE);
}

static void a_bundle_that_is_not_quiet_yet_waits_for_the_rest_of_settle(void **state) {
        IntakeAnswer a =
                decide((IntakeFacts){ .writers = INTAKE_WRITERS_NONE, .quiet_usec = 4 * SEC });
        assert_int_equal(a.verdict, INTAKE_WAIT);
        assert_int_equal(a.next_usec, 6 * SEC);
}

static void a_writer_keeps_it_waiting_however_quiet_it_is(void **state) {
        IntakeAnswer a =
                decide((IntakeFacts){ .writers = INTAKE_WRITERS_SOME, .quiet_usec = 500 * SEC });
        assert_int_equal(a.verdict, INTAKE_WAIT);
        assert_true(a.next_usec > 0 && a.next_usec <= 30 * SEC);
        assert_non_null(a.why);
}

static void where_leases_are_unknown_quiet_alone_decides(void **state) {
        assert_int_equal(
                decide((IntakeFacts){ .writers = INTAKE_WRITERS_UNKNOWN, .quiet_usec = 10 * SEC })
                        .verdict,
                INTAKE_COMPLETE);
        assert_int_equal(decide((IntakeFacts){ .writers = INTAKE_WRITERS_UNKNOWN,
                                               .quiet_usec = 10 * SEC - 1 })
                                 .verdict,
                         INTAKE_WAIT);
}

static void a_short_member_is_waited_for_only_where_somebody_may_still_write_it(void **state) {
        IntakeFacts f = { .writers = INTAKE_WRITERS_UNKNOWN,
                          .quiet_usec = 20 * SEC,
                          .contradicted = true };
        assert_int_equal(decide(f).verdict, INTAKE_WAIT);
        f.writers = INTAKE_WRITERS_NONE;
        assert_int_equal(decide(f).verdict, INTAKE_COMPLETE);
}

static void a_process_that_is_gone_ends_the_wait_if_nobody_writes(void **state) {
        assert_int_equal(
                decide((IntakeFacts){ .writers = INTAKE_WRITERS_NONE, .process_gone = true })
                        .verdict,
                INTAKE_COMPLETE);
        assert_int_equal(
                decide((IntakeFacts){ .writers = INTAKE_WRITERS_SOME, .process_gone = true })
                        .verdict,
                INTAKE_WAIT);
        assert_int_equal(
                decide((IntakeFacts){ .writers = INTAKE_WRITERS_UNKNOWN, .process_gone = true })
                        .verdict,
                INTAKE_WAIT);
}

static void after_max_wait_it_is_shipped_labelled(void **state) {
        IntakeAnswer a = decide_after((IntakeFacts){ .writers = INTAKE_WRITERS_SOME },
                                      terms.max_wait_usec, false);
        assert_int_equal(a.verdict, INTAKE_INCOMPLETE);
        assert_non_null(a.why);
}

static void a_wait_never_ends_after_max_wait(void **state) {
        IntakeAnswer a = decide_after((IntakeFacts){ .writers = INTAKE_WRITERS_SOME },
                                      terms.max_wait_usec - 3, false);
        assert_int_equal(a.verdict, INTAKE_WAIT);
        assert_int_equal(a.next_usec, 3);
}

static void without_a_max_wait_it_is_never_given_up(void **state) {
        IntakeLimits t = terms;
        t.max_wait_usec = 0;
        t.waited_usec = 1000 * USEC_PER_DAY;
        IntakeFacts f = { .writers = INTAKE_WRITERS_SOME };
        assert_int_equal(intake_decide(&f, &t).verdict, INTAKE_WAIT);
}

static void flush_stands_for_settle_but_not_for_a_writer(void **state) {
        assert_int_equal(
                decide_after((IntakeFacts){ .writers = INTAKE_WRITERS_NONE }, 0, true).verdict,
                INTAKE_COMPLETE);
        assert_int_equal(
                decide_after((IntakeFacts){ .writers = INTAKE_WRITERS_SOME }, 0, true).verdict,
                INTAKE_WAIT);
}

static void flush_where_writers_are_unknown_is_labelled(void **state) {
        IntakeFacts f = { .writers = INTAKE_WRITERS_UNKNOWN, .quiet_usec = 5 * SEC };
        assert_int_equal(decide_after(f, 0, true).verdict, INTAKE_INCOMPLETE);
        f.quiet_usec = 10 * SEC;
        assert_int_equal(decide_after(f, 0, true).verdict, INTAKE_COMPLETE);
}

static void a_removed_source_that_is_held_is_judged_by_its_links(void **state) {
        IntakeFacts f = { .gone = true, .held = true, .writers = INTAKE_WRITERS_NONE };
        assert_int_equal(decide(f).verdict, INTAKE_WAIT);
        f.quiet_usec = 10 * SEC;
        assert_int_equal(decide(f).verdict, INTAKE_COMPLETE);
        f.writers = INTAKE_WRITERS_SOME;
        assert_int_equal(decide(f).verdict, INTAKE_WAIT);
        f.writers = INTAKE_WRITERS_UNKNOWN;
        IntakeAnswer a = decide(f);
        assert_int_equal(a.verdict, INTAKE_INCOMPLETE);
        assert_non_null(a.why);
        f.held = false;
        assert_int_equal(decide(f).verdict, INTAKE_VANISHED);
}

static void it_is_due_exactly_when_a_verdict_other_than_waiting_is_possible(void **state) {
        for (unsigned bits = 0; bits < 512; bits++) {
                IntakeFacts f = { .gone = bits & 1,
                                  .process_gone = bits & 2,
                                  .quiet_usec = bits & 4     ? 10 * SEC
                                                : bits & 128 ? 2 * SEC
                                                             : 0,
                                  .hooks_finished = bits & 64,
                                  .missing = bits & 256 };
                IntakeLimits t = terms;
                t.flush = bits & 8;
                t.waited_usec = bits & 16 ? t.max_wait_usec : 0;
                f.held = bits & 32;
                bool could_end = false;
                for (int w = 0; w <= INTAKE_WRITERS_UNKNOWN; w++) {
                        f.writers = (IntakeWriters)w;
                        could_end = could_end || intake_decide(&f, &t).verdict != INTAKE_WAIT;
                }
                assert_int_equal(intake_is_due(&f, &t), could_end);
        }
}

static void quiet_grows_with_the_boot_clock_and_ends_with_a_change(void **state) {
        assert_int_equal(intake_quiet_usec(false, 3 * SEC, 4 * SEC), 7 * SEC);
        assert_int_equal(intake_quiet_usec(true, 3 * SEC, 4 * SEC), 0);
}

/* ---- hooks ---- */

static void after_its_hooks_a_second_of_quiet_is_enough(void **state) {
        IntakeFacts f = { .writers = INTAKE_WRITERS_NONE,
                          .hooks_finished = true,
                          .quiet_usec = SEC };
        assert_true(intake_is_due(&f, &terms));
        assert_int_equal(decide(f).verdict, INTAKE_COMPLETE);
        f.quiet_usec = SEC - 1;
        assert_false(intake_is_due(&f, &terms));
        IntakeAnswer a = decide(f);
        assert_int_equal(a.verdict, INTAKE_WAIT);
        assert_int_equal(a.next_usec, 1);
        f.hooks_finished = false; /* without a hook nothing has changed */
        f.quiet_usec = 9 * SEC;
        assert_false(intake_is_due(&f, &terms));
        assert_int_equal(decide(f).next_usec, SEC);
}

static void a_hook_does_not_make_settle_longer(void **state) {
        IntakeLimits t = terms;
        t.settle_usec = SEC / 4;
        IntakeFacts f = { .writers = INTAKE_WRITERS_NONE,
                          .hooks_finished = true,
                          .quiet_usec = SEC / 4 };
        assert_true(intake_is_due(&f, &t));
        assert_int_equal(intake_decide(&f, &t).verdict, INTAKE_COMPLETE);
}

static void where_leases_are_unknown_a_hook_shortens_nothing(void **state) {
        IntakeFacts f = { .writers = INTAKE_WRITERS_UNKNOWN,
                          .hooks_finished = true,
                          .quiet_usec = 2 * SEC };
        IntakeAnswer a = decide(f);
        assert_int_equal(a.verdict, INTAKE_WAIT);
        assert_int_equal(a.next_usec, 8 * SEC);
        f.quiet_usec =
                SEC / 2; /* this look did not ask for leases; the next one, at a second, does */
        assert_int_equal(decide(f).next_usec, SEC / 2);
        f.writers = INTAKE_WRITERS_SOME;
        f.quiet_usec = 5 * SEC;
        assert_int_equal(decide(f).verdict, INTAKE_WAIT);
}

static void while_a_hook_is_at_work_nothing_is_complete(void **state) {
        IntakeFacts f = { .writers = INTAKE_WRITERS_NONE,
                          .n_hooks = 1,
                          .hooks_finished = false,
                          .quiet_usec = 60 * SEC };
        assert_int_equal(decide(f).verdict, INTAKE_WAIT);
        f.process_gone = true;
        IntakeAnswer a = decide(f);
        assert_int_equal(a.verdict, INTAKE_WAIT);
        assert_true(a.next_usec > 0 && a.next_usec <= SEC);
        assert_non_null(strstr(a.why, "hook"));
        f.n_hooks = 0;
        assert_int_equal(decide(f).verdict, INTAKE_COMPLETE);
        f = (IntakeFacts){ .writers = INTAKE_WRITERS_NONE, .n_hooks = 1, .quiet_usec = SEC };
        assert_int_equal(decide(f).next_usec, SEC); /* it may never say that it is through */
        f.process_gone = true;                      /* but nothing waits for ever */
        assert_int_not_equal(decide_after(f, 1800 * SEC, false).verdict, INTAKE_WAIT);
        assert_int_equal(decide((IntakeFacts){ .gone = true, .n_hooks = 1 }).verdict,
                         INTAKE_VANISHED);
}

static void what_a_hook_promised_is_waited_for_until_settle_and_no_longer(void **state) {
        IntakeFacts f = { .writers = INTAKE_WRITERS_NONE,
                          .hooks_finished = true,
                          .missing = true,
                          .quiet_usec = 2 * SEC };
        IntakeAnswer a = decide(f);
        assert_int_equal(a.verdict, INTAKE_WAIT);
        assert_int_equal(a.next_usec, 8 * SEC);
        assert_non_null(strstr(a.why, "promised"));
        f.process_gone = true; /* a child of its hook may still write it */
        assert_int_equal(decide(f).verdict, INTAKE_WAIT);
        f.quiet_usec = 10 * SEC;
        assert_int_equal(decide(f).verdict, INTAKE_COMPLETE);
        f.quiet_usec = 2 * SEC;
        assert_int_equal(decide_after(f, 30 * SEC, true).verdict, INTAKE_COMPLETE); /* a flush */
        f.missing = false;
        assert_int_equal(decide(f).verdict, INTAKE_COMPLETE);
}

static void with_max_wait_off_hooks_are_waited_for_all_the_same(void **state) {
        IntakeLimits t = terms;
        t.max_wait_usec = 0;
        t.waited_usec = 100000 * SEC;
        IntakeFacts f = { .writers = INTAKE_WRITERS_NONE, .quiet_usec = 20 * SEC, .n_hooks = 1 };
        IntakeAnswer a = intake_decide(&f, &t);
        assert_int_equal(a.verdict, INTAKE_WAIT);
        assert_true(a.next_usec <= SEC);
        f.n_hooks = 0;
        assert_int_equal(intake_decide(&f, &t).verdict, INTAKE_COMPLETE);
}

int main(void) {
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(quiet_without_a_writer_is_complete),
                cmocka_unit_test(after_its_hooks_a_second_of_quiet_is_enough),
                cmocka_unit_test(a_hook_does_not_make_settle_longer),
                cmocka_unit_test(where_leases_are_unknown_a_hook_shortens_nothing),
                cmocka_unit_test(while_a_hook_is_at_work_nothing_is_complete),
                cmocka_unit_test(what_a_hook_promised_is_waited_for_until_settle_and_no_longer),
                cmocka_unit_test(with_max_wait_off_hooks_are_waited_for_all_the_same),
                cmocka_unit_test(a_bundle_that_is_not_quiet_yet_waits_for_the_rest_of_settle),
                cmocka_unit_test(a_writer_keeps_it_waiting_however_quiet_it_is),
                cmocka_unit_test(where_leases_are_unknown_quiet_alone_decides),
                cmocka_unit_test(
                        a_short_member_is_waited_for_only_where_somebody_may_still_write_it),
                cmocka_unit_test(a_process_that_is_gone_ends_the_wait_if_nobody_writes),
                cmocka_unit_test(after_max_wait_it_is_shipped_labelled),
                cmocka_unit_test(a_wait_never_ends_after_max_wait),
                cmocka_unit_test(without_a_max_wait_it_is_never_given_up),
                cmocka_unit_test(flush_stands_for_settle_but_not_for_a_writer),
                cmocka_unit_test(flush_where_writers_are_unknown_is_labelled),
                cmocka_unit_test(a_removed_source_that_is_held_is_judged_by_its_links),
                cmocka_unit_test(it_is_due_exactly_when_a_verdict_other_than_waiting_is_possible),
                cmocka_unit_test(quiet_grows_with_the_boot_clock_and_ends_with_a_change),
        };
        return cmocka_run_group_tests_name("agent/intake_rules", tests, NULL, NULL);
}
