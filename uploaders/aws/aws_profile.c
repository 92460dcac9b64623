#include "uploaders/aws/aws_profile.h"

#include <ctype.h>
#include <errno.h>
#include <pwd.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "lib/base/cleanup.h"
#include "lib/base/path.h"
#include "uploaders/aws/aws_environment.h"
#include "uploaders/aws/credentials_secret.h"

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

static bool has_section(const AwsProfileFile *f, SectionType type, const char *name);

typedef struct Parser {
        AwsProfileFile *file; /* borrowed */
        AwsProfileFormat format;
        unsigned line;
        bool has_section,
                has_item;    /* a section was begun; an item that may go on in the next line */
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

/* Doubles when n is a power of two, so that n alone gives what is allocated. */
static void *grow(void *items, size_t n, size_t item_size) {
        return (n & (n - 1)) ? items : reallocarray(items, n ? 2 * n : 1, item_size);
}

static int add_section(AwsProfileFile *f, SectionType type, const char *name) {
        AwsProfileSection *sections = grow(f->sections, f->n_sections, sizeof *sections);
        if (!sections)
                return -ENOMEM;
        f->sections = sections;
        sections[f->n_sections++] = (AwsProfileSection){ .type = type, .name = name };
        return 0;
}

static int add_item(AwsProfileFile *f, unsigned line, const char *key, char *value) {
        AwsProfileItem *items = grow(f->items, f->n_items, sizeof *items);
        if (!items)
                return -ENOMEM;
        f->items = items;
        items[f->n_items++] = (AwsProfileItem){
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

/* A deeper line goes on with the value above. It moves up to it, which never needs more room than
 * the line break had. */
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

void aws_profile_done(AwsProfileFile *f) {
        free(f->sections);
        free(f->items);
        *f = (AwsProfileFile){ 0 };
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

/* @return the caller's, NULL when there is none */
static char *find_home(char *const *environment, const char *home) {
        struct passwd pw, *found = NULL;
        char buf[4096];

        if (!home || !*home)
                home = aws_environment_get(environment, "HOME");
        if (!home && getpwuid_r(geteuid(), &pw, buf, sizeof buf, &found) == 0 && found)
                home = found->pw_dir;
        return home && *home ? strdup(home) : NULL;
}

/* @param told as the environment spells it, with `~/` for the home; NULL = the usual name below
 *   the home
 * @return the caller's, NULL when there is no home (or no memory) */
static char *build_path(const char *text, const char *usual, const char *home) {
        if (text && strncmp(text, "~/", 2) != 0)
                return strdup(text);
        if (!home)
                return NULL;
        return path_join(home, text ? text + 2 : usual);
}

typedef struct Paths { /* owned; NULL when there is no home directory */
        char *config, *credentials;
} Paths;

static Paths build_paths(char *const *environment, const char *home) {
        _cleanup_free_ char *at = find_home(environment, home);

        return (Paths){
                .config = build_path(aws_environment_get(environment, "AWS_CONFIG_FILE"),
                                     ".aws/config", at),
                .credentials =
                        build_path(aws_environment_get(environment, "AWS_SHARED_CREDENTIALS_FILE"),
                                   ".aws/credentials", at),
        };
}

static int read_file(CredentialsFile *f, AwsProfileFormat format, char *path /* taken */) {
        size_t n;

        *f = (CredentialsFile){ .path = path, .error = -ENOENT };
        if (!path)
                return 0;
        f->error = credentials_secret_read(path, AWS_PROFILE_MAX_BYTES, &f->text, &n);
        if (f->error == 0)
                f->error = aws_profile_parse(&f->parsed, format, f->text, n);
        return f->error == -ENOMEM ? -ENOMEM : 0;
}

int credentials_files_read(CredentialsFiles *ret, char *const *environment, const char *home) {
        Paths paths = build_paths(environment, home);
        CredentialsFiles files = { 0 };

        int r = read_file(&files.config, AWS_PROFILE_CONFIG, paths.config);
        if (r == 0)
                r = read_file(&files.credentials, AWS_PROFILE_CREDENTIALS, paths.credentials);
        else
                free(paths.credentials);
        if (r < 0)
                credentials_files_done(&files);
        else
                *ret = files;
        return r;
}

static void file_done(CredentialsFile *f) {
        aws_profile_done(&f->parsed);
        credentials_secret_free(f->text);
        free(f->path);
        *f = (CredentialsFile){ 0 };
}

void credentials_files_done(CredentialsFiles *f) {
        file_done(&f->config);
        file_done(&f->credentials);
}

static CredentialsFileStat stat_file(const char *path) {
        struct stat st;

        if (!path || stat(path, &st) < 0)
                return (CredentialsFileStat){ 0 };
        return (CredentialsFileStat){
                .device = st.st_dev,
                .inode = st.st_ino,
                .bytes = (uint64_t)st.st_size,
                .mtime_nsec = st.st_mtim.tv_sec * INT64_C(1000000000) + st.st_mtim.tv_nsec,
                .ctime_nsec = st.st_ctim.tv_sec * INT64_C(1000000000) + st.st_ctim.tv_nsec,
        };
}

CredentialsFilesStat credentials_files_stat(char *const *environment, const char *home) {
        Paths paths = build_paths(environment, home);
        CredentialsFilesStat stat_now = {
                .config = stat_file(paths.config),
                .credentials = stat_file(paths.credentials),
        };

        free(paths.config);
        free(paths.credentials);
        return stat_now;
}

static bool stat_equal(const CredentialsFileStat *a, const CredentialsFileStat *b) {
        return a->device == b->device && a->inode == b->inode && a->bytes == b->bytes &&
               a->mtime_nsec == b->mtime_nsec && a->ctime_nsec == b->ctime_nsec;
}

bool credentials_files_stat_equal(const CredentialsFilesStat *a, const CredentialsFilesStat *b) {
        return stat_equal(&a->config, &b->config) && stat_equal(&a->credentials, &b->credentials);
}

const char *credentials_files_get(const CredentialsFiles *f, const char *profile, const char *key) {
        const char *value = aws_profile_get(&f->credentials.parsed, profile, key);

        return value ? value : aws_profile_get(&f->config.parsed, profile, key);
}

const char *credentials_files_profile(char *const *environment, const char *wanted) {
        if (wanted && *wanted)
                return wanted;
        const char *text = aws_environment_get(environment, "AWS_PROFILE");
        return text ? text : "default";
}

const char *credentials_files_region(const CredentialsFiles *f, char *const *environment,
                                     const char *profile) {
        const char *region = aws_environment_get(environment, "AWS_REGION");

        if (!region)
                region = aws_environment_get(environment, "AWS_DEFAULT_REGION");
        return region ? region : credentials_files_get(f, profile, "region");
}
