/* Whose turn it is: small before large, sources in turn, the oldest first, and nobody waits for
 * ever. */
#include "agent/delivery/rotation.h"

#include <stdlib.h>
#include <string.h>

#include "tests/harness/unit.h"

#include "lib/base/cleanup.h"

typedef struct Waiting {
        bool is_small;
        const void *source;
        bool is_gone;
        uid_t uid;
} Waiting;

static const int sources[3];

/* The index of whose turn it is among those that are small, or are not; they are in order of age.
 */
static size_t first(const Rotation *t, const Waiting *w, size_t n, bool small) {
        size_t best = n;
        for (size_t i = 0; i < n; i++)
                if (!w[i].is_gone && w[i].is_small == small &&
                    (best == n ||
                     rotation_served_at(t, w[i].source) < rotation_served_at(t, w[best].source) ||
                     (w[i].source == w[best].source &&
                      rotation_owner_served_at(t, w[i].source, w[i].uid) <
                              rotation_owner_served_at(t, w[best].source, w[best].uid))))
                        best = i;
        return best;
}

static size_t next(Rotation *t, Waiting *w, size_t n) {
        bool small = rotation_prefers_small(t);
        size_t i = first(t, w, n, small);
        i = i < n ? i : first(t, w, n, !small);
        if (i < n) {
                rotation_record(t, w[i].source, w[i].uid, w[i].is_small);
                w[i].is_gone = true;
        }
        return i;
}

static void test_small_is_both(void **state) {
        assert_true(rotation_is_small(1, 0));
        assert_true(rotation_is_small(SMALL_FILES_MAX, SMALL_BYTES_MAX));
        assert_false(rotation_is_small(SMALL_FILES_MAX + 1, 0));
        assert_false(rotation_is_small(1, SMALL_BYTES_MAX + 1));
}

static void test_oldest_first(void **state) {
        Rotation t = { 0 };
        Waiting w[5];
        for (size_t i = 0; i < 5; i++)
                w[i] = (Waiting){ true, &sources[0], false, 0 };
        for (size_t i = 0; i < 5; i++)
                assert_int_equal(next(&t, w, 5), i);
        assert_int_equal(next(&t, w, 5), 5);
}

static void test_small_first(void **state) {
        Rotation t = { 0 };
        Waiting w[] = { { false, &sources[0], false, 0 },
                        { false, &sources[1], false, 0 },
                        { true, &sources[0], false, 0 } };
        assert_int_equal(next(&t, w, 3), 2);
        assert_int_equal(next(&t, w, 3), 1); /* the other source's, which was not served yet */
        assert_int_equal(next(&t, w, 3), 0);
}

static void test_sources_in_turn(void **state) {
        Rotation t = { 0 };
        Waiting w[12];
        size_t n_of_last = 0;
        /* ten of the first source are older than the two of the second */
        for (size_t i = 0; i < 12; i++)
                w[i] = (Waiting){ true, &sources[i >= 10], false, 0 };
        for (size_t i = 0; i < 4; i++)
                n_of_last += next(&t, w, 12) >= 10;
        assert_int_equal(n_of_last, 2);
}

static void owners_of_one_source_alternate(void **state) {
        Rotation t = { 0 };
        Waiting w[102];
        for (size_t i = 0; i < 102; i++) /* a hundred of one are older than the two of another */
                w[i] = (Waiting){ true, &sources[0], false, i < 100 ? 1000 : 1001 };
        assert_int_equal(next(&t, w, 102), 0);
        assert_int_equal(next(&t, w, 102), 100);
        assert_int_equal(next(&t, w, 102), 1);
        assert_int_equal(next(&t, w, 102), 101);
        assert_int_equal(next(&t, w, 102), 2);
}

static void of_too_many_owners_the_one_served_longest_ago_is_forgotten(void **state) {
        Rotation t = { 0 };
        for (uid_t uid = 0; uid < ROTATION_OWNERS_MAX + 50; uid++)
                rotation_record(&t, &sources[0], uid, true);
        assert_int_equal(t.n_owners, ROTATION_OWNERS_MAX);
        assert_int_equal(rotation_owner_served_at(&t, &sources[0], 49), 0);
        assert_int_equal(rotation_owner_served_at(&t, &sources[0], 50), 51);
}

static void test_large_is_not_starved(void **state) {
        Rotation t = { 0 };
        Waiting w[1 + 100];
        w[0] = (Waiting){ false, &sources[0], false, 0 };
        for (size_t i = 1; i < ELEMENTSOF(w); i++)
                w[i] = (Waiting){ true, &sources[0], false, 0 };
        size_t turn = 0;
        while (next(&t, w, ELEMENTSOF(w)) != 0)
                turn++;
        assert_int_equal(turn, SMALL_IN_ROW_MAX);
        assert_int_equal(t.n_small_in_row, 0);
}

/* Whatever is waiting: all of it goes, each once, and no source waits for more turns than there are
 * sources while it has small ones. */
static void test_random(void **state) {
        for (unsigned seed = 1; seed <= 2000; seed++) {
                Rotation t = { 0 };
                Waiting w[60];
                size_t n_left[3] = { 0 }, since[3] = { 0 };
                srandom(seed);
                for (size_t i = 0; i < ELEMENTSOF(w); i++) {
                        size_t source = (size_t)random() % 3;
                        w[i] = (Waiting){ random() % 4 > 0, &sources[source], false, 0 };
                        n_left[source] += w[i].is_small;
                }
                for (size_t turn = 0; turn < ELEMENTSOF(w); turn++) {
                        size_t i = next(&t, w, ELEMENTSOF(w));
                        assert_true(i < ELEMENTSOF(w));
                        size_t source = (size_t)((const int *)w[i].source - sources);
                        n_left[source] -= w[i].is_small;
                        for (size_t k = 0; k < 3; k++) {
                                since[k] = k == source || n_left[k] == 0 ? 0 : since[k] + 1;
                                assert_true(since[k] <= 3 + 1);
                        }
                }
                assert_int_equal(next(&t, w, ELEMENTSOF(w)), ELEMENTSOF(w));
        }
}

static void test_many_sources(void **state) {
        static const char identity[ROTATION_SOURCES_MAX + 50];
        Rotation t = { 0 };
        for (size_t i = 0; i < sizeof identity; i++)
                rotation_record(&t, &identity[i], 0, true);
        assert_int_equal(t.n_sources, ROTATION_SOURCES_MAX);
}

int main(void) {
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(test_small_is_both),
                cmocka_unit_test(test_oldest_first),
                cmocka_unit_test(test_small_first),
                cmocka_unit_test(test_sources_in_turn),
                cmocka_unit_test(test_large_is_not_starved),
                cmocka_unit_test(test_random),
                cmocka_unit_test(test_many_sources),
                cmocka_unit_test(owners_of_one_source_alternate),
                cmocka_unit_test(of_too_many_owners_the_one_served_longest_ago_is_forgotten),
        };
        return cmocka_run_group_tests_name("rotation", tests, NULL, NULL);
}
