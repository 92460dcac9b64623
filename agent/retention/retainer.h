/* Lets go of sources by the operator's policy: measures and deletes in the source's worker, decides by store/retention.h on the loop.
 * Runs only while there is something that may have to go. */
#pragma once

#include <systemd/sd-event.h>

#include "agent/intake/intake.h"
#include "agent/store/bundle.h"
#include "config/config.h"

typedef struct Retainer Retainer;

typedef struct RetainerContext { /* borrowed */
        sd_event *event;
        Clock *clock;
        Store *store;
        BundleTable *bundles;
        void (*on_discard)(const char *reason, uint64_t n, void *userdata); /* for the metric */
        /* An undelivered bundle is to be let go. Moves it to EVICTED; it may be gone when this returns 0. Its files go when its row is durable.
         * -errno: it is what it was */
        int (*on_evict)(Bundle *b, const char *reason, void *userdata);
        void *userdata;
} RetainerContext;

int retainer_new(Retainer **ret, const RetainerContext *context, const Config *config);
Retainer *retainer_free(Retainer *r);
/** The sources there are now; before the old ones are freed with n = 0. Borrowed. */
void retainer_set_sources(Retainer *r, IntakeSource *const *sources, size_t n);
/** Goes on with another configuration. */
void retainer_rebind(Retainer *r, const Config *config);
/** Something was delivered or found: looks soon. Cheap. */
void retainer_kick(Retainer *r);

/** @return whether the files of this bundle are being deleted at this moment: too late for anything that would keep them */
bool retainer_is_letting_go(const Retainer *r, const char *id);

typedef struct RetainerView { /* of one source */
        const char *source;   /* borrowed */
        uint64_t used_bytes, max_use_bytes, free_bytes, keep_free_bytes;
        uint64_t n_held; /* delivered bundles whose files wait for keep_for */
        uint64_t
                n_unheld; /* delivered ones that are never deleted, since nothing of ours holds them */
        const char *note; /* a sentence: short of room, over max_use …; NULL */
} RetainerView;
size_t retainer_view(Retainer *r, RetainerView *ret, size_t max);
