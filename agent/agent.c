#include "agent/agent.h"

#include <errno.h>
#include <string.h>
#include <sys/socket.h>
#include <systemd/sd-daemon.h>

#include "agent/agent_private.h"
#include "agent/api/api.h"
#include "agent/hooknotes/hook_socket.h"
#include "agent/instance.h"
#include "agent/intake/intake.h"
#include "agent/store/ledger.h"
#include "lib/base/log.h"
#include "lib/base/path.h"
#include "lib/event/timer.h"
#include "uploaders/aws/aws_environment.h"
#include "uploaders/aws/credentials_secret.h"

#define STORE_RETRY_USEC (5 * USEC_PER_SEC)
/* The interval of the search for what is attached to dumps of former sources. */
#define ORPHANS_INTERVAL_USEC USEC_PER_HOUR

IntakeSource *agent_source_by_name(const Agent *a, const char *name) {
        for (size_t i = 0; i < a->n_sources; i++)
                if (strcmp(intake_source_config(a->sources[i])->name, name) == 0)
                        return a->sources[i];
        return NULL;
}

/* ---- events of the folders ---- */

static void on_ready(Bundle *b, void *userdata) {
        Agent *a = userdata;
        (void)b;
        scheduler_kick(a->scheduler);
        retention_runner_kick(a->retention_runner);
        agent_notify_status(a);
}

static void on_found(const Bundle *b, void *userdata) {
        Agent *a = userdata;
        (void)b;
        retention_runner_kick(a->retention_runner);
}

static void on_links_rechecked(IntakeSource *s, const char *id, void *userdata) {
        Agent *a = userdata;
        retention_runner_on_links_rechecked(a->retention_runner, s, id);
}

static SourceSpec *get_source_terms(const Bundle *b) {
        return intake_source_spec(b->source);
}

#define DISCARD_COUNTER "discard:"

static void add_discard(const char *name, uint64_t n, void *userdata) {
        Agent *a = userdata;
        const char *reason = name + strlen(DISCARD_COUNTER);
        for (size_t i = 0; i < a->n_discards; i++)
                if (strcmp(a->discards[i].reason, reason) == 0) {
                        a->discards[i].n += n;
                        return;
                }
        Discard *more = realloc(a->discards, (a->n_discards + 1) * sizeof *more);
        if (!more)
                return;
        a->discards = more;
        char *copy = strdup(reason);
        if (copy)
                more[a->n_discards++] = (Discard){ copy, n };
}

/* Persisted, so that the figures survive a restart. */
static void on_discard(const char *reason, uint64_t n, void *userdata) {
        Agent *a = userdata;
        char name[128];
        (void)snprintf(name, sizeof name, DISCARD_COUNTER "%s", reason);
        (void)store_counter_add(a->store, name, n); /* on failure the count in memory remains */
        add_discard(name, n, a);
}

/* Releases the source files, except where the operator can retry the bundle. */
static void on_final(Bundle *b, void *userdata) {
        Agent *a = userdata;
        if (a->scheduler)
                scheduler_abandon_uploads(a->scheduler, b);
        if (b->source)
                intake_source_on_final(b->source, b);
        if (b->rec.state == BUNDLE_VANISHED || b->rec.state == BUNDLE_CANCELLED)
                on_discard(bundle_state_name(b->rec.state), 1, a);
        own_sources_on_final(a, b);
        retention_runner_on_final(a->retention_runner, b);
        agent_notify_status(a);
}

static void on_delivered(const Bundle *b, void *userdata) {
        Agent *a = userdata;
        uint64_t now = a->clock->realtime_usec(a->clock);
        double seconds =
                now > b->rec.first_seen_usec ? (double)(now - b->rec.first_seen_usec) / 1e6 : 0;
        histogram_add(&a->delivery_seconds, seconds);
}

static int on_store_timer(sd_event_source *source, uint64_t usec, void *userdata) {
        Agent *a = userdata;
        (void)usec;
        if (!bundle_table_retry(a->bundles))
                return timer_rearm(source, STORE_RETRY_USEC);
        for (size_t i = 0; i < a->n_sources; i++) /* what was refused meanwhile is found now */
                intake_source_flush(a->sources[i], false);
        return 0;
}

static void on_store_error(void *userdata) {
        Agent *a = userdata;
        if (a->store_timer && sd_event_source_get_enabled(a->store_timer, NULL) > 0)
                return; /* a further error does not postpone it */
        int r = timer_arm(&a->store_timer, &(TimerOptions){ .event = a->event,
                                                            .usec = STORE_RETRY_USEC,
                                                            .handler = on_store_timer,
                                                            .userdata = a });
        if (r < 0)
                log_error(r, "cannot arm the timer that writes the state database again");
}

/* ---- notes ---- */

static void on_note(const NoteView *v, void *userdata) {
        Agent *a = userdata;
        IntakeSource *s = v->source ? agent_source_by_name(a, v->source) : NULL;
        if (s)
                intake_source_on_hook_started(s, v->unit_path, v->uid);
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
                intake_source_expect_file(s, v->unit_path, v->uid, v->promised[i]);
        if (a->incidents && v->may_come)
                incidents_add_unit_of_note(a->incidents,
                                           &(IncidentUnitOfNote){ .note = v->note->id,
                                                                  .source = v->source,
                                                                  .unit_path = v->unit_path,
                                                                  .uid = v->uid });
        intake_source_on_hook_finished(s, v->unit_path, v->uid);
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
                intake_source_on_attached(s, unit_path);
}

static void on_pending(const char *source, const char *unit_path, bool pending, void *userdata) {
        IntakeSource *s = agent_source_by_name(userdata, source);
        if (s)
                intake_source_set_pending(s, unit_path, pending);
}

static void on_notes_refused(uint64_t n, void *userdata) {
        const Agent *a = userdata;
        if (a->notes)
                hooknotes_count_refused(a->notes, n);
}

static void on_unit_renewed(const char *source, const char *unit_path, uint64_t before_usec,
                            void *userdata) {
        const Agent *a = userdata;
        if (a->incidents)
                incidents_unit_renewed(a->incidents, source, unit_path, before_usec);
}

/* ---- former sources ---- */

static bool is_configured(const char *source, void *userdata) {
        return agent_source_by_name(userdata, source) != NULL;
}

static void arm_orphans(Agent *a, uint64_t usec);

static int on_orphans(sd_event_source *timer, uint64_t usec, void *userdata) {
        Agent *a = userdata;
        (void)timer;
        (void)usec;
        uint64_t steady_usec = clock_step_age_usec(&a->orphans_steady, a->clock);
        orphans_sweep(&(OrphansContext){ .attachments = a->attachments,
                                         .store = a->store,
                                         .now_usec = a->clock->realtime_usec(a->clock),
                                         .steady_usec = steady_usec,
                                         .is_configured = is_configured,
                                         .userdata = a });
        arm_orphans(a, ORPHANS_INTERVAL_USEC);
        return 0;
}

static void arm_orphans(Agent *a, uint64_t usec) {
        int r = a->once ? 0
                        : timer_arm(&a->orphans_timer, &(TimerOptions){ .event = a->event,
                                                                        .usec = usec,
                                                                        .handler = on_orphans,
                                                                        .userdata = a });
        if (r < 0)
                log_warning(r, "cannot arm the timer that removes attachments of former sources");
}

/* ---- hooks ---- */

/* @return an fd that systemd has passed for this path and type; -1 */
static int agent_passed_socket(const char *path, int type) {
        int n = sd_listen_fds(0);
        for (int fd = SD_LISTEN_FDS_START; fd < SD_LISTEN_FDS_START + n; fd++)
                if (sd_is_socket_unix(fd, type, 1, path, 0) > 0)
                        return fd;
        return -1;
}

static int open_socket(Agent *a) {
        const char *path = a->config->hook.socket;
        int fd = agent_passed_socket(path, SOCK_SEQPACKET);
        if (fd >= 0 || a->once) /* with --once the daemon may be about to start */
                return fd;
        int r = api_listen_seqpacket(path, &fd);
        if (r == 0)
                return fd;
        log_warning(r, "cannot listen for hooks on '%s'%s; notes arrive by the mailbox only", path,
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
                log_warning(r, "cannot create snapshots of the hardware");
}

static void start_hook(Agent *a) {
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
                        (void)close(fd); /* nobody has connected yet */
                log_warning(r, "cannot receive hook notes; dumps are found without them");
        }
}

void agent_rebind_hook(Agent *a) {
        arm_orphans(a, 0);
        if (a->notes)
                hooknotes_rebind(a->notes, a->config);
        if (a->incidents)
                incidents_rebind(a->incidents, a->config);
}

static void stop_hook(Agent *a) {
        a->orphans_timer = sd_event_source_disable_unref(a->orphans_timer);
        a->notes = hooknotes_free(a->notes);
        a->incidents = incidents_free(a->incidents);
}

static bool hook_is_idle(const Agent *a) {
        return !a->notes || hooknotes_is_idle(a->notes);
}

void agent_fill_hook_view(const Agent *a, HookView *ret) {
        HookNotesStats f = { .trouble = "hook notes cannot be received" };
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

/* ---- creation ---- */

static int open_store(Agent *a) {
        _cleanup_free_ char *put_aside = NULL;
        const char *dir = a->config->state_directory;
        pid_t holder = 0;
        int r = store_open(&a->store, dir, &put_aside, &holder);
        if (r == STORE_E_LOCKED) {
                if (!a->once)
                        log_error(0,
                                  "state directory '%s' is in use by the agent with pid %d; stop "
                                  "that one, or set another state_directory",
                                  dir, (int)holder);
                return AGENT_E_LOCKED;
        }
        if (r < 0) {
                log_error(r,
                          "cannot open the state in '%s'; check that the directory exists, is "
                          "writable by this user and has free space",
                          dir);
                return r;
        }
        if (put_aside)
                log_warning(0,
                            "the state database could not be read; it was put aside as '%s' and a "
                            "new one is built from what is on disk",
                            put_aside);
        return 0;
}

/* Invalid rows in a database that SQLite finds intact: something else has written to it. */
static int open_table(Agent *a) {
        _cleanup_free_ char *put_aside = NULL;
        const BundleTableCallbacks callbacks = { on_final, on_store_error, a };
        int r = bundle_table_new(&a->bundles, a->store, a->clock, &callbacks);
        if (r != -EUCLEAN)
                return r;
        r = store_replace_database(a->store, &put_aside);
        if (r < 0)
                return r;
        log_warning(0,
                    "the state database holds rows that no agent wrote; it was put aside as '%s' "
                    "and a new one is built from what is on disk",
                    put_aside);
        return bundle_table_new(&a->bundles, a->store, a->clock, &callbacks);
}

int agent_create_scheduler(Agent *a) {
        SchedulerContext context = { .event = a->event,
                                     .clock = a->clock,
                                     .store = a->store,
                                     .bundles = a->bundles,
                                     .attachments = a->attachments,
                                     .instance_id = a->instance_id,
                                     .hostname = a->hostname,
                                     .environment = a->environment,
                                     .is_urgent = a->once || agent_is_draining(a),
                                     .on_delivered = on_delivered,
                                     .get_source_spec = get_source_terms,
                                     .on_changed = intake_resettle,
                                     .userdata = a };
        return scheduler_new(&a->scheduler, &context, a->config);
}

/* A source of the same name whose path has changed does not find the bundle's files. */
void agent_adopt_bundles(Agent *a, IntakeSource *s) {
        LIST_FOREACH_SAFE (l, bundle_table_all(a->bundles)) {
                Bundle *b = CONTAINER_OF(l, Bundle, link);
                if (!b->source && strcmp(b->rec.source, intake_source_config(s)->name) == 0 &&
                    path_is_below(b->rec.path, intake_source_spec(s)->fixed))
                        intake_source_adopt(s, b);
        }
}

int agent_start_sources(Agent *a) {
        a->intake_context = (IntakeContext){ .event = a->event,
                                             .clock = a->clock,
                                             .store = a->store,
                                             .bundles = a->bundles,
                                             .instance_id = a->instance_id,
                                             .proc_root = a->config->snapshot.proc_root,
                                             .attachments = a->attachments,
                                             .hook_deadline_usec = a->config->hook.deadline_usec,
                                             .on_ready = on_ready,
                                             .on_renewed = on_unit_renewed,
                                             .on_discard = on_discard,
                                             .on_unheard = on_notes_refused,
                                             .on_found = on_found,
                                             .on_links_rechecked = on_links_rechecked,
                                             .userdata = a };
        a->sources = calloc(2 * a->config->n_sources + 1, sizeof *a->sources);
        if (!a->sources)
                return -ENOMEM;
        int failed = 0;
        for (size_t i = 0; i < a->config->n_sources; i++) {
                int r = intake_source_new(&a->sources[a->n_sources], &a->intake_context,
                                          &a->config->sources[i]);
                if (r < 0) {
                        log_error(r, "source %s: cannot start it; a reload tries again",
                                  a->config->sources[i].name);
                        failed = failed < 0 ? failed : r;
                        continue;
                }
                agent_adopt_bundles(a, a->sources[a->n_sources++]);
        }
        own_sources_start(a);
        return failed;
}

void agent_set_retention_sources(Agent *a) {
        _cleanup_free_ RetentionRunnerSource *sources =
                calloc(MAX(a->n_sources, 1U), sizeof *sources);
        for (size_t i = 0; sources && i < a->n_sources; i++)
                sources[i] =
                        (RetentionRunnerSource){ a->sources[i], intake_source_spec(a->sources[i]) };
        if (sources)
                retention_runner_set_sources(a->retention_runner, sources, a->n_sources);
        else
                log_error(-ENOMEM, "no source files are deleted until the next reload");
}

static int on_evict(Bundle *b, const char *reason, void *userdata) {
        Agent *a = userdata;
        return bundle_set_state(a->bundles, b, BUNDLE_EVICTED, reason);
}

static int create_retainer(Agent *a) {
        RetentionRunnerContext context = { .event = a->event,
                                           .clock = a->clock,
                                           .store = a->store,
                                           .bundles = a->bundles,
                                           .on_discard = on_discard,
                                           .on_evict = on_evict,
                                           .submit = intake_source_submit,
                                           .recheck_links = intake_recheck_links,
                                           .is_rechecking_links = intake_is_rechecking_links,
                                           .userdata = a };
        int r = retention_runner_new(&a->retention_runner, &context, a->config);
        if (r >= 0)
                agent_set_retention_sources(a);
        return r;
}

static int start_notices(Agent *a) {
        return ec2_notices_new(&a->notices,
                               &(Ec2NoticesOptions){ .event = a->event,
                                                     .clock = a->clock,
                                                     .environment = a->environment,
                                                     .sysfs_root = a->config->snapshot.sysfs_root,
                                                     .on_notice = agent_on_notice,
                                                     .on_withdrawn = agent_on_withdrawn,
                                                     .userdata = a });
}

static int start_api(Agent *a) {
        int fd = agent_passed_socket(a->config->api.socket, SOCK_STREAM), r = 0;
        if (fd < 0)
                r = api_listen_unix(a->config->api.socket, &fd);
        if (r < 0) {
                if (a->once) /* a sweep needs no API */
                        return 0;
                log_error(r, "cannot listen on '%s'%s", a->config->api.socket,
                          r == -EADDRINUSE ? ": another agent answers there; stop it, or set "
                                             "another api.socket"
                                           : "; check that its directory can be written, or set "
                                             "another api.socket");
                return r;
        }
        r = api_new(&a->api, a->event, &(ApiListener){ .fd = fd, .backend = &a->backend });
        if (r < 0) {
                log_error(r, "cannot serve the API on '%s'", a->config->api.socket);
                return r;
        }
        if (!a->config->api.listen[0])
                return 0;
        r = api_listen_tcp(a->config->api.listen, &fd);
        if (r >= 0)
                r = api_new(&a->api_tcp, a->event,
                            &(ApiListener){ .fd = fd, .read_only = true, .backend = &a->backend });
        if (r < 0)
                log_error(r, "cannot listen on '%s' (api.listen)", a->config->api.listen);
        return r;
}

static void init_histogram(Histogram *h) {
        static const double le[HISTOGRAM_BUCKETS] = { 1,   5,   10,   30,   60,    120,
                                                      300, 600, 1800, 3600, 21600, 86400 };
        memcpy(h->le, le, sizeof le);
}

static int agent_start(Agent *a) {
        const char *origin = "";
        int r = instance_find(&(InstanceOptions){ .fixed = a->config->node.instance_id,
                                                  .sysfs_root = a->config->snapshot.sysfs_root,
                                                  .environment = a->environment },
                              a->instance_id, &origin);
        if (r < 0) {
                log_error(r, "cannot find an instance id; set node.instance_id");
                return r;
        }
        if (gethostname(a->hostname, sizeof a->hostname - 1) < 0)
                strcpy(a->hostname, "unknown");
        log_info("this node is '%s' (from %s)", a->instance_id, origin);
        r = open_store(a);
        if (r != 0)
                return r;
        r = attachments_new(&a->attachments, a->config->state_directory);
        if (r < 0)
                return r;
        r = open_table(a);
        if (r < 0) {
                log_error(r, "cannot read the state database");
                return r;
        }
        (void)store_counter_list(a->store, DISCARD_COUNTER, add_discard,
                                 a); /* if unreadable, counting starts here */
        r = store_ledger_abandon_idle(a->store);
        if (r < 0)
                log_warning(r, "cannot queue abandoned uploads for abort");
        r = agent_create_scheduler(a);
        if (r < 0) {
                log_error(r, "cannot set up the destinations");
                return r;
        }
        r = agent_start_sources(a);
        if (r < 0)
                return r;
        r = create_retainer(a);
        if (r < 0) {
                log_error(r, "cannot set up retention");
                return r;
        }
        start_hook(a);
        r = start_api(a);
        if (r < 0)
                return r;
        if (!a->once && start_notices(a) < 0)
                log_warning(0, "cannot request EC2's notices of interruption and maintenance");
        if (a->once) /* regardless of failures of an earlier run */
                LIST_FOREACH (l, bundle_table_all(a->bundles))
                        scheduler_retry_now(a->scheduler, CONTAINER_OF(l, Bundle, link));
        scheduler_retry_now(a->scheduler, NULL);
        return 0;
}

int agent_new(Agent **ret, sd_event *event, Config *config, bool once) {
        Agent *a = calloc(1, sizeof *a);
        if (!a) {
                config_free(config);
                return -ENOMEM;
        }
        *a = (Agent){ .event = sd_event_ref(event),
                      .clock = clock_system(),
                      .config = config,
                      .once = once };
        a->started_usec = a->loaded_usec = a->clock->realtime_usec(a->clock);
        init_histogram(&a->delivery_seconds);
        agent_view_init(a);
        a->environment = aws_environment_own(environ);
        int r = a->environment ? agent_start(a) : -ENOMEM;
        if (r != 0) {
                agent_free(a);
                return r;
        }
        *ret = a;
        return 0;
}

void agent_free_sources(Agent *a) {
        for (size_t i = 0; i < a->n_sources; i++)
                intake_source_free(a->sources[i]);
        free(a->sources);
        a->sources = NULL;
        a->n_sources = 0;
        own_sources_free(a);
}

Agent *agent_free(Agent *a) {
        if (!a)
                return NULL;
        api_free(a->api);
        api_free(a->api_tcp);
        ec2_notices_free(a->notices);
        agent_drain_done(a);
        agent_cancel_reload(a);
        stop_hook(a);
        a->retention_runner = retention_runner_free(a->retention_runner);
        a->scheduler = scheduler_free(a->scheduler);
        agent_free_sources(a);
        sd_event_source_disable_unref(a->store_timer);
        bundle_table_free(a->bundles);
        attachments_free(a->attachments);
        store_close(a->store);
        for (size_t i = 0; i < a->n_discards; i++)
                free(a->discards[i].reason);
        free(a->discards);
        free(a->config_error);
        free(a->pending_restart);
        agent_view_done(a);
        config_free(a->config);
        sd_event_unref(a->event);
        credentials_secret_free(a->environment);
        free(a);
        return NULL;
}

/* ---- operating ---- */

void agent_flush(Agent *a, bool flush) {
        for (size_t i = 0; i < a->n_sources; i++)
                intake_source_flush(a->sources[i], flush);
        scheduler_retry_now(a->scheduler, NULL);
}

bool agent_is_idle(Agent *a) {
        if (!hook_is_idle(a))
                return false;
        for (size_t i = 0; i < a->n_sources; i++)
                if (!intake_source_is_idle(a->sources[i]))
                        return false;
        LIST_FOREACH (l, bundle_table_all(a->bundles)) {
                const Bundle *b = CONTAINER_OF(l, Bundle, link);
                if (b->source && !bundle_state_is_inactive(b->rec.state) &&
                    (b->rec.state != BUNDLE_READY || scheduler_can_continue(a->scheduler, b)))
                        return false;
        }
        return true;
}

static int print_undelivered(const BundleRecord *rec, void *userdata) {
        FILE *f = userdata;
        if (rec->state == BUNDLE_SETTLING || rec->state == BUNDLE_READY ||
            rec->state == BUNDLE_SHIPPING || rec->state == BUNDLE_QUARANTINED)
                fprintf(f, "%s %s: %s\n", rec->id, bundle_state_name(rec->state),
                        rec->reason ? rec->reason : "not delivered yet");
        return 0;
}

static int print_undelivered_state(Agent *a, BundleState state, FILE *f) {
        return bundle_table_list(a->bundles, &(StoreFilter){ .state = (int)state },
                                 print_undelivered, f);
}

size_t agent_print_undelivered(Agent *a, FILE *f) {
        static const BundleState left[] = { BUNDLE_SETTLING, BUNDLE_READY, BUNDLE_SHIPPING,
                                            BUNDLE_QUARANTINED };
        StoreCounts counts;
        bundle_table_counts(a->bundles, &counts);
        size_t n = 0;
        for (size_t i = 0; i < ELEMENTSOF(left); i++) {
                n += counts.bundles[left[i]];
                (void)print_undelivered_state(
                        a, left[i], f); /* the count is right even if the list cannot be read */
        }
        return n;
}

void agent_notify_status(Agent *a) {
        StoreCounts c;
        DrainView drain;
        bundle_table_counts(a->bundles, &c);
        agent_fill_drain_view(a, &drain);
        const char *drained = !drain.is_draining ? ""
                              : drain.is_safe    ? "drained, safe to terminate; "
                                                 : "draining; ";
        (void)sd_notifyf(
                false,
                "STATUS=%s%s%llu delivered, %llu settling, %llu ready, %llu shipping, %llu "
                "quarantined",
                drained, a->config_error ? "configuration: see the log; " : "",
                (unsigned long long)c.bundles[BUNDLE_DELIVERED],
                (unsigned long long)c.bundles[BUNDLE_SETTLING],
                (unsigned long long)c.bundles[BUNDLE_READY],
                (unsigned long long)c.bundles[BUNDLE_SHIPPING],
                (unsigned long long)
                        c.bundles[BUNDLE_QUARANTINED]); /* without systemd it does nothing */
}
