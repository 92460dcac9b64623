/* What the notes in the store decide about a unit: whether a directory with an unknown name is
 * evidence, and the S3 prefix of its copy. A note counts only if its user may annotate the unit's
 * files (uid_may_annotate()). Hints that are only in memory are in hook_hints.c. */
#include "agent/intake/unit_notes.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "lib/base/cleanup.h"

Owner unit_notes_sender(const StoredNote *stored) {
        return note_sender(&(Owner){ .uid = stored->uid }, stored->container, stored->by_mailbox);
}

bool unit_notes_may_name(uid_t by, uid_t uid) {
        return by == uid || by == 0 || (uid == 0 && by == UID_CONTAINER_ROOT);
}

typedef struct NamedBy {
        uid_t uid;
        bool is_found;
} NamedBy;

static int on_naming_note(const StoredNote *stored, void *userdata) {
        NamedBy *by = userdata;
        by->is_found = unit_notes_may_name(unit_notes_sender(stored).uid, by->uid);
        return by->is_found;
}

bool unit_notes_name_unit(Store *store, const StoredUnit *unit, uid_t uid) {
        NamedBy by = { .uid = uid };
        (void)store_note_list(store, unit, on_naming_note,
                              &by); /* on error: the next scan reads again */
        return by.is_found;
}

static int on_any_note(const StoredNote *stored, void *userdata) {
        (void)stored;
        *(bool *)userdata = true;
        return 1; /* the others do not matter */
}

bool unit_notes_have_unit(Store *store, const StoredUnit *unit) {
        bool is_found = false;
        (void)store_note_list(store, unit, on_any_note, &is_found); /* as above */
        return is_found;
}

typedef struct Granted {
        const FileOwners *owners;
        const char *same; /* NULL: none */
        char *first;
        bool has_same;
} Granted;

static int on_prefix(const StoredNote *stored, void *userdata) {
        Granted *g = userdata;
        if (!stored->s3_prefix || !uid_may_annotate(g->owners, unit_notes_sender(stored).uid))
                return 0;
        g->has_same = g->same && strcmp(g->same, stored->s3_prefix) == 0;
        if (!g->first && !(g->first = strdup(stored->s3_prefix)))
                return -ENOMEM;
        return g->has_same; /* then the others do not matter */
}

void unit_notes_set_s3_prefix(Store *store, Bundle *b) {
        BundleRecord *rec = &b->rec;
        _cleanup_free_ char *old = rec->s3_prefix;
        Granted g = { .owners = &b->facts.owners, .same = old };
        bool may_get_one = !rec->supplement_of[0] && !bundle_has_begun(b);
        rec->s3_prefix = NULL;
        if (old || may_get_one)
                (void)store_note_list(store, &(StoredUnit){ rec->source, rec->path }, on_prefix,
                                      &g); /* none: own */
        if (g.has_same)
                rec->s3_prefix = TAKE_PTR(old);
        else if (may_get_one)
                rec->s3_prefix = TAKE_PTR(g.first);
        free(g.first);
}
