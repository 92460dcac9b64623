/* The supervisor of a snapshot: a process of its own, with one thread, which executes each
 * collector again in a child, keeps what it wrote, and makes one document of it. It survives its
 * children, and finishes its document when the agent does not survive it. */
#pragma once

#include <stdint.h>

#define SNAPSHOT_FILE "snapshot.json"
#define SNAPSHOT_AFTER_FILE "snapshot-after.json"
#define SNAPSHOT_PUBLIC_FILE "public.json"
#define SNAPSHOT_BEFORE_FILE                                                                       \
        ".before-neuron_sysfs" /* what a second snapshot compares with; absent: there is nothing   \
                                  to compare */
#define SNAPSHOT_INCIDENT_FILE "incident.json" /* the agent's, in the same directory */

/* The wire: SOCK_SEQPACKET, one message a packet. From the agent `order` with two descriptors: a
 * sealed memfd (collectors/runner/probe_request.h) and the directory where all is written (none for
 * a watch). Back: process HOOK_PID INNER_PID PID START_TICKS CONTAINER a process of the request is
 * resolved; PID 0: it could not be found; CONTAINER: the id of the container that it is in (64
 * hexadecimal digits), `-`: in none, or it cannot be told public public.json is there done the
 * document is there failed SENTENCE                              there is none kmsg {…}, jobs {…}
 * a watch: a record that is new */
#define PROBE_PACKET_MAX (64 * 1024)

/** `neuron-collectd --child=NAME`: what the daemon's program is when it is executed again for a
 * probe. Not for people.
 * @param config_file  of the agent that a probe serves: it takes the commands from there, never
 * from a request, and serves the process alone that holds the lock of that state directory. NULL:
 * the agent has started the probe itself, with its own rights
 * @param name  `probe` (a supervisor, with a connection to the agent as fd 0), `collect:COLLECTOR`
 * or `follow:kmsg` (fd 0: the request, fd 1: where records go, fd 2: why not all is there, a line,
 * fd 3: directory for raw files, if any)
 * @return an exit code: CHILD_DONE … or 2 with a sentence on stderr when a person typed it */
int child_main(const char *name, const char *config_file);

enum {
        CHILD_DONE = 0,
        CHILD_FAILED = 1, /* it could not even begin: why is on stderr */
        CHILD_USAGE = 2,
        CHILD_CUT = 3,     /* not all did fit into max_bytes */
        CHILD_SKIPPED = 4, /* there is nothing of this kind here */
};

enum { CHILD_ORDER_FD = 0, CHILD_OUT_FD = 1, CHILD_WHY_FD = 2, CHILD_DIR_FD = 3 };
