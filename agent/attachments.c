#include "agent/attachments.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "lib/base/cleanup.h"
#include "lib/base/digest.h"
#include "lib/base/fs.h"
#include "lib/base/path.h"
#include "lib/dump/ids.h"

#define KEY_SIZE 17
#define GIVEN ".of-"        /* and the bundle's id: what it was given */
#define GIVING ".giving"    /* on the way there: waits still */
#define WHOSE ".unit"       /* source, NUL, path */
#define COMING ".coming"    /* is being written */
#define WHOSE_MAX (8 * KIB) /* more than any name and path */
#define UNITS_MAX 65536     /* directories that a sweep looks at */
#define COPY_BYTES (64 * KIB)

struct Attachments {
        char *path;
        uint64_t bytes; /* of all units, at most: counted anew when it is too much */
        bool is_counted;
};

int attachments_new(Attachments **ret, const char *state_directory) {
        Attachments *a = calloc(1, sizeof *a);
        if (!a)
                return -ENOMEM;
        a->path = path_join(state_directory, "attachments");
        if (!a->path) {
                free(a);
                return -ENOMEM;
        }
        *ret = a;
        return 0;
}

Attachments *attachments_free(Attachments *a) {
        if (!a)
                return NULL;
        free(a->path);
        free(a);
        return NULL;
}

bool attachment_name_is_valid(const char *name) {
        size_t n =
                strspn(name, "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789._-");
        return n > 0 && n <= ATTACHMENT_NAME_MAX && name[n] == '\0' && name[0] != '.';
}

/* ---- names in a directory ---- */

void attachment_names_free(char **names, size_t n) {
        for (size_t i = 0; i < n; i++)
                free(names[i]);
        free(names);
}

static int compare_names(const void *a, const void *b) {
        return strcmp(*(char *const *)a, *(char *const *)b);
}

typedef struct Names {
        char **items;
        size_t n, max;
} Names;

static void names_done(Names *names) {
        attachment_names_free(names->items, names->n);
        *names = (Names){ 0 };
}

static int add_name(Names *names, const char *name) {
        if (names->n % 64 == 0) {
                char **more = reallocarray(names->items, names->n + 64, sizeof *more);
                if (!more)
                        return -ENOMEM;
                names->items = more;
        }
        names->items[names->n] = strdup(name);
        return names->items[names->n] ? (int)(names->n++, 0) : -ENOMEM;
}

/* All names that a filter wants, in strcmp order; no more than names->max. */
static int read_names(int dir_fd, bool (*wants)(int dir_fd, const char *name), Names *names) {
        int fd = openat(dir_fd, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC), r = 0;
        if (fd < 0)
                return -errno;
        DIR *dir = fdopendir(fd);
        if (!dir) {
                r = -errno;
                (void)close(fd); /* a directory */
                return r;
        }
        const struct dirent *entry;
        while (r == 0 && names->n < names->max && (errno = 0, entry = readdir(dir)))
                if (wants(fd, entry->d_name))
                        r = add_name(names, entry->d_name);
        if (r == 0 && names->n < names->max && errno > 0)
                r = -errno;
        (void)closedir(dir); /* a directory */
        if (r == 0 && names->n > 0)
                qsort(names->items, names->n, sizeof *names->items, compare_names);
        if (r < 0)
                names_done(names);
        return r;
}

static bool is_attachment(int dir_fd, const char *name) {
        struct stat st;
        return attachment_name_is_valid(name) &&
               fstatat(dir_fd, name, &st, AT_SYMLINK_NOFOLLOW) == 0 && S_ISREG(st.st_mode);
}

static bool is_given(int dir_fd, const char *name) {
        (void)dir_fd; /* its name tells */
        return strncmp(name, GIVEN, strlen(GIVEN)) == 0 && bundle_id_is_valid(name + strlen(GIVEN));
}

static bool is_unit(int dir_fd, const char *name) {
        (void)dir_fd; /* its name tells */
        return strlen(name) == KEY_SIZE - 1 && strspn(name, "0123456789abcdef") == KEY_SIZE - 1;
}

int attachment_names(int dir_fd, char ***ret, size_t *ret_n) {
        Names names = { .max = ATTACHMENTS_MAX };
        int r = read_names(dir_fd, is_attachment, &names);
        if (r < 0)
                return r;
        *ret = names.items;
        *ret_n = names.n;
        return 0;
}

/* ---- directories ---- */

static const char *unit_key(const char *source, const char *path, char buf[static KEY_SIZE]) {
        uint8_t digest[SHA256_SIZE];
        Sha256 s;
        sha256_init(&s);
        sha256_update(&s, source, strlen(source) + 1);
        sha256_update(&s, path, strlen(path));
        sha256_final(&s, digest);
        return digest_hex(digest, (KEY_SIZE - 1) / 2, buf);
}

static int open_dir(int dir_fd, const char *name) {
        int fd = openat(dir_fd, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
        return fd < 0 ? -errno : fd;
}

/* Makes it if it is not there, and its name durable. */
static int make_dir(int dir_fd, const char *name) {
        int fd = open_dir(dir_fd, name);
        if (fd != -ENOENT)
                return fd;
        if (mkdirat(dir_fd, name, 0700) < 0 && errno != EEXIST)
                return -errno;
        fd = open_dir(dir_fd, name);
        int r = fd < 0 ? fd : fs_sync_dir(dir_fd);
        if (r < 0 && fd >= 0)
                (void)close(fd); /* a directory */
        return r < 0 ? r : fd;
}

static int open_unit(const Attachments *a, const char *source, const char *unit_path) {
        char key[KEY_SIZE];
        _cleanup_close_ int root = open_dir(AT_FDCWD, a->path);
        return root < 0 ? root : open_dir(root, unit_key(source, unit_path, key));
}

/* Says whose it is before anything lies in it, so that a sweep can tell. */
static int sign(int unit, const char *source, const char *unit_path) {
        struct stat st;
        if (fstatat(unit, WHOSE, &st, AT_SYMLINK_NOFOLLOW) == 0)
                return 0;
        size_t n_source = strlen(source) + 1, n = n_source + strlen(unit_path);
        _cleanup_free_ char *text = malloc(n + 1);
        if (!text)
                return -ENOMEM;
        memcpy(text, source, n_source);
        strcpy(text + n_source, unit_path);
        return n > WHOSE_MAX ? -ENAMETOOLONG : fs_write_file(unit, WHOSE, text, n, 0600);
}

static int make_unit(const Attachments *a, const char *source, const char *unit_path) {
        char key[KEY_SIZE];
        _cleanup_free_ char *parent = path_parent(a->path);
        _cleanup_close_ int state = parent ? open_dir(AT_FDCWD, parent) : -ENOMEM;
        if (state < 0)
                return state;
        _cleanup_close_ int root = make_dir(state, path_name(a->path));
        if (root < 0)
                return root;
        _cleanup_close_ int unit = make_dir(root, unit_key(source, unit_path, key));
        if (unit < 0)
                return unit;
        int r = sign(unit, source, unit_path);
        return r < 0 ? r : TAKE_FD(unit);
}

/* ---- putting ---- */

/* Counts the files of one directory, but for one name. */
static int count_files(int dir_fd, const char *but, size_t *n, uint64_t *bytes) {
        Names names = { .max = ATTACHMENTS_MAX };
        int r = read_names(dir_fd, is_attachment, &names);
        for (size_t i = 0; i < names.n; i++) {
                struct stat st;
                if ((but && strcmp(names.items[i], but) == 0) ||
                    fstatat(dir_fd, names.items[i], &st, AT_SYMLINK_NOFOLLOW) < 0)
                        continue;
                (*n)++;
                *bytes += (uint64_t)st.st_size; /* ours: bounded when they were put there */
        }
        names_done(&names);
        return r;
}

static int count_files_in(int unit, const char *name, size_t *n, uint64_t *bytes) {
        _cleanup_close_ int fd = open_dir(unit, name);
        if (fd < 0)
                return fd == -ENOENT ? 0 : fd;
        return count_files(fd, NULL, n, bytes);
}

/* What waits and what was given, as one. @param but  a name that waits and does not count; NULL */
static int count_all_of_unit(int unit, const char *but, size_t *n, uint64_t *bytes) {
        Names given = { .max = ATTACHMENTS_MAX };
        int r = count_files(unit, but, n, bytes);
        if (r == 0)
                r = count_files_in(unit, GIVING, n, bytes);
        if (r == 0)
                r = read_names(unit, is_given, &given);
        for (size_t i = 0; r == 0 && i < given.n; i++)
                r = count_files_in(unit, given.items[i], n, bytes);
        names_done(&given);
        return r;
}

static int check_room_of_all(Attachments *a, uint64_t more_bytes) {
        if (a->is_counted && a->bytes + more_bytes <= ATTACHMENTS_MAX_BYTES_ALL)
                return 0;
        Names units = { .max = UNITS_MAX };
        _cleanup_close_ int root = open_dir(AT_FDCWD, a->path);
        int r = root < 0 ? root : read_names(root, is_unit, &units);
        size_t n = 0;
        a->bytes = 0;
        for (size_t i = 0; r == 0 && i < units.n; i++) {
                _cleanup_close_ int unit = open_dir(root, units.items[i]);
                if (unit >= 0)
                        r = count_all_of_unit(unit, NULL, &n, &a->bytes);
        }
        names_done(&units);
        a->is_counted = r == 0;
        return r < 0 ? r : a->bytes + more_bytes > ATTACHMENTS_MAX_BYTES_ALL ? -EDQUOT : 0;
}

static int check_room(int unit, const char *name, uint64_t more_bytes) {
        size_t n = 1;
        uint64_t bytes = more_bytes;
        int r = count_all_of_unit(unit, name, &n, &bytes);
        if (r < 0)
                return r;
        return n > ATTACHMENTS_MAX                                                   ? -E2BIG
               : more_bytes > ATTACHMENTS_MAX_BYTES || bytes > ATTACHMENTS_MAX_BYTES ? -EFBIG
                                                                                     : 0;
}

/* No more than it had when it was measured. */
static int copy_content(int to, int from, uint64_t bytes) {
        _cleanup_free_ char *buffer = malloc(COPY_BYTES);
        if (!buffer)
                return -ENOMEM;
        for (uint64_t at = 0; at < bytes;) {
                size_t n = (size_t)MIN(bytes - at, (uint64_t)COPY_BYTES);
                int r = fs_pread_all(from, buffer, n, at);
                if (r >= 0)
                        r = fs_write_all(to, buffer, n);
                if (r < 0)
                        return r;
                at += n;
        }
        return 0;
}

static int write_copy(int unit, int from, uint64_t bytes) {
        if (unlinkat(unit, COMING, 0) < 0 && errno != ENOENT) /* what a crash left */
                return -errno;
        _cleanup_close_ int to =
                openat(unit, COMING, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
        if (to < 0)
                return -errno;
        int r = copy_content(to, from, bytes);
        if (r == 0 && fsync(to) < 0)
                r = -errno;
        return r;
}

int attachments_put(Attachments *a, const char *source, const char *unit_path, const char *name,
                    int fd) {
        struct stat st;
        if (!attachment_name_is_valid(name))
                return -EINVAL;
        if (fstat(fd, &st) < 0)
                return -errno;
        if (!S_ISREG(st.st_mode))
                return -EINVAL;
        _cleanup_close_ int unit = make_unit(a, source, unit_path);
        if (unit < 0)
                return unit;
        int r = check_room(unit, name, (uint64_t)st.st_size);
        if (r == 0)
                r = check_room_of_all(a, (uint64_t)st.st_size);
        if (r < 0)
                return r;
        r = write_copy(unit, fd, (uint64_t)st.st_size);
        if (r == 0 && renameat(unit, COMING, unit, name) < 0)
                r = -errno;
        if (r == 0)
                a->bytes += (uint64_t)st.st_size;
        if (r == 0)
                r = fs_sync_dir(unit);
        if (r < 0)
                (void)unlinkat(unit, COMING, 0); /* else the next one does */
        return r;
}

/* ---- giving ---- */

size_t attachments_waiting(const Attachments *a, const char *source, const char *unit_path,
                           uint64_t *ret_bytes) {
        size_t n = 0;
        uint64_t bytes = 0;
        _cleanup_close_ int unit = a ? open_unit(a, source, unit_path) : -ENOENT;
        if (unit >= 0) {
                (void)count_files(unit, NULL, &n, &bytes); /* as said in the header */
                (void)count_files_in(unit, GIVING, &n, &bytes);
        }
        if (ret_bytes)
                *ret_bytes = bytes;
        return n;
}

/* Moves what waits into one directory, and gives this its final name when all is in it: until then nothing of it was shipped, and after a crash
 * it may be another set. */
static int give(int unit, const char *given) {
        Names names = { .max = ATTACHMENTS_MAX };
        _cleanup_close_ int giving = make_dir(unit, GIVING);
        if (giving < 0)
                return giving;
        int r = read_names(unit, is_attachment, &names);
        for (size_t i = 0; r == 0 && i < names.n; i++)
                if (renameat(unit, names.items[i], giving, names.items[i]) < 0)
                        r = -errno;
        names_done(&names);
        if (r == 0)
                r = fs_sync_dir(giving);
        if (r == 0 && renameat(unit, GIVING, unit, given) < 0)
                r = -errno;
        if (r == 0)
                r = fs_sync_dir(unit);
        return r < 0 ? r : TAKE_FD(giving);
}

int attachments_give(const Attachments *a, const char *source, const char *unit_path,
                     const char *bundle_id, bool may_give) {
        char given[sizeof GIVEN + 256];
        if (!bundle_id_is_valid(bundle_id))
                return -EINVAL;
        (void)snprintf(given, sizeof given, "%s%s", GIVEN, bundle_id);
        _cleanup_close_ int unit = a ? open_unit(a, source, unit_path) : -ENOENT;
        if (unit < 0)
                return unit;
        int fd = open_dir(unit, given);
        if (fd != -ENOENT)
                return fd;
        return may_give && attachments_waiting(a, source, unit_path, NULL) > 0 ? give(unit, given)
                                                                               : -ENOENT;
}

/* ---- letting go ---- */

int attachments_release(Attachments *a, const char *source, const char *unit_path) {
        char key[KEY_SIZE];
        _cleanup_close_ int root = open_dir(AT_FDCWD, a->path);
        if (root < 0)
                return root == -ENOENT ? 0 : root;
        return fs_remove_tree(root, unit_key(source, unit_path, key));
}

static bool is_anything(int dir_fd, const char *name) {
        return is_attachment(dir_fd, name) || is_given(dir_fd, name) || strcmp(name, GIVING) == 0;
}

int attachments_release_bundle(const Attachments *a, const char *source, const char *unit_path,
                               const char *bundle_id) {
        char key[KEY_SIZE], given[sizeof GIVEN + 256];
        if (!bundle_id_is_valid(bundle_id))
                return -EINVAL;
        (void)snprintf(given, sizeof given, "%s%s", GIVEN, bundle_id);
        _cleanup_close_ int root = a ? open_dir(AT_FDCWD, a->path) : -ENOENT;
        if (root < 0)
                return root == -ENOENT ? 0 : root;
        _cleanup_close_ int unit = open_dir(root, unit_key(source, unit_path, key));
        if (unit < 0)
                return unit == -ENOENT ? 0 : unit;
        int r = fs_remove_tree(unit, given);
        Names left = { .max = 1 };
        if (r == 0)
                r = read_names(unit, is_anything, &left);
        if (r == 0 && left.n == 0)
                r = fs_remove_tree(root, key);
        names_done(&left);
        return r;
}

/* ---- sweeping ---- */

int attachments_list(const Attachments *a, const char *source,
                     void (*on_unit)(const char *unit_path, uint64_t changed_usec, void *userdata),
                     void *userdata) {
        Names units = { .max = UNITS_MAX };
        _cleanup_close_ int root = open_dir(AT_FDCWD, a->path);
        if (root < 0)
                return root == -ENOENT ? 0 : root;
        int r = read_names(root, is_unit, &units);
        for (size_t i = 0; i < units.n; i++) {
                _cleanup_close_ int unit = open_dir(root, units.items[i]);
                _cleanup_free_ char *whose = NULL;
                struct stat st;
                size_t n;
                if (unit < 0 || fstat(unit, &st) < 0 ||
                    fs_read_file(unit, WHOSE, WHOSE_MAX, &whose, &n) < 0)
                        continue; /* nobody's: left alone */
                size_t n_source = strlen(whose);
                if (n_source + 1 < n && strcmp(whose, source) == 0)
                        on_unit(whose + n_source + 1,
                                (uint64_t)MAX(st.st_mtim.tv_sec, (time_t)0) * USEC_PER_SEC,
                                userdata);
        }
        names_done(&units);
        return r;
}

int attachments_list_bundles(const Attachments *a, const char *source, const char *unit_path,
                             void (*on_bundle)(const char *bundle_id, void *userdata),
                             void *userdata) {
        Names given = { .max = ATTACHMENTS_MAX };
        _cleanup_close_ int unit = open_unit(a, source, unit_path);
        if (unit < 0)
                return unit == -ENOENT ? 0 : unit;
        int r = read_names(unit, is_given, &given);
        for (size_t i = 0; i < given.n; i++)
                on_bundle(given.items[i] + strlen(GIVEN), userdata);
        names_done(&given);
        return r;
}
