/* A terabyte with holes, planned and cut into parts without a byte of it read. */
#include <errno.h>
#include <fcntl.h>
#include <malloc.h>
#include <stdio.h>
#include <unistd.h>

#include "tests/harness/unit.h"

#include "lib/bundle/packer.h"

/* What a file system would say of a file whose data lies in pieces of `bytes`, one every `gap`: a
 * file that really has 20 GiB of them is more than a test may ask for. */
static uint64_t piece_bytes, piece_gap, file_bytes;

off_t __wrap_lseek(int fd, off_t offset, int whence);
off_t __wrap_lseek(int fd, off_t offset, int whence) {
        const uint64_t at = (uint64_t)offset, in_gap = at % piece_gap;
        (void)fd;
        if (at >= file_bytes) {
                errno = ENXIO;
                return -1;
        }
        if (whence == SEEK_HOLE)
                return (off_t)(in_gap < piece_bytes ? at - in_gap + piece_bytes : at);
        assert_int_equal(whence, SEEK_DATA);
        const uint64_t data = in_gap < piece_bytes ? at : at - in_gap + piece_gap;
        if (data >= file_bytes) {
                errno = ENXIO;
                return -1;
        }
        return (off_t)data;
}

static Plan *plan_of_pieces(uint64_t bytes, uint64_t gap, uint64_t file) {
        char path[64];
        Plan *plan = NULL;
        const char *tmp = getenv("TMPDIR");
        (void)snprintf(path, sizeof path, "%.40s/plan-XXXXXX", tmp ? tmp : "/tmp");
        _cleanup_close_ int fd = mkostemp(path, O_CLOEXEC);
        assert_true(fd >= 0);
        assert_int_equal(unlink(path), 0);
        assert_int_equal(ftruncate(fd, (off_t)file), 0);
        piece_bytes = bytes;
        piece_gap = gap;
        file_bytes = file;
        assert_int_equal(plan_new(&plan), 0);
        assert_int_equal(plan_add(plan, "core.1", MEMBER_ELF_CORE, fd), 0);
        assert_int_equal(plan_freeze(plan), 0);
        return plan;
}

/* Cuts the plan's frames into parts as the packer does, were none of them to compress. @return how
 * many; the largest is within the bound that limits.memory counts with */
static size_t n_parts(const Plan *plan, uint64_t part_size) {
        const uint64_t total = plan_stream_bytes(plan),
                       max = packer_part_bytes_max(part_size, 0, total);
        uint64_t open = 0;
        size_t k = 0;
        for (uint64_t f = 0; f < plan_n_frames(plan); f++) {
                uint64_t offset, bytes;
                plan_frame(plan, f, &offset, &bytes);
                open += bytes + bytes / 1000;
                assert_true(open <= max);
                if (open >= parts_limit(part_size, k, total - offset - bytes)) {
                        open = 0;
                        k++;
                }
        }
        open += bundle_writer_seek_table_bytes(plan_n_frames(plan));
        assert_true(open <= max);
        return k + 1;
}

/* Bytes that malloc(3) has given out. */
static size_t heap_bytes(void) {
        const struct mallinfo2 m = mallinfo2();
        return m.uordblks + m.hblkhd;
}

static void a_tebibyte_with_20_gib_of_data_stays_at_the_part_size(void **state) {
        static const uint64_t pieces[] = { 16384, 65536, 16 };
        for (size_t i = 0; i < ELEMENTSOF(pieces); i++) {
                const size_t before = heap_bytes();
                _cleanup_(plan_freep) Plan *plan =
                        plan_of_pieces(20 * GIB / pieces[i], TIB / pieces[i], TIB);
                assert_in_range(plan_stream_bytes(plan), 20 * GIB, 20 * GIB + 4 * MIB);
                assert_int_equal(plan_data_bytes(plan), TIB);
                assert_true(heap_bytes() - before < 2 * MIB);
                assert_in_range(n_parts(plan, 8 * MIB), 2000, 2561);
                assert_true(packer_part_bytes_max(8 * MIB, 0, plan_stream_bytes(plan)) < 11 * MIB);
        }
}

/* More pieces than a map may have: the rest is data, and the parts grow so that they suffice. */
static void a_tebibyte_in_millions_of_pieces_needs_larger_parts(void **state) {
        const size_t before = heap_bytes();
        _cleanup_(plan_freep) Plan *plan = plan_of_pieces(4096, 208 * KIB, TIB);
        assert_in_range(plan_stream_bytes(plan), TIB - 65536 * 208 * KIB, TIB);
        assert_true(heap_bytes() - before < 2 * MIB);
        assert_in_range(n_parts(plan, 8 * MIB), 9000, 10000);
        assert_in_range(packer_part_bytes_max(8 * MIB, 0, plan_stream_bytes(plan)), 100 * MIB,
                        125 * MIB);
}

static void the_bound_of_a_part_is_little_more_than_the_part(void **state) {
        assert_in_range(packer_part_bytes_max(8 * MIB, 0, 0), 10 * MIB, 10 * MIB + 64 * KIB);
        assert_in_range(packer_part_bytes_max(8 * MIB, 0, 70 * GIB), 10 * MIB, 11 * MIB);
        assert_in_range(packer_part_bytes_max(8 * MIB, PARTS_MAX, GIB), GIB, GIB + 20 * MIB);
}

int main(void) {
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(a_tebibyte_with_20_gib_of_data_stays_at_the_part_size),
                cmocka_unit_test(a_tebibyte_in_millions_of_pieces_needs_larger_parts),
                cmocka_unit_test(the_bound_of_a_part_is_little_more_than_the_part),
        };
        return cmocka_run_group_tests(tests, NULL, NULL);
}
