/* The request to a supervisor. The agent writes it; the supervisor reads it, adds what it has found
 * out, and writes it again for its children, which read it once more. A collector gets only the
 * CollectRequest in it. */
#pragma once

#include <stddef.h>

#include "collectors/runner/collector.h"

#define PROBE_REQUEST_MAX_BYTES (4 * 1024 * 1024)
#define PROBE_REQUEST_NAME_MAX 64 /* of a collector, of an incident */
#define PROBE_REQUEST_COLLECTORS_MAX 64
#define PROBE_REQUEST_COMMANDS_MAX 32
#define PROBE_REQUEST_ARGUMENTS_MAX 64
#define PROBE_REQUEST_PATTERNS_MAX 1024
#define PROBE_REQUEST_PATH_MAX 4096

typedef enum ProbeMode {
        PROBE_SNAPSHOT, /* runs each collector once, for snapshot.json (or `document`) */
        PROBE_AFTER,   /* the same, and what has changed since the snapshot before in this directory
                        */
        PROBE_WATCH,   /* reports until the agent ends: the kernel log, and `jobs` every interval */
        PROBE_SALVAGE, /* a document of what an earlier supervisor has left behind when it was
                          killed */
        PROBE_ROOTS,   /* `roots`: of processes of a container, each a message with a descriptor */
} ProbeMode;

/** A process as the hook knows it: its number counts in the hook's pid namespace, which is that of
 * hook_pid. */
typedef struct ProbePidQuery {
        pid_t hook_pid;    /* on this machine */
        pid_t inner_pid;   /* in the namespace of the hook */
        uint64_t ns_inode; /* of that namespace, as the hook reports; 0 = not known */
} ProbePidQuery;

typedef struct ProbeRequest {
        CollectRequest collect;
        ProbeMode mode;
        char **collectors; /* names, NULL-terminated; NULL: all of the table */
        char *document;    /* file name; NULL = snapshot.json, or snapshot-after.json */
        char *name;        /* of the incident; may be NULL */
        char *trigger;     /* a sentence: what caused the snapshot; may be NULL */
        char *instance_id; /* may be NULL */
        ProbePidQuery *questions;
        size_t n_questions;
        uint64_t interval_usec; /* of PROBE_WATCH */
        char *cgroup;           /* of PROBE_ROOTS: roots_add_container() */
} ProbeRequest;

void probe_request_done(ProbeRequest *o);
/** Removes all commands. */
void probe_request_clear_commands(ProbeRequest *o);

/** Writes a request as JSON. @return 0, -ENOMEM */
int probe_request_format(const ProbeRequest *o, StrBuf *ret);

/** Reads a request. *ret is set on success only, and is the caller's.
 * @param ret_why  static: the fault  @return 0, -EINVAL, -EFBIG, -ENOMEM */
int probe_request_parse(const void *data, size_t n, ProbeRequest *ret, const char **ret_why);

/** Reads a request from a memfd of a caller, who is not trusted. As probe_request_parse(); also
 * -EBADF: it is no file, -errno */
int probe_request_read(int fd, ProbeRequest *ret, const char **ret_why);

/** @return a sealed memfd that has the request, the caller's; -errno */
int probe_request_to_memfd(const ProbeRequest *o);
/** @return a sealed memfd of the caller's with these bytes, -errno */
int probe_request_memfd(const void *data, size_t n);
/** Reads all of a memfd or file, whatever its offset. @return 0, -EFBIG, -errno */
int probe_request_read_fd(int fd, size_t max_bytes, char **ret, size_t *ret_n);

/** Connects to the collector host. @return a connection that does not block, the caller's; -ENOENT:
 * no process listens; -errno */
int probe_request_connect(const char *path);
/** Sends a request. @param dir_fd  where the supervisor writes, borrowed; -1: it has no directory
 * @return 0, -EFBIG, -errno */
int probe_request_send(const ProbeRequest *o, int fd, int dir_fd);
