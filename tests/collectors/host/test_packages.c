/* The collectors packages and process_packages, and what they read of a root. */
#include <linux/landlock.h>
#include <sys/mman.h>
#include <sys/syscall.h>

#include "collectors/host/dpkg.h"
#include "collectors/host/pip.h"
#include "collectors/host/procfs.h"
#include "collectors/host/rpm.h"
#include "tests/collectors/host/test_procfs_records.h"
#include "tests/harness/skip.h"

static const char status_file[] =
        "Package: aws-neuronx-dkms\nStatus: install ok installed\nVersion: 2.25.4.0\nDescription: "
        "x\n Package: not-this\n\n"
        "Package: bash\nStatus: install ok installed\nVersion: 5.2\n\n"
        "Package: aws-neuronx-tools\nStatus: deinstall ok config-files\nVersion: 2.27.33.0";

static void make_root(const Fake *f, const char *name) {
        char path[256];
        (void)snprintf(path, sizeof path, "%s/var/lib/dpkg/status", name);
        fake_text(f, path, status_file);
        static const char *const distributions[] = {
                "usr/lib/python3/dist-packages/torch_neuronx-2.8.0.dist-info",
                "usr/lib/python3/dist-packages/requests-2.0.dist-info",
                "opt/aws_neuronx_venv/lib/python3.10/site-packages/neuronx_cc-2.21.dist-info",
                "usr/local/lib/python3.11/site-packages/JAX.neuronx-0.1-py3.11.egg-info"
        };
        for (size_t i = 0; i < ELEMENTSOF(distributions); i++) {
                (void)snprintf(path, sizeof path, "%s/%s", name, distributions[i]);
                fake_mkdir(f, path);
        }
        (void)snprintf(path, sizeof path, "%s/opt/aws/neuron/lib/libnrt.so.1", name);
        fake_link(f, path, "libnrt.so.2.29.40.0");
}

static json_t *package_of(const json_t *record, const char *name) {
        size_t i;
        json_t *package;
        json_array_foreach(json_object_get(record, "packages"), i, package) {
                if (strcmp(string_of(package, "name"), name) == 0)
                        return package;
        }
        return NULL;
}

/* The first record of a source that lists a package. */
static json_t *find_package(const Fake *f, const char *where, const char *source,
                            const char *name) {
        size_t i;
        json_t *record;
        json_array_foreach(f->records, i, record) {
                if (strcmp(string_of(record, "where"), where) == 0 &&
                    strcmp(string_of(record, "source"), source) == 0 && package_of(record, name))
                        return package_of(record, name);
        }
        return NULL;
}

static void link_root(const Fake *f, int pid, const char *root) {
        char name[64], path[PATH_MAX];
        fake_path(f, path, root);
        (void)snprintf(name, sizeof name, "proc/%d/root", pid);
        fake_link(f, name, path);
        (void)snprintf(name, sizeof name, "proc/%d/ns/mnt", pid);
        (void)snprintf(path, sizeof path, "mnt:[%d]", pid);
        fake_link(f, name, path);
}

static void the_hosts_packages_are_listed(void **state) {
        Fake *f = *state;
        make_root(f, "host");
        fake_process(f, 1, "init", 1);
        link_root(f, 1, "host");
        fake_text(f, "sys/module/neuron/version", "2.25.4.0\n");
        assert_int_equal(fake_collect(f, collect_packages), 0);
        assert_string_equal(string_of(fake_find(f, "source", "driver", 0), "version"), "2.25.4.0");
        assert_string_equal(
                string_of(find_package(f, "host", "dpkg", "aws-neuronx-dkms"), "version"),
                "2.25.4.0");
        assert_string_equal(
                string_of(find_package(f, "host", "dpkg", "aws-neuronx-tools"), "status"),
                "deinstall ok config-files");
        assert_null(find_package(f, "host", "dpkg", "bash"));
        assert_string_equal(string_of(find_package(f, "host", "pip", "torch-neuronx"), "version"),
                            "2.8.0");
        assert_string_equal(string_of(find_package(f, "host", "pip", "neuronx-cc"), "version"),
                            "2.21");
        assert_string_equal(string_of(find_package(f, "host", "pip", "jax-neuronx"), "version"),
                            "0.1");
        assert_false(fake_has_output(f, "requests"));
        json_t *opt = fake_find(f, "source", "opt", 0);
        assert_true(json_is_true(json_object_get(opt, "opt_aws_neuron")));
        assert_true(json_is_true(json_object_get(opt, "libnrt")));
        assert_false(json_is_true(json_object_get(opt, "neuron_dump")));
        assert_string_equal(string_of(opt, "libnrt_target"), "libnrt.so.2.29.40.0");
}

static void the_public_part_contains_nothing_of_containers(void **state) {
        Fake *f = *state;
        make_root(f, "host");
        make_root(f, "container");
        fake_process(f, 1, "init", 1);
        link_root(f, 1, "host");
        fake_process(f, 100, "train", 5);
        link_root(f, 100, "container");
        fake_text(f, "proc/100/maps",
                  "1000-2000 r-xp 00000000 00:01 5 "
                  "/srv/venv/lib/python3.10/site-packages/torch/x.so\n"
                  "1000-2000 r-xp 00000000 00:01 5 /opt/aws/neuron/lib/libnrt.so.2.29\n");
        fake_mkdir(f, "container/srv/venv/lib/python3.10/site-packages/libneuronxla-2.2.dist-info");
        fake_order_process(f, 100, 5);
        assert_int_equal(fake_collect(f, collect_packages), 0);
        assert_non_null(fake_find(f, "where", "host", 0));
        assert_null(fake_find(f, "where", "process", 0));
        assert_false(fake_has_output(f, "libneuronxla"));
        assert_int_equal(fake_collect(f, collect_process_packages), 0);
        assert_null(fake_find(f, "where", "host", 0));
        assert_non_null(find_package(f, "process", "dpkg", "aws-neuronx-dkms"));
        assert_string_equal(string_of(find_package(f, "process", "pip", "libneuronxla"), "version"),
                            "2.2");
        assert_string_equal(string_of(fake_find(f, "source", "libnrt", 0), "path"),
                            "/opt/aws/neuron/lib/libnrt.so.2.29");
}

static void a_hostile_root_leads_nowhere(void **state) {
        Fake *f = *state;
        char path[PATH_MAX];
        make_root(f, "host");
        fake_process(f, 1, "init", 1);
        link_root(f, 1, "host");
        fake_text(f, "outside/status", "Package: aws-neuron-SECRET\nVersion: 1\n\n");
        fake_mkdir(f, "outside/torch_SECRET-1.dist-info");
        fake_path(f, path, "outside/status");
        fake_link(f, "container/var/lib/dpkg/status", path);
        fake_link(f, "container/usr/lib/python3", "../../../outside");
        fake_path(f, path, "container/opt");
        assert_int_equal(mkfifo(path, 0600), 0);
        fake_process(f, 100, "train", 5);
        link_root(f, 100, "container");
        fake_process(f, 101, "train", 5);
        fake_order_process(f, 100, 5);
        fake_order_process(f, 101, 5); /* has no root: as a zombie */
        fake_order_process(f, 102, 5); /* is gone */
        assert_int_equal(fake_collect(f, collect_process_packages), 0);
        assert_false(fake_has_output(f, "SECRET"));
        assert_true(string_of(fake_find(f, "source", "root", 0), "unavailable")[0] != '\0');
        assert_true(string_of(fake_find(f, "source", "root", 1), "unavailable")[0] != '\0');
}

static void note_package(const DpkgParser *p, void *userdata) {
        char *all = userdata;
        (void)snprintf(all + strlen(all), 1024 - strlen(all), "%s=%s(%s);", p->name, p->version,
                       p->status);
}

static void read_status_file(const char *text, size_t n, const char *expected) {
        _cleanup_close_ int fd = memfd_create("status", MFD_CLOEXEC);
        char all[1024] = "";
        DpkgParser p = { .on_package = note_package, .userdata = all };

        assert_true(fd >= 0);
        assert_int_equal(write(fd, text, n), n);
        assert_int_equal(lseek(fd, 0, SEEK_SET), 0);
        assert_int_equal(dpkg_read(&p, fd), 0);
        assert_string_equal(all, expected);
}

static void dpkgs_status_is_read_whatever_its_lines_are(void **state) {
        static const char head[] = "Package: a\nDescription: ", tail[] = "\nVersion: 1\n";
        char text[6000];

        read_status_file(
                status_file, sizeof status_file - 1,
                "aws-neuronx-dkms=2.25.4.0(install ok installed);bash=5.2(install ok installed);"
                "aws-neuronx-tools=2.27.33.0(deinstall ok config-files);");
        /* A line that is too long is cut, wherever the cut falls. */
        for (size_t n = 900; n < 5000; n++) {
                size_t n_head = sizeof head - 1;
                memcpy(text, head, n_head);
                memset(text + n_head, 'x', n);
                memcpy(text + n_head + n, tail, sizeof tail);
                read_status_file(text, n_head + n + sizeof tail - 1, "a=1();");
        }
}

static void names_of_distributions_are_normalised(void **state) {
        static const struct {
                const char *directory, *name, *version;
        } cases[] = { { "Torch__Neuronx.X-2.8.dist-info", "torch-neuronx-x", "2.8" },
                      { "nki-0.1.0+abc.dist-info", "nki", "0.1.0+abc" },
                      { "develop.egg-info", "develop", "" },
                      { "a-1.0-py3.10-linux.egg-info", "a", "1.0" } };
        static const char *const no[] = {
                "", ".dist-info", "torch", "to rch-1.dist-info", "-1.dist-info", "x.dist-infos"
        };
        char name[PACKAGE_NAME_SIZE], version[PACKAGE_VERSION_SIZE];
        for (size_t i = 0; i < ELEMENTSOF(cases); i++) {
                assert_true(pip_parse(cases[i].directory, name, version));
                assert_string_equal(name, cases[i].name);
                assert_string_equal(version, cases[i].version);
        }
        for (size_t i = 0; i < ELEMENTSOF(no); i++)
                assert_false(pip_parse(no[i], name, version));
}

/* Runs a stand-in for rpm on a database in a root. */
static json_t *run_rpm(Fake *f, const char *script, uint64_t timeout_usec) {
        char program[PATH_MAX], root_path[PATH_MAX];
        fake_text(f, "rpm", script);
        fake_path(f, program, "rpm");
        fake_path(f, root_path, "root");
        assert_int_equal(chmod(program, 0755), 0);
        assert_int_equal(chmod(f->s->path, 0755), 0);
        int out_fd = openat(f->s->fd, "records", O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
        PackageRoot root = { .fd = open(root_path, O_PATH | O_DIRECTORY | O_CLOEXEC),
                             .pid = 7,
                             .out_fd = out_fd };
        rpm_list(&root, program, timeout_usec);
        assert_int_equal(root.result, 0);
        (void)close(root.fd);
        (void)close(out_fd);
        strbuf_done(&root.b);
        fake_read(f);
        return json_array_get(f->records, 0);
}

static void an_rpm_database_is_read_by_rpm_as_nobody_and_in_time(void **state) {
        Fake *f = *state;
        fake_text(f, "root/var/lib/rpm/rpmdb.sqlite", "db");
        json_t *record =
                run_rpm(f,
                        "#!/bin/sh\n[ \"$3\" = /proc/self/fd/3 ] || exit 1\nprintf "
                        "'aws-neuronx-dkms\\t2.25-1\\nuid\\t%s\\nno tab\\n' \"$(id -u)\"\n"
                        "read -r l < /proc/self/fd/3/rpmdb.sqlite || printf 'db\\t%s\\n' \"$l\"\n",
                        20 * USEC_PER_SEC);
        assert_string_equal(string_of(package_of(record, "aws-neuronx-dkms"), "version"), "2.25-1");
        assert_string_equal(string_of(package_of(record, "db"), "version"), "db");
        if (geteuid() == 0)
                assert_string_equal(string_of(package_of(record, "uid"), "version"), "65534");
        record = run_rpm(f, "#!/bin/sh\nexec sleep 100\n", USEC_PER_SEC / 10);
        assert_string_equal(string_of(record, "unavailable"), strerror(ETIMEDOUT));
        record = run_rpm(f, "#!/bin/sh\nexit 3\n", 20 * USEC_PER_SEC);
        assert_string_equal(string_of(record, "unavailable"), "rpm did not succeed");
        record = run_rpm(f, "#!/bin/sh\nexec yes\n", 20 * USEC_PER_SEC);
        assert_string_equal(string_of(record, "unavailable"), strerror(EFBIG));
}

/* The script does what a container's user may make rpm do by the database. */
static void what_reads_a_containers_database_is_confined(void **state) {
        static const char script[] =
                "#!/bin/sh\n"
                "read -r l 2>/dev/null < /etc/passwd && printf 'passwd\\t1\\n'\n"
                "read -r l 2>/dev/null < %s/secret && printf 'secret\\t1\\n'\n"
                "read -r l 2>/dev/null < /proc/1/status && printf 'process\\t1\\n'\n"
                "kill -0 $$ 2>/dev/null && printf 'kill\\t1\\n'\n"
                "true 2>/dev/null > /proc/self/fd/3/new && printf 'write\\t1\\n'\n"
                "read -r l < /proc/self/fd/3/rpmdb.sqlite; printf 'db\\t%%s\\n' \"$l\"\n";
        Fake *f = *state;
        char text[PATH_MAX + 1024];
        if (syscall(SYS_landlock_create_ruleset, NULL, 0, LANDLOCK_CREATE_RULESET_VERSION) < 0)
                SKIP_BECAUSE("this kernel has no landlock, or has it switched off");
        fake_text(f, "root/var/lib/rpm/rpmdb.sqlite", "db\n");
        fake_text(f, "secret", "of the agent\n");
        fake_mkdir(f, "root/var/lib/rpm");
        assert_int_equal(fchmodat(f->s->fd, "root/var/lib/rpm", 0777, 0), 0);
        assert_true(snprintf(text, sizeof text, script, f->s->path) < (int)sizeof text);
        json_t *record = run_rpm(f, text, 20 * USEC_PER_SEC);
        json_t *packages = json_object_get(record, "packages");
        assert_int_equal(json_array_size(packages), 1);
        assert_string_equal(string_of(package_of(record, "db"), "version"), "db");
}

int main(void) {
        const struct CMUnitTest tests[] = {
                cmocka_unit_test_setup_teardown(the_hosts_packages_are_listed, fake_setup,
                                                fake_teardown),
                cmocka_unit_test_setup_teardown(the_public_part_contains_nothing_of_containers,
                                                fake_setup, fake_teardown),
                cmocka_unit_test_setup_teardown(a_hostile_root_leads_nowhere, fake_setup,
                                                fake_teardown),
                cmocka_unit_test(dpkgs_status_is_read_whatever_its_lines_are),
                cmocka_unit_test(names_of_distributions_are_normalised),
                cmocka_unit_test_setup_teardown(
                        an_rpm_database_is_read_by_rpm_as_nobody_and_in_time, fake_setup,
                        fake_teardown),
                cmocka_unit_test_setup_teardown(what_reads_a_containers_database_is_confined,
                                                fake_setup, fake_teardown),
        };
        return cmocka_run_group_tests(tests, NULL, NULL);
}
