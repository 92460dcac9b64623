/* A command line taken apart as the AWS CLI does it for `credential_process`: the quoting of a POSIX shell, and nothing else of one. Pure.
 * @see Python's shlex.split(), which the CLI uses */
#pragma once

#include <stddef.h>

/** @param ret  NULL-terminated, one block for free()  @param ret_fault  with -EINVAL: a static text of what is wrong
 * @return 0, -EINVAL (a quotation or backslash that does not end; no word at all), -ENOMEM */
int credentials_words_split(const char *text, char ***ret, const char **ret_fault);
