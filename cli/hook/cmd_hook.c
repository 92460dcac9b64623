/* neuron-collect hook install, remove, status: our neuron-dump in the place of the runtime's.
 *
 * The file that ours replaces is kept beside it as neuron-dump.vendor, in the place of what was
 * kept before; remove gives it its name back. Both work under a lock of the directory, and ours
 * gets its name when it is complete and the other has its second one, so that there is a hook at
 * every moment: to run a command again completes what a kill -9 interrupted. The symlink
 * neuron-dump.chain is the operator's; remove takes it away when it led to what was kept aside. */
#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "cli/common/cli.h"
#include "cli/hook/hook_check.h"
#include "cli/hook/hook_file.h"
#include "lib/base/cleanup.h"
#include "lib/base/fs.h"
#include "lib/base/strbuf.h"

#define NEW_NAME ".neuron-dump.new" /* ours until it is complete */
#define DUMPS_MODE 01777

typedef struct Arguments {
        const char *directory; /* where the runtime looks */
        const char *from;      /* our program */
        char *program, *place; /* the same, made absolute; NULL = not given */
        char *dumps;           /* a directory to create for all users' dumps; NULL */
        char *to; /* the option, for commands that are suggested; "" = the default place */
} Arguments;

typedef enum HookOutcome {
        HOOK_PLACED,           /* ours */
        HOOK_PLACED_FOR_OTHER, /* and what was there is kept aside */
        HOOK_RESTORED,         /* the hook that was aside */
        HOOK_REMOVED,          /* ours, and there was nothing to restore */
        HOOK_STAYS,            /* it is not ours */
        HOOK_NOTHING,          /* to remove or restore */
} HookOutcome;

static int report(const Arguments *a, const char *name, const char *what, int error) {
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
        return cli_error("'%s/%s' cannot be %s: %s%s", a->directory, name, what, strerror(error),
                         remedy);
}

/* @return an fd of the directory, locked against other installations if its file system has locks;
 * -1 after it was reported */
static int open_directory(const char *directory) {
        int fd = open(directory, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
        if (fd >= 0) {
                (void)flock(fd, LOCK_EX); /* without a lock only two at once are not safe */
                return fd;
        }
        if (errno == ENOENT)
                cli_error("'%s' does not exist; install aws-neuronx-tools first, create the "
                          "directory (mkdir -p), or give another one with --to",
                          directory);
        else
                cli_error("'%s' cannot be opened: %s%s", directory, strerror(errno),
                          errno == EACCES && geteuid() != 0 ? "; run it as root" : "");
        return -1;
}

/* ---- install ---- */

/* Reads our program. @return CLI_YES, CLI_NO */
static int read_program(const Arguments *a, char **ret, size_t *ret_n) {
        HookFile f;
        hook_file_inspect(AT_FDCWD, a->from, &f);
        if (f.kind == HOOK_OTHER)
                return cli_error("'%s' is not neuron-collectd's neuron-dump; to run a hook of your "
                                 "own as well, let '%s/" HOOK_CHAIN "' lead to it",
                                 a->from, a->directory);
        _cleanup_close_ int fd = open(a->from, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
        int r = f.kind == HOOK_OURS ? fd < 0 ? -errno : fs_read_head(fd, HOOK_FILE_MAX, ret, ret_n)
                                    : -f.error;
        if (r < 0)
                return cli_error("'%s' cannot be read: %s; install all of neuron-collectd, or give "
                                 "its neuron-dump with --from",
                                 a->from, strerror(-r));
        return CLI_YES;
}

/* A copy that was cut short by a crash is overwritten. @return 0, -errno */
static int write_new(int dir_fd, const char *data, size_t n) {
        (void)unlinkat(dir_fd, NEW_NAME, 0);
        _cleanup_close_ int fd =
                openat(dir_fd, NEW_NAME, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
        int r = fd < 0 ? -errno : fs_write_all(fd, data, n);
        if (r == 0 && (fchmod(fd, 0755) < 0 || fsync(fd) < 0))
                r = -errno;
        return r;
}

/* Gives the present hook a second name, so that there is a hook at every moment until ours replaces
 * it. On a file system without hard links it is renamed, and there is none for a moment. A hook
 * that was kept aside before is deleted. @return 0, -errno */
static int keep_aside(int dir_fd) {
        if (unlinkat(dir_fd, HOOK_ASIDE, 0) < 0 && errno != ENOENT)
                return -errno;
        if (linkat(dir_fd, HOOK_NAME, dir_fd, HOOK_ASIDE, 0) < 0 &&
            renameat(dir_fd, HOOK_NAME, dir_fd, HOOK_ASIDE) < 0)
                return -errno;
        return 0;
}

static int place(const Arguments *a, int dir_fd, HookOutcome *ret) {
        _cleanup_free_ char *data = NULL;
        HookFile now;
        size_t n = 0;
        int code = read_program(a, &data, &n);
        if (code != CLI_YES)
                return code;
        hook_file_inspect(dir_fd, HOOK_NAME, &now);
        if (now.kind == HOOK_UNUSABLE)
                return cli_error("'%s/" HOOK_NAME "' cannot be used: %s; move it away, then try "
                                 "again",
                                 a->directory, strerror(now.error));
        int r = write_new(dir_fd, data, n);
        if (r == 0 && now.kind == HOOK_OTHER)
                r = keep_aside(dir_fd);
        if (r == 0 && renameat(dir_fd, NEW_NAME, dir_fd, HOOK_NAME) < 0)
                r = -errno;
        if (r == 0)
                r = fs_sync_dir(dir_fd);
        if (r < 0) {
                (void)unlinkat(dir_fd, NEW_NAME, 0); /* on error the next run overwrites it */
                return report(a, HOOK_NAME, "replaced", -r);
        }
        *ret = now.kind == HOOK_OTHER ? HOOK_PLACED_FOR_OTHER : HOOK_PLACED;
        return CLI_YES;
}

/* Creates a directory where every user's job may write, and remove only its own files: the agent
 * requires that of a shared source. On a node without a shell nothing else can create it. */
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
                        "chown %u '%s'",
                        path, (unsigned)st.st_uid, (unsigned)geteuid(), path);
        if (r == 0 && (st.st_mode & 07777) != DUMPS_MODE && fchmod(fd, DUMPS_MODE) < 0)
                r = -errno;
        if (r == 0)
                return CLI_YES;
        return cli_error(
                "'%s' cannot be a directory for all users' dumps: %s; create it as root, with "
                "mode 1777",
                path, strerror(-r));
}

/* ---- remove ---- */

/* An installation that was killed may have left another hook under both names: then the second name
 * is removed. @return whether it was */
static bool is_aside_too(const HookFile *now, const HookFile *aside) {
        return now->kind == HOOK_OTHER && aside->kind == HOOK_OTHER && now->dev == aside->dev &&
               now->ino == aside->ino;
}

static int restore(const Arguments *a, int dir_fd, HookOutcome *ret) {
        HookFile now, aside;
        hook_file_inspect(dir_fd, HOOK_NAME, &now);
        hook_file_inspect(dir_fd, HOOK_ASIDE, &aside);
        *ret = HOOK_RESTORED;
        if (is_aside_too(&now, &aside)) {
                if (unlinkat(dir_fd, HOOK_ASIDE, 0) < 0)
                        return report(a, HOOK_ASIDE, "removed", errno);
        } else if (now.kind != HOOK_OURS && now.kind != HOOK_MISSING) {
                *ret = HOOK_STAYS;
        } else if (aside.kind != HOOK_MISSING) {
                if (renameat(dir_fd, HOOK_ASIDE, dir_fd, HOOK_NAME) < 0)
                        return report(a, HOOK_NAME, "restored", errno);
        } else if (now.kind == HOOK_OURS) {
                if (unlinkat(dir_fd, HOOK_NAME, 0) < 0)
                        return report(a, HOOK_NAME, "removed", errno);
                *ret = HOOK_REMOVED;
        } else
                *ret = HOOK_NOTHING;
        return CLI_YES;
}

/* The chain to the hook that was kept aside leads to nothing now. */
static void remove_chain(int dir_fd) {
        char target[sizeof HOOK_ASIDE + 1];
        ssize_t n = readlinkat(dir_fd, HOOK_CHAIN, target, sizeof target);
        if (n == (ssize_t)strlen(HOOK_ASIDE) && memcmp(target, HOOK_ASIDE, (size_t)n) == 0 &&
            faccessat(dir_fd, HOOK_ASIDE, F_OK, AT_SYMLINK_NOFOLLOW) < 0)
                (void)unlinkat(dir_fd, HOOK_CHAIN, 0); /* it does no harm */
}

static int take_away(const Arguments *a, int dir_fd, HookOutcome *ret) {
        int code = restore(a, dir_fd, ret);
        remove_chain(dir_fd);
        (void)unlinkat(dir_fd, NEW_NAME, 0); /* a killed installation may have left it */
        int r = fs_sync_dir(dir_fd);
        return code == CLI_YES && r < 0 ? report(a, HOOK_NAME, "made durable", -r) : code;
}

/* ---- what was done ---- */

static void print_outcome(const Arguments *a, HookOutcome outcome) {
        const char *d = a->directory;
        switch (outcome) {
        case HOOK_PLACED:
        case HOOK_PLACED_FOR_OTHER:
                cli_line("'%s/" HOOK_NAME "' is now neuron-collectd's", d);
                if (outcome == HOOK_PLACED_FOR_OTHER)
                        cli_line("the previous hook is kept as '" HOOK_ASIDE
                                 "' and no longer runs; `neuron-collect hook remove%s` restores it",
                                 a->to);
                if (!a->place)
                        cli_line("an upgrade of aws-neuronx-tools replaces it: run this command "
                                 "again after each");
                break;
        case HOOK_RESTORED:
                cli_line("'%s/" HOOK_NAME "' is the previous hook again", d);
                break;
        case HOOK_REMOVED:
                cli_line("'%s/" HOOK_NAME "' is removed; there was no previous hook, and without "
                         "one the runtime writes no core dumps",
                         d);
                break;
        case HOOK_STAYS:
                cli_line("'%s/" HOOK_NAME "' is not neuron-collectd's and stays as it is", d);
                break;
        case HOOK_NOTHING:
                cli_line("'%s' has no hook of neuron-collectd", d);
                break;
        }
}

static int print_json(const Cli *cli, const Arguments *a, HookOutcome outcome) {
        static const char *const words[] = {
                [HOOK_PLACED] = "placed",     [HOOK_PLACED_FOR_OTHER] = "placed-other-kept",
                [HOOK_RESTORED] = "restored", [HOOK_REMOVED] = "removed",
                [HOOK_STAYS] = "stays",       [HOOK_NOTHING] = "nothing",
        };
        return cli_print_new_json(cli, json_pack("{s:o, s:s}", "directory",
                                                 cli_json_string(a->directory), "outcome",
                                                 words[outcome]));
}

static int change(const Cli *cli, const Arguments *a,
                  int (*act)(const Arguments *a, int dir_fd, HookOutcome *ret)) {
        HookOutcome outcome = HOOK_NOTHING;
        int code = a->dumps ? share_directory(a->dumps) : CLI_YES;
        if (code != CLI_YES)
                return code;
        _cleanup_close_ int dir_fd = open_directory(a->directory);
        if (dir_fd < 0 || (code = act(a, dir_fd, &outcome)) != CLI_YES)
                return CLI_NO;
        if (cli->json)
                return print_json(cli, a, outcome);
        print_outcome(a, outcome);
        return CLI_YES;
}

/* ---- status ---- */

static const char *state_word(const HookStatus *s) {
        static const char *const words[] = {
                [HOOK_MISSING] = "missing",
                [HOOK_OURS] = "ours",
                [HOOK_OTHER] = "other",
                [HOOK_UNUSABLE] = "unusable",
        };
        return words[s->hook.kind];
}

static void print_ours(const Arguments *a, const HookStatus *s) {
        cli_line("hook: '%s/" HOOK_NAME "' is neuron-collectd's, version %s", a->directory,
                 s->hook.version);
        if (hook_status_is_outdated(s))
                cli_line("this program has version %s; `neuron-collect hook install%s` updates it",
                         s->program.version, a->to);
        if (!s->hook.is_executable)
                cli_line("it cannot be executed by every user, so their jobs write no core dumps; "
                         "`neuron-collect hook install%s` fixes that",
                         a->to);
}

static void print_hook(const Arguments *a, const HookStatus *s) {
        const char *d = a->directory;
        if (s->hook.kind == HOOK_OURS)
                print_ours(a, s);
        else if (s->hook.kind == HOOK_MISSING)
                cli_line("hook: '%s/" HOOK_NAME "' does not exist, so the runtime writes no core "
                         "dumps; run `neuron-collect hook install%s`",
                         d, a->to);
        else if (s->hook.kind == HOOK_UNUSABLE)
                cli_line("hook: '%s/" HOOK_NAME "' cannot be used: %s; move it away, then run "
                         "`neuron-collect hook install%s`",
                         d, strerror(s->hook.error), a->to);
        else
                cli_line("hook: '%s/" HOOK_NAME "' is %s; `neuron-collect hook install%s` keeps it "
                         "aside and installs ours",
                         d,
                         hook_status_is_replaced(s)
                                 ? "no longer neuron-collectd's, probably after a package upgrade"
                                 : "the vendor's or another one",
                         a->to);
}

static void print_other_files(const HookStatus *s) {
        const char *fault = hook_status_chain_fault(s);
        if (s->aside.kind != HOOK_MISSING)
                cli_line("previous: kept as '" HOOK_ASIDE "'");
        if (!s->chain)
                cli_line("chain: off, no other hook runs");
        else if (fault)
                cli_line("chain: to '%s', which %s; remove '" HOOK_CHAIN "', or let it lead to "
                         "another program",
                         s->chain, fault);
        else
                cli_line("chain: '%s' runs as well", s->chain);
}

static json_t *status_json(const Arguments *a, const HookStatus *s) {
        return json_pack("{s:o, s:s, s:s?, s:b, s:b, s:b, s:o}", "directory",
                         cli_json_string(a->directory), "state", state_word(s), "version",
                         s->hook.kind == HOOK_OURS ? s->hook.version : NULL, "current",
                         s->hook.kind == HOOK_OURS && !hook_status_is_outdated(s), "executable",
                         s->hook.is_executable, "vendor_kept_aside", s->aside.kind != HOOK_MISSING,
                         "chain", cli_json_string(s->chain));
}

static int status(const Cli *cli, const Arguments *a) {
        HookStatus s;
        int code = CLI_YES;
        hook_status_read(a->directory, a->from, &s);
        bool is_ours = s.hook.kind == HOOK_OURS && s.hook.is_executable;
        if (cli->json) {
                code = cli_print_new_json(cli, status_json(a, &s));
        } else {
                print_hook(a, &s);
                print_other_files(&s);
        }
        hook_status_done(&s);
        return code != CLI_YES ? code : is_ours ? CLI_YES : CLI_NO;
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
        const char *from = NULL, *to = NULL, *dumps = NULL;
        const CliOption options[] = { { "from", .value = &from },
                                      { "to", .value = &to },
                                      { "dumps", .value = &dumps },
                                      { 0 } };
        int code = cli_options(argv[0], argc, argv, options);
        if (code != CLI_YES || (code = set_path(from, &a->program)) != CLI_YES ||
            (code = set_path(to, &a->place)) != CLI_YES ||
            (code = set_path(dumps, &a->dumps)) != CLI_YES)
                return code;
        a->directory = to ? a->place : HOOK_DIRECTORY;
        a->from = from ? a->program : HOOK_PROGRAM;
        a->to = to ? strbuf_format(" --to '%s'", a->place) : strdup("");
        *ret_command = optind < argc ? argv[optind] : "";
        if (argc - optind != 1)
                return cli_usage(argv[0], "requires `install`, `remove` or `status`");
        if (a->dumps && strcmp(*ret_command, "install") != 0)
                return cli_usage(argv[0], "--dumps is for `install`, not for '%s'", *ret_command);
        return CLI_YES;
}

static int run(const Cli *cli, const Arguments *a, const char *command) {
        if (strcmp(command, "install") == 0)
                return change(cli, a, place);
        if (strcmp(command, "remove") == 0)
                return change(cli, a, take_away);
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
        free(a.dumps);
        free(a.to);
        return code;
}
