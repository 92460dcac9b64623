/* Bundles whose rows are behind, since the state directory is full or fails: what is worked on goes on from memory, and is written when
 * there is room again. */
#include <errno.h>

#include "agent/store/bundle_private.h"
#include "lib/base/log.h"

/* Rows that are written as one when there is room again. */
#define BATCH 256

void bundle_take_off_unsaved(BundleTable *t, Bundle *b) {
        list_remove(&b->unsaved_link);
        t->n_rowless -= b->rowless;
        b->unsaved = b->rowless = b->in_batch = false;
}

void bundle_table_fall_ill(BundleTable *t, int error) {
        if (t->store_error == 0)
                log_error(
                        error,
                        "cannot write the state database; deliveries go on from memory, and after "
                        "a crash what was delivered meanwhile is found again at its destinations; "
                        "make room in the state directory, or mend its disk");
        t->store_error = error;
        t->callbacks.on_store_error(t->callbacks.userdata);
}

void bundle_put_on_unsaved(BundleTable *t, Bundle *b, bool rowless) {
        bundle_take_off_unsaved(t, b);
        b->unsaved = true;
        b->rowless = rowless;
        t->n_rowless += rowless;
        list_append(&t->unsaved, &b->unsaved_link);
}

static void note_saved(BundleTable *t, Bundle *b) {
        bundle_take_off_unsaved(t, b);
        b->stored_state = b->rec.state;
        b->stored_bytes = b->rec.bytes;
}

bool bundle_table_keep_rowless(BundleTable *t, Bundle *b, int error) {
        if (!b->rowless && (!store_is_trouble(error) || t->n_rowless >= BUNDLE_ROWLESS_MAX))
                return false;
        bundle_put_on_unsaved(t, b, true);
        return true;
}

static int write_row(BundleTable *t, Bundle *b) {
        int r = b->rowless ? STORE_E_NOT_FOUND : store_update(t->store, &b->rec);
        if (r == STORE_E_NOT_FOUND) /* whatever became of its row, it gets one */
                r = store_add(t->store, &b->rec);
        if (r == -EEXIST) /* one that was not seen while the database could not be read */
                r = store_update(t->store, &b->rec);
        return r > 0 ? -ENOENT : r;
}

/* A row that came before its prints would, after a crash, have all of the bundle shipped once more. */
static bool has_to_wait(const BundleTable *t, const Bundle *b) {
        return store_trouble(t->store) < 0 && store_has_put_off(t->store, b->rec.id);
}

void bundle_save(BundleTable *t, Bundle *b) {
        int r = has_to_wait(t, b) ? store_trouble(t->store) : write_row(t, b);
        if (r < 0) {
                bundle_put_on_unsaved(t, b, b->rowless);
                bundle_table_fall_ill(t, r);
        } else
                note_saved(t, b);
}

static int write_rows(BundleTable *t) {
        int n = 0;
        LIST_FOREACH (l, &t->unsaved) {
                Bundle *b = CONTAINER_OF(l, Bundle, unsaved_link);
                int r = write_row(t, b);
                if (r == 0)
                        r = store_recover_bundle(t->store, b->rec.id);
                if (r < 0)
                        return r;
                b->in_batch = true;
                if (++n == BATCH)
                        break;
        }
        return 0;
}

static Bundle *first_in_batch(const BundleTable *t) {
        Bundle *b = CONTAINER_OF(t->unsaved.next, Bundle, unsaved_link);
        return list_is_empty(&t->unsaved) || !b->in_batch ? NULL : b;
}

/* Writes some rows as one, and finishes what waited for them. What is told of one may change the list, but not those that stand before it:
 * whatever is saved anew goes to its end. */
static int save_batch(BundleTable *t) {
        Bundle *b;
        int r = store_begin(t->store);
        if (r < 0)
                return r;
        r = write_rows(t);
        if (r == 0)
                r = store_commit(t->store);
        else
                store_rollback(t->store);
        if (r < 0) {
                LIST_FOREACH (l, &t->unsaved)
                        CONTAINER_OF(l, Bundle, unsaved_link)->in_batch = false;
                return r;
        }
        while ((b = first_in_batch(t))) {
                store_recovered_bundle(t->store, b->rec.id);
                note_saved(t, b);
                if (bundle_state_is_final(b->rec.state))
                        bundle_finish(t, b);
        }
        return 0;
}

bool bundle_table_retry(BundleTable *t) {
        int r = store_make(t->store);
        while (!list_is_empty(&t->unsaved) && r == 0)
                r = save_batch(t);
        if (r == 0 && t->store_error < 0)
                r = store_recover(t->store);
        if (r < 0) {
                bundle_table_fall_ill(t, r);
                return false;
        }
        if (t->store_error < 0)
                log_notice("the state database can be written again, and everything is");
        t->store_error = 0;
        return true;
}

int bundle_table_store_error(const BundleTable *t) {
        return t->store_error;
}

const char *bundle_table_note(const BundleTable *t) {
        /* the first failure tells more than those that follow from it */
        int error = store_trouble(t->store) < 0 ? store_trouble(t->store) : t->store_error;
        switch (error) {
        case 0:
                return NULL;
        case -ENOSPC:
                return "the state directory is full: deliveries go on from memory, and after a "
                       "crash "
                       "they would be found again at their destinations; make room there";
        case -EROFS:
                return "the state directory cannot be written (read-only, or state.db is gone): "
                       "deliveries go on from memory, and after a crash they would be found again "
                       "at "
                       "their destinations";
        case -EUCLEAN:
                return "the state database is damaged: deliveries go on from memory; the next "
                       "start "
                       "puts it aside and finds them again at their destinations";
        default:
                return "the state database cannot be written: deliveries go on from memory, and "
                       "after "
                       "a crash they would be found again at their destinations";
        }
}
