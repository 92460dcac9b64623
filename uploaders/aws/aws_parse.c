#include "uploaders/aws/aws_parse.h"

#include <errno.h>
#include <jansson.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "lib/base/cleanup.h"
#include "lib/base/parse.h"
#include "uploaders/aws/credentials_secret.h"

/* strptime(3) alone accepts blanks and single digits. The program never calls setlocale(3), so the
 * names of months are English.
 * @param shape  `0` stands for a digit, `a` for a letter; a prefix of the text */
static bool has_shape(const char *text, const char *shape) {
        for (; *shape; shape++, text++) {
                bool is_letter = (*text | 0x20) >= 'a' && (*text | 0x20) <= 'z';
                bool is_digit = *text >= '0' && *text <= '9';

                if (*shape == '0' ? !is_digit : *shape == 'a' ? !is_letter : *text != *shape)
                        return false;
        }
        return true;
}

/* @param ret  seconds since 1970, may be negative. @return what follows in the text, NULL when it
 *   is no date */
static const char *read_date(const char *text, const char *format, int64_t *ret) {
        struct tm tm = { 0 };
        const char *end = strptime(text, format, &tm);
        int day = tm.tm_mday, second = tm.tm_sec;

        if (!end || second > 60 /* a leap second */)
                return NULL;
        tm.tm_sec = 0;
        *ret = timegm(&tm) + second;
        return tm.tm_mday == day ? end : NULL; /* else a day that the month does not have */
}

/* What follows the seconds: digits behind a point, of which six count. */
static const char *read_fraction(const char *text, uint64_t *ret_usec) {
        char digits[] = "000000";
        size_t n = strspn(text + (*text == '.'), "0123456789");

        *ret_usec = 0;
        if (*text != '.')
                return text;
        memcpy(digits, text + 1, MIN(n, strlen(digits)));
        *ret_usec = strtoul(digits, NULL, 10);
        return n > 0 ? text + 1 + n : NULL;
}

#define MAX_ZONE_SECONDS (14L * 3600)

int aws_time_parse(const char *text, uint64_t *ret_usec) {
        struct tm zone = { 0 };
        uint64_t usec;
        int64_t seconds;

        if (!has_shape(text, "0000-00-00T00:00:00"))
                return -EINVAL;
        text = read_date(text, "%Y-%m-%dT%H:%M:%S", &seconds);
        if (text)
                text = read_fraction(text, &usec);
        if (text && *text != ' ')
                text = strptime(text, "%z", &zone);
        if (!text || *text || labs(zone.tm_gmtoff) > MAX_ZONE_SECONDS || seconds < zone.tm_gmtoff)
                return -EINVAL;
        *ret_usec = (uint64_t)(seconds - zone.tm_gmtoff) * USEC_PER_SEC + usec;
        return 0;
}

int http_date_parse(const char *text, uint64_t *ret_usec) {
        static const char shape[] = "aaa, 00 aaa 0000 00:00:00 GMT";
        int64_t seconds;

        if (strlen(text) != strlen(shape) || !has_shape(text, shape) ||
            !read_date(text + strlen("Wed, "), "%d %b %Y %H:%M:%S", &seconds) || seconds < 0)
                return -EINVAL;
        *ret_usec = (uint64_t)seconds * USEC_PER_SEC;
        return 0;
}

#define MAX_QUOTED_BYTES 200 /* of a service's own words */

/* @return NULL when it is not there, no string, or empty */
static const char *get_text(const json_t *object, const char *name) {
        const char *text = json_string_value(json_object_get(object, name));

        return text && *text ? text : NULL;
}

/* IMDS answers 200 with a Code that is not Success, e.g. AssumeRoleUnauthorizedAccess when the
 * role does not trust EC2. */
static char *check_members(CredentialsJsonKind kind, const json_t *object, const AwsKeys *keys) {
        const json_t *version = json_object_get(object, "Version");
        const char *code = get_text(object, "Code"), *message = get_text(object, "Message");

        if (kind == CREDENTIALS_JSON_PROCESS && !version)
                return format_sentence("its JSON has no \"Version\": it must be 1");
        if (kind == CREDENTIALS_JSON_PROCESS && json_integer_value(version) != 1)
                return format_sentence("the \"Version\" of its JSON is not 1");
        if (kind == CREDENTIALS_JSON_SERVICE && code && strcmp(code, "Success") != 0)
                return format_sentence("it reports %.*s%s%.*s", MAX_QUOTED_BYTES, code,
                                       message ? ": " : "", MAX_QUOTED_BYTES,
                                       message ? message : "");
        if (!keys->access_key || !keys->secret_key)
                return format_sentence("its JSON has no \"%s\"",
                                       keys->access_key ? "SecretAccessKey" : "AccessKeyId");
        return NULL;
}

int credentials_json_read(CredentialsSet *ret, CredentialsJsonKind kind, const char *text,
                          char **ret_error) {
        json_auto_t *object = json_loads(text, 0, NULL);
        const char *expiration = get_text(object, "Expiration");
        const AwsKeys keys = {
                .access_key = get_text(object, "AccessKeyId"),
                .secret_key = get_text(object, "SecretAccessKey"),
                .token = get_text(object,
                                  kind == CREDENTIALS_JSON_PROCESS ? "SessionToken" : "Token"),
        };
        uint64_t expires_usec = 0;

        *ret_error = json_is_object(object)
                             ? check_members(kind, object, &keys)
                             : format_sentence("it did not answer with a JSON object");
        if (*ret_error)
                return -EINVAL;
        if (expiration && aws_time_parse(expiration, &expires_usec) < 0) {
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
