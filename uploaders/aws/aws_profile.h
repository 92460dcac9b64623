/* The shared `config` and `credentials` files: their lines taken apart in place. Pure; anything may be in them.
 * Read as the AWS CLI reads them, and where that is stricter than other SDKs, as they do: sections of one name are merged and the later
 * setting wins; what follows a blank and `#` or `;` is a comment, but not in a credential_process; a line that makes no sense is
 * passed over and remembered as the fault.
 * @see AWS SDKs and Tools Reference Guide, "Shared config and credentials files", "File format of the config file" */
#pragma once

#include <stdbool.h>
#include <stddef.h>

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
        unsigned fault_line;
} AwsProfileFile;

/** @param text  n bytes and a NUL after them; rewritten, borrowed from then on, to outlive *ret
 * @return 0 and *ret (for aws_profile_done) whatever the faults; -ENOMEM */
int aws_profile_parse(AwsProfileFile *ret, AwsProfileFormat format, char *text, size_t n);
void aws_profile_done(AwsProfileFile *f);

/** @return whether the file has a section for the profile */
bool aws_profile_has(const AwsProfileFile *f, const char *profile);

/** @return whether the profile is only there as [NAME], which `config` wants to be [profile NAME] */
bool aws_profile_is_misspelt(const AwsProfileFile *f, const char *profile);

/** @param key  lower case  @return the value (borrowed, trimmed, lines of a nested block divided by `\n`), NULL when it is not set or empty */
const char *aws_profile_get(const AwsProfileFile *f, const char *profile, const char *key);

/** @return the line of what aws_profile_get() returns, from 1; 0 = not set */
unsigned aws_profile_line(const AwsProfileFile *f, const char *profile, const char *key);
