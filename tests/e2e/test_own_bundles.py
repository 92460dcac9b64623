#!/usr/bin/env python3
"""What the agent itself makes (snapshots, crash reports, OOM records) is a bundle of its own: beside
the dump that it is about, named in its manifest, once, whatever happens in between."""
import hashlib
import json
import os
import random
import re
import sys
import time

sys.dont_write_bytecode = True  # the source tree may be read-only, and is packed as it is
sys.path.insert(0, os.path.join(os.path.dirname(os.path.realpath(__file__)), "..", "harness"))
# pylint: disable=wrong-import-position
from agent import (Agent, check_bundle, cleanup, is_instrumented, leftovers, object_of, tree,
                   wait_for)
from tap import main, notes, test


MADE = 1779859953  # 2026-05-27T05:32:33Z


def directory_of(a):
    return a.path("state", "evidence")


def publish(a, name, files, *, related=(), uid=0):
    """As evidence_write() leaves it; the agent is not notified, so that a scan finds it."""
    new = a.path("state", f"made-{name}")
    os.makedirs(new, mode=0o700)
    about = {"uid": uid, "related": list(related), "boot": "", "processes": []}
    for file, data in (files | {".about.json": json.dumps(about).encode()}).items():
        with open(os.path.join(new, file), "wb") as f:
            f.write(data)
        os.utime(os.path.join(new, file), (MADE, MADE))
    os.rename(new, os.path.join(directory_of(a), name))


def wanted(files):
    return {os.fsencode(p): (len(data), hashlib.sha256(data).hexdigest())
            for p, data in files.items()}


def left(a):
    return [n for n in os.listdir(directory_of(a)) if not n.startswith(".neuron-collectd")]


def verify(a, manifest):
    result = a.cli("verify", object_of(manifest))
    assert result.returncode == 0, result.stdout + result.stderr


def by_kind(a, where=None):
    return {m["bundle"]["kind"]: (path, m) for path, m in a.manifests(where)}


def block(a):
    """Nothing can be written to the destination."""
    os.rmdir(a.out)
    with open(a.out, "wb"):
        pass


SNAPSHOT = {"snapshot.json": b'{"schema": "neuron-collectd/snapshot/1"}\n', "raw": b"x" * 70000}


@test
def a_snapshot_lies_beside_its_dump_and_names_it():
    a = Agent()
    unit = a.dump()
    files = tree(unit)
    a.start()
    a.wait_delivered(1)
    (dump,) = a.bundles()
    publish(a, "snapshot-20260527T051233-1", SNAPSHOT, related=[dump["id"]])
    a.ask("flush")
    a.wait_delivered(2)
    found = by_kind(a)
    path, m = found["snapshot"]
    check_bundle(found["neuron-core-dump"][0], files, tools=("tar",))
    check_bundle(path, wanted(SNAPSHOT), tools=("tar", "bsdtar"))
    assert os.path.dirname(path) == os.path.dirname(found["neuron-core-dump"][0]), found
    assert m["bundle"]["related"] == [{"kind": "neuron-core-dump", "id": dump["id"]}], m["bundle"]
    assert m["bundle"]["complete"] and m["source"]["name"] == "agent", m
    assert {e["kind"] for e in m["members"]} == {"snapshot"}, m["members"]
    there = found["neuron-core-dump"][1]["incident"]
    assert m["incident"] | {"job": None} == there | {"job": None}, (m["incident"], there)
    assert found["neuron-core-dump"][1]["bundle"]["related"] == []
    verify(a, path)
    shown = a.cli("show", dump["id"]).stdout
    assert re.search(f"^about it +{m['bundle']['id']} \\(delivered\\)$", shown, re.M), shown
    shown = a.cli("show", m["bundle"]["id"]).stdout
    assert re.search(f"^is about +{dump['id']}$", shown, re.M), shown
    assert f"It is about {dump['id']}." in a.cli("explain", m["bundle"]["id"]).stdout
    wait_for("its directory is removed", lambda: not left(a))
    a.stop()


@test
def a_dump_is_delivered_where_the_agents_own_directory_cannot_be_made():
    a = Agent()
    a.start()
    a.stop()
    os.rmdir(directory_of(a))
    with open(directory_of(a), "wb"):
        pass
    a.dump()
    a.start()
    a.wait_delivered(1)
    assert "cannot use" in a.log and "dumps are delivered" in a.log, a.log
    wait_for("the status names the source", lambda: [
        s for s in a.status()["sources"] if s["name"] == "agent" and s["unseen"]])
    a.stop()


def with_dumps_to_second():
    """@return an agent with two volumes, the dumps' source having the second one alone"""
    a = Agent()
    a.config["destinations"].append(a.volume("second", "out2"))
    a.config["sources"][0]["destinations"] = ["second"]
    return a


@test
def about_nothing_it_goes_to_all_destinations_and_has_no_incident():
    a = with_dumps_to_second()
    a.start()
    publish(a, "snapshot-20260527T051233-1", SNAPSHOT)
    a.ask("flush")
    a.wait_delivered(1)
    for where in (a.out, a.path("out2")):
        _, m = a.only_manifest(where)
        assert m["incident"] is None and m["bundle"]["related"] == [], m
    a.stop()


@test
def what_is_about_a_dump_goes_where_the_dump_goes():
    a = with_dumps_to_second()
    a.dump()
    a.start()
    a.wait_delivered(1)
    (dump,) = a.bundles()
    publish(a, "crash-report-" + dump["id"], {"crash.json": b"{}"}, related=[dump["id"]])
    a.ask("flush")
    a.wait_delivered(2)
    assert not a.manifests(a.out), "it went further than the dump"
    assert set(by_kind(a, a.path("out2"))) == {"neuron-core-dump", "crash-report"}
    a.stop()


@test
def where_retention_deletes_it_keeps_no_links_to_what_the_agent_has_made():
    a = Agent()
    a.config["retention"] = {"after_delivery": "delete"}
    a.start()
    publish(a, "snapshot-20260527T051233-1", SNAPSHOT)
    a.ask("flush")
    a.wait_delivered(1)
    wait_for("its directory is removed", lambda: not left(a))
    wait_for("its links are removed", lambda: not tree(directory_of(a)))
    (own,) = a.bundles()
    assert not own["links_held"], own
    a.stop()


@test
def what_is_underway_goes_elsewhere_at_an_operators_request():
    a = Agent()
    a.config["destinations"].append(a.volume("second", "out2"))
    a.config["sources"][0]["destinations"] = ["archive"]
    block(a)
    a.dump()
    a.start()
    wait_for("the dump is found", lambda: a.bundles())
    (dump,) = a.bundles()
    publish(a, "crash-report-" + dump["id"], {"crash.json": b"{}"}, related=[dump["id"]])
    a.ask("flush")
    a.wait_known(2)
    a.config["sources"][0]["destinations"] = ["archive", "second"]
    a.write_config()
    a.reload()
    wait_for("it is reloaded", lambda: "configuration reloaded" in a.log)
    result = a.cli("redeliver", "--destination", "second")
    assert result.returncode == 0, result
    wait_for("both are there", lambda: len(a.manifests(a.path("out2"))) == 2)
    os.remove(a.out)
    os.mkdir(a.out)
    a.ask("flush")
    a.wait_delivered(2)
    own = next(b for b in a.bundles() if b["source"] == "agent")
    assert {d["destination"] for d in own["deliveries"]} == {"archive", "second"}, own
    a.stop()


@test
def what_is_cancelled_is_removed_and_explain_says_so():
    a = Agent()
    block(a)
    a.start()
    publish(a, "snapshot-20260527T051233-1", SNAPSHOT)
    a.ask("flush")
    a.wait_known(1)
    (own,) = a.bundles()
    assert a.cli("cancel", own["id"]).returncode == 0
    wait_for("its directory is removed", lambda: not left(a))
    assert "its files were removed" in a.cli("explain", own["id"]).stdout
    a.stop()


@test
def a_dump_waits_for_nothing_and_the_evidence_for_its_dump():
    a = Agent()
    a.config["sources"][0]["settle"] = "5s"
    a.start()
    a.dump()
    wait_for("it is found", lambda: a.bundles())
    (dump,) = a.bundles()
    publish(a, "snapshot-20260527T051233-1", SNAPSHOT, related=[dump["id"]])
    a.ask("scan")
    a.wait_delivered(2)
    found = by_kind(a)
    assert os.path.dirname(found["snapshot"][0]) == os.path.dirname(found["neuron-core-dump"][0])
    a.stop()


@test
def what_has_no_about_file_is_delivered_all_the_same():
    a = Agent()
    a.start()
    new = a.path("state", "made")
    os.mkdir(new)
    with open(os.path.join(new, "snapshot.json"), "wb") as f:
        f.write(b"{}")
    os.rename(new, os.path.join(directory_of(a), "snapshot-20260527T051233-7"))
    a.ask("flush")
    a.wait_delivered(1)
    assert "does not say what it is about" in a.log
    wait_for("its directory is removed", lambda: not left(a))
    a.stop()


@test
def kill_9_at_random_moments_sends_everything_once():
    seed = int(os.environ.get("NC_SEED", "20260527"))
    notes.append(f"again with NC_SEED={seed}")
    rng = random.Random(seed)
    a = Agent()
    a.config["sources"][0]["settle"] = "100ms"
    a.config["sources"][0]["scan_interval"] = "1s"
    a.start()
    a.stop()
    own, dumps = {}, {}
    for _ in range(24 if not is_instrumented() else 6):
        a.start(wait=False)
        for _ in range(rng.randrange(3)):
            number = len(dumps) + 1
            unit = a.dump(size=rng.choice((4096, 300_000)), cluster_id=f"{number:016x}",
                          pid=1000 + number, seed=number)
            dumps[unit] = tree(unit)
        for _ in range(rng.randrange(3)):
            name = f"snapshot-20260527T051233-{len(own) + 1}"
            own[name] = {"s.json": f"{len(own)}\n".encode() * rng.choice((1, 5000))}
            publish(a, name, own[name])
        # the moment is chance, nothing is waited for
        time.sleep(rng.choice((0.005, 0.05, 0.1, 0.2, 0.3, 0.6)) * rng.random() * 2)
        assert a.process.poll() is None
        a.kill()
    a.start()
    a.ask("flush")
    a.wait_known(len(own) + len(dumps))
    a.wait_all()
    sent = {}
    for path, m in a.manifests():
        name = os.path.basename(m["source"]["path"])
        assert name not in sent, f"sent twice: {name}: {sent[name]} and {path}"
        sent[name] = path
        verify(a, path)
        if name in own:
            check_bundle(path, wanted(own[name]), tools=("tar",))
    assert set(sent) == set(own) | {os.path.basename(os.fsdecode(u)) for u in dumps}
    assert not leftovers(a.out)
    assert a.assert_sum()["delivered"] == len(a.manifests())
    wait_for("the directories are removed", lambda: not left(a))
    notes.append(f"{len(dumps)} dumps, {len(own)} of the agent's own")
    a.stop()


@test
def with_the_state_lost_nothing_is_sent_twice():
    a = Agent()
    a.dump()
    a.start()
    a.wait_delivered(1)
    (dump,) = a.bundles()
    publish(a, "snapshot-20260527T051233-1", SNAPSHOT, related=[dump["id"]])
    a.ask("flush")
    a.wait_delivered(2)
    before = sorted(path for path, _ in a.manifests())
    a.stop()
    for name in os.listdir(a.path("state")):
        if name.startswith("state.db"):
            os.remove(a.path("state", name))
    publish(a, "snapshot-20260527T051233-1", SNAPSHOT, related=[dump["id"]])
    a.start()
    a.ask("flush")
    a.wait_all()
    time.sleep(1.5)  # for what must not come
    assert sorted(path for path, _ in a.manifests()) == before
    a.stop()


if __name__ == "__main__":
    sys.exit(main(cleanup))
