/* Whether a Neuron device may be opened, found without opening one.
 *
 * On a node of an UltraServer, closing a device may reset the election of the server's nodes. There
 * a device is therefore opened only while another process uses one. Only a process that has the
 * runtime loaded counts: the runtime marks cores as used, and a process that holds a device without
 * it, such as a monitor, does not keep the election. What cannot be found out counts against
 * opening. */
#include "collectors/neuron/device_access.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>

#include "collectors/host/device_holders.h"
#include "collectors/host/procfs.h"
#include "lib/base/cleanup.h"
#include "lib/base/fs.h"
#include "lib/base/path.h"

enum { SMALL_FILE_MAX = 4096 };

/* @return the text of a file, the caller's; NULL: see *ret_error */
static char *read_below(const char *root, const char *name, int *ret_error) {
        _cleanup_free_ char *path = path_join(root, name);
        char *text = NULL;

        *ret_error = path ? fs_read_file(AT_FDCWD, path, SMALL_FILE_MAX, &text, NULL) : -ENOMEM;
        return text;
}

/* @return whether a mode stands for more than one node: `1` is a server of one */
static bool mode_has_servers(const char *mode) {
        for (const char *p = mode; *p; p++)
                if (!strchr("01, \n", *p))
                        return true;
        return strstr(mode, "10") || strstr(mode, "11");
}

bool device_access_is_ultraserver(const char *sysfs_root, const char **ret_why) {
        /* Types of instances that the driver knows as parts of larger servers. Source: the driver's
         * sources */
        static const char *const types[] = { "trn2u", "trn2eu", "trn2es", "trn3s", "trn3pd98" };
        _cleanup_free_ char *mode = NULL, *type = NULL;
        int r;

        mode = read_below(sysfs_root, "class/neuron_device/ultraserver_mode", &r);
        if (mode ? mode_has_servers(mode) : r != -ENOENT) {
                *ret_why = "ultraserver_mode says that the node can be part of an UltraServer";
                return true;
        }
        type = read_below(sysfs_root, "devices/virtual/dmi/id/product_name", &r);
        for (size_t i = 0; type && i < ELEMENTSOF(types); i++)
                if (strncmp(type, types[i], strlen(types[i])) == 0) {
                        *ret_why = "the instance type is one of an UltraServer";
                        return true;
                }
        return false;
}

DeviceHeld device_access_find_holder(const CollectRequest *request) {
        _cleanup_(device_holders_done) DeviceHolders scan = { 0 };
        if (device_holders_scan(request, DEVICE_HOLDERS_BY_FDS, &scan) < 0)
                return DEVICE_HELD_UNKNOWN;
        bool is_incomplete = scan.is_cut || scan.n_hidden > 0;
        for (size_t i = 0; i < scan.n_holders; i++) {
                const DeviceHolder *h = &scan.holders[i];
                bool is_hidden = false, has_runtime = false;
                _cleanup_(procfs_close) Proc p = { .dir_fd = -1 };
                if (h->is_write_only)
                        continue;
                int r = procfs_open(&p, request->proc_root, h->stat.pid, h->stat.start_ticks);
                if (r == 0)
                        has_runtime = device_holders_maps_runtime(&p, &is_hidden);
                if (has_runtime && !h->is_by_name)
                        return DEVICE_HELD;
                is_incomplete |= has_runtime || is_hidden || r < 0 || r == PROCFS_E_HIDDEN;
        }
        return is_incomplete ? DEVICE_HELD_UNKNOWN : DEVICE_NOT_HELD;
}
