/* Received notes in memory: their stages, their ends, and the counts of them.
 *
 * note.h draws the stages. A note is removed from memory when it is refused, when it was received
 * before, or when its end is stored; the row in the store stays. */
#include "agent/hooknotes/note.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "lib/base/cleanup.h"
#include "lib/base/list.h"
#include "lib/base/log.h"
#include "lib/base/transition.h"

#define LOG_INTERVAL_USEC USEC_PER_MINUTE

/* ---- counts ---- */

static const char *const counters[N_NOTE_COUNTERS] = {
        /* in the store */
        [COUNT_BY_SOCKET] = "hook_notes:socket", [COUNT_BY_MAILBOX] = "hook_notes:mailbox",
        [COUNT_REFUSED] = "hook_notes:refused",  [COUNT_DUPLICATE] = "hook_notes:twice",
        [COUNT_UNSEEN] = "hook_notes:unseen",
};

void note_count(HookNotes *n, NoteCounter which) {
        n->counts[which]++;
}

void note_count_refused(HookNotes *n, const Owner *o, const char *why) {
        char text[OWNER_TEXT_SIZE];
        uint64_t now = hooknotes_boot_usec(n);
        note_count(n, COUNT_REFUSED);
        if (!why)
                return;
        n->n_unlogged++;
        if (n->logged_usec > 0 && now < n->logged_usec + LOG_INTERVAL_USEC)
                return;
        log_notice("hooks' notes were refused: %" PRIu64 " since the last such message; the latest "
                   "one of %s: %s",
                   n->n_unlogged, owner_text(o, text), why);
        n->logged_usec = now;
        n->n_unlogged = 0;
}

void note_write_counts(HookNotes *n) {
        for (size_t i = 0; i < N_NOTE_COUNTERS; i++)
                if (n->counts[i] > 0 &&
                    store_counter_add(n->context.store, counters[i], n->counts[i]) == 0)
                        n->counts[i] = 0; /* else with the next ones */
}

uint64_t note_count_total(const HookNotes *n, NoteCounter which) {
        return store_counter(n->context.store, counters[which]) + n->counts[which];
}

/* ---- in memory ---- */

void note_free(Note *note) {
        if (!note)
                return;
        bound_release(&note->unparsed);
        hook_note_done(&note->hook);
        free(note->data);
        free(note->document);
        free(note->mailbox_name);
        free(note->source);
        free(note->unit_path);
        free(note->stored_refused);
        free(note);
}

void note_remove(HookNotes *n, Note *note) {
        LIST_FOREACH_ITEM (CheckJob, c, link, &n->checks.hung)
                if (c->note == note)
                        c->note = NULL;
        list_remove(&note->link);
        n->n_notes--;
        n->n_mail -= note->view.by_mailbox;
        note_free(note);
}

int note_new(Note **ret, HookNotes *n, const char *data, size_t n_data, const NoteView *view) {
        Note *note = calloc(1, sizeof *note);
        char *copy = note ? malloc(n_data + 1) : NULL;
        if (!copy) {
                free(note);
                return -ENOMEM;
        }
        memcpy(copy, data, n_data);
        *note = (Note){ .owner = n,
                        .data = copy,
                        .n_data = n_data,
                        .view = *view,
                        .since_usec = hooknotes_boot_usec(n) };
        note->view.note = &note->hook;
        list_append(&n->notes, &note->link);
        n->n_notes++;
        n->n_mail += view->by_mailbox;
        *ret = note;
        return 0;
}

Note *note_find(const HookNotes *n, const char *id) {
        LIST_FOREACH_ITEM (Note, note, link, &n->notes)
                if (strcmp(note->hook.id, id) == 0)
                        return note;
        return NULL;
}

/* ---- stages ---- */

void note_set_stage(Note *note, NoteStage to) {
        static const char *const names[N_NOTE_STAGES] = {
                [NOTE_UNPARSED] = "unparsed",   [NOTE_PARSING] = "parsing",
                [NOTE_UNCHECKED] = "unchecked", [NOTE_CHECKING] = "checking",
                [NOTE_ADDING] = "adding",       [NOTE_OPEN] = "open",
                [NOTE_ENDING] = "ending",
        };
#define TO(stage) (1U << (stage))
        static const unsigned moves[N_NOTE_STAGES] = {
                /* a note of an earlier run is open at once */
                [NOTE_UNPARSED] = TO(NOTE_PARSING) | TO(NOTE_OPEN),
                [NOTE_PARSING] = TO(NOTE_UNCHECKED) | TO(NOTE_UNPARSED),
                [NOTE_UNCHECKED] =
                        TO(NOTE_CHECKING) | TO(NOTE_ADDING) | TO(NOTE_ENDING) | TO(NOTE_OPEN),
                [NOTE_CHECKING] =
                        TO(NOTE_UNCHECKED) | TO(NOTE_ADDING) | TO(NOTE_ENDING) | TO(NOTE_OPEN),
                [NOTE_ADDING] = TO(NOTE_OPEN),
                [NOTE_OPEN] = TO(NOTE_UNCHECKED) | TO(NOTE_ENDING),
        };
#undef TO
        static const StateTable table = { "hook note", names, moves, N_NOTE_STAGES };
        if (transition_check(&table, note->stage, to, NULL) < 0)
                return;
        if (note->hook.id[0]) /* it is known once the note is parsed */
                log_debug("note %s: %s", note->hook.id, names[to]);
        note->stage = to;
}

void note_set_end(Note *note, NoteEnd to) {
#define TO(end) (1U << (end))
        static const char *const names[N_NOTE_ENDS] = { "running", "over", "finished", "late" };
        static const unsigned moves[N_NOTE_ENDS] = {
                [NOTE_RUNNING] = TO(NOTE_OVER) | TO(NOTE_FINISHED) | TO(NOTE_LATE),
                [NOTE_OVER] = TO(NOTE_FINISHED) | TO(NOTE_LATE),
        };
#undef TO
        static const StateTable table = { "end of a hook", names, moves, N_NOTE_ENDS };
        if (transition_check(&table, note->end, to, NULL) == 0)
                note->end = to;
}

void note_schedule_step(HookNotes *n) {
        (void)sd_event_source_set_enabled(n->step, SD_EVENT_ONESHOT); /* cannot fail for ours */
}

void note_end(HookNotes *n, Note *note) {
        if (note->end == NOTE_RUNNING)
                note_set_end(note, NOTE_OVER);
        note->due_usec = 0;
        if (note->stage != NOTE_OPEN)
                return; /* it ends when it is durable */
        note_set_stage(note, note->view.may_come ? NOTE_UNCHECKED : NOTE_ENDING);
        note_schedule_step(n);
}

void note_arm_due(HookNotes *n) {
        uint64_t next = UINT64_MAX;
        LIST_FOREACH_ITEM (const Note, note, link, &n->notes)
                if (note->stage == NOTE_OPEN && note->due_usec > 0)
                        next = MIN(next, note->due_usec);
        if (next == UINT64_MAX)
                return;
        if (sd_event_source_set_time(n->due, next) >= 0)
                (void)sd_event_source_set_enabled(n->due, SD_EVENT_ONESHOT);
}

/* ---- the end in memory ---- */

void note_close(HookNotes *n, Note *note, const char *answer) {
        if (note->peer) {
                note->peer->userdata = NULL;
                if (answer)
                        (void)hook_peer_send(note->peer, answer, -1); /* it may have ended */
                hook_peer_close(note->peer);
        }
        note_remove(n, note);
}

void note_refuse(HookNotes *n, Note *note, const char *why) {
        char answer[160];
        (void)snprintf(answer, sizeof answer, "refused %s", why);
        note_count_refused(n, &note->view.owner, why);
        note_close(n, note, answer);
}

void note_discard_duplicate(HookNotes *n, Note *note) {
        note_count(n, COUNT_DUPLICATE);
        if (note->mailbox_name)
                mailbox_remove(n->mailbox, note->mailbox_name);
        note_close(n, note, "refused this note has come before");
}
