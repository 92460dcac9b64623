/* The agent's own sources, which nobody configures (config/config.h): incidents that belong to
 * no dump, and dumps that an earlier version copied out of containers and has not delivered. Their
 * directories lie below the state directory. */
#pragma once

#include "agent/agent_private.h"

/** Starts them and appends them to a->sources, which has space for one of each configured source
 * and one more. A source that cannot be started is logged. */
void own_sources_start(Agent *a);
/** Applies the configuration that is in force. Without memory a source stays as it was. */
void own_sources_rebind(Agent *a);
/** Frees their configuration; the sources themselves have been freed before. */
void own_sources_free(Agent *a);
/** A bundle is final: removes the directory that it was made of, if that is the agent's own. */
void own_sources_on_final(Agent *a, const Bundle *b);
