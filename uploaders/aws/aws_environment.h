/* The environment as the constructor was given it: copied into secret memory, since it may hold
 * keys and tokens. */
#pragma once

#include <stdbool.h>

/** @return a NULL-terminated list in one block, for credentials_secret_free(); NULL for lack of
 *   memory or above 16 MiB */
char **aws_environment_copy(char *const *environment);

/** As aws_environment_copy(), and overwrites the secrets in the original, so that they are neither
 * in /proc/PID/environ nor in a core file any more. For the program's own environment, once,
 * before there are threads. */
char **aws_environment_own(char **environment);

/** The list without access keys, for programs that are run: what they are run for is to find
 * others.
 * @return a list that borrows the strings, to be freed; NULL for lack of memory */
char **aws_environment_without_keys(char *const *environment);

/** @return the value (borrowed); NULL when it is unset or empty: the SDKs make no difference */
const char *aws_environment_get(char *const *environment, const char *name);

/** @return whether it says `true`, in any case */
bool aws_environment_is_true(char *const *environment, const char *name);
