/* neuron-collect hook install, remove, status: the drop-in in the place of the runtime's neuron-dump. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cli/cli.h"
#include "cli/hook/hook_place.h"
#include "cli/hook/hook_view.h"
#include "config/config.h"
#include "lib/base/fs.h"

typedef struct Given {
        HookOrder order;
        char *program, *place, *chain; /* made absolute; NULL = not given */
        char *to; /* the option, for commands that are told to the operator; NULL = the default place */
} Given;

#define KEEP_UNIT "neuron-collectd-hook-keep.path"

static const char *to_option(const Given *g) {
        return g->to ? g->to : "";
}

/* ---- install, remove ---- */

static json_t *done_json(const HookOrder *o, const HookDone *done) {
        return json_pack("{s:o, s:b, s:b, s:b, s:b, s:b, s:b}", "directory",
                         cli_json_string(o->directory), "placed", done->placed, "put_aside",
                         done->put_aside, "restored", done->restored, "removed", done->removed,
                         "left_other", done->left_other, "chain_changed", done->chain_changed);
}

static int print_json(const Cli *cli, const HookOrder *o, const HookDone *done) {
        json_t *answer = done_json(o, done);
        int code = cli_print_json(cli, answer);
        json_decref(answer);
        return code;
}

static void say_chain(const HookOrder *o, const HookDone *done) {
        if (!done->chain_changed)
                return;
        if (o->chain == HOOK_CHAIN_ON)
                cli_line("it runs '%s' as well, for no longer than its own deadline",
                         o->chain_path ? o->chain_path : HOOK_ASIDE);
        else
                cli_line("it runs no other hook any more");
}

static void say_installed(const Given *g, const HookDone *done) {
        const HookOrder *o = &g->order;
        if (done->was_not_installed) {
                cli_line("'%s/" HOOK_NAME "' was not installed by `neuron-collect hook install%s`: "
                         "left alone",
                         o->directory, to_option(g));
                return;
        }
        cli_line("'%s/" HOOK_NAME "' is neuron-collectd's%s", o->directory,
                 done->placed ? " now" : " already");
        if (done->put_aside)
                cli_line("what was there is kept as '" HOOK_ASIDE
                         "'; `neuron-collect hook remove%s` "
                         "puts it back",
                         to_option(g));
        say_chain(o, done);
        if (done->put_aside && o->chain == HOOK_CHAIN_AS_IS)
                cli_line("it is not run any more; `neuron-collect hook install --chain%s` has it "
                         "run as well",
                         to_option(g));
        if (!o->again && done->placed && !g->place)
                cli_line("an upgrade of aws-neuronx-tools replaces it; to have it put back at "
                         "once: systemctl enable --now " KEEP_UNIT);
}

static int install(const Cli *cli, const Given *g) {
        HookDone done = { 0 };
        int code = hook_install(&g->order, &done);
        if (code != CLI_YES)
                return code;
        if (cli->json)
                return print_json(cli, &g->order, &done);
        say_installed(g, &done);
        return CLI_YES;
}

static int do_remove(const Cli *cli, const Given *g) {
        HookDone done = { 0 };
        const char *directory = g->order.directory;
        int code = hook_remove(&g->order, &done);
        if (code != CLI_YES)
                return code;
        if (cli->json)
                return print_json(cli, &g->order, &done);
        if (done.left_other)
                cli_line("'%s/" HOOK_NAME "' is not neuron-collectd's: left alone", directory);
        else if (done.restored)
                cli_line("'%s/" HOOK_NAME "' is again what it was before", directory);
        else if (done.removed)
                cli_line("'%s/" HOOK_NAME "' is removed; there was none before, and without one "
                         "the runtime dumps nothing",
                         directory);
        else
                cli_line("there was no hook of neuron-collectd's in '%s'", directory);
        return CLI_YES;
}

/* ---- status ---- */

static void tell_ours(const Given *g, const HookView *v) {
        cli_line("hook: '%s/" HOOK_NAME "' is neuron-collectd's, version %s", g->order.directory,
                 v->hook.version);
        if (!hook_file_is_same(&v->hook, &v->program) && v->program.kind == HOOK_OURS)
                cli_line("it is not the one that is installed with this program; "
                         "`neuron-collect hook install%s` renews it",
                         to_option(g));
        if (!v->hook.is_executable)
                cli_line("it cannot be executed by every user, so no core dump is written for "
                         "them; `neuron-collect hook install%s` mends that",
                         to_option(g));
}

static void tell_hook(const Given *g, const HookView *v) {
        const char *directory = g->order.directory;
        const char *word = hook_view_word(v);
        if (v->hook.kind == HOOK_OURS)
                tell_ours(g, v);
        else if (v->error != 0 && v->error != ENOENT)
                cli_line("hook: '%s' cannot be looked at: %s", directory, strerror(v->error));
        else if (v->hook.kind == HOOK_MISSING)
                cli_line("hook: there is no '%s/" HOOK_NAME "', so the runtime writes no core "
                         "dumps; `neuron-collect hook install%s` puts ours there",
                         directory, to_option(g));
        else if (v->hook.kind != HOOK_OTHER)
                cli_line("hook: '%s/" HOOK_NAME "' cannot be used%s%s; move it away, then run "
                         "`neuron-collect hook install%s`",
                         directory, v->hook.error ? ": " : "",
                         v->hook.error ? strerror(v->hook.error) : "", to_option(g));
        else if (v->is_kept)
                cli_line("hook: '%s/" HOOK_NAME "' is not neuron-collectd's any more, by a "
                         "package's upgrade perhaps; `neuron-collect hook install%s` keeps it "
                         "aside and puts ours back",
                         directory, to_option(g));
        else
                cli_line("hook: '%s/" HOOK_NAME "' is %s; `neuron-collect hook install%s` keeps it "
                         "aside and puts ours there",
                         directory,
                         strcmp(word, "other") == 0 ? "a script, somebody's own perhaps"
                                                    : "a program that is not ours: the vendor's",
                         to_option(g));
}

static void tell_beside(const Given *g, const HookView *v) {
        if (v->aside.kind != HOOK_MISSING)
                cli_line("vendor: what was there before is kept as '" HOOK_ASIDE "'");
        if (!v->chain)
                cli_line("chain: off, no other hook is run");
        else if (v->chained.kind != HOOK_OTHER || !v->chained.is_executable)
                cli_line("chain: to '%s', which %s; `neuron-collect hook install --no-chain%s` "
                         "ends it",
                         v->chain,
                         v->chained.kind == HOOK_OURS ? "is our own hook" : "cannot be executed",
                         to_option(g));
        else
                cli_line("chain: '%s' is run as well", v->chain);
}

static void tell_agent(const Config *config) {
        int r = hook_socket_try(config->hook.socket);
        if (r == 0)
                cli_line("agent: takes notes on '%s'", config->hook.socket);
        else
                cli_line("agent: nobody takes notes on '%s' (%s); they wait in '%s' until it "
                         "starts",
                         config->hook.socket, strerror(-r), config->hook.mailbox);
}

static void tell_dumps(const Config *config) {
        const char *directory = hook_dump_directory(environ);
        if (!directory) {
                cli_line("dumps: are switched off in this environment: both "
                         "NEURON_RT_LOCAL_CORE_DUMP_DIRECTORY and NEURON_RT_S3_CORE_DUMP_PREFIX "
                         "are set and empty");
                return;
        }
        const char *source = hook_dump_source(config, directory);
        cli_line("dumps: a job started from this environment dumps to '%s'%s, %s%s%s", directory,
                 strcmp(directory, HOOK_DUMP_DIRECTORY) == 0 ? " (the runtime's default)" : "",
                 source ? "which belongs to the source '" : "which no source has: add one",
                 source ? source : "", source ? "'" : "");
}

static json_t *status_json(const HookOrder *o, const HookView *v, const Config *config) {
        const char *dumps = hook_dump_directory(environ);
        return json_pack(
                "{s:o, s:s, s:s?, s:b, s:b, s:b, s:b, s:o, s:o, s:b, s:o, s:o}", "directory",
                cli_json_string(o->directory), "state", hook_view_word(v), "version",
                v->hook.kind == HOOK_OURS ? v->hook.version : NULL, "current",
                hook_file_is_same(&v->hook, &v->program), "executable", v->hook.is_executable,
                "kept", v->is_kept, "vendor_kept_aside", v->aside.kind != HOOK_MISSING, "chain",
                cli_json_string(v->chain), "socket", cli_json_string(config->hook.socket),
                "socket_answers", hook_socket_try(config->hook.socket) == 0, "mailbox",
                cli_json_string(config->hook.mailbox), "dump_directory", cli_json_string(dumps));
}

static int status(const Cli *cli, const Given *g) {
        Config *config = NULL;
        HookView v;
        int code = cli_load_config(cli, false, &config);
        if (code != CLI_YES)
                return code;
        hook_view_gather(g->order.directory, g->order.from, &v);
        bool is_ours = v.hook.kind == HOOK_OURS && v.hook.is_executable;
        if (cli->json) {
                json_t *answer = status_json(&g->order, &v, config);
                code = cli_print_json(cli, answer);
                json_decref(answer);
        } else {
                tell_hook(g, &v);
                tell_beside(g, &v);
                tell_agent(config);
                tell_dumps(config);
        }
        hook_view_done(&v);
        config_free(config);
        return code != CLI_YES ? code : is_ours ? CLI_YES : CLI_NO;
}

/* ---- arguments ---- */

/* @return CLI_YES, CLI_USAGE */
static int take_path(const char *given, char **slot, const char **ret) {
        free(*slot);
        *slot = *given ? fs_absolute(given) : NULL;
        if (!*slot)
                return cli_usage("hook", "'%s' is no path that can be used", given);
        *ret = *slot;
        return CLI_YES;
}

static int take_place(Given *g, const char *given) {
        int code = take_path(given, &g->place, &g->order.directory);
        free(g->to);
        if (code != CLI_YES || asprintf(&g->to, " --to '%s'", g->place) < 0)
                g->to = NULL;
        return code;
}

static int take_option(Given *g, int o) {
        HookOrder *order = &g->order;
        switch (o) {
        case 'f':
                return take_path(optarg, &g->program, &order->from);
        case 't':
                return take_place(g, optarg);
        case 'a':
                order->again = true;
                return CLI_YES;
        case 'c':
        case 'n':
                if (order->chain != HOOK_CHAIN_AS_IS)
                        return cli_usage("hook", "--chain or --no-chain, one of them once");
                order->chain = o == 'c' ? HOOK_CHAIN_ON : HOOK_CHAIN_OFF;
                return o == 'c' && optarg ? take_path(optarg, &g->chain, &order->chain_path)
                                          : CLI_YES;
        default:
                return CLI_USAGE;
        }
}

static int parse(int argc, char **argv, Given *g, const char **ret_what) {
        static const struct option options[] = {
                { "from", required_argument, NULL, 'f' },  { "to", required_argument, NULL, 't' },
                { "chain", optional_argument, NULL, 'c' }, { "no-chain", no_argument, NULL, 'n' },
                { "again", no_argument, NULL, 'a' },       { 0 },
        };
        bool is_for_install = false;
        int o;
        while ((o = cli_option(&(CliOptions){ argv[0], ":", options }, argc, argv)) >= 0) {
                int code = take_option(g, o);
                if (code != CLI_YES)
                        return code;
                is_for_install = is_for_install || (o != 't' && o != 'f');
        }
        *ret_what = optind < argc ? argv[optind] : "";
        if (argc - optind != 1)
                return cli_usage(argv[0], "wants `install`, `remove` or `status`");
        if (is_for_install && strcmp(*ret_what, "install") != 0)
                return cli_usage(argv[0],
                                 "--chain, --no-chain and --again are for `install`, not for '%s'",
                                 *ret_what);
        return CLI_YES;
}

static int obey(const Cli *cli, const Given *g, const char *what) {
        if (strcmp(what, "install") == 0)
                return install(cli, g);
        if (strcmp(what, "remove") == 0)
                return do_remove(cli, g);
        if (strcmp(what, "status") == 0)
                return status(cli, g);
        return cli_usage("hook", "wants `install`, `remove` or `status`, not '%s'", what);
}

int cmd_hook(const Cli *cli, int argc, char **argv) {
        Given g = { .order = { .directory = HOOK_DIRECTORY, .from = HOOK_PROGRAM } };
        const char *what;
        int code = parse(argc, argv, &g, &what);
        if (code == CLI_YES)
                code = obey(cli, &g, what);
        free(g.program);
        free(g.place);
        free(g.chain);
        free(g.to);
        return code;
}
