#include "agent/bundle.h"

#include <errno.h>
#include <search.h>
#include <stdlib.h>
#include <string.h>

#include "lib/base/cleanup.h"
#include "lib/base/log.h"

struct BundleTable {
        Store *store; /* borrowed */
        Clock *clock; /* borrowed */
        BundleTableCallbacks callbacks;
        ListLink all;
        size_t n;
        void *by_id, *by_unit; /* tsearch(3) trees of Bundle */
        int store_error;
};

void held_files_done(HeldFiles *h) {
        for (size_t i = 0; i < h->n; i++) {
                free(h->items[i].path);
                (void)close(h->items[i].fd); /* read only: nothing can be lost */
        }
        free(h->items);
        *h = (HeldFiles){ 0 };
}

static int compare_id(const void *a, const void *b) {
        return strcmp(((const Bundle *)a)->rec.id, ((const Bundle *)b)->rec.id);
}

static int compare_unit(const void *a, const void *b) {
        const Bundle *x = a, *y = b;
        int r = strcmp(x->rec.source, y->rec.source);
        return r ? r : strcmp(x->rec.path, y->rec.path);
}

static void bundle_free(Bundle *b) {
        sd_event_source_disable_unref(b->timer);
        held_files_done(&b->held);
        bundle_record_done(&b->rec);
        free(b);
}

static void remove_from(BundleTable *t, Bundle *b) {
        list_remove(&b->link);
        t->n--;
        tdelete(b, &t->by_id, compare_id);
        Bundle **found = tfind(b, &t->by_unit, compare_unit);
        if (found && *found == b)
                tdelete(b, &t->by_unit, compare_unit);
}

static int put_into(BundleTable *t, Bundle *b) {
        Bundle **in_tree = tsearch(b, &t->by_id, compare_id);
        if (!in_tree)
                return -ENOMEM;
        if (*in_tree != b)
                return -EEXIST;
        in_tree = tsearch(b, &t->by_unit, compare_unit);
        if (!in_tree || *in_tree != b) { /* a unit has at most one bundle that is being worked on */
                tdelete(b, &t->by_id, compare_id);
                return in_tree ? -EEXIST : -ENOMEM;
        }
        list_append(&t->all, &b->link);
        t->n++;
        return 0;
}

static int on_stored(BundleRecord *rec, void *userdata) {
        BundleTable *t = userdata;
        Bundle *b = calloc(1, sizeof *b);
        if (!b)
                return -ENOMEM;
        b->rec = *rec;
        *rec = (BundleRecord){ 0 };
        if (b->rec.state == BUNDLE_SHIPPING) /* whoever shipped it is dead */
                b->rec.state = BUNDLE_READY;
        for (size_t i = 0; i < b->rec.n_deliveries; i++)
                if (b->rec.deliveries[i].state == DELIVERY_SHIPPING)
                        b->rec.deliveries[i].state = DELIVERY_PENDING;
        int r = put_into(t, b);
        if (r ==
            -EEXIST) { /* two rows for one unit cannot come from us; the other one is worked on first */
                log_dump(b->rec.id, LOG_ERR, 0,
                         "another bundle of '%s' is underway, leaving this one for the next start",
                         b->rec.path);
                r = 0;
                bundle_free(b);
        } else if (r < 0)
                bundle_free(b);
        return r;
}

int bundle_table_new(BundleTable **ret, Store *store, Clock *clock,
                     const BundleTableCallbacks *callbacks) {
        _cleanup_free_ BundleTable *t = calloc(1, sizeof *t);
        if (!t)
                return -ENOMEM;
        *t = (BundleTable){ .store = store, .clock = clock, .callbacks = *callbacks };
        list_init(&t->all);
        int r = store_list(store, &(StoreFilter){ .state = -1, .active_only = true }, on_stored, t);
        if (r < 0) {
                bundle_table_free(TAKE_PTR(t));
                return r;
        }
        *ret = TAKE_PTR(t);
        return 0;
}

BundleTable *bundle_table_free(BundleTable *t) {
        if (!t)
                return NULL;
        LIST_FOREACH_SAFE (l, &t->all) {
                Bundle *b = CONTAINER_OF(l, Bundle, link);
                remove_from(t, b);
                bundle_free(b);
        }
        free(t);
        return NULL;
}

int bundle_table_add(BundleTable *t, BundleRecord *rec, IntakeSource *source, Bundle **ret) {
        rec->first_seen_usec = rec->changed_usec = t->clock->realtime_usec(t->clock);
        if (bundle_table_find_unit(t, rec->source,
                                   rec->path)) /* a unit has at most one that is worked on */
                return -EEXIST;
        int r = store_add(t->store, rec);
        if (r < 0) {
                t->store_error = r == -EEXIST ? t->store_error : r;
                return r;
        }
        t->store_error = 0;
        Bundle *b = calloc(1, sizeof *b);
        if (!b)
                return -ENOMEM; /* the row is there: the next start takes it up */
        b->rec = *rec;
        *rec = (BundleRecord){ 0 };
        b->source = source;
        r = put_into(t, b);
        if (r < 0) {
                bundle_free(b);
                return r;
        }
        log_dump(b->rec.id, LOG_INFO, 0, "found '%s' (source %s)", b->rec.path, b->rec.source);
        *ret = b;
        return 0;
}

int bundle_table_revive(BundleTable *t, const char *id, IntakeSource *source, Bundle **ret) {
        _cleanup_(bundle_record_done) BundleRecord rec = { 0 };
        int r = store_get(t->store, id, &rec);
        if (r != 0)
                return r == STORE_E_NOT_FOUND ? -ENOENT : r;
        Bundle *b = calloc(1, sizeof *b);
        if (!b)
                return -ENOMEM;
        b->rec = rec;
        rec = (BundleRecord){ 0 };
        b->source = source;
        r = put_into(t, b);
        if (r < 0) {
                bundle_free(b);
                return r;
        }
        *ret = b;
        return 0;
}

void bundle_table_forget(BundleTable *t, Bundle *b) {
        remove_from(t, b);
        bundle_free(b);
}

Bundle *bundle_table_find(const BundleTable *t, const char *id) {
        Bundle key = { 0 };
        if (strlen(id) >= sizeof key.rec.id)
                return NULL;
        strcpy(key.rec.id, id);
        Bundle **found = tfind(&key, &t->by_id, compare_id);
        return found ? *found : NULL;
}

Bundle *bundle_table_find_unit(const BundleTable *t, const char *source, const char *path) {
        Bundle key = { .rec = { .source = (char *)source, .path = (char *)path } };
        Bundle **found = tfind(&key, &t->by_unit, compare_unit);
        return found ? *found : NULL;
}

ListLink *bundle_table_all(BundleTable *t) {
        return &t->all;
}

size_t bundle_table_n(const BundleTable *t) {
        return t->n;
}

void bundle_save(BundleTable *t, Bundle *b) {
        int r = store_update(t->store, &b->rec);
        if (r == STORE_E_NOT_FOUND) /* whatever became of its row, it gets one */
                r = store_add(t->store, &b->rec);
        if (r < 0 && t->store_error != r) /* said once, not with each of a thousand bundles */
                log_dump(b->rec.id, LOG_ERR, r,
                         "cannot write the state database; going on from memory, which does not "
                         "survive a crash");
        b->unsaved = r < 0;
        t->store_error = r < 0 ? r : 0;
        if (r < 0)
                t->callbacks.on_store_error(t->callbacks.userdata);
}

static void finish(BundleTable *t, Bundle *b) {
        t->callbacks.on_final(b, t->callbacks.userdata);
        remove_from(t, b);
        bundle_free(b);
}

bool bundle_table_retry(BundleTable *t) {
        bool was_ill = t->store_error < 0;
        LIST_FOREACH_SAFE (l, &t->all) {
                Bundle *b = CONTAINER_OF(l, Bundle, link);
                if (!b->unsaved)
                        continue;
                bundle_save(t, b);
                if (b->unsaved)
                        return false;
                if (bundle_state_is_final(b->rec.state))
                        finish(t, b);
        }
        if (was_ill)
                log_notice("the state database can be written again");
        t->store_error = 0;
        return true;
}

int bundle_set_state(BundleTable *t, Bundle *b, BundleState to, const char *reason) {
        if (!bundle_state_may_follow(b->rec.state, to)) {
                log_dump(b->rec.id, LOG_ERR, 0,
                         "refusing to move it from %s to %s: a defect, please report it",
                         bundle_state_name(b->rec.state), bundle_state_name(to));
                return -EPERM;
        }
        char *copy = reason ? strdup(reason) : NULL;
        if (reason && !copy)
                return -ENOMEM;
        free(b->rec.reason);
        b->rec.reason = copy;
        b->rec.state = to;
        b->rec.changed_usec = t->clock->realtime_usec(t->clock);
        bundle_save(t, b);
        log_dump(b->rec.id, bundle_state_is_final(to) ? LOG_INFO : LOG_DEBUG, 0, "%s%s%s%s",
                 bundle_state_name(to),
                 b->unsaved ? " (not yet written to the state database)" : "", copy ? ": " : "",
                 copy ? copy : "");
        if (bundle_state_is_final(to) && !b->unsaved)
                finish(t, b);
        return 0;
}

int bundle_table_store_error(const BundleTable *t) {
        return t->store_error;
}
