/* Makes a checked Config from a file: loads the text as a tree (load.c), reads the tree by the
 * table (read.c), gives sources without `destinations` all of them, checks that names in a list
 * differ, and leaves the other checks of several keys to check.c.
 *
 * The supervisor of the collectors reads the same file, but only the keys that it must not take
 * from a request; faults of other keys do not stop it. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "config/check.h"
#include "config/config.h"
#include "config/config_private.h"
#include "config/faults.h"
#include "config/load.h"
#include "config/read.h"
#include "config/value.h"
#include "lib/base/cleanup.h"

static void check_unique(const Config *c, Faults *faults, const ConfigKey *list) {
        const ConfigKey *identity = config_identity_key(list);

        for (size_t i = 1; identity && i < value_n_elements(list, c); i++) {
                const char *mine = config_name_of(identity, value_element(list, c, i));
                const ConfigOrigin *origin =
                        origins_find(c->origins, &(ConfigOrigin){ .key = identity, .index = i });
                for (size_t k = 0; mine && k < i; k++) {
                        const char *other = config_name_of(identity, value_element(list, c, k));
                        if (!other || strcmp(mine, other) != 0)
                                continue;
                        faults_add(faults,
                                   &(Spot){ .line = origin ? origin->line : 0,
                                            .name = identity->name,
                                            .index = i },
                                   "give each entry its own name",
                                   "'%s' is already the name of %s[%zu]", mine, list->name, k);
                        break;
                }
        }
}

/* A source that names no destinations has all of them. */
static int use_all_destinations(Config *c) {
        const ConfigKey *key = keys_get("sources[].destinations");
        int r = 0;

        for (size_t i = 0; i < c->n_sources; i++) {
                StringList *list = &c->sources[i].destinations;
                if (origins_find(c->origins, &(ConfigOrigin){ .key = key, .index = i }))
                        continue;
                for (size_t k = 0; r == 0 && k < c->n_destinations; k++)
                        if (c->destinations[k].name) {
                                r = value_append_string(&list->items, list->n,
                                                        strdup(c->destinations[k].name));
                                list->n += r == 0;
                        }
        }
        return r;
}

static int check_elements(Config *c, Faults *faults) {
        for (const ConfigKey *key = NULL; (key = value_next_field(key, NULL));)
                if (key->type == KEY_ELEMENTS)
                        check_unique(c, faults, key);
        return use_all_destinations(c);
}

int config_parse(Config **ret, const char *name, const void *data, size_t n,
                 char *const *environment, Diags *diags) {
        Faults faults = { .file = name, .diags = diags };
        _cleanup_(config_freep) Config *c = NULL;
        _cleanup_(load_freep) LoadNode *root = NULL;
        ConfigReader reader = { .faults = &faults, .environment = environment };
        int r = load_tree(&root, data, n, &faults, &reader.whole);

        if (r == 0)
                r = config_new_default(&c);
        if (r < 0)
                return r;
        c->file = strdup(name);
        if (!c->file)
                return -ENOMEM;
        reader.config = c;
        r = config_read_tree(&reader, root);
        if (r == 0 && reader.whole)
                r = check_elements(c, &faults);
        if (r == 0 && reader.whole)
                r = config_check(c, &faults);
        if (r < 0)
                return r;
        if (faults.n > 0)
                return CONFIG_E_FAULTY;
        *ret = TAKE_PTR(c);
        return 0;
}

int config_load(Config **ret, const char *file, char *const *environment, Diags *diags) {
        Faults faults = { .file = file, .diags = diags };
        _cleanup_free_ char *text = NULL;
        size_t n;
        int r = load_file(file, &text, &n, &faults);

        if (r < 0)
                return r;
        return config_parse(ret, file, text, n, environment, diags);
}

static bool is_for_supervisor(const ConfigKey *key) {
        static const char commands[] = "snapshot.commands";
        return strcmp(key->name, "state_directory") == 0 ||
               strncmp(key->name, commands, sizeof commands - 1) == 0;
}

static bool is_faulty_for_supervisor(const Config *c) {
        for (size_t i = 0; i < c->origins->n; i++)
                if (c->origins->items[i].faulty && is_for_supervisor(c->origins->items[i].key))
                        return true;
        for (size_t i = 0; i < c->snapshot.n_commands; i++)
                if (!c->snapshot.commands[i].name || c->snapshot.commands[i].run.n == 0)
                        return true;
        return !c->state_directory;
}

int config_load_for_supervisor(Config **ret, const char *file, char *const *environment) {
        Diags diags = { .n = 0 };
        Faults faults = { .file = file, .diags = &diags };
        _cleanup_(config_freep) Config *c = NULL;
        _cleanup_(load_freep) LoadNode *root = NULL;
        _cleanup_free_ char *text = NULL;
        ConfigReader reader = { .faults = &faults, .environment = environment };
        size_t n;
        int r = load_file(file, &text, &n, &faults);
        if (r == 0)
                r = load_tree(&root, text, n, &faults, &reader.whole);
        if (r == 0)
                r = config_new_default(&c);
        if (r == 0) {
                reader.config = c;
                r = config_read_tree(&reader, root);
        }
        diag_done(&diags);
        if (r < 0)
                return r;
        if (!reader.whole || is_faulty_for_supervisor(c))
                return CONFIG_E_FAULTY;
        *ret = TAKE_PTR(c);
        return 0;
}

const char config_minimal[] =
        "version: 1\n"
        "sources:\n"
        "  - {name: core-dumps, kind: neuron-core-dump, path: /tmp/neuron-core-dump/dt-%d-cid-%c}\n"
        "destinations:\n"
        "  - {name: archive, type: s3, region: us-east-1, bucket: my-bucket}\n";

int config_defaults(Config **ret) {
        _cleanup_(diag_done) Diags diags = { 0 };
        int r = config_parse(ret, "defaults", config_minimal, strlen(config_minimal), NULL, &diags);
        return r > 0 ? -EINVAL : r; /* the text above is faulty; a test checks it */
}
