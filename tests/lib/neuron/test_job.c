/* Which job and which rank: by the environments that launchers give, one above the other. */
#include "lib/neuron/job.h"

#include <stdio.h>
#include <string.h>

#include "tests/harness/unit.h"

#include "lib/base/cleanup.h"

#define ENV(...) ((char *const[]){ __VA_ARGS__, NULL })

#define SLURM_NODE                                                                                 \
        "SLURM_JOB_ID=17", "SLURM_PROCID=1", "SLURM_NTASKS=2", "SLURM_STEP_ID=0", "SLURM_LOCALID=0"
#define MASTER "MASTER_ADDR=10.0.0.1", "MASTER_PORT=41000"

static JobIdentity identity(char *const *environment) {
        JobIdentity job;
        memset(&job, 0x55, sizeof job);
        assert_true(job_identity_detect(environment, &job));
        return job;
}

static void assert_job(char *const *environment, const char *source, int64_t rank,
                       int64_t world_size, const char *key) {
        JobIdentity job = identity(environment);
        assert_string_equal(job.source, source);
        assert_int_equal(job.rank, rank);
        assert_int_equal(job.world_size, world_size);
        assert_string_equal(job.key, key);
}

static void torchrun_stands_above_the_task_that_started_it(void **state) {
        char *const *env =
                ENV(SLURM_NODE, MASTER, "OMPI_COMM_WORLD_RANK=1", "NEURON_PJRT_PROCESS_INDEX=1",
                    "RANK=33", "LOCAL_RANK=1", "WORLD_SIZE=64", "TORCHELASTIC_RUN_ID=none",
                    "TORCHELASTIC_RESTART_COUNT=2");
        assert_job(env, "torchrun", 33, 64, "torchrun:master=10.0.0.1:41000,slurm=17");
        JobIdentity job = identity(env);
        assert_int_equal(job.local_rank, 1);
        assert_int_equal(job.restart_count, 2);
        assert_job(ENV("RANK=3", "LOCAL_RANK=0", "WORLD_SIZE=4", MASTER), "torchrun", 3, 4,
                   "torchrun:master=10.0.0.1:41000");
        assert_job(ENV("TORCHELASTIC_RUN_ID=exp 7", "RANK=0", "WORLD_SIZE=1"), "torchrun", 0, 1,
                   "torchrun:run=exp?7");
}

/* What each launcher gives, and the rank in it; the first row that is there counts. */
/* clang-format off */
static const struct Launcher {
        const char *source, *variables[3];
} launchers[] = {
        { "torchrun",    { "TORCHELASTIC_RUN_ID=x", "RANK=0" } },
        { "torchrun",    { "LOCAL_RANK=0", "RANK=1" } },
        { "neuron-pjrt", { "NEURON_PJRT_PROCESS_INDEX=2" } },
        { "openmpi",     { "OMPI_COMM_WORLD_RANK=3" } },
        { "pmi",         { "PMI_RANK=4" } },
        { "pmix",        { "PMIX_RANK=5" } },
        { "slurm",       { "SLURM_PROCID=6" } },
        { "kubernetes",  { "JOB_COMPLETION_INDEX=7" } },
        { "kubernetes",  { "PET_NODE_RANK=8" } },
        { "kubernetes",  { "KUBERNETES_SERVICE_HOST=10.0.0.1", "RANK=9" } },
};
/* clang-format on */

/* Of two variables with one name the first counts: the rank is first's when it is the one that
 * counts, too. */
static void assert_above(size_t upper, const struct Launcher *first,
                         const struct Launcher *second) {
        char *env[8] = { NULL };
        size_t n = 0;
        for (size_t i = 0; first->variables[i]; i++)
                env[n++] = (char *)first->variables[i];
        for (size_t i = 0; second->variables[i]; i++)
                env[n++] = (char *)second->variables[i];
        env[n] = (char *)"LOCAL_WORLD_SIZE=4"; /* of no launcher in particular */
        JobIdentity job = identity(env);
        assert_string_equal(job.source, launchers[upper].source);
        if (first == &launchers[upper])
                assert_int_equal(job.rank, (int64_t)upper);
}

static void of_any_two_launchers_the_upper_one_counts(void **state) {
        static const struct Launcher nothing;
        for (size_t upper = 0; upper < ELEMENTSOF(launchers); upper++) {
                assert_above(upper, &launchers[upper], &nothing);
                for (size_t lower = upper + 1; lower < ELEMENTSOF(launchers); lower++) {
                        assert_above(upper, &launchers[upper], &launchers[lower]);
                        assert_above(upper, &launchers[lower], &launchers[upper]);
                }
        }
}

static void half_of_what_torchrun_gives_is_not_torchrun(void **state) {
        static const struct Launcher local_rank = { .variables = { "LOCAL_RANK=0" } };
        JobIdentity job;
        assert_false(job_identity_detect(ENV("LOCAL_RANK=0"), &job));
        assert_false(job_identity_detect(ENV("RANK=0"), &job));
        for (size_t i = 2; i + 1 < ELEMENTSOF(launchers); i++) /* the last has RANK */
                assert_above(i, &launchers[i], &local_rank);
}

static void nodes_of_one_torchrun_launch_have_one_key(void **state) {
        JobIdentity a = identity(ENV("RANK=0", "LOCAL_RANK=0", MASTER, "TORCHELASTIC_RUN_ID=none",
                                     "SLURM_JOB_ID=17", "SLURM_STEP_ID=1", "SLURM_PROCID=0",
                                     "HOSTNAME=a", "POD_UID=1", "TORCHELASTIC_RESTART_COUNT=1",
                                     "NEURON_RT_ROOT_COMM_ID=10.0.0.1:5")),
                    b = identity(ENV("RANK=9", "LOCAL_RANK=1", MASTER, "TORCHELASTIC_RUN_ID=none",
                                     "SLURM_JOB_ID=17", "SLURM_STEP_ID=2", "SLURM_PROCID=1",
                                     "HOSTNAME=b", "POD_UID=2", "TORCHELASTIC_RESTART_COUNT=0"));
        assert_string_equal(a.key, b.key);
}

static void launches_have_different_keys(void **state) {
        char *const *const launches[] = {
                ENV("RANK=0", "LOCAL_RANK=0", MASTER, "SLURM_JOB_ID=17"),
                ENV("RANK=0", "LOCAL_RANK=0", MASTER, "SLURM_JOB_ID=18"),
                ENV("RANK=0", "LOCAL_RANK=0", MASTER, "SLURM_JOB_ID=17", "SLURM_RESTART_COUNT=1"),
                ENV("RANK=0", "LOCAL_RANK=0", MASTER, "SLURM_JOB_ID=17", "SLURM_CLUSTER_NAME=c"),
                ENV("RANK=0", "LOCAL_RANK=0", MASTER, "TORCHELASTIC_RUN_ID=x"),
                ENV("RANK=0", "LOCAL_RANK=0", "MASTER_ADDR=10.0.0.1", "MASTER_PORT=41001"),
                ENV("RANK=0", "LOCAL_RANK=0", "MASTER_ADDR=localhost", "HOSTNAME=a"),
                ENV("RANK=0", "LOCAL_RANK=0", "MASTER_ADDR=localhost", "HOSTNAME=b"),
                ENV("SLURM_PROCID=0", "SLURM_JOB_ID=17", "SLURM_STEP_ID=0"),
                ENV("SLURM_PROCID=0", "SLURM_JOB_ID=17", "SLURM_STEP_ID=1"),
                ENV("SLURM_PROCID=0", "SLURM_JOB_ID=17", "SLURM_STEP_ID=1",
                    "SLURM_RESTART_COUNT=1"),
                ENV("OMPI_COMM_WORLD_RANK=0", "PMIX_NAMESPACE=prterun-a-1@1"),
                ENV("OMPI_COMM_WORLD_RANK=0", "PMIX_NAMESPACE=prterun-a-2@1"),
        };
        for (size_t i = 0; i < ELEMENTSOF(launches); i++)
                for (size_t k = 0; k < i; k++)
                        assert_string_not_equal(identity(launches[i]).key,
                                                identity(launches[k]).key);
}

/* What it may not have is replaced, and the hash keeps what differs apart. */
static void a_key_has_few_characters(void **state) {
        JobIdentity a = identity(
                            ENV("SLURM_PROCID=0", "SLURM_JOB_ID=17", "SLURM_CLUSTER_NAME=a\"b")),
                    b = identity(
                            ENV("SLURM_PROCID=0", "SLURM_JOB_ID=17", "SLURM_CLUSTER_NAME=a<b"));
        assert_string_not_equal(a.key, b.key);
        assert_non_null(strstr(a.key, "slurm:slurm=17@a?b#"));
        for (const char *c = a.key; *c; c++)
                assert_true(job_key_may_have(*c));
        for (int c = 0; c < 256; c++)
                assert_false(job_key_may_have((char)c) && (c <= ' ' || c >= 0x7f || c == '"'));
}

static void pjrt_counts_processes_and_sums_devices(void **state) {
        char *const *env =
                ENV("NEURON_PJRT_PROCESS_INDEX=2", "NEURON_PJRT_PROCESSES_NUM_DEVICES=64,32,64,8",
                    "NEURON_RT_ROOT_COMM_ID=10.0.0.1:5000", SLURM_NODE);
        assert_job(env, "neuron-pjrt", 2, 4, "neuron-pjrt:slurm=17");
        JobIdentity job = identity(env);
        assert_int_equal(job.first_device, 96);
        assert_int_equal(job.n_devices, 168);
        static const char *const bad[] = { "64,,8", "x", ",", "64,", "-1", "99999999999999999999" };
        for (size_t i = 0; i < ELEMENTSOF(bad); i++) {
                char devices[80];
                (void)snprintf(devices, sizeof devices, "NEURON_PJRT_PROCESSES_NUM_DEVICES=%s",
                               bad[i]);
                job = identity(ENV("NEURON_PJRT_PROCESS_INDEX=0", devices));
                assert_int_equal(job.rank, 0);
                assert_int_equal(job.world_size, -1);
                assert_int_equal(job.n_devices, -1);
        }
        job = identity(ENV("NEURON_PJRT_PROCESS_INDEX=7", "NEURON_PJRT_PROCESSES_NUM_DEVICES=1,1"));
        assert_int_equal(job.rank, 7); /* beyond the list: they contradict each other */
        assert_int_equal(job.world_size, -1);
        assert_int_equal(job.first_device, -1);
}

/* What a program sets itself is seen by its hook, and not in /proc/PID/environ. */
static void pjrt_has_the_same_key_for_hooks_and_for_who_reads_environ(void **state) {
#define PJRT "NEURON_PJRT_PROCESS_INDEX=1", "NEURON_PJRT_PROCESSES_NUM_DEVICES=4,4"
#define ROOT "NEURON_RT_ROOT_COMM_ID=10.0.0.1:5000"
        const char *key = "neuron-pjrt:slurm=17@prod,requeued=2";
#define SLURM "SLURM_JOB_ID=17", "SLURM_CLUSTER_NAME=prod", "SLURM_RESTART_COUNT=2"
        assert_job(ENV(SLURM, PJRT), "neuron-pjrt", 1, 2, key);
        assert_job(ENV(SLURM, PJRT, ROOT), "neuron-pjrt", 1, 2, key);
        assert_job(ENV(SLURM, PJRT, ROOT, MASTER), "neuron-pjrt", 1, 2, key);
        key = "neuron-pjrt:master=10.0.0.1:41000";
        assert_job(ENV(PJRT, MASTER), "neuron-pjrt", 1, 2, key);
        assert_job(ENV(PJRT, MASTER, ROOT), "neuron-pjrt", 1, 2, key);
        assert_job(ENV(PJRT, ROOT), "neuron-pjrt", 1, 2, "neuron-pjrt:root=10.0.0.1:5000");
        assert_job(ENV(PJRT), "neuron-pjrt", 1, 2, "");
}

static void ranks_meet_at_the_root_address_else_at_the_master(void **state) {
        static const struct {
                const char *root, *master, *host; /* host: NULL: there is none */
        } cases[] = {
                { "10.0.0.1:46820", "10.0.0.2", "10.0.0.1" },
                { "[fd00::1]:46820", "10.0.0.2", "fd00::1" },
                { "[::ffff:10.0.0.1]:1", "", "::ffff:10.0.0.1" },
                { "ip-10-0-0-17.ec2.internal:65535", "", "ip-10-0-0-17.ec2.internal" },
                { "a_b-1:1", "", "a_b-1" },
                { "", "10.0.0.2", "10.0.0.2" },
                { "", "fd00::2", "fd00::2" },
                { "", "[fd00::2]", "fd00::2" },
                { "", "llama-master-0", "llama-master-0" },
                { "", "", NULL },
                /* what is no address and port leaves it to the other */
                { "10.0.0.1", "10.0.0.2", "10.0.0.2" },
                { "10.0.0.1:", "10.0.0.2", "10.0.0.2" },
                { "10.0.0.1:0", "10.0.0.2", "10.0.0.2" },
                { "10.0.0.1:65536", "10.0.0.2", "10.0.0.2" },
                { "10.0.0.1:46820x", "10.0.0.2", "10.0.0.2" },
                { "fd00::1:46820", "10.0.0.2", "10.0.0.2" }, /* the port may be a group */
                { ":46820", NULL, NULL },
                { "[]:46820", NULL, NULL },
                { "[:46820", NULL, NULL },
                { "[10.0.0.1]:46820", NULL, NULL },
                { "[fd00::1:46820", NULL, NULL },
                { "fd00::1]:46820", NULL, NULL },
                { "[fd00::1]]:46820", NULL, NULL },
                { "[fe80::1%eth0]:46820", NULL, NULL },
                { "10.0.0.256:46820", NULL, NULL },
                { "10.0.1:46820", NULL, NULL },
                { "2130706433:46820", NULL, NULL },
                { "-oProxyCommand:46820", NULL, NULL },
                { "a..b:46820", NULL, NULL },
                { ".a:46820", NULL, NULL },
                { "a.:46820", NULL, NULL },
                { "a/b:46820", NULL, NULL },
                { "a b:46820", NULL, NULL },
                { "a;b:46820", NULL, NULL },
                { "tcp://10.0.0.1:46820", NULL, NULL },
                { "user@host:46820", NULL, NULL },
                { "\xc3\xa4:46820", NULL, NULL },
        };
        for (size_t i = 0; i < ELEMENTSOF(cases); i++) {
                char root[80], master[80], host[JOB_HOST_SIZE] = "unchanged";
                (void)snprintf(root, sizeof root, "NEURON_RT_ROOT_COMM_ID=%s", cases[i].root);
                if (cases[i].master) /* else what there is before the port */
                        (void)snprintf(master, sizeof master, "MASTER_ADDR=%s", cases[i].master);
                else
                        (void)snprintf(master, sizeof master, "MASTER_ADDR=%.*s",
                                       (int)(strrchr(cases[i].root, ':') - cases[i].root),
                                       cases[i].root);
                JobIdentity job = identity(ENV("TORCHELASTIC_RUN_ID=x", root, master));
                bool is_found = job_rendezvous_host(&job, host);
                if (is_found != (cases[i].host != NULL))
                        fail_msg("%s, %s", root, master);
                assert_string_equal(host, is_found ? cases[i].host : "unchanged");
        }
}

static void a_master_whose_name_is_too_long_is_none(void **state) {
        char master[400] = "MASTER_ADDR=", host[JOB_HOST_SIZE];
        memset(master + 12, 'a', JOB_HOST_SIZE - 1);
        JobIdentity job = identity(ENV("TORCHELASTIC_RUN_ID=x", master));
        assert_true(job_rendezvous_host(&job, host));
        assert_string_equal(host, master + 12);
        master[12 + JOB_HOST_SIZE - 1] = 'a';
        job = identity(ENV("TORCHELASTIC_RUN_ID=x", master));
        assert_string_equal(job.master_addr, "");
        assert_false(job_rendezvous_host(&job, host));
        job = identity(ENV("PET_NODE_RANK=1", "PET_MASTER_ADDR=j-0-0.j"));
        assert_string_equal(job.master_addr, "j-0-0.j");
}

static void mpi_ranks_are_found_above_slurm(void **state) {
        assert_job(ENV("OMPI_COMM_WORLD_RANK=5", "OMPI_COMM_WORLD_SIZE=8", "PMIX_RANK=5",
                       "PMIX_NAMESPACE=1234", SLURM_NODE),
                   "openmpi", 5, 8, "openmpi:namespace=1234,slurm=17");
        assert_job(ENV("PMI_RANK=1", "PMI_SIZE=2", "PMI_JOBID=9"), "pmi", 1, 2, "pmi:namespace=9");
        assert_job(ENV("PMIX_RANK=1", "PMIX_NAMESPACE=slurm.pmix.17.0", "SLURM_NTASKS=2"), "pmix",
                   1, 2, "pmix:namespace=slurm.pmix.17.0");
        assert_job(ENV("OMPI_COMM_WORLD_RANK=0", "NEURON_RT_ROOT_COMM_ID=10.0.0.1:5"), "openmpi", 0,
                   -1, "openmpi:root=10.0.0.1:5");
}

static void slurm_tasks_are_ranks_of_their_step(void **state) {
        assert_job(ENV(SLURM_NODE, "SLURM_STEP_NUM_TASKS=2", "SLURM_CLUSTER_NAME=prod"), "slurm", 1,
                   2, "slurm:slurm=17@prod,step=0");
        JobIdentity job = identity(ENV(SLURM_NODE, "SLURM_RESTART_COUNT=3"));
        assert_int_equal(job.restart_count, 3);
        assert_int_equal(job.local_rank, 0);
        assert_false(job_identity_detect(ENV("SLURM_JOB_ID=17"), &job)); /* an allocation's shell */
}

static void rank_alone_is_an_index_of_pods(void **state) {
        JobIdentity job;
        assert_false(job_identity_detect(ENV("RANK=3", "WORLD_SIZE=64"), &job));
        assert_int_equal(job.rank, -1);
        assert_job(ENV("RANK=3", "WORLD_SIZE=64", "KUBERNETES_SERVICE_HOST=10.0.0.1",
                       "PET_NPROC_PER_NODE=16", "MASTER_ADDR=llama-master-0", "MASTER_PORT=23456",
                       "POD_NAMESPACE=train"),
                   "kubernetes", 3, -1, "kubernetes:namespace=train,master=llama-master-0:23456");
        assert_job(ENV("PET_NODE_RANK=1", "PET_NNODES=4", "PET_MASTER_ADDR=j-0-0.j",
                       "PET_MASTER_PORT=29500"),
                   "kubernetes", 1, 4, "kubernetes:master=j-0-0.j:29500");
        assert_int_equal(identity(ENV("PET_NODE_RANK=1", "PET_NNODES=2:4")).world_size, -1);
        assert_job(ENV("JOB_COMPLETION_INDEX=2", "HOSTNAME=llama-2"), "kubernetes", 2, -1,
                   "kubernetes:pods=llama");
        assert_job(ENV("JOB_COMPLETION_INDEX=2", "HOSTNAME=other"), "kubernetes", 2, -1, "");
}

static void what_is_no_rank_is_not_one(void **state) {
        static const char *const bad[] = { "RANK=-1", "RANK=", "RANK=3x", "RANK=99999999999" };
        for (size_t i = 0; i < ELEMENTSOF(bad); i++)
                assert_int_equal(
                        identity(ENV("TORCHELASTIC_RUN_ID=x", (char *)bad[i], "WORLD_SIZE=4")).rank,
                        -1);
        JobIdentity job = identity(ENV("TORCHELASTIC_RUN_ID=x", "RANK=4", "WORLD_SIZE=4"));
        assert_int_equal(job.rank, 4);
        assert_int_equal(job.world_size, -1);
}

static void long_keys_stay_apart(void **state) {
        char run_a[3000], run_b[3000];
        memset(run_a, 'x', sizeof run_a);
        memcpy(run_a, "TORCHELASTIC_RUN_ID=", 20);
        run_a[sizeof run_a - 1] = '\0';
        memcpy(run_b, run_a, sizeof run_b);
        run_b[sizeof run_b - 2] = 'y';
        JobIdentity a = identity(ENV(run_a)), b = identity(ENV(run_b));
        assert_int_equal(strlen(a.key), JOB_KEY_SIZE - 1);
        assert_string_not_equal(a.key, b.key);
}

static void hostile_bytes_do_not_come_through(void **state) {
        JobIdentity job =
                identity(ENV("NEURON_RT_ROOT_COMM_ID=\x1b[2J\xff\n", "NEURON_PROCESS_TAG=a b",
                             "POD_UID=u", "no equals sign", "="));
        assert_null(job.source);
        assert_string_equal(job.root_comm_id, "?[2J??");
        assert_string_equal(job.process_tag, "a?b");
        assert_string_equal(job.pod_uid, "u");
        assert_string_equal(job.key, "neuron:root=?[2J??");
        assert_false(job_identity_detect((char *const[]){ NULL }, &job));
        assert_string_equal(job.key, "");
}

static void the_first_of_two_variables_counts(void **state) {
        char *const *env = ENV("AB=0", "A=1", "A=2", "B");
        assert_string_equal(environment_get(env, "A"), "1");
        assert_null(environment_get(env, "B"));
        assert_null(environment_get(env, "C"));
}

static void variables_are_recorded_by_an_allow_list(void **state) {
        static const char *const allowed[] = { "NEURON_RT_LOG_LEVEL", "RANK",
                                               "SLURM_JOB_ID",        "FI_PROVIDER",
                                               "XLA_FLAGS",           "LOCAL_RANK",
                                               "TORCHELASTIC_RUN_ID", "OMPI_COMM_WORLD_RANK" };
        static const char *const others[] = {
                "HOME",       "PATH",           "AWS_SECRET_ACCESS_KEY",
                "HF_TOKEN",   "NEURON_API_KEY", "SLURM_JWT",
                "",           "RANK ",          "1RANK",
                "NEURON_A%%", "BASH_FUNC_x%%"
        };
        for (size_t i = 0; i < ELEMENTSOF(allowed); i++)
                assert_true(environment_is_allowed(NULL, allowed[i]));
        for (size_t i = 0; i < ELEMENTSOF(others); i++)
                assert_false(environment_is_allowed(NULL, others[i]));
        assert_true(environment_is_allowed(ENV("*"), "HOME"));
        assert_false(environment_is_allowed(ENV("*"), "HF_TOKEN"));
        assert_false(environment_is_allowed(ENV("MY_*"), "NEURON_X"));
        assert_true(environment_is_allowed((char *const[]){ NULL }, "MASTER_ADDR"));
        char longest[200];
        memset(longest, 'A', sizeof longest);
        longest[ENVIRONMENT_NAME_MAX + 1] = '\0';
        assert_false(environment_is_allowed(ENV("*"), longest));
        longest[ENVIRONMENT_NAME_MAX] = '\0';
        assert_true(environment_is_allowed(ENV("*"), longest));
}

int main(void) {
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(torchrun_stands_above_the_task_that_started_it),
                cmocka_unit_test(of_any_two_launchers_the_upper_one_counts),
                cmocka_unit_test(half_of_what_torchrun_gives_is_not_torchrun),
                cmocka_unit_test(nodes_of_one_torchrun_launch_have_one_key),
                cmocka_unit_test(launches_have_different_keys),
                cmocka_unit_test(a_key_has_few_characters),
                cmocka_unit_test(pjrt_counts_processes_and_sums_devices),
                cmocka_unit_test(pjrt_has_the_same_key_for_hooks_and_for_who_reads_environ),
                cmocka_unit_test(ranks_meet_at_the_root_address_else_at_the_master),
                cmocka_unit_test(a_master_whose_name_is_too_long_is_none),
                cmocka_unit_test(mpi_ranks_are_found_above_slurm),
                cmocka_unit_test(slurm_tasks_are_ranks_of_their_step),
                cmocka_unit_test(rank_alone_is_an_index_of_pods),
                cmocka_unit_test(what_is_no_rank_is_not_one),
                cmocka_unit_test(long_keys_stay_apart),
                cmocka_unit_test(hostile_bytes_do_not_come_through),
                cmocka_unit_test(the_first_of_two_variables_counts),
                cmocka_unit_test(variables_are_recorded_by_an_allow_list),
        };
        return cmocka_run_group_tests(tests, NULL, NULL);
}
