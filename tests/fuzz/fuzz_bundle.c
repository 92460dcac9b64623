/* Objects from a stranger's bucket: seek table, frames, tar. The manifest fits the object's bytes, so that the walk gets inside. */
#include <inttypes.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#include "lib/base/digest.h"
#include "lib/bundle/manifest.h"
#include "lib/bundle/reader.h"

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
                         "\"verdict\": \"ok\", \"detail\": \"\", \"frame\": 0, \"offset\": 512}, "
                         "{\"path\": \"b\", \"bytes\": 1, \"mtime\": \"\", \"mode\": \"0644\", "
                         "\"sha256\": \"%s\", \"kind\": \"other\", "
                         "\"verdict\": \"ok\", \"detail\": \"\", \"frame\": 1, \"offset\": 1536}], "
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

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n) {
        uint64_t n_faults = 0;
        VerifyReport report = { .on_fault = on_fault, .userdata = &n_faults };
        if (n == 0)
                return 0; /* a manifest of no bytes is refused before */

        int fd = memfd_create("object", MFD_CLOEXEC);
        check(fd >= 0 && write(fd, data, n) == (ssize_t)n);
        json_t *manifest = manifest_for(data, n);
        check(bundle_verify(fd, manifest, &report) == 0);
        check(report.ok == (n_faults == 0));
        check(report.n_members == 2 && report.n_bad <= 2);
        check(report.n_bad == 0 || n_faults > 0);
        json_decref(manifest);
        (void)close(fd);
        return 0;
}
