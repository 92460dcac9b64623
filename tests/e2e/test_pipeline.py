#!/usr/bin/env python3
"""Several destinations and one bundle: they may see different contents, fail at different times, and never hold up each other."""
import glob
import os
import shutil
import sys

sys.dont_write_bytecode = True  # the source tree may be read-only, and is packed as it is
sys.path.insert(0, os.path.join(os.path.dirname(os.path.realpath(__file__)), "..", "harness"))
# pylint: disable=wrong-import-position
from agent import Agent, check_bundle, cleanup, tree, wait_for
from tap import main, test


def destination(a, name):
    return next(d for d in a.status()["destinations"] if d["name"] == name)


def add_absent_volume(a, name="second"):
    """A destination that is away until the directory above its root is made. @return that directory"""
    a.config["destinations"].append(a.volume(name, name + "-mount/root"))
    parent = a.path(name + "-mount")
    shutil.rmtree(parent, ignore_errors=True)
    return parent


def members_at(a, where):
    """All (path, size) that some bundle at a destination has."""
    return {(member["path"], member["bytes"]) for _, m in a.manifests(where) for member in m["members"]}


def occupied_name(a):
    """Leaves a dump whose manifest's name is taken at the first destination by something that is not ours. @return (unit, that path)"""
    unit = a.dump()
    a.start()
    a.wait_known(1)
    a.wait_all()
    path, _ = a.only_manifest()
    a.stop()
    with open(path, "w", encoding="ascii") as f:
        f.write("somebody else's\n")
    shutil.rmtree(a.path("state"))
    os.mkdir(a.path("state"))
    return unit, path


@test
def what_one_volume_lacks_follows_as_a_supplement():
    a = Agent()
    parent = add_absent_volume(a)
    unit = a.dump(size=65536)
    a.start()
    wait_for("the first volume has it", lambda: len(a.manifests()) == 1)
    wait_for("the second one is away", lambda: destination(a, "second")["last_error"])
    grown = max(glob.glob(os.path.join(unit, "**", "*"), recursive=True), key=lambda p: (os.path.isfile(p), os.path.getsize(p)))
    with open(grown, "ab") as f:
        f.write(b"more" * 1000)
    os.makedirs(parent)
    wanted = {(os.fsdecode(path), size) for path, (size, _) in tree(unit).items()}
    wait_for("the second volume has all of it", lambda: wanted <= members_at(a, parent))
    wait_for("the first volume has the change as well", lambda: wanted <= members_at(a, a.out))
    a.wait_all()
    a.assert_sum()
    a.stop()


@test
def a_bundle_given_up_here_still_goes_there_and_is_tried_in_peace():
    a = Agent()
    unit, path = occupied_name(a)
    parent = add_absent_volume(a)
    a.config["retry"]["quarantine_after"] = 3
    a.start()
    wait_for("the first volume is given up", lambda: "given up after 3 failures" in a.log)
    assert a.counts()["quarantined"] == 0, "it is in quarantine although one destination has not had its turn"
    bundle = a.bundles()[0]["id"]
    assert "given up" in a.cli("explain", bundle).stdout
    os.makedirs(parent)
    wait_for("the second volume has it", lambda: a.manifests(parent))
    check_bundle(a.only_manifest(parent)[0], unit, tools=("tar",))
    wait_for("it is in quarantine", lambda: a.counts()["quarantined"] == 1)
    os.unlink(path)
    assert a.cli("retry", bundle).returncode == 0
    a.wait_delivered(1)
    check_bundle(a.only_manifest()[0], unit, tools=("tar",))
    a.assert_sum()
    a.stop()


@test
def a_failure_here_waits_for_the_worker_there_without_spinning():
    a = Agent()
    occupied_name(a)
    a.config["destinations"].append(a.volume("second", "second"))
    a.config["retry"]["quarantine_after"] = 1
    a.slow_down()
    # Only the second volume has to pack; the first one finds the name taken at once.
    unit = a.dump(size=24 << 20, pid=2, cluster_id="000000000000000b")
    a.start()
    a.wait_known(2)
    wait_for("one is in quarantine", lambda: a.counts()["quarantined"] == 1, timeout=60)
    a.wait_delivered(1)
    n = a.log.count("is no manifest of ours")
    assert n <= 6, f"the failure was said {n} times"
    by_path = {m["source"]["path"]: p for p, m in a.manifests(a.path("second"))}
    check_bundle(by_path[unit], unit, tools=("tar",))
    a.stop()


@test
def one_bundle_with_a_bad_directory_does_not_hold_up_the_others():
    a = Agent()
    a.config["destinations"][0]["path"] = a.out + "/%c"
    a.config["retry"]["quarantine_after"] = 2
    in_the_way = os.path.join(a.out, "000000000000000a")
    with open(in_the_way, "wb"):
        pass
    stuck = a.dump(size=65536, cluster_id="000000000000000a", pid=1)
    a.start()
    wait_for("the fault is said", lambda: "in the way" in (destination(a, "archive")["last_error"] or ""))
    units = [a.dump(size=65536, cluster_id=f"00000000000001{i:02x}", pid=100 + i) for i in range(3)]
    a.wait_delivered(3)
    wait_for("the bad one is in quarantine", lambda: a.counts()["quarantined"] == 1)
    wait_for("the destination is well", lambda: destination(a, "archive")["state"] == "ok")
    bundle = a.bundles("?state=quarantined")[0]
    assert "in the way" in bundle["reason"], bundle
    os.unlink(in_the_way)
    assert a.cli("retry", bundle["id"]).returncode == 0
    a.wait_delivered(4)
    by_path = {m["source"]["path"]: p for p, m in a.manifests()}
    for unit in (*units, stuck):
        check_bundle(by_path[unit], unit, tools=("tar",))
    a.assert_sum()
    a.stop()


if __name__ == "__main__":
    sys.exit(main(cleanup))
