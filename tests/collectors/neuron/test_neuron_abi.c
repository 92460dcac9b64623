/* The door to the devices: nothing goes through it that neuron-interfaces 3.4 forbids, and nothing outside of the bounds of 3.8 and 3.9. What is sent is
 * seen in ioctl(2) itself. Numbers and offsets stand in the static_asserts of the header; the emulator has them a second time. */
#include <errno.h>
#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include <cmocka.h>

#include "collectors/neuron/neuron_abi_attached.h"
#include "collectors/neuron/neuron_device.h"
#include "lib/base/cleanup.h"
#include "tests/lib/base/scratch.h"

/* ---- ioctl(2) ---- */

static struct {
        unsigned n;
        unsigned long command;
        int result; /* positive or 0: returned; negative: -1 with errno */
        NeuronDmaEngineState engine;
} sent;

int __wrap_ioctl(int fd, unsigned long command, void *argument);
int __wrap_ioctl(int fd, unsigned long command, void *argument) {
        (void)fd;
        sent.n++;
        sent.command = command;
        if (command == NEURON_DMA_ENG_GET_STATE && sent.result == 0)
                *((NeuronDmaEngine *)argument)->state = sent.engine;
        if (sent.result >= 0)
                return sent.result;
        errno = -sent.result;
        return -1;
}

static int reset_sent(void **state) {
        (void)state;
        memset(&sent, 0, sizeof sent);
        return 0;
}

static const NeuronVersion version_new = { { 2, 30, 2 } }, version_old = { { 2, 26, 4 } };

static NeuronDevice device(bool is_attached, uint32_t architecture) {
        return (NeuronDevice){ .fd = 100,
                               .is_attached = is_attached,
                               .driver = version_new,
                               .architecture = architecture };
}

static void assert_refused(NeuronDevice d, uint32_t command, void *argument, int expected) {
        unsigned before = sent.n;

        assert_int_equal(neuron_ioctl(&d, command, argument), expected);
        assert_int_equal(sent.n, before);
}

/* ---- tests ---- */

/* Those marked X in 3.4, with the numbers that stand there or follow from its rules. */
static const uint32_t forbidden[] = {
        0x00004e01, 0x80084e04, 0x00004e05, 0x80084e0b, 0x40084e0c, 0x40084e0d, 0xc0084e18,
        0xc0284e18, 0x80084e1d, 0x80084e26, 0xc0084e27, 0x80084e29, 0x80084e2c, 0x80084e2d,
        0x80084e3a, 0x80084e3d, 0x40084e55, 0xc0504e55, 0x40084e5b, 0x80084e67, 0x80014e6a,
        0x40184e6e, 0xc0184e6f, 0xc0204e6f, 0xc0204e70, 0x40104e71, 0x80084e74, 0xc0104e75,
        0xc0104e7b, 0x00000000, 0xffffffff,
};

static void a_forbidden_command_is_never_sent(void **state) {
        uint8_t argument[512] = { 0 };

        (void)state;
        for (size_t i = 0; i < ELEMENTSOF(forbidden); i++) {
                assert_refused(device(false, 3), forbidden[i], argument, -EPERM);
                assert_refused(device(true, 3), forbidden[i], argument, -EPERM);
        }
}

static bool may_be_sent(uint32_t command) {
        static const uint32_t list[] = {
                0x40084e5d, 0x40084e64, 0x80084e6a, 0x80184e6e, 0xc1044e73, 0xc0104e78,
                0xc1044e79, 0xc10c4e7a, 0xc1144e7a, 0x80084e03, 0x80084e07, 0xc0084e20,
                0xc0084e25, 0xc0084e2b, 0xc0084e2e, 0x40084e5c, 0x80084e47, 0x80084e48,
        };

        for (size_t i = 0; i < ELEMENTSOF(list); i++)
                if (list[i] == command)
                        return true;
        return false;
}

/* All numbers of the magic with any direction and any size up to 512: what is no row of the list does not pass. */
static void no_other_number_of_the_driver_passes(void **state) {
        uint64_t argument[64];

        (void)state;
        for (uint32_t nr = 0; nr < 256; nr++)
                for (uint32_t size = 0; size < 512; size++)
                        for (uint32_t direction = 0; direction < 4; direction++) {
                                uint32_t command = direction << 30 | size << 16 | 'N' << 8 | nr;

                                if (may_be_sent(command))
                                        continue;
                                memset(argument, 0, sizeof argument);
                                assert_refused(device(false, 3), command, argument, -EPERM);
                                assert_refused(device(true, 3), command, argument, -EPERM);
                        }
}

static void an_attached_command_is_not_sent_through_a_free_opening(void **state) {
        static const uint32_t attached[] = {
                0x80084e03, 0x80084e07, 0xc0084e20, 0xc0084e25, 0xc0084e2b,
                0xc0084e2e, 0x40084e5c, 0x80084e47, 0x80084e48,
        };
        uint64_t argument[64] = { 0 };

        (void)state;
        for (size_t i = 0; i < ELEMENTSOF(attached); i++)
                assert_refused(device(false, 3), attached[i], argument, -EPERM);
}

static void an_attached_command_is_not_sent_to_a_driver_before_2_26_5(void **state) {
        static const NeuronVersion versions[] = {
                { { 2, 26, 4 } }, { { 2, 25, 99 } }, { { 1, 99, 99 } }, { { 0, 0, 0 } }
        };
        NeuronDeviceInfo info;

        (void)state;
        for (size_t i = 0; i < ELEMENTSOF(versions); i++) {
                NeuronDevice d = device(true, 3);
                d.driver = versions[i];
                assert_refused(d, NEURON_DEVICE_INFO, &info, -EOPNOTSUPP);
        }
}

static void a_free_command_is_sent_only_to_drivers_that_have_it(void **state) {
        NeuronDevice d = device(false, 0);
        NeuronPodStatus status = { .size = sizeof status };

        (void)state;
        d.driver = (NeuronVersion){ { 2, 23, 8 } };
        assert_refused(d, NEURON_POD_STATUS_V2, &status, -EOPNOTSUPP);
        d.driver = (NeuronVersion){ { 2, 23, 9 } };
        assert_int_equal(neuron_ioctl(&d, NEURON_POD_STATUS_V2, &status), 0);
        d.driver = (NeuronVersion){ { 0, 0,
                                      0 } }; /* not known: it says itself what it does not have */
        assert_int_equal(neuron_ioctl(&d, NEURON_POD_STATUS_V2, &status), 0);
        assert_int_equal(sent.n, 2);
}

/* The first version that has each: reference, 3.4. */
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
        uint64_t argument[64] = { 0 }; /* nobody looks into it here */

        (void)state;
        for (size_t i = 0; i < ELEMENTSOF(rows); i++) {
                NeuronDevice d = device(false, 0);
                sent.n = 0;
                d.driver = rows[i].last_without;
                assert_refused(d, rows[i].command, argument, -EOPNOTSUPP);
                d.driver = rows[i].since;
                assert_int_equal(neuron_ioctl(&d, rows[i].command, argument), 0);
                assert_int_equal(sent.n, 1);
        }
        NeuronDevice old = device(false, 0);
        old.driver = (NeuronVersion){ { 2, 0, 0 } };
        assert_int_equal(neuron_ioctl(&old, NEURON_COMPATIBLE_VERSION, argument), 0); /* of old */
}

static unsigned engines_accepted(uint32_t architecture) {
        unsigned n = 0;

        for (uint32_t i = 0; i < 300; i++) {
                NeuronDevice d = device(true, architecture);
                NeuronDmaEngineState s;
                NeuronDmaEngine e = { .engine = i, .state = &s };
                int r = neuron_ioctl(&d, NEURON_DMA_ENG_GET_STATE, &e);

                assert_true(r == 0 || r == -ERANGE);
                if (r == 0)
                        assert_int_equal(n++, i); /* the first ones, without a gap */
        }
        return n;
}

static void dma_engines_are_bounded_by_the_architecture(void **state) {
        (void)state;
        assert_int_equal(engines_accepted(2), 34);
        assert_int_equal(engines_accepted(3), 132);
        assert_int_equal(engines_accepted(4), 132);
        assert_int_equal(engines_accepted(0), 0);
        assert_int_equal(engines_accepted(5), 0);
}

static unsigned queues_accepted(const NeuronDmaEngineState *shape) {
        NeuronDevice d = device(true, 3);
        NeuronDmaEngineState s;
        NeuronDmaEngine e = { .engine = 6, .state = &s };
        unsigned n = 0;

        sent.engine = *shape;
        assert_int_equal(neuron_ioctl(&d, NEURON_DMA_ENG_GET_STATE, &e), 0);
        for (uint32_t i = 0; i < 100; i++) {
                NeuronDmaQueue q = { .engine = 6, .queue = i }, other = { .engine = 5, .queue = i };

                assert_refused(d, NEURON_DMA_QUEUE_GET_STATE, &other, -ERANGE);
                n += neuron_ioctl(&d, NEURON_DMA_QUEUE_GET_STATE, &q) == 0;
        }
        return n;
}

static void dma_queues_are_bounded_by_what_their_engine_said(void **state) {
        (void)state;
        assert_int_equal(queues_accepted(&(NeuronDmaEngineState){
                                 .n_queues = 4, .tx_state = 2, .rx_state = 1 }),
                         4);
        assert_int_equal(queues_accepted(&(NeuronDmaEngineState){
                                 .n_queues = 16, .tx_state = 3, .rx_state = 2 }),
                         16);
        assert_int_equal(queues_accepted(&(NeuronDmaEngineState){
                                 .n_queues = UINT32_MAX, .tx_state = 2, .rx_state = 2 }),
                         16);
}

static void no_queue_is_asked_of_an_engine_that_is_disabled_or_reset(void **state) {
        (void)state;
        for (uint32_t other = 0; other < 6; other++) {
                assert_int_equal(queues_accepted(&(NeuronDmaEngineState){
                                         .n_queues = 16, .tx_state = 0, .rx_state = other }),
                                 0);
                assert_int_equal(queues_accepted(&(NeuronDmaEngineState){
                                         .n_queues = 16, .tx_state = other, .rx_state = 4 }),
                                 0);
                assert_int_equal(queues_accepted(&(NeuronDmaEngineState){
                                         .n_queues = 16, .tx_state = other, .rx_state = 99 }),
                                 0);
        }
}

static void a_failure_of_an_engine_closes_its_queues(void **state) {
        NeuronDevice d = device(true, 3);
        NeuronDmaEngineState s;
        NeuronDmaEngine e = { .engine = 6, .state = &s };
        NeuronDmaQueue q = { .engine = 6, .queue = 0 };

        (void)state;
        assert_refused(d, NEURON_DMA_QUEUE_GET_STATE, &q, -ERANGE); /* never asked */
        sent.engine = (NeuronDmaEngineState){ .n_queues = 16, .tx_state = 2, .rx_state = 2 };
        assert_int_equal(neuron_ioctl(&d, NEURON_DMA_ENG_GET_STATE, &e), 0);
        assert_int_equal(neuron_ioctl(&d, NEURON_DMA_QUEUE_GET_STATE, &q), 0);
        sent.result = -EIO;
        assert_int_equal(neuron_ioctl(&d, NEURON_DMA_ENG_GET_STATE, &e), -EIO);
        sent.result = 0;
        assert_refused(d, NEURON_DMA_QUEUE_GET_STATE, &q, -ERANGE);
}

static void semaphores_and_events_are_bounded_in_core_and_index(void **state) {
        static const uint32_t commands[] = { NEURON_SEMAPHORE_READ, NEURON_EVENT_GET };
        static const struct {
                uint32_t architecture, core, index;
                int expected;
        } cases[] = {
                { 2, 1, 255, 0 },     { 2, 2, 0, -ERANGE },          { 3, 7, 255, 0 },
                { 3, 8, 0, -ERANGE }, { 3, 0, 256, -ERANGE },        { 4, 0, UINT32_MAX, -ERANGE },
                { 4, 7, 0, 0 },       { 4, UINT32_MAX, 0, -ERANGE }, { 0, 0, 0, -ERANGE },
        };

        (void)state;
        for (size_t i = 0; i < ELEMENTSOF(commands); i++)
                for (size_t k = 0; k < ELEMENTSOF(cases); k++) {
                        NeuronDevice d = device(true, cases[k].architecture);
                        NeuronCoreValue v = { .core = cases[k].core, .index = cases[k].index };
                        unsigned before = sent.n;

                        assert_int_equal(neuron_ioctl(&d, commands[i], &v), cases[k].expected);
                        assert_int_equal(sent.n - before, cases[k].expected == 0);
                }
}

static void the_counts_of_started_models_are_bounded_in_the_core(void **state) {
        NeuronModelStarted last = { .core = 7 }, beyond = { .core = 8 };
        NeuronDevice d = device(true, 4);

        (void)state;
        assert_int_equal(neuron_ioctl(&d, NEURON_MODEL_STARTED_COUNT, &last), 0);
        assert_refused(d, NEURON_MODEL_STARTED_COUNT, &beyond, -ERANGE);
}

static void a_datastore_of_our_own_is_never_made(void **state) {
        NeuronDatastore self = { .pid = 0 }, negative = { .pid = -1 };

        (void)state;
        assert_refused(device(true, 3), NEURON_ACQUIRE_DATASTORE, &self, -ERANGE);
        assert_refused(device(true, 3), NEURON_ACQUIRE_DATASTORE, &negative, -ERANGE);
}

static void whatever_is_not_0_is_a_failure(void **state) {
        NeuronDevice d = device(false, 3);
        NeuronBasicInfo info;
        char text[128];

        (void)state;
        sent.result = 8; /* bytes that were not copied, in drivers before 2.29 */
        assert_int_equal(neuron_ioctl(&d, NEURON_DEVICE_BASIC_INFO, &info), 8);
        sent.result = -EPERM;
        assert_int_equal(neuron_ioctl(&d, NEURON_DEVICE_BASIC_INFO, &info), -EPERM);
        device_error_text(text, sizeof text, 8);
        assert_string_equal(text, "the driver returned 8, which is no answer");
        device_error_text(text, sizeof text, -EBUSY);
        assert_non_null(strstr(text, "EBUSY"));
}

static void a_device_is_opened_for_writing_only_or_reading_only(void **state) {
        const Scratch *s = *state;
        NeuronDevice d = { .driver = version_new, .architecture = 3 };

        assert_int_equal(scratch_write(s, "neuron0", ""), 0);
        assert_int_equal(neuron_open(&d, s->path, "neuron0", false), 0);
        assert_int_equal(fcntl(d.fd, F_GETFL) & (O_ACCMODE | O_APPEND), O_WRONLY);
        assert_int_equal(fcntl(d.fd, F_GETFD), FD_CLOEXEC);
        neuron_close(&d);
        assert_int_equal(neuron_open(&d, s->path, "neuron0", true), 0);
        assert_int_equal(fcntl(d.fd, F_GETFL) & O_ACCMODE, O_RDONLY);
        assert_int_equal(fcntl(d.fd, F_GETFD), FD_CLOEXEC);
        neuron_close(&d);
        assert_int_equal(d.fd, -1);
}

static void nobody_attaches_to_an_old_driver_or_an_unknown_architecture(void **state) {
        const Scratch *s = *state;
        NeuronDevice old = { .driver = version_old, .architecture = 3 },
                     unknown = { .driver = version_new, .architecture = 0 };

        assert_int_equal(scratch_write(s, "neuron0", ""), 0);
        assert_int_equal(neuron_open(&old, s->path, "neuron0", true), -EPERM);
        assert_int_equal(neuron_open(&unknown, s->path, "neuron0", true), -EPERM);
        assert_int_equal(neuron_open(&old, s->path, "neuron0", false), 0);
        neuron_close(&old);
}

static void what_is_no_device_is_not_opened(void **state) {
        const Scratch *s = *state;
        NeuronDevice d = { .fd = -1, .driver = version_new };

        assert_int_equal(symlinkat("/dev/null", s->fd, "neuron0"), 0);
        assert_int_equal(mkfifoat(s->fd, "neuron1", 0600), 0);
        assert_int_equal(mkdirat(s->fd, "neuron2", 0700), 0);
        assert_int_equal(neuron_open(&d, s->path, "neuron0", false), -ELOOP);
        assert_int_equal(neuron_open(&d, s->path, "neuron1", false), -EINVAL);
        assert_int_equal(neuron_open(&d, s->path, "neuron2", false), -EINVAL);
        assert_int_equal(neuron_open(&d, s->path, "neuron3", false), -ENOENT);
        assert_int_equal(d.fd, -1);
}

static void versions_are_compared_number_by_number(void **state) {
        NeuronVersion v = { { 0 } };

        (void)state;
        assert_true(neuron_version_parse("2.26.5.0\n", &v));
        assert_int_equal(neuron_version_compare(&v, &neuron_version_attached), 0);
        assert_true(neuron_version_parse("2.26.10.0", &v));
        assert_true(neuron_version_compare(&v, &neuron_version_attached) > 0);
        assert_true(neuron_version_parse("2.3.99", &v));
        assert_true(neuron_version_compare(&v, &neuron_version_attached) < 0);
        assert_false(neuron_version_parse("2.26", &v));
        assert_false(neuron_version_parse("", &v));
        assert_false(neuron_version_parse("two", &v));
}

static void a_datastore_is_read_by_its_layout(void **state) {
        uint8_t *data = calloc(1, NEURON_STORE_BYTES);
        const uint64_t one = 1, two = 2, three = 3;
        StrBuf b = STRBUF_INIT;

        (void)state;
        assert_non_null(data);
        assert_int_equal(device_add_datastore(&b, data, 8), -EBADMSG); /* no magic */
        memcpy(data, "nds", 4);
        memcpy(data + 256 + 31 * 8 * 3 + 30 * 8, &one, 8);
        memcpy(data + 55936 + 64 * 8 * 3, &two, 8);
        memcpy(data + 57984 + 96 * 8 * 3 + 30 * 8, &three, 8);
        assert_int_equal(device_add_datastore(&b, data, 8), 0);
        assert_non_null(
                strstr(b.text, "{\"OOB\":1,\"HW_ERR_COLLECTIVES\":2},{},{},{},{\"OOB\":3}]"));
        strbuf_done(&b);
        free(data);
}

int main(void) {
#define TEST(f) cmocka_unit_test_setup(f, reset_sent)
#define SCRATCH_TEST(f) cmocka_unit_test_setup_teardown(f, scratch_setup, scratch_teardown)
        const struct CMUnitTest tests[] = {
                TEST(a_forbidden_command_is_never_sent),
                TEST(no_other_number_of_the_driver_passes),
                TEST(an_attached_command_is_not_sent_through_a_free_opening),
                TEST(an_attached_command_is_not_sent_to_a_driver_before_2_26_5),
                TEST(a_free_command_is_sent_only_to_drivers_that_have_it),
                TEST(each_free_command_is_sent_from_its_version_on),
                TEST(dma_engines_are_bounded_by_the_architecture),
                TEST(dma_queues_are_bounded_by_what_their_engine_said),
                TEST(no_queue_is_asked_of_an_engine_that_is_disabled_or_reset),
                TEST(a_failure_of_an_engine_closes_its_queues),
                TEST(semaphores_and_events_are_bounded_in_core_and_index),
                TEST(the_counts_of_started_models_are_bounded_in_the_core),
                TEST(a_datastore_of_our_own_is_never_made),
                TEST(whatever_is_not_0_is_a_failure),
                SCRATCH_TEST(a_device_is_opened_for_writing_only_or_reading_only),
                SCRATCH_TEST(nobody_attaches_to_an_old_driver_or_an_unknown_architecture),
                SCRATCH_TEST(what_is_no_device_is_not_opened),
                TEST(versions_are_compared_number_by_number),
                TEST(a_datastore_is_read_by_its_layout),
        };

        return cmocka_run_group_tests(tests, NULL, NULL);
}
