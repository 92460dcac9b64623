/* What is slow has not stalled, and what has stalled is found. */
#include "agent/delivery/delivery_s3_bucket.h"
#include "agent/delivery/delivery_volume.h"

#include "tests/harness/unit.h"

#define SEC(n) ((n)*USEC_PER_SEC)
#define BEGUN SEC(1000)

static void work_without_progress_counts_from_its_start(void **state) {
        StallCheck s = { 0 };
        assert_true(destination_stall_check(&s, BEGUN, 0, BEGUN + SEC(61)) == SEC(61));
}

static void a_minute_is_not_yet_a_stall(void **state) {
        StallCheck s = { 0 };
        assert_true(destination_stall_check(&s, BEGUN, 0, BEGUN) == 0);
        assert_true(destination_stall_check(&s, BEGUN, 0, BEGUN + STALL_TIMEOUT_USEC) == 0);
        assert_true(destination_stall_check(&s, BEGUN, 0, BEGUN + STALL_TIMEOUT_USEC + 1) ==
                    STALL_TIMEOUT_USEC + 1);
}

static void progress_ends_a_stall_and_the_next_counts_from_there(void **state) {
        StallCheck s = { 0 };
        assert_true(destination_stall_check(&s, BEGUN, 0, BEGUN + SEC(100)) == SEC(100));
        assert_true(destination_stall_check(&s, BEGUN, 1, BEGUN + SEC(110)) == 0);
        assert_true(destination_stall_check(&s, BEGUN, 1, BEGUN + SEC(170)) == 0);
        assert_true(destination_stall_check(&s, BEGUN, 1, BEGUN + SEC(171)) == SEC(61));
        assert_true(destination_stall_check(&s, BEGUN, 0, BEGUN + SEC(172)) ==
                    0); /* a new attempt: it moves */
}

static void the_next_piece_of_work_starts_from_zero(void **state) {
        StallCheck s = { 0 };
        assert_true(destination_stall_check(&s, BEGUN, 7, BEGUN + SEC(1)) == 0);
        assert_true(destination_stall_check(&s, BEGUN, 7, BEGUN + SEC(100)) == SEC(99));
        assert_true(destination_stall_check(&s, BEGUN + SEC(101), 7, BEGUN + SEC(102)) == 0);
}

static void a_clock_that_goes_back_is_no_stall(void **state) {
        StallCheck s = { 0 };
        assert_true(destination_stall_check(&s, BEGUN, 0, BEGUN - SEC(500)) == 0);
}

static uint64_t ten_minutes(Clock *c) {
        (void)c;
        return 10 * USEC_PER_MINUTE;
}

static void a_volume_that_hangs_while_it_is_cleaned_up_has_stalled(void **state) {
        (void)state;
        Clock clock = { .boottime_usec = ten_minutes, .realtime_usec = ten_minutes };
        DestinationShared shared = { .clock = &clock };
        Destination d = { .shared = &shared,
                          .type = &destination_volume_type,
                          .activity = ACTIVITY_CLEANING_UP,
                          .probe_start_usec = USEC_PER_MINUTE };
        bool is_ours;
        assert_int_equal(destination_stall(&d, &is_ours), 9 * USEC_PER_MINUTE);
        assert_false(is_ours);
        d.type = &destination_s3_type; /* many requests, each with its own time limit */
        assert_int_equal(destination_stall(&d, &is_ours), 0);
}

int main(void) {
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(work_without_progress_counts_from_its_start),
                cmocka_unit_test(a_minute_is_not_yet_a_stall),
                cmocka_unit_test(progress_ends_a_stall_and_the_next_counts_from_there),
                cmocka_unit_test(the_next_piece_of_work_starts_from_zero),
                cmocka_unit_test(a_clock_that_goes_back_is_no_stall),
                cmocka_unit_test(a_volume_that_hangs_while_it_is_cleaned_up_has_stalled),
        };
        return cmocka_run_group_tests(tests, NULL, NULL);
}
