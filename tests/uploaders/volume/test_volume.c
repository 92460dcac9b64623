/* Delivery to a sound volume, and what is there already. Volumes in trouble are
 * test_volume_trouble.c's. */
#include "tests/uploaders/volume/volume_test.h"

#include <sys/mman.h>
#include <sys/syscall.h>

#include "tests/harness/skip.h"
#include "uploaders/volume/volume.h"

static void an_object_arrives_complete(void **state) {
        static const size_t sizes[] = { 0,       1,   4095,    4096,    STRIPE,
                                        MIB - 1, MIB, MIB + 1, 2 * MIB, 20 * MIB + 12345,
                                        40 * MIB };
        const Scratch *s = *state;
        _cleanup_(volume_freep) Volume *v = volume_at(s, "root");
        _cleanup_free_ char *error = NULL;

        for (size_t i = 0; i < ELEMENTSOF(sizes); i++) {
                char name[64], path[128];
                Content c;
                content_init(&c, sizes[i], i + 1);
                (void)snprintf(name, sizeof name, "a/b/%zu.tar.zst", i);
                (void)snprintf(path, sizeof path, "root/%s", name);
                assert_int_equal(deliver(v, name, &c, &error), 0);
                assert_null(error);
                assert_file_is(s, path, &c);
                content_done(&c);
        }
        assert_no_litter(s, "root");
        in_scratch(s, "test $(stat -c %a root/a/b/3.tar.zst) = 640 -a $(stat -c %h "
                      "root/a/b/3.tar.zst) = 1 -a $(stat -c %a root/a) = 755 -a $(stat -c %a "
                      "root/a/b) = 755");
}

static void nothing_is_seen_before_commit_and_nothing_stays_without_it(void **state) {
        const Scratch *s = *state;
        _cleanup_(volume_freep) Volume *v = volume_at(s, "root");
        _cleanup_free_ char *error = NULL;
        VolumeObject *o = NULL;
        Content c;

        content_init(&c, 3 * MIB, 1);
        assert_int_equal(volume_object_start(v, OBJECT, 0, &o, &error), 0);
        assert_int_equal(write_content(o, &c, &error), 0);
        in_scratch(s, "test ! -e root/" OBJECT
                      "; test $(find root -type f | wc -l) = 1; find root -type f -name "
                      "'.bundle.tar.zst.neuron-collectd-tmp' | grep -q .");
        volume_object_free(o);
        in_scratch(s, "test -z \"$(find root -type f)\"");
        content_done(&c);
}

static void a_wrong_call_is_refused(void **state) {
        static const char *const names[] = { "",   "/x", "../x", "a/../x", "a//x",
                                             "a/", ".",  "..",   "./x" };
        const Scratch *s = *state;
        _cleanup_(volume_freep) Volume *v = volume_at(s, "root");
        _cleanup_free_ char *error = NULL;
        _cleanup_(strbuf_done) StrBuf read = STRBUF_INIT;
        VolumeObject *o = NULL;
        Volume *none = NULL;
        char longest[300];
        Content c;

        for (size_t i = 0; i < ELEMENTSOF(names); i++) {
                assert_int_equal(volume_object_start(v, names[i], 0, &o, &error), -EINVAL);
                assert_int_equal(volume_sweep(v, names[i]), -EINVAL);
                assert_true(volume_read(v, names[i], keep_piece, &read) < 0);
        }
        memset(longest, 'x', sizeof longest);
        longest[240] = '\0'; /* it fits, its temporary name does not */
        assert_int_equal(volume_object_start(v, longest, 0, &o, &error), -ENAMETOOLONG);
        assert_int_equal(volume_new(&none, &(VolumeOptions){ .root = "relative" }), -EINVAL);

        content_init(&c, 1000, 1);
        assert_int_equal(volume_object_start(v, OBJECT, 0, &o, &error), 0);
        assert_int_equal(write_content(o, &c, &error), 0);
        c.stripes[0].bytes--;
        assert_int_equal(volume_commit(o, c.stripes, c.n_stripes, &error), -EINVAL);
        c.stripes[0].bytes++;
        assert_int_equal(volume_commit(o, c.stripes, c.n_stripes, &error), 0);
        assert_int_equal(volume_commit(o, c.stripes, c.n_stripes, &error), -EINVAL);
        assert_int_equal(volume_write(o, "x", 1, &error), -EINVAL);
        volume_object_free(o);
        assert_file_is(s, "root/" OBJECT, &c);
        content_done(&c);
}

static void the_same_object_again_is_the_same(void **state) {
        const Scratch *s = *state;
        _cleanup_(volume_freep) Volume *v = volume_at(s, "root");
        _cleanup_free_ char *error = NULL;
        Content c;

        content_init(&c, 5 * MIB + 1, 1);
        assert_int_equal(deliver(v, OBJECT, &c, &error), 0);
        in_scratch(s, "stat -c '%i %y' root/" OBJECT " > before");
        assert_int_equal(deliver(v, OBJECT, &c, &error), UPLOAD_E_SAME);
        assert_null(error);
        in_scratch(s, "stat -c '%i %y' root/" OBJECT " | cmp - before");
        assert_no_litter(s, "root");
        content_done(&c);
}

static void something_different_is_never_overwritten(void **state) {
        static const char *const others[] = {
                "echo short > $O",
                "head -c 5242881 /dev/zero > $O",         /* of the same size */
                "(head -c 5242880 right; printf X) > $O", /* but for the last byte */
                "ln -s right $O",
                "mkdir $O",
                "mkfifo $O",
        };
        const Scratch *s = *state;
        _cleanup_(volume_freep) Volume *v = volume_at(s, "root");
        _cleanup_free_ char *error = NULL;
        char command[256];
        Content c;

        content_init(&c, 5 * MIB + 1, 1);
        assert_int_equal(deliver(v, OBJECT, &c, &error), 0);
        in_scratch(s, "cp root/" OBJECT " right");
        for (size_t i = 0; i < ELEMENTSOF(others); i++) {
                (void)snprintf(command, sizeof command,
                               "O=root/" OBJECT "; rm -r $O; %s; ls -li $O > before", others[i]);
                in_scratch(s, command);
                assert_int_equal(deliver(v, OBJECT, &c, &error), UPLOAD_E_EXISTS);
                assert_non_null(strstr(error, OBJECT));
                assert_non_null(strstr(error, "is not overwritten"));
                in_scratch(s, "ls -li root/" OBJECT " | cmp - before");
                assert_no_litter(s, "root");
        }
        content_done(&c);
}

static void what_the_caller_calls_its_own_is_replaced(void **state) {
        const Scratch *s = *state;
        _cleanup_(volume_freep) Volume *v = volume_at(s, "root");
        _cleanup_free_ char *error = NULL, *unused = NULL;
        VolumeObject *o = NULL;
        Content old, new;

        content_init(&old, 2 * MIB, 1);
        content_init(&new, 3 * MIB, 2);
        assert_int_equal(deliver(v, OBJECT, &old, &error), 0);
        assert_int_equal(volume_object_start(v, OBJECT, 0, &o, &error), 0);
        assert_int_equal(write_content(o, &new, &error), 0);
        assert_int_equal(volume_commit(o, new.stripes, new.n_stripes, &error), UPLOAD_E_EXISTS);
        assert_file_is(s, "root/" OBJECT, &old);
        assert_int_equal(volume_replace(o, new.stripes, new.n_stripes, &unused), 0);
        volume_object_free(o);
        assert_file_is(s, "root/" OBJECT, &new);
        assert_no_litter(s, "root");
        content_done(&old);
        content_done(&new);
}

/* The temporary file of an object that was begun, for tests that tamper with it. */
#define TEMPORARY "root/20260527-cid/i-0123456789abcdef0/.bundle.tar.zst.neuron-collectd-tmp"

static void what_reads_back_differently_is_removed(void **state) {
        static const char *const tampers[] = {
                "printf X | dd of=$T bs=1 seek=0 conv=notrunc status=none",
                "printf X | dd of=$T bs=1 seek=3145728 conv=notrunc status=none",
                "truncate -s -1 $T",
                "truncate -s +1 $T",
                "cp --remove-destination /dev/null $T",
        };
        const Scratch *s = *state;
        _cleanup_(volume_freep) Volume *v = volume_at(s, "root");
        Content c;

        content_init(&c, 3 * MIB + 1, 1);
        c.data[0] = 'a'; /* what is written over it is something else */
        c.data[3 * MIB] = 'a';
        sha256_of(c.data, c.stripes[0].bytes, c.stripes[0].sha256);
        size_t last = c.n_stripes - 1;
        sha256_of(c.data + last * STRIPE, c.stripes[last].bytes, c.stripes[last].sha256);
        for (size_t i = 0; i < ELEMENTSOF(tampers); i++) {
                _cleanup_free_ char *error = NULL;
                char command[256];
                VolumeObject *o = NULL;
                assert_int_equal(volume_object_start(v, OBJECT, 0, &o, &error), 0);
                assert_int_equal(write_content(o, &c, &error), 0);
                (void)snprintf(command, sizeof command, "T=" TEMPORARY "; %s", tampers[i]);
                in_scratch(s, command);
                assert_int_equal(volume_commit(o, c.stripes, c.n_stripes, &error),
                                 UPLOAD_E_MISMATCH);
                assert_non_null(strstr(error, "reads back differently"));
                if (i == 0)
                        assert_non_null(strstr(error, "from byte 0 on"));
                if (i == 1) {
                        char offset[64];
                        (void)snprintf(offset, sizeof offset, "from byte %zu on", last * STRIPE);
                        assert_non_null(strstr(error, offset));
                }
                volume_object_free(o);
                in_scratch(s, "test ! -e root/" OBJECT "; rm -f " TEMPORARY
                              "; test -z \"$(find root -type f)\"");
        }
        _cleanup_free_ char *error = NULL;
        assert_int_equal(deliver(v, OBJECT, &c, &error), 0); /* trying again helps */
        content_done(&c);
}

static void a_symlink_in_the_way_is_not_followed(void **state) {
        static const char *const ways[] = {
                "ln -s ../elsewhere root/20260527-cid",
                "W=root/20260527-cid; mkdir $W; ln -s ../../elsewhere $W/i-0123456789abcdef0",
                "touch root/20260527-cid",
        };
        const Scratch *s = *state;
        Content c;

        content_init(&c, 1000, 1);
        for (size_t i = 0; i < ELEMENTSOF(ways); i++) {
                _cleanup_(volume_freep) Volume *v = volume_at(s, "root");
                _cleanup_free_ char *error = NULL;
                in_scratch(s, "rm -rf root; mkdir -p root elsewhere");
                in_scratch(s, ways[i]);
                assert_int_equal(deliver(v, OBJECT, &c, &error), UPLOAD_E_UNREACHABLE);
                assert_non_null(strstr(error, "root/" OBJECT));
                assert_non_null(strstr(error, "in the way: remove it"));
                in_scratch(s, "test -z \"$(ls -A elsewhere)\"");
        }
        /* A symlink under the temporary name is a crash's litter like any other. */
        _cleanup_(volume_freep) Volume *v = volume_at(s, "root");
        _cleanup_free_ char *error = NULL;
        in_scratch(s, "rm -rf root; mkdir -p $(dirname " TEMPORARY
                      "); echo precious > precious; ln -s $PWD/precious " TEMPORARY);
        assert_int_equal(deliver(v, OBJECT, &c, &error), 0);
        in_scratch(s, "test $(cat precious) = precious");
        assert_file_is(s, "root/" OBJECT, &c);
        content_done(&c);
}

static void the_root_is_made_in_a_parent_that_is_there(void **state) {
        const Scratch *s = *state;
        _cleanup_(volume_freep) Volume *v = volume_at(s, "root"),
                                       *deep = volume_at(s, "no/such/root");
        _cleanup_free_ char *error = NULL;
        _cleanup_(strbuf_done) StrBuf read = STRBUF_INIT;
        char path[PATH_MAX + 16];
        Volume *known = NULL;

        assert_int_equal(volume_read(v, "x", keep_piece, &read), -ENOENT);
        assert_int_equal(volume_sweep(v, "x"), 0);
        in_scratch(s, "test ! -e root");
        assert_int_equal(volume_probe(v, &error), 0);
        in_scratch(s, "test -d root; test -z \"$(ls -A root)\"");
        assert_int_equal(volume_probe(deep, &error), UPLOAD_E_UNREACHABLE);
        assert_non_null(strstr(error, "no/such/root' is not there, nor is '"));
        assert_non_null(strstr(error, "is it mounted?"));
        in_scratch(s, "test ! -e no");

        /* Something was delivered there in an earlier life: then it is away. */
        (void)snprintf(path, sizeof path, "%s/before", s->path);
        assert_int_equal(volume_new(&known, &(VolumeOptions){ .root = path, .must_exist = true }),
                         0);
        free(error);
        assert_int_equal(volume_probe(known, &error), UPLOAD_E_UNREACHABLE);
        assert_non_null(strstr(error, "before' is not there: is it mounted?"));
        assert_int_equal(volume_read(known, "x", keep_piece, &read), -ESTALE);
        volume_free(known);
        in_scratch(s, "test ! -e before; touch file");

        _cleanup_(volume_freep) Volume *file = volume_at(s, "file");
        free(error);
        assert_int_equal(volume_probe(file, &error), UPLOAD_E_UNREACHABLE);
        assert_non_null(strstr(error, "not a directory is in the way"));
}

static void directories_that_nodes_share_have_their_mode_whatever_the_umask(void **state) {
        const Scratch *s = *state;
        _cleanup_(volume_freep) Volume *v = NULL;
        _cleanup_free_ char *error = NULL;
        VolumeObject *o = NULL;
        char path[PATH_MAX + 256];
        mode_t before = umask(0077);

        (void)snprintf(path, sizeof path, "%s/root", s->path);
        assert_int_equal(volume_new(&v, &(VolumeOptions){ .root = path, .mode = "999" }), -EINVAL);
        assert_int_equal(volume_new(&v, &(VolumeOptions){ .root = path, .mode = "2775" }), 0);
        in_scratch(s, "mkdir -m 700 -p root; mkdir -m 750 root/a"); /* of an earlier version */
        assert_int_equal(volume_object_start(v, "a/b/own/object", 0, &o, &error), 0);
        volume_object_free(o);
        (void)umask(before);
        in_scratch(s, "test \"$(stat -c %a root)\" = 700"); /* made by somebody: left as it is */
        in_scratch(s, "test \"$(stat -c %a root/a root/a/b root/a/b/own | tr '\\n' ' ')\" = "
                      "'2775 2775 755 '");
}

static void an_object_is_read_in_pieces_until_its_end(void **state) {
        const Scratch *s = *state;
        _cleanup_(volume_freep) Volume *v = volume_at(s, "root");
        _cleanup_(strbuf_done) StrBuf read = STRBUF_INIT;

        in_scratch(s, "mkdir -p root/d; printf 'a\\0b' > root/d/m; ln -s m root/d/l; ln -s d "
                      "root/e; mkfifo root/d/p; : > root/d/empty; "
                      "head -c 1000000 /dev/zero > root/d/large");
        assert_int_equal(volume_read(v, "d/m", keep_piece, &read), 0);
        assert_int_equal(read.n, 3);
        assert_memory_equal(read.text, "a\0b", 4);
        strbuf_clear(&read);
        assert_int_equal(volume_read(v, "d/empty", keep_piece, &read), 0);
        assert_int_equal(volume_read(v, "d/empty", refuse_piece, NULL), -ECANCELED);
        assert_int_equal(volume_read(v, "d/large", refuse_piece, NULL), -ECANCELED);
        assert_int_equal(volume_read(v, "d/large", keep_piece, &read), 0);
        assert_int_equal(read.n, 1000000);
        assert_int_equal(volume_read(v, "d/x", keep_piece, &read), -ENOENT);
        assert_int_equal(volume_read(v, "x/m", keep_piece, &read), -ENOENT);
        assert_int_equal(volume_read(v, "d/l", keep_piece, &read), -ELOOP);
        assert_int_equal(volume_read(v, "e/m", keep_piece, &read), -ELOOP);
        assert_int_equal(volume_read(v, "d/p", keep_piece, &read), -EBADF);
        assert_int_equal(read.n, 1000000);
}

static void a_sweep_removes_the_one_temporary_file(void **state) {
        const Scratch *s = *state;
        _cleanup_(volume_freep) Volume *v = volume_at(s, "root");

        in_scratch(s, "mkdir -p $(dirname " TEMPORARY "); touch " TEMPORARY
                      " root/20260527-cid/i-0123456789abcdef0/.other.tar.zst.neuron-collectd-tmp");
        assert_int_equal(volume_sweep(v, OBJECT), 0);
        assert_int_equal(volume_sweep(v, OBJECT), 0);
        assert_int_equal(volume_sweep(v, "no/such/" OBJECT), 0);
        in_scratch(s, "test $(find root -type f | wc -l) = 1; test -e "
                      "root/20260527-cid/i-0123456789abcdef0/.other.tar.zst.neuron-collectd-tmp");
        in_scratch(s, "test ! -e root/no");
}

/* The page cache */

static size_t cached_bytes(const Scratch *s, const char *path) {
        _cleanup_close_ int fd = openat(s->fd, path, O_RDONLY | O_CLOEXEC);
        struct stat st;
        size_t page = (size_t)sysconf(_SC_PAGESIZE), cached = 0;

        assert_true(fd >= 0 && fstat(fd, &st) == 0);
        size_t n = ((size_t)st.st_size + page - 1) / page;
        _cleanup_free_ unsigned char *pages = malloc(n);
        void *map = mmap(NULL, (size_t)st.st_size, PROT_READ, MAP_SHARED, fd, 0);
        assert_true(pages && map != MAP_FAILED);
        assert_int_equal(mincore(map, (size_t)st.st_size, pages), 0);
        for (size_t i = 0; i < n; i++)
                cached += (pages[i] & 1) * page;
        (void)munmap(map, (size_t)st.st_size);
        return cached;
}

static void neither_writing_nor_reading_back_fills_the_page_cache(void **state) {
        const Scratch *s = *state;
        _cleanup_(volume_freep) Volume *v = volume_at(s, "root");
        _cleanup_free_ char *error = NULL;
        VolumeObject *o = NULL;
        Content c;

        content_init(&c, 64 * MIB, 1);
        assert_int_equal(volume_object_start(v, OBJECT, 0, &o, &error), 0);
        assert_int_equal(write_content(o, &c, &error), 0);
        size_t while_writing = cached_bytes(s, TEMPORARY);
        assert_int_equal(volume_commit(o, c.stripes, c.n_stripes, &error), 0);
        volume_object_free(o);
        size_t after = cached_bytes(s, "root/" OBJECT);
        print_message("# cached: %zu KiB while writing, %zu KiB after\n", while_writing / 1024,
                      after / 1024);
        in_scratch(s, "cat root/" OBJECT " > /dev/null");
        if (cached_bytes(s, "root/" OBJECT) < 60 * MIB)
                SKIP_BECAUSE("a file system that is all cache, or none");
        assert_true(while_writing <= 12 * MIB + 64 * KIB);
        assert_true(after <= 64 * KIB);
        content_done(&c);
}

/* Reading back */

static unsigned
        n_contexts; /* for reading ahead, which the kernel takes tens of milliseconds to give up */

long __real_syscall(long number, long a, long b, long c, long d, long e);
long __wrap_syscall(long number, long a, long b, long c, long d, long e);
long __wrap_syscall(long number, long a, long b, long c, long d, long e) {
        n_contexts += number == SYS_io_setup;
        return __real_syscall(number, a, b, c, d, e);
}

static void a_small_object_is_read_from_the_disk_without_a_context_for_it(void **state) {
        const Scratch *s = *state;
        _cleanup_(volume_freep) Volume *v = volume_at(s, "root");
        _cleanup_free_ char *error = NULL;
        Content c;

        n_contexts = 0;
        content_init(&c, KIB, 1);
        assert_int_equal(deliver(v, OBJECT, &c, &error), 0);
        assert_int_equal(n_contexts, 0);
        size_t after = cached_bytes(s, "root/" OBJECT);
        content_done(&c);
        content_init(&c, 20 * MIB, 1);
        assert_int_equal(deliver(v, OBJECT "-large", &c, &error), 0);
        content_done(&c);
        if (n_contexts == 0)
                SKIP_BECAUSE("a file system without O_DIRECT");
        assert_int_equal(n_contexts, 1);
        assert_int_equal(after, 0);
}

static void cut_and_read_back(const Scratch *s, const Content *c) {
        static const size_t cuts[] = { 1, 4096, MIB, MIB - 1, MIB + 1, 3 * MIB, 5 * MIB };
        uint64_t bad;

        _cleanup_close_ int fd =
                openat(s->fd, "file", O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
        assert_int_equal(write(fd, c->data, c->n), c->n);
        for (size_t i = 0; i < ELEMENTSOF(cuts); i++) {
                VolumeStripe stripes[16] = { { .bytes = 0 } };
                size_t n = 0, at = 0;
                sha256_of(NULL, 0, stripes[n++].sha256); /* an empty one is one, too */
                for (unsigned j = 0; at < c->n; at += stripes[n++].bytes, j++) {
                        stripes[n].bytes =
                                j == 6 ? c->n - at
                                       : MIN(cuts[(i + j) % ELEMENTSOF(cuts)], c->n - at);
                        sha256_of(c->data + at, stripes[n].bytes, stripes[n].sha256);
                }
                assert_int_equal(
                        volume_readback(&(ReadbackFile){ s->fd, "file", NULL }, stripes, n, &bad),
                        0);
                stripes[n - 1].sha256[31] ^= 1;
                assert_int_equal(
                        volume_readback(&(ReadbackFile){ s->fd, "file", NULL }, stripes, n, &bad),
                        READBACK_E_DIFFERENT);
                assert_true(bad == c->n - stripes[n - 1].bytes);
        }
}

static void every_cut_into_stripes_is_read_back(void **state) {
        static const size_t sizes[] = { 1, 4096, MIB, 5 * MIB + 4097, 17 * MIB + 4097 };
        const Scratch *s = *state;

        for (size_t i = 0; i < ELEMENTSOF(sizes); i++) {
                Content c;
                content_init(&c, sizes[i], 9);
                cut_and_read_back(s, &c);
                content_done(&c);
        }
}

static void what_cannot_be_read_back_is_reported(void **state) {
        const VolumeStripe huge[2] = { { .bytes = UINT64_MAX }, { .bytes = 2 } };
        const Scratch *s = *state;
        uint64_t bad;

        in_scratch(s, "touch file");
        assert_int_equal(volume_readback(&(ReadbackFile){ s->fd, "file", NULL }, huge, 2, &bad),
                         -EOVERFLOW);
        assert_int_equal(
                volume_readback(&(ReadbackFile){ s->fd, "no-file", NULL }, huge + 1, 1, &bad),
                -ENOENT);
}

#define TEST(f) cmocka_unit_test_setup_teardown(f, scratch_setup, scratch_teardown)

static int count_file(const VolumeFile *file, void *userdata) {
        size_t *n = userdata;
        n[!file->is_trusted]++;
        return 0;
}

static void what_strangers_have_made_fills_no_listing(void **state) {
        const Scratch *s = *state;
        _cleanup_(volume_freep) Volume *v = volume_at(s, "root");
        _cleanup_free_ char *error = NULL;
        size_t n[2] = { 0 };
        const VolumeListing listing = {
                .directory = ".k/1/", .n_max = 20, .on_file = count_file, .userdata = n
        };
        if (geteuid() != 0)
                SKIP_BECAUSE("not root");
        in_scratch(s, "mkdir -p root/.k/1/d root/.k.x/1 root/.k.y/1 && cd root/.k/1 && touch own "
                      "../../.k.x/1/own ../../.k.y/1/own && seq -f d/%.0f 3000 | xargs touch && "
                      "seq -f s%.0f 3000 | xargs touch && chown 4711 s* d ../../.k.y");
        assert_int_equal(volume_object_list(v, &listing, &error), 0);
        assert_int_equal(n[0],
                         2); /* `own`, and the one beside; nothing in a stranger's directory */
        assert_int_equal(n[1], 1000);
}

int main(void) {
        const struct CMUnitTest tests[] = {
                TEST(an_object_arrives_complete),
                TEST(nothing_is_seen_before_commit_and_nothing_stays_without_it),
                TEST(a_wrong_call_is_refused),
                TEST(the_same_object_again_is_the_same),
                TEST(something_different_is_never_overwritten),
                TEST(what_the_caller_calls_its_own_is_replaced),
                TEST(what_reads_back_differently_is_removed),
                TEST(a_symlink_in_the_way_is_not_followed),
                TEST(the_root_is_made_in_a_parent_that_is_there),
                TEST(directories_that_nodes_share_have_their_mode_whatever_the_umask),
                TEST(an_object_is_read_in_pieces_until_its_end),
                TEST(a_sweep_removes_the_one_temporary_file),
                TEST(neither_writing_nor_reading_back_fills_the_page_cache),
                TEST(a_small_object_is_read_from_the_disk_without_a_context_for_it),
                TEST(every_cut_into_stripes_is_read_back),
                TEST(what_cannot_be_read_back_is_reported),
                TEST(what_strangers_have_made_fills_no_listing),
        };
        return cmocka_run_group_tests(tests, NULL, NULL);
}
