/* `neuron-collectd --child=NAME`: what the daemon's program is when it is executed anew for a probe. Not for people. */
#pragma once

/** @param name  `probe` (a supervisor, with a connection to the agent as fd 0), `collect:COLLECTOR` or `follow:kmsg` (fd 0: the order, fd 1: where records
 * go, fd 2: why not all is there, a line, fd 3: directory for raw files, if any)
 * @return an exit code: CHILD_DONE … or 2 with a sentence on stderr when a person typed it */
int child_main(const char *name);

enum {
        CHILD_DONE = 0,
        CHILD_FAILED = 1, /* it could not even begin: why is on stderr */
        CHILD_USAGE = 2,
        CHILD_CUT = 3,     /* not all did fit into max_bytes */
        CHILD_SKIPPED = 4, /* there is nothing of this kind here */
};

enum { CHILD_ORDER_FD = 0, CHILD_OUT_FD = 1, CHILD_WHY_FD = 2, CHILD_DIR_FD = 3 };
