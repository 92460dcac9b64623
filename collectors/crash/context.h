/* What the caller knows beside the core, as CrashRequest.context has it: what the kernel
 * logged, how often the crash was seen, and the job. */
#pragma once

#include <jansson.h>
#include <stdint.h>

#include "lib/base/strbuf.h"

#define CONTEXT_LINES_MAX 64

typedef enum ContextKind {
        CONTEXT_SEGFAULT,
        CONTEXT_OOM,
        CONTEXT_MCE,
        CONTEXT_AER,
        CONTEXT_EFA,
        CONTEXT_OTHER,
} ContextKind;

typedef struct ContextLine {     /* of the kernel's log */
        const char *time, *text; /* time: "" = not known */
        ContextKind kind;
} ContextLine;

typedef struct Context {
        json_t *document; /* owns the texts; NULL: there is none */
        ContextLine lines[CONTEXT_LINES_MAX];
        size_t n_lines;
        uint64_t pid; /* of the process, as the kernel's log has it; 0 = not known */
} Context;

enum { CONTEXT_E_INVALID = 1 };

/** Members of another form are left out. @param n  0: there is none
 * @param ret  to be given to context_done()  @return 0, CONTEXT_E_INVALID */
int context_parse(Context *ret, const char *text, size_t n);
void context_done(Context *c);

/** @return how often the crash of a signature was seen before, 0 = not known  @param ret_since  its
 * first time, "" = not known */
uint64_t context_seen(const Context *c, const char *signature, const char **ret_since);

/** Adds `kernel` and `job`. */
void context_write_json(const Context *c, StrBuf *b);
/** Adds what the kernel logged, a line each; nothing when there is none. */
void context_write_kernel(const Context *c, StrBuf *b);
/** Adds a table of the job's members; nothing when there is none. */
void context_write_job(const Context *c, StrBuf *b);
