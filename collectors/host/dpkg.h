/* dpkg's status file (deb822(5), deb-control(5)). No library: the hook uses it. */
#pragma once

#define DPKG_WORD_SIZE 128

/** on_package gets each package that has a name, whatever its status. What is longer is cut. */
typedef struct DpkgParser {
        char line[1024]; /* what is longer is cut: no field of interest is */
        char name[DPKG_WORD_SIZE], version[DPKG_WORD_SIZE], status[64];
        void (*on_package)(const struct DpkgParser *p, void *userdata);
        void *userdata;
} DpkgParser;

/** Reads what a file has from where it stands. @return 0; 1: there is more than 64 MiB; -errno */
int dpkg_read(DpkgParser *p, int fd);
