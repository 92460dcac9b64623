/* What a collector's child gives up before it reads anything: privileges, capabilities, most system
 * calls, writing, and more than its share of time, memory and descriptors. What a kernel does not
 * have is left out, and reported. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "lib/base/strbuf.h"

typedef struct Sandbox {
        int dir_fd;                   /* where files may be made and written; -1 = nowhere */
        const char *device_directory; /* where nodes may be opened for writing; NULL = none may */
        uint64_t capabilities;        /* kept where they were there, by 1 << CAP_… */
        uint64_t cpu_usec, max_file_bytes;
        bool may_exec;         /* other programs, which then have the same limits */
        bool runs_commands;    /* of an operator: with sockets, any nodes below /dev, and memory */
        bool opens_nothing;    /* not even for reading: all it needs is open. It reads, writes and
                                  maps that, and nothing else: other system calls are refused.
                                  Files that it maps do not count as memory */
        bool reads_processes;  /* of others, in /proc: without landlock, writing is refused by the
                                  filter of system calls alone. @see add_opens() */
        bool reads_kernel_log; /* by syslog(2) */
} Sandbox;

/** Enters it for good; the caller has one thread. @param left_out  gets a sentence for what the
 * kernel refused; unchanged when all was done
 * @return 0; -errno: not even privileges could be given up (PR_SET_NO_NEW_PRIVS), or a limit not be
 * set: collect nothing */
int sandbox_enter(const Sandbox *s, StrBuf *left_out);

/** For a program that is executed next, on files that a stranger may have written so as to make it
 * do what he wants. From now on it can open nothing but what every program needs (/usr, the
 * libraries), and dir_fd's files, for reading; inspect no other process; and send no signal. What
 * it has open stays open.
 * @param program  absolute; may be read and executed
 * @param dir_fd  of a directory, O_PATH is enough
 * @return 0; -errno: the kernel has not all of it (landlock: since Linux 5.13, where it is switched
 * on). Then do not execute it
 * @see landlock(7), seccomp(2) */
int sandbox_enter_reader(const char *program, int dir_fd);
