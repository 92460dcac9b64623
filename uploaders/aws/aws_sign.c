/* Signs a request by Signature Version 4: the canonical request, the string to sign, the signature.
 * All three are returned, so that a test can compare them. Sending the request is left to the
 * callers, and the keys to credentials.c. */
#include "uploaders/aws/aws_sign.h"

#include <errno.h>
#include <string.h>
#include <strings.h>

#include "lib/base/cleanup.h"
#include "lib/base/clock.h"
#include "lib/base/strbuf.h"

enum { SCOPE_DATE_SIZE = 8 /* yyyymmdd, the beginning of amz_date */ };

void aws_escape(StrBuf *to, const char *text, bool keep_slash) {
        static const char digits[] = "0123456789ABCDEF";

        for (const unsigned char *p = (const unsigned char *)text; *p; p++) {
                /* no isalnum(): it asks the locale */
                if ((*p >= 'A' && *p <= 'Z') || (*p >= 'a' && *p <= 'z') ||
                    (*p >= '0' && *p <= '9') || strchr("-._~", *p) || (*p == '/' && keep_slash))
                        strbuf_add_n(to, p, 1);
                else
                        strbuf_add_n(to, (char[]){ '%', digits[*p >> 4], digits[*p & 15] }, 3);
        }
}

static void wipe_freep(char **text) {
        digest_wipe_free(*text);
}

static char *escaped(const char *text) {
        _cleanup_(strbuf_done) StrBuf b = STRBUF_INIT;

        aws_escape(&b, text, false);
        return strbuf_detach(&b);
}

/* ── lists of pairs, sorted ── */

typedef struct Pair { /* owned */
        char *name, *value;
        size_t at; /* where it was given: headers of one name keep their order */
} Pair;

typedef struct Pairs {
        Pair *items;
        size_t n;
} Pairs;

static void pairs_done(Pairs *p) {
        for (size_t i = 0; i < p->n; i++) {
                free(p->items[i].name);
                digest_wipe_free(p->items[i].value); /* it may be the session token */
        }
        free(p->items);
}

static int pairs_init(Pairs *p, size_t n_max) {
        *p = (Pairs){ .items = calloc(n_max + 1, sizeof *p->items) };
        return p->items ? 0 : -ENOMEM;
}

/* Takes both. */
static int pairs_add(Pairs *p, char *name, char *value) {
        p->items[p->n] = (Pair){ name, value, p->n };
        p->n++;
        return name && value ? 0 : -ENOMEM;
}

static int compare_headers(const void *a, const void *b) {
        const Pair *x = a, *y = b;
        int r = strcmp(x->name, y->name);

        if (r != 0)
                return r;
        return x->at < y->at ? -1 : x->at > y->at;
}

static int compare_queries(const void *a, const void *b) {
        const Pair *x = a, *y = b;
        int r = strcmp(x->name, y->name);

        return r != 0 ? r : strcmp(x->value, y->value);
}

/* ── headers ── */

static bool is_blank(char c) {
        return c == ' ' || c == '\t';
}

/* The canonical value: trimmed, folded lines joined, runs of blanks one blank. No StrBuf: growing
 * leaves copies of what may be the session token. */
static int canonical_value(const char *value, char **ret) {
        char *out = malloc(strlen(value) + 1), *end = out;
        bool after_blank = false;

        if (!out)
                return -ENOMEM;
        for (const char *p = value; *p; p++) {
                if (*p == '\r' && p[1] == '\n')
                        p++;
                if (*p == '\r' || (*p == '\n' && !is_blank(p[1]))) {
                        *end = '\0';
                        digest_wipe_free(out);
                        return -EINVAL;
                }
                if (*p == '\n' || is_blank(*p)) {
                        after_blank = true;
                        continue;
                }
                if (after_blank && end > out)
                        *end++ = ' ';
                after_blank = false;
                *end++ = *p;
        }
        *end = '\0';
        *ret = out;
        return 0;
}

static char *lower_case(const char *text) {
        char *copy = strdup(text);

        for (char *p = copy; p && *p; p++)
                if (*p >= 'A' && *p <= 'Z')
                        *p = (char)(*p - 'A' + 'a');
        return copy;
}

static bool is_header_name(const char *name) {
        if (name[0] == '\0')
                return false;
        for (const char *p = name; *p; p++)
                if (*p <= ' ' || *p >= 0x7f || strchr("\"(),/:;<=>?@[\\]{}", *p))
                        return false;
        return true;
}

static const char *find_header(const SignRequest *o, const char *name) {
        for (size_t i = 0; i < o->n_headers; i++)
                if (strcasecmp(o->headers[i].name, name) == 0)
                        return o->headers[i].value;
        return NULL;
}

static int add_header(Pairs *p, const char *name, const char *value) {
        char *canonical = NULL;

        if (!is_header_name(name))
                return -EINVAL;
        int r = canonical_value(value, &canonical);
        return r < 0 ? r : pairs_add(p, lower_case(name), canonical);
}

static int add_missing(Pairs *p, const SignRequest *o, const char *name, const char *value) {
        return find_header(o, name) ? 0 : add_header(p, name, value);
}

static int collect_headers(Pairs *p, const SignRequest *o, const AwsKeys *keys, const char *date) {
        const char *response_date = find_header(o, "x-amz-date");
        int r = 0;

        /* A date that is not the scope's would be refused without saying why. */
        if (!find_header(o, "host") || (response_date && strcmp(response_date, date) != 0))
                return -EINVAL;
        for (size_t i = 0; i < o->n_headers && r == 0; i++)
                r = add_header(p, o->headers[i].name, o->headers[i].value);
        if (r == 0)
                r = add_missing(p, o, "x-amz-date", date);
        if (r == 0 && o->sign_payload_header)
                r = add_missing(p, o, "x-amz-content-sha256", o->payload);
        if (r == 0 && keys->token && !o->omit_token)
                r = add_missing(p, o, "x-amz-security-token", keys->token);
        if (r == 0)
                qsort(p->items, p->n, sizeof *p->items, compare_headers);
        return r;
}

/* `name:value` lines, and the names alone; the values of a name that repeats are joined by
 * commas. */
static void write_headers(const Pairs *p, StrBuf *lines, StrBuf *names) {
        for (size_t i = 0; i < p->n; i++) {
                const Pair *h = &p->items[i];

                if (i > 0 && strcmp(h->name, h[-1].name) == 0) {
                        strbuf_addf(lines, ",%s", h->value);
                        continue;
                }
                strbuf_addf(lines, "%s%s:%s", i > 0 ? "\n" : "", h->name, h->value);
                strbuf_addf(names, "%s%s", i > 0 ? ";" : "", h->name);
        }
        strbuf_add(lines, "\n");
}

/* ── path and query ── */

static int canonical_query(const SignRequest *o, char **ret) {
        _cleanup_(pairs_done) Pairs p;
        _cleanup_(strbuf_done) StrBuf b = STRBUF_INIT;
        int r = pairs_init(&p, o->n_queries);

        for (size_t i = 0; i < o->n_queries && r == 0; i++) {
                const char *value = o->queries[i].value;

                r = pairs_add(&p, escaped(o->queries[i].name), escaped(value ? value : ""));
        }
        if (r < 0)
                return r;
        /* Sorted as escaped, by name first: `Param` comes before `Param-3` although `=` comes
         * after `-`. */
        qsort(p.items, p.n, sizeof *p.items, compare_queries);
        for (size_t i = 0; i < p.n; i++)
                strbuf_addf(&b, "%s%s=%s", i > 0 ? "&" : "", p.items[i].name, p.items[i].value);
        *ret = strbuf_detach(&b);
        return *ret ? 0 : -ENOMEM;
}

/* RFC 3986, 5.2.4, and empty segments removed: those of AWS' other services. @return the
 * caller's */
static char *normalized(const char *path) {
        char *out = malloc(strlen(path) + 2);
        size_t n = 0;

        if (!out)
                return NULL;
        for (const char *p = path; *p;) {
                const char *segment = p + (*p == '/');
                size_t size = strcspn(segment, "/");

                p = segment + size;
                if (size == 2 && memcmp(segment, "..", 2) == 0) {
                        while (n > 0 && out[--n] != '/')
                                ;
                } else if (size > 0 && !(size == 1 && segment[0] == '.')) {
                        out[n++] = '/';
                        memcpy(out + n, segment, size);
                        n += size;
                        continue;
                }
                if (*p == '\0') /* a directory was named */
                        out[n++] = '/';
        }
        if (n == 0)
                out[n++] = '/';
        out[n] = '\0';
        return out;
}

static int build_paths(const SignRequest *o, char **ret_canonical, char **ret_path) {
        _cleanup_(strbuf_done) StrBuf b = STRBUF_INIT;
        _cleanup_free_ char *plain = NULL;
        const char *path = o->path[0] ? o->path : "/";

        plain = o->normalize_path ? normalized(path) : strdup(path);
        if (!plain)
                return -ENOMEM;
        aws_escape(&b, plain, true);
        *ret_canonical = strbuf_detach(&b);
        if (*ret_canonical)
                *ret_path = strdup(o->normalize_path ? path : *ret_canonical);
        return *ret_canonical && *ret_path ? 0 : -ENOMEM;
}

/* ── the signature ── */

static void hex_of_text(const char *text, char ret[static SHA256_HEX_SIZE]) {
        uint8_t digest[SHA256_SIZE];

        sha256_of(text, strlen(text), digest);
        (void)digest_hex(digest, sizeof digest, ret);
}

static int signature(const SignRequest *o, const AwsKeys *keys, const Signature *s,
                     char ret[static SHA256_HEX_SIZE]) {
        _cleanup_(wipe_freep) char *secret = strbuf_format("AWS4%s", keys->secret_key);
        uint8_t key[SHA256_SIZE], next[SHA256_SIZE];
        const char *const steps[] = { o->region, o->service, "aws4_request", s->string_to_sign };

        if (!secret)
                return -ENOMEM;
        hmac_sha256(secret, strlen(secret), s->amz_date, SCOPE_DATE_SIZE, key);
        for (size_t i = 0; i < ELEMENTSOF(steps); i++) {
                hmac_sha256(key, sizeof key, steps[i], strlen(steps[i]), next);
                memcpy(key, next, sizeof key);
        }
        (void)digest_hex(key, sizeof key, ret);
        digest_wipe(key, sizeof key);
        digest_wipe(next, sizeof next);
        return 0;
}

static int write_authorization(const SignRequest *o, const AwsKeys *keys, const char *names,
                               Signature *s) {
        char request_hex[SHA256_HEX_SIZE], signature_hex[SHA256_HEX_SIZE];
        _cleanup_(strbuf_done) StrBuf scope = STRBUF_INIT, text = STRBUF_INIT;

        strbuf_addf(&scope, "%.*s/%s/%s/aws4_request", SCOPE_DATE_SIZE, s->amz_date, o->region,
                    o->service);
        hex_of_text(s->canonical_request, request_hex);
        if (strbuf_error(&scope) < 0)
                return -ENOMEM;
        strbuf_addf(&text, "AWS4-HMAC-SHA256\n%s\n%s\n%s", s->amz_date, scope.text, request_hex);
        s->string_to_sign = strbuf_detach(&text);
        if (!s->string_to_sign)
                return -ENOMEM;
        int r = signature(o, keys, s, signature_hex);
        if (r < 0)
                return r;
        strbuf_addf(&text, "AWS4-HMAC-SHA256 Credential=%s/%s, SignedHeaders=%s, Signature=%s",
                    keys->access_key, scope.text, names, signature_hex);
        s->authorization = strbuf_detach(&text);
        return s->authorization ? 0 : -ENOMEM;
}

int sign_v4(const SignRequest *sign, const AwsKeys *keys, Signature *ret) {
        _cleanup_(signature_done) Signature s = { 0 };
        _cleanup_(pairs_done) Pairs headers = { 0 };
        _cleanup_(wipe_freep) char *lines = NULL;
        _cleanup_free_ char *path = NULL, *names = NULL;
        _cleanup_(strbuf_done) StrBuf lines_buf = STRBUF_INIT, names_buf = STRBUF_INIT,
                                      request = STRBUF_INIT;
        char date[CLOCK_ISO_SIZE];

        (void)snprintf(s.amz_date, sizeof s.amz_date, "%.15sZ",
                       clock_format_compact(date, sign->time_usec, 'T'));
        int r = pairs_init(&headers, sign->n_headers + 3 /* date, payload, token */);
        if (r == 0)
                r = collect_headers(&headers, sign, keys, s.amz_date);
        if (r == 0)
                r = canonical_query(sign, &s.query);
        if (r == 0)
                r = build_paths(sign, &path, &s.path);
        if (r < 0)
                return r;
        write_headers(&headers, &lines_buf, &names_buf);
        lines = strbuf_detach(&lines_buf);
        names = strbuf_detach(&names_buf);
        if (!lines || !names)
                return -ENOMEM;
        strbuf_addf(&request, "%s\n%s\n%s\n%s\n%s\n%s", sign->method, path, s.query, lines, names,
                    sign->payload);
        s.canonical_request = strbuf_detach(&request);
        if (!s.canonical_request)
                return -ENOMEM;
        r = write_authorization(sign, keys, names, &s);
        if (r < 0)
                return r;
        *ret = s;
        s = (Signature){ 0 };
        return 0;
}

void signature_done(Signature *s) {
        digest_wipe_free(s->canonical_request); /* holds the session token */
        free(s->string_to_sign);
        free(s->authorization);
        free(s->query);
        free(s->path);
        *s = (Signature){ 0 };
}
