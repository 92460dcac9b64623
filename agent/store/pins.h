/* Hard links that hold the sources of a bundle until it is proven: `.neuron-collectd/<instance-id>/<bundle-id>/<member path>` beside
 * the fixed part of the source (inside it where the parent is another mount or not writable). Blocking: from a worker. */
#pragma once

#include <stdbool.h>
#include <stdint.h>
#include <sys/stat.h>

typedef struct Pins Pins;

/** @param fixed  fixed part of the source's path (absolute). Nothing is created yet. The object is immutable after this call and may be used by
 * several threads for different bundles. */
int pins_new(Pins **ret, const char *fixed, const char *instance_id);
Pins *pins_free(Pins *p);

/** Links one member. Creates the directories 0700 and checks that each of ours belongs to us and is no symlink (a squatter's is
 * refused). A pin of an older inode under the same name is replaced. Where the place beside the fixed part refuses for any reason,
 * the one inside it is tried. Needs no capability for files of its own; for others' the agent has CAP_FOWNER (protected_hardlinks).
 * @return 0; PINS_E_REFUSED: links cannot be made here (EXDEV, EPERM, EMLINK, ENOSYS, a squatter), *ret_error says why and the
 * remedy (the caller's); -ENOENT: the member is gone, or is another inode than `st`, or no regular file; -EINVAL: not a path below */
enum { PINS_E_REFUSED = 1 };
int pins_add(Pins *p, const char *bundle_id, const char *member_path, int unit_fd,
             const char *path_below_unit, const struct stat *st, char **ret_error);

/** @return whether our pin for this member exists and is this inode (then one of st_nlink is ours) */
bool pins_has(Pins *p, const char *bundle_id, const char *member_path, const struct stat *st);

/** Opens the directory with the bundle's pins, to ship from it. -ENOENT when there is none */
int pins_open(Pins *p, const char *bundle_id);

/** Opens (and makes, checked) the `.neuron-collectd` directory that lies above the instances' ones: claim files live there. -errno */
int pins_open_root(Pins *p);

/** Removes all pins of a bundle. Missing is fine. */
int pins_release(Pins *p, const char *bundle_id);

/** Removes pins of bundles for which keep(bundle_id) says no: what a crash left. The names are what the directory holds, not
 * necessarily bundle ids. Not while pins_add runs. */
int pins_sweep(Pins *p, bool (*keep)(const char *bundle_id, void *userdata), void *userdata);
