/* The bytes of a message, docs/PEER-PROTOCOL.md: signed, bounded, strict. Pure. */
#pragma once

#include "agent/peers/message.h"

#define WIRE_BYTES_MAX ((size_t)16 * 1024)
#define WIRE_KEY_ID_SIZE 17 /* 1 to 16 of `[0-9A-Za-z._-]` and NUL */
#define WIRE_SECRET_SIZE 32
#define WIRE_NAME_LETTERS "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz._-"
#define WIRE_CLOCK_USEC (INT64_C(10) * 60 * 1000000) /* how far clocks may differ */

typedef struct WireKey {
        char id[WIRE_KEY_ID_SIZE]; /* padded with zeros; "": so is the secret, without a key file */
        uint8_t secret[WIRE_SECRET_SIZE];
} WireKey;

typedef struct WireStamp { /* what is the sender's */
        const WireKey *key;
        const char *sender; /* its instance id; Message.sender is not looked at */
        uint64_t sequence;
        int64_t boot_usec, real_usec; /* now; CLOCK_BOOTTIME and CLOCK_REALTIME */
} WireStamp;

/** @param ret  the bytes  @return 0; -EINVAL: a value that no reader would accept */
int wire_encode(const Message *m, const WireStamp *stamp, uint8_t ret[static WIRE_BYTES_MAX],
                size_t *ret_n);

typedef enum WireVerdict {
        WIRE_OK,
        WIRE_FOREIGN,     /* no message of this version */
        WIRE_UNKNOWN_KEY, /* signed with a key that is not in the file */
        WIRE_FORGED,      /* the signature does not fit */
        WIRE_STALE,       /* older or newer than WIRE_CLOCK_USEC */
        WIRE_MALFORMED,   /* signed, but not as documented: a peer of ours has a bug */
        N_WIRE_VERDICTS,
} WireVerdict;

typedef struct WireReader { /* what is the receiver's */
        const WireKey *keys;
        size_t n_keys;
        int64_t boot_usec, real_usec;
} WireReader;

/** @param ret  only of WIRE_OK; else it may have been written to */
WireVerdict wire_decode(const uint8_t *data, size_t n, const WireReader *reader, Message *ret);
