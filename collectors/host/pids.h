/* Which process of this machine a pid is that was reported from inside of a pid namespace. Reads a
 * few files of /proc, trusts nobody: a hook may only name processes of its own user, first of all
 * of those that it descends from. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

/* What is searched, at most. */
#define PIDS_ANCESTORS_MAX 32
#define PIDS_PROCESSES_MAX 65536

#define PIDS_CONTAINER_SIZE 65

/* Outcomes that are no failure of ours. */
enum {
        PIDS_E_HIDDEN = 1, /* the hook's own /proc cannot be read: hidden (hidepid, ProtectProc=),
                              or it has ended */
        PIDS_E_NOT_FOUND = 2, /* no process with this pid that the hook may name, or it has ended */
};

typedef struct PidsQuery { /* borrowed */
        const char *proc_root;
        pid_t hook_pid;    /* on this machine, by SO_PEERCRED */
        uint64_t ns_inode; /* of the hook's pid namespace, as it reports itself; 0 = not known */
        int64_t inner_pid; /* as the failing process counts itself */
} PidsQuery;

typedef struct PidsMatch {
        pid_t pid;            /* on this machine */
        uint64_t start_ticks; /* field 22 of its stat; 0 when it cannot be read */
} PidsMatch;

/** Searches the hook's ancestors alone, those of its user in the same pid namespace: the failing
 * process runs its hook itself. A few reads.
 * @param q  its ns_inode does not matter
 * @return 0 and *ret; PIDS_E_HIDDEN; PIDS_E_NOT_FOUND; -errno */
int pids_resolve_ancestor(const PidsQuery *q, PidsMatch *ret);

/** The same, and then among all processes of the same pid namespace and the same user. Searches all
 * of /proc: not for the loop. To see the namespace of others takes CAP_SYS_PTRACE (or the same
 * user). Of ns_inode only what the kernel reports of hook_pid, too, is trusted; where that cannot
 * be seen, no other process than an ancestor is found. */
int pids_resolve(const PidsQuery *q, PidsMatch *ret);

/** The container that a process is in, by its cgroup (procfs_parse_cgroup()).
 * @param ret  "" when it is in none, or that cannot be read
 * @return whether its cgroup could be read */
bool pids_container(const char *proc_root, pid_t pid, char ret[PIDS_CONTAINER_SIZE]);
/** The same from the text of a cgroup file. Pure. */
bool pids_container_of(const char *cgroup, char ret[PIDS_CONTAINER_SIZE]);
