/* What every uploader answers. */
#pragma once

enum {
        UPLOAD_E_EXISTS = 1, /* something different is there already: never overwritten */
        UPLOAD_E_SAME = 2,   /* the same is there already, proven */
        UPLOAD_E_FULL = 3,   /* no room (ENOSPC, EDQUOT, or below min_free): wait for room */
        UPLOAD_E_AWAY =
                4, /* the destination cannot be reached or written (read-only, not mounted, stale, EIO): wait for it */
        UPLOAD_E_MISMATCH =
                5, /* what was read back is not what was written: the copy was removed, try again */
};
