/* From the collector's raw files to the directory that the container had: `<state_directory>/containers/<source>/<unit>/<its name>`. Blocking: for a worker.
 * Can be begun again at any point: what is in its place stays there. */
#pragma once

#include <sys/types.h>

#include "agent/containers_copy.h"

#define CONTAINER_COPY_FILE                                                                        \
        "container-copy.json" /* what is told of it, and attached to its bundle */
#define CONTAINER_COPY_SCHEMA "neuron-collectd/container-copy/1"
#define CONTAINER_COPY_MAX_BYTES ((size_t)16 << 20)
#define CONTAINER_UNITS_DIRECTORY                                                                  \
        ".units" /* `<source>.<unit>.json`: the same, kept while the copy lies there */

typedef struct TreeUnit {
        char unit[COPY_UNIT_SIZE], container[COPY_CONTAINER_SIZE];
        char *source;   /* as it is configured */
        char *relative; /* of the unit, below the fixed part of the source's path */
        char *final;    /* absolute: where it goes */
        char *path;     /* as the container saw it */
        uid_t uid;
        char **notes; /* ids */
        size_t n_notes;
        /* The answer: */
        int result;     /* 0, -errno */
        int about_fd;   /* of CONTAINER_COPY_FILE, read-only; -1 */
        char **missing; /* paths: seen, and not there */
        size_t n_missing;
        size_t n_added; /* files that came into their place, or took another's */
        bool is_whole;
        uint64_t disk_bytes; /* that the directory takes */
} TreeUnit;
void tree_unit_done(TreeUnit *u);

/** Adds to what is missing. @return 0, -ENOMEM */
int tree_unit_add_missing(TreeUnit *u, const char *path);

/** Builds one. @param root_fd  of `<state_directory>/containers` @param batch_fd  where the raw files are @return u->result */
int tree_build(TreeUnit *u, int root_fd, int batch_fd, const CopyDocument *d);

/** Reads what tree_build() has left of a unit: source, unit, relative, uid, is_whole, and as missing all that was left out, also what is there in an earlier
 * state. @param name  in CONTAINER_UNITS_DIRECTORY @return 0, -EBADMSG, -errno */
int tree_unit_read(TreeUnit *u, int units_fd, const char *name);
/** @return the caller's, NULL for lack of memory */
char *tree_unit_path(const char *root, const TreeUnit *u);
/** @return the caller's, NULL for lack of memory */
char *tree_unit_file(const char *source, const char *unit);

/** @return bytes that the files below take on disk; what cannot be seen does not count */
uint64_t tree_measure(int dir_fd);
