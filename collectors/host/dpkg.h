/* dpkg's status file (deb822(5), deb-control(5)). No library: the hook uses it. */
#pragma once

#define DPKG_WORD_SIZE 128

/** Calls on_package for each package that has a name, whatever its status. Fields are cut to fit.
 */
typedef struct DpkgParser {
        char line[1024]; /* longer lines are cut; no field of interest is that long */
        char name[DPKG_WORD_SIZE], version[DPKG_WORD_SIZE], status[64];
        void (*on_package)(const struct DpkgParser *p, void *userdata);
        void *userdata;
} DpkgParser;

/** Reads a file from its current offset. @return 0; 1: it has more than 64 MiB; -errno */
int dpkg_read(DpkgParser *p, int fd);
