/* neuron-collect status: requests the agent's status, and prints it part by part. What each figure
 * means is in docs/API.md. */
#include <string.h>

#include "cli/common/cli.h"
#include "lib/base/parse.h"

/* Prints a line `<label><text>`, if the object has the text. */
static void print_text(const char *label, const json_t *object, const char *key) {
        if (*cli_text(object, key))
                cli_line("%s%s", label, cli_text(object, key));
}

/* Prints a text of several lines below the label, indented by two more. */
static void print_lines(const char *label, const json_t *object, const char *key) {
        size_t indent = strspn(label, " ") + 2;
        const char *text = cli_text(object, key);
        if (*text)
                cli_line("%s", label);
        while (*text) {
                size_t n = strcspn(text, "\n");
                cli_line("%*s%.*s", (int)indent, "", (int)n, text);
                text += n + (text[n] == '\n');
        }
}

/* Prints `<label>yes` or `<label>no, <note>`. */
static void print_verdict(const Cli *cli, const char *label, bool is_true, const char *note) {
        fputs(label, stdout);
        cli_state(cli, is_true ? "yes" : "no", 0);
        cli_line("%s%s", *note ? ", " : "", note);
}

static void print_agent(const Cli *cli, const json_t *status) {
        const json_t *agent = json_object_get(status, "agent"),
                     *config = json_object_get(status, "config");
        char moment[CLI_MOMENT_SIZE];
        cli_part("neuron-collectd %s on %s, pid %llu, ", cli_text(agent, "version"),
                 cli_text(agent, "instance_id"), cli_number(agent, "pid"));
        bool is_running = strcmp(cli_text(agent, "state"), "running") == 0;
        cli_state(cli, cli_text(agent, "state"), 0);
        cli_line("%s %s", is_running ? " since" : ", started",
                 cli_moment(moment, cli_text(agent, "started")));
        cli_line("configuration: %s, loaded %s",
                 *cli_text(config, "file") ? cli_text(config, "file") : "built in (no file)",
                 cli_moment(moment, cli_text(config, "loaded")));
        print_lines("  the last reload failed, so the earlier configuration stays in force:",
                    config, "last_error");
        print_text("  changed keys that take effect at the next restart: ", config,
                   "pending_restart");
        print_verdict(cli, "can deliver: ", cli_is_true(status, "ready"),
                      cli_text(status, "ready_note"));
}

static void print_drain(const Cli *cli, const json_t *status) {
        const json_t *drain = json_object_get(status, "drain");
        char moment[CLI_MOMENT_SIZE];
        if (!json_is_object(drain))
                return;
        cli_line("draining since %s: %s", cli_moment(moment, cli_text(drain, "since")),
                 cli_text(drain, "reason"));
        if (*cli_text(drain, "deadline"))
                cli_line("  this instance ends at %s",
                         cli_moment(moment, cli_text(drain, "deadline")));
        print_verdict(cli, "  safe to terminate: ", cli_is_true(drain, "safe_to_terminate"),
                      cli_text(drain, "missing"));
}

static void print_bundles(const Cli *cli, const json_t *status) {
        const json_t *bundles = json_object_get(status, "bundles"),
                     *bytes = json_object_get(status, "bytes"),
                     *by_state = json_object_get(status, "bytes_by_state");
        char delivered[PARSE_FORMAT_SIZE], read_bytes[PARSE_FORMAT_SIZE];
        const char *key;
        json_t *value;
        if (json_is_false(json_object_get(status, "accounting_ok")))
                cli_line("the states below do not add up to what was discovered: a defect, please "
                         "report it");
        cli_line("bundles: %llu discovered%s", cli_number(bundles, "discovered"),
                 cli_is_true(status, "idle") ? ", nothing under way" : "");
        json_object_foreach((json_t *)bundles, key, value) {
                if (strcmp(key, "discovered") == 0 || json_integer_value(value) <= 0)
                        continue;
                char size[PARSE_FORMAT_SIZE];
                fputs("  ", stdout);
                cli_state(cli, key, 11);
                cli_line(" %5lld %12s", (long long)json_integer_value(value),
                         parse_format_human(size, cli_number(by_state, key)));
        }
        uint64_t n_evicted = cli_number(bundles, "evicted");
        if (n_evicted > 0)
                cli_line(
                        "  evicted: discarded undelivered, for lack of disk space; `neuron-collect "
                        "list --state evicted` shows %s",
                        n_evicted == 1 ? "it" : "them");
        cli_line("bytes: %s read, %s delivered",
                 parse_format_human(read_bytes, cli_number(bytes, "read")),
                 parse_format_human(delivered, cli_number(bytes, "delivered")));
}

static void print_shipping(const json_t *status) {
        const json_t *list = json_object_get(status, "shipping");
        size_t i;
        json_t *s;
        if (json_array_size(list) > 0)
                puts("shipping:");
        json_array_foreach(list, i, s) {
                char progress[CLI_PROGRESS_SIZE];
                bool has_begun = cli_number(s, "total_bytes") >
                                 0; /* false while its members are being read */
                cli_line("  %s to %s: %s", cli_text(s, "id"), cli_text(s, "destination"),
                         has_begun ? cli_progress_text(progress, s) : "begins");
        }
}

static void print_retention(const json_t *retention) {
        char n[CLI_COUNT_SIZE];
        if (cli_number(retention, "held"))
                cli_line("    delivered, kept until retention deletes them: %s",
                         cli_count(n, cli_number(retention, "held"), "bundle"));
        if (cli_number(retention, "unheld"))
                cli_line("    delivered, never deleted, since no link of ours holds their files: "
                         "%s",
                         cli_count(n, cli_number(retention, "unheld"), "bundle"));
        print_text("    room: ", retention, "note");
}

static void print_limits(const json_t *limits) {
        double share = json_number_value(json_object_get(limits, "work_share"));
        char rate[PARSE_FORMAT_SIZE];
        if (cli_number(limits, "upload_rate"))
                cli_line("limits: %s a second may be sent now",
                         parse_format_human(rate, cli_number(limits, "upload_rate")));
        if (json_object_get(limits, "work_share") && share < 0.995)
                cli_line("limits: the machine is pressed, so the agent works %.0f %% of the time",
                         100 * share);
        print_text("limits: ", limits, "note");
}

/* What was refused to users because they had all that there may be. */
static void print_bounded(const json_t *bounded) {
        size_t i;
        json_t *b;
        json_array_foreach(bounded, i, b) {
                const uint64_t each = cli_number(b, "max_each"), all = cli_number(b, "max");
                if (cli_number(b, "refused") == 0)
                        continue;
                cli_part("limits: %s: %llu refused since the start", cli_text(b, "what"),
                         cli_number(b, "refused"));
                if (*cli_text(b, "last_refused"))
                        cli_part(", the last of %s", cli_text(b, "last_refused"));
                if (each > 0)
                        cli_part("; an owner may have %llu", (unsigned long long)each);
                if (all > 0)
                        cli_part("%s %llu", each > 0 ? ", all together" : "; all together may have",
                                 (unsigned long long)all);
                cli_line("%s", "");
        }
}

static void print_others(const json_t *others) {
        char units[CLI_COUNT_SIZE], nodes[CLI_COUNT_SIZE], age[PARSE_FORMAT_SIZE];
        if (cli_number(others, "dead_links") > 0)
                cli_line("    links of dead nodes: of %s, in .neuron-collectd; remove what is not "
                         "needed",
                         cli_count(units, cli_number(others, "dead_links"), "bundle"));
        if (cli_number(others, "units") == 0)
                return;
        parse_format_duration(age, cli_number(others, "oldest_seconds") * USEC_PER_SEC);
        cli_line("    undelivered, held by %s: %s, the oldest for %s",
                 cli_count(nodes, cli_number(others, "nodes"), "other node"),
                 cli_count(units, cli_number(others, "units"), "unit"), age);
}

static void print_sources(const json_t *status) {
        size_t i;
        json_t *s;
        puts("sources:");
        json_array_foreach(json_object_get(status, "sources"), i, s) {
                char n[CLI_COUNT_SIZE];
                cli_part("  %s (%s) %s: ", cli_text(s, "name"), cli_text(s, "kind"),
                         cli_text(s, "path"));
                uint64_t watches = cli_number(s, "watches");
                if (strcmp(cli_text(s, "watch"), "inotify") == 0)
                        cli_line("watched, %llu %s", (unsigned long long)watches,
                                 watches == 1 ? "directory" : "directories");
                else
                        cli_line("scanned from time to time");
                if (cli_number(s, "overflows"))
                        cli_line("    events were lost %s; a full scan followed each time",
                                 cli_count(n, cli_number(s, "overflows"), "time"));
                print_text("    note: ", s, "note");
                print_others(json_object_get(s, "others"));
                print_retention(json_object_get(s, "retention"));
        }
}

static void print_destinations(const Cli *cli, const json_t *status) {
        size_t i;
        json_t *d;
        puts("destinations:");
        json_array_foreach(json_object_get(status, "destinations"), i, d) {
                char bytes[PARSE_FORMAT_SIZE], moment[CLI_MOMENT_SIZE], n[CLI_COUNT_SIZE];
                cli_part("  %s (%s): ", cli_text(d, "name"), cli_text(d, "type"));
                cli_state(cli, cli_text(d, "state"), 0);
                cli_line(", %s delivered%s%s",
                         parse_format_human(bytes, cli_number(d, "bytes_delivered")),
                         *cli_text(d, "last_success") ? ", last " : "",
                         cli_moment(moment, cli_text(d, "last_success")));
                print_text("    last error: ", d, "last_error");
                if (cli_number(d, "lacking"))
                        cli_line("    never sent there: %s delivered before it was configured; "
                                 "`neuron-collect redeliver` ships those whose files are still "
                                 "there",
                                 cli_count(n, cli_number(d, "lacking"), "bundle"));
        }
}

/* Prints what the agent got at the moment of a failure: hooks' notes, and snapshots. */
static void print_hook(const json_t *hook) {
        const json_t *snapshots = json_object_get(hook, "snapshots");
        char n[CLI_COUNT_SIZE];
        if (!hook)
                return; /* an older agent */
        cli_line("hook: %s came, %llu refused", cli_count(n, cli_number(hook, "notes"), "note"),
                 cli_number(hook, "refused"));
        if (cli_number(hook, "awaited") > 0)
                cli_line("  directories not there yet: %llu; checked again when their hooks have "
                         "ended",
                         cli_number(hook, "awaited"));
        if (cli_number(hook, "unseen") > 0)
                cli_line("  directories that the agent cannot see: %llu; mount the dump directory "
                         "of containers from the host",
                         cli_number(hook, "unseen"));
        print_text("  hooks are not answered, or late: ", hook, "trouble");
        if (snapshots)
                cli_line("snapshots: %llu taken since the start, %llu dropped%s, %llu underway",
                         cli_number(snapshots, "taken"), cli_number(snapshots, "dropped"),
                         cli_number(snapshots, "dropped") ? " (the log has the reason)" : "",
                         cli_number(snapshots, "underway"));
}

#define FAILURES_PRINTED 10

static void print_failures(const json_t *failures) {
        size_t n = json_array_size(failures);
        for (size_t i = 0; i < n && i < FAILURES_PRINTED; i++) {
                const json_t *f = json_array_get(failures, i);
                cli_part("  %s", cli_text(f, "key"));
                if (cli_number(f, "n") > 0) /* else the store has not numbered it yet */
                        cli_part("/%llu", cli_number(f, "n"));
                cli_line(": %s-%s (agreed: %s), %llu of %llu known processes failed",
                         cli_text(f, "date_time"), cli_text(f, "cluster_id"), cli_text(f, "agreed"),
                         cli_number(f, "failed"), cli_number(f, "processes"));
        }
        if (n > FAILURES_PRINTED)
                cli_line("  and %zu more, see --json", n - FAILURES_PRINTED);
}

/* Prints the state of the bus, and the names that nodes agreed on for failures. */
static void print_agreement(const json_t *agreement) {
        const json_t *bus = json_object_get(agreement, "bus"),
                     *failures = json_object_get(agreement, "failures");
        char n[CLI_COUNT_SIZE];
        if (!json_is_object(agreement))
                return; /* it is off */
        cli_line("agreement: bus %s%s, %llu connected, %s", cli_text(bus, "state"),
                 cli_is_true(bus, "has_key") ? "" : " (no key)", cli_number(bus, "connected"),
                 cli_count(n, json_array_size(failures), "failure"));
        print_text("  the bus: ", bus, "last_error");
        if (*cli_text(agreement, "last_error"))
                cli_line("  destination %s: %s", cli_text(agreement, "arbiter"),
                         cli_text(agreement, "last_error"));
        print_failures(failures);
}

int cmd_status(const Cli *cli, int argc, char **argv) {
        json_auto_t *status = NULL;
        int code = cli_no_argument(argc, argv);
        if (code == CLI_YES)
                code = cli_request(cli, "GET", "/v1/status", &status);
        if (code != CLI_YES)
                return code;
        if (cli->json)
                return cli_print_json(cli, status);
        print_agent(cli, status);
        print_drain(cli, status);
        print_bundles(cli, status);
        print_shipping(status);
        print_limits(json_object_get(status, "limits"));
        print_bounded(json_object_get(status, "bounded"));
        print_hook(json_object_get(status, "hook"));
        print_agreement(json_object_get(status, "agreement"));
        print_sources(status);
        print_destinations(cli, status);
        return CLI_YES;
}
