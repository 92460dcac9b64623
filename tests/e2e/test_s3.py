#!/usr/bin/env python3
"""Delivery to S3 as it should be: a real server, judged with rclone, the AWS CLI, tar and zstd."""
import base64
import os
import sys

sys.dont_write_bytecode = True  # the source tree may be read-only, and is packed as it is
sys.path.insert(0, os.path.join(os.path.dirname(os.path.realpath(__file__)), "..", "harness"))
# pylint: disable=wrong-import-position
import certs
import make_dump
import radosgw
from agent import Agent, check_bundle, cleanup, is_instrumented, object_of, wait_for
from s3_server import S3Server
from s3tools import judge, new_bucket
from servers import Home
from tap import main, notes, test
from tcp_proxy import ForwardProxy, through

PLAN = "x-amz-meta-neuron-collectd-plan"
_made = {}


def certificates():
    radosgw.need_radosgw()
    if "certs" not in _made:
        _made["certs"] = certs.make(Home("certs").dir)
    return _made["certs"]


def server():
    """One for all tests here: plain, TLS, IPv6, and bucket.localhost."""
    c = certificates()
    return radosgw.shared(certificate=c.good, ca_file=c.ca, dns_name="localhost")


def destination(a, name="s3"):
    return next(d for d in a.status()["destinations"] if d["name"] == name)


def deliveries(a):
    return [d for b in a.bundles() for d in a.api(f"/v1/bundles/{b['id']}")["deliveries"]]


@test
def a_lone_small_bundle_needs_three_requests_and_waits_for_no_other_node():
    with S3Server() as s3:
        a = Agent()
        a.use_directories(settle="0s")
        a.config["retry"] = {"initial": "1h", "maximum": "1h"}  # the jitter is as long
        a.config["destinations"] = [a.s3("s3", s3, "bucket")]
        a.start()
        a.cli("flush")  # all nodes may have started now: the first question waits, too
        wait_for("its bucket can be written", lambda: s3.seen("ListMultipartUploads"))
        a.incompressible(1000)
        a.wait_known(1)
        a.wait_delivered(1)
        asked = [r.operation for r in s3.log]
        assert asked[asked.index("PutObject"):] == ["PutObject", "HeadObject", "PutObject"], asked
        assert "HeadObject" not in asked[:asked.index("PutObject")], asked
        assert [d["proof"] for d in deliveries(a)] == ["head"]
        a.stop()


@test
def a_small_bundle_is_one_conditional_put_and_the_manifest_comes_last():
    proxy, way = through(server())
    bucket = new_bucket(server())
    a = Agent()
    a.config["destinations"] = [a.s3("s3", way, bucket)]
    unit = a.dump(size=1 << 20)
    a.start()
    a.wait_known(1)
    a.wait_all()
    m = judge(a, bucket, [unit], tools=("tar", "bsdtar", "tarfile"))[unit]
    assert len(m["bundle"]["parts"]) == 1, m["bundle"]
    puts = [r for r in proxy.requests if r.method in ("PUT", "POST")]
    assert [r.key.rpartition("/")[2] for r in puts] == [m["bundle"]["object"],
                                                        m["bundle"]["id"] + ".manifest.json"], puts
    for r in puts:
        assert r.status == 200 and r.headers.get("if-none-match") == "*", (r.headers, r.status)
        assert r.headers[PLAN] == m["bundle"]["plan"]
        assert r.headers.get("content-type"), r.headers
        # Ceph ignores it, right or wrong, so it is compared here.
        assert r.headers["x-amz-checksum-sha256"] == base64.b64encode(
            bytes.fromhex(r.headers["x-amz-content-sha256"])).decode(), r.headers
    assert puts[0].headers["x-amz-content-sha256"] == m["bundle"]["parts"][0]["sha256"]
    assert deliveries(a)[0]["proof"] == "head", deliveries(a)
    assert destination(a)["state"] == "ok" and destination(a)["type"] == "s3", destination(a)
    a.assert_sum()
    a.stop()


@test
def a_large_bundle_goes_up_in_parts_is_proven_by_head_and_leaves_nothing_over():
    proxy, way = through(server())
    bucket = new_bucket(server())
    a = Agent()
    a.use_directories()
    a.config["destinations"] = [a.s3("s3", way, bucket, part_size="5MiB")]
    mib = 18 if is_instrumented() else 33
    unit = a.incompressible(mib << 20)
    a.start()
    a.wait_known(1)
    a.wait_all()
    m = judge(a, bucket, [unit], tools=("tar", "bsdtar"))[unit]
    parts = m["bundle"]["parts"]
    assert mib // 8 <= len(parts) <= mib // 5 + 1, parts
    assert all(p["bytes"] >= 5 << 20 for p in parts[:-1]), parts
    key = next(k for k in bucket.objects() if k.endswith(".tar.zst"))
    head = bucket.head(key)
    assert head["ETag"].strip('"').endswith(f"-{len(parts)}"), head
    done = [(r.method, "part" if r.part else "uploads" if "uploads" in r.query else "complete"
             if "uploadId" in r.query else r.key.rpartition(".")[2])
            for r in proxy.requests if r.key.startswith(key.removesuffix(".tar.zst"))]
    assert ("PUT", "zst") not in done, done
    order = [step for i, step in enumerate(done) if i == 0 or done[i - 1] != step]
    wanted = [("POST", "uploads"), ("PUT", "part"), ("POST", "complete"), ("HEAD", "zst"),
              ("PUT", "json")]
    at = iter(order)
    assert all(step in at for step in wanted), order
    sent = {n: tries for n, tries in proxy.part_bodies().items()}
    assert sent == {n: [p["bytes"]] for n, p in enumerate(parts, 1)}, sent
    by_number = {r.part: r for r in proxy.requests if r.part}
    for n, part in enumerate(parts, 1):
        assert by_number[n].headers["x-amz-content-sha256"] == part["sha256"]
        assert by_number[n].headers["x-amz-checksum-sha256"] == base64.b64encode(
            bytes.fromhex(part["sha256"])).decode()
    complete = next(r for r in proxy.requests if r.method == "POST" and "uploadId" in r.query)
    assert complete.headers.get("if-none-match") == "*", complete.headers
    assert deliveries(a)[0]["proof"] == "head" and deliveries(a)[0]["sent_bytes"] >= m["bundle"][
        "bytes"], deliveries(a)
    a.stop()


@test
def progress_is_seen_while_it_is_on_its_way():
    proxy, way = through(server())
    bucket = new_bucket(server())
    a = Agent()
    a.use_directories()
    a.config["destinations"] = [a.s3("s3", way, bucket, part_size="5MiB", connections=2)]
    unit = a.incompressible(30 << 20)
    proxy.hold_after(8 << 20)  # in the middle of the first two parts: none is there yet
    a.start()
    wait_for("the wire stands still", proxy.is_holding)
    shipping = wait_for("it is being shipped", lambda: a.status()["shipping"])[0]
    assert shipping["destination"] == "s3", shipping
    notes.append(f"{proxy.part_bytes} bytes of parts are on the wire")
    seen = []
    notes.append(seen)

    def is_seen(field):
        seen.append((field, a.status()["shipping"][0][field]))
        return 4 << 20 <= seen[-1][1] <= 20 << 20
    wait_for("what is sent is seen", lambda: is_seen("sent_bytes"), 5)
    wait_for("how far it is is seen", lambda: is_seen("done_bytes"), 5)
    assert a.status()["shipping"][0]["total_bytes"] >= 30 << 20, a.status()["shipping"]
    assert "s3" in a.cli("status").stdout
    assert bucket.uploads() and not bucket.objects()
    proxy.release()
    a.wait_all()
    judge(a, bucket, [unit])
    metrics = a.curl("/metrics").stdout
    assert ('neuron_collectd_requests_total{destination="s3",operation="UploadPart",code="200"}'
            in metrics), metrics
    assert 'neuron_collectd_destination_up{destination="s3"} 1' in metrics, metrics
    a.stop()


@test
def it_goes_over_tls_with_a_ca_of_its_own():
    way = server().tls
    bucket = new_bucket(server())
    a = Agent()
    a.config["destinations"] = [a.s3("s3", way, bucket, part_size="5MiB")]
    units = [a.dump(size=1 << 20, cluster_id="000000000000000a", pid=1),
             a.dump(size=40 << 20, cluster_id="000000000000000b", pid=2)]
    a.start()
    a.wait_known(2)
    a.wait_all()
    judge(a, bucket, units)
    a.stop()


@test
def a_certificate_that_is_expired_unsigned_or_for_another_host_is_refused_until_it_is_fixed():
    c = certificates()
    for fault, words in ((c.expired, ("expired",)), (c.wrong_host, ("127.0.0.1", "name")),
                         (c.unsigned, ("certificate", "ca_file"))):
        proxy, way = through(server(), certificate=fault, ca_file=c.ca)
        bucket = new_bucket(server())
        a = Agent()
        a.config["destinations"] = [a.s3("s3", way, bucket)]
        unit = a.dump(size=65536)
        a.start()
        error = wait_for("the destination says what is wrong",
                         lambda: destination(a)["last_error"], 20)
        assert "certificate" in error.lower() and any(w in error for w in words), (fault, error)
        assert not bucket.objects() and not proxy.requests, "something was sent to somebody unknown"
        proxy.tls.load_cert_chain(c.good)
        a.wait_all()
        judge(a, bucket, [unit])
        a.stop()
        proxy.close()


@test
def keys_with_awkward_names_are_the_same_for_everybody():
    bucket = new_bucket(server())
    a = Agent()
    a.config["node"]["instance_id"] = "i-0a1b2c3d4e5f60718"
    units, prefixes = [], ("blank s/plus+/equals=/%%41/star*/tilde~", "ümläut/日本語/🙂",
                           "%k/%n/%i/%p", "a'b\"c/(d)[e]{f}/g!h@i$j,k;l:m", "x&y/q?r#s/t^u|v`w<z>")
    a.config["sources"] = []
    a.config["destinations"] = []
    for i, prefix in enumerate(prefixes):
        root = a.path(f"dumps{i}")
        a.config["sources"].append(a.source(f"source-{i}", "neuron-core-dump",
                                            f"dumps{i}/dt-%d-cid-%c", destinations=[f"s3-{i}"]))
        a.config["destinations"].append(a.s3(f"s3-{i}", server(), bucket,
                                             prefix=f"{i}/{prefix}/%d-%c"))
        units.append(os.path.join(root, "dt-20260527-051233-cid-d99e36ea74c263ca"))
    for i, unit in enumerate(units):
        assert make_dump.make_dump(os.path.dirname(unit), size=65536, seed=i) == unit
    a.start()
    a.wait_known(len(units))
    a.wait_all()
    judge(a, bucket, units)
    keys = bucket.objects_by_aws()
    tail = "20260527-051233-d99e36ea74c263ca/i-0a1b2c3d4e5f60718/neuron-core-dump-20260527T051233-"
    for i, prefix in enumerate(prefixes):
        spelled = {2: "neuron-core-dump/source-2/i-0a1b2c3d4e5f60718/unknown"}.get(
            i, prefix.replace("%%", "%"))
        hits = [k for k in keys if k.startswith(f"{i}/")]
        assert len(hits) == 2, (prefix, hits)
        assert all(k.startswith(f"{i}/{spelled}/{tail}") or i == 2 for k in hits), (spelled, hits)
    a.stop()


@test
def a_key_of_1024_bytes_works():
    bucket = new_bucket(server())
    a = Agent()
    a.use_directories()
    # 748 bytes, 33 of %d-%c, 170 of ten cluster ids, 73 of instance, bundle and suffix
    prefix = ("p" * 99 + "/") * 7 + "p" * 48 + "/%d-%c" + "/%c" * 10
    a.config["destinations"] = [a.s3("s3", server(), bucket, prefix=prefix, part_size="5MiB")]
    unit = a.incompressible(12 << 20)
    a.start()
    a.wait_known(1)
    a.wait_all()
    judge(a, bucket, [unit])
    assert max(map(len, bucket.objects_by_aws())) == 1024, [len(k) for k in bucket.objects_by_aws()]
    a.stop()


@test
def a_volume_and_a_bucket_are_served_independently():
    proxy, way = through(server())
    bucket = new_bucket(server())
    a = Agent()
    a.config["destinations"].append(a.s3("s3", way, bucket))
    proxy.refuse()
    unit = a.dump(size=3 << 20)
    a.start()
    wait_for("the volume has it", a.manifests)
    check_bundle(a.only_manifest()[0], unit, tools=("tar",))
    wait_for("the bucket is missed", lambda: destination(a)["last_error"])
    assert a.counts()["delivered"] == 0
    states = {d["destination"]: d["state"] for d in deliveries(a)}
    assert states["archive"] == "delivered" and states["s3"] != "delivered", states
    proxy.accept()
    a.wait_all()
    manifest = judge(a, bucket, [unit])[unit]
    with open(object_of(a.only_manifest()[0]), "rb") as f:
        assert f.read() == bucket.read(next(k for k in bucket.objects() if k.endswith(
            ".tar.zst"))), "two destinations, two contents"
    assert manifest["bundle"]["plan"] == a.only_manifest()[1]["bundle"]["plan"]
    a.stop()


@test
def ipv6_and_virtual_host_addressing_work():
    bucket = new_bucket(server())
    a = Agent()
    a.config["destinations"] = [a.s3("s3", server().over_ipv6, bucket)]
    first = a.dump(size=65536, cluster_id="000000000000000a", pid=1)
    a.start()
    a.wait_known(1)
    a.wait_all()
    a.stop()
    a.config["destinations"][0] |= {"endpoint": f"http://localhost:{server().port}",
                                    "addressing": "virtual"}
    second = a.dump(size=65536, cluster_id="000000000000000b", pid=2)
    a.start()
    a.wait_delivered(2)
    judge(a, bucket, [first, second])
    a.stop()


@test
def a_proxy_is_used_for_http_and_tunnelled_through_for_https():
    for way in (server(), server().tls):
        forward = ForwardProxy(server())
        bucket = new_bucket(server())
        a = Agent()
        a.config["destinations"] = [a.s3("s3", way, bucket, proxy=forward.endpoint)]
        unit = a.dump(size=65536)
        a.start()
        a.wait_known(1)
        a.wait_all()
        judge(a, bucket, [unit])
        assert forward.targets and set(forward.targets) == {
            way.endpoint.partition("://")[2]}, forward.targets
        a.stop()
        forward.close()


@test
def encryption_storage_class_and_tags_are_asked_for():
    bucket = new_bucket(server())
    proxy, way = through(server())
    a = Agent()
    a.use_directories()
    a.config["destinations"] = [a.s3("s3", way, bucket, sse="aws:kms", kms_key_id="testkey-1",
                                     storage_class="STANDARD", part_size="5MiB",
                                     tags={"team": "ml + ops", "cost": "a=b"})]
    units = [a.incompressible(65536, "1"), a.incompressible(11 << 20, "2")]
    a.start()
    a.wait_known(2)
    a.wait_all()
    judge(a, bucket, units)
    for key in bucket.objects():
        head = bucket.head(key)
        assert head["ServerSideEncryption"] == "aws:kms" and head[
            "SSEKMSKeyId"] == "testkey-1", head
    small = min((k for k in bucket.objects() if k.endswith(".tar.zst")), key=bucket.objects().get)
    tags = bucket.aws("get-object-tagging", "--bucket", bucket.name, "--key", small)["TagSet"]
    assert {t["Key"]: t["Value"] for t in tags} == {"team": "ml + ops", "cost": "a=b"}, tags
    created = [r for r in proxy.requests if r.method == "POST" and "uploads" in r.query]
    assert created and all("x-amz-tagging" in r.headers
                           and r.headers["x-amz-storage-class"] == "STANDARD" for r in created)
    assert not any("x-amz-server-side-encryption" in r.headers for r in proxy.requests
                   if r.part), "UploadPart does not take it"
    a.stop()


@test
def an_object_lock_bucket_accepts_deliveries():
    bucket = new_bucket(server(), make=False)
    bucket.aws("create-bucket", "--bucket", bucket.name, "--object-lock-enabled-for-bucket")
    bucket.aws("put-object-lock-configuration", "--bucket", bucket.name,
               "--object-lock-configuration", '{"ObjectLockEnabled": "Enabled", "Rule": '
               '{"DefaultRetention": {"Mode": "GOVERNANCE", "Days": 1}}}')
    a = Agent()
    a.use_directories()
    a.config["destinations"] = [a.s3("s3", server(), bucket, part_size="5MiB")]
    units = [a.incompressible(65536, "1"), a.incompressible(11 << 20, "2")]
    a.start()
    a.wait_known(2)
    a.wait_all()
    judge(a, bucket, units)
    a.stop()


@test
def once_delivers_to_a_bucket_and_exits_0_and_1_when_it_cannot():
    bucket = new_bucket(server())
    proxy, way = through(server())
    a = Agent()
    a.config["destinations"] = [a.s3("s3", way, bucket, part_size="5MiB")]
    units = [a.dump(size=1 << 20, cluster_id="000000000000000a", pid=1),
             a.dump(size=40 << 20, cluster_id="000000000000000b", pid=2)]
    result = a.once()
    assert result.returncode == 0, result.stdout + result.stderr
    judge(a, bucket, units)
    proxy.forget()
    assert a.once().returncode == 0
    assert not [r for r in proxy.requests if r.method == "PUT"
                and r.key], "delivered, and yet sent again"
    proxy.refuse()
    a.dump(size=65536, cluster_id="000000000000000c", pid=3)
    result = a.once("--timeout", "2s")
    assert result.returncode == 1 and "neuron-core-dump-" in result.stdout, (
        result.returncode, result.stdout)


@test
def a_reload_in_the_middle_of_an_upload_disturbs_nothing():
    proxy, way = through(server())
    bucket = new_bucket(server())
    a = Agent()
    a.use_directories()
    a.config["destinations"] = [a.s3("s3", way, bucket, part_size="5MiB", connections=2)]
    unit = a.incompressible(30 << 20)
    proxy.hold_after(12 << 20)
    a.start()
    wait_for("the wire stands still", proxy.is_holding)
    loaded = a.status()["config"]["loaded"]
    a.config["node"]["labels"] = {"cluster": "other"}
    a.write_config()
    a.reload()
    wait_for("the configuration is loaded anew", lambda: a.status()["config"]["loaded"] != loaded)
    proxy.release()
    a.wait_all()
    judge(a, bucket, [unit])
    sent = sum(sum(tries) for tries in proxy.part_bodies().values())
    size = max(bucket.objects().values())
    assert sent <= size + 2 * (8 << 20), (sent, size)
    a.stop()


@test
def a_reload_that_moves_the_destination_delivers_to_the_new_bucket():
    proxy, way = through(server())
    old, new = new_bucket(server()), new_bucket(server())
    a = Agent()
    a.use_directories()
    a.config["destinations"] = [a.s3("s3", way, old, part_size="5MiB", connections=2)]
    unit = a.incompressible(30 << 20)
    proxy.hold_after(12 << 20)
    a.start()
    wait_for("the wire stands still", proxy.is_holding)
    assert old.uploads()
    loaded = a.status()["config"]["loaded"]
    a.config["destinations"][0]["bucket"] = new.name
    a.write_config()
    a.reload()
    wait_for("the configuration is loaded anew", lambda: a.status()["config"]["loaded"] != loaded)
    proxy.release()
    a.wait_all()
    judge(a, new, [unit])
    assert not old.objects()
    a.stop()


@test
def two_agents_with_one_instance_id_make_one_object():
    bucket = new_bucket(server())
    a = Agent()
    a.use_directories()
    a.config["destinations"] = [a.s3("s3", server(), bucket, part_size="5MiB")]
    b = Agent()
    b.config["sources"] = a.config["sources"]
    b.config["destinations"] = [b.s3("s3", server(), bucket, part_size="5MiB")]
    units = [a.incompressible(65536, "1"), a.incompressible(22 << 20, "2")]
    a.start()
    b.start()
    for one in (a, b):
        one.wait_known(2)
        one.wait_all()
    judge(a, bucket, units)
    a.stop()
    b.stop()


@test
def a_dump_that_grows_later_goes_out_as_a_supplement():
    bucket = new_bucket(server())
    a = Agent()
    a.config["destinations"] = [a.s3("s3", server(), bucket)]
    unit = a.dump(size=65536)
    a.start()
    a.wait_known(1)
    a.wait_all()
    with open(os.path.join(unit, "late.log"), "wb") as f:
        f.write(b"too late for the first\n")
    wait_for("a supplement is there", lambda: len(bucket.manifests()) == 2)
    assert [k for k in bucket.manifests() if k.endswith("-s1.manifest.json")], bucket.manifests()
    a.stop()


if __name__ == "__main__":
    sys.exit(main(cleanup))
