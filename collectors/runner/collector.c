/* Where the records and raw files of a collector go.
 *
 * Records and raw files share max_bytes. A record is written completely, with its newline and in
 * one write, or not at all, so that a child that is killed leaves complete lines. What a record
 * contains is the collector's; the supervisor keeps it (snapshot.c, watch.c). */
#include <errno.h>
#include <fcntl.h>
#include <string.h>

#include "collectors/runner/collector.h"
#include "lib/base/cleanup.h"
#include "lib/base/fs.h"

enum { RAW_NAME_MAX = 100 };

/* Counts n bytes before they are written, so that a write that fails cannot be repeated for ever.
 */
static int reserve_bytes(CollectOut *out, size_t n) {
        uint64_t used;
        if (__builtin_add_overflow(out->used_bytes, (uint64_t)n, &used) || used > out->max_bytes) {
                out->is_cut = true;
                return -EFBIG;
        }
        out->used_bytes = used;
        return 0;
}

static int emit(CollectOut *out, StrBuf *record) {
        int r = strbuf_error(record);
        if (r < 0)
                return r;
        if (record->n == 0 || memchr(record->text, '\n', record->n))
                return -EINVAL;
        r = reserve_bytes(out, record->n + 1);
        if (r < 0)
                return r;
        strbuf_add(record, "\n"); /* in the same write, as the head of this file says */
        r = strbuf_error(record);
        return r < 0 ? r : fs_write_all(out->fd, record->text, record->n);
}

int collect_emit(CollectOut *out, StrBuf *record) {
        int r = emit(out, record);
        strbuf_clear(record);
        return r;
}

int collect_emit_fitting(CollectOut *out, StrBuf *record) {
        int r = collect_emit(out, record);
        return r == -EFBIG ? 0 : r;
}

int collect_emit_line(CollectOut *out, const char *line, size_t n) {
        _cleanup_(strbuf_done) StrBuf b = STRBUF_INIT;
        strbuf_add_n(&b, line, n);
        return collect_emit_fitting(out, &b);
}

int collect_write_line(int fd, StrBuf *record) {
        strbuf_add(record, "\n");
        int r = strbuf_error(record);
        return r < 0 ? r : fs_write_all(fd, record->text, record->n);
}

static bool raw_name_is_valid(const char *name) {
        size_t n = strlen(name);
        return n > 0 && n <= RAW_NAME_MAX && name[0] != '.' &&
               strspn(name, "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789._-") ==
                       n;
}

int collect_raw_file(CollectOut *out, const char *name) {
        if (!raw_name_is_valid(name))
                return -EINVAL;
        if (out->dir_fd < 0)
                return -EOPNOTSUPP;
        int fd = openat(out->dir_fd, name, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC,
                        0600);
        return fd < 0 ? -errno : fd;
}

int collect_write(CollectOut *out, int fd, const void *data, size_t n) {
        int r = reserve_bytes(out, n);
        return r < 0 ? r : fs_write_all(fd, data, n);
}
