/* From the desk into the store: all whose directory has been looked at by then goes into one transaction. What a hook is told is durable
 * before. */
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "agent/hooknotes/notes_private.h"
#include "lib/base/log.h"
#include "lib/base/path.h"
#include "lib/base/redact.h"
#include "lib/neuron/nrt_status.h"

/* ---- a note's way ---- */

void note_set_stage(Note *note, NoteStage to) {
        static const char *const names[N_NOTE_STAGES] = {
                [NOTE_COMING] = "coming", [NOTE_LOOKED] = "looked at", [NOTE_ADDING] = "adding",
                [NOTE_OPEN] = "open",     [NOTE_ENDING] = "ending",
        };
#define TO(stage) (1U << (stage))
        static const unsigned moves[N_NOTE_STAGES] = {
                /* after a restart it is open at once */
                [NOTE_COMING] = TO(NOTE_LOOKED) | TO(NOTE_ADDING) | TO(NOTE_ENDING) | TO(NOTE_OPEN),
                [NOTE_LOOKED] = TO(NOTE_COMING),
                [NOTE_ADDING] = TO(NOTE_OPEN),
                [NOTE_OPEN] = TO(NOTE_COMING) | TO(NOTE_ENDING),
        };
        if (!(moves[note->stage] & TO(to))) {
                log_error(0,
                          "note %s: there is no move from '%s' to '%s': left out, this is a defect "
                          "of the agent",
                          note->hook.id, names[note->stage], names[to]);
                return;
        }
#undef TO
        log_debug("note %s: %s", note->hook.id, names[to]);
        note->stage = to;
}

/* ---- what a look has shown ---- */

void notes_place(const Notes *n, Note *note, const NotesLook *l) {
        NoteView *v = &note->view;
        note->is_invisible = !l->found && l->n_places > 0 && l->n_absent == l->n_places;
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
                        v->refused = "this agent lacks memory";
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
                                               : notes_prefix_judge(n->config, prefix);
                v->s3_prefix = v->prefix_refused ? NULL : prefix;
        }
}

#define REFUSAL_BYTES_MAX 512 /* behind `accepted`, in a packet that a hook reads whole */

/* What the hook and the row are told of all that is not granted. @return NULL: nothing is refused, or no memory */
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
        char *refusal = strbuf_take(&text);
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

static int add_one(Notes *n, Note *note) {
        const NoteView *v = &note->view;
        StrBuf document = STRBUF_INIT;
        int r = hook_note_compose(&note->hook, n->patterns, &document);
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

static int end_one(Notes *n, Note *note) {
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
                r = store_note_finish(n->context.store, note->hook.id, notes_real_usec(n));
        return r == STORE_E_NOT_FOUND ? 0 : r; /* dropped for room meanwhile */
}

void notes_write_counts(Notes *n) {
        for (size_t i = 0; i < N_NOTES_COUNTERS; i++) {
                NotesCount *c = &n->counts[i];
                if (c->unwritten > 0 &&
                    store_counter_add(n->context.store, c->counter, c->unwritten) == 0)
                        c->unwritten = 0; /* else with the next ones */
        }
}

/* What was counted before a transaction: of the store's own figures, and not written yet. */
typedef struct Counted {
        uint64_t stored, unwritten;
} Counted;

static void see_counts(const Notes *n, Counted counted[static N_NOTES_COUNTERS]) {
        for (size_t i = 0; i < N_NOTES_COUNTERS; i++)
                counted[i] = (Counted){ store_counter(n->context.store, n->counts[i].counter),
                                        n->counts[i].unwritten };
}

/* The transaction has failed. What the store has all the same it has in memory. */
static void take_back_counts(Notes *n, const Counted counted[static N_NOTES_COUNTERS]) {
        for (size_t i = 0; i < N_NOTES_COUNTERS; i++)
                if (store_counter(n->context.store, n->counts[i].counter) <= counted[i].stored)
                        n->counts[i].unwritten = counted[i].unwritten;
}

/* ---- what follows from it ---- */

static void drop(Notes *n, Note *note, const char *answer) {
        if (note->peer) {
                hook_peer_set_userdata(note->peer, NULL);
                if (answer)
                        (void)hook_peer_send(note->peer, answer, -1); /* it may have gone */
                hook_peer_close(note->peer);
        }
        note_remove(n, note);
}

static void refuse(Notes *n, Note *note, const char *why) {
        char answer[160];
        (void)snprintf(answer, sizeof answer, "refused %s", why);
        notes_tell_refused(n, note->view.uid, why);
        drop(n, note, answer);
}

/* The same note came before, by the other way or by the same. Its hook waits for nothing more. */
static void drop_twice(Notes *n, Note *note) {
        notes_count(n, NOTES_TWICE);
        if (note->mailbox_name)
                notes_mailbox_remove(n->mailbox, note->mailbox_name);
        drop(n, note, "refused this note has come before");
}

static void answer_accepted(Notes *n, Note *note) {
        uint64_t passed = notes_boot_usec(n) - hook_peer_since_usec(note->peer);
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
        log_info("a hook of uid %u has told of %s in %s (note %s by %s): %s%s%s%s%s",
                 (unsigned)v->uid, name ? name : "a failure",
                 where.n > 0 ? where.text : "an unknown function", note->hook.id,
                 v->by_mailbox ? "mailbox" : "socket",
                 v->may_come            ? "no files are expected yet: "
                 : note->stored_refused ? "refused, "
                                        : "files are expected in ",
                 note->stored_refused ? note->stored_refused : v->unit_path,
                 v->may_come ? "; it is looked for again when the hook has ended" : "",
                 !v->pid_why ? "" : "; its process is not known to this agent: ",
                 !v->pid_why ? "" : v->pid_why);
        strbuf_done(&where);
}

/* Once for each note: when nothing of it that is refused now can still be granted.
 * @param is_over  its hook has ended, and its directory has not come or been found */
static void count_refusal(Notes *n, Note *note, bool is_over) {
        const NoteView *v = &note->view;
        bool may_be_found = v->refused && v->may_come && !is_over;
        if (note->is_refusal_counted || may_be_found || !(v->refused || v->prefix_refused))
                return;
        note->is_refusal_counted = true;
        notes_count(n, NOTES_REFUSED); /* log_note() has the reason, or log_late() */
        if (note->is_invisible)
                notes_count(n, NOTES_UNSEEN);
}

/* @param r  of its addition, in a transaction that is durable */
static void added(Notes *n, Note *note, int r) {
        if (r == STORE_E_NOTE_TWICE) {
                drop_twice(n, note);
                return;
        }
        if (r != 0 && r != -EFBIG && note->mailbox_name) { /* it stays there: another time */
                n->has_put_off = true;
                drop(n, note, NULL);
                return;
        }
        if (r != 0) {
                if (note->mailbox_name)
                        notes_mailbox_remove(n->mailbox, note->mailbox_name);
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
                notes_mailbox_remove(n->mailbox, note->mailbox_name);
        if (note->peer)
                answer_accepted(n, note);
        log_note(note);
        count_refusal(n, note, false);
        n->context.on_note(&note->view, n->context.userdata);
        if (note->has_ended)
                notes_end(n, note);
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

static void ended(Notes *n, Note *note) {
        count_refusal(n, note, true);
        log_late(note);
        n->context.on_finished(&note->view, n->context.userdata);
        drop(n, note, NULL);
}

/* ---- one turn ---- */

typedef struct Written {
        Note *note;
        int result;
} Written;

/* @return how many */
static size_t write_all(Notes *n, Written *written) {
        size_t n_written = 0;
        LIST_FOREACH (l, &n->notes) {
                Note *note = CONTAINER_OF(l, Note, link);
                if (note->stage == NOTE_ADDING) {
                        int r = add_one(n, note);
                        if (r == 0)
                                notes_count(n, note->view.by_mailbox ? NOTES_BY_MAILBOX
                                                                     : NOTES_BY_SOCKET);
                        written[n_written++] = (Written){ note, r };
                } else if (note->stage == NOTE_ENDING)
                        written[n_written++] = (Written){ note, end_one(n, note) };
        }
        notes_write_counts(n);
        return n_written;
}

static bool is_to_be_written(const Notes *n) {
        LIST_FOREACH (l, (ListLink *)&n->notes) {
                NoteStage stage = CONTAINER_OF(l, Note, link)->stage;
                if (stage == NOTE_ADDING || stage == NOTE_ENDING)
                        return true;
        }
        return false;
}

void notes_commit(Notes *n) {
        if (!is_to_be_written(n))
                return;
        _cleanup_free_ Written *written = calloc(n->n_notes, sizeof *written);
        if (!written)
                return; /* the next turn tries again */
        Counted counted[N_NOTES_COUNTERS];
        see_counts(n, counted);
        int r = store_begin(n->context.store);
        size_t n_written = 0;
        if (r == 0) {
                n_written = write_all(n, written);
                r = store_commit(n->context.store);
                if (r < 0)
                        take_back_counts(n, counted);
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
        notes_arm_due(n);
        notes_look_for_mail(n);
}

static int on_step(sd_event_source *source, void *userdata) {
        (void)source;
        Notes *n = userdata;
        notes_look(n);
        notes_commit(n);
        return 0;
}

void notes_kick(Notes *n) {
        (void)sd_event_source_set_enabled(n->step, SD_EVENT_ONESHOT); /* cannot fail for ours */
}

void notes_end(Notes *n, Note *note) {
        note->has_ended = true;
        note->due_usec = 0;
        if (note->stage != NOTE_OPEN)
                return; /* as soon as it is durable */
        note_set_stage(note, note->view.may_come ? NOTE_COMING : NOTE_ENDING);
        notes_kick(n);
}

/* ---- notes without a peer ---- */

static int on_due(sd_event_source *source, uint64_t usec, void *userdata) {
        (void)source, (void)usec;
        Notes *n = userdata;
        uint64_t now = notes_boot_usec(n);
        LIST_FOREACH_SAFE (l, &n->notes) {
                Note *note = CONTAINER_OF(l, Note, link);
                if (note->stage == NOTE_OPEN && note->due_usec > 0 && note->due_usec <= now)
                        notes_end(n, note);
        }
        notes_arm_due(n);
        return 0;
}

void notes_arm_due(Notes *n) {
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
int notes_step_new(Notes *n) {
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
        return r < 0 ? r : notes_lanes_new(n);
}

void notes_step_done(Notes *n) {
        sd_event_source_disable_unref(n->step);
        sd_event_source_disable_unref(n->due);
        notes_lanes_done(n);
}
