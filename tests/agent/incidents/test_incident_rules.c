/* Which incidents begin, which are joined, and which are dropped. */
#include "agent/incidents/incident_rules.h"

#include "tests/harness/unit.h"

static const Owner somebody = { .uid = 1000 }, victim = { .uid = 1001 },
                   pod = { .uid = 1000, .container = "0123" };

#define SEC(x) ((uint64_t)(x)*USEC_PER_SEC)

static void the_first_one_begins(void **state) {
        IncidentRules r = { 0 };
        assert_int_equal(incident_rules_decide(&r, &somebody, INCIDENT_NOTE, false, 0),
                         INCIDENT_BEGIN);
        assert_int_equal(incident_rules_decide(&r, &somebody, INCIDENT_REQUESTED, false, 0),
                         INCIDENT_BEGIN);
}

static void what_comes_within_thirty_seconds_joins_it(void **state) {
        IncidentRules r = { 0 };
        incident_rules_add_start(&r, &somebody, INCIDENT_NOTE, SEC(100));
        for (unsigned i = 0; i < 128; i++)
                assert_int_equal(
                        incident_rules_decide(&r, &somebody, INCIDENT_NOTE, i < 3, SEC(100) + i),
                        INCIDENT_JOIN);
        assert_int_equal(incident_rules_decide(&r, &somebody, INCIDENT_KERNEL, false, SEC(130) - 1),
                         INCIDENT_JOIN);
        assert_int_equal(incident_rules_decide(&r, &somebody, INCIDENT_KERNEL, false, SEC(130)),
                         INCIDENT_BEGIN);
}

static void an_operator_joins_only_what_is_being_collected(void **state) {
        IncidentRules r = { 0 };
        incident_rules_add_start(&r, &somebody, INCIDENT_NOTE, SEC(100));
        assert_int_equal(incident_rules_decide(&r, &somebody, INCIDENT_REQUESTED, true, SEC(101)),
                         INCIDENT_JOIN);
        assert_int_equal(incident_rules_decide(&r, &somebody, INCIDENT_REQUESTED, false, SEC(109)),
                         INCIDENT_TOO_SOON);
        assert_int_equal(incident_rules_decide(&r, &somebody, INCIDENT_REQUESTED, false, SEC(110)),
                         INCIDENT_BEGIN);
}

/* Starts as many as an owner may in an hour, 40 s apart. @return the time of the last one */
static uint64_t start_all(IncidentRules *r, const Owner *o, IncidentCause cause, unsigned n,
                          uint64_t from) {
        for (unsigned i = 0; i < n; i++) {
                const uint64_t now = from + SEC(40 * i);
                assert_int_equal(incident_rules_decide(r, o, cause, false, now), INCIDENT_BEGIN);
                incident_rules_add_start(r, o, cause, now);
        }
        return from + SEC(40 * (n - 1));
}

static void there_are_sixty_an_hour_of_the_host_at_most(void **state) {
        IncidentRules r = { 0 };
        start_all(&r, &incident_host, INCIDENT_KERNEL, INCIDENT_HOURLY_MAX, 0);
        assert_int_equal(
                incident_rules_decide(&r, &incident_host, INCIDENT_KERNEL, false, SEC(3599)),
                INCIDENT_TOO_MANY);
        assert_non_null(incident_rules_verdict_text(INCIDENT_TOO_MANY));
        /* An hour after the first one there is room for one more, and for one only. */
        assert_int_equal(
                incident_rules_decide(&r, &incident_host, INCIDENT_KERNEL, false, SEC(3600)),
                INCIDENT_BEGIN);
        incident_rules_add_start(&r, &incident_host, INCIDENT_KERNEL, SEC(3600));
        assert_int_equal(
                incident_rules_decide(&r, &incident_host, INCIDENT_KERNEL, false, SEC(3635)),
                INCIDENT_TOO_MANY);
        assert_int_equal(
                incident_rules_decide(&r, &incident_host, INCIDENT_KERNEL, false, SEC(3640)),
                INCIDENT_BEGIN);
}

static void a_stranger_begins_two_an_hour_and_keeps_no_failure_from_its_own(void **state) {
        IncidentRules r = { 0 };
        uint64_t last = start_all(&r, &somebody, INCIDENT_STRANGER,
                                  INCIDENT_STRANGERS_HOURLY_MAX_OF_OWNER, 0);
        assert_int_equal(incident_rules_decide(&r, &somebody, INCIDENT_NOTE, false, last + SEC(9)),
                         INCIDENT_JOIN);
        assert_int_equal(incident_rules_decide(&r, &somebody, INCIDENT_NOTE, false, last + SEC(10)),
                         INCIDENT_BEGIN);
        assert_int_equal(
                incident_rules_decide(&r, &somebody, INCIDENT_STRANGER, false, last + SEC(29)),
                INCIDENT_JOIN);
        assert_int_equal(
                incident_rules_decide(&r, &somebody, INCIDENT_STRANGER, false, last + SEC(40)),
                INCIDENT_TOO_MANY_STRANGERS);
        assert_non_null(incident_rules_verdict_text(INCIDENT_TOO_MANY_STRANGERS));
        assert_int_equal(
                incident_rules_decide(&r, &incident_host, INCIDENT_KERNEL, false, last + SEC(40)),
                INCIDENT_BEGIN);
        last = start_all(&r, &victim, INCIDENT_STRANGER, 2, last + SEC(40));
        last = start_all(&r, &pod, INCIDENT_STRANGER, 2, last + SEC(40));
        const Owner fourth = { .uid = 1003 }; /* six of all */
        assert_int_equal(
                incident_rules_decide(&r, &fourth, INCIDENT_STRANGER, false, last + SEC(40)),
                INCIDENT_TOO_MANY_STRANGERS);
        assert_int_equal(incident_rules_decide(&r, &somebody, INCIDENT_STRANGER, false, SEC(3600)),
                         INCIDENT_BEGIN);
}

static void who_uses_all_the_snapshots_of_an_hour_leaves_those_of_others(void **state) {
        IncidentRules r = { 0 };
        const Owner fourth = { .uid = 1003 };
        uint64_t now = start_all(&r, &somebody, INCIDENT_NOTE, INCIDENT_HOURLY_MAX_OF_OWNER, 0);
        assert_int_equal(incident_rules_decide(&r, &somebody, INCIDENT_NOTE, false, now + SEC(40)),
                         INCIDENT_TOO_MANY);
        now = start_all(&r, &victim, INCIDENT_NOTE, INCIDENT_HOURLY_MAX_OF_OWNER, now + SEC(40));
        now = start_all(&r, &pod, INCIDENT_NOTE, INCIDENT_HOURLY_MAX_OF_OWNER, now + SEC(40));
        now += SEC(40);
        assert_true(now < SEC(3600));
        assert_int_equal(incident_rules_decide(&r, &fourth, INCIDENT_NOTE, false, now),
                         INCIDENT_TOO_MANY);                       /* sixty of all */
        start_all(&r, &incident_host, INCIDENT_REQUESTED, 5, now); /* its own */
}

int main(void) {
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(the_first_one_begins),
                cmocka_unit_test(who_uses_all_the_snapshots_of_an_hour_leaves_those_of_others),
                cmocka_unit_test(a_stranger_begins_two_an_hour_and_keeps_no_failure_from_its_own),
                cmocka_unit_test(what_comes_within_thirty_seconds_joins_it),
                cmocka_unit_test(an_operator_joins_only_what_is_being_collected),
                cmocka_unit_test(there_are_sixty_an_hour_of_the_host_at_most),
        };
        return cmocka_run_group_tests(tests, NULL, NULL);
}
