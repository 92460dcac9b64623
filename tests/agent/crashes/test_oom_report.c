/* The report of a process that the OOM killer has killed. */
#include "tests/harness/unit.h"

#include <jansson.h>
#include <string.h>

#include "agent/crashes/oom_report.h"

#define T0 (UINT64_C(1779859295) * USEC_PER_SEC)
#define KILLED                                                                                     \
        "Memory cgroup out of memory: Killed process 4711 (python3) total-vm:1kB, anon-rss:1kB, "  \
        "file-rss:0kB, shmem-rss:0kB, UID:1000 pgtables:1kB oom_score_adj:0"
#define CONSTRAINT                                                                                 \
        "oom-kill:constraint=CONSTRAINT_MEMCG,nodemask=(null),cpuset=a,mems_allowed=0,"            \
        "oom_memcg=/slurm,task_memcg=/slurm/job_7,task=python3,pid=4711,uid=1000"

static void add(KernelLog *l, const char *kind, uint64_t usec, const char *text) {
        static uint64_t seq;
        KernelLine line = { .usec = usec, .seq = ++seq };
        (void)snprintf(line.kind, sizeof line.kind, "%s", kind);
        (void)snprintf(line.text, sizeof line.text, "%s", text);
        kernel_log_add(l, &line);
}

static void the_report_of_an_oom_kill_names_the_cgroup(void **state) {
        _cleanup_(kernel_log_freep) KernelLog *l = kernel_log_new();
        _cleanup_(strbuf_done) StrBuf json = STRBUF_INIT, text = STRBUF_INIT;
        KernelLine line = { .usec = T0, .seq = 1000, .kind = "oom", .text = KILLED };
        (void)state;
        add(l, "oom", T0, "oom-kill:constraint=X,oom_memcg=/,task_memcg=/b,task=c,pid=9,uid=0");
        add(l, "oom", T0, CONSTRAINT);
        kernel_log_add(l, &line);
        OomKill kill;
        assert_true(oom_kill_parse(line.text, &kill));
        oom_report_write(l, &line, &kill, "{\"key\":\"k\"}", &json, &text);
        json_t *v = json_loadb(json.text, json.n, JSON_REJECT_DUPLICATES, NULL);
        assert_non_null(v);
        const char *cgroup, *name, *rule, *key;
        assert_int_equal(json_unpack(v, "{s:{s:s},s:{s:s},s:[{s:s}],s:{s:s}}", "process", "cgroup",
                                     &cgroup, "signal", "name", &name, "verdicts", "rule", &rule,
                                     "job", "key", &key),
                         0);
        assert_string_equal(cgroup, "/slurm/job_7");
        assert_string_equal(name, "SIGKILL");
        assert_string_equal(rule, "out-of-memory");
        assert_int_equal(json_array_size(json_object_get(v, "kernel")), 2);
        json_decref(v);
        assert_non_null(strstr(text.text, "/slurm/job_7"));
        assert_non_null(strstr(text.text, "4711"));
}

int main(void) {
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(the_report_of_an_oom_kill_names_the_cgroup),
        };
        return cmocka_run_group_tests(tests, NULL, NULL);
}
