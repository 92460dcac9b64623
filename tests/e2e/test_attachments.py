#!/usr/bin/env python3
"""What the agent adds to a dump (snapshots): in its bundle, or in a supplement when it came too
late; once, whatever happens in between. And what the hook told of it: in the manifest, and where it
goes."""
import hashlib
import json
import os
import random
import shutil
import socket
import sqlite3
import sys
import time

sys.dont_write_bytecode = True  # the source tree may be read-only, and is packed as it is
sys.path.insert(0, os.path.join(os.path.dirname(os.path.realpath(__file__)), "..", "harness"))
# pylint: disable=wrong-import-position
import radosgw
from agent import (PATIENCE, Agent, check_bundle, cleanup, is_instrumented, leftovers, need_root,
                   object_of, tree, wait_for)
from s3tools import new_bucket
from tap import main, notes, test

SNAPSHOT = b'{"schema": "neuron-collectd/snapshot/1"}\n'
LATER = b'{"schema": "neuron-collectd/snapshot/1", "after": true}\n'


def place(a, unit, source="core-dumps"):
    key = hashlib.sha256(source.encode() + b"\0" + os.fsencode(unit)).hexdigest()[:16]
    return a.path("state", "attachments", key)


def attach(a, unit, name, content, source="core-dumps"):
    """As attachments_add() would leave it; the agent is not notified, so a late one is found by the
    next scan."""
    directory = place(a, unit, source)
    while True:
        try:
            os.makedirs(directory, mode=0o700, exist_ok=True)
            for file, data in ((".unit", source.encode() + b"\0" + os.fsencode(unit)),
                               (name, content)):
                with open(os.path.join(directory, ".coming"), "wb") as f:
                    f.write(data)
                os.rename(os.path.join(directory, ".coming"), os.path.join(directory, file))
            return
        except (FileNotFoundError, FileExistsError):  # the agent releases what was there before
            continue


def attached(a):
    """All that lies in the state directory, with what says whose it is."""
    return tree(a.path("state", "attachments"))


def with_attached(files, **contents):
    more = {f"neuron-collectd/{name.replace('_', '.')}".encode():
            (len(data), hashlib.sha256(data).hexdigest()) for name, data in contents.items()}
    return {os.fsencode(p): v for p, v in files.items()} | more


def verify(a, manifest):
    result = a.cli("verify", object_of(manifest))
    assert result.returncode == 0, result.stdout + result.stderr


def by_id(a, where=None):
    return {m["bundle"]["id"]: (path, m) for path, m in a.manifests(where)}


def base_and_supplement(a, where=None):
    found = by_id(a, where)
    (base,) = [i for i, (_, m) in found.items() if m["bundle"]["supplement_of"] is None]
    assert set(found) == {base, base + "-s1"}, found.keys()
    assert found[base + "-s1"][1]["bundle"]["supplement_of"] == base
    return found[base], found[base + "-s1"]


def kinds(m):
    return {e["path"]: e["kind"] for e in m["members"] if e["path"].startswith("neuron-collectd/")}


@test
def what_is_attached_is_in_the_bundle_of_every_kind_and_is_then_released():
    a = Agent()
    a.use_all_kinds()
    for source in a.config["sources"]:
        source["settle"] = "1s"
    a.config["destinations"].append(a.volume("second", "out2"))
    units = {a.dump(): "core-dumps", a.profile(): "profiles", a.core(): "cores"}
    os.makedirs(a.path("jobs", "job-7"))
    with open(a.path("jobs", "job-7", "x"), "wb") as f:
        f.write(b"x" * 70000)
    # a unit of its own: what lies above the template's depth
    with open(a.path("jobs", "loose"), "wb") as f:
        f.write(b"loose")
    units[a.path("jobs", "job-7")] = units[a.path("jobs")] = "jobs"
    wanted = {}
    for unit, source in units.items():
        attach(a, unit, "snapshot.json", SNAPSHOT, source)
        attach(a, unit, "raw", os.urandom(100_000), source)
        with open(os.path.join(place(a, unit, source), "raw"), "rb") as f:
            raw = f.read()
        files = tree(unit) if unit != a.path("jobs") else {b"loose": tree(unit)[b"loose"]}
        wanted[unit] = with_attached(files, snapshot_json=SNAPSHOT, raw=raw)
    a.start()
    a.wait_known(len(units))
    a.wait_all()
    for where in (a.out, a.path("out2")):
        manifests = a.manifests(where)
        assert len(manifests) == len(units), [m["source"]["path"] for _, m in manifests]
        for path, m in manifests:
            check_bundle(path, wanted[m["source"]["path"]], tools=("tar", "bsdtar"))
            assert kinds(m) == {"neuron-collectd/raw": "snapshot",
                                "neuron-collectd/snapshot.json": "snapshot"}, kinds(m)
            assert m["bundle"]["complete"], m["bundle"]
            verify(a, path)
    wait_for("what was attached is let go", lambda: not attached(a))
    # Nobody takes it for a change of the source.
    a.stop()
    a.start()
    a.ask("flush")
    time.sleep(1.5)  # a supplement would have settled
    assert a.counts()["discovered"] == len(units), a.bundles()
    a.stop()


@test
def what_comes_late_goes_out_in_a_supplement_alone_and_once():
    a = Agent()
    unit = a.dump()
    files = tree(unit)
    attach(a, unit, "snapshot.json", SNAPSHOT)
    a.start()
    a.wait_delivered(1)
    attach(a, unit, "snapshot.after.json", LATER)
    a.ask("flush")
    a.wait_delivered(2)
    a.wait_all()
    (base, _), (supplement, m) = base_and_supplement(a)
    check_bundle(base, with_attached(files, snapshot_json=SNAPSHOT))
    check_bundle(supplement, with_attached({}, snapshot_after_json=LATER))
    assert kinds(m) == {"neuron-collectd/snapshot.after.json": "snapshot"}
    assert m["bundle"]["complete"] and m["source"]["path"] == unit
    verify(a, supplement)
    for _ in range(2):
        a.ask("flush")
        a.stop()
        a.start()
    time.sleep(0.5)  # for what must not come
    assert a.counts()["discovered"] == 2, a.bundles()
    wait_for("what was attached is let go", lambda: not attached(a))
    # and the next one is the next supplement, also under a name that was there
    attach(a, unit, "snapshot.after.json", LATER * 2)
    a.ask("flush")
    a.wait_delivered(3)
    a.wait_all()
    third = [path for path, m in a.manifests() if m["bundle"]["id"].endswith("-s2")]
    check_bundle(third[0], with_attached({}, snapshot_after_json=LATER * 2))
    a.stop()


@test
def state_lost_and_another_snapshot_attached_since_it_is_a_supplement():
    a = Agent()
    unit = a.dump(size=65536)
    attach(a, unit, "snapshot.json", SNAPSHOT)
    a.start()
    a.wait_all()
    a.stop()
    shutil.rmtree(a.path("state"))
    os.mkdir(a.path("state"))
    attach(a, unit, "snapshot.json", LATER)
    a.start()
    a.wait_delivered(2)
    (base, _), (late, m) = base_and_supplement(a)
    check_bundle(base, with_attached(tree(unit), snapshot_json=SNAPSHOT), tools=("tar",))
    check_bundle(late, with_attached({}, snapshot_json=LATER), tools=("tar",))
    assert kinds(m) == {"neuron-collectd/snapshot.json": "snapshot"}, kinds(m)
    wait_for("what was attached is released", lambda: not attached(a))
    a.stop()


@test
def what_a_supplement_was_given_is_shipped_though_another_build_had_the_database():
    a = Agent()
    unit = a.dump(size=65536)
    a.start()
    a.wait_delivered(1)
    a.stop()
    late = os.urandom(24 << 20)
    attach(a, unit, "crash.json", late)
    a.send_slowly()
    a.start()
    wait_for("the supplement is being shipped", lambda: a.counts()["shipping"] == 1, 30, 0.002)
    a.kill()
    a.sql("PRAGMA user_version = 11")
    a.config.pop("limits")
    a.start()
    assert "another build" in a.log
    a.wait_delivered(2)
    (_, _), (path, _) = base_and_supplement(a)
    check_bundle(path, with_attached({}, crash_json=late), tools=("tar",))
    wait_for("what was attached is released", lambda: not attached(a))
    a.stop()


@test
def what_comes_while_the_bundle_is_being_shipped_does_not_change_it():
    a = Agent()
    a.send_slowly()
    a.config["destinations"].append(a.volume("second", "out2"))
    unit = a.dump(size=8 << 20)
    files = tree(unit)
    attach(a, unit, "snapshot.json", SNAPSHOT)
    a.start()
    wait_for("it is being shipped", lambda: a.counts()["shipping"] == 1, 30)
    attach(a, unit, "later.json", LATER)
    a.kill()
    a.start()  # the same plan, or what was begun could not be gone on with
    a.wait_delivered(2)
    a.wait_all()
    for where in (a.out, a.path("out2")):
        (base, _), (supplement, _) = base_and_supplement(a, where)
        check_bundle(base, with_attached(files, snapshot_json=SNAPSHOT), tools=("tar",))
        check_bundle(supplement, with_attached({}, later_json=LATER), tools=("tar",))
    wait_for("what was attached is let go", lambda: not attached(a))
    a.stop()


@test
def kill_9_at_random_moments_sends_what_is_attached_once():
    seed = int(os.environ.get("NC_SEED", "20260527"))
    notes.append(f"again with NC_SEED={seed}")
    rng = random.Random(seed)
    a = Agent()
    a.config["sources"][0]["settle"] = "100ms"
    a.config["sources"][0]["scan_interval"] = "1s"
    wanted, n = {}, 0
    for _ in range(24 if not is_instrumented() else 6):
        a.start(wait=False)
        for _ in range(rng.randrange(3)):
            number = len(wanted) + 1
            unit = a.dump(size=rng.choice((4096, 300_000)), cluster_id=f"{number:016x}",
                          pid=1000 + number, seed=number)
            wanted[unit] = {}
        for unit in rng.sample(sorted(wanted), min(len(wanted), 2)):
            n += 1
            wanted[unit][f"neuron-collectd/s{n}.json"] = f"{n}\n".encode() * rng.choice((1, 5000))
            attach(a, unit, f"s{n}.json", wanted[unit][f"neuron-collectd/s{n}.json"])
        # the moment is chance, nothing is waited for
        time.sleep(rng.choice((0.005, 0.05, 0.1, 0.2, 0.3, 0.6)) * rng.random() * 2)
        assert a.process.poll() is None
        a.kill()
    a.start()
    a.wait_known(len(wanted))
    wait_for("all that was attached is let go", lambda: a.curl("/v1/flush", "-X", "POST")
             and not attached(a), 60)
    a.wait_all()
    sent = {}
    for path, m in a.manifests():
        unit = m["source"]["path"]
        for e in m["members"]:
            key = (unit, e["path"])
            assert key not in sent, f"sent twice: {key}: {sent[key]} and {path}"
            sent[key] = path
            if e["path"] in wanted[unit]:
                assert e["sha256"] == hashlib.sha256(wanted[unit][e["path"]]).hexdigest(), key
        verify(a, path)
    for unit, more in wanted.items():
        there = {p for u, p in sent if u == unit}
        assert there == {os.fsdecode(p) for p in tree(unit)} | set(more), (unit, there, more)
    assert not leftovers(a.out)
    assert a.assert_sum()["delivered"] == len(a.manifests())
    notes.append(f"{len(wanted)} dumps, {n} attachments, {len(a.manifests())} bundles")
    a.stop()


@test
def removing_a_source_removes_none_of_its_bundles():
    a = Agent()
    a.config["sources"][0]["settle"] = "6s"
    a.start()
    unit = a.dump()
    files = tree(unit)
    wait_for("it is held", lambda: any(b["state"] == "settling" for b in a.bundles()) and
             len(tree(a.path(".neuron-collectd"))) == len(files))
    attach(a, unit, "snapshot.json", SNAPSHOT)
    shutil.rmtree(unit)
    a.wait_delivered(1)
    attach(a, unit, "after.json", LATER)
    a.ask("flush")
    a.wait_delivered(2)
    a.wait_all()
    (base, _), (supplement, _) = base_and_supplement(a)
    check_bundle(base, with_attached(files, snapshot_json=SNAPSHOT))
    check_bundle(supplement, with_attached({}, after_json=LATER))
    a.stop()


@test
def what_comes_late_for_a_core_that_is_gone_is_still_sent():
    a = Agent()
    a.use_all_kinds()
    core = a.core()
    files = tree(core)
    a.start()
    a.wait_delivered(1)
    a.stop()
    attach(a, core, "after.json", LATER, "cores")
    os.unlink(core)
    a.start()
    a.wait_delivered(2)
    a.wait_all()
    (base, _), (supplement, _) = base_and_supplement(a)
    check_bundle(base, files)
    check_bundle(supplement, with_attached({}, after_json=LATER))
    a.stop()


@test
def where_links_are_refused_it_comes_with_the_descriptors_that_hold_the_source():
    need_root()
    a = Agent()
    os.makedirs(a.path("dumps"))
    for place_of_links in (a.path(".neuron-collectd"), a.path("dumps", ".neuron-collectd")):
        with open(place_of_links, "wb") as f:
            f.write(b"in the way")
        os.chown(place_of_links, 1000, 1000)
    a.config["sources"][0]["settle"] = "6s"
    a.start()
    unit = a.dump(devices=1, cores=1)
    files = tree(unit)
    attach(a, unit, "snapshot.json", SNAPSHOT)
    wait_for("descriptors hold it", lambda: a.bundles()
             and "open descriptors hold" in a.cli("explain", a.bundles()[0]["id"]).stdout)
    shutil.rmtree(unit)
    a.wait_all()
    path, m = a.only_manifest()
    check_bundle(path, with_attached(files, snapshot_json=SNAPSHOT))
    assert kinds(m) == {"neuron-collectd/snapshot.json": "snapshot"}
    a.stop()


@test
def a_dump_that_brings_a_file_of_that_name_loses_neither():
    a = Agent()
    unit = a.dump()
    os.makedirs(os.path.join(unit, "neuron-collectd"))
    with open(os.path.join(unit, "neuron-collectd", "snapshot.json"), "wb") as f:
        f.write(b"forged")
    files = tree(unit)
    forged = {p: v for p, v in files.items() if os.fsencode(p).startswith(b"neuron-collectd/")}
    attach(a, unit, "snapshot.json", SNAPSHOT)
    a.start()
    a.wait_delivered(2)
    a.wait_all()
    (base, m), (supplement, later) = base_and_supplement(a)
    check_bundle(base, with_attached({p: v for p, v in files.items() if p not in forged},
                                     snapshot_json=SNAPSHOT))
    check_bundle(supplement, forged)
    assert kinds(m) == {"neuron-collectd/snapshot.json": "snapshot"} and kinds(later) == {
        "neuron-collectd/snapshot.json": "other"}
    assert not m["bundle"]["complete"] and "name taken" in m["bundle"]["reasons"][0], m["bundle"]
    a.stop()


@test
def with_a_bundle_that_is_cancelled_it_is_released():
    a = Agent()
    a.config["sources"][0]["settle"] = "60s"
    unit = a.dump()
    attach(a, unit, "snapshot.json", SNAPSHOT)
    a.start()
    a.wait_known(1)
    assert attached(a)
    a.ask("cancel", a.bundles()[0]["id"])
    wait_for("it is let go", lambda: not attached(a))
    attach(a, unit, "after.json", LATER)
    a.ask("flush")
    wait_for("what comes later too", lambda: not attached(a))
    assert not a.manifests()
    a.stop()


@test
def what_came_too_late_for_a_directory_is_not_sent_with_another_one_of_its_name():
    a = Agent()
    a.use_directories(settle="4s", scan_interval="1h")
    a.start()
    unit = a.incompressible(4096)
    a.wait_delivered(1)
    shutil.rmtree(unit)
    attach(a, unit, "late.json", LATER, source="jobs")
    long_ago = time.time() - 60
    os.utime(os.path.join(place(a, unit, "jobs"), "late.json"), (long_ago, long_ago))
    assert a.incompressible(4096) == unit  # often with the old one's inode
    attach(a, unit, "snapshot.json", SNAPSHOT, source="jobs")
    files = tree(unit)
    a.wait_delivered(2)
    assert all(m["bundle"]["supplement_of"] is None for _, m in a.manifests())
    new = [path for path, m in a.manifests() if any(e["path"] == "neuron-collectd/snapshot.json"
                                                    for e in m["members"])]
    assert len(new) == 1, a.manifests()
    check_bundle(new[0], with_attached(files, snapshot_json=SNAPSHOT))
    wait_for("all is let go", lambda: not attached(a))
    a.stop()


@test
def what_is_attached_to_dumps_of_a_source_that_is_gone_goes_after_a_day():
    a = Agent()
    a.use_directories(settle="1m")
    a.config["sources"].append(a.source("core-dumps", "neuron-core-dump", "dumps"))
    unit = a.path("dumps", "dt-20260527-051233-cid-d99e36ea74c263ca")
    attach(a, unit, "snapshot.json", SNAPSHOT, source="former")
    attach(a, unit, "snapshot.json", SNAPSHOT, source="core-dumps")
    attach(a, a.path("jobs", "job-9"), "snapshot.json", SNAPSHOT, source="jobs")
    long_ago = time.time() - 2 * 86400
    os.utime(place(a, unit, "former"), (long_ago, long_ago))
    a.start()
    wait_for("the old one is gone", lambda: not os.path.exists(place(a, unit, "former")))
    assert os.path.exists(place(a, unit, "core-dumps")), "it is not old"
    assert os.path.exists(place(a, a.path("jobs", "job-9"), "jobs")), "its source is there"
    a.stop()


@test
def a_sweep_aborts_pending_uploads_as_well():
    a = Agent()
    unit = a.dump()
    files = tree(unit)
    attach(a, unit, "snapshot.json", SNAPSHOT)
    result = a.once()
    assert result.returncode == 0, result.stdout + result.stderr
    attach(a, unit, "after.json", LATER)
    result = a.once()
    assert result.returncode == 0, result.stdout + result.stderr
    (base, _), (supplement, _) = base_and_supplement(a)
    check_bundle(base, with_attached(files, snapshot_json=SNAPSHOT))
    check_bundle(supplement, with_attached({}, after_json=LATER))
    assert not attached(a)


# --- what the hook sent ---------------------------------------------------------------------------

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
    attach(a, unit, "snapshot.json", SNAPSHOT)
    a.start()
    a.wait_delivered(1)
    attach(a, unit, "after.json", LATER)
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
        db.execute("DELETE FROM notes")
    db.close()
    attach(a, unit, "after.json", LATER)
    a.start()
    a.wait_delivered(2)
    a.wait_all()
    node = a.config["node"]["instance_id"]
    where = bucket.fetch()
    (base, _), (supplement, _) = base_and_supplement(a, where)
    for path in (base, supplement):
        assert os.path.relpath(path, where).startswith(f"team/run-7/{node}/"), path
    check_bundle(base, files, tools=("tar",))
    check_bundle(supplement, with_attached({}, after_json=LATER), tools=("tar",))
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
