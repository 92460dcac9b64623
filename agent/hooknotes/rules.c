/* What a note may request: a bucket prefix, and how many notes an owner may send. Also what a hook
 * says at its end. Pure. */
#include "agent/hooknotes/rules.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "config/keys.h"
#include "lib/base/cleanup.h"
#include "lib/base/parse.h"
#include "lib/neuron/names.h"

/* ---- the end of a hook ---- */

bool hook_finish_parse(const char *data, size_t n, HookFinish *ret) {
        static const struct {
                const char *text;
                HookFinish finish;
        } words[] = {
                { "finished", { 0 } },
                { "finished without record", { .without_record = true } },
                { "finished without snapshot", { .without_snapshot = true } },
                { "finished without record snapshot", { true, true } },
        };
        for (size_t i = 0; i < ELEMENTSOF(words); i++)
                if (n == strlen(words[i].text) && memcmp(data, words[i].text, n) == 0) {
                        *ret = words[i].finish;
                        return true;
                }
        return false;
}

/* ---- bucket prefix ---- */

#define SCHEME "s3://"

/* @return the part behind `s3://BUCKET`, without slashes around it; NULL: it does not have that
 * form */
static const char *split_prefix(const char *url, size_t *ret_bucket_size, size_t *ret_size) {
        if (strncmp(url, SCHEME, strlen(SCHEME)) != 0)
                return NULL;
        const char *bucket = url + strlen(SCHEME);
        *ret_bucket_size = strcspn(bucket, "/");
        const char *p = bucket + *ret_bucket_size;
        p += *p == '/';
        *ret_size = strlen(p);
        if (*ret_size > 0 && p[*ret_size - 1] == '/')
                --*ret_size;
        return *ret_bucket_size > 0 ? p : NULL;
}

/* Component by component; everything is below "". */
static bool is_below(const char *path, size_t n, const char *dir, size_t n_dir) {
        return n_dir == 0 ||
               (n >= n_dir && memcmp(path, dir, n_dir) == 0 && (n == n_dir || path[n_dir] == '/'));
}

/* Keys that the agent itself would not create, because they mislead who lists or copies them. Names
 * that begin with a dot are the agent's own (.incidents). */
static bool is_clean_key(const char *p, size_t n) {
        for (size_t at = 0; at < n;) {
                const char *slash = memchr(p + at, '/', n - at);
                size_t size = slash ? (size_t)(slash - (p + at)) : n - at;
                if (size == 0 || p[at] == '.')
                        return false;
                for (size_t i = 0; i < size; i++)
                        if ((unsigned char)p[at + i] < 0x20 || p[at + i] == 0x7f ||
                            p[at + i] == '\\')
                                return false;
                at += size + 1;
                if (slash && at >= n)
                        return false;
        }
        return true;
}

static bool is_utf8(const char *s) {
        for (size_t n = strlen(s), used; n > 0; s += used, n -= used) {
                used = utf8_char_size(s, n);
                if (used == 0)
                        return false;
        }
        return true;
}

static bool is_bucket(const ConfigDestination *d, const char *bucket, size_t n) {
        return d->type == CONFIG_S3 && strlen(d->bucket) == n && memcmp(d->bucket, bucket, n) == 0;
}

/* @return 1 below the destination's own fixed part, 0 not, -ENOMEM */
static int is_below_destination(const ConfigDestination *d, const char *p, size_t n) {
        _cleanup_free_ char *fixed = form_fixed_part(d->prefix);
        if (!fixed)
                return -ENOMEM;
        size_t n_fixed = strlen(fixed);
        while (n_fixed > 0 && fixed[n_fixed - 1] == '/')
                n_fixed--;
        const char *from = fixed + (*fixed == '/' && n_fixed > 0);
        return is_below(p, n, from, n_fixed - (size_t)(from - fixed));
}

static bool is_below_allowed(const Config *c, const char *url, const char *p, size_t n) {
        const char *bucket = url + strlen(SCHEME);
        size_t n_bucket = strcspn(bucket, "/");

        for (size_t i = 0; i < c->hook.allow_prefixes.n; i++) {
                size_t n_theirs, n_allowed;
                const char *item = c->hook.allow_prefixes.items[i];
                const char *allowed = split_prefix(item, &n_theirs, &n_allowed);
                if (allowed && n_theirs == n_bucket &&
                    memcmp(item + strlen(SCHEME), bucket, n_bucket) == 0 &&
                    is_below(p, n, allowed, n_allowed))
                        return true;
        }
        return false;
}

const char *hooknotes_check_prefix(const Config *c, const char *prefix) {
        size_t n_bucket, n;
        const char *p = split_prefix(prefix, &n_bucket, &n);

        if (strlen(prefix) > NOTE_PREFIX_MAX)
                return "the prefix is longer than 512 bytes";
        if (!p)
                return "the prefix is not of the form s3://bucket/prefix";
        if (!is_clean_key(p, n) || !is_utf8(prefix))
                return "the prefix has an empty component, one that begins with a dot, or bytes "
                       "that no key should have";
        bool has_bucket = false, is_granted = is_below_allowed(c, prefix, p, n);
        for (size_t i = 0; i < c->n_destinations; i++) {
                const ConfigDestination *d = &c->destinations[i];
                if (!is_bucket(d, prefix + strlen(SCHEME), n_bucket))
                        continue;
                has_bucket = true;
                if (c->hook.allow_prefixes.n == 0 && is_below_destination(d, p, n) > 0)
                        is_granted = true;
        }
        if (!has_bucket)
                return "no configured destination has the prefix's bucket";
        if (is_granted)
                return NULL;
        return c->hook.allow_prefixes.n > 0
                       ? "the prefix is below none of hook.allow_prefixes"
                       : "the prefix is not below the destination's own, and hook.allow_prefixes "
                         "is empty";
}

/* ---- rates ---- */

void note_rate_init(Bound *b, Clock *clock) {
        *b = (Bound){ .what = "notes of hooks at once",
                      .max = NOTE_BURST_OF_ALL,
                      .max_each = NOTE_BURST,
                      .fade_usec = NOTE_REFILL_USEC,
                      .clock = clock };
}
