/* What the facts amount to: rules, each with the evidence that it quotes, and a signature by which
 * the same crash is known again. */
#pragma once

#include "collectors/crash/fault.h"

/** Adds the verdict: the first rule that holds, what else holds, and the signature. */
void verdict_write(const Fault *f, const Threads *threads, Modules *modules, StrBuf *json,
                   StrBuf *text);

/** @return the component that a program or library belongs to, by its file's name; NULL: none that
 * is known */
const char *verdict_component(const char *path);
