/* Delivery to a directory on a shared or local volume. Calls block: each volume has its own worker,
 * so that a mount that hangs delays no other volume. An object appears complete under its name or
 * not at all, and is proven by reading it back uncached. */
#pragma once

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "lib/base/cleanup.h"
#include "lib/base/clock.h"
#include "lib/base/digest.h"
#include "uploaders/uploader.h"

typedef struct Volume Volume;
typedef struct VolumeObject VolumeObject;

typedef struct VolumeOptions { /* copied */
        /* the fixed part of the destination's path: must exist or be creatable in an existing
         * parent */
        const char *root;
        uint64_t min_free_bytes;
        unsigned min_free_permille; /* the larger of both counts */
        /* The agent has delivered there before: a missing root then means that the volume is away,
         * and is not created. */
        bool must_exist;
        /* Mode of the root and of directories that nodes share, when they are created or belong to
         * this user. Octal; NULL = 0755. An object's directory belongs to one node and has 0755. */
        const char *mode;
        /* Group of these directories and of written files: a number, or a name that is looked up at
         * each creation. NULL, "": left to the file system */
        const char *group;
        /* This node's instance id, for names that only it uses; NULL: none */
        const char *writer;
        /* Further users whose directories and small objects are accepted: agent_uid_is_trusted().
         * May be NULL */
        char *const *trusted_uids;
} VolumeOptions;

/** Touches nothing yet. A volume belongs to one thread at a time, and so do its objects; it
 * outlives them. -EINVAL: root not absolute, mode not octal */
int volume_new(Volume **ret, const VolumeOptions *options);
Volume *volume_free(Volume *v);

/* *ret_error is always written: a sentence (the caller's; NULL for lack of memory) with an outcome
 * other than UPLOAD_E_SAME, else NULL. Negative errnos are this process's own: -ENOMEM, -EMFILE,
 * -EINVAL for a wrong call or name, -ENAMETOOLONG. The volume remembers how far its root was below
 * its mount point: when that grows, or when the root is missing and its parent is not on that
 * mount, it is away. So nothing is written into the empty mount point of a volume that is gone. */

/** Finds the directory for a bundle's objects, and creates missing directories (fsynced). Where one
 * of the directories refuses this node, or belongs to a user who is no agent and who could remove
 * files in it, a directory beside it is used, whose name ends in `.<writer>`. If one of the two
 * already contains `name`, that one is used.
 * @param directory  below root: `20260527-…/i-0…`
 * @param name       of a file in it
 * @param ret        the directory to use, below root; the caller's
 * @param ret_error  with 0: NULL, or why another directory is used: a sentence, the caller's
 * @return as volume_object_start() */
int volume_find_directory(Volume *v, const char *directory, const char *name, char **ret,
                          char **ret_error);

/** Begins an object under a temporary dot-name in the directory it will live in; makes the
 * directories (fsynced).
 * @param relative below root, e.g. `20260527-…/i-0…/id.tar.zst`; every component checked, no
 *   symlink followed
 * @param size_hint_bytes for min_free, 0 = unknown
 * @return 0, UPLOAD_E_FULL, UPLOAD_E_UNREACHABLE; *ret_error gets a sentence naming path, fault and
 *   remedy (the caller's) */
int volume_object_start(Volume *v, const char *relative, uint64_t size_hint_bytes,
                        VolumeObject **ret, char **ret_error);

/** Appends. Dirty pages are written behind and dropped as it goes. @return 0, UPLOAD_E_FULL,
 * UPLOAD_E_UNREACHABLE */
int volume_write(VolumeObject *o, const void *data, size_t n, char **ret_error);

typedef struct VolumeStripe {
        uint64_t bytes;
        uint8_t sha256[SHA256_SIZE];
} VolumeStripe;

/** Makes it durable and visible, and proves it: fsync, read back uncached against the stripes,
 * link (or RENAME_NOREPLACE), fsync of the directory. When the name is taken: the same bytes →
 * UPLOAD_E_SAME (proven by reading them), else UPLOAD_E_EXISTS. Where the file system has neither
 * links nor RENAME_NOREPLACE the name is checked, then taken by rename.
 * @param stripes their bytes sum up to what was written (-EINVAL otherwise)
 * @return 0 proven; UPLOAD_E_*; the object stays to be freed, and after an outcome takes no
 *   further write or commit (but see volume_replace) */
int volume_commit(VolumeObject *o, const VolumeStripe *stripes, size_t n_stripes, char **ret_error);

/** As volume_commit after it answered UPLOAD_E_EXISTS: puts the object in place of what has the
 * name (rename over it). Only for a name that the caller has shown to be its own and to be no
 * bundle yet (no manifest). @return 0 proven; UPLOAD_E_* */
int volume_replace(VolumeObject *o, const VolumeStripe *stripes, size_t n_stripes,
                   char **ret_error);

/** Removes the temporary file unless committed. */
VolumeObject *volume_object_free(VolumeObject *o);
DEFINE_CLEANUP(VolumeObject, volume_object_free);

/** Reads a whole object in pieces; `on_piece` is called at least once, for an empty one with none.
 * @return 0, -ENOENT, -ESTALE when the volume is away, -errno, the first negative of on_piece */
int volume_read(Volume *v, const char *relative,
                int (*on_piece)(const void *data, size_t n, void *userdata), void *userdata);

/** Reads an object back uncached. @return 0: it is what the stripes say; UPLOAD_E_EXISTS: it is
 * something else; -ENOENT; -errno */
int volume_verify(Volume *v, const char *relative, const VolumeStripe *stripes, size_t n_stripes);

/** Removes the temporary file that a crash has left for this object. */
int volume_sweep(Volume *v, const char *relative);

/** @return the bytes that were read back so far, by which a watchdog sees progress while an object
 *   is proven. Any thread may call it, unlike all other functions. */
uint64_t volume_n_read_back(const Volume *v);

/** Tests whether the volume can be written now, by statfs(2) and a temporary file.
 * @return 0, UPLOAD_E_* */
int volume_probe(Volume *v, char **ret_error);

/** @return whether files of a user are accepted as an agent's. May create a file, to learn which
 * uid this user's files have there. */
bool volume_trusts(Volume *v, uid_t uid);

/* ---- small objects on a volume that nodes share: of several nodes that create one, exactly one
 * succeeds; they are also replaced, read and listed. Files of users who are no agents are not read,
 * and are marked in a listing ---- */

/* Outcomes, beside 0 and -ENOENT: UPLOAD_E_EXISTS; UPLOAD_E_DENIED: not permitted, or the file
 * system cannot create a name only once; UPLOAD_E_REFUSED: no regular file, or larger than it may
 * be; UPLOAD_E_FULL, UPLOAD_E_UNREACHABLE: a write may have been executed. Other negative errnos
 * are this process's own. *ret_error is always written: a sentence (the caller's) with an outcome
 * other than UPLOAD_E_EXISTS, else NULL. */

typedef struct VolumeWrite { /* borrowed */
        const char *relative;
        const void *data;
        size_t n;
        bool replaces;
        Clock *clock;
} VolumeWrite;

typedef struct VolumeWritten { /* microseconds */
        int64_t modified_usec; /* by the volume's clock */
        /* that clock less CLOCK_BOOTTIME, and how far that may be wrong */
        int64_t clock_offset_usec, uncertainty_usec;
} VolumeWritten;

/** Writes an object durably: a temporary file, fsync, link (or RENAME_NOREPLACE) or, when it
 * replaces, rename, fsync of the directory. When a directory refuses an object that replaces, it is
 * written beside that directory, as in volume_find_directory(), or beside the first component if
 * its name begins with a dot: `.incidents.<writer>/…`. */
int volume_object_write(Volume *v, const VolumeWrite *w, VolumeWritten *ret, char **ret_error);

/** Reads the volume's clock, by creating and removing a file. @return 0; as volume_object_write()
 */
int volume_object_clock(Volume *v, Clock *clock, VolumeWritten *ret, char **ret_error);

typedef struct VolumeContent {
        char *data; /* NUL-terminated, the caller's */
        size_t n;
        int64_t modified_usec;
} VolumeContent;
int volume_object_read(Volume *v, const char *relative, size_t max_bytes, VolumeContent *ret,
                       char **ret_error);

typedef struct VolumeFile { /* borrowed */
        const char *relative;
        uint64_t bytes;
        int64_t modified_usec;
        bool is_trusted; /* its owner is an agent's user */
} VolumeFile;

typedef struct VolumeListing {
        const char *directory; /* below the root, may end in a slash; missing: an empty listing */
        size_t n_max; /* of agents' entries; of other users' files up to 1,000 are listed */
        /* Of a regular file. Negative stops the listing, which returns it. */
        int (*on_file)(const VolumeFile *file, void *userdata);
        void *userdata;
} VolumeListing;
/** Lists a tree in no order. If the first component of `directory` begins with a dot, the same tree
 * below `<first component>.<writer>` of each node follows. Symlinks are not followed. Skips names
 * that begin with a dot, directories that may not be read, and directories of users who are no
 * agents. Removes temporary files of small objects that a crash of this node has left. */
int volume_object_list(Volume *v, const VolumeListing *listing, char **ret_error);
