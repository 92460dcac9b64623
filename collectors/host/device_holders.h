/* Which processes hold the machine's Neuron devices. No device is opened. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <sys/types.h>

#include "collectors/host/procfs.h"
#include "collectors/runner/collector.h"
#include "lib/base/strbuf.h"

#define DEVICE_HOLDERS_MAX 1024
#define DEVICE_HOLDER_DEVICES_MAX 64 /* of one process; a node has 16 */
#define DEVICE_HOLDER_FDS_MAX 65536  /* examined of one process */

typedef struct DeviceHolder {
        ProcStat stat;
        uid_t uid;
        int devices[DEVICE_HOLDER_DEVICES_MAX]; /* ascending */
        size_t n_devices;
        bool is_write_only; /* all of them O_WRONLY, which marks no core as used */
        bool is_by_name;    /* one of them is known by its name alone */
        bool maps_runtime;  /* libnrt.so is mapped; known by DEVICE_HOLDERS_BY_MAPS only */
        bool is_reported;   /* the collector jobs has written its record */
} DeviceHolder;

typedef struct DeviceHolders {
        DeviceHolder *holders; /* by pid, ascending */
        size_t n_holders;
        size_t n_processes, n_hidden; /* hidden: of these processes, could not be examined */
        bool is_cut;                  /* there are more than DEVICE_HOLDERS_MAX */
} DeviceHolders;

typedef enum DeviceHoldersMode {
        DEVICE_HOLDERS_BY_FDS,  /* processes with a descriptor of a device; never waits */
        DEVICE_HOLDERS_BY_MAPS, /* processes that have the runtime mapped; may wait (procfs.h), so
                                   only in a child */
} DeviceHoldersMode;

/** Examines all processes. @return 0, -errno */
int device_holders_scan(const CollectRequest *request, DeviceHoldersMode mode, DeviceHolders *ret);
void device_holders_done(DeviceHolders *s);

/** Finds the devices that one process holds. Never waits. A descriptor counts when its link leads
 * to <device_directory>/neuronN or /dev/neuronN and, where that can be checked, it is that device.
 * @param h  devices, is_write_only and is_by_name are set @return 0, or an outcome of procfs.h */
int device_holders_inspect(const CollectRequest *request, const Proc *p, DeviceHolder *h);

/** May wait (procfs.h), so only in a child. @param ret_hidden  its maps cannot be read
 * @return whether a process has libnrt.so mapped */
bool device_holders_maps_runtime(const Proc *p, bool *ret_hidden);

/** Adds "devices": [0, 1] to the object that is open. */
void device_holders_add_devices(StrBuf *b, const DeviceHolder *h);
