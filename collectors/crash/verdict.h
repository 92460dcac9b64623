/* What the facts amount to: rules, each with the evidence that it quotes, and a signature by which
 * the same crash is known again. */
#pragma once

#include "collectors/crash/fault.h"

typedef struct VerdictText { /* Markdown */
        StrBuf cause, evidence, signature;
        const char *context; /* runtime, exit-time cleanup, module load */
        bool is_symptom;
} VerdictText;

/** Adds the verdict: the first rule that holds, what else holds, and the signature.
 * @param text  all zero; to be given to verdict_text_done() */
void verdict_write(const Fault *f, const Threads *threads, Modules *modules, StrBuf *json,
                   VerdictText *text);
void verdict_text_done(VerdictText *t);

/** @return the component that a program or library belongs to, by its file's name; NULL: none that
 * is known */
const char *verdict_component(const char *path);
