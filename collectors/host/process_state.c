/* What of a process can be read without waiting for it: status, place, limits, devices, children. And its neighbours' jobs, which may. */
#include <errno.h>
#include <string.h>

#include "collectors/host/process_private.h"
#include "lib/base/cleanup.h"
#include "lib/base/json_out.h"
#include "lib/base/parse.h"

enum { FILE_BYTES_MAX = 64 << 10, CHILDREN_MAX = 256, CHILD_THREADS_MAX = 2000 };

/* Adds selected lines of a file of `NAME: value` lines as members. */
static void add_fields(ProcessReport *report, const char *file, const char *const *names) {
        _cleanup_(strbuf_done) StrBuf text = STRBUF_INIT;
        int r = procfs_read(report->p, (ProcFile){ file, FILE_BYTES_MAX }, &text, NULL);

        if (r != 0 || !text.text) {
                process_add_missing(&report->b, file, r != 0 ? r : PROCFS_E_NO_FILE);
                return;
        }
        json_out_object(&report->b, file);
        for (; *names; names++) {
                size_t n;
                const char *value = procfs_field(text.text, *names, &n);
                if (value)
                        json_out_text(&report->b, *names, value, n);
        }
        json_out_end_object(&report->b);
}

static void add_link(ProcessReport *report, const char *key, const char *name) {
        char target[PROCFS_LINK_SIZE];
        int r = procfs_link(report->p, name, target);

        if (r == 0)
                procfs_add_path(&report->b, key, target);
        else
                process_add_missing(&report->b, key, r);
}

void process_status(ProcessReport *report) {
        static const char *const status[] = { "Name",
                                              "State",
                                              "Tgid",
                                              "Pid",
                                              "PPid",
                                              "TracerPid",
                                              "Uid",
                                              "Gid",
                                              "NStgid",
                                              "NSpid",
                                              "FDSize",
                                              "VmPeak",
                                              "VmSize",
                                              "VmLck",
                                              "VmHWM",
                                              "VmRSS",
                                              "RssAnon",
                                              "RssFile",
                                              "VmSwap",
                                              "HugetlbPages",
                                              "CoreDumping",
                                              "Threads",
                                              "SigQ",
                                              "SigPnd",
                                              "ShdPnd",
                                              "SigBlk",
                                              "SigIgn",
                                              "SigCgt",
                                              "CapEff",
                                              "NoNewPrivs",
                                              "Seccomp",
                                              "Cpus_allowed_list",
                                              "Mems_allowed_list",
                                              NULL };
        static const char *const io[] = { "rchar",      "wchar",       "syscr", "syscw",
                                          "read_bytes", "write_bytes", NULL };

        process_begin(report, "status");
        json_out_text(&report->b, "state", &report->p->stat.state, 1);
        json_out_bool(&report->b, "zombie", procfs_is_zombie(report->p));
        json_out_u64(&report->b, "uid", report->p->uid);
        add_fields(report, "status", status);
        add_fields(report, "io", io);
        process_end(report);
}

static void add_file_text(ProcessReport *report, const char *key, const char *name) {
        _cleanup_(strbuf_done) StrBuf text = STRBUF_INIT;
        int r = procfs_read(report->p, (ProcFile){ name, 256 }, &text, NULL);

        if (r == 0)
                json_out_text(&report->b, key, text.text ? text.text : "",
                              text.text ? strcspn(text.text, "\n") : 0);
        else
                process_add_missing(&report->b, key, r);
}

void process_place(ProcessReport *report) {
        static const char *const kinds[] = { "cgroup", "ipc", "mnt", "net", "pid", "user", "uts" };
        _cleanup_(strbuf_done) StrBuf text = STRBUF_INIT;
        int r;

        process_begin(report, "place");
        add_link(report, "exe", "exe");
        add_link(report, "cwd", "cwd");
        add_link(report, "root", "root");
        json_out_object(&report->b, "namespaces");
        for (size_t i = 0; i < ELEMENTSOF(kinds); i++) {
                char name[32];
                (void)snprintf(name, sizeof name, "ns/%s", kinds[i]);
                add_link(report, kinds[i], name);
        }
        json_out_end_object(&report->b);
        r = procfs_read(report->p, (ProcFile){ "cgroup", FILE_BYTES_MAX }, &text, NULL);
        if (r == 0)
                json_out_text(&report->b, "cgroup", text.text ? text.text : "", text.n);
        else
                process_add_missing(&report->b, "cgroup", r);
        add_file_text(report, "oom_score", "oom_score");
        add_file_text(report, "oom_score_adj", "oom_score_adj");
        process_end(report);
}

void process_limits(ProcessReport *report) {
        _cleanup_(strbuf_done) StrBuf text = STRBUF_INIT;
        int r = procfs_read(report->p, (ProcFile){ "limits", FILE_BYTES_MAX }, &text, NULL);

        process_begin(report, "limits");
        if (r != 0)
                process_add_missing(&report->b, "limits", r);
        else
                json_out_array(&report->b, "limits");
        for (char *line = text.text; r == 0 && line && *line != '\0';) {
                size_t n = strcspn(line, "\n");
                json_out_text(&report->b, NULL, line, n);
                process_raw_line(report, 'L', line, n);
                line = line[n] == '\n' ? line + n + 1 : NULL;
        }
        if (r == 0)
                json_out_end_array(&report->b);
        process_end(report);
}

static bool shares_device(const JobsHolder *a, const JobsHolder *b) {
        for (size_t i = 0; i < a->n_devices; i++)
                for (size_t k = 0; k < b->n_devices; k++)
                        if (a->devices[i] == b->devices[k])
                                return true;
        return false;
}

/* Who else holds a device of this process: by the scan that was made before. */
void process_devices(ProcessReport *report, const JobsScan *scan) {
        JobsHolder mine = { 0 };
        int r = jobs_devices_of(report->order, report->p, &mine);

        process_begin(report, "devices");
        if (r != 0)
                process_add_missing(&report->b, "devices", r);
        else
                jobs_add_devices(&report->b, &mine);
        json_out_array(&report->b, "also_held_by");
        for (size_t i = 0; i < scan->n_holders; i++) {
                const JobsHolder *h = &scan->holders[i];
                if (h->stat.pid == report->p->stat.pid || !shares_device(h, &mine))
                        continue;
                json_out_object(&report->b, NULL);
                json_out_i64(&report->b, "pid", h->stat.pid);
                json_out_u64(&report->b, "start_ticks", h->stat.start_ticks);
                json_out_u64(&report->b, "uid", h->uid);
                json_out_string(&report->b, "comm", h->stat.comm);
                jobs_add_devices(&report->b, h);
                json_out_end_object(&report->b);
        }
        json_out_end_array(&report->b);
        process_end(report);
}

/* Their jobs, each a record: reading the environment of one may wait, and then the others have been said. */
void process_neighbours(ProcessReport *report, const JobsScan *scan) {
        JobsHolder mine = { 0 };

        if (jobs_devices_of(report->order, report->p, &mine) != 0)
                return;
        for (size_t i = 0; i < scan->n_holders && report->result == 0; i++) {
                const JobsHolder *h = &scan->holders[i];
                Proc p;
                if (h->stat.pid == report->p->stat.pid || !shares_device(h, &mine) ||
                    procfs_open(&p, report->order->proc_root, h->stat.pid, h->stat.start_ticks) !=
                            0)
                        continue;
                process_begin(report, "neighbour");
                json_out_i64(&report->b, "neighbour_pid", h->stat.pid);
                json_out_u64(&report->b, "neighbour_start_ticks", h->stat.start_ticks);
                jobs_add_identity(&report->b, &p);
                if (procfs_check(&p) != PROCFS_E_REPLACED)
                        process_end(report);
                procfs_close(&p);
        }
}

/* @return whether it was one to tell of: the runtime's hook is our own doing */
static bool add_child(ProcessReport *report, pid_t pid) {
        Proc p;

        if (procfs_open(&p, report->order->proc_root, pid, 0) != 0)
                return false;
        bool is_hook = strncmp(p.stat.comm, "neuron-dump", 11) == 0;
        if (!is_hook) {
                json_out_object(&report->b, NULL);
                json_out_i64(&report->b, "pid", pid);
                json_out_u64(&report->b, "start_ticks", p.stat.start_ticks);
                json_out_string(&report->b, "comm", p.stat.comm);
                json_out_text(&report->b, "state", &p.stat.state, 1);
                json_out_end_object(&report->b);
        }
        procfs_close(&p);
        return !is_hook;
}

/* @return how many children of one thread were added */
static size_t add_children_of(ProcessReport *report, int tid, size_t max, int *ret_outcome) {
        _cleanup_(strbuf_done) StrBuf text = STRBUF_INIT;
        size_t n = 0;
        char name[64], *save = NULL;

        (void)snprintf(name, sizeof name, "task/%d/children", tid);
        *ret_outcome = procfs_read(report->p, (ProcFile){ name, FILE_BYTES_MAX }, &text, NULL);
        if (*ret_outcome != 0 || !text.text)
                return 0;
        for (char *word = strtok_r(text.text, " \n", &save); word && n < max;
             word = strtok_r(NULL, " \n", &save)) {
                uint64_t pid;
                if (parse_u64_range(word, 1, INT32_MAX, &pid) == 0)
                        n += add_child(report, (pid_t)pid);
        }
        return n;
}

void process_children(ProcessReport *report) {
        _cleanup_(procfs_numbers_done) ProcNumbers tids = { 0 };
        size_t n_children = 0;
        int r = procfs_list(report->p->dir_fd, "task", CHILD_THREADS_MAX, &tids), first = 0;

        process_begin(report, "children");
        json_out_array(&report->b, "children");
        for (size_t i = 0; i < tids.n && n_children < CHILDREN_MAX; i++) {
                int outcome;
                n_children +=
                        add_children_of(report, tids.items[i], CHILDREN_MAX - n_children, &outcome);
                if (first == 0)
                        first = outcome;
        }
        json_out_end_array(&report->b);
        json_out_bool(&report->b, "cut", n_children == CHILDREN_MAX);
        if (r < 0 || first != 0)
                json_out_string(&report->b, "children_unavailable",
                                procfs_reason(r < 0 ? r : first));
        process_end(report);
}
