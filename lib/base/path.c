/* Paths as text. Paths in the file system are lib/base/fs.h's. */
#include "lib/base/path.h"

#include <errno.h>
#include <stdint.h>
#include <string.h>

#include "lib/base/cleanup.h"
#include "lib/base/parse.h"
#include "lib/base/strbuf.h"

/* The length of s without the slashes at its end; a root keeps one. */
static size_t path_trimmed_size(const char *s) {
        size_t n = strlen(s);

        while (n > 1 && s[n - 1] == '/')
                n--;
        return n;
}

char *path_join(const char *a, const char *b) {
        StrBuf joined = STRBUF_INIT;

        if (a[0] != '\0' && b[0] != '\0') {
                strbuf_add_n(&joined, a, path_trimmed_size(a));
                if (joined.n > 0 && joined.text[joined.n - 1] != '/')
                        strbuf_add(&joined, "/");
                strbuf_add(&joined, b + strspn(b, "/"));
        } else
                strbuf_add(&joined, a[0] != '\0' ? a : b);
        return strbuf_detach(&joined);
}

const char *path_name(const char *path) {
        const char *slash = strrchr(path, '/');

        return slash ? slash + 1 : path;
}

bool path_has_suffix(const char *text, const char *suffix) {
        size_t n = strlen(text), m = strlen(suffix);
        return n > m && strcmp(text + n - m, suffix) == 0;
}

char *path_parent(const char *path) {
        size_t n = path_trimmed_size(path);

        while (n > 0 && path[n - 1] != '/')
                n--;
        while (n > 1 && path[n - 1] == '/')
                n--;
        return n == 0 ? strdup(".") : strndup(path, n);
}

bool path_has_parent(const char *path) {
        while (*path != '\0') {
                size_t size = strcspn(path, "/");

                if (size == 2 && path[0] == '.' && path[1] == '.')
                        return true;
                path += size + strspn(path + size, "/");
        }
        return false;
}

bool path_is_below(const char *path, const char *dir) {
        size_t n = path_trimmed_size(dir);

        if (n == 0 || strncmp(path, dir, n) != 0)
                return false;
        if (path[n] != '\0' && path[n] != '/' && dir[n - 1] != '/')
                return false;
        return !path_has_parent(path + n); /* the text does not show where that leads */
}

char *path_simplify(const char *path) {
        StrBuf b = STRBUF_INIT;
        bool absolute = path[0] == '/';

        while (*path != '\0') {
                size_t size;

                path += strspn(path, "/");
                size = strcspn(path, "/");
                if (size > 0 && !(size == 1 && path[0] == '.')) {
                        if (absolute || b.n > 0)
                                strbuf_add(&b, "/");
                        strbuf_add_n(&b, path, size);
                }
                path += size;
        }
        if (b.n == 0)
                strbuf_add(&b, absolute ? "/" : ".");
        return strbuf_detach(&b);
}

char *path_escape(const char *raw) {
        StrBuf b = STRBUF_INIT;
        size_t n = strlen(raw);

        while (n > 0) {
                unsigned char c = (unsigned char)*raw;
                size_t size = utf8_char_size(raw, n);

                if (size == 0 || c < 0x20 || c == 0x7f || c == '\\') {
                        strbuf_addf(&b, "\\x%02x", c);
                        size = 1;
                } else
                        strbuf_add_n(&b, raw, size);
                raw += size;
                n -= size;
        }
        return strbuf_detach(&b);
}

int path_unescape(const char *escaped, char **ret) {
        _cleanup_(strbuf_done) StrBuf b = STRBUF_INIT;

        while (*escaped != '\0') {
                size_t plain = strcspn(escaped, "\\");
                char hex[3] = { 0 };
                uint8_t byte;

                strbuf_add_n(&b, escaped, plain);
                escaped += plain;
                if (*escaped == '\0')
                        break;
                if (escaped[1] != 'x' || escaped[2] == '\0' || escaped[3] == '\0')
                        return -EINVAL;
                memcpy(hex, escaped + 2, 2);
                if (parse_hex_bytes(hex, &byte, 1) < 0 || byte == 0)
                        return -EINVAL;
                strbuf_add_n(&b, &byte, 1);
                escaped += 4;
        }
        char *raw = strbuf_detach(&b);
        if (!raw)
                return -ENOMEM;
        *ret = raw;
        return 0;
}
