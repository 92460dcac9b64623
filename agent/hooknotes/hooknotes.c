/* Notes of hooks: received by socket and mailbox, checked, stored, answered. The directories that
 * they name are checked in workers, since a mount may hang; each source has a lane of its own, so
 * that one that hangs delays no other. */
#include "agent/hooknotes/hooknotes.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "agent/hooknotes/hook_socket.h"
#include "agent/hooknotes/mailbox.h"
#include "agent/hooknotes/rules.h"
#include "agent/store/store.h"
#include "collectors/host/pids.h"
#include "lib/base/list.h"
#include "lib/base/log.h"
#include "lib/base/parse.h"
#include "lib/base/path.h"
#include "lib/base/redact.h"
#include "lib/base/transition.h"
#include "lib/event/timer.h"
#include "lib/event/worker_pool.h"
#include "lib/neuron/nrt_status.h"

typedef enum NoteStage {
        NOTE_UNCHECKED, /* its directory is to be checked, in one source or in the next */
        NOTE_CHECKING,  /* in a worker */
        NOTE_ADDING,    /* goes into the store with the next commit */
        NOTE_OPEN,      /* durable; its hook may still write files */
        NOTE_ENDING,    /* its end goes into the store with the next commit */
        N_NOTE_STAGES
} NoteStage;

typedef struct Note {
        ListLink link; /* Notes.notes */
        struct HookNotes *owner;
        NoteStage stage;
        HookPeer *peer;     /* NULL: by the mailbox, or gone */
        char *mailbox_name; /* until it is removed; NULL */
        HookNote hook;
        NoteView view;   /* borrows from here */
        bool is_durable; /* accepted */
        bool has_ended;  /* its hook has; before it was durable, or while its directory was checked
                          */
        /* the file system of its directory does not answer: its hook gets that as the reason */
        bool is_unseen;
        bool is_invisible; /* its directory would be in a source, and is in none that we see */
        bool is_snapshot_reported; /* of the snapshot */
        bool is_refusal_counted;
        uint64_t due_usec; /* CLOCK_BOOTTIME; without a peer: when it counts as ended; 0 = never */
        uint64_t since_usec;      /* CLOCK_BOOTTIME when it came */
        char *source, *unit_path; /* NULL */
        char container[PIDS_CONTAINER_SIZE];
        char *stored_refused; /* as in the row */
        DirectoryCheck check; /* when prepared; before at_place it is over */
        size_t location_index;
        bool is_prepared;
} Note;

typedef struct CheckBatch CheckBatch;

/* So many sources are checked at a time, each by a thread of its own. */
#define CHECK_LANES 16
typedef struct CheckLane {
        struct HookNotes *owner;
        char *fixed;         /* the source's; NULL: none yet */
        CheckBatch *forming; /* for the worker; NULL */
        CheckBatch *batch;   /* in the worker; NULL */
        bool is_late;        /* it has not come back in time */
        sd_event_source *late;
} CheckLane;

typedef struct NoteCount {
        const char *counter; /* in the store */
        uint64_t unwritten;
} NoteCount;

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
        char *const *patterns;
        HookSocket *socket;
        Mailbox *mailbox;
        const char *trouble;
        uint64_t begun_usec; /* CLOCK_BOOTTIME */
        ListLink notes;
        size_t n_notes, n_mail; /* n_mail: by the mailbox, of them */
        bool has_deferred_mail; /* mail that waits until others are stored */
        NoteRatelimit allowance;
        NoteCount counts[N_NOTE_COUNTERS];
        Histogram seconds;
        sd_event_source *step, *due, *start;
        WorkerPool *pool;
        CheckLane lanes[CHECK_LANES];
        /* Refusals are logged once a minute. */
        uint64_t logged_usec, n_unlogged;
};

#define LATE_USEC (250 * USEC_PER_MSEC) /* a mount that hangs must not make all hooks wait */
#define NO_ANSWER "the file system of the sources does not answer"
#define NO_MEMORY "out of memory"
struct CheckBatch {
        WorkJob job;
        CheckLane *lane;
        bool is_orphan; /* its notes continued without it */
        size_t n;
        struct {
                Note *note;           /* for the loop alone */
                DirectoryCheck check; /* at one place of the note's, which is here meanwhile */
        } items[];
};

static CheckBatch *batch_free(CheckBatch *b) {
        for (size_t i = 0; i < b->n; i++)
                directory_check_done(&b->items[i].check);
        free(b);
        return NULL;
}

static void batch_run(WorkJob *job) {
        CheckBatch *b = CONTAINER_OF(job, CheckBatch, job);
        for (size_t i = 0; i < b->n; i++)
                directory_check_run(&b->items[i].check);
}

/* ---- one note ---- */

static void check_directories(HookNotes *n);
static void note_set_stage(Note *note, NoteStage to);
static void set_location(const HookNotes *n, Note *note, const DirectoryCheck *l);
static void log_late(const Note *note);
static void ended(HookNotes *n, Note *note);
static void commit_notes(HookNotes *n);
static void end_note(HookNotes *n, Note *note);
static void arm_due(HookNotes *n);
static uint64_t boot_usec(const HookNotes *n);
static uint64_t realtime_usec(const HookNotes *n);
static void count_note(HookNotes *n, NoteCounter which);
static void count_and_log_refused(HookNotes *n, uid_t uid, const char *why);
static void note_remove(HookNotes *n, Note *note);
static void on_note(HookNotes *n, HookPeer *p, const char *data, size_t size);
static void rescan_mailbox(HookNotes *n);

static void decide(HookNotes *n, Note *note) {
        set_location(n, note, &note->check);
        directory_check_done(&note->check);
        note->is_prepared = false;
        note_set_stage(note, note->is_durable ? NOTE_ENDING : NOTE_ADDING);
}

static void prepare(const HookNotes *n, Note *note) {
        DirectoryCheck *l = &note->check;
        int r = directory_check_prepare(l, n->config, note->hook.local_output_dir, note->view.uid);
        if (r != 0) {
                const char *why = r < 0 ? NO_MEMORY : l->why;
                directory_check_done(l);
                l->why = why;
        }
        note->location_index = 0;
        note->is_prepared = true;
}

/* What a worker has found out about one place of it. */
static void merge_location(Note *note, DirectoryCheck *l) {
        NoteLocation *p = &note->check.locations[note->location_index++];
        *p = l->locations[0];
        l->locations[0] = (NoteLocation){ 0 }; /* it is the note's again */
        note->check.n_absent += l->n_absent;
        if (l->found) {
                note->check.found = p;
                note->check.why = NULL;
                note->check.is_absent = note->check.is_late = false;
        } else if (!p->by_name) {
                note->check.why = l->why;
                note->check.is_absent = l->is_absent;
                note->check.is_late = false;
        }
}

/* What could not be checked in time is checked again when its hook has ended. */
static void skip_location(Note *note) {
        note->location_index++;
        note->check.why = NO_ANSWER;
        note->check.is_absent = note->check.is_late = true;
}

/* ---- lanes ---- */

/* The lane of a source; with more sources than lanes some wait for others. */
static CheckLane *lane_of(HookNotes *n, const char *fixed) {
        CheckLane *idle = NULL, *busy = NULL;
        for (size_t i = 0; i < CHECK_LANES; i++) {
                CheckLane *lane = &n->lanes[i];
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
static bool lane_add(CheckLane *lane, Note *note) {
        if (!lane->forming) {
                size_t max = lane->owner->n_notes;
                CheckBatch *b = calloc(1, sizeof *b + max * sizeof b->items[0]);
                if (!b)
                        return false;
                b->job = (WorkJob){ .run = batch_run };
                b->lane = lane;
                lane->forming = b;
        }
        CheckBatch *b = lane->forming;
        NoteLocation *p = &note->check.locations[note->location_index];
        b->items[b->n].note = note;
        b->items[b->n].check =
                (DirectoryCheck){ .uid = note->check.uid, .locations = { *p }, .n_locations = 1 };
        *p = (NoteLocation){ 0 }; /* it is the batch's meanwhile */
        b->n++;
        note_set_stage(note, NOTE_CHECKING);
        return true;
}

/* Continues a note: in the worker that checks its next place, or with the result. */
static void continue_check(HookNotes *n, Note *note) {
        DirectoryCheck *l = &note->check;
        if (!note->is_prepared)
                prepare(n, note);
        while (!l->found && note->location_index < l->n_locations) {
                CheckLane *lane = lane_of(n, l->locations[note->location_index].fixed);
                if (lane->is_late) {
                        skip_location(note);
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
        CheckBatch *b = CONTAINER_OF(job, CheckBatch, job);
        CheckLane *lane = b->lane;
        HookNotes *n = lane->owner;
        lane->batch = NULL;
        lane->is_late = false;
        if (lane->late)
                (void)sd_event_source_set_enabled(lane->late,
                                                  SD_EVENT_OFF); /* cannot fail for ours */
        if (!b->is_orphan)
                for (size_t i = 0; i < b->n; i++) {
                        merge_location(b->items[i].note, &b->items[i].check);
                        note_set_stage(b->items[i].note, NOTE_UNCHECKED);
                }
        batch_free(b);
        check_directories(n);
        commit_notes(n);
}

static int on_late(sd_event_source *source, uint64_t usec, void *userdata) {
        (void)source, (void)usec;
        CheckLane *lane = userdata;
        lane->is_late = true;
        lane->batch->is_orphan = true;
        log_warning(
                0,
                "the file system of '%s' does not answer; hooks are answered without a check of "
                "their directories in it",
                lane->fixed ? lane->fixed : "a source");
        for (size_t i = 0; i < lane->batch->n; i++) {
                skip_location(lane->batch->items[i].note);
                note_set_stage(lane->batch->items[i].note, NOTE_UNCHECKED);
        }
        check_directories(lane->owner);
        commit_notes(lane->owner);
        return 0;
}

static void arm_late(CheckLane *lane) {
        int r = timer_arm(&lane->late, &(TimerOptions){ .event = lane->owner->context.event,
                                                        .usec = LATE_USEC,
                                                        .slack_usec = 10 * USEC_PER_MSEC,
                                                        .handler = on_late,
                                                        .userdata = lane });
        if (r < 0)
                log_error(r, "cannot arm a timer; hooks wait for a file system that hangs");
}

static void lane_start(CheckLane *lane) {
        HookNotes *n = lane->owner;
        CheckBatch *b = TAKE_PTR(lane->forming);
        b->job.done = batch_done;
        if (worker_pool_submit(n->pool, &b->job) == 0) {
                lane->batch = b;
                arm_late(lane);
                return;
        }
        for (size_t i = 0; i < b->n; i++) {
                Note *note = b->items[i].note;
                note_set_stage(note, NOTE_UNCHECKED);
                directory_check_done(&note->check);
                note->check.why = NO_MEMORY;
                decide(n, note);
        }
        batch_free(b);
}

static void check_directories(HookNotes *n) {
        LIST_FOREACH (l, &n->notes) {
                Note *note = CONTAINER_OF(l, Note, link);
                if (note->stage == NOTE_UNCHECKED)
                        continue_check(n, note);
        }
        for (size_t i = 0; i < CHECK_LANES; i++)
                if (n->lanes[i].forming)
                        lane_start(&n->lanes[i]);
}

/* ---- life ---- */

static int start_lanes(HookNotes *n) {
        for (size_t i = 0; i < CHECK_LANES; i++)
                n->lanes[i].owner = n;
        /* A thread for each lane, made when it is needed: those that hang keep no other from its
         * own. */
        return worker_pool_new(&n->pool, n->context.event, "notes", CHECK_LANES, WORKER_NORMAL);
}

static void stop_lanes(HookNotes *n) {
        if (n->pool)
                worker_pool_abandon(n->pool);
        for (size_t i = 0; i < CHECK_LANES; i++) {
                CheckLane *lane = &n->lanes[i];
                sd_event_source_disable_unref(lane->late);
                free(lane->fixed);
                if (lane->batch && !worker_pool_is_running(&lane->batch->job))
                        batch_free(lane->batch); /* else a mount hangs under it: never freed */
        }
}

/* ---- into the store: all notes that have been checked by then are one transaction; a hook is
 * answered when its note is durable ---- */

/* ---- the states of a note ---- */

static void note_set_stage(Note *note, NoteStage to) {
        static const char *const names[N_NOTE_STAGES] = {
                [NOTE_UNCHECKED] = "unchecked", [NOTE_CHECKING] = "checking",
                [NOTE_ADDING] = "adding",       [NOTE_OPEN] = "open",
                [NOTE_ENDING] = "ending",
        };
#define TO(stage) (1U << (stage))
        static const unsigned moves[N_NOTE_STAGES] = {
                /* after a restart it is open at once */
                [NOTE_UNCHECKED] =
                        TO(NOTE_CHECKING) | TO(NOTE_ADDING) | TO(NOTE_ENDING) | TO(NOTE_OPEN),
                [NOTE_CHECKING] = TO(NOTE_UNCHECKED),
                [NOTE_ADDING] = TO(NOTE_OPEN),
                [NOTE_OPEN] = TO(NOTE_UNCHECKED) | TO(NOTE_ENDING),
        };
#undef TO
        static const StateTable table = { "hook note", names, moves, N_NOTE_STAGES };
        if (transition_check(&table, note->stage, to, NULL) < 0)
                return;
        log_debug("note %s: %s", note->hook.id, names[to]);
        note->stage = to;
}

/* ---- the result of a check ---- */

static void set_location(const HookNotes *n, Note *note, const DirectoryCheck *l) {
        NoteView *v = &note->view;
        note->is_invisible = !l->found && l->n_locations > 0 && l->n_absent == l->n_locations;
        v->refused = l->why;
        v->s3_prefix = v->prefix_refused = NULL;
        if (!note->is_durable)
                v->may_come = l->is_absent;
        note->is_unseen = l->is_late;
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
                                               : hooknotes_check_prefix(n->config, prefix);
                v->s3_prefix = v->prefix_refused ? NULL : prefix;
        }
}

#define REFUSAL_BYTES_MAX 512 /* behind `accepted`, in the packet */
/* The text for the hook and the row about all that is not granted. @return NULL: nothing is
 * refused, or no memory */
static char *refusal_of(const Note *note) {
        const NoteView *v = &note->view;
        const char *why = v->refused ? v->refused : v->prefix_refused;
        const char *what = v->refused ? v->note->local_output_dir : v->note->s3_output_prefix;
        if (!why)
                return NULL;
        StrBuf text = STRBUF_INIT;
        strbuf_add(&text, why);
        if (what && what[0]) { /* it goes into the log, and out with the bundle */
                strbuf_add(&text, ": ");
                redact_text(&text, what, strlen(what));
        }
        if (note->is_invisible)
                strbuf_add(&text, "; if the hook runs in a container, mount the dump directory "
                                  "from the host");
        char *refusal = strbuf_detach(&text);
        size_t max = REFUSAL_BYTES_MAX;
        if (refusal && strlen(refusal) > max) {
                while (max > 0 &&
                       ((unsigned char)refusal[max] & 0xc0) == 0x80) /* amid a character */
                        max--;
                refusal[max] = '\0';
        }
        return refusal;
}

/* ---- the transaction ---- */

static int add_one(HookNotes *n, Note *note) {
        const NoteView *v = &note->view;
        StrBuf document = STRBUF_INIT;
        int r = hook_note_format(&note->hook, n->patterns, &document);
        if (r == 0)
                r = strbuf_error(&document);
        free(note->stored_refused);
        note->stored_refused = refusal_of(note);
        if (r == 0)
                r = store_note_add(n->context.store,
                                   &(StoredNote){ .id = note->hook.id,
                                                  .received_usec = v->received_usec,
                                                  .uid = v->uid,
                                                  .pid = v->pid,
                                                  .start_ticks = v->start_ticks,
                                                  .by_mailbox = v->by_mailbox,
                                                  .source = note->source,
                                                  .unit_path = note->unit_path,
                                                  .s3_prefix = (char *)v->s3_prefix,
                                                  .refused = note->stored_refused,
                                                  .container = (char *)v->container,
                                                  .document = document.text });
        strbuf_done(&document);
        return r;
}

static int end_one(HookNotes *n, Note *note) {
        int r = 0;
        if (note->view.may_come && !note->view.refused) { /* it came after its note */
                _cleanup_free_ char *refused = refusal_of(note);
                r = store_note_set_unit(n->context.store,
                                        &(StoredNote){ .id = note->hook.id,
                                                       .source = note->source,
                                                       .unit_path = note->unit_path,
                                                       .s3_prefix = (char *)note->view.s3_prefix,
                                                       .refused = refused });
        }
        if (r == 0)
                r = store_note_finish(n->context.store, note->hook.id, realtime_usec(n));
        return r == STORE_E_NOT_FOUND ? 0 : r; /* dropped for room meanwhile */
}

static void write_counts(HookNotes *n) {
        for (size_t i = 0; i < N_NOTE_COUNTERS; i++) {
                NoteCount *c = &n->counts[i];
                if (c->unwritten > 0 &&
                    store_counter_add(n->context.store, c->counter, c->unwritten) == 0)
                        c->unwritten = 0; /* else with the next ones */
        }
}

/* What was counted before a transaction: of the store's own figures, and not written yet. */
typedef struct Counted {
        uint64_t stored, unwritten;
} Counted;

static void save_counts(const HookNotes *n, Counted counted[static N_NOTE_COUNTERS]) {
        for (size_t i = 0; i < N_NOTE_COUNTERS; i++)
                counted[i] = (Counted){ store_counter(n->context.store, n->counts[i].counter),
                                        n->counts[i].unwritten };
}

/* The transaction has failed. What the store has all the same it has in memory. */
static void restore_counts(HookNotes *n, const Counted counted[static N_NOTE_COUNTERS]) {
        for (size_t i = 0; i < N_NOTE_COUNTERS; i++)
                if (store_counter(n->context.store, n->counts[i].counter) <= counted[i].stored)
                        n->counts[i].unwritten = counted[i].unwritten;
}

/* ---- what follows from it ---- */

static void close_note(HookNotes *n, Note *note, const char *answer) {
        if (note->peer) {
                hook_peer_set_userdata(note->peer, NULL);
                if (answer)
                        (void)hook_peer_send(note->peer, answer, -1); /* it may have gone */
                hook_peer_close(note->peer);
        }
        note_remove(n, note);
}

static void refuse(HookNotes *n, Note *note, const char *why) {
        char answer[160];
        (void)snprintf(answer, sizeof answer, "refused %s", why);
        count_and_log_refused(n, note->view.uid, why);
        close_note(n, note, answer);
}

/* The same note came before, by the other way or by the same. Its hook waits for nothing more. */
static void discard_duplicate(HookNotes *n, Note *note) {
        count_note(n, COUNT_DUPLICATE);
        if (note->mailbox_name)
                mailbox_remove(n->mailbox, note->mailbox_name);
        close_note(n, note, "refused this note has come before");
}

static void answer_accepted(HookNotes *n, Note *note) {
        uint64_t passed = boot_usec(n) - hook_peer_since_usec(note->peer);
        uint64_t deadline = n->config->hook.deadline_usec;
        /* A hook makes its directory where there is none. */
        bool is_awaited = note->view.may_come && !note->is_unseen;
        const char *refused = is_awaited ? NULL : note->stored_refused;
        _cleanup_free_ char *text = NULL;
        int r = asprintf(&text, "accepted %" PRIu64 "%s%s",
                         deadline > passed ? deadline - passed : 0, refused ? "\nrefused: " : "",
                         refused ? refused : "");
        if (r >= 0)
                r = hook_peer_send(note->peer, text, -1);
        if (r >= 0)
                r = hook_peer_wait(note->peer, deadline > passed ? deadline - passed + USEC_PER_SEC
                                                                 : USEC_PER_SEC);
        if (r < 0) { /* it does not read, or has gone: what it wrote until now is all there is */
                hook_peer_set_userdata(note->peer, NULL);
                hook_peer_close(TAKE_PTR(note->peer));
                note->has_ended = true;
        }
}

static void log_note(const Note *note) {
        const NoteView *v = &note->view;
        const char *name =
                note->hook.has_error_number ? nrt_status_name(note->hook.error_number) : NULL;
        StrBuf where = STRBUF_INIT;
        if (note->hook.error_location)
                redact_text(&where, note->hook.error_location, strlen(note->hook.error_location));
        log_info("a hook of uid %u reported %s in %s (note %s by %s): %s%s%s%s%s", (unsigned)v->uid,
                 name ? name : "a failure", where.n > 0 ? where.text : "an unknown function",
                 note->hook.id, v->by_mailbox ? "mailbox" : "socket",
                 v->may_come            ? "no files are expected yet: "
                 : note->stored_refused ? "refused, "
                                        : "files are expected in ",
                 note->stored_refused ? note->stored_refused : v->unit_path,
                 v->may_come ? "; it is checked again when the hook has ended" : "",
                 !v->pid_why ? "" : "; its process is not known to this agent: ",
                 !v->pid_why ? "" : v->pid_why);
        strbuf_done(&where);
}

/* Once for each note: when nothing of it that is refused now can still be granted.
 * @param is_over  its hook has ended, and its directory has not come or been found */
static void count_refusal(HookNotes *n, Note *note, bool is_over) {
        const NoteView *v = &note->view;
        bool may_be_found = v->refused && v->may_come && !is_over;
        if (note->is_refusal_counted || may_be_found || !(v->refused || v->prefix_refused))
                return;
        note->is_refusal_counted = true;
        count_note(n, COUNT_REFUSED); /* log_note() has the reason, or log_late() */
        if (note->is_invisible)
                count_note(n, COUNT_UNSEEN);
}

/* @param r  of its addition, in a transaction that is durable */
static void added(HookNotes *n, Note *note, int r) {
        if (r == STORE_E_NOTE_TWICE) {
                discard_duplicate(n, note);
                return;
        }
        if (r != 0 && r != -EFBIG && note->mailbox_name) { /* it stays there: another time */
                n->has_deferred_mail = true;
                close_note(n, note, NULL);
                return;
        }
        if (r != 0) {
                if (note->mailbox_name)
                        mailbox_remove(n->mailbox, note->mailbox_name);
                refuse(n, note,
                       r == STORE_E_NOTES_FULL
                               ? "too many notes are being worked on; keep it in the mailbox"
                       : r == -EFBIG ? "the note is too long"
                                     : "the state cannot be written; keep it in the mailbox");
                return;
        }
        note->is_durable = true;
        note_set_stage(note, NOTE_OPEN);
        if (note->mailbox_name)
                mailbox_remove(n->mailbox, note->mailbox_name);
        if (note->peer)
                answer_accepted(n, note);
        log_note(note);
        count_refusal(n, note, false);
        n->context.on_note(&note->view, n->context.userdata);
        if (note->has_ended)
                end_note(n, note);
}

/* Of one whose directory was not there. */
static void log_late(const Note *note) {
        _cleanup_free_ char *refused = refusal_of(note);
        if (!note->view.may_come)
                return;
        if (refused)
                log_info("note %s: its hook has ended: refused, %s", note->hook.id, refused);
        else
                log_info("note %s: its directory has come: files are expected in %s", note->hook.id,
                         note->view.unit_path);
}

static void ended(HookNotes *n, Note *note) {
        count_refusal(n, note, true);
        log_late(note);
        n->context.on_finished(&note->view, n->context.userdata);
        close_note(n, note, NULL);
}

/* ---- one turn ---- */

typedef struct Written {
        Note *note;
        int result;
} Written;

/* @return how many */
static size_t write_all(HookNotes *n, Written *written) {
        size_t n_written = 0;
        LIST_FOREACH (l, &n->notes) {
                Note *note = CONTAINER_OF(l, Note, link);
                if (note->stage == NOTE_ADDING) {
                        int r = add_one(n, note);
                        if (r == 0)
                                count_note(n, note->view.by_mailbox ? COUNT_BY_MAILBOX
                                                                    : COUNT_BY_SOCKET);
                        written[n_written++] = (Written){ note, r };
                } else if (note->stage == NOTE_ENDING)
                        written[n_written++] = (Written){ note, end_one(n, note) };
        }
        write_counts(n);
        return n_written;
}

static bool is_to_be_written(const HookNotes *n) {
        LIST_FOREACH (l, (ListLink *)&n->notes) {
                NoteStage stage = CONTAINER_OF(l, Note, link)->stage;
                if (stage == NOTE_ADDING || stage == NOTE_ENDING)
                        return true;
        }
        return false;
}

static void commit_notes(HookNotes *n) {
        if (!is_to_be_written(n))
                return;
        _cleanup_free_ Written *written = calloc(n->n_notes, sizeof *written);
        if (!written)
                return; /* the next turn tries again */
        Counted counted[N_NOTE_COUNTERS];
        save_counts(n, counted);
        int r = store_begin(n->context.store);
        size_t n_written = 0;
        if (r == 0) {
                n_written = write_all(n, written);
                r = store_commit(n->context.store);
                if (r < 0)
                        restore_counts(n, counted);
        } else
                LIST_FOREACH (l, &n->notes) {
                        Note *note = CONTAINER_OF(l, Note, link);
                        if (note->stage == NOTE_ADDING || note->stage == NOTE_ENDING)
                                written[n_written++].note = note;
                }
        for (size_t i = 0; i < n_written; i++) {
                Note *note = written[i].note;
                if (note->stage == NOTE_ADDING)
                        added(n, note, r < 0 ? r : written[i].result);
                else /* where that cannot be written, the next start finds it ended */
                        ended(n, note);
        }
        arm_due(n);
        rescan_mailbox(n);
}

static int on_step(sd_event_source *source, void *userdata) {
        (void)source;
        HookNotes *n = userdata;
        check_directories(n);
        commit_notes(n);
        return 0;
}

static void schedule_step(HookNotes *n) {
        (void)sd_event_source_set_enabled(n->step, SD_EVENT_ONESHOT); /* cannot fail for ours */
}

static void end_note(HookNotes *n, Note *note) {
        note->has_ended = true;
        note->due_usec = 0;
        if (note->stage != NOTE_OPEN)
                return; /* as soon as it is durable */
        note_set_stage(note, note->view.may_come ? NOTE_UNCHECKED : NOTE_ENDING);
        schedule_step(n);
}

/* ---- notes without a peer ---- */

static int on_due(sd_event_source *source, uint64_t usec, void *userdata) {
        (void)source, (void)usec;
        HookNotes *n = userdata;
        uint64_t now = boot_usec(n);
        LIST_FOREACH_SAFE (l, &n->notes) {
                Note *note = CONTAINER_OF(l, Note, link);
                if (note->stage == NOTE_OPEN && note->due_usec > 0 && note->due_usec <= now)
                        end_note(n, note);
        }
        arm_due(n);
        return 0;
}

static void arm_due(HookNotes *n) {
        uint64_t next = UINT64_MAX;
        LIST_FOREACH (l, &n->notes) {
                const Note *note = CONTAINER_OF(l, Note, link);
                if (note->stage == NOTE_OPEN && note->due_usec > 0)
                        next = MIN(next, note->due_usec);
        }
        if (next == UINT64_MAX)
                return;
        if (sd_event_source_set_time(n->due, next) >= 0)
                (void)sd_event_source_set_enabled(n->due, SD_EVENT_ONESHOT);
}

/* ---- life ---- */

/* Behind the peers' packets: what has come in one moment goes into one transaction. */
static int start_step(HookNotes *n) {
        int r = sd_event_add_defer(n->context.event, &n->step, on_step, n);
        if (r >= 0)
                r = sd_event_source_set_priority(n->step, SD_EVENT_PRIORITY_NORMAL + 1);
        if (r >= 0)
                r = sd_event_source_set_enabled(n->step, SD_EVENT_OFF);
        if (r >= 0)
                r = sd_event_add_time_relative(n->context.event, &n->due, CLOCK_BOOTTIME, 0,
                                               100 * USEC_PER_MSEC, on_due, n);
        if (r >= 0)
                r = sd_event_source_set_enabled(n->due, SD_EVENT_OFF);
        return r < 0 ? r : start_lanes(n);
}

static void stop_step(HookNotes *n) {
        sd_event_source_disable_unref(n->step);
        sd_event_source_disable_unref(n->due);
        stop_lanes(n);
}

/* ---- input: notes, their senders, and the answers. Hook notes are untrusted input: the directory
 * and the pid that a note names count only where they are the sender's own by what the kernel
 * reports. ---- */

#define LOG_INTERVAL_USEC USEC_PER_MINUTE
#define MAIL_AT_ONCE 128           /* of the mailbox, in memory: 64 KiB each */
#define EARLY_USEC USEC_PER_SEC    /* after a start, a peer may have waited in the queue */
#define YOUNG_USEC USEC_PER_MINUTE /* after a restart, what came before that is over */
static uint64_t boot_usec(const HookNotes *n) {
        return n->context.clock->boottime_usec(n->context.clock);
}

static uint64_t realtime_usec(const HookNotes *n) {
        return n->context.clock->realtime_usec(n->context.clock);
}

static void count_note(HookNotes *n, NoteCounter which) {
        n->counts[which].unwritten++;
}

void hooknotes_count_refused(HookNotes *n, uint64_t n_notes) {
        n->counts[COUNT_REFUSED].unwritten += n_notes;
}

static void count_and_log_refused(HookNotes *n, uid_t uid, const char *why) {
        uint64_t now = boot_usec(n);
        count_note(n, COUNT_REFUSED);
        n->n_unlogged++;
        if (n->logged_usec > 0 && now < n->logged_usec + LOG_INTERVAL_USEC)
                return;
        log_notice("hooks' notes were refused: %" PRIu64 " since the last such message; the latest "
                   "one of uid %u: %s",
                   n->n_unlogged, (unsigned)uid, why);
        n->logged_usec = now;
        n->n_unlogged = 0;
}

/* ---- notes in memory ---- */

static Note *note_free(Note *note) {
        if (!note)
                return NULL;
        hook_note_done(&note->hook);
        directory_check_done(&note->check);
        free(note->mailbox_name);
        free(note->source);
        free(note->unit_path);
        free(note->stored_refused);
        free(note);
        return NULL;
}

static void note_remove(HookNotes *n, Note *note) {
        list_remove(&note->link);
        n->n_notes--;
        n->n_mail -= note->view.by_mailbox;
        note_free(note);
}

/* @param view  who it is from */
static int note_new(Note **ret, HookNotes *n, HookNote *hook, const NoteView *view) {
        Note *note = calloc(1, sizeof *note);
        if (!note)
                return -ENOMEM;
        *note = (Note){ .owner = n, .hook = *hook, .view = *view, .since_usec = boot_usec(n) };
        *hook = (HookNote){ 0 }; /* it is the note's now */
        note->view.note = &note->hook;
        list_append(&n->notes, &note->link);
        n->n_notes++;
        n->n_mail += view->by_mailbox;
        *ret = note;
        return 0;
}

static Note *find_note(const HookNotes *n, const char *id) {
        LIST_FOREACH (l, (ListLink *)&n->notes) {
                Note *note = CONTAINER_OF(l, Note, link);
                if (strcmp(note->hook.id, id) == 0)
                        return note;
        }
        return NULL;
}

/* ---- who it is about ---- */

/* Only what its hook descends from: all processes are searched by the probe, which may see
 * them (collectors/host/pids.h). */
static const char *find_process(const HookNotes *n, Note *note) {
        NoteView *v = &note->view;
        uint64_t inner;
        if (v->by_mailbox)
                return "the note came by the mailbox, and its hook has ended";
        if (v->hook_pid == 0)
                return "the hook runs in a pid namespace that this agent cannot see";
        if (pids_container(n->config->snapshot.proc_root, v->hook_pid, note->container))
                v->container = note->container;
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
                /* the supervisor sees more; where it finds none, its incident reports it */
                return NULL;
        return r == 0               ? NULL
               : r == PIDS_E_HIDDEN ? "other users' processes are hidden from this agent"
               : r > 0 ? "no process of its user that the hook descends from has this pid"
                       : "the hook's process cannot be read";
}

/* A socket that systemd holds has let in hooks before we were there: the number of one that has
 * ended may be another's by now. */
static bool is_peer_unknown(const HookNotes *n, const HookPeer *p) {
        return hook_peer_since_usec(p) < n->begun_usec + EARLY_USEC && hook_peer_has_hung_up(p);
}

/* ---- the socket ---- */

static void refuse_peer(HookNotes *n, HookPeer *p, const char *why) {
        char answer[200];
        (void)snprintf(answer, sizeof answer, "refused %s", why);
        count_and_log_refused(n, hook_peer_uid(p), why);
        (void)hook_peer_send(p, answer, -1); /* it may have gone */
        hook_peer_close(p);
}

static void on_note(HookNotes *n, HookPeer *p, const char *data, size_t size) {
        HookNote hook = { 0 };
        const char *why = "it is no note";
        Note *note;
        int r = hook_note_parse(data, size, n->patterns, &hook, &why);
        if (r != 0) {
                refuse_peer(n, p, r > 0 ? why : "out of memory");
                return;
        }
        if (find_note(n, hook.id)) {
                hook_note_done(&hook);
                count_note(n, COUNT_DUPLICATE);
                (void)hook_peer_send(p, "refused this note has come before", -1); /* as above */
                hook_peer_close(p);
                return;
        }
        if (!note_ratelimit_consume(&n->allowance, hook_peer_uid(p), boot_usec(n))) {
                hook_note_done(&hook);
                refuse_peer(n, p, "this user has sent too many notes; keep it in the mailbox");
                return;
        }
        bool is_unknown = is_peer_unknown(n, p);
        r = note_new(&note, n, &hook,
                     &(NoteView){ .received_usec = realtime_usec(n),
                                  .uid = hook_peer_uid(p),
                                  .hook_pid = is_unknown ? 0 : hook_peer_pid(p) });
        if (r < 0) {
                hook_note_done(&hook);
                refuse_peer(n, p, "out of memory");
                return;
        }
        note->peer = p;
        hook_peer_set_userdata(p, note);
        note->view.pid_why = is_unknown ? "the hook had ended before this agent came to its note"
                                        : find_process(n, note);
        /* It may hang up any time, and is bounded by what it may wait for: no longer by a second.
         */
        (void)hook_peer_wait(p, n->config->hook.deadline_usec + USEC_PER_SEC);
        schedule_step(n);
}

/* What it has not taken back it has promised, also when it died. */
static void note_promises(Note *note, const HookFinish *finish) {
        size_t n = 0;
        if (note->hook.record_name && !finish->without_record)
                note->view.promised[n++] = note->hook.record_name;
        if (note->hook.snapshot_name && !finish->without_snapshot)
                note->view.promised[n] = note->hook.snapshot_name;
}

/* Without a peer it ends by itself. */
static void detach_peer(HookNotes *n, Note *note) {
        hook_peer_set_userdata(note->peer, NULL);
        note->peer = NULL;
        end_note(n, note);
}

static void on_packet(HookPeer *p, const char *data, size_t size, void *userdata) {
        HookNotes *n = userdata;
        Note *note = hook_peer_userdata(p);
        if (!note) {
                on_note(n, p, data, size);
                return;
        }
        HookFinish finish = { 0 };
        if (!hook_finish_parse(data, size, &finish))
                count_and_log_refused(n, note->view.uid, "a hook sent an unknown message");
        note_promises(note, &finish);
        detach_peer(n, note);
        hook_peer_close(p);
}

static void on_gone(HookPeer *p, void *userdata) {
        Note *note = hook_peer_userdata(p);
        if (!note)
                return;
        note_promises(note, &(HookFinish){ 0 }); /* it died, or hung */
        detach_peer(userdata, note);
}

static void on_refused(uid_t uid, const char *why, void *userdata) {
        count_and_log_refused(userdata, uid, why);
}

/* ---- the mailbox ---- */

static bool is_being_read(const HookNotes *n, const char *name) {
        LIST_FOREACH (l, (ListLink *)&n->notes) {
                const Note *note = CONTAINER_OF(l, Note, link);
                if (note->mailbox_name && strcmp(note->mailbox_name, name) == 0)
                        return true;
        }
        return false;
}

/* Its hook found no agent, and may still be at work: no longer than it may be anyway. */
static uint64_t due_of_mail(const HookNotes *n, uint64_t written_usec) {
        uint64_t now = realtime_usec(n), may = n->config->hook.deadline_usec + USEC_PER_SEC;
        uint64_t passed = now > written_usec ? now - written_usec : 0;
        return boot_usec(n) + (passed < may ? may - passed : 0);
}

static void discard(HookNotes *n, const Mail *mail, const char *why) {
        count_and_log_refused(n, mail->uid, why);
        mailbox_remove(n->mailbox, mail->name);
}

static void on_mail(const Mail *mail, void *userdata) {
        HookNotes *n = userdata;
        HookNote hook = { 0 };
        const char *why = "it is no note";
        Note *note;
        if (is_being_read(n, mail->name))
                return;
        if (n->n_mail >= MAIL_AT_ONCE) {
                n->has_deferred_mail = true;
                return;
        }
        int r = hook_note_parse(mail->data, mail->n, n->patterns, &hook, &why);
        if (r > 0)
                discard(n, mail, why);
        if (r != 0)
                return; /* no memory: another time */
        if (find_note(n, hook.id)) {
                count_note(n, COUNT_DUPLICATE);
                mailbox_remove(n->mailbox, mail->name);
        } else if (note_ratelimit_consume(&n->allowance, mail->uid, boot_usec(n)) &&
                   note_new(&note, n, &hook,
                            &(NoteView){ .received_usec = realtime_usec(n),
                                         .uid = mail->uid,
                                         .by_mailbox = true }) == 0) {
                note->mailbox_name = strdup(mail->name); /* without it the next scan drops it */
                note->view.pid_why = find_process(n, note);
                note->due_usec = due_of_mail(n, mail->written_usec);
                schedule_step(n);
        }
        hook_note_done(&hook);
}

static void rescan_mailbox(HookNotes *n) {
        if (!n->mailbox || !n->has_deferred_mail || n->n_mail > MAIL_AT_ONCE / 2 ||
            store_last_error(n->context.store) < 0)
                return;
        n->has_deferred_mail = false;
        mailbox_rescan(n->mailbox);
}

/* ---- the snapshot ---- */

void hooknotes_report_snapshot(HookNotes *n, const char *note_id, int fd, const char *reason) {
        Note *note = find_note(n, note_id);
        char text[256];
        if (!note || note->is_snapshot_reported)
                return;
        note->is_snapshot_reported = true;
        histogram_add(&n->seconds, (double)(boot_usec(n) - note->since_usec) / 1e6);
        if (!note->peer)
                return;
        if (fd < 0)
                (void)snprintf(text, sizeof text, "snapshot none %s",
                               reason ? reason : "there is none");
        /* It may have gone: then its last packet is still to be read, and after that its end. */
        (void)hook_peer_send(note->peer, fd < 0 ? text : "snapshot done", fd);
}

/* ---- after a restart ---- */

static int on_unfinished(const StoredNote *s, void *userdata) {
        HookNotes *n = userdata;
        HookNote hook = { 0 };
        const char *why;
        Note *note;
        uint64_t now = realtime_usec(n);
        if (find_note(n, s->id))
                return 0; /* it came since */
        bool is_young = now < s->received_usec + YOUNG_USEC && n->n_notes < MAIL_AT_ONCE;
        if (!is_young ||
            hook_note_parse(s->document, strlen(s->document), n->patterns, &hook, &why) != 0)
                return store_note_finish(n->context.store, s->id, now) < 0 ? 1 : 0;
        if (note_new(&note, n, &hook,
                     &(NoteView){ .received_usec = s->received_usec,
                                  .uid = s->uid,
                                  .by_mailbox = s->by_mailbox,
                                  .pid = s->pid,
                                  .start_ticks = s->start_ticks,
                                  .pid_why = s->pid ? NULL : "this agent was restarted" }) < 0) {
                hook_note_done(&hook);
                return 1;
        }
        note_set_stage(note, NOTE_OPEN);
        note->is_durable = true;
        note->due_usec = due_of_mail(n, s->received_usec);
        note->source = s->source ? strdup(s->source) : NULL;
        note->unit_path = s->unit_path ? strdup(s->unit_path) : NULL;
        note->stored_refused = s->refused ? strdup(s->refused) : NULL;
        note->view.source = note->source;
        note->view.unit_path = note->unit_path;
        note->view.refused = s->source ? NULL : note->stored_refused;
        note->view.may_come = !s->source; /* it may have come, or may yet */
        note->is_refusal_counted = true;  /* by the agent that accepted it */
        note->view.s3_prefix = s->s3_prefix ? note->hook.s3_output_prefix : NULL;
        return 0;
}

/* Their hooks have lost their connection. What was begun for them is begun again. */
static int on_start(sd_event_source *source, void *userdata) {
        (void)source;
        HookNotes *n = userdata;
        int r = store_begin(n->context.store);
        if (r == 0) {
                r = store_note_list_open(n->context.store, on_unfinished, n);
                int committed = store_commit(n->context.store);
                r = r < 0 ? r : committed;
        }
        if (r < 0)
                log_warning(r, "cannot go through the notes of an earlier run");
        LIST_FOREACH (l, &n->notes) {
                const Note *note = CONTAINER_OF(l, Note, link);
                if (note->stage == NOTE_OPEN && !note->peer)
                        n->context.on_note(&note->view, n->context.userdata);
        }
        arm_due(n);
        return 0;
}

/* ---- life ---- */

static const char *open_mailbox(HookNotes *n) {
        const MailboxCallbacks callbacks = { on_mail, on_refused, n };
        const char *path = n->config->hook.mailbox;
        int r = mailbox_new(&n->mailbox, n->context.event, path, &callbacks);
        if (r >= 0)
                return NULL;
        log_warning(r,
                    "cannot use the mailbox '%s': what hooks leave while the agent is away is not "
                    "heard; make it a directory of this agent's user, or set hook.mailbox",
                    path);
        return "the mailbox cannot be used";
}

void hooknotes_rebind(HookNotes *n, const Config *config) {
        static char *const none[] = { NULL };
        n->config = config;
        n->patterns =
                config->snapshot.environment.items ? config->snapshot.environment.items : none;
}

static int start_input(HookNotes *n, int fd) {
        const HookSocketOptions options = { NOTE_MAX_BYTES, on_packet, on_gone, on_refused, n };
        int r = start_step(n);
        if (r >= 0)
                r = sd_event_add_defer(n->context.event, &n->start, on_start, n);
        if (r >= 0 && fd >= 0)
                r = hook_socket_new(&n->socket, n->context.event, fd, &options);
        if (r < 0)
                return r;
        n->trouble = open_mailbox(n);
        if (fd < 0)
                n->trouble = "the socket cannot be used";
        return 0;
}

int hooknotes_new(HookNotes **ret, const HookNotesContext *context, const Config *config, int fd) {
        static const double le[HISTOGRAM_BUCKETS] = { 0.005, 0.01, 0.025, 0.05, 0.1, 0.25,
                                                      0.5,   1,    2,     5,    10,  30 };
        HookNotes *n = calloc(1, sizeof *n);
        if (!n)
                return -ENOMEM;
        *n = (HookNotes){ .context = *context };
        n->begun_usec = boot_usec(n);
        n->counts[COUNT_BY_SOCKET].counter = "hook_notes:socket";
        n->counts[COUNT_BY_MAILBOX].counter = "hook_notes:mailbox";
        n->counts[COUNT_REFUSED].counter = "hook_notes:refused";
        n->counts[COUNT_DUPLICATE].counter = "hook_notes:twice";
        n->counts[COUNT_UNSEEN].counter = "hook_notes:unseen";
        memcpy(n->seconds.le, le, sizeof le);
        list_init(&n->notes);
        hooknotes_rebind(n, config);
        int r = start_input(n, fd);
        if (r < 0) {
                hooknotes_free(n);
                return r;
        }
        *ret = n;
        return 0;
}

HookNotes *hooknotes_free(HookNotes *n) {
        if (!n)
                return NULL;
        write_counts(n);
        n->socket = hook_socket_free(n->socket); /* their hooks see it, and continue alone */
        n->mailbox = mailbox_free(n->mailbox);
        sd_event_source_disable_unref(n->start);
        stop_step(n);
        LIST_FOREACH_SAFE (l, &n->notes)
                note_free(CONTAINER_OF(l, Note, link));
        free(n);
        return NULL;
}

bool hooknotes_is_idle(const HookNotes *n) {
        return n->n_notes == 0 && (!n->mailbox || mailbox_is_idle(n->mailbox));
}

static uint64_t figure(const HookNotes *n, NoteCounter which) {
        return store_counter(n->context.store, n->counts[which].counter) +
               n->counts[which].unwritten;
}

static uint64_t n_awaited(const HookNotes *n) {
        uint64_t ret = 0;
        LIST_FOREACH (l, (ListLink *)&n->notes)
                ret += CONTAINER_OF(l, Note, link)->view.may_come;
        return ret;
}

void hooknotes_stats(const HookNotes *n, HookNotesStats *ret) {
        *ret = (HookNotesStats){ .n_socket = figure(n, COUNT_BY_SOCKET),
                                 .n_mailbox = figure(n, COUNT_BY_MAILBOX),
                                 .n_refused = figure(n, COUNT_REFUSED),
                                 .n_duplicates = figure(n, COUNT_DUPLICATE),
                                 .n_unseen = figure(n, COUNT_UNSEEN),
                                 .n_open = n->socket ? hook_socket_n_open(n->socket) : 0,
                                 .n_awaited = n_awaited(n),
                                 .trouble = n->trouble,
                                 .seconds = n->seconds };
}
