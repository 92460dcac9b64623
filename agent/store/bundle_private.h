/* What the files of the table of bundles share. Nobody else includes this. */
#pragma once

#include "agent/store/bundle.h"

struct BundleTable {
        BundleQueue **queues;
        size_t n_queues;
        Store *store; /* borrowed */
        Clock *clock; /* borrowed */
        BundleTableCallbacks callbacks;
        ListLink all;
        size_t n;
        void *by_id, *by_unit; /* tsearch(3) trees of Bundle */
        bool keeps_links;
        int store_error;
        ListLink to_write; /* Bundle.write_link: their rows could not be written */
        bool said_difference;
};

/* bundle.c */
/* Tells that its final state is in its row, and frees it. */
void bundle_finish(BundleTable *t, Bundle *b);

/* bundle_rows.c */
/* Remembers an error of the store, and says it once, not with each of a thousand bundles. @param error  -errno */
void bundle_table_mark_failed(BundleTable *t, int error);
