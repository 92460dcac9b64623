/* neuron-collect hook install, remove, status: our neuron-dump in the place of the runtime's; the
 * chain to another hook; the directory of dumps; and what `doctor` checks of them. The file that
 * ours replaces is kept aside, in the place of what was kept before. To run a command again
 * completes what a kill -9 interrupted. */
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include "cli/common/cli.h"
#include "cli/hook/hook_check.h"
#include "config/config.h"
#include "config/keys.h"
#include "lib/base/cleanup.h"
#include "lib/base/digest.h"
#include "lib/base/fs.h"
#include "lib/base/path.h"
#include "lib/base/strbuf.h"
#include "lib/neuron/job.h"

#define HOOK_CHAIN "neuron-dump.chain" /* a symlink: what our hook runs as well */
/* Our program has this text in it, and its version behind it. */
#define HOOK_MARKER "neuron-collectd neuron-dump "
#define HOOK_FILE_MAX (64 * MIB) /* a larger file is not ours */
/* the runtime's default, @see AWS Neuron documentation: NEURON_RT_LOCAL_CORE_DUMP_DIRECTORY */
#define HOOK_DUMP_DIRECTORY "/tmp/neuron-core-dump/dt-%d-cid-%c"

#define INSTALL "neuron-collect hook install"
#define MAILBOX_MODE 01733 /* every user may add a note, nobody may read or remove another's */

#define DUMPS_MODE 01777

#define HOOK_NAME "neuron-dump"
#define HOOK_VERSION_SIZE 32

typedef enum HookKind {
        HOOK_MISSING,
        HOOK_OURS,
        HOOK_OTHER,     /* a regular file: the vendor's, or somebody's own */
        HOOK_DANGLING,  /* a symlink to nothing */
        HOOK_NO_FILE,   /* a directory, a device … */
        HOOK_UNREADABLE /* see `error` */
} HookKind;

typedef struct HookFile {
        HookKind kind;
        char version[HOOK_VERSION_SIZE]; /* of ours */
        uint8_t sha256[SHA256_SIZE];     /* of its content; of ours and others */
        bool is_symlink;                 /* the rest is about its target */
        bool is_script;                  /* begins with #! */
        bool is_executable;              /* for anybody: a job may be anyone's */
        int error;                       /* errno */
        dev_t dev;
        ino_t ino;
} HookFile;

typedef struct HookStatus {
        int error; /* errno of opening the directory; the files below are missing then */
        HookFile hook, aside, program;
        char *chain;      /* target of the symlink; NULL = off */
        HookFile chained; /* what it leads to */
} HookStatus;

#define VERSION_CHARS "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ.-+~_"

/* The compiler may have put a newline into the string that is printed; nothing else may follow.
 * @param data  n bytes, and a NUL behind them */
static bool find_marker(const char *data, size_t n, char version[static HOOK_VERSION_SIZE]) {
        const char *end = data + n, *at = data;
        while ((at = memmem(at, (size_t)(end - at), HOOK_MARKER, strlen(HOOK_MARKER)))) {
                at += strlen(HOOK_MARKER);
                size_t size = strspn(at, VERSION_CHARS);
                if (size == 0 || size >= HOOK_VERSION_SIZE || at + size >= end ||
                    (at[size] != '\0' && at[size] != '\n'))
                        continue;
                snprintf(version, HOOK_VERSION_SIZE, "%.*s", (int)size, at);
                return true;
        }
        return false;
}

/* Computes the hash and searches for the marker. A script that has it in a comment is not ours. */
static int read_content(int fd, HookFile *f) {
        _cleanup_free_ char *data = NULL;
        size_t n;
        int r = fs_read_head(fd, HOOK_FILE_MAX + 1, &data, &n);
        if (r < 0)
                return r;
        sha256_of(data, n, f->sha256);
        f->is_script = n >= 2 && memcmp(data, "#!", 2) == 0;
        f->kind = n <= HOOK_FILE_MAX && !f->is_script && find_marker(data, n, f->version)
                          ? HOOK_OURS
                          : HOOK_OTHER;
        return 0;
}

static int inspect(int dir_fd, const char *name, HookFile *f) {
        struct stat st;
        if (fstatat(dir_fd, name, &st, AT_SYMLINK_NOFOLLOW) < 0)
                return -errno;
        f->is_symlink = S_ISLNK(st.st_mode);
        if (f->is_symlink && fstatat(dir_fd, name, &st, 0) < 0) {
                if (errno != ENOENT && errno != ELOOP && errno != ENOTDIR)
                        return -errno;
                f->kind = HOOK_DANGLING;
                return 0;
        }
        f->kind = HOOK_NO_FILE;
        if (!S_ISREG(st.st_mode)) /* to open a device or a FIFO is to use it */
                return 0;
        _cleanup_close_ int fd = openat(dir_fd, name, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
        if (fd < 0 || fstat(fd, &st) < 0)
                return -errno;
        if (!S_ISREG(st.st_mode))
                return 0;
        f->is_executable = (st.st_mode & 0111) == 0111;
        f->dev = st.st_dev;
        f->ino = st.st_ino;
        return read_content(fd, f);
}

static void hook_file_inspect(int dir_fd, const char *name, HookFile *ret) {
        *ret = (HookFile){ 0 };
        int r = inspect(dir_fd, name, ret);
        if (r == 0)
                return;
        ret->kind = r == -ENOENT ? HOOK_MISSING : HOOK_UNREADABLE;
        ret->error = -r;
}

/* @return whether both are files with the same content */
static bool hook_file_is_same(const HookFile *a, const HookFile *b) {
        return (a->kind == HOOK_OURS || a->kind == HOOK_OTHER) && a->kind == b->kind &&
               memcmp(a->sha256, b->sha256, SHA256_SIZE) == 0;
}

static char *hook_chain_target(int dir_fd) {
        char target[PATH_MAX];
        ssize_t n = readlinkat(dir_fd, HOOK_CHAIN, target, sizeof target - 1);
        if (n < 0)
                return NULL;
        target[n] = '\0';
        return strdup(target);
}

/* @param directory  where the runtime looks  @param program  ours, as installed */
static void hook_status_read(const char *directory, const char *program, HookStatus *ret) {
        *ret = (HookStatus){ 0 };
        hook_file_inspect(AT_FDCWD, program, &ret->program);
        _cleanup_close_ int fd = open(directory, O_PATH | O_DIRECTORY | O_CLOEXEC);
        if (fd < 0) {
                ret->error = errno;
                return;
        }
        hook_file_inspect(fd, HOOK_NAME, &ret->hook);
        hook_file_inspect(fd, HOOK_ASIDE, &ret->aside);
        ret->chain = hook_chain_target(fd);
        if (ret->chain)
                hook_file_inspect(fd, HOOK_CHAIN, &ret->chained);
}

static void hook_status_done(HookStatus *s) {
        free(s->chain);
        *s = (HookStatus){ 0 };
}

/* One word for scripts: ours, vendor (another program), other (a script), missing, unusable. */
static const char *hook_status_word(const HookStatus *s) {
        switch (s->hook.kind) {
        case HOOK_MISSING:
                return s->error != 0 && s->error != ENOENT ? "unusable" : "missing";
        case HOOK_OURS:
                return "ours";
        case HOOK_OTHER:
                return s->hook.is_script ? "other" : "vendor";
        case HOOK_DANGLING:
        case HOOK_NO_FILE:
        case HOOK_UNREADABLE:
                break;
        }
        return "unusable";
}

/* @return whether ours was installed, and another file has taken its place since */
static bool hook_status_is_replaced(const HookStatus *s) {
        return s->aside.kind != HOOK_MISSING && s->hook.kind != HOOK_OURS;
}

/* Connects to the socket and closes it. @return 0: somebody listens, -errno */
static int hook_socket_check(const char *path) {
        _cleanup_close_ int fd = fs_connect_socket(path, SOCK_SEQPACKET);
        return MIN(fd, 0);
}

static const char *hook_dump_directory(char *const *environment) {
        const char *directory = environment_get(environment, "NEURON_RT_LOCAL_CORE_DUMP_DIRECTORY"),
                   *prefix = environment_get(environment, "NEURON_RT_S3_CORE_DUMP_PREFIX");
        if (directory && !*directory && prefix && !*prefix)
                return NULL;
        return directory && *directory ? directory : HOOK_DUMP_DIRECTORY;
}

static const char *hook_dump_source(const Config *config, const char *dump_directory) {
        _cleanup_free_ char *fixed = form_fixed_part(dump_directory);
        for (size_t i = 0; fixed && i < config->n_sources; i++) {
                _cleanup_free_ char *of = form_fixed_part(config->sources[i].path);
                if (of && path_is_below(fixed, of))
                        return config->sources[i].name;
        }
        return NULL;
}

typedef enum HookChain { HOOK_CHAIN_AS_IS, HOOK_CHAIN_OFF, HOOK_CHAIN_ON } HookChain;

typedef struct HookRequest {    /* borrowed */
        const char *directory;  /* where the runtime looks */
        const char *from;       /* our program */
        HookChain chain;        /* of install */
        const char *chain_path; /* absolute; NULL = the vendor's */
} HookRequest;

typedef enum HookOutcome {
        HOOK_UNCHANGED,
        HOOK_PLACED,           /* ours, again or another version of it */
        HOOK_PLACED_FOR_OTHER, /* and what was there is kept aside */
        HOOK_RESTORED,         /* the hook that was aside */
        HOOK_REMOVED,          /* ours, and there was nothing to restore */
        HOOK_STAYS,            /* it is not ours */
} HookOutcome;

typedef struct HookResult {
        HookOutcome outcome;
        bool chain_changed;
} HookResult;

#define NEW_NAME ".neuron-dump.new"   /* ours until it is complete; also the lock */
#define LINK_NAME ".neuron-dump.link" /* the chain's symlink until it has its name */
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
        return cli_error("'%s/%s' cannot be %s: %s%s", q->directory, name, what, strerror(error),
                         remedy);
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
        _cleanup_close_ int fd = open(q->from, O_RDONLY | O_CLOEXEC);
        _cleanup_free_ char *data = NULL;
        size_t n = 0;
        int r = fd < 0 ? -errno : fs_read_head(fd, HOOK_FILE_MAX, &data, &n);
        if (r < 0)
                return cli_error("'%s' cannot be read: %s", q->from, strerror(-r));
        r = ftruncate(to_fd, 0) < 0 ? -errno : fs_write_all(to_fd, data, n);
        if (r < 0)
                return report(q, NEW_NAME, "written", -r);
        if (fsync(to_fd) < 0 || (geteuid() == 0 && fchown(to_fd, 0, 0) < 0) ||
            fchmod(to_fd, 0755) < 0 || fsync(to_fd) < 0)
                return report(q, NEW_NAME, "written", errno);
        return CLI_YES;
}

/* Another's hook is kept under a second name until ours replaces it, so that there always is one.
 * File systems without hard links have none for a moment. @return 0, -errno */
static int keep_aside(int dir_fd) {
        if (unlinkat(dir_fd, HOOK_ASIDE, 0) < 0 && errno != ENOENT)
                return -errno;
        if (linkat(dir_fd, HOOK_NAME, dir_fd, HOOK_ASIDE, 0) < 0 &&
            renameat(dir_fd, HOOK_NAME, dir_fd, HOOK_ASIDE) < 0)
                return -errno;
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
        int r = now.kind == HOOK_OTHER ? keep_aside(dir_fd) : 0;
        if (r == 0 && renameat(dir_fd, NEW_NAME, dir_fd, HOOK_NAME) < 0)
                r = -errno;
        if (r == 0)
                r = fs_sync_dir(dir_fd);
        if (r < 0)
                return report(q, HOOK_NAME, "replaced", -r);
        result->outcome = now.kind == HOOK_OTHER ? HOOK_PLACED_FOR_OTHER : HOOK_PLACED;
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
        if (chain_is_no_symlink(dir_fd))
                return cli_error("'%s/" HOOK_CHAIN
                                 "' is not a symlink; move it away, and give its new "
                                 "path with --chain=PATH to run it",
                                 q->directory);
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

static int hook_install(const HookRequest *q, HookResult *ret) {
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
                result->outcome = HOOK_RESTORED;
        } else if (now.kind != HOOK_OURS && now.kind != HOOK_MISSING) {
                result->outcome = HOOK_STAYS;
                return CLI_YES;
        } else if (aside.kind != HOOK_MISSING) {
                if (renameat(dir_fd, HOOK_ASIDE, dir_fd, HOOK_NAME) < 0)
                        return report(q, HOOK_NAME, "restored", errno);
                result->outcome = HOOK_RESTORED;
        } else if (now.kind == HOOK_OURS) {
                if (unlinkat(dir_fd, HOOK_NAME, 0) < 0)
                        return report(q, HOOK_NAME, "removed", errno);
                result->outcome = HOOK_REMOVED;
        }
        int r = fs_sync_dir(dir_fd);
        return r < 0 ? report(q, HOOK_NAME, "made durable", -r) : CLI_YES;
}

static int hook_remove(const HookRequest *q, HookResult *ret) {
        _cleanup_close_ int dir_fd = open_directory(q->directory);
        if (dir_fd < 0)
                return CLI_NO;
        _cleanup_close_ int fd = lock(q, dir_fd);
        if (fd < 0)
                return CLI_NO;
        int code = remove_link(q, dir_fd, ret);
        if (code == CLI_YES)
                code = restore(q, dir_fd, ret);
        (void)unlinkat(dir_fd, LINK_NAME, 0); /* a killed installation may have left it */
        (void)unlinkat(dir_fd, NEW_NAME, 0);  /* the next run overwrites it otherwise */
        return code;
}

typedef struct Arguments {
        HookRequest request;
        char *program, *place, *chain; /* made absolute; NULL = not given */
        char *dumps;                   /* the same; a directory to create for all users' dumps */
        char *to; /* the option, for commands that are suggested; "" = the default place */
} Arguments;

/* ---- install, remove ---- */

static int print_json(const Cli *cli, const HookRequest *q, const HookResult *result) {
        HookOutcome is = result->outcome;
        return cli_print_new_json(cli, json_pack("{s:o, s:b, s:b, s:b, s:b, s:b, s:b}", "directory",
                                                 cli_json_string(q->directory), "placed",
                                                 is == HOOK_PLACED || is == HOOK_PLACED_FOR_OTHER,
                                                 "put_aside", is == HOOK_PLACED_FOR_OTHER,
                                                 "restored", is == HOOK_RESTORED, "removed",
                                                 is == HOOK_REMOVED, "left_other", is == HOOK_STAYS,
                                                 "chain_changed", result->chain_changed));
}

static void print_chain(const HookRequest *q, const HookResult *result) {
        if (!result->chain_changed)
                return;
        if (q->chain == HOOK_CHAIN_ON)
                cli_line("it also runs '%s', until its own deadline at most",
                         q->chain_path ? q->chain_path : HOOK_ASIDE);
        else
                cli_line("it no longer runs another hook");
}

static void print_installed(const Arguments *a, const HookResult *result) {
        const HookRequest *q = &a->request;
        cli_line("'%s/" HOOK_NAME "' is %s neuron-collectd's", q->directory,
                 result->outcome == HOOK_UNCHANGED ? "already" : "now");
        if (result->outcome == HOOK_PLACED_FOR_OTHER)
                cli_line("the previous hook is kept as '" HOOK_ASIDE
                         "'; `neuron-collect hook remove%s` restores it",
                         a->to);
        print_chain(q, result);
        if (result->outcome == HOOK_PLACED_FOR_OTHER && q->chain == HOOK_CHAIN_AS_IS)
                cli_line(
                        "the previous hook no longer runs; `neuron-collect hook install --chain%s` "
                        "runs it as well",
                        a->to);
        if (result->outcome != HOOK_UNCHANGED && !a->place)
                cli_line("an upgrade of aws-neuronx-tools replaces it: run this command again "
                         "after each");
}

/* A directory where every user's job may write, and remove only what is its own: what the agent
 * asks of a shared source. On a node without a shell nothing else makes it. */
static int share_directory(const char *path) {
        int r = fs_mkdir_p(path, 0755);
        _cleanup_close_ int fd =
                r < 0 ? r : open(path, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
        struct stat st;
        if (r == 0 && (fd < 0 || fstat(fd, &st) < 0))
                r = -errno;
        if (r == 0 && st.st_uid != geteuid())
                return cli_error(
                        "'%s' belongs to uid %u, who could rename the dumps of all other users; "
                        "make it a directory of root's (chown %u '%s')",
                        path, (unsigned)st.st_uid, (unsigned)geteuid(), path);
        if (r == 0 && (st.st_mode & 07777) != DUMPS_MODE && fchmod(fd, DUMPS_MODE) < 0)
                r = -errno;
        if (r == 0)
                return CLI_YES;
        return cli_error(
                "'%s' cannot be a directory for all users' dumps: %s; make it a directory of "
                "root's",
                path, strerror(-r));
}

static int install(const Cli *cli, const Arguments *a) {
        HookResult result = { 0 };
        int code = a->dumps ? share_directory(a->dumps) : CLI_YES;
        if (code == CLI_YES)
                code = hook_install(&a->request, &result);
        if (code != CLI_YES)
                return code;
        if (cli->json)
                return print_json(cli, &a->request, &result);
        print_installed(a, &result);
        return CLI_YES;
}

static int do_remove(const Cli *cli, const Arguments *a) {
        HookResult result = { 0 };
        const char *directory = a->request.directory;
        int code = hook_remove(&a->request, &result);
        if (code != CLI_YES)
                return code;
        if (cli->json)
                return print_json(cli, &a->request, &result);
        if (result.outcome == HOOK_STAYS)
                cli_line("'%s/" HOOK_NAME "' is not neuron-collectd's and stays as it is",
                         directory);
        else if (result.outcome == HOOK_RESTORED)
                cli_line("'%s/" HOOK_NAME "' is the previous hook again", directory);
        else if (result.outcome == HOOK_REMOVED)
                cli_line("'%s/" HOOK_NAME "' is removed; there was no previous hook, and without "
                         "one the runtime writes no core dumps",
                         directory);
        else
                cli_line("'%s' has no hook of neuron-collectd", directory);
        return CLI_YES;
}

/* ---- status ---- */

static void print_ours(const Arguments *a, const HookStatus *s) {
        cli_line("hook: '%s/" HOOK_NAME "' is neuron-collectd's, version %s", a->request.directory,
                 s->hook.version);
        if (!hook_file_is_same(&s->hook, &s->program) && s->program.kind == HOOK_OURS)
                cli_line("it differs from the one installed with this program; "
                         "`neuron-collect hook install%s` updates it",
                         a->to);
        if (!s->hook.is_executable)
                cli_line("it cannot be executed by every user, so their jobs write no core dumps; "
                         "`neuron-collect hook install%s` fixes that",
                         a->to);
}

static void print_hook(const Arguments *a, const HookStatus *s) {
        const char *directory = a->request.directory;
        const char *word = hook_status_word(s);
        if (s->hook.kind == HOOK_OURS)
                print_ours(a, s);
        else if (s->error != 0 && s->error != ENOENT)
                cli_line("hook: cannot open '%s': %s", directory, strerror(s->error));
        else if (s->hook.kind == HOOK_MISSING)
                cli_line("hook: '%s/" HOOK_NAME "' does not exist, so the runtime writes no core "
                         "dumps; run `neuron-collect hook install%s`",
                         directory, a->to);
        else if (s->hook.kind != HOOK_OTHER)
                cli_line("hook: '%s/" HOOK_NAME "' cannot be used%s%s; move it away, then run "
                         "`neuron-collect hook install%s`",
                         directory, s->hook.error ? ": " : "",
                         s->hook.error ? strerror(s->hook.error) : "", a->to);
        else if (hook_status_is_replaced(s))
                cli_line("hook: '%s/" HOOK_NAME "' is no longer neuron-collectd's, probably after "
                         "a package upgrade; `neuron-collect hook install%s` keeps it aside and "
                         "installs ours again",
                         directory, a->to);
        else
                cli_line("hook: '%s/" HOOK_NAME "' is %s; `neuron-collect hook install%s` keeps it "
                         "aside and installs ours",
                         directory,
                         strcmp(word, "other") == 0 ? "a script, not neuron-collectd's hook"
                                                    : "the vendor's hook",
                         a->to);
}

static void print_other_files(const Arguments *a, const HookStatus *s) {
        if (s->aside.kind != HOOK_MISSING)
                cli_line("previous: kept as '" HOOK_ASIDE "'");
        if (!s->chain)
                cli_line("chain: off, no other hook runs");
        else if (s->chained.kind != HOOK_OTHER || !s->chained.is_executable)
                cli_line("chain: to '%s', which %s; `neuron-collect hook install --no-chain%s` "
                         "switches it off",
                         s->chain,
                         s->chained.kind == HOOK_OURS ? "is neuron-collectd's own hook"
                                                      : "cannot be executed",
                         a->to);
        else
                cli_line("chain: '%s' runs as well", s->chain);
}

static void print_agent(const Config *config) {
        int r = hook_socket_check(config->hook.socket);
        if (r == 0)
                cli_line("agent: accepts notes on '%s'", config->hook.socket);
        else
                cli_line("agent: does not accept notes on '%s' (%s); they wait in '%s' until it "
                         "starts",
                         config->hook.socket, strerror(-r), config->hook.mailbox);
}

static void print_dumps(const Config *config) {
        const char *directory = hook_dump_directory(environ);
        if (!directory) {
                cli_line("dumps: switched off in this environment: both "
                         "NEURON_RT_LOCAL_CORE_DUMP_DIRECTORY and NEURON_RT_S3_CORE_DUMP_PREFIX "
                         "are set and empty");
                return;
        }
        const char *source = hook_dump_source(config, directory);
        cli_line("dumps: jobs started from this environment dump to '%s'%s, %s%s%s", directory,
                 strcmp(directory, HOOK_DUMP_DIRECTORY) == 0 ? " (the runtime's default)" : "",
                 source ? "which belongs to source '" : "which belongs to no source: add one",
                 source ? source : "", source ? "'" : "");
}

static json_t *status_json(const HookRequest *q, const HookStatus *s, const Config *config) {
        const char *dumps = hook_dump_directory(environ);
        return json_pack(
                "{s:o, s:s, s:s?, s:b, s:b, s:b, s:o, s:o, s:b, s:o, s:o}", "directory",
                cli_json_string(q->directory), "state", hook_status_word(s), "version",
                s->hook.kind == HOOK_OURS ? s->hook.version : NULL, "current",
                hook_file_is_same(&s->hook, &s->program), "executable", s->hook.is_executable,
                "vendor_kept_aside", s->aside.kind != HOOK_MISSING, "chain",
                cli_json_string(s->chain), "socket", cli_json_string(config->hook.socket),
                "socket_answers", hook_socket_check(config->hook.socket) == 0, "mailbox",
                cli_json_string(config->hook.mailbox), "dump_directory", cli_json_string(dumps));
}

static int status(const Cli *cli, const Arguments *a) {
        _cleanup_(config_freep) Config *config = NULL;
        HookStatus s;
        int code = cli_load_config(cli, false, &config);
        if (code != CLI_YES)
                return code;
        hook_status_read(a->request.directory, a->request.from, &s);
        bool is_ours = s.hook.kind == HOOK_OURS && s.hook.is_executable;
        if (cli->json) {
                code = cli_print_new_json(cli, status_json(&a->request, &s, config));
        } else {
                print_hook(a, &s);
                print_other_files(a, &s);
                print_agent(config);
                print_dumps(config);
        }
        hook_status_done(&s);
        return code != CLI_YES ? code : is_ours ? CLI_YES : CLI_NO;
}

/* ---- what doctor checks ---- */

static void check_ours(const HookCheck *c, const HookStatus *v) {
        if (!v->hook.is_executable)
                c->report(c->doctor, FAILED, "hook", INSTALL,
                          "'%s/" HOOK_NAME "' cannot be executed by every user, so their jobs "
                          "write no core dumps",
                          c->directory);
        else if (v->program.kind == HOOK_OURS && !hook_file_is_same(&v->hook, &v->program))
                c->report(c->doctor, WARNING, "hook", INSTALL,
                          "'%s/" HOOK_NAME "' is ours (%s), but differs from '%s' (%s)",
                          c->directory, v->hook.version, HOOK_PROGRAM, v->program.version);
        else
                c->report(c->doctor, OK, "hook", NULL, "'%s/" HOOK_NAME "' is ours, version %s",
                          c->directory, v->hook.version);
        if (v->chain && (v->chained.kind != HOOK_OTHER || !v->chained.is_executable))
                c->report(c->doctor, FAILED, "hook", INSTALL " --no-chain, or --chain=PATH",
                          "the chained hook '%s' %s", v->chain,
                          v->chained.kind == HOOK_OURS ? "is neuron-collectd's own hook"
                                                       : "cannot be executed by every user");
}

static void check_hook(const HookCheck *c, const HookStatus *v) {
        const char *word = hook_status_word(v);
        if (v->hook.kind == HOOK_OURS)
                check_ours(c, v);
        else if (hook_status_is_replaced(v))
                c->report(c->doctor, FAILED, "hook", INSTALL,
                          "'%s/" HOOK_NAME "' is no longer ours: a package upgrade has replaced "
                          "or removed it",
                          c->directory);
        else if (strcmp(word, "missing") == 0)
                c->report(c->doctor, WARNING, "hook", INSTALL,
                          "'%s/" HOOK_NAME "' does not exist: without it the runtime writes no "
                          "core dumps",
                          c->directory);
        else if (strcmp(word, "unusable") == 0)
                c->report(c->doctor, FAILED, "hook", "move it away, then " INSTALL,
                          "'%s/" HOOK_NAME "' cannot be used%s%s", c->directory,
                          v->error || v->hook.error ? ": " : "",
                          v->error || v->hook.error ? strerror(v->error ? v->error : v->hook.error)
                                                    : "");
        else
                c->report(c->doctor, WARNING, "hook", INSTALL,
                          "'%s/" HOOK_NAME "' is not ours: dumps are only found by watching, "
                          "and nothing is recorded at the moment of failure",
                          c->directory);
}

static void check_socket(const HookCheck *c) {
        const char *path = c->config->hook.socket;
        struct stat st;
        int r = stat(path, &st) < 0 ? -errno : 0;
        if (r == 0 && (st.st_mode & 0222) != 0222)
                c->report(c->doctor, FAILED, "hook socket", "chmod 0666, or restart the agent",
                          "'%s' has mode %04o: jobs of other users cannot send notes", path,
                          (unsigned)st.st_mode & 07777);
        else if (r == 0)
                r = hook_socket_check(path);
        else if (c->has_agent)
                c->report(c->doctor, FAILED, "hook socket", "check the agent's log, and restart it",
                          "'%s' does not exist, although the agent runs", path);
        if (r == 0 && (st.st_mode & 0222) == 0222)
                c->report(c->doctor, OK, "hook socket", NULL, "'%s' accepts notes from every user",
                          path);
        else if (r < 0 && (!c->has_agent || r != -ENOENT))
                c->report(c->doctor, WARNING, "hook socket", "start the agent, or its sockets",
                          "'%s' does not accept notes: %s; they wait in the mailbox", path,
                          strerror(-r));
}

static void check_mailbox(const HookCheck *c) {
        const char *path = c->config->hook.mailbox;
        _cleanup_free_ char *parent = path_parent(path);
        struct stat st, above;
        if (stat(path, &st) < 0) {
                c->report(c->doctor, WARNING, "hook mailbox",
                          "start the agent, which creates it, or run systemd-tmpfiles --create",
                          "'%s' cannot be used: %s; notes are lost while the agent does not run",
                          path, strerror(errno));
                return;
        }
        if (!S_ISDIR(st.st_mode) || (st.st_mode & 07777) != MAILBOX_MODE)
                c->report(c->doctor, FAILED, "hook mailbox", "chmod 1733, or restart the agent",
                          "'%s' has mode %04o, not 1733: %s", path, (unsigned)st.st_mode & 07777,
                          (st.st_mode & 0003) != 0003
                                  ? "jobs cannot leave notes there"
                                  : "users can read or remove each other's notes");
        else if (parent && stat(parent, &above) == 0 && !(above.st_mode & 0001))
                c->report(c->doctor, FAILED, "hook mailbox", "chmod o+x on the parent directory",
                          "jobs cannot reach '%s': '%s' has mode %04o", path, parent,
                          (unsigned)above.st_mode & 07777);
        else
                c->report(c->doctor, OK, "hook mailbox", NULL,
                          "'%s' accepts notes while the agent does not run", path);
}

void hook_check(const HookCheck *c) {
        HookStatus s;
        hook_status_read(c->directory, HOOK_PROGRAM, &s);
        check_hook(c, &s);
        if (s.hook.kind == HOOK_OURS || c->has_agent) {
                check_socket(c);
                check_mailbox(c);
        }
        hook_status_done(&s);
}

/* ---- arguments ---- */

/* Makes a path that was given absolute. @return CLI_YES, CLI_USAGE */
static int set_path(const char *given, char **ret) {
        if (!given)
                return CLI_YES;
        *ret = *given ? fs_absolute_path(given) : NULL;
        return *ret ? CLI_YES : cli_usage("hook", "invalid path '%s'", given);
}

static int parse(int argc, char **argv, Arguments *a, const char **ret_command) {
        HookRequest *q = &a->request;
        const char *from = NULL, *to = NULL, *dumps = NULL, *chain = NULL;
        bool has_chain = false, has_no_chain = false;
        const CliOption options[] = {
                { "from", .value = &from },
                { "to", .value = &to },
                { "dumps", .value = &dumps },
                { "chain", .value = &chain, .is_given = &has_chain },
                { "no-chain", .is_given = &has_no_chain },
                { 0 },
        };
        int code = cli_options(argv[0], argc, argv, options);
        if (code != CLI_YES || (code = set_path(from, &a->program)) != CLI_YES ||
            (code = set_path(to, &a->place)) != CLI_YES ||
            (code = set_path(dumps, &a->dumps)) != CLI_YES ||
            (code = set_path(chain, &a->chain)) != CLI_YES)
                return code;
        if (has_chain && has_no_chain)
                return cli_usage(argv[0], "give either --chain or --no-chain, once");
        *q = (HookRequest){ .directory = to ? a->place : HOOK_DIRECTORY,
                            .from = from ? a->program : HOOK_PROGRAM,
                            .chain = has_chain      ? HOOK_CHAIN_ON
                                     : has_no_chain ? HOOK_CHAIN_OFF
                                                    : HOOK_CHAIN_AS_IS,
                            .chain_path = a->chain };
        a->to = to ? strbuf_format(" --to '%s'", a->place) : strdup("");
        *ret_command = optind < argc ? argv[optind] : "";
        if (argc - optind != 1)
                return cli_usage(argv[0], "requires `install`, `remove` or `status`");
        bool is_install = strcmp(*ret_command, "install") == 0;
        if (q->chain != HOOK_CHAIN_AS_IS && !is_install)
                return cli_usage(argv[0], "--chain and --no-chain are for `install`, not for '%s'",
                                 *ret_command);
        if (a->dumps && !is_install)
                return cli_usage(argv[0], "--dumps is for `install`, not for '%s'", *ret_command);
        return CLI_YES;
}

static int run(const Cli *cli, const Arguments *a, const char *command) {
        if (strcmp(command, "install") == 0)
                return install(cli, a);
        if (strcmp(command, "remove") == 0)
                return do_remove(cli, a);
        if (strcmp(command, "status") == 0)
                return status(cli, a);
        return cli_usage("hook", "requires `install`, `remove` or `status`, not '%s'", command);
}

int cmd_hook(const Cli *cli, int argc, char **argv) {
        Arguments a = { 0 };
        const char *command = "";
        int code = parse(argc, argv, &a, &command);
        if (code == CLI_YES)
                code = run(cli, &a, command);
        free(a.program);
        free(a.place);
        free(a.chain);
        free(a.dumps);
        free(a.to);
        return code;
}
