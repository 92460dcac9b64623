/* One member at a time, as tests pin them. */
#pragma once

#include "agent/retention/pins.h"

static inline int pin_one(Pins *p, const char *bundle_id, const PinsMember *m, char **ret_error) {
        _cleanup_(pins_session_freep) PinsSession *s = NULL;
        int r = pins_session_new(&s, p, bundle_id, 0);
        return r < 0 ? r : pins_session_add(s, m, ret_error);
}

static inline bool is_pinned(Pins *p, const char *bundle_id, const char *member_path,
                             const struct stat *st) {
        _cleanup_(pins_session_freep) PinsSession *s = NULL;
        bool has = false;
        if (pins_session_new(&s, p, bundle_id, 0) >= 0)
                (void)pins_session_own_links(s, member_path, st, &has);
        return has;
}
