#include "collectors/host/cgroup.h"
#include "collectors/host/procfs.h"

#include <sched.h>
#include <sys/wait.h>

#include "tests/collectors/host/test_procfs_records.h"
#include "tests/harness/skip.h"

static void a_command_name_may_hold_anything(void **state) {
        static const char text[] =
                "42 (a) S (b) R) Z 7 42 42 0 -1 2097216 0 0 0 0 1 2 3 4 20 0 9 0 123456789 0 0 0\n";
        ProcStat s;
        assert_true(procfs_parse_stat(text, sizeof text - 1, &s));
        assert_string_equal(s.comm, "a) S (b) R");
        assert_int_equal(s.state, 'Z');
        assert_int_equal(s.pid, 42);
        assert_int_equal(s.ppid, 7);
        assert_true(s.flags & PROCFS_FLAG_KTHREAD);
        assert_int_equal(s.start_ticks, 123456789);
        for (size_t n = 0; n < sizeof text - 12; n++) /* up to the start time's first digits */
                if (procfs_parse_stat(text, n, &s))
                        assert_true(s.start_ticks < 123456789);
}

static void a_line_of_maps_is_parsed(void **state) {
        static const char line[] = "7f10a000-7f10b000 r-xp 00001000 fd:02 1234567    /opt/my "
                                   "libs/libnrt.so.1 (deleted)";
        static const char *const broken[] = { "", "x", "7f10a000-7f10b000 r-x", "0-1 r-xp 0 0:0 x",
                                              "0-1 r-xp 0 0:0 99999999999999999999" };
        ProcMap m;
        assert_true(procfs_parse_map(line, sizeof line - 1, &m));
        assert_int_equal(m.inode, 1234567);
        assert_true(m.is_deleted);
        assert_int_equal(m.n_path, strlen("/opt/my libs/libnrt.so.1"));
        assert_memory_equal(m.path, "/opt/my libs/libnrt.so.1", m.n_path);
        for (size_t i = 0; i < ELEMENTSOF(broken); i++)
                assert_false(procfs_parse_map(broken[i], strlen(broken[i]), &m));
        assert_true(procfs_parse_map("0-1000 rw-p 00000000 00:00 0 ", 29, &m));
        assert_int_equal(m.n_path, 0);
}

#define HEX64 "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"

static void a_cgroup_names_pod_container_and_job(void **state) {
        static const struct {
                const char *text, *container, *runtime, *pod, *job, *step;
        } cases[] = {
                { "0::/kubepods.slice/kubepods-burstable.slice/"
                  "kubepods-burstable-pod12345678_1234_1234_1234_123456789abc.slice/"
                  "cri-containerd-" HEX64 ".scope\n",
                  HEX64, "cri-containerd", "12345678-1234-1234-1234-123456789abc", "", "" },
                { "4:memory:/kubepods/besteffort/pod12345678-1234-1234-1234-123456789abc/" HEX64
                  "\n",
                  HEX64, "", "12345678-1234-1234-1234-123456789abc", "", "" },
                { "0::/kubepods.slice/kubepods-pod0123456789abcdef0123456789abcdef.slice/"
                  "crio-" HEX64 ".scope",
                  HEX64, "crio", "0123456789abcdef0123456789abcdef", "", "" },
                { "0::/docker/" HEX64 "\n", HEX64, "docker", "", "", "" },
                { "0::/system.slice/docker-" HEX64 ".scope\n", HEX64, "docker", "", "", "" },
                { "11:devices:/kubepods-burstable-pod12345678_1234_1234_1234_123456789abc.slice:"
                  "cri-containerd:" HEX64 "\n",
                  HEX64, "cri-containerd", "12345678-1234-1234-1234-123456789abc", "", "" },
                { "0::/libpod_parent/libpod-" HEX64 "/container\n", HEX64, "libpod", "", "", "" },
                { "0::/system.slice/slurmstepd.scope/job_4711/step_0/user/task_3\n", "", "", "",
                  "4711", "0" },
        };
        CgroupContainer c;
        for (size_t i = 0; i < ELEMENTSOF(cases); i++) {
                assert_true(cgroup_parse(cases[i].text, strlen(cases[i].text), &c));
                assert_string_equal(c.container_id, cases[i].container);
                assert_string_equal(c.runtime, cases[i].runtime);
                assert_string_equal(c.pod_uid, cases[i].pod);
                assert_string_equal(c.slurm_job, cases[i].job);
                assert_string_equal(c.slurm_step, cases[i].step);
        }
        static const char *const none[] = { "", "0::/user.slice/user-1000.slice\n",
                                            "0::/podabc/kubepods-podx\n",
                                            "0::/docker/" HEX64 "0g\n" };
        for (size_t i = 0; i < ELEMENTSOF(none); i++)
                assert_false(cgroup_parse(none[i], strlen(none[i]), &c));
}

static void a_recycled_pid_is_another_process(void **state) {
        Fake *f = *state;
        StrBuf b = STRBUF_INIT;
        Proc p;
        fake_process(f, 100, "train", 5000);
        assert_int_equal(procfs_open(&p, f->proc_root, 100, 4999), PROCFS_E_REPLACED);
        assert_int_equal(procfs_open(&p, f->proc_root, 101, 0), PROCFS_E_GONE);
        assert_int_equal(procfs_open(&p, f->proc_root, 100, 5000), 0);
        assert_int_equal(procfs_check(&p), 0);
        fake_stat(f, 100, "other", 'S', 6000);
        assert_int_equal(procfs_check(&p), PROCFS_E_REPLACED);
        assert_int_equal(procfs_read(&p, (ProcFile){ "wchan", 10 }, &b, NULL), PROCFS_E_NO_FILE);
        strbuf_done(&b);
        procfs_close(&p);
}

static void a_file_is_read_up_to_its_bound(void **state) {
        Fake *f = *state;
        StrBuf b = STRBUF_INIT;
        bool is_cut;
        Proc p;
        fake_process(f, 100, "train", 1);
        fake_text(f, "proc/100/environ", "0123456789");
        assert_int_equal(procfs_open(&p, f->proc_root, 100, 0), 0);
        assert_int_equal(procfs_read(&p, (ProcFile){ "environ", 10 }, &b, &is_cut), 0);
        assert_false(is_cut);
        strbuf_clear(&b);
        assert_int_equal(procfs_read(&p, (ProcFile){ "environ", 9 }, &b, &is_cut), 0);
        assert_true(is_cut);
        assert_int_equal(b.n, 9);
        strbuf_done(&b);
        procfs_close(&p);
}

static void a_process_that_has_ended_is_gone_though_its_directory_is_still_held(void **state) {
        pid_t pid = fork();
        Proc p;
        if (pid == 0) {
                (void)pause();
                _exit(0);
        }
        assert_int_equal(procfs_open(&p, "/proc", pid, 0), 0);
        assert_int_equal(p.stat.ppid, getpid());
        assert_false(procfs_is_zombie(&p));
        assert_int_equal(kill(pid, SIGKILL), 0);
        siginfo_t info;
        assert_int_equal(waitid(P_PID, (id_t)pid, &info, WEXITED | WNOWAIT), 0);
        Proc zombie;
        assert_int_equal(procfs_open(&zombie, "/proc", pid, p.stat.start_ticks), 0);
        assert_true(procfs_is_zombie(&zombie));
        assert_true(procfs_root(&zombie) < 0);
        assert_int_equal(waitpid(pid, NULL, 0), pid);
        assert_int_equal(procfs_check(&p), PROCFS_E_GONE);
        StrBuf b = STRBUF_INIT;
        assert_int_equal(procfs_read(&p, (ProcFile){ "status", 100 }, &b, NULL), PROCFS_E_GONE);
        strbuf_done(&b);
        procfs_close(&p);
        procfs_close(&zombie);
}

static void links_of_a_foreign_root_stay_inside(void **state) {
        Fake *f = *state;
        char path[PATH_MAX];
        struct stat st, secret;
        fake_text(f, "secret", "outside");
        fake_text(f, "root/etc/inside", "inside");
        fake_link(f, "root/abs", "/etc/inside");
        fake_link(f, "root/up", "../../../../etc/inside");
        fake_link(f, "root/out", "../secret");
        fake_link(f, "root/loop", "loop");
        fake_path(f, path, "secret");
        assert_int_equal(stat(path, &secret), 0);
        fake_link(f, "root/outabs", path);
        fake_path(f, path, "root/fifo");
        assert_int_equal(mkfifo(path, 0644), 0);
        fake_path(f, path, "root");
        int root_fd = open(path, O_PATH | O_DIRECTORY | O_CLOEXEC);
        static const char *const inside[] = { "/etc/inside", "/abs", "/up", "/etc/../etc/./inside",
                                              "//abs" };
        for (size_t i = 0; i < ELEMENTSOF(inside); i++) {
                int fd = procfs_root_open(root_fd, inside[i], O_RDONLY, &st);
                assert_true(fd >= 0);
                assert_true(st.st_ino != secret.st_ino);
                (void)close(fd);
        }
        assert_int_equal(procfs_root_open(root_fd, "/out", O_RDONLY, NULL), -ENOENT);
        assert_int_equal(procfs_root_open(root_fd, "/outabs", O_RDONLY, NULL), -ENOENT);
        assert_int_equal(procfs_root_open(root_fd, "/loop", O_RDONLY, NULL), -ELOOP);
        assert_int_equal(procfs_root_open(root_fd, "/fifo", O_RDONLY, NULL), -EBADF);
        assert_int_equal(procfs_root_open(root_fd, "/etc", O_RDONLY, NULL), -EBADF);
        assert_int_equal(procfs_root_open(root_fd, "/etc/inside/x", O_RDONLY, NULL), -ENOTDIR);
        int dir_fd = procfs_root_open(root_fd, "/etc", O_RDONLY | O_DIRECTORY, NULL);
        assert_true(dir_fd >= 0);
        (void)close(dir_fd);
        (void)close(root_fd);
}

int main(void) {
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(a_command_name_may_hold_anything),
                cmocka_unit_test(a_line_of_maps_is_parsed),
                cmocka_unit_test(a_cgroup_names_pod_container_and_job),
                cmocka_unit_test_setup_teardown(a_recycled_pid_is_another_process, fake_setup,
                                                fake_teardown),
                cmocka_unit_test_setup_teardown(a_file_is_read_up_to_its_bound, fake_setup,
                                                fake_teardown),
                cmocka_unit_test(
                        a_process_that_has_ended_is_gone_though_its_directory_is_still_held),
                cmocka_unit_test_setup_teardown(links_of_a_foreign_root_stay_inside, fake_setup,
                                                fake_teardown),
        };
        return cmocka_run_group_tests(tests, NULL, NULL);
}
