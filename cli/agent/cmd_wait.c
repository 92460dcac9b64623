/* neuron-collect wait: asks again and again until there is an end, drawing how far it is. */
#include <string.h>

#include "cli/agent/undelivered.h"
#include "lib/base/clock.h"
#include "lib/base/parse.h"

#define POLL_USEC (200 * USEC_PER_MSEC)

typedef enum WaitOutcome { WAIT_PENDING, WAIT_DELIVERED, WAIT_GIVEN_UP } WaitOutcome;

typedef struct Wait {
        const Cli *cli;
        const char *id; /* NULL = all */
        uint64_t timeout_usec;
        json_t *bundle; /* as it was last seen, when there is an id; else NULL */
        json_t *counts; /* of bundles by state when all was checked last; else NULL */
} Wait;

static int check_one(Wait *w, WaitOutcome *ret) {
        json_t *b = NULL, *status = NULL;
        int code = cli_request_bundle(w->cli, w->id, NULL, &b);
        if (code != CLI_YES)
                return code;
        json_decref(w->bundle);
        w->bundle = b;
        const char *state = cli_text(b, "state");
        *ret = strcmp(state, "delivered") == 0  ? WAIT_DELIVERED
               : undelivered_is_given_up(state) ? WAIT_GIVEN_UP
                                                : WAIT_PENDING;
        if (*ret != WAIT_PENDING || !w->cli->progress)
                return CLI_YES;
        code = cli_request(w->cli, "GET", "/v1/status", &status);
        if (code == CLI_YES)
                undelivered_draw_progress(w->cli, status, w->id, state);
        json_decref(status);
        return code;
}

static int check_all(Wait *w, WaitOutcome *ret) {
        json_t *status = NULL;
        int code = cli_request(w->cli, "GET", "/v1/status", &status);
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
                undelivered_draw_progress(w->cli, status, NULL, n ? what : "scanning");
        }
        json_decref(status);
        return CLI_YES;
}

/* What was released undelivered is not waited for, but it is not passed over in silence. */
static void print_all_delivered(const Wait *w) {
        static const char *const lost[] = { "cancelled", "evicted", "vanished" };
        char n[CLI_COUNT_SIZE];
        cli_part("everything is delivered: %s",
                 cli_count(n, cli_number(w->counts, "delivered"), "bundle"));
        for (size_t i = 0; i < ELEMENTSOF(lost); i++)
                if (cli_number(w->counts, lost[i]))
                        cli_part(", %llu %s", (unsigned long long)cli_number(w->counts, lost[i]),
                                 lost[i]);
        putchar('\n');
}

static int finish_all(const Wait *w, WaitOutcome outcome) {
        json_t *list = w->cli->json ? json_array() : NULL;
        int code = outcome == WAIT_DELIVERED ? CLI_YES : undelivered_print(w->cli, NULL, list);
        if (code == CLI_YES && w->cli->json) {
                json_t *answer = json_pack("{s:b, s:O}", "delivered", outcome == WAIT_DELIVERED,
                                           "left", list);
                code = cli_print_json(w->cli, answer);
                json_decref(answer);
        } else if (code == CLI_YES && outcome == WAIT_DELIVERED)
                print_all_delivered(w);
        json_decref(list);
        return code != CLI_YES ? code : outcome == WAIT_DELIVERED ? CLI_YES : CLI_NO;
}

static int finish_one(const Wait *w, WaitOutcome outcome) {
        const char *why = undelivered_reason(w->bundle);
        if (w->cli->json) {
                int code = cli_print_json(w->cli, w->bundle);
                if (code != CLI_YES)
                        return code;
        } else {
                cli_part("%s %s ", w->id, outcome == WAIT_PENDING ? "is still" : "is");
                cli_state(w->cli, cli_text(w->bundle, "state"), 0);
                if (outcome == WAIT_DELIVERED)
                        putchar('\n');
                else
                        cli_line("%s%s; see `neuron-collect explain %s`", *why ? ": " : "", why,
                                 w->id);
        }
        return outcome == WAIT_DELIVERED ? CLI_YES : CLI_NO;
}

static int wait_until_end(Wait *w) {
        uint64_t begin = clock_boottime_usec();
        for (;;) {
                WaitOutcome outcome = WAIT_PENDING;
                int code = w->id ? check_one(w, &outcome) : check_all(w, &outcome);
                if (code != CLI_YES)
                        return code;
                uint64_t waited = clock_boottime_usec() - begin;
                if (outcome != WAIT_PENDING || waited >= w->timeout_usec) {
                        cli_progress_end();
                        return w->id ? finish_one(w, outcome) : finish_all(w, outcome);
                }
                (void)usleep((useconds_t)MIN(
                        POLL_USEC,
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
        while ((o = cli_option(&(CliOptions){ argv[0], ":", options }, argc, argv)) >= 0)
                switch (o) {
                case 'a':
                        all = true;
                        break;
                case 't':
                        if (parse_duration_usec(optarg, &w.timeout_usec) < 0)
                                return cli_usage(argv[0], "invalid duration '%s'; write 30s or 10m",
                                                 optarg);
                        break;
                default:
                        return CLI_USAGE;
                }
        if (argc - optind > 1 || (all && optind < argc))
                return cli_usage(argv[0], "requires one bundle id, or --all");
        w.id = argv[optind];
        if (w.id && !*w.id)
                return cli_usage(argv[0], "requires a bundle id that is not empty");
        int code = wait_until_end(&w);
        json_decref(w.bundle);
        json_decref(w.counts);
        return code;
}
