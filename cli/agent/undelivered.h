/* What is not delivered: drawn while one waits for it, and told when one waits no more. For wait
 * and drain. */
#pragma once

#include "cli/common/cli.h"

/** @return whether a bundle in this state is worked on no more, and was not delivered */
bool undelivered_is_given_up(const char *state);

/** @return why it is not delivered: the bundle's own reason, else what went wrong at a destination;
 * ""; borrowed */
const char *undelivered_reason(const json_t *bundle);

/** @return a sentence why nothing will move the bundle as the agent is configured: given up, or its
 * source or all destinations that lack it are gone from the configuration; NULL when something may.
 * @param status  /v1/status @param buf  at least UNDELIVERED_OBSTACLE_SIZE */
#define UNDELIVERED_OBSTACLE_SIZE 512
const char *undelivered_obstacle(const json_t *bundle, const json_t *status, char *buf);

/** Draws the progress of the bundle, or of what is being shipped. @param id  NULL = any @param what
 * stands before the bar */
void undelivered_draw_progress(const Cli *cli, const json_t *status, const char *id,
                               const char *what);

/** Reports each bundle that is not delivered and not released, a line each: id, state, why. At most
 * 1000 of a state.
 * @param status  to tell obstacles by; NULL @param list  where to gather them for --json; NULL:
 * printed @return an exit code */
int undelivered_print(const Cli *cli, const json_t *status, json_t *list);
