/* Failures of jobs as this node sees them: which processes failed, which failure each belongs to,
 * and the name that its bundle is delivered under. */
#pragma once

#include <stdbool.h>
#include <stdint.h>
#include <systemd/sd-event.h>

#include "agent/delivery/scheduler.h"
#include "agent/hooknotes/hooknotes.h"
#include "agent/peers/claim.h"
#include "agent/store/bundle.h"
#include "config/config.h"
#include "lib/base/strbuf.h"

typedef struct Failures Failures;

typedef struct FailuresContext { /* borrowed */
        sd_event *event;
        Clock *clock;
        Store *store;
        BundleTable *bundles;
        const char *instance_id;
        bool has_bus; /* else the store alone decides (--once) */
        /* Bundles may have got a name: kick the scheduler. */
        void (*on_named)(void *userdata);
        /* A job of which ranks live here has failed on another node. */
        void (*on_peer_failure)(const char *what, void *userdata);
        void *userdata;
} FailuresContext;

/** @param config  borrowed until failures_rebind()  @return 0, -ENOMEM, -errno */
int failures_new(Failures **ret, const FailuresContext *context, const Config *config);
Failures *failures_free(Failures *f);
DEFINE_CLEANUP(Failures, failures_free);
void failures_rebind(Failures *f, const Config *config);
/** Whose destinations are asked; NULL before it is freed. */
void failures_set_scheduler(Failures *f, Scheduler *s);
/** Nothing settles any more, and a bundle waits for 2 s at most (drain, --once). */
void failures_hurry(Failures *f, bool on);

/** A hook's note, after a restart also those that are stored. */
void failures_on_note(Failures *f, const NoteView *v);
/** A record of the `jobs` collector: a process at a Neuron device. */
void failures_on_job(Failures *f, const char *record);
/** A bundle was found; it needs no member yet. */
void failures_on_found(Failures *f, Bundle *b);
/** It was delivered everywhere, or has ended otherwise: by its state. */
void failures_on_final(Failures *f, Bundle *b);

/** @return whether nothing is about to be written at a destination, for --once; after some seconds
 * it is so whatever is missing */
bool failures_is_idle(Failures *f);
/** @return whether a record, which says what was delivered, is to be written at a destination that
 * answers; as failures_is_idle() for some seconds at most */
bool failures_are_recording(Failures *f);

/** As SchedulerContext.is_named. */
bool failures_name_bundle(Failures *f, Bundle *b, uint64_t *ret_wait_usec);
/** Why a bundle that is READY waits for its failure's name, as a sentence; of one that has a name
 * which failure that is. @return the caller's; NULL: there is nothing to say */
char *failures_explain(const Failures *f, const BundleRecord *rec);
/** Adds the object `agreement` of the status, as JSON. */
void failures_add_status(Failures *f, StrBuf *b);

/** @return how many bundles got a name that was agreed so, since the agent started */
uint64_t failures_n_named(const Failures *f, Agreed agreed);
