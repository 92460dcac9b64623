/* The page cache of a file that is read once from its beginning. What comes next is prefetched.
 * After reading, pages that this reader brought are released, and pages that were cached before
 * stay: a dump of any size takes nothing from the caches of others, nor from those of the job that
 * wrote it. All of it is advice, and nothing fails. */
#pragma once

#include <stddef.h>
#include <stdint.h>

#define PAGE_CACHE_READ_BYTES ((size_t)256 << 10)
#define PAGE_CACHE_SPAN_BYTES ((size_t)16 << 20)

typedef struct PageCache {
        int fd; /* borrowed */
        /* Never touched, only queried by mincore(2). NULL: what is cached cannot be known, and
         * everything is released. */
        uint8_t *map;
        size_t n_map, page_bytes;
        uint64_t released; /* pages before this offset were released, unless they stay */
        uint64_t known;    /* pages before this offset were queried, and then requested */
        uint8_t stays[PAGE_CACHE_SPAN_BYTES / 4096]; /* whether a page does; modulo the span */
} PageCache;

/** @param fd  borrowed until page_cache_close()  @param bytes  the file's size */
void page_cache_open(PageCache *c, int fd, uint64_t bytes);

/** To be called before each read of at most PAGE_CACHE_READ_BYTES.
 * @param offset  of the read, not below that of the one before
 * @param end     data will be read up to here without a gap */
void page_cache_prepare(PageCache *c, uint64_t offset, uint64_t end);

/** All was read, or no more will be. Does nothing when it is closed or zero. */
void page_cache_close(PageCache *c);
