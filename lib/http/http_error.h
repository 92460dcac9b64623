/* The errors of requests, classified and explained; private to lib/http. */
#pragma once

#include <curl/curl.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct HttpErrorCause { /* borrowed */
        int error;              /* HTTP_E_* */
        const char *place;      /* `host:port` */
        const char *cause;      /* by libcurl or the kernel; NULL or "" = none: it took too long */
        const char *curl_text;  /* names a proxy that could not be connected to; NULL = nothing */
        bool was_connected;     /* and then nothing could be sent */
        unsigned proxy_status;  /* by which a proxy refused; 0 = it did not */
        uint64_t connect_timeout_usec, stall_usec, timeout_usec;
        size_t reply_max_bytes;
} HttpErrorCause;

/** @param curl_text  CURLOPT_ERRORBUFFER's, which may name a proxy
 * @param place  `host:port` of the URL
 * @param is_in_transfer  whether there was a connection
 * @return 0 for CURLE_OK; HTTP_E_* */
int http_error_of_curl(CURLcode code, const char *curl_text, const char *place,
                       bool is_in_transfer);

/** Writes `place: what`, cut at size, without URLs and headers, which may hold secrets. A cause
 * loses its control characters and the capital at its beginning. @return buf */
const char *http_error_explain(const HttpErrorCause *f, char *buf, size_t size);
