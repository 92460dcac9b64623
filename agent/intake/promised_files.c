#include "agent/intake/promised_files.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "lib/base/array.h"

static PromisedFile *find(const PromisedFiles *p, const char *name) {
        for (size_t i = 0; i < p->n; i++)
                if (strcmp(p->items[i].name, name) == 0)
                        return &p->items[i];
        return NULL;
}

int promised_files_add(PromisedFiles *p, const char *name) {
        if (find(p, name))
                return 0;
        char *copy = strdup(name);
        if (!copy || array_grow(&p->items, p->n, sizeof *p->items) < 0) {
                free(copy);
                return -ENOMEM;
        }
        p->items[p->n++] = (PromisedFile){ .name = copy };
        return 0;
}

void promised_files_mark(PromisedFiles *p, const char *name) {
        PromisedFile *f = find(p, name);
        if (f)
                f->is_seen = true;
}

void promised_files_remove(PromisedFiles *p, const char *name) {
        PromisedFile *f = find(p, name);
        if (!f)
                return;
        free(f->name);
        *f = p->items[--p->n];
}

void promised_files_done(PromisedFiles *p) {
        for (size_t i = 0; i < p->n; i++)
                free(p->items[i].name);
        free(p->items);
        *p = (PromisedFiles){ 0 };
}
