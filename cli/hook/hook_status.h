/* State of the hook: whose file is where the runtime looks, what it is chained to, its socket, and
 * where jobs dump to. Changes nothing. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "lib/base/digest.h"

/* Where the runtime looks for its hook, and the names beside it. */
#define HOOK_DIRECTORY "/opt/aws/neuron/bin"
#define HOOK_NAME "neuron-dump"
#define HOOK_ASIDE "neuron-dump.vendor" /* the previous hook */

#define HOOK_VERSION_SIZE 32

typedef enum HookKind {
        HOOK_MISSING,
        HOOK_OURS,
        HOOK_OTHER,     /* a regular file: the vendor's, or somebody's own */
        HOOK_DANGLING,  /* a symlink to nothing */
        HOOK_NO_FILE,   /* a directory, a device … */
        HOOK_UNREADABLE /* see `error` */
} HookKind;

typedef struct HookFile {
        HookKind kind;
        char version[HOOK_VERSION_SIZE]; /* of ours */
        uint8_t sha256[SHA256_SIZE];     /* of its content; of ours and others */
        bool is_symlink;                 /* the rest is about its target */
        bool is_script;                  /* begins with #! */
        bool is_executable;              /* for anybody: a job may be anyone's */
        int error;                       /* errno */
        dev_t dev;
        ino_t ino;
} HookFile;

/** @return whether both are files with the same content */
bool hook_file_is_same(const HookFile *a, const HookFile *b);

#define HOOK_PROGRAM NC_LIBEXECDIR "/neuron-collectd/neuron-dump"

typedef struct HookStatus {
        int error; /* errno of opening the directory; the files below are missing then */
        HookFile hook, aside, program;
        char *chain;      /* target of the symlink; NULL = off */
        HookFile chained; /* what it leads to */
} HookStatus;

/** @param directory  where the runtime looks  @param program  ours, as installed */
void hook_status_read(const char *directory, const char *program, HookStatus *ret);
void hook_status_done(HookStatus *s);

/** One word for scripts: ours, vendor (another program), other (a script), missing, unusable. */
const char *hook_status_word(const HookStatus *s);

/** @return whether ours was installed, and another file has taken its place since */
bool hook_status_is_replaced(const HookStatus *s);

/** Connects to the socket and closes it. @return 0: somebody listens, -errno */
int hook_socket_check(const char *path);
