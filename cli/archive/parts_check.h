/* Holds an object's bytes, as they come in order, against the parts that its manifest lists. Pure. */
#pragma once

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

#include "lib/base/digest.h"

typedef struct PartsCheck {
        const json_t *parts;  /* of a manifest that manifest_read() has seen; borrowed */
        size_t part;          /* the one that comes, n when there is none */
        uint64_t part_offset; /* where it begins in the object */
        uint64_t part_bytes;
        uint64_t offset; /* of the next byte */
        Sha256 hash;     /* over what came of the part */
} PartsCheck;

void parts_check_init(PartsCheck *c, const json_t *manifest);
/** @return 0; PARTS_E_BAD: the part that ended with these bytes is another (it is the current one still: parts_check_again()); PARTS_E_LONG: there
 * are more bytes than parts */
enum { PARTS_E_BAD = 1, PARTS_E_LONG = 2 };
int parts_check_feed(PartsCheck *c, const void *data, size_t n);
/** The current part comes again from its beginning. */
void parts_check_again(PartsCheck *c);
bool parts_check_is_complete(const PartsCheck *c);
