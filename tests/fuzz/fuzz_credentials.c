/* What credentials are read from: the shared files, the line of a credential_process, the JSON of
 * services. Beyond not crashing: what is found lies inside of the text, is trimmed and ended; words
 * are no longer than their line; keys that are taken can be sent in a header. */
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "lib/base/cleanup.h"
#include "uploaders/aws/aws_profile.h"
#include "uploaders/aws/credentials_parse.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

static void check(bool claim) {
        if (!claim)
                abort();
}

static void check_words(const char *line) {
        const char *fault = NULL;
        char **words = NULL;
        size_t n_bytes = 0;

        if (credentials_parse_command(line, &words, &fault) < 0) {
                check(fault != NULL);
                return;
        }
        for (char **w = words; *w; w++)
                n_bytes += strlen(*w) + 1;
        check(words[0] && n_bytes <= strlen(line) + 1);
        free(words);
}

static void check_profile(AwsProfileFormat format, const uint8_t *data, size_t n) {
        static const char *const profiles[] = { "default", "x", "my upload", "" };
        static const char *const keys[] = { "a", "aws_access_key_id", "credential_process", "s3",
                                            "services" };
        char *text = malloc(n + 1);
        AwsProfileFile f;

        check(text != NULL);
        if (n > 0)
                memcpy(text, data, n);
        text[n] = '\0';
        check(aws_profile_parse(&f, format, text, n) == 0);
        check((f.fault == NULL) == (f.error_line == 0) && f.error_line <= n + 1);
        for (size_t i = 0; i < ELEMENTSOF(profiles); i++)
                for (size_t j = 0; j < ELEMENTSOF(keys); j++) {
                        const char *value = aws_profile_get(&f, profiles[i], keys[j]);
                        unsigned line = aws_profile_line(&f, profiles[i], keys[j]);

                        check((value == NULL) == (line == 0) && line <= n + 1);
                        if (!value)
                                continue;
                        size_t n_value = strlen(value);
                        check(aws_profile_has(&f, profiles[i]) &&
                              !aws_profile_is_misspelt(&f, profiles[i]));
                        check(value > text && n_value > 0 && value + n_value <= text + n);
                        check(!strchr(" \t\r", value[0]) && !strchr(" \t\r\n", value[n_value - 1]));
                        check_words(value);
                }
        aws_profile_done(&f);
        free(text);
}

static void check_json(CredentialsJsonKind kind, const char *text) {
        CredentialsSet set = { 0 };
        char *fault = NULL;

        int r = credentials_parse_json(&set, kind, text, &fault);
        check((r == 0) == (fault == NULL));
        if (r == 0) {
                for (const char *c = set.access_key; *c; c++)
                        check(*c > ' ' && *c <= '~');
                check(set.access_key[0] && set.secret_key[0] &&
                      strlen(set.secret_key) <= strlen(text));
        }
        credentials_set_done(&set);
        free(fault);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n) {
        if (n > AWS_PROFILE_MAX_BYTES)
                return 0;
        check_profile(AWS_PROFILE_CONFIG, data, n);
        check_profile(AWS_PROFILE_CREDENTIALS, data, n);
        char *text = n > 0 ? strndup((const char *)data, n) : strdup("");
        check(text != NULL);
        check_words(text);
        check_json(CREDENTIALS_JSON_PROCESS, text);
        check_json(CREDENTIALS_JSON_SERVICE, text);
        free(text);
        return 0;
}
