#include "agent/bundle.h"

#include <errno.h>
#include <search.h>
#include <stdlib.h>
#include <string.h>

#include "lib/base/cleanup.h"
#include "lib/base/log.h"

/* Rows that are written as one when there is room again. */
#define BATCH 256

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
        ListLink unsaved;
        size_t n_rowless;
        bool said_difference;
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

static void take_off_unsaved(BundleTable *t, Bundle *b) {
        list_remove(&b->unsaved_link);
        t->n_rowless -= b->rowless;
        b->unsaved = b->rowless = b->in_batch = false;
}

static void remove_from(BundleTable *t, Bundle *b) {
        list_remove(&b->queue_link);
        take_off_unsaved(t, b);
        list_remove(&b->link);
        t->n--;
        tdelete(b, &t->by_id, compare_id);
        Bundle **found = tfind(b, &t->by_unit, compare_unit);
        if (found && *found == b)
                tdelete(b, &t->by_unit, compare_unit);
}

static BundleQueue *find_queue(const BundleTable *t, const char *source) {
        for (size_t i = 0; i < t->n_queues; i++)
                if (strcmp(t->queues[i]->source, source) == 0)
                        return t->queues[i];
        return NULL;
}

/* Lists know their neighbours, so the queues cannot move: each is allocated once. */
static BundleQueue *queue_of(BundleTable *t, const char *source) {
        BundleQueue *known = find_queue(t, source);
        if (known)
                return known;
        BundleQueue **more = reallocarray(t->queues, t->n_queues + 1, sizeof(*more));
        if (!more)
                return NULL;
        t->queues = more;
        BundleQueue *q = calloc(1, sizeof *q);
        if (!q || !(q->source = strdup(source))) {
                free(q);
                return NULL;
        }
        list_init(&q->bundles);
        t->queues[t->n_queues++] = q;
        return q;
}

static int put_into(BundleTable *t, Bundle *b) {
        BundleQueue *q = queue_of(t, b->rec.source);
        if (!q)
                return -ENOMEM;
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
        list_append(&q->bundles, &b->queue_link);
        t->n++;
        return 0;
}

/* Takes what rec owns. @return NULL for lack of memory */
static Bundle *bundle_new(BundleRecord *rec) {
        Bundle *b = calloc(1, sizeof *b);
        if (!b)
                return NULL;
        list_init(&b->unsaved_link);
        b->rec = *rec;
        b->stored_state = rec->state;
        b->stored_bytes = rec->bytes;
        *rec = (BundleRecord){ 0 };
        return b;
}

static int on_stored(BundleRecord *rec, void *userdata) {
        BundleTable *t = userdata;
        Bundle *b = bundle_new(rec);
        if (!b)
                return -ENOMEM;
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

/* ---- when the store cannot write ---- */

/* Said once, not with each of a thousand bundles. */
static void fall_ill(BundleTable *t, int error) {
        if (t->store_error == 0)
                log_error(
                        error,
                        "cannot write the state database; deliveries go on from memory, and after "
                        "a crash what was delivered meanwhile is found again at its destinations; "
                        "make room in the state directory, or mend its disk");
        t->store_error = error;
        t->callbacks.on_store_error(t->callbacks.userdata);
}

static void on_trouble(int error, void *userdata) {
        fall_ill(userdata, error);
}

static void put_on_unsaved(BundleTable *t, Bundle *b, bool rowless) {
        take_off_unsaved(t, b);
        b->unsaved = true;
        b->rowless = rowless;
        t->n_rowless += rowless;
        list_append(&t->unsaved, &b->unsaved_link);
}

static void note_saved(BundleTable *t, Bundle *b) {
        take_off_unsaved(t, b);
        b->stored_state = b->rec.state;
        b->stored_bytes = b->rec.bytes;
}

bool bundle_table_keep_rowless(BundleTable *t, Bundle *b, int error) {
        if (!b->rowless && (!store_is_trouble(error) || t->n_rowless >= BUNDLE_ROWLESS_MAX))
                return false;
        put_on_unsaved(t, b, true);
        return true;
}

int bundle_table_new(BundleTable **ret, Store *store, Clock *clock,
                     const BundleTableCallbacks *callbacks) {
        _cleanup_free_ BundleTable *t = calloc(1, sizeof *t);
        if (!t)
                return -ENOMEM;
        *t = (BundleTable){ .store = store, .clock = clock, .callbacks = *callbacks };
        list_init(&t->all);
        list_init(&t->unsaved);
        int r = store_list(store, &(StoreFilter){ .state = -1, .active_only = true }, on_stored, t);
        if (r < 0) {
                bundle_table_free(TAKE_PTR(t));
                return r;
        }
        store_on_trouble(store, on_trouble, t);
        if (store_trouble(store) < 0)
                fall_ill(t, store_trouble(store));
        *ret = TAKE_PTR(t);
        return 0;
}

BundleTable *bundle_table_free(BundleTable *t) {
        if (!t)
                return NULL;
        store_on_trouble(t->store, NULL, NULL);
        LIST_FOREACH_SAFE (l, &t->all) {
                Bundle *b = CONTAINER_OF(l, Bundle, link);
                remove_from(t, b);
                bundle_free(b);
        }
        for (size_t i = 0; i < t->n_queues; i++) {
                free(t->queues[i]->source);
                free(t->queues[i]);
        }
        free(t->queues);
        free(t);
        return NULL;
}

int bundle_table_add(BundleTable *t, BundleRecord *rec, IntakeSource *source, Bundle **ret) {
        rec->first_seen_usec = rec->changed_usec = t->clock->realtime_usec(t->clock);
        if (bundle_table_find_unit(t, rec->source,
                                   rec->path)) /* a unit has at most one that is worked on */
                return -EEXIST;
        int r = store_add(t->store, rec), error = r;
        if (r < 0 && r != -EEXIST)
                fall_ill(t, r);
        if (r < 0 && (!store_is_trouble(r) || t->n_rowless >= BUNDLE_ROWLESS_MAX))
                return r;
        Bundle *b = bundle_new(rec);
        if (!b)
                return -ENOMEM; /* if there is a row the next start takes it up */
        b->source = source;
        r = put_into(t, b);
        if (r < 0) {
                bundle_free(b);
                return r;
        }
        if (error < 0)
                put_on_unsaved(t, b, true);
        log_dump(b->rec.id, LOG_INFO, 0, "found '%s' (source %s)%s", b->rec.path, b->rec.source,
                 b->rowless ? ", known in memory only" : "");
        *ret = b;
        return 0;
}

int bundle_table_revive(BundleTable *t, const char *id, IntakeSource *source, Bundle **ret) {
        _cleanup_(bundle_record_done) BundleRecord rec = { 0 };
        int r = store_get(t->store, id, &rec);
        if (r != 0)
                return r == STORE_E_NOT_FOUND ? -ENOENT : r;
        Bundle *b = bundle_new(&rec);
        if (!b)
                return -ENOMEM;
        b->source = source;
        r = put_into(t, b);
        if (r < 0) {
                bundle_free(b);
                return r;
        }
        *ret = b;
        return 0;
}

void bundle_table_keep_links(BundleTable *t, bool keep) {
        t->keeps_links = keep;
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

const BundleQueue *bundle_table_queue_of(const BundleTable *t, const Bundle *b) {
        return find_queue(t, b->rec.source);
}

BundleQueue *const *bundle_table_queues(const BundleTable *t, size_t *ret_n) {
        *ret_n = t->n_queues;
        return t->queues;
}

size_t bundle_table_n(const BundleTable *t) {
        return t->n;
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
                put_on_unsaved(t, b, b->rowless);
                fall_ill(t, r);
        } else
                note_saved(t, b);
}

static void finish(BundleTable *t, Bundle *b) {
        t->callbacks.on_final(b, t->callbacks.userdata);
        remove_from(t, b);
        bundle_free(b);
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
                        finish(t, b);
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
                fall_ill(t, r);
                return false;
        }
        if (t->store_error < 0)
                log_notice("the state database can be written again, and everything is");
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
        /* An evicted one's mark is whoever evicts it's: its files may have to go first. */
        if ((to == BUNDLE_DELIVERED && !t->keeps_links) || to == BUNDLE_CANCELLED ||
            to == BUNDLE_VANISHED)
                b->rec.links_held = false;
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

/* ---- what is shown ---- */

/* As the store counts them. */
static uint64_t capped(uint64_t bytes) {
        return MIN(bytes, UINT64_C(1) << 48);
}

void bundle_table_counts(BundleTable *t, StoreCounts *ret) {
        store_counts(t->store, ret);
        LIST_FOREACH (l, &t->unsaved) {
                const Bundle *b = CONTAINER_OF(l, Bundle, unsaved_link);
                ret->discovered += b->rowless;
                ret->bundles[b->stored_state] -= !b->rowless;
                ret->bytes[b->stored_state] -= b->rowless ? 0 : capped(b->stored_bytes);
                ret->bundles[b->rec.state]++;
                ret->bytes[b->rec.state] += capped(b->rec.bytes);
        }
        int64_t difference = store_counts_difference(ret);
        if (difference != 0 && !t->said_difference)
                log_error(
                        0,
                        "the bundles that were discovered and what became of them differ by %lld: "
                        "somebody has changed the state database, or it is a defect; please "
                        "report it",
                        (long long)difference);
        t->said_difference = difference != 0;
}

typedef struct Listing {
        const BundleTable *table;
        const StoreFilter *filter;
        int (*on_bundle)(const BundleRecord *b, void *userdata);
        void *userdata;
        unsigned n;
} Listing;

static bool is_wanted(const Listing *list, const BundleRecord *rec) {
        const StoreFilter *f = list->filter;
        return (f->state < 0 || rec->state == (BundleState)f->state) &&
               (!f->source || strcmp(f->source, rec->source) == 0);
}

/* @return 1 when there are enough of them */
static int show(Listing *list, const BundleRecord *rec) {
        int r = list->on_bundle(rec, list->userdata);
        return r != 0 ? r : ++list->n == list->filter->limit;
}

/* What is unsaved is shown as it is known here, behind the others. */
static int show_stored(BundleRecord *rec, void *userdata) {
        Listing *list = userdata;
        const Bundle *b = bundle_table_find(list->table, rec->id);
        return b && b->unsaved ? 0 : show(list, rec);
}

int bundle_table_list(BundleTable *t, const StoreFilter *f,
                      int (*on_bundle)(const BundleRecord *b, void *userdata), void *userdata) {
        Listing list = { .table = t, .filter = f, .on_bundle = on_bundle, .userdata = userdata };
        const Bundle *after = f->after ? bundle_table_find(t, f->after) : NULL;
        bool is_behind = after && after->unsaved; /* the rows are through */
        int r = 0;
        if (!is_behind) {
                StoreFilter all = *f;
                all.limit = 0;
                r = store_list(t->store, &all, show_stored, &list);
        }
        if (r != 0 || (f->limit > 0 && list.n == f->limit))
                return r;
        LIST_FOREACH (l, &t->unsaved) {
                const Bundle *b = CONTAINER_OF(l, Bundle, unsaved_link);
                if (!is_behind && is_wanted(&list, &b->rec))
                        r = show(&list, &b->rec);
                if (r != 0)
                        break;
                is_behind = is_behind && b != after;
        }
        return r < 0 ? r : 0;
}

size_t bundle_table_n_open(const BundleTable *t) {
        size_t n = t->n;
        LIST_FOREACH (l, &t->unsaved)
                n -= bundle_state_is_final(CONTAINER_OF(l, Bundle, unsaved_link)->rec.state);
        return n;
}
