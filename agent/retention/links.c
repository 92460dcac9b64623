/* The links of a bundle as one thing. Intake makes them, one member at a time (link_session.c),
 * when it finds a unit; a delivery reads from them; they are released when every destination has
 * the bundle, when it is cancelled, or together with the source (link_deletion.c). A user's `rm
 * -rf` meanwhile removes the names, not the evidence.
 *
 * Nothing here is fsynced: after a power cut either the link exists or the source's own name does,
 * since both are entries of one journal.
 *
 * The state database knows which bundles there are. When it is lost, the links are what is left:
 * links_list() finds them, and beside each bundle's directory a symlink whose target is `UID:PATH`
 * tells of which unit they are, so that intake can write the row again. */
#include "agent/retention/links.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "lib/base/cleanup.h"
#include "lib/base/fs.h"
#include "lib/base/parse.h"
#include "lib/base/strbuf.h"

static int open_instance(LinkDirs *dirs, LinkPlace place) {
        return link_dirs_open_instance(dirs, place, false, NULL);
}

int links_open(LinkDirs *dirs, const char *bundle_id) {
        int r = -ENOENT;
        if (!own_dir_is_plain_name(bundle_id))
                return -EINVAL;
        for (LinkPlace place = 0; place < N_LINK_PLACES; place++) {
                int fd = link_dirs_open_bundle(dirs, place, bundle_id);
                if (fd >= 0 && !link_dirs_is_empty(fd))
                        return fd;
                if (fd >= 0) /* left by an attempt that then made them in the other place */
                        (void)close(fd);
                else if (r == -ENOENT && !own_dir_is_absent(fd))
                        r = fd;
        }
        return r;
}

/* ---- the record of the unit ---- */

static bool unit_record_name(char ret[static NAME_MAX + 1], const char *bundle_id) {
        return (size_t)snprintf(ret, NAME_MAX + 1, LINK_UNIT_PREFIX "%s", bundle_id) <= NAME_MAX;
}

void links_record_unit(int instance_fd, const char *bundle_id, const char *path, uid_t uid) {
        char name[NAME_MAX + 1];
        _cleanup_free_ char *text = strbuf_format("%u:%s", uid, path);
        if (text && unit_record_name(name, bundle_id))
                (void)symlinkat(text, instance_fd, name);
}

int links_read_unit(LinkDirs *dirs, const char *bundle_id, char **ret_path, uid_t *ret_uid) {
        char name[NAME_MAX + 1], text[PATH_MAX];
        uint64_t uid;
        for (LinkPlace place = 0; place < N_LINK_PLACES && unit_record_name(name, bundle_id);
             place++) {
                _cleanup_close_ int fd = open_instance(dirs, place);
                ssize_t n = fd < 0 ? -1 : readlinkat(fd, name, text, sizeof text - 1);
                if (n <= 0)
                        continue;
                text[n] = '\0';
                char *path = strchr(text, ':');
                if (!path || path[1] != '/')
                        return -EINVAL;
                *path++ = '\0';
                if (parse_u64_range(text, 0, UINT32_MAX, &uid) < 0)
                        return -EINVAL;
                *ret_uid = (uid_t)uid;
                *ret_path = strdup(path);
                return *ret_path ? 0 : -ENOMEM;
        }
        return -ENOENT;
}

/* Removes the record of a unit whose links are gone: the agent ended while it released them. */
static void sweep_unit_record(int instance_fd, const char *name) {
        struct stat st;
        if (fstatat(instance_fd, name + strlen(LINK_UNIT_PREFIX), &st, AT_SYMLINK_NOFOLLOW) < 0 &&
            errno == ENOENT)
                (void)unlinkat(instance_fd, name, 0); /* else the next sweep */
}

/* ---- releasing and listing ---- */

static int release_in(int instance_fd, const char *bundle_id) {
        char temporary[NAME_MAX + 1];
        int r = fs_remove_tree(instance_fd, bundle_id);
        if (r >= 0 && unit_record_name(temporary, bundle_id))
                (void)unlinkat(instance_fd, temporary, 0); /* else the next sweep */
        if ((size_t)snprintf(temporary, sizeof temporary, LINK_NEW_PREFIX "%s", bundle_id) <
                    sizeof temporary &&
            unlinkat(instance_fd, temporary, 0) < 0 && errno != ENOENT && r >= 0)
                r = -errno;
        return r;
}

int links_release(LinkDirs *dirs, const char *bundle_id) {
        int first = 0;

        if (!own_dir_is_plain_name(bundle_id))
                return -EINVAL;
        for (LinkPlace place = 0; place < N_LINK_PLACES; place++) {
                _cleanup_close_ int instance_fd = open_instance(dirs, place);
                int r = instance_fd < 0 ? instance_fd : release_in(instance_fd, bundle_id);
                if (r < 0 && !own_dir_is_absent(r) && first == 0)
                        first = r;
        }
        return first;
}

typedef struct LinksPlace {
        LinkDirs *dirs;
        LinkPlace place;
        int (*on_links)(const char *bundle_id, const char *path, void *userdata);
        void *userdata;
} LinksPlace;

static int list_place(const LinksPlace *l, int instance_fd) {
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
                if (strncmp(id, LINK_UNIT_PREFIX, strlen(LINK_UNIT_PREFIX)) == 0) {
                        sweep_unit_record(instance_fd, id);
                        continue;
                }
                if (strncmp(id, LINK_NEW_PREFIX, strlen(LINK_NEW_PREFIX)) == 0)
                        id += strlen(LINK_NEW_PREFIX);
                else if (strncmp(id, LINK_TAKEN_PREFIX, strlen(LINK_TAKEN_PREFIX)) == 0)
                        id += strlen(LINK_TAKEN_PREFIX);
                _cleanup_free_ char *path = strbuf_format(
                        "%s/" LINK_DIRS_NAME "/%s/%s", link_dirs_path(l->dirs, l->place),
                        link_dirs_instance_id(l->dirs), entry->d_name);
                r = path ? l->on_links(id, path, l->userdata) : -ENOMEM;
                if (r < 0)
                        return r;
        }
}

int links_list(LinkDirs *dirs,
               int (*on_links)(const char *bundle_id, const char *path, void *userdata),
               void *userdata) {
        for (LinkPlace place = 0; place < N_LINK_PLACES; place++) {
                LinksPlace l = { dirs, place, on_links, userdata };
                _cleanup_close_ int instance_fd = open_instance(dirs, place);
                int r = instance_fd < 0 ? instance_fd : list_place(&l, instance_fd);
                if (r < 0 && !own_dir_is_absent(r))
                        return r;
        }
        return 0;
}

size_t links_count_of_node(LinkDirs *dirs, const char *instance_id) {
        size_t n = 0;
        for (LinkPlace place = 0; place < N_LINK_PLACES; place++) {
                _cleanup_closedir_ DIR *dir = NULL;
                uid_t uid;
                _cleanup_close_ int root_fd = link_dirs_open_root(dirs, place, false, &uid, NULL);
                if (root_fd < 0 || fs_opendir_at(root_fd, instance_id, &dir) < 0)
                        continue;
                for (struct dirent *e; (e = readdir(dir));)
                        n += e->d_name[0] != '.';
        }
        return n;
}
