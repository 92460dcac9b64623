/* The shared files of AWS, parsed. */
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
        unsigned error_line;
} AwsProfileFile;

/** @param text  n bytes and a NUL; cut into pieces, which the result points to
 * @return 0 and *ret, also when lines are malformed; -ENOMEM */
int aws_profile_parse(AwsProfileFile *ret, AwsProfileFormat format, char *text, size_t n);
void aws_profile_done(AwsProfileFile *f);

bool aws_profile_has(const AwsProfileFile *f, const char *profile);
/** @return whether config has a [NAME] and no [profile NAME] */
bool aws_profile_is_misspelt(const AwsProfileFile *f, const char *profile);
/** @param key  lower case @return the value, NULL when it is not there or empty */
const char *aws_profile_get(const AwsProfileFile *f, const char *profile, const char *key);
/** @return the line of that value, 0 = there is none */
unsigned aws_profile_line(const AwsProfileFile *f, const char *profile, const char *key);
