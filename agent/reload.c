/* Reload: reads the configuration, compares it with the running one, and applies what changed. */
#include <string.h>
#include <unistd.h>

#include "agent/agent_private.h"
#include "lib/base/log.h"

const ConfigSource *agent_config_source(const Config *c, const char *name) {
        for (size_t i = 0; i < c->n_sources; i++)
                if (strcmp(c->sources[i].name, name) == 0)
                        return &c->sources[i];
        return NULL;
}

static void on_changed_key(const char *key, bool needs_restart, void *userdata) {
        ReloadChanges *c = userdata;
        StrBuf *list = needs_restart ? &c->restart : &c->applied;
        strbuf_addf(list, "%s%s", list->n ? ", " : "", key);
        if (needs_restart)
                return;
        c->scheduler = c->scheduler || strncmp(key, "destinations", 12) == 0 ||
                       strncmp(key, "limits", 6) == 0 || strncmp(key, "node", 4) == 0;
        c->sources =
                c->sources || strncmp(key, "sources", 7) == 0 || strncmp(key, "snapshot", 8) == 0;
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
        log_error(0, "%zu errors in the configuration; keeping the running one", diags->n);
}

/* Swaps the values that need a restart, so that status shows what runs. */
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

static void rebind_sources(Agent *a, const Config *loaded) {
        for (size_t i = 0; i < a->n_sources; i++) {
                const ConfigSource *was = intake_source_config(a->sources[i]);
                const ConfigSource *is = agent_config_source(loaded, was->name);
                if (is)
                        intake_source_rebind(a->sources[i], is);
        }
        own_sources_rebind(a);
}

/* All that can fail comes before anything is released. A source that cannot be started is logged
 * and omitted. */
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
                scheduler_free(before); /* wound down: uploads resume, copies restart */
        } else
                scheduler_set_config(a->scheduler, loaded);
        if (c->sources) {
                retention_runner_set_sources(a->retention_runner, NULL, 0);
                agent_free_sources(a);
                (void)agent_start_sources(a); /* it logs each failure */
                agent_set_retention_sources(a);
        } else {
                a->intake_context.proc_root = loaded->snapshot.proc_root;
                a->intake_context.hook_deadline_usec = loaded->hook.deadline_usec;
                rebind_sources(a, loaded);
        }
        retention_runner_rebind(a->retention_runner, loaded);
        agent_rebind_hook(a);
        agent_apply_drain(a);
        config_free(old);
        return 0;
}

static void set_config_error(Agent *a, const char *text) {
        free(a->config_error);
        a->config_error = text ? strdup(text) : NULL;
}

static void report_applied(Agent *a, const ReloadChanges *c) {
        set_config_error(a, NULL);
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
        strbuf_done(&x->changes.applied);
        strbuf_done(&x->changes.restart);
        x->changes = (ReloadChanges){ 0 };
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
        int r = a->config->file ? config_load(&x->loaded, a->config->file, environ, &diags)
                                : config_builtin(&x->loaded);
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

void agent_cancel_reload(Agent *a) {
        Reload *x = &a->reload;
        wind_down_done(&x->wind_down);
        x->loaded = config_free(x->loaded);
        strbuf_done(&x->changes.applied);
        strbuf_done(&x->changes.restart);
        x->changes = (ReloadChanges){ 0 };
        x->is_requested_again = false;
}
