/* Files of a process. What is below its root directory is in procfs_root.c, the parsers in procfs_parse.c. */
#include "collectors/host/procfs.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <string.h>

#include "lib/base/cleanup.h"
#include "lib/base/fs.h"
#include "lib/base/json_out.h"
#include "lib/base/parse.h"
#include "lib/base/redact.h"

enum { STAT_BYTES_MAX = 4096, CHUNK_BYTES = 16384 };

const char *procfs_reason(int outcome) {
        switch (outcome) {
        case 0:
                return "there";
        case PROCFS_E_GONE:
                return "the process is gone";
        case PROCFS_E_REPLACED:
                return "the pid is another process's now";
        case PROCFS_E_HIDDEN:
                return "not permitted";
        case PROCFS_E_NO_FILE:
                return "not there on this kernel";
        case PROCFS_E_ENDED:
                return "the process has ended: a zombie has none";
        default:
                return strerror(outcome < 0 ? -outcome : outcome);
        }
}

/* hidepid=2 hides a process as if it were not there; a signal that is not sent still tells. */
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
        int r;

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
        r = read_stat(fd, &p.stat);
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

/* A file that is not there: of this kernel, of a zombie, or because the process has gone. */
static int missing(const Proc *p, int r) {
        if (r == PROCFS_E_NO_FILE)
                return procfs_check(p) == PROCFS_E_GONE ? PROCFS_E_GONE : r;
        if (r == PROCFS_E_GONE)
                return procfs_check(p) == 0 ? PROCFS_E_ENDED : r;
        return r;
}

int procfs_read(const Proc *p, ProcFile file, StrBuf *b, bool *ret_cut) {
        return missing(p, read_file(p->dir_fd, file, b, ret_cut));
}

int procfs_link(const Proc *p, const char *name, char buf[static PROCFS_LINK_SIZE]) {
        ssize_t n = readlinkat(p->dir_fd, name, buf, PROCFS_LINK_SIZE - 1);

        if (n < 0)
                return missing(p, outcome_of(errno));
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

static int add_number(ProcNumbers *list, size_t *n_allocated, int value) {
        if (list->n == *n_allocated) {
                size_t more = *n_allocated > 0 ? 2 * *n_allocated : 64;
                int *grown = reallocarray(list->items, more, sizeof *list->items);
                if (!grown)
                        return -ENOMEM;
                list->items = grown;
                *n_allocated = more;
        }
        list->items[list->n++] = value;
        return 0;
}

void procfs_numbers_done(ProcNumbers *numbers) {
        free(numbers->items);
        *numbers = (ProcNumbers){ 0 };
}

int procfs_list(int dir_fd, const char *path, size_t max, ProcNumbers *ret) {
        int fd = openat(dir_fd, path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
        _cleanup_closedir_ DIR *dir = NULL;
        _cleanup_(procfs_numbers_done) ProcNumbers list = { 0 };
        size_t n_allocated = 0;
        struct dirent *entry;

        int r = fs_opendir_fd(fd < 0 ? -errno : fd, &dir);
        if (r < 0)
                return r;
        for (errno = 0; !list.is_cut && (entry = readdir(dir)); errno = 0) {
                uint64_t value;
                if (parse_u64_range(entry->d_name, 0, INT32_MAX, &value) < 0)
                        continue;
                list.is_cut = list.n == max;
                if (!list.is_cut && add_number(&list, &n_allocated, (int)value) < 0)
                        return -ENOMEM;
        }
        if (!list.is_cut && errno != 0)
                return -errno;
        if (list.n > 0)
                qsort(list.items, list.n, sizeof *list.items, compare_ints);
        *ret = list;
        list.items = NULL; /* the caller's now */
        return 0;
}
