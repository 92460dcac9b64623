/* Which URLs are accepted, and what their parts are. */
#include "lib/http/url.h"

#include <errno.h>
#include <string.h>

#include "tests/harness/unit.h"

static void a_url_is_split_into_its_parts(void **state) {
        static const struct {
                const char *text, *scheme, *host, *authority,
                        *path; /* path NULL: it has control characters */
                unsigned port;
                bool is_address, is_origin, has_query;
        } rows[] = {
                { "http://h", "http", "h", "h", "/", 80, false, true, false },
                { "HTTPS://S3.Example.COM/", "https", "s3.example.com", "s3.example.com", "/", 443,
                  false, false, false },
                { "https://h:443/a/../b", "https", "h", "h", "/a/../b", 443, false, false, false },
                { "http://h:443", "http", "h", "h:443", "/", 443, false, true, false },
                { "http://127.0.0.1:80/a%20%2f", "http", "127.0.0.1", "127.0.0.1", "/a /", 80, true,
                  false, false },
                { "https://[FD00::1]:9000", "https", "[fd00::1]", "[fd00::1]:9000", "/", 9000, true,
                  true, false },
                { "http://h?x", "http", "h", "h", "/", 80, false, false, true },
                { "http://h/a#b", "http", "h", "h", "/a", 80, false, false, true },
                { "http://h/a%00", "http", "h", "h", NULL, 80, false, false, false },
                { "socks5h://a.b", "socks5h", "a.b", "a.b", "/", 0, false, true, false },
                { "tcp://a_b:1", "tcp", "a_b", "a_b:1", "/", 1, false, true, false },
                { "http://1.2.3.4.example", "http", "1.2.3.4.example", "1.2.3.4.example", "/", 80,
                  false, true, false },
        };

        for (size_t i = 0; i < ELEMENTSOF(rows); i++) {
                _cleanup_(url_done) Url u = { 0 };

                assert_int_equal(url_parse(&u, rows[i].text), 0);
                assert_string_equal(u.scheme, rows[i].scheme);
                assert_string_equal(u.host, rows[i].host);
                assert_string_equal(u.authority, rows[i].authority);
                if (rows[i].path)
                        assert_string_equal(u.path, rows[i].path);
                else
                        assert_null(u.path);
                assert_int_equal(u.port, rows[i].port);
                assert_int_equal(u.is_address, rows[i].is_address);
                assert_int_equal(u.is_origin, rows[i].is_origin);
                assert_int_equal(u.has_query, rows[i].has_query);
                assert_int_equal(url_is_http(&u), strncmp(rows[i].scheme, "http", 4) == 0);
        }
}

static void a_host_that_two_parsers_could_read_differently_is_refused(void **state) {
        static const char *const bad[] = {
                "",
                "h",
                "h:9000",
                "//h",
                "http:",
                "http://",
                "http:///x",
                "http:/h",
                "http://:80",
                "http://h:",
                "http://h:0",
                "http://h:65536",
                "http://h:80x",
                "http://h:-1",
                "http://a..b",
                "http://.a",
                "http://a b",
                "http://a\tb",
                "http://h\r\nX: y",
                "http://\xc3\xa4",
                "http://user@h",
                "http://user:secret@h",
                "http://a\\@b/",
                "http://127.1/",
                "http://0x7f000001/",
                "http://2130706433/",
                "http://%31%32%37.0.0.1/",
                "http://a,b/",
                "http://::1",
                "http://[::1",
                "http://[::1]x",
                "http://[::1]:http",
                "http://[1.2.3.4]",
                "http://[g]",
                "http://[fe80::1%25eth0]",
        };

        for (size_t i = 0; i < ELEMENTSOF(bad); i++) {
                Url u = { 0 };

                assert_int_equal(url_parse(&u, bad[i]), -EINVAL);
                assert_null(u.host);
        }
}

int main(void) {
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(a_url_is_split_into_its_parts),
                cmocka_unit_test(a_host_that_two_parsers_could_read_differently_is_refused),
        };

        return cmocka_run_group_tests(tests, NULL, NULL);
}
