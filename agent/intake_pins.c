/* Links are let go in the worker that makes them: by the thousand they take their time. */
#include <errno.h>
#include <string.h>

#include "agent/intake_private.h"
#include "lib/base/log.h"

static void on_pins_done(WorkJob *job) {
        PinsJob *p = CONTAINER_OF(job, PinsJob, job);
        if (p->result < 0 && p->result != -ENOENT)
                log_dump(p->bundle_id[0] ? p->bundle_id : NULL, LOG_WARNING, p->result,
                         "cannot remove hard links below '%s'; the next start tries again",
                         p->terms->fixed);
        pins_job_free(p);
}

static void pins_submit(IntakeSource *s, PinsJob *p) {
        p->job.done = on_pins_done;
        if (worker_pool_submit(s->probes, &p->job) < 0)
                pins_job_free(p); /* the next start sweeps */
        else
                list_append(&s->pin_jobs, &p->mine);
}

static int keep_id(BundleRecord *rec, void *userdata) {
        PinsJob *p = userdata;
        if (bundle_state_is_final(rec->state) && rec->state != BUNDLE_QUARANTINED)
                return 0;
        char **more = realloc(p->keep, (p->n_keep + 1) * sizeof *more);
        if (!more)
                return -ENOMEM;
        p->keep = more;
        more[p->n_keep] = strdup(rec->id);
        return more[p->n_keep++] ? 0 : -ENOMEM;
}

/* First in the queue of the worker that makes links, so that it never meets a new one. */
void intake_sweep_pins(IntakeSource *s) {
        PinsJob *p;
        if (pins_job_new(&p, s->terms, "") < 0)
                return;
        if (store_list(
                    s->context->store,
                    &(StoreFilter){ .state = -1, .active_only = true, .source = s->config->name },
                    keep_id, p) < 0 ||
            store_list(s->context->store,
                       &(StoreFilter){ .state = BUNDLE_QUARANTINED, .source = s->config->name },
                       keep_id, p) < 0)
                pins_job_free(p); /* rather too many links than one too few */
        else
                pins_submit(s, p);
}

void intake_release_pins(IntakeSource *s, const Bundle *b) {
        PinsJob *p;
        if (pins_job_new(&p, s->terms, b->rec.id) >= 0) /* else the next start sweeps */
                pins_submit(s, p);
}
