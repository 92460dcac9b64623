#include "agent/intake/probe.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "lib/base/cleanup.h"
#include "lib/base/clock.h"
#include "lib/base/log.h"

static void run(WorkJob *job) {
        IntakeProbe *p = CONTAINER_OF(job, IntakeProbe, task.job);
        uint64_t start_usec = clock_boottime_usec();
        p->result = p->kind->run(p);
        p->duration_usec = clock_boottime_usec() - start_usec;
}

static void drop(SourceTask *t) {
        IntakeProbe *p = CONTAINER_OF(t, IntakeProbe, task);
        p->kind->free(p);
}

static void on_done(SourceTask *t) {
        IntakeProbe *p = CONTAINER_OF(t, IntakeProbe, task);
        p->source->n_probes--;
        p->done(p->source, p);
        p->kind->free(p);
}

int probe_init(IntakeProbe *p, const ProbeKind *kind, SourceSpec *spec, const char *relative) {
        char *copy = strdup(relative);
        if (!copy)
                return -ENOMEM;
        *p = (IntakeProbe){ .task = { .job.run = run, .done = on_done, .drop = drop },
                            .kind = kind,
                            .spec = source_spec_ref(spec),
                            .relative = copy };
        return 0;
}

void probe_done(IntakeProbe *p) {
        source_spec_unref(p->spec);
        free(p->relative);
}

bool probe_submit(IntakeSource *s, WorkerPool *pool, IntakeProbe *p,
                  void (*done)(IntakeSource *s, IntakeProbe *p)) {
        p->source = s;
        p->done = done;
        int r = source_submit(s, pool, &p->task);
        if (r < 0) {
                log_error(r,
                          "source %s: cannot start a worker thread, trying again at the next scan",
                          s->config->name);
                p->kind->free(p);
                return false;
        }
        s->n_probes++;
        return true;
}
