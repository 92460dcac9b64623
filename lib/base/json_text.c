/* Writes a jansson value as text, complete or not at all: see json_text.h for the reason. */
#include "lib/base/json_text.h"

#include "lib/base/strbuf.h"

static int add_text(const char *data, size_t n, void *userdata) {
        strbuf_add_n(userdata, data, n);
        return strbuf_error(userdata);
}

char *json_text(const json_t *v, size_t flags) {
        StrBuf b = STRBUF_INIT;
        if (json_dump_callback(v, add_text, &b, flags) < 0) {
                strbuf_done(&b);
                return NULL;
        }
        return strbuf_detach(&b); /* NULL when memory for a part was refused */
}
