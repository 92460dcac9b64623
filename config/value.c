/* Values of the types that the table knows: sets a field from the text of a scalar or from the
 * default, and writes it as YAML. Two values are equal when their YAML is. A faulty text becomes a
 * ValueFault with a remedy; the field stays as it was. Finding the text in the file, and reporting
 * the fault, is left to read.c. */
#include "config/value.h"

#include <errno.h>
#include <inttypes.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "config/faults.h"
#include "lib/base/array.h"
#include "lib/base/parse.h"
#include "lib/base/path.h"

/** @return the field in the struct at `base`. Readers and writers use it, so it drops const. */
static inline void *value_field(const ConfigKey *key, const void *base) {
        return (char *)base + key->offset;
}

void value_fault_done(ValueFault *f) {
        strbuf_done(&f->fault);
        strbuf_done(&f->remedy);
}

/* Words */

unsigned value_distance_limit(size_t n) {
        return n <= 3 ? 2 : n <= 7 ? 3 : 4;
}

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
        unsigned nearest = value_distance_limit(n);

        for (const KeyWord *w = key->words; n < VALUE_SUGGEST_MAX && w->word; w++) {
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

/* What each type of value can do. Lists and mappings have no `set`: they are set entry by entry. */
typedef struct ValueType {
        int (*set)(const ConfigKey *key, void *base, const char *text, ValueFault *f);
        void (*add)(const ConfigKey *key, const void *base, StrBuf *b); /* as YAML */
        int (*parse)(const char *text, uint64_t *ret);                  /* quantities only */
        const char *(*format)(char *buf, uint64_t v);                   /* quantities only */
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
        const char *name, *unit; /* as other programs write it; as this file must write it */
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

/* @return the unit as a value must have it; NULL: unknown */
static const char *find_unit(const UnitName *names, size_t n_names, const char *text, size_t n) {
        for (size_t i = 0; i < n_names; i++)
                if (strlen(names[i].name) == n && strncasecmp(names[i].name, text, n) == 0)
                        return names[i].unit;
        return NULL;
}

/* For a value such as `10MB`, `8 MiB`, `5min`, or `50MiB` for a rate, writes how it must look. Not
 * for a rate that ends in `b`, which may be meant in bits. */
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

/* Checks a string, or one of a list. @return 0 and a copy for the field in *ret */
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

int value_append_string(char ***items, size_t n_used, char *text) {
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

int value_append(const ConfigKey *key, void *base, const char *text, ValueFault *f) {
        StringList *list = value_field(key, base);
        char *copy;
        int r = copy_checked(key, text, &copy, f);

        if (r == 0)
                r = value_append_string(&list->items, list->n, copy);
        list->n += r == 0;
        return r;
}

int value_append_pair(const ConfigKey *key, void *base, const ValuePair *pair, ValueFault *f) {
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
                r = value_append_string(&map->items, 2 * map->n, strdup(pair->name));
        if (r == 0)
                r = value_append_string(&map->items, 2 * map->n + 1, TAKE_PTR(value));
        map->n += r == 0;
        return r;
}

int value_set(const ConfigKey *key, void *base, const char *text, ValueFault *f) {
        return value_types[key->type].set(key, base, text, f);
}

/* Defaults */

/* Appends each word of a text; words are separated by blanks. */
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
        return r == VALUE_E_FAULTY ? -EINVAL : r; /* the table is faulty; a test checks it */
}

const ConfigKey *value_next_field(const ConfigKey *after, const ConfigKey *list) {
        size_t n;
        const ConfigKey *keys = keys_all(&n);

        if (list)
                return keys_next_child(after, list->below);
        for (const ConfigKey *key = after ? after + 1 : keys; key < keys + n; key++)
                if (key->type != KEY_SECTION && !strstr(key->name, "[]"))
                        return key;
        return NULL;
}

int value_set_all_defaults(const ConfigKey *list, void *base) {
        int r = 0;

        for (const ConfigKey *key = NULL; r == 0 && (key = value_next_field(key, list));)
                r = value_set_default(key, base);
        return r;
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

void value_clear_all(const ConfigKey *list, void *base) {
        for (const ConfigKey *key = NULL; (key = value_next_field(key, list));)
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

/* Fields as YAML */

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
                for (const ConfigKey *k = NULL; (k = value_next_field(k, key));) {
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

bool value_is_equal(const ConfigKey *key, const void *a, const void *b) {
        _cleanup_(strbuf_done) StrBuf text_a = STRBUF_INIT, text_b = STRBUF_INIT;

        value_add_yaml(key, a, &text_a);
        value_add_yaml(key, b, &text_b);
        return !text_a.failed && !text_b.failed && text_a.n == text_b.n &&
               (text_a.n == 0 || memcmp(text_a.text, text_b.text, text_a.n) == 0);
}
