/* Notes and their ends go into the store, and hooks get their answers.
 *
 * Notes that arrive together are one transaction, since a commit waits for the disk. A hook gets
 * `accepted` when its note is durable, never before; a note of the mailbox is removed from there at
 * the same moment. Then the agent learns of the note (on_note), and, when the hook has ended, of
 * its end (on_finished). A note whose unit is refused is stored as well: its row and the answer
 * have the reason. */
#include "agent/hooknotes/note_commit.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "agent/store/store.h"
#include "lib/base/cleanup.h"
#include "lib/base/list.h"
#include "lib/base/log.h"
#include "lib/base/redact.h"
#include "lib/base/strbuf.h"
#include "lib/neuron/nrt_status.h"

#define REFUSAL_BYTES_MAX 512 /* in the packet, after `accepted` */

/* ---- texts ---- */

/* @return what is not granted and why, for the hook and the row; NULL: nothing, or no memory */
static char *refusal_of(const Note *note) {
        const NoteView *v = &note->view;
        const char *why = v->refused ? v->refused : v->prefix_refused;
        const char *what = v->refused ? v->note->local_output_dir : v->note->s3_output_prefix;
        if (!why)
                return NULL;
        StrBuf text = STRBUF_INIT;
        strbuf_add(&text, why);
        if (what && what[0]) { /* goes into the log, and is delivered with the bundle */
                strbuf_add(&text, ": ");
                redact_text(&text, what, strnlen(what, REFUSAL_BYTES_MAX));
        }
        if (note->sight == NOTE_SIGHT_INVISIBLE)
                strbuf_add(&text, "; if the hook runs in a container, mount the dump directory "
                                  "from the host");
        char *refusal = strbuf_detach(&text);
        size_t max = REFUSAL_BYTES_MAX;
        if (refusal && strlen(refusal) > max) {
                while (max > 0 &&
                       ((unsigned char)refusal[max] & 0xc0) == 0x80) /* not inside a character */
                        max--;
                refusal[max] = '\0';
        }
        return refusal;
}

static void log_note(const Note *note) {
        const NoteView *v = &note->view;
        const char *name =
                note->hook.has_error_number ? nrt_status_name(note->hook.error_number) : NULL;
        StrBuf where = STRBUF_INIT;
        char owner[OWNER_TEXT_SIZE];
        if (note->hook.error_location)
                redact_text(&where, note->hook.error_location,
                            strnlen(note->hook.error_location, REFUSAL_BYTES_MAX));
        log_info("a hook of %s reported %s in %s (note %s by %s): %s%s%s%s%s",
                 owner_text(&v->owner, owner), name ? name : "a failure",
                 where.n > 0 ? where.text : "an unknown function", note->hook.id,
                 v->by_mailbox ? "mailbox" : "socket",
                 v->may_come            ? "no files are expected yet: "
                 : note->stored_refused ? "refused, "
                                        : "files are expected in ",
                 note->stored_refused ? note->stored_refused : v->unit_path,
                 v->may_come ? "; it is checked again when the hook has ended, or at hook.deadline"
                             : "",
                 !v->pid_why ? "" : "; its process is not known to this agent: ",
                 !v->pid_why ? "" : v->pid_why);
        strbuf_done(&where);
}

/* For a note whose directory was missing. */
static void log_late(const Note *note) {
        _cleanup_free_ char *refused = refusal_of(note);
        if (!note->view.may_come)
                return;
        if (refused)
                log_info("note %s: %s: refused, %s", note->hook.id,
                         note->end == NOTE_LATE ? "its hook has not ended by hook.deadline"
                                                : "its hook has ended",
                         refused);
        else
                log_info("note %s: its directory exists now: files are expected in %s",
                         note->hook.id, note->view.unit_path);
}

/* ---- rows ---- */

static int add_one(HookNotes *n, Note *note) {
        const NoteView *v = &note->view;
        int r = note->document ? 0 : -EFBIG;
        free(note->stored_refused);
        note->stored_refused = refusal_of(note);
        if (r == 0)
                r = store_note_add(n->context.store,
                                   &(StoredNote){ .id = note->hook.id,
                                                  .received_usec = v->received_usec,
                                                  .uid = v->owner.uid,
                                                  .pid = v->pid,
                                                  .start_ticks = v->start_ticks,
                                                  .by_mailbox = v->by_mailbox,
                                                  .source = note->source,
                                                  .unit_path = note->unit_path,
                                                  .s3_prefix = (char *)v->s3_prefix,
                                                  .refused = note->stored_refused,
                                                  .container = (char *)v->container,
                                                  .document = note->document });
        return r;
}

static int end_one(HookNotes *n, Note *note) {
        int r = 0;
        if (note->view.may_come &&
            !note->view.refused) { /* its directory was created after the note */
                _cleanup_free_ char *refused = refusal_of(note);
                r = store_note_set_unit(n->context.store,
                                        &(StoredNote){ .id = note->hook.id,
                                                       .source = note->source,
                                                       .unit_path = note->unit_path,
                                                       .s3_prefix = (char *)note->view.s3_prefix,
                                                       .refused = refused });
        }
        if (r == 0)
                r = store_note_finish(n->context.store, note->hook.id, hooknotes_realtime_usec(n));
        return r == STORE_E_NOT_FOUND ? 0 : r; /* removed for space meanwhile */
}

static bool is_to_be_written(const Note *note) {
        return note->stage == NOTE_ADDING || note->stage == NOTE_ENDING;
}

/* Writes the notes that are checked and the ends of notes, in one transaction. */
static int write_notes(HookNotes *n) {
        int r = store_begin(n->context.store);
        if (r != 0)
                return r;
        LIST_FOREACH_ITEM (Note, note, link, &n->notes) {
                if (!is_to_be_written(note))
                        continue;
                bool is_new = note->stage == NOTE_ADDING;
                note->result = is_new ? add_one(n, note) : end_one(n, note);
                if (is_new && note->result == 0)
                        note_count(n, note->view.by_mailbox ? COUNT_BY_MAILBOX : COUNT_BY_SOCKET);
        }
        note_write_counts(n);
        return store_commit(n->context.store);
}

static bool has_notes_to_write(const HookNotes *n) {
        LIST_FOREACH (l, (ListLink *)&n->notes)
                if (is_to_be_written(CONTAINER_OF(l, Note, link)))
                        return true;
        return false;
}

/* ---- what follows ---- */

static void answer_accepted(HookNotes *n, Note *note) {
        uint64_t passed = hooknotes_boot_usec(n) - note->peer->since_usec;
        uint64_t deadline = n->config->hook.deadline_usec;
        uint64_t remaining = deadline > passed ? deadline - passed : 0;
        /* A directory that is missing may still be created by the hook. */
        bool is_awaited = note->view.may_come && note->sight != NOTE_SIGHT_UNANSWERED;
        const char *refused = is_awaited ? NULL : note->stored_refused;
        _cleanup_free_ char *text =
                strbuf_format("accepted %" PRIu64 "%s%s", remaining, refused ? "\nrefused: " : "",
                              refused ? refused : "");
        int r = text ? hook_peer_send(note->peer, text, -1) : -ENOMEM;
        if (r >= 0)
                r = hook_peer_wait(note->peer, remaining + USEC_PER_SEC);
        if (r < 0) { /* it does not read, or has ended: it writes no more files */
                note->peer->userdata = NULL;
                hook_peer_close(TAKE_PTR(note->peer));
                note_set_end(note, NOTE_OVER);
        }
}

/* Counts a note as refused, once, as soon as what is refused can no longer be granted.
 * @param is_over  its hook has ended, and its directory is missing */
static void count_refusal(HookNotes *n, Note *note, bool is_over) {
        const NoteView *v = &note->view;
        bool may_be_found = v->refused && v->may_come && !is_over;
        if (note->is_refusal_counted || may_be_found || !(v->refused || v->prefix_refused))
                return;
        note->is_refusal_counted = true;
        note_count(n, COUNT_REFUSED); /* log_note() or log_late() logs the reason */
        if (note->sight == NOTE_SIGHT_INVISIBLE)
                note_count(n, COUNT_UNSEEN);
}

/* @param r  of its addition, in a transaction that is durable */
static void added(HookNotes *n, Note *note, int r) {
        if (r == STORE_E_NOTE_TWICE) {
                note_discard_duplicate(n, note);
                return;
        }
        if (r != 0 && r != -EFBIG && note->mailbox_name) { /* it stays in the mailbox */
                n->has_deferred_mail = true;
                note_close(n, note, NULL);
                return;
        }
        if (r != 0) {
                if (note->mailbox_name)
                        mailbox_remove(n->mailbox, note->mailbox_name);
                note_refuse(n, note,
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
        if (note->end != NOTE_RUNNING)
                note_end(n, note);
}

/* Sets the files that the hook named and did not withdraw, even if the hook was killed. */
static void note_promises(Note *note) {
        size_t n = 0;
        if (note->hook.record_name && !note->finish.without_record)
                note->view.promised[n++] = note->hook.record_name;
        if (note->hook.snapshot_name && !note->finish.without_snapshot)
                note->view.promised[n] = note->hook.snapshot_name;
}

static void ended(HookNotes *n, Note *note) {
        count_refusal(n, note, true);
        log_late(note);
        if (note->end == NOTE_FINISHED || note->end == NOTE_LATE)
                note_promises(note);
        n->context.on_finished(&note->view, n->context.userdata);
        note_close(n, note, NULL);
}

static void rescan_mailbox(HookNotes *n) {
        if (!n->mailbox || !n->has_deferred_mail || n->n_mail > NOTE_MAIL_AT_ONCE / 2 ||
            store_last_error(n->context.store) < 0)
                return;
        n->has_deferred_mail = false;
        mailbox_rescan(n->mailbox);
}

void note_commit(HookNotes *n) {
        uint64_t counts[N_NOTE_COUNTERS];
        if (!has_notes_to_write(n))
                return;
        memcpy(counts, n->counts, sizeof counts);
        int r = write_notes(n);
        if (r != 0) /* nothing was stored, and nothing is counted */
                memcpy(n->counts, counts, sizeof counts);
        LIST_FOREACH_ITEM_SAFE (Note, note, link, &n->notes) {
                if (note->stage == NOTE_ADDING)
                        added(n, note, r != 0 ? r : note->result);
                else if (note->stage == NOTE_ENDING)
                        ended(n, note); /* if its end is not stored, the next start ends it */
        }
        note_arm_due(n);
        rescan_mailbox(n);
}
