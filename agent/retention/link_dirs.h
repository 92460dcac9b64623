/* Where this node's hard links to the files of one source are:
 * `.neuron-collectd/<instance-id>/<bundle-id>/<path of the member in the bundle>`, beside the fixed
 * part of the source's path or inside it. Blocking: call it from a worker. */
#pragma once

#include <stdbool.h>
#include <sys/stat.h>
#include <sys/types.h>

#include "agent/retention/own_dir.h"
#include "lib/base/cleanup.h"
#include "lib/base/strbuf.h"

#define LINK_DIRS_NAME ".neuron-collectd"

/* What else is in the directory `<instance-id>`; no bundle id begins with a dot. */
#define LINK_NEW_PREFIX OWN_DIR_NEW_PREFIX /* + bundle id: a link on its way to its name */
#define LINK_TAKEN_PREFIX                                                                          \
        ".taken-"                 /* + bundle id: a file that is being deleted (link_deletion.c) */
#define LINK_UNIT_PREFIX ".unit-" /* + bundle id: a symlink to `UID:PATH` of its unit (links.c) */

/** The two places of `.neuron-collectd`. Links are made beside the fixed part, and inside it where
 * they cannot be made beside it. Whoever searches for links searches both, because another mount or
 * permission may have decided when they were made. */
typedef enum LinkPlace { LINK_BESIDE, LINK_INSIDE, N_LINK_PLACES } LinkPlace;

typedef struct LinkDirs LinkDirs;

/** Creates nothing on disk. After the setters below the object does not change, and several threads
 * may use it, each for another bundle.
 * @param fixed  the fixed part of the source's path, absolute
 * @return 0, -EINVAL, -ENOMEM */
int link_dirs_new(LinkDirs **ret, const char *fixed, const char *instance_id);
LinkDirs *link_dirs_free(LinkDirs *dirs);

/** Sets the file that lists every directory with links (link_list.h). Call it before `dirs` is
 * used: a directory is listed before a link is made in it. @param file  copied  @return 0, -ENOMEM
 */
int link_dirs_set_list(LinkDirs *dirs, const char *file);
/** Sets the users whose files are accepted on a network file system, beside this process's user and
 * root. Call it before `dirs` is used. @param users  for agent_uid_is_trusted(), copied
 * @return 0, -ENOMEM */
int link_dirs_set_trusted(LinkDirs *dirs, const char *const *users);

const char *link_dirs_instance_id(const LinkDirs *dirs);
/** @return the directory that `.neuron-collectd` is in; NULL: LINK_BESIDE of the root directory */
const char *link_dirs_path(const LinkDirs *dirs, LinkPlace place);
/** @param own_uid  from link_dirs_open_root() or link_dirs_open_shared()
 * @return whether the owner of a file on a network file system is a user that an agent runs as */
bool link_dirs_is_agents(const LinkDirs *dirs, const struct stat *st, uid_t own_uid);

/** Opens `.neuron-collectd` in one place.
 * @param ret_uid       set to the owner that files of this process have in it
 * @param ret_squatter  set with -EUCLEAN; may be NULL
 * @return fd; -ENOENT; -EUCLEAN: another user has created it; -errno */
int link_dirs_open_root(LinkDirs *dirs, LinkPlace place, bool create, uid_t *ret_uid,
                        Squatter *ret_squatter);
/** Opens this node's directory in it, and lists it (link_dirs_set_list()). Results as above */
int link_dirs_open_instance(LinkDirs *dirs, LinkPlace place, bool create, Squatter *ret_squatter);
/** Opens the directory of a bundle's links in one place. Results as above
 * @param bundle_id  a plain name; NULL: opens this node's directory */
int link_dirs_open_bundle(LinkDirs *dirs, LinkPlace place, const char *bundle_id);
/** @return whether a directory of links has no entry; false: it has, or cannot be read */
bool link_dirs_is_empty(int dir_fd);

/** Opens, and creates, a directory in `.neuron-collectd` that the agents of all nodes share: each
 * creates files in it, and removes its own only.
 * @param ret_uid    set to the owner that files of this process have in it
 * @param ret_error  set to a sentence: why it cannot be used, and the remedy. The caller frees it.
 *   May be NULL
 * @return fd; -ENOENT: the fixed part does not exist, or is on no network file system; -errno */
int link_dirs_open_shared(LinkDirs *dirs, const char *name, uid_t *ret_uid, char **ret_error);

/** Creates `.neuron-collectd` before another user does, where every user may create names (a sticky
 * directory on a local file system). What another user but root has created there is moved aside,
 * which needs CAP_FOWNER.
 * @param ret_moved  set to the path of what was moved, which the caller frees; else untouched
 * @return 0; -errno, which link_session_add() reports when it matters */
int link_dirs_secure(LinkDirs *dirs, char **ret_moved);

/** Makes durable what was created and removed in all places until now. @return 0, -errno */
int link_dirs_sync(LinkDirs *dirs);

/** Calls back for each directory that has links of this node.
 * @param on_dir  gets the path without symlinks in it; or, when that cannot be determined, what it
 *   would be, and why (-errno) */
void link_dirs_find(LinkDirs *dirs, void (*on_dir)(const char *path, int error, void *userdata),
                    void *userdata);
/** Examines a directory of the list. @return 0: it has links of this node still; -ENOENT: it does
 * not exist; -EUCLEAN: another directory has its path now; -errno: that is not known */
int link_dirs_check(const char *path);

/** @param error  negative, from opening a place or from making a link in it
 * @return whether the place cannot have the link, rather than that the member or the agent is the
 * reason */
bool link_dirs_is_refusal(int error);
/** Adds a sentence: why a place refuses, and the remedy. @param squatter  used with -EUCLEAN */
void link_dirs_add_reason(StrBuf *b, const char *directory, int error, const Squatter *squatter);
