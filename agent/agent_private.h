/* What agent.c and agent_view.c share. */
#pragma once

#include "agent/agent.h"
#include "agent/api/api.h"

typedef struct Discard {
        char *reason;
        uint64_t n;
} Discard;

struct Agent {
        sd_event *event;
        Clock *clock;
        Config *config;
        Store *store;
        BundleTable *bundles;
        Pipeline *pipeline;
        IntakeContext intake_context;
        IntakeSource **sources; /* same order as config->sources */
        size_t n_sources;
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

/** Fills a->backend. */
void agent_view_init(Agent *a);
void agent_view_done(Agent *a);
