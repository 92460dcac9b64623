/* ELF core files, and the quick look at the same bytes. */
#include <sys/mman.h>
#include <unistd.h>

#include "tests/fuzz/fuzz_cut.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n) {
        const Verdict verdict = fuzz_cut("core", MEMBER_ELF_CORE, data, n, 0);
        (void)fuzz_cut("core", MEMBER_ELF_CORE, data, n, UINT64_C(1) << 40);

        int fd = memfd_create("core", MFD_CLOEXEC);
        fuzz_check(fd >= 0 && write(fd, data, n) == (ssize_t)n);
        const Verdict quick = validate_quick(fd, MEMBER_ELF_CORE, n);
        (void)close(fd);
        fuzz_check(quick == VERDICT_OK ||
                   quick == verdict); /* it sees less, but never something else */
        return 0;
}
