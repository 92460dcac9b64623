/* The watch of this node: it follows the kernel log and who holds a Neuron device, by a supervisor
 * of the collectors that runs for as long as the agent. */
#pragma once

#include <stdbool.h>
#include <systemd/sd-event.h>

#include "agent/node_events/kernel_log.h"
#include "agent/store/store.h"
#include "config/config.h"
#include "lib/base/clock.h"

typedef struct NodeWatchContext { /* borrowed; a callback may be NULL */
        sd_event *event;
        Clock *clock;
        Store *store;
        /* The Neuron driver has logged an error of the hardware. @param line  of the kernel log
         * @param record  of the collector, JSON */
        void (*on_hw_error)(const char *line, const char *record, void *userdata);
        /* The kernel has logged something about a crash: a hint, since users can cause such lines.
         * @param is_past  it was logged before the watch started, and may have been reported */
        void (*on_crash_line)(const KernelLine *line, bool is_past, void *userdata);
        /* A process holds a Neuron device or has the runtime loaded: a record of the `jobs`
         * collector (docs/BUNDLE.md), JSON. All processes when the watch starts and every 10
         * minutes; every 30 s those whose record is new or has changed. */
        void (*on_job)(const char *record, void *userdata);
        uint64_t retry_usec; /* until a watch that ended or could not be started is tried again, and
                                until the collector host is tried again; 0 = 30 s */
        void *userdata;
} NodeWatchContext;

typedef struct NodeWatch NodeWatch;

/** Starts the watch, unless snapshot.enabled is off. A watch that cannot be started is tried again
 * (logged). @return 0, -ENOMEM, -errno */
int node_watch_new(NodeWatch **ret, const NodeWatchContext *context, const Config *config);
NodeWatch *node_watch_free(NodeWatch *w); /* takes NULL, returns NULL */
/** Starts it again with the roots and limits of another configuration. */
void node_watch_rebind(NodeWatch *w, const Config *config);
