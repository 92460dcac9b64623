/* What the writer promises to its caller. What other people's tools say to its bytes is in
 * test_writer_readers.py. */
#include "lib/bundle/packer.h"

#include <endian.h>
#include <errno.h>
#include <fcntl.h>
#include <string.h>

#include "tests/harness/unit.h"

#include "lib/base/fs.h"
#include "lib/base/path.h"
#include "tests/harness/skip.h"

typedef struct Bytes {
        uint8_t *data;
        size_t n, n_allocated;
        size_t ends[64]; /* of the frames */
        size_t n_frames;
} Bytes;

typedef struct TestBundle {
        Plan *plan;
        WorkerPool *pool;
        BundleWriterOptions options;
        int open_error;       /* instead of opening member `odd` */
        bool open_write_only; /* so that reading it fails */
        size_t odd;
        unsigned n_opened;
} TestBundle;

static char root[64];
static int root_fd = -1;

/* Noise that does not compress, the same in every run. */
static void fill_noise(uint8_t *data, size_t n, uint32_t seed) {
        for (size_t i = 0; i < n; i++) {
                seed = seed * 1664525 + 1013904223;
                data[i] = (uint8_t)(seed >> 24);
        }
}

static void put_file(const char *name, size_t n, uint32_t seed) {
        _cleanup_close_ int fd =
                openat(root_fd, name, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0640);
        _cleanup_free_ uint8_t *data = calloc(1, n + 1);
        assert_true(fd >= 0);
        if (seed == 1)
                for (size_t i = 0; i < n; i++)
                        data[i] = "some text that compresses well\n"[i % 31];
        else if (seed > 1)
                fill_noise(data, n, seed);
        assert_int_equal(fs_write_all(fd, data, n), 0);
}

static const struct {
        const char *name;
        size_t n;
        uint32_t seed; /* 0 = zeros, 1 = text, else noise */
} files[] = {
        { "a-empty", 0, 0 },          { "b-small", 700, 2 },          { "c-zeros", 9 * MIB + 5, 0 },
        { "d-text", 5 * MIB + 1, 1 }, { "e-noise", 3 * MIB + 77, 3 }, { "f-one-mib", MIB, 4 },
        { "g-small", 511, 5 },        { "h-two-mib", 2 * MIB, 6 },    { "i-last", 1300 * KIB, 7 },
};

static int make_files(void **state) {
        const char *tmp = getenv("TMPDIR");
        (void)snprintf(root, sizeof root, "%s/test_writer.XXXXXX",
                       tmp && strlen(tmp) < 40 ? tmp : "/tmp");
        if (!mkdtemp(root))
                return -1;
        root_fd = open(root, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
        for (size_t i = 0; i < ELEMENTSOF(files); i++)
                put_file(files[i].name, files[i].n, files[i].seed);
        return 0;
}

static int remove_files(void **state) {
        _cleanup_free_ char *parent = path_parent(root);
        _cleanup_close_ int fd = open(parent, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
        (void)close(root_fd);
        return fs_remove_tree(fd, path_name(root));
}

static int open_member(size_t i, const PlanMember *m, void *userdata) {
        TestBundle *b = userdata;
        b->n_opened++;
        if (i == b->odd && b->open_error)
                return b->open_error;
        int fd = openat(root_fd, m->path,
                        (i == b->odd && b->open_write_only ? O_WRONLY : O_RDONLY) | O_CLOEXEC);
        return fd < 0 ? -errno : fd;
}

static void plan_files(TestBundle *b, const char *const *names, size_t n) {
        assert_int_equal(plan_new(&b->plan), 0);
        for (size_t i = 0; i < n; i++) {
                _cleanup_close_ int fd = openat(root_fd, names[i], O_RDONLY | O_CLOEXEC);
                assert_int_equal(plan_add(b->plan, names[i], MEMBER_OTHER, fd), 0);
        }
        assert_int_equal(plan_freeze(b->plan), 0);
}

static void bundle_done(TestBundle *b) {
        plan_free(b->plan);
        worker_pool_free(b->pool);
}

static void bundle_init(TestBundle *b, unsigned n_threads) {
        const char *names[ELEMENTSOF(files)];

        *b = (TestBundle){ .odd = SIZE_MAX };
        for (size_t i = 0; i < ELEMENTSOF(files); i++)
                names[i] = files[i].name;
        plan_files(b, names, ELEMENTSOF(files));
        assert_int_equal(worker_pool_new(&b->pool, NULL, "compress", n_threads, WORKER_NORMAL), 0);
        b->options = (BundleWriterOptions){
                .compressors = b->pool,
                .level = 1,
                .memory_bytes = bundle_writer_memory_best(1, n_threads),
                .source = SOURCE_DIRECTORY,
                .open_member = open_member,
                .userdata = b,
        };
}

/* One member alone. */
static void bundle_init_one(TestBundle *b, const char *name) {
        bundle_init(b, 1);
        plan_free(b->plan);
        plan_files(b, &name, 1);
        b->options.memory_bytes =
                bundle_writer_memory_min(1); /* so that it is read little by little */
        b->odd = 0;
}

static void bytes_done(Bytes *b) {
        free(b->data);
}

static void add_bytes(Bytes *b, const void *data, size_t n) {
        if (b->n + n > b->n_allocated) {
                b->n_allocated = 2 * (b->n + n);
                b->data = realloc(b->data, b->n_allocated);
                assert_non_null(b->data);
        }
        memcpy(b->data + b->n, data, n);
        b->n += n;
}

/* Makes all frames that are left. @return what ended it */
static int drain(BundleWriter *w, Bytes *out) {
        BundleFrame frame;
        int r;

        while ((r = bundle_writer_next(w, &frame)) == WRITER_FRAME) {
                add_bytes(out, frame.data, frame.bytes);
                assert_true(out->n_frames < ELEMENTSOF(out->ends));
                out->ends[out->n_frames++] = out->n;
        }
        return r;
}

static void write_all(const TestBundle *b, Bytes *out) {
        BundleWriter *w;
        assert_int_equal(bundle_writer_new(&w, b->plan, &b->options), 0);
        assert_int_equal(drain(w, out), 0);
        bundle_writer_free(w);
}

static void frames_come_in_order_and_cover_the_stream(void **state) {
        _cleanup_(bundle_done) TestBundle b = { 0 };
        _cleanup_(bundle_writer_freep) BundleWriter *w = NULL;
        BundleFrame frame;
        uint64_t next = 0, n = 0;
        int r;

        bundle_init(&b, 2);
        assert_int_equal(bundle_writer_new(&w, b.plan, &b.options), 0);
        for (; (r = bundle_writer_next(w, &frame)) == WRITER_FRAME; n++) {
                assert_int_equal(frame.number, n);
                assert_int_equal(frame.stream_offset, next);
                next += frame.stream_bytes;
        }
        assert_int_equal(r, 0);
        assert_int_equal(n, plan_n_frames(b.plan));
        assert_int_equal(next, plan_stream_bytes(b.plan));
        assert_int_equal(b.n_opened, ELEMENTSOF(files));
        assert_int_equal(bundle_writer_bytes_read(w), plan_data_bytes(b.plan));
        assert_int_equal(bundle_writer_failed_member(w), ELEMENTSOF(files));
        assert_int_equal(bundle_writer_next(w, &frame), 0);
}

static void every_start_gives_the_same_bytes_from_there_on(void **state) {
        _cleanup_(bundle_done) TestBundle b = { 0 };
        _cleanup_(bytes_done) Bytes whole = { 0 };

        bundle_init(&b, 2);
        write_all(&b, &whole);
        assert_in_range(whole.n_frames, 10, 40);
        for (size_t k = 0; k <= whole.n_frames; k++) {
                _cleanup_(bytes_done) Bytes tail = { 0 };
                size_t begin = k == 0 ? 0 : whole.ends[k - 1];
                b.options.first_frame = k;
                b.options.without_results = true;
                write_all(&b, &tail);
                assert_int_equal(tail.n_frames, whole.n_frames - k);
                assert_int_equal(tail.n, whole.n - begin);
                if (tail.n > 0)
                        assert_memory_equal(tail.data, whole.data + begin, tail.n);
        }
}

static void threads_and_memory_do_not_change_the_bytes(void **state) {
        _cleanup_(bundle_done) TestBundle one = { 0 };
        _cleanup_(bytes_done) Bytes whole = { 0 };

        bundle_init(&one, 1);
        write_all(&one, &whole);
        for (unsigned n = 2; n <= 8; n *= 2) {
                _cleanup_(bundle_done) TestBundle b = { 0 };
                _cleanup_(bytes_done) Bytes best = { 0 }, least = { 0 };
                bundle_init(&b, n);
                write_all(&b, &best);
                b.options.memory_bytes = bundle_writer_memory_min(1);
                write_all(&b, &least);
                assert_int_equal(best.n, whole.n);
                assert_memory_equal(best.data, whole.data, whole.n);
                assert_int_equal(least.n, whole.n);
                assert_memory_equal(least.data, whole.data, whole.n);
        }
}

static void too_little_memory_and_odd_options_are_refused(void **state) {
        _cleanup_(bundle_done) TestBundle b = { 0 };
        BundleWriter *w = NULL;

        bundle_init(&b, 2);
        assert_true(bundle_writer_memory_min(3) < bundle_writer_memory_best(3, 2));
        assert_true(bundle_writer_memory_best(3, 2) < 32 * MIB);
        b.options.memory_bytes = bundle_writer_memory_min(1) - 1;
        assert_int_equal(bundle_writer_new(&w, b.plan, &b.options), -EOVERFLOW);
        b.options.memory_bytes = GIB;
        b.options.level = 20;
        assert_int_equal(bundle_writer_new(&w, b.plan, &b.options), -EINVAL);
        b.options.level = 1;
        b.options.first_frame = plan_n_frames(b.plan) + 1;
        assert_int_equal(bundle_writer_new(&w, b.plan, &b.options), -EINVAL);
        assert_null(w);
}

static void results_are_the_digests_of_the_content(void **state) {
        _cleanup_(bundle_done) TestBundle b = { 0 };
        _cleanup_(bundle_writer_freep) BundleWriter *w = NULL;
        _cleanup_(bytes_done) Bytes out = { 0 };

        bundle_init(&b, 2);
        assert_int_equal(bundle_writer_new(&w, b.plan, &b.options), 0);
        assert_int_equal(drain(w, &out), 0);
        for (size_t i = 0; i < ELEMENTSOF(files); i++) {
                _cleanup_free_ char *content = NULL;
                uint8_t expected[SHA256_SIZE];
                size_t n;
                const MemberResult *result = bundle_writer_member(w, i);
                assert_int_equal(fs_read_file(root_fd, files[i].name, 16 * MIB, &content, &n), 0);
                sha256_of(content, n, expected);
                assert_memory_equal(result->sha256, expected, SHA256_SIZE);
                assert_false(result->is_sparse_digest);
                assert_int_equal(result->verdict, files[i].n == 0 ? VERDICT_EMPTY : VERDICT_OPAQUE);
        }
}

static void a_start_within_a_member_needs_a_mark_or_gives_no_results(void **state) {
        _cleanup_(bundle_done) TestBundle b = { 0 };
        _cleanup_(bundle_writer_freep) BundleWriter *w = NULL;
        _cleanup_(bytes_done) Bytes out = { 0 };
        static const uint8_t none[SHA256_SIZE];

        bundle_init(&b, 2);
        const PlanMember *text = plan_member(b.plan, 3);
        b.options.first_frame =
                plan_frame_at(b.plan, text->stream_offset + text->header_bytes + 4 * MIB);
        assert_true(writer_mark_is_needed(b.plan, b.options.first_frame));
        assert_int_equal(bundle_writer_new(&w, b.plan, &b.options), -EINVAL);
        b.options.without_results = true;
        assert_int_equal(bundle_writer_new(&w, b.plan, &b.options), 0);
        assert_int_equal(drain(w, &out), 0);
        for (size_t i = 0; i < ELEMENTSOF(files); i++) {
                const MemberResult *result = bundle_writer_member(w, i);
                assert_memory_equal(result->sha256, none, SHA256_SIZE);
                assert_int_equal(result->verdict, VERDICT_OPAQUE);
        }
}

static uint32_t u32_at(const uint8_t *p) {
        uint32_t little;
        memcpy(&little, p, sizeof little);
        return le32toh(little);
}

static void the_seek_table_lists_every_frame(void **state) {
        _cleanup_(bundle_done) TestBundle b = { 0 };
        _cleanup_(bundle_writer_freep) BundleWriter *w = NULL;
        _cleanup_(bytes_done) Bytes out = { 0 };
        const void *table;
        size_t n;

        bundle_init(&b, 2);
        assert_int_equal(bundle_writer_new(&w, b.plan, &b.options), 0);
        assert_int_equal(bundle_writer_seek_table(w, &table, &n), -ENODATA);
        assert_int_equal(drain(w, &out), 0);
        assert_int_equal(bundle_writer_seek_table(w, &table, &n), 0);
        const uint8_t *p = table;
        assert_int_equal(n, 17 + 8 * out.n_frames);
        assert_int_equal(u32_at(p), 0x184D2A5E);
        assert_int_equal(u32_at(p + 4), n - 8);
        assert_int_equal(u32_at(p + n - 9), out.n_frames);
        assert_int_equal(p[n - 5], 0);
        assert_int_equal(u32_at(p + n - 4), 0x8F92EAB1);
        for (size_t i = 0; i < out.n_frames; i++) {
                uint64_t offset, bytes;
                plan_frame(b.plan, i, &offset, &bytes);
                assert_int_equal(u32_at(p + 8 + 8 * i),
                                 out.ends[i] - (i == 0 ? 0 : out.ends[i - 1]));
                assert_int_equal(u32_at(p + 12 + 8 * i), bytes);
        }
}

static void a_seek_table_after_a_later_start_needs_the_earlier_sizes(void **state) {
        _cleanup_(bundle_done) TestBundle b = { 0 };
        _cleanup_(bytes_done) Bytes whole = { 0 };
        uint32_t earlier[64];
        const void *table, *other;
        size_t n, n_other;

        bundle_init(&b, 2);
        BundleWriter *w, *tail;
        assert_int_equal(bundle_writer_new(&w, b.plan, &b.options), 0);
        assert_int_equal(drain(w, &whole), 0);
        assert_int_equal(bundle_writer_seek_table(w, &table, &n), 0);
        b.options.first_frame = 5;
        b.options.without_results = true;
        for (size_t i = 0; i < 5; i++)
                earlier[i] = (uint32_t)(whole.ends[i] - (i == 0 ? 0 : whole.ends[i - 1]));
        for (int given = 0; given < 2; given++) {
                _cleanup_(bytes_done) Bytes out = { 0 };
                b.options.earlier_frames = given ? earlier : NULL;
                assert_int_equal(bundle_writer_new(&tail, b.plan, &b.options), 0);
                assert_int_equal(drain(tail, &out), 0);
                assert_int_equal(bundle_writer_seek_table(tail, &other, &n_other),
                                 given ? 0 : -ENODATA);
                if (given) {
                        assert_int_equal(n_other, n);
                        assert_memory_equal(other, table, n);
                }
                bundle_writer_free(tail);
        }
        bundle_writer_free(w);
}

/* @return bytes of the bundle of one file, all frames together */
static size_t packed_bytes(const char *name, int level) {
        _cleanup_(bundle_done) TestBundle b = { 0 };
        _cleanup_(bytes_done) Bytes out = { 0 };

        bundle_init_one(&b, name);
        b.options.level = level;
        b.options.memory_bytes = bundle_writer_memory_min(level);
        write_all(&b, &out);
        return out.n;
}

static void zeros_and_noise_cost_next_to_nothing(void **state) {
        static const int levels[] = { 0, 1, 3, 6, 19 };

        for (size_t i = 0; i < ELEMENTSOF(levels); i++) {
                /* store packs the frame with the header as it is, zeros or not */
                size_t first = levels[i] == 0 ? PLAN_FRAME_BYTES : 0;
                assert_true(packed_bytes("c-zeros", levels[i]) < first + 8 * KIB);
                assert_true(packed_bytes("e-noise", levels[i]) < 3 * MIB + 4 * KIB);
        }
}

static void holes_are_not_read(void **state) {
        _cleanup_(bundle_done) TestBundle b = { 0 };
        _cleanup_(bundle_writer_freep) BundleWriter *w = NULL;
        _cleanup_(bytes_done) Bytes out = { 0 };
        _cleanup_close_ int fd = openat(root_fd, "sparse", O_RDWR | O_CREAT | O_CLOEXEC, 0640);

        assert_int_equal(ftruncate(fd, GIB), 0);
        if (lseek(fd, 0, SEEK_DATA) >= 0)
                SKIP_BECAUSE("not possible on this machine or as this user");
        assert_int_equal(pwrite(fd, "x", 1, 700 * MIB), 1);
        bundle_init_one(&b, "sparse");
        assert_int_equal(bundle_writer_new(&w, b.plan, &b.options), 0);
        assert_int_equal(drain(w, &out), 0);
        assert_int_equal(bundle_writer_bytes_read(w), 4096);
        assert_true(bundle_writer_member(w, 0)->is_sparse_digest);
        assert_int_equal(unlinkat(root_fd, "sparse", 0), 0);
}

typedef void (*Damage)(const char *name);

static void append_to(const char *name) {
        _cleanup_close_ int fd = openat(root_fd, name, O_WRONLY | O_APPEND | O_CLOEXEC);
        assert_int_equal(write(fd, "more", 4), 4);
}

static void cut_short(const char *name) {
        _cleanup_close_ int fd = openat(root_fd, name, O_WRONLY | O_CLOEXEC);
        assert_int_equal(ftruncate(fd, 7 * MIB), 0);
}

static void touch(const char *name) {
        assert_int_equal(utimensat(root_fd, name, NULL, 0), 0);
}

static void replace(const char *name) {
        struct stat st;
        assert_int_equal(fstatat(root_fd, name, &st, 0), 0);
        put_file("other", (size_t)st.st_size, 99);
        const struct timespec times[2] = { st.st_atim, st.st_mtim };
        assert_int_equal(utimensat(root_fd, "other", times, 0), 0);
        assert_int_equal(renameat(root_fd, "other", root_fd, name), 0);
}

static const struct {
        Damage damage;
        bool while_open; /* whether an open file shows it */
        Verdict verdict;
        const char *detail;
} damages[] = {
        { append_to, true, VERDICT_SUSPECT, "12582912 bytes became 12582916" },
        { cut_short, true, VERDICT_TRUNCATED, "while it was read: " },
        { touch, true, VERDICT_SUSPECT, "modification time" },
        { replace, false, VERDICT_SUSPECT, "another file" },
};

/* Packs 12 MiB of noise that is damaged before it is opened, or after the first frame was made. */
static int pack_damaged(size_t i, bool late, bool tolerant, Verdict *ret_verdict,
                        char **ret_detail) {
        _cleanup_(bundle_done) TestBundle b = { 0 };
        BundleWriter *w;
        BundleFrame frame;
        _cleanup_(bytes_done) Bytes out = { 0 };

        put_file("victim", 12 * MIB, 11);
        const struct timespec times[2] = { { 1, 0 }, { 1, 0 } };
        assert_int_equal(utimensat(root_fd, "victim", times, 0), 0);
        bundle_init_one(&b, "victim");
        b.options.tolerant = tolerant;
        assert_int_equal(bundle_writer_new(&w, b.plan, &b.options), 0);
        if (late)
                assert_int_equal(bundle_writer_next(w, &frame), WRITER_FRAME);
        damages[i].damage("victim");
        int r = drain(w, &out);
        if (r == WRITER_E_CHANGED) {
                assert_int_equal(bundle_writer_failed_member(w), 0);
                assert_int_equal(bundle_writer_next(w, &frame), WRITER_E_CHANGED); /* it stays */
        }
        if (r == 0) {
                assert_int_equal(out.n_frames + late, plan_n_frames(b.plan));
                const MemberResult *result = bundle_writer_member(w, 0);
                *ret_verdict = result->verdict;
                *ret_detail = strdup(result->detail ? result->detail : "");
        }
        bundle_writer_free(w);
        return r;
}

static void a_member_that_changes_before_or_while_it_is_read_is_noticed(void **state) {
        Verdict verdict;
        char *detail = NULL;

        for (size_t i = 0; i < ELEMENTSOF(damages); i++)
                for (int late = 0; late <= (damages[i].while_open ? 1 : 0); late++)
                        assert_int_equal(pack_damaged(i, late, false, &verdict, &detail),
                                         WRITER_E_CHANGED);
        assert_null(detail);
}

static void a_tolerant_bundle_is_delivered_with_the_member_marked(void **state) {
        Verdict verdict;

        for (size_t i = 0; i < ELEMENTSOF(damages); i++)
                for (int late = 0; late <= (damages[i].while_open ? 1 : 0); late++) {
                        _cleanup_free_ char *detail = NULL;
                        assert_int_equal(pack_damaged(i, late, true, &verdict, &detail), 0);
                        assert_int_equal(verdict, damages[i].verdict);
                        assert_non_null(strstr(detail, damages[i].detail));
                }
}

static void what_cannot_be_opened_or_read_ends_the_bundle_or_is_zeros(void **state) {
        static const struct {
                int open_error;
                int expected;
                const char *detail;
        } cases[] = {
                { -EACCES, -EACCES, "cannot be opened (Permission denied)" },
                { -ENOENT, -ENOENT, "cannot be opened (No such file or directory)" },
                { 0, -EBADF, "cannot be read from byte 0 on" },
        };
        _cleanup_free_ uint8_t *zeros = calloc(1, 2 * MIB);
        uint8_t of_zeros[SHA256_SIZE];

        sha256_of(zeros, 2 * MIB, of_zeros);
        for (size_t i = 0; i < ELEMENTSOF(cases); i++)
                for (int tolerant = 0; tolerant < 2; tolerant++) {
                        _cleanup_(bytes_done) Bytes out = { 0 };
                        _cleanup_(bundle_done) TestBundle b = { 0 };
                        BundleWriter *w;
                        bundle_init(&b, 2);
                        b.odd = 7; /* h-two-mib */
                        b.open_error = cases[i].open_error;
                        b.open_write_only = true;
                        b.options.tolerant = tolerant;
                        assert_int_equal(bundle_writer_new(&w, b.plan, &b.options), 0);
                        assert_int_equal(drain(w, &out), tolerant ? 0 : cases[i].expected);
                        if (tolerant) {
                                const MemberResult *result = bundle_writer_member(w, 7);
                                assert_int_equal(result->verdict, VERDICT_TRUNCATED);
                                assert_non_null(strstr(result->detail, cases[i].detail));
                                assert_memory_equal(result->sha256, of_zeros, SHA256_SIZE);
                                assert_int_equal(bundle_writer_member(w, 8)->verdict,
                                                 VERDICT_OPAQUE);
                                assert_int_equal(bundle_writer_failed_member(w), ELEMENTSOF(files));
                        } else
                                assert_int_equal(bundle_writer_failed_member(w), 7);
                        bundle_writer_free(w);
                }
}

typedef struct Asked {
        TestBundle b; /* first: open_member() gets it */
        uint64_t n_bytes;
        size_t largest;
} Asked;

static void before_read(size_t n, void *userdata) {
        Asked *a = userdata;

        a->n_bytes += n;
        a->largest = MAX(a->largest, n);
}

static void before_read_is_called_before_each_read(void **state) {
        _cleanup_(bytes_done) Bytes out = { 0 }, same = { 0 };
        Asked a = { 0 };
        BundleWriter *w;

        bundle_init(&a.b, 2);
        assert_int_equal(bundle_writer_new(&w, a.b.plan, &a.b.options), 0);
        assert_int_equal(drain(w, &same), 0);
        bundle_writer_free(w);
        a.b.options.userdata = &a;
        a.b.options.before_read = before_read;
        assert_int_equal(bundle_writer_new(&w, a.b.plan, &a.b.options), 0);
        assert_int_equal(drain(w, &out), 0);
        assert_true(bundle_writer_bytes_read(w) > MIB);
        assert_int_equal(a.n_bytes, bundle_writer_bytes_read(w));
        assert_in_range(a.largest, 1, MIB); /* little enough to pause between */
        assert_int_equal(out.n, same.n);
        bundle_writer_free(w);
        bundle_done(&a.b);
}

static void a_writer_can_be_freed_at_any_moment(void **state) {
        _cleanup_(bundle_done) TestBundle b = { 0 };
        BundleWriter *w;
        BundleFrame frame;

        bundle_init(&b, 2);
        for (size_t n = 0; n < 4; n++) {
                assert_int_equal(bundle_writer_new(&w, b.plan, &b.options), 0);
                for (size_t i = 0; i < n; i++)
                        assert_int_equal(bundle_writer_next(w, &frame), WRITER_FRAME);
                assert_null(bundle_writer_free(w));
        }
        assert_null(bundle_writer_free(NULL));
}

int main(void) {
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(frames_come_in_order_and_cover_the_stream),
                cmocka_unit_test(every_start_gives_the_same_bytes_from_there_on),
                cmocka_unit_test(threads_and_memory_do_not_change_the_bytes),
                cmocka_unit_test(too_little_memory_and_odd_options_are_refused),
                cmocka_unit_test(results_are_the_digests_of_the_content),
                cmocka_unit_test(a_start_within_a_member_needs_a_mark_or_gives_no_results),
                cmocka_unit_test(the_seek_table_lists_every_frame),
                cmocka_unit_test(a_seek_table_after_a_later_start_needs_the_earlier_sizes),
                cmocka_unit_test(zeros_and_noise_cost_next_to_nothing),
                cmocka_unit_test(holes_are_not_read),
                cmocka_unit_test(a_member_that_changes_before_or_while_it_is_read_is_noticed),
                cmocka_unit_test(a_tolerant_bundle_is_delivered_with_the_member_marked),
                cmocka_unit_test(what_cannot_be_opened_or_read_ends_the_bundle_or_is_zeros),
                cmocka_unit_test(before_read_is_called_before_each_read),
                cmocka_unit_test(a_writer_can_be_freed_at_any_moment),
        };
        return cmocka_run_group_tests(tests, make_files, remove_files);
}
