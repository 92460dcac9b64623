/* Hard links that hold the members of a bundle until it is proven:
 * `.neuron-collectd/<instance-id>/<bundle-id>/<member path>` beside the fixed part of the source,
 * or inside it where the parent is another mount or not writable. Blocking: from a worker. */
#pragma once

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <sys/stat.h>

#include "agent/retention/policy.h"
#include "lib/base/cleanup.h"

typedef struct LinkDirs LinkDirs;

/** @param fixed  fixed part of the source's path (absolute). Nothing is created yet. The object is
 * immutable after this call and may be used by several threads for different bundles. */
int link_dirs_new(LinkDirs **ret, const char *fixed, const char *instance_id);
LinkDirs *link_dirs_free(LinkDirs *p);

/** Has each directory with links added to a list (link_list.h) before links are made in it; to be
 * called before p is used. @param file  copied  @return 0, -ENOMEM */
int link_dirs_set_list(LinkDirs *p, const char *file);

/** Calls back for each directory that has links of this node: with its path, without symlinks in
 * it; or with what it would be, and why that is not known (-errno). */
void link_dirs_find(LinkDirs *p, void (*on_place)(const char *path, int error, void *userdata),
                    void *userdata);
/** Examines a directory of the list. @return 0: it has links still; -ENOENT: it is not there;
 * -EUCLEAN: it is another one now; -errno: that is not known */
int link_dirs_check(const char *path);

/** Opens the directory with the bundle's pins, to ship from it. -ENOENT when there is none */
int links_open(LinkDirs *p, const char *bundle_id);

/** Sets the users whose files are accepted on a network file system, beside this process's and
 * root's. Call it before p is used. @param users  for agent_uid_is_trusted(), copied @return 0,
 * -ENOMEM */
int link_dirs_set_trusted(LinkDirs *p, const char *const *users);
/** @param own_uid  from link_dirs_open_shared() @return whether a file's owner is an agent's user
 */
bool link_dirs_is_agents(const LinkDirs *p, const struct stat *st, uid_t own_uid);

/** @return the number of bundles that another node's links hold, as far as they can be read */
size_t links_count_of_node(LinkDirs *p, const char *instance_id);

/** Opens, and creates, a directory in the source's `.neuron-collectd` in which the agents of all
 * nodes may create files, and only remove their own.
 * @param ret_uid  the owner of files that this process creates there
 * @param ret_error  why it cannot be used, and the remedy; the caller's; may be NULL
 * @return fd; -ENOENT: the fixed part is not there, or on no network file system; -errno */
int link_dirs_open_shared(LinkDirs *p, const char *name, uid_t *ret_uid, char **ret_error);

/** Where every user may create names (a sticky directory on a local file system), creates the
 * directory for the links before another user does. What another user but root has there is moved
 * aside, which needs CAP_FOWNER.
 * @param ret_moved  where it is now, the caller's; untouched when nothing was moved
 * @return 0; -errno: link_session_add() reports it when it matters */
int link_dirs_secure(LinkDirs *p, char **ret_moved);

/** Removes all pins of a bundle. Missing is fine. */
int links_release(LinkDirs *p, const char *bundle_id);

/** Calls back for each directory of pins, also of unknown bundles; more than once for a bundle with
 * pins in several places.
 * @param on_links  bundle_id is the directory's name, not necessarily a bundle's; path is absolute.
 * A negative return ends the listing, which returns it
 * @return 0; what on_links returned; -errno */
int links_list(LinkDirs *p,
               int (*on_links)(const char *bundle_id, const char *path, void *userdata),
               void *userdata);

/** Reads of which unit a bundle's pins are. @param ret_path  absolute; the caller's
 * @return 0; -ENOENT: that was not recorded; -errno */
int links_read_unit(LinkDirs *p, const char *bundle_id, char **ret_path, uid_t *ret_uid);

/* ---- one walk over one unit; it keeps directories open, so that a member costs a few calls. One
 * thread, and nobody else adds to or releases the pins of this bundle meanwhile. ---- */

typedef struct LinkSession LinkSession;

typedef struct LinkMember { /* all borrowed */
        const char *path;   /* in the bundle */
        int unit_fd;
        const char *path_below_unit;
        const struct stat *st; /* of the inode that is meant */
} LinkMember;

/** @param p, bundle_id  borrowed for the session's life; "" = no bundle yet: it has no pins, but
 * others' explain links
 * @param max_inodes  so many pins of this bundle, and so many of others, are read when links have
 * to be explained
 * @return 0, -EINVAL, -ENOMEM */
int link_session_new(LinkSession **ret, LinkDirs *p, const char *bundle_id, size_t max_inodes);
LinkSession *link_session_free(LinkSession *s);
/** Records the unit's path and owner beside its first pin, so that the row can be created again
 * when the state is lost. @param path  absolute; borrowed for the session's life */
void link_session_set_unit(LinkSession *s, const char *path, uid_t uid);
DEFINE_CLEANUP(LinkSession, link_session_free);

/** Links one member. Creates the directories 0700 and checks that each of ours belongs to us and is
 * no symlink (a squatter's is refused). A pin of an older inode under the same name is replaced. A
 * member that is pinned under another path (it was renamed) is then pinned under this one only, if
 * link_session_own_links was called for it. Where the place beside the fixed part refuses, the one
 * inside it is tried. Links to files of other users need CAP_FOWNER (protected_hardlinks). @return
 * 0; LINK_SESSION_E_REFUSED: links cannot be made here (EXDEV, EPERM, EMLINK, ENOSYS, a squatter),
 * *ret_error has the reason and the remedy (the caller's); -ENOENT: the member is gone, or is
 * another inode than `m->st`, or no regular file; -EINVAL: not a path below */
enum { LINK_SESSION_E_REFUSED = 1 };
int link_session_add(LinkSession *s, const LinkMember *m, char **ret_error);

/** @param ret_has  whether our pin for this member exists and is this inode
 * @return how many of the inode's links are pins of ours, whatever the path and the bundle; no more
 * are counted than explain st_nlink */
unsigned link_session_own_links(LinkSession *s, const char *member_path, const struct stat *st,
                                bool *ret_has);

/** @return whether this bundle has pins, and each one's inode has a name that is no pin of ours */
bool link_session_lives_on(LinkSession *s);

/** After link_session_lives_on: marks an inode as seen. @return whether it is pinned for this
 * bundle */
bool link_session_see(LinkSession *s, const struct stat *st);
/** @return whether every inode pinned for this bundle was seen */
bool link_session_all_seen(const LinkSession *s);

/* ---- how much space they use ---- */

/** Queries the file system that the source is on: of the fixed part, or where it is missing of its
 * parent. 0 or -errno */
int link_usage_query_space(LinkDirs *p, RetentionSpace *ret, dev_t *ret_device);

typedef struct LinkUsage {
        const char *bundle_id;            /* in; borrowed */
        bool is_there;                    /* it has pins; all below is zero otherwise */
        uint64_t used_bytes, used_inodes; /* on disk */
        /* Would be free, were these pins and one name each at the source gone. */
        uint64_t free_bytes, free_inodes;
        bool is_only_ours; /* no name is left but pins of ours */
        bool has_writer;   /* a process has a member open for writing */
} LinkUsage;

typedef struct LinkMeasure {
        LinkUsage *uses; /* zeros but for bundle_id */
        size_t n;
        bool explain_links; /* for is_only_ours: also pins of other bundles explain links */
        bool ask_writers;   /* for has_writer; a member that may not be read counts as written */
        /* A bundle with more counts only so many; with more in all only a bundle's own pins explain
         * links. */
        size_t max_inodes;
} LinkMeasure;

/** 0 or -ENOMEM */
int link_usage_measure(LinkDirs *p, const LinkMeasure *m);

/* ---- deletion ---- */

typedef struct LinkDeletion { /* borrowed */
        const char *bundle_id;
        bool only_links;        /* the files stay; -ENOENT is no result then */
        const char *relative;   /* the unit, below the fixed part; "" = the fixed part itself */
        bool is_file;           /* the unit is that one file */
        bool leaves_directory;  /* keep the unit's own directory, even if it is empty */
        bool only_named;        /* keep files and directories whose own names are no evidence */
        bool any_content;       /* evicted: members are deleted as they are, else only as shipped */
        const uint64_t *prints; /* sorted fingerprints of what this bundle has shipped */
        size_t n_prints;
        /* Those of the unit's other bundles as well: the last link to content that is in neither
         * stays. */
        const uint64_t *known;
        size_t n_known;
        bool discards_unshipped; /* a recheck has found that nobody needs the rest */
        uint64_t unit_dev;       /* st_dev of the unit; 0: not known */
} LinkDeletion;

typedef struct LinkDeletionTally {
        uint64_t n_deleted, deleted_bytes;
        uint64_t n_gone;      /* their names at the source are gone, or other files' */
        uint64_t n_changed;   /* since they were shipped: not deleted */
        uint64_t n_unnamed;   /* only_named: not deleted */
        uint64_t n_open;      /* being written: not deleted, and our links stay too */
        uint64_t n_unshipped; /* only our links hold what was not shipped: they stay */
        uint64_t n_kept;      /* files that came in between, and whose names were used again */
} LinkDeletionTally;

/** Deletes at the source what the pins of a bundle hold, and the pins. Only a name that is the
 * pinned inode with the content that was shipped is deleted: it is moved into our own directory
 * first and classified there, and moved back if it is not. Then the unit's directories that are
 * empty now. Can be cut at any point and called again. Durable when it returns 0.
 * @param ret  added to, whatever is returned
 * @return 0 nothing of ours is left; LINK_DELETION_E_OPEN: all but what is open for writing;
 * LINK_DELETION_E_UNSHIPPED: all but what was not shipped, and perhaps what is open;
 * LINK_DELETION_E_AWAY: neither pins nor the unit, nor their file system; -ENOENT: the unit is
 * there and no pins are; -EBUSY: another call is running; -errno: the rest is still there, and held
 */
enum { LINK_DELETION_E_OPEN = 2, LINK_DELETION_E_UNSHIPPED = 3, LINK_DELETION_E_AWAY = 4 };
int link_deletion_run(LinkDirs *p, const LinkDeletion *request, LinkDeletionTally *ret);
