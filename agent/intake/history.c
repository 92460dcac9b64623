/* Rows of bundles that ended long ago (retention.history): they are deleted when their units are
 * gone and no link of ours holds them. Each scan checks the next ENDED_MAX rows: the loop reads and
 * deletes them, the scan's thread looks at the files. */
#include "agent/intake/history.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "agent/intake/source.h"
#include "agent/retention/links.h"
#include "agent/store/store.h"
#include "lib/base/cleanup.h"
#include "lib/base/fs.h"
#include "lib/base/log.h"
#include "lib/base/path.h"

#define ENDED_MAX 1024 /* that a scan checks */

static int on_ended(BundleRecord *rec, void *userdata) {
        EndedUnits *e = userdata;
        e->items[e->n++] = (EndedUnit){ .rec = *rec, .is_held = true };
        *rec = (BundleRecord){ 0 };
        return 0;
}

void history_load(IntakeSource *s, EndedUnits *e) {
        const IntakeContext *c = s->context;
        uint64_t now = source_realtime_usec(s);
        const StoreFilter f = { .state = -1,
                                .after = s->history_id[0] ? s->history_id : NULL,
                                .limit = ENDED_MAX,
                                .ended_before_usec = now - MIN(now - 1, c->history_usec),
                                .surplus_usec = store_nth_seen_usec(c->store, INTAKE_HISTORY_MAX) };
        e->items = c->history_usec > 0 ? calloc(ENDED_MAX, sizeof *e->items) : NULL;
        int r = e->items ? store_list(c->store, &f, on_ended, e) : 0;
        bool has_more = r == 0 && e->n == ENDED_MAX;
        strcpy(s->history_id, has_more ? e->items[ENDED_MAX - 1].rec.id : "");
}

static void check_one(EndedUnit *u, const SourceSpec *spec, int fixed_fd, dev_t fixed_dev) {
        if (strcmp(u->rec.source, spec->name) != 0 || !path_is_below(u->rec.path, spec->fixed) ||
            (uint64_t)fixed_dev != u->rec.unit_dev)
                return;
        const char *relative = source_spec_relative(spec, u->rec.path);
        int fd = relative[0] ? fs_open_beneath(fixed_fd, relative, O_PATH) : fixed_fd;
        u->is_gone = fd == -ENOENT || fd == -ENOTDIR;
        if (relative[0] && fd >= 0)
                (void)close(fd); /* opened with O_PATH */
        fd = links_open(spec->link_dirs, u->rec.id);
        u->is_held = fd != -ENOENT;
        if (fd >= 0)
                (void)close(fd); /* a directory */
}

void history_check(EndedUnits *e, const SourceSpec *spec, int fixed_fd) {
        struct stat st;
        for (size_t i = 0; i < e->n && fstat(fixed_fd, &st) == 0; i++)
                check_one(&e->items[i], spec, fixed_fd, st.st_dev);
}

size_t history_delete(IntakeSource *s, EndedUnits *e, uint64_t until_usec) {
        const IntakeContext *c = s->context;
        size_t n = 0;
        int r = 0;
        for (; r >= 0 && e->n_handled < e->n && source_boot_usec(s) < until_usec; e->n_handled++) {
                const EndedUnit *u = &e->items[e->n_handled];
                if (u->is_held || bundle_table_find_unit(c->bundles, u->rec.source, u->rec.path))
                        continue;
                r = store_drop_ended(c->store, u->rec.id, u->is_gone);
                n += r == 0;
        }
        if (r < 0)
                e->n_handled = e->n;
        return n;
}

void history_report(const IntakeSource *s, const EndedUnits *e) {
        if (e->n_deleted > 0)
                log_info("source %s: deleted the rows of %zu bundles that ended long ago and whose "
                         "files are gone (retention.history)",
                         s->config->name, e->n_deleted);
}

void history_done(EndedUnits *e) {
        for (size_t i = 0; i < e->n; i++)
                bundle_record_done(&e->items[i].rec);
        free(e->items);
        *e = (EndedUnits){ 0 };
}
