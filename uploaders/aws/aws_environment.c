/* The environment as the constructor was given it: copied into secret memory, since it may hold
 * keys and tokens, and read from there. Which variables mean what is left to the callers. */
#include "uploaders/aws/aws_environment.h"

#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "lib/base/cleanup.h"
#include "lib/base/digest.h"
#include "uploaders/aws/credentials_secret.h"

#define MAX_ENVIRONMENT_BYTES ((size_t)(16 * MIB))

char **aws_environment_copy(char *const *environment) {
        size_t n = 0, n_bytes = 0;

        for (; environment[n]; n++) {
                n_bytes += strlen(environment[n]) + 1;
                if (n_bytes > MAX_ENVIRONMENT_BYTES)
                        return NULL;
        }
        char **copy = credentials_secret_new((n + 1) * sizeof *copy + n_bytes);
        if (!copy)
                return NULL;
        char *to = (char *)(copy + n + 1);
        for (size_t i = 0; i < n; i++) {
                copy[i] = to;
                to = stpcpy(to, environment[i]) + 1;
        }
        return copy;
}

/* @return the value in place, NULL when it is another variable */
static char *value_in(char *variable, const char *name) {
        size_t n = strlen(name);
        return strncmp(variable, name, n) == 0 && variable[n] == '=' ? variable + n + 1 : NULL;
}

char **aws_environment_own(char **environment) {
        static const char *const secrets[] = { "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN",
                                               "AWS_CONTAINER_AUTHORIZATION_TOKEN" };
        char **copy = aws_environment_copy(environment);
        for (size_t i = 0; copy && environment[i]; i++)
                for (size_t k = 0; k < ELEMENTSOF(secrets); k++) {
                        char *value = value_in(environment[i], secrets[k]);
                        if (value)
                                digest_wipe(value, strlen(value));
                }
        return copy;
}

char **aws_environment_without_keys(char *const *environment) {
        static const char *const keys[] = { "AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY",
                                            "AWS_SESSION_TOKEN" };
        size_t n = 0, n_kept = 0;
        while (environment[n])
                n++;
        char **kept = calloc(n + 1, sizeof *kept);
        for (size_t i = 0; kept && i < n; i++) {
                bool is_key = false;
                for (size_t k = 0; k < ELEMENTSOF(keys); k++)
                        is_key = is_key || value_in(environment[i], keys[k]);
                if (!is_key)
                        kept[n_kept++] = environment[i];
        }
        return kept;
}

const char *aws_environment_get(char *const *environment, const char *name) {
        for (; *environment; environment++) {
                const char *value = value_in(*environment, name);
                if (value)
                        return *value ? value : NULL;
        }
        return NULL;
}

bool aws_environment_is_true(char *const *environment, const char *name) {
        const char *value = aws_environment_get(environment, name);

        return value && strcasecmp(value, "true") == 0;
}
