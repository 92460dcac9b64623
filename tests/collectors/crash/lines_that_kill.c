/* report_with, whose child dies when it looks for source lines, as debug information could make it.
 */
#include <signal.h>

#include "collectors/crash/modules.h"

size_t __wrap_modules_lines(Modules *m, uint64_t address, uint64_t end_usec, ElfLine *ret,
                            size_t max);
size_t __wrap_modules_lines(Modules *m, uint64_t address, uint64_t end_usec, ElfLine *ret,
                            size_t max) {
        (void)m, (void)address, (void)end_usec, (void)ret, (void)max;
        raise(SIGKILL);
        return 0;
}
