/* Room and copies: how a file gets to a unit. */
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <unistd.h>

#include "agent/hooknotes/attachments_private.h"
#include "lib/base/cleanup.h"
#include "lib/base/fs.h"

#define COMING ".coming" /* is being written */
#define COPY_BYTES (64 * KIB)

/* ---- room ---- */

/* What waits and what was given, as one. @param but  a name that waits and does not count; NULL */
static int count_all_of_unit(int unit, const char *but, size_t *n, uint64_t *bytes) {
        _cleanup_(attachment_names_done) AttachmentNames given = { .max = ATTACHMENTS_MAX };
        int r = attachments_count_waiting(unit, but, n, bytes);
        if (r == 0)
                r = attachments_count_in(unit, ATTACHMENTS_GIVING, n, bytes);
        if (r == 0)
                r = attachment_names_read(unit, attachments_is_given, &given);
        for (size_t i = 0; r == 0 && i < given.n; i++)
                r = attachments_count_in(unit, given.items[i], n, bytes);
        return r;
}

int attachments_count_all(const char *path, uint64_t *ret_bytes) {
        _cleanup_(attachment_names_done) AttachmentNames units = { .max = ATTACHMENTS_UNITS_MAX };
        _cleanup_close_ int root = attachments_open_dir(AT_FDCWD, path);
        int r = root < 0 ? root : attachment_names_read(root, attachments_is_unit, &units);
        uint64_t bytes = 0;
        size_t n = 0;
        for (size_t i = 0; r == 0 && i < units.n; i++) {
                _cleanup_close_ int unit = attachments_open_dir(root, units.items[i]);
                if (unit >= 0)
                        r = count_all_of_unit(unit, NULL, &n, &bytes);
        }
        *ret_bytes = bytes;
        return r == -ENOENT ? 0 : r;
}

static int check_room_of_all(Attachments *a, uint64_t more_bytes) {
        if (a->is_counted && a->bytes + more_bytes <= a->max_bytes_all)
                return 0;
        int r = attachments_count_all(a->path, &a->bytes);
        a->is_counted = r == 0;
        return r < 0 ? r : a->bytes + more_bytes > a->max_bytes_all ? -EDQUOT : 0;
}

int attachments_check_unit(int unit, const char *name, uint64_t more_bytes) {
        size_t n = 1;
        uint64_t bytes = more_bytes;
        int r = count_all_of_unit(unit, name, &n, &bytes);
        if (r < 0)
                return r;
        return n > ATTACHMENTS_MAX                                                   ? -E2BIG
               : more_bytes > ATTACHMENTS_MAX_BYTES || bytes > ATTACHMENTS_MAX_BYTES ? -EFBIG
                                                                                     : 0;
}

/* ---- putting ---- */

/* No more than it had when it was measured. */
static int copy_content(int to, int from, uint64_t bytes) {
        _cleanup_free_ char *buffer = malloc(COPY_BYTES);
        if (!buffer)
                return -ENOMEM;
        for (uint64_t at = 0; at < bytes;) {
                size_t n = (size_t)MIN(bytes - at, (uint64_t)COPY_BYTES);
                int r = fs_pread_all(from, buffer, n, at);
                if (r >= 0)
                        r = fs_write_all(to, buffer, n);
                if (r < 0)
                        return r;
                at += n;
        }
        return 0;
}

int attachments_write_copy(int dir_fd, const char *name, int from, uint64_t bytes) {
        if (unlinkat(dir_fd, name, 0) < 0 && errno != ENOENT) /* what a crash left */
                return -errno;
        _cleanup_close_ int to =
                openat(dir_fd, name, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
        if (to < 0)
                return -errno;
        int r = copy_content(to, from, bytes);
        if (r == 0 && fsync(to) < 0)
                r = -errno;
        return r;
}

void attachments_add_bytes(Attachments *a, uint64_t bytes) {
        a->bytes += bytes;
        a->more_bytes += bytes;
}

int attachments_put(Attachments *a, const AttachmentPlace *at, int fd) {
        struct stat st;
        if (!attachment_name_is_valid(at->name))
                return -EINVAL;
        if (fstat(fd, &st) < 0)
                return -errno;
        if (!S_ISREG(st.st_mode))
                return -EINVAL;
        _cleanup_close_ int unit = attachments_make_unit(a->path, at->source, at->unit_path);
        if (unit < 0)
                return unit;
        int r = attachments_check_unit(unit, at->name, (uint64_t)st.st_size);
        if (r == 0)
                r = check_room_of_all(a, (uint64_t)st.st_size);
        if (r < 0)
                return r;
        r = attachments_write_copy(unit, COMING, fd, (uint64_t)st.st_size);
        if (r == 0 && renameat(unit, COMING, unit, at->name) < 0)
                r = -errno;
        if (r == 0)
                attachments_add_bytes(a, (uint64_t)st.st_size);
        if (r == 0)
                r = fs_sync_dir(unit);
        if (r < 0)
                (void)unlinkat(unit, COMING, 0); /* else the next one does */
        return r;
}
