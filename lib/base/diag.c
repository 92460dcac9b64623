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
        d->items[d->n++] = diag;
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

static int diag_compare(const void *a, const void *b) {
        const Diag *x = *(const Diag *const *)a, *y = *(const Diag *const *)b;

        if (x->line != y->line)
                return x->line < y->line ? -1 : 1;
        return (x > y) - (x < y); /* of one line: in the order in which they were found */
}

void diag_print(const Diags *d, FILE *f) {
        _cleanup_free_ const Diag **sorted = reallocarray(NULL, d->n, sizeof *sorted);

        if (sorted) {
                for (size_t i = 0; i < d->n; i++)
                        sorted[i] = &d->items[i];
                qsort(sorted, d->n, sizeof *sorted, diag_compare);
        }
        for (size_t i = 0; i < d->n; i++) {
                const Diag *diag = sorted ? sorted[i] : &d->items[i];
                _cleanup_free_ char *text = diag_format(diag);

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
