/* From a source's tree to bundles that are ready: events and scans say where to look, probes look, intake_rules.h decides. */
#pragma once

#include <systemd/sd-event.h>

#include "agent/bundle.h"
#include "agent/intake_probe.h"
#include "config/config.h"

/* No more bundles of one source than this are worked on at a time; the rest is taken when these are through. */
#define INTAKE_ACTIVE_MAX 20000

typedef struct IntakeContext { /* borrowed by the sources */
        sd_event *event;
        Clock *clock;
        Store *store;
        BundleTable *bundles;
        const char *instance_id, *proc_root;
        void (*on_ready)(Bundle *b, void *userdata); /* it is whole, or labelled: ship it */
        void (*on_discard)(const char *reason, uint64_t n,
                           void *userdata); /* members left out, for the metric */
        void *userdata;
} IntakeContext;

typedef struct IntakeSourceView {
        bool is_watched, has_scanned;
        const char *note; /* borrowed; NULL */
        size_t n_watches, n_overflows;
        uint64_t scan_usec;
} IntakeSourceView;

/** Starts watching and scanning. @param config  borrowed for the source's life */
int intake_source_new(IntakeSource **ret, IntakeContext *context, const ConfigSource *config);

/** Goes on with a configuration that says the same about this source. */
void intake_source_rebind(IntakeSource *s, const ConfigSource *config);

/** Stops it. Bundles that belong to it lose their source (b->source = NULL). */
IntakeSource *intake_source_free(IntakeSource *s);

/** Takes over a bundle of this source that is already known (after a start or a reload), and goes on with it. */
void intake_source_adopt(IntakeSource *s, Bundle *b);

/** Scans now. @param flush  takes what settles, and what the scan finds, as if `settle` were over */
void intake_source_flush(IntakeSource *s, bool flush);
/** Takes one settling bundle as if `settle` were over. */
void intake_flush_bundle(Bundle *b);

/** A bundle of this source came to an end: its pins go, and what came later is looked for. */
void intake_source_on_final(IntakeSource *s, Bundle *b);

/** Goes back to settling: it changed while it was being read. */
void intake_settle_again(Bundle *b, const char *why);

const ConfigSource *intake_source_config(const IntakeSource *s);
SourceTerms *intake_source_terms(const IntakeSource *s); /* borrowed */
void intake_source_view(const IntakeSource *s, IntakeSourceView *ret);
/** @return whether the last scan saw the whole source and could note what it found */
bool intake_source_has_seen_all(const IntakeSource *s);
/** @return whether the first scan is over and nothing waits to be looked at: what --once asks */
bool intake_source_is_idle(const IntakeSource *s);
