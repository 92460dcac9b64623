/* Checks the hook for `doctor`: whose program the runtime runs as its hook, what that is chained
 * to, the agent's socket and mailbox for notes. Changes nothing. */
#pragma once

#include <stdbool.h>

#include "config/config.h"
#include "lib/base/cleanup.h"

#define HOOK_DIRECTORY "/opt/aws/neuron/bin" /* where the runtime looks for its hook */
#define HOOK_PROGRAM NC_LIBEXECDIR "/neuron-collectd/neuron-dump"

typedef enum Finding { OK, WARNING, FAILED, N_FINDINGS } Finding;

struct Doctor;

typedef struct HookCheck { /* borrowed */
        const Config *config;
        const char *directory;
        bool has_agent; /* the agent answers */
        void (*report)(struct Doctor *d, Finding finding, const char *what, const char *remedy,
                       const char *fmt, ...) _printf_(5, 6);
        struct Doctor *doctor;
} HookCheck;

void hook_check(const HookCheck *c);
