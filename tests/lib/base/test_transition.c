/* The helper for illegal state transitions. */
#include "lib/base/transition.h"

#include <errno.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/harness/unit.h"

enum { IDLE, RUNNING, ENDED, N_STATES };

static const char *const names[N_STATES] = { "idle", "running", "ended" };
static const unsigned moves[N_STATES] = { [IDLE] = 1U << RUNNING, [RUNNING] = 1U << ENDED };
static const StateTable table = { "job", names, moves, N_STATES };

static void a_legal_transition_is_accepted(void **state) {
        assert_int_equal(transition_check(&table, IDLE, RUNNING, "id"), 0);
        assert_int_equal(transition_check(&table, RUNNING, ENDED, NULL), 0);
}

static void an_illegal_transition_is_refused(void **state) {
        transition_set_abort(false);
        assert_int_equal(transition_check(&table, IDLE, ENDED, "id"), -EPERM);
        assert_int_equal(transition_check(&table, IDLE, IDLE, NULL), -EPERM);
        assert_int_equal(transition_check(&table, ENDED, IDLE, NULL), -EPERM);
}

static void a_state_that_does_not_exist_is_refused(void **state) {
        transition_set_abort(false);
        assert_int_equal(transition_check(&table, N_STATES, IDLE, NULL), -EPERM);
        assert_int_equal(transition_check(&table, IDLE, N_STATES, NULL), -EPERM);
        assert_int_equal(transition_check(&table, IDLE, 32 + RUNNING, NULL), -EPERM);
}

/* @return the wait status of a child that tries an illegal transition */
static int status_of_child(const bool *set_abort) {
        pid_t pid = fork();
        if (pid == 0) {
                (void)setrlimit(RLIMIT_CORE, &(struct rlimit){ 0 });
                (void)signal(SIGABRT, SIG_DFL);
                if (set_abort)
                        transition_set_abort(*set_abort);
                _exit(transition_check(&table, IDLE, ENDED, NULL) == -EPERM ? 0 : 1);
        }
        int status = -1;
        assert_true(pid > 0);
        assert_int_equal(waitpid(pid, &status, 0), pid);
        return status;
}

static void a_debug_build_aborts_at_an_illegal_transition(void **state) {
        int status = status_of_child(NULL);
#ifdef NC_ENABLE_DEBUG
        assert_true(WIFSIGNALED(status) && WTERMSIG(status) == SIGABRT);
#else
        assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 0);
#endif
        status = status_of_child(&(bool){ true });
        assert_true(WIFSIGNALED(status) && WTERMSIG(status) == SIGABRT);
}

int main(void) {
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(a_debug_build_aborts_at_an_illegal_transition), /* first: unset */
                cmocka_unit_test(a_legal_transition_is_accepted),
                cmocka_unit_test(an_illegal_transition_is_refused),
                cmocka_unit_test(a_state_that_does_not_exist_is_refused),
        };
        return cmocka_run_group_tests(tests, NULL, NULL);
}
