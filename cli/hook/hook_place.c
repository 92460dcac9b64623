#include "cli/hook/hook_place.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <time.h>

#include "cli/cli.h"
#include "lib/base/fs.h"

#define NEW_NAME                                                                                   \
        ".neuron-dump.new" /* ours until it is whole; then, for a moment, what it took the place of */
#define LINK_NAME ".neuron-dump.link" /* the chain's symlink until it has its name */
#define UNFINISHED 01600 /* its mode until all of it is there: no hook of anybody's has this one */
#define LOCK_TRIES 100
#define LOCK_NSEC (100 * 1000 * 1000) /* between two tries: 10 s in all */

/* ---- saying ---- */

static int say(const HookOrder *o, const char *name, const char *what, int error) {
        const char *remedy = "";
        switch (error) {
        case EACCES:
        case EPERM:
                remedy = geteuid() == 0 ? "; is it immutable (lsattr), or on another system's "
                                          "share?"
                                        : "; run it as root";
                break;
        case EROFS:
                remedy = "; mount it read-write, or build the hook into the image with --to";
                break;
        case ENOSPC:
        case EDQUOT:
                remedy = "; make room";
                break;
        }
        cli_error("'%s/%s' cannot be %s: %s%s", o->directory, name, what, strerror(error), remedy);
        return CLI_NO;
}

int hook_open_directory(const char *directory) {
        int fd = open(directory, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
        if (fd >= 0)
                return fd;
        if (errno == ENOENT)
                cli_error("there is no '%s': install aws-neuronx-tools first, make the directory "
                          "yourself (mkdir -p), or name another one with --to",
                          directory);
        else
                cli_error("'%s' cannot be opened: %s%s", directory, strerror(errno),
                          errno == EACCES && geteuid() != 0 ? "; run it as root" : "");
        return -1;
}

/* @return whether there is a file under the name, or nothing: something that can be taken away */
static int check_place(const HookOrder *o, const HookFile *f) {
        if (f->kind == HOOK_UNREADABLE)
                return say(o, HOOK_NAME, "read", f->error);
        if (f->kind == HOOK_NO_FILE)
                cli_error("'%s/" HOOK_NAME "' is no file; move it away, then try again",
                          o->directory);
        else if (f->kind == HOOK_DANGLING)
                cli_error("'%s/" HOOK_NAME "' is a symlink to nothing; remove it, then try again",
                          o->directory);
        else
                return CLI_YES;
        return CLI_NO;
}

/* ---- what came out ---- */

/* What stood under the name before: ours goes, everybody else's is kept aside, in the place of what was aside. A copy of ours that was not
 * finished is known by its mode. @return 0, -errno */
static int let_go_of(int dir_fd, const char *name, HookDone *done) {
        HookFile f;
        hook_file_look(dir_fd, name, &f);
        if (f.kind == HOOK_MISSING)
                return 0;
        struct stat st;
        if (fstatat(dir_fd, name, &st, AT_SYMLINK_NOFOLLOW) < 0)
                return errno == ENOENT ? 0 : -errno;
        bool is_half_written = S_ISREG(st.st_mode) && (st.st_mode & 07777) == UNFINISHED;
        if (f.kind == HOOK_OTHER && !is_half_written) {
                if (renameat(dir_fd, name, dir_fd, HOOK_ASIDE) < 0)
                        return errno == ENOENT ? 0 : -errno;
                done->put_aside = true;
        }
        /* rename(2) of two names of one file does nothing: the name may still be there */
        return unlinkat(dir_fd, name, 0) < 0 && errno != ENOENT ? -errno : 0;
}

/* ---- one at a time ---- */

static bool is_under_name(int dir_fd, int fd, const char *name) {
        struct stat a, b;
        return fstat(fd, &a) == 0 && fstatat(dir_fd, name, &b, AT_SYMLINK_NOFOLLOW) == 0 &&
               a.st_dev == b.st_dev && a.st_ino == b.st_ino;
}

/* The new file is the lock, too: nobody but us can open it before it is finished. One that nobody holds was left by a crash. */
static int try_lock(int dir_fd, HookDone *done) {
        _cleanup_close_ int fd =
                openat(dir_fd, NEW_NAME, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, UNFINISHED);
        if (fd >= 0) {
                if (flock(fd, LOCK_EX | LOCK_NB) == 0 && is_under_name(dir_fd, fd, NEW_NAME))
                        return TAKE_FD(fd);
                return -EAGAIN;
        }
        if (errno != EEXIST)
                return -errno;
        _cleanup_close_ int left =
                openat(dir_fd, NEW_NAME, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY | O_CLOEXEC);
        if (left < 0 && errno != ELOOP) /* a symlink that stood under the name: nobody's lock */
                return errno == ENOENT ? -EAGAIN : -errno;
        if (left >= 0 &&
            (flock(left, LOCK_EX | LOCK_NB) < 0 || !is_under_name(dir_fd, left, NEW_NAME)))
                return -EAGAIN;
        int r = let_go_of(dir_fd, NEW_NAME, done);
        return r < 0 ? r : -EAGAIN;
}

/* @return fd of an empty file under NEW_NAME, -1 after it was said */
static int lock(const HookOrder *o, int dir_fd, HookDone *done) {
        int r = -EAGAIN;
        for (int i = 0; i < LOCK_TRIES; i++) {
                for (int k = 0; k < 2; k++) { /* the first try may only have cleared the way */
                        r = try_lock(dir_fd, done);
                        if (r != -EAGAIN)
                                break;
                }
                if (r != -EAGAIN)
                        break;
                (void)nanosleep(&(struct timespec){ .tv_nsec = LOCK_NSEC }, NULL);
        }
        if (r >= 0)
                return r;
        if (r == -EAGAIN)
                cli_error("another `neuron-collect hook` is at work in '%s'; try again when it has "
                          "ended",
                          o->directory);
        else
                (void)say(o, NEW_NAME, "written", -r);
        return -1;
}

/* A run that was killed may have left the vendor's file there. @return CLI_YES, CLI_NO after it was said */
static int clear_leftovers(const HookOrder *o, int dir_fd, HookDone *done) {
        if (faccessat(dir_fd, NEW_NAME, F_OK, AT_SYMLINK_NOFOLLOW) < 0)
                return CLI_YES;
        _cleanup_close_ int fd = lock(o, dir_fd, done);
        if (fd >= 0)
                (void)unlinkat(dir_fd, NEW_NAME, 0); /* the next run removes it otherwise */
        return fd >= 0 ? CLI_YES : CLI_NO;
}

/* ---- installing ---- */

static int copy_program(const HookOrder *o, int to_fd) {
        char buf[64 * KIB];
        _cleanup_close_ int fd = open(o->from, O_RDONLY | O_CLOEXEC);
        if (fd < 0) {
                cli_error("'%s' cannot be read: %s", o->from, strerror(errno));
                return CLI_NO;
        }
        ssize_t n;
        while ((n = read(fd, buf, sizeof buf)) != 0) {
                if (n < 0 && errno == EINTR)
                        continue;
                if (n < 0) {
                        cli_error("'%s' cannot be read: %s", o->from, strerror(errno));
                        return CLI_NO;
                }
                int r = fs_write_all(to_fd, buf, (size_t)n);
                if (r < 0)
                        return say(o, NEW_NAME, "written", -r);
        }
        /* Only now: until then it is known by its mode as not finished. */
        if (fsync(to_fd) < 0 || (geteuid() == 0 && fchown(to_fd, 0, 0) < 0) ||
            fchmod(to_fd, 0755) < 0 || fsync(to_fd) < 0)
                return say(o, NEW_NAME, "written", errno);
        return CLI_YES;
}

/* Ours and what is there change places in one step. Where the file system cannot do that, there is no hook for a moment. */
static int give_name(int dir_fd, bool is_taken, HookDone *done) {
        if (!is_taken && renameat2(dir_fd, NEW_NAME, dir_fd, HOOK_NAME, RENAME_NOREPLACE) == 0)
                return 0;
        if (!is_taken && errno != EEXIST && errno != EINVAL && errno != ENOSYS)
                return -errno;
        if (renameat2(dir_fd, NEW_NAME, dir_fd, HOOK_NAME, RENAME_EXCHANGE) == 0)
                return let_go_of(dir_fd, NEW_NAME, done);
        if (errno != EINVAL && errno != ENOSYS && errno != ENOENT)
                return -errno;
        int r = let_go_of(dir_fd, HOOK_NAME, done);
        if (r < 0)
                return r;
        return renameat(dir_fd, NEW_NAME, dir_fd, HOOK_NAME) < 0 ? -errno : 0;
}

static int place(const HookOrder *o, int dir_fd, HookDone *done) {
        HookFile now;
        _cleanup_close_ int fd = lock(o, dir_fd, done);
        if (fd < 0)
                return CLI_NO;
        int code = copy_program(o, fd);
        hook_file_look(dir_fd, HOOK_NAME, &now);
        if (code == CLI_YES)
                code = check_place(o, &now);
        if (code == CLI_YES) {
                int r = give_name(dir_fd, now.kind != HOOK_MISSING, done);
                if (r == 0)
                        r = fs_sync_dir(dir_fd);
                if (r == 0) {
                        done->placed = true;
                        return CLI_YES;
                }
                code = say(o, HOOK_NAME, "replaced", -r);
        }
        if (is_under_name(dir_fd, fd, NEW_NAME))
                (void)unlinkat(dir_fd, NEW_NAME, 0); /* the next run removes it otherwise */
        return code;
}

static int check_program(const HookOrder *o, HookFile *ret) {
        hook_file_look(AT_FDCWD, o->from, ret);
        if (ret->kind == HOOK_OURS)
                return CLI_YES;
        if (ret->kind == HOOK_MISSING || ret->kind == HOOK_DANGLING)
                cli_error("there is no '%s'; install neuron-collectd whole, or name its "
                          "neuron-dump with --from",
                          o->from);
        else if (ret->kind == HOOK_UNREADABLE)
                cli_error("'%s' cannot be read: %s", o->from, strerror(ret->error));
        else
                cli_error("'%s' is not neuron-collectd's neuron-dump; a hook of your own stays "
                          "where it is, or is run as well by --chain=PATH",
                          o->from);
        return CLI_NO;
}

/* ---- the chain ---- */

char *hook_chain_target(int dir_fd) {
        char target[PATH_MAX];
        ssize_t n = readlinkat(dir_fd, HOOK_CHAIN, target, sizeof target - 1);
        if (n < 0)
                return NULL;
        target[n] = '\0';
        return strdup(target);
}

static bool chain_is_no_symlink(int dir_fd) {
        struct stat st;
        return fstatat(dir_fd, HOOK_CHAIN, &st, AT_SYMLINK_NOFOLLOW) == 0 && !S_ISLNK(st.st_mode);
}

/* Before anything is changed. @param now  what has the hook's name: it will be aside, when it is not ours */
static int check_chain(const HookOrder *o, int dir_fd, const HookFile *now) {
        HookFile f;
        if (o->chain == HOOK_CHAIN_AS_IS)
                return CLI_YES;
        if (chain_is_no_symlink(dir_fd)) {
                cli_error("'%s/" HOOK_CHAIN "' is no symlink of ours; move it away, and name it "
                          "with --chain=PATH to have it run",
                          o->directory);
                return CLI_NO;
        }
        if (o->chain == HOOK_CHAIN_OFF)
                return CLI_YES;
        if (!o->chain_path && now->kind == HOOK_OTHER)
                return CLI_YES;
        const char *name = o->chain_path ? o->chain_path : HOOK_ASIDE;
        hook_file_look(dir_fd, name, &f);
        if (f.kind == HOOK_OTHER && f.is_executable)
                return CLI_YES;
        if (!o->chain_path && f.kind == HOOK_MISSING)
                cli_error("there is no hook of the vendor's to chain to: none is in '%s', and none "
                          "was put aside; install aws-neuronx-tools first, or name a program with "
                          "--chain=PATH",
                          o->directory);
        else if (f.kind == HOOK_OURS)
                cli_error("'%s' is our own hook: it would run itself", name);
        else if (f.kind == HOOK_OTHER)
                cli_error("'%s' cannot be executed by everybody; jobs run the hook as their own "
                          "user: chmod 755",
                          name);
        else
                cli_error("'%s' cannot be chained to: it is no file that can be read", name);
        return CLI_NO;
}

static int remove_link(const HookOrder *o, int dir_fd, HookDone *done) {
        if (chain_is_no_symlink(dir_fd))
                return CLI_YES; /* said by check_chain(); remove leaves what is not ours */
        if (unlinkat(dir_fd, HOOK_CHAIN, 0) == 0)
                done->chain_changed = true;
        else if (errno != ENOENT)
                return say(o, HOOK_CHAIN, "removed", errno);
        return CLI_YES;
}

static int set_chain(const HookOrder *o, int dir_fd, HookDone *done) {
        const char *wanted = o->chain_path ? o->chain_path : HOOK_ASIDE;
        _cleanup_free_ char *now = hook_chain_target(dir_fd);
        if (o->chain == HOOK_CHAIN_AS_IS)
                return CLI_YES;
        if (o->chain == HOOK_CHAIN_OFF)
                return remove_link(o, dir_fd, done);
        if (now && strcmp(now, wanted) == 0)
                return CLI_YES;
        (void)unlinkat(dir_fd, LINK_NAME, 0); /* a crash may have left it */
        if (symlinkat(wanted, dir_fd, LINK_NAME) < 0 ||
            renameat(dir_fd, LINK_NAME, dir_fd, HOOK_CHAIN) < 0)
                return say(o, HOOK_CHAIN, "made", errno);
        done->chain_changed = true;
        return CLI_YES;
}

/* ---- the commands ---- */

static int write_stamp(const HookOrder *o, int dir_fd) {
        static const char text[] =
                "`neuron-collect hook install` was run here: while this file is here, "
                "neuron-collectd-hook-keep.path puts the hook\n"
                "of neuron-collectd back when a package's upgrade has replaced it. "
                "`neuron-collect hook remove` undoes both.\n";
        /* That it is there is what counts; its text is for whoever finds it. */
        _cleanup_close_ int fd = openat(dir_fd, HOOK_STAMP,
                                        O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0644);
        if (fd < 0)
                return errno == EEXIST ? CLI_YES : say(o, HOOK_STAMP, "written", errno);
        int r = fs_write_all(fd, text, strlen(text));
        return r < 0 ? say(o, HOOK_STAMP, "written", -r) : CLI_YES;
}

int hook_install(const HookOrder *o, HookDone *ret) {
        HookFile program, now;
        _cleanup_close_ int dir_fd = hook_open_directory(o->directory);
        if (dir_fd < 0)
                return CLI_NO;
        if (o->again && faccessat(dir_fd, HOOK_STAMP, F_OK, AT_SYMLINK_NOFOLLOW) < 0) {
                ret->was_not_installed = true;
                return CLI_YES;
        }
        int code = clear_leftovers(o, dir_fd, ret);
        if (code == CLI_YES)
                code = check_program(o, &program);
        if (code != CLI_YES)
                return code;
        hook_file_look(dir_fd, HOOK_NAME, &now);
        code = check_place(o, &now);
        if (code == CLI_YES)
                code = check_chain(o, dir_fd, &now);
        bool is_there = hook_file_is_same(&now, &program) && now.is_executable && !now.is_symlink;
        if (code == CLI_YES && !is_there)
                code = place(o, dir_fd, ret);
        if (code == CLI_YES)
                code = set_chain(o, dir_fd, ret);
        if (code == CLI_YES)
                code = write_stamp(o, dir_fd);
        if (code == CLI_YES)
                (void)fs_sync_dir(dir_fd); /* the hook itself is durable already */
        return code;
}

static int put_back(const HookOrder *o, int dir_fd, HookDone *done) {
        HookFile now, aside;
        hook_file_look(dir_fd, HOOK_NAME, &now);
        hook_file_look(dir_fd, HOOK_ASIDE, &aside);
        if (now.kind != HOOK_OURS && now.kind != HOOK_MISSING) {
                done->left_other = true;
                return CLI_YES;
        }
        if (aside.kind != HOOK_MISSING) {
                if (renameat(dir_fd, HOOK_ASIDE, dir_fd, HOOK_NAME) < 0)
                        return say(o, HOOK_NAME, "restored", errno);
                done->restored = true;
        } else if (now.kind == HOOK_OURS) {
                if (unlinkat(dir_fd, HOOK_NAME, 0) < 0)
                        return say(o, HOOK_NAME, "removed", errno);
                done->removed = true;
        }
        int r = fs_sync_dir(dir_fd);
        return r < 0 ? say(o, HOOK_NAME, "made durable", -r) : CLI_YES;
}

int hook_remove(const HookOrder *o, HookDone *ret) {
        _cleanup_close_ int dir_fd = hook_open_directory(o->directory);
        if (dir_fd < 0)
                return CLI_NO;
        _cleanup_close_ int fd = lock(o, dir_fd, ret);
        if (fd < 0)
                return CLI_NO;
        int code = CLI_YES;
        /* First, so that nobody puts ours back meanwhile. */
        if (unlinkat(dir_fd, HOOK_STAMP, 0) < 0 && errno != ENOENT)
                code = say(o, HOOK_STAMP, "removed", errno);
        if (code == CLI_YES)
                code = remove_link(o, dir_fd, ret);
        if (code == CLI_YES)
                code = put_back(o, dir_fd, ret);
        (void)unlinkat(dir_fd, LINK_NAME,
                       0); /* what an installation that was killed may have left */
        (void)unlinkat(dir_fd, NEW_NAME, 0); /* the next run removes it otherwise */
        return code;
}
