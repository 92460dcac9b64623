/* One snapshot: the collectors of a request run once, and what they recorded becomes a document.
 *
 * Each collector has a section. A section waits, runs (collector_process.h) and ends, four at once,
 * those that the hook waits for first. While it runs, its records go into the file
 * `.part-COLLECTOR` of the snapshot's directory and its raw files into the directory
 * `.raw-COLLECTOR`; when it has ended, the raw files move up into the snapshot's directory. When
 * all sections have ended, document.c makes the document from the records.
 *
 * Nothing is held in memory, so that a supervisor that is killed leaves what was written until
 * then: a later supervisor makes the document of it (PROBE_SALVAGE). A lock on the directory keeps
 * two supervisors apart.
 *
 * A second snapshot (PROBE_AFTER), which is taken after the processes have exited, also shows what
 * has changed since the first, for which the first leaves its records in `.before-COLLECTOR`.
 *
 * The document's form is document.c's; which processes are meant is decided in supervisor.c. */
#include "collectors/snapshot.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <systemd/sd-event.h>
#include <unistd.h>

#include "collectors/collector_process.h"
#include "collectors/runner/differences.h"
#include "collectors/runner/document.h"
#include "collectors/runner/packet.h"
#include "lib/base/cleanup.h"
#include "lib/base/clock.h"
#include "lib/base/fs.h"

#define CHILDREN_AT_ONCE 4
#define SECTIONS_MAX 16
#define RAW_FILES_MAX 4096 /* of one collector */
#define NAME_MAX_BYTES 128
#define PARTS_PREFIX ".part-"
#define RAW_PREFIX ".raw-"
#define BEFORE_PREFIX ".before-" /* SNAPSHOT_BEFORE_FILE */
#define DIFFERENCES_FILE ".differences"
#define LOCK_WAIT_USEC (30 * USEC_PER_SEC) /* added to the request's timeout */
#define START_WAIT_USEC (5 * USEC_PER_SEC)

typedef struct SnapshotRun SnapshotRun;

/* What one collector contributes to the document. */
typedef struct SnapshotSection {
        const Collector *collector;
        CollectorProcess process;
        SnapshotRun *snapshot; /* its parent */
        int fd;                /* for its records; -1 while it does not run */
        int keep_error;        /* of writing them */
        char **files;          /* its raw files, NULL-terminated */
        size_t n_files;
        uint64_t files_bytes; /* that further raw files may have */
} SnapshotSection;

struct SnapshotRun {
        sd_event *event;
        int fd, dir_fd; /* borrowed: of the agent's connection, of the directory */
        int request_fd; /* each collector reads the request from it */
        const ProbeRequest *request;
        SnapshotSection sections[SECTIONS_MAX];
        size_t n_sections;
        uint64_t begun_usec;
        bool is_public_written, has_differences;
        int error; /* why the snapshot ends early */
};

/* @return the name of a file that belongs to a collector, in buf */
static const char *file_name(char buf[static NAME_MAX_BYTES], const char *prefix,
                             const Collector *c) {
        (void)snprintf(buf, NAME_MAX_BYTES, "%s%s", prefix, c->name);
        return buf;
}

/* ---- raw files ---- */

static int make_raw_directory(const SnapshotRun *s, const Collector *c) {
        char name[NAME_MAX_BYTES];
        file_name(name, RAW_PREFIX, c);
        if (mkdirat(s->dir_fd, name, 0700) < 0 && errno != EEXIST)
                return -errno;
        int fd = openat(s->dir_fd, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
        return fd < 0 ? -errno : fd;
}

static bool is_reserved(const char *name) {
        return name[0] == '.' || strncmp(name, "snapshot", 8) == 0 ||
               strcmp(name, SNAPSHOT_PUBLIC_FILE) == 0 || strcmp(name, SNAPSHOT_CONTEXT_FILE) == 0;
}

/* Moves a raw file into the snapshot's directory, unless its name is in use there or it is too
 * large. @return 0, 1: it was not moved, -errno */
static int adopt_raw_file(const SnapshotRun *s, SnapshotSection *x, int raw_fd, const char *name) {
        struct stat st;
        size_t n = x->n_files;
        if (is_reserved(name) || n >= RAW_FILES_MAX || strlen(name) > 100 ||
            fstatat(raw_fd, name, &st, AT_SYMLINK_NOFOLLOW) < 0 || !S_ISREG(st.st_mode))
                return 1;
        uint64_t n_bytes = (uint64_t)st.st_size;
        if (n_bytes > x->files_bytes || faccessat(s->dir_fd, name, F_OK, AT_SYMLINK_NOFOLLOW) == 0)
                return 1;
        x->files[n] = strdup(name);
        if (!x->files[n])
                return -ENOMEM;
        if (renameat(raw_fd, name, s->dir_fd, name) < 0) {
                free(TAKE_PTR(x->files[n]));
                return -errno;
        }
        x->n_files++;
        x->files_bytes -= n_bytes;
        return 0;
}

static void adopt_raw_files(const SnapshotRun *s, SnapshotSection *x) {
        char name[NAME_MAX_BYTES];
        CollectorProcess *process = &x->process;
        _cleanup_closedir_ DIR *d = NULL;
        (void)fs_opendir_at(s->dir_fd, file_name(name, RAW_PREFIX, x->collector),
                            &d); /* absent: no raw files */
        x->files = calloc(RAW_FILES_MAX + 1, sizeof *x->files);
        if (!d || !x->files)
                return;
        const struct dirent *e;
        while ((e = readdir(d)))
                if (e->d_name[0] != '.' && adopt_raw_file(s, x, dirfd(d), e->d_name) != 0 &&
                    process->state == SECTION_COMPLETE) {
                        process->state = SECTION_CUT;
                        (void)snprintf(process->why, sizeof process->why,
                                       "not all of its files could be collected");
                }
        (void)fs_remove_tree(s->dir_fd, name); /* on error it goes with the snapshot's directory */
}

static void end_section(const SnapshotRun *s, SnapshotSection *x) {
        struct stat st;
        if (x->fd >= 0 && fstat(x->fd, &st) == 0) /* records and raw files share max_bytes */
                x->files_bytes -= MIN(x->files_bytes, (uint64_t)st.st_size);
        if (x->fd >= 0)
                (void)close(TAKE_FD(x->fd)); /* every write was checked */
        adopt_raw_files(s, x);
}

/* ---- the document ---- */

/* @param name  where the section's `part` points to */
static DocumentSection section_of(const SnapshotSection *x, char name[static NAME_MAX_BYTES]) {
        const CollectorProcess *process = &x->process;
        return (DocumentSection){ .name = x->collector->name,
                                  .detail = process->why,
                                  .state = process->state,
                                  .begun_usec = process->begun_usec,
                                  .duration_usec = process->ended_usec - process->started_usec,
                                  .part = file_name(name, PARTS_PREFIX, x->collector),
                                  .files = x->files };
}

static int write_document(const SnapshotRun *s, const char *name, bool public_only) {
        DocumentSection sections[SECTIONS_MAX];
        char names[SECTIONS_MAX][NAME_MAX_BYTES], hostname[65] = "";
        size_t n = 0;
        for (size_t i = 0; i < s->n_sections; i++)
                if (!public_only || s->sections[i].collector->is_public) {
                        sections[n] = section_of(&s->sections[i], names[n]);
                        n++;
                }
        (void)gethostname(hostname, sizeof hostname - 1); /* on error it stays empty */
        bool is_after = s->request->mode == PROBE_AFTER;
        Document d = { .name = s->request->name,
                       .trigger = public_only ? NULL : s->request->trigger,
                       .instance_id = s->request->instance_id,
                       .hostname = hostname,
                       .before = is_after ? SNAPSHOT_FILE : NULL,
                       .begun_usec = s->begun_usec,
                       .ended_usec = clock_realtime_usec(),
                       .processes = public_only ? NULL : s->request->collect.processes,
                       .n_processes = public_only ? 0 : s->request->collect.n_processes,
                       .sections = sections,
                       .n_sections = n,
                       .differences = s->has_differences ? DIFFERENCES_FILE : NULL };
        return document_write(&d, s->dir_fd, name);
}

/* Writes the public document as soon as the last public section has ended: the hook waits for it.
 */
static int write_public(SnapshotRun *s) {
        size_t n = 0;
        for (size_t i = 0; i < s->n_sections; i++)
                if (s->sections[i].collector->is_public) {
                        if (s->sections[i].process.phase != COLLECTOR_ENDED)
                                return 0;
                        n++;
                }
        if (s->is_public_written || n == 0 || s->request->mode != PROBE_SNAPSHOT ||
            s->request->document)
                return 0;
        s->is_public_written = true;
        int r = write_document(s, SNAPSHOT_PUBLIC_FILE, true);
        if (r == 0)
                (void)packet_printf(s->fd,
                                    "public"); /* the agent may be gone: the document remains */
        return r;
}

static int write_differences(const SnapshotRun *s) {
        char before[NAME_MAX_BYTES], after[NAME_MAX_BYTES];
        size_t i = 0; /* one collector is compared */
        while (i < s->n_sections && !s->sections[i].collector->is_compared)
                i++;
        if (i == s->n_sections)
                return 0;
        const Collector *c = s->sections[i].collector;
        int r = differences_write(s->dir_fd, file_name(before, BEFORE_PREFIX, c),
                                  file_name(after, PARTS_PREFIX, c), DIFFERENCES_FILE);
        return r == -EFBIG ? 0 : r;
}

/* Removes the records, which are in the document now, but for those that a second snapshot will be
 * compared to. Errors are ignored: the agent removes the directory later. */
static void remove_records(const SnapshotRun *s, bool keep_for_second) {
        char part[NAME_MAX_BYTES], before[NAME_MAX_BYTES];
        for (size_t i = 0; i < s->n_sections; i++) {
                const Collector *c = s->sections[i].collector;
                file_name(part, PARTS_PREFIX, c);
                file_name(before, BEFORE_PREFIX, c);
                if (keep_for_second && c->is_compared)
                        (void)renameat(s->dir_fd, part, s->dir_fd, before);
                else
                        (void)unlinkat(s->dir_fd, part, 0);
        }
        (void)unlinkat(s->dir_fd, DIFFERENCES_FILE, 0);
}

static const char *document_name(const ProbeRequest *o) {
        return o->document              ? o->document
               : o->mode == PROBE_AFTER ? SNAPSHOT_AFTER_FILE
                                        : SNAPSHOT_FILE;
}

/* Writes the document. A second snapshot whose values cannot be compared with the first one's is
 * written all the same, without `differences`. */
static int finish(SnapshotRun *s) {
        ProbeMode mode = s->request->mode;
        s->has_differences = mode == PROBE_AFTER && write_differences(s) == 0;
        int r = write_document(s, document_name(s->request), false);
        if (r == 0)
                remove_records(s, mode != PROBE_AFTER && !s->request->document);
        return r;
}

/* ---- running the sections ---- */

static int on_output(const char *data, size_t n, void *userdata) {
        SnapshotSection *x = userdata;
        x->keep_error = fs_write_all(x->fd, data, n);
        return x->keep_error;
}

static void start_sections(SnapshotRun *s);

static void on_done(const ChildResult *result, void *userdata) {
        SnapshotSection *x = userdata;
        collector_process_end_by_result(&x->process, result, x->keep_error == 0);
        end_section(x->snapshot, x);
        start_sections(x->snapshot);
}

static void start_section(SnapshotRun *s, SnapshotSection *x) {
        char name[NAME_MAX_BYTES], child[96];
        file_name(name, PARTS_PREFIX, x->collector);
        _cleanup_close_ int raw = make_raw_directory(s, x->collector);
        x->fd = openat(s->dir_fd, name, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW,
                       0600);
        if (raw < 0 || x->fd < 0) {
                collector_process_end(&x->process, SECTION_FAILED,
                                      "its files could not be created: %s",
                                      strerror(raw < 0 ? -raw : errno));
                return;
        }
        (void)snprintf(child, sizeof child, "collect:%s", x->collector->name);
        (void)collector_process_start(
                &x->process, s->event, child, s->request_fd, raw,
                (ChildOptions){ .timeout_usec = collector_timeout_usec(x->collector, s->request),
                                .output_max_bytes = s->request->collect.max_bytes,
                                .on_output = on_output,
                                .on_done = on_done,
                                .userdata = x }); /* on error its state says why */
}

/* Starts as many waiting sections as may run, and ends the loop when all have ended. */
static void start_sections(SnapshotRun *s) {
        size_t n_running = 0, n_ended = 0;
        for (size_t i = 0; i < s->n_sections; i++)
                n_running += s->sections[i].process.phase == COLLECTOR_RUNNING;
        for (size_t i = 0; i < s->n_sections && n_running < CHILDREN_AT_ONCE; i++) {
                SnapshotSection *x = &s->sections[i];
                if (x->process.phase != COLLECTOR_WAITING)
                        continue;
                start_section(s, x);
                n_running += x->process.phase == COLLECTOR_RUNNING;
                if (x->process.phase == COLLECTOR_ENDED)
                        end_section(s, x);
        }
        s->error = s->error < 0 ? s->error : write_public(s);
        for (size_t i = 0; i < s->n_sections; i++)
                n_ended += s->sections[i].process.phase == COLLECTOR_ENDED;
        if (n_ended == s->n_sections || s->error < 0)
                (void)sd_event_exit(s->event, s->error); /* fails only once it has ended */
}

static int run_sections(SnapshotRun *s) {
        start_sections(s);
        return sd_event_loop(s->event);
}

static void add_section(SnapshotRun *s, const Collector *c) {
        s->sections[s->n_sections++] =
                (SnapshotSection){ .collector = c,
                                   .snapshot = s,
                                   .fd = -1,
                                   .files_bytes = s->request->collect.max_bytes };
}

static bool is_wanted(const ProbeRequest *o, const Collector *c) {
        for (char **s = o->collectors; s && *s; s++)
                if (strcmp(*s, c->name) == 0)
                        return true;
        return !o->collectors;
}

static bool is_in_second_snapshot(const ProbeRequest *o, const Collector *c) {
        return c->is_compared || (c->rereads_dumps && o->collect.n_dumps > 0);
}

/* The public sections come first: the hook waits for them. */
static void add_sections(SnapshotRun *s, const CollectorTable *table) {
        for (size_t pass = 0; pass < 2; pass++)
                for (size_t i = 0; i < table->n && s->n_sections < SECTIONS_MAX; i++) {
                        const Collector *c = &table->rows[i];
                        if (c->is_public == (pass == 0) && is_wanted(s->request, c) &&
                            (s->request->mode != PROBE_AFTER ||
                             is_in_second_snapshot(s->request, c)))
                                add_section(s, c);
                }
}

/* ---- beside another supervisor, and after one that was killed ---- */

/* Waits until no other supervisor works in this directory. @return an fd that holds the lock,
 * -errno
 */
static int lock(const SnapshotRun *s) {
        uint64_t until = clock_boottime_usec() + LOCK_WAIT_USEC + s->request->collect.timeout_usec;
        _cleanup_close_ int fd = openat(s->dir_fd, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
        if (fd < 0)
                return -errno;
        while (flock(fd, LOCK_EX | LOCK_NB) < 0) {
                if (errno != EWOULDBLOCK || clock_boottime_usec() > until)
                        return -errno;
                (void)usleep(20 * USEC_PER_MSEC);
        }
        return TAKE_FD(fd);
}

/* Makes the document of what a supervisor has written before it was killed. */
static void salvage(SnapshotRun *s) {
        char name[NAME_MAX_BYTES];
        struct stat st;
        for (size_t i = 0; i < s->n_sections; i++) {
                SnapshotSection *x = &s->sections[i];
                if (fstatat(s->dir_fd, file_name(name, PARTS_PREFIX, x->collector), &st,
                            AT_SYMLINK_NOFOLLOW) == 0)
                        collector_process_end(
                                &x->process, SECTION_CUT,
                                "the snapshot was interrupted; these records were written before");
                else
                        collector_process_end(
                                &x->process, SECTION_SKIPPED,
                                "the snapshot was interrupted before this collector ran");
                adopt_raw_files(s, x);
        }
}

static void run_done(SnapshotRun *s) {
        for (size_t i = 0; i < s->n_sections; i++) {
                SnapshotSection *x = &s->sections[i];
                collector_process_done(&x->process);
                for (size_t k = 0; k < x->n_files; k++)
                        free(x->files[k]);
                free(x->files);
                if (x->fd >= 0)
                        (void)close(x->fd);
        }
        if (s->request_fd >= 0)
                (void)close(s->request_fd);
        sd_event_unref(s->event);
}

static bool has_begun(const SnapshotRun *s) {
        char name[NAME_MAX_BYTES];
        for (size_t i = 0; i < s->n_sections; i++)
                if (faccessat(s->dir_fd, file_name(name, PARTS_PREFIX, s->sections[i].collector),
                              F_OK, AT_SYMLINK_NOFOLLOW) == 0)
                        return true;
        return faccessat(s->dir_fd, document_name(s->request), F_OK, AT_SYMLINK_NOFOLLOW) == 0;
}

/* An agent may have ended right after it started a supervisor, and the next agent may salvage
 * before that supervisor has written anything. An empty directory is therefore watched for a while.
 */
static void wait_for_other(const SnapshotRun *s) {
        uint64_t until = clock_boottime_usec() + START_WAIT_USEC;
        while (!has_begun(s) && clock_boottime_usec() < until)
                (void)usleep(50 * USEC_PER_MSEC);
}

int snapshot_run(const CollectorTable *table, const ProbeRequest *request, int fd, int dir_fd) {
        _cleanup_(run_done) SnapshotRun s = { .fd = fd,
                                              .dir_fd = dir_fd,
                                              .request_fd = -1,
                                              .request = request,
                                              .begun_usec = clock_realtime_usec() };
        int r = 0;
        add_sections(&s, table);
        if (request->mode == PROBE_SALVAGE)
                wait_for_other(&s);
        _cleanup_close_ int lock_fd = lock(&s);
        if (lock_fd < 0)
                return lock_fd;
        if (request->mode == PROBE_SALVAGE) {
                if (faccessat(dir_fd, document_name(request), F_OK, AT_SYMLINK_NOFOLLOW) == 0)
                        return 0; /* the other supervisor has finished it */
                salvage(&s);
        } else {
                r = sd_event_new(&s.event);
                if (r >= 0)
                        r = s.request_fd = probe_request_to_memfd(request);
                if (r >= 0)
                        r = run_sections(&s);
        }
        return r < 0 ? r : finish(&s);
}
