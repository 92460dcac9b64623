/* A scheduler with one destination, and calls about its objects that are waited for. */
#pragma once

#include <errno.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "agent/delivery/objects.h"
#include "agent/store/store.h"
#include "config/config.h"
#include "lib/base/cleanup.h"
#include "lib/base/diag.h"
#include "lib/base/strbuf.h"

typedef struct Node {
        sd_event *event;
        Config *config;
        Store *store;
        BundleTable *bundles; /* none */
        Scheduler *scheduler;
        Clock clock;
        unsigned n_running; /* calls */
} Node;

typedef struct NodeOptions {
        const char *state_directory, *instance_id;
        const char *destination; /* YAML: the keys of destination `x` */
        char *const *environment;
        uint64_t object_timeout_usec; /* 0: the default */
} NodeOptions;

/** @return whether it could */
static inline bool node_init_with(Node *n, const NodeOptions *o) {
        _cleanup_free_ char *text = strbuf_format("version: 1\n"
                                                  "limits: {compression_threads: 1}\n"
                                                  "retry: {initial: 1ms, maximum: 2ms}\n"
                                                  "sources: [{name: s, kind: directory, path: "
                                                  "/nonexistent/%%d, destinations: [x]}]\n"
                                                  "destinations: [{name: x, %s}]\n",
                                                  o->destination);
        Diags diags = { 0 };
        *n = (Node){ .clock = *clock_system() };
        if (!text || config_parse(&n->config, "test.yaml", text, strlen(text), o->environment,
                                  &diags) != 0) {
                diag_print(&diags, stderr);
                return false;
        }
        diag_done(&diags);
        return sd_event_new(&n->event) >= 0 &&
               store_open(&n->store, o->state_directory, NULL, NULL) == 0 &&
               bundle_table_new(&n->bundles, n->store, &n->clock, &(BundleTableCallbacks){ 0 }) ==
                       0 &&
               scheduler_new(&n->scheduler,
                             &(SchedulerContext){ .event = n->event,
                                                  .clock = &n->clock,
                                                  .store = n->store,
                                                  .bundles = n->bundles,
                                                  .instance_id = o->instance_id,
                                                  .hostname = "host",
                                                  .environment = o->environment,
                                                  .object_timeout_usec = o->object_timeout_usec },
                             n->config) == 0;
}

static inline bool node_init(Node *n, const char *state_directory, const char *instance_id,
                             const char *destination, char *const *environment) {
        return node_init_with(n, &(NodeOptions){ .state_directory = state_directory,
                                                 .instance_id = instance_id,
                                                 .destination = destination,
                                                 .environment = environment });
}

static inline void node_done(Node *n) {
        scheduler_free(n->scheduler);
        bundle_table_free(n->bundles);
        store_close(n->store);
        config_free(n->config);
        sd_event_unref(n->event);
}

typedef struct Answer { /* what a result said */
        Node *node;
        ObjectCall *call;
        bool is_done;
        ObjectResult result; /* error and data are copies */
        char *names;         /* `name bytes;…` */
} Answer;

static inline void answer_done(Answer *a) {
        free((char *)a->result.error);
        free((char *)a->result.data);
        free(a->names);
        *a = (Answer){ 0 };
}

static inline void keep_result(const ObjectResult *result, void *userdata) {
        Answer *a = userdata;
        StrBuf names = STRBUF_INIT;
        if (a->is_done)
                abort();
        for (size_t i = 0; i < result->n_entries; i++)
                strbuf_addf(&names, "%s %llu;", result->entries[i].name,
                            (unsigned long long)result->entries[i].bytes);
        a->is_done = true;
        a->call = NULL;
        a->node->n_running--;
        a->result = *result;
        a->result.entries = NULL;
        a->result.error = result->error ? strdup(result->error) : NULL;
        a->result.data = result->data ? malloc(result->n + 1) : NULL;
        if (result->data) /* the byte behind it is NUL */
                memcpy((char *)a->result.data, result->data, result->n + 1);
        a->names = strbuf_detach(&names);
}

static inline int start(Node *n, Answer *a, ObjectOperation operation, const char *name,
                        const char *data) {
        *a = (Answer){ .node = n };
        int r = object_call_new(&a->call, n->scheduler,
                                &(ObjectRequest){ .operation = operation,
                                                  .destination = "x",
                                                  .name = name,
                                                  .data = data,
                                                  .n = data ? strlen(data) : 0,
                                                  .on_done = keep_result,
                                                  .userdata = a });
        n->n_running += r == 0;
        return r;
}

static inline bool finish_all(Node *n) {
        while (n->n_running > 0)
                if (sd_event_run(n->event, UINT64_MAX) < 0)
                        return false;
        return true;
}

/** @return the outcome; -errno of object_call_new() */
static inline int do_object(Node *n, Answer *a, ObjectOperation operation, const char *name,
                            const char *data) {
        int r = start(n, a, operation, name, data);
        return r < 0 ? r : finish_all(n) ? (int)a->result.outcome : -EIO;
}
