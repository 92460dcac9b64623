/* The requests of an incident to a supervisor of the collectors. Private to agent/incidents. */
#pragma once

#include "agent/incidents/incident.h"

/** As SupervisorClientOptions.on_end. @param userdata  the Incident */
typedef void (*IncidentOnEnd)(int result, const char *why, void *userdata);

/** Requests a snapshot of what belongs to the incident. @param only  collectors of what came later,
 * for x->document; NULL: all, for all that belongs to it @param on_end  frees x->supervisor
 * @return 0, -errno: it could not be requested */
int incident_request_start(Incident *x, ProbeMode mode, const char *const *only,
                           IncidentOnEnd on_end);
