/* Puts our hook where the runtime looks for one, and the vendor's back. At every moment there is a whole hook under the name, the vendor's file
 * is never lost, and to do it again mends whatever a kill -9 has left. All is said on stderr. */
#pragma once

#include <stdbool.h>

#include "cli/hook/hook_file.h"

typedef enum HookChain { HOOK_CHAIN_AS_IS, HOOK_CHAIN_OFF, HOOK_CHAIN_ON } HookChain;

typedef struct HookOrder {      /* borrowed */
        const char *directory;  /* where the runtime looks */
        const char *from;       /* our program */
        bool again;             /* only where it was installed before */
        HookChain chain;        /* of install */
        const char *chain_path; /* absolute; NULL = the vendor's */
} HookOrder;

typedef struct HookDone {
        bool was_not_installed; /* --again, and nothing was done */
        bool placed;            /* ours, anew or another version of it */
        bool put_aside;         /* what was there */
        bool restored;          /* what was aside */
        bool removed;           /* ours, and there was nothing to put back */
        bool left_other;        /* what is there is not ours: left alone */
        bool chain_changed;
} HookDone;

/** @return CLI_YES, CLI_NO after it was said. *ret tells what was done until then */
int hook_install(const HookOrder *o, HookDone *ret);
int hook_remove(const HookOrder *o, HookDone *ret);

/** Opens the directory. @return fd, or -1 after it was said */
int hook_open_directory(const char *directory);
/** @return what the chain leads to, the caller's; NULL: there is none, or it is no symlink */
char *hook_chain_target(int dir_fd);
