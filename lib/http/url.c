/* Splits a URL into its parts, by libcurl's parser, and refuses forms that libcurl accepts but that
 * are more likely errors. What a scheme or host means is left to the callers. */
#include "lib/http/url.h"

#include <arpa/inet.h>
#include <ctype.h>
#include <curl/curl.h>
#include <errno.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "lib/base/parse.h"
#include "lib/base/strbuf.h"

static int get_part(char **ret, CURLU *u, CURLUPart part, unsigned flags) {
        char *text;

        CURLUcode code = curl_url_get(u, part, &text, flags);
        if (code != CURLUE_OK)
                return code == CURLUE_OUT_OF_MEMORY ? -ENOMEM : -EINVAL;
        *ret = strdup(text); /* libcurl's memory may be another allocator's */
        curl_free(text);
        return *ret ? 0 : -ENOMEM;
}

static void lower(char *text) {
        for (; *text; text++)
                *text = (char)tolower((unsigned char)*text);
}

static bool is_ipv4(const char *host) {
        struct in_addr address;

        return inet_pton(AF_INET, host, &address) == 1;
}

static bool is_host_name(const char *host) {
        size_t n_label = 0, n = strlen(host);

        for (const char *p = host; *p; p++) {
                bool is_dot = *p == '.';
                if (is_dot ? n_label == 0 : !isalnum((unsigned char)*p) && *p != '-' && *p != '_')
                        return false;
                n_label = is_dot ? 0 : n_label + 1;
                if (n_label > 63)
                        return false;
        }
        return n > 0 && n <= 253;
}

/* libcurl accepts more than we do: `http:host`, `http:///host`, an empty port, `127.1`, %-escapes
 * in a host.
 * @param rest what follows the scheme in the text */
static bool is_plain(const Url *u, const char *rest) {
        size_t n = strncmp(rest, "://", 3) == 0 ? strcspn(rest + 3, "/?#") : 0;

        if (n == 0 || rest[3 + n - 1] == ':')
                return false;
        return u->host[0] == '[' || (is_host_name(u->host) && strcasestr(rest, u->host));
}

static int read_port(Url *u, CURLU *parser) {
        _cleanup_free_ char *port = NULL;
        uint64_t n = 0;

        int r = get_part(&port, parser, CURLUPART_PORT, CURLU_NO_DEFAULT_PORT);
        bool is_own = r == 0;
        if (r == -EINVAL)
                r = get_part(&port, parser, CURLUPART_PORT, CURLU_DEFAULT_PORT);
        if (r == -ENOMEM)
                return r;
        if (r == 0 && parse_u64_range(port, 1, UINT16_MAX, &n) < 0)
                return -EINVAL;
        u->port = (unsigned)n;
        u->authority = strbuf_format(is_own ? "%s:%u" : "%s", u->host, u->port);
        return u->authority ? 0 : -ENOMEM;
}

static int read_parts(Url *u, CURLU *parser, const char *text) {
        char *zone = NULL;

        int r = get_part(&u->scheme, parser, CURLUPART_SCHEME, 0);
        if (r == 0)
                r = get_part(&u->host, parser, CURLUPART_HOST, 0);
        if (r < 0)
                return r;
        if (get_part(&u->path, parser, CURLUPART_PATH, CURLU_URLDECODE) == -ENOMEM)
                return -ENOMEM;
        lower(u->scheme);
        lower(u->host);
        const char *rest = text + strlen(u->scheme);
        if (curl_url_get(parser, CURLUPART_ZONEID, &zone, 0) == CURLUE_OK || !is_plain(u, rest)) {
                curl_free(zone);
                return -EINVAL;
        }
        u->is_address = u->host[0] == '[' || is_ipv4(u->host);
        u->is_origin = !rest[3 + strcspn(rest + 3, "/?#")];
        u->has_query = strpbrk(rest, "?#") != NULL;
        return read_port(u, parser);
}

int url_parse(Url *ret, const char *text) {
        const unsigned flags = CURLU_PATH_AS_IS | CURLU_DISALLOW_USER | CURLU_NON_SUPPORT_SCHEME;
        Url u = { 0 };
        CURLU *parser = curl_url();
        if (!parser)
                return -ENOMEM;

        CURLUcode code = curl_url_set(parser, CURLUPART_URL, text, flags);
        int r = code == CURLUE_OK              ? read_parts(&u, parser, text)
                : code == CURLUE_OUT_OF_MEMORY ? -ENOMEM
                                               : -EINVAL;
        curl_url_cleanup(parser);
        if (r < 0)
                url_done(&u);
        else
                *ret = u;
        return r;
}

void url_done(Url *u) {
        free(u->scheme);
        free(u->host);
        free(u->authority);
        free(u->path);
        *u = (Url){ 0 };
}

bool url_is_http(const Url *u) {
        return strcmp(u->scheme, "http") == 0 || strcmp(u->scheme, "https") == 0;
}
