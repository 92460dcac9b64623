/* What is shown of the bundles: the store's rows, and what is known here and not yet in them. */
#include <string.h>

#include "agent/store/bundle_private.h"
#include "lib/base/log.h"

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
