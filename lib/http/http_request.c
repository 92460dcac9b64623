/* A request as a handle of libcurl: checks what the caller gives, and sets the options that all
 * requests of a pool share and those that this one has. Sending, the callbacks, and what is
 * received are left to http.c. */
#include "lib/http/http_request.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "lib/base/clock.h"
#include "lib/base/parse.h"

#define QUICK_EXIT_SINCE 0x075700   /* libcurl 7.87.0 */
#define SEND_BUFFER_MIN (16 * KIB)  /* CURLOPT_UPLOAD_BUFFERSIZE takes no less */
#define SEND_BUFFER_MAX (128 * KIB) /* larger ones need as much CPU, measured up to 2 MiB */
#define RECEIVE_BUFFER (128 * KIB)  /* of pieces for on_data */
#define HEAD_BYTES 128              /* of the request line and headers that are made here, about */

/* ── what is valid ── */

/* A key of 1,024 bytes is 3 KiB when all of it is escaped; queries may have several such. */
#define URL_MAX (32 * KIB)
static bool is_url(const char *url) {
        size_t n = 0;

        for (; url[n] && n <= URL_MAX; n++)
                if (url[n] <= ' ' || url[n] >= 0x7f ||
                    url[n] == '#') /* char may be signed or not */
                        return false;
        return n > 0 && n <= URL_MAX;
}

bool http_request_is_head(const HttpRequestOptions *o) {
        return strcmp(o->method, "HEAD") == 0;
}

bool http_request_is_valid(const HttpRequestOptions *o) {
        static const char *const methods[] = { "GET", "PUT", "POST", "HEAD", "DELETE" };

        if (parse_word(o->method, methods, ELEMENTSOF(methods)) < 0 || !is_url(o->url) ||
            !o->on_done)
                return false;
        if (o->body)
                return !http_request_is_head(o);
        return o->body_bytes == 0;
}

static bool is_token_char(char c) { /* RFC 9110, 5.6.2 */
        return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
               (c && strchr("!#$%&'*+-.^_`|~", c));
}

int http_request_format_header(const char *line, char **ret) {
        size_t n_name = 0;

        while (is_token_char(line[n_name]))
                n_name++;
        if (n_name == 0 || line[n_name] != ':' || strpbrk(line, "\r\n"))
                return -EINVAL;
        char *copy = strdup(line);
        if (!copy)
                return -ENOMEM;
        if (copy[n_name + 1 + strspn(copy + n_name + 1, " \t")] == '\0') {
                copy[n_name] = ';';
                copy[n_name + 1] = '\0';
        }
        *ret = copy;
        return 0;
}

/* ── what all requests share ── */

static int append(struct curl_slist **list, const char *line) {
        struct curl_slist *longer = curl_slist_append(*list, line);

        if (!longer)
                return -ENOMEM;
        *list = longer;
        return 0;
}

static CURLcode set_pattern(CURL *easy, const HttpRequestPattern *p, const HttpPoolOptions *o,
                            uint64_t connect_timeout_usec) {
        CURLcode code = CURLE_OK;

#if LIBCURL_VERSION_NUM >= 0x075500
        CURL_SET(CURLOPT_PROTOCOLS_STR, "http,https");
#else
        CURL_SET(CURLOPT_PROTOCOLS, (long)(CURLPROTO_HTTP | CURLPROTO_HTTPS));
#endif
        CURL_SET(CURLOPT_HTTP_VERSION, (long)CURL_HTTP_VERSION_1_1);
        CURL_SET(CURLOPT_NOSIGNAL, 1L);
        CURL_SET(CURLOPT_TCP_NODELAY, 1L);
        CURL_SET(CURLOPT_TCP_KEEPALIVE, 1L);
        CURL_SET(CURLOPT_TCP_KEEPIDLE, 30L);
        CURL_SET(CURLOPT_TCP_KEEPINTVL, 15L);
        CURL_SET(CURLOPT_SSLVERSION, (long)CURL_SSLVERSION_TLSv1_2);
        CURL_SET(CURLOPT_SSL_VERIFYPEER, 1L);
        CURL_SET(CURLOPT_SSL_VERIFYHOST, 2L);
        if (o->ca_file && *o->ca_file) {
                CURL_SET(CURLOPT_CAINFO, o->ca_file);
                CURL_SET(CURLOPT_CAPATH,
                         NULL); /* that file instead of the system's, not on top of it */
        }
        if (o->proxy && *o->proxy)
                CURL_SET(CURLOPT_PROXY, strcmp(o->proxy, "-") == 0 ? "" : o->proxy);
        CURL_SET(CURLOPT_SUPPRESS_CONNECT_HEADERS, 1L);
        /* Ours ends first. At half of its own libcurl tries a host's next address. */
        CURL_SET(
                CURLOPT_CONNECTTIMEOUT_MS,
                (long)MIN(connect_timeout_usec / USEC_PER_MSEC * 3 / 2 + 100, (uint64_t)INT32_MAX));
#if LIBCURL_VERSION_NUM >= QUICK_EXIT_SINCE
        if (p->can_abandon_lookups)
                CURL_SET(CURLOPT_QUICK_EXIT, 1L);
#else
        (void)p;
#endif
        return code;
}

int http_request_pattern_init(HttpRequestPattern *p, const HttpPoolOptions *o,
                              uint64_t connect_timeout_usec) {
        const curl_version_info_data *curl = curl_version_info(CURLVERSION_NOW);

        *p = (HttpRequestPattern){ 0 };
        if (!(curl->features & CURL_VERSION_ASYNCHDNS) || !(curl->features & CURL_VERSION_SSL))
                return -EOPNOTSUPP;
        p->can_abandon_lookups =
                LIBCURL_VERSION_NUM >= QUICK_EXIT_SINCE && curl->version_num >= QUICK_EXIT_SINCE;
        p->easy = curl_easy_init();
        if (!p->easy || set_pattern(p->easy, p, o, connect_timeout_usec) != CURLE_OK)
                return -ENOMEM;
        for (const char *const *line = o->resolve; line && *line; line++) {
                int r = append(&p->resolve, *line);
                if (r < 0)
                        return r;
        }
        return 0;
}

void http_request_pattern_done(HttpRequestPattern *p) {
        if (p->easy)
                curl_easy_cleanup(p->easy);
        curl_slist_free_all(p->resolve);
        *p = (HttpRequestPattern){ 0 };
}

static CURL *new_handle(const HttpRequestPattern *p) {
        CURL *easy = curl_easy_duphandle(p->easy);

        if (easy && curl_easy_setopt(easy, CURLOPT_RESOLVE, p->resolve) != CURLE_OK) {
                curl_easy_cleanup(easy);
                return NULL;
        }
        return easy;
}

/* ── one request ── */

static CURLcode set_request(CURL *easy, const HttpRequest *q, const HttpRequestOptions *o) {
        bool has_body = o->body || strcmp(o->method, "PUT") == 0 || strcmp(o->method, "POST") == 0;
        CURLcode code = CURLE_OK;

        CURL_SET(CURLOPT_URL, o->url);
        CURL_SET(CURLOPT_PATH_AS_IS, 1L);
        CURL_SET(CURLOPT_USERAGENT, "neuron-collectd/" PACKAGE_VERSION);
        CURL_SET(CURLOPT_HTTPHEADER, q->headers);
        CURL_SET(CURLOPT_FRESH_CONNECT, o->never_repeat ? 1L : 0L);
        if (o->on_data)
                CURL_SET(CURLOPT_BUFFERSIZE, (long)RECEIVE_BUFFER);
        /* of whatever method: the upload is the one way of sending that adds no Content-Type */
        if (has_body) {
                CURL_SET(CURLOPT_UPLOAD, 1L);
                CURL_SET(CURLOPT_INFILESIZE_LARGE, (curl_off_t)o->body_bytes);
                CURL_SET(CURLOPT_UPLOAD_BUFFERSIZE,
                         (long)MIN(MAX(o->body_bytes, SEND_BUFFER_MIN), SEND_BUFFER_MAX));
        }
        if (http_request_is_head(o))
                CURL_SET(CURLOPT_NOBODY, 1L);
        else
                CURL_SET(CURLOPT_CUSTOMREQUEST, o->method);
        return code;
}

static int set_headers(HttpRequest *q, const HttpRequestOptions *o) {
        for (const char *const *line = o->headers; line && *line; line++) {
                _cleanup_free_ char *spelled = NULL;
                int r = http_request_format_header(*line, &spelled);

                if (r == 0)
                        r = append(&q->headers, spelled);
                if (r < 0)
                        return r;
                q->head_bytes += strlen(*line) + 2;
        }
        return append(&q->headers,
                      "Expect:"); /* else libcurl waits a second for servers that do not know it */
}

int http_request_init(HttpRequest *q, const HttpRequestPattern *pattern,
                      const HttpRequestOptions *o) {
        *q = (HttpRequest){ .head_bytes = HEAD_BYTES + strlen(o->url) };
        int r = set_headers(q, o);
        if (r < 0)
                return r;
        q->easy = new_handle(pattern);
        return q->easy && set_request(q->easy, q, o) == CURLE_OK ? 0 : -ENOMEM;
}

void http_request_done(HttpRequest *q) {
        if (q->easy)
                curl_easy_cleanup(q->easy);
        curl_slist_free_all(q->headers);
        *q = (HttpRequest){ 0 };
}
