/* Classifies an errno of a volume, as lack of space, as a volume that is away, or as a failure of
 * this process, and writes the sentence with the remedy. When to try again is left to
 * agent/delivery. */
#include "uploaders/volume/volume_error.h"

#include <errno.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "lib/base/strbuf.h"
#include "uploaders/uploader.h"

typedef struct ErrorMeaning {
        int error, outcome;
        const char *remedy;
} ErrorMeaning;

/* clang-format off */
static const ErrorMeaning meanings[] = {
        { ENOSPC,       UPLOAD_E_FULL, "free some space or inodes there" },
        { EDQUOT,       UPLOAD_E_FULL, "free some space there, or raise the quota" },
        { EROFS,        UPLOAD_E_UNREACHABLE, "mount it read-write" },
        { ENOENT,       UPLOAD_E_UNREACHABLE, "is the volume mounted?" },
        { ENOTCONN,     UPLOAD_E_UNREACHABLE, "its file system process has ended: mount it again" },
        { ESTALE,       UPLOAD_E_UNREACHABLE, "the server has forgotten it: mount it again" },
        { ELOOP,        UPLOAD_E_UNREACHABLE, "a symlink is in the way: remove it, or name its target in the configuration" },
        { ENOTDIR,      UPLOAD_E_UNREACHABLE, "something that is not a directory is in the way: remove it" },
        { EISDIR,       UPLOAD_E_UNREACHABLE, "a directory is in the way: remove it" },
        { EEXIST,       UPLOAD_E_UNREACHABLE, "another agent is writing the same object: give each its own node.instance_id" },
        { EFBIG,        UPLOAD_E_UNREACHABLE, "the file system or a limit (ulimit -f) allows no file of this size" },
        { ETIMEDOUT,    UPLOAD_E_UNREACHABLE, "the server does not answer: check whether it runs" },
        { EIO,          UPLOAD_E_UNREACHABLE, "the storage failed: see the kernel log" },
};

/* clang-format on */

void volume_error_set(char **ret_error, const char *fmt, ...) {
        va_list args;

        va_start(args, fmt);
        char *text = strbuf_vformat(fmt, args);
        va_end(args);
        free(*ret_error);
        *ret_error = text;
}

int volume_error_classify(int error, const char *doing, const char *path, char **ret_error) {
        switch (error) {
        case ENOMEM: /* ours, not the volume's */
        case EMFILE:
        case ENFILE:
                return -error;
        case EACCES:
        case EPERM:
                volume_error_set(ret_error, "cannot %s '%s': %s; let uid %u write there", doing,
                                 path, strerror(error), (unsigned)geteuid());
                return UPLOAD_E_UNREACHABLE;
        }
        for (size_t i = 0; i < ELEMENTSOF(meanings); i++)
                if (meanings[i].error == error) {
                        volume_error_set(ret_error, "cannot %s '%s': %s; %s", doing, path,
                                         strerror(error), meanings[i].remedy);
                        return meanings[i].outcome;
                }
        volume_error_set(ret_error, "cannot %s '%s': %s; check the volume and the kernel log",
                         doing, path, strerror(error));
        return UPLOAD_E_UNREACHABLE;
}

int volume_error_classify_small(int error, const char *doing, const char *path, char **ret_error) {
        int r = volume_error_classify(error, doing, path, ret_error);
        return error == EACCES || error == EPERM || error == EROFS ? UPLOAD_E_DENIED : r;
}
