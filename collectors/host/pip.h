/* The Python distributions of a root. */
#pragma once

#include <stdbool.h>

#include "collectors/host/package_root.h"

/** Records the distributions in the usual places of a root. */
void pip_list(PackageRoot *root);
/** Records those in one directory (…/site-packages). No record without any. */
void pip_list_directory(PackageRoot *root, const char *path);

/** Parses the name of a directory that pip leaves (`NAME-VERSION.dist-info`, `.egg-info`).
 * @param name  normalized, as PEP 503 has it @param version  "": not in the name
 * @return whether it is one */
bool pip_parse(const char *directory, char name[static PACKAGE_NAME_SIZE],
               char version[static PACKAGE_VERSION_SIZE]);
/** @return whether a distribution is one of those that a snapshot lists */
bool pip_is_relevant(const char *name);
