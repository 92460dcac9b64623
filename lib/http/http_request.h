/* Requests as handles of libcurl; private to lib/http. */
#pragma once

#include <curl/curl.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "lib/http/http.h"

/* Sets an option of `easy` unless an earlier one has failed; `code` tells. */
#define CURL_SET(option, value)                                                                    \
        do {                                                                                       \
                if (code == CURLE_OK)                                                              \
                        code = curl_easy_setopt(easy, option, value);                              \
        } while (0)

typedef struct HttpRequestPattern { /* what the requests of a pool share */
        CURL *easy;
        struct curl_slist *resolve;
        /* a handle can be removed in the middle of a look-up without waiting for its end */
        bool can_abandon_lookups;
} HttpRequestPattern;

/** @return 0, -ENOMEM, -EOPNOTSUPP as http_pool_new(); to be freed in any case */
int http_request_pattern_init(HttpRequestPattern *p, const HttpPoolOptions *o,
                              uint64_t connect_timeout_usec);
void http_request_pattern_done(HttpRequestPattern *p);

typedef struct HttpRequest {
        CURL *easy; /* without callbacks: they are the caller's */
        struct curl_slist *headers;
        size_t head_bytes; /* of the request line and the headers, about */
} HttpRequest;

/** @param o  valid. @return 0, -ENOMEM, -EINVAL a header is malformed; to be freed in any case */
int http_request_init(HttpRequest *q, const HttpRequestPattern *pattern,
                      const HttpRequestOptions *o);
void http_request_done(HttpRequest *q);

bool http_request_is_head(const HttpRequestOptions *o);
/** @return whether the method is known, the body fits it, and the URL can be sent as it is:
 *   printable ASCII without blanks and `#`, at most 32 KiB. url_parse() checks the rest. */
bool http_request_is_valid(const HttpRequestOptions *o);
/** Formats a `Name: value` line as libcurl requires it: an empty value, with which libcurl would
 * omit the header, by a semicolon. @return 0 and *ret, the caller's; -EINVAL, -ENOMEM */
int http_request_format_header(const char *line, char **ret);
