/* Arrays that grow by one item at a time, and lists of strings that end in NULL. */
#pragma once

#include <errno.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

/** For qsort() and bsearch() of arrays of strings. */
static inline int array_compare_strings(const void *a, const void *b) {
        return strcmp(*(char *const *)a, *(char *const *)b);
}

/** Makes space for one more item in an array that grows by this function alone: its space is
 * doubled whenever n is a power of two.
 * @param array  of the variable that points to the items; NULL in it: there are none
 * @return 0, -ENOMEM: nothing has changed */
static inline int array_grow(void *array, size_t n, size_t item_size) {
        void *items;
        if ((n & (n - 1)) != 0)
                return 0;
        memcpy(&items, array, sizeof items);
        items = reallocarray(items, n > 0 ? 2 * n : 1, item_size);
        if (!items)
                return -ENOMEM;
        memcpy(array, &items, sizeof items);
        return 0;
}

static inline uint64_t array_key(const void *item) {
        uint64_t key;
        memcpy(&key, item, sizeof key);
        return key;
}

/** For qsort() of structures that begin with a uint64_t, which is their order. */
static inline int array_compare_keys(const void *a, const void *b) {
        uint64_t x = array_key(a), y = array_key(b);
        return x < y ? -1 : x > y;
}

/** @param items  that begin with a uint64_t, sorted by array_compare_keys()
 * @return how many of them have at most this key: the one before, if any, is the last such */
static inline size_t array_count_up_to(const void *items, size_t n, size_t item_size,
                                       uint64_t key) {
        size_t low = 0, high = n;
        while (low < high) {
                size_t middle = low + (high - low) / 2;
                if (array_key((const char *)items + middle * item_size) <= key)
                        low = middle + 1;
                else
                        high = middle;
        }
        return low;
}

/** @param list  may be NULL */
static inline void strings_free(char **list) {
        for (char **s = list; s && *s; s++)
                free(*s);
        free(list);
}

/** @param list  NULL counts as the empty one  @return the caller's; NULL: no memory */
static inline char **strings_copy(char *const *list) {
        size_t n = 0;
        while (list && list[n])
                n++;
        char **copy = (char **)calloc(n + 1, sizeof *copy);
        for (size_t i = 0; copy && i < n; i++)
                if (!(copy[i] = strdup(list[i]))) {
                        strings_free(copy);
                        return NULL;
                }
        return copy;
}
