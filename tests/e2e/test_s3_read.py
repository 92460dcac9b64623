#!/usr/bin/env python3
"""The reading side: ls, get, verify and doctor of neuron-collect on s3://, judged by what rclone
fetches and what the source was."""
import os
import re
import sys

sys.dont_write_bytecode = True  # the source tree may be read-only, and is packed as it is
sys.path.insert(0, os.path.join(os.path.dirname(os.path.realpath(__file__)), "..", "harness"))
# pylint: disable=wrong-import-position
import radosgw
from agent import Agent, cleanup, sha256_file, tree
from s3tools import judge, new_bucket
from tap import figures, main, test
from tcp_proxy import through

MIB = 1 << 20
_made = {}


def server():
    return radosgw.shared()


def bundle():
    """A bucket with one large bundle and one small, made once. @return (bucket, large unit's files,
    key of its object)"""
    if not _made:
        bucket = new_bucket(server())
        a = Agent()
        a.config["destinations"] = [a.s3("s3", server(), bucket)]
        units = [a.dump(size=96 * MIB, cluster_id="000000000000000a", pid=1),
                 a.dump(size=65536, cluster_id="000000000000000b", pid=2)]
        result = a.once()
        assert result.returncode == 0, result.stdout + result.stderr
        manifests = judge(a, bucket, units)
        key = next(k for k in bucket.bundles() if manifests[units[0]]["bundle"]["object"] in k)
        _made["it"] = (bucket, tree(units[0]), key, manifests[units[0]])
    return _made["it"]


def reader(way=None):
    """An agent's directory and environment for the command line; no daemon runs."""
    a = Agent()
    a.use_keys(way or server())
    return a


def options(way=None):
    return ("--endpoint-url", (way or server()).endpoint, "--region", "us-east-1")


@test
def ls_lists_incidents_and_bundles():
    bucket, _, key, _ = bundle()
    a = reader()
    result = a.cli("ls", f"s3://{bucket.name}/", *options())
    assert result.returncode == 0, result.stdout + result.stderr
    assert os.path.basename(key).removesuffix(".tar.zst") in result.stdout, result.stdout
    assert ("000000000000000a" in result.stdout
            and "000000000000000b" in result.stdout), result.stdout
    below = a.cli("ls", f"s3://{bucket.name}/neuron/20260527-051233-000000000000000b", *options())
    assert below.returncode == 0 and "000000000000000a" not in below.stdout, below.stdout
    assert a.ask("ls", f"s3://{bucket.name}/", *options()), "no JSON"


@test
def get_fetches_the_complete_bundle_bit_for_bit():
    bucket, _, key, _ = bundle()
    a = reader()
    result = a.cli("get", f"s3://{bucket.name}/{key}", "-o", a.path("got.tar.zst"), *options())
    assert result.returncode == 0, result.stdout + result.stderr
    with open(a.path("got.tar.zst"), "rb") as f:
        assert f.read() == bucket.read(key)


@test
def get_member_needs_few_requests_and_few_bytes():
    bucket, files, key, manifest = bundle()
    proxy, way = through(server())
    name, (size, digest) = max(files.items(), key=lambda item: item[1][0])
    members = [e for e in manifest["members"] if e["bytes"] == size and e["sha256"] == digest]
    a = reader(way)
    result = a.cli("get", f"s3://{bucket.name}/{key}", "--member", members[0]["path"], "-o",
                   a.path("got"), *options(way))
    assert result.returncode == 0, result.stdout + result.stderr
    assert sha256_file(a.path("got")) == digest and os.path.getsize(a.path("got")) == size, name
    figures.append(f"S3: get --member of {size / MIB:.1f} MiB out of "
                   f"{manifest['bundle']['bytes'] / MIB:.0f} MiB: {len(proxy.requests)} requests, "
                   f"{proxy.down_bytes / MIB:.1f} MiB")
    assert proxy.down_bytes <= 16 * MIB, proxy.down_bytes
    assert len(proxy.requests) <= 4, [(r.method, r.target, r.headers.get("range"))
                                      for r in proxy.requests]
    small = min((e for e in manifest["members"] if e["bytes"]), key=lambda e: e["bytes"])
    proxy.forget()
    result = a.cli("get", f"s3://{bucket.name}/{key}", "--member", small["path"], "-o",
                   a.path("small"), *options(way))
    assert result.returncode == 0, result.stdout + result.stderr
    assert sha256_file(a.path("small")) == small["sha256"]
    assert len(proxy.requests) <= 4 and proxy.down_bytes <= 4 * MIB, (
        len(proxy.requests), proxy.down_bytes)


@test
def get_reports_what_is_not_there():
    bucket, _, key, _ = bundle()
    a = reader()
    for arguments, word in ((("get", f"s3://{bucket.name}/{key}", "--member", "no/such/member"),
                             "no/such/member"),
                            (("get", f"s3://{bucket.name}/neuron/nothing.tar.zst"), "nothing"),
                            (("verify", f"s3://{bucket.name}-not/{key}"), "NoSuchBucket")):
        result = a.cli(*arguments, *options(), *(["-o", a.path("x")] if arguments[0] == "get"
                                                 else []))
        assert result.returncode == 1, (arguments, result.returncode, result.stdout, result.stderr)
        assert word in result.stderr + result.stdout, result.stderr
        assert not os.path.exists(a.path("x")), "a file was left of what could not be fetched"


@test
def verify_re_hashes_what_lies_there_and_finds_a_flipped_bit():
    bucket, _, key, manifest = bundle()
    a = reader()
    result = a.cli("verify", f"s3://{bucket.name}/{key}", *options())
    assert result.returncode == 0, result.stdout + result.stderr
    body = bytearray(bucket.read(key))
    body[len(body) // 2] ^= 1
    other = new_bucket(server())
    name = os.path.basename(key)
    other.put(name, bytes(body))
    other.put(name.removesuffix(".tar.zst") + ".manifest.json",
              bucket.read(key.removesuffix(".tar.zst") + ".manifest.json"))
    result = a.cli("verify", f"s3://{other.name}/{name}", *options())
    assert result.returncode == 1, result.stdout + result.stderr
    assert (manifest["bundle"]["id"] in result.stdout + result.stderr
            or "differ" in result.stdout + result.stderr), result.stdout + result.stderr


@test
def a_download_over_a_bad_wire_continues_where_it_was():
    bucket, _, key, manifest = bundle()
    proxy, way = through(server())
    a = reader(way)
    cuts = []
    count = proxy.count

    def cut_now_and_then(direction, n):
        count(direction, n)
        if direction == "down" and len(cuts) < 3 and proxy.down_bytes > (len(cuts) + 1) * 5 * MIB:
            cuts.append(proxy.down_bytes)
            proxy.cut()
    proxy.count = cut_now_and_then
    result = a.cli("get", f"s3://{bucket.name}/{key}", "-o", a.path("got"), *options(way))
    assert result.returncode == 0, result.stdout + result.stderr
    assert len(cuts) == 3
    with open(a.path("got"), "rb") as f:
        assert f.read() == bucket.read(key)
    assert proxy.down_bytes <= manifest["bundle"][
        "bytes"] + 48 * MIB, "what was there was fetched again"


@test
def doctor_names_what_is_well_and_what_is_missing():
    bucket = new_bucket(server())
    a = Agent()
    a.config["destinations"] = [a.s3("s3", server(), bucket)]
    a.start()
    result = a.cli("--config", a.config_file, "doctor")
    assert result.returncode == 0, result.stdout + result.stderr
    assert "AWS_ACCESS_KEY_ID" in result.stdout or "environment" in result.stdout, result.stdout
    for what in ("clock", "bucket", "PutObject", "HeadObject", "GetObject", "UploadPart",
                 "AbortMultipartUpload", "ListMultipartUploads", "DeleteObject"):
        assert re.search(rf"^ok .*s3: {what}", result.stdout, re.MULTILINE), (what, result.stdout)
    assert not bucket.objects() and not bucket.uploads(), "the probe was left there"
    a.stop()
    writer = server().make_user("doctored", "DOCTORED000000000001", "canary-of-the-doctored")
    bucket.allow("doctored", ["s3:PutObject", "s3:DeleteObject", "s3:GetObject"])
    a.use_keys(writer)
    a.start()
    result = a.cli("--config", a.config_file, "doctor")
    text = result.stdout + result.stderr
    assert re.search(
        r"s3:(ListBucketMultipartUploads|ListBucket|AbortMultipartUpload|ListMultipartUploadParts)",
        text), text
    assert "canary" not in text
    a.use_keys(writer.with_keys(writer.access_key, "canary-wrong"))
    a.stop()
    a.start()
    result = a.cli("--config", a.config_file, "doctor")
    assert result.returncode == 1, result.stdout
    assert "SignatureDoesNotMatch" in result.stdout + result.stderr, result.stdout
    a.stop()


@test
def wrong_options_are_usage_errors_and_wrong_keys_are_reported():
    bucket, _, key, _ = bundle()
    a = reader()
    assert a.cli("ls", "s3://").returncode == 2
    assert a.cli("get").returncode == 2
    a.environment["AWS_SECRET_ACCESS_KEY"] = "canary-wrong"
    result = a.cli("ls", f"s3://{bucket.name}/", *options())
    assert (result.returncode == 1 and "SignatureDoesNotMatch" in result.stderr
            and "canary" not in result.stderr), (result.returncode, result.stderr)
    assert key


if __name__ == "__main__":
    sys.exit(main(cleanup))
