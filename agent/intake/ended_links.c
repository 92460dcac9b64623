/* The links of bundles that have ended: those that are not needed are released, those of delivered
 * bundles are rechecked first.
 *
 * The destinations of a bundle may have read a file at different times. When its owner has removed
 * or replaced the file since, the links alone hold what one of them lacks: that is shipped as a
 * supplement, from links of its own. These are made before the links of the bundle are released,
 * and both before the supplement has a row; so whenever this is cut, the next start finds links of
 * which not all was shipped (link_sweep.c), and rechecks them.
 *
 * One recheck of a source runs at a time. Links whose row says links_held are retention's to
 * release, after on_links_rechecked(). */
#include "agent/intake/ended_links.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "agent/intake/new_bundle.h"
#include "agent/intake/probe.h"
#include "agent/intake/supplement.h"
#include "agent/retention/links.h"
#include "agent/store/store.h"
#include "lib/base/cleanup.h"
#include "lib/base/log.h"
#include "lib/base/path.h"

typedef struct LinksRelease {
        SourceTask task;
        IntakeSource *source; /* for done() */
        SourceSpec *spec;     /* a reference */
        char bundle_id[BUNDLE_ID_SIZE];
        int result;
} LinksRelease;

static LinksRelease *release_free(LinksRelease *l) {
        source_spec_unref(l->spec);
        free(l);
        return NULL;
}

/* In the thread that makes links: thousands take their time. */
static void release_run(WorkJob *job) {
        LinksRelease *l = CONTAINER_OF(job, LinksRelease, task.job);
        l->result = links_release(l->spec->link_dirs, l->bundle_id);
}

static void release_drop(SourceTask *t) {
        release_free(CONTAINER_OF(t, LinksRelease, task));
}

static void on_released(SourceTask *t) {
        LinksRelease *l = CONTAINER_OF(t, LinksRelease, task);
        l->source->links.n_releases--;
        if (l->result < 0 && l->result != -ENOENT)
                log_dump(l->bundle_id, LOG_WARNING, l->result,
                         "cannot remove hard links for '%s'; the next start tries again",
                         l->spec->fixed);
        release_free(l);
}

void ended_links_release(IntakeSource *s, const char *id) {
        LinksRelease *l = calloc(1, sizeof *l);
        if (!l)
                return;
        l->source = s;
        l->spec = source_spec_ref(s->spec);
        strcpy(l->bundle_id, id);
        l->task = (SourceTask){ .job.run = release_run, .done = on_released, .drop = release_drop };
        if (intake_source_submit(s, &l->task) < 0)
                release_free(l);
        else
                s->links.n_releases++;
}

/* ---- rechecks ---- */

bool ended_links_are_delivered(const IntakeSource *s, const BundleRecord *rec) {
        return (rec->state == BUNDLE_DELIVERED || rec->is_redelivery) &&
               strcmp(rec->source, s->config->name) == 0 &&
               path_is_below(rec->path, s->spec->fixed);
}

static void start_next(IntakeSource *s);

/* @return whether all is as it was when the recheck started, so that a supplement may start */
static bool may_supplement(IntakeSource *s, const ProbeJob *p, const BundleRecord *base) {
        char id[BUNDLE_ID_SIZE];
        Bundle *b = bundle_table_find_unit(s->context->bundles, s->config->name, base->path);
        if (b && strcmp(b->rec.id, p->supplement_id) == 0) { /* it may have read them too early */
                b->dirty = true;
                return false;
        }
        if (b) {
                s->sweep.is_wanted = true;
                return false;
        }
        if (new_bundle_supplement_id(id, base, base->n_supplements + 1) < 0)
                return false;
        if (strcmp(id, p->supplement_id) != 0) { /* that name was used up meanwhile */
                intake_recheck_links(s, p->supplement_id);
                return false;
        }
        return true;
}

static void report_rechecked(IntakeSource *s, const char *id) {
        if (s->context->on_links_rechecked)
                s->context->on_links_rechecked(s, id, s->context->userdata);
}

static void handle_recheck(IntakeSource *s, ProbeJob *p) {
        _cleanup_(bundle_record_done) BundleRecord base = { 0 };
        if (p->result != 0) {
                log_dump(p->bundle_id, LOG_WARNING, MIN(p->result, 0),
                         "cannot check whether its links hold what was not shipped%s%s; they stay, "
                         "and the next start checks again",
                         p->hold_error ? ": " : "", p->hold_error ? p->hold_error : "");
                return;
        }
        if (p->unit.n_files == 0) {
                report_rechecked(s, p->bundle_id);
                return;
        }
        if (store_get(s->context->store, p->base_id, &base) != 0 || !may_supplement(s, p, &base))
                return;
        if (!supplement_start(s, p, &base)) { /* the operator has refused it */
                ended_links_release(s, p->supplement_id);
                report_rechecked(s, p->bundle_id);
        }
}

static void on_rechecked(IntakeSource *s, ProbeJob *p) {
        s->links.rechecking[0] = '\0';
        handle_recheck(s, p);
        start_next(s);
}

/* @return 0 and a job; 1: there is nothing to be checked any more; -errno */
static int prepare(IntakeSource *s, const char *id, ProbeJob **ret) {
        _cleanup_(bundle_record_done) BundleRecord rec = { 0 }, base = { 0 };
        _cleanup_(probe_job_freep) ProbeJob *p = NULL;
        int r = store_get(s->context->store, id, &rec);
        bool is_known = r == 0, is_base = is_known && !rec.supplement_of[0];
        if (r < 0)
                return r;
        r = is_base ? store_get(s->context->store, id, &base) : supplement_base(s, id, &base);
        if (r < 0)
                return r;
        if (r > 0 || !ended_links_are_delivered(s, is_known ? &rec : &base))
                return 1;
        r = probe_job_new(&p, s->spec, source_spec_relative(s->spec, base.path));
        if (r < 0)
                return r;
        strcpy(p->bundle_id, id);
        strcpy(p->base_id, base.id);
        p->releases_links = !is_known || !rec.links_held;
        r = new_bundle_supplement_id(p->supplement_id, &base, base.n_supplements + 1);
        if (r >= 0)
                r = store_get_prints(s->context->store, base.id, &p->shipped, &p->n_shipped);
        if (r < 0)
                return r;
        *ret = TAKE_PTR(p);
        return 0;
}

static void start_next(IntakeSource *s) {
        while (!s->links.rechecking[0] && !path_queue_is_empty(&s->links.rechecks)) {
                _cleanup_free_ char *id = path_queue_pop(&s->links.rechecks);
                ProbeJob *p = NULL;
                int r = prepare(s, id, &p);
                if (r == 0 &&
                    source_submit_probe(s, s->probes, p, on_rechecked)) /* a failure is logged */
                        strcpy(s->links.rechecking, id);
                else if (r < 0)
                        log_dump(id, LOG_WARNING, r,
                                 "cannot check its links; they stay, and the next start checks");
        }
}

void intake_recheck_links(IntakeSource *s, const char *id) {
        if (path_queue_add(&s->links.rechecks, id, &(Owner){ 0 }) < 0)
                log_dump(id, LOG_WARNING, 0,
                         "too many links wait to be checked; they stay, and the next start checks");
        start_next(s);
}

bool intake_is_rechecking_links(const IntakeSource *s, const char *id) {
        return s->sweep.is_running || strcmp(s->links.rechecking, id) == 0 ||
               path_queue_has(&s->links.rechecks, id);
}
