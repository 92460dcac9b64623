#include "config/faults.h"

#include <string.h>

#include "config/text.h"
#include "lib/base/strbuf.h"

enum { SUB_SHOWN_MAX = 64 };

static void add_place(StrBuf *b, const Spot *spot) {
        const char *brackets = spot->name ? strstr(spot->name, "[]") : NULL;

        if (!spot->name)
                return;
        if (brackets) {
                strbuf_add_n(b, spot->name, (size_t)(brackets - spot->name));
                strbuf_addf(b, "[%zu]%s", spot->index, brackets + 2);
        } else {
                strbuf_add(b, spot->name);
        }
        if (spot->item != FAULTS_NO_ITEM)
                strbuf_addf(b, "[%zu]", spot->item - 1);
        if (!spot->sub) {
                if (b->n > 0 && b->text[b->n - 1] == '.') /* a prefix alone: the mapping itself */
                        b->text[--b->n] = '\0';
                return;
        }
        if (b->n > 0 && b->text[b->n - 1] != '.')
                strbuf_add(b, ".");
        text_add_spelled(b, spot->sub, SUB_SHOWN_MAX);
}

void faults_add(Faults *f, const Spot *spot, const char *remedy, const char *fault, ...) {
        _cleanup_(strbuf_done) StrBuf place = STRBUF_INIT;
        _cleanup_free_ char *text = NULL;
        DiagWhere where = { .file = f->file, .line = spot->line };
        va_list ap;
        int n;

        f->n++;
        if (f->n > FAULTS_MAX) {
                if (f->n == FAULTS_MAX + 1)
                        diag_add(f->diags, (DiagWhere){ .file = f->file },
                                 "mend these and check again", "there are further faults");
                return;
        }
        va_start(ap, fault);
        n = vasprintf(&text, fault, ap);
        va_end(ap);
        if (n < 0)
                text = NULL; /* undefined after a failure */
        add_place(&place, spot);
        where.key = place.n > 0 ? place.text : NULL;
        diag_add(f->diags, where, remedy, "%s", text ? text : "is at fault (out of memory)");
}
