#include "cli/hook/hook_file.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>

#include "lib/base/cleanup.h"

#define PIECE_BYTES (64 * KIB)
#define OVERLAP_BYTES                                                                              \
        (sizeof(HOOK_MARKER) + HOOK_VERSION_SIZE) /* a marker may lie across two pieces */

static bool is_of_version(char c) {
        return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') ||
               c == '.' || c == '-' || c == '+' || c == '~' || c == '_';
}

/* The compiler may have put a newline into the string that is printed; nothing else may follow. */
static bool take_version(const char *p, const char *end, char version[static HOOK_VERSION_SIZE]) {
        size_t n = 0;
        while (p + n < end && n < HOOK_VERSION_SIZE && is_of_version(p[n]))
                n++;
        if (n == 0 || n >= HOOK_VERSION_SIZE || p + n >= end || (p[n] != '\0' && p[n] != '\n'))
                return false;
        memcpy(version, p, n);
        version[n] = '\0';
        return true;
}

bool hook_marker_find(const char *data, size_t n, char version[static HOOK_VERSION_SIZE]) {
        const size_t n_marker = strlen(HOOK_MARKER);
        const char *end = data + n, *at = data;
        while ((at = memmem(at, (size_t)(end - at), HOOK_MARKER, n_marker))) {
                at += n_marker;
                if (take_version(at, end, version))
                        return true;
        }
        return false;
}

/* Hashes it, and looks for the marker on the way. A script that tells of us in a comment is not us. */
static int read_content(int fd, HookFile *f) {
        _cleanup_free_ char *buf = malloc(OVERLAP_BYTES + PIECE_BYTES);
        if (!buf)
                return -ENOMEM;
        Sha256 sum;
        sha256_init(&sum);
        size_t kept = 0;
        uint64_t total = 0;
        bool is_ours = false;
        ssize_t n;
        while ((n = read(fd, buf + kept, PIECE_BYTES)) != 0) {
                if (n < 0 && errno == EINTR)
                        continue;
                if (n < 0)
                        return -errno;
                if (total == 0)
                        f->is_script = n >= 2 && memcmp(buf, "#!", 2) == 0;
                sha256_update(&sum, buf + kept, (size_t)n);
                total += (uint64_t)n;
                if (total > HOOK_FILE_MAX)
                        break;
                size_t have = kept + (size_t)n;
                is_ours = is_ours || hook_marker_find(buf, have, f->version);
                kept = MIN(have, (size_t)OVERLAP_BYTES);
                memmove(buf, buf + have - kept, kept);
        }
        sha256_final(&sum, f->sha256);
        f->kind = is_ours && !f->is_script && total <= HOOK_FILE_MAX ? HOOK_OURS : HOOK_OTHER;
        return 0;
}

static int look(int dir_fd, const char *name, HookFile *f) {
        struct stat st;
        if (fstatat(dir_fd, name, &st, AT_SYMLINK_NOFOLLOW) < 0)
                return -errno;
        f->is_symlink = S_ISLNK(st.st_mode);
        if (f->is_symlink && fstatat(dir_fd, name, &st, 0) < 0) {
                if (errno != ENOENT && errno != ELOOP && errno != ENOTDIR)
                        return -errno;
                f->kind = HOOK_DANGLING;
                return 0;
        }
        f->kind = HOOK_NO_FILE;
        if (!S_ISREG(st.st_mode)) /* to open a device or a FIFO is to use it */
                return 0;
        _cleanup_close_ int fd = openat(dir_fd, name, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
        if (fd < 0 || fstat(fd, &st) < 0)
                return -errno;
        if (!S_ISREG(st.st_mode))
                return 0;
        f->is_executable = (st.st_mode & 0111) == 0111;
        f->dev = st.st_dev;
        f->ino = st.st_ino;
        return read_content(fd, f);
}

void hook_file_look(int dir_fd, const char *name, HookFile *ret) {
        *ret = (HookFile){ 0 };
        int r = look(dir_fd, name, ret);
        if (r == 0)
                return;
        ret->kind = r == -ENOENT ? HOOK_MISSING : HOOK_UNREADABLE;
        ret->error = -r;
}

bool hook_file_is_same(const HookFile *a, const HookFile *b) {
        return (a->kind == HOOK_OURS || a->kind == HOOK_OTHER) && a->kind == b->kind &&
               memcmp(a->sha256, b->sha256, SHA256_SIZE) == 0;
}
