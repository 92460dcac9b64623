/* Reads a tree into a configuration. Private to config/. */
#pragma once

#include <stdbool.h>

#include "config/config.h"
#include "config/faults.h"
#include "config/keys.h"
#include "config/load.h"
#include "lib/base/strbuf.h"

typedef struct ConfigReader {
        Config *config;
        Faults *faults;
        char *const *environment; /* NAME=VALUE, for ${NAME} */
        bool whole;               /* false: the tree was cut, so a missing key is no fault */
} ConfigReader;

/** Fills the configuration, whose defaults are set and whose origins are empty.
 * @param root  may be NULL: an empty file  @return 0 or -errno; faults are added */
int config_read_tree(ConfigReader *r, const LoadNode *root);

/* ---- ${NAME} in string values ---- */

enum { EXPAND_E_FAULTY = 1, EXPAND_MAX = 64 * 1024 };

/** Replaces each `${NAME}`; `$${` becomes `${` (of several `$` before a `{` one is dropped). The
 * inserted value is not expanded again. @param environment  NAME=VALUE, NULL-terminated; may be
 * NULL
 * @return 0 and *ret (the caller's); EXPAND_E_FAULTY: *fault says why; -ENOMEM */
int expand(const char *text, char *const *environment, char **ret, StrBuf *fault);

/** @return the row whose name is most like an unknown one: a key of the same mapping, else one of
 * exactly this name elsewhere; NULL: none */
const ConfigKey *key_suggest(const char *prefix, const char *leaf);
