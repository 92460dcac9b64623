/* All links that a bundle has: opened to be read, listed, released, and the record of the unit that
 * they are of. Blocking: call it from a worker. */
#pragma once

#include <stddef.h>
#include <sys/types.h>

#include "agent/retention/link_dirs.h"

/** Opens the directory with a bundle's links, to deliver from it.
 * @return fd; -ENOENT: it has no links; -EINVAL: bundle_id is no name; -errno */
int links_open(LinkDirs *dirs, const char *bundle_id);

/** Removes all links of a bundle, and the record of its unit. @return 0, also when it has none;
 * -EINVAL: bundle_id is no name; -errno: some are left */
int links_release(LinkDirs *dirs, const char *bundle_id);

/** Calls back for each directory of links, also of bundles that nobody knows, and once for each
 * place when a bundle has links in both. Removes the records of units whose links are gone.
 * @param on_links  bundle_id is the directory's name, not necessarily a bundle's; path is absolute.
 *   A negative return ends the listing
 * @return 0; what on_links returned; -errno */
int links_list(LinkDirs *dirs,
               int (*on_links)(const char *bundle_id, const char *path, void *userdata),
               void *userdata);

/** Records which unit a bundle's links are of. Errors are ignored: without the record the links
 * hold the files all the same, but a row that was lost cannot be created again from them.
 * @param instance_fd  from link_dirs_open_instance()  @param path  of the unit, absolute */
void links_record_unit(int instance_fd, const char *bundle_id, const char *path, uid_t uid);
/** Reads that record. @param ret_path  absolute; the caller frees it
 * @return 0; -ENOENT: there is none; -EINVAL: it is not ours; -errno */
int links_read_unit(LinkDirs *dirs, const char *bundle_id, char **ret_path, uid_t *ret_uid);

/** @return the number of bundles that another node's links hold, as far as this process may read
 * them */
size_t links_count_of_node(LinkDirs *dirs, const char *instance_id);
