/* The files of one process in /proc.
 *
 * A process is opened once, by its directory, and all its files are read through that descriptor.
 * The descriptor stays that process's even when its pid is used again, but only for as long as the
 * process exists, so that procfs_check() is needed after reading. A file that cannot be read has a
 * reason (procfs_reason()): the process is gone, hidden, a zombie, or the kernel lacks the file.
 *
 * The root directory of a process is in its mount namespace and under its user's control: files
 * below it are opened without leaving it. cgroup.c parses what a cgroup's path tells.
 * @see proc(5), openat2(2) */
#include "collectors/host/procfs.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "lib/base/array.h"
#include "lib/base/cleanup.h"
#include "lib/base/fs.h"
#include "lib/base/json_out.h"
#include "lib/base/parse.h"
#include "lib/base/redact.h"
#include "lib/neuron/tree.h"

/* ---- parsers ---- */

static bool parse_char(const char **at, const char *end, char c) {
        if (*at >= end || **at != c)
                return false;
        (*at)++;
        return true;
}

/* Parses the fields behind the command's name, by their numbers in proc(5). */
static bool parse_stat_fields(const char *at, const char *end, ProcStat *s) {
        uint64_t ppid = 0, flags = 0;

        if (!parse_char(&at, end, ' ') || at >= end)
                return false;
        s->state = *at++;
        for (unsigned field = 4; field <= 22; field++) {
                uint64_t value;
                bool negative;
                if (!parse_char(&at, end, ' '))
                        return false;
                negative = parse_char(&at, end, '-');
                if (!parse_u64_prefix(&at, end, &value))
                        return false;
                if (field == 4)
                        ppid = negative ? 0 : value;
                else if (field == 9)
                        flags = value;
                else if (field == 22)
                        s->start_ticks = value;
        }
        if (ppid > INT32_MAX)
                return false;
        s->ppid = (pid_t)ppid;
        s->flags = (uint32_t)flags;
        return true;
}

bool procfs_parse_stat(const char *text, size_t n, ProcStat *ret) {
        const char *at = text, *end = text + n, *open, *close;
        ProcStat s = { 0 };
        uint64_t pid;

        if (!parse_u64_prefix(&at, end, &pid) || pid > INT32_MAX || !parse_char(&at, end, ' ') ||
            !parse_char(&at, end, '('))
                return false;
        open = at;
        close = memrchr(
                at, ')',
                (size_t)(end - at)); /* the name may contain any byte; only numbers follow it */
        if (!close)
                return false;
        size_t n_comm = MIN((size_t)(close - open), sizeof s.comm - 1);
        memcpy(s.comm, open, n_comm);
        s.pid = (pid_t)pid;
        if (!parse_stat_fields(close + 1, end, &s))
                return false;
        *ret = s;
        return true;
}

static void parse_map_path(const char *at, const char *end, ProcMap *m) {
        static const char deleted[] = " (deleted)";
        const size_t n_deleted = sizeof deleted - 1;

        while (at < end && *at == ' ')
                at++;
        m->path = at;
        m->n_path = (size_t)(end - at);
        if (m->n_path > n_deleted && memcmp(end - n_deleted, deleted, n_deleted) == 0) {
                m->n_path -= n_deleted;
                m->is_deleted = true;
        }
}

/* A line starts with range, access, offset and device. */
bool procfs_parse_map(const char *line, size_t n, ProcMap *ret) {
        const char *at = line, *end = line + n;
        ProcMap m = { 0 };

        for (unsigned i = 0; i < 4; i++) {
                at = memchr(at, ' ', (size_t)(end - at));
                if (!at)
                        return false;
                at++;
        }
        if (!parse_u64_prefix(&at, end, &m.inode))
                return false;
        parse_map_path(at, end, &m);
        *ret = m;
        return true;
}

const char *procfs_field(const char *text, const char *name, size_t *ret_n) {
        size_t n_name = strlen(name);

        for (const char *line = text; line && *line != '\0';) {
                size_t n = strcspn(line, "\n");
                if (n > n_name && memcmp(line, name, n_name) == 0 && line[n_name] == ':') {
                        const char *at = line + n_name + 1, *end = line + n;
                        while (at < end && (*at == ' ' || *at == '\t'))
                                at++;
                        while (end > at && (end[-1] == ' ' || end[-1] == '\t'))
                                end--;
                        *ret_n = (size_t)(end - at);
                        return at;
                }
                line = line[n] == '\n' ? line + n + 1 : NULL;
        }
        return NULL;
}

char **procfs_split(char *data, size_t n, size_t max) {
        size_t count = 0;
        char **list;

        for (size_t i = 0; i < n; i += strlen(data + i) + 1)
                count++;
        count = MIN(count, max);
        list = calloc(count + 1, sizeof *list);
        if (!list)
                return NULL;
        for (size_t i = 0, k = 0; k < count; i += strlen(data + i) + 1)
                list[k++] = data + i;
        return list;
}

/* ---- below the root directory of a process ---- */

int procfs_root(const Proc *p) {
        int fd = openat(p->dir_fd, "root", O_PATH | O_DIRECTORY | O_CLOEXEC);
        return fd < 0 ? -errno : fd;
}

int procfs_root_open(int root_fd, const char *path, int flags, struct stat *ret_st) {
        _cleanup_close_ int path_fd = tree_resolve(root_fd, path, NULL);
        char link[sizeof "/proc/self/fd/" + 10];
        struct stat st;

        if (path_fd < 0)
                return path_fd;
        if (fstat(path_fd, &st) < 0)
                return -errno;
        if (flags & O_DIRECTORY ? !S_ISDIR(st.st_mode) : !S_ISREG(st.st_mode))
                return -EBADF;
        if (ret_st)
                *ret_st = st;
        if (flags & O_PATH)
                return TAKE_FD(path_fd);
        (void)snprintf(link, sizeof link, "/proc/self/fd/%d", path_fd);
        int fd = open(link, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
        return fd < 0 ? -errno : fd;
}

/* ---- files of a process ---- */

enum { STAT_BYTES_MAX = 4096, CHUNK_BYTES = 16384 };

const char *procfs_reason(int outcome) {
        switch (outcome) {
        case 0:
                return "there";
        case PROCFS_E_GONE:
                return "the process is gone";
        case PROCFS_E_REPLACED:
                return "another process has this pid now";
        case PROCFS_E_HIDDEN:
                return "not permitted";
        case PROCFS_E_NO_FILE:
                return "not there on this kernel";
        case PROCFS_E_ENDED:
                return "the process has ended, and a zombie has no memory";
        default:
                return strerror(outcome < 0 ? -outcome : outcome);
        }
}

/* With hidepid=2 a process looks as if it did not exist, but signal 0 still shows it. */
static int outcome_of_missing(const char *proc_root, pid_t pid) {
        if (strcmp(proc_root, "/proc") == 0 && kill(pid, 0) < 0 && errno == EPERM)
                return PROCFS_E_HIDDEN;
        return PROCFS_E_GONE;
}

static int outcome_of(int error) {
        switch (error) {
        case ESRCH:
                return PROCFS_E_GONE;
        case EACCES:
        case EPERM:
                return PROCFS_E_HIDDEN;
        case ENOENT:
                return PROCFS_E_NO_FILE;
        default:
                return -error;
        }
}

static int read_file(int dir_fd, ProcFile file, StrBuf *b, bool *ret_cut) {
        _cleanup_close_ int fd =
                openat(dir_fd, file.name, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
        _cleanup_free_ char *chunk = NULL;

        if (ret_cut)
                *ret_cut = false;
        if (fd < 0)
                return outcome_of(errno);
        chunk = malloc(CHUNK_BYTES);
        if (!chunk)
                return -ENOMEM;
        for (size_t left = file.max_bytes;;) {
                ssize_t n = read(fd, chunk, MIN(left + 1, (size_t)CHUNK_BYTES));
                if (n < 0 && errno == EINTR)
                        continue;
                if (n < 0)
                        return outcome_of(errno);
                strbuf_add_n(b, chunk, MIN((size_t)n, left));
                if ((size_t)n > left) {
                        if (ret_cut)
                                *ret_cut = true;
                        return strbuf_error(b);
                }
                if (n == 0)
                        return strbuf_error(b);
                left -= (size_t)n;
        }
}

static int read_stat(int dir_fd, ProcStat *ret) {
        _cleanup_(strbuf_done) StrBuf b = STRBUF_INIT;
        int r = read_file(dir_fd, (ProcFile){ "stat", STAT_BYTES_MAX }, &b, NULL);

        if (r != 0)
                return r == PROCFS_E_NO_FILE ? PROCFS_E_GONE : r;
        return b.text && procfs_parse_stat(b.text, b.n, ret) ? 0 : -EBADMSG;
}

int procfs_open(Proc *ret, const char *proc_root, pid_t pid, uint64_t start_ticks) {
        Proc p = { .dir_fd = -1 };
        _cleanup_close_ int fd = -1;
        char path[PROCFS_LINK_SIZE];
        struct stat st;

        ret->dir_fd = -1;
        if (pid <= 0)
                return PROCFS_E_GONE;
        if (snprintf(path, sizeof path, "%s/%d", proc_root, pid) >= (int)sizeof path)
                return -ENAMETOOLONG;
        fd = open(path, O_PATH | O_DIRECTORY | O_CLOEXEC | O_NOFOLLOW);
        if (fd < 0)
                return errno == ENOENT ? outcome_of_missing(proc_root, pid) : outcome_of(errno);
        if (fstat(fd, &st) < 0)
                return outcome_of(errno);
        int r = read_stat(fd, &p.stat);
        if (r != 0)
                return r;
        if (p.stat.pid != pid || (start_ticks != 0 && p.stat.start_ticks != start_ticks))
                return PROCFS_E_REPLACED;
        p.uid = st.st_uid;
        p.dir_fd = TAKE_FD(fd);
        *ret = p;
        return 0;
}

void procfs_close(Proc *p) {
        if (p->dir_fd >= 0)
                (void)close(p->dir_fd); /* a path only */
        p->dir_fd = -1;
}

int procfs_check(const Proc *p) {
        ProcStat now;
        int r = read_stat(p->dir_fd, &now);

        if (r != 0)
                return r;
        return now.pid == p->stat.pid && now.start_ticks == p->stat.start_ticks ? 0
                                                                                : PROCFS_E_REPLACED;
}

bool procfs_is_zombie(const Proc *p) {
        return p->stat.state == 'Z' || p->stat.state == 'X';
}

/* Tells why a file is missing: this kernel lacks it, the process is a zombie, or it is gone. */
static int classify_missing(const Proc *p, int r) {
        if (r == PROCFS_E_NO_FILE)
                return procfs_check(p) == PROCFS_E_GONE ? PROCFS_E_GONE : r;
        if (r == PROCFS_E_GONE)
                return procfs_check(p) == 0 ? PROCFS_E_ENDED : r;
        return r;
}

int procfs_read(const Proc *p, ProcFile file, StrBuf *b, bool *ret_cut) {
        return classify_missing(p, read_file(p->dir_fd, file, b, ret_cut));
}

int procfs_link(const Proc *p, const char *name, char buf[static PROCFS_LINK_SIZE]) {
        ssize_t n = readlinkat(p->dir_fd, name, buf, PROCFS_LINK_SIZE - 1);

        if (n < 0)
                return classify_missing(p, outcome_of(errno));
        buf[n] = '\0';
        return 0;
}

void procfs_add_path(StrBuf *b, const char *key, const char *path) {
        _cleanup_(strbuf_done) StrBuf clean = STRBUF_INIT;

        redact_text(&clean, path, strlen(path));
        if (strbuf_error(&clean) < 0)
                b->failed = true;
        else
                json_out_path(b, key, clean.text ? clean.text : "");
}

static int compare_ints(const void *a, const void *b) {
        int x = *(const int *)a, y = *(const int *)b;
        return (x > y) - (x < y);
}

void procfs_numbers_done(ProcNumbers *numbers) {
        free(numbers->items);
        *numbers = (ProcNumbers){ 0 };
}

int procfs_list(int dir_fd, const char *path, size_t max, ProcNumbers *ret) {
        int fd = openat(dir_fd, path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
        _cleanup_closedir_ DIR *dir = NULL;
        _cleanup_(procfs_numbers_done) ProcNumbers list = { 0 };
        struct dirent *entry;

        int r = fs_opendir_fd(fd < 0 ? -errno : fd, &dir);
        if (r < 0)
                return r;
        for (errno = 0; (entry = readdir(dir)); errno = 0) {
                uint64_t value;
                if (parse_u64_range(entry->d_name, 0, INT32_MAX, &value) < 0)
                        continue;
                list.is_cut = list.n == max;
                if (list.is_cut)
                        break;
                if (array_grow(&list.items, list.n, sizeof *list.items) < 0)
                        return -ENOMEM;
                list.items[list.n++] = (int)value;
        }
        if (!list.is_cut && errno != 0)
                return -errno;
        if (list.n > 0)
                qsort(list.items, list.n, sizeof *list.items, compare_ints);
        *ret = list;
        list.items = NULL; /* the caller's now */
        return 0;
}
