#include "tests/lib/http/http_fixture.h"

#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

HttpServer http_server = { .stdin_fd = -1 };

/* ── the server ── */

static const char *source_path(char *buf, size_t size, const char *name) {
        const char *srcdir = getenv("srcdir");

        (void)snprintf(buf, size, "%s/tests/lib/http/%s", srcdir ? srcdir : ".", name);
        return buf;
}

int http_server_start(void **state) {
        posix_spawn_file_actions_t actions;
        char path[4096], line[256];
        char *argv[] = { "python3", path,
                         http_server.certificates[0] ? http_server.certificates : NULL, NULL };
        int in[2], out[2];
        FILE *said;

        assert_int_equal(http_global_init(), 0);
        (void)source_path(path, sizeof path, "http_server.py");
        assert_int_equal(pipe2(in, O_CLOEXEC), 0);
        assert_int_equal(pipe2(out, O_CLOEXEC), 0);
        assert_int_equal(posix_spawn_file_actions_init(&actions), 0);
        assert_int_equal(posix_spawn_file_actions_adddup2(&actions, in[0], STDIN_FILENO), 0);
        assert_int_equal(posix_spawn_file_actions_adddup2(&actions, out[1], STDOUT_FILENO), 0);
        assert_int_equal(posix_spawnp(&http_server.pid, "python3", &actions, NULL, argv, environ),
                         0);
        (void)posix_spawn_file_actions_destroy(&actions);
        (void)close(in[0]);
        (void)close(out[1]);
        http_server.stdin_fd = in[1];
        said = fdopen(out[0], "r");
        assert_non_null(said);
        assert_non_null(fgets(line, sizeof line, said));
        assert_true(sscanf(line, "%u %u %u %u %u %u %u", &http_server.port, &http_server.port6,
                           &http_server.proxy, &http_server.narrow, &http_server.good,
                           &http_server.expired, &http_server.other) >= 4);
        (void)fclose(said);
        assert_int_not_equal(http_server.port, 0);
        return 0;
}

int http_server_start_tls(void **state) {
        char script[4096], command[8192];

        (void)strcpy(http_server.certificates, "/tmp/http_tls.XXXXXX");
        assert_non_null(mkdtemp(http_server.certificates));
        (void)snprintf(command, sizeof command, "sh '%s' '%s' >/dev/null 2>&1",
                       source_path(script, sizeof script, "make_certificates.sh"),
                       http_server.certificates);
        if (system(command) != 0) {
                printf("# openssl cannot make certificates here\n");
                (void)rmdir(http_server.certificates);
                http_server.certificates[0] = '\0';
        }
        return http_server_start(state);
}

int http_server_stop(void **state) {
        char command[256];

        (void)close(http_server.stdin_fd);
        assert_int_equal(waitpid(http_server.pid, NULL, 0), http_server.pid);
        if (!http_server.certificates[0])
                return 0;
        (void)snprintf(command, sizeof command, "rm -r '%s'", http_server.certificates);
        return system(command) == 0 ? 0 : -1;
}

/* ── loop and pool ── */

void http_test_pool(HttpTest *t, HttpPoolOptions options) {
        if (!options.proxy)
                options.proxy = "-";
        t->pool = http_pool_free(t->pool);
        assert_int_equal(http_pool_new(&t->pool, t->event, &options), 0);
}

int http_test_setup(void **state) {
        HttpTest *t = calloc(1, sizeof *t);

        assert_non_null(t);
        assert_int_equal(sd_event_new(&t->event), 0);
        http_test_pool(t, (HttpPoolOptions){ .stall_usec = 20 * USEC_PER_SEC });
        *state = t;
        return 0;
}

int http_test_teardown(void **state) {
        HttpTest *t = *state;

        http_pool_free(t->pool);
        assert_null(sd_event_unref(t->event));
        free(t);
        return 0;
}

uint64_t http_test_now(void) {
        struct timespec now;

        (void)clock_gettime(CLOCK_MONOTONIC, &now);
        return (uint64_t)now.tv_sec * USEC_PER_SEC + (uint64_t)now.tv_nsec / 1000;
}

static void keep(char *to, size_t size, const HttpReply *r, const char *name) {
        const char *value = http_reply_header(r, name);

        (void)snprintf(to, size, "%s", value ? value : "(none)");
}

static void on_done(const HttpReply *r, void *userdata) {
        Got *got = userdata;

        got->is_done = true;
        got->n_done++;
        got->status = r->status;
        got->error = r->error;
        (void)snprintf(got->text, sizeof got->text, "%s", r->text ? r->text : "");
        got->body_bytes = r->body_bytes;
        assert_int_equal(r->body[r->body_bytes], '\0');
        memcpy(got->body, r->body, MIN(r->body_bytes + 1, sizeof got->body));
        got->body[sizeof got->body - 1] = '\0';
        keep(got->etag, sizeof got->etag, r, "etag");
        keep(got->location, sizeof got->location, r, "location");
        keep(got->early, sizeof got->early, r, "x-early");
        keep(got->late, sizeof got->late, r, "x-late");
        keep(got->hint, sizeof got->hint, r, "x-hint");
        got->has_empty = http_reply_header(r, "x-empty") && !*http_reply_header(r, "x-empty");
        got->has_what = http_reply_header(r, "x-what") != NULL;
        got->has_missing = http_reply_header(r, "x-missing") != NULL;
        got->sent_bytes = r->sent_bytes;
        got->received_bytes = r->received_bytes;
        got->duration_usec = r->duration_usec;
        if (r->error)
                assert_non_null(r->text);
}

HttpCall *http_test_begin(HttpTest *t, HttpRequestOptions options, Got *got) {
        HttpCall *call = NULL;

        memset(got, 0, sizeof *got);
        options.on_done = on_done;
        options.userdata = got;
        if (!options.method)
                options.method = options.body ? "PUT" : "GET";
        assert_int_equal(http_call_new(&call, t->pool, &options), 0);
        assert_false(got->is_done); /* never from inside */
        return call;
}

void http_test_wait(HttpTest *t, const Got *got) {
        HTTP_TEST_UNTIL(t, got->is_done);
        assert_int_equal(got->n_done, 1);
}

void http_test_ask(HttpTest *t, HttpRequestOptions options, Got *got) {
        (void)http_test_begin(t, options, got);
        http_test_wait(t, got);
}

void http_test_settle(HttpTest *t) {
        while (sd_event_run(t->event, 0) > 0)
                ;
}

/* ── data ── */

const char *http_test_url_at(const char *scheme_and_host, unsigned port,
                             const char *path_and_query) {
        static char buffers[8][8192];
        static unsigned next;
        char *buf = buffers[next++ % ELEMENTSOF(buffers)];

        (void)snprintf(buf, sizeof buffers[0], "%s:%u%s", scheme_and_host, port, path_and_query);
        return buf;
}

const char *http_test_url(const char *path_and_query) {
        return http_test_url_at("http://127.0.0.1", http_server.port, path_and_query);
}

unsigned http_test_number(const Got *got, const char *name) {
        char *at = strstr(got->body, name);

        assert_non_null(at);
        return (unsigned)strtoul(at + strlen(name) + 1, NULL, 10);
}

char *http_test_body(size_t n) {
        char *body = malloc(n + 1);

        assert_non_null(body);
        for (size_t i = 0; i < n; i++)
                body[i] = (char)(i * 31 + (i >> 10));
        return body;
}

uint32_t http_test_crc(const void *data, size_t n) {
        const uint8_t *p = data;
        uint32_t crc = ~UINT32_C(0);

        while (n-- > 0) {
                crc ^= *p++;
                for (int i = 0; i < 8; i++)
                        crc = crc >> 1 ^ (crc & 1 ? UINT32_C(0xedb88320) : 0);
        }
        return ~crc;
}
