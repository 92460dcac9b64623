#include "lib/bundle/plan.h"

#include <errno.h>
#include <fcntl.h>
#include <malloc.h>
#include <string.h>

#include "tests/harness/unit.h"

#include "lib/base/fs.h"
#include "lib/base/path.h"
#include "tests/harness/skip.h"

typedef struct Data {
        uint64_t offset, bytes;
} Data;

static char root[64];
static int root_fd = -1;

static int make_root(void **state) {
        const char *tmp = getenv("TMPDIR");
        (void)snprintf(root, sizeof root, "%s/test_plan.XXXXXX",
                       tmp && strlen(tmp) < 40 ? tmp : "/tmp");
        if (!mkdtemp(root))
                return -1;
        root_fd = open(root, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
        return root_fd < 0 ? -1 : 0;
}

static int remove_root(void **state) {
        (void)close(root_fd);
        _cleanup_free_ char *parent = path_parent(root);
        _cleanup_close_ int fd = open(parent, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
        return fs_remove_tree(fd, path_name(root));
}

/* A file with data in some places (a list that ends with 0 bytes) and holes elsewhere. */
static int make_file(const char *name, uint64_t size, const Data *data) {
        int fd = openat(root_fd, name, O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0640);
        assert_true(fd >= 0);
        assert_int_equal(fchmod(fd, 0640), 0);
        for (; data && data->bytes > 0; data++) {
                _cleanup_free_ char *bytes = malloc(data->bytes);
                memset(bytes, 'x', data->bytes);
                assert_int_equal(pwrite(fd, bytes, data->bytes, (off_t)data->offset), data->bytes);
        }
        assert_int_equal(ftruncate(fd, (off_t)size), 0);
        return fd;
}

static bool has_holes(void) {
        _cleanup_close_ int fd = make_file("hole?", MIB, NULL);
        return lseek(fd, 0, SEEK_DATA) < 0 && errno == ENXIO;
}

static Plan *plan_of(const char *name, int fd) {
        Plan *p;
        assert_int_equal(plan_new(&p), 0);
        assert_int_equal(plan_add(p, name, MEMBER_OTHER, fd), 0);
        assert_int_equal(plan_freeze(p), 0);
        return p;
}

static void members_come_in_order_and_are_what_fstat_reports(void **state) {
        _cleanup_(plan_freep) Plan *p = NULL;
        _cleanup_close_ int fd = make_file("a", 1234, (Data[]){ { 0, 1234 }, { 0, 0 } });
        const struct timespec times[2] = { { 1, 2 }, { 1700000000, 123456789 } };
        struct stat st;

        assert_int_equal(futimens(fd, times), 0);
        assert_int_equal(fchmod(fd, 04751), 0);
        assert_int_equal(fstat(fd, &st), 0);
        assert_int_equal(plan_new(&p), 0);
        assert_int_equal(plan_add(p, "b", MEMBER_NEFF, fd), 0);
        assert_int_equal(plan_add(p, "b", MEMBER_NEFF, fd), -EINVAL);
        assert_int_equal(plan_add(p, "a", MEMBER_NEFF, fd), -EINVAL);
        assert_int_equal(plan_add(p, "", MEMBER_NEFF, fd), -EINVAL);
        assert_int_equal(plan_add(p, "/b", MEMBER_NEFF, fd), -EINVAL);
        assert_int_equal(plan_add(p, "c", MEMBER_NEFF, root_fd), -EINVAL);
        assert_int_equal(plan_add(p, "c", MEMBER_NEFF, -1), -EBADF);
        assert_int_equal(plan_add(p, "b/c", MEMBER_OTHER, fd), 0);
        assert_int_equal(plan_n_members(p), 2);

        const PlanMember *m = plan_member(p, 0);
        assert_string_equal(m->path, "b");
        assert_int_equal(m->kind, MEMBER_NEFF);
        assert_int_equal(m->bytes, 1234);
        assert_int_equal(m->ino, st.st_ino);
        assert_int_equal(m->dev, st.st_dev);
        assert_int_equal(m->mode, 04751);
        assert_int_equal(m->uid, st.st_uid);
        assert_int_equal(m->mtime_sec, 1700000000);
        assert_int_equal(m->mtime_nsec, 123456789);
        assert_false(m->is_sparse);
        assert_int_equal(plan_data_bytes(p), 2468);
}

static void a_frozen_plan_accepts_nothing_more(void **state) {
        _cleanup_close_ int fd = make_file("a", 10, NULL);
        _cleanup_(plan_freep) Plan *p = plan_of("a", fd);
        assert_int_equal(plan_add(p, "b", MEMBER_OTHER, fd), -EINVAL);
        assert_int_equal(plan_freeze(p), -EINVAL);
}

static void an_empty_plan_is_two_blocks_in_one_frame(void **state) {
        _cleanup_(plan_freep) Plan *p = NULL;
        uint64_t offset, bytes;

        assert_int_equal(plan_new(&p), 0);
        assert_int_equal(plan_freeze(p), 0);
        assert_int_equal(plan_stream_bytes(p), 1024);
        assert_int_equal(plan_n_frames(p), 1);
        assert_int_equal(plan_member_at(p, 0), 0);
        plan_frame(p, 0, &offset, &bytes);
        assert_int_equal(offset, 0);
        assert_int_equal(bytes, 1024);
}

typedef struct ExtentCase {
        uint64_t size;
        Data data[4];     /* ends with 0 bytes */
        Data expected[4]; /* ends with 0 bytes */
        bool is_sparse;
} ExtentCase;

static void extents_are_aligned_and_small_holes_are_data(void **state) {
        if (!has_holes())
                SKIP_BECAUSE("not possible on this machine or as this user");
        static const ExtentCase cases[] = {
                { MIB, { { 0, 0 } }, { { 0, 0 } }, true },    /* all hole */
                { 65535, { { 0, 0 } }, { { 0, 0 } }, false }, /* too small for one */
                { 65536, { { 0, 0 } }, { { 0, 0 } }, true },
                { MIB, { { 0, MIB } }, { { 0, 0 } }, false },           /* dense */
                { MIB + 5, { { 0, 5 } }, { { 0, 4096 } }, true },       /* hole at the end */
                { MIB + 5, { { MIB, 5 } }, { { MIB, 5 } }, true },      /* cut at the file's end */
                { MIB, { { 200000, 1 } }, { { 196608, 4096 } }, true }, /* widened */
                { MIB, { { 32768, 4096 } }, { { 0, 36864 } }, true },   /* small hole at first */
                { MIB,
                  { { MIB - 40960, 4096 } },
                  { { MIB - 40960, 40960 } },
                  true },                                                          /* and at last */
                { MIB, { { 0, 4096 }, { 65536, 4096 } }, { { 0, 69632 } }, true }, /* and between */
                { MIB,
                  { { 0, 4096 }, { 69632, 4096 }, { 500000, 9000 } },
                  { { 0, 4096 }, { 69632, 4096 }, { 499712, 12288 } },
                  true },
        };

        for (size_t i = 0; i < ELEMENTSOF(cases); i++) {
                const ExtentCase *c = &cases[i];
                _cleanup_close_ int fd = make_file("extents", c->size, c->data);
                _cleanup_(plan_freep) Plan *p = plan_of("extents", fd);
                const PlanMember *m = plan_member(p, 0);
                uint64_t stored = 0;
                uint32_t n = 0;
                assert_int_equal(m->is_sparse, c->is_sparse);
                for (; c->expected[n].bytes > 0; n++) {
                        assert_true(n < m->n_extents);
                        assert_int_equal(m->extents[n].offset, c->expected[n].offset);
                        assert_int_equal(m->extents[n].bytes, c->expected[n].bytes);
                        stored += c->expected[n].bytes;
                }
                assert_int_equal(m->n_extents, n);
                assert_int_equal(plan_stored_bytes(m), c->is_sparse ? stored : c->size);
                assert_int_equal(plan_data_bytes(p), c->size);
        }
}

static void too_many_extents_end_in_data(void **state) {
        if (!has_holes())
                SKIP_BECAUSE("not possible on this machine or as this user");
        const uint64_t step = 128 * KIB, n = PLAN_EXTENTS_MAX + 10, size = n * step;
        _cleanup_close_ int fd = make_file("many", size, NULL);
        for (uint64_t i = 0; i < n; i++)
                assert_int_equal(pwrite(fd, "x", 1, (off_t)(i * step)), 1);
        _cleanup_(plan_freep) Plan *p = plan_of("many", fd);
        const PlanMember *m = plan_member(p, 0);
        const PlanExtent *last = &m->extents[m->n_extents - 1];

        assert_int_equal(m->n_extents, PLAN_EXTENTS_MAX);
        assert_int_equal(last->offset, (PLAN_EXTENTS_MAX - 1) * step);
        assert_int_equal(last->offset + last->bytes, size);
        assert_int_equal(unlinkat(root_fd, "many", 0), 0);
}

static void headers_are_the_same_each_time_and_as_long_as_planned(void **state) {
        static const char *const names[] = { "a", "d\xc3\xa9j\xc3\xa0", "raw\xff\xfe", "z\nz" };
        _cleanup_(plan_freep) Plan *p = NULL;
        _cleanup_close_ int sparse = make_file("s", 3 * MIB, (Data[]){ { MIB, 5 }, { 0, 0 } });

        assert_int_equal(plan_new(&p), 0);
        for (size_t i = 0; i < ELEMENTSOF(names); i++)
                assert_int_equal(plan_add(p, names[i], MEMBER_OTHER, sparse), 0);
        assert_int_equal(plan_freeze(p), 0);
        for (size_t i = 0; i < ELEMENTSOF(names); i++) {
                _cleanup_free_ void *one = NULL, *other = NULL;
                size_t n_one, n_other;
                assert_int_equal(plan_member_header(p, i, &one, &n_one), 0);
                assert_int_equal(plan_member_header(p, i, &other, &n_other), 0);
                assert_int_equal(n_one, plan_member(p, i)->header_bytes);
                assert_int_equal(n_one % PLAN_TAR_BLOCK, 0);
                assert_int_equal(n_one, n_other);
                assert_memory_equal(one, other, n_one);
                /* only a name that is not ASCII is marked as raw bytes */
                assert_int_equal(memmem(one, n_one, "hdrcharset=BINARY", 17) != NULL,
                                 i == 1 || i == 2);
        }
}

/* Members of these sizes, one after the other. @return the frozen plan */
static Plan *plan_of_sizes(const uint64_t *sizes, size_t n) {
        Plan *p;
        assert_int_equal(plan_new(&p), 0);
        for (size_t i = 0; i < n; i++) {
                char name[32];
                (void)snprintf(name, sizeof name, "f%06zu", i);
                _cleanup_close_ int fd =
                        make_file("sized", sizes[i], (Data[]){ { 0, sizes[i] }, { 0, 0 } });
                assert_int_equal(plan_add(p, name, MEMBER_OTHER, fd), 0);
        }
        assert_int_equal(plan_freeze(p), 0);
        return p;
}

static void frames_cover_the_stream_and_are_cut_by_the_rule(void **state) {
        static const uint64_t sizes[] = { 0,          5 * MIB, 100,        900 * KIB, 700 * KIB,
                                          500 * KIB,  3 * MIB, 3000 * KIB, 1000,      0,
                                          2 * MIB,    511,     512,        513,       7 * MIB,
                                          1100 * KIB, 1 };
        _cleanup_(plan_freep) Plan *p = plan_of_sizes(sizes, ELEMENTSOF(sizes));
        uint64_t offset, bytes, next = 0;

        for (uint64_t f = 0; f < plan_n_frames(p); f++) {
                plan_frame(p, f, &offset, &bytes);
                assert_int_equal(offset, next);
                next = offset + bytes;
                assert_in_range(bytes, 1, PLAN_FRAME_BYTES);
                assert_int_equal(plan_frame_at(p, offset), f);
                assert_int_equal(plan_frame_at(p, next - 1), f);
                if (bytes == PLAN_FRAME_BYTES || next == plan_stream_bytes(p))
                        continue;
                /* a short one is at least half full, and the member behind it would not have fitted
                 */
                const PlanMember *m = plan_member(p, plan_member_at(p, next));
                assert_int_equal(m->stream_offset, next);
                assert_true(bytes >= PLAN_FRAME_BYTES / 2);
                assert_true(bytes + m->header_bytes + m->bytes > PLAN_FRAME_BYTES);
        }
        assert_int_equal(next, plan_stream_bytes(p));
}

static void members_follow_each_other_in_blocks(void **state) {
        static const uint64_t sizes[] = { 0, 1, 511, 512, 513, 100000, 0 };
        _cleanup_(plan_freep) Plan *p = plan_of_sizes(sizes, ELEMENTSOF(sizes));
        uint64_t next = 0;

        for (size_t i = 0; i < ELEMENTSOF(sizes); i++) {
                const PlanMember *m = plan_member(p, i);
                uint64_t end = m->stream_offset + m->header_bytes + (sizes[i] + 511) / 512 * 512;
                assert_int_equal(m->stream_offset, next);
                assert_int_equal(plan_member_at(p, next), i);
                assert_int_equal(plan_member_at(p, end - 1), i);
                next = end;
        }
        assert_int_equal(plan_stream_bytes(p), next + 1024);
        assert_int_equal(plan_member_at(p, next), ELEMENTSOF(sizes));
        assert_int_equal(plan_n_frames(p), 1);
}

static void digest_of(const char *path, int fd, uint8_t ret[static SHA256_SIZE]) {
        _cleanup_(plan_freep) Plan *p = plan_of(path, fd);
        plan_sha256(p, ret);
}

static void the_digest_shows_every_change(void **state) {
        uint8_t first[SHA256_SIZE], now[SHA256_SIZE];
        _cleanup_close_ int fd = make_file("a", 3 * MIB, (Data[]){ { MIB, 4096 }, { 0, 0 } });
        struct timespec times[2] = { { 1, 2 }, { 1700000000, 5 } };

        assert_int_equal(futimens(fd, times), 0);
        digest_of("a", fd, first);
        digest_of("a", fd, now);
        assert_memory_equal(now, first, SHA256_SIZE);
        digest_of("b", fd, now);
        assert_memory_not_equal(now, first, SHA256_SIZE);
        times[1].tv_nsec++;
        assert_int_equal(futimens(fd, times), 0);
        digest_of("a", fd, now);
        assert_memory_not_equal(now, first, SHA256_SIZE);
        times[1].tv_nsec--;
        assert_int_equal(fchmod(fd, 0600), 0);
        assert_int_equal(futimens(fd, times), 0);
        digest_of("a", fd, now);
        assert_memory_not_equal(now, first, SHA256_SIZE);
        assert_int_equal(fchmod(fd, 0640), 0);
        digest_of("a", fd, now);
        assert_memory_equal(now, first, SHA256_SIZE);
        if (has_holes()) { /* the same size and time, but one more extent */
                assert_int_equal(pwrite(fd, "x", 1, 2 * MIB), 1);
                assert_int_equal(futimens(fd, times), 0);
                digest_of("a", fd, now);
                assert_memory_not_equal(now, first, SHA256_SIZE);
        }
}

/* Bytes that malloc(3) has given out. */
static size_t heap_bytes(void) {
        const struct mallinfo2 m = mallinfo2();
        return m.uordblks + m.hblkhd;
}

static void a_hundred_thousand_members_fit_into_25_mib(void **state) {
        _cleanup_(plan_freep) Plan *p = NULL;
        _cleanup_close_ int fd = make_file("a", 500, (Data[]){ { 0, 500 }, { 0, 0 } });
        char path[128];
        const size_t before = heap_bytes();

        assert_int_equal(plan_new(&p), 0);
        for (unsigned i = 0; i < 100000; i++) {
                (void)snprintf(path, sizeof path,
                               "some-directory/%03u/i-0123456789abcdef0-%06u.nrt_log.txt", i / 1000,
                               i);
                assert_int_equal(plan_add(p, path, MEMBER_OTHER, fd), 0);
        }
        assert_int_equal(plan_freeze(p), 0);
        assert_true(heap_bytes() - before < 25 * MIB);
        assert_int_equal(plan_member_at(p, plan_member(p, 77777)->stream_offset), 77777);
}

int main(void) {
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(members_come_in_order_and_are_what_fstat_reports),
                cmocka_unit_test(a_frozen_plan_accepts_nothing_more),
                cmocka_unit_test(an_empty_plan_is_two_blocks_in_one_frame),
                cmocka_unit_test(extents_are_aligned_and_small_holes_are_data),
                cmocka_unit_test(too_many_extents_end_in_data),
                cmocka_unit_test(headers_are_the_same_each_time_and_as_long_as_planned),
                cmocka_unit_test(frames_cover_the_stream_and_are_cut_by_the_rule),
                cmocka_unit_test(members_follow_each_other_in_blocks),
                cmocka_unit_test(the_digest_shows_every_change),
                cmocka_unit_test(a_hundred_thousand_members_fit_into_25_mib),
        };
        return cmocka_run_group_tests(tests, make_root, remove_root);
}
