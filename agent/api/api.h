/* The HTTP API of docs/API.md and the metrics: routes on top of lib/http/mhd_loop. */
#pragma once

#include <systemd/sd-event.h>

#include "agent/api/view.h"
#include "lib/http/mhd_loop.h"

typedef struct Api Api;

typedef struct ApiListener {
        int fd;         /* listening; taken over when api_new() succeeds */
        bool read_only; /* a TCP listener: GET only, 405 for the rest … */
        /* … and 421 for a Host that is neither an address nor `localhost` nor this: a page of
         * another name could have it resolved to us. Borrowed; NULL: none */
        const char *hostname;
        const AgentBackend *backend; /* borrowed */
} ApiListener;

int api_new(Api **ret, sd_event *event, const ApiListener *l);
Api *api_free(Api *a);

/** Answers one request without a socket: what mhd_loop calls, what tests and the fuzzer call. */
void api_handle(const MhdRequest *request, HttpResponse *ret, void *api);
/** For tests: an Api without a socket. */
int api_new_for_test(Api **ret, bool read_only, const AgentBackend *backend);

/** Makes or takes over the listening unix socket: parent directory, stale socket of a dead agent
 * removed, mode 0660, group `neuron-collectd` when there is one. -EADDRINUSE when somebody answers
 * on it */
int api_listen_unix(const char *path, int *ret_fd);
/** `host:port` or `[v6]:port`. */
int api_listen_tcp(const char *address, int *ret_fd);

/** Creates the listening socket of hooks (SOCK_SEQPACKET, mode 0666): creates the parent directory
 * and replaces the stale socket of an agent that is gone.
 * @return 0; -EADDRINUSE when somebody answers on it, -EEXIST when it is not a socket */
int api_listen_seqpacket(const char *path, int *ret_fd);
