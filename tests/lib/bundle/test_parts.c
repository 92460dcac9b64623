#include "lib/bundle/packer.h"

#include <string.h>

#include "tests/harness/unit.h"

#include "lib/base/cleanup.h"

static void a_limit_is_the_part_size_while_the_rest_fits(void **state) {
        assert_int_equal(parts_limit(8 * MIB, 0, 4 * GIB), 8 * MIB);
        assert_int_equal(parts_limit(8 * MIB, 0, 9900 * 8 * MIB), 8 * MIB);
        assert_int_equal(parts_limit(8 * MIB, 9000, 900 * 8 * MIB), 8 * MIB);
        assert_int_equal(parts_limit(8 * MIB, 9899, 0), 8 * MIB);
}

static void a_limit_grows_so_that_the_parts_left_suffice(void **state) {
        assert_int_equal(parts_limit(8 * MIB, 0, 9900 * 9 * MIB), 9 * MIB);
        assert_int_equal(parts_limit(8 * MIB, 9800, 100 * GIB), GIB);
        assert_true(parts_limit(8 * MIB, 9900, 1) == UINT64_MAX);
        assert_true(parts_limit(8 * MIB, 20000, 1) == UINT64_MAX);
}

/* Frames of 10, 20, 30 … bytes, each filled with its number; a part closes at 100 bytes. */
static void parts_are_runs_of_complete_frames_with_their_digests(void **state) {
        static const size_t expected_frames[] = { 4, 2, 2,
                                                  1 }; /* 10+20+30+40, 50+60, 70+80, 90 + tail */
        uint8_t all[512], digests[4 * SHA256_SIZE];
        size_t n = 0, begin = 0, first = 0;
        Parts p;
        bool closed;

        parts_init(&p, 100);
        for (unsigned i = 1; i <= 9; i++) {
                memset(all + n, (int)i, 10 * i);
                assert_int_equal(parts_add_frame(&p, all + n, 10 * i, 0, &closed), 0);
                assert_int_equal(closed, i == 4 || i == 6 || i == 8);
                n += 10 * i;
        }
        memset(all + n, 0xee, 17);
        assert_int_equal(parts_finish(&p, all + n, 17), 0);
        n += 17;

        assert_int_equal(p.n, 4);
        assert_int_equal(p.total_bytes, n);
        for (size_t i = 0; i < p.n; i++) {
                assert_int_equal(p.items[i].first_frame, first);
                assert_int_equal(p.items[i].n_frames, expected_frames[i]);
                sha256_of(all + begin, p.items[i].bytes, digests + i * SHA256_SIZE);
                assert_memory_equal(p.items[i].sha256, digests + i * SHA256_SIZE, SHA256_SIZE);
                first += p.items[i].n_frames;
                begin += p.items[i].bytes;
        }
        assert_int_equal(begin, n);
        assert_int_equal(first, 9);
        parts_done(&p);
}

static void a_tail_behind_a_closed_part_is_a_part_of_its_own(void **state) {
        Parts p;
        bool closed;

        parts_init(&p, 4);
        assert_int_equal(parts_add_frame(&p, "frame", 5, 0, &closed), 0);
        assert_true(closed);
        assert_int_equal(parts_finish(&p, "tail", 4), 0);
        assert_int_equal(p.n, 2);
        assert_int_equal(p.items[1].bytes, 4);
        assert_int_equal(p.items[1].n_frames, 0);
        assert_int_equal(p.items[1].first_frame, 1);
        parts_done(&p);

        parts_init(&p, 4);
        assert_int_equal(parts_finish(&p, NULL, 0), 0);
        assert_int_equal(p.n, 0);
        parts_done(&p);
}

static void restored_parts_continue_unchanged(void **state) {
        uint8_t frame[50];
        Parts whole, restored;
        bool closed;

        memset(frame, 7, sizeof frame);
        parts_init(&whole, 100);
        for (size_t i = 0; i < 7; i++)
                assert_int_equal(parts_add_frame(&whole, frame, sizeof frame, 0, &closed), 0);
        assert_int_equal(parts_finish(&whole, "tail", 4), 0);

        parts_init(&restored, 100);
        for (size_t i = 0; i < 2; i++)
                assert_int_equal(parts_restore(&restored, &whole.items[i]), 0);
        for (size_t i = 4; i < 7; i++)
                assert_int_equal(parts_add_frame(&restored, frame, sizeof frame, 0, &closed), 0);
        assert_int_equal(parts_finish(&restored, "tail", 4), 0);
        assert_int_equal(restored.n, whole.n);
        assert_int_equal(restored.total_bytes, whole.total_bytes);
        assert_int_equal(restored.items[3].first_frame, whole.items[3].first_frame);
        for (size_t i = 0; i < whole.n; i++)
                assert_memory_equal(restored.items[i].sha256, whole.items[i].sha256, SHA256_SIZE);
        parts_done(&whole);
        parts_done(&restored);
}

/* Packs `frames` frames of `unpacked` bytes each that become `packed` bytes. @return the number of
 * parts */
static size_t n_parts_of(uint64_t frames, uint64_t unpacked, uint64_t packed,
                         uint64_t *ret_largest) {
        uint64_t left = frames * unpacked, open = 0;
        size_t k = 0;

        *ret_largest = 0;
        for (uint64_t i = 0; i < frames; i++) {
                left -= unpacked;
                open += packed;
                *ret_largest = MAX(*ret_largest, open);
                if (open >= parts_limit(8 * MIB, k, left)) {
                        open = 0;
                        k++;
                }
        }
        return k + (open > 0);
}

static void ten_thousand_parts_always_suffice(void **state) {
        uint64_t largest;

        assert_in_range(n_parts_of(1000000, 2 * MIB, 2 * MIB + 80, &largest), 5000, PARTS_MAX + 1);
        assert_true(largest < 5 * GIB);
        assert_in_range(n_parts_of(2500000, 2 * MIB, 2 * MIB + 80, &largest), 5000, PARTS_MAX + 1);
        assert_true(largest < 5 * GIB); /* 5 TB, the largest object */
        /* what compresses well stays at the part size, even when it is terabytes */
        assert_in_range(n_parts_of(1000000, 2 * MIB, 9000, &largest), 1, 1100);
        assert_true(largest < 300 * MIB);
}

int main(void) {
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(a_limit_is_the_part_size_while_the_rest_fits),
                cmocka_unit_test(a_limit_grows_so_that_the_parts_left_suffice),
                cmocka_unit_test(parts_are_runs_of_complete_frames_with_their_digests),
                cmocka_unit_test(a_tail_behind_a_closed_part_is_a_part_of_its_own),
                cmocka_unit_test(restored_parts_continue_unchanged),
                cmocka_unit_test(ten_thousand_parts_always_suffice),
        };
        return cmocka_run_group_tests(tests, NULL, NULL);
}
