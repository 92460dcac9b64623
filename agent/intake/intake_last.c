/* The last look at the links of a delivered bundle. Its destinations may have read a file at different times, and when its owner has
 * removed or replaced it since, the links alone hold what one of them lacks: that goes out as a supplement, from links of its own. These are made
 * before the bundle's are let go, and both before the supplement has a row; so whenever it is cut, the next start finds links of which not
 * all was shipped, and looks again. */
#include <errno.h>
#include <string.h>

#include "agent/intake/intake_private.h"
#include "lib/base/log.h"
#include "lib/base/path.h"
#include "lib/neuron/ids.h"

static void look_next(IntakeSource *s);

/* @return 0 and the base's record; STORE_E_NOT_FOUND; -errno */
static int get_base(const IntakeSource *s, const char *id, BundleRecord *ret) {
        char base_id[BUNDLE_ID_SIZE];
        const char *suffix = strrchr(id, '-');
        if (!bundle_id_is_valid(id) || suffix[1] != 's')
                return STORE_E_NOT_FOUND;
        (void)snprintf(base_id, sizeof base_id, "%.*s", (int)(suffix - id), id);
        return store_get(s->context->store, base_id, ret);
}

bool intake_is_of_links(const BundleRecord *rec) {
        return rec->supplement_of[0] && rec->unit_ino == 0;
}

static bool is_ours(const IntakeSource *s, const BundleRecord *rec) {
        return rec->state == BUNDLE_DELIVERED && strcmp(rec->source, s->config->name) == 0 &&
               path_is_below(rec->path, s->terms->fixed);
}

bool intake_wants_last_look(const IntakeSource *s, const BundleRecord *rec, const char *id) {
        _cleanup_(bundle_record_done) BundleRecord base = { 0 };
        if (rec)
                return is_ours(s, rec);
        return !bundle_table_find(s->context->bundles, id) && get_base(s, id, &base) == 0 &&
               is_ours(s, &base);
}

/* @return whether all there is is as it was thought to be when the look began, so that a supplement may begin */
static bool may_begin(IntakeSource *s, const ProbeJob *p, const BundleRecord *base) {
        char id[BUNDLE_ID_SIZE];
        Bundle *b = bundle_table_find_unit(s->context->bundles, s->config->name, base->path);
        if (b && strcmp(b->rec.id, p->heir) == 0) { /* it has them; they may have come too late */
                b->dirty = true;
                return false;
        }
        if (b) {
                s->sweep_wanted = true;
                return false;
        }
        if (intake_supplement_id(id, base, base->n_supplements + 1) < 0)
                return false;
        if (strcmp(id, p->heir) != 0) { /* that name was used up meanwhile */
                intake_look_last(s, p->heir);
                return false;
        }
        return true;
}

static void tell_looked(IntakeSource *s, const char *id) {
        if (s->context->on_links_rechecked)
                s->context->on_links_rechecked(s, id, s->context->userdata);
}

static void take_look(IntakeSource *s, ProbeJob *p) {
        _cleanup_(bundle_record_done) BundleRecord base = { 0 };
        if (p->result != 0) {
                log_dump(p->bundle_id, LOG_WARNING, MIN(p->result, 0),
                         "cannot see whether its links hold what was not shipped%s%s; they stay, "
                         "and the next start looks again",
                         p->hold_error ? ": " : "", p->hold_error ? p->hold_error : "");
                return;
        }
        if (p->unit.n_files == 0) {
                tell_looked(s, p->bundle_id);
                return;
        }
        if (store_get(s->context->store, p->base_id, &base) != 0 || !may_begin(s, p, &base))
                return;
        if (!intake_begin_supplement(s, p, &base)) { /* the operator has said no to it */
                intake_release_pins(s, p->heir);
                tell_looked(s, p->bundle_id);
        }
}

static void on_looked(WorkJob *job) {
        _cleanup_(probe_job_freep) ProbeJob *p = CONTAINER_OF(job, ProbeJob, job);
        IntakeSource *s = p->owner;
        s->n_probes--;
        s->is_looking_last = false;
        take_look(s, p);
        look_next(s);
}

/* @return 0 and what is to be looked for; 1: nothing any more; -errno */
static int make_look(IntakeSource *s, const char *id, ProbeJob **ret) {
        _cleanup_(bundle_record_done) BundleRecord rec = { 0 }, base = { 0 };
        _cleanup_(probe_job_freep) ProbeJob *p = NULL;
        int r = store_get(s->context->store, id, &rec);
        bool is_known = r == 0, is_base = is_known && !rec.supplement_of[0];
        if (r < 0)
                return r;
        r = is_base ? store_get(s->context->store, id, &base) : get_base(s, id, &base);
        if (r < 0)
                return r;
        if (r > 0 || !is_ours(s, is_known ? &rec : &base))
                return 1;
        r = probe_job_new(&p, s->terms, intake_relative(s, base.path));
        if (r < 0)
                return r;
        strcpy(p->bundle_id, id);
        strcpy(p->base_id, base.id);
        p->lets_go = !is_known || !rec.links_held;
        r = intake_supplement_id(p->heir, &base, base.n_supplements + 1);
        if (r >= 0)
                r = store_get_prints(s->context->store, base.id, &p->shipped, &p->n_shipped);
        if (r < 0)
                return r;
        *ret = TAKE_PTR(p);
        return 0;
}

static void look_next(IntakeSource *s) {
        while (!s->is_looking_last && !pending_is_empty(&s->last_looks)) {
                _cleanup_free_ char *id = pending_take(&s->last_looks);
                ProbeJob *p = NULL;
                int r = make_look(s, id, &p);
                if (r == 0) {
                        s->is_looking_last = intake_probe_submit(s, p, on_looked); /* said there */
                        strcpy(s->looking_last_at, id);
                } else if (r < 0)
                        log_dump(id, LOG_WARNING, r,
                                 "cannot look at its links; they stay, and the next start looks");
        }
}

void intake_look_last(IntakeSource *s, const char *id) {
        if (pending_add(&s->last_looks, id) < 0)
                log_dump(
                        id, LOG_WARNING, 0,
                        "too many links wait to be looked at; they stay, and the next start looks");
        look_next(s);
}

bool intake_is_to_look_last(const IntakeSource *s, const char *id) {
        return s->is_listing || (s->is_looking_last && strcmp(s->looking_last_at, id) == 0) ||
               pending_has(&s->last_looks, id);
}

void intake_look_last_again(IntakeSource *s) {
        if (!s->sweep_wanted || s->is_listing)
                return;
        s->sweep_wanted = false;
        intake_sweep_pins(s);
}
