/* Parses one of the shared files, `config` or `credentials`, in place. It follows the AWS CLI, and
 * the other SDKs where the CLI is stricter than they are: sections of one name are merged, and the
 * later setting counts; a `#` or `;` behind a blank begins a comment, except in a
 * credential_process; a malformed line is skipped, and reported as the file's fault.
 * Reading the file, and what the settings mean, is left to credentials_plan.c.
 * @see AWS SDKs and Tools Reference Guide, "Shared config and credentials files", "File format of
 *   the config file" */
#include "uploaders/aws/aws_profile.h"

#include <ctype.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "lib/base/array.h"
#include "lib/base/cleanup.h"

typedef enum SectionType {
        SECTION_PROFILE, /* [profile NAME]; [NAME] of credentials */
        SECTION_DEFAULT, /* [default] of config: ignored when there is a [profile default] */
        SECTION_OTHER,
} SectionType;

struct AwsProfileSection {
        SectionType type;
        const char *name;
};

struct AwsProfileItem {
        size_t section;
        unsigned line;
        const char *key;
        char *value;
};

typedef struct Parser {
        AwsProfileFile *file; /* borrowed */
        AwsProfileFormat format;
        unsigned line;
        bool has_section;    /* a section was started */
        bool has_item;       /* an item that the next line may continue */
        bool keeps_comments; /* of that item */
        size_t item_indent;
        char *value_end; /* of that item: its NUL */
} Parser;

static bool is_blank(char c) {
        return c == ' ' || c == '\t' || c == '\r' || c == '\v' || c == '\f';
}

static bool is_comment(char c) {
        return c == '#' || c == ';';
}

static void set_error(Parser *p, const char *fault) {
        if (p->file->fault)
                return;
        p->file->fault = fault;
        p->file->error_line = p->line;
}

/* Cuts blanks off the end and steps over those at the beginning. */
static char *trim(char *s) {
        char *end = s + strlen(s);

        while (end > s && is_blank(end[-1]))
                end--;
        *end = '\0';
        while (is_blank(*s))
                s++;
        return s;
}

static void cut_comment(char *s) {
        for (; *s; s++)
                if (is_blank(s[0]) && is_comment(s[1])) {
                        *s = '\0';
                        return;
                }
}

static int add_section(AwsProfileFile *f, SectionType type, const char *name) {
        if (array_grow(&f->sections, f->n_sections, sizeof *f->sections) < 0)
                return -ENOMEM;
        f->sections[f->n_sections++] = (AwsProfileSection){ .type = type, .name = name };
        return 0;
}

static int add_item(AwsProfileFile *f, unsigned line, const char *key, char *value) {
        if (array_grow(&f->items, f->n_items, sizeof *f->items) < 0)
                return -ENOMEM;
        f->items[f->n_items++] = (AwsProfileItem){
                .section = f->n_sections - 1, .line = line, .key = key, .value = value
        };
        return 0;
}

/* The NAME of `KIND NAME`, bare or quoted as a whole; NULL when it is not of this kind, or more
 * than one word. */
static char *name_after(char *title, const char *kind) {
        size_t n = strlen(kind);
        char *quote;

        if (strncmp(title, kind, n) != 0 || !is_blank(title[n]))
                return NULL;
        char *name = trim(title + n);
        if (*name == '"' || *name == '\'') {
                quote = strchr(name + 1, *name);
                if (!quote || quote[1])
                        return NULL;
                *quote = '\0';
                return name + 1;
        }
        return *name && strcspn(name, " \t\v\f") == strlen(name) ? name : NULL;
}

static int parse_section(Parser *p, char *line) {
        char *end = strchr(line, ']'), *name;

        p->has_item = false;
        if (!end) {
                set_error(p, "a '[' without its ']'");
                p->has_section = false;
                return 0;
        }
        *end = '\0';
        char *title = trim(line + 1), *rest = trim(end + 1);
        if (*rest && !is_comment(*rest))
                set_error(p, "something follows a section's ']'");
        p->has_section = true;
        if (p->format == AWS_PROFILE_CREDENTIALS)
                return add_section(p->file, SECTION_PROFILE, title);
        if (strcmp(title, "default") == 0)
                return add_section(p->file, SECTION_DEFAULT, title);
        if ((name = name_after(title, "profile")))
                return add_section(p->file, SECTION_PROFILE, name);
        return add_section(p->file, SECTION_OTHER, title);
}

static int parse_item(Parser *p, char *line, size_t indent) {
        size_t n_key = strcspn(line, "=:");

        p->has_item = false;
        if (!p->has_section) {
                set_error(p, "a setting that belongs to no [section]");
                return 0;
        }
        if (!line[n_key]) {
                set_error(p, "neither a [section] nor a setting with '='");
                return 0;
        }
        line[n_key] = '\0';
        char *key = trim(line);
        if (!*key) {
                set_error(p, "a '=' without a name before it");
                return 0;
        }
        for (char *c = key; *c; c++)
                *c = (char)tolower((unsigned char)*c);
        p->keeps_comments = strcmp(key, "credential_process") == 0;

        /* The blank that the delimiter was makes `key =# text` no comment and `key = # text`
         * one. */
        char *value = line + n_key + 1;
        if (!p->keeps_comments)
                cut_comment(value);
        value = trim(value);
        p->value_end = value + strlen(value);
        p->item_indent = indent;
        p->has_item = true;
        return add_item(p->file, p->line, key, value);
}

/* A deeper line continues the value above. It moves up to it, which never needs more room than the
 * line break had. */
static void continue_item(Parser *p, char *line) {
        if (!p->keeps_comments)
                cut_comment(line);
        line = trim(line);
        size_t n = strlen(line);

        *p->value_end++ = '\n';
        memmove(p->value_end, line, n + 1);
        p->value_end += n;
}

static int parse_line(Parser *p, char *line) {
        size_t indent = 0;

        while (is_blank(line[indent]))
                indent++;
        if (!line[indent] || is_comment(line[indent]))
                return 0;
        if (p->has_item && indent > p->item_indent) {
                continue_item(p, line);
                return 0;
        }
        if (line[indent] == '[')
                return parse_section(p, trim(line));
        return parse_item(p, trim(line), indent);
}

void aws_profile_done(AwsProfileFile *f) {
        free(f->sections);
        free(f->items);
        *f = (AwsProfileFile){ 0 };
}

int aws_profile_parse(AwsProfileFile *ret, AwsProfileFormat format, char *text, size_t n) {
        AwsProfileFile file = { 0 };
        Parser p = { .file = &file, .format = format };
        char *end = text + strlen(text);
        bool is_cut = end < text + n;
        int r = 0;

        if (strncmp(text, "\xef\xbb\xbf", 3) == 0) /* what Windows' editors put first */
                text += 3;
        while (text < end && r == 0) {
                char *newline = strchrnul(text, '\n');

                *newline = '\0';
                p.line++;
                r = parse_line(&p, text);
                text = newline + 1;
        }
        if (r < 0) {
                aws_profile_done(&file);
                return r;
        }
        if (is_cut) {
                p.line = MAX(p.line, 1U);
                set_error(&p, "a NUL byte, after which nothing is read");
        }
        *ret = file;
        return 0;
}

static bool has_section(const AwsProfileFile *f, SectionType type, const char *name) {
        for (size_t i = 0; i < f->n_sections; i++)
                if (f->sections[i].type == type && strcmp(f->sections[i].name, name) == 0)
                        return true;
        return false;
}

bool aws_profile_has(const AwsProfileFile *f, const char *profile) {
        return has_section(f, SECTION_PROFILE, profile) || has_section(f, SECTION_DEFAULT, profile);
}

bool aws_profile_is_misspelt(const AwsProfileFile *f, const char *profile) {
        return !aws_profile_has(f, profile) && has_section(f, SECTION_OTHER, profile);
}

static const AwsProfileItem *find_item(const AwsProfileFile *f, const char *profile,
                                       const char *key) {
        bool is_default =
                strcmp(profile, "default") == 0 && !has_section(f, SECTION_PROFILE, profile);
        SectionType type = is_default ? SECTION_DEFAULT : SECTION_PROFILE;

        for (size_t i = f->n_items; i-- > 0;) {
                const AwsProfileItem *item = &f->items[i];
                const AwsProfileSection *section = &f->sections[item->section];

                if (section->type == type && strcmp(item->key, key) == 0 &&
                    strcmp(section->name, profile) == 0)
                        return item;
        }
        return NULL;
}

const char *aws_profile_get(const AwsProfileFile *f, const char *profile, const char *key) {
        const AwsProfileItem *item = find_item(f, profile, key);

        return item && *item->value ? item->value : NULL;
}

unsigned aws_profile_line(const AwsProfileFile *f, const char *profile, const char *key) {
        const AwsProfileItem *item = find_item(f, profile, key);

        return item && *item->value ? item->line : 0;
}
