/* The directories a DirWatch knows. Deciding which to watch is dirwatch.c's; this keeps them and finds them. */
#include "lib/event/dirwatch_tree.h"

#include <errno.h>
#include <string.h>

#include "lib/base/cleanup.h"

#define BUCKETS_MIN 64

static uint64_t rotate(uint64_t x, unsigned bits) {
        return (x << bits) | (x >> (64 - bits));
}

static void sip_round(uint64_t v[4]) {
        v[0] += v[1];
        v[1] = rotate(v[1], 13) ^ v[0];
        v[0] = rotate(v[0], 32);
        v[2] += v[3];
        v[3] = rotate(v[3], 16) ^ v[2];
        v[0] += v[3];
        v[3] = rotate(v[3], 21) ^ v[0];
        v[2] += v[1];
        v[1] = rotate(v[1], 17) ^ v[2];
        v[2] = rotate(v[2], 32);
}

/* SipHash-1-3 (Aumasson and Bernstein, 2012) over the parent's address and the name. */
static uint64_t name_hash(const WatchTree *t, const WatchNode *parent, const char *name) {
        size_t n = strlen(name);
        uint64_t v[4] = { t->key[0] ^ UINT64_C(0x736f6d6570736575),
                          t->key[1] ^ UINT64_C(0x646f72616e646f6d),
                          t->key[0] ^ UINT64_C(0x6c7967656e657261),
                          t->key[1] ^ UINT64_C(0x7465646279746573) };
        uint64_t word = (uint64_t)(uintptr_t)parent;

        for (size_t i = 0;; i += 8) {
                v[3] ^= word;
                sip_round(v);
                v[0] ^= word;
                if (i > n)
                        break;
                word = 0;
                memcpy(&word, name + i, MIN(n - i, (size_t)8));
                if (n - i < 8)
                        word |= (uint64_t)(n & 0xff) << 56;
        }
        v[2] ^= 0xff;
        for (int i = 0; i < 3; i++)
                sip_round(v);
        return v[0] ^ v[1] ^ v[2] ^ v[3];
}

/* Linear hashing (Litwin, 1980): the tables grow bucket by bucket, so no insertion has to move all the others. */
static size_t bucket_of(const WatchTree *t, uint64_t hash) {
        size_t i = hash & (2 * t->n_round - 1);

        return i < t->n_buckets ? i : i - t->n_round;
}

static WatchNode **wd_bucket(const WatchTree *t, int wd) {
        return &t->by_wd[bucket_of(t,
                                   (uint64_t)wd)]; /* the kernel counts them up: no hash needed */
}

static WatchNode **name_bucket(const WatchTree *t, const WatchNode *parent, const char *name) {
        return &t->by_name[bucket_of(t, name_hash(t, parent, name))];
}

int watch_tree_init(WatchTree *t, uint64_t key0, uint64_t key1) {
        _cleanup_free_ WatchNode **by_wd = calloc(BUCKETS_MIN, sizeof(WatchNode *));
        _cleanup_free_ WatchNode **by_name = calloc(BUCKETS_MIN, sizeof(WatchNode *));

        if (!by_wd || !by_name)
                return -ENOMEM;
        *t = (WatchTree){
                .by_wd = TAKE_PTR(by_wd),
                .by_name = TAKE_PTR(by_name),
                .n_buckets = BUCKETS_MIN,
                .n_allocated = BUCKETS_MIN,
                .n_round = BUCKETS_MIN,
                .key = { key0, key1 },
        };
        return 0;
}

void watch_tree_done(WatchTree *t) {
        free(t->by_wd);
        free(t->by_name);
        *t = (WatchTree){ 0 };
}

static bool enlarge(WatchTree *t) {
        size_t n = 2 * t->n_allocated;
        WatchNode **by_wd, **by_name;

        by_wd = reallocarray(t->by_wd, n, sizeof(WatchNode *));
        if (!by_wd)
                return false;
        t->by_wd = by_wd;
        by_name = reallocarray(t->by_name, n, sizeof(WatchNode *));
        if (!by_name)
                return false;
        t->by_name = by_name;
        t->n_allocated = n;
        return true;
}

/* Adds a bucket to each table and gives it its part of the bucket it is split from. Where there is no memory for it the tables
 * stay as they are and only get slower. */
static void grow(WatchTree *t) {
        size_t from = t->n_buckets - t->n_round;
        WatchNode *wds, *names, *next;

        if (t->n_buckets == t->n_allocated && !enlarge(t))
                return;
        wds = t->by_wd[from];
        names = t->by_name[from];
        t->by_wd[from] = t->by_name[from] = NULL;
        t->by_wd[t->n_buckets] = t->by_name[t->n_buckets] = NULL;
        t->n_buckets++;
        for (WatchNode *n = wds; n; n = next) {
                WatchNode **bucket = wd_bucket(t, n->wd);

                next = n->by_wd;
                n->by_wd = *bucket;
                *bucket = n;
        }
        for (WatchNode *n = names; n; n = next) {
                WatchNode **bucket = name_bucket(t, n->parent, n->name);

                next = n->by_name;
                n->by_name = *bucket;
                *bucket = n;
        }
        if (t->n_buckets == 2 * t->n_round)
                t->n_round = t->n_buckets;
}

int watch_tree_add(WatchTree *t, WatchNode *parent, const char *name, WatchNode **ret) {
        size_t n = strlen(name) + 1;
        WatchNode *node, **bucket;

        if (t->n_nodes >= t->n_buckets)
                grow(t);
        node = malloc(sizeof(WatchNode) + n);
        if (!node)
                return -ENOMEM;
        *node = (WatchNode){ .parent = parent, .wd = -1, .depth = parent ? parent->depth + 1 : 0 };
        memcpy(node->name, name, n);

        bucket = name_bucket(t, parent, name);
        node->by_name = *bucket;
        *bucket = node;
        if (parent) {
                node->next = parent->first_child;
                if (node->next)
                        node->next->prev = node;
                parent->first_child = node;
        } else
                t->root = node;
        t->n_nodes++;
        *ret = node;
        return 0;
}

WatchNode *watch_tree_find(const WatchTree *t, const WatchNode *parent, const char *name) {
        for (WatchNode *n = *name_bucket(t, parent, name); n; n = n->by_name)
                if (n->parent == parent && strcmp(n->name, name) == 0)
                        return n;
        return NULL;
}

WatchNode *watch_tree_by_wd(const WatchTree *t, int wd) {
        for (WatchNode *n = *wd_bucket(t, wd); n; n = n->by_wd)
                if (n->wd == wd)
                        return n;
        return NULL;
}

void watch_tree_set_wd(WatchTree *t, WatchNode *n, int wd) {
        if (n->wd >= 0) {
                WatchNode **at = wd_bucket(t, n->wd);

                while (*at != n)
                        at = &(*at)->by_wd;
                *at = n->by_wd;
                n->by_wd = NULL;
                t->n_watched--;
        }
        n->wd = wd;
        if (wd >= 0) {
                n->by_wd = *wd_bucket(t, wd);
                *wd_bucket(t, wd) = n;
                t->n_watched++;
        }
}

static void remove_name(WatchTree *t, WatchNode *n) {
        WatchNode **at = name_bucket(t, n->parent, n->name);

        while (*at != n)
                at = &(*at)->by_name;
        *at = n->by_name;
        n->by_name = NULL;
}

void watch_tree_detach(WatchTree *t, WatchNode *n, WatchNode **grave) {
        if (n->prev)
                n->prev->next = n->next;
        else if (n->parent)
                n->parent->first_child = n->next;
        else
                t->root = NULL;
        if (n->next)
                n->next->prev = n->prev;
        remove_name(t, n);
        n->parent = n->prev = NULL;
        n->next = *grave;
        *grave = n;
}

bool watch_tree_is_alive(const WatchTree *t, const WatchNode *n) {
        while (n->parent)
                n = n->parent;
        return n == t->root;
}

WatchNode *watch_tree_bury(WatchTree *t, WatchNode **grave) {
        WatchNode *n = *grave;

        if (!n)
                return NULL;
        *grave = n->next;
        n->next = NULL;
        while (n->first_child)
                watch_tree_detach(t, n->first_child, grave);
        watch_tree_set_wd(t, n, -1);
        n->is_buried = true;
        t->n_nodes--;
        return n;
}

const char *watch_tree_path(const WatchNode *n, const char *name, char *buf, size_t size) {
        size_t used = 1, bytes;
        const WatchNode *at = n;
        const char *part = name ? name : "";

        if (!name && n->parent) {
                part = n->name;
                at = n->parent;
        }
        /* Written from the end of the buffer towards its beginning, then moved to the front. */
        bytes = strlen(part);
        if (used + bytes > size)
                return NULL;
        buf[size - 1] = '\0';
        for (;;) {
                memcpy(buf + size - used - bytes, part, bytes);
                used += bytes;
                if (!at->parent)
                        break;
                part = at->name;
                bytes = strlen(part);
                if (used + 1 + bytes > size)
                        return NULL;
                buf[size - ++used] = '/';
                at = at->parent;
        }
        return memmove(buf, buf + size - used, used);
}
