/* The watch of this node.
 *
 * One supervisor of the collectors runs for as long as the agent, in the mode PROBE_WATCH: it
 * follows the kernel log, and inspects every 30 s who holds a Neuron device. Each message is a
 * record that is new. This file connects to the supervisor, sorts its messages, and passes them on;
 * records of processes also go to the store (job_records.c). What follows from an event (a
 * snapshot, a claim, a crash report) is decided by whoever agent.c connects.
 *
 * A watch that ends is started again after a while. Where the agent had to start the supervisor
 * with its own rights, because the collector host did not listen, the collector host is tried again
 * and again: in a container of its own it may start after the agent, and it may read more. */
#include "agent/node_events/node_watch.h"

#include <errno.h>
#include <jansson.h>
#include <stdlib.h>
#include <string.h>

#include "agent/node_events/job_records.h"
#include "collectors/supervisor_client.h"
#include "lib/base/json_in.h"
#include "lib/base/log.h"
#include "lib/event/timer.h"

#define JOBS_INTERVAL_USEC (30 * USEC_PER_SEC)
#define RETRY_USEC (30 * USEC_PER_SEC)

struct NodeWatch {
        NodeWatchContext context;
        const Config *config;
        char *socket;
        SupervisorClient *supervisor; /* NULL: there is none now */
        sd_event_source *timer;
        JobRecords *records;
};

/* ---- messages ---- */

static void on_hw_error(const NodeWatch *w, const json_t *record, const char *text) {
        const char *line = json_in_string(record, "text");
        if (w->context.on_hw_error)
                w->context.on_hw_error(line ? line : "", text, w->context.userdata);
}

/* The record has the time since boot. A line that is logged now has the time of now. */
static void on_crash_line(const NodeWatch *w, const json_t *record) {
        Clock *clock = w->context.clock;
        const char *kind = json_in_string(record, "kind"), *text = json_in_string(record, "text");
        bool is_past = json_is_true(json_object_get(record, "past"));
        uint64_t then = json_in_u64(record, "usec"), now = clock->boottime_usec(clock);
        KernelLine line = { .seq = json_in_u64(record, "seq"),
                            .usec = clock->realtime_usec(clock) -
                                    (is_past && then < now ? now - then : 0) };
        if (!kind || !text || !w->context.on_crash_line)
                return;
        (void)snprintf(line.kind, sizeof line.kind, "%s", kind);
        (void)snprintf(line.text, sizeof line.text, "%s", text);
        w->context.on_crash_line(&line, is_past, w->context.userdata);
}

static void on_kmsg(const NodeWatch *w, const char *text) {
        json_t *record = json_loads(text, 0, NULL);
        const char *about = json_in_string(record, "about");
        if (about && strcmp(about, "hw_error") == 0)
                on_hw_error(w, record, text);
        else if (about && strcmp(about, "fact") == 0)
                on_crash_line(w, record);
        json_decref(record);
}

static void on_message(const char *text, void *userdata) {
        NodeWatch *w = userdata;
        if (strncmp(text, "kmsg ", 5) == 0)
                on_kmsg(w, text + 5);
        else if (strncmp(text, "jobs ", 5) == 0) {
                if (w->context.on_job)
                        w->context.on_job(text + 5, w->context.userdata);
                job_records_add(w->records, text + 5);
        } else if (strncmp(text, "trouble ", 8) == 0)
                log_warning(0, "the kernel log is not followed: %s; trying again every 30 s",
                            text + 8);
}

/* ---- the supervisor ---- */

static int on_retry(sd_event_source *s, uint64_t usec, void *userdata);

static void arm_retry(NodeWatch *w) {
        const NodeWatchContext *c = &w->context;
        int r = timer_arm(&w->timer,
                          &(TimerOptions){ .event = c->event,
                                           .usec = c->retry_usec ? c->retry_usec : RETRY_USEC,
                                           .handler = on_retry,
                                           .userdata = w });
        if (r < 0)
                log_error(r, "neither the kernel log nor who holds a device is followed any more");
}

static void on_end(int result, const char *why, void *userdata) {
        NodeWatch *w = userdata;
        log_warning(0,
                    "neither the kernel log nor who holds a device is followed (%s); trying again "
                    "in 30 s",
                    result < 0 ? why : "their supervisor has ended");
        w->supervisor = supervisor_client_free(w->supervisor);
        arm_retry(w);
}

static int connect_supervisor(NodeWatch *w, SupervisorClient **ret, bool only_listening) {
        const ProbeRequest request = { .mode = PROBE_WATCH,
                                       .interval_usec = JOBS_INTERVAL_USEC,
                                       .collect = supervisor_client_collect_request(w->config) };
        return supervisor_client_new(ret,
                                     &(SupervisorClientOptions){ .event = w->context.event,
                                                                 .request = &request,
                                                                 .socket = w->socket,
                                                                 .only_listening = only_listening,
                                                                 .dir_fd = -1,
                                                                 .timeout_usec = USEC_INFINITY,
                                                                 .on_message = on_message,
                                                                 .on_end = on_end,
                                                                 .userdata = w });
}

static void start(NodeWatch *w) {
        if (!w->config->snapshot.enabled)
                return;
        int r = w->supervisor ? 0 : connect_supervisor(w, &w->supervisor, false);
        if (r < 0)
                log_warning(r, "the kernel log cannot be followed; trying again in 30 s");
        if (r < 0 || supervisor_client_is_own(w->supervisor))
                arm_retry(w);
}

static int on_retry(sd_event_source *s, uint64_t usec, void *userdata) {
        (void)s, (void)usec;
        NodeWatch *w = userdata;
        SupervisorClient *listening = NULL;
        if (w->supervisor && supervisor_client_is_own(w->supervisor) &&
            connect_supervisor(w, &listening, true) == 0) {
                (void)supervisor_client_free(w->supervisor);
                w->supervisor = listening;
        }
        start(w);
        return 0;
}

static void stop(NodeWatch *w) {
        w->supervisor = supervisor_client_free(w->supervisor);
        w->timer = sd_event_source_disable_unref(w->timer);
}

/* ---- life ---- */

int node_watch_new(NodeWatch **ret, const NodeWatchContext *context, const Config *config) {
        NodeWatch *w = calloc(1, sizeof *w);
        if (!w)
                return -ENOMEM;
        *w = (NodeWatch){ .context = *context,
                          .config = config,
                          .socket = supervisor_client_socket(config->api.socket) };
        int r = w->socket ? job_records_new(&w->records, context->event, context->clock,
                                            context->store)
                          : -ENOMEM;
        if (r < 0) {
                node_watch_free(w);
                return r;
        }
        start(w);
        *ret = w;
        return 0;
}

NodeWatch *node_watch_free(NodeWatch *w) {
        if (!w)
                return NULL;
        stop(w);
        job_records_free(w->records);
        free(w->socket);
        free(w);
        return NULL;
}

void node_watch_rebind(NodeWatch *w, const Config *config) {
        w->config = config;
        stop(w);
        job_records_flush(w->records);
        start(w);
}
