/* The devices by their names, neuron0 … neuron63, and parts of the collector neuron_sysfs: a
 * bounded walk that reads whatever lies below a device in sysfs, and the values of interest that
 * are found by the names of their files alone, since driver 2.31 moved them (docs/BUNDLE.md,
 * neuron_sysfs). No library: the hook uses it, too. */
#pragma once

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "lib/base/strbuf.h"

enum { NEURON_DEVICES_MAX = 64 };

typedef struct NeuronNames { /* in the order of their numbers; zero = none */
        char items[NEURON_DEVICES_MAX][sizeof "neuron63"];
        size_t n;
} NeuronNames;

/** @return the number of the device that has this name, -1: none has */
int neuron_number(const char *name);

/** The devices that have an entry in a directory. @param of_directories  whether theirs is one, too
 * @return 0, -errno */
int neuron_list(const char *directory, bool of_directories, NeuronNames *ret);

enum {
        SYSFS_FILE_BYTES_MAX = 4096, /* sysfs never gives more than a page */
        SYSFS_DEPTH_MAX = 8,         /* directories between the device and a file */
        SYSFS_FILES_MAX =
                20000, /* of all devices together; 16 devices of 8 cores have about 15,000 */
        SYSFS_DEVICE_FILES_MAX = 4000,    /* of one */
        SYSFS_DEVICE_ENTRIES_MAX = 16000, /* names examined, of whatever type */
        SYSFS_DEFERRED_MAX = 512,         /* files of a device that are read last */
        SYSFS_LINE_BYTES_MAX = 64 << 10,  /* longest record of a walk */
        SYSFS_PATH_MAX = 512,
        SYSFS_TEXT_MAX = 160,
        SYSFS_MEASURES_MAX = 96,
};

typedef struct SysfsText {
        char text[SYSFS_TEXT_MAX];
} SysfsText;

typedef struct SysfsMeasure {
        char path[SYSFS_TEXT_MAX], text[SYSFS_TEXT_MAX];
} SysfsMeasure;

typedef struct SysfsFact {
        char text[SYSFS_TEXT_MAX];
        unsigned depth; /* of two with one name the one nearer to the device counts */
        bool is_known;
} SysfsFact;

/** Values of one device, by the names of their files. All text is ended by NUL and cut to fit. */
typedef struct SysfsSummary {
        SysfsFact facts[7]; /* in the order of sysfs_fact_names */
        uint32_t n_measures;
        bool is_cut;                               /* there were more measures */
        SysfsMeasure measures[SYSFS_MEASURES_MAX]; /* of error correction and health */
} SysfsSummary;

/** How far a walk has come, in memory that the part shares with its caller: what was known, and
 * what was being read, outlives a part that hung. */
typedef struct SysfsProgress {
        char reading[SYSFS_PATH_MAX]; /* below the device; "" when nothing is being read */
        char cut[SYSFS_TEXT_MAX];     /* why something was left out; "" when nothing was */
        uint32_t n_files, n_errors;
        SysfsSummary summary;
} SysfsProgress;

typedef struct SysfsWalk {
        const char *device; /* as records name it */
        SysfsProgress *progress;
        _Atomic uint32_t *n_files_all; /* of all walks together */
        unsigned depth_max;            /* 0: only the files of the directory itself */
        size_t bytes_max;              /* records */
        int (*on_line)(const char *line, size_t n,
                       void *userdata); /* a record with its newline; negative ends the walk */
        void *userdata;
} SysfsWalk;

/** Reads all regular files below dir_fd, and writes one record a directory. Never opens for
 * writing, never what is called `reset`, never what nobody may read, no symlink. Files whose
 * reading asks the device's hardware or firmware come last, each with a record of its own, since
 * they may hang.
 * @param dir_fd  borrowed  @return 0 also when something was left out (progress->cut); -errno of
 * on_line() or -ENOMEM */
int sysfs_walk(const SysfsWalk *walk, int dir_fd);

typedef struct SysfsValue {
        char data[SYSFS_FILE_BYTES_MAX +
                  1]; /* without a newline at the end, and not ended by NUL */
        size_t n;     /* at most SYSFS_FILE_BYTES_MAX */
        bool is_cut;  /* the file had more */
} SysfsValue;

/** Reads one file. @param name  relative to dir_fd, no symlinks @return 0; -errno; -EBADF when it
 * is no regular file */
int sysfs_read(int dir_fd, const char *name, SysfsValue *ret);

/** Takes a value into the summary when its name is one of interest. */
void sysfs_summary_note(SysfsSummary *s, const char *path, const char *data, size_t n);
/** Adds the summary as the member `summary` of the object that is open. */
void sysfs_summary_add(StrBuf *b, const SysfsSummary *s);
