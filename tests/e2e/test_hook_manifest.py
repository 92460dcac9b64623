#!/usr/bin/env python3
"""What hooks have told of a dump: in its manifest and in those of its supplements, and where they
go."""
import hashlib
import json
import os
import socket
import sqlite3
import sys
import time

sys.dont_write_bytecode = True  # the source tree may be read-only, and is packed as it is
sys.path.insert(0, os.path.join(os.path.dirname(os.path.realpath(__file__)), "..", "harness"))
# pylint: disable=wrong-import-position
import radosgw
from agent import PATIENCE, Agent, check_bundle, cleanup, object_of, tree, wait_for
from s3tools import new_bucket
from tap import main, notes, test


def verify(a, manifest):
    result = a.cli("verify", object_of(manifest))
    assert result.returncode == 0, result.stdout + result.stderr


def add_late(unit):
    """What comes after the delivery goes out in a supplement."""
    os.makedirs(unit, exist_ok=True)
    with open(os.path.join(unit, "late"), "wb") as f:
        f.write(b"late")
    return {b"late": (4, hashlib.sha256(b"late").hexdigest())}


def base_and_supplement(a, where=None):
    found = {m["bundle"]["id"]: (path, m) for path, m in a.manifests(where)}
    (base,) = [i for i, (_, m) in found.items() if m["bundle"]["supplement_of"] is None]
    assert set(found) == {base, base + "-s1"}, found.keys()
    assert found[base + "-s1"][1]["bundle"]["supplement_of"] == base
    return found[base], found[base + "-s1"]


def report(a, unit, *, source="core-dumps", s3_prefix=None, received=None, job=None, **arguments):
    """A row as the agent leaves it when it has accepted a note."""
    ident = os.urandom(16).hex()
    document = {"schema": "neuron-collectd/hook-note/1", "id": ident,
                "arguments": arguments} | ({"job": job} if job else {})
    with sqlite3.connect(a.path("state", "state.db"), timeout=10) as db:
        db.execute("INSERT INTO notes (id, received_usec, uid, owner, pid, start_ticks, via, source, "
                   "unit_path, s3_prefix, refused, finished_usec, container, document) "
                   "VALUES (?, ?, 0, 0, 0, 0, 'socket', ?, ?, ?, NULL, 1, NULL, ?)",
                   (ident, received or time.time_ns() // 1000, source, os.fsencode(unit),
                    s3_prefix and s3_prefix.encode(), json.dumps(document).encode()))
    db.close()


def prepare(a):
    """A state database that is there before the first dump."""
    a.start()
    a.stop()


@test
def the_manifest_and_its_supplements_name_the_failure_and_the_job():
    a = Agent()
    prepare(a)
    unit = a.dump()
    job = {"source": "torchrun", "key": "run-7", "rank": 3, "world_size": 64}
    report(a, unit, received=1779859295000001, error_code="1200", error_location="nrt_execute",
         neff_name="m.neff", neff_uuid="0123", pid="4444", tid="4450", log_id="1", job=job)
    report(a, unit, received=1779859296000000, error_code="NRT_TIMEOUT", pid="4445",
         job=job | {"rank": 4})
    report(a, unit, error_code="strange", pid="none")
    a.start()
    a.wait_delivered(1)
    add_late(unit)
    a.ask("flush")
    a.wait_delivered(2)
    for path, m in base_and_supplement(a):
        assert m["failure"] == {"code": 1200, "name": "NRT_EXEC_HW_ERR_COLLECTIVES",
                                "location": "nrt_execute", "neff_name": "m.neff",
                                "neff_uuid": "0123"}, m["failure"]
        assert m["incident"]["job"] == {"key": "run-7", "rank": 3, "world_size": 64,
                                        "source": "torchrun"}, m["incident"]
        assert [(f["code"], f["name"], f["pid"], f["tid"], f["log_id"], f["rank"])
                for f in m["failures"]] == [
            (1200, "NRT_EXEC_HW_ERR_COLLECTIVES", 4444, 4450, 1, 3),
            (5, "NRT_TIMEOUT", 4445, None, None, 4),
            (None, "strange", None, None, None, None)], m["failures"]
        assert m["failures"][0]["time"] == "2026-05-27T05:21:35.000001Z"
        verify(a, path)
    a.stop()


@test
def what_a_hook_announces_goes_out_as_soon_as_the_hook_is_through():
    a = Agent()
    a.config["sources"][0] |= {"settle": "60s", "watch": "scan", "scan_interval": "1h"}
    a.config["snapshot"] = {"enabled": False}
    a.config["hook"]["deadline"] = "60s"  # it ends when it says so
    a.start()
    wait_for("the first scan is over", lambda: "does not exist yet" in a.log)
    unit = a.dump()
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as hook:
        hook.settimeout(20 * PATIENCE)
        hook.connect(a.path("run", "hook.sock"))
        hook.send(json.dumps({"schema": "neuron-collectd/hook-note/1", "id": os.urandom(16).hex(),
                              "arguments": {"local_output_dir": unit, "error_code": "1200",
                                            "pid": "7"}}).encode())
        assert hook.recv(65536).startswith(b"accepted "), a.log
        wait_for("it is found", lambda: a.counts()["settling"] == 1)
        time.sleep(1.5)  # longer than the quiet after a hook
        assert a.counts()["settling"] == 1, "taken while its hook was at work"
        with open(os.path.join(unit, "record.json"), "wb") as f:
            f.write(b"{}")
        hook.send(b"finished")
        begun = time.monotonic()
        a.wait_delivered(1, 20)
    took = time.monotonic() - begun
    path, m = a.only_manifest()
    check_bundle(path, unit, tools=("tar",))
    assert m["failure"]["code"] == 1200 and m["bundle"]["complete"], m["bundle"]
    notes.append(f"delivered {took:.1f} s after the hook was through")
    a.stop()


def hook_reports(a, unit, files, last):
    """A hook that promises files, waits for its answer, says its last word (None: it dies) and is
    gone."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as hook:
        hook.settimeout(20 * PATIENCE)
        hook.connect(a.path("run", "hook.sock"))
        hook.send(json.dumps({"schema": "neuron-collectd/hook-note/1", "id": os.urandom(16).hex(),
                              "files": files,
                              "arguments": {"local_output_dir": unit, "error_code": "1200",
                                            "pid": "7"}}).encode())
        assert hook.recv(65536).startswith(b"accepted "), a.log
        if last is not None:
            hook.send(last)


@test
def a_file_that_a_hook_promised_and_did_not_write_is_named_as_missing():
    a = Agent()
    a.config["sources"][0] |= {"settle": "4s"}
    a.config["snapshot"] = {"enabled": False}
    a.start()
    both = {"record": "my-record.json", "snapshot": "my-snapshot.json"}
    lost = "missing: '%s' was promised by its hook"
    cases = [  # last word, what it wrote, what the bundle says
        (b"finished", [], [lost % "my-record.json", lost % "my-snapshot.json"]),
        (b"finished", ["my-record.json"], [lost % "my-snapshot.json"]),
        (b"finished", ["my-record.json", "my-snapshot.json"], []),
        (b"finished without record snapshot", [], []),
        (b"finished without snapshot", ["my-record.json"], []),
        (None, ["my-snapshot.json"], [lost % "my-record.json"]),
    ]
    wanted = {}
    for i, (last, written, says) in enumerate(cases):
        unit = a.dump(date_time=f"20260527-05123{i}")
        for name in written:
            with open(os.path.join(unit, name), "wb") as f:
                f.write(b"{}")
        hook_reports(a, unit, both, last)
        wanted[os.fsdecode(unit)] = sorted(says)
    a.wait_delivered(len(cases), 30)
    for _, m in a.manifests():
        says = wanted.pop(m["source"]["path"])
        assert m["bundle"]["complete"] == (not says), (m["bundle"], says)
        assert sorted(m["bundle"].get("reasons") or []) == says, (m["bundle"], says)
    assert not wanted, wanted
    a.stop()


@test
def without_a_note_the_manifest_has_no_failure():
    a = Agent()
    a.dump()
    a.start()
    a.wait_delivered(1)
    _, m = a.only_manifest()
    assert m["failure"] is None and m["incident"]["job"] is None and "failures" not in m, m
    a.stop()


@test
def a_dump_whose_hook_was_granted_a_prefix_goes_there_and_its_supplements_too():
    radosgw.need_radosgw()
    server = radosgw.shared()
    bucket, other = new_bucket(server), new_bucket(server)
    a = Agent()
    a.config["destinations"] = [a.s3("first", server, bucket), a.s3("second", server, other),
                                a.volume("archive", "out")]
    prepare(a)
    unit = a.dump()
    files = tree(unit)
    report(a, unit, s3_prefix=f"s3://{bucket.name}/team/run-7", error_code="1")
    report(a, unit, s3_prefix=f"s3://{bucket.name}/elsewhere", error_code="1")
    a.start()
    a.wait_delivered(1)
    a.stop()
    # It is settled: what is reported later changes nothing.
    with sqlite3.connect(a.path("state", "state.db")) as db:
        assert db.execute("SELECT s3_prefix FROM bundles").fetchall() == [
            (f"s3://{bucket.name}/team/run-7".encode(),)]
    db.close()
    report(a, unit, s3_prefix=f"s3://{bucket.name}/later", error_code="1")
    late = add_late(unit)
    a.start()
    a.wait_delivered(2)
    a.wait_all()
    node = a.config["node"]["instance_id"]
    where = bucket.fetch()
    (base, _), (supplement, _) = base_and_supplement(a, where)
    for path in (base, supplement):
        assert os.path.relpath(path, where).startswith(f"team/run-7/{node}/"), path
    check_bundle(base, files, tools=("tar",))
    check_bundle(supplement, late, tools=("tar",))
    elsewhere = other.fetch()
    for path, _ in base_and_supplement(a, elsewhere):
        assert os.path.relpath(path, elsewhere).startswith("neuron/"), path
    for path, _ in base_and_supplement(a):
        assert "run-7" not in path, path
    urls = [d["object"] for b in a.bundles() for d in a.api(f"/v1/bundles/{b['id']}")["deliveries"]
            if d["destination"] == "first"]
    assert all("/team/run-7/" in u for u in urls), urls
    a.stop()


if __name__ == "__main__":
    sys.exit(main(cleanup))
