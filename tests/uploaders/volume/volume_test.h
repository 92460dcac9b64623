/* Objects of made-up bytes, and a volume below a temporary directory. */
#pragma once

#include <errno.h>
#include <inttypes.h>

#include "tests/harness/unit.h"

#include "lib/base/cleanup.h"
#include "lib/base/strbuf.h"
#include "tests/lib/base/scratch.h"
#include "uploaders/volume/volume.h"
#include "uploaders/volume/volume_readback.h"

#define OBJECT "20260527-cid/i-0123456789abcdef0/bundle.tar.zst"
#define STRIPE                                                                                     \
        ((size_t)(300 * KIB) + 7) /* shares no bound with anything in the code under test          \
                                   */
#define MAX_STRIPES 1024

DEFINE_CLEANUP(Volume, volume_free);

typedef struct Content {
        uint8_t *data;
        size_t n;
        VolumeStripe stripes[MAX_STRIPES];
        size_t n_stripes;
} Content;

/* Bytes that no compression and no repetition makes easy; another seed, other bytes. */
static inline void content_init(Content *c, size_t n, uint64_t seed) {
        *c = (Content){ .data = malloc(n > 0 ? n : 1), .n = n };
        assert_non_null(c->data);
        for (size_t i = 0; i < n; i++) {
                seed = seed * UINT64_C(6364136223846793005) + 1442695040888963407U;
                c->data[i] = (uint8_t)(seed >> 56);
        }
        for (size_t at = 0; at < n; at += STRIPE) {
                VolumeStripe *stripe = &c->stripes[c->n_stripes++];
                assert_true(c->n_stripes <= MAX_STRIPES);
                stripe->bytes = MIN(n - at, STRIPE);
                sha256_of(c->data + at, stripe->bytes, stripe->sha256);
        }
}

static inline void content_done(Content *c) {
        free(c->data);
}

/* For volume_read(). @param userdata  a StrBuf */
static inline int keep_piece(const void *data, size_t n, void *userdata) {
        strbuf_add_n(userdata, data, n);
        return 0;
}

static inline int refuse_piece(const void *data, size_t n, void *userdata) {
        (void)data, (void)n, (void)userdata;
        return -ECANCELED;
}

static inline Volume *volume_at(const Scratch *s, const char *root) {
        char path[PATH_MAX + 256];
        Volume *v = NULL;
        (void)snprintf(path, sizeof path, "%s/%s", s->path, root);
        assert_int_equal(volume_new(&v, &(VolumeOptions){ .root = path }), 0);
        return v;
}

/* In pieces of odd sizes. @return the first outcome */
static inline int write_content(VolumeObject *o, const Content *c, char **ret_error) {
        size_t at = 0, piece = 1;
        int r = 0;

        for (; at < c->n && r == 0; at += piece, piece = MIN(piece * 3 + 1, (size_t)MIB)) {
                piece = MIN(piece, c->n - at);
                r = volume_write(o, c->data + at, piece, ret_error);
        }
        return r;
}

/* The whole way of one object. *ret_error is freed and replaced. */
static inline int deliver(Volume *v, const char *relative, const Content *c, char **ret_error) {
        VolumeObject *o = NULL;
        free(*ret_error);
        *ret_error = NULL;
        int r = volume_object_start(v, relative, c->n, &o, ret_error);
        if (r == 0)
                r = write_content(o, c, ret_error);
        if (r == 0)
                r = volume_commit(o, c->stripes, c->n_stripes, ret_error);
        volume_object_free(o);
        return r;
}

static inline void in_scratch(const Scratch *s, const char *command) {
        char text[2 * PATH_MAX + 512];
        (void)snprintf(text, sizeof text, "cd '%s' && { %s; }", s->path, command);
        if (system(text) != 0)
                fail_msg("not so: %s", command);
}

/* sha256sum, another program, says that the file has these bytes. */
static inline void assert_file_is(const Scratch *s, const char *path, const Content *c) {
        char command[512], hex[SHA256_HEX_SIZE];
        uint8_t digest[SHA256_SIZE];
        sha256_of(c->data, c->n, digest);
        (void)snprintf(command, sizeof command, "echo '%s  %s' | sha256sum --check --status",
                       digest_hex(digest, sizeof digest, hex), path);
        in_scratch(s, command);
}

static inline void assert_no_litter(const Scratch *s, const char *root) {
        char command[512];
        (void)snprintf(command, sizeof command,
                       "test -z \"$(find '%s' -name '.*neuron-collectd*')\"", root);
        in_scratch(s, command);
}
