/* The walk over a whole source, in a worker's thread: which units are new or have changed. */
#include <errno.h>
#include <stdlib.h>

#include "agent/intake/intake_probe.h"
#include "agent/intake/unit_table.h"
#include "lib/base/clock.h"
#include "lib/base/fs.h"
#include "lib/base/path.h"

static int on_scanned_unit(ScanUnit *u, void *userdata) {
        ScanJob *s = userdata;
        uint64_t digest;
        if (unit_table_get(s->known, unit_table_key(u->relative), &digest) && digest == u->digest)
                return 0;
        if (s->n_found == s->max_found) {
                s->more = true;
                return -ECANCELED;
        }
        if (s->n_found == s->n_allocated) {
                size_t n = s->n_allocated ? 2 * s->n_allocated : 16;
                ScanUnit *bigger = realloc(s->found, n * sizeof *bigger);
                if (!bigger)
                        return -ENOMEM;
                s->found = bigger;
                s->n_allocated = n;
        }
        s->found[s->n_found++] = *u;
        *u = (ScanUnit){ 0 };
        return 0;
}

static void on_unreadable(const char *relative, void *userdata) {
        ScanJob *s = userdata;
        if (s->n_unreadable++ == 0)
                s->unreadable = path_escape(relative);
}

void scan_run(WorkJob *job) {
        ScanJob *s = CONTAINER_OF(job, ScanJob, job);
        uint64_t begin = clock_boottime_usec();
        ScanSource scan = s->terms->scan;
        scan.any_links = true;
        scan.on_unreadable = on_unreadable;
        _cleanup_close_ int fd = scan_open_fixed(s->terms->fixed);
        if (fd >= 0)
                s->on_network = fs_is_network(fd, &s->fs_name);
        s->result = scan_source(&scan, on_scanned_unit, s);
        if (s->result == -ECANCELED && s->more)
                s->result = 0;
        s->took_usec = clock_boottime_usec() - begin;
}

int scan_job_new(ScanJob **ret, SourceTerms *terms, const struct UnitTable *known,
                 size_t max_found) {
        ScanJob *s = calloc(1, sizeof *s);
        if (!s)
                return -ENOMEM;
        *s = (ScanJob){ .terms = source_terms_ref(terms), .known = known, .max_found = max_found };
        s->job.run = scan_run;
        *ret = s;
        return 0;
}

ScanJob *scan_job_free(ScanJob *s) {
        if (!s)
                return NULL;
        for (size_t i = 0; i < s->n_found; i++)
                scan_unit_done(&s->found[i]);
        free(s->found);
        free(s->unreadable);
        source_terms_unref(s->terms);
        free(s);
        return NULL;
}
