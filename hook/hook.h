/* neuron-dump: run by the Neuron runtime when an execution has failed, as a child of the process
 * that failed. It sends a note to the agent first, writes the record while the agent works, and
 * waits for its snapshot no longer than allowed. When no agent accepts the note, it goes to the
 * mailbox; when no snapshot comes in time, the hook reads sysfs itself. Whatever fails, it exits
 * with 0 and in time, since the end of the job must not wait; only wrong arguments, which the
 * runtime never gives, exit with 2. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "lib/neuron/note.h"

/** What main() does: main.c has nothing else, so that tests can link the rest.
 * @return the exit code */
int hook_main(int argc, char **argv);

/* What follows is exported for the tests. */

/* ---- a child for what may hang: it is waited for until a moment, then killed and left behind
 * ---- */

typedef struct TimedChild {
        pid_t pid; /* 0: there is no child */
        int fd;    /* says the result; -1 */
        int result;
} TimedChild;

#define TIMED_CHILD_NONE ((TimedChild){ .fd = -1 })

/** Forks; the caller has one thread. The child dies with its caller. @param run  in the child: 0 or
 * -errno; what it opened it has closed */
void child_timeout_start(TimedChild *b, int (*run)(void *userdata), void *userdata);

/** @param until_usec  CLOCK_BOOTTIME
 * @return what run() returned; -ETIMEDOUT: killed, perhaps still there; -EPIPE: it crashed; -errno:
 * there can be no child (RLIMIT_NPROC, pids.max). Again: the same */
int child_timeout_wait(TimedChild *b, uint64_t until_usec);

/* ---- the conversation with the agent: packets of a SOCK_SEQPACKET socket; docs/API.md has the
 * words. Nothing here blocks ---- */

typedef enum AgentReplyKind {
        AGENT_REPLY_NONE, /* no packet is there */
        AGENT_REPLY_ACCEPTED,
        AGENT_REPLY_REFUSED,
        AGENT_REPLY_SNAPSHOT,
        AGENT_REPLY_NO_SNAPSHOT,
        AGENT_REPLY_INVALID,
        AGENT_REPLY_CLOSED,
} AgentReplyKind;

#define AGENT_REPLY_TEXT_SIZE 256
#define AGENT_WAIT_MAX_USEC (600 * UINT64_C(1000000)) /* whatever the agent says */

typedef struct AgentReply {
        AgentReplyKind kind;
        uint64_t wait_usec; /* AGENT_REPLY_ACCEPTED: how long the hook may still wait */
        char text[AGENT_REPLY_TEXT_SIZE]; /* a sentence of refusal, cut; "" */
} AgentReply;

/** Reads the text of a packet. Pure. @param n  bytes, which may be anything */
void agent_client_parse(const char *text, size_t n, AgentReply *ret);

/** Says that the files are in place that were promised, but for those that there will never be. */
void agent_client_finish(int fd, bool has_record, bool has_snapshot);

/* ---- the hook's files beside the dump ---- */

/** Writes the record: the note, and `packages`: versions by `driver` and `dpkg`, and what `files`
 * are there by their names. @param note_text  as hook_note_format() made it
 * @param root  of this machine's files, "/"; for tests another  @return 0, -EEXIST, -errno */
int record_write(const HookNote *n, const char *note_text, size_t n_text, const char *root);

/* ---- a file that appears complete or not at all, whenever we are killed ---- */

/* Not fsynced: the job comes first, and the agent makes its own copy durable. */

/** Creates the directory and those above it, with the caller's umask. @return an O_PATH fd of the
 * caller's, -errno */
int write_file_open_directory(const char *path);

/** @param mode  the umask is taken off  @return 0; -EEXIST: something is there, and stays; -errno
 */
int write_file(int dir_fd, const char *name, mode_t mode, const char *text, size_t n);
