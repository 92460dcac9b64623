#include "agent/hooknotes/attachments.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "agent/hooknotes/attachments_private.h"
#include "lib/base/cleanup.h"
#include "lib/base/digest.h"
#include "lib/base/fs.h"
#include "lib/base/path.h"
#include "lib/neuron/ids.h"

#define KEY_SIZE ATTACHMENTS_KEY_SIZE
#define GIVEN ".of-" /* and the bundle's id: what it was given */
#define GIVING ATTACHMENTS_GIVING
#define WHOSE ".unit"       /* source, NUL, path */
#define WHOSE_MAX (8 * KIB) /* more than any name and path */

int attachments_new(Attachments **ret, const char *state_directory) {
        Attachments *a = calloc(1, sizeof *a);
        if (!a)
                return -ENOMEM;
        a->max_bytes_all = ATTACHMENTS_MAX_BYTES_ALL;
        list_init(&a->jobs);
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
        attachments_drop_jobs(a);
        free(a->path);
        free(a);
        return NULL;
}

void attachments_limit(Attachments *a, uint64_t max_bytes_all) {
        a->max_bytes_all = max_bytes_all;
}

bool attachment_name_is_valid(const char *name) {
        size_t n =
                strspn(name, "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789._-");
        return n > 0 && n <= ATTACHMENT_NAME_MAX && name[n] == '\0' && name[0] != '.';
}

/* ---- names in a directory ---- */

void attachment_names_done(AttachmentNames *names) {
        for (size_t i = 0; i < names->n; i++)
                free(names->items[i]);
        free(names->items);
        *names = (AttachmentNames){ 0 };
}

static int compare_names(const void *a, const void *b) {
        return strcmp(*(char *const *)a, *(char *const *)b);
}

static int add_name(AttachmentNames *names, const char *name) {
        if (names->n % 64 == 0) {
                char **more = reallocarray(names->items, names->n + 64, sizeof *more);
                if (!more)
                        return -ENOMEM;
                names->items = more;
        }
        names->items[names->n] = strdup(name);
        if (!names->items[names->n])
                return -ENOMEM;
        names->n++;
        return 0;
}

int attachment_names_read(int dir_fd, bool (*wants)(int dir_fd, const char *name),
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
                qsort(names->items, names->n, sizeof *names->items, compare_names);
        if (r < 0)
                attachment_names_done(names);
        return r;
}

bool attachments_is_file(int dir_fd, const char *name) {
        struct stat st;
        return attachment_name_is_valid(name) &&
               fstatat(dir_fd, name, &st, AT_SYMLINK_NOFOLLOW) == 0 && S_ISREG(st.st_mode);
}

bool attachments_is_given(int dir_fd, const char *name) {
        (void)dir_fd; /* its name tells */
        return strncmp(name, GIVEN, strlen(GIVEN)) == 0 && bundle_id_is_valid(name + strlen(GIVEN));
}

bool attachments_is_unit(int dir_fd, const char *name) {
        (void)dir_fd; /* its name tells */
        return strlen(name) == KEY_SIZE - 1 && strspn(name, "0123456789abcdef") == KEY_SIZE - 1;
}

int attachment_names(int dir_fd, AttachmentNames *ret) {
        *ret = (AttachmentNames){ .max = ATTACHMENTS_MAX };
        return attachment_names_read(dir_fd, attachments_is_file, ret);
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

int attachments_open_dir(int dir_fd, const char *name) {
        int fd = openat(dir_fd, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
        return fd < 0 ? -errno : fd;
}

/* Makes it if it is not there, and its name durable. */
static int make_dir(int dir_fd, const char *name) {
        int fd = attachments_open_dir(dir_fd, name);
        if (fd != -ENOENT)
                return fd;
        if (mkdirat(dir_fd, name, 0700) < 0 && errno != EEXIST)
                return -errno;
        fd = attachments_open_dir(dir_fd, name);
        int r = fd < 0 ? fd : fs_sync_dir(dir_fd);
        if (r < 0 && fd >= 0)
                (void)close(fd); /* a directory */
        return r < 0 ? r : fd;
}

int attachments_open_unit(const Attachments *a, const char *source, const char *unit_path) {
        char key[KEY_SIZE];
        _cleanup_close_ int root = a ? attachments_open_dir(AT_FDCWD, a->path) : -ENOENT;
        return root < 0 ? root : attachments_open_dir(root, unit_key(source, unit_path, key));
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

int attachments_make_root(const char *path) {
        _cleanup_free_ char *parent = path_parent(path);
        _cleanup_close_ int state = parent ? attachments_open_dir(AT_FDCWD, parent) : -ENOMEM;
        return state < 0 ? state : make_dir(state, path_name(path));
}

int attachments_make_unit(const char *path, const char *source, const char *unit_path) {
        char key[KEY_SIZE];
        _cleanup_close_ int root = attachments_make_root(path);
        if (root < 0)
                return root;
        _cleanup_close_ int unit = make_dir(root, unit_key(source, unit_path, key));
        if (unit < 0)
                return unit;
        int r = sign(unit, source, unit_path);
        return r < 0 ? r : TAKE_FD(unit);
}

/* ---- counting ---- */

int attachments_count_waiting(int unit, const char *but, size_t *n, uint64_t *bytes) {
        _cleanup_(attachment_names_done) AttachmentNames names = { .max = ATTACHMENTS_MAX };
        int r = attachment_names_read(unit, attachments_is_file, &names);
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

int attachments_count_in(int unit, const char *name, size_t *n, uint64_t *bytes) {
        _cleanup_close_ int fd = attachments_open_dir(unit, name);
        if (fd < 0)
                return fd == -ENOENT ? 0 : fd;
        return attachments_count_waiting(fd, NULL, n, bytes);
}

/* ---- giving ---- */

size_t attachments_waiting(const Attachments *a, const char *source, const char *unit_path,
                           uint64_t *ret_bytes) {
        size_t n = 0;
        uint64_t bytes = 0;
        _cleanup_close_ int unit = attachments_open_unit(a, source, unit_path);
        if (unit >= 0) {
                (void)attachments_count_waiting(unit, NULL, &n, &bytes); /* as said in the header */
                (void)attachments_count_in(unit, GIVING, &n, &bytes);
        }
        if (ret_bytes)
                *ret_bytes = bytes;
        return n;
}

/* Moves what waits into one directory, and gives this its final name when all is in it: until then nothing of it was shipped, and after a crash
 * it may be another set. */
static int give(int unit, const char *given) {
        _cleanup_(attachment_names_done) AttachmentNames names = { .max = ATTACHMENTS_MAX };
        _cleanup_close_ int giving = make_dir(unit, GIVING);
        if (giving < 0)
                return giving;
        int r = attachment_names_read(unit, attachments_is_file, &names);
        for (size_t i = 0; r == 0 && i < names.n; i++)
                if (renameat(unit, names.items[i], giving, names.items[i]) < 0)
                        r = -errno;
        if (r == 0)
                r = fs_sync_dir(giving);
        if (r == 0 && renameat(unit, GIVING, unit, given) < 0)
                r = -errno;
        if (r == 0)
                r = fs_sync_dir(unit);
        return r < 0 ? r : TAKE_FD(giving);
}

typedef char GivenName[sizeof GIVEN + 256];

static int name_given(GivenName ret, const char *bundle_id) {
        if (!bundle_id_is_valid(bundle_id))
                return -EINVAL;
        (void)snprintf(ret, sizeof(GivenName), "%s%s", GIVEN, bundle_id);
        return 0;
}

int attachments_given(const Attachments *a, const char *source, const char *unit_path,
                      const char *bundle_id) {
        GivenName given;
        int r = name_given(given, bundle_id);
        if (r < 0)
                return r;
        _cleanup_close_ int unit = attachments_open_unit(a, source, unit_path);
        return unit < 0 ? unit : attachments_open_dir(unit, given);
}

int attachments_give(const Attachments *a, const char *source, const char *unit_path,
                     const char *bundle_id) {
        GivenName given;
        int fd = attachments_given(a, source, unit_path, bundle_id);
        if (fd != -ENOENT || attachments_waiting(a, source, unit_path, NULL) == 0)
                return fd;
        _cleanup_close_ int unit = attachments_open_unit(a, source, unit_path);
        int r = unit < 0 ? unit : name_given(given, bundle_id);
        return r < 0 ? r : give(unit, given);
}

/* ---- letting go ---- */

static uint64_t changed_usec(const struct stat *st) {
        return (uint64_t)MAX(st->st_mtim.tv_sec, (time_t)0) * USEC_PER_SEC +
               (uint64_t)st->st_mtim.tv_nsec / 1000;
}

int attachments_release(Attachments *a, const char *source, const char *unit_path) {
        char key[KEY_SIZE];
        attachments_unwant(a, source, unit_path, UINT64_MAX);
        _cleanup_close_ int root = attachments_open_dir(AT_FDCWD, a->path);
        if (root < 0)
                return root == -ENOENT ? 0 : root;
        return fs_remove_tree(root, unit_key(source, unit_path, key));
}

static bool is_anything(int dir_fd, const char *name) {
        return attachments_is_file(dir_fd, name) || attachments_is_given(dir_fd, name) ||
               strcmp(name, GIVING) == 0;
}

int attachments_tidy(const Attachments *a, const char *source, const char *unit_path) {
        char key[KEY_SIZE];
        _cleanup_(attachment_names_done) AttachmentNames left = { .max = 1 };
        _cleanup_close_ int root = attachments_open_dir(AT_FDCWD, a->path);
        if (root < 0)
                return root == -ENOENT ? 0 : root;
        _cleanup_close_ int unit = attachments_open_dir(root, unit_key(source, unit_path, key));
        if (unit < 0)
                return unit == -ENOENT ? 0 : unit;
        if (attachments_is_busy(a, source, unit_path))
                return 0; /* it is tidied when that has come back */
        int r = attachment_names_read(unit, is_anything, &left);
        if (r == 0 && left.n == 0)
                r = fs_remove_tree(root, key);
        return r;
}

int attachments_release_bundle(const Attachments *a, const char *source, const char *unit_path,
                               const char *bundle_id) {
        GivenName given;
        int r = name_given(given, bundle_id);
        if (r < 0)
                return r;
        _cleanup_close_ int unit = attachments_open_unit(a, source, unit_path);
        if (unit < 0)
                return unit == -ENOENT ? 0 : unit;
        r = fs_remove_tree(unit, given);
        return r < 0 ? r : attachments_tidy(a, source, unit_path);
}

int attachments_release_before(Attachments *a, const char *source, const char *unit_path,
                               uint64_t usec) {
        _cleanup_(attachment_names_done) AttachmentNames names = { .max = ATTACHMENTS_MAX };
        int n_gone = 0;
        attachments_unwant(a, source, unit_path, usec);
        _cleanup_close_ int unit = attachments_open_unit(a, source, unit_path);
        if (unit < 0)
                return unit == -ENOENT ? 0 : unit;
        int r = attachment_names_read(unit, attachments_is_file, &names);
        for (size_t i = 0; i < names.n; i++) {
                struct stat st;
                if (fstatat(unit, names.items[i], &st, AT_SYMLINK_NOFOLLOW) == 0 &&
                    changed_usec(&st) < usec && unlinkat(unit, names.items[i], 0) == 0)
                        n_gone++;
        }
        if (r == 0 && n_gone > 0)
                r = fs_sync_dir(unit);
        if (r == 0)
                r = attachments_tidy(a, source, unit_path);
        return r < 0 ? r : n_gone;
}

/* ---- sweeping ---- */

int attachments_list_all(const Attachments *a, AttachmentsOnUnit on_unit, void *userdata) {
        _cleanup_(attachment_names_done) AttachmentNames units = { .max = ATTACHMENTS_UNITS_MAX };
        _cleanup_close_ int root = attachments_open_dir(AT_FDCWD, a->path);
        if (root < 0)
                return root == -ENOENT ? 0 : root;
        int r = attachment_names_read(root, attachments_is_unit, &units);
        for (size_t i = 0; i < units.n; i++) {
                _cleanup_close_ int unit = attachments_open_dir(root, units.items[i]);
                _cleanup_free_ char *whose = NULL;
                struct stat st;
                size_t n;
                if (unit < 0 || fstat(unit, &st) < 0 ||
                    fs_read_file(unit, WHOSE, WHOSE_MAX, &whose, &n) < 0)
                        continue; /* nobody's: left alone */
                size_t n_source = strlen(whose);
                if (n_source + 1 < n)
                        on_unit(&(AttachmentsUnit){ whose, whose + n_source + 1,
                                                    changed_usec(&st) },
                                userdata);
        }
        return r;
}

typedef struct OfSource {
        const char *source;
        void (*on_unit)(const char *unit_path, uint64_t changed_usec, void *userdata);
        void *userdata;
} OfSource;

static void on_any_unit(const AttachmentsUnit *u, void *userdata) {
        const OfSource *of = userdata;
        if (strcmp(u->source, of->source) == 0)
                of->on_unit(u->unit_path, u->changed_usec, of->userdata);
}

int attachments_list(const Attachments *a, const char *source,
                     void (*on_unit)(const char *unit_path, uint64_t changed_usec, void *userdata),
                     void *userdata) {
        return attachments_list_all(a, on_any_unit, &(OfSource){ source, on_unit, userdata });
}

int attachments_bundles(const Attachments *a, const char *source, const char *unit_path,
                        AttachmentNames *ret) {
        *ret = (AttachmentNames){ .max = ATTACHMENTS_MAX };
        _cleanup_close_ int unit = attachments_open_unit(a, source, unit_path);
        if (unit < 0)
                return unit == -ENOENT ? 0 : unit;
        int r = attachment_names_read(unit, attachments_is_given, ret);
        for (size_t i = 0; i < ret->n; i++)
                memmove(ret->items[i], ret->items[i] + strlen(GIVEN),
                        strlen(ret->items[i] + strlen(GIVEN)) + 1);
        return r;
}
