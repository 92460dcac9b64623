/* A reload (SIGHUP): reads the configuration file, compares it with the one that is running, and
 * applies what changed. An invalid file changes nothing. Where destinations, limits or the node's
 * name changed, running deliveries have a few seconds to end first, and the scheduler is created
 * again; where sources changed, all sources are started again. Some keys take effect only after a
 * restart (config/keys.c): their values stay, and status names them. */
#include "agent/agent_private.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "agent/delivery/scheduler.h"
#include "agent/intake/intake.h"
#include "config/keys.h"
#include "lib/base/cleanup.h"
#include "lib/base/log.h"
#include "lib/base/strbuf.h"

static void forget_changes(ReloadChanges *c) {
        strbuf_done(&c->applied);
        strbuf_done(&c->restart);
        *c = (ReloadChanges){ 0 };
}

void agent_reload_cancel(Agent *a) {
        Reload *x = &a->reload;
        x->wind_down.timer = sd_event_source_disable_unref(x->wind_down.timer);
        x->loaded = config_free(x->loaded);
        forget_changes(&x->changes);
        x->is_requested_again = false;
}

static void on_changed_key(const char *key, bool needs_restart, void *userdata) {
        ReloadChanges *c = userdata;
        StrBuf *list = needs_restart ? &c->restart : &c->applied;
        strbuf_addf(list, "%s%s", list->n ? ", " : "", key);
        if (needs_restart)
                return;
        bool is_trust = strcmp(key, "agreement.trusted_uids") == 0;
        c->scheduler = c->scheduler || is_trust || strncmp(key, "destinations", 12) == 0 ||
                       strncmp(key, "limits", 6) == 0 || strncmp(key, "node", 4) == 0;
        c->sources = c->sources || is_trust || strncmp(key, "sources", 7) == 0 ||
                     strncmp(key, "snapshot", 8) == 0;
}

static void report_config_error(Agent *a, const Diags *diags) {
        StrBuf text = STRBUF_INIT;
        for (size_t i = 0; i < diags->n; i++) {
                _cleanup_free_ char *line = diag_format(&diags->items[i]);
                if (!line)
                        continue;
                log_error(0, "%s", line);
                strbuf_addf(&text, "%s%s", text.n ? "\n" : "", line);
        }
        free(a->config_error);
        a->config_error = strbuf_detach(&text);
        log_error(0, "%zu %s in the configuration; keeping the running one", diags->n,
                  diags->n == 1 ? "error" : "errors");
}

/* Swaps the values that take effect only after a restart, so that status shows the values in force.
 */
static void keep_until_restart(Config *running, Config *loaded) {
#define KEEP(field)                                                                                \
        do {                                                                                       \
                __typeof__(running->field) keep = running->field;                                  \
                running->field = loaded->field;                                                    \
                loaded->field = keep;                                                              \
        } while (0)
        KEEP(state_directory);
        KEEP(node.instance_id);
        KEEP(agreement.enabled);
        KEEP(api.socket);
        KEEP(api.listen);
        KEEP(hook.socket);
        KEEP(hook.mailbox);
#undef KEEP
}

/* Does what can fail before it releases anything. A source that cannot be started is logged and
 * omitted. */
static int apply(Agent *a, Config *loaded, const ReloadChanges *c) {
        Config *old = a->config;
        Scheduler *before = a->scheduler;
        a->config = loaded;
        if (c->scheduler) {
                int r = agent_create_scheduler(a);
                if (r < 0) {
                        a->config = old;
                        a->scheduler = before;
                        return r;
                }
                if (a->failures)
                        failures_set_scheduler(a->failures, NULL);
                scheduler_free(
                        before); /* its deliveries have ended: uploads resume, copies restart */
        } else
                scheduler_set_config(a->scheduler, loaded);
        if (c->sources) {
                retention_runner_set_sources(a->retention_runner, NULL, 0);
                agent_sources_free(a);
                (void)agent_sources_start(a); /* it logs each failure */
                agent_sources_set_retention(a);
        } else {
                a->intake_context.proc_root = loaded->snapshot.proc_root;
                a->intake_context.trusted_uids =
                        (const char *const *)loaded->agreement.trusted_uids.items;
                a->intake_context.hook_deadline_usec = loaded->hook.deadline_usec;
                agent_sources_rebind(a, loaded);
        }
        a->intake_context.history_usec = loaded->retention.history_usec;
        retention_runner_rebind(a->retention_runner, loaded);
        if (a->notes)
                hooknotes_rebind(a->notes, a->config);
        if (a->node_watch)
                node_watch_rebind(a->node_watch, a->config);
        if (a->incidents)
                incidents_rebind(a->incidents, a->config);
        if (a->failures) {
                failures_rebind(a->failures, a->config);
                failures_set_scheduler(a->failures, a->scheduler);
        }
        agent_drain_apply(a);
        config_free(old);
        return 0;
}

static void set_config_error(Agent *a, const char *text) {
        free(a->config_error);
        a->config_error = text ? strdup(text) : NULL;
}

static void report_applied(Agent *a, const ReloadChanges *c) {
        set_config_error(a, NULL);
        agent_recount_lacking(a);
        free(a->pending_restart);
        a->pending_restart = NULL;
        a->loaded_usec = a->clock->realtime_usec(a->clock);
        log_notice("configuration reloaded; changed: %s",
                   c->applied.n ? c->applied.text : "nothing");
        if (c->restart.n == 0)
                return;
        log_warning(0, "these take effect only after a restart: %s", c->restart.text);
        a->pending_restart = strdup(c->restart.text); /* without memory only the log has it */
}

static void finish_reload(Agent *a) {
        Reload *x = &a->reload;
        Config *loaded = TAKE_PTR(x->loaded);
        log_setup((LogFormat)loaded->log.format, loaded->log.level);
        keep_until_restart(a->config, loaded);
        int r = apply(a, loaded, &x->changes);
        if (r < 0) {
                keep_until_restart(a->config, loaded); /* swaps them back */
                config_free(loaded);
                log_error(r, "cannot set up the new destinations; keeping the configuration that "
                             "is running");
                set_config_error(a, "the new destinations could not be set up; the configuration "
                                    "before it is still in force");
                scheduler_resume(a->scheduler);
        } else
                report_applied(a, &x->changes);
        scheduler_kick(a->scheduler);
        forget_changes(&x->changes);
        x->on_done(x->userdata);
        if (x->is_requested_again) {
                x->is_requested_again = false;
                agent_reload(a, x->on_done, x->userdata);
        }
}

void agent_reload(Agent *a, void (*on_done)(void *userdata), void *userdata) {
        Reload *x = &a->reload;
        Diags diags = { 0 };
        if (a->drain.state == AGENT_STOPPING) {
                on_done(userdata);
                return;
        }
        if (x->loaded) { /* the file may have changed since it was read */
                x->is_requested_again = true;
                return;
        }
        x->on_done = on_done;
        x->userdata = userdata;
        int r = config_load(&x->loaded, a->config->file, environ, &diags);
        if (r != 0)
                report_config_error(a, &diags);
        diag_done(&diags);
        if (r != 0) {
                on_done(userdata);
                return;
        }
        config_compare(a->config, x->loaded, on_changed_key, &x->changes);
        if (x->changes.scheduler) /* its deliveries end first */
                agent_wind_down(a, &x->wind_down, finish_reload);
        else
                finish_reload(a);
}
