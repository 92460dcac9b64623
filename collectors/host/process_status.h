/* What of a process can be read without waiting for it, and the processes around it. */
#pragma once

#include "collectors/host/device_holders.h"
#include "collectors/host/process_report.h"

/** Each writes one record: status and I/O; executable, namespaces and cgroup; limits; children. */
void process_status_record(ProcessReport *report);
void process_status_place(ProcessReport *report);
void process_status_limits(ProcessReport *report);
void process_status_children(ProcessReport *report);

/** Writes which devices the process holds, and which processes hold them, too.
 * @param scan  of all holders @param mine  the devices of this process
 * @param outcome  of finding them (procfs.h) */
void process_status_devices(ProcessReport *report, const DeviceHolders *scan,
                            const DeviceHolder *mine, int outcome);

/** Writes a record of the job of each process that holds a device of this one, too. Reading their
 * environments may wait (procfs.h), so last. */
void process_status_neighbours(ProcessReport *report, const DeviceHolders *scan,
                               const DeviceHolder *mine);
