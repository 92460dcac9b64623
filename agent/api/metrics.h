/* The metrics of docs/METRICS.md in the text format of Prometheus.
 */
#pragma once

#include "agent/api/view.h"

/** @return the whole text, the caller's; NULL for lack of memory */
char *metrics_text(const AgentView *v);
