/* A NAME=VALUE list, as environ is one, that may hold secrets. */
#pragma once

#include <stdbool.h>

/** @return a NULL-terminated list in one block, for credentials_secret_free(); NULL for lack of
 *   memory or above 16 MiB */
char **aws_environment_copy(char *const *environment);

/** Copies it, and overwrites the secrets in the original, so that they are neither in
 * /proc/PID/environ nor in a core file any more. For the program's own environment, once, before
 * there are threads.
 * @return as aws_environment_copy() */
char **aws_environment_own(char **environment);

/** @return the value (borrowed); NULL when it is unset or empty: the SDKs make no difference */
const char *aws_environment_get(char *const *environment, const char *name);

/** @return whether it says `true`, in any case */
bool aws_environment_is_true(char *const *environment, const char *name);

/** The list without access keys, for programs that are run to find others.
 * @return a list that borrows the strings, to be freed; NULL for lack of memory */
char **aws_environment_without_keys(char *const *environment);
