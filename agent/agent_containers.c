#include "agent/agent_containers.h"

#include <errno.h>
#include <string.h>

#include "config/validators.h"
#include "lib/base/fs.h"
#include "lib/base/log.h"
#include "lib/base/path.h"
#include "lib/neuron/template.h"

#define SETTLE_USEC (1 * USEC_PER_SEC) /* a directory comes there whole, by rename */

DEFINE_CLEANUP(PathTemplate, path_template_free);

/* ---- their configuration ---- */

static int copy_list(StringList *to, const StringList *from) {
        int r = 0;
        for (size_t i = 0; r == 0 && i < from->n; i++)
                r = agent_own_source_add(to, from->items[i]);
        return r;
}

/* @return the part of a template's text that is below its fixed part, with a slash before it; "" */
static const char *below_fixed(const char *text, const char *fixed) {
        for (const char *s = fixed; *s; s++)
                if (s[0] == '/' && s[1] != '\0') {
                        const char *next = strchr(text + 1, '/');
                        text = next ? next : text + strlen(text);
                }
        return text;
}

/* What stands for the number of a copy must not mean anything else: the template's own variables have their values. */
static char free_letter(const PathTemplate *t) {
        for (const char *s = "lpt"; *s; s++)
                if (!path_template_has(t, *s))
                        return *s;
        return 'l'; /* all are taken: then no name says anything */
}

static char *template_of(const Agent *a, const ConfigSource *c) {
        _cleanup_(path_template_freep) PathTemplate *t = NULL;
        _cleanup_free_ char *text = path_simplify(c->path);
        char bad;
        if (!text || path_template_new(&t, text, FORM_SOURCE_VARIABLES, &bad) < 0)
                return NULL;
        StrBuf b = STRBUF_INIT;
        agent_own_source_path(&b, a->config->state_directory);
        strbuf_addf(&b, "/" CONTAINERS_DIRECTORY "/%s/%%%c%s", c->name, free_letter(t),
                    below_fixed(text, path_template_fixed(t)));
        return strbuf_take(&b);
}

static ConfigSource *source_new(const Agent *a, const ConfigSource *c) {
        _cleanup_(agent_own_source_freep) ConfigSource *s = calloc(1, sizeof *s);
        if (!s)
                return NULL;
        *s = *c;
        s->destinations = s->exclude = (StringList){ 0 };
        s->settle_usec = SETTLE_USEC;
        s->watch = CONFIG_WATCH_AUTO;
        s->path = template_of(a, c);
        if (asprintf(&s->name, CONTAINERS_SOURCE_PREFIX "%s", c->name) < 0)
                s->name = NULL;
        if (!s->name || !s->path || copy_list(&s->destinations, &c->destinations) < 0 ||
            copy_list(&s->exclude, &c->exclude) < 0)
                return NULL;
        return TAKE_PTR(s);
}

/* ---- their life ---- */

static const ConfigSource *configured(const Config *c, const char *name) {
        for (size_t i = 0; i < c->n_sources; i++)
                if (strcmp(c->sources[i].name, name) == 0)
                        return &c->sources[i];
        return NULL;
}

static int make_directory(const Agent *a, const ConfigSource *c) {
        _cleanup_free_ char *path = NULL;
        if (asprintf(&path, "%s/" CONTAINERS_DIRECTORY "/%s", a->config->state_directory, c->name) <
            0) {
                path = NULL;
                return -ENOMEM;
        }
        return fs_mkdir_p(path, 0700);
}

static void make_source(Agent *a, const ConfigSource *c) {
        ConfigSource *own = source_new(a, c);
        int r = own ? make_directory(a, c) : -ENOMEM;
        if (r == 0)
                r = intake_source_new(&a->sources[a->n_sources], &a->intake_context, own);
        if (r < 0) {
                log_error(r, "dumps of source '%s' in containers cannot be shipped", c->name);
                agent_own_source_free(own);
                return;
        }
        a->container_sources[a->n_container_sources++] = own;
        agent_adopt_bundles(a, a->sources[a->n_sources++]);
}

void agent_containers_make_sources(Agent *a) {
        a->container_sources = calloc(a->config->n_sources + 1, sizeof *a->container_sources);
        if (!a->container_sources) {
                log_error(-ENOMEM, "dumps in containers cannot be shipped");
                return;
        }
        for (size_t i = 0; i < a->config->n_sources; i++)
                if (a->config->sources[i].kind == CONFIG_NEURON_CORE_DUMP)
                        make_source(a, &a->config->sources[i]);
}

void agent_containers_free_sources(Agent *a) {
        for (size_t i = 0; i < a->n_container_sources; i++)
                agent_own_source_free(a->container_sources[i]);
        free(a->container_sources);
        a->container_sources = NULL;
        a->n_container_sources = 0;
}

void agent_containers_rebind_sources(Agent *a) {
        for (size_t i = 0; i < a->n_container_sources; i++) {
                ConfigSource *was = a->container_sources[i];
                IntakeSource *s = agent_source_by_name(a, was->name);
                const ConfigSource *c =
                        configured(a->config, was->name + strlen(CONTAINERS_SOURCE_PREFIX));
                ConfigSource *own = s && c ? source_new(a, c) : NULL;
                if (!own)
                        continue; /* for lack of memory it stays as it was */
                intake_source_rebind(s, own);
                a->container_sources[i] = own;
                agent_own_source_free(was);
        }
}

/* ---- what comes of a copy ---- */

/* @return the caller's; NULL: no memory */
static char *shipping_name(const char *source) {
        char *name = NULL;
        return asprintf(&name, CONTAINERS_SOURCE_PREFIX "%s", source) < 0 ? NULL : name;
}

/* @return the source that ships the copies of this one; NULL: there is none */
static IntakeSource *shipping_source(const Agent *a, const char *source) {
        _cleanup_free_ char *name = shipping_name(source);
        return name ? agent_source_by_name(a, name) : NULL;
}

static void tell_place(const Agent *a, const ContainerPlace *p, IntakeSource *s) {
        const char *source = intake_source_config(s)->name;
        intake_source_note(s, p->unit_path, p->uid);
        if (a->incidents)
                incidents_add_unit_of_note(a->incidents,
                                           &(IncidentUnitOfNote){ .note = p->note,
                                                                  .source = source,
                                                                  .unit_path = p->unit_path,
                                                                  .uid = p->uid });
        if (!p->has_finished)
                return; /* the desk tells of it */
        for (size_t i = 0; i < NOTE_FILES_MAX; i++)
                if (p->promised[i])
                        intake_source_promised(s, p->unit_path, p->uid, p->promised[i]);
        intake_source_note_finished(s, p->unit_path, p->uid);
}

static void on_placed(const ContainerPlace *p, void *userdata) {
        Agent *a = userdata;
        IntakeSource *s = shipping_source(a, p->source);
        if (!s)
                return; /* said at the start */
        int r = a->notes ? notes_set_place(a->notes,
                                           &(NotesPlaced){ .note = p->note,
                                                           .source = intake_source_config(s)->name,
                                                           .unit_path = p->unit_path,
                                                           .container = p->container,
                                                           .s3_prefix = p->s3_prefix })
                         : -ENODEV;
        if (r < 0)
                log_warning(r,
                            "note %s: it cannot be noted that its dump is a copy out of a "
                            "container; it is shipped without what the hook told",
                            p->note);
        log_info("note %s: its dump is in container %s, and is copied to '%s'", p->note,
                 p->container ? p->container : "(unknown)", p->unit_path);
        tell_place(a, p, s);
}

static void on_known(const char *note, void *userdata) {
        const Agent *a = userdata;
        if (a->notes)
                notes_release(a->notes, note);
}

static void on_missing(const char *source, const char *unit_path, const char *path,
                       void *userdata) {
        IntakeSource *s = shipping_source(userdata, source);
        if (s)
                intake_source_missing(s, unit_path, path[0] ? path : NULL);
}

static int attach(const char *source, const char *unit_path, const char *name, int fd,
                  void *userdata) {
        Agent *a = userdata;
        IntakeSource *s = shipping_source(a, source);
        if (!s || !a->attachments)
                return -ENODEV;
        int r = attachments_put(
                a->attachments,
                &(AttachmentPlace){ intake_source_config(s)->name, unit_path, name }, fd);
        if (r == 0)
                intake_source_attached(s, unit_path);
        return r;
}

/* Also of a source that is not configured any more. */
static const Bundle *bundle_of(const Agent *a, const char *source, const char *unit_path) {
        _cleanup_free_ char *name = shipping_name(source);
        return name ? bundle_table_find_unit(a->bundles, name, unit_path) : NULL;
}

static int row_of(const Agent *a, const char *source, const char *unit_path, BundleRecord *ret) {
        _cleanup_free_ char *name = shipping_name(source);
        return name ? store_find_unit(a->store, name, unit_path, ret) : -ENOMEM;
}

static bool is_underway(const char *source, const char *unit_path, void *userdata) {
        return bundle_of(userdata, source, unit_path) != NULL;
}

/* What is whole is shipped all the same. */
static bool is_stranded(const char *source, const char *unit_path, void *userdata) {
        const Agent *a = userdata;
        if (shipping_source(a, source))
                return false;
        const Bundle *b = bundle_of(a, source, unit_path);
        if (b)
                return b->rec.state == BUNDLE_SETTLING;
        _cleanup_(bundle_record_done) BundleRecord rec = { 0 };
        return row_of(a, source, unit_path, &rec) == STORE_E_NOT_FOUND;
}

/* A quarantined one the operator can bring back. */
static bool was_let_go(const char *source, const char *unit_path, void *userdata) {
        _cleanup_(bundle_record_done) BundleRecord b = { 0 };
        return row_of(userdata, source, unit_path, &b) == 0 && bundle_state_is_over(b.state);
}

void agent_containers_on_final(Agent *a, const Bundle *b) {
        size_t n = strlen(CONTAINERS_SOURCE_PREFIX);
        if (a->containers && b->rec.state != BUNDLE_QUARANTINED &&
            strncmp(b->rec.source, CONTAINERS_SOURCE_PREFIX, n) == 0)
                containers_on_final(a->containers, b->rec.source + n, b->rec.path);
}

void agent_containers_start(Agent *a) {
        const ContainersContext context = { .event = a->event,
                                            .clock = a->clock,
                                            .store = a->store,
                                            .instance_id = a->instance_id,
                                            .on_placed = on_placed,
                                            .on_known = on_known,
                                            .on_missing = on_missing,
                                            .attach = attach,
                                            .is_underway = is_underway,
                                            .is_stranded = is_stranded,
                                            .was_let_go = was_let_go,
                                            .userdata = a };
        if (a->once) {
                int r = containers_tell_missing(&context, a->config);
                if (r < 0)
                        log_warning(r, "what is missing from copies out of containers may not be "
                                       "said in their bundles");
                return;
        }
        int r = containers_new(&a->containers, &context, a->config);
        if (r < 0)
                log_warning(r, "dumps in containers cannot be copied out of them");
}
