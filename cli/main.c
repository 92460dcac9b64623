/* neuron-collect: the table of commands with their help, the options that all of them share, and
 * the search for the agent's socket. Each command is a file of its own. */
#include <string.h>

#include "cli/common/cli.h"
#include "cli/hook/hook_check.h"
#include "cli/hook/hook_file.h"
#include "collectors/crash/crash.h"
#include "config/config.h"

#define DEFAULT_FILE NC_SYSCONFDIR "/neuron-collectd/neuron-collectd.yaml"

/* clang-format off */
#define S3_HELP \
        "  --endpoint-url URL  the S3 server, when it is not AWS\n" \
        "  --region NAME       of the bucket\n" \
        "  --profile NAME      of the shared AWS configuration\n" \
        "  --ca-bundle FILE    certificates to trust instead of the system's\n" \
        "By default they are those of the configured destination with this bucket, else the environment's.\n"

static const CliCommand commands[] = {
        { "status", "", "how the agent, its sources and destinations are doing",
          NULL, CLI_NEEDS_AGENT, cmd_status },
        { "list", "[--state S] [--source N]", "one line a bundle, oldest first",
          "  --state S    only those that are settling, ready, shipping, delivered, quarantined,\n"
          "               evicted, cancelled or vanished\n"
          "  --source N   only those of this source, by its name in the configuration\n", CLI_NEEDS_AGENT, cmd_list },
        { "show", "ID", "everything known of a bundle",
          NULL, CLI_NEEDS_AGENT, cmd_bundle },
        { "explain", "ID", "why a bundle is where it is, and what happens next",
          NULL, CLI_NEEDS_AGENT, cmd_bundle },
        { "wait", "[ID | --all] [--timeout T]", "wait until delivered (exit 0) or given up (exit 1)",
          "  --all        for everything the agent knows and finds (the default without ID); exit 1 also when\n"
          "               a source cannot be read, or a bundle is discarded meanwhile to free space\n"
          "  --timeout T  at most this long, such as 30s or 10m; then prints what is undelivered (exit 1)\n",
          CLI_NEEDS_AGENT, cmd_wait },
        { "retry", "ID", "try a bundle again now, out of quarantine too",
          NULL, CLI_NEEDS_AGENT, cmd_bundle },
        { "cancel", "ID [--yes]", "stop working on a bundle; keep its source",
          "It cannot be undone: to deliver the files after all, copy them to another name in the source. If an\n"
          "upload has perhaps ended at a destination already, the agent writes the manifest there first.\n\n"
          "  -y, --yes    do not ask for a confirmation (only a terminal is asked)\n", CLI_NEEDS_AGENT, cmd_bundle },
        { "pin", "ID", "mark a bundle, so that retention keeps its source",
          NULL, CLI_NEEDS_AGENT, cmd_bundle },
        { "unpin", "ID", "undo pin",
          NULL, CLI_NEEDS_AGENT, cmd_bundle },
        { "redeliver", "[--destination D] [--since T]", "ship delivered bundles to destinations added since",
          "For each bundle whose files are still at the source, or held by links of the agent. A bundle whose\n"
          "files are gone stays as it is, and `explain` says so. One that waits for a destination that is no\n"
          "longer configured goes to those that its source has now.\n\n"
          "  --destination D  only to this one (default: to all that their source has)\n"
          "  --since T        only bundles first seen in the last T, such as 12h or 7d\n",
          CLI_NEEDS_AGENT, cmd_redeliver },
        { "flush", "", "scan now, and do not wait for `settle`",
          "Files that a process has open for writing, and a hook that is at work, are still waited for.\n", CLI_NEEDS_AGENT, cmd_agent },
        { "scan", "", "scan now; new files still wait for `settle`", NULL, CLI_NEEDS_AGENT,
          cmd_agent },
        { "snapshot", "[-o DIR]", "a hardware snapshot now",
          "Waits for it, and prints its place and a line for each section: complete, timeout, cut,\n"
          "failed or skipped. With --json: the document itself.\n\n"
          "  -o, --output DIR  copy snapshot.json and the raw files there; by default they stay in the agent's\n"
          "                    state directory, where only root and the agent's user can read them\n",
          CLI_NEEDS_AGENT, cmd_snapshot },
        { "drain", "[--timeout T]", "ship the rest, accept nothing new; safe to terminate?",
          "Waits until nothing remains that only this node has, prints `safe to terminate`\n"
          "and exits with 0. On timeout, when a source cannot be read, or when only bundles remain that cannot\n"
          "be delivered (given up, or their source or destination is no longer configured), prints what is\n"
          "not safe, a line a bundle, and exits with 1. The agent continues to drain in any case, until\n"
          "`neuron-collect resume` or a restart.\n\n"
          "  --timeout T  at most this long, such as 30s or 10m (default: no limit)\n",
          CLI_NEEDS_AGENT, cmd_drain },
        { "resume", "", "undo drain: accept new bundles again", NULL, CLI_NEEDS_AGENT, cmd_agent },
        { "ls", "URL", "the bundles below s3://bucket[/prefix] or a directory",
          "By incident, a line a bundle: time (UTC), node, kind, size, whether it is complete, and where it is.\n"
          "An object that has no manifest (yet) is not delivered.\n\n" S3_HELP, CLI_READS_CONFIG, cmd_ls },
        { "report", "URL [--html OUT] [--trust-uid U]", "ranks of a failure: who is missing, who failed first",
          "URL is s3://bucket/prefix or a directory: a destination, an incident's directory, or one of\n"
          "…/.incidents/KEY[/N]. Without N: the newest failure of a key; of several keys a line each.\n"
          "Reads what the nodes wrote there; needs no agent. Exit: 0 none is known to be missing,\n"
          "1 some are missing or not listed, 3 something cannot be read.\n\n"
          "  --html OUT          write a page instead of the table\n"
          "  --trust-uid U       agents run as these users, too: on a volume, files of users that are not\n"
          "                      known as agents' are left out and named; numbers or names, U[,U…]\n" S3_HELP, CLI_READS_CONFIG, cmd_report },
        { "get", "URL [--member PATH] [-o OUT]", "fetch a bundle, or one file out of it, verified",
          "URL is s3://bucket/key or a path: the bundle, its manifest, or what both begin with.\n"
          "Data is kept in OUT.partial until it is complete and verified; the same command resumes\n"
          "there. The manifest is written beside the bundle.\n\n"
          "  --member PATH       only this file, by its path in the manifest\n"
          "  -o, --output OUT    a file, a directory, or - for stdout (default: the current directory)\n"
          "  --force             replace what has the name already\n" S3_HELP, CLI_READS_CONFIG, cmd_get },
        { "verify", "URL", "re-hash a bundle against its manifest",
          "URL is s3://bucket/key or a path: the bundle (.tar.zst), its manifest (.manifest.json), or what both\n"
          "begin with, side by side. Needs no agent: works on any machine that can read the volume or the\n"
          "bucket.\n\n" S3_HELP,
          CLI_READS_CONFIG, cmd_verify },
        { "estimate", "", "what sources would collect now, how big, under which keys",
          "Reads the configuration and the sources, without an agent: counts all files there, delivered or\n"
          "not. Run it as the agent's user or as root, who can read what the agent can.\n",
          CLI_READS_CONFIG, cmd_estimate },
        { "doctor", "[--destination NAME]", "check every part, and report remedies",
          "A line each: `ok`, `warning` or `FAILED`; exit 1 when something failed, 2 when the configuration has\n"
          "faults. To each destination a small probe is written and removed again. What is found is what the\n"
          "caller may do and which credentials the caller finds: the agent's may be others.\n\n"
          "  --destination NAME  only this one\n"
          "  --hook-directory D  the directory of the runtime's hook (default: " HOOK_DIRECTORY ")\n", CLI_READS_CONFIG, cmd_doctor },
        { "hook", "install | remove | status", "our neuron-dump in the place of the runtime's hook",
          "  install      install our hook, and keep the present one as " HOOK_ASIDE "\n"
          "  remove       restore the previous hook\n"
          "  status       whose hook is installed, and what else it runs (exit 0: ours)\n\n"
          "  --to DIR     the directory (default: " HOOK_DIRECTORY ")\n"
          "  --from FILE  our program (default: " HOOK_PROGRAM ")\n"
          "  --dumps DIR  for install: also create DIR, where every user's job may write (mode 1777)\n", CLI_READS_CONFIG, cmd_hook },
        { "crash", "FILE [--exe PATH] [--root DIR]", "why a process died, from its core",
          "Reads a core: signal, registers, the call chains of all threads, Python's stacks. Needs no agent and no\n"
          "debugger. A program or library is used when its build id is the one in the core. FILE may also be\n"
          "s3://bucket/key, - for stdin, and compressed by zstd; Python's stacks are then left out, but for a\n"
          "file that is not compressed.\n\n"
          "  --exe PATH   the program that crashed, if it is no longer where it was\n"
          "  --root DIR   of its container, such as /proc/PID/root of a process that still runs there:\n"
          "               where its libraries are searched before this node's\n" S3_HELP, CLI_READS_CONFIG, cmd_crash },
        { "config", "check | show", "as neuron-collectd --check and --print-config",
          "  check        name every fault of the configuration (exit 0 or 2)\n"
          "  show         the effective configuration, with the origin of each line\n", CLI_READS_CONFIG, cmd_config },
        { "key", "new [FILE]", "a key for agreement.key_file",
          "Writes a line `id:64 hex` into a new FILE of mode 0600, or to stdout. All nodes of a cluster need the\n"
          "same file. To change the key without a gap: add the new line at the end of all files, then move it to\n"
          "the top of all, since the first one signs, then remove the old one.\n", CLI_READS_CONFIG, cmd_key },
};

#define HELP_SOCKET "  --socket PATH   the agent's API socket (default: api.socket of the configuration)\n"
#define HELP_CONFIG "  --config FILE   configuration (default: " DEFAULT_FILE ")\n"
#define HELP_JSON   "  --json          for scripts: JSON instead of text\n"
#define EXITS "Exit: 0 yes or done, 1 no or failed, 2 usage or configuration, 3 agent not reachable.\n"
/* clang-format on */

static int help(void) {
        fputs("neuron-collect [--socket PATH] [--config FILE] [--json] COMMAND\n\n"
              "Queries and operates the neuron-collectd of this node.\n\n",
              stdout);
        for (size_t i = 0; i < ELEMENTSOF(commands); i++)
                printf("  %-9s %-29s %s\n", commands[i].name, commands[i].arguments,
                       commands[i].help);
        fputs("\n" HELP_SOCKET HELP_CONFIG HELP_JSON "  --version       print the version\n"
              "  --help          print this; after a command: that command's\n\n" EXITS
              "See neuron-collect(1), neuron-collectd(8), neuron-collectd.yaml(5).\n",
              stdout);
        return CLI_YES;
}

static int help_command(const CliCommand *c) {
        printf("neuron-collect [OPTIONS] %s%s%s\n\n%s\n\n", c->name, *c->arguments ? " " : "",
               c->arguments, c->help);
        if (c->details)
                printf("%s\n", c->details);
        if (c->needs == CLI_NEEDS_AGENT || c->run == cmd_doctor)
                fputs(HELP_SOCKET, stdout);
        fputs(HELP_CONFIG HELP_JSON "\n" EXITS, stdout);
        return CLI_YES;
}

static const CliCommand *find_command(const char *name) {
        for (size_t i = 0; i < ELEMENTSOF(commands); i++)
                if (strcmp(commands[i].name, name) == 0)
                        return &commands[i];
        return NULL;
}

typedef struct CliArgs {
        Cli cli;
        bool help;
} CliArgs;

/* Reads one of neuron-collect's own options, which may come before or behind the command.
 * @return the number of arguments that it took; 0: it is not one of them */
static int parse_global(CliArgs *a, int argc, char **argv, int i) {
        static const char *const valued[] = { "--socket", "--config" };
        const char **to[] = { &a->cli.socket, &a->cli.config_file };
        if (strcmp(argv[i], "--json") == 0)
                return a->cli.json = true;
        if (strcmp(argv[i], "--help") == 0 || strcmp(argv[i], "-h") == 0)
                return a->help = true;
        for (size_t k = 0; k < ELEMENTSOF(valued); k++) {
                size_t n = strlen(valued[k]);
                bool is_joined = strncmp(argv[i], valued[k], n) == 0 && argv[i][n] == '=';
                if (!is_joined && (strcmp(argv[i], valued[k]) != 0 || i + 1 >= argc))
                        continue;
                *to[k] = is_joined ? argv[i] + n + 1 : argv[i + 1];
                a->cli.config_given = a->cli.config_given || k == 1;
                return is_joined ? 1 : 2;
        }
        return 0;
}

/* Removes neuron-collect's own options. @return the number of arguments that remain */
static int parse_globals(CliArgs *a, int argc, char **argv) {
        int kept = 1;
        for (int i = 1; i < argc;) {
                if (strcmp(argv[i], "--") == 0) {
                        while (i < argc)
                                argv[kept++] = argv[i++];
                        break;
                }
                int n = parse_global(a, argc, argv, i);
                if (n == 0)
                        argv[kept++] = argv[i++];
                else
                        i += n;
        }
        argv[kept] = NULL;
        return kept;
}

/* Reads the options before the command that parse_globals() has left.
 * @return -1: continue with the command; else the exit code */
static int parse_args(const CliArgs *a, int argc, char **argv) {
        bool is_version = false, is_json = false;
        const char *value = NULL;
        const CliOption options[] = { { "socket", .value = &value },
                                      { "config", .value = &value },
                                      { "json", .is_given = &is_json },
                                      { "version", .is_given = &is_version },
                                      { 0 } };
        int code = cli_options(NULL, argc, argv, options);
        if (code != CLI_YES)
                return code;
        if (is_version) {
                puts("neuron-collect " PACKAGE_VERSION);
                return CLI_YES;
        }
        if (value || is_json) /* abbreviated, so parse_global() did not know it */
                return cli_usage(NULL, "unknown option '%s'", argv[1]);
        if (optind < argc)
                return -1;
        return a->help ? help() : cli_usage(NULL, "no command given");
}

/* Finds the agent's socket in the configuration. When the default file is faulty or missing, the
 * default socket is used: the agent may be running with the configuration that it read before.
 * @return CLI_YES and *ret, the caller's; CLI_USAGE */
static int find_socket(const Cli *cli, char **ret) {
        _cleanup_(config_freep) Config *config = NULL;
        int code = cli_load_config(cli, !cli->config_given, &config);
        if (code != CLI_YES && cli->config_given) {
                cli_error("cannot read the agent's socket from '%s'; fix it, or give the socket "
                          "with --socket",
                          cli->config_file);
                return code;
        }
        if (code != CLI_YES) {
                if (access(cli->config_file, F_OK) == 0)
                        cli_error("cannot read '%s': using the default socket; `neuron-collect "
                                  "config check` reports its errors",
                                  cli->config_file);
                if (config_defaults(&config) < 0)
                        return CLI_USAGE;
        }
        *ret = strdup(config->api.socket);
        return *ret ? CLI_YES : CLI_NO;
}

static int report_unknown_command(const char *name) {
        _cleanup_(suggest_done) Suggestion near = { .wanted = name };
        for (size_t i = 0; i < ELEMENTSOF(commands); i++)
                suggest_add(&near, commands[i].name);
        return near.name ? cli_usage(NULL, "unknown command '%s' (did you mean '%s'?)", name,
                                     near.name)
                         : cli_usage(NULL, "unknown command '%s'", name);
}

static int run(CliArgs *a, int argc, char **argv) {
        const CliCommand *command = find_command(argv[0]);
        if (!command)
                return report_unknown_command(argv[0]);
        if (a->help)
                return help_command(command);
        _cleanup_free_ char *socket = NULL;
        if (command->needs == CLI_NEEDS_AGENT && !a->cli.socket) {
                int code = find_socket(&a->cli, &socket);
                if (code != CLI_YES)
                        return code;
                a->cli.socket = socket;
        }
        optind = 0; /* the command parses its own options from the start */
        return command->run(&a->cli, argc, argv);
}

int main(int argc, char **argv) {
        if (argc == 2 && strcmp(argv[1], CRASH_CHILD) == 0)
                _exit(crash_child_main());
        const char *term = getenv("TERM"), *no_colour = getenv("NO_COLOR");
        bool capable = term && strcmp(term, "dumb") != 0;
        CliArgs a = { .cli = { .config_file = DEFAULT_FILE,
                               .terminal = isatty(STDOUT_FILENO),
                               .progress = capable && isatty(STDERR_FILENO) } };
        /* https://no-color.org: set and not empty */
        a.cli.colour = a.cli.terminal && capable && !(no_colour && *no_colour);
        argc = parse_globals(&a, argc, argv);
        int code = parse_args(&a, argc, argv);
        if (code < 0)
                code = run(&a, argc - optind, argv + optind);
        cli_progress_end();
        if (fflush(stdout) != 0 || ferror(stdout)) {
                perror("neuron-collect: stdout");
                code = CLI_NO;
        }
        cli_raise_caught_signal();
        return code;
}
