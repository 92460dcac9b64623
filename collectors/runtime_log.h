/* What of the runtime's logs may be read. Who names one may be anybody of this machine or of one of its containers, and we may read all files: so only
 * what is his is opened, as his process sees it. */
#pragma once

#include <sys/stat.h>

#include "collectors/collector.h"

/** Opens a log for reading when it is a regular file under one name (no hard links), not of proc_root, of sysfs or the like, and
 *  - its process has another mount namespace than init and we: looked up below that process's root, and owned by f->uid;
 *  - its process has one of these: by its path, without any symlink, and owned by f->uid or such that everybody may read it;
 *  - its process is not known, or has ended: by its path, without any symlink, owned by f->uid or root, and such that everybody may read it.
 * "Everybody may read it": others may read the file and search all directories on the way; of root's files only these are read.
 * @param ret_why  static, a phrase for people when nothing is opened
 * @return fd, -errno */
int runtime_log_open(const CollectOrder *order, const CollectLogFile *f, struct stat *ret_st,
                     const char **ret_why);
