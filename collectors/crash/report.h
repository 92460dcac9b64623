/* Writes what was found, as JSON for programs and as Markdown for people. */
#pragma once

#include "collectors/crash/context.h"
#include "collectors/crash/threads.h"
#include "lib/base/strbuf.h"

typedef struct ReportInput { /* borrowed */
        const char *core_name;
        uint64_t core_bytes;
        const Context *context;
        const char *left_out;      /* of the sandbox, as sandbox_enter() has it; NULL: nothing */
        const char *core_left_out; /* of the core, by us, a sentence; NULL: nothing */
        CoreRead read;
        FileOpen open;
        /** Gets the report before source lines are looked for, which whoever reads debug
         * information may not survive. @return 0, -errno: the end of it. NULL: not needed */
        int (*publish)(const StrBuf *json, const StrBuf *text, void *userdata);
        void *userdata; /* of all three */
} ReportInput;

/** @return 0, CORE_NOTES_E_*, -ENOMEM, -errno of reading the core, what publish returned; errors of
 * json and text are theirs */
int report_write(const ReportInput *in, StrBuf *json, StrBuf *text);
