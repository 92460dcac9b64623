/* Shared by agent.c, remains.c and view.c (the API). */
#pragma once

#include "agent/agent.h"
#include "agent/api/api.h"
#include "agent/crashes/crash_reports.h"
#include "agent/failures/failures.h"
#include "agent/incidents/incidents.h"
#include "agent/node_events/ec2_notices.h"
#include "agent/node_events/node_watch.h"
#include "agent/retention/retention_runner.h"
#include "lib/base/strbuf.h"

/* Each may withdraw its own request only. */
typedef enum DrainRequester {
        DRAIN_OPERATOR,
        DRAIN_SPOT,
        DRAIN_MAINTENANCE,
        N_DRAIN_REQUESTERS,
} DrainRequester;

typedef struct DrainRequest {
        bool is_active;
        char reason[96];
        uint64_t deadline_usec; /* CLOCK_REALTIME; 0 = not known */
} DrainRequest;

/* Waits until running deliveries have ended, four seconds at most. */
typedef struct WindDown {
        Agent *agent;
        sd_event_source *timer;
        uint64_t until_usec; /* CLOCK_BOOTTIME */
        void (*on_done)(Agent *a);
} WindDown;

typedef enum AgentState {
        AGENT_RUNNING,
        AGENT_DRAINING, /* new units are not accepted; known ones are shipped */
        AGENT_FLUSHING, /* the deadline is near: units that still settle are shipped, too */
        AGENT_STOPPING,
        N_AGENT_STATES,
} AgentState;

typedef struct Drain {
        AgentState state;
        DrainRequest requests[N_DRAIN_REQUESTERS];
        char reason[320]; /* of all active requests */
        char missing[512];
        uint64_t since_usec;    /* CLOCK_REALTIME */
        sd_event_source *timer; /* checks every few seconds */
        Notice announced;       /* maintenance that is not due yet */
        sd_event_source *announced_timer;
        WindDown stop;
        void (*on_stopped)(void *userdata);
        void *userdata;
} Drain;

typedef struct ReloadChanges {
        StrBuf applied, restart; /* keys */
        bool scheduler, sources; /* must be created again */
} ReloadChanges;

/* Underway from the signal until running deliveries have ended. */
typedef struct Reload {
        Config *loaded; /* NULL: none is underway */
        ReloadChanges changes;
        bool is_requested_again;
        WindDown wind_down;
        void (*on_done)(void *userdata);
        void *userdata;
} Reload;

struct Agent {
        sd_event *event;
        Clock *clock;
        Config *config;
        Store *store;
        Attachments *attachments;
        BundleTable *bundles;
        Scheduler *scheduler;
        RetentionRunner *retention_runner;
        Ec2Notices *notices;   /* NULL: not on EC2 */
        HookNotes *notes;      /* NULL: notes cannot be received */
        Incidents *incidents;  /* NULL: snapshots are not possible */
        NodeWatch *node_watch; /* NULL: without incidents, or not possible */
        CrashReports *crash_reports;
        Failures *failures; /* NULL: nodes do not agree, agreement.enabled is off */
        Drain drain;
        Reload reload;
        IntakeContext intake_context;
        IntakeSource **sources; /* as in config->sources, then that of incidents */
        size_t n_sources;
        ConfigSource *incidents_config; /* of that one; NULL: there is none */
        Api *api, *api_tcp;
        AgentBackend backend;
        char **environment; /* a copy in secret memory; the process's own has no secrets left */
        char instance_id[INSTANCE_ID_SIZE];
        char *link_list; /* a file */
        char *probe_socket;
        char hostname[65];
        bool once;
        bool is_stateless;            /* the state directory was removed: it ends */
        sd_event_source *state_watch; /* of the state directory; NULL: it cannot be watched */
        sd_event_source *store_timer; /* armed while the state database cannot be written */
        uint64_t started_usec, loaded_usec;
        char *pending_restart;   /* keys, as text; NULL = none */
        char *config_error;      /* of the last reload; NULL = none */
        LabelledCount *discards; /* by reason; the labels are owned */
        size_t n_discards;
        Histogram delivery_seconds;
        uint64_t *n_lacking; /* by destination: DestinationView.n_lacking; NULL: to be counted */
        int64_t lacking_row; /* counted so far */
        sd_event_source *lacking_timer;
        struct AgentViewSpace *space; /* what the last view points into */
};

IntakeSource *agent_source_by_name(const Agent *a, const char *name);

/** Starts a drain, adds a request to it, or replaces the request of the same requester.
 * @param reason         a sentence; copied
 * @param deadline_usec  when this node terminates, CLOCK_REALTIME; 0 = not known */
void agent_drain(Agent *a, DrainRequester requester, const char *reason, uint64_t deadline_usec);
/** Withdraws all requests. */
void agent_resume(Agent *a);
static inline bool agent_is_draining(const Agent *a) {
        return a->drain.state == AGENT_DRAINING || a->drain.state == AGENT_FLUSHING;
}
/** @param ret  points into the agent until the next call */
void agent_fill_drain_view(Agent *a, DrainView *ret);

/** Fills a->backend. */
void agent_view_init(Agent *a);
/** Which bundles lack a destination may have changed. */
void agent_recount_lacking(Agent *a);
void agent_view_done(Agent *a);
