/* Reads <proc_root>/PID of one process through one descriptor of its directory. Everything is
 * bounded, and checked against the start time that the process was named with, so that another
 * process with the same pid is never mixed in. What /proc/PID/root leads to belongs to the process
 * and is hostile: procfs_root_*(). Parsers are pure. No library: the hook uses this, too.
 *
 * Reading cmdline, environ and maps takes the process's memory lock: a process can make its reader
 * wait for ever (a page on a hanging file system, userfaultfd), and only SIGKILL ends such a wait.
 * Read them in a child that may be killed, and last. stat, status, fd and cgroup never wait.
 * @see proc(5), openat2(2) */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/stat.h>
#include <sys/types.h>

#include "lib/base/strbuf.h"

/* Outcomes, beside 0 and -errno. */
enum {
        PROCFS_E_GONE = 1, /* it does not exist, or no longer */
        PROCFS_E_REPLACED, /* another process has its pid now */
        PROCFS_E_HIDDEN,   /* it exists, but may not be read (hidepid, ptrace access) */
        PROCFS_E_NO_FILE,  /* it exists, but this kernel does not have the file */
        PROCFS_E_ENDED,    /* it is a zombie, which no longer has memory */
};
/** @return a phrase for people, static, for an outcome or -errno */
const char *procfs_reason(int outcome);

#define PROCFS_COMM_SIZE 64    /* the kernel: 16, 64 for kernel workers */
#define PROCFS_LINK_SIZE 4096  /* the kernel gives a page at most */
#define PROCFS_PIDS_MAX 131072 /* of a listing */

typedef struct ProcStat {
        pid_t pid, ppid;
        char comm[PROCFS_COMM_SIZE]; /* any bytes */
        char state;                  /* R S D Z T t X I … */
        uint32_t flags;              /* PF_…, the kernel's */
        uint64_t start_ticks;
} ProcStat;

#define PROCFS_FLAG_KTHREAD 0x00200000U /* PF_KTHREAD, the same since Linux 2.6.27 */

/** A process that exists. */
typedef struct Proc {
        int dir_fd; /* of its directory, O_PATH */
        ProcStat stat;
        uid_t uid; /* the owner of its directory: its effective uid, 0 when it is not dumpable */
} Proc;

/** Finds a process. @param start_ticks  what it must have, 0 = any
 * @return 0, GONE, REPLACED, HIDDEN, -errno */
int procfs_open(Proc *ret, const char *proc_root, pid_t pid, uint64_t start_ticks);
void procfs_close(Proc *p); /* also one that was never opened, when dir_fd is -1 */
/** @return 0 while it is the same process (a zombie too), GONE, REPLACED, HIDDEN, -errno */
int procfs_check(const Proc *p);
/** @return whether it has ended and waits to be reaped: environ, cmdline, maps, cwd and root are
 * empty */
bool procfs_is_zombie(const Proc *p);

typedef struct ProcFile {
        const char *name; /* below its directory, e.g. `task/12/wchan` */
        size_t max_bytes; /* that are read of it */
} ProcFile;

/** Appends a file of the process. @param ret_cut  there is more; may be NULL
 * @return 0, GONE, HIDDEN, NO_FILE, ENDED (newer kernels; older ones give an empty file), -errno */
int procfs_read(const Proc *p, ProcFile file, StrBuf *b, bool *ret_cut);
/** Reads a link of the process (`exe`, `fd/3`, `ns/pid`), and does not follow it. @return as
 * procfs_read() */
int procfs_link(const Proc *p, const char *name, char buf[static PROCFS_LINK_SIZE]);

/** Adds a path of a process, redacted, as docs/API.md spells paths. */
void procfs_add_path(StrBuf *b, const char *key, const char *path);

typedef struct ProcNumbers {
        int *items; /* ascending; NULL when there are none */
        size_t n;
        bool is_cut; /* there are more */
} ProcNumbers;

/** Lists numbers that name entries of a directory: pids of proc_root, `task` or `fd` of a process.
 * @param dir_fd  AT_FDCWD with a path  @param max  entries at most  @param ret  the caller's
 * @return 0, -errno */
int procfs_list(int dir_fd, const char *path, size_t max, ProcNumbers *ret);
void procfs_numbers_done(ProcNumbers *numbers);

/** Opens the root directory of the process, O_PATH. @return fd, -errno (zombies: -ENOENT) */
int procfs_root(const Proc *p);
/** Opens a path as a process with that root directory would (links, absolute and `..` too, stay
 * inside), but only a regular file or a directory, and never through a magic link: opening a
 * device has effects, and opening a pipe waits.
 * @param path  absolute in that root  @param flags  O_RDONLY, or O_PATH, with O_DIRECTORY for a
 * directory  @param ret_st  may be NULL
 * @return fd, -EBADF when it is not of that kind, -ELOOP, -ENOENT, … */
int procfs_root_open(int root_fd, const char *path, int flags, struct stat *ret_st);

/** Parses /proc/PID/stat. @return whether it is one; comm may hold blanks and parentheses */
bool procfs_parse_stat(const char *text, size_t n, ProcStat *ret);

typedef struct ProcMap {
        uint64_t inode;
        const char
                *path; /* borrowed from the line, not NUL-terminated; n_path 0 when there is none */
        size_t n_path;
        bool is_deleted; /* the file has been removed: ` (deleted)` is not in path */
} ProcMap;

/** Parses one line of /proc/PID/maps, without its newline. */
bool procfs_parse_map(const char *line, size_t n, ProcMap *ret);

/** Finds the line `NAME:` of a status file. @return its value's beginning, borrowed, *ret_n bytes
 * without blanks around; NULL */
const char *procfs_field(const char *text, const char *name, size_t *ret_n);

/** Makes a list of the NUL-separated strings of environ or cmdline. @param max  strings at most
 * @return NULL-terminated, borrowing from data (which must end by NUL at data[n]); the list is the
 * caller's; NULL for lack of memory */
char **procfs_split(char *data, size_t n, size_t max);
