/* A real container, as far as `container_dumps` can tell: a process of another user with mounts of its own. What is in it is made from outside, by way of
 * /proc/PID/root. */
#pragma once

#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/sysmacros.h>
#include <sys/un.h>
#include <sys/wait.h>

#include "collectors/runner/child.h"
#include "collectors/runner/order.h"
#include "lib/base/clock.h"
#include "tests/collectors/host/test_procfs_records.h"
#include "tests/collectors/runner/test_unit_child.h"
#include "tests/harness/skip.h"

enum { JOB_UID = 65532, OTHER_UID = 65531, HOOKS_MAX = 8, WAIT_MSEC = 30000 };
#define DUMP "/tmp/dt-20260527-cid-1"

typedef struct Hook {
        pid_t pid;
} Hook;

typedef struct Room {
        Fake *fake;
        Hook hooks[HOOKS_MAX];
        size_t n_hooks;
        CollectContainerDump dumps[HOOKS_MAX];
        CollectOrder order;
        rlim_t max_descriptors; /* of the child; 0 = as here */
        pid_t child;
        FILE *records;
        int why_fd;
} Room;

static inline int room_setup(void **state) {
        Room *m = calloc(1, sizeof *m);
        assert_non_null(m);
        m->fake = fake_new();
        m->fake->records = json_array();
        m->order = (CollectOrder){ .sysfs_root = (char *)"/sys",
                                   .device_directory = (char *)"/dev",
                                   .proc_root = (char *)"/proc",
                                   .timeout_usec = 25 * USEC_PER_SEC,
                                   .max_bytes = 64 * MIB,
                                   .container_dumps = m->dumps };
        m->why_fd = -1;
        *state = m;
        return fchmod(m->fake->raw_fd, 0777);
}

static inline void end_process(pid_t *pid) {
        if (*pid > 0) {
                (void)kill(*pid, SIGKILL);
                (void)waitpid(*pid, NULL, 0);
        }
        *pid = 0;
}

static inline int room_teardown(void **state) {
        Room *m = *state;
        end_process(&m->child);
        for (size_t i = 0; i < m->n_hooks; i++)
                end_process(&m->hooks[i].pid);
        if (m->records)
                (void)fclose(m->records);
        if (m->why_fd >= 0)
                (void)close(m->why_fd);
        fake_free(m->fake);
        free(m);
        return 0;
}

/* ---- the container ---- */

static inline _Noreturn void be_hook(int ready_fd, uid_t uid, bool is_contained) {
        (void)prctl(PR_SET_PDEATHSIG, SIGKILL, 0, 0, 0);
        bool ok = !is_contained || (unshare(CLONE_NEWNS) == 0 &&
                                    mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) == 0 &&
                                    mount("tmpfs", "/tmp", "tmpfs", 0, NULL) == 0 &&
                                    mkdir(DUMP, 0700) == 0 && chown(DUMP, uid, uid) == 0);
        ok = ok && become(uid, 0) && prctl(PR_SET_PDEATHSIG, SIGKILL, 0, 0, 0) == 0 &&
             prctl(PR_SET_DUMPABLE, 1, 0, 0, 0) == 0; /* as after an exec */
        if (ok && write(ready_fd, "y", 1) == 1)
                for (;;)
                        (void)pause();
        _exit(1);
}

/* A hook of this user, and a note of it about the directory DUMP. @return whether there may be one here */
static inline bool add_hook(Room *m, uid_t uid, bool is_contained) {
        static char notes[HOOKS_MAX][8];
        int fds[2];
        char ready = 'n';
        if (geteuid() != 0)
                return false;
        assert_true(m->n_hooks < HOOKS_MAX);
        assert_int_equal(pipe2(fds, O_CLOEXEC), 0);
        Hook *h = &m->hooks[m->n_hooks];
        h->pid = fork();
        if (h->pid == 0)
                be_hook(fds[1], uid, is_contained);
        (void)close(fds[1]);
        ssize_t n = read(fds[0], &ready, 1);
        (void)close(fds[0]);
        (void)snprintf(notes[m->n_hooks], sizeof notes[0], "n%zu", m->n_hooks);
        m->dumps[m->n_hooks] = (CollectContainerDump){
                .note = notes[m->n_hooks], .path = (char *)DUMP, .hook_pid = h->pid, .uid = uid
        };
        m->order.n_container_dumps = ++m->n_hooks;
        return n == 1 && ready == 'y';
}

#define NEED_CONTAINER(m)                                                                          \
        do {                                                                                       \
                if (!add_hook(m, JOB_UID, true))                                                   \
                        SKIP_BECAUSE("mount namespaces and other users need root");                \
        } while (0)

/* A path below the directory of a hook, as this test reaches it. */
static inline const char *inside(const Room *m, size_t hook, const char *name) {
        static char paths[4][PATH_MAX];
        static unsigned next;
        char *path = paths[next++ % 4];
        (void)snprintf(path, PATH_MAX, "/proc/%d/root" DUMP "/%s", (int)m->hooks[hook].pid, name);
        return path;
}

static inline void make_directory(const Room *m, const char *name, uid_t uid) {
        assert_int_equal(mkdir(inside(m, 0, name), 0700), 0);
        assert_int_equal(chown(inside(m, 0, name), uid, uid), 0);
}

static inline int make_file(const Room *m, size_t hook, const char *name) {
        int fd = open(inside(m, hook, name), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
        assert_true(fd >= 0);
        assert_int_equal(fchown(fd, m->dumps[hook].uid, m->dumps[hook].uid), 0);
        return fd;
}

static inline void write_file(const Room *m, size_t hook, const char *name, const char *text) {
        int fd = make_file(m, hook, name);
        assert_int_equal(pwrite(fd, text, strlen(text), 0), (ssize_t)strlen(text));
        assert_int_equal(close(fd), 0);
}

static inline void mount_inside(const Room *m, const char *source, const char *target) {
        char ns[64];
        int status;
        (void)snprintf(ns, sizeof ns, "/proc/%d/ns/mnt", (int)m->hooks[0].pid);
        pid_t pid = fork();
        if (pid == 0) {
                int fd = open(ns, O_RDONLY | O_CLOEXEC);
                bool ok = setns(fd, CLONE_NEWNS) == 0 &&
                          mount(source, target, NULL, MS_BIND, NULL) == 0;
                _exit(ok ? 0 : 1);
        }
        assert_int_equal(waitpid(pid, &status, 0), pid);
        assert_int_equal(status, 0);
}

static inline void make_hostile_tree(const Room *m) {
        struct sockaddr_un a = { .sun_family = AF_UNIX };
        char name[256] = "";
        assert_int_equal(mkfifo(inside(m, 0, "fifo"), 0666), 0);
        assert_int_equal(mknod(inside(m, 0, "device"), S_IFCHR | 0666, makedev(1, 5)), 0);
        assert_int_equal(lchown(inside(m, 0, "device"), JOB_UID, JOB_UID), 0);
        assert_int_equal(symlink("/etc/passwd", inside(m, 0, "link")), 0);
        assert_int_equal(symlink("/", inside(m, 0, "tree")), 0);
        (void)snprintf(a.sun_path, sizeof a.sun_path, "/proc/%d/root" DUMP "/socket",
                       (int)m->hooks[0].pid);
        _cleanup_close_ int fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
        assert_int_equal(bind(fd, (const struct sockaddr *)&a, sizeof a), 0);
        write_file(m, 0, "secret", "not his");
        assert_int_equal(chown(inside(m, 0, "secret"), OTHER_UID, OTHER_UID), 0);
        make_directory(m, "others", OTHER_UID);
        write_file(m, 0, "others/file", "in the other's");
        write_file(m, 0, "environ", "");
        write_file(m, 0, "core.1", "good");
        (void)snprintf(name, sizeof name, "/proc/%d/environ", (int)m->hooks[0].pid); /* his own */
        mount_inside(m, name, DUMP "/environ");
        name[0] = '\0';
        for (int i = 0; i < 9; i++) {
                (void)snprintf(name + strlen(name), sizeof name - strlen(name), "%sd",
                               i ? "/" : "");
                make_directory(m, name, JOB_UID);
        }
}
