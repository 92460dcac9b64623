/* Which owners of files are agents. */
#include "lib/neuron/agent_uid.h"

#include <pwd.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <unistd.h>

#include <cmocka.h>

static uid_t euid;

uid_t __wrap_geteuid(void);
uid_t __wrap_geteuid(void) {
        return euid;
}

static void own_files_and_roots_are_an_agents(void **state) {
        (void)state;
        euid = 990;
        assert_true(agent_uid_is_trusted(990, 990, NULL));
        assert_true(agent_uid_is_trusted(0, 990, NULL));
        assert_false(agent_uid_is_trusted(1000, 990, NULL));
        euid = 0;
        assert_true(agent_uid_is_trusted(0, 0, NULL));
        assert_false(agent_uid_is_trusted(65534, 0, NULL));
}

static void where_root_is_squashed_its_files_are_another_users(void **state) {
        (void)state;
        euid = 0;
        assert_true(agent_uid_is_trusted(65534, 65534, NULL));
        assert_false(agent_uid_is_trusted(0, 65534, NULL));
}

static void listed_users_are_agents_by_name_or_number(void **state) {
        const struct passwd *pw = getpwnam("daemon");
        char *trusted[] = { "991", "daemon", "no-such-user", NULL };
        (void)state;
        euid = 990;
        assert_true(agent_uid_is_trusted(991, 990, trusted));
        assert_false(agent_uid_is_trusted(992, 990, trusted));
        assert_false(agent_uid_is_trusted((uid_t)-1, 990, trusted));
        if (pw)
                assert_true(agent_uid_is_trusted(pw->pw_uid, 990, trusted));
}

int main(void) {
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(own_files_and_roots_are_an_agents),
                cmocka_unit_test(where_root_is_squashed_its_files_are_another_users),
                cmocka_unit_test(listed_users_are_agents_by_name_or_number),
        };
        return cmocka_run_group_tests(tests, NULL, NULL);
}
