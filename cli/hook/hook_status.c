#include "cli/hook/hook_status.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include "config/config.h"
#include "config/keys.h"
#include "lib/base/cleanup.h"
#include "lib/base/path.h"
#include "lib/neuron/job.h"

#define PIECE_BYTES (64 * KIB)
#define OVERLAP_BYTES                                                                              \
        (sizeof(HOOK_MARKER) + HOOK_VERSION_SIZE) /* a marker may lie across two pieces */

static bool is_of_version(char c) {
        return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') ||
               c == '.' || c == '-' || c == '+' || c == '~' || c == '_';
}

/* The compiler may have put a newline into the string that is printed; nothing else may follow. */
static bool copy_version(const char *p, const char *end, char version[static HOOK_VERSION_SIZE]) {
        size_t n = 0;
        while (p + n < end && n < HOOK_VERSION_SIZE && is_of_version(p[n]))
                n++;
        if (n == 0 || n >= HOOK_VERSION_SIZE || p + n >= end || (p[n] != '\0' && p[n] != '\n'))
                return false;
        memcpy(version, p, n);
        version[n] = '\0';
        return true;
}

static bool find_marker(const char *data, size_t n, char version[static HOOK_VERSION_SIZE]) {
        const size_t n_marker = strlen(HOOK_MARKER);
        const char *end = data + n, *at = data;
        while ((at = memmem(at, (size_t)(end - at), HOOK_MARKER, n_marker))) {
                at += n_marker;
                if (copy_version(at, end, version))
                        return true;
        }
        return false;
}

/* Computes the hash and searches for the marker. A script that has it in a comment is not ours. */
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
                is_ours = is_ours || find_marker(buf, have, f->version);
                kept = MIN(have, (size_t)OVERLAP_BYTES);
                memmove(buf, buf + have - kept, kept);
        }
        sha256_final(&sum, f->sha256);
        f->kind = is_ours && !f->is_script && total <= HOOK_FILE_MAX ? HOOK_OURS : HOOK_OTHER;
        return 0;
}

static int inspect(int dir_fd, const char *name, HookFile *f) {
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

void hook_file_inspect(int dir_fd, const char *name, HookFile *ret) {
        *ret = (HookFile){ 0 };
        int r = inspect(dir_fd, name, ret);
        if (r == 0)
                return;
        ret->kind = r == -ENOENT ? HOOK_MISSING : HOOK_UNREADABLE;
        ret->error = -r;
}

bool hook_file_is_same(const HookFile *a, const HookFile *b) {
        return (a->kind == HOOK_OURS || a->kind == HOOK_OTHER) && a->kind == b->kind &&
               memcmp(a->sha256, b->sha256, SHA256_SIZE) == 0;
}

char *hook_chain_target(int dir_fd) {
        char target[PATH_MAX];
        ssize_t n = readlinkat(dir_fd, HOOK_CHAIN, target, sizeof target - 1);
        if (n < 0)
                return NULL;
        target[n] = '\0';
        return strdup(target);
}

void hook_status_read(const char *directory, const char *program, HookStatus *ret) {
        *ret = (HookStatus){ 0 };
        hook_file_inspect(AT_FDCWD, program, &ret->program);
        _cleanup_close_ int fd = open(directory, O_PATH | O_DIRECTORY | O_CLOEXEC);
        if (fd < 0) {
                ret->error = errno;
                return;
        }
        hook_file_inspect(fd, HOOK_NAME, &ret->hook);
        hook_file_inspect(fd, HOOK_ASIDE, &ret->aside);
        ret->chain = hook_chain_target(fd);
        if (ret->chain)
                hook_file_inspect(fd, HOOK_CHAIN, &ret->chained);
}

void hook_status_done(HookStatus *s) {
        free(s->chain);
        *s = (HookStatus){ 0 };
}

const char *hook_status_word(const HookStatus *s) {
        switch (s->hook.kind) {
        case HOOK_MISSING:
                return s->error != 0 && s->error != ENOENT ? "unusable" : "missing";
        case HOOK_OURS:
                return "ours";
        case HOOK_OTHER:
                return s->hook.is_script ? "other" : "vendor";
        case HOOK_DANGLING:
        case HOOK_NO_FILE:
        case HOOK_UNREADABLE:
                break;
        }
        return "unusable";
}

bool hook_status_is_replaced(const HookStatus *s) {
        return s->aside.kind != HOOK_MISSING && s->hook.kind != HOOK_OURS;
}

int hook_socket_check(const char *path) {
        struct sockaddr_un addr = { .sun_family = AF_UNIX };
        size_t n = strlen(path);
        if (n == 0 || n >= sizeof addr.sun_path)
                return -ENAMETOOLONG;
        memcpy(addr.sun_path, path, n);
        _cleanup_close_ int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
        if (fd < 0)
                return -errno;
        if (connect(fd, (struct sockaddr *)&addr, sizeof addr) < 0 && errno != EINPROGRESS)
                return -errno; /* -EAGAIN: its queue is full, so nobody reads it */
        return 0;
}

const char *hook_dump_directory(char *const *environment) {
        const char *directory = environment_get(environment, "NEURON_RT_LOCAL_CORE_DUMP_DIRECTORY"),
                   *prefix = environment_get(environment, "NEURON_RT_S3_CORE_DUMP_PREFIX");
        if (directory && !*directory && prefix && !*prefix)
                return NULL;
        return directory && *directory ? directory : HOOK_DUMP_DIRECTORY;
}

const char *hook_dump_source(const Config *config, const char *dump_directory) {
        _cleanup_free_ char *fixed = form_fixed_part(dump_directory);
        for (size_t i = 0; fixed && i < config->n_sources; i++) {
                _cleanup_free_ char *of = form_fixed_part(config->sources[i].path);
                if (of && path_is_below(fixed, of))
                        return config->sources[i].name;
        }
        return NULL;
}
