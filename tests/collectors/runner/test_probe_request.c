/* The order of a snapshot: what is written is read again, and what is wrong is refused. */
#include "collectors/runner/probe_request.h"

#include <errno.h>
#include <string.h>

#include "tests/harness/unit.h"

#include "lib/base/cleanup.h"

static char *copy(const char *s) {
        char *x = strdup(s);
        assert_non_null(x);
        return x;
}

static char **list(const char *a, const char *b) {
        char **l = calloc(3, sizeof *l);
        assert_non_null(l);
        l[0] = copy(a);
        l[1] = b ? copy(b) : NULL;
        return l;
}

static void make_order(ProbeRequest *o) {
        *o = (ProbeRequest){ .mode = PROBE_AFTER,
                             .collectors = list("neuron_sysfs", "kmsg"),
                             .document = copy("snapshot-more-1.json"),
                             .name = copy("20260527T051233-1"),
                             .trigger = copy("a \"note\"\n"),
                             .instance_id = copy("i-1"),
                             .interval_usec = 30000000 };
        CollectRequest *c = &o->collect;
        c->sysfs_root = copy("/sys");
        c->device_directory = copy("/dev/\\x\xff");
        c->proc_root = copy("/proc");
        c->environment = list("NEURON_*", "RANK");
        c->timeout_usec = 5000000;
        c->max_bytes = UINT64_C(4) << 20;
        c->processes = calloc(2, sizeof *c->processes);
        c->processes[0] = (CollectProcess){ 4711, 99 };
        c->n_processes = 1;
        c->log_files = calloc(1, sizeof *c->log_files);
        c->log_files[0] = (CollectLogFile){ .path = copy("/tmp/a \xff"),
                                            .owner = { .uid = UINT32_MAX - 1 },
                                            .hook_pid = 12,
                                            .inner_pid = 7 };
        c->n_log_files = 1;
        c->dumps = calloc(1, sizeof *c->dumps);
        c->dumps[0] = (CollectDump){ .path = copy("/tmp/dt \xff"), .uid = UINT32_MAX - 1 };
        c->n_dumps = 1;
        c->commands = calloc(1, sizeof *c->commands);
        c->commands[0] = (CollectCommand){ copy("ls"), list("/bin/ls", "-l"), 20000000 };
        c->n_commands = 1;
        o->questions = calloc(1, sizeof *o->questions);
        o->questions[0] = (ProbePidQuery){ 12, 7, 4026531836 };
        o->n_questions = 1;
}

static void what_is_written_is_read_again(void **state) {
        _cleanup_(probe_request_done) ProbeRequest o, back = { 0 };
        _cleanup_(strbuf_done) StrBuf b = STRBUF_INIT, again = STRBUF_INIT;
        const char *why = NULL;
        make_order(&o);
        assert_int_equal(probe_request_format(&o, &b), 0);
        assert_int_equal(probe_request_parse(b.text, b.n, &back, &why), 0);
        assert_int_equal(back.mode, PROBE_AFTER);
        assert_string_equal(back.collectors[1], "kmsg");
        assert_null(back.collectors[2]);
        assert_string_equal(back.collect.device_directory, "/dev/\\x\xff");
        assert_string_equal(back.trigger, "a \"note\"\n");
        assert_int_equal(back.collect.processes[0].start_ticks, 99);
        assert_int_equal(back.collect.n_log_files, 1);
        assert_string_equal(back.collect.log_files[0].path, "/tmp/a \xff");
        assert_int_equal(back.collect.log_files[0].owner.uid, UINT32_MAX - 1);
        assert_int_equal(back.collect.log_files[0].pid, 0);
        assert_int_equal(back.collect.log_files[0].inner_pid, 7);
        assert_int_equal(back.collect.n_dumps, 1);
        assert_string_equal(back.collect.dumps[0].path, "/tmp/dt \xff");
        assert_int_equal(back.collect.dumps[0].uid, UINT32_MAX - 1);
        assert_int_equal(back.questions[0].ns_inode, 4026531836);
        assert_string_equal(back.collect.commands[0].run[1], "-l");
        assert_null(back.collect.commands[0].run[2]);
        assert_int_equal(probe_request_format(&back, &again), 0);
        assert_string_equal(again.text, b.text);
}

static void refuse(const char *text, int r, const char *what) {
        ProbeRequest o = { 0 };
        const char *why = "";
        assert_int_equal(probe_request_parse(text, strlen(text), &o, &why), r);
        if (!strstr(why, what))
                fail_msg("'%s' does not speak of '%s'", why, what);
}

#define ROOTS "\"sysfs_root\":\"/s\",\"device_directory\":\"/d\",\"proc_root\":\"/p\""
#define LIMITS "\"timeout_usec\":1,\"max_bytes\":1"

static void what_is_wrong_is_refused_with_a_reason(void **state) {
        refuse("", -EINVAL, "not a JSON");
        refuse("[]", -EINVAL, "not a JSON");
        refuse("{\"mode\":\"x\"," ROOTS "," LIMITS "}", -EINVAL, "has no mode");
        refuse("{\"mode\":\"snapshot\"," LIMITS "}", -EINVAL, "/sys");
        refuse("{\"mode\":\"snapshot\"," ROOTS "}", -EINVAL, "limits");
        refuse("{\"mode\":\"snapshot\"," ROOTS "," LIMITS ",\"document\":\"../x\"}", -EINVAL,
               "name");
        refuse("{\"mode\":\"snapshot\"," ROOTS "," LIMITS ",\"processes\":[{\"pid\":-1}]}", -EINVAL,
               "number");
        refuse("{\"mode\":\"snapshot\"," ROOTS "," LIMITS ",\"processes\":7}", -EINVAL, "list");
        refuse("{\"mode\":\"snapshot\"," ROOTS "," LIMITS ",\"commands\":[{\"name\":\"x\"}]}",
               -EINVAL, "command");
        refuse("{\"mode\":\"snapshot\"," ROOTS "," LIMITS ",\"log_files\":[{\"path\":\"/x\"}]}",
               -EINVAL, "no owner");
        refuse("{\"mode\":\"snapshot\"," ROOTS "," LIMITS
               ",\"log_files\":[{\"path\":\"/x\",\"uid\":4294967296}]}",
               -EINVAL, "no owner");
        refuse("{\"mode\":\"snapshot\"," ROOTS "," LIMITS ",\"trigger\":\"a\\u0000b\"}", -EINVAL,
               "");
}

static void more_processes_than_a_snapshot_may_have_are_refused(void **state) {
        _cleanup_(strbuf_done) StrBuf b = STRBUF_INIT;
        strbuf_add(&b, "{\"mode\":\"snapshot\"," ROOTS "," LIMITS ",\"processes\":[");
        for (unsigned i = 0; i <= COLLECT_PROCESSES_MAX; i++)
                strbuf_addf(&b, "%s{\"pid\":%u,\"start_ticks\":1}", i ? "," : "", i + 1);
        strbuf_add(&b, "]}");
        refuse(b.text, -EFBIG, "too long");
}

static void a_memfd_is_sealed_and_read_from_its_beginning(void **state) {
        _cleanup_close_ int fd = probe_request_memfd("order", 5);
        _cleanup_free_ char *text = NULL;
        size_t n;
        assert_true(fd >= 0);
        assert_int_equal(write(fd, "x", 1), -1);
        assert_int_equal(lseek(fd, 3, SEEK_SET), 3);
        assert_int_equal(probe_request_read_fd(fd, 5, &text, &n), 0);
        assert_string_equal(text, "order");
        assert_int_equal(probe_request_read_fd(fd, 4, &text, &n), -EFBIG);
        assert_int_equal(probe_request_read_fd(STDIN_FILENO + 900, 4, &text, &n), -EBADF);
}

int main(void) {
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(what_is_written_is_read_again),
                cmocka_unit_test(what_is_wrong_is_refused_with_a_reason),
                cmocka_unit_test(more_processes_than_a_snapshot_may_have_are_refused),
                cmocka_unit_test(a_memfd_is_sealed_and_read_from_its_beginning),
        };
        return cmocka_run_group_tests(tests, NULL, NULL);
}
