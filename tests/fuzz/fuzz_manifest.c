/* Manifests from a stranger's bucket: refused with a sentence, or so well-formed that verify can
 * work with them. */
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "lib/bundle/fetch.h"
#include "lib/bundle/manifest.h"
#include "lib/bundle/reader.h"
#include "tests/lib/bundle/file_source.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

static void check(bool is_true) {
        if (!is_true)
                abort();
}

static void on_fault(const char *what, void *userdata) {
        for (const char *p = what; *p; p++) /* goes to a terminal */
                check((unsigned char)*p >= 0x20 && *p != 0x7f);
        ++*(uint64_t *)userdata;
}

static int put(const void *data, uint64_t n, uint64_t offset, void *userdata) {
        uint64_t *left = userdata; /* of the member */
        (void)data, (void)offset;
        check(n > 0 && n <= *left);
        *left -= n;
        return 0;
}

/* The member's content out of an object whose seek table fits whatever the manifest says, and whose
 * frames are `data`. */
static void fetch(const json_t *manifest, const json_t *member, const uint8_t *data, size_t n) {
        FetchRange table, frames;
        Fetch *f = NULL;
        if (fetch_new(&f, manifest, json_string_value(json_object_get(member, "path")), &table) < 0)
                return;
        uint64_t left = fetch_bytes(f), keep;
        uint8_t *bytes = table.bytes <= 4096 ? calloc(1, table.bytes) : NULL;
        const uint32_t content = (uint32_t)table.bytes - 8, n_frames = (content - 9) / 8;
        if (bytes) {
                memcpy(bytes, "\x5e\x2a\x4d\x18", 4); /* as on x86 and arm64: little-endian */
                memcpy(bytes + 4, &content, 4);
                const uint32_t object_bytes = (uint32_t)table.offset,
                               stream_bytes = (uint32_t)json_integer_value(json_object_get(
                                       json_object_get(manifest, "bundle"), "uncompressed_bytes"));
                if (n_frames > 0) {
                        memcpy(bytes + 8, &object_bytes, 4);
                        memcpy(bytes + 12, &stream_bytes, 4);
                }
                memcpy(bytes + table.bytes - 9, &n_frames, 4);
                memcpy(bytes + table.bytes - 4, "\xb1\xea\x92\x8f", 4);
        }
        if (bytes && fetch_set_table(f, bytes, table.bytes, &frames) == 0) {
                check(frames.bytes <= table.offset && frames.offset <= table.offset - frames.bytes);
                check(fetch_resume(f, n, &frames, &keep) == 0 && keep <= n && keep <= left);
                left -= keep;
                for (uint64_t i = 0; i < keep; i += n)
                        fetch_supply_kept(f, data, keep - i < n ? keep - i : n);
                (void)fetch_supply_data(f, data, n, put, &left);
        }
        check(fetch_finish(f) != 0 || left == 0);
        free(bytes);
        fetch_free(f);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n) {
        json_t *manifest = NULL;
        char *fault = NULL;
        if (manifest_read(data, n, &manifest, &fault) < 0) {
                uint64_t unused = 0;
                check(!manifest && fault && fault[0]);
                on_fault(fault, &unused);
                free(fault);
                return 0;
        }
        check(manifest && !fault);

        /* An object that is none: every manifest must lead to a no, and to nothing worse. */
        uint64_t n_faults = 0;
        VerifyReport report = { .on_fault = on_fault, .userdata = &n_faults };
        int fd = memfd_create("object", MFD_CLOEXEC);
        check(fd >= 0 && write(fd, data, n) == (ssize_t)n);
        FileSource object = file_source(fd);
        check(bundle_verify(&object.source, manifest, &report) == 0);
        check(!report.ok && n_faults > 0);
        (void)close(fd);
        const json_t *members = json_object_get(manifest, "members");
        for (size_t i = 0; i < json_array_size(members) && i < 3; i++)
                fetch(manifest, json_array_get(members, i), data, n);
        json_decref(manifest);
        return 0;
}
