/* The supervisor of the collectors: a process that serves one request of the agent.
 *
 * The wire is SOCK_SEQPACKET, one message a packet, at most PACKET_TEXT_MAX bytes. The agent sends
 * `order` with two descriptors: a sealed memfd that has the request (runner/probe_request.h), and
 * the directory where everything is written (none for a watch). The supervisor sends:
 *
 *   process HOOK_PID INNER_PID PID START_TICKS CONTAINER   a process of the request was resolved.
 *       PID 0: it was not found. CONTAINER: the id of its container, 64 hexadecimal digits; `-`: it
 *       is in none, or that is unknown
 *   public             SNAPSHOT_PUBLIC_FILE has been written
 *   kmsg RECORD        of a watch: a line of the kernel log
 *   jobs RECORD        of a watch: a process that is new or has changed
 *   trouble SENTENCE   of a watch: why the kernel log cannot be followed
 *   done               the last message: the document is written, or the watch is over
 *   failed SENTENCE    the last message: there is no document */
#pragma once

#include "collectors/collector_table.h"

/** What the daemon's program does when it is executed again as `neuron-collectd --child=NAME`. Not
 * for people.
 * @param table  the collectors that there are: collector_table, or a test's
 * @param name  `probe`: a supervisor, with a connection to the agent as fd 0; `collect:COLLECTOR`
 * or `follow:COLLECTOR`: one collector (collector_child.h has its descriptors); `crash`: the crash
 * report of a core
 * @param config_file  of the agent that a supervisor serves. It takes the commands from there,
 * never from a request, and serves only the process that holds the lock of that state directory.
 * NULL: the agent has started the supervisor itself, with its own rights
 * @return CHILD_… (collector_child.h); CHILD_USAGE with a sentence on stderr where a person started
 * it */
int child_main(const CollectorTable *table, const char *name, const char *config_file);
