/* What every uploader answers. */
#pragma once

enum {
        UPLOAD_E_EXISTS = 1, /* something different is there already: never overwritten */
        UPLOAD_E_SAME = 2,   /* the same is there already, proven */
        UPLOAD_E_FULL = 3,   /* no room (ENOSPC, EDQUOT, below min_free, a quota): wait for room */
        UPLOAD_E_AWAY =
                4, /* the destination cannot be reached or written (read-only, not mounted, stale, EIO; no answer, 5xx): wait for it */
        UPLOAD_E_MISMATCH =
                5, /* what is there is not what was written: the copy was removed or is none yet, try again */
        UPLOAD_E_DENIED =
                6, /* no credentials, or they are refused, or not permitted: wait until somebody mends it */
        UPLOAD_E_REFUSED = 7, /* this object is refused for what it is: no waiting helps */
        UPLOAD_E_STALE = 8,   /* what was to be resumed cannot be: begin anew */
        UPLOAD_E_PAUSED = 9,  /* asked to stop; what arrived is known, to go on with it later */
};
