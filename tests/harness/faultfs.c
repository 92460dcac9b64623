/* A pass-through FUSE file system whose operations fail, wait, fall short or lie as told: a shared
 * volume that went bad.
 *
 *   faultfs -f -o allow_other,modules=subdir,subdir=REAL MOUNT
 *   echo "write ENOSPC 4096" > MOUNT/.faultfs
 *   echo clear > MOUNT/.faultfs
 *
 * One rule a line, in force when the write returns. A rule is `OP FAULT [AFTER] [PART]`. OP:
 * getattr readdir open create read write fsync fsyncdir link rename rename-flags unlink mkdir
 * statfs truncate, or * for all. FAULT: an errno's name, `delayMSEC`, `hold` (until `clear`;
 * reading .faultfs gives the ids of the threads that are held), `short` (half of a write is done)
 * or `flip` (one bit of what is read is wrong). AFTER: so many calls, or bytes for read and write,
 * go well first. PART: only paths with this in them. The same lines are read from the FIFO
 * $FAULTFS_CTL, which is made when set; they come into force some time later. With $FAULTFS_DIRECT
 * nothing is cached by the kernel. Only for tests: it serves root's requests as root and checks no
 * permission. */
#define FUSE_USE_VERSION 31
#ifndef _GNU_SOURCE
#define _GNU_SOURCE /* it is compiled by the tests that need it, without configure's help */
#endif

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <fuse.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#define CONTROL_NAME "/.faultfs"
#define CONTROL_HANDLE UINT64_MAX
#define MAX_RULES 32
#define MAX_HELD 32

typedef enum FaultKind { FAULT_ERROR, FAULT_DELAY, FAULT_HOLD, FAULT_SHORT, FAULT_FLIP } FaultKind;

typedef struct Rule {
        char operation[16], part[128];
        FaultKind kind;
        int error;
        unsigned delay_msec;
        uint64_t after, seen;
} Rule;

static Rule rules[MAX_RULES];
static size_t n_rules;
static unsigned n_clears;
static pid_t held[MAX_HELD]; /* the callers, 0: free */
static pthread_mutex_t rules_lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t rules_cleared = PTHREAD_COND_INITIALIZER;

/* Rules */

static int error_by_name(const char *name) {
        /* strerrorname_np is what it should be, but the names wanted here are few and it is new. */
        static const struct {
                const char *name;
                int error;
        } errors[] = {
                { "EACCES", EACCES },       { "EAGAIN", EAGAIN },     { "EDQUOT", EDQUOT },
                { "EINTR", EINTR },         { "EINVAL", EINVAL },     { "EIO", EIO },
                { "EMLINK", EMLINK },       { "ENOENT", ENOENT },     { "ENOSPC", ENOSPC },
                { "ENOSYS", ENOSYS },       { "ENOTCONN", ENOTCONN }, { "EOPNOTSUPP", EOPNOTSUPP },
                { "EPERM", EPERM },         { "EROFS", EROFS },       { "ESTALE", ESTALE },
                { "ETIMEDOUT", ETIMEDOUT },
        };

        for (size_t i = 0; i < sizeof errors / sizeof errors[0]; i++)
                if (strcmp(errors[i].name, name) == 0)
                        return errors[i].error;
        return 0;
}

static bool parse_rule(const char *line, Rule *ret) {
        char fault[32];
        unsigned long long after = 0;

        *ret = (Rule){ .kind = FAULT_ERROR };
        if (sscanf(line, "%15s %31s %llu %127s", ret->operation, fault, &after, ret->part) < 2)
                return false;
        ret->after = after;
        if (strcmp(fault, "hold") == 0)
                ret->kind = FAULT_HOLD;
        else if (strcmp(fault, "short") == 0)
                ret->kind = FAULT_SHORT;
        else if (strcmp(fault, "flip") == 0)
                ret->kind = FAULT_FLIP;
        else if (sscanf(fault, "delay%u", &ret->delay_msec) == 1)
                ret->kind = FAULT_DELAY;
        else
                ret->error = error_by_name(fault);
        return ret->kind != FAULT_ERROR || ret->error > 0;
}

static bool obey(const char *line) {
        Rule rule;
        bool known = true;

        (void)pthread_mutex_lock(&rules_lock);
        if (strncmp(line, "clear", 5) == 0) {
                n_rules = 0;
                n_clears++;
                (void)pthread_cond_broadcast(&rules_cleared);
        } else if (n_rules < MAX_RULES && parse_rule(line, &rule))
                rules[n_rules++] = rule;
        else
                known = false;
        (void)pthread_mutex_unlock(&rules_lock);
        return known;
}

static void *read_fifo(void *path) {
        char line[256];

        for (;;) {
                FILE *f = fopen(path, "r"); /* until somebody opens it to write */
                if (!f)
                        return NULL;
                while (fgets(line, sizeof line, f))
                        if (!obey(line))
                                (void)fprintf(stderr, "faultfs: not a rule: %s", line);
                (void)fclose(f);
        }
}

static bool matches(Rule *rule, const char *operation, const char *path, size_t n) {
        if (strcmp(rule->operation, "*") != 0 && strcmp(rule->operation, operation) != 0)
                return false;
        if (rule->part[0] != '\0' && !strstr(path, rule->part))
                return false;
        rule->seen += n;
        return rule->seen > rule->after;
}

/* With rules_lock. */
static void hold(void) {
        size_t i = 0;
        unsigned before = n_clears;
        while (i < MAX_HELD && held[i] != 0)
                i++;
        if (i < MAX_HELD)
                held[i] = fuse_get_context()->pid;
        while (n_clears == before)
                (void)pthread_cond_wait(&rules_cleared, &rules_lock);
        if (i < MAX_HELD)
                held[i] = 0;
}

static int tell_held(char *data, size_t n, off_t offset) {
        char text[MAX_HELD * 12] = "";
        size_t at = 0;
        (void)pthread_mutex_lock(&rules_lock);
        for (size_t i = 0; i < MAX_HELD; i++)
                if (held[i] != 0)
                        at += (size_t)snprintf(text + at, sizeof text - at, "%d\n", (int)held[i]);
        (void)pthread_mutex_unlock(&rules_lock);
        if ((size_t)offset >= at)
                return 0;
        if (n > at - (size_t)offset)
                n = at - (size_t)offset;
        memcpy(data, text + offset, n);
        return (int)n;
}

/* What is to go wrong with this operation of `n` calls or bytes. @param ret_kind  NULL where
 * neither short nor flip make sense
 * @return 0 or -errno */
static int fault(const char *operation, const char *path, size_t n, FaultKind *ret_kind) {
        unsigned delay_msec = 0;
        bool is_held = false;
        int r = 0;

        (void)pthread_mutex_lock(&rules_lock);
        for (size_t i = 0; i < n_rules; i++) {
                if (!matches(&rules[i], operation, path, n))
                        continue;
                if (rules[i].kind == FAULT_ERROR)
                        r = -rules[i].error;
                else if (rules[i].kind == FAULT_DELAY)
                        delay_msec = rules[i].delay_msec;
                else if (rules[i].kind == FAULT_HOLD)
                        is_held = true;
                else if (ret_kind)
                        *ret_kind = rules[i].kind;
        }
        if (is_held)
                hold();
        (void)pthread_mutex_unlock(&rules_lock);
        if (delay_msec > 0)
                (void)usleep(delay_msec * 1000);
        return r;
}

static int result(int r) {
        return r < 0 ? -errno : 0;
}

static bool is_control(const char *path) {
        size_t n = strlen(path), m = strlen(CONTROL_NAME);
        return n >= m && strcmp(path + n - m, CONTROL_NAME) == 0;
}

/* Operations: what each does is what the call of its name does */

static int on_getattr(const char *path, struct stat *st, struct fuse_file_info *info) {
        if (is_control(path)) {
                *st = (struct stat){ .st_mode = S_IFREG | 0600, .st_nlink = 1 };
                return 0;
        }
        int r = fault("getattr", path, 1, NULL);
        return r < 0 ? r : result(info ? fstat((int)info->fh, st) : lstat(path, st));
}

static int on_readlink(const char *path, char *target, size_t size) {
        ssize_t n = readlink(path, target, size - 1);
        if (n < 0)
                return -errno;
        target[n] = '\0';
        return 0;
}

static int on_mkdir(const char *path, mode_t mode) {
        int r = fault("mkdir", path, 1, NULL);
        return r < 0 ? r : result(mkdir(path, mode));
}

static int on_unlink(const char *path) {
        int r = fault("unlink", path, 1, NULL);
        return r < 0 ? r : result(unlink(path));
}

static int on_rmdir(const char *path) {
        int r = fault("unlink", path, 1, NULL);
        return r < 0 ? r : result(rmdir(path));
}

static int on_symlink(const char *target, const char *path) {
        int r = fault("create", path, 1, NULL);
        return r < 0 ? r : result(symlink(target, path));
}

static int on_link(const char *from, const char *to) {
        int r = fault("link", to, 1, NULL);
        return r < 0 ? r : result(link(from, to));
}

static int on_rename(const char *from, const char *to, unsigned flags) {
        int r = flags ? fault("rename-flags", to, 1, NULL) : 0;
        if (r == 0)
                r = fault("rename", to, 1, NULL);
        return r < 0 ? r : result(renameat2(AT_FDCWD, from, AT_FDCWD, to, flags));
}

static int on_chmod(const char *path, mode_t mode, struct fuse_file_info *info) {
        return result(info ? fchmod((int)info->fh, mode) : chmod(path, mode));
}

static int on_chown(const char *path, uid_t uid, gid_t gid, struct fuse_file_info *info) {
        return result(info ? fchown((int)info->fh, uid, gid) : lchown(path, uid, gid));
}

static int on_utimens(const char *path, const struct timespec times[2],
                      struct fuse_file_info *info) {
        return result(info ? futimens((int)info->fh, times)
                           : utimensat(AT_FDCWD, path, times, AT_SYMLINK_NOFOLLOW));
}

static int on_truncate(const char *path, off_t bytes, struct fuse_file_info *info) {
        if (is_control(path))
                return 0;
        int r = fault("truncate", path, 1, NULL);
        return r < 0 ? r : result(info ? ftruncate((int)info->fh, bytes) : truncate(path, bytes));
}

static int open_file(const char *operation, const char *path, mode_t mode,
                     struct fuse_file_info *info) {
        if (is_control(path)) {
                info->fh = CONTROL_HANDLE;
                info->direct_io = 1;
                return 0;
        }
        int r = fault(operation, path, 1, NULL);
        if (r < 0)
                return r;
        int fd = open(path, info->flags & ~O_DIRECT,
                      mode); /* the kernel's side of it is done: our buffers are not aligned */
        if (fd < 0)
                return -errno;
        info->fh = (uint64_t)fd;
        return 0;
}

static int on_open(const char *path, struct fuse_file_info *info) {
        return open_file("open", path, 0, info);
}

static int on_create(const char *path, mode_t mode, struct fuse_file_info *info) {
        return open_file("create", path, mode, info);
}

static int on_read(const char *path, char *data, size_t n, off_t offset,
                   struct fuse_file_info *info) {
        FaultKind kind = FAULT_ERROR;
        if (info->fh == CONTROL_HANDLE)
                return tell_held(data, n, offset);
        int r = fault("read", path, n, &kind);
        if (r < 0)
                return r;
        ssize_t got = pread((int)info->fh, data, kind == FAULT_SHORT && n > 1 ? n / 2 : n, offset);
        if (got < 0)
                return -errno;
        if (got > 0 && kind == FAULT_FLIP)
                data[got / 2] = (char)(data[got / 2] ^ 1);
        return (int)got;
}

static int on_write(const char *path, const char *data, size_t n, off_t offset,
                    struct fuse_file_info *info) {
        FaultKind kind = FAULT_ERROR;
        if (info->fh == CONTROL_HANDLE) {
                char line[256];
                (void)snprintf(line, sizeof line, "%.*s", (int)n, data);
                return obey(line) ? (int)n : -EINVAL;
        }
        int r = fault("write", path, n, &kind);
        if (r < 0)
                return r;
        ssize_t put = pwrite((int)info->fh, data, kind == FAULT_SHORT && n > 1 ? n / 2 : n, offset);
        return put < 0 ? -errno : (int)put;
}

static int on_flush(const char *path, struct fuse_file_info *info) {
        (void)path;
        return info->fh == CONTROL_HANDLE ? 0 : result(close(dup((int)info->fh)));
}

static int on_release(const char *path, struct fuse_file_info *info) {
        (void)path;
        return info->fh == CONTROL_HANDLE ? 0 : result(close((int)info->fh));
}

static int on_fsync(const char *path, int data_only, struct fuse_file_info *info) {
        int r = fault("fsync", path, 1, NULL);
        return r < 0 ? r : result(data_only ? fdatasync((int)info->fh) : fsync((int)info->fh));
}

static int on_fsyncdir(const char *path, int data_only, struct fuse_file_info *info) {
        (void)data_only;
        (void)info;
        int r = fault("fsyncdir", path, 1, NULL);
        if (r == 0)
                r = fault("fsync", path, 1, NULL);
        if (r < 0)
                return r;
        int fd = open(path, O_RDONLY | O_DIRECTORY);
        if (fd < 0)
                return -errno;
        r = result(fsync(fd));
        (void)close(fd);
        return r;
}

static int on_statfs(const char *path, struct statvfs *fs) {
        int r = fault("statfs", path, 1, NULL);
        return r < 0 ? r : result(statvfs(path, fs));
}

static int on_readdir(const char *path, void *buffer, fuse_fill_dir_t fill, off_t offset,
                      struct fuse_file_info *info, enum fuse_readdir_flags flags) {
        (void)offset;
        (void)info;
        (void)flags;
        int r = fault("readdir", path, 1, NULL);
        if (r < 0)
                return r;
        DIR *dir = opendir(path);
        if (!dir)
                return -errno;
        for (struct dirent *entry = readdir(dir); entry; entry = readdir(dir))
                if (fill(buffer, entry->d_name, NULL, 0, 0) != 0)
                        break;
        (void)closedir(dir);
        return 0;
}

static void *on_init(struct fuse_conn_info *connection, struct fuse_config *config) {
        char *fifo = getenv("FAULTFS_CTL");
        pthread_t thread;

        (void)connection;
        config->use_ino = 1;
        config->entry_timeout = config->attr_timeout = config->negative_timeout = 0;
        config->direct_io = getenv("FAULTFS_DIRECT") != NULL;
        if (fifo) {
                (void)unlink(fifo); /* of an earlier run */
                if (mkfifo(fifo, 0600) < 0 || pthread_create(&thread, NULL, read_fifo, fifo) != 0)
                        (void)fprintf(stderr, "faultfs: no control by '%s'\n", fifo);
        }
        return NULL;
}

static const struct fuse_operations operations = {
        .init = on_init,
        .getattr = on_getattr,
        .readlink = on_readlink,
        .mkdir = on_mkdir,
        .unlink = on_unlink,
        .rmdir = on_rmdir,
        .symlink = on_symlink,
        .link = on_link,
        .rename = on_rename,
        .chmod = on_chmod,
        .chown = on_chown,
        .utimens = on_utimens,
        .truncate = on_truncate,
        .open = on_open,
        .create = on_create,
        .read = on_read,
        .write = on_write,
        .flush = on_flush,
        .release = on_release,
        .fsync = on_fsync,
        .fsyncdir = on_fsyncdir,
        .statfs = on_statfs,
        .readdir = on_readdir,
};

int main(int argc, char **argv) {
        (void)umask(0);
        return fuse_main(argc, argv, &operations, NULL);
}
