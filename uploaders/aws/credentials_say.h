/* Sentences for people, made of what came from outside. */
#pragma once

#include "lib/base/cleanup.h"

/** @return the caller's, one line: control characters and bytes that are not UTF-8 as `\xNN`; NULL for lack of memory */
char *credentials_say(const char *fmt, ...) _printf_(1, 2);
