/* One walk over one unit that links its members, or asks of each whether a link of ours holds it. A
 * session keeps directories open, so that a member costs a few system calls. Blocking, and for one
 * thread; nobody else adds or releases links of the bundle meanwhile. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <sys/stat.h>
#include <sys/types.h>

#include "agent/retention/link_dirs.h"
#include "lib/base/cleanup.h"

typedef struct LinkSession LinkSession;

typedef struct LinkMember { /* all borrowed */
        const char *path;   /* in the bundle */
        int unit_fd;
        const char *path_below_unit;
        const struct stat *st; /* of the inode that is meant */
} LinkMember;

/** @param dirs, bundle_id  borrowed for the session's life. "": there is no bundle yet, so it has
 * no links, and link_session_own_links() counts those of other bundles
 * @param max_inodes  at most so many links of this bundle, and so many of others, are read when the
 *   links of an inode are counted
 * @return 0; -EINVAL: bundle_id is no name; -ENOMEM */
int link_session_new(LinkSession **ret, LinkDirs *dirs, const char *bundle_id, size_t max_inodes);
LinkSession *link_session_free(LinkSession *s);
DEFINE_CLEANUP(LinkSession, link_session_free);

/** Records the unit beside the first link that is made (links_record_unit()).
 * @param path  absolute; borrowed for the session's life */
void link_session_set_unit(LinkSession *s, const char *path, uid_t uid);

/** Links one member. Creates the directories for it. A link of an older inode under the same name
 * is replaced. When the member was linked under another path (it was renamed), it has only the new
 * link afterwards, provided that link_session_own_links() was called for it. To link files of other
 * users takes CAP_FOWNER (fs.protected_hardlinks).
 * @param ret_error  set with LINK_SESSION_E_REFUSED; the caller frees it
 * @return 0; LINK_SESSION_E_REFUSED: no link can be made in either place, for the reason and with
 * the remedy in *ret_error; -ENOENT: the member does not exist, is another inode than m->st, or is
 * no regular file; -EINVAL: m->path is not a path below a directory; -ENAMETOOLONG; -errno */
enum { LINK_SESSION_E_REFUSED = 1 };
int link_session_add(LinkSession *s, const LinkMember *m, char **ret_error);

/** Counts links of ours: of this bundle, of this node's other bundles and of other nodes. Stops as
 * soon as they explain all names but one.
 * @param ret_has  whether the bundle has a link of this inode under this path
 * @return how many names of the inode are links of ours */
unsigned link_session_own_links(LinkSession *s, const char *member_path, const struct stat *st,
                                bool *ret_has);

/** @return whether the bundle has links, and each inode that they hold has a name that is no link
 * of ours: the unit was renamed rather than removed */
bool link_session_lives_on(LinkSession *s);

/** After link_session_lives_on(): marks an inode as seen in the source.
 * @return whether a link of this bundle holds it */
bool link_session_see(LinkSession *s, const struct stat *st);
/** @return whether every inode that links of this bundle hold was seen */
bool link_session_all_seen(const LinkSession *s);
