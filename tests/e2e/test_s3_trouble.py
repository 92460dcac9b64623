#!/usr/bin/env python3
"""A bucket that cannot be written: the remedy is reported, nothing is lost, and everything is
delivered once that is fixed."""
import contextlib
import ctypes
import glob
import itertools
import json
import os
import sys

sys.dont_write_bytecode = True  # the source tree may be read-only, and is packed as it is
sys.path.insert(0, os.path.join(os.path.dirname(os.path.realpath(__file__)), "..", "harness"))
# pylint: disable=wrong-import-position
import radosgw
from agent import Agent, cleanup, need_root, run, tree, wait_for
from s3_server import S3Server
from s3tools import judge, new_bucket
from tap import Skip, main, notes, test
from tcp_proxy import ForwardProxy, through

MIB = 1 << 20


def server():
    return radosgw.shared()


def destination(a, name="s3"):
    return next(d for d in a.status()["destinations"] if d["name"] == name)


def error_of(a, *words, timeout=30):
    """Waits until the destination's error has all these words (any of those in a tuple); `explain`
    must have it too. @return it"""
    def said():
        error = destination(a)["last_error"] or ""
        return all(any(w.lower() in error.lower() for w in (
            word if isinstance(word, tuple) else (word,))) for word in words) and error
    try:
        error = wait_for(f"the destination's error has {words}", said, timeout)
    except AssertionError:
        notes.append(f"it says: {destination(a)['last_error']}")
        raise
    assert "canary" not in error and "\n" not in error, error
    assert destination(a)["state"] != "ok", destination(a)
    assert a.curl("/readyz").returncode != 0
    first = words[0] if isinstance(words[0], tuple) else words[:1]
    wait_for(f"`explain` of a bundle says {first} of s3", lambda: any(
        "s3" in text and any(w.lower() in text.lower() for w in first)
        for text in (a.cli("explain", b["id"]).stdout for b in a.bundles())))
    assert error in a.cli("status").stdout.replace("\n", " ") or first[0] in a.cli("status").stdout
    assert a.counts()["delivered"] == 0 and a.counts()["quarantined"] == 0, a.counts()
    return error


def nothing_was_lost(a, bucket, units, before):
    """After the mending: delivered, and the sources are what they were."""
    a.wait_all()
    manifests = judge(a, bucket, units)
    assert {u: tree(u) for u in units} == before
    assert destination(a)["state"] == "ok" and a.curl("/readyz").returncode == 0, destination(a)
    a.assert_sum()
    a.stop()
    return manifests


@test
def a_wrong_secret_is_named_and_fixed_by_the_shared_credentials_file():
    bucket = new_bucket(server())
    a = Agent()
    a.config["destinations"] = [a.s3("s3", server(), bucket)]
    a.use_keys(None)
    path = a.path("home", ".aws", "credentials")
    os.makedirs(os.path.dirname(path))

    def write(secret):
        with open(path + ".new", "w", encoding="ascii") as f:
            f.write(f"[default]\naws_access_key_id = {server().access_key}\naws_secret_access_key "
                    f"= {secret}\n")
        os.replace(path + ".new", path)
    write("canary-not-the-secret")
    units = [a.dump()]
    before = {u: tree(u) for u in units}
    a.start()
    error_of(a, "SignatureDoesNotMatch", "secret", path)
    write(server().secret_key)
    nothing_was_lost(a, bucket, units, before)


@test
def no_credentials_anywhere_reports_where_they_were_searched():
    bucket = new_bucket(server())
    a = Agent()
    a.config["destinations"] = [a.s3("s3", server(), bucket)]
    a.use_keys(None)
    units = [a.dump()]
    before = {u: tree(u) for u in units}
    a.start()
    error_of(a, "credentials", "AWS_ACCESS_KEY_ID")
    path = a.path("home", ".aws", "credentials")
    os.makedirs(os.path.dirname(path))
    with open(path, "w", encoding="ascii") as f:
        f.write(f"[default]\naws_access_key_id = {server().access_key}\naws_secret_access_key = "
                f"{server().secret_key}\n")
    nothing_was_lost(a, bucket, units, before)


@test
def an_unknown_or_suspended_key_is_named():
    bucket = new_bucket(server())
    user = server().make_user("comes-later", "COMESLATER0000000001", "canary-of-the-later-user")
    server().admin("user", "suspend", "--uid=comes-later")
    bucket.allow("comes-later", ["s3:*"], ["s3:*"])
    a = Agent()
    a.config["destinations"] = [a.s3("s3", user, bucket)]
    units = [a.dump()]
    before = {u: tree(u) for u in units}
    a.start()
    error_of(a, "UserSuspended", (user.access_key, "AWS_ACCESS_KEY_ID", "account", "user"))
    server().admin("user", "enable", "--uid=comes-later")
    a.wait_all()
    a.stop()
    bucket.aws("delete-bucket-policy", "--bucket", bucket.name)
    assert {u: tree(u) for u in units} == before
    b = Agent()
    b.config["destinations"] = [b.s3(
        "s3", user.with_keys("NOBODYKNOWSTHISONE01", "canary-of-nobody"), new_bucket(server()))]
    b.dump()
    b.start()
    error_of(b, "InvalidAccessKeyId", ("AWS_ACCESS_KEY_ID", "access key"))
    b.stop()


@test
def a_missing_bucket_is_waited_for():
    bucket = new_bucket(server(), make=False)
    a = Agent()
    a.config["destinations"] = [a.s3("s3", server(), bucket)]
    units = [a.dump()]
    before = {u: tree(u) for u in units}
    a.start()
    error_of(a, bucket.name, "create bucket")
    bucket.make()
    nothing_was_lost(a, bucket, units, before)


@test
def without_permission_to_write_it_waits_and_names_the_action():
    bucket = new_bucket(server())
    writer = server().make_user("reader", "READER00000000000001", "canary-of-the-reader")
    bucket.allow("reader", ["s3:GetObject"], ["s3:ListBucket"])
    a = Agent()
    a.use_directories()
    a.config["destinations"] = [a.s3("s3", writer, bucket, part_size="5MiB")]
    units = [a.incompressible(65536, "1"), a.incompressible(11 * MIB, "2")]
    before = {u: tree(u) for u in units}
    a.start()
    error_of(a, "AccessDenied", "s3:PutObject")
    bucket.allow("reader", ["s3:GetObject", "s3:PutObject", "s3:AbortMultipartUpload",
                            "s3:ListMultipartUploadParts"],
                 ["s3:ListBucket", "s3:ListBucketMultipartUploads"])
    nothing_was_lost(a, bucket, units, before)


@test
def without_permission_to_head_the_reply_to_the_write_is_the_proof():
    bucket = new_bucket(server())
    writer = server().make_user("writer", "WRITER00000000000001", "canary-of-the-writer")
    bucket.allow("writer", ["s3:PutObject", "s3:AbortMultipartUpload"], deny=["s3:GetObject"])
    a = Agent()
    a.use_directories()
    a.config["destinations"] = [a.s3("s3", writer, bucket, part_size="5MiB")]
    units = [a.incompressible(65536, "1"), a.incompressible(11 * MIB, "2")]
    a.start()
    a.wait_known(2)
    a.wait_all()
    judge(a, bucket, units)
    for b in a.bundles():
        found = a.api(f"/v1/bundles/{b['id']}")["deliveries"]
        assert [d["proof"] for d in found] == ["response"], found
        assert "response" in a.cli("show", b["id"]).stdout
    a.stop()


@test
def a_full_quota_is_waited_for():
    user = server().make_user("tenant", "TENANT00000000000001", "canary-of-the-tenant")
    bucket = new_bucket(user)
    server().set_quota("tenant", 1 * MIB)
    a = Agent()
    a.use_directories()
    a.config["destinations"] = [a.s3("s3", user, bucket, part_size="5MiB")]
    units = [a.incompressible(3 * MIB, "1"), a.incompressible(11 * MIB, "2")]
    before = {u: tree(u) for u in units}
    a.start()
    error_of(a, "QuotaExceeded", "quota")
    server().set_quota("tenant", None)
    nothing_was_lost(a, bucket, units, before)


@test
def somebody_elses_object_under_our_key_is_replaced_since_it_is_no_bundle():
    bucket = new_bucket(server())
    a = Agent()
    a.config["destinations"] = [a.s3("s3", server(), bucket)]
    unit = a.dump()
    a.once()
    key, = bucket.bundles()
    bucket.delete(key.removesuffix(".tar.zst") + ".manifest.json")
    bucket.put(key, b"not a bundle at all")
    b = Agent()
    b.config["sources"] = a.config["sources"]
    b.config["destinations"] = a.config["destinations"]
    b.use_keys(server())
    b.start()
    b.wait_known(1)
    b.wait_all()
    judge(b, bucket, [unit])
    b.stop()


@test
def a_different_bundle_under_our_key_is_never_overwritten():
    bucket = new_bucket(server())
    a = Agent()
    a.config["destinations"] = [a.s3("s3", server(), bucket)]
    unit = a.dump()
    assert a.once().returncode == 0
    key, = bucket.bundles()
    manifest = key.removesuffix(".tar.zst") + ".manifest.json"
    first = {k: bucket.read(k) for k in (key, manifest)}
    name = sorted(os.listdir(unit))[0]
    stamp = os.stat(os.path.join(unit, name))
    with open(os.path.join(unit, name), "r+b") as f:
        f.write(b"another content")
    os.utime(os.path.join(unit, name), ns=(stamp.st_atime_ns, stamp.st_mtime_ns + 1))
    b = Agent()
    b.config["sources"] = a.config["sources"]
    b.config["destinations"] = a.config["destinations"]
    b.use_keys(server())
    b.start()
    b.wait_known(1)
    b.wait_delivered(2)
    b.wait_all()
    assert {k: bucket.read(k) for k in (key, manifest)} == first, "it was overwritten"
    late, = [k for k in bucket.bundles() if k != key]
    late = json.loads(bucket.read(late.removesuffix(".tar.zst") + ".manifest.json"))
    assert [m["path"] for m in late["members"]] == [name], "what differs is not in a supplement"
    b.stop()


@test
def slow_down_is_obeyed():
    bucket = new_bucket(server())
    a = Agent()
    a.use_directories()
    proxy, way = through(server())
    a.config["destinations"] = [a.s3("s3", way, bucket, part_size="5MiB")]
    proxy.rate = 8 * MIB  # so that several parts are under way, however slowly they are made
    units = [a.incompressible(33 * MIB)]
    before = {u: tree(u) for u in units}
    server().set_option("rgw_max_concurrent_requests", 1)
    try:
        a.start()
        wait_for("the server has said SlowDown", lambda: 'code="503"' in a.curl("/metrics").stdout,
                 30)
    finally:
        server().set_option("rgw_max_concurrent_requests", 1024)
    nothing_was_lost(a, bucket, units, before)


@test
def a_server_that_is_away_for_a_while_gets_everything_when_it_is_back():
    proxy, way = through(server())
    bucket = new_bucket(server())
    a = Agent()
    a.config["destinations"] = [a.s3("s3", way, bucket)]
    proxy.refuse()
    units = [a.dump(size=65536, cluster_id=f"{i:016x}", pid=i) for i in range(1, 6)]
    before = {u: tree(u) for u in units}
    a.start()
    error_of(a, ("refused", "connect"), f"127.0.0.1:{proxy.port}")
    proxy.accept()
    nothing_was_lost(a, bucket, units, before)


def with_cut_connections(s3):
    """Of a dozen connections one carries a part of 5 MiB, so that most attempts end by a cut and
    the upload advances all the same."""
    proxy, way = through(s3)
    a = Agent()
    a.use_directories()
    a.config["destinations"] = [a.s3("s3", way, "bucket", part_size="5MiB", connections=1)]
    a.config["limits"] = {"compression_threads": 2}
    a.config["retry"] = {"initial": "50ms", "maximum": "200ms", "quarantine_after": 3}
    proxy.budgets = itertools.cycle([3 * MIB] * 11 + [8 * MIB])
    a.incompressible(40 * MIB)
    return a


@test
def cut_connections_are_the_network_s_fault_however_many_there_are():
    with S3Server() as s3:
        a = with_cut_connections(s3)
        a.start()
        a.wait_known(1)
        a.wait_all("300s")
        assert a.counts()["quarantined"] == 0 and a.bundles()[0]["attempts"] == 0, a.bundles()
        assert len(s3.objects) == 2, list(s3.objects)
        a.stop()


@test
def once_outlives_cut_connections_while_the_upload_advances():
    with S3Server() as s3:
        a = with_cut_connections(s3)
        result = a.once("--timeout", "300s", timeout=600)
        assert result.returncode == 0, result.stdout + result.stderr
        assert len(s3.objects) == 2, list(s3.objects)


@test
def a_proxy_that_is_away_is_named_and_not_the_store():
    forward = ForwardProxy(server())
    bucket = new_bucket(server())
    a = Agent()
    a.config["destinations"] = [a.s3("s3", server(), bucket, proxy=forward.endpoint)]
    forward.refuse()
    units = [a.dump(size=65536)]
    before = {u: tree(u) for u in units}
    a.start()
    error_of(a, "proxy", str(forward.port))
    forward.accept()
    nothing_was_lost(a, bucket, units, before)


@test
def a_name_that_cannot_be_resolved_is_named():
    a = Agent()
    a.config["destinations"] = [a.s3("s3", server(), "some-bucket",
                                     endpoint="http://store.invalid:9000")]
    a.dump()
    a.start()
    error_of(a, "store.invalid", ("resolve", "name"))
    a.stop()


@test
def another_region_is_learned_and_a_wrong_one_is_reported():
    with S3Server(bucket="elsewhere", region="eu-central-1") as s3:
        s3.ca_file = None
        a = Agent()
        a.config["destinations"] = [a.s3("s3", s3, "elsewhere", region="us-east-1")]
        a.dump()
        a.start()
        a.wait_delivered(1)
        assert "eu-central-1" in a.log, "nobody is told that the configured region is wrong"
        assert len([k for k in s3.objects if k.endswith(".manifest.json")]) == 1, list(s3.objects)
        a.stop()


@test
def a_clock_that_is_wrong_is_no_obstacle_and_is_reported():
    with S3Server(bucket="late") as s3:
        s3.ca_file = None
        s3.clock_offset = 3600
        a = Agent()
        a.config["destinations"] = [a.s3("s3", s3, "late")]
        a.dump()
        a.start()
        a.wait_delivered(1)
        refused = [r for r in s3.log if r.code == "RequestTimeTooSkewed"]
        assert 1 <= len(refused) <= 3, "the offset was not learned"
        assert "clock" in a.cli("--config", a.config_file, "doctor").stdout
        a.stop()


@test
def a_bucket_of_another_owner_is_refused_until_the_configuration_is_fixed():
    with S3Server(bucket="owned") as s3:
        s3.ca_file = None
        s3.owner = "111122223333"
        a = Agent()
        a.config["destinations"] = [a.s3("s3", s3, "owned", expected_bucket_owner="444455556666")]
        a.dump()
        a.start()
        error_of(a, "expected_bucket_owner")
        assert not s3.objects
        a.config["destinations"][0]["expected_bucket_owner"] = "111122223333"
        a.write_config()
        a.reload()
        a.wait_delivered(1)
        a.stop()


@test
def checksums_that_real_servers_here_ignore_are_right():
    # The programmable server compares x-amz-checksum-sha256 with the body, which neither Ceph nor
    # Swift does.
    with S3Server(bucket="strict") as s3:
        s3.ca_file = None
        a = Agent()
        a.use_directories()
        a.config["destinations"] = [a.s3("s3", s3, "strict", part_size="5MiB")]
        units = [a.incompressible(65536, "1"), a.incompressible(17 * MIB, "2")]
        a.start()
        a.wait_known(2)
        a.wait_all()
        assert sorted(len(o.body) > MIB for o in s3.objects.values()) == [False, False, False, True]
        assert not [r for r in s3.log if r.status >= 400
                    and r.status != 404], [(r.operation, r.status, r.code) for r in s3.log]
        assert s3.counts()["UploadPart"] in (3, 4) and not s3.uploads
        assert units
        a.stop()


@test
def faults_in_every_operation_are_lived_through():
    for operation in ("CreateMultipartUpload", "UploadPart", "CompleteMultipartUpload",
                      "PutObject", "HeadObject"):
        with S3Server(bucket="moody") as s3:
            s3.ca_file = None
            s3.fault(operation, status=500, code="InternalError", times=2)
            s3.fault(operation, status=503, code="SlowDown", headers={"Retry-After": "1"})
            s3.fault(operation, drop="head")
            if operation != "HeadObject":
                s3.fault(operation, drop="answer", done=True)
            a = Agent()
            a.use_directories()
            a.config["destinations"] = [a.s3("s3", s3, "moody", part_size="5MiB")]
            a.incompressible(11 * MIB)
            a.start()
            a.wait_known(1)
            a.wait_all()
            assert not s3.faults, f"{operation} was asked too seldom: {s3.faults}"
            assert sorted(len(o.body) > MIB for o in s3.objects.values()) == [False, True], (
                operation, list(s3.objects))
            wait_for(f"no upload is left after faults of {operation}", lambda s3=s3: not s3.uploads)
            a.stop()


@contextlib.contextmanager
def without_packing(a):
    """Holds the thread that packs, by ptrace(2), as if it got no CPU. The rest of the agent goes
    on."""
    def its_thread():
        for path in glob.glob(f"/proc/{a.pid}/task/*/comm"):
            with open(path, encoding="ascii") as f:
                if f.read() == "nc-pack\n":
                    return int(path.split("/")[4])
        return 0
    seize, interrupt, detach, wall = 0x4206, 0x4207, 17, 0x40000000
    libc, tid = ctypes.CDLL(None, use_errno=True), wait_for("a thread packs", its_thread)
    for request in (seize, interrupt):
        if libc.ptrace(request, tid, None, None) != 0:
            raise Skip(f"cannot hold a thread: {os.strerror(ctypes.get_errno())}")
    os.waitpid(tid, wall)
    try:
        yield
    finally:
        libc.ptrace(detach, tid, None, None)


@test
def a_store_that_waits_for_our_data_is_not_blamed_and_one_that_is_silent_is():
    with S3Server() as waiting, S3Server() as silent:
        ours, theirs = Agent(), Agent()
        for a, s3 in ((ours, waiting), (theirs, silent)):
            a.use_directories()
            a.config["destinations"] = [a.s3("s3", s3, "bucket", part_size="5MiB",
                                             request_timeout="10m")]
            a.incompressible(24 * MIB)
        ours.config["limits"] = {"read_rate": "1MiB/s"}
        silent.fault("UploadPart", stall="answer", times=None)
        for a in (ours, theirs):
            a.start()
            a.wait_known(1)
        waiting.wait_for("a part has arrived", lambda: waiting.seen("UploadPart"))
        with without_packing(ours):
            blamed = wait_for("the silent store is found out",
                              lambda: destination(theirs)["last_error"], 90, every=1)
            assert blamed.startswith(
                "no answer for ") and "the store does not answer" in blamed, blamed
            assert destination(theirs)["state"] == "failing", destination(theirs)
            said = wait_for("it is said that nothing comes",
                            lambda: destination(ours)["last_error"], 90, every=1)
            assert said.startswith("nothing to send for ") and "store" not in said, said
            assert destination(ours)["state"] == "ok" and ours.curl(
                "/readyz").returncode == 0, destination(ours)
            assert [r.status for r in waiting.log if r.status >= 400
                    and r.operation != "HeadObject"] == [], waiting.story()
        theirs.kill()
        ours.wait_all()
        assert destination(ours)["last_error"] is None, destination(ours)
        ours.stop()


if __name__ == "__main__":
    sys.exit(main(cleanup))
