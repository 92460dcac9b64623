/* Which lines of the kernel log are about a process. */
#include "tests/harness/unit.h"

#include <jansson.h>
#include <string.h>

#include "agent/node_events/kernel_log.h"

#define T0 (UINT64_C(1779859295) * USEC_PER_SEC)
#define KILLED                                                                                     \
        "Memory cgroup out of memory: Killed process 4711 (python3) total-vm:1kB, anon-rss:1kB, "  \
        "file-rss:0kB, shmem-rss:0kB, UID:1000 pgtables:1kB oom_score_adj:0"

static void add(KernelLog *l, const char *kind, uint64_t usec, const char *text) {
        static uint64_t seq;
        KernelLine line = { .usec = usec, .seq = ++seq };
        (void)snprintf(line.kind, sizeof line.kind, "%s", kind);
        (void)snprintf(line.text, sizeof line.text, "%s", text);
        kernel_log_add(l, &line);
        kernel_log_add(l, &line); /* a watch that starts again reports it again */
}

/* @return the lines, a blank between them */
static const char *lines_of(const KernelLog *l, const CrashedProcess *p, pid_t pid) {
        static char all[4096];
        StrBuf b = STRBUF_INIT;
        strbuf_add(&b, "{");
        assert_int_equal(kernel_log_write(l, p, &b), pid);
        strbuf_add(&b, "}");
        json_t *v = json_loadb(b.text, b.n, JSON_REJECT_DUPLICATES, NULL);
        assert_non_null(v);
        all[0] = '\0';
        for (size_t i = 0; i < json_array_size(json_object_get(v, "kernel")); i++) {
                const json_t *line = json_array_get(json_object_get(v, "kernel"), i);
                strcat(all, json_string_value(json_object_get(line, "text")));
                strcat(all, ";");
        }
        json_decref(v);
        strbuf_done(&b);
        return all;
}

static void lines_of_the_process_and_of_the_hardware_are_found(void **state) {
        _cleanup_(kernel_log_freep) KernelLog *l = kernel_log_new();
        const CrashedProcess p = {
                .pid = 7, .command = "python3", .first_usec = T0, .last_usec = T0 + USEC_PER_SEC
        };
        (void)state;
        add(l, "segfault", T0, "python3[7]: segfault at 0");
        add(l, "segfault", T0 - 2 * USEC_PER_HOUR, "python3[7]: segfault at 2");
        add(l, "segfault", T0, "bash[7]: segfault at 3");
        add(l, "segfault", T0 + USEC_PER_MINUTE, "python3[8]: segfault at 4");
        add(l, "mce", T0 - USEC_PER_MINUTE, "mce: near");
        add(l, "aer", T0 - USEC_PER_HOUR, "AER: long ago");
        add(l, "efa", T0 + USEC_PER_MINUTE, "efa 0: near");
        assert_string_equal(lines_of(l, &p, 7), "python3[7]: segfault at 0;mce: near;efa 0: near;");
}

static void in_a_container_it_has_another_pid_than_in_the_log(void **state) {
        _cleanup_(kernel_log_freep) KernelLog *l = kernel_log_new();
        const CrashedProcess p = {
                .pid = 7, .command = "python3", .first_usec = T0, .last_usec = T0
        };
        (void)state;
        add(l, "segfault", T0 - USEC_PER_SEC, "python3[40007]: segfault at 0");
        add(l, "segfault", T0 - USEC_PER_MINUTE, "python3[40008]: segfault at 0");
        assert_string_equal(lines_of(l, &p, 40007), "python3[40007]: segfault at 0;");
}

static void a_report_has_no_more_lines_than_its_bound(void **state) {
        _cleanup_(kernel_log_freep) KernelLog *l = kernel_log_new();
        const CrashedProcess p = { .first_usec = T0, .last_usec = T0 };
        StrBuf b = STRBUF_INIT;
        size_t n = 0;
        (void)state;
        for (unsigned i = 0; i < 3 * KERNEL_LOG_LINES_MAX; i++)
                add(l, "mce", T0, "mce: one");
        (void)kernel_log_write(l, &p, &b);
        for (const char *at = b.text; (at = strstr(at, "mce: one")); at++)
                n++;
        assert_int_equal(n, KERNEL_LOG_LINES_MAX_OF_REPORT);
        strbuf_done(&b);
}

static void lines_of_the_hardware_do_not_hide_those_of_the_process(void **state) {
        _cleanup_(kernel_log_freep) KernelLog *l = kernel_log_new();
        const CrashedProcess p = {
                .pid = 7, .command = "python3", .first_usec = T0, .last_usec = T0
        };
        (void)state;
        add(l, "aer", T0, "AER");
        add(l, "segfault", T0, "python3[7]: segfault at 0");
        for (unsigned i = 0; i < 2 * KERNEL_LOG_LINES_MAX; i++)
                add(l, "aer", T0, "AER");
        const char *lines = lines_of(l, &p, 7);
        assert_memory_equal(lines, "python3[7]: segfault at 0;AER;", 30);
        for (unsigned i = 0; i < 2 * KERNEL_LOG_LINES_MAX; i++)
                add(l, "segfault", T0, "other[8]: segfault at 0");
        assert_non_null(strstr(lines_of(l, &p, 0), "AER;"));
}

static void an_oom_kill_is_parsed(void **state) {
        OomKill k;
        (void)state;
        assert_true(oom_kill_parse(KILLED, &k));
        assert_int_equal(k.pid, 4711);
        assert_int_equal(k.uid, 1000);
        assert_string_equal(k.command, "python3");
        assert_true(oom_kill_parse("Out of memory: Killed process 5 (a) b) total-vm:1kB", &k));
        assert_string_equal(k.command, "a) b");
        assert_false(oom_kill_parse("x: Out of memory: Killed process 5 (a) total-vm:1kB", &k));
        assert_false(oom_kill_parse("Out of memory: Killed process 0 (a)", &k));
        assert_false(oom_kill_parse("Out of memory: Killed process 5", &k));
        assert_false(oom_kill_parse("Out of memory: Killed process 5 (a", &k));
        assert_false(oom_kill_parse(
                "Out of memory: Killed process 5 (abcdefghijklmnopqrstuvwxyz) total-vm:", &k));
}

int main(void) {
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(lines_of_the_process_and_of_the_hardware_are_found),
                cmocka_unit_test(in_a_container_it_has_another_pid_than_in_the_log),
                cmocka_unit_test(a_report_has_no_more_lines_than_its_bound),
                cmocka_unit_test(lines_of_the_hardware_do_not_hide_those_of_the_process),
                cmocka_unit_test(an_oom_kill_is_parsed),
        };
        return cmocka_run_group_tests(tests, NULL, NULL);
}
