/* From text to fields, by the types of the table; and the way back to nothing. */
#include "config/value.h"

#include <errno.h>
#include <inttypes.h>
#include <string.h>
#include <strings.h>

#include "config/config.h"
#include "config/faults.h"
#include "lib/base/parse.h"
#include "lib/base/path.h"

void value_fault_done(ValueFault *f) {
        strbuf_done(&f->fault);
        strbuf_done(&f->remedy);
}

static void add_default(const ConfigKey *key, StrBuf *remedy) {
        if (key->fallback && key->fallback[0])
                strbuf_addf(remedy, ", or delete the line for the default, %s", key->fallback);
}

static int set_fault(const ConfigKey *key, const char *text, const char *what, ValueFault *f) {
        text_add_shown(&f->fault, text);
        strbuf_addf(&f->fault, " %s", what);
        if (f->remedy.n == 0)
                value_add_remedy(key, &f->remedy);
        add_default(key, &f->remedy);
        return VALUE_E_FAULTY;
}

/* Words */

static const KeyWord *find_word(const ConfigKey *key, const char *text) {
        for (const KeyWord *w = key->words; w && w->word; w++)
                if (strcmp(w->word, text) == 0)
                        return w;
        return NULL;
}

void value_add_remedy(const ConfigKey *key, StrBuf *b) {
        bool is_words_only = key->words && key->type != KEY_NUMBER;

        strbuf_add(b, is_words_only ? "use " : keys_type_remedy(key));
        for (const KeyWord *w = key->words; w && w->word; w++) {
                const char *first = is_words_only ? "" : ", or ";
                const char *join = w == key->words ? first : w[1].word ? ", " : " or ";
                strbuf_addf(b, "%s%s", join, w->word);
        }
}

static int set_fault_word(const ConfigKey *key, const char *text, ValueFault *f) {
        strbuf_add(&f->fault, "invalid value ");
        text_add_shown(&f->fault, text);
        strbuf_add(&f->fault, " (one of: ");
        for (const KeyWord *w = key->words; w->word; w++)
                strbuf_addf(&f->fault, "%s%s", w == key->words ? "" : ", ", w->word);
        strbuf_add(&f->fault, ")");
        strbuf_add(&f->remedy, "use one of these");
        add_default(key, &f->remedy);
        return VALUE_E_FAULTY;
}

static int set_choice(const ConfigKey *key, void *base, const char *text, ValueFault *f) {
        const KeyWord *word = find_word(key, text);

        if (!word)
                return set_fault_word(key, text, f);
        if (key->size == sizeof(bool))
                *(bool *)value_field(key, base) = word->value != 0;
        else
                *(int *)value_field(key, base) = word->value;
        return 0;
}

/* Quantities */

int value_parse_quantity(const ConfigKey *key, const char *text, uint64_t *ret) {
        const KeyWord *word = find_word(key, text);

        if (word || ((key->flags & KEY_OFF) && strcasecmp(text, "off") == 0)) {
                *ret = word ? (uint64_t)word->value : 0;
                return 0;
        }
        switch (key->type) {
        case KEY_TIME:
                return parse_duration_usec(text, ret);
        case KEY_RATE:
                return parse_rate(text, ret);
        case KEY_NUMBER:
                return parse_u64(text, ret);
        default:
                return parse_bytes(text, ret);
        }
}

static int set_fault_range(const ConfigKey *key, const char *text, bool below, ValueFault *f) {
        char limit[VALUE_QUANTITY_SIZE];

        value_format_quantity(key, below ? key->min : key->max, limit);
        if (key->min == key->max) {
                strbuf_addf(&f->remedy, "use %s", limit);
                text_add_shown(&f->fault, text);
                strbuf_add(&f->fault, " is unknown to this neuron-collectd");
                return VALUE_E_FAULTY;
        }
        text_add_shown(&f->fault, text);
        strbuf_addf(&f->fault, " is %s %s", below ? "below" : "above", limit);
        if (below && key->why_min)
                strbuf_addf(&f->fault, ", %s", key->why_min);
        strbuf_addf(&f->remedy, "use %s or %s", limit, below ? "more" : "less");
        if (key->flags & KEY_OFF)
                strbuf_add(&f->remedy, ", 0 for no limit");
        add_default(key, &f->remedy);
        return VALUE_E_FAULTY;
}

static int set_fault_type(const ConfigKey *key, const char *text, ValueFault *f) {
        _cleanup_(strbuf_done) StrBuf what = STRBUF_INIT;

        strbuf_addf(&what, "is not %s", keys_type_name(key));
        return set_fault(key, text, strbuf_error(&what) < 0 ? "is wrong" : what.text, f);
}

static int set_quantity(const ConfigKey *key, void *base, const char *text, ValueFault *f) {
        uint64_t v = 0;
        int r = value_parse_quantity(key, text, &v);

        if (r == -EINVAL)
                return set_fault_type(key, text, f);
        if (r == -ERANGE || v > key->max)
                return set_fault_range(key, text, false, f);
        if (v < key->min && !(v == 0 && ((key->flags & KEY_OFF) || find_word(key, text))))
                return set_fault_range(key, text, true, f);
        *(uint64_t *)value_field(key, base) = v;
        return 0;
}

static int set_share(const ConfigKey *key, void *base, const char *text, ValueFault *f) {
        ConfigSize size = { 0 };
        int r;

        if (strchr(text, '%')) {
                size.is_permille = true;
                r = parse_permille(text, &size.permille);
                if (r == -ERANGE) {
                        strbuf_add(&f->remedy, "use 100% or less");
                        return set_fault(key, text, "is more than the whole", f);
                }
        } else {
                r = value_parse_quantity(key, text, &size.bytes);
                if (r == -ERANGE)
                        return set_fault_range(key, text, false, f);
        }
        if (r < 0)
                return set_fault_type(key, text, f);
        *(ConfigSize *)value_field(key, base) = size;
        return 0;
}

static int set_minute(const ConfigKey *key, void *base, const char *text, ValueFault *f) {
        const char *digits = "0123456789";
        unsigned hour, minute;

        if (strlen(text) != 5 || strspn(text, digits) != 2 || text[2] != ':' ||
            strspn(text + 3, digits) != 2)
                return set_fault_type(key, text, f);
        hour = (unsigned)(text[0] - '0') * 10 + (unsigned)(text[1] - '0');
        minute = (unsigned)(text[3] - '0') * 10 + (unsigned)(text[4] - '0');
        if (hour > 23 || minute > 59)
                return set_fault_type(key, text, f);
        *(unsigned *)value_field(key, base) = hour * 60 + minute;
        return 0;
}

static int set_bool(const ConfigKey *key, void *base, const char *text, ValueFault *f) {
        if (parse_bool(text, value_field(key, base)) < 0)
                return set_fault_type(key, text, f);
        return 0;
}

/* Strings */

/* @param form  may be NULL: any text has it */
static int check_form(const ConfigKey *key, const Form *form, const char *text, ValueFault *f) {
        _cleanup_(strbuf_done) StrBuf what = STRBUF_INIT;

        if (!form || form->check(text, &what))
                return 0;
        strbuf_add(&f->remedy, form->remedy);
        return set_fault(key, text, strbuf_error(&what) < 0 ? "is wrong" : what.text, f);
}

/* Checks a string, or one of a list, and makes the copy that is kept. */
static int copy_checked(const ConfigKey *key, const char *text, char **ret, ValueFault *f) {
        size_t max = key->type == KEY_STRING && key->max > 0 ? key->max : KEYS_STRING_MAX;
        char *copy;

        if (strlen(text) > max) {
                strbuf_addf(&f->remedy, "use %zu bytes or less", max);
                return set_fault(key, text, "is too long", f);
        }
        if (key->type == KEY_STRING && key->fallback && strcmp(text, key->fallback) == 0)
                ; /* a default is never refused, and the empty ones have no form */
        else if (key->words && !find_word(key, text))
                return set_fault_word(key, text, f);
        else if (check_form(key, key->form, text, f) != 0)
                return VALUE_E_FAULTY;
        copy = key->form && key->form->is_path && text[0] == '/' ? path_simplify(text)
                                                                 : strdup(text);
        if (!copy)
                return -ENOMEM;
        *ret = copy;
        return 0;
}

static int set_string(const ConfigKey *key, void *base, const char *text, ValueFault *f) {
        char **field = value_field(key, base), *copy;
        int r = copy_checked(key, text, &copy, f);

        if (r != 0)
                return r;
        free(*field);
        *field = copy;
        return 0;
}

/* Makes space for one more and the NULL at the end. */
static int grow_list(char ***items, size_t n_used) {
        char **more = reallocarray(*items, n_used + 2, sizeof **items);

        if (!more)
                return -ENOMEM;
        more[n_used] = more[n_used + 1] = NULL;
        *items = more;
        return 0;
}

int value_append(const ConfigKey *key, void *base, const char *text, ValueFault *f) {
        StringList *list = value_field(key, base);
        char *copy;
        int r = copy_checked(key, text, &copy, f);

        if (r != 0)
                return r;
        r = grow_list(&list->items, list->n);
        if (r < 0) {
                free(copy);
                return r;
        }
        list->items[list->n++] = copy;
        return 0;
}

int value_append_pair(const ConfigKey *key, void *base, const ValuePair *pair, ValueFault *f) {
        StringMap *map = value_field(key, base);
        _cleanup_free_ char *name = NULL, *value = NULL;
        size_t n = strlen(pair->name);
        int r;

        if (n == 0 || n > KEYS_MAP_NAME_MAX) {
                strbuf_addf(&f->remedy, "use a name of 1 to %d bytes", KEYS_MAP_NAME_MAX);
                return set_fault(key, pair->name, "is empty or too long for a name", f);
        }
        r = check_form(key, key->name_form, pair->name, f);
        if (r == 0)
                r = copy_checked(key, pair->text, &value, f);
        if (r != 0)
                return r;
        name = strdup(pair->name);
        if (!name || grow_list(&map->items, 2 * map->n) < 0 ||
            grow_list(&map->items, 2 * map->n + 1) < 0)
                return -ENOMEM;
        map->items[2 * map->n] = TAKE_PTR(name);
        map->items[2 * map->n + 1] = TAKE_PTR(value);
        map->n++;
        return 0;
}

int value_set(const ConfigKey *key, void *base, const char *text, ValueFault *f) {
        switch (key->type) {
        case KEY_STRING:
                return set_string(key, base, text, f);
        case KEY_CHOICE:
                return set_choice(key, base, text, f);
        case KEY_BOOL:
                return set_bool(key, base, text, f);
        case KEY_NUMBER:
        case KEY_BYTES:
        case KEY_RATE:
        case KEY_TIME:
                return set_quantity(key, base, text, f);
        case KEY_SHARE:
                return set_share(key, base, text, f);
        case KEY_MINUTE:
                return set_minute(key, base, text, f);
        default:
                return -EINVAL; /* not a scalar: the caller's mistake */
        }
}

/* Defaults */

/* Appends each word of a text with blanks between. */
static int append_words(const ConfigKey *key, void *base, const char *words, ValueFault *f) {
        while (*words) {
                size_t n = strcspn(words, " ");
                _cleanup_free_ char *word = strndup(words, n);
                int r = word ? value_append(key, base, word, f) : -ENOMEM;
                if (r != 0)
                        return r;
                words += n + strspn(words + n, " ");
        }
        return 0;
}

int value_set_default(const ConfigKey *key, void *base) {
        _cleanup_(value_fault_done) ValueFault f = { 0 };
        int r;

        if (!key->fallback)
                return 0;
        if (key->type == KEY_STRINGS || key->type == KEY_MAP) {
                value_clear(key, base);
                r = key->type == KEY_MAP
                            ? 0
                            : append_words(key, base, key->fallback, &f); /* a map's is empty */
        } else {
                r = value_set(key, base, key->fallback, &f);
        }
        return r == VALUE_E_FAULTY ? -EINVAL : r; /* a fault in the table; a test looks for it */
}

int value_set_all_defaults(const char *prefix, void *base) {
        size_t n;
        const ConfigKey *keys = keys_all(&n);

        for (size_t i = 0; i < n; i++) {
                char below[KEYS_PREFIX_SIZE];
                int r;
                if (!keys_is_child(&keys[i], prefix))
                        continue;
                r = keys[i].type == KEY_SECTION
                            ? value_set_all_defaults(keys_prefix(&keys[i], below), base)
                            : value_set_default(&keys[i], base);
                if (r < 0)
                        return r;
        }
        return 0;
}

/* Elements */

size_t value_n_elements(const ConfigKey *key, const void *base) {
        return *(const size_t *)((const char *)base + key->count_offset);
}

void *value_element(const ConfigKey *key, const void *base, size_t i) {
        char *elements;

        memcpy(&elements, value_field(key, base),
               sizeof elements); /* whatever it points to: no aliasing */
        return elements ? elements + i * key->element_size : NULL;
}

int value_add_element(const ConfigKey *key, void *base, void **ret) {
        size_t *n = (size_t *)((char *)base + key->count_offset);
        char *more = reallocarray(value_element(key, base, 0), *n + 1, key->element_size);

        if (!more)
                return -ENOMEM;
        memcpy(value_field(key, base), &more, sizeof more);
        *ret = memset(more + *n * key->element_size, 0, key->element_size);
        ++*n;
        return 0;
}

/* Freeing */

static void free_strings(char **items) {
        for (char **p = items; p && *p; p++)
                free(*p);
        free(items);
}

void value_clear_all(const char *prefix, void *base) {
        size_t n;
        const ConfigKey *keys = keys_all(&n);

        for (size_t i = 0; i < n; i++) {
                char below[KEYS_PREFIX_SIZE];
                if (!keys_is_child(&keys[i], prefix))
                        continue;
                if (keys[i].type == KEY_SECTION)
                        value_clear_all(keys_prefix(&keys[i], below), base);
                else
                        value_clear(&keys[i], base);
        }
}

void value_clear(const ConfigKey *key, void *base) {
        char prefix[KEYS_PREFIX_SIZE];
        void *field = value_field(key, base);

        switch (key->type) {
        case KEY_STRING:
                free(*(char **)field);
                break;
        case KEY_STRINGS:
                free_strings(((StringList *)field)->items);
                break;
        case KEY_MAP:
                free_strings(((StringMap *)field)->items);
                break;
        case KEY_ELEMENTS:
                keys_prefix(key, prefix);
                for (size_t i = 0; i < value_n_elements(key, base); i++)
                        value_clear_all(prefix, value_element(key, base, i));
                free(value_element(key, base, 0));
                *(size_t *)((char *)base + key->count_offset) = 0;
                break;
        default:
                break;
        }
        memset(field, 0, key->size);
}

/* From fields back to YAML, which is also how values are compared: what is written the same is the
 * same. */

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
                return parse_format_duration(buf, v);
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
