/* No command is sent to a device but those of the table, and each only to drivers that have it. The
 * tests watch ioctl(2) itself. Numbers and offsets of neuron_abi.h are asserted here; the emulator
 * of the e2e tests has them a second time. */
#include <errno.h>
#include <fcntl.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/stat.h>

#include "tests/harness/unit.h"

#include "collectors/neuron/neuron_abi.h"
#include "collectors/neuron/neuron_ioctl.h"
#include "lib/base/cleanup.h"
#include "tests/lib/base/scratch.h"

/* ---- numbers and offsets ---- */

#define NEURON_ABI_COMMAND(direction, nr, size) _IOC(direction, 'N', nr, size)
#define NEURON_ABI_POINTER sizeof(void *)

static_assert(NEURON_COMPATIBLE_VERSION == NEURON_ABI_COMMAND(_IOC_WRITE, 93, NEURON_ABI_POINTER),
              "");
static_assert(sizeof(NeuronCompatibleVersion) == 8 && offsetof(NeuronCompatibleVersion, min) == 4,
              "");
static_assert(NEURON_DEVICE_BASIC_INFO == NEURON_ABI_COMMAND(_IOC_WRITE, 100, NEURON_ABI_POINTER),
              "");
static_assert(sizeof(NeuronBasicInfo) == 8 && offsetof(NeuronBasicInfo, revision) == 4, "");
static_assert(NEURON_DEVICE_BDF_EXT == NEURON_ABI_COMMAND(_IOC_READ, 106, NEURON_ABI_POINTER), "");
static_assert(sizeof(NeuronBdfExt) == 16 && offsetof(NeuronBdfExt, bus) == 8 &&
                      offsetof(NeuronBdfExt, slot) == 12 && offsetof(NeuronBdfExt, function) == 13,
              "");
static_assert(NEURON_DRIVER_INFO_GET ==
                      NEURON_ABI_COMMAND(_IOC_READ, 110, sizeof(NeuronDriverInfo)),
              "");
static_assert(sizeof(NeuronDriverInfo) == 24 && offsetof(NeuronDriverInfo, version) == 8 &&
                      offsetof(NeuronDriverInfo, size) == 12 &&
                      offsetof(NeuronDriverInfo, feature_flags) == 16,
              "");
static_assert(NEURON_HOST_DEVICE_ID_TO_RID_MAP ==
                      NEURON_ABI_COMMAND(_IOC_READ | _IOC_WRITE, 115, sizeof(NeuronRidMap)),
              "");
static_assert(sizeof(NeuronRidMap) == 260 && offsetof(NeuronRidMap, rid) == 4, "");
static_assert(offsetof(NeuronCoreMap, entries) == 4 &&
                      sizeof(((NeuronCoreMap *)NULL)->entries[0]) == 8,
              "");
static_assert(NEURON_LOGICAL_TO_PHYSICAL ==
                      NEURON_ABI_COMMAND(_IOC_READ | _IOC_WRITE, 120, sizeof(NeuronCoreMapRequest)),
              "");
static_assert(sizeof(NeuronCoreMapRequest) == 16 &&
                      offsetof(NeuronCoreMapRequest, max_entries) == 8 &&
                      offsetof(NeuronCoreMapRequest, version) == 12,
              "");
static_assert(NEURON_POD_INFO ==
                      NEURON_ABI_COMMAND(_IOC_READ | _IOC_WRITE, 121, sizeof(NeuronPodInfo)),
              "");
static_assert(sizeof(NeuronPodInfo) == 260 && offsetof(NeuronPodInfo, type) == 2 &&
                      offsetof(NeuronPodInfo, id) == 3 && offsetof(NeuronPodInfo, n_nodes) == 259,
              "");
static_assert(NEURON_POD_STATUS ==
                      NEURON_ABI_COMMAND(_IOC_READ | _IOC_WRITE, 122, NEURON_POD_STATUS_V1_SIZE),
              "");
static_assert(NEURON_POD_STATUS_V2 ==
                      NEURON_ABI_COMMAND(_IOC_READ | _IOC_WRITE, 122, sizeof(NeuronPodStatus)),
              "");
static_assert(sizeof(NeuronPodStatus) == 276 && offsetof(NeuronPodStatus, id) == 2 &&
                      offsetof(NeuronPodStatus, state) == 260 &&
                      offsetof(NeuronPodStatus, type) == 264 &&
                      offsetof(NeuronPodStatus, n_nodes) == 265 &&
                      offsetof(NeuronPodStatus, node_id) == 266 &&
                      offsetof(NeuronPodStatus, mode) == NEURON_POD_STATUS_V1_SIZE &&
                      offsetof(NeuronPodStatus, modes_supported) == 272,
              "");

/* ---- ioctl(2) ---- */

static struct {
        unsigned n;
        unsigned long command;
        int result; /* positive or 0: returned; negative: -1 with errno */
} sent;

int __wrap_ioctl(int fd, unsigned long command, void *argument);
int __wrap_ioctl(int fd, unsigned long command, void *argument) {
        (void)fd;
        (void)argument;
        sent.n++;
        sent.command = command;
        if (sent.result >= 0)
                return sent.result;
        errno = -sent.result;
        return -1;
}

static int reset_sent(void **state) {
        memset(&sent, 0, sizeof sent);
        return 0;
}

static const NeuronVersion version_new = { { 2, 30, 2 } };

static NeuronDevice device(void) {
        return (NeuronDevice){ .fd = 100, .driver = version_new };
}

static void assert_refused(NeuronDevice d, uint32_t command, void *argument, int expected) {
        unsigned before = sent.n;

        assert_int_equal(neuron_ioctl_send(&d, command, argument), expected);
        assert_int_equal(sent.n, before);
}

/* ---- tests ---- */

/* Commands that change something, or that need a process slot. Source: the driver's sources */
static const uint32_t forbidden[] = {
        0x00004e01,
        0x80084e04,
        0x00004e05,
        0x80084e0b,
        0x40084e0c,
        0x40084e0d,
        0xc0084e18,
        0xc0284e18,
        0x80084e1d,
        0x80084e26,
        0xc0084e27,
        0x80084e29,
        0x80084e2c,
        0x80084e2d,
        0x80084e3a,
        0x80084e3d,
        0x40084e55,
        0xc0504e55,
        0x40084e5b,
        0x80084e67,
        0x80014e6a,
        0x40184e6e,
        0xc0184e6f,
        0xc0204e6f,
        0xc0204e70,
        0x40104e71,
        0x80084e74,
        0xc0104e75,
        0xc0104e7b,
        0x00000000,
        0xffffffff,
        /* those that need a process slot */
        0x80084e03,
        0x80084e07,
        0xc0084e20,
        0xc0084e25,
        0xc0084e2b,
        0xc0084e2e,
        0x40084e5c,
        0x80084e47,
        0x80084e48,
};

static void a_forbidden_command_is_never_sent(void **state) {
        uint8_t argument[512] = { 0 };

        for (size_t i = 0; i < ELEMENTSOF(forbidden); i++) {
                assert_refused(device(), forbidden[i], argument, -EPERM);
        }
}

static bool may_be_sent(uint32_t command) {
        static const uint32_t list[] = {
                0x40084e5d, 0x40084e64, 0x80084e6a, 0x80184e6e, 0xc1044e73,
                0xc0104e78, 0xc1044e79, 0xc10c4e7a, 0xc1144e7a,
        };

        for (size_t i = 0; i < ELEMENTSOF(list); i++)
                if (list[i] == command)
                        return true;
        return false;
}

/* All numbers of the magic with any direction and any size up to 512: what is no row of the list
 * does not pass. */
static void no_other_number_of_the_driver_passes(void **state) {
        uint64_t argument[64];

        for (uint32_t nr = 0; nr < 256; nr++)
                for (uint32_t size = 0; size < 512; size++)
                        for (uint32_t direction = 0; direction < 4; direction++) {
                                uint32_t command = direction << 30 | size << 16 | 'N' << 8 | nr;

                                if (may_be_sent(command))
                                        continue;
                                memset(argument, 0, sizeof argument);
                                assert_refused(device(), command, argument, -EPERM);
                        }
}

static void a_free_command_is_sent_only_to_drivers_that_have_it(void **state) {
        NeuronDevice d = device();
        NeuronPodStatus status = { .size = sizeof status };

        d.driver = (NeuronVersion){ { 2, 23, 8 } };
        assert_refused(d, NEURON_POD_STATUS_V2, &status, -EOPNOTSUPP);
        d.driver = (NeuronVersion){ { 2, 23, 9 } };
        assert_int_equal(neuron_ioctl_send(&d, NEURON_POD_STATUS_V2, &status), 0);
        d.driver = (NeuronVersion){ { 0, 0, 0 } }; /* not known: it refuses what it does not have */
        assert_int_equal(neuron_ioctl_send(&d, NEURON_POD_STATUS_V2, &status), 0);
        assert_int_equal(sent.n, 2);
}

/* The first version that has each: the Neuron documentation */
static void each_free_command_is_sent_from_its_version_on(void **state) {
        static const struct {
                uint32_t command;
                NeuronVersion last_without, since;
        } rows[] = {
                { NEURON_DEVICE_BASIC_INFO, { { 2, 1, 4 } }, { { 2, 1, 5 } } },
                { NEURON_DEVICE_BDF_EXT, { { 2, 9, 3 } }, { { 2, 9, 4 } } },
                { NEURON_DRIVER_INFO_GET, { { 2, 12, 10 } }, { { 2, 12, 11 } } },
                { NEURON_HOST_DEVICE_ID_TO_RID_MAP, { { 2, 16, 6 } }, { { 2, 16, 7 } } },
                { NEURON_LOGICAL_TO_PHYSICAL, { { 2, 19, 63 } }, { { 2, 19, 64 } } },
                { NEURON_POD_INFO, { { 2, 19, 63 } }, { { 2, 19, 64 } } },
                { NEURON_POD_STATUS, { { 2, 19, 63 } }, { { 2, 19, 64 } } },
                { NEURON_POD_STATUS_V2, { { 2, 23, 8 } }, { { 2, 23, 9 } } },
        };
        uint64_t argument[64] = { 0 }; /* not read */

        for (size_t i = 0; i < ELEMENTSOF(rows); i++) {
                NeuronDevice d = device();
                sent.n = 0;
                d.driver = rows[i].last_without;
                assert_refused(d, rows[i].command, argument, -EOPNOTSUPP);
                d.driver = rows[i].since;
                assert_int_equal(neuron_ioctl_send(&d, rows[i].command, argument), 0);
                assert_int_equal(sent.n, 1);
        }
        NeuronDevice old = device();
        old.driver = (NeuronVersion){ { 2, 0, 0 } };
        assert_int_equal(neuron_ioctl_send(&old, NEURON_COMPATIBLE_VERSION, argument),
                         0); /* every driver has it */
}

static void whatever_is_not_0_is_a_failure(void **state) {
        NeuronDevice d = device();
        NeuronBasicInfo info;
        char text[128];

        sent.result = 8; /* bytes that were not copied, in drivers before 2.29 */
        assert_int_equal(neuron_ioctl_send(&d, NEURON_DEVICE_BASIC_INFO, &info), 8);
        sent.result = -EPERM;
        assert_int_equal(neuron_ioctl_send(&d, NEURON_DEVICE_BASIC_INFO, &info), -EPERM);
        neuron_ioctl_error(text, sizeof text, 8);
        assert_string_equal(text, "the driver returned 8, an unexpected value");
        neuron_ioctl_error(text, sizeof text, -EBUSY);
        assert_non_null(strstr(text, "EBUSY"));
}

static void a_device_is_opened_for_writing_only(void **state) {
        const Scratch *s = *state;
        NeuronDevice d = { .driver = version_new };

        assert_int_equal(scratch_write(s, "neuron0", ""), 0);
        assert_int_equal(neuron_ioctl_open(&d, s->path, "neuron0"), 0);
        assert_int_equal(fcntl(d.fd, F_GETFL) & (O_ACCMODE | O_APPEND), O_WRONLY);
        assert_int_equal(fcntl(d.fd, F_GETFD), FD_CLOEXEC);
        neuron_ioctl_close(&d);
        assert_int_equal(d.fd, -1);
}

static void what_is_no_device_is_not_opened(void **state) {
        const Scratch *s = *state;
        NeuronDevice d = { .fd = -1, .driver = version_new };

        assert_int_equal(symlinkat("/dev/null", s->fd, "neuron0"), 0);
        assert_int_equal(mkfifoat(s->fd, "neuron1", 0600), 0);
        assert_int_equal(mkdirat(s->fd, "neuron2", 0700), 0);
        assert_int_equal(neuron_ioctl_open(&d, s->path, "neuron0"), -ELOOP);
        assert_int_equal(neuron_ioctl_open(&d, s->path, "neuron1"), -EINVAL);
        assert_int_equal(neuron_ioctl_open(&d, s->path, "neuron2"), -EINVAL);
        assert_int_equal(neuron_ioctl_open(&d, s->path, "neuron3"), -ENOENT);
        assert_int_equal(d.fd, -1);
}

static void versions_are_compared_number_by_number(void **state) {
        static const NeuronVersion one = { { 2, 26, 5 } };
        NeuronVersion v = { { 0 } };

        assert_true(neuron_version_parse("2.26.5.0\n", &v));
        assert_int_equal(neuron_version_compare(&v, &one), 0);
        assert_true(neuron_version_parse("2.26.10.0", &v));
        assert_true(neuron_version_compare(&v, &one) > 0);
        assert_true(neuron_version_parse("2.3.99", &v));
        assert_true(neuron_version_compare(&v, &one) < 0);
        assert_false(neuron_version_parse("2.26", &v));
        assert_false(neuron_version_parse("", &v));
        assert_false(neuron_version_parse("two", &v));
}

int main(void) {
#define TEST(f) cmocka_unit_test_setup(f, reset_sent)
#define SCRATCH_TEST(f) cmocka_unit_test_setup_teardown(f, scratch_setup, scratch_teardown)
        const struct CMUnitTest tests[] = {
                TEST(a_forbidden_command_is_never_sent),
                TEST(no_other_number_of_the_driver_passes),
                TEST(a_free_command_is_sent_only_to_drivers_that_have_it),
                TEST(each_free_command_is_sent_from_its_version_on),
                TEST(whatever_is_not_0_is_a_failure),
                SCRATCH_TEST(a_device_is_opened_for_writing_only),
                SCRATCH_TEST(what_is_no_device_is_not_opened),
                TEST(versions_are_compared_number_by_number),
        };

        return cmocka_run_group_tests(tests, NULL, NULL);
}
