/* Links are let go in the worker that makes them: by the thousand they take their time. */
#include <errno.h>
#include <string.h>

#include "agent/intake_private.h"
#include "lib/base/log.h"
#include "lib/base/path.h"

static void on_pins_done(WorkJob *job);

static void pins_submit(IntakeSource *s, PinsJob *p) {
        p->owner = s;
        p->job.done = on_pins_done;
        if (worker_pool_submit(s->probes, &p->job) < 0)
                pins_job_free(p); /* the next start sweeps */
        else
                list_append(&s->pin_jobs, &p->mine);
}

/* @return whether nobody will ever want these pins; for ids that the store does not know *ret_known is false */
static bool is_over(const IntakeSource *s, const char *id, bool *ret_known) {
        *ret_known = true;
        if (bundle_table_find(s->context->bundles, id))
                return false;
        BundleRecord rec = { 0 };
        int r = store_get(s->context->store, id, &rec);
        *ret_known =
                r != STORE_E_NOT_FOUND; /* of what cannot be read nothing is said, nor taken away */
        bool over = r == 0 && bundle_state_is_final(rec.state) && rec.state != BUNDLE_QUARANTINED;
        if (r == 0)
                bundle_record_done(&rec);
        return over;
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
static void choose(const IntakeSource *s, PinsJob *p) {
        size_t n = 0, n_unknown = 0;
        _cleanup_free_ char *unknown = NULL;
        for (size_t i = 0; i < p->n_found; i++) {
                bool known;
                if (is_over(s, p->found[i].id, &known)) {
                        p->found[n++] = p->found[i];
                        continue;
                }
                if (!known && n_unknown++ == 0)
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
                choose(p->owner, p);
                if (p->n_found > 0) {
                        list_remove(&p->mine);
                        p->task = PINS_SWEEP;
                        p->result = 0;
                        pins_submit(p->owner, p);
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
                pins_submit(s, p);
}

void intake_release_pins(IntakeSource *s, const Bundle *b) {
        PinsJob *p;
        if (pins_job_new(&p, s->terms, PINS_RELEASE, b->rec.id) >=
            0) /* else the next start sweeps */
                pins_submit(s, p);
}
