#!/usr/bin/env python3
"""One name for one failure, and who is missing: real agents on nodes of a network, whose clocks
disagree, with a volume, radosgw and Swift as the store that decides; with the bus and without.

What is taken from other parts of the agent, and is to be changed here when it changes there:
- names of the rows: bundles.agreed `store` `bus` `alone`;
- `.incidents/<key>/<n>.json` and `.incidents/<key>/<n>/<time>-<instance id>.json` below the fixed
  part of the destination, members of docs/BUNDLE.md (places.py reads them);
- incident.json and the answer of `neuron-collect --json report`: `ranks` `first_failure`
  `suspects` of neuron-collectd/incident/1; the report's exit is 1 when a rank is missing;
- `nodes[].bundles[]` of both, with `id`, `kind`, `state`, `object`, and the report's EVIDENCE;
- the status: `agreement.failures[]` with `key`, `n`, `cluster_id`, `agreed`, and
  `agreement.bus.connected`;
- the log: `failure <key>/<n>`; metrics: `agreement_rounds_total{result="store"}`;
- `explain`: the key of the failure, and that a name is waited for (the word `name`);
- the log in JSON: `time`, `dump_id` and the states `ready` and `shipping` of a bundle.
NC_PARTITION_SECONDS says how long a partition lasts at least (0; issue 13 wants 60 by hand).
"""
import datetime
import itertools
import json
import os
import re
import secrets
import shutil
import sys
import time

sys.dont_write_bytecode = True  # the source tree may be read-only, and is packed as it is
sys.path.insert(0, os.path.join(os.path.dirname(os.path.realpath(__file__)), "..", "harness"))
# pylint: disable=wrong-import-position
import agent
import failing_jobs
import network
import radosgw
import swift
from agent import PATIENCE, wait_for
from failing_jobs import ZEROS, Job
from places import SharedBucket, SharedVolume, View
from tap import figures, main, notes, test

CID = "d99e36ea74c263ca"
NRT_TIMEOUT, HW_ERROR = 5, 1200
PARTITION = float(os.environ.get("NC_PARTITION_SECONDS", "0"))
# Longer than any test: who waits for it fails.
NEVER = "10m"

_seconds = itertools.count()


def cleanup(failed=False):
    failing_jobs.cleanup(failed)
    network.cleanup(failed)
    agent.cleanup(failed)


# --- the scene ---

def nodes(n, shifts=(90, -90), bus=False, **agreement):
    """A network whose agents agree. @param bus  whether they have a key, and so a bus"""
    net = network.Network(n, shifts)
    key = f"test:{secrets.token_hex(32)}\n"
    for a in net.agents:
        # The runtime calls its hook when a dump is complete; what no hook speaks of settles.
        a.config["sources"][0]["settle"] = "15s"
        a.config["log"]["format"] = "json"
        a.config["agreement"] = {"settle": "1s", "window": "30s",
                                 "listen": f"tcp://0.0.0.0:{network.BUS_PORT}"} | agreement
        if bus:
            a.config["agreement"]["key_file"] = a.path("key")
            with open(a.path("key"), "w", encoding="ascii") as f:
                f.write(key)
            os.chmod(a.path("key"), 0o400)
    return net


def store():
    network.enter()
    return radosgw.shared(address=network.HUB)


def start(net, *indices):
    for i in indices or range(len(net.nodes)):
        net[i].start(wait=False)
    for i in indices or range(len(net.nodes)):
        wait_for("the daemon answers /healthz", net[i].is_healthy, 15)


def stop(net):
    """They are all well, and end in good order."""
    for a in net.agents:
        if a.process:
            a.assert_sum()
            a.stop()


def launch(net, key, per_node=2, root=None, indices=None, world_size=None):
    """A job with so many ranks on each node, which all run. @return {rank: its Job}"""
    indices = range(len(net.nodes)) if indices is None else indices
    world_size = world_size or per_node * len(net.nodes)
    ranks = {}
    for i in indices:
        job = Job(net[i], key, world_size, root=root or net.root)
        own = range(i * per_node, (i + 1) * per_node)
        job.start(*own)
        ranks |= dict.fromkeys(own, job)
    return ranks


def stamp(job):
    """The date-time of the node's own clock, as a rank without a collective spells it; no two are
    the same, since ranks that have the same share a directory."""
    return time.strftime("%Y%m%d-%H%M%S", time.localtime(
        time.time() + job.agent.node.shift + next(_seconds)))


def fail(ranks, *which, cluster_id=lambda rank: ZEROS, code=NRT_TIMEOUT, ends=True):
    """These ranks fail together: all have written their dumps when the first hook is called.
    @return when that was"""
    dumps = {}
    for rank in which or ranks:
        job, cid = ranks[rank], cluster_id(rank)
        # those of a collective have its name
        date_time = stamp(job) if cid == ZEROS else "20260527-051259"
        dumps[rank] = (job.dump(rank, date_time=date_time, cluster_id=cid, size=1 << 13),
                       date_time, cid)
    began = time.time()
    hooks = [ranks[rank].hook(rank, directory, date_time=date_time, cluster_id=cid, code=code)
             for rank, (directory, date_time, cid) in dumps.items()]
    for hook in hooks:
        assert hook.wait(60 * PATIENCE) == 0, hook.returncode
    if ends:
        for rank in dumps:
            ranks[rank].kill(rank)
    return began


def shipping_times(a):
    """{bundle: when it was ready, when its first delivery began}; by the clock of this machine"""
    times = {}
    for line in a.log.splitlines():
        entry = json.loads(line) if line.startswith("{") else {}
        state = entry.get("message", "").partition(":")[0]
        if state in ("ready", "shipping") and "dump_id" in entry:
            when = datetime.datetime.fromisoformat(entry["time"].replace("Z", "+00:00"))
            times.setdefault(entry["dump_id"], {}).setdefault(state,
                                                              when.timestamp() - a.node.shift)
    return {bundle: (t["ready"], t["shipping"]) for bundle, t in times.items() if len(t) == 2}


def figure_named(net, began, what, indices=None):
    """A bundle's name is known when its delivery begins. @param began  what fail() returned"""
    times = [t for i in indices or range(len(net.nodes)) for t in shipping_times(net[i]).values()]
    last = max(shipping for _, shipping in times)
    wait = max(shipping - ready for ready, shipping in times)
    figures.append(f"{what}: all had their names {last - began:.1f} s after the hooks began, "
                   f"{wait:.1f} s after they were ready at most")


def figure_added(a, what):
    last = max(shipping - ready for ready, shipping in shipping_times(a).values())
    figures.append(f"{what}: at most {1000 * last:.0f} ms from ready to shipping")


def key_of(ranks):
    return next(iter(ranks.values())).incident_key


def base_bundles(a):
    return [b for b in a.bundles() if not b.get("supplement_of") and b["source"] == "core-dumps"]


def wait_bundles(a, n, state="delivered", timeout=60):
    """@return so many bundles of dumps in this state"""
    def found():
        return [b for b in base_bundles(a) if b["state"] == state]
    try:
        wait_for(f"{n} dumps are {state}", lambda: len(found()) >= n, timeout)
    except AssertionError:
        notes.extend(a.cli("explain", b["id"]).stdout for b in base_bundles(a))
        raise
    assert len(found()) == n, found()
    return found()


# --- what must be true ---

def assert_one_failure(view, key, n_bundles, n=1, agreed="store", derived=True):
    """All bundles of the failure are at one place and say the same of it. @return the place"""
    place = view.place(key, n)
    found = view.bundles[place]
    assert len(found) == n_bundles, {p: len(b) for p, b in view.bundles.items()}
    d = view.decisions[key, n]
    assert d["key"] == key and d["n"] == n and d["derived"] is derived, d
    for m in found:
        incident = m["incident"]
        assert (incident["cluster_id"], incident["date_time"], incident["derived"],
                incident["agreed"]) == (d["cluster_id"], d["date_time"], derived, agreed), incident
        assert (incident["key"], incident["n"]) == (key, n), incident
    return place


def report(a, shared, where):
    """The table from the destination alone: no agent is asked. @param where  a place, once it is
    published, or `.incidents/<key>`"""
    result = a.cli("--json", "report", shared.url(where), *shared.options())
    document = json.loads(result.stdout) if result.stdout.strip() else None
    if document:
        is_missing = any(r["state"] == "missing" for r in document["ranks"])
        assert result.returncode == (1 if is_missing else 0), (result.returncode, result.stderr)
    return document


def states(document):
    """{rank: `present`, `late`, or why it is missing}"""
    return {r["rank"]: r["reason"] if r["state"] == "missing" else r["state"]
            for r in document["ranks"]}


def wait_report(a, shared, key, wanted, timeout=40):
    """@return the first report of a failure that has these states of ranks"""
    last = {}

    def found():
        document = last["document"] = report(a, shared, f".incidents/{key}")
        return document and states(document) == wanted and document
    try:
        return wait_for("the report has every rank", found, timeout, every=0.3)
    except AssertionError:
        notes.append(f"the last report: {json.dumps(last.get('document'))}\nwanted: {wanted}")
        raise


def wait_published(shared, place, n_present, timeout=40):
    def found():
        document = shared.look().incidents.get(place)
        return document and sum(r["state"] == "present" for r in document["ranks"]
                                ) == n_present and document
    return wait_for(f"incident.json lists {n_present} ranks", found, timeout, every=0.5)


# --- the store alone ---

@test
def ranks_of_two_nodes_have_one_name_by_a_shared_volume_alone_also_after_a_loss_of_state():
    with nodes(2) as net:
        share = SharedVolume(net)
        start(net)
        ranks = launch(net, "alike")
        key = key_of(ranks)
        began = fail(ranks)
        for a in net.agents:
            wait_bundles(a, 2)
        figure_named(net, began, "2 nodes, settle 1 s, by a volume alone")
        view = share.look()
        place = assert_one_failure(view, key, 4)
        assert list(view.bundles) == [place] and view.numbers(key) == [1], view.bundles.keys()
        everybody = dict.fromkeys(range(4), "present")
        wait_report(net[0], share, key, everybody)
        view = share.look()
        assert set(view.records[key, 1]) == {a.config["node"]["instance_id"] for a in net.agents}
        published = wait_published(share, place, 4)
        assert published["world_size"] == 4 and published["key"] == key, published
        document = report(net[1], share, place)
        assert states(document) == everybody and not document["suspects"], document
        assert document["first_failure"]["rank"] in range(4), document
        text = net[0].cli("report", share.url(place))
        assert text.returncode == 0 and place.partition("-")[0] in text.stdout, text
        # What the state knew can be found out again from the destination.
        a = net[0]
        a.stop()
        for name in os.listdir(a.path("state")):
            path = a.path("state", name)
            shutil.rmtree(path) if os.path.isdir(path) else os.unlink(path)
        a.start()
        wait_bundles(a, 2)
        view = share.look()
        view.assert_each_once()
        assert {p for p, b in view.bundles.items() if b} == {place} and view.numbers(key) == [1]
        wait_report(a, share, key, everybody)
        stop(net)


@test
def sixty_four_ranks_of_eight_nodes_have_one_name_across_a_minutes_edge():
    server = store()
    with nodes(8, (90, -90, 0, 60, -60), settle="2s", bus=True) as net:
        bucket = SharedBucket(net, server)
        start(net)
        ranks = launch(net, "large", 8)
        key = key_of(ranks)
        # four nodes were in a collective, and their ranks share a directory; the others were not
        began = fail(ranks, cluster_id=lambda rank: CID if rank < 32 else ZEROS, ends=False)
        for i, a in enumerate(net.agents):
            wait_bundles(a, 1 if i < 4 else 8, timeout=90)
        figures.append(f"64 ranks were delivered {time.time() - began:.1f} s after the hooks began")
        figure_named(net, began, "8 nodes of 8 ranks, settle 2 s")
        view = bucket.look()
        place = assert_one_failure(view, key, 4 + 32, derived=False)
        assert place == f"20260527-051259-{CID}", place
        assert [p for p, b in view.bundles.items() if b] == [place], view.bundles.keys()
        minutes = {m["bundle"]["id"].split("-")[-2][:13] for b in view.bundles.values() for m in b}
        assert len(minutes) > 2, minutes  # of their own clocks
        wait_report(net[0], bucket, key, dict.fromkeys(range(64), "present"), 60)
        stop(net)


@test
def a_restarted_job_has_another_failure_and_one_that_trickles_has_one():
    window = 4
    # the root of both jobs is where no agent is
    with nodes(2, bus=True, window=f"{window}s") as net:
        share = SharedVolume(net)
        start(net)
        trickling = launch(net, "trickling", root="10.77.0.200:46820")
        first = launch(net, "restarted", root="10.77.0.200:46820")
        fail(first)
        begun = time.monotonic()
        fail(trickling, 0)
        # The next launch: processes that start well after the failure was recorded.
        wait_for("the failure of the first launch is recorded",
                 lambda: share.look().numbers(key_of(first)) == [1])
        recorded = time.monotonic()
        for n, rank in enumerate((1, 2, 3), 1):  # over one and a half windows
            pause(begun + n * window / 2 - time.monotonic())
            fail(trickling, rank)
        pause(recorded + 2.5 - time.monotonic())
        second = launch(net, "restarted", root="10.77.0.200:46820")
        began = fail(second)
        for a in net.agents:
            wait_bundles(a, 2 + 2 + 2)
        figure_named(net, began, "the rendezvous is elsewhere, settle 1 s")
        view = share.look()
        assert_one_failure(view, key_of(trickling), 4)
        assert view.numbers(key_of(trickling)) == [1], view.decisions.keys()
        key = key_of(first)
        assert view.numbers(key) == [1, 2], view.decisions.keys()
        one, two = (assert_one_failure(view, key, 4, n) for n in (1, 2))
        assert one != two and view.decisions[key, 1]["cluster_id"] != view.decisions[key, 2][
            "cluster_id"]
        stop(net)


def pause(seconds):
    """What must come at a certain time after another thing, since that is what is tested."""
    time.sleep(max(seconds, 0))


def missing_ranks_have_their_reasons(bus):
    with nodes(4, bus=bus, shifts=(90, -90, 0, 45)) as net:
        share = SharedVolume(net)
        start(net, 0, 1, 2)
        ranks = launch(net, "missing")
        for i in range(3):
            ranks[2 * i].wait_seen()
        ranks[2].kill(2)
        ranks[5].hang(5)
        fail(ranks, 4, code=HW_ERROR)
        pause(0.5)  # the order of failures that are closer is not known
        began = fail(ranks, 0, 1, 3)
        key = key_of(ranks)
        document = wait_report(net[0], share, key, {
            0: "present", 1: "present", 2: "no_dump", 3: "present", 4: "present", 5: "no_dump",
            6: "unreachable", 7: "unreachable"})
        figures.append(f"settle 1 s: each rank had its reason {time.time() - began:.1f} s after "
                       "the last hooks began")
        for i, n in ((0, 2), (1, 1), (2, 1)):
            wait_bundles(net[i], n)
        assert_one_failure(share.look(), key, 4)
        assert document["first_failure"]["rank"] == 4, document["first_failure"]
        assert document["first_failure"]["error_code"] == HW_ERROR, document["first_failure"]
        assert document["first_failure"]["uncertainty_ms"] >= 0
        assert [s["rank"] for s in document["suspects"]] == [2], document
        text = net[0].cli("report", share.url(f".incidents/{key}")).stdout
        assert "no_dump" in text and "unreachable" in text, text
        stop(net)


@test
def a_killed_a_hung_and_an_unreachable_rank_have_their_reasons_by_the_store_alone():
    missing_ranks_have_their_reasons(bus=False)


@test
def a_killed_a_hung_and_an_unreachable_rank_have_their_reasons_with_the_bus():
    missing_ranks_have_their_reasons(bus=True)


# --- what each node has of a failure ---

def named(document):
    """{(instance id, bundle id): its object} of a report or an incident.json"""
    return {(node["instance_id"], b["id"]): b["object"]
            for node in document["nodes"] for b in node["bundles"]}


def lying(view, root):
    """{(instance id, bundle id): its object} of all that is at a volume"""
    return {(m["node"]["instance_id"], m["bundle"]["id"]): os.path.join(
        root, place, m["node"]["instance_id"], m["bundle"]["id"] + ".tar.zst")
            for place, m in view.all_manifests}


def wait_named(a, shared, key, objects, timeout=40):
    """@param objects  {bundle id: a part of its object's name} that the record of `a` has"""
    instance = a.config["node"]["instance_id"]

    def found():
        document = report(a, shared, f".incidents/{key}") or {"nodes": []}
        there = {bundle: object or "" for (node, bundle), object in named(document).items()
                 if node == instance}
        return all(part in there.get(bundle, "") for bundle, part in objects.items())
    wait_for("the node's record names where its bundles are", found, timeout, every=0.5)


@test
def whoever_has_only_the_destination_finds_each_object_of_a_failure():
    with nodes(3) as net:
        share = SharedVolume(net)
        start(net)
        jobs = [launch(net, "common", indices=[0, 1], world_size=4),
                launch(net, "single", indices=[2], root=f"{net.nodes[2].address}:1",
                       world_size=2)]
        for ranks in jobs:
            fail(ranks)
        for a in net.agents:
            wait_bundles(a, 2)
        last = {}

        def found():
            documents = last["documents"] = [
                report(net[0], share, f".incidents/{key_of(ranks)}") for ranks in jobs]
            there = last["there"] = lying(share.look(), share.path)
            if None in documents:
                return None
            snapshots = {node for node, bundle in there if bundle.startswith("snapshot-")}
            return len(snapshots) == 3 and [
                b["state"] for d in documents for n in d["nodes"] for b in n["bundles"]
                ].count("delivered") == len(there) and documents
        try:
            documents = wait_for("dumps and snapshots are delivered, and named", found, 120)
        except (AssertionError, KeyError):
            notes.append(repr(last))
            raise
        for ranks, document in zip(jobs, documents):
            objects = named(document)
            instances = {ranks[rank].agent.config["node"]["instance_id"] for rank in ranks}
            assert objects == {where: path for where, path in last["there"].items()
                               if where[0] in instances}, (objects, last["there"])
            text = net[0].cli("report", share.url(f".incidents/{key_of(ranks)}")).stdout
            evidence = text.partition("EVIDENCE")[2]
            for path in objects.values():
                assert path in evidence, text
                result = net[0].cli("verify", path)
                assert result.returncode == 0, (result.stdout, result.stderr)
            bundle = next(b for node in document["nodes"] for b in node["bundles"]
                          if b["id"].startswith("snapshot-"))
            assert bundle["kind"] == "snapshot", bundle
        # incident.json is written at times of its own
        key = key_of(jobs[0])
        place = share.look().place(key)
        dumps = {b: o for b, o in named(documents[0]).items() if "-core-dump-" in b[1]}
        wait_for("incident.json names the dumps", lambda: dumps.items() <= named(
            share.look().incidents.get(place, {"nodes": []})).items(), 60)
        # after a restart nothing is forgotten
        net[0].stop()
        net[0].start()
        wait_for("the record is written again", lambda: max(
            r["revision"] for r in share.look().records[key, 1][
                net[0].config["node"]["instance_id"]]) > next(
                    n["revision"] for n in documents[0]["nodes"]
                    if n["instance_id"] == net[0].config["node"]["instance_id"]), 60)
        assert named(report(net[0], share, f".incidents/{key}")) == named(documents[0])
        stop(net)


# --- without an arbiter ---

@test
def where_the_store_cannot_decide_the_bus_does_and_else_each_goes_alone():
    network.enter()
    server = swift.shared(address=network.HUB)
    for bus in (True, False):
        # that it knows no conditions is learned when it is asked, after settling
        with nodes(2, bus=bus, settle="2s" if bus else "1s") as net:
            bucket = SharedBucket(net, server)
            start(net)
            ranks = launch(net, "swift")
            if bus:
                wait_bus(net, ranks)
            began = fail(ranks)
            for a in net.agents:
                wait_bundles(a, 2)
            figure_named(net, began, "Swift with the bus, settle 2 s" if bus else
                         "Swift alone, settle 1 s")
            view = bucket.look()
            found = {(p, m["incident"]["agreed"]) for p, b in view.bundles.items() for m in b}
            if bus:
                assert len(found) == 1 and {how for _, how in found} == {"bus"}, found
            else:
                assert len(found) == 4 and {how for _, how in found} == {"alone"}, found
            assert not view.decisions, view.decisions
            view.assert_each_once()
            stop(net)


def wait_bus(net, ranks, timeout=40):
    """Until the agents of the job are connected."""
    for job in {id(j): j for j in ranks.values()}.values():
        job.wait_seen()
    wait_for("the nodes are connected to the root's",
             lambda: net[0].status()["agreement"]["bus"]["connected"] >= len(net.nodes) - 1,
             timeout)


@test
def nobody_waits_for_a_node_s_own_volume_a_job_of_one_node_or_what_has_no_hook():
    with nodes(2, shifts=(0,), settle=NEVER) as net:
        own, one = net[0], net[1]
        own.config["destinations"][0].pop("durable")  # nobody else sees it
        share = SharedVolume(_Only(one))
        one.config["sources"] += [one.source("jobs", "directory", "jobs/job-%p"),
                                  one.source("cores", "process-core", "cores")]
        start(net)
        ranks = launch(net, "two nodes", indices=[0])
        fail(ranks)
        wait_bundles(own, 2)
        assert {m["incident"]["agreed"] for b in View(own.out).bundles.values() for m in b
                } == {"alone"}
        # All ranks of the job are here, and so is its root.
        ranks = launch(net, "one node", indices=[1], root=f"{net.nodes[1].address}:1", world_size=2)
        fail(ranks)
        wait_bundles(one, 2)
        view = share.look()
        assert len([p for p, b in view.bundles.items() if b]) == 1, view.bundles
        # The number comes from the store when both are delivered.
        wait_for("both have the failure's number",
                 lambda: all(b["incident"]["n"] == 1 for b in base_bundles(one)))
        first, second = base_bundles(one)
        key = first["incident"]["key"]
        listed = one.bundles(f"?failure={key}/1")
        assert {b["id"] for b in listed} >= {first["id"], second["id"]}, listed
        shown = one.cli("show", first["id"]).stdout
        assert re.search(f"^(same failure)? +{second['id']} ", shown, re.M), shown
        # What no hook speaks of.
        one.incompressible(65536)
        one.core()
        one.config["sources"][0]["settle"] = "300ms"
        one.write_config()
        one.reload()
        one.dump(cluster_id=ZEROS, size=1 << 13, instance_id=one.config["node"]["instance_id"])
        wait_for("all five are delivered", lambda: [
            b["state"] for b in one.bundles() if b["source"] != "agent"].count("delivered") == 5)
        figure_added(own, "a node's own volume, settle 10 min")
        figure_added(one, "a job of one node, and three without a hook, settle 10 min")
        assert not [b for b in one.bundles() if b["source"] != "agent" and b["state"] in (
            "ready", "settling")]
        stop(net)


class _Only:
    """A network of which one agent is meant."""

    def __init__(self, a):
        self.agents = [a]


# --- the store is away ---

@test
def without_the_store_a_bundle_goes_elsewhere_under_its_own_name_and_a_record_says_where():
    server = store()
    with nodes(2) as net:
        bucket = SharedBucket(net, server)
        two, waiting = net.agents
        two.config["destinations"].append(two.volume("second", "second"))
        start(net)
        ranks = launch(net, "away")
        key = key_of(ranks)
        net.cut_store(0, 1, silently=False)
        fail(ranks)
        wait_for("both dumps are at the second destination",
                 lambda: View(two.path("second")).n_bundles == 2, 60)
        elsewhere = View(two.path("second"))
        assert {m["incident"]["agreed"] for b in elsewhere.bundles.values() for m in b
                } == {"alone"}
        ready = wait_bundles(waiting, 2, "ready")
        wait_for("explain says that the destination is away",
                 lambda: "no route to host" in waiting.cli("explain", ready[0]["id"]).stdout)
        net.join_store(0, 1)
        for a in net.agents:
            wait_bundles(a, 2)
        view = bucket.look()
        view.assert_each_once()
        assert view.numbers(key) == [1], view.decisions
        place = view.place(key)
        assert len(view.bundles[place]) == 2, view.bundles  # of the node that waited
        alone = {m["bundle"]["id"]: p for p, b in view.bundles.items() for m in b if p != place}
        assert set(alone) == {m["bundle"]["id"] for b in elsewhere.bundles.values() for m in b}
        assert View(two.path("second")).n_bundles == 2
        wait_named(two, bucket, key, alone)
        wait_report(waiting, bucket, key, dict.fromkeys(range(4), "present"))
        stop(net)


@test
def a_partition_ends_with_each_bundle_once_and_one_name_or_a_record_says_where():
    server = store()
    with nodes(8, bus=True) as net:
        bucket = SharedBucket(net, server)
        here, there = range(4), range(4, 8)
        elsewhere = (4, 5)  # they have a second destination, 6 and 7 have none
        for i in elsewhere:
            net[i].config["destinations"].append(net[i].volume("second", "second"))
        start(net)
        ranks = launch(net, "parted", 1)
        key = key_of(ranks)
        net.split(here, there)
        parted = time.monotonic()
        fail(ranks)
        for i in here:
            wait_bundles(net[i], 1)
        assert_one_failure(bucket.look(), key, 4)
        for i in elsewhere:
            wait_for("it is at the second destination",
                     lambda i=i: View(net[i].path("second")).n_bundles == 1, 60)
        for i in (6, 7):
            assert [b["state"] for b in base_bundles(net[i])] == ["ready"], base_bundles(net[i])
        pause(parted + PARTITION - time.monotonic())
        figures.append(f"the partition was healed after {time.monotonic() - parted:.0f} s")
        net.heal()
        healed = time.monotonic()
        for i in there:
            wait_bundles(net[i], 1)
        figures.append(f"all were delivered {time.monotonic() - healed:.1f} s later")
        view = bucket.look()
        view.assert_each_once()
        assert view.n_bundles == 8 and view.numbers(key) == [1], view.decisions.keys()
        place = view.place(key)
        assert len(view.bundles[place]) == 6, view.bundles
        for i in elsewhere:
            instance = net[i].config["node"]["instance_id"]
            alone = {m["bundle"]["id"]: p for p, b in view.bundles.items() for m in b
                     if p != place and m["node"]["instance_id"] == instance}
            assert len(alone) == 1, alone
            wait_named(net[i], bucket, key, alone)
        wait_report(net[7], bucket, key, dict.fromkeys(range(8), "present"))
        stop(net)


# --- operators ---

@test
def why_a_bundle_waits_is_explained_and_drain_and_once_end_it():
    with nodes(2, settle=NEVER) as net:
        share = SharedVolume(net)
        start(net)
        a, other = net.agents
        other.stop()  # its ranks leave their notes in the mailbox
        ranks = launch(net, "waiting")
        key = key_of(ranks)
        fail(ranks)
        ready = wait_bundles(a, 2, "ready")
        text = a.cli("explain", ready[0]["id"]).stdout
        assert key in text and "name" in text, text
        assert not share.look().n_bundles
        result = a.cli("drain", "--timeout", f"{20 * PATIENCE:.0f}s")
        assert result.returncode == 0 and "safe to terminate" in result.stdout, result
        wait_bundles(a, 2)
        place = assert_one_failure(share.look(), key, 2)
        known = [f for f in a.status()["agreement"]["failures"] if f["key"] == key]
        assert len(known) == 1 and known[0]["n"] == 1 and known[0]["agreed"] == "store", known
        assert known[0]["cluster_id"] == share.look().decisions[key, 1]["cluster_id"], known
        for b in ready:
            lines = [line for line in a.log.splitlines() if b["id"] in line and
                     f"failure {key}/1" in line]
            assert lines, "the log does not name the failure"
            assert place.rpartition("-")[2] in a.cli("explain", b["id"]).stdout
        assert place.rpartition("-")[2] in a.cli("list").stdout, a.cli("list").stdout
        metrics = a.curl("/metrics").stdout
        assert 'neuron_collectd_agreement_rounds_total{result="store"} 2' in metrics, metrics
        a.stop()
        other.config["sources"][0]["settle"] = "1ms"
        result = other.once("--timeout", "60s")
        assert result.returncode == 0, result.stdout + result.stderr
        view = share.look()
        assert_one_failure(view, key, 4)
        view.assert_each_once()
        # nobody is there any more to write it later
        assert named(report(a, share, f".incidents/{key}")) == lying(view, share.path)


if __name__ == "__main__":
    sys.exit(main(cleanup))
