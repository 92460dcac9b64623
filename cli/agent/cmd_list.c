/* neuron-collect list: requests the agent's bundles page by page, and prints a line for each. */
#include <string.h>

#include "cli/common/cli.h"
#include "cli/common/client.h"
#include "lib/base/parse.h"
#include "lib/base/strbuf.h"
#include "lib/neuron/record.h"

#define PAGE 500

typedef struct List {
        const Cli *cli;
        const char *state, *source; /* NULL = all */
        json_t *all;                /* all bundles, for --json; NULL: printed at once */
        uint64_t n;
} List;

static void print_header(const Cli *cli) {
        if (cli->terminal)
                cli_line("%-11s %-51s %10s %14s  %-20s  %s", "STATE", "ID", "SIZE", "FILES",
                         "FIRST SEEN", "PATH");
}

/* Prints the deliveries that are underway or have failed, with their last error. */
static void print_deliveries(const json_t *b) {
        char progress[CLI_PROGRESS_SIZE];
        size_t i;
        json_t *d;
        json_array_foreach(json_object_get(b, "deliveries"), i, d) {
                const char *state = cli_text(d, "state"), *error = cli_text(d, "last_error");
                bool is_shipping = strcmp(state, "shipping") == 0;
                if (strcmp(state, "delivered") == 0 || (!is_shipping && !*error))
                        continue;
                cli_progress_text(progress, d);
                cli_part("  -> %s: %s%s%s%s", cli_text(d, "destination"),
                         is_shipping && *progress ? progress : state, *error ? ", " : "",
                         *error ? "last error: " : "", error);
        }
}

static void print_bundle(const List *l, const json_t *b) {
        char bytes[PARSE_FORMAT_SIZE], files[CLI_COUNT_SIZE], seen[CLI_MOMENT_SIZE],
                failure[CLI_FAILURE_SIZE];
        cli_state(l->cli, cli_text(b, "state"), 11);
        cli_part(" %-51s %10s %14s  %-20s  %s%s", cli_text(b, "id"),
                 parse_format_human(bytes, cli_number(b, "bytes")),
                 cli_count(files, cli_number(b, "files"), "file"),
                 cli_moment(seen, cli_text(b, "first_seen")),
                 cli_is_true(b, "complete") ? "" : "INCOMPLETE ", cli_text(b, "path"));
        if (strcmp(cli_text(b, "state"), "delivered") == 0 && *cli_text(b, "reason"))
                cli_part("  %s", cli_text(b, "reason"));
        if (*cli_failure_text(failure, json_object_get(b, "failure")))
                cli_part("  failure: %s", failure);
        const json_t *incident = json_object_get(b, "incident");
        if (json_is_string(json_object_get(incident, "key")))
                cli_part("  of failure %s/%llu: %s-%s", cli_text(incident, "key"),
                         cli_number(incident, "n"), cli_text(incident, "date_time"),
                         cli_text(incident, "cluster_id"));
        print_deliveries(b);
        putchar('\n');
}

/* @return the path of the page after `after`, the caller's */
static char *page_path(const List *l, const char *after) {
        StrBuf path = STRBUF_INIT;
        const char *names[] = { "state", "source", "after" },
                   *values[] = { l->state, l->source, after };
        strbuf_addf(&path, "/v1/bundles?limit=%d", PAGE);
        for (size_t i = 0; i < ELEMENTSOF(names); i++)
                if (values[i]) {
                        _cleanup_free_ char *value = client_escape(values[i]);
                        strbuf_addf(&path, "&%s=%s", names[i], value ? value : "");
                }
        return strbuf_detach(&path);
}

static void add_page(List *l, const json_t *page) {
        size_t i;
        json_t *b;
        json_array_foreach(json_object_get(page, "bundles"), i, b) {
                if (l->all)
                        json_array_append(l->all, b);
                else {
                        if (l->n == 0)
                                print_header(l->cli);
                        print_bundle(l, b);
                }
                l->n++;
        }
}

static int request_pages(List *l) {
        _cleanup_free_ char *after = NULL;
        do {
                _cleanup_free_ char *path = page_path(l, after);
                json_auto_t *page = NULL;
                int code = path ? cli_request(l->cli, "GET", path, &page) : CLI_NO;
                if (code != CLI_YES)
                        return code;
                add_page(l, page);
                const char *next = cli_text(page, "next");
                if (after && strcmp(after, next) == 0)
                        next = ""; /* a broken agent would make this loop endless */
                free(after);
                after = *next ? strdup(next) : NULL;
        } while (after);
        return CLI_YES;
}

/* Reports a name that is neither that of a configured source nor of one that a bundle has. */
static int check_source(const List *l) {
        _cleanup_(strbuf_done) StrBuf names = STRBUF_INIT;
        json_auto_t *status = NULL;
        json_t *s;
        bool is_known = false;
        size_t i;

        int code = cli_request(l->cli, "GET", "/v1/status", &status);
        if (code != CLI_YES)
                return code;
        json_array_foreach(json_object_get(status, "sources"), i, s) {
                const char *name = cli_text(s, "name");
                is_known = is_known || strcmp(name, l->source) == 0;
                strbuf_addf(&names, "%s%s", i ? ", " : "", name);
        }
        if (is_known)
                return CLI_YES;
        return cli_error("there is no source '%s', and no bundle of one; the sources are %s",
                         l->source, names.text ? names.text : "not known");
}

static int parse(int argc, char **argv, List *l) {
        const CliOption options[] = { { "state", .value = &l->state },
                                      { "source", .value = &l->source },
                                      { 0 } };
        BundleState state;
        int code = cli_options_only(argc, argv, options);
        return code == CLI_YES && l->state && bundle_state_parse(l->state, &state) < 0
                       ? cli_usage(argv[0], "invalid state '%s'", l->state)
                       : code;
}

int cmd_list(const Cli *cli, int argc, char **argv) {
        List l = { .cli = cli };
        int code = parse(argc, argv, &l);
        if (code != CLI_YES)
                return code;
        l.all = cli->json ? json_array() : NULL;
        code = request_pages(&l);
        if (code == CLI_YES && l.n == 0 && l.source)
                code = check_source(&l);
        if (l.all && code == CLI_YES)
                code = cli_print_json(cli, l.all);
        else if (code == CLI_YES && l.n == 0 && cli->terminal)
                cli_line("no bundles%s%s%s%s", l.state ? " that are " : "", l.state ? l.state : "",
                         l.source ? " of source " : "", l.source ? l.source : "");
        json_decref(l.all);
        return code;
}
