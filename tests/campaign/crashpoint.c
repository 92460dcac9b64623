/* Preloaded into the daemon: counts the system calls that change files or send to the network, and
 * at the one that the driver names kills the process, tears the write in two, or lets it fail.
 * SQLite's and libcurl's calls come by here as well: theirs are the same libc functions. Also gives
 * the process a clock that is wrong by as much as the driver says.
 *
 *   LD_PRELOAD=crashpoint.so CRASHPOINT_CONTROL=FILE CRASHPOINT_PLACES=DIR:DIR… neuron-collectd …
 *
 * Without CRASHPOINT_CONTROL it does nothing. */
#include "tests/campaign/crashpoint.h"
#include "tests/harness/wall_clock.h"

#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

#define NSEC_PER_SEC INT64_C(1000000000)

/* The libc's own function: each wrapper calls REAL(its name). */
#define REAL(name)                                                                                 \
        ({                                                                                         \
                static __typeof__(&name) found;                                                    \
                if (!found)                                                                        \
                        found = (__typeof__(&name))dlsym(RTLD_NEXT, #name);                        \
                found;                                                                             \
        })

static CrashControl *control;
static bool is_child; /* of the daemon */
static char places[CRASH_PLACE_MEMORY][PATH_MAX];
static unsigned n_places;

static void complain(const char *what) {
        (void)fprintf(stderr, "crashpoint.so: %s: %s\n", what, strerror(errno));
        _exit(125);
}

__attribute__((constructor)) static void set_up(void) {
        const char *file = getenv("CRASHPOINT_CONTROL"), *list = getenv("CRASHPOINT_PLACES");
        if (!file)
                return;
        int fd = REAL(open)(file, O_RDWR | O_CLOEXEC);
        if (fd < 0)
                complain(file);
        CrashControl *c =
                mmap(NULL, sizeof(CrashControl), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
        if (c == MAP_FAILED || c->magic != CRASH_MAGIC)
                complain("its control file is none");
        (void)close(fd);
        for (const char *at = list; at && *at && n_places < CRASH_PLACE_MEMORY; n_places++) {
                size_t n = strcspn(at, ":");
                (void)snprintf(places[n_places], PATH_MAX, "%.*s", (int)n, at);
                at += n + (at[n] == ':');
        }
        char arguments[256] = "";
        int self = REAL(open)("/proc/self/cmdline", O_RDONLY | O_CLOEXEC);
        ssize_t got = self < 0 ? 0 : REAL(read)(self, arguments, sizeof arguments - 1);
        (void)close(self);
        is_child = got > 0 && memmem(arguments, (size_t)got, "--child=", 8);
        control = c;
}

/* Where it happens */

static int place_of_path(const char *path) {
        int best = -1;
        size_t longest = 0;

        for (unsigned i = 0; i < n_places; i++) {
                size_t n = strlen(places[i]);
                if (n >= longest && strncmp(path, places[i], n) == 0 &&
                    (path[n] == '/' || path[n] == '\0')) {
                        best = (int)i;
                        longest = n;
                }
        }
        return best;
}

static int place_of_socket(int fd) {
        struct sockaddr_storage a;
        socklen_t n = sizeof a;

        if (getsockname(fd, (struct sockaddr *)&a, &n) < 0 ||
            (a.ss_family != AF_INET && a.ss_family != AF_INET6))
                return -1;
        return CRASH_PLACE_SOCKET;
}

/* @param path  PATH_MAX bytes; what the descriptor stands for */
static int place_of_fd(int fd, char *path) {
        char link[32];

        (void)snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
        ssize_t n = readlink(link, path, PATH_MAX - 1);
        if (n < 0)
                n = 0;
        path[n] = '\0';
        if (strncmp(path, "socket:", 7) == 0)
                return place_of_socket(fd);
        return path[0] == '/' ? place_of_path(path) : -1;
}

/* Of a name below a directory; the last component need not be there. SQLite spells its files
 * /proc/self/fd/N/…, hence realpath. */
static int place_of_name(int dir_fd, const char *name, char *path) {
        char whole[PATH_MAX * 2], parent[PATH_MAX];

        if (!name ||
            name[0] == '\0') /* AT_EMPTY_PATH, or a caller's mistake that libc may answer */
                return -1;
        if (name[0] == '/')
                (void)snprintf(whole, sizeof whole, "%s", name);
        else if (dir_fd == AT_FDCWD)
                (void)snprintf(whole, sizeof whole, "./%s", name);
        else {
                (void)place_of_fd(dir_fd, path);
                (void)snprintf(whole, sizeof whole, "%s/%s", path, name);
        }
        char *last = strrchr(whole, '/');
        *last = '\0';
        if (!realpath(whole[0] ? whole : "/", parent))
                return -1;
        (void)snprintf(path, PATH_MAX, "%.*s/%.*s", PATH_MAX / 2, parent, PATH_MAX / 2 - 2,
                       last + 1);
        return place_of_path(path);
}

/* What becomes of it */

static _Noreturn void die(void) {
        (void)syscall(SYS_kill, getpid(), SIGKILL);
        for (;;)
                (void)pause();
}

typedef struct Call {
        const char *name;
        CrashOperation operation;
} Call;

static CrashAction decide(Call call, int place, const char *path) {
        if (place < 0)
                return CRASH_NOTHING;
        (void)atomic_fetch_add(&control->totals[place][call.operation], 1);
        uint64_t at = atomic_load(&control->at);
        if (at == 0 || !(control->operations & (UINT32_C(1) << call.operation)) ||
            !(control->places & (UINT32_C(1) << place)))
                return CRASH_NOTHING;
        uint64_t seen = atomic_fetch_add(&control->seen, 1) + 1;
        if (seen < at || seen - at >= control->times)
                return CRASH_NOTHING;
        if (atomic_fetch_add(&control->acted, 1) == 0)
                (void)snprintf(control->what, sizeof control->what, "%s %s", call.name, path);
        if (control->action == CRASH_KILL_BEFORE)
                die();
        return (CrashAction)control->action;
}

static CrashAction decide_fd(Call call, int fd) {
        char path[PATH_MAX];
        int error = errno;

        if (!control)
                return CRASH_NOTHING;
        int place = place_of_fd(fd, path);
        CrashAction action = decide(call, place, path);
        errno = error;
        return action;
}

static CrashAction decide_name(Call call, int dir_fd, const char *name) {
        char path[PATH_MAX];
        int error = errno;

        if (!control)
                return CRASH_NOTHING;
        int place = place_of_name(dir_fd, name, path);
        CrashAction action = decide(call, place, path);
        errno = error;
        return action;
}

static size_t portion(CrashAction action, size_t n) {
        return (action == CRASH_TEAR || action == CRASH_SHORTEN) && n > 1 ? n / 2 : n;
}

/* @return what the caller is told about a call that returned r */
static ssize_t finish(CrashAction action, ssize_t r) {
        if (action == CRASH_KILL_AFTER || action == CRASH_TEAR)
                die();
        if (action == CRASH_DO_AND_FAIL && r >= 0) {
                errno = control->error;
                return -1;
        }
        return r;
}

static int fail(void) {
        errno = control->error;
        return -1;
}

#define CALL(operation) ((Call){ __func__, (operation) })

/* Writing */

ssize_t write(int fd, const void *data, size_t n) {
        CrashAction a = decide_fd(CALL(CRASH_WRITE), fd);
        return a == CRASH_FAIL ? fail() : finish(a, REAL(write)(fd, data, portion(a, n)));
}

ssize_t pwrite(int fd, const void *data, size_t n, off_t offset) {
        CrashAction a = decide_fd(CALL(CRASH_WRITE), fd);
        return a == CRASH_FAIL ? fail() : finish(a, REAL(pwrite)(fd, data, portion(a, n), offset));
}

ssize_t pwrite64(int fd, const void *data, size_t n, off64_t offset) {
        CrashAction a = decide_fd(CALL(CRASH_WRITE), fd);
        return a == CRASH_FAIL ? fail()
                               : finish(a, REAL(pwrite64)(fd, data, portion(a, n), offset));
}

/* A vector is torn between its pieces. */
ssize_t writev(int fd, const struct iovec *pieces, int n) {
        CrashAction a = decide_fd(CALL(CRASH_WRITE), fd);
        return a == CRASH_FAIL ? fail()
                               : finish(a, REAL(writev)(fd, pieces, (int)portion(a, (size_t)n)));
}

ssize_t pwritev(int fd, const struct iovec *pieces, int n, off_t offset) {
        CrashAction a = decide_fd(CALL(CRASH_WRITE), fd);
        return a == CRASH_FAIL
                       ? fail()
                       : finish(a, REAL(pwritev)(fd, pieces, (int)portion(a, (size_t)n), offset));
}

ssize_t pwritev64(int fd, const struct iovec *pieces, int n, off64_t offset) {
        CrashAction a = decide_fd(CALL(CRASH_WRITE), fd);
        return a == CRASH_FAIL
                       ? fail()
                       : finish(a, REAL(pwritev64)(fd, pieces, (int)portion(a, (size_t)n), offset));
}

int fsync(int fd) {
        CrashAction a = decide_fd(CALL(CRASH_FSYNC), fd);
        return a == CRASH_FAIL ? fail() : (int)finish(a, REAL(fsync)(fd));
}

int fdatasync(int fd) {
        CrashAction a = decide_fd(CALL(CRASH_FSYNC), fd);
        return a == CRASH_FAIL ? fail() : (int)finish(a, REAL(fdatasync)(fd));
}

int sync_file_range(int fd, off64_t offset, off64_t n, unsigned flags) {
        CrashAction a = decide_fd(CALL(CRASH_FSYNC), fd);
        return a == CRASH_FAIL ? fail()
                               : (int)finish(a, REAL(sync_file_range)(fd, offset, n, flags));
}

int ftruncate(int fd, off_t n) {
        CrashAction a = decide_fd(CALL(CRASH_TRUNCATE), fd);
        return a == CRASH_FAIL ? fail() : (int)finish(a, REAL(ftruncate)(fd, n));
}

int ftruncate64(int fd, off64_t n) {
        CrashAction a = decide_fd(CALL(CRASH_TRUNCATE), fd);
        return a == CRASH_FAIL ? fail() : (int)finish(a, REAL(ftruncate64)(fd, n));
}

/* Names */

static mode_t mode_of(int flags, va_list more) {
        return flags & O_CREAT || (flags & O_TMPFILE) == O_TMPFILE ? va_arg(more, mode_t) : 0;
}

static CrashAction decide_open(Call call, int dir_fd, const char *name, int flags) {
        if (!(flags & (O_CREAT | O_TRUNC)))
                call.operation = CRASH_OPEN_READ;
        return decide_name(call, dir_fd, name);
}

/* The four ways to open differ in the first argument and in what glibc calls large. */
#define OPEN_AT(function, dir_fd, ...)                                                             \
        do {                                                                                       \
                va_list more;                                                                      \
                va_start(more, flags);                                                             \
                mode_t mode = mode_of(flags, more);                                                \
                va_end(more);                                                                      \
                CrashAction a = decide_open(CALL(CRASH_OPEN), dir_fd, name, flags);                \
                return a == CRASH_FAIL ? fail()                                                    \
                                       : (int)finish(a, REAL(function)(__VA_ARGS__, flags, mode)); \
        } while (0)

int open(const char *name, int flags, ...) {
        OPEN_AT(open, AT_FDCWD, name);
}

int open64(const char *name, int flags, ...) {
        OPEN_AT(open64, AT_FDCWD, name);
}

int openat(int dir_fd, const char *name, int flags, ...) {
        OPEN_AT(openat, dir_fd, dir_fd, name);
}

int openat64(int dir_fd, const char *name, int flags, ...) {
        OPEN_AT(openat64, dir_fd, dir_fd, name);
}

/* What gives or moves a name is judged by the place of the new one. */
int rename(const char *from, const char *to) {
        CrashAction a = decide_name(CALL(CRASH_RENAME), AT_FDCWD, to);
        return a == CRASH_FAIL ? fail() : (int)finish(a, REAL(rename)(from, to));
}

int renameat(int from_fd, const char *from, int to_fd, const char *to) {
        CrashAction a = decide_name(CALL(CRASH_RENAME), to_fd, to);
        return a == CRASH_FAIL ? fail() : (int)finish(a, REAL(renameat)(from_fd, from, to_fd, to));
}

int renameat2(int from_fd, const char *from, int to_fd, const char *to, unsigned flags) {
        CrashAction a = decide_name(CALL(CRASH_RENAME), to_fd, to);
        return a == CRASH_FAIL ? fail()
                               : (int)finish(a, REAL(renameat2)(from_fd, from, to_fd, to, flags));
}

int link(const char *from, const char *to) {
        CrashAction a = decide_name(CALL(CRASH_LINK), AT_FDCWD, to);
        return a == CRASH_FAIL ? fail() : (int)finish(a, REAL(link)(from, to));
}

int linkat(int from_fd, const char *from, int to_fd, const char *to, int flags) {
        CrashAction a = decide_name(CALL(CRASH_LINK), to_fd, to);
        return a == CRASH_FAIL ? fail()
                               : (int)finish(a, REAL(linkat)(from_fd, from, to_fd, to, flags));
}

int unlink(const char *name) {
        CrashAction a = decide_name(CALL(CRASH_UNLINK), AT_FDCWD, name);
        return a == CRASH_FAIL ? fail() : (int)finish(a, REAL(unlink)(name));
}

int unlinkat(int dir_fd, const char *name, int flags) {
        CrashAction a = decide_name(CALL(CRASH_UNLINK), dir_fd, name);
        return a == CRASH_FAIL ? fail() : (int)finish(a, REAL(unlinkat)(dir_fd, name, flags));
}

int rmdir(const char *name) {
        CrashAction a = decide_name(CALL(CRASH_UNLINK), AT_FDCWD, name);
        return a == CRASH_FAIL ? fail() : (int)finish(a, REAL(rmdir)(name));
}

int mkdir(const char *name, mode_t mode) {
        CrashAction a = decide_name(CALL(CRASH_MKDIR), AT_FDCWD, name);
        return a == CRASH_FAIL ? fail() : (int)finish(a, REAL(mkdir)(name, mode));
}

int mkdirat(int dir_fd, const char *name, mode_t mode) {
        CrashAction a = decide_name(CALL(CRASH_MKDIR), dir_fd, name);
        return a == CRASH_FAIL ? fail() : (int)finish(a, REAL(mkdirat)(dir_fd, name, mode));
}

/* Sending */

ssize_t send(int fd, const void *data, size_t n, int flags) {
        CrashAction a = decide_fd(CALL(CRASH_SEND), fd);
        return a == CRASH_FAIL ? fail() : finish(a, REAL(send)(fd, data, portion(a, n), flags));
}

ssize_t sendto(int fd, const void *data, size_t n, int flags, const struct sockaddr *to,
               socklen_t to_size) {
        CrashAction a = decide_fd(CALL(CRASH_SEND), fd);
        return a == CRASH_FAIL
                       ? fail()
                       : finish(a, REAL(sendto)(fd, data, portion(a, n), flags, to, to_size));
}

ssize_t sendmsg(int fd, const struct msghdr *message, int flags) {
        CrashAction a = decide_fd(CALL(CRASH_SEND), fd);
        struct msghdr m = *message;
        m.msg_iovlen = portion(a, m.msg_iovlen);
        return a == CRASH_FAIL ? fail() : finish(a, REAL(sendmsg)(fd, &m, flags));
}

/* Reading */

ssize_t read(int fd, void *data, size_t n) {
        CrashAction a = decide_fd(CALL(CRASH_READ), fd);
        return a == CRASH_FAIL ? fail() : finish(a, REAL(read)(fd, data, portion(a, n)));
}

ssize_t pread(int fd, void *data, size_t n, off_t offset) {
        CrashAction a = decide_fd(CALL(CRASH_READ), fd);
        return a == CRASH_FAIL ? fail() : finish(a, REAL(pread)(fd, data, portion(a, n), offset));
}

ssize_t pread64(int fd, void *data, size_t n, off64_t offset) {
        CrashAction a = decide_fd(CALL(CRASH_READ), fd);
        return a == CRASH_FAIL ? fail() : finish(a, REAL(pread64)(fd, data, portion(a, n), offset));
}

ssize_t recv(int fd, void *data, size_t n, int flags) {
        CrashAction a = decide_fd(CALL(CRASH_READ), fd);
        return a == CRASH_FAIL ? fail() : finish(a, REAL(recv)(fd, data, portion(a, n), flags));
}

/* Memory. glibc's functions under their own names, since dlsym(3) allocates. */

extern void *__libc_malloc(size_t n);
extern void *__libc_calloc(size_t n, size_t size);
extern void *__libc_realloc(void *old, size_t n);

/* `what` gets the caller's place in its file: see addr2line(1). */
static bool must_refuse(const char *name, const void *caller) {
        char where[128];
        Dl_info info;
        if (!control || is_child)
                return false;
        (void)atomic_fetch_add(&control->totals[CRASH_PLACE_MEMORY][CRASH_ALLOCATE], 1);
        if (atomic_load(&control->at) == 0 ||
            !(control->operations & (UINT32_C(1) << CRASH_ALLOCATE)))
                return false;
        uint64_t seen = atomic_fetch_add(&control->seen, 1) + 1, at = atomic_load(&control->at);
        if (seen < at || seen - at >= control->times)
                return false;
        bool is_known = dladdr(caller, &info) != 0;
        if (is_known && strstr(info.dli_fname, "/ld-linux")) /* which ends the process */
                return false;
        if (atomic_fetch_add(&control->acted, 1) == 0 && is_known) {
                const char *file = strrchr(info.dli_fname, '/');
                (void)snprintf(where, sizeof where, "%s %s+0x%lx", name,
                               file ? file + 1 : info.dli_fname,
                               (unsigned long)((const char *)caller - (char *)info.dli_fbase));
                (void)memcpy(control->what, where, sizeof control->what);
        }
        errno = ENOMEM;
        return true;
}

void *malloc(size_t n) {
        return must_refuse("malloc", __builtin_return_address(0)) ? NULL : __libc_malloc(n);
}

void *calloc(size_t n, size_t size) {
        return must_refuse("calloc", __builtin_return_address(0)) ? NULL : __libc_calloc(n, size);
}

void *realloc(void *old, size_t n) {
        return must_refuse("realloc", __builtin_return_address(0)) ? NULL : __libc_realloc(old, n);
}

/* The clock */

static int64_t offset_of(clockid_t clock) {
        bool is_wrong = clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE;
        return control && is_wrong ? atomic_load(&control->clock_offset_nsec) : 0;
}

int clock_gettime(clockid_t clock, struct timespec *ret) {
        int r = REAL(clock_gettime)(clock, ret);
        int64_t offset = offset_of(clock);
        if (r < 0 || offset == 0)
                return r;
        int64_t nsec = ret->tv_sec * NSEC_PER_SEC + ret->tv_nsec + offset;
        *ret = (struct timespec){ .tv_sec = nsec / NSEC_PER_SEC, .tv_nsec = nsec % NSEC_PER_SEC };
        return r;
}
