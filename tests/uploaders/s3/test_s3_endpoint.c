/* Where a bucket is. The host names of AWS are those that botocore 1.43 makes of its rules (names
 * with a region, also in us-east-1). */
#include "uploaders/s3/s3_endpoint.h"

#include <errno.h>
#include <string.h>

#include "tests/harness/unit.h"

#include "lib/base/cleanup.h"

static void the_hosts_of_aws_are_named_by_partition_and_variant(void **state) {
        static const struct {
                const char *region;
                bool dualstack, fips;
                const char *host;
        } cases[] = {
                { "us-east-1", false, false, "my-bucket.s3.us-east-1.amazonaws.com" },
                { "", false, false, "my-bucket.s3.us-east-1.amazonaws.com" },
                { NULL, false, false, "my-bucket.s3.us-east-1.amazonaws.com" },
                { "eu-west-1", true, false, "my-bucket.s3.dualstack.eu-west-1.amazonaws.com" },
                { "us-east-1", false, true, "my-bucket.s3-fips.us-east-1.amazonaws.com" },
                { "ca-central-1", true, true,
                  "my-bucket.s3-fips.dualstack.ca-central-1.amazonaws.com" },
                { "cn-north-1", false, false, "my-bucket.s3.cn-north-1.amazonaws.com.cn" },
                { "cn-northwest-1", true, false,
                  "my-bucket.s3.dualstack.cn-northwest-1.amazonaws.com.cn" },
                { "us-gov-west-1", false, false, "my-bucket.s3.us-gov-west-1.amazonaws.com" },
                { "us-gov-east-1", true, true,
                  "my-bucket.s3-fips.dualstack.us-gov-east-1.amazonaws.com" },
                { "us-iso-east-1", false, false, "my-bucket.s3.us-iso-east-1.c2s.ic.gov" },
                { "us-isob-east-1", false, true, "my-bucket.s3-fips.us-isob-east-1.sc2s.sgov.gov" },
                { "eu-isoe-west-1", false, false, "my-bucket.s3.eu-isoe-west-1.cloud.adc-e.uk" },
                { "us-isof-south-1", false, false, "my-bucket.s3.us-isof-south-1.csp.hci.ic.gov" },
                { "eusc-de-east-1", false, false, "my-bucket.s3.eusc-de-east-1.amazonaws.eu" },
        };

        for (size_t i = 0; i < ELEMENTSOF(cases); i++) {
                const S3LocationOptions o = { .bucket = "my-bucket",
                                              .region = cases[i].region,
                                              .dualstack = cases[i].dualstack,
                                              .fips = cases[i].fips };
                _cleanup_(s3_location_done) S3Location p = { 0 };
                char *fault = NULL;

                assert_int_equal(s3_location_init(&p, &o, &fault), 0);
                assert_null(fault);
                assert_string_equal(p.host, cases[i].host);
                assert_string_equal(p.scheme, "https");
                assert_string_equal(p.base_path, "");
                assert_true(p.is_aws);
                assert_string_equal(p.region, cases[i].region && cases[i].region[0]
                                                      ? cases[i].region
                                                      : "us-east-1");
        }
}

static void other_services_of_a_partition_are_named_alike(void **state) {
        static const struct {
                const char *region;
                bool dualstack, fips;
                const char *host;
        } cases[] = {
                { "eu-west-1", false, false, "sts.eu-west-1.amazonaws.com" },
                { NULL, false, false, "sts.us-east-1.amazonaws.com" },
                { "us-east-1", false, true, "sts-fips.us-east-1.amazonaws.com" },
                { "us-east-1", true, false, "sts.us-east-1.api.aws" },
                { "us-east-1", true, true, "sts-fips.us-east-1.api.aws" },
                { "us-gov-west-1", false, true, "sts.us-gov-west-1.amazonaws.com" },
                { "us-gov-west-1", true, true, "sts-fips.us-gov-west-1.api.aws" },
                { "cn-north-1", false, false, "sts.cn-north-1.amazonaws.com.cn" },
                { "cn-north-1", true, false, "sts.cn-north-1.api.amazonwebservices.com.cn" },
                { "us-iso-east-1", true, false, "sts.us-iso-east-1.api.aws.ic.gov" },
                { "us-isob-east-1", true, true, "sts-fips.us-isob-east-1.api.aws.scloud" },
                { "eusc-de-east-1", true, false, "sts.eusc-de-east-1.api.amazonwebservices.eu" },
        };

        for (size_t i = 0; i < ELEMENTSOF(cases); i++) {
                _cleanup_free_ char *host =
                        aws_service_host("sts", cases[i].region, cases[i].dualstack, cases[i].fips);

                assert_string_equal(host, cases[i].host);
        }
}

typedef struct PlaceCase {
        const char *endpoint, *addressing, *bucket;
        const char *scheme, *host, *base_path;
        bool is_aws;
} PlaceCase;

static void check_place(const PlaceCase *c) {
        const S3LocationOptions o = { .bucket = c->bucket,
                                      .region = "eu-west-1",
                                      .endpoint = c->endpoint,
                                      .addressing = c->addressing };
        _cleanup_(s3_location_done) S3Location p = { 0 };
        _cleanup_free_ char *fault = NULL;

        assert_int_equal(s3_location_init(&p, &o, &fault), 0);
        assert_string_equal(p.scheme, c->scheme);
        assert_string_equal(p.host, c->host);
        assert_string_equal(p.base_path, c->base_path);
        assert_int_equal(p.is_aws, c->is_aws);
        assert_string_equal(p.region, "eu-west-1");
}

static void an_endpoint_of_ones_own_is_parsed(void **state) {
        static const PlaceCase cases[] = {
                { "http://127.0.0.1:7480", NULL, "b", "http", "127.0.0.1:7480", "/b", false },
                { "HTTPS://S3.Example.COM", "", "b", "https", "s3.example.com", "/b", false },
                { "https://s3.example.com:443/", "auto", "b", "https", "s3.example.com", "/b",
                  false },
                { "http://s3.example.com:80", "auto", "b", "http", "s3.example.com", "/b", false },
                { "http://s3.example.com:443", "auto", "b", "http", "s3.example.com:443", "/b",
                  false },
                { "http://[::1]:9000", "path", "b", "http", "[::1]:9000", "/b", false },
                { "https://[FD00::1]", NULL, "b", "https", "[fd00::1]", "/b", false },
                { "https://gw.example.com/s3/v%20%2f1//", NULL, "b", "https", "gw.example.com",
                  "/s3/v /1/b", false },
                { "http://s3.test:8080", "virtual", "my-b", "http", "my-b.s3.test:8080", "",
                  false },
                { "https://gw.example.com/base", "virtual", "my-b", "https", "my-b.gw.example.com",
                  "/base", false },
                { "http://localhost:1", "auto", "Old_Bucket", "http", "localhost:1", "/Old_Bucket",
                  false },
                { "https://s3.eu-west-1.amazonaws.com", NULL, "my-b", "https",
                  "my-b.s3.eu-west-1.amazonaws.com", "", true },
                { "https://bucket.vpce-0a1b.s3.eu-west-1.vpce.amazonaws.com", NULL, "my-b", "https",
                  "my-b.bucket.vpce-0a1b.s3.eu-west-1.vpce.amazonaws.com", "", true },
                { "https://notamazonaws.com", NULL, "my-b", "https", "notamazonaws.com", "/my-b",
                  false },
        };

        for (size_t i = 0; i < ELEMENTSOF(cases); i++)
                check_place(&cases[i]);
}

static void auto_uses_the_path_where_a_host_name_would_not_do(void **state) {
        static const PlaceCase cases[] = {
                { NULL, NULL, "logs", "https", "logs.s3.eu-west-1.amazonaws.com", "", true },
                { NULL, "path", "logs", "https", "s3.eu-west-1.amazonaws.com", "/logs", true },
                { NULL, "auto", "logs.example.com", "https", "s3.eu-west-1.amazonaws.com",
                  "/logs.example.com", true }, /* the certificate has one * */
                { NULL, "virtual", "logs.example.com", "https",
                  "logs.example.com.s3.eu-west-1.amazonaws.com", "", true },
                { NULL, "auto", "Legacy_Bucket", "https", "s3.eu-west-1.amazonaws.com",
                  "/Legacy_Bucket", true },
                { "http://s3.eu-west-1.amazonaws.com", "auto", "a.b.c", "http",
                  "a.b.c.s3.eu-west-1.amazonaws.com", "", true },
        };

        for (size_t i = 0; i < ELEMENTSOF(cases); i++)
                check_place(&cases[i]);
}

static void what_cannot_be_is_refused_with_a_sentence(void **state) {
        static const struct {
                S3LocationOptions o;
                const char *fault;
        } cases[] = {
                { { .bucket = "" }, "no bucket is named; set bucket" },
                { { .bucket = NULL }, "no bucket is named; set bucket" },
                { { .bucket = "ab" }, "invalid bucket name 'ab'; it has 3 to 63 characters" },
                { { .bucket = "..", .endpoint = "http://h" },
                  "invalid bucket name '..'; it has 3 to 63 characters" },
                { { .bucket = "a/b" },
                  "bucket 'a/b' has characters that no bucket has; a name has letters, digits, "
                  "'-', '.' and '_'" },
                { { .bucket = "arn:aws:s3:eu-west-1:1:accesspoint/x" },
                  "bucket 'arn:aws:s3:eu-west-1:1:accesspoint/x' is an ARN; use the bucket's "
                  "name, or the alias of the access point (it ends in -s3alias)" },
                { { .bucket = "logs--use1-az4--x-s3" },
                  "bucket 'logs--use1-az4--x-s3' is a directory bucket (S3 Express), which "
                  "requires its own sessions; use a general purpose bucket" },
                { { .bucket = "logs", .region = "EU (Ireland)" },
                  "region 'EU (Ireland)' is none of AWS; write it like eu-west-1, or set endpoint "
                  "for another store" },
                { { .bucket = "logs", .region = "evil.example.com/" },
                  "region 'evil.example.com/' is none of AWS; write it like eu-west-1, or set "
                  "endpoint for another store" },
                { { .bucket = "logs", .region = "a/b", .endpoint = "http://h" },
                  "region 'a/b' has characters that no region has; most stores accept us-east-1" },
                { { .bucket = "logs", .region = "cn-north-1", .fips = true },
                  "there are no FIPS endpoints in China ('cn-north-1'); switch FIPS off" },
                { { .bucket = "logs", .endpoint = "http://h", .fips = true },
                  "FIPS is for the host names of AWS, but endpoint is 'http://h'; delete one of "
                  "the two" },
                { { .bucket = "logs", .endpoint = "http://h", .dualstack = true },
                  "dual-stack is for the host names of AWS, but endpoint is 'http://h'; delete "
                  "one of the two" },
                { { .bucket = "logs", .endpoint = "s3.example.com:9000" },
                  "endpoint 's3.example.com:9000' does not begin with http:// or https://; write "
                  "it like https://s3.example.com:9000" },
                { { .bucket = "logs", .endpoint = "http://user:secret@h" },
                  "the endpoint has a user name before '@'; keys belong into the credentials, not "
                  "into the URL" },
                { { .bucket = "logs", .endpoint = "http://h?x" },
                  "endpoint 'http://h?x' has a query or a fragment; end it before '?' or '#'" },
                { { .bucket = "logs", .endpoint = "http://h/a%00" },
                  "endpoint 'http://h/a%00' has a malformed %XX in its path" },
                { { .bucket = "logs", .endpoint = "http://h", .addressing = "vhost" },
                  "addressing 'vhost' is unknown; use auto, path or virtual" },
                { { .bucket = "logs", .endpoint = "http://[::1]:9", .addressing = "virtual" },
                  "addressing is virtual, but '[::1]' is an address and has no subdomains; set "
                  "addressing to path, or name the host" },
                { { .bucket = "Logs", .endpoint = "http://h", .addressing = "virtual" },
                  "addressing is virtual, but bucket 'Logs' cannot be part of a host name; set "
                  "addressing to path" },
        };

        for (size_t i = 0; i < ELEMENTSOF(cases); i++) {
                S3Location p = { 0 };
                _cleanup_free_ char *fault = NULL;

                assert_int_equal(s3_location_init(&p, &cases[i].o, &fault), -EINVAL);
                assert_non_null(fault);
                assert_string_equal(fault, cases[i].fault);
                assert_null(p.host);
                assert_int_equal(s3_location_init(&p, &cases[i].o, NULL), -EINVAL);
        }
}

static void an_endpoint_without_a_valid_host_and_port_is_refused(void **state) {
        static const char *const endpoints[] = {
                "http://",           "http:///x",
                "http://:80",        "http://h:",
                "http://h:0",        "http://h:65536",
                "http://h:80x",      "http://h:-1",
                "http://a..b",       "http://.a",
                "http://a b",        "http://a\tb",
                "http://[::1",       "http://::1",
                "http://[::1]x",     "http://[fe80::1%25eth0]",
                "http://[1.2.3.4]",  "http://h\r\nX: y",
                "http://[::1]:http", "http://\xc3\xa4",
        };

        for (size_t i = 0; i < ELEMENTSOF(endpoints); i++) {
                const S3LocationOptions o = { .bucket = "logs", .endpoint = endpoints[i] };
                S3Location p = { 0 };
                _cleanup_free_ char *fault = NULL;

                assert_int_equal(s3_location_init(&p, &o, &fault), -EINVAL);
                assert_non_null(strstr(fault, "has no valid host and port; write it like "));
        }
}

static void an_endpoint_of_any_length_is_survived(void **state) {
        char endpoint[3000];

        memset(endpoint, 'a', sizeof endpoint);
        memcpy(endpoint, "http://", 7);
        for (size_t n = 8; n < sizeof endpoint; n += 7) {
                const S3LocationOptions o = { .bucket = "logs", .endpoint = endpoint };
                _cleanup_(s3_location_done) S3Location p = { 0 };
                _cleanup_free_ char *fault = NULL;
                char kept = endpoint[n];

                endpoint[n] = '\0';
                assert_int_equal(s3_location_init(&p, &o, &fault), n <= 7 + 63 ? 0 : -EINVAL);
                endpoint[n] = kept;
        }
}

static void partitions_and_regions_are_distinguished(void **state) {
        char longest[AWS_REGION_SIZE + 1];

        assert_string_equal(aws_partition_name("eu-west-1"), "aws");
        assert_string_equal(aws_partition_name(NULL), "aws");
        assert_string_equal(aws_partition_name("cn-north-1"), "aws-cn");
        assert_string_equal(aws_partition_name("us-gov-east-1"), "aws-us-gov");
        assert_string_equal(aws_partition_name("us-isob-east-1"), "aws-iso-b");
        assert_true(aws_region_is_sane("RegionOne"));
        assert_false(aws_region_is_sane(""));
        assert_false(aws_region_is_sane("a.b"));
        assert_false(aws_region_is_sane("a\n"));
        memset(longest, 'a', sizeof longest);
        longest[AWS_REGION_SIZE] = '\0';
        assert_false(aws_region_is_sane(longest));
        longest[AWS_REGION_SIZE - 1] = '\0';
        assert_true(aws_region_is_sane(longest));
}

static void a_url_of_s3_has_a_bucket_and_perhaps_a_key(void **state) {
        static const struct {
                const char *url, *bucket, *key; /* bucket NULL = refused */
        } cases[] = {
                { "s3://b", "b", "" },      { "s3://b/", "b", "" },
                { "s3://b/k", "b", "k" },   { "s3://b/a/b c?d#e", "b", "a/b c?d#e" },
                { "s3://b//k", "b", "/k" }, { "s3://", NULL, NULL },
                { "s3:///k", NULL, NULL },  { "s3:/b/k", NULL, NULL },
                { "S3://b", NULL, NULL },   { "/b/k", NULL, NULL },
                { "", NULL, NULL },
        };

        for (size_t i = 0; i < ELEMENTSOF(cases); i++) {
                _cleanup_free_ char *bucket = NULL, *key = NULL;

                assert_int_equal(s3_url_parse(cases[i].url, &bucket, &key),
                                 cases[i].bucket ? 0 : -EINVAL);
                if (!cases[i].bucket) {
                        assert_null(bucket);
                        continue;
                }
                assert_string_equal(bucket, cases[i].bucket);
                assert_string_equal(key, cases[i].key);
        }
}

int main(void) {
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(the_hosts_of_aws_are_named_by_partition_and_variant),
                cmocka_unit_test(other_services_of_a_partition_are_named_alike),
                cmocka_unit_test(an_endpoint_of_ones_own_is_parsed),
                cmocka_unit_test(auto_uses_the_path_where_a_host_name_would_not_do),
                cmocka_unit_test(what_cannot_be_is_refused_with_a_sentence),
                cmocka_unit_test(an_endpoint_without_a_valid_host_and_port_is_refused),
                cmocka_unit_test(an_endpoint_of_any_length_is_survived),
                cmocka_unit_test(partitions_and_regions_are_distinguished),
                cmocka_unit_test(a_url_of_s3_has_a_bucket_and_perhaps_a_key),
        };

        return cmocka_run_group_tests(tests, NULL, NULL);
}
