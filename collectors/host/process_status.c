/* What of a process can be read without waiting for it: status, place, limits, devices, children;
 * and, by the devices, its neighbours. Neighbours are the other processes that hold a device of
 * this one. Their records are written one by one, since reading the environment of one may wait. */
#include "collectors/host/process_status.h"

#include <errno.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include "collectors/host/job_record.h"
#include "collectors/host/procfs.h"
#include "lib/base/cleanup.h"
#include "lib/base/json_out.h"
#include "lib/base/parse.h"

enum { FILE_BYTES_MAX = 64 << 10, CHILDREN_MAX = 256, CHILD_THREADS_MAX = 2000 };

/* Adds those lines `NAME: value` of a file that are named. */
static void add_fields(ProcessReport *report, const char *file, const char *const *names) {
        _cleanup_(strbuf_done) StrBuf text = STRBUF_INIT;
        int r = procfs_read(report->p, (ProcFile){ file, FILE_BYTES_MAX }, &text, NULL);

        if (r != 0 || !text.text) {
                process_report_add_missing(&report->b, file, r != 0 ? r : PROCFS_E_NO_FILE);
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
                process_report_add_missing(&report->b, key, r);
}

void process_status_record(ProcessReport *report) {
        /* clang-format off */
        static const char *const status[] = {
                "Name", "State", "Tgid", "Pid", "PPid", "TracerPid", "Uid", "Gid",
                "NStgid", "NSpid", "FDSize", "VmPeak", "VmSize", "VmLck", "VmHWM",
                "VmRSS", "RssAnon", "RssFile", "VmSwap", "HugetlbPages",
                "CoreDumping", "Threads", "SigQ", "SigPnd", "ShdPnd", "SigBlk",
                "SigIgn", "SigCgt", "CapEff", "NoNewPrivs", "Seccomp",
                "Cpus_allowed_list", "Mems_allowed_list", NULL
        };
        /* clang-format on */
        static const char *const io[] = { "rchar",      "wchar",       "syscr", "syscw",
                                          "read_bytes", "write_bytes", NULL };

        process_report_begin(report, "status");
        json_out_text(&report->b, "state", &report->p->stat.state, 1);
        json_out_bool(&report->b, "zombie", procfs_is_zombie(report->p));
        json_out_u64(&report->b, "uid", report->p->uid);
        add_fields(report, "status", status);
        add_fields(report, "io", io);
        process_report_end(report);
}

void process_status_place(ProcessReport *report) {
        static const char *const kinds[] = { "cgroup", "ipc", "mnt", "net", "pid", "user", "uts" };
        _cleanup_(strbuf_done) StrBuf text = STRBUF_INIT;

        process_report_begin(report, "place");
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
        int r = procfs_read(report->p, (ProcFile){ "cgroup", FILE_BYTES_MAX }, &text, NULL);
        if (r == 0)
                json_out_text(&report->b, "cgroup", text.text ? text.text : "", text.n);
        else
                process_report_add_missing(&report->b, "cgroup", r);
        process_report_add_word(report, "oom_score", "oom_score");
        process_report_add_word(report, "oom_score_adj", "oom_score_adj");
        process_report_end(report);
}

void process_status_limits(ProcessReport *report) {
        _cleanup_(strbuf_done) StrBuf text = STRBUF_INIT;
        int r = procfs_read(report->p, (ProcFile){ "limits", FILE_BYTES_MAX }, &text, NULL);

        process_report_begin(report, "limits");
        if (r != 0)
                process_report_add_missing(&report->b, "limits", r);
        else
                process_report_add_lines(report, "limits", text.text, SIZE_MAX);
        process_report_write_raw(report, "limits", &text);
        process_report_end(report);
}

static bool shares_device(const DeviceHolder *a, const DeviceHolder *b) {
        for (size_t i = 0; i < a->n_devices; i++)
                for (size_t k = 0; k < b->n_devices; k++)
                        if (a->devices[i] == b->devices[k])
                                return true;
        return false;
}

void process_status_devices(ProcessReport *report, const DeviceHolders *scan,
                            const DeviceHolder *mine, int outcome) {
        process_report_begin(report, "devices");
        if (outcome != 0)
                process_report_add_missing(&report->b, "devices", outcome);
        else
                device_holders_add_devices(&report->b, mine);
        json_out_array(&report->b, "also_held_by");
        for (size_t i = 0; i < scan->n_holders; i++) {
                const DeviceHolder *h = &scan->holders[i];
                if (h->stat.pid == report->p->stat.pid || !shares_device(h, mine))
                        continue;
                json_out_object(&report->b, NULL);
                json_out_i64(&report->b, "pid", h->stat.pid);
                json_out_u64(&report->b, "start_ticks", h->stat.start_ticks);
                json_out_u64(&report->b, "uid", h->uid);
                json_out_string(&report->b, "comm", h->stat.comm);
                device_holders_add_devices(&report->b, h);
                json_out_end_object(&report->b);
        }
        json_out_end_array(&report->b);
        process_report_end(report);
}

void process_status_neighbours(ProcessReport *report, const DeviceHolders *scan,
                               const DeviceHolder *mine) {
        for (size_t i = 0; i < scan->n_holders && report->result == 0; i++) {
                const DeviceHolder *h = &scan->holders[i];
                _cleanup_(procfs_close) Proc p = { .dir_fd = -1 };
                if (h->stat.pid == report->p->stat.pid || !shares_device(h, mine) ||
                    procfs_open(&p, report->request->proc_root, h->stat.pid, h->stat.start_ticks) !=
                            0)
                        continue;
                process_report_begin(report, "neighbour");
                json_out_i64(&report->b, "neighbour_pid", h->stat.pid);
                json_out_u64(&report->b, "neighbour_start_ticks", h->stat.start_ticks);
                job_record_add_identity(&report->b, &p);
                if (procfs_check(&p) != PROCFS_E_REPLACED)
                        process_report_end(report);
        }
}

/* @return whether it was added. The hook is left out: it is ours */
static bool add_child(ProcessReport *report, pid_t pid) {
        _cleanup_(procfs_close) Proc p = { .dir_fd = -1 };

        if (procfs_open(&p, report->request->proc_root, pid, 0) != 0 ||
            strncmp(p.stat.comm, "neuron-dump", 11) == 0)
                return false;
        json_out_object(&report->b, NULL);
        json_out_i64(&report->b, "pid", pid);
        json_out_u64(&report->b, "start_ticks", p.stat.start_ticks);
        json_out_string(&report->b, "comm", p.stat.comm);
        json_out_text(&report->b, "state", &p.stat.state, 1);
        json_out_end_object(&report->b);
        return true;
}

/* Adds the children of one thread. @return how many */
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

void process_status_children(ProcessReport *report) {
        _cleanup_(procfs_numbers_done) ProcNumbers tids = { 0 };
        size_t n_children = 0;
        int r = procfs_list(report->p->dir_fd, "task", CHILD_THREADS_MAX, &tids), first = 0;

        process_report_begin(report, "children");
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
        process_report_end(report);
}
