/* Path templates: split once into the fixed part and the components that vary. What a variable may
 * look like is in pattern.c. */
#include "lib/neuron/template.h"

#include <errno.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>

#include "lib/base/cleanup.h"
#include "lib/base/strbuf.h"
#include "lib/neuron/pattern.h"

struct PathTemplate {
        char *text;        /* as given, but with single slashes and none at the end */
        char *fixed;       /* `%%` resolved */
        char **components; /* below the fixed part, spelled as patterns */
        size_t depth;
        unsigned letters; /* bit per variable that occurs */
};

DEFINE_CLEANUP(PathTemplate, path_template_free);

PathTemplate *path_template_free(PathTemplate *t) {
        if (!t)
                return NULL;
        for (size_t i = 0; i < t->depth; i++)
                free(t->components[i]);
        free(t->components);
        free(t->fixed);
        free(t->text);
        free(t);
        return NULL;
}

/* Checks every '%' and notes which letters there are. */
static int check_letters(PathTemplate *t, const char *allowed, char *ret_bad) {
        for (const char *p = strchr(t->text, '%'); p; p = strchr(p + 2, '%')) {
                if (p[1] == '%')
                        continue;
                if (p[1] < 'a' || p[1] > 'z' || !strchr(allowed, p[1])) {
                        *ret_bad = p[1];
                        return -EINVAL;
                }
                t->letters |= 1u << (p[1] - 'a');
        }
        return 0;
}

static bool has_variable(const char *component, size_t n) {
        for (size_t i = 0; i + 1 < n; i++) {
                if (component[i] != '%')
                        continue;
                if (component[i + 1] != '%')
                        return true;
                i++;
        }
        return false;
}

static void add_literal(StrBuf *b, const char *component, size_t n) {
        for (size_t i = 0; i < n; i++) {
                strbuf_add_n(b, component + i, 1);
                if (component[i] == '%')
                        i++; /* `%%`: checked before */
        }
}

static int add_component(PathTemplate *t, const char *component, size_t n) {
        char **grown = reallocarray(t->components, t->depth + 1, sizeof *grown);

        if (!grown)
                return -ENOMEM;
        t->components = grown;
        t->components[t->depth] = strndup(component, n);
        if (!t->components[t->depth])
                return -ENOMEM;
        t->depth++;
        return 0;
}

/* Splits the text, which has single slashes, at its first component with a variable. */
static int split(PathTemplate *t) {
        _cleanup_(strbuf_done) StrBuf fixed = STRBUF_INIT;
        const char *p = t->text;
        bool varies = false;

        if (*p == '/')
                strbuf_add_n(&fixed, p++, 1);
        while (*p != '\0') {
                size_t n = strcspn(p, "/");

                varies = varies || has_variable(p, n);
                if (varies) {
                        int r = add_component(t, p, n);

                        if (r < 0)
                                return r;
                } else {
                        if (fixed.n > 0 && fixed.text[fixed.n - 1] != '/')
                                strbuf_add(&fixed, "/");
                        add_literal(&fixed, p, n);
                }
                p += n + (p[n] == '/');
        }
        t->fixed = strbuf_take(&fixed);
        return t->fixed ? 0 : -ENOMEM;
}

static char *single_slashes(const char *text) {
        size_t n = 0;
        char *out = malloc(strlen(text) + 1);

        if (!out)
                return NULL;
        for (; *text != '\0'; text++)
                if (*text != '/' || n == 0 || out[n - 1] != '/')
                        out[n++] = *text;
        if (n > 1 && out[n - 1] == '/')
                n--;
        out[n] = '\0';
        return out;
}

int path_template_new(PathTemplate **ret, const char *text, const char *allowed, char *ret_bad) {
        _cleanup_(path_template_freep) PathTemplate *t = calloc(1, sizeof *t);
        int r;

        if (!t)
                return -ENOMEM;
        t->text = single_slashes(text);
        if (!t->text)
                return -ENOMEM;
        r = check_letters(t, allowed, ret_bad);
        if (r < 0)
                return r;
        r = split(t);
        if (r < 0)
                return r;
        *ret = TAKE_PTR(t);
        return 0;
}

const char *path_template_fixed(const PathTemplate *t) {
        return t->fixed;
}

size_t path_template_depth(const PathTemplate *t) {
        return t->depth;
}

bool path_template_has(const PathTemplate *t, char letter) {
        return letter >= 'a' && letter <= 'z' && (t->letters & (1u << (letter - 'a')));
}

/* Adds what one component told; a variable that an earlier component told otherwise is no match. */
static bool add_value(const PatternMatch *m, char letter, char *buf, size_t size) {
        PatternSpan span = m->of[letter - 'a'];

        if (span.n == 0)
                return true;
        if (buf[0] != '\0')
                return strlen(buf) == span.n && memcmp(buf, span.text, span.n) == 0;
        pattern_copy(m, letter, buf, size);
        return buf[0] != '\0';
}

static bool match_component(const char *pattern, const char *text, size_t n,
                            TemplateValues *values) {
        char name[NAME_MAX + 1];
        PatternMatch m;

        if (n == 0 || n >= sizeof name)
                return false;
        memcpy(name, text, n);
        name[n] = '\0';
        return pattern_match(pattern, name, &m) &&
               add_value(&m, 'd', values->date_time, sizeof values->date_time) &&
               add_value(&m, 'c', values->cluster_id, sizeof values->cluster_id) &&
               add_value(&m, 'p', values->pid, sizeof values->pid) &&
               add_value(&m, 't', values->tid, sizeof values->tid) &&
               add_value(&m, 'l', values->lid, sizeof values->lid) &&
               add_value(&m, 'i', values->instance_id, sizeof values->instance_id);
}

bool path_template_match(const PathTemplate *t, const char *relative, TemplateValues *ret) {
        TemplateValues values = { .pid = "" };

        for (size_t i = 0; i < t->depth; i++) {
                size_t n = strcspn(relative, "/");

                if (!match_component(t->components[i], relative, n, &values))
                        return false;
                relative += n;
                if (i + 1 < t->depth && *relative++ != '/')
                        return false;
        }
        if (*relative != '\0')
                return false;
        if (ret)
                *ret = values;
        return true;
}

bool path_template_match_component(const PathTemplate *t, size_t i, const char *name,
                                   TemplateValues *ret) {
        TemplateValues values = { .pid = "" };

        if (i >= t->depth || !match_component(t->components[i], name, strcspn(name, "/"), &values))
                return false;
        *ret = values;
        return true;
}

static const char *value_of(const ExpandValues *v, char letter) {
        switch (letter) {
        case 'd':
                return v->date_time;
        case 'c':
                return v->cluster_id;
        case 'p':
                return v->pid;
        case 't':
                return v->tid;
        case 'l':
                return v->lid;
        case 'i':
                return v->instance_id;
        case 'k':
                return v->kind;
        case 'n':
                return v->source;
        case 'h':
                return v->host;
        case 'u':
                return v->user;
        default:
                return NULL;
        }
}

static void add_safe(StrBuf *out, const char *value) {
        if (!value || value[0] == '\0' || strcmp(value, ".") == 0 || strcmp(value, "..") == 0)
                value = "unknown";
        for (; *value != '\0'; value++) {
                bool bad = *value == '/' || (unsigned char)*value < 0x20 || *value == 0x7f;

                strbuf_add_n(out, bad ? "_" : value, 1);
        }
}

char *path_template_expand(const PathTemplate *t, const ExpandValues *values) {
        _cleanup_(strbuf_done) StrBuf out = STRBUF_INIT;

        for (const char *p = t->text; *p != '\0'; p++) {
                if (*p != '%') {
                        strbuf_add_n(&out, p, 1);
                        continue;
                }
                p++;
                if (*p == '%')
                        strbuf_add(&out, "%");
                else
                        add_safe(&out, value_of(values, *p));
        }
        return strbuf_take(&out);
}
