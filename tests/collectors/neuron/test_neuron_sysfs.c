/* Values, summary and walk of the collector neuron_sysfs. */
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include "tests/harness/unit.h"

#include "collectors/neuron/sysfs_summary.h"
#include "collectors/neuron/sysfs_value.h"
#include "collectors/neuron/sysfs_walk.h"
#include "lib/base/cleanup.h"
#include "lib/base/fs.h"
#include "lib/base/json_out.h"
#include "tests/lib/base/scratch.h"

typedef struct Walked {
        StrBuf text;
        SysfsProgress progress;
        _Atomic uint32_t n_files_all;
        int result;
} Walked;

static Walked *walk(const Scratch *s, size_t bytes_max) {
        _cleanup_close_ int fd = memfd_create("records", MFD_CLOEXEC);
        Walked *w = calloc(1, sizeof *w);

        assert_non_null(w);
        SysfsWalk walk = { .device = "neuron0",
                           .progress = &w->progress,
                           .n_files_all = &w->n_files_all,
                           .out_fd = fd };
        w->result = sysfs_walk(&walk, s->fd, bytes_max);
        assert_int_equal(fs_read_head(fd, MIB * 16, &w->text.text, &w->text.n), 0);
        return w;
}

static void walked_free(Walked *w) {
        strbuf_done(&w->text);
        free(w);
}

static bool has_message(const Walked *w, const char *part) {
        return w->text.text && strstr(w->text.text, part);
}

static void a_value_has_no_newline_at_its_end(void **state) {
        SysfsValue value;

        assert_int_equal(scratch_write(*state, "a", "12\n"), 0);
        assert_int_equal(scratch_write(*state, "b", "12"), 0);
        assert_int_equal(scratch_write(*state, "c", "1\n2\n\n"), 0);
        assert_int_equal(scratch_write(*state, "d", ""), 0);
        const Scratch *s = *state;
        assert_int_equal(sysfs_value_read(s->fd, "a", &value), 0);
        assert_int_equal(value.n, 2);
        assert_int_equal(sysfs_value_read(s->fd, "b", &value), 0);
        assert_int_equal(value.n, 2);
        assert_int_equal(sysfs_value_read(s->fd, "c", &value), 0);
        assert_int_equal(value.n, 4);
        assert_int_equal(sysfs_value_read(s->fd, "d", &value), 0);
        assert_int_equal(value.n, 0);
        assert_false(value.is_cut);
}

static void what_is_no_regular_file_is_not_read(void **state) {
        const Scratch *s = *state;
        SysfsValue value;

        assert_int_equal(mkfifoat(s->fd, "fifo", 0600), 0);
        assert_int_equal(mkdirat(s->fd, "dir", 0700), 0);
        assert_int_equal(symlinkat("/etc/passwd", s->fd, "link"), 0);
        assert_int_equal(symlinkat("/etc", s->fd, "etc"), 0);
        assert_int_equal(sysfs_value_read(s->fd, "fifo", &value), -EBADF);
        assert_int_equal(sysfs_value_read(s->fd, "dir", &value), -EBADF);
        assert_int_equal(sysfs_value_read(s->fd, "link", &value), -ELOOP);
        assert_int_equal(sysfs_value_read(s->fd, "etc/passwd", &value), -ELOOP);
        assert_int_equal(sysfs_value_read(s->fd, "../x", &value), -EXDEV);
        assert_int_equal(sysfs_value_read(s->fd, "gone", &value), -ENOENT);
}

static void hardware_comes_last_and_each_in_a_record_of_its_own(void **state) {
        const Scratch *s = *state;

        assert_int_equal(mkdirat(s->fd, "hardware", 0700), 0);
        assert_int_equal(scratch_write(s, "hardware/one", "1"), 0);
        assert_int_equal(scratch_write(s, "hardware/two", "2"), 0);
        assert_int_equal(mkdirat(s->fd, "zzz", 0700), 0);
        assert_int_equal(scratch_write(s, "zzz/last", "3"), 0);
        Walked *w = walk(s, MIB);
        assert_int_equal(w->result, 0);
        assert_true(has_message(w, "\"directory\":\"hardware\",\"values\":{\"one\":\"1\"}}\n"));
        assert_true(has_message(w, "\"directory\":\"hardware\",\"values\":{\"two\":\"2\"}}\n"));
        assert_true(strstr(w->text.text, "zzz") < strstr(w->text.text, "hardware"));
        assert_int_equal(w->progress.n_files, 3);
        assert_string_equal(w->progress.reading, "");
        walked_free(w);
}

static void reset_is_passed_by_wherever_it_lies(void **state) {
        const Scratch *s = *state;

        assert_int_equal(mkdirat(s->fd, "control", 0700), 0);
        assert_int_equal(scratch_write(s, "reset", "planted"), 0);
        assert_int_equal(scratch_write(s, "control/reset", "planted"), 0);
        assert_int_equal(scratch_write(s, "reset_req_count", "5"), 0);
        Walked *w = walk(s, MIB);
        assert_false(has_message(w, "planted"));
        assert_true(has_message(w, "\"reset_req_count\":\"5\""));
        assert_int_equal(w->progress.n_files, 1);
        walked_free(w);
}

static void a_walk_ends_when_its_records_are_not_accepted(void **state) {
        const Scratch *s = *state;
        SysfsProgress *progress = calloc(1, sizeof *progress);
        _Atomic uint32_t n = 0;

        assert_non_null(progress);
        assert_int_equal(mkdirat(s->fd, "more", 0700), 0);
        assert_int_equal(scratch_write(s, "a", "1"), 0);
        assert_int_equal(scratch_write(s, "more/b", "1"), 0);
        SysfsWalk walk = {
                .device = "neuron0", .progress = progress, .n_files_all = &n, .out_fd = s->fd
        };
        assert_int_equal(sysfs_walk(&walk, s->fd, MIB), -EBADF); /* a directory */
        assert_int_equal(progress->n_files, 1);
        free(progress);
}

static void records_never_exceed_their_limit(void **state) {
        const Scratch *s = *state;
        char name[16];

        for (unsigned i = 0; i < 200; i++) {
                (void)snprintf(name, sizeof name, "file%u", i);
                assert_int_equal(scratch_write(s, name, "0123456789012345678901234567890123456789"),
                                 0);
        }
        for (size_t room = 0; room < 20000; room += 500) {
                Walked *w = walk(s, room);
                assert_int_equal(w->result, 0);
                assert_true(w->text.n <= room);
                assert_true(w->text.n > 0 || w->progress.cut[0]);
                walked_free(w);
        }
}

static void of_two_values_with_one_name_the_devices_counts(void **state) {
        SysfsSummary *s = calloc(1, sizeof *s);
        StrBuf b = STRBUF_INIT;

        assert_non_null(s);
        sysfs_summary_note(s, "neuron_core0/info/architecture/arch_type", "NCv3", 4);
        sysfs_summary_note(s, "info/architecture/arch_type", "NDv3", 4);
        sysfs_summary_note(s, "neuron_core1/info/architecture/arch_type", "NCv3", 4);
        sysfs_summary_note(s, "x/ecc_count/total", "9", 1);
        sysfs_summary_note(s, "x/total", "8", 1);
        json_out_object(&b, NULL);
        sysfs_summary_add(&b, s);
        assert_string_equal(
                b.text,
                "{\"summary\":{\"arch_type\":\"NDv3\",\"measures\":{\"x/ecc_count/total\":\"9\"}}");
        strbuf_done(&b);
        free(s);
}

static void a_summary_holds_only_so_much(void **state) {
        SysfsSummary *s = calloc(1, sizeof *s);
        char path[300], value[5000];

        assert_non_null(s);
        memset(value, 'v', sizeof value);
        for (unsigned i = 0; i < 1000; i++) {
                (void)snprintf(path, sizeof path, "ecc%u%0200d", i, 0);
                sysfs_summary_note(s, path, value, sizeof value);
        }
        sysfs_summary_note(s, "serial_number", value, sizeof value);
        assert_int_equal(s->n_measures, SYSFS_MEASURES_MAX);
        assert_true(s->is_cut);
        assert_int_equal(strlen(s->measures[95].path), SYSFS_TEXT_MAX - 1);
        assert_int_equal(strlen(s->facts[0].text), SYSFS_TEXT_MAX - 1);
        free(s);
}

/* The part that shares it may have been killed in the middle of a write, or have overwritten it. */
static void a_summary_full_of_garbage_is_shown_within_its_bounds(void **state) {
        SysfsSummary *s = malloc(sizeof *s);
        StrBuf b = STRBUF_INIT;

        assert_non_null(s);
        memset(s, 0x5a, sizeof *s);
        memset(&s->is_cut, 1, sizeof s->is_cut);
        for (size_t i = 0; i < ELEMENTSOF(s->facts); i++)
                memset(&s->facts[i].is_known, 1, sizeof s->facts[i].is_known);
        json_out_object(&b, NULL);
        sysfs_summary_add(&b, s);
        assert_int_equal(strbuf_error(&b), 0);
        strbuf_done(&b);
        free(s);
}

int main(void) {
#define SCRATCH_TEST(f) cmocka_unit_test_setup_teardown(f, scratch_setup, scratch_teardown)
        const struct CMUnitTest tests[] = {
                SCRATCH_TEST(a_value_has_no_newline_at_its_end),
                SCRATCH_TEST(what_is_no_regular_file_is_not_read),
                SCRATCH_TEST(hardware_comes_last_and_each_in_a_record_of_its_own),
                SCRATCH_TEST(reset_is_passed_by_wherever_it_lies),
                SCRATCH_TEST(a_walk_ends_when_its_records_are_not_accepted),
                SCRATCH_TEST(records_never_exceed_their_limit),
                cmocka_unit_test(of_two_values_with_one_name_the_devices_counts),
                cmocka_unit_test(a_summary_holds_only_so_much),
                cmocka_unit_test(a_summary_full_of_garbage_is_shown_within_its_bounds),
        };

        return cmocka_run_group_tests(tests, NULL, NULL);
}
