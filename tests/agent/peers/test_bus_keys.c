#include "agent/peers/bus_keys.h"

#include <errno.h>
#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

#include "lib/base/fs.h"

#define HEX_A "00112233445566778899aabbccddeeff00112233445566778899aabbccddeeff"
#define HEX_B "ff112233445566778899AABBCCDDEEFF00112233445566778899aabbccddee01"

typedef struct Fixture {
        char directory[64], path[96];
        int dir_fd;
        BusKeyFile file;
        Diags faults;
} Fixture;

static int setup(void **state) {
        Fixture *f = calloc(1, sizeof *f);
        strcpy(f->directory, "/tmp/nc-bus-keys.XXXXXX");
        assert_non_null(mkdtemp(f->directory));
        (void)snprintf(f->path, sizeof f->path, "%s/key", f->directory);
        f->dir_fd = open(f->directory, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
        assert_true(f->dir_fd >= 0);
        f->file.path = f->path;
        *state = f;
        return 0;
}

static int teardown(void **state) {
        Fixture *f = *state;
        bus_key_file_done(&f->file);
        diag_done(&f->faults);
        (void)close(f->dir_fd);
        int tmp = open("/tmp", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
        assert_int_equal(fs_remove_tree(tmp, f->directory + strlen("/tmp/")), 0);
        (void)close(tmp);
        free(f);
        return 0;
}

static void write_keys(Fixture *f, const char *text, mode_t mode) {
        assert_int_equal(fs_write_file(f->dir_fd, "key", text, strlen(text), mode), 0);
}

static int check(Fixture *f) {
        diag_done(&f->faults);
        f->faults = (Diags){ .n = 0 };
        return bus_key_file_check(&f->file, &f->faults);
}

static void the_first_signs_and_all_are_there(void **state) {
        BusKeys keys = { .n = 0 };
        Diags faults = { .n = 0 };
        (void)state;
        assert_int_equal(bus_keys_parse("# of the cluster\n\n  b:" HEX_B " \r\na.1_x-Y:" HEX_A, "f",
                                        &keys, &faults),
                         0);
        assert_int_equal(keys.n, 2);
        assert_string_equal(keys.items[0].id, "b");
        assert_int_equal(keys.items[0].secret[0], 0xff);
        assert_int_equal(keys.items[0].secret[9], 0x99);
        assert_string_equal(keys.items[1].id, "a.1_x-Y");
        assert_int_equal(keys.items[1].secret[31], 0xff);
}

static void each_fault_names_its_line_and_no_secret(void **state) {
        static const struct {
                const char *text;
                unsigned line;
        } faulty[] = {
                { "", 0 },
                { "# nothing\n\n", 0 },
                { HEX_A "\n", 1 },
                { "\n:" HEX_A "\n", 2 },
                { "a:" HEX_A "0\n", 1 },
                { "a:0" HEX_A "\n", 1 },
                { "a: " HEX_A "\n", 1 },
                { "a:" HEX_A "\nb:" HEX_A "x\n", 2 },
                { "a:" HEX_A "\na:" HEX_B "\n", 2 },
                { "12345678901234567:" HEX_A "\n", 1 },
                { "a b:" HEX_A "\n", 1 },
                { "a:" HEX_A "\nb:" HEX_A "\nc:" HEX_A "\nd:" HEX_A "\n\ne:" HEX_A "\n", 6 },
        };
        (void)state;
        for (size_t i = 0; i < ELEMENTSOF(faulty); i++) {
                BusKeys keys = { .n = 3 };
                Diags faults = { .n = 0 };
                assert_int_equal(bus_keys_parse(faulty[i].text, "file", &keys, &faults), -EINVAL);
                assert_int_equal(keys.n, 3);
                assert_int_equal(faults.n, 1);
                assert_int_equal(faults.items[0].line, faulty[i].line);
                _cleanup_free_ char *text = diag_format(&faults.items[0]);
                assert_ptr_equal(strstr(text, "file:"), text);
                assert_null(strstr(text, "00112233"));
                assert_non_null(faults.items[0].remedy);
                diag_done(&faults);
        }
}

static void it_is_read_again_when_it_has_changed(void **state) {
        Fixture *f = *state;
        write_keys(f, "a:" HEX_A "\n", 0600);
        assert_int_equal(check(f), 1);
        assert_string_equal(f->file.keys.items[0].id, "a");
        assert_int_equal(check(f), 0);
        write_keys(f, "b:" HEX_B "\na:" HEX_A "\n", 0600);
        assert_int_equal(check(f), 1);
        assert_int_equal(f->file.keys.n, 2);
        write_keys(f, "# the same\nb:" HEX_B "\na:" HEX_A "\n", 0600);
        assert_int_equal(check(f), 0);
}

static void a_fault_is_reported_once_and_the_keys_stay(void **state) {
        Fixture *f = *state;
        write_keys(f, "a:" HEX_A "\n", 0600);
        assert_int_equal(check(f), 1);
        write_keys(f, "a:" HEX_A "\noops\n", 0600);
        assert_int_equal(check(f), -EINVAL);
        assert_int_equal(f->faults.n, 1);
        assert_int_equal(check(f), 0);
        assert_int_equal(f->faults.n, 0);
        assert_int_equal(f->file.keys.n, 1);
        assert_int_equal(unlinkat(f->dir_fd, "key", 0), 0);
        assert_int_equal(check(f), -ENOENT);
        assert_int_equal(check(f), 0);
        assert_int_equal(f->file.keys.n, 1);
        write_keys(f, "c:" HEX_B "\n", 0600);
        assert_int_equal(check(f), 1);
        assert_string_equal(f->file.keys.items[0].id, "c");
}

static void a_file_that_others_may_read_is_refused(void **state) {
        static const mode_t refused[] = { 0644, 0604, 0601, 0602 };
        static const mode_t allowed[] = { 0600, 0400, 0440, 0640 };
        Fixture *f = *state;
        for (size_t i = 0; i < ELEMENTSOF(refused); i++) {
                write_keys(f, "a:" HEX_A "\n", refused[i]);
                assert_int_equal(check(f), -EINVAL);
                assert_non_null(strstr(f->faults.items[0].fault, "others may read"));
                assert_int_equal(f->file.keys.n, 0);
        }
        for (size_t i = 0; i < ELEMENTSOF(allowed); i++) {
                f->file = (BusKeyFile){ .path = f->path };
                write_keys(f, "a:" HEX_A "\n", allowed[i]);
                assert_int_equal(check(f), 1);
        }
}

static void a_file_that_its_group_or_another_user_may_replace_is_refused(void **state) {
        Fixture *f = *state;
        write_keys(f, "a:" HEX_A "\n", 0660);
        assert_int_equal(check(f), -EINVAL);
        assert_non_null(strstr(f->faults.items[0].fault, "group may write"));
        if (geteuid() != 0)
                return;
        f->file = (BusKeyFile){ .path = f->path };
        write_keys(f, "a:" HEX_A "\n", 0600);
        assert_int_equal(fchownat(f->dir_fd, "key", 12345, 0, 0), 0);
        assert_int_equal(check(f), -EINVAL);
        assert_non_null(strstr(f->faults.items[0].fault, "uid 12345"));
        assert_non_null(strstr(f->faults.items[0].remedy, "root"));
}

static void a_link_is_followed_as_kubernetes_mounts_it(void **state) {
        Fixture *f = *state;
        write_keys(f, "a:" HEX_A "\n", 0440);
        assert_int_equal(renameat(f->dir_fd, "key", f->dir_fd, "data"), 0);
        assert_int_equal(symlinkat("data", f->dir_fd, "key"), 0);
        assert_int_equal(check(f), 1);
}

static void what_is_no_small_file_is_refused(void **state) {
        static char large[5000];
        Fixture *f = *state;
        memset(large, '#', sizeof large - 1);
        write_keys(f, large, 0600);
        assert_int_equal(check(f), -EINVAL);
        assert_int_equal(unlinkat(f->dir_fd, "key", 0), 0);
        assert_int_equal(mkfifoat(f->dir_fd, "key", 0600), 0);
        assert_int_equal(check(f), -EINVAL);
        f->file.path = "";
        assert_int_equal(check(f), 0);
}

#define TEST(f) cmocka_unit_test_setup_teardown(f, setup, teardown)

int main(void) {
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(the_first_signs_and_all_are_there),
                cmocka_unit_test(each_fault_names_its_line_and_no_secret),
                TEST(it_is_read_again_when_it_has_changed),
                TEST(a_fault_is_reported_once_and_the_keys_stay),
                TEST(a_file_that_others_may_read_is_refused),
                TEST(a_file_that_its_group_or_another_user_may_replace_is_refused),
                TEST(a_link_is_followed_as_kubernetes_mounts_it),
                TEST(what_is_no_small_file_is_refused),
        };
        return cmocka_run_group_tests(tests, NULL, NULL);
}
