/* For programs that read what a stranger wrote: they see only what they need, by landlock, and cannot look at other processes or send them signals. */
#include <errno.h>
#include <fcntl.h>
#include <linux/landlock.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>

#include "collectors/runner/sandbox.h"
#include "collectors/runner/sandbox_private.h"
#include "lib/base/cleanup.h"

#define FS_READ (LANDLOCK_ACCESS_FS_READ_FILE | LANDLOCK_ACCESS_FS_READ_DIR)
#define FS_RUN (FS_READ | LANDLOCK_ACCESS_FS_EXECUTE)
#define FS_OF_A_FILE                                                                               \
        (LANDLOCK_ACCESS_FS_READ_FILE | LANDLOCK_ACCESS_FS_EXECUTE | LANDLOCK_ACCESS_FS_WRITE_FILE)
/* All that Linux 5.13, the first to have it, knows. What later ones added makes or changes files, too, which the filter of a collector refuses already. */
#define FS_ALL ((LANDLOCK_ACCESS_FS_MAKE_SYM << 1) - 1)

/* What any program needs to begin. The agent's own configuration and state are not among it. */
static const char *const places[] = { "/usr",     "/bin",     "/lib", "/lib64", "/etc/ld.so.cache",
                                      "/etc/rpm", "/dev/null" };

static int allow(int ruleset, int fd, uint64_t access) {
        struct landlock_path_beneath_attr rule = { .allowed_access = access, .parent_fd = fd };
        struct stat st;
        if (fstat(fd, &st) < 0)
                return -errno;
        if (!S_ISDIR(st.st_mode))
                rule.allowed_access &= FS_OF_A_FILE;
        return syscall(SYS_landlock_add_rule, ruleset, LANDLOCK_RULE_PATH_BENEATH, &rule, 0) < 0
                       ? -errno
                       : 0;
}

/* What is not there needs no rule. */
static int allow_path(int ruleset, const char *path) {
        _cleanup_close_ int fd = open(path, O_PATH | O_CLOEXEC);
        return fd < 0 ? 0 : allow(ruleset, fd, FS_RUN);
}

static int enter_domain(const char *program, int dir_fd) {
        struct landlock_ruleset_attr attr = { .handled_access_fs = FS_ALL };
        _cleanup_close_ int ruleset =
                (int)syscall(SYS_landlock_create_ruleset, &attr, sizeof attr.handled_access_fs, 0);
        if (ruleset < 0)
                return -errno;
        int r = allow_path(ruleset, program);
        for (size_t i = 0; r == 0 && i < ELEMENTSOF(places); i++)
                r = allow_path(ruleset, places[i]);
        if (r == 0)
                r = allow(ruleset, dir_fd, FS_READ);
        if (r < 0)
                return r;
        return syscall(SYS_landlock_restrict_self, ruleset, 0) < 0 ? -errno : 0;
}

#ifdef ARCHITECTURE
/* The agent and the supervisor are processes of the same user, whom landlock protects from signals since Linux 6.12 only. */
static const unsigned short refused[] = {
        SYS_kill,
        SYS_tkill,
        SYS_tgkill,
        SYS_rt_sigqueueinfo,
        SYS_rt_tgsigqueueinfo,
        SYS_process_vm_readv,
#ifdef SYS_pidfd_send_signal
        SYS_pidfd_send_signal,
#endif
#ifdef SYS_pidfd_getfd
        SYS_pidfd_getfd,
#endif
};

static int refuse_reaching_others(void) {
        struct sock_filter steps[ELEMENTSOF(sandbox_prologue) + 2 * ELEMENTSOF(refused) + 1];
        unsigned short n = ELEMENTSOF(sandbox_prologue);
        memcpy(steps, sandbox_prologue, sizeof sandbox_prologue);
        for (size_t i = 0; i < ELEMENTSOF(refused); i++) {
                steps[n++] =
                        (struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, refused[i], 0, 1);
                steps[n++] =
                        (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM);
        }
        steps[n++] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW);
        struct sock_fprog program = { .len = n, .filter = steps };
        return prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program, 0, 0) < 0 ? -errno : 0;
}
#else
static int refuse_reaching_others(void) {
        return -ENOSYS;
}
#endif

int sandbox_enter_reader(const char *program, int dir_fd) {
        if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) < 0)
                return -errno;
        int r = enter_domain(program, dir_fd);
        return r < 0 ? r : refuse_reaching_others();
}
