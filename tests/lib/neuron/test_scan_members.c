/* The members of one unit: their order, and what in a hostile tree is none. */
#include <dirent.h>
#include <fcntl.h>
#include <sys/socket.h>
#include <sys/sysmacros.h>
#include <sys/un.h>

#include "lib/base/cleanup.h"
#include "lib/base/path.h"
#include "lib/neuron/scan.h"
#include "lib/neuron/tree.h"
#include "tests/harness/skip.h"
#include "tests/lib/neuron/scan_fixture.h"

/* Linked with -Wl,--wrap=readdir: some file systems do not tell the type with the name. */
static bool hide_types;
/* Directories have names of 255 bytes, without end. */
static bool is_endless;
static uint64_t n_read;
struct dirent *__real_readdir(DIR *dir);
struct dirent *__wrap_readdir(DIR *dir);

struct dirent *__wrap_readdir(DIR *dir) {
        static struct dirent fifo = { .d_type = DT_FIFO };
        if (is_endless) {
                (void)snprintf(fifo.d_name, sizeof fifo.d_name, "%0255llu",
                               (unsigned long long)n_read++);
                return &fifo;
        }
        struct dirent *e = __real_readdir(dir);

        if (e && hide_types)
                e->d_type = DT_UNKNOWN;
        return e;
}

static int note_member(const ScanMember *m, int unit_fd, void *userdata) {
        Fixture *f = userdata;
        struct stat st;

        strbuf_addf(&f->lines, "%s%s%s\n", m->path, m->skip == SCAN_SKIP_NONE ? "" : " ",
                    m->skip == SCAN_SKIP_NONE ? "" : scan_skip_name(m->skip));
        if (m->skip == SCAN_SKIP_NONE) {
                assert_int_equal(fstatat(unit_fd, m->path, &st, AT_SYMLINK_NOFOLLOW), 0);
                assert_int_equal(st.st_ino, m->st.st_ino);
        }
        return 0;
}

static const char *members(Fixture *f, const char *relative) {
        const ScanWalk w = {
                .source = &f->source,
                .relative = relative,
                .on_member = note_member,
                .userdata = f,
        };

        strbuf_clear(&f->lines);
        assert_int_equal(scan_members(&w), 0);
        return f->lines.text ? f->lines.text : "";
}

#define check_members(f, relative, ...)                                                            \
        assert_string_equal(members((f), (relative)), __VA_ARGS__ "")

static void members_come_in_the_order_of_their_full_paths(void **state) {
        Fixture *f = *state;

        fixture_source(f, SOURCE_DIRECTORY, "%p");
        fixture_files(f, "1/a/x", "1/a-b", "1/a.b", "1/a0", "1/a/b/c", "1/a/b.c", "1/a/b0",
                      "1/a b/y", "1/A", "1/\xff", "1/\x01");
        check_members(f, "1", "\x01\nA\na b/y\na-b\na.b\na/b.c\na/b/c\na/b0\na/x\na0\n\xff\n");
}

/* ---- against sort(1), on random trees ---- */

static uint32_t next_random(uint32_t *seed) {
        *seed = *seed * 1664525u + 1013904223u;
        return *seed >> 8;
}

static void make_random_tree(const Fixture *f, uint32_t *seed) {
        static const char letters[] = "aab--..0 \n\x01\x7f\xc3\xff~";

        for (size_t i = 0; i < 60; i++) {
                char path[128] = "", full[FIXTURE_PATH_SIZE];
                size_t n = 0, depth = 1 + next_random(seed) % 4;
                struct stat st;

                for (size_t k = 0; k < depth; k++) {
                        size_t length = 1 + next_random(seed) % 3;

                        path[n++] = k == 0 ? 'x' : '/';
                        if (k == 0)
                                continue; /* the unit */
                        for (size_t j = 0; j < length; j++)
                                path[n++] = letters[next_random(seed) % (sizeof letters - 1)];
                        path[n] = '\0';
                        /* Not `.` or `..`, and no way through a file. */
                        if (path[n - length] == '.')
                                path[n - length] = 'q';
                        if (lstat(fixture_path(f, path, full), &st) == 0 && !S_ISDIR(st.st_mode))
                                break;
                }
                if (depth > 1 && lstat(fixture_path(f, path, full), &st) < 0)
                        fixture_make(f, path, 1);
        }
}

static int note_raw(const ScanMember *m, int unit_fd, void *userdata) {
        StrBuf *b = userdata;

        (void)unit_fd;
        assert_int_equal(m->skip, SCAN_SKIP_NONE);
        strbuf_add_n(b, m->path, strlen(m->path) + 1);
        return 0;
}

static void check_against_sort(Fixture *f) {
        char command[FIXTURE_PATH_SIZE], sorted[16384];
        StrBuf ours = STRBUF_INIT;
        const ScanWalk w = {
                .source = &f->source,
                .relative = "x",
                .on_member = note_raw,
                .userdata = &ours,
        };
        FILE *p;
        size_t n;

        (void)snprintf(command, sizeof command,
                       "cd '%s/x' && find . -type f -printf '%%P\\0' | LC_ALL=C sort -z", f->root);
        p = popen(command, "r");
        assert_non_null(p);
        n = fread(sorted, 1, sizeof sorted, p);
        assert_int_equal(pclose(p), 0);
        assert_int_equal(scan_members(&w), 0);
        assert_true(n > 0 && n < sizeof sorted);
        assert_int_equal(n, ours.n);
        assert_memory_equal(sorted, ours.text, n);
        strbuf_done(&ours);
}

static void the_order_is_that_of_sort_on_random_trees(void **state) {
        Fixture *f = *state;

        fixture_source(f, SOURCE_DIRECTORY, "%p");
        for (uint32_t round = 0; round < 25; round++) {
                uint32_t seed = round * 7919;

                fixture_make(f, "x/always", 1);
                make_random_tree(f, &seed);
                check_against_sort(f);
                hide_types = true;
                check_against_sort(f);
                hide_types = false;
                assert_int_equal(nftw(f->root, scratch_remove_one, 16, FTW_DEPTH | FTW_PHYS), 0);
                assert_int_equal(mkdir(f->root, 0755), 0);
        }
}

/* ---- what is no member ---- */

static void make_socket(const Fixture *f, const char *relative) {
        struct sockaddr_un a = { .sun_family = AF_UNIX };
        int cwd = open(".", O_RDONLY | O_DIRECTORY), fd = socket(AF_UNIX, SOCK_STREAM, 0);

        assert_true(fd >= 0 && cwd >= 0);
        assert_int_equal(chdir(f->root), 0); /* sun_path is short */
        (void)snprintf(a.sun_path, sizeof a.sun_path, "%s", relative);
        assert_int_equal(bind(fd, (struct sockaddr *)&a, sizeof a), 0);
        assert_int_equal(close(fd), 0);
        assert_int_equal(fchdir(cwd), 0);
        assert_int_equal(close(cwd), 0);
}

static void make_special_files(const Fixture *f) {
        fixture_files(f, "1/file");
        assert_int_equal(symlinkat("/etc/passwd", f->scratch->fd, "src/1/link"), 0);
        assert_int_equal(symlinkat("file", f->scratch->fd, "src/1/inner-link"), 0);
        assert_int_equal(symlinkat("nowhere", f->scratch->fd, "src/1/dangling"), 0);
        assert_int_equal(mkfifoat(f->scratch->fd, "src/1/fifo", 0644), 0);
        make_socket(f, "1/socket");
}

static void links_and_special_files_are_no_members(void **state) {
        Fixture *f = *state;

        fixture_source(f, SOURCE_NEURON_CORE_DUMP, "%p");
        make_special_files(f);
        for (unsigned i = 0; i < 2; i++) {
                hide_types = i == 1;
                check_members(f, "1",
                              "dangling symlink\nfifo special-file\nfile\ninner-link symlink\nlink "
                              "symlink\n"
                              "socket special-file\n");
        }
        hide_types = false;
}

static void devices_are_no_members(void **state) {
        Fixture *f = *state;

        fixture_source(f, SOURCE_NEURON_CORE_DUMP, "%p");
        fixture_files(f, "1/file");
        if (mknodat(f->scratch->fd, "src/1/null", S_IFCHR | 0666, makedev(1, 3)) < 0 ||
            mknodat(f->scratch->fd, "src/1/disk", S_IFBLK | 0666, makedev(7, 0)) < 0)
                SKIP_BECAUSE("not possible on this machine or as this user"); /* only root can make
                                                                                 them */
        check_members(f, "1", "disk special-file\nfile\nnull special-file\n");
}

static unsigned own_links_of_pinned(const char *path, const struct stat *st, void *userdata) {
        (void)userdata;
        assert_true(st->st_nlink > 1);
        return strncmp(path, "pinned", strlen("pinned")) == 0 ? 1 : 0;
}

static void a_foreign_hard_link_is_no_member_and_a_pin_of_ours_is_none(void **state) {
        Fixture *f = *state;
        ScanWalk w = {
                .source = &f->source, .relative = "1", .on_member = note_member, .userdata = f
        };

        fixture_source(f, SOURCE_NEURON_CORE_DUMP, "%p");
        fixture_files(f, "1/alone", "1/pinned", "1/pinned2", "1/shared");
        assert_int_equal(fchmodat(f->scratch->fd, "src/1", 0777, 0), 0); /* anybody may link here */
        assert_int_equal(linkat(f->scratch->fd, "src/1/pinned", f->scratch->fd, "pin", 0), 0);
        assert_int_equal(linkat(f->scratch->fd, "src/1/pinned2", f->scratch->fd, "pin2", 0), 0);
        assert_int_equal(linkat(f->scratch->fd, "src/1/pinned2", f->scratch->fd, "elsewhere", 0),
                         0);
        assert_int_equal(linkat(f->scratch->fd, "src/1/shared", f->scratch->fd, "shadow", 0), 0);
        check_members(f, "1", "alone\npinned hard-link\npinned2 hard-link\nshared hard-link\n");
        w.own_links = own_links_of_pinned;
        strbuf_clear(&f->lines);
        assert_int_equal(scan_members(&w), 0);
        assert_string_equal(f->lines.text, "alone\npinned\npinned2 hard-link\nshared hard-link\n");
        f->source.any_links = true;
        check_members(f, "1", "alone\npinned\npinned2\nshared\n");
}

static void members_beyond_max_files_are_counted(void **state) {
        Fixture *f = *state;

        fixture_source(f, SOURCE_NEURON_CORE_DUMP, "%p");
        fixture_files(f, "1/a", "1/b", "1/c/d", "1/e", "1/" OTHER "-nrt-pid-1.log");
        assert_int_equal(symlinkat("a", f->scratch->fd, "src/1/aa"), 0);
        f->source.max_files = 2;
        check_members(f, "1",
                      "a\naa symlink\nb\nc/d too-many-files\ne too-many-files\n" OTHER
                      "-nrt-pid-1.log foreign\n");
        check_scan(f, "'1' files=2 pid=1 symlink=1(aa) foreign=1(" OTHER
                      "-nrt-pid-1.log) too-many-files=2(c/d)\n");
        f->source.max_files = 4;
        check_members(f, "1", "a\naa symlink\nb\nc/d\ne\n" OTHER "-nrt-pid-1.log foreign\n");
}

static void a_strangers_link_removes_no_file_of_its_owners_unit(void **state) {
        Fixture *f = *state;

        fixture_source(f, SOURCE_NEURON_CORE_DUMP, "%p");
        fixture_files(f, "1/a", "1/below/b");
        assert_int_equal(fchmodat(f->scratch->fd, "src/1", 0755, 0), 0);
        assert_int_equal(fchmodat(f->scratch->fd, "src/1/below", 0755, 0), 0);
        assert_int_equal(linkat(f->scratch->fd, "src/1/a", f->scratch->fd, "strangers", 0), 0);
        assert_int_equal(linkat(f->scratch->fd, "src/1/below/b", f->scratch->fd, "too", 0), 0);
        check_members(f, "1", "a\nbelow/b\n");
        assert_int_equal(fchmodat(f->scratch->fd, "src/1/below", 0777, 0), 0);
        check_members(f, "1", "a\nbelow/b hard-link\n"); /* it may be a secret of the owner's */
        assert_int_equal(fchmodat(f->scratch->fd, "src/1/below", 0755, 0), 0);
        if (geteuid() != 0)
                SKIP_BECAUSE("files of other users cannot be made");
        assert_int_equal(fchownat(f->scratch->fd, "src/1/a", 1001, 1001, 0), 0);
        check_members(f, "1", "a hard-link\nbelow/b\n");
        assert_int_equal(fchownat(f->scratch->fd, "src/1", 1001, 1001, 0), 0);
        check_members(f, "1", "a\nbelow/b hard-link\n");
}

/* Members, and what is no member for want of space for its name. */
typedef struct Tally {
        uint64_t n_members, n_too_many;
        char last[NAME_MAX + 1];
} Tally;

static int tally(const ScanMember *m, int unit_fd, void *userdata) {
        Tally *t = userdata;
        (void)unit_fd;
        t->n_too_many += m->skip == SCAN_SKIP_TOO_MANY;
        if (m->skip != SCAN_SKIP_NONE)
                return 0;
        t->n_members++;
        (void)snprintf(t->last, sizeof t->last, "%s", m->path);
        return 0;
}

static void the_names_of_a_directory_are_bounded_and_the_first_are_members(void **state) {
        enum { N_NAMES = 9000, N_MEMBERS = 10 };
        Fixture *f = *state;
        Tally t = { 0 };

        fixture_source(f, SOURCE_NEURON_CORE_DUMP, "%p");
        f->source.max_files = N_MEMBERS;
        fixture_files(f, "1/below/file");
        for (int i = N_NAMES; i-- > 0;) { /* the last one first */
                char name[64];
                (void)snprintf(name, sizeof name, "src/1/file-%04d", i);
                assert_int_equal(mknodat(f->scratch->fd, name, S_IFREG | 0644, 0), 0);
        }
        assert_int_equal(scan_members(&(ScanWalk){ .source = &f->source,
                                                   .relative = "1",
                                                   .on_member = tally,
                                                   .userdata = &t }),
                         0);
        assert_int_equal(t.n_members, N_MEMBERS);
        assert_string_equal(t.last, "file-0008");
        assert_int_equal(t.n_too_many, N_NAMES + 1 - N_MEMBERS);
}

static void a_list_keeps_the_names_that_come_first(void **state) {
        Fixture *f = *state;
        _cleanup_closedir_ DIR *dir = NULL;
        TreeList list;

        for (int i = 0; i < 1000; i++) {
                char name[64];
                (void)snprintf(name, sizeof name, "src/%03d", i * 7 % 1000);
                assert_int_equal(mknodat(f->scratch->fd, name, S_IFREG | 0644, 0), 0);
        }
        assert_int_equal(fs_opendir_at(f->scratch->fd, "src", &dir), 0);
        assert_int_equal(tree_list_read(&list, dir, &(TreeBounds){ 20, SIZE_MAX, SIZE_MAX }), 0);
        assert_int_equal(list.n, 20);
        assert_int_equal(list.n_dropped, 980);
        assert_true(list.max_bytes < 2048);
        for (size_t i = 0; i < list.n; i++)
                assert_int_equal(strtol(tree_list_name(&list, i), NULL, 10), i);
        tree_list_done(&list);
        rewinddir(dir);
        assert_int_equal(tree_list_read(&list, dir, &(TreeBounds){ SIZE_MAX, 41, SIZE_MAX }),
                         0); /* 4 bytes each */
        assert_int_equal(list.n, 10);
        assert_int_equal(list.n_dropped, 990);
        assert_string_equal(tree_list_name(&list, 9), "009");
        tree_list_done(&list);
        rewinddir(dir);
        assert_int_equal(tree_list_read(&list, dir, &(TreeBounds){ SIZE_MAX, SIZE_MAX, 400 }), 0);
        assert_int_equal(list.n, 100);
        assert_int_equal(list.n_dropped, 1);
        tree_list_done(&list);
}

static int begin_without_end(const ScanMember *m, int unit_fd, void *userdata) {
        is_endless = true;
        return tally(m, unit_fd, userdata);
}

static void of_directories_without_end_a_walk_reads_no_more_than_40_mib_of_names(void **state) {
        Fixture *f = *state;
        Tally t = { 0 };

        fixture_source(f, SOURCE_NEURON_CORE_DUMP, "%p");
        fixture_files(f, "1/a", "1/b/file", "1/c/file");
        n_read = 0;
        assert_int_equal(scan_members(&(ScanWalk){ .source = &f->source,
                                                   .relative = "1",
                                                   .on_member = begin_without_end,
                                                   .userdata = &t }),
                         0);
        is_endless = false;
        assert_int_equal(t.n_members, 1);
        assert_true(t.n_too_many > 1);
        assert_in_range(n_read, 40 * MIB / 256 - 1, 40 * MIB / 256 + 2);
}

static void members_that_do_not_fit_into_max_bytes_are_skipped(void **state) {
        Fixture *f = *state;

        fixture_source(f, SOURCE_NEURON_CORE_DUMP, "%p");
        fixture_make(f, "1/a", 60);
        fixture_make(f, "1/b", 50);
        fixture_make(f, "1/c", 40);
        fixture_make(f, "1/d", 1);
        fixture_make(f, "1/e", 0);
        f->source.max_bytes = 100;
        check_members(f, "1", "a\nb too-big\nc\nd too-big\ne\n");
        f->source.max_bytes = 151;
        check_members(f, "1", "a\nb\nc\nd\ne\n");
        f->source.max_bytes = 1;
        check_members(f, "1", "a too-big\nb too-big\nc too-big\nd\ne\n");
}

/* nftw(3) goes by paths, and these are longer than it can say. */
static void remove_deep(const Fixture *f) {
        char command[FIXTURE_PATH_SIZE];

        (void)snprintf(command, sizeof command, "rm -rf '%s'", f->root);
        assert_int_equal(system(command), 0);
        assert_int_equal(mkdir(f->root, 0755), 0);
}

/* The unit is the first of 64 levels, so the last directory that is entered is the 63rd. */
static void what_lies_too_deep_is_reported_and_not_entered(void **state) {
        Fixture *f = *state;
        char path[1024] = "1", file[1100], expected[4096];

        fixture_source(f, SOURCE_DIRECTORY, "%p");
        for (size_t depth = 2; depth < FS_DEPTH_MAX; depth++)
                (void)strcat(path, "/d");
        (void)snprintf(expected, sizeof expected, "%s/deepest\n%s/e too-deep\n", path + 2,
                       path + 2);
        (void)snprintf(file, sizeof file, "%s/deepest", path);
        fixture_make(f, file, 1);
        (void)snprintf(file, sizeof file, "%s/e/beyond", path);
        fixture_make(f, file, 1);
        assert_string_equal(members(f, "1"), expected);
}

/* A path that no system call would take could be found, but never opened again. */
static void a_path_beyond_path_max_is_reported(void **state) {
        Fixture *f = *state;
        char name[NAME_MAX + 1], path[PATH_MAX], *text;
        int fd = dup(f->scratch->fd);
        size_t n_long = 0, n_deep = 0;

        fixture_source(f, SOURCE_DIRECTORY, "");
        memset(name, 'n', NAME_MAX);
        name[NAME_MAX] = '\0';
        (void)strcpy(path, "src");
        for (size_t i = 0; i < 20; i++) { /* 20 times 256 bytes */
                int next = openat(fd, path, O_RDONLY | O_DIRECTORY);

                assert_true(next >= 0);
                assert_int_equal(close(fd), 0);
                fd = next;
                assert_int_equal(mkdirat(fd, name, 0755), 0);
                next = openat(fd, "f", O_WRONLY | O_CREAT, 0644);
                assert_int_equal(close(next), 0);
                (void)strcpy(path, name);
        }
        assert_int_equal(close(fd), 0);
        text = strdup(members(f, ""));
        for (char *line, *rest = text; (line = strsep(&rest, "\n"));) {
                assert_true(strlen(line) < PATH_MAX + strlen(" too-deep"));
                n_long += strlen(line) > 15 * 256;
                n_deep += strstr(line, " too-deep") != NULL;
        }
        assert_true(n_long > 0);
        assert_int_equal(n_deep, 1);
        free(text);
        remove_deep(f);
}

static void excluded_files_are_no_members(void **state) {
        static const char *const patterns[] = { "*.tmp",     "cache/*",   "exact",
                                                "a\\\\xff*", "q\\\\x0a?", NULL };
        static const char *const none[] = { NULL };
        Fixture *f = *state;

        fixture_source(f, SOURCE_NEURON_CORE_DUMP, "%p");
        fixture_files(f, "1/x.tmp", "1/s/y.tmp", "1/cache/deep/z", "1/exact", "1/s/exact",
                      "1/exact2",
                      "1/a\xff"
                      "b",
                      "1/q\nr", "1/x.tmp2", "1/dir.tmp/kept");
        f->source.exclude = patterns;
        check_members(
                f, "1",
                "a\xff"
                "b excluded\ncache/deep/z excluded\ndir.tmp/kept\nexact excluded\nexact2\n"
                "q\nr excluded\ns/exact excluded\ns/y.tmp excluded\nx.tmp excluded\nx.tmp2\n");
        f->source.exclude = none;
        check_members(f, "1",
                      "a\xff"
                      "b\ncache/deep/z\ndir.tmp/kept\nexact\nexact2\nq\nr\ns/exact\ns/"
                      "y.tmp\nx.tmp\nx.tmp2\n");
}

static void hostile_names_are_members_like_others(void **state) {
        Fixture *f = *state;
        char longest[NAME_MAX + 3] = "1/", expected[1024];

        fixture_source(f, SOURCE_NEURON_CORE_DUMP, "%p");
        memset(longest + 2, 'z', NAME_MAX);
        fixture_make(f, longest, 1);
        fixture_files(f, "1/ ", "1/%s%n", "1/...", "1/-rf", "1/\\x41", "1/a\nb", "1/\xff\xfe\x01",
                      "1/$(x)`y`");
        (void)snprintf(expected, sizeof expected,
                       " \n$(x)`y`\n%%s%%n\n-rf\n...\n\\x41\na\nb\n%s\n\xff\xfe\x01\n",
                       longest + 2);
        assert_string_equal(members(f, "1"), expected);
}

static void a_file_unit_is_its_only_member(void **state) {
        static const char *const patterns[] = { "*.2", NULL };
        Fixture *f = *state;

        fixture_source(f, SOURCE_PROCESS_CORE, "");
        fixture_files(f, "core.1", "sub/core.1", "sub/core.2");
        check_members(f, "core.1", "core.1\n");
        check_members(f, "sub/core.1", "core.1\n");
        f->source.exclude = patterns;
        check_members(f, "sub/core.2", "core.2 excluded\n");
        check_scan(f, "'core.1' files=1 file\n"
                      "'sub/core.1' files=1 file\n");
}

static void a_loose_unit_has_only_the_files_beside(void **state) {
        Fixture *f = *state;
        const ScanWalk w = {
                .source = &f->source,
                .relative = "",
                .loose = true,
                .on_member = note_member,
                .userdata = f,
        };

        fixture_source(f, SOURCE_DIRECTORY, "%p");
        fixture_files(f, "a", "1/b", "c", US "-nrt-pid-7.log");
        assert_int_equal(scan_members(&w), 0);
        assert_string_equal(f->lines.text, "a\nc\n" US "-nrt-pid-7.log\n");
        strbuf_clear(&f->lines);
        fixture_source(f, SOURCE_NEURON_CORE_DUMP, "%p");
        assert_int_equal(scan_members(&w), 0);
        assert_string_equal(f->lines.text, US "-nrt-pid-7.log\n");
}

static void a_profile_s_members_end_where_another_begins(void **state) {
        Fixture *f = *state;

        fixture_source(f, SOURCE_NEURON_PROFILE, "");
        fixture_files(f, "r/x.ntff", "r/s/y", "r/s/" US "_pid_5/z",
                      "r/s/" US "_pid_5/" US "_pid_6/w");
        check_members(f, "r", "s/y\nx.ntff\n");
        check_members(f, "r/s/" US "_pid_5", US "_pid_6/w\nz\n");
}

static void a_path_can_stand_for_the_fixed_part(void **state) {
        Fixture *f = *state;
        char root[64];

        fixture_files(f, "1/a", "1/b");
        fixture_source(f, SOURCE_DIRECTORY, "%p");
        int fd = openat(f->scratch->fd, "src/1", O_PATH | O_DIRECTORY);
        (void)snprintf(root, sizeof root, "/proc/self/fd/%d/.", fd);
        f->source.root_override = root;
        check_members(f, "", "a\nb\n");
        assert_int_equal(close(fd), 0);
}

static void a_unit_that_was_removed_is_reported(void **state) {
        Fixture *f = *state;
        ScanWalk w = {
                .source = &f->source, .relative = "1", .on_member = note_member, .userdata = f
        };

        fixture_source(f, SOURCE_NEURON_CORE_DUMP, "%p");
        assert_int_equal(scan_members(&w), -ENOENT);
        fixture_files(f, "1");
        assert_int_equal(scan_members(&w), -ENOENT); /* a file in its place */
        assert_int_equal(unlinkat(f->scratch->fd, "src/1", 0), 0);
        assert_int_equal(symlinkat("/etc", f->scratch->fd, "src/1"), 0);
        assert_int_equal(scan_members(&w), -ENOENT); /* or a link */
        w.relative = "../x";
        assert_int_equal(scan_members(&w), -EINVAL);
        fixture_source(f, SOURCE_PROCESS_CORE, "");
        w.relative = "core.1";
        assert_int_equal(scan_members(&w), -ENOENT);
        w.relative = "sub/core.1";
        assert_int_equal(scan_members(&w), -ENOENT);
        assert_null(f->lines.text);
}

static void a_unit_that_cannot_be_read_is_reported(void **state) {
        Fixture *f = *state;
        const ScanWalk w = {
                .source = &f->source, .relative = "1", .on_member = note_member, .userdata = f
        };
        int r;

        if (geteuid() != 0)
                SKIP_BECAUSE(
                        "not possible on this machine or as this user"); /* nothing of ours would be
                                                                            closed to us */
        fixture_source(f, SOURCE_NEURON_CORE_DUMP, "%p");
        fixture_files(f, "1/a");
        assert_int_equal(fchmodat(f->scratch->fd, "src/1", 0700, 0), 0);
        assert_int_equal(seteuid(65534), 0);
        r = scan_members(&w);
        assert_int_equal(seteuid(0), 0);
        assert_int_equal(r, -EACCES);
}

static int stop_at_b(const ScanMember *m, int unit_fd, void *userdata) {
        (void)note_member(m, unit_fd, userdata);
        return strcmp(m->path, "b") == 0 ? -ECANCELED : 0;
}

static void the_callback_can_end_the_walk(void **state) {
        Fixture *f = *state;
        const ScanWalk w = {
                .source = &f->source, .relative = "1", .on_member = stop_at_b, .userdata = f
        };

        fixture_source(f, SOURCE_NEURON_CORE_DUMP, "%p");
        fixture_files(f, "1/a", "1/b", "1/c");
        assert_int_equal(scan_members(&w), -ECANCELED);
        assert_string_equal(f->lines.text, "a\nb\n");
}

/* The tree changes under the walk: `a` has been met, the names of what follows are known. */
static int change_after_a(const ScanMember *m, int unit_fd, void *userdata) {
        Fixture *f = userdata;

        if (strcmp(m->path, "a") == 0) {
                assert_int_equal(unlinkat(f->scratch->fd, "src/1/b", 0), 0);
                assert_int_equal(renameat(f->scratch->fd, "src/1/c", f->scratch->fd, "c-was-here"),
                                 0);
                assert_int_equal(symlinkat("/etc", f->scratch->fd, "src/1/c"), 0);
                assert_int_equal(renameat(f->scratch->fd, "src/1/d", f->scratch->fd, "d-was-here"),
                                 0);
                assert_int_equal(unlinkat(f->scratch->fd, "src/1/e", 0), 0);
                assert_int_equal(symlinkat("/etc/passwd", f->scratch->fd, "src/1/e"), 0);
                assert_int_equal(unlinkat(f->scratch->fd, "src/1/f", 0), 0);
                assert_int_equal(mkfifoat(f->scratch->fd, "src/1/f", 0600), 0);
                assert_int_equal(unlinkat(f->scratch->fd, "src/1/g", 0), 0);
                assert_int_equal(mkdirat(f->scratch->fd, "src/1/g", 0700), 0);
                assert_int_equal(renameat(f->scratch->fd, "src/1/h", f->scratch->fd, "h-was-here"),
                                 0);
                assert_int_equal(scratch_write(f->scratch, "src/1/h", ""), 0);
        }
        return note_member(m, unit_fd, userdata);
}

static void what_changes_during_the_walk_was_removed_or_seen_for_what_it_is(void **state) {
        Fixture *f = *state;
        const ScanWalk w = {
                .source = &f->source, .relative = "1", .on_member = change_after_a, .userdata = f
        };

        fixture_source(f, SOURCE_NEURON_CORE_DUMP, "%p");
        fixture_files(f, "1/a", "1/b", "1/c/x", "1/d/x", "1/e", "1/f", "1/g", "1/h/x", "1/i");
        assert_int_equal(scan_members(&w), 0);
        assert_string_equal(f->lines.text, "a\nc symlink\ne symlink\nf special-file\ni\n");
}

static int check_name(const ScanMember *m, int unit_fd, void *userdata) {
        (void)unit_fd;
        (void)userdata;
        assert_int_equal(m->name.kind, MEMBER_NC_STATE);
        assert_int_equal(m->name.pid, 7);
        assert_int_equal(m->st.st_size, 10);
        return 0;
}

static void a_member_comes_with_what_its_name_states(void **state) {
        Fixture *f = *state;
        const ScanWalk w = {
                .source = &f->source, .relative = "1", .on_member = check_name, .userdata = f
        };

        fixture_source(f, SOURCE_NEURON_CORE_DUMP, "%p");
        fixture_files(f, "1/sub/" US "-nd0-nc4-pid-7-tid-8-lid-9");
        assert_int_equal(scan_members(&w), 0);
}

/* The words are a contract with readers of metrics and reasons. */
static void reasons_have_names_and_a_verdict(void **state) {
        static const struct {
                const char *name;
                bool is_loss;
        } expected[] = {
                { "none", false },     { "symlink", true },       { "special-file", false },
                { "hard-link", true }, { "unreadable", true },    { "foreign", false },
                { "excluded", false }, { "too-deep", true },      { "too-many-files", true },
                { "too-big", true },   { "reserved-name", true }, { "no-profile", false },
                { "no-dump", false },
        };

        assert_int_equal(ELEMENTSOF(expected), N_SCAN_SKIPS);
        for (size_t i = 0; i < ELEMENTSOF(expected); i++) {
                assert_string_equal(scan_skip_name((ScanSkip)i), expected[i].name);
                assert_int_equal(scan_skip_is_loss((ScanSkip)i), expected[i].is_loss);
        }
        assert_null(scan_skip_name(N_SCAN_SKIPS));
        assert_false(scan_skip_is_loss(N_SCAN_SKIPS));
}

int main(void) {
        const struct CMUnitTest tests[] = {
                in_fixture(members_come_in_the_order_of_their_full_paths),
                in_fixture(the_order_is_that_of_sort_on_random_trees),
                in_fixture(links_and_special_files_are_no_members),
                in_fixture(devices_are_no_members),
                in_fixture(a_foreign_hard_link_is_no_member_and_a_pin_of_ours_is_none),
                in_fixture(members_beyond_max_files_are_counted),
                in_fixture(a_strangers_link_removes_no_file_of_its_owners_unit),
                in_fixture(the_names_of_a_directory_are_bounded_and_the_first_are_members),
                in_fixture(of_directories_without_end_a_walk_reads_no_more_than_40_mib_of_names),
                in_fixture(a_list_keeps_the_names_that_come_first),
                in_fixture(members_that_do_not_fit_into_max_bytes_are_skipped),
                in_fixture(what_lies_too_deep_is_reported_and_not_entered),
                in_fixture(a_path_beyond_path_max_is_reported),
                in_fixture(excluded_files_are_no_members),
                in_fixture(hostile_names_are_members_like_others),
                in_fixture(a_file_unit_is_its_only_member),
                in_fixture(a_loose_unit_has_only_the_files_beside),
                in_fixture(a_profile_s_members_end_where_another_begins),
                in_fixture(a_path_can_stand_for_the_fixed_part),
                in_fixture(a_unit_that_was_removed_is_reported),
                in_fixture(a_unit_that_cannot_be_read_is_reported),
                in_fixture(the_callback_can_end_the_walk),
                in_fixture(what_changes_during_the_walk_was_removed_or_seen_for_what_it_is),
                in_fixture(a_member_comes_with_what_its_name_states),
                in_fixture(reasons_have_names_and_a_verdict),
        };

        return cmocka_run_group_tests_name("scan_members", tests, NULL, NULL);
}
