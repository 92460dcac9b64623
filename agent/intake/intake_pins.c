/* Links are let go in the worker that makes them: by the thousand they take their time. */
#include <errno.h>
#include <string.h>

#include "agent/intake/intake_private.h"
#include "lib/base/log.h"
#include "lib/base/path.h"

static void on_pins_done(WorkJob *job);

/* @return whether it was taken (else it is freed) */
static bool pins_submit(IntakeSource *s, PinsJob *p) {
        p->owner = s;
        p->job.done = on_pins_done;
        if (worker_pool_submit(s->probes, &p->job) < 0) {
                pins_job_free(p);
                return false;
        }
        list_append(&s->pin_jobs, &p->mine);
        return true;
}

typedef enum Fate {
        FATE_KEPT,
        FATE_UNKNOWN, /* to the store */
        FATE_LET_GO,  /* nobody will ever want them */
        FATE_LOOKED_AT,
} Fate;

static Fate fate_of(const IntakeSource *s, const char *id) {
        _cleanup_(bundle_record_done) BundleRecord rec = { 0 };
        if (bundle_table_find(s->context->bundles, id))
                return FATE_KEPT;
        int r = store_get(s->context->store, id, &rec);
        if (r < 0) /* of what cannot be read nothing is said, nor taken away */
                return FATE_KEPT;
        if (intake_wants_last_look(s, r == 0 ? &rec : NULL, id))
                return FATE_LOOKED_AT;
        if (r > 0)
                return FATE_UNKNOWN;
        /* A delivered one is its own source's to look at; links that the row still speaks of are retention's to let go of. */
        bool over = rec.state == BUNDLE_CANCELLED || rec.state == BUNDLE_VANISHED ||
                    rec.state == BUNDLE_EVICTED;
        return over && !rec.links_held ? FATE_LET_GO : FATE_KEPT;
}

/* Said once a process: all sources with one parent find the same. */
static void say_unknown(const char *path, size_t n) {
        static char *said;
        if (said && strcmp(said, path) == 0)
                return;
        _cleanup_free_ char *escaped = path_escape(path);
        char more[64] = "";
        if (n > 1)
                snprintf(more, sizeof more, " and %zu more beside it", n - 1);
        log_notice("unknown pins, left alone: '%s'%s; remove the directory by hand if its bundle "
                   "is not wanted",
                   escaped ? escaped : "?", more);
        free(said);
        said = strdup(path);
}

/* Only what is known to be over is let go: an id may be another source's, or its row lost with a damaged database. */
static void choose(IntakeSource *s, PinsJob *p) {
        size_t n = 0, n_unknown = 0;
        _cleanup_free_ char *unknown = NULL;
        for (size_t i = 0; i < p->n_found; i++) {
                Fate fate = fate_of(s, p->found[i].id);
                if (fate == FATE_LET_GO) {
                        p->found[n++] = p->found[i];
                        continue;
                }
                if (fate == FATE_LOOKED_AT)
                        intake_look_last(s, p->found[i].id);
                if (fate == FATE_UNKNOWN && n_unknown++ == 0)
                        unknown = TAKE_PTR(p->found[i].path);
                pins_found_done(&p->found[i]);
        }
        p->n_found = n;
        if (unknown)
                say_unknown(unknown, n_unknown);
}

static void on_pins_done(WorkJob *job) {
        PinsJob *p = CONTAINER_OF(job, PinsJob, job);
        if (p->result < 0 && p->result != -ENOENT)
                log_dump(p->bundle_id[0] ? p->bundle_id : NULL, LOG_WARNING, p->result,
                         p->task == PINS_LIST
                                 ? "cannot list hard links for '%s'; the next start tries again"
                                 : "cannot remove hard links for '%s'; the next start tries again",
                         p->terms->fixed);
        if (p->task == PINS_LIST) {
                IntakeSource *s = p->owner;
                choose(s, p);
                s->is_listing = false;
                if (p->n_found > 0) {
                        list_remove(&p->mine);
                        p->task = PINS_SWEEP;
                        p->result = 0;
                        (void)pins_submit(s, p); /* else the next start sweeps */
                        return;
                }
        }
        pins_job_free(p);
}

/* In two steps: the worker lists, the loop knows, the worker lets go. */
void intake_sweep_pins(IntakeSource *s) {
        PinsJob *p;
        if (pins_job_new(&p, s->terms, PINS_LIST, "") >=
            0) /* rather too many links than one too few */
                s->is_listing = pins_submit(s, p);
}

void intake_release_pins(IntakeSource *s, const char *id) {
        PinsJob *p;
        if (pins_job_new(&p, s->terms, PINS_RELEASE, id) >= 0)
                (void)pins_submit(s, p); /* else the next start sweeps */
}
