/* Manifests from a stranger's bucket: refused with a sentence, or so well-formed that verify can work with them. */
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "lib/bundle/manifest.h"
#include "lib/bundle/reader.h"

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
        check(bundle_verify(fd, manifest, &report) == 0);
        check(!report.ok && n_faults > 0);
        (void)close(fd);
        json_decref(manifest);
        return 0;
}
