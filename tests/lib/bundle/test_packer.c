/* Parts in memory, and going on with them: whatever the moment of the interruption, the bytes and
 * the manifest are those of a run that nothing interrupted. */
#include "lib/bundle/packer.h"

#include <elf.h>
#include <endian.h>
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>

#include "tests/harness/unit.h"

#include "lib/base/fs.h"
#include "lib/base/path.h"
#include "lib/base/strbuf.h"
#include "lib/bundle/manifest.h"

#define PART_SIZE (MIB + 512 * KIB)
#define N_SMALL 300

static char root[64];
static int root_fd = -1;

/* ---- the tree ---- */

static void noise(uint8_t *data, size_t n, uint64_t seed) {
        uint64_t x = seed * 0x9e3779b97f4a7c15u + 1;
        for (size_t i = 0; i < n; i++) {
                x ^= x << 13;
                x ^= x >> 7;
                x ^= x << 17;
                data[i] = (uint8_t)(x >> 32);
        }
}

static int create(const char *name) {
        int fd = openat(root_fd, name, O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0640);
        assert_true(fd >= 0);
        return fd;
}

static void put(int fd, uint64_t offset, const void *data, size_t n) {
        assert_int_equal(pwrite(fd, data, n, (off_t)offset), n);
}

static void put_noise(int fd, uint64_t offset, size_t n) {
        _cleanup_free_ uint8_t *data = malloc(n);
        assert_non_null(data);
        noise(data, n, offset + 7);
        put(fd, offset, data, n);
}

static void put_u64(uint8_t *p, uint64_t value) {
        value = htole64(value);
        memcpy(p, &value, sizeof value);
}

static void make_sparse(const char *name) {
        _cleanup_close_ int fd = create(name);
        put_noise(fd, 3 * MIB, 2 * MIB + 4096);
        put_noise(fd, 17 * MIB, 3 * MIB + 1);
        put_noise(fd, 30 * MIB, 4096);
        assert_int_equal(ftruncate(fd, 40 * (off_t)MIB + 3), 0);
}

/* More zeros than are hashed, and behind them a run of written ones in which a frame (and with it a
 * part) ends. */
static void make_zeros(const char *name) {
        _cleanup_close_ int fd = create(name);
        _cleanup_free_ uint8_t *zeros = calloc(1, 3 * MIB);
        put_noise(fd, 520 * MIB, 2 * MIB);
        put(fd, 522 * MIB, zeros, 3 * MIB);
        put_noise(fd, 525 * MIB, MIB);
        put_noise(fd, 560 * MIB, 2 * MIB);
        assert_int_equal(ftruncate(fd, 600 * (off_t)MIB), 0);
}

static void make_neff(const char *name, bool has_digest) {
        const size_t n = 5 * MIB + 33;
        _cleanup_close_ int fd = create(name);
        _cleanup_free_ uint8_t *data = calloc(1, 1024 + n);
        noise(data + 1024, n, 3);
        memset(data + 1024 + MIB, 0, 300 * KIB);
        memcpy(data + 1024, "\x1f\x8b", 2);
        put_u64(data, 2);
        put_u64(data + 8, 1024);
        put_u64(data + 16, n);
        if (has_digest)
                sha256_of(data + 1024, n, data + 172);
        put(fd, 0, data, 1024 + n);
}

/* Records of all lengths; the last one is cut. */
static void make_ntff(const char *name) {
        const size_t n = 4 * MIB;
        _cleanup_close_ int fd = create(name);
        _cleanup_free_ uint8_t *data = calloc(1, n + 4096);
        noise(data, n + 4096, 5);
        for (size_t i = 0, length = 0; i < n; i += 3 + length) {
                length = 130 + data[i] * 50u;
                data[i] = 0x0a;
                data[i + 1] = (uint8_t)(0x80 | (length & 0x7f));
                data[i + 2] = (uint8_t)(length >> 7);
        }
        put(fd, 0, data, n);
}

/* More than 65,534 program headers, counted at the file's end. */
static void make_core(const char *name, uint64_t missing) {
        const uint64_t n_phdrs = PN_XNUM + 10, shdr = 64 + n_phdrs * sizeof(Elf64_Phdr) + 3 * MIB;
        _cleanup_close_ int fd = create(name);
        Elf64_Ehdr e = { .e_ident = { 0x7f, 'E', 'L', 'F', ELFCLASS64, ELFDATA2LSB, EV_CURRENT },
                         .e_type = ET_CORE,
                         .e_phoff = 64,
                         .e_shoff = shdr,
                         .e_phentsize = sizeof(Elf64_Phdr),
                         .e_phnum = PN_XNUM,
                         .e_shentsize = sizeof(Elf64_Shdr),
                         .e_shnum = 1 };
        Elf64_Shdr s = { .sh_info = (uint32_t)n_phdrs };
        Elf64_Phdr last = { .p_type = PT_LOAD,
                            .p_offset = 64 + n_phdrs * sizeof(Elf64_Phdr),
                            .p_filesz = 3 * MIB + missing };
        put(fd, 0, &e, sizeof e);
        put(fd, 64 + (PN_XNUM - 1) * sizeof last, &last, sizeof last);
        put_noise(fd, last.p_offset, 3 * MIB);
        put(fd, shdr, &s, sizeof s);
}

typedef struct Entry {
        char name[40];
        MemberKind kind;
} Entry;
static Entry entries[N_SMALL + 16]; /* in strcmp order */
static size_t n_entries;

static const char *entry(const char *name, MemberKind kind) {
        Entry *e = &entries[n_entries++];
        (void)snprintf(e->name, sizeof e->name, "%s", name);
        e->kind = kind;
        return e->name;
}

static size_t entry_named(const char *name) {
        size_t i = 0;
        while (strcmp(entries[i].name, name) != 0)
                i++;
        return i;
}

static void make_plain(const char *name, size_t n) {
        _cleanup_close_ int fd = create(name);
        if (n > 0)
                put_noise(fd, 0, n);
}

static void make_tree(void) {
        make_zeros(entry("a-zeros", MEMBER_OTHER));
        make_sparse(entry("b-sparse", MEMBER_OTHER));
        make_core(entry("core.1", MEMBER_ELF_CORE), 0);
        make_core(entry("core.2", MEMBER_ELF_CORE), 12345);
        for (size_t i = 0; i < N_SMALL; i++) {
                char name[32];
                (void)snprintf(name, sizeof name, "d-%05zu", i);
                make_plain(entry(name, MEMBER_NC_STATE), i * 37 % 9000);
        }
        make_plain(entry("e-big", MEMBER_OTHER), 9 * MIB + 17);
        make_neff(entry("neff_1.neff", MEMBER_NEFF), true);
        make_neff(entry("neff_2.neff", MEMBER_NEFF), false);
        make_ntff(entry("x.ntff", MEMBER_NTFF));
}

static int setup(void **state) {
        const char *tmp = getenv("TMPDIR");
        (void)snprintf(root, sizeof root, "%s/test_packer.XXXXXX",
                       tmp && strlen(tmp) < 40 ? tmp : "/tmp");
        if (!mkdtemp(root))
                return -1;
        root_fd = open(root, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
        make_tree();
        return 0;
}

static int teardown(void **state) {
        _cleanup_free_ char *parent = path_parent(root);
        _cleanup_close_ int fd = open(parent, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
        (void)close(root_fd);
        return fs_remove_tree(fd, path_name(root));
}

/* ---- runs ---- */

typedef struct Run { /* what came out */
        PackedPart *parts;
        PackedRow *rows; /* those of the parts, to be handed to another packer */
        size_t n;
        StrBuf manifest;
} Run;

typedef struct Bundle {
        Plan *plan;
        WorkerPool *pool;
        PackerOptions options;
        size_t unreadable; /* cannot be opened */
        unsigned n_opened;
        uint64_t n_asked; /* bytes that before_read() was told of */
} Bundle;

static int open_member(size_t i, const PlanMember *m, void *userdata) {
        Bundle *b = userdata;
        b->n_opened++;
        if (i == b->unreadable)
                return -EACCES;
        int fd = openat(root_fd, m->path, O_RDONLY | O_CLOEXEC);
        return fd < 0 ? -errno : fd;
}

static void bundle_init(Bundle *b) {
        *b = (Bundle){ .unreadable = SIZE_MAX };
        assert_int_equal(plan_new(&b->plan), 0);
        for (size_t i = 0; i < n_entries; i++) {
                _cleanup_close_ int fd = openat(root_fd, entries[i].name, O_RDONLY | O_CLOEXEC);
                assert_int_equal(plan_add(b->plan, entries[i].name, entries[i].kind, fd), 0);
        }
        assert_int_equal(plan_freeze(b->plan), 0);
        assert_int_equal(worker_pool_new(&b->pool, NULL, "compress", 2, WORKER_NORMAL), 0);
        b->options = (PackerOptions){ .writer = { .compressors = b->pool,
                                                  .level = 1,
                                                  .memory_bytes = bundle_writer_memory_best(1, 2),
                                                  .source = SOURCE_NEURON_CORE_DUMP,
                                                  .open_member = open_member,
                                                  .userdata = b },
                                      .part_size = PART_SIZE };
}

static void bundle_done(Bundle *b) {
        plan_free(b->plan);
        worker_pool_free(b->pool);
}

static PackedPart part_new(const Packer *p) {
        PackedPart part = { .data = malloc(packer_buffer_bytes(p)) };
        assert_non_null(part.data);
        return part;
}

static void part_done(PackedPart *part) {
        packed_row_done(&part->row);
        free(part->data);
}

static void run_done(Run *r) {
        for (size_t i = 0; i < r->n; i++)
                part_done(&r->parts[i]);
        free(r->parts);
        free(r->rows);
        strbuf_done(&r->manifest);
}

static void run_add(Run *r, const PackedPart *part) {
        r->parts = realloc(r->parts, (r->n + 1) * sizeof *r->parts);
        r->rows = realloc(r->rows, (r->n + 1) * sizeof *r->rows);
        assert_true(r->parts && r->rows);
        r->parts[r->n] = *part;
        r->rows[r->n++] = part->row;
}

static int hear(const void *data, size_t n, void *userdata) {
        strbuf_add_n(userdata, data, n);
        return 0;
}

static void write_manifest(const Bundle *b, const Packer *p, StrBuf *ret) {
        uint8_t digest[SHA256_SIZE];
        const ManifestInfo info = { .id = "neuron-core-dump-20260527T051233-0123456789ab",
                                    .object = "x.tar.zst",
                                    .kind = SOURCE_NEURON_CORE_DUMP,
                                    .bytes = packer_status(p).parts->total_bytes,
                                    .instance_id = "i-0123456789abcdef0",
                                    .hostname = "h",
                                    .source_name = "s",
                                    .source_path = "/s",
                                    .agent_version = "0" };
        plan_sha256(b->plan, digest);
        assert_int_equal(manifest_write(&info,
                                        &(ManifestContent){ b->plan, packer_status(p).writer,
                                                            packer_status(p).parts, digest },
                                        hear, ret),
                         0);
}

static Packer *packer(const Bundle *b, const PackedRow *rows, size_t n_rows) {
        PackerOptions options = b->options;
        Packer *p = NULL;
        options.rows = rows;
        options.n_rows = n_rows;
        assert_int_equal(packer_new(&p, b->plan, &options), 0);
        return p;
}

/* Makes what is left. */
static void finish(const Bundle *b, Packer *p, Run *ret) {
        PackedPart part = part_new(p);
        int r;
        while ((r = packer_next(p, &part)) == PACKER_PART) {
                run_add(ret, &part);
                part = part_new(p);
        }
        assert_int_equal(r, 0);
        part_done(&part);
        write_manifest(b, p, &ret->manifest);
}

static Run run_complete(const Bundle *b) {
        Run run = { 0 };
        _cleanup_(packer_freep) Packer *p = packer(b, NULL, 0);
        finish(b, p, &run);
        return run;
}

static void assert_same_part(const PackedPart *a, const PackedPart *b) {
        assert_int_equal(a->row.bytes, b->row.bytes);
        assert_memory_equal(a->data, b->data, a->row.bytes);
        assert_memory_equal(a->row.sha256, b->row.sha256, SHA256_SIZE);
        assert_int_equal(a->row.first_frame, b->row.first_frame);
        assert_int_equal(a->row.n_frames, b->row.n_frames);
        assert_int_equal(a->row.is_last, b->row.is_last);
}

static void assert_same_row(const PackedRow *a, const PackedRow *b) {
        assert_memory_equal(a->frame_bytes, b->frame_bytes, a->n_frames * sizeof *a->frame_bytes);
        assert_int_equal(a->state_bytes, b->state_bytes);
        assert_memory_equal(a->state, b->state, a->state_bytes);
}

/* Goes on from the first k rows and holds all that comes against the whole run. */
static void assert_goes_on(const Bundle *b, const Run *whole, size_t k) {
        _cleanup_(run_done) Run tail = { 0 };
        _cleanup_(packer_freep) Packer *p = packer(b, whole->rows, k);

        if (k > 0) {
                _cleanup_(part_done) PackedPart again = part_new(p);
                assert_int_equal(packer_rebuild(p, k - 1, &again), PACKER_PART);
                assert_same_part(&again, &whole->parts[k - 1]);
        }
        finish(b, p, &tail);
        assert_int_equal(tail.n, whole->n - k);
        for (size_t i = 0; i < tail.n; i++) {
                assert_same_part(&tail.parts[i], &whole->parts[k + i]);
                assert_same_row(&tail.rows[i], &whole->rows[k + i]);
        }
        assert_string_equal(tail.manifest.text, whole->manifest.text);
}

/* ---- the tests ---- */

static void parts_together_are_the_bundle_and_the_last_one_has_the_table(void **state) {
        _cleanup_(bundle_done) Bundle b = { 0 };
        _cleanup_(run_done) Run run = { 0 };
        uint64_t next = 0;

        bundle_init(&b);
        _cleanup_(packer_freep) Packer *p = packer(&b, NULL, 0);
        finish(&b, p, &run);
        assert_in_range(run.n, 10, 60);
        for (size_t i = 0; i < run.n; i++) {
                uint8_t digest[SHA256_SIZE];
                const PackedRow *row = &run.rows[i];
                uint64_t bytes = 0;
                sha256_of(run.parts[i].data, row->bytes, digest);
                assert_memory_equal(digest, row->sha256, SHA256_SIZE);
                assert_int_equal(row->first_frame, next);
                assert_int_equal(row->is_last, i + 1 == run.n);
                for (uint64_t k = 0; k < row->n_frames; k++)
                        bytes += row->frame_bytes[k];
                next += row->n_frames;
                assert_int_equal(
                        row->bytes - bytes,
                        row->is_last ? bundle_writer_seek_table_bytes(plan_n_frames(b.plan)) : 0);
                assert_true(row->is_last || row->bytes >= PART_SIZE);
        }
        assert_int_equal(next, plan_n_frames(b.plan));
        assert_int_equal(packer_status(p).done_bytes, plan_stream_bytes(b.plan));
        assert_int_equal(packer_status(p).failed_member, plan_n_members(b.plan));
        const char *manifest = run.manifest.text;
        assert_non_null(strstr(manifest, "hash verified (sha-256)"));
        assert_non_null(strstr(manifest, "\"sha256_sparse\""));
        assert_non_null(
                strstr(manifest, "12281 of ")); /* what core.2 lacks, its section header counted */
        assert_non_null(strstr(manifest, "the record at offset "));
}

static void a_run_cut_after_any_part_continues_with_the_same_bytes_and_manifest(void **state) {
        _cleanup_(bundle_done) Bundle b = { 0 };
        bundle_init(&b);
        _cleanup_(run_done) Run whole = run_complete(&b);
        for (size_t k = 0; k <= whole.n; k++)
                assert_goes_on(&b, &whole, k);
}

static void a_run_cut_after_every_part_ends_with_the_same_manifest(void **state) {
        _cleanup_(bundle_done) Bundle b = { 0 };
        _cleanup_(run_done) Run run = { 0 };
        bundle_init(&b);
        _cleanup_(run_done) Run whole = run_complete(&b);

        for (;;) {
                _cleanup_(packer_freep) Packer *p = packer(&b, run.rows, run.n);
                PackedPart part = part_new(p);
                int r = packer_next(p, &part);
                if (r == 0) {
                        part_done(&part);
                        write_manifest(&b, p, &run.manifest);
                        break;
                }
                assert_int_equal(r, PACKER_PART);
                assert_same_part(&part, &whole.parts[run.n]);
                run_add(&run, &part);
        }
        assert_int_equal(run.n, whole.n);
        assert_string_equal(run.manifest.text, whole.manifest.text);
}

static void before_read(size_t n, void *userdata) {
        ((Bundle *)userdata)->n_asked += n;
}

static void every_part_can_be_rebuilt_in_any_order(void **state) {
        _cleanup_(bundle_done) Bundle b = { 0 };
        bundle_init(&b);
        _cleanup_(run_done) Run whole = run_complete(&b);
        b.options.writer.before_read = before_read;
        _cleanup_(packer_freep) Packer *p = packer(&b, whole.rows, whole.n);
        _cleanup_(part_done) PackedPart none = part_new(p);

        assert_int_equal(packer_next(p, &none), 0);
        b.n_opened = 0;
        for (size_t i = whole.n; i-- > 0;) {
                _cleanup_(part_done) PackedPart again = part_new(p);
                assert_int_equal(packer_rebuild(p, i, &again), PACKER_PART);
                assert_same_part(&again, &whole.parts[i]);
        }
        assert_int_equal(packer_rebuild(p, whole.n, &none), -EINVAL);
        assert_true(packer_status(p).bytes_read > 30 * MIB);
        assert_in_range(b.n_asked, packer_status(p).bytes_read, 2 * packer_status(p).bytes_read);
}

static void what_is_resumed_reads_no_more_than_it_needs(void **state) {
        _cleanup_(bundle_done) Bundle b = { 0 };
        bundle_init(&b);
        _cleanup_(run_done) Run whole = run_complete(&b);

        /* Behind the last part nothing is read at all, and in front of it only the open member. */
        for (size_t k = whole.n - 1; k <= whole.n; k++) {
                _cleanup_(run_done) Run tail = { 0 };
                _cleanup_(packer_freep) Packer *p = packer(&b, whole.rows, k);
                b.n_opened = 0;
                finish(&b, p, &tail);
                assert_in_range(b.n_opened, 0, k == whole.n ? 0 : 2);
                assert_in_range(packer_status(p).bytes_read, 0, k == whole.n ? 0 : 8 * MIB);
        }
}

static int write_only(size_t i, const PlanMember *m, void *userdata) {
        (void)i, (void)userdata;
        return openat(root_fd, m->path, O_WRONLY | O_CLOEXEC);
}

static void a_member_that_changed_meanwhile_is_noticed(void **state) {
        _cleanup_(bundle_done) Bundle b = { 0 };
        _cleanup_(part_done) PackedPart part = { 0 };
        bundle_init(&b);
        _cleanup_(run_done) Run whole = run_complete(&b);
        const size_t big = entry_named("e-big");
        size_t k = 0; /* the first part that ends within the big file */
        while (!writer_mark_is_needed(b.plan, whole.rows[k].first_frame + whole.rows[k].n_frames) ||
               plan_frame_at(b.plan, plan_member(b.plan, big)->stream_offset) + 1 >
                       whole.rows[k].first_frame + whole.rows[k].n_frames)
                k++;

        _cleanup_close_ int fd = openat(root_fd, "e-big", O_WRONLY | O_CLOEXEC);
        struct stat st;
        assert_int_equal(fstat(fd, &st), 0);
        put(fd, 0, "other", 5);
        {
                _cleanup_(packer_freep) Packer *p = packer(&b, whole.rows, k + 1);
                part = part_new(p);
                assert_int_equal(packer_next(p, &part), WRITER_E_CHANGED);
                assert_int_equal(packer_status(p).failed_member, big);
                assert_int_equal(packer_next(p, &part), WRITER_E_CHANGED); /* for good */
                assert_int_equal(packer_rebuild(p, k, &part), WRITER_E_CHANGED);
        }
        /* And when it was made to look as before, the bytes tell. */
        assert_int_equal(futimens(fd, (struct timespec[2]){ st.st_atim, st.st_mtim }), 0);
        _cleanup_(packer_freep) Packer *p = packer(&b, whole.rows, whole.n);
        size_t n_differ = 0;
        for (size_t i = 0; i < whole.n; i++) {
                _cleanup_(part_done) PackedPart again = part_new(p);
                n_differ += packer_rebuild(p, i, &again) == PACKER_E_DIFFERS;
        }
        assert_int_equal(n_differ, 1);
        put_noise(fd, 0, 9 * MIB + 17);
        assert_int_equal(futimens(fd, (struct timespec[2]){ st.st_atim, st.st_mtim }), 0);

        b.options.writer.open_member = write_only;
        _cleanup_(packer_freep) Packer *blind = packer(&b, whole.rows, k + 1);
        assert_int_equal(packer_next(blind, &part), -EBADF);
}

/* Members that were lost stay lost, and what was said of them stays said. */
static void a_tolerant_run_cut_after_any_part_continues_with_the_same(void **state) {
        static const char *const shrunk[] = { "e-big", "core.1", "neff_1.neff" };
        _cleanup_(bundle_done) Bundle b = { 0 };
        bundle_init(&b);
        b.options.writer.tolerant = true;
        for (size_t i = 0; i < ELEMENTSOF(shrunk); i++) {
                _cleanup_close_ int fd = openat(root_fd, shrunk[i], O_WRONLY | O_CLOEXEC);
                assert_int_equal(ftruncate(fd, 3 * (off_t)MIB + 5), 0);
        }
        b.unreadable = 1; /* b-sparse */
        {
                _cleanup_(run_done) Run whole = run_complete(&b);
                assert_non_null(strstr(whole.manifest.text, "cannot be opened"));
                assert_non_null(strstr(whole.manifest.text, "bytes became 3145733"));
                for (size_t k = 0; k <= whole.n; k++)
                        assert_goes_on(&b, &whole, k);
        }
        make_plain("e-big", 9 * MIB + 17);
        make_core("core.1", 0);
        make_neff("neff_1.neff", true);
}

/* A member was lost in the middle and is there again: what comes behind the rows goes out as it was
 * said, as zeros. */
static void a_member_once_lost_is_not_found_again(void **state) {
        _cleanup_(bundle_done) Bundle b = { 0 };
        const size_t big = entry_named("e-big");
        bundle_init(&b);
        b.options.writer.tolerant = true;
        b.options.part_size = 64 * KIB;
        {
                _cleanup_close_ int fd = openat(root_fd, "e-big", O_WRONLY | O_CLOEXEC);
                assert_int_equal(ftruncate(fd, 3 * (off_t)MIB + 5), 0);
        }
        _cleanup_(run_done) Run whole = run_complete(&b), tail = { 0 };
        make_plain("e-big", 9 * MIB + 17);

        const PlanMember *m = plan_member(b.plan, big);
        const uint64_t lost =
                plan_frame_at(b.plan, m->stream_offset + m->header_bytes + 3 * MIB + 5);
        size_t k = 0; /* rows up to the frame in which it was lost */
        while (whole.rows[k].first_frame + whole.rows[k].n_frames <= lost)
                k++;
        k++;
        assert_true(writer_mark_is_needed(b.plan, whole.rows[k].first_frame));
        _cleanup_(packer_freep) Packer *p = packer(&b, whole.rows, k);
        finish(&b, p, &tail);
        assert_int_equal(tail.n, whole.n - k);
        for (size_t i = 0; i < tail.n; i++) {
                _cleanup_(part_done) PackedPart again = part_new(p);
                assert_same_part(&tail.parts[i], &whole.parts[k + i]);
                assert_int_equal(packer_rebuild(p, k + i, &again), PACKER_PART);
                assert_same_part(&again, &whole.parts[k + i]);
        }
        assert_string_equal(tail.manifest.text, whole.manifest.text);
        _cleanup_(part_done) PackedPart before = part_new(p);
        assert_int_equal(packer_rebuild(p, k - 1, &before), PACKER_E_DIFFERS);
}

/* ---- rows from a ledger that somebody spoilt ---- */

static int try_rows(const Bundle *b, const PackedRow *rows, size_t n_rows) {
        PackerOptions options = b->options;
        Packer *p = NULL;
        options.rows = rows;
        options.n_rows = n_rows;
        int r = packer_new(&p, b->plan, &options);
        packer_free(p);
        return r;
}

static void rows_that_do_not_fit_are_refused(void **state) {
        _cleanup_(bundle_done) Bundle b = { 0 };
        bundle_init(&b);
        _cleanup_(run_done) Run whole = run_complete(&b);
        PackedRow *rows = whole.rows;
        const size_t n = whole.n;

        assert_int_equal(try_rows(&b, rows, n), 0);
        assert_int_equal(try_rows(&b, rows + 1, n - 1), PACKER_E_ROWS);
        rows[1].first_frame++;
        assert_int_equal(try_rows(&b, rows, n), PACKER_E_ROWS);
        rows[1].first_frame--;
        rows[1].n_frames = UINT64_MAX;
        assert_int_equal(try_rows(&b, rows, n), PACKER_E_ROWS);
        rows[1].n_frames = 0;
        assert_int_equal(try_rows(&b, rows, n), PACKER_E_ROWS);
        rows[1].n_frames = whole.parts[1].row.n_frames;
        rows[1].bytes++;
        assert_int_equal(try_rows(&b, rows, n), PACKER_E_ROWS);
        rows[1].bytes--;
        rows[1].frame_bytes[0] = 0;
        assert_int_equal(try_rows(&b, rows, n), PACKER_E_ROWS);
        rows[1].frame_bytes[0] = UINT32_MAX;
        assert_int_equal(try_rows(&b, rows, n), PACKER_E_ROWS);
        rows[1].frame_bytes[0] = (uint32_t)rows[1].bytes;
        if (rows[1].n_frames == 1)
                assert_int_equal(try_rows(&b, rows, n), 0);
        rows[n - 1].is_last = false;
        assert_int_equal(try_rows(&b, rows, n), PACKER_E_ROWS);
        rows[n - 1].is_last = rows[1].is_last = true;
        assert_int_equal(try_rows(&b, rows, n), PACKER_E_ROWS);
        rows[1].is_last = false;
        b.options.part_size = 2 * PART_SIZE; /* another configuration than that of the rows */
        assert_int_equal(try_rows(&b, rows, n), PACKER_E_ROWS);
        b.options.part_size = PART_SIZE / 2;
        assert_int_equal(try_rows(&b, rows, n), PACKER_E_ROWS);
}

static void a_spoilt_state_is_refused_or_harmless(void **state) {
        _cleanup_(bundle_done) Bundle b = { 0 };
        bundle_init(&b);
        _cleanup_(run_done) Run whole = run_complete(&b);

        for (size_t k = 0; k < whole.n; k++) {
                PackedRow *row = &whole.rows[k];
                const size_t n = row->state_bytes, step = n > 2000 ? 97 : 1;
                size_t n_refused = 0;
                for (size_t at = 0; at < n; at += step) {
                        row->state_bytes = at; /* cut */
                        assert_int_equal(try_rows(&b, whole.rows, k + 1), PACKER_E_ROWS);
                        row->state_bytes = n;
                        row->state[at] ^= 0xff;
                        int r = try_rows(&b, whole.rows, k + 1);
                        assert_true(r == 0 || r == PACKER_E_ROWS);
                        n_refused += r != 0;
                        row->state[at] ^= 0xff;
                }
                assert_true(n_refused >= (step == 1 ? 20 : 1));
        }
        uint8_t *longer = calloc(1, whole.rows[0].state_bytes + 1), *kept = whole.rows[0].state;
        memcpy(longer, kept, whole.rows[0].state_bytes++);
        whole.rows[0].state = longer;
        assert_int_equal(try_rows(&b, whole.rows, 1), PACKER_E_ROWS);
        whole.rows[0].state = NULL;
        assert_int_equal(try_rows(&b, whole.rows, 1), PACKER_E_ROWS);
        free(longer);
}

static void the_signature_names_what_bytes_depend_on(void **state) {
        _cleanup_free_ char *signature = packer_signature(3, 8 * MIB);
        assert_non_null(strstr(signature, "zstd 1."));
        assert_non_null(strstr(signature, ", level 3, part 8388608"));
}

int main(void) {
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(parts_together_are_the_bundle_and_the_last_one_has_the_table),
                cmocka_unit_test(
                        a_run_cut_after_any_part_continues_with_the_same_bytes_and_manifest),
                cmocka_unit_test(a_run_cut_after_every_part_ends_with_the_same_manifest),
                cmocka_unit_test(every_part_can_be_rebuilt_in_any_order),
                cmocka_unit_test(what_is_resumed_reads_no_more_than_it_needs),
                cmocka_unit_test(a_member_that_changed_meanwhile_is_noticed),
                cmocka_unit_test(a_tolerant_run_cut_after_any_part_continues_with_the_same),
                cmocka_unit_test(a_member_once_lost_is_not_found_again),
                cmocka_unit_test(rows_that_do_not_fit_are_refused),
                cmocka_unit_test(a_spoilt_state_is_refused_or_harmless),
                cmocka_unit_test(the_signature_names_what_bytes_depend_on),
        };
        return cmocka_run_group_tests(tests, setup, teardown);
}
