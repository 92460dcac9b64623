/* Memory for secrets. Each secret has a mapping of its own, since there are few, so that neither an
 * overrun of a neighbour nor a core file shows it. What is a valid key is checked here, too. */
#include "uploaders/aws/credentials_secret.h"

#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdbool.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "lib/base/cleanup.h"
#include "lib/base/digest.h"
#include "lib/base/parse.h"
#include "lib/base/strbuf.h"

#define MAX_KEY_BYTES ((size_t)64 * 1024)
typedef struct Secret {
        size_t mapped_bytes;
        max_align_t data[];
} Secret;

void *credentials_secret_new(size_t n) {
        size_t bytes;
        Secret *s;

        if (__builtin_add_overflow(n, sizeof *s, &bytes))
                return NULL;
        s = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (s == MAP_FAILED)
                return NULL;
        /* On a kernel without one of these the memory works, but is less hidden. */
        (void)madvise(s, bytes, MADV_DONTDUMP);
        (void)madvise(s, bytes, MADV_WIPEONFORK);
        s->mapped_bytes = bytes;
        return s->data;
}

static char *credentials_secret_dup(const char *text) {
        if (!text)
                return NULL;
        size_t n = strlen(text) + 1;
        char *copy = credentials_secret_new(n);
        return copy ? memcpy(copy, text, n) : NULL;
}

char *credentials_secret_join(const char *a, const char *b) {
        char *joined = credentials_secret_new(strlen(a) + strlen(b) + 1);

        if (joined)
                (void)stpcpy(stpcpy(joined, a), b);
        return joined;
}

void *credentials_secret_free(void *secret) {
        if (!secret)
                return NULL;
        Secret *s = (Secret *)(void *)((char *)secret - offsetof(Secret, data));
        size_t bytes = s->mapped_bytes;

        digest_wipe(s, bytes);
        (void)munmap(s, bytes); /* it was overwritten */
        return NULL;
}

/* Reads to the end or to max + 1 bytes: a file in /proc has no size, and one that grows must not
 * overrun. */
static int read_whole(int fd, char *buf, size_t max_bytes, size_t *ret_n) {
        size_t n = 0;

        while (n <= max_bytes) {
                ssize_t r = read(fd, buf + n, max_bytes + 1 - n);
                if (r < 0 && errno == EINTR)
                        continue;
                if (r < 0)
                        return -errno;
                if (r == 0) {
                        *ret_n = n;
                        return 0;
                }
                n += (size_t)r;
        }
        return -EFBIG;
}

int credentials_secret_read(const char *path, size_t max_bytes, char **ret, size_t *ret_n) {
        struct stat st;
        size_t n = 0;
        _cleanup_close_ int fd = open(path, O_RDONLY | O_CLOEXEC | O_NOCTTY | O_NONBLOCK);
        if (fd < 0 || fstat(fd, &st) < 0)
                return -errno;
        if (!S_ISREG(st.st_mode))
                return -EBADF;
        if (st.st_size > (off_t)max_bytes)
                return -EFBIG;

        _cleanup_(credentials_secret_freep) char *text = credentials_secret_new(max_bytes + 2);
        if (!text)
                return -ENOMEM;
        int r = read_whole(fd, text, max_bytes, &n);
        if (r < 0)
                return r;
        text[n] = '\0';
        if (ret_n)
                *ret_n = n;
        *ret = TAKE_PTR(text);
        return 0;
}

void credentials_secret_wipe_borrowed(const void *data, size_t n) {
        if (data && n > 0)
                digest_wipe((void *)(uintptr_t)data, n);
}

/* Keys travel in header lines and query strings: what is not printable there cannot be right, and
 * a line break would be an attack. */
static bool can_be_key(const char *s) {
        size_t n = strlen(s);

        if (n == 0 || n > MAX_KEY_BYTES)
                return false;
        for (; *s; s++)
                if (*s <= ' ' || *s > '~')
                        return false;
        return true;
}

int credentials_set_init(CredentialsSet *ret, const AwsKeys *keys, uint64_t expires_usec) {
        bool has_token = keys->token && keys->token[0];

        if (!keys->access_key || !keys->secret_key || !can_be_key(keys->access_key) ||
            !can_be_key(keys->secret_key) || (has_token && !can_be_key(keys->token)))
                return -EINVAL;
        CredentialsSet set = {
                .access_key = credentials_secret_dup(keys->access_key),
                .secret_key = credentials_secret_dup(keys->secret_key),
                .token = has_token ? credentials_secret_dup(keys->token) : NULL,
                .expires_usec = expires_usec,
        };
        if (!set.access_key || !set.secret_key || (has_token && !set.token)) {
                credentials_set_done(&set);
                return -ENOMEM;
        }
        *ret = set;
        return 0;
}

void credentials_set_done(CredentialsSet *s) {
        credentials_secret_free(s->access_key);
        credentials_secret_free(s->secret_key);
        credentials_secret_free(s->token);
        *s = (CredentialsSet){ 0 };
}

AwsKeys credentials_set_keys(const CredentialsSet *s) {
        return (AwsKeys){ .access_key = s->access_key,
                          .secret_key = s->secret_key,
                          .token = s->token };
}

char *format_sentence(const char *fmt, ...) {
        StrBuf b = STRBUF_INIT;
        va_list ap;

        va_start(ap, fmt);
        char *raw = strbuf_vformat(fmt, ap);
        va_end(ap);
        if (!raw)
                return NULL;
        strbuf_add_escaped(&b, raw);
        free(raw);
        return strbuf_detach(&b);
}
