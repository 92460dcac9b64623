#include "lib/bundle/member_digest.h"

#include <endian.h>
#include <errno.h>
#include <string.h>

#include "tests/harness/unit.h"

#include "lib/base/cleanup.h"

#define BLOCK MEMBER_DIGEST_BLOCK
#define MAX_ZEROS MEMBER_DIGEST_ZEROS_MAX

/* Content made of zero blocks ('0'), blocks of data ('d'), and blocks whose last byte alone is not
 * zero ('e'). */
static uint8_t *content_of(const char *shape, size_t tail, size_t *ret_n) {
        size_t n = strlen(shape) * BLOCK + tail;
        uint8_t *data = calloc(1, n + 1);
        assert_non_null(data);
        for (size_t i = 0; shape[i]; i++) {
                if (shape[i] == 'd')
                        memset(data + i * BLOCK, (int)(i + 1), BLOCK);
                if (shape[i] == 'e')
                        data[(i + 1) * BLOCK - 1] = 1;
        }
        *ret_n = n;
        return data;
}

static void update_in_pieces(MemberDigest *d, const uint8_t *data, size_t n, size_t piece) {
        for (size_t i = 0; i < n; i += piece)
                member_digest_update(d, data + i, MIN(piece, n - i));
}

static void put_u64(Sha256 *s, uint64_t value) {
        uint64_t little = htole64(value);
        sha256_update(s, &little, sizeof little);
}

/* A digest, and the plain SHA-256 of the same bytes, that have seen the MAX of zeros: dear to make,
 * hence once. */
static MemberDigest full_digest;
static Sha256 full_plain;

static int fill_with_zeros(void **state) {
        static const uint8_t zeros[BLOCK];
        member_digest_init(&full_digest);
        member_digest_zeros(&full_digest, MAX_ZEROS);
        sha256_init(&full_plain);
        for (uint64_t i = 0; i < MAX_ZEROS; i += sizeof zeros)
                sha256_update(&full_plain, zeros, sizeof zeros);
        return 0;
}

static void little_zeros_give_the_plain_digest_however_the_content_is_cut(void **state) {
        static const char *const shapes[] = { "", "0", "d", "0d0", "00e0d", "d00" };
        static const size_t tails[] = { 0, 1, 511, BLOCK - 1 };
        static const size_t pieces[] = {
                1000, 4096, BLOCK, BLOCK + 1, 3 * BLOCK - 7, SIZE_MAX / 2
        };
        uint8_t expected[SHA256_SIZE], got[SHA256_SIZE];
        bool is_sparse;

        for (size_t i = 0; i < ELEMENTSOF(shapes); i++)
                for (size_t k = 0; k < ELEMENTSOF(tails); k++) {
                        size_t n;
                        _cleanup_free_ uint8_t *data = content_of(shapes[i], tails[k], &n);
                        sha256_of(data, n, expected);
                        for (size_t j = 0; j < ELEMENTSOF(pieces); j++) {
                                MemberDigest d;
                                member_digest_init(&d);
                                update_in_pieces(&d, data, n, pieces[j]);
                                member_digest_final(&d, got, &is_sparse);
                                assert_false(is_sparse);
                                assert_memory_equal(got, expected, SHA256_SIZE);
                        }
                }
}

static void zeros_given_and_zeros_read_are_the_same(void **state) {
        uint8_t expected[SHA256_SIZE], got[SHA256_SIZE];
        bool is_sparse;
        size_t n;
        _cleanup_free_ uint8_t *data = content_of("000", 100, &n);
        static const size_t starts[] = { 0, 1, 5000, BLOCK, BLOCK + 5000 };

        data[0] = 'x';
        sha256_of(data, n, expected);
        for (size_t i = 1; i < ELEMENTSOF(starts); i++) {
                MemberDigest d;
                member_digest_init(&d);
                member_digest_update(&d, data, starts[i]);
                member_digest_zeros(&d, n - starts[i]);
                member_digest_final(&d, got, &is_sparse);
                assert_false(is_sparse);
                assert_memory_equal(got, expected, SHA256_SIZE);
        }
}

static void exactly_the_maximum_of_zeros_is_still_plain(void **state) {
        uint8_t expected[SHA256_SIZE], got[SHA256_SIZE];
        bool is_sparse;
        MemberDigest d = full_digest;
        Sha256 plain = full_plain;

        /* neither data nor the last block, which is not whole, counts */
        member_digest_update(&d, "data", 4);
        member_digest_zeros(&d, BLOCK - 5);
        sha256_update(&plain, "data", 4);
        _cleanup_free_ uint8_t *zeros = calloc(1, BLOCK);
        sha256_update(&plain, zeros, BLOCK - 5);
        sha256_final(&plain, expected);
        member_digest_final(&d, got, &is_sparse);
        assert_false(is_sparse);
        assert_memory_equal(got, expected, SHA256_SIZE);
}

/* "00d0e" and 9 bytes behind the MAX of zeros: two runs are left out. */
static void sparse_reference(uint8_t expected[static SHA256_SIZE]) {
        uint8_t both[2 * SHA256_SIZE];
        size_t n;
        _cleanup_free_ uint8_t *data = content_of("00d0e", 9, &n);
        Sha256 plain = full_plain, map;

        sha256_update(&plain, data + 2 * BLOCK, BLOCK);
        sha256_update(&plain, data + 4 * BLOCK, BLOCK + 9);
        sha256_init(&map);
        put_u64(&map, MAX_ZEROS);
        put_u64(&map, 2 * BLOCK);
        put_u64(&map, MAX_ZEROS + 3 * BLOCK);
        put_u64(&map, BLOCK);
        put_u64(&map, MAX_ZEROS + 5 * BLOCK + 9);
        sha256_final(&plain, both);
        sha256_final(&map, both + SHA256_SIZE);
        sha256_of(both, sizeof both, expected);
}

static void more_zeros_give_the_sparse_form_however_the_content_is_cut(void **state) {
        static const size_t pieces[] = { 999, 4096, BLOCK, BLOCK + 1, 2 * BLOCK + 5, SIZE_MAX / 2 };
        uint8_t expected[SHA256_SIZE], got[SHA256_SIZE];
        bool is_sparse;
        size_t n;
        _cleanup_free_ uint8_t *data = content_of("00d0e", 9, &n);

        sparse_reference(expected);
        for (size_t i = 0; i < ELEMENTSOF(pieces); i++) {
                MemberDigest d = full_digest;
                update_in_pieces(&d, data, n, pieces[i]);
                member_digest_final(&d, got, &is_sparse);
                assert_true(is_sparse);
                assert_memory_equal(got, expected, SHA256_SIZE);
        }
}

static void a_hole_skipped_is_the_same_as_zero_data_skipped(void **state) {
        uint8_t expected[SHA256_SIZE], got[SHA256_SIZE];
        bool is_sparse;
        size_t n;
        _cleanup_free_ uint8_t *data = content_of("00d0e", 9, &n);
        MemberDigest d = full_digest;

        sparse_reference(expected);
        member_digest_zeros(&d, BLOCK + 100);
        member_digest_zeros(&d, BLOCK - 100);
        member_digest_update(&d, data + 2 * BLOCK, BLOCK);
        member_digest_zeros(&d, 2 * BLOCK - 1);
        member_digest_update(&d, data + 5 * BLOCK - 1, 10);
        member_digest_final(&d, got, &is_sparse);
        assert_true(is_sparse);
        assert_memory_equal(got, expected, SHA256_SIZE);
}

static void an_exabyte_of_hole_costs_nothing_and_its_size_counts(void **state) {
        uint8_t one[SHA256_SIZE], other[SHA256_SIZE];
        bool is_sparse;
        MemberDigest d = full_digest;

        member_digest_zeros(&d, UINT64_C(1) << 60);
        member_digest_final(&d, one, &is_sparse);
        assert_true(is_sparse);
        d = full_digest;
        member_digest_zeros(&d, (UINT64_C(1) << 60) + BLOCK);
        member_digest_final(&d, other, &is_sparse);
        assert_memory_not_equal(one, other, SHA256_SIZE);
}

/* Through a saved state after every piece. */
static void update_through_states(MemberDigest *d, const uint8_t *data, size_t n, size_t piece) {
        for (size_t i = 0; i < n; i += piece) {
                uint8_t state[MEMBER_DIGEST_STATE_SIZE];
                MemberDigest loaded;
                member_digest_save(d, state);
                memset(&loaded, 0xaa, sizeof loaded);
                assert_int_equal(member_digest_load(&loaded, state), 0);
                *d = loaded;
                member_digest_update(d, data + i, MIN(n - i, piece));
        }
}

static void a_saved_state_continues_to_the_same_digest(void **state) {
        static const size_t pieces[] = { 999, 4096, BLOCK, BLOCK + 1, 2 * BLOCK + 5 };
        uint8_t expected[SHA256_SIZE], got[SHA256_SIZE];
        bool is_sparse;
        size_t n;
        _cleanup_free_ uint8_t *data = content_of("00d0e", 9, &n);

        sparse_reference(expected);
        for (size_t i = 0; i < ELEMENTSOF(pieces); i++) {
                MemberDigest d = full_digest;
                update_through_states(&d, data, n, pieces[i]);
                member_digest_final(&d, got, &is_sparse);
                assert_true(is_sparse);
                assert_memory_equal(got, expected, SHA256_SIZE);

                MemberDigest plain;
                member_digest_init(&plain);
                update_through_states(&plain, data, n, pieces[i]);
                member_digest_final(&plain, got, &is_sparse);
                assert_false(is_sparse);
                sha256_of(data, n, expected);
                assert_memory_equal(got, expected, SHA256_SIZE);
                sparse_reference(expected);
        }
}

static void a_state_that_cannot_be_is_refused(void **state) {
        MemberDigest d = full_digest, loaded;
        uint8_t saved[MEMBER_DIGEST_STATE_SIZE];
        member_digest_zeros(&d, 2 * BLOCK + 7);
        member_digest_save(&d, saved);
        assert_int_equal(member_digest_load(&loaded, saved), 0);
        for (size_t i = 2 * SHA256_STATE_SIZE; i < sizeof saved;
             i++) { /* all numbers hang together … */
                if (i - 2 * SHA256_STATE_SIZE == 4 * 8 || i - 2 * SHA256_STATE_SIZE == 4 * 8 + 1)
                        continue; /* … but for how many zeros of a block are pending */
                saved[i] ^= 0x40;
                assert_int_equal(member_digest_load(&loaded, saved), -EINVAL);
                saved[i] ^= 0x40;
        }
        saved[SHA256_STATE_SIZE - 1] ^= 1; /* one of SHA-256's own */
        assert_int_equal(member_digest_load(&loaded, saved), -EINVAL);
}

static void update_returns_whether_it_saw_only_zeros(void **state) {
        size_t n;
        _cleanup_free_ uint8_t *data = content_of("0000", 0, &n);
        MemberDigest d;

        member_digest_init(&d);
        assert_true(member_digest_update(&d, data, n));
        static const size_t places[] = { 0, 1, 15, 16, 17, BLOCK - 1, BLOCK, 3 * BLOCK + 77 };
        for (size_t i = 0; i < ELEMENTSOF(places); i++) {
                data[places[i]] = 1;
                assert_false(member_digest_update(&d, data, n));
                assert_false(member_digest_is_zero(data, n));
                assert_true(member_digest_is_zero(data, places[i]));
                data[places[i]] = 0;
        }
        assert_true(member_digest_is_zero(data, n));
}

int main(void) {
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(little_zeros_give_the_plain_digest_however_the_content_is_cut),
                cmocka_unit_test(zeros_given_and_zeros_read_are_the_same),
                cmocka_unit_test(exactly_the_maximum_of_zeros_is_still_plain),
                cmocka_unit_test(more_zeros_give_the_sparse_form_however_the_content_is_cut),
                cmocka_unit_test(a_hole_skipped_is_the_same_as_zero_data_skipped),
                cmocka_unit_test(an_exabyte_of_hole_costs_nothing_and_its_size_counts),
                cmocka_unit_test(a_saved_state_continues_to_the_same_digest),
                cmocka_unit_test(a_state_that_cannot_be_is_refused),
                cmocka_unit_test(update_returns_whether_it_saw_only_zeros),
        };
        return cmocka_run_group_tests(tests, fill_with_zeros, NULL);
}
