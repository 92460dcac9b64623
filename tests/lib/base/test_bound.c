/* Caps on what each owner has: nobody exceeds one, nobody loses what he has, and the counts add up.
 */
#include "lib/base/bound.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/harness/unit.h"

#include "lib/base/cleanup.h"
#include "tests/harness/fake_clock.h"

static const Owner one = { .uid = 1 }, two = { .uid = 2 }, three = { .uid = 3 };

static void one_owner_gets_no_more_than_the_cap_of_each(void **state) {
        Bound b = { .what = "things", .max = 10, .max_each = 3 };
        Charge first = { 0 }, more = { 0 }, of_two = { 0 };
        assert_int_equal(bound_charge(&b, &first, &one, 2), BOUND_OK);
        assert_int_equal(bound_charge(&b, &more, &one, 2), BOUND_E_OWNER);
        assert_null(bound_owner(&more)); /* nothing was charged */
        assert_true(bound_has_space(&b, &one, 1) && !bound_has_space(&b, &one, 2));
        assert_int_equal(b.n_refused, 1);
        assert_int_equal(bound_charge(&b, &more, &one, 1), BOUND_OK);
        assert_int_equal(bound_charge(&b, &of_two, &two, 4), BOUND_E_OWNER);
        assert_int_equal(bound_charge(&b, &of_two, &two, 3), BOUND_OK);
        assert_int_equal(bound_amount(&b, &one), 3);
        assert_int_equal(b.total, 6);
        assert_int_equal(b.n_refused, 2);
        assert_true(owner_is_same(&b.last_refused, &two));
        bound_release(&first);
        assert_int_equal(bound_amount(&b, &one), 1);
        bound_release(&more);
        bound_release(&of_two);
        assert_int_equal(b.total, 0);
        bound_done(&b);
}

static void all_together_get_no_more_than_the_cap_of_all_and_nobody_loses_anything(void **state) {
        Bound b = { .what = "things", .max = 5, .max_each = 3 };
        Charge charges[3] = { 0 };
        assert_int_equal(bound_charge(&b, &charges[0], &one, 3), BOUND_OK);
        assert_int_equal(bound_charge(&b, &charges[1], &two, 2), BOUND_OK);
        assert_int_equal(bound_charge(&b, &charges[2], &three, 1), BOUND_E_ALL);
        assert_int_equal(bound_amount(&b, &one), 3);
        bound_release(&charges[1]);
        assert_int_equal(bound_charge(&b, &charges[2], &three, 1), BOUND_OK);
        for (size_t i = 0; i < ELEMENTSOF(charges); i++)
                bound_release(&charges[i]);
        bound_done(&b);
}

static void a_charge_grows_moves_and_is_released_once(void **state) {
        Bound b = { .what = "bytes", .max = 100, .max_each = 100 };
        Charge c = { 0 };
        assert_int_equal(bound_charge(&b, &c, &one, 10), BOUND_OK);
        assert_int_equal(bound_charge(&b, &c, &one, 20), BOUND_OK);
        Charge moved = c;
        c = (Charge){ 0 };
        assert_true(owner_is_same(bound_owner(&moved), &one));
        bound_release(&c);
        assert_int_equal(b.total, 30);
        bound_release(&moved);
        bound_release(&moved);
        assert_int_equal(b.total, 0);
        bound_done(&b);
}

static void for_nothing_nobody_is_charged(void **state) {
        Bound b = { .what = "bytes", .max = 1, .max_each = 1 };
        Charge none = { 0 }, some = { 0 };
        assert_int_equal(bound_charge(&b, &none, &one, 0), BOUND_OK);
        assert_null(bound_owner(&none));
        assert_int_equal(bound_charge(&b, &some, &one, 1), BOUND_OK);
        bound_release(&some);
        bound_release(&none);
        assert_int_equal(bound_spend(&b, &one, 0), BOUND_OK);
        assert_int_equal(b.n_accounts, 0);
        bound_done(&b);
}

static void a_charge_may_outlive_its_bound(void **state) {
        Charge first = { 0 }, second = { 0 };
        {
                Bound b = { .what = "things", .max = 2, .max_each = 2 };
                assert_int_equal(bound_charge(&b, &first, &one, 1), BOUND_OK);
                assert_int_equal(bound_charge(&b, &second, &one, 1), BOUND_OK);
                bound_done(&b);
        }
        bound_release(&first);
        bound_release(&second);
}

static void root_of_a_container_is_not_root_of_the_host(void **state) {
        const Owner host = { .uid = 0 }, inside = { .uid = 0, .container = "0123456789abcdef" };
        Bound b = { .what = "things", .max = 8, .max_each = 4 };
        Charge of_inside = { 0 }, of_host = { 0 };
        char text[OWNER_TEXT_SIZE];
        assert_int_equal(bound_charge(&b, &of_inside, &inside, 4), BOUND_OK);
        assert_int_equal(bound_amount(&b, &host), 0);
        assert_int_equal(bound_charge(&b, &of_host, &host, 4), BOUND_OK);
        assert_string_equal(owner_text(bound_owner(&of_inside), text),
                            "uid 0 of container 0123456789ab");
        bound_release(&of_inside);
        bound_release(&of_host);
        bound_done(&b);
}

static void what_is_spent_fades_for_each_owner(void **state) {
        FakeClock fake = FAKE_CLOCK(0, 1000 * USEC_PER_SEC);
        Bound b = { .what = "notes",
                    .max = 12,
                    .max_each = 10,
                    .fade_usec = USEC_PER_SEC,
                    .clock = &fake.clock };
        assert_int_equal(bound_spend(&b, &one, 10), BOUND_OK);
        assert_int_equal(bound_spend(&b, &one, 1), BOUND_E_OWNER);
        assert_int_equal(b.last_refused_usec, 1000 * USEC_PER_SEC);
        assert_int_equal(bound_spend(&b, &two, 3), BOUND_E_ALL);
        assert_int_equal(bound_spend(&b, &two, 2), BOUND_OK);
        fake_clock_advance(&fake, USEC_PER_SEC / 2);
        assert_int_equal(bound_amount(&b, &one), 10);
        fake_clock_advance(&fake, USEC_PER_SEC / 2);
        assert_int_equal(bound_amount(&b, &one), 9);
        assert_int_equal(bound_spend(&b, &one, 1), BOUND_OK);
        fake_clock_advance(&fake, 3 * USEC_PER_SEC);
        assert_int_equal(bound_total(&b), 7);
        assert_int_equal(bound_amount(&b, &one), 7);
        assert_int_equal(bound_amount(&b, &two), 0);
        assert_int_equal(b.total, 7);
        fake_clock_advance(&fake, USEC_PER_HOUR);
        assert_int_equal(bound_spend(&b, &one, 10), BOUND_OK);
        assert_int_equal(bound_spend(&b, &one, 1), BOUND_E_OWNER);
        bound_done(&b);
}

static void what_is_counted_in_a_pass_is_taken_back_at_its_end(void **state) {
        Bound b = { .what = "files", .max = 3, .max_each = 2 };
        assert_int_equal(bound_spend(&b, &one, 2), BOUND_OK);
        assert_int_equal(bound_spend(&b, &two, 1), BOUND_OK);
        assert_int_equal(bound_spend(&b, &two, 1), BOUND_E_ALL);
        bound_reset(&b);
        assert_int_equal(b.total, 0);
        assert_int_equal(b.n_refused, 1);
        assert_int_equal(bound_spend(&b, &two, 2), BOUND_OK);
        bound_give_back(&b, &two, 1);
        assert_int_equal(bound_amount(&b, &two), 1);
        bound_give_back(&b, &two, 5); /* at most all */
        bound_give_back(&b, &one, 1);
        assert_int_equal(b.total, 0);
        bound_done(&b);
}

#define N_OWNERS 50
#define N_CHARGES 200

static void counts_add_up_whatever_happens(void **state) {
        Bound b = { .what = "things", .max = 1000, .max_each = 90 };
        Charge charges[N_CHARGES] = { 0 };
        uid_t uids[N_CHARGES] = { 0 };
        uint64_t n_refused = 0;
        srand(1);
        for (int i = 0; i < 20000; i++) {
                const unsigned k = (unsigned)rand() % N_CHARGES;
                const uint64_t amount = 1 + (unsigned)rand() % 60;
                if (!bound_owner(&charges[k])) {
                        uids[k] = (uid_t)rand() % N_OWNERS;
                        n_refused += bound_charge(&b, &charges[k], &(Owner){ .uid = uids[k] },
                                                  amount) != BOUND_OK;
                } else
                        bound_release(&charges[k]);
                uint64_t of_owners[N_OWNERS] = { 0 }, total = 0;
                for (unsigned n = 0; n < N_CHARGES; n++)
                        of_owners[uids[n]] += charges[n].amount;
                for (uid_t uid = 0; uid < N_OWNERS; uid++) {
                        assert_int_equal(bound_amount(&b, &(Owner){ .uid = uid }), of_owners[uid]);
                        assert_true(of_owners[uid] <= 90);
                        total += of_owners[uid];
                }
                assert_int_equal(b.total, total);
                assert_true(total <= 1000);
        }
        assert_int_equal(b.n_refused, n_refused);
        assert_true(n_refused > 0);
        for (unsigned k = 0; k < N_CHARGES; k++)
                bound_release(&charges[k]);
        assert_int_equal(b.n_accounts, 0);
        bound_done(&b);
}

int main(void) {
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(one_owner_gets_no_more_than_the_cap_of_each),
                cmocka_unit_test(
                        all_together_get_no_more_than_the_cap_of_all_and_nobody_loses_anything),
                cmocka_unit_test(a_charge_grows_moves_and_is_released_once),
                cmocka_unit_test(for_nothing_nobody_is_charged),
                cmocka_unit_test(a_charge_may_outlive_its_bound),
                cmocka_unit_test(root_of_a_container_is_not_root_of_the_host),
                cmocka_unit_test(what_is_spent_fades_for_each_owner),
                cmocka_unit_test(what_is_counted_in_a_pass_is_taken_back_at_its_end),
                cmocka_unit_test(counts_add_up_whatever_happens),
        };
        return cmocka_run_group_tests_name("bound", tests, NULL, NULL);
}
