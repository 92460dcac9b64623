/* The name that a bundle is delivered under. The scheduler asks for it before a bundle that is
 * READY goes out, and asks again while it has to wait:
 *
 *     supplement ----> the name of the bundle that it supplements, once that has one
 *     claim -----+---> the agreement has a decision: the failure's name
 *                |---> the agreement is pending: it waits, `settle` and 15 s at most (2 s in a
 * drain), |     longer only for an arbiter that nobody can replace
 *                `---> neither: its own name, alone
 *     the agent's own -> the name and place of its subject, else that of its processes' failure
 *
 * What is older than the state database may have been delivered before; then it gets the name that
 * its pointer has (failure_pointers.c). A name is frozen in the bundle's record. */
#include "agent/failures/failures_private.h"

#include <string.h>

#include "agent/evidence/evidence.h"
#include "agent/store/store.h"
#include "lib/base/cleanup.h"
#include "lib/base/log.h"

/* For a bundle that is READY and has no name: it waits so long beyond `settle`, or so long in all
 * when hurry is set. */
#define NAME_WAIT_USEC (INT64_C(15) * 1000000)
#define NAME_WAIT_HURRY_USEC (INT64_C(2) * 1000000)

/* @param d  NULL: no failure is known, so it is delivered under its own name */
static void set_name(Failures *f, BundleRecord *rec, const Decision *d) {
        FailureName *name = &rec->name;
        Agreed agreed = d ? d->agreed : AGREED_ALONE;
        *name = (FailureName){ 0 };
        (void)strcpy(name->agreed, agreed_name(agreed)); /* 5 bytes at most */
        f->n_named[agreed]++;
        if (!d)
                return;
        (void)strcpy(name->cluster_id, d->cluster_id);
        (void)strcpy(name->date_time, d->date_time);
        (void)strcpy(name->key, d->key);
        name->derived = d->derived;
        name->n = d->n;
        log_dump(rec->id, LOG_INFO, 0, "belongs to failure %s/%u: %s-%s, agreed: %s", name->key,
                 name->n, name->date_time, name->cluster_id, name->agreed);
}

/* Gives a supplement the name of the bundle that it supplements. @return false: that has none yet
 */
static bool name_supplement(Failures *f, Bundle *b, uint64_t *ret_wait_usec) {
        BundleRecord *rec = &b->rec;
        FailureUnit *u = bundle_has_begun(b) ? NULL : failures_unit_of(f, b);
        if (u)
                failures_on_unit_ready(f, u, b);
        _cleanup_(bundle_record_done) BundleRecord base = { 0 };
        Bundle *open = bundle_table_find(f->context.bundles, rec->supplement_of);
        if (open && open->rec.state == BUNDLE_READY && open->rec.supplement_of[0] == '\0' &&
            !failures_name_bundle(f, open, ret_wait_usec))
                return false;
        if (open && open->rec.name.agreed[0]) /* its row may not have it yet */
                rec->name = open->rec.name;
        else if (store_get(f->context.store, rec->supplement_of, &base) == 0 && base.name.agreed[0])
                rec->name = base.name;
        else
                (void)strcpy(rec->name.agreed, agreed_name(AGREED_ALONE));
        return true;
}

/* ---- what the agent itself has made ---- */

/* @return whether a bundle of the agent's own still waits for its name, which it would get later */
static bool may_wait(const Failures *f, const BundleRecord *rec) {
        const Clock *clock = f->context.clock;
        uint64_t now = clock->realtime_usec(f->context.clock), since = rec->changed_usec;
        int64_t most = f->hurry ? NAME_WAIT_HURRY_USEC
                                : (int64_t)f->config->agreement.settle_usec + NAME_WAIT_USEC;
        return now >= since && now - since < (uint64_t)most;
}

/* @return whether the subject has no name yet, and may get one soon */
static bool awaits_subject(Failures *f, const Bundle *b, Bundle *subject, uint64_t *ret_wait_usec) {
        if (subject->rec.kind == SOURCE_PROCESS_CORE || subject->rec.name.agreed[0])
                return false;
        *ret_wait_usec = USEC_PER_SEC;
        if (subject->rec.state == BUNDLE_READY) /* it waits no longer than it may itself */
                return !failures_name_bundle(f, subject, ret_wait_usec);
        return subject->rec.state == BUNDLE_SETTLING && may_wait(f, &b->rec);
}

/* @return the decision about a dump that has no name yet; NULL */
static const Decision *decision_of_dump(Failures *f, Bundle *dump) {
        const FailureUnit *u =
                dump && source_kind_has_incident(dump->rec.kind) ? failures_unit_of(f, dump) : NULL;
        const FailureProcess *p = u ? u->first : NULL;
        return p ? agreement_find(f->agreement, p->key->key, &p->claim) : NULL;
}

/* @return the decision about one of the processes that a bundle is about; NULL
 * @param ret_is_pending  there may be one soon */
static const Decision *decision_of_processes(const Failures *f, const BundleRecord *rec,
                                             bool *ret_is_pending) {
        _cleanup_(about_done) About about = { 0 };
        const Decision *found = NULL;
        *ret_is_pending = false;
        if (!rec->about || about_parse(rec->about, strlen(rec->about), &about) < 0)
                return NULL;
        for (size_t i = 0; !found && i < about.n_processes; i++) {
                Claim c;
                failures_init_claim(f, &c);
                c.pid = (uint32_t)about.processes[i].pid;
                c.start_ticks = about.processes[i].start_ticks;
                const FailureProcess *p = failure_table_find_process(&f->table, &c);
                /* Of root's, `about` has only the processes that may name it. */
                if (!p || (rec->uid != 0 && p->entry.uid != rec->uid))
                        continue;
                found = agreement_find(f->agreement, p->key->key, &p->claim);
                *ret_is_pending = *ret_is_pending ||
                                  agreement_is_pending(f->agreement, p->key->key, &p->claim);
        }
        return found;
}

/* Gives a bundle of the agent's own the name and the place of its subject, or the name of a failure
 * of the processes that it is about. Nothing waits for it, so it waits for them.
 * @return false: it waits */
static bool name_own(Failures *f, Bundle *b, uint64_t *ret_wait_usec) {
        BundleRecord *rec = &b->rec;
        _cleanup_(bundle_record_done) BundleRecord stored = { 0 };
        const Decision *d = NULL;
        bool is_pending = false;
        Bundle *open = rec->subject[0] ? bundle_table_find(f->context.bundles, rec->subject) : NULL;
        const BundleRecord *subject = open ? &open->rec : &stored;
        if (bundle_has_begun(b)) {
                (void)strcpy(rec->name.agreed, agreed_name(AGREED_ALONE));
                return true;
        }
        if (open && awaits_subject(f, b, open, ret_wait_usec))
                return false;
        if (!open && (!rec->subject[0] || store_get(f->context.store, rec->subject, &stored) != 0))
                subject = NULL;
        if (subject && evidence_copy_place(rec, subject) < 0) {
                *ret_wait_usec = USEC_PER_SEC;
                return false;
        }
        if (subject && subject->name.agreed[0]) {
                rec->name = subject->name;
                return true;
        }
        d = subject ? decision_of_dump(f, open) : decision_of_processes(f, rec, &is_pending);
        if (!d && is_pending && may_wait(f, rec)) {
                *ret_wait_usec = USEC_PER_SEC;
                return false;
        }
        if (d)
                set_name(f, rec, d);
        else
                (void)strcpy(rec->name.agreed, agreed_name(AGREED_ALONE));
        return true;
}

/* ---- dumps ---- */

/* @return whether all destinations of a bundle are its arbiter, and the arbiter is unreachable or
 * is being asked just now. Not if the arbiter would take the bundle and only does not answer this.
 */
static bool only_arbiter_is_left(const Failures *f, const FailureKey *k, const BundleRecord *rec) {
        const ArbiterState *a = k->arbiter ? arbiter_state(k->arbiter) : NULL;
        bool is_asked = agreement_is_asking(f->agreement, k->key, failures_now_usec(f));
        if (!a || (!a->is_unreachable && !a->is_busy && !is_asked) ||
            objects_are_refused(f->scheduler, a->destination))
                return false;
        for (size_t i = 0; i < rec->n_deliveries; i++)
                if (strcmp(rec->deliveries[i].destination, a->destination) != 0)
                        return false;
        return true;
}

/* @return until when a unit waits at most */
static int64_t wait_limit(const Failures *f, const FailureUnit *u) {
        return u->ready_usec +
               (f->hurry ? NAME_WAIT_HURRY_USEC
                         : (int64_t)f->config->agreement.settle_usec + NAME_WAIT_USEC);
}

/* @return until when a unit waits for its name, CLOCK_BOOTTIME; 0: no longer */
static int64_t waits_until(const Failures *f, const FailureUnit *u, const BundleRecord *rec) {
        const FailureProcess *p = u->first;
        int64_t now = failures_now_usec(f), limit = wait_limit(f, u);
        if (!agreement_is_pending(f->agreement, p->key->key, &p->claim))
                return 0;
        if (now < limit)
                return limit;
        return !f->hurry && only_arbiter_is_left(f, p->key, rec) ? now + (int64_t)USEC_PER_SEC : 0;
}

static void on_pointer(const ObjectResult *r, void *userdata) {
        FailureUnit *u = userdata;
        Failures *f = u->failures;
        u->search = NULL;
        if (r->outcome == OBJECT_UNREACHABLE && failures_now_usec(f) < wait_limit(f, u))
                return;                       /* the scheduler asks again */
        u->found = failure_pointers_parse(r); /* most often there is none */
        u->is_searched = true;
        f->context.on_named(f->context.userdata);
}

/* Looks for a pointer of what is older than the state database. @return whether the answer is still
 * awaited */
static bool may_be_elsewhere(Failures *f, FailureUnit *u, const BundleRecord *rec) {
        const ConfigSource *c = config_find_source(f->config, rec->source);
        if (u->search)
                return true;
        if (u->is_searched || rec->oldest_mtime_usec >= f->created_usec || !c ||
            c->destinations.n == 0 || !f->scheduler)
                return false;
        const char *destination = c->destinations.items[0];
        _cleanup_free_ char *name = failure_pointers_object_name(f->scheduler, destination, rec);
        return name && object_call_new(&u->search, f->scheduler,
                                       &(ObjectRequest){ .operation = OBJECT_GET,
                                                         .destination = destination,
                                                         .name = name,
                                                         .on_done = on_pointer,
                                                         .userdata = u }) >= 0;
}

static bool name_bundle(Failures *f, Bundle *b, uint64_t *ret_wait_usec) {
        BundleRecord *rec = &b->rec;
        if (source_kind_is_own(rec->kind))
                return name_own(f, b, ret_wait_usec);
        if (!source_kind_has_incident(rec->kind))
                return true;
        if (rec->supplement_of[0])
                return name_supplement(f, b, ret_wait_usec);
        FailureUnit *u = bundle_has_begun(b) ? NULL : failures_unit_of(f, b);
        if (!u) { /* its delivery began without a name */
                set_name(f, rec, NULL);
                return true;
        }
        failures_on_unit_ready(f, u, b);
        const FailureProcess *p = u->first; /* NULL: there is no claim to agree on */
        const Decision *d = p ? agreement_find(f->agreement, p->key->key, &p->claim) : NULL;
        int64_t until = p && !d ? waits_until(f, u, rec) : 0;
        *ret_wait_usec = until ? MAX((uint64_t)(until - failures_now_usec(f)), UINT64_C(1000))
                               : USEC_PER_SEC;
        if (until != 0 || may_be_elsewhere(f, u, rec))
                return false;
        if (u->found.agreed[0]) {
                rec->name = u->found;
                log_dump(rec->id, LOG_NOTICE, 0, "was delivered before as %s-%s",
                         bundle_record_date_time(rec), bundle_record_cluster_id(rec));
        } else
                set_name(f, rec, d);
        return true;
}

bool failures_name_bundle(Failures *f, Bundle *b, uint64_t *ret_wait_usec) {
        if (b->rec.name.agreed[0])
                return true;
        bool is_named = name_bundle(f, b, ret_wait_usec);
        if (is_named)
                failures_number_bundle(f, &b->rec);
        return is_named;
}

char *failures_explain(const Failures *f, const BundleRecord *rec) {
        const FailureName *n = &rec->name;
        char wait[64];
        if (n->agreed[0] && n->key[0])
                return strbuf_format("It belongs to failure %s/%u, %s-%s (agreed: %s).", n->key,
                                     n->n, bundle_record_date_time(rec),
                                     bundle_record_cluster_id(rec), n->agreed);
        const FailureUnit *u = rec->state == BUNDLE_READY && !n->agreed[0]
                                       ? failure_table_find_unit(&f->table, rec->source, rec->path)
                                       : NULL;
        bool is_waiting = u && u->ready_usec && u->first;
        int64_t until = is_waiting ? waits_until(f, u, rec) : 0, now = failures_now_usec(f);
        if (until <= now)
                return NULL;
        const FailureKey *k = u->first->key;
        const char *error = k->arbiter ? arbiter_state(k->arbiter)->error : NULL;
        return strbuf_format("It waits, %s more at most, until the nodes of failure %s have agreed "
                             "on a name%s%s.",
                             clock_format_duration(wait, (uint64_t)(until - now)), k->key,
                             error ? "; the last error: " : "", error ? error : "");
}

uint64_t failures_n_named(const Failures *f, Agreed agreed) {
        return f->n_named[agreed];
}
