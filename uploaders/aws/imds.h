/* The instance metadata service, version 2 only: a session token first, then what is asked for.
 * Hop limit and absence are quick failures: 1 s to connect, 5 s in all. @see Amazon EC2 User
 * Guide, "Use IMDSv2" */
#pragma once

#include <systemd/sd-event.h>

#include "lib/base/cleanup.h"

typedef struct Imds Imds;

/** @param environment AWS_EC2_METADATA_SERVICE_ENDPOINT, AWS_EC2_METADATA_SERVICE_ENDPOINT_MODE,
 *   AWS_EC2_METADATA_DISABLED; copied
 * @return 0, -ENOMEM, -ENOTSUP when it is disabled, -EINVAL for an endpoint that is no URL or a
 *   mode that is neither IPv4 nor IPv6 */
int imds_new(Imds **ret, sd_event *event, char *const *environment);
Imds *imds_free(Imds *i); /* not from inside on_done */
DEFINE_CLEANUP(Imds, imds_free);

/** GETs /latest/<path>. One at a time; the next may be asked for from inside on_done. @param
 * on_done text NULL: error is a sentence; text at most 64 KiB, borrowed, overwritten afterwards
 * @return 0, -EBUSY, -ENOMEM, -EINVAL for a path with characters that no URL has */
int imds_get(Imds *i, const char *path,
             void (*on_done)(const char *text, const char *error, void *userdata), void *userdata);

/** @return the status of the answer to the last path; 0 = there was none, not even a token */
unsigned imds_status(const Imds *i);
