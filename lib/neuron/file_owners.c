/* The rule who may annotate whose files. A hook's note is untrusted input: any user can send one
 * about any unit. Root's notes count for every unit. A user's count for a unit whose files are all
 * his or root's. Root of a container is not root of the node: his count where all files are root's.
 *
 * This file knows users alone. Which files a unit has, and what becomes of a note that does not
 * count, is up to the callers: intake (hints, prefixes), delivery (what a manifest says of the
 * failure) and failures (claims). */
#include "lib/neuron/file_owners.h"

#include <stdio.h>

void file_owners_add(FileOwners *o, uid_t uid) {
        if (uid == 0)
                return;
        o->has_several = o->has_several || (o->has_others && o->uid != uid);
        if (!o->has_others)
                o->uid = uid;
        o->has_others = true;
}

Owner note_sender(const Owner *o, const char *container, bool by_mailbox) {
        Owner sender = *o;
        if (o->uid == 0 && (container || by_mailbox))
                sender.uid = UID_CONTAINER_ROOT;
        (void)snprintf(sender.container, sizeof sender.container, "%s", container ? container : "");
        return sender;
}

bool uid_may_annotate(const FileOwners *o, uid_t uid) {
        return uid == 0 || !o->has_others || (!o->has_several && o->uid == uid);
}
