/* What a call keeps of its order: copies, and the body's digest. */
#include <errno.h>
#include <string.h>

#include "uploaders/s3/s3_client_private.h"

#define LIST_MAX_BYTES (16 * MIB)
#define REPLY_MAX_BYTES (1 * MIB)

static SignPair *copy_pairs(const SignPair *from, size_t n) {
        SignPair *to = calloc(n + 1, sizeof *to);

        for (size_t i = 0; to && i < n; i++) {
                to[i].name = strdup(from[i].name);
                to[i].value = strdup(from[i].value ? from[i].value : "");
        }
        return to;
}

static bool are_whole(const SignPair *pairs, size_t n) {
        for (size_t i = 0; pairs && i < n; i++)
                if (!pairs[i].name || !pairs[i].value)
                        return false;
        return pairs != NULL;
}

static void free_pairs(const SignPair *pairs, size_t n) {
        for (size_t i = 0; pairs && i < n; i++) {
                free((char *)pairs[i].name);
                free((char *)pairs[i].value);
        }
        free((SignPair *)pairs);
}

int s3_call_copy_order(S3Call *call, const S3Order *order) {
        S3Order *o = &call->order;
        uint8_t digest[SHA256_SIZE];

        *o = *order;
        o->key = strdup(order->key ? order->key : "");
        o->queries = copy_pairs(order->queries, order->n_queries);
        o->headers = copy_pairs(order->headers, order->n_headers);
        if (!o->key || !are_whole(o->queries, o->n_queries) || !are_whole(o->headers, o->n_headers))
                return -ENOMEM;
        if (!order->body_sha256)
                sha256_of(order->body ? order->body : "", order->body_bytes, digest);
        else
                memcpy(digest, order->body_sha256, sizeof digest);
        o->body_sha256 = NULL; /* the caller's; its text is kept */
        (void)digest_hex(digest, sizeof digest, call->payload_hex);
        (void)digest_base64(digest, sizeof digest, call->checksum);
        return 0;
}

size_t s3_call_reply_max_bytes(const S3Call *call) {
        const S3Order *o = &call->order;
        bool is_list = o->operation == S3_LIST_PARTS || o->operation == S3_LIST_UPLOADS ||
                       o->operation == S3_LIST_OBJECTS;

        return o->reply_max_bytes ? o->reply_max_bytes : is_list ? LIST_MAX_BYTES : REPLY_MAX_BYTES;
}

void s3_call_free_order(S3Call *call) {
        free((char *)call->order.key);
        free_pairs(call->order.queries, call->order.n_queries);
        free_pairs(call->order.headers, call->order.n_headers);
}
