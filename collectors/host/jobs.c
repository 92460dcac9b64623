/* One record for each process that holds a Neuron device or has the runtime loaded, so that a rank
 * that dies without a word can still be named. The scan of descriptors waits for nothing and finds
 * the holders; what may wait for ever (environ, cmdline, maps) is read by parts that can each be
 * killed without loss of the others. */
#include "collectors/host/jobs.h"

#include <errno.h>
#include <fcntl.h>
#include <jansson.h>
#include <limits.h>
#include <string.h>

#include "collectors/runner/child_pool.h"
#include "collectors/runner/collector.h"
#include "lib/base/cleanup.h"
#include "lib/base/fs.h"
#include "lib/base/json_out.h"
#include "lib/base/parse.h"
#include "lib/base/path.h"
#include "lib/base/redact.h"

/* A process with less address space than this does not have the runtime loaded: an estimate on the
 * safe side, a libnrt.so is larger alone. */
enum { RUNTIME_BYTES_MIN = 32 << 20, MAPS_BYTES_MAX = 8 << 20, STATM_BYTES_MAX = 256 };

enum {
        FDINFO_BYTES_MAX = 4096,
        CGROUP_BYTES_MAX = 64 << 10,
        ENVIRON_BYTES_MAX = 1 << 20,
        VARIABLES_MAX = 8192
};

/* @return the number of the device that a link leads to by its text, -1 */
static int device_of_link(const CollectRequest *request, const char *target) {
        const char *name = path_name(target);
        size_t n_dir = (size_t)(name - target);
        uint64_t number;

        if (strncmp(name, "neuron", 6) != 0 || n_dir < 2 ||
            parse_u64_range(name + 6, 0, 65535, &number) < 0)
                return -1;
        n_dir--; /* the slash */
        if ((strlen(request->device_directory) == n_dir &&
             memcmp(target, request->device_directory, n_dir) == 0) ||
            (n_dir == 4 && memcmp(target, "/dev", 4) == 0))
                return (int)number;
        return -1;
}

static int stat_device(const char *device_directory, int number, struct stat *ret) {
        char path[PATH_MAX];

        if (snprintf(path, sizeof path, "%s/neuron%d", device_directory, number) >=
            (int)sizeof path)
                return -ENAMETOOLONG;
        return stat(path, ret) < 0 ? -errno : 0;
}

/* What a descriptor stands for, by the device number (in tests: the file), not by its name: anybody
 * can have a file that is called neuron0, and in a container another device may be. Nothing is
 * opened.
 * @return the device's number, -ENODEV none of ours, another -errno when it cannot be determined */
static int number_of_device(const char *device_directory, int dir_fd, const char *link,
                            int number) {
        struct stat theirs, ours;
        bool has_any = false;

        if (fstatat(dir_fd, link, &theirs, 0) < 0)
                return -errno;
        if (!S_ISCHR(theirs.st_mode))
                return stat_device(device_directory, number, &ours) == 0 &&
                                       ours.st_dev == theirs.st_dev && ours.st_ino == theirs.st_ino
                               ? number
                               : -ENODEV;
        for (int i = -1; i < JOBS_DEVICES_MAX; i++) { /* that of its name first */
                int at = i < 0 ? number : i;
                if (stat_device(device_directory, at, &ours) < 0 || !S_ISCHR(ours.st_mode))
                        continue;
                if (ours.st_rdev == theirs.st_rdev)
                        return at;
                has_any = true;
        }
        return has_any ? -ENODEV : -ENXIO;
}

static bool is_write_only(const Proc *p, int fd) {
        _cleanup_(strbuf_done) StrBuf b = STRBUF_INIT;
        char name[32];
        unsigned flags;

        (void)snprintf(name, sizeof name, "fdinfo/%d", fd);
        if (procfs_read(p, (ProcFile){ name, FDINFO_BYTES_MAX }, &b, NULL) != 0 || !b.text)
                return false;
        const char *line = strstr(b.text, "flags:");
        return line && sscanf(line, "flags: %o", &flags) == 1 && (flags & O_ACCMODE) == O_WRONLY;
}

static void holder_add_device(JobsHolder *h, int number) {
        size_t at = 0;

        while (at < h->n_devices && h->devices[at] < number)
                at++;
        if (h->n_devices == JOBS_DEVICES_MAX || (at < h->n_devices && h->devices[at] == number))
                return;
        memmove(h->devices + at + 1, h->devices + at, (h->n_devices - at) * sizeof h->devices[0]);
        h->devices[at] = number;
        h->n_devices++;
}

static int outcome_of_list(int r) {
        switch (r) {
        case -ESRCH:
        case -ENOENT:
                return PROCFS_E_GONE;
        case -EACCES:
        case -EPERM:
                return PROCFS_E_HIDDEN;
        default:
                return r;
        }
}

int jobs_devices_of(const CollectRequest *request, const Proc *p, JobsHolder *h) {
        _cleanup_(procfs_numbers_done) ProcNumbers fds = { 0 };
        size_t n_hidden = 0;
        int r = procfs_list(p->dir_fd, "fd", JOBS_FDS_MAX, &fds);

        if (r < 0)
                return outcome_of_list(r);
        for (size_t i = 0; i < fds.n; i++) {
                char name[32], target[PROCFS_LINK_SIZE];
                (void)snprintf(name, sizeof name, "fd/%d", fds.items[i]);
                ssize_t size = readlinkat(p->dir_fd, name, target, sizeof target - 1);
                if (size < 0) { /* closed meanwhile, or not ours to see although the list is */
                        n_hidden += errno == EACCES || errno == EPERM;
                        continue;
                }
                target[size] = '\0';
                int number = device_of_link(request, target);
                if (number < 0)
                        continue;
                int found = number_of_device(request->device_directory, p->dir_fd, name, number);
                if (found == -ENODEV)
                        continue;
                h->is_write_only =
                        (h->n_devices == 0 || h->is_write_only) && is_write_only(p, fds.items[i]);
                h->is_by_name |= found < 0;
                holder_add_device(h, found >= 0 ? found : number);
        }
        return fds.n > 0 && n_hidden == fds.n ? PROCFS_E_HIDDEN : 0;
}

/* By the first field of statm, in pages; what is unknown counts as large. */
static bool may_hold_runtime(const Proc *p) {
        _cleanup_(strbuf_done) StrBuf b = STRBUF_INIT;
        uint64_t pages, bytes;

        if (procfs_read(p, (ProcFile){ "statm", STATM_BYTES_MAX }, &b, NULL) != 0 || !b.text)
                return true;
        b.text[strcspn(b.text, " \n")] = '\0';
        if (parse_u64(b.text, &pages) < 0 ||
            __builtin_mul_overflow(pages, (uint64_t)sysconf(_SC_PAGESIZE), &bytes))
                return true;
        return bytes >= RUNTIME_BYTES_MIN;
}

bool jobs_maps_runtime(const Proc *p, bool *ret_hidden) {
        _cleanup_(strbuf_done) StrBuf b = STRBUF_INIT;
        int r = procfs_read(p, (ProcFile){ "maps", MAPS_BYTES_MAX }, &b, NULL);

        *ret_hidden = r < 0 || r == PROCFS_E_HIDDEN;
        if (r != 0 || !b.text)
                return false;
        for (const char *at = b.text;
             (at = memmem(at, b.n - (size_t)(at - b.text), "/libnrt.so", 10)); at++) {
                const char *start = memrchr(b.text, '\n', (size_t)(at - b.text));
                ProcMap m;
                start = start ? start + 1 : b.text;
                if (procfs_parse_map(start, strcspn(start, "\n"), &m) && m.n_path > 0 &&
                    memrchr(m.path, '/', m.n_path) == at)
                        return true;
        }
        return false;
}

typedef struct ScanRun {
        const CollectRequest *request;
        JobsScanMode mode;
        JobsScan *found;
} ScanRun;

static bool inspect_process(const ScanRun *mode, const Proc *p, JobsHolder *h) {
        if (p->stat.flags & PROCFS_FLAG_KTHREAD || procfs_is_zombie(p))
                return false;
        bool is_hidden; /* then it is not reported to map it */
        if (mode->mode == JOBS_BY_MAPS)
                h->maps_runtime = may_hold_runtime(p) && jobs_maps_runtime(p, &is_hidden);
        else if (jobs_devices_of(mode->request, p, h) == PROCFS_E_HIDDEN)
                mode->found->n_hidden++;
        return (h->n_devices > 0 || h->maps_runtime) && procfs_check(p) == 0;
}

static int scan_process(const ScanRun *mode, pid_t pid) {
        JobsScan *s = mode->found;
        JobsHolder h = { 0 };
        _cleanup_(procfs_close) Proc p = { .dir_fd = -1 };
        int r = procfs_open(&p, mode->request->proc_root, pid, 0);

        if (r != 0) {
                s->n_hidden += r == PROCFS_E_HIDDEN;
                return r == -ENOMEM ? r : 0; /* gone meanwhile: none of ours */
        }
        s->n_processes++;
        h.stat = p.stat;
        h.uid = p.uid;
        if (inspect_process(mode, &p, &h)) {
                if (s->n_holders < JOBS_HOLDERS_MAX)
                        s->holders[s->n_holders++] = h;
                else
                        s->is_cut = true;
        }
        return 0;
}

int jobs_scan(const CollectRequest *request, JobsScanMode mode, JobsScan *ret) {
        _cleanup_(jobs_scan_done) JobsScan s = { 0 };
        _cleanup_(procfs_numbers_done) ProcNumbers pids = { 0 };
        int r = procfs_list(AT_FDCWD, request->proc_root, PROCFS_PIDS_MAX, &pids);

        if (r < 0)
                return r;
        s.holders = calloc(JOBS_HOLDERS_MAX, sizeof *s.holders);
        if (!s.holders)
                return -ENOMEM;
        for (size_t i = 0; i < pids.n; i++) {
                r = scan_process(&(ScanRun){ request, mode, &s }, pids.items[i]);
                if (r < 0)
                        return r;
        }
        *ret = s;
        s.holders = NULL;
        return 0;
}

void jobs_scan_done(JobsScan *s) {
        free(s->holders);
        *s = (JobsScan){ 0 };
}

void jobs_add_devices(StrBuf *b, const JobsHolder *h) {
        json_out_array(b, "devices");
        for (size_t i = 0; i < h->n_devices; i++)
                json_out_u64(b, NULL, (uint64_t)h->devices[i]);
        json_out_end_array(b);
}

void jobs_add_members(StrBuf *b, const JobIdentity *id) {
        json_out_string(b, "source", id->source);
        for (size_t i = 0; i < N_JOB_MEMBERS; i++) {
                const JobMember *m = &job_members[i];
                const void *value = job_member(id, m);
                if (job_member_is_key(m) && *(const char *)value != '\0')
                        json_out_string(b, m->name, value);
                else if (m->size > 0 && *(const char *)value != '\0')
                        redact_member(b, m->name, value, strlen(value));
                else if (m->size == 0 && *(const int64_t *)value >= 0 &&
                         !strstr(m->name, "device")) /* which are in the note alone */
                        json_out_i64(b, m->name, *(const int64_t *)value);
        }
}

static void add_job(StrBuf *b, const JobIdentity *id) {
        json_out_object(b, "job");
        jobs_add_members(b, id);
        json_out_end_object(b);
}

static void add_text(StrBuf *b, const char *key, const char *text) {
        if (text[0] != '\0')
                json_out_string(b, key, text);
}

void jobs_add_container(StrBuf *b, const char *cgroup, size_t n) {
        ProcContainer c;

        if (!cgroup || !procfs_parse_cgroup(cgroup, n, &c)) {
                json_out_null(b, "container");
                return;
        }
        json_out_object(b, "container");
        add_text(b, "id", c.container_id);
        add_text(b, "runtime", c.runtime);
        add_text(b, "pod_uid", c.pod_uid);
        add_text(b, "slurm_job", c.slurm_job);
        add_text(b, "slurm_step", c.slurm_step);
        json_out_end_object(b);
}

static void add_container(StrBuf *b, const Proc *p) {
        _cleanup_(strbuf_done) StrBuf text = STRBUF_INIT;
        int r = procfs_read(p, (ProcFile){ "cgroup", CGROUP_BYTES_MAX }, &text, NULL);
        jobs_add_container(b, r == 0 ? text.text : NULL, text.n);
}

void jobs_add_identity(StrBuf *b, const Proc *p) {
        _cleanup_(strbuf_done) StrBuf text = STRBUF_INIT;
        _cleanup_free_ char **variables = NULL;
        JobIdentity id;

        add_container(b, p);
        if (procfs_read(p, (ProcFile){ "environ", ENVIRON_BYTES_MAX }, &text, NULL) == 0 &&
            text.text)
                variables = procfs_split(text.text, text.n, VARIABLES_MAX);
        if (variables && job_identity_detect(variables, &id))
                add_job(b, &id);
        else
                json_out_null(b, "job");
        if (text.text)
                explicit_bzero(text.text, text.n);
}

/* ---- reading a record ---- */

/* Printable ASCII without blanks, and not cut, as in a note (lib/neuron). */
static bool read_word(const json_t *v, const JobMember *m, char *buf) {
        const char *s = v ? json_string_value(v) : "";
        size_t n = s ? strlen(s) : m->size;
        if (n >= m->size)
                return false;
        for (size_t i = 0; i < n; i++)
                if (job_member_is_key(m) ? !job_key_may_have(s[i]) : s[i] <= ' ' || s[i] >= 0x7f)
                        return false;
        memcpy(buf, s, n + 1);
        return true;
}

/* @return -1: it is missing, or none that can be */
static int64_t read_number(const json_t *object, const char *key, int64_t max) {
        const json_t *v = json_object_get(object, key);
        json_int_t n = json_is_integer(v) ? json_integer_value(v) : -1;
        return n >= 0 && n <= max ? n : -1;
}

static bool read_job(const json_t *v, JobIdentity *ret) {
        *ret = (JobIdentity){ .source = job_source_find(
                                      json_string_value(json_object_get(v, "source"))) };
        for (size_t i = 0; i < N_JOB_MEMBERS; i++) {
                const JobMember *m = &job_members[i];
                if (m->size == 0)
                        *(int64_t *)job_member(ret, m) = read_number(v, m->name, INT32_MAX);
                else if (!read_word(json_object_get(v, m->name), m, job_member(ret, m)))
                        return false;
        }
        return ret->key[0] != '\0';
}

bool jobs_parse_record(const char *record, JobsProcess *ret) {
        json_t *v = json_loads(record, JSON_REJECT_DUPLICATES, NULL);
        int64_t pid = read_number(v, "pid", INT_MAX);
        int64_t ticks = read_number(v, "start_ticks", INT64_MAX / (int64_t)USEC_PER_SEC);
        int64_t uid = read_number(v, "uid", (int64_t)UINT32_MAX - 1);
        *ret = (JobsProcess){ .pid = (pid_t)pid,
                              .start_ticks = (uint64_t)ticks,
                              .uid = (uid_t)uid };
        bool is_valid =
                pid > 0 && ticks > 0 && uid >= 0 && read_job(json_object_get(v, "job"), &ret->job);
        json_decref(v);
        return is_valid;
}

/* Jobs: one record for each process that holds a Neuron device or has the runtime loaded, so that a
 * rank that dies without a word can still be named. Two steps: the scan of descriptors waits for
 * nothing and finds the holders; what may wait for ever (environ, cmdline, maps) is read by parts
 * that can each be killed without the others' loss. */

enum { CMDLINE_BYTES_MAX = 16 << 10, RECORD_BYTES_MAX = 128 << 10, PARTS_AT_ONCE = 2 };

/* Many holders share a part: forking costs more than reading. A part that hangs takes along those
 * that come after it in its share. */
enum { HOLDERS_A_PART = 8, PARTS_MAX = JOBS_HOLDERS_MAX / HOLDERS_A_PART + 1 };

typedef struct JobsRun {
        const CollectRequest *request;
        CollectOut *out;
        JobsScan *scan;
        uint64_t n_libnrt; /* that hold no device */
        bool maps_are_whole;
} JobsRun;

typedef struct JobsPart {
        size_t first, n; /* holders; n = 0: the part that reads maps */
} JobsPart;

static void add_head(StrBuf *b, const JobsHolder *h) {
        json_out_object(b, NULL);
        json_out_i64(b, "pid", h->stat.pid);
        json_out_u64(b, "start_ticks", h->stat.start_ticks);
        json_out_u64(b, "uid", h->uid);
        json_out_string(b, "comm", h->stat.comm);
        jobs_add_devices(b, h);
        json_out_bool(b, "maps_runtime", h->maps_runtime);
}

static void add_cmdline(StrBuf *b, const Proc *p) {
        _cleanup_(strbuf_done) StrBuf text = STRBUF_INIT;
        bool is_cut = false;
        int r = procfs_read(p, (ProcFile){ "cmdline", CMDLINE_BYTES_MAX }, &text, &is_cut);

        if (r != 0) {
                json_out_null(b, "cmdline");
                return;
        }
        json_out_array(b, "cmdline");
        if (text.n > 0)
                redact_cmdline(b, text.text, text.n);
        json_out_end_array(b);
        if (is_cut)
                json_out_bool(b, "cmdline_cut", true);
}

/* In a process of its own. */
static int describe(const CollectRequest *request, const JobsHolder *h, int fd) {
        _cleanup_(strbuf_done) StrBuf b = STRBUF_INIT;
        _cleanup_(procfs_close) Proc p = { .dir_fd = -1 };
        int r = procfs_open(&p, request->proc_root, h->stat.pid, h->stat.start_ticks);

        if (r != 0)
                return 0; /* gone meanwhile: the caller reports what was seen of it */
        add_head(&b, h);
        jobs_add_identity(&b, &p);
        add_cmdline(&b, &p);
        json_out_end_object(&b);
        return procfs_check(&p) == PROCFS_E_REPLACED ? 0 : collect_write_line(fd, &b);
}

static bool holds_device(const JobsScan *scan, pid_t pid) {
        for (size_t i = 0; i < scan->n_holders; i++)
                if (scan->holders[i].stat.pid == pid)
                        return true;
        return false;
}

static int run_part(const PoolTask *task, int fd, void *userdata) {
        const JobsPart *part = task->userdata;
        const JobsRun *run = userdata;
        _cleanup_(jobs_scan_done) JobsScan maps = { 0 };
        int r = 0;

        if (part->n > 0) {
                for (size_t i = 0; r == 0 && i < part->n; i++)
                        r = describe(run->request, &run->scan->holders[part->first + i], fd);
                return r;
        }
        r = jobs_scan(run->request, JOBS_BY_MAPS, &maps);
        for (size_t i = 0; r == 0 && i < maps.n_holders; i++)
                if (!holds_device(run->scan, maps.holders[i].stat.pid))
                        r = describe(run->request, &maps.holders[i], fd);
        return r;
}

/* A line begins as add_head() has made it. */
static void mark_reported(const JobsRun *run, const JobsPart *part, const char *line) {
        int pid;

        if (sscanf(line, "{\"pid\":%d,", &pid) != 1)
                return;
        for (size_t i = part->first; i < part->first + part->n; i++)
                if (run->scan->holders[i].stat.pid == pid)
                        run->scan->holders[i].is_reported = true;
}

static int on_line(const PoolTask *task, char *line, size_t n, void *userdata) {
        JobsRun *run = userdata;

        mark_reported(run, task->userdata, line);
        run->n_libnrt += ((const JobsPart *)task->userdata)->n == 0;
        return collect_emit_line(run->out, line, n);
}

/* What is known of a process that could not be read: it is there, and holds devices. */
static int emit_unread(const JobsRun *run, const JobsHolder *h, const char *why) {
        _cleanup_(strbuf_done) StrBuf b = STRBUF_INIT;

        add_head(&b, h);
        json_out_null(&b, "job");
        json_out_string(&b, "detail", why);
        json_out_end_object(&b);
        return collect_emit_fitting(run->out, &b);
}

static int on_end(const PoolTask *task, int result, void *userdata) {
        const JobsPart *part = task->userdata;
        JobsRun *run = userdata;
        const char *why = result == 0 ? "it ended while it was inspected"
                          : result == -ETIMEDOUT
                                  ? "reading it, or one before it, did not end in time"
                                  : strerror(-result);

        if (part->n == 0)
                run->maps_are_whole = result == 0;
        for (size_t i = part->first; i < part->first + part->n; i++)
                if (!run->scan->holders[i].is_reported) {
                        int r = emit_unread(run, &run->scan->holders[i], why);
                        if (r < 0)
                                return r;
                }
        return 0;
}

static int run_parts(JobsRun *run) {
        _cleanup_free_ JobsPart *parts = calloc(PARTS_MAX + 1, sizeof *parts);
        _cleanup_free_ PoolTask *tasks = calloc(PARTS_MAX + 1, sizeof *tasks);
        ChildPool pool = { .run = run_part,
                           .on_line = on_line,
                           .on_end = on_end,
                           .userdata = run,
                           .max_at_once = PARTS_AT_ONCE,
                           .timeout_usec = run->request->timeout_usec / 10 * 9,
                           .max_line_bytes = RECORD_BYTES_MAX,
                           .max_bytes_each = run->out->max_bytes };
        size_t n = 0;

        if (!parts || !tasks)
                return -ENOMEM;
        for (size_t first = 0; first < run->scan->n_holders; first += HOLDERS_A_PART)
                parts[n++] = (JobsPart){ first, MIN(run->scan->n_holders - first,
                                                    (size_t)HOLDERS_A_PART) };
        parts[n++] = (JobsPart){ 0 };
        for (size_t i = 0; i < n; i++)
                tasks[i] = (PoolTask){ .name = parts[i].n > 0 ? "holders" : "maps",
                                       .userdata = &parts[i] };
        return child_pool_run(&pool, tasks, n);
}

static int emit_summary(const JobsScan *scan, CollectOut *out) {
        _cleanup_(strbuf_done) StrBuf b = STRBUF_INIT;

        json_out_object(&b, NULL);
        json_out_u64(&b, "processes", scan->n_processes);
        json_out_u64(&b, "hidden", scan->n_hidden);
        json_out_u64(&b, "device_holders", scan->n_holders);
        json_out_bool(&b, "cut", scan->is_cut);
        json_out_end_object(&b);
        return collect_emit_fitting(out, &b);
}

/* The last record. Without it not all maps were examined. */
static int emit_libnrt_holders(const JobsRun *run) {
        _cleanup_(strbuf_done) StrBuf b = STRBUF_INIT;

        json_out_object(&b, NULL);
        json_out_u64(&b, "libnrt_holders", run->n_libnrt);
        json_out_end_object(&b);
        return collect_emit_fitting(run->out, &b);
}

int collect_jobs(const CollectRequest *request, CollectOut *out) {
        _cleanup_(jobs_scan_done) JobsScan scan = { 0 };
        int r = jobs_scan(request, JOBS_BY_DEVICES, &scan);

        if (r == 0)
                r = emit_summary(&scan, out);
        if (r < 0)
                return r;
        JobsRun run = { .request = request, .out = out, .scan = &scan };
        r = run_parts(&run);
        return r == 0 && run.maps_are_whole ? emit_libnrt_holders(&run) : r;
}
