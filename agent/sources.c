/* The sources: those that are configured, and the one that nobody configures, of what the agent
 * itself makes (agent/evidence), whose directory is below the state directory. They are started,
 * stopped and given another configuration together. What a source does is agent/intake's, and what
 * its callbacks do is in connections.c. */
#include "agent/agent_private.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "agent/delivery/scheduler.h"
#include "agent/evidence/evidence.h"
#include "agent/intake/intake.h"
#include "lib/base/array.h"
#include "lib/base/cleanup.h"
#include "lib/base/log.h"
#include "lib/base/path.h"
#include "lib/base/strbuf.h"

#define SETTLE_USEC (1 * USEC_PER_SEC) /* a directory appears there complete, by rename */

static ConfigSource *free_config_source(ConfigSource *c) {
        if (!c)
                return NULL;
        strings_free(c->destinations.items);
        strings_free(c->exclude.items);
        free(c->name);
        free(c->path);
        free(c);
        return NULL;
}

DEFINE_CLEANUP(ConfigSource, free_config_source);

/* A percent sign of the state directory's path is doubled in a template. */
static void add_state_directory(StrBuf *b, const Agent *a) {
        for (const char *s = a->config->state_directory; *s; s++)
                strbuf_add_n(b, *s == '%' ? "%%" : s, *s == '%' ? 2 : 1);
}

/* It goes to all destinations, or to those of its subject's source: agent_describe(). */
static ConfigSource *create_own_config(const Agent *a) {
        const Config *c = a->config;
        _cleanup_(free_config_sourcep) ConfigSource *s = calloc(1, sizeof *s);
        if (!s)
                return NULL;
        StrBuf path = STRBUF_INIT;
        add_state_directory(&path, a);
        strbuf_add(&path, "/" EVIDENCE_DIRECTORY "/%l"); /* %l matches any name */
        *s = (ConfigSource){ .name = strdup(AGENT_SOURCE),
                             .path = strbuf_detach(&path),
                             .kind = CONFIG_DIRECTORY,
                             .settle_usec = SETTLE_USEC,
                             .max_wait_usec = 30 * USEC_PER_MINUTE,
                             .scan_interval_usec = USEC_PER_MINUTE,
                             .watch = CONFIG_WATCH_AUTO,
                             .max_files = 100000 };
        s->exclude.items = calloc(2, sizeof *s->exclude.items);
        if (s->exclude.items && (s->exclude.items[0] = strdup(EVIDENCE_ABOUT_FILE)))
                s->exclude.n = 1;
        char **names = s->destinations.items = calloc(c->n_destinations + 1, sizeof *names);
        for (size_t i = 0; names && i < c->n_destinations; i++)
                if ((names[i] = strdup(c->destinations[i].name)))
                        s->destinations.n++;
        return s->name && s->path && names && s->destinations.n == c->n_destinations &&
                               s->exclude.n == 1
                       ? TAKE_PTR(s)
                       : NULL;
}

IntakeSource *agent_source_by_name(const Agent *a, const char *name) {
        for (size_t i = 0; i < a->n_sources; i++)
                if (strcmp(intake_source_config(a->sources[i])->name, name) == 0)
                        return a->sources[i];
        return NULL;
}

/* Of the source of a dump, as long as it is configured. */
static int copy_destinations(const Agent *a, const char *source, BundleRecord *rec) {
        const ConfigSource *c = config_find_source(a->config, source);
        if (!c)
                return 0;
        rec->deliveries = calloc(c->destinations.n, sizeof *rec->deliveries);
        if (!rec->deliveries)
                return -ENOMEM;
        for (size_t i = 0; i < c->destinations.n; i++) {
                char *name = strdup(c->destinations.items[i]);
                if (!name)
                        return -ENOMEM;
                rec->deliveries[rec->n_deliveries++].destination = name;
        }
        return 0;
}

void agent_describe(const IntakeSource *s, BundleRecord *rec, void *userdata) {
        const Agent *a = userdata;
        _cleanup_(bundle_record_done) BundleRecord subject = { 0 };
        if (strcmp(intake_source_config(s)->name, AGENT_SOURCE) != 0 || evidence_describe(rec) < 0)
                return;
        if (rec->subject[0] && store_get(a->store, rec->subject, &subject) == 0 &&
            copy_destinations(a, subject.source, rec) < 0)
                log_warning(-ENOMEM, "'%s' goes to some of its destinations only", rec->path);
}

/* A source of the same name whose path has changed does not find the bundle's files. */
static void adopt_bundles(Agent *a, IntakeSource *s) {
        LIST_FOREACH_ITEM_SAFE (Bundle, b, link, bundle_table_all(a->bundles))
                if (!b->source && strcmp(b->rec.source, intake_source_config(s)->name) == 0 &&
                    path_is_below(b->rec.path, intake_source_spec(s)->fixed))
                        intake_source_resume_bundle(s, b);
}

static void start_own_source(Agent *a) {
        ConfigSource *c = create_own_config(a);
        int r = c ? intake_source_new(&a->sources[a->n_sources], &a->intake_context, c) : -ENOMEM;
        if (r < 0) {
                log_error(r, "source " AGENT_SOURCE ": cannot start it; a reload tries again");
                free_config_source(c);
                return;
        }
        a->own_config = c;
        adopt_bundles(a, a->sources[a->n_sources++]);
}

static void rebind_own_source(Agent *a) {
        ConfigSource *old = a->own_config;
        ConfigSource *c = old ? create_own_config(a) : NULL;
        if (!c)
                return;
        intake_source_rebind(agent_source_by_name(a, AGENT_SOURCE), c);
        a->own_config = c;
        free_config_source(old);
}

int agent_sources_start(Agent *a) {
        const Config *c = a->config;
        a->intake_context = a->intake_setup;
        a->intake_context.proc_root = c->snapshot.proc_root;
        a->intake_context.trusted_uids = (const char *const *)c->agreement.trusted_uids.items;
        a->intake_context.hook_deadline_usec = c->hook.deadline_usec;
        a->intake_context.history_usec = c->retention.history_usec;
        a->sources = calloc(a->config->n_sources + 1, sizeof *a->sources);
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
                adopt_bundles(a, a->sources[a->n_sources++]);
        }
        start_own_source(a);
        return failed;
}

void agent_sources_rebind(Agent *a, const Config *loaded) {
        for (size_t i = 0; i < a->n_sources; i++) {
                const ConfigSource *was = intake_source_config(a->sources[i]);
                const ConfigSource *is = config_find_source(loaded, was->name);
                if (is)
                        intake_source_rebind(a->sources[i], is);
        }
        rebind_own_source(a);
}

void agent_sources_free(Agent *a) {
        for (size_t i = 0; i < a->n_sources; i++)
                intake_source_free(a->sources[i]);
        bound_done(&a->intake_context.active);
        bound_done(&a->intake_context.hook_units);
        bound_done(&a->intake_context.held);
        bound_done(&a->intake_context.new_units);
        bound_done(&a->intake_context.watched);
        bound_done(&a->intake_context.hints);
        bound_done(&a->intake_context.root_hints);
        free(a->sources);
        a->sources = NULL;
        a->n_sources = 0;
        a->own_config = free_config_source(a->own_config);
}

void agent_sources_set_retention(Agent *a) {
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

void agent_flush(Agent *a, bool flush) {
        for (size_t i = 0; i < a->n_sources; i++)
                intake_source_flush(a->sources[i], flush);
        scheduler_retry_now(a->scheduler, NULL);
}
