#include "cli/hook/hook_install.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>

#include "cli/common/cli.h"
#include "cli/hook/hook_status.h"
#include "lib/base/fs.h"

#define NEW_NAME ".neuron-dump.new"   /* ours until it is complete; also the lock */
#define LINK_NAME ".neuron-dump.link" /* the chain's symlink until it has its name */

/* What versions up to 0.1 left: a stamp, and units that put the hook back after an upgrade. */
#define OLD_STAMP "neuron-dump.keep"
#define OLD_UNIT_LINKS "/etc/systemd/system/multi-user.target.wants/neuron-collectd-hook-keep."

static int report(const HookRequest *q, const char *name, const char *what, int error) {
        const char *remedy = "";
        switch (error) {
        case EACCES:
        case EPERM:
                remedy = geteuid() == 0 ? "; check whether it is immutable (lsattr) or on a share "
                                          "that root may not write to"
                                        : "; run it as root";
                break;
        case EROFS:
                remedy = "; mount it read-write, or build the hook into the image with --to";
                break;
        case ENOSPC:
        case EDQUOT:
                remedy = "; free some space";
                break;
        }
        cli_error("'%s/%s' cannot be %s: %s%s", q->directory, name, what, strerror(error), remedy);
        return CLI_NO;
}

static int open_directory(const char *directory) {
        int fd = open(directory, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
        if (fd >= 0)
                return fd;
        if (errno == ENOENT)
                cli_error("'%s' does not exist; install aws-neuronx-tools first, create the "
                          "directory (mkdir -p), or give another one with --to",
                          directory);
        else
                cli_error("'%s' cannot be opened: %s%s", directory, strerror(errno),
                          errno == EACCES && geteuid() != 0 ? "; run it as root" : "");
        return -1;
}

/* @return CLI_YES: the name is free, or has a file that can be replaced */
static int check_place(const HookRequest *q, const HookFile *f) {
        if (f->kind == HOOK_UNREADABLE)
                return report(q, HOOK_NAME, "read", f->error);
        if (f->kind == HOOK_NO_FILE)
                cli_error("'%s/" HOOK_NAME "' is not a file; move it away, then try again",
                          q->directory);
        else if (f->kind == HOOK_DANGLING)
                cli_error("'%s/" HOOK_NAME "' is a symlink to nothing; remove it, then try again",
                          q->directory);
        else
                return CLI_YES;
        return CLI_NO;
}

static bool is_under_name(int dir_fd, int fd, const char *name) {
        struct stat a, b;
        return fstat(fd, &a) == 0 && fstatat(dir_fd, name, &b, AT_SYMLINK_NOFOLLOW) == 0 &&
               a.st_dev == b.st_dev && a.st_ino == b.st_ino;
}

/* The new file is the lock, too; only we can open it before it is complete. A copy that was cut
 * short by a crash is overwritten. @return fd of the file under NEW_NAME, -1 after it was reported
 */
static int lock(const HookRequest *q, int dir_fd) {
        for (;;) {
                _cleanup_close_ int fd =
                        openat(dir_fd, NEW_NAME, O_RDWR | O_CREAT | O_NOFOLLOW | O_CLOEXEC, 0600);
                if (fd < 0 || flock(fd, LOCK_EX) < 0) {
                        (void)report(q, NEW_NAME, "written", errno);
                        return -1;
                }
                /* else who had the lock has given the file its final name, or removed it */
                if (is_under_name(dir_fd, fd, NEW_NAME))
                        return TAKE_FD(fd);
        }
}

/* ---- installing ---- */

static int copy_program(const HookRequest *q, int to_fd) {
        char buf[64 * KIB];
        _cleanup_close_ int fd = open(q->from, O_RDONLY | O_CLOEXEC);
        if (fd < 0) {
                cli_error("'%s' cannot be read: %s", q->from, strerror(errno));
                return CLI_NO;
        }
        if (ftruncate(to_fd, 0) < 0)
                return report(q, NEW_NAME, "written", errno);
        ssize_t n;
        while ((n = read(fd, buf, sizeof buf)) != 0) {
                if (n < 0 && errno == EINTR)
                        continue;
                if (n < 0) {
                        cli_error("'%s' cannot be read: %s", q->from, strerror(errno));
                        return CLI_NO;
                }
                int r = fs_write_all(to_fd, buf, (size_t)n);
                if (r < 0)
                        return report(q, NEW_NAME, "written", -r);
        }
        if (fsync(to_fd) < 0 || (geteuid() == 0 && fchown(to_fd, 0, 0) < 0) ||
            fchmod(to_fd, 0755) < 0 || fsync(to_fd) < 0)
                return report(q, NEW_NAME, "written", errno);
        return CLI_YES;
}

/* Another's hook is kept under a second name until ours replaces it, so that there always is one.
 * File systems without hard links have none for a moment. @return 0, -errno */
static int keep_aside(int dir_fd, HookResult *result) {
        if (unlinkat(dir_fd, HOOK_ASIDE, 0) < 0 && errno != ENOENT)
                return -errno;
        if (linkat(dir_fd, HOOK_NAME, dir_fd, HOOK_ASIDE, 0) < 0 &&
            renameat(dir_fd, HOOK_NAME, dir_fd, HOOK_ASIDE) < 0)
                return -errno;
        result->put_aside = true;
        return 0;
}

static int place_locked(const HookRequest *q, int dir_fd, int new_fd, HookResult *result) {
        HookFile now;
        int code = copy_program(q, new_fd);
        hook_file_inspect(dir_fd, HOOK_NAME, &now); /* another run may have been faster */
        if (code == CLI_YES)
                code = check_place(q, &now);
        if (code != CLI_YES)
                return code;
        int r = now.kind == HOOK_OTHER ? keep_aside(dir_fd, result) : 0;
        if (r == 0 && renameat(dir_fd, NEW_NAME, dir_fd, HOOK_NAME) < 0)
                r = -errno;
        if (r == 0)
                r = fs_sync_dir(dir_fd);
        if (r < 0)
                return report(q, HOOK_NAME, "replaced", -r);
        result->placed = true;
        return CLI_YES;
}

static int place(const HookRequest *q, int dir_fd, HookResult *result) {
        _cleanup_close_ int fd = lock(q, dir_fd);
        if (fd < 0)
                return CLI_NO;
        int code = place_locked(q, dir_fd, fd, result);
        if (is_under_name(dir_fd, fd, NEW_NAME))
                (void)unlinkat(dir_fd, NEW_NAME, 0); /* the next run overwrites it otherwise */
        return code;
}

static int check_program(const HookRequest *q, HookFile *ret) {
        hook_file_inspect(AT_FDCWD, q->from, ret);
        if (ret->kind == HOOK_OURS)
                return CLI_YES;
        if (ret->kind == HOOK_MISSING || ret->kind == HOOK_DANGLING)
                cli_error("'%s' does not exist; install all of neuron-collectd, or give its "
                          "neuron-dump with --from",
                          q->from);
        else if (ret->kind == HOOK_UNREADABLE)
                cli_error("'%s' cannot be read: %s", q->from, strerror(ret->error));
        else
                cli_error("'%s' is not neuron-collectd's neuron-dump; to run a hook of your own "
                          "as well, use --chain=PATH",
                          q->from);
        return CLI_NO;
}

/* ---- the chain ---- */

static bool chain_is_no_symlink(int dir_fd) {
        struct stat st;
        return fstatat(dir_fd, HOOK_CHAIN, &st, AT_SYMLINK_NOFOLLOW) == 0 && !S_ISLNK(st.st_mode);
}

/* Runs before anything is changed. @param now  the present hook, kept aside if it is not ours */
static int check_chain(const HookRequest *q, int dir_fd, const HookFile *now) {
        HookFile f;
        if (q->chain == HOOK_CHAIN_AS_IS)
                return CLI_YES;
        if (chain_is_no_symlink(dir_fd)) {
                cli_error("'%s/" HOOK_CHAIN "' is not a symlink; move it away, and give its new "
                          "path with --chain=PATH to run it",
                          q->directory);
                return CLI_NO;
        }
        if (q->chain == HOOK_CHAIN_OFF)
                return CLI_YES;
        if (!q->chain_path && now->kind == HOOK_OTHER)
                return CLI_YES;
        const char *name = q->chain_path ? q->chain_path : HOOK_ASIDE;
        hook_file_inspect(dir_fd, name, &f);
        if (f.kind == HOOK_OTHER && f.is_executable)
                return CLI_YES;
        if (!q->chain_path && f.kind == HOOK_MISSING)
                cli_error("there is no vendor hook to chain to in '%s'; install aws-neuronx-tools "
                          "first, or give a program with --chain=PATH",
                          q->directory);
        else if (f.kind == HOOK_OURS)
                cli_error("'%s' is neuron-collectd's own hook; give another program", name);
        else if (f.kind == HOOK_OTHER)
                cli_error("'%s' cannot be executed by every user, and jobs run the hook as their "
                          "own user: chmod 755",
                          name);
        else
                cli_error("'%s' cannot be chained to: it is not a readable file", name);
        return CLI_NO;
}

static int remove_link(const HookRequest *q, int dir_fd, HookResult *result) {
        if (chain_is_no_symlink(dir_fd))
                return CLI_YES; /* reported by check_chain(); remove leaves what is not ours */
        if (unlinkat(dir_fd, HOOK_CHAIN, 0) == 0)
                result->chain_changed = true;
        else if (errno != ENOENT)
                return report(q, HOOK_CHAIN, "removed", errno);
        return CLI_YES;
}

static int set_chain(const HookRequest *q, int dir_fd, HookResult *result) {
        const char *wanted = q->chain_path ? q->chain_path : HOOK_ASIDE;
        _cleanup_free_ char *now = hook_chain_target(dir_fd);
        if (q->chain == HOOK_CHAIN_AS_IS)
                return CLI_YES;
        if (q->chain == HOOK_CHAIN_OFF)
                return remove_link(q, dir_fd, result);
        if (now && strcmp(now, wanted) == 0)
                return CLI_YES;
        (void)unlinkat(dir_fd, LINK_NAME, 0); /* a crash may have left it */
        if (symlinkat(wanted, dir_fd, LINK_NAME) < 0 ||
            renameat(dir_fd, LINK_NAME, dir_fd, HOOK_CHAIN) < 0)
                return report(q, HOOK_CHAIN, "created", errno);
        result->chain_changed = true;
        return CLI_YES;
}

/* ---- the commands ---- */

int hook_install(const HookRequest *q, HookResult *ret) {
        HookFile program, now;
        _cleanup_close_ int dir_fd = open_directory(q->directory);
        if (dir_fd < 0)
                return CLI_NO;
        int code = check_program(q, &program);
        if (code != CLI_YES)
                return code;
        hook_file_inspect(dir_fd, HOOK_NAME, &now);
        code = check_place(q, &now);
        if (code == CLI_YES)
                code = check_chain(q, dir_fd, &now);
        bool is_there = hook_file_is_same(&now, &program) && now.is_executable && !now.is_symlink;
        if (code == CLI_YES && !is_there)
                code = place(q, dir_fd, ret);
        if (code == CLI_YES)
                code = set_chain(q, dir_fd, ret);
        if (code == CLI_YES)
                (void)fs_sync_dir(dir_fd); /* the hook itself is durable already */
        return code;
}

/* An installation that was killed may have left the other's hook under both names. */
static bool is_aside_too(int dir_fd, const HookFile *now, const HookFile *aside) {
        return now->kind == HOOK_OTHER && aside->kind == HOOK_OTHER && now->dev == aside->dev &&
               now->ino == aside->ino && !aside->is_symlink && unlinkat(dir_fd, HOOK_ASIDE, 0) == 0;
}

static int restore(const HookRequest *q, int dir_fd, HookResult *result) {
        HookFile now, aside;
        hook_file_inspect(dir_fd, HOOK_NAME, &now);
        hook_file_inspect(dir_fd, HOOK_ASIDE, &aside);
        if (is_aside_too(dir_fd, &now, &aside)) {
                result->restored = true;
        } else if (now.kind != HOOK_OURS && now.kind != HOOK_MISSING) {
                result->left_other = true;
                return CLI_YES;
        } else if (aside.kind != HOOK_MISSING) {
                if (renameat(dir_fd, HOOK_ASIDE, dir_fd, HOOK_NAME) < 0)
                        return report(q, HOOK_NAME, "restored", errno);
                result->restored = true;
        } else if (now.kind == HOOK_OURS) {
                if (unlinkat(dir_fd, HOOK_NAME, 0) < 0)
                        return report(q, HOOK_NAME, "removed", errno);
                result->removed = true;
        }
        int r = fs_sync_dir(dir_fd);
        return r < 0 ? report(q, HOOK_NAME, "made durable", -r) : CLI_YES;
}

/* Nothing reads the stamp any more, and without it the old units do nothing; that all of this is
 * gone is a courtesy, so errors do not matter. */
static void remove_old_keeper(const HookRequest *q, int dir_fd) {
        (void)unlinkat(dir_fd, OLD_STAMP, 0);
        if (strcmp(q->directory, HOOK_DIRECTORY) != 0)
                return;
        (void)unlink(OLD_UNIT_LINKS "path");
        (void)unlink(OLD_UNIT_LINKS "service");
}

int hook_remove(const HookRequest *q, HookResult *ret) {
        _cleanup_close_ int dir_fd = open_directory(q->directory);
        if (dir_fd < 0)
                return CLI_NO;
        _cleanup_close_ int fd = lock(q, dir_fd);
        if (fd < 0)
                return CLI_NO;
        remove_old_keeper(q, dir_fd);
        int code = remove_link(q, dir_fd, ret);
        if (code == CLI_YES)
                code = restore(q, dir_fd, ret);
        (void)unlinkat(dir_fd, LINK_NAME, 0); /* a killed installation may have left it */
        (void)unlinkat(dir_fd, NEW_NAME, 0);  /* the next run overwrites it otherwise */
        return code;
}
