/* What the files of the pins share. Nobody else includes this. */
#pragma once

#include "agent/retention/pin_inodes.h"
#include "agent/retention/pins.h"

#define PINS_NAME ".neuron-collectd"
#define PINS_NEW_PREFIX                                                                            \
        ".new-" /* a link on its way into its place; no bundle id begins with a dot */
#define PINS_TAKEN_PREFIX                                                                          \
        ".taken-" /* a directory with what was taken away from the source, at its path in the bundle, until it is judged */

/* Where links may live: beside the fixed part first, inside it where that cannot be. Both are looked at whenever pins are looked
 * for: which one it was may have been decided when a mount or a permission was another. */
typedef enum Place { PLACE_BESIDE, PLACE_INSIDE, N_PLACES } Place;

struct Pins {
        char *directories[N_PLACES]; /* [PLACE_BESIDE] NULL: the fixed part is the root directory */
        char *instance_id;
};

/* What is in the way of a directory of ours. */
typedef struct Squatter {
        bool found, is_directory;
        uid_t uid;
} Squatter;

/* What a session has open of a place, and why not. */
typedef struct SessionPlace {
        int instance_fd, bundle_fd; /* -1: not open */
        bool is_missing;            /* looked for in vain; only a new pin makes it */
        int refused;                /* why it could not be made: -errno, 0 */
        Squatter squatter;          /* for -EUCLEAN */
        int dir_fd;                 /* where the last member's pin is, -1 */
        char *prefix;               /* of its members' paths, with the slash; "" at the top */
} SessionPlace;

struct PinsSession {
        const Pins *pins;      /* borrowed */
        const char *bundle_id; /* borrowed */
        size_t max_inodes;
        SessionPlace places[N_PLACES];
        PinInodes own, others; /* of this bundle; of all else in the instance's directories */
};

/* One component that is a name and nothing else. */
bool pins_is_plain_name(const char *s);

/* Opens a directory that must be ours: made by this user, no symlink, closed to all others.
 * @return fd; -ENOENT; -EUCLEAN with *ret_squatter: somebody else's thing bears the name; -errno */
int pins_open_own_dir(int at_fd, const char *name, bool create, Squatter *ret_squatter);

/* Opens `<place>/.neuron-collectd/<instance-id>`. Results as pins_open_own_dir. */
int pins_open_instance(const Pins *p, Place place, bool create, Squatter *ret_squatter);

/* Opens the directory that holds a member's pin and finds the pin's own name in `member_path`. Below the bundle's directory all is
 * ours alone; a pin that is in the way of a directory is one of an older member and goes.
 * @return fd; -ENOENT; -EINVAL for `..` and the like; -ENAMETOOLONG beyond FS_DEPTH_MAX */
int pins_open_member_dir(int bundle_fd, const char *member_path, bool create,
                         const char **ret_name);

/* Nothing of ours can be in a place that is missing, somebody else's, or closed to us. */
bool pins_is_not_ours(int r);

static inline bool pins_is_inode(const struct stat *a, const struct stat *b) {
        return a->st_dev == b->st_dev && a->st_ino == b->st_ino;
}

/* pins_session.c. A session in place; the parameters are pins_session_new's. */
void pins_session_init(PinsSession *s, const Pins *p, const char *bundle_id, size_t max_inodes);
void pins_session_done(PinsSession *s);

/* Opens the bundle's directory in a place, once.
 * @return 0; results as pins_open_own_dir */
int pins_session_open(PinsSession *s, Place place, bool create);

/* Opens the directory of a member's pin: mostly the last one's is it. The place is open.
 * @return 0, at->dir_fd is it; as pins_open_member_dir */
int pins_session_enter(SessionPlace *at, const char *member_path, bool create,
                       const char **ret_name);
