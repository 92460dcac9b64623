#include "lib/http/http_fault.h"

#include <stdio.h>
#include <string.h>
#include <strings.h>

#include "lib/base/clock.h"
#include "lib/base/parse.h"
#include "lib/http/http.h"
#include "lib/http/http_heard.h"

/* `host:port` of whom libcurl could not connect to. @return whether it tells */
static bool who(const char *told, char *buf, size_t size) {
        static const char beginning[] = "Failed to connect to ", between[] = " port ";
        const char *host = told ? told + strlen(beginning) : "", *port;

        if (!told || strncmp(told, beginning, strlen(beginning)) != 0 ||
            !(port = strstr(host, between)))
                return false;
        int n = (int)(port - host);
        port += strlen(between);
        (void)snprintf(buf, size, memchr(host, ':', (size_t)n) ? "[%.*s]:%.*s" : "%.*s:%.*s", n,
                       host, (int)strspn(port, "0123456789"), port);
        return true;
}

bool http_fault_is_elsewhere(const char *told, const char *place) {
        char there[320];

        return told && who(told, there, sizeof there) &&
               (strcasecmp(there, place) != 0 || strstr(told, " via "));
}

static const char *connect_sentence(const HttpFault *f, char *buf, size_t size, const char *span) {
        if (f->cause && *f->cause)
                (void)snprintf(buf, size, "%s", f->cause);
        else if (f->error == HTTP_E_RESOLVE)
                (void)snprintf(buf, size, "the name was not found within %s", span);
        else
                (void)snprintf(buf, size, "%s within %s",
                               f->was_connected ? "connected, but nothing could be sent"
                                                : "no answer",
                               span);
        return buf;
}

static const char *size_sentence(const HttpFault *f, char *buf, size_t size) {
        char body[PARSE_FORMAT_SIZE], headers[PARSE_FORMAT_SIZE];

        (void)snprintf(buf, size, "the reply is larger than %s, or its headers than %s",
                       parse_format_bytes(body, f->reply_max_bytes),
                       parse_format_bytes(headers, HTTP_HEADERS_MAX));
        return buf;
}

/* @param buf  for sentences that are put together */
static const char *sentence(const HttpFault *f, char *buf, size_t size) {
        const char *cause = f->cause && *f->cause ? f->cause : "no cause is told";
        char span[PARSE_FORMAT_SIZE], proxy[320];

        switch (f->error) {
        case HTTP_E_RESOLVE:
        case HTTP_E_CONNECT:
                return connect_sentence(f, buf, size,
                                        parse_format_time(span, f->connect_timeout_usec));
        case HTTP_E_STALLED:
                (void)snprintf(buf, size, "nothing moved for %s",
                               parse_format_time(span, f->stall_usec));
                return buf;
        case HTTP_E_TIMEOUT:
                (void)snprintf(buf, size, "not done within %s",
                               parse_format_time(span, f->timeout_usec));
                return buf;
        case HTTP_E_TOO_LARGE:
                return size_sentence(f, buf, size);
        case HTTP_E_STOPPED:
                return "stopped by its receiver";
        case HTTP_E_PROXY:
                if (f->proxy_status > 0)
                        (void)snprintf(buf, size, "the proxy refuses with status %u",
                                       f->proxy_status);
                else if (who(f->told, proxy, sizeof proxy))
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

const char *http_fault_explain(const HttpFault *f, char *buf, size_t size) {
        char clean[512], put_together[1024];
        HttpFault tidy = *f;

        (void)snprintf(clean, sizeof clean, "%s", f->cause ? f->cause : "");
        for (char *p = clean; *p; p++) /* a server may have had a hand in it */
                if ((unsigned char)*p < ' ' || *p == 0x7f)
                        *p = ' ';
        if (clean[0] >= 'A' && clean[0] <= 'Z' && clean[1] >= 'a' && clean[1] <= 'z')
                clean[0] = (char)(clean[0] - 'A' + 'a');
        tidy.cause = clean;
        (void)snprintf(buf, size, "%s: %s", f->place,
                       sentence(&tidy, put_together, sizeof put_together));
        return buf;
}
