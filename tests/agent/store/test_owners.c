/* agent/owners: who is heard about whose files. */

#include "tests/harness/unit.h"

#include "agent/store/bundle.h"

#define SOURCE "core-dumps"
#define VICTIM 1000
#define ATTACKER 1001
#define AGENT 1002

static void owners_are_heard_about_their_own_and_root_s_files_alone(void **state) {
        FileOwners o = { 0 };
        assert_true(uid_may_annotate(&o, ATTACKER)); /* nothing is there to be spoken about */
        file_owners_add(&o, SOURCE, 0, AGENT);
        assert_true(uid_may_annotate(&o, ATTACKER));
        file_owners_add(&o, SOURCE, VICTIM, AGENT);
        file_owners_add(&o, SOURCE, VICTIM, AGENT);
        assert_true(uid_may_annotate(&o, VICTIM));
        assert_true(uid_may_annotate(&o, 0));
        assert_false(uid_may_annotate(&o, ATTACKER));
        file_owners_add(&o, SOURCE, ATTACKER, AGENT);
        file_owners_add(&o, SOURCE, VICTIM, AGENT);
        assert_false(uid_may_annotate(&o, ATTACKER));
        assert_false(uid_may_annotate(&o, VICTIM));
        assert_true(uid_may_annotate(&o, 0));
}

static void owners_that_have_come_since_are_not_covered(void **state) {
        FileOwners judged = { 0 }, now = { 0 };
        assert_true(file_owners_cover(&judged, &now));
        file_owners_add(&now, SOURCE, VICTIM, AGENT);
        assert_false(file_owners_cover(&judged, &now));
        file_owners_add(&judged, SOURCE, VICTIM, AGENT);
        assert_true(file_owners_cover(&judged, &now));
        file_owners_add(&now, SOURCE, ATTACKER, AGENT);
        assert_false(file_owners_cover(&judged, &now));
        file_owners_add(&judged, SOURCE, ATTACKER, AGENT);
        assert_true(file_owners_cover(&judged, &now));
        now = (FileOwners){ 0 };
        assert_true(file_owners_cover(&judged, &now));
}

static void the_agent_s_own_copies_are_as_good_as_root_s(void **state) {
        FileOwners copies = { 0 }, others = { 0 };
        file_owners_add(&copies, "containers-" SOURCE, AGENT, AGENT);
        file_owners_add(&others, SOURCE, AGENT, AGENT);
        assert_true(uid_may_annotate(&copies, VICTIM));
        assert_false(uid_may_annotate(&others, VICTIM));
        file_owners_add(&copies, "containers-" SOURCE, ATTACKER, AGENT);
        assert_false(uid_may_annotate(&copies, VICTIM));
}

int main(void) {
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(owners_are_heard_about_their_own_and_root_s_files_alone),
                cmocka_unit_test(owners_that_have_come_since_are_not_covered),
                cmocka_unit_test(the_agent_s_own_copies_are_as_good_as_root_s),
        };
        return cmocka_run_group_tests(tests, NULL, NULL);
}
