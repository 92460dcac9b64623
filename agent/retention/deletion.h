/* The release of one bundle's files, as a task in the thread of its source. */
#pragma once

#include "agent/retention/link_deletion.h"
#include "agent/retention/policy.h"
#include "agent/retention/source_spec.h"
#include "agent/store/store.h"
#include "lib/base/cleanup.h"

typedef struct Deletion {
        SourceTask task;
        void *owner;      /* of the caller */
        SourceSpec *spec; /* a reference */
        char id[BUNDLE_ID_SIZE];
        char *relative;
        LinkDeletion request; /* borrows from the above and from prints */
        uint64_t *prints, *known;
        RetentionWhy why;
        LinkDeletionTally tally;
        int result;
} Deletion;

/** @param spec  a reference is taken  @return NULL for lack of memory; `task.done`, `owner` and
 * `why` are the caller's to set */
Deletion *deletion_new(SourceSpec *spec, const BundleRecord *rec);
Deletion *deletion_free(Deletion *d);
DEFINE_CLEANUP(Deletion, deletion_free);

/** Reads what was shipped of the unit, which alone may be deleted. @return 0, -errno of the store
 */
int deletion_read_prints(Deletion *d, Store *store, const BundleRecord *rec);

/** Logs what was done. */
void deletion_log(const Deletion *d);
/** @return a sentence on its failure and the remedy, the caller's; NULL for lack of memory */
char *deletion_explain_failure(const Deletion *d);
