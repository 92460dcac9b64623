#!/usr/bin/env python3
"""A source that nodes share: each unit is delivered once, a dead node's is taken over, and what
others hold is told. Two agents of other instance ids stand for two nodes, a pass-through FUSE file
system for the network (tests/files has NFS). A mark that is set back in time stands for minutes
without renewal."""
import os
import shutil
import sys
import time

sys.dont_write_bytecode = True  # the source tree may be read-only, and is packed as it is
sys.path.insert(0, os.path.join(os.path.dirname(os.path.realpath(__file__)), "..", "harness"))
# pylint: disable=wrong-import-position
import make_dump
from agent import Agent, check_bundle, need_root, object_of, run, tree, wait_for
from tap import main, test
from test_volume import cleanup, fault, serve_faultfs

NODES = ("i-0a1b2c3d4e5f60710", "i-0a1b2c3d4e5f60711", "i-0a1b2c3d4e5f60712")
DEAD_SECONDS = 11 * 60
PLAIN = "job-{}"


class Share:
    """A source and a destination of all nodes."""

    def __init__(self):
        need_root()
        self.place = Agent()
        self.root = self.place.path("share")
        serve_faultfs(self.place, self.root)
        self.real = self.root + ".real"
        self.source = os.path.join(self.real, "dumps")
        self.out = self.place.path("archive")
        os.mkdir(self.source)
        for path in (self.real, self.source, self.out):
            os.makedirs(path, exist_ok=True)
            os.chmod(path, 0o1777)

    def node(self, i, kind="directory", path="job-%p", root=None, **more):
        a = Agent()
        a.config["node"]["instance_id"] = NODES[i]
        a.config["sources"] = [a.source("jobs", kind, os.path.join(root or self.root, "dumps", path),
                                        scan_interval="300ms", **more)]
        a.config["destinations"] = [a.volume("archive", self.out)]
        return a

    def unit(self, name):
        """A directory whose name says nothing about a node."""
        unit = os.path.join(self.source, PLAIN.format(name))
        os.makedirs(unit + ".new")
        with open(os.path.join(unit + ".new", "content"), "wb") as f:
            f.write(os.urandom(20000))
        os.rename(unit + ".new", unit)
        return unit

    def manifests(self):
        return self.place.manifests(self.out)

    def locks(self):
        return os.path.join(self.source, ".neuron-collectd", "@units")

    def mark(self, i):
        return os.path.join(self.source, ".neuron-collectd", "@nodes", NODES[i], "alive")

    def set_back(self, i):
        """The node has not renewed its mark for minutes."""
        then = time.time() - DEAD_SECONDS
        os.utime(self.mark(i), (then, then))


def away(a, share):
    """The destination of this node cannot be written: what it finds stays undelivered."""
    with open(a.path("file"), "wb"):
        pass
    a.config["destinations"] = [a.volume("archive", a.path("file", "in", "the", "way"))]
    return a


def others(a):
    return a.status()["sources"][0]["others"]


def test_each(share, units):
    """Each once, whole and as it is."""
    found = share.manifests()
    assert len(found) == len(units), [p for p, _ in found]
    for manifest, m in found:
        name = os.path.basename(m["source"]["path"])
        check_bundle(manifest, next(u for u in units if os.path.basename(u) == name),
                     tools=("tar",))
        assert m["bundle"]["complete"], m["bundle"]
        assert os.path.exists(object_of(manifest))


@test
def what_a_dead_node_had_locked_is_taken_over_and_what_it_had_delivered_is_not():
    share = Share()
    before = share.unit("before")
    first = share.node(0).start()
    first.wait_delivered(1)
    first.stop()
    away(first, share).start()
    units = [share.unit(i) for i in range(3)]
    first.wait_known(4)
    second = share.node(1).start()
    wait_for("the other node's are counted", lambda: (second.ask("scan") or True) and
             others(second)["units"] == 3 and others(second)["nodes"] == 1)
    assert second.counts()["discovered"] == 0, second.counts()
    assert "held by 1 other node: 3 units" in second.cli("status").stdout, second.cli("status").stdout
    assert 'units_of_other_nodes{source="jobs"} 3' in second.curl("/metrics").stdout
    first.kill()
    time.sleep(1)  # it is only dead when its mark is old
    assert second.counts()["discovered"] == 0, second.counts()
    share.set_back(0)
    second.wait_delivered(3)
    second.wait_all()
    test_each(share, [before, *units])
    wait_for("what the dead node's links hold is counted",
             lambda: (second.ask("scan") or True) and others(second)["dead_links"] == 3)
    assert others(second)["units"] == 0, others(second)
    third = share.node(2).start()
    wait_for("it has scanned", lambda: third.status()["idle"])
    assert third.counts()["discovered"] == 0
    third.stop()
    second.stop()


@test
def a_mark_of_a_delivery_that_could_not_be_written_is_written_later():
    share = Share()
    first = away(share.node(0), share).start()
    unit = share.unit("a")
    first.wait_known(1)
    wait_for("it has its lock", lambda: os.listdir(share.locks()))
    nodes = os.path.dirname(os.path.dirname(share.mark(0)))
    own = os.path.join(nodes, NODES[0])
    os.rename(own, share.place.path("own"))
    in_the_way = [own, *(f"{own}@{k}" for k in range(1, 4))]
    for path in in_the_way:
        with open(path, "xb"):
            pass
    os.unlink(first.path("file"))
    os.makedirs(first.path("file", "in", "the", "way"), exist_ok=True)
    wait_for("it is delivered", lambda: first.counts()["delivered"] == 1, 40)
    wait_for("the mark that fails is logged", lambda: "cannot mark 'job-a' for other nodes" in
             first.log)
    time.sleep(1)  # some scans
    assert first.log.count("cannot mark 'job-a'") == 1, first.log
    for path in in_the_way:
        os.unlink(path)
    os.rename(share.place.path("own"), own)
    wait_for("it is marked", lambda: [name for name in os.listdir(share.locks())
                                      if name.endswith(".done")])
    first.kill()
    share.set_back(0)
    second = share.node(1).start()
    wait_for("it has scanned", lambda: os.path.exists(share.mark(1)) and second.status()["idle"])
    assert second.counts()["discovered"] == 0 and os.path.isdir(unit), second.counts()
    second.stop()


@test
def names_with_a_dead_nodes_id_are_taken_over_in_time():
    share = Share()
    template = "dt-%d-cid-%c"
    dead = share.node(0, "neuron-core-dump", template).start()
    wait_for("it has scanned", lambda: os.path.exists(share.mark(0)))
    dead.kill()
    mine = make_dump.make_dump(share.source, size=65536, instance_id=NODES[1], pid=1)
    theirs = make_dump.make_dump(share.source, size=65536, instance_id=NODES[0], pid=2)
    assert mine == theirs  # ranks of several nodes write into one directory
    alone = make_dump.make_dump(share.source, size=65536, instance_id=NODES[0], pid=3,
                                cluster_id="00000000000000aa")
    make_dump.make_dump(share.source, size=65536, instance_id=NODES[2], pid=4,
                        cluster_id="00000000000000bb")
    a = share.node(1, "neuron-core-dump", template).start()
    a.wait_delivered(1)
    a.wait_all()
    _, m = share.manifests()[0]
    assert not [e for e in m["members"] if NODES[0] in e["path"]], m["members"]
    time.sleep(1)
    assert a.counts()["discovered"] == 1, a.counts()
    share.set_back(0)
    a.wait_delivered(3)  # a supplement, and a bundle
    a.wait_all()
    found = [(m["source"]["path"], e["path"]) for _, m in share.manifests() for e in m["members"]]
    assert len(found) == len(set(found)), found
    # what has the id of a node whose agent may yet start, since it is young, is not among them
    assert set(found) == {(u.replace(share.real, share.root), os.fsdecode(name))
                          for u in (mine, alone) for name in tree(u)}, found
    a.stop()


@test
def a_fleet_of_which_seventy_nodes_were_replaced_leaves_no_dump():
    share = Share()
    a = share.node(0, "neuron-core-dump", "dt-%d-cid-%c").start()
    wait_for("it has scanned", lambda: os.path.exists(share.mark(0)))
    dead = [f"i-0a1b2c3d4e5f6{n:04x}" for n in range(70)]
    then = time.time() - DEAD_SECONDS
    for n, instance_id in enumerate(dead):
        node = os.path.join(os.path.dirname(os.path.dirname(share.mark(0))), instance_id)
        os.mkdir(node)
        with open(os.path.join(node, "alive"), "w", encoding="ascii") as f:
            f.write("1 0\n")
        os.utime(os.path.join(node, "alive"), (then, then))
        make_dump.make_dump(share.source, size=4096, instance_id=instance_id, pid=n + 1,
                            cluster_id=f"{n + 1:016x}")
    a.wait_delivered(len(dead))
    a.wait_all()
    found = {e["path"].split("-nd")[0] for _, m in share.manifests() for e in m["members"]}
    assert found >= set(dead), set(dead) - found
    a.stop()


@test
def a_dead_node_whose_named_dumps_were_delivered_leaves_nothing_to_do():
    share = Share()
    make_dump.make_dump(share.source, size=65536, instance_id=NODES[0])
    a = share.node(0, "neuron-core-dump", "dt-%d-cid-%c").start()
    a.wait_delivered(1)
    a.stop()
    share.set_back(0)
    b = share.node(1, "neuron-core-dump", "dt-%d-cid-%c").start()
    wait_for("it has scanned", lambda: b.status()["idle"])
    time.sleep(1)
    assert b.counts()["discovered"] == 0, b.counts()
    b.stop()


@test
def one_share_at_two_mount_paths_is_delivered_once():
    share = Share()
    other = share.place.path("elsewhere", "deep")
    os.makedirs(other)
    assert run("mount", "--bind", share.root, other).returncode == 0
    try:
        agents = [share.node(0).start(), share.node(1, root=other).start()]
        units = [share.unit(i) for i in range(9)]
        wait_for("all are delivered", lambda: sum(a.counts()["delivered"] for a in agents) >= 9)
        for a in agents:
            a.wait_all()
            a.stop()
        test_each(share, units)
    finally:
        run("umount", "-l", other)


@test
def a_lock_that_was_not_made_whole_or_is_no_agents_excludes_nobody():
    share = Share()
    a = share.node(0)
    a.start()
    first = share.unit("first")
    a.wait_delivered(1)
    name = next(n for n in os.listdir(share.locks()) if n.endswith(".1"))
    with open(os.path.join(share.locks(), name), "rb") as f:
        text = f.read()
    a.stop()
    shutil.rmtree(first)
    shutil.rmtree(os.path.join(share.source, ".neuron-collectd", "@nodes", NODES[0]))
    for n in os.listdir(share.locks()):
        os.unlink(os.path.join(share.locks(), n))
    faulty = {"empty": b"", "anothers": text.replace(NODES[0].encode(), NODES[2].encode()),
              "linked": text.replace(name.encode(), b"0" * len(name))}
    for i, (what, content) in enumerate(faulty.items(), 1):
        path = os.path.join(share.locks(), name.replace(".1", f".{i}"))
        with open(path, "wb") as f:
            f.write(content.replace(name.encode(), os.path.basename(path).encode()))
        if what == "anothers":
            os.chown(path, 12345, 12345)
    second = share.unit("first")
    b = share.node(1).start()
    b.wait_delivered(1)
    b.stop()
    assert len(share.manifests()) == 2 and second
    assert name.replace(".1", ".4") in os.listdir(share.locks()), os.listdir(share.locks())


@test
def a_squatted_place_of_the_locks_is_named_and_nothing_waits_for_it():
    share = Share()
    for path in (share.source, share.real):
        os.mkdir(os.path.join(path, ".neuron-collectd"))
        os.chown(os.path.join(path, ".neuron-collectd"), 12345, 12345)
    share.unit("one")
    a = share.node(0).start()
    a.wait_delivered(1)
    assert a.counts()["vanished"] == 0
    note = a.status()["sources"][0]["note"]
    assert "uid 12345" in note and "trusted_uids" in note and "other nodes" in note, note
    a.stop()


@test
def an_agent_of_another_uid_is_trusted_when_it_is_listed():
    share = Share()
    for path in (share.source, share.real):
        os.mkdir(os.path.join(path, ".neuron-collectd"))
        os.chmod(os.path.join(path, ".neuron-collectd"), 0o1777)
        os.chown(os.path.join(path, ".neuron-collectd"), 12345, 12345)
    a = share.node(0)
    a.config["agreement"]["trusted_uids"] = [12345]
    a.start()
    share.unit("one")
    a.wait_delivered(1)
    assert os.listdir(share.locks())
    a.stop()


def a_unit_with_a_file_that_cannot_be_read(share, settle, max_wait):
    """Its bundle is SETTLING. @return the agent"""
    unit = share.unit("one")
    with open(os.path.join(unit, "more"), "wb") as f:
        f.write(b"more" * 1000)
    a = share.node(0, settle=settle, max_wait=max_wait).start()
    wait_for("it settles", lambda: a.counts()["settling"])
    fault(share.root, "getattr EACCES 0 job-one/more")
    return a


@test
def files_that_cannot_be_read_while_the_share_is_away_are_not_left_out():
    share = Share()
    a = a_unit_with_a_file_that_cannot_be_read(share, "5s", "10m")
    fault(share.root, "open EACCES 0 /alive")  # as for an export that is withdrawn
    wait_for("it is told", lambda: "its share is away" in a.log)
    time.sleep(6)  # more than `settle`
    assert a.counts()["settling"] == 1, a.counts()
    fault(share.root, "clear")
    a.wait_delivered(1)
    manifest = share.manifests()[0][1]
    assert manifest["bundle"]["complete"] and len(manifest["members"]) == 2, manifest
    a.stop()


@test
def files_that_cannot_be_read_after_max_wait_or_on_a_share_that_answers_are_left_out():
    for faults, max_wait in (("open EACCES 0 /alive", "9s"), (None, "10m")):
        share = Share()
        a = a_unit_with_a_file_that_cannot_be_read(share, "4s", max_wait)
        if faults:
            fault(share.root, faults)
        a.wait_delivered(1)
        manifest = share.manifests()[0][1]
        assert not manifest["bundle"]["complete"], manifest
        assert manifest["bundle"]["reasons"][0].startswith("unreadable: 1 left out"), manifest
        assert ("its share is away" in a.log) == bool(faults), a.log
        a.stop()


@test
def a_share_that_refuses_a_node_for_now_leaves_the_units_to_their_nodes():
    share = Share()
    a = away(share.node(0), share).start()
    share.unit("one")
    wait_for("it is locked", lambda: a.counts()["ready"])
    b = share.node(1).start()
    wait_for("it has a mark", lambda: os.path.exists(share.mark(1)))
    fault(share.root, "open EACCES 0 /alive")
    wait_for("it is told", lambda: "cannot be used" in (b.status()["sources"][0]["note"] or ""))
    time.sleep(2)
    assert b.counts()["discovered"] == 0 and not share.manifests(), b.counts()
    fault(share.root, "clear")
    wait_for("it ended",
             lambda: "cannot be used" not in (b.status()["sources"][0]["note"] or ""))
    assert b.counts()["discovered"] == 0, b.counts()
    a.stop()
    b.stop()


@test
def a_late_file_that_cannot_be_read_while_the_share_is_away_has_not_vanished():
    share = Share()
    a = away(share.node(0), share)
    a.start()
    fault(share.root, "link EPERM")  # nothing is held by links
    unit = share.unit("one")
    wait_for("it is ready", lambda: a.counts()["ready"])
    with open(os.path.join(unit, "late"), "wb") as f:
        f.write(b"late" * 1000)
    wait_for("it is seen", lambda: "0 files are held now, 1 cannot be" in a.log)
    seen = a.log.count("looked at what came late")
    fault(share.root, "getattr EACCES 0 job-one/late")
    fault(share.root, "open EACCES 0 /alive")
    os.unlink(a.path("file"))
    os.makedirs(a.path("file", "in", "the", "way"))
    wait_for("it is looked at", lambda: a.log.count("looked at what came late") > seen)
    fault(share.root, "clear")
    wait_for("all is delivered", lambda: sum(len(m["members"]) for _, m in a.manifests(
        a.path("file"))) == 2)
    assert "vanished-file" not in a.curl("/metrics").stdout
    assert all(b["complete"] for b in a.bundles()), a.bundles()
    a.stop()


@test
def a_root_that_appears_on_a_network_file_system_later_is_scanned():
    need_root()
    a = Agent()
    a.config["sources"] = [a.source("jobs", "directory", "later/dumps/job-%p",
                                    scan_interval="300ms")]
    os.mkdir(a.path("later"))
    a.start()
    wait_for("it waits for it", lambda: a.status()["sources"][0]["watch"] == "inotify")
    serve_faultfs(a, a.path("later"))
    unit = a.path("later.real", "dumps", "job-1")
    os.makedirs(unit)
    with open(os.path.join(unit, "content"), "wb") as f:
        f.write(b"content" * 100)
    a.wait_delivered(1)
    assert a.status()["sources"][0]["watch"] == "scan"
    a.stop()


if __name__ == "__main__":
    sys.exit(main(cleanup))
