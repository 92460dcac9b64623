#include <dlfcn.h>
#include <elf.h>
#include <link.h>
#include <sched.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>

#include "collectors/host/elf_notes.h"
#include "lib/base/digest.h"
#include "tests/collectors/host/test_procfs_records.h"
#include "tests/harness/skip.h"

#define HEX_SIZE (2 * ELF_BUILD_ID_MAX + 1)

static void everything_of_a_process_is_reported(void **state) {
        Fake *f = *state;
        fake_process(f, 100, "train", 5000);
        fake_text(f, "proc/100/status",
                  "Name:\ttrain\nState:\tS (sleeping)\nNSpid:\t100\t7\nVmRSS:\t  1234 "
                  "kB\nUnknownLine:\tx\n");
        fake_text(f, "proc/100/limits", "Limit  Soft\nMax open files 1024\n");
        fake_text(f, "proc/100/cgroup", "0::/user.slice\n");
        fake_text(f, "proc/100/oom_score", "667\n");
        fake_link(f, "proc/100/exe", "/usr/bin/python3");
        fake_link(f, "proc/100/cwd", "/home/alice");
        fake_link(f, "proc/100/ns/pid", "pid:[4026532000]");
        fake_link(f, "proc/100/fd/9", "/dev/neuron2");
        fake_text(f, "proc/100/maps",
                  "1000-2000 r-xp 00000000 00:01 5 /opt/aws/neuron/lib/libnrt.so.1 (deleted)\n"
                  "2000-3000 r-xp 00000000 00:01 5 /opt/aws/neuron/lib/libnrt.so.1 "
                  "(deleted)\n3000-4000 rw-p 0 0:0 0 [heap]\n");
        fake_text(f, "proc/100/task/100/stat",
                  "100 (train) S 1 100 100 0 -1 4194304 1 2 3 4 5 6 7 8 20 0 3 0 5000 1 1 1\n");
        fake_text(f, "proc/100/task/100/wchan", "futex_wait_queue");
        fake_text(f, "proc/100/task/100/stack",
                  "[<0>] futex_wait_queue+0x60/0x90\n[<0>] do_futex+0x1\n");
        fake_text(f, "proc/100/task/100/children", "101 102 ");
        fake_text(
                f, "proc/100/task/103/stat",
                "103 (nrt worker) D 1 100 100 0 -1 4194304 1 2 3 4 5 6 7 8 20 0 3 0 5000 1 1 1\n");
        fake_process(f, 101, "neuron-dump", 6000);
        fake_process(f, 102, "loader", 6001);
        fake_process(f, 200, "monitor", 4000);
        fake_link(f, "proc/200/fd/4", "/dev/neuron2");
        fake_write(f, "proc/200/environ", "SLURM_PROCID=5\0SLURM_JOB_ID=99\0", 32);
        fake_process(f, 300, "elsewhere", 4000);
        fake_link(f, "proc/300/fd/4", "/dev/neuron3");
        fake_order_process(f, 100, 5000);
        assert_int_equal(fake_collect(f, collect_process), 0);
        json_t *status = json_object_get(fake_find_pid(f, 100, "status"), "status");
        assert_string_equal(string_of(status, "NSpid"), "100\t7");
        assert_string_equal(string_of(status, "VmRSS"), "1234 kB");
        assert_null(json_object_get(status, "UnknownLine"));
        json_t *place = fake_find_pid(f, 100, "place");
        assert_string_equal(string_of(place, "exe"), "/usr/bin/python3");
        assert_string_equal(string_of(place, "oom_score"), "667");
        assert_string_equal(string_of(json_object_get(place, "namespaces"), "pid"),
                            "pid:[4026532000]");
        json_t *devices = fake_find_pid(f, 100, "devices"),
               *others = json_object_get(devices, "also_held_by");
        assert_int_equal(json_integer_value(json_array_get(json_object_get(devices, "devices"), 0)),
                         2);
        assert_int_equal(json_array_size(others), 1);
        assert_string_equal(string_of(json_array_get(others, 0), "comm"), "monitor");
        json_t *neighbour = fake_find_pid(f, 100, "neighbour");
        assert_int_equal(json_integer_value(json_object_get(neighbour, "neighbour_pid")), 200);
        assert_string_equal(string_of(json_object_get(neighbour, "job"), "source"), "slurm");
        json_t *children = json_object_get(fake_find_pid(f, 100, "children"), "children");
        assert_int_equal(json_array_size(children), 1);
        assert_string_equal(string_of(json_array_get(children, 0), "comm"), "loader");
        json_t *thread = fake_find(f, "about", "thread", 0),
               *second = fake_find(f, "about", "thread", 1);
        assert_string_equal(string_of(thread, "wchan"), "futex_wait_queue");
        assert_int_equal(json_array_size(json_object_get(thread, "kernel_stack")), 2);
        assert_string_equal(string_of(second, "name"), "nrt worker");
        assert_string_equal(string_of(second, "state"), "D");
        assert_string_equal(string_of(second, "wchan_unavailable"), "not there on this kernel");
        assert_string_equal(string_of(second, "kernel_stack_unavailable"),
                            "not there on this kernel");
        assert_true(json_is_null(json_object_get(second, "kernel_stack")));
        json_t *libraries = json_object_get(fake_find_pid(f, 100, "maps"), "libraries");
        assert_int_equal(json_array_size(libraries), 1);
        assert_true(json_is_true(json_object_get(json_array_get(libraries, 0), "deleted")));
        assert_true(fake_has_output(f, "3000-4000 rw-p 0 0:0 0 [heap]\n")); /* the raw files */
        assert_true(fake_has_output(f, "Max open files 1024\n"));
        assert_string_equal(string_of(fake_find_pid(f, 100, "end"), "outcome"), "complete");
}

static void secrets_of_command_and_environment_stay(void **state) {
        Fake *f = *state;
        static const char environment[] = "NEURON_RT_VISIBLE_CORES=0-3\0AWS_SECRET_ACCESS_KEY="
                                          "SECRETaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa\0HF_TOKEN=hf_"
                                          "SECRETbbbbbbbbbbbbbbbbbbbbbbbb\0"
                                          "NEURON_CC_FLAGS=--token=SECRETccccccc "
                                          "--model-type=transformer\0XLA_PASSWORD="
                                          "SECRETddd\0NEURON_URL=https://bob:SECRETeee@host/\0"
                                          "PATH=/SECRETfff\0RANK=3\0notavariable\0=SECRETggg\0";
        static const char cmdline[] = "python3\0--api-key\0SECRETone1111\0--password="
                                      "SECRETtwo2222\0TOKEN=SECRETthree33\0--epochs\0"
                                      "10\0";
        fake_process(f, 100, "train", 5000);
        fake_write(f, "proc/100/environ", environment, sizeof environment - 1);
        fake_write(f, "proc/100/cmdline", cmdline, sizeof cmdline - 1);
        fake_text(f, "proc/100/maps",
                  "1000-2000 r-xp 00000000 00:01 5 /tmp/token=SECRETmaps1234/libnrt.so\n");
        fake_order_process(f, 100, 0);
        assert_int_equal(fake_collect(f, collect_process), 0);
        json_t *variables = json_object_get(fake_find_pid(f, 100, "environment"), "variables");
        assert_string_equal(string_of(variables, "NEURON_RT_VISIBLE_CORES"), "0-3");
        assert_string_equal(string_of(variables, "RANK"), "3");
        assert_null(json_object_get(variables, "PATH"));
        assert_true(strstr(string_of(variables, "NEURON_CC_FLAGS"), "transformer") != NULL);
        assert_true(fake_has_output(f, "--epochs"));
        if (fake_has_output(f, "SECRET"))
                fail_msg("a secret got out: %.60s", strstr(f->text, "SECRET") - 30);
}

static void a_recycled_pid_is_not_reported(void **state) {
        Fake *f = *state;
        fake_process(f, 100, "innocent", 7000);
        fake_write(f, "proc/100/cmdline", "innocent", 9);
        fake_order_process(f, 100, 5000);
        fake_order_process(f, 101, 5000);
        assert_int_equal(fake_collect(f, collect_process), 0);
        assert_int_equal(json_array_size(f->records), 2);
        assert_string_equal(string_of(fake_find_pid(f, 100, "end"), "outcome"), "replaced");
        assert_string_equal(string_of(fake_find_pid(f, 101, "end"), "outcome"), "gone");
        assert_false(fake_has_output(f, "innocent"));
}

/* Where maps never end to be read: a FIFO whose writer says nothing would do, but what is opened
 * non-blocking does not wait. So many processes that time runs out for some: each is told of, some
 * as not reached. */
static void time_that_runs_out_is_reported_of_each(void **state) {
        Fake *f = *state;
        for (int pid = 100; pid < 104; pid++) {
                fake_process(f, pid, "train", 5000);
                fake_order_process(f, pid, 5000);
        }
        f->request.timeout_usec = 0;
        assert_int_equal(fake_collect(f, collect_process), 0);
        for (int pid = 100; pid < 104; pid++)
                assert_string_equal(string_of(fake_find_pid(f, pid, "end"), "outcome"), "timeout");
}

/* A real process, in a pid namespace of its own, with the libraries of this one. */
static int in_own_namespace(void *userdata) {
        const int *pipes = userdata;
        (void)write(pipes[1], "r", 1);
        (void)pause();
        return 0;
}

static pid_t start_real(int flags) {
        static char stack[64 << 10] __attribute__((aligned(16)));
        int pipes[2];
        char ready;
        assert_int_equal(pipe2(pipes, O_CLOEXEC), 0);
        pid_t pid = clone(in_own_namespace, stack + sizeof stack, flags | SIGCHLD, pipes);
        if (pid > 0)
                assert_int_equal(read(pipes[0], &ready, 1), 1);
        (void)close(pipes[0]);
        (void)close(pipes[1]);
        return pid;
}

static void a_process_in_its_own_pid_namespace_is_known_by_both_numbers(void **state) {
        Fake *f = *state;
        char request_collectors[64];
        pid_t pid = start_real(CLONE_NEWPID);
        if (pid < 0)
                SKIP_BECAUSE("a pid namespace needs root");
        (void)snprintf(f->proc_root, sizeof f->proc_root, "/proc");
        fake_order_process(f, pid, 0);
        assert_int_equal(fake_collect(f, collect_process), 0);
        (void)snprintf(request_collectors, sizeof request_collectors, "%d\t1", pid);
        assert_string_equal(
                string_of(json_object_get(fake_find_pid(f, pid, "status"), "status"), "NSpid"),
                request_collectors);
        assert_string_equal(string_of(fake_find_pid(f, pid, "end"), "outcome"), "complete");
        assert_true(fake_has_output(f, "libc.so")); /* of the maps */
        assert_non_null(fake_find_pid(f, pid, "thread"));
        assert_int_equal(kill(pid, SIGKILL), 0);
        assert_int_equal(waitpid(pid, NULL, 0), pid);
}

static void a_zombie_is_called_one(void **state) {
        Fake *f = *state;
        siginfo_t info;
        pid_t pid = start_real(0);
        assert_true(pid > 0);
        assert_int_equal(kill(pid, SIGKILL), 0);
        assert_int_equal(waitid(P_PID, (id_t)pid, &info, WEXITED | WNOWAIT), 0);
        (void)snprintf(f->proc_root, sizeof f->proc_root, "/proc");
        fake_order_process(f, pid, 0);
        assert_int_equal(fake_collect(f, collect_process), 0);
        assert_true(json_is_true(json_object_get(fake_find_pid(f, pid, "status"), "zombie")));
        assert_true(
                json_is_null(json_object_get(fake_find_pid(f, pid, "environment"), "variables")));
        assert_true(strstr(string_of(fake_find_pid(f, pid, "environment"), "variables_unavailable"),
                           "zombie") != NULL);
        assert_string_equal(string_of(fake_find_pid(f, pid, "end"), "outcome"), "complete");
        assert_int_equal(waitpid(pid, NULL, 0), pid);
}

/* The note as the linker put it, by the program headers of what is loaded. */
static int find_own_note(struct dl_phdr_info *info, size_t size, void *userdata) {
        char *hex = userdata;
        (void)size;
        if (hex[0] != '\0' || !strstr(info->dlpi_name, "libc.so"))
                return 0;
        for (int i = 0; i < info->dlpi_phnum; i++) {
                const char *note = (const char *)info->dlpi_addr + info->dlpi_phdr[i].p_vaddr;
                const ElfW(Nhdr) *head = (const void *)note;
                if (info->dlpi_phdr[i].p_type == PT_NOTE && head->n_type == NT_GNU_BUILD_ID)
                        for (size_t k = 0; k < head->n_descsz; k++)
                                (void)snprintf(hex + 2 * k, 3, "%02x",
                                               (unsigned char)note[sizeof *head + 4 + k]);
        }
        (void)snprintf(hex + HEX_SIZE, PATH_MAX, "%s", info->dlpi_name);
        return 0;
}

static void the_build_id_is_read_from_the_file(void **state) {
        static char own[HEX_SIZE + PATH_MAX];
        char hex[HEX_SIZE];
        BuildId id = { .n = 0 };
        (void)dl_iterate_phdr(find_own_note, own);
        int fd = open(own + HEX_SIZE, O_RDONLY | O_CLOEXEC);
        if (fd < 0 || own[0] == '\0')
                SKIP_BECAUSE("this C library has no build id of its own");
        assert_int_equal(build_id_read(fd, &id), 0);
        assert_string_equal(digest_hex(id.bytes, id.n, hex), own);
        (void)close(fd);
}

static void a_broken_library_has_no_build_id(void **state) {
        const Fake *f = *state;
        BuildId id = { .n = 0 };
        Elf64_Ehdr e = { .e_phoff = 64, .e_phnum = 65535, .e_phentsize = sizeof(Elf64_Phdr) };
        memcpy(e.e_ident, ELFMAG, SELFMAG);
        e.e_ident[EI_CLASS] = ELFCLASS64;
        e.e_ident[EI_DATA] = ELFDATA2LSB;
        struct {
                Elf64_Ehdr e;
                Elf64_Phdr p;
        } bad = { .e = e,
                  .p = { .p_type = PT_NOTE, .p_offset = UINT64_MAX - 2, .p_filesz = UINT64_MAX } };
        const struct {
                const void *data;
                size_t n;
        } cases[] = { { "", 0 }, { "\177ELF", 4 }, { &e, sizeof e }, { &bad, sizeof bad } };
        for (size_t i = 0; i < ELEMENTSOF(cases); i++) {
                fake_write(f, "lib", cases[i].data, cases[i].n);
                int fd = openat(f->s->fd, "lib", O_RDONLY | O_CLOEXEC);
                assert_int_equal(build_id_read(fd, &id), -EBADMSG);
                assert_int_equal(id.n, 0);
                (void)close(fd);
        }
}

int main(void) {
        const struct CMUnitTest tests[] = {
                cmocka_unit_test_setup_teardown(everything_of_a_process_is_reported, fake_setup,
                                                fake_teardown),
                cmocka_unit_test_setup_teardown(secrets_of_command_and_environment_stay, fake_setup,
                                                fake_teardown),
                cmocka_unit_test_setup_teardown(a_recycled_pid_is_not_reported, fake_setup,
                                                fake_teardown),
                cmocka_unit_test_setup_teardown(time_that_runs_out_is_reported_of_each, fake_setup,
                                                fake_teardown),
                cmocka_unit_test_setup_teardown(
                        a_process_in_its_own_pid_namespace_is_known_by_both_numbers, fake_setup,
                        fake_teardown),
                cmocka_unit_test_setup_teardown(a_zombie_is_called_one, fake_setup, fake_teardown),
                cmocka_unit_test(the_build_id_is_read_from_the_file),
                cmocka_unit_test_setup_teardown(a_broken_library_has_no_build_id, fake_setup,
                                                fake_teardown),
        };
        return cmocka_run_group_tests(tests, NULL, NULL);
}
