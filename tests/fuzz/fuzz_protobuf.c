/* The walk over top-level protobuf records of NTFF and .pb files. */
#include "tests/fuzz/fuzz_cut.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n) {
        const Verdict verdict = fuzz_cut("ntrace.pb", MEMBER_SYSTEM_TRACE, data, n, 0);
        fuzz_check(verdict == VERDICT_OK || verdict == VERDICT_SUSPECT ||
                   verdict == VERDICT_EMPTY); /* a hint, never more */
        fuzz_check(fuzz_cut("1_instid_0_vnc_0.ntff", MEMBER_NTFF, data, n, 0) == verdict);
        return 0;
}
