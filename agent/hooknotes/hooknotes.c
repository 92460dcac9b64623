/* Notes of hooks: received by the socket and the mailbox, answered, and followed until their hooks
 * end. Hook notes are untrusted input.
 *
 * This file receives notes (hook_socket.c, mailbox.c), limits their rate, and resumes those of an
 * earlier run. From there a note goes through note_parsing.c, note_checks.c and note_commit.c;
 * note.h draws its stages. agent/connections.c calls the modules that act on a note. */
#include "agent/hooknotes/hooknotes.h"

#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>

#include "agent/hooknotes/note.h"
#include "agent/hooknotes/note_checks.h"
#include "agent/hooknotes/note_commit.h"
#include "agent/hooknotes/note_parsing.h"
#include "lib/base/cleanup.h"
#include "lib/base/clock.h"
#include "lib/base/list.h"
#include "lib/base/log.h"

#define EARLY_USEC                                                                                 \
        USEC_PER_SEC /* after a start: peers may have waited in the queue of the socket */

/* The longest that the first deliveries after a start wait for the mailbox, however full it is. */
#define MAIL_WAIT_USEC (10 * USEC_PER_SEC)

#define YOUNG_USEC USEC_PER_MINUTE /* at a restart: the hooks of older notes have ended */

/* ---- the step ---- */

static int on_step(sd_event_source *source, void *userdata) {
        (void)source;
        HookNotes *n = userdata;
        note_checks_run(n);
        note_commit(n);
        return 0;
}

static int on_due(sd_event_source *source, uint64_t usec, void *userdata) {
        (void)source, (void)usec;
        HookNotes *n = userdata;
        uint64_t now = hooknotes_boot_usec(n);
        LIST_FOREACH_ITEM_SAFE (Note, note, link, &n->notes)
                if (note->stage == NOTE_OPEN && note->due_usec > 0 && note->due_usec <= now)
                        note_end(n, note);
        note_arm_due(n);
        return 0;
}

/* The step is a defer source, so that notes that arrive together are one transaction, and that it
 * takes turns with peers, who may connect all the time. */
static int start_step(HookNotes *n) {
        int r = sd_event_add_defer(n->context.event, &n->step, on_step, n);
        if (r >= 0)
                r = sd_event_source_set_enabled(n->step, SD_EVENT_OFF);
        if (r >= 0)
                r = sd_event_add_time_relative(n->context.event, &n->due, CLOCK_BOOTTIME, 0,
                                               100 * USEC_PER_MSEC, on_due, n);
        if (r >= 0)
                r = sd_event_source_set_enabled(n->due, SD_EVENT_OFF);
        if (r >= 0)
                r = note_parsing_start(n);
        return r < 0 ? r : note_checks_start(n);
}

/* ---- notes by the socket ---- */

/* Charges the sender of a note for it. @return false: the note is refused */
static bool charge_note(HookNotes *n, const Owner *o, size_t bytes, Charge *ret) {
        if (bound_charge(&n->parsing.unparsed, ret, o, bytes) != BOUND_OK)
                return false;
        if (bound_spend(&n->rate, o, 1) == BOUND_OK)
                return true;
        bound_release(ret);
        return false;
}

/* systemd accepts hooks on the socket before the agent starts. The pid of a hook that has ended
 * since may belong to another process now. */
static bool is_peer_unknown(const HookNotes *n, const HookPeer *p) {
        struct pollfd fd = { .fd = p->fd, .events = POLLRDHUP };
        return p->since_usec < n->start_usec + EARLY_USEC && poll(&fd, 1, 0) > 0;
}

static void on_note(HookNotes *n, HookPeer *p, const char *data, size_t size) {
        Note *note;
        Charge charge = { 0 };
        if (!charge_note(n, &p->owner, size, &charge)) {
                note_count(n, COUNT_REFUSED);
                (void)hook_peer_send(p, "refused " NOTE_TOO_MANY, -1); /* it may have ended */
                hook_peer_close(p);
                return;
        }
        bool is_unknown = is_peer_unknown(n, p), is_owner_known = p->is_owner_known && !is_unknown;
        int r = note_new(
                &note, n, data, size,
                &(NoteView){ .received_usec = hooknotes_realtime_usec(n),
                             .owner = p->owner,
                             .is_owner_known = is_owner_known,
                             .container = p->owner.uid == 0 && !is_owner_known ? "unknown" : NULL,
                             .hook_pid = is_unknown ? 0 : p->pid });
        if (r < 0) {
                bound_release(&charge);
                note_count_refused(n, &p->owner, NOTE_NO_MEMORY);
                (void)hook_peer_send(p, "refused " NOTE_NO_MEMORY, -1); /* as above */
                hook_peer_close(p);
                return;
        }
        note->unparsed = charge;
        note->peer = p;
        p->userdata = note;
        if (is_unknown)
                note->view.pid_why = "the hook had ended before this agent came to its note";
        /* From here on the hook has the time until its deadline. */
        (void)hook_peer_wait(p, n->config->hook.deadline_usec + USEC_PER_SEC);
        note_parsing_run(n);
}

static void detach_peer(HookNotes *n, Note *note, NoteEnd end, const HookFinish *finish) {
        note->finish = *finish;
        note_set_end(note, end);
        note->peer->userdata = NULL;
        note->peer = NULL;
        note_end(n, note);
}

static void on_packet(HookPeer *p, const char *data, size_t size, void *userdata) {
        HookNotes *n = userdata;
        Note *note = p->userdata;
        if (!note) {
                on_note(n, p, data, size);
                return;
        }
        HookFinish finish = { 0 };
        if (!hook_finish_parse(data, size, &finish))
                note_count_refused(n, &note->view.owner, "a hook sent an unknown message");
        detach_peer(n, note, NOTE_FINISHED, &finish);
        hook_peer_close(p);
}

static void on_gone(HookPeer *p, void *userdata) {
        Note *note = p->userdata;
        if (!note)
                return;
        detach_peer(userdata, note, p->is_late ? NOTE_LATE : NOTE_FINISHED,
                    &(HookFinish){ 0 }); /* it was killed, or hangs */
}

static void on_refused(const Owner *o, const char *why, void *userdata) {
        note_count_refused(userdata, o, why);
}

/* ---- notes by the mailbox ---- */

static bool is_being_read(const HookNotes *n, const char *name) {
        LIST_FOREACH_ITEM (const Note, note, link, &n->notes)
                if (note->mailbox_name && strcmp(note->mailbox_name, name) == 0)
                        return true;
        return false;
}

/* @return when a note of the mailbox counts as ended: its hook, which found no agent, may write
 * until its deadline */
static uint64_t due_of_mail(const HookNotes *n, uint64_t written_usec) {
        uint64_t now = hooknotes_realtime_usec(n),
                 may = n->config->hook.deadline_usec + USEC_PER_SEC;
        uint64_t passed = now > written_usec ? now - written_usec : 0;
        return hooknotes_boot_usec(n) + (passed < may ? may - passed : 0);
}

static void on_mail(const Mail *mail, void *userdata) {
        HookNotes *n = userdata;
        Note *note;
        Charge charge = { 0 };
        if (is_being_read(n, mail->name))
                return;
        if (n->n_mail >= NOTE_MAIL_AT_ONCE) {
                n->has_deferred_mail = true;
                return;
        }
        if (!bound_has_space(&n->parsing.unparsed, &mail->owner, mail->n)) {
                n->has_deferred_mail = true;
                return;
        }
        if (!charge_note(n, &mail->owner, mail->n, &charge))
                return; /* the next pass tries again */
        if (note_new(&note, n, mail->data, mail->n,
                     &(NoteView){ .received_usec = hooknotes_realtime_usec(n),
                                  .owner = mail->owner,
                                  .by_mailbox = true }) < 0) {
                bound_release(&charge);
                return; /* as above */
        }
        note->unparsed = charge;
        note->mailbox_name = strdup(mail->name);
        note->due_usec = due_of_mail(n, mail->written_usec);
        if (note->mailbox_name)
                note_parsing_run(n);
        else
                note_remove(n, note);
}

static const char *open_mailbox(HookNotes *n) {
        int r = mailbox_new(&n->mailbox, &(MailboxOptions){ .event = n->context.event,
                                                            .path = n->config->hook.mailbox,
                                                            .on_mail = on_mail,
                                                            .on_refused = on_refused,
                                                            .userdata = n });
        if (r >= 0)
                return NULL;
        log_warning(
                r,
                "cannot use the mailbox '%s': notes that hooks write while the agent does not run "
                "are not read; make it a directory of this agent's user, or set hook.mailbox",
                n->config->hook.mailbox);
        return "the mailbox cannot be used";
}

/* ---- the snapshot ---- */

void hooknotes_report_snapshot(HookNotes *n, const char *note_id, int fd, const char *reason) {
        Note *note = note_find(n, note_id);
        char text[256];
        if (!note || note->is_snapshot_reported)
                return;
        note->is_snapshot_reported = true;
        histogram_add(&n->seconds, (double)(hooknotes_boot_usec(n) - note->since_usec) / 1e6);
        if (!note->peer)
                return;
        if (fd < 0)
                (void)snprintf(text, sizeof text, "snapshot none %s",
                               reason ? reason : "there is none");
        /* If the hook has ended, its last packet is still to be read. */
        (void)hook_peer_send(note->peer, fd < 0 ? text : "snapshot done", fd);
}

/* ---- after a restart ---- */

static int on_unfinished(const StoredNote *s, void *userdata) {
        HookNotes *n = userdata;
        HookNote hook = { 0 };
        Note *note;
        uint64_t now = hooknotes_realtime_usec(n);
        if (note_find(n, s->id))
                return 0; /* the hook sent it again */
        bool is_young = now < s->received_usec + YOUNG_USEC && n->n_notes < NOTE_MAIL_AT_ONCE;
        /* Its secrets were removed before it was stored. */
        if (!is_young || hook_note_parse_stored(s->document, &hook) != 0)
                return store_note_finish(n->context.store, s->id, now) < 0 ? 1 : 0;
        if (note_new(&note, n, "", 0,
                     &(NoteView){ .received_usec = s->received_usec,
                                  .owner = { .uid = s->uid },
                                  .by_mailbox = s->by_mailbox,
                                  .pid = s->pid,
                                  .start_ticks = s->start_ticks,
                                  .pid_why = s->pid ? NULL : "this agent was restarted" }) < 0) {
                hook_note_done(&hook);
                return 1;
        }
        note->hook = hook;
        if (s->container) { /* root of a container is not the host's root */
                (void)snprintf(note->view.owner.container, OWNER_CONTAINER_SIZE, "%s",
                               s->container);
                note->view.container = note->view.owner.container;
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
        note->view.may_come = !s->source; /* its directory may exist now, or later */
        note->is_refusal_counted = true;  /* by the agent that accepted it */
        note->view.s3_prefix = s->s3_prefix ? note->hook.s3_output_prefix : NULL;
        return 0;
}

/* Resumes the notes of an earlier run, whose hooks have lost their connection. */
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
                log_warning(r, "cannot read the notes of an earlier run");
        LIST_FOREACH_ITEM (const Note, note, link, &n->notes)
                if (note->stage == NOTE_OPEN && !note->peer)
                        n->context.on_note(&note->view, n->context.userdata);
        note_arm_due(n);
        return 0;
}

/* ---- life ---- */

void hooknotes_rebind(HookNotes *n, const Config *config) {
        static char *const none[] = { NULL };
        n->config = config;
        if (n->socket)
                hook_socket_set_proc_root(n->socket, config->snapshot.proc_root);
        n->patterns =
                config->snapshot.environment.items ? config->snapshot.environment.items : none;
}

static int start_input(HookNotes *n, int fd) {
        const HookSocketOptions options = { .on_packet = on_packet,
                                            .on_gone = on_gone,
                                            .on_refused = on_refused,
                                            .userdata = n,
                                            .proc_root = n->config->snapshot.proc_root };
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
        n->start_usec = hooknotes_boot_usec(n);
        note_rate_init(&n->rate, context->clock);
        memcpy(n->seconds.le, le, sizeof le);
        list_init(&n->notes);
        list_init(&n->checks.hung);
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
        note_write_counts(n);
        n->socket = hook_socket_free(n->socket); /* the hooks continue without the agent */
        mailbox_free(n->mailbox);
        sd_event_source_disable_unref(n->start);
        sd_event_source_disable_unref(n->step);
        sd_event_source_disable_unref(n->due);
        note_parsing_stop(n);
        note_checks_stop(n);
        LIST_FOREACH_SAFE (l, &n->notes)
                note_free(CONTAINER_OF(l, Note, link));
        bound_done(&n->rate);
        free(n);
        return NULL;
}

/* ---- what others ask ---- */

static bool is_scanning(const HookNotes *n) {
        return n->mailbox && mailbox_is_scanning(n->mailbox);
}

bool hooknotes_is_idle(const HookNotes *n) {
        return n->n_notes == 0 && !is_scanning(n);
}

bool hooknotes_has_unread_mail(const HookNotes *n) {
        bool is_unread = is_scanning(n);
        LIST_FOREACH_ITEM (const Note, note, link, &n->notes)
                is_unread = is_unread || (note->view.by_mailbox && !note->is_durable);
        return is_unread && hooknotes_boot_usec(n) < n->start_usec + MAIL_WAIT_USEC;
}

void hooknotes_count_refused(HookNotes *n, uint64_t n_notes) {
        n->counts[COUNT_REFUSED] += n_notes;
}

void hooknotes_fill_view(const HookNotes *n, AgentView *ret) {
        HookView *v = &ret->hook;
        v->n_socket = note_count_total(n, COUNT_BY_SOCKET);
        v->n_mailbox = note_count_total(n, COUNT_BY_MAILBOX);
        v->n_refused = note_count_total(n, COUNT_REFUSED);
        v->n_twice = note_count_total(n, COUNT_DUPLICATE);
        v->n_unseen = note_count_total(n, COUNT_UNSEEN);
        v->n_open = n->socket ? hook_socket_n_open(n->socket) : 0;
        LIST_FOREACH (l, (ListLink *)&n->notes)
                v->n_awaited += CONTAINER_OF(l, Note, link)->view.may_come;
        v->trouble = n->trouble;
        v->seconds = n->seconds;
        if (n->socket)
                agent_view_add_bound(ret, hook_socket_bound(n->socket));
        agent_view_add_bound(ret, &n->rate);
        agent_view_add_bound(ret, &n->parsing.unparsed);
        if (n->mailbox)
                agent_view_add_bound(ret, mailbox_bound(n->mailbox));
}
