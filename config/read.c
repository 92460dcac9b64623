/* Reads the tree of load.c into a Config by the table of keys.c: looks up each name, expands
 * ${NAME}, sets the value, and records where it was given. A faulty file is read to its end, so
 * that one run shows every fault. What a value must look like is left to value.c, and what concerns
 * several keys to check.c. */
#include "config/read.h"

#include <errno.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>

#include "config/config_private.h"
#include "config/value.h"
#include "lib/base/array.h"
#include "lib/base/parse.h"

/* ---- ${NAME} ---- */

static const char name_start[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ_";

static const char name_more[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ_0123456789";

static const char *find_variable(char *const *environment, const char *name, size_t n) {
        for (char *const *e = environment; e && *e; e++)
                if (strncmp(*e, name, n) == 0 && (*e)[n] == '=')
                        return *e + n + 1;
        return NULL;
}

/* @param name  what comes after `${`  @return bytes up to and with the `}`, 0 after a fault */
static size_t add_variable(StrBuf *out, const char *name, char *const *environment, StrBuf *fault) {
        size_t n = strspn(name, name_more);

        if (n == 0 || !strchr(name_start, name[0]) || name[n] != '}') {
                strbuf_add(fault, "'${' is not followed by a variable's name and '}'");
                return 0;
        }
        const char *value = find_variable(environment, name, n);
        if (!value) {
                strbuf_addf(fault, "the environment variable '%.*s' is not defined",
                            (int)MIN(n, (size_t)80), name);
                return 0;
        }
        if (!text_is_utf8(value)) {
                strbuf_addf(fault, "the environment variable '%.*s' is not UTF-8",
                            (int)MIN(n, (size_t)80), name);
                return 0;
        }
        strbuf_add(out, value);
        return n + 1;
}

int expand(const char *text, char *const *environment, char **ret, StrBuf *fault) {
        _cleanup_(strbuf_done) StrBuf out = STRBUF_INIT;

        while (*text) {
                size_t n = strcspn(text, "$");
                size_t n_dollars = strspn(text + n, "$");
                bool is_brace = n_dollars > 0 && text[n + n_dollars] == '{';
                strbuf_add_n(&out, text, n + n_dollars - is_brace);
                text += n + n_dollars;
                if (is_brace && n_dollars == 1) {
                        n = add_variable(&out, text + 1, environment, fault);
                        if (n == 0)
                                return EXPAND_E_FAULTY;
                        text += n + 1;
                }
                if (out.n > EXPAND_MAX) {
                        strbuf_addf(fault, "the value is longer than %d bytes", EXPAND_MAX);
                        return EXPAND_E_FAULTY;
                }
        }
        char *done = strbuf_detach(&out);
        if (!done)
                return -ENOMEM;
        *ret = done;
        return 0;
}

/* ---- the tree ---- */

/* The mapping that is being read. */
typedef struct Scope {
        const char *prefix; /* of its keys: `""`, `node.`, `sources[].` */
        void *base;         /* the struct that its keys' offsets count from */
        size_t index;       /* of the element */
        unsigned line;      /* where it begins */
} Scope;

/* What the mapping has for one row of the table. */
typedef struct FoundKey {
        unsigned line; /* 0 = nothing */
        bool good;
} FoundKey;

/* One key and what the file gives for it. */
typedef struct Given {
        const Scope *scope;
        const ConfigKey *key;
        const LoadNode *value;
        Spot spot;
} Given;

enum { READ_E_FAULTY = 1 };

static int add_origin_of(ConfigReader *r, const Given *g, bool faulty) {
        ConfigOrigins *o = r->config->origins;

        if (array_grow(&o->items, o->n, sizeof *o->items) < 0)
                return -ENOMEM;
        o->items[o->n++] = (ConfigOrigin){ .key = g->key,
                                           .index = g->scope->index,
                                           .item = g->spot.item,
                                           .line = g->spot.line,
                                           .faulty = faulty };
        return 0;
}

/* Faults that every type shares */

static const char *node_name(const LoadNode *node) {
        return node->type == LOAD_LIST  ? "a list"
               : node->type == LOAD_MAP ? "a mapping"
                                        : "a single value";
}

/* Reports that a node has the wrong type: for the key, or for one entry of its list or mapping. */
static int refuse_type(ConfigReader *r, const Given *g, const LoadNode *node) {
        bool is_entry = g->spot.item != FAULTS_NO_ITEM || g->spot.sub;
        const char *expected = !is_entry                      ? keys_type_name(g->key)
                               : g->key->type == KEY_ELEMENTS ? "a mapping"
                                                              : "a string";
        _cleanup_(strbuf_done) StrBuf remedy = STRBUF_INIT;

        if (node->type == LOAD_FAULTY)
                return READ_E_FAULTY; /* reported already */
        if (node->type == LOAD_NULL)
                strbuf_add(&remedy, is_entry || g->key->fallback ? "give one, or delete the line"
                                                                 : "give one");
        else if (!is_entry)
                value_add_remedy(g->key, &remedy);
        else if (g->key->type == KEY_ELEMENTS)
                strbuf_add(&remedy, "write its keys below it, indented, one a line");
        else
                strbuf_add(&remedy, "write one value, in quotes where it is not a plain word");
        if (node->type == LOAD_NULL && !is_entry && g->key->fallback)
                strbuf_addf(&remedy, " for the default, %s",
                            g->key->fallback[0] ? g->key->fallback : "which is empty");
        if (node->type == LOAD_NULL)
                faults_add(r->faults, &g->spot, remedy.text, "has no value, but %s is expected",
                           expected);
        else
                faults_add(r->faults, &g->spot, remedy.text, "%s is given where %s is expected",
                           node_name(node), expected);
        return READ_E_FAULTY;
}

static int report_value_fault(ConfigReader *r, const Spot *spot, ValueFault *f) {
        if (strbuf_error(&f->fault) < 0)
                return -ENOMEM;
        faults_add(r->faults, spot, f->remedy.text, "%s", f->fault.text);
        return READ_E_FAULTY;
}

/* Checks that the value is a list or mapping of at most so many entries, and removes the default.
 * @param n  entries */
static int check_entries(ConfigReader *r, const Given *g, LoadNodeType type, size_t n) {
        size_t max = g->key->max > 0 ? g->key->max : KEYS_LIST_MAX;

        if (g->value->type != type)
                return refuse_type(r, g, g->value);
        value_clear(g->key, g->scope->base); /* the default */
        if (n <= max)
                return 0;
        faults_add(r->faults, &g->spot, "write fewer",
                   "has %zu entries, more than the %zu that are supported", n, max);
        return READ_E_FAULTY;
}

/* Scalars */

/* @return 0 and *ret (the caller's) with each ${NAME} expanded, READ_E_FAULTY, -ENOMEM */
static int expand_text(ConfigReader *r, const Given *g, const LoadNode *node, char **ret) {
        _cleanup_(strbuf_done) StrBuf fault = STRBUF_INIT;

        if (node->type != LOAD_SCALAR)
                return refuse_type(r, g, node);
        int k = expand(node->text, r->environment, ret, &fault);
        if (k == EXPAND_E_FAULTY) {
                if (strbuf_error(&fault) < 0)
                        return -ENOMEM;
                faults_add(r->faults, &g->spot,
                           "define it, for example in the unit, or write $${ for a plain ${", "%s",
                           fault.text);
                return READ_E_FAULTY;
        }
        return k;
}

static int read_scalar(ConfigReader *r, const Given *g) {
        _cleanup_(value_fault_done) ValueFault f = { 0 };
        _cleanup_free_ char *text = NULL;
        int k = expand_text(r, g, g->value, &text);

        if (k != 0)
                return k;
        k = value_set(g->key, g->scope->base, text, &f);
        return k == VALUE_E_FAULTY ? report_value_fault(r, &g->spot, &f) : k;
}

/* Lists of strings and free mappings */

static int read_strings(ConfigReader *r, const Given *g) {
        int result = check_entries(r, g, LOAD_LIST, g->value->n);

        if (result != 0)
                return result;
        if (g->value->n < g->key->min) {
                faults_add(r->faults, &g->spot, keys_type_remedy(g->key), "is an empty list");
                return READ_E_FAULTY;
        }
        for (size_t i = 0; i < g->value->n; i++) {
                const LoadNode *node = g->value->items[i];
                _cleanup_(value_fault_done) ValueFault f = { 0 };
                _cleanup_free_ char *text = NULL;
                Given item = *g;
                int k;

                item.spot.item = i + 1;
                item.spot.line = node->line;
                k = expand_text(r, &item, node, &text);
                if (k == 0) {
                        k = value_append(g->key, g->scope->base, text, &f);
                        if (k == VALUE_E_FAULTY)
                                k = report_value_fault(r, &item.spot, &f);
                }
                if (k < 0 || add_origin_of(r, &item, k != 0) < 0)
                        return -ENOMEM;
                result = MAX(result, k);
        }
        return result;
}

static const LoadNode *find_name(const LoadNode *map, size_t before, const char *name) {
        for (size_t i = 0; i < before; i += 2)
                if (map->items[i]->text && strcmp(map->items[i]->text, name) == 0)
                        return map->items[i];
        return NULL;
}

/* @return the text of a mapping's name, or NULL after a fault */
static const char *name_of_node(ConfigReader *r, const Spot *spot, const LoadNode *name) {
        if (name->type == LOAD_SCALAR || name->type == LOAD_NULL)
                return name->text;
        if (name->type != LOAD_FAULTY)
                faults_add(r->faults, spot, "write a plain word, a colon and the value",
                           "%s is given where a name is expected", node_name(name));
        return NULL;
}

static int read_pair(ConfigReader *r, const Given *g, size_t i) {
        const LoadNode *name_node = g->value->items[i], *value = g->value->items[i + 1], *first;
        _cleanup_(value_fault_done) ValueFault f = { 0 };
        _cleanup_free_ char *text = NULL;
        Given pair = *g;

        pair.spot.line = name_node->line;
        const char *name = name_of_node(r, &pair.spot, name_node);
        if (!name)
                return READ_E_FAULTY;
        pair.spot.sub = name;
        first = find_name(g->value, i, name);
        if (first) {
                faults_add(r->faults, &pair.spot, "delete one of them",
                           "is given twice, first on line %u", first->line);
                return READ_E_FAULTY;
        }
        int k = expand_text(r, &pair, value, &text);
        if (k != 0)
                return k;
        k = value_append_pair(g->key, g->scope->base, &(ValuePair){ name, text }, &f);
        return k == VALUE_E_FAULTY ? report_value_fault(r, &pair.spot, &f) : k;
}

static int read_map(ConfigReader *r, const Given *g) {
        int result = check_entries(r, g, LOAD_MAP, g->value->n / 2);

        if (result != 0)
                return result;
        for (size_t i = 0; i + 1 < g->value->n; i += 2) {
                int k = read_pair(r, g, i);
                if (k < 0)
                        return k;
                result = MAX(result, k);
        }
        return result;
}

/* Sections and elements */

static int read_scope(ConfigReader *r, const Scope *scope, const LoadNode *map);

static int read_section(ConfigReader *r, const Given *g) {
        Scope below = *g->scope;

        if (g->value->type == LOAD_NULL)
                return 0; /* all of its keys are commented out */
        if (g->value->type != LOAD_MAP)
                return refuse_type(r, g, g->value);
        below.prefix = g->key->below;
        below.line = g->spot.line;
        return read_scope(r, &below, g->value);
}

static int read_element(ConfigReader *r, const Given *g, const LoadNode *node, size_t i) {
        Scope below = { .prefix = g->key->below, .index = i, .line = node->line };
        int k = value_add_element(g->key, g->scope->base, &below.base);

        if (k < 0)
                return k;
        k = value_set_all_defaults(g->key, below.base);
        if (k < 0)
                return k;
        if (g->key->line_offset > 0)
                *(unsigned *)((char *)below.base + g->key->line_offset) = node->line;
        if (node->type != LOAD_MAP) {
                Given item = *g;
                item.spot.item = i + 1;
                item.spot.line = node->line;
                return refuse_type(r, &item, node);
        }
        return read_scope(r, &below, node);
}

static int read_elements(ConfigReader *r, const Given *g) {
        int k = check_entries(r, g, LOAD_LIST, g->value->n);

        if (k != 0)
                return k;
        for (size_t i = 0; k >= 0 && i < g->value->n; i++)
                k = read_element(r, g, g->value->items[i], i);
        return MIN(k, 0);
}

static int read_by_type(ConfigReader *r, const Given *g) {
        switch (g->key->type) {
        case KEY_SECTION:
                return read_section(r, g);
        case KEY_ELEMENTS:
                return read_elements(r, g);
        case KEY_STRINGS:
                return read_strings(r, g);
        case KEY_MAP:
                return read_map(r, g);
        default:
                return read_scalar(r, g);
        }
}

/* Names of keys */

/* @param prefix  NULL = anywhere */
static const ConfigKey *key_named(const char *prefix, const char *leaf) {
        size_t n;
        const ConfigKey *keys = keys_all(&n);

        for (size_t i = 0; i < n; i++)
                if (strcmp(keys_leaf(&keys[i]), leaf) == 0 &&
                    (!prefix || keys_is_child(&keys[i], prefix)))
                        return &keys[i];
        return NULL;
}

const ConfigKey *key_suggest(const char *prefix, const char *leaf) {
        size_t n = strlen(leaf);
        unsigned nearest = value_distance_limit(n);
        const ConfigKey *found = NULL;

        if (n < 2 || n >= VALUE_SUGGEST_MAX)
                return NULL;
        for (const ConfigKey *k = NULL; (k = keys_next_child(k, prefix));) {
                unsigned d = parse_distance(leaf, keys_leaf(k));
                if (d < nearest) {
                        nearest = d;
                        found = k;
                }
        }
        /* A key of this name exists elsewhere: most often the indentation is wrong. */
        return found ? found : key_named(NULL, leaf);
}

static void report_unknown(ConfigReader *r, const Scope *scope, const LoadNode *name) {
        bool is_shown = r->faults->n <
                        FAULTS_MAX; /* the search is slow, and a file may have 50,000 such keys */
        const ConfigRefusedKey *refused = keys_find_refused(scope->prefix, name->text);
        const ConfigKey *near = is_shown ? key_suggest(scope->prefix, name->text) : NULL;
        Spot spot = {
                .line = name->line, .name = scope->prefix, .index = scope->index, .sub = name->text
        };
        _cleanup_(strbuf_done) StrBuf remedy = STRBUF_INIT;

        if (refused) {
                faults_add(r->faults, &spot, refused->remedy, "%s", refused->fault);
                return;
        }
        if (near && keys_is_child(near, scope->prefix))
                strbuf_addf(&remedy, "did you mean '%s'?", keys_leaf(near));
        else if (near)
                strbuf_addf(&remedy, "did you mean '%s'? then check the indentation", near->name);
        else
                strbuf_add(&remedy, "delete the line");
        faults_add(r->faults, &spot, remedy.text, "unknown key");
}

/* @return the row, or NULL after a fault */
static const ConfigKey *find_key(ConfigReader *r, const Scope *scope, const LoadNode *name) {
        Spot spot = { .line = name->line, .name = scope->prefix, .index = scope->index };

        if (!name_of_node(r, &spot, name))
                return NULL;
        const ConfigKey *key = key_named(scope->prefix, name->text);
        if (!key)
                report_unknown(r, scope, name);
        return key;
}

static bool is_required(const ConfigKey *key) {
        if (key->type == KEY_ELEMENTS)
                return key->min > 0;
        return key->type != KEY_SECTION && !key->fallback;
}

/* Writes the keys that each entry of a list must have, e.g. `name:, kind:, path:`. */
static void add_required_names(StrBuf *b, const ConfigKey *list) {
        const char *join = "";

        for (const ConfigKey *key = NULL; (key = value_next_field(key, list));)
                if (is_required(key) && !(key->flags & KEY_S3)) {
                        strbuf_addf(b, "%s%s:", join, keys_leaf(key));
                        join = ", ";
                }
}

static void report_missing(ConfigReader *r, const Scope *scope, const ConfigKey *key,
                           const FoundKey *f) {
        Spot spot = { .line = f->line > 0 ? f->line : scope->line,
                      .name = key->name,
                      .index = scope->index };
        _cleanup_(strbuf_done) StrBuf remedy = STRBUF_INIT;

        if (key->type == KEY_ELEMENTS) {
                strbuf_addf(&remedy, "add `%s:` with at least one entry, which needs ", key->name);
                add_required_names(&remedy, key);
                faults_add(r->faults, &spot, remedy.text, "at least one %.*s is required",
                           (int)strlen(key->name) - 1, key->name);
                return;
        }
        strbuf_addf(&remedy, "add `%s:` and %s", keys_leaf(key), keys_type_name(key));
        if (key->example)
                strbuf_addf(&remedy, ", such as %s", key->example);
        faults_add(r->faults, &spot, remedy.text, "is missing");
}

static bool is_missing(const Scope *scope, const ConfigKey *key, const FoundKey *f) {
        return is_required(key) && (f->line == 0 || (key->type == KEY_ELEMENTS && f->good &&
                                                     value_n_elements(key, scope->base) == 0));
}

/* Reports keys that are missing, and keys that do not apply. For a destination both depend on its
 * type, which may be its last key, so this runs after the mapping was read. */
static void check_applicable(ConfigReader *r, const Scope *scope, const FoundKey *found) {
        size_t n;
        const ConfigKey *keys = keys_all(&n), *type = keys_get("destinations[].type");
        bool typed = keys_is_child(type, scope->prefix) && found[type - keys].good;

        for (const ConfigKey *key = NULL; (key = keys_next_child(key, scope->prefix));) {
                bool special = key->flags & (KEY_S3 | KEY_VOLUME);
                const FoundKey *f = &found[key - keys];
                Spot spot = { .line = f->line, .name = key->name, .index = scope->index };

                bool is_right = !special ||
                                config_key_applies(key, ((ConfigDestination *)scope->base)->type);
                if (special && !typed)
                        continue;
                if (is_right && r->whole && is_missing(scope, key, f))
                        report_missing(r, scope, key, f);
                else if (!is_right && f->line > 0)
                        faults_add(r->faults, &spot, "delete the line, or change the type",
                                   "does not apply to %s", key->flags & KEY_S3 ? "a volume" : "s3");
        }
}

static int read_scope(ConfigReader *r, const Scope *scope, const LoadNode *map) {
        FoundKey found[KEYS_MAX] = { 0 };
        size_t n_keys;
        const ConfigKey *keys = keys_all(&n_keys);

        for (size_t i = 0; i + 1 < map->n; i += 2) {
                const LoadNode *name = map->items[i];
                Given g = { .scope = scope,
                            .key = find_key(r, scope, name),
                            .value = map->items[i + 1] };
                FoundKey *f;
                int k;

                if (!g.key)
                        continue;
                g.spot = (Spot){ .line = name->line, .name = g.key->name, .index = scope->index };
                f = &found[g.key - keys];
                if (f->line > 0) {
                        faults_add(r->faults, &g.spot, "delete one of them",
                                   "is given twice, first on line %u", f->line);
                        continue;
                }
                f->line = name->line;
                k = read_by_type(r, &g);
                if (k < 0 || add_origin_of(r, &g, k != 0) < 0)
                        return -ENOMEM;
                f->good = k == 0;
        }
        check_applicable(r, scope, found);
        return 0;
}

int config_read_tree(ConfigReader *r, const LoadNode *root) {
        static const LoadNode empty = { .type = LOAD_MAP };
        Config *c = r->config;
        Scope top = { .prefix = "", .base = c, .line = 1 };

        if (!root || root->type == LOAD_NULL)
                root = &empty;
        if (root->type == LOAD_MAP) {
                int k = read_scope(r, &top, root);
                if (k < 0)
                        return k;
        } else if (root->type != LOAD_FAULTY) {
                faults_add(r->faults, &(Spot){ .line = root->line },
                           "write keys such as `sources:`, each at the beginning of a line",
                           "%s is given where a mapping is expected", node_name(root));
        }
        origins_sort(c->origins);
        return 0;
}
