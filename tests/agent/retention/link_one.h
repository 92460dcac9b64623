/* Links one member at a time. */
#pragma once

#include "agent/retention/link_session.h"

static inline int link_one(LinkDirs *p, const char *bundle_id, const LinkMember *m,
                           char **ret_error) {
        _cleanup_(link_session_freep) LinkSession *s = NULL;
        int r = link_session_new(&s, p, bundle_id, 0);
        return r < 0 ? r : link_session_add(s, m, ret_error);
}

static inline bool is_linked(LinkDirs *p, const char *bundle_id, const char *member_path,
                             const struct stat *st) {
        _cleanup_(link_session_freep) LinkSession *s = NULL;
        bool has = false;
        if (link_session_new(&s, p, bundle_id, 0) >= 0)
                (void)link_session_own_links(s, member_path, st, &has);
        return has;
}
