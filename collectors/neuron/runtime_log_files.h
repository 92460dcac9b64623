/* Finds and opens the log files of the runtime for the collector runtime_log. */
#pragma once

#include <stddef.h>
#include <sys/stat.h>

#include "collectors/runner/collector.h"

/** Opens a log that a note has named, if the sender of the note may read it.
 * @param ret_st  of the file @param ret_why  static or of strerror(): why it was refused
 * @return fd, the caller's; -errno */
int runtime_log_files_open_named(const CollectRequest *request, const CollectLogFile *f,
                                 struct stat *ret_st, const char **ret_why);

/** A log in a dump, or a dump that cannot be examined. */
typedef struct RuntimeLogFile {
        char *path;       /* of the log, or of the dump */
        const char *name; /* of the log, in path; NULL: the dump cannot be examined */
        const CollectDump *dump;
        int error; /* -errno: why not */
} RuntimeLogFile;

typedef struct RuntimeLogFiles {
        RuntimeLogFile *items;
        size_t n, n_left_out; /* left_out: beyond COLLECT_FILES_MAX */
} RuntimeLogFiles;

/** Lists the logs of this node in the dumps of a request. @return 0, -ENOMEM */
int runtime_log_files_find(const CollectRequest *request, RuntimeLogFiles *ret);
void runtime_log_files_done(RuntimeLogFiles *logs);

/** Opens a log in a dump, if it belongs to the user who named the dump or to its directory's owner.
 * Otherwise as runtime_log_files_open_named(). */
int runtime_log_files_open_in_dump(const RuntimeLogFile *log, struct stat *ret_st,
                                   const char **ret_why);
