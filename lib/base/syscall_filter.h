/* Filters of system calls for processes that read what strangers wrote: a program of BPF, step by
 * step, with the number of the call in the accumulator between its parts. x86-64 and arm64.
 * @see seccomp(2), bpf in linux/filter.h */
#pragma once

#include <linux/filter.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define SYSCALL_FILTER_STEPS_MAX 512

typedef struct SyscallFilter {
        struct sock_filter steps[SYSCALL_FILTER_STEPS_MAX];
        unsigned short n;
} SyscallFilter;

/** Begins one: calls of another architecture are refused with EPERM. */
void syscall_filter_init(SyscallFilter *f);

/** Of the numbers of calls. The refused ones return EPERM. */
void syscall_filter_allow(SyscallFilter *f, const unsigned short *calls, size_t n);
void syscall_filter_refuse(SyscallFilter *f, const unsigned short *calls, size_t n);

/** Allows a call if its argument, an int, counted from 0, is one of n values; otherwise EPERM. */
void syscall_filter_allow_values(SyscallFilter *f, unsigned call, unsigned argument,
                                 const uint32_t *values, size_t n);

/** Allows what each program needs that has everything open: to read, write and map that, memory,
 * the time, its own end. abort(3) works; no other process can be sent a signal. Nothing is opened,
 * and no thread or process is started. */
void syscall_filter_allow_basics(SyscallFilter *f);

/** Ends a branch, or the filter. @param error  an errno; 0 allows the call */
void syscall_filter_return(SyscallFilter *f, int error);

/* For branches of the caller's own. */
void syscall_filter_add(SyscallFilter *f, struct sock_filter step);
/** Replaces the number of the call by the lower 32 bits of an argument. */
void syscall_filter_load_argument(SyscallFilter *f, unsigned argument);
/** Jumps over so many steps when the test is true, and when it is false. @param test  BPF_JEQ,
 * BPF_JGE, BPF_JSET with k */
struct sock_filter syscall_filter_jump(unsigned test, uint32_t k, unsigned if_true,
                                       unsigned if_false);

/** Enters it for good; PR_SET_NO_NEW_PRIVS is set already.
 * @param all_threads  of the process, or this one alone  @return 0, -errno */
int syscall_filter_install(SyscallFilter *f, bool all_threads);
