/* The desk: what comes in, who it is from, and what its hook is told later. Nothing is believed but what the kernel says: a note names a
 * directory and a pid, and is heard about those only where they are the sender's own. */
#include "agent/hooknotes/notes_private.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "lib/base/log.h"
#include "lib/base/parse.h"

#define SAY_USEC USEC_PER_MINUTE
#define MAIL_AT_ONCE 128           /* of the mailbox, in memory: 64 KiB each */
#define EARLY_USEC USEC_PER_SEC    /* after a start, a peer may have waited in the queue */
#define YOUNG_USEC USEC_PER_MINUTE /* after a restart, what came before that is over */

uint64_t notes_boot_usec(const Notes *n) {
        return n->context.clock->boottime_usec(n->context.clock);
}

uint64_t notes_real_usec(const Notes *n) {
        return n->context.clock->realtime_usec(n->context.clock);
}

void notes_count(Notes *n, NotesCounter which) {
        n->counts[which].unwritten++;
}

void notes_count_refused(Notes *n, uint64_t n_notes) {
        n->counts[NOTES_REFUSED].unwritten += n_notes;
}

void notes_tell_refused(Notes *n, uid_t uid, const char *why) {
        uint64_t now = notes_boot_usec(n);
        notes_count(n, NOTES_REFUSED);
        n->n_unsaid++;
        if (n->said_usec > 0 && now < n->said_usec + SAY_USEC)
                return;
        log_notice("hooks' notes were refused: %" PRIu64 " since this was last said; the latest "
                   "one of uid %u: %s",
                   n->n_unsaid, (unsigned)uid, why);
        n->said_usec = now;
        n->n_unsaid = 0;
}

/* ---- notes in memory ---- */

static Note *note_free(Note *note) {
        if (!note)
                return NULL;
        hook_note_done(&note->hook);
        notes_look_done(&note->look);
        free(note->mailbox_name);
        free(note->source);
        free(note->unit_path);
        free(note->stored_refused);
        free(note);
        return NULL;
}

void note_remove(Notes *n, Note *note) {
        list_remove(&note->link);
        n->n_notes--;
        n->n_mail -= note->view.by_mailbox;
        note_free(note);
}

/* @param view  who it is from */
static int note_new(Note **ret, Notes *n, HookNote *hook, const NoteView *view) {
        Note *note = calloc(1, sizeof *note);
        if (!note)
                return -ENOMEM;
        *note = (Note){
                .owner = n, .hook = *hook, .view = *view, .since_usec = notes_boot_usec(n)
        };
        *hook = (HookNote){ 0 }; /* it is the note's now */
        note->view.note = &note->hook;
        list_append(&n->notes, &note->link);
        n->n_notes++;
        n->n_mail += view->by_mailbox;
        *ret = note;
        return 0;
}

Note *notes_find(const Notes *n, const char *id) {
        LIST_FOREACH (l, (ListLink *)&n->notes) {
                Note *note = CONTAINER_OF(l, Note, link);
                if (strcmp(note->hook.id, id) == 0)
                        return note;
        }
        return NULL;
}

/* ---- who it is about ---- */

/* Only what its hook descends from: to look through all processes is the probe's, which may see them (collectors/host/pids.h). */
static const char *find_process(const Notes *n, Note *note) {
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
        PidsAnswer answer = { 0 };
        int r = pids_resolve_ancestor(&(PidsQuestion){ .proc_root = n->config->snapshot.proc_root,
                                                       .hook_pid = v->hook_pid,
                                                       .inner_pid = (int64_t)inner },
                                      &answer);
        v->pid = answer.pid;
        v->start_ticks = answer.start_ticks;
        if (r > 0 && n->config->snapshot.enabled)
                return NULL; /* the supervisor sees more; where it finds none, its incident says so */
        return r == 0               ? NULL
               : r == PIDS_E_HIDDEN ? "other users' processes are hidden from this agent"
               : r > 0 ? "no process of its user that the hook descends from has this pid"
                       : "the hook's process cannot be looked at";
}

/* A socket that systemd holds has let in hooks before we were there: the number of one that has ended may be another's by now. */
static bool may_be_anybody(const Notes *n, const HookPeer *p) {
        return hook_peer_since_usec(p) < n->begun_usec + EARLY_USEC && hook_peer_has_hung_up(p);
}

/* ---- the socket ---- */

static void turn_away(Notes *n, HookPeer *p, const char *why) {
        char answer[200];
        (void)snprintf(answer, sizeof answer, "refused %s", why);
        notes_tell_refused(n, hook_peer_uid(p), why);
        (void)hook_peer_send(p, answer, -1); /* it may have gone */
        hook_peer_close(p);
}

static void on_note(Notes *n, HookPeer *p, const char *data, size_t size) {
        HookNote hook = { 0 };
        const char *why = "it is no note";
        Note *note;
        int r = hook_note_parse(data, size, n->patterns, &hook, &why);
        if (r != 0) {
                turn_away(n, p, r > 0 ? why : "this agent lacks memory");
                return;
        }
        if (notes_find(n, hook.id)) {
                hook_note_done(&hook);
                notes_count(n, NOTES_TWICE);
                (void)hook_peer_send(p, "refused this note has come before", -1); /* as above */
                hook_peer_close(p);
                return;
        }
        if (!notes_allowance_take(&n->allowance, hook_peer_uid(p), notes_boot_usec(n))) {
                hook_note_done(&hook);
                turn_away(n, p, "this user has sent too many notes; keep it in the mailbox");
                return;
        }
        bool is_unknown = may_be_anybody(n, p);
        r = note_new(&note, n, &hook,
                     &(NoteView){ .received_usec = notes_real_usec(n),
                                  .uid = hook_peer_uid(p),
                                  .hook_pid = is_unknown ? 0 : hook_peer_pid(p) });
        if (r < 0) {
                hook_note_done(&hook);
                turn_away(n, p, "this agent lacks memory");
                return;
        }
        note->peer = p;
        hook_peer_set_userdata(p, note);
        note->view.pid_why = is_unknown ? "the hook had ended before this agent came to its note"
                                        : find_process(n, note);
        /* It may hang up any time, and is bounded by what it may wait for: no longer by a second. */
        (void)hook_peer_wait(p, n->config->hook.deadline_usec + USEC_PER_SEC);
        notes_kick(n);
}

/* What it has not taken back it has promised, also when it died. */
static void note_promises(Note *note, const NotesFinish *finish) {
        size_t n = 0;
        if (note->hook.record_name && !finish->without_record)
                note->view.promised[n++] = note->hook.record_name;
        if (note->hook.snapshot_name && !finish->without_snapshot)
                note->view.promised[n] = note->hook.snapshot_name;
}

/* Without a peer it ends by itself. */
static void lose_peer(Notes *n, Note *note) {
        hook_peer_set_userdata(note->peer, NULL);
        note->peer = NULL;
        notes_end(n, note);
}

static void on_packet(HookPeer *p, const char *data, size_t size, void *userdata) {
        Notes *n = userdata;
        Note *note = hook_peer_userdata(p);
        if (!note) {
                on_note(n, p, data, size);
                return;
        }
        NotesFinish finish = { 0 };
        if (!notes_finish_parse(data, size, &finish))
                notes_tell_refused(n, note->view.uid, "a hook said what nobody understands");
        note_promises(note, &finish);
        lose_peer(n, note);
        hook_peer_close(p);
}

static void on_gone(HookPeer *p, void *userdata) {
        Note *note = hook_peer_userdata(p);
        if (!note)
                return;
        note_promises(note, &(NotesFinish){ 0 }); /* it died, or hung */
        lose_peer(userdata, note);
}

static void on_refused(uid_t uid, const char *why, void *userdata) {
        notes_tell_refused(userdata, uid, why);
}

/* ---- the mailbox ---- */

static bool is_being_read(const Notes *n, const char *name) {
        LIST_FOREACH (l, (ListLink *)&n->notes) {
                const Note *note = CONTAINER_OF(l, Note, link);
                if (note->mailbox_name && strcmp(note->mailbox_name, name) == 0)
                        return true;
        }
        return false;
}

/* Its hook found no agent, and may still be at work: no longer than it may be anyway. */
static uint64_t due_of_mail(const Notes *n, uint64_t written_usec) {
        uint64_t now = notes_real_usec(n), may = n->config->hook.deadline_usec + USEC_PER_SEC;
        uint64_t passed = now > written_usec ? now - written_usec : 0;
        return notes_boot_usec(n) + (passed < may ? may - passed : 0);
}

static void throw_away(Notes *n, const NotesMail *mail, const char *why) {
        notes_tell_refused(n, mail->uid, why);
        notes_mailbox_remove(n->mailbox, mail->name);
}

static void on_mail(const NotesMail *mail, void *userdata) {
        Notes *n = userdata;
        HookNote hook = { 0 };
        const char *why = "it is no note";
        Note *note;
        if (is_being_read(n, mail->name))
                return;
        if (n->n_mail >= MAIL_AT_ONCE) {
                n->has_put_off = true;
                return;
        }
        int r = hook_note_parse(mail->data, mail->n, n->patterns, &hook, &why);
        if (r > 0)
                throw_away(n, mail, why);
        if (r != 0)
                return; /* no memory: another time */
        if (notes_find(n, hook.id)) {
                notes_count(n, NOTES_TWICE);
                notes_mailbox_remove(n->mailbox, mail->name);
        } else if (notes_allowance_take(&n->allowance, mail->uid, notes_boot_usec(n)) &&
                   note_new(&note, n, &hook,
                            &(NoteView){ .received_usec = notes_real_usec(n),
                                         .uid = mail->uid,
                                         .by_mailbox = true }) == 0) {
                note->mailbox_name = strdup(mail->name); /* without it the next look drops it */
                note->view.pid_why = find_process(n, note);
                note->due_usec = due_of_mail(n, mail->written_usec);
                notes_kick(n);
        }
        hook_note_done(&hook);
}

void notes_look_for_mail(Notes *n) {
        if (!n->mailbox || !n->has_put_off || n->n_mail > MAIL_AT_ONCE / 2 ||
            store_trouble(n->context.store) < 0)
                return;
        n->has_put_off = false;
        notes_mailbox_look(n->mailbox);
}

/* ---- the snapshot ---- */

void notes_tell_snapshot(Notes *n, const char *note_id, int fd, const char *reason) {
        Note *note = notes_find(n, note_id);
        char text[256];
        if (!note || note->is_told)
                return;
        note->is_told = true;
        histogram_add(&n->seconds, (double)(notes_boot_usec(n) - note->since_usec) / 1e6);
        if (!note->peer)
                return;
        if (fd < 0)
                (void)snprintf(text, sizeof text, "snapshot none %s",
                               reason ? reason : "there is none");
        /* It may have gone: then its last word is still to be heard, and after that its end. */
        (void)hook_peer_send(note->peer, fd < 0 ? text : "snapshot done", fd);
}

/* ---- after a restart ---- */

static int on_unfinished(const StoredNote *s, void *userdata) {
        Notes *n = userdata;
        HookNote hook = { 0 };
        const char *why;
        Note *note;
        uint64_t now = notes_real_usec(n);
        if (notes_find(n, s->id))
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
        Notes *n = userdata;
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
        notes_arm_due(n);
        return 0;
}

/* ---- life ---- */

static const char *open_mailbox(Notes *n) {
        const NotesMailboxCallbacks callbacks = { on_mail, on_refused, n };
        const char *path = n->config->hook.mailbox;
        int r = notes_mailbox_new(&n->mailbox, n->context.event, path, &callbacks);
        if (r >= 0)
                return NULL;
        log_warning(r,
                    "cannot use the mailbox '%s': what hooks leave while the agent is away is not "
                    "heard; make it a directory of this agent's user, or set hook.mailbox",
                    path);
        return "the mailbox cannot be used";
}

void notes_rebind(Notes *n, const Config *config) {
        static char *const none[] = { NULL };
        n->config = config;
        n->patterns =
                config->snapshot.environment.items ? config->snapshot.environment.items : none;
}

static int notes_start(Notes *n, int fd) {
        const HookSocketOptions options = { NOTE_MAX_BYTES, on_packet, on_gone, on_refused, n };
        int r = notes_step_new(n);
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

int notes_new(Notes **ret, const NotesContext *context, const Config *config, int fd) {
        static const double le[HISTOGRAM_BUCKETS] = { 0.005, 0.01, 0.025, 0.05, 0.1, 0.25,
                                                      0.5,   1,    2,     5,    10,  30 };
        Notes *n = calloc(1, sizeof *n);
        if (!n)
                return -ENOMEM;
        *n = (Notes){ .context = *context };
        n->begun_usec = notes_boot_usec(n);
        n->counts[NOTES_BY_SOCKET].counter = "hook_notes:socket";
        n->counts[NOTES_BY_MAILBOX].counter = "hook_notes:mailbox";
        n->counts[NOTES_REFUSED].counter = "hook_notes:refused";
        n->counts[NOTES_TWICE].counter = "hook_notes:twice";
        n->counts[NOTES_UNSEEN].counter = "hook_notes:unseen";
        memcpy(n->seconds.le, le, sizeof le);
        list_init(&n->notes);
        notes_rebind(n, config);
        int r = notes_start(n, fd);
        if (r < 0) {
                notes_free(n);
                return r;
        }
        *ret = n;
        return 0;
}

Notes *notes_free(Notes *n) {
        if (!n)
                return NULL;
        notes_write_counts(n);
        n->socket = hook_socket_free(n->socket); /* their hooks see it, and go on alone */
        n->mailbox = notes_mailbox_free(n->mailbox);
        sd_event_source_disable_unref(n->start);
        notes_step_done(n);
        LIST_FOREACH_SAFE (l, &n->notes)
                note_free(CONTAINER_OF(l, Note, link));
        free(n);
        return NULL;
}

bool notes_are_idle(const Notes *n) {
        return n->n_notes == 0 && (!n->mailbox || notes_mailbox_is_idle(n->mailbox));
}

static uint64_t figure(const Notes *n, NotesCounter which) {
        return store_counter(n->context.store, n->counts[which].counter) +
               n->counts[which].unwritten;
}

static uint64_t n_awaited(const Notes *n) {
        uint64_t ret = 0;
        LIST_FOREACH (l, (ListLink *)&n->notes)
                ret += CONTAINER_OF(l, Note, link)->view.may_come;
        return ret;
}

void notes_figures(const Notes *n, NotesFigures *ret) {
        *ret = (NotesFigures){ .n_socket = figure(n, NOTES_BY_SOCKET),
                               .n_mailbox = figure(n, NOTES_BY_MAILBOX),
                               .n_refused = figure(n, NOTES_REFUSED),
                               .n_dropped_twice = figure(n, NOTES_TWICE),
                               .n_unseen = figure(n, NOTES_UNSEEN),
                               .n_open = n->socket ? hook_socket_n_open(n->socket) : 0,
                               .n_awaited = n_awaited(n),
                               .trouble = n->trouble,
                               .seconds = n->seconds };
}
