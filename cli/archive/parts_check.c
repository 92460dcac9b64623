#include "cli/archive/parts_check.h"

#include <string.h>
#include <strings.h>

#include "cli/cli.h"

static void begin(PartsCheck *c) {
        c->part_bytes = cli_number(json_array_get(c->parts, c->part), "bytes");
        c->part_offset = c->offset;
        sha256_init(&c->hash);
}

void parts_check_init(PartsCheck *c, const json_t *manifest) {
        *c = (PartsCheck){ .parts = json_object_get(json_object_get(manifest, "bundle"), "parts") };
        begin(c);
}

bool parts_check_is_complete(const PartsCheck *c) {
        return c->part == json_array_size(c->parts);
}

static bool is_as_listed(const PartsCheck *c) {
        uint8_t digest[SHA256_SIZE];
        char hex[SHA256_HEX_SIZE];
        Sha256 hash = c->hash;
        sha256_final(&hash, digest);
        return strcasecmp(digest_hex(digest, sizeof digest, hex),
                          cli_text(json_array_get(c->parts, c->part), "sha256")) == 0;
}

int parts_check_feed(PartsCheck *c, const void *data, size_t n) {
        const char *from = data;
        while (n > 0) {
                if (parts_check_is_complete(c))
                        return PARTS_E_LONG;
                size_t now = (size_t)MIN((uint64_t)n, c->part_offset + c->part_bytes - c->offset);
                sha256_update(&c->hash, from, now);
                from += now;
                n -= now;
                c->offset += now;
                if (c->offset < c->part_offset + c->part_bytes)
                        continue;
                if (!is_as_listed(c))
                        return PARTS_E_BAD;
                c->part++;
                begin(c);
        }
        return 0;
}

void parts_check_again(PartsCheck *c) {
        c->offset = c->part_offset;
        sha256_init(&c->hash);
}
