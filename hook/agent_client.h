/* The conversation with the agent: packets of a SOCK_SEQPACKET socket. docs/API.md has the words.
 * Nothing here blocks. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

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

/** Connects and sends the note. @param until_usec  CLOCK_BOOTTIME: a full queue is tried again
 * until then
 * @return an fd of the caller's, -errno: nobody is there, or has time */
int agent_client_open(const char *path, const char *note, size_t n, uint64_t until_usec);

/** Takes a packet when one is there. @param ret_fd  of AGENT_REPLY_SNAPSHOT: a sealed memfd, the
 * caller's; else -1 */
void agent_client_receive(int fd, AgentReply *ret, int *ret_fd);

/** Says that the files are in place that were promised, but for those that there will never be. */
void agent_client_finish(int fd, bool has_record, bool has_snapshot);
