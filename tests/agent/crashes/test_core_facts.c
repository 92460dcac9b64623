/* Whose core a file is: by its name, its first notes; and which job it was of. */
#include "tests/harness/unit.h"

#include <elf.h>
#include <fcntl.h>
#include <jansson.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/procfs.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "agent/crashes/core_facts.h"
#include "tests/harness/skip.h"
#include "tests/lib/base/scratch.h"

#define BOOT "0123456789abcdef0123456789abcdef"

static void names_of_systemd_are_read_and_others_are_not(void **state) {
        CrashedProcess p;
        (void)state;
        assert_true(
                core_name_parse("core.python3\\x2e11.1000." BOOT ".4711.1779859295000000.zst", &p));
        assert_int_equal(p.pid, 4711);
        assert_string_equal(p.command, "python3.11");
        assert_true(p.last_usec == UINT64_C(1779859295000000));
        assert_true(core_name_parse("core.a.0." BOOT ".1.1779859295", &p));
        assert_true(p.last_usec == UINT64_C(1779859295000000));
        static const char *const others[] = { "core.4711",
                                              "core",
                                              "core.",
                                              "core.a.4711.1779859295",
                                              "core.a.0." BOOT ".0.1",
                                              "core.a.0." BOOT ".x.1",
                                              "core.a.0.boot.1.1",
                                              "core..0." BOOT ".1.18446744073709551615",
                                              ".zst" };
        for (size_t i = 0; i < ELEMENTSOF(others); i++)
                assert_false(core_name_parse(others[i], &p));
}

static void names_of_the_documented_pattern_have_the_pid_on_the_node(void **state) {
        CrashedProcess p;
        (void)state;
        assert_true(core_pattern_name_parse("core.python3.11.4711.1779859295", &p));
        assert_int_equal(p.pid, 4711);
        assert_string_equal(p.command, "python3.11");
        assert_true(p.first_usec == UINT64_C(1779859295000000) && p.last_usec == p.first_usec);
        static const char *const others[] = {
                "core.4711.1779859295",       "core",           "core.python3",
                "core.python3.4711",          "core.a.0.1",     "core.a.4711.x",
                "a.core.4711.1779859295",     ".4711.1",        "core.a.4711.1779859295.zst",
                "core.a.99999999.1779859295", "core.a.4711.11",
        };
        for (size_t i = 0; i < ELEMENTSOF(others); i++)
                assert_false(core_pattern_name_parse(others[i], &p));
}

typedef struct Head {
        Elf64_Ehdr h;
        Elf64_Phdr p;
        struct {
                Elf64_Nhdr h;
                char name[8];
                unsigned char info[sizeof(prpsinfo_t)];
        } note;
} Head;

static void set_process(Head *x, pid_t pid) {
        prpsinfo_t info = { .pr_pid = pid, .pr_fname = "crasher" };
        memcpy(x->note.info, &info, sizeof info); /* not aligned there */
}

static Head make_head(void) {
        Head x = { .h = { .e_ident = { ELFMAG0, 'E', 'L', 'F', ELFCLASS64, ELFDATA2LSB },
                          .e_type = ET_CORE,
                          .e_machine = EM_X86_64,
                          .e_phoff = offsetof(Head, p),
                          .e_phentsize = sizeof(Elf64_Phdr),
                          .e_phnum = 1 },
                   .p = { .p_type = PT_NOTE,
                          .p_offset = offsetof(Head, note),
                          .p_filesz = sizeof x.note },
                   .note = { .h = { 5, sizeof(prpsinfo_t), NT_PRPSINFO }, .name = "CORE" } };
        set_process(&x, 4711);
        return x;
}

static bool parse(const Head *x, size_t n, CrashedProcess *p) {
        *p = (CrashedProcess){ 0 };
        _cleanup_close_ int fd = memfd_create("core", MFD_CLOEXEC);
        assert_int_equal(write(fd, x, n), n);
        return core_head_read(fd, p);
}

static void the_first_note_names_the_process_wherever_the_file_is_cut(void **state) {
        CrashedProcess p;
        Head x = make_head();
        (void)state;
        assert_true(parse(&x, sizeof x, &p));
        assert_int_equal(p.pid, 4711);
        assert_string_equal(p.command, "crasher");
        for (size_t n = 1; n < offsetof(Head, note.info) + sizeof x.note.info; n++)
                assert_false(parse(&x, n, &p));
}

static void offsets_beyond_the_file_are_nothing(void **state) {
        CrashedProcess p;
        (void)state;
        for (unsigned i = 0; i < 6; i++) {
                Head x = make_head();
                if (i == 0)
                        x.h.e_phoff = UINT64_MAX - 8;
                else if (i == 1)
                        x.p.p_offset = UINT64_MAX;
                else if (i == 2)
                        x.note.h.n_namesz = UINT32_MAX;
                else if (i == 3)
                        x.note.h.n_descsz = UINT32_MAX;
                else if (i == 4)
                        x.h.e_ident[EI_CLASS] = ELFCLASS32;
                else
                        set_process(&x, -1);
                assert_false(parse(&x, sizeof x, &p));
        }
}

static void a_core_of_another_name_is_read(void **state) {
        const Scratch *scratch = *state;
        char path[PATH_MAX + 16];
        CoreFacts f = { 0 };
        char *const none[] = { NULL };
        (void)snprintf(path, sizeof path, "%s/core.x", scratch->path);
        _cleanup_close_ int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
        assert_true(fd >= 0);
        Head x = make_head();
        assert_int_equal(write(fd, &x, sizeof x), sizeof x);
        core_facts_read(fd, path, none, &f);
        assert_int_equal(f.process.pid, 4711);
        assert_false(f.is_of_systemd);
        assert_true(f.process.last_usec > 0);
        core_facts_done(&f);
}

/* Else it would quote what the kernel logged of another user's process. */
static void a_user_cannot_name_a_process_of_another_time(void **state) {
        const Scratch *scratch = *state;
        char *const none[] = { NULL };
        for (int is_old = 0; is_old < 2; is_old++) {
                char path[PATH_MAX + 64];
                CoreFacts f = { 0 };
                const time_t now = time(NULL), then = now - (is_old ? 7200 : 0);
                (void)snprintf(path, sizeof path, "%s/core.python3.815.%lld", scratch->path,
                               (long long)then);
                int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
                Head x = make_head();
                assert_int_equal(write(fd, &x, sizeof x), sizeof x);
                if (fchown(fd, 2001, 2001) < 0)
                        SKIP_BECAUSE("needs root: the file is given to another user");
                assert_int_equal(futimens(fd, (struct timespec[]){ { then, 0 }, { then, 0 } }), 0);
                core_facts_read(fd, path, none, &f);
                assert_int_equal(f.process.pid, is_old ? 4711 : 815);
                assert_true(f.process.last_usec + USEC_PER_MINUTE >= (uint64_t)now * USEC_PER_SEC);
                core_facts_done(&f);
                (void)close(fd);
        }
}

static void the_job_has_allowed_variables_alone(void **state) {
        char *const patterns[] = { (char *)"NEURON_*", (char *)"RANK", NULL };
        (void)state;
        char *text = core_job_compose("RANK=3\nWORLD_SIZE=64\nSECRET_TOKEN=abc\nHOME=/root\n"
                                      "NEURON_RT_X=1\nNEURON_RT_X=2\nTORCHELASTIC_RUN_ID=run-7\n"
                                      "LOCAL_RANK=3",
                                      "/kubepods/besteffort", patterns);
        assert_non_null(text);
        json_t *v = json_loads(text, JSON_REJECT_DUPLICATES, NULL);
        const char *source, *x;
        int rank;
        assert_non_null(v);
        assert_int_equal(json_unpack(v, "{s:s,s:i,s:{s:s}}", "source", &source, "rank", &rank,
                                     "environment", "NEURON_RT_X", &x),
                         0);
        assert_string_equal(source, "torchrun");
        assert_int_equal(rank, 3);
        assert_string_equal(x, "1");
        assert_null(strstr(text, "abc"));
        assert_null(strstr(text, "/root"));
        json_decref(v);
        free(text);
        assert_null(core_job_compose(NULL, NULL, patterns));
        assert_null(core_job_compose("HOME=/root", NULL, patterns));
}

#define TEST(f) cmocka_unit_test_setup_teardown(f, scratch_setup, scratch_teardown)

int main(void) {
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(names_of_the_documented_pattern_have_the_pid_on_the_node),
                cmocka_unit_test(names_of_systemd_are_read_and_others_are_not),
                cmocka_unit_test(the_first_note_names_the_process_wherever_the_file_is_cut),
                cmocka_unit_test(offsets_beyond_the_file_are_nothing),
                TEST(a_core_of_another_name_is_read),
                TEST(a_user_cannot_name_a_process_of_another_time),
                cmocka_unit_test(the_job_has_allowed_variables_alone),
        };
        return cmocka_run_group_tests(tests, NULL, NULL);
}
