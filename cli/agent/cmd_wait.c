/* neuron-collect wait, drain: ask the agent until there is an end, drawing the progress, then
 * report what is not delivered and why. What a bundle waits for, and whether the node is safe to
 * terminate, is decided by the agent: whoever reads `safe to terminate` may destroy the node, so it
 * is printed only when the agent says it. */
#include <string.h>

#include "cli/common/cli.h"
#include "cli/common/client.h"
#include "lib/base/clock.h"
#include "lib/base/parse.h"
#include "lib/base/strbuf.h"
#include "lib/neuron/bundle_name.h"
#include "lib/neuron/ids.h"

/* The agent answers from memory, but a node that is drained needs its CPU for other work. */
#define POLL_FIRST_USEC (200 * USEC_PER_MSEC)
#define POLL_DRAIN_USEC (1 * USEC_PER_SEC)
#define PAGE_MAX 100
#define UNDELIVERED_MAX 1000 /* of a state */
#define OBSTACLE_SIZE 512

typedef enum WaitOutcome { WAIT_PENDING, WAIT_DONE, WAIT_STUCK, WAIT_CANCELLED } WaitOutcome;

typedef struct Wait {
        const Cli *cli;
        const char *id; /* NULL = all */
        bool is_drain;
        uint64_t timeout_usec, poll_max_usec;
        json_t *status, *bundle; /* the agent's last answers */
        uint64_t begin_usec;     /* CLOCK_REALTIME */
        uint64_t n_evicted;      /* at the first check of all */
        bool has_checked;
        WaitOutcome outcome;
        int (*check)(struct Wait *w);
        int (*finish)(const struct Wait *w);
} Wait;

static int request(const Wait *w, const char *method, const char *path, json_t **ret) {
        int code = cli_request(w->cli, method, path, ret);
        if (code == CLI_NO_AGENT && w->is_drain)
                cli_error("an agent that does not run ships nothing: not safe to terminate");
        return code;
}

static int request_status(Wait *w) {
        json_t *status = NULL;
        int code = request(w, "GET", "/v1/status", &status);
        if (code != CLI_YES)
                return code;
        json_decref(w->status);
        w->status = status;
        return CLI_YES;
}

/* ---- what keeps a bundle from being delivered ---- */

static bool is_delivered(const json_t *delivery) {
        return strcmp(cli_text(delivery, "state"), "delivered") == 0;
}

/* @return whether the agent no longer works on a bundle in this state, and has not delivered it */
static bool is_given_up(const char *state) {
        static const char *const states[] = { "quarantined", "cancelled", "evicted", "vanished" };
        return parse_word(state, states, ELEMENTSOF(states)) >= 0;
}

/* @return whether the agent has a source or destination of this name; true when its answer has no
 * such list */
static bool is_configured(const json_t *list, const char *name) {
        return !json_is_array(list) || cli_find(list, "name", name);
}

/* @return a destination that the bundle waits for and that is no longer configured; NULL: none, or
 * the bundle also waits for one that is configured */
static const char *find_removed_destination(const json_t *bundle, const json_t *status) {
        const char *lost = NULL;
        size_t i;
        json_t *d;
        json_array_foreach(json_object_get(bundle, "deliveries"), i, d) {
                if (is_delivered(d))
                        continue;
                lost = cli_text(d, "destination");
                if (is_configured(json_object_get(status, "destinations"), lost))
                        return NULL;
        }
        return lost;
}

/* @return why a destination that the bundle waits for takes no bundles, in buf; "": all take them.
 * @param buf  of at least OBSTACLE_SIZE bytes */
static const char *destination_error(const json_t *bundle, const json_t *status, char *buf) {
        size_t i;
        json_t *d;
        buf[0] = '\0';
        json_array_foreach(json_object_get(bundle, "deliveries"), i, d) {
                const char *name = cli_text(d, "destination");
                const json_t *of = cli_find(json_object_get(status, "destinations"), "name", name);
                if (!is_delivered(d) && of && strcmp(cli_text(of, "state"), "ok") != 0)
                        snprintf(buf, OBSTACLE_SIZE, "destination '%s' is %s: %s", name,
                                 cli_text(of, "state"), cli_text(of, "last_error"));
                else if (!buf[0] && !is_delivered(d) && *cli_text(d, "last_error"))
                        snprintf(buf, OBSTACLE_SIZE, "destination '%s': %s", name,
                                 cli_text(d, "last_error"));
        }
        return buf;
}

/* @return why a bundle is not delivered: the error of a destination that it waits for, else its own
 * reason; "": unknown; borrowed. @param buf  of at least OBSTACLE_SIZE bytes */
static const char *reason_of(const json_t *bundle, const json_t *status, char *buf) {
        static const char *const waiting[] = { "ready", "shipping" };
        const char *own = cli_text(bundle, "reason");
        if (parse_word(cli_text(bundle, "state"), waiting, ELEMENTSOF(waiting)) < 0)
                return own;
        return *destination_error(bundle, status, buf) ? buf : own;
}

/* @return why the agent will never deliver the bundle with its present configuration; NULL: it may.
 * @param buf  of at least OBSTACLE_SIZE bytes */
static const char *obstacle_of(const json_t *bundle, const json_t *status, char *buf) {
        const char *state = cli_text(bundle, "state"), *source = cli_text(bundle, "source");
        if (is_given_up(state))
                return cli_text(bundle, "reason");
        bool has_source = is_configured(json_object_get(status, "sources"), source);
        const char *lost =
                strcmp(state, "settling") == 0 ? NULL : find_removed_destination(bundle, status);
        if (has_source && !lost)
                return NULL;
        snprintf(buf, OBSTACLE_SIZE,
                 "its %s '%s' is no longer configured; add it again, %sor `neuron-collect cancel` "
                 "the bundle",
                 has_source ? "destination" : "source", has_source ? lost : source,
                 has_source ? "`neuron-collect redeliver` to those that are, " : "");
        return buf;
}

/* @return whether the agent has discarded a bundle undelivered while this command waited */
static bool has_discarded(const Wait *w) {
        return cli_number(json_object_get(w->status, "bundles"), "evicted") > w->n_evicted;
}

/* ---- printing ---- */

static void print_undelivered(const Wait *w, const json_t *bundle) {
        char buf[OBSTACLE_SIZE];
        const char *obstacle = w->is_drain ? obstacle_of(bundle, w->status, buf) : NULL,
                   *why = obstacle ? obstacle : reason_of(bundle, w->status, buf);
        cli_part("%s ", cli_text(bundle, "id"));
        cli_state(w->cli, cli_text(bundle, "state"), 0);
        cli_line("%s%s", *why ? ": " : "", why);
}

/* A place in the list of the bundles of one state, which the agent gives page by page. */
typedef struct PageWalk {
        const char *state;
        unsigned limit;            /* of a page */
        char next[BUNDLE_ID_SIZE]; /* the page begins behind this bundle; "" = the first page */
} PageWalk;

/* Requests the next page of bundles. @return CLI_YES and *ret; walk->next becomes "" after the last
 * page, and when the agent's answer names no later one, so that no answer is asked for twice */
static int request_page(const Wait *w, PageWalk *walk, json_t **ret) {
        char path[64 + BUNDLE_ID_SIZE];
        snprintf(path, sizeof path, "/v1/bundles?limit=%u&state=%s%s%s", walk->limit, walk->state,
                 *walk->next ? "&after=" : "", walk->next);
        int code = request(w, "GET", path, ret);
        if (code != CLI_YES)
                return code;
        const char *next = cli_text(*ret, "next");
        bool leads_further = bundle_id_is_valid(next) && strcmp(next, walk->next) != 0;
        snprintf(walk->next, sizeof walk->next, "%s", leads_further ? next : "");
        return CLI_YES;
}

/* Reports the bundles in this state, at most UNDELIVERED_MAX. Of evicted bundles only those that
 * were evicted since the command began: bundles are listed by the time of their discovery, so the
 * whole list is read for them.
 * @param list  where to add them for --json; NULL: printed */
static int report_state(const Wait *w, const char *state, json_t *list, size_t *n_reported) {
        PageWalk walk = { .state = state, .limit = UNDELIVERED_MAX };
        char begin[CLOCK_ISO_SIZE];
        bool is_evicted = strcmp(state, "evicted") == 0, is_cut = false;
        size_t n = 0, i;
        clock_format_iso(begin, w->begin_usec);
        do {
                json_auto_t *page = NULL;
                json_t *b;
                int code = request_page(w, &walk, &page);
                if (code != CLI_YES)
                        return code;
                json_array_foreach(json_object_get(page, "bundles"), i, b) {
                        if (is_evicted && strcmp(cli_text(b, "changed"), begin) < 0)
                                continue;
                        is_cut = n == UNDELIVERED_MAX;
                        if (is_cut)
                                break;
                        if (list)
                                json_array_append(list, b);
                        else
                                print_undelivered(w, b);
                        n++;
                }
        } while (is_evicted && *walk.next && !is_cut);
        if (!list && (is_cut || *walk.next))
                cli_line("… and more; see `neuron-collect list --state %s`", state);
        *n_reported += n;
        return CLI_YES;
}

/* Reports each bundle that is not delivered and not released, and for `wait --all` each one that
 * was discarded meanwhile. With --json they become the member `left` of `answer`, which is printed.
 * @param answer  stolen */
static int report_undelivered(const Wait *w, json_t *answer) {
        static const char *const states[] = { "settling", "ready", "shipping", "quarantined" };
        json_auto_t *stolen = answer, *list = w->cli->json ? json_array() : NULL;
        int code = CLI_YES;
        size_t n_reported = 0;
        for (size_t i = 0; w->outcome != WAIT_DONE && code == CLI_YES && i < ELEMENTSOF(states);
             i++)
                code = report_state(w, states[i], list, &n_reported);
        if (w->outcome != WAIT_DONE && code == CLI_YES && n_reported == 0)
                /* one whose attempt has failed was ready, shipping and ready between the requests
                 */
                code = report_state(w, "ready", list, &n_reported);
        if (code == CLI_YES && !w->is_drain && has_discarded(w))
                code = report_state(w, "evicted", list, &n_reported);
        if (code == CLI_YES && w->cli->json)
                code = cli_print_json(w->cli,
                                      json_object_set(stolen, "left", list) == 0 ? stolen : NULL);
        return code != CLI_YES ? code : w->outcome == WAIT_DONE ? CLI_YES : CLI_NO;
}

/* Draws the progress. @param what  is drawn before the bar, or alone when nothing is shipped */
static void draw(const Wait *w, const char *what) {
        const json_t *list = json_object_get(w->status, "shipping"),
                     *s = w->id ? cli_find(list, "id", w->id) : json_array_get(list, 0);
        CliCopy copy = cli_copy(s);
        if (s)
                cli_draw_copy(w->cli, what, &copy);
        else
                cli_progress(w->cli, "%s", what);
}

static uint64_t count_moving(const Wait *w) {
        const json_t *bundles = json_object_get(w->status, "bundles");
        return cli_number(bundles, "settling") + cli_number(bundles, "ready") +
               cli_number(bundles, "shipping");
}

/* ---- waiting ---- */

static int wait_until_end(Wait *w) {
        uint64_t begin = clock_boottime_usec(), pause = POLL_FIRST_USEC;
        for (;;) {
                int code = w->check(w);
                if (code != CLI_YES)
                        return code;
                uint64_t waited = clock_boottime_usec() - begin;
                if (cli_is_interrupted()) { /* only drain catches signals */
                        return cli_error(
                                "interrupted; the agent continues to drain: run the same command "
                                "to wait again, or `neuron-collect resume` to cancel");
                }
                if (w->outcome != WAIT_PENDING || waited >= w->timeout_usec) {
                        cli_progress_end();
                        return w->finish(w);
                }
                (void)usleep((useconds_t)MIN(pause, w->timeout_usec - waited)); /* or a signal */
                pause = MIN(2 * pause, w->poll_max_usec);
        }
}

/* @return a Cli whose requests end at --timeout, so that an agent that hangs delays the command no
 * longer */
static Cli with_deadline(const Cli *cli, uint64_t timeout_usec) {
        Cli c = *cli;
        uint64_t now = clock_boottime_usec();
        if (timeout_usec < USEC_INFINITY - now)
                c.deadline_usec = now + timeout_usec;
        return c;
}

static const char duration_example[] = "30s or 10m";

/* ---- wait ---- */

static int check_one(Wait *w) {
        json_t *b = NULL;
        int code = cli_request_bundle(w->cli, w->id, NULL, &b);
        if (code != CLI_YES)
                return code;
        json_decref(w->bundle);
        w->bundle = b;
        const char *state = cli_text(b, "state");
        w->outcome = is_delivered(b) ? WAIT_DONE : is_given_up(state) ? WAIT_STUCK : WAIT_PENDING;
        if (w->outcome != WAIT_PENDING || !w->cli->progress)
                return CLI_YES;
        code = request_status(w);
        if (code == CLI_YES)
                draw(w, state);
        return code;
}

/* @return a list, the caller's, of `source NAME: WHY` for each source that the agent cannot read
 * completely */
static json_t *list_unseen(const json_t *status) {
        json_t *list = json_array(), *s;
        size_t i;
        json_array_foreach(json_object_get(status, "sources"), i, s) {
                _cleanup_free_ char *line =
                        strbuf_format("source %s: %s", cli_text(s, "name"), cli_text(s, "unseen"));
                if (line && *cli_text(s, "unseen"))
                        json_array_append_new(list, cli_json_string(line));
        }
        return list;
}

static bool has_unseen(const json_t *status) {
        json_auto_t *list = list_unseen(status);
        return json_array_size(list) > 0;
}

static int check_all(Wait *w) {
        int code = request_status(w);
        if (code != CLI_YES)
                return code;
        const json_t *bundles = json_object_get(w->status, "bundles");
        if (!w->has_checked)
                w->n_evicted = cli_number(bundles, "evicted");
        w->has_checked = true;
        if (cli_is_true(w->status, "idle")) {
                w->outcome = cli_number(bundles, "quarantined") > 0 || has_unseen(w->status) ||
                                             has_discarded(w)
                                     ? WAIT_STUCK
                                     : WAIT_DONE;
                return CLI_YES;
        }
        char what[64];
        uint64_t n = count_moving(w);
        snprintf(what, sizeof what, "%llu waiting", (unsigned long long)n);
        draw(w, n ? what : "scanning");
        return CLI_YES;
}

static void print_discarded(const json_t *status) {
        uint64_t n = cli_number(json_object_get(status, "bundles"), "evicted");
        char count[CLI_COUNT_SIZE];
        if (n > 0)
                cli_line("note: %s discarded undelivered, for lack of disk space; `neuron-collect "
                         "list --state evicted` shows %s",
                         cli_count(count, n, "bundle"), n == 1 ? "it" : "them");
}

/* Bundles that were released undelivered are not waited for, but they are counted here. */
static void print_all_delivered(const Wait *w) {
        static const char *const lost[] = { "cancelled", "evicted", "vanished" };
        const json_t *bundles = json_object_get(w->status, "bundles");
        char n[CLI_COUNT_SIZE];
        cli_part("everything is delivered: %s",
                 cli_count(n, cli_number(bundles, "delivered"), "bundle"));
        for (size_t i = 0; i < ELEMENTSOF(lost); i++)
                if (cli_number(bundles, lost[i]))
                        cli_part(", %llu %s", cli_number(bundles, lost[i]), lost[i]);
        putchar('\n');
        print_discarded(w->status);
}

static int finish_all(const Wait *w) {
        json_auto_t *unseen = list_unseen(w->status);
        size_t i;
        const json_t *line;
        if (w->outcome == WAIT_DONE && !w->cli->json)
                print_all_delivered(w);
        json_t *answer = json_pack("{s:b}", "delivered", w->outcome == WAIT_DONE);
        if (json_array_size(unseen) > 0)
                json_object_set(answer, "unseen", unseen); /* without memory `delivered` is false */
        if (!w->cli->json)
                json_array_foreach(unseen, i, line) cli_line("%s", json_string_value(line));
        return report_undelivered(w, answer);
}

#define LAST_WORD_MSEC 5000

/* Prints how the wait for one bundle ended, and why it is not delivered. The reasons of
 * destinations need one more request; without an answer the bundle's own reason is printed. */
static int finish_one(const Wait *w) {
        char buf[OBSTACLE_SIZE];
        _cleanup_(client_reply_done) ClientReply reply = { 0 };
        bool is_pending = w->outcome == WAIT_PENDING && !w->cli->json;
        if (is_pending &&
            client_request(w->cli->socket, "GET", "/v1/status", LAST_WORD_MSEC, &reply) != 0)
                reply.json = NULL;
        const char *why = reason_of(w->bundle, reply.json, buf);
        int code = w->cli->json ? cli_print_json(w->cli, w->bundle) : CLI_YES;
        if (code != CLI_YES)
                return code;
        if (!w->cli->json) {
                cli_part("%s %s ", w->id, w->outcome == WAIT_PENDING ? "is still" : "is");
                cli_state(w->cli, cli_text(w->bundle, "state"), 0);
                if (w->outcome == WAIT_DONE)
                        putchar('\n');
                else
                        cli_line("%s%s; see `neuron-collect explain %s`", *why ? ": " : "", why,
                                 w->id);
        }
        return w->outcome == WAIT_DONE ? CLI_YES : CLI_NO;
}

int cmd_wait(const Cli *cli, int argc, char **argv) {
        Wait w = { .timeout_usec = USEC_INFINITY,
                   .poll_max_usec = POLL_FIRST_USEC,
                   .begin_usec = clock_realtime_usec() };
        bool all = false;
        const char *timeout = NULL;
        const CliOption options[] = { { "all", .is_given = &all },
                                      { "timeout", .value = &timeout },
                                      { 0 } };
        int code = cli_options(argv[0], argc, argv, options);
        if (code == CLI_YES)
                code = cli_duration(argv[0], timeout, duration_example, &w.timeout_usec);
        if (code != CLI_YES)
                return code;
        if (argc - optind > 1 || (all && optind < argc))
                return cli_usage(argv[0], "requires one bundle id, or --all");
        w.id = argv[optind];
        if (w.id && !*w.id)
                return cli_usage(argv[0], "requires a bundle id that is not empty");
        w.check = w.id ? check_one : check_all;
        w.finish = w.id ? finish_one : finish_all;
        Cli timed = with_deadline(cli, w.timeout_usec);
        w.cli = &timed;
        code = wait_until_end(&w);
        json_decref(w.bundle);
        json_decref(w.status);
        return code;
}

/* ---- drain ---- */

/* Searches, page after page, for a bundle in this state that the agent may yet deliver.
 * @param n_seen  the number of bundles checked is added */
static int find_movable(const Wait *w, const char *state, bool *ret, uint64_t *n_seen) {
        PageWalk walk = { .state = state, .limit = PAGE_MAX };
        char obstacle[OBSTACLE_SIZE];
        do {
                json_auto_t *page = NULL;
                json_t *b;
                size_t i;
                int code = request_page(w, &walk, &page);
                if (code != CLI_YES)
                        return code;
                json_array_foreach(json_object_get(page, "bundles"), i, b) *ret =
                        *ret || !obstacle_of(b, w->status, obstacle);
                *n_seen += i;
        } while (!*ret && *walk.next);
        return CLI_YES;
}

/* Ends the wait when the agent will deliver none of the remaining bundles: it gave them up, they
 * wait for a destination that is no longer configured, or it cannot read them. */
static int check_hopeless(Wait *w) {
        static const char *const waiting[] = { "settling", "ready" };
        const json_t *bundles = json_object_get(w->status, "bundles");
        uint64_t n_waiting = cli_number(bundles, "settling") + cli_number(bundles, "ready");
        bool hope = cli_number(bundles, "shipping") > 0 ||
                    json_array_size(json_object_get(w->status, "shipping")) > 0;
        uint64_t n_seen = 0;
        int code = CLI_YES;
        if (n_waiting == 0) /* what was found may not be counted yet */
                hope = hope || !cli_is_true(w->status, "idle") ||
                       (cli_number(bundles, "quarantined") == 0 && !has_unseen(w->status));
        for (size_t i = 0; n_waiting > 0 && !hope && code == CLI_YES && i < ELEMENTSOF(waiting);
             i++)
                code = find_movable(w, waiting[i], &hope, &n_seen);
        hope = hope || n_seen < n_waiting; /* one changed its state between the requests */
        w->outcome = hope ? WAIT_PENDING : WAIT_STUCK;
        return code;
}

static int check_drain(Wait *w) {
        char what[64];
        int code = request_status(w);
        if (code != CLI_YES)
                return code;
        const json_t *drain = json_object_get(w->status, "drain");
        if (!json_is_object(drain))
                w->outcome = WAIT_CANCELLED;
        else if (cli_is_true(drain, "safe_to_terminate"))
                w->outcome = WAIT_DONE;
        else
                code = check_hopeless(w);
        if (code != CLI_YES || w->outcome != WAIT_PENDING)
                return code;
        snprintf(what, sizeof what, "draining, %llu left", (unsigned long long)count_moving(w));
        draw(w, what);
        return CLI_YES;
}

/* A bundle is safe when the destinations have it that its source had when it was found.
 * Destinations that were added later may lack it. */
static void print_lacking(const json_t *status) {
        char n[CLI_COUNT_SIZE];
        size_t i;
        json_t *d;
        json_array_foreach(json_object_get(status, "destinations"), i, d) {
                if (cli_number(d, "lacking"))
                        cli_line("note: %s delivered to other destinations, never to '%s'; "
                                 "`neuron-collect redeliver` ships those whose files are still "
                                 "there",
                                 cli_count(n, cli_number(d, "lacking"), "bundle"),
                                 cli_text(d, "name"));
        }
}

static int finish_drain(const Wait *w) {
        const json_t *drain = json_object_get(w->status, "drain");
        const char *missing = w->outcome == WAIT_DONE        ? ""
                              : w->outcome == WAIT_CANCELLED ? "the drain was cancelled by `resume`"
                              : *cli_text(drain, "missing")  ? cli_text(drain, "missing")
                                                             : "not everything is delivered";
        if (!w->cli->json && w->outcome == WAIT_DONE) {
                cli_line("safe to terminate");
                print_lacking(w->status);
        } else if (!w->cli->json)
                cli_line("not safe to terminate: %s", missing);
        if (!w->cli->json)
                print_discarded(w->status);
        return report_undelivered(w, json_pack("{s:b, s:o}", "safe_to_terminate",
                                               w->outcome == WAIT_DONE, "missing",
                                               cli_json_string(*missing ? missing : NULL)));
}

int cmd_drain(const Cli *cli, int argc, char **argv) {
        Wait w = { .is_drain = true,
                   .timeout_usec = USEC_INFINITY,
                   .poll_max_usec = POLL_DRAIN_USEC,
                   .check = check_drain,
                   .finish = finish_drain };
        json_auto_t *answer = NULL;
        const char *timeout = NULL;
        const CliOption options[] = { { "timeout", .value = &timeout }, { 0 } };
        int code = cli_options_only(argc, argv, options);
        if (code == CLI_YES)
                code = cli_duration(argv[0], timeout, duration_example, &w.timeout_usec);
        if (code != CLI_YES)
                return code;
        cli_catch_signals();
        Cli timed = with_deadline(cli, w.timeout_usec);
        w.cli = &timed;
        code = request(&w, "POST", "/v1/drain", &answer);
        if (code == CLI_YES)
                code = wait_until_end(&w);
        json_decref(w.status);
        return code;
}
