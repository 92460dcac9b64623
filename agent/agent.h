/* The agent: owns one of each room and introduces them. */
#pragma once

#include <stdbool.h>
#include <systemd/sd-event.h>

#include "agent/api/view.h"
#include "agent/delivery/scheduler.h"
#include "agent/intake/intake.h"
#include "agent/store/bundle.h"
#include "config/config.h"

typedef struct Agent Agent;

/** @param config  taken over
 * @param once     no API socket is needed, and agent_is_through() will be asked
 * @return 0; AGENT_E_LOCKED: another agent has the state directory (said in the log); -errno (said in the log) */
enum { AGENT_E_LOCKED = 1 };
int agent_new(Agent **ret, sd_event *event, Config *config, bool once);
Agent *agent_free(Agent *a);

/** Reads the configuration file again. A faulty one changes nothing and is told in the log and in status. Where deliveries have to be begun
 * anew, what is under way first has a few seconds to end well; asked for again meanwhile, it reads the file once more.
 * @param on_done  once it is in force, or refused; perhaps from inside */
void agent_reload(Agent *a, void (*on_done)(void *userdata), void *userdata);

/** Stops in good order within 5 s: nothing new begins, parts that are under way arrive or are written down. Then on_stopped, once; from inside only
 * if no timer can be had. */
void agent_stop(Agent *a, void (*on_stopped)(void *userdata), void *userdata);

/** Scans everything and tries everything now. @param flush  takes what settles as if `settle` were over */
void agent_flush(Agent *a, bool flush);

/** @return whether nothing more will happen by itself but retries: everything found is delivered, or has failed by its own fault */
bool agent_is_through(Agent *a);

/** Prints a line for each bundle that is not delivered. @return how many */
size_t agent_print_left(Agent *a, FILE *f);

/** Tells systemd in one line how it stands (STATUS=); done by itself whenever a bundle begins, is ready or ends. */
void agent_tell_status(Agent *a);
