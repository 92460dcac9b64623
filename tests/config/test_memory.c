/* What the configuration believes of memory, against what lib/bundle really asks for: the two
 * floors do not know each other. */
#include "tests/config/config_test.h"

#include "lib/bundle/packer.h"

static void the_writers_least_memory_is_not_underestimated(void **state) {
        for (int level = 0; level <= 19; level++) {
                uint64_t believed = config_writer_bytes((uint64_t)level),
                         real = bundle_writer_memory_min(level);
                if (believed < real ||
                    believed > real + 4 * MIB) /* libzstd's versions differ a little */
                        fail_msg("level %d: %.2f MiB believed, %.2f MiB asked for", level,
                                 (double)believed / MIB, (double)real / MIB);
        }
}

/* With the seek table of a bundle of 8 GiB; a larger one needs a little more, and the agent says so
 * then. */
static void what_is_demanded_holds_one_part_made_and_one_part_sent(void **state) {
        static const uint64_t sizes[] = { 5 * MIB, 8 * MIB, 64 * MIB, 5 * GIB };

        for (size_t i = 0; i < ELEMENTSOF(sizes); i++)
                for (int level = 0; level <= 19; level++) {
                        const ConfigDestination d = { .type = CONFIG_S3,
                                                      .part_size_bytes = sizes[i] };
                        uint64_t demanded =
                                config_memory_needed(&d, config_writer_bytes((uint64_t)level));
                        uint64_t real = 2 * packer_part_bytes_max(sizes[i], 0, 8 * GIB) +
                                        bundle_writer_memory_min(level);
                        if (demanded < real)
                                fail_msg("parts of %zu MiB, level %d: %.2f MiB demanded, %.2f MiB "
                                         "needed",
                                         (size_t)(sizes[i] / MIB), level, (double)demanded / MIB,
                                         (double)real / MIB);
                }
}

int main(void) {
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(the_writers_least_memory_is_not_underestimated),
                cmocka_unit_test(what_is_demanded_holds_one_part_made_and_one_part_sent),
        };
        return cmocka_run_group_tests(tests, NULL, NULL);
}
