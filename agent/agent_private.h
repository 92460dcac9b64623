/* What the files of the agent share: agent.c (life), reload.c, drain.c (the way out), view.c (what the API asks). */
#pragma once

#include "agent/agent.h"
#include "agent/api/api.h"
#include "agent/ec2_notices.h"
#include "agent/incidents/incidents.h"
#include "agent/retention/retention_runner.h"
#include "lib/base/strbuf.h"

typedef struct Discard {
        char *reason;
        uint64_t n;
} Discard;

/* On the way out: nothing new is taken, the rest is shipped. drain.c */
typedef enum DrainAsker { /* each may take back its own wish only */
                          DRAIN_OPERATOR,
                          DRAIN_SPOT,
                          DRAIN_MAINTENANCE,
                          N_DRAIN_ASKERS
} DrainAsker;

typedef struct DrainWish {
        bool is_on;
        char reason[96];
        uint64_t deadline_usec; /* CLOCK_REALTIME; 0 = not known */
} DrainWish;

/* What is being shipped comes to its end, or has had its time. drain.c */
typedef struct WindDown {
        Agent *agent;
        sd_event_source *timer;
        uint64_t until_usec; /* CLOCK_BOOTTIME */
        void (*on_over)(Agent *a);
} WindDown;

typedef struct Drain {
        DrainWish wishes[N_DRAIN_ASKERS]; /* on while there is one of them */
        bool is_on, has_flushed;
        char reason[320], missing[512];
        uint64_t since_usec;    /* CLOCK_REALTIME */
        sd_event_source *timer; /* a look every few seconds */
        Notice announced;       /* maintenance that is not near yet */
        sd_event_source *announced_timer;
        bool is_stopping;
        WindDown stop;
        void (*on_stopped)(void *userdata);
        void *userdata;
} Drain;

typedef struct ReloadChanges {
        StrBuf applied, restart; /* keys */
        bool scheduler, sources; /* is to be made anew */
} ReloadChanges;

/* Underway from the signal until what was being shipped has ended. reload.c */
typedef struct Reload {
        Config *loaded; /* NULL: none is underway */
        ReloadChanges changes;
        bool is_wanted_again;
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
        Retainer *retainer;
        Ec2Notices *notices;            /* NULL: not on EC2 */
        HookNotes *notes;               /* NULL: hooks cannot be heard */
        Incidents *incidents;           /* NULL: no snapshots can be taken */
        sd_event_source *orphans_timer; /* agent.c */
        ClockSteady orphans_steady;
        Drain drain;
        Reload reload;
        IntakeContext intake_context;
        IntakeSource **sources; /* as in config->sources, then the agent's own */
        size_t n_sources;
        ConfigSource **own_sources; /* own_sources.c */
        size_t n_own_sources;
        Api *api, *api_tcp;
        AgentBackend backend;
        char **environment; /* a copy in secret memory: the process's own has no secrets any more */
        char instance_id[INSTANCE_ID_SIZE];
        char hostname[65];
        bool once;
        sd_event_source *store_timer; /* armed while the state database cannot be written */
        uint64_t started_usec, loaded_usec;
        char *pending_restart; /* keys, for people; NULL = none */
        char *config_error;    /* of the last reload; NULL = it went well */
        Discard *discards;
        size_t n_discards;
        Histogram delivery_seconds;
        struct AgentViewSpace *space; /* what the last view points into */
};

IntakeSource *agent_source_by_name(const Agent *a, const char *name);

/* agent.c: for a reload, too */
int agent_make_pipeline(Agent *a);
int agent_make_sources(Agent *a);
/** Hands the sources there are to retention. */
void agent_retain_sources(Agent *a);
void agent_free_sources(Agent *a);
/** Bundles that are known already and belong to this source go on with it. */
void agent_adopt_bundles(Agent *a, IntakeSource *s);

/** Applies the configuration that is in force to hook notes and incidents. */
void agent_rebind_hook(Agent *a);
void agent_hook_view(const Agent *a, HookView *ret);

/* own_sources.c: the agent's own sources, which nobody configures (config/config.h): incidents that
 * belong to no dump, and dumps that an earlier version copied out of containers and has not
 * delivered. Their directories lie below the state directory. */
/** Starts them and appends them to a->sources, which has space for one of each configured source
 * and one more. A source that cannot be started is logged. */
void own_sources_start(Agent *a);
/** Applies the configuration that is in force. Without memory a source stays as it was. */
void own_sources_rebind(Agent *a);
/** Frees their configuration; the sources themselves have been freed before. */
void own_sources_free(Agent *a);
/** A bundle is final: removes the directory that it was made of, if that is the agent's own. */
void own_sources_on_final(Agent *a, const Bundle *b);

/* reload.c */
/** @return the configured source of that name, NULL */
const ConfigSource *agent_config_source(const Config *c, const char *name);
/** What is underway is not carried out. */
void agent_reload_drop(Agent *a);

/* drain.c */
/** Drains because of one more asker, or of the same one with another deadline.
 * @param reason         a sentence; copied
 * @param deadline_usec  when this node goes, CLOCK_REALTIME; 0 = not known */
void agent_drain(Agent *a, DrainAsker asker, const char *reason, uint64_t deadline_usec);
/** Takes back everybody's wish. */
void agent_resume(Agent *a);
/** After sources and pipeline were made anew. */
void agent_drain_again(Agent *a);
/** Has what is being shipped come to an end from which it can be gone on with.
 * @param w        borrowed until on_over, or wind_down_done()
 * @param on_over  called once, when nothing is shipped any more or four seconds are over; from inside only if no timer can be had */
void agent_wind_down(Agent *a, WindDown *w, void (*on_over)(Agent *a));
void wind_down_done(WindDown *w);
/** Callbacks of notices.h. */
void agent_on_notice(const Notice *n, void *userdata);
void agent_on_withdrawn(NoticeKind kind, void *userdata);
/** @param ret  points into the agent until the next call */
void agent_drain_view(Agent *a, DrainView *ret);
void agent_drain_done(Agent *a);

/** Fills a->backend. */
void agent_view_init(Agent *a);
void agent_view_done(Agent *a);
