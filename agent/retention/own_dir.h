/* Opens and creates the agent's own directories in places where other users may create names. A
 * directory that belongs to another user is never used. Blocking: call it from a worker. */
#pragma once

#include <stdatomic.h>
#include <stdbool.h>
#include <sys/stat.h>
#include <sys/types.h>

/* A file that is being created in such a directory has this prefix until it gets its name; no id of
 * a bundle or of a node begins with a dot. */
#define OWN_DIR_NEW_PREFIX ".new-"

/** What is in the way of a directory of ours, and who made it. */
typedef struct Squatter {
        bool is_directory;
        bool is_shared; /* agents of several users may have made it */
        uid_t uid;      /* its owner */
} Squatter;

/** As whom this agent creates files on a network file system, and whose files it accepts there. */
typedef struct OwnDirUser {
        char *instance_id; /* owned by the object that embeds this */
        char **trusted;    /* for agent_uid_is_trusted(), owned as above; NULL: nobody else */
        /* The owner of files that this process creates, as the server maps it. UINT_MAX: unknown,
         * own_dir_open_shared() creates a file to learn it. */
        atomic_uint network_uid;
} OwnDirUser;

/** @return whether it can be the name of one directory entry: not empty, no slash, neither `.` nor
 * `..`, at most NAME_MAX bytes */
bool own_dir_is_plain_name(const char *name);

/** Opens a directory of mode 0700, and restores that mode.
 * @param uid           the owner it must have. On a network file system this is not always the
 *   process's own uid
 * @param create        creates it when it does not exist
 * @param ret_squatter  set with -EUCLEAN; may be NULL
 * @return fd; -ENOENT; -EUCLEAN: it is no directory, or another user's; -errno */
int own_dir_open(uid_t uid, int at_fd, const char *name, bool create, Squatter *ret_squatter);

/** As own_dir_open() with the owner of at_fd, a directory of ours. */
int own_dir_open_below(int at_fd, const char *name, bool create, Squatter *ret_squatter);

/** Opens a directory of mode 1777 on a network file system: agents of all nodes create files in it,
 * and none can remove another one's.
 * @param ret_uid  set to the owner that files of this process have there, whatever is returned
 *   after the directory was opened
 * @return as own_dir_open(); with `create` also -errno when this process cannot create files in
 * it */
int own_dir_open_shared(OwnDirUser *user, int at_fd, const char *name, bool create, uid_t *ret_uid,
                        Squatter *ret_squatter);

/** @param own_uid  from own_dir_open_shared()
 * @return whether the owner of a file is a user that an agent runs as */
bool own_dir_is_agents(const OwnDirUser *user, const struct stat *st, uid_t own_uid);

/** @param error  what one of the functions above returned, negative
 * @return whether it means that no directory of ours is there, rather than that it cannot be
 * read */
bool own_dir_is_absent(int error);
