/* Tells whose hook a file is. Ours has a text with its version in it, whichever version that is; a
 * script that has the text, too, is not ours. What is done about it is cmd_hook.c's and
 * hook_check.c's. */
#include "cli/hook/hook_file.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "lib/base/cleanup.h"
#include "lib/base/fs.h"

#define HOOK_MARKER "neuron-collectd neuron-dump " /* in our program, and its version behind it */
#define VERSION_CHARS "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ.-+~_"

/* The compiler may have put a newline into the string that is printed; nothing else may follow.
 * @param data  n bytes, and a NUL behind them */
static bool find_marker(const char *data, size_t n, char version[static HOOK_VERSION_SIZE]) {
        const char *end = data + n, *at = data;
        while ((at = memmem(at, (size_t)(end - at), HOOK_MARKER, strlen(HOOK_MARKER)))) {
                at += strlen(HOOK_MARKER);
                size_t size = strspn(at, VERSION_CHARS);
                if (size == 0 || size >= HOOK_VERSION_SIZE || at + size >= end ||
                    (at[size] != '\0' && at[size] != '\n'))
                        continue;
                snprintf(version, HOOK_VERSION_SIZE, "%.*s", (int)size, at);
                return true;
        }
        return false;
}

static int read_kind(int fd, HookFile *f) {
        _cleanup_free_ char *data = NULL;
        size_t n;
        int r = fs_read_head(fd, HOOK_FILE_MAX + 1, &data, &n);
        if (r < 0)
                return r;
        bool is_script = n >= 2 && memcmp(data, "#!", 2) == 0;
        f->kind = n <= HOOK_FILE_MAX && !is_script && find_marker(data, n, f->version) ? HOOK_OURS
                                                                                       : HOOK_OTHER;
        return 0;
}

static int inspect(int dir_fd, const char *name, HookFile *f) {
        struct stat st;
        if (fstatat(dir_fd, name, &st, 0) < 0)
                return -errno;
        if (!S_ISREG(st.st_mode)) /* to open a device or a FIFO is to use it */
                return S_ISDIR(st.st_mode) ? -EISDIR : -EBADF;
        _cleanup_close_ int fd = openat(dir_fd, name, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
        if (fd < 0 || fstat(fd, &st) < 0)
                return -errno;
        f->is_executable = (st.st_mode & 0111) == 0111;
        f->dev = st.st_dev;
        f->ino = st.st_ino;
        return read_kind(fd, f);
}

static HookFile failed(int error) {
        return (HookFile){ .kind = error == ENOENT ? HOOK_MISSING : HOOK_UNUSABLE, .error = error };
}

void hook_file_inspect(int dir_fd, const char *name, HookFile *ret) {
        *ret = (HookFile){ 0 };
        int r = inspect(dir_fd, name, ret);
        if (r < 0)
                *ret = failed(-r);
}

void hook_status_read(const char *directory, const char *program, HookStatus *ret) {
        char target[PATH_MAX];
        *ret = (HookStatus){ 0 };
        hook_file_inspect(AT_FDCWD, program, &ret->program);
        _cleanup_close_ int fd = open(directory, O_PATH | O_DIRECTORY | O_CLOEXEC);
        if (fd < 0) {
                ret->hook = failed(errno);
                return;
        }
        hook_file_inspect(fd, HOOK_NAME, &ret->hook);
        hook_file_inspect(fd, HOOK_ASIDE, &ret->aside);
        ssize_t n = readlinkat(fd, HOOK_CHAIN, target, sizeof target - 1);
        ret->chain = n < 0 ? NULL : strndup(target, (size_t)n);
        if (ret->chain)
                hook_file_inspect(fd, HOOK_CHAIN, &ret->chained);
}

void hook_status_done(HookStatus *s) {
        free(s->chain);
        *s = (HookStatus){ 0 };
}

bool hook_status_is_replaced(const HookStatus *s) {
        return s->aside.kind != HOOK_MISSING && s->hook.kind != HOOK_OURS;
}

bool hook_status_is_outdated(const HookStatus *s) {
        return s->hook.kind == HOOK_OURS && s->program.kind == HOOK_OURS &&
               strcmp(s->hook.version, s->program.version) != 0;
}

const char *hook_status_chain_fault(const HookStatus *s) {
        if (!s->chain || (s->chained.kind == HOOK_OTHER && s->chained.is_executable))
                return NULL;
        return s->chained.kind == HOOK_OURS ? "is neuron-collectd's own hook"
                                            : "cannot be executed by every user";
}
