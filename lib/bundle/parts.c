/* The rule of parts: when a run of frames is long enough to be one, so that there are never too
 * many of them however long the stream turns out to be. Pure; the bytes themselves are the
 * packer's. */
#include "lib/bundle/parts.h"

#include <errno.h>
#include <stdlib.h>

#include "lib/base/array.h"
#include "lib/base/cleanup.h"

uint64_t parts_limit(uint64_t part_size, size_t k, uint64_t unpacked_bytes) {
        if (k >= PARTS_MAX)
                return UINT64_MAX;
        return MAX(part_size, unpacked_bytes / (PARTS_MAX - k));
}

void parts_init(Parts *p, uint64_t part_size) {
        *p = (Parts){ .part_size = part_size };
        sha256_init(&p->open);
}

static void add_bytes(Parts *p, const void *data, size_t n) {
        sha256_update(&p->open, data, n);
        p->open_bytes += n;
        p->total_bytes += n;
}

int parts_restore(Parts *p, const Part *part) {
        if (array_grow(&p->items, p->n, sizeof *p->items) < 0)
                return -ENOMEM;
        p->items[p->n++] = *part;
        p->open_first_frame += part->n_frames;
        p->total_bytes += part->bytes;
        return 0;
}

static int close_part(Parts *p) {
        if (array_grow(&p->items, p->n, sizeof *p->items) < 0)
                return -ENOMEM;
        Part *part = &p->items[p->n++];
        *part = (Part){ .bytes = p->open_bytes,
                        .first_frame = p->open_first_frame,
                        .n_frames = p->n_open_frames };
        sha256_final(&p->open, part->sha256);
        sha256_init(&p->open);
        p->open_first_frame += p->n_open_frames;
        p->open_bytes = p->n_open_frames = 0;
        return 0;
}

int parts_add_frame(Parts *p, const void *data, size_t n, uint64_t unpacked_bytes,
                    bool *ret_closed) {
        add_bytes(p, data, n);
        p->n_open_frames++;
        *ret_closed = p->open_bytes >= parts_limit(p->part_size, p->n, unpacked_bytes);
        return *ret_closed ? close_part(p) : 0;
}

int parts_finish(Parts *p, const void *tail, size_t n) {
        add_bytes(p, tail, n);
        return p->open_bytes > 0 ? close_part(p) : 0;
}

void parts_done(Parts *p) {
        free(p->items);
        *p = (Parts){ 0 };
}
