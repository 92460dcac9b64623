/* The collector kmsg: records, what they say, which are written, and following the log. */
#include <poll.h>
#include <pthread.h>
#include <sys/klog.h>
#include <sys/wait.h>

#include "collectors/host/kmsg_content.h"
#include "collectors/host/kmsg_filter.h"
#include "collectors/host/kmsg_record.h"
#include "collectors/host/kmsg_ring.h"
#include "tests/collectors/host/test_procfs_records.h"
#include "tests/harness/skip.h"

static const char hw_error_line[] =
        "3,812,5000000,-;neuron: NEURON_HW_ERR=SRAM_UNCORRECTABLE_ERROR "
        "instance-id=i-0123456789abcdef0 hostname=ip-10-0-0-1 nd-id=3 "
        "nc-id=1 serial-num=19fcda00f5ff6eb9 action=TERMINATE_INSTANCE brand-new=field\n "
        "SUBSYSTEM=neuron\n DEVICE=c510:3\n";

/* EPIPE of an overrun cannot be provoked on a file. */
ssize_t __real_read(int fd, void *data, size_t n);
ssize_t __wrap_read(int fd, void *data, size_t n);
static int overrun_at; /* the n-th read from now says EPIPE; 0 = none */
ssize_t __wrap_read(int fd, void *data, size_t n) {
        if (overrun_at > 0 && --overrun_at == 0) {
                errno = EPIPE;
                return -1;
        }
        return __real_read(fd, data, n);
}

/* A machine whose /dev/kmsg is refused, with a ring whose text is this; NULL: the real ring. */
static const char *ring;
static int ring_error;
static bool is_device_refused; /* with the real ring */
int __real_open(const char *path, int flags, ...);
int __wrap_open(const char *path, int flags, ...);
int __wrap_open(const char *path, int flags, ...) {
        if ((ring || is_device_refused) && strcmp(path, "/dev/kmsg") == 0) {
                errno = EPERM;
                return -1;
        }
        return __real_open(path, flags);
}
int __real_klogctl(int type, char *buf, int n);
int __wrap_klogctl(int type, char *buf, int n);
int __wrap_klogctl(int type, char *buf, int n) {
        if (!ring)
                return __real_klogctl(type, buf, n);
        if (ring_error) {
                errno = ring_error;
                return -1;
        }
        if (type == KMSG_RING_SIZE)
                return 4096;
        assert_int_equal(type, KMSG_RING_READ_ALL);
        n = MIN((int)strlen(ring), n);
        memcpy(buf, ring, (size_t)n);
        return n;
}

static void a_record_is_parsed(void **state) {
        static const char data[] = "30,7,1234567890,c,caller=T1;a \\x5bb\\x5d \\xzz\\x0ac\n "
                                   "KEY=va\\x20lue\n OTHER=1\n";
        KmsgRecord r = { 0 };
        assert_int_equal(kmsg_record_parse(data, sizeof data - 1, &r), 0);
        assert_int_equal(r.priority, 6);
        assert_int_equal(r.facility, 3);
        assert_int_equal(r.seq, 7);
        assert_int_equal(r.usec, 1234567890);
        assert_string_equal(r.text.text, "a [b] \\xzz\nc");
        assert_string_equal(r.context.text, "KEY=va lue\nOTHER=1");
        kmsg_record_done(&r);
        assert_int_equal(kmsg_record_parse("no record", 9, &r), -EBADMSG);
        assert_int_equal(kmsg_record_parse("1,2", 3, &r), -EBADMSG);
        assert_int_equal(kmsg_record_parse("99999999999999999999,1,1,-;x", 28, &r), -EBADMSG);
        assert_int_equal(kmsg_record_size(data, sizeof data - 1), sizeof data - 1);
        assert_int_equal(kmsg_record_size("1,1,1,-;a\n B=1\n1,2,1,-;b\n", 26), 15);
}

static void a_hardware_error_keeps_fields_that_nobody_knows(void **state) {
        KmsgHwError e;
        const char *text = strchr(hw_error_line, ';') + 1;
        assert_true(kmsg_content_find_hw_error(text, strcspn(text, "\n"), &e));
        assert_string_equal(e.value, "SRAM_UNCORRECTABLE_ERROR");
        assert_string_equal(kmsg_content_hw_field(&e, "instance_id"), "i-0123456789abcdef0");
        assert_string_equal(kmsg_content_hw_field(&e, "ND-ID"), "3");
        assert_string_equal(kmsg_content_hw_field(&e, "brand-new"), "field");
        assert_string_equal(kmsg_content_hw_field(&e, "missing"), "");
        assert_int_equal(e.n_fields, 7);
        assert_false(kmsg_content_find_hw_error("NEURON_HW_ERR", 13, &e));
        char many[4096] = "NEURON_HW_ERR=X";
        for (int i = 0; i < 100; i++)
                (void)snprintf(many + strlen(many), sizeof many - strlen(many), " k%d=v", i);
        assert_true(kmsg_content_find_hw_error(many, strlen(many), &e));
        assert_int_equal(e.n_fields, KMSG_FIELDS_MAX);
        assert_true(e.is_cut);
}

static void lines_of_the_driver_are_distinguished_from_others(void **state) {
        static const char *const yes[] = {
                "neuron: load",           "Neuron Driver Started with Version:2.25",
                "neuron 0000:10:1c.0: x", "nd0: reset",
                "[ND 12][NC 3] stuck",    "nd3"
        };
        static const char *const no[] = { "",           "eth0: link", "ndisc: x",
                                          "and 3 more", "nd",         "usb 1-1: new" };
        for (size_t i = 0; i < ELEMENTSOF(yes); i++)
                assert_true(kmsg_content_is_neuron(yes[i], strlen(yes[i])));
        for (size_t i = 0; i < ELEMENTSOF(no); i++)
                assert_false(kmsg_content_is_neuron(no[i], strlen(no[i])));
}

static void the_ring_gives_what_concerns_neuron(void **state) {
        Fake *f = *state;
        char text[4096];
        (void)snprintf(text, sizeof text,
                       "6,810,1000000,-;eth0: up\n%s6,813,6000000,-;neuron:ncdev: opened "
                       "token=SECRETVALUE1\n"
                       "12,814,7000000,-;NEURON_HW_ERR=DMA_ERROR nd-id=1\n",
                       hw_error_line);
        fake_text(f, "dev/kmsg", text);
        assert_int_equal(fake_collect(f, collect_kmsg), 0);
        assert_int_equal(json_array_size(f->records), 3);
        json_t *error = fake_find(f, "about", "hw_error", 0),
               *fields = json_object_get(error, "hw_error");
        assert_int_equal(json_integer_value(json_object_get(error, "seq")), 812);
        assert_int_equal(json_integer_value(json_object_get(error, "usec")), 5000000);
        assert_true(json_is_true(json_object_get(error, "from_kernel")));
        assert_true(json_is_true(json_object_get(error, "hint")));
        assert_string_equal(string_of(fields, "value"), "SRAM_UNCORRECTABLE_ERROR");
        assert_string_equal(string_of(fields, "nd_id"), "3");
        assert_string_equal(string_of(fields, "nc_id"), "1");
        assert_string_equal(string_of(fields, "action"), "TERMINATE_INSTANCE");
        assert_string_equal(string_of(error, "context"), "SUBSYSTEM=neuron\nDEVICE=c510:3");
        assert_false(
                json_is_true(json_object_get(fake_find(f, "about", "hw_error", 1), "from_kernel")));
        assert_non_null(fake_find(f, "about", "line", 0));
        assert_false(fake_has_output(f, "SECRETVALUE1"));
        f->request.since_boot_usec = 6000000;
        assert_int_equal(fake_collect(f, collect_kmsg), 0);
        assert_int_equal(json_array_size(f->records), 2);
}

static void an_overrun_is_reported_and_survived(void **state) {
        Fake *f = *state;
        char *text = malloc(64 << 10);
        size_t n = 0;
        for (int i = 0; i < 600; i++)
                n += (size_t)snprintf(text + n, (64 << 10) - n,
                                      "6,%d,%d,-;neuron: line number %d of some length\n",
                                      i + (i > 400 ? 50 : 0), i, i);
        fake_write(f, "dev/kmsg", text, n);
        free(text);
        overrun_at = 2;
        assert_int_equal(fake_collect(f, collect_kmsg), 0);
        assert_int_equal(json_array_size(f->records), 601);
        assert_non_null(fake_find(f, "about", "overrun", 0));
        assert_null(fake_find(f, "about", "overrun", 1));
}

static void what_does_not_fit_is_cut_and_reported(void **state) {
        Fake *f = *state;
        char *text = malloc(64 << 10);
        size_t n = 0;
        for (int i = 0; i < 500; i++)
                n += (size_t)snprintf(text + n, (64 << 10) - n, "6,%d,%d,-;neuron: line %d\n", i, i,
                                      i);
        fake_write(f, "dev/kmsg", text, n);
        free(text);
        f->request.max_bytes = 4096;
        assert_int_equal(fake_collect(f, collect_kmsg), 0);
        assert_true(f->out.is_cut);
        assert_true(json_array_size(f->records) > 10 && json_array_size(f->records) < 100);
}

static void a_log_that_cannot_be_opened_is_named_with_the_error_and_the_remedy(void **state) {
        Fake *f = *state;
        char expected[PATH_MAX + 200], path[PATH_MAX];
        fake_path(f, path, "dev/kmsg");
        (void)snprintf(expected, sizeof expected,
                       "cannot open '%s': No such file or directory; give the agent's container "
                       "this device, or set snapshot.device_directory",
                       path);
        assert_int_equal(fake_collect(f, collect_kmsg), -ENOENT);
        assert_string_equal(f->out.why, expected);
        *f->out.why = '\0';
        assert_int_equal(follow_kmsg(&f->request, &f->out), -ENOENT);
        assert_string_equal(f->out.why, expected);
}

typedef struct Follower {
        pid_t pid;
        int fd;     /* what it writes */
        int log_fd; /* of the log that it follows, -1 = not ours */
} Follower;

static Follower follow(const Fake *f) {
        int pipes[2];
        assert_int_equal(pipe2(pipes, O_CLOEXEC), 0);
        Follower w = { .pid = fork(), .fd = pipes[0], .log_fd = -1 };
        if (w.pid == 0) {
                CollectOut out = { .fd = pipes[1],
                                   .dir_fd = -1,
                                   .max_bytes = f->request.max_bytes };
                (void)close(pipes[0]);
                _exit(follow_kmsg(&f->request, &out) == 0 ? 0 : 1);
        }
        (void)close(pipes[1]);
        return w;
}

static Follower follow_fifo(const Fake *f) {
        char path[PATH_MAX];
        fake_path(f, path, "dev/kmsg");
        assert_int_equal(mkfifo(path, 0600), 0);
        Follower w = follow(f);
        w.log_fd = open(path, O_WRONLY | O_CLOEXEC); /* returns when it is read */
        return w;
}

static void end_follow(const Follower *w) {
        (void)close(w->fd);
        (void)close(w->log_fd);
        assert_int_equal(waitpid(w->pid, NULL, 0), w->pid);
}

/* Reads until a text has come, 10 s at most. */
static bool heard(const Follower *w, const char *text) {
        static char all[1 << 20];
        size_t n = 0;
        struct pollfd p = { .fd = w->fd, .events = POLLIN };
        while (n + 1 < sizeof all && poll(&p, 1, 10000) > 0) {
                ssize_t k = read(w->fd, all + n, sizeof all - 1 - n);
                if (k <= 0)
                        return false;
                n += (size_t)k;
                all[n] = '\0';
                if (strstr(all, text))
                        return true;
        }
        return false;
}

static void live_lines_come_as_they_are_written_and_old_ones_do_not(void **state) {
        Fake *f = *state;
        char path[PATH_MAX];
        int status;
        fake_path(f, path, "dev/kmsg");
        assert_int_equal(mkfifo(path, 0600), 0);
        Follower w = follow(f);
        int fd = open(path, O_WRONLY | O_CLOEXEC); /* returns when it is read */
        assert_true(heard(&w, "{\"about\":\"following\",\"since_usec\":"));
        assert_int_equal(write(fd, hw_error_line, 30),
                         30); /* half a record: nothing is said of it before its end */
        assert_int_equal(write(fd, hw_error_line + 30, sizeof hw_error_line - 31),
                         sizeof hw_error_line - 31);
        assert_true(heard(&w, "TERMINATE_INSTANCE"));
        (void)close(fd); /* no writer: it waits for the next */
        fd = open(path, O_WRONLY | O_CLOEXEC);
        assert_int_equal(write(fd, "6,900,9,-;neuron: again\n", 24), 24);
        assert_true(heard(&w, "\"seq\":900"));
        (void)close(w.fd); /* nobody listens any more: it ends by itself */
        assert_int_equal(waitpid(w.pid, &status, 0), w.pid);
        assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 0);
        (void)close(fd);
}

static void a_flood_is_bounded_by_the_minute(void **state) {
        const Follower w = follow_fifo(*state);
        for (int i = 0; i < 1000; i++) {
                assert_true(dprintf(w.log_fd, "3,%d,%d,-;NEURON_HW_ERR=DMA_ERROR nd-id=%d\n", i, i,
                                    i) > 0);
        }
        assert_int_equal(write(w.log_fd, "3,1000,70000000,-;NEURON_HW_ERR=LAST\n", 37), 37);
        assert_true(heard(&w, "\"about\":\"left_out\",\"lines\":700}"));
        end_follow(&w);
}

static void chatter_of_the_driver_does_not_crowd_out_a_fault(void **state) {
        const Follower w = follow_fifo(*state);
        for (int i = 0; i < 500; i++) {
                assert_true(dprintf(w.log_fd, "6,%d,%d,-;neuron: chatter\n", i, i) > 0);
        }
        assert_int_equal(write(w.log_fd, "3,500,500,-;NEURON_HW_ERR=REAL nd-id=3\n", 39), 39);
        assert_true(heard(&w, "NEURON_HW_ERR=REAL"));
        end_follow(&w);
}

static void lines_for_crash_reports_are_reported_with_their_kind(void **state) {
        static const char *const facts[][2] = {
                { "python3[4711]: segfault at 0 ip 55d0 sp 7ffd error 4 in libnrt.so", "segfault" },
                { "traps: a[1] general protection fault ip:1 sp:2 error:0", "segfault" },
                { "Memory cgroup out of memory: Killed process 7 (python3) total-vm:1kB", "oom" },
                { "mce: [Hardware Error]: Machine check events logged", "mce" },
                { "pcieport 0000:00:1c.0: AER: Corrected error received", "aer" },
                { "efa 0000:00:1d.0: Failed to process command", "efa" },
                { "usb 1-1: new device", NULL },
                { "I said: Out of memory: Killed process 7 (python3)", NULL },
                { "{1}[Hardware Error]: event severity: fatal", "mce" },
                { "abcdefghijklmno[4194303]: segfault at 0", "segfault" },
                { "python3 invoked oom-killer: gfp_mask=0x1", "oom" },
                { "bpf: Unknown parameter 'AER: x'", NULL },
                { "tmpfs: Unknown parameter '[Hardware Error]: x'", NULL },
                { "tmpfs: Unknown parameter 'x[1]: segfault at 0'", NULL },
        };
        (void)state;
        for (size_t i = 0; i < ELEMENTSOF(facts); i++) {
                KmsgFact kind = kmsg_content_fact(facts[i][0], strlen(facts[i][0]));
                assert_int_equal(kind == N_KMSG_FACTS, facts[i][1] == NULL);
                if (kind != N_KMSG_FACTS)
                        assert_string_equal(kmsg_content_fact_names[kind], facts[i][1]);
        }
}

static void facts_are_of_the_kernel_alone_and_bounded_by_the_minute(void **state) {
        const Follower w = follow_fifo(*state);
        assert_int_equal(write(w.log_fd, "12,1,1,-;a[1]: segfault at 77\n", 30),
                         30); /* a program's */
        for (int i = 0; i < 200; i++) {
                assert_true(dprintf(w.log_fd, "6,%d,%d,-;a[%d]: segfault at 0\n", i + 2, i, i) > 0);
        }
        static const char kill[] = "6,400,400,-;Out of memory: Killed process 7 (a) total-vm:1kB\n";
        assert_int_equal(write(w.log_fd, kill, sizeof kill - 1), sizeof kill - 1);
        assert_int_equal(write(w.log_fd, "3,500,500,-;NEURON_HW_ERR=REAL nd-id=3\n", 39), 39);
        static char all[1 << 16];
        size_t n = 0;
        while (!strstr(all, "NEURON_HW_ERR=REAL")) {
                ssize_t k = read(w.fd, all + n, sizeof all - 1 - n);
                assert_true(k > 0);
                n += (size_t)k;
        }
        assert_null(strstr(all, "segfault at 77"));
        assert_non_null(strstr(all, "\"about\":\"fact\",\"kind\":\"segfault\",\"past\":false"));
        assert_non_null(strstr(all, "a[99]: segfault"));
        assert_null(strstr(all, "a[100]: segfault"));
        assert_non_null(strstr(all, "Killed process 7"));
        assert_non_null(strstr(all, "\"about\":\"left_out\",\"lines\":100}"));
        end_follow(&w);
}

static void past_lines_are_reported_for_crash_reports_alone(void **state) {
        Fake *f = *state;
        static char all[4096];
        int pipes[2];
        assert_int_equal(pipe2(pipes, O_CLOEXEC | O_NONBLOCK), 0);
        CollectOut out = { .fd = pipes[1], .dir_fd = -1, .max_bytes = f->request.max_bytes };
        KmsgFilter filter = { .request = &f->request,
                              .out = &out,
                              .is_stream = true,
                              .past_usec = 2 * KMSG_FILTER_PAST_USEC };
        static const char *const lines[] = { "6,1,5,-;old[1]: segfault at 0\n",
                                             "6,2,1199999999,-;new[1]: segfault at 0\n",
                                             "6,3,1199999999,-;neuron: a line\n",
                                             "6,4,1200000001,-;neuron: now\n" };
        for (size_t i = 0; i < ELEMENTSOF(lines); i++) {
                KmsgRecord record = { 0 };
                assert_int_equal(kmsg_record_parse(lines[i], strlen(lines[i]), &record), 0);
                assert_int_equal(kmsg_filter_keep(&filter, &record), 0);
                kmsg_record_done(&record);
        }
        assert_true(read(pipes[0], all, sizeof all - 1) > 0);
        assert_null(strstr(all, "old[1]"));
        assert_non_null(strstr(all, "new[1]"));
        assert_non_null(strstr(all, "\"past\":true"));
        assert_null(strstr(all, "a line"));
        assert_non_null(strstr(all, "neuron: now"));
        (void)close(pipes[0]);
        (void)close(pipes[1]);
}

static void the_real_kernel_log_is_followed(void **state) {
        Fake *f = *state;
        char line[128], request_collectors[64];
        int kmsg_fd = open("/dev/kmsg", O_WRONLY | O_CLOEXEC);
        if (kmsg_fd < 0)
                SKIP_BECAUSE("/dev/kmsg cannot be written: needs root and CAP_SYSLOG or a "
                             "container that has it");
        (void)snprintf(f->device_directory, sizeof f->device_directory, "/dev");
        (void)snprintf(request_collectors, sizeof request_collectors, "test-%d", getpid());
        Follower w = follow(f);
        /* It begins at the end, and when it has come there nothing tells: until it hears one,
         * another is written. */
        assert_true(heard(&w, "following"));
        bool has_heard = false;
        for (int i = 0; i < 100 && !has_heard; i++) {
                int n = snprintf(line, sizeof line,
                                 "<4>neuron-collectd: NEURON_HW_ERR=TEST nd-id=%d action=%s", i,
                                 request_collectors);
                assert_int_equal(write(kmsg_fd, line, (size_t)n), n);
                struct pollfd p = { .fd = w.fd, .events = POLLIN };
                if (poll(&p, 1, 100) > 0)
                        has_heard = heard(&w, request_collectors);
        }
        assert_true(has_heard);
        (void)close(w.fd);
        assert_int_equal(waitpid(w.pid, NULL, 0), w.pid);
        (void)close(kmsg_fd);
        f->request.max_bytes = 16 * MIB;
        assert_int_equal(fake_collect(f, collect_kmsg), 0);
        assert_true(fake_has_output(f, request_collectors));
        assert_false(
                json_is_true(json_object_get(fake_find(f, "about", "hw_error", 0), "from_kernel")));
}

/* @return with the device directory of this machine, where the ring above is read */
static Fake *without_kmsg(void **state, const char *text, int error) {
        Fake *f = *state;
        (void)snprintf(f->device_directory, sizeof f->device_directory, "/dev");
        ring = text;
        ring_error = error;
        return f;
}

static void a_container_without_the_device_reads_the_log_by_syslog(void **state) {
        static const char text[] =
                "<6>[    1.000000] eth0: up\n"
                "<3>[    5.000001] neuron: NEURON_HW_ERR=DMA_ERROR nd-id=3 action=REBOOT\n"
                "<12>[    6.000000] NEURON_HW_ERR=FORGED nd-id=1\n"
                "<6>neuron: without a time\n"
                "<6>[    7.000000][  T123] neuron: with a caller\n"
                "<6>[    8.0000\n<6>[999999999999999999.000000] neuron: late\n"
                "neuron: no priority\n<\n<6>[\n\n<7>[    9.000000] neuron: cut off";
        Fake *f = without_kmsg(state, text, 0);
        assert_int_equal(fake_collect(f, collect_kmsg), 0);
        assert_string_equal(f->out.why, "");
        assert_int_equal(json_array_size(f->records), 6);
        json_t *error = fake_find(f, "about", "hw_error", 0);
        assert_string_equal(string_of(json_object_get(error, "hw_error"), "action"), "REBOOT");
        assert_int_equal(json_integer_value(json_object_get(error, "usec")), 5000001);
        assert_int_equal(json_integer_value(json_object_get(error, "priority")), 3);
        assert_null(json_object_get(error, "seq"));
        assert_true(json_is_true(json_object_get(error, "from_kernel")));
        assert_false(
                json_is_true(json_object_get(fake_find(f, "about", "hw_error", 1), "from_kernel")));
        assert_string_equal(string_of(fake_find(f, "about", "line", 0), "text"),
                            "neuron: without a time");
        assert_null(json_object_get(fake_find(f, "about", "line", 0), "usec"));
        assert_string_equal(string_of(fake_find(f, "about", "line", 3), "text"), "neuron: cut off");
        f->request.since_boot_usec = 6500000; /* a line without a time may be a new one */
        assert_int_equal(fake_collect(f, collect_kmsg), 0);
        assert_int_equal(json_array_size(f->records), 4);
        ring = NULL;
}

/* A mount's option in a user namespace, with a newline in it. */
static void a_line_within_a_record_is_no_fact(void **state) {
        static char text[1024], all[4096];
        unsigned now =
                (unsigned)(kmsg_filter_now_usec() / USEC_PER_SEC); /* old facts are dropped */
        (void)snprintf(text, sizeof text,
                       "<3>[%5u.000000] python3[7]: segfault at 1\n"
                       "<3>[%5u.500000] tmpfs: Unknown parameter 'x\n"
                       "<3>[%5u.500000] Memory cgroup out of memory: Killed process 7 (a)'\n"
                       "<4>[%5u.500000] python3[7]: segfault at 2\n"
                       "<4>python3[7]: segfault at 3\n",
                       now, now, now, now);
        const Follower w = follow(without_kmsg(state, text, 0));
        for (size_t n = 0; !strstr(all, "following");) {
                ssize_t k = read(w.fd, all + n, sizeof all - 1 - n);
                assert_true(k > 0);
                n += (size_t)k;
        }
        assert_non_null(strstr(all, "segfault at 1"));
        assert_null(strstr(all, "Killed process"));
        assert_non_null(strstr(all, "segfault at 2"));
        assert_null(strstr(all, "segfault at 3"));
        end_follow(&w);
        ring = NULL;
}

static void where_syslog_is_refused_too_the_device_is_named(void **state) {
        Fake *f = without_kmsg(state, "", EPERM);
        static const char expected[] = "cannot open '/dev/kmsg': Operation not permitted; start "
                                       "neuron-collectd-probe.socket, or give the agent CAP_SYSLOG";
        assert_int_equal(fake_collect(f, collect_kmsg), -EPERM);
        assert_string_equal(f->out.why, expected);
        assert_int_equal(follow_kmsg(&f->request, &f->out), -EPERM);
        ring = NULL;
}

static void what_syslog_has_had_before_is_found_again(void **state) {
        static const char text[] = "<6>[1.000000] a\n<6>[2.000000] b\n";
        (void)state;
        assert_int_equal(kmsg_ring_find_new(text, sizeof text - 1, "", 0), 0);
        assert_int_equal(kmsg_ring_find_new(text, sizeof text - 1, "<6>[1.000000] a\n", 16), 16);
        assert_int_equal(kmsg_ring_find_new(text, sizeof text - 1, "] b\n", 4), sizeof text - 1);
        assert_int_equal(kmsg_ring_find_new(text, sizeof text - 1, "overwritten", 11), 0);
        assert_int_equal(kmsg_ring_find_new("x", 1, text, sizeof text - 1), 0);
}

/* The kernel needs 1.5 ms for 128 KiB. */
static void a_large_ring_is_read_the_less_often(void **state) {
        (void)state;
        assert_int_equal(kmsg_ring_wait_msec(1500), 1000);
        assert_int_equal(kmsg_ring_wait_msec(12000), 6000);
        assert_int_equal(kmsg_ring_wait_msec(UINT32_MAX), 60000);
}

static void the_real_kernel_log_is_followed_by_syslog(void **state) {
        char line[128], mark[64];
        int kmsg_fd = open("/dev/kmsg", O_WRONLY | O_CLOEXEC);
        if (kmsg_fd < 0 || klogctl(KMSG_RING_SIZE, NULL, 0) < 0)
                SKIP_BECAUSE("/dev/kmsg cannot be written: needs root and CAP_SYSLOG or a "
                             "container that has it");
        (void)snprintf(mark, sizeof mark, "syslog-%d", getpid());
        is_device_refused = true;
        Follower w = follow(without_kmsg(state, NULL, 0));
        assert_true(heard(&w, "following"));
        bool has_heard = false;
        for (int i = 0; i < 100 && !has_heard; i++) {
                int n = snprintf(line, sizeof line,
                                 "<4>neuron-collectd: NEURON_HW_ERR=TEST nd-id=%d action=%s", i,
                                 mark);
                assert_int_equal(write(kmsg_fd, line, (size_t)n), n);
                has_heard = poll(&(struct pollfd){ .fd = w.fd, .events = POLLIN }, 1, 100) > 0 &&
                            heard(&w, mark);
        }
        assert_true(has_heard);
        is_device_refused = false;
        (void)close(w.fd); /* it ends, by SIGPIPE if it has more to write */
        assert_int_equal(waitpid(w.pid, NULL, 0), w.pid);
        (void)close(kmsg_fd);
}

int main(void) {
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(a_record_is_parsed),
                cmocka_unit_test(a_hardware_error_keeps_fields_that_nobody_knows),
                cmocka_unit_test(lines_of_the_driver_are_distinguished_from_others),
                cmocka_unit_test_setup_teardown(the_ring_gives_what_concerns_neuron, fake_setup,
                                                fake_teardown),
                cmocka_unit_test_setup_teardown(an_overrun_is_reported_and_survived, fake_setup,
                                                fake_teardown),
                cmocka_unit_test_setup_teardown(what_does_not_fit_is_cut_and_reported, fake_setup,
                                                fake_teardown),
                cmocka_unit_test_setup_teardown(
                        a_log_that_cannot_be_opened_is_named_with_the_error_and_the_remedy,
                        fake_setup, fake_teardown),
                cmocka_unit_test_setup_teardown(
                        live_lines_come_as_they_are_written_and_old_ones_do_not, fake_setup,
                        fake_teardown),
                cmocka_unit_test_setup_teardown(a_flood_is_bounded_by_the_minute, fake_setup,
                                                fake_teardown),
                cmocka_unit_test_setup_teardown(chatter_of_the_driver_does_not_crowd_out_a_fault,
                                                fake_setup, fake_teardown),
                cmocka_unit_test(lines_for_crash_reports_are_reported_with_their_kind),
                cmocka_unit_test_setup_teardown(
                        facts_are_of_the_kernel_alone_and_bounded_by_the_minute, fake_setup,
                        fake_teardown),
                cmocka_unit_test_setup_teardown(past_lines_are_reported_for_crash_reports_alone,
                                                fake_setup, fake_teardown),
                cmocka_unit_test_setup_teardown(the_real_kernel_log_is_followed, fake_setup,
                                                fake_teardown),
                cmocka_unit_test_setup_teardown(
                        a_container_without_the_device_reads_the_log_by_syslog, fake_setup,
                        fake_teardown),
                cmocka_unit_test_setup_teardown(a_line_within_a_record_is_no_fact, fake_setup,
                                                fake_teardown),
                cmocka_unit_test_setup_teardown(where_syslog_is_refused_too_the_device_is_named,
                                                fake_setup, fake_teardown),
                cmocka_unit_test(what_syslog_has_had_before_is_found_again),
                cmocka_unit_test(a_large_ring_is_read_the_less_often),
                cmocka_unit_test_setup_teardown(the_real_kernel_log_is_followed_by_syslog,
                                                fake_setup, fake_teardown),
        };
        return cmocka_run_group_tests(tests, NULL, NULL);
}
