/* Looks at the directories that notes name, in workers: a mount may hang. Each source has a lane of its own, so that one that hangs is late alone. */
#include <stdlib.h>
#include <string.h>

#include "agent/hooknotes/notes_private.h"
#include "lib/base/log.h"
#include "lib/event/timer.h"

#define LATE_USEC (250 * USEC_PER_MSEC) /* a mount that hangs must not make all hooks wait */

#define NO_ANSWER "the file system of the sources does not answer"
#define NO_MEMORY "this agent lacks memory"

struct NotesBatch {
        WorkJob job;
        NotesLane *lane;
        bool is_orphan; /* the desk went on without it */
        size_t n;
        struct {
                Note *note;     /* for the loop alone */
                NotesLook look; /* at one place of the note's, which is here meanwhile */
        } items[];
};

static NotesBatch *batch_free(NotesBatch *b) {
        for (size_t i = 0; i < b->n; i++)
                notes_look_done(&b->items[i].look);
        free(b);
        return NULL;
}

static void batch_run(WorkJob *job) {
        NotesBatch *b = CONTAINER_OF(job, NotesBatch, job);
        for (size_t i = 0; i < b->n; i++)
                notes_look_run(&b->items[i].look);
}

/* ---- one note ---- */

static void decide(Notes *n, Note *note) {
        notes_place(n, note, &note->look);
        notes_look_done(&note->look);
        note->is_prepared = false;
        note_set_stage(note, note->is_durable ? NOTE_ENDING : NOTE_ADDING);
}

static void prepare(const Notes *n, Note *note) {
        NotesLook *l = &note->look;
        int r = notes_look_prepare(l, n->config, note->hook.local_output_dir, note->view.uid);
        if (r != 0) {
                const char *why = r < 0 ? NO_MEMORY : l->why;
                notes_look_done(l);
                l->why = why;
        }
        note->at_place = 0;
        note->is_prepared = true;
}

/* What a worker has found out about one place of it. */
static void take_place(Note *note, NotesLook *l) {
        NotesPlace *p = &note->look.places[note->at_place++];
        *p = l->places[0];
        l->places[0] = (NotesPlace){ 0 }; /* it is the note's again */
        note->look.n_absent += l->n_absent;
        if (l->found) {
                note->look.found = p;
                note->look.why = NULL;
                note->look.is_absent = note->look.is_late = false;
        } else if (!p->by_name) {
                note->look.why = l->why;
                note->look.is_absent = l->is_absent;
                note->look.is_late = false;
        }
}

/* What could not be looked at in time is looked at again when its hook has ended. */
static void miss_place(Note *note) {
        note->at_place++;
        note->look.why = NO_ANSWER;
        note->look.is_absent = note->look.is_late = true;
}

/* ---- lanes ---- */

/* The lane of a source; of more sources that are looked at than there are lanes, some wait for others. */
static NotesLane *lane_of(Notes *n, const char *fixed) {
        NotesLane *idle = NULL, *busy = NULL;
        for (size_t i = 0; i < NOTES_LANES; i++) {
                NotesLane *lane = &n->lanes[i];
                if (lane->fixed && strcmp(lane->fixed, fixed) == 0)
                        return lane;
                if (!lane->batch && !lane->forming)
                        idle = idle ? idle : lane;
                else if (!lane->is_late)
                        busy = busy ? busy : lane;
        }
        if (!idle)
                return busy ? busy : &n->lanes[0]; /* all are late */
        free(idle->fixed);
        idle->fixed = strdup(fixed); /* NULL: it has no name for this time */
        return idle;
}

/* @return false: no memory */
static bool lane_add(NotesLane *lane, Note *note) {
        if (!lane->forming) {
                size_t max = lane->owner->n_notes;
                NotesBatch *b = calloc(1, sizeof *b + max * sizeof b->items[0]);
                if (!b)
                        return false;
                b->job = (WorkJob){ .run = batch_run };
                b->lane = lane;
                lane->forming = b;
        }
        NotesBatch *b = lane->forming;
        NotesPlace *p = &note->look.places[note->at_place];
        b->items[b->n].note = note;
        b->items[b->n].look = (NotesLook){ .uid = note->look.uid, .places = { *p }, .n_places = 1 };
        *p = (NotesPlace){ 0 }; /* it is the batch's meanwhile */
        b->n++;
        note_set_stage(note, NOTE_LOOKED);
        return true;
}

/* Goes on with a note: to the worker that looks at its next place, or to its end. */
static void look_on(Notes *n, Note *note) {
        NotesLook *l = &note->look;
        if (!note->is_prepared)
                prepare(n, note);
        while (!l->found && note->at_place < l->n_places) {
                NotesLane *lane = lane_of(n, l->places[note->at_place].fixed);
                if (lane->is_late) {
                        miss_place(note);
                        continue;
                }
                if (lane->batch || lane_add(lane, note))
                        return; /* it waits */
                l->why = NO_MEMORY;
                l->is_absent = false;
                break;
        }
        decide(n, note);
}

static void batch_done(WorkJob *job) {
        NotesBatch *b = CONTAINER_OF(job, NotesBatch, job);
        NotesLane *lane = b->lane;
        Notes *n = lane->owner;
        lane->batch = NULL;
        lane->is_late = false;
        if (lane->late)
                (void)sd_event_source_set_enabled(lane->late,
                                                  SD_EVENT_OFF); /* cannot fail for ours */
        if (!b->is_orphan)
                for (size_t i = 0; i < b->n; i++) {
                        take_place(b->items[i].note, &b->items[i].look);
                        note_set_stage(b->items[i].note, NOTE_COMING);
                }
        batch_free(b);
        notes_look(n);
        notes_commit(n);
}

static int on_late(sd_event_source *source, uint64_t usec, void *userdata) {
        (void)source, (void)usec;
        NotesLane *lane = userdata;
        lane->is_late = true;
        lane->batch->is_orphan = true;
        log_warning(0,
                    "the file system of '%s' does not answer; hooks are answered without a look at "
                    "their directories in it",
                    lane->fixed ? lane->fixed : "a source");
        for (size_t i = 0; i < lane->batch->n; i++) {
                miss_place(lane->batch->items[i].note);
                note_set_stage(lane->batch->items[i].note, NOTE_COMING);
        }
        notes_look(lane->owner);
        notes_commit(lane->owner);
        return 0;
}

static void arm_late(NotesLane *lane) {
        int r = timer_arm(&lane->late, &(TimerOrder){ .event = lane->owner->context.event,
                                                      .usec = LATE_USEC,
                                                      .slack_usec = 10 * USEC_PER_MSEC,
                                                      .handler = on_late,
                                                      .userdata = lane });
        if (r < 0)
                log_error(r, "cannot arm a timer; hooks wait for a file system that hangs");
}

static void lane_start(NotesLane *lane) {
        Notes *n = lane->owner;
        NotesBatch *b = TAKE_PTR(lane->forming);
        b->job.done = batch_done;
        if (worker_pool_submit(n->pool, &b->job) == 0) {
                lane->batch = b;
                arm_late(lane);
                return;
        }
        for (size_t i = 0; i < b->n; i++) {
                Note *note = b->items[i].note;
                note_set_stage(note, NOTE_COMING);
                notes_look_done(&note->look);
                note->look.why = NO_MEMORY;
                decide(n, note);
        }
        batch_free(b);
}

void notes_look(Notes *n) {
        LIST_FOREACH (l, &n->notes) {
                Note *note = CONTAINER_OF(l, Note, link);
                if (note->stage == NOTE_COMING)
                        look_on(n, note);
        }
        for (size_t i = 0; i < NOTES_LANES; i++)
                if (n->lanes[i].forming)
                        lane_start(&n->lanes[i]);
}

/* ---- life ---- */

int notes_lanes_new(Notes *n) {
        for (size_t i = 0; i < NOTES_LANES; i++)
                n->lanes[i].owner = n;
        /* A thread for each lane, made when it is needed: those that hang keep no other from its own. */
        return worker_pool_new(&n->pool, n->context.event, "notes", NOTES_LANES, WORKER_NORMAL);
}

void notes_lanes_done(Notes *n) {
        if (n->pool)
                worker_pool_abandon(n->pool);
        for (size_t i = 0; i < NOTES_LANES; i++) {
                NotesLane *lane = &n->lanes[i];
                sd_event_source_disable_unref(lane->late);
                free(lane->fixed);
                if (lane->batch && !worker_pool_is_running(&lane->batch->job))
                        batch_free(lane->batch); /* else a mount hangs under it: never freed */
        }
}
