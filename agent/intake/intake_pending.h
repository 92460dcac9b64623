/* Paths that wait to be looked at: first in, first out, each once, and not more than PENDING_MAX. */
#pragma once

#include <stdbool.h>
#include <stddef.h>

#include "lib/base/list.h"

#define PENDING_MAX 10000

typedef struct Pending {
        ListLink all;
        void *by_path; /* tsearch(3) */
        size_t n;
} Pending;

void pending_init(Pending *p);
/** Adds a copy; nothing when it is there. @return 0, -ENOMEM, -E2BIG (everything was dropped: scan instead) */
int pending_add(Pending *p, const char *path);
/** Takes the oldest out. @return the caller's, never NULL when not empty */
char *pending_take(Pending *p);
bool pending_has(const Pending *p, const char *path);
bool pending_is_empty(const Pending *p);
void pending_done(Pending *p);
