#include "agent/agent_hook.h"

#include <errno.h>
#include <sys/socket.h>

#include "agent/hooknotes/hook_socket.h"
#include "agent/intake/intake.h"
#include "lib/base/log.h"
#include "lib/event/timer.h"

/* How often it is looked for what is attached to dumps of former sources. */
#define ORPHANS_AGAIN_USEC USEC_PER_HOUR

static void arm_orphans(Agent *a, uint64_t usec);

/* ---- notes ---- */

static void on_note(const NoteView *v, void *userdata) {
        Agent *a = userdata;
        IntakeSource *s = v->source ? agent_source_by_name(a, v->source) : NULL;
        if (s)
                intake_source_note(s, v->unit_path, v->uid);
        if (a->incidents)
                incidents_on_note(a->incidents, v);
        else
                hooknotes_report_snapshot(a->notes, v->note->id, -1, "snapshots cannot be taken");
}

static void on_note_finished(const NoteView *v, void *userdata) {
        Agent *a = userdata;
        IntakeSource *s = v->source ? agent_source_by_name(a, v->source) : NULL;
        if (!s)
                return;
        for (size_t i = 0; i < NOTE_FILES_MAX && v->promised[i]; i++)
                intake_source_promised(s, v->unit_path, v->uid, v->promised[i]);
        if (a->incidents && v->may_come) /* and has come */
                incidents_add_unit_of_note(a->incidents,
                                           &(IncidentUnitOfNote){ .note = v->note->id,
                                                                  .source = v->source,
                                                                  .unit_path = v->unit_path,
                                                                  .uid = v->uid });
        intake_source_note_finished(s, v->unit_path, v->uid);
}

/* ---- incidents ---- */

static void on_public(const char *note_id, int fd, const char *reason, void *userdata) {
        const Agent *a = userdata;
        if (a->notes)
                hooknotes_report_snapshot(a->notes, note_id, fd, reason);
}

static void on_attached(const char *source, const char *unit_path, void *userdata) {
        IntakeSource *s = agent_source_by_name(userdata, source);
        if (s)
                intake_source_attached(s, unit_path);
}

static void on_pending(const char *source, const char *unit_path, bool pending, void *userdata) {
        IntakeSource *s = agent_source_by_name(userdata, source);
        if (s)
                intake_source_pending(s, unit_path, pending);
}

void agent_hook_unheard(uint64_t n, void *userdata) {
        const Agent *a = userdata;
        if (a->notes)
                hooknotes_count_refused(a->notes, n);
}

void agent_hook_renewed(const char *source, const char *unit_path, uint64_t before_usec,
                        void *userdata) {
        const Agent *a = userdata;
        if (a->incidents)
                incidents_unit_renewed(a->incidents, source, unit_path, before_usec);
}

/* ---- former sources ---- */

static bool is_configured(const char *source, void *userdata) {
        return agent_source_by_name(userdata, source) != NULL;
}

static int on_orphans(sd_event_source *timer, uint64_t usec, void *userdata) {
        Agent *a = userdata;
        (void)timer;
        (void)usec;
        uint64_t steady_usec = clock_steady_usec(&a->orphans_steady, a->clock);
        orphans_sweep(&(OrphansContext){ .attachments = a->attachments,
                                         .store = a->store,
                                         .now_usec = a->clock->realtime_usec(a->clock),
                                         .steady_usec = steady_usec,
                                         .is_configured = is_configured,
                                         .userdata = a });
        arm_orphans(a, ORPHANS_AGAIN_USEC);
        return 0;
}

static void arm_orphans(Agent *a, uint64_t usec) {
        int r = a->once ? 0
                        : timer_arm(&a->orphans_timer, &(TimerOrder){ .event = a->event,
                                                                      .usec = usec,
                                                                      .handler = on_orphans,
                                                                      .userdata = a });
        if (r < 0)
                log_warning(r, "what is attached to dumps of former sources is not searched for");
}

/* ---- life ---- */

static int open_socket(Agent *a) {
        const char *path = a->config->hook.socket;
        int fd = agent_passed_socket(path, SOCK_SEQPACKET);
        if (fd >= 0 || a->once) /* a sweep answers nobody: the daemon may be about to start */
                return fd;
        int r = hook_socket_listen(path, &fd);
        if (r == 0)
                return fd;
        log_warning(r, "cannot listen for hooks on '%s'%s; their notes come by the mailbox alone",
                    path,
                    r == -EADDRINUSE ? ": another process answers there; stop it, or set another "
                                       "hook.socket"
                                     : "; check that its directory can be written, or set another "
                                       "hook.socket");
        return -1;
}

static void start_incidents(Agent *a) {
        const IncidentsContext context = { .event = a->event,
                                           .clock = a->clock,
                                           .store = a->store,
                                           .instance_id = a->instance_id,
                                           .on_public = on_public,
                                           .attachments = a->attachments,
                                           .on_attached = on_attached,
                                           .on_pending = on_pending,
                                           .userdata = a };
        int r = a->once ? 0 : attachments_start(a->attachments, a->event);
        if (r == 0 && !a->once)
                r = incidents_new(&a->incidents, &context, a->config);
        if (r < 0)
                log_warning(r, "snapshots of the hardware cannot be taken");
}

void agent_hook_start(Agent *a) {
        arm_orphans(a, 0);
        const HookNotesContext context = { .event = a->event,
                                           .clock = a->clock,
                                           .store = a->store,
                                           .instance_id = a->instance_id,
                                           .on_note = on_note,
                                           .on_finished = on_note_finished,
                                           .userdata = a };
        start_incidents(a);
        int fd = open_socket(a);
        int r = hooknotes_new(&a->notes, &context, a->config, fd);
        if (r < 0) {
                if (fd >= 0)
                        (void)close(fd); /* nobody was let in */
                log_warning(r, "notes of hooks cannot be received; dumps are found anyway");
        }
}

void agent_hook_rebind(Agent *a) {
        arm_orphans(a, 0);
        if (a->notes)
                hooknotes_rebind(a->notes, a->config);
        if (a->incidents)
                incidents_rebind(a->incidents, a->config);
}

void agent_hook_stop(Agent *a) {
        a->orphans_timer = sd_event_source_disable_unref(a->orphans_timer);
        a->notes = hooknotes_free(a->notes);
        a->incidents = incidents_free(a->incidents);
}

bool agent_hook_is_idle(const Agent *a) {
        return !a->notes || hooknotes_is_idle(a->notes);
}

void agent_hook_view(const Agent *a, HookView *ret) {
        HookNotesStats f = { .trouble = "notes of hooks cannot be received" };
        IncidentsStats snapshots = { 0 };
        if (a->notes)
                hooknotes_stats(a->notes, &f);
        if (a->incidents)
                incidents_stats(a->incidents, &snapshots);
        *ret = (HookView){ .socket = a->config->hook.socket,
                           .mailbox = a->config->hook.mailbox,
                           .n_socket = f.n_socket,
                           .n_mailbox = f.n_mailbox,
                           .n_refused = f.n_refused,
                           .n_twice = f.n_duplicates,
                           .n_unseen = f.n_unseen,
                           .n_snapshots = snapshots.n_started,
                           .n_snapshots_dropped = snapshots.n_dropped,
                           .n_snapshots_underway =
                                   a->incidents ? incidents_n_underway(a->incidents) : 0,
                           .n_open = f.n_open,
                           .n_awaited = f.n_awaited,
                           .trouble = f.trouble,
                           .seconds = f.seconds };
}
