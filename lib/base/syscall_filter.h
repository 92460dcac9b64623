/* Builds and installs a seccomp filter for a process that reads data of untrusted users. The filter
 * is a BPF program that is built step by step; between its parts the accumulator holds the number
 * of the system call. Which calls are allowed is left to the caller. x86-64 and arm64.
 * @see seccomp(2), bpf in linux/filter.h */
#pragma once

#include <linux/filter.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define SYSCALL_FILTER_STEPS_MAX 512 /* more is a bug of the caller: assert(3) */

typedef struct SyscallFilter {
        struct sock_filter steps[SYSCALL_FILTER_STEPS_MAX];
        unsigned short n;
} SyscallFilter;

/** Starts a filter. It refuses calls of another architecture, and x32's, with EPERM. */
void syscall_filter_init(SyscallFilter *f);

/** Adds calls by their numbers (SYS_…): allowed, or refused with EPERM.
 * @param n  of calls */
void syscall_filter_allow(SyscallFilter *f, const unsigned short *calls, size_t n);
void syscall_filter_refuse(SyscallFilter *f, const unsigned short *calls, size_t n);

/** Allows a call if one of its arguments has one of n values, and refuses it with EPERM otherwise.
 * Only the lower 32 bits are compared.
 * @param argument  its position, from 0 */
void syscall_filter_allow_values(SyscallFilter *f, unsigned call, unsigned argument,
                                 const uint32_t *values, size_t n);

/** Allows what a process needs that has all its files open: read, write and map them, allocate
 * memory, read the clock, exit, and abort(3). The process that calls this can send itself signals,
 * and nobody else; it cannot open files or start threads and processes. */
void syscall_filter_allow_basics(SyscallFilter *f);

/** Ends a branch of the filter, or the filter.
 * @param error  a positive errno that refuses the call; 0 allows it */
void syscall_filter_return(SyscallFilter *f, int error);

/* For branches that the caller builds. */
void syscall_filter_add(SyscallFilter *f, struct sock_filter step);
/** Loads the lower 32 bits of an argument into the accumulator, in place of the call's number.
 * @param argument  its position, from 0 */
void syscall_filter_load_argument(SyscallFilter *f, unsigned argument);
/** @return a step that compares the accumulator with k and jumps over `if_true` or `if_false`
 * steps.
 * @param test  BPF_JEQ, BPF_JGE or BPF_JSET */
struct sock_filter syscall_filter_jump(unsigned test, uint32_t k, unsigned if_true,
                                       unsigned if_false);

/** Installs the filter; it cannot be removed. The caller has set PR_SET_NO_NEW_PRIVS.
 * @param all_threads  filter all threads of the process; false: the calling thread
 * @return 0; -ESRCH: another thread could not be synchronized; -errno */
int syscall_filter_install(SyscallFilter *f, bool all_threads);
