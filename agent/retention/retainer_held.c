/* The bundles that have ended while links of ours go on to hold their files: the rows say which, this is a copy. And how many have ended
 * with nothing that holds them. */
#include <errno.h>
#include <search.h>
#include <string.h>

#include "agent/retention/retainer_private.h"
#include "lib/base/log.h"
#include "lib/base/path.h"

static int compare(const void *a, const void *b) {
        return strcmp(((const HeldItem *)a)->id, ((const HeldItem *)b)->id);
}

HeldItem *held_find(const Retained *s, const char *id) {
        HeldItem key = { 0 };
        if (strlen(id) >= sizeof key.id)
                return NULL;
        strcpy(key.id, id);
        HeldItem **found = tfind(&key, &s->held_by_id, compare);
        return found ? *found : NULL;
}

void held_add(Retained *s, const BundleRecord *rec) {
        if (held_find(s, rec->id))
                return;
        HeldItem *h = calloc(1, sizeof *h);
        if (h)
                strcpy(h->id, rec->id);
        if (!h || !tsearch(h, &s->held_by_id, compare)) {
                free(h);
                log_dump(rec->id, LOG_WARNING, -ENOMEM,
                         "its files at the source stay until the next start");
                return;
        }
        h->is_evicted = rec->state == BUNDLE_EVICTED;
        h->is_pinned = rec->pinned;
        h->first_seen_usec = rec->first_seen_usec;
        h->ended_usec = rec->changed_usec;
        list_append(&s->held, &h->link);
        s->n_held++;
}

void held_remove(Retained *s, HeldItem *h) {
        tdelete(h, &s->held_by_id, compare);
        list_remove(&h->link);
        s->n_held--;
        free(h);
}

void held_clear(Retained *s) {
        LIST_FOREACH_SAFE (l, &s->held)
                held_remove(s, CONTAINER_OF(l, HeldItem, link));
}

/* A source of that name that looks elsewhere is another one: it would delete nothing of the bundle's. */
static int on_stored(BundleRecord *rec, void *userdata) {
        Retained *s = userdata;
        if (path_is_below(rec->path, s->terms->fixed))
                held_add(s, rec);
        return 0;
}

int held_load(Retainer *r) {
        static const BundleState states[] = { BUNDLE_DELIVERED, BUNDLE_EVICTED };
        for (size_t i = 0; i < r->n_sources; i++)
                for (size_t k = 0; k < ELEMENTSOF(states); k++) {
                        StoreFilter filter = { .state = (int)states[k],
                                               .held_only = true,
                                               .source = r->sources[i].terms->name };
                        int error =
                                store_list(r->context.store, &filter, on_stored, &r->sources[i]);
                        if (error < 0)
                                return error;
                }
        return 0;
}

/* ---- not held ---- */

static char *unheld_counter(const Retained *s) {
        char *name = NULL;
        return asprintf(&name, "sources_unheld:%s", s->terms->name) < 0 ? NULL : name;
}

void unheld_count(const Retained *s) {
        _cleanup_free_ char *name = unheld_counter(s);
        if (name)
                (void)store_counter_add(s->retainer->context.store, name, 1); /* a figure */
}

uint64_t unheld_n(const Retained *s) {
        _cleanup_free_ char *name = unheld_counter(s);
        return name ? store_counter(s->retainer->context.store, name) : 0;
}
