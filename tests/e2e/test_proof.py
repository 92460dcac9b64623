#!/usr/bin/env python3
"""What counts as delivered when the agent's state is gone: a complete manifest whose object is what
it says, and of that the same bytes alone. What differs reaches the destination all the same."""
import json
import os
import shutil
import sqlite3
import sys

sys.dont_write_bytecode = True  # the source tree may be read-only, and is packed as it is
sys.path.insert(0, os.path.join(os.path.dirname(os.path.realpath(__file__)), "..", "harness"))
# pylint: disable=wrong-import-position
from agent import Agent, check_bundle, cleanup, leftovers, object_of, wait_for
from s3_server import S3Server
from tap import main, test

MANIFEST = ".manifest.json"


def write(path, data):
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, "wb") as f:
        f.write(data)


def read(path):
    with open(path, "rb") as f:
        return f.read()


def lose_state(a):
    shutil.rmtree(a.path("state"))
    os.mkdir(a.path("state"))


def deliver_one(a):
    a.start()
    a.wait_known(1)
    a.wait_all()
    a.stop()


def again(a, n=1):
    """@return the bundles of a run that has delivered all that it knows."""
    a.start()
    wait_for(f"{n} are delivered", lambda: a.counts()["delivered"] >= n and not any(
        a.counts()[s] for s in ("settling", "ready", "shipping")))
    a.wait_all()
    counts = a.assert_sum()
    a.stop()
    return counts


def change(unit):
    """One file is appended to, one is new, and all others are copies: other inodes, other times,
    the same bytes. @return the names of the two"""
    names = sorted(n for n in os.listdir(unit) if os.path.isfile(os.path.join(unit, n)))
    for name in names[1:]:
        path = os.path.join(unit, name)
        write(path + ".copy", read(path))
        os.rename(path + ".copy", path)
    with open(os.path.join(unit, names[0]), "ab") as f:
        f.write(b"more of it")
    write(os.path.join(unit, "came-later.log"), b"late\n")
    return {names[0], "came-later.log"}


def members(manifest):
    return {m["path"] for m in manifest["members"]}


@test
def a_manifest_without_its_end_on_a_volume_is_no_proof():
    for n in (0, 10, 1000, -1):  # an empty one, the first line, the middle, all but the last byte
        a = Agent()
        unit = a.dump(size=65536)
        deliver_one(a)
        path, _ = a.only_manifest()
        write(path, read(path)[:n])
        lose_state(a)
        assert again(a)["delivered"] == 1
        check_bundle(a.only_manifest()[0], unit, tools=("tar",))
        assert not leftovers(a.out)


@test
def a_manifest_without_its_end_in_a_bucket_is_no_proof():
    with S3Server() as s3:
        for n in (0, 1000, -1):
            a = Agent()
            a.use_keys(s3)
            a.dump(size=65536)
            a.config["destinations"] = [a.s3("s3", s3, "bucket", prefix=f"p{n + 1}/%d-%c")]
            deliver_one(a)
            key, = [k for k in s3.objects if k.endswith(MANIFEST) and k.startswith(f"p{n + 1}/")]
            whole = json.loads(s3.objects[key].body)
            s3.put(key, s3.objects[key].body[:n])
            lose_state(a)
            assert again(a)["delivered"] == 1
            found = json.loads(s3.objects[key].body)
            assert found["members"] == whole["members"]
            assert found["bundle"] == whole["bundle"]


@test
def a_manifest_that_may_be_seen_but_not_read_is_the_destinations_fault_until_it_may_be():
    with S3Server() as s3:  # e.g. a KMS key that this role may not decrypt with
        a = Agent()
        a.use_directories()
        a.config["destinations"] = [a.s3("s3", s3, "bucket")]
        a.incompressible(1000, "1")
        deliver_one(a)
        lose_state(a)
        s3.deny = {"GetObject"}
        a.start()
        wait_for("the destination says what is missing", lambda: "allow s3:GetObject" in (
            a.status()["destinations"][0]["last_error"] or ""))
        assert a.status()["destinations"][0]["state"] in ("paused", "failing")
        a.incompressible(1000, "2")
        wait_for("the other one is delivered", lambda: a.counts()["delivered"] == 1)
        assert "s3:GetObject" in a.cli("list").stdout
        assert a.counts()["quarantined"] == 0
        s3.deny = set()
        a.wait_delivered(2)
        a.stop()
        assert len([k for k in s3.objects if k.endswith(MANIFEST)]) == 2


@test
def a_manifest_of_another_bundle_under_our_name_is_no_proof_and_is_not_touched():
    a = Agent()
    a.config["retry"] = {"initial": "50ms", "maximum": "100ms", "quarantine_after": 2}
    a.dump(size=65536)
    deliver_one(a)
    path, manifest = a.only_manifest()
    name = manifest["bundle"]["id"]
    other = read(path).replace(name.encode(), (name[:-1] + "01"[name[-1] == "0"]).encode())
    write(path, other)
    lose_state(a)
    a.start()
    wait_for("it is quarantined", lambda: a.counts()["quarantined"] == 1)
    assert read(path) == other
    a.stop()


@test
def state_lost_and_the_unit_changed_since_what_differs_is_a_supplement_on_a_volume():
    a = Agent()
    unit = a.dump(size=65536)
    deliver_one(a)
    path, _ = a.only_manifest()
    before = read(path), read(object_of(path))
    changed = change(unit)
    lose_state(a)
    assert again(a, 2)["delivered"] == 2
    assert (read(path), read(object_of(path))) == before, "what was delivered has been touched"
    (base, _), (_, late) = sorted(a.manifests(), key=lambda m: len(m[0]))
    assert base == path
    assert late["bundle"]["supplement_of"] and members(late) == changed, members(late)
    # and that is known from now on
    assert again(a, 2)["delivered"] == 2
    assert len(a.manifests()) == 2


@test
def state_lost_and_the_unit_changed_since_what_differs_is_a_supplement_in_a_bucket():
    with S3Server() as s3:
        a = Agent()
        a.use_keys(s3)
        a.config["destinations"] = [a.s3("s3", s3, "bucket")]
        unit = a.dump(size=65536)
        deliver_one(a)
        first = {k: o.body for k, o in s3.objects.items()}
        changed = change(unit)
        lose_state(a)
        assert again(a, 2)["delivered"] == 2
        assert {k: s3.objects[k].body for k in first} == first, "what was delivered was touched"
        key, = [k for k in s3.objects if k.endswith(MANIFEST) and k not in first]
        assert members(json.loads(s3.objects[key].body)) == changed


@test
def the_same_bytes_under_new_inodes_and_times_are_delivered_already():
    a = Agent()
    unit = a.dump(size=65536)
    deliver_one(a)
    path, _ = a.only_manifest()
    before = read(path)
    shutil.copytree(unit, unit + ".copy")
    shutil.rmtree(unit)
    os.rename(unit + ".copy", unit)
    lose_state(a)
    assert again(a)["delivered"] == 1
    assert read(a.only_manifest()[0]) == before


@test
def state_rolled_back_the_supplements_that_are_there_are_counted_on():
    a = Agent()
    unit = a.dump(size=65536)
    deliver_one(a)
    shutil.copytree(a.path("state"), a.path("state.before"))
    write(os.path.join(unit, "second.log"), b"second\n")
    again(a, 2)
    assert len(a.manifests()) == 2
    shutil.rmtree(a.path("state"))
    os.rename(a.path("state.before"), a.path("state"))
    write(os.path.join(unit, "third.log"), b"third\n")
    again(a, 3)
    late = [m for _, m in a.manifests() if m["bundle"]["supplement_of"]]
    assert sorted(map(sorted, map(members, late))) == [["second.log"], ["third.log"]], late


@test
def a_changed_unit_whose_delivered_object_is_damaged_waits_for_a_person():
    a = Agent()
    a.config["retry"] = {"initial": "50ms", "maximum": "100ms", "quarantine_after": 2}
    unit = a.dump(size=65536)
    deliver_one(a)
    path, _ = a.only_manifest()
    damaged = read(object_of(path))[:-1]
    write(object_of(path), damaged)
    change(unit)
    lose_state(a)
    a.start()
    wait_for("it is quarantined", lambda: a.counts()["quarantined"] == 1)
    bundle = a.bundles("?state=quarantined")[0]["id"]
    text = a.cli("explain", bundle).stdout
    assert path in text and "retry" in text, text
    assert read(object_of(path)) == damaged
    os.unlink(path)
    os.unlink(object_of(path))
    assert a.cli("retry", bundle).returncode == 0
    a.wait_all()
    check_bundle(a.only_manifest()[0], unit, tools=("tar",))
    a.assert_sum()
    a.stop()


def what_is_new_goes_alone(a, units):
    """It is known which members were shipped: what comes later is a supplement of its own."""
    assert len(a.manifests()) == len(units), a.manifests()
    for unit in units:
        with open(os.path.join(unit, "late"), "wb") as f:
            f.write(b"late")
    again(a, 2 * len(units))
    late = [m for _, m in a.manifests() if m["bundle"]["supplement_of"]]
    assert [members(m) for m in late] == [{"late"}] * len(units), [members(m) for m in late]


@test
def no_other_program_writes_to_the_database_and_one_that_tries_doubles_nothing():
    with S3Server() as s3:
        for to_bucket in (False, True):
            a = Agent()
            a.use_directories()
            a.config["retry"] = {"initial": "50ms", "maximum": "1s"}
            if to_bucket:
                a.config["destinations"] = [a.s3("s3", s3, "bucket")]
            a.start()
            for i in range(5):
                a.incompressible(1 << 20, f"a{i}")
            wait_for("one is delivered", lambda a=a: a.counts()["delivered"])
            db = sqlite3.connect(a.path("state", "state.db"), isolation_level=None, timeout=1)
            for _ in range(3):
                try:
                    db.execute("BEGIN IMMEDIATE")
                    raise AssertionError("the database of a running agent could be written")
                except sqlite3.OperationalError as error:
                    assert "locked" in str(error), error
            db.close()
            a.wait_all()
            a.stop()
            again(a, 5)  # and a start finds nothing that was not written down
            if not to_bucket:
                what_is_new_goes_alone(a, [a.path("jobs", f"job-a{i}") for i in range(5)])
                continue
            counts = a.sql("SELECT count(*) FROM bundles")
            bundles = [k for k in s3.objects if k.endswith(".tar.zst")]
            sent = [r for r in s3.seen("PutObject") if r.key.endswith(".tar.zst")]
            assert len(bundles) == 5 and len(sent) == 5, (bundles, sent, counts)



if __name__ == "__main__":
    sys.exit(main(cleanup))
