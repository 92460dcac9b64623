/* Faults collected while a file is read to its end. */
#include "lib/base/diag.h"

#include <errno.h>
#include <stdarg.h>
#include <string.h>

#include "lib/base/array.h"
#include "lib/base/parse.h"
#include "lib/base/strbuf.h"

void diag_add(Diags *d, DiagLocation where, const char *remedy, const char *fault, ...) {
        Diag diag = { .line = where.line };
        va_list ap;

        if (array_grow(&d->items, d->n, sizeof *d->items) < 0)
                return;
        va_start(ap, fault);
        diag.fault = strbuf_vformat(fault, ap);
        va_end(ap);
        diag.file = strdup(where.file ? where.file : "");
        diag.key = where.key ? strdup(where.key) : NULL;
        diag.remedy = remedy ? strdup(remedy) : NULL;
        size_t at = d->n++;
        for (; at > 0 && d->items[at - 1].line > diag.line; at--)
                d->items[at] = d->items[at - 1];
        d->items[at] = diag;
}

/* A value out of the file may hold a newline or worse; a fault stays one line. */
char *diag_format(const Diag *d) {
        StrBuf b = STRBUF_INIT;

        if (d->file && d->file[0] != '\0') {
                strbuf_add_escaped(&b, d->file);
                if (d->line > 0)
                        strbuf_addf(&b, ":%u", d->line);
                strbuf_add(&b, ": ");
        }
        if (d->key) {
                strbuf_add_escaped(&b, d->key);
                strbuf_add(&b, ": ");
        }
        strbuf_add_escaped(&b, d->fault ? d->fault : "a fault, but out of memory for its text");
        if (d->remedy) {
                strbuf_add(&b, "; ");
                strbuf_add_escaped(&b, d->remedy);
        }
        return strbuf_detach(&b);
}

void diag_print(const Diags *d, FILE *f) {
        for (size_t i = 0; i < d->n; i++) {
                _cleanup_free_ char *text = diag_format(&d->items[i]);

                (void)fprintf(f, "%s\n", text ? text : "out of memory while telling a fault");
        }
}

void diag_done(Diags *d) {
        for (size_t i = 0; i < d->n; i++) {
                free(d->items[i].file);
                free(d->items[i].key);
                free(d->items[i].fault);
                free(d->items[i].remedy);
        }
        free(d->items);
        *d = (Diags){ 0 };
}
