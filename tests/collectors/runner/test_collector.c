/* Records and raw files of a collector: whole or not at all, and together within their bound. */
#include <errno.h>
#include <string.h>
#include <sys/mman.h>

#include "tests/harness/unit.h"

#include "collectors/runner/collector.h"
#include "lib/base/fs.h"
#include "lib/base/json_out.h"
#include "tests/lib/base/scratch.h"

static int memory_fd(void) {
        int fd = memfd_create("records", MFD_CLOEXEC);
        assert_true(fd >= 0);
        return fd;
}

static void assert_holds(int fd, const char *text) {
        char got[512] = "";
        assert_int_equal(pread(fd, got, sizeof got - 1, 0), (ssize_t)strlen(text));
        assert_string_equal(got, text);
}

static int emit_text(CollectOut *out, const char *text) {
        _cleanup_(strbuf_done) StrBuf b = STRBUF_INIT;
        strbuf_add(&b, text);
        int r = collect_emit(out, &b);
        assert_int_equal(b.n, 0);
        return r;
}

static void each_record_is_one_line(void **state) {
        _cleanup_close_ int fd = memory_fd();
        CollectOut out = { .fd = fd, .dir_fd = -1, .max_bytes = 100 };
        assert_int_equal(emit_text(&out, "{\"a\":1}"), 0);
        assert_int_equal(emit_text(&out, "{}"), 0);
        assert_holds(fd, "{\"a\":1}\n{}\n");
        assert_int_equal(out.used_bytes, 11);
        assert_false(out.is_cut);
}

static void what_does_not_fit_is_left_out_and_smaller_records_still_come(void **state) {
        _cleanup_close_ int fd = memory_fd();
        CollectOut out = { .fd = fd, .dir_fd = -1, .max_bytes = 10 };
        assert_int_equal(emit_text(&out, "123456"), 0);
        assert_int_equal(emit_text(&out, "123"), -EFBIG); /* 4 with its newline, 3 are left */
        assert_true(out.is_cut);
        assert_int_equal(emit_text(&out, "12"), 0);
        assert_holds(fd, "123456\n12\n");
}

static void a_record_that_is_no_line_is_refused(void **state) {
        _cleanup_close_ int fd = memory_fd();
        CollectOut out = { .fd = fd, .dir_fd = -1, .max_bytes = 100 };
        assert_int_equal(emit_text(&out, "{\n}"), -EINVAL);
        assert_int_equal(emit_text(&out, ""), -EINVAL);
        StrBuf failed = { .failed = true };
        assert_int_equal(collect_emit(&out, &failed), -ENOMEM);
        assert_holds(fd, "");
}

static void a_failed_write_is_reported(void **state) {
        _cleanup_close_ int fd = open("/dev/full", O_WRONLY | O_CLOEXEC);
        CollectOut out = { .fd = fd, .dir_fd = -1, .max_bytes = 100 };
        assert_int_equal(emit_text(&out, "{}"), -ENOSPC);
}

static void raw_files_share_the_bound(void **state) {
        Scratch *s = *state;
        _cleanup_close_ int fd = memory_fd();
        CollectOut out = { .fd = fd, .dir_fd = s->fd, .max_bytes = 12 };
        _cleanup_close_ int raw = collect_raw_file(&out, "nrt.log");
        assert_true(raw >= 0);
        assert_int_equal(collect_write(&out, raw, "12345678", 8), 0);
        assert_int_equal(emit_text(&out, "123456"), -EFBIG);
        assert_int_equal(emit_text(&out, "{}"), 0);
        assert_int_equal(collect_write(&out, raw, "12", 2), -EFBIG);
        assert_true(out.is_cut);
        _cleanup_free_ char *text = NULL;
        assert_int_equal(fs_read_file(s->fd, "nrt.log", 100, &text, NULL), 0);
        assert_string_equal(text, "12345678");
}

static void a_raw_file_has_a_plain_name_and_replaces_nothing(void **state) {
        Scratch *s = *state;
        CollectOut out = { .fd = -1, .dir_fd = s->fd, .max_bytes = 12 };
        char longest[102];
        memset(longest, 'a', sizeof longest);
        longest[101] = '\0';
        static const char *const bad[] = { "", ".", "..", ".x", "a/b", "a b", "a\n", "\xc3\xa4" };
        for (size_t i = 0; i < ELEMENTSOF(bad); i++)
                assert_int_equal(collect_raw_file(&out, bad[i]), -EINVAL);
        assert_int_equal(collect_raw_file(&out, longest), -EINVAL);
        longest[100] = '\0';
        _cleanup_close_ int first = collect_raw_file(&out, longest);
        assert_true(first >= 0);
        assert_int_equal(collect_raw_file(&out, longest), -EEXIST);
        assert_int_equal(symlinkat("/etc/passwd", s->fd, "link"), 0);
        assert_int_equal(collect_raw_file(&out, "link"), -EEXIST);
        out.dir_fd = -1;
        assert_int_equal(collect_raw_file(&out, "x"), -EOPNOTSUPP);
}

int main(void) {
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(each_record_is_one_line),
                cmocka_unit_test(what_does_not_fit_is_left_out_and_smaller_records_still_come),
                cmocka_unit_test(a_record_that_is_no_line_is_refused),
                cmocka_unit_test(a_failed_write_is_reported),
                cmocka_unit_test_setup_teardown(raw_files_share_the_bound, scratch_setup,
                                                scratch_teardown),
                cmocka_unit_test_setup_teardown(a_raw_file_has_a_plain_name_and_replaces_nothing,
                                                scratch_setup, scratch_teardown),
        };
        return cmocka_run_group_tests(tests, NULL, NULL);
}
