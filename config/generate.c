/* A program of the build: writes from the table of keys what people read about the configuration,
 * the example file, the man page and docs/CONFIGURATION.md. It copies stdin to stdout and writes
 * the keys in the place of the line `@KEYS@`. The text around them is in config/ *.in. */
#include <stdio.h>
#include <string.h>

#include "config/config.h"
#include "config/keys.h"
#include "config/value.h"
#include "lib/base/strbuf.h"

enum { WRAP_COLUMNS = 96, MAN_COLUMNS = 78 };

static bool is_quantity(const ConfigKey *key) {
        return key->type == KEY_NUMBER || key->type == KEY_BYTES || key->type == KEY_RATE ||
               key->type == KEY_TIME;
}

/* Writes what the key takes, e.g. `a size, 5MiB to 5GiB`. */
static void add_kind(StrBuf *b, const ConfigKey *key) {
        bool is_words_only = key->words && key->type != KEY_NUMBER;
        char min[VALUE_QUANTITY_SIZE], max[VALUE_QUANTITY_SIZE];

        if (key->form && key->type == KEY_STRING)
                strbuf_add(b, key->form->what);
        else if (key->type == KEY_ELEMENTS)
                strbuf_add(b, "a list of mappings");
        else if (!is_words_only)
                strbuf_add(b, keys_type_name(key));
        if (is_quantity(key) && key->min == key->max)
                strbuf_addf(b, ", always %s", value_format_quantity(key, key->min, min));
        else if (is_quantity(key) && key->max < UINT64_MAX)
                strbuf_addf(b, ", %s to %s", value_format_quantity(key, key->min, min),
                            value_format_quantity(key, key->max, max));
        if (key->flags & KEY_OFF)
                strbuf_add(b, ", or 0 for no limit");
        for (const KeyWord *w = key->words; w && w->word; w++) {
                const char *join = w == key->words ? (is_words_only ? "" : ", or ")
                                   : w[1].word     ? ", "
                                                   : " or ";
                strbuf_addf(b, "%s%s", join, w->word);
        }
}

/* @return the default as it is written in YAML, the caller's; NULL when the key must be given */
static char *default_of(const ConfigKey *key) {
        StrBuf b = STRBUF_INIT;
        _cleanup_(config_freep) Config *c = NULL;

        if (key->type == KEY_ELEMENTS ? key->min > 0 : !key->fallback)
                return NULL;
        if (strcmp(key->name, "sources[].destinations") == 0)
                return strdup("all");
        if (key->type == KEY_MAP)
                return strdup("{}");
        if (key->type != KEY_STRINGS && key->type != KEY_ELEMENTS)
                return strdup(key->fallback[0] ? key->fallback : "\"\"");
        if (key->type == KEY_ELEMENTS || !key->fallback[0])
                return strdup("[]");
        if (config_defaults(&c) == 0)
                value_add_yaml(key, c, &b);
        return strbuf_detach(&b);
}

/* Writes to what the key applies, in sentences that begin with a blank. */
static void add_notes(StrBuf *b, const ConfigKey *key) {
        if (key->flags & KEY_S3)
                strbuf_add(b, " For type: s3 only.");
        if (key->flags & KEY_VOLUME)
                strbuf_add(b, " For type: volume only.");
        if (key->flags & KEY_RESTART)
                strbuf_add(b, " A change needs a restart.");
}

/* The example of a list of mappings has one element, made of the examples of its keys. */
static void add_example(StrBuf *b, const ConfigKey *key) {
        const char *join = "[{";

        if (key->type != KEY_ELEMENTS) {
                strbuf_add(b, key->example ? key->example : "");
                return;
        }
        for (const ConfigKey *k = NULL; (k = keys_next_child(k, key->below));) {
                strbuf_addf(b, "%s%s: %s", join, keys_leaf(k),
                            k->example ? k->example : k->fallback);
                join = ", ";
        }
        strbuf_add(b, "}]");
}

/* The example file */

static void print_comment(const char *indentation, const char *text) {
        size_t width = WRAP_COLUMNS - strlen(indentation) - 2;

        while (*text) {
                size_t n = strlen(text);
                if (n > width)
                        for (n = width; n > 0 && text[n] != ' ';)
                                n--;
                printf("%s# %.*s\n", indentation, (int)n, text);
                text += n + (text[n] == ' ');
        }
}

static void print_example_keys(const char *prefix, const char *indentation);
static void print_example_bucket(void);

static void print_example_key(const ConfigKey *key, const char *indentation, bool is_first) {
        _cleanup_(strbuf_done) StrBuf text = STRBUF_INIT, deeper = STRBUF_INIT;
        _cleanup_free_ char *value = default_of(key);
        bool is_list = key->type == KEY_ELEMENTS && !value;

        strbuf_add(&text, key->help);
        add_notes(&text, key);
        print_comment(indentation, text.text);
        if (value && (key->example || key->type == KEY_ELEMENTS)) {
                strbuf_clear(&text);
                add_example(&text, key);
                printf("%s# Example: %s\n", indentation, text.text);
        }
        if (is_first) /* the dash of an element takes the place of two blanks */
                printf("%.*s- ", (int)strlen(indentation) - 2, indentation);
        else
                printf("%s%s", indentation, value ? "#" : "");
        printf("%s:", keys_leaf(key));
        if (!is_list && key->type != KEY_SECTION)
                printf(" %s", value && strcmp(value, "all") == 0 ? "[fsx]"
                              : value                            ? value
                                                                 : key->example);
        printf("\n");
        strbuf_addf(&deeper, "%s%s", indentation, is_list ? "    " : "  ");
        if (is_list || key->type == KEY_SECTION)
                print_example_keys(key->below, deeper.text);
}

static void print_example_keys(const char *prefix, const char *indentation) {
        bool is_first = strstr(prefix, "[]");

        for (const ConfigKey *key = NULL; (key = keys_next_child(key, prefix));) {
                if (key->flags & KEY_S3)
                        continue;
                if (!prefix[0])
                        printf("\n");
                print_example_key(key, indentation, is_first);
                is_first = false;
        }
        if (strcmp(prefix, "destinations[].") == 0)
                print_example_bucket();
}

/* The example file has a volume as its destination. A bucket follows as a comment, because an
 * element has one type and can show the keys of that type only. */
static void print_example_bucket(void) {
        static const char prefix[] = "destinations[].", indentation[] = "  #   ";
        const char *start = "  # - ";

        printf("  # Or, or also, a bucket; remove `# ` from each line:\n");
        for (const ConfigKey *key = NULL; (key = keys_next_child(key, prefix));) {
                _cleanup_free_ char *value = default_of(key);

                if (key->flags & KEY_VOLUME)
                        continue;
                if (key->flags & KEY_S3)
                        print_comment(indentation, key->help);
                if (value && key->example)
                        printf("%s# Example: %s\n", indentation, key->example);
                printf("%s%s: %s\n", start, keys_leaf(key),
                       strcmp(keys_leaf(key), "name") == 0   ? "archive"
                       : strcmp(keys_leaf(key), "type") == 0 ? "s3"
                       : value                               ? value
                                                             : key->example);
                start = indentation;
        }
}

/* The man page */

/* mdoc wants a new sentence on a new line, and no line longer than 80 bytes. */
static void print_roff(const char *text) {
        while (*text) {
                const char *sentence = strstr(text, ". ");
                size_t n = sentence ? (size_t)(sentence + 1 - text) : strlen(text);
                if (n > MAN_COLUMNS)
                        for (n = MAN_COLUMNS; n > 0 && text[n] != ' ';)
                                n--;
                printf("%s%.*s\n", *text == '.' || *text == '\'' ? "\\&" : "", (int)n, text);
                text += n + (text[n] == ' ');
        }
}

static void print_man_keys(const char *prefix) {
        for (const ConfigKey *key = NULL; (key = keys_next_child(key, prefix));) {
                _cleanup_(strbuf_done) StrBuf b = STRBUF_INIT;
                _cleanup_free_ char *value = default_of(key);

                strbuf_add(&b, key->help);
                add_notes(&b, key);
                printf(".It Cm %s\n", key->name);
                print_roff(b.text);
                if (key->type != KEY_SECTION) {
                        strbuf_clear(&b);
                        strbuf_add(&b, "Takes ");
                        add_kind(&b, key);
                        strbuf_addf(&b, value ? "; the default is %s." : "; must be given.", value);
                        print_roff(b.text);
                }
                if (key->source)
                        printf(".Pq Source: %s\n", key->source);
                if (key->below)
                        print_man_keys(key->below);
        }
}

/* The document */

static void add_markdown_default(StrBuf *b, const ConfigKey *key) {
        _cleanup_free_ char *value = default_of(key);

        if (value)
                strbuf_addf(b, "`%s`", value);
        else if (key->type != KEY_SECTION)
                strbuf_add(b, "must be given");
}

static void print_markdown_keys(const char *prefix) {
        for (const ConfigKey *key = NULL; (key = keys_next_child(key, prefix));) {
                _cleanup_(strbuf_done) StrBuf b = STRBUF_INIT;

                strbuf_addf(&b, "`%s` | ", key->name);
                add_kind(&b, key);
                strbuf_add(&b, " | ");
                add_markdown_default(&b, key);
                strbuf_addf(&b, " | %s", key->help);
                add_notes(&b, key);
                if (key->source)
                        strbuf_addf(&b, " (%s)", key->source);
                printf("| %s |\n", b.text);
                if (key->below)
                        print_markdown_keys(key->below);
        }
}

static void print_example(const char *prefix) {
        print_example_keys(prefix, "");
}

int main(int argc, char **argv) {
        static const struct {
                const char *name;
                void (*print_keys)(const char *prefix);
        } outputs[] = { { "example", print_example },
                        { "man", print_man_keys },
                        { "markdown", print_markdown_keys } };
        _cleanup_free_ char *line = NULL;
        size_t i = 0, n = 0;

        while (argc == 2 && i < ELEMENTSOF(outputs) && strcmp(argv[1], outputs[i].name) != 0)
                i++;
        if (argc != 2 || i == ELEMENTSOF(outputs)) {
                fprintf(stderr, "usage: %s example|man|markdown <TEXT\n", argv[0]);
                return EXIT_FAILURE;
        }
        while (getline(&line, &n, stdin) > 0)
                if (strcmp(line, "@KEYS@\n") == 0)
                        outputs[i].print_keys("");
                else
                        fputs(line, stdout);
        return fflush(stdout) == EOF ? EXIT_FAILURE : EXIT_SUCCESS;
}
