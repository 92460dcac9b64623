/* What hooks told of a unit, for the manifests of its bundles: read on the loop when a delivery begins, and from then on the delivery job's. */
#pragma once

#include <jansson.h>

#include "agent/store/bundle.h"
#include "agent/store/store.h"
#include "lib/bundle/manifest.h"
#include "lib/bundle/plan.h"
#include "lib/neuron/note.h"

typedef struct ShipNotes {
        HookNote *notes; /* owned; what the others point into */
        ManifestFailure *failures;
        char **containers; /* owned; of each note, NULL = not known */
        uid_t *uids;       /* who told each note */
        size_t n;          /* of them all, at most MANIFEST_FAILURES_MAX */
        ManifestJob job;
        bool has_job;
        struct StoredJob *
                seen; /* without a note: the processes of the unit's owner that were seen at devices, the last seen first; owned */
        size_t n_seen;
} ShipNotes;

/** Reads the first notes of a bundle's unit, of users who may speak about it (owners.h, as far as its owners are known); a note that cannot be read is left out.
 * Where the unit's own user has told nothing, also reads which of his processes were seen at devices (see below). @return 0; -errno: then there are none */
int ship_notes_read(ShipNotes *ret, Store *store, const Bundle *b);
void ship_notes_done(ShipNotes *n);

/** Which job a unit without a note is from: that of the last seen process whose pid the name of a file of the same owner has, and which was seen before
 * the unit's last change. A hint: whoever wrote the files chose their names, but his own processes alone can be named by them.
 * @return what *ret points into, for json_decref(); NULL: there is none */
json_t *ship_notes_find_job(const ShipNotes *n, const Plan *plan, SourceKind kind,
                            ManifestJob *ret);

/** Leaves out the notes of users who may not speak about these owners' files (owners.h). @return how many were left out */
size_t ship_notes_judge(ShipNotes *n, const Owners *owners);
