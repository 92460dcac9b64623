/* What pins.c and deletion.c share. */
#pragma once

#include "agent/retention/pins.h"

#define PINS_TAKEN_PREFIX ".taken-" /* a file that is being deleted, until it is classified */

/* Where links may live: beside the fixed part first, inside it where that cannot be. Both are
 * checked whenever pins are searched: another mount or permission may have decided earlier. */
typedef enum Place { PLACE_BESIDE, PLACE_INSIDE, N_PLACES } Place;

struct Pins {
        char *directories[N_PLACES]; /* [PLACE_BESIDE] NULL: the fixed part is the root directory */
        char *instance_id;
};

/* What is in the way of a directory of ours. */
typedef struct Squatter {
        bool is_directory;
        uid_t uid;
} Squatter;

/* One component that is a name and nothing else. */
bool pins_is_plain_name(const char *s);

/* Opens a directory that must be ours: made by this user, no symlink, closed to all others.
 * @return fd; -ENOENT; -EUCLEAN with *ret_squatter: another user's file has the name; -errno.
 * ret_squatter may be NULL */
int pins_open_own_dir(int at_fd, const char *name, bool create, Squatter *ret_squatter);

/* Opens `<place>/.neuron-collectd/<instance-id>`. Results as pins_open_own_dir. */
int pins_open_instance(const Pins *p, Place place, bool create, Squatter *ret_squatter);

/* Nothing of ours can be in a place that is missing, of another user, or not accessible. */
bool pins_is_not_ours(int r);

static inline bool pins_is_inode(const struct stat *a, const struct stat *b) {
        return a->st_dev == b->st_dev && a->st_ino == b->st_ino;
}

/* Finds a pinned file below a directory of ours.
 * @return its path below the directory, the caller's; NULL: no pin is this inode, or memory is
 * short */
char *pins_find_inode(int dir_fd, const struct stat *st);
