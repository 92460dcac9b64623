#!/usr/bin/env python3
"""neuron-collect ls: the bundles below a directory and below s3://, by incident, and what is wrong
with each."""
import base64
import json
import os
import re
import shutil
import sys
import tempfile

sys.dont_write_bytecode = True  # the source tree may be read-only, and is packed as it is
# pylint: disable=wrong-import-position
from cli_test import CLI, assert_harmless, check_golden, main, run, session, test

from agent import INSTANCE, cleanup, need_root
from reading import Here, Made, Served, assert_no_secret

_volumes = []   # to be removed after the test
NAME = "neuron-core-dump-20260527T051233-%012x"


def manifest(name, complete=True, reasons=(), size=9, parts=1):
    """The beginning of one, as the agent writes it: `ls` looks no further than to the section
    `bundle`."""
    part = ',\n   '.join(['{"bytes": %d, "sha256": "%064x"}' % (size // parts, i)
                          for i in range(parts)])
    return (f'{{"schema": "neuron-collectd/manifest/1",\n "bundle": {{"id": "{name}", "kind": '
            f'"neuron-core-dump", "object": "{name}.tar.zst", '
            f'"bytes": {size}, "uncompressed_bytes": 10240, "plan": "{"0" * 64}",\n  "parts": [\n  '
            f' {part}],\n  "complete": {json.dumps(complete)}, '
            f'"reasons": {json.dumps(list(reasons))}, "supplement_of": null}},\n "node": '
            f'{{"instance_id": "i-0"}}}}').encode()


def sample():
    """{key: bytes} with everything that can be told of a bundle."""
    n = [NAME % i for i in range(9)]
    one, two = ("neuron/20260527-051233-d99e36ea74c263ca/",
                "neuron/20260528-000000-0000000000000000/")
    return {
        f"{one}incident.json": b"{}",
        f"{one}i-0a/{n[0]}.tar.zst": b"x" * 9, f"{one}i-0a/{n[0]}.manifest.json": manifest(n[0]),
        f"{one}i-0a/{n[0]}-s1.tar.zst": b"x" * 9,
        f"{one}i-0a/{n[0]}-s1.manifest.json": manifest(n[0] + "-s1", False,
                                                       ["unreadable: 'a' (why)"]),
        f"{one}i-0b/{n[1]}.tar.zst": b"x" * 12345,
        f"{one}i-0c/{n[2]}.manifest.json": manifest(n[2]),
        f"{one}i-0d/{n[3]}.tar.zst": b"x" * 5, f"{one}i-0d/{n[3]}.manifest.json": manifest(n[3]),
        f"{two}i-0a/{n[4]}.tar.zst": b"x" * 9000,
        f"{two}i-0a/{n[4]}.manifest.json": manifest(n[4], size=9000, parts=3000),
        f"{two}i-0a/{n[5]}.tar.zst": b"x" * 9, f"{two}i-0a/{n[5]}.manifest.json": manifest(n[5]),
        "neuron/renamed by hand.tar.zst": b"x" * 9,
        "neuron/renamed by hand.manifest.json": manifest(n[6]),
        "neuron/.incidents/d99e36ea74c263ca/1.json": b"{}",
        "neuron/.neuron-collectd-probe-i-0a": b"x",
        "neuron/20260528-000000-0000000000000000.txt": b"no bundle",
        "top.tar.zst": b"x" * 3,
    }


def as_volume(files):
    directory = tempfile.mkdtemp(prefix="neuron-ls.")
    _volumes.append(directory)
    for key, body in files.items():
        path = os.path.join(directory, key)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "wb") as f:
            f.write(body)
        os.utime(path, (1_780_000_000, 1_780_000_000))
    return directory


def shapes(incidents):
    """What must be the same wherever it lies."""
    return [(i["date_time"], i["cluster_id"],
             [(b["name"], b["node"], b["kind"], b["bytes"], b["delivered"], b["complete"],
               b["reasons"], b["fault"]) for b in i["bundles"]]) for i in incidents]


@test
def every_kind_of_bundle_is_reported_by_incident():
    directory = as_volume(sample())
    result = run(CLI, "ls", directory)
    assert result.returncode == 0 and not result.stderr, result
    check_golden("ls", session(["ls", "DIR"], result, [(directory, "DIR")]))


@test
def json_has_the_same_for_a_directory_and_for_a_bucket():
    files = sample()
    directory = as_volume(files)
    with Served() as s:
        s.objects.clear()
        for key, body in files.items():
            s.put(key, body)
        of_volume, of_bucket = run(CLI, "--json", "ls",
                                   directory), s.here.run("--json", "ls", "s3://bucket")
        assert (of_volume.returncode == of_bucket.returncode == 0
                and not of_volume.stderr + of_bucket.stderr), (of_volume, of_bucket)
        one, two = json.loads(of_volume.stdout), json.loads(of_bucket.stdout)
        assert shapes(one) == shapes(two), (one, two)
        assert [i["incident"].replace(directory + "/", "s3://bucket/")
                for i in one[:3]] == [i["incident"] for i in two[:3]]
        assert sum(len(i["bundles"]) for i in one) == 9
        faults = [b["fault"] for i in one for b in i["bundles"] if b["fault"]]
        assert len(faults) == 4 and sum("no manifest" in f for f in faults) == 2, faults
        for incident in two:
            for bundle in incident["bundles"]:
                assert bundle["url"].removeprefix("s3://bucket/") in s.objects, bundle
        assert_no_secret(s, of_bucket)


@test
def a_long_list_comes_page_by_page_and_manifests_of_many_bundles_are_asked_for_at_once():
    with Served() as s:
        s.objects.clear()
        s.page_size = 7
        for i in range(60):
            s.put(f"p/2026052{i % 7}-051233-{i % 7:016x}/i-0/{NAME % i}.tar.zst", b"x" * 9)
            s.put(f"p/2026052{i % 7}-051233-{i % 7:016x}/i-0/{NAME % i}.manifest.json",
                  manifest(NAME % i))
        result = s.here.run("ls", "s3://bucket/p/")
        assert result.returncode == 0 and result.stdout.count("  complete  ") == 60 and len(
            result.stdout.splitlines()) == 67, result
        assert len(s.seen("ListObjectsV2")) == 18 and len(s.seen("GetObject")) == 60, s.counts()
        assert len({r.connection for r in s.seen("GetObject")}) > 1, "one after the other"


@test
def a_prefix_is_one_as_in_s3_and_a_bundle_can_be_named_itself():
    made = Made.get()
    with Served() as s:
        for url, n in ((f"s3://bucket/{made.key}", 1),
                       (f"s3://bucket/{made.key.removesuffix('.tar.zst')}.manifest.json", 1),
                       ("s3://bucket/neu", 4),
                       ("s3://bucket/neuron/20260527-051233-00", 1), ("s3://bucket", 4),
                       ("s3://bucket/", 4)):
            result = s.here.run("--json", "ls", url)
            assert result.returncode == 0 and sum(
                len(i["bundles"]) for i in json.loads(result.stdout)) == n, (url, result)
    for path, n in ((made.volume, 4), (made.volume + "/", 4), (made.big, 1),
                    (made.manifest_path, 1), (os.path.dirname(made.big), 2)):
        result = run(CLI, "--json", "ls", path)
        assert (result.returncode == 0
                and sum(len(i["bundles"]) for i in json.loads(result.stdout)) == n), (path, result)
    with Here() as here:
        os.symlink(made.volume, here("link"))
        assert here.run("ls", "link").stdout.count(
            "  complete  ") == 4, "a symlink that the operator names is followed"
        assert here.run("ls", ".").stdout == "", "one that is found is not"
        shutil.copytree(made.volume, here("neuron"))
        result = here.run("ls", "neuron")
        assert (result.returncode == 0 and f" neuron/20260527-051233-d99e36ea74c263ca/{INSTANCE}/"
                in result.stdout), result


@test
def nothing_found_is_no_failure_but_what_is_not_there_is():
    with Served() as s:
        result = s.here.run("ls", "s3://bucket/other/")
        assert (result.returncode, result.stdout) == (
            0, "") and "no bundles below 's3://bucket/other/'" in result.stderr, result
        assert json.loads(s.here.run("--json", "ls", "s3://bucket/other/").stdout) == []
        result = s.here.run("ls", "s3://nowhere/")
        assert (result.returncode == 1 and "NoSuchBucket" in result.stderr
                and "nowhere" in result.stderr), result
    result = run(CLI, "ls", "/nowhere/at all")
    assert (result.returncode == 1
            and result.stderr == "neuron-collect: '/nowhere/at all' does not exist\n"), result


@test
def a_list_that_does_not_end_is_given_up():
    """A token is new each time; the page is the first one again, another one without keys."""
    count = [0]

    def for_ever(keys):
        def edit(_, reply):
            count[0] += 1
            token = base64.b64encode(f"0{count[0]}".encode()).decode()
            body = reply.body.decode()
            if not keys:
                body = re.sub("<Contents>.*</Contents>", "", body, flags=re.DOTALL)
            body = re.sub("<IsTruncated>.*</IsTruncated>", "", body)
            body = re.sub("<NextContinuationToken>.*</NextContinuationToken>", "", body)
            reply.body = body.replace("</ListBucketResult>",
                                      "<IsTruncated>true</IsTruncated><NextContinuationToken>"
                                      f"{token}</NextContinuationToken></ListBucketResult>"
                                      ).encode()
        return edit
    with Served() as s:
        for keys in (True, False):
            s.clear_faults()
            s.fault("ListObjectsV2", times=None, edit=for_ever(keys))
            for command in ("ls", "report"):
                result = s.here.run(command, "s3://bucket", timeout=60)
                assert result.returncode in (1, 3) and "does not end" in result.stderr, result


@test
def manifests_that_cannot_be_read_are_reported_once_and_the_rest_is_listed():
    with Served() as s:
        s.put("neuron/20260527-051233-d99e36ea74c263ca/i-0/x.tar.zst", b"x")
        s.put("neuron/20260527-051233-d99e36ea74c263ca/i-0/x.manifest.json", b"")
        s.put("neuron/20260527-051233-d99e36ea74c263ca/i-0/y.manifest.json", b"{}")
        result = s.here.run("ls", "s3://bucket")
        assert result.returncode == 1 and result.stdout.count(
            "  complete  ") == 4 and result.stdout.count("manifest cannot be read") == 2, result
        assert "is not a manifest" in result.stderr, result.stderr
        assert "2 manifests" in result.stderr, result.stderr
        for key in [k for k in s.objects if "/i-0/" in k]:
            del s.objects[key]
        s.deny = {"GetObject"}
        result = s.here.run("ls", "s3://bucket")
        assert result.returncode == 1 and len(result.stderr.splitlines(
            )) == 2 and "s3:GetObject" in result.stderr, result
        assert_no_secret(s, result)


@test
def a_directory_that_may_not_be_read_is_reported_after_all_others():
    need_root()
    directory = as_volume(sample())
    os.chmod(directory, 0o755)
    os.chmod(os.path.join(directory, "neuron/20260527-051233-d99e36ea74c263ca/i-0a"), 0)
    program = shutil.copy(CLI, os.path.join(directory, "neuron-collect"))
    result = run(program, "ls", directory, user=65534, group=65534, extra_groups=[])
    assert (result.returncode == 1 and "i-0a': Permission denied" in result.stderr
            and "i-0b" in result.stdout and "renamed" in result.stdout), result


@test
def hostile_names_do_not_reach_the_terminal():
    evil = "\x1b[2J\u009b31m\nevil"
    files = {f"n/{evil}/{evil}/{evil}.tar.zst": b"x",
             f"n/{evil}/{evil}/{evil}.manifest.json": manifest(NAME % 0, False, [evil], 1)}
    directory = as_volume(files)
    with Served() as s:
        s.objects.clear()
        for key, body in files.items():
            s.put(key, body)
        for result in (run(CLI, "ls", directory, text=False),
                       s.here.run("ls", "s3://bucket", text=False)):
            assert result.returncode == 0 and b"INCOMPLETE" in result.stdout and len(
                result.stdout.splitlines()) == 2, result
            assert_harmless(result.stdout, "ls")


@test
def nobody_reading_stdout_ends_it_without_a_crash():
    with Here() as here:
        reader, writer = os.pipe()
        os.close(reader)
        process = here.spawn("ls", Made.get().volume, stdout=writer)
        os.close(writer)
        err = process.communicate(timeout=30)[1].decode()
        assert process.returncode == 1 and err.strip().endswith("Broken pipe"), (
            process.returncode, err)


def clean(failed=False):
    cleanup(failed)
    while _volumes:
        shutil.rmtree(_volumes.pop())


if __name__ == "__main__":
    CODE = main(clean)
    Made.forget()
    sys.exit(CODE)
