/* Parses what gives credentials: the JSON that services and programs answer with, and the command
 * line of such a program. Pure; who is asked, and when, is left to credentials.c. */
#include "uploaders/aws/credentials_parse.h"

#include <errno.h>
#include <jansson.h>
#include <stdlib.h>
#include <string.h>

#include "lib/base/cleanup.h"
#include "uploaders/aws/aws_parse.h"

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

int credentials_parse_json(CredentialsSet *ret, CredentialsJsonKind kind, const char *text,
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

int credentials_parse_command(const char *text, char ***ret, const char **ret_error) {
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
