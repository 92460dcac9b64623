/* What of the runtime's logs may be read. Who names one may be anybody of this machine or of one of its containers, and we may read all files: so only
 * what is his is opened: what a note names as his process sees it (runtime_log_open.c), what lies in a dump from there (runtime_log_dumps.c). */
#pragma once

#include <sys/stat.h>

#include "collectors/runner/collector.h"

/** Opens a log for reading when it is a regular file under one name (no hard links), not of proc_root, of sysfs or the like, and
 *  - its process has another mount namespace than init and we: looked up below that process's root, and owned by f->uid;
 *  - its process has one of these: by its path, without any symlink, and owned by f->uid or such that everybody may read it;
 *  - its process is not known, or has ended: by its path, without any symlink, owned by f->uid or root, and such that everybody may read it.
 * "Everybody may read it": others may read the file and search all directories on the way; of root's files only these are read.
 * @param ret_why  static, a phrase for people when nothing is opened
 * @return fd, -errno */
int runtime_log_open(const CollectOrder *order, const CollectLogFile *f, struct stat *ret_st,
                     const char **ret_why);

/** A log in a dump, or a dump that cannot be looked into. */
typedef struct DumpLog {
        char *path;       /* of the log; of the dump */
        const char *name; /* in path: below dir_fd; NULL: of a dump, and `error` says why */
        int dir_fd;       /* borrowed from DumpLogs */
        int error;        /* -errno */
        uid_t uid, owner; /* who named the dump, whose directory it is */
} DumpLog;

typedef struct DumpLogs {
        DumpLog *items;
        size_t n, n_left_out; /* left_out: more than COLLECT_FILES_MAX */
        int dir_fds[COLLECT_DUMPS_MAX];
        size_t n_dirs;
} DumpLogs;

void dump_logs_done(DumpLogs *logs);

/** Finds, by their names, this instance's logs right in the order's dumps. On the way to a dump only symlinks of root's and ours are followed. A dump that
 * is not there (yet) has none. @param ret  zeroed; for dump_logs_done() in any case @return 0, -errno */
int runtime_log_find(const CollectOrder *order, DumpLogs *ret);

/** Opens one for reading when it is a regular file, no symlink, and log->uid's or log->owner's. It may have other names: the agent's own hard link is one.
 * @param ret_why  as above @return fd, -errno */
int runtime_log_open_found(const DumpLog *log, struct stat *ret_st, const char **ret_why);
