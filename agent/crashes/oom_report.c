/* The crash report of a process that the OOM killer of the kernel has killed. Such a process leaves
 * no core: what the kernel log says of it is the report. */
#include "agent/crashes/oom_report.h"

#include "lib/base/clock.h"
#include "lib/base/json_out.h"

static void write_json(const OomKill *kill, const KernelLog *l, const KernelLine *line,
                       const char *job, StrBuf *b) {
        const CrashedProcess p = { .pid = kill->pid,
                                   .first_usec = line->usec,
                                   .last_usec = line->usec };
        json_out_object(b, NULL);
        json_out_u64(b, "version", 1);
        json_out_null(b, "core");
        json_out_object(b, "process");
        json_out_i64(b, "pid", kill->pid);
        json_out_string(b, "command", kill->command);
        json_out_string(b, "cgroup", kill->cgroup[0] ? kill->cgroup : NULL);
        json_out_end_object(b);
        json_out_raw(b, "signal",
                     "{\"number\":9,\"name\":\"SIGKILL\","
                     "\"text\":\"killed by the kernel's OOM killer\"}");
        json_out_array(b, "verdicts");
        json_out_object(b, NULL);
        json_out_string(b, "rule", "out-of-memory");
        json_out_string(b, "kind", "cause");
        json_out_string(b, "reason", "its memory cgroup or the machine had no memory left");
        json_out_string(b, "evidence", line->text);
        json_out_end_object(b);
        json_out_end_array(b);
        (void)kernel_log_write(l, &p, b); /* its pid is known */
        json_out_raw(b, "job", job ? job : "null");
        json_out_end_object(b);
        strbuf_add(b, "\n");
}

static void write_text(const OomKill *kill, const KernelLine *line, StrBuf *b) {
        char time[CLOCK_ISO_SIZE];
        strbuf_addf(b, "# Killed by the kernel's OOM killer: pid %d, ", (int)kill->pid);
        strbuf_add_code(b, kill->command);
        strbuf_add(b, "\n\n**out-of-memory** (cause): its memory cgroup or the machine had no "
                      "memory left. A process that is killed so leaves no core.\n\n- cgroup: ");
        strbuf_add_code(b, kill->cgroup[0] ? kill->cgroup : "not known");
        strbuf_addf(b, "\n- kernel log, %s: ", clock_format_iso(time, line->usec));
        strbuf_add_code(b, line->text);
        strbuf_add(b, "\n\nCompare anon-rss with the limit of the cgroup (`memory.max`, the "
                      "container's or job's memory): raise it, or lower what the process needs "
                      "(data loaders, compilation in parallel).\n");
}

void oom_report_write(const KernelLog *l, const KernelLine *line, OomKill *kill, const char *job,
                      StrBuf *json, StrBuf *text) {
        kernel_log_find_cgroup(l, kill);
        write_json(kill, l, line, job, json);
        write_text(kill, line, text);
}
