/* neuron-collect show, explain, retry, cancel, pin, unpin: requests about one bundle; redeliver:
 * about many; flush, scan, resume: about the agent. The agent decides and explains; these commands
 * print its answers. */
#include <errno.h>
#include <string.h>

#include "cli/common/cli.h"
#include "cli/common/client.h"
#include "lib/base/cleanup.h"
#include "lib/base/clock.h"
#include "lib/base/parse.h"
#include "lib/base/strbuf.h"
#include "lib/neuron/bundle_name.h"
#include "lib/neuron/ids.h"

static void print_field(const char *label, const char *text) {
        if (*text)
                cli_line("%-14s %s", label, text);
}

static void print_delivery(const Cli *cli, const json_t *d) {
        char bytes[PARSE_FORMAT_SIZE], tries[CLI_COUNT_SIZE], moment[CLI_MOMENT_SIZE],
                progress[CLI_PROGRESS_SIZE];
        uint64_t n = cli_number(d, "bytes"), attempts = cli_number(d, "attempts");
        const char *state = cli_text(d, "state");
        cli_progress_text(progress, d);
        if (strcmp(state, "shipping") != 0)
                progress[0] = '\0';
        cli_part("  %s: ", cli_text(d, "destination"));
        cli_state(cli, state, 0);
        cli_line("%s%s%s%s%s%s", *cli_text(d, "proof") ? ", proof: " : "", cli_text(d, "proof"),
                 n ? ", " : "", n ? parse_format_human(bytes, n) : "", *progress ? ", " : "",
                 progress);
        if (*cli_text(d, "object"))
                cli_line("    object: %s", cli_text(d, "object"));
        if (*cli_text(d, "last_error") && attempts)
                cli_line("    failed %s, last: %s", cli_count(tries, attempts, "time"),
                         cli_text(d, "last_error"));
        else if (*cli_text(d, "last_error")) /* the destination's failure, not counted against the
                                                bundle */
                cli_line("    last error: %s", cli_text(d, "last_error"));
        if (*cli_text(d, "next_try"))
                cli_line("    next try: %s", cli_moment(moment, cli_text(d, "next_try")));
}

/* @return whether the agent no longer holds the files of a bundle in this state; those of a
 * quarantined bundle it still holds */
static bool is_released(const char *state) {
        static const char *const states[] = { "delivered", "evicted", "cancelled", "vanished" };
        return parse_word(state, states, ELEMENTSOF(states)) >= 0;
}

/* Lists the bundles that a query finds, but this one. What cannot be requested is left out. */
static void print_others(const Cli *cli, const json_t *b, const char *label, const char *query) {
        _cleanup_free_ char *path = strbuf_format("/v1/bundles?%s&limit=100", query);
        json_auto_t *answer = NULL;
        const json_t *other;
        size_t i;
        if (!path || cli_request(cli, "GET", path, &answer) != CLI_YES)
                return;
        json_array_foreach(json_object_get(answer, "bundles"), i, other) {
                if (strcmp(cli_text(other, "id"), cli_text(b, "id")) == 0)
                        continue;
                cli_line("%-14s %s (%s)", label, cli_text(other, "id"), cli_text(other, "state"));
                label = "";
        }
}

/* The failure's key and number link its bundles; what is about a bundle without a failure is
 * linked by its subject. */
static void print_links(const Cli *cli, const json_t *b) {
        const json_t *incident = json_object_get(b, "incident"), *v;
        const char *id = cli_text(b, "id"), *key = cli_text(incident, "key");
        _cleanup_free_ char *about = strbuf_format("about=%s", id),
                            *failure = strbuf_format("failure=%s/%llu", key,
                                                     cli_number(incident, "n"));
        size_t i;
        json_array_foreach(json_object_get(b, "related"), i, v)
                cli_line("%-14s %s", i == 0 ? "is about" : "", cli_text(v, "id"));
        /* what is no id or key has no place in a URL */
        if (about && bundle_id_is_valid(id))
                print_others(cli, b, "about it", about);
        if (failure && *key && key[strspn(key, "0123456789abcdef")] == '\0' &&
            cli_number(incident, "n") > 0)
                print_others(cli, b, "same failure", failure);
}

static void print_bundle(const Cli *cli, const json_t *b) {
        char bytes[PARSE_FORMAT_SIZE], files[CLI_COUNT_SIZE], moment[CLI_MOMENT_SIZE],
                failure[CLI_FAILURE_SIZE];
        print_field("id", cli_text(b, "id"));
        cli_part("%-14s ", "state");
        cli_state(cli, cli_text(b, "state"), 0);
        cli_line(" since %s", cli_moment(moment, cli_text(b, "changed")));
        print_field("reason", cli_text(b, "reason"));
        print_field("source", cli_text(b, "source"));
        print_field("kind", cli_text(b, "kind"));
        print_field("path", cli_text(b, "path"));
        cli_line("%-14s %s in %s", "content", parse_format_human(bytes, cli_number(b, "bytes")),
                 cli_count(files, cli_number(b, "files"), "file"));
        size_t i;
        json_t *v;
        bool is_complete = cli_is_true(b, "complete");
        if (!is_complete || json_array_size(json_object_get(b, "incomplete")) > 0)
                cli_line("%-14s %s", "complete", is_complete ? "yes, but for" : "no");
        json_array_foreach(json_object_get(b, "incomplete"), i, v)
                cli_line("%-14s %s", "", cli_string(v));
        print_field("date-time", cli_text(b, "date_time"));
        print_field("cluster id", cli_text(b, "cluster_id"));
        print_field("failure", cli_failure_text(failure, json_object_get(b, "failure")));
        print_field("supplement of", cli_text(b, "supplement_of"));
        print_links(cli, b);
        print_field("first seen", cli_moment(moment, cli_text(b, "first_seen")));
        if (cli_number(b, "attempts"))
                cli_line("%-14s %llu", "failures", cli_number(b, "attempts"));
        print_field("pinned", cli_is_true(b, "pinned") ? "yes" : "no");
        if (!is_released(cli_text(b, "state")))
                print_field("held by links", cli_is_true(b, "links_held") ? "yes" : "no");
        if (json_array_size(json_object_get(b, "deliveries")) > 0)
                puts("deliveries:");
        json_array_foreach(json_object_get(b, "deliveries"), i, v) print_delivery(cli, v);
}

static void print_explanation(const Cli *cli, const json_t *b) {
        char failure[CLI_FAILURE_SIZE];
        cli_part("%s is ", cli_text(b, "id"));
        cli_state(cli, cli_text(b, "state"), 0);
        puts(".");
        cli_line("  %s", cli_text(b, "explain"));
        if (*cli_failure_text(failure, json_object_get(b, "failure")))
                cli_line("  failure: %s", failure);
        size_t i;
        json_t *v;
        json_array_foreach(json_object_get(b, "incomplete"), i, v) cli_line(
                "  %s: %s", cli_is_true(b, "complete") ? "note" : "incomplete", cli_string(v));
        json_array_foreach(json_object_get(b, "deliveries"), i,
                           v) if (strcmp(cli_text(v, "state"), "delivered") == 0)
                cli_line("  at %s: %s", cli_text(v, "destination"), cli_text(v, "object"));
}

/* Prints the present state of the bundle, since the agent may need a moment for the request. */
static void print_outcome(const char *action, const json_t *b) {
        const char *id = cli_text(b, "id"), *state = cli_text(b, "state");
        if (strcmp(action, "pin") == 0)
                cli_line("%s: pinned; retention keeps its source until `neuron-collect unpin`", id);
        else if (strcmp(action, "unpin") == 0)
                cli_line("%s: no longer pinned", id);
        else if (strcmp(action, "retry") == 0 && strcmp(state, "shipping") == 0)
                cli_line("%s: is being shipped", id);
        else if (strcmp(action, "retry") == 0)
                cli_line(
                        "%s: tried again now, it is %s; `neuron-collect wait %s` waits for the end",
                        id, state, id);
        else if (strcmp(state, "cancelled") == 0)
                cli_line("%s: cancelled; its files stay at the source", id);
        else
                cli_line("%s: will be cancelled when the copy that is under way has stopped; it is "
                         "%s",
                         id, state);
}

/* @return whether the operator confirms; the question is asked only at a terminal */
static bool confirm_cancel(const char *id) {
        char answer[8] = "";
        if (!isatty(STDIN_FILENO) || !isatty(STDERR_FILENO) || !bundle_id_is_valid(id))
                return true;
        fprintf(stderr,
                "'%s' will not be delivered, and this cannot be undone; its files stay at the "
                "source. Cancel it? [y/N] ",
                id);
        return fgets(answer, sizeof answer, stdin) && (answer[0] == 'y' || answer[0] == 'Y');
}

/* @return CLI_YES and *ret, CLI_USAGE, CLI_NO: not confirmed */
static int parse_bundle_id(int argc, char **argv, const char **ret) {
        static const char what[] = "one bundle id, as `neuron-collect list` prints it";
        bool is_sure = false;
        const CliOption options[] = { { "yes", .is_given = &is_sure, .letter = 'y' }, { 0 } };
        if (strcmp(argv[0], "cancel") != 0)
                return cli_one_argument(argc, argv, what, ret);
        int code = cli_options(argv[0], argc, argv, options);
        if (code != CLI_YES)
                return code;
        if (argc - optind != 1 || !argv[optind][0])
                return cli_usage(argv[0], "expects %s", what);
        *ret = argv[optind];
        return is_sure || confirm_cancel(*ret) ? CLI_YES : cli_error("not cancelled");
}

int cmd_bundle(const Cli *cli, int argc, char **argv) {
        bool is_show = strcmp(argv[0], "show") == 0, is_explain = strcmp(argv[0], "explain") == 0;
        const char *id;
        json_auto_t *answer = NULL, *b = NULL;
        int code = parse_bundle_id(argc, argv, &id);
        if (code == CLI_YES && !is_show && !is_explain)
                code = cli_request_bundle(cli, id, argv[0], &answer);
        if (code == CLI_YES)
                code = cli_request_bundle(cli, id, NULL, &b);
        if (code == CLI_YES && cli->json)
                code = cli_print_json(cli, b);
        else if (code == CLI_YES && is_show)
                print_bundle(cli, b);
        else if (code == CLI_YES && is_explain)
                print_explanation(cli, b);
        else if (code == CLI_YES)
                print_outcome(argv[0], b);
        return code;
}

static void print_redelivery(const json_t *answer) {
        char n[CLI_COUNT_SIZE];
        uint64_t bundles = cli_number(answer, "bundles");
        if (bundles == 0)
                cli_line("there is nothing to redeliver: no bundle lacks a destination that its "
                         "source has");
        else
                cli_line("%s %s retried; `neuron-collect wait --all` waits for the end, and "
                         "`neuron-collect list` says which ones have no files left",
                         cli_count(n, bundles, "bundle"), bundles == 1 ? "is" : "are");
        if (cli_is_true(answer, "more"))
                cli_line("there are more: run this again when they are delivered");
}

int cmd_redeliver(const Cli *cli, int argc, char **argv) {
        _cleanup_(strbuf_done) StrBuf path = STRBUF_INIT;
        const char *destination = NULL, *since = NULL;
        const CliOption options[] = { { "destination", .value = &destination },
                                      { "since", .value = &since },
                                      { 0 } };
        uint64_t span = 0, now = clock_realtime_usec();
        json_auto_t *answer = NULL;
        int code = cli_options_only(argc, argv, options);
        if (code == CLI_YES)
                code = cli_duration(argv[0], since, "12h or 7d", &span);
        if (code != CLI_YES)
                return code;
        _cleanup_free_ char *name = destination ? client_escape(destination) : NULL;
        strbuf_add(&path, "/v1/redeliver?");
        if (since)
                strbuf_addf(&path, "since=%llu&",
                            (unsigned long long)((now - MIN(span, now)) / USEC_PER_SEC));
        if (name)
                strbuf_addf(&path, "destination=%s&", name);
        if (strbuf_error(&path) < 0 || (destination && !name)) /* or it would be for all of them */
                return cli_error("%s", strerror(ENOMEM));
        path.text[path.n - 1] = '\0'; /* the last `?` or `&` */
        code = cli_request(cli, "POST", path.text, &answer);
        if (code == CLI_YES && cli->json)
                code = cli_print_json(cli, answer);
        else if (code == CLI_YES)
                print_redelivery(answer);
        return code;
}

int cmd_agent(const Cli *cli, int argc, char **argv) {
        static const struct {
                const char *name, *path, *done;
        } requests[] = {
                { "flush", "/v1/flush",
                  "scanning all sources now, without waiting for `settle`; `neuron-collect wait "
                  "--all` waits for the end" },
                { "scan", "/v1/scan",
                  "scanning all sources now; `neuron-collect wait --all` waits for the end" },
                { "resume", "/v1/resume", "drain cancelled" },
        };
        size_t i = 0;
        json_auto_t *answer = NULL;
        while (strcmp(requests[i].name, argv[0]) != 0)
                i++;
        int code = cli_no_argument(argc, argv);
        if (code == CLI_YES)
                code = cli_request(cli, "POST", requests[i].path, &answer);
        if (code == CLI_YES && cli->json)
                code = cli_print_json(cli, answer);
        else if (code == CLI_YES)
                cli_line("%s", requests[i].done);
        return code;
}
