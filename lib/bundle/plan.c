/* The list of members, its layout, and the members' tar headers. Scan decides what is a member;
 * writer reads it. */
#include "lib/bundle/plan.h"

#include <archive.h>
#include <archive_entry.h>
#include <endian.h>
#include <errno.h>
#include <string.h>
#include <unistd.h>

#include "lib/base/array.h"
#include "lib/base/cleanup.h"
#include "lib/base/strbuf.h"

typedef struct ExtentList {
        PlanExtent *items; /* owned; NULL when dense or all hole */
        uint32_t n, max;
        uint64_t size_bytes;
        bool is_sparse;
} ExtentList;

/* Between two cuts frames follow each other every PLAN_FRAME_BYTES. */
typedef struct FrameRun {
        uint64_t offset, first_frame;
} FrameRun;

struct Plan {
        PlanMember *members;
        size_t n_members;
        FrameRun *runs;
        size_t n_runs;
        uint32_t n_extents; /* all members together */
        uint64_t stream_bytes, data_bytes, n_frames;
        bool is_frozen;
};

int plan_new(Plan **ret) {
        *ret = calloc(1, sizeof **ret);
        return *ret ? 0 : -ENOMEM;
}

Plan *plan_free(Plan *p) {
        if (!p)
                return NULL;
        for (size_t i = 0; i < p->n_members; i++) {
                free(p->members[i].path);
                free(p->members[i].extents);
        }
        free(p->members);
        free(p->runs);
        free(p);
        return NULL;
}

static int map_extents(ExtentList *map, int fd);
static int tar_header(const PlanMember *m, void **ret, size_t *ret_bytes);

int plan_add(Plan *p, const char *path, MemberKind kind, int fd) {
        uint64_t data_bytes;
        struct stat st;

        if (p->is_frozen || path[0] == '\0' || path[0] == '/' ||
            (p->n_members > 0 && strcmp(p->members[p->n_members - 1].path, path) >= 0))
                return -EINVAL;
        if (fstat(fd, &st) < 0)
                return -errno;
        if (!S_ISREG(st.st_mode))
                return -EINVAL;
        if (__builtin_add_overflow(p->data_bytes, (uint64_t)st.st_size, &data_bytes))
                return -EOVERFLOW;
        if (array_grow(&p->members, p->n_members, sizeof *p->members) < 0)
                return -ENOMEM;

        PlanMember *m = &p->members[p->n_members];
        *m = (PlanMember){
                .bytes = (uint64_t)st.st_size,
                .dev = st.st_dev,
                .ino = st.st_ino,
                .mtime_sec = st.st_mtim.tv_sec,
                .mtime_nsec = (uint32_t)st.st_mtim.tv_nsec,
                .mode = st.st_mode & 07777,
                .uid = st.st_uid,
                .gid = st.st_gid,
                .kind = kind,
        };
        ExtentList extents = { .max = MIN((uint32_t)PLAN_EXTENTS_MAX,
                                          PLAN_EXTENTS_TOTAL_MAX - p->n_extents),
                               .size_bytes = m->bytes };
        int r = map_extents(&extents, fd);
        if (r < 0)
                return r;
        m->path = strdup(path);
        if (!m->path) {
                free(extents.items);
                return -ENOMEM;
        }
        m->extents = extents.items;
        m->n_extents = extents.n;
        m->is_sparse = extents.is_sparse;
        p->n_extents += m->n_extents;
        p->data_bytes = data_bytes;
        p->n_members++;
        return 0;
}

uint64_t plan_stored_bytes(const PlanMember *m) {
        uint64_t bytes = 0;

        if (!m->is_sparse)
                return m->bytes;
        for (uint32_t i = 0; i < m->n_extents; i++)
                bytes += m->extents[i].bytes; /* disjoint parts of the file: cannot overflow */
        return bytes;
}

static uint64_t frames_in(uint64_t bytes) {
        return bytes / PLAN_FRAME_BYTES + (bytes % PLAN_FRAME_BYTES > 0);
}

static int add_run(Plan *p, uint64_t offset) {
        if (array_grow(&p->runs, p->n_runs, sizeof *p->runs) < 0)
                return -ENOMEM;
        FrameRun run = { .offset = offset };
        if (p->n_runs > 0) {
                const FrameRun *last = &p->runs[p->n_runs - 1];
                run.first_frame = last->first_frame + frames_in(offset - last->offset);
        }
        p->runs[p->n_runs++] = run;
        return 0;
}

/* Places a member at the end of the stream, cutting the frame before it where the rule of
 * plan_frame() says. */
static int place_member(Plan *p, PlanMember *m) {
        uint64_t data = plan_stored_bytes(m), bytes, end;

        if (__builtin_add_overflow(data, PLAN_TAR_BLOCK - 1, &data) ||
            __builtin_add_overflow(data - data % PLAN_TAR_BLOCK, m->header_bytes, &bytes) ||
            __builtin_add_overflow(bytes, p->stream_bytes, &end))
                return -EOVERFLOW;
        m->stream_offset = p->stream_bytes;
        uint64_t filled = (m->stream_offset - p->runs[p->n_runs - 1].offset) % PLAN_FRAME_BYTES;
        p->stream_bytes = end;
        if (filled >= PLAN_FRAME_BYTES / 2 && bytes > PLAN_FRAME_BYTES - filled)
                return add_run(p, m->stream_offset);
        return 0;
}

int plan_freeze(Plan *p) {
        if (p->is_frozen)
                return -EINVAL;
        int r = add_run(p, 0);
        for (size_t i = 0; r == 0 && i < p->n_members; i++) {
                _cleanup_free_ void *header = NULL; /* only its length is wanted now */
                size_t n;
                r = plan_member_header(p, i, &header, &n);
                if (r == 0 && n > UINT32_MAX)
                        r = -EOVERFLOW;
                if (r < 0)
                        break;
                p->members[i].header_bytes = (uint32_t)n;
                r = place_member(p, &p->members[i]);
        }
        if (r < 0)
                return r;
        if (__builtin_add_overflow(p->stream_bytes, PLAN_TAR_END, &p->stream_bytes))
                return -EOVERFLOW;
        const FrameRun *last = &p->runs[p->n_runs - 1];
        p->n_frames = last->first_frame + frames_in(p->stream_bytes - last->offset);
        if (p->n_frames > PLAN_FRAMES_MAX)
                return -EOVERFLOW;
        p->is_frozen = true;
        return 0;
}

size_t plan_n_members(const Plan *p) {
        return p->n_members;
}

const PlanMember *plan_member(const Plan *p, size_t i) {
        return &p->members[i];
}

uint64_t plan_stream_bytes(const Plan *p) {
        return p->stream_bytes;
}

uint64_t plan_data_bytes(const Plan *p) {
        return p->data_bytes;
}

uint64_t plan_n_frames(const Plan *p) {
        return p->n_frames;
}

size_t plan_member_at(const Plan *p, uint64_t stream_offset) {
        size_t low = 0, high = p->n_members; /* the first member that begins after stream_offset is
                                                in here */

        if (p->stream_bytes - PLAN_TAR_END <= stream_offset)
                return p->n_members;
        while (low < high) {
                size_t middle = low + (high - low) / 2;
                if (p->members[middle].stream_offset <= stream_offset)
                        low = middle + 1;
                else
                        high = middle;
        }
        return low - 1; /* member 0 begins at 0 */
}

/* The last run that begins at or before a frame or an offset; the first one begins at 0, 0. */
static const FrameRun *find_run(const Plan *p, bool by_frame, uint64_t wanted) {
        size_t low = 0, high = p->n_runs;

        while (high - low > 1) {
                size_t middle = low + (high - low) / 2;
                const FrameRun *run = &p->runs[middle];
                if ((by_frame ? run->first_frame : run->offset) <= wanted)
                        low = middle;
                else
                        high = middle;
        }
        return &p->runs[low];
}

void plan_frame(const Plan *p, uint64_t frame, uint64_t *ret_offset, uint64_t *ret_bytes) {
        const FrameRun *run = find_run(p, true, frame);
        uint64_t run_end = run + 1 < p->runs + p->n_runs ? run[1].offset : p->stream_bytes;
        uint64_t offset = run->offset + (frame - run->first_frame) * PLAN_FRAME_BYTES;

        *ret_offset = offset;
        *ret_bytes = MIN(PLAN_FRAME_BYTES, run_end - offset);
}

uint64_t plan_frame_at(const Plan *p, uint64_t stream_offset) {
        const FrameRun *run = find_run(p, false, stream_offset);
        return run->first_frame + (stream_offset - run->offset) / PLAN_FRAME_BYTES;
}

static void hash_u64(Sha256 *s, uint64_t value) {
        uint64_t little = htole64(value);
        sha256_update(s, &little, sizeof little);
}

static void hash_member(Sha256 *s, const PlanMember *m) {
        sha256_update(s, m->path, strlen(m->path) + 1);
        hash_u64(s, m->bytes);
        hash_u64(s, m->ino);
        hash_u64(s, (uint64_t)m->mtime_sec);
        hash_u64(s, m->mtime_nsec);
        hash_u64(s, m->mode);
        hash_u64(s, m->uid);
        hash_u64(s, m->gid);
        hash_u64(s, m->header_bytes);
        hash_u64(s, m->is_sparse);
        hash_u64(s, m->n_extents);
        for (uint32_t i = 0; i < m->n_extents; i++) {
                hash_u64(s, m->extents[i].offset);
                hash_u64(s, m->extents[i].bytes);
        }
}

void plan_sha256(const Plan *p, uint8_t ret[static SHA256_SIZE]) {
        static const char form[] = "neuron-collectd/plan/1"; /* a new layout needs a new number */
        Sha256 s;

        sha256_init(&s);
        sha256_update(&s, form, sizeof form);
        hash_u64(&s, PLAN_FRAME_BYTES);
        hash_u64(&s, p->n_members);
        for (size_t i = 0; i < p->n_members; i++)
                hash_member(&s, &p->members[i]);
        sha256_final(&s, ret);
}

int plan_member_header(const Plan *p, size_t i, void **ret, size_t *ret_bytes) {
        return tar_header(&p->members[i], ret, ret_bytes);
}

/* Knows the file system's answers and distrusts them; knows nothing of tar. */

static uint64_t extents_end(const ExtentList *map) {
        return map->n == 0 ? 0 : map->items[map->n - 1].offset + map->items[map->n - 1].bytes;
}

static int extents_add(ExtentList *map, uint64_t offset, uint64_t end) {
        if (array_grow(&map->items, map->n, sizeof *map->items) < 0)
                return -ENOMEM;
        map->items[map->n++] = (PlanExtent){ .offset = offset, .bytes = end - offset };
        return 0;
}

/* Adds data in [offset, end), widened, and with the hole before it when that is small. */
static int extents_add_data(ExtentList *map, uint64_t offset, uint64_t end) {
        offset -= offset % PLAN_EXTENT_ALIGN;
        if (end < map->size_bytes)
                end += (PLAN_EXTENT_ALIGN - end % PLAN_EXTENT_ALIGN) % PLAN_EXTENT_ALIGN;
        end = MIN(end, map->size_bytes);
        if (map->size_bytes - end < PLAN_HOLE_MIN)
                end = map->size_bytes;

        uint64_t last = extents_end(map);
        if (offset >= last + PLAN_HOLE_MIN && map->n < map->max)
                return extents_add(map, offset, end);
        if (map->n == 0)
                return extents_add(map, 0, end);
        if (end > last)
                map->items[map->n - 1].bytes += end - last;
        return 0;
}

/* One step: the next data at or after *offset, which moves behind it. Any odd answer makes the rest
 * data. */
static int extents_step(ExtentList *map, int fd, uint64_t *offset) {
        off_t data = lseek(fd, (off_t)*offset, SEEK_DATA);
        if (data < 0 && errno == ENXIO) { /* a hole up to the end */
                *offset = map->size_bytes;
                return 0;
        }
        if (data < 0 || (uint64_t)data < *offset)
                data = (off_t)*offset;
        if ((uint64_t)data >= map->size_bytes) { /* it has grown: only the planned size counts */
                *offset = map->size_bytes;
                return 0;
        }
        off_t hole = map->n == map->max ? -1 : lseek(fd, data, SEEK_HOLE);
        uint64_t end = hole <= data ? map->size_bytes : MIN((uint64_t)hole, map->size_bytes);
        *offset = end;
        return extents_add_data(map, (uint64_t)data, end);
}

static int map_extents(ExtentList *map, int fd) {
        int r = 0;

        if (map->size_bytes < PLAN_HOLE_MIN || map->max == 0)
                return 0;
        for (uint64_t offset = 0; r == 0 && offset < map->size_bytes;)
                r = extents_step(map, fd, &offset);
        map->is_sparse = r == 0 && !(map->n == 1 && map->items[0].offset == 0 &&
                                     extents_end(map) == map->size_bytes);
        if (!map->is_sparse) {
                free(TAKE_PTR(map->items));
                map->n = 0;
        } else if (map->n > 0) { /* shrink to the exact size */
                PlanExtent *exact = realloc(map->items, map->n * sizeof *exact);
                map->items = exact ? exact : map->items;
        }
        return r;
}

/* libarchive knows the pax format and its dialects; data and padding are written by us. So each
 * header is made by an archive of its own that never sees the data: it costs 3 µs, and one that
 * were used again would write the data's bytes as zeros first. */

DEFINE_CLEANUP(struct archive, archive_write_free);

DEFINE_CLEANUP(struct archive_entry, archive_entry_free);

typedef struct TarOutput {
        StrBuf bytes;
        bool is_complete; /* what comes now is not wanted */
} TarOutput;

static la_ssize_t on_output(struct archive *a, void *userdata, const void *data, size_t n) {
        TarOutput *output = userdata;
        (void)a;
        if (output->is_complete)
                return -1; /* or closing the archive would write the member's data, as zeros */
        strbuf_add_n(&output->bytes, data, n);
        return (la_ssize_t)n; /* a failure is remembered by the StrBuf */
}

static void fill_entry(struct archive_entry *e, const PlanMember *m) {
        archive_entry_copy_pathname(e, m->path);
        archive_entry_set_mode(e, S_IFREG | (m->mode & 07777));
        archive_entry_set_uid(e, m->uid);
        archive_entry_set_gid(e, m->gid);
        archive_entry_set_size(e, (int64_t)m->bytes);
        /* libarchive 3.6 spells -6 s + 0.5 s as -6.5 */
        archive_entry_set_mtime(e, (time_t)m->mtime_sec,
                                m->mtime_sec < 0 ? 0 : (long)m->mtime_nsec);
        if (!m->is_sparse)
                return;
        for (uint32_t i = 0; i < m->n_extents; i++)
                archive_entry_sparse_add_entry(e, (int64_t)m->extents[i].offset,
                                               (int64_t)m->extents[i].bytes);
        if (m->n_extents == 0)
                archive_entry_sparse_add_entry(e, 0, 0); /* all hole */
}

/* Names are raw bytes. Those that are not ASCII are marked so (hdrcharset=BINARY): called UTF-8,
 * they would have to be converted, which libarchive cannot in the C locale of a daemon, nor bsdtar
 * when it extracts them there. */
static int mark_name(struct archive *a, const char *path) {
        for (const char *c = path; *c; c++)
                if ((unsigned char)*c >= 0x80)
                        return archive_write_set_format_option(a, "pax", "hdrcharset", "BINARY");
        return ARCHIVE_OK;
}

static int build_header(const PlanMember *m, TarOutput *output) {
        _cleanup_(archive_entry_freep) struct archive_entry *e = archive_entry_new();
        _cleanup_(archive_write_freep) struct archive *a = archive_write_new();
        if (!e || !a)
                return -ENOMEM;
        fill_entry(e, m);
        if (archive_write_set_format_pax(a) != ARCHIVE_OK || mark_name(a, m->path) != ARCHIVE_OK ||
            archive_write_set_bytes_per_block(a, 0) != ARCHIVE_OK || /* 0 = no padding to 10 KiB */
            archive_write_open(a, output, NULL, on_output, NULL) != ARCHIVE_OK)
                return -ENOMEM;

        int r = archive_write_header(a, e);
        if (r >= ARCHIVE_WARN && m->is_sparse && archive_write_data(a, "", 0) < 0) /* the map */
                r = ARCHIVE_FATAL;
        output->is_complete = true;
        return r < ARCHIVE_WARN ? -EIO : 0;
}

static int tar_header(const PlanMember *m, void **ret, size_t *ret_bytes) {
        TarOutput output = { 0 };

        int r = build_header(m, &output);
        if (r == 0)
                r = strbuf_error(&output.bytes);
        if (r < 0) {
                strbuf_done(&output.bytes);
                return r;
        }
        *ret_bytes = output.bytes.n;
        *ret = strbuf_detach(&output.bytes);
        return 0;
}
