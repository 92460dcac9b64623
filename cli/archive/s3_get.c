#include "cli/archive/s3_get.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "lib/base/parse.h"

#define MAX_TRIES 4
#define GROW_BYTES (64 * KIB)

static int begin(S3Get *g);

static void finish(S3Get *g, int outcome) {
        g->outcome = outcome;
        g->done = true;
}

static void fail(S3Get *g, int outcome, const char *fmt, ...) _printf_(3, 4);
static void fail(S3Get *g, int outcome, const char *fmt, ...) {
        va_list ap;
        va_start(ap, fmt);
        free(g->error);
        if (vasprintf(&g->error, fmt, ap) < 0)
                g->error = NULL;
        va_end(ap);
        finish(g, outcome);
}

/* ---- what comes ---- */

static int on_data(const void *data, size_t n, void *userdata) {
        S3Get *g = userdata;
        if (n > g->bytes - g->n)
                return g->stopped = -EFBIG;
        if (n >= g->n_allocated - g->n) { /* one more for the NUL */
                size_t more = MIN(g->bytes + 1, MAX(2 * g->n_allocated, g->n + n + GROW_BYTES));
                char *grown = realloc(g->data, more);
                if (!grown)
                        return g->stopped = -ENOMEM;
                g->data = grown;
                g->n_allocated = more;
        }
        memcpy(g->data + g->n, data, n);
        g->n += n;
        g->data[g->n] = '\0';
        return 0;
}

typedef struct ContentRange {
        uint64_t first, last, total;
} ContentRange;

/* `bytes 0-99/1234`. @return 0, -EINVAL */
static int parse_content_range(const char *text, ContentRange *ret) {
        static const char unit[] = "bytes ";
        char copy[3 * 21]; /* three numbers of 64 bits and what is between them */
        ContentRange range;
        if (!text || strncmp(text, unit, strlen(unit)) != 0)
                return -EINVAL;
        text += strlen(unit);
        size_t n = strlen(text);
        if (n >= sizeof copy)
                return -EINVAL;
        memcpy(copy, text, n + 1);
        char *last = strchr(copy, '-'), *total = last ? strchr(last, '/') : NULL;
        if (!total)
                return -EINVAL;
        *last++ = *total++ = '\0';
        if (parse_u64(copy, &range.first) < 0 || parse_u64(last, &range.last) < 0 ||
            parse_u64(total, &range.total) < 0 || range.first > range.last ||
            range.last >= range.total)
                return -EINVAL;
        *ret = range;
        return 0;
}

/* What came is where it was to begin, ends within what was asked for, and is as long as the server says. It may be less: a server need
 * not give all of a range at once. */
static bool is_expected(const S3Get *g, const ContentRange *range) {
        return range->first == g->offset + g->n_before &&
               range->last - range->first < g->bytes - g->n_before &&
               range->last - range->first + 1 == g->n - g->n_before;
}

/* The answer is there, and fine as far as HTTP goes. @return whether the object goes on behind what has come */
static bool check_range(S3Get *g, const S3Result *result) {
        ContentRange range;
        uint64_t total = g->n;
        const char *bucket = s3_client_bucket(g->client),
                   *text = result->header(result, "content-range");
        if (g->is_whole && g->n_before == 0)
                return false;
        if (result->status == 200 && g->offset + g->n_before > 0) {
                g->n = g->n_before;
                fail(g, OBJECT_E_FAILED,
                     "the server ignores ranges: it sent all of 's3://%s/%s' when a part was asked "
                     "for",
                     bucket, g->key);
                return false;
        }
        if (result->status == 206) {
                if (parse_content_range(text, &range) < 0 || !is_expected(g, &range)) {
                        g->n = g->n_before;
                        fail(g, OBJECT_E_FAILED,
                             "the server sent another range of 's3://%s/%s' (%s)", bucket, g->key,
                             text ? text : "it does not say which");
                        return false;
                }
                total = range.total;
        }
        if (g->object_bytes && total != g->object_bytes) {
                fail(g, OBJECT_E_FAILED,
                     "'s3://%s/%s' has %" PRIu64 " bytes, its manifest says %" PRIu64, bucket,
                     g->key, total, g->object_bytes);
                return false;
        }
        return g->n < g->bytes && g->offset + g->n < total;
}

static bool may_go_on(S3Verdict verdict) {
        return verdict == S3_RETRY || verdict == S3_UNREACHABLE || verdict == S3_CORRUPTED;
}

/* on_data() has ended it. */
static void say_stopped(S3Get *g) {
        const char *bucket = s3_client_bucket(g->client);
        if (g->stopped != -EFBIG)
                finish(g, g->stopped);
        else if (g->is_whole)
                fail(g, OBJECT_E_TOO_LARGE, "'s3://%s/%s' has more than %zu bytes", bucket, g->key,
                     g->bytes);
        else
                fail(g, OBJECT_E_FAILED,
                     "the server sent more of 's3://%s/%s' than the range that was asked for",
                     bucket, g->key);
}

static void on_done(const S3Result *result, void *userdata) {
        S3Get *g = userdata;
        g->call = NULL;
        const S3Answer *answer = result->answer;
        bool goes_on = false;
        if (g->stopped < 0)
                say_stopped(g);
        else if (answer->verdict == S3_OK)
                goes_on = check_range(g, result);
        else if (g->n == g->bytes) /* cut behind the last byte that was wanted */
                finish(g, 0);
        else
                goes_on = g->n > g->n_before && may_go_on(answer->verdict);
        if (g->done)
                return;
        if (goes_on && g->n > g->n_before) {
                int r = begin(g);
                if (r < 0)
                        finish(g, r);
        } else if (answer->verdict != S3_OK || goes_on)
                fail(g, answer->verdict == S3_NOT_FOUND ? OBJECT_E_NOT_FOUND : OBJECT_E_FAILED,
                     "%s", answer->sentence ? answer->sentence : "the request failed");
        else if (g->n < g->bytes && !g->may_be_short && !g->is_whole)
                fail(g, OBJECT_E_FAILED, "'s3://%s/%s' ends after %" PRIu64 " bytes",
                     s3_client_bucket(g->client), g->key, g->offset + g->n);
        else
                finish(g, 0);
}

/* ---- asking ---- */

static int begin(S3Get *g) {
        char range[64];
        uint64_t first = g->offset + g->n;
        SignPair header = { "range", range };
        snprintf(range, sizeof range, "bytes=%" PRIu64 "-%" PRIu64, first,
                 g->offset + g->bytes - 1);
        g->n_before = g->n;
        return s3_call_new(&g->call, g->client,
                           &(S3Order){ .operation = S3_GET_OBJECT,
                                       .key = g->key,
                                       .headers = &header,
                                       .n_headers = g->is_whole && g->n == 0 ? 0 : 1,
                                       .on_data = on_data,
                                       .max_tries = MAX_TRIES,
                                       .on_done = on_done,
                                       .userdata = g });
}

int s3_get_start(S3Get *g, S3Client *client) {
        g->client = client;
        g->n_allocated = g->is_whole ? GROW_BYTES : g->bytes + 1;
        g->data = malloc(g->n_allocated);
        if (!g->data)
                return -ENOMEM;
        g->data[0] = '\0';
        return begin(g);
}

void s3_get_done(S3Get *g) {
        s3_call_cancel(g->call);
        free(g->data);
        free(g->error);
        *g = (S3Get){ 0 };
}
