/* agent/hooknotes/mailbox_room.c: what a directory that everybody may write to may hold. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include <cmocka.h>

#include "agent/hooknotes/mailbox_room.h"

#define KIB 1024u
#define ALICE 1000u
#define MALLORY 1001u

static MailboxRoom room;

static int set_up(void **state) {
        (void)state;
        mailbox_room_init(&room);
        return 0;
}

/* @return how many of n files could stay */
static unsigned leave(uid_t uid, unsigned n, uint64_t bytes) {
        unsigned stay = 0;
        for (unsigned i = 0; i < n; i++)
                stay += mailbox_room_place(&room, uid, bytes, false) == MAILBOX_WAIT;
        return stay;
}

static void of_a_user_a_hundred_notes_are_taken_and_more_have_to_go(void **state) {
        (void)state;
        for (unsigned i = 0; i < MAILBOX_NOTES_MAX_OF_UID; i++)
                assert_int_equal(mailbox_room_place(&room, ALICE, 100, true), MAILBOX_TAKE);
        assert_int_equal(mailbox_room_place(&room, ALICE, 100, true), MAILBOX_FULL);
        assert_int_equal(mailbox_room_place(&room, ALICE, 100, false), MAILBOX_WAIT);
        assert_int_equal(mailbox_room_place(&room, MALLORY, 100, true), MAILBOX_TAKE);
}

/* @return how many of n notes are taken */
static unsigned send(uid_t uid, unsigned n) {
        unsigned taken = 0;
        for (unsigned i = 0; i < n; i++)
                taken += mailbox_room_place(&room, uid, 100, true) == MAILBOX_TAKE;
        return taken;
}

static void a_thousand_notes_may_lie_there_in_all_and_who_has_most_makes_room(void **state) {
        (void)state;
        for (uid_t uid = 100000; uid < 100011; uid++)
                assert_int_equal(send(uid, 100), 100);
        assert_int_equal(send(ALICE, 10), 10); /* though it comes last */
        assert_true(mailbox_room_next(&room));
        for (uid_t uid = 100000; uid < 100011; uid++)
                assert_int_equal(send(uid, 100), 90);
        assert_int_equal(send(ALICE, 10), 10);
        assert_false(mailbox_room_next(&room)); /* no more than before */
        assert_int_equal(send(MALLORY, 100), 90);
        assert_false(mailbox_room_next(&room));
        assert_int_equal(send(MALLORY, 100), 100); /* it is over */
}

static void who_heaps_up_most_makes_room_for_who_has_little(void **state) {
        (void)state;
        for (unsigned look = 0; look < 2; look++) {
                unsigned stay = 0;
                for (uid_t uid = 100000; uid < 100005; uid++)
                        stay += leave(uid, 256, 64 * KIB);
                assert_int_equal(stay, look == 0 ? 5 * 256 : 5 * 204);
                assert_int_equal(leave(ALICE, 1, 64 * KIB), 1);
                assert_int_equal(mailbox_room_next(&room), look == 0);
        }
}

static void a_user_may_heap_up_sixteen_mebibytes(void **state) {
        (void)state;
        assert_int_equal(leave(MALLORY, 300, 64 * KIB), 256);
        assert_int_equal(leave(ALICE, 1, 64 * KIB), 1);
}

static void empty_files_count_too(void **state) {
        (void)state;
        assert_int_equal(leave(MALLORY, 10000, 0), 4096);
}

static void many_users_may_heap_up_sixty_four_mebibytes_and_notes_are_taken_all_the_same(
        void **state) {
        unsigned stay = 0;
        (void)state;
        for (unsigned look = 0; look < 2; look++) {
                stay = 0;
                for (uid_t uid = 100000; uid < 102000; uid++)
                        stay += leave(uid, 1, 64 * KIB);
                if (look == 0)
                        assert_true(mailbox_room_next(&room));
        }
        assert_int_equal(stay, 1024);
        assert_int_equal(mailbox_room_place(&room, ALICE, 64 * KIB, true), MAILBOX_TAKE);
        assert_int_equal(leave(ALICE, 1, 1), 0);
}

static void what_is_too_many_users_to_tell_apart_shares_a_bound(void **state) {
        (void)state;
        for (uid_t uid = 0; uid < MAILBOX_NOTES_MAX; uid++)
                (void)leave(uid, 1, 0);
        assert_int_equal(leave(200000, 200, 64 * KIB) + leave(200001, 200, 64 * KIB), 255);
}

static void no_size_makes_a_sum_overflow(void **state) {
        (void)state;
        assert_int_equal(leave(MALLORY, 1, UINT64_MAX), 0);
        assert_int_equal(leave(MALLORY, 300, 64 * KIB), 256);
}

static void the_next_look_counts_anew(void **state) {
        (void)state;
        assert_int_equal(leave(MALLORY, 300, 64 * KIB), 256);
        assert_false(mailbox_room_next(&room));
        assert_int_equal(leave(MALLORY, 300, 64 * KIB), 256);
}

int main(void) {
        const struct CMUnitTest tests[] = {
                cmocka_unit_test_setup(of_a_user_a_hundred_notes_are_taken_and_more_have_to_go,
                                       set_up),
                cmocka_unit_test_setup(
                        a_thousand_notes_may_lie_there_in_all_and_who_has_most_makes_room, set_up),
                cmocka_unit_test_setup(who_heaps_up_most_makes_room_for_who_has_little, set_up),
                cmocka_unit_test_setup(a_user_may_heap_up_sixteen_mebibytes, set_up),
                cmocka_unit_test_setup(empty_files_count_too, set_up),
                cmocka_unit_test_setup(
                        many_users_may_heap_up_sixty_four_mebibytes_and_notes_are_taken_all_the_same,
                        set_up),
                cmocka_unit_test_setup(what_is_too_many_users_to_tell_apart_shares_a_bound, set_up),
                cmocka_unit_test_setup(no_size_makes_a_sum_overflow, set_up),
                cmocka_unit_test_setup(the_next_look_counts_anew, set_up),
        };
        return cmocka_run_group_tests(tests, NULL, NULL);
}
