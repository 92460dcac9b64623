/* What a collector's child gives up, and what a program gives up that reads what a stranger wrote.
 */
#include "collectors/runner/sandbox.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/capability.h>
#include <linux/landlock.h>
#include <signal.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>

#include "lib/base/cleanup.h"
#include "lib/base/syscall_filter.h"

#define DESCRIPTORS_MAX 1024
#define PROCESSES_MAX 512 /* of the user, threads too */
#define MEMORY_MAX (2 * GIB)
#define ADDRESS_SPACE_MAX (64 * GIB) /* of one that maps files: their size is not memory */
#define OWN_MEMORY_MAX (512 * MIB)   /* … and what is written to, which is */
/* Newer than the header of Linux 5.15, which is the oldest we are built with. */
#define FS_REFER (UINT64_C(1) << 13)    /* ABI 2, Linux 5.19 */
#define FS_TRUNCATE (UINT64_C(1) << 14) /* ABI 3, Linux 6.2 */
#define NET_TCP (UINT64_C(3))           /* bind and connect: ABI 4, Linux 6.7 */
#define FS_MAKE                                                                                    \
        (LANDLOCK_ACCESS_FS_MAKE_CHAR | LANDLOCK_ACCESS_FS_MAKE_DIR |                              \
         LANDLOCK_ACCESS_FS_MAKE_REG | LANDLOCK_ACCESS_FS_MAKE_SOCK |                              \
         LANDLOCK_ACCESS_FS_MAKE_FIFO | LANDLOCK_ACCESS_FS_MAKE_BLOCK |                            \
         LANDLOCK_ACCESS_FS_MAKE_SYM)

#define FS_CHANGE                                                                                  \
        (FS_MAKE | LANDLOCK_ACCESS_FS_WRITE_FILE | LANDLOCK_ACCESS_FS_REMOVE_DIR |                 \
         LANDLOCK_ACCESS_FS_REMOVE_FILE)

/* ---- limits ---- */

static int limit(int what, uint64_t value) {
        struct rlimit now;
        if (getrlimit((__rlimit_resource_t)what, &now) < 0)
                return -errno;
        rlim_t v = MIN((rlim_t)value, now.rlim_max);
        return setrlimit((__rlimit_resource_t)what, &(struct rlimit){ v, v }) < 0 ? -errno : 0;
}

static int set_limits(const Sandbox *s) {
        int r = limit(RLIMIT_CPU, s->cpu_usec == USEC_INFINITY ? RLIM_INFINITY
                                                               : s->cpu_usec / USEC_PER_SEC + 1);
        if (r == 0)
                r = limit(RLIMIT_FSIZE, s->max_file_bytes);
        if (r == 0)
                r = limit(RLIMIT_NOFILE, DESCRIPTORS_MAX);
        if (r == 0)
                r = limit(RLIMIT_NPROC, PROCESSES_MAX);
        if (r == 0)
                r = limit(RLIMIT_CORE, 0);
#ifndef __SANITIZE_ADDRESS__ /* whose shadow is terabytes of address space */
        if (r == 0 && !s->runs_commands)
                r = limit(RLIMIT_AS, s->opens_nothing ? ADDRESS_SPACE_MAX : MEMORY_MAX);
        if (r == 0 && s->opens_nothing)
                r = limit(RLIMIT_DATA, OWN_MEMORY_MAX);
#endif
        /* A file that becomes too large is an error of write(2), not the end of the child. */
        if (r == 0 && signal(SIGXFSZ, SIG_IGN) == SIG_ERR)
                r = -errno;
        return r;
}

/* ---- capabilities ---- */

static int keep_capabilities(uint64_t wanted) {
        struct __user_cap_header_struct head = { .version = _LINUX_CAPABILITY_VERSION_3 };
        struct __user_cap_data_struct data[2] = { { 0 } };
        if (syscall(SYS_capget, &head, data) < 0)
                return -errno;
        for (unsigned i = 0; i < ELEMENTSOF(data); i++) {
                uint32_t keep = (uint32_t)(wanted >> (32 * i)) & data[i].permitted;
                data[i] = (struct __user_cap_data_struct){ keep, keep, keep };
        }
        /* While CAP_SETPCAP is still there. Without it the bounding set stays, which no_new_privs
         * makes idle. */
        for (int c = 0; c <= CAP_LAST_CAP; c++)
                if (!(wanted >> c & 1))
                        (void)prctl(PR_CAPBSET_DROP, c, 0, 0, 0);
        if (prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0) < 0 && errno != EINVAL)
                return -errno;
        return syscall(SYS_capset, &head, data) < 0 ? -errno : 0;
}

/* ---- landlock ---- */

static int allow_below(int ruleset, int fd, uint64_t access) {
        struct landlock_path_beneath_attr rule = { .allowed_access = access, .parent_fd = fd };
        return syscall(SYS_landlock_add_rule, ruleset, LANDLOCK_RULE_PATH_BENEATH, &rule, 0) < 0
                       ? -errno
                       : 0;
}

#define FS_OF_A_FILE                                                                               \
        (LANDLOCK_ACCESS_FS_READ_FILE | LANDLOCK_ACCESS_FS_EXECUTE | LANDLOCK_ACCESS_FS_WRITE_FILE)

/* What is not there needs no rule. */
static int allow_path(int ruleset, const char *path, uint64_t access) {
        _cleanup_close_ int fd = open(path, O_PATH | O_CLOEXEC);
        struct stat st;
        if (fd < 0)
                return 0;
        if (fstat(fd, &st) < 0)
                return -errno;
        return allow_below(ruleset, fd, S_ISDIR(st.st_mode) ? access : access & FS_OF_A_FILE);
}

static int enter_ruleset(int ruleset) {
        return syscall(SYS_landlock_restrict_self, ruleset, 0) < 0 ? -errno : 0;
}

/* Not where processes are read: a domain's processes may inspect none outside of it (ptrace(2),
 * "Ptrace access mode checking": environ, maps, root, the links of fd, ns, exe, cwd), whatever
 * capabilities they have. @see landlock(7). @return 0, -ENOSYS or -EOPNOTSUPP where the kernel has
 * it not (switched on), -errno */
static int enter_landlock(const Sandbox *s) {
        struct { /* of ABI 4; older kernels read only the first field */
                uint64_t fs, net;
        } attr = { .fs = FS_CHANGE, .net = s->runs_commands ? 0 : NET_TCP };
        long abi = syscall(SYS_landlock_create_ruleset, NULL, 0, LANDLOCK_CREATE_RULESET_VERSION);
        if (abi < 0)
                return -errno;
        uint64_t write = LANDLOCK_ACCESS_FS_WRITE_FILE;
        if (abi >= 2)
                attr.fs |= FS_REFER;
        if (abi >= 3) {
                attr.fs |= FS_TRUNCATE;
                write |= FS_TRUNCATE;
        }
        if (!s->may_exec)
                attr.fs |= LANDLOCK_ACCESS_FS_EXECUTE;
        if (s->opens_nothing)
                attr.fs |= LANDLOCK_ACCESS_FS_READ_FILE | LANDLOCK_ACCESS_FS_READ_DIR;
        _cleanup_close_ int ruleset =
                (int)syscall(SYS_landlock_create_ruleset, &attr, abi >= 4 ? 16 : 8, 0);
        if (ruleset < 0)
                return -errno;
        int r = 0;
        if (s->dir_fd >= 0)
                r = allow_below(ruleset, s->dir_fd, write | LANDLOCK_ACCESS_FS_MAKE_REG);
        if (r == 0 && s->device_directory)
                r = allow_path(ruleset, s->device_directory, LANDLOCK_ACCESS_FS_WRITE_FILE);
        if (r == 0 && s->runs_commands)
                r = allow_path(ruleset, "/dev", write);
        return r < 0 ? r : enter_ruleset(ruleset);
}

/* ---- system calls ---- */

/* What no collector needs, and what would let one out. Of those that make or change files, what
 * stands here is only what landlock does not know. */
/* clang-format off */
static const unsigned short refused_always[] = {
        SYS_ptrace, SYS_process_vm_writev, SYS_mount, SYS_umount2, SYS_pivot_root,
        SYS_chroot, SYS_setns, SYS_unshare, SYS_bpf, SYS_perf_event_open,
        SYS_init_module, SYS_finit_module, SYS_delete_module, SYS_kexec_load,
        SYS_reboot, SYS_swapon, SYS_swapoff, SYS_keyctl, SYS_add_key, SYS_request_key,
        SYS_userfaultfd, SYS_acct, SYS_settimeofday, SYS_clock_settime, SYS_adjtimex,
        SYS_clock_adjtime, SYS_sethostname, SYS_setdomainname, SYS_quotactl, SYS_fchmod,
        SYS_fchmodat, SYS_fchown, SYS_fchownat, SYS_setxattr, SYS_lsetxattr,
        SYS_fsetxattr, SYS_removexattr, SYS_lremovexattr, SYS_fremovexattr,
        SYS_utimensat, SYS_name_to_handle_at, SYS_open_by_handle_at, SYS_vhangup,
#ifdef SYS_kexec_file_load
        SYS_kexec_file_load,
#endif
#ifdef SYS_io_uring_setup
        SYS_io_uring_setup,
#endif
#ifdef SYS_move_mount
        SYS_move_mount, SYS_open_tree, SYS_fsopen, SYS_fsmount,
#endif
#ifdef __x86_64__
        SYS_chmod, SYS_chown, SYS_lchown, SYS_utime, SYS_utimes, SYS_futimesat,
        SYS_iopl, SYS_ioperm, SYS_modify_ldt,
#endif
};
/* clang-format on */

/* Unless programs are executed. */
static const unsigned short refused_without_exec[] = { SYS_execve, SYS_execveat };

/* The agent and the supervisor are processes of the same user, whom landlock protects from signals
 * since Linux 6.12 only. */
static const unsigned short reaching_others[] = {
        SYS_tkill,
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

/* Programs that an operator has configured may need these; a collector does not. */
static const unsigned short refused_without_commands[] = {
        SYS_socket, SYS_socketpair, SYS_connect, SYS_bind, SYS_listen, SYS_accept, SYS_accept4,
};

/* What landlock would refuse, where it cannot be had. The rest of it: add_opens(). */
static const unsigned short refused_without_landlock[] = {
        SYS_truncate, SYS_ftruncate, SYS_fallocate, SYS_mkdirat,   SYS_mknodat,
        SYS_unlinkat, SYS_linkat,    SYS_symlinkat, SYS_renameat2,
#ifdef SYS_renameat
        SYS_renameat,
#endif
#ifdef __x86_64__
        SYS_creat,    SYS_mkdir,     SYS_mknod,     SYS_unlink,    SYS_rmdir,
        SYS_link,     SYS_symlink,   SYS_rename,
#endif
};

#define OPEN_TMPFILE (O_TMPFILE & ~O_DIRECTORY)
#define OPEN_WRITES (O_ACCMODE | O_CREAT | O_TRUNC | OPEN_TMPFILE)
#define OPEN_NEW (O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW) /* collect_raw_file() */
#define OPEN_NODE (O_WRONLY | O_NOFOLLOW)                   /* neuron_ioctl_open() */

/* One call that opens: for reading always; for writing as a raw file or a device is, if such are to
 * be had. */
static void add_open(SyscallFilter *f, unsigned call, unsigned flags_argument, const Sandbox *s) {
        unsigned short begin = f->n;
        syscall_filter_add(f,
                           syscall_filter_jump(BPF_JEQ, call, 0, 0)); /* its end is not known yet */
        syscall_filter_load_argument(f, flags_argument);
        syscall_filter_add(f, syscall_filter_jump(BPF_JSET, OPEN_WRITES, 1, 0));
        syscall_filter_return(f, 0);
        syscall_filter_add(f, (struct sock_filter){ .code = BPF_ALU | BPF_AND | BPF_K,
                                                    .k = OPEN_WRITES | O_EXCL | O_NOFOLLOW });
        if (s->device_directory) {
                syscall_filter_add(f, syscall_filter_jump(BPF_JEQ, OPEN_NODE, 0, 1));
                syscall_filter_return(f, 0);
        }
        if (s->dir_fd >= 0 && call == SYS_openat) {
                syscall_filter_add(f, syscall_filter_jump(BPF_JEQ, OPEN_NEW, 0, 3));
                syscall_filter_load_argument(f, 0);
                syscall_filter_add(f, syscall_filter_jump(BPF_JEQ, (uint32_t)s->dir_fd, 0, 1));
                syscall_filter_return(f, 0);
        }
        syscall_filter_return(f, EPERM);
        f->steps[begin].jf = (unsigned char)(f->n - begin - 1);
}

/* Paths are pointers, which a filter cannot follow. So what is left to one that got out of hand is:
 * to make a new file (never to change one: O_EXCL) by an absolute path, where its user may; or,
 * with a device directory, to open what its user may write, but not to put anything there
 * (RLIMIT_FSIZE is 0 then, which devices and pipes do not heed). The unit's user owns nothing
 * outside of the agent's directories, which its mounts make read-only (ProtectSystem=). */
static void add_opens(SyscallFilter *f, const Sandbox *s) {
        syscall_filter_refuse(f, refused_without_landlock, ELEMENTSOF(refused_without_landlock));
        syscall_filter_add(f, syscall_filter_jump(BPF_JEQ, SYS_openat2, 0, 1));
        syscall_filter_return(
                f, ENOSYS); /* its flags are behind a pointer; who uses it can do without */
        add_open(f, SYS_openat, 2, s);
#ifdef __x86_64__
        add_open(f, SYS_open, 1, s);
#endif
}

/* Reading the kernel's log, and the size of its ring; not to consume it, or to silence the console.
 */
static void add_syslog(SyscallFilter *f, const Sandbox *s) {
        enum { READ_ALL = 3, SIZE_BUFFER = 10 };
        syscall_filter_add(
                f, syscall_filter_jump(BPF_JEQ, SYS_syslog, 0, s->reads_kernel_log ? 5 : 1));
        if (s->reads_kernel_log) {
                syscall_filter_load_argument(f, 0);
                syscall_filter_add(f, syscall_filter_jump(BPF_JEQ, READ_ALL, 1, 0));
                syscall_filter_add(f, syscall_filter_jump(BPF_JEQ, SIZE_BUFFER, 0, 1));
                syscall_filter_return(f, 0);
        }
        syscall_filter_return(f, EPERM);
}

/* Of fcntl(2) nothing that sets more: F_SETOWN and F_SETSIG make the kernel send signals. */
static void add_allowed(SyscallFilter *f) {
        static const uint32_t of_fcntl[] = { F_SETFD, F_GETFL }; /* fdopendir(3) */
        syscall_filter_allow_basics(f);
        syscall_filter_allow_values(f, SYS_fcntl, 1, of_fcntl, ELEMENTSOF(of_fcntl));
        syscall_filter_return(f, EPERM);
}

/* kill(2) with signal 0 tells whether a process is there; abort(3) signals this one. */
static void refuse_reaching_others(SyscallFilter *f) {
        const uint32_t none = 0, self = (uint32_t)getpid();
        syscall_filter_refuse(f, reaching_others, ELEMENTSOF(reaching_others));
        syscall_filter_allow_values(f, SYS_kill, 1, &none, 1);
        syscall_filter_allow_values(f, SYS_tgkill, 0, &self, 1);
}

static void add_refusals(SyscallFilter *f, const Sandbox *s) {
        syscall_filter_refuse(f, refused_always, ELEMENTSOF(refused_always));
        add_syslog(f, s);
        if (!s->may_exec) { /* what it starts, it has to end */
                syscall_filter_refuse(f, refused_without_exec, ELEMENTSOF(refused_without_exec));
                refuse_reaching_others(f);
        }
        if (!s->runs_commands)
                syscall_filter_refuse(f, refused_without_commands,
                                      ELEMENTSOF(refused_without_commands));
        if (s->reads_processes)
                add_opens(f, s);
        syscall_filter_return(f, 0);
}

static int enter_seccomp(const Sandbox *s) {
        SyscallFilter f;
        syscall_filter_init(&f);
        if (s->opens_nothing)
                add_allowed(&f);
        else
                add_refusals(&f, s);
        return syscall_filter_install(&f, false);
}

static void note_missing(StrBuf *b, const char *what, int error) {
        if (error == 0)
                return;
        strbuf_addf(b, "%s%s: %s", b->n ? "; " : "collected without ", what, strerror(-error));
}

int sandbox_enter(const Sandbox *s, StrBuf *left_out) {
        if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) < 0)
                return -errno;
        int r = set_limits(s);
        if (r < 0)
                return r;
        if (!s->reads_processes)
                note_missing(left_out, "landlock", enter_landlock(s));
        note_missing(left_out, "dropping capabilities", keep_capabilities(s->capabilities));
        note_missing(left_out, "a filter of system calls", enter_seccomp(s));
        return 0;
}

#define FS_READ (LANDLOCK_ACCESS_FS_READ_FILE | LANDLOCK_ACCESS_FS_READ_DIR)
#define FS_RUN (FS_READ | LANDLOCK_ACCESS_FS_EXECUTE)
/* All that Linux 5.13, the first to have it, knows. What later ones added makes or changes files,
 * too, which the filter of a collector refuses already. */
#define FS_ALL ((LANDLOCK_ACCESS_FS_MAKE_SYM << 1) - 1)
/* What any program needs to begin. The agent's own configuration and state are not among it. */
static const char *const program_paths[] = {
        "/usr", "/bin", "/lib", "/lib64", "/etc/ld.so.cache", "/etc/rpm", "/dev/null"
};

static int enter_domain(const char *program, int dir_fd) {
        struct landlock_ruleset_attr attr = { .handled_access_fs = FS_ALL };
        _cleanup_close_ int ruleset =
                (int)syscall(SYS_landlock_create_ruleset, &attr, sizeof attr.handled_access_fs, 0);
        if (ruleset < 0)
                return -errno;
        int r = allow_path(ruleset, program, FS_RUN);
        for (size_t i = 0; r == 0 && i < ELEMENTSOF(program_paths); i++)
                r = allow_path(ruleset, program_paths[i], FS_RUN);
        if (r == 0)
                r = allow_below(ruleset, dir_fd, FS_READ);
        return r < 0 ? r : enter_ruleset(ruleset);
}

static int enter_reader_filter(void) {
        SyscallFilter f;
        syscall_filter_init(&f);
        refuse_reaching_others(&f);
        syscall_filter_return(&f, 0);
        return syscall_filter_install(&f, false);
}

int sandbox_enter_reader(const char *program, int dir_fd) {
        if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) < 0)
                return -errno;
        int r = enter_domain(program, dir_fd);
        return r < 0 ? r : enter_reader_filter();
}
