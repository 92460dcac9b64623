/* The agent's end of a supervisor (collectors/supervisor.h): requests one from systemd by its
 * socket, or starts one with the agent's own rights where there is no such socket; sends the order,
 * and receives its messages. One object a supervisor. */
#pragma once

#include <stdbool.h>
#include <systemd/sd-event.h>

#include "collectors/runner/probe_request.h"
#include "lib/base/cleanup.h"

typedef struct Probe Probe;

typedef struct ProbeOptions { /* borrowed while probe_new runs */
        const ProbeRequest *request;
        const char *socket;    /* of neuron-collectd-probe.socket; where nobody listens we start one
                                  ourselves */
        bool only_listening;   /* never start one */
        int dir_fd;            /* where it writes; -1 = none */
        uint64_t timeout_usec; /* for all of it; USEC_INFINITY */
        /* A message but the last one. */
        void (*on_message)(const char *text, void *userdata);
        /* Once, the last call: 0: done; -errno and why, a sentence for people. The probe may be
         * freed in it. */
        void (*on_end)(int result, const char *why, void *userdata);
        void *userdata;
} ProbeOptions;

/** @return 0, -errno: no supervisor could be had; -ENOENT: none listens, for `only_listening` */
int probe_new(Probe **ret, sd_event *event, const ProbeOptions *request);
/** @return whether nobody listened, so that it runs with the agent's own rights */
bool probe_is_own(const Probe *p);
/** No callback any more. A running snapshot is finished by its supervisor; a watch ends.
 * Takes NULL, returns NULL. */
Probe *probe_free(Probe *p);
DEFINE_CLEANUP(Probe, probe_free);
