#include "agent/peers/wire.h"

#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

#include "lib/base/cleanup.h"
#include "lib/base/digest.h"
#include "tests/agent/peers/random_message.h"

#define BOOT INT64_C(5000000000)
#define REAL INT64_C(1700000000000000)

static const WireKey key_a = { .id = "a", .secret = { 1, 2, 3 } };
static const WireKey key_long = { .id = "0123456789abcdef", .secret = { 4 } };

/* Too large for a stack in a test that has several. */
static Message sent, heard;
static uint8_t bytes[WIRE_BYTES_MAX];

static WireStamp stamp_of(const WireKey *key) {
        return (WireStamp){ .key = key,
                            .sender = sent.sender,
                            .sequence = sent.sequence,
                            .boot_usec = BOOT,
                            .real_usec = REAL };
}

static size_t encode(const WireKey *key) {
        size_t n;
        WireStamp stamp = stamp_of(key);
        assert_int_equal(wire_encode(&sent, &stamp, bytes, &n), 0);
        return n;
}

static WireVerdict decode_with(const WireKey *key, size_t n) {
        WireReader reader = { .keys = key, .n_keys = 1, .boot_usec = BOOT, .real_usec = REAL };
        return wire_decode(bytes, n, &reader, &heard);
}

static WireVerdict decode(size_t n) {
        return decode_with(&key_a, n);
}

static void make_message(uint64_t seed) {
        Random r = { seed };
        random_message(&r, &sent, BOOT);
}

/* A signed message whose body is what the test says. */
static size_t sign(const uint8_t *body, size_t n_body) {
        sent = (Message){ .kind = MESSAGE_HEARTBEAT, .sender = "x" };
        size_t n = encode(&key_a) - 3 - SHA256_SIZE; /* without sender and kind */
        memcpy(bytes + n, body, n_body);
        n += n_body;
        hmac_sha256(key_a.secret, sizeof key_a.secret, bytes, n, bytes + n);
        return n + SHA256_SIZE;
}

/* ---- */

static void what_is_sent_is_what_is_heard(void **state) {
        (void)state;
        for (uint64_t seed = 0; seed < 500; seed++) {
                make_message(seed);
                size_t n = encode(seed % 2 ? &key_long : &key_a);
                assert_int_equal(decode_with(seed % 2 ? &key_long : &key_a, n), WIRE_OK);
                assert_memory_equal(&sent, &heard, sizeof sent);
        }
}

static void the_largest_message_fits_in_16_kib(void **state) {
        (void)state;
        Random r = { 1 };
        do
                random_message(&r, &sent, BOOT);
        while (!sent.has_decision || !sent.n_claims);
        sent.n_claims = MESSAGE_CLAIMS_MAX;
        sent.n_heard = MESSAGE_HEARD_MAX;
        memset(sent.sender, 's', sizeof sent.sender - 1);
        for (size_t i = 0; i < MESSAGE_CLAIMS_MAX; i++) {
                Claim *c = &sent.claims[i];
                *c = sent.claims[0];
                c->has_error = true;
                memset(c->boot_id, 'b', sizeof c->boot_id - 1);
                memset(c->instance_id, 'i', sizeof c->instance_id - 1);
                memset(c->cluster_id, 'c', sizeof c->cluster_id - 1);
                memset(c->date_time, 'd', sizeof c->date_time - 1);
                memset(c->bundle, 'u', sizeof c->bundle - 1);
                memset(c->error_location, 'l', sizeof c->error_location - 1);
        }
        Decision *d = &sent.decision;
        memset(d->cluster_id, 'c', sizeof d->cluster_id - 1);
        memset(d->date_time, 'd', sizeof d->date_time - 1);
        memset(d->created_by, 'y', sizeof d->created_by - 1);
        size_t n = encode(&key_long);
        assert_in_range(n, 15000, WIRE_BYTES_MAX);
        assert_int_equal(decode_with(&key_long, n), WIRE_OK);
        assert_memory_equal(&sent, &heard, sizeof sent);
}

static void every_truncation_is_rejected(void **state) {
        (void)state;
        make_message(3);
        size_t n = encode(&key_a);
        for (size_t i = 0; i < n; i++)
                assert_int_not_equal(decode(i), WIRE_OK);
        assert_int_equal(decode(n), WIRE_OK);
}

static void every_flipped_bit_is_rejected(void **state) {
        (void)state;
        make_message(4);
        sent.n_claims = MIN(sent.n_claims, (size_t)2);
        sent.n_heard = MIN(sent.n_heard, (size_t)4);
        size_t n = encode(&key_a);
        for (size_t i = 0; i < 8 * n; i++) {
                bytes[i / 8] ^= (uint8_t)(1 << i % 8);
                assert_int_not_equal(decode(n), WIRE_OK);
                bytes[i / 8] ^= (uint8_t)(1 << i % 8);
        }
        assert_int_equal(decode(n), WIRE_OK);
}

static void bytes_behind_a_message_are_rejected(void **state) {
        (void)state;
        static const uint8_t body[] = { 1, 'x', MESSAGE_HEARTBEAT, 0 };
        assert_int_equal(decode(sign(body, 3)), WIRE_OK);
        assert_int_equal(decode(sign(body, 4)), WIRE_MALFORMED);
}

static void signed_bodies_that_break_the_rules_are_malformed(void **state) {
        (void)state;
        /* clang-format off */
        static const struct { const char *what; uint8_t body[32]; size_t n; } broken[] = {
                { "no sender", { 0, MESSAGE_HEARTBEAT }, 2 },
                { "sender with a blank", { 1, ' ', MESSAGE_HEARTBEAT }, 3 },
                { "sender with a NUL", { 1, 0, MESSAGE_HEARTBEAT }, 3 },
                { "sender longer than the message", { 60, 'x', MESSAGE_HEARTBEAT }, 3 },
                { "kind", { 1, 'x', N_MESSAGE_KINDS }, 3 },
                { "key of 15 digits", "\1x\0\17" "0123456789abcde" "\0\0\0\0", 23 },
                { "key in capitals", "\1x\0\20" "0123456789ABCDEF" "\0\0\0\0", 24 },
                { "claims", "\1x\0\20" "0123456789abcdef" "\25\0\0\0", 24 },
                { "decision flag", "\1x\0\20" "0123456789abcdef" "\0\2\0\0", 24 },
                { "heard", "\1x\0\20" "0123456789abcdef" "\0\0\2\1", 24 },
        };
        /* clang-format on */
        static const uint8_t sound[] = "\1x\0\20"
                                       "0123456789abcdef"
                                       "\0\0\0\0";
        assert_int_equal(decode(sign(sound, 24)), WIRE_OK);
        for (size_t i = 0; i < ELEMENTSOF(broken); i++) {
                WireVerdict v = decode(sign(broken[i].body, broken[i].n));
                if (v != WIRE_MALFORMED)
                        print_error("%s\n", broken[i].what);
                assert_int_equal(v, WIRE_MALFORMED);
        }
}

static void a_message_of_another_key_is_rejected(void **state) {
        (void)state;
        make_message(5);
        size_t n = encode(&key_a);
        WireKey other = key_a;
        other.secret[31] = 1;
        assert_int_equal(decode_with(&other, n), WIRE_FORGED);
        assert_int_equal(decode_with(&key_long, n), WIRE_UNKNOWN_KEY);
        WireKey longer = { .id = "aa", .secret = { 1, 2, 3 } };
        assert_int_equal(decode_with(&longer, n), WIRE_UNKNOWN_KEY);
}

static void every_key_of_the_reader_verifies(void **state) {
        (void)state;
        const WireKey keys[] = { key_long, key_a };
        WireReader reader = { .keys = keys, .n_keys = 2, .boot_usec = BOOT, .real_usec = REAL };
        make_message(6);
        assert_int_equal(wire_decode(bytes, encode(&key_a), &reader, &heard), WIRE_OK);
        assert_int_equal(wire_decode(bytes, encode(&key_long), &reader, &heard), WIRE_OK);
}

static void one_that_is_signed_with_zeros_is_not_accepted_by_who_has_a_key(void **state) {
        (void)state;
        const WireKey none = { .id = "" };
        make_message(7);
        size_t n = encode(&none);
        assert_int_equal(decode(n), WIRE_UNKNOWN_KEY);
        assert_int_equal(decode_with(&none, n), WIRE_OK);
}

static void clocks_may_differ_by_ten_minutes(void **state) {
        (void)state;
        static const int64_t edges[] = { WIRE_CLOCK_USEC, -WIRE_CLOCK_USEC };
        make_message(8);
        size_t n = encode(&key_a);
        for (size_t i = 0; i < ELEMENTSOF(edges); i++) {
                WireReader reader = {
                        .keys = &key_a, .n_keys = 1, .boot_usec = BOOT, .real_usec = REAL + edges[i]
                };
                assert_int_equal(wire_decode(bytes, n, &reader, &heard), WIRE_OK);
                reader.real_usec += edges[i] > 0 ? 1 : -1;
                assert_int_equal(wire_decode(bytes, n, &reader, &heard), WIRE_STALE);
        }
        WireReader reader = { .keys = &key_a, .n_keys = 1, .real_usec = INT64_MIN };
        assert_int_equal(wire_decode(bytes, n, &reader, &heard), WIRE_STALE);
}

static void times_arrive_by_the_clock_of_the_reader(void **state) {
        (void)state;
        make_message(9);
        sent.n_claims = 1;
        sent.claims[0].started_usec = INT64_MIN;
        sent.claims[0].event_usec = BOOT - 1234567;
        size_t n = encode(&key_a);
        WireReader reader = { .keys = &key_a, .n_keys = 1, .boot_usec = 77, .real_usec = REAL };
        assert_int_equal(wire_decode(bytes, n, &reader, &heard), WIRE_OK);
        assert_true(heard.claims[0].event_usec == 77 - 1234000);
        assert_true(heard.claims[0].started_usec == INT64_MIN);
}

static void times_out_of_bounds_become_the_nearest_that_is_not(void **state) {
        (void)state;
        static const int64_t times[] = { INT64_MAX, INT64_MIN + 1, 0, -BOOT };
        for (size_t i = 0; i < ELEMENTSOF(times); i++) {
                make_message(10);
                sent.n_claims = 1;
                sent.claims[0].event_usec = times[i];
                assert_int_equal(decode(encode(&key_a)), WIRE_OK);
        }
}

static void what_no_reader_would_accept_is_not_sent(void **state) {
        (void)state;
        size_t n;
        for (unsigned i = 0; i < 5; i++) {
                make_message(11);
                sent.n_claims = MAX(sent.n_claims, (size_t)1);
                WireStamp stamp = stamp_of(&key_a);
                if (i == 0)
                        sent.key[3] = '\0';
                else if (i == 1)
                        sent.n_claims = MESSAGE_CLAIMS_MAX + 1;
                else if (i == 2)
                        sent.n_heard = MESSAGE_HEARD_MAX + 1;
                else if (i == 3)
                        strcpy(sent.claims[0].error_location, "a\nb");
                else
                        stamp.sender = "";
                assert_int_equal(wire_encode(&sent, &stamp, bytes, &n), -EINVAL);
        }
}

int main(void) {
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(what_is_sent_is_what_is_heard),
                cmocka_unit_test(the_largest_message_fits_in_16_kib),
                cmocka_unit_test(every_truncation_is_rejected),
                cmocka_unit_test(every_flipped_bit_is_rejected),
                cmocka_unit_test(bytes_behind_a_message_are_rejected),
                cmocka_unit_test(signed_bodies_that_break_the_rules_are_malformed),
                cmocka_unit_test(a_message_of_another_key_is_rejected),
                cmocka_unit_test(every_key_of_the_reader_verifies),
                cmocka_unit_test(one_that_is_signed_with_zeros_is_not_accepted_by_who_has_a_key),
                cmocka_unit_test(clocks_may_differ_by_ten_minutes),
                cmocka_unit_test(times_arrive_by_the_clock_of_the_reader),
                cmocka_unit_test(times_out_of_bounds_become_the_nearest_that_is_not),
                cmocka_unit_test(what_no_reader_would_accept_is_not_sent),
        };
        return cmocka_run_group_tests(tests, NULL, NULL);
}
