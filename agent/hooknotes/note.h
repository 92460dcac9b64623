/* One received note, and what all notes share. Private to agent/hooknotes.
 *
 *   UNPARSED ─► PARSING ─► UNCHECKED ─► CHECKING ─► ADDING ─► OPEN ─► ENDING
 *                              ▲                               │
 *                              └── its directory was missing ──┘
 *
 * note_parsing.c parses, note_checks.c checks the directory that a note names, note_commit.c stores
 * and answers; hooknotes.c receives. Each may be waiting for a worker while the others go on. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <systemd/sd-event.h>

#include "agent/hooknotes/directory_check.h"
#include "agent/hooknotes/hook_socket.h"
#include "agent/hooknotes/hooknotes.h"
#include "agent/hooknotes/mailbox.h"
#include "agent/hooknotes/rules.h"
#include "lib/base/bound.h"
#include "lib/event/worker_pool.h"

#define NOTE_NO_MEMORY "out of memory"
#define NOTE_TOO_MANY "this user has sent too many notes; keep it in the mailbox"
#define NOTE_MAIL_AT_ONCE 128 /* notes of the mailbox in memory: 64 KiB each */

typedef enum NoteStage {
        NOTE_UNPARSED,  /* nothing is known but who sent it */
        NOTE_PARSING,   /* in a worker */
        NOTE_UNCHECKED, /* its directory has to be checked */
        NOTE_CHECKING,  /* in a worker */
        NOTE_ADDING,    /* goes into the store with the next commit */
        NOTE_OPEN,      /* durable; its hook may still write files */
        NOTE_ENDING,    /* its end goes into the store with the next commit */
        N_NOTE_STAGES
} NoteStage;

typedef enum NoteEnd {
        NOTE_RUNNING,  /* its hook has not ended, as far as is known */
        NOTE_OVER,     /* its time is over, or its hook does not read; its peer may still end */
        NOTE_FINISHED, /* by `finish`: what the hook said, or nothing when it was killed */
        NOTE_LATE,     /* so too, by the agent at the deadline */
        N_NOTE_ENDS
} NoteEnd;

typedef enum NoteSight {
        NOTE_SIGHT_CLEAR,      /* not checked yet, or its file system answered */
        NOTE_SIGHT_INVISIBLE,  /* it would be in a source, but the agent sees it in none */
        NOTE_SIGHT_UNANSWERED, /* its file system does not answer: the hook gets that as the reason
                                */
} NoteSight;

typedef struct Note {
        ListLink link; /* HookNotes.notes */
        HookNotes *owner;
        NoteStage stage;     /* note_set_stage() */
        HookPeer *peer;      /* NULL: by the mailbox, or disconnected */
        char *mailbox_name;  /* until it is removed from there; NULL */
        uint64_t since_usec; /* CLOCK_BOOTTIME when it was received */
        uint64_t due_usec; /* CLOCK_BOOTTIME; without a peer: when it counts as ended; 0 = never */
        NoteView view;     /* for the agent; borrows from here */

        /* What it says: note_parsing.c. */
        char *data; /* as it was received, until it is parsed; NULL */
        size_t n_data;
        Charge unparsed; /* for `data` */
        HookNote hook;
        char *document; /* for the store; NULL: too long, or of an earlier run */

        /* Which unit its directory is: note_checks.c. */
        char *source, *unit_path; /* NULL */
        NoteSight sight;          /* of its directory */

        /* What is stored, answered and counted: note_commit.c. */
        bool is_durable;      /* it was accepted */
        int result;           /* of its change in the transaction that is being committed */
        char *stored_refused; /* as in its row */
        bool is_snapshot_reported;
        bool is_refusal_counted;

        NoteEnd end; /* note_set_end(); perhaps before the note was checked or durable */
        HookFinish finish;
} Note;

/* The check of the directory of a note, in a worker. */
typedef struct CheckJob {
        WorkJob job;
        ListLink link; /* NoteChecks.hung */
        HookNotes *owner;
        Note *note; /* for the loop alone. When a check hangs, its note continues without it, and
                       gets the result if it comes after all. NULL: the note is gone */
        DirectoryCheck check;
        const char *hung; /* the fixed part of the source that does not answer; NULL */
} CheckJob;

typedef struct NoteChecks { /* note_checks.c */
        WorkerPool *pool;
        CheckJob *running;      /* NULL: none */
        sd_event_source *timer; /* of `running` */
        ListLink hung;
} NoteChecks;

typedef struct NoteParsing {  /* note_parsing.c */
        WorkerPool *pool;     /* of one thread */
        struct ParseJob *job; /* that it runs; NULL */
        Bound unparsed;       /* bytes of notes, by owner */
        Bound time;           /* microseconds that the thread has worked for each owner lately */
} NoteParsing;

typedef enum NoteCounter {
        COUNT_BY_SOCKET,
        COUNT_BY_MAILBOX,
        COUNT_REFUSED,
        COUNT_DUPLICATE,
        COUNT_UNSEEN,
        N_NOTE_COUNTERS
} NoteCounter;

struct HookNotes {
        HookNotesContext context;
        const Config *config;
        char *const *patterns; /* of environment variables that may be recorded */
        uint64_t start_usec;   /* CLOCK_BOOTTIME */
        HookSocket *socket;    /* NULL: none */
        Mailbox *mailbox;      /* NULL: none */
        const char *trouble;   /* why one of them is missing, static; NULL */
        ListLink notes;
        size_t n_notes, n_mail; /* n_mail: by the mailbox, of them */
        bool has_deferred_mail; /* notes of the mailbox wait until others are stored */
        Bound rate;             /* notes, by owner: rules.h */
        NoteParsing parsing;
        NoteChecks checks;
        sd_event_source *step; /* checks and commits */
        sd_event_source *due;  /* at the next due_usec */
        sd_event_source *start;
        uint64_t counts[N_NOTE_COUNTERS]; /* that are not in the store yet */
        uint64_t logged_usec, n_unlogged; /* refusals are logged once a minute */
        Histogram seconds;                /* from a note to its snapshot */
};

static inline uint64_t hooknotes_boot_usec(const HookNotes *n) {
        return n->context.clock->boottime_usec(n->context.clock);
}

static inline uint64_t hooknotes_realtime_usec(const HookNotes *n) {
        return n->context.clock->realtime_usec(n->context.clock);
}

/** Adds one. @param view  who sent it @param data  copied @return 0, -ENOMEM */
int note_new(Note **ret, HookNotes *n, const char *data, size_t n_data, const NoteView *view);
void note_free(Note *note);
/** Takes it out of the list and frees it. */
void note_remove(HookNotes *n, Note *note);
/** @return the parsed note of this id; NULL */
Note *note_find(const HookNotes *n, const char *id);

/** Moves it to another stage, if that move exists. */
void note_set_stage(Note *note, NoteStage to);
void note_set_end(Note *note, NoteEnd to); /* as above */
/** Checks and commits in the next turn of the loop. */
void note_schedule_step(HookNotes *n);
/** Its hook has ended: it ends as soon as it is durable and checked. */
void note_end(HookNotes *n, Note *note);
/** Arms the timer for the note whose due_usec is next. */
void note_arm_due(HookNotes *n);

/** Removes it, after the answer to its hook, if it has one. @param answer  NULL: none */
void note_close(HookNotes *n, Note *note, const char *answer);
/** Counts and logs that it is refused, and closes it. @param why  a sentence */
void note_refuse(HookNotes *n, Note *note, const char *why);
/** Counts that the same note was received before, and closes it. */
void note_discard_duplicate(HookNotes *n, Note *note);

void note_count(HookNotes *n, NoteCounter which);
/** Counts a refused note, and logs that once a minute. @param why  NULL: it is logged already */
void note_count_refused(HookNotes *n, const Owner *o, const char *why);
/** Adds the counts to those in the store. */
void note_write_counts(HookNotes *n);
/** @return with what is in the store */
uint64_t note_count_total(const HookNotes *n, NoteCounter which);
