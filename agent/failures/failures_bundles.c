/* Which bundles of this node belong to a failure: their rows say it, by the failure's key and
 * number, and the node's record lists them by that.
 *
 * A bundle that is named after the decision has key and number from then on. The rows of two others
 * get them here, when the claims are placed: of those that were named before the failure had a
 * number (of a job that is on this node alone, the arbiter gives it later), and of those that have
 * no key because they went alone, or ended before they were named. The latter are known by the
 * claims of their processes: these have the dump's id, and what supplements the dump or is about it
 * has that id, too. The name that a bundle was delivered under never changes. */
#include "agent/failures/failures_private.h"

#include <errno.h>
#include <string.h>

#include "agent/store/store.h"
#include "lib/base/cleanup.h"
#include "lib/base/log.h"
#include "lib/base/path.h"

/* ---- the number in the rows ---- */

typedef struct Numbering {
        Failures *failures;
        const Decision *failure;
        const char *bundle; /* of a claim; "" = none */
} Numbering;

/* @param bundle  of a claim; "" = none */
static bool is_of_bundle(const BundleRecord *rec, const char *bundle) {
        return *bundle &&
               (strcmp(rec->id, bundle) == 0 || strcmp(rec->supplement_of, bundle) == 0 ||
                strcmp(rec->subject, bundle) == 0);
}

static bool is_to_be_numbered(const BundleRecord *rec, const Numbering *x) {
        const FailureName *name = &rec->name;
        if (name->n > 0)
                return false;
        if (!name->key[0])
                return is_of_bundle(rec, x->bundle);
        return strcmp(name->key, x->failure->key) == 0 &&
               strcmp(name->cluster_id, x->failure->cluster_id) == 0 &&
               strcmp(name->date_time, x->failure->date_time) == 0;
}

static void set_number(FailureName *name, const Decision *failure) {
        (void)strcpy(name->key, failure->key);
        name->n = failure->n;
}

static int number_row(BundleRecord *rec, void *userdata) {
        const Numbering *x = userdata;
        const Failures *f = x->failures;
        if (!is_to_be_numbered(rec, x))
                return 0;
        set_number(&rec->name, x->failure);
        int r = store_set_failure_number(f->context.store, rec->id, rec->name.key, rec->name.n);
        return MIN(r, 0); /* STORE_E_NOT_FOUND: the row is not written yet, and will have it */
}

static int number_ended_row(BundleRecord *rec, void *userdata) {
        const Numbering *x = userdata;
        return bundle_table_find(x->failures->context.bundles, rec->id) ? 0
                                                                        : number_row(rec, userdata);
}

void failures_number_bundles(Failures *f, const FailureProcess *p) {
        const Decision *d = agreement_find(f->agreement, p->key->key, &p->claim);
        if (!d || d->n == 0)
                return;
        Numbering x = { .failures = f, .failure = d, .bundle = p->claim.bundle };
        _cleanup_(bundle_record_done) BundleRecord rec = { 0 };
        int r = 0;
        LIST_FOREACH (l, bundle_table_all(f->context.bundles))
                r = MIN(number_row(&CONTAINER_OF(l, Bundle, link)->rec, &x), r);
        const StoreFilter filters[] = { { .state = -1, .failure_key = d->key },
                                        { .state = -1, .base = x.bundle },
                                        { .state = -1, .subject = x.bundle } };
        for (size_t i = 0; r >= 0 && i < (*x.bundle ? ELEMENTSOF(filters) : 1); i++)
                r = store_list(f->context.store, &filters[i], number_ended_row, &x);
        if (r >= 0 && *x.bundle && store_get(f->context.store, x.bundle, &rec) == 0)
                r = number_ended_row(&rec, &x);
        if (r < 0)
                log_warning(r, "failure %s/%u: bundles of it are not known by its number", d->key,
                            d->n);
}

void failures_number_bundle(const Failures *f, BundleRecord *rec) {
        if (rec->name.key[0] || !rec->name.agreed[0])
                return;
        FAILURE_TABLE_FOREACH_PROCESS(p, &f->table) {
                const Decision *d = is_of_bundle(rec, p->claim.bundle)
                                            ? agreement_find(f->agreement, p->key->key, &p->claim)
                                            : NULL;
                if (d && d->n > 0) {
                        set_number(&rec->name, d);
                        return;
                }
        }
}

/* ---- the node's record ---- */

static int add_bundle(BundleRecord *rec, void *userdata) {
        NodeBundles *to = userdata;
        const char *raw = NULL;
        for (size_t i = 0; !raw && i < rec->n_deliveries; i++)
                raw = rec->deliveries[i].state == DELIVERY_DONE ? rec->deliveries[i].object : NULL;
        _cleanup_free_ char *object = raw ? path_escape(raw) : NULL;
        return raw && !object ? -ENOMEM : node_bundles_add(to, rec->id, rec->state, object);
}

int failures_add_bundles(const Decision *failure, NodeBundles *ret, void *userdata) {
        const Failures *f = userdata;
        StoreFilter filter = { .state = -1, .failure_key = failure->key, .failure_n = failure->n };
        int r = store_list(f->context.store, &filter, add_bundle, ret);
        if (r < 0)
                log_warning(r,
                            "failure %s/%u: this node's record is written later: its bundles "
                            "cannot be read from the state database",
                            failure->key, failure->n);
        return MIN(r, 0);
}

void failures_record_bundle(Failures *f, const BundleRecord *rec) {
        if (rec->name.n == 0)
                return;
        agreement_on_bundle(f->agreement, rec->name.key, rec->name.n, failures_now_usec(f));
        f->wake(f);
}
