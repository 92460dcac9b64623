#!/usr/bin/env python3
"""Several destinations and one bundle: they may see different contents, fail at different times,
and never hold up each other."""
import glob
import os
import re
import shutil
import sys
import time

sys.dont_write_bytecode = True  # the source tree may be read-only, and is packed as it is
sys.path.insert(0, os.path.join(os.path.dirname(os.path.realpath(__file__)), "..", "harness"))
# pylint: disable=wrong-import-position
from agent import INSTANCE, Agent, check_bundle, cleanup, tree, wait_for
from tap import main, test


def destination(a, name):
    return next(d for d in a.status()["destinations"] if d["name"] == name)


def add_absent_volume(a, name="second"):
    """A destination that is away until the directory above its root is made. @return that
    directory"""
    a.config["destinations"].append(a.volume(name, name + "-mount/root"))
    parent = a.path(name + "-mount")
    shutil.rmtree(parent, ignore_errors=True)
    return parent


def members_at(a, where):
    """All (path, size) that some bundle at a destination has."""
    return {(member["path"], member["bytes"]) for _,
            m in a.manifests(where) for member in m["members"]}


def occupied_name(a):
    """Leaves a dump whose manifest's name is taken at the first destination by something that is
    not ours. @return (unit, that path)"""
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
    wait_for("the first volume has it", lambda: "delivered to archive" in a.log)
    wait_for("the second one is away", lambda: destination(a, "second")["last_error"])
    grown = max(glob.glob(os.path.join(unit, "**", "*"), recursive=True),
                key=lambda p: (os.path.isfile(p), os.path.getsize(p)))
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
    assert a.counts()[
        "quarantined"] == 0, "it is in quarantine although one destination has not had its turn"
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
def quarantine_says_that_files_are_held_only_if_links_hold_them():
    for is_held in True, False:
        a = Agent()
        occupied_name(a)
        a.config["retry"]["quarantine_after"] = 1
        if not is_held:
            for place in a.path(".neuron-collectd"), a.path("dumps", ".neuron-collectd"):
                shutil.rmtree(place, ignore_errors=True)
                with open(place, "wb"):  # in the way of the links
                    pass
        a.start()
        wait_for("it is in quarantine", lambda a=a: a.counts()["quarantined"] == 1)
        text = a.cli("explain", a.bundles()[0]["id"]).stdout
        assert ("are still held" in text, "no links hold" in text) == (is_held, not is_held), text
        a.stop()


@test
def a_failure_here_waits_for_the_worker_there_without_spinning():
    a = Agent()
    occupied_name(a)
    a.config["destinations"].append(a.volume("second", "second"))
    a.config["retry"]["quarantine_after"] = 1
    a.send_slowly()
    # Only the second volume has something to send; the first one finds the name taken at once.
    unit = a.dump(size=8 << 20, pid=2, cluster_id="000000000000000b")
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
    for name in (in_the_way, f"{in_the_way}.{INSTANCE}"):  # the agreed place, and the one beside it
        with open(name, "wb"):
            pass
    stuck = a.dump(size=65536, cluster_id="000000000000000a", pid=1)
    a.start()
    wait_for("the fault is said", lambda: "in the way" in (destination(a, "archive")["last_error"]
                                                           or ""))
    units = [a.dump(size=65536, cluster_id=f"00000000000001{i:02x}", pid=100 + i) for i in range(3)]
    a.wait_delivered(3)
    # That is the destination's fault and never the bundle's: it is shown, and tried again.
    wait_for("the fault is shown", lambda: destination(a, "archive")["state"] == "failing")
    assert a.counts()["quarantined"] == 0
    os.unlink(in_the_way)
    a.wait_delivered(4)
    wait_for("the destination is well", lambda: destination(a, "archive")["state"] == "ok")
    by_path = {m["source"]["path"]: p for p, m in a.manifests()}
    for unit in (*units, stuck):
        check_bundle(by_path[unit], unit, tools=("tar",))
    a.assert_sum()
    a.stop()


@test
def a_supplement_reaches_a_destination_that_was_away_when_the_other_one_got_it():
    a = Agent()
    a.use_directories()
    a.config["destinations"].append(a.volume("second", "second/archive"))
    os.makedirs(a.path("second", "archive"))
    unit = a.incompressible(1000)
    a.start()
    a.wait_known(1)
    a.wait_all()
    os.rename(a.path("second"), a.path("unmounted"))
    with open(os.path.join(unit, "late"), "w", encoding="utf-8") as f:
        f.write("later")
    a.wait_known(2)
    wait_for("the first destination has the supplement", lambda: len(a.manifests()) == 2)
    os.rename(a.path("unmounted"), a.path("second"))
    a.wait_all()
    counts = a.assert_sum()
    assert counts["delivered"] == 2 and counts["vanished"] == 0, counts
    names = [[os.path.basename(p) for p, _ in a.manifests(where)]
             for where in (a.out, a.path("second"))]
    assert names[0] == names[1], names


def links(a):
    """The directories of links that hold something."""
    root = a.path(".neuron-collectd", INSTANCE)
    return sorted({os.fsdecode(path).split("/")[0] for path in tree(root)})


def append_and_remove(unit):
    """Lets the largest member of a unit grow, and then takes the unit away. @return what it held,
    as members_at() tells it"""
    grown = max(glob.glob(os.path.join(unit, "**", "*"), recursive=True),
                key=lambda p: (os.path.isfile(p), os.path.getsize(p)))
    with open(grown, "ab") as f:
        f.write(b"more" * 1000)
    wanted = {(os.fsdecode(path), size) for path, (size, _) in tree(unit).items()}
    shutil.rmtree(unit)
    return wanted


def grown_and_removed_between_two_volumes():
    """@return (agent, the second volume's parent, what the unit held in the end): the first volume
    has the unit as it was first, the second one is away, and links of ours alone hold what came
    later"""
    a = Agent()
    parent = add_absent_volume(a)
    unit = a.dump(size=65536)
    a.start()
    wait_for("the first volume has it", lambda: "delivered to archive" in a.log)
    wait_for("the second one is away", lambda: destination(a, "second")["last_error"])
    wanted = append_and_remove(unit)
    assert links(a) and not wanted <= members_at(a, a.out)
    return a, parent, wanted


def of_the_unit(a, where):
    """Its manifests there, the base first: a core has a crash report beside it."""
    return sorted((m for _, m in a.manifests(where) if m["source"]["name"] != "agent"),
                  key=lambda m: m["bundle"]["supplement_of"] or "")


def judge_grown(a, parent, wanted, both_had_it=False):
    """@param both_had_it  the second volume got the base before it changed, too"""
    wait_for("the second volume has all of it", lambda: wanted <= members_at(a, parent))
    wait_for("the first volume has the change as well", lambda: wanted <= members_at(a, a.out))
    a.wait_all()
    wait_for("the links are let go", lambda: not links(a))
    counts = a.assert_sum()
    assert counts["delivered"] == counts["discovered"], (counts, a.bundles())
    first, second = (of_the_unit(a, where) for where in (a.out, parent))
    for base, supplement in first, second:
        assert supplement["bundle"]["supplement_of"] == base["bundle"]["id"] and len(
            supplement["members"]) == 1, supplement
        assert supplement["bundle"]["complete"], supplement["bundle"]
    # What has changed is not in the second volume's base, which then is no second content of it.
    contents = [{m["path"]: m["sha256"] for m in base["members"]}.items()
                for base, _ in (first, second)]
    reasons = second[0]["bundle"]["reasons"]
    assert first[0]["bundle"]["complete"], first
    assert second[0]["bundle"]["complete"] == both_had_it, second
    if both_had_it:
        assert contents[0] == contents[1] and not reasons, (first, second)
    else:
        assert contents[1] < contents[0] and "changed: " in str(reasons), (first, second)


@test
def what_one_volume_lacks_follows_from_the_links_when_the_source_is_gone():
    a, parent, wanted = grown_and_removed_between_two_volumes()
    os.makedirs(parent)
    judge_grown(a, parent, wanted)
    a.stop()


@test
def what_one_volume_lacks_follows_from_the_links_when_only_that_file_is_gone():
    a = Agent()
    a.use_directories()
    parent = add_absent_volume(a)
    unit = a.incompressible(1000)
    late = os.path.join(unit, "z")
    with open(late, "w", encoding="ascii") as f:
        f.write("first")
    a.start()
    wait_for("the first volume has it", lambda: "delivered to archive" in a.log)
    wait_for("the second one is away", lambda: destination(a, "second")["last_error"])
    with open(late, "a", encoding="ascii") as f:
        f.write(" second")
    os.unlink(late)
    os.makedirs(parent)
    judge_grown(a, parent, {("noise", 1000), ("z", 12)})
    a.stop()


@test
def what_one_volume_lacks_survives_kill_9():
    for said in ("delivered to second", "-[0-9a-f]{12}: delivered\n", "-s1: found",
                 "-s1: ready\n", "-s1: delivered to", "-s1: delivered\n"):
        a, parent, wanted = grown_and_removed_between_two_volumes()
        os.makedirs(parent)
        wait_for(f"'{said}'", lambda here=a, what=said: re.search(what, here.log), every=0.001)
        a.kill()
        a.start()
        judge_grown(a, parent, wanted)
        a.stop()


@test
def what_one_volume_lacks_follows_where_sources_are_deleted_after_delivery():
    a = Agent()
    parent = add_absent_volume(a)
    a.config["retention"] = {"after_delivery": "delete", "keep_for": "0s"}
    unit = a.dump(size=65536)
    a.start()
    wait_for("the first volume has it", lambda: "delivered to archive" in a.log)
    wait_for("the second one is away", lambda: destination(a, "second")["last_error"])
    wanted = append_and_remove(unit)
    os.makedirs(parent)
    judge_grown(a, parent, wanted)
    a.stop()


@test
def what_one_volume_lacks_of_a_core_follows_from_its_link():
    a = Agent()
    a.config["sources"] = [a.source("cores", "process-core", "cores")]
    parent = add_absent_volume(a)
    core = a.core()
    a.start()
    wait_for("the first volume has it", lambda: "delivered to archive" in a.log)
    wait_for("the second one is away", lambda: destination(a, "second")["last_error"])
    with open(core, "ab") as f:
        f.write(b"more" * 1000)
    wanted = {(os.path.basename(core), os.path.getsize(core))}
    os.unlink(core)
    os.makedirs(parent)
    judge_grown(a, parent, wanted)
    a.stop()


@test
def what_one_volume_lacks_follows_although_another_unit_has_the_place():
    a = Agent()
    a.use_directories()
    parent = add_absent_volume(a)
    unit = a.incompressible(1000)
    a.start()
    wait_for("the first volume has it", lambda: "delivered to archive" in a.log)
    wait_for("the second one is away", lambda: destination(a, "second")["last_error"])
    wanted = append_and_remove(unit)
    a.incompressible(2000)
    os.makedirs(parent)
    wanted |= {("noise", 2000)}
    for where in (parent, a.out):
        wait_for("all of both is there", lambda here=where: wanted <= members_at(a, here))
    a.wait_all()
    wait_for("the links are let go", lambda: not links(a))
    counts = a.assert_sum()
    assert counts["delivered"] == counts["discovered"] == 3, (counts, a.bundles())
    a.stop()


def grown_in_links_only(name_of):
    """What a kill between a bundle's end and its supplement's beginning leaves: links with
    something in them that was not shipped."""
    a = Agent()
    a.config["destinations"].append(a.volume("second", "second"))
    unit = a.dump(size=65536)
    a.start()
    a.wait_delivered(1)
    held = a.path(".neuron-collectd", INSTANCE, name_of(a.bundles()[0]["id"]))
    wait_for("the links are let go", lambda: not links(a))
    a.kill()
    shutil.copytree(unit, held, copy_function=os.link)
    os.chmod(held, 0o700)
    wanted = append_and_remove(unit)
    a.start()
    judge_grown(a, a.path("second"), wanted, both_had_it=True)
    a.stop()


@test
def links_of_a_finished_bundle_are_not_released_before_all_in_them_is_shipped():
    grown_in_links_only(lambda bundle: bundle)


@test
def links_that_were_made_for_a_supplement_that_has_not_begun_are_shipped():
    grown_in_links_only(lambda bundle: bundle + "-s1")


@test
def links_for_a_supplement_that_did_not_come_are_released():
    a = Agent()
    unit = a.dump(size=65536)
    a.start()
    a.wait_delivered(1)
    held = a.path(".neuron-collectd", INSTANCE, a.bundles()[0]["id"] + "-s1")
    a.kill()
    shutil.copytree(unit, held, copy_function=os.link)
    os.chmod(held, 0o700)
    a.start()
    wait_for("the links are let go", lambda: not links(a))
    a.wait_all()
    counts = a.assert_sum()
    assert counts["discovered"] == counts["delivered"] == 1 and "unknown links" not in a.log, counts
    a.stop()


@test
def what_is_replaced_while_a_supplement_is_under_way_goes_out_too():
    a = Agent()
    a.use_directories(scan_interval="500ms")
    a.config["destinations"].append(a.volume("second", "second/archive"))
    os.makedirs(a.path("second", "archive"))
    unit = a.incompressible(1000)
    a.start()
    a.wait_known(1)
    a.wait_all()
    os.rename(a.path("second"), a.path("unmounted"))
    with open(os.path.join(unit, "late"), "w", encoding="utf-8") as f:
        f.write("later")
    wait_for("the first destination has the supplement", lambda: len(a.manifests()) == 2)
    with open(a.path("new"), "w", encoding="utf-8") as f:
        f.write("in place of the noise")
    os.rename(a.path("new"), os.path.join(unit, "noise"))
    time.sleep(1.2)  # so that a scan, too, has seen it
    os.rename(a.path("unmounted"), a.path("second"))
    for where in (a.out, a.path("second")):
        wait_for(f"three bundles in {where}", lambda where=where: len(a.manifests(where)) == 3)
        members = sorted((m["path"], m["bytes"]) for _,
                         manifest in a.manifests(where) for m in manifest["members"])
        assert members == [("late", 5), ("noise", 21), ("noise", 1000)], members
    a.stop()


if __name__ == "__main__":
    sys.exit(main(cleanup))
