/* Where a process's files are, and which files are none: what everybody must ask who reads files of others. */
#pragma once

#include <stdbool.h>

/** @param namespace  the link `ns/mnt` of a process @return whether it is init's mount namespace or ours, in which paths mean what they mean to us. When in doubt it
 * counts as another one, in which less is read */
bool places_is_here(const char *proc_root, const char *namespace);

/** @return whether what fd stands for is in one of the kernel's own file systems (/proc, /sys, cgroups …), where a regular file is none, or cannot be
 * asked. @see statfs(2) */
bool places_is_of_the_kernel(int fd);
