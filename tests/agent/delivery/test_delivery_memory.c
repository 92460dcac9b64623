/* limits.memory: what each delivery gets of it, and how it is split for a bucket. */
#include "agent/delivery/delivery_memory.h"

#include <errno.h>

#include "tests/harness/unit.h"

#include "lib/base/cleanup.h"
#include "lib/bundle/packer.h"

#define PART (10 * MIB)

static void connections_are_lowered_before_anything_else(void **state) {
        uint64_t writer, least = bundle_writer_memory_min(3);
        unsigned before = 9;
        for (uint64_t memory = 128 * MIB; memory >= 2 * PART + least; memory -= MIB) {
                unsigned n =
                        delivery_memory_split(&(BucketMemory){ memory, PART, 4, 3, 2 }, &writer);
                assert_in_range(n, 2, 5);
                assert_true(n <= before);
                assert_true(writer >= least);
                assert_true(n * PART + writer <= memory);
                before = n;
        }
        assert_int_equal(before, 2);
}

static void the_defaults_get_all_their_connections(void **state) {
        uint64_t writer;
        assert_int_equal(
                delivery_memory_split(
                        &(BucketMemory){ 64 * MIB, packer_part_bytes_max(8 * MIB, 0, 0), 4, 3, 1 },
                        &writer),
                5);
}

static void too_little_memory_gives_no_buffer(void **state) {
        uint64_t writer, least = delivery_memory_bucket_min(PART, 3);
        assert_int_equal(
                delivery_memory_split(&(BucketMemory){ least - 1, PART, 4, 3, 1 }, &writer), 0);
        assert_int_equal(delivery_memory_split(&(BucketMemory){ least, PART, 4, 3, 1 }, &writer),
                         2);
}

static void auto_means_all_cpus_as_far_as_the_memory_leaves_parallel_parts(void **state) {
        (void)state;
        ConfigDestination to = { .type = CONFIG_VOLUME,
                                 .part_size_bytes = 8 * MIB,
                                 .connections = 4 };
        Config c = { .limits = { .memory_bytes = 64 * MIB, .compression_level = 3 },
                     .destinations = &to,
                     .n_destinations = 1 };
        assert_int_equal(delivery_memory_auto_compressors(&c, 0), 1);
        assert_int_equal(delivery_memory_auto_compressors(&c, 2), 2);
        assert_int_equal(delivery_memory_auto_compressors(&c, 192),
                         192); /* a writer takes what fits */
        to.type = CONFIG_S3;
        assert_int_equal(delivery_memory_auto_compressors(&c, 2), 2);
        unsigned n = delivery_memory_auto_compressors(&c, 192);
        assert_in_range(n, 3, 8);
        c.limits.memory_bytes = 2 * GIB;
        assert_int_equal(delivery_memory_auto_compressors(&c, 192), 192);
        c.limits.memory_bytes = 16 * MIB; /* one part at a time at most */
        assert_in_range(delivery_memory_auto_compressors(&c, 192), 1, 192);
}

static void deliveries_start_while_there_is_memory_and_give_it_back(void **state) {
        Config config = { .limits = { .memory_bytes = 64 * MIB, .memory_max_bytes = 256 * MIB },
                          .n_destinations = 2 };
        DeliveryMemory m = { .config = &config, .n_compressors = 1 };
        MemoryCharge first = { .bytes = 40 * MIB }, second = { .bytes = 24 * MIB };
        const int a = 0, b = 0; /* two destinations */
        assert_int_equal(delivery_memory_share(&m), 32 * MIB);
        assert_true(delivery_memory_may_start(&m, &a, first.bytes));
        delivery_memory_charge(&m, &first);
        assert_false(delivery_memory_may_start(&m, &b, second.bytes + 1));
        assert_true(delivery_memory_may_start(&m, &b, second.bytes));
        delivery_memory_charge(&m, &second);
        assert_int_equal(m.used_bytes, 64 * MIB);
        delivery_memory_release(&first);
        delivery_memory_release(&first);
        delivery_memory_release(&second);
        assert_int_equal(m.used_bytes, 0);
}

static void one_that_needs_more_is_next_and_the_others_start_nothing(void **state) {
        Config config = { .limits = { .memory_bytes = 64 * MIB, .memory_max_bytes = 256 * MIB },
                          .n_destinations = 2 };
        DeliveryMemory m = { .config = &config, .n_compressors = 1 };
        MemoryCharge large = { .bytes = 32 * MIB }, other = { .bytes = 32 * MIB };
        const int a = 0, b = 0;
        uint64_t limit;
        delivery_memory_charge(&m, &large);
        delivery_memory_charge(&m, &other);
        assert_int_equal(delivery_memory_grow(&large, &a, 257 * MIB, &limit), -EOVERFLOW);
        assert_int_equal(limit, 256 * MIB);
        assert_int_equal(delivery_memory_grow(&large, &a, 240 * MIB, &limit), -EAGAIN);
        assert_true(delivery_memory_is_next(&m, &a));
        delivery_memory_release(&large);
        delivery_memory_release(&other);
        assert_false(delivery_memory_may_start(&m, &b, MIB));
        assert_true(delivery_memory_may_start(&m, &a, 32 * MIB));
        delivery_memory_charge(&m, &large);
        assert_int_equal(delivery_memory_grow(&large, &a, 240 * MIB, &limit), 0);
        assert_int_equal(large.bytes, 240 * MIB);
        assert_false(delivery_memory_is_next(&m, &a));
        delivery_memory_release(&large);
        assert_int_equal(m.used_bytes, 0);
        assert_true(delivery_memory_may_start(&m, &b, MIB));
}

static void one_that_waits_no_more_lets_the_others_start(void **state) {
        Config config = { .limits = { .memory_bytes = 64 * MIB, .memory_max_bytes = 64 * MIB },
                          .n_destinations = 1 };
        DeliveryMemory m = { .config = &config, .n_compressors = 1 };
        const int a = 0, b = 0;
        m.next = &a;
        delivery_memory_stop_waiting(&m, &b);
        assert_true(delivery_memory_is_next(&m, &a));
        delivery_memory_stop_waiting(&m, &a);
        assert_true(delivery_memory_may_start(&m, &b, MIB));
}

int main(void) {
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(connections_are_lowered_before_anything_else),
                cmocka_unit_test(the_defaults_get_all_their_connections),
                cmocka_unit_test(too_little_memory_gives_no_buffer),
                cmocka_unit_test(auto_means_all_cpus_as_far_as_the_memory_leaves_parallel_parts),
                cmocka_unit_test(deliveries_start_while_there_is_memory_and_give_it_back),
                cmocka_unit_test(one_that_needs_more_is_next_and_the_others_start_nothing),
                cmocka_unit_test(one_that_waits_no_more_lets_the_others_start),
        };
        return cmocka_run_group_tests_name("delivery_memory", tests, NULL, NULL);
}
