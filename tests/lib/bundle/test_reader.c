/* Verify: objects that other programs made, sound ones and every kind of spoilt one, and one of our
 * own writer's. */
#include <errno.h>
#include <fcntl.h>
#include <locale.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "tests/harness/unit.h"

#include "lib/base/cleanup.h"
#include "lib/base/fs.h"
#include "lib/base/strbuf.h"
#include "lib/bundle/manifest.h"
#include "lib/bundle/reader.h"
#include "tests/lib/bundle/file_source.h"

#define MANIFEST_MAX (4 * MIB)

static char directory[64]; /* where the objects are */

typedef struct Heard {
        StrBuf faults; /* a line each */
        size_t n;
        uint64_t done, total;
        VerifyReport report;
} Heard;

static void on_fault(const char *what, void *userdata) {
        Heard *h = userdata;
        assert_true(what[0] >= ' ' && !strchr(what, '\n'));
        strbuf_add(&h->faults, what);
        strbuf_add(&h->faults, "\n");
        h->n++;
}

static void on_progress(uint64_t done, uint64_t total, void *userdata) {
        Heard *h = userdata;
        assert_true(done > h->done && done <= total);
        h->done = done;
        h->total = total;
}

static void verify(const char *object, const char *text, size_t n, Heard *h) {
        _cleanup_free_ char *fault = NULL;
        _cleanup_close_ int fd = open(object, O_RDONLY | O_CLOEXEC);
        json_t *manifest = NULL;
        struct stat st;
        *h = (Heard){ .report = {
                              .on_fault = on_fault, .on_progress = on_progress, .userdata = h } };
        assert_true(fd >= 0);
        assert_int_equal(fstat(fd, &st), 0);
        if (manifest_read(text, n, &manifest, &fault) < 0)
                fail_msg("%s", fault);
        FileSource source = file_source(fd);
        assert_int_equal(bundle_verify(&source.source, manifest, &h->report), 0);
        json_decref(manifest);
        assert_int_equal(h->report.ok, h->n == 0);
        assert_int_equal(h->done, st.st_size); /* the whole object is read, come what may */
}

static void verify_case(const char *name, Heard *h) {
        char object[160], path[160];
        _cleanup_free_ char *text = NULL;
        size_t n;
        (void)snprintf(object, sizeof object, "%s/%s.tar.zst", directory, name);
        (void)snprintf(path, sizeof path, "%s/%s.json", directory, name);
        assert_int_equal(fs_read_file(AT_FDCWD, path, MANIFEST_MAX, &text, &n), 0);
        verify(object, text, n, h);
}

/* @param faults  pieces of sentences that must be told, as many as there are faults; NULL ends it
 */
static void expect(const char *name, uint64_t n_bad, const char *const *faults) {
        Heard h;
        size_t n = 0;
        verify_case(name, &h);
        const char *all = h.faults.text ? h.faults.text : "";
        for (; faults[n]; n++)
                if (!strstr(all, faults[n]))
                        fail_msg("%s: expected '%s', got:\n%s", name, faults[n], all);
        if (h.n != n)
                fail_msg("%s: expected %zu faults, got:\n%s", name, n, all);
        if (h.report.n_bad != n_bad)
                fail_msg("%s: expected %d bad members, got %d", name, (int)n_bad,
                         (int)h.report.n_bad);
        strbuf_done(&h.faults);
}
#define EXPECT(name, n_bad, ...) expect(name, n_bad, (const char *const[]){ __VA_ARGS__, NULL })

static void a_sound_bundle_passes(void **state) {
        Heard h;
        verify_case("sound", &h);
        assert_true(h.report.ok);
        assert_int_equal(h.report.n_members, 5);
        assert_int_equal(h.report.n_bad, 0);
        assert_int_equal(h.report.bytes, 13 + 3 * MIB + 12345 + 35 + 70000);
        strbuf_done(&h.faults);
        EXPECT("sound_with_checksums_in_the_table", 0, NULL);
        EXPECT("tar_without_members", 0, NULL);
}

static void sparse_members_pass_whatever_the_form_of_their_digest(void **state) {
        EXPECT("tar_by_bsdtar", 0, NULL);
        EXPECT("tar_with_many_zeros", 0, NULL);
}

static void names_are_compared_as_bytes_in_every_locale(void **state) {
        const char *set = setlocale(LC_ALL, "C.UTF-8");
        EXPECT("sound", 0, NULL);
        assert_non_null(set);
        assert_string_equal(setlocale(LC_ALL, NULL), "C.UTF-8"); /* ours is left alone */
        (void)setlocale(LC_ALL, "C");
}

static void a_flipped_byte_names_frame_part_and_member_and_spares_the_others(void **state) {
        EXPECT("object_byte_flipped", 1, "frame 1 of the object", "part 0 of the object",
               "member 'b/ü.bin' has the sha256 ");
}

static void damage_in_a_header_leaves_the_rest_unchecked_and_reports_it(void **state) {
        EXPECT("object_byte_flipped_in_a_header", 5, "the object holds no tar stream",
               "frame 0 of the object", "part 0 of the object",
               "members from 'a.txt' on could not be checked, 5 of 5");
}

static void a_flipped_byte_in_the_table_is_seen(void **state) {
        Heard h;
        verify_case("object_byte_flipped_in_the_table", &h);
        assert_false(h.report.ok);
        assert_non_null(strstr(h.faults.text, "part 1 of the object"));
        assert_non_null(strstr(h.faults.text, "seek table"));
        assert_int_equal(h.report.n_bad, 0);
        strbuf_done(&h.faults);
}

static void a_cut_object_reports_what_is_missing(void **state) {
        EXPECT("object_cut_by_a_byte", 0, "bytes, the manifest has",
               "the object has no seek table at its end", "it ends too early",
               "the object ends before part 1 of 2 is whole, 1 bytes are missing from it");
        EXPECT("object_cut_in_half", 4, "bytes, the manifest has", "no seek table",
               "it ends too early", "the tar stream is damaged",
               "members from 'c\\x0a\\xff\\x5craw' on could not be checked, 3 of 5",
               "the object ends before part 0 of 2 is whole");
        Heard h;
        verify_case("object_with_a_byte_more", &h);
        assert_non_null(strstr(h.faults.text, "bytes, the manifest has"));
        strbuf_done(&h.faults);
}

static void an_empty_object_is_no_bundle(void **state) {
        EXPECT("object_empty", 5, "the object has 0 bytes, the manifest has", "no seek table",
               "the object ends before part 0 of 2 is whole", "the object holds no tar stream",
               "5 of 5");
}

static void a_part_is_compared_with_its_digest_and_the_frames(void **state) {
        EXPECT("manifest_part_digest", 0, "has 1111111111111111");
        EXPECT("manifest_part_boundary", 0, "part 0 of the object ends at ");
}

static void a_member_is_compared_with_size_digest_and_place(void **state) {
        EXPECT("manifest_member_digest", 1, "member 'b/ü.bin' has the sha256 ");
        EXPECT("manifest_member_bytes", 1, "member 'a.txt' has 13 bytes, the manifest has 14");
        EXPECT("manifest_member_offset", 1,
               "member 'b/ü.bin' begins at offset 2560 of the tar stream, the manifest has 3072");
        EXPECT("manifest_member_frame", 1, "begins in frame 3, the manifest has 2");
        EXPECT("manifest_member_form", 1, "but the manifest has none of this form");
        EXPECT("tar_member_content", 1, "member 'a.txt' has the sha256 ");
}

static void frames_are_compared_with_the_manifest(void **state) {
        EXPECT("manifest_frames_count", 0, "the seek table has 4 frames, the manifest has 5");
        EXPECT("manifest_uncompressed_bytes", 0, "the seek table's frames hold ",
               "the tar stream has ");
}

static void a_member_that_the_manifest_does_not_name_is_reported(void **state) {
        EXPECT("manifest_lacks_a_member", 0,
               "the object holds 'c\\x0a\\xff\\x5craw', which the manifest does not name");
        EXPECT("tar_member_added", 0,
               "the object holds 'zz\\xfe', which the manifest does not name");
}

static void a_missing_member_is_reported(void **state) {
        EXPECT("manifest_names_one_too_many", 1, "member 'aa' is missing from the object");
        EXPECT("tar_member_gone", 1, "eee' is missing from the object");
}

static void swapped_and_doubled_members_are_reported(void **state) {
        Heard h;
        verify_case("tar_members_swapped", &h);
        assert_non_null(strstr(h.faults.text, "member 'b/ü.bin' is missing from the object"));
        assert_non_null(
                strstr(h.faults.text, "member 'b/ü.bin' is in the object twice or out of order"));
        strbuf_done(&h.faults);
        verify_case("tar_member_doubled", &h);
        assert_non_null(
                strstr(h.faults.text, "member 'a.txt' is in the object twice or out of order"));
        strbuf_done(&h.faults);
}

static void links_are_no_members(void **state) {
        EXPECT("tar_member_is_a_symlink", 1,
               "member 'd-empty' is not a regular file in the object");
        EXPECT("tar_member_is_a_hard_link", 1,
               "member 'd-empty' is not a regular file in the object");
}

static void what_hides_behind_the_end_of_the_archive_is_reported(void **state) {
        EXPECT("tar_goes_on_behind_its_end", 0, "the tar stream continues at offset ");
}

static void what_is_no_tar_is_reported(void **state) {
        EXPECT("tar_that_is_none", 5, "the object holds no tar stream",
               "members from 'a.txt' on could not be checked, 5 of 5");
}

static void headers_without_end_are_refused_before_they_fill_the_memory(void **state) {
        EXPECT("tar_with_an_endless_sparse_map", 5, "headers of more than 4 MiB", "5 of 5");
}

static void a_seek_table_that_lies_is_reported_and_members_are_checked_without_it(void **state) {
        EXPECT("table_missing", 0, "the object has no seek table at its end");
        EXPECT("table_with_a_reserved_flag", 0, "the object has no seek table at its end");
        EXPECT("table_that_claims_too_much", 0, "the object has no seek table at its end");
        EXPECT("table_with_a_frame_too_few", 0, "the seek table has 3 frames, the manifest has 4");
}

static void a_seek_table_with_wrong_sizes_damages_the_frames_it_names(void **state) {
        Heard h;
        verify_case("table_with_wrong_sizes", &h);
        assert_non_null(strstr(h.faults.text, "frame 0 of the object"));
        strbuf_done(&h.faults);
        verify_case("table_of_other_contents", &h);
        assert_non_null(strstr(h.faults.text, "it holds more than the seek table declares"));
        assert_non_null(strstr(h.faults.text, "it is shorter than the seek table declares"));
        strbuf_done(&h.faults);
}

static void a_frame_that_needs_much_memory_is_refused(void **state) {
        Heard h;
        verify_case("frames_with_a_huge_window", &h);
        assert_false(h.report.ok);
        assert_non_null(strstr(h.faults.text, "memory"));
        strbuf_done(&h.faults);
}

static int refuse(ByteSource *s, void *data, size_t n, uint64_t offset) {
        (void)s, (void)data, (void)n, (void)offset;
        return -EIO;
}

static void what_cannot_be_read_is_an_error_and_no_fault(void **state) {
        VerifyReport report = { .on_fault = on_fault };
        ByteSource broken = { .bytes = 1000, .read_at = refuse };
        json_t *manifest = json_pack("{s{si}}", "bundle", "bytes", 1000);
        assert_non_null(manifest);
        assert_int_equal(bundle_verify(&broken, manifest, &report), -EIO);
        json_decref(manifest);
}

static int make_objects(void **state) {
        const char *tmp = getenv("TMPDIR"), *srcdir = getenv("srcdir");
        _cleanup_free_ char *command = NULL;
        (void)snprintf(directory, sizeof directory, "%.40s/reader-XXXXXX", tmp ? tmp : "/tmp");
        if (!mkdtemp(directory) ||
            asprintf(&command, "python3 '%s/tests/lib/bundle/test_reader_objects.py' '%s'",
                     srcdir ? srcdir : ".", directory) < 0)
                return -1;
        return system(command);
}

static int remove_objects(void **state) {
        _cleanup_free_ char *command = NULL;
        return asprintf(&command, "rm -r '%s'", directory) < 0 ? -1 : system(command);
}

int main(void) {
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(a_sound_bundle_passes),
                cmocka_unit_test(sparse_members_pass_whatever_the_form_of_their_digest),
                cmocka_unit_test(names_are_compared_as_bytes_in_every_locale),
                cmocka_unit_test(a_flipped_byte_names_frame_part_and_member_and_spares_the_others),
                cmocka_unit_test(damage_in_a_header_leaves_the_rest_unchecked_and_reports_it),
                cmocka_unit_test(a_flipped_byte_in_the_table_is_seen),
                cmocka_unit_test(a_cut_object_reports_what_is_missing),
                cmocka_unit_test(an_empty_object_is_no_bundle),
                cmocka_unit_test(a_part_is_compared_with_its_digest_and_the_frames),
                cmocka_unit_test(a_member_is_compared_with_size_digest_and_place),
                cmocka_unit_test(frames_are_compared_with_the_manifest),
                cmocka_unit_test(a_member_that_the_manifest_does_not_name_is_reported),
                cmocka_unit_test(a_missing_member_is_reported),
                cmocka_unit_test(swapped_and_doubled_members_are_reported),
                cmocka_unit_test(links_are_no_members),
                cmocka_unit_test(what_hides_behind_the_end_of_the_archive_is_reported),
                cmocka_unit_test(what_is_no_tar_is_reported),
                cmocka_unit_test(headers_without_end_are_refused_before_they_fill_the_memory),
                cmocka_unit_test(
                        a_seek_table_that_lies_is_reported_and_members_are_checked_without_it),
                cmocka_unit_test(a_seek_table_with_wrong_sizes_damages_the_frames_it_names),
                cmocka_unit_test(a_frame_that_needs_much_memory_is_refused),
                cmocka_unit_test(what_cannot_be_read_is_an_error_and_no_fault),
        };
        return cmocka_run_group_tests(tests, make_objects, remove_objects);
}
