/* Builds a seccomp filter step by step, as a BPF program, and installs it. Which calls are allowed
 * is left to the callers. */
#include "lib/base/syscall_filter.h"

#include <assert.h>
#include <errno.h>
#include <linux/audit.h>
#include <linux/seccomp.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "lib/base/cleanup.h"

#if defined(__x86_64__)
#define ARCHITECTURE AUDIT_ARCH_X86_64
#elif defined(__aarch64__)
#define ARCHITECTURE AUDIT_ARCH_AARCH64
#else
#error "the filters of system calls know x86-64 and arm64"
#endif

#define X32_CALLS 0x40000000 /* x32's calls on x86-64 have this bit, and are refused */

/* tgkill(2) is missing: syscall_filter_allow_basics() allows it for one process. */
/* clang-format off */
static const unsigned short basics[] = {
        SYS_read, SYS_pread64, SYS_write, SYS_lseek, SYS_close, SYS_fstat, SYS_newfstatat,
        SYS_sendmsg, SYS_recvmsg, SYS_brk, SYS_mmap, SYS_munmap, SYS_mremap, SYS_mprotect,
        SYS_madvise, SYS_futex, SYS_getrandom, SYS_clock_gettime, SYS_clock_nanosleep,
        SYS_gettimeofday, SYS_getpid, SYS_gettid, SYS_sched_yield, SYS_rt_sigaction,
        SYS_rt_sigprocmask, SYS_rt_sigreturn, SYS_sigaltstack, SYS_restart_syscall, SYS_exit,
        SYS_exit_group, SYS_getdents64,
};
/* clang-format on */

void syscall_filter_add(SyscallFilter *f, struct sock_filter step) {
        assert(f->n < SYSCALL_FILTER_STEPS_MAX); /* the number of steps does not depend on input */
        f->steps[f->n++] = step;
}

struct sock_filter syscall_filter_jump(unsigned test, uint32_t k, unsigned if_true,
                                       unsigned if_false) {
        return (struct sock_filter){ (unsigned short)(BPF_JMP | test | BPF_K),
                                     (unsigned char)if_true, (unsigned char)if_false, k };
}

static void add_load(SyscallFilter *f, size_t offset) {
        syscall_filter_add(
                f, (struct sock_filter){ .code = BPF_LD | BPF_W | BPF_ABS, .k = (uint32_t)offset });
}

/* The lower half of an argument comes first: both architectures are little-endian. */
void syscall_filter_load_argument(SyscallFilter *f, unsigned argument) {
        add_load(f, offsetof(struct seccomp_data, args) + (size_t)8 * argument);
}

void syscall_filter_return(SyscallFilter *f, int error) {
        uint32_t answer = error ? SECCOMP_RET_ERRNO | (uint32_t)error : SECCOMP_RET_ALLOW;
        syscall_filter_add(f, (struct sock_filter){ .code = BPF_RET | BPF_K, .k = answer });
}

void syscall_filter_init(SyscallFilter *f) {
        f->n = 0;
        add_load(f, offsetof(struct seccomp_data, arch));
        syscall_filter_add(f, syscall_filter_jump(BPF_JEQ, ARCHITECTURE, 1, 0));
        syscall_filter_return(f, EPERM);
        add_load(f, offsetof(struct seccomp_data, nr));
        syscall_filter_add(f, syscall_filter_jump(BPF_JGE, X32_CALLS, 0, 1));
        syscall_filter_return(f, EPERM);
}

static void add_calls(SyscallFilter *f, const unsigned short *calls, size_t n, int error) {
        for (size_t i = 0; i < n; i++) {
                syscall_filter_add(f, syscall_filter_jump(BPF_JEQ, calls[i], 0, 1));
                syscall_filter_return(f, error);
        }
}

void syscall_filter_allow(SyscallFilter *f, const unsigned short *calls, size_t n) {
        add_calls(f, calls, n, 0);
}

void syscall_filter_refuse(SyscallFilter *f, const unsigned short *calls, size_t n) {
        add_calls(f, calls, n, EPERM);
}

void syscall_filter_allow_values(SyscallFilter *f, unsigned call, unsigned argument,
                                 const uint32_t *values, size_t n) {
        syscall_filter_add(f, syscall_filter_jump(BPF_JEQ, call, 0, (unsigned)n + 3));
        syscall_filter_load_argument(f, argument);
        for (size_t i = 0; i < n; i++)
                syscall_filter_add(f,
                                   syscall_filter_jump(BPF_JEQ, values[i], (unsigned)(n - i), 0));
        syscall_filter_return(f, EPERM);
        syscall_filter_return(f, 0);
}

void syscall_filter_allow_basics(SyscallFilter *f) {
        const uint32_t self = (uint32_t)getpid();
        syscall_filter_allow(f, basics, ELEMENTSOF(basics));
        syscall_filter_allow_values(f, SYS_tgkill, 0, &self, 1); /* abort(3) */
}

int syscall_filter_install(SyscallFilter *f, bool all_threads) {
        struct sock_fprog program = { .len = f->n, .filter = f->steps };
        long r = all_threads ? syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER,
                                       SECCOMP_FILTER_FLAG_TSYNC, &program)
                             : prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program, 0, 0);
        if (r < 0)
                return -errno;
        return r > 0 ? -ESRCH : 0; /* r is the thread that could not be synchronized */
}
