/* neuron-collect crash: the report of a core file. */
#include <errno.h>
#include <fcntl.h>
#include <string.h>

#include "cli/common/cli.h"
#include "collectors/crash/crash.h"
#include "collectors/crash/origin/roots.h"

#define OURSELVES "/proc/self/exe"

typedef struct Paths {
        const char *core, *exe, *root;
} Paths;

static int parse_args(int argc, char **argv, Paths *ret) {
        static const struct option longs[] = {
                { "exe", required_argument, NULL, 'e' },
                { "root", required_argument, NULL, 'r' },
                { 0 },
        };
        const CliOptions options = { .command = "crash", .letters = ":", .longs = longs };
        int o;
        while ((o = cli_option(&options, argc, argv)) != -1)
                if (o == 'e')
                        ret->exe = optarg;
                else if (o == 'r')
                        ret->root = optarg;
                else
                        return CLI_USAGE;
        return cli_one_argument(argc, argv, "a core file", &ret->core);
}

/* @param path  NULL = none wanted  @return whether it is open, or none was wanted */
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
        if (!cli->json) {
                print_lines(report->text);
                return CLI_YES;
        }
        json_t *json = json_loads(report->json, 0, NULL);
        int code = cli_print_json(cli, json);
        json_decref(json);
        return code;
}

int cmd_crash(const Cli *cli, int argc, char **argv) {
        Paths paths = { 0 };
        int code = parse_args(argc, argv, &paths);
        if (code != CLI_YES)
                return code;
        _cleanup_close_ int core = -1, exe = -1, root = -1, host = -1;
        if (!open_path(paths.core, 0, &core) || !open_path(paths.exe, 0, &exe) ||
            !open_path(paths.root, O_DIRECTORY, &root) || !open_path("/", O_DIRECTORY, &host))
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
                                              .timeout_usec = CRASH_TIMEOUT_USEC },
                             &report);
        if (r != 0)
                cli_error("no crash report of '%s': %s", paths.core,
                          report.fault ? report.fault : strerror(r < 0 ? -r : EIO));
        code = r == 0 ? print_report(cli, &report) : CLI_NO;
        crash_report_done(&report);
        return code;
}
