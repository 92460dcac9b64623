/* Packs a directory by plan and writer alone, so that other people's tools can look at the result.
 * make_bundle [-l LEVEL] [-j THREADS] [-m MIB] [-f FIRST_FRAME] [-p PART_MIB] [-t] DIRECTORY OUTPUT
 * With -p it is packed by parts in memory, as for S3.
 * OUTPUT gets the frames from FIRST_FRAME on and, when that is 0, the seek table. Members are
 * listed on stdout: sha256, 's' for a sparse digest, bytes, first frame, offset in the stream,
 * path. */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "lib/base/fs.h"
#include "lib/base/path.h"
#include "lib/bundle/packer.h"

typedef struct Settings {
        int level, threads, mib, part_mib;
        uint64_t first_frame;
        bool tolerant;
        const char *directory, *output;
} Settings;

typedef struct Paths {
        char **items;
        size_t n, n_allocated;
} Paths;

static void die(const char *what, int r) {
        fprintf(stderr, "make_bundle: %s: %s\n", what, r < 0 ? strerror(-r) : "");
        exit(1);
}

static void keep(Paths *paths, char *path) {
        if (paths->n == paths->n_allocated) {
                paths->n_allocated = MAX((size_t)64, paths->n_allocated * 2);
                paths->items = realloc(paths->items, paths->n_allocated * sizeof *paths->items);
                if (!paths->items)
                        die("paths", -ENOMEM);
        }
        paths->items[paths->n++] = path;
}

static void list_files(int root_fd, const char *below, Paths *paths) {
        int fd = openat(root_fd, below[0] ? below : ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
        if (fd < 0)
                die(below, -errno);
        DIR *d = fdopendir(fd);
        for (struct dirent *e; d && (e = readdir(d));) {
                if (strcmp(e->d_name, ".") == 0 || strcmp(e->d_name, "..") == 0)
                        continue;
                char *path = path_join(below, e->d_name);
                if (e->d_type == DT_DIR) {
                        list_files(root_fd, path, paths);
                        free(path);
                } else
                        keep(paths, path);
        }
        closedir(d);
}

static int by_path(const void *a, const void *b) {
        return strcmp(*(char *const *)a, *(char *const *)b);
}

static int open_member(size_t i, const PlanMember *m, void *userdata) {
        (void)i;
        return fs_open_regular(*(int *)userdata, m->path, NULL);
}

static Plan *make_plan(int root_fd) {
        Paths paths = { 0 };
        Plan *plan;
        int r = plan_new(&plan);
        if (r < 0)
                die("plan", r);
        list_files(root_fd, "", &paths);
        qsort(paths.items, paths.n, sizeof *paths.items, by_path);
        for (size_t i = 0; i < paths.n; i++) {
                _cleanup_close_ int fd = fs_open_regular(root_fd, paths.items[i], NULL);
                r = fd < 0 ? fd : plan_add(plan, paths.items[i], MEMBER_OTHER, fd);
                if (r < 0)
                        die(paths.items[i], r);
                free(paths.items[i]);
        }
        free(paths.items);
        r = plan_freeze(plan);
        if (r < 0)
                die("freeze", r);
        return plan;
}

static void list_members(const Plan *plan, const BundleWriter *w) {
        for (size_t i = 0; i < plan_n_members(plan); i++) {
                const PlanMember *m = plan_member(plan, i);
                const MemberResult *result = bundle_writer_member(w, i);
                char hex[SHA256_HEX_SIZE];
                _cleanup_free_ char *path = path_escape(m->path);
                printf("%s %c %" PRIu64 " %" PRIu64 " %" PRIu64 " %s %s\n",
                       digest_hex(result->sha256, SHA256_SIZE, hex),
                       result->is_sparse_digest ? 's' : '-', m->bytes,
                       plan_frame_at(plan, m->stream_offset), m->stream_offset, path,
                       result->detail ? result->detail : "");
        }
}

static void pack(const Settings *s, const Plan *plan, const BundleWriterOptions *options) {
        BundleWriter *w;
        BundleFrame frame;
        Parts parts;
        bool closed;
        const void *table;
        size_t table_bytes;

        int r = bundle_writer_new(&w, plan, options);
        if (r < 0)
                die("writer", r);
        int out = open(s->output, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
        if (out < 0)
                die(s->output, -errno);
        parts_init(&parts, 8 * MIB);
        while ((r = bundle_writer_next(w, &frame)) == WRITER_FRAME) {
                uint64_t end = frame.stream_offset + frame.stream_bytes;
                r = parts_add_frame(&parts, frame.data, frame.bytes, plan_stream_bytes(plan) - end,
                                    &closed);
                if (r == 0)
                        r = fs_write_all(out, frame.data, frame.bytes);
                if (r < 0)
                        die(s->output, r);
        }
        if (r == WRITER_E_CHANGED)
                die("a member has changed", 0);
        if (r == 0 && s->first_frame == 0)
                r = bundle_writer_seek_table(w, &table, &table_bytes);
        if (r == 0 && s->first_frame == 0)
                r = parts_finish(&parts, table, table_bytes);
        if (r == 0 && s->first_frame == 0)
                r = fs_write_all(out, table, table_bytes);
        if (r < 0)
                die("packing", r);
        list_members(plan, w);
        fprintf(stderr, "frames %" PRIu64 " parts %zu read %" PRIu64 "\n", plan_n_frames(plan),
                parts.n, bundle_writer_bytes_read(w));
        parts_done(&parts);
        (void)close(out);
        bundle_writer_free(w);
}

static void pack_parts(const Settings *s, const Plan *plan, const BundleWriterOptions *options) {
        const PackerOptions packer_options = { .writer = *options,
                                               .part_size = (uint64_t)s->part_mib * MIB };
        PackedPart part;
        Packer *p;

        int r = packer_new(&p, plan, &packer_options);
        if (r != 0)
                die("packer", r);
        int out = open(s->output, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
        if (out < 0)
                die(s->output, -errno);
        part.data = malloc(packer_buffer_bytes(p));
        if (!part.data)
                die("memory", -ENOMEM);
        while ((r = packer_next(p, &part)) == PACKER_PART) {
                r = fs_write_all(out, part.data, part.row.bytes);
                if (r < 0)
                        die(s->output, r);
                packed_row_done(&part.row);
        }
        if (r != 0)
                die("packing", r);
        list_members(plan, packer_status(p).writer);
        fprintf(stderr, "frames %" PRIu64 " parts %zu read %" PRIu64 "\n", plan_n_frames(plan),
                packer_status(p).parts->n, packer_status(p).bytes_read);
        (void)close(out);
        free(part.data);
        packer_free(p);
}

int main(int argc, char **argv) {
        Settings s = { .level = 3, .threads = 2, .mib = 48 };
        WorkerPool *pool;

        for (int c; (c = getopt(argc, argv, "l:j:m:f:p:t")) != -1;) {
                switch (c) {
                case 'l':
                        s.level = atoi(optarg);
                        break;
                case 'j':
                        s.threads = atoi(optarg);
                        break;
                case 'm':
                        s.mib = atoi(optarg);
                        break;
                case 'f':
                        s.first_frame = strtoull(optarg, NULL, 10);
                        break;
                case 'p':
                        s.part_mib = atoi(optarg);
                        break;
                case 't':
                        s.tolerant = true;
                        break;
                default:
                        return 2;
                }
        }
        if (argc - optind != 2)
                return 2;
        s.directory = argv[optind];
        s.output = argv[optind + 1];
        int root_fd = open(s.directory, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
        if (root_fd < 0)
                die(s.directory, -errno);

        int r = worker_pool_new(&pool, NULL, "compress", (unsigned)s.threads, WORKER_NORMAL);
        if (r < 0)
                die("threads", r);
        Plan *plan = make_plan(root_fd);
        (s.part_mib > 0 ? pack_parts
                        : pack)(&s, plan,
                                &(BundleWriterOptions){ .compressors = pool,
                                                        .level = s.level,
                                                        .memory_bytes = (uint64_t)s.mib * MIB,
                                                        .tolerant = s.tolerant,
                                                        .source = SOURCE_DIRECTORY,
                                                        .first_frame = s.first_frame,
                                                        .without_results = s.first_frame > 0,
                                                        .open_member = open_member,
                                                        .userdata = &root_fd });
        plan_free(plan);
        worker_pool_free(pool);
        (void)close(root_fd);
        return 0;
}
