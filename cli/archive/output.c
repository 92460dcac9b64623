/* Owns the file that `get` writes. Bytes go to a partial file beside it, which is locked, kept when
 * the command ends early, and continued by the next run. Once the caller has verified all of it, it
 * gets its name, and replaces an existing file only with --force. In a directory that all users may
 * write to, only a partial file of this user is used. `-` is stdout. */
#include "cli/archive/output.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "cli/common/cli.h"
#include "lib/base/cleanup.h"
#include "lib/base/fs.h"
#include "lib/base/parse.h"
#include "lib/base/path.h"

#define ZEROS_BYTES 65536
/* ---- the path ---- */

static bool is_directory(const char *path) {
        struct stat st;
        size_t n = strlen(path);
        return (n > 0 && path[n - 1] == '/') || (stat(path, &st) == 0 && S_ISDIR(st.st_mode));
}

bool output_is_stdout(const Output *o) {
        return !o->path;
}

int output_init(Output *o, const char *given, const char *name) {
        if (given && strcmp(given, "-") == 0) {
                if (!isatty(STDOUT_FILENO))
                        return CLI_YES;
                cli_error("stdout is a terminal, and the content may hold anything; pipe it, or "
                          "name a file with -o");
                return CLI_USAGE;
        }
        if (!given)
                o->path = strdup(name);
        else if (is_directory(given))
                o->path = path_join(given, name);
        else
                o->path = strdup(given);
        if (!o->path || asprintf(&o->partial, "%s.partial", o->path) < 0) {
                o->partial = NULL;
                return cli_error("%s", strerror(ENOMEM));
        }
        return CLI_YES;
}

int output_open_existing(const Output *o) {
        struct stat st;
        if (!o->path)
                return -ENOENT;
        _cleanup_close_ int fd = open(o->path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
        if (fd < 0)
                return -errno;
        if (fstat(fd, &st) < 0)
                return -errno;
        return S_ISREG(st.st_mode) ? TAKE_FD(fd) : S_ISDIR(st.st_mode) ? -EISDIR : -EBADF;
}

int output_report_exists(const Output *o) {
        return cli_error(
                "'%s' exists and is something else; replace it with --force, or name another "
                "place with -o",
                o->path);
}

/* ---- the partial file ---- */

/* @return 0 and the fd, -errno; -EBUSY: another process writes it; -EBADF: not a regular file of
 * this user */
static int open_partial(const char *path, int *ret, uint64_t *ret_kept) {
        struct stat st, named;
        /* in a directory that all may write to, the name could be anybody's: no symlink is
         * followed, and no file of others used */
        _cleanup_close_ int fd =
                open(path, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY, 0666);
        if (fd < 0)
                return errno == ELOOP ? -EBADF : -errno;
        if (fstat(fd, &st) < 0)
                return -errno;
        if (!S_ISREG(st.st_mode) || st.st_uid != geteuid() || st.st_nlink > 1)
                return -EBADF;
        if (flock(fd, LOCK_EX | LOCK_NB) < 0 && errno != ENOLCK)
                return errno == EWOULDBLOCK ? -EBUSY : -errno;
        /* the process that had the lock may have renamed the file */
        if (stat(path, &named) < 0 || st.st_ino != named.st_ino || st.st_dev != named.st_dev)
                return -EBUSY;
        *ret = TAKE_FD(fd);
        *ret_kept = (uint64_t)st.st_size;
        return 0;
}

int output_open(Output *o) {
        if (output_is_stdout(o)) {
                o->fd = STDOUT_FILENO;
                return CLI_YES;
        }
        int r = open_partial(o->partial, &o->fd, &o->kept);
        if (r == 0)
                return CLI_YES;
        if (r == -EBUSY)
                cli_error("'%s' is being written by another neuron-collect", o->partial);
        else if (r == -EBADF)
                cli_error("'%s' is not a file of yours; remove it, or name another place with -o",
                          o->partial);
        else if (r == -ENOENT)
                cli_error("cannot write '%s': its directory is not there", o->path);
        else
                cli_error("cannot write '%s': %s", o->partial, strerror(-r));
        return CLI_NO;
}

void output_done(Output *o) {
        struct stat st;
        if (o->fd >= 0 && !output_is_stdout(o)) {
                if (!o->is_committed && fstat(o->fd, &st) == 0 && st.st_size == 0)
                        output_discard(o);
                (void)close(o->fd); /* durable already, or partial */
        }
        free(o->path);
        free(o->partial);
        *o = OUTPUT_INIT;
}

/* ---- writing ---- */

int output_rewind(Output *o, uint64_t bytes) {
        if (ftruncate(o->fd, (off_t)bytes) < 0 || lseek(o->fd, (off_t)bytes, SEEK_SET) < 0)
                return -errno;
        o->written = bytes;
        return 0;
}

int output_write(Output *o, const void *data, size_t n) {
        int r = fs_write_all(o->fd, data, n);
        if (r == 0)
                o->written += n;
        return r;
}

int output_zeros(Output *o, uint64_t n) {
        static const char zeros[ZEROS_BYTES];
        if (!output_is_stdout(o))
                return output_rewind(o, o->written + n); /* longer is a hole */
        int r = 0;
        while (r == 0 && n > 0 && !cli_is_interrupted()) {
                size_t now = (size_t)MIN(n, (uint64_t)sizeof zeros);
                r = output_write(o, zeros, now);
                n -= now;
        }
        return r == 0 && n > 0 ? -EINTR : r;
}

int output_report(const Output *o, int error) {
        char bytes[PARSE_FORMAT_SIZE];
        parse_format_human(bytes, o->written);
        if (output_is_stdout(o)) {
                if (error == -EINTR)
                        cli_error("interrupted after %s", bytes);
                else if (error == -EPIPE)
                        cli_error("stdout was closed; stopped after %s", bytes);
                else
                        cli_error("cannot write to stdout: %s; stopped after %s", strerror(-error),
                                  bytes);
                return CLI_NO;
        }
        const char *remedy = error == -ENOSPC || error == -EDQUOT
                                     ? "free some space, or set another path with -o"
                             : error == -EFBIG ? "a file may not be that large there"
                                               : "see to that";
        if (error == -EINTR)
                cli_error("interrupted; %s are in '%s'; the same command resumes there", bytes,
                          o->partial);
        else
                cli_error("cannot write '%s': %s; %s; the same command then resumes after %s",
                          o->partial, strerror(-error), remedy, bytes);
        return CLI_NO;
}

int output_check_space(const Output *o, uint64_t more_bytes) {
        struct statvfs fs;
        if (output_is_stdout(o) || fstatvfs(o->fd, &fs) < 0)
                return CLI_YES;
        uint64_t free_bytes = (uint64_t)fs.f_bavail * fs.f_frsize;
        if (free_bytes >= more_bytes)
                return CLI_YES;
        char need[PARSE_FORMAT_SIZE], have[PARSE_FORMAT_SIZE];
        return cli_error(
                "'%s' needs %s, but only %s are free there; free some space, or set another path "
                "with -o",
                o->path, parse_format_human(need, more_bytes),
                parse_format_human(have, free_bytes));
}

/* ---- the end ---- */

/* @return 0, -EEXIST, -errno */
static int rename_without_replacing(const char *from, const char *to) {
        if (renameat2(AT_FDCWD, from, AT_FDCWD, to, RENAME_NOREPLACE) == 0)
                return 0;
        if (errno != EINVAL && errno != ENOSYS) /* NFS and others have no such rename */
                return -errno;
        if (link(from, to) < 0)
                return -errno;
        return unlink(from) < 0 ? -errno : 0;
}

int output_open_parent(const char *path) {
        _cleanup_free_ char *parent = path_parent(path);
        int fd = parent ? open(parent, O_RDONLY | O_DIRECTORY | O_CLOEXEC) : -1;
        return fd < 0 ? (parent ? -errno : -ENOMEM) : fd;
}

static int sync_parent(const char *path) {
        _cleanup_close_ int fd = output_open_parent(path);
        return fd < 0 ? 0 : fs_sync_dir(fd); /* a directory that cannot be opened is not synced */
}

int output_commit(Output *o) {
        if (output_is_stdout(o))
                return CLI_YES;
        int r = fsync(o->fd) < 0 ? -errno : 0;
        if (r < 0)
                return output_report(o, r);
        if (o->may_replace)
                r = rename(o->partial, o->path) < 0 ? -errno : 0;
        else
                r = rename_without_replacing(o->partial, o->path);
        if (r == -EEXIST)
                return output_report_exists(o);
        o->is_committed = r == 0;
        if (r == 0)
                r = sync_parent(o->path);
        if (r == 0)
                return CLI_YES;
        return cli_error("cannot give '%s' its name '%s': %s", o->partial, o->path, strerror(-r));
}

void output_discard(Output *o) {
        if (!output_is_stdout(o) && o->fd >= 0)
                (void)unlink(o->partial); /* what is left of it is verified by the next run */
}
