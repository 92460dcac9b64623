/* Measures for the retention policy (policy.c): how much space links of ours use, how much of it a
 * release would free, whether anybody but us still has the files, and whether a process is writing
 * to them. Each inode counts once, however many links of the bundle it has. */
#include "agent/retention/link_usage.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <sys/statvfs.h>

#include "agent/retention/link_inodes.h"
#include "agent/retention/links.h"
#include "lib/base/cleanup.h"
#include "lib/base/fs.h"
#include "lib/neuron/scan.h"

int link_usage_query_space(LinkDirs *dirs, RetentionSpace *ret, dev_t *ret_device) {
        struct statvfs vfs;
        struct stat st;

        int r = scan_open_fixed(link_dirs_path(dirs, LINK_INSIDE));
        if (r < 0 && link_dirs_path(dirs, LINK_BESIDE)) {
                r = open(link_dirs_path(dirs, LINK_BESIDE), O_PATH | O_DIRECTORY | O_CLOEXEC);
                r = r < 0 ? -errno : r;
        }
        if (r < 0)
                return r;
        _cleanup_close_ int fd = r;
        if (fstatvfs(fd, &vfs) < 0 || fstat(fd, &st) < 0)
                return -errno;
        *ret_device = st.st_dev;
        *ret = (RetentionSpace){ .total_bytes = (uint64_t)vfs.f_blocks * vfs.f_frsize,
                                 .free_bytes = (uint64_t)vfs.f_bavail * vfs.f_frsize,
                                 .total_inodes = vfs.f_files,
                                 .free_inodes = vfs.f_files > 0 ? vfs.f_favail : 0 };
        return 0;
}

/* A file system without leases cannot tell; then there is no writer, as when a bundle settles. */
static bool has_writer(LinkDirs *dirs, const char *bundle_id, const LinkInodes *own) {
        _cleanup_close_ int dir_fd = links_open(dirs, bundle_id);
        for (size_t i = 0; dir_fd >= 0 && i < own->n; i++) {
                _cleanup_close_ int fd = fs_open_regular(dir_fd, own->items[i].path, NULL);
                int r = fd < 0 ? fd : fs_check_writer(fd);
                if (r != 0 && r != -ENOENT && r != FS_E_UNKNOWN)
                        return true;
        }
        return false;
}

static void add_up(LinkUsage *use, const LinkInodes *own, const LinkInodes *all) {
        use->is_there = own->n > 0;
        use->is_only_ours = own->n > 0 && own->is_complete;
        for (size_t i = 0, n; i < own->n; i += n) {
                const LinkInode *x = &own->items[i];
                n = link_inodes_count(own, x->dev, x->ino, NULL);
                size_t ours = all ? MAX(n, link_inodes_count(all, x->dev, x->ino, NULL)) : n;
                use->used_bytes += x->bytes;
                use->used_inodes++;
                if (x->n_links <= n + 1) { /* only the source's own name remains */
                        use->free_bytes += x->bytes;
                        use->free_inodes++;
                }
                use->is_only_ours = use->is_only_ours && x->n_links <= ours;
        }
}

int link_usage_measure(LinkDirs *dirs, const LinkMeasure *m) {
        LinkInodes all;
        link_inodes_init(&all, m->max_inodes);
        int r = m->explain_links ? link_inodes_add_instance(&all, dirs, NULL) : 0;
        for (size_t i = 0; r >= 0 && i < m->n; i++) {
                LinkInodes own;
                link_inodes_init(&own, m->max_inodes);
                r = link_inodes_add_bundle(&own, dirs, m->uses[i].bundle_id);
                if (r >= 0)
                        add_up(&m->uses[i], &own, m->explain_links ? &all : NULL);
                m->uses[i].has_writer =
                        m->ask_writers && has_writer(dirs, m->uses[i].bundle_id, &own);
                link_inodes_done(&own);
        }
        link_inodes_done(&all);
        return r;
}
