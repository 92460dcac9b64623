/* Which pages of a file stay in the page cache after it was read. That of whole bundles is
 * test_writer_readers.py's. */
#include "tests/harness/unit.h"

#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "lib/base/cleanup.h"
#include "lib/bundle/page_cache.h"
#include "tests/harness/skip.h"

#define FILE_BYTES (24 * MIB)

typedef struct Scratch {
        int fd;
        uint8_t *map; /* asked about, never touched */
} Scratch;

static size_t n_cached(const Scratch *s, uint64_t at, uint64_t n) {
        static unsigned char pages[FILE_BYTES / 4096];
        const size_t page = (size_t)sysconf(_SC_PAGESIZE);
        size_t found = 0;
        assert_int_equal(mincore(s->map + at, n, pages), 0);
        for (size_t i = 0; i < n / page; i++)
                found += pages[i] & 1;
        return found * page;
}

static void read_range(const Scratch *s, PageCache *c, uint64_t at, uint64_t end) {
        static char buffer[PAGE_CACHE_READ_BYTES];
        for (; at < end; at += sizeof buffer) {
                page_cache_prepare(c, at, end);
                assert_int_equal(pread(s->fd, buffer, sizeof buffer, (off_t)at), sizeof buffer);
        }
}

/* Nothing of it is cached, and nothing is read ahead unless it is asked for. */
static int setup(void **state) {
        static Scratch s;
        char name[] = "/tmp/test_page_cache.XXXXXX";
        static char block[MIB];
        s.fd = mkstemp(name);
        if (s.fd < 0 || unlink(name) < 0)
                return -1;
        for (uint64_t at = 0; at < FILE_BYTES; at += sizeof block) {
                memset(block, (int)(at / MIB) + 1, sizeof block);
                if (pwrite(s.fd, block, sizeof block, (off_t)at) != sizeof block)
                        return -1;
        }
        s.map = mmap(NULL, FILE_BYTES, PROT_NONE, MAP_SHARED, s.fd, 0);
        if (s.map == MAP_FAILED || fsync(s.fd) < 0 ||
            posix_fadvise(s.fd, 0, 0, POSIX_FADV_DONTNEED) != 0)
                return -1;
        *state = &s;
        return 0;
}

static int teardown(void **state) {
        Scratch *s = *state;
        (void)munmap(s->map, FILE_BYTES);
        return close(s->fd);
}

static void need_a_disk(const Scratch *s) {
        if (n_cached(s, 0, FILE_BYTES) > 0)
                SKIP_BECAUSE("a file system that is all cache");
}

static void what_was_cached_before_stays(void **state) {
        const Scratch *s = *state;
        PageCache c;
        char byte[4096];
        need_a_disk(s);
        assert_int_equal(posix_fadvise(s->fd, 0, 0, POSIX_FADV_RANDOM), 0);
        assert_int_equal(pread(s->fd, byte, sizeof byte, 10 * MIB), sizeof byte);
        const size_t before = n_cached(s, 0, FILE_BYTES);
        assert_true(before > 0 && before <= MIB);
        page_cache_open(&c, s->fd, FILE_BYTES);
        read_range(s, &c, 0, FILE_BYTES);
        page_cache_close(&c);
        assert_int_equal(n_cached(s, 0, FILE_BYTES), before);
        assert_true(n_cached(s, 10 * MIB, 4096) > 0);
}

static void little_is_cached_while_a_file_is_read(void **state) {
        const Scratch *s = *state;
        PageCache c;
        need_a_disk(s);
        page_cache_open(&c, s->fd, FILE_BYTES);
        read_range(s, &c, 0, 20 * MIB);
        assert_true(n_cached(s, 0, FILE_BYTES) <= 13 * MIB);
        page_cache_close(&c); /* before its end */
        assert_int_equal(n_cached(s, 0, FILE_BYTES), 0);
}

static void what_lies_behind_a_hole_is_released_too(void **state) {
        const Scratch *s = *state;
        PageCache c;
        need_a_disk(s);
        page_cache_open(&c, s->fd, FILE_BYTES);
        read_range(s, &c, 0, MIB);
        read_range(s, &c, 2 * MIB + 4096, 3 * MIB + 4096);
        read_range(s, &c, 22 * MIB + 4096, 23 * MIB + 4096);
        page_cache_close(&c);
        assert_int_equal(n_cached(s, 0, FILE_BYTES), 0);
}

static void pages_that_another_reader_brought_and_released_do_not_stay(void **state) {
        const Scratch *s = *state;
        PageCache first, second;
        need_a_disk(s);
        page_cache_open(&first, s->fd, FILE_BYTES);
        page_cache_open(&second, s->fd, FILE_BYTES);
        page_cache_prepare(&first, 0, FILE_BYTES);
        page_cache_prepare(&second, 0, FILE_BYTES);
        read_range(s, &first, 0, FILE_BYTES);
        page_cache_close(&first);
        read_range(s, &second, 0, FILE_BYTES);
        page_cache_close(&second);
        assert_int_equal(n_cached(s, 0, FILE_BYTES), 0);
}

static void a_file_that_cannot_be_mapped_is_read_all_the_same(void **state) {
        PageCache c;
        page_cache_open(&c, -1, FILE_BYTES);
        page_cache_prepare(&c, 0, FILE_BYTES);
        page_cache_close(&c);
        page_cache_close(&c);
        page_cache_open(&c, ((Scratch *)*state)->fd, UINT64_MAX);
        page_cache_close(&c);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)

int main(void) {
        const struct CMUnitTest tests[] = {
                TEST(what_was_cached_before_stays),
                TEST(little_is_cached_while_a_file_is_read),
                TEST(what_lies_behind_a_hole_is_released_too),
                TEST(pages_that_another_reader_brought_and_released_do_not_stay),
                TEST(a_file_that_cannot_be_mapped_is_read_all_the_same),
        };
        return cmocka_run_group_tests(tests, NULL, NULL);
}
