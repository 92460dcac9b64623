#!/usr/bin/env python3
"""A destination that was configured later gets the bundles of the past when the operator asks for
it, and nothing is said of it before."""
import json
import os
import shutil
import sys

sys.dont_write_bytecode = True  # the source tree may be read-only, and is packed as it is
sys.path.insert(0, os.path.join(os.path.dirname(os.path.realpath(__file__)), "..", "harness"))
# pylint: disable=wrong-import-position
from agent import Agent, cleanup, wait_for
from tap import main, test


def delivered_to_archive():
    """An agent that has delivered one dump, before it got a second destination."""
    a = Agent()
    os.mkdir(a.path("second"))
    unit = a.dump(size=65536)
    a.start()
    a.wait_all()
    add_second(a)
    return a, unit


def add_second(a):
    a.config["destinations"].append(a.volume("second", "second"))
    a.write_config()
    a.reload()
    wait_for("the second destination is configured", lambda: len(
        a.status()["destinations"]) == 2, 20)


def lacking(a):
    return {d["name"]: d["lacking"] for d in a.status()["destinations"]}


def redeliver(a, *options):
    result = a.cli("redeliver", *options)
    assert result.returncode == 0, result
    return result.stdout


def explain(a, bundle):
    return a.cli("explain", bundle).stdout


def verify(a, path):
    result = a.cli("verify", path)
    assert result.returncode == 0, result


@test
def proof_is_claimed_only_of_the_destinations_that_the_bundle_had():
    a, _ = delivered_to_archive()
    bundle = a.bundles()[0]["id"]
    text = explain(a, bundle)
    assert "archive" in text and "Every destination" not in text, text
    assert "never sent to second" in text and "redeliver --destination second" in text, text
    assert lacking(a) == {"archive": 0, "second": 1}, lacking(a)
    assert "never sent there: 1 bundle" in a.cli("status").stdout
    a.config["destinations"][0]["durable"] = True
    drained = a.cli("drain", "--timeout", "30s")
    assert "never to 'second'" in drained.stdout or drained.returncode == 1, drained
    a.stop()


@test
def redeliver_ships_bundles_of_the_past_to_a_new_destination():
    a, _ = delivered_to_archive()
    out = redeliver(a, "--destination", "second")
    assert "1 bundle" in out, out
    a.wait_all()
    _, first = a.only_manifest()
    path, second = a.only_manifest(a.path("second"))
    verify(a, path)
    assert [m["sha256"] for m in first["members"]] == [m["sha256"] for m in second["members"]]
    assert first["bundle"]["id"] == second["bundle"]["id"]
    assert lacking(a) == {"archive": 0, "second": 0}, lacking(a)
    bundle = a.bundles()[0]
    assert [d["state"] for d in bundle["deliveries"]] == ["delivered"] * 2, bundle
    assert bundle["state"] == "delivered" and a.assert_sum()["delivered"] == 1, bundle
    assert "nothing to redeliver" in redeliver(a), "twice"
    a.stop()
    a.start()  # and nothing of it is forgotten, or shipped again
    a.wait_all()
    assert a.counts()["discovered"] == 1 and lacking(a)["second"] == 0
    a.stop()


@test
def what_is_gone_at_the_source_stays_delivered_where_it_was():
    a, unit = delivered_to_archive()
    shutil.rmtree(unit)
    redeliver(a)
    a.wait_all()
    counts = a.assert_sum()
    assert counts["delivered"] == 1 and counts["vanished"] == 0, counts
    bundle = a.bundles()[0]
    assert [d["destination"] for d in bundle["deliveries"]] == ["archive"], bundle
    assert "not redelivered" in bundle["reason"], bundle
    assert "not redelivered" in explain(a, bundle["id"])
    assert "not redelivered" in a.cli("list").stdout
    assert lacking(a)["second"] == 1 and not a.manifests(a.path("second"))
    a.stop()


@test
def what_was_delivered_incomplete_and_is_gone_is_no_failure():
    a = Agent()
    os.mkdir(a.path("second"))
    a.config["sources"][0]["max_files"] = 1
    a.config["retry"]["quarantine_after"] = 1
    unit = a.dump(size=65536)
    a.start()
    a.wait_all()
    assert not a.bundles()[0]["complete"]
    add_second(a)
    shutil.rmtree(unit)
    os.mkdir(unit)
    redeliver(a)
    a.wait_all()
    counts = a.assert_sum()
    assert counts["delivered"] == 1 and counts["quarantined"] == 0, a.bundles()
    assert "not redelivered" in a.bundles()[0]["reason"]
    a.stop()


@test
def a_copy_that_lacks_what_is_gone_since_reports_so():
    a, unit = delivered_to_archive()
    _, first = a.only_manifest()
    gone = first["members"][0]["path"]
    os.remove(os.path.join(unit, gone))
    with open(os.path.join(unit, "new"), "wb") as f:  # follows as a supplement, to both
        f.write(b"x" * 1000)
    wait_for("the supplement is delivered", lambda: a.counts()["delivered"] == 2, 30)
    redeliver(a, "--destination", "second")
    a.wait_all()
    copies = {m["bundle"]["id"]: m for _, m in a.manifests(a.path("second"))}
    copy = copies[first["bundle"]["id"]]
    paths = [m["path"] for m in copy["members"]]
    assert gone not in paths and "new" not in paths and paths, paths
    assert not copy["bundle"]["complete"] and "gone" in json.dumps(copy["bundle"]["reasons"]), copy
    assert a.api("/v1/bundles/" + first["bundle"]["id"])["complete"], \
        "the first copy is complete"
    a.stop()


@test
def supplements_are_redelivered_and_their_numbers_not_used_again():
    a = Agent()
    os.mkdir(a.path("second"))
    unit = a.dump(size=65536)
    a.start()
    a.wait_all()
    with open(os.path.join(unit, "late-1"), "wb") as f:
        f.write(b"1" * 1000)
    wait_for("the supplement is delivered", lambda: a.counts()["delivered"] == 2, 30)
    add_second(a)
    redeliver(a)
    with open(os.path.join(unit, "late-2"), "wb") as f:
        f.write(b"2" * 1000)
    wait_for("all have arrived", lambda: len(a.manifests(a.path("second"))) == 3, 30)
    a.wait_all()
    for place in ("out", "second"):
        members = {}
        for path, m in a.manifests(a.path(place)):
            verify(a, path)
            for member in m["members"]:
                assert member["path"] not in members, (place, member)
                members[member["path"]] = member
        assert {"late-1", "late-2"} <= set(members), (place, members)
    a.stop()


@test
def a_redelivery_holds_the_files_and_continues_after_kill():
    a = Agent()
    os.mkdir(a.path("second"))
    a.config["sources"].append(a.source("other", "directory", "jobs/job-%p",
                                        destinations=["archive"]))
    a.config["retention"] = {"after_delivery": "delete", "keep_for": "1h", "max_use": "off",
                             "keep_free": "off"}
    unit = a.dump(size=65536)
    a.start()
    a.wait_all()
    a.config["destinations"].append(a.volume("second", "second", min_free="100%"))
    a.write_config()
    a.reload()
    wait_for("the second destination is configured", lambda: len(
        a.status()["destinations"]) == 2, 20)
    redeliver(a)
    a.config["retention"]["keep_for"] = "0s"
    a.write_config()
    a.reload()
    other = a.incompressible(1000)
    wait_for("retention deletes what is delivered", lambda: not os.path.exists(other), 60)
    assert os.path.isdir(unit), "retention deleted what is to be delivered once more"
    a.kill()
    a.config["destinations"][1] = a.volume("second", "second")
    a.start()
    a.wait_all()
    assert len(a.manifests(a.path("second"))) == 1
    wait_for("retention deletes it then", lambda: not os.path.exists(unit), 60)
    a.stop()


@test
def a_bundle_that_waits_for_a_removed_destination_goes_to_the_new_one():
    a = Agent()
    for name in ("second", "third"):
        os.mkdir(a.path(name))
    a.config["destinations"].append(a.volume("second", "second", min_free="100%"))
    a.dump(size=65536)
    a.start()
    wait_for("one copy is there", lambda: len(a.manifests()) == 1, 30)
    a.config["destinations"][1] = a.volume("third", "third")
    a.write_config()
    a.reload()
    wait_for("it is named", lambda: "redeliver" in a.curl("/readyz").stdout, 20)
    bundle = a.bundles()[0]["id"]
    assert "no longer configured" in explain(a, bundle) and "redeliver" in explain(a, bundle)
    redeliver(a)
    a.wait_all()
    assert len(a.manifests(a.path("third"))) == 1
    assert [d["destination"] for d in a.bundles()[0]["deliveries"]] == ["archive", "third"]
    assert a.curl("/readyz").returncode == 0
    a.stop()


@test
def what_settles_again_for_a_removed_destination_is_delivered_when_all_others_have_it():
    a = Agent()
    a.config["destinations"].append(a.volume("second", "second", min_free="100%"))
    a.dump(size=65536)
    a.start()
    wait_for("one copy is there", lambda: len(a.manifests()) == 1, 30)
    a.stop()
    a.sql("UPDATE bundles SET state = 'settling'")  # as when a file changes while it is read
    a.config["sources"][0]["settle"] = "10m"
    a.config["destinations"].pop()
    a.start()
    a.wait_known(1)
    redeliver(a)
    wait_for("it is delivered", lambda: a.counts()["delivered"] == 1, 20)
    assert [d["destination"] for d in a.bundles()[0]["deliveries"]] == ["archive"]
    a.assert_sum()
    a.stop()


@test
def a_cancelled_redelivery_leaves_the_bundle_delivered():
    a = Agent()
    os.mkdir(a.path("second"))
    a.dump(size=65536)
    a.start()
    a.wait_all()
    a.config["destinations"].append(a.volume("second", "second", min_free="100%"))
    a.write_config()
    a.reload()
    wait_for("the second destination is configured", lambda: len(
        a.status()["destinations"]) == 2, 20)
    redeliver(a)
    bundle = a.bundles()[0]
    assert bundle["state"] != "delivered", bundle
    drained = a.cli("drain", "--timeout", "1s")
    assert drained.returncode == 1, drained
    assert a.cli("cancel", bundle["id"]).returncode == 0
    wait_for("it is delivered as before", lambda: a.counts()["delivered"] == 1, 20)
    assert a.assert_sum()["cancelled"] == 0
    assert len(a.bundles()[0]["deliveries"]) == 1, a.bundles()
    a.stop()


@test
def redeliver_refuses_what_is_not_there_and_obeys_since():
    a, _ = delivered_to_archive()
    result = a.cli("redeliver", "--destination", "typo")
    assert result.returncode == 1 and "typo" in result.stderr, result
    assert a.cli("redeliver", "--since", "yesterday").returncode == 2
    a.stop()
    a.sql("UPDATE bundles SET first_seen_usec = first_seen_usec - 3600000000")
    a.start()
    assert "nothing to redeliver" in redeliver(a, "--since", "10m")
    assert "1 bundle" in redeliver(a, "--since", "2h")
    a.wait_all()
    a.stop()


if __name__ == "__main__":
    sys.exit(main(cleanup))
