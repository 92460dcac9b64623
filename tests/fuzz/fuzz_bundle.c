/* Objects from a stranger's bucket: seek table, frames, tar. The manifest fits the object's bytes,
 * so that the walk gets inside. */
#include <errno.h>
#include <inttypes.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "lib/base/digest.h"
#include "lib/bundle/fetch.h"
#include "lib/bundle/manifest.h"
#include "lib/bundle/reader.h"
#include "tests/lib/bundle/file_source.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

static void check(bool is_true) {
        if (!is_true)
                abort();
}

/* The members of make_corpus.py's bundle; an input of the corpus passes whole. */
static json_t *manifest_for(const uint8_t *data, size_t n) {
        uint8_t digest[SHA256_SIZE];
        char object[SHA256_HEX_SIZE], a[SHA256_HEX_SIZE], b[SHA256_HEX_SIZE], text[4096],
                *fault = NULL;
        json_t *manifest = NULL;
        sha256_of(data, n, digest);
        digest_hex(digest, sizeof digest, object);
        sha256_of("aaaaaaaaaa", 10, digest);
        digest_hex(digest, sizeof digest, a);
        sha256_of("b", 1, digest);
        digest_hex(digest, sizeof digest, b);
        const int length =
                snprintf(text, sizeof text,
                         "{\"schema\": \"neuron-collectd/manifest/1\", \"bundle\": {\"id\": "
                         "\"directory-20260527T051233-0123456789ab\", "
                         "\"kind\": \"directory\", \"object\": \"x\", \"bytes\": %zu, "
                         "\"uncompressed_bytes\": 3072, \"plan\": \"%s\", "
                         "\"parts\": [{\"bytes\": %zu, \"sha256\": \"%s\"}], \"complete\": true, "
                         "\"reasons\": [], \"supplement_of\": null}, "
                         "\"node\": {\"instance_id\": \"i\", \"hostname\": \"h\", \"labels\": {}}, "
                         "\"source\": {\"name\": \"s\", \"path\": \"/s\", \"uid\": 0, \"user\": "
                         "null}, \"incident\": null, \"failure\": null, "
                         "\"members\": ["
                         "{\"path\": \"a\", \"bytes\": 10, \"mtime\": \"\", \"mode\": \"0644\", "
                         "\"sha256\": \"%s\", \"kind\": \"other\", "
                         "\"verdict\": \"ok\", \"detail\": \"\", \"frame\": 0, \"offset\": 512, "
                         "\"header\": 512}, "
                         "{\"path\": \"b\", \"bytes\": 1, \"mtime\": \"\", \"mode\": \"0644\", "
                         "\"sha256\": \"%s\", \"kind\": \"other\", "
                         "\"verdict\": \"ok\", \"detail\": \"\", \"frame\": 1, \"offset\": 1536, "
                         "\"header\": 512}], "
                         "\"frames\": {\"count\": 2, \"format\": \"zstd-seekable\"}, \"agent\": "
                         "{\"version\": \"0\"}, \"created\": \"\"}",
                         n, object, n, object, a, b);
        check(manifest_read(text, (size_t)length, &manifest, &fault) == 0);
        return manifest;
}

static void on_fault(const char *what, void *userdata) {
        for (const char *p = what; *p; p++) /* goes to a terminal */
                check((unsigned char)*p >= 0x20 && *p != 0x7f);
        ++*(uint64_t *)userdata;
}

typedef struct Got {
        uint8_t content[16];
        uint64_t n;
} Got;

static int put(const void *data, uint64_t n, uint64_t offset, void *userdata) {
        Got *g = userdata;
        check(offset == g->n && n > 0 && n <= sizeof g->content - g->n);
        if (data)
                memcpy(g->content + offset, data, n);
        else
                memset(g->content + offset, 0, n);
        g->n += n;
        return 0;
}

/* @return whether the member could be had; then it is the one that the manifest means */
static bool fetch(const uint8_t *data, const json_t *manifest, const char *name,
                  const char *content) {
        FetchRange table, frames;
        Fetch *f = NULL;
        Got g = { .n = 0 };
        int r = fetch_new(&f, manifest, name, &table);
        if (r == 0)
                r = fetch_set_table(f, data + table.offset, table.bytes, &frames);
        for (uint64_t i = 0; r == 0 && i < frames.bytes; i += 100)
                r = fetch_supply_data(f, data + frames.offset + i,
                                      frames.bytes - i < 100 ? frames.bytes - i : 100, put, &g);
        if (r == 0)
                r = fetch_finish(f);
        check(r == 0 || r == -EBADMSG || r == -EINVAL);
        check(r != 0 || (g.n == strlen(content) && memcmp(g.content, content, g.n) == 0));
        check(!f || r == 0 || fetch_error_text(f)[0]);
        fetch_free(f);
        return r == 0;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n) {
        uint64_t n_faults = 0;
        VerifyReport report = { .on_fault = on_fault, .userdata = &n_faults };
        if (n == 0)
                return 0; /* a manifest of no bytes is refused before */

        int fd = memfd_create("object", MFD_CLOEXEC);
        check(fd >= 0 && write(fd, data, n) == (ssize_t)n);
        json_t *manifest = manifest_for(data, n);
        FileSource object = file_source(fd);
        check(bundle_verify(&object.source, manifest, &report) == 0);
        check(report.ok == (n_faults == 0));
        check(report.n_members == 2 && report.n_bad <= 2);
        check(report.n_bad == 0 || n_faults > 0);
        const bool has_a = fetch(data, manifest, "a", "aaaaaaaaaa"),
                   has_b = fetch(data, manifest, "b", "b");
        /* verify knows a table with checksums, too, which the writer does not make and fetch does
         * not read */
        check(!report.ok || data[n - 5] != 0 || (has_a && has_b));
        json_decref(manifest);
        (void)close(fd);
        return 0;
}
