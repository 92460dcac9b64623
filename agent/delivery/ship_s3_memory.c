/* How many parts of a bundle may be in memory at once. */
#include <errno.h>

#include "agent/delivery/ship_s3_private.h"
#include "lib/base/parse.h"

unsigned ship_s3_buffers(const ShipS3Memory *m, uint64_t *ret_writer_bytes) {
        uint64_t least = bundle_writer_memory_min(m->level),
                 best = bundle_writer_memory_best(m->level, m->n_compressors);
        /* a context and a slot for each further thread: bundle_writer_memory_best(n) is n contexts and 2n + 2 slots */
        uint64_t slot = (bundle_writer_memory_best(m->level, 1) - least) / 2;
        uint64_t lean = least + (m->n_compressors - 1) * (least - slot);
        for (unsigned n = m->connections + 1; n >= 2; n--) {
                uint64_t parts = n * m->part_bytes, wanted = n > 2 ? lean : least;
                if (parts + wanted > m->bytes)
                        continue;
                *ret_writer_bytes = MIN(best, m->bytes - parts);
                return n;
        }
        return 0;
}

uint64_t ship_s3_memory_min(uint64_t part_bytes, int level) {
        return 2 * part_bytes + bundle_writer_memory_min(level);
}

bool ship_s3_find_memory(ShipS3 *x) {
        ShipJob *s = &x->ship;
        uint64_t limit = 0;
        char need[PARSE_FORMAT_SIZE], have[PARSE_FORMAT_SIZE];
        ShipS3Memory m = { .bytes = s->memory_bytes,
                           .part_bytes = packer_part_bytes_max(x->order.part_size, 0,
                                                               plan_stream_bytes(x->attempt.plan)),
                           .connections = x->order.connections,
                           .level = s->level,
                           .n_compressors = x->order.n_compressors };
        uint64_t least = ship_s3_memory_min(m.part_bytes, s->level);
        int r = m.bytes < least ? x->order.reserve(s, least, &limit) : 0;
        parse_format_human(need, least);
        parse_format_human(have, limit);
        if (r == -EAGAIN)
                return ship_endf(s, SHIP_RESOURCES,
                                 "its parts need %s of memory, which others have now", need);
        if (r < 0)
                return ship_endf(s, SHIP_RESOURCES,
                                 "its parts need %s of memory and limits.memory_max allows %s; set "
                                 "limits.memory_max to at least %llu",
                                 need, have, (unsigned long long)least);
        m.bytes = s->memory_bytes;
        x->n_buffers = ship_s3_buffers(&m, &x->writer_bytes);
        return true;
}
