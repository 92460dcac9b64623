/* Not by strptime(), which asks the locale. */
#include "uploaders/aws/aws_parse.h"

#include <errno.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "lib/base/cleanup.h"
#include "lib/base/parse.h"
#include "uploaders/aws/credentials_secret.h"

typedef struct Moment {
        unsigned year, month, day, hour, minute, second; /* month and day from 1 */
} Moment;

/* Reads exactly n digits and moves *s behind them. */
static int digits(const char **s, unsigned n, unsigned *ret) {
        unsigned value = 0;

        for (; n > 0; n--, (*s)++) {
                if (**s < '0' || **s > '9')
                        return -EINVAL;
                value = 10 * value + (unsigned)(**s - '0');
        }
        *ret = value;
        return 0;
}

static int word(const char **s, const char *expected) {
        size_t n = strlen(expected);

        if (strncmp(*s, expected, n) != 0)
                return -EINVAL;
        *s += n;
        return 0;
}

static int moment_seconds(const Moment *m, uint64_t *ret) {
        struct tm tm = { .tm_year = (int)m->year - 1900,
                         .tm_mon = (int)m->month - 1,
                         .tm_mday = (int)m->day,
                         .tm_hour = (int)m->hour,
                         .tm_min = (int)m->minute };

        if (m->year < 1970 || m->month < 1 || m->month > 12 || m->hour > 23 || m->minute > 59 ||
            m->second > 60 /* a leap second */)
                return -EINVAL;
        *ret = (uint64_t)timegm(&tm) + m->second;
        /* else a day that the month does not have */
        return tm.tm_mday == (int)m->day ? 0 : -EINVAL;
}

static int clock_time(const char **s, Moment *m) {
        if (digits(s, 2, &m->hour) < 0 || word(s, ":") < 0 || digits(s, 2, &m->minute) < 0 ||
            word(s, ":") < 0 || digits(s, 2, &m->second) < 0)
                return -EINVAL;
        return 0;
}

/* What follows the seconds: digits behind a point, of which six count. */
static int fraction(const char **s, uint64_t *ret_usec) {
        uint64_t unit = USEC_PER_SEC, usec = 0;

        *ret_usec = 0;
        if (**s != '.')
                return 0;
        if (*++*s < '0' || **s > '9')
                return -EINVAL;
        for (; **s >= '0' && **s <= '9'; (*s)++) {
                unit /= 10;
                usec += unit * (uint64_t)(**s - '0');
        }
        *ret_usec = usec;
        return 0;
}

/* `Z`, `+01:00`, `-0800`. @param ret_minutes  east of Greenwich */
static int zone(const char *s, int *ret_minutes) {
        int sign = *s == '-' ? -1 : 1;
        unsigned hours, minutes;

        *ret_minutes = 0;
        if (strcmp(s, "Z") == 0)
                return 0;
        if (*s != '+' && *s != '-')
                return -EINVAL;
        s++;
        if (digits(&s, 2, &hours) < 0)
                return -EINVAL;
        s += *s == ':';
        if (digits(&s, 2, &minutes) < 0 || *s != '\0' || hours > 14 || minutes > 59)
                return -EINVAL;
        *ret_minutes = sign * (int)(hours * 60 + minutes);
        return 0;
}

int aws_time_parse(const char *text, uint64_t *ret_usec) {
        Moment m;
        uint64_t seconds, usec;
        int minutes;

        if (digits(&text, 4, &m.year) < 0 || word(&text, "-") < 0 ||
            digits(&text, 2, &m.month) < 0 || word(&text, "-") < 0 || digits(&text, 2, &m.day) < 0)
                return -EINVAL;
        if (word(&text, "T") < 0 || clock_time(&text, &m) < 0 || fraction(&text, &usec) < 0 ||
            zone(text, &minutes) < 0 || moment_seconds(&m, &seconds) < 0)
                return -EINVAL;
        if (minutes > 0 && seconds < (uint64_t)minutes * 60)
                return -EINVAL;
        seconds -= (uint64_t)((int64_t)minutes * 60); /* wraps back for the west */
        *ret_usec = seconds * USEC_PER_SEC + usec;
        return 0;
}

static int month_name(const char **s, unsigned *ret) {
        static const char names[] = "JanFebMarAprMayJunJulAugSepOctNovDec";

        for (unsigned i = 0; i < 12; i++)
                if (strncmp(*s, names + (size_t)3 * i, 3) == 0) {
                        *s += 3;
                        *ret = i + 1;
                        return 0;
                }
        return -EINVAL;
}

int http_date_parse(const char *text, uint64_t *ret_usec) {
        Moment m;
        uint64_t seconds;

        if (strlen(text) != strlen("Wed, 27 May 2026 05:12:33 GMT"))
                return -EINVAL;
        text += 3; /* the day of the week, which the date makes superfluous */
        if (word(&text, ", ") < 0 || digits(&text, 2, &m.day) < 0 || word(&text, " ") < 0 ||
            month_name(&text, &m.month) < 0 || word(&text, " ") < 0)
                return -EINVAL;
        if (digits(&text, 4, &m.year) < 0 || word(&text, " ") < 0 || clock_time(&text, &m) < 0 ||
            strcmp(text, " GMT") != 0 || moment_seconds(&m, &seconds) < 0)
                return -EINVAL;
        *ret_usec = seconds * USEC_PER_SEC;
        return 0;
}

#define MAX_QUOTED_BYTES 200 /* of a service's own words */
#define MAX_DEPTH 16

typedef struct Reader {
        const char *at;
        char *to; /* where the next string is spelled out: secret memory, as large as the text */
} Reader;

typedef struct Member {
        const char *name, *string,
                *bare; /* the value: a string, or a number or word as it stands in the text */
        size_t n_bare;
} Member;

/* What is looked for; NULL = not there, or no string, or an empty one. */
typedef struct JsonCredentials {
        const char *access_key, *secret_key, *token, *session_token, *expiration, *code, *message;
        bool has_version, is_version_1;
} JsonCredentials;

static char peek_char(Reader *r) {
        r->at += strspn(r->at, " \t\r\n");
        return *r->at;
}

static bool consume(Reader *r, char c) {
        if (peek_char(r) != c)
                return false;
        r->at++;
        return true;
}

/* A character after a backslash; beyond ASCII all are `?`, since no key has one and a message can
 * do without. */
static bool read_escape(Reader *r) {
        static const char letters[] = "\"\\/bfnrt", meant[] = "\"\\/\b\f\n\r\t";
        char hex[5] = "";
        uint8_t code[2];
        const char *at;

        if (*r->at == 'u') {
                (void)strncpy(hex, r->at + 1,
                              4); /* shorter at the text's end: then it is no number */
                if (parse_hex_bytes(hex, code, sizeof code) < 0)
                        return false;
                *r->to++ = code[0] == 0 && code[1] > 0 && code[1] < 0x80 ? (char)code[1] : '?';
                r->at += 5;
                return true;
        }
        at = *r->at ? strchr(letters, *r->at) : NULL;
        if (!at)
                return false;
        *r->to++ = meant[at - letters];
        r->at++;
        return true;
}

static bool read_value(Reader *r, unsigned depth, Member *ret);

static bool read_string(Reader *r, const char **ret) {
        if (!consume(r, '"'))
                return false;
        *ret = r->to;
        while (*r->at != '"') {
                if ((unsigned char)*r->at < ' ') /* the text's end among them */
                        return false;
                if (*r->at != '\\') {
                        *r->to++ = *r->at++;
                        continue;
                }
                r->at++;
                if (!read_escape(r))
                        return false;
        }
        r->at++;
        *r->to++ = '\0';
        return true;
}

/* An object or array that holds nothing for us. */
static bool skip_nested(Reader *r, unsigned depth) {
        bool is_object = *r->at++ == '{';
        char end = is_object ? '}' : ']';
        const char *name;
        Member ignored;

        if (depth >= MAX_DEPTH)
                return false;
        if (consume(r, end))
                return true;
        do {
                if (is_object && (!read_string(r, &name) || !consume(r, ':')))
                        return false;
                if (!read_value(r, depth + 1, &ignored))
                        return false;
        } while (consume(r, ','));
        return consume(r, end);
}

static bool read_value(Reader *r, unsigned depth, Member *ret) {
        ret->string = ret->bare = NULL;
        ret->n_bare = 0;
        switch (peek_char(r)) {
        case '"':
                return read_string(r, &ret->string);
        case '{':
        case '[':
                return skip_nested(r, depth);
        default:
                ret->bare = r->at;
                ret->n_bare = strspn(r->at, "-+.0123456789abcdefghijklmnopqrstuvwxyzE");
                r->at += ret->n_bare;
                return ret->n_bare > 0;
        }
}

static void record_member(JsonCredentials *f, const Member *m) {
        const struct {
                const char *name, **value;
        } wanted[] = {
                { "AccessKeyId", &f->access_key },
                { "SecretAccessKey", &f->secret_key },
                { "Token", &f->token },
                { "SessionToken", &f->session_token },
                { "Expiration", &f->expiration },
                { "Code", &f->code },
                { "Message", &f->message },
        };

        for (size_t i = 0; i < ELEMENTSOF(wanted); i++)
                if (strcmp(m->name, wanted[i].name) == 0)
                        *wanted[i].value = m->string && *m->string ? m->string : NULL;
        if (strcmp(m->name, "Version") == 0) {
                f->has_version = true;
                f->is_version_1 = m->n_bare == 1 && *m->bare == '1';
        }
}

/* @return whether the text is one object and nothing else */
static bool read_object(Reader *r, JsonCredentials *ret) {
        Member m;

        if (!consume(r, '{'))
                return false;
        if (!consume(r, '}')) {
                do {
                        if (!read_string(r, &m.name) || !consume(r, ':') || !read_value(r, 0, &m))
                                return false;
                        record_member(ret, &m);
                } while (consume(r, ','));
                if (!consume(r, '}'))
                        return false;
        }
        return peek_char(r) == '\0';
}

/* IMDS answers 200 with a Code that is not Success, e.g. AssumeRoleUnauthorizedAccess when the
 * role does not trust EC2. */
static char *check_members(CredentialsJsonKind kind, const JsonCredentials *f) {
        if (kind == CREDENTIALS_JSON_PROCESS && !f->has_version)
                return format_sentence("its JSON has no \"Version\": it must say 1");
        if (kind == CREDENTIALS_JSON_PROCESS && !f->is_version_1)
                return format_sentence("the \"Version\" of its JSON is not 1");
        if (kind == CREDENTIALS_JSON_SERVICE && f->code && strcmp(f->code, "Success") != 0)
                return format_sentence("it says %.*s%s%.*s", MAX_QUOTED_BYTES, f->code,
                                       f->message ? ": " : "", MAX_QUOTED_BYTES,
                                       f->message ? f->message : "");
        if (!f->access_key || !f->secret_key)
                return format_sentence("its JSON has no \"%s\"",
                                       f->access_key ? "SecretAccessKey" : "AccessKeyId");
        return NULL;
}

static int accept_found(CredentialsSet *ret, CredentialsJsonKind kind, const JsonCredentials *f,
                        char **ret_error) {
        const AwsKeys keys = {
                .access_key = f->access_key,
                .secret_key = f->secret_key,
                .token = kind == CREDENTIALS_JSON_PROCESS ? f->session_token : f->token,
        };
        uint64_t expires_usec = 0;

        *ret_error = check_members(kind, f);
        if (*ret_error)
                return -EINVAL;
        if (f->expiration && aws_time_parse(f->expiration, &expires_usec) < 0) {
                *ret_error = format_sentence("the \"Expiration\" of its JSON is not a time such as "
                                             "2026-05-27T05:21:35Z");
                return -EINVAL;
        }
        int r = credentials_set_init(ret, &keys, expires_usec);
        if (r == -EINVAL)
                *ret_error = format_sentence("a key or token in its JSON has characters that none "
                                             "can have, or is too long");
        return r;
}

int credentials_json_read(CredentialsSet *ret, CredentialsJsonKind kind, const char *text,
                          char **ret_error) {
        /* No string is longer than it stands in the text, where its quotes make room for the
         * NUL. */
        _cleanup_(credentials_secret_freep) char *strings =
                credentials_secret_new(strlen(text) + 1);
        Reader r = { .at = text, .to = strings };
        JsonCredentials found = { 0 };

        *ret_error = NULL;
        if (!strings)
                return -ENOMEM;
        if (read_object(&r, &found))
                return accept_found(ret, kind, &found, ret_error);
        *ret_error = format_sentence("it did not answer with a JSON object");
        return -EINVAL;
}

/* Copies one word without its quotes to `to` and ends it.
 * @return where it ended in the text, NULL with *ret_error */
static const char *copy_word(const char *from, char **to, const char **ret_error) {
        char quote = 0;

        for (; *from; from++) {
                if (!quote && strchr(" \t\r\n", *from))
                        break;
                if (quote ? *from == quote : *from == '"' || *from == '\'') {
                        quote = quote ? 0 : *from;
                        continue;
                }
                /* Between double quotes a backslash is one unless it stands before a quote or
                 * another. */
                if (*from == '\\' &&
                    (!quote || (quote == '"' && (from[1] == '"' || from[1] == '\\')))) {
                        from++;
                        if (!*from) {
                                *ret_error = "it ends in a backslash";
                                return NULL;
                        }
                }
                *(*to)++ = *from;
        }
        if (quote) {
                *ret_error = "a quotation does not end";
                return NULL;
        }
        *(*to)++ = '\0';
        return from;
}

int credentials_words_split(const char *text, char ***ret, const char **ret_error) {
        size_t n_text = strlen(text), max_words = n_text / 2 + 1, n = 0;

        /* The words together with their NULs are never longer than the text with its own. */
        char **words = malloc((max_words + 1) * sizeof *words + n_text + 1);
        if (!words)
                return -ENOMEM;
        char *to = (char *)(words + max_words + 1);
        for (;;) {
                text += strspn(text, " \t\r\n");
                if (!*text)
                        break;
                words[n++] = to;
                text = copy_word(text, &to, ret_error);
                if (!text) {
                        free(words);
                        return -EINVAL;
                }
        }
        if (n == 0) {
                free(words);
                *ret_error = "it is empty";
                return -EINVAL;
        }
        words[n] = NULL;
        *ret = words;
        return 0;
}
