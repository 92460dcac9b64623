/* The command line of the runtime's hook. What it looks like is documented in part only, so anything that can be understood is. */
#pragma once

#include "lib/neuron/note.h"

/** Reads the flags into a note: any order, `--flag VALUE` and `--flag=VALUE`, the last of two counts. A flag without a value and one that is not known
 * become extra ones, and so does a word that belongs to no flag, unless it comes first. A value that begins with `--` is the next flag.
 * Values are kept up to one byte more than NOTE_VALUE_MAX, so that the note says that they were cut; of the extra ones, one more than NOTE_EXTRA_MAX.
 * A known flag is found wherever it stands.
 * @param ret_n_left_out  how many extra ones the note will not show
 * @return 0; ARGS_E_USAGE: nothing at all, or a word that is no flag comes first; ARGS_E_HELP, ARGS_E_VERSION: asked for, alone; -ENOMEM */
enum { ARGS_E_USAGE = 1, ARGS_E_HELP, ARGS_E_VERSION };
int args_parse(int argc, char *const *argv, HookNote *ret, size_t *ret_n_left_out);
