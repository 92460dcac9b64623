/* The mailbox: a directory where hooks leave their notes while no agent answers.
 *
 * All users may create files in it (mode 1733), so that its content is untrusted. Only regular
 * files are read, never through a link or a mount; the owner of a file is the sender of the note. A
 * hook writes under a name with a dot before and renames the file. A file that is no note, that
 * exceeds what its owner may have in a pass, or that was never finished is removed. One that
 * exceeds what all may have stays for a later pass. A note stays until mailbox_remove(), so that it
 * is not lost if the agent ends before the note is durable; until then each pass finds it again.
 *
 * inotify starts a pass; a pass every minute finds what no event reports. What a note says is
 * hooknotes.c's. */
#include "agent/hooknotes/mailbox.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/inotify.h>
#include <sys/stat.h>
#include <unistd.h>

#include "lib/base/cleanup.h"
#include "lib/base/clock.h"
#include "lib/base/fs.h"
#include "lib/base/log.h"
#include "lib/event/timer.h"
#include "lib/neuron/note.h"

/* of a pass: 128 hooks that fail seven times while no agent runs */
#define FILES_MAX_OF_OWNER 1000
#define FILES_MAX (4 * FILES_MAX_OF_OWNER)
#define MODE 01733         /* all users may create files */
#define ENTRIES_AT_ONCE 32 /* then other sources of the loop: at most 2 MiB are read */
#define SCAN_INTERVAL_USEC USEC_PER_MINUTE
#define RESCAN_USEC USEC_PER_SEC /* when a file was not complete */
/* A hook may have named a file by link(), and not removed its dot-name yet. */
#define LINKED_USEC (10 * USEC_PER_SEC)
#define SLACK_BYTES (64 * 1024) /* of a file on disk: file systems have blocks of that size */
#define UNFINISHED_USEC                                                                            \
        (60 * USEC_PER_SEC) /* after this time a crash has left a dot-name behind                  \
                             */

struct Mailbox {
        MailboxOptions options;
        char *path;
        int dir_fd;
        DIR *pass;         /* the scan that is underway */
        bool again;        /* an event arrived during the pass */
        bool needs_rescan; /* a file was not complete */
        Bound files;       /* of this pass, by owner */
        sd_event_source *watch, *step, *timer;
};

/* ---- a file ---- */

void mailbox_remove(Mailbox *m, const char *name) {
        if (unlinkat(m->dir_fd, name, 0) < 0 && errno != ENOENT)
                log_debug("cannot remove '%s' from the mailbox: the next scan finds a duplicate",
                          name);
}

static void discard(Mailbox *m, const char *name, const struct statx *st, const char *why) {
        if (unlinkat(m->dir_fd, name, S_ISDIR(st->stx_mode) ? AT_REMOVEDIR : 0) < 0) {
                if (errno == ENOENT || !S_ISDIR(st->stx_mode))
                        return;
                why = "a directory in the mailbox is not empty; it is not read and its content has "
                      "no quota: remove it";
        }
        m->options.on_refused(&(Owner){ .uid = st->stx_uid }, why, m->options.userdata);
}

/* Counts a file. @return whether it may be read in this pass */
static bool count_file(Mailbox *m, const char *name, const struct statx *st) {
        const Owner o = { .uid = st->stx_uid };
        const BoundAnswer answer = bound_spend(&m->files, &o, 1);
        if (answer == BOUND_E_OWNER) { /* else a later pass finds it again */
                m->options.on_refused(&o, NULL, m->options.userdata);
                mailbox_remove(m, name);
        }
        return answer == BOUND_OK;
}

/* @return the bytes of its blocks: more than its size after fallocate(2), less if it has holes */
static uint64_t disk_bytes(const struct statx *sx) {
        return sx->stx_blocks > UINT64_MAX / 512 ? UINT64_MAX : sx->stx_blocks * 512;
}

/* @param sx  of a file, complete or still being written */
static bool is_too_long(const struct statx *sx) {
        return sx->stx_size > NOTE_MAX_BYTES || disk_bytes(sx) > NOTE_MAX_BYTES + SLACK_BYTES;
}

/* @param ret  the caller's @return how many bytes it has, more than NOTE_MAX_BYTES: too many;
 * -errno */
static ssize_t read_note(const Mailbox *m, const char *name, char **ret, struct stat *ret_st) {
        _cleanup_close_ int fd = fs_open_regular(m->dir_fd, name, ret_st);
        size_t n = 0;
        int r = fd < 0 ? fd : fs_read_head(fd, NOTE_MAX_BYTES + 1, ret, &n);
        return r < 0 ? r : (ssize_t)n;
}

static uint64_t usec_of(const struct timespec *t) {
        return t->tv_sec > 0 ? (uint64_t)t->tv_sec * USEC_PER_SEC + (uint64_t)t->tv_nsec / 1000 : 0;
}

static bool is_younger(const struct statx *sx, uint64_t than_usec) {
        uint64_t at = sx->stx_ctime.tv_sec > 0 ? (uint64_t)sx->stx_ctime.tv_sec * USEC_PER_SEC : 0;
        return clock_realtime_usec() < at + than_usec;
}

/* The hook still writes the file, or names it. No event reports that a file grows, so that it is
 * checked again soon. */
static void wait_for_name(Mailbox *m, const char *name, const struct statx *sx) {
        m->needs_rescan = true;
        (void)count_file(m, name, sx); /* a file too many is removed */
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
        if (!count_file(m, name, sx))
                return;
        _cleanup_free_ char *text = NULL;
        ssize_t n = read_note(m, name, &text, &st);
        if (n == -ENOENT || n == -ENOMEM || n == -EMFILE || n == -ENFILE || n == -EIO)
                return; /* the next scan tries again */
        if (n < 0 || (size_t)n > NOTE_MAX_BYTES || st.st_uid != sx->stx_uid || st.st_nlink != 1) {
                discard(m, name, sx, "a file in the mailbox could not be read as a note");
                return;
        }
        const Mail mail = { .name = name,
                            .data = text,
                            .n = (size_t)n,
                            .owner = { .uid = st.st_uid },
                            .written_usec = usec_of(&st.st_ctim) };
        m->options.on_mail(&mail, m->options.userdata);
}

/* @return whether a hook writes it: hooks rename a file whose name began with a dot */
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

/* ---- a pass ---- */

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

static void end_scan(Mailbox *m) {
        if (m->pass)
                (void)closedir(m->pass); /* only read from */
        m->pass = NULL;
        bound_reset(&m->files);
}

static int start_scan(Mailbox *m) {
        int r = fs_opendir_at(m->dir_fd, ".", &m->pass);
        if (r == 0)
                m->again = false;
        return r;
}

/* Handles some entries, so that other sources of the loop have their turn. */
static int on_scan(sd_event_source *source, void *userdata) {
        Mailbox *m = userdata;
        if (!m->pass && start_scan(m) < 0) /* the timer tries again */
                return sd_event_source_set_enabled(source, SD_EVENT_OFF);
        for (unsigned i = 0; i < ENTRIES_AT_ONCE; i++) {
                const struct dirent *e = readdir(m->pass);
                if (!e) {
                        end_scan(m);
                        if (m->needs_rescan)
                                (void)timer_rearm(m->timer,
                                                  RESCAN_USEC); /* else it is armed, for later */
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

/* ---- when to scan ---- */

static int on_event(sd_event_source *source, const struct inotify_event *event, void *userdata) {
        (void)source, (void)event;
        mailbox_rescan(userdata);
        return 0;
}

/* Keeps the watch that it has if there is no other one (fs.inotify.max_user_instances). */
static int watch(Mailbox *m) {
        sd_event_source *watch = NULL;
        int r = sd_event_add_inotify(m->options.event, &watch, m->path,
                                     IN_MOVED_TO | IN_CREATE | IN_CLOSE_WRITE | IN_ONLYDIR |
                                             IN_DELETE_SELF | IN_MOVE_SELF,
                                     on_event, m);
        if (r < 0)
                return r;
        sd_event_source_disable_unref(m->watch);
        m->watch = watch;
        return 0;
}

/* Finds what no event reports: a directory that was removed or replaced, notes that could not be
 * handled before. */
static int on_timer(sd_event_source *source, uint64_t usec, void *userdata) {
        (void)usec;
        Mailbox *m = userdata;
        int r = m->pass ? 0 : open_directory(m);
        if (r < 0)
                log_warning(r, "cannot use the mailbox '%s', trying again in a minute", m->path);
        else if (!m->pass)
                (void)watch(m); /* else it is scanned every minute */
        mailbox_rescan(m);
        return timer_rearm(source, SCAN_INTERVAL_USEC);
}

/* ---- life ---- */

Mailbox *mailbox_free(Mailbox *m) {
        if (!m)
                return NULL;
        end_scan(m);
        bound_done(&m->files);
        sd_event_source_disable_unref(m->watch);
        sd_event_source_disable_unref(m->step);
        sd_event_source_disable_unref(m->timer);
        if (m->dir_fd >= 0)
                (void)close(m->dir_fd); /* only read from */
        free(m->path);
        free(m);
        return NULL;
}

int mailbox_new(Mailbox **ret, const MailboxOptions *options) {
        sd_event *event = options->event;
        const char *path = options->path;
        Mailbox *m = calloc(1, sizeof *m);
        if (!m)
                return -ENOMEM;
        m->options = *options;
        m->path = strdup(path);
        m->dir_fd = -1;
        m->files = (Bound){ .what = "files in the mailbox",
                            .max = FILES_MAX,
                            .max_each = FILES_MAX_OF_OWNER,
                            .clock = clock_system() };
        int r = m->path ? open_directory(m) : -ENOMEM;
        if (r >= 0)
                r = sd_event_add_defer(event, &m->step, on_scan, m);
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

bool mailbox_is_scanning(const Mailbox *m) {
        int scan = SD_EVENT_OFF;
        (void)sd_event_source_get_enabled(m->step, &scan); /* cannot fail for ours */
        return scan != SD_EVENT_OFF;
}

const Bound *mailbox_bound(const Mailbox *m) {
        return &m->files;
}
