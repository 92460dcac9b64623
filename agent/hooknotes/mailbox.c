#include "agent/hooknotes/mailbox.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/inotify.h>
#include <sys/stat.h>

#include "agent/hooknotes/rules.h"
#include "lib/base/cleanup.h"
#include "lib/base/clock.h"
#include "lib/base/fs.h"
#include "lib/base/log.h"
#include "lib/event/timer.h"
#include "lib/neuron/note.h"

#define MODE 01733
#define ENTRIES_AT_ONCE 32 /* then other sources of the loop: at most 2 MiB are read */
#define SCAN_INTERVAL_USEC USEC_PER_MINUTE
#define RESCAN_USEC USEC_PER_SEC /* when a file was not complete */
#define LINKED_USEC                                                                                \
        (10 * USEC_PER_SEC)     /* a hook may have named it by link(), and its dot-name is not yet \
                                   removed */
#define SLACK_BYTES (64 * 1024) /* of a file on disk: file systems have blocks of that size */
#define UNFINISHED_USEC (60 * USEC_PER_SEC) /* then a dot-name is left over from a crash */

struct Mailbox {
        sd_event *event;
        char *path;
        MailboxCallbacks callbacks;
        int dir_fd;
        DIR *pass;          /* a pass that is underway */
        bool again;         /* an event came during the pass */
        bool needs_rescan;  /* a file was not complete */
        MailboxQuota quota; /* of this pass */
        sd_event_source *watch, *step, *timer;
        char *buffer; /* of NOTE_MAX_BYTES + 2 */
};

/* ---- one entry ---- */

static void discard(Mailbox *m, const char *name, const struct statx *st, const char *why) {
        if (unlinkat(m->dir_fd, name, S_ISDIR(st->stx_mode) ? AT_REMOVEDIR : 0) < 0) {
                if (errno == ENOENT || !S_ISDIR(st->stx_mode))
                        return;
                why = "a directory in the mailbox is not empty; it is not read and its content has "
                      "no quota: remove it";
        }
        m->callbacks.on_refused(st->stx_uid, why, m->callbacks.userdata);
}

static void discard_surplus(Mailbox *m, const char *name, const struct statx *st) {
        discard(m, name, st,
                "the mailbox has too many files (at most 1000, 256 of a user); find out what "
                "writes them, or put hook.mailbox on a file system with quotas");
}

/* Its blocks: more than its size after fallocate(2), less if it has holes. */
static uint64_t disk_bytes(const struct statx *sx) {
        return sx->stx_blocks > UINT64_MAX / 512 ? UINT64_MAX : sx->stx_blocks * 512;
}

/* @param sx  of a file, complete or still being written */
static bool is_too_long(const struct statx *sx) {
        return sx->stx_size > NOTE_MAX_BYTES || disk_bytes(sx) > NOTE_MAX_BYTES + SLACK_BYTES;
}

/* @return the file's bytes, above NOTE_MAX_BYTES when it is too long; -errno */
static ssize_t read_note(Mailbox *m, const char *name, struct stat *ret_st) {
        _cleanup_close_ int fd = fs_open_regular(m->dir_fd, name, ret_st);
        if (fd < 0)
                return fd;
        size_t n = 0;
        while (n <= NOTE_MAX_BYTES) {
                ssize_t got = read(fd, m->buffer + n, NOTE_MAX_BYTES + 1 - n);
                if (got < 0 && errno != EINTR)
                        return -errno;
                if (got == 0)
                        break;
                n += got > 0 ? (size_t)got : 0;
        }
        m->buffer[n] = '\0';
        return (ssize_t)n;
}

static uint64_t usec_of(const struct timespec *t) {
        return t->tv_sec > 0 ? (uint64_t)t->tv_sec * USEC_PER_SEC + (uint64_t)t->tv_nsec / 1000 : 0;
}

static bool is_younger(const struct statx *sx, uint64_t than_usec) {
        uint64_t at = sx->stx_ctime.tv_sec > 0 ? (uint64_t)sx->stx_ctime.tv_sec * USEC_PER_SEC : 0;
        return clock_realtime_usec() < at + than_usec;
}

/* It does not have its only name yet. No event reports that a file grows: it is checked again
 * soon. */
static void wait_for_name(Mailbox *m, const char *name, const struct statx *sx) {
        m->needs_rescan = true;
        if (!mailbox_quota_consume(&m->quota, sx->stx_uid))
                discard_surplus(m, name, sx);
}

static void handle_file(Mailbox *m, const char *name, const struct statx *sx) {
        struct stat st;
        if (sx->stx_nlink == 2 && is_younger(sx, LINKED_USEC)) {
                wait_for_name(m, name, sx);
                return;
        }
        if (sx->stx_nlink !=
            1) { /* a hard link to a file of another user would count as that user's note */
                discard(m, name, sx, "a file in the mailbox had more than one name");
                return;
        }
        if (!mailbox_quota_consume(&m->quota, sx->stx_uid)) {
                discard_surplus(m, name, sx);
                return;
        }
        ssize_t n = read_note(m, name, &st);
        if (n == -ENOENT)
                return;
        if (n < 0 || (size_t)n > NOTE_MAX_BYTES || st.st_uid != sx->stx_uid || st.st_nlink != 1) {
                discard(m, name, sx, "a file in the mailbox could not be read as a note");
                return;
        }
        const Mail mail = { .name = name,
                            .data = m->buffer,
                            .n = (size_t)n,
                            .uid = st.st_uid,
                            .written_usec = usec_of(&st.st_ctim) };
        m->callbacks.on_mail(&mail, m->callbacks.userdata);
}

/* @return whether it is being written: hooks write under a name with a dot before and rename it. */
static bool is_underway(const char *name, const struct statx *sx) {
        return name[0] == '.' && is_younger(sx, UNFINISHED_USEC);
}

static void handle_entry(Mailbox *m, const char *name) {
        struct statx sx;
        /* AT_STATX_DONT_SYNC: the owner of a file may mount over it (FUSE), and the mount hang. */
        if (statx(m->dir_fd, name, AT_SYMLINK_NOFOLLOW | AT_NO_AUTOMOUNT | AT_STATX_DONT_SYNC,
                  STATX_BASIC_STATS, &sx) < 0)
                return;
        if (sx.stx_attributes & STATX_ATTR_MOUNT_ROOT)
                return;
        if (S_ISREG(sx.stx_mode) && is_too_long(&sx))
                discard(m, name, &sx, "a file in the mailbox was too long for a note");
        else if (is_underway(name, &sx))
                wait_for_name(m, name, &sx);
        else if (name[0] == '.')
                discard(m, name, &sx, "a note in the mailbox was never finished");
        else if (!S_ISREG(sx.stx_mode))
                discard(m, name, &sx, "something in the mailbox was no file");
        else
                handle_file(m, name, &sx);
}

/* ---- a pass over all entries ---- */

static int open_directory(Mailbox *m) {
        struct stat st;
        int r = fs_mkdir_p(m->path, 0711);
        if (r < 0)
                return r;
        _cleanup_close_ int fd =
                open(m->path, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK);
        if (fd < 0 || fstat(fd, &st) < 0)
                return errno == ELOOP ? -ENOTDIR : -errno;
        if (st.st_uid != geteuid() && st.st_uid != 0)
                return -EPERM; /* its owner could place files of any user there */
        if ((st.st_mode & 07777) != MODE && fchmod(fd, MODE) < 0)
                return -errno;
        if (m->dir_fd >= 0)
                (void)close(m->dir_fd); /* only ever read from */
        m->dir_fd = TAKE_FD(fd);
        return 0;
}

static void end_pass(Mailbox *m) {
        if (m->pass)
                (void)closedir(m->pass); /* only read from */
        m->pass = NULL;
        m->quota.n_users = m->quota.n = 0;
}

static int begin_pass(Mailbox *m) {
        int r = fs_opendir_at(m->dir_fd, ".", &m->pass);
        if (r == 0)
                m->again = false;
        return r;
}

/* A part of a pass. */
static int on_step(sd_event_source *source, void *userdata) {
        Mailbox *m = userdata;
        if (!m->pass && begin_pass(m) < 0) /* the timer tries again */
                return sd_event_source_set_enabled(source, SD_EVENT_OFF);
        for (unsigned i = 0; i < ENTRIES_AT_ONCE; i++) {
                const struct dirent *e = readdir(m->pass);
                if (!e) {
                        end_pass(m);
                        if (m->needs_rescan)
                                (void)timer_rearm(m->timer, RESCAN_USEC); /* else it is on, later */
                        m->needs_rescan = false;
                        return m->again ? 0 : sd_event_source_set_enabled(source, SD_EVENT_OFF);
                }
                if (strcmp(e->d_name, ".") != 0 && strcmp(e->d_name, "..") != 0)
                        handle_entry(m, e->d_name);
        }
        return 0;
}

void mailbox_rescan(Mailbox *m) {
        m->again = true;
        (void)sd_event_source_set_enabled(m->step, SD_EVENT_ON); /* cannot fail for ours */
}

static int on_event(sd_event_source *source, const struct inotify_event *event, void *userdata) {
        (void)source, (void)event;
        mailbox_rescan(userdata);
        return 0;
}

static int watch(Mailbox *m) {
        m->watch = sd_event_source_disable_unref(m->watch);
        return sd_event_add_inotify(m->event, &m->watch, m->path,
                                    IN_MOVED_TO | IN_CREATE | IN_CLOSE_WRITE | IN_ONLYDIR |
                                            IN_DELETE_SELF | IN_MOVE_SELF,
                                    on_event, m);
}

/* For what no event reports: a directory that was removed or replaced, notes that could not be
 * handled. */
static int on_timer(sd_event_source *source, uint64_t usec, void *userdata) {
        (void)usec;
        Mailbox *m = userdata;
        struct stat ours, theirs;
        if (fstat(m->dir_fd, &ours) < 0 || lstat(m->path, &theirs) < 0 ||
            ours.st_ino != theirs.st_ino || ours.st_dev != theirs.st_dev) {
                end_pass(m);
                int r = open_directory(m);
                if (r >= 0)
                        r = watch(m);
                if (r < 0)
                        log_warning(r, "cannot use the mailbox '%s', trying again in a minute",
                                    m->path);
        }
        mailbox_rescan(m);
        return timer_rearm(source, SCAN_INTERVAL_USEC);
}

int mailbox_new(Mailbox **ret, sd_event *event, const char *path,
                const MailboxCallbacks *callbacks) {
        Mailbox *m = calloc(1, sizeof *m);
        if (!m)
                return -ENOMEM;
        *m = (Mailbox){ .event = sd_event_ref(event),
                        .path = strdup(path),
                        .callbacks = *callbacks,
                        .dir_fd = -1,
                        .buffer = malloc(NOTE_MAX_BYTES + 2) };
        int r = m->path && m->buffer ? open_directory(m) : -ENOMEM;
        if (r >= 0)
                r = sd_event_add_defer(event, &m->step, on_step, m);
        if (r >= 0) /* after the peers of the socket */
                r = sd_event_source_set_priority(m->step, SD_EVENT_PRIORITY_IDLE);
        if (r >= 0)
                r = sd_event_source_set_enabled(m->step, SD_EVENT_ON);
        if (r >= 0)
                r = timer_arm(&m->timer, &(TimerOptions){ .event = event,
                                                          .usec = SCAN_INTERVAL_USEC,
                                                          .slack_usec = RESCAN_USEC / 2,
                                                          .handler = on_timer,
                                                          .userdata = m });
        if (r >= 0 && watch(m) < 0)
                log_notice("the mailbox '%s' cannot be watched; it is scanned every minute", path);
        if (r < 0) {
                mailbox_free(m);
                return r;
        }
        *ret = m;
        return 0;
}

Mailbox *mailbox_free(Mailbox *m) {
        if (!m)
                return NULL;
        end_pass(m);
        sd_event_source_disable_unref(m->watch);
        sd_event_source_disable_unref(m->step);
        sd_event_source_disable_unref(m->timer);
        if (m->dir_fd >= 0)
                (void)close(m->dir_fd); /* only read from */
        free(m->path);
        free(m->buffer);
        sd_event_unref(m->event);
        free(m);
        return NULL;
}

void mailbox_remove(Mailbox *m, const char *name) {
        if (unlinkat(m->dir_fd, name, 0) < 0 && errno != ENOENT)
                log_debug("cannot remove '%s' from the mailbox: the next scan finds a duplicate",
                          name);
}

bool mailbox_is_idle(const Mailbox *m) {
        int enabled = SD_EVENT_OFF;
        return sd_event_source_get_enabled(m->step, &enabled) >= 0 && enabled == SD_EVENT_OFF;
}
