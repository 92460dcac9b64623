/* Owning locals, moved ownership, and the macros that all modules use. */
#pragma once

#include <dirent.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#define KIB UINT64_C(1024)
#define MIB (1024 * KIB)
#define GIB (1024 * MIB)
#define TIB (1024 * GIB)

#define USEC_PER_MSEC UINT64_C(1000)
#define USEC_PER_SEC (1000 * USEC_PER_MSEC)
#define USEC_PER_MINUTE (60 * USEC_PER_SEC)
#define USEC_PER_HOUR (60 * USEC_PER_MINUTE)
#define USEC_PER_DAY (24 * USEC_PER_HOUR)
#define USEC_INFINITY UINT64_MAX
#define NSEC_PER_SEC UINT64_C(1000000000)

#define ELEMENTSOF(x) (sizeof(x) / sizeof((x)[0]))

/* The names differ so that one can be nested in the other without shadowing. */
#define MIN(a, b)                                                                                  \
        ({                                                                                         \
                __typeof__(a) _min_a = (a);                                                        \
                __typeof__(b) _min_b = (b);                                                        \
                _min_a < _min_b ? _min_a : _min_b;                                                 \
        })
#define MAX(a, b)                                                                                  \
        ({                                                                                         \
                __typeof__(a) _max_a = (a);                                                        \
                __typeof__(b) _max_b = (b);                                                        \
                _max_a > _max_b ? _max_a : _max_b;                                                 \
        })

#define _cleanup_(f) __attribute__((cleanup(f)))
#define _printf_(fmt, first) __attribute__((format(printf, fmt, first)))

#define TAKE_PTR(p)                                                                                \
        ({                                                                                         \
                __typeof__(p) _p = (p);                                                            \
                (p) = NULL;                                                                        \
                _p;                                                                                \
        })
#define TAKE_FD(fd)                                                                                \
        ({                                                                                         \
                int _fd = (fd);                                                                    \
                (fd) = -1;                                                                         \
                _fd;                                                                               \
        })

/* Defines static inline void NAMEp(TYPE **p), the cleanup handler for a pointer freed by `free_fn`.
 */
#define DEFINE_CLEANUP(type, free_fn)                                                              \
        static inline void free_fn##p(type **p) {                                                  \
                if (*p)                                                                            \
                        free_fn(*p);                                                               \
        }                                                                                          \
        struct cleanup_needs_a_semicolon

static inline void cleanup_freep(void *p) {
        free(*(void **)p);
}

static inline void cleanup_closep(const int *fd) {
        if (*fd >= 0)
                (void)close(*fd); /* nothing was written through it that we still answer for */
}

DEFINE_CLEANUP(FILE, fclose);
DEFINE_CLEANUP(DIR, closedir);

#define _cleanup_free_ _cleanup_(cleanup_freep)
#define _cleanup_close_ _cleanup_(cleanup_closep)
#define _cleanup_fclose_ _cleanup_(fclosep)
#define _cleanup_closedir_ _cleanup_(closedirp)
