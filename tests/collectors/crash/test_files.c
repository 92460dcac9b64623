/* Which files of which roots a child is handed. */
#include <elf.h>
#include <errno.h>
#include <sys/types.h>

#include "tests/harness/unit.h"

#include "collectors/crash/origin/files.h"
#include "lib/base/cleanup.h"
#include "tests/lib/base/scratch.h"

static void make_elf(const Scratch *s, const char *name, unsigned class, unsigned type) {
        Elf64_Ehdr e = { .e_ident = ELFMAG, .e_type = (uint16_t)type };
        e.e_ident[EI_CLASS] = (uint8_t) class;
        int fd = openat(s->fd, name, O_WRONLY | O_CREAT | O_CLOEXEC, 0644);
        assert_true(fd >= 0 && write(fd, &e, sizeof e) == sizeof e && close(fd) == 0);
}

static int setup(void **state) {
        if (scratch_setup(state) < 0)
                return -1;
        const Scratch *s = *state;
        assert_int_equal(mkdirat(s->fd, "lib", 0755), 0);
        make_elf(s, "lib/liba.so", ELFCLASS64, ET_DYN);
        make_elf(s, "lib/program", ELFCLASS64, ET_EXEC);
        make_elf(s, "lib/core", ELFCLASS64, ET_CORE);
        make_elf(s, "lib/a.o", ELFCLASS64, ET_REL);
        make_elf(s, "lib/old.so", ELFCLASS32, ET_DYN);
        assert_int_equal(mkdirat(s->fd, "dev", 0755), 0);
        make_elf(s, "dev/liba.so", ELFCLASS64, ET_DYN);
        assert_int_equal(mkfifoat(s->fd, "lib/fifo", 0644), 0);
        assert_int_equal(symlinkat("liba.so", s->fd, "lib/link.so"), 0);
        assert_int_equal(symlinkat("/../../../bin/true", s->fd, "lib/outside"), 0);
        assert_int_equal(symlinkat("loop", s->fd, "lib/loop"), 0);
        return scratch_write(s, "lib/text",
                             "\x7f"
                             "ELF");
}

/* @return the place, -1: none */
static int place_of(const FileRoot *roots, size_t n, const FileQuery *q, bool *ret_is_other) {
        FileReply reply;
        int fd = files_open(roots, n, NULL, q, &reply);
        assert_int_equal(reply.error, fd < 0 ? -ENODATA : 0);
        *ret_is_other = reply.is_other;
        if (fd < 0)
                return -1;
        assert_int_equal(fcntl(fd, F_GETFL) & O_ACCMODE, O_RDONLY);
        assert_int_equal(close(fd), 0);
        return (int)reply.place;
}

static int ask(const FileRoot *roots, size_t n, const char *path, unsigned place, size_t id_bytes) {
        FileQuery q = { .place = place, .build_id.n = id_bytes };
        bool is_other;
        (void)snprintf(q.path, sizeof q.path, "%s", path);
        return place_of(roots, n, &q, &is_other);
}

static void only_programs_and_libraries_are_handed_out(void **state) {
        const Scratch *s = *state;
        static const char *const no[] = {
                "/lib/core",     "/lib/a.o", "/lib/old.so",    "/lib/text",
                "/lib/fifo",     "/lib",     "/lib/outside",   "/lib/loop",
                "/absent",       "",         "lib/liba.so",    "/dev/liba.so",
                "//dev/liba.so", "/dev",     "/proc/self/exe", "/lib/../lib/liba.so",
        };
        const FileRoot root = { .fd = s->fd, .kind = FILE_ROOT_OWN };
        assert_int_equal(ask(&root, 1, "/lib/liba.so", 0, 0), 0);
        assert_int_equal(ask(&root, 1, "/lib/program", 0, 0), 0);
        assert_int_equal(ask(&root, 1, "/lib/link.so", 0, 0), 0);
        assert_int_equal(ask(&root, 1, "/lib/liba.so", 1, 0), -1);
        assert_int_equal(ask(&root, 1, "/lib/liba.so", UINT_MAX, 0), -1);
        for (size_t i = 0; i < sizeof no / sizeof *no; i++)
                assert_int_equal(ask(&root, 1, no[i], 0, 0), -1);
}

static bool is_opened_for(const Scratch *s, const FileReader *reader, const char *path) {
        FileQuery q = { .place = 0 };
        FileReply reply;
        const FileRoot root = { .fd = s->fd, .kind = FILE_ROOT_OWN };
        (void)snprintf(q.path, sizeof q.path, "%s", path);
        int fd = files_open(&root, 1, reader, &q, &reply);
        if (fd >= 0)
                assert_int_equal(close(fd), 0);
        return fd >= 0;
}

static void what_the_owner_of_the_core_cannot_read_is_not_handed_out(void **state) {
        const Scratch *s = *state;
        const FileReader other = { .uid = geteuid() + 1 },
                         group = { .uid = geteuid() + 1, .groups = { getegid() }, .n_groups = 1 },
                         own = { .uid = geteuid() };
        assert_int_equal(fchmod(s->fd, 0755), 0);
        assert_true(is_opened_for(s, &other, "/lib/program"));
        assert_true(is_opened_for(s, &other, "/lib/link.so"));
        assert_int_equal(fchmodat(s->fd, "lib/program", 0640, 0), 0);
        assert_false(is_opened_for(s, &other, "/lib/program"));
        assert_true(is_opened_for(s, &group, "/lib/program"));
        assert_true(is_opened_for(s, &own, "/lib/program"));
        assert_int_equal(fchmodat(s->fd, "lib/program", 0644, 0), 0);
        assert_int_equal(symlinkat("lib", s->fd, "way"), 0);
        assert_int_equal(fchmodat(s->fd, "lib", 0710, 0), 0); /* a home */
        assert_false(is_opened_for(s, &other, "/lib/program"));
        assert_false(is_opened_for(s, &other, "/way/program"));
        assert_true(is_opened_for(s, &group, "/way/program"));
        assert_true(is_opened_for(s, NULL, "/lib/program"));
        assert_int_equal(fchmodat(s->fd, "lib", 0755, 0), 0);
}

static int ask_for(const Scratch *s, FileKind kind, const char *path) {
        const FileRoot roots[] = { { .fd = s->fd, .kind = FILE_ROOT_OWN },
                                   { .fd = s->fd, .kind = FILE_ROOT_LAYER } };
        FileQuery q = { .kind = kind };
        bool is_other;
        (void)snprintf(q.path, sizeof q.path, "%s", path);
        int place = place_of(roots, 2, &q, &is_other);
        q.place = 1;
        assert_int_equal(place_of(roots, 2, &q, &is_other), place < 0 ? -1 : 1);
        return place;
}

static void make_package_lists(const Scratch *s) {
        static const char *const directories[] = { "var",
                                                   "var/lib",
                                                   "var/lib/dpkg",
                                                   "var/lib/dpkg/info",
                                                   "lib/site-packages",
                                                   "lib/site-packages/torch",
                                                   "lib/site-packages/torch/x",
                                                   "lib/site-packages/a.dist-info" };
        static const char *const files[] = {
                "var/lib/dpkg/status",
                "var/lib/dpkg/info/a.list",
                "var/lib/dpkg/info/a.postinst",
                "lib/site-packages/torch/version.py",
                "lib/site-packages/torch/secret.py",
                "lib/site-packages/torch/x/version.py",
                "lib/site-packages/version.py",
                "lib/site-packages/a.dist-info/RECORD",
                "lib/site-packages/a.dist-info/METADATA",
        };
        for (size_t i = 0; i < sizeof directories / sizeof *directories; i++)
                assert_int_equal(mkdirat(s->fd, directories[i], 0755), 0);
        for (size_t i = 0; i < sizeof files / sizeof *files; i++)
                assert_int_equal(scratch_write(s, files[i], "text"), 0);
}

static void of_texts_only_those_of_package_managers_are_handed_out(void **state) {
        const Scratch *s = *state;
        static const char *const texts[] = { "/var/lib/dpkg/status", "/var/lib/dpkg/info/a.list",
                                             "/lib/site-packages/torch/version.py",
                                             "/lib/site-packages/a.dist-info/RECORD",
                                             "/lib/site-packages/a.dist-info/METADATA" },
                                 *const none[] = { "/var/lib/dpkg/info/a.postinst",
                                                   "/var/lib/dpkg/info/../status",
                                                   "/var/lib/dpkg/info/.list",
                                                   "/var/lib/dpkg/info",
                                                   "/var/lib/dpkg/info/absent.list",
                                                   "/lib/site-packages/torch/secret.py",
                                                   "/lib/site-packages/torch/x/version.py",
                                                   "/lib/site-packages/version.py",
                                                   "/lib/text",
                                                   "/lib/liba.so",
                                                   "var/lib/dpkg/status",
                                                   "" };
        make_package_lists(s);
        for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
                assert_int_equal(ask_for(s, FILE_OF_TEXT, texts[i]), 0);
                assert_int_equal(ask_for(s, FILE_OF_CODE, texts[i]), -1);
                assert_int_equal(ask_for(s, FILE_OF_NAMES, texts[i]), -1);
        }
        for (size_t i = 0; i < sizeof none / sizeof *none; i++)
                assert_int_equal(ask_for(s, FILE_OF_TEXT, none[i]), -1);
        assert_int_equal(ask_for(s, FILE_OF_NAMES, "/var/lib/dpkg/info"), 0);
        assert_int_equal(ask_for(s, FILE_OF_NAMES, "/lib/site-packages"), 0);
        assert_int_equal(ask_for(s, FILE_OF_NAMES, "/var/lib/dpkg"), -1);
        assert_int_equal(ask_for(s, FILE_OF_NAMES, "/lib"), -1);
        assert_int_equal(ask_for(s, FILE_OF_NAMES, "/"), -1);
}

static void the_kernels_files_are_not_reached_by_a_link(void **state) {
        const Scratch *s = *state;
        const FileRoot host = { .fd = open("/", O_PATH | O_CLOEXEC), .kind = FILE_ROOT_HOST };
        FileQuery q = { .kind = FILE_OF_TEXT };
        bool is_other;
        make_package_lists(s);
        (void)snprintf(q.path, sizeof q.path, "%.4000s/lib/site-packages/torch/version.py",
                       s->path);
        assert_int_equal(place_of(&host, 1, &q, &is_other), 0);
        assert_int_equal(unlinkat(s->fd, "lib/site-packages/torch/version.py", 0), 0);
        assert_int_equal(symlinkat("/proc/version", s->fd, "lib/site-packages/torch/version.py"),
                         0);
        assert_int_equal(place_of(&host, 1, &q, &is_other), -1);
        assert_int_equal(close(host.fd), 0);
}

static void a_query_that_is_none_gets_nothing(void **state) {
        const Scratch *s = *state;
        const FileRoot root = { .fd = s->fd, .kind = FILE_ROOT_OWN };
        bool is_other;
        FileQuery q = { .path = "/lib/liba.so", .kind = FILE_OF_DEBUG, .build_id.n = 1000 };
        assert_int_equal(place_of(&root, 1, &q, &is_other), -1);
        q = (FileQuery){ .path = "/lib/liba.so", .kind = (FileKind)77 };
        assert_int_equal(place_of(&root, 1, &q, &is_other), -1);
        memset(q.path, '/', sizeof q.path);
        q.kind = FILE_OF_CODE;
        assert_int_equal(place_of(&root, 1, &q, &is_other), -1);
}

static void other_roots_count_only_with_a_build_id(void **state) {
        const Scratch *s = *state;
        _cleanup_close_ int empty = -1;
        assert_int_equal(mkdirat(s->fd, "empty", 0755), 0);
        empty = openat(s->fd, "empty", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
        const FileRoot roots[] = { { .fd = empty, .kind = FILE_ROOT_OWN },
                                   { .fd = s->fd, .kind = FILE_ROOT_HOST },
                                   { .fd = s->fd, .kind = FILE_ROOT_LAYER } };
        FileQuery q = { .path = "/lib/liba.so", .build_id.n = 20 };
        bool is_other;
        assert_int_equal(ask(roots, 3, "/lib/liba.so", 0, 0), -1);
        assert_int_equal(place_of(roots, 3, &q, &is_other), 1);
        assert_true(is_other);
        q.place = 2;
        assert_int_equal(place_of(roots, 3, &q, &is_other), 2);
        assert_true(is_other);
        assert_int_equal(ask(roots + 1, 2, "/lib/liba.so", 0, 0), 0); /* the host's own core */
        assert_int_equal(ask(roots + 2, 1, "/lib/liba.so", 0, 0), -1);
}

static void debug_information_is_found_by_its_build_id_also_through_a_link(void **state) {
        const Scratch *s = *state;
        const FileRoot root = { .fd = s->fd, .kind = FILE_ROOT_OWN },
                       layer = { .fd = s->fd, .kind = FILE_ROOT_LAYER };
        FileQuery q = { .kind = FILE_OF_DEBUG, .build_id = { .bytes = { 0xab, 0xcd }, .n = 2 } };
        bool is_other;
        assert_int_equal(place_of(&root, 1, &q, &is_other), -1);
        assert_true(mkdirat(s->fd, "usr", 0755) == 0 && mkdirat(s->fd, "usr/lib", 0755) == 0 &&
                    mkdirat(s->fd, "usr/lib/debug", 0755) == 0 &&
                    mkdirat(s->fd, "usr/lib/debug/.build-id", 0755) == 0 &&
                    mkdirat(s->fd, "usr/lib/debug/.build-id/ab", 0755) == 0);
        assert_int_equal(symlinkat("/lib/liba.so", s->fd, "usr/lib/debug/.build-id/ab/cd.debug"),
                         0);
        assert_int_equal(place_of(&root, 1, &q, &is_other), 0);
        assert_int_equal(place_of(&layer, 1, &q, &is_other), -1);
        q.build_id.n = 1;
        assert_int_equal(place_of(&root, 1, &q, &is_other), -1);
}

static void the_program_is_for_the_program_alone(void **state) {
        const Scratch *s = *state;
        _cleanup_close_ int program = openat(s->fd, "lib/program", O_RDONLY | O_CLOEXEC),
                            text = openat(s->fd, "lib/text", O_RDONLY | O_CLOEXEC);
        FileRoot root = { .fd = program, .kind = FILE_ROOT_PROGRAM };
        FileQuery q = { .path = "/bin/x", .is_program = true };
        bool is_other;
        assert_int_equal(place_of(&root, 1, &q, &is_other), 0);
        assert_false(is_other);
        root.fd = text;
        assert_int_equal(place_of(&root, 1, &q, &is_other), -1);
        root.fd = program;
        q.is_program = false;
        assert_int_equal(place_of(&root, 1, &q, &is_other), -1);
}

int main(void) {
        const struct CMUnitTest tests[] = {
                cmocka_unit_test_setup_teardown(only_programs_and_libraries_are_handed_out, setup,
                                                scratch_teardown),
                cmocka_unit_test_setup_teardown(
                        what_the_owner_of_the_core_cannot_read_is_not_handed_out, setup,
                        scratch_teardown),
                cmocka_unit_test_setup_teardown(
                        of_texts_only_those_of_package_managers_are_handed_out, setup,
                        scratch_teardown),
                cmocka_unit_test_setup_teardown(the_kernels_files_are_not_reached_by_a_link, setup,
                                                scratch_teardown),
                cmocka_unit_test_setup_teardown(a_query_that_is_none_gets_nothing, setup,
                                                scratch_teardown),
                cmocka_unit_test_setup_teardown(other_roots_count_only_with_a_build_id, setup,
                                                scratch_teardown),
                cmocka_unit_test_setup_teardown(
                        debug_information_is_found_by_its_build_id_also_through_a_link, setup,
                        scratch_teardown),
                cmocka_unit_test_setup_teardown(the_program_is_for_the_program_alone, setup,
                                                scratch_teardown),
        };
        return cmocka_run_group_tests(tests, NULL, NULL);
}
