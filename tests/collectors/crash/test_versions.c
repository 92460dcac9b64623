/* Packages and versions, of roots that are laid out as package managers lay them out, and of roots
 * whose lists are hostile. */
#include <errno.h>

#include "tests/harness/unit.h"

#include "collectors/crash/origin/versions.h"
#include "collectors/crash/verdict.h"
#include "lib/base/cleanup.h"
#include "lib/base/clock.h"
#include "tests/lib/base/scratch.h"

#define SITE "venv/lib/python3.10/site-packages"
#define LIBC "/usr/lib/x86_64-linux-gnu/libc.so.6"
#define TORCH "/" SITE "/torch/lib/libtorch_cpu.so"
#define BLAS "/" SITE "/numpy.libs/libopenblas64_p-r0-0cf96a72.so"
#define HASH "0123456789abcdef0123456789abcdef01234567"

static int open_below(const FileQuery *q, FileReply *ret, const char **ret_place, void *userdata) {
        const Scratch *s = userdata;
        const FileRoot root = { .fd = s->fd, .kind = FILE_ROOT_OWN };
        int fd = files_open(&root, 1, NULL, q, ret);
        *ret_place = "here";
        return fd < 0 ? ret->error : fd;
}

static void make_file(const Scratch *s, const char *path, const char *text) {
        char directory[PATH_MAX];
        (void)snprintf(directory, sizeof directory, "%.*s", (int)(strrchr(path, '/') - path), path);
        assert_int_equal(scratch_make_dirs(s, directory), 0);
        assert_int_equal(scratch_write(s, path, text), 0);
}

static int setup(void **state) {
        if (scratch_setup(state) < 0)
                return -1;
        const Scratch *s = *state;
        make_file(s, "var/lib/dpkg/info/libc6:amd64.list",
                  "/.\n/lib\n/lib/x86_64-linux-gnu\n/lib/x86_64-linux-gnu/libc.so.6\n");
        make_file(s, "var/lib/dpkg/info/libc6:arm64.list", "/lib/aarch64-linux-gnu/libc.so.6\n");
        make_file(s, "var/lib/dpkg/info/libc6:amd64.md5sums", "x\n");
        make_file(s, "var/lib/dpkg/info/aws-neuronx-runtime-lib.list",
                  "/opt/aws/neuron/lib/libnrt.so.2\n/opt/aws/neuron/lib/libnrt.so.2.20.22.0");
        make_file(s, "var/lib/dpkg/status",
                  "Package: libc6\nStatus: install ok installed\nArchitecture: arm64\n"
                  "Version: 1-wrong\n\nPackage: libc6\nArchitecture: amd64\nVersion: 2.36-9\n"
                  "Description: x\n Version: 3\n\nPackage: aws-neuronx-runtime-lib\n"
                  "Architecture: amd64\nVersion: 2.20.22.0-1b3ca6425");
        make_file(s, SITE "/torch-2.1.2.dist-info/RECORD",
                  "torch/version.py,sha256=x,1\ntorch/lib/libtorch_cpu.so,sha256=y,500\n");
        make_file(s, SITE "/torch-2.1.2.dist-info/METADATA",
                  "Metadata-Version: 2.1\nName: torch\nVersion: 2.1.2\n\nVersion: 7\n");
        make_file(s, SITE "/torch/version.py",
                  "__version__ = '2.1.2'\ndebug = False\ngit_version = '" HASH "'\n");
        make_file(s, SITE "/numpy-1.26.4.dist-info/RECORD",
                  "\"numpy.libs/libopenblas64_p-r0-0cf96a72.so\",sha256=y,500\r\n");
        make_file(s, SITE "/numpy-1.26.4.dist-info/METADATA",
                  "Name: numpy\r\nVersion: 1.26.4\r\n\r\nText\r\n");
        return 0;
}

static Version find_one(const Scratch *s, const char *path, const char *note, int wanted) {
        VersionItem item = { .path = path, .note = note };
        uint64_t end_usec = clock_cpu_usec() + 5 * USEC_PER_SEC;
        assert_int_equal(versions_find(&item, 1, open_below, (void *)s, end_usec), wanted);
        return item.version;
}

static void check(Version v, const char *package, const char *version, const char *git) {
        assert_string_equal(v.package, package);
        assert_string_equal(v.version, version);
        assert_string_equal(v.git, git);
}

static void all_lists_of_a_root_are_used(void **state) {
        const Scratch *s = *state;
        VersionItem items[] = {
                { .path = LIBC, .note = "" },
                { .path = TORCH, .note = "" },
                { .path = "/opt/aws/neuron/lib/libnrt.so.2.20.22.0", .note = "" },
                { .path = BLAS, .note = "" },
                { .path = "/" SITE "/torch/lib/libown.so", .note = "" },
                { .path = "/usr/lib/absent.so", .note = "" },
                { .path = LIBC, .note = "", .place = 1 },
        };
        uint64_t end_usec = clock_cpu_usec() + 5 * USEC_PER_SEC;
        assert_int_equal(versions_find(items, ELEMENTSOF(items), open_below, (void *)s, end_usec),
                         0);
        check(items[0].version, "libc6:amd64", "2.36-9", "");
        check(items[1].version, "torch", "2.1.2", HASH);
        check(items[2].version, "aws-neuronx-runtime-lib", "2.20.22.0-1b3ca6425", "");
        check(items[3].version, "numpy", "1.26.4", "");
        check(items[4].version, "", "", HASH);
        check(items[5].version, "", "", "");
        check(items[6].version, "", "", "");
}

static void the_package_note_of_the_file_comes_first(void **state) {
        const Scratch *s = *state;
        static const char note[] =
                "{\"type\":\"rpm\",\"name\":\"glibc\",\"version\":\"2.39-1.fc40\","
                "\"osCpe\":\"cpe:/o:fedoraproject:fedora:40\"}";
        static const char *const none[] = { "",
                                            "{",
                                            "[]",
                                            "{\"name\":1,\"version\":\"1\"}",
                                            "{\"name\":\"x\"}",
                                            "[[[[[[[[[[[[1]]]]]]]]]]]]" };
        check(find_one(s, LIBC, note, 0), "glibc", "2.39-1.fc40", "");
        for (size_t i = 0; i < ELEMENTSOF(none); i++)
                check(find_one(s, LIBC, none[i], 0), "libc6:amd64", "2.36-9", "");
}

static void a_commit_is_one_in_quotes_behind_a_name_with_git(void **state) {
        static const struct {
                const char *text, *git;
        } cases[] = {
                { "git_version = '" HASH "'", HASH },
                { "x = 1\n__xla_gitrev__ = \"abcdef0\"\n__torch_gitrev__ = '1234567'\n",
                  "abcdef0" },
                { "git_version: str = 'abcdef0'", "abcdef0" },
                { "git_version = 'abcdef'", "" },
                { "git_version = '" HASH "0'", "" },
                { "git_version = 'abcdefg'", "" },
                { "git_version = 'abcdef0", "" },
                { "git_version = abcdef0", "" },
                { "git_version =", "" },
                { "git_version = '", "" },
                { "version = 'abcdef0git'", "" },
                { "", "" },
        };
        for (size_t i = 0; i < ELEMENTSOF(cases); i++) {
                Version v = { 0 };
                version_parse_git(cases[i].text, strlen(cases[i].text), &v);
                assert_string_equal(v.git, cases[i].git);
        }
}

static void resize(const Scratch *s, const char *path, off_t bytes) {
        int fd = openat(s->fd, path, O_WRONLY | O_CREAT | O_CLOEXEC, 0644);
        assert_true(fd >= 0 && ftruncate(fd, bytes) == 0 && close(fd) == 0);
}

static void lists_without_end_cost_time_and_nothing_else(void **state) {
        const Scratch *s = *state;
        uint64_t begun = clock_cpu_usec();
        resize(s, "var/lib/dpkg/info/aaa.list", 100 * (off_t)MIB); /* one line of NULs */
        resize(s, SITE "/torch-2.1.2.dist-info/METADATA", 1000 * (off_t)MIB);
        assert_int_equal(symlinkat("loop.list", s->fd, "var/lib/dpkg/info/loop.list"), 0);
        assert_int_equal(symlinkat("/etc/passwd", s->fd, "var/lib/dpkg/info/passwd.list"), 0);
        assert_int_equal(mkfifoat(s->fd, "var/lib/dpkg/info/fifo.list", 0644), 0);
        check(find_one(s, LIBC, "", 0), "libc6:amd64", "2.36-9", "");
        check(find_one(s, TORCH, "", 0), "torch", "2.1.2", HASH);
        assert_true(clock_cpu_usec() - begun < 5 * USEC_PER_SEC);
}

static void time_and_names_have_a_limit(void **state) {
        const Scratch *s = *state;
        char name[64];
        VersionItem item = { .path = "/usr/lib/absent.so", .note = "" };
        assert_int_equal(versions_find(&item, 1, open_below, (void *)s, 0), -ETIMEDOUT);
        for (int i = 0; i < 70000; i++) {
                (void)snprintf(name, sizeof name, "var/lib/dpkg/info/%d.x", i);
                int fd = openat(s->fd, name, O_WRONLY | O_CREAT | O_CLOEXEC, 0644);
                assert_true(fd >= 0 && close(fd) == 0);
        }
        check(find_one(s, item.path, "", -ETIMEDOUT), "", "", "");
}

static unsigned n_texts; /* requested */

static int open_counted(const FileQuery *q, FileReply *ret, const char **ret_place,
                        void *userdata) {
        n_texts += q->kind == FILE_OF_TEXT;
        return open_below(q, ret, ret_place, userdata);
}

static void of_many_lists_those_with_a_like_name_come_first(void **state) {
        VersionItem item = { .path = LIBC, .note = "" };
        char name[64];
        for (int i = 0; i < 200; i++) {
                (void)snprintf(name, sizeof name, "var/lib/dpkg/info/a%d.list", i);
                make_file(*state, name, "/.\n");
        }
        uint64_t end_usec = clock_cpu_usec() + 5 * USEC_PER_SEC;
        n_texts = 0;
        assert_int_equal(versions_find(&item, 1, open_counted, *state, end_usec), 0);
        check(item.version, "libc6:amd64", "2.36-9", "");
        assert_true(n_texts <= 3); /* of libc6 for two architectures, and status */
}

static int open_late(const FileQuery *q, FileReply *ret, const char **ret_place, void *userdata) {
        (void)usleep(200 * USEC_PER_MSEC);
        return open_below(q, ret, ret_place, userdata);
}

static void a_busy_machine_costs_none_of_the_time(void **state) {
        VersionItem item = { .path = LIBC, .note = "" };
        uint64_t end_usec = clock_cpu_usec() + 150 * USEC_PER_MSEC;
        assert_int_equal(versions_find(&item, 1, open_late, *state, end_usec), 0);
        check(item.version, "libc6:amd64", "2.36-9", "");
}

static void many_texts_have_a_limit(void **state) {
        const Scratch *s = *state;
        char name[64];
        for (int i = 0; i < 40; i++) {
                (void)snprintf(name, sizeof name, "var/lib/dpkg/info/%d.list", i);
                resize(s, name, 16 * (off_t)MIB);
        }
        check(find_one(s, "/usr/lib/absent.so", "", -ETIMEDOUT), "", "", "");
}

static void a_line_with_a_nul_is_no_path(void **state) {
        const Scratch *s = *state;
        int fd = openat(s->fd, "var/lib/dpkg/info/nul.list", O_WRONLY | O_CREAT | O_CLOEXEC, 0644);
        assert_true(fd >= 0 && write(fd, "/usr/lib/x.so\0/x\n\n/usr/lib/x", 29) == 29);
        assert_int_equal(close(fd), 0);
        check(find_one(s, "/usr/lib/x.so", "", 0), "", "", "");
}

static void components_are_known_by_the_names_of_files(void **state) {
        static const char *const cases[][2] = {
                { "/opt/aws/neuron/lib/libnrt.so.2.20.22.0", "libnrt" },
                { "/x/libneuronxla/libneuronpjrt.so", "jax/xla" },
                { "/x/jaxlib/xla_extension.so", "jax/xla" },
                { "/x/jaxlib/libjax_common.so", "jax/xla" },
                { "/opt/aws/neuron/lib/libnccom.so.2", "collectives" },
                { "/opt/aws/neuron/lib/libnccom-net.so", "collectives" },
                { "/opt/amazon/ofi-nccl/lib/libnccl-net.so", "collectives" },
                { "/opt/amazon/efa/lib/libfabric.so.1", "efa" },
                { "/x/torch/lib/libtorch_cpu.so", "torch" },
                { "/x/torch_neuronx/lib/libtorchneuron.so", "torch" },
                { "/x/_XLAC.cpython-310-x86_64-linux-gnu.so", "torch" },
                { "/usr/bin/python3.10", "python" },
                { "/usr/lib/libpython3.11.so.1.0", "python" },
                { "/usr/lib/libc.so.6", "libc" },
                { "/usr/lib/libc-2.26.so", "libc" },
                { "/usr/lib/libdl-2.26.so", "libc" },
                { "/usr/lib/ld-linux-x86-64.so.2", "libc" },
                { "[vdso]", "kernel" },
        };
        for (size_t i = 0; i < ELEMENTSOF(cases); i++)
                assert_string_equal(verdict_component(cases[i][0]), cases[i][1]);
        assert_null(verdict_component("/home/x/libown.so"));
}

int main(void) {
        const struct CMUnitTest tests[] = {
                cmocka_unit_test_setup_teardown(all_lists_of_a_root_are_used, setup,
                                                scratch_teardown),
                cmocka_unit_test_setup_teardown(the_package_note_of_the_file_comes_first, setup,
                                                scratch_teardown),
                cmocka_unit_test(components_are_known_by_the_names_of_files),
                cmocka_unit_test(a_commit_is_one_in_quotes_behind_a_name_with_git),
                cmocka_unit_test_setup_teardown(lists_without_end_cost_time_and_nothing_else, setup,
                                                scratch_teardown),
                cmocka_unit_test_setup_teardown(time_and_names_have_a_limit, setup,
                                                scratch_teardown),
                cmocka_unit_test_setup_teardown(of_many_lists_those_with_a_like_name_come_first,
                                                setup, scratch_teardown),
                cmocka_unit_test_setup_teardown(a_busy_machine_costs_none_of_the_time, setup,
                                                scratch_teardown),
                cmocka_unit_test_setup_teardown(many_texts_have_a_limit, setup, scratch_teardown),
                cmocka_unit_test_setup_teardown(a_line_with_a_nul_is_no_path, setup,
                                                scratch_teardown),
        };
        return cmocka_run_group_tests(tests, NULL, NULL);
}
