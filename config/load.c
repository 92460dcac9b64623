/* Builds a tree from libyaml's events, with the line of each node and with bounds on depth, breadth
 * and size. libyaml's own document loader is not used, because it follows aliases and has no
 * bounds. Aliases, tags and second documents are faults. A syntax error is reported with a remedy,
 * and the tree then ends before it. What the keys mean is left to read.c. */
#include "config/load.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <yaml.h>

#include "lib/base/array.h"
#include "lib/base/fs.h"
#include "lib/base/parse.h"

typedef struct Builder {
        Faults *faults;
        LoadNode *root;                  /* owned */
        LoadNode *stack[LOAD_DEPTH_MAX]; /* open lists and mappings, borrowed from root */
        size_t depth, n_nodes;
        unsigned n_documents;
        bool whole;
} Builder;

enum { STEP_MORE = 0, STEP_DONE = 1 };

LoadNode *load_free(LoadNode *node) {
        if (!node)
                return NULL;
        for (size_t i = 0; i < node->n; i++)
                load_free(node->items[i]);
        free(node->items);
        free(node->text);
        free(node);
        return NULL;
}

static unsigned line_of(const yaml_mark_t *mark) {
        return (unsigned)mark->line + 1;
}

/* Reports that a bound was reached. The rest of the file is not read. */
static int stop_at_bound(Builder *b, unsigned line, const char *remedy, const char *fault) {
        faults_add(b->faults, &(Spot){ .line = line }, remedy, "%s", fault);
        b->whole = false;
        return STEP_DONE;
}

/* Creates a node and adds it to the innermost open list or mapping. */
static int add_node(Builder *b, LoadNodeType type, const yaml_mark_t *mark, LoadNode **ret) {
        _cleanup_(load_freep) LoadNode *node = calloc(1, sizeof *node);
        LoadNode *parent = b->depth > 0 ? b->stack[b->depth - 1] : NULL;
        unsigned line = line_of(mark);

        if (!node)
                return -ENOMEM;
        *node = (LoadNode){ .type = type, .line = line };
        if (++b->n_nodes > LOAD_NODES_MAX)
                return stop_at_bound(b, line, "write a smaller file",
                                     "there are more than 100000 values up to here");
        if (parent && parent->n >= (parent->type == LOAD_MAP ? 2 * LOAD_LIST_MAX : LOAD_LIST_MAX))
                return stop_at_bound(b, line, "write fewer", "the list has more than 1000 entries");
        if (parent && array_grow(&parent->items, parent->n, sizeof *parent->items) < 0)
                return -ENOMEM;
        if (parent)
                parent->items[parent->n++] = node;
        else
                b->root = node;
        *ret = TAKE_PTR(node);
        return STEP_MORE;
}

static void refuse_tag(Builder *b, const yaml_char_t *tag, const yaml_mark_t *mark) {
        if (tag)
                faults_add(b->faults, &(Spot){ .line = line_of(mark) },
                           "delete the tag; a value in quotes is a string",
                           "tags such as '!!str' are not supported");
}

static bool is_null(const yaml_event_t *event) {
        static const char *const nulls[] = { "", "~", "null", "Null", "NULL" };
        const char *text = (const char *)event->data.scalar.value;

        return event->data.scalar.style == YAML_PLAIN_SCALAR_STYLE &&
               parse_word(text, nulls, ELEMENTSOF(nulls)) >= 0;
}

static int on_scalar(Builder *b, const yaml_event_t *event) {
        const char *text = (const char *)event->data.scalar.value;
        LoadNode *node;
        int r = add_node(b, is_null(event) ? LOAD_NULL : LOAD_SCALAR, &event->start_mark, &node);

        if (r != STEP_MORE)
                return r;
        refuse_tag(b, event->data.scalar.tag, &event->start_mark);
        if (strlen(text) != event->data.scalar.length) {
                faults_add(b->faults, &(Spot){ .line = node->line }, "delete the '\\0'",
                           "the value has a NUL character in it");
                node->type = LOAD_FAULTY;
        }
        node->text = strdup(text);
        return node->text ? STEP_MORE : -ENOMEM;
}

static int on_alias(Builder *b, const yaml_event_t *event) {
        LoadNode *node;
        int r = add_node(b, LOAD_FAULTY, &event->start_mark, &node);

        if (r != STEP_MORE)
                return r;
        faults_add(b->faults, &(Spot){ .line = node->line }, "write the value out",
                   "aliases such as '*%.64s' are not supported",
                   (const char *)event->data.alias.anchor);
        return STEP_MORE;
}

static int open_node(Builder *b, LoadNodeType type, const yaml_mark_t *mark) {
        LoadNode *node;

        if (b->depth == LOAD_DEPTH_MAX)
                return stop_at_bound(b, line_of(mark),
                                     "write it flatter; no key needs more than 4 levels",
                                     "lists and mappings are nested deeper than 16 levels");
        int r = add_node(b, type, mark, &node);
        if (r == STEP_MORE)
                b->stack[b->depth++] = node;
        return r;
}

static int on_document(Builder *b, const yaml_event_t *event) {
        if (++b->n_documents == 1)
                return STEP_MORE;
        faults_add(b->faults, &(Spot){ .line = line_of(&event->start_mark) },
                   "keep one document, and delete the line '---' between them",
                   "a second document begins here");
        return STEP_DONE;
}

static int on_event(Builder *b, const yaml_event_t *event) {
        switch (event->type) {
        case YAML_DOCUMENT_START_EVENT:
                return on_document(b, event);
        case YAML_SCALAR_EVENT:
                return on_scalar(b, event);
        case YAML_ALIAS_EVENT:
                return on_alias(b, event);
        case YAML_SEQUENCE_START_EVENT:
                refuse_tag(b, event->data.sequence_start.tag, &event->start_mark);
                return open_node(b, LOAD_LIST, &event->start_mark);
        case YAML_MAPPING_START_EVENT:
                refuse_tag(b, event->data.mapping_start.tag, &event->start_mark);
                return open_node(b, LOAD_MAP, &event->start_mark);
        case YAML_SEQUENCE_END_EVENT:
        case YAML_MAPPING_END_EVENT:
                b->depth--;
                return STEP_MORE;
        case YAML_STREAM_END_EVENT:
                return STEP_DONE;
        default:
                return STEP_MORE;
        }
}

/* Syntax errors */

typedef struct YamlText {
        const char *data;
        size_t n;
} YamlText;

static unsigned line_at(const YamlText *text, size_t offset) {
        unsigned line = 1;

        for (size_t i = 0; i < MIN(offset, text->n); i++)
                line += text->data[i] == '\n';
        return line;
}

/* @return the beginning of a line, counted from 1; the end of the text when it has fewer lines */
static const char *find_line(const YamlText *text, unsigned line) {
        const char *p = text->data, *end = text->data + text->n;

        for (; line > 1 && p < end; line--) {
                p = memchr(p, '\n', (size_t)(end - p));
                p = p ? p + 1 : end;
        }
        return p;
}

static bool is_indented_with_tab(const YamlText *text, unsigned line) {
        const char *p = find_line(text, line), *end = text->data + text->n;

        while (p < end && *p == ' ')
                p++;
        return p < end && *p == '\t';
}

/* Inside {} or [], YAML reads the braces of `${NAME}` as its own. */
static bool has_variable(const YamlText *text, unsigned line) {
        const char *p = find_line(text, line), *end = text->data + text->n;
        const char *stop = memchr(p, '\n', (size_t)(end - p));

        return memmem(p, (size_t)((stop ? stop : end) - p), "${", 2) != NULL;
}

static const char *remedy_for(const char *problem) {
        static const struct {
                const char *part, *remedy;
        } remedies[] = {
                { "cannot start any token", "put the value in quotes" },
                { "mapping values are not allowed",
                  "put a value that has ': ' in it in quotes, and check the indentation" },
                { "unexpected end of stream", "close the quotes or brackets" },
                { "expected ',' or ", "close the bracket, and put a comma between the entries" },
                { "did not find expected",
                  "check the indentation of this line and of those before it" },
                { "could not find expected ':'", "write it as `key: value`" },
                { "escape", "write a backslash twice, or use single quotes" },
                { "UTF-8", "save the file as UTF-8" },
                { "control characters",
                  "delete the control character, or write it as \"\\xNN\" in double quotes" },
                { "undefined alias", "write the value out" },
        };

        for (size_t i = 0; i < ELEMENTSOF(remedies); i++)
                if (strstr(problem, remedies[i].part))
                        return remedies[i].remedy;
        return "check the indentation, the quotes and the brackets around this line";
}

static int syntax_error(Builder *b, const yaml_parser_t *parser, const YamlText *text) {
        const char *problem = parser->problem ? parser->problem : "unknown error";
        Spot spot = { .line = line_of(&parser->problem_mark) };

        if (parser->error == YAML_MEMORY_ERROR)
                return -ENOMEM;
        b->whole = false;
        if (parser->error == YAML_READER_ERROR)
                spot.line = line_at(text, parser->problem_offset);
        if (is_indented_with_tab(text, spot.line))
                faults_add(b->faults, &spot, "indent with blanks only",
                           "a tab is in the indentation");
        else if (strstr(problem, "expected ',' or ") && has_variable(text, spot.line))
                faults_add(b->faults, &spot, "put it in quotes, as in \"${NAME}\"",
                           "not YAML: a variable stands inside { } or [ ] without quotes");
        else if (parser->context && parser->context_mark.line != parser->problem_mark.line)
                faults_add(b->faults, &spot, remedy_for(problem),
                           "not YAML: %s, %s that begins on line %u", problem, parser->context,
                           line_of(&parser->context_mark));
        else
                faults_add(b->faults, &spot, remedy_for(problem), "not YAML: %s", problem);
        return STEP_DONE;
}

static int step(Builder *b, yaml_parser_t *parser, const YamlText *text) {
        yaml_event_t event;

        if (!yaml_parser_parse(parser, &event))
                return syntax_error(b, parser, text);
        int r = on_event(b, &event);
        yaml_event_delete(&event);
        return r;
}

static void report_too_large(Faults *faults) {
        faults_add(faults, &(Spot){ 0 }, "write a smaller file", "is larger than 1MiB");
}

int load_tree(LoadNode **ret, const char *data, size_t n, Faults *faults, bool *ret_whole) {
        Builder b = { .faults = faults, .whole = true };
        YamlText text = { data, n };
        yaml_parser_t parser;
        int r = STEP_MORE;

        if (n > LOAD_FILE_MAX) {
                report_too_large(faults);
                *ret = NULL;
                *ret_whole = false;
                return 0;
        }
        if (n >= 3 && memcmp(data, "\xef\xbb\xbf", 3) ==
                              0) /* libyaml skips it only where it guesses the encoding */
                text = (YamlText){ data + 3, n - 3 };
        if (!yaml_parser_initialize(&parser))
                return -ENOMEM;
        yaml_parser_set_encoding(&parser, YAML_UTF8_ENCODING); /* else it would take UTF-16 too */
        yaml_parser_set_input_string(&parser, (const unsigned char *)text.data, text.n);
        while (r == STEP_MORE)
                r = step(&b, &parser, &text);
        yaml_parser_delete(&parser);
        if (r < 0) {
                load_free(b.root);
                return r;
        }
        *ret = b.root;
        *ret_whole = b.whole;
        return 0;
}

/* fs_read_file() refuses symlinks and pipes, but the operator's own file may be either: Kubernetes
 * mounts files of a ConfigMap as symlinks. */
int load_file(const char *file, char **ret, size_t *ret_n, Faults *faults) {
        _cleanup_close_ int fd = open(file, O_RDONLY | O_CLOEXEC | O_NOCTTY);
        int r = fd < 0 ? -errno : fs_read_all(fd, LOAD_FILE_MAX, ret, ret_n);

        if (r == -EFBIG)
                report_too_large(faults);
        else if (r < 0 && r != -ENOMEM)
                faults_add(faults, &(Spot){ 0 },
                           "check that the path is right and that the agent's user may read it",
                           "cannot be read: %s", strerror(-r));
        return r;
}
