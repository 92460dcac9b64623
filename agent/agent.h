/* The agent: owns one of each room and introduces them. */
#pragma once

#include <stdbool.h>
#include <systemd/sd-event.h>

#include "agent/api/view.h"
#include "agent/bundle.h"
#include "agent/intake.h"
#include "agent/pipeline.h"
#include "config/config.h"

typedef struct Agent Agent;

/** @param config  taken over
 * @param once     no API socket is needed, and agent_is_through() will be asked
 * @return 0; AGENT_E_LOCKED: another agent has the state directory (said in the log); -errno (said in the log) */
enum { AGENT_E_LOCKED = 1 };
int agent_new(Agent **ret, sd_event *event, Config *config, bool once);
Agent *agent_free(Agent *a);

/** Reads the configuration file again. A faulty one changes nothing and is told in the log and in status.
 * @return 0, CONFIG_E_FAULTY, -errno */
int agent_reload(Agent *a);

/** Scans everything and tries everything now. @param flush  takes what settles as if `settle` were over */
void agent_flush(Agent *a, bool flush);

/** @return whether nothing more will happen by itself but retries: everything found is delivered, or has failed by its own fault */
bool agent_is_through(Agent *a);

/** Prints a line for each bundle that is not delivered. @return how many */
size_t agent_print_left(Agent *a, FILE *f);

/** Tells systemd in one line how it stands (STATUS=); done by itself whenever a bundle begins, is ready or ends. */
void agent_tell_status(Agent *a);
