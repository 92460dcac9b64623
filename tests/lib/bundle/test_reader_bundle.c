/* Writer, manifest and verify together: what we wrote is what we read, and a byte flipped anywhere
 * is noticed. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "tests/harness/unit.h"

#include "lib/base/cleanup.h"
#include "lib/base/fs.h"
#include "lib/base/strbuf.h"
#include "lib/bundle/manifest.h"
#include "lib/bundle/reader.h"
#include "tests/lib/bundle/file_source.h"

typedef struct Bundle {
        int object; /* a memfd */
        StrBuf manifest;
} Bundle;

static void bundle_done(Bundle *b) {
        (void)close(b->object);
        strbuf_done(&b->manifest);
}

typedef struct Source {
        char path[64];
        int fd;
} Source;

static int setup(void **state) {
        Source *s = calloc(1, sizeof *s);
        const char *tmp = getenv("TMPDIR");
        assert_non_null(s);
        (void)snprintf(s->path, sizeof s->path, "%.40s/bundle-XXXXXX", tmp ? tmp : "/tmp");
        assert_non_null(mkdtemp(s->path));
        s->fd = open(s->path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
        assert_true(s->fd >= 0);
        *state = s;
        return 0;
}

static int teardown(void **state) {
        Source *s = *state;
        char command[128];
        (void)close(s->fd);
        (void)snprintf(command, sizeof command, "rm -r '%s'", s->path);
        free(s);
        return system(command);
}

/* Bytes that do not compress, or text that does. */
static void make_file(const Source *s, const char *name, size_t n, bool is_noise) {
        _cleanup_close_ int fd = openat(s->fd, name, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0644);
        uint64_t x = 88172645463325252u;
        uint8_t buf[4096];
        assert_true(fd >= 0);
        for (size_t at = 0; at < n; at += sizeof buf) {
                for (size_t i = 0; i < sizeof buf; i++) {
                        x ^= x << 13, x ^= x >> 7, x ^= x << 17;
                        buf[i] = is_noise ? (uint8_t)x : (uint8_t)("core dump "[i % 10]);
                }
                assert_int_equal(fs_write_all(fd, buf, MIN(n - at, sizeof buf)), 0);
        }
}

static void make_hole(const Source *s, const char *name, off_t data_at, off_t size) {
        _cleanup_close_ int fd = openat(s->fd, name, O_WRONLY | O_CREAT | O_CLOEXEC, 0644);
        assert_true(fd >= 0);
        assert_int_equal(pwrite(fd, "data", 4, data_at), 4);
        assert_int_equal(ftruncate(fd, size), 0);
}

static int open_member(size_t i, const PlanMember *m, void *userdata) {
        (void)i;
        return fs_open_regular(((const Source *)userdata)->fd, m->path, NULL);
}

static int hear(const void *data, size_t n, void *userdata) {
        strbuf_add_n(userdata, data, n);
        return 0;
}

static void pack_frames(BundleWriter *w, const Plan *plan, Parts *parts, int object) {
        BundleFrame frame;
        const void *table;
        size_t n;
        bool closed;
        while (bundle_writer_next(w, &frame) == WRITER_FRAME) {
                const uint64_t left =
                        plan_stream_bytes(plan) - frame.stream_offset - frame.stream_bytes;
                assert_int_equal(parts_add_frame(parts, frame.data, frame.bytes, left, &closed), 0);
                assert_int_equal(fs_write_all(object, frame.data, frame.bytes), 0);
        }
        assert_int_equal(bundle_writer_seek_table(w, &table, &n), 0);
        assert_int_equal(parts_finish(parts, table, n), 0);
        assert_int_equal(fs_write_all(object, table, n), 0);
}

static Bundle pack(Source *s, const char *const *names, int level) {
        Bundle b = { .object = memfd_create("object", MFD_CLOEXEC) };
        WorkerPool *pool = NULL;
        Plan *plan = NULL;
        BundleWriter *w = NULL;
        Parts parts;
        uint8_t digest[SHA256_SIZE];

        assert_int_equal(worker_pool_new(&pool, NULL, "compress", 2, WORKER_NORMAL), 0);
        assert_int_equal(plan_new(&plan), 0);
        for (; *names; names++) {
                _cleanup_close_ int fd = openat(s->fd, *names, O_RDONLY | O_CLOEXEC);
                assert_true(fd >= 0);
                assert_int_equal(plan_add(plan, *names, MEMBER_OTHER, fd), 0);
        }
        assert_int_equal(plan_freeze(plan), 0);
        const BundleWriterOptions options = { .compressors = pool,
                                              .level = level,
                                              .memory_bytes = 64 * MIB,
                                              .source = SOURCE_DIRECTORY,
                                              .open_member = open_member,
                                              .userdata = s };
        assert_int_equal(bundle_writer_new(&w, plan, &options), 0);
        parts_init(&parts, 3 * MIB);
        pack_frames(w, plan, &parts, b.object);

        const ManifestInfo info = { .id = "directory-20260527T051233-0123456789ab",
                                    .object = "x.tar.zst",
                                    .kind = SOURCE_DIRECTORY,
                                    .bytes = parts.total_bytes,
                                    .complete = true,
                                    .instance_id = "i-0123456789abcdef0",
                                    .hostname = "h",
                                    .source_name = "s",
                                    .source_path = s->path,
                                    .agent_version = "0" };
        plan_sha256(plan, digest);
        assert_int_equal(manifest_write(&info, &(ManifestContent){ plan, w, &parts, digest }, hear,
                                        &b.manifest),
                         0);
        parts_done(&parts);
        bundle_writer_free(w);
        plan_free(plan);
        worker_pool_free(pool);
        return b;
}

typedef struct Heard {
        uint64_t n;
        char first[512];
} Heard;

static void on_fault(const char *what, void *userdata) {
        Heard *h = userdata;
        if (h->n++ == 0)
                (void)snprintf(h->first, sizeof h->first, "%s", what);
}

static VerifyReport verify(const Bundle *b, Heard *h) {
        _cleanup_free_ char *fault = NULL;
        json_t *manifest = NULL;
        *h = (Heard){ .n = 0 };
        VerifyReport report = { .on_fault = on_fault, .userdata = h };
        if (manifest_read(b->manifest.text, b->manifest.n, &manifest, &fault) < 0)
                fail_msg("%s", fault);
        FileSource object = file_source(b->object);
        assert_int_equal(bundle_verify(&object.source, manifest, &report), 0);
        json_decref(manifest);
        return report;
}

static void what_was_written_verifies_at_every_level(void **state) {
        Source *s = *state;
        static const char *const names[] = { "a",
                                             "b-noise",
                                             "c-text",
                                             "d-\xff\xfe\n",
                                             "e-\xc3\xbc-\xe6\x97\xa5",
                                             "f-empty",
                                             "g-hole",
                                             "h-all-hole",
                                             NULL };
        make_file(s, names[0], 10, false);
        make_file(s, names[1], 7 * MIB + 1, true);
        make_file(s, names[2], 9 * MIB, false);
        make_file(s, names[3], 4096, true);
        make_file(s, names[4], 511, true);
        make_file(s, names[5], 0, true);
        make_hole(s, names[6], 3 * (off_t)MIB, 11 * (off_t)MIB + 7);
        make_hole(s, names[7], 0, 600 * (off_t)MIB); /* the sparse form of the digest */
        for (int level = 0; level <= 3; level += 3) {
                _cleanup_(bundle_done) Bundle b = pack(s, names, level);
                Heard h;
                VerifyReport report = verify(&b, &h);
                assert_string_equal(h.first, "");
                assert_true(report.ok);
                assert_int_equal(report.n_members, 8);
                assert_int_equal(report.bytes, 10 + 7 * MIB + 1 + 9 * MIB + 4096 + 511 + 11 * MIB +
                                                       7 + 600 * MIB);
                assert_non_null(strstr(b.manifest.text, "\"sha256_sparse\": \""));
        }
}

static void a_bundle_without_members_verifies(void **state) {
        static const char *const none[] = { NULL };
        _cleanup_(bundle_done) Bundle b = pack(*state, none, 3);
        Heard h;
        assert_true(verify(&b, &h).ok);
}

/* Parts cover every byte: whatever lies there, a flip is seen. */
static void a_byte_flipped_anywhere_is_noticed(void **state) {
        Source *s = *state;
        static const char *const names[] = { "a", "b", "c", NULL };
        make_file(s, "a", 3000, false);
        make_file(s, "b", 3000, true);
        make_file(s, "c", 0, true);
        _cleanup_(bundle_done) Bundle b = pack(s, names, 3);
        const off_t size = lseek(b.object, 0, SEEK_END);
        assert_true(size > 3000);
        for (off_t at = 0; at < size; at += at < 200 || at > size - 60 ? 1 : 97) {
                uint8_t byte, flipped;
                Heard h;
                assert_int_equal(pread(b.object, &byte, 1, at), 1);
                flipped = byte ^ (uint8_t)(1 << at % 8);
                assert_int_equal(pwrite(b.object, &flipped, 1, at), 1);
                assert_false(verify(&b, &h).ok);
                assert_int_equal(pwrite(b.object, &byte, 1, at), 1);
        }
        Heard h;
        assert_true(verify(&b, &h).ok); /* and it was the flips */
}

static void an_object_cut_anywhere_is_noticed(void **state) {
        Source *s = *state;
        static const char *const names[] = { "a", "b", NULL };
        make_file(s, "a", 100, false);
        make_file(s, "b", 500, true);
        _cleanup_(bundle_done) Bundle b = pack(s, names, 3);
        for (off_t size = lseek(b.object, 0, SEEK_END) - 1; size >= 0; size -= 3) {
                Heard h;
                assert_int_equal(ftruncate(b.object, size), 0);
                assert_false(verify(&b, &h).ok);
        }
}

int main(void) {
        const struct CMUnitTest tests[] = {
                cmocka_unit_test_setup_teardown(what_was_written_verifies_at_every_level, setup,
                                                teardown),
                cmocka_unit_test_setup_teardown(a_bundle_without_members_verifies, setup, teardown),
                cmocka_unit_test_setup_teardown(a_byte_flipped_anywhere_is_noticed, setup,
                                                teardown),
                cmocka_unit_test_setup_teardown(an_object_cut_anywhere_is_noticed, setup, teardown),
        };
        return cmocka_run_group_tests(tests, NULL, NULL);
}
