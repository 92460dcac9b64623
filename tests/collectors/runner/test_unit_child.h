/* A collector's child as production has it: this program executed again, as a user of its own with
 * the unit's capabilities. Needs root. */
#pragma once

#include <fcntl.h>
#include <linux/capability.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

enum { COLLECTOR_UID = 65533 };

/* What systemd does for User= and AmbientCapabilities=. */
static inline bool become(uid_t uid, uint64_t capabilities) {
        struct __user_cap_header_struct head = { .version = _LINUX_CAPABILITY_VERSION_3 };
        struct __user_cap_data_struct data[2] = { { 0 } };
        for (unsigned i = 0; i < 2; i++) {
                uint32_t half = (uint32_t)(capabilities >> (32 * i));
                data[i] = (struct __user_cap_data_struct){ half, half, half };
        }
        bool ok = prctl(PR_SET_KEEPCAPS, 1, 0, 0, 0) == 0 && syscall(SYS_setgroups, 0, NULL) == 0 &&
                  setresgid(uid, uid, uid) == 0 && setresuid(uid, uid, uid) == 0 &&
                  syscall(SYS_capset, &head, data) == 0;
        for (int c = 0; ok && c <= CAP_LAST_CAP; c++)
                if (capabilities >> c & 1)
                        ok = prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_RAISE, c, 0, 0) == 0;
        return ok;
}

#define UNIT_CAPABILITIES                                                                          \
        (UINT64_C(1) << CAP_SYS_PTRACE | UINT64_C(1) << CAP_DAC_READ_SEARCH |                      \
         UINT64_C(1) << CAP_SYSLOG)

static inline _Noreturn void execute_child(const char *collector, const int fds[4], int exe) {
        char option[64];
        char *argv[] = { (char *)"test", option, NULL };
        (void)snprintf(option, sizeof option, "--child=collect:%s", collector);
        for (int i = 0; i < 4; i++)
                if (dup2(fds[i], i) < 0)
                        _exit(99);
        if (become(COLLECTOR_UID, UNIT_CAPABILITIES))
                (void)fexecve(exe, argv, environ);
        _exit(98);
}
