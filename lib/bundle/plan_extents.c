/* Knows the file system's answers and distrusts them; knows nothing of tar. */
#include "lib/bundle/plan_extents.h"

#include <errno.h>
#include <unistd.h>

typedef struct ExtentMap {
        PlanExtent *items;
        uint32_t n, n_allocated, max;
        uint64_t size_bytes;
} ExtentMap;

static uint64_t map_end(const ExtentMap *map) {
        return map->n == 0 ? 0 : map->items[map->n - 1].offset + map->items[map->n - 1].bytes;
}

static int map_add(ExtentMap *map, uint64_t offset, uint64_t end) {
        if (map->n == map->n_allocated) {
                uint32_t n = MAX(8u, map->n_allocated * 2);
                PlanExtent *items = realloc(map->items, n * sizeof *items);
                if (!items)
                        return -ENOMEM;
                map->items = items;
                map->n_allocated = n;
        }
        map->items[map->n++] = (PlanExtent){ .offset = offset, .bytes = end - offset };
        return 0;
}

/* Adds data in [offset, end), widened, and with the hole before it when that is small. */
static int map_data(ExtentMap *map, uint64_t offset, uint64_t end) {
        offset -= offset % PLAN_EXTENT_ALIGN;
        if (end < map->size_bytes)
                end += (PLAN_EXTENT_ALIGN - end % PLAN_EXTENT_ALIGN) % PLAN_EXTENT_ALIGN;
        end = MIN(end, map->size_bytes);
        if (map->size_bytes - end < PLAN_HOLE_MIN)
                end = map->size_bytes;

        uint64_t last = map_end(map);
        if (offset >= last + PLAN_HOLE_MIN && map->n < map->max)
                return map_add(map, offset, end);
        if (map->n == 0)
                return map_add(map, 0, end);
        if (end > last)
                map->items[map->n - 1].bytes += end - last;
        return 0;
}

/* One step: the next data at or after *offset, which moves behind it. Any odd answer makes the rest data. */
static int map_step(ExtentMap *map, int fd, uint64_t *offset) {
        off_t data = lseek(fd, (off_t)*offset, SEEK_DATA);
        if (data < 0 && errno == ENXIO) { /* a hole up to the end */
                *offset = map->size_bytes;
                return 0;
        }
        if (data < 0 || (uint64_t)data < *offset)
                data = (off_t)*offset;
        if ((uint64_t)data >= map->size_bytes) { /* it has grown: the plan says how far we look */
                *offset = map->size_bytes;
                return 0;
        }
        off_t hole = map->n == map->max ? -1 : lseek(fd, data, SEEK_HOLE);
        uint64_t end = hole <= data ? map->size_bytes : MIN((uint64_t)hole, map->size_bytes);
        *offset = end;
        return map_data(map, (uint64_t)data, end);
}

int plan_extents_map(int fd, uint64_t size_bytes, uint32_t max, PlanExtents *ret) {
        ExtentMap map = { .max = max, .size_bytes = size_bytes };
        int r = 0;

        *ret = (PlanExtents){ 0 };
        if (size_bytes < PLAN_HOLE_MIN || max == 0)
                return 0;
        for (uint64_t offset = 0; r == 0 && offset < size_bytes;)
                r = map_step(&map, fd, &offset);

        bool is_dense = map.n == 1 && map.items[0].offset == 0 && map.items[0].bytes == size_bytes;
        if (r < 0 || is_dense) {
                free(map.items);
                return r;
        }
        if (map.n > 0) { /* give back what growing took too much */
                PlanExtent *exact = realloc(map.items, map.n * sizeof *exact);
                ret->items = exact ? exact : map.items;
        }
        ret->n = map.n;
        ret->is_sparse = true;
        return 0;
}
