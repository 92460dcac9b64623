/* The list of directories that had hard links of ours, a line each, without symlinks in it: a
 * source may be configured no more when the agent is removed. Packages read it, too. Blocking. */
#pragma once

#define LINK_LIST_NAME "link-directories" /* in the state directory */

/** Adds a directory, durably. @param file  the list  @return 0, also when it is there, -errno */
int link_list_add(const char *file, const char *directory);

/** @param on_directory  gets each; borrowed  @return 0, -ENOENT: there is none, -errno */
int link_list_read(const char *file, void (*on_directory)(const char *directory, void *userdata),
                   void *userdata);
