/* The shared files of AWS tools, ~/.aws/credentials and ~/.aws/config, parsed. */
#pragma once

#include <stdint.h>

#include "lib/base/cleanup.h"
#include "uploaders/aws/aws_profile.h"

typedef struct CredentialsFile {
        char *path; /* owned; NULL when there is no home directory */
        char *text; /* secret memory, which `parsed` points into */
        int error;  /* 0 = read; -ENOENT … = treated as empty */
        AwsProfileFile parsed;
} CredentialsFile;

typedef struct CredentialsFiles {
        CredentialsFile config, credentials;
} CredentialsFiles;

/** Reads both. A file that cannot be read is no failure.
 * @param home  for ~/.aws; NULL or "" = HOME, or the user database's where it is unset
 * @return 0, -ENOMEM */
int credentials_files_new(CredentialsFiles **ret, char *const *environment, const char *home);
CredentialsFiles *credentials_files_free(CredentialsFiles *f);
DEFINE_CLEANUP(CredentialsFiles, credentials_files_free);

/** @return another number than before when one of the files has changed, come or gone */
uint64_t credentials_files_version(char *const *environment, const char *home);

/** @return a key of a profile, in the credentials file before the other one; borrowed, NULL */
const char *credentials_files_get(const CredentialsFiles *f, const char *profile, const char *key);
/** @param wanted  NULL or "" = AWS_PROFILE  @return the profile's name, borrowed */
const char *credentials_files_profile(char *const *environment, const char *wanted);
/** @return AWS_REGION, AWS_DEFAULT_REGION or the region of the profile; borrowed, NULL */
const char *credentials_files_region(const CredentialsFiles *f, char *const *environment,
                                     const char *profile);
