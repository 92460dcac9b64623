/* Whether a name speaks of a secret: the dictionary. In doubt it does, except words that are common
 * in training jobs (tokenizer, cache_key). */
#include "lib/base/redact.h"

#include <ctype.h>
#include <stdbool.h>
#include <stddef.h>
#include <string.h>
#include <strings.h>

#include "lib/base/cleanup.h"
#include "lib/base/json_out.h"
#include "lib/base/parse.h"

enum { REDACT_URL_BYTES_MAX = 512 }; /* of user and password */

typedef struct Ahead { /* of a lookahead that begins again and again in what it has seen */
        size_t to;     /* it has been here */
        size_t mark;   /* the last byte of its kind before */
} Ahead;

typedef struct Scan {
        const char *s;
        size_t n;
        bool has_key_id;   /* an AKIA or ASIA id is somewhere: 40 bytes may be what belongs to it */
        size_t jwt_beyond; /* no JWT begins before here */
        Ahead word, user, url, value;
} Scan;

static inline bool is_one_of(char c, const char *chars) {
        return c != '\0' && strchr(chars, c);
}

static inline bool is_name_char(char c) {
        return isalnum((unsigned char)c) || is_one_of(c, "_-.");
}

static inline bool starts_with(const Scan *t, size_t i, const char *what) {
        size_t n = strlen(what);
        return n <= t->n - i && memcmp(t->s + i, what, n) == 0;
}

static inline size_t span_of(const Scan *t, size_t i, const char *chars) {
        size_t from = i;
        while (i < t->n && is_one_of(t->s[i], chars))
                i++;
        return i - from;
}

/* Looks for the first of `stops` or a NUL between `from`, which never goes back, and `end`, and for
 * the last mark on the way: each byte is seen once. @return where it ends */
static size_t scan_ahead(const Scan *t, Ahead *a, size_t from, size_t end, const char *stops,
                         char mark) {
        if (a->to < from)
                *a = (Ahead){ .to = from };
        for (; a->to < end && t->s[a->to] != '\0' && !is_one_of(t->s[a->to], stops); a->to++)
                if (t->s[a->to] == mark)
                        a->mark = a->to;
        return a->to;
}

static inline bool is_port(const Scan *t, size_t from, size_t to) {
        return span_of(t, from, "0123456789") == to - from;
}

/* Whether a word may begin here: also after `%3D` and after an escape such as `\n` in a log line.
 */
static inline bool starts_word(const Scan *t, size_t i) {
        if (i == 0 || !(isalnum((unsigned char)t->s[i - 1]) || t->s[i - 1] == '_'))
                return true;
        return (i >= 2 && t->s[i - 2] == '\\') ||
               (i >= 3 && t->s[i - 3] == '%' && isxdigit((unsigned char)t->s[i - 2]));
}

enum { NAME_MAX_BYTES = 256, WORDS_MAX = 32 };

/* Anywhere in a name, whatever its case and with `-`, `_` and `.` left out. */
static const char *const secret_parts[] = {
        "secret",     "passw",      "passphrase",  "passcode",  "credential",
        "apikey",     "accesskey",  "privatekey",  "privkey",   "authkey",
        "accountkey", "signingkey", "masterkey",   "sharedkey", "encryptionkey",
        "sshkey",     "authtoken",  "accesstoken", "webhook",   "authorization",
};

static size_t jwt(Scan *t, size_t i);

/* As a word of a name. */
static const char *const secret_words[] = {
        "auth", "bearer", "cookie", "cookies", "cred",      "creds",
        "jwt",  "otp",    "pwd",    "sig",     "signature",
};

/* Before `key` at the end of a name: then it opens nothing. */
static const char *const harmless_keys[] = {
        "cache",  "column",  "dict", "foreign", "group", "hash",      "host",    "index",
        "job",    "lookup",  "map",  "object",  "order", "partition", "primary", "pub",
        "public", "routing", "row",  "s3",      "sort",  "state",     "store",
};

/* The name in lower case without separators, and the same cut into words: at separators, and where
 * a capital follows a small letter. */
typedef struct Words {
        char joined[NAME_MAX_BYTES + 1], cut[2 * NAME_MAX_BYTES + 1];
        const char *word[WORDS_MAX];
        size_t n;
} Words;

static void cut_words(const char *name, Words *ret) {
        size_t n_joined = 0, n_cut = 0;
        bool inside = false;
        char before = '\0';
        ret->n = 0;
        for (; *name && n_joined < NAME_MAX_BYTES; before = *name++) {
                unsigned char c = (unsigned char)*name;
                if (c == '-' || c == '_' || c == '.') {
                        inside = false;
                        continue;
                }
                if (!inside || (isupper(c) && islower((unsigned char)before))) {
                        if (n_cut > 0)
                                ret->cut[n_cut++] = '\0';
                        if (ret->n == WORDS_MAX) /* the last words count */
                                memmove(ret->word, ret->word + 1, --ret->n * sizeof ret->word[0]);
                        ret->word[ret->n++] = ret->cut + n_cut;
                        inside = true;
                }
                ret->joined[n_joined++] = ret->cut[n_cut++] = (char)tolower(c);
        }
        ret->joined[n_joined] = ret->cut[n_cut] = '\0';
}

/* `token` anywhere, but for what a tokenizer is called and counts: numbers are recognised by their
 * value. */
static bool mentions_token(const char *joined) {
        for (const char *s = joined; (s = strstr(s, "token")); s += 5)
                if (strncmp(s + 5, "iz", 2) != 0 && strncmp(s + 5, "is", 2) != 0)
                        return true;
        return false;
}

static bool ends_in_key(const Words *w) {
        const char *last = w->n > 0 ? w->word[w->n - 1] : "";
        if (w->n < 2)
                return false;
        if (strcmp(last, "key") == 0 || strcmp(last, "keys") == 0)
                return parse_word(w->word[w->n - 2], harmless_keys, ELEMENTSOF(harmless_keys)) < 0;
        return strcmp(last, "pass") == 0 || strcmp(last, "pw") == 0;
}

bool redact_name_is_secret(const char *name) {
        size_t n = strlen(name);
        Words w;
        if (n > NAME_MAX_BYTES)
                name += n - NAME_MAX_BYTES;                          /* its end counts */
        if (strcmp(name, "PWD") == 0 || strcmp(name, "OLDPWD") == 0) /* the shell's directories */
                return false;
        cut_words(name, &w);
        for (size_t i = 0; i < ELEMENTSOF(secret_parts); i++)
                if (strstr(w.joined, secret_parts[i]))
                        return true;
        for (size_t i = 0; i < w.n; i++)
                if (parse_word(w.word[i], secret_words, ELEMENTSOF(secret_words)) >= 0)
                        return true;
        return mentions_token(w.joined) || ends_in_key(&w);
}

/* ---- secrets that have a form of their own. Lookahead is bounded or skipped ---- */

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
        { "wandb_v1_",   ALNUM "_-",   16 },
        { "nvapi-",      ALNUM "_-",   20 },
        { "hvs.",        ALNUM "_-",   16 },
        { "xapp-",       ALNUM "-",    10 },
        { "sk_live_",    ALNUM,        10 },
        { "rk_live_",    ALNUM,        10 },
        { "ya29.",       ALNUM "_-.",  16 },
        { "SG.",         ALNUM "_-.",  20 },
        { "dapi",        "0123456789abcdef-", 32 },
        { "gsk_",        ALNUM,        20 },
        { "xai-",        ALNUM "_-",   20 },
        { "r8_",         ALNUM,        20 },
        { "lin_api_",    ALNUM,        20 },
        { "AGE-SECRET-KEY-1", UPPER_ALNUM, 20 },
        { "hooks.slack.com/services/", ALNUM "/", 10 },
        { "api.telegram.org/bot", ALNUM ":_-", 10 },
        { "discord.com/api/webhooks/", ALNUM "/_-", 10 },
        { "discordapp.com/api/webhooks/", ALNUM "/_-", 10 },
};

/* clang-format on */

static size_t known_key(const Scan *t, size_t i) {
        for (size_t k = 0; k < ELEMENTSOF(key_forms); k++) {
                const struct KeyForm *f = &key_forms[k];
                if (t->s[i] != f->prefix[0] || !starts_with(t, i, f->prefix))
                        continue;
                size_t n_prefix = strlen(f->prefix), n = span_of(t, i + n_prefix, f->chars);
                if (n >= f->min)
                        return n_prefix + n;
        }
        return 0;
}

static size_t jwt(Scan *t, size_t i) {
        if (i < t->jwt_beyond || !starts_with(t, i, "eyJ"))
                return 0;
        size_t n = span_of(t, i, ALNUM "_-");
        if (n >= 10 && i + n < t->n && t->s[i + n] == '.')
                return span_of(t, i, ALNUM "_-.=");
        t->jwt_beyond = i + n;
        return 0;
}

static size_t match_pem(const Scan *t, size_t i) {
        if (!starts_with(t, i, "-----BEGIN "))
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
        if (!starts_with(t, i, "-----END "))
                return 0;
        size_t k = i + 9;
        while (k < t->n && k - i < PEM_LABEL_MAX && is_one_of(t->s[k], UPPER_ALNUM " "))
                k++;
        if (k == t->n)
                return k - i;
        return starts_with(t, k, "-----") ? k + 5 - i : 0;
}

/* Back over blanks and ends of lines, which in a log line may be `\n`. */
static size_t skip_break_back(const Scan *t, size_t least, size_t i) {
        for (;;) {
                if (i > least && is_one_of(t->s[i - 1], " \t\r\n"))
                        i--;
                else if (i >= least + 2 && t->s[i - 2] == '\\' && is_one_of(t->s[i - 1], "rn"))
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
                while (k > least && is_one_of(t->s[k - 1], ALNUM "+/="))
                        k--;
                if (k > least && k < end && t->s[k - 1] == '\\' && is_one_of(t->s[k], "rn"))
                        k++;
                if (k == end || (end - k < PEM_LINE_MIN && !is_last && k > least))
                        return i;
                i = k;
        }
}

/* The secret that belongs to an access key id has no form but its length. 40 hex digits are a
 * commit. */
static size_t aws_secret(const Scan *t, size_t i) {
        static const char chars[] = ALNUM "/+";
        if (!t->has_key_id || !is_one_of(t->s[i], chars) ||
            (i > 0 && is_one_of(t->s[i - 1], chars)))
                return 0;
        size_t n = 0;
        while (n <= SECRET_KEY_BYTES && i + n < t->n && is_one_of(t->s[i + n], chars))
                n++;
        return n == SECRET_KEY_BYTES && span_of(t, i, "0123456789abcdef") < n ? n : 0;
}

#define URL_ENDS " \t\n\v\f\r\"'<>`|"
static bool ends_url(char c) {
        return c == '\0' || is_one_of(c, URL_ENDS);
}

/* After `://`: user and password as far as the last `@` of the authority. A password with a slash
 * in it breaks the rules, and is found all the same, since what stands before it is no port. */
static size_t url_user(Scan *t, size_t i) {
        size_t at = 0, colon = 0, port_end = 0, end = MIN(t->n, i + REDACT_URL_BYTES_MAX), k = i;
        k = scan_ahead(t, &t->url, i, end, URL_ENDS "@", '\0');
        if (k >= end || t->s[k] != '@')
                return 0;
        for (k = i; k < end && !ends_url(t->s[k]); k++) {
                if (is_one_of(t->s[k], "/?#") && (at || !colon || k == port_end))
                        break;
                if (t->s[k] == ':' && !colon) {
                        colon = k;
                        port_end = k + 1 + span_of(t, k + 1, "0123456789");
                }
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
               !starts_with(t, i, "sha256:") &&
               !starts_with(t, i, "sha512:"); /* of a container's image */
}

/* `user:password@host` without a scheme, as the beginning of a text, of a word or of a value. A
 * number is a port, and a slash makes it a path. */
static size_t bare_user(Scan *t, size_t i) {
        size_t end = MIN(t->n, i + REDACT_URL_BYTES_MAX), colon = i;
        if (!isalnum((unsigned char)t->s[i]) || (i > 0 && !is_one_of(t->s[i - 1], " \t\n=\"'`,;(")))
                return 0;
        while (colon < end && (is_name_char(t->s[colon]) || t->s[colon] == '@'))
                colon++;
        if (colon >= end || t->s[colon] != ':')
                return 0;
        (void)scan_ahead(t, &t->user, colon, end, URL_ENDS "/?#", '@');
        size_t at = t->user.mark;
        bool is_mail = colon == i + 6 && starts_with(t, i, "mailto");
        return at > colon + 1 && is_host(t, at + 1) && t->s[at - 1] != '@' &&
                               t->s[colon + 1] != ':' && !is_port(t, colon + 1, at) && !is_mail
                       ? at - i
                       : 0;
}

static size_t match_known_form(Scan *t, size_t i) {
        size_t n = match_pem(t, i);
        if (n == 0)
                n = aws_secret(t, i);
        if (n > 0 || !starts_word(t, i))
                return n;
        n = known_key(t, i);
        return n > 0 ? n : jwt(t, i);
}

static size_t match_pem_end(const Scan *t, size_t least, size_t i, size_t *ret_from) {
        size_t n = end_of_pem(t, i);
        if (n > 0)
                *ret_from = pem_body_before(t, least, i);
        return n;
}

static size_t match_user(Scan *t, size_t i) {
        size_t n = i >= 3 && starts_with(t, i - 3, "://") ? url_user(t, i) : 0;
        return n > 0 ? n : bare_user(t, i);
}

static Scan scan_start(const char *text, size_t n) {
        Scan t = { .s = text, .n = n };
        for (size_t i = 0; i + 20 <= n && !t.has_key_id; i++)
                t.has_key_id = t.s[i] == 'A' &&
                               (starts_with(&t, i, "AKIA") || starts_with(&t, i, "ASIA")) &&
                               starts_word(&t, i) && known_key(&t, i) > 0;
        return t;
}

/* ---- the pass: lookahead is either removed and skipped, or bounded, so it is linear for any input
 * ---- */

#define REDACTED "[redacted]"

enum {
        NAME_BYTES_MAX = 256,
        BLANKS_MAX = 8,       /* around a separator */
        COUNT_DIGITS_MAX = 9, /* max_tokens=4096 is no secret */
        BEARER_BYTES_MIN = 8,
        STRING_PREFIX_MAX = 2, /* b'…', rb'…', $'…' */
};

/* Headers whose whole line is the secret. */
static const char *const header_names[] = { "authorization", "proxy-authorization", "cookie",
                                            "set-cookie" };

static const char *const plain_values[] = { "true", "false", "null", "none",      "yes",
                                            "no",   "on",    "off",  "undefined", REDACTED };

static bool is_blank(char c) {
        return c == ' ' || c == '\t';
}

/* ---- a name and its value ---- */

typedef struct Value {
        size_t from, to; /* to is where to continue: behind a closing quote it is not */
} Value;

/* Passes over a quote, which in a log line may be `\"`. @return the quote, or 0 */
static char skip_quote(const Scan *t, size_t *i) {
        size_t k = *i;
        while (k < t->n && t->s[k] == '\\' && k - *i < 4)
                k++;
        if (k >= t->n || !is_one_of(t->s[k], "\"'`"))
                return 0;
        *i = k + 1;
        return t->s[k];
}

/* The same with what some languages have before it: `b'…'`, `u'…'`, `$'…'`. */
static char skip_opening_quote(const Scan *t, size_t *i) {
        size_t k = *i;
        while (k < t->n && k - *i < STRING_PREFIX_MAX && is_one_of(t->s[k], "bBuUrRfF$"))
                k++;
        char quote = skip_quote(t, &k);
        if (quote)
                *i = k;
        return quote;
}

static size_t skip_blanks(const Scan *t, size_t i) {
        for (size_t k = 0; k < BLANKS_MAX && i < t->n && is_blank(t->s[i]); k++)
                i++;
        return i;
}

/* @return whether one is there, and *i behind it */
static bool skip_separator(const Scan *t, size_t *i) {
        size_t k = *i;
        (void)skip_quote(t, &k); /* of the name: may be missing */
        k = skip_blanks(t, k);
        if (k >= t->n)
                return false;
        if (starts_with(t, k, "::"))
                return false; /* C++ */
        if (starts_with(t, k, ":=") || starts_with(t, k, "=>"))
                k += 2;
        else if (starts_with(t, k, "%3D") || starts_with(t, k, "%3d"))
                k += 3;
        else if (t->s[k] == '=' || t->s[k] == ':')
                k++;
        else
                return false;
        *i = skip_blanks(t, k);
        return true;
}

typedef struct ValueForm {
        char quote; /* that ends it; 0 = none */
        bool is_line, is_query;
} ValueForm;

static size_t end_of_value(const Scan *t, size_t i, ValueForm form) {
        size_t from = i;
        for (; i < t->n; i++) {
                char c = t->s[i];
                if (c == '\n' || c == '\r' || c == '\0')
                        break;
                if (form.quote ? c == form.quote && (i == from || t->s[i - 1] != '\\' ||
                                                     t->s[from - 2] == '\\')
                               : is_one_of(c, "\"'`"))
                        break;
                if (!form.quote && !form.is_line && (is_blank(c) || (form.is_query && c == '&')))
                        break;
        }
        return i;
}

/* A block of PEM that begins in the value ends it: it has blanks and lines. */
static void pass_pem_block(const Scan *t, Value *v) {
        const char *begin =
                memmem(t->s + v->from, MIN(t->n, v->to + 1) - v->from, "-----BEGIN ", 11);
        if (begin)
                v->to = MAX(v->to, (size_t)(begin - t->s) + match_pem(t, (size_t)(begin - t->s)));
}

static bool is_word(const Scan *t, Value v, const char *word) {
        return v.to - v.from == strlen(word) &&
               strncasecmp(t->s + v.from, word, v.to - v.from) == 0;
}

/* Values that are no secrets, whatever their name. */
static bool is_plain(const Scan *t, Value v, bool is_token) {
        size_t n = v.to - v.from;
        for (size_t i = 0; i < ELEMENTSOF(plain_values); i++)
                if (is_word(t, v, plain_values[i]))
                        return true;
        size_t n_digits = span_of(t, v.from, "0123456789");
        bool is_count =
                n_digits > 0 && n_digits <= COUNT_DIGITS_MAX &&
                (n_digits == n || (n_digits + 1 == n && is_one_of(t->s[v.to - 1], ",;)]}")));
        return n == 0 || (is_token && is_count);
}

static bool is_header(const char *name) {
        for (size_t i = 0; i < ELEMENTSOF(header_names); i++)
                if (strcasecmp(name, header_names[i]) == 0)
                        return true;
        return false;
}

static bool is_user_option(const char *name) {
        return strcmp(name, "-u") == 0 || strcmp(name, "--user") == 0 ||
               strcmp(name, "--proxy-user") == 0;
}

/* `user:password`, not `1000:1000` */
static bool is_user_and_password(const Scan *t, Value v) {
        size_t n = MIN(v.to - v.from, (size_t)REDACT_URL_BYTES_MAX);
        const char *colon = memchr(t->s + v.from, ':', n);
        return colon && !is_port(t, (size_t)(colon - t->s) + 1, v.to);
}

/* ---- programs that are given a secret without a name ---- */

typedef enum CommandHow {
        HOW_GLUED,      /* `-pX` */
        HOW_GLUED_USER, /* `-uU:P` */
        HOW_OPTION,     /* `-pX`, `-p X` */
        HOW_KEY,        /* an argument that looks like a key */
        HOW_LAST,       /* with the option: the third argument; `-n` stands for the first */
} CommandHow;

enum { COMMAND_KEY_MIN = 16, COMMAND_LAST = 3, OPTION_BYTES_MAX = 64 };

/* clang-format off */
static const struct CommandForm {
        const char *program, *word; /* a word that has to come first; NULL */
        char option;
        CommandHow how;
} command_forms[] = {
        { "wandb",        "login", '\0', HOW_KEY },
        { "mysql",        NULL,    'p',  HOW_GLUED },
        { "mysqladmin",   NULL,    'p',  HOW_GLUED },
        { "mysqldump",    NULL,    'p',  HOW_GLUED },
        { "mysqlimport",  NULL,    'p',  HOW_GLUED },
        { "mariadb",      NULL,    'p',  HOW_GLUED },
        { "mariadb-dump", NULL,    'p',  HOW_GLUED },
        { "sshpass",      NULL,    'p',  HOW_OPTION },
        { "docker",       "login", 'p',  HOW_OPTION },
        { "podman",       "login", 'p',  HOW_OPTION },
        { "nerdctl",      "login", 'p',  HOW_OPTION },
        { "helm",         "login", 'p',  HOW_OPTION },
        { "curl",         NULL,    'u',  HOW_GLUED_USER },
        { "htpasswd",     NULL,    'b',  HOW_LAST },
};

/* clang-format on */

typedef struct Command {
        const struct CommandForm *form; /* NULL: none of these */
        bool has_word, has_option, is_next;
        unsigned n_arguments;
} Command;

static bool is_program(const Scan *word, const char *program) {
        size_t n = strlen(program);
        return word->n >= n && memcmp(word->s + word->n - n, program, n) == 0 &&
               (word->n == n || word->s[word->n - n - 1] == '/');
}

static bool step_option(Command *c, const Scan *word, size_t *ret_from) {
        CommandHow how = c->form->how;
        bool is_value = c->is_next;
        c->is_next = false;
        if (!is_value && word->n >= 2 && word->s[0] == '-' && word->s[1] == c->form->option) {
                *ret_from = 2;
                c->is_next = word->n == 2 && how == HOW_OPTION;
                is_value = word->n > 2 && (how != HOW_GLUED_USER ||
                                           is_user_and_password(word, (Value){ 2, word->n }));
        }
        if (is_value) /* what follows may be another command's */
                c->form = NULL;
        return is_value;
}

static bool step_last(Command *c, const Scan *word) {
        bool is_option = word->n > 1 && word->s[0] == '-';
        if (!is_option)
                return ++c->n_arguments >= COMMAND_LAST && c->has_option;
        size_t n = MIN(word->n, (size_t)OPTION_BYTES_MAX);
        c->has_option = c->has_option || memchr(word->s, c->form->option, n);
        c->n_arguments += memchr(word->s, 'n', n) != NULL;
        return false;
}

/* The next word of a command line. @param ret_from  where the secret in it begins
 * @return whether there is one */
static bool command_step(Command *c, const Scan *word, size_t *ret_from) {
        *ret_from = 0;
        for (size_t i = 0; !c->is_next && i < ELEMENTSOF(command_forms); i++)
                if (&command_forms[i] != c->form && is_program(word, command_forms[i].program)) {
                        *c = (Command){ .form = &command_forms[i] };
                        return false;
                }
        if (!c->form)
                return false;
        if (c->form->word && !c->has_word) {
                c->has_word =
                        word->n == strlen(c->form->word) && starts_with(word, 0, c->form->word);
                return false;
        }
        switch (c->form->how) {
        case HOW_KEY:
                return word->n >= COMMAND_KEY_MIN && word->s[0] != '-' &&
                       span_of(word, 0, ALNUM "_-") == word->n;
        case HOW_LAST:
                return step_last(c, word);
        default:
                return step_option(c, word, ret_from);
        }
}

/* A word of a text, with the quotes around it left out. @return false: none begins at i */
static bool find_word(Scan *t, size_t i, Scan *ret) {
        if (is_one_of(t->s[i], " \t\r\n;|&") ||
            (i > 0 && !is_one_of(t->s[i - 1], " \t\r\n;|&\"'`(")))
                return false;
        size_t end = i;
        if (i > 0 && is_one_of(t->s[i - 1], "\"'`"))
                while (end < t->n && t->s[end] != t->s[i - 1] && t->s[end] != '\n')
                        end++;
        else
                end = scan_ahead(t, &t->word, i, t->n, " \t\r\n;|&\"'`)", '\0');
        *ret = (Scan){ .s = t->s + i, .n = end - i };
        return end > i;
}

static bool has_token(const char *name) {
        return strcasestr(name, "token") != NULL;
}

/* The value that follows a name. @param at  the name's place @return whether there is one to remove
 */
static bool find_value(Scan *whole, const char *name, Value at, Value *ret) {
        size_t i = at.to;
        bool is_option = name[0] == '-', is_user = is_user_option(name);
        bool is_bearer = strcasecmp(name, "bearer") == 0;
        Scan bounded = *whole, *t = &bounded;
        if (is_user) /* its value may stay, and is scanned again then */
                bounded.n = MIN(whole->n, i + REDACT_URL_BYTES_MAX);
        if (!is_user && !is_bearer && !redact_name_is_secret(name + strspn(name, "-")))
                return false;
        if (!skip_separator(t, &i)) {
                size_t k = skip_blanks(t, i);
                if (k == i || !(is_option || is_bearer) || k >= t->n || starts_with(t, k, "--"))
                        return false;
                i = k;
        }
        char quote = skip_opening_quote(t, &i);
        bool is_query = at.from > 0 && is_one_of(t->s[at.from - 1], "?&");
        *ret = (Value){
                .from = i,
                .to = is_user && !quote
                              ? scan_ahead(t, &whole->value, i, t->n, " \t\r\n\"'`", '\0')
                              : end_of_value(t, i, (ValueForm){ quote, is_header(name), is_query })
        };
        while (quote && ret->to > ret->from && t->s[ret->to - 1] == '\\')
                ret->to--; /* of the closing `\"` */
        pass_pem_block(t, ret);
        if (is_user)
                return is_user_and_password(t, *ret);
        if (is_bearer && !is_option && ret->to - ret->from < BEARER_BYTES_MIN)
                return false;
        return !is_plain(t, *ret, has_token(name));
}

/* Checks the name that starts at i. @return whether its value is to be removed; *ret_name_end in
 * any case */
static bool named_value(Scan *t, size_t i, size_t *ret_name_end, Value *ret) {
        char name[NAME_BYTES_MAX + 1];
        size_t end = i;
        while (end < t->n && is_name_char(t->s[end]))
                end++;
        *ret_name_end = end;
        size_t n = MIN(end - i, (size_t)NAME_BYTES_MAX);
        memcpy(name, t->s + end - n, n);
        name[n] = '\0';
        return find_value(t, name, (Value){ .from = i, .to = end }, ret);
}

/* ---- the pass ---- */

/* `&` in a URL ends no command */
static bool ends_command(const Scan *t, size_t i) {
        char c = t->s[i], next = i + 1 < t->n ? t->s[i + 1] : ' ';
        return c == '\n' || (is_one_of(c, ";|&") && (is_blank(next) || next == c));
}

static size_t match_command(Command *c, Scan *t, size_t i, size_t *ret_from) {
        Scan word;
        size_t from;
        if (ends_command(t, i))
                *c = (Command){ 0 };
        if (!find_word(t, i, &word) || !command_step(c, &word, &from))
                return 0;
        *ret_from = i + from;
        return word.n;
}

static void redact(StrBuf *b, Scan *t) {
        size_t copied = 0, name_end = 0;
        Command command = { 0 };
        for (size_t i = 0; i < t->n;) {
                Value v = { .from = i };
                v.to = i + match_command(&command, t, i, &v.from);
                if (v.to == i)
                        v.to += match_known_form(t, i);
                if (v.to == i)
                        v.to += match_pem_end(t, copied, i, &v.from);
                if (v.to == i)
                        v.to += match_user(t, i);
                if (v.to == i && i >= name_end && is_name_char(t->s[i]) &&
                    !named_value(t, i, &name_end, &v))
                        v.to = i;
                if (v.to == i) {
                        i++;
                        continue;
                }
                strbuf_add_n(b, t->s + copied, v.from - copied);
                strbuf_add(b, REDACTED);
                copied = i = v.to;
                name_end = MAX(name_end, i);
        }
        strbuf_add_n(b, t->s + copied, t->n - copied);
}

void redact_text(StrBuf *b, const char *text, size_t n) {
        Scan t = scan_start(text, n);
        redact(b, &t);
}

void redact_member(StrBuf *b, const char *key, const char *text, size_t n) {
        _cleanup_(strbuf_done) StrBuf clean = STRBUF_INIT;
        redact_text(&clean, text, n);
        if (strbuf_error(&clean) < 0)
                b->failed = true;
        else
                json_out_text(b, key, clean.text ? clean.text : "", clean.n);
}

/* ---- command lines ---- */

/* Whether an argument names a secret: its own value after `=`, or that the next argument is one. */
typedef enum {
        ARG_PLAIN,
        ARG_HAS_SECRET,
        ARG_NEXT_IS_SECRET,
        ARG_NEXT_IS_TOKEN, /* unless it is a count */
        ARG_NEXT_IS_USER,
} ArgKind;

static ArgKind arg_kind(const char *arg, size_t n, size_t *ret_value) {
        char name[NAME_BYTES_MAX + 1];
        size_t k = 0;
        while (k < n && is_name_char(arg[k]))
                k++;
        if (k == 0 || k > NAME_BYTES_MAX || (k < n && arg[k] != '='))
                return ARG_PLAIN;
        memcpy(name, arg, k);
        name[k] = '\0';
        if (k == n && is_user_option(name))
                return ARG_NEXT_IS_USER;
        if (!redact_name_is_secret(name + strspn(name, "-")))
                return ARG_PLAIN;
        *ret_value = k + 1;
        if (k < n) {
                Scan t = { .s = arg, .n = n };
                Value v = { .from = k + 1, .to = n };
                return is_plain(&t, v, has_token(name)) ? ARG_PLAIN : ARG_HAS_SECRET;
        }
        return arg[0] != '-' ? ARG_PLAIN : has_token(name) ? ARG_NEXT_IS_TOKEN : ARG_NEXT_IS_SECRET;
}

static bool is_secret_after(ArgKind before, const char *arg, size_t n) {
        Scan t = { .s = arg, .n = n };
        Value v = { .to = n };
        if (before == ARG_NEXT_IS_USER)
                return is_user_and_password(&t, v);
        return (before == ARG_NEXT_IS_SECRET || before == ARG_NEXT_IS_TOKEN) &&
               !starts_with(&t, 0, "--") && !is_plain(&t, v, before == ARG_NEXT_IS_TOKEN);
}

void redact_cmdline(StrBuf *b, const char *data, size_t n) {
        _cleanup_(strbuf_done) StrBuf out = STRBUF_INIT;
        Scan all = scan_start(data, n);
        ArgKind before = ARG_PLAIN;
        Command command = { 0 };
        for (size_t i = 0; i < n;) {
                const char *arg = data + i;
                size_t n_arg = strnlen(arg, n - i), value = 0;
                size_t from;
                ArgKind kind = arg_kind(arg, n_arg, &value);
                Scan word = { .s = arg, .n = n_arg };
                strbuf_clear(&out);
                if (command_step(&command, &word, &from)) {
                        strbuf_add_n(&out, arg, from);
                        strbuf_add(&out, REDACTED);
                        kind = ARG_PLAIN;
                } else if (is_secret_after(before, arg, n_arg)) {
                        strbuf_add(&out, REDACTED);
                        kind = ARG_PLAIN;
                } else if (kind == ARG_HAS_SECRET) { /* to its end, blanks or not */
                        strbuf_add_n(&out, arg, value);
                        strbuf_add(&out, REDACTED);
                } else {
                        Scan t = { .s = arg, .n = n_arg, .has_key_id = all.has_key_id };
                        redact(&out, &t);
                }
                json_out_text(b, NULL, out.text ? out.text : "", out.n);
                b->failed = b->failed || out.failed;
                before = kind;
                i += n_arg + 1;
        }
}
