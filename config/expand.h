/* ${NAME} in string values, from an environment that is given. Pure text. */
#pragma once

#include "lib/base/strbuf.h"

enum { EXPAND_E_FAULTY = 1, EXPAND_MAX = 64 * 1024 };

/** Replaces each `${NAME}`; `$${` becomes `${` (of several `$` before a `{` one is dropped); what is put in is not looked
 * at again. @param environment  NAME=VALUE, NULL-terminated; may be NULL
 * @return 0 and *ret (the caller's); EXPAND_E_FAULTY: *fault says why; -ENOMEM */
int expand(const char *text, char *const *environment, char **ret, StrBuf *fault);
