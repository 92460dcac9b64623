/* From fields back to YAML, which is also how values are compared: what is written the same is the same. */
#include "config/value.h"

#include <inttypes.h>
#include <string.h>

#include "config/config.h"
#include "config/text.h"
#include "lib/base/parse.h"

static const KeyWord *word_of_value(const ConfigKey *key, uint64_t value) {
        for (const KeyWord *w = key->words; w && w->word; w++)
                if ((uint64_t)w->value == value)
                        return w;
        return NULL;
}

static int get_choice(const ConfigKey *key, const void *base) {
        return key->size == sizeof(bool) ? *(bool *)value_field(key, base)
                                         : *(int *)value_field(key, base);
}

const char *value_format_quantity(const ConfigKey *key, uint64_t v,
                                  char buf[static VALUE_QUANTITY_SIZE]) {
        char size[PARSE_FORMAT_SIZE];

        switch (key->type) {
        case KEY_TIME:
                return parse_format_time(buf, v);
        case KEY_RATE:
                (void)snprintf(buf, VALUE_QUANTITY_SIZE, "%s%s", parse_format_bytes(size, v),
                               v > 0 ? "/s" : "");
                return buf;
        case KEY_NUMBER:
                (void)snprintf(buf, VALUE_QUANTITY_SIZE, "%" PRIu64, v);
                return buf;
        default:
                return parse_format_bytes(buf, v);
        }
}

static void add_share(const ConfigKey *key, const ConfigSize *size, StrBuf *b) {
        char buf[VALUE_QUANTITY_SIZE];

        if (!size->is_permille)
                strbuf_add(b, value_format_quantity(key, size->bytes, buf));
        else if (size->permille % 10 == 0)
                strbuf_addf(b, "%u%%", size->permille / 10);
        else
                strbuf_addf(b, "%u.%u%%", size->permille / 10, size->permille % 10);
}

static void add_strings(const StringList *list, StrBuf *b) {
        strbuf_add(b, "[");
        for (size_t i = 0; i < list->n; i++) {
                strbuf_add(b, i > 0 ? ", " : "");
                text_add_yaml(b, list->items[i]);
        }
        strbuf_add(b, "]");
}

static void add_map(const StringMap *map, StrBuf *b) {
        strbuf_add(b, "{");
        for (size_t i = 0; i < map->n; i++) {
                strbuf_add(b, i > 0 ? ", " : "");
                text_add_yaml_name(b, map->items[2 * i]);
                strbuf_add(b, ": ");
                text_add_yaml(b, map->items[2 * i + 1]);
        }
        strbuf_add(b, "}");
}

static void add_elements(const ConfigKey *key, const void *base, StrBuf *b) {
        char prefix[KEYS_PREFIX_SIZE];
        size_t n_keys;
        const ConfigKey *keys = keys_all(&n_keys);

        keys_prefix(key, prefix);
        strbuf_add(b, "[");
        for (size_t i = 0; i < value_n_elements(key, base); i++) {
                const char *join = i > 0 ? ", {" : "{";
                for (size_t k = 0; k < n_keys; k++) {
                        if (!keys_is_child(&keys[k], prefix))
                                continue;
                        strbuf_addf(b, "%s%s: ", join, keys_leaf(&keys[k]));
                        value_add_yaml(&keys[k], value_element(key, base, i), b);
                        join = ", ";
                }
                strbuf_add(b, "}");
        }
        strbuf_add(b, "]");
}

static void add_number(const ConfigKey *key, uint64_t v, StrBuf *b) {
        const KeyWord *word = word_of_value(key, v);
        char buf[VALUE_QUANTITY_SIZE];
        uint64_t fallback;

        if (word)
                strbuf_add(b, word->word);
        else if (key->fallback && value_parse_quantity(key, key->fallback, &fallback) == 0 &&
                 fallback == v)
                strbuf_add(b, key->fallback); /* 60s, as documented, rather than 1m */
        else
                strbuf_add(b, value_format_quantity(key, v, buf));
}

void value_add_yaml(const ConfigKey *key, const void *base, StrBuf *b) {
        const void *field = value_field(key, base);
        const KeyWord *word;

        switch (key->type) {
        case KEY_STRING:
                text_add_yaml(b, *(char *const *)field ? *(char *const *)field : "");
                return;
        case KEY_STRINGS:
                add_strings(field, b);
                return;
        case KEY_MAP:
                add_map(field, b);
                return;
        case KEY_CHOICE:
                word = word_of_value(key, (uint64_t)get_choice(key, base));
                strbuf_add(b, word ? word->word : "");
                return;
        case KEY_BOOL:
                strbuf_add(b, *(const bool *)field ? "true" : "false");
                return;
        case KEY_NUMBER:
        case KEY_BYTES:
        case KEY_RATE:
        case KEY_TIME:
                add_number(key, *(const uint64_t *)field, b);
                return;
        case KEY_SHARE:
                add_share(key, field, b);
                return;
        case KEY_MINUTE:
                strbuf_addf(b, "\"%02u:%02u\"", *(const unsigned *)field / 60,
                            *(const unsigned *)field % 60);
                return;
        case KEY_ELEMENTS:
                add_elements(key, base, b);
                return;
        default:
                return;
        }
}

bool value_is_equal(const ConfigKey *key, const void *a, const void *b) {
        _cleanup_(strbuf_done) StrBuf text_a = STRBUF_INIT, text_b = STRBUF_INIT;

        value_add_yaml(key, a, &text_a);
        value_add_yaml(key, b, &text_b);
        if (strbuf_error(&text_a) < 0 || strbuf_error(&text_b) < 0)
                return false;
        return text_a.n == text_b.n &&
               (text_a.n == 0 || memcmp(text_a.text, text_b.text, text_a.n) == 0);
}

bool value_is_default(const ConfigKey *key, const void *base) {
        union {
                char bytes[64];
                uint64_t number; /* for alignment */
        } scratch = { 0 };
        ConfigKey at_scratch = *key;
        bool same;

        if (key->type == KEY_ELEMENTS)
                return value_n_elements(key, base) == 0;
        if (!key->fallback || key->size > sizeof scratch)
                return false;
        at_scratch.offset = 0;
        same = value_set_default(&at_scratch, &scratch) == 0;
        if (same)
                same = value_is_equal(&at_scratch, value_field(key, base), &scratch);
        value_clear(&at_scratch, &scratch);
        return same;
}
