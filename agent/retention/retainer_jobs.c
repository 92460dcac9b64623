/* The parts of retention that may block: they run in the source's worker and touch nothing but their job. */
#include <errno.h>
#include <string.h>

#include "agent/retention/retainer_private.h"

/* More pins than this are not held against each other: then a bundle's own links alone explain themselves. */
#define PINS_MAX 100000

/* @param all  else only what is not known yet */
static int measure(MeasureJob *j, bool all) {
        size_t n = 0;
        _cleanup_free_ PinsUse *uses = calloc(MAX(j->n, (size_t)1), sizeof *uses);
        _cleanup_free_ size_t *which = calloc(MAX(j->n, (size_t)1), sizeof *which);
        if (!uses || !which)
                return -ENOMEM;
        for (size_t i = 0; i < j->n; i++)
                if (all || !j->subjects[i].is_known) {
                        uses[n].bundle_id = j->subjects[i].id;
                        which[n++] = i;
                }
        int r = pins_measure(j->terms->pins,
                             &(PinsMeasure){ .uses = uses,
                                             .n = n,
                                             .judge_links = j->is_short,
                                             .ask_writers = j->is_short && j->policy.may_evict,
                                             .max_inodes = PINS_MAX });
        for (size_t i = 0; r >= 0 && i < n; i++)
                j->subjects[which[i]].use = uses[i];
        return r;
}

static void measure_run(WorkJob *job) {
        MeasureJob *j = CONTAINER_OF(job, MeasureJob, errand.job);
        j->result = pins_room(j->terms->pins, &j->room);
        if (j->result < 0)
                return;
        RetentionRoom room = { j->room.total_bytes, j->room.free_bytes, j->room.total_inodes,
                               j->room.free_inodes };
        j->is_short = retention_is_short(&j->policy, &room);
        j->result = measure(j, j->is_short);
}

static void measure_drop(SourceTask *e) {
        measure_job_free(CONTAINER_OF(e, MeasureJob, errand));
}

int measure_job_new(MeasureJob **ret, SourceTerms *terms) {
        MeasureJob *j = calloc(1, sizeof *j);
        if (!j)
                return -ENOMEM;
        j->terms = source_terms_ref(terms);
        j->errand.job.run = measure_run;
        j->errand.drop = measure_drop;
        list_init(&j->errand.mine);
        *ret = j;
        return 0;
}

MeasureJob *measure_job_free(MeasureJob *j) {
        if (!j)
                return NULL;
        source_terms_unref(j->terms);
        free(j->subjects);
        free(j);
        return NULL;
}

static void act_run(WorkJob *job) {
        ActJob *j = CONTAINER_OF(job, ActJob, errand.job);
        j->result = j->only_links ? pins_let_go(j->terms->pins, &j->order, &j->tally)
                                  : pins_delete(j->terms->pins, &j->order, &j->tally);
}

static void act_drop(SourceTask *e) {
        act_job_free(CONTAINER_OF(e, ActJob, errand));
}

int act_job_new(ActJob **ret, SourceTerms *terms, const BundleRecord *rec) {
        const char *relative = rec->path + strlen(terms->fixed);
        ActJob *j = calloc(1, sizeof *j);
        if (!j)
                return -ENOMEM;
        while (*relative == '/')
                relative++;
        j->relative = strdup(relative);
        if (!j->relative) {
                free(j);
                return -ENOMEM;
        }
        strcpy(j->id, rec->id);
        j->terms = source_terms_ref(terms);
        j->order = (PinsOrder){ .bundle_id = j->id,
                                .relative = j->relative,
                                .is_file = rec->kind == SOURCE_PROCESS_CORE,
                                .leaves_directory = source_terms_is_loose(terms, relative),
                                .any_content = rec->state == BUNDLE_EVICTED,
                                .unit_dev = rec->unit_dev };
        j->errand.job.run = act_run;
        j->errand.drop = act_drop;
        list_init(&j->errand.mine);
        *ret = j;
        return 0;
}

ActJob *act_job_free(ActJob *j) {
        if (!j)
                return NULL;
        source_terms_unref(j->terms);
        free(j->relative);
        free(j->prints);
        free(j->known);
        free(j->tally.kept);
        free(j);
        return NULL;
}
