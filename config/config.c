/* What can be done with a whole Config: set its defaults, find the place where a key was given,
 * find a source or destination, print it (--print-config), compare it with another for a reload.
 * How a value is written or compared is left to value.c; making a Config from a file is left to
 * config_load.c. */
#include "config/config.h"

#include <errno.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>

#include "config/config_private.h"
#include "config/faults.h"
#include "config/value.h"
#include "lib/base/parse.h"
#include "lib/base/strbuf.h"

Config *config_free(Config *c) {
        if (!c)
                return NULL;
        value_clear_all(NULL, c);
        free(c->file);
        if (c->origins)
                free(c->origins->items);
        free(c->origins);
        free(c);
        return NULL;
}

const ConfigSource *config_find_source(const Config *c, const char *name) {
        for (size_t i = 0; i < c->n_sources; i++)
                if (c->sources[i].name && strcmp(c->sources[i].name, name) == 0)
                        return &c->sources[i];
        return NULL;
}

const ConfigDestination *config_find_destination(const Config *c, const char *name) {
        for (size_t i = 0; i < c->n_destinations; i++)
                if (c->destinations[i].name && strcmp(c->destinations[i].name, name) == 0)
                        return &c->destinations[i];
        return NULL;
}

bool string_list_has(const StringList *l, const char *text) {
        return parse_word(text, (const char *const *)l->items, l->n) >= 0;
}

int config_new_default(Config **ret) {
        _cleanup_(config_freep) Config *c = calloc(1, sizeof *c);

        if (!c)
                return -ENOMEM;
        c->origins = calloc(1, sizeof *c->origins);
        if (!c->origins)
                return -ENOMEM;
        int r = value_set_all_defaults(NULL, c);
        if (r < 0)
                return r;
        *ret = TAKE_PTR(c);
        return 0;
}

/* ---- origins ---- */

static int compare_origins(const void *left, const void *right) {
        const ConfigOrigin *a = left, *b = right;

        if (a->key != b->key)
                return a->key < b->key ? -1 : 1; /* rows of one table */
        if (a->index != b->index)
                return a->index < b->index ? -1 : 1;
        return (a->item > b->item) - (a->item < b->item);
}

ConfigOrigin *origins_find(const ConfigOrigins *o, const ConfigOrigin *what) {
        return o->n > 0 ? bsearch(what, o->items, o->n, sizeof *o->items, compare_origins) : NULL;
}

void origins_sort(ConfigOrigins *o) {
        if (o->n > 0)
                qsort(o->items, o->n, sizeof *o->items, compare_origins);
}

/* ---- the table's rows, as they apply to an element ---- */

bool config_key_applies(const ConfigKey *key, ConfigDestinationType type) {
        if (key->flags & KEY_S3)
                return type == CONFIG_S3;
        if (key->flags & KEY_VOLUME)
                return type == CONFIG_VOLUME;
        return true;
}

const ConfigKey *config_identity_key(const ConfigKey *list) {
        const ConfigKey *key = NULL;

        while ((key = value_next_field(key, list)) && !(key->flags & KEY_IDENTITY))
                ;
        return key;
}

const char *config_name_of(const ConfigKey *identity, const void *element) {
        return *(char *const *)((const char *)element + identity->offset);
}

/* ---- printing ---- */

/* --print-config: every key that applies, in the table's order, with the place of its value. */

typedef struct Printer {
        const Config *config;
        StrBuf out;
} Printer;

static void print_origin(Printer *p, const ConfigKey *key, size_t index) {
        const ConfigOrigin *origin =
                origins_find(p->config->origins, &(ConfigOrigin){ .key = key, .index = index });

        strbuf_add(&p->out, " # ");
        if (origin && origin->line > 0 && p->config->file) {
                text_add_spelled(&p->out, p->config->file, PATH_MAX);
                strbuf_addf(&p->out, ":%u", origin->line);
        } else {
                strbuf_add(&p->out, "default");
        }
        if (origin && origin->appended)
                strbuf_add(&p->out, ", with /%d-%c appended");
        strbuf_add(&p->out, "\n");
}

/* Prints two blanks for each section or list around the key. Before an element's first key the last
 * two are a dash and a blank. */
static void print_indentation(Printer *p, const ConfigKey *key, bool is_first) {
        size_t depth = 0;

        for (const char *c = key->name; *c; c++)
                depth += *c == '.' || *c == '[';
        for (size_t i = 0; i < depth; i++) {
                bool is_dash = is_first && i + 1 == depth && strstr(key->name, "[]");
                strbuf_add(&p->out, is_dash ? "- " : "  ");
        }
}

static void print_keys(Printer *p, const char *prefix, const void *base, size_t index) {
        bool is_first = true;

        for (const ConfigKey *key = NULL; (key = keys_next_child(key, prefix));) {
                size_t n = key->type == KEY_ELEMENTS ? value_n_elements(key, base) : 0;
                bool opens = key->type == KEY_SECTION || n > 0;
                if (key->flags & (KEY_S3 | KEY_VOLUME) &&
                    !config_key_applies(key, ((const ConfigDestination *)base)->type))
                        continue;
                print_indentation(p, key, is_first);
                is_first = false;
                strbuf_addf(&p->out, "%s:", keys_leaf(key));
                if (!opens) {
                        strbuf_add(&p->out, " ");
                        value_add_yaml(key, base, &p->out);
                }
                print_origin(p, key, index);
                if (key->type == KEY_SECTION)
                        print_keys(p, key->below, base, index);
                for (size_t i = 0; i < n; i++)
                        print_keys(p, key->below, value_element(key, base, i), i);
        }
}

int config_print(const Config *c, FILE *f) {
        Printer p = { .config = c };
        _cleanup_free_ char *text = NULL;

        print_keys(&p, "", c, 0);
        text = strbuf_detach(&p.out);
        if (!text)
                return -ENOMEM;
        if (fputs(text, f) == EOF || fflush(f) == EOF)
                return -EIO;
        return 0;
}

/* ---- comparing ---- */

typedef struct Comparison {
        const Config *running, *loaded;
        void (*on_key)(const char *key, bool needs_restart, void *userdata);
        void *userdata;
} Comparison;

static const void *find_element(const ConfigKey *list, const Config *c, const char *name) {
        const ConfigKey *identity = config_identity_key(list);

        for (size_t i = 0; i < value_n_elements(list, c); i++) {
                const void *element = value_element(list, c, i);
                if (strcmp(config_name_of(identity, element), name) == 0)
                        return element;
        }
        return NULL;
}

static bool elements_are_equal(const ConfigKey *list, const void *a, const void *b) {
        for (const ConfigKey *key = NULL; (key = value_next_field(key, list));)
                if (!value_is_equal(key, a, b))
                        return false;
        return true;
}

static void report_element(const Comparison *c, const ConfigKey *list, const char *name) {
        _cleanup_(strbuf_done) StrBuf key = STRBUF_INIT;

        strbuf_addf(&key, "%s[%s]", list->name, name);
        c->on_key(strbuf_error(&key) < 0 ? list->name : key.text, list->flags & KEY_RESTART,
                  c->userdata);
}

static void compare_elements(const Comparison *c, const ConfigKey *list) {
        const ConfigKey *identity = config_identity_key(list);

        for (size_t i = 0; i < value_n_elements(list, c->running); i++) {
                const void *mine = value_element(list, c->running, i);
                const void *other = find_element(list, c->loaded, config_name_of(identity, mine));
                if (!other || !elements_are_equal(list, mine, other))
                        report_element(c, list, config_name_of(identity, mine));
        }
        for (size_t i = 0; i < value_n_elements(list, c->loaded); i++) {
                const char *name = config_name_of(identity, value_element(list, c->loaded, i));
                if (!find_element(list, c->running, name))
                        report_element(c, list, name);
        }
}

void config_compare(const Config *running, const Config *loaded,
                    void (*on_key)(const char *key, bool needs_restart, void *userdata),
                    void *userdata) {
        Comparison c = { running, loaded, on_key, userdata };
        for (const ConfigKey *key = NULL; (key = value_next_field(key, NULL));)
                if (key->type == KEY_ELEMENTS && config_identity_key(key))
                        compare_elements(&c, key);
                else if (!value_is_equal(key, running, loaded))
                        on_key(key->name, key->flags & KEY_RESTART, userdata);
}
