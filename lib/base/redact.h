/* Takes secrets out of text that leaves the node: command lines, values of environment variables,
 * notes, log lines. What is no secret stays readable. In doubt, text is removed. */
#pragma once

#include <stdbool.h>

#include "lib/base/strbuf.h"

/** Adds text with each secret replaced by `[redacted]`: values after a name that speaks of a secret
 * (`--api-key=…`, `token: …`, `PASSWORD=…`, `Authorization: Bearer …`), also on the next, indented
 * lines, in lists, in XML and beside the name (`name: PASSWORD, value: …`); user:password in URLs
 * and before hosts; lines of .netrc and .pgpass (ports of PostgreSQL alone); keys of known form
 * (AKIA… and the secret beside them, session tokens, hf_…, JWTs, PEM blocks, presigned URLs); and
 * arguments of some programs that have no name (`mysql -pX`, `redis-cli -a X`, `aws configure set
 * NAME X`). Evidence stays: counts and rates of tokens, a tokenizer's tokens, a signal or a short
 * id named signature or cookie. The forms are tables in redact.c. A secret with neither a name nor
 * a known form is not recognised.
 * @param n  bytes of text, which may hold anything, NUL too */
void redact_text(StrBuf *b, const char *text, size_t n);

/** The same as a JSON string: json_out_text() of what is left. @param key  as json_out.h has it */
void redact_member(StrBuf *b, const char *key, const char *text, size_t n);

/** @return whether a variable or option of this name holds a secret by its name alone (`…TOKEN…`,
 * `…SECRET…`, `…PASSW…`, `…CREDENTIAL…`, `…_KEY`, …) */
bool redact_name_is_secret(const char *name);

/** Adds the arguments of a command line, each as a JSON string of an array that is open in b; also
 * `--password VALUE` in two of them.
 * @param data  as /proc/PID/cmdline gives it: n bytes, each argument ended by NUL */
void redact_cmdline(StrBuf *b, const char *data, size_t n);
