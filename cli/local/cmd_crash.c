/* neuron-collect crash: prints the crash report of a core, which may be a file, stdin or an object
 * in a bucket. A second process loads the object, since the report reads a pipe. Reading the core
 * is left to collectors/crash, which does it in a child. */
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/wait.h>

#include "cli/archive/object_store.h"
#include "cli/common/cli.h"
#include "collectors/crash/crash.h"
#include "collectors/crash/origin/roots.h"
#include "lib/base/fs.h"

#define OURSELVES "/proc/self/exe"
#define STREAM_TIMEOUT_USEC (3600 * USEC_PER_SEC) /* a large object, a slow network */
#define STEP_BYTES ((size_t)256 << 10)

typedef struct Paths {
        const char *core, *exe, *root;
        S3Options s3;
} Paths;

static int parse_args(int argc, char **argv, Paths *ret) {
        const CliOption options[] = { { "exe", .value = &ret->exe },
                                      { "root", .value = &ret->root },
                                      S3_OPTION_ROWS(&ret->s3),
                                      { 0 } };
        int code = cli_options(argv[0], argc, argv, options);
        return code == CLI_YES ? cli_one_argument(argc, argv, "a core file", &ret->core) : code;
}

/* ---- an object in a bucket ---- */

static int copy_object(ObjectStore *store, const char *key, int fd) {
        _cleanup_(object_reader_freep) ByteSource *reader = NULL;
        _cleanup_free_ char *step = malloc(STEP_BYTES);
        uint64_t bytes, at = 0;
        int r = step ? object_store_stat(store, key, &bytes) : -ENOMEM;
        if (r == 0)
                r = object_store_reader(
                        store, &(ObjectRange){ .key = key, .bytes = bytes, .object_bytes = bytes },
                        &reader);
        for (size_t n; r == 0 && at < bytes; at += n) {
                n = MIN(STEP_BYTES, bytes - at);
                r = reader->read_at(reader, step, n, at);
                if (r == 0)
                        r = fs_write_all(fd, step, n);
        }
        return r == -EPIPE ? 0 : r; /* the report needs no more of it */
}

static int send_object(const Cli *cli, const Paths *paths, int fd) {
        ObjectUrl url;
        _cleanup_(object_store_freep) ObjectStore *store = NULL;
        int code = object_url_parse("crash", paths->core, &url);
        if (code != CLI_YES)
                return code;
        code = object_store_open(&store, cli, &url, &paths->s3);
        if (code == CLI_YES) {
                int r = copy_object(store, url.key, fd);
                code = r == 0 ? CLI_YES : object_store_report(store, r);
        }
        object_url_done(&url);
        return code;
}

/* Starts a process that loads the object. @return the pipe to read it from, -errno */
static int start_loading(const Cli *cli, const Paths *paths, pid_t *ret) {
        int ends[2];
        if (pipe2(ends, O_CLOEXEC) < 0)
                return -errno;
        _cleanup_close_ int read_end = ends[0], write_end = ends[1];
        pid_t pid = fork();
        if (pid < 0)
                return -errno;
        if (pid == 0) {
                (void)close(TAKE_FD(read_end));
                _exit(send_object(cli, paths, write_end));
        }
        *ret = pid;
        return TAKE_FD(read_end);
}

/* @return CLI_YES; the exit code of the process, which has reported why */
static int end_loading(pid_t pid) {
        int status;
        while (waitpid(pid, &status, 0) < 0)
                if (errno != EINTR)
                        return CLI_NO;
        return WIFEXITED(status) ? WEXITSTATUS(status) : CLI_YES;
}

/* ---- the report ---- */

/* @param path  NULL: not given  @return whether it is open, or was not given */
static bool open_path(const char *path, int flags, int *ret) {
        if (!path)
                return true;
        *ret = open(path, flags | O_RDONLY | O_CLOEXEC | O_NONBLOCK);
        if (*ret < 0)
                cli_error("cannot open '%s': %s", path, strerror(errno));
        return *ret >= 0;
}

static void print_lines(char *text) {
        char *rest = text;
        for (char *line; rest && *rest && (line = strsep(&rest, "\n"));)
                cli_line("%s", line);
}

static int print_report(const Cli *cli, CrashReport *report) {
        if (cli->json)
                return cli_print_new_json(cli, json_loads(report->json, 0, NULL));
        print_lines(report->text);
        return CLI_YES;
}

static bool open_core(const Cli *cli, const Paths *paths, int *ret, pid_t *ret_loader) {
        if (strcmp(paths->core, "-") == 0)
                *ret = fcntl(STDIN_FILENO, F_DUPFD_CLOEXEC, 3);
        else if (strstr(paths->core, "://"))
                *ret = start_loading(cli, paths, ret_loader);
        else
                *ret = open(paths->core, O_RDONLY | O_CLOEXEC);
        if (*ret < 0)
                cli_error("cannot open '%s': %s", paths->core, strerror(errno));
        return *ret >= 0;
}

int cmd_crash(const Cli *cli, int argc, char **argv) {
        Paths paths = { 0 };
        int code = parse_args(argc, argv, &paths);
        if (code != CLI_YES)
                return code;
        _cleanup_close_ int core = -1, exe = -1, root = -1, host = -1;
        pid_t loader = 0;
        if (!open_path(paths.exe, 0, &exe) || !open_path(paths.root, O_DIRECTORY, &root) ||
            !open_path("/", O_DIRECTORY, &host) || !open_core(cli, &paths, &core, &loader))
                return CLI_NO;
        _cleanup_(roots_done) Roots roots = { .n = 0 };
        roots_add(&roots, TAKE_FD(exe), FILE_ROOT_PROGRAM, "--exe");
        roots_add(&roots, TAKE_FD(root), FILE_ROOT_OWN, "--root");
        roots_add(&roots, fcntl(host, F_DUPFD_CLOEXEC, 0), FILE_ROOT_HOST, "host");
        roots_add_layers(&roots, host);
        CrashReport report;
        int r = crash_report(&(CrashRequest){ .program = OURSELVES,
                                              .core_name = paths.core,
                                              .core_fd = core,
                                              .roots = roots.items,
                                              .n_roots = roots.n,
                                              .timeout_usec = CRASH_TIMEOUT_USEC,
                                              .stream_timeout_usec = STREAM_TIMEOUT_USEC },
                             &report);
        (void)close(TAKE_FD(core));
        code = loader > 0 ? end_loading(loader) : CLI_YES;
        if (r == 0)
                code = MAX(code, print_report(cli, &report));
        else if (code == CLI_YES) {
                cli_error("no crash report of '%s': %s", paths.core,
                          report.fault ? report.fault : strerror(r < 0 ? -r : EIO));
                code = CLI_NO;
        }
        crash_report_done(&report);
        return code;
}
