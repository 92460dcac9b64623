/* What the hook adds to the flags: a random id, who it is, which job, and what its files will be called. */
#pragma once

#include "lib/neuron/note.h"

/** Fills what args_parse() left: id, time, ids, namespaces, job, environment by the allow-list, an absolute directory, names of files when there is
 * a directory. @param environment  of the hook @return 0, -ENOMEM, -EIO: no randomness */
int identity_fill(HookNote *n, char *const *environment);

/** @return whether core dumps are switched off: both variables set, and empty @see reference, 1.1 */
bool dumps_are_off(char *const *environment);
