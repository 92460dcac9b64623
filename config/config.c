/* Loads, frees and compares whole configurations. */
#include "config/config.h"

#include <errno.h>
#include <string.h>

#include "config/check.h"
#include "config/faults.h"
#include "config/keys.h"
#include "config/load.h"
#include "config/origins.h"
#include "config/read.h"
#include "config/value.h"

DEFINE_CLEANUP(Config, config_free);

Config *config_free(Config *c) {
        if (!c)
                return NULL;
        value_clear_all("", c);
        free(c->file);
        origins_free(c->origins);
        free(c);
        return NULL;
}

/* All keys at their defaults: no sources and destinations yet. */
static int new_default(Config **ret) {
        _cleanup_(config_freep) Config *c = calloc(1, sizeof *c);
        int r;

        if (!c)
                return -ENOMEM;
        c->origins = calloc(1, sizeof *c->origins);
        if (!c->origins)
                return -ENOMEM;
        r = value_set_all_defaults("", c);
        if (r < 0)
                return r;
        *ret = TAKE_PTR(c);
        return 0;
}

typedef struct Input {
        const char *data;
        size_t n;
        char *const *environment;
} Input;

static int parse(Config **ret, const char *name, const Input *input, Faults *faults) {
        ReadContext context = { .faults = faults, .environment = input->environment };
        _cleanup_(config_freep) Config *c = NULL;
        _cleanup_(load_freep) LoadNode *root = NULL;
        int r = load_tree(&root, input->data, input->n, faults, &context.whole);

        if (r < 0)
                return r;
        r = new_default(&c);
        if (r < 0)
                return r;
        c->file = strdup(name);
        if (!c->file)
                return -ENOMEM;
        r = read_tree(c, root, &context);
        if (r < 0)
                return r;
        if (context.whole) {
                r = check_config(c, faults);
                if (r < 0)
                        return r;
        }
        if (faults->n > 0)
                return CONFIG_E_FAULTY;
        *ret = TAKE_PTR(c);
        return 0;
}

int config_parse(Config **ret, const char *name, const void *data, size_t n,
                 char *const *environment, Diags *diags) {
        Faults faults = { .file = name, .diags = diags };

        return parse(ret, name, &(Input){ data, n, environment }, &faults);
}

int config_load(Config **ret, const char *file, char *const *environment, Diags *diags) {
        Faults faults = { .file = file, .diags = diags };
        _cleanup_free_ char *text = NULL;
        size_t n;
        int r = load_file(file, &text, &n, &faults);

        if (r < 0)
                return r;
        return parse(ret, file, &(Input){ text, n, environment }, &faults);
}

int config_builtin(Config **ret) {
        static const char text[] =
                "sources:\n"
                "  - {name: core-dumps, kind: neuron-core-dump, path: "
                "\"/tmp/neuron-core-dump/dt-%d-cid-%c\"}\n"
                "destinations:\n"
                "  - {name: delivered, type: volume, path: /var/lib/neuron-collectd/delivered}\n";
        _cleanup_(config_freep) Config *c = NULL;
        _cleanup_(diag_done) Diags diags = { 0 };
        int r = config_parse(&c, "built-in", text, strlen(text), NULL, &diags);

        if (r != 0)
                return r < 0 ? r : -EINVAL; /* the text above is faulty; a test looks for it */
        free(c->file);
        c->file = NULL;
        for (size_t i = 0; i < c->origins->n; i++)
                c->origins->items[i].line = 0;
        for (size_t i = 0; i < c->n_sources; i++)
                c->sources[i].line = 0;
        for (size_t i = 0; i < c->n_destinations; i++)
                c->destinations[i].line = 0;
        *ret = TAKE_PTR(c);
        return 0;
}

/* Comparing */

typedef struct Comparison {
        const Config *running, *loaded;
        void (*on_key)(const char *key, bool needs_restart, void *userdata);
        void *userdata;
} Comparison;

/* The key that names the elements of a list; NULL when they have no names of their own. */
static const ConfigKey *identity_key(const ConfigKey *list) {
        char prefix[KEYS_PREFIX_SIZE];
        size_t n;
        const ConfigKey *keys = keys_all(&n);

        keys_prefix(list, prefix);
        for (size_t i = 0; i < n; i++)
                if (keys_is_child(&keys[i], prefix) && (keys[i].flags & KEY_IDENTITY))
                        return &keys[i];
        return NULL;
}

static const char *name_of(const ConfigKey *identity, const void *element) {
        return *(char *const *)((const char *)element + identity->offset);
}

static const void *find_element(const ConfigKey *list, const Config *c, const char *name) {
        const ConfigKey *identity = identity_key(list);

        for (size_t i = 0; i < value_n_elements(list, c); i++) {
                const void *element = value_element(list, c, i);
                if (strcmp(name_of(identity, element), name) == 0)
                        return element;
        }
        return NULL;
}

static bool elements_are_equal(const ConfigKey *list, const void *a, const void *b) {
        char prefix[KEYS_PREFIX_SIZE];
        size_t n;
        const ConfigKey *keys = keys_all(&n);

        keys_prefix(list, prefix);
        for (size_t i = 0; i < n; i++)
                if (keys_is_child(&keys[i], prefix) && !value_is_equal(&keys[i], a, b))
                        return false;
        return true;
}

static void tell_element(const Comparison *c, const ConfigKey *list, const char *name) {
        _cleanup_(strbuf_done) StrBuf key = STRBUF_INIT;

        strbuf_addf(&key, "%s[%s]", list->name, name);
        c->on_key(strbuf_error(&key) < 0 ? list->name : key.text, list->flags & KEY_RESTART,
                  c->userdata);
}

static void compare_elements(const Comparison *c, const ConfigKey *list) {
        const ConfigKey *identity = identity_key(list);

        for (size_t i = 0; i < value_n_elements(list, c->running); i++) {
                const void *mine = value_element(list, c->running, i);
                const void *other = find_element(list, c->loaded, name_of(identity, mine));
                if (!other || !elements_are_equal(list, mine, other))
                        tell_element(c, list, name_of(identity, mine));
        }
        for (size_t i = 0; i < value_n_elements(list, c->loaded); i++) {
                const char *name = name_of(identity, value_element(list, c->loaded, i));
                if (!find_element(list, c->running, name))
                        tell_element(c, list, name);
        }
}

void config_compare(const Config *running, const Config *loaded,
                    void (*on_key)(const char *key, bool needs_restart, void *userdata),
                    void *userdata) {
        Comparison c = { running, loaded, on_key, userdata };
        size_t n;
        const ConfigKey *keys = keys_all(&n);

        for (size_t i = 0; i < n; i++) {
                const ConfigKey *key = &keys[i];
                if (strstr(key->name, "[]"))
                        continue; /* told as its element */
                if (key->type == KEY_ELEMENTS && identity_key(key))
                        compare_elements(&c, key);
                else if (!value_is_equal(key, running, loaded))
                        on_key(key->name, key->flags & KEY_RESTART, userdata);
        }
}
