/* A watch of the node, by a supervisor for the agent. */
#pragma once

#include "collectors/runner/probe_request.h"

/** Reports lines of the kernel log and records of jobs until the agent closes the connection. The
 * caller has one thread.
 * @param fd  the connection @return 0, -errno: it could not start */
int watch_run(const ProbeRequest *request, int fd);
