/* Another hook beside ours: `neuron-dump.chain` beside our own executable, a link that `neuron-collect hook install --chain` makes. */
#pragma once

#include <stdint.h>
#include <sys/types.h>

#define CHAIN_NAME "neuron-dump.chain"
#define CHAIN_VARIABLE                                                                             \
        "NEURON_COLLECTD_CHAINED" /* set for it: a hook that is chained to ours does not come back to us */

/** Runs it, when there is one, with our own arguments, environment and standard streams, in a process group of its own.
 * @return its pid; 0: there is none, or we are chained ourselves; -errno */
pid_t chain_start(char *const *argv);

/** Waits for it until then (CLOCK_BOOTTIME), and ends its group. */
void chain_end(pid_t pid, uint64_t until_usec);
