/* A message of the bus. The input is the body behind the head, which is made and signed here, since
 * no fuzzer finds a signature: what is tested is the parser behind it. Beyond not crashing: what
 * was accepted can be written again, and is then read as the same. The input as it is, unsigned, is
 * never accepted. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "agent/peers/wire.h"
#include "lib/base/digest.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

#define HEAD_SIZE (4 + 16 + 8 + 8)

static const WireKey key = { .id = "fuzz", .secret = { 42 } };

static void check(bool claim) {
        if (!claim)
                abort();
}

static WireVerdict decode(const uint8_t *data, size_t n, Message *ret) {
        WireReader reader = { .keys = &key, .n_keys = 1, .boot_usec = INT64_C(1) << 40 };
        uint8_t *copy = malloc(n > 0 ? n : 1); /* of its own size: a sanitizer sees its end */
        check(copy != NULL);
        memcpy(copy, data, n);
        WireVerdict v = wire_decode(copy, n, &reader, ret);
        free(copy);
        return v;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n) {
        static Message first, second;
        static uint8_t bytes[2 * WIRE_BYTES_MAX];
        if (n > WIRE_BYTES_MAX)
                return 0;
        check(decode(data, n, &first) != WIRE_OK);
        memset(bytes, 0, HEAD_SIZE);
        memcpy(bytes, "NCB\1fuzz", 8);
        if (n > 0)
                memcpy(bytes + HEAD_SIZE, data, n);
        hmac_sha256(key.secret, sizeof key.secret, bytes, HEAD_SIZE + n, bytes + HEAD_SIZE + n);
        WireVerdict v = decode(bytes, HEAD_SIZE + n + SHA256_SIZE, &first);
        check(v == WIRE_OK || v == WIRE_MALFORMED || v == WIRE_FOREIGN);
        if (v != WIRE_OK)
                return 0;
        WireStamp stamp = { .key = &key, .sender = first.sender, .boot_usec = INT64_C(1) << 40 };
        size_t n_again;
        check(wire_encode(&first, &stamp, bytes, &n_again) == 0);
        check(decode(bytes, n_again, &second) == WIRE_OK);
        check(memcmp(&first, &second, sizeof first) == 0);
        return 0;
}
