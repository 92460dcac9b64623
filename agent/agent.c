/* The agent's life: in which order its objects are created, stopped and freed, and the sockets of
 * its API and of hooks. Which folder reports what to which is in connections.c; README.md has the
 * other files. */
#include "agent/agent.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <systemd/sd-daemon.h>
#include <systemd/sd-event.h>
#include <unistd.h>

#include "agent/agent_private.h"
#include "agent/api/api.h"
#include "agent/intake/intake.h"
#include "agent/retention/link_list.h"
#include "agent/store/store.h"
#include "lib/base/cleanup.h"
#include "lib/base/log.h"
#include "lib/base/path.h"
#include "lib/neuron/ids.h"
#include "uploaders/aws/aws_environment.h"
#include "uploaders/aws/credentials.h"
#include "uploaders/aws/credentials_secret.h"

/* ---- sockets ---- */

/* @return an fd that systemd has passed for this path and type; -1 */
static int find_passed_socket(const char *path, int type) {
        int n = sd_listen_fds(0);
        for (int fd = SD_LISTEN_FDS_START; fd < SD_LISTEN_FDS_START + n; fd++)
                if (sd_is_socket_unix(fd, type, 1, path, 0) > 0)
                        return fd;
        return -1;
}

static int open_socket(Agent *a) {
        const char *path = a->config->hook.socket;
        int fd = find_passed_socket(path, SOCK_SEQPACKET);
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

static int start_api(Agent *a) {
        int fd = find_passed_socket(a->config->api.socket, SOCK_STREAM), r = 0;
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
                            &(ApiListener){ .fd = fd,
                                            .read_only = true,
                                            .hostname = a->hostname,
                                            .backend = &a->backend });
        if (r < 0)
                log_error(r, "cannot listen on '%s' (api.listen)%s", a->config->api.listen,
                          r == -EADDRNOTAVAIL ? "; set it to an address of this node" : "");
        return r == -EADDRNOTAVAIL ? AGENT_E_CONFIG : r;
}

/* ---- life ---- */

static int agent_start(Agent *a) {
        const char *origin = "";
        int r = ec2_find_instance_id(a->config, a->environment, a->instance_id, &origin);
        if (r < 0) {
                log_error(r, "cannot find an instance id; set node.instance_id");
                return r;
        }
        if (gethostname(a->hostname, sizeof a->hostname - 1) < 0)
                strcpy(a->hostname, "unknown");
        log_info("this node is '%s' (from %s)", a->instance_id, origin);
        r = agent_state_open(a);
        if (r != 0)
                return r;
        r = agent_create_evidence(a);
        if (r < 0) {
                log_error(r, "cannot manage '%s/" EVIDENCE_DIRECTORY "'",
                          a->config->state_directory);
                return r;
        }
        r = agent_create_bundle_table(a);
        if (r < 0) {
                log_error(r, "cannot read the state database");
                return r;
        }
        agent_state_watch(a);
        agent_load_discards(a);
        r = store_ledger_abandon_idle(a->store);
        if (r < 0)
                log_warning(r, "cannot queue abandoned uploads for abort");
        r = agent_create_scheduler(a);
        if (r < 0) {
                log_error(r, "cannot set up the destinations");
                return r;
        }
        agent_start_failures(a);
        r = agent_reports_start(a);
        if (r < 0)
                return r;
        a->link_list = path_join(a->config->state_directory, LINK_LIST_NAME);
        if (!a->link_list)
                return -ENOMEM;
        agent_connect_intake(a);
        r = agent_sources_start(a);
        if (r < 0)
                return r;
        r = agent_reports_resume(a);
        if (r < 0)
                log_warning(r, "pending crash reports cannot be listed; they are made after the "
                               "next start");
        r = agent_create_retention_runner(a);
        if (r < 0) {
                log_error(r, "cannot set up retention");
                return r;
        }
        agent_start_hook(a, open_socket(a));
        r = start_api(a);
        if (r != 0)
                return r;
        if (!a->once && agent_start_notices(a) < 0)
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
        a->delivery_seconds =
                (Histogram){ .le = { 1, 5, 10, 30, 60, 120, 300, 600, 1800, 3600, 21600, 86400 } };
        agent_view_init(a);
        agent_backend_init(a);
        a->environment = aws_environment_own(environ);
        int r = a->environment ? agent_start(a) : -ENOMEM;
        if (r != 0) {
                agent_free(a);
                return r;
        }
        *ret = a;
        return 0;
}

static void on_wound_down(Agent *a) {
        a->drain.on_stopped(a->drain.userdata);
}

void agent_stop(Agent *a, void (*on_stopped)(void *userdata), void *userdata) {
        Drain *d = &a->drain;
        if (d->state == AGENT_STOPPING)
                return;
        agent_drain_set_state(d, AGENT_STOPPING);
        agent_reload_cancel(a);
        d->on_stopped = on_stopped;
        d->userdata = userdata;
        for (size_t i = 0; i < a->n_sources; i++)
                intake_source_hold(a->sources[i], true);
        (void)sd_notifyf(false, "EXTEND_TIMEOUT_USEC=%llu", (unsigned long long)AGENT_EXTEND_USEC);
        agent_wind_down(a, &d->stop, on_wound_down);
}

Agent *agent_free(Agent *a) {
        if (!a)
                return NULL;
        api_free(a->api);
        api_free(a->api_tcp);
        ec2_notices_free(a->notices);
        sd_event_source_disable_unref(a->drain.timer);
        sd_event_source_disable_unref(a->drain.announced_timer);
        sd_event_source_disable_unref(a->drain.stop.timer);
        agent_reload_cancel(a);
        a->notes = hooknotes_free(a->notes);
        a->node_watch = node_watch_free(a->node_watch);
        a->incidents = incidents_free(a->incidents);
        a->crash_reports = crash_reports_free(a->crash_reports);
        a->retention_runner = retention_runner_free(a->retention_runner);
        if (a->failures)
                failures_set_scheduler(a->failures, NULL);
        a->scheduler = scheduler_free(a->scheduler);
        a->failures = failures_free(a->failures);
        agent_sources_free(a);
        sd_event_source_disable_unref(a->store_timer);
        sd_event_source_disable_unref(a->state_watch);
        bundle_table_free(a->bundles);
        evidence_free(a->evidence);
        store_close(a->store);
        for (size_t i = 0; i < a->n_discards; i++)
                free((char *)a->discards[i].label);
        free(a->discards);
        free(a->config_error);
        free(a->pending_restart);
        free(a->link_list);
        free(a->probe_socket);
        agent_view_done(a);
        config_free(a->config);
        sd_event_unref(a->event);
        credentials_secret_free(a->environment);
        free(a);
        return NULL;
}
