/* What the hook told of a unit, for the manifests of its bundles: read on the loop when a delivery begins, owned by the job from then on. */
#pragma once

#include <jansson.h>

#include "agent/store/store.h"
#include "lib/bundle/manifest.h"
#include "lib/bundle/plan.h"
#include "lib/dump/note.h"

typedef struct ShipNotes {
        HookNote *notes; /* owned; what the others point into */
        ManifestFailure *failures;
        size_t n; /* of both, at most MANIFEST_FAILURES_MAX */
        ManifestJob job;
        bool has_job;
        struct StoredJob *
                seen; /* without a note: the processes of the unit's owner that were seen at devices, the last seen first; owned */
        size_t n_seen;
} ShipNotes;

/** Reads the first notes of a unit, or who may have written it where there are none. One that cannot be read is left out. @return 0, -errno: then there are none */
int ship_notes_read(ShipNotes *ret, Store *store, const BundleRecord *b);
void ship_notes_done(ShipNotes *n);

/** Which job a unit without a note is from: that of the last seen process whose pid the name of a file of the same owner has, and which was seen before
 * the unit's last change. A hint: whoever wrote the files chose their names, but his own processes alone can be named by them.
 * @param ret_owner  what *ret points into, for json_decref()  @return whether there is one */
bool ship_notes_find_job(const ShipNotes *n, const Plan *plan, SourceKind kind, ManifestJob *ret,
                         json_t **ret_owner);

/** @return the prefix that was granted to the first note of the unit that asked for one, `s3://bucket/prefix`; the caller's. NULL: none */
char *ship_notes_prefix(Store *store, const char *source, const char *unit_path);
