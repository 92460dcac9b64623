/* What agents say to each other on the bus: one key a message. Plain data; wire.h has its bytes. */
#pragma once

#include "agent/peers/claim.h"

/* So many claims fit in 16 KiB whatever their texts are, with a decision and all that was heard. */
#define MESSAGE_CLAIMS_MAX 20
#define MESSAGE_HEARD_MAX 512

typedef enum MessageKind {
        MESSAGE_CLAIMS,    /* of a leaf: its own claims */
        MESSAGE_NEWS,      /* of the centre: a decision with its newest claim, and whom it heard */
        MESSAGE_HEARTBEAT, /* of the bus itself: without key and content, not handed out */
        N_MESSAGE_KINDS,
} MessageKind;

/* What the centre has of a node now: the sum of the revisions of its claims. */
typedef struct Heard {
        uint64_t node; /* first 8 bytes of SHA-256 over its instance id */
        uint64_t revisions;
} Heard;

typedef struct Message {
        MessageKind kind;
        char sender[INSTANCE_ID_SIZE];
        uint64_t sequence; /* of the sender; these two are the bus's, and not of who sends */
        char key[CLAIM_KEY_SIZE];
        Claim claims[MESSAGE_CLAIMS_MAX]; /* times: the boot clock of this node, on both sides */
        size_t n_claims;
        bool has_decision;
        Decision decision;
        Heard heard[MESSAGE_HEARD_MAX];
        size_t n_heard;
} Message;
