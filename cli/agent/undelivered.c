#include "cli/agent/undelivered.h"

#include <string.h>

#include "lib/base/clock.h"
#include "lib/base/parse.h"

#define UNDELIVERED_MAX 1000 /* of a state */

bool undelivered_is_given_up(const char *state) {
        static const char *const states[] = { "quarantined", "cancelled", "evicted", "vanished" };
        for (size_t i = 0; i < ELEMENTSOF(states); i++)
                if (strcmp(state, states[i]) == 0)
                        return true;
        return false;
}

const char *undelivered_reason(const json_t *bundle) {
        if (*cli_text(bundle, "reason") || undelivered_is_given_up(cli_text(bundle, "state")))
                return cli_text(bundle, "reason");
        size_t i;
        json_t *d;
        json_array_foreach(json_object_get(bundle, "deliveries"), i,
                           d) if (strcmp(cli_text(d, "state"), "delivered") != 0 &&
                                  *cli_text(d, "last_error")) return cli_text(d, "last_error");
        return "";
}

/* ---- obstacles ---- */

/* @return whether the agent has a source or destination of this name; of what is no list nothing is
 * known, so it may */
static bool is_configured(const json_t *list, const char *name) {
        size_t i;
        json_t *one;
        json_array_foreach(list, i, one) if (strcmp(cli_text(one, "name"), name) == 0) return true;
        return !json_is_array(list);
}

/* @return a destination that lacks the bundle and is not configured, when there is no other that
 * lacks it; NULL */
static const char *find_removed_destination(const json_t *bundle, const json_t *status) {
        const json_t *destinations = json_object_get(status, "destinations");
        const char *lost = NULL;
        size_t i;
        json_t *d;
        json_array_foreach(json_object_get(bundle, "deliveries"), i, d) {
                if (strcmp(cli_text(d, "state"), "delivered") == 0)
                        continue;
                if (is_configured(destinations, cli_text(d, "destination")))
                        return NULL;
                lost = cli_text(d, "destination");
        }
        return lost;
}

const char *undelivered_obstacle(const json_t *bundle, const json_t *status, char *buf) {
        const char *state = cli_text(bundle, "state"), *source = cli_text(bundle, "source");
        if (undelivered_is_given_up(state)) {
                snprintf(buf, UNDELIVERED_OBSTACLE_SIZE, "%s", undelivered_reason(bundle));
                return buf;
        }
        bool has_source = is_configured(json_object_get(status, "sources"), source);
        const char *lost =
                strcmp(state, "settling") == 0 ? NULL : find_removed_destination(bundle, status);
        if (has_source && !lost)
                return NULL;
        snprintf(buf, UNDELIVERED_OBSTACLE_SIZE,
                 "its %s '%s' is no longer configured; add it again, or `neuron-collect cancel` "
                 "the bundle",
                 has_source ? "destination" : "source", has_source ? lost : source);
        return buf;
}

/* ---- drawing ---- */

/* @return the shipping that is to be drawn, borrowed; NULL */
static const json_t *find_shipping(const json_t *status, const char *id) {
        size_t i;
        json_t *s;
        json_array_foreach(json_object_get(status, "shipping"), i,
                           s) if (!id || strcmp(cli_text(s, "id"), id) == 0) return s;
        return NULL;
}

void undelivered_draw_progress(const Cli *cli, const json_t *status, const char *id,
                               const char *what) {
        const json_t *s = find_shipping(status, id);
        CliCopy copy = cli_copy(s);
        if (s)
                cli_draw_copy(cli, what, &copy);
        else
                cli_progress(cli, "%s", what);
}

/* ---- printing ---- */

/* What keeps a destination from taking bundles is reported there, once, and not of each bundle that
 * waits for it. */
static const char *destination_error(const json_t *bundle, const json_t *status, char *buf) {
        size_t i, j;
        json_t *d, *destination;
        buf[0] = '\0';
        json_array_foreach(json_object_get(bundle, "deliveries"), i, d) {
                if (strcmp(cli_text(d, "state"), "delivered") == 0)
                        continue;
                json_array_foreach(json_object_get(status, "destinations"), j, destination) {
                        const char *name = cli_text(destination, "name"),
                                   *state = cli_text(destination, "state");
                        if (strcmp(name, cli_text(d, "destination")) == 0 &&
                            strcmp(state, "ok") != 0)
                                snprintf(buf, UNDELIVERED_OBSTACLE_SIZE,
                                         "destination '%s' is %s: %s", name, state,
                                         cli_text(destination, "last_error"));
                }
        }
        return buf;
}

static void print_one(const Cli *cli, const json_t *bundle, const json_t *status) {
        char buf[UNDELIVERED_OBSTACLE_SIZE];
        const char *obstacle = status ? undelivered_obstacle(bundle, status, buf) : NULL,
                   *why = obstacle ? obstacle : undelivered_reason(bundle);
        if (!*why && status)
                why = destination_error(bundle, status, buf);
        cli_part("%s ", cli_text(bundle, "id"));
        cli_state(cli, cli_text(bundle, "state"), 0);
        cli_line("%s%s", *why ? ": " : "", why);
}

static int print_state(const Cli *cli, const char *state, const json_t *status, json_t *list) {
        char path[96];
        json_t *page = NULL, *b;
        size_t i;
        snprintf(path, sizeof path, "/v1/bundles?limit=%d&state=%s", UNDELIVERED_MAX, state);
        int code = cli_request(cli, "GET", path, &page);
        if (code != CLI_YES)
                return code;
        json_array_foreach(json_object_get(page, "bundles"), i, b) {
                if (list)
                        json_array_append(list, b);
                else
                        print_one(cli, b, status);
        }
        if (!list && *cli_text(page, "next"))
                cli_line("… and more; see `neuron-collect list --state %s`", state);
        json_decref(page);
        return CLI_YES;
}

int undelivered_print(const Cli *cli, const json_t *status, json_t *list) {
        static const char *const left[] = { "settling", "ready", "shipping", "quarantined" };
        int code = CLI_YES;
        for (size_t i = 0; code == CLI_YES && i < ELEMENTSOF(left); i++)
                code = print_state(cli, left[i], status, list);
        return code;
}
