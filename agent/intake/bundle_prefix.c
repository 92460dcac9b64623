#include "agent/intake/bundle_prefix.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "agent/store/notes_store.h"

typedef struct Granted {
        const Owners *owners;
        const char *same; /* looked for; NULL: any */
        char *found;
} Granted;

static int on_prefix(const StoredNote *stored, void *userdata) {
        Granted *g = userdata;
        if (!stored->s3_prefix || !owners_let_speak(g->owners, stored->uid) ||
            (g->same && strcmp(g->same, stored->s3_prefix) != 0))
                return 0;
        g->found = strdup(stored->s3_prefix);
        return g->found ? 1 : -ENOMEM;
}

void bundle_prefix_settle(Store *store, Bundle *b) {
        BundleRecord *rec = &b->rec;
        Granted g = { .owners = &b->owners, .same = rec->s3_prefix };
        const StoredUnit unit = { rec->source, rec->path };
        bool may_get_one = !rec->supplement_of[0] && !bundle_has_begun(b);
        if (!rec->s3_prefix && !may_get_one)
                return;
        (void)store_note_list(store, &unit, on_prefix, &g); /* none: own */
        if (!g.found && g.same && may_get_one) {
                g.same = NULL;
                (void)store_note_list(store, &unit, on_prefix, &g); /* as above */
        }
        free(rec->s3_prefix);
        rec->s3_prefix = g.found;
}
