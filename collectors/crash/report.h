/* Writes what was found, as JSON for programs and as Markdown for people. */
#pragma once

#include "collectors/crash/threads.h"
#include "lib/base/strbuf.h"

typedef struct ReportInput { /* borrowed */
        const char *core_name;
        uint64_t core_bytes;
        const char *left_out; /* of the sandbox, as sandbox_enter() has it; NULL: nothing */
        CoreRead read;
        FileOpen open;
        void *userdata; /* of both */
} ReportInput;

/** @return 0, CORE_NOTES_E_*, -ENOMEM, -errno of reading the core; errors of json and text are
 * theirs */
int report_write(const ReportInput *in, StrBuf *json, StrBuf *text);
