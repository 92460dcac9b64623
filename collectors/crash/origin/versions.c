/* Which package a program or library belongs to, and of which version it is.
 *
 * The note in the file counts first (`.note.package`); then, root by root, the lists of Python's
 * packages for files in site-packages, and the lists of dpkg for files in directories of packages.
 * A file in one root is never explained by a list of another. The lists of dpkg whose names
 * resemble a file's are read before all others. Lists are hostile, and large: bytes and time are
 * limited, and what was found until then is kept. files.c opens the lists. */
#include "collectors/crash/origin/versions.h"

#include <ctype.h>
#include <dirent.h>
#include <errno.h>
#include <jansson.h>
#include <string.h>

#include "lib/base/array.h"
#include "lib/base/cleanup.h"
#include "lib/base/clock.h"
#include "lib/base/fs.h"
#include "lib/base/parse.h"
#include "lib/base/path.h"

enum {
        NAMES_MAX = 64 << 10,
        DEPTH_MAX = 8,
        HASH_LETTERS_MIN = 7,
        HASH_LETTERS_MAX = 40,
        LIKE_LETTERS = 4
};
#define TEXT_BYTES_MAX (16 * MIB) /* dpkg's status has 1 KiB a package, RECORD 100 B a file */
#define ALL_BYTES_MAX (256 * MIB) /* of all texts */
#define VERSION_FILE_BYTES_MAX (64 * KIB)
#define DPKG "/var/lib/dpkg"
#define LIST ".list"
#define DIST_INFO ".dist-info"

typedef struct PendingPath { /* a path as lists of this kind have it */
        const char *text;
        VersionItem *item;
        bool is_listed; /* in the list that was read last */
} PendingPath;

typedef struct Finder {
        VersionItem *items;
        size_t n;
        unsigned place; /* the one that is searched now */
        FileOpen open;
        void *userdata;
        uint64_t end_usec, n_bytes;
        char *text; /* of the file that is read now; one buffer for all */
        size_t n_text;
        PendingPath *pending; /* by text */
        size_t n_pending, n_found;
        size_t n_missing;      /* items whose package is still searched */
        bool wants_like_names; /* of lists, or all others */
        int error;
} Finder;

/* ---- texts ---- */

static bool is_over(Finder *f) {
        if (f->error == 0 && (f->n_bytes >= ALL_BYTES_MAX || clock_cpu_usec() >= f->end_usec))
                f->error = -ETIMEDOUT;
        return f->error != 0;
}

static int request(Finder *f, FileKind kind, const char *path) {
        FileQuery q = { .kind = kind, .place = f->place };
        FileReply reply;
        const char *place;
        size_t n = strlen(path);
        if (n >= sizeof q.path || is_over(f))
                return -ENODATA;
        memcpy(q.path, path, n);
        return f->open(&q, &reply, &place, f->userdata);
}

/* @return whether f->text is the beginning of the file; what does not fit is missing */
static bool read_text(Finder *f, const char *path, size_t max_bytes) {
        _cleanup_close_ int fd = request(f, FILE_OF_TEXT, path);
        if (fd < 0)
                return false;
        if (!f->text && !(f->text = malloc(TEXT_BYTES_MAX + 1)))
                f->error = -ENOMEM;
        ssize_t n = f->text ? fs_pread(fd, f->text, MIN(max_bytes, (size_t)TEXT_BYTES_MAX), 0) : -1;
        if (n < 0)
                return false;
        f->n_text = (size_t)n;
        f->text[n] = '\0';
        f->n_bytes += f->n_text;
        return true;
}

typedef struct Line { /* or a part of one */
        const char *s;
        size_t n;
} Line;

/* @param at  where the next line begins  @return whether there is one */
static bool next_line(const Finder *f, size_t *at, Line *ret) {
        if (*at >= f->n_text)
                return false;
        const char *start = f->text + *at, *end = memchr(start, '\n', f->n_text - *at);
        *ret = (Line){ start, end ? (size_t)(end - start) : f->n_text - *at };
        *at += ret->n + 1;
        return true;
}

static void set_text(char to[static VERSION_TEXT_SIZE], Line text) {
        while (text.n > 0 && isspace((unsigned char)*text.s))
                text = (Line){ text.s + 1, text.n - 1 };
        while (text.n > 0 && isspace((unsigned char)text.s[text.n - 1]))
                text.n--;
        text.n = MIN(text.n, (size_t)VERSION_TEXT_SIZE - 1);
        memcpy(to, text.s, text.n);
        to[text.n] = '\0';
}

/* @return whether a line is `NAME: value`  @param to  gets the value */
static bool parse_field(Line line, const char *name, char to[static VERSION_TEXT_SIZE]) {
        size_t n = strlen(name);
        if (line.n < n || memcmp(line.s, name, n) != 0)
                return false;
        set_text(to, (Line){ line.s + n, line.n - n });
        return true;
}

/* Visits the entries of a directory that have this ending, until there is nothing left to find. */
static void visit_names(Finder *f, const char *path, const char *suffix,
                        void (*visit)(Finder *f, const char *path, const char *name)) {
        _cleanup_closedir_ DIR *dir = NULL;
        size_t n_seen = 0;
        if (f->n_missing == 0 || fs_opendir_fd(request(f, FILE_OF_NAMES, path), &dir) < 0)
                return;
        for (struct dirent *e; (e = readdir(dir)) && f->n_missing > 0;) {
                if (++n_seen > NAMES_MAX)
                        f->error = f->error ? f->error : -ETIMEDOUT;
                if (is_over(f))
                        return;
                if (path_has_suffix(e->d_name, suffix))
                        visit(f, path, e->d_name);
        }
}

/* ---- which lists are searched for ---- */

static int compare_pending(const void *a, const void *b) {
        return strcmp(((const PendingPath *)a)->text, ((const PendingPath *)b)->text);
}

static void add_pending(Finder *f, const char *text, VersionItem *item) {
        if (array_grow(&f->pending, f->n_pending, sizeof *f->pending) < 0)
                f->error = -ENOMEM;
        else
                f->pending[f->n_pending++] = (PendingPath){ .text = text, .item = item };
}

static void clear_pending(Finder *f) {
        free(TAKE_PTR(f->pending));
        f->n_pending = f->n_found = f->n_missing = 0;
}

static PendingPath *find_pending(Finder *f, Line key) {
        size_t low = 0, high = f->n_pending;
        while (low < high) {
                size_t middle = low + (high - low) / 2;
                const char *text = f->pending[middle].text;
                size_t n = strlen(text); /* a line may hold NULs, a path has none */
                int order = memcmp(key.s, text, MIN(n, key.n));
                if (order == 0 && n == key.n)
                        return &f->pending[middle];
                order = order ? order : key.n > n ? 1 : -1;
                if (order > 0)
                        low = middle + 1;
                else
                        high = middle;
        }
        return NULL;
}

/* Marks what is in the list that was read. @param key  makes a path of a line
 * @return whether anything is */
static bool mark_listed(Finder *f, Line (*key)(Line line)) {
        Line line;
        bool is_any = false;
        for (size_t at = 0; next_line(f, &at, &line);) {
                PendingPath *w = find_pending(f, key(line));
                if (w)
                        is_any = w->is_listed = true;
        }
        return is_any;
}

/* Gives all that are marked this package. */
static void set_packages(Finder *f, const Version *v) {
        for (size_t i = 0; i < f->n_pending; i++) {
                PendingPath *w = &f->pending[i];
                if (w->is_listed && v->package[0] != '\0' && w->item->version.package[0] == '\0') {
                        memcpy(w->item->version.package, v->package, sizeof v->package);
                        memcpy(w->item->version.version, v->version, sizeof v->version);
                        f->n_found++;
                        f->n_missing--;
                }
                w->is_listed = false;
        }
}

/* ---- Python ---- */

/* @return how many bytes of the path are the directory that holds packages, 0: it is in none */
static size_t python_directory(const char *path) {
        static const char *const names[] = { "/site-packages/", "/dist-packages/" };
        size_t n = 0;
        for (size_t i = 0; i < ELEMENTSOF(names); i++)
                for (const char *at = path; (at = strstr(at, names[i])); at++)
                        n = MAX(n, (size_t)(at - path) + strlen(names[i]) - 1);
        return n;
}

static bool is_below_same(const VersionItem *a, const VersionItem *b, size_t n) {
        return a->place == b->place && strncmp(a->path, b->path, n) == 0 &&
               python_directory(b->path) == python_directory(a->path);
}

/* `torch/lib/libc10.so,sha256=…,1234`, also quoted. */
static Line record_path(Line line) {
        bool is_quoted = line.n > 0 && line.s[0] == '"';
        Line path = { line.s + is_quoted, line.n - is_quoted };
        const char *end = memchr(path.s, is_quoted ? '"' : ',', path.n);
        path.n = end ? (size_t)(end - path.s) : 0;
        return path;
}

static void read_metadata(Finder *f, const char *path, Version *ret) {
        Line line;
        if (!read_text(f, path, TEXT_BYTES_MAX))
                return;
        for (size_t at = 0; next_line(f, &at, &line) && line.n > 1;) {
                (void)parse_field(line, "Name:", ret->package);
                (void)parse_field(line, "Version:", ret->version);
        }
}

static void visit_dist(Finder *f, const char *directory, const char *name) {
        char path[FILES_PATH_SIZE + 2 * NAME_MAX];
        Version v = { 0 };
        (void)snprintf(path, sizeof path, "%s/%s/RECORD", directory, name);
        if (!read_text(f, path, TEXT_BYTES_MAX) || !mark_listed(f, record_path))
                return;
        (void)snprintf(path, sizeof path, "%s/%s/METADATA", directory, name);
        read_metadata(f, path, &v);
        set_packages(f, &v);
}

void version_parse_git(const char *text, size_t n, Version *ret) {
        Finder f = { .text = (char *)text, .n_text = n };
        Line line;
        for (size_t at = 0; next_line(&f, &at, &line);) {
                const char *equals = memchr(line.s, '=', line.n), *end = line.s + line.n;
                if (!equals || !memmem(line.s, (size_t)(equals - line.s), "git", 3))
                        continue;
                const char *quote = equals + 1;
                while (quote < end && *quote == ' ')
                        quote++;
                Line hash = { quote + 1, 0 };
                while (hash.s + hash.n < end && isxdigit((unsigned char)hash.s[hash.n]))
                        hash.n++;
                if (quote < end && (*quote == '\'' || *quote == '"') &&
                    hash.n >= HASH_LETTERS_MIN && hash.n <= HASH_LETTERS_MAX &&
                    hash.s + hash.n < end && hash.s[hash.n] == *quote) {
                        set_text(ret->git, hash);
                        return;
                }
        }
}

/* The version.py of the package in whose directory the library is. */
static void find_git(Finder *f, VersionItem *item, size_t n_directory) {
        char path[FILES_PATH_SIZE + 16];
        size_t n = n_directory + 1 + strcspn(item->path + n_directory + 1, "/");
        if (item->path[n] == '\0' || n >= FILES_PATH_SIZE)
                return;
        for (VersionItem *before = f->items; before < item; before++)
                if (is_below_same(before, item, n_directory) &&
                    strncmp(before->path, item->path, n + 1) == 0) {
                        memcpy(item->version.git, before->version.git, sizeof item->version.git);
                        return;
                }
        (void)snprintf(path, sizeof path, "%.*s/version.py", (int)n, item->path);
        if (read_text(f, path, VERSION_FILE_BYTES_MAX))
                version_parse_git(f->text, f->n_text, &item->version);
}

static bool is_first_of_directory(const Finder *f, const VersionItem *item, size_t n) {
        for (const VersionItem *before = f->items; before < item; before++)
                if (is_below_same(before, item, n))
                        return false;
        return true;
}

static void find_python(Finder *f) {
        for (size_t i = 0; i < f->n; i++) {
                char directory[FILES_PATH_SIZE];
                VersionItem *item = &f->items[i];
                size_t n = python_directory(item->path);
                if (item->place != f->place || n == 0 || n >= sizeof directory)
                        continue;
                find_git(f, item, n);
                if (!is_first_of_directory(f, item, n))
                        continue;
                for (size_t k = i; k < f->n; k++)
                        if (is_below_same(item, &f->items[k], n) &&
                            f->items[k].version.package[0] == '\0') {
                                f->n_missing++;
                                add_pending(f, f->items[k].path + n + 1, &f->items[k]);
                        }
                if (f->n_pending > 0)
                        qsort(f->pending, f->n_pending, sizeof *f->pending, compare_pending);
                (void)snprintf(directory, sizeof directory, "%.*s", (int)n, item->path);
                visit_names(f, directory, DIST_INFO, visit_dist);
                clear_pending(f);
        }
}

/* ---- dpkg ---- */

static Line whole_line(Line line) {
        return line;
}

/* Most packages are named as their libraries are: libssl3 has libssl.so.3. To read all lists takes
 * longer than the rest of a report. */
static bool has_like_name(const Finder *f, const char *list) {
        for (size_t i = 0; i < f->n_pending; i++)
                if (strncmp(path_name(f->pending[i].text), list, LIKE_LETTERS) == 0)
                        return true;
        return false;
}

static void visit_list(Finder *f, const char *directory, const char *name) {
        char path[sizeof DPKG "/info/" + NAME_MAX];
        Version v = { 0 };
        if (has_like_name(f, name) != f->wants_like_names)
                return;
        (void)snprintf(path, sizeof path, "%s/%s", directory, name);
        if (!read_text(f, path, TEXT_BYTES_MAX) || !mark_listed(f, whole_line))
                return;
        set_text(v.package, (Line){ name, strlen(name) - strlen(LIST) });
        set_packages(f, &v);
}

/* Lists name a package `libc6:amd64` where several architectures can have it. */
static bool is_package(const char *listed, const char *name, const char *architecture) {
        size_t n = strlen(name);
        return strncmp(listed, name, n) == 0 &&
               (listed[n] == '\0' ||
                (listed[n] == ':' && strcmp(listed + n + 1, architecture) == 0));
}

static void set_versions(Finder *f, const char *name, const char *architecture,
                         const char version[static VERSION_TEXT_SIZE]) {
        for (size_t i = 0; name[0] != '\0' && i < f->n; i++) {
                Version *v = &f->items[i].version;
                if (f->items[i].place == f->place && v->version[0] == '\0' &&
                    is_package(v->package, name, architecture))
                        memcpy(v->version, version, sizeof v->version);
        }
}

static void read_status(Finder *f) {
        char name[VERSION_TEXT_SIZE] = "", architecture[VERSION_TEXT_SIZE] = "";
        char version[VERSION_TEXT_SIZE] = "";
        Line line;
        if (!read_text(f, DPKG "/status", TEXT_BYTES_MAX))
                return;
        for (size_t at = 0; next_line(f, &at, &line);) {
                if (line.n == 0) {
                        set_versions(f, name, architecture, version);
                        name[0] = architecture[0] = version[0] = '\0';
                }
                (void)parse_field(line, "Package:", name);
                (void)parse_field(line, "Architecture:", architecture);
                (void)parse_field(line, "Version:", version);
        }
        set_versions(f, name, architecture, version);
}

/* Elsewhere packages of dpkg have no programs, and each one that is in no list costs reading all.
 */
static bool may_be_of_dpkg(const char *path) {
        static const char *const directories[] = { "/usr/", "/lib", "/bin/", "/sbin/", "/opt/" };
        for (size_t i = 0; i < ELEMENTSOF(directories); i++)
                if (strncmp(path, directories[i], strlen(directories[i])) == 0)
                        return strncmp(path, "/usr/local/", strlen("/usr/local/")) != 0;
        return false;
}

/* Where /lib is a link to /usr/lib, lists still have the path that the package was made with. */
static void find_dpkg(Finder *f) {
        for (size_t i = 0; i < f->n; i++) {
                VersionItem *item = &f->items[i];
                if (item->place != f->place || item->version.package[0] != '\0' ||
                    !may_be_of_dpkg(item->path))
                        continue;
                f->n_missing++;
                add_pending(f, item->path, item);
                if (strncmp(item->path, "/usr/", 5) == 0)
                        add_pending(f, item->path + 4, item);
        }
        if (f->n_pending > 0)
                qsort(f->pending, f->n_pending, sizeof *f->pending, compare_pending);
        f->wants_like_names = true;
        visit_names(f, DPKG "/info", LIST, visit_list);
        f->wants_like_names = false;
        visit_names(f, DPKG "/info", LIST, visit_list);
        if (f->n_found > 0)
                read_status(f);
        clear_pending(f);
}

/* ---- all ---- */

void version_parse_note(const char *json, Version *ret) {
        if (parse_json_exceeds_depth(json, strlen(json), DEPTH_MAX))
                return;
        json_t *note = json_loads(json, 0, NULL);
        const char *name = json_string_value(json_object_get(note, "name")),
                   *version = json_string_value(json_object_get(note, "version"));
        if (name && version) {
                set_text(ret->package, (Line){ name, strlen(name) });
                set_text(ret->version, (Line){ version, strlen(version) });
        }
        json_decref(note);
}

static bool is_first_of_place(const VersionItem *items, size_t at) {
        for (size_t i = 0; i < at; i++)
                if (items[i].place == items[at].place)
                        return false;
        return true;
}

int versions_find(VersionItem *items, size_t n, FileOpen open, void *userdata, uint64_t end_usec) {
        Finder f = {
                .items = items, .n = n, .open = open, .userdata = userdata, .end_usec = end_usec
        };
        for (size_t i = 0; i < n; i++)
                version_parse_note(items[i].note, &items[i].version);
        for (size_t i = 0; i < n; i++) {
                if (!is_first_of_place(items, i))
                        continue;
                f.place = items[i].place;
                find_python(&f);
                find_dpkg(&f);
        }
        free(f.pending);
        free(f.text);
        return f.error;
}
