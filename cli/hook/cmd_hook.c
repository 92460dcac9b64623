/* neuron-collect hook install, remove, status: our neuron-dump in the place of the runtime's. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cli/common/cli.h"
#include "cli/hook/hook_install.h"
#include "cli/hook/hook_status.h"
#include "config/config.h"
#include "lib/base/fs.h"

typedef struct Arguments {
        HookRequest request;
        char *program, *place, *chain; /* made absolute; NULL = not given */
        char *to; /* the option, for commands that are suggested; NULL = the default place */
} Arguments;

static const char *to_option(const Arguments *a) {
        return a->to ? a->to : "";
}

/* ---- install, remove ---- */

static int print_json(const Cli *cli, const HookRequest *q, const HookResult *result) {
        json_t *object = json_pack("{s:o, s:b, s:b, s:b, s:b, s:b, s:b}", "directory",
                                   cli_json_string(q->directory), "placed", result->placed,
                                   "put_aside", result->put_aside, "restored", result->restored,
                                   "removed", result->removed, "left_other", result->left_other,
                                   "chain_changed", result->chain_changed);
        int code = cli_print_json(cli, object);
        json_decref(object);
        return code;
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
                 result->placed ? "now" : "already");
        if (result->put_aside)
                cli_line("the previous hook is kept as '" HOOK_ASIDE
                         "'; `neuron-collect hook remove%s` restores it",
                         to_option(a));
        print_chain(q, result);
        if (result->put_aside && q->chain == HOOK_CHAIN_AS_IS)
                cli_line(
                        "the previous hook no longer runs; `neuron-collect hook install --chain%s` "
                        "runs it as well",
                        to_option(a));
        if (result->placed && !a->place)
                cli_line("an upgrade of aws-neuronx-tools replaces it: run this command again "
                         "after each");
}

static int install(const Cli *cli, const Arguments *a) {
        HookResult result = { 0 };
        int code = hook_install(&a->request, &result);
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
        if (result.left_other)
                cli_line("'%s/" HOOK_NAME "' is not neuron-collectd's and stays as it is",
                         directory);
        else if (result.restored)
                cli_line("'%s/" HOOK_NAME "' is the previous hook again", directory);
        else if (result.removed)
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
                         to_option(a));
        if (!s->hook.is_executable)
                cli_line("it cannot be executed by every user, so their jobs write no core dumps; "
                         "`neuron-collect hook install%s` fixes that",
                         to_option(a));
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
                         directory, to_option(a));
        else if (s->hook.kind != HOOK_OTHER)
                cli_line("hook: '%s/" HOOK_NAME "' cannot be used%s%s; move it away, then run "
                         "`neuron-collect hook install%s`",
                         directory, s->hook.error ? ": " : "",
                         s->hook.error ? strerror(s->hook.error) : "", to_option(a));
        else if (hook_status_is_replaced(s))
                cli_line("hook: '%s/" HOOK_NAME "' is no longer neuron-collectd's, probably after "
                         "a package upgrade; `neuron-collect hook install%s` keeps it aside and "
                         "installs ours again",
                         directory, to_option(a));
        else
                cli_line("hook: '%s/" HOOK_NAME "' is %s; `neuron-collect hook install%s` keeps it "
                         "aside and installs ours",
                         directory,
                         strcmp(word, "other") == 0 ? "a script, not neuron-collectd's hook"
                                                    : "the vendor's hook",
                         to_option(a));
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
                         to_option(a));
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
        Config *config = NULL;
        HookStatus s;
        int code = cli_load_config(cli, false, &config);
        if (code != CLI_YES)
                return code;
        hook_status_read(a->request.directory, a->request.from, &s);
        bool is_ours = s.hook.kind == HOOK_OURS && s.hook.is_executable;
        if (cli->json) {
                json_t *object = status_json(&a->request, &s, config);
                code = cli_print_json(cli, object);
                json_decref(object);
        } else {
                print_hook(a, &s);
                print_other_files(a, &s);
                print_agent(config);
                print_dumps(config);
        }
        hook_status_done(&s);
        config_free(config);
        return code != CLI_YES ? code : is_ours ? CLI_YES : CLI_NO;
}

/* ---- arguments ---- */

/* @return CLI_YES, CLI_USAGE */
static int set_path(const char *given, char **slot, const char **ret) {
        free(*slot);
        *slot = *given ? fs_absolute(given) : NULL;
        if (!*slot)
                return cli_usage("hook", "invalid path '%s'", given);
        *ret = *slot;
        return CLI_YES;
}

static int set_place(Arguments *a, const char *given) {
        int code = set_path(given, &a->place, &a->request.directory);
        free(a->to);
        if (code != CLI_YES || asprintf(&a->to, " --to '%s'", a->place) < 0)
                a->to = NULL;
        return code;
}

static int set_option(Arguments *a, int option) {
        HookRequest *q = &a->request;
        switch (option) {
        case 'f':
                return set_path(optarg, &a->program, &q->from);
        case 't':
                return set_place(a, optarg);
        case 'c':
        case 'n':
                if (q->chain != HOOK_CHAIN_AS_IS)
                        return cli_usage("hook", "give either --chain or --no-chain, once");
                q->chain = option == 'c' ? HOOK_CHAIN_ON : HOOK_CHAIN_OFF;
                return option == 'c' && optarg ? set_path(optarg, &a->chain, &q->chain_path)
                                               : CLI_YES;
        default:
                return CLI_USAGE;
        }
}

static int parse(int argc, char **argv, Arguments *a, const char **ret_command) {
        static const struct option options[] = {
                { "from", required_argument, NULL, 'f' },
                { "to", required_argument, NULL, 't' },
                { "chain", optional_argument, NULL, 'c' },
                { "no-chain", no_argument, NULL, 'n' },
                { 0 },
        };
        int option;
        while ((option = cli_option(&(CliOptions){ argv[0], ":", options }, argc, argv)) >= 0) {
                int code = set_option(a, option);
                if (code != CLI_YES)
                        return code;
        }
        *ret_command = optind < argc ? argv[optind] : "";
        if (argc - optind != 1)
                return cli_usage(argv[0], "requires `install`, `remove` or `status`");
        if (a->request.chain != HOOK_CHAIN_AS_IS && strcmp(*ret_command, "install") != 0)
                return cli_usage(argv[0], "--chain and --no-chain are for `install`, not for '%s'",
                                 *ret_command);
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
        Arguments a = { .request = { .directory = HOOK_DIRECTORY, .from = HOOK_PROGRAM } };
        const char *command;
        int code = parse(argc, argv, &a, &command);
        if (code == CLI_YES)
                code = run(cli, &a, command);
        free(a.program);
        free(a.place);
        free(a.chain);
        free(a.to);
        return code;
}
