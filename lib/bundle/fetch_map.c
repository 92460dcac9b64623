/* Reads backwards: pax records and the headers of other members may lie before the one block that counts, and what it is followed
 * by, data or map, tells whether the member is sparse.
 * @see GNU tar's manual, «PAX Format, Version 1.0»: the map is decimal numbers, a line each, their count first, padded to a block */
#include "lib/bundle/fetch_map.h"

#include <ctype.h>
#include <errno.h>
#include <stdbool.h>
#include <string.h>

/* What libarchive adds behind the last extent to say where the file ends. */
#define EXTENTS_READ_MAX (PLAN_EXTENTS_MAX + 2)

/* Offsets in a ustar header (POSIX pax, «ustar Interchange Format»). */
#define CHECKSUM_OFFSET 148
#define CHECKSUM_BYTES 8
#define TYPE_OFFSET 156
#define MAGIC_OFFSET 257

static bool is_file_header(const uint8_t *block) {
        unsigned sum = 0, told = 0;

        if (memcmp(block + MAGIC_OFFSET, "ustar", 5) != 0 ||
            (block[TYPE_OFFSET] != '0' && block[TYPE_OFFSET] != '\0'))
                return false;
        for (size_t i = 0; i < PLAN_TAR_BLOCK; i++)
                sum += i - CHECKSUM_OFFSET < CHECKSUM_BYTES ? ' ' : block[i];
        for (size_t i = 0; i < CHECKSUM_BYTES && block[CHECKSUM_OFFSET + i] >= '0' &&
                           block[CHECKSUM_OFFSET + i] <= '7';
             i++)
                told = told * 8 + block[CHECKSUM_OFFSET + i] - '0';
        return sum == told;
}

typedef struct Text {
        const uint8_t *at, *end;
} Text;

/* One number and the end of its line. @return whether there was one */
static bool number_take(Text *t, uint64_t *ret) {
        const uint8_t *begin = t->at;
        uint64_t value = 0;

        for (; t->at < t->end && isdigit(*t->at); t->at++)
                if (__builtin_mul_overflow(value, 10, &value) ||
                    __builtin_add_overflow(value, (uint64_t)(*t->at - '0'), &value))
                        return false;
        if (t->at == begin || t->at == t->end || *t->at != '\n')
                return false;
        t->at++;
        *ret = value;
        return true;
}

static int map_parse(FetchMap *m, Text t, uint64_t bytes) {
        uint64_t n, before = 0;

        if (!number_take(&t, &n) || n > EXTENTS_READ_MAX)
                return -EBADMSG;
        m->extents = calloc(MAX(n, UINT64_C(1)), sizeof *m->extents);
        if (!m->extents)
                return -ENOMEM;
        for (; m->n_extents < n; m->n_extents++) {
                PlanExtent *e = &m->extents[m->n_extents];
                if (!number_take(&t, &e->offset) || !number_take(&t, &e->bytes) ||
                    e->offset < before || e->offset > bytes || e->bytes > bytes - e->offset)
                        return -EBADMSG;
                before = e->offset + e->bytes;
                m->stored_bytes += e->bytes;
        }
        return 0;
}

int fetch_map_dense(FetchMap *ret, uint64_t bytes) {
        PlanExtent *whole = malloc(sizeof *whole);
        if (!whole)
                return -ENOMEM;
        *whole = (PlanExtent){ .offset = 0, .bytes = bytes };
        *ret = (FetchMap){ .extents = whole, .n_extents = 1, .stored_bytes = bytes };
        return 0;
}

int fetch_map_read(FetchMap *ret, const uint8_t *data, size_t n, uint64_t bytes) {
        size_t end = n - n % PLAN_TAR_BLOCK; /* of the header */
        FetchMap map = { 0 };

        while (end > 0 && !is_file_header(data + end - PLAN_TAR_BLOCK))
                end -= PLAN_TAR_BLOCK;
        if (end == 0)
                return -EBADMSG;
        if (end == n)
                return fetch_map_dense(ret, bytes);
        int r = map_parse(&map, (Text){ data + end, data + n }, bytes);
        if (r < 0) {
                fetch_map_done(&map);
                return r;
        }
        *ret = map;
        return 0;
}

void fetch_map_done(FetchMap *m) {
        free(m->extents);
        *m = (FetchMap){ 0 };
}
