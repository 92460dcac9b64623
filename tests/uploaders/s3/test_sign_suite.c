/* The published vectors of Signature Version 4: every folder of sigv4/, each stage of signing
 * compared on its own. */
#include "uploaders/aws/aws_sign.h"

#include <dirent.h>
#include <fcntl.h>
#include <jansson.h>
#include <string.h>
#include <time.h>

#include "tests/harness/unit.h"

#include "lib/base/cleanup.h"
#include "lib/base/fs.h"

enum {
        PAIRS_MAX = 16,
        FILE_BYTES_MAX = 64 * 1024,
        N_CASES = 38, /* those of the suite: a folder that got lost is noticed */
};

static const AwsKeys suite_keys = {
        .access_key = "AKIDEXAMPLE",
        .secret_key = "wJalrXUtnFEMI/K7MDENG+bPxRfiCYEXAMPLEKEY",
};

typedef struct Case {
        char *request, *method, *path, *body; /* the last three point into the first */
        AwsNameValue queries[PAIRS_MAX], headers[PAIRS_MAX];
        size_t n_queries, n_headers;
        char payload[SHA256_HEX_SIZE];
        json_t *context;
} Case;

static char *read_case_file(int dir_fd, const char *name) {
        char *text = NULL;
        size_t n;

        assert_int_equal(fs_read_file(dir_fd, name, FILE_BYTES_MAX, &text, &n), 0);
        assert_non_null(text);
        return text;
}

/* In place: %XX becomes its byte. */
static void unescape(char *text) {
        char *to = text;

        for (char *p = text; *p; p++) {
                unsigned byte = (unsigned char)*p;

                if (*p == '%') {
                        assert_int_equal(sscanf(p + 1, "%2x", &byte), 1);
                        p += 2;
                }
                *to++ = (char)byte;
        }
        *to = '\0';
}

static char *cut(char *text, const char *separator) {
        const char *found = strstr(text, separator);
        if (!found)
                return NULL;
        size_t at = (size_t)(found - text);
        text[at] = '\0';
        return text + at + strlen(separator);
}

static void parse_target(Case *c, char *target) {
        char *query = cut(target, "?");

        c->path = target;
        while (query && *query) {
                char *next = cut(query, "&"), *value = cut(query, "=");

                assert_true(c->n_queries < PAIRS_MAX);
                unescape(query);
                if (value)
                        unescape(value);
                c->queries[c->n_queries++] = (AwsNameValue){ query, value };
                query = next;
        }
}

static void parse_headers(Case *c, char *lines) {
        while (lines && *lines) {
                char *end = lines, *name = lines, *value;

                do { /* a line that begins with a blank belongs to the one before */
                        end += strcspn(end, "\n");
                        end += *end == '\n';
                } while (*end == ' ');
                lines = *end ? end : NULL;
                if (end[-1] == '\n')
                        end[-1] = '\0';
                if (name[0] == '\0')
                        continue;
                value = cut(name, ":");
                assert_non_null(value);
                assert_true(c->n_headers < PAIRS_MAX);
                c->headers[c->n_headers++] = (AwsNameValue){ name, value };
        }
}

static void parse_case(Case *c, int dir_fd) {
        uint8_t digest[SHA256_SIZE];
        char *headers, *version;

        *c = (Case){ .request = read_case_file(dir_fd, "request.txt") };
        c->body = cut(c->request, "\n\n");
        headers = cut(c->request, "\n");
        c->method = c->request;
        version = strstr(c->request, " HTTP/1.1");
        assert_non_null(version);
        *version = '\0';
        parse_target(c, cut(c->request, " "));
        parse_headers(c, headers);
        sha256_of(c->body ? c->body : "", c->body ? strlen(c->body) : 0, digest);
        (void)digest_hex(digest, sizeof digest, c->payload);
}

static bool context_flag(const Case *c, const char *name) {
        return json_is_true(json_object_get(c->context, name));
}

static const char *context_text(const Case *c, const char *name) {
        return json_string_value(json_object_get(c->context, name));
}

static uint64_t context_usec(const Case *c) {
        struct tm tm = { 0 };

        assert_non_null(strptime(context_text(c, "timestamp"), "%Y-%m-%dT%H:%M:%SZ", &tm));
        return (uint64_t)timegm(&tm) * USEC_PER_SEC;
}

static void compare_file(int dir_fd, const char *name, const char *got) {
        _cleanup_free_ char *expected = read_case_file(dir_fd, name);

        assert_string_equal(got, expected);
}

static void one_case(void **state) {
        int dir_fd = *(int *)*state;
        _cleanup_free_ char *context = read_case_file(dir_fd, "context.json");
        _cleanup_(signature_done) Signature s = { 0 };
        AwsKeys keys = suite_keys;
        SignRequest request;
        Case c;

        parse_case(&c, dir_fd);
        c.context = json_loads(context, 0, NULL);
        assert_non_null(c.context);
        keys.token = context_text(&c, "session_token");
        request = (SignRequest){
                .method = c.method,
                .path = c.path,
                .queries = c.queries,
                .n_queries = c.n_queries,
                .headers = c.headers,
                .n_headers = c.n_headers,
                .payload = c.payload,
                .sign_payload_header = context_flag(&c, "sign_body"),
                .region = context_text(&c, "region"),
                .service = context_text(&c, "service"),
                .time_usec = context_usec(&c),
                .normalize_path = context_flag(&c, "normalize"),
                .omit_token = context_flag(&c, "omit_session_token"),
        };
        assert_int_equal(sign_v4(&request, &keys, &s), 0);
        compare_file(dir_fd, "header-canonical-request.txt", s.canonical_request);
        compare_file(dir_fd, "header-string-to-sign.txt", s.string_to_sign);
        compare_file(dir_fd, "header-signature.txt",
                     strstr(s.authorization, "Signature=") + strlen("Signature="));
        json_decref(c.context);
        free(c.request);
}

static int is_case(const struct dirent *entry) {
        return strchr(entry->d_name, '.') == NULL; /* README.md is none */
}

int main(void) {
        const char *srcdir = getenv("srcdir");
        _cleanup_free_ char *directory = NULL;
        struct CMUnitTest tests[N_CASES];
        char names[N_CASES][512];
        int fds[N_CASES], dir_fd, n, n_failed;
        struct dirent **entries;

        if (asprintf(&directory, "%s/tests/uploaders/s3/sigv4", srcdir ? srcdir : ".") < 0)
                return EXIT_FAILURE;
        n = scandir(directory, &entries, is_case, alphasort);
        if (n != N_CASES) {
                fprintf(stderr, "'%s' has %d cases, not %d\n", directory, n, N_CASES);
                return EXIT_FAILURE;
        }
        dir_fd = open(directory, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
        for (int i = 0; i < n; i++) {
                const char *name = entries[i]->d_name;

                fds[i] = openat(dir_fd, name, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
                (void)snprintf(names[i], sizeof names[i], "%s is signed as published", name);
                tests[i] = (struct CMUnitTest){ .name = names[i],
                                                .test_func = one_case,
                                                .initial_state = &fds[i] };
                free(entries[i]);
        }
        free(entries);
        n_failed = _cmocka_run_group_tests("the published vectors", tests, N_CASES, NULL, NULL);
        for (int i = 0; i < n; i++)
                (void)close(fds[i]);
        (void)close(dir_fd);
        return n_failed;
}
