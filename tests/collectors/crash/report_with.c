/* report_with CORE CONTEXT [CGROUP]: writes crash.json of a core, of a context and of a container's
 * processes, which the command line does not have, to standard output, and crash.md behind a NUL.
 */
#include <fcntl.h>
#include <stdio.h>
#include <string.h>

#include "collectors/crash/crash.h"
#include "collectors/crash/origin/roots.h"
#include "lib/base/fs.h"

int main(int argc, char **argv) {
        if (argc == 2 && strcmp(argv[1], CRASH_CHILD) == 0)
                _exit(crash_child_main());
        if (argc != 3 && argc != 4)
                return 2;
        CrashReport report = { 0 };
        _cleanup_close_ int core = open(argv[1], O_RDONLY | O_CLOEXEC),
                            host = open("/", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
        _cleanup_(roots_done) Roots roots = { .n = 0 };
        if (argc == 4)
                roots_add_container(&roots, "/proc", argv[3], host);
        roots_add(&roots, TAKE_FD(host), FILE_ROOT_HOST, "host");
        int r = crash_report(&(CrashRequest){ .program = "/proc/self/exe",
                                              .core_name = argv[1],
                                              .core_fd = core,
                                              .roots = roots.items,
                                              .n_roots = roots.n,
                                              .context = argv[2],
                                              .timeout_usec = CRASH_TIMEOUT_USEC },
                             &report);
        if (r == 0)
                printf("%s%c%s", report.json, '\0', report.text);
        else
                fprintf(stderr, "%s\n", report.fault ? report.fault : strerror(-r));
        crash_report_done(&report);
        return r == 0 ? 0 : 1;
}
