/* The page cache of a file that is read once, from its beginning: what comes next is asked for, what was read is given back, so that
 * a dump of any size leaves the caches of others alone. All of it is advice, and nothing fails. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

typedef struct Pages {
        int fd;           /* borrowed */
        bool wants_ahead; /* else the file is so small that the first readahead brings it */
        uint64_t given;   /* pages before this offset were given back */
        uint64_t asked;   /* pages before this offset were asked for */
} Pages;

/** Asks for what comes next, from an offset up to the end of the data that lies there in one piece. */
void pages_ask(Pages *p, uint64_t offset, uint64_t end);

/** The file was read up to an offset: whole pieces of a few MiB before it are given back. */
void pages_read_up_to(Pages *p, uint64_t offset);

/** Gives back all before an offset. */
void pages_give_back(Pages *p, uint64_t offset);
