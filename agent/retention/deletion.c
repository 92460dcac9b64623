/* One release of a bundle's files: what is asked of link_deletion.c, in the thread of the source,
 * and what is said of the result. A bundle that was delivered loses the files that were shipped; of
 * one that was evicted, any content. Which bundle's turn it is, and what follows from the result,
 * is decided in retention_runner.c. */
#include "agent/retention/deletion.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "lib/base/log.h"
#include "lib/base/parse.h"
#include "lib/base/strbuf.h"
#include "lib/neuron/names.h"

Deletion *deletion_free(Deletion *d) {
        if (!d)
                return NULL;
        source_spec_unref(d->spec);
        free(d->relative);
        free(d->prints);
        free(d->known);
        free(d);
        return NULL;
}

static void deletion_run(WorkJob *job) {
        Deletion *d = CONTAINER_OF(job, Deletion, task.job);
        d->result = link_deletion_run(d->spec->link_dirs, &d->request, &d->tally);
}

static void deletion_drop(SourceTask *t) {
        deletion_free(CONTAINER_OF(t, Deletion, task));
}

Deletion *deletion_new(SourceSpec *spec, const BundleRecord *rec) {
        const char *relative = source_spec_relative(spec, rec->path);
        const bool is_named =
                unit_is_evidence_by_name((SourceKind)rec->kind, spec->template, relative);
        Deletion *d = calloc(1, sizeof *d);
        if (!d)
                return NULL;
        strcpy(d->id, rec->id);
        list_init(&d->task.mine);
        d->spec = source_spec_ref(spec);
        d->relative = strdup(relative);
        if (!d->relative)
                return deletion_free(d);
        d->request = (LinkDeletion){ .bundle_id = d->id,
                                     .relative = d->relative,
                                     .is_file = rec->kind == SOURCE_PROCESS_CORE,
                                     .leaves_directory = !is_named,
                                     .only_named = !is_named,
                                     .any_content = rec->state == BUNDLE_EVICTED,
                                     .unit_dev = rec->unit_dev };
        d->task.job.run = deletion_run;
        d->task.drop = deletion_drop;
        return d;
}

int deletion_read_prints(Deletion *d, Store *store, const BundleRecord *rec) {
        const char *base = rec->supplement_of[0] ? rec->supplement_of : rec->id;
        int r = store_get_own_prints(store, rec->id, &d->prints, &d->request.n_prints);
        if (r >= 0)
                r = store_get_prints(store, base, &d->known, &d->request.n_known);
        d->request.prints = d->prints;
        d->request.known = d->known;
        return MIN(r, 0);
}

void deletion_log(const Deletion *d) {
        static const char *const why[] = { [RETENTION_NO_REASON] = "started before",
                                           [RETENTION_KEEP_FOR] = "keep_for is over",
                                           [RETENTION_MAX_USE] = "max_use was exceeded",
                                           [RETENTION_KEEP_FREE] = "keep_free was violated" };
        char text[PARSE_FORMAT_SIZE];
        const LinkDeletionTally *t = &d->tally;
        if (t->n_kept > 0)
                log_dump(d->id, LOG_WARNING, 0,
                         "a file appeared in place of one that was being deleted, and its name was "
                         "used again at once: it is beside it now, or above it, as "
                         "'….kept-by-neuron-collectd'");
        if (d->request.only_links)
                return;
        if (d->result == -ENOENT)
                log_dump(d->id, LOG_NOTICE, 0,
                         "no link of ours holds its files any more, so they are not deleted: "
                         "remove them by hand");
        if (t->n_deleted > 0)
                log_dump(d->id, LOG_INFO, 0, "deleted %llu files at the source, %s: %s",
                         (unsigned long long)t->n_deleted,
                         parse_format_human(text, t->deleted_bytes), why[d->why]);
        if (t->n_changed > 0)
                log_dump(d->id, LOG_NOTICE, 0,
                         "kept %llu files at the source that have changed since they were shipped",
                         (unsigned long long)t->n_changed);
        if (t->n_unnamed > 0)
                log_dump(d->id, LOG_NOTICE, 0,
                         "kept %llu files at the source: neither their names nor that of their "
                         "directory say that they are evidence; remove them by hand",
                         (unsigned long long)t->n_unnamed);
        if (t->n_open > 0)
                log_dump(d->id, LOG_INFO, 0,
                         "%llu files at the source are open for writing, trying again",
                         (unsigned long long)t->n_open);
        if (t->n_unshipped > 0)
                log_dump(d->id, LOG_INFO, 0,
                         "kept %llu links to content that was not shipped: they are rechecked",
                         (unsigned long long)t->n_unshipped);
}

char *deletion_explain_failure(const Deletion *d) {
        bool is_refused = d->result == -EACCES || d->result == -EPERM;
        if (d->result == LINK_DELETION_E_AWAY)
                return strbuf_format("cannot release delivered files below '%s': their file system "
                                     "is not mounted; mount it, trying again every minute",
                                     d->spec->fixed);
        return strbuf_format("cannot delete delivered files below '%s': %s; %s", d->spec->fixed,
                             strerror(-d->result),
                             is_refused ? "give the agent CAP_DAC_OVERRIDE and CAP_FOWNER, or set "
                                          "retention.after_delivery: keep"
                                        : "trying again in 5 minutes");
}
