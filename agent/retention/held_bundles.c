/* Keeps which bundles of a source have ended while links of ours hold their files, with the state
 * of their release:
 *
 *   WAITING ──► DELETING      its turn has come
 *   DELETING ──► removed      no link of ours is left
 *   DELETING ──► WAITING      something is open for writing, or an error: later again
 *   DELETING ──► UNSHIPPED    links hold content that was not shipped, which intake rechecks
 *   UNSHIPPED ──► RECHECKED   nothing of that content is needed
 *   RECHECKED ──► DELETING    discards that content
 *   UNSHIPPED ──► DELETING    no answer came for a minute: keeps that content
 *
 * The rows of the store are the truth; this is a copy of what retention_runner.c needs of them,
 * which decides what moves when. */
#include "agent/retention/held_bundles.h"

#include <errno.h>
#include <search.h>
#include <stdlib.h>
#include <string.h>

#include "lib/base/log.h"
#include "lib/base/path.h"
#include "lib/base/transition.h"

void held_bundles_set_state(HeldBundle *h, HeldState state) {
        static const char *const names[] = { "waiting", "deleting", "unshipped", "rechecked" };
        static const unsigned moves[] = {
                [HELD_WAITING] = 1U << HELD_DELETING,
                [HELD_DELETING] = 1U << HELD_WAITING | 1U << HELD_UNSHIPPED,
                [HELD_UNSHIPPED] = 1U << HELD_RECHECKED | 1U << HELD_DELETING,
                [HELD_RECHECKED] = 1U << HELD_DELETING,
        };
        static const StateTable table = { "held source files", names, moves, N_HELD_STATES };
        if (transition_check(&table, h->state, state, h->id) == 0)
                h->state = state;
}

static int compare_held(const void *a, const void *b) {
        return strcmp(((const HeldBundle *)a)->id, ((const HeldBundle *)b)->id);
}

HeldBundle *held_bundles_find(const HeldBundles *b, const char *id) {
        HeldBundle key = { 0 };
        if (strlen(id) >= sizeof key.id)
                return NULL;
        strcpy(key.id, id);
        HeldBundle **found = tfind(&key, &b->by_id, compare_held);
        return found ? *found : NULL;
}

void held_bundles_add(HeldBundles *b, const BundleRecord *rec) {
        if (held_bundles_find(b, rec->id))
                return;
        HeldBundle *h = calloc(1, sizeof *h);
        if (h)
                strcpy(h->id, rec->id);
        if (!h || !tsearch(h, &b->by_id, compare_held)) {
                free(h);
                log_dump(rec->id, LOG_WARNING, -ENOMEM,
                         "its files at the source stay until the next start");
                return;
        }
        h->is_evicted = rec->state == BUNDLE_EVICTED;
        h->is_pinned = rec->pinned;
        h->uid = rec->uid;
        h->first_seen_usec = rec->first_seen_usec;
        h->ended_usec = rec->changed_usec;
        list_append(&b->list, &h->link);
        b->n++;
}

void held_bundles_remove(HeldBundles *b, HeldBundle *h) {
        tdelete(h, &b->by_id, compare_held);
        list_remove(&h->link);
        b->n--;
        free(h);
}

void held_bundles_init(HeldBundles *b) {
        *b = (HeldBundles){ 0 };
        list_init(&b->list);
}

void held_bundles_done(HeldBundles *b) {
        LIST_FOREACH_SAFE (l, &b->list)
                held_bundles_remove(b, CONTAINER_OF(l, HeldBundle, link));
}

typedef struct HeldQuery {
        HeldBundles *bundles;
        const SourceSpec *spec;
} HeldQuery;

/* A source of that name at another path is another source: it would delete nothing of the bundle.
 */
static int on_stored(BundleRecord *rec, void *userdata) {
        const HeldQuery *q = userdata;
        if (path_is_below(rec->path, q->spec->fixed))
                held_bundles_add(q->bundles, rec);
        return 0;
}

int held_bundles_load(HeldBundles *b, Store *store, const SourceSpec *spec) {
        static const BundleState states[] = { BUNDLE_DELIVERED, BUNDLE_EVICTED };
        HeldQuery query = { b, spec };
        int r = 0;
        for (size_t i = 0; r >= 0 && i < ELEMENTSOF(states); i++)
                r = store_list(store,
                               &(StoreFilter){ .state = (int)states[i],
                                               .held_only = true,
                                               .source = spec->name },
                               on_stored, &query);
        return r;
}
