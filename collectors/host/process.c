/* Processes that the snapshot is about. Each is read by a part of its own (child_pool.h), which
 * writes record by record: first what never waits (status, limits, descriptors, threads), then what
 * may (maps, command line, environment), so that a process which makes its reader wait costs its
 * own last records and nobody else's. */
#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stddef.h>
#include <string.h>
#include <sys/sysmacros.h>

#include "collectors/host/device_holders.h"
#include "collectors/host/elf_notes.h"
#include "collectors/host/job_record.h"
#include "collectors/host/procfs.h"
#include "collectors/runner/child_pool.h"
#include "collectors/runner/collector.h"
#include "lib/base/cleanup.h"
#include "lib/base/digest.h"
#include "lib/base/fs.h"
#include "lib/base/json_out.h"
#include "lib/base/parse.h"
#include "lib/base/redact.h"
#include "lib/base/strbuf.h"
#include "lib/neuron/job.h"

/** Where the records of one process go: lines to the parent. */
typedef struct ProcessReport {
        const CollectRequest *request;
        const Proc *p;
        int fd;
        bool has_raw_files;
        StrBuf b;   /* the record that is being made */
        int result; /* 0; PROCFS_E_REPLACED: nothing more is written; -errno */
} ProcessReport;

enum { RAW_BYTES_MAX = 256 << 10 }; /* a large process has some thousand mappings of 100 bytes */

static void begin_record(ProcessReport *report, const char *about) {
        strbuf_clear(&report->b);
        json_out_object(&report->b, NULL);
        json_out_i64(&report->b, "pid", report->p->stat.pid);
        json_out_u64(&report->b, "start_ticks", report->p->stat.start_ticks);
        json_out_string(&report->b, "about", about);
}

static void end_record(ProcessReport *report) {
        json_out_end_object(&report->b);
        strbuf_add(&report->b, "\n");
        if (report->result != 0)
                return;
        int r = strbuf_error(&report->b);
        if (r == 0)
                r = procfs_check(report->p) == PROCFS_E_REPLACED ? PROCFS_E_REPLACED : 0;
        if (r == 0)
                r = fs_write_all(report->fd, report->b.text, report->b.n);
        report->result = r;
}

static void add_missing(StrBuf *b, const char *key, int outcome) {
        char name[64];

        json_out_null(b, key);
        (void)snprintf(name, sizeof name, "%s_unavailable", key);
        json_out_string(b, name, procfs_reason(outcome));
}

/* What there is of a text in whole lines becomes a raw file, redacted. */
static void write_raw(const ProcessReport *report, const char *kind, const StrBuf *text) {
        _cleanup_(strbuf_done) StrBuf clean = STRBUF_INIT;
        CollectOut out = { .dir_fd = CHILD_POOL_KEPT_FD };
        size_t n = MIN(text->n, (size_t)RAW_BYTES_MAX);
        char name[64];

        while (n > 0 && n < text->n && text->text[n - 1] != '\n')
                n--;
        if (n == 0 || !report->has_raw_files)
                return;
        redact_text(&clean, text->text, n);
        (void)snprintf(name, sizeof name, "process-%d-%s.txt", report->p->stat.pid, kind);
        _cleanup_close_ int fd = collect_raw_file(&out, name);
        if (fd >= 0 && strbuf_error(&clean) == 0)
                (void)fs_write_all(fd, clean.text, clean.n); /* a loss is seen where it is read */
}

/* Threads of a process: where each stands. One record a thread, so that what was written before a
 * deadline is whole. */

enum { THREADS_MAX = 2000, WORD_BYTES_MAX = 256, STACK_BYTES_MAX = 8 << 10, STACK_LINES_MAX = 64 };

/* Adds the one line of a file, or null and why. */
static void add_word(ProcessReport *report, const char *key, const char *name) {
        _cleanup_(strbuf_done) StrBuf text = STRBUF_INIT;
        int r = procfs_read(report->p, (ProcFile){ name, WORD_BYTES_MAX }, &text, NULL);

        if (r == 0)
                json_out_text(&report->b, key, text.text ? text.text : "",
                              text.text ? strcspn(text.text, "\n") : 0);
        else
                add_missing(&report->b, key, r);
}

static void add_thread_word(ProcessReport *report, int tid, const char *name) {
        char path[64];

        (void)snprintf(path, sizeof path, "task/%d/%s", tid, name);
        add_word(report, name, path);
}

/* The first n_max lines of a text. */
static void add_lines(ProcessReport *report, const char *key, const char *text, size_t n_max) {
        json_out_array(&report->b, key);
        for (const char *line = text; line && *line != '\0' && n_max > 0; n_max--) {
                size_t n = strcspn(line, "\n");
                json_out_text(&report->b, NULL, line, n);
                line = line[n] == '\n' ? line + n + 1 : NULL;
        }
        json_out_end_array(&report->b);
}

static void add_stack(ProcessReport *report, int tid) {
        _cleanup_(strbuf_done) StrBuf text = STRBUF_INIT;
        char path[64];

        (void)snprintf(path, sizeof path, "task/%d/stack", tid);
        int r = procfs_read(report->p, (ProcFile){ path, STACK_BYTES_MAX }, &text, NULL);
        if (r != 0)
                add_missing(&report->b, "kernel_stack", r);
        else
                add_lines(report, "kernel_stack", text.text, STACK_LINES_MAX);
}

static void add_state(ProcessReport *report, int tid) {
        _cleanup_(strbuf_done) StrBuf text = STRBUF_INIT;
        char path[64];
        ProcStat stat;

        (void)snprintf(path, sizeof path, "task/%d/stat", tid);
        int r = procfs_read(report->p, (ProcFile){ path, 4096 }, &text, NULL);
        if (r != 0 || !text.text || !procfs_parse_stat(text.text, text.n, &stat)) {
                add_missing(&report->b, "state", r != 0 ? r : -EBADMSG);
                return;
        }
        json_out_text(&report->b, "state", &stat.state, 1);
        json_out_string(&report->b, "name", stat.comm);
}

static void report_threads(ProcessReport *report) {
        _cleanup_(procfs_numbers_done) ProcNumbers tids = { 0 };
        int r = procfs_list(report->p->dir_fd, "task", THREADS_MAX, &tids);

        begin_record(report, "threads");
        if (r < 0)
                add_missing(&report->b, "threads", r);
        else
                json_out_u64(&report->b, "threads", tids.n);
        json_out_bool(&report->b, "cut", tids.is_cut);
        end_record(report);
        for (size_t i = 0; i < tids.n && report->result == 0; i++) {
                begin_record(report, "thread");
                json_out_i64(&report->b, "tid", tids.items[i]);
                add_state(report, tids.items[i]);
                add_thread_word(report, tids.items[i], "wchan");
                add_thread_word(report, tids.items[i], "syscall");
                add_stack(report, tids.items[i]);
                end_record(report);
        }
}

/* What takes the process's memory lock to read, and so may wait for ever: its maps, command line
 * and environment. */

enum {
        MAPS_READ_MAX = 8 << 20, /* searched for libraries */
        CMDLINE_BYTES_MAX = 64 << 10,
        ENVIRON_BYTES_MAX = 1 << 20, /* the kernel's limit for one string is 128 KiB, for all a
                                        quarter of the stack's */
        ENVIRON_RECORD_MAX = 128 << 10,
        VARIABLES_MAX = 8192,
        VARIABLE_BYTES_MAX = 8 << 10,
        LIBRARIES_MAX = 32,
        LIBRARY_PATH_MAX = 1024,
};

typedef struct Library {
        char path[LIBRARY_PATH_MAX];
        ProcMap map; /* its path is the line's and gone */
} Library;

/* The runtime, its collectives, and the firmware that they load: the Neuron documentation */
static bool is_neuron_library(const ProcMap *m) {
        static const char *const names[] = { "libnrt.so", "libnccom.so", "libncfw.so" };
        const char *slash = memrchr(m->path, '/', m->n_path);
        size_t n = slash ? m->n_path - (size_t)(slash + 1 - m->path) : 0;

        for (size_t i = 0; i < ELEMENTSOF(names); i++)
                if (n >= strlen(names[i]) && memcmp(slash + 1, names[i], strlen(names[i])) == 0)
                        return true;
        return false;
}

static void note_library(Library *list, size_t *n, const ProcMap *m) {
        if (m->n_path == 0 || m->n_path >= LIBRARY_PATH_MAX || *n == LIBRARIES_MAX ||
            !is_neuron_library(m))
                return;
        for (size_t i = 0; i < *n; i++)
                if (strlen(list[i].path) == m->n_path &&
                    memcmp(list[i].path, m->path, m->n_path) == 0)
                        return;
        memcpy(list[*n].path, m->path, m->n_path);
        list[*n].path[m->n_path] = '\0';
        list[(*n)++].map = *m;
}

/* Not by map_files, which takes a capability that the collector does not have: of a file that was
 * replaced there is no build id. @see proc_pid_map_files(5) */
static int open_library(const ProcessReport *report, const Library *l) {
        _cleanup_close_ int root_fd = procfs_root(report->p);
        struct stat st;

        if (root_fd < 0 || l->map.is_deleted)
                return root_fd < 0 ? root_fd : -ENOENT;
        _cleanup_close_ int fd = procfs_root_open(root_fd, l->path, O_RDONLY, &st);
        if (fd >= 0 && st.st_ino != l->map.inode)
                return -ESTALE;
        return fd < 0 ? fd : TAKE_FD(fd);
}

static void add_library(ProcessReport *report, const Library *l) {
        char hex[2 * ELF_BUILD_ID_MAX + 1];
        BuildId id = { .n = 0 };
        _cleanup_close_ int fd = open_library(report, l);
        int r = fd < 0 ? fd : build_id_read(fd, &id);

        json_out_object(&report->b, NULL);
        procfs_add_path(&report->b, "path", l->path);
        json_out_bool(&report->b, "deleted", l->map.is_deleted);
        json_out_u64(&report->b, "inode", l->map.inode);
        if (r < 0)
                add_missing(&report->b, "build_id", r);
        else
                json_out_string(&report->b, "build_id",
                                id.n ? digest_hex(id.bytes, id.n, hex) : NULL);
        if (fd >= 0)
                json_out_string(&report->b, "read_by", "path");
        json_out_end_object(&report->b);
}

/* @return how many lines there are */
static size_t walk_maps(const StrBuf *text, Library *libraries, size_t *n_libraries) {
        size_t n_lines = 0;

        for (const char *line = text->text; line && *line != '\0'; n_lines++) {
                size_t n = strcspn(line, "\n");
                ProcMap m;
                if (procfs_parse_map(line, n, &m))
                        note_library(libraries, n_libraries, &m);
                line = line[n] == '\n' ? line + n + 1 : NULL;
        }
        return n_lines;
}

static void report_maps(ProcessReport *report) {
        _cleanup_(strbuf_done) StrBuf text = STRBUF_INIT;
        _cleanup_free_ Library *libraries = calloc(LIBRARIES_MAX, sizeof *libraries);
        size_t n_libraries = 0, n_lines;
        bool is_cut = false;
        int r = libraries ? procfs_read(report->p, (ProcFile){ "maps", MAPS_READ_MAX }, &text,
                                        &is_cut)
                          : -ENOMEM;

        if (r == 0)
                r = procfs_check(report->p) == PROCFS_E_REPLACED ? PROCFS_E_REPLACED : 0;
        begin_record(report, "maps");
        if (r != 0) {
                add_missing(&report->b, "libraries", r);
                end_record(report);
                return;
        }
        write_raw(report, "maps", &text);
        n_lines = walk_maps(&text, libraries, &n_libraries);
        json_out_u64(&report->b, "lines", n_lines);
        json_out_bool(&report->b, "raw_file_cut", is_cut || text.n > RAW_BYTES_MAX);
        json_out_array(&report->b, "libraries");
        for (size_t i = 0; i < n_libraries; i++)
                add_library(report, &libraries[i]);
        json_out_end_array(&report->b);
        end_record(report);
}

static void report_command(ProcessReport *report) {
        _cleanup_(strbuf_done) StrBuf text = STRBUF_INIT;
        bool is_cut = false;
        int r = procfs_read(report->p, (ProcFile){ "cmdline", CMDLINE_BYTES_MAX }, &text, &is_cut);

        begin_record(report, "command");
        if (r != 0)
                add_missing(&report->b, "cmdline", r);
        else {
                json_out_array(&report->b, "cmdline");
                if (text.n > 0)
                        redact_cmdline(&report->b, text.text, text.n);
                json_out_end_array(&report->b);
                json_out_bool(&report->b, "cut", is_cut);
        }
        end_record(report);
}

/* @return how many were left out */
static size_t add_variables(ProcessReport *report, char *const *variables) {
        size_t n_left_out = 0;

        json_out_object(&report->b, "variables");
        for (; *variables; variables++) {
                size_t n_name = strcspn(*variables, "=");
                const char *value = *variables + n_name + 1; /* where there is a `=` */
                char name[256];
                if ((*variables)[n_name] != '=' || n_name == 0 || n_name >= sizeof name ||
                    report->b.n > ENVIRON_RECORD_MAX) {
                        n_left_out++;
                        continue;
                }
                memcpy(name, *variables, n_name);
                name[n_name] = '\0';
                if (environment_is_allowed(report->request->environment, name))
                        redact_member(&report->b, name, value, strnlen(value, VARIABLE_BYTES_MAX));
                else
                        n_left_out++;
        }
        json_out_end_object(&report->b);
        return n_left_out;
}

static void report_environment(ProcessReport *report) {
        _cleanup_(strbuf_done) StrBuf text = STRBUF_INIT;
        _cleanup_free_ char **variables = NULL;
        bool is_cut = false;
        int r = procfs_read(report->p, (ProcFile){ "environ", ENVIRON_BYTES_MAX }, &text, &is_cut);

        begin_record(report, "environment");
        if (r == 0 && text.n > 0)
                variables = procfs_split(text.text, text.n, VARIABLES_MAX);
        if (r != 0)
                add_missing(&report->b, "variables", r);
        else if (text.n == 0) {
                json_out_null(&report->b, "variables");
                json_out_string(&report->b, "variables_unavailable",
                                procfs_is_zombie(report->p) ? procfs_reason(PROCFS_E_ENDED)
                                                            : "it is empty");
        } else if (!variables)
                add_missing(&report->b, "variables", -ENOMEM);
        else {
                json_out_u64(&report->b, "left_out", add_variables(report, variables));
                json_out_bool(&report->b, "cut", is_cut);
                json_out_string(&report->b, "note",
                                "as the process was started: what it has set since is not here");
        }
        if (text.text)
                explicit_bzero(text.text, text.n);
        end_record(report);
        if (r != 0 || report->result != 0)
                return;
        begin_record(report, "job");
        job_record_add_identity(&report->b, report->p);
        end_record(report);
}

/* What of a process can be read without waiting for it: status, place, limits, devices, children.
 * And its neighbours' jobs, which may. */

enum { FILE_BYTES_MAX = 64 << 10, CHILDREN_MAX = 256, CHILD_THREADS_MAX = 2000 };

/* Adds selected lines of a file of `NAME: value` lines as members. */
static void add_fields(ProcessReport *report, const char *file, const char *const *names) {
        _cleanup_(strbuf_done) StrBuf text = STRBUF_INIT;
        int r = procfs_read(report->p, (ProcFile){ file, FILE_BYTES_MAX }, &text, NULL);

        if (r != 0 || !text.text) {
                add_missing(&report->b, file, r != 0 ? r : PROCFS_E_NO_FILE);
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
                add_missing(&report->b, key, r);
}

static void report_status(ProcessReport *report) {
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

        begin_record(report, "status");
        json_out_text(&report->b, "state", &report->p->stat.state, 1);
        json_out_bool(&report->b, "zombie", procfs_is_zombie(report->p));
        json_out_u64(&report->b, "uid", report->p->uid);
        add_fields(report, "status", status);
        add_fields(report, "io", io);
        end_record(report);
}

static void report_place(ProcessReport *report) {
        static const char *const kinds[] = { "cgroup", "ipc", "mnt", "net", "pid", "user", "uts" };
        _cleanup_(strbuf_done) StrBuf text = STRBUF_INIT;

        begin_record(report, "place");
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
                add_missing(&report->b, "cgroup", r);
        add_word(report, "oom_score", "oom_score");
        add_word(report, "oom_score_adj", "oom_score_adj");
        end_record(report);
}

static void report_limits(ProcessReport *report) {
        _cleanup_(strbuf_done) StrBuf text = STRBUF_INIT;
        int r = procfs_read(report->p, (ProcFile){ "limits", FILE_BYTES_MAX }, &text, NULL);

        begin_record(report, "limits");
        if (r != 0)
                add_missing(&report->b, "limits", r);
        else
                add_lines(report, "limits", text.text, SIZE_MAX);
        write_raw(report, "limits", &text);
        end_record(report);
}

static bool shares_device(const DeviceHolder *a, const DeviceHolder *b) {
        for (size_t i = 0; i < a->n_devices; i++)
                for (size_t k = 0; k < b->n_devices; k++)
                        if (a->devices[i] == b->devices[k])
                                return true;
        return false;
}

/* Who else holds a device of this process: by the scan that was made before.
 * @param outcome  of finding out what it holds */
static void report_devices(ProcessReport *report, const DeviceHolders *scan,
                           const DeviceHolder *mine, int outcome) {
        begin_record(report, "devices");
        if (outcome != 0)
                add_missing(&report->b, "devices", outcome);
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
        end_record(report);
}

/* Their jobs, each a record: reading the environment of one may wait, and then the others have been
 * reported. */
static void report_neighbours(ProcessReport *report, const DeviceHolders *scan,
                              const DeviceHolder *mine) {
        for (size_t i = 0; i < scan->n_holders && report->result == 0; i++) {
                const DeviceHolder *h = &scan->holders[i];
                _cleanup_(procfs_close) Proc p = { .dir_fd = -1 };
                if (h->stat.pid == report->p->stat.pid || !shares_device(h, mine) ||
                    procfs_open(&p, report->request->proc_root, h->stat.pid, h->stat.start_ticks) !=
                            0)
                        continue;
                begin_record(report, "neighbour");
                json_out_i64(&report->b, "neighbour_pid", h->stat.pid);
                json_out_u64(&report->b, "neighbour_start_ticks", h->stat.start_ticks);
                job_record_add_identity(&report->b, &p);
                if (procfs_check(&p) != PROCFS_E_REPLACED)
                        end_record(report);
        }
}

/* @return whether it was reported: the runtime's hook is our own doing */
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

static void report_children(ProcessReport *report) {
        _cleanup_(procfs_numbers_done) ProcNumbers tids = { 0 };
        size_t n_children = 0;
        int r = procfs_list(report->p->dir_fd, "task", CHILD_THREADS_MAX, &tids), first = 0;

        begin_record(report, "children");
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
        end_record(report);
}

enum { PARTS_AT_ONCE = 8, LINE_BYTES_MAX = 512 << 10 };

typedef struct ProcessRun {
        const CollectRequest *request;
        CollectOut *out;
        const DeviceHolders *scan;
} ProcessRun;

static void report_all(ProcessReport *report, const DeviceHolders *scan) {
        DeviceHolder mine = { 0 };
        int outcome = device_holders_inspect(report->request, report->p, &mine);

        report_status(report);
        report_place(report);
        report_limits(report);
        report_devices(report, scan, &mine, outcome);
        report_children(report);
        report_threads(report);
        report_maps(report);
        report_command(report);
        report_environment(report);
        if (outcome == 0)
                report_neighbours(report, scan, &mine);
}

/* A record of a process that cannot be read (any more). */
static void add_outcome(StrBuf *b, const CollectProcess *process, uint64_t start_ticks,
                        int outcome) {
        static const char *const words[] = { [0] = "complete",
                                             [PROCFS_E_GONE] = "gone",
                                             [PROCFS_E_REPLACED] = "replaced",
                                             [PROCFS_E_HIDDEN] = "hidden" };

        json_out_object(b, NULL);
        json_out_i64(b, "pid", process->pid);
        json_out_u64(b, "start_ticks", start_ticks);
        json_out_string(b, "about", "end");
        json_out_string(b, "outcome",
                        outcome >= 0 && outcome <= PROCFS_E_HIDDEN ? words[outcome]
                        : outcome == -ETIMEDOUT                    ? "timeout"
                                                                   : "failed");
        json_out_string(b, "detail", procfs_reason(outcome));
        json_out_end_object(b);
}

/* In a process of its own. */
static int run_part(const PoolTask *task, int fd, void *userdata) {
        const CollectProcess *process = task->userdata;
        const ProcessRun *run = userdata;
        uint64_t start_ticks = process->start_ticks;
        _cleanup_(procfs_close) Proc p = { .dir_fd = -1 };
        int r = procfs_open(&p, run->request->proc_root, process->pid, process->start_ticks);

        if (r == 0) {
                start_ticks = p.stat.start_ticks;
                ProcessReport report = { .request = run->request,
                                         .p = &p,
                                         .fd = fd,
                                         .has_raw_files = run->out->dir_fd >= 0 };
                report_all(&report, run->scan);
                r = report.result != 0 ? report.result : procfs_check(&p);
                strbuf_done(&report.b);
        }
        if (r < 0)
                return r;
        _cleanup_(strbuf_done) StrBuf b = STRBUF_INIT;
        add_outcome(&b, process, start_ticks, r);
        return collect_write_line(fd, &b);
}

static int on_end(const PoolTask *task, int result, void *userdata) {
        _cleanup_(strbuf_done) StrBuf record = STRBUF_INIT;
        const CollectProcess *process = task->userdata;
        const ProcessRun *run = userdata;

        if (result == 0)
                return 0;
        add_outcome(&record, process, process->start_ticks, result);
        return collect_emit_fitting(run->out, &record);
}

static int run_parts(ProcessRun *run) {
        const CollectRequest *request = run->request;
        size_t n = request->n_processes;
        PoolTask tasks[COLLECT_PROCESSES_MAX] = { 0 };
        ChildPool pool = { .run = run_part,
                           .out = run->out,
                           .on_end = on_end,
                           .userdata = run,
                           .max_at_once = PARTS_AT_ONCE,
                           .kept_fd = run->out->dir_fd,
                           .timeout_usec = request->timeout_usec / 10 * 9,
                           .max_line_bytes = LINE_BYTES_MAX,
                           .max_bytes_each = run->out->max_bytes / n };

        for (size_t i = 0; i < n; i++)
                tasks[i] = (PoolTask){ .name = "process", .userdata = &request->processes[i] };
        return child_pool_run(&pool, tasks, n);
}

int collect_process(const CollectRequest *request, CollectOut *out) {
        _cleanup_(device_holders_done) DeviceHolders scan = { 0 };
        ProcessRun run = { .request = request, .out = out, .scan = &scan };

        if (request->n_processes == 0)
                return 0;
        if (request->n_processes > COLLECT_PROCESSES_MAX)
                return -E2BIG;
        int r = device_holders_scan(request, DEVICE_HOLDERS_BY_FDS, &scan);
        return r == 0 ? run_parts(&run) : r;
}
