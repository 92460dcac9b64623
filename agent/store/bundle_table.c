/* The table of bundles (bundle.h): finds them by id and by unit, keeps a queue for each source,
 * checks and makes the moves of their states, and writes their rows. A row that cannot be written
 * is written again later (bundle_table_retry()); until then a bundle in a final state stays in the
 * table, so that nothing is released before its row says so. Why a bundle moves is decided by the
 * modules that call. */
#include <errno.h>
#include <search.h>
#include <stdlib.h>
#include <string.h>

#include "agent/store/bundle.h"
#include "config/config.h"
#include "lib/base/array.h"
#include "lib/base/cleanup.h"
#include "lib/base/log.h"
#include "lib/base/strbuf.h"
#include "lib/base/transition.h"

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

bool bundle_has_begun(const Bundle *b) {
        for (size_t i = 0; i < b->rec.n_deliveries; i++)
                if (b->rec.deliveries[i].object)
                        return true;
        return false;
}

void held_files_done(HeldFiles *h) {
        for (size_t i = 0; i < h->n; i++) {
                free(h->items[i].path);
                (void)close(h->items[i].fd); /* it is only read, so nothing is lost */
        }
        free(h->items);
        bound_release(&h->charge);
        *h = (HeldFiles){ 0 };
}

/* ---- the processes that files are named after ---- */

/* @return the index of a pid, or where it would be inserted */
static size_t find_pid(const NamedPids *p, uint32_t pid) {
        size_t low = 0, high = p->n;
        while (low < high) {
                size_t middle = low + (high - low) / 2;
                if (p->items[middle] < pid)
                        low = middle + 1;
                else
                        high = middle;
        }
        return low;
}

void named_pids_add(NamedPids *p, int64_t pid) {
        if (pid <= 0 || pid > INT32_MAX)
                return;
        size_t i = find_pid(p, (uint32_t)pid);
        if (i < p->n && p->items[i] == (uint32_t)pid)
                return;
        if (p->n == NAMED_PIDS_MAX || array_grow(&p->items, p->n, sizeof *p->items) < 0) {
                p->is_cut = true;
                return;
        }
        memmove(&p->items[i + 1], &p->items[i], (p->n - i) * sizeof *p->items);
        p->items[i] = (uint32_t)pid;
        p->n++;
}

bool named_pids_contain(const NamedPids *p, int64_t pid) {
        size_t i = pid > 0 && pid <= INT32_MAX ? find_pid(p, (uint32_t)pid) : p->n;
        return i < p->n && p->items[i] == (uint32_t)pid;
}

void named_pids_done(NamedPids *p) {
        free(p->items);
        *p = (NamedPids){ 0 };
}

/* ---- the table ---- */

static int compare_id(const void *a, const void *b) {
        return strcmp(((const Bundle *)a)->rec.id, ((const Bundle *)b)->rec.id);
}

static int compare_unit(const void *a, const void *b) {
        const Bundle *x = a, *y = b;
        int r = strcmp(x->rec.source, y->rec.source);
        return r ? r : strcmp(x->rec.path, y->rec.path);
}

void bundle_set_pids(Bundle *b, NamedPids *pids) {
        named_pids_done(&b->pids);
        b->pids = *pids;
        *pids = (NamedPids){ 0 };
}

static void bundle_free(Bundle *b) {
        sd_event_source_disable_unref(b->unit.timer);
        held_files_done(&b->unit.held);
        bound_release(&b->unit.charge);
        named_pids_done(&b->pids);
        bundle_record_done(&b->rec);
        free(b);
}

static void remove_from(BundleTable *t, Bundle *b) {
        list_remove(&b->queue_link);
        list_remove(&b->write_link);
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
        if (array_grow((void *)&t->queues, t->n_queues, sizeof(BundleQueue *)) < 0)
                return NULL;
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
        if (!bundle_record_is_redelivery(&b->rec))
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
        list_init(&b->write_link);
        b->rec = *rec;
        *rec = (BundleRecord){ 0 };
        return b;
}

static int on_stored(BundleRecord *rec, void *userdata) {
        BundleTable *t = userdata;
        Bundle *b = bundle_new(rec);
        if (!b)
                return -ENOMEM;
        if (b->rec.state == BUNDLE_SHIPPING) /* the agent that shipped it has ended */
                b->rec.state = BUNDLE_READY;
        for (size_t i = 0; i < b->rec.n_deliveries; i++)
                if (b->rec.deliveries[i].state == DELIVERY_SHIPPING)
                        (void)bundle_set_delivery_state(b, &b->rec.deliveries[i], DELIVERY_PENDING);
        int r = put_into(t, b);
        if (r ==
            -EEXIST) { /* no agent writes two rows for one unit; the other one is worked on first */
                log_dump(b->rec.id, LOG_ERR, 0,
                         "another bundle of '%s' is underway, leaving this one for the next start",
                         b->rec.path);
                r = 0;
                bundle_free(b);
        } else if (r < 0)
                bundle_free(b);
        return r;
}

static void mark_failed(BundleTable *t, int error) {
        if (t->store_error == 0 && error != -ESTALE) /* once, not for each of a thousand bundles */
                log_error(error,
                          "cannot write the state database; no new bundle is accepted until this "
                          "works; free space in the state directory, or fix its disk");
        t->store_error = error;
        t->callbacks.on_store_error(t->callbacks.userdata);
}

static void on_trouble(int error, void *userdata) {
        mark_failed(userdata, error);
}

int bundle_table_new(BundleTable **ret, Store *store, Clock *clock,
                     const BundleTableCallbacks *callbacks) {
        _cleanup_free_ BundleTable *t = calloc(1, sizeof *t);
        if (!t)
                return -ENOMEM;
        *t = (BundleTable){ .store = store, .clock = clock, .callbacks = *callbacks };
        list_init(&t->all);
        list_init(&t->to_write);
        int r = store_list(store, &(StoreFilter){ .state = -1, .active_only = true }, on_stored, t);
        if (r < 0) {
                bundle_table_free(TAKE_PTR(t));
                return r;
        }
        store_on_trouble(store, on_trouble, t);
        if (store_last_error(store) < 0)
                mark_failed(t, store_last_error(store));
        *ret = TAKE_PTR(t);
        return 0;
}

BundleTable *bundle_table_free(BundleTable *t) {
        if (!t)
                return NULL;
        store_on_trouble(t->store, NULL, NULL);
        LIST_FOREACH_ITEM_SAFE (Bundle, b, link, &t->all) {
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
        int r = store_add(t->store, rec);
        if (r < 0 && r != -EEXIST)
                mark_failed(t, r);
        if (r < 0)
                return r;
        Bundle *b = bundle_new(rec);
        if (!b)
                return -ENOMEM; /* if it has a row, the next start continues with it */
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
        if (rec.state == BUNDLE_DELIVERED)
                rec.origin = ORIGIN_REDELIVERY;
        Bundle *b = bundle_new(&rec);
        if (!b)
                return -ENOMEM;
        b->source = source;
        b->unit.has_late = true; /* it may have an upload from before it was final */
        r = put_into(t, b);
        if (r < 0) {
                bundle_free(b);
                return r;
        }
        *ret = b;
        return 0;
}

/* Adds a delivery to each of these destinations that it has none to. @return how many, -ENOMEM */
static int add_destinations(Bundle *b, char *const *destinations) {
        BundleRecord *rec = &b->rec;
        int n = 0;
        for (; *destinations; destinations++) {
                if (bundle_record_has_destination(rec, *destinations))
                        continue;
                DeliveryRecord *more =
                        reallocarray(rec->deliveries, rec->n_deliveries + 1, sizeof *more);
                char *name = strdup(*destinations);
                if (more)
                        rec->deliveries = more;
                if (!more || !name) {
                        free(name);
                        return -ENOMEM;
                }
                more[rec->n_deliveries++] = (DeliveryRecord){ .destination = name };
                n++;
        }
        return n;
}

/* Removes the deliveries that are not done, and queues their uploads to be aborted. @param but
 * NULL; or of which destinations they stay  @return how many stay that are not done */
static size_t drop_undone(BundleTable *t, Bundle *b, char *const *but) {
        BundleRecord *rec = &b->rec;
        size_t n = 0, n_undone = 0;
        for (size_t i = 0; i < rec->n_deliveries; i++) {
                DeliveryRecord *d = &rec->deliveries[i];
                char *const *kept = but;
                while (kept && *kept && strcmp(*kept, d->destination) != 0)
                        kept++;
                if (d->state == DELIVERY_DONE || (kept && *kept)) {
                        rec->deliveries[n++] = *d;
                        n_undone += d->state != DELIVERY_DONE;
                        continue;
                }
                int r = store_ledger_abandon(t->store, rec->id, d->destination);
                if (r < 0)
                        log_dump(rec->id, LOG_WARNING, r, "its upload to %s is aborted later",
                                 d->destination);
                delivery_record_done(d);
        }
        rec->n_deliveries = n;
        return n_undone;
}

int bundle_table_redeliver(BundleTable *t, const char *id, IntakeSource *source,
                           char *const *destinations) {
        Bundle *b = NULL;
        int r = bundle_table_revive(t, id, source, &b);
        if (r < 0)
                return r;
        r = add_destinations(b, destinations);
        if (r >= 0)
                r = bundle_set_state(t, b, BUNDLE_READY, "redelivered by the operator");
        if (r < 0)
                bundle_table_forget(t, b);
        return MIN(r, 0);
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

static void bundle_finish(BundleTable *t, Bundle *b) {
        t->callbacks.on_final(b, t->callbacks.userdata);
        remove_from(t, b);
        bundle_free(b);
}

int bundle_set_delivery_state(const Bundle *b, DeliveryRecord *delivery, DeliveryState to) {
        int r = transition_check(&delivery_state_table, delivery->state, to, b->rec.id);
        if (r < 0)
                return r;
        log_dump(b->rec.id, LOG_DEBUG, 0, "%s: %s", delivery->destination, delivery_state_name(to));
        delivery->state = to;
        return 0;
}

/* @return the state that follows instead */
static BundleState bundle_end_redelivery(BundleTable *t, Bundle *b, BundleState to) {
        if (!bundle_record_is_redelivery(&b->rec) || to == BUNDLE_READY || to == BUNDLE_SHIPPING ||
            to == BUNDLE_QUARANTINED)
                return to;
        if (to == BUNDLE_SETTLING) /* what has changed since is left out of the next plan */
                return BUNDLE_READY;
        (void)drop_undone(t, b, NULL);
        b->rec.origin = bundle_record_first_origin(&b->rec);
        return BUNDLE_DELIVERED;
}

/* Retention rules are about sources of the configuration: of what the agent itself has made nothing
 * stays. */
static bool keeps_links(const BundleTable *t, const Bundle *b) {
        const BundleTableCallbacks *c = &t->callbacks;
        return (t->keeps_links && !source_kind_is_own(b->rec.kind)) ||
               (c->is_read && c->is_read(b->rec.id, c->userdata));
}

int bundle_set_state(BundleTable *t, Bundle *b, BundleState to, const char *reason) {
        int r = transition_check(&bundle_state_table, b->rec.state, to, b->rec.id);
        if (r < 0)
                return r;
        char *copy = reason ? strdup(reason) : NULL;
        if (reason && !copy)
                return -ENOMEM;
        bool has_failed = bundle_record_is_redelivery(&b->rec) && bundle_state_is_terminal(to) &&
                          to != BUNDLE_DELIVERED;
        if (has_failed) {
                char *text =
                        strbuf_format("not redelivered: %s", copy ? copy : bundle_state_name(to));
                free(copy);
                copy = text;
        }
        to = bundle_end_redelivery(t, b, to);
        free(b->rec.reason);
        b->rec.reason = copy;
        b->rec.state = to;
        /* The module that evicts a bundle clears links_held: it may have to delete the files first.
         */
        if ((to == BUNDLE_DELIVERED && !keeps_links(t, b)) || to == BUNDLE_CANCELLED ||
            to == BUNDLE_VANISHED)
                b->rec.links_held = false;
        b->rec.changed_usec = t->clock->realtime_usec(t->clock);
        bundle_save(t, b);
        log_dump(b->rec.id, bundle_state_is_inactive(to) ? LOG_INFO : LOG_DEBUG, 0, "%s%s%s%s",
                 bundle_state_name(to),
                 bundle_is_written(b) ? "" : " (not yet written to the state database)",
                 copy ? ": " : "", copy ? copy : "");
        if (bundle_state_is_inactive(to) && bundle_is_written(b))
                bundle_finish(t, b);
        return 0;
}

int bundle_redirect(BundleTable *t, Bundle *b, char *const *targets, char *const *known) {
        int n = add_destinations(b, targets);
        if (n < 0)
                return n;
        size_t before = b->rec.n_deliveries, n_undone = drop_undone(t, b, known);
        if (n == 0 && b->rec.n_deliveries == before)
                return 0;
        if (n_undone > 0) {
                bundle_save(t, b);
                return 1;
        }
        n = b->rec.state == BUNDLE_SETTLING ? bundle_set_state(t, b, BUNDLE_READY, NULL) : 0;
        if (n >= 0)
                n = bundle_set_state(t, b, BUNDLE_SHIPPING,
                                     NULL); /* all of its destinations have it */
        if (n >= 0)
                n = bundle_set_state(t, b, BUNDLE_DELIVERED, NULL);
        return n < 0 ? n : 1;
}

size_t bundle_table_n_open(const BundleTable *t) {
        size_t n = t->n;
        LIST_FOREACH (l, &t->to_write)
                n -= bundle_state_is_inactive(CONTAINER_OF(l, Bundle, write_link)->rec.state);
        return n;
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
        mark_failed(t, r < 0 ? r : -ENOENT);
}

/* Writes all rows in one commit. on_final may save other bundles, which are then on no list, or on
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
                if (bundle_state_is_inactive(b->rec.state))
                        bundle_finish(t, b);
        }
        return 0;
}

bool bundle_table_retry(BundleTable *t) {
        int r = list_is_empty(&t->to_write) ? 0 : write_rows(t);
        if (r == 0 && t->store_error < 0)
                r = store_recover(t->store);
        if (r < 0 || !list_is_empty(&t->to_write)) {
                mark_failed(t, r < 0 ? r : t->store_error);
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
        int error = store_last_error(t->store) < 0 ? store_last_error(t->store) : t->store_error;
        switch (error) {
        case 0:
                return NULL;
        case -ENOSPC:
                return "the state directory is full: " PAUSED "free space on its disk";
        case -EBUSY:
                return "another process has locked the state database: " PAUSED
                       "end it (a sqlite3 shell, a backup)";
        case -EROFS:
                return "the state directory is read-only: " PAUSED "remount it";
        case -ESTALE:
                return "the state directory was removed or replaced: no new bundle is accepted, "
                       "and the agent ends; start it again";
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

typedef struct RecordListing {
        int (*on_bundle)(const BundleRecord *b, void *userdata);
        void *userdata;
} RecordListing;

static int on_listed(BundleRecord *rec, void *userdata) {
        const RecordListing *list = userdata;
        return list->on_bundle(rec, list->userdata);
}

int bundle_table_list(BundleTable *t, const StoreFilter *f,
                      int (*on_bundle)(const BundleRecord *b, void *userdata), void *userdata) {
        return store_list(t->store, f, on_listed, &(RecordListing){ on_bundle, userdata });
}
