/* All that `hook status` and `doctor` want to know of the hook: gathered once, judged by them. */
#pragma once

#include <stdbool.h>

#include "cli/hook/hook_file.h"

struct Config;

#define HOOK_PROGRAM NC_LIBEXECDIR "/neuron-collectd/neuron-dump"
#define HOOK_DUMP_DIRECTORY                                                                        \
        "/tmp/neuron-core-dump/dt-%d-cid-%c" /* the runtime's default, reference 1.2 */

typedef struct HookView {
        int error; /* errno: the directory cannot be looked at; the files below are missing then */
        HookFile hook, aside, program;
        char *chain;      /* target of the symlink; NULL = off */
        HookFile chained; /* what it leads to */
        bool is_kept;     /* `install` was run here */
} HookView;

/** @param directory  where the runtime looks  @param program  ours, as installed */
void hook_view_gather(const char *directory, const char *program, HookView *ret);
void hook_view_done(HookView *v);

/** One word for scripts: ours, vendor (a program that is not ours), other (a script, so perhaps somebody's own), missing, unusable. */
const char *hook_view_word(const HookView *v);

/** Whether somebody listens there: connects, and says nothing. @return 0, -errno */
int hook_socket_try(const char *path);

/** Where a job with this environment dumps to. @return borrowed; NULL: dumps are switched off */
const char *hook_dump_directory(char *const *environment);
/** @return the name of the source that dumps to that directory belong to, borrowed; NULL = none has it */
const char *hook_dump_source(const struct Config *config, const char *dump_directory);
