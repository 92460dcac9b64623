/* A real supervisor with real children: this program is executed again as both, with collectors
 * that hang, flood, crash, lie and try to get out. */
#include "collectors/supervisor.h"

#include <errno.h>
#include <fcntl.h>
#include <jansson.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>

#include "tests/harness/unit.h"

#include "collectors/collector_child.h"
#include "collectors/crash/origin/roots.h"
#include "collectors/probe_listener.h"
#include "collectors/runner/probe_request.h"
#include "collectors/snapshot.h"
#include "lib/base/cleanup.h"
#include "lib/base/fs.h"
#include "lib/base/json_out.h"
#include "tests/collectors/fake_table.h"
#include "tests/lib/base/scratch.h"

/* ---- collectors ---- */

static int emit_json(CollectOut *out, const char *json) {
        _cleanup_(strbuf_done) StrBuf b = STRBUF_INIT;
        strbuf_add(&b, json);
        return collect_emit(out, &b);
}

/* The value is in a file of the root: it can change between two looks. */
static int fake_neuron_sysfs(const CollectRequest *request, CollectOut *out) {
        _cleanup_free_ char *text = NULL, *path = NULL;
        _cleanup_(strbuf_done) StrBuf b = STRBUF_INIT;
        if (asprintf(&path, "%s/counter", request->sysfs_root) < 0)
                return -ENOMEM;
        int r = fs_read_file(AT_FDCWD, path, 4096, &text, NULL);
        if (r < 0)
                return r;
        json_out_object(&b, NULL);
        json_out_string(&b, "device", "neuron0");
        json_out_string(&b, "directory", "stats");
        json_out_object(&b, "values");
        json_out_string(&b, "failure", text);
        json_out_string(&b, "same", "1");
        json_out_end_object(&b);
        json_out_end_object(&b);
        return collect_emit(out, &b);
}

/* Hangs. */
static int fake_kmsg(const CollectRequest *request, CollectOut *out) {
        (void)request;
        (void)emit_json(out, "{\"before\":\"it hung\"}");
        (void)!write(out->fd, "{\"half", 6);
        while (pause() < 0)
                ; /* until it is killed */
        return 0;
}

/* Writes without end, whatever write(2) returns. */
static int fake_packages(const CollectRequest *request, CollectOut *out) {
        (void)request;
        for (;;)
                if (write(out->fd, "{\"x\":\"0123456789012345678901234567890123456789\"}\n", 49) <
                    0)
                        return -errno;
}

/* Crashes. */
static int fake_process(const CollectRequest *request, CollectOut *out) {
        char json[64];
        (void)snprintf(json, sizeof json, "{\"pid\":%d}", (int)request->processes[0].pid);
        (void)emit_json(out, json);
        (void)signal(SIGABRT, SIG_DFL);
        (void)raise(SIGABRT);
        return 0;
}

#define CROWD                                                                                      \
        "/crowd" /* as the root of /proc: many hold the runtime, one a device, and another when    \
                    there is a root of sysfs */

static int fake_jobs(const CollectRequest *request, CollectOut *out) {
        char json[128];
        if (strcmp(request->proc_root, CROWD) != 0)
                return -ENOSYS;
        for (int i = 1; i <= 300; i++) {
                (void)snprintf(json, sizeof json, "{\"pid\":%d,\"devices\":[]}", i);
                (void)emit_json(out, json);
        }
        if (access(request->sysfs_root, F_OK) == 0)
                (void)emit_json(out, "{\"pid\":1000,\"devices\":[1]}");
        return emit_json(out, "{\"pid\":999,\"devices\":[0]}");
}

/* Writes lines that are no records, and a raw file under a reserved name. */
static int fake_runtime_log(const CollectRequest *request, CollectOut *out) {
        (void)request;
        (void)!write(out->fd, "no json\n[1]\n{\"ok\":true}\n{\"a\":1}}\n", 33);
        _cleanup_close_ int fd = collect_raw_file(out, "nrt.log");
        if (fd < 0)
                return fd;
        _cleanup_close_ int ours = collect_raw_file(out, "snapshot.json"); /* a name of ours */
        return ours == -ENOSYS ? ours : collect_write(out, fd, "log\n", 4);
}

static int try_connect(void) {
        _cleanup_close_ int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
        return fd < 0 ? errno : 0;
}

static int try_exec(void) {
        char *argv[] = { (char *)"/bin/true", NULL };
        pid_t pid;
        int r = posix_spawn(&pid, argv[0], NULL, NULL, argv, NULL);
        if (r == 0)
                (void)waitpid(pid, NULL, 0);
        return r;
}

static int try_write(const char *root, const char *name, int flags) {
        char path[4200];
        (void)snprintf(path, sizeof path, "%s/%s", root, name);
        _cleanup_close_ int fd = open(path, flags | O_CLOEXEC, 0600);
        return fd < 0 ? errno : 0;
}

/* Tries to leave the sandbox. */
static int fake_neuron_device(const CollectRequest *request, CollectOut *out) {
        char json[256];
        (void)snprintf(json, sizeof json,
                       "{\"connect\":%d,\"exec\":%d,\"create\":%d,\"overwrite\":%d,\"read\":%d,"
                       "\"device\":%d,\"secret\":%s,\"no_new_privs\":%d}",
                       try_connect(), try_exec(),
                       try_write(request->sysfs_root, "new", O_CREAT | O_WRONLY),
                       try_write(request->sysfs_root, "counter", O_WRONLY | O_TRUNC),
                       try_write(request->sysfs_root, "counter", O_RDONLY),
                       try_write(request->device_directory, "neuron0", O_WRONLY | O_NOFOLLOW),
                       getenv("AWS_SECRET_ACCESS_KEY") ? "true" : "false",
                       prctl(PR_GET_NO_NEW_PRIVS, 0, 0, 0, 0));
        return emit_json(out, json);
}

#define NO_LOG 4711 /* as since_boot_usec: there is none to be followed */
static int fake_follow_kmsg(const CollectRequest *request, CollectOut *out) {
        if (request->since_boot_usec == NO_LOG) {
                (void)snprintf(out->why, sizeof out->why, "cannot open 'log'; do this");
                return -ENOENT;
        }
        (void)emit_json(out, "{\"line\":1}");
        (void)emit_json(out, "{\"line\":2}");
        while (pause() < 0)
                ; /* until it is killed */
        return 0;
}

static const CollectorTable *hostile_table(void) {
        static const Collector fakes[] = {
                { .name = "neuron_sysfs", .run = fake_neuron_sysfs },
                { .name = "neuron_device", .run = fake_neuron_device },
                { .name = "kmsg", .run = fake_kmsg, .follow = fake_follow_kmsg },
                { .name = "process", .run = fake_process },
                { .name = "jobs", .run = fake_jobs },
                { .name = "packages", .run = fake_packages },
                { .name = "runtime_log", .run = fake_runtime_log },
        };
        return fake_table(fakes, ELEMENTSOF(fakes));
}

/* ---- the agent's end ---- */

typedef struct Probe {
        Scratch *scratch;
        int fd, dir_fd;
        pid_t pid;
        ProbeRequest request;
        char messages[16][512];
        size_t n_messages;
} Probe;

static int setup(void **state) {
        Probe *p = calloc(1, sizeof *p);
        assert_int_equal(scratch_setup((void **)&p->scratch), 0);
        p->fd = -1;
        p->dir_fd = p->scratch->fd;
        assert_int_equal(mkdirat(p->dir_fd, "root", 0700), 0);
        assert_int_equal(mkdirat(p->dir_fd, "dev", 0700), 0);
        assert_int_equal(mkdirat(p->dir_fd, "out", 0700), 0);
        assert_int_equal(scratch_write(p->scratch, "root/counter", "10"), 0);
        assert_int_equal(scratch_write(p->scratch, "dev/neuron0", ""), 0);
        CollectRequest *c = &p->request.collect;
        assert_true(asprintf(&c->sysfs_root, "%s/root", p->scratch->path) > 0);
        assert_true(asprintf(&c->device_directory, "%s/dev", p->scratch->path) > 0);
        c->proc_root = strdup("/proc");
        c->timeout_usec = 2 * USEC_PER_SEC; /* each child is executed again, on a busy machine */
        c->max_bytes = 64 * KIB;
        c->processes = calloc(1, sizeof *c->processes);
        c->processes[0].pid = 4711;
        c->n_processes = 1;
        p->request.interval_usec = 50 * USEC_PER_MSEC;
        (void)setenv("AWS_SECRET_ACCESS_KEY", "planted", 1);
        *state = p;
        return 0;
}

static int teardown(void **state) {
        Probe *p = *state;
        if (p->fd >= 0)
                (void)close(p->fd);
        if (p->pid > 0) {
                (void)kill(p->pid, SIGKILL);
                (void)waitpid(p->pid, NULL, 0);
        }
        probe_request_done(&p->request);
        int r = scratch_teardown((void **)&p->scratch);
        free(p);
        return r;
}

static void request_collectors(Probe *p, const char *a, const char *b) {
        p->request.collectors = calloc(3, sizeof *p->request.collectors);
        p->request.collectors[0] = strdup(a);
        p->request.collectors[1] = b ? strdup(b) : NULL;
}

static void send_order(Probe *p, const char *text) {
        _cleanup_close_ int order = -1;
        _cleanup_close_ int out = openat(p->dir_fd, "out", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
        _cleanup_(strbuf_done) StrBuf b = STRBUF_INIT;
        assert_int_equal(probe_request_format(&p->request, &b), 0);
        order = probe_request_memfd(b.text, b.n);
        union {
                char data[CMSG_SPACE(2 * sizeof(int))];
                struct cmsghdr align;
        } control = { 0 };
        struct iovec io = { (void *)text, strlen(text) };
        struct msghdr m = { .msg_iov = &io,
                            .msg_iovlen = 1,
                            .msg_control = &control,
                            .msg_controllen = sizeof control };
        struct cmsghdr *c = CMSG_FIRSTHDR(&m);
        *c = (struct cmsghdr){ .cmsg_level = SOL_SOCKET,
                               .cmsg_type = SCM_RIGHTS,
                               .cmsg_len = CMSG_LEN(2 * sizeof(int)) };
        memcpy(CMSG_DATA(c), (int[]){ order, out }, 2 * sizeof(int));
        assert_int_equal(sendmsg(p->fd, &m, 0), strlen(text));
}

static void start(Probe *p) {
        int fds[2];
        char *argv[] = { (char *)"test", (char *)"--child=probe", (char *)"--own", NULL };
        posix_spawn_file_actions_t actions;
        assert_int_equal(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, fds), 0);
        assert_int_equal(posix_spawn_file_actions_init(&actions), 0);
        assert_int_equal(posix_spawn_file_actions_adddup2(&actions, fds[1], 0), 0);
        assert_int_equal(posix_spawn(&p->pid, "/proc/self/exe", &actions, NULL, argv, environ), 0);
        (void)posix_spawn_file_actions_destroy(&actions);
        (void)close(fds[1]);
        p->fd = fds[0];
}

/* @return whether a message came; false at the end */
static bool next_message(Probe *p, char *text, size_t size) {
        struct pollfd x = { .fd = p->fd, .events = POLLIN };
        assert_int_equal(poll(&x, 1, 30000), 1);
        ssize_t n = recv(p->fd, text, size - 1, 0);
        if (n <= 0)
                return false;
        text[n] = '\0';
        return true;
}

static void read_to_the_end(Probe *p) {
        while (p->n_messages < 16 && next_message(p, p->messages[p->n_messages], 512))
                p->n_messages++;
        int status;
        assert_int_equal(waitpid(p->pid, &status, 0), p->pid);
        p->pid = 0;
        (void)close(TAKE_FD(p->fd));
}

static void run(Probe *p) {
        p->n_messages = 0;
        start(p);
        send_order(p, "order");
        read_to_the_end(p);
}

static bool has_message(const Probe *p, const char *text) {
        for (size_t i = 0; i < p->n_messages; i++)
                if (strncmp(p->messages[i], text, strlen(text)) == 0)
                        return true;
        return false;
}

static json_t *load(const Probe *p, const char *name) {
        _cleanup_free_ char *text = NULL;
        char path[128];
        (void)snprintf(path, sizeof path, "out/%s", name);
        assert_int_equal(fs_read_file(p->dir_fd, path, 16 * MIB, &text, NULL), 0);
        json_t *v = json_loads(text, 0, NULL);
        assert_non_null(v);
        return v;
}

static json_t *section(json_t *document, const char *name) {
        size_t i;
        json_t *s;
        json_array_foreach(json_object_get(document, "sections"), i, s) {
                if (strcmp(json_string_value(json_object_get(s, "name")), name) == 0)
                        return s;
        }
        fail_msg("there is no section %s", name);
        return NULL;
}

static const char *text_of(json_t *v, const char *key) {
        const char *s = json_string_value(json_object_get(v, key));
        return s ? s : "";
}

static json_t *first_record(json_t *s) {
        json_t *v = json_array_get(json_object_get(s, "records"), 0);
        assert_non_null(v);
        return v;
}

/* ---- tests ---- */

static void what_was_written_before_a_timeout_is_kept_and_labelled(void **state) {
        Probe *p = *state;
        request_collectors(p, "kmsg", "neuron_sysfs");
        run(p);
        assert_true(has_message(p, "done"));
        json_t *d = load(p, SNAPSHOT_FILE), *s = section(d, "kmsg");
        assert_string_equal(text_of(s, "state"), "timeout");
        assert_string_equal(text_of(first_record(s), "before"), "it hung");
        assert_int_equal(json_integer_value(json_object_get(s, "dropped_lines")), 1);
        assert_string_equal(text_of(section(d, "neuron_sysfs"), "state"), "complete");
        assert_true(json_integer_value(json_object_get(s, "duration_ms")) >= 700);
        json_decref(d);
}

static void a_child_that_writes_too_much_is_cut_at_the_limit(void **state) {
        Probe *p = *state;
        request_collectors(p, "packages", NULL);
        run(p);
        json_t *d = load(p, SNAPSHOT_FILE), *s = section(d, "packages");
        assert_string_equal(text_of(s, "state"), "cut");
        assert_non_null(strstr(text_of(s, "detail"), "probe_bytes"));
        /* 64 KiB of lines of 49 bytes, the last of which is not whole */
        assert_int_equal(json_array_size(json_object_get(s, "records")), 65536 / 49);
        json_decref(d);
}

static void a_child_that_crashes_is_a_failed_section_with_its_records(void **state) {
        Probe *p = *state;
        request_collectors(p, "process", "jobs");
        run(p);
        json_t *d = load(p, SNAPSHOT_FILE), *s = section(d, "process");
        assert_string_equal(text_of(s, "state"), "failed");
        assert_non_null(strstr(text_of(s, "detail"), "signal 6"));
        assert_int_equal(json_integer_value(json_object_get(first_record(s), "pid")), 4711);
        assert_string_equal(text_of(section(d, "jobs"), "state"), "failed");
        assert_non_null(strstr(text_of(section(d, "jobs"), "detail"), "it could not be collected"));
        json_decref(d);
}

static void a_collector_about_processes_is_skipped_where_none_is_known(void **state) {
        Probe *p = *state;
        p->request.collect.n_processes = 0;
        request_collectors(p, "process", NULL);
        run(p);
        json_t *d = load(p, SNAPSHOT_FILE);
        assert_string_equal(text_of(section(d, "process"), "state"), "skipped");
        json_decref(d);
}

static void lines_that_are_no_records_are_dropped_and_counted(void **state) {
        Probe *p = *state;
        struct stat st;
        request_collectors(p, "runtime_log", NULL);
        run(p);
        json_t *d = load(p, SNAPSHOT_FILE), *s = section(d, "runtime_log");
        assert_int_equal(json_array_size(json_object_get(s, "records")), 1);
        assert_int_equal(json_integer_value(json_object_get(s, "dropped_lines")), 3);
        assert_string_equal(text_of(s, "state"), "cut");
        json_t *files = json_object_get(s, "files");
        assert_string_equal(json_string_value(json_array_get(files, 0)), "nrt.log");
        assert_int_equal(fstatat(p->dir_fd, "out/nrt.log", &st, 0), 0);
        assert_int_equal(st.st_size, 4);
        assert_int_equal(json_array_size(files), 1); /* snapshot.json is a name of ours */
        assert_string_equal(text_of(d, "schema"), "neuron-collectd/snapshot/1");
        json_decref(d);
}

static void a_child_can_neither_write_nor_run_nor_connect(void **state) {
        Probe *p = *state;
        request_collectors(p, "neuron_device", NULL);
        run(p);
        json_t *d = load(p, SNAPSHOT_FILE), *s = section(d, "neuron_device");
        assert_string_equal(text_of(s, "state"), "complete");
        if (*text_of(s, "detail")) { /* a kernel that lacks a part of it: said, and not provable */
                json_decref(d);
                skip();
        }
        json_t *r = first_record(s);
        assert_int_equal(json_integer_value(json_object_get(r, "connect")), EPERM);
        assert_int_not_equal(json_integer_value(json_object_get(r, "exec")), 0);
        assert_int_equal(json_integer_value(json_object_get(r, "create")), EPERM);
        assert_int_equal(json_integer_value(json_object_get(r, "overwrite")), EPERM);
        assert_int_equal(json_integer_value(json_object_get(r, "read")), 0);
        assert_int_equal(json_integer_value(json_object_get(r, "device")), 0);
        assert_int_equal(json_integer_value(json_object_get(r, "no_new_privs")), 1);
        assert_true(json_is_false(json_object_get(r, "secret")));
        json_decref(d);
}

static void the_public_part_is_there_before_the_rest_and_has_only_public_sections(void **state) {
        Probe *p = *state;
        char text[512];
        request_collectors(p, "neuron_sysfs", "kmsg");
        start(p);
        send_order(p, "order");
        assert_true(next_message(p, text, sizeof text));
        assert_string_equal(text, "public");
        assert_int_equal(faccessat(p->dir_fd, "out/" SNAPSHOT_FILE, F_OK, 0), -1);
        json_t *d = load(p, SNAPSHOT_PUBLIC_FILE);
        assert_int_equal(json_array_size(json_object_get(d, "sections")), 1);
        assert_int_equal(json_array_size(json_object_get(d, "processes")), 0);
        json_decref(d);
        read_to_the_end(p);
        assert_true(has_message(p, "done"));
}

static void a_second_snapshot_shows_what_has_changed(void **state) {
        Probe *p = *state;
        request_collectors(p, "neuron_sysfs", NULL);
        run(p);
        assert_int_equal(scratch_write(p->scratch, "root/counter", "13"), 0);
        p->request.mode = PROBE_AFTER;
        run(p);
        assert_true(has_message(p, "done"));
        json_t *d = load(p, SNAPSHOT_AFTER_FILE), *all = json_object_get(d, "differences");
        assert_int_equal(json_array_size(all), 1);
        json_t *x = json_array_get(all, 0);
        assert_string_equal(text_of(x, "path"), "neuron0/stats/failure");
        assert_string_equal(text_of(x, "before"), "10");
        assert_string_equal(text_of(x, "after"), "13");
        assert_int_equal(json_integer_value(json_object_get(x, "delta")), 3);
        assert_string_equal(text_of(d, "before"), SNAPSHOT_FILE);
        json_decref(d);
}

static void a_second_snapshot_that_cannot_be_compared_has_no_differences(void **state) {
        Probe *p = *state;
        request_collectors(p, "neuron_sysfs", NULL);
        run(p);
        assert_int_equal(unlinkat(p->dir_fd, "out/.before-neuron_sysfs", 0), 0);
        assert_int_equal(symlinkat("nowhere", p->dir_fd, "out/.before-neuron_sysfs"), 0);
        p->request.mode = PROBE_AFTER;
        run(p);
        assert_true(has_message(p, "done"));
        json_t *d = load(p, SNAPSHOT_AFTER_FILE);
        assert_string_equal(text_of(section(d, "neuron_sysfs"), "state"), "complete");
        assert_null(json_object_get(d, "differences"));
        json_decref(d);
}

static void wait_for_part(const Probe *p, const char *name) {
        struct stat st;
        for (unsigned i = 0; i < 2000; i++) {
                if (fstatat(p->dir_fd, name, &st, 0) == 0 && st.st_size > 0)
                        return;
                (void)poll(NULL, 0, 5);
        }
        fail_msg("%s never came", name);
}

static void what_a_killed_supervisor_has_left_is_salvaged(void **state) {
        Probe *p = *state;
        request_collectors(p, "kmsg", "packages");
        start(p);
        send_order(p, "order");
        wait_for_part(p, "out/.part-kmsg");
        (void)kill(p->pid, SIGKILL);
        read_to_the_end(p);
        assert_int_equal(faccessat(p->dir_fd, "out/" SNAPSHOT_FILE, F_OK, 0), -1);
        p->request.mode = PROBE_SALVAGE;
        run(p);
        assert_true(has_message(p, "done"));
        json_t *d = load(p, SNAPSHOT_FILE), *s = section(d, "kmsg");
        assert_string_equal(text_of(s, "state"), "cut");
        assert_string_equal(text_of(first_record(s), "before"), "it hung");
        json_decref(d);
}

static void one_that_salvages_waits_for_one_that_was_just_started(void **state) {
        Probe *p = *state;
        request_collectors(p, "neuron_device", NULL);
        p->request.mode = PROBE_SALVAGE;
        start(p);
        send_order(p, "order");
        Probe other = { .dir_fd = p->dir_fd, .request = p->request };
        other.request.mode = PROBE_SNAPSHOT;
        start(&other);
        send_order(&other, "order");
        read_to_the_end(p);
        assert_true(has_message(p, "done"));
        json_t *d = load(p, SNAPSHOT_FILE);
        assert_string_equal(text_of(section(d, "neuron_device"), "state"), "complete");
        json_decref(d);
        read_to_the_end(&other);
}

static void a_supervisor_whose_agent_has_gone_finishes_its_document(void **state) {
        Probe *p = *state;
        int status;
        request_collectors(p, "kmsg", "neuron_sysfs");
        start(p);
        send_order(p, "order");
        (void)close(TAKE_FD(p->fd));
        assert_int_equal(waitpid(p->pid, &status, 0), p->pid);
        p->pid = 0;
        json_decref(load(p, SNAPSHOT_FILE));
}

static void a_watch_reports_lines_of_the_kernel_and_ends_with_its_agent(void **state) {
        Probe *p = *state;
        char text[512];
        int status;
        p->request.mode = PROBE_WATCH;
        start(p);
        send_order(p, "order");
        assert_true(next_message(p, text, sizeof text));
        assert_string_equal(text, "kmsg {\"line\":1}");
        assert_true(next_message(p, text, sizeof text));
        assert_string_equal(text, "kmsg {\"line\":2}");
        (void)close(TAKE_FD(p->fd));
        assert_int_equal(waitpid(p->pid, &status, 0), p->pid);
        p->pid = 0;
}

static void a_watch_reports_why_there_is_no_log_to_follow(void **state) {
        Probe *p = *state;
        char text[512];
        p->request.mode = PROBE_WATCH;
        p->request.collect.since_boot_usec = NO_LOG;
        start(p);
        send_order(p, "order");
        assert_true(next_message(p, text, sizeof text));
        assert_string_equal(text, "trouble cannot open 'log'; do this");
}

static void a_watch_reports_holders_of_devices_first_and_of_others_so_many(void **state) {
        Probe *p = *state;
        char text[512];
        bool is_told[301] = { false };
        int status, n = 0, pid;
        p->request.mode = PROBE_WATCH;
        p->request.interval_usec = 100 * USEC_PER_MSEC;
        free(p->request.collect.proc_root);
        assert_non_null(p->request.collect.proc_root = strdup(CROWD));
        free(p->request.collect.sysfs_root);
        assert_true(asprintf(&p->request.collect.sysfs_root, "%s/later", p->scratch->path) > 0);
        start(p);
        send_order(p, "order");
        while (n < 257) {
                assert_true(next_message(p, text, sizeof text));
                if (strncmp(text, "jobs ", 5) != 0)
                        continue;
                assert_int_equal(sscanf(text, "jobs {\"pid\":%d,", &pid), 1);
                if (n++ == 0) {
                        assert_int_equal(pid, 999);
                        continue;
                }
                assert_in_range(pid, 1, 300);
                assert_false(is_told[pid]); /* nothing has changed */
                is_told[pid] = true;
        }
        assert_int_equal(mkdirat(p->dir_fd, "later", 0755), 0); /* it comes after the first round */
        do
                assert_true(next_message(p, text, sizeof text));
        while (strncmp(text, "jobs ", 5) != 0);
        assert_string_equal(text, "jobs {\"pid\":1000,\"devices\":[1]}");
        (void)close(TAKE_FD(p->fd));
        assert_int_equal(waitpid(p->pid, &status, 0), p->pid);
        p->pid = 0;
}

#define ID "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"

/* A process of a /proc made by hand. @param cgroup  NULL: the file is not there, as where the
 * process is hidden */
static void make_process(const Probe *p, int pid, int parent, const char *nspid,
                         const char *cgroup) {
        char name[64], text[256];
        (void)snprintf(name, sizeof name, "proc/%d", pid);
        assert_int_equal(mkdirat(p->dir_fd, name, 0755), 0);
        (void)snprintf(name, sizeof name, "proc/%d/status", pid);
        (void)snprintf(text, sizeof text, "Name:\tx\nPPid:\t%d\nUid:\t5\t5\t5\t5\nNSpid:\t%s\n",
                       parent, nspid);
        assert_int_equal(scratch_write(p->scratch, name, text), 0);
        (void)snprintf(name, sizeof name, "proc/%d/stat", pid);
        (void)snprintf(text, sizeof text, "%d (x) S %d 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 %d 0 0\n",
                       pid, parent, pid + 1000);
        assert_int_equal(scratch_write(p->scratch, name, text), 0);
        (void)snprintf(name, sizeof name, "proc/%d/cgroup", pid);
        if (cgroup)
                assert_int_equal(scratch_write(p->scratch, name, cgroup), 0);
}

static void ask(Probe *p, size_t i, pid_t hook_pid, pid_t inner_pid) {
        p->request.questions[i] = (ProbePidQuery){ .hook_pid = hook_pid, .inner_pid = inner_pid };
        p->request.n_questions = i + 1;
}

static void an_answer_about_a_process_names_its_container(void **state) {
        Probe *p = *state;
        assert_int_equal(mkdirat(p->dir_fd, "proc", 0755), 0);
        make_process(p, 500, 1, "500\t1", "0::/kubepods.slice/cri-containerd-" ID ".scope\n");
        make_process(p, 501, 500, "501\t2", "0::/\n");
        make_process(p, 600, 1, "600", "0::/user.slice\n");
        make_process(p, 700, 1, "700\t7", "0::/docker/" ID "\n");
        free(p->request.collect.proc_root);
        assert_true(asprintf(&p->request.collect.proc_root, "%s/proc", p->scratch->path) > 0);
        p->request.questions = calloc(4, sizeof *p->request.questions);
        ask(p, 0, 501, 1);
        ask(p, 1, 600, 600);
        ask(p, 2, 700, 4711); /* not found: where its hook is */
        ask(p, 3, 800, 1);    /* nothing is known of it */
        request_collectors(p, "neuron_sysfs", NULL);
        run(p);
        assert_true(has_message(p, "process 501 1 500 1500 " ID));
        assert_true(has_message(p, "process 600 600 600 1600 -"));
        assert_true(has_message(p, "process 700 4711 0 0 " ID));
        assert_true(has_message(p, "process 800 1 0 0 -"));
        json_decref(load(p, SNAPSHOT_FILE));
}

#define LISTENER "--child=probe:"

static void wait_for_socket(const char *path) {
        for (int i = 0; i < 3000; i++) {
                int fd = probe_request_connect(path);
                if (fd >= 0) {
                        assert_int_equal(close(fd), 0);
                        return;
                }
                (void)usleep(10000);
        }
        fail_msg("nobody listens at %s", path);
}

static void make_root(const Probe *p, int pid, const char *directory) {
        char link[64], target[2 * PATH_MAX];
        (void)snprintf(link, sizeof link, "proc/%d/root", pid);
        (void)snprintf(target, sizeof target, "%s/%s", p->scratch->path, directory);
        assert_int_equal(symlinkat(target, p->dir_fd, link), 0);
}

static char *write_config(const Probe *p) {
        char *file = NULL, text[2 * PATH_MAX];
        assert_true(asprintf(&file, "%s/config", p->scratch->path) > 0);
        int n = snprintf(text, sizeof text, "state_directory: %s\n", p->scratch->path);
        assert_int_equal(fs_write_file(p->dir_fd, "config", text, (size_t)n, 0600), 0);
        return file;
}

/* As the agent does. @return a descriptor, the caller's */
static int hold_state(const Probe *p) {
        struct flock whole = { .l_type = F_WRLCK, .l_whence = SEEK_SET };
        int fd = openat(p->dir_fd, "lock", O_RDWR | O_CREAT | O_CLOEXEC, 0600);
        assert_true(fd >= 0 && fcntl(fd, F_SETLK, &whole) == 0);
        return fd;
}

static void a_probe_hands_out_the_roots_of_a_container(void **state) {
        Probe *p = *state;
        _cleanup_free_ char *option = NULL, *proc = NULL;
        char *argv[] = { (char *)"test", NULL, (char *)"--config", NULL, NULL };
        Roots roots = { .n = 0 };
        assert_true(asprintf(&option, LISTENER "%s/s", p->scratch->path) > 0);
        assert_true(asprintf(&proc, "%s/proc", p->scratch->path) > 0);
        argv[1] = option;
        argv[3] = write_config(p);
        _cleanup_close_ int lock = hold_state(p);
        const char *socket = option + strlen(LISTENER);
        roots_request_container(&roots, socket, proc, ID);
        assert_int_equal(roots.n, 0);
        assert_int_equal(mkdirat(p->dir_fd, "proc", 0755), 0);
        make_process(p, 500, 1, "500\t1", "0::/kubepods.slice/cri-containerd-" ID ".scope\n");
        make_process(p, 600, 1, "600", "0::/user.slice\n");
        make_root(p, 500, "root");
        make_root(p, 600, "out");
        assert_int_equal(posix_spawn(&p->pid, "/proc/self/exe", NULL, NULL, argv, environ), 0);
        wait_for_socket(socket);
        roots_request_container(&roots, socket, proc, ID);
        assert_int_equal(roots.n, 1);
        assert_string_equal(roots.items[0].name, "process 500");
        assert_int_equal(roots.items[0].kind, FILE_ROOT_OWN);
        assert_int_equal(faccessat(roots.items[0].fd, "counter", F_OK, 0), 0);
        roots_done(&roots);
        roots_request_container(&roots, socket, proc, "/nowhere");
        assert_int_equal(roots.n, 0);
        cleanup_closep(&lock);
        lock = -1;
        roots_request_container(&roots, socket, proc, ID);
        assert_int_equal(roots.n, 0); /* it is not the agent any more */
        free(argv[3]);
}

static void an_order_that_is_none_fails_with_a_reason(void **state) {
        Probe *p = *state;
        start(p);
        send_order(p, "please");
        read_to_the_end(p);
        assert_true(has_message(p, "failed"));
        assert_int_equal(faccessat(p->dir_fd, "out/" SNAPSHOT_FILE, F_OK, 0), -1);
}

static void a_collector_that_does_not_exist_is_refused(void **state) {
        Probe *p = *state;
        request_collectors(p, "sh", NULL);
        run(p);
        assert_true(has_message(p, "failed the request names a collector that does not exist"));
        assert_int_equal(faccessat(p->dir_fd, "out/" SNAPSHOT_FILE, F_OK, 0), -1);
}

static void a_person_who_types_it_gets_a_sentence(void **state) {
        assert_int_equal(child_main(&collector_table, "probe", NULL), CHILD_USAGE);
        assert_int_equal(child_main(&collector_table, "collect:kmsg", NULL), CHILD_USAGE);
        assert_int_equal(child_main(&collector_table, "whatever", NULL), CHILD_USAGE);
}

#define TEST(f) cmocka_unit_test_setup_teardown(f, setup, teardown)

int main(int argc, char **argv) {
        if (argc == 4 && strncmp(argv[1], LISTENER, strlen(LISTENER)) == 0)
                _exit(probe_listener_main(argv[1] + strlen(LISTENER), argv[3]));
        if (argc >= 2 && strncmp(argv[1], "--child=", 8) == 0)
                _exit(child_main(hostile_table(), argv[1] + 8, argc == 4 ? argv[3] : NULL));
        const struct CMUnitTest tests[] = {
                TEST(what_was_written_before_a_timeout_is_kept_and_labelled),
                TEST(a_child_that_writes_too_much_is_cut_at_the_limit),
                TEST(a_child_that_crashes_is_a_failed_section_with_its_records),
                TEST(a_collector_about_processes_is_skipped_where_none_is_known),
                TEST(lines_that_are_no_records_are_dropped_and_counted),
                TEST(a_child_can_neither_write_nor_run_nor_connect),
                TEST(the_public_part_is_there_before_the_rest_and_has_only_public_sections),
                TEST(a_second_snapshot_shows_what_has_changed),
                TEST(a_second_snapshot_that_cannot_be_compared_has_no_differences),
                TEST(what_a_killed_supervisor_has_left_is_salvaged),
                TEST(one_that_salvages_waits_for_one_that_was_just_started),
                TEST(a_supervisor_whose_agent_has_gone_finishes_its_document),
                TEST(a_watch_reports_lines_of_the_kernel_and_ends_with_its_agent),
                TEST(a_watch_reports_why_there_is_no_log_to_follow),
                TEST(a_watch_reports_holders_of_devices_first_and_of_others_so_many),
                TEST(an_answer_about_a_process_names_its_container),
                TEST(a_probe_hands_out_the_roots_of_a_container),
                TEST(an_order_that_is_none_fails_with_a_reason),
                TEST(a_collector_that_does_not_exist_is_refused),
                TEST(a_person_who_types_it_gets_a_sentence),
        };
        return cmocka_run_group_tests(tests, NULL, NULL);
}
