/* Keeps the page cache as it was while a file is read once from its beginning: asks the kernel
 * which pages are cached (mincore(2)), has the next ones read ahead, and releases behind the reader
 * those that it brought. All of it is advice, so nothing here fails. Reading is left to the caller.
 */
#include "lib/bundle/page_cache.h"

#include <fcntl.h>
#include <stdbool.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "lib/base/cleanup.h"

/* A multiple of large folios, which are released whole or not at all. */
#define KEEP_BYTES (4 * MIB)
#define AHEAD_BYTES (4 * MIB)
/* The kernel cuts a longer request where a device reads ahead as little. */
#define STEP_BYTES (128 * KIB)

/* Of a page and those behind it, as mincore(2) has them: 0 or 1. */
static uint8_t *state_of(PageCache *c, uint64_t at) {
        return &c->stays[at % PAGE_CACHE_SPAN_BYTES / c->page_bytes];
}

/* One step. */
static bool query(const PageCache *c, uint64_t at, uint8_t *ret) {
        return c->map && mincore(c->map + at, STEP_BYTES, ret) == 0;
}

void page_cache_open(PageCache *c, int fd, uint64_t bytes) {
        uint8_t beyond[STEP_BYTES / 4096] = { 0 };
        *c = (PageCache){ .fd = fd, .page_bytes = (size_t)sysconf(_SC_PAGESIZE) };
        if (bytes == 0 || bytes > SIZE_MAX / 2)
                return;
        /* With a step that the file has not: to a process that may not know (mincore(2): no owner,
         * no CAP_FOWNER, no right to write) the kernel says that every page is cached. */
        c->n_map = (size_t)((bytes + STEP_BYTES - 1) / STEP_BYTES * STEP_BYTES + STEP_BYTES);
        c->map = mmap(NULL, c->n_map, PROT_NONE, MAP_PRIVATE, fd, 0);
        if (c->map == MAP_FAILED)
                c->map = NULL;
        else if (query(c, c->n_map - STEP_BYTES, beyond) && beyond[0]) {
                (void)munmap(c->map, c->n_map);
                c->map = NULL;
        }
}

static void release_up_to(PageCache *c, uint64_t end) {
        for (uint64_t at = c->released, next; at < end; at = next) {
                const bool stays = *state_of(c, at);
                for (next = at; next < end && *state_of(c, next) == stays; next += c->page_bytes)
                        ;
                if (!stays)
                        (void)posix_fadvise(c->fd, (off_t)at, (off_t)(next - at),
                                            POSIX_FADV_DONTNEED);
        }
        c->released = MAX(c->released, end);
}

static void request(const PageCache *c, uint64_t from, uint64_t to) {
        (void)posix_fadvise(c->fd, (off_t)from, (off_t)(to - from), POSIX_FADV_WILLNEED);
}

/* Another reader of the same file may have brought pages, and released them since, many at a time:
 * then they are this one's. What is missing is requested, or the kernel reads ahead by itself: as
 * much as the device says, which may be many MiB. */
static void claim_released(PageCache *c, uint64_t offset, uint64_t end) {
        const size_t n = STEP_BYTES / c->page_bytes;
        bool any = false;
        for (uint64_t at = offset - offset % STEP_BYTES;
             at < c->known && (any || at < offset + PAGE_CACHE_READ_BYTES); at += STEP_BYTES) {
                uint8_t now[STEP_BYTES / 4096], *stays = state_of(c, at);
                if (!query(c, at, now))
                        return;
                if (memchr(now, 0, n) && at < end)
                        request(c, MAX(at, offset), MIN(at + STEP_BYTES, end));
                for (size_t i = 0; i < n; i++) {
                        any = any || now[i] < stays[i];
                        stays[i] &= now[i];
                }
        }
}

/* Where such advice is ignored (Lustre, whose client reads ahead on its own), nothing changes. */
void page_cache_prepare(PageCache *c, uint64_t offset, uint64_t end) {
        const uint64_t first = offset - offset % STEP_BYTES;
        end = MIN(end, offset + AHEAD_BYTES);
        claim_released(c, offset, end);
        if (offset >= c->released + KEEP_BYTES)
                release_up_to(c, MIN(offset - offset % KEEP_BYTES, c->known));
        if (first > c->released + 2 * KEEP_BYTES) /* a long hole */
                c->released = c->known = first;
        if (c->known > offset + AHEAD_BYTES / 2)
                return;
        for (; c->known < end; c->known += STEP_BYTES) {
                uint8_t *stays = state_of(c, c->known);
                const bool is_hole = c->known < first; /* nothing is read there */
                if (is_hole || !query(c, c->known, stays))
                        memset(stays, is_hole, STEP_BYTES / c->page_bytes);
                if (!is_hole)
                        request(c, MAX(c->known, offset), MIN(c->known + STEP_BYTES, end));
        }
}

void page_cache_close(PageCache *c) {
        if (c->page_bytes > 0)
                release_up_to(c, c->known);
        if (c->map)
                (void)munmap(c->map, c->n_map);
        *c = (PageCache){ .fd = -1 };
}
