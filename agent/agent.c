#include "agent/agent_private.h"

#include <errno.h>
#include <signal.h>
#include <string.h>
#include <sys/socket.h>
#include <systemd/sd-daemon.h>

#include "agent/instance.h"
#include "agent/store/ledger.h"
#include "lib/base/fs.h"
#include "lib/base/log.h"
#include "lib/base/path.h"
#include "lib/base/strbuf.h"
#include "uploaders/credentials_env.h"
#include "uploaders/credentials_secret.h"

#define STORE_RETRY_USEC (5 * USEC_PER_SEC)

IntakeSource *agent_source_by_name(const Agent *a, const char *name) {
        for (size_t i = 0; i < a->n_sources; i++)
                if (strcmp(intake_source_config(a->sources[i])->name, name) == 0)
                        return a->sources[i];
        return NULL;
}

/* ---- news from the rooms ---- */

static void on_ready(Bundle *b, void *userdata) {
        Agent *a = userdata;
        (void)b;
        pipeline_kick(a->pipeline);
        agent_tell_status(a);
}

static void on_discard(const char *reason, uint64_t n, void *userdata) {
        Agent *a = userdata;
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

/* A bundle came to its end: what held its sources is let go, except where the operator can bring it back. */
static void on_final(Bundle *b, void *userdata) {
        Agent *a = userdata;
        if (a->pipeline)
                pipeline_forget(a->pipeline, b);
        if (b->source)
                intake_source_on_final(b->source, b);
        agent_tell_status(a);
}

static void on_delivered(const Bundle *b, void *userdata) {
        Agent *a = userdata;
        Histogram *h = &a->delivery_seconds;
        uint64_t now = a->clock->realtime_usec(a->clock);
        double seconds =
                now > b->rec.first_seen_usec ? (double)(now - b->rec.first_seen_usec) / 1e6 : 0;
        h->sum += seconds;
        h->total++;
        for (size_t i = 0; i < HISTOGRAM_BUCKETS; i++)
                if (seconds <= h->le[i]) {
                        h->count[i]++;
                        return;
                }
}

static int on_store_timer(sd_event_source *source, uint64_t usec, void *userdata) {
        Agent *a = userdata;
        (void)usec;
        if (bundle_table_retry(a->bundles))
                return 0;
        int r = sd_event_source_set_time_relative(source, STORE_RETRY_USEC);
        return r < 0 ? r : sd_event_source_set_enabled(source, SD_EVENT_ONESHOT);
}

static void on_store_error(void *userdata) {
        Agent *a = userdata;
        int r, enabled = 0;
        if (!a->store_timer)
                r = sd_event_add_time_relative(a->event, &a->store_timer, CLOCK_MONOTONIC,
                                               STORE_RETRY_USEC, 0, on_store_timer, a);
        else {
                r = sd_event_source_get_enabled(a->store_timer, &enabled);
                if (r >= 0 && enabled == SD_EVENT_OFF)
                        r = sd_event_source_set_time_relative(a->store_timer, STORE_RETRY_USEC);
                if (r >= 0 && enabled == SD_EVENT_OFF)
                        r = sd_event_source_set_enabled(a->store_timer, SD_EVENT_ONESHOT);
        }
        if (r < 0)
                log_error(r, "cannot arm the timer that writes the state database again");
}

/* ---- making it ---- */

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
                          "writable by this user and has room",
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

static int make_pipeline(Agent *a) {
        PipelineContext context = { .event = a->event,
                                    .clock = a->clock,
                                    .store = a->store,
                                    .bundles = a->bundles,
                                    .instance_id = a->instance_id,
                                    .hostname = a->hostname,
                                    .environment = a->environment,
                                    .on_delivered = on_delivered,
                                    .userdata = a };
        return pipeline_new(&a->pipeline, &context, a->config);
}

/* A source of the same name that now looks elsewhere is another one: it would find nothing at the bundle's path. */
static void adopt(Agent *a, IntakeSource *s) {
        LIST_FOREACH_SAFE (l, bundle_table_all(a->bundles)) {
                Bundle *b = CONTAINER_OF(l, Bundle, link);
                if (!b->source && strcmp(b->rec.source, intake_source_config(s)->name) == 0 &&
                    path_is_below(b->rec.path, intake_source_terms(s)->fixed))
                        intake_source_adopt(s, b);
        }
}

static int make_sources(Agent *a) {
        a->intake_context = (IntakeContext){ .event = a->event,
                                             .clock = a->clock,
                                             .store = a->store,
                                             .bundles = a->bundles,
                                             .instance_id = a->instance_id,
                                             .proc_root = a->config->snapshot.proc_root,
                                             .on_ready = on_ready,
                                             .on_discard = on_discard,
                                             .userdata = a };
        a->sources = calloc(MAX(a->config->n_sources, (size_t)1), sizeof *a->sources);
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
                adopt(a, a->sources[a->n_sources++]);
        }
        return failed;
}

/* A socket that systemd hands over is known by its path, whatever the unit is called. */
static int passed_socket(const char *path) {
        int n = sd_listen_fds(0);
        for (int fd = SD_LISTEN_FDS_START; fd < SD_LISTEN_FDS_START + n; fd++)
                if (sd_is_socket_unix(fd, SOCK_STREAM, 1, path, 0) > 0)
                        return fd;
        return -1;
}

static int make_api(Agent *a) {
        int fd = passed_socket(a->config->api.socket), r = 0;
        if (fd < 0)
                r = api_listen_unix(a->config->api.socket, &fd);
        if (r < 0) {
                if (a->once) /* a sweep without an audience is as good */
                        return 0;
                log_error(r, "cannot listen on '%s'%s", a->config->api.socket,
                          r == -EADDRINUSE ? ": another agent answers there; stop it, or set "
                                             "another api.socket"
                                           : "; check that its directory can be written, or set "
                                             "another api.socket");
                return r;
        }
        r = api_new(&a->api, a->event, fd, false, &a->backend);
        if (r < 0) {
                log_error(r, "cannot serve the API on '%s'", a->config->api.socket);
                return r;
        }
        if (!a->config->api.listen[0])
                return 0;
        r = api_listen_tcp(a->config->api.listen, &fd);
        if (r >= 0)
                r = api_new(&a->api_tcp, a->event, fd, true, &a->backend);
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
        r = bundle_table_new(&a->bundles, a->store, a->clock,
                             &(BundleTableCallbacks){ on_final, on_store_error, a });
        if (r < 0) {
                log_error(r, "cannot read the state database");
                return r;
        }
        r = store_ledger_abandon_idle(a->store);
        if (r < 0)
                log_warning(r, "cannot look for uploads that nobody goes on with");
        r = make_pipeline(a);
        if (r < 0) {
                log_error(r, "cannot set up the destinations");
                return r;
        }
        r = make_sources(a);
        if (r < 0)
                return r;
        r = make_api(a);
        if (r < 0)
                return r;
        if (a->once) /* failures of an earlier run are no reason not to try */
                LIST_FOREACH (l, bundle_table_all(a->bundles))
                        pipeline_retry_now(a->pipeline, CONTAINER_OF(l, Bundle, link));
        pipeline_retry_now(a->pipeline, NULL);
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
        a->environment = credentials_env_take(environ);
        int r = a->environment ? agent_start(a) : -ENOMEM;
        if (r != 0) {
                agent_free(a);
                return r;
        }
        *ret = a;
        return 0;
}

static const ConfigSource *agent_config_source(const Config *c, const char *name) {
        for (size_t i = 0; i < c->n_sources; i++)
                if (strcmp(c->sources[i].name, name) == 0)
                        return &c->sources[i];
        return NULL;
}

static void free_sources(Agent *a) {
        for (size_t i = 0; i < a->n_sources; i++)
                intake_source_free(a->sources[i]);
        free(a->sources);
        a->sources = NULL;
        a->n_sources = 0;
}

Agent *agent_free(Agent *a) {
        if (!a)
                return NULL;
        api_free(a->api);
        api_free(a->api_tcp);
        pipeline_free(a->pipeline);
        free_sources(a);
        sd_event_source_disable_unref(a->store_timer);
        bundle_table_free(a->bundles);
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

/* ---- reload ---- */

typedef struct Changes {
        StrBuf applied, restart;
        bool pipeline, sources;
} Changes;

static void on_changed_key(const char *key, bool needs_restart, void *userdata) {
        Changes *c = userdata;
        StrBuf *list = needs_restart ? &c->restart : &c->applied;
        strbuf_addf(list, "%s%s", list->n ? ", " : "", key);
        if (needs_restart)
                return;
        c->pipeline = c->pipeline || strncmp(key, "destinations", 12) == 0 ||
                      strncmp(key, "limits", 6) == 0 || strncmp(key, "node", 4) == 0;
        c->sources =
                c->sources || strncmp(key, "sources", 7) == 0 || strncmp(key, "snapshot", 8) == 0;
}

static void note_config_error(Agent *a, const Diags *diags) {
        StrBuf text = STRBUF_INIT;
        for (size_t i = 0; i < diags->n; i++) {
                _cleanup_free_ char *line = diag_format(&diags->items[i]);
                if (!line)
                        continue;
                log_error(0, "%s", line);
                strbuf_addf(&text, "%s%s", text.n ? "\n" : "", line);
        }
        free(a->config_error);
        a->config_error = strbuf_take(&text);
        log_error(0, "faults in the configuration: %zu; keeping the one that is running", diags->n);
}

/* Swaps the values that need a restart, so that what runs and what status shows agree. */
static void keep_until_restart(Config *running, Config *loaded) {
        char *keep;
#define KEEP(field)                                                                                \
        do {                                                                                       \
                keep = running->field;                                                             \
                running->field = loaded->field;                                                    \
                loaded->field = keep;                                                              \
        } while (0)
        KEEP(state_directory);
        KEEP(node.instance_id);
        KEEP(api.socket);
        KEEP(api.listen);
        KEEP(hook.socket);
        KEEP(hook.mailbox);
#undef KEEP
}

/* All that can fail comes before anything is let go, but for the sources: one that cannot be started is said and left out. */
static int apply(Agent *a, Config *loaded, const Changes *c) {
        Config *old = a->config;
        Pipeline *before = a->pipeline;
        a->config = loaded;
        if (c->pipeline) {
                int r = make_pipeline(a);
                if (r < 0) {
                        a->config = old;
                        a->pipeline = before;
                        return r;
                }
                pipeline_free(before); /* what was underway starts over */
        } else
                pipeline_rebind(a->pipeline, loaded);
        if (c->sources) {
                free_sources(a);
                (void)make_sources(a); /* said there, source by source */
        } else {
                a->intake_context.proc_root = loaded->snapshot.proc_root;
                for (size_t i = 0; i < a->n_sources; i++)
                        intake_source_rebind(
                                a->sources[i],
                                agent_config_source(loaded,
                                                    intake_source_config(a->sources[i])->name));
        }
        config_free(old);
        return 0;
}

int agent_reload(Agent *a) {
        Diags diags = { 0 };
        Config *loaded = NULL;
        int r = a->config->file ? config_load(&loaded, a->config->file, environ, &diags)
                                : config_builtin(&loaded);
        if (r != 0) {
                note_config_error(a, &diags);
                diag_done(&diags);
                return r;
        }
        diag_done(&diags);
        Changes c = { 0 };
        config_compare(a->config, loaded, on_changed_key, &c);
        keep_until_restart(a->config, loaded);
        log_setup((LogFormat)loaded->log.format, loaded->log.level);
        r = apply(a, loaded, &c);
        if (r < 0) {
                keep_until_restart(a->config, loaded); /* back again */
                config_free(loaded);
                log_error(r, "cannot set up the new destinations; keeping the configuration that "
                             "is running");
                free(a->config_error);
                a->config_error = strdup("the new destinations could not be set up; the "
                                         "configuration before it is still in force");
        } else {
                free(a->config_error);
                a->config_error = NULL;
                free(a->pending_restart);
                a->pending_restart = NULL;
                a->loaded_usec = a->clock->realtime_usec(a->clock);
                log_notice("configuration reloaded; changed: %s",
                           c.applied.n ? c.applied.text : "nothing");
                if (c.restart.n) {
                        log_warning(0, "these take effect only after a restart: %s",
                                    c.restart.text);
                        a->pending_restart =
                                strdup(c.restart.text); /* NULL: then only the log has it */
                }
                pipeline_kick(a->pipeline);
        }
        strbuf_done(&c.applied);
        strbuf_done(&c.restart);
        return r;
}

/* ---- operating ---- */

void agent_flush(Agent *a, bool flush) {
        for (size_t i = 0; i < a->n_sources; i++)
                intake_source_flush(a->sources[i], flush);
        pipeline_retry_now(a->pipeline, NULL);
}

bool agent_is_through(Agent *a) {
        for (size_t i = 0; i < a->n_sources; i++)
                if (!intake_source_is_idle(a->sources[i]))
                        return false;
        LIST_FOREACH (l, bundle_table_all(a->bundles)) {
                const Bundle *b = CONTAINER_OF(l, Bundle, link);
                if (b->source &&
                    (b->rec.state != BUNDLE_READY || pipeline_can_go_on(a->pipeline, b)))
                        return false;
        }
        return true;
}

static int print_left(BundleRecord *rec, void *userdata) {
        FILE *f = userdata;
        if (rec->state == BUNDLE_SETTLING || rec->state == BUNDLE_READY ||
            rec->state == BUNDLE_SHIPPING || rec->state == BUNDLE_QUARANTINED)
                fprintf(f, "%s %s: %s\n", rec->id, bundle_state_name(rec->state),
                        rec->reason ? rec->reason : "not delivered yet");
        return 0;
}

static int print_left_state(Agent *a, BundleState state, FILE *f) {
        return store_list(a->store, &(StoreFilter){ .state = (int)state }, print_left, f);
}

size_t agent_print_left(Agent *a, FILE *f) {
        static const BundleState left[] = { BUNDLE_SETTLING, BUNDLE_READY, BUNDLE_SHIPPING,
                                            BUNDLE_QUARANTINED };
        StoreCounts counts;
        store_counts(a->store, &counts);
        size_t n = 0;
        for (size_t i = 0; i < ELEMENTSOF(left); i++) {
                n += counts.bundles[left[i]];
                (void)print_left_state(a, left[i],
                                       f); /* the count tells even when the list cannot be read */
        }
        return n;
}

void agent_tell_status(Agent *a) {
        StoreCounts c;
        store_counts(a->store, &c);
        (void)sd_notifyf(
                false,
                "STATUS=%s%llu delivered, %llu settling, %llu ready, %llu shipping, %llu "
                "quarantined",
                a->config_error ? "configuration: see the log; " : "",
                (unsigned long long)c.bundles[BUNDLE_DELIVERED],
                (unsigned long long)c.bundles[BUNDLE_SETTLING],
                (unsigned long long)c.bundles[BUNDLE_READY],
                (unsigned long long)c.bundles[BUNDLE_SHIPPING],
                (unsigned long long)c.bundles[BUNDLE_QUARANTINED]); /* nobody to tell is no fault */
}
