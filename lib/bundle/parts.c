/* Where a part ends, and what its digest is. Who sends it, and where its bytes lie, is not known here. */
#include "lib/bundle/parts.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

uint64_t parts_limit(uint64_t part_size, size_t k, uint64_t unpacked_bytes) {
        if (k >= PARTS_MAX)
                return UINT64_MAX;
        return MAX(part_size, unpacked_bytes / (PARTS_MAX - k));
}

void parts_init(Parts *p, uint64_t part_size) {
        *p = (Parts){ .part_size = part_size };
        sha256_init(&p->open);
}

static void take(Parts *p, const void *data, size_t n) {
        sha256_update(&p->open, data, n);
        p->open_bytes += n;
        p->total_bytes += n;
}

static int make_room(Parts *p) {
        if (p->n == p->n_allocated) {
                size_t n = MAX((size_t)16, p->n_allocated * 2);
                Part *items = realloc(p->items, n * sizeof *items);
                if (!items)
                        return -ENOMEM;
                p->items = items;
                p->n_allocated = n;
        }
        return 0;
}

int parts_restore(Parts *p, const Part *part) {
        int r = make_room(p);
        if (r < 0)
                return r;
        p->items[p->n++] = *part;
        p->open_first_frame += part->n_frames;
        p->total_bytes += part->bytes;
        return 0;
}

static int close_part(Parts *p) {
        int r = make_room(p);
        if (r < 0)
                return r;
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
        take(p, data, n);
        p->n_open_frames++;
        *ret_closed = p->open_bytes >= parts_limit(p->part_size, p->n, unpacked_bytes);
        return *ret_closed ? close_part(p) : 0;
}

int parts_finish(Parts *p, const void *tail, size_t n) {
        take(p, tail, n);
        return p->open_bytes > 0 ? close_part(p) : 0;
}

void parts_composite(const Parts *p, uint8_t ret[static SHA256_SIZE]) {
        Sha256 s;

        sha256_init(&s);
        for (size_t i = 0; i < p->n; i++)
                sha256_update(&s, p->items[i].sha256, SHA256_SIZE);
        sha256_final(&s, ret);
}

void parts_done(Parts *p) {
        free(p->items);
        *p = (Parts){ 0 };
}
