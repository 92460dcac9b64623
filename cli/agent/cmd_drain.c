/* neuron-collect drain, resume: what is asked before a node is taken away. Who reads `safe to
 * terminate` may destroy the node, so it is said only when the agent says it. */
#include <string.h>

#include "cli/agent/undelivered.h"
#include "lib/base/clock.h"
#include "lib/base/parse.h"
#include "lib/neuron/ids.h"

/* The agent answers from memory, but a node that is drained has other things to do. */
#define POLL_FIRST_USEC (200 * USEC_PER_MSEC)
#define POLL_MAX_USEC (1 * USEC_PER_SEC)
#define PAGE_MAX 100

typedef struct Drain {
        const Cli *cli;
        uint64_t timeout_usec;
        json_t *status; /* as it was last seen */
} Drain;

typedef enum DrainOutcome { DRAIN_WAITING, DRAIN_SAFE, DRAIN_STUCK, DRAIN_RESUMED } DrainOutcome;

/* An agent that has gone while one waited for it is the one that was to ship. */
static int request(const Cli *cli, const char *method, const char *path, json_t **ret) {
        int code = cli_request(cli, method, path, ret);
        if (code == CLI_NO_AGENT)
                cli_error("an agent that does not run ships nothing: not safe to terminate");
        return code;
}

/* ---- can waiting help ---- */

/* Searches, page after page, for a bundle in this state that something may move. @param n_seen  the
 * bundles checked are added */
static int find_movable(const Drain *d, const char *state, bool *ret, uint64_t *n_seen) {
        char path[64 + BUNDLE_ID_SIZE], next[BUNDLE_ID_SIZE] = "", last[BUNDLE_ID_SIZE],
                                        obstacle[UNDELIVERED_OBSTACLE_SIZE];
        do {
                json_t *page = NULL, *b;
                size_t i;
                snprintf(path, sizeof path, "/v1/bundles?limit=%d&state=%s%s%s", PAGE_MAX, state,
                         *next ? "&after=" : "", next);
                int code = request(d->cli, "GET", path, &page);
                if (code != CLI_YES)
                        return code;
                json_array_foreach(json_object_get(page, "bundles"), i, b) *ret =
                        *ret || !undelivered_obstacle(b, d->status, obstacle);
                *n_seen += i;
                memcpy(last, next, sizeof last);
                snprintf(next, sizeof next, "%s", cli_text(page, "next"));
                json_decref(page);
        } while (!*ret && bundle_id_is_valid(next) && strcmp(next, last) != 0);
        return CLI_YES;
}

/* Waiting is in vain when all that is left was given up, or waits for what is not configured any
 * more. */
static int decide_hopeless(const Drain *d, DrainOutcome *ret) {
        static const char *const waiting[] = { "settling", "ready" };
        const json_t *bundles = json_object_get(d->status, "bundles");
        uint64_t n_waiting = cli_number(bundles, "settling") + cli_number(bundles, "ready");
        bool hope = cli_number(bundles, "shipping") > 0 ||
                    json_array_size(json_object_get(d->status, "shipping")) > 0;
        uint64_t n_seen = 0;
        int code = CLI_YES;
        if (n_waiting == 0) /* what was found may not be counted yet */
                hope = hope || !cli_is_true(d->status, "idle") ||
                       cli_number(bundles, "quarantined") == 0;
        for (size_t i = 0; n_waiting > 0 && !hope && code == CLI_YES && i < ELEMENTSOF(waiting);
             i++)
                code = find_movable(d, waiting[i], &hope, &n_seen);
        hope = hope || n_seen < n_waiting; /* one has moved between the two questions */
        *ret = hope ? DRAIN_WAITING : DRAIN_STUCK;
        return code;
}

/* ---- waiting ---- */

static void draw(const Drain *d) {
        const json_t *bundles = json_object_get(d->status, "bundles");
        uint64_t n = cli_number(bundles, "settling") + cli_number(bundles, "ready") +
                     cli_number(bundles, "shipping");
        char what[64];
        snprintf(what, sizeof what, "draining, %llu left", (unsigned long long)n);
        undelivered_draw_progress(d->cli, d->status, NULL, what);
}

static int check_drain(Drain *d, DrainOutcome *ret) {
        json_t *status = NULL;
        int code = request(d->cli, "GET", "/v1/status", &status);
        if (code != CLI_YES)
                return code;
        json_decref(d->status);
        d->status = status;
        const json_t *drain = json_object_get(status, "drain");
        if (!json_is_object(drain))
                *ret = DRAIN_RESUMED;
        else if (cli_is_true(drain, "safe_to_terminate"))
                *ret = DRAIN_SAFE;
        else
                code = decide_hopeless(d, ret);
        if (code == CLI_YES && *ret == DRAIN_WAITING)
                draw(d);
        return code;
}

static int finish(const Drain *d, DrainOutcome outcome) {
        const json_t *drain = json_object_get(d->status, "drain");
        const char *missing = outcome == DRAIN_SAFE         ? ""
                              : outcome == DRAIN_RESUMED    ? "the drain was cancelled by `resume`"
                              : *cli_text(drain, "missing") ? cli_text(drain, "missing")
                                                            : "not everything is delivered";
        json_t *list = d->cli->json ? json_array() : NULL;
        int code = CLI_YES;
        if (!d->cli->json && outcome == DRAIN_SAFE)
                cli_line("safe to terminate");
        else if (!d->cli->json)
                cli_line("not safe to terminate: %s", missing);
        if (outcome != DRAIN_SAFE)
                code = undelivered_print(d->cli, d->status, list);
        if (code == CLI_YES && d->cli->json) {
                json_t *answer = json_pack(
                        "{s:b, s:o, s:O}", "safe_to_terminate", outcome == DRAIN_SAFE, "missing",
                        *missing ? cli_json_string(missing) : json_null(), "left", list);
                code = cli_print_json(d->cli, answer);
                json_decref(answer);
        }
        json_decref(list);
        return code != CLI_YES ? code : outcome == DRAIN_SAFE ? CLI_YES : CLI_NO;
}

static int wait_until_end(Drain *d) {
        uint64_t begin = clock_boottime_usec(), pause = POLL_FIRST_USEC;
        for (;;) {
                DrainOutcome outcome = DRAIN_WAITING;
                int code = check_drain(d, &outcome);
                if (code != CLI_YES)
                        return code;
                uint64_t waited = clock_boottime_usec() - begin;
                if (cli_is_interrupted()) {
                        cli_error("interrupted; the agent continues to drain: run the same command "
                                  "to wait again, or `neuron-collect resume` to cancel");
                        return CLI_NO;
                }
                if (outcome != DRAIN_WAITING || waited >= d->timeout_usec) {
                        cli_progress_end();
                        return finish(d, outcome);
                }
                (void)usleep((useconds_t)MIN(pause, d->timeout_usec - waited)); /* or a signal */
                pause = MIN(2 * pause, POLL_MAX_USEC);
        }
}

/* ---- commands ---- */

int cmd_drain(const Cli *cli, int argc, char **argv) {
        static const struct option options[] = { { "timeout", required_argument, NULL, 't' },
                                                 { 0 } };
        Drain d = { .cli = cli, .timeout_usec = USEC_INFINITY };
        json_t *answer = NULL;
        int o;
        while ((o = cli_option(&(CliOptions){ argv[0], ":", options }, argc, argv)) >= 0)
                if (o != 't')
                        return CLI_USAGE;
                else if (parse_duration_usec(optarg, &d.timeout_usec) < 0)
                        return cli_usage(argv[0], "invalid duration '%s'; write 30s or 10m",
                                         optarg);
        if (optind < argc)
                return cli_usage(argv[0], "unexpected argument; only --timeout is accepted");
        cli_catch_signals();
        int code = request(cli, "POST", "/v1/drain", &answer);
        json_decref(answer);
        if (code == CLI_YES)
                code = wait_until_end(&d);
        json_decref(d.status);
        return code;
}

int cmd_resume(const Cli *cli, int argc, char **argv) {
        json_t *answer = NULL;
        int code = cli_no_argument(argc, argv);
        if (code == CLI_YES)
                code = cli_request(cli, "POST", "/v1/resume", &answer);
        if (code == CLI_YES && cli->json)
                code = cli_print_json(cli, answer);
        else if (code == CLI_YES)
                cli_line("drain cancelled");
        json_decref(answer);
        return code;
}
