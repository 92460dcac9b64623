#include "agent/store/owners.h"

#include <string.h>

#include "config/config.h"

static bool has_own_copies(const char *source) {
        return strncmp(source, CONTAINERS_SOURCE_PREFIX, strlen(CONTAINERS_SOURCE_PREFIX)) == 0;
}

void owners_add(Owners *o, const char *source, uid_t uid, uid_t own) {
        if (uid == 0 || (uid == own && has_own_copies(source)))
                return;
        o->has_several = o->has_several || (o->has_others && o->uid != uid);
        if (!o->has_others)
                o->uid = uid;
        o->has_others = true;
}

bool uid_may_annotate(const Owners *o, uid_t uid) {
        return uid == 0 || !o->has_others || (!o->has_several && o->uid == uid);
}

bool owners_cover(const Owners *judged, const Owners *now) {
        return !now->has_others || judged->has_several ||
               (judged->has_others && !now->has_several && judged->uid == now->uid);
}
