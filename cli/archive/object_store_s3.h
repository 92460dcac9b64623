/* The command line's way to a bucket: a loop of its own, credentials, and a client, set up from the
 * options, the configured destination with that bucket, and the environment, in this order. */
#pragma once

#include <stdbool.h>
#include <systemd/sd-event.h>

#include "cli/archive/object_store.h"
#include "cli/common/cli.h"
#include "uploaders/s3/s3_client.h"

struct ConfigDestination;

typedef struct S3Session S3Session;

/** Reads the configuration for the sake of its destinations. Nobody needs one for a bucket: a
 * default file that is missing, faulty or not to be read only leaves the options and the
 * environment (said unless the options say it all).
 * @param ret  NULL = none @return CLI_YES; CLI_USAGE when the one given by --config cannot be used
 */
int s3_session_load_config(const Cli *cli, const S3Options *options, struct Config **ret);

typedef struct S3SessionSpec { /* borrowed */
        const char *bucket;
        const S3Options *options;                    /* NULL = none given */
        const struct ConfigDestination *destination; /* NULL = none configured */
} S3SessionSpec;

/** @param ret_fault  a sentence with -EINVAL and -EOPNOTSUPP, the caller's @return 0, -errno */
int s3_session_new(S3Session **ret, const S3SessionSpec *order, char **ret_fault);
S3Session *s3_session_free(S3Session *s);
DEFINE_CLEANUP(S3Session, s3_session_free);

S3Client *s3_session_client(const S3Session *s);

/** Turns the loop until *done. @return 0, -EINTR when cli_is_interrupted(), -errno */
int s3_session_run(S3Session *s, const bool *done);
/** Turns it once without waiting, so that what is underway continues. @return 0, -EINTR, -errno */
int s3_session_poll(S3Session *s);

/** The destination for a bucket: the one whose fixed prefix is the longest that the key begins
 * with, else the first. Borrowed of c; NULL */
const struct ConfigDestination *s3_session_destination(const struct Config *c, const char *bucket,
                                                       const char *key);

/** As object_store_open(). */
int object_store_s3_new(ObjectStore **ret, const Cli *cli, const ObjectUrl *url,
                        const S3Options *options);
