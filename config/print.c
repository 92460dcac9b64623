/* --print-config: every key that applies, in the table's order, with where its value comes from. */
#include <errno.h>
#include <string.h>

#include "config/config.h"
#include "config/keys.h"
#include "config/origins.h"
#include "config/text.h"
#include "config/value.h"

typedef struct Printer {
        const Config *config;
        StrBuf out;
} Printer;

static void add_origin(Printer *p, const ConfigKey *key, size_t index) {
        const Origin *origin =
                origins_find(p->config->origins, &(Origin){ .key = key, .index = index });

        strbuf_add(&p->out, " # ");
        if (origin && origin->line > 0 && p->config->file) {
                text_add_comment(&p->out, p->config->file);
                strbuf_addf(&p->out, ":%u", origin->line);
        } else {
                strbuf_add(&p->out, "default");
        }
        if (origin && origin->appended)
                strbuf_add(&p->out, ", with /%d-%c appended");
        strbuf_add(&p->out, "\n");
}

static void add_keys(Printer *p, const char *prefix, const void *base, size_t index);

static void add_elements(Printer *p, const ConfigKey *key, const void *base) {
        char prefix[KEYS_PREFIX_SIZE];

        keys_prefix(key, prefix);
        for (size_t i = 0; i < value_n_elements(key, base); i++)
                add_keys(p, prefix, value_element(key, base, i), i);
}

/* Two blanks for each section or list around the key; a dash stands in the last two of an element's first key. */
static void add_indentation(Printer *p, const ConfigKey *key, bool is_first) {
        size_t depth = 0;

        for (const char *c = key->name; *c; c++)
                depth += *c == '.' || *c == '[';
        for (size_t i = 0; i < depth; i++) {
                bool is_dash = is_first && i + 1 == depth && strstr(key->name, "[]");
                strbuf_add(&p->out, is_dash ? "- " : "  ");
        }
}

static bool is_printed(const ConfigKey *key, const char *prefix, const void *base) {
        if (!keys_is_child(key, prefix))
                return false;
        return !(key->flags & (KEY_S3 | KEY_VOLUME)) ||
               keys_applies(key, ((const ConfigDestination *)base)->type);
}

static void add_keys(Printer *p, const char *prefix, const void *base, size_t index) {
        bool is_first = true;
        size_t n;
        const ConfigKey *keys = keys_all(&n);

        for (size_t i = 0; i < n; i++) {
                const ConfigKey *key = &keys[i];
                char below[KEYS_PREFIX_SIZE];
                bool opens;
                if (!is_printed(key, prefix, base))
                        continue;
                opens = key->type == KEY_SECTION ||
                        (key->type == KEY_ELEMENTS && value_n_elements(key, base) > 0);
                add_indentation(p, key, is_first);
                is_first = false;
                strbuf_addf(&p->out, "%s:", keys_leaf(key));
                if (!opens) {
                        strbuf_add(&p->out, " ");
                        value_add_yaml(key, base, &p->out);
                }
                add_origin(p, key, index);
                if (key->type == KEY_SECTION)
                        add_keys(p, keys_prefix(key, below), base, index);
                else if (opens)
                        add_elements(p, key, base);
        }
}

int config_print(const Config *c, FILE *f) {
        Printer p = { .config = c };
        _cleanup_free_ char *text = NULL;

        add_keys(&p, "", c, 0);
        text = strbuf_take(&p.out);
        if (!text)
                return -ENOMEM;
        if (fputs(text, f) == EOF || fflush(f) == EOF)
                return -EIO;
        return 0;
}
