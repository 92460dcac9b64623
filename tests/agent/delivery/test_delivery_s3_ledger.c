/* What is taken over from the ledger of an earlier run. The machine
 * itself is tested end to end. */
#include <string.h>

#include "tests/harness/unit.h"

#include "agent/delivery/delivery_s3_ledger.h"
#include "lib/bundle/packer.h"
#include "tests/lib/base/scratch.h"

#define PART (10 * MIB)

typedef struct Fixture {
        void *scratch; /* Scratch */
        Store *store;
        char id[BUNDLE_ID_SIZE];
        uint8_t plan[SHA256_SIZE];
} Fixture;

static int setup(void **state) {
        Fixture *f = calloc(1, sizeof *f);
        assert_non_null(f);
        assert_int_equal(scratch_setup(&f->scratch), 0);
        assert_int_equal(store_open(&f->store, ((Scratch *)f->scratch)->path, NULL, NULL), 0);
        strcpy(f->id, "directory-20260527T051233-0123456789ab");
        DeliveryRecord delivery = { .destination = (char *)"archive" };
        BundleRecord b = { .source = (char *)"jobs",
                           .kind = SOURCE_DIRECTORY,
                           .path = (char *)"/jobs/1",
                           .deliveries = &delivery,
                           .n_deliveries = 1 };
        memcpy(b.id, f->id, sizeof f->id);
        assert_int_equal(store_add(f->store, &b), 0);
        memset(f->plan, 7, sizeof f->plan);
        *state = f;
        return 0;
}

static int teardown(void **state) {
        Fixture *f = *state;
        store_close(f->store);
        assert_int_equal(scratch_teardown(&f->scratch), 0);
        free(f);
        return 0;
}

static PackedRow make_row(uint64_t first_frame, bool is_last) {
        static uint32_t sizes[2] = { 100, 200 };
        static uint8_t what[3] = { 1, 2, 3 };
        return (PackedRow){ .sha256 = { 9, 8, 7 },
                            .first_frame = first_frame,
                            .n_frames = 2,
                            .frame_bytes = sizes,
                            .bytes = 300,
                            .is_last = is_last,
                            .state = what,
                            .state_bytes = sizeof what };
}

static DeliveryS3Expected wanted_of(Fixture *f) {
        return (DeliveryS3Expected){ .bundle = f->id,
                                     .destination = "archive",
                                     .key = "k",
                                     .signature = "zstd 1",
                                     .plan = f->plan };
}

/* A first run that made three parts, of which the first two arrived. */
static void run_before(Fixture *f) {
        DeliveryS3Ledger rows = { 0 };
        DeliveryS3Expected wanted = wanted_of(f);
        assert_int_equal(delivery_s3_ledger_load(&rows, f->store, &wanted), 0);
        assert_int_equal(rows.n, 0);
        PackedRow row = make_row(0, false);
        assert_int_equal(delivery_s3_ledger_add_part(&rows, f->store, 1, &row), 0);
        LedgerUpload none = { 0 };
        assert_int_equal(store_ledger_get(f->store, f->id, "archive", &none), STORE_E_NOT_FOUND);
        LedgerUpload upload = { .key = (char *)"k", .packer = (char *)"zstd 1", .created_usec = 5 };
        memcpy(upload.plan, f->plan, sizeof f->plan);
        assert_int_equal(delivery_s3_ledger_start(&rows, f->store, &upload), 0);
        assert_int_equal(store_ledger_set_upload_id(f->store, f->id, "archive", "u-1"), 0);
        for (unsigned i = 2; i <= 3; i++) {
                row = make_row(2 * (i - 1), i == 3);
                assert_int_equal(delivery_s3_ledger_add_part(&rows, f->store, i, &row), 0);
        }
        assert_int_equal(store_ledger_set_etag(f->store, f->id, "archive",
                                               &(LedgerPart){ .number = 1, .etag = "e1" }),
                         0);
        assert_int_equal(store_ledger_set_etag(f->store, f->id, "archive",
                                               &(LedgerPart){ .number = 2, .etag = "e2" }),
                         0);
        delivery_s3_ledger_done(&rows);
}

static void the_ledger_of_an_earlier_run_is_resumed(void **state) {
        Fixture *f = *state;
        run_before(f);
        DeliveryS3Ledger rows = { 0 };
        DeliveryS3Expected wanted = wanted_of(f);
        assert_int_equal(delivery_s3_ledger_load(&rows, f->store, &wanted), 0);
        assert_int_equal(rows.n, 3);
        assert_string_equal(rows.upload_id, "u-1");
        assert_string_equal(rows.known[1].etag, "e2");
        PackedRow first = make_row(0, false); /* Complete needs every part's checksum */
        assert_memory_equal(rows.known[0].sha256, first.sha256, SHA256_SIZE);
        assert_string_equal(rows.known[2].etag, "");
        assert_true(rows.known[2].is_last && rows.items[2].is_last);
        assert_int_equal(rows.items[1].first_frame, 2);
        assert_int_equal(rows.items[1].frame_bytes[1], 200);
        assert_int_equal(rows.items[1].state_bytes, 3);
        assert_int_equal(delivery_s3_ledger_bytes(&rows), 900);
        PackedRow again = make_row(4, true); /* a part that is made again has its row already */
        assert_int_equal(delivery_s3_ledger_add_part(&rows, f->store, 3, &again), 0);
        delivery_s3_ledger_done(&rows);
        assert_int_equal(store_abort_count(f->store, NULL, false), 0);
}

static void rows_are_written_when_the_configuration_was_replaced(void **state) {
        Fixture *f = *state;
        run_before(f);
        DeliveryS3Ledger rows = { 0 };
        DeliveryS3Expected wanted = wanted_of(f);
        char name[] = "archive";
        wanted.destination = name;
        assert_int_equal(delivery_s3_ledger_load(&rows, f->store, &wanted), 0);
        memset(name, 'x', sizeof name - 1); /* it was freed */
        PackedRow row = make_row(6, true);
        assert_int_equal(delivery_s3_ledger_add_part(&rows, f->store, 4, &row), 0);
        delivery_s3_ledger_done(&rows);
}

static void assert_is_abandoned(Fixture *f, const DeliveryS3Expected *wanted) {
        DeliveryS3Ledger rows = { 0 };
        assert_int_equal(delivery_s3_ledger_load(&rows, f->store, wanted), 0);
        assert_int_equal(rows.n, 0);
        assert_null(rows.upload_id);
        assert_int_equal(store_abort_count(f->store, NULL, false), 1);
        delivery_s3_ledger_done(&rows);
}

static void another_plan_is_not_resumed_and_its_upload_is_to_be_aborted(void **state) {
        Fixture *f = *state;
        run_before(f);
        DeliveryS3Expected wanted = wanted_of(f);
        uint8_t other[SHA256_SIZE] = { 1 };
        wanted.plan = other;
        assert_is_abandoned(f, &wanted);
}

static void another_libzstd_is_not_resumed(void **state) {
        Fixture *f = *state;
        run_before(f);
        DeliveryS3Expected wanted = wanted_of(f);
        wanted.signature = "zstd 2";
        assert_is_abandoned(f, &wanted);
}

static void an_intent_without_an_answer_is_not_resumed(void **state) {
        Fixture *f = *state;
        LedgerUpload upload = { .key = (char *)"k", .packer = (char *)"zstd 1", .created_usec = 5 };
        memcpy(upload.plan, f->plan, sizeof f->plan);
        assert_int_equal(store_ledger_begin(f->store, f->id, "archive", &upload), 0);
        DeliveryS3Expected wanted = wanted_of(f);
        assert_is_abandoned(f, &wanted);
}

int main(void) {
        const struct CMUnitTest tests[] = {
                cmocka_unit_test_setup_teardown(the_ledger_of_an_earlier_run_is_resumed, setup,
                                                teardown),
                cmocka_unit_test_setup_teardown(
                        rows_are_written_when_the_configuration_was_replaced, setup, teardown),
                cmocka_unit_test_setup_teardown(
                        another_plan_is_not_resumed_and_its_upload_is_to_be_aborted, setup,
                        teardown),
                cmocka_unit_test_setup_teardown(another_libzstd_is_not_resumed, setup, teardown),
                cmocka_unit_test_setup_teardown(an_intent_without_an_answer_is_not_resumed, setup,
                                                teardown),
        };
        return cmocka_run_group_tests(tests, NULL, NULL);
}
