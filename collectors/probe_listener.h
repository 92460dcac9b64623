/* What systemd does for a probe on a node: listens where the agent connects to, and starts a
 * supervisor (collectors/supervisor.h) for each connection. For a container of its own. */
#pragma once

/** Serves until SIGTERM or SIGINT, and from then on until the last connection has ended, so that an
 * agent which stops at the same time still has its snapshots.
 * @param path  of the socket, for processes of the same user; a stale one is replaced
 * @param config_file  of the agent: child_main()
 * @return an exit code: 0 or, with a sentence on stderr, 1 */
int probe_listener_main(const char *path, const char *config_file);
