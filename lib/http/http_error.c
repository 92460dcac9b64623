/* Why a request failed: which HTTP_E_* a result of libcurl is, and the sentence that tells a
 * person. What is to be done about it is the caller's business. */
#include "lib/http/http_error.h"

#include <stdio.h>
#include <string.h>
#include <strings.h>

#include "lib/base/cleanup.h"
#include "lib/base/parse.h"
#include "lib/http/http.h"
#include "lib/http/http_reply.h"

/* libcurl names the peer it could not connect to, `Failed to connect to HOST port N after …`.
 * @return whether it does; then *buf is `host:port` */
static bool parse_peer(const char *curl_text, char *buf, size_t size) {
        static const char beginning[] = "Failed to connect to ", between[] = " port ";
        const char *host = curl_text ? curl_text + strlen(beginning) : "", *port;

        if (!curl_text || strncmp(curl_text, beginning, strlen(beginning)) != 0 ||
            !(port = strstr(host, between)))
                return false;
        int n = (int)(port - host);
        port += strlen(between);
        (void)snprintf(buf, size, memchr(host, ':', (size_t)n) ? "[%.*s]:%.*s" : "%.*s:%.*s", n,
                       host, (int)strspn(port, "0123456789"), port);
        return true;
}

/* @return whether that peer is not `place`: a proxy then, ours or the environment's */
static bool is_of_proxy(const char *curl_text, const char *place) {
        char there[320];

        return curl_text && parse_peer(curl_text, there, sizeof there) &&
               (strcasecmp(there, place) != 0 || strstr(curl_text, " via "));
}

int http_error_of_curl(CURLcode code, const char *curl_text, const char *place,
                       bool is_in_transfer) {
        switch (code) {
        case CURLE_OK:
                return 0;
        case CURLE_COULDNT_RESOLVE_HOST:
                return HTTP_E_RESOLVE;
        case CURLE_COULDNT_RESOLVE_PROXY:
        case CURLE_PROXY:
                return HTTP_E_PROXY;
        case CURLE_COULDNT_CONNECT:
                return is_of_proxy(curl_text, place) ? HTTP_E_PROXY : HTTP_E_CONNECT;
        case CURLE_INTERFACE_FAILED:
        /* libcurl's own limit on connecting: the only one it knows of */
        case CURLE_OPERATION_TIMEDOUT:
                return HTTP_E_CONNECT;
        case CURLE_SSL_CONNECT_ERROR:
        case CURLE_SSL_CERTPROBLEM:
        case CURLE_SSL_CIPHER:
        case CURLE_SSL_CACERT_BADFILE:
        case CURLE_SSL_ENGINE_INITFAILED:
        case CURLE_SSL_ISSUER_ERROR:
        case CURLE_PEER_FAILED_VERIFICATION:
                return HTTP_E_TLS;
        case CURLE_OUT_OF_MEMORY:
                return HTTP_E_MEMORY;
        default:
                return is_in_transfer ? HTTP_E_CUT : HTTP_E_CONNECT;
        }
}

/* @param f  cause is not NULL. @param buf  for what is formatted */
static const char *sentence(const HttpErrorCause *f, char *buf, size_t size) {
        char text[PARSE_FORMAT_SIZE], more[PARSE_FORMAT_SIZE], proxy[320];
        const char *cause = *f->cause ? f->cause : "unknown cause";

        switch (f->error) {
        case HTTP_E_RESOLVE:
        case HTTP_E_CONNECT:
                if (*f->cause)
                        return cause;
                (void)snprintf(buf, size, "%s within %s",
                               f->error == HTTP_E_RESOLVE ? "the name was not found"
                               : f->was_connected         ? "connected, but nothing could be sent"
                                                          : "no answer",
                               parse_format_duration(text, f->connect_timeout_usec));
                return buf;
        case HTTP_E_STALLED:
                (void)snprintf(buf, size, "nothing moved for %s",
                               parse_format_duration(text, f->stall_usec));
                return buf;
        case HTTP_E_TIMEOUT:
                (void)snprintf(buf, size, "not done within %s",
                               parse_format_duration(text, f->timeout_usec));
                return buf;
        case HTTP_E_TOO_LARGE:
                (void)snprintf(buf, size, "the reply is larger than %s, or its headers than %s",
                               parse_format_bytes(text, f->reply_max_bytes),
                               parse_format_bytes(more, HTTP_HEADERS_MAX));
                return buf;
        case HTTP_E_STOPPED:
                return "stopped by its receiver";
        case HTTP_E_PROXY:
                if (f->proxy_status > 0)
                        (void)snprintf(buf, size, "the proxy refuses with status %u",
                                       f->proxy_status);
                else if (parse_peer(f->curl_text, proxy, sizeof proxy))
                        (void)snprintf(buf, size, "the proxy %s cannot be used: %s", proxy, cause);
                else
                        (void)snprintf(buf, size, "the proxy cannot be used: %s", cause);
                return buf;
        case HTTP_E_MEMORY:
                return "out of memory";
        default:
                return cause;
        }
}

const char *http_error_explain(const HttpErrorCause *f, char *buf, size_t size) {
        char clean[512], formatted[1024];
        HttpErrorCause tidy = *f;

        (void)snprintf(clean, sizeof clean, "%s", f->cause ? f->cause : "");
        for (char *p = clean; *p; p++) /* a server may have had a hand in it */
                if ((unsigned char)*p < ' ' || *p == 0x7f)
                        *p = ' ';
        if (clean[0] >= 'A' && clean[0] <= 'Z' && clean[1] >= 'a' && clean[1] <= 'z')
                clean[0] = (char)(clean[0] - 'A' + 'a');
        tidy.cause = clean;
        (void)snprintf(buf, size, "%s: %.500s", f->place,
                       sentence(&tidy, formatted, sizeof formatted));
        return buf;
}
