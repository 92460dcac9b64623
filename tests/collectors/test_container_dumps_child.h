/* The collector in its confined child beside the containers of test_container_dumps_fixture.h, and what it says. */
#pragma once

#include "tests/collectors/test_container_dumps_fixture.h"

/* ---- the collector ---- */

static inline void start_copy(Room *m) {
        _cleanup_(strbuf_done) StrBuf b = STRBUF_INIT;
        int out[2], why[2], fds[4];
        ProbeOrder whole = { .collect = m->order };
        assert_int_equal(probe_order_compose(&whole, &b), 0);
        _cleanup_close_ int order_fd = order_memfd(b.text, b.n);
        _cleanup_close_ int exe = open("/proc/self/exe", O_RDONLY | O_CLOEXEC);
        assert_int_equal(pipe2(out, O_CLOEXEC), 0);
        assert_int_equal(pipe2(why, O_CLOEXEC), 0);
        const int low[4] = { order_fd, out[1], why[1], m->fake->raw_fd };
        for (int i = 0; i < 4; i++)
                assert_true((fds[i] = fcntl(low[i], F_DUPFD_CLOEXEC, 20)) >= 20);
        m->child = fork();
        if (m->child == 0) {
                const struct rlimit few = { m->max_descriptors, m->max_descriptors };
                if (m->max_descriptors == 0 || setrlimit(RLIMIT_NOFILE, &few) == 0)
                        execute_child("container_dumps", fds, exe);
                _exit(97);
        }
        for (int i = 0; i < 4; i++)
                (void)close(fds[i]);
        (void)close(out[1]);
        (void)close(why[1]);
        m->records = fdopen(out[0], "r");
        m->why_fd = why[0];
        assert_non_null(m->records);
}

/* @return its next record, kept in fake->records; NULL at the end */
static inline json_t *next_record(Room *m) {
        _cleanup_free_ char *line = NULL;
        size_t size = 0;
        json_error_t error;
        if (getline(&line, &size, m->records) < 0) /* run-tests ends a test that hangs */
                return NULL;
        json_t *r = json_loads(line, JSON_REJECT_DUPLICATES, &error);
        if (!r)
                fail_msg("no JSON (%s): %s", error.text, line);
        assert_int_equal(json_array_append_new(m->fake->records, r), 0);
        return r;
}

static inline bool is_record(const json_t *r, const char *type, const char *path) {
        return strcmp(string_of(r, "type"), type) == 0 &&
               (!path || strcmp(string_of(r, "path"), path) == 0);
}

static inline json_t *wait_for(Room *m, const char *type, const char *path) {
        json_t *r;
        while ((r = next_record(m)))
                if (is_record(r, type, path))
                        return r;
        fail_msg("no record '%s' of '%s'", type, path ? path : "");
        return NULL;
}

/* @return its exit code */
static inline int end_copy(Room *m) {
        char reason[512] = "";
        int status = 0;
        while (next_record(m))
                ;
        assert_true(read(m->why_fd, reason, sizeof reason - 1) >= 0);
        if (*reason)
                printf("# %s", reason);
        assert_int_equal(waitpid(m->child, &status, 0), m->child);
        m->child = 0;
        return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

/* All that a hook which ends at once has left. */
static inline int copy_all(Room *m) {
        start_copy(m);
        for (size_t i = 0; i < m->order.n_container_dumps; i++)
                (void)wait_for(m, "dump", NULL);
        for (size_t i = 0; i < m->n_hooks; i++)
                end_process(&m->hooks[i].pid);
        return end_copy(m);
}

/* ---- what it said ---- */

static inline size_t count(const Room *m, const char *type, const char *path) {
        size_t i, n = 0;
        json_t *r;
        json_array_foreach(m->fake->records, i, r) {
                n += is_record(r, type, path);
        }
        return n;
}

/* The last one counts. */
static inline json_t *last_record(const Room *m, const char *type, const char *path) {
        size_t i;
        json_t *r, *found = NULL;
        json_array_foreach(m->fake->records, i, r) {
                if (is_record(r, type, path))
                        found = r;
        }
        if (!found)
                fail_msg("no record '%s' of '%s'", type, path ? path : "");
        return found;
}

static inline uint64_t number_of(const json_t *r, const char *key) {
        return (uint64_t)json_integer_value(json_object_get(r, key));
}

static inline void assert_answer(const Room *m, size_t note, const char *where,
                                 const char *detail) {
        size_t i;
        json_t *r;
        json_array_foreach(m->fake->records, i, r) {
                if (strcmp(string_of(r, "note"), m->dumps[note].note) != 0)
                        continue;
                assert_string_equal(string_of(r, "where"), where);
                if (!strstr(string_of(r, "detail"), detail))
                        fail_msg("'%s' does not say '%s'", string_of(r, "detail"), detail);
                return;
        }
        fail_msg("note %zu was not answered", note);
}

static inline void assert_left_out(const Room *m, const char *path, const char *detail) {
        const char *said = string_of(last_record(m, "left_out", path), "detail");
        if (!strstr(said, detail))
                fail_msg("%s: '%s' does not say '%s'", path, said, detail);
        assert_int_equal(count(m, "left_out", path), 1);
}

static inline int open_copy(const Room *m, const char *path) {
        const char *name = string_of(last_record(m, "file", path), "file");
        int fd = openat(m->fake->raw_fd, name, O_RDONLY | O_CLOEXEC);
        if (fd < 0)
                fail_msg("no raw file '%s'", name);
        return fd;
}

static inline void assert_copy_is(const Room *m, const char *path, const char *text) {
        char data[4096] = "";
        _cleanup_close_ int fd = open_copy(m, path);
        assert_int_equal(read(fd, data, sizeof data - 1), (ssize_t)strlen(text));
        assert_string_equal(data, text);
        assert_int_equal(number_of(last_record(m, "file", path), "bytes"), strlen(text));
}

static inline bool is_whole(const Room *m) {
        return json_is_true(json_object_get(last_record(m, "end", NULL), "is_whole"));
}
