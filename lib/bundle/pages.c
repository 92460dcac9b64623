#include "lib/bundle/pages.h"

#include <fcntl.h>
#include <linux/fiemap.h>
#include <linux/fs.h>
#include <sys/ioctl.h>

#include "lib/base/cleanup.h"

#define KEEP_BYTES (4 * MIB) /* a multiple of large folios, which are dropped whole or not at all */
#define AHEAD_BYTES (4 * MIB)
#define AHEAD_STEP                                                                                 \
        (128 * KIB) /* the kernel cuts a longer request where a device reads ahead as little */

/* Whether a range was written so lately that the file system has given it no place yet. Such pages cannot be dropped; to
 * ask for it would only make us write the file to disk. Where nothing can be learned: no. */
static bool is_unwritten(int fd, uint64_t offset, uint64_t bytes) {
        enum { EXTENTS = 8 };
        union {
                struct fiemap map;
                uint8_t room[sizeof(struct fiemap) + EXTENTS * sizeof(struct fiemap_extent)];
        } q = { .map = { .fm_start = offset, .fm_length = bytes, .fm_extent_count = EXTENTS } };

        if (ioctl(fd, FS_IOC_FIEMAP, &q.map) < 0)
                return false;
        for (uint32_t i = 0; i < MIN(q.map.fm_mapped_extents, (uint32_t)EXTENTS); i++)
                if (q.map.fm_extents[i].fe_flags & FIEMAP_EXTENT_DELALLOC)
                        return true;
        return false;
}

void pages_give_back(Pages *p, uint64_t offset) {
        uint64_t bytes = offset - p->given;

        if (bytes > 0 && !is_unwritten(p->fd, p->given, bytes))
                (void)posix_fadvise(p->fd, (off_t)p->given, (off_t)bytes, POSIX_FADV_DONTNEED);
        p->given = offset;
}

void pages_read_up_to(Pages *p, uint64_t offset) {
        if (offset - p->given >= KEEP_BYTES)
                pages_give_back(p, offset - offset % KEEP_BYTES);
}

/* The kernel reads ahead by itself only where a page is missing, as much as the device says, which may be many MiB; what is asked for
 * here is not missing. Where such advice is not taken (Lustre, whose client reads ahead on its own), nothing changes. */
void pages_ask(Pages *p, uint64_t offset, uint64_t end) {
        if (!p->wants_ahead)
                return;
        p->asked = MAX(p->asked, offset);
        if (p->asked - offset > AHEAD_BYTES / 2)
                return;
        for (end = MIN(end, offset + AHEAD_BYTES); p->asked < end;) {
                const uint64_t n = MIN(end - p->asked, (uint64_t)AHEAD_STEP);
                (void)posix_fadvise(p->fd, (off_t)p->asked, (off_t)n, POSIX_FADV_WILLNEED);
                p->asked += n;
        }
}
