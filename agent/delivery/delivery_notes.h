/* What hooks reported about a unit, for the manifests of its bundles. It is read on the loop when a
 * delivery starts, and from then on belongs to the delivery. Private to this folder. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "agent/store/bundle.h"
#include "agent/store/store.h"
#include "lib/bundle/manifest.h"
#include "lib/neuron/note.h"

typedef struct DeliveryNote {
        HookNote note;
        char *container; /* NULL = not known */
        uid_t uid;       /* its user */
        uint64_t received_usec;
} DeliveryNote;

typedef struct DeliveryNotes {
        DeliveryNote *items; /* owned */
        size_t n;            /* at most MANIFEST_FAILURES_MAX; in the order of arrival */
        /* Without a note: the owner's processes that were seen at devices, the last one first. */
        struct StoredJob *seen; /* owned */
        size_t n_seen;
} DeliveryNotes;

/** Reads the first notes of a bundle's unit, of users who may annotate it (bundle.h); one that
 * cannot be read is left out. Where the unit's own user has sent none, also reads which of the
 * user's processes were seen at devices. @return 0; -errno: then there are none */
int delivery_notes_read(DeliveryNotes *ret, Store *store, const Bundle *b);
void delivery_notes_done(DeliveryNotes *n);

/** Removes the notes of users who may not annotate these owners' files. @return how many */
size_t delivery_notes_filter(DeliveryNotes *n, const FileOwners *owners);

/** Sets a bundle's `failure` from the first note of a process that has files in it. Without such a
 * note the first note of all is used, but not for a supplement whose file names contain pids.
 * @return whether its row changes */
bool delivery_notes_record_failure(Store *store, Bundle *b);
/** The same from these notes. @return whether the row changes */
bool delivery_notes_set_failure(Bundle *b, const DeliveryNotes *n);

/* What a manifest says about failures and about the job. */
typedef struct DeliveryNotesText {
        ManifestFailure *failures; /* owned; they borrow from the notes */
        size_t n_failures;
        ManifestJob job; /* of the first one that is named; borrows from the notes */
        bool has_job;
} DeliveryNotesText;

/** Chooses the failures and the job. @param pids  in the names of the bundle's members
 * @return 0; -ENOMEM, with nothing left to free */
int delivery_notes_describe(const DeliveryNotes *n, const NamedPids *pids, bool is_supplement,
                            DeliveryNotesText *ret);
void delivery_notes_text_done(DeliveryNotesText *t);
