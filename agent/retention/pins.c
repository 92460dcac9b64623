/* Where the hard links that hold a bundle's sources lie: the directories of ours, checked against squatters, and what is done to a
 * bundle's pins as a whole. How one is made: pins_link.c. Nothing here is fsynced: after a power cut either our link is there or the
 * source's own name still is, since both are in one journal. */
#include "agent/retention/pins.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "agent/retention/pins_private.h"
#include "lib/base/cleanup.h"
#include "lib/base/fs.h"
#include "lib/base/path.h"

DEFINE_CLEANUP(Pins, pins_free);

bool pins_is_plain_name(const char *s) {
        size_t n = strlen(s);
        return n > 0 && n <= NAME_MAX && strcmp(s, ".") != 0 && strcmp(s, "..") != 0 &&
               !strchr(s, '/');
}

int pins_new(Pins **ret, const char *fixed, const char *instance_id) {
        _cleanup_(pins_freep) Pins *p = NULL;
        _cleanup_free_ char *simple = NULL;

        if (fixed[0] != '/' || !pins_is_plain_name(instance_id))
                return -EINVAL;
        p = calloc(1, sizeof *p);
        simple = path_simplify(fixed);
        if (!p || !simple)
                return -ENOMEM;
        p->instance_id = strdup(instance_id);
        if (!p->instance_id)
                return -ENOMEM;
        if (strcmp(simple, "/") != 0) {
                p->directories[PLACE_BESIDE] = path_parent(simple);
                if (!p->directories[PLACE_BESIDE])
                        return -ENOMEM;
        }
        p->directories[PLACE_INSIDE] = TAKE_PTR(simple);
        *ret = TAKE_PTR(p);
        return 0;
}

Pins *pins_free(Pins *p) {
        if (!p)
                return NULL;
        for (size_t i = 0; i < N_PLACES; i++)
                free(p->directories[i]);
        free(p->instance_id);
        free(p);
        return NULL;
}

/* Directories of ours */

int pins_open_own_dir(int at_fd, const char *name, bool create, Squatter *ret_squatter) {
        struct stat st;

        int flags = O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC;
        _cleanup_close_ int fd = openat(at_fd, name, flags);
        if (fd < 0 && errno == ENOENT && create) {
                if (mkdirat(at_fd, name, 0700) < 0 && errno != EEXIST)
                        return -errno;
                fd = openat(at_fd, name, flags);
        }
        if (fd < 0) {
                int r = -errno;
                if (fstatat(at_fd, name, &st, AT_SYMLINK_NOFOLLOW) < 0)
                        return r;
                if (S_ISDIR(st.st_mode) && st.st_uid == geteuid())
                        return r;
                *ret_squatter = (Squatter){ true, S_ISDIR(st.st_mode), st.st_uid };
                return -EUCLEAN;
        }
        if (fstat(fd, &st) < 0)
                return -errno;
        if (st.st_uid != geteuid()) {
                *ret_squatter = (Squatter){ true, true, st.st_uid };
                return -EUCLEAN;
        }
        if ((st.st_mode & 0777) != 0700 && fchmod(fd, 0700) < 0)
                return -errno;
        return TAKE_FD(fd);
}

int pins_open_instance(const Pins *p, Place place, bool create, Squatter *ret_squatter) {
        if (!p->directories[place])
                return -ENOENT;
        /* The parent is the operator's path; the fixed part itself may be made by whoever runs the jobs. */
        int flags = O_PATH | O_DIRECTORY | O_CLOEXEC | (place == PLACE_INSIDE ? O_NOFOLLOW : 0);
        _cleanup_close_ int base_fd = open(p->directories[place], flags);
        if (base_fd < 0)
                return -errno;
        _cleanup_close_ int pins_fd = pins_open_own_dir(base_fd, PINS_NAME, create, ret_squatter);
        if (pins_fd < 0)
                return pins_fd;
        return pins_open_own_dir(pins_fd, p->instance_id, create, ret_squatter);
}

int pins_open_member_dir(int bundle_fd, const char *member_path, bool create,
                         const char **ret_name) {
        char name[NAME_MAX + 1];
        Squatter squatter;
        _cleanup_close_ int at_fd = fcntl(bundle_fd, F_DUPFD_CLOEXEC, 3);
        if (at_fd < 0)
                return -errno;

        for (unsigned depth = 1;; depth++) {
                size_t n = strcspn(member_path, "/");
                if (depth > FS_DEPTH_MAX || n > NAME_MAX)
                        return -ENAMETOOLONG;
                memcpy(name, member_path, n);
                name[n] = '\0';
                if (!pins_is_plain_name(name))
                        return -EINVAL;
                if (member_path[n] == '\0') {
                        *ret_name = member_path;
                        return TAKE_FD(at_fd);
                }
                int fd = pins_open_own_dir(at_fd, name, create, &squatter);
                if (fd == -EUCLEAN && create && unlinkat(at_fd, name, 0) == 0)
                        fd = pins_open_own_dir(at_fd, name, create, &squatter);
                if (fd < 0)
                        return fd == -EUCLEAN ? -ENOENT : fd;
                (void)close(at_fd); /* was only read */
                at_fd = fd;
                member_path += n + 1;
        }
}

bool pins_is_not_ours(int r) {
        return r == -ENOENT || r == -EUCLEAN || r == -ENOTDIR || r == -ELOOP || r == -EACCES;
}

int pins_open(Pins *p, const char *bundle_id) {
        int r = -ENOENT;
        if (!pins_is_plain_name(bundle_id))
                return -EINVAL;
        for (Place place = 0; place < N_PLACES; place++) {
                PinsSession s;
                pins_session_init(&s, p, bundle_id, 0);
                int opened = pins_session_open(&s, place, false);
                int fd = opened < 0 ? opened : TAKE_FD(s.places[place].bundle_fd);
                pins_session_done(&s);
                if (fd >= 0)
                        return fd;
                if (r == -ENOENT &&
                    !pins_is_not_ours(fd)) /* a squatter's: none of ours is in there */
                        r = fd;
        }
        return r;
}

int pins_open_root(Pins *p) {
        int r = -ENOENT;
        for (Place place = 0; place < N_PLACES; place++) {
                Squatter squatter;
                if (!p->directories[place])
                        continue;
                int flags =
                        O_PATH | O_DIRECTORY | O_CLOEXEC | (place == PLACE_INSIDE ? O_NOFOLLOW : 0);
                _cleanup_close_ int base_fd = open(p->directories[place], flags);
                r = base_fd < 0 ? -errno : pins_open_own_dir(base_fd, PINS_NAME, true, &squatter);
                if (r >= 0)
                        return r;
        }
        return r;
}

static int release_in(int instance_fd, const char *bundle_id) {
        char temporary[NAME_MAX + 1];
        int r = fs_remove_tree(instance_fd, bundle_id);
        if ((size_t)snprintf(temporary, sizeof temporary, PINS_NEW_PREFIX "%s", bundle_id) <
                    sizeof temporary &&
            unlinkat(instance_fd, temporary, 0) < 0 && errno != ENOENT && r >= 0)
                r = -errno;
        return r;
}

int pins_release(Pins *p, const char *bundle_id) {
        int first = 0;

        if (!pins_is_plain_name(bundle_id))
                return -EINVAL;
        for (Place place = 0; place < N_PLACES; place++) {
                Squatter squatter;
                _cleanup_close_ int instance_fd = pins_open_instance(p, place, false, &squatter);
                int r = instance_fd < 0 ? instance_fd : release_in(instance_fd, bundle_id);
                if (r < 0 && !pins_is_not_ours(r) && first == 0)
                        first = r;
        }
        return first;
}

typedef struct Listing {
        const Pins *pins;
        Place place;
        int (*on_pins)(const char *bundle_id, const char *path, void *userdata);
        void *userdata;
} Listing;

static int list_place(const Listing *l, int instance_fd) {
        _cleanup_closedir_ DIR *dir = NULL;
        int r = fs_opendir_at(instance_fd, ".", &dir);
        if (r < 0)
                return r;
        for (;;) {
                errno = 0;
                struct dirent *entry = readdir(dir);
                if (!entry)
                        return -errno;
                const char *id = entry->d_name;
                if (strcmp(id, ".") == 0 || strcmp(id, "..") == 0)
                        continue;
                if (strncmp(id, PINS_NEW_PREFIX, strlen(PINS_NEW_PREFIX)) == 0)
                        id += strlen(PINS_NEW_PREFIX);
                else if (strncmp(id, PINS_TAKEN_PREFIX, strlen(PINS_TAKEN_PREFIX)) == 0)
                        id += strlen(PINS_TAKEN_PREFIX);
                _cleanup_free_ char *path = NULL;
                if (asprintf(&path, "%s/" PINS_NAME "/%s/%s", l->pins->directories[l->place],
                             l->pins->instance_id, entry->d_name) < 0) {
                        path = NULL;
                        return -ENOMEM;
                }
                r = l->on_pins(id, path, l->userdata);
                if (r < 0)
                        return r;
        }
}

int pins_list(Pins *p, int (*on_pins)(const char *bundle_id, const char *path, void *userdata),
              void *userdata) {
        for (Place place = 0; place < N_PLACES; place++) {
                Squatter squatter;
                Listing l = { p, place, on_pins, userdata };
                _cleanup_close_ int instance_fd = pins_open_instance(p, place, false, &squatter);
                int r = instance_fd < 0 ? instance_fd : list_place(&l, instance_fd);
                if (r < 0 && !pins_is_not_ours(r))
                        return r;
        }
        return 0;
}
