/* The rows of the bundles in memory: written at each change, written again later when that fails, and what is
 * shown of them. */
#include <errno.h>

#include "agent/store/bundle_private.h"
#include "lib/base/log.h"

void bundle_table_mark_failed(BundleTable *t, int error) {
        if (t->store_error == 0) /* once, not for each of a thousand bundles */
                log_error(error,
                          "cannot write the state database; no new bundle is accepted until this "
                          "works; free space in the state directory, or fix its disk");
        t->store_error = error;
        t->callbacks.on_store_error(t->callbacks.userdata);
}

bool bundle_is_written(const Bundle *b) {
        return list_is_empty(&b->write_link);
}

void bundle_save(BundleTable *t, Bundle *b) {
        int r = store_update(t->store, &b->rec);
        list_remove(&b->write_link);
        if (r == 0)
                return;
        list_append(&t->to_write, &b->write_link);
        bundle_table_mark_failed(t, r < 0 ? r : -ENOENT);
}

/* All rows in one commit. What on_final does may save other bundles, which then are on no list, or on
 * t->to_write again. */
static int write_rows(BundleTable *t) {
        ListLink written;
        int r = store_begin(t->store);
        if (r < 0)
                return r;
        LIST_FOREACH (l, &t->to_write) {
                r = store_update(t->store, &CONTAINER_OF(l, Bundle, write_link)->rec);
                if (r != 0)
                        break;
        }
        if (r == 0)
                r = store_commit(t->store);
        else
                store_rollback(t->store);
        if (r != 0)
                return r < 0 ? r : -ENOENT;
        list_init(&written);
        LIST_FOREACH_SAFE (l, &t->to_write) {
                list_remove(l);
                list_append(&written, l);
        }
        while (!list_is_empty(&written)) {
                Bundle *b = CONTAINER_OF(written.next, Bundle, write_link);
                list_remove(&b->write_link);
                if (bundle_state_is_final(b->rec.state))
                        bundle_finish(t, b);
        }
        return 0;
}

bool bundle_table_retry(BundleTable *t) {
        int r = list_is_empty(&t->to_write) ? 0 : write_rows(t);
        if (r == 0 && t->store_error < 0)
                r = store_recover(t->store);
        if (r < 0 || !list_is_empty(&t->to_write)) {
                bundle_table_mark_failed(t, r < 0 ? r : t->store_error);
                return false;
        }
        if (t->store_error < 0)
                log_notice("the state database can be written again");
        t->store_error = 0;
        return true;
}

int bundle_table_store_error(const BundleTable *t) {
        return t->store_error;
}

#define PAUSED "no new bundle is accepted, and sources stay held; "

const char *bundle_table_note(const BundleTable *t) {
        /* the first failure tells more than those that follow from it */
        int error = store_trouble(t->store) < 0 ? store_trouble(t->store) : t->store_error;
        switch (error) {
        case 0:
                return NULL;
        case -ENOSPC:
                return "the state directory is full: " PAUSED "free space on its disk";
        case -EROFS:
                return "the state directory is read-only, or state.db was deleted: " PAUSED
                       "remount it, or restart the agent";
        case -EUCLEAN:
                return "the state database is damaged: " PAUSED
                       "restart the agent, which replaces it and finds everything again";
        default:
                return "the state database cannot be written: " PAUSED "see the log, fix its disk";
        }
}

void bundle_table_counts(BundleTable *t, StoreCounts *ret) {
        store_counts(t->store, ret);
        int64_t difference = store_counts_difference(ret);
        if (difference != 0 && !t->said_difference)
                log_error(0,
                          "the number of bundles discovered and the sum by state differ by %lld: "
                          "the state database was changed by somebody else, or this is a defect; "
                          "please report it",
                          (long long)difference);
        t->said_difference = difference != 0;
}

typedef struct Listing {
        int (*on_bundle)(const BundleRecord *b, void *userdata);
        void *userdata;
} Listing;

static int on_listed(BundleRecord *rec, void *userdata) {
        const Listing *list = userdata;
        return list->on_bundle(rec, list->userdata);
}

int bundle_table_list(BundleTable *t, const StoreFilter *f,
                      int (*on_bundle)(const BundleRecord *b, void *userdata), void *userdata) {
        return store_list(t->store, f, on_listed, &(Listing){ on_bundle, userdata });
}
