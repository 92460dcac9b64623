/* The shared `config` and `credentials` files: their lines taken apart in place. Pure; anything
 * may be in them. Read as the AWS CLI reads them, and where that is stricter than other SDKs, as
 * they do: sections of one name are merged and the later setting wins; what follows a blank and
 * `#` or `;` is a comment, but not in a credential_process; a line that makes no sense is passed
 * over and remembered as the fault.
 * @see AWS SDKs and Tools Reference Guide, "Shared config and credentials files", "File format of
 *   the config file" */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define AWS_PROFILE_MAX_BYTES ((size_t)1024 * 1024)

typedef enum AwsProfileFormat {
        AWS_PROFILE_CONFIG,      /* [profile NAME], [default] … */
        AWS_PROFILE_CREDENTIALS, /* [NAME] */
} AwsProfileFormat;

typedef struct AwsProfileSection AwsProfileSection;
typedef struct AwsProfileItem AwsProfileItem;

typedef struct AwsProfileFile { /* all zero = an empty file */
        AwsProfileSection *sections;
        AwsProfileItem *items;
        size_t n_sections, n_items;
        const char *fault; /* the first: static; NULL = none */
        unsigned error_line;
} AwsProfileFile;

/** @param text  n bytes and a NUL after them; rewritten, borrowed from then on, to outlive *ret
 * @return 0 and *ret (for aws_profile_done) whatever the faults; -ENOMEM */
int aws_profile_parse(AwsProfileFile *ret, AwsProfileFormat format, char *text, size_t n);
void aws_profile_done(AwsProfileFile *f);

/** @return whether the file has a section for the profile */
bool aws_profile_has(const AwsProfileFile *f, const char *profile);

/** @return whether the profile is only there as [NAME], which `config` wants to be [profile
 * NAME] */
bool aws_profile_is_misspelt(const AwsProfileFile *f, const char *profile);

/** @param key lower case @return the value (borrowed, trimmed, lines of a nested block divided by
 *   `\n`), NULL when it is not set or empty */
const char *aws_profile_get(const AwsProfileFile *f, const char *profile, const char *key);

/** @return the line of what aws_profile_get() returns, from 1; 0 = not set */
unsigned aws_profile_line(const AwsProfileFile *f, const char *profile, const char *key);

/* The two files, read from where the environment says they are. */

typedef struct
        /* what changes with a file's content, without reading it */
        CredentialsFileStat {
        uint64_t device, inode, bytes; /* all 0 = there is none, or it may not be read */
        int64_t mtime_nsec, ctime_nsec;
} CredentialsFileStat;

typedef struct CredentialsFilesStat {
        CredentialsFileStat config, credentials;
} CredentialsFilesStat;

typedef struct CredentialsFile {
        char *path; /* owned; NULL when there is no home directory */
        char *text; /* secret memory, which `parsed` points into */
        int error;  /* 0 = read; -ENOENT … = taken for empty */
        AwsProfileFile parsed;
} CredentialsFile;

typedef struct CredentialsFiles {
        CredentialsFile config, credentials;
} CredentialsFiles;

/** Reads AWS_CONFIG_FILE or ~/.aws/config, and AWS_SHARED_CREDENTIALS_FILE or ~/.aws/credentials.
 * A file that cannot be read is no failure.
 * @param home NULL or "" = HOME, or that of the user database where HOME is not set, as in a
 *   system service
 * @return 0 and *ret, -ENOMEM */
int credentials_files_read(CredentialsFiles *ret, char *const *environment, const char *home);
void credentials_files_done(CredentialsFiles *f);

/** What the two look like now; both are none for lack of memory. To be taken before they are read,
 * so that a change in between is seen. */
CredentialsFilesStat credentials_files_stat(char *const *environment, const char *home);
bool credentials_files_stat_equal(const CredentialsFilesStat *a, const CredentialsFilesStat *b);

/** @return a profile's setting (borrowed), from `credentials` when it is in both; NULL = none */
const char *credentials_files_get(const CredentialsFiles *f, const char *profile, const char *key);

/** @return the profile asked for: `wanted`, AWS_PROFILE or `default`; borrowed */
const char *credentials_files_profile(char *const *environment, const char *requested);

/** @return AWS_REGION, AWS_DEFAULT_REGION or the profile's region (borrowed); NULL = none is
 * told */
const char *credentials_files_region(const CredentialsFiles *f, char *const *environment,
                                     const char *profile);
