/* The directories that notes name are checked, one after another: which unit one is, and whose
 * (directory_check.c).
 *
 * A check opens directories, and a mount may hang under it. It therefore runs in a worker, and has
 * 250 ms. A check that takes longer is left to its worker; its note is checked again without that
 * file system, and so are all others until the worker returns. If it returns within 10 minutes, a
 * note that was accepted meanwhile gets the result after all. So a mount that hangs delays the
 * notes of all sources once, by 250 ms, and occupies one thread. */
#include "agent/hooknotes/note_checks.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "agent/hooknotes/note_commit.h"
#include "lib/base/cleanup.h"
#include "lib/base/list.h"
#include "lib/base/log.h"
#include "lib/base/path.h"
#include "lib/base/strbuf.h"
#include "lib/event/timer.h"

#define CHECK_TIMEOUT_USEC (250 * USEC_PER_MSEC)

/* A file system that hangs may still answer within this time; after it the check is abandoned. */
#define LATE_CHECK_USEC (10 * USEC_PER_MINUTE)

#define CHECK_THREADS 16 /* each mount that hangs occupies one */

/* ---- the result of a check ---- */

static void set_location(const HookNotes *n, Note *note, const DirectoryCheck *l) {
        NoteView *v = &note->view;
        bool is_in_none = !l->found && l->n_locations > 0 && l->n_absent == l->n_locations;
        v->refused = l->why;
        v->s3_prefix = v->prefix_refused = NULL;
        if (!note->is_durable)
                v->may_come = l->is_absent;
        note->sight = l->is_late   ? NOTE_SIGHT_UNANSWERED
                      : is_in_none ? NOTE_SIGHT_INVISIBLE
                                   : NOTE_SIGHT_CLEAR;
        if (l->found) {
                note->source = strdup(l->found->source);
                note->unit_path = l->found->relative[0]
                                          ? path_join(l->found->fixed, l->found->relative)
                                          : strdup(l->found->fixed);
                if (!note->source || !note->unit_path)
                        v->refused = "out of memory";
        }
        if (v->refused) {
                free(TAKE_PTR(note->source));
                free(TAKE_PTR(note->unit_path));
        }
        v->source = note->source;
        v->unit_path = note->unit_path;
        const char *prefix = note->hook.s3_output_prefix;
        if (prefix && prefix[0]) {
                v->prefix_refused = v->refused ? "no file is expected for it"
                                    : v->owner.uid == 0 && !v->is_owner_known
                                            ? "root's container is not known, and its files are "
                                              "not those of others"
                                            : hooknotes_check_prefix(n->config, prefix);
                v->s3_prefix = v->prefix_refused ? NULL : prefix;
        }
}

/* Moves a note to its next stage by what the check of its directory found. A durable note whose
 * file system did not answer stays open until LATE_CHECK_USEC after its arrival: the check is
 * repeated when that file system answers. */
static void decide(HookNotes *n, Note *note, const DirectoryCheck *check) {
        uint64_t late_usec = note->since_usec + LATE_CHECK_USEC;
        set_location(n, note, check);
        if (note->is_durable && check->is_late && hooknotes_boot_usec(n) < late_usec) {
                note->due_usec = late_usec;
                note_set_stage(note, NOTE_OPEN);
                note_arm_due(n);
        } else
                note_set_stage(note, note->is_durable ? NOTE_ENDING : NOTE_ADDING);
}

static bool waits_for_check(const Note *note) {
        return note->stage == NOTE_OPEN && note->end != NOTE_RUNNING &&
               note->sight == NOTE_SIGHT_UNANSWERED;
}

/* Applies the result of a late check to its note, and starts further checks. */
static void handle_late_check(HookNotes *n, CheckJob *c) {
        list_remove(&c->link);
        if (c->note && waits_for_check(c->note))
                decide(n, c->note, &c->check);
        LIST_FOREACH_ITEM (Note, note, link, &n->notes)
                if (waits_for_check(note))
                        note_set_stage(note, NOTE_UNCHECKED);
}

/* ---- the worker ---- */

static CheckJob *check_free(CheckJob *c) {
        directory_check_done(&c->check);
        free(c);
        return NULL;
}

static void check_run(WorkJob *job) {
        directory_check_run(&CONTAINER_OF(job, CheckJob, job)->check);
}

static void check_done(WorkJob *job) {
        CheckJob *c = CONTAINER_OF(job, CheckJob, job);
        HookNotes *n = c->owner;
        if (c == n->checks.running) {
                n->checks.running = NULL;
                timer_disarm(n->checks.timer);
                decide(n, c->note, &c->check);
        } else
                handle_late_check(n, c);
        check_free(c);
        note_checks_run(n);
        note_commit(n);
}

/* ---- a check that hangs ---- */

/* @return the fixed part of the location that is being checked now, by a worker */
static const char *current_location(const DirectoryCheck *l) {
        return l->locations[__atomic_load_n(&l->current, __ATOMIC_ACQUIRE)].fixed;
}

void note_checks_on_timeout(HookNotes *n) {
        if (worker_pool_poll(&n->checks.running->job)) /* the loop is late, not the check:
                                                          check_done() follows */
                return;
        CheckJob *c = TAKE_PTR(n->checks.running);
        list_append(&n->checks.hung, &c->link);
        c->hung = current_location(&c->check);
        log_warning(0,
                    "the file system of '%s' does not answer; hooks are answered without a check "
                    "of their directories in it",
                    c->hung);
        note_set_stage(c->note, NOTE_UNCHECKED);
        note_checks_run(n);
        note_commit(n);
}

static int on_late(sd_event_source *source, uint64_t usec, void *userdata) {
        (void)source, (void)usec;
        note_checks_on_timeout(userdata);
        return 0;
}

static void arm_late(HookNotes *n) {
        int r = timer_arm(&n->checks.timer, &(TimerOptions){ .event = n->context.event,
                                                             .usec = CHECK_TIMEOUT_USEC,
                                                             .slack_usec = 10 * USEC_PER_MSEC,
                                                             .handler = on_late,
                                                             .userdata = n });
        if (r < 0)
                log_error(r, "cannot arm a timer; hooks wait for a file system that hangs");
}

/* ---- starting a check ---- */

/* Excludes the locations of a source that does not answer. */
static void skip_locations(DirectoryCheck *l, const char *fixed) {
        for (size_t i = 0; i < l->n_locations; i++)
                l->locations[i].is_skipped =
                        l->locations[i].is_skipped || strcmp(l->locations[i].fixed, fixed) == 0;
}

static bool has_open_location(const DirectoryCheck *check) {
        for (size_t i = 0; i < check->n_locations; i++)
                if (!check->locations[i].is_skipped)
                        return true;
        return false;
}

/* @return 0: a worker has to check it; 1: it is decided; -ENOMEM */
static int prepare(HookNotes *n, const Note *note, DirectoryCheck *check) {
        const Owner *owner = &note->view.owner;
        int r = directory_check_prepare(check, n->config, note->hook.local_output_dir, owner->uid);
        if (r == 0 && owner->container[0] && note->view.hook_pid > 0) {
                check->mounts = strbuf_format("%s/%d/mountinfo", n->config->snapshot.proc_root,
                                              (int)note->view.hook_pid);
                r = check->mounts ? 0 : -ENOMEM;
        }
        LIST_FOREACH (l, &n->checks.hung)
                skip_locations(check, CONTAINER_OF(l, CheckJob, link)->hung);
        if (r == 0 && !has_open_location(check)) { /* without a worker: all may hang */
                directory_check_run(check);
                r = 1;
        }
        return r;
}

/* Decides at once, or starts a check in a worker. */
static void start_check(HookNotes *n, Note *note) {
        CheckJob *c = calloc(1, sizeof *c);
        int r = c ? prepare(n, note, &c->check) : -ENOMEM;
        if (r == 0) {
                c->job = (WorkJob){ .run = check_run, .done = check_done };
                c->owner = n;
                c->note = note;
                r = worker_pool_submit(n->checks.pool, &c->job);
        }
        if (r == 0) {
                note_set_stage(note, NOTE_CHECKING);
                n->checks.running = c;
                arm_late(n);
                return;
        }
        decide(n, note, r < 0 ? &(DirectoryCheck){ .why = NOTE_NO_MEMORY } : &c->check);
        if (c)
                check_free(c);
}

/* Starts one check at a time; notes that a hook waits for come first. */
void note_checks_run(HookNotes *n) {
        for (int is_durable = 0; is_durable <= 1; is_durable++)
                LIST_FOREACH_ITEM_SAFE (Note, note, link, &n->notes)
                        if (!n->checks.running && note->stage == NOTE_UNCHECKED &&
                            note->is_durable == is_durable)
                                start_check(n, note);
}

/* ---- life ---- */

int note_checks_start(HookNotes *n) {
        return worker_pool_new(&n->checks.pool, n->context.event, "notes", CHECK_THREADS,
                               WORKER_NORMAL);
}

void note_checks_stop(HookNotes *n) {
        if (n->checks.pool)
                worker_pool_abandon(n->checks.pool);
        sd_event_source_disable_unref(n->checks.timer);
        if (n->checks.running)
                list_append(&n->checks.hung, &n->checks.running->link);
        LIST_FOREACH_ITEM_SAFE (CheckJob, c, link, &n->checks.hung) {
                if (!worker_pool_is_running(&c->job))
                        check_free(
                                c); /* else it belongs to a worker that hangs, and is never freed */
        }
}
