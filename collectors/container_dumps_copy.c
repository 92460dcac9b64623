/* Copying a file as it was at one moment, holes as holes: into a raw file, a piece at a time. */
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <unistd.h>

#include "collectors/container_dumps_private.h"
#include "lib/base/cleanup.h"
#include "lib/base/fs.h"
#include "lib/base/json_out.h"

#define PIECE_BYTES MIB
#define BLOCK_BYTES 4096
#define QUIET_USEC (50 * USEC_PER_MSEC)   /* without a change, before a file is copied */
#define QUIET_DOT_USEC (1 * USEC_PER_SEC) /* it waits to be renamed */
#define COPIES_MAX                                                                                 \
        8 /* begun of one file; each waits twice as long as the one before for it to be quiet */

/* ---- the budget ---- */

/* Counted before it is written, for all users together and for this one. */
static bool take_bytes(Dumps *d, uint64_t n) {
        if (n > d->max_bytes - MIN(d->n_bytes, d->max_bytes))
                return false;
        uint64_t before = atomic_fetch_add(&d->shared->n_bytes, n);
        if (before + n > d->order->max_bytes) {
                atomic_fetch_sub(&d->shared->n_bytes, n);
                return false;
        }
        d->n_bytes += n;
        return true;
}

static bool has_bytes(const Dumps *d, uint64_t n) {
        uint64_t all = atomic_load(&d->shared->n_bytes);
        return n <= d->max_bytes - MIN(d->n_bytes, d->max_bytes) &&
               n <= d->order->max_bytes - MIN(all, d->order->max_bytes);
}

static uint64_t block_at(uint64_t at) {
        return at - at % BLOCK_BYTES;
}

static uint64_t block_end(uint64_t at) {
        return block_at(at + BLOCK_BYTES - 1); /* no file is so long that this could overflow */
}

/* What is to be written counts as what the disk will have of it: in whole blocks, but for the one that the write before has begun. */
static bool take_range(Dumps *d, DumpCopy *c, uint64_t from, uint64_t to) {
        uint64_t first = MAX(block_at(from), c->paid_to), last = block_end(to);
        if (last <= first)
                return true;
        if (!take_bytes(d, last - first))
                return false;
        c->paid_to = last;
        return true;
}

/* @return its number, 0: there may be no more */
static uint32_t take_number(Dumps *d) {
        if (d->n_files >= d->max_files)
                return 0;
        uint32_t before = atomic_fetch_add(&d->shared->n_files, 1);
        if (before >= CONTAINER_FILES_MAX)
                return 0;
        d->n_files++;
        return before + 1;
}

/* ---- its end ---- */

void dumps_copy_done(DumpCopy *c) {
        if (c->unit && c->fd >= 0)
                (void)close(c->fd); /* every write was checked; the agent syncs */
        c->unit = NULL;
        c->fd = -1;
}

static void let_go(DumpFile *f) {
        if (f->fd >= 0)
                (void)close(TAKE_FD(f->fd)); /* read only */
}

static void give_up(Dumps *d, DumpCopy *c, DumpFile *f, const char *detail) {
        _cleanup_free_ char *path = dumps_path(c->unit, f);
        f->state = DUMP_FILE_LEFT_OUT;
        let_go(f);
        if (path)
                dumps_leave_out(d, c->unit, path, detail);
        dumps_copy_done(c);
}

static void give_up_full(Dumps *d, DumpCopy *c, DumpFile *f) {
        char detail[192];
        (void)snprintf(detail, sizeof detail,
                       "it does not fit: %llu bytes may be copied now, %llu of them of this user's "
                       "(raise hook.container_bytes, or make room)",
                       (unsigned long long)d->order->max_bytes, (unsigned long long)d->max_bytes);
        give_up(d, c, f, detail);
}

static void give_up_error(Dumps *d, DumpCopy *c, DumpFile *f, int error) {
        char detail[128];
        (void)snprintf(detail, sizeof detail, "its copy failed: %s", strerror(-error));
        give_up(d, c, f, detail);
}

/* Somebody has written to it meanwhile: what was copied is none of its states. */
static void try_again(Dumps *d, DumpCopy *c, DumpFile *f) {
        struct stat st;
        if (f->n_copies >= COPIES_MAX) {
                give_up(d, c, f, "it was written to again and again while it was copied");
                return;
        }
        if (fstat(f->fd, &st) == 0)
                f->stamp = dumps_stamp(&st);
        f->changed_usec = dumps_now();
        dumps_copy_done(c);
}

static void finish(Dumps *d, DumpCopy *c, DumpFile *f) {
        _cleanup_(strbuf_done) StrBuf b = STRBUF_INIT;
        _cleanup_free_ char *path = dumps_path(c->unit, f);
        struct stat st;
        if (fstat(f->fd, &st) < 0) {
                give_up_error(d, c, f, -errno);
                return;
        }
        DumpStamp now = dumps_stamp(&st);
        if (!dumps_stamp_is(&now, &c->begun)) {
                try_again(d, c, f);
                return;
        }
        json_out_object(&b, NULL);
        json_out_string(&b, "type", "file");
        json_out_string(&b, "unit", c->unit->id);
        json_out_path(&b, "path", path ? path : "");
        json_out_string(&b, "file", c->name);
        json_out_u64(&b, "bytes", now.n_bytes);
        json_out_i64(&b, "mtime_nsec", now.mtime_nsec);
        json_out_end_object(&b);
        f->stamp = now;
        f->state = path && collect_emit(d->out, &b) == 0 ? DUMP_FILE_COPIED : DUMP_FILE_LEFT_OUT;
        if (f->state == DUMP_FILE_LEFT_OUT)
                c->unit->is_incomplete = true;
        let_go(f);
        dumps_copy_done(c);
}

/* ---- a piece ---- */

/* Where data is, at or behind `at`, in whole blocks. What a file system says of it is checked: it may be its user's, and find a byte here and a byte there. */
static void find_data(int fd, const DumpCopy *c, uint64_t *ret_from, uint64_t *ret_to) {
        uint64_t size = c->begun.n_bytes;
        off_t data = lseek(fd, (off_t)c->at, SEEK_DATA);
        uint64_t from = data < 0 ? (errno == ENXIO ? size : c->at) : (uint64_t)data;
        from = MIN(MAX(from, c->at), size);
        off_t hole = lseek(fd, (off_t)from, SEEK_HOLE);
        uint64_t to = hole > 0 && (uint64_t)hole > from ? MIN((uint64_t)hole, size) : size;
        if (from < size) {
                from = MAX(block_at(from), c->at);
                to = MIN(block_end(to), size);
        }
        *ret_from = from;
        *ret_to = MIN(to, from + PIECE_BYTES);
}

static int put(DumpCopy *c, const char *data, size_t n, uint64_t at) {
        if (lseek(c->fd, (off_t)at, SEEK_SET) < 0)
                return -errno;
        int r = fs_write_all(c->fd, data, n);
        c->n_out = at + n;
        return r;
}

/* A file cannot be made longer here but by writing its last byte. */
static void copy_end(Dumps *d, DumpCopy *c, DumpFile *f) {
        uint64_t size = c->begun.n_bytes;
        if (c->n_out < size) {
                if (!take_range(d, c, size - 1, size)) {
                        give_up_full(d, c, f);
                        return;
                }
                int r = put(c, "", 1, size - 1);
                if (r < 0) {
                        give_up_error(d, c, f, r);
                        return;
                }
        }
        finish(d, c, f);
}

static void copy_piece(Dumps *d, DumpCopy *c) {
        DumpFile *f = &c->unit->files[c->file];
        uint64_t from, to;
        if (f->ino != c->ino) { /* another file has taken its name */
                dumps_copy_done(c);
                return;
        }
        if (!dumps_stamp_is(&f->stamp, &c->begun)) { /* a look has found it changed */
                try_again(d, c, f);
                return;
        }
        find_data(f->fd, c, &from, &to);
        if (from >= c->begun.n_bytes) {
                copy_end(d, c, f);
                return;
        }
        ssize_t n = pread(f->fd, c->buffer, (size_t)(to - from), (off_t)from);
        if (n < 0 && errno == EINTR)
                return;
        if (n < 0)
                give_up_error(d, c, f, -errno);
        else if (n == 0) /* it has become shorter */
                try_again(d, c, f);
        else if (!take_range(d, c, from, from + (uint64_t)n))
                give_up_full(d, c, f);
        else {
                int r = put(c, c->buffer, (size_t)n, from);
                c->at = from + (uint64_t)n;
                if (r < 0)
                        give_up_error(d, c, f, r);
        }
}

/* ---- its beginning ---- */

static uint64_t quiet_usec(const DumpFile *f, bool hooks_have_ended) {
        uint64_t usec = QUIET_USEC << f->n_copies;
        return f->name[0] == '.' && !hooks_have_ended ? MAX(usec, QUIET_DOT_USEC) : usec;
}

static bool find_ready(const Dumps *d, bool hooks_have_ended, DumpCopy *c) {
        uint64_t now = dumps_now();
        for (size_t i = 0; i < d->n_units; i++)
                for (size_t k = 0; k < d->units[i]->n_files; k++) {
                        const DumpFile *f = &d->units[i]->files[k];
                        if (f->state == DUMP_FILE_WAITING &&
                            now >= f->changed_usec + quiet_usec(f, hooks_have_ended)) {
                                c->unit = d->units[i];
                                c->file = k;
                                c->fd = -1;
                                return true;
                        }
                }
        return false;
}

static int open_late(const Dumps *d, const DumpUnit *u, const DumpFile *f) {
        struct stat st;
        int fd = fs_open_regular(u->directories[f->directory].fd, f->name, &st);
        if (fd >= 0 && (st.st_uid != d->uid || st.st_ino != f->ino || st.st_dev != f->dev)) {
                (void)close(fd);
                return -ENOENT;
        }
        return fd;
}

static void begin(Dumps *d, DumpCopy *c) {
        DumpFile *f = &c->unit->files[c->file];
        struct stat st;
        dumps_tell_seen(d, c->unit, f);
        if (f->fd < 0)
                f->fd = open_late(d, c->unit, f);
        if (f->fd < 0 || fstat(f->fd, &st) < 0) {
                give_up(d, c, f,
                        f->fd == -ENOENT ? "it was gone before its turn came: too many files were "
                                           "open to keep this one open, too"
                                         : "it could not be opened when its turn came");
                return;
        }
        c->begun = f->stamp = dumps_stamp(&st);
        c->ino = f->ino;
        c->at = c->n_out = c->paid_to = 0;
        f->n_copies++;
        uint32_t number = 0;
        if (has_bytes(d, MIN(c->begun.n_bytes, (uint64_t)MAX(st.st_blocks, 0) * 512)))
                number = take_number(d);
        else {
                give_up_full(d, c, f);
                return;
        }
        if (number == 0) {
                give_up(d, c, f,
                        "too many files: an order has 4096 copies, a user of several half");
                return;
        }
        (void)snprintf(c->name, sizeof c->name, "f%06u", (unsigned)number);
        c->fd = collect_raw_file(d->out, c->name);
        if (c->fd < 0)
                give_up_error(d, c, f, c->fd);
}

bool dumps_copy_step(Dumps *d, DumpCopy *c, bool hooks_have_ended) {
        if (!c->unit) {
                if (!find_ready(d, hooks_have_ended, c))
                        return false;
                begin(d, c);
                return true;
        }
        copy_piece(d, c);
        return true;
}

bool dumps_are_waiting(const Dumps *d) {
        for (size_t i = 0; i < d->n_units; i++)
                for (size_t k = 0; k < d->units[i]->n_files; k++)
                        if (d->units[i]->files[k].state == DUMP_FILE_WAITING)
                                return true;
        return false;
}
