/* Releases source files by the operator's policy: measures and deletes in the source's thread,
 * decides by policy.h on the loop. Runs only while there is something that may have to go. */
#pragma once

#include <systemd/sd-event.h>

#include "agent/api/view.h"
#include "agent/retention/source_spec.h"
#include "agent/store/bundle.h"
#include "config/config.h"

typedef struct RetentionRunner RetentionRunner;

typedef struct RetentionRunnerContext { /* borrowed */
        sd_event *event;
        Clock *clock;
        Store *store;
        BundleTable *bundles;
        void (*on_discard)(const char *reason, uint64_t n, void *userdata); /* for the metric */
        /* Runs the task in the thread of the source. 0, or -errno: it stays the caller's */
        int (*submit)(IntakeSource *s, SourceTask *t);
        /* Checks whether links of a delivered bundle hold what was not shipped;
         * retention_runner_on_links_rechecked() is the answer. */
        void (*recheck_links)(IntakeSource *s, const char *id);
        bool (*is_rechecking_links)(const IntakeSource *s, const char *id);
        /* @return whether the files of a delivered bundle are still read: they are not deleted yet.
         * NULL: they never are */
        bool (*is_read)(const char *id, void *userdata);
        void *userdata;
} RetentionRunnerContext;

int retention_runner_new(RetentionRunner **ret, const RetentionRunnerContext *context,
                         const Config *config);
RetentionRunner *retention_runner_free(RetentionRunner *r);
typedef struct RetentionRunnerSource {
        IntakeSource *source;
        SourceSpec *spec; /* of the source: they live as long as it does */
} RetentionRunnerSource;
/** The sources there are now; before the old ones are freed with n = 0. Borrowed. */
void retention_runner_set_sources(RetentionRunner *r, const RetentionRunnerSource *sources,
                                  size_t n);
/** Continues with another configuration. */
void retention_runner_rebind(RetentionRunner *r, const Config *config);
/** A bundle has ended: its row is durable, and the bundle is freed after this. */
void retention_runner_on_final(RetentionRunner *r, const Bundle *b);
/** The answer to recheck_links: nothing that the links of this bundle hold is needed. */
void retention_runner_on_links_rechecked(RetentionRunner *r, const IntakeSource *s, const char *id);
/** Something was delivered or found: starts a round soon. Cheap. */
void retention_runner_kick(RetentionRunner *r);

/** @return whether the files of this bundle are being deleted at this moment: too late for anything
 * that would keep them */
bool retention_runner_is_deleting(const RetentionRunner *r, const char *id);

/** Fills what retention knows of a source. */
void retention_runner_view(const RetentionRunner *r, const IntakeSource *source, SourceView *ret);
