/* The directories of an object below a volume's root: opens them component by component, creates
 * those that are missing, and follows no symlink.
 *
 * A component refuses this node when it may not be written, or belongs to a user who is no agent
 * and who could remove what is in it. Then an object that replaces, and a bundle, go into a
 * directory beside that component whose name ends in `.<writer>`. What an object is, is left to
 * volume_object.c. */
#include "uploaders/volume/volume_directory.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "lib/base/cleanup.h"
#include "lib/base/fs.h"
#include "lib/base/path.h"
#include "lib/base/strbuf.h"
#include "uploaders/volume/volume_error.h"
#include "uploaders/volume/volume_private.h"

static bool is_plain_name(const char *s, size_t n) {
        return n > 0 && n <= NAME_MAX && !(n == 1 && s[0] == '.') &&
               !(n == 2 && s[0] == '.' && s[1] == '.');
}

/* A component to open. */
typedef struct VolumeComponent {
        int root_fd, at_fd; /* at_fd: its parent directory */
        char name[NAME_MAX + 1];
        mode_t mode; /* to create it with; 0: do not create it */
} VolumeComponent;

/* @return fd; -errno */
static int open_component(Volume *v, const VolumeComponent *s, VolumeDirectory *opened) {
        struct stat st;
        opened->step = "make the directory of";
        bool is_new = s->mode != 0 && mkdirat(s->at_fd, s->name, s->mode) == 0;
        opened->is_missing = s->mode != 0 && !is_new && errno != EEXIST;
        if (opened->is_missing)
                return -errno;
        opened->step = "open the directory of";
        _cleanup_close_ int fd =
                openat(s->at_fd, s->name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
        if (fd < 0 || fstat(fd, &st) < 0)
                return -errno;
        if (s->mode == 0)
                return TAKE_FD(fd);
        opened->is_foreign = !volume_is_trusted(v, s->root_fd, st.st_uid);
        opened->owner = st.st_uid;
        if (opened->is_foreign)
                return -EPERM;
        int r = fs_sync_dir(s->at_fd);
        if (r < 0)
                return r;
        r = volume_set_directory_mode(v, fd, &st, s->mode, is_new);
        if (r < 0)
                opened->step = NULL;
        return r < 0 ? r : TAKE_FD(fd);
}

static bool is_refusal_of_directory(int error) {
        return error == EACCES || error == EPERM || error == ENOTDIR || error == ELOOP;
}

/* @return the component to replace by one beside it: `end`, but its parent when `end` is the node's
 * own directory */
static size_t find_refusing(const Volume *v, const char *relative, size_t end, size_t above) {
        const char *name = relative + above + (above > 0);
        size_t n = end - (size_t)(name - relative);
        bool is_own = volume_writer(v) && strlen(volume_writer(v)) == n &&
                      memcmp(name, volume_writer(v), n) == 0;
        return is_own && above > 0 ? above : end;
}

int volume_directory_open(Volume *v, int root_fd, const char *relative, mode_t own_mode,
                          VolumeDirectory *ret) {
        VolumeComponent s = { .root_fd = root_fd };
        size_t end = 0, above = 0; /* the ends of this component, and of the one above it */
        _cleanup_close_ int at_fd = fcntl(root_fd, F_DUPFD_CLOEXEC, 3);
        *ret = (VolumeDirectory){ .dir_fd = -1, .step = "open" };
        if (at_fd < 0)
                return -errno;

        for (unsigned depth = 0; depth < FS_DEPTH_MAX; depth++) {
                const char *name = relative + end + (depth > 0);
                size_t n = strcspn(name, "/");
                if (!is_plain_name(name, n))
                        return -EINVAL;
                if (name[n] == '\0') {
                        ret->step = "write in the directory of";
                        if (own_mode != 0 && depth > 0 && faccessat(at_fd, ".", W_OK, 0) < 0 &&
                            errno == EACCES) {
                                ret->refused = find_refusing(v, relative, end, above);
                                return -EACCES;
                        }
                        ret->name = name;
                        ret->dir_fd = TAKE_FD(at_fd);
                        return 0;
                }
                memcpy(s.name, name, n);
                s.name[n] = '\0';
                s.at_fd = at_fd;
                s.mode = own_mode == 0 ? 0 : strchr(name + n + 1, '/') ? volume_mode(v) : own_mode;
                above = end;
                ret->end = end = (size_t)(name - relative) + n;
                int fd = open_component(v, &s, ret);
                if (fd < 0 && ret->step && is_refusal_of_directory(-fd))
                        ret->refused =
                                ret->is_missing ? above : find_refusing(v, relative, end, above);
                if (fd < 0)
                        return fd;
                (void)close(at_fd); /* was only read */
                at_fd = fd;
        }
        return -ENAMETOOLONG;
}

char *volume_directory_beside(const Volume *v, const char *relative, size_t refused) {
        size_t n = relative[0] == '.' ? strcspn(relative, "/") : refused;
        return strbuf_format("%.*s.%s%s", (int)n, relative, volume_writer(v), relative + n);
}

int volume_directory_classify(const Volume *v, const VolumeDirectory *opened, int error,
                              const char *relative, char **ret_error) {
        _cleanup_free_ char *path = path_join(volume_root(v), relative);
        if (!path || error == EINVAL || error == ENAMETOOLONG)
                return path ? -error : -ENOMEM;
        if (!opened->step)
                return volume_classify_group(v, error, path, ret_error);
        if (!opened->is_foreign)
                return volume_error_classify(error, opened->step, path, ret_error);
        volume_error_set(
                ret_error,
                "'%s/%.*s' belongs to uid %u, which is not an agent's user; remove it, or add "
                "that user to "
                "agreement.trusted_uids",
                volume_root(v), (int)opened->end, relative, (unsigned)opened->owner);
        return UPLOAD_E_UNREACHABLE;
}

/* @return whether a regular file of an agent exists */
static bool has_file(Volume *v, int root_fd, const char *relative) {
        struct stat st;
        VolumeDirectory opened;
        if (volume_directory_open(v, root_fd, relative, 0, &opened) < 0)
                return false;
        bool has = fstatat(opened.dir_fd, opened.name, &st, AT_SYMLINK_NOFOLLOW) == 0 &&
                   S_ISREG(st.st_mode) && volume_is_trusted(v, root_fd, st.st_uid);
        (void)close(opened.dir_fd); /* was only read */
        return has;
}

/* @return 0; -errno, and *opened says why */
static int make_directory(Volume *v, int root_fd, const char *relative, VolumeDirectory *opened) {
        int r = volume_directory_open(v, root_fd, relative, VOLUME_OWN_MODE, opened);
        if (r == 0)
                (void)close(opened->dir_fd); /* nothing was written yet */
        return r;
}

int volume_find_directory(Volume *v, const char *directory, const char *name, char **ret,
                          char **ret_error) {
        _cleanup_close_ int root_fd = -1;
        VolumeDirectory opened;
        *ret_error = NULL;
        _cleanup_free_ char *agreed = path_join(directory, name);
        int r = agreed ? volume_open_root(v, true, &root_fd, ret_error) : -ENOMEM;
        if (r != 0)
                return r;
        r = make_directory(v, root_fd, agreed, &opened);
        bool is_refused = r < 0 && opened.refused > 0;
        if (r < 0) {
                r = volume_directory_classify(v, &opened, -r, agreed, ret_error);
                if (r < 0 || !is_refused || !volume_writer(v))
                        return r;
        }
        const char *slash = strrchr(directory, '/');
        size_t n = is_refused ? opened.refused
                   : slash    ? (size_t)(slash - directory)
                              : strlen(directory);
        _cleanup_free_ char *beside =
                volume_writer(v) ? volume_directory_beside(v, agreed, n) : strdup(agreed);
        if (!beside)
                return -ENOMEM;
        bool is_beside = is_refused || (!has_file(v, root_fd, agreed) && volume_writer(v) &&
                                        has_file(v, root_fd, beside));
        if (is_refused && (r = make_directory(v, root_fd, beside, &opened)) < 0) {
                free(TAKE_PTR(*ret_error));
                return volume_directory_classify(v, &opened, -r, beside, ret_error);
        }
        *ret = is_beside ? path_parent(beside) : strdup(directory);
        return *ret ? 0 : -ENOMEM;
}
