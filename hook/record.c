#include "hook/record.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include "collectors/host/dpkg.h"
#include "lib/base/cleanup.h"
#include "lib/base/fs.h"
#include "lib/base/json_out.h"
#include "lib/base/path.h"

enum { COPY_BYTES = 64 << 10 };

int write_file_open_directory(const char *path) {
        _cleanup_free_ char *copy = strdup(path);
        if (!copy)
                return -ENOMEM;
        for (char *slash = copy; slash; slash = strchr(slash + 1, '/')) {
                if (slash == copy)
                        continue;
                *slash = '\0';
                (void)mkdir(copy,
                            0777); /* what is there, or forbidden, is seen by the open below */
                *slash = '/';
        }
        int made = mkdir(copy, 0777) < 0 ? -errno : 0;
        int fd = open(path, O_PATH | O_DIRECTORY | O_CLOEXEC);
        if (fd >= 0)
                return fd;
        return errno == ENOENT && made < 0 ? made : -errno;
}

static int copy_fd(int to, int from) {
        char data[COPY_BYTES];
        for (off_t done = 0;;) {
                ssize_t n = pread(from, data, sizeof data, done);
                if (n < 0 && errno == EINTR)
                        continue;
                if (n <= 0)
                        return n < 0 ? -errno : 0;
                done += n;
                if (done > WRITE_FILE_FD_MAX)
                        return -EFBIG;
                int r = fs_write_all(to, data, (size_t)n);
                if (r < 0)
                        return r;
        }
}

static int fill(int fd, const FileContent *content) {
        return content->text ? fs_write_all(fd, content->text, content->n)
                             : copy_fd(fd, content->fd);
}

/* A file without a name, which gets one when it is complete. @return 0, -EOPNOTSUPP: try the other
 * way, -errno */
static int write_unnamed(int dir_fd, const char *name, mode_t mode, const FileContent *content) {
        char link_path[32];
        _cleanup_close_ int fd = openat(dir_fd, ".", O_TMPFILE | O_WRONLY | O_CLOEXEC, mode);
        if (fd < 0) /* kernels and file systems that know no O_TMPFILE say so in many ways */
                return errno == EISDIR || errno == ENOENT || errno == EINVAL || errno == ENOSYS
                               ? -EOPNOTSUPP
                               : -errno;
        int r = fill(fd, content);
        if (r < 0)
                return r;
        (void)snprintf(link_path, sizeof link_path, "/proc/self/fd/%d", fd);
        if (linkat(AT_FDCWD, link_path, dir_fd, name, AT_SYMLINK_FOLLOW) == 0)
                return 0;
        return errno == EEXIST || errno == ENOSPC || errno == EDQUOT ? -errno : -EOPNOTSUPP;
}

/* Gives a complete file its name, replacing nothing. */
static int publish(int dir_fd, const char *temporary, const char *name) {
        if (renameat2(dir_fd, temporary, dir_fd, name, RENAME_NOREPLACE) == 0)
                return 0;
        if (errno != EINVAL && errno != ENOSYS) /* NFS and others know no flags */
                return -errno;
        if (linkat(dir_fd, temporary, dir_fd, name, 0) < 0)
                return -errno;
        (void)unlinkat(dir_fd, temporary, 0); /* a dot-name too many, if anything */
        return 0;
}

static int write_renamed(int dir_fd, const char *name, mode_t mode, const FileContent *content) {
        char temporary[NAME_MAX + 1];
        uint64_t random;
        if (getrandom(&random, sizeof random, GRND_NONBLOCK) != sizeof random)
                return -EIO;
        (void)snprintf(temporary, sizeof temporary, ".neuron-dump-%016" PRIx64 ".tmp", random);
        _cleanup_close_ int fd = openat(dir_fd, temporary,
                                        O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, mode);
        if (fd < 0)
                return -errno;
        int r = fill(fd, content);
        if (r == 0)
                r = publish(dir_fd, temporary, name);
        if (r < 0)
                (void)unlinkat(dir_fd, temporary, 0); /* the first failure is the one to tell */
        return r;
}

int write_file(int dir_fd, const char *name, mode_t mode, const FileContent *content) {
        int r = write_unnamed(dir_fd, name, mode, content);
        return r == -EOPNOTSUPP ? write_renamed(dir_fd, name, mode, content) : r;
}

#define OPT "opt/aws/neuron"
enum {
        PACKAGES_MAX = 64,
        TOOLS_MAX = 64,
        VERSION_MAX = DPKG_WORD_SIZE - 1,
};

/* A word of a package database: anybody may have built the image that it lies in. */
static bool is_word(const char *s) {
        size_t n = strlen(s);
        return n > 0 && n <= VERSION_MAX &&
               strspn(s, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789.+~:-_") ==
                       n;
}

typedef struct Packages {
        StrBuf *b;
        size_t n;
} Packages;

static void add_package(const DpkgParser *p, void *userdata) {
        Packages *l = userdata;
        if (strcmp(p->status, "install ok installed") == 0 && is_word(p->name) &&
            is_word(p->version) && strncmp(p->name, "aws-neuron", 10) == 0 && l->n++ < PACKAGES_MAX)
                json_out_string(l->b, p->name, p->version);
}

static int open_below(const char *root, const char *path) {
        _cleanup_free_ char *whole = path_join(root, path);
        struct stat st;
        _cleanup_close_ int fd =
                whole ? open(whole, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY) : -1;
        return fd >= 0 && fstat(fd, &st) == 0 && S_ISREG(st.st_mode) ? TAKE_FD(fd) : -1;
}

static void add_driver(StrBuf *b, const char *root) {
        char version[VERSION_MAX + 2];
        _cleanup_close_ int fd = open_below(root, "sys/module/neuron/version");
        ssize_t n = fd >= 0 ? read(fd, version, sizeof version - 1) : 0;
        if (n <= 0)
                return;
        version[n] = '\0';
        version[strcspn(version, "\n")] = '\0';
        if (is_word(version))
                json_out_string(b, "driver", version);
}

/* The library's version is part of the name of its file. */
static void add_libnrt(StrBuf *b, const char *root) {
        char target[PATH_MAX];
        _cleanup_free_ char *path = path_join(root, OPT "/lib/libnrt.so.1");
        ssize_t n = path ? readlink(path, target, sizeof target - 1) : -1;
        if (n <= 0)
                return;
        target[n] = '\0';
        if (is_word(path_name(target)))
                json_out_string(b, "libnrt", path_name(target));
}

static void add_tools(StrBuf *b, const char *root) {
        _cleanup_free_ char *path = path_join(root, OPT "/bin");
        _cleanup_closedir_ DIR *d = path ? opendir(path) : NULL;
        const struct dirent *e;
        if (!d)
                return;
        json_out_array(b, "tools");
        for (unsigned n = 0; n < TOOLS_MAX && (e = readdir(d));)
                if (e->d_name[0] != '.' && is_word(e->d_name)) {
                        json_out_string(b, NULL, e->d_name);
                        n++;
                }
        json_out_end_array(b);
}

/* Of AWS's packages, who installed them: rpm's database, as Amazon Linux has it, is not for so
 * small a program. No more than names.
 * @see reference, 5: binaries in /opt/aws/neuron/bin, libraries in …/lib */
static void add_files(StrBuf *b, const char *root) {
        json_out_object(b, "files");
        add_libnrt(b, root);
        add_tools(b, root);
        json_out_end_object(b);
}

static void add_packages(StrBuf *b, const char *root) {
        Packages packages = { .b = b };
        DpkgParser parser = { .on_package = add_package, .userdata = &packages };
        _cleanup_close_ int status = open_below(root, "var/lib/dpkg/status");
        json_out_object(b, "packages");
        add_driver(b, root);
        json_out_object(b, "dpkg");
        if (status >= 0)
                (void)dpkg_read(&parser, status); /* as far as it can be read */
        json_out_end_object(b);
        add_files(b, root);
        json_out_end_object(b);
}

static int write_beside(const HookNote *n, const char *name, const FileContent *content) {
        if (!n->local_output_dir || !name)
                return -ENOENT;
        _cleanup_close_ int dir_fd = write_file_open_directory(n->local_output_dir);
        return dir_fd < 0 ? dir_fd : write_file(dir_fd, name, 0666, content);
}

int record_write(const HookNote *n, const char *note_text, size_t n_text, const char *root) {
        _cleanup_(strbuf_done) StrBuf b = STRBUF_INIT;
        if (n_text == 0 || note_text[n_text - 1] != '}')
                return -EINVAL;
        strbuf_add_n(&b, note_text, n_text - 1);
        add_packages(&b, root);
        json_out_end_object(&b);
        strbuf_add(&b, "\n");
        int r = strbuf_error(&b);
        return r < 0 ? r
                     : write_beside(n, n->record_name, &(FileContent){ .text = b.text, .n = b.n });
}

int record_write_snapshot(const HookNote *n, const char *text, size_t n_text, int fd) {
        return write_beside(n, n->snapshot_name,
                            &(FileContent){ .text = text, .n = n_text, .fd = fd });
}
