/* The confinement of a collector's child as production has it: this program is executed again, as a
 * user of its own with the unit's capabilities, beside a process of another user that holds a
 * device. Needs root. */
#include <errno.h>
#include <fcntl.h>
#include <linux/openat2.h>
#include <sched.h>
#include <signal.h>
#include <spawn.h>
#include <sys/klog.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/sysmacros.h>
#include <sys/wait.h>

#include "collectors/collector_child.h"
#include "collectors/runner/probe_request.h"
#include "collectors/supervisor.h"
#include "lib/base/json_out.h"
#include "tests/collectors/fake_table.h"
#include "tests/collectors/host/test_procfs_fixture.h"
#include "tests/collectors/runner/test_unit_child.h"
#include "tests/harness/skip.h"

enum { JOB_UID = 65532, OUTPUT_MAX = 8 << 20 };
/* The second one is EINVAL to who may read the kernel log. */
enum { SYSLOG_SIZE_BUFFER = 10, SYSLOG_UNKNOWN = 99 };

/* ---- collectors that try to get out ---- */

static void tried(StrBuf *b, const char *what, long result) {
        json_out_i64(b, what, result < 0 ? errno : 0);
        if (result > 2)
                (void)close((int)result);
}

static void try_to_write(StrBuf *b, const char *root) {
        char file[PATH_MAX], new[PATH_MAX], directory[PATH_MAX];
        struct open_how how = { .flags = O_WRONLY };
        (void)snprintf(file, sizeof file, "%s/file", root);
        (void)snprintf(new, sizeof new, "%s/new", root);
        (void)snprintf(directory, sizeof directory, "%s/directory", root);
        tried(b, "read", open(file, O_RDONLY | O_CLOEXEC));
        tried(b, "overwrite", open(file, O_WRONLY | O_CLOEXEC));
        tried(b, "read and write", open(file, O_RDWR | O_CLOEXEC));
        tried(b, "truncate on opening", open(file, O_RDONLY | O_TRUNC | O_CLOEXEC));
        tried(b, "create", open(new, O_WRONLY | O_CREAT | O_CLOEXEC, 0600));
        tried(b, "create as raw files are",
              open(new, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600));
        tried(b, "file without a name", open(root, O_TMPFILE | O_RDWR | O_CLOEXEC, 0600));
        tried(b, "openat2", syscall(SYS_openat2, AT_FDCWD, file, &how, sizeof how));
        tried(b, "truncate", truncate(file, 0));
        tried(b, "rename", rename(file, new));
        tried(b, "link", link(file, new));
        tried(b, "unlink", unlink(file));
        tried(b, "mkdir", mkdir(directory, 0700));
        tried(b, "change through the raw directory",
              openat(CHILD_DIR_FD, "raw", O_WRONLY | O_CLOEXEC));
}

static int try_exec(void) {
        char *argv[] = { (char *)"/bin/true", NULL };
        pid_t pid;
        int status = 0, r = posix_spawn(&pid, argv[0], NULL, NULL, argv, NULL);
        if (r == 0)
                (void)waitpid(pid, &status, 0);
        return r == 0 ? status : r;
}

static int try_all(const CollectRequest *request, CollectOut *out) {
        _cleanup_(strbuf_done) StrBuf b = STRBUF_INIT;
        _cleanup_close_ int raw = collect_raw_file(out, "raw");
        json_out_object(&b, NULL);
        json_out_i64(&b, "raw file", raw < 0 ? raw : collect_write(out, raw, "raw\n", 4));
        try_to_write(&b, request->sysfs_root);
        json_out_i64(&b, "exec", try_exec());
        tried(&b, "signal", kill(getpid(), SIGCONT)); /* which its user may */
        tried(&b, "look for a process", kill(getpid(), 0));
        tried(&b, "connect", socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
        tried(&b, "size of the kernel log", klogctl(SYSLOG_SIZE_BUFFER, NULL, 0) < 0 ? -1 : 0);
        tried(&b, "another call about it", klogctl(SYSLOG_UNKNOWN, NULL, 0));
        json_out_end_object(&b);
        return collect_emit(out, &b);
}

static int fake_runtime_log(const CollectRequest *request, CollectOut *out) {
        return try_all(request, out);
}

static int fake_packages(const CollectRequest *request, CollectOut *out) {
        return try_all(request, out);
}

static int fake_kmsg(const CollectRequest *request, CollectOut *out) {
        return try_all(request, out);
}

static int fake_neuron_device(const CollectRequest *request, CollectOut *out) {
        _cleanup_(strbuf_done) StrBuf b = STRBUF_INIT;
        char link[64], target[PATH_MAX], file[PATH_MAX];
        (void)snprintf(link, sizeof link, "/proc/%d/fd/3", (int)request->processes[0].pid);
        (void)snprintf(file, sizeof file, "%s/file", request->sysfs_root);
        json_out_object(&b, NULL);
        tried(&b, "link of another's descriptor",
              readlink(link, target, sizeof target) < 0 ? -1 : 0);
        int node = open("/dev/null", O_WRONLY | O_NOFOLLOW | O_CLOEXEC);
        tried(&b, "write to a device", write(node, "x", 1) < 0 ? -1 : 0);
        tried(&b, "open a device", node);
        int regular = open(file, O_WRONLY | O_NOFOLLOW | O_CLOEXEC);
        tried(&b, "write to a file", write(regular, "x", 1) < 0 ? -1 : 0);
        json_out_end_object(&b);
        return collect_emit(out, &b);
}

static const CollectorTable *table_with_fakes(void) {
        static const Collector fakes[] = {
                { .name = "runtime_log", .run = fake_runtime_log },
                { .name = "packages", .run = fake_packages },
                { .name = "kmsg", .run = fake_kmsg },
                { .name = "neuron_device", .run = fake_neuron_device },
        };
        return fake_table(fakes, ELEMENTSOF(fakes));
}

/* ---- a child ---- */

/* Runs one; f->records are what it said. @return its exit code */
static int run_child(Fake *f, const char *collector, const CollectRequest *request) {
        _cleanup_(strbuf_done) StrBuf b = STRBUF_INIT;
        char *all = calloc(1, OUTPUT_MAX);
        int out[2], why[2], status = 0;
        size_t n = 0;
        ProbeRequest whole = { .collect = *request };
        assert_int_equal(probe_request_format(&whole, &b), 0);
        _cleanup_close_ int order_fd = probe_request_memfd(b.text, b.n);
        _cleanup_close_ int exe = open("/proc/self/exe", O_RDONLY | O_CLOEXEC);
        assert_int_equal(pipe2(out, O_CLOEXEC), 0);
        assert_int_equal(pipe2(why, O_CLOEXEC), 0);
        const int low[4] = { order_fd, out[1], why[1], f->raw_fd };
        int fds[4];
        for (int i = 0; i < 4; i++)
                assert_true((fds[i] = fcntl(low[i], F_DUPFD_CLOEXEC, 20)) >= 20);
        pid_t pid = fork();
        if (pid == 0)
                execute_child(collector, fds, exe);
        for (int i = 0; i < 4; i++)
                (void)close(fds[i]);
        (void)close(out[1]);
        (void)close(why[1]);
        for (ssize_t got;
             n + 1 < OUTPUT_MAX && (got = read(out[0], all + n, OUTPUT_MAX - 1 - n)) > 0;)
                n += (size_t)got;
        char reason[512] = "";
        assert_true(read(why[0], reason, sizeof reason - 1) >= 0);
        if (*reason)
                printf("# %s: %s", collector, reason);
        (void)close(out[0]);
        (void)close(why[0]);
        assert_int_equal(waitpid(pid, &status, 0), pid);
        json_decref(f->records);
        f->records = json_array();
        for (char *save = NULL, *line = strtok_r(all, "\n", &save); line;
             line = strtok_r(NULL, "\n", &save))
                (void)json_array_append_new(f->records, json_loads(line, 0, NULL));
        free(all);
        return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

/* ---- the job ---- */

/* Another user's process with an environment, and a device as descriptor 3. @return 0 when it could
 * not be made */
static pid_t start_job(void) {
        char *argv[] = { (char *)"/bin/sleep", (char *)"300", NULL };
        char *environment[] = { (char *)"RANK=5", (char *)"WORLD_SIZE=8", (char *)"LOCAL_RANK=5",
                                (char *)"TORCHELASTIC_RUN_ID=run-7", NULL };
        int pipes[2];
        char ready = 'n';
        assert_int_equal(pipe2(pipes, O_CLOEXEC), 0);
        pid_t pid = fork();
        if (pid == 0) {
                (void)prctl(PR_SET_PDEATHSIG, SIGKILL, 0, 0, 0);
                int high = fcntl(pipes[1], F_DUPFD_CLOEXEC, 10);
                bool ok = unshare(CLONE_NEWNS) == 0 &&
                          mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) == 0 &&
                          mount("tmpfs", "/dev", "tmpfs", 0, NULL) == 0 &&
                          mknod("/dev/neuron9", S_IFCHR | 0666, makedev(1, 3)) == 0;
                int device = ok ? open("/dev/neuron9", O_RDONLY) : -1;
                ok = ok && dup2(device, 3) == 3 && syscall(SYS_close_range, 4, 9, 0) == 0 &&
                     become(JOB_UID, 0) && write(high, "y", 1) == 1;
                if (ok)
                        (void)execve(argv[0], argv, environment);
                _exit(1);
        }
        (void)close(pipes[1]);
        ssize_t n = read(pipes[0], &ready, 1);
        char rest; /* its end: it was executed, or has gone */
        ssize_t end = n == 1 ? read(pipes[0], &rest, 1) : 0;
        (void)close(pipes[0]);
        return n == 1 && end == 0 && ready == 'y' ? pid : 0;
}

static void end_job(pid_t pid) {
        (void)kill(pid, SIGKILL);
        (void)waitpid(pid, NULL, 0);
}

typedef struct Room {
        Fake *fake;
        pid_t job;
        CollectProcess process;
        CollectRequest request;
        char root[PATH_MAX], devices[PATH_MAX];
} Room;

static int setup(void **state) {
        Room *m = calloc(1, sizeof *m);
        m->fake = fake_new();
        if (geteuid() == 0)
                m->job = start_job();
        fake_text(m->fake, "open/file", "as it was\n");
        fake_path(m->fake, m->root, "open");
        fake_path(m->fake, m->devices, "open");
        m->process.pid = m->job;
        m->request = (CollectRequest){ .sysfs_root = m->root,
                                       .device_directory = m->devices,
                                       .proc_root = (char *)"/proc",
                                       .timeout_usec = 20 * USEC_PER_SEC,
                                       .max_bytes = 4 * MIB,
                                       .processes = &m->process,
                                       .n_processes = 1 };
        char file[PATH_MAX];
        fake_path(m->fake, file, "open/file");
        /* Nothing but the confinement is in the way. */
        bool ok = chmod(m->fake->s->path, 0755) == 0 && chmod(m->root, 0777) == 0 &&
                  chmod(file, 0666) == 0 && fchmod(m->fake->raw_fd, 0777) == 0;
        *state = m;
        return ok ? 0 : -1;
}

static int teardown(void **state) {
        Room *m = *state;
        if (m->job > 0)
                end_job(m->job);
        fake_free(m->fake);
        free(m);
        return 0;
}

static json_t *record_of(const Fake *f, pid_t pid) {
        size_t i;
        json_t *record;
        json_array_foreach(f->records, i, record) {
                if (json_integer_value(json_object_get(record, "pid")) == pid)
                        return record;
        }
        return NULL;
}

static int answer(const Room *m, const char *what) {
        json_t *x = json_object_get(json_array_get(m->fake->records, 0), what);
        if (!json_is_integer(x))
                fail_msg("'%s' was not tried", what);
        return (int)json_integer_value(x);
}

/* ---- tests ---- */

static void jobs_of_other_users_are_named_with_their_rank(void **state) {
        Room *m = *state;
        if (m->job == 0)
                SKIP_BECAUSE("mount namespaces, mknod and other users need root");
        assert_int_equal(run_child(m->fake, "jobs", &m->request), CHILD_DONE);
        json_t *job = record_of(m->fake, m->job);
        assert_non_null(job);
        json_t *devices = json_object_get(job, "devices");
        assert_int_equal(json_integer_value(json_array_get(devices, 0)), 9);
        assert_int_equal(json_integer_value(json_object_get(json_object_get(job, "job"), "rank")),
                         5);
}

static bool has_message(const Fake *f, const char *text) {
        char *all = json_dumps(f->records, JSON_COMPACT);
        bool found = strstr(all, text) != NULL;
        free(all);
        return found;
}

static void a_process_of_another_user_is_described(void **state) {
        Room *m = *state;
        if (m->job == 0)
                SKIP_BECAUSE("another user needs root");
        assert_int_equal(run_child(m->fake, "process", &m->request), CHILD_DONE);
        assert_non_null(record_of(m->fake, m->job));
        assert_true(has_message(m->fake, "TORCHELASTIC_RUN_ID"));
        assert_true(has_message(m->fake, "\"devices\":[9]"));
        assert_true(has_message(m->fake, "\"about\":\"maps\""));
        assert_false(has_message(m->fake, "Permission denied"));
}

static void assert_confined(const Room *m) {
        static const char *const refused[] = {
                "overwrite",
                "read and write",
                "truncate on opening",
                "create",
                "create as raw files are",
                "file without a name",
                "truncate",
                "rename",
                "link",
                "unlink",
                "mkdir",
                "change through the raw directory",
                "connect",
                "size of the kernel log",
                "another call about it",
        };
        for (size_t i = 0; i < ELEMENTSOF(refused); i++)
                if (answer(m, refused[i]) != EPERM)
                        fail_msg("'%s': %s", refused[i], strerror(answer(m, refused[i])));
        assert_int_equal(answer(m, "openat2"), ENOSYS);
        assert_int_equal(answer(m, "read"), 0);
        assert_int_equal(answer(m, "look for a process"), 0);
}

static void what_reads_processes_writes_nothing_but_its_raw_files(void **state) {
        Room *m = *state;
        if (m->job == 0)
                SKIP_BECAUSE("a user of its own needs root");
        assert_int_equal(run_child(m->fake, "runtime_log", &m->request), CHILD_DONE);
        assert_confined(m);
        assert_int_equal(answer(m, "raw file"), 0);
        assert_int_equal(answer(m, "exec"), EPERM);
        assert_int_equal(answer(m, "signal"), EPERM); /* one that ends programs needs it */
}

static void what_reads_no_processes_is_in_a_landlock_domain(void **state) {
        Room *m = *state;
        if (m->job == 0)
                SKIP_BECAUSE("a user of its own needs root");
        if (syscall(SYS_landlock_create_ruleset, NULL, 0, 1 /* its version */) < 0)
                SKIP_BECAUSE("this kernel has no landlock, or has it switched off");
        assert_int_equal(run_child(m->fake, "kmsg", &m->request), CHILD_DONE);
        assert_int_equal(answer(m, "read"), 0);
        assert_int_equal(answer(m, "overwrite"), EACCES);
        assert_int_equal(answer(m, "create"), EACCES);
        assert_int_equal(answer(m, "rename"), EACCES);
        assert_int_equal(answer(m, "openat2"), EACCES);
        assert_int_equal(answer(m, "exec"), EPERM);
        assert_int_equal(answer(m, "connect"), EPERM);
}

static void only_who_reads_the_kernel_log_may_and_changes_nothing_of_it(void **state) {
        Room *m = *state;
        if (klogctl(SYSLOG_SIZE_BUFFER, NULL, 0) < 0)
                SKIP_BECAUSE("the kernel log cannot be read here: needs CAP_SYSLOG");
        assert_int_equal(run_child(m->fake, "kmsg", &m->request), CHILD_DONE);
        assert_int_equal(answer(m, "size of the kernel log"), 0);
        assert_int_equal(answer(m, "another call about it"), EPERM);
}

static void packages_may_execute_rpm_and_no_more(void **state) {
        Room *m = *state;
        if (m->job == 0)
                SKIP_BECAUSE("a user of its own needs root");
        /* It gets no raw directory, so this one is there for the test alone. */
        assert_int_equal(run_child(m->fake, "packages", &m->request), CHILD_DONE);
        assert_confined(m);
        assert_int_equal(answer(m, "exec"), 0);
        assert_int_equal(answer(m, "raw file"), -EPERM);
}

static void devices_may_be_opened_for_writing_and_files_not_be_written(void **state) {
        Room *m = *state;
        if (m->job == 0)
                SKIP_BECAUSE("a user of its own needs root");
        assert_int_equal(run_child(m->fake, "neuron_device", &m->request), CHILD_DONE);
        assert_int_equal(answer(m, "link of another's descriptor"), 0);
        assert_int_equal(answer(m, "open a device"), 0);
        assert_int_equal(answer(m, "write to a device"), 0);
        assert_int_equal(answer(m, "write to a file"), EFBIG);
}

#define TEST(f) cmocka_unit_test_setup_teardown(f, setup, teardown)

int main(int argc, char **argv) {
        if (argc == 2 && strncmp(argv[1], "--child=", 8) == 0)
                _exit(child_main(table_with_fakes(), argv[1] + 8, NULL));
        const struct CMUnitTest tests[] = {
                TEST(jobs_of_other_users_are_named_with_their_rank),
                TEST(a_process_of_another_user_is_described),
                TEST(what_reads_processes_writes_nothing_but_its_raw_files),
                TEST(what_reads_no_processes_is_in_a_landlock_domain),
                TEST(only_who_reads_the_kernel_log_may_and_changes_nothing_of_it),
                TEST(packages_may_execute_rpm_and_no_more),
                TEST(devices_may_be_opened_for_writing_and_files_not_be_written),
        };
        return cmocka_run_group_tests(tests, NULL, NULL);
}
