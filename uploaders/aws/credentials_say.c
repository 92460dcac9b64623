#include "uploaders/aws/credentials_say.h"

#include <stdarg.h>

#include "lib/base/parse.h"
#include "lib/base/strbuf.h"

char *credentials_say(const char *fmt, ...) {
        char *raw = NULL, piece[UTF8_SPELL_SIZE];
        StrBuf b = STRBUF_INIT;
        va_list ap;

        va_start(ap, fmt);
        int n = vasprintf(&raw, fmt, ap);
        va_end(ap);
        if (n < 0)
                return NULL;
        for (size_t i = 0; i < (size_t)n;) {
                i += utf8_spell(raw + i, (size_t)n - i, piece);
                strbuf_add(&b, piece);
        }
        free(raw);
        char *text = strbuf_take(&b);
        strbuf_done(&b);
        return text;
}
