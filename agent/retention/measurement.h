/* How much the files of a source's bundles use, and how much is free, measured as a task in the
 * thread of the source. */
#pragma once

#include "agent/retention/link_usage.h"
#include "agent/retention/policy.h"
#include "agent/retention/source_spec.h"
#include "lib/neuron/ids.h"

typedef struct MeasuredBundle {
        char id[BUNDLE_ID_SIZE];
        bool is_known;   /* measured before: again only when free space is short */
        uint64_t digest; /* of an undelivered one */
        RetentionItem item;
        LinkUsage use;
} MeasuredBundle;

typedef struct Measurement {
        SourceTask task;
        void *owner;      /* of the caller */
        SourceSpec *spec; /* a reference */
        RetentionPolicy policy;
        MeasuredBundle *bundles;
        size_t n;
        RetentionSpace space;
        dev_t device;
        bool is_short;
        int result;
} Measurement;

/** @param spec  a reference is taken  @return NULL for lack of memory; `task.done` and `owner` are
 * the caller's to set */
Measurement *measurement_new(SourceSpec *spec, const RetentionPolicy *policy);
Measurement *measurement_free(Measurement *m);

/** Adds a bundle that is to be measured. @return it, to be filled; NULL for lack of memory */
MeasuredBundle *measurement_add(Measurement *m, const char *id);
