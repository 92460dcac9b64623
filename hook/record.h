/* The hook's files beside the dump. */
#pragma once

#include <stddef.h>

#include "lib/neuron/note.h"

/** Writes the record: the note, and `packages`: versions by `driver` and `dpkg`, and what `files`
 * are there by their names. @param note_text  as hook_note_compose() made it
 * @param root  of this machine's files, "/"; for tests another  @return 0, -EEXIST, -errno */
int record_write(const HookNote *n, const char *note_text, size_t n_text, const char *root);

/** Writes the snapshot: text, or what fd has when text is NULL. @return as above */
int record_write_snapshot(const HookNote *n, const char *text, size_t n_text, int fd);
