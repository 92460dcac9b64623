/* What an errno from a volume means: wait for room, wait for the volume, or a failure of this process; and what a person can do. */
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "lib/base/cleanup.h"
#include "uploaders/volume/volume_private.h"

typedef struct Meaning {
        int error, outcome;
        const char *remedy;
} Meaning;

/* clang-format off */
static const Meaning meanings[] = {
        { ENOSPC,       UPLOAD_E_FULL, "free some space or inodes there" },
        { EDQUOT,       UPLOAD_E_FULL, "free some space there, or raise the quota" },
        { EROFS,        UPLOAD_E_AWAY, "mount it read-write" },
        { ENOENT,       UPLOAD_E_AWAY, "is the volume mounted?" },
        { ENOTCONN,     UPLOAD_E_AWAY, "its file system process has ended: mount it again" },
        { ESTALE,       UPLOAD_E_AWAY, "the server has forgotten it: mount it again" },
        { ELOOP,        UPLOAD_E_AWAY, "a symlink is in the way: remove it, or name its target in the configuration" },
        { ENOTDIR,      UPLOAD_E_AWAY, "something that is no directory is in the way: remove it" },
        { EISDIR,       UPLOAD_E_AWAY, "a directory is in the way: remove it" },
        { EEXIST,       UPLOAD_E_AWAY, "another agent is writing the same object: give each its own node.instance_id" },
        { EFBIG,        UPLOAD_E_AWAY, "the file system or a limit (ulimit -f) allows no file of this size" },
        { ETIMEDOUT,    UPLOAD_E_AWAY, "the server does not answer: see whether it runs" },
        { EIO,          UPLOAD_E_AWAY, "the storage failed: see the kernel log" },
};
/* clang-format on */

void volume_say(char **ret_error, const char *fmt, ...) {
        va_list args;
        char *text = NULL;

        va_start(args, fmt);
        if (vasprintf(&text, fmt, args) < 0)
                text = NULL;
        va_end(args);
        free(*ret_error);
        *ret_error = text;
}

int volume_fault(int error, const char *doing, const char *path, char **ret_error) {
        switch (error) {
        case ENOMEM: /* ours, not the volume's */
        case EMFILE:
        case ENFILE:
                return -error;
        case EACCES:
        case EPERM:
                volume_say(ret_error, "cannot %s '%s': %s; let uid %u write there", doing, path,
                           strerror(error), (unsigned)geteuid());
                return UPLOAD_E_AWAY;
        }
        for (size_t i = 0; i < ELEMENTSOF(meanings); i++)
                if (meanings[i].error == error) {
                        volume_say(ret_error, "cannot %s '%s': %s; %s", doing, path,
                                   strerror(error), meanings[i].remedy);
                        return meanings[i].outcome;
                }
        volume_say(ret_error,
                   "cannot %s '%s': %s; see whether the volume is well, and the kernel log", doing,
                   path, strerror(error));
        return UPLOAD_E_AWAY;
}
