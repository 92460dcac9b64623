#!/usr/bin/env python3
"""Reading from S3 over a server that misbehaves on request: which server and whose credentials,
tries again, and what is said."""
import os
import ssl
import sys
import tempfile

sys.dont_write_bytecode = True  # the source tree may be read-only, and is packed as it is
# pylint: disable=wrong-import-position
from cli_test import assert_harmless, main, run, run_in_terminal, test, CLI

import certs
from agent import cleanup, sha256_file, yaml_text
from reading import MIB, SMALL, Here, Made, Served, assert_no_secret, assert_complete

COMMANDS = (["ls", "s3://bucket"], ["get", None], ["get", None, "--member", SMALL, "-o", "-"],
            ["verify", None])


def name():
    return os.path.basename(Made.get().big)


def all_commands(s, *options, environment=None):
    """@return results of every reading command"""
    results = []
    for command in COMMANDS:
        with Here(environment or s.here.environment) as here:
            results.append(here.run(*[s.url if a is None else a for a in command], *options))
    assert_no_secret(s, *results)
    return results


def destination(s, **more):
    return {"name": "archive", "type": "s3", "bucket": s.bucket, "endpoint": s.endpoint, **more}


def config(here, *destinations):
    path = here("c.yaml")
    with open(path, "w", encoding="utf-8") as f:
        f.write(yaml_text({"version": 1,
                           "sources": [{"name": "x", "kind": "directory", "path": "/nowhere/x"}],
                           "destinations": list(destinations)}))
    return path


def without(environment, *names):
    return {k: v for k, v in environment.items() if k not in names}


@test
def verify_reads_everything_once_in_parallel_ranges_and_reports_the_same_as_of_a_file():
    made = Made.get()
    with Served() as s:
        result, local = s.here.run("verify", s.url), run(CLI, "verify", made.big)
        assert result.returncode == 0 and result.stdout == local.stdout.replace(
            made.big, s.url) and not result.stderr, result
        assert s.loaded() <= os.path.getsize(made.big) + 8 * MIB and len(
            {r.connection for r in s.gets()}) > 1, s.story()
        assert s.here.run("verify", s.url.removesuffix(".tar.zst")).stdout == result.stdout
        body = bytearray(s.objects[made.key].body)
        body[len(body) // 2] ^= 1
        s.put(made.key, bytes(body))
        result = s.here.run("verify", s.url)
        assert result.returncode == 1 and ": FAILED: " in result.stdout, result
        s.put(made.key, bytes(body[:-1000]))
        assert s.here.run("verify", s.url).returncode == 1
        code, out = run_in_terminal("verify", s.url, environment=s.here.environment)
        assert code == 1 and b" % of " in out, out


@test
def a_bundle_of_many_ranges_needs_no_more_memory_than_some_of_them():
    with Served() as s:
        with Here(s.here.environment) as here:
            for command in (["get", s.url], ["verify", s.url]):
                s.log.clear()
                result = run("/usr/bin/env", "python3", "-c", "import os, resource, subprocess, "
                             "sys; r = subprocess.run(sys.argv[1:], stdout=2); "
                             "print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss); "
                             "sys.exit(r.returncode)", CLI, *command, cwd=here.path,
                             env=here.environment)
                assert result.returncode == 0, result
                with open(CLI, "rb") as f:
                    instrumented = b"__asan_init" in f.read()
                assert instrumented or int(result.stdout) < 100 * 1024, f"{result.stdout} KiB"


@test
def connections_that_are_cut_are_gone_on_with_where_they_were_cut():
    made = Made.get()
    with Served() as s:
        s.fault("GetObject", key=made.key, times=3, cut=3 * MIB + 17)
        s.fault("GetObject", key=made.key, times=2, drop="answer")
        assert s.here.run("get", s.url).returncode == 0, s.story()
        assert_complete(s.here(name()))
        firsts = sorted(int(r.headers["range"].removeprefix("bytes=").split("-")[0])
                        for r in s.gets())
        assert any(first % MIB == 17 for first in firsts), firsts
        s.clear_faults()
        s.fault("GetObject", times=2, cut=100)
        assert s.here.run("ls", "s3://bucket").returncode == 0


@test
def a_busy_server_is_asked_again():
    with Served() as s:
        for operation in ("ListObjectsV2", "GetObject", "HeadObject"):
            s.fault(operation, times=2, status=503, code="SlowDown")
            s.fault(operation, times=1, status=500, code="InternalError")
        for result in all_commands(s):
            assert result.returncode == 0, result
        assert s.counts()["GetObject"] > 10


@test
def a_server_that_stays_broken_is_given_up_with_its_words():
    with Served() as s:
        s.fault("*", times=None, status=503, code="SlowDown", message="please reduce your rate")
        result = s.here.run("ls", "s3://bucket")
        assert (result.returncode == 1 and "SlowDown" in result.stderr
                and "please reduce" in result.stderr and 2 <= len(s.log) <= 10), result


@test
def an_answer_that_is_not_what_was_asked_for_is_never_used():
    made = Made.get()
    with Served() as s:
        body = s.objects[made.key].body

        def whole(_, reply):
            reply.status, reply.body = 200, body
            reply.headers.pop("Content-Range", None)

        def elsewhere(_, reply):
            reply.headers["Content-Range"] = f"bytes 7-{7 + len(reply.body) - 1}/{len(body)}"

        def silent(_, reply):
            reply.headers.pop("Content-Range", None)

        def lying(says):
            def edit(_, reply):
                numbers = reply.headers["Content-Range"].removeprefix("bytes ").replace(
                    "/", "-").split("-")
                first, last, total = (int(n) for n in numbers)
                reply.headers["Content-Range"] = says.format(first=first, last=last, next=last + 1,
                                                             before=last - 1, total=total)
            return edit

        lies = ("bytes {first}-{next}/{total}", "bytes {first}-{before}/{total}",
                "bytes {first}-{last}/{last}", "bytes {last}-{first}/{total}",
                "bytes {first}-{last}/*", "bytes {first}-{last}/{total}x", "bytes {first}-{last}",
                "bytes {first}-/{total}", "bytes -{last}/{total}", "bytes  {first}-{last}/{total}",
                "bytes +{first}-{last}/{total}", "bytes={first}-{last}/{total}",
                "octets {first}-{last}/{total}", "bytes {first}-{last}/99999999999999999999",
                "bytes " + "0" * 100 + "-{last}/{total}", "bytes", "")
        for edit in (whole, elsewhere, silent, *map(lying, lies)):
            s.clear_faults()
            s.fault("GetObject", key=made.key, times=None, edit=edit)
            result = s.here.run("get", s.url)
            assert (result.returncode == 1 and "range" in result.stderr
                    and name() not in s.here.names()), (edit, result)
            assert s.here.names() == [], s.here.names()
        s.clear_faults()
        for body in (b"<html>hello</html>", b"",
                     b"<ListBucketResult><IsTruncated>true</IsTruncated></ListBucketResult>",
                     b"\xff" * 100):
            s.clear_faults()
            s.fault("ListObjectsV2", times=None, status=200, body=body)
            result = s.here.run("ls", "s3://bucket")
            assert result.returncode == 1 and len(result.stderr.splitlines()) == 1, (body, result)
            assert_harmless(result.stderr, body)


@test
def wrong_credentials_and_missing_ones_are_reported_with_the_remedy():
    with Served() as s:
        for name_, value, said in (("AWS_SECRET_ACCESS_KEY", "wrong", "SignatureDoesNotMatch"),
                                   ("AWS_ACCESS_KEY_ID", "AKIAWRONG", "InvalidAccessKeyId")):
            for result in all_commands(s, environment={**s.here.environment, name_: value}):
                assert (result.returncode == 1 and not result.stdout and said in result.stderr
                        or "403" in result.stderr), result
        for result in all_commands(s, environment=without(s.here.environment, "AWS_ACCESS_KEY_ID",
                                                          "AWS_SECRET_ACCESS_KEY")):
            assert (result.returncode == 1 and "no AWS credentials" in result.stderr
                    and not result.stdout), result
        for result in all_commands(s, "--profile", "nobody"):
            assert (result.returncode == 1 and "nobody" in result.stderr
                    and not result.stdout), result


@test
def a_bucket_a_server_and_a_name_that_are_not_there_are_reported():
    with Served() as s:
        result = s.here.run("get", "s3://bukcet/" + Made.get().key)
        assert (result.returncode == 1 and "NoSuchBucket" in result.stderr
                and "bukcet" in result.stderr), result
        for result in all_commands(s, "--endpoint-url", "http://127.0.0.1:1"):
            assert (result.returncode == 1 and "connection refused" in result.stderr
                    and "127.0.0.1:1" in result.stderr and not result.stdout), result
        for result in all_commands(s, "--endpoint-url", "http://nowhere.invalid"):
            assert (result.returncode == 1 and "nowhere.invalid" in result.stderr
                    and not result.stdout), result
        for endpoint in ("127.0.0.1:9000", "ftp://127.0.0.1", "http://", "http://[::1"):
            result = s.here.run("ls", "s3://bucket", "--endpoint-url", endpoint)
            assert (result.returncode == 2 and endpoint in result.stderr
                    and not result.stdout), result
        assert s.here.run("ls", "s3://bucket", "--endpoint-url").returncode == 2


@test
def credentials_come_from_the_profile_that_is_named():
    with Served() as s:
        environment = without(s.here.environment, "AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY")
        with open(s.here("credentials"), "w", encoding="ascii") as f:
            f.write(f"[reader]\naws_access_key_id = {s.access_key}\naws_secret_access_key = "
                    f"{s.secret_key}\n[default]\naws_access_key_id = AKIANO\naws_secret_access_key "
                    "= no\n")
        environment |= {"AWS_SHARED_CREDENTIALS_FILE": s.here("credentials"),
                        "AWS_CONFIG_FILE": "/nonexistent"}
        assert all(r.returncode == 0 for r in all_commands(s, "--profile", "reader",
                                                           environment=environment))
        assert all(r.returncode == 0
                   for r in all_commands(s, environment={**environment, "AWS_PROFILE": "reader"}))
        assert all(r.returncode == 1 for r in all_commands(s, environment=environment))


@test
def the_configured_destination_with_the_bucket_reports_where_it_is():
    with Served() as s, Served(bucket="other") as t, Here() as here:
        nowhere = {**s.environment(), "AWS_ENDPOINT_URL": "http://127.0.0.1:1"}
        file = config(here, destination(s), destination(t, name="second"))
        assert all(r.returncode == 0 for r in all_commands(
            s, "--config", file, environment={**s.here.environment, **nowhere}))
        with Here(nowhere) as there:
            result = there.run("--config", file, "ls", "s3://other")
            assert result.returncode == 0 and result.stdout.count("  complete  ") == 4, result
            result = there.run("--config", file, "ls", "s3://third")
            assert result.returncode == 1 and "127.0.0.1:1" in result.stderr, result
            # what is given by hand comes first
            result = there.run("--config", file, "ls", "s3://other", "--endpoint-url", s.endpoint)
            assert result.returncode == 1 and "NoSuchBucket" in result.stderr, result
            bad = here("bad.yaml")
            with open(bad, "w", encoding="ascii") as f:
                f.write("version: 1\nsauces: []\n")
            result = there.run("--config", bad, "ls", "s3://other")
            assert result.returncode == 2 and "sauces" in result.stderr, result


@test
def of_two_destinations_with_one_bucket_the_one_with_the_longer_prefix_counts():
    with Served() as s, Here(s.environment()) as here:
        wrong = destination(s, name="wrong", endpoint="http://127.0.0.1:1", prefix="other/%d-%c")
        file = config(here, wrong, destination(s, prefix="neuron/%d-%c"))
        assert here.run("--config", file, "ls", "s3://bucket/neuron/").returncode == 0
        assert here.run("--config", file, "ls", "s3://bucket/other/").returncode == 1


@test
def the_endpoint_of_s3_alone_comes_before_the_one_of_everything():
    with Served() as s:
        environment = {**s.here.environment, "AWS_ENDPOINT_URL": "http://127.0.0.1:1",
                       "AWS_ENDPOINT_URL_S3": s.endpoint}
        assert all(r.returncode == 0 for r in all_commands(s, environment=environment))
        assert all(r.returncode == 0 for r in all_commands(
            s, "--endpoint-url", s.endpoint,
            environment={**environment, "AWS_ENDPOINT_URL_S3": "http://127.0.0.1:2"}))


@test
def environment_switches_are_on_with_true_only_and_a_custom_endpoint_has_no_variants():
    with Served() as s, Here() as here:
        on = {"AWS_USE_FIPS_ENDPOINT": "true", "AWS_USE_DUALSTACK_ENDPOINT": "true"}
        assert all(r.returncode == 0
                   for r in all_commands(s, environment={**s.here.environment, **on}))
        # another server would be asked if `yes` counted
        assert all(r.returncode == 0 for r in all_commands(
            s, environment={**s.here.environment, "AWS_IGNORE_CONFIGURED_ENDPOINT_URLS": "yes"}))
        # what is configured or given is no such variable
        ignoring = {**s.environment(), **on, "AWS_ENDPOINT_URL": "http://127.0.0.1:1",
                    "AWS_IGNORE_CONFIGURED_ENDPOINT_URLS": "True"}
        assert all(r.returncode == 0 for r in all_commands(
            s, "--endpoint-url", s.endpoint, environment={**s.here.environment, **ignoring}))
        file = config(here, destination(s))
        assert all(r.returncode == 0 for r in all_commands(
            s, "--config", file, environment={**s.here.environment, **ignoring}))


@test
def the_region_is_learned_when_it_is_not_reported_right():
    with Served(region="eu-north-9") as s:
        assert all(r.returncode == 0 for r in all_commands(s))
        assert all(r.returncode == 0 for r in all_commands(s, "--region", "us-west-2"))
        s.log.clear()
        assert all(r.returncode == 0 for r in all_commands(s, "--region", "eu-north-9"))
        assert all(r.returncode == 0 for r in all_commands(
            s, environment={**s.here.environment, "AWS_DEFAULT_REGION": "eu-north-9"}))
        assert {r.scope_region for r in s.log} == {"eu-north-9"}, s.story()
        assert all(r.returncode == 0
                   for r in all_commands(s, environment={**s.here.environment,
                                                         "AWS_REGION": "eu-north-9",
                                                         "AWS_DEFAULT_REGION": "x-1"}))
        assert {r.scope_region for r in s.log} == {"eu-north-9"}, s.story()


@test
def a_clock_that_is_wrong_is_allowed_for():
    with Served() as s:
        s.clock_offset = 3 * 3600
        for result in all_commands(s):
            assert result.returncode == 0, result


@test
def https_is_trusted_by_the_ca_that_is_named():
    with tempfile.TemporaryDirectory() as directory:
        made = certs.make(directory)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(made.good)
        with Served(tls=context) as s:
            plain = {k: v for k, v in s.here.environment.items()
                     if k not in ("SSL_CERT_FILE", "CURL_CA_BUNDLE", "SSL_CERT_DIR")}
            assert all(r.returncode == 0
                       for r in all_commands(s, "--ca-bundle", made.ca, environment=plain))
            assert all(r.returncode == 0
                       for r in all_commands(s, environment={**plain, "AWS_CA_BUNDLE": made.ca}))
            for result in all_commands(s, environment=plain):
                assert (result.returncode == 1 and "certificate" in result.stderr.lower()
                        and not result.stdout), result
            result = s.here.run("ls", "s3://bucket", "--ca-bundle", "/nowhere/ca.pem")
            assert result.returncode in (1, 2) and "/nowhere/ca.pem" in result.stderr, result


@test
def session_tokens_are_sent():
    with Served(token="token/of+a=session") as s:
        assert all(r.returncode == 0 for r in all_commands(s))
        results = all_commands(s, environment=without(s.here.environment, "AWS_SESSION_TOKEN"))
        assert all(r.returncode == 1 for r in results)
        assert not any("token/of+a=session" in r.stdout + r.stderr for r in results)


@test
def keys_of_every_spelling_are_fetched():
    made = Made.get()
    with Served() as s:
        for prefix in ("with space/", "plus+and=and%25/", "unicode-\u00e4\u6f22/", "a//b/",
                       "*~'()!/", "q?x&y#z/"):
            key = prefix + os.path.basename(made.big)
            s.put(key, s.objects[made.key].body)
            s.put(key.removesuffix(".tar.zst") + ".manifest.json",
                  made.files()[made.key.removesuffix(".tar.zst") + ".manifest.json"])
            listed = s.here.run("ls", "s3://bucket/" + prefix)
            assert listed.returncode == 0 and "s3://bucket/" + key in listed.stdout, (
                prefix, listed)
            with Here(s.here.environment) as here:
                result = here.run("get", "s3://bucket/" + key, "--member", SMALL)
                assert result.returncode == 0 and sha256_file(here(SMALL)) == sha256_file(
                    os.path.join(made.source, SMALL)), (prefix, result)


def clean(failed=False):
    cleanup(failed)


if __name__ == "__main__":
    CODE = main(clean)
    Made.forget()
    sys.exit(CODE)
