/* Puts our hook where the runtime looks for one, and the vendor's back. The vendor's file is never
 * lost, and to run it again completes what a kill -9 interrupted. Reports on stderr. */
#pragma once

#include <stdbool.h>

typedef enum HookChain { HOOK_CHAIN_AS_IS, HOOK_CHAIN_OFF, HOOK_CHAIN_ON } HookChain;

typedef struct HookRequest {    /* borrowed */
        const char *directory;  /* where the runtime looks */
        const char *from;       /* our program */
        HookChain chain;        /* of install */
        const char *chain_path; /* absolute; NULL = the vendor's */
} HookRequest;

typedef struct HookResult {
        bool placed;     /* ours, anew or another version of it */
        bool put_aside;  /* the hook that was there */
        bool restored;   /* the hook that was aside */
        bool removed;    /* ours, and there was nothing to restore */
        bool left_other; /* the hook is not ours and stays */
        bool chain_changed;
} HookResult;

/** @return CLI_YES, CLI_NO after it was reported. *ret is what was done until then */
int hook_install(const HookRequest *q, HookResult *ret);
int hook_remove(const HookRequest *q, HookResult *ret);
