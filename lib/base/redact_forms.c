/* Secrets that have a form of their own. What is looked at ahead is bounded or passed over. */
#include "lib/base/redact_private.h"

#include "lib/base/cleanup.h"

enum {
        SECRET_KEY_BYTES = 40, /* of AWS; AKIA and ASIA ids: 4 + 16 */
        PEM_LABEL_MAX = 64,
        PEM_LINE_MIN = 32, /* of a block's body, but for the first one of the text and the last */
};

#define ALNUM "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789"
#define UPPER_ALNUM "ABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789"

/* Keys that are known by how they begin. `min` bytes of `chars` follow. */
/* clang-format off */
static const struct KeyForm {
        const char *prefix, *chars;
        size_t min;
} key_forms[] = {
        { "AKIA",        UPPER_ALNUM,  16 },
        { "ASIA",        UPPER_ALNUM,  16 },
        { "hf_",         ALNUM,        16 },
        { "api_org_",    ALNUM,        16 },
        { "ghp_",        ALNUM,        16 },
        { "gho_",        ALNUM,        16 },
        { "ghu_",        ALNUM,        16 },
        { "ghs_",        ALNUM,        16 },
        { "ghr_",        ALNUM,        16 },
        { "github_pat_", ALNUM "_",    16 },
        { "glpat-",      ALNUM "_-",   16 },
        { "sk-",         ALNUM "_-",   20 },
        { "xoxa-",       ALNUM "-",    10 },
        { "xoxb-",       ALNUM "-",    10 },
        { "xoxe.",       ALNUM "-.",   10 },
        { "xoxe-",       ALNUM "-",    10 },
        { "xoxo-",       ALNUM "-",    10 },
        { "xoxp-",       ALNUM "-",    10 },
        { "xoxr-",       ALNUM "-",    10 },
        { "xoxs-",       ALNUM "-",    10 },
        { "npm_",        ALNUM,        30 },
        { "pypi-",       ALNUM "_-",   30 },
        { "dckr_pat_",   ALNUM "_-",   16 },
        { "AIza",        ALNUM "_-",   30 },
        { "hooks.slack.com/services/", ALNUM "/", 10 },
};
/* clang-format on */

static size_t known_key(const Scan *t, size_t i) {
        for (size_t k = 0; k < ELEMENTSOF(key_forms); k++) {
                const struct KeyForm *f = &key_forms[k];
                if (t->s[i] != f->prefix[0] || !redact_begins(t, i, f->prefix))
                        continue;
                size_t n_prefix = strlen(f->prefix), n = redact_span(t, i + n_prefix, f->chars);
                if (n >= f->min)
                        return n_prefix + n;
        }
        return 0;
}

static size_t jwt(Scan *t, size_t i) {
        if (i < t->jwt_beyond || !redact_begins(t, i, "eyJ"))
                return 0;
        size_t n = redact_span(t, i, ALNUM "_-");
        if (n >= 10 && i + n < t->n && t->s[i + n] == '.')
                return redact_span(t, i, ALNUM "_-.=");
        t->jwt_beyond = i + n;
        return 0;
}

size_t redact_pem(const Scan *t, size_t i) {
        if (!redact_begins(t, i, "-----BEGIN "))
                return 0;
        const char *end = memmem(t->s + i, t->n - i, "-----END ", 9);
        if (!end)
                return t->n - i; /* cut short: what is there of it goes */
        const char *close = end + 9;
        close = memmem(close, (size_t)(t->s + t->n - close), "-----", 5);
        return close ? (size_t)(close - t->s) + 5 - i : t->n - i;
}

/* A block whose beginning the text does not have ends here. */
static size_t end_of_pem(const Scan *t, size_t i) {
        if (!redact_begins(t, i, "-----END "))
                return 0;
        size_t k = i + 9;
        while (k < t->n && k - i < PEM_LABEL_MAX && redact_is_one_of(t->s[k], UPPER_ALNUM " "))
                k++;
        if (k == t->n)
                return k - i;
        return redact_begins(t, k, "-----") ? k + 5 - i : 0;
}

/* Back over blanks and ends of lines, which in a log line may be `\n`. */
static size_t skip_break_back(const Scan *t, size_t least, size_t i) {
        for (;;) {
                if (i > least && redact_is_one_of(t->s[i - 1], " \t\r\n"))
                        i--;
                else if (i >= least + 2 && t->s[i - 2] == '\\' &&
                         redact_is_one_of(t->s[i - 1], "rn"))
                        i -= 2;
                else
                        return i;
                while (i > least && t->s[i - 1] == '\\')
                        i--;
        }
}

/* @return where the lines begin that stand before i and look like base64; not before least */
static size_t pem_body_before(const Scan *t, size_t least, size_t i) {
        for (bool is_last = true;; is_last = false) {
                size_t end = skip_break_back(t, least, i), k = end;
                while (k > least && redact_is_one_of(t->s[k - 1], ALNUM "+/="))
                        k--;
                if (k > least && k < end && t->s[k - 1] == '\\' && redact_is_one_of(t->s[k], "rn"))
                        k++;
                if (k == end || (end - k < PEM_LINE_MIN && !is_last && k > least))
                        return i;
                i = k;
        }
}

/* The secret that belongs to an access key id has no form but its length. 40 hex digits are a commit. */
static size_t aws_secret(const Scan *t, size_t i) {
        static const char chars[] = ALNUM "/+";
        if (!t->has_key_id || !redact_is_one_of(t->s[i], chars) ||
            (i > 0 && redact_is_one_of(t->s[i - 1], chars)))
                return 0;
        size_t n = 0;
        while (n <= SECRET_KEY_BYTES && i + n < t->n && redact_is_one_of(t->s[i + n], chars))
                n++;
        return n == SECRET_KEY_BYTES && redact_span(t, i, "0123456789abcdef") < n ? n : 0;
}

static bool ends_url(char c) {
        return c == '\0' || isspace((unsigned char)c) || redact_is_one_of(c, "\"'<>`|");
}

/* After `://`: user and password as far as the last `@` of the authority. A password with a slash in it breaks the rules, and is found all
 * the same, since what stands before it is no port. */
static size_t url_user(const Scan *t, size_t i) {
        size_t at = 0, colon = 0, end = MIN(t->n, i + REDACT_URL_BYTES_MAX), k = i;
        for (; k < end && !ends_url(t->s[k]); k++) {
                if (redact_is_one_of(t->s[k], "/?#") &&
                    (at || !colon || redact_is_port(t, colon + 1, k)))
                        break;
                if (t->s[k] == ':' && !colon)
                        colon = k;
                if (t->s[k] == '@')
                        at = k;
        }
        if (!at)
                return 0;
        bool has_password = colon && colon < at;
        return has_password || at - i > 16 ? at - i : 0; /* `ssh://git@…` stays */
}

static bool is_host(const Scan *t, size_t i) {
        return i < t->n && (isalnum((unsigned char)t->s[i]) || t->s[i] == '[') &&
               !redact_begins(t, i, "sha256:") &&
               !redact_begins(t, i, "sha512:"); /* of a container's image */
}

/* `user:password@host` without a scheme, as the beginning of a text, of a word or of a value. A number is a port, and a slash makes it a path. */
static size_t bare_user(const Scan *t, size_t i) {
        size_t at = 0, colon = 0, end = MIN(t->n, i + REDACT_URL_BYTES_MAX), k = i;
        if (!isalnum((unsigned char)t->s[i]) ||
            (i > 0 && !redact_is_one_of(t->s[i - 1], " \t\n=\"'`,;(")))
                return 0;
        for (; k < end && !ends_url(t->s[k]) && !redact_is_one_of(t->s[k], "/?#"); k++) {
                if (t->s[k] == ':' && !colon)
                        colon = k;
                if (t->s[k] == '@' && colon && k > colon + 1)
                        at = k;
                if (!colon && !redact_is_name_char(t->s[k]) && t->s[k] != '@')
                        return 0;
        }
        bool is_mail = colon == i + 6 && redact_begins(t, i, "mailto");
        return at && is_host(t, at + 1) && t->s[at - 1] != '@' && t->s[colon + 1] != ':' &&
                               !redact_is_port(t, colon + 1, at) && !is_mail
                       ? at - i
                       : 0;
}

size_t redact_known_form(Scan *t, size_t i) {
        size_t n = redact_pem(t, i);
        if (n == 0)
                n = aws_secret(t, i);
        if (n > 0 || !redact_begins_word(t, i))
                return n;
        n = known_key(t, i);
        return n > 0 ? n : jwt(t, i);
}

size_t redact_pem_end(const Scan *t, size_t least, size_t i, size_t *ret_from) {
        size_t n = end_of_pem(t, i);
        if (n > 0)
                *ret_from = pem_body_before(t, least, i);
        return n;
}

size_t redact_user(const Scan *t, size_t i) {
        size_t n = i >= 3 && redact_begins(t, i - 3, "://") ? url_user(t, i) : 0;
        return n > 0 ? n : bare_user(t, i);
}

Scan redact_scan(const char *text, size_t n) {
        Scan t = { .s = text, .n = n };
        for (size_t i = 0; i + 20 <= n && !t.has_key_id; i++)
                t.has_key_id = t.s[i] == 'A' &&
                               (redact_begins(&t, i, "AKIA") || redact_begins(&t, i, "ASIA")) &&
                               redact_begins_word(&t, i) && known_key(&t, i) > 0;
        return t;
}
