/* The order of roots, and which processes and layers are among them. */
#include <dirent.h>
#include <errno.h>

#include "tests/harness/unit.h"

#include "collectors/crash/origin/roots.h"
#include "lib/base/cleanup.h"
#include "tests/lib/base/scratch.h"

#define ID "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"
#define POD "/kubepods.slice/kubepods-pod1.slice/cri-containerd-" ID ".scope"
#define PODMAN "var/lib/containers/storage/overlay"
#define CONTAINERD "var/lib/containerd/io.containerd.snapshotter.v1.overlayfs/snapshots"

static unsigned n_open_fds(void) {
        _cleanup_closedir_ DIR *d = opendir("/proc/self/fd");
        unsigned n = 0;
        while (readdir(d))
                n++;
        return n;
}

/* A process as procfs has it. */
static void make_process(const Scratch *s, int pid, const char *cgroup, const char *root) {
        char path[64], text[512], target[2 * PATH_MAX];
        (void)snprintf(path, sizeof path, "proc/%d", pid);
        assert_int_equal(scratch_make_dirs(s, path), 0);
        (void)snprintf(path, sizeof path, "proc/%d/stat", pid);
        (void)snprintf(text, sizeof text,
                       "%d (x) S 1 1 1 0 -1 0 0 0 0 0 0 0 0 0 20 0 1 0 777 0 0\n", pid);
        assert_int_equal(scratch_write(s, path, text), 0);
        (void)snprintf(path, sizeof path, "proc/%d/cgroup", pid);
        assert_int_equal(scratch_write(s, path, cgroup), 0);
        (void)snprintf(path, sizeof path, "proc/%d/root", pid);
        (void)snprintf(target, sizeof target, "%s/%s", s->path, root);
        assert_int_equal(scratch_make_dirs(s, root), 0);
        assert_int_equal(symlinkat(target, s->fd, path), 0);
}

static void find(const Scratch *s, const char *cgroup, Roots *ret) {
        char proc[PATH_MAX + 8];
        _cleanup_close_ int host = -1;
        assert_int_equal(scratch_make_dirs(s, "host"), 0);
        host = openat(s->fd, "host", O_PATH | O_CLOEXEC);
        (void)snprintf(proc, sizeof proc, "%s/proc", s->path);
        roots_add_container(ret, proc, cgroup, host);
}

static void a_process_of_the_container_is_found_by_the_containers_id(void **state) {
        const Scratch *s = *state;
        Roots r = { .n = 0 };
        make_process(s, 5, "0::/system.slice/sshd.service\n", "host");
        make_process(s, 7, "0::/../cri-containerd-" ID ".scope\n", "image");
        make_process(s, 9, "0::" POD "\n", "image");
        unsigned before = n_open_fds();
        find(s, POD, &r);
        assert_int_equal(r.n, 1);
        assert_string_equal(r.items[0].name, "process 7");
        assert_int_equal(r.items[0].kind, FILE_ROOT_OWN);
        roots_done(&r);
        find(s, "12:pids:/x\n0::" POD "\n", &r); /* the text of a file of procfs */
        assert_int_equal(r.n, 1);
        roots_done(&r);
        assert_int_equal(n_open_fds(), before);
}

static void without_an_id_the_path_must_be_the_same(void **state) {
        const Scratch *s = *state;
        Roots r = { .n = 0 };
        make_process(s, 5, "9:name=systemd:/\n0::/slurm/job_5/task_10\n", "image");
        make_process(s, 6, "9:name=systemd:/a/slurm/job_5/task_1\n", "image");
        make_process(s, 7, "9:name=systemd:/\n0::/slurm/job_5/task_1\n", "image");
        find(s, "/slurm/job_5/task_1", &r);
        assert_int_equal(r.n, 1);
        assert_string_equal(r.items[0].name, "process 7");
        roots_done(&r);
        static const char *const none[] = { "/", "", "/slurm", "task_1", "/slurm/job_5/task_1/" };
        for (size_t i = 0; i < ELEMENTSOF(none); i++) {
                find(s, none[i], &r);
                assert_int_equal(r.n, 0);
        }
}

static void the_hosts_own_root_is_none(void **state) {
        const Scratch *s = *state;
        Roots r = { .n = 0 };
        make_process(s, 5, "0::/user.slice\n", "host");
        find(s, "/user.slice", &r);
        assert_int_equal(r.n, 0);
}

static void of_several_roots_none_is_the_processs_own(void **state) {
        const Scratch *s = *state;
        Roots r = { .n = 0 };
        char root[16];
        for (int pid = 1; pid <= 9; pid++) {
                (void)snprintf(root, sizeof root, "image%d", pid);
                make_process(s, pid, "0::/user.slice\n", root);
        }
        find(s, "/user.slice", &r);
        assert_int_equal(r.n, 4);
        for (size_t i = 0; i < r.n; i++)
                assert_int_equal(r.items[i].kind, FILE_ROOT_LAYER);
        roots_done(&r);
}

static void make_layer(const Scratch *s, const char *store, const char *name, const char *below,
                       time_t made) {
        const struct timespec times[] = { { .tv_sec = made }, { .tv_sec = made } };
        char path[PATH_MAX];
        (void)snprintf(path, sizeof path, "%s/%s/%s", store, name, below);
        assert_int_equal(scratch_make_dirs(s, path), 0);
        (void)snprintf(path, sizeof path, "%s/%s", store, name);
        assert_int_equal(utimensat(s->fd, path, times, 0), 0);
}

static void layers_come_newest_first_of_both_stores(void **state) {
        const Scratch *s = *state;
        Roots r = { .n = 0 };
        unsigned before = n_open_fds();
        make_layer(s, CONTAINERD, "1", "fs", 100);
        make_layer(s, CONTAINERD, "2", "fs", 300);
        make_layer(s, CONTAINERD, "3", "work", 900);
        make_layer(s, PODMAN, ID, "diff", 200);
        make_layer(s, PODMAN, "l", "ABC", 800);
        assert_int_equal(scratch_write(s, PODMAN "/file", ""), 0);
        assert_int_equal(symlinkat("/", s->fd, PODMAN "/link"), 0);
        assert_int_equal(symlinkat("/etc", s->fd, CONTAINERD "/3/fs"), 0);
        roots_add_layers(&r, s->fd);
        assert_int_equal(r.n, 3);
        assert_string_equal(r.items[0].name, "layer 2");
        assert_string_equal(r.items[1].name, "layer 0123456789ab");
        assert_string_equal(r.items[2].name, "layer 1");
        for (size_t i = 0; i < r.n; i++)
                assert_int_equal(r.items[i].kind, FILE_ROOT_LAYER);
        roots_done(&r);
        assert_int_equal(n_open_fds(), before);
}

static void of_many_layers_there_are_128(void **state) {
        const Scratch *s = *state;
        Roots r = { .n = 0 };
        char name[16];
        unsigned before = n_open_fds();
        for (int i = 0; i < 300; i++) {
                (void)snprintf(name, sizeof name, "%d", i);
                make_layer(s, CONTAINERD, name, "fs", 1000 + i);
        }
        roots_add_layers(&r, s->fd);
        assert_int_equal(r.n, 128);
        assert_string_equal(r.items[0].name, "layer 299");
        roots_add_layers(&r, s->fd);
        assert_int_equal(r.n, FILES_ROOTS_MAX);
        roots_add(&r, dup(s->fd), FILE_ROOT_HOST, "more than there is room for");
        roots_add(&r, -1, FILE_ROOT_HOST, "none");
        assert_int_equal(r.n, FILES_ROOTS_MAX);
        roots_done(&r);
        assert_int_equal(n_open_fds(), before);
}

int main(void) {
        const struct CMUnitTest tests[] = {
                cmocka_unit_test_setup_teardown(
                        a_process_of_the_container_is_found_by_the_containers_id, scratch_setup,
                        scratch_teardown),
                cmocka_unit_test_setup_teardown(without_an_id_the_path_must_be_the_same,
                                                scratch_setup, scratch_teardown),
                cmocka_unit_test_setup_teardown(the_hosts_own_root_is_none, scratch_setup,
                                                scratch_teardown),
                cmocka_unit_test_setup_teardown(of_several_roots_none_is_the_processs_own,
                                                scratch_setup, scratch_teardown),
                cmocka_unit_test_setup_teardown(layers_come_newest_first_of_both_stores,
                                                scratch_setup, scratch_teardown),
                cmocka_unit_test_setup_teardown(of_many_layers_there_are_128, scratch_setup,
                                                scratch_teardown),
        };
        return cmocka_run_group_tests(tests, NULL, NULL);
}
