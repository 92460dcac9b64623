/* Removes secrets from text in one pass. Tables below have the names that come before secret
 * values, the forms of known keys, and the programs that are given a secret as an argument;
 * functions find PEM blocks, user and password in URLs and before hosts, and lines of .netrc and
 * .pgpass. A name decides what its value can be besides a secret: a token may be a number, a
 * signature a signal. In doubt text is removed. Which rule comes first is decided by redact().
 *
 * redact_cmdline() applies the same rules to each argument of a command line, and adds two: a value
 * ends where its argument ends, and an option that names a secret makes the next argument one. */
#include "lib/base/redact.h"

#include <ctype.h>
#include <stdbool.h>
#include <stddef.h>
#include <string.h>
#include <strings.h>

#include "lib/base/cleanup.h"
#include "lib/base/json_out.h"
#include "lib/base/parse.h"

enum {
        REDACT_URL_BYTES_MAX = 512, /* of user and password */
        LINE_DIGITS_MAX = 8,
};

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
        "secret",    "passw",         "passphrase",    "passcode", "credential", "apikey",
        "accesskey", "privatekey",    "privkey",       "authkey",  "accountkey", "signingkey",
        "masterkey", "sharedkey",     "encryptionkey", "sshkey",   "authtoken",  "accesstoken",
        "webhook",   "authorization", "clientkey",
};

static size_t jwt(Scan *t, size_t i);

/* As a word of a name. */
static const char *const secret_words[] = {
        "bearer", "cookie", "cookies", "cred", "creds", "jwt", "otp", "pwd", "sig", "signature",
};

/* After `auth` in a name; AuthType, auth_fail and auth.example.com speak of no secret. */
static const char *const words_after_auth[] = {
        "blob", "code", "data", "hash", "header", "headers", "string", "value",
};

/* Names of a tokenizer's tokens, which every training log prints. */
static const char *const harmless_tokens[] = {
        "bostoken",     "clstoken",  "eostoken", "masktoken",  "padtoken",   "septoken",
        "specialtoken", "stoptoken", "unktoken", "imagetoken", "videotoken", "nexttoken",
};

/* Before `key` at the end of a name: then it opens nothing. */
static const char *const harmless_keys[] = {
        "cache",  "column",  "dict", "foreign", "group", "hash",      "host",    "index",
        "job",    "lookup",  "map",  "object",  "order", "partition", "primary", "pub",
        "public", "routing", "row",  "s3",      "sort",  "state",     "store",
};

/* The end of a name for a property of a token or signature, which is not the secret itself. */
static const char *const descriptions[] = {
        "count", "expiry", "file", "length", "limit", "path", "size", "ttl", "type", "version",
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

/* `token` anywhere in a name, except names of tokenizers and of their tokens. Counts and rates are
 * recognised by their values. */
static bool mentions_token(const char *joined) {
        for (size_t i = 0; i < ELEMENTSOF(harmless_tokens); i++)
                if (strstr(joined, harmless_tokens[i]))
                        return false;
        for (const char *s = joined; (s = strstr(s, "token")); s += 5)
                if (strncmp(s + 5, "iz", 2) != 0 && strncmp(s + 5, "is", 2) != 0)
                        return true;
        return false;
}

static bool mentions_auth(const Words *w) {
        for (size_t i = 0; i < w->n; i++)
                if (strcmp(w->word[i], "auth") == 0 &&
                    (i + 1 == w->n || parse_word(w->word[i + 1], words_after_auth,
                                                 ELEMENTSOF(words_after_auth)) >= 0))
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
        if (w.n > 1 && parse_word(w.word[w.n - 1], descriptions, ELEMENTSOF(descriptions)) >= 0)
                return false;
        for (size_t i = 0; i < w.n; i++)
                if (parse_word(w.word[i], secret_words, ELEMENTSOF(secret_words)) >= 0)
                        return true;
        return mentions_auth(&w) || mentions_token(w.joined) || ends_in_key(&w);
}

/* ---- secrets that have a form of their own. Lookahead is bounded or skipped ---- */

enum {
        SECRET_KEY_BYTES = 40, /* of AWS; AKIA and ASIA ids: 4 + 16 */
        PEM_LABEL_MAX = 64,
        PEM_LINE_MIN = 32, /* of a block's body, but for the first one of the text and the last */
};

#define ALNUM "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789"
#define UPPER_ALNUM "ABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789"
#define HEX "0123456789abcdefABCDEF"
#define BASE64 ALNUM "+/=%" /* also URL-encoded */

/* Keys that are recognised by their prefix, which at least `min` bytes of `chars` follow. Source:
 * the issuers' documentation, and the public rules of secret scanners. */
/* clang-format off */
static const struct KeyForm {
        const char *prefix, *chars;
        size_t min;
} key_forms[] = {
        /* AWS: key ids, session tokens (`origin` in base64, and older ones), Bedrock */
        { "AKIA",             UPPER_ALNUM,  16 },
        { "ASIA",             UPPER_ALNUM,  16 },
        { "ABIA",             UPPER_ALNUM,  16 },
        { "IQoJb3JpZ2lu",     BASE64,       40 },
        { "FwoGZXIvYXdz",     BASE64,       40 },
        { "FQoGZXIvYXdz",     BASE64,       40 },
        { "ABSK",             BASE64,       60 },
        { "bedrock-api-key-", BASE64,       20 },
        /* models and data */
        { "hf_",              ALNUM,        16 },
        { "api_org_",         ALNUM,        16 },
        { "sk-",              ALNUM "_-",   20 },
        { "wandb_v1_",        ALNUM "_-",   16 },
        { "nvapi-",           ALNUM "_-",   20 },
        { "gsk_",             ALNUM,        20 },
        { "xai-",             ALNUM "_-",   20 },
        { "r8_",              ALNUM,        20 },
        { "pplx-",            ALNUM,        32 },
        { "lsv2_",            ALNUM "_",    32 },
        { "tvly-",            ALNUM "_-",   20 },
        { "csk-",             ALNUM,        32 },
        { "dapi",             "0123456789abcdef-", 32 },
        { "pnu_",             ALNUM,        30 },
        /* code and packages */
        { "ghp_",             ALNUM,        16 },
        { "gho_",             ALNUM,        16 },
        { "ghu_",             ALNUM,        16 },
        { "ghs_",             ALNUM,        16 },
        { "ghr_",             ALNUM,        16 },
        { "github_pat_",      ALNUM "_",    16 },
        { "glpat-",           ALNUM "_-.",  16 },
        { "glptt-",           HEX,          32 },
        { "gldt-",            ALNUM "_-",   20 },
        { "glrt-",            ALNUM "_-.",  20 },
        { "glft-",            ALNUM "_-",   20 },
        { "glcbt-",           ALNUM "_-",   20 },
        { "glsoat-",          ALNUM "_-",   20 },
        { "glimt-",           ALNUM "_-",   20 },
        { "glagent-",         ALNUM "_-",   32 },
        { "gloas-",           ALNUM "_-",   32 },
        { "npm_",             ALNUM,        30 },
        { "pypi-",            ALNUM "_-",   30 },
        { "rubygems_",        HEX,          32 },
        { "dckr_pat_",        ALNUM "_-",   16 },
        { "dckr_oat_",        ALNUM "_-",   16 },
        { "AKCp",             ALNUM,        40 },
        { "cmVmdGtu",         ALNUM,        40 },
        { "sgp_",             ALNUM "_",    40 },
        /* clouds, platforms, secrets */
        { "AIza",             ALNUM "_-",   30 },
        { "GOCSPX-",          ALNUM "_-",   20 },
        { "ya29.",            ALNUM "_-.",  16 },
        { "LTAI",             ALNUM,        20 },
        { "dop_v1_",          HEX,          32 },
        { "doo_v1_",          HEX,          32 },
        { "dor_v1_",          HEX,          32 },
        { "dp.pt.",           ALNUM,        32 },
        { "dp.ct.",           ALNUM,        32 },
        { "dp.st.",           ALNUM "._-",  32 },
        { "dp.sa.",           ALNUM,        32 },
        { "hvs.",             ALNUM "_-",   16 },
        { "hvb.",             ALNUM "_-",   16 },
        { "hvr.",             ALNUM "_-",   16 },
        { "pul-",             HEX,          32 },
        { "pscale_",          ALNUM "_-.=", 32 },
        { "sbp_",             HEX,          32 },
        { "tskey-",           ALNUM "-",    20 },
        { "ops_eyJ",          BASE64,       40 },
        { "HRKU-",            ALNUM "_-",   32 },
        { "fm2_",             BASE64,       40 },
        { "sha256~",          ALNUM "_-",   40 },
        { "dt0c01.",          ALNUM ".",    40 },
        { "NRAK-",            UPPER_ALNUM,  20 },
        { "NRII-",            ALNUM "_-",   20 },
        { "glsa_",            ALNUM "_",    30 },
        { "glc_",             BASE64,       32 },
        { "sntrys_",          BASE64 "_",   40 },
        { "sntryu_",          HEX,          40 },
        { "phx_",             ALNUM,        30 },
        /* messages, mail, tickets, documents */
        { "xapp-",            ALNUM "-",    10 },
        { "xoxa-",            ALNUM "-",    10 },
        { "xoxb-",            ALNUM "-",    10 },
        { "xoxe.",            ALNUM "-.",   10 },
        { "xoxe-",            ALNUM "-",    10 },
        { "xoxo-",            ALNUM "-",    10 },
        { "xoxp-",            ALNUM "-",    10 },
        { "xoxr-",            ALNUM "-",    10 },
        { "xoxs-",            ALNUM "-",    10 },
        { "hooks.slack.com/services/",     ALNUM "/",   10 },
        { "hooks.slack.com/workflows/",    ALNUM "/",   10 },
        { "hooks.slack.com/triggers/",     ALNUM "/",   10 },
        { "api.telegram.org/bot",          ALNUM ":_-", 10 },
        { "discord.com/api/webhooks/",     ALNUM "/_-", 10 },
        { "discordapp.com/api/webhooks/",  ALNUM "/_-", 10 },
        { "webhook.office.com/webhookb2/", ALNUM "/@-", 32 },
        { "SG.",              ALNUM "_-.",  20 },
        { "xkeysib-",         ALNUM "-",    40 },
        { "xsmtpsib-",        ALNUM "-",    40 },
        { "PMAK-",            ALNUM "-",    40 },
        { "ATATT3",           ALNUM "_-=",  40 },
        { "ATCTT3",           ALNUM "_-=",  40 },
        { "ntn_",             ALNUM,        40 },
        { "figd_",            ALNUM "_-",   30 },
        { "lin_api_",         ALNUM,        20 },
        /* money and shops */
        { "sk_live_",         ALNUM,        10 },
        { "rk_live_",         ALNUM,        10 },
        { "sk_test_",         ALNUM,        10 },
        { "rk_test_",         ALNUM,        10 },
        { "whsec_",           BASE64,       24 },
        { "shpat_",           HEX,          32 },
        { "shpca_",           HEX,          32 },
        { "shppa_",           HEX,          32 },
        { "shpss_",           HEX,          32 },
        { "AGE-SECRET-KEY-1", UPPER_ALNUM,  20 },
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

static bool has_digit(const Scan *t, size_t from, size_t to) {
        while (from < to && !isdigit((unsigned char)t->s[from]))
                from++;
        return from < to;
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
        /* `ssh://git@…` and `spark://CoarseGrainedScheduler@…` stay, a key does not */
        return has_password || (at - i > 16 && has_digit(t, i, at)) ? at - i : 0;
}

static bool is_host(const Scan *t, size_t i) {
        size_t k = i;
        while (k < t->n && k - i < LINE_DIGITS_MAX && isdigit((unsigned char)t->s[k]))
                k++;
        if (k > i && (k == t->n || !(is_name_char(t->s[k]) || t->s[k] == ':')))
                return false; /* the number of a line: `Processor@476` */
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

/* A line of .pgpass: `host:5432:database:user:password`. Of ports only those of PostgreSQL and of
 * what speaks its protocol count, since log lines have colons as well. */
static size_t match_pgpass(const Scan *t, size_t i, size_t *ret_from) {
        if (i > 0 && !is_one_of(t->s[i - 1], " \t\n\"'`"))
                return 0;
        size_t end = i, k = i, n_colons = 0, from = 0, max = MIN(t->n, i + REDACT_URL_BYTES_MAX);
        while (k < max && (is_name_char(t->s[k]) || t->s[k] == '*'))
                k++;
        if (k == i || k + 2 >= max || t->s[k] != ':' ||
            !(starts_with(t, k, ":*:") || starts_with(t, k, ":6432:") ||
              (starts_with(t, k, ":543") && k + 5 < max && t->s[k + 5] == ':')))
                return 0;
        for (end = k; end < max && !ends_url(t->s[end]); end++)
                if (t->s[end] == ':' && ++n_colons == 4)
                        from = end + 1;
                else if (n_colons == 2 && t->s[end - 1] == ':' && isdigit((unsigned char)t->s[end]))
                        return 0; /* a column */
        if (from == 0 || end == from)
                return 0;
        *ret_from = from;
        return end - i;
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
        FRACTION_DIGITS_MAX = 17,
        HEX_DIGITS_MAX = 16,     /* sig=0x1d2c is not a secret */
        EVIDENCE_BYTES_MAX = 32, /* of a special token, or of a name without digits */
        BEARER_BYTES_MIN = 8,
        STRING_PREFIX_MAX = 2, /* b'…', rb'…', $'…' */
        LINE_BYTES_MAX = 512,  /* of a line that is read in advance */
        WORD_BYTES_MAX = 128,
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

/* What a value may be besides a secret, decided by its name. */
typedef enum NameKind {
        NAME_SECRET,
        NAME_TOKEN, /* `tokens_per_second`, `token`: a number, a tokenizer's token */
        NAME_WEAK,  /* `sig`, `signature`, `cookie`: a number, a short id, a signal */
} NameKind;

static bool ends_in_word(const char *name, const char *word) {
        size_t n = strlen(name), n_word = strlen(word);
        return n >= n_word && strcasecmp(name + n - n_word, word) == 0 &&
               (n == n_word || is_one_of(name[n - n_word - 1], "-_."));
}

static NameKind name_kind(const char *name) {
        static const char *const weak[] = { "sig", "signature", "cookie", "cookies" };
        if (strcasestr(name, "token"))
                return NAME_TOKEN;
        for (size_t i = 0; i < ELEMENTSOF(weak) && strncasecmp(name, "x-", 2) != 0; i++)
                if (ends_in_word(name, weak[i]))
                        return NAME_WEAK;
        return NAME_SECRET;
}

/* Options whose names do not contain a word for a secret. */
static bool is_secret_option(const char *name) {
        static const char *const options[] = {
                "-pass",    "--pass",        "-passin",        "-passout", "-storepass",
                "-keypass", "-srcstorepass", "-deststorepass", "-pw",      "--from-literal",
        };
        return parse_word(name, options, ELEMENTSOF(options)) >= 0;
}

static bool is_secret_name(const char *name) {
        return redact_name_is_secret(name + strspn(name, "-")) || is_secret_option(name);
}

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

static size_t skip_space(const Scan *t, size_t i, const char *chars) {
        for (size_t k = 0; k < LINE_BYTES_MAX / 4 && i < t->n && is_one_of(t->s[i], chars); k++)
                i++;
        return i;
}

/* The name is itself a value, and the secret stands beside it: `name: PASSWORD, value: x`,
 * `key="password" value="x"`, `"password": {"value": "x"}`. @return as skip_separator() */
static bool skip_member_value(const Scan *t, size_t *i) {
        size_t k = *i;
        (void)skip_quote(t, &k);
        size_t from = k;
        k = skip_space(t, k, " \t\r\n,:{");
        (void)skip_quote(t, &k);
        if (k == from || t->n - k < 6 || strncasecmp(t->s + k, "value", 5) != 0)
                return false;
        k += 5;
        (void)skip_quote(t, &k);
        k = skip_blanks(t, k);
        if (k >= t->n || !is_one_of(t->s[k], "=:"))
                return false;
        *i = skip_blanks(t, k + 1);
        return true;
}

/* @return whether one is there, and *i behind it */
static bool skip_separator(const Scan *t, size_t *i) {
        size_t k = *i;
        if (skip_member_value(t, i))
                return true;
        (void)skip_quote(t, &k); /* of the name: may be missing */
        k = skip_blanks(t, k);
        if (k >= t->n)
                return false;
        if (starts_with(t, k, "::"))
                return false;          /* C++ */
        if (starts_with(t, k, "==")) { /* a comparison; with a name, no secret is there */
                size_t value = skip_blanks(t, k + 2);
                if (!skip_opening_quote(t, &value))
                        return false;
        }
        if (starts_with(t, k, ":=") || starts_with(t, k, "=>") || starts_with(t, k, "=="))
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

static size_t span_within(const Scan *t, Value v, const char *chars) {
        size_t i = v.from;
        while (i < v.to && i - v.from <= EVIDENCE_BYTES_MAX && is_one_of(t->s[i], chars))
                i++;
        return i - v.from;
}

/* Counts, rates and shares: `4096`, `1,234`, `1234.5`, `1.2e+05`, `12/34`, `98.7%`, `12.3k`. */
static bool is_number(const Scan *t, Value v) {
        static const char *const units[] = { "",  "%",  "s",    "ms",    "us",      "ns",
                                             "k", "K",  "M",    "G",     "B",       "T",
                                             "x", "/s", "it/s", "tok/s", "tokens/s" };
        size_t i = v.from, max = COUNT_DIGITS_MAX, n;
        if (i < v.to && is_one_of(t->s[i], "+-"))
                i++;
        if (is_word(t, (Value){ i, v.to }, "nan") || is_word(t, (Value){ i, v.to }, "inf"))
                return true;
        for (unsigned k = 0;; k++) {
                n = span_within(t, (Value){ i, v.to }, "0123456789");
                if (n == 0 || n > max || k > 4)
                        return false;
                i += n;
                if (i + 1 >= v.to || !is_one_of(t->s[i], ".,/"))
                        break;
                max = t->s[i++] == '.' ? FRACTION_DIGITS_MAX : COUNT_DIGITS_MAX;
        }
        if (i + 1 < v.to && is_one_of(t->s[i], "eE")) {
                size_t k = i + 1 + (is_one_of(t->s[i + 1], "+-") ? 1 : 0);
                n = span_within(t, (Value){ k, v.to }, "0123456789");
                i = n > 0 && n <= 3 ? k + n : i;
        }
        for (size_t k = 0; k < ELEMENTSOF(units); k++)
                if (v.to - i == strlen(units[k]) && memcmp(t->s + i, units[k], v.to - i) == 0)
                        return true;
        return false;
}

/* `[PAD]`, `<pad>`, `</s>`, `<|endoftext|>` */
static bool is_special_token(const Scan *t, Value v) {
        if (v.to - v.from < 3 || v.to - v.from > EVIDENCE_BYTES_MAX)
                return false;
        char first = t->s[v.from], last = t->s[v.to - 1];
        const char *chars = first == '[' ? UPPER_ALNUM "_" : ALNUM "_-/|";
        return ((first == '[' && last == ']') || (first == '<' && last == '>')) &&
               span_within(t, (Value){ v.from + 1, v.to - 1 }, chars) == v.to - v.from - 2;
}

/* `3f2a`, `0x1d2c`; `SIGSEGV` and `nrt_execute()` of what is called a signature. */
static bool is_evidence(const Scan *t, Value v, bool is_name_possible) {
        size_t n = v.to - v.from, from = v.from + (starts_with(t, v.from, "0x") ? 2 : 0);
        size_t n_hex = span_within(t, (Value){ from, v.to }, HEX);
        if (n_hex > 0 && n_hex <= HEX_DIGITS_MAX && from + n_hex == v.to)
                return true;
        return is_name_possible && n <= EVIDENCE_BYTES_MAX && !has_digit(t, v.from, v.to) &&
               span_within(t, v, ALNUM "_:.,()<>*&~-") == n;
}

/* Values of a field `auth` that are no secrets: a method, or a result. */
static const char *const auth_methods[] = {
        "basic", "digest",    "failed", "iam",    "kerberos", "ldap",       "munge",     "mtls",
        "oidc",  "publickey", "sasl",   "simple", "success",  "auth/munge", "auth/none",
};

/* @return whether a value is no secret: with any name (true, null, an opening bracket), or with
 * this one. */
static bool is_plain(const Scan *t, Value v, const char *name) {
        NameKind kind = name_kind(name);
        while (v.to > v.from && is_one_of(t->s[v.to - 1], ",;"))
                v.to--;
        if (kind == NAME_TOKEN && is_special_token(t, v))
                return true;
        size_t n_open = 0;
        while (n_open < v.to - v.from && n_open < BLANKS_MAX &&
               is_one_of(t->s[v.from + n_open], "[({"))
                n_open++;
        if (v.from + n_open == v.to)
                return true;
        while (v.to > v.from && is_one_of(t->s[v.to - 1], ",;)]}"))
                v.to--;
        if (v.to == v.from)
                return true;
        for (size_t k = 0; k <= n_open && v.from + k < v.to; k++)
                if (is_word(t, (Value){ v.from + k, v.to }, "[redacted"))
                        return true;
        for (size_t i = 0; i < ELEMENTSOF(plain_values); i++)
                if (is_word(t, v, plain_values[i]))
                        return true;
        for (size_t i = 0; i < ELEMENTSOF(auth_methods) && ends_in_word(name, "auth"); i++)
                if (is_word(t, v, auth_methods[i]))
                        return true;
        if (t->s[v.to - 1] == ':' && v.to - v.from <= EVIDENCE_BYTES_MAX &&
            !has_digit(t, v.from, v.to))
                return true; /* a label: `print_cred: OLD: x` */
        v.from = MIN(v.from + n_open, v.to);
        return kind != NAME_SECRET &&
               (is_number(t, v) ||
                (kind == NAME_WEAK && is_evidence(t, v, strcasestr(name, "sig") != NULL)));
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
        HOW_SETTING,    /* an argument that names a secret, and the next one */
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
        { "7z",           NULL,    'p',  HOW_GLUED },
        { "7za",          NULL,    'p',  HOW_GLUED },
        { "unrar",        NULL,    'p',  HOW_GLUED },
        { "rar",          NULL,    'p',  HOW_GLUED },
        { "sshpass",      NULL,    'p',  HOW_OPTION },
        { "mongo",        NULL,    'p',  HOW_OPTION },
        { "mongosh",      NULL,    'p',  HOW_OPTION },
        { "mongodump",    NULL,    'p',  HOW_OPTION },
        { "cqlsh",        NULL,    'p',  HOW_OPTION },
        { "redis-cli",    NULL,    'a',  HOW_OPTION },
        { "valkey-cli",   NULL,    'a',  HOW_OPTION },
        { "ldapsearch",   NULL,    'w',  HOW_OPTION },
        { "ldapadd",      NULL,    'w',  HOW_OPTION },
        { "ldapmodify",   NULL,    'w',  HOW_OPTION },
        { "ldapdelete",   NULL,    'w',  HOW_OPTION },
        { "ldapwhoami",   NULL,    'w',  HOW_OPTION },
        { "zip",          NULL,    'P',  HOW_OPTION },
        { "unzip",        NULL,    'P',  HOW_OPTION },
        { "ipmitool",     NULL,    'P',  HOW_OPTION },
        { "sqlcmd",       NULL,    'P',  HOW_OPTION },
        { "twine",        "upload", 'p', HOW_OPTION },
        { "skopeo",       "login", 'p',  HOW_OPTION },
        { "buildah",      "login", 'p',  HOW_OPTION },
        { "oras",         "login", 'p',  HOW_OPTION },
        { "az",           "login", 'p',  HOW_OPTION },
        { "oc",           "login", 'p',  HOW_OPTION },
        { "docker",       "login", 'p',  HOW_OPTION },
        { "podman",       "login", 'p',  HOW_OPTION },
        { "nerdctl",      "login", 'p',  HOW_OPTION },
        { "helm",         "login", 'p',  HOW_OPTION },
        { "curl",         NULL,    'u',  HOW_GLUED_USER },
        { "htpasswd",     NULL,    'b',  HOW_LAST },
        { "aws",          "configure", '\0', HOW_SETTING },
        { "npm",          "set",    '\0', HOW_SETTING },
        { "git",          "config", '\0', HOW_SETTING },
        { "poetry",       "config", '\0', HOW_SETTING },
        { "gcloud",       "config", '\0', HOW_SETTING },
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

static bool step_setting(Command *c, const Scan *word) {
        char name[NAME_BYTES_MAX + 1];
        size_t n = word->n, from;
        if (c->is_next) {
                c->is_next = false;
                c->form = NULL;
                return word->s[0] != '-';
        }
        for (from = n; from > 0 && n - from < NAME_BYTES_MAX && is_name_char(word->s[from - 1]);
             from--)
                ;
        memcpy(name, word->s + from, n - from);
        name[n - from] = '\0';
        c->is_next = word->s[0] != '-' && redact_name_is_secret(name);
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
        case HOW_SETTING:
                return step_setting(c, word);
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

/* ---- values on lines of their own, and lists ---- */

static size_t line_end(const Scan *t, size_t i, size_t max) {
        size_t end = MIN(t->n, i + max);
        while (i < end && t->s[i] != '\n' && t->s[i] != '\0')
                i++;
        return i;
}

/* @return whether it is `name: …`, or `name:` with nested lines, whose own names decide. */
static bool is_mapping(const Scan *t, size_t i) {
        size_t end = line_end(t, i, LINE_BYTES_MAX), k = i;
        char quote = skip_quote(t, &k);
        if (quote) {
                while (k < end && t->s[k] != quote)
                        k++;
                return k + 1 < end && t->s[skip_blanks(t, k + 1)] == ':';
        }
        for (; i < end; i++)
                if (t->s[i] == ':' && (i + 1 == end || is_one_of(t->s[i + 1], " \t\r")))
                        return true;
        return false;
}

/* Nothing but `|`, `>-` or a backslash is left of the line, and the next one is indented.
 * @return whether the value begins there, and *i at its place */
static bool skip_to_block(const Scan *t, size_t *i, bool *ret_is_continued) {
        size_t k = skip_space(t, *i, "|>+- \t\\");
        *ret_is_continued = k > *i && t->s[k - 1] == '\\';
        k += k < t->n && t->s[k] == '\r';
        if (k + 1 >= t->n || t->s[k] != '\n' || !is_one_of(t->s[k + 1], " \t\"'"))
                return false;
        *i = skip_space(t, k + 1, " \t");
        return true;
}

/* The lines from i on that are indented as the first one is, or more. */
static size_t end_of_block(const Scan *t, size_t i) {
        size_t indent = 0, end = line_end(t, i, SIZE_MAX - i);
        while (indent < i && is_blank(t->s[i - indent - 1]))
                indent++;
        while (end < t->n && t->s[end] == '\n') {
                size_t k = end + 1;
                while (k < t->n && k - end <= indent && is_blank(t->s[k]))
                        k++;
                if (k - end <= indent || k == t->n || is_one_of(t->s[k], "\r\n"))
                        break;
                end = line_end(t, k, SIZE_MAX - k);
        }
        return end;
}

/* @return where a list of strings that begins at i ends, before its bracket; 0: none does */
static size_t end_of_list(const Scan *t, size_t i) {
        if (i >= t->n || !is_one_of(t->s[i], "[("))
                return 0;
        size_t k = skip_space(t, i + 1, " \t\r\n\\");
        if (!skip_opening_quote(t, &k))
                return 0;
        char quote = t->s[k - 1];
        for (bool is_inside = true; k < t->n; k++)
                if (t->s[k] == quote && t->s[k - 1] != '\\')
                        is_inside = !is_inside;
                else if (!is_inside && is_one_of(t->s[k], "])"))
                        return k;
        return t->n;
}

/* `machine HOST login USER password X` of .netrc, on one line or several. */
static bool is_in_netrc(const Scan *t, size_t i) {
        static const char *const keys[] = { "machine", "login", "account" };
        for (unsigned n_pairs = 0; n_pairs < 3; n_pairs++) {
                Value word[2]; /* what a key has, and the key */
                for (unsigned k = 0; k < 2; k++) {
                        size_t end = i, least = i > WORD_BYTES_MAX ? i - WORD_BYTES_MAX : 0;
                        while (end > least && is_one_of(t->s[end - 1], " \t\r\n"))
                                end--;
                        size_t from = end;
                        while (from > least && !is_one_of(t->s[from - 1], " \t\r\n"))
                                from--;
                        if (end == i || from == end)
                                return false;
                        word[k] = (Value){ from, end };
                        if (k == 0 && n_pairs > 0 && is_word(t, word[0], "default"))
                                return true;
                        i = from;
                }
                if (is_word(t, word[1], keys[0]))
                        return true;
                if (!is_word(t, word[1], keys[1]) && !is_word(t, word[1], keys[2]))
                        return false;
        }
        return false;
}

/* Finds the start of a name's value. @param at  offset of the name
 * @return whether there is a value; its offset is in *ret_i */
static bool find_value_start(const Scan *t, const char *name, Value at, size_t *ret_i) {
        size_t i = at.to;
        if (skip_separator(t, &i) || (at.from > 0 && is_one_of(t->s[at.from - 1], "<:") &&
                                      i < t->n && t->s[i] == '>' && i++)) {
                *ret_i = i;
                return true;
        }
        bool is_netrc = strcmp(name, "password") == 0 && is_in_netrc(t, at.from);
        size_t k = is_netrc ? skip_space(t, i, " \t\r\n") : skip_blanks(t, i);
        bool is_continued;
        if (name[0] == '-' && skip_to_block(t, &k, &is_continued) && !is_continued)
                return false;
        *ret_i = k;
        return k > i && k < t->n && !starts_with(t, k, "--") &&
               (is_netrc || name[0] == '-' || strcasecmp(name, "bearer") == 0);
}

/* Where the value that begins at *i ends. A quote, brackets and an indented block are known by
 * their beginning. @return 0: what follows is a mapping, not a value */
static size_t find_value_end(const Scan *t, size_t *i, ValueForm form) {
        bool is_continued = false;
        bool is_block = !form.is_line && skip_to_block(t, i, &is_continued) && !is_continued;
        if (is_block && is_mapping(t, *i))
                return 0;
        size_t list = end_of_list(t, *i);
        if (list > 0) {
                ++*i;
                return list;
        }
        char quote = skip_opening_quote(t, i);
        if (quote)
                form.quote = quote;
        else if (is_block)
                return end_of_block(t, *i);
        return end_of_value(t, *i, form);
}

/* With openssl(1) `pass:X` is a password; these name the place of one. */
static bool is_reference(const Scan *t, size_t i) {
        return starts_with(t, i, "env:") || starts_with(t, i, "file:") ||
               starts_with(t, i, "fd:") || starts_with(t, i, "stdin");
}

/* The value that follows a name. @param at  the name's place @return whether there is one to remove
 */
static bool find_value(Scan *whole, const char *name, Value at, Value *ret) {
        bool is_user = is_user_option(name), is_bearer = strcasecmp(name, "bearer") == 0;
        Scan bounded = *whole, *t = &bounded;
        size_t i;
        if (is_user) /* its value may stay, and is scanned again then */
                bounded.n = MIN(whole->n, at.to + REDACT_URL_BYTES_MAX);
        if ((!is_user && !is_bearer && !is_secret_name(name)) ||
            !find_value_start(t, name, at, &i) || i >= t->n)
                return false;
        char before = at.from > 0 ? t->s[at.from - 1] : '\0';
        ValueForm form = { .is_query = is_one_of(before, "?&"),
                           .is_line = is_header(name) && t->s[at.to] != '=' };
        if (form.is_line && name_kind(name) == NAME_WEAK) { /* `cookie: 17, flags 3` */
                Value word = { i, end_of_value(t, i, (ValueForm){ 0 }) };
                if (is_plain(t, word, name))
                        return false;
        }
        if (is_one_of(before, "<:") && t->s[i - 1] == '>')
                form.quote = '<';
        if (is_user && !is_one_of(t->s[i], "\"'`"))
                *ret = (Value){ i, scan_ahead(t, &whole->value, i, t->n, " \t\r\n\"'`", '\0') };
        else {
                size_t end = find_value_end(t, &i, form);
                *ret = (Value){ i, end };
        }
        if (ret->to <= ret->from || is_reference(t, ret->from))
                return false;
        while (ret->to > ret->from + 1 && t->s[ret->to - 1] == '\\')
                ret->to--; /* of the closing `\"` */
        pass_pem_block(t, ret);
        if (is_user)
                return is_user_and_password(t, *ret);
        if (is_bearer && name[0] != '-' && ret->to - ret->from < BEARER_BYTES_MIN)
                return false;
        return (form.is_query && name_kind(name) == NAME_WEAK) || !is_plain(t, *ret, name);
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
                        v.to += match_pgpass(t, i, &v.from);
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
        if (!is_secret_name(name))
                return ARG_PLAIN;
        *ret_value = k + 1;
        if (k < n) {
                Scan t = { .s = arg, .n = n };
                Value v = { .from = k + 1, .to = n };
                return is_plain(&t, v, name) ? ARG_PLAIN : ARG_HAS_SECRET;
        }
        if (arg[0] != '-')
                return ARG_PLAIN;
        return name_kind(name) == NAME_TOKEN ? ARG_NEXT_IS_TOKEN : ARG_NEXT_IS_SECRET;
}

static bool is_secret_after(ArgKind before, const char *arg, size_t n) {
        Scan t = { .s = arg, .n = n };
        Value v = { .to = n };
        if (before == ARG_NEXT_IS_USER)
                return is_user_and_password(&t, v);
        return (before == ARG_NEXT_IS_SECRET || before == ARG_NEXT_IS_TOKEN) &&
               !starts_with(&t, 0, "--") && !is_reference(&t, 0) &&
               !is_plain(&t, v, before == ARG_NEXT_IS_TOKEN ? "token" : "");
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
