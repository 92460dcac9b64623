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
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "agent/intake/new_bundle.h"
#include "agent/intake/probe.h"
#include "agent/intake/supplement.h"
#include "agent/intake/unit_walk.h"
#include "agent/retention/link_rule.h"
#include "agent/retention/link_session.h"
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

/* Runs in the thread that makes links: to remove thousands of them takes long. */
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

enum { LINK_RECHECK_E_NOT_HELD = 1 };

/* What the links of a bundle hold and was not shipped is linked for the supplement as well. */
typedef struct LinkRecheck {
        IntakeProbe
                probe; /* result: 0; LINK_RECHECK_E_NOT_HELD: hold_error has the reason; -errno */
        UnitWalk walk; /* of the links */
        char bundle_id[BUNDLE_ID_SIZE];
        char base_id[BUNDLE_ID_SIZE]; /* the bundle that they belong to: bundle_id, or what it is a
                                         supplement of */
        char supplement_id[BUNDLE_ID_SIZE];
        bool releases_links; /* those of bundle_id, when all is checked */
} LinkRecheck;

static LinkRecheck *recheck_of(IntakeProbe *p) {
        return CONTAINER_OF(p, LinkRecheck, probe);
}

/* A core file that has changed is a bundle of its own. */
static bool is_core_at_source(const IntakeProbe *p) {
        struct stat st;
        if (p->spec->scan.kind != SOURCE_PROCESS_CORE)
                return false;
        _cleanup_free_ char *path = path_join(p->spec->fixed, p->relative);
        return path && fstatat(AT_FDCWD, path, &st, AT_SYMLINK_NOFOLLOW) == 0;
}

static int recheck_run(IntakeProbe *probe) {
        LinkRecheck *l = recheck_of(probe);
        UnitWalk *w = &l->walk;
        w->unit = (ScanUnit){ .pid = -1 };
        int r = link_session_new(&w->session, probe->spec->link_dirs, l->supplement_id,
                                 (size_t)probe->spec->scan.max_files);
        if (r < 0)
                return r;
        w->hold = UNIT_WALK_LINKS;
        if (!is_core_at_source(probe))
                r = unit_walk_links(w, l->bundle_id);
        w->session = link_session_free(w->session);
        held_files_done(&w->held); /* where links are refused, the old links hold the files */
        if (r < 0 && r != -ENOENT)
                return r;
        if (w->hold == UNIT_WALK_DESCRIPTORS)
                return LINK_RECHECK_E_NOT_HELD;
        bool are_supplements = w->unit.n_files > 0 && strcmp(l->bundle_id, l->supplement_id) == 0;
        return l->releases_links && !are_supplements
                       ? links_release(probe->spec->link_dirs, l->bundle_id)
                       : 0;
}

static LinkRecheck *recheck_free(LinkRecheck *l) {
        if (!l)
                return NULL;
        unit_walk_done(&l->walk);
        probe_done(&l->probe);
        free(l);
        return NULL;
}

DEFINE_CLEANUP(LinkRecheck, recheck_free);

static void recheck_free_probe(IntakeProbe *p) {
        recheck_free(recheck_of(p));
}

static int recheck_new(LinkRecheck **ret, IntakeSource *s, const char *relative) {
        static const ProbeKind kind = { recheck_run, recheck_free_probe };
        LinkRecheck *l = calloc(1, sizeof *l);
        if (!l)
                return -ENOMEM;
        int r = probe_init(&l->probe, &kind, s->spec, relative);
        if (r < 0) {
                free(l);
                return r;
        }
        l->walk.spec = l->probe.spec;
        l->walk.relative = l->probe.relative;
        *ret = l;
        return 0;
}

bool ended_links_are_of_source(const IntakeSource *s, const BundleRecord *rec) {
        return rec->source && strcmp(rec->source, s->config->name) == 0 &&
               path_is_below(rec->path, s->spec->fixed);
}

static void start_next(IntakeSource *s);

/* @return whether all is as it was when the recheck started, so that a supplement may start */
static bool may_supplement(IntakeSource *s, const LinkRecheck *l, const BundleRecord *base) {
        char id[BUNDLE_ID_SIZE];
        Bundle *b = bundle_table_find_unit(s->context->bundles, s->config->name, base->path);
        if (b &&
            strcmp(b->rec.id, l->supplement_id) ==
                    0) { /* it may have read the links before they were made: it probes again */
                b->unit.dirty = true;
                return false;
        }
        if (b) {
                s->sweep.is_wanted = true;
                return false;
        }
        if (new_bundle_supplement_id(id, base, base->n_supplements + 1) < 0)
                return false;
        if (strcmp(id, l->supplement_id) != 0) { /* that name was used up meanwhile */
                intake_recheck_links(s, l->supplement_id);
                return false;
        }
        return true;
}

static void report_rechecked(IntakeSource *s, const char *id) {
        if (s->context->on_links_rechecked)
                s->context->on_links_rechecked(s, id, s->context->userdata);
}

static void handle_recheck(IntakeSource *s, LinkRecheck *l) {
        _cleanup_(bundle_record_done) BundleRecord base = { 0 };
        if (l->probe.result != 0) {
                const char *why = l->walk.hold_error;
                log_dump(l->bundle_id, LOG_WARNING, MIN(l->probe.result, 0),
                         "cannot check whether its links hold what was not shipped%s%s; they stay, "
                         "and the next start checks again",
                         why ? ": " : "", why ? why : "");
                return;
        }
        if (l->walk.unit.n_files == 0) {
                report_rechecked(s, l->bundle_id);
                return;
        }
        if (store_get(s->context->store, l->base_id, &base) != 0 || !may_supplement(s, l, &base))
                return;
        if (!supplement_start(s, &l->walk.unit, ORIGIN_LINKS,
                              &base)) { /* the operator has refused it */
                ended_links_release(s, l->supplement_id);
                report_rechecked(s, l->bundle_id);
        }
}

static void on_rechecked(IntakeSource *s, IntakeProbe *p) {
        s->links.rechecking[0] = '\0';
        handle_recheck(s, recheck_of(p));
        start_next(s);
}

/* @return 0 and a probe; 1: there is nothing to be checked any more; -errno */
static int prepare(IntakeSource *s, const char *id, LinkRecheck **ret) {
        _cleanup_(bundle_record_done) BundleRecord rec = { 0 }, base = { 0 };
        _cleanup_(recheck_freep) LinkRecheck *l = NULL;
        int r = store_get(s->context->store, id, &rec);
        bool is_known = r == 0, is_base = is_known && !rec.supplement_of[0];
        if (r < 0)
                return r;
        r = is_base ? store_get(s->context->store, id, &base) : supplement_base(s, id, &base);
        if (r < 0)
                return r;
        const LinkFacts facts = { .rec = is_known ? &rec : NULL,
                                  .base = &base,
                                  .is_of_source = ended_links_are_of_source(s, &base) };
        if (r > 0 || link_rule(&facts) != LINKS_RECHECK)
                return 1;
        r = recheck_new(&l, s, source_spec_relative(s->spec, base.path));
        if (r < 0)
                return r;
        strcpy(l->bundle_id, id);
        strcpy(l->base_id, base.id);
        l->releases_links = !is_known || !rec.links_held;
        r = new_bundle_supplement_id(l->supplement_id, &base, base.n_supplements + 1);
        if (r >= 0)
                r = store_get_prints(s->context->store, base.id, &l->walk.shipped,
                                     &l->walk.n_shipped);
        if (r < 0)
                return r;
        *ret = TAKE_PTR(l);
        return 0;
}

static void start_next(IntakeSource *s) {
        while (!s->links.rechecking[0] && !path_queue_is_empty(&s->links.rechecks)) {
                _cleanup_free_ char *id = path_queue_pop(&s->links.rechecks);
                LinkRecheck *l = NULL;
                int r = prepare(s, id, &l);
                if (r == 0 &&
                    probe_submit(s, s->probes, &l->probe, on_rechecked)) /* a failure is logged */
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

void ended_links_on_final(IntakeSource *s, const Bundle *b) {
        const LinkFacts facts = { .rec = &b->rec,
                                  .is_of_source = true,
                                  .all_is_shipped = !b->unit.dirty };
        const LinkFate fate = link_rule(&facts);
        if (fate == LINKS_RECHECK)
                intake_recheck_links(s, b->rec.id);
        else if (fate == LINKS_RELEASE) /* some may be there where links were refused */
                ended_links_release(s, b->rec.id);
}

bool intake_is_rechecking_links(const IntakeSource *s, const char *id) {
        return s->sweep.is_running || strcmp(s->links.rechecking, id) == 0 ||
               path_queue_has(&s->links.rechecks, id);
}

void ended_links_init(IntakeSource *s) {
        path_queue_init(&s->links.rechecks, PATH_QUEUE_MAX, NULL);
}

void ended_links_done(IntakeSource *s) {
        path_queue_done(&s->links.rechecks);
}
