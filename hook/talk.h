/* The conversation with the agent: packets of a SOCK_SEQPACKET socket. docs/HOOK.md has the words. Nothing here blocks. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef enum TalkKind {
        TALK_NOTHING, /* no packet is there */
        TALK_ACCEPTED,
        TALK_REFUSED,
        TALK_SNAPSHOT,
        TALK_NO_SNAPSHOT,
        TALK_GARBAGE,
        TALK_CLOSED,
} TalkKind;

#define TALK_TEXT_SIZE 256
#define TALK_WAIT_MAX_USEC (600 * UINT64_C(1000000)) /* whatever the agent says */

typedef struct TalkAnswer {
        TalkKind kind;
        uint64_t wait_usec;        /* TALK_ACCEPTED: how long the hook may still wait */
        char text[TALK_TEXT_SIZE]; /* a sentence of refusal, cut; "" */
} TalkAnswer;

/** Reads the text of a packet. Pure. @param n  bytes, which may be anything */
void talk_parse(const char *text, size_t n, TalkAnswer *ret);

/** Connects and sends the note. @param until_usec  CLOCK_BOOTTIME: a full queue is tried again until then
 * @return an fd of the caller's, -errno: nobody is there, or has time */
int talk_begin(const char *path, const char *note, size_t n, uint64_t until_usec);

/** Takes a packet when one is there. @param ret_fd  of TALK_SNAPSHOT: a sealed memfd, the caller's; else -1 */
void talk_hear(int fd, TalkAnswer *ret, int *ret_fd);

/** Says that the files are in place that were promised, but for those that there will never be. */
void talk_finish(int fd, bool has_record, bool has_snapshot);
