/* What is done to the pins of a source in a worker's thread: found, released, swept. Whose are needed, the loop says (intake_pins.c). */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "agent/intake/intake_probe.h"

void pins_found_done(PinsFound *f) {
        free(f->id);
        free(f->path);
        *f = (PinsFound){ 0 };
}

static int on_pins(const char *bundle_id, const char *path, void *userdata) {
        PinsJob *p = userdata;
        if (p->n_found == p->n_allocated) {
                size_t n = p->n_allocated ? 2 * p->n_allocated : 64;
                PinsFound *bigger = realloc(p->found, n * sizeof *bigger);
                if (!bigger)
                        return -ENOMEM;
                p->found = bigger;
                p->n_allocated = n;
        }
        PinsFound f = { .id = strdup(bundle_id), .path = strdup(path) };
        if (!f.id || !f.path) {
                pins_found_done(&f);
                return -ENOMEM;
        }
        p->found[p->n_found++] = f;
        return 0;
}

static int compare_found(const void *a, const void *b) {
        const PinsFound *x = a, *y = b;
        return strcmp(x->id, y->id);
}

static void pins_find(PinsJob *p) {
        p->result = pins_list(p->terms->pins, on_pins, p);
        if (p->n_found == 0)
                return; /* qsort(3) wants no NULL */
        qsort(p->found, p->n_found, sizeof *p->found, compare_found);
        size_t n = 1;
        for (size_t i = 1; i < p->n_found; i++) {
                if (strcmp(p->found[i].id, p->found[n - 1].id) == 0)
                        pins_found_done(&p->found[i]);
                else
                        p->found[n++] = p->found[i];
        }
        p->n_found = n;
}

static void pins_run(WorkJob *job) {
        PinsJob *p = CONTAINER_OF(job, PinsJob, job);
        switch (p->task) {
        case PINS_RELEASE:
                p->result = pins_release(p->terms->pins, p->bundle_id);
                break;
        case PINS_LIST:
                pins_find(p);
                break;
        case PINS_SWEEP:
                for (size_t i = 0; i < p->n_found; i++) {
                        int r = pins_release(p->terms->pins, p->found[i].id);
                        if (r < 0 && p->result == 0)
                                p->result = r;
                }
        }
}

int pins_job_new(PinsJob **ret, SourceTerms *terms, PinsTask task, const char *bundle_id) {
        PinsJob *p = calloc(1, sizeof *p);
        if (!p)
                return -ENOMEM;
        p->terms = source_terms_ref(terms);
        p->job.run = pins_run;
        p->task = task;
        list_init(&p->mine);
        strcpy(p->bundle_id, bundle_id);
        *ret = p;
        return 0;
}

PinsJob *pins_job_free(PinsJob *p) {
        if (!p)
                return NULL;
        list_remove(&p->mine);
        for (size_t i = 0; i < p->n_found; i++)
                pins_found_done(&p->found[i]);
        free(p->found);
        source_terms_unref(p->terms);
        free(p);
        return NULL;
}
