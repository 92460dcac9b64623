/* collectors/host/pids.c against a /proc made by hand. */
#include <stdlib.h>

#include "tests/harness/unit.h"

#include "collectors/host/pids.h"
#include "tests/lib/base/scratch.h"

typedef struct Process {
        pid_t pid, parent;
        uid_t uid;
        const char *nspid;
        unsigned ns; /* 0 = its namespace is not ours to see */
} Process;

static void make(const Scratch *s, const Process *p) {
        char name[64], text[400];
        (void)snprintf(name, sizeof name, "%d", (int)p->pid);
        assert_int_equal(mkdirat(s->fd, name, 0755), 0);
        (void)snprintf(text, sizeof text,
                       "Name:\tpython\nState:\tS (sleeping)\nTgid:\t%d\nPid:\t%d\nPPid:\t%d\n"
                       "Uid:\t%u\t%u\t%u\t%u\nNStgid:\t%s\nNSpid:\t%s\n",
                       (int)p->pid, (int)p->pid, (int)p->parent, p->uid, p->uid, p->uid, p->uid,
                       p->nspid, p->nspid);
        (void)snprintf(name, sizeof name, "%d/status", (int)p->pid);
        assert_int_equal(scratch_write(s, name, text), 0);
        (void)snprintf(text, sizeof text,
                       "%d (a ) 3 b) S %d 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 %d 0 0\n", (int)p->pid,
                       (int)p->parent, (int)p->pid + 1000);
        (void)snprintf(name, sizeof name, "%d/stat", (int)p->pid);
        assert_int_equal(scratch_write(s, name, text), 0);
        if (p->ns == 0)
                return;
        (void)snprintf(name, sizeof name, "%d/ns", (int)p->pid);
        assert_int_equal(mkdirat(s->fd, name, 0755), 0);
        (void)snprintf(name, sizeof name, "%d/ns/pid", (int)p->pid);
        (void)snprintf(text, sizeof text, "pid:[%u]", p->ns);
        assert_int_equal(symlinkat(text, s->fd, name), 0);
}

/* Two containers with the same numbers inside, and a second one of the same user that was not
 * started by the first. */
static const Process processes[] = {
        { 1, 0, 0, "1", 10 },
        { 500, 1, 0, "500\t1", 20 },       /* the container's first process */
        { 510, 500, 1000, "510\t12", 20 }, /* it failed */
        { 511, 510, 1000, "511\t13", 20 }, /* a shell */
        { 512, 511, 1000, "512\t14", 20 }, /* the hook */
        { 520, 500, 1000, "520\t30", 20 }, /* a sister of the same user */
        { 521, 500, 1001, "521\t31", 20 }, /* another user's */
        { 600, 1, 0, "600\t1", 21 },       /* another container */
        { 610, 600, 1000, "610\t12", 21 }, /* with the same pid */
        { 620, 600, 1000, "620\t30", 21 },
        { 700, 1, 1000, "700", 10 }, /* no container */
};

static void make_all(const Scratch *s) {
        for (size_t i = 0; i < sizeof processes / sizeof *processes; i++)
                make(s, &processes[i]);
}

static void a_container_s_pid_is_found_among_the_hook_s_ancestors(void **state) {
        const Scratch *s = *state;
        PidsMatch found = { .pid = 0 };
        make_all(s);
        assert_int_equal(pids_resolve_ancestor(&(PidsQuery){ s->path, 512, 0, 12 }, &found), 0);
        assert_int_equal(found.pid, 510);
        assert_int_equal(found.start_ticks, 1510);
        assert_int_equal(pids_resolve(&(PidsQuery){ s->path, 512, 20, 12 }, &found), 0);
        assert_int_equal(found.pid, 510);
}

static void an_ancestor_of_another_user_may_not_be_spoken_of(void **state) {
        const Scratch *s = *state;
        PidsMatch found = { .pid = 77 };
        make_all(s);
        assert_int_equal(pids_resolve(&(PidsQuery){ s->path, 512, 20, 1 }, &found),
                         PIDS_E_NOT_FOUND);
        assert_int_equal(found.pid, 77);
}

static void pid_one_in_a_container_is_the_container_s(void **state) {
        static const Process p[] = { { 1, 0, 1000, "1", 10 },
                                     { 500, 1, 1000, "500\t1", 20 },
                                     { 501, 500, 1000, "501\t2", 20 } };
        const Scratch *s = *state;
        PidsMatch found = { .pid = 0 };
        for (size_t i = 0; i < 3; i++)
                make(s, &p[i]);
        assert_int_equal(pids_resolve_ancestor(&(PidsQuery){ s->path, 501, 0, 1 }, &found), 0);
        assert_int_equal(found.pid, 500);
        assert_int_equal(pids_resolve_ancestor(&(PidsQuery){ s->path, 500, 0, 7 }, &found),
                         PIDS_E_NOT_FOUND);
}

static void a_process_of_the_same_user_and_namespace_may_be_spoken_of(void **state) {
        const Scratch *s = *state;
        PidsMatch found = { .pid = 0 };
        make_all(s);
        assert_int_equal(pids_resolve_ancestor(&(PidsQuery){ s->path, 512, 0, 30 }, &found),
                         PIDS_E_NOT_FOUND);
        assert_int_equal(pids_resolve(&(PidsQuery){ s->path, 512, 20, 30 }, &found), 0);
        assert_int_equal(found.pid, 520);
        assert_int_equal(pids_resolve(&(PidsQuery){ s->path, 512, 0, 30 }, &found), 0);
        assert_int_equal(found.pid, 520);
}

static void another_user_s_process_may_not(void **state) {
        const Scratch *s = *state;
        PidsMatch found = { .pid = 77 };
        make_all(s);
        assert_int_equal(pids_resolve(&(PidsQuery){ s->path, 512, 20, 31 }, &found),
                         PIDS_E_NOT_FOUND);
        assert_int_equal(found.pid, 77);
}

static void a_hook_that_lies_about_its_namespace_is_not_believed(void **state) {
        const Scratch *s = *state;
        PidsMatch found = { .pid = 0 };
        make_all(s);
        assert_int_equal(pids_resolve(&(PidsQuery){ s->path, 512, 21, 30 }, &found),
                         PIDS_E_NOT_FOUND);
}

static void a_hidden_or_ended_hook_is_distinguished_from_a_pid_that_is_not_there(void **state) {
        const Scratch *s = *state;
        PidsMatch found = { 0 };
        make_all(s);
        assert_int_equal(pids_resolve(&(PidsQuery){ s->path, 999, 20, 12 }, &found), PIDS_E_HIDDEN);
        assert_int_equal(pids_resolve(&(PidsQuery){ s->path, 0, 20, 12 }, &found), PIDS_E_HIDDEN);
        assert_int_equal(pids_resolve(&(PidsQuery){ s->path, 512, 20, 4711 }, &found),
                         PIDS_E_NOT_FOUND);
}

static void where_namespaces_cannot_be_seen_only_ancestors_are_found(void **state) {
        const Scratch *s = *state;
        PidsMatch found = { .pid = 0 };
        for (size_t i = 0; i < sizeof processes / sizeof *processes; i++) {
                Process p = processes[i];
                p.ns = 0;
                make(s, &p);
        }
        assert_int_equal(pids_resolve(&(PidsQuery){ s->path, 512, 20, 12 }, &found), 0);
        assert_int_equal(pids_resolve(&(PidsQuery){ s->path, 512, 20, 30 }, &found),
                         PIDS_E_NOT_FOUND);
}

static void this_very_process_is_found_in_the_real_proc(void **state) {
        PidsMatch found = { .pid = 0 };
        assert_int_equal(
                pids_resolve_ancestor(&(PidsQuery){ "/proc", getpid(), 0, getppid() }, &found), 0);
        assert_int_equal(found.pid, getppid());
        assert_true(found.start_ticks > 0);
}

static void broken_files_lead_nowhere(void **state) {
        const Scratch *s = *state;
        PidsMatch found = { .pid = 0 };
        static const char *const texts[] = {
                "",
                "PPid:\t1\n",
                "\nPPid:\t1\nUid:\t1\nNSpid:\t\n",
                "x\nPPid:\t-1\nUid:\t0\t\nNSpid:\t5\t5\n",
                "x\nPPid:\t1\nUid:\t0\t\nNSpid:\t99999999999999999999999\n",
                "x\nPPid:\t99999999999\nUid:\t0\t\nNSpid:\t5\n",
        };
        assert_int_equal(mkdirat(s->fd, "5", 0755), 0);
        assert_int_equal(
                scratch_write(s, "5/stat", "5 (x) S 5 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 7 0 0\n"),
                0);
        for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
                assert_int_equal(scratch_write(s, "5/status", texts[i]), 0);
                assert_int_not_equal(pids_resolve(&(PidsQuery){ s->path, 5, 0, 7 }, &found), 0);
        }
        /* A process that is its own parent ends the walk all the same. */
        assert_int_equal(scratch_write(s, "5/status", "x\nPPid:\t5\nUid:\t0\t\nNSpid:\t5\n"), 0);
        assert_int_equal(pids_resolve(&(PidsQuery){ s->path, 5, 0, 7 }, &found), PIDS_E_NOT_FOUND);
}

#define ID "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"

static void a_container_is_known_by_its_cgroup(void **state) {
        char id[PIDS_CONTAINER_SIZE];
        assert_true(pids_container_of(
                "0::/kubepods.slice/kubepods-pod1.slice/cri-containerd-" ID ".scope\n", id));
        assert_string_equal(id, ID);
        assert_true(pids_container_of("12:devices:/docker/" ID "\n1:name=systemd:/docker/" ID "\n",
                                      id));
        assert_string_equal(id, ID);
        assert_false(pids_container_of("0::/user.slice/user-1000.slice\n", id));
        assert_false(pids_container_of("0::/" ID "0\n", id)); /* 65 digits are something else */
        assert_false(pids_container_of("", id));
}

#define TEST(f) cmocka_unit_test_setup_teardown(f, scratch_setup, scratch_teardown)

int main(void) {
        const struct CMUnitTest tests[] = {
                TEST(a_container_s_pid_is_found_among_the_hook_s_ancestors),
                TEST(an_ancestor_of_another_user_may_not_be_spoken_of),
                TEST(pid_one_in_a_container_is_the_container_s),
                TEST(a_process_of_the_same_user_and_namespace_may_be_spoken_of),
                TEST(another_user_s_process_may_not),
                TEST(a_hook_that_lies_about_its_namespace_is_not_believed),
                TEST(a_hidden_or_ended_hook_is_distinguished_from_a_pid_that_is_not_there),
                TEST(where_namespaces_cannot_be_seen_only_ancestors_are_found),
                TEST(this_very_process_is_found_in_the_real_proc),
                TEST(broken_files_lead_nowhere),
                cmocka_unit_test(a_container_is_known_by_its_cgroup),
        };
        return cmocka_run_group_tests(tests, NULL, NULL);
}
