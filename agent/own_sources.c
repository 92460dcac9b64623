#include "agent/agent_private.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <jansson.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "config/keys.h"
#include "lib/base/fs.h"
#include "lib/base/log.h"
#include "lib/base/path.h"
#include "lib/neuron/template.h"

#define SETTLE_USEC (1 * USEC_PER_SEC) /* a directory appears there complete, by rename */

/* `containers/SOURCE/DIGITS/…` is a dump that was copied out of a container for SOURCE, and
 * `containers/.units/SOURCE.DIGITS.json` describes it. Nothing is added any more. */
#define COPIES_DIRECTORY "containers"
#define COPIES_UNITS COPIES_DIRECTORY "/.units"
#define COPIES_COMING COPIES_DIRECTORY "/.coming"
#define COPY_FILE_MAX ((size_t)16 << 20)

DEFINE_CLEANUP(PathTemplate, path_template_free);

/* ---- configuration ---- */

static ConfigSource *free_config_source(ConfigSource *c) {
        if (!c)
                return NULL;
        StringList *const lists[] = { &c->destinations, &c->exclude };
        for (size_t i = 0; i < ELEMENTSOF(lists); i++) {
                for (size_t k = 0; k < lists[i]->n; k++)
                        free(lists[i]->items[k]);
                free(lists[i]->items);
        }
        free(c->name);
        free(c->path);
        free(c);
        return NULL;
}
DEFINE_CLEANUP(ConfigSource, free_config_source);

static int add_string(StringList *list, const char *text) {
        char **more = reallocarray(list->items, list->n + 2, sizeof *more);
        if (!more)
                return -ENOMEM;
        list->items = more;
        more[list->n] = strdup(text);
        if (!more[list->n])
                return -ENOMEM;
        more[++list->n] = NULL;
        return 0;
}

static int copy_list(StringList *to, const StringList *from) {
        int r = 0;
        for (size_t i = 0; r == 0 && i < from->n; i++)
                r = add_string(to, from->items[i]);
        return r;
}

/* A percent sign of the state directory's path is doubled in a template. */
static void add_state_directory(StrBuf *b, const Agent *a) {
        for (const char *s = a->config->state_directory; *s; s++)
                strbuf_add_n(b, *s == '%' ? "%%" : s, *s == '%' ? 2 : 1);
}

static ConfigSource *incidents_config(const Agent *a) {
        const Config *c = a->config;
        if (!c->snapshot.enabled)
                return NULL;
        _cleanup_(free_config_sourcep) ConfigSource *s = calloc(1, sizeof *s);
        if (!s)
                return NULL;
        StrBuf path = STRBUF_INIT;
        add_state_directory(&path, a);
        strbuf_add(&path, "/" INCIDENTS_SOURCE "/%l"); /* %l matches any name */
        *s = (ConfigSource){ .name = strdup(INCIDENTS_SOURCE),
                             .path = strbuf_detach(&path),
                             .kind = CONFIG_DIRECTORY,
                             .settle_usec = SETTLE_USEC,
                             .max_wait_usec = 30 * USEC_PER_MINUTE,
                             .scan_interval_usec = USEC_PER_MINUTE,
                             .watch = CONFIG_WATCH_AUTO,
                             .max_files = 100000 };
        int r = s->name && s->path ? 0 : -ENOMEM;
        for (size_t i = 0; r == 0 && i < c->n_destinations; i++)
                r = add_string(&s->destinations, c->destinations[i].name);
        return r < 0 ? NULL : TAKE_PTR(s);
}

/* @return the components of a template's text below its fixed part, each with a slash before it */
static const char *get_variable_part(const char *text, const char *fixed) {
        for (const char *s = fixed; *s; s++)
                if (s[0] == '/' && s[1] != '\0') {
                        const char *next = strchr(text + 1, '/');
                        text = next ? next : text + strlen(text);
                }
        return text;
}

/* The variable that stands for DIGITS must not have a meaning in the source's own template. */
static char find_free_letter(const PathTemplate *t) {
        for (const char *s = "lpt"; *s; s++)
                if (!path_template_has(t, *s))
                        return *s;
        return 'l';
}

static char *copies_template(const Agent *a, const ConfigSource *c) {
        _cleanup_(path_template_freep) PathTemplate *t = NULL;
        _cleanup_free_ char *text = path_simplify(c->path);
        char bad;
        if (!text || path_template_new(&t, text, FORM_SOURCE_VARIABLES, &bad) < 0)
                return NULL;
        StrBuf b = STRBUF_INIT;
        add_state_directory(&b, a);
        strbuf_addf(&b, "/" COPIES_DIRECTORY "/%s/%%%c%s", c->name, find_free_letter(t),
                    get_variable_part(text, path_template_fixed(t)));
        return strbuf_detach(&b);
}

/* @param name  of the own source */
static ConfigSource *copies_config(const Agent *a, const char *name) {
        const ConfigSource *c =
                agent_config_source(a->config, name + strlen(CONTAINERS_SOURCE_PREFIX));
        _cleanup_(free_config_sourcep) ConfigSource *s = c ? calloc(1, sizeof *s) : NULL;
        if (!s)
                return NULL;
        *s = *c;
        s->destinations = s->exclude = (StringList){ 0 };
        s->settle_usec = SETTLE_USEC;
        s->watch = CONFIG_WATCH_AUTO;
        s->path = copies_template(a, c);
        s->name = strdup(name);
        if (!s->name || !s->path || copy_list(&s->destinations, &c->destinations) < 0 ||
            copy_list(&s->exclude, &c->exclude) < 0)
                return NULL;
        return TAKE_PTR(s);
}

static ConfigSource *create_config(const Agent *a, const char *name) {
        return strcmp(name, INCIDENTS_SOURCE) == 0 ? incidents_config(a) : copies_config(a, name);
}

static int open_state_directory(const Agent *a) {
        int fd = open(a->config->state_directory, O_PATH | O_DIRECTORY | O_CLOEXEC);
        return fd < 0 ? -errno : fd;
}

/* ---- undelivered copies ---- */

/* @return `SOURCE/DIGITS` of the copy with that path, the caller frees it; NULL: not a copy */
static char *get_copy_path(const Agent *a, const char *source, const char *path) {
        _cleanup_free_ char *root = NULL, *copy = NULL;
        if (asprintf(&root, "%s/" COPIES_DIRECTORY "/%s", a->config->state_directory, source) < 0)
                root = NULL;
        if (!root || !path_is_below(path, root) || path[strlen(root)] != '/')
                return NULL;
        const char *digits = path + strlen(root) + 1;
        if (asprintf(&copy, "%s/%.*s", source, (int)strcspn(digits, "/"), digits) < 0)
                return NULL;
        return TAKE_PTR(copy);
}

static void remove_copy(const Agent *a, const char *source, const char *path) {
        _cleanup_free_ char *copy = get_copy_path(a, source, path), *tree = NULL, *about = NULL;
        _cleanup_close_ int state = open_state_directory(a);
        if (!copy || state < 0)
                return; /* removed after the next start */
        if (asprintf(&tree, COPIES_DIRECTORY "/%s", copy) < 0)
                tree = NULL;
        *strrchr(copy, '/') = '.';
        if (asprintf(&about, COPIES_UNITS "/%s.json", copy) < 0)
                about = NULL;
        if (!tree || !about)
                return;
        int r = fs_remove_tree(state, tree);
        if (r < 0)
                log_warning(r, "cannot remove '%s/%s', which was delivered; remove it by hand",
                            a->config->state_directory, tree);
        else
                (void)unlinkat(state, about, 0); /* retried after the next start */
}

/* @return whether the copy's bundle was final when the agent stopped */
static bool is_copy_final(const Agent *a, const char *own_name, const char *path) {
        _cleanup_(bundle_record_done) BundleRecord b = { 0 };
        return !bundle_table_find_unit(a->bundles, own_name, path) &&
               store_find_unit(a->store, own_name, path, &b) == 0 &&
               bundle_state_is_terminal(b.state);
}

/* An incomplete copy must not be delivered as a complete one. */
static void handle_copy(Agent *a, const json_t *v) {
        const char *name = json_string_value(json_object_get(v, "source"));
        const char *unit = json_string_value(json_object_get(v, "unit"));
        const char *below = json_string_value(json_object_get(v, "relative"));
        _cleanup_free_ char *relative = NULL, *path = NULL, *own_name = NULL;
        if (!name || !unit || !below || path_unescape(below, &relative) < 0)
                return;
        if (asprintf(&path, "%s/" COPIES_DIRECTORY "/%s/%s%s%s", a->config->state_directory, name,
                     unit, relative[0] ? "/" : "", relative) < 0)
                path = NULL;
        if (asprintf(&own_name, CONTAINERS_SOURCE_PREFIX "%s", name) < 0)
                own_name = NULL;
        IntakeSource *s = own_name ? agent_source_by_name(a, own_name) : NULL;
        if (!s || !path)
                return;
        if (is_copy_final(a, own_name, path))
                remove_copy(a, name, path);
        else if (!json_is_true(json_object_get(v, "is_whole")))
                intake_source_missing(s, path);
}

static void scan_copies(Agent *a, int state) {
        _cleanup_closedir_ DIR *d = NULL;
        const struct dirent *e;
        if (fs_opendir_at(state, COPIES_UNITS, &d) < 0)
                return;
        while ((e = readdir(d))) {
                _cleanup_free_ char *text = NULL;
                size_t n;
                if (e->d_name[0] == '.' ||
                    fs_read_file(dirfd(d), e->d_name, COPY_FILE_MAX, &text, &n) < 0)
                        continue;
                json_t *v = json_loadb(text, n, 0, NULL);
                handle_copy(a, v);
                json_decref(v);
        }
}

static void log_abandoned(const Agent *a, const char *directory) {
        log_warning(0,
                    "'%s/%s' has dumps that an earlier version copied out of containers and that "
                    "are not delivered: their source is not configured, or the copying was "
                    "interrupted; save what is needed, then remove that directory",
                    a->config->state_directory, directory);
}

static void remove_empty_copies(const Agent *a, int state) {
        _cleanup_closedir_ DIR *d = NULL;
        const struct dirent *e;
        if (fs_opendir_at(state, COPIES_DIRECTORY, &d) < 0)
                return;
        while ((e = readdir(d))) {
                _cleanup_free_ char *own_name = NULL, *path = NULL;
                if (strcmp(e->d_name, ".") == 0 || strcmp(e->d_name, "..") == 0)
                        continue;
                if (asprintf(&own_name, CONTAINERS_SOURCE_PREFIX "%s", e->d_name) < 0)
                        own_name = NULL;
                if (asprintf(&path, COPIES_DIRECTORY "/%s", e->d_name) < 0)
                        path = NULL;
                if (!own_name || !path || agent_source_by_name(a, own_name))
                        continue;
                if (unlinkat(dirfd(d), e->d_name, AT_REMOVEDIR) < 0 && e->d_name[0] != '.')
                        log_abandoned(a, path);
        }
        if (faccessat(state, COPIES_COMING, F_OK, 0) == 0)
                log_abandoned(a, COPIES_COMING);
        (void)unlinkat(state, COPIES_DIRECTORY, AT_REMOVEDIR); /* fails while it is needed */
}

static bool has_copies(const Agent *a, int state, const char *source) {
        _cleanup_free_ char *directory = NULL, *own_name = NULL;
        if (asprintf(&directory, COPIES_DIRECTORY "/%s", source) < 0)
                directory = NULL;
        if (asprintf(&own_name, CONTAINERS_SOURCE_PREFIX "%s", source) < 0)
                own_name = NULL;
        if (!directory || !own_name)
                return false;
        (void)unlinkat(state, directory, AT_REMOVEDIR); /* fails unless it is empty */
        if (faccessat(state, directory, F_OK, 0) == 0)
                return true;
        LIST_FOREACH (l, bundle_table_all(a->bundles))
                if (strcmp(CONTAINER_OF(l, Bundle, link)->rec.source, own_name) == 0)
                        return mkdirat(state, directory, 0700) == 0;
        return false;
}

/* ---- life ---- */

static void start_source(Agent *a, const char *name) {
        ConfigSource *c = create_config(a, name);
        int r = c ? intake_source_new(&a->sources[a->n_sources], &a->intake_context, c) : -ENOMEM;
        if (r < 0) {
                log_error(r, "source %s: cannot start it; a reload tries again", name);
                free_config_source(c);
                return;
        }
        a->own_sources[a->n_own_sources++] = c;
        agent_adopt_bundles(a, a->sources[a->n_sources++]);
}

static void start_incidents_source(Agent *a) {
        const char *state = a->config->state_directory;
        _cleanup_free_ char *directory = path_join(state, INCIDENTS_SOURCE);
        int r = directory ? fs_mkdir_p(directory, 0700) : -ENOMEM;
        if (r < 0)
                log_warning(r, "cannot create '%s/" INCIDENTS_SOURCE "'", state);
        start_source(a, INCIDENTS_SOURCE);
}

void own_sources_start(Agent *a) {
        const Config *c = a->config;
        a->own_sources = calloc(c->n_sources + 1, sizeof *a->own_sources);
        if (!a->own_sources) {
                log_error(-ENOMEM, "cannot start the agent's own sources");
                return;
        }
        if (c->snapshot.enabled)
                start_incidents_source(a);
        _cleanup_close_ int state = open_state_directory(a);
        for (size_t i = 0; i < c->n_sources; i++) {
                _cleanup_free_ char *name = NULL;
                if (c->sources[i].kind != CONFIG_NEURON_CORE_DUMP || state < 0 ||
                    !has_copies(a, state, c->sources[i].name) ||
                    asprintf(&name, CONTAINERS_SOURCE_PREFIX "%s", c->sources[i].name) < 0)
                        continue;
                start_source(a, name);
        }
        if (state >= 0) {
                scan_copies(a, state);
                remove_empty_copies(a, state);
        }
}

void own_sources_rebind(Agent *a) {
        for (size_t i = 0; i < a->n_own_sources; i++) {
                ConfigSource *old = a->own_sources[i];
                IntakeSource *s = agent_source_by_name(a, old->name);
                ConfigSource *c = s ? create_config(a, old->name) : NULL;
                if (!c)
                        continue;
                intake_source_rebind(s, c);
                a->own_sources[i] = c;
                free_config_source(old);
        }
}

void own_sources_free(Agent *a) {
        for (size_t i = 0; i < a->n_own_sources; i++)
                free_config_source(a->own_sources[i]);
        free(a->own_sources);
        a->own_sources = NULL;
        a->n_own_sources = 0;
}

/* @return whether a supplement needs the same directory, or the bundle that b supplements */
static bool has_another_bundle(const Agent *a, const Bundle *b) {
        LIST_FOREACH (l, bundle_table_all(a->bundles)) {
                const Bundle *other = CONTAINER_OF(l, Bundle, link);
                if (other != b && !bundle_state_is_terminal(other->rec.state) &&
                    strcmp(other->rec.source, b->rec.source) == 0 &&
                    strcmp(other->rec.path, b->rec.path) == 0)
                        return true;
        }
        return false;
}

void own_sources_on_final(Agent *a, const Bundle *b) {
        const size_t n = strlen(CONTAINERS_SOURCE_PREFIX);
        if (!bundle_state_is_terminal(b->rec.state))
                return;
        if (a->incidents && strcmp(b->rec.source, INCIDENTS_SOURCE) == 0)
                incidents_on_delivered(a->incidents, b->rec.path);
        else if (strncmp(b->rec.source, CONTAINERS_SOURCE_PREFIX, n) == 0 &&
                 !has_another_bundle(a, b))
                remove_copy(a, b->rec.source + n, b->rec.path);
}
