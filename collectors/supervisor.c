/* One connection of a supervisor: receives the request, finds out which processes are meant, and
 * runs the collectors: once, for the document of a snapshot, or for as long as the agent watches.
 * Each collector is this program executed again; what it hangs in is left behind. */
#include "collectors/supervisor.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/capability.h>
#include <poll.h>
#include <signal.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/file.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "collectors/crash/crash.h"
#include "collectors/crash/origin/roots.h"
#include "collectors/host/pids.h"
#include "collectors/runner/collector.h"
#include "collectors/runner/document.h"
#include "collectors/runner/packet.h"
#include "collectors/runner/probe_request.h"
#include "collectors/runner/sandbox.h"
#include "config/config.h"
#include "lib/base/array.h"
#include "lib/base/cleanup.h"
#include "lib/base/clock.h"
#include "lib/base/fs.h"
#include "lib/base/path.h"
#include "lib/event/child.h"
#include "lib/event/timer.h"

/** A source of a snapshot. */
typedef struct Collector {
        const char *name;
        /** Collects until it is done or killed. @return 0; COLLECT_E_NOTHING; -errno: it could not
         * even begin, and the section has the reason */
        int (*run)(const CollectRequest *request, CollectOut *out);
        uint64_t capabilities; /* it keeps */
        unsigned needs;
        bool per_process; /* has nothing to report without a process */
        bool twice;       /* again after the processes have exited, and the difference is shown */
        bool again;       /* then too, where the request has dumps; without raw files */
        bool is_public;   /* may be shown to the unprivileged caller of the hook */
} Collector;

#define CAP(x) (UINT64_C(1) << CAP_##x)
/* What a collector needs beside its capabilities. */
enum {
        OPENS_DEVICES = 1,   /* nodes of Neuron, for ioctl(2) */
        MAKES_FILES = 2,     /* raw ones, in the directory that it is given */
        READS_PROCESSES = 4, /* of others: /proc/PID/environ, maps, fd, root … */
        MAY_EXEC = 8,        /* rpm */
        RUNS_COMMANDS = 16,
        READS_KERNEL_LOG = 32, /* by syslog(2), where there is no /dev/kmsg */
};

#define OF_OTHERS (CAP(SYS_PTRACE) | CAP(DAC_READ_SEARCH))

/* The capabilities are those that a collector cannot do without, where the supervisor has them.
 * neuron_sysfs: core_count and connected_devices are 0400 before driver 2.28. neuron_device:
 * whether others hold a device decides whether it may be opened. @see capabilities(7) */
/* clang-format off */
static const Collector collectors[] = {
        { .name = "neuron_sysfs", .run = collect_neuron_sysfs,
          .capabilities = CAP(DAC_READ_SEARCH), .needs = 0, .twice = true, .is_public = true },
        { .name = "neuron_device", .run = collect_neuron_device,
          .capabilities = OF_OTHERS, .needs = OPENS_DEVICES | READS_PROCESSES },
        { .name = "kmsg", .run = collect_kmsg,
          .capabilities = CAP(SYSLOG) | CAP(DAC_READ_SEARCH), .needs = READS_KERNEL_LOG },
        { .name = "process", .run = collect_process,
          .capabilities = OF_OTHERS, .needs = READS_PROCESSES | MAKES_FILES, .per_process = true },
        { .name = "jobs", .run = collect_jobs,
          .capabilities = OF_OTHERS, .needs = READS_PROCESSES },
        { .name = "packages", .run = collect_packages,
          .capabilities = OF_OTHERS, .needs = READS_PROCESSES | MAY_EXEC, .is_public = true },
        { .name = "process_packages", .run = collect_process_packages,
          .capabilities = OF_OTHERS, .needs = READS_PROCESSES | MAY_EXEC, .per_process = true },
        { .name = "runtime_log", .run = collect_runtime_log,
          .capabilities = OF_OTHERS, .needs = READS_PROCESSES | MAKES_FILES, .again = true },
        { .name = "commands", .run = collect_commands,
          .capabilities = OF_OTHERS, .needs = OPENS_DEVICES | MAKES_FILES | MAY_EXEC | RUNS_COMMANDS },
};

/* clang-format on */

static const Collector *collector_find(const char *name) {
        for (size_t i = 0; i < ELEMENTSOF(collectors); i++)
                if (strcmp(collectors[i].name, name) == 0)
                        return &collectors[i];
        return NULL;
}

#define ORDER_WAIT_MSEC 10000
#define ORDER_FDS 2
#define TASKS_AT_ONCE 4
#define PARTS_PREFIX ".part-"
#define RAW_PREFIX ".raw-"
#define BEFORE_PREFIX ".before-" /* the records of the first snapshot, for the second */
#define DIFFERENCES_FILE ".differences"
#define LOCK_WAIT_USEC                                                                             \
        (30 * USEC_PER_SEC) /* beside the time that the request of the first one gave it */
#define BEGIN_WAIT_USEC (5 * USEC_PER_SEC) /* for one that was started a moment ago */
#define PARTS_MAX 16
#define RAW_FILES_MAX 4096 /* of one collector */
#define NAME_MAX_BYTES 128
#define LINE_MAX_BYTES (PROBE_PACKET_MAX - 64)
#define RECORDS_MAX 4096 /* of a round of jobs */
#define MAPPERS_MAX 256  /* of them: hold no device, have the runtime loaded, which anybody can */
#define ALL_USEC (10 * USEC_PER_MINUTE) /* so often all is reported, also what is as it was */
#define RESTART_USEC (30 * USEC_PER_SEC)
#define INTERVAL_MIN_USEC (100 * USEC_PER_MSEC)

_printf_(2, 3) static int send_message(int fd, const char *fmt, ...) {
        char text[PROBE_PACKET_MAX];
        va_list args;
        va_start(args, fmt);
        int n = vsnprintf(text, sizeof text, fmt, args);
        va_end(args);
        if (n < 0)
                return -EINVAL;
        size_t size = MIN((size_t)n, sizeof text - 1);
        return send(fd, text, size, MSG_NOSIGNAL) < 0 ? -errno : 0;
}

static int request_fd(const ProbeRequest *request) {
        _cleanup_(strbuf_done) StrBuf b = STRBUF_INIT;
        int r = probe_request_format(request, &b);
        return r < 0 ? r : probe_request_memfd(b.text, b.n);
}

/* ---- a collector's child ---- */

/* What a section of a document contains of a child. */
typedef struct Run {
        const Collector *collector;
        Child *child;
        enum { RUN_WAITING, RUN_RUNNING, RUN_ENDED } phase;
        uint64_t begun_usec, started_usec,
                ended_usec; /* CLOCK_REALTIME, then CLOCK_BOOTTIME twice */
        SectionState state;
        char why[512];
} Run;

/* The children get nothing of the agent's environment: it may hold credentials. */
static char *const child_environment[] = {
        (char *)"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:"
                "/sbin:/bin",
        (char *)"LANG=C.UTF-8", (char *)"HOME=/", NULL
};

_printf_(3, 4) static void run_end(Run *run, SectionState state, const char *fmt, ...) {
        va_list args;
        run->phase = RUN_ENDED;
        run->state = state;
        run->ended_usec = clock_boottime_usec();
        if (run->started_usec == 0)
                run->started_usec = run->ended_usec;
        va_start(args, fmt);
        (void)vsnprintf(run->why, sizeof run->why, fmt, args);
        va_end(args);
}

/* @param request  borrowed, its offset does not matter  @param dir_fd  borrowed; 0 = none */
static int run_start(Run *run, sd_event *event, const char *name, int request, int dir_fd,
                     ChildOptions options) {
        char option[96];
        char *argv[] = { (char *)"neuron-collectd", option, NULL };
        (void)snprintf(option, sizeof option, "--child=%s", name);
        options.program = "/proc/self/exe";
        options.argv = argv;
        options.environment = child_environment;
        options.input_fd = request;
        options.third_fd = dir_fd;
        options.keeps_capabilities = true; /* of which it drops what it does not need */
        *run = (Run){ .collector = run->collector, .phase = RUN_RUNNING };
        run->begun_usec = clock_realtime_usec();
        run->started_usec = clock_boottime_usec();
        int r = child_new(&run->child, event, &options);
        if (r < 0)
                run_end(run, SECTION_FAILED, "no process could be started for it: %s",
                        strerror(-r));
        return r;
}

static void run_done(Run *run) {
        run->child = child_free(run->child);
}

/* One line of printable text. */
static void clean_text(char *text) {
        size_t n = 0;
        for (const char *s = text; *s; s++) {
                unsigned char c = (unsigned char)*s;
                if (c != '\n' || n > 0)
                        text[n++] = c == '\n' ? ' ' : c < 0x20 || c >= 0x7f ? '?' : *s;
        }
        while (n > 0 && text[n - 1] == ' ')
                n--;
        text[n] = '\0';
}

static void run_end_by_status(Run *run, int status, const char *text) {
        int code = WIFEXITED(status) ? WEXITSTATUS(status) : -1;
        SectionState state = code == CHILD_DONE      ? SECTION_COMPLETE
                             : code == CHILD_CUT     ? SECTION_CUT
                             : code == CHILD_SKIPPED ? SECTION_SKIPPED
                                                     : SECTION_FAILED;
        if (code < 0) /* a sanitizer or the C library may have written more */
                run_end(run, state, "%.400s%sit was ended by signal %d (%s)", text,
                        *text ? "; " : "", WTERMSIG(status), strsignal(WTERMSIG(status)));
        else if (*text || state == SECTION_COMPLETE || state == SECTION_SKIPPED)
                run_end(run, state, "%s", text);
        else if (state == SECTION_CUT)
                run_end(run, state, "there was more than snapshot.probe_bytes allow");
        else
                run_end(run, state, "it ended with exit code %d", code);
}

/* @param is_kept  false: what it wrote could not be kept */
static void run_end_by_result(Run *run, const ChildResult *result, bool is_kept) {
        const char *stuck =
                result->is_stuck ? "; it hangs in the kernel and cannot be killed; it is abandoned"
                                 : "";
        char text[sizeof run->why];
        (void)snprintf(text, sizeof text, "%s", result->error_text);
        clean_text(text);
        if (!is_kept)
                run_end(run, SECTION_CUT, "what it wrote could not be kept%s", stuck);
        else if (result->error == -EFBIG)
                run_end(run, SECTION_CUT, "it wrote more than snapshot.probe_bytes%s", stuck);
        else if (result->error == -ETIMEDOUT)
                run_end(run, SECTION_TIMEOUT, "it was killed when its time was over%s", stuck);
        else if (result->error < 0 && result->error != -ECHILD)
                run_end(run, SECTION_FAILED, "no process could be started for it: %s",
                        strerror(-result->error));
        else
                run_end_by_status(run, result->error < 0 ? 0 : result->status, text);
}

/* ---- a snapshot ---- */

typedef struct Snapshot Snapshot;

typedef struct Part { /* of the document: a collector's */
        Run run;
        Snapshot *snapshot;
        int fd; /* for its records; -1 = not begun, or over */
        int keep_error;
        char **files; /* raw ones, NULL-terminated */
        size_t n_files;
        uint64_t files_bytes; /* that they may still have */
} Part;

struct Snapshot {
        sd_event *event;
        int fd, dir_fd, request_fd;
        const ProbeRequest *request;
        Part parts[PARTS_MAX];
        size_t n_parts;
        uint64_t begun_usec;
        bool has_public;
        int error;
};

static const char *part_name(char buf[static NAME_MAX_BYTES], const char *prefix,
                             const Collector *c) {
        (void)snprintf(buf, NAME_MAX_BYTES, "%s%s", prefix, c->name);
        return buf;
}

static bool is_wanted(const ProbeRequest *o, const Collector *c) {
        for (char **s = o->collectors; s && *s; s++)
                if (strcmp(*s, c->name) == 0)
                        return true;
        return !o->collectors;
}

/* Commands have times of their own, one after the other. */
static uint64_t timeout_of(const ProbeRequest *o, const Collector *c) {
        uint64_t usec = o->collect.timeout_usec;
        if (strcmp(c->name, "commands") != 0)
                return usec;
        for (size_t i = 0; i < o->collect.n_commands; i++)
                usec += MIN(o->collect.commands[i].timeout_usec, 10 * USEC_PER_MINUTE);
        return usec;
}

static int make_raw_directory(const Snapshot *l, const Collector *c) {
        char name[NAME_MAX_BYTES];
        part_name(name, RAW_PREFIX, c);
        if (mkdirat(l->dir_fd, name, 0700) < 0 && errno != EEXIST)
                return -errno;
        int fd = openat(l->dir_fd, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
        return fd < 0 ? -errno : fd;
}

static bool is_reserved(const char *name) {
        return name[0] == '.' || strncmp(name, "snapshot", 8) == 0 ||
               strcmp(name, SNAPSHOT_PUBLIC_FILE) == 0 || strcmp(name, SNAPSHOT_INCIDENT_FILE) == 0;
}

/* A raw file becomes one of the snapshot's, unless the name is in use. @return 0, 1: not adopted,
 * -errno */
static int adopt_raw_file(const Snapshot *l, Part *p, int raw_fd, const char *name) {
        struct stat st;
        size_t n = p->n_files;
        if (is_reserved(name) || n >= RAW_FILES_MAX || strlen(name) > 100 ||
            fstatat(raw_fd, name, &st, AT_SYMLINK_NOFOLLOW) < 0 || !S_ISREG(st.st_mode))
                return 1;
        uint64_t n_bytes = (uint64_t)st.st_size;
        if (n_bytes > p->files_bytes || faccessat(l->dir_fd, name, F_OK, AT_SYMLINK_NOFOLLOW) == 0)
                return 1;
        p->files[n] = strdup(name);
        if (!p->files[n])
                return -ENOMEM;
        if (renameat(raw_fd, name, l->dir_fd, name) < 0) {
                free(TAKE_PTR(p->files[n]));
                return -errno;
        }
        p->n_files++;
        p->files_bytes -= n_bytes;
        return 0;
}

static void adopt_raw_files(const Snapshot *l, Part *p) {
        char name[NAME_MAX_BYTES];
        Run *t = &p->run;
        _cleanup_closedir_ DIR *d = NULL;
        (void)fs_opendir_at(l->dir_fd, part_name(name, RAW_PREFIX, t->collector), &d); /* none */
        p->files = calloc(RAW_FILES_MAX + 1, sizeof *p->files);
        if (!d || !p->files)
                return;
        const struct dirent *e;
        while ((e = readdir(d)))
                if (e->d_name[0] != '.' && adopt_raw_file(l, p, dirfd(d), e->d_name) != 0 &&
                    t->state == SECTION_COMPLETE) {
                        t->state = SECTION_CUT;
                        (void)snprintf(t->why, sizeof t->why,
                                       "not all of its files could be collected");
                }
        (void)fs_remove_tree(l->dir_fd, name); /* what stays is removed with the directory */
}

static void end_part(const Snapshot *l, Part *p) {
        struct stat st;
        if (p->fd >= 0 && fstat(p->fd, &st) == 0) /* both together are bounded */
                p->files_bytes -= MIN(p->files_bytes, (uint64_t)st.st_size);
        if (p->fd >= 0)
                (void)close(TAKE_FD(p->fd)); /* every write was checked */
        adopt_raw_files(l, p);
}

/* ---- the document ---- */

/* @param name  it points into */
static DocumentSection section_of(const Part *p, char name[static NAME_MAX_BYTES]) {
        const Run *t = &p->run;
        return (DocumentSection){ .name = t->collector->name,
                                  .detail = t->why,
                                  .state = t->state,
                                  .begun_usec = t->begun_usec,
                                  .duration_usec = t->ended_usec - t->started_usec,
                                  .part = part_name(name, PARTS_PREFIX, t->collector),
                                  .files = p->files };
}

static int write_document(const Snapshot *l, const char *name, bool public_only) {
        DocumentSection sections[PARTS_MAX];
        char names[PARTS_MAX][NAME_MAX_BYTES], hostname[65] = "";
        size_t n = 0;
        for (size_t i = 0; i < l->n_parts; i++)
                if (!public_only || l->parts[i].run.collector->is_public) {
                        sections[n] = section_of(&l->parts[i], names[n]);
                        n++;
                }
        (void)gethostname(hostname, sizeof hostname - 1); /* then it stays empty */
        bool is_after = l->request->mode == PROBE_AFTER;
        Document d = { .name = l->request->name,
                       .trigger = public_only ? NULL : l->request->trigger,
                       .instance_id = l->request->instance_id,
                       .hostname = hostname,
                       .before = is_after ? SNAPSHOT_FILE : NULL,
                       .begun_usec = l->begun_usec,
                       .ended_usec = clock_realtime_usec(),
                       .processes = public_only ? NULL : l->request->collect.processes,
                       .n_processes = public_only ? 0 : l->request->collect.n_processes,
                       .sections = sections,
                       .n_sections = n,
                       .differences = is_after ? DIFFERENCES_FILE : NULL };
        return document_write(&d, l->dir_fd, name);
}

/* The fast sources are reported as soon as they are all there. */
static int write_public(Snapshot *l) {
        size_t n = 0;
        for (size_t i = 0; i < l->n_parts; i++)
                if (l->parts[i].run.collector->is_public) {
                        if (l->parts[i].run.phase != RUN_ENDED)
                                return 0;
                        n++;
                }
        if (l->has_public || n == 0 || l->request->mode != PROBE_SNAPSHOT || l->request->document)
                return 0;
        l->has_public = true;
        int r = write_document(l, SNAPSHOT_PUBLIC_FILE, true);
        if (r == 0)
                (void)send_message(l->fd, "public"); /* without the agent the document counts */
        return r;
}

static int write_differences(const Snapshot *l) {
        char before[NAME_MAX_BYTES], after[NAME_MAX_BYTES];
        size_t i = 0; /* there is one such collector */
        while (i < l->n_parts && !l->parts[i].run.collector->twice)
                i++;
        if (i == l->n_parts)
                return 0;
        const Collector *c = l->parts[i].run.collector;
        int r = document_write_differences(l->dir_fd, part_name(before, BEFORE_PREFIX, c),
                                           part_name(after, PARTS_PREFIX, c), DIFFERENCES_FILE);
        return r == -EFBIG ? 0 : r;
}

/* What a second snapshot compares with stays, as long as the directory; the rest has become the
 * document. */
static void remove_parts(const Snapshot *l, bool keep_for_second) {
        char part[NAME_MAX_BYTES], before[NAME_MAX_BYTES];
        for (size_t i = 0; i < l->n_parts; i++) {
                const Collector *c = l->parts[i].run.collector;
                part_name(part, PARTS_PREFIX, c);
                part_name(before, BEFORE_PREFIX, c);
                /* All of it goes with the directory at the latest. */
                if (keep_for_second && c->twice)
                        (void)renameat(l->dir_fd, part, l->dir_fd, before);
                else
                        (void)unlinkat(l->dir_fd, part, 0);
        }
        (void)unlinkat(l->dir_fd, DIFFERENCES_FILE, 0);
}

static const char *document_name(const ProbeRequest *o) {
        return o->document              ? o->document
               : o->mode == PROBE_AFTER ? SNAPSHOT_AFTER_FILE
                                        : SNAPSHOT_FILE;
}

static int finish_snapshot(Snapshot *l) {
        ProbeMode mode = l->request->mode;
        const char *name = document_name(l->request);
        int r = mode == PROBE_AFTER ? write_differences(l) : 0;
        if (r == 0)
                r = write_document(l, name, false);
        if (r == 0)
                remove_parts(l, mode != PROBE_AFTER && !l->request->document);
        return r;
}

/* ---- running the parts ---- */

static int on_part_output(const char *data, size_t n, void *userdata) {
        Part *p = userdata;
        p->keep_error = fs_write_all(p->fd, data, n);
        return p->keep_error;
}

static void start_parts(Snapshot *l);

static void on_part_done(const ChildResult *result, void *userdata) {
        Part *p = userdata;
        run_end_by_result(&p->run, result, p->keep_error == 0);
        end_part(p->snapshot, p);
        start_parts(p->snapshot);
}

static void start_part(Snapshot *l, Part *p) {
        char name[NAME_MAX_BYTES], child[96];
        part_name(name, PARTS_PREFIX, p->run.collector);
        _cleanup_close_ int raw = make_raw_directory(l, p->run.collector);
        p->fd = openat(l->dir_fd, name, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW,
                       0600);
        if (raw < 0 || p->fd < 0) {
                run_end(&p->run, SECTION_FAILED, "its files could not be made: %s",
                        strerror(raw < 0 ? -raw : errno));
                return;
        }
        (void)snprintf(child, sizeof child, "collect:%s", p->run.collector->name);
        (void)run_start(&p->run, l->event, child, l->request_fd, raw,
                        (ChildOptions){ .timeout_usec = timeout_of(l->request, p->run.collector),
                                        .output_max_bytes = l->request->collect.max_bytes,
                                        .on_output = on_part_output,
                                        .on_done = on_part_done,
                                        .userdata = p }); /* its state and why have the result */
}

/* Starts what may run now; ends the loop when all have ended. */
static void start_parts(Snapshot *l) {
        size_t n_running = 0, n_ended = 0;
        for (size_t i = 0; i < l->n_parts; i++)
                n_running += l->parts[i].run.phase == RUN_RUNNING;
        for (size_t i = 0; i < l->n_parts && n_running < TASKS_AT_ONCE; i++) {
                Part *p = &l->parts[i];
                if (p->run.phase != RUN_WAITING)
                        continue;
                start_part(l, p);
                n_running += p->run.phase == RUN_RUNNING;
                if (p->run.phase == RUN_ENDED)
                        end_part(l, p);
        }
        l->error = l->error < 0 ? l->error : write_public(l);
        for (size_t i = 0; i < l->n_parts; i++)
                n_ended += l->parts[i].run.phase == RUN_ENDED;
        if (n_ended == l->n_parts || l->error < 0)
                (void)sd_event_exit(l->event, l->error); /* fails only once it has ended */
}

static int run_parts(Snapshot *l) {
        start_parts(l);
        return sd_event_loop(l->event);
}

static void add_part(Snapshot *l, const Collector *c) {
        l->parts[l->n_parts++] = (Part){ .run = { .collector = c },
                                         .snapshot = l,
                                         .fd = -1,
                                         .files_bytes = l->request->collect.max_bytes };
}

static bool is_in_second_snapshot(const ProbeRequest *o, const Collector *c) {
        return c->twice || (c->again && o->collect.n_dumps > 0);
}

/* What the hook waits for comes first. */
static void add_parts(Snapshot *l) {
        for (size_t pass = 0; pass < 2; pass++)
                for (size_t i = 0; i < ELEMENTSOF(collectors) && l->n_parts < PARTS_MAX; i++) {
                        const Collector *c = &collectors[i];
                        if (c->is_public == (pass == 0) && is_wanted(l->request, c) &&
                            (l->request->mode != PROBE_AFTER ||
                             is_in_second_snapshot(l->request, c)))
                                add_part(l, c);
                }
}

/* ---- what an earlier supervisor has left ---- */

/* Two supervisors in one directory: the second waits, and finds the document of the first. */
static int lock(const Snapshot *l) {
        uint64_t until = clock_boottime_usec() + LOCK_WAIT_USEC + l->request->collect.timeout_usec;
        _cleanup_close_ int fd = openat(l->dir_fd, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
        if (fd < 0)
                return -errno;
        while (flock(fd, LOCK_EX | LOCK_NB) < 0) {
                if (errno != EWOULDBLOCK || clock_boottime_usec() > until)
                        return -errno;
                (void)usleep(20 * USEC_PER_MSEC);
        }
        return TAKE_FD(fd);
}

static void salvage(Snapshot *l) {
        char name[NAME_MAX_BYTES];
        struct stat st;
        for (size_t i = 0; i < l->n_parts; i++) {
                Part *p = &l->parts[i];
                if (fstatat(l->dir_fd, part_name(name, PARTS_PREFIX, p->run.collector), &st,
                            AT_SYMLINK_NOFOLLOW) == 0)
                        run_end(&p->run, SECTION_CUT,
                                "the snapshot was interrupted; this is what had been written "
                                "until then");
                else
                        run_end(&p->run, SECTION_SKIPPED,
                                "the snapshot was interrupted before its turn");
                adopt_raw_files(l, p);
        }
}

static void snapshot_done(Snapshot *l) {
        for (size_t i = 0; i < l->n_parts; i++) {
                Part *p = &l->parts[i];
                run_done(&p->run);
                for (size_t k = 0; k < p->n_files; k++)
                        free(p->files[k]);
                free(p->files);
                if (p->fd >= 0)
                        (void)close(p->fd);
        }
        if (l->request_fd >= 0)
                (void)close(l->request_fd);
        sd_event_unref(l->event);
}

static bool has_begun(const Snapshot *l) {
        char name[NAME_MAX_BYTES];
        for (size_t i = 0; i < l->n_parts; i++)
                if (faccessat(l->dir_fd, part_name(name, PARTS_PREFIX, l->parts[i].run.collector),
                              F_OK, AT_SYMLINK_NOFOLLOW) == 0)
                        return true;
        return faccessat(l->dir_fd, document_name(l->request), F_OK, AT_SYMLINK_NOFOLLOW) == 0;
}

/* An agent may have ended as soon as it had started a supervisor, and the next one be quicker than
 * that: nothing here is no proof that nobody comes. */
static void wait_for_start(const Snapshot *l) {
        uint64_t until = clock_boottime_usec() + BEGIN_WAIT_USEC;
        while (!has_begun(l) && clock_boottime_usec() < until)
                (void)usleep(50 * USEC_PER_MSEC);
}

static int run_snapshot(int fd, const ProbeRequest *request, int dir_fd) {
        _cleanup_(snapshot_done) Snapshot l = { .fd = fd,
                                                .dir_fd = dir_fd,
                                                .request_fd = -1,
                                                .request = request,
                                                .begun_usec = clock_realtime_usec() };
        add_parts(&l);
        if (request->mode == PROBE_SALVAGE)
                wait_for_start(&l);
        _cleanup_close_ int held = lock(&l);
        if (held < 0)
                return held;
        if (request->mode == PROBE_SALVAGE &&
            faccessat(dir_fd, document_name(request), F_OK, AT_SYMLINK_NOFOLLOW) == 0)
                return 0;
        int r = 0;
        if (request->mode == PROBE_SALVAGE)
                salvage(&l);
        else {
                r = sd_event_new(&l.event);
                if (r >= 0)
                        r = l.request_fd = request_fd(request);
                if (r >= 0)
                        r = run_parts(&l);
        }
        return r < 0 ? r : finish_snapshot(&l);
}

/* ---- a watch ---- */

typedef struct Watch Watch;

typedef struct Stream { /* of a child that is started again and again */
        const char *child;
        uint64_t interval_usec; /* from one start to the next */
        ChildOptions options;
        int (*on_line)(Watch *w, const char *line);
        void (*on_end)(Watch *w);
        Watch *watch;
        sd_event_source *timer;
        Run run;
        char *text; /* the line that is under way */
        size_t n;
        bool is_too_long;
} Stream;

typedef struct Round { /* what `jobs` wrote, a JSON text each, in order */
        char **lines;
        size_t n, n_mappers;
} Round;

struct Watch {
        sd_event *event;
        sd_event_source *io;
        int fd, request_fd;
        uint64_t next_all_usec;
        char reported_why[sizeof((Run *)0)->why]; /* why the kernel log is not followed */
        Stream kmsg, jobs;
        Round before, now;
};

static int on_stream_output(const char *data, size_t n, void *userdata) {
        Stream *x = userdata;
        if (!x->text && !(x->text = malloc(LINE_MAX_BYTES + 1)))
                return -ENOMEM;
        for (size_t i = 0; i < n; i++) {
                if (data[i] != '\n') {
                        x->is_too_long = x->is_too_long || x->n >= LINE_MAX_BYTES;
                        if (!x->is_too_long)
                                x->text[x->n++] = data[i];
                        continue;
                }
                x->text[x->n] = '\0';
                int r = x->is_too_long || memchr(x->text, '\0', x->n)
                                ? 0
                                : x->on_line(x->watch, x->text);
                x->n = 0;
                x->is_too_long = false;
                if (r < 0)
                        return r;
        }
        return 0;
}

static int on_kmsg_line(Watch *w, const char *line) {
        (void)send_message(w->fd, "kmsg %s", line); /* on_agent() is told of its end */
        return 0;
}

/* Within a text of JSON its quotes would be escaped. */
static bool is_mapper(const char *line) {
        return strstr(line, "\"devices\":[]") != NULL;
}

static int on_jobs_line(Watch *w, const char *line) {
        if (w->now.n >= RECORDS_MAX || (is_mapper(line) && w->now.n_mappers++ >= MAPPERS_MAX))
                return 0;
        if (!w->now.lines && !(w->now.lines = calloc(RECORDS_MAX, sizeof *w->now.lines)))
                return -ENOMEM;
        w->now.lines[w->now.n] = strdup(line);
        if (!w->now.lines[w->now.n])
                return -ENOMEM;
        w->now.n++;
        return 0;
}

static void round_done(Round *r) {
        for (size_t i = 0; i < r->n; i++)
                free(r->lines[i]);
        free(r->lines);
        *r = (Round){ 0 };
}

static bool has_line(const Round *r, char *const *line) {
        return r->n > 0 &&
               bsearch(line, r->lines, r->n, sizeof *r->lines, array_compare_strings) != NULL;
}

static void send_lines(const Watch *w, bool mappers, bool all) {
        for (size_t i = 0; i < w->now.n; i++) {
                char **line = &w->now.lines[i];
                if (is_mapper(*line) == mappers && (all || !has_line(&w->before, line)))
                        (void)send_message(w->fd, "jobs %s", *line); /* as above */
        }
}

/* Only what is new or has changed is sent, those who hold a device first: in a quiet job that is
 * nothing. Every now and then all is, for an agent that could not keep it. Nothing is sent about a
 * process that has gone: what was known of it stays true. */
static void report_round(Watch *w) {
        uint64_t now = clock_boottime_usec();
        bool all = now >= w->next_all_usec;
        if (all)
                w->next_all_usec = now + ALL_USEC;
        if (w->now.n > 0)
                qsort(w->now.lines, w->now.n, sizeof *w->now.lines, array_compare_strings);
        send_lines(w, false, all);
        send_lines(w, true, all);
        round_done(&w->before);
        w->before = w->now;
        w->now = (Round){ 0 };
}

/* It is tried again every now and then: the same reason is reported once. */
static void on_kmsg_end(Watch *w) {
        if (!*w->kmsg.run.why || strcmp(w->kmsg.run.why, w->reported_why) == 0)
                return;
        (void)snprintf(w->reported_why, sizeof w->reported_why, "%s", w->kmsg.run.why);
        (void)send_message(w->fd, "trouble %s", w->kmsg.run.why); /* as above */
}

static void on_jobs_end(Watch *w) {
        if (w->jobs.run.state == SECTION_COMPLETE)
                report_round(w);
        else
                round_done(&w->now); /* half a round would make the others appear new at the next */
}

/* The next is started when its time has come, counted from the start of the last. */
static void arm_next(const Stream *x) {
        uint64_t passed = clock_boottime_usec() - x->run.started_usec;
        /* Fails only in another process than the one that made the loop. */
        (void)timer_rearm(x->timer, passed < x->interval_usec ? x->interval_usec - passed : 0);
}

static void on_stream_done(const ChildResult *result, void *userdata) {
        Stream *x = userdata;
        run_end_by_result(&x->run, result, true);
        x->on_end(x->watch);
        run_done(&x->run);
        arm_next(x);
}

static int on_stream_timer(sd_event_source *s, uint64_t usec, void *userdata) {
        Stream *x = userdata;
        (void)s, (void)usec;
        if (run_start(&x->run, x->watch->event, x->child, x->watch->request_fd, 0, x->options) < 0)
                arm_next(x);
        return 0;
}

static int stream_init(Stream *x, Watch *w) {
        x->watch = w;
        x->options.on_output = on_stream_output;
        x->options.on_done = on_stream_done;
        x->options.userdata = x;
        return sd_event_add_time_relative(w->event, &x->timer, CLOCK_MONOTONIC, 0, 0,
                                          on_stream_timer, x);
}

static void stream_done(Stream *x) {
        run_done(&x->run);
        free(x->text);
        sd_event_source_disable_unref(x->timer);
}

/* The agent sends nothing more: this is its end. */
static int on_agent(sd_event_source *s, int fd, uint32_t revents, void *userdata) {
        (void)fd, (void)revents, (void)userdata;
        (void)sd_event_exit(sd_event_source_get_event(s), 0); /* fails only once it has ended */
        return 0;
}

static void watch_done(Watch *w) {
        stream_done(&w->kmsg);
        stream_done(&w->jobs);
        round_done(&w->before);
        round_done(&w->now);
        if (w->request_fd >= 0)
                (void)close(w->request_fd);
        sd_event_source_disable_unref(w->io);
        sd_event_unref(w->event);
}

static int run_watch(int fd, const ProbeRequest *request) {
        _cleanup_(watch_done) Watch w = {
                .fd = fd,
                .request_fd = request_fd(request),
                .kmsg = { .child = "follow:kmsg",
                          .interval_usec = RESTART_USEC,
                          .options = { .timeout_usec = USEC_INFINITY,
                                       .output_max_bytes = SIZE_MAX },
                          .on_line = on_kmsg_line,
                          .on_end = on_kmsg_end },
                .jobs = { .child = "collect:jobs",
                          .interval_usec = MAX(request->interval_usec, INTERVAL_MIN_USEC),
                          .options = { .timeout_usec = request->collect.timeout_usec,
                                       .output_max_bytes = 64 * MIB },
                          .on_line = on_jobs_line,
                          .on_end = on_jobs_end }
        };
        int r = w.request_fd < 0 ? w.request_fd : sd_event_new(&w.event);
        if (r >= 0)
                r = sd_event_add_io(w.event, &w.io, fd, EPOLLIN, on_agent, NULL);
        if (r >= 0)
                r = stream_init(&w.kmsg, &w);
        if (r >= 0)
                r = stream_init(&w.jobs, &w);
        return r < 0 ? r : sd_event_loop(w.event);
}

/* ---- the request ---- */

/* @param ret_fds  the request, and the directory, -1 = none  @return 0, -errno */
static int receive(int fd, int ret_fds[static ORDER_FDS]) {
        char text[16] = "";
        struct pollfd p = { .fd = fd, .events = POLLIN };
        int r = poll(&p, 1, ORDER_WAIT_MSEC);
        if (r <= 0)
                return r < 0 ? -errno : -ETIMEDOUT;
        ssize_t n = packet_receive(fd, text, sizeof text - 1, ret_fds, ORDER_FDS);
        if (n <= 0)
                return n < 0 ? (int)n : -ECONNRESET;
        return strcmp(text, "order") == 0 && ret_fds[0] >= 0 ? 0 : -EPROTO;
}

/* ---- the process that sends a request ---- */

/* F_GETLK names the process that has the lock, by the numbers of our pid namespace. */
static int check_holder(const char *state_directory, pid_t pid, const char **ret_why) {
        struct flock whole = { .l_type = F_WRLCK, .l_whence = SEEK_SET };
        _cleanup_free_ char *path = path_join(state_directory, "lock");
        if (!path)
                return -ENOMEM;
        _cleanup_close_ int fd = open(path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
        if (fd < 0 || fcntl(fd, F_GETLK, &whole) < 0) {
                int r = -errno;
                *ret_why = "the lock of the agent's state directory cannot be examined";
                return r;
        }
        if (whole.l_type != F_UNLCK && pid > 0 && whole.l_pid == pid)
                return 0;
        *ret_why = "the caller is not the process that holds the lock of the state directory";
        return -EPERM;
}

/* The agent's children run as its user and can connect, too. Only the process that holds the lock
 * of the state directory is served. */
static int check_peer(int fd, const char *state_directory, const char **ret_why) {
        struct ucred peer;
        socklen_t n = sizeof peer;
        if (getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &n) < 0)
                return -errno;
        return peer.uid == 0 || peer.uid == geteuid()
                       ? check_holder(state_directory, peer.pid, ret_why)
                       : -EPERM;
}

static int use_commands(const Config *config, ProbeRequest *request) {
        size_t n = config->snapshot.n_commands;
        CollectCommand *commands = calloc(n + 1, sizeof *commands);
        int r = commands ? 0 : -ENOMEM;
        probe_request_clear_commands(request);
        request->collect.commands = commands;
        for (size_t i = 0; i < n && r == 0; i++) {
                const ConfigCommand *from = &config->snapshot.commands[i];
                CollectCommand *to = &commands[i];
                *to = (CollectCommand){ strdup(from->name), strings_copy(from->run.items),
                                        from->timeout_usec };
                request->collect.n_commands = i + 1;
                r = to->name && to->run ? 0 : -ENOMEM;
        }
        return r;
}

/* ---- which processes are meant ---- */

static int add_process(CollectRequest *c, pid_t pid, uint64_t start_ticks) {
        for (size_t i = 0; i < c->n_processes; i++)
                if (c->processes[i].pid == pid)
                        return 0;
        if (c->n_processes >= COLLECT_PROCESSES_MAX)
                return 0; /* the document has their number */
        CollectProcess *more = realloc(c->processes, (c->n_processes + 1) * sizeof *more);
        if (!more)
                return -ENOMEM;
        c->processes = more;
        more[c->n_processes++] = (CollectProcess){ pid, start_ticks };
        return 0;
}

/* The logs that this process writes are searched where it is. */
static void complete_log_files(CollectRequest *c, const ProbePidQuery *q, const PidsMatch *answer) {
        for (size_t i = 0; i < c->n_log_files; i++) {
                CollectLogFile *f = &c->log_files[i];
                if (f->pid == 0 && f->hook_pid == q->hook_pid && f->inner_pid == q->inner_pid) {
                        f->pid = answer->pid;
                        f->start_ticks = answer->start_ticks;
                }
        }
}

/* Of a process that was not found, or has ended by now, the container is its hook's. */
static void send_answer(int fd, const char *proc_root, const ProbePidQuery *q,
                        const PidsMatch *answer) {
        char container[PIDS_CONTAINER_SIZE];
        if (answer->pid <= 0 || !pids_container(proc_root, answer->pid, container) || !container[0])
                (void)pids_container(proc_root, q->hook_pid, container); /* else "" */
        if (!container[0])
                (void)snprintf(container, sizeof container, "-");
        (void)send_message(fd, "process %d %d %d %llu %s", (int)q->hook_pid, (int)q->inner_pid,
                           (int)answer->pid, (unsigned long long)answer->start_ticks, container);
}

static int resolve_questions(int fd, ProbeRequest *request) {
        for (size_t i = 0; i < request->n_questions; i++) {
                const ProbePidQuery *q = &request->questions[i];
                PidsMatch answer = { 0 };
                /* Hidden, or it died while it was examined: that one alone is unknown. */
                if (pids_resolve(&(PidsQuery){ request->collect.proc_root, q->hook_pid, q->ns_inode,
                                               q->inner_pid },
                                 &answer) != 0)
                        answer = (PidsMatch){ 0 };
                send_answer(fd, request->collect.proc_root, q, &answer);
                if (answer.pid <= 0)
                        continue;
                complete_log_files(&request->collect, q, &answer);
                int r = add_process(&request->collect, answer.pid, answer.start_ticks);
                if (r < 0)
                        return r;
        }
        return 0;
}

/* ---- carrying it out ---- */

static int run_request(int fd, ProbeRequest *request, int dir_fd) {
        struct stat st;
        if (request->mode == PROBE_WATCH)
                return run_watch(fd, request);
        if (request->mode == PROBE_ROOTS)
                return roots_send_container(fd, request->collect.proc_root,
                                            request->cgroup ? request->cgroup : "");
        if (dir_fd < 0 || fstat(dir_fd, &st) < 0 || !S_ISDIR(st.st_mode))
                return -ENOTDIR;
        int r = resolve_questions(fd, request);
        return r < 0 ? r : run_snapshot(fd, request, dir_fd);
}

static int check_collectors(const ProbeRequest *request, const char **ret_why) {
        for (char **c = request->collectors; c && *c; c++)
                if (!collector_find(*c)) {
                        *ret_why = "the order names a collector that is not there";
                        return -EINVAL;
                }
        return 0;
}

/* @param config_file  NULL: the agent has started this process, with its own rights */
static int serve(int fd, const char *config_file, const char **ret_why) {
        _cleanup_(probe_request_done) ProbeRequest request = { 0 };
        _cleanup_(config_freep) Config *config = NULL;
        int fds[ORDER_FDS] = { -1, -1 }; /* which end with the process */
        int r = receive(fd, fds);        /* or who is refused would not get to read why */
        if (r < 0)
                return r;
        r = config_file ? config_load_for_probe(&config, config_file, environ) : 0;
        if (r != 0) {
                *ret_why = "the probe cannot read the agent's configuration, which names the state "
                           "directory and the commands";
                return r < 0 ? r : -EINVAL;
        }
        if (config)
                r = check_peer(fd, config->state_directory, ret_why);
        if (r == 0)
                r = probe_request_read(fds[0], &request, ret_why);
        if (r == 0 && config)
                r = use_commands(config, &request);
        if (r == 0)
                r = check_collectors(&request, ret_why);
        if (r == 0)
                r = run_request(fd, &request, fds[1]);
        return r;
}

/* Programs that outlived the collector which started them are ours by now: see
 * PR_SET_CHILD_SUBREAPER. */
static void kill_descendants(void) {
        char path[64];
        int pid;
        (void)snprintf(path, sizeof path, "/proc/self/task/%d/children", (int)getpid());
        _cleanup_fclose_ FILE *f = fopen(path, "re");
        while (f && fscanf(f, "%d", &pid) == 1)
                if (pid > 1)
                        (void)kill(pid, SIGKILL); /* what has just ended by itself is fine */
        while (waitpid(-1, NULL, WNOHANG) > 0)
                ;
}

/* Serves one connection until it is through. @return 0, -ENOTSOCK when fd is none, -errno */
static int supervisor_main(int fd, const char *config_file) {
        struct stat st;
        const char *why = "";
        if (fstat(fd, &st) < 0 || !S_ISSOCK(st.st_mode))
                return -ENOTSOCK;
        (void)signal(SIGPIPE, SIG_IGN);
        (void)prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0); /* without it they are init's */
        int r = serve(fd, config_file, &why);
        kill_descendants();
        if (r < 0)
                (void)send_message(fd, "failed %s%s%s", why, *why ? ": " : "", strerror(-r));
        else
                (void)send_message(fd, "done"); /* nobody may be there any more */
        return r;
}

/* ---- a collector, in the program that was executed again ---- */

static int usage(void) {
        static const char text[] =
                "neuron-collectd: --child is how the agent starts parts of itself, not for people; "
                "`neuron-collect snapshot` takes a snapshot\n";
        (void)!write(STDERR_FILENO, text, sizeof text - 1); /* nobody is left to hear */
        return CHILD_USAGE;
}

static int report_reason(const char *what, int error) {
        _cleanup_(strbuf_done) StrBuf b = STRBUF_INIT;
        strbuf_addf(&b, "%s%s%s\n", what, error ? ": " : "", error ? strerror(-error) : "");
        if (b.text)
                (void)!write(CHILD_WHY_FD, b.text, b.n); /* then the section has no reason */
        return CHILD_FAILED;
}

static int find_directory(void) {
        struct stat st;
        return fstat(CHILD_DIR_FD, &st) == 0 && S_ISDIR(st.st_mode) ? CHILD_DIR_FD : -1;
}

static int enter_sandbox(const Collector *c, const ProbeRequest *request, int dir_fd,
                         uint64_t cpu_usec) {
        const CollectRequest *collect = &request->collect;
        _cleanup_(strbuf_done) StrBuf left_out = STRBUF_INIT;
        Sandbox s = { .dir_fd = c->needs & MAKES_FILES ? dir_fd : -1,
                      .device_directory =
                              c->needs & OPENS_DEVICES ? collect->device_directory : NULL,
                      .capabilities = c->capabilities,
                      .cpu_usec = cpu_usec,
                      .may_exec = c->needs & MAY_EXEC,
                      .runs_commands = c->needs & RUNS_COMMANDS,
                      .reads_processes = c->needs & READS_PROCESSES,
                      .reads_kernel_log = c->needs & READS_KERNEL_LOG };
        s.max_file_bytes = s.dir_fd >= 0 ? collect->max_bytes : 0;
        int r = sandbox_enter(&s, &left_out);
        if (r == 0 && left_out.n)
                (void)report_reason(left_out.text, 0); /* no failure, reported in the same place */
        return r;
}

/* The supervisor may be gone before the signal was asked for. */
static int die_with_parent(pid_t parent) {
        if (prctl(PR_SET_PDEATHSIG, SIGKILL, 0, 0, 0) < 0)
                return -errno;
        return getppid() == parent ? 0 : -ESRCH;
}

/* `snapshot-more-1.json` lies in the directory of `snapshot.json`, and so do the raw files of both.
 * @return into buf; NULL: it is the first */
static const char *raw_file_prefix(const ProbeRequest *request,
                                   char buf[static PROBE_REQUEST_NAME_MAX]) {
        static const char prefix[] = "snapshot-";
        const char *name = request->document;
        if (!name || strncmp(name, prefix, sizeof prefix - 1) != 0)
                return NULL;
        name += sizeof prefix - 1;
        (void)snprintf(buf, PROBE_REQUEST_NAME_MAX, "%.*s-", (int)strcspn(name, "."), name);
        return buf;
}

static int run_collector(const char *name, bool follows) {
        _cleanup_(probe_request_done) ProbeRequest request = { 0 };
        const Collector *collector = collector_find(name);
        pid_t parent = getppid();
        const char *why = "";
        if (!collector)
                return usage();
        /* What a person has as fd 0 is no request. */
        if (probe_request_read(CHILD_ORDER_FD, &request, &why) < 0)
                return usage();
        int dir_fd = find_directory();
        (void)syscall(SYS_close_range, dir_fd + 1 > 3 ? 4U : 3U, ~0U,
                      0); /* an old kernel: then all had O_CLOEXEC */
        int r = enter_sandbox(collector, &request, dir_fd,
                              follows ? USEC_INFINITY : timeout_of(&request, collector));
        if (r == 0)
                r = die_with_parent(parent);
        if (r < 0)
                return report_reason("it could not be confined, so nothing was collected", r);
        CollectOut out = { .fd = CHILD_OUT_FD,
                           .dir_fd = request.mode == PROBE_AFTER ? -1 : dir_fd,
                           .max_bytes = follows ? UINT64_MAX : request.collect.max_bytes };
        if (!follows && collector->per_process && request.collect.n_processes == 0) {
                (void)report_reason("no process is known that it could be about", 0);
                return CHILD_SKIPPED;
        }
        char prefix[PROBE_REQUEST_NAME_MAX];
        out.raw_prefix = raw_file_prefix(&request, prefix);
        request.collect.instance_id = request.instance_id;
        r = follows ? follow_kmsg(&request.collect, &out) : collector->run(&request.collect, &out);
        if (r == COLLECT_E_NOTHING) {
                (void)report_reason(out.why, 0); /* no failure, reported in the same place */
                return CHILD_SKIPPED;
        }
        if (r < 0 && r != -EFBIG)
                return *out.why ? report_reason(out.why, 0)
                                : report_reason("it could not be collected", r);
        if (*out.why)
                (void)report_reason(out.why, 0); /* as above */
        return out.is_cut ? CHILD_CUT : CHILD_DONE;
}

int child_main(const char *name, const char *config_file) {
        if (strcmp(name, "probe") == 0) {
                int r = supervisor_main(STDIN_FILENO, config_file);
                return r == -ENOTSOCK ? usage() : r < 0 ? CHILD_FAILED : CHILD_DONE;
        }
        if (strncmp(name, "collect:", 8) == 0)
                return run_collector(name + 8, false);
        if (strcmp(name, "follow:kmsg") == 0)
                return run_collector("kmsg", true);
        if (strcmp(name, "crash") == 0)
                return crash_child_main();
        return usage();
}
