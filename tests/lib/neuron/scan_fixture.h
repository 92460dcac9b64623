/* A source for one test: a scratch directory, the scan's answers as lines of text, and a say in
 * what counts as a network file system. */
#pragma once

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/harness/unit.h"

#include "lib/base/fs.h"
#include "lib/base/strbuf.h"
#include "lib/neuron/scan.h"
#include "tests/lib/base/scratch.h"

#define US "i-0123456789abcdef0"
#define OTHER "i-0fedcba9876543210"

#define FIXTURE_PATH_SIZE (2 * PATH_MAX + 64) /* of any path below it */

typedef struct Fixture {
        Scratch *scratch; /* the fixed part is `src` in it */
        char root[PATH_MAX + 16];
        PathTemplate *template;
        ScanSource source;
        StrBuf lines;   /* sorted by fixture_scan() */
        int unit_error; /* what on_unit returns */
        size_t n_units;
} Fixture;

/* Linked with -Wl,--wrap=fs_is_network: no other file system can be mounted here. */
static bool fake_network;
bool __wrap_fs_is_network(int fd, const char **ret_name);

bool __wrap_fs_is_network(int fd, const char **ret_name) {
        (void)fd;
        if (ret_name)
                *ret_name = fake_network ? "nfs" : "local";
        return fake_network;
}

static inline int fixture_setup(void **state) {
        Fixture *f = calloc(1, sizeof *f);
        void *scratch = NULL;

        if (!f || scratch_setup(&scratch) < 0)
                return -1;
        f->scratch = scratch;
        (void)snprintf(f->root, sizeof f->root, "%s/src", f->scratch->path);
        fake_network = false;
        *state = f;
        return chmod(f->scratch->path, 0755) == 0 && mkdir(f->root, 0755) == 0 ? 0 : -1;
}

static inline int fixture_teardown(void **state) {
        Fixture *f = *state;
        void *scratch = f->scratch;

        path_template_free(f->template);
        strbuf_done(&f->lines);
        free(f);
        return scratch_teardown(&scratch);
}

/* Says what the source is. @param below  the template below the fixed part, "" for none */
static inline void fixture_source(Fixture *f, SourceKind kind, const char *below) {
        char text[sizeof f->root + 128], bad;

        (void)snprintf(text, sizeof text, "%s%s%s", f->root, below[0] != '\0' ? "/" : "", below);
        path_template_free(f->template);
        assert_int_equal(path_template_new(&f->template, text, "dcptli", &bad), 0);
        f->source = (ScanSource){ .kind = kind, .template = f->template, .instance_id = US };
}

static inline const char *fixture_path(const Fixture *f, const char *relative, char *buf) {
        (void)snprintf(buf, FIXTURE_PATH_SIZE, "%s/%s", f->root, relative);
        return buf;
}

/* Makes a file of so many bytes, and the directories on the way; a path that ends in a slash is a
 * directory. */
static inline void fixture_make(const Fixture *f, const char *relative, size_t n) {
        char path[FIXTURE_PATH_SIZE];
        int fd;

        (void)fixture_path(f, relative, path);
        for (char *p = path + strlen(f->root) + 1; (p = strchr(p, '/')); p++) {
                *p = '\0';
                if (mkdir(path, 0755) < 0)
                        assert_int_equal(errno, EEXIST);
                *p = '/';
        }
        if (path[strlen(path) - 1] == '/')
                return;
        fd = open(path, O_WRONLY | O_CREAT | O_CLOEXEC, 0644);
        assert_true(fd >= 0);
        assert_int_equal(ftruncate(fd, (off_t)n), 0);
        assert_int_equal(close(fd), 0);
}

#define fixture_files(f, ...)                                                                      \
        do {                                                                                       \
                static const char *const _paths[] = { __VA_ARGS__ };                               \
                for (size_t _i = 0; _i < sizeof _paths / sizeof _paths[0]; _i++)                   \
                        fixture_make((f), _paths[_i], 10 * (_i + 1));                              \
        } while (0)

/* Spells a unit in a line: `PATH files=N [file] [loose] [own] [network] [pid=N] [reason=N]…`. */
static inline void fixture_spell(StrBuf *b, const ScanUnit *u) {
        strbuf_addf(b, "'%s' files=%llu", u->relative, (unsigned long long)u->n_files);
        if (u->is_file)
                strbuf_add(b, " file");
        if (u->loose)
                strbuf_add(b, " loose");
        if (u->has_own_name)
                strbuf_add(b, " own");
        if (u->on_network)
                strbuf_add(b, " network");
        if (u->pid >= 0)
                strbuf_addf(b, " pid=%lld", (long long)u->pid);
        for (ScanSkip s = 0; s < N_SCAN_SKIPS; s++)
                if (u->skipped[s] > 0)
                        strbuf_addf(b, " %s=%llu(%s)", scan_skip_name(s),
                                    (unsigned long long)u->skipped[s], u->skipped_example[s]);
        strbuf_add(b, "\n");
}

static inline int fixture_on_unit(ScanUnit *u, void *userdata) {
        Fixture *f = userdata;

        f->n_units++;
        fixture_spell(&f->lines, u);
        return f->unit_error;
}

static inline int fixture_compare(const void *a, const void *b) {
        return strcmp(*(char *const *)a, *(char *const *)b);
}

/* Sorts the lines: a scan has no order. */
static inline void fixture_sort(StrBuf *b) {
        StrBuf sorted = STRBUF_INIT;
        char *lines[512], *rest = b->text;
        size_t n = 0;

        for (char *line; rest && (line = strsep(&rest, "\n")) && n < 512;)
                if (line[0] != '\0')
                        lines[n++] = line;
        qsort(lines, n, sizeof lines[0], fixture_compare);
        for (size_t i = 0; i < n; i++)
                strbuf_addf(&sorted, "%s\n", lines[i]);
        strbuf_done(b);
        *b = sorted;
}

static inline const char *fixture_scan(Fixture *f) {
        strbuf_clear(&f->lines);
        f->n_units = 0;
        assert_int_equal(scan_source(&f->source, fixture_on_unit, f), 0);
        fixture_sort(&f->lines);
        return f->lines.text ? f->lines.text : "";
}

#define check_scan(f, ...) assert_string_equal(fixture_scan(f), __VA_ARGS__ "")
#define in_fixture(t) cmocka_unit_test_setup_teardown(t, fixture_setup, fixture_teardown)
