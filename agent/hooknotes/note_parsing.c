/* Notes are parsed, one after another: what a note says, and which process it is about.
 *
 * Parsing removes secrets, which takes 100 ms and more for a note that is made for it, so that one
 * thread does it. The next note is the oldest one of the owner for whom the thread has worked the
 * least lately. The bytes of notes that wait are bounded: a note beyond that is refused, and its
 * hook, or the next pass over the mailbox, comes back with it. */
#include "agent/hooknotes/note_parsing.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "collectors/host/pids.h"
#include "lib/base/array.h"
#include "lib/base/cleanup.h"
#include "lib/base/clock.h"
#include "lib/base/list.h"
#include "lib/base/log.h"
#include "lib/base/parse.h"
#include "lib/base/strbuf.h"

#define UNPARSED_BYTES_MAX (16 * MIB)
#define UNPARSED_BYTES_MAX_OF_OWNER (4 * MIB) /* of 128 hooks, each with a long environment */

typedef struct ParseJob {
        WorkJob job;
        Note *note; /* only the loop uses it */
        const char *data;
        size_t n;
        char **patterns; /* owned, as the following */
        HookNote hook;
        const char *why; /* static */
        StrBuf document;
        int result, format_result;
        uint64_t usec; /* that it took */
} ParseJob;

/* ---- the process that failed ---- */

/* Searches the ancestors of the hook only. The supervisor of a snapshot searches all processes,
 * since it may see them (collectors/host/pids.h).
 * @return why the process is not known, static; NULL: it is, or the supervisor finds it */
static const char *find_process(const HookNotes *n, Note *note) {
        NoteView *v = &note->view;
        uint64_t inner;
        if (v->by_mailbox)
                return "the note came by the mailbox, and its hook has ended";
        if (v->hook_pid == 0)
                return "the hook runs in a pid namespace that this agent cannot see";
        if (v->owner.container[0])
                v->container = v->owner.container;
        if (!note->hook.pid || parse_u64_range(note->hook.pid, 1, INT32_MAX, &inner) < 0)
                return "the note names no pid";
        PidsMatch answer = { 0 };
        int r = pids_resolve_ancestor(&(PidsQuery){ .proc_root = n->config->snapshot.proc_root,
                                                    .hook_pid = v->hook_pid,
                                                    .inner_pid = (int64_t)inner },
                                      &answer);
        v->pid = answer.pid;
        v->start_ticks = answer.start_ticks;
        if (r > 0 && n->config->snapshot.enabled)
                /* if the supervisor does not find it either, the incident logs that */
                return NULL;
        return r == 0               ? NULL
               : r == PIDS_E_HIDDEN ? "other users' processes are hidden from this agent"
               : r > 0 ? "no process of its user that the hook descends from has this pid"
                       : "the hook's process cannot be read";
}

/* ---- the worker ---- */

static void release_data(Note *note) {
        bound_release(&note->unparsed);
        free(TAKE_PTR(note->data));
}

static ParseJob *parse_job_free(ParseJob *j) {
        strings_free(j->patterns);
        hook_note_done(&j->hook);
        strbuf_done(&j->document);
        free(j);
        return NULL;
}

static void parse_run(WorkJob *job) {
        ParseJob *j = CONTAINER_OF(job, ParseJob, job);
        uint64_t begun = clock_boottime_usec();
        j->result = hook_note_parse(j->data, j->n, j->patterns, &j->hook, &j->why);
        if (j->result == 0)
                j->format_result = hook_note_format(&j->hook, j->patterns, &j->document);
        if (j->result == 0 && j->format_result == 0)
                j->format_result = strbuf_error(&j->document);
        j->usec = MAX(clock_boottime_usec() - begun, (uint64_t)1);
}

/* @param r  > 0: it is no note, because of why; -errno: there is no memory for it */
static void reject_note(HookNotes *n, Note *note, int r, const char *why) {
        if (!note->mailbox_name) {
                note_refuse(n, note, r > 0 ? why : NOTE_NO_MEMORY);
                return;
        }
        if (r > 0) { /* else the next scan tries again */
                note_count_refused(n, &note->view.owner, why);
                mailbox_remove(n->mailbox, note->mailbox_name);
        }
        note_remove(n, note);
}

static void handle_parsed(HookNotes *n, Note *note, ParseJob *j) {
        release_data(note);
        if (j->result == 0 && note_find(n, j->hook.id)) {
                note_discard_duplicate(n, note);
                return;
        }
        if (j->result != 0) {
                reject_note(n, note, j->result, j->why);
                return;
        }
        note->hook = j->hook;
        j->hook = (HookNote){ 0 };
        note->document = j->format_result == 0 ? strbuf_detach(&j->document) : NULL;
        if (!note->view.pid_why)
                note->view.pid_why = find_process(n, note);
        note_set_stage(note, NOTE_UNCHECKED);
        note_schedule_step(n);
}

/* @return the oldest unparsed note of the owner for whom the thread has worked the least lately */
static Note *find_unparsed(HookNotes *n) {
        uint64_t least = 0;
        Note *found = NULL;
        LIST_FOREACH_ITEM (Note, note, link, &n->notes) {
                if (note->stage != NOTE_UNPARSED)
                        continue;
                uint64_t used = bound_amount(&n->parsing.time, &note->view.owner);
                if (!found || used < least) {
                        found = note;
                        least = used;
                }
        }
        return found;
}

static void parse_done(WorkJob *job);

void note_parsing_run(HookNotes *n) {
        Note *note = n->parsing.job ? NULL : find_unparsed(n);
        if (!note)
                return;
        ParseJob *j = calloc(1, sizeof *j);
        if (j) {
                *j = (ParseJob){ .job = { .run = parse_run, .done = parse_done },
                                 .note = note,
                                 .data = note->data,
                                 .n = note->n_data,
                                 .patterns = strings_copy(n->patterns) };
                note_set_stage(note, NOTE_PARSING);
                if (j->patterns && worker_pool_submit(n->parsing.pool, &j->job) == 0) {
                        n->parsing.job = j;
                        return;
                }
                parse_job_free(j);
        }
        release_data(note);
        reject_note(n, note, -ENOMEM, NULL);
}

static void parse_done(WorkJob *job) {
        ParseJob *j = CONTAINER_OF(job, ParseJob, job);
        HookNotes *n = j->note->owner;
        n->parsing.job = NULL;
        (void)bound_spend(&n->parsing.time, &j->note->view.owner,
                          j->usec); /* without memory: not counted */
        handle_parsed(n, j->note, j);
        parse_job_free(j);
        note_parsing_run(n);
}

/* ---- life ---- */

int note_parsing_start(HookNotes *n) {
        n->parsing.unparsed = (Bound){ .what = "bytes of notes that wait",
                                       .max = UNPARSED_BYTES_MAX,
                                       .max_each = UNPARSED_BYTES_MAX_OF_OWNER,
                                       .clock = n->context.clock };
        n->parsing.time = (Bound){
                .max = UINT64_MAX, .max_each = UINT64_MAX, .fade_usec = 1, .clock = n->context.clock
        };
        return worker_pool_new(&n->parsing.pool, n->context.event, "note-parser", 1, WORKER_NORMAL);
}

void note_parsing_stop(HookNotes *n) {
        if (n->parsing.pool)
                worker_pool_free(n->parsing.pool);
        if (n->parsing.job)
                parse_job_free(n->parsing.job);
        bound_done(&n->parsing.time);
        bound_done(&n->parsing.unparsed);
}
