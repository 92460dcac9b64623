/* A snapshot: the collectors in parallel, each in a child, what they wrote in parts, and one document of the parts. */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "collectors/neuron/difference.h"
#include "collectors/runner/supervise_private.h"
#include "lib/base/clock.h"
#include "lib/base/fs.h"

#define DIFFERENCES_FILE ".differences"
#define BEFORE_FORMAT ".before-%s"         /* the records of the first look, for the second */
#define BEGIN_WAIT_USEC (5 * USEC_PER_SEC) /* for one that was started a moment ago */
#define LOCK_WAIT_USEC (30 * USEC_PER_SEC) /* beside the time that the first one's order gave it */
#define PARTS_MAX 16
#define RAW_FILES_MAX 4096 /* of one collector */
#define NAME_MAX_BYTES 128

typedef struct Part { /* of the document: a collector's */
        Task task;
        int fd;       /* for its records; -1 = not begun, or over */
        char **files; /* raw ones, NULL-terminated */
        size_t n_files;
        uint64_t files_bytes; /* that they may still have */
} Part;

typedef struct Look {
        int fd, dir_fd, order_fd;
        const ProbeOrder *order;
        Part parts[PARTS_MAX];
        size_t n_parts;
        uint64_t begun_usec;
        bool is_public_told;
} Look;

static const char *part_name(char buf[static NAME_MAX_BYTES], const char *format,
                             const Collector *c) {
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wformat-nonliteral" /* one of the three above */
        (void)snprintf(buf, NAME_MAX_BYTES, format, c->name);
#pragma GCC diagnostic pop
        return buf;
}

static bool is_wanted(const ProbeOrder *o, const Collector *c) {
        for (char **s = o->collectors; s && *s; s++)
                if (strcmp(*s, c->name) == 0)
                        return true;
        return !o->collectors;
}

/* ---- parts ---- */

static int keep_output(Task *t, const char *data, size_t n) {
        const Part *p = t->userdata;
        return fs_write_all(p->fd, data, n);
}

/* Commands have times of their own, one after the other. */
static uint64_t timeout_of(const ProbeOrder *o, const Collector *c) {
        uint64_t usec = o->collect.timeout_usec;
        if (strcmp(c->name, "commands") != 0)
                return usec;
        for (size_t i = 0; i < o->collect.n_commands; i++)
                usec += MIN(o->collect.commands[i].timeout_usec, 10 * USEC_PER_MINUTE);
        return usec;
}

static int make_raw_directory(const Look *l, const Collector *c) {
        char name[NAME_MAX_BYTES];
        part_name(name, RAW_FORMAT, c);
        if (mkdirat(l->dir_fd, name, 0700) < 0 && errno != EEXIST)
                return -errno;
        int fd = openat(l->dir_fd, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
        return fd < 0 ? -errno : fd;
}

static void start(const Look *l, Part *p) {
        char name[NAME_MAX_BYTES];
        part_name(name, PARTS_FORMAT, p->task.collector);
        _cleanup_close_ int raw = make_raw_directory(l, p->task.collector);
        p->fd = openat(l->dir_fd, name, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW,
                       0600);
        if (raw >= 0 && p->fd >= 0)
                (void)task_start(&p->task, l->order_fd, raw); /* its state and why tell */
        else
                task_give_up(&p->task, SECTION_FAILED, "its files could not be made: %s",
                             strerror(raw < 0 ? -raw : errno));
}

static bool is_reserved(const char *name) {
        return name[0] == '.' || strncmp(name, "snapshot", 8) == 0 ||
               strcmp(name, SNAPSHOT_PUBLIC_FILE) == 0 || strcmp(name, SNAPSHOT_INCIDENT_FILE) == 0;
}

/* A raw file becomes one of the snapshot's, unless the name is taken. @return 0, 1: not taken, -errno */
static int take_raw_file(const Look *l, Part *p, int raw_fd, const char *name) {
        struct stat st;
        size_t n = p->n_files;
        if (is_reserved(name) || n >= RAW_FILES_MAX || strlen(name) > 100 ||
            fstatat(raw_fd, name, &st, AT_SYMLINK_NOFOLLOW) < 0 || !S_ISREG(st.st_mode))
                return 1;
        uint64_t n_bytes =
                MIN((uint64_t)st.st_size, (uint64_t)st.st_blocks * 512); /* holes are free */
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

static void take_raw_files(const Look *l, Part *p) {
        char name[NAME_MAX_BYTES];
        Task *t = &p->task;
        _cleanup_closedir_ DIR *d = NULL;
        (void)fs_opendir_at(l->dir_fd, part_name(name, RAW_FORMAT, t->collector), &d); /* none */
        p->files = calloc(RAW_FILES_MAX + 1, sizeof *p->files);
        if (!d || !p->files)
                return;
        const struct dirent *e;
        while ((e = readdir(d)))
                if (e->d_name[0] != '.' && take_raw_file(l, p, dirfd(d), e->d_name) != 0 &&
                    t->state == SECTION_COMPLETE) {
                        t->state = SECTION_CUT;
                        (void)snprintf(t->why, sizeof t->why,
                                       "not all of its files could be taken");
                }
        (void)fs_remove_tree(l->dir_fd, name); /* what stays is removed with the directory */
}

static void end(const Look *l, Part *p) {
        if (p->fd >= 0)
                (void)close(TAKE_FD(p->fd)); /* every write was checked */
        take_raw_files(l, p);
}

/* ---- the document ---- */

/* @param name  it points into */
static DocumentSection section_of(const Part *p, char name[static NAME_MAX_BYTES]) {
        const Task *t = &p->task;
        return (DocumentSection){ .name = t->collector->name,
                                  .detail = t->why,
                                  .state = t->state,
                                  .begun_usec = t->begun_usec,
                                  .duration_usec = t->ended_usec - t->started_usec,
                                  .part = part_name(name, PARTS_FORMAT, t->collector),
                                  .files = p->files };
}

static int write_document(const Look *l, const char *name, bool public_only) {
        DocumentSection sections[PARTS_MAX];
        char names[PARTS_MAX][NAME_MAX_BYTES], hostname[65] = "";
        size_t n = 0;
        for (size_t i = 0; i < l->n_parts; i++)
                if (!public_only || l->parts[i].task.collector->is_public) {
                        sections[n] = section_of(&l->parts[i], names[n]);
                        n++;
                }
        (void)gethostname(hostname, sizeof hostname - 1); /* then it stays empty */
        bool is_after = l->order->mode == PROBE_AFTER;
        Document d = { .name = l->order->name,
                       .trigger = public_only ? NULL : l->order->trigger,
                       .instance_id = l->order->instance_id,
                       .hostname = hostname,
                       .before = is_after ? SNAPSHOT_FILE : NULL,
                       .begun_usec = l->begun_usec,
                       .ended_usec = clock_realtime_usec(),
                       .processes = public_only ? NULL : l->order->collect.processes,
                       .n_processes = public_only ? 0 : l->order->collect.n_processes,
                       .sections = sections,
                       .n_sections = n,
                       .differences = is_after ? DIFFERENCES_FILE : NULL };
        return document_write(&d, l->dir_fd, name);
}

/* The fast sources are told of as soon as they are all there. */
static int tell_public(Look *l) {
        size_t n = 0;
        for (size_t i = 0; i < l->n_parts; i++)
                if (l->parts[i].task.collector->is_public) {
                        if (!l->parts[i].task.has_ended)
                                return 0;
                        n++;
                }
        if (l->is_public_told || n == 0 || l->order->mode != PROBE_SNAPSHOT || l->order->document)
                return 0;
        l->is_public_told = true;
        int r = write_document(l, SNAPSHOT_PUBLIC_FILE, true);
        if (r == 0)
                (void)supervise_say(l->fd, "public"); /* without the agent the document counts */
        return r;
}

static int write_differences(const Look *l) {
        char before[NAME_MAX_BYTES], after[NAME_MAX_BYTES];
        size_t i = 0; /* there is one such collector */
        while (i < l->n_parts && !l->parts[i].task.collector->twice)
                i++;
        if (i == l->n_parts)
                return 0;
        const Collector *c = l->parts[i].task.collector;
        int r = difference_write(l->dir_fd, part_name(before, BEFORE_FORMAT, c),
                                 part_name(after, PARTS_FORMAT, c), DIFFERENCES_FILE);
        return r == -EFBIG ? 0 : r;
}

/* What a second look compares with stays, as long as the directory; the rest has become the document. */
static void remove_parts(const Look *l, bool keep_for_second_look) {
        char part[NAME_MAX_BYTES], before[NAME_MAX_BYTES];
        for (size_t i = 0; i < l->n_parts; i++) {
                const Collector *c = l->parts[i].task.collector;
                part_name(part, PARTS_FORMAT, c);
                part_name(before, BEFORE_FORMAT, c);
                /* All of it goes with the directory at the latest. */
                if (keep_for_second_look && c->twice)
                        (void)renameat(l->dir_fd, part, l->dir_fd, before);
                else
                        (void)unlinkat(l->dir_fd, part, 0);
        }
        (void)unlinkat(l->dir_fd, DIFFERENCES_FILE, 0);
}

static const char *document_name(const ProbeOrder *o) {
        return o->document              ? o->document
               : o->mode == PROBE_AFTER ? SNAPSHOT_AFTER_FILE
                                        : SNAPSHOT_FILE;
}

static int conclude(Look *l) {
        ProbeMode mode = l->order->mode;
        const char *name = document_name(l->order);
        int r = mode == PROBE_AFTER ? write_differences(l) : 0;
        if (r == 0)
                r = write_document(l, name, false);
        if (r == 0)
                remove_parts(l, mode != PROBE_AFTER && !l->order->document);
        return r;
}

/* ---- the loop ---- */

static uint64_t start_some(Look *l) {
        size_t n_running = 0;
        uint64_t next = USEC_INFINITY;
        for (size_t i = 0; i < l->n_parts; i++)
                n_running += l->parts[i].task.has_started && !l->parts[i].task.has_ended;
        for (size_t i = 0; i < l->n_parts && n_running < TASKS_AT_ONCE; i++) {
                Part *p = &l->parts[i];
                if (p->task.has_started)
                        continue;
                start(l, p);
                n_running += !p->task.has_ended;
                if (p->task.has_ended)
                        end(l, p);
        }
        for (size_t i = 0; i < l->n_parts; i++)
                next = MIN(next, task_deadline(&l->parts[i].task));
        return next;
}

static bool is_over(const Look *l) {
        for (size_t i = 0; i < l->n_parts; i++)
                if (!l->parts[i].task.has_ended)
                        return false;
        return true;
}

static int wait_for_news(const Look *l, uint64_t deadline_usec) {
        struct pollfd fds[PARTS_MAX * TASK_FDS];
        size_t n = 0;
        for (size_t i = 0; i < l->n_parts; i++)
                n += task_poll(&l->parts[i].task, fds + n);
        uint64_t now = clock_boottime_usec();
        uint64_t wait = deadline_usec > now ? deadline_usec - now : 0;
        if (poll(fds, n, (int)MIN(wait / USEC_PER_MSEC + 1, UINT64_C(60000))) < 0 && errno != EINTR)
                return -errno;
        return 0;
}

static int run_tasks(Look *l) {
        for (;;) {
                uint64_t next = start_some(l);
                int r = tell_public(l);
                if (r < 0 || is_over(l))
                        return r;
                r = wait_for_news(l, next);
                if (r < 0)
                        return r;
                for (size_t i = 0; i < l->n_parts; i++) {
                        Part *p = &l->parts[i];
                        if (p->task.has_ended)
                                continue;
                        task_step(&p->task, clock_boottime_usec());
                        if (p->task.has_ended)
                                end(l, p);
                }
        }
}

static void add_part(Look *l, const Collector *c) {
        Part *p = &l->parts[l->n_parts++];
        const CollectOrder *o = &l->order->collect;
        *p = (Part){ .task = { .collector = c,
                               .pid_fd = -1,
                               .out_fd = -1,
                               .why_fd = -1,
                               .timeout_usec = timeout_of(l->order, c),
                               .max_bytes = o->max_bytes,
                               .on_output = keep_output,
                               .userdata = p },
                     .fd = -1,
                     .files_bytes = o->max_bytes };
        (void)snprintf(p->task.child_name, sizeof p->task.child_name, "collect:%s", c->name);
}

static bool is_for_second_look(const ProbeOrder *o, const Collector *c) {
        return c->twice || (c->again && o->collect.n_dumps > 0);
}

/* What the hook waits for comes first. */
static void add_parts(Look *l) {
        for (size_t pass = 0; pass < 2; pass++)
                for (size_t i = 0; i < n_collectors && l->n_parts < PARTS_MAX; i++) {
                        const Collector *c = &collectors[i];
                        if (c->is_public == (pass == 0) && is_wanted(l->order, c) &&
                            (l->order->mode != PROBE_AFTER || is_for_second_look(l->order, c)))
                                add_part(l, c);
                }
}

/* ---- what an earlier one has left ---- */

/* Two supervisors in one directory: the second waits, and finds the document of the first. */
static int lock(const Look *l) {
        uint64_t until = clock_boottime_usec() + LOCK_WAIT_USEC + l->order->collect.timeout_usec;
        int fd = openat(l->dir_fd, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
        if (fd < 0)
                return -errno;
        while (flock(fd, LOCK_EX | LOCK_NB) < 0) {
                if (errno != EWOULDBLOCK || clock_boottime_usec() > until) {
                        int r = -errno;
                        (void)close(fd);
                        return r;
                }
                (void)usleep(20 * USEC_PER_MSEC);
        }
        return fd;
}

static void salvage(Look *l) {
        char name[NAME_MAX_BYTES];
        struct stat st;
        for (size_t i = 0; i < l->n_parts; i++) {
                Part *p = &l->parts[i];
                if (fstatat(l->dir_fd, part_name(name, PARTS_FORMAT, p->task.collector), &st,
                            AT_SYMLINK_NOFOLLOW) == 0)
                        task_give_up(&p->task, SECTION_CUT,
                                     "the snapshot was interrupted; this is what had been written "
                                     "until then");
                else
                        task_give_up(&p->task, SECTION_SKIPPED,
                                     "the snapshot was interrupted before its turn");
                take_raw_files(l, p);
        }
}

static void look_done(Look *l) {
        for (size_t i = 0; i < l->n_parts; i++) {
                Part *p = &l->parts[i];
                task_kill(&p->task, SECTION_FAILED, "");
                for (size_t k = 0; k < p->n_files; k++)
                        free(p->files[k]);
                free(p->files);
                if (p->fd >= 0)
                        (void)close(p->fd);
        }
        if (l->order_fd >= 0)
                (void)close(l->order_fd);
}

static bool has_begun(const Look *l) {
        char name[NAME_MAX_BYTES];
        for (size_t i = 0; i < l->n_parts; i++)
                if (faccessat(l->dir_fd, part_name(name, PARTS_FORMAT, l->parts[i].task.collector),
                              F_OK, AT_SYMLINK_NOFOLLOW) == 0)
                        return true;
        return faccessat(l->dir_fd, document_name(l->order), F_OK, AT_SYMLINK_NOFOLLOW) == 0;
}

/* An agent may have ended as soon as it had started a supervisor, and the next one be quicker than that: nothing here is no proof that nobody comes. */
static void wait_for_a_beginning(const Look *l) {
        uint64_t until = clock_boottime_usec() + BEGIN_WAIT_USEC;
        while (!has_begun(l) && clock_boottime_usec() < until)
                (void)usleep(50 * USEC_PER_MSEC);
}

int supervise_look(int fd, const ProbeOrder *order, int dir_fd) {
        _cleanup_(look_done) Look l = { .fd = fd,
                                        .dir_fd = dir_fd,
                                        .order_fd = -1,
                                        .order = order,
                                        .begun_usec = clock_realtime_usec() };
        add_parts(&l);
        if (order->mode == PROBE_SALVAGE)
                wait_for_a_beginning(&l);
        _cleanup_close_ int held = lock(&l);
        if (held < 0)
                return held;
        if (order->mode == PROBE_SALVAGE &&
            faccessat(dir_fd, document_name(order), F_OK, AT_SYMLINK_NOFOLLOW) == 0)
                return 0;
        int r = 0;
        if (order->mode == PROBE_SALVAGE)
                salvage(&l);
        else {
                r = l.order_fd = supervise_order_fd(order);
                if (r >= 0)
                        r = run_tasks(&l);
        }
        return r < 0 ? r : conclude(&l);
}
