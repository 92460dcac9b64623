/* What lies where the runtime looks for its hook: whose file it is, what is kept beside it, and
 * what it is chained to. Changes nothing. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <sys/types.h>

#include "lib/base/strbuf.h"

#define HOOK_NAME "neuron-dump"
#define HOOK_ASIDE "neuron-dump.vendor" /* the hook that ours replaced */
#define HOOK_CHAIN "neuron-dump.chain"  /* a symlink: what our hook runs as well */
#define HOOK_FILE_MAX (64 * MIB)        /* a larger file is not ours */
#define HOOK_VERSION_SIZE 32

typedef enum HookKind {
        HOOK_MISSING, /* or a symlink to nothing */
        HOOK_OURS,
        HOOK_OTHER,   /* a regular file: the vendor's, or somebody's own */
        HOOK_UNUSABLE /* a directory, a device …, or unreadable: see `error` */
} HookKind;

typedef struct HookFile { /* a symlink is followed */
        HookKind kind;
        char version[HOOK_VERSION_SIZE]; /* of ours */
        bool is_executable;              /* for anybody: a job may be anyone's */
        int error;                       /* errno */
        dev_t dev;
        ino_t ino;
} HookFile;

void hook_file_inspect(int dir_fd, const char *name, HookFile *ret);

typedef struct HookStatus {
        HookFile hook, aside, program; /* program: ours, as installed */
        char *chain;                   /* target of the symlink; NULL: there is none */
        HookFile chained;              /* what it leads to */
} HookStatus;

/** @param directory  where the runtime looks; when it cannot be opened, `hook` says why
 * @param program  ours, as installed */
void hook_status_read(const char *directory, const char *program, HookStatus *ret);
void hook_status_done(HookStatus *s);
/** @return whether ours was installed, and another file has taken its place since, or none */
bool hook_status_is_replaced(const HookStatus *s);
/** @return whether our hook is that of another version than the program */
bool hook_status_is_outdated(const HookStatus *s);
/** @return why the chain does not work, for people, static; NULL: it does, or there is none */
const char *hook_status_chain_fault(const HookStatus *s);
