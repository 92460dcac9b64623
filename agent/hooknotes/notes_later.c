/* What is found out about a note after it was accepted: its snapshot, which its hook waits for, and its place, where that is not on this machine. */
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "agent/hooknotes/notes_private.h"

/* ---- the answer to the hook ---- */

static void measure(Notes *n, const Note *note) {
        histogram_add(&n->seconds, (double)(notes_boot_usec(n) - note->since_usec) / 1e6);
}

static void tell(Notes *n, Note *note, int fd, const char *reason) {
        char text[256];
        note->is_told = true;
        measure(n, note);
        if (!note->peer)
                return;
        if (fd < 0)
                (void)snprintf(text, sizeof text, "snapshot none %s",
                               reason ? reason : "there is none");
        /* It may have gone: then its last word is still to be heard, and after that its end. */
        (void)hook_peer_send(note->peer, fd < 0 ? text : "snapshot done", fd);
}

/* @param fd, reason  as of notes_tell_snapshot() */
static void keep_answer(Note *note, int fd, const char *reason) {
        note_held_done(note);
        note->has_held = true;
        note->held_fd = fd >= 0 ? fcntl(fd, F_DUPFD_CLOEXEC, 3) : -1;
        note->held_reason = reason ? strdup(reason) : NULL;
}

void notes_tell_snapshot(Notes *n, const char *note_id, int fd, const char *reason) {
        Note *note = notes_find(n, note_id);
        if (!note || note->is_told)
                return;
        if (note->is_held)
                keep_answer(note, fd, reason);
        else
                tell(n, note, fd, reason);
}

/* ---- a hook that is held ---- */

void note_held_done(Note *note) {
        if (note->held_fd >= 0)
                (void)close(note->held_fd);
        note->held_fd = -1;
        free(note->held_reason);
        note->held_reason = NULL;
}

static void release(Note *note) {
        note->is_held = false;
        note->hold = sd_event_source_disable_unref(note->hold);
        if (note->has_held)
                tell(note->owner, note, note->held_fd, note->held_reason);
        note_held_done(note);
}

static int on_held_for_long(sd_event_source *source, uint64_t usec, void *userdata) {
        (void)source, (void)usec;
        release(userdata);
        return 0;
}

void notes_hold(Notes *n, const char *note_id) {
        Note *note = notes_find(n, note_id);
        if (!note || !note->peer || note->is_told || note->is_held)
                return;
        uint64_t deadline =
                n->config->hook
                        .deadline_usec; /* its copy of the snapshot needs the rest; the bundle has one anyway */
        int r = sd_event_add_time_relative(n->context.event, &note->hold, CLOCK_MONOTONIC,
                                           deadline - deadline / 8, USEC_PER_MSEC, on_held_for_long,
                                           note);
        note->is_held = r >= 0; /* else it is told at once */
}

void notes_release(Notes *n, const char *note_id) {
        Note *note = notes_find(n, note_id);
        if (note && note->is_held)
                release(note);
}

/* ---- found elsewhere ---- */

static int take_place(Note *note, const NotesPlaced *p, const char *prefix) {
        char *source = strdup(p->source), *unit_path = strdup(p->unit_path);
        if (!source || !unit_path) {
                free(source);
                free(unit_path);
                return -ENOMEM;
        }
        free(note->source);
        free(note->unit_path);
        note->view.source = note->source = source;
        note->view.unit_path = note->unit_path = unit_path;
        note->view.refused = NULL;
        note->view.s3_prefix = prefix ? note->hook.s3_output_prefix : NULL;
        note->view.may_come = false;
        note->is_elsewhere = true;
        if (p->container) {
                (void)snprintf(note->container, sizeof note->container, "%s", p->container);
                note->view.container = note->container;
        }
        return 0;
}

int notes_set_place(Notes *n, const NotesPlaced *p) {
        Note *note = notes_find(n, p->note);
        const char *why = p->s3_prefix ? notes_prefix_judge(n->config, p->s3_prefix) : NULL;
        const char *prefix = why ? NULL : p->s3_prefix;
        int r = note ? take_place(note, p, prefix) : 0;
        if (note)
                note->view.prefix_refused = why;
        if (r == 0)
                r = store_note_set_unit(n->context.store,
                                        &(StoredNote){ .id = (char *)p->note,
                                                       .source = (char *)p->source,
                                                       .unit_path = (char *)p->unit_path,
                                                       .s3_prefix = (char *)prefix,
                                                       .refused = (char *)why,
                                                       .container = (char *)p->container });
        return r;
}
