/* What the threads of a source need of its configuration, and the work that is done in them. */
#pragma once

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "agent/retention/link_dirs.h"
#include "agent/retention/unit_locks.h"
#include "config/config.h"
#include "lib/base/list.h"
#include "lib/event/worker_pool.h"
#include "lib/neuron/scan.h"

/** Never changes; freed with the last reference. */
typedef struct SourceSpec {
        atomic_uint n_refs;
        char *name, *fixed; /* fixed: absolute, without trailing slash */
        PathTemplate *template;
        char **exclude; /* NULL-terminated */
        char *instance_id;
        char *proc_root;
        LinkDirs *link_dirs;
        UnitLocks *locks;
        ScanSource scan; /* borrows from the above */
} SourceSpec;

int source_spec_new(SourceSpec **ret, const ConfigSource *config, const char *instance_id,
                    const char *proc_root);
SourceSpec *source_spec_ref(SourceSpec *t);
SourceSpec *source_spec_unref(SourceSpec *t);

/** @return the path of a unit below the fixed part, "" for the fixed part itself; borrowed */
const char *source_spec_relative(const SourceSpec *t, const char *path);

/** @return whether a unit at this path below the fixed part is made of the loose files above the
 * template's depth */
bool source_spec_is_loose(const SourceSpec *t, const char *relative);

/** Work in a thread of a source, one task after the other. */
typedef struct SourceTask {
        WorkJob job; /* run() touches only what the task owns; the owner of the source sets done()
                      */
        ListLink mine;
        void (*done)(struct SourceTask *t); /* on the loop; the task is the caller's again */
        /* The source ends before the task has started: frees it. Neither is called for one that
         * hangs. */
        void (*drop)(struct SourceTask *t);
} SourceTask;
