/* From what the collector says to units in their places: what the machine of an order (containers_batch.c) has done in the worker, and tells. */
#include <errno.h>
#include <string.h>

#include "agent/containers_private.h"
#include "lib/base/log.h"

/* ---- places ---- */

static ContainerNote *find_note(const ContainersBatch *b, const char *id) {
        LIST_FOREACH (l, (ListLink *)&b->notes) {
                ContainerNote *n = CONTAINER_OF(l, ContainerNote, link);
                if (strcmp(n->id, id) == 0)
                        return n;
        }
        return NULL;
}

static ContainerUnit *unit_of(const ContainersBatch *b, const char *unit) {
        for (size_t i = 0; i < b->n_units; i++)
                if (strcmp(b->units[i]->unit, unit) == 0)
                        return b->units[i];
        return NULL;
}

/* Who comes first says where in the configuration it belongs. @return as containers_unit_take() */
static int take_unit(ContainersBatch *b, const ContainerNote *n, const char *unit,
                     ContainerUnit **ret) {
        *ret = unit_of(b, unit);
        if (*ret)
                return 0;
        ContainerUnit **more = reallocarray(b->units, b->n_units + 1, sizeof *more);
        if (!more)
                return -ENOMEM;
        b->units = more;
        int r = containers_unit_take(b->owner, n, unit, ret);
        if (r == 0) {
                (*ret)->n_batches++;
                more[b->n_units++] = *ret;
        }
        return r;
}

static void tell_placed(const ContainersBatch *b, ContainerNote *n, const ContainerUnit *u,
                        const CopyDump *d) {
        const ContainersContext *c = &b->owner->context;
        ContainerPlace p = { .note = n->id,
                             .source = u->source,
                             .unit_path = u->path,
                             .container = d->container[0] ? d->container : NULL,
                             .s3_prefix = n->s3_prefix,
                             .uid = n->uid,
                             .has_finished = n->has_finished };
        for (size_t i = 0; i < NOTE_FILES_MAX; i++)
                p.promised[i] = n->promised[i];
        n->is_placed = true;
        c->on_placed(&p, c->userdata);
}

/* Once, though its record comes twice. */
static void refuse_taken(const ContainersBatch *b, ContainerNote *n) {
        if (!n->is_refused)
                containers_refuse(b->owner, n,
                                  "the place of its copy is that of another user's, which lies "
                                  "there; nothing of it is touched");
        n->is_refused = true;
}

void batch_take_dump(ContainersBatch *b, const CopyDump *d) {
        ContainerNote *n = find_note(b, d->note);
        if (!n || n->is_placed)
                return;
        b->owner->context.on_known(n->id, b->owner->context.userdata);
        bool is_known = n->is_judged; /* its record comes twice */
        n->is_judged = true;
        if (!d->unit[0]) {
                n->is_here = d->is_here;
                if (!d->is_here && !is_known)
                        log_notice("note %s: its directory is not on this machine, and cannot be "
                                   "copied out of a container: %s",
                                   n->id, d->detail ? d->detail : "the collector does not say why");
                return;
        }
        ContainerUnit *u;
        int r = take_unit(b, n, d->unit, &u);
        if (r == 0)
                tell_placed(b, n, u, d);
        else if (r == -EPERM)
                refuse_taken(b, n);
        else
                log_error(r, "note %s: its dump is not copied out of its container", n->id);
}

/* ---- in the worker ---- */

/* @return whether it is underway */
static bool submit(ContainersBatch *b, ContainersJob *j, int (*task)(ContainersJob *j),
                   void (*on_done)(ContainersJob *j)) {
        if (!j)
                return false;
        j->task = task;
        j->on_done = on_done;
        j->userdata = b;
        if (!containers_job_submit(b->owner, j)) {
                containers_job_free(j);
                return false;
        }
        return true;
}

static void on_cleared(ContainersJob *j) {
        ContainersBatch *b = j->userdata;
        if (j->result < 0)
                log_warning(j->result, "cannot remove '%s/%s'; the next start tries again",
                            b->owner->coming, b->name);
        containers_job_free(j);
        batch_finish(b);
}

static void attach_about(const ContainersBatch *b, ContainerUnit *u, const TreeUnit *t) {
        const ContainersContext *c = &b->owner->context;
        int r = c->attach(u->source, u->path, CONTAINER_COPY_FILE, t->about_fd, c->userdata);
        u->is_unattached = r < 0;
        if (r < 0 && !c->is_stranded(u->source, u->path, c->userdata)) /* else that is said */
                log_warning(r, "copy %s: '%s' cannot be attached to '%s'", b->name,
                            CONTAINER_COPY_FILE, u->path);
}

static void tell_built(ContainersBatch *b, const TreeUnit *t) {
        const ContainersContext *c = &b->owner->context;
        ContainerUnit *u = unit_of(b, t->unit);
        if (!u || t->result < 0)
                return;
        for (size_t i = 0; i < t->n_missing; i++)
                c->on_missing(u->source, u->path, t->missing[i], c->userdata);
        if (!t->is_whole && t->n_missing == 0)
                c->on_missing(u->source, u->path, "", c->userdata);
        attach_about(b, u, t);
        u->is_there = true;
        u->is_over = u->is_over && t->n_added == 0; /* what was added has an end of its own */
        u->bytes = t->disk_bytes;
        containers_count(b->owner, t->is_whole ? CONTAINERS_WHOLE : CONTAINERS_INCOMPLETE, 1);
        log_notice("copy %s: '%s' of uid %u was copied out of container %s%s", b->name, t->path,
                   (unsigned)t->uid, t->container[0] ? t->container : "(unknown)",
                   t->is_whole ? ""
                               : ", but not all of it: " CONTAINER_COPY_FILE
                                 " in its bundle says what, "
                                 "and why");
}

static void on_built(ContainersJob *j) {
        ContainersBatch *b = j->userdata;
        int r = j->result;
        b->promised_bytes = 0; /* what there is counts for itself */
        for (size_t i = 0; i < j->n_units; i++)
                tell_built(b, &j->units[i]);
        containers_tell_stranded(b->owner);
        for (size_t i = 0; i < j->n_units && r < 0; i++) {
                const ContainerUnit *u = unit_of(b, j->units[i].unit);
                if (u && j->units[i].result == 0)
                        batch_let_go_of(b, u);
        }
        containers_job_free(j);
        if (r < 0) {
                batch_retry(b, r);
                return;
        }
        batch_went_right(b);
        b->bytes = 0;
        containers_count_not_found(b->owner, &b->notes);
        batch_set_state(b, BATCH_CLEARING);
        batch_step(b);
}

static int fill_unit(const ContainersBatch *b, TreeUnit *t, const ContainerUnit *u,
                     const CopyDocument *d) {
        t->about_fd = -1;
        t->uid = u->uid;
        strcpy(t->unit, u->unit);
        t->source = strdup(u->source);
        t->relative = strdup(u->relative);
        t->final = strdup(u->path);
        t->notes = calloc(d->n_dumps + 1, sizeof *t->notes);
        if (!t->source || !t->relative || !t->final || !t->notes)
                return -ENOMEM;
        for (size_t i = 0; i < d->n_dumps; i++) {
                const CopyDump *dump = &d->dumps[i];
                if (strcmp(dump->unit, u->unit) != 0 || !find_note(b, dump->note))
                        continue;
                if (!t->path && !(t->path = strdup(dump->path)))
                        return -ENOMEM;
                strcpy(t->container, dump->container);
                t->notes[t->n_notes] = strdup(dump->note);
                if (!t->notes[t->n_notes])
                        return -ENOMEM;
                t->n_notes++;
        }
        return 0;
}

/* The same job goes on: it has the document. */
static int build(ContainersBatch *b, ContainersJob *j) {
        for (size_t i = 0; i < j->document.n_dumps; i++)
                batch_take_dump(b, &j->document.dumps[i]);
        j->units = calloc(b->n_units + 1, sizeof *j->units);
        if (!j->units)
                return -ENOMEM;
        for (size_t i = 0; i < b->n_units; i++) {
                int r = fill_unit(b, &j->units[j->n_units++], b->units[i], &j->document);
                if (r < 0)
                        return r;
        }
        return submit(b, j, containers_build_task, on_built) ? 0 : -EAGAIN;
}

static void on_read(ContainersJob *j) {
        ContainersBatch *b = j->userdata;
        int r = j->result;
        if (r == 0) {
                if (j->document.n_bad > 0)
                        log_warning(
                                0,
                                "copy %s: %zu records of it say what cannot be, and are left out",
                                b->name, j->document.n_bad);
                batch_set_state(b, BATCH_BUILDING);
                r = build(b, j);
                if (r == 0)
                        return;
        }
        if (r != -EAGAIN)
                containers_job_free(j);
        if (r != -EBADMSG && r != -ENOENT && r != -EFBIG) {
                batch_retry(b, r);
                return;
        }
        log_error(r,
                  "copy %s: '%s/%s/" CONTAINERS_DOCUMENT
                  "' cannot be used; the next start tries again; remove that directory by hand "
                  "if it says so again",
                  b->name, b->owner->coming, b->name);
        batch_leave(b);
}

static ContainersJob *clearing_job(const ContainersBatch *b) {
        ContainersJob *j = containers_job_new(b->owner, -1);
        if (j && asprintf(&j->name, CONTAINERS_COMING "/%s", b->name) < 0) {
                j->name = NULL;
                return containers_job_free(j);
        }
        return j;
}

bool batch_read_document(ContainersBatch *b) {
        return submit(b, containers_job_new(b->owner, b->dir_fd), containers_read_task, on_read);
}

bool batch_clear(ContainersBatch *b) {
        return submit(b, clearing_job(b), containers_remove_task, on_cleared);
}
