/* What the files of the desk share: notes.c (in and out), notes_look.c (hands them to workers that look at directories),
 * notes_commit.c (from the desk into the store), notes_unit.c (one look) */
#pragma once

#include "agent/hooknotes/hook_socket.h"
#include "agent/hooknotes/notes.h"
#include "agent/hooknotes/notes_mailbox.h"
#include "agent/hooknotes/notes_rules.h"
#include "agent/store/notes_store.h"
#include "collectors/host/pids.h"
#include "lib/base/list.h"
#include "lib/event/worker_pool.h"

/* ---- notes_unit.c: whether the directory is there, and whose it is. In a worker: a mount may hang. ---- */

#define NOTES_PLACES_MAX 16

/* Owns all it has. */
typedef struct NotesLook {
        uid_t uid; /* of the hook */
        NotesPlace places[NOTES_PLACES_MAX];
        size_t n_places;
        /* The answer: */
        const NotesPlace *found; /* one of places; NULL: refused */
        const char *why;         /* static; NULL when found */
        bool is_absent;          /* it is not there: it may come */
        bool is_late;            /* nobody could look at it in time: the same */
        size_t n_absent;         /* places where no directory of that name is */
} NotesLook;
void notes_look_done(NotesLook *l);

/** Finds out where to look, from text alone. @return 0; NOTES_E_REFUSED and why; -ENOMEM */
int notes_look_prepare(NotesLook *l, const Config *c, const char *directory, uid_t uid);
/** Looks. Blocks. */
void notes_look_run(NotesLook *l);

/* ---- the desk ---- */

typedef enum NoteStage {
        NOTE_COMING, /* its directory is to be looked at, in one source or in the next */
        NOTE_LOOKED, /* in a worker */
        NOTE_ADDING, /* goes into the store with the next commit */
        NOTE_OPEN,   /* durable; its hook may still write files */
        NOTE_ENDING, /* its end goes into the store with the next commit */
        N_NOTE_STAGES
} NoteStage;

typedef struct Note {
        ListLink link; /* Notes.notes */
        struct Notes *owner;
        NoteStage stage;
        HookPeer *peer;     /* NULL: by the mailbox, or gone */
        char *mailbox_name; /* until it is removed; NULL */
        HookNote hook;
        NoteView view;   /* borrows from here */
        bool is_durable; /* accepted */
        bool has_ended; /* its hook has; before it was durable, or while its directory was looked at */
        bool is_unseen; /* of its directory's file system, nothing is known: its hook is told so */
        bool is_invisible; /* its directory would be in a source, and is in none that we see */
        bool is_told;      /* of the snapshot */
        bool is_refusal_counted;
        uint64_t due_usec; /* CLOCK_BOOTTIME; without a peer: when it counts as ended; 0 = never */
        uint64_t since_usec;      /* CLOCK_BOOTTIME when it came */
        char *source, *unit_path; /* NULL */
        char container[PIDS_CONTAINER_SIZE];
        char *stored_refused; /* what the row says */
        NotesLook look;       /* when prepared; before at_place it is over */
        size_t at_place;
        bool is_prepared;
} Note;

typedef struct NotesBatch NotesBatch;

/* So many sources are looked at at once, each by a thread of its own. */
#define NOTES_LANES 16

typedef struct NotesLane {
        struct Notes *owner;
        char *fixed;         /* the source's; NULL: none yet */
        NotesBatch *forming; /* for the worker; NULL */
        NotesBatch *batch;   /* in the worker; NULL */
        bool is_late;        /* it has not come back in time */
        sd_event_source *late;
} NotesLane;

typedef struct NotesCount {
        const char *counter; /* in the store */
        uint64_t unwritten;
} NotesCount;
typedef enum NotesCounter {
        NOTES_BY_SOCKET,
        NOTES_BY_MAILBOX,
        NOTES_REFUSED,
        NOTES_TWICE,
        NOTES_UNSEEN,
        N_NOTES_COUNTERS
} NotesCounter;

struct Notes {
        NotesContext context;
        const Config *config;
        char *const *patterns;
        HookSocket *socket;
        NotesMailbox *mailbox;
        const char *trouble;
        uint64_t begun_usec; /* CLOCK_BOOTTIME */
        ListLink notes;
        size_t n_notes, n_mail; /* n_mail: by the mailbox, of them */
        bool has_put_off;       /* mail that waits for room here */
        NotesAllowance allowance;
        NotesCount counts[N_NOTES_COUNTERS];
        Histogram seconds;
        sd_event_source *step, *due, *start;
        WorkerPool *pool;
        NotesLane lanes[NOTES_LANES];
        /* Refusals are said once a minute. */
        uint64_t said_usec, n_unsaid;
};

uint64_t notes_boot_usec(const Notes *n);
uint64_t notes_real_usec(const Notes *n);
void notes_count(Notes *n, NotesCounter which);
/** Counts it, and says it, once a minute at most. */
void notes_tell_refused(Notes *n, uid_t uid, const char *why);
/** Goes on with mail that was put off, when there is room. */
void notes_look_for_mail(Notes *n);
void note_remove(Notes *n, Note *note);
Note *notes_find(const Notes *n, const char *id); /* NULL */

/* ---- notes_commit.c ---- */

/** Checks the move, and says it. */
void note_set_stage(Note *note, NoteStage to);
/** Something is to be looked at or written. */
void notes_kick(Notes *n);
int notes_step_new(Notes *n);
void notes_step_done(Notes *n);
/** Its hook has ended. */
void notes_end(Notes *n, Note *note);
/** Has notes without a peer end when they are due. */
void notes_arm_due(Notes *n);
/** Writes the figures that are not written yet. */
void notes_write_counts(Notes *n);
/** What has been looked at and what has ended goes into the store, and is told. */
void notes_commit(Notes *n);
/** Takes over what a look has shown. */
void notes_place(const Notes *n, Note *note, const NotesLook *l);

/* ---- notes_look.c ---- */

/** Hands what has come to the workers; what needs none, or whose source is late, goes on at once. */
void notes_look(Notes *n);
int notes_lanes_new(Notes *n);
void notes_lanes_done(Notes *n);
