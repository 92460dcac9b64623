/* The links of bundles that have ended: those that are not needed are released, those of delivered
 * bundles are rechecked.
 *
 * The destinations of a bundle may have read a file at different times. When its owner has removed
 * or replaced the file since, the links alone hold what one of them lacks: that is shipped as a
 * supplement, from links of its own. These are made before the links of the bundle are released,
 * and both before the supplement has a row; so whenever this is cut, the next start finds links of
 * which not all was shipped, and rechecks them. */
#include <errno.h>
#include <string.h>

#include "agent/intake/intake_private.h"
#include "lib/base/log.h"
#include "lib/base/path.h"
#include "lib/neuron/ids.h"

/* ---- jobs: links are listed and released in the thread that makes them; thousands take their time
 * ---- */

typedef struct FoundPins {
        ListLink link;
        char *id;   /* what the directory is called: not necessarily the id of a bundle */
        char *path; /* absolute */
} FoundPins;

typedef struct PinsJob {
        SourceTask task;
        IntakeSource *source; /* for done() */
        SourceSpec *terms;
        char bundle_id[BUNDLE_ID_SIZE]; /* whose pins are released; "": all are listed */
        ListLink found;
        int result;
} PinsJob;

static PinsJob *pins_job_free(PinsJob *p) {
        if (!p)
                return NULL;
        LIST_FOREACH_SAFE (l, &p->found) {
                FoundPins *f = CONTAINER_OF(l, FoundPins, link);
                free(f->id);
                free(f->path);
                free(f);
        }
        source_spec_unref(p->terms);
        free(p);
        return NULL;
}
DEFINE_CLEANUP(PinsJob, pins_job_free);

static int on_pins(const char *id, const char *path, void *userdata) {
        PinsJob *p = userdata;
        FoundPins *f = calloc(1, sizeof *f);
        if (!f)
                return -ENOMEM;
        list_append(&p->found, &f->link);
        f->id = strdup(id);
        f->path = strdup(path);
        return f->id && f->path ? 0 : -ENOMEM;
}

static void pins_job_run(WorkJob *job) {
        PinsJob *p = CONTAINER_OF(job, PinsJob, task.job);
        p->result = p->bundle_id[0] ? pins_release(p->terms->pins, p->bundle_id)
                                    : pins_list(p->terms->pins, on_pins, p);
}

static void pins_job_drop(SourceTask *t) {
        pins_job_free(CONTAINER_OF(t, PinsJob, task));
}

/* @return whether it was started; if not, the next start does it: rather too many links than one
 * too few */
static bool pins_job_start(IntakeSource *s, const char *bundle_id, void (*done)(SourceTask *t)) {
        _cleanup_(pins_job_freep) PinsJob *p = calloc(1, sizeof *p);
        if (!p)
                return false;
        list_init(&p->found);
        strcpy(p->bundle_id, bundle_id);
        p->source = s;
        p->terms = source_spec_ref(s->terms);
        p->task = (SourceTask){ .job.run = pins_job_run, .done = done, .drop = pins_job_drop };
        if (intake_source_submit(s, &p->task) < 0)
                return false;
        (void)TAKE_PTR(p);
        return true;
}

static void on_released(SourceTask *t) {
        _cleanup_(pins_job_freep) PinsJob *p = CONTAINER_OF(t, PinsJob, task);
        if (p->result < 0 && p->result != -ENOENT)
                log_dump(p->bundle_id, LOG_WARNING, p->result,
                         "cannot remove hard links for '%s'; the next start tries again",
                         p->terms->fixed);
}

void intake_release_pins(IntakeSource *s, const char *id) {
        (void)pins_job_start(s, id, on_released); /* else the next start sweeps */
}

/* ---- sweep: what a crash left ---- */

typedef enum Fate {
        FATE_KEEP,
        FATE_UNKNOWN, /* to the store */
        FATE_RELEASE, /* not needed any more */
        FATE_RECHECK,
} Fate;

/* @return 0 and the base's record; STORE_E_NOT_FOUND; -errno */
static int get_base(const IntakeSource *s, const char *id, BundleRecord *ret) {
        char base_id[BUNDLE_ID_SIZE];
        const char *suffix = strrchr(id, '-');
        if (!bundle_id_is_valid(id) || suffix[1] != 's')
                return STORE_E_NOT_FOUND;
        (void)snprintf(base_id, sizeof base_id, "%.*s", (int)(suffix - id), id);
        return store_get(s->context->store, base_id, ret);
}

bool intake_is_from_links(const BundleRecord *rec) {
        return rec->supplement_of[0] && rec->unit_ino == 0;
}

static bool is_delivered_here(const IntakeSource *s, const BundleRecord *rec) {
        return rec->state == BUNDLE_DELIVERED && strcmp(rec->source, s->config->name) == 0 &&
               path_is_below(rec->path, s->terms->fixed);
}

/* @param rec  NULL: there is no row. @return whether these links, which nobody works on, are to be
 * rechecked */
static bool must_recheck(const IntakeSource *s, const BundleRecord *rec, const char *id) {
        _cleanup_(bundle_record_done) BundleRecord base = { 0 };
        if (rec)
                return is_delivered_here(s, rec);
        return !bundle_table_find(s->context->bundles, id) && get_base(s, id, &base) == 0 &&
               is_delivered_here(s, &base);
}

static Fate fate_of(const IntakeSource *s, const char *id) {
        _cleanup_(bundle_record_done) BundleRecord rec = { 0 };
        if (bundle_table_find(s->context->bundles, id))
                return FATE_KEEP;
        int r = store_get(s->context->store, id, &rec);
        if (r < 0) /* what cannot be read is left alone */
                return FATE_KEEP;
        if (must_recheck(s, r == 0 ? &rec : NULL, id))
                return FATE_RECHECK;
        if (r > 0)
                return FATE_UNKNOWN;
        /* A delivered one is rechecked by its own source; links that the row still mentions are
         * released by retention. */
        bool is_over = rec.state == BUNDLE_CANCELLED || rec.state == BUNDLE_VANISHED ||
                       rec.state == BUNDLE_EVICTED;
        return is_over && !rec.links_held ? FATE_RELEASE : FATE_KEEP;
}

/* Logged once a process: all sources with one parent find the same. */
static void log_unknown(const char *path, size_t n) {
        static char *logged;
        if (n == 0 || (logged && strcmp(logged, path) == 0))
                return;
        _cleanup_free_ char *escaped = path_escape(path);
        char more[64] = "";
        if (n > 1)
                snprintf(more, sizeof more, " and %zu more beside it", n - 1);
        log_notice("unknown pins, left alone: '%s'%s; remove the directory by hand if its bundle "
                   "is not needed",
                   escaped ? escaped : "?", more);
        free(logged);
        logged = strdup(path);
}

/* Only what is known to be over is released: an id may be another source's, or its row lost with a
 * damaged database. */
static void on_listed(SourceTask *t) {
        _cleanup_(pins_job_freep) PinsJob *p = CONTAINER_OF(t, PinsJob, task);
        IntakeSource *s = p->source;
        const char *unknown = NULL;
        size_t n_unknown = 0;
        s->is_listing = false;
        if (p->result < 0 && p->result != -ENOENT)
                log_warning(p->result,
                            "cannot list hard links for '%s'; the next start tries again",
                            p->terms->fixed);
        LIST_FOREACH (l, &p->found) {
                const FoundPins *f = CONTAINER_OF(l, FoundPins, link);
                Fate fate = f->id && f->path ? fate_of(s, f->id) : FATE_KEEP;
                if (fate == FATE_RELEASE)
                        intake_release_pins(s, f->id);
                else if (fate == FATE_RECHECK)
                        intake_recheck_links(s, f->id);
                else if (fate == FATE_UNKNOWN && n_unknown++ == 0)
                        unknown = f->path;
        }
        log_unknown(unknown, n_unknown);
}

void intake_sweep_pins(IntakeSource *s) {
        s->is_listing = pins_job_start(s, "", on_listed);
}

void intake_resweep_pins(IntakeSource *s) {
        if (!s->sweep_wanted || s->is_listing)
                return;
        s->sweep_wanted = false;
        intake_sweep_pins(s);
}

/* ---- rechecks ---- */

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
                s->sweep_wanted = true;
                return false;
        }
        if (intake_supplement_id(id, base, base->n_supplements + 1) < 0)
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
        if (!intake_start_supplement(s, p, &base)) { /* the operator has refused it */
                intake_release_pins(s, p->supplement_id);
                report_rechecked(s, p->bundle_id);
        }
}

static void on_rechecked(IntakeSource *s, ProbeJob *p) {
        s->rechecking[0] = '\0';
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
        r = is_base ? store_get(s->context->store, id, &base) : get_base(s, id, &base);
        if (r < 0)
                return r;
        if (r > 0 || !is_delivered_here(s, is_known ? &rec : &base))
                return 1;
        r = probe_job_new(&p, s->terms, intake_relative(s, base.path));
        if (r < 0)
                return r;
        strcpy(p->bundle_id, id);
        strcpy(p->base_id, base.id);
        p->releases_links = !is_known || !rec.links_held;
        r = intake_supplement_id(p->supplement_id, &base, base.n_supplements + 1);
        if (r >= 0)
                r = store_get_prints(s->context->store, base.id, &p->shipped, &p->n_shipped);
        if (r < 0)
                return r;
        *ret = TAKE_PTR(p);
        return 0;
}

static void start_next(IntakeSource *s) {
        while (!s->rechecking[0] && !pending_is_empty(&s->rechecks)) {
                _cleanup_free_ char *id = pending_pop(&s->rechecks);
                ProbeJob *p = NULL;
                int r = prepare(s, id, &p);
                if (r == 0 && intake_probe_submit(s, p, on_rechecked)) /* a failure is logged */
                        strcpy(s->rechecking, id);
                else if (r < 0)
                        log_dump(id, LOG_WARNING, r,
                                 "cannot check its links; they stay, and the next start checks");
        }
}

void intake_recheck_links(IntakeSource *s, const char *id) {
        if (pending_add(&s->rechecks, id) < 0)
                log_dump(id, LOG_WARNING, 0,
                         "too many links wait to be checked; they stay, and the next start checks");
        start_next(s);
}

bool intake_is_rechecking_links(const IntakeSource *s, const char *id) {
        return s->is_listing || strcmp(s->rechecking, id) == 0 || pending_has(&s->rechecks, id);
}
