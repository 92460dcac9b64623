/* What pins take on disk, and whether anything else still has a name. */
#include <errno.h>
#include <fcntl.h>
#include <sys/statvfs.h>

#include "agent/retention/pin_inodes.h"
#include "agent/retention/pins_private.h"
#include "lib/base/cleanup.h"
#include "lib/base/fs.h"
#include "lib/neuron/scan.h"

int pins_room(Pins *p, PinsRoom *ret) {
        struct statvfs vfs;
        struct stat st;

        int r = scan_open_fixed(p->directories[PLACE_INSIDE]);
        if (r < 0 && p->directories[PLACE_BESIDE]) {
                r = open(p->directories[PLACE_BESIDE], O_PATH | O_DIRECTORY | O_CLOEXEC);
                r = r < 0 ? -errno : r;
        }
        if (r < 0)
                return r;
        _cleanup_close_ int fd = r;
        if (fstatvfs(fd, &vfs) < 0 || fstat(fd, &st) < 0)
                return -errno;
        *ret = (PinsRoom){ .device = st.st_dev,
                           .total_bytes = (uint64_t)vfs.f_blocks * vfs.f_frsize,
                           .free_bytes = (uint64_t)vfs.f_bavail * vfs.f_frsize,
                           .total_inodes = vfs.f_files,
                           .free_inodes = vfs.f_files > 0 ? vfs.f_favail : 0 };
        return 0;
}

/* @param bundle_id  NULL: all of the instance's. 0 or -ENOMEM */
static int collect(const Pins *p, const char *bundle_id, PinInodes *ret) {
        int r = 0;
        for (Place place = 0; r >= 0 && place < N_PLACES; place++) {
                Squatter squatter;
                _cleanup_close_ int instance_fd = pins_open_instance(p, place, false, &squatter);
                _cleanup_close_ int fd =
                        instance_fd < 0 || !bundle_id
                                ? -1
                                : pins_open_own_dir(instance_fd, bundle_id, false, &squatter);
                ret->place = place;
                if ((bundle_id ? fd : instance_fd) >= 0)
                        r = pin_inodes_add_tree(ret, bundle_id ? fd : instance_fd, NULL);
        }
        pin_inodes_sort(ret);
        return r;
}

/* Where there are no leases nobody can tell, as when a bundle settles. */
static bool has_writer(Pins *p, const char *bundle_id, const PinInodes *own) {
        _cleanup_close_ int dir_fd = pins_open(p, bundle_id);
        for (size_t i = 0; dir_fd >= 0 && i < own->n; i++) {
                _cleanup_close_ int fd = fs_open_regular(dir_fd, own->items[i].path, NULL);
                int r = fd < 0 ? fd : fs_has_no_writer(fd);
                if (r != 0 && r != -ENOENT && r != FS_E_UNKNOWN)
                        return true;
        }
        return false;
}

static void add_up(PinsUse *use, const PinInodes *own, const PinInodes *all) {
        use->is_there = own->n > 0;
        use->is_only_ours = own->n > 0 && own->is_whole;
        for (size_t i = 0, n; i < own->n; i += n) {
                const PinInode *x = &own->items[i];
                n = pin_inodes_count(own, x->dev, x->ino, NULL);
                size_t ours = all ? MAX(n, pin_inodes_count(all, x->dev, x->ino, NULL)) : n;
                use->used_bytes += x->bytes;
                use->used_inodes++;
                if (x->n_links <= n + 1) { /* the source's own name, and nobody else's */
                        use->free_bytes += x->bytes;
                        use->free_inodes++;
                }
                use->is_only_ours = use->is_only_ours && x->n_links <= ours;
        }
}

int pins_measure(Pins *p, const PinsMeasure *m) {
        PinInodes all = { .max = m->max_inodes, .is_whole = true };
        int r = m->judge_links ? collect(p, NULL, &all) : 0;
        for (size_t i = 0; r >= 0 && i < m->n; i++) {
                PinInodes own = { .max = m->max_inodes, .is_whole = true };
                r = collect(p, m->uses[i].bundle_id, &own);
                if (r >= 0)
                        add_up(&m->uses[i], &own, m->judge_links ? &all : NULL);
                m->uses[i].has_writer = m->ask_writers && has_writer(p, m->uses[i].bundle_id, &own);
                pin_inodes_done(&own);
        }
        pin_inodes_done(&all);
        return r;
}
