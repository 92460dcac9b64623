/* Whether others are to be waited for, and who dials whom. */
#include "tests/harness/unit.h"

#include <stdio.h>

#include "agent/failures/job_scope.h"
#include "lib/base/cleanup.h"

static void a_job_is_local_when_all_are_here_or_nothing_speaks_of_others(void **state) {
        static const struct {
                int64_t world_size;
                size_t n_here;
                bool rendezvous_is_here, is_local;
        } cases[] = {
                { 8, 8, false, true },
                { 8, 9, true, true },
                { 8, 7, false, false },
                { 8, 7, true, false }, /* the root of a job on many nodes */
                { 8, 0, true, false },
                { 1, 1, false, true },
                { 1, 0, false, false },
                { -1, 1, true, true },
                { -1, 0, true, true },
                { -1, 8, false, false },
                { 0, 1, false, false },
                { 0, 1, true, true },
                { INT64_MAX, SIZE_MAX / 4, true, false },
        };
        for (size_t i = 0; i < ELEMENTSOF(cases); i++)
                for (int has_host = cases[i].rendezvous_is_here ? 0 : 1; has_host < 2; has_host++) {
                        JobIdentity job = { .key = "a", .world_size = cases[i].world_size };
                        JobFacts facts = { .n_here = cases[i].n_here,
                                           .has_rendezvous = has_host,
                                           .rendezvous_is_own = cases[i].rendezvous_is_here };
                        if (job_scope(&job, &facts).is_local != cases[i].is_local)
                                fail_msg("case %zu", i);
                }
        assert_false(job_scope(&(JobIdentity){ .world_size = -1 }, &(JobFacts){ 0 }).is_local);
}

static void the_agent_at_the_rendezvous_is_the_centre_of_a_job_on_many_nodes(void **state) {
        static const struct {
                JobFacts facts;
                Role role;
        } cases[] = {
                { { 8, true, true, true }, ROLE_CENTRE }, { { 8, true, false, true }, ROLE_LEAF },
                { { 8, true, true, false }, ROLE_NONE }, /* nobody would listen */
                { { 8, true, false, false }, ROLE_NONE }, { { 8, false, false, true }, ROLE_NONE },
                { { 64, true, true, true }, ROLE_NONE }, /* all are here */
                { { 64, true, false, true }, ROLE_NONE },
        };
        (void)state;
        for (size_t i = 0; i < ELEMENTSOF(cases); i++) {
                JobIdentity job = { .key = "a", .world_size = 64 };
                assert_int_equal(job_scope(&job, &cases[i].facts).role, cases[i].role);
        }
}

static void a_user_with_many_jobs_leaves_others_a_host_to_dial(void **state) {
        enum { MAX_HOSTS = 8 };
        DialledHost list[MAX_HOSTS];
        size_t n = 0;
        (void)state;
        for (unsigned i = 0; i < 20; i++) {
                DialledHost h = { .uid = 1000 };
                (void)snprintf(h.host, sizeof h.host, "stranger-%u", i);
                n = job_scope_add_host(list, n, MAX_HOSTS, &h);
        }
        assert_int_equal(n, MAX_HOSTS);
        for (unsigned i = 0; i < 20; i++) {
                DialledHost h = { .uid = 1001 };
                (void)snprintf(h.host, sizeof h.host, "own-%u", i % 10);
                n = job_scope_add_host(list, n, MAX_HOSTS, &h);
        }
        assert_int_equal(n, MAX_HOSTS);
        assert_string_equal(list[7].host, "own-0"); /* the last of the stranger's gave way */
        size_t n_own = 0;
        for (size_t i = 0; i < n; i++)
                n_own += list[i].uid == 1001;
        assert_int_equal(n_own, 4);
        assert_string_equal(list[0].host, "stranger-0");
}

int main(void) {
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(a_job_is_local_when_all_are_here_or_nothing_speaks_of_others),
                cmocka_unit_test(the_agent_at_the_rendezvous_is_the_centre_of_a_job_on_many_nodes),
                cmocka_unit_test(a_user_with_many_jobs_leaves_others_a_host_to_dial),
        };
        return cmocka_run_group_tests_name("agent/failures/job_scope", tests, NULL, NULL);
}
