/* The agent's end of a supervisor (collectors/supervisor.h): one request, the messages that answer
 * it, and how it ended. */
#pragma once

#include <stdbool.h>
#include <stdint.h>
#include <systemd/sd-event.h>

#include "collectors/runner/probe_request.h"
#include "config/config.h"
#include "lib/base/cleanup.h"

typedef struct SupervisorClient SupervisorClient;

typedef struct SupervisorClientOptions {
        sd_event *event;             /* borrowed */
        const ProbeRequest *request; /* borrowed while supervisor_client_new() runs, as the next */
        const char *socket;    /* of the collector host (supervisor_client_socket()). Where nobody
                                  listens, the agent starts a supervisor itself */
        bool only_listening;   /* never start one */
        int dir_fd;            /* the directory that the supervisor writes to; -1 = none */
        uint64_t timeout_usec; /* until the end of the request; USEC_INFINITY = none */
        /* Each message but the last one (PACKET_TEXT_MAX). @param text  borrowed for the call */
        void (*on_message)(const char *text, void *userdata);
        /* The last call; it frees the client. @param result  0: done; -errno @param why  a sentence
         * for people, freed with the client */
        void (*on_end)(int result, const char *why, void *userdata);
        void *userdata;
} SupervisorClientOptions;

/** Connects to the collector host, or starts a supervisor with the agent's own rights, and sends
 * the request.
 * @return 0, -errno: there is no supervisor; -ENOENT: nobody listens, with only_listening */
int supervisor_client_new(SupervisorClient **ret, const SupervisorClientOptions *options);

/** Calls neither callback any more. The supervisor completes a snapshot that is underway, and ends
 * a watch. Takes NULL, returns NULL. */
SupervisorClient *supervisor_client_free(SupervisorClient *c);
DEFINE_CLEANUP(SupervisorClient, supervisor_client_free);

/** @return whether the agent started the supervisor, which then has the agent's own rights only */
bool supervisor_client_is_own(const SupervisorClient *c);

/** @return the path of the socket of the collector host, which lies beside the agent's own, the
 * caller's; NULL: no memory */
char *supervisor_client_socket(const char *api_socket);

/** @return the roots and limits of a request, borrowed from the configuration; the rest is zero */
CollectRequest supervisor_client_collect_request(const Config *config);
