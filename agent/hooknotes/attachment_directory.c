/* The directories of attachments on the disk: their names, how they are created and opened, and how
 * much is in them. attachments.h describes them. Nothing here is kept in memory, so that the loop
 * and the worker of attachment_job.c both use it. */
#include "agent/hooknotes/attachment_directory.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "lib/base/array.h"
#include "lib/base/cleanup.h"
#include "lib/base/digest.h"
#include "lib/base/fs.h"
#include "lib/base/path.h"
#include "lib/neuron/bundle_name.h"

/* ---- names in a directory ---- */

bool attachment_name_is_valid(const char *name) {
        size_t n =
                strspn(name, "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789._-");
        return n > 0 && n <= ATTACHMENT_NAME_MAX && name[n] == '\0' && name[0] != '.';
}

void attachment_names_done(AttachmentNames *names) {
        for (size_t i = 0; i < names->n; i++)
                free(names->items[i]);
        free(names->items);
        *names = (AttachmentNames){ 0 };
}

static int add_name(AttachmentNames *names, const char *name) {
        if (array_grow(&names->items, names->n, sizeof *names->items) < 0)
                return -ENOMEM;
        names->items[names->n] = strdup(name);
        return names->items[names->n++] ? 0 : -ENOMEM;
}

int attachment_directory_read(int dir_fd, bool (*wants)(int dir_fd, const char *name),
                              AttachmentNames *names) {
        _cleanup_closedir_ DIR *dir = NULL;
        const struct dirent *entry;
        int r = fs_opendir_at(dir_fd, ".", &dir);
        if (r < 0)
                return r;
        while (r == 0 && names->n < names->max && (errno = 0, entry = readdir(dir)))
                if (wants(dir_fd, entry->d_name))
                        r = add_name(names, entry->d_name);
        if (r == 0 && names->n < names->max && errno > 0)
                r = -errno;
        if (r == 0 && names->n > 0)
                qsort(names->items, names->n, sizeof *names->items, array_compare_strings);
        if (r < 0)
                attachment_names_done(names);
        return r;
}

bool attachment_is_file(int dir_fd, const char *name) {
        struct stat st;
        return attachment_name_is_valid(name) &&
               fstatat(dir_fd, name, &st, AT_SYMLINK_NOFOLLOW) == 0 && S_ISREG(st.st_mode);
}

bool attachment_is_given(int dir_fd, const char *name) {
        (void)dir_fd; /* its name decides */
        return strncmp(name, ATTACHMENT_GIVEN, strlen(ATTACHMENT_GIVEN)) == 0 &&
               bundle_id_is_valid(name + strlen(ATTACHMENT_GIVEN));
}

bool attachment_is_unit(int dir_fd, const char *name) {
        (void)dir_fd; /* its name decides */
        return strlen(name) == ATTACHMENT_KEY_SIZE - 1 &&
               strspn(name, "0123456789abcdef") == ATTACHMENT_KEY_SIZE - 1;
}

int attachment_names(int dir_fd, AttachmentNames *ret) {
        *ret = (AttachmentNames){ .max = ATTACHMENTS_MAX };
        return attachment_directory_read(dir_fd, attachment_is_file, ret);
}

/* ---- directories ---- */

const char *attachment_unit_key(const char *source, const char *path,
                                char buf[static ATTACHMENT_KEY_SIZE]) {
        uint8_t digest[SHA256_SIZE];
        Sha256 s;
        sha256_init(&s);
        sha256_update(&s, source, strlen(source) + 1);
        sha256_update(&s, path, strlen(path));
        sha256_final(&s, digest);
        return digest_hex(digest, (ATTACHMENT_KEY_SIZE - 1) / 2, buf);
}

int attachment_open_directory(int dir_fd, const char *name) {
        int fd = openat(dir_fd, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
        return fd < 0 ? -errno : fd;
}

/* Creates it if it is missing, and makes its name durable. */
int attachment_create_directory(int dir_fd, const char *name) {
        int fd = attachment_open_directory(dir_fd, name);
        if (fd != -ENOENT)
                return fd;
        if (mkdirat(dir_fd, name, 0700) < 0 && errno != EEXIST)
                return -errno;
        fd = attachment_open_directory(dir_fd, name);
        int r = fd < 0 ? fd : fs_sync_dir(dir_fd);
        if (r < 0 && fd >= 0)
                (void)close(fd); /* a directory */
        return r < 0 ? r : fd;
}

int attachment_open_unit(const char *path, const char *source, const char *unit_path) {
        char key[ATTACHMENT_KEY_SIZE];
        _cleanup_close_ int root = path ? attachment_open_directory(AT_FDCWD, path) : -ENOENT;
        return root < 0 ? root
                        : attachment_open_directory(root,
                                                    attachment_unit_key(source, unit_path, key));
}

/* Records the unit before anything is in the directory, for the sweep. */
static int write_unit_file(int unit, const char *source, const char *unit_path) {
        struct stat st;
        if (fstatat(unit, ATTACHMENT_UNIT_FILE, &st, AT_SYMLINK_NOFOLLOW) == 0)
                return 0;
        size_t n_source = strlen(source) + 1, n = n_source + strlen(unit_path);
        _cleanup_free_ char *text = malloc(n + 1);
        if (!text)
                return -ENOMEM;
        memcpy(text, source, n_source);
        strcpy(text + n_source, unit_path);
        return n > ATTACHMENT_UNIT_FILE_MAX
                       ? -ENAMETOOLONG
                       : fs_write_file(unit, ATTACHMENT_UNIT_FILE, text, n, 0600);
}

int attachment_create_root(const char *path) {
        _cleanup_free_ char *parent = path_parent(path);
        _cleanup_close_ int state = parent ? attachment_open_directory(AT_FDCWD, parent) : -ENOMEM;
        return state < 0 ? state : attachment_create_directory(state, path_name(path));
}

int attachment_create_unit(const char *path, const char *source, const char *unit_path) {
        char key[ATTACHMENT_KEY_SIZE];
        _cleanup_close_ int root = attachment_create_root(path);
        if (root < 0)
                return root;
        _cleanup_close_ int unit =
                attachment_create_directory(root, attachment_unit_key(source, unit_path, key));
        if (unit < 0)
                return unit;
        int r = write_unit_file(unit, source, unit_path);
        return r < 0 ? r : TAKE_FD(unit);
}

/* ---- counting ---- */

int attachment_count_waiting(int unit, const char *but, size_t *n, uint64_t *bytes) {
        _cleanup_(attachment_names_done) AttachmentNames names = { .max = ATTACHMENTS_MAX };
        int r = attachment_directory_read(unit, attachment_is_file, &names);
        for (size_t i = 0; i < names.n; i++) {
                struct stat st;
                if ((but && strcmp(names.items[i], but) == 0) ||
                    fstatat(unit, names.items[i], &st, AT_SYMLINK_NOFOLLOW) < 0)
                        continue;
                (*n)++;
                *bytes += (uint64_t)st.st_size; /* ours: bounded when they were put there */
        }
        return r;
}

int attachment_count_in(int unit, const char *name, size_t *n, uint64_t *bytes) {
        _cleanup_close_ int fd = attachment_open_directory(unit, name);
        if (fd < 0)
                return fd == -ENOENT ? 0 : fd;
        return attachment_count_waiting(fd, NULL, n, bytes);
}

/* Counts what waits and what is assigned. @param but  a name that does not count; NULL */
static int count_all_of_unit(int unit, const char *but, size_t *n, uint64_t *bytes) {
        _cleanup_(attachment_names_done) AttachmentNames given = { .max = ATTACHMENTS_MAX };
        int r = attachment_count_waiting(unit, but, n, bytes);
        if (r == 0)
                r = attachment_count_in(unit, ATTACHMENT_GIVING, n, bytes);
        if (r == 0)
                r = attachment_directory_read(unit, attachment_is_given, &given);
        for (size_t i = 0; r == 0 && i < given.n; i++)
                r = attachment_count_in(unit, given.items[i], n, bytes);
        return r;
}

int attachment_count_all(const char *path, uint64_t *ret_bytes) {
        _cleanup_(attachment_names_done) AttachmentNames units = { .max = ATTACHMENTS_UNITS_MAX };
        _cleanup_close_ int root = attachment_open_directory(AT_FDCWD, path);
        int r = root < 0 ? root : attachment_directory_read(root, attachment_is_unit, &units);
        uint64_t bytes = 0;
        size_t n = 0;
        for (size_t i = 0; r == 0 && i < units.n; i++) {
                _cleanup_close_ int unit = attachment_open_directory(root, units.items[i]);
                if (unit >= 0)
                        r = count_all_of_unit(unit, NULL, &n, &bytes);
        }
        *ret_bytes = bytes;
        return r == -ENOENT ? 0 : r;
}

int attachment_check_unit(int unit, const char *name, uint64_t more_bytes) {
        size_t n = 1;
        uint64_t bytes = more_bytes;
        int r = count_all_of_unit(unit, name, &n, &bytes);
        if (r < 0)
                return r;
        return n > ATTACHMENTS_MAX                                                   ? -E2BIG
               : more_bytes > ATTACHMENTS_MAX_BYTES || bytes > ATTACHMENTS_MAX_BYTES ? -EFBIG
                                                                                     : 0;
}
