/* The agent's struct, and what the files of this folder offer each other. Only they include it. */
#pragma once

#include "agent/agent.h"
#include "agent/api/api.h"
#include "agent/crashes/crash_reports.h"
#include "agent/evidence/evidence.h"
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
        Evidence *evidence;
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
        IntakeContext intake_setup;   /* without what depends on the configuration */
        IntakeContext intake_context; /* of the sources that run */
        IntakeSource **sources;       /* as in config->sources, then the agent's own */
        size_t n_sources;
        ConfigSource *own_config; /* of that one; NULL: it could not be started */
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

/* Requested from systemd at each step of a drain or a stop that takes longer. */
#define AGENT_EXTEND_USEC (30 * USEC_PER_SEC)

static inline bool agent_is_draining(const Agent *a) {
        return a->drain.state == AGENT_DRAINING || a->drain.state == AGENT_FLUSHING;
}

/* ---- state_directory.c ---- */

/** @return 0, AGENT_E_LOCKED, -errno; logged */
int agent_state_open(Agent *a);
void agent_state_watch(Agent *a);
/** Of BundleTable: the database cannot be written. */
void agent_state_on_error(void *userdata);

/* ---- connections.c ---- */

void agent_load_discards(Agent *a);
int agent_create_evidence(Agent *a);
int agent_create_bundle_table(Agent *a);
int agent_create_scheduler(Agent *a);
/** Sets what of a->intake_setup does not depend on the configuration. */
void agent_connect_intake(Agent *a);
int agent_create_retention_runner(Agent *a);
/** Without it each node names its failures alone; a failure is logged. */
void agent_start_failures(Agent *a);
/** Starts incidents, what the node reports, and hook notes; failures are logged.
 * @param fd  a socket that listens for hooks, now owned; -1: notes arrive by the mailbox only */
void agent_start_hook(Agent *a, int fd);

/* ---- core_reports.c ---- */

int agent_reports_start(Agent *a);
/** Requests the reports that were still to be made when the agent stopped. */
int agent_reports_resume(Agent *a);
/** A bundle is complete. */
void agent_reports_on_ready(Agent *a, const Bundle *b);
/** Of RetentionRunnerContext. */
bool agent_reports_are_reading(const char *bundle_id, void *userdata);
/** Of NodeWatchContext. */
void agent_reports_on_line(const KernelLine *line, bool is_past, void *userdata);

/* ---- sources.c ---- */

/** @return NULL: no source of that name runs */
IntakeSource *agent_source_by_name(const Agent *a, const char *name);
/** Starts all sources with the running configuration. @return 0; -errno of the first one that could
 * not be started, logged: the others run */
int agent_sources_start(Agent *a);
/** The sources' own configuration is unchanged. */
void agent_sources_rebind(Agent *a, const Config *loaded);
void agent_sources_free(Agent *a);
/** Tells retention which sources run. */
void agent_sources_set_retention(Agent *a);
/** Of IntakeContext. */
void agent_describe(const IntakeSource *s, BundleRecord *rec, void *userdata);

/* ---- termination.c ---- */

/** Writes a->drain.missing. @return whether nothing is missing: this node may be terminated */
bool agent_is_safe(Agent *a);
/** @return when this node terminates, CLOCK_REALTIME; 0 = not known */
uint64_t agent_deadline_usec(const Drain *d);
/** @param ret  points into the agent until the next call */
void agent_fill_drain_view(Agent *a, DrainView *ret);

/* ---- drain.c ---- */

void agent_drain_set_state(Drain *d, AgentState state);
/** Starts a drain, adds a request to it, or replaces the request of the same requester.
 * @param reason         a sentence; copied
 * @param deadline_usec  when this node terminates, CLOCK_REALTIME; 0 = not known */
void agent_drain(Agent *a, DrainRequester requester, const char *reason, uint64_t deadline_usec);
/** Withdraws all requests. */
void agent_resume(Agent *a);
/** Has objects that were created since the drain started drain, too. */
void agent_drain_apply(Agent *a);
/** Has EC2's notices start drains. */
int agent_start_notices(Agent *a);

/** Has running deliveries end in a state from which they can be resumed.
 * @param w        borrowed until on_done, or until its timer is freed
 * @param on_done  called once, when no delivery runs any more or after four seconds; before this
 * function returns only if no timer can be armed */
void agent_wind_down(Agent *a, WindDown *w, void (*on_done)(Agent *a));

/* ---- reload.c ---- */

/** Discards the reload that is underway. */
void agent_reload_cancel(Agent *a);

/* ---- view.c, explain.c, backend.c: the API ---- */

void agent_view_init(Agent *a);
void agent_view_done(Agent *a);
/** The number of bundles that lack a destination may have changed. */
void agent_recount_lacking(Agent *a);
/** Of AgentBackend. */
void agent_view_fill(AgentView *ret, void *userdata);
/** @param b  NULL: it is not in the table  @return sentences, the caller's; NULL without memory */
char *agent_explain(const Agent *a, const BundleRecord *rec, const Bundle *b);
/** Fills a->backend. */
void agent_backend_init(Agent *a);
