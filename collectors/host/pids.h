/* Which process of this machine a pid means that was reported from inside a pid namespace. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

/* The most that is searched. */
#define PIDS_ANCESTORS_MAX 32
#define PIDS_PROCESSES_MAX 65536

#define PIDS_CONTAINER_SIZE 65

/* Outcomes. */
enum {
        PIDS_E_HIDDEN = 1, /* the hook's own /proc cannot be read: hidden (hidepid, ProtectProc=),
                              or it has ended */
        PIDS_E_NOT_FOUND = 2, /* the hook may name no process with this pid, or it has ended */
};

/** All borrowed. */
typedef struct PidsQuery {
        const char *proc_root;
        pid_t hook_pid;    /* on this machine, by SO_PEERCRED */
        uint64_t ns_inode; /* of the hook's pid namespace, as it reports itself; 0 = not known */
        int64_t inner_pid; /* the failing process's pid in that namespace */
} PidsQuery;

typedef struct PidsMatch {
        pid_t pid;            /* on this machine */
        uint64_t start_ticks; /* field 22 of its stat; 0 when it cannot be read */
} PidsMatch;

/** Searches only the ancestors of the hook that have its user and its pid namespace. The failing
 * process runs its hook itself. Takes a few reads.
 * @param q  ns_inode is not used
 * @return 0 and *ret; PIDS_E_HIDDEN; PIDS_E_NOT_FOUND; -errno */
int pids_resolve_ancestor(const PidsQuery *q, PidsMatch *ret);

/** Searches the ancestors, and then all processes of the same user and pid namespace. Reads all of
 * /proc: not for the loop. Seeing the namespace of others takes CAP_SYS_PTRACE, or the same user.
 * ns_inode counts only if the kernel reports the same of hook_pid; where that is hidden, only an
 * ancestor is found. */
int pids_resolve(const PidsQuery *q, PidsMatch *ret);

/** Finds the container that a process is in, by its cgroup.
 * @param ret  "" when it is in none, or its cgroup cannot be read
 * @return whether its cgroup could be read */
bool pids_container(const char *proc_root, pid_t pid, char ret[PIDS_CONTAINER_SIZE]);
/** The same from the text of a cgroup file. Pure. */
bool pids_container_of(const char *cgroup, char ret[PIDS_CONTAINER_SIZE]);
