/* Errors of a volume, classified and explained; private to uploaders/volume. */
#pragma once

#include "lib/base/cleanup.h"

/** Replaces the sentence; NULL for lack of memory. */
_printf_(2, 3) void volume_error_set(char **ret_error, const char *fmt, ...);

/** @param error  positive errno
 * @param doing  `cannot <doing> '<path>'`
 * @return UPLOAD_E_FULL, UPLOAD_E_UNREACHABLE, or -errno of a failure of this process */
int volume_error_classify(int error, const char *doing, const char *path, char **ret_error);
/** The same of a small object: UPLOAD_E_DENIED where it is not permitted. */
int volume_error_classify_small(int error, const char *doing, const char *path, char **ret_error);
