/* neuron-collect wait: asks again and again until there is an end, drawing how far it is. */
#include <string.h>

#include "cli/cli.h"
#include "lib/base/clock.h"
#include "lib/base/parse.h"

#define LOOK_USEC (200 * USEC_PER_MSEC)
#define LEFT_MAX 1000 /* of a state, said when time is up */

typedef enum Waiting { WAIT_ON, WAIT_DELIVERED, WAIT_GIVEN_UP } Waiting;

typedef struct Wait {
        const Cli *cli;
        const char *id; /* NULL = all */
        uint64_t timeout_usec;
        json_t *bundle; /* as it was last seen, when there is an id; else NULL */
        json_t *counts; /* of bundles by state when all was looked at last; else NULL */
} Wait;

static bool is_given_up(const char *state) {
        static const char *const states[] = { "quarantined", "cancelled", "evicted", "vanished" };
        for (size_t i = 0; i < ELEMENTSOF(states); i++)
                if (strcmp(state, states[i]) == 0)
                        return true;
        return false;
}

/* @return the shipping that is to be drawn, borrowed; NULL */
static const json_t *find_shipping(const json_t *status, const char *id) {
        size_t i;
        json_t *s;
        json_array_foreach(json_object_get(status, "shipping"), i,
                           s) if (!id || strcmp(cli_text(s, "id"), id) == 0) return s;
        return NULL;
}

/* @param what  what stands before the bar */
static void draw(const Wait *w, const json_t *status, const char *what) {
        const json_t *s = find_shipping(status, w->id);
        char bar[CLI_BAR_SIZE], rate[PARSE_FORMAT_SIZE], eta[CLOCK_ISO_SIZE] = "?";
        if (!s) {
                cli_progress(w->cli, "%s", what);
                return;
        }
        unsigned percent = cli_percent(cli_number(s, "done_bytes"), cli_number(s, "total_bytes"));
        if (json_is_integer(json_object_get(s, "eta_seconds")))
                clock_format_span(eta, MIN(cli_number(s, "eta_seconds"), (uint64_t)UINT32_MAX) *
                                               USEC_PER_SEC);
        cli_progress(w->cli, "%s %s %u %% to %s, %s/s, %s left", what, cli_bar(bar, percent),
                     percent, cli_text(s, "destination"),
                     parse_format_human(rate, cli_number(s, "rate")), eta);
}

static int look_one(Wait *w, Waiting *ret) {
        json_t *b = NULL, *status = NULL;
        int code = cli_ask_bundle(w->cli, w->id, NULL, &b);
        if (code != CLI_YES)
                return code;
        json_decref(w->bundle);
        w->bundle = b;
        const char *state = cli_text(b, "state");
        *ret = strcmp(state, "delivered") == 0 ? WAIT_DELIVERED
               : is_given_up(state)            ? WAIT_GIVEN_UP
                                               : WAIT_ON;
        if (*ret != WAIT_ON || !w->cli->progress)
                return CLI_YES;
        code = cli_ask(w->cli, "GET", "/v1/status", &status);
        if (code == CLI_YES)
                draw(w, status, state);
        json_decref(status);
        return code;
}

static int look_all(Wait *w, Waiting *ret) {
        json_t *status = NULL;
        int code = cli_ask(w->cli, "GET", "/v1/status", &status);
        if (code != CLI_YES)
                return code;
        const json_t *bundles = json_object_get(status, "bundles");
        json_decref(w->counts);
        w->counts = json_incref((json_t *)bundles);
        if (cli_is_true(status, "idle"))
                *ret = cli_number(bundles, "quarantined") > 0 ? WAIT_GIVEN_UP : WAIT_DELIVERED;
        else {
                char what[64];
                uint64_t n = cli_number(bundles, "settling") + cli_number(bundles, "ready") +
                             cli_number(bundles, "shipping");
                snprintf(what, sizeof what, "%llu waiting", (unsigned long long)n);
                draw(w, status, n ? what : "scanning");
        }
        json_decref(status);
        return CLI_YES;
}

/* @return why it is not delivered: the bundle's own reason, else what went wrong at a destination; "" */
static const char *why_left(const json_t *b) {
        if (*cli_text(b, "reason") || is_given_up(cli_text(b, "state")))
                return cli_text(b, "reason");
        size_t i;
        json_t *d;
        json_array_foreach(json_object_get(b, "deliveries"), i,
                           d) if (strcmp(cli_text(d, "state"), "delivered") != 0 &&
                                  *cli_text(d, "last_error")) return cli_text(d, "last_error");
        return "";
}

/* @param list  where to gather for --json; NULL: printed */
static int tell_left(const Cli *cli, const char *state, json_t *list) {
        char path[96];
        json_t *page = NULL, *b;
        size_t i;
        snprintf(path, sizeof path, "/v1/bundles?limit=%d&state=%s", LEFT_MAX, state);
        int code = cli_ask(cli, "GET", path, &page);
        if (code != CLI_YES)
                return code;
        json_array_foreach(json_object_get(page, "bundles"), i, b) {
                if (list)
                        json_array_append(list, b);
                else {
                        cli_part("%s ", cli_text(b, "id"));
                        cli_state(cli, state, 0);
                        cli_line("%s%s", *why_left(b) ? ": " : "", why_left(b));
                }
        }
        if (!list && *cli_text(page, "next"))
                cli_line("… and more; see `neuron-collect list --state %s`", state);
        json_decref(page);
        return CLI_YES;
}

/* What was let go undelivered is not waited for, but it is not passed over in silence. */
static void print_nothing_left(const Wait *w) {
        static const char *const lost[] = { "cancelled", "evicted", "vanished" };
        char n[CLI_COUNT_SIZE];
        cli_part("nothing is left to deliver: %s delivered",
                 cli_count(n, cli_number(w->counts, "delivered"), "bundle"));
        for (size_t i = 0; i < ELEMENTSOF(lost); i++)
                if (cli_number(w->counts, lost[i]))
                        cli_part(", %llu %s", (unsigned long long)cli_number(w->counts, lost[i]),
                                 lost[i]);
        putchar('\n');
}

static int finish_all(const Wait *w, Waiting outcome) {
        static const char *const left[] = { "settling", "ready", "shipping", "quarantined" };
        json_t *list = w->cli->json ? json_array() : NULL;
        int code = CLI_YES;
        for (size_t i = 0; outcome != WAIT_DELIVERED && code == CLI_YES && i < ELEMENTSOF(left);
             i++)
                code = tell_left(w->cli, left[i], list);
        if (code == CLI_YES && w->cli->json) {
                json_t *answer = json_pack("{s:b, s:O}", "delivered", outcome == WAIT_DELIVERED,
                                           "left", list);
                code = cli_print_json(w->cli, answer);
                json_decref(answer);
        } else if (code == CLI_YES && outcome == WAIT_DELIVERED)
                print_nothing_left(w);
        json_decref(list);
        return code != CLI_YES ? code : outcome == WAIT_DELIVERED ? CLI_YES : CLI_NO;
}

static int finish_one(const Wait *w, Waiting outcome) {
        const char *why = why_left(w->bundle);
        if (w->cli->json) {
                int code = cli_print_json(w->cli, w->bundle);
                if (code != CLI_YES)
                        return code;
        } else {
                cli_part("%s %s ", w->id, outcome == WAIT_ON ? "is still" : "is");
                cli_state(w->cli, cli_text(w->bundle, "state"), 0);
                if (outcome == WAIT_DELIVERED)
                        putchar('\n');
                else
                        cli_line("%s%s; `neuron-collect explain %s` says more", *why ? ": " : "",
                                 why, w->id);
        }
        return outcome == WAIT_DELIVERED ? CLI_YES : CLI_NO;
}

static int wait_until_end(Wait *w) {
        Clock *clock = clock_system();
        uint64_t begin = clock->boottime_usec(clock);
        for (;;) {
                Waiting outcome = WAIT_ON;
                int code = w->id ? look_one(w, &outcome) : look_all(w, &outcome);
                if (code != CLI_YES)
                        return code;
                uint64_t waited = clock->boottime_usec(clock) - begin;
                if (outcome != WAIT_ON || waited >= w->timeout_usec) {
                        cli_progress_end();
                        return w->id ? finish_one(w, outcome) : finish_all(w, outcome);
                }
                (void)usleep((useconds_t)MIN(
                        LOOK_USEC,
                        w->timeout_usec - waited)); /* a signal only makes us look sooner */
        }
}

int cmd_wait(const Cli *cli, int argc, char **argv) {
        static const struct option options[] = { { "all", no_argument, NULL, 'a' },
                                                 { "timeout", required_argument, NULL, 't' },
                                                 { 0 } };
        Wait w = { .cli = cli, .timeout_usec = USEC_INFINITY };
        bool all = false;
        int o;
        while ((o = cli_option(argv[0], argc, argv, ":", options)) >= 0)
                switch (o) {
                case 'a':
                        all = true;
                        break;
                case 't':
                        if (parse_time_usec(optarg, &w.timeout_usec) < 0)
                                return cli_usage(argv[0],
                                                 "--timeout '%s' is no time; write 30s or 10m",
                                                 optarg);
                        break;
                default:
                        return CLI_USAGE;
                }
        if (argc - optind > 1 || (all && optind < argc))
                return cli_usage(argv[0], "wants one bundle id, or --all");
        w.id = argv[optind];
        if (w.id && !*w.id)
                return cli_usage(argv[0], "wants one bundle id, and not an empty one");
        int code = wait_until_end(&w);
        json_decref(w.bundle);
        json_decref(w.counts);
        return code;
}
