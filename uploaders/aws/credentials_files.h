/* The two shared files, read from where the environment says they are. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "lib/base/cleanup.h"
#include "uploaders/aws/aws_profile.h"

typedef struct
        CredentialsFileLook { /* what tells one content of a file from the next without reading it */
        uint64_t device, inode, bytes; /* all 0 = there is none, or it may not be looked at */
        int64_t mtime_nsec, ctime_nsec;
} CredentialsFileLook;

typedef struct CredentialsFilesLook {
        CredentialsFileLook config, credentials;
} CredentialsFilesLook;

typedef struct CredentialsFile {
        char *path; /* owned; NULL when there is no home to look in */
        char *text; /* secret memory, which `parsed` points into */
        int error;  /* 0 = read; -ENOENT … = taken for empty */
        AwsProfileFile parsed;
} CredentialsFile;

typedef struct CredentialsFiles {
        CredentialsFile config, credentials;
} CredentialsFiles;

/** Reads AWS_CONFIG_FILE or ~/.aws/config, and AWS_SHARED_CREDENTIALS_FILE or ~/.aws/credentials. A file that cannot be read is no failure.
 * @param home  NULL or "" = HOME, or that of the user database where HOME is not set, as in a system service
 * @return 0 and *ret, -ENOMEM */
int credentials_files_read(CredentialsFiles *ret, char *const *environment, const char *home);
void credentials_files_done(CredentialsFiles *f);

/** What the two look like now; both are none for lack of memory. To be taken before they are read, so that a change in between is seen. */
CredentialsFilesLook credentials_files_look(char *const *environment, const char *home);
bool credentials_files_look_same(const CredentialsFilesLook *a, const CredentialsFilesLook *b);

/** @return a profile's setting (borrowed), from `credentials` when it is in both; NULL = none */
const char *credentials_files_get(const CredentialsFiles *f, const char *profile, const char *key);

/** @return the profile asked for: `wanted`, AWS_PROFILE or `default`; borrowed */
const char *credentials_files_profile(char *const *environment, const char *wanted);

/** @return AWS_REGION, AWS_DEFAULT_REGION or the profile's region (borrowed); NULL = none is told */
const char *credentials_files_region(const CredentialsFiles *f, char *const *environment,
                                     const char *profile);
