/* Releases source files by the operator's policy: measures and deletes in the source's thread,
 * decides by policy.h on the loop. Runs only while there is something that may have to go. */
#pragma once

#include <systemd/sd-event.h>

#include "agent/retention/source_spec.h"
#include "agent/store/bundle.h"
#include "config/config.h"

typedef struct Retainer Retainer;

typedef struct RetainerContext { /* borrowed */
        sd_event *event;
        Clock *clock;
        Store *store;
        BundleTable *bundles;
        void (*on_discard)(const char *reason, uint64_t n, void *userdata); /* for the metric */
        /* Evicts an undelivered bundle, which may be freed when this returns 0. Its files are
         * deleted when its row is durable. -errno: it is what it was */
        int (*on_evict)(Bundle *b, const char *reason, void *userdata);
        /* Runs the task in the thread of the source. 0, or -errno: it stays the caller's */
        int (*submit)(IntakeSource *s, SourceTask *t);
        /* Checks whether links of a delivered bundle hold what was not shipped;
         * retainer_on_links_rechecked() is the answer. */
        void (*recheck_links)(IntakeSource *s, const char *id);
        bool (*is_rechecking_links)(const IntakeSource *s, const char *id);
        void *userdata;
} RetainerContext;

int retainer_new(Retainer **ret, const RetainerContext *context, const Config *config);
Retainer *retainer_free(Retainer *r);
typedef struct RetainerSource {
        IntakeSource *source;
        SourceTerms *terms; /* of the source: they live as long as it does */
} RetainerSource;
/** The sources there are now; before the old ones are freed with n = 0. Borrowed. */
void retainer_set_sources(Retainer *r, const RetainerSource *sources, size_t n);
/** Continues with another configuration. */
void retainer_rebind(Retainer *r, const Config *config);
/** A bundle has ended: its row is durable, and the bundle is freed after this. */
void retainer_on_final(Retainer *r, const Bundle *b);
/** The answer to recheck_links: nothing that the links of this bundle hold is needed. */
void retainer_on_links_rechecked(Retainer *r, const IntakeSource *s, const char *id);
/** Something was delivered or found: starts a round soon. Cheap. */
void retainer_kick(Retainer *r);

/** @return whether the files of this bundle are being deleted at this moment: too late for anything
 * that would keep them */
bool retainer_is_letting_go(const Retainer *r, const char *id);

typedef struct RetainerView { /* of one source */
        const char *source;   /* borrowed */
        uint64_t used_bytes, max_use_bytes, free_bytes, keep_free_bytes;
        uint64_t n_held;   /* delivered bundles whose files wait for keep_for */
        uint64_t n_unheld; /* delivered ones that are never deleted, since no link of ours holds
                              them */
        const char *note;  /* a sentence: short of free space, over max_use …; NULL */
} RetainerView;
size_t retainer_view(Retainer *r, RetainerView *ret, size_t max);
