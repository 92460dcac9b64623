/* Shares of a bounded thing: whoever has most gives way first, and the counts add up. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/harness/unit.h"

#include "lib/base/cleanup.h"
#include "lib/neuron/owners.h"

static Owner user(uid_t uid) {
        return (Owner){ .uid = uid };
}

static int request(Owners *s, Owner o, uint64_t amount, Owner *ret_largest) {
        return owners_request(s, &o, amount, ret_largest);
}

static void below_the_bound_everybody_gets_what_they_ask_for(void **state) {
        Owners s = { .what = "things", .max = 10 };
        Owner most;
        assert_int_equal(request(&s, user(2), 7, &most), OWNERS_GRANTED);
        assert_int_equal(request(&s, user(1), 3, &most), OWNERS_GRANTED);
        assert_int_equal(owners_amount(&s, &(Owner){ .uid = 2 }), 7);
        assert_int_equal(s.total, 10);
        owners_done(&s);
}

static void at_the_bound_whoever_has_most_gives_way(void **state) {
        Owners s = { .what = "things", .max = 10 };
        Owner most;
        assert_int_equal(request(&s, user(1), 9, &most), OWNERS_GRANTED);
        assert_int_equal(request(&s, user(2), 1, &most), OWNERS_GRANTED);
        assert_int_equal(request(&s, user(1), 1, &most), OWNERS_REFUSED);
        assert_int_equal(request(&s, user(2), 1, &most), OWNERS_DISPLACE);
        assert_int_equal(most.uid, 1);
        owners_release(&s, &most, 1);
        assert_int_equal(request(&s, user(2), 1, &most), OWNERS_GRANTED);
        assert_int_equal(request(&s, user(3), 11, &most), OWNERS_REFUSED);
        owners_done(&s);
}

static void nobody_loses_to_an_owner_who_would_have_more(void **state) {
        Owners s = { .what = "things", .max = 10 };
        Owner most;
        assert_int_equal(request(&s, user(1), 5, &most), OWNERS_GRANTED);
        assert_int_equal(request(&s, user(2), 5, &most), OWNERS_GRANTED);
        assert_int_equal(request(&s, user(2), 1, &most), OWNERS_REFUSED);
        assert_int_equal(request(&s, user(3), 6, &most), OWNERS_REFUSED);
        assert_int_equal(request(&s, user(3), 5, &most), OWNERS_DISPLACE);
        owners_done(&s);
}

static void where_each_has_a_bound_nobody_gets_more_and_nobody_gives_way(void **state) {
        Owners s = { .what = "things", .max = UINT64_MAX, .max_each = 3 };
        Owner most;
        assert_int_equal(request(&s, user(1), 2, &most), OWNERS_GRANTED);
        assert_int_equal(request(&s, user(1), 2, &most), OWNERS_REFUSED);
        assert_int_equal(request(&s, user(1), 1, &most), OWNERS_GRANTED);
        assert_int_equal(request(&s, user(1), 1, &most), OWNERS_REFUSED);
        assert_int_equal(request(&s, user(2), 3, &most), OWNERS_GRANTED);
        assert_int_equal(s.total, 6);
        assert_int_equal(owners_bound(&s), 3);
        owners_done(&s);
}

static void root_of_a_container_is_not_root_of_the_host(void **state) {
        Owners s = { .what = "things", .max = 4 };
        Owner most, container = { .uid = 0, .container = "0123456789abcdef" };
        char text[OWNER_TEXT_SIZE];
        assert_int_equal(request(&s, container, 4, &most), OWNERS_GRANTED);
        assert_int_equal(owners_amount(&s, &(Owner){ .uid = 0 }), 0);
        assert_int_equal(request(&s, user(0), 1, &most), OWNERS_DISPLACE);
        assert_string_equal(owner_text(&most, text), "uid 0 of container 0123456789ab");
        owners_done(&s);
}

static void what_is_bounded_in_a_time_is_given_back_by_all(void **state) {
        Owners s = { .what = "things", .max = 10 };
        const Owner a = user(1), b = user(2);
        Owner most;
        assert_int_equal(owners_request(&s, &a, 7, &most), OWNERS_GRANTED);
        assert_int_equal(owners_request(&s, &b, 2, &most), OWNERS_GRANTED);
        owners_release_each(&s, 3);
        assert_int_equal(owners_amount(&s, &a), 4);
        assert_int_equal(owners_amount(&s, &b), 0);
        assert_int_equal(s.total, 4);
        assert_true(owner_is_same(&a, &(Owner){ .uid = 1 }) && !owner_is_same(&a, &b));
        owners_done(&s);
}

static void counts_add_up_whatever_happens(void **state) {
        Owners s = { .what = "things", .max = 1000 };
        uint64_t amounts[50] = { 0 };
        srand(1);
        for (int i = 0; i < 20000; i++) {
                unsigned uid = (unsigned)rand() % 50;
                uint64_t n = 1 + (unsigned)rand() % 60, total = 0;
                Owner o = user(uid), most;
                if (rand() % 2) {
                        if (owners_request(&s, &o, n, &most) == OWNERS_GRANTED)
                                amounts[uid] += n;
                } else {
                        owners_release(&s, &o, n);
                        amounts[uid] -= MIN(n, amounts[uid]);
                }
                for (size_t k = 0; k < ELEMENTSOF(amounts); k++) {
                        Owner each = user((uid_t)k);
                        assert_int_equal(owners_amount(&s, &each), amounts[k]);
                        total += amounts[k];
                }
                assert_int_equal(s.total, total);
                assert_true(total <= 1000);
        }
        owners_done(&s);
}

int main(void) {
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(below_the_bound_everybody_gets_what_they_ask_for),
                cmocka_unit_test(at_the_bound_whoever_has_most_gives_way),
                cmocka_unit_test(nobody_loses_to_an_owner_who_would_have_more),
                cmocka_unit_test(where_each_has_a_bound_nobody_gets_more_and_nobody_gives_way),
                cmocka_unit_test(root_of_a_container_is_not_root_of_the_host),
                cmocka_unit_test(what_is_bounded_in_a_time_is_given_back_by_all),
                cmocka_unit_test(counts_add_up_whatever_happens),
        };
        return cmocka_run_group_tests_name("owners", tests, NULL, NULL);
}
