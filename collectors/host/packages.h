/* Parts of the collectors packages and process_packages. */
#pragma once

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "lib/base/strbuf.h"

#define PACKAGES_NAME_SIZE 128
#define PACKAGES_VERSION_SIZE 128

/** A root directory whose packages are listed. */
typedef struct PackagesRoot {
        int fd;     /* of the root, O_PATH */
        pid_t pid;  /* whose it is; 0 = the host's */
        int out_fd; /* gets the records, a line each */
        StrBuf b;   /* the record that is being made */
        int result; /* 0, -errno: nothing more is written */
} PackagesRoot;

/** Writes the record of the root's RPM packages; none where there is no database.
 * @param program  rpm, absolute  @param timeout_usec  then it is killed */
void packages_rpm(PackagesRoot *root, const char *program, uint64_t timeout_usec);

/** Takes name and version of a `NAME-VERSION.dist-info` or `NAME-VERSION[-py3.x].egg-info`
 * directory. The name is normalised: lower case, `-`.
 * @return whether it is one; version "" when it has none @see PEP 376, PEP 503, PEP 427 */
bool packages_parse_pip(const char *directory, char name[static PACKAGES_NAME_SIZE],
                        char version[static PACKAGES_VERSION_SIZE]);
/** @return whether a distribution (normalised) is one that AWS asks for in a support request */
bool packages_pip_is_asked_for(const char *name);
