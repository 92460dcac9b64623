/* What lies where the runtime looks for its hook: ours, which carries a marker, or anybody's. Changes nothing. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "lib/base/digest.h"

/* Where the runtime looks, and what we put beside it. @see reference, 1.1 */
#define HOOK_DIRECTORY "/opt/aws/neuron/bin"
#define HOOK_NAME "neuron-dump"
#define HOOK_ASIDE "neuron-dump.vendor" /* what was there before us */
#define HOOK_CHAIN "neuron-dump.chain"  /* a symlink: what our hook runs as well */
#define HOOK_STAMP                                                                                 \
        "neuron-dump.keep" /* ours was installed here: put it back after a package's upgrade */

/* Our program has this text in it, and its version behind it. */
#define HOOK_MARKER "neuron-collectd neuron-dump "
#define HOOK_VERSION_SIZE 32
#define HOOK_FILE_MAX                                                                              \
        (64 * 1024 * 1024) /* where the marker is looked for; what is larger is not ours */

typedef enum HookKind {
        HOOK_MISSING,
        HOOK_OURS,
        HOOK_OTHER,     /* a regular file: the vendor's, or somebody's own */
        HOOK_DANGLING,  /* a symlink to nothing */
        HOOK_NO_FILE,   /* a directory, a device … */
        HOOK_UNREADABLE /* not to be told: *error says why */
} HookKind;

typedef struct HookFile {
        HookKind kind;
        char version[HOOK_VERSION_SIZE]; /* of ours */
        uint8_t sha256[SHA256_SIZE];     /* of its content; of ours and others */
        bool is_symlink;                 /* the name is one; the rest is about what it leads to */
        bool is_script;                  /* begins with #! */
        bool is_executable;              /* for anybody: a job may be anyone's */
        int error;                       /* errno */
        dev_t dev;
        ino_t ino;
} HookFile;

/** @param name  in the directory, or absolute; symlinks are followed */
void hook_file_look(int dir_fd, const char *name, HookFile *ret);

/** @return whether both are files with the same content */
bool hook_file_is_same(const HookFile *a, const HookFile *b);

/** Looks for the marker in a piece of a program. @return whether it is there, with a version behind it. Pure. */
bool hook_marker_find(const char *data, size_t n, char version[static HOOK_VERSION_SIZE]);
