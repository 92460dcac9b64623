/* The agent: owns one object of each of its folders and connects them by callbacks. */
#pragma once

#include <stdbool.h>
#include <systemd/sd-event.h>

#include "agent/api/view.h"
#include "agent/delivery/scheduler.h"
#include "agent/intake/intake.h"
#include "agent/store/bundle.h"
#include "config/config.h"

typedef struct Agent Agent;

/** @param config  now owned by the agent, also on failure
 * @param once     no API socket is needed; the caller polls agent_is_idle()
 * @return 0; AGENT_E_LOCKED: another agent has the state directory; AGENT_E_CONFIG: what is
 * configured does not exist on this node; -errno; all of them logged */
enum { AGENT_E_LOCKED = 1, AGENT_E_CONFIG = 2, AGENT_E_INCOMPLETE = 3 };
int agent_new(Agent **ret, sd_event *event, Config *config, bool once);
Agent *agent_free(Agent *a);

/** Reads the configuration file again. An invalid one changes nothing and is reported by the log
 * and the status. Where deliveries must restart, running ones first have a few seconds to end; a
 * request that comes meanwhile reads the file once more.
 * @param on_done  called when it is in force or refused, perhaps before this function returns */
void agent_reload(Agent *a, void (*on_done)(void *userdata), void *userdata);

/** Stops within 5 s: no delivery starts, running ones are interrupted in a state from which they
 * can be resumed.
 * @param on_stopped  called once; before this function returns only if no timer can be armed */
void agent_stop(Agent *a, void (*on_stopped)(void *userdata), void *userdata);

/** Scans all sources and retries all deliveries now.
 * @param flush  accepts units that still settle as if `settle` had elapsed */
void agent_flush(Agent *a, bool flush);

/** @return whether nothing but retries remains: each bundle is delivered or has failed */
bool agent_is_idle(Agent *a);

/** Prints a line for each bundle that is not delivered, or was discarded undelivered by this run.
 * @return their number */
size_t agent_print_undelivered(Agent *a, FILE *f);
/** For the removal of the package: prints a line for each directory with hard links beside the
 * sources, also of those that are configured no more, an empty line, and a line for each bundle
 * that is not delivered. No agent may run.
 * @return 0; AGENT_E_INCOMPLETE: not all is known, what is missing is logged; -errno: logged */
int agent_print_remains(Config *config, FILE *f);
/** @return whether abandoned uploads wait to be aborted */
bool agent_has_uploads_to_abort(const Agent *a);

/** Sends a line of figures to systemd (STATUS=). The agent calls it itself when a bundle becomes
 * ready or final. */
void agent_notify_status(Agent *a);
