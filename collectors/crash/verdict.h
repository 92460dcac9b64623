/* What the facts amount to: rules, each with the evidence that it quotes, and a signature by which
 * the same crash is known again. */
#pragma once

#include "collectors/crash/context.h"
#include "collectors/crash/fault.h"

typedef struct VerdictInput { /* borrowed */
        const Fault *fault;
        const Threads *threads;
        Modules *modules;
        const Context *context;
} VerdictInput;

typedef struct VerdictText { /* Markdown */
        StrBuf cause, evidence, signature, seen;
        const char *context; /* runtime, exit-time cleanup, module load */
        const char *next;    /* a step to be taken; NULL: none that is of the rule */
} VerdictText;

/** Adds the verdict: the first rule that holds, what else holds, and the signature.
 * @param text  all zero; to be given to verdict_text_done() */
void verdict_write(const VerdictInput *in, StrBuf *json, VerdictText *text);
void verdict_text_done(VerdictText *t);

/** @return the component that a program or library belongs to, by its file's name; NULL: none that
 * is known */
const char *verdict_component(const char *path);
