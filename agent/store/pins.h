/* Hard links that hold the sources of a bundle until it is proven: `.neuron-collectd/<instance-id>/<bundle-id>/<member path>` beside
 * the fixed part of the source (inside it where the parent is another mount or not writable). Blocking: from a worker. */
#pragma once

#include <stdbool.h>
#include <stdint.h>
#include <sys/stat.h>

#include "lib/base/cleanup.h"

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

/** Tells of each bundle that has pins, and of strays; more than once where several places have some. The names are what the
 * directories hold, not necessarily bundle ids. @param path  where, absolute. A negative return of on_pins ends it and is returned */
int pins_list(Pins *p, int (*on_pins)(const char *bundle_id, const char *path, void *userdata),
              void *userdata);

/** One walk over one unit: keeps directories open, so that a member costs a few calls. One thread, nobody else adding to or
 * releasing this bundle's pins meanwhile. */
typedef struct PinsSession PinsSession;

/** @param p, bundle_id  borrowed for the session's life; "" = no bundle yet: it has no pins, but others' explain links
 * @param max_inodes  so many pins of this bundle, and so many of others, are looked at when links have to be explained
 * @return 0, -EINVAL, -ENOMEM */
int pins_session_new(PinsSession **ret, Pins *p, const char *bundle_id, size_t max_inodes);
PinsSession *pins_session_free(PinsSession *s);
DEFINE_CLEANUP(PinsSession, pins_session_free);

/** As pins_add. A member that is pinned under another path (it was renamed) is then pinned under this one only, if
 * pins_session_own_links was asked about it. */
int pins_session_add(PinsSession *s, const char *member_path, int unit_fd, const struct stat *st,
                     char **ret_error);

/** @param ret_has  as pins_has
 * @return how many of the inode's links are pins of ours, whatever the path and the bundle; no more are counted than explain st_nlink */
unsigned pins_session_own_links(PinsSession *s, const char *member_path, const struct stat *st,
                                bool *ret_has);

/** @return whether this bundle has pins, and each one's inode has a name that is no pin of ours */
bool pins_session_lives_on(PinsSession *s);

/** After pins_session_lives_on: notes that an inode was met. @return whether it is pinned for this bundle */
bool pins_session_see(PinsSession *s, const struct stat *st);
/** @return whether every inode pinned for this bundle was met */
bool pins_session_all_seen(const PinsSession *s);
