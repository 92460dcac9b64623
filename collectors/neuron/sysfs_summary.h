/* The values of one device that matter most, by the names of their files. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "lib/base/strbuf.h"

enum {
        SYSFS_TEXT_MAX = 160,
        SYSFS_MEASURES_MAX = 96,
        SYSFS_FACTS = 7,
};

typedef struct SysfsMeasure {
        char path[SYSFS_TEXT_MAX], text[SYSFS_TEXT_MAX];
} SysfsMeasure;

typedef struct SysfsFact {
        char text[SYSFS_TEXT_MAX];
        unsigned
                depth; /* below the device: of two files of one name, the one nearer to it counts */
        bool is_known;
} SysfsFact;

/** Zero: empty. It contains no pointers, because a process fills it in shared memory. All text is
 * NUL-terminated, and cut to fit. */
typedef struct SysfsSummary {
        SysfsFact facts[SYSFS_FACTS]; /* serial number, cores … */
        uint32_t n_measures;
        bool is_cut;                               /* there were more measures */
        SysfsMeasure measures[SYSFS_MEASURES_MAX]; /* of error correction and health */
} SysfsSummary;

/** Notes a value, if its name is of interest. @param path  of the file, below the device */
void sysfs_summary_note(SysfsSummary *s, const char *path, const char *data, size_t n);

/** Adds the member `summary` to the object that is open. @param s  may have any content */
void sysfs_summary_add(StrBuf *b, const SysfsSummary *s);
