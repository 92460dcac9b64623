/* The supervisor of a snapshot: a process of its own, with one thread, which executes each
 * collector anew in a child, keeps what it wrote, and makes one document of it. It survives its
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

/** Serves one connection until it is through. @param fd  of the connection  @return 0, -ENOTSOCK
 * when fd is none, -errno */
int supervisor_main(int fd);
