/* SHA-256 by FIPS 180-4's examples, MD5 by RFC 1321's, HMAC by RFC 4231's, base64 by RFC 4648's,
 * and the state that survives being saved. */
#include "lib/base/digest.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "tests/harness/unit.h"

#include "lib/base/cleanup.h"

static const char *sha256_hex(const void *data, size_t n, char hex[static SHA256_HEX_SIZE]) {
        uint8_t digest[SHA256_SIZE];

        sha256_of(data, n, digest);
        return digest_hex(digest, sizeof digest, hex);
}

static void sha256_agrees_with_the_published_vectors(void **state) {
        static const char *const vectors[][2] = {
                { "", "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855" },
                { "abc", "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad" },
                { "abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq",
                  "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1" },
        };
        char hex[SHA256_HEX_SIZE];

        for (size_t i = 0; i < ELEMENTSOF(vectors); i++)
                assert_string_equal(sha256_hex(vectors[i][0], strlen(vectors[i][0]), hex),
                                    vectors[i][1]);
}

static void a_million_times_a_in_odd_pieces_is_the_published_digest(void **state) {
        char piece[997], hex[SHA256_HEX_SIZE];
        uint8_t digest[SHA256_SIZE];
        size_t left = 1000000;
        Sha256 s;

        memset(piece, 'a', sizeof piece);
        sha256_init(&s);
        while (left > 0) {
                size_t n = MIN(left, sizeof piece);

                sha256_update(&s, piece, n);
                left -= n;
        }
        sha256_final(&s, digest);
        assert_string_equal(digest_hex(digest, sizeof digest, hex),
                            "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0");
}

static void md5_agrees_with_the_published_vectors(void **state) {
        static const char *const vectors[][2] = {
                { "", "d41d8cd98f00b204e9800998ecf8427e" },
                { "abc", "900150983cd24fb0d6963f7d28e17f72" },
                { "message digest", "f96b697d7cb7938d525a2f31aaf161d0" },
                { "12345678901234567890123456789012345678901234567890123456789012345678901234567"
                  "890",
                  "57edf4a22be3c955ac49da2e2107b67a" },
        };

        for (size_t i = 0; i < ELEMENTSOF(vectors); i++) {
                uint8_t digest[MD5_SIZE];
                char hex[2 * MD5_SIZE + 1];
                const char *text = vectors[i][0];
                Md5 m;

                md5_init(&m);
                md5_update(&m, text, strlen(text) / 2);
                md5_update(&m, text + strlen(text) / 2, strlen(text) - strlen(text) / 2);
                md5_final(&m, digest);
                assert_string_equal(digest_hex(digest, sizeof digest, hex), vectors[i][1]);
        }
}

static void a_saved_state_continues_where_it_was(void **state) {
        uint8_t data[300], whole[SHA256_SIZE];

        for (size_t i = 0; i < sizeof data; i++)
                data[i] = (uint8_t)(i * 7);
        sha256_of(data, sizeof data, whole);
        for (size_t cut = 0; cut <= sizeof data; cut++) { /* in every place of a block */
                uint8_t saved[SHA256_STATE_SIZE], again[SHA256_STATE_SIZE], digest[SHA256_SIZE];
                Sha256 a, b;

                sha256_init(&a);
                sha256_update(&a, data, cut);
                sha256_save(&a, saved);
                memset(&a, 0xee, sizeof a);
                memset(&b, 0xee, sizeof b);
                assert_int_equal(sha256_load(&b, saved), 0);
                sha256_save(&b, again);
                assert_memory_equal(saved, again, sizeof saved);
                sha256_update(&b, data + cut, sizeof data - cut);
                sha256_final(&b, digest);
                assert_memory_equal(digest, whole, sizeof whole);
        }
}

static void a_saved_state_has_the_same_bytes_on_every_machine(void **state) {
        uint8_t saved[SHA256_STATE_SIZE];
        char hex[2 * SHA256_STATE_SIZE + 1];
        Sha256 s;

        sha256_init(&s);
        sha256_update(&s, "abc", 3);
        sha256_save(&s, saved);
        /* FIPS 180-4, 5.3.3: the initial value; then 24 bits, "abc", 3 bytes, a digest of 32. */
        assert_string_equal(digest_hex(saved, sizeof saved, hex),
                            "6a09e667bb67ae853c6ef372a54ff53a510e527f9b05688c1f83d9ab5be0cd19"
                            "0000001800000000"
                            "6162630000000000000000000000000000000000000000000000000000000000"
                            "0000000000000000000000000000000000000000000000000000000000000000"
                            "0000000300000020");
}

static void what_cannot_be_a_state_is_refused(void **state) {
        static const struct {
                size_t at;
                uint8_t value;
        } faults[] = {
                { 35, 0x19 },  /* a length that is not of whole bytes */
                { 35, 0x20 },  /* a length that does not end where the block does */
                { 107, 0x04 }, /* more bytes in the block than the length says */
                { 107, 0x43 }, /* a block that is over-full: would be read past its end */
                { 104, 0xff }, /* the same, by far */
                { 111, 0x1c }, /* another digest */
                { 50, 0x01 },  /* bytes behind what is filled */
        };
        uint8_t saved[SHA256_STATE_SIZE], bad[SHA256_STATE_SIZE];
        Sha256 s = { { 0 } },
               before; /* OpenSSL's part of it is smaller: the rest is compared too */

        sha256_init(&s);
        sha256_update(&s, "abc", 3);
        sha256_save(&s, saved);
        before = s;
        for (size_t i = 0; i < ELEMENTSOF(faults); i++) {
                memcpy(bad, saved, sizeof bad);
                bad[faults[i].at] = faults[i].value;
                assert_int_equal(sha256_load(&s, bad), -EINVAL);
                assert_memory_equal(&s, &before, sizeof s);
        }
        memset(bad, 0, sizeof bad);
        assert_int_equal(sha256_load(&s, bad), -EINVAL);
}

static void lengths_above_4_gib_are_kept(void **state) {
        static const char zeros[1 << 16];
        uint8_t saved[SHA256_STATE_SIZE], loaded[SHA256_STATE_SIZE];
        Sha256 s;

        /* 2^32 - 64 bytes have gone by: the low word is full, and the next block carries over. */
        sha256_init(&s);
        sha256_save(&s, saved);
        memcpy(saved + 32, (const uint8_t[]){ 0xff, 0xff, 0xfe, 0x00, 0, 0, 0, 7 }, 8);
        assert_int_equal(sha256_load(&s, saved), 0);
        sha256_update(&s, zeros, 64);
        sha256_save(&s, loaded);
        assert_memory_equal(loaded + 32, ((const uint8_t[]){ 0, 0, 0, 0, 0, 0, 0, 8 }), 8);
}

static void hmac_agrees_with_the_published_vectors(void **state) {
        /* RFC 4231, 4.2 to 4.8 (4.6 is truncated there: its first 16 bytes). Keys and data of one
         * byte repeated where byte > 0. */
        static const struct {
                uint8_t key_byte, data_byte;
                size_t n_key, n_data;
                const char *key, *data, *mac;
        } vectors[] = {
                { 0x0b, 0, 20, 8, NULL, "Hi There",
                  "b0344c61d8db38535ca8afceaf0bf12b881dc200c9833da726e9376c2e32cff7" },
                { 0, 0, 4, 28, "Jefe", "what do ya want for nothing?",
                  "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843" },
                { 0xaa, 0xdd, 20, 50, NULL, NULL,
                  "773ea91e36800e46854db8ebd09181a72959098b3ef8c122d9635514ced565fe" },
                { 0, 0xcd, 25, 50,
                  "\x01\x02\x03\x04\x05\x06\x07\x08\x09\x0a\x0b\x0c\x0d\x0e\x0f\x10\x11\x12\x13"
                  "\x14\x15\x16\x17\x18\x19",
                  NULL, "82558a389a443c0ea4cc819899f2083a85f0faa3e578f8077a2e3ff46729665b" },
                { 0x0c, 0, 20, 20, NULL, "Test With Truncation",
                  "a3b6167473100ee06e0c796c2955552b" },
                { 0xaa, 0, 131, 54, NULL, "Test Using Larger Than Block-Size Key - Hash Key First",
                  "60e431591ee0b67f0d8a26aacbf5b77f8e0bc6213728c5140546040f0ee37f54" },
                { 0xaa, 0, 131, 152, NULL,
                  "This is a test using a larger than block-size key and a larger than block-size "
                  "data. The key needs to be hashed before being used by the HMAC algorithm.",
                  "9b09ffa71b942fcb27635fbcd5b0e944bfdc63644f0713938a7f51535c3a35e2" },
        };

        for (size_t i = 0; i < ELEMENTSOF(vectors); i++) {
                uint8_t key[256], data[256], mac[SHA256_SIZE];
                char hex[SHA256_HEX_SIZE];

                memset(key, vectors[i].key_byte, sizeof key);
                memset(data, vectors[i].data_byte, sizeof data);
                hmac_sha256(vectors[i].key ? (const void *)vectors[i].key : key, vectors[i].n_key,
                            vectors[i].data ? (const void *)vectors[i].data : data,
                            vectors[i].n_data, mac);
                digest_hex(mac, strlen(vectors[i].mac) / 2, hex);
                assert_string_equal(hex, vectors[i].mac);
        }
}

static void a_key_of_just_a_block_is_used_as_it_is_and_an_empty_one_too(void **state) {
        uint8_t key[65], hashed[SHA256_SIZE], mac[SHA256_SIZE], other[SHA256_SIZE];
        char hex[SHA256_HEX_SIZE];

        memset(key, 'k', sizeof key);
        sha256_of(key, 65, hashed);
        hmac_sha256(key, 65, "x", 1, mac);
        hmac_sha256(hashed, sizeof hashed, "x", 1, other);
        assert_memory_equal(mac, other, sizeof mac);
        sha256_of(key, 64, hashed);
        hmac_sha256(key, 64, "x", 1, mac);
        hmac_sha256(hashed, sizeof hashed, "x", 1, other);
        assert_memory_not_equal(mac, other, sizeof mac);
        hmac_sha256(NULL, 0, NULL, 0, mac); /* by two other implementations */
        assert_string_equal(digest_hex(mac, sizeof mac, hex),
                            "b613679a0814d9ec772f95d778c35fc5ff1697c493715653c6c712144292c5ad");
}

static void base64_agrees_with_the_published_vectors(void **state) {
        static const char *const vectors[][2] = {
                /* RFC 4648, 10 */
                { "", "" },
                { "f", "Zg==" },
                { "fo", "Zm8=" },
                { "foo", "Zm9v" },
                { "foob", "Zm9vYg==" },
                { "fooba", "Zm9vYmE=" },
                { "foobar", "Zm9vYmFy" },
                { "\xff\xfe\xfb\xef\xbe", "//77774=" },
        };

        for (size_t i = 0; i < ELEMENTSOF(vectors); i++) {
                size_t n = strlen(vectors[i][0]), size = DIGEST_BASE64_SIZE(n);
                char buf[64];

                memset(buf, '#', sizeof buf);
                assert_ptr_equal(digest_base64(vectors[i][0], n, buf), buf);
                assert_string_equal(buf, vectors[i][1]);
                assert_int_equal(strlen(buf) + 1, size);
                assert_int_equal(buf[size], '#');
        }
}

static void wiped_memory_is_overwritten(void **state) {
        char secret[8] = "secret", zeros[8] = "";

        digest_wipe(secret, 6);
        assert_memory_equal(secret, zeros, sizeof secret);
        digest_wipe(NULL, 0);
}

static void hex_is_lower_case(void **state) {
        char buf[9] = "########";

        assert_string_equal(digest_hex("\x00\x9a\xbc\xff", 4, buf), "009abcff");
        assert_string_equal(digest_hex("", 0, buf), "");
}

int main(void) {
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(sha256_agrees_with_the_published_vectors),
                cmocka_unit_test(a_million_times_a_in_odd_pieces_is_the_published_digest),
                cmocka_unit_test(md5_agrees_with_the_published_vectors),
                cmocka_unit_test(a_saved_state_continues_where_it_was),
                cmocka_unit_test(a_saved_state_has_the_same_bytes_on_every_machine),
                cmocka_unit_test(what_cannot_be_a_state_is_refused),
                cmocka_unit_test(lengths_above_4_gib_are_kept),
                cmocka_unit_test(hmac_agrees_with_the_published_vectors),
                cmocka_unit_test(a_key_of_just_a_block_is_used_as_it_is_and_an_empty_one_too),
                cmocka_unit_test(base64_agrees_with_the_published_vectors),
                cmocka_unit_test(wiped_memory_is_overwritten),
                cmocka_unit_test(hex_is_lower_case),
        };

        return cmocka_run_group_tests_name("base/digest", tests, NULL, NULL);
}
