#!/usr/bin/env python3
"""An upload that was cut goes on where it stopped: kill -9, the server's death, the network's; one
object, bit for bit, no upload left."""
import glob
import os
import random
import shutil
import sys

sys.dont_write_bytecode = True  # the source tree may be read-only, and is packed as it is
sys.path.insert(0, os.path.join(os.path.dirname(os.path.realpath(__file__)), "..", "harness"))
# pylint: disable=wrong-import-position
import make_dump
import radosgw
from agent import Agent, check_bundle, cleanup, is_instrumented, process_io, tree, wait_for
from s3tools import fake_time, judge, new_bucket
from tap import figures, main, notes, test
from tcp_proxy import through

MIB = 1 << 20
KILL_BYTES = make_dump.parse_size(os.environ.get("NC_S3_KILL_BYTES", "192MiB"))
CONNECTIONS = 3
PART = 5 * MIB
# A part is a run of whole frames (about 2 MiB of input each) and is closed by the frame that fills
# it.
LARGEST_PART = PART + 3 * MIB


def server():
    return radosgw.shared()


def agent_through_a_wire(size, bucket=None, units=1, **more):
    """An agent with incompressible directories whose way to the bucket a test can hold and cut.
    @return (agent, bucket, proxy, units)"""
    proxy, way = through(server())
    bucket = bucket or new_bucket(server())
    a = Agent()
    a.use_directories()
    a.config["destinations"] = [a.s3("s3", way, bucket, part_size="5MiB", connections=CONNECTIONS,
                                     **more)]
    made = [a.incompressible(size, str(i + 1)) for i in range(units)]
    return a, bucket, proxy, made


def sent_parts(proxy):
    return sum(sum(tries) for tries in proxy.part_bodies().values())


def start_until(a, proxy, part_bytes):
    """Starts the daemon and comes back when so many more bytes of parts are on the wire, which then
    stands still."""
    proxy.hold_after(part_bytes)
    a.start(wait=False)
    wait_for("the wire stands still in the middle of the upload", proxy.is_holding, 60)


def kill_held(a, proxy):
    a.kill()
    proxy.cut()  # what stood on the wire is lost, as it is when a machine dies


def object_size(bucket):
    return max(bucket.objects().values())


@test
def kill_9_at_every_tenth_of_an_upload_sends_no_more_than_the_parts_in_flight_twice():
    a, bucket, proxy, units = agent_through_a_wire(KILL_BYTES)
    kills = 9
    for i in range(kills):
        start_until(a, proxy, KILL_BYTES // 10)
        if i == kills - 1:
            read_before_the_end = process_io(a.pid)["rchar"]
        kill_held(a, proxy)
        assert not bucket.bundles() and len(bucket.uploads()) == 1, (bucket.objects(),
                                                                     bucket.uploads())
    a.start()
    a.wait_known(1)
    a.wait_all("300s")
    read_at_the_end = process_io(a.pid)["rchar"]
    manifest = judge(a, bucket, units)[units[0]]
    excess = sent_parts(proxy) - manifest["bundle"]["bytes"]
    largest = max(p["bytes"] for p in manifest["bundle"]["parts"])
    figures.append(f"S3: {kills} kills in {KILL_BYTES / MIB:.0f} MiB: {excess / MIB:.1f} MiB sent "
                   f"twice, at most {kills * CONNECTIONS * largest / MIB:.0f} "
                   f"MiB were in flight; last run read {read_at_the_end / MIB:.1f} MiB")
    assert largest <= LARGEST_PART, largest
    assert excess <= kills * CONNECTIONS * largest, (excess, largest)
    twice = {n: tries for n, tries in proxy.part_bodies().items() if len(tries) > 1}
    assert all(len(tries) <= kills + 1 for tries in twice.values()), twice
    tries_sent_whole = {n: t for n, t in twice.items()
                        if t.count(manifest["bundle"]["parts"][n - 1]["bytes"]) > 1}
    notes.append(f"sent whole more than once: {tries_sent_whole}")
    # The last tenth is read again, not the nine before it.
    assert read_at_the_end <= KILL_BYTES * 4 // 10 + 32 * MIB, (read_at_the_end,
                                                                read_before_the_end)
    assert bucket.head(bucket.bundles()[0])["ETag"].strip('"').endswith(
        f"-{len(manifest['bundle']['parts'])}")
    a.assert_sum()
    a.stop()
    assert a.sql("pragma integrity_check") == "ok"


@test
def kill_9_at_random_moments_leaves_one_object_for_each_dump():
    seed = int(os.environ.get("NC_SEED", "20260527"))
    notes.append(f"again with NC_SEED={seed}")
    rng = random.Random(seed)
    bucket = new_bucket(server())
    a = Agent()
    a.config["sources"][0]["settle"] = "100ms"
    a.config["destinations"] = [a.s3("s3", server(), bucket, part_size="5MiB")]
    units = []
    for _ in range(10 if not is_instrumented() else 4):
        a.start()
        for _ in range(rng.randrange(1, 3)):
            n = len(units) + 1
            units.append(a.dump(size=rng.choice((4096, 300_000, 24 * MIB)), cluster_id=f"{n:016x}",
                                pid=1000 + n, seed=n))
        wanted = rng.choice(("settling", "ready", "shipping", "delivered"))
        before = a.counts()["delivered"]
        try:
            wait_for("the moment has come", lambda: a.counts()[wanted] if wanted != "delivered"
                     else a.counts()["delivered"] > before,  # pylint: disable=cell-var-from-loop
                     2, every=0.001)
        except AssertionError:
            pass  # it was too short to be seen: any moment is as good
        a.kill()
    a.start()
    a.wait_delivered(len(units))
    a.wait_all()
    wait_for("no upload is left", lambda: not bucket.uploads())
    judge(a, bucket, units)
    assert a.assert_sum()["delivered"] == len(units)
    a.stop()


@test
def kill_9_between_the_object_and_its_manifest_sends_only_the_manifest():
    a, bucket, proxy, units = agent_through_a_wire(12 * MIB)
    seen = proxy.note_request

    def stop_at_the_manifest(request):
        seen(request)
        if request.method == "PUT" and request.key.endswith(".manifest.json"):
            proxy.hold()
    proxy.note_request = stop_at_the_manifest
    a.start(wait=False)
    wait_for("the manifest is being sent", proxy.is_holding, 60)
    proxy.note_request = seen
    kill_held(a, proxy)
    assert bucket.bundles() and not bucket.manifests()
    proxy.forget()
    a.start()
    a.wait_delivered(1)
    judge(a, bucket, units)
    assert not proxy.part_bodies() and len([r for r in proxy.requests
                                            if r.method == "PUT"]) == 1, proxy.requests
    a.stop()


@test
def kill_9_before_create_or_complete_is_answered_leaves_no_upload_behind():
    for step in ("uploads", "uploadId"):
        a, bucket, proxy, units = agent_through_a_wire(12 * MIB)
        down = proxy.gate

        def hold_the_answer(n, step=step, proxy=proxy, down=down):
            if not n and any(r.method == "POST" and step in r.query and r.body_bytes == r.length
                             for r in list(proxy.requests)):
                proxy.hold()
            down(n)
        proxy.gate = hold_the_answer
        a.start(wait=False)
        wait_for("the server has done it, and the answer is on its way", proxy.is_holding, 60)
        proxy.gate = down
        kill_held(a, proxy)
        a.start()
        a.wait_delivered(1)
        wait_for(f"no upload is left after a lost answer to {step}",
                 lambda bucket=bucket: not bucket.uploads())
        judge(a, bucket, units)
        a.stop()


@test
def sigterm_in_the_middle_of_an_upload_ends_soon_and_the_next_start_resumes():
    a, bucket, proxy, units = agent_through_a_wire(40 * MIB)
    start_until(a, proxy, 20 * MIB)
    a.stop()
    proxy.cut()
    (key, upload), = bucket.uploads()
    a.start()
    a.wait_known(1)
    a.wait_all()
    manifest = judge(a, bucket, units)[units[0]]
    assert manifest["bundle"]["object"] == os.path.basename(key)
    assert {r.query["uploadId"] for r in proxy.requests
            if r.part} == {upload}, "another upload was begun"
    assert sent_parts(proxy) <= manifest["bundle"]["bytes"] + CONNECTIONS * LARGEST_PART
    a.stop()


@test
def after_its_server_was_killed_and_started_again_an_upload_is_resumed():
    s = radosgw.Radosgw(store="bluestore")
    try:
        proxy, way = through(s)
        bucket = new_bucket(s)
        a = Agent()
        a.use_directories()
        a.config["destinations"] = [a.s3("s3", way, bucket, part_size="5MiB",
                                         connections=CONNECTIONS, request_timeout="2s")]
        unit = a.incompressible(48 * MIB)
        start_until(a, proxy, 25 * MIB)
        s.kill()
        proxy.cut()
        wait_for("the destination says that it is away",
                 lambda: a.status()["destinations"][0]["last_error"])
        s.start_again()
        a.wait_all("120s")
        manifest = judge(a, bucket, [unit])[unit]
        assert len({r.query["uploadId"] for r in proxy.requests
                    if r.part}) == 1, "another upload was begun"
        assert sent_parts(proxy) <= manifest["bundle"]["bytes"] + 3 * CONNECTIONS * LARGEST_PART
        a.stop()
    finally:
        s.close()


@test
def a_network_that_resets_or_swallows_everything_is_waited_for():
    for fault in ("reset", "black hole", "refused", "server hangs"):
        a, bucket, proxy, units = agent_through_a_wire(30 * MIB, request_timeout="1s")
        start_until(a, proxy, 12 * MIB)
        if fault == "reset":
            proxy.cut()
        elif fault == "black hole":
            wait_for("the silence is noticed",
                     lambda a=a: a.status()["destinations"][0]["last_error"], 30)
            proxy.cut()
        elif fault == "refused":
            proxy.refuse()
            error = wait_for("the destination says so",
                             lambda a=a: a.status()["destinations"][0]["last_error"], 30)
            assert "127.0.0.1" in error, error
            proxy.accept()
            proxy.release()
        else:
            server().hang()
            try:
                proxy.release()
                error = wait_for("the destination says so",
                                 lambda a=a: a.status()["destinations"][0]["last_error"], 30)
            finally:
                server().unhang()
        a.wait_all()
        manifest = judge(a, bucket, units)[units[0]]
        assert len({r.query["uploadId"] for r in proxy.requests
                    if r.part}) == 1, f"{fault}: another upload was begun"
        notes.append(f"{fault}: {sent_parts(proxy) - manifest['bundle']['bytes']} bytes twice")
        assert a.status()["destinations"][0]["state"] == "ok"
        a.stop()
        proxy.close()


@test
def a_source_that_changed_while_the_agent_was_dead_begins_anew():
    a, bucket, proxy, units = agent_through_a_wire(24 * MIB)
    start_until(a, proxy, 12 * MIB)
    (_, upload), = bucket.uploads()
    kill_held(a, proxy)
    with open(os.path.join(units[0], "noise"), "r+b") as f:
        f.write(b"changed")
    a.start()
    a.wait_known(1)
    a.wait_all()
    wait_for("the first upload is aborted", lambda: not bucket.uploads())
    judge(a, bucket, units)
    assert {r.query["uploadId"] for r in proxy.requests
            if r.part} - {upload}, "the old upload was gone on with"
    a.stop()


@test
def another_compression_level_begins_anew():
    bucket = new_bucket(server())
    proxy, way = through(server())
    a = Agent()
    a.config["destinations"] = [a.s3("s3", way, bucket, part_size="5MiB", connections=CONNECTIONS)]
    unit = a.dump(size=100 * MIB)
    start_until(a, proxy, 12 * MIB)
    (_, upload), = bucket.uploads()
    kill_held(a, proxy)
    a.config["limits"] = {"compression_level": 1}
    a.start()
    a.wait_known(1)
    a.wait_all()
    wait_for("the first upload is aborted", lambda: not bucket.uploads())
    judge(a, bucket, [unit])
    ids = [r.query["uploadId"] for r in proxy.requests if r.part]
    assert ids[0] == upload != ids[-1], "parts of two levels were put together"
    a.stop()


@test
def a_lost_database_leads_to_no_second_copy_and_the_orphan_is_aborted():
    a, bucket, proxy, units = agent_through_a_wire(24 * MIB)
    start_until(a, proxy, 12 * MIB)
    (key, upload), = bucket.uploads()
    kill_held(a, proxy)
    for path in glob.glob(a.path("state", "state.db*")):
        os.unlink(path)
    a.start()
    a.wait_delivered(1)
    wait_for("the upload that nobody knows is aborted",
             lambda: upload not in [u for _, u in bucket.uploads()])
    judge(a, bucket, units)
    assert bucket.bundles() == [key]
    # … and delivered, lost again: it is found at the destination, and nothing is sent.
    a.stop()
    for path in glob.glob(a.path("state", "state.db*")):
        os.unlink(path)
    proxy.forget()
    a.start()
    a.wait_delivered(1)
    judge(a, bucket, units)
    assert not proxy.part_bodies(), "a second copy was sent"
    a.stop()


def dead_nodes(hex12):
    """A key as the agent of a node that is no more made it."""
    return ("neuron/20260101-000000-0000000000000000/"
            f"i-0ffffffffffffffff/directory-20260101T000000-{hex12}.tar.zst")


@test
def old_uploads_of_nobody_under_the_prefix_are_aborted_and_young_and_foreign_ones_remain():
    past = fake_time("-2d")
    s = radosgw.Radosgw()
    try:
        bucket = new_bucket(s)
        s.stop_gateway()
        s.start_gateway(**past)
        bucket.environment |= past
        old_key = dead_nodes("0123456789ab")
        old = [bucket.begin_upload(old_key, part=b"x" * 100),
               bucket.begin_upload(dead_nodes("abcdef012345"))]
        foreign = bucket.begin_upload("elsewhere/of-somebody-else")
        strange = bucket.begin_upload("neuron/not-a-bundle-of-ours.tar.zst")
        half = bucket.begin_upload(dead_nodes("00000000000a"))
        s.stop_gateway()
        s.start_gateway()
        for name in past:
            del bucket.environment[name]
        bucket.add_part(dead_nodes("00000000000a"), half, b"y" * 100)
        young = bucket.begin_upload(dead_nodes("00000000000b"))
        assert {u for _, u in bucket.uploads()} == {*old, foreign, strange, half, young}
        a = Agent()
        a.config["destinations"] = [a.s3("s3", s, bucket)]
        a.dump(size=65536)
        a.start()
        a.wait_delivered(1)
        wait_for("the old ones are aborted", lambda: not {u for _,
                                                          u in bucket.uploads()} & set(old), 30)
        assert {u for _, u in bucket.uploads()} == {foreign, strange, half, young}, bucket.uploads()
        wait_for("it is reported", lambda: old_key in a.log)
        a.stop()
    finally:
        s.close()


@test
def an_upload_that_somebody_else_has_aborted_begins_anew():
    for moment in ("while it is sent", "while the agent is dead"):
        a, bucket, proxy, units = agent_through_a_wire(24 * MIB)
        start_until(a, proxy, 12 * MIB)
        if moment == "while the agent is dead":
            kill_held(a, proxy)
        (key, upload), = bucket.uploads()
        bucket.aws("abort-multipart-upload", "--bucket", bucket.name, "--key", key, "--upload-id",
                   upload)
        if moment == "while the agent is dead":
            a.start()
        proxy.release()
        a.wait_delivered(1)
        judge(a, bucket, units)
        assert len({r.query["uploadId"] for r in proxy.requests if r.part}) == 2, moment
        a.stop()


@test
def a_source_that_is_removed_in_the_middle_is_delivered_from_its_links_also_after_kill_9():
    a, bucket, proxy, units = agent_through_a_wire(24 * MIB)
    files = tree(units[0])
    start_until(a, proxy, 12 * MIB)
    shutil.rmtree(units[0])
    kill_held(a, proxy)
    a.start()
    a.wait_delivered(1)
    where = bucket.fetch()
    path, manifest = a.only_manifest(where)
    assert manifest["source"]["path"] == units[0]
    check_bundle(path, files, tools=("tar",))
    assert not bucket.uploads()
    assert len({r.query["uploadId"] for r in proxy.requests
                if r.part}) == 1, "another upload was begun"
    a.stop()


@test
def a_cancelled_bundle_leaves_no_upload_behind():
    a, bucket, proxy, _ = agent_through_a_wire(24 * MIB)
    start_until(a, proxy, 12 * MIB)
    wait_for("the daemon answers", a.is_healthy)
    assert a.cli("cancel", a.bundles()[0]["id"]).returncode == 0
    proxy.cut()
    wait_for("it is cancelled", lambda: a.counts()["cancelled"] == 1)
    wait_for("its upload is aborted", lambda: not bucket.uploads())
    assert not bucket.objects()
    a.stop()


if __name__ == "__main__":
    sys.exit(main(cleanup))
