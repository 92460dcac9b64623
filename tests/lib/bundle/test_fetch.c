/* One member out of a bundle: by few ranges, the same bytes as the file's, and no lie believed. */
#include "lib/bundle/fetch.h"

#include <endian.h>
#include <errno.h>
#include <fcntl.h>
#include <string.h>

#include "tests/harness/unit.h"

#include "lib/base/fs.h"
#include "lib/base/path.h"
#include "lib/base/strbuf.h"
#include "lib/bundle/manifest.h"
#include "lib/bundle/packer.h"

#define N_SMALL 40
#define N_EXTENTS 2000
#define LONG_NAME                                                                                  \
        "l-"                                                                                       \
        "0123456789012345678901234567890123456789012345678901234567890123456789012345678901234567" \
        "890123456789"                                                                             \
        "0123456789012345678901234567890123456789012345678901234567890123456789012345678901234567" \
        "890123456789"

typedef struct Bundle {
        char path[64];
        int fd; /* of the source's directory */
        StrBuf object;
        json_t *manifest;
} Bundle;
static Bundle bundle;

/* ---- the bundle ---- */

static void write_noise(int fd, uint64_t offset, size_t n) {
        _cleanup_free_ uint8_t *data = malloc(n + 8);
        uint64_t x = offset * 2654435761u + 88172645463325252u;
        assert_non_null(data);
        for (size_t i = 0; i < n; i += 8) {
                x ^= x << 13;
                x ^= x >> 7;
                x ^= x << 17;
                memcpy(data + i, &x, 8);
        }
        assert_int_equal(pwrite(fd, data, n, (off_t)offset), n);
}

static int create(const char *name) {
        int fd = openat(bundle.fd, name, O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
        assert_true(fd >= 0);
        return fd;
}

static void make_noise(const char *name, size_t n) {
        _cleanup_close_ int fd = create(name);
        write_noise(fd, 0, n);
}

static void make_text(const char *name, size_t n) {
        _cleanup_close_ int fd = create(name);
        for (size_t i = 0; i < n; i += 1000)
                assert_int_equal(dprintf(fd, "%0999zu\n", i), 1000);
}

static void make_holes(const char *name, size_t n_extents, uint64_t gap, uint64_t bytes) {
        _cleanup_close_ int fd = create(name);
        for (size_t i = 0; i < n_extents; i++)
                write_noise(fd, (i + 1) * gap, 4096);
        assert_int_equal(ftruncate(fd, (off_t)bytes), 0);
}

/* In the order of their names; one that needs no header to be fetched beside one that does. */
static const char *const names[] = { "a-small", "b-noise", "c-text",  "d-empty", "e-holes",
                                     "f-hole",  "g-tail",  LONG_NAME, "z-noise" };

static void make_files(void) {
        make_noise("a-small", 10);
        make_noise("b-noise", 7 * MIB + 77);
        make_text("c-text", 9 * MIB);
        make_noise("d-empty", 0);
        make_holes("e-holes", N_EXTENTS, 128 * KIB, (N_EXTENTS + 2) * 128 * KIB + 5);
        make_holes("f-hole", 0, 0, 700 * MIB); /* the sparse form of the digest */
        make_holes("g-tail", 1, 3 * MIB, 4 * MIB);
        make_noise(LONG_NAME, 2 * MIB);
        make_noise("z-noise", 5 * MIB + 511);
}

static int open_member(size_t i, const PlanMember *m, void *userdata) {
        (void)i, (void)userdata;
        int fd = openat(bundle.fd, m->path, O_RDONLY | O_CLOEXEC);
        return fd < 0 ? -errno : fd;
}

static Plan *make_plan(void) {
        Plan *plan = NULL;
        assert_int_equal(plan_new(&plan), 0);
        for (size_t i = 0; i < ELEMENTSOF(names) - 1; i++) {
                _cleanup_close_ int fd = openat(bundle.fd, names[i], O_RDONLY | O_CLOEXEC);
                assert_int_equal(plan_add(plan, names[i], MEMBER_OTHER, fd), 0);
        }
        for (size_t i = 0; i < N_SMALL; i++) {
                char name[16];
                (void)snprintf(name, sizeof name, "s-%03zu", i);
                make_noise(name, 100 + i * 700);
                _cleanup_close_ int fd = openat(bundle.fd, name, O_RDONLY | O_CLOEXEC);
                assert_int_equal(plan_add(plan, name, MEMBER_OTHER, fd), 0);
        }
        _cleanup_close_ int fd = openat(bundle.fd, "z-noise", O_RDONLY | O_CLOEXEC);
        assert_int_equal(plan_add(plan, "z-noise", MEMBER_OTHER, fd), 0);
        assert_int_equal(plan_freeze(plan), 0);
        return plan;
}

static int hear(const void *data, size_t n, void *userdata) {
        strbuf_add_n(userdata, data, n);
        return 0;
}

static json_t *make_manifest(const Plan *plan, const Packer *p) {
        const ManifestInfo info = { .id = "directory-20260527T051233-0123456789ab",
                                    .object = "x.tar.zst",
                                    .kind = SOURCE_DIRECTORY,
                                    .bytes = packer_status(p).parts->total_bytes,
                                    .instance_id = "i-0123456789abcdef0",
                                    .hostname = "h",
                                    .source_name = "s",
                                    .source_path = "/s",
                                    .agent_version = "0" };
        uint8_t digest[SHA256_SIZE];
        _cleanup_(strbuf_done) StrBuf text = STRBUF_INIT;
        _cleanup_free_ char *fault = NULL;
        json_t *manifest = NULL;
        plan_sha256(plan, digest);
        assert_int_equal(manifest_write(&info,
                                        &(ManifestContent){ plan, packer_status(p).writer,
                                                            packer_status(p).parts, digest },
                                        hear, &text),
                         0);
        if (manifest_read(text.text, text.n, &manifest, &fault) < 0)
                fail_msg("%s", fault);
        return manifest;
}

static void pack(void) {
        _cleanup_(worker_pool_freep) WorkerPool *pool = NULL;
        _cleanup_(plan_freep) Plan *plan = make_plan();
        _cleanup_(packer_freep) Packer *p = NULL;
        PackedPart part;
        assert_int_equal(worker_pool_new(&pool, NULL, "compress", 2, WORKER_NORMAL), 0);
        const PackerOptions options = { .writer = { .compressors = pool,
                                                    .level = 3,
                                                    .memory_bytes = 64 * MIB,
                                                    .source = SOURCE_DIRECTORY,
                                                    .open_member = open_member },
                                        .part_size = 5 * MIB };
        assert_int_equal(packer_new(&p, plan, &options), 0);
        _cleanup_free_ uint8_t *data = part.data = malloc(packer_buffer_bytes(p));
        assert_non_null(data);
        while (packer_next(p, &part) == PACKER_PART) {
                strbuf_add_n(&bundle.object, part.data, part.row.bytes);
                packed_row_done(&part.row);
        }
        bundle.manifest = make_manifest(plan, p);
        packer_free(TAKE_PTR(p)); /* before the pool and the plan that it uses */
}

static int setup(void **state) {
        const char *tmp = getenv("TMPDIR");
        (void)snprintf(bundle.path, sizeof bundle.path, "%.40s/fetch-XXXXXX", tmp ? tmp : "/tmp");
        if (!mkdtemp(bundle.path))
                return -1;
        bundle.fd = open(bundle.path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
        make_files();
        pack();
        return 0;
}

static int teardown(void **state) {
        _cleanup_free_ char *parent = path_parent(bundle.path);
        _cleanup_close_ int fd = open(parent, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
        (void)close(bundle.fd);
        strbuf_done(&bundle.object);
        json_decref(bundle.manifest);
        return fs_remove_tree(fd, path_name(bundle.path));
}

/* ---- fetching ---- */

typedef struct Got {
        int original; /* what comes is held against it */
        uint64_t next, data_bytes, hole_bytes, n_calls;
        int answer;
} Got;

static int put(const void *data, uint64_t n, uint64_t offset, void *userdata) {
        Got *g = userdata;
        assert_true(n > 0);
        assert_int_equal(offset, g->next);
        g->next += n;
        g->n_calls++;
        *(data ? &g->data_bytes : &g->hole_bytes) += n;
        if (data && g->original >= 0) {
                _cleanup_free_ uint8_t *expected = malloc(n);
                assert_int_equal(pread(g->original, expected, n, (off_t)offset), n);
                assert_memory_equal(data, expected, n);
        }
        return g->answer;
}

static const uint8_t *object_at(FetchRange range) {
        assert_true(range.offset <= bundle.object.n &&
                    range.bytes <= bundle.object.n - range.offset);
        return (const uint8_t *)bundle.object.text + range.offset;
}

static int feed_cut(Fetch *f, FetchRange range, size_t cut, Got *g) {
        const uint8_t *data = object_at(range);
        int r = 0;
        for (uint64_t i = 0; r == 0 && i < range.bytes; i += cut)
                r = fetch_supply_data(f, data + i, MIN(range.bytes - i, (uint64_t)cut), put, g);
        return r;
}

static Fetch *begin(const json_t *manifest, const char *name, FetchRange *ret_frames) {
        FetchRange table;
        Fetch *f = NULL;
        assert_int_equal(fetch_new(&f, manifest, name, &table), 0);
        assert_int_equal(table.offset + table.bytes, bundle.object.n);
        assert_int_equal(fetch_set_table(f, object_at(table), table.bytes, ret_frames), 0);
        return f;
}

/* @return bytes of the frames that were asked for */
static uint64_t fetch_complete(const json_t *manifest, const char *name, size_t cut) {
        FetchRange frames;
        _cleanup_(fetch_freep) Fetch *f = begin(manifest, name, &frames);
        _cleanup_close_ int original = openat(bundle.fd, name, O_RDONLY | O_CLOEXEC);
        Got g = { .original = original };
        if (feed_cut(f, frames, cut, &g) < 0 || fetch_finish(f) < 0)
                fail_msg("%s: %s", name, fetch_error_text(f));
        assert_string_equal(fetch_error_text(f), "");
        assert_int_equal(g.next, lseek(original, 0, SEEK_END));
        assert_int_equal(g.next, fetch_bytes(f));
        return frames.bytes;
}

static const char *member_name(size_t i) {
        return json_string_value(json_object_get(
                json_array_get(json_object_get(bundle.manifest, "members"), i), "path"));
}

static void every_member_fetched_equals_the_file(void **state) {
        static const size_t cuts[] = { SIZE_MAX / 2, 1000, 65536 };
        for (size_t i = 0; i < ELEMENTSOF(names) + N_SMALL; i++)
                for (size_t k = 0; k < ELEMENTSOF(cuts); k++)
                        (void)fetch_complete(bundle.manifest, member_name(i), cuts[k]);
        (void)fetch_complete(bundle.manifest, "a-small", 1);
        (void)fetch_complete(bundle.manifest, "e-holes", 13);
}

static void no_more_frames_are_requested_than_the_member_is_in(void **state) {
        const uint64_t frame = 2 * MIB + 64 * KIB;
        assert_in_range(fetch_complete(bundle.manifest, "a-small", 1 << 20), 1, frame);
        assert_in_range(fetch_complete(bundle.manifest, "s-020", 1 << 20), 1, frame);
        assert_in_range(fetch_complete(bundle.manifest, LONG_NAME, 1 << 20), 1, 2 * frame);
        assert_int_equal(fetch_complete(bundle.manifest, "d-empty", 1), 0);
        assert_in_range(fetch_complete(bundle.manifest, "f-hole", 1 << 20), 1, frame);
}

static void holes_come_as_holes(void **state) {
        FetchRange frames;
        _cleanup_(fetch_freep) Fetch *f = begin(bundle.manifest, "e-holes", &frames);
        Got g = { .original = -1 };
        assert_int_equal(feed_cut(f, frames, 1 << 20, &g), 0);
        assert_int_equal(fetch_finish(f), 0);
        assert_int_equal(g.data_bytes, N_EXTENTS * 4096);
        assert_int_equal(g.data_bytes + g.hole_bytes, fetch_bytes(f));

        _cleanup_(fetch_freep) Fetch *hole = begin(bundle.manifest, "f-hole", &frames);
        Got h = { .original = -1 };
        assert_int_equal(feed_cut(hole, frames, 1 << 20, &h), 0);
        assert_int_equal(fetch_finish(hole), 0);
        assert_int_equal(h.n_calls, 1);
        assert_int_equal(h.hole_bytes, 700 * MIB);
}

/* ---- going on ---- */

static void resume(const json_t *manifest, const char *name, uint64_t done) {
        FetchRange whole, frames;
        uint64_t keep;
        _cleanup_(fetch_freep) Fetch *f = begin(manifest, name, &whole);
        _cleanup_close_ int original = openat(bundle.fd, name, O_RDONLY | O_CLOEXEC);
        assert_int_equal(fetch_resume(f, done, &frames, &keep), 0);
        assert_true(keep <= done && keep <= fetch_bytes(f));
        assert_true(frames.bytes <= whole.bytes);
        assert_int_equal(frames.offset + frames.bytes, whole.offset + whole.bytes);
        if (keep > 0) {
                _cleanup_free_ uint8_t *kept = malloc(keep);
                assert_int_equal(pread(original, kept, keep, 0), keep);
                for (uint64_t i = 0; i < keep; i += 100000)
                        fetch_supply_kept(f, kept + i, MIN(keep - i, UINT64_C(100000)));
        }
        Got g = { .original = original, .next = keep };
        assert_int_equal(feed_cut(f, frames, 70000, &g), 0);
        if (fetch_finish(f) < 0)
                fail_msg("%s from %d: %s", name, (int)done, fetch_error_text(f));
        assert_int_equal(g.next, fetch_bytes(f));
}

static void a_fetch_continues_at_the_frame_that_was_cut(void **state) {
        static const uint64_t offsets[] = { 0,       1,           MIB,     2 * MIB - 1,
                                            2 * MIB, 3 * MIB + 7, 5 * MIB, 7 * MIB + 76 };
        for (size_t i = 0; i < ELEMENTSOF(offsets); i++) {
                resume(bundle.manifest, "b-noise", offsets[i]);
                resume(bundle.manifest, "c-text", offsets[i]);
                resume(bundle.manifest, "z-noise", offsets[i]);
                resume(bundle.manifest, "e-holes", offsets[i]);
                resume(bundle.manifest, "a-small", offsets[i]);
                resume(bundle.manifest, "d-empty", offsets[i]);
        }
        FetchRange whole, frames;
        uint64_t keep;
        _cleanup_(fetch_freep) Fetch *f = begin(bundle.manifest, "b-noise", &whole);
        assert_int_equal(fetch_resume(f, 7 * MIB, &frames, &keep), 0);
        assert_true(keep >= 5 * MIB && frames.bytes < 2 * MIB + 64 * KIB);
        assert_int_equal(fetch_resume(f, UINT64_MAX, &frames, &keep), 0);
        assert_int_equal(keep, 7 * MIB + 77);
        assert_int_equal(frames.bytes, 0);
        assert_int_equal(fetch_resume(f, 7 * MIB, &frames, &keep), 0);
        Got g = { .original = -1 };
        assert_int_equal(feed_cut(f, frames, 1000, &g), -EINVAL); /* what was kept was not fed */
}

static void what_was_kept_counts_for_the_digest(void **state) {
        FetchRange whole, frames;
        uint64_t keep;
        _cleanup_(fetch_freep) Fetch *f = begin(bundle.manifest, "b-noise", &whole);
        assert_int_equal(fetch_resume(f, 6 * MIB, &frames, &keep), 0);
        _cleanup_free_ uint8_t *other = calloc(1, keep);
        fetch_supply_kept(f, other, keep);
        Got g = { .original = -1, .next = keep };
        assert_int_equal(feed_cut(f, frames, 1 << 20, &g), 0);
        assert_int_equal(fetch_finish(f), -EBADMSG);
        assert_non_null(strstr(fetch_error_text(f), "its sha256 is "));
}

/* ---- lies and damage ---- */

static void a_member_that_is_not_there_is_none(void **state) {
        FetchRange table;
        Fetch *f = NULL;
        assert_int_equal(fetch_new(&f, bundle.manifest, "nothing", &table), -ENOENT);
        assert_null(f);
}

static void a_damaged_frame_is_reported(void **state) {
        FetchRange frames;
        _cleanup_(fetch_freep) Fetch *f = begin(bundle.manifest, "c-text", &frames);
        Got g = { .original = -1 };
        char *byte = bundle.object.text + frames.offset + frames.bytes / 2;
        *byte ^= 0x55;
        int r = feed_cut(f, frames, 1 << 20, &g);
        *byte ^= 0x55;
        assert_int_equal(r, -EBADMSG);
        assert_non_null(strstr(fetch_error_text(f), " of the object is damaged: "));
        assert_int_equal(fetch_supply_data(f, "", 0, put, &g), -EBADMSG); /* for good */
        assert_int_equal(fetch_finish(f), -EBADMSG);
}

static void an_early_end_and_too_many_bytes_are_reported(void **state) {
        FetchRange frames;
        _cleanup_(fetch_freep) Fetch *f = begin(bundle.manifest, "b-noise", &frames);
        Got g = { .original = -1 };
        frames.bytes -= 3 * MIB;
        assert_int_equal(feed_cut(f, frames, 1 << 20, &g), 0);
        assert_int_equal(fetch_finish(f), -EBADMSG);
        assert_non_null(strstr(fetch_error_text(f), "the member ends after "));

        _cleanup_(fetch_freep) Fetch *more = begin(bundle.manifest, "b-noise", &frames);
        Got h = { .original = -1 };
        frames.bytes++;
        assert_int_equal(feed_cut(more, frames, 1 << 20, &h), -EBADMSG);
}

static void what_put_answers_comes_back(void **state) {
        FetchRange frames;
        _cleanup_(fetch_freep) Fetch *f = begin(bundle.manifest, "b-noise", &frames);
        Got g = { .original = -1, .answer = -ENOSPC };
        assert_int_equal(feed_cut(f, frames, 1 << 20, &g), -ENOSPC);
        assert_int_equal(g.n_calls, 1);
}

static void a_digest_that_is_another_is_reported(void **state) {
        static const char *const fetched[] = { "b-noise", "f-hole", "d-empty" };
        for (size_t i = 0; i < ELEMENTSOF(fetched); i++) {
                json_t *manifest = json_deep_copy(bundle.manifest), *member;
                size_t k;
                FetchRange frames;
                Got g = { .original = -1 };
                json_array_foreach(json_object_get(manifest, "members"), k, member) {
                        char wrong[65];
                        memset(wrong, 'a', 64);
                        wrong[64] = '\0';
                        const char *key = json_object_get(member, "sha256_sparse") ? "sha256_sparse"
                                                                                   : "sha256";
                        assert_int_equal(json_object_set_new(member, key, json_string(wrong)), 0);
                }
                Fetch *f = begin(manifest, fetched[i], &frames);
                assert_int_equal(feed_cut(f, frames, 1 << 20, &g), 0);
                assert_int_equal(fetch_finish(f), -EBADMSG);
                assert_non_null(strstr(fetch_error_text(f), "the manifest has aaaaaaaa"));
                fetch_free(f);
                json_decref(manifest);
        }
}

/* @return what fetch_set_table() says to a table with one number changed */
static int try_table(const char *name, size_t at, uint32_t delta) {
        FetchRange table, frames;
        _cleanup_(fetch_freep) Fetch *f = NULL;
        uint32_t value;
        assert_int_equal(fetch_new(&f, bundle.manifest, name, &table), 0);
        _cleanup_free_ uint8_t *copy = malloc(table.bytes);
        memcpy(copy, object_at(table), table.bytes);
        at = at < table.bytes ? at : table.bytes - (SIZE_MAX - at) - 1;
        memcpy(&value, copy + at, 4);
        value = htole32(le32toh(value) + delta);
        memcpy(copy + at, &value, 4);
        assert_int_equal(fetch_set_table(f, copy, table.bytes - 1, &frames), -EINVAL);
        return fetch_set_table(f, copy, table.bytes, &frames);
}

static void a_seek_table_that_lies_is_refused(void **state) {
        assert_int_equal(try_table("c-text", 0, 0), 0);
        assert_int_equal(try_table("c-text", 0, 1), -EINVAL);    /* magic */
        assert_int_equal(try_table("c-text", 4, 1), -EINVAL);    /* its size */
        assert_int_equal(try_table("c-text", 8, 1), -EINVAL);    /* a frame in the object */
        assert_int_equal(try_table("c-text", 12, 512), -EINVAL); /* a frame in the stream */
        assert_int_equal(try_table("c-text", 12, (uint32_t)-512), -EINVAL);
        assert_int_equal(try_table("c-text", SIZE_MAX - 8, 1), -EINVAL); /* number of frames */
        assert_int_equal(try_table("c-text", SIZE_MAX - 4, 1), -EINVAL); /* flags */
        assert_int_equal(try_table("c-text", SIZE_MAX - 3, 1), -EINVAL); /* magic */
}

/* Two frames that swap what they claim: all sums are right, and yet nothing fits. */
static void frames_that_are_not_as_the_table_states_are_reported(void **state) {
        FetchRange table, frames;
        _cleanup_(fetch_freep) Fetch *f = NULL;
        Got g = { .original = -1 };
        assert_int_equal(fetch_new(&f, bundle.manifest, "c-text", &table), 0);
        _cleanup_free_ uint8_t *copy = malloc(table.bytes);
        memcpy(copy, object_at(table), table.bytes);
        assert_int_equal(fetch_set_table(f, copy, table.bytes, &frames), 0);
        const json_t *member = json_array_get(json_object_get(bundle.manifest, "members"), 2);
        uint8_t *entry = copy + 8 + 8 * json_integer_value(json_object_get(member, "frame"));
        uint32_t first, second;
        memcpy(&first, entry, 4);
        memcpy(&second, entry + 8, 4);
        first = htole32(le32toh(first) + 10);
        second = htole32(le32toh(second) - 10);
        memcpy(entry, &first, 4);
        memcpy(entry + 8, &second, 4);
        assert_int_equal(fetch_set_table(f, copy, table.bytes, &frames), 0);
        assert_int_equal(feed_cut(f, frames, 1 << 20, &g), -EBADMSG);
        assert_non_null(strstr(fetch_error_text(f), "the seek table"));
}

static json_t *with_number(const char *object, const char *key, json_int_t value) {
        json_t *manifest = json_deep_copy(bundle.manifest);
        json_t *place = object[0] ? json_object_get(manifest, object)
                                  : json_array_get(json_object_get(manifest, "members"), 2);
        assert_int_equal(json_object_set_new(place, key, json_integer(value)), 0);
        return manifest;
}

static void a_manifest_that_contradicts_itself_is_refused(void **state) {
        static const struct {
                const char *object, *key;
                json_int_t value;
        } cases[] = {
                { "frames", "count", INT64_MAX },
                { "frames", "count", 50000000 },
                { "frames", "count", 1000000 },
                { "", "offset", 512 },
                { "", "offset", 1 },
                { "", "offset", (json_int_t)20 * MIB },
                { "", "bytes", INT64_MAX },
                { "", "header", (json_int_t)5 * MIB },
                { "bundle", "uncompressed_bytes", 1 },
        };
        for (size_t i = 0; i < ELEMENTSOF(cases); i++) {
                json_t *manifest = with_number(cases[i].object, cases[i].key, cases[i].value);
                FetchRange table, frames;
                Got g = { .original = -1 };
                Fetch *f = NULL;
                int r = fetch_new(&f, manifest, "c-text", &table);
                if (r == 0)
                        r = fetch_set_table(f, object_at(table), table.bytes, &frames);
                if (r == 0)
                        r = feed_cut(f, frames, 1 << 20, &g);
                if (r == 0)
                        r = fetch_finish(f);
                if (r != -EINVAL && r != -EBADMSG)
                        fail_msg("case %zu: %d", i, r);
                fetch_free(f);
                json_decref(manifest);
        }
}

int main(void) {
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(every_member_fetched_equals_the_file),
                cmocka_unit_test(no_more_frames_are_requested_than_the_member_is_in),
                cmocka_unit_test(holes_come_as_holes),
                cmocka_unit_test(a_fetch_continues_at_the_frame_that_was_cut),
                cmocka_unit_test(what_was_kept_counts_for_the_digest),
                cmocka_unit_test(a_member_that_is_not_there_is_none),
                cmocka_unit_test(a_damaged_frame_is_reported),
                cmocka_unit_test(an_early_end_and_too_many_bytes_are_reported),
                cmocka_unit_test(what_put_answers_comes_back),
                cmocka_unit_test(a_digest_that_is_another_is_reported),
                cmocka_unit_test(a_seek_table_that_lies_is_refused),
                cmocka_unit_test(frames_that_are_not_as_the_table_states_are_reported),
                cmocka_unit_test(a_manifest_that_contradicts_itself_is_refused),
        };
        return cmocka_run_group_tests(tests, setup, teardown);
}
