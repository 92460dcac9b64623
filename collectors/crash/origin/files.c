/* Opens the files that a report's child requests.
 *
 * The child has read a hostile core and is not trusted. A request names a path and a build id, and
 * is answered with a descriptor, if the path is clean, the file is code, debug information or a
 * list of a package manager, it lies beneath one of the roots, and the owner of the core could read
 * it. Roots are searched in their order; a file from a root that is not the process's own counts
 * only by its build id, which the child compares. Which roots there are is decided in roots.c. */
#include "collectors/crash/origin/files.h"

#include <elf.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/magic.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statfs.h>
#include <unistd.h>

#include "collectors/host/procfs.h"
#include "lib/base/digest.h"
#include "lib/base/fs.h"
#include "lib/base/path.h"

#define DEBUG_DIRECTORY "/usr/lib/debug/.build-id"
#define DPKG "/var/lib/dpkg"

static const char *const python_directories[] = { "/site-packages", "/dist-packages" };

/* Programs and libraries; above all no core and no object of a kernel. */
static bool is_code(int fd) {
        Elf64_Ehdr e;
        return fs_pread_all(fd, &e, sizeof e, 0) == 0 && memcmp(e.e_ident, ELFMAG, SELFMAG) == 0 &&
               e.e_ident[EI_CLASS] == ELFCLASS64 && (e.e_type == ET_EXEC || e.e_type == ET_DYN);
}

static bool has_component(const char *path, const char *name) {
        size_t n = strlen(name);
        for (const char *p = path; (p = strstr(p, name)); p += n)
                if (p > path && p[-1] == '/' && (p[n] == '/' || p[n] == '\0'))
                        return true;
        return false;
}

/* What the kernel reports of a mapped file is absolute and without dots. */
static bool is_acceptable(const char *path) {
        static const char *const kernels[] = { "/proc", "/sys", "/dev" };
        if (path[0] != '/' || path[1] == '/' || has_component(path, ".") ||
            has_component(path, ".."))
                return false;
        for (size_t i = 0; i < ELEMENTSOF(kernels); i++) {
                size_t n = strlen(kernels[i]);
                if (strncmp(path, kernels[i], n) == 0 && (path[n] == '/' || path[n] == '\0'))
                        return false;
        }
        return true;
}

static bool is_of_kernel(int fd) {
        struct statfs fs;
        return fstatfs(fd, &fs) < 0 || fs.f_type == PROC_SUPER_MAGIC || fs.f_type == SYSFS_MAGIC;
}

static int open_code(int root_fd, const char *path) {
        int fd = is_acceptable(path) ? procfs_root_open(root_fd, path, O_RDONLY, NULL) : -ENOENT;
        if (fd >= 0 && (is_of_kernel(fd) || !is_code(fd))) {
                (void)close(fd);
                return -ENOENT;
        }
        return fd;
}

static int open_debug(int root_fd, const BuildId *id) {
        char path[FILES_PATH_SIZE], hex[2 * ELF_BUILD_ID_MAX + 1];
        if (id->n < 2)
                return -ENOENT;
        digest_hex(id->bytes, id->n, hex);
        (void)snprintf(path, sizeof path, DEBUG_DIRECTORY "/%.2s/%s.debug", hex, hex + 2);
        return open_code(root_fd, path);
}

static int open_program(int fd, const FileQuery *q) {
        return q->is_program && q->kind == FILE_OF_CODE && is_code(fd)
                       ? fcntl(fd, F_DUPFD_CLOEXEC, 0)
                       : -ENOENT;
}

/* ---- what package managers know ---- */

static bool is_one_name(const char *path, size_t n) {
        return n > 0 && !memchr(path, '/', n);
}

/* Whether path is one name and then this, `NAME.list` or `NAME.dist-info/RECORD`. */
static bool is_name_and(const char *path, const char *ending) {
        return path_has_suffix(path, ending) && is_one_name(path, strlen(path) - strlen(ending));
}

static bool is_package_text(const char *path) {
        const char *python = NULL;
        if (strcmp(path, DPKG "/status") == 0)
                return true;
        if (strncmp(path, DPKG "/info/", strlen(DPKG "/info/")) == 0)
                return is_name_and(path + strlen(DPKG "/info/"), ".list");
        for (size_t i = 0; i < ELEMENTSOF(python_directories); i++)
                for (const char *at = path; (at = strstr(at, python_directories[i])); python = at)
                        at += strlen(python_directories[i]);
        return python && *python++ == '/' &&
               (is_name_and(python, ".dist-info/METADATA") ||
                is_name_and(python, ".dist-info/RECORD") || is_name_and(python, "/version.py"));
}

static bool is_package_directory(const char *path) {
        bool is_python = false;
        for (size_t i = 0; i < ELEMENTSOF(python_directories); i++)
                is_python = is_python || path_has_suffix(path, python_directories[i]);
        return is_python || strcmp(path, DPKG "/info") == 0;
}

static int open_of_packages(int root_fd, const FileQuery *q) {
        bool is_text = q->kind == FILE_OF_TEXT;
        int flags = is_text ? O_RDONLY : O_RDONLY | O_DIRECTORY;
        if (!is_acceptable(q->path) ||
            !(is_text ? is_package_text(q->path) : is_package_directory(q->path)))
                return -ENOENT;
        int fd = procfs_root_open(root_fd, q->path, flags, NULL);
        if (fd >= 0 && is_of_kernel(fd)) {
                (void)close(fd);
                return -ENOENT;
        }
        return fd;
}

/* ---- whether the core's owner may read a file ---- */

/* @param other  S_IROTH, S_IXOTH */
static bool may(const FileReader *r, const struct stat *st, mode_t other) {
        if (r->uid == 0 || r->uid == st->st_uid || st->st_mode & other)
                return true;
        for (size_t i = 0; i < r->n_groups && st->st_mode & other << 3; i++)
                if (r->groups[i] == st->st_gid)
                        return true;
        return false;
}

/* @return whether path was set to what the kernel calls an open file */
static bool name_open_file(int fd, char path[static FILES_PATH_SIZE]) {
        char link[sizeof "/proc/self/fd/" + 10];
        (void)snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
        ssize_t n = readlink(link, path, FILES_PATH_SIZE - 1);
        path[MAX(n, 0)] = '\0';
        return n > 0 && path[0] == '/' && n < FILES_PATH_SIZE - 1;
}

/* @return where in the root an open file is, without links; NULL: not known */
static const char *place_below(int root_fd, int fd, char path[static FILES_PATH_SIZE]) {
        char root[FILES_PATH_SIZE];
        struct stat a, b;
        if (!name_open_file(root_fd, root) || !name_open_file(fd, path))
                return NULL;
        size_t n = strcmp(root, "/") == 0 ? 0 : strlen(root);
        if (strncmp(path, root, n) != 0 || path[n] != '/' || fstat(fd, &a) < 0)
                return NULL;
        _cleanup_close_ int again = procfs_root_open(
                root_fd, path + n, O_PATH | (S_ISDIR(a.st_mode) ? O_DIRECTORY : 0), &b);
        return again >= 0 && a.st_dev == b.st_dev && a.st_ino == b.st_ino ? path + n : NULL;
}

/* @return whether the core's owner may read an open file. The agent itself may read more, such as a
 * program in another user's home. */
static bool may_read(const FileReader *r, int root_fd, int fd) {
        char buffer[FILES_PATH_SIZE], prefix[FILES_PATH_SIZE] = "/";
        struct stat st;
        if (!r || r->uid == 0)
                return true;
        const char *path = place_below(root_fd, fd, buffer);
        if (!path || fstat(fd, &st) < 0 || !may(r, &st, S_IROTH))
                return false;
        for (const char *slash = path; slash; slash = strchr(slash + 1, '/')) {
                size_t n = MAX((size_t)(slash - path), (size_t)1);
                memcpy(prefix, path, n);
                prefix[n] = '\0';
                _cleanup_close_ int dir =
                        procfs_root_open(root_fd, prefix, O_PATH | O_DIRECTORY, &st);
                if (dir < 0 || !may(r, &st, S_IXOTH))
                        return false;
        }
        return true;
}

/* ---- a request ---- */

/* Where the process had a root of its own, the same path elsewhere is likely another file. */
static bool is_other(const FileRoot *roots, size_t at) {
        for (size_t i = 0; i < at && roots[at].kind == FILE_ROOT_HOST; i++)
                if (roots[i].kind == FILE_ROOT_OWN)
                        return true;
        return roots[at].kind == FILE_ROOT_LAYER;
}

static int open_in(const FileRoot *root, bool other, const FileQuery *q) {
        if (root->kind == FILE_ROOT_PROGRAM)
                return open_program(root->fd, q);
        switch (q->kind) {
        case FILE_OF_CODE:
                return other && q->build_id.n == 0 ? -ENOENT : open_code(root->fd, q->path);
        case FILE_OF_DEBUG:
                return root->kind == FILE_ROOT_LAYER ? -ENOENT : open_debug(root->fd, &q->build_id);
        case FILE_OF_TEXT:
        case FILE_OF_NAMES:
                return open_of_packages(root->fd, q);
        }
        return -ENOENT;
}

static bool is_valid_query(const FileQuery *q) {
        return memchr(q->path, '\0', sizeof q->path) && q->build_id.n <= ELF_BUILD_ID_MAX;
}

int files_open(const FileRoot *roots, size_t n, const FileReader *reader, const FileQuery *q,
               FileReply *ret) {
        bool in_all = q->kind == FILE_OF_CODE || q->kind == FILE_OF_DEBUG;
        *ret = (FileReply){ .error = -ENODATA };
        for (size_t i = q->place; i < n && is_valid_query(q); i++) {
                bool other = is_other(roots, i);
                int fd = open_in(&roots[i], other, q);
                if (fd >= 0 && !may_read(reader, roots[i].fd, fd)) {
                        (void)close(fd);
                        fd = -EACCES;
                }
                if (fd < 0 && in_all)
                        continue;
                if (fd >= 0)
                        *ret = (FileReply){ .place = (unsigned)i, .is_other = other };
                return MAX(fd, -1);
        }
        return -1;
}
