/* The metrics of INTERFACE.md §7 in Prometheus' text format. docs/METRICS.md tells what each means.
 */
#pragma once

#include "agent/api/view.h"

/** @return the whole text, the caller's; NULL for lack of memory */
char *metrics_text(const AgentView *v);
