/* One measurement of a source: the free space of its file system, and what the files of its bundles
 * use. Where free space is short every bundle is measured, and exactly; else only those that were
 * not measured before. Which bundles count, and what is done for space, is decided in
 * retention_runner.c. */
#include "agent/retention/measurement.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "lib/base/array.h"
#include "lib/base/cleanup.h"

/* With more links than this only the links of a bundle itself explain its link counts. */
#define LINK_INODES_MAX 100000

Measurement *measurement_free(Measurement *m) {
        if (!m)
                return NULL;
        source_spec_unref(m->spec);
        free(m->bundles);
        free(m);
        return NULL;
}

/* When free space is short all are measured, else only what is not known yet. */
static int measure(Measurement *m) {
        size_t n = 0;
        _cleanup_free_ LinkUsage *uses = calloc(MAX(m->n, (size_t)1), sizeof *uses);
        _cleanup_free_ size_t *which = calloc(MAX(m->n, (size_t)1), sizeof *which);
        if (!uses || !which)
                return -ENOMEM;
        for (size_t i = 0; i < m->n; i++)
                if (m->is_short || !m->bundles[i].is_known) {
                        uses[n].bundle_id = m->bundles[i].id;
                        which[n++] = i;
                }
        int r = link_usage_measure(
                m->spec->link_dirs,
                &(LinkMeasure){ .uses = uses,
                                .n = n,
                                .explain_links = m->is_short,
                                .ask_writers = m->is_short && m->policy.may_evict,
                                .max_inodes = LINK_INODES_MAX });
        for (size_t i = 0; r >= 0 && i < n; i++)
                m->bundles[which[i]].use = uses[i];
        return r;
}

static void measurement_run(WorkJob *job) {
        Measurement *m = CONTAINER_OF(job, Measurement, task.job);
        m->result = link_usage_query_space(m->spec->link_dirs, &m->space, &m->device);
        if (m->result < 0)
                return;
        m->is_short = retention_is_short(&m->policy, &m->space) ||
                      retention_is_short_undelivered(&m->policy, &m->space);
        m->result = measure(m);
}

static void measurement_drop(SourceTask *t) {
        measurement_free(CONTAINER_OF(t, Measurement, task));
}

MeasuredBundle *measurement_add(Measurement *m, const char *id) {
        if (array_grow(&m->bundles, m->n, sizeof *m->bundles) < 0)
                return NULL;
        MeasuredBundle *x = &m->bundles[m->n++];
        *x = (MeasuredBundle){ 0 };
        strcpy(x->id, id);
        return x;
}

Measurement *measurement_new(SourceSpec *spec, const RetentionPolicy *policy) {
        Measurement *m = calloc(1, sizeof *m);
        if (!m)
                return NULL;
        *m = (Measurement){ .spec = source_spec_ref(spec), .policy = *policy };
        m->task.job.run = measurement_run;
        m->task.drop = measurement_drop;
        list_init(&m->task.mine);
        return m;
}
