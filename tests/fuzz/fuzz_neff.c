/* NEFF files, and the quick look at the same bytes. */
#include <sys/mman.h>
#include <unistd.h>

#include "tests/fuzz/fuzz_cut.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n) {
        const Verdict verdict = fuzz_cut("neff_1.neff", MEMBER_NEFF, data, n, 0);
        fuzz_check(verdict != VERDICT_OPAQUE);
        (void)fuzz_cut("neff_1.neff", MEMBER_NEFF, data, n, 1);

        int fd = memfd_create("neff", MFD_CLOEXEC);
        fuzz_check(fd >= 0 && write(fd, data, n) == (ssize_t)n);
        const Verdict quick = validate_quick(fd, MEMBER_NEFF, n);
        (void)close(fd);
        /* It sees less, but never something else. */
        fuzz_check(quick == VERDICT_OK || quick == verdict);
        fuzz_check((quick == VERDICT_TRUNCATED) == (verdict == VERDICT_TRUNCATED));
        return 0;
}
