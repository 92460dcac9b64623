/* Copies out of containers (containers.h), introduced to sources, notes and incidents. Each configured source of core dumps has one beside it that nobody has
 * configured: it ships the copies, on the same terms. */
#pragma once

#include "agent/agent_private.h"
#include "config/config.h"

/** Starts those sources, behind all others of a->sources, which has room for them. What cannot be started is said. */
void agent_containers_make_sources(Agent *a);
void agent_containers_free_sources(Agent *a); /* their configuration; the sources are gone */
/** By the configuration that is in force; a source that is not configured any more goes on as it did. */
void agent_containers_rebind_sources(Agent *a);

void agent_containers_start(Agent *a);
void agent_containers_on_final(Agent *a, const Bundle *b);
