/* The command line of the runtime's hook. What it looks like is documented in part only, so
 * anything that can be understood is. */
#pragma once

#include "lib/neuron/note.h"

/** Reads the flags into a note: any order, `--flag VALUE` and `--flag=VALUE`, the last of two
 * counts. A flag without a value and one that is not known become extra ones, and so does a word
 * that belongs to no flag, unless it comes first. A value that begins with `--` is the next flag.
 * Values are kept up to one byte more than NOTE_VALUE_MAX, so that the note says that they were
 * cut; of the extra ones, one more than NOTE_EXTRA_MAX. A known flag is found wherever it stands.
 * @param ret_n_left_out  how many extra ones the note will not show
 * @return 0; NOTE_ARGS_USAGE: nothing at all, or a word that is no flag comes first;
 * NOTE_ARGS_HELP, NOTE_ARGS_VERSION: requested, alone; -ENOMEM */
enum { NOTE_ARGS_USAGE = 1, NOTE_ARGS_HELP, NOTE_ARGS_VERSION };
int note_parse_args(int argc, char *const *argv, HookNote *ret, size_t *ret_n_left_out);

/** Fills what note_parse_args() left: id, time, ids, namespaces, job, environment by the
 * allow-list, an absolute directory, names of files when there is a directory. @param environment
 * of the hook @return 0, -ENOMEM, -EIO: no randomness */
int note_add_identity(HookNote *n, char *const *environment);

/** @return whether core dumps are switched off: both variables set, and empty @see AWS Neuron
 * documentation: NEURON_RT_LOCAL_CORE_DUMP_DIRECTORY */
bool note_dumps_are_off(char *const *environment);
