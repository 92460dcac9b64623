/* Loads, frees, prints and compares configurations, by the table: from the tree of config/load.c to
 * a Config, values from text and back to YAML. */
#include "config/read.h"

#include <errno.h>
#include <inttypes.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "config/config.h"
#include "config/faults.h"
#include "config/load.h"
#include "lib/base/array.h"
#include "lib/base/parse.h"
#include "lib/base/path.h"

/** @return where the field lies in the struct at `base`; const is cast away here, for readers and
 * writers alike */
static inline void *value_field(const ConfigKey *key, const void *base) {
        return (char *)base + key->offset;
}

typedef struct ValuePair {
        const char *name, *text; /* borrowed */
} ValuePair;

void value_fault_done(ValueFault *f) {
        strbuf_done(&f->fault);
        strbuf_done(&f->remedy);
}

/* Words */

enum { SUGGEST_MAX = 32 }; /* longer names are nobody's typing error */

/* Distances from here on are too far for "did you mean". @param n  length of what was written */
static unsigned distance_limit(size_t n) {
        return n <= 3 ? 2 : n <= 7 ? 3 : 4;
}

static const KeyWord *find_word(const ConfigKey *key, const char *text) {
        for (const KeyWord *w = key->words; w && w->word; w++)
                if (strcmp(w->word, text) == 0)
                        return w;
        return NULL;
}

static void value_add_remedy(const ConfigKey *key, StrBuf *b) {
        bool is_words_only = key->words && key->type != KEY_NUMBER;

        strbuf_add(b, is_words_only ? "use " : keys_type_remedy(key));
        for (const KeyWord *w = key->words; w && w->word; w++) {
                const char *first = is_words_only ? "" : ", or ";
                const char *join = w == key->words ? first : w[1].word ? ", " : " or ";
                strbuf_addf(b, "%s%s", join, w->word);
        }
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

/* @return the word that was probably meant; NULL */
static const char *nearest_word(const ConfigKey *key, const char *text) {
        const char *found = NULL;
        size_t n = strlen(text);
        unsigned nearest = distance_limit(n);

        for (const KeyWord *w = key->words; n < SUGGEST_MAX && w->word; w++) {
                unsigned d = strcasecmp(text, w->word) == 0 ? 0 : parse_distance(text, w->word);
                if (d < nearest) {
                        nearest = d;
                        found = w->word;
                }
        }
        return found;
}

static int set_fault_word(const ConfigKey *key, const char *text, ValueFault *f) {
        const char *near = nearest_word(key, text);

        strbuf_add(&f->fault, "invalid value ");
        text_add_shown(&f->fault, text);
        for (const KeyWord *w = key->words; w->word; w++)
                strbuf_addf(&f->fault, "%s%s", w == key->words ? " (one of: " : ", ", w->word);
        strbuf_add(&f->fault, ")");
        strbuf_add(&f->remedy, near ? "did you mean '" : "use one of these");
        if (near)
                strbuf_addf(&f->remedy, "%s'?", near);
        else
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

/* What there is to do with a value of a type; lists and mappings are set entry by entry. */
typedef struct ValueType {
        int (*set)(const ConfigKey *key, void *base, const char *text, ValueFault *f);
        void (*add)(const ConfigKey *key, const void *base, StrBuf *b); /* as YAML */
        int (*parse)(const char *text, uint64_t *ret);                  /* of a quantity */
        const char *(*format)(char *buf, uint64_t v);                   /* the same */
} ValueType;

static const ValueType value_types[N_KEY_TYPES];

/* Quantities */

static int value_parse_quantity(const ConfigKey *key, const char *text, uint64_t *ret) {
        const KeyWord *word = find_word(key, text);

        if (!word && !((key->flags & KEY_OFF) && strcasecmp(text, "off") == 0))
                return value_types[key->type].parse(text, ret);
        *ret = word ? (uint64_t)word->value : 0;
        return 0;
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

typedef struct UnitName {
        const char *name, *unit; /* as others write it, as it is written here */
} UnitName;

static const UnitName size_names[] = {
        { "b", "" },     { "k", "KiB" },   { "kb", "KiB" },  { "kib", "KiB" }, { "m", "MiB" },
        { "mb", "MiB" }, { "mib", "MiB" }, { "g", "GiB" },   { "gb", "GiB" },  { "gib", "GiB" },
        { "t", "TiB" },  { "tb", "TiB" },  { "tib", "TiB" },
};

static const UnitName time_names[] = {
        { "sec", "s" },   { "secs", "s" }, { "second", "s" }, { "seconds", "s" },
        { "min", "m" },   { "mins", "m" }, { "minute", "m" }, { "minutes", "m" },
        { "hr", "h" },    { "hrs", "h" },  { "hour", "h" },   { "hours", "h" },
        { "day", "d" },   { "days", "d" }, { "msec", "ms" },  { "millis", "ms" },
        { "usec", "us" }, { "s", "s" },    { "m", "m" },      { "h", "h" },
        { "d", "d" },     { "ms", "ms" },  { "us", "us" },
};

/* @return how the unit is written here; NULL: unknown */
static const char *find_unit(const UnitName *names, size_t n_names, const char *text, size_t n) {
        for (size_t i = 0; i < n_names; i++)
                if (strlen(names[i].name) == n && strncasecmp(names[i].name, text, n) == 0)
                        return names[i].unit;
        return NULL;
}

/* `10MB`, `8 MiB`, `5min`, and `50MiB` for a rate: how it is written here. A rate in `b` counts
 * bits, and there is no telling. */
static void add_unit_remedy(const ConfigKey *key, const char *text, StrBuf *remedy) {
        const bool is_time = key->type == KEY_TIME, is_rate = key->type == KEY_RATE;
        size_t digits = strspn(text, "0123456789");
        const char *unit = text + digits + strspn(text + digits, " ");
        size_t n = strcspn(unit, "/");
        uint64_t v;

        if (digits == 0 || digits > 19 || (is_rate && n > 0 && unit[n - 1] == 'b') ||
            (unit[n] &&
             !(is_rate && (strcmp(unit + n, "/s") == 0 || strcmp(unit + n, "/sec") == 0))))
                return;
        const char *name = is_time ? find_unit(time_names, ELEMENTSOF(time_names), unit, n)
                                   : find_unit(size_names, ELEMENTSOF(size_names), unit, n);
        _cleanup_free_ char *right =
                name ? strbuf_format("%.*s%s%s", (int)digits, text, name, is_rate ? "/s" : "")
                     : NULL;
        if (right && value_types[key->type].parse && value_types[key->type].parse(right, &v) == 0)
                strbuf_addf(remedy, "write %s", right);
}

static int set_fault_type(const ConfigKey *key, const char *text, ValueFault *f) {
        char what[64];

        (void)snprintf(what, sizeof what, "is not %s", keys_type_name(key));
        if (key->type == KEY_BYTES || key->type == KEY_RATE || key->type == KEY_TIME ||
            key->type == KEY_SHARE)
                add_unit_remedy(key, text, &f->remedy);
        return set_fault(key, text, what, f);
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
        char *copy = key->form && key->form->is_path && text[0] == '/' ? path_simplify(text)
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

/* Adds a string and the NULL at the end. @param text  owned from here on; NULL = no memory */
static int append_string(char ***items, size_t n_used, char *text) {
        char **more = text ? reallocarray(*items, n_used + 2, sizeof **items) : NULL;

        if (!more) {
                free(text);
                return -ENOMEM;
        }
        more[n_used] = text;
        more[n_used + 1] = NULL;
        *items = more;
        return 0;
}

/* @return as value_set() */
static int value_append(const ConfigKey *key, void *base, const char *text, ValueFault *f) {
        StringList *list = value_field(key, base);
        char *copy;
        int r = copy_checked(key, text, &copy, f);

        if (r == 0)
                r = append_string(&list->items, list->n, copy);
        list->n += r == 0;
        return r;
}

static int value_append_pair(const ConfigKey *key, void *base, const ValuePair *pair,
                             ValueFault *f) {
        StringMap *map = value_field(key, base);
        _cleanup_free_ char *value = NULL;
        size_t n = strlen(pair->name);

        if (n == 0 || n > KEYS_MAP_NAME_MAX) {
                strbuf_addf(&f->remedy, "use a name of 1 to %d bytes", KEYS_MAP_NAME_MAX);
                return set_fault(key, pair->name, "is empty or too long for a name", f);
        }
        int r = check_form(key, key->name_form, pair->name, f);
        if (r == 0)
                r = copy_checked(key, pair->text, &value, f);
        if (r == 0)
                r = append_string(&map->items, 2 * map->n, strdup(pair->name));
        if (r == 0)
                r = append_string(&map->items, 2 * map->n + 1, TAKE_PTR(value));
        map->n += r == 0;
        return r;
}

int value_set(const ConfigKey *key, void *base, const char *text, ValueFault *f) {
        return value_types[key->type].set(key, base, text, f);
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

/* The next key with a field in the struct of a list's elements; without a list, in Config. */
static const ConfigKey *next_field(const ConfigKey *after, const ConfigKey *list) {
        size_t n;
        const ConfigKey *keys = keys_all(&n);

        if (list)
                return keys_next_child(after, list->below);
        for (const ConfigKey *key = after ? after + 1 : keys; key < keys + n; key++)
                if (key->type != KEY_SECTION && !strstr(key->name, "[]"))
                        return key;
        return NULL;
}

static int value_set_all_defaults(const ConfigKey *list, void *base) {
        int r = 0;

        for (const ConfigKey *key = NULL; r == 0 && (key = next_field(key, list));)
                r = value_set_default(key, base);
        return r;
}

/* Elements */

static size_t value_n_elements(const ConfigKey *key, const void *base) {
        return *(const size_t *)((const char *)base + key->count_offset);
}

/* @return the element's struct, NULL when there are none */
static void *value_element(const ConfigKey *key, const void *base, size_t i) {
        char *elements;

        memcpy(&elements, value_field(key, base),
               sizeof elements); /* whatever it points to: no aliasing */
        return elements ? elements + i * key->element_size : NULL;
}

static int value_add_element(const ConfigKey *key, void *base, void **ret) {
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

static void value_clear_all(const ConfigKey *list, void *base) {
        for (const ConfigKey *key = NULL; (key = next_field(key, list));)
                value_clear(key, base);
}

void value_clear(const ConfigKey *key, void *base) {
        void *field = value_field(key, base);

        switch (key->type) {
        case KEY_STRING:
                free(*(char **)field);
                break;
        case KEY_STRINGS:
                strings_free(((StringList *)field)->items);
                break;
        case KEY_MAP:
                strings_free(((StringMap *)field)->items);
                break;
        case KEY_ELEMENTS:
                for (size_t i = 0; i < value_n_elements(key, base); i++)
                        value_clear_all(key, value_element(key, base, i));
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

static const char *format_rate(char *buf, uint64_t v) {
        char size[PARSE_FORMAT_SIZE];

        (void)snprintf(buf, VALUE_QUANTITY_SIZE, "%s%s", parse_format_bytes(size, v),
                       v > 0 ? "/s" : "");
        return buf;
}

static const char *format_number(char *buf, uint64_t v) {
        (void)snprintf(buf, VALUE_QUANTITY_SIZE, "%" PRIu64, v);
        return buf;
}

const char *value_format_quantity(const ConfigKey *key, uint64_t v,
                                  char buf[static VALUE_QUANTITY_SIZE]) {
        return value_types[key->type].format(buf, v);
}

static void add_string(const ConfigKey *key, const void *base, StrBuf *b) {
        const char *text = *(char *const *)value_field(key, base);

        text_add_yaml(b, text ? text : "", true);
}

static void add_choice(const ConfigKey *key, const void *base, StrBuf *b) {
        const void *field = value_field(key, base);
        int value = key->size == sizeof(bool) ? *(const bool *)field : *(const int *)field;
        const KeyWord *word = word_of_value(key, (uint64_t)value);

        strbuf_add(b, word ? word->word : "");
}

static void add_bool(const ConfigKey *key, const void *base, StrBuf *b) {
        strbuf_add(b, *(const bool *)value_field(key, base) ? "true" : "false");
}

static void add_minute(const ConfigKey *key, const void *base, StrBuf *b) {
        unsigned minute = *(const unsigned *)value_field(key, base);

        strbuf_addf(b, "\"%02u:%02u\"", minute / 60, minute % 60);
}

static void add_share(const ConfigKey *key, const void *base, StrBuf *b) {
        const ConfigSize *size = value_field(key, base);
        char buf[VALUE_QUANTITY_SIZE];

        if (!size->is_permille)
                strbuf_add(b, value_format_quantity(key, size->bytes, buf));
        else if (size->permille % 10 == 0)
                strbuf_addf(b, "%u%%", size->permille / 10);
        else
                strbuf_addf(b, "%u.%u%%", size->permille / 10, size->permille % 10);
}

static void add_strings(const ConfigKey *key, const void *base, StrBuf *b) {
        const StringList *list = value_field(key, base);

        strbuf_add(b, "[");
        for (size_t i = 0; i < list->n; i++) {
                strbuf_add(b, i > 0 ? ", " : "");
                text_add_yaml(b, list->items[i], true);
        }
        strbuf_add(b, "]");
}

static void add_map(const ConfigKey *key, const void *base, StrBuf *b) {
        const StringMap *map = value_field(key, base);

        strbuf_add(b, "{");
        for (size_t i = 0; i < map->n; i++) {
                strbuf_add(b, i > 0 ? ", " : "");
                text_add_yaml(b, map->items[2 * i], false);
                strbuf_add(b, ": ");
                text_add_yaml(b, map->items[2 * i + 1], true);
        }
        strbuf_add(b, "}");
}

static void add_elements(const ConfigKey *key, const void *base, StrBuf *b) {
        strbuf_add(b, "[");
        for (size_t i = 0; i < value_n_elements(key, base); i++) {
                const char *join = i > 0 ? ", {" : "{";
                for (const ConfigKey *k = NULL; (k = next_field(k, key));) {
                        strbuf_addf(b, "%s%s: ", join, keys_leaf(k));
                        value_add_yaml(k, value_element(key, base, i), b);
                        join = ", ";
                }
                strbuf_add(b, "}");
        }
        strbuf_add(b, "]");
}

static void add_quantity(const ConfigKey *key, const void *base, StrBuf *b) {
        uint64_t v = *(const uint64_t *)value_field(key, base), fallback;
        const KeyWord *word = word_of_value(key, v);
        char buf[VALUE_QUANTITY_SIZE];

        if (word)
                strbuf_add(b, word->word);
        else if (key->fallback && value_parse_quantity(key, key->fallback, &fallback) == 0 &&
                 fallback == v)
                strbuf_add(b, key->fallback); /* 60s, as documented, rather than 1m */
        else
                strbuf_add(b, value_format_quantity(key, v, buf));
}

static const ValueType value_types[N_KEY_TYPES] = {
        [KEY_ELEMENTS] = { .add = add_elements },
        [KEY_STRING] = { .set = set_string, .add = add_string },
        [KEY_STRINGS] = { .add = add_strings },
        [KEY_MAP] = { .add = add_map },
        [KEY_CHOICE] = { .set = set_choice, .add = add_choice },
        [KEY_BOOL] = { .set = set_bool, .add = add_bool },
        [KEY_NUMBER] = { set_quantity, add_quantity, parse_u64, format_number },
        [KEY_BYTES] = { set_quantity, add_quantity, parse_bytes, parse_format_bytes },
        [KEY_RATE] = { set_quantity, add_quantity, parse_rate, format_rate },
        [KEY_TIME] = { set_quantity, add_quantity, parse_duration_usec, parse_format_duration },
        [KEY_SHARE] = { set_share, add_share, parse_bytes, parse_format_bytes },
        [KEY_MINUTE] = { .set = set_minute, .add = add_minute },
};

void value_add_yaml(const ConfigKey *key, const void *base, StrBuf *b) {
        value_types[key->type].add(key, base, b);
}

/* For lack of memory they differ. */
static bool value_is_equal(const ConfigKey *key, const void *a, const void *b) {
        _cleanup_(strbuf_done) StrBuf text_a = STRBUF_INIT, text_b = STRBUF_INIT;

        value_add_yaml(key, a, &text_a);
        value_add_yaml(key, b, &text_b);
        return !text_a.failed && !text_b.failed && text_a.n == text_b.n &&
               (text_a.n == 0 || memcmp(text_a.text, text_b.text, text_a.n) == 0);
}

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

static int compare(const void *left, const void *right) {
        const Origin *a = left, *b = right;

        if (a->key != b->key)
                return a->key < b->key ? -1 : 1; /* rows of one table */
        if (a->index != b->index)
                return a->index < b->index ? -1 : 1;
        return (a->item > b->item) - (a->item < b->item);
}

Origin *origins_find(const ConfigOrigins *o, const Origin *what) {
        return o->n > 0 ? bsearch(what, o->items, o->n, sizeof *o->items, compare) : NULL;
}

typedef struct ConfigReader {
        Config *config;
        Faults *faults;
        char *const *environment; /* NAME=VALUE, for ${NAME} */
        bool whole;               /* false: the tree is cut off, so missing keys are no fault */
} ConfigReader;

/* The mapping that is being read. */
typedef struct Scope {
        const char *prefix; /* of its keys: `""`, `node.`, `sources[].` */
        void *base;         /* the struct that its keys' offsets count from */
        size_t index;       /* of the element */
        unsigned line;      /* where it begins */
} Scope;

/* What was found under the name of one row. */
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
        o->items[o->n++] = (Origin){ .key = g->key,
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

/* What was expected is the key's type, or what one entry of its list or mapping must be. */
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

/* What is given must be a list or a mapping of a bounded length. @param n  entries */
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
        unsigned nearest = distance_limit(n);
        const ConfigKey *found = NULL;

        if (n < 2 || n >= SUGGEST_MAX)
                return NULL;
        for (const ConfigKey *k = NULL; (k = keys_next_child(k, prefix));) {
                unsigned d = parse_distance(leaf, keys_leaf(k));
                if (d < nearest) {
                        nearest = d;
                        found = k;
                }
        }
        /* A right name in a wrong place, most often by wrong indentation. */
        return found ? found : key_named(NULL, leaf);
}

static void report_unknown(ConfigReader *r, const Scope *scope, const LoadNode *name) {
        bool is_shown = r->faults->n <
                        FAULTS_MAX; /* searching is expensive, and there may be 50,000 of them */
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
                strbuf_addf(&remedy, "did you mean '%s'? then mind the indentation", near->name);
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

/* `name:, kind: and path:`, what an entry of a list cannot do without. */
static void add_required_names(StrBuf *b, const ConfigKey *list) {
        const char *join = "";

        for (const ConfigKey *key = NULL; (key = next_field(key, list));)
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

/* @return whether a row of destinations[] applies to an element of this type */
static bool applies(const ConfigKey *key, ConfigDestinationType type) {
        if (key->flags & KEY_S3)
                return type == CONFIG_S3;
        if (key->flags & KEY_VOLUME)
                return type == CONFIG_VOLUME;
        return true;
}

/* Which keys are needed and which must not be there; a destination's depend on its type, which may
 * come last. */
static void check_applicable(ConfigReader *r, const Scope *scope, const FoundKey *found) {
        size_t n;
        const ConfigKey *keys = keys_all(&n), *type = keys_get("destinations[].type");
        bool typed = keys_is_child(type, scope->prefix) && found[type - keys].good;

        for (const ConfigKey *key = NULL; (key = keys_next_child(key, scope->prefix));) {
                bool special = key->flags & (KEY_S3 | KEY_VOLUME);
                const FoundKey *f = &found[key - keys];
                Spot spot = { .line = f->line, .name = key->name, .index = scope->index };

                bool is_right = !special || applies(key, ((ConfigDestination *)scope->base)->type);
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

/* Fills the configuration, whose defaults are set and whose origins are empty. @param root  may be
 * NULL: an empty file  @return 0 or -errno; faults are added */
static int read_tree(ConfigReader *r, const LoadNode *root) {
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
        if (c->origins->n > 0)
                qsort(c->origins->items, c->origins->n, sizeof *c->origins->items, compare);
        return 0;
}

/* --print-config: every key that applies, in the table's order, with where its value comes from. */

typedef struct Printer {
        const Config *config;
        StrBuf out;
} Printer;

static void print_origin(Printer *p, const ConfigKey *key, size_t index) {
        const Origin *origin =
                origins_find(p->config->origins, &(Origin){ .key = key, .index = index });

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

/* Two blanks for each section or list around the key; a dash stands in the last two of an element's
 * first key. */
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
                    !applies(key, ((const ConfigDestination *)base)->type))
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

/* Loads, frees and compares whole configurations. */

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

/* All keys at their defaults: no sources and destinations yet. */
static int new_default(Config **ret) {
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

/* What the elements of a file have to do with each other */

/* The key that names the elements of a list; NULL when they have no names of their own. */
static const ConfigKey *identity_key(const ConfigKey *list) {
        const ConfigKey *key = NULL;

        while ((key = next_field(key, list)) && !(key->flags & KEY_IDENTITY))
                ;
        return key;
}

static const char *name_of(const ConfigKey *identity, const void *element) {
        return *(char *const *)((const char *)element + identity->offset);
}

static void check_unique(const Config *c, Faults *faults, const ConfigKey *list) {
        const ConfigKey *identity = identity_key(list);

        for (size_t i = 1; identity && i < value_n_elements(list, c); i++) {
                const char *mine = name_of(identity, value_element(list, c, i));
                const Origin *origin =
                        origins_find(c->origins, &(Origin){ .key = identity, .index = i });
                for (size_t k = 0; mine && k < i; k++) {
                        const char *other = name_of(identity, value_element(list, c, k));
                        if (!other || strcmp(mine, other) != 0)
                                continue;
                        faults_add(faults,
                                   &(Spot){ .line = origin ? origin->line : 0,
                                            .name = identity->name,
                                            .index = i },
                                   "give each entry its own name",
                                   "'%s' is the name of %s[%zu] already", mine, list->name, k);
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
                if (origins_find(c->origins, &(Origin){ .key = key, .index = i }))
                        continue;
                for (size_t k = 0; r == 0 && k < c->n_destinations; k++)
                        if (c->destinations[k].name) {
                                r = append_string(&list->items, list->n,
                                                  strdup(c->destinations[k].name));
                                list->n += r == 0;
                        }
        }
        return r;
}

static int check_elements(Config *c, Faults *faults) {
        for (const ConfigKey *key = NULL; (key = next_field(key, NULL));)
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
                r = new_default(&c);
        if (r < 0)
                return r;
        c->file = strdup(name);
        if (!c->file)
                return -ENOMEM;
        reader.config = c;
        r = read_tree(&reader, root);
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

static bool is_for_probe(const ConfigKey *key) {
        static const char commands[] = "snapshot.commands";
        return strcmp(key->name, "state_directory") == 0 ||
               strncmp(key->name, commands, sizeof commands - 1) == 0;
}

static bool is_faulty_for_probe(const Config *c) {
        for (size_t i = 0; i < c->origins->n; i++)
                if (c->origins->items[i].faulty && is_for_probe(c->origins->items[i].key))
                        return true;
        for (size_t i = 0; i < c->snapshot.n_commands; i++)
                if (!c->snapshot.commands[i].name || c->snapshot.commands[i].run.n == 0)
                        return true;
        return !c->state_directory;
}

int config_load_for_probe(Config **ret, const char *file, char *const *environment) {
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
                r = new_default(&c);
        if (r == 0) {
                reader.config = c;
                r = read_tree(&reader, root);
        }
        diag_done(&diags);
        if (r < 0)
                return r;
        if (!reader.whole || is_faulty_for_probe(c))
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

/* Comparing */

typedef struct Comparison {
        const Config *running, *loaded;
        void (*on_key)(const char *key, bool needs_restart, void *userdata);
        void *userdata;
} Comparison;

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
        for (const ConfigKey *key = NULL; (key = next_field(key, list));)
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
        const ConfigKey *identity = identity_key(list);

        for (size_t i = 0; i < value_n_elements(list, c->running); i++) {
                const void *mine = value_element(list, c->running, i);
                const void *other = find_element(list, c->loaded, name_of(identity, mine));
                if (!other || !elements_are_equal(list, mine, other))
                        report_element(c, list, name_of(identity, mine));
        }
        for (size_t i = 0; i < value_n_elements(list, c->loaded); i++) {
                const char *name = name_of(identity, value_element(list, c->loaded, i));
                if (!find_element(list, c->running, name))
                        report_element(c, list, name);
        }
}

void config_compare(const Config *running, const Config *loaded,
                    void (*on_key)(const char *key, bool needs_restart, void *userdata),
                    void *userdata) {
        Comparison c = { running, loaded, on_key, userdata };
        for (const ConfigKey *key = NULL; (key = next_field(key, NULL));)
                if (key->type == KEY_ELEMENTS && identity_key(key))
                        compare_elements(&c, key);
                else if (!value_is_equal(key, running, loaded))
                        on_key(key->name, key->flags & KEY_RESTART, userdata);
}
