/* Who may annotate whose files. */

#include "tests/harness/unit.h"

#include "lib/neuron/file_owners.h"

#define VICTIM 1000
#define ATTACKER 1001

static void users_may_annotate_their_own_and_root_s_files_alone(void **state) {
        FileOwners o = { 0 };
        assert_true(uid_may_annotate(&o, ATTACKER)); /* nothing is there to be spoken about */
        file_owners_add(&o, 0);
        assert_true(uid_may_annotate(&o, ATTACKER));
        file_owners_add(&o, VICTIM);
        file_owners_add(&o, VICTIM);
        assert_true(uid_may_annotate(&o, VICTIM));
        assert_true(uid_may_annotate(&o, 0));
        assert_false(uid_may_annotate(&o, ATTACKER));
        file_owners_add(&o, ATTACKER);
        file_owners_add(&o, VICTIM);
        assert_false(uid_may_annotate(&o, ATTACKER));
        assert_false(uid_may_annotate(&o, VICTIM));
        assert_true(uid_may_annotate(&o, 0));
}

static void owners_that_have_come_since_are_not_covered(void **state) {
        FileOwners judged = { 0 }, now = { 0 };
        assert_true(file_owners_cover(&judged, &now));
        file_owners_add(&now, VICTIM);
        assert_false(file_owners_cover(&judged, &now));
        file_owners_add(&judged, VICTIM);
        assert_true(file_owners_cover(&judged, &now));
        file_owners_add(&now, ATTACKER);
        assert_false(file_owners_cover(&judged, &now));
        file_owners_add(&judged, ATTACKER);
        assert_true(file_owners_cover(&judged, &now));
        now = (FileOwners){ 0 };
        assert_true(file_owners_cover(&judged, &now));
}

int main(void) {
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(users_may_annotate_their_own_and_root_s_files_alone),
                cmocka_unit_test(owners_that_have_come_since_are_not_covered),
        };
        return cmocka_run_group_tests(tests, NULL, NULL);
}
