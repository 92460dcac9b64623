#include <sched.h>
#include <signal.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/sysmacros.h>
#include <sys/time.h>
#include <sys/wait.h>

#include "collectors/host/job_record.h"
#include "tests/collectors/host/test_procfs_records.h"
#include "tests/harness/skip.h"

#define HEX64 "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"

static void holders_are_named_with_their_job(void **state) {
        Fake *f = *state;
        static const char environment[] = "RANK=3\0WORLD_SIZE=64\0LOCAL_RANK=3\0TORCHELASTIC_RUN_"
                                          "ID=run-7\0HF_TOKEN=hf_SECRETSECRETSECRETSECRET\0";
        static const char cmdline[] =
                "python3\0train.py\0--api-key=SECRETVALUE2\0--password\0SECRETVALUE3\0";
        fake_process(f, 100, "python3", 5000);
        fake_link(f, "proc/100/fd/7", "/dev/neuron1");
        fake_link(f, "proc/100/fd/8", "/dev/neuron0");
        fake_link(f, "proc/100/fd/9", "/dev/neuron1");
        fake_link(f, "proc/100/fd/10", "/dev/neuron_rid_map");
        fake_link(f, "proc/100/fd/11", "/tmp/dev/neuron5");
        fake_write(f, "proc/100/environ", environment, sizeof environment - 1);
        fake_write(f, "proc/100/cmdline", cmdline, sizeof cmdline - 1);
        fake_text(f, "proc/100/cgroup",
                  "0::/kubepods.slice/kubepods-pod12345678_1234_1234_1234_123456789abc.slice/"
                  "cri-containerd-" HEX64 ".scope\n");
        fake_process(f, 200, "bash", 5001);
        assert_int_equal(fake_collect(f, collect_jobs), 0);
        json_t *job = fake_find_pid(f, 100, NULL);
        assert_non_null(job);
        assert_null(fake_find_pid(f, 200, NULL));
        assert_int_equal(json_integer_value(json_object_get(job, "start_ticks")), 5000);
        assert_string_equal(string_of(job, "comm"), "python3");
        json_t *devices = json_object_get(job, "devices");
        assert_int_equal(json_array_size(devices), 2);
        assert_int_equal(json_integer_value(json_array_get(devices, 0)), 0);
        assert_int_equal(json_integer_value(json_array_get(devices, 1)), 1);
        json_t *identity = json_object_get(job, "job"),
               *container = json_object_get(job, "container");
        assert_string_equal(string_of(identity, "source"), "torchrun");
        assert_int_equal(json_integer_value(json_object_get(identity, "rank")), 3);
        assert_int_equal(json_integer_value(json_object_get(identity, "world_size")), 64);
        assert_string_equal(string_of(container, "id"), HEX64);
        assert_string_equal(string_of(container, "pod_uid"),
                            "12345678-1234-1234-1234-123456789abc");
        assert_string_equal(json_string_value(json_array_get(json_object_get(job, "cmdline"), 1)),
                            "train.py");
        assert_false(fake_has_output(f, "SECRET"));
        json_t *summary = json_array_get(f->records, 0);
        assert_int_equal(json_integer_value(json_object_get(summary, "processes")), 2);
        assert_int_equal(json_integer_value(json_object_get(summary, "device_holders")), 1);
}

static void a_process_that_maps_the_runtime_counts_without_a_device(void **state) {
        Fake *f = *state;
        static const char maps[] =
                "1000-2000 r-xp 00000000 00:01 5 /opt/aws/neuron/lib/libnrt.so.1\n";
        fake_process(f, 100, "python3", 1);
        fake_text(f, "proc/100/maps", maps);
        fake_process(f, 101, "small", 1);
        fake_text(f, "proc/101/maps", maps);
        fake_text(f, "proc/101/statm", "100 1 1 1 0 1 0\n"); /* too small for it: not examined */
        fake_process(f, 102, "other", 1);
        fake_text(f, "proc/102/maps", "1000-2000 r-xp 00000000 00:01 5 /data/libnrt.so.d/x\n");
        fake_stat(f, 103, "zombie", 'Z', 1);
        assert_int_equal(fake_collect(f, collect_jobs), 0);
        assert_true(json_is_true(json_object_get(fake_find_pid(f, 100, NULL), "maps_runtime")));
        assert_null(fake_find_pid(f, 101, NULL));
        assert_null(fake_find_pid(f, 102, NULL));
        assert_null(fake_find_pid(f, 103, NULL));
        const json_t *first = json_array_get(f->records, 0),
                     *last = json_array_get(f->records, json_array_size(f->records) - 1);
        assert_int_equal(json_integer_value(json_object_get(first, "device_holders")), 0);
        assert_int_equal(json_integer_value(json_object_get(last, "libnrt_holders")), 1);
}

/* A child with a /dev of its own, in which neuron9 is a file or a device; it holds it and waits.
 * @return 0 when it could not */
static pid_t hold_own_device(mode_t mode) {
        int pipes[2];
        char ready = 'n';
        assert_int_equal(pipe2(pipes, O_CLOEXEC), 0);
        pid_t pid = fork();
        if (pid == 0) {
                bool ok = unshare(CLONE_NEWNS) == 0 &&
                          mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) == 0 &&
                          mount("tmpfs", "/dev", "tmpfs", 0, NULL) == 0 &&
                          mknod("/dev/neuron9", mode | 0600, makedev(1, 3)) == 0 &&
                          open("/dev/neuron9", O_RDONLY) >= 0;
                if (write(pipes[1], ok ? "y" : "n", 1) == 1 && ok)
                        (void)pause();
                _exit(0);
        }
        (void)close(pipes[1]);
        assert_int_equal(read(pipes[0], &ready, 1), 1);
        (void)close(pipes[0]);
        return ready == 'y' ? pid : 0;
}

static void a_file_that_is_only_called_like_a_device_does_not_count(void **state) {
        Fake *f = *state;
        pid_t file = hold_own_device(S_IFREG), device = hold_own_device(S_IFCHR);
        if (file == 0 || device == 0)
                SKIP_BECAUSE("mount namespaces and mknod need root");
        (void)snprintf(f->proc_root, sizeof f->proc_root, "/proc");
        assert_int_equal(fake_collect(f, collect_jobs), 0);
        assert_null(fake_find_pid(f, file, NULL));
        assert_non_null(fake_find_pid(f, device, NULL));
        assert_int_equal(kill(file, SIGKILL), 0);
        assert_int_equal(kill(device, SIGKILL), 0);
        assert_int_equal(waitpid(file, NULL, 0), file);
        assert_int_equal(waitpid(device, NULL, 0), device);
}

static void one_that_vanishes_hides_nobody(void **state) {
        Fake *f = *state;
        for (int pid = 100; pid < 140; pid++) {
                char name[64];
                fake_process(f, pid, "python3", 1);
                (void)snprintf(name, sizeof name, "proc/%d/fd/3", pid);
                fake_link(f, name, "/dev/neuron0");
        }
        assert_int_equal(unlinkat(f->s->fd, "proc/100/stat", 0), 0);
        assert_int_equal(fake_collect(f, collect_jobs), 0);
        assert_int_equal(json_array_size(f->records), 1 + 39 + 1);
        assert_null(fake_find_pid(f, 100, NULL));
}

static double cpu_seconds(int who) {
        struct rusage u;
        assert_int_equal(getrusage(who, &u), 0);
        return (double)(u.ru_utime.tv_sec + u.ru_stime.tv_sec) +
               (double)(u.ru_utime.tv_usec + u.ru_stime.tv_usec) / 1e6;
}

static void two_thousand_processes_cost_little(void **state) {
        enum { N = 2000 };
        Fake *f = *state;
        static pid_t pids[N];
        int n = 0;
        for (; n < N; n++) {
                pids[n] = fork();
                if (pids[n] < 0)
                        break;
                if (pids[n] == 0) {
                        for (int i = 0; i < 50; i++)
                                (void)open("/dev/null", O_RDONLY);
                        (void)pause();
                        _exit(0);
                }
        }
        (void)snprintf(f->proc_root, sizeof f->proc_root, "/proc");
        double before = cpu_seconds(RUSAGE_SELF) + cpu_seconds(RUSAGE_CHILDREN);
        int r = fake_collect(f, collect_jobs);
        double used = cpu_seconds(RUSAGE_SELF) + cpu_seconds(RUSAGE_CHILDREN) - before;
        for (int i = 0; i < n; i++)
                (void)kill(pids[i], SIGKILL);
        for (int i = 0; i < n; i++)
                (void)waitpid(pids[i], NULL, 0);
        printf("# %d processes of 50 descriptors: %.0f ms of CPU\n", n, used * 1000);
        assert_int_equal(r, 0);
        assert_true(json_integer_value(
                            json_object_get(json_array_get(f->records, 0), "processes")) >= n);
        assert_true(n < N ||
                    used < 3); /* of 30 s; a sanitizer's or a loaded machine's worst, not the aim */
}

/* ---- what the agent reads of a record ---- */

#define JOB                                                                                        \
        "{\"source\":\"torchrun\",\"key\":\"torchrun:run=7,master=10.0.0.1:41000\",\"rank\":3,"    \
        "\"world_size\":64}"

static bool read_job_record(JobRecord *ret, uint64_t ticks, unsigned uid, const char *job) {
        char record[2048];
        int n = snprintf(record, sizeof record,
                         "{\"pid\":%d,\"start_ticks\":%llu,\"uid\":%u,\"comm\":\"python3\","
                         "\"devices\":[0],\"maps_runtime\":false,\"container\":null,\"job\":%s,"
                         "\"cmdline\":[\"train.py\"]}",
                         4711, (unsigned long long)ticks, uid, job);
        assert_in_range(n, 1, sizeof record - 1);
        return job_record_parse(record, ret);
}

static void a_record_without_a_job_key_or_process_is_ignored(void **state) {
        JobRecord p;
        (void)state;
        char long_key[2 * JOB_KEY_SIZE], record[1024];
        static const char *const jobs[] = {
                "null",
                "{}",
                "[]",
                "7",
                "{\"source\":\"torchrun\",\"rank\":3}",
                "{\"key\":\"\"}",
                "{\"key\":7}",
                "{\"key\":\"a b\"}",
                "{\"key\":\"a\\u0000b\"}",
                "{\"key\":\"a\\u001b\"}",
                "{\"key\":\"a\\u007f\"}",
                "{\"key\":\"\\u00e4\"}",
                "{\"key\":\"a\",\"root_comm_id\":7}",
                "{\"key\":\"a\",\"key\":\"b\"}",
        };
        static const char *const heads[] = {
                "\"pid\":0",    "\"pid\":-1",  "\"pid\":4294967296", "\"pid\":\"1\"",
                "\"pid\":null", "\"pid\":1.0", "\"nothing\":1",
        };
        for (size_t i = 0; i < ELEMENTSOF(jobs); i++)
                assert_false(read_job_record(&p, 100, 1000, jobs[i]));
        (void)snprintf(long_key, sizeof long_key, "{\"key\":\"%0*d\"}", JOB_KEY_SIZE, 7);
        assert_false(read_job_record(&p, 100, 1000, long_key));
        assert_false(read_job_record(&p, 100, UINT32_MAX, JOB));
        assert_false(read_job_record(&p, 0, 1000, JOB));
        for (size_t i = 0; i < ELEMENTSOF(heads); i++) {
                (void)snprintf(record, sizeof record,
                               "{%s,\"start_ticks\":%llu,\"uid\":0,\"job\":" JOB "}", heads[i],
                               100ULL);
                assert_false(job_record_parse(record, &p));
        }
        assert_false(job_record_parse("", &p));
        assert_false(job_record_parse("{\"libnrt_holders\":0}", &p));
        assert_false(job_record_parse("{\"pid\":1", &p));
        assert_true(read_job_record(&p, 100, 1000, JOB)); /* it was not the rest */
        assert_int_equal(p.pid, 4711);
        assert_int_equal(p.start_ticks, 100);
        assert_int_equal(p.uid, 1000);
}

static void the_job_in_a_record_is_read(void **state) {
        JobRecord p;
        (void)state;
        assert_true(read_job_record(
                &p, 100, 0,
                "{\"source\":\"neuron-pjrt\",\"key\":\"neuron-pjrt:slurm=17\",\"rank\":2147483648,"
                "\"world_size\":-4,\"local_rank\":\"1\",\"restart_count\":2,"
                "\"root_comm_id\":\"10.0.0.1:5\",\"master_addr\":\"ip-10-0-0-1\",\"more\":[1]}"));
        const JobIdentity *job = &p.job;
        assert_string_equal(job->source, "neuron-pjrt");
        assert_int_equal(job->rank, -1);
        assert_int_equal(job->world_size, -1);
        assert_int_equal(job->local_rank, -1);
        assert_int_equal(job->restart_count, 2);
        assert_int_equal(job->first_device, -1);
        assert_string_equal(job->root_comm_id, "10.0.0.1:5");
        assert_string_equal(job->master_addr, "ip-10-0-0-1");
        assert_string_equal(job->pod_uid, "");
}

int main(void) {
        const struct CMUnitTest tests[] = {
                cmocka_unit_test_setup_teardown(holders_are_named_with_their_job, fake_setup,
                                                fake_teardown),
                cmocka_unit_test_setup_teardown(
                        a_process_that_maps_the_runtime_counts_without_a_device, fake_setup,
                        fake_teardown),
                cmocka_unit_test_setup_teardown(
                        a_file_that_is_only_called_like_a_device_does_not_count, fake_setup,
                        fake_teardown),
                cmocka_unit_test_setup_teardown(one_that_vanishes_hides_nobody, fake_setup,
                                                fake_teardown),
                cmocka_unit_test_setup_teardown(two_thousand_processes_cost_little, fake_setup,
                                                fake_teardown),
                cmocka_unit_test(a_record_without_a_job_key_or_process_is_ignored),
                cmocka_unit_test(the_job_in_a_record_is_read),
        };
        return cmocka_run_group_tests(tests, NULL, NULL);
}
