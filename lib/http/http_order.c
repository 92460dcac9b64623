#include "lib/http/http_order.h"

#include <errno.h>
#include <string.h>
#include <strings.h>

#define URL_MAX                                                                                    \
        (32 *                                                                                      \
         KIB) /* a key of 1,024 bytes is 3 KiB when all of it is escaped; queries may have several such */

static bool is_method(const char *method) {
        static const char *const methods[] = { "GET", "PUT", "POST", "HEAD", "DELETE" };

        for (size_t i = 0; i < ELEMENTSOF(methods); i++)
                if (strcmp(method, methods[i]) == 0)
                        return true;
        return false;
}

static bool is_url(const char *url) {
        size_t n = 0;

        for (; url[n] && n <= URL_MAX; n++)
                if (url[n] <= ' ' || url[n] >= 0x7f ||
                    url[n] == '#') /* char may be signed or not */
                        return false;
        return n > 0 && n <= URL_MAX;
}

bool http_order_is_sound(const HttpOrder *o) {
        if (!is_method(o->method) || !is_url(o->url) || !o->on_done)
                return false;
        if (o->body)
                return strcmp(o->method, "HEAD") != 0;
        return o->body_bytes == 0;
}

static bool is_token_char(char c) { /* RFC 9110, 5.6.2 */
        return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
               (c && strchr("!#$%&'*+-.^_`|~", c));
}

int http_order_header(const char *line, char **ret) {
        size_t n_name = 0;
        char *copy;

        while (is_token_char(line[n_name]))
                n_name++;
        if (n_name == 0 || line[n_name] != ':' || strpbrk(line, "\r\n"))
                return -EINVAL;
        copy = strdup(line);
        if (!copy)
                return -ENOMEM;
        if (copy[n_name + 1 + strspn(copy + n_name + 1, " \t")] == '\0') {
                copy[n_name] = ';';
                copy[n_name + 1] = '\0';
        }
        *ret = copy;
        return 0;
}

bool http_order_has_header(const HttpOrder *o, const char *name) {
        size_t n = strlen(name);

        for (const char *const *line = o->headers; line && *line; line++)
                if (strncasecmp(*line, name, n) == 0 && (*line)[n] == ':')
                        return true;
        return false;
}
