/* Times in what AWS answers. Pure. */
#pragma once

#include <stdint.h>

/** `2026-05-27T05:12:33.000Z`, as in XML and JSON (ISO 8601): with or without a fraction, `Z` or
 * `+01:00`.
 * @return 0 and microseconds since 1970, -EINVAL (also for what lies before 1970) */
int aws_time_parse(const char *text, uint64_t *ret_usec);

/** `Wed, 27 May 2026 05:12:33 GMT`, as in the headers Date and Retry-After (RFC 9110, 5.6.7: the
 * form to send since 1999).
 * @return 0 and microseconds since 1970, -EINVAL */
int http_date_parse(const char *text, uint64_t *ret_usec);
