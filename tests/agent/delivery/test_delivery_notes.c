/* agent/delivery/delivery_notes, agent/intake/unit_notes: whose notes count for a unit, for its
 * manifest and for the place of its copy. */

#include "tests/harness/unit.h"

#include <stdio.h>
#include <string.h>

#include "agent/delivery/delivery_notes.h"
#include "agent/intake/unit_notes.h"
#include "agent/store/store.h"
#include "lib/base/cleanup.h"
#include "tests/lib/base/scratch.h"

#define SOURCE "core-dumps"
#define UNIT "/dumps/dt-1-cid-2"
#define VICTIM 1000
#define ATTACKER 1001

typedef struct Fixture {
        Scratch *scratch;
        Store *store;
        Bundle bundle;
        DeliveryNotes notes;
        unsigned n_told;
} Fixture;

static int setup(void **state) {
        void *scratch = NULL;
        Fixture *f = calloc(1, sizeof *f);
        if (!f || scratch_setup(&scratch) < 0)
                return -1;
        f->scratch = scratch;
        f->bundle.rec.source = strdup(SOURCE);
        f->bundle.rec.path = strdup(UNIT);
        f->bundle.rec.kind = SOURCE_NEURON_CORE_DUMP;
        f->bundle.rec.uid = VICTIM;
        *state = f;
        return store_open(&f->store, f->scratch->path, NULL, NULL);
}

static int teardown(void **state) {
        Fixture *f = *state;
        void *scratch = f->scratch;
        delivery_notes_done(&f->notes);
        bundle_record_done(&f->bundle.rec);
        store_close(f->store);
        free(f);
        return scratch_teardown(&scratch);
}

/* @param prefix  NULL: none was granted */
static void report(Fixture *f, uid_t uid, const char *where, const char *prefix) {
        char id[33], document[512];
        (void)snprintf(id, sizeof id, "%032x", ++f->n_told);
        (void)snprintf(document, sizeof document,
                       "{\"schema\": \"neuron-collectd/hook-note/1\", \"id\": \"%s\", "
                       "\"arguments\": {\"error_location\": \"%s\"}, "
                       "\"job\": {\"key\": \"slurm:%s\", \"source\": \"slurm\", \"rank\": 3}}",
                       id, where, where);
        assert_int_equal(store_note_add(f->store, &(StoredNote){ .id = id,
                                                                 .received_usec = f->n_told,
                                                                 .uid = uid,
                                                                 .source = (char *)SOURCE,
                                                                 .unit_path = (char *)UNIT,
                                                                 .s3_prefix = (char *)prefix,
                                                                 .document = document }),
                         0);
}

static void notes_of_others_are_not_in_the_manifest(void **state) {
        Fixture *f = *state;
        FileOwners owners = { 0 };
        report(f, ATTACKER, "attackers_words", NULL);
        report(f, VICTIM, "his_words", NULL);
        report(f, ATTACKER, "more_words", NULL);
        report(f, 0, "roots_words", NULL);
        assert_int_equal(delivery_notes_read(&f->notes, f->store, &f->bundle), 0);
        assert_int_equal(f->notes.n, 4); /* after a start nothing is known of the owners */
        file_owners_add(&owners, VICTIM);
        file_owners_add(&owners, 0);
        assert_int_equal(delivery_notes_filter(&f->notes, &owners), 2);
        assert_int_equal(f->notes.n, 2);
        assert_string_equal(f->notes.items[0].note.error_location, "his_words");
        assert_string_equal(f->notes.items[1].note.error_location, "roots_words");
        assert_string_equal(f->notes.items[0].note.job.key, "slurm:his_words");
        file_owners_add(&owners, ATTACKER);
        assert_int_equal(delivery_notes_filter(&f->notes, &owners), 1);
        assert_string_equal(f->notes.items[0].note.job.key, "slurm:roots_words");
}

static void notes_of_others_alone_give_no_job(void **state) {
        Fixture *f = *state;
        FileOwners owners = { 0 };
        report(f, ATTACKER, "attackers_words", NULL);
        assert_int_equal(delivery_notes_read(&f->notes, f->store, &f->bundle), 0);
        file_owners_add(&owners, VICTIM);
        assert_int_equal(delivery_notes_filter(&f->notes, &owners), 1);
        assert_int_equal(f->notes.n, 0);
}

static void notes_of_others_do_not_crowd_out_the_owner_s(void **state) {
        Fixture *f = *state;
        for (unsigned i = 0; i < MANIFEST_FAILURES_MAX + 1; i++)
                report(f, ATTACKER, "attackers_words", NULL);
        report(f, VICTIM, "his_words", NULL);
        file_owners_add(&f->bundle.facts.owners, VICTIM);
        assert_int_equal(delivery_notes_read(&f->notes, f->store, &f->bundle), 0);
        assert_int_equal(f->notes.n, 1);
        assert_string_equal(f->notes.items[0].note.error_location, "his_words");
}

static const char *prefix_for(Fixture *f, uid_t owner) {
        f->bundle.facts.owners = (FileOwners){ 0 };
        file_owners_add(&f->bundle.facts.owners, owner);
        unit_notes_set_s3_prefix(f->store, &f->bundle);
        return f->bundle.rec.s3_prefix;
}

static void nobody_diverts_another_s_files_by_a_prefix(void **state) {
        Fixture *f = *state;
        report(f, ATTACKER, "x", "s3://b/attacker");
        assert_null(prefix_for(f, VICTIM));
        report(f, VICTIM, "x", "s3://b/his");
        assert_string_equal(prefix_for(f, VICTIM), "s3://b/his");
        report(f, VICTIM, "x", "s3://b/later");
        assert_string_equal(prefix_for(f, VICTIM), "s3://b/his"); /* the first that was granted */
}

static void a_prefix_is_lost_when_another_s_file_has_come(void **state) {
        Fixture *f = *state;
        report(f, ATTACKER, "x", "s3://b/attacker");
        assert_string_equal(prefix_for(f, ATTACKER), "s3://b/attacker");
        assert_null(prefix_for(f, VICTIM));
}

static void a_supplement_goes_where_its_base_went_unless_it_is_of_another(void **state) {
        Fixture *f = *state;
        report(f, ATTACKER, "x", "s3://b/attacker");
        (void)strcpy(f->bundle.rec.supplement_of, "neuron-core-dump-1");
        assert_null(prefix_for(f, ATTACKER)); /* it gets none of its own */
        f->bundle.rec.s3_prefix = strdup("s3://b/attacker");
        assert_string_equal(prefix_for(f, ATTACKER), "s3://b/attacker");
        assert_null(prefix_for(f, VICTIM));
}

int main(void) {
#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
        const struct CMUnitTest tests[] = {
                TEST(notes_of_others_are_not_in_the_manifest),
                TEST(notes_of_others_alone_give_no_job),
                TEST(notes_of_others_do_not_crowd_out_the_owner_s),
                TEST(nobody_diverts_another_s_files_by_a_prefix),
                TEST(a_prefix_is_lost_when_another_s_file_has_come),
                TEST(a_supplement_goes_where_its_base_went_unless_it_is_of_another),
        };
        return cmocka_run_group_tests(tests, NULL, NULL);
}
