/* Reads all files of a device in sysfs. */
#pragma once

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "collectors/neuron/sysfs_summary.h"

enum {
        SYSFS_PATH_MAX = 512,
        SYSFS_LINE_BYTES_MAX = 64 << 10, /* the longest record of a walk */
};

/** How far a walk has come. It lies in memory that the walking process shares with the collector,
 * and so outlives a process that hung. */
typedef struct SysfsProgress {
        char reading[SYSFS_PATH_MAX]; /* the file that is read, below the device; "": none */
        char cut[SYSFS_TEXT_MAX];     /* why something was left out; "": nothing was */
        uint32_t n_files, n_errors;
        SysfsSummary summary;
} SysfsProgress;

typedef struct SysfsWalk {
        const char *device; /* as records name it */
        SysfsProgress *progress;
        _Atomic uint32_t *n_files_all; /* of all walks of a snapshot */
        bool is_flat;                  /* only the files of the directory itself */
        int out_fd;                    /* gets the records */
} SysfsWalk;

/** Reads all regular files below a directory, and writes a record for each directory. Files that
 * may hang come last.
 * @param dir_fd  borrowed @param max_bytes  of records
 * @return 0, also when something was left out (progress->cut); -errno */
int sysfs_walk(const SysfsWalk *walk, int dir_fd, size_t max_bytes);
