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
#define HOOK_CHAIN "neuron-dump.chain"  /* a symlink: what our hook runs as well */

/* Our program has this text in it, and its version behind it. */
#define HOOK_MARKER "neuron-collectd neuron-dump "
#define HOOK_VERSION_SIZE 32
#define HOOK_FILE_MAX (64 * 1024 * 1024) /* a larger file is not ours */

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

/** @param name  in the directory, or absolute; symlinks are followed */
void hook_file_inspect(int dir_fd, const char *name, HookFile *ret);

/** @return whether both are files with the same content */
bool hook_file_is_same(const HookFile *a, const HookFile *b);

/** @return target of the chain's symlink, the caller's; NULL: there is none */
char *hook_chain_target(int dir_fd);

struct Config;

#define HOOK_PROGRAM NC_LIBEXECDIR "/neuron-collectd/neuron-dump"
/* the runtime's default, @see AWS Neuron documentation: NEURON_RT_LOCAL_CORE_DUMP_DIRECTORY */
#define HOOK_DUMP_DIRECTORY "/tmp/neuron-core-dump/dt-%d-cid-%c"

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

/** Where a job with this environment dumps to. @return borrowed; NULL: dumps are switched off */
const char *hook_dump_directory(char *const *environment);
/** @return the name of the source that the directory belongs to, borrowed; NULL = none */
const char *hook_dump_source(const struct Config *config, const char *dump_directory);
