/* What a collector said: its records, each of which must be JSON, and its raw files. */
#pragma once

#include "tests/collectors/host/test_procfs_fixture.h"

/* Appends a file's bytes, NULs too. */
static inline size_t fake_append(char *to, size_t at, int dir_fd, const char *name) {
        int fd = openat(dir_fd, name, O_RDONLY | O_CLOEXEC);
        ssize_t n;
        assert_true(fd >= 0);
        while ((n = read(fd, to + at, FAKE_OUTPUT_MAX - at)) > 0)
                at += (size_t)n;
        (void)close(fd);
        return at;
}

/* Reads the records that were written, each of which must be JSON; raw files go behind. */
static inline void fake_read(Fake *f) {
        size_t n, n_all;
        DIR *dir = fdopendir(dup(f->raw_fd));
        const struct dirent *entry;

        fake_forget(f);
        f->text = calloc(1, FAKE_OUTPUT_MAX + 1);
        f->records = json_array();
        assert_true(f->text && f->records && dir);
        n = fake_append(f->text, 0, f->s->fd, "records");
        for (char *line = f->text, *end; (end = memchr(line, '\n', n - (size_t)(line - f->text)));
             line = end + 1) {
                json_error_t error;
                json_t *record =
                        json_loadb(line, (size_t)(end - line), JSON_REJECT_DUPLICATES, &error);
                if (!record)
                        fail_msg("no JSON (%s): %.*s", error.text, (int)(end - line), line);
                assert_int_equal(json_array_append_new(f->records, record), 0);
        }
        rewinddir(dir);
        n_all = n;
        while ((entry = readdir(dir)))
                if (entry->d_name[0] != '.')
                        n_all = fake_append(f->text, n_all, f->raw_fd, entry->d_name);
        for (size_t i = 0; i < n_all; i++)
                if (f->text[i] == '\0')
                        f->text[i] = '?';
        (void)closedir(dir);
}

static inline int fake_collect(Fake *f, int (*run)(const CollectRequest *, CollectOut *)) {
        int fd = openat(f->s->fd, "records", O_RDWR | O_CREAT | O_TRUNC | O_APPEND | O_CLOEXEC,
                        0644),
            r;
        assert_true(fd >= 0);
        f->out = (CollectOut){ .fd = fd, .dir_fd = f->raw_fd, .max_bytes = f->request.max_bytes };
        r = run(&f->request, &f->out);
        (void)close(fd);
        fake_read(f);
        return r;
}

static inline const char *string_of(const json_t *record, const char *key) {
        const char *s = json_string_value(json_object_get(record, key));
        return s ? s : "";
}

/* The n-th record (from 0) whose member `key` is a string of this value; NULL. */
static inline json_t *fake_find(const Fake *f, const char *key, const char *value, size_t n) {
        size_t i;
        json_t *record;
        json_array_foreach(f->records, i, record) {
                if (strcmp(string_of(record, key), value) == 0 && n-- == 0)
                        return record;
        }
        return NULL;
}

static inline json_t *fake_find_pid(const Fake *f, int pid, const char *about) {
        size_t i;
        json_t *record;
        json_array_foreach(f->records, i, record) {
                if (json_integer_value(json_object_get(record, "pid")) == pid &&
                    json_object_get(record, "pid") &&
                    (!about || strcmp(string_of(record, "about"), about) == 0))
                        return record;
        }
        return NULL;
}

static inline bool fake_has_output(const Fake *f, const char *text) {
        return strstr(f->text, text) != NULL;
}
