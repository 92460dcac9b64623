#!/usr/bin/env python3
"""Who is who in a job: one real agent, processes with the environment of their launcher that hold a
device, the real hook. What `report`, incident.json, manifests and `list` say of each rank is what
happened to it, whatever the order of notes, dumps and deliveries.
"""
import json
import os
import re
import sys
import time

sys.dont_write_bytecode = True  # the source tree may be read-only, and is packed as it is
sys.path.insert(0, os.path.join(os.path.dirname(os.path.realpath(__file__)), "..", "harness"))
# pylint: disable=wrong-import-position
import agent
import failing_jobs
from agent import Agent, wait_for
from failing_jobs import Job
from tap import main, notes, test

CID = "d99e36ea74c263ca"
DATE_TIME = "20260527-051259"


def cleanup(failed=False):
    failing_jobs.cleanup(failed)
    agent.cleanup(failed)


# --- the scene ---

def node(**agreement):
    """An agent that agrees with others, of whom there are none."""
    a = Agent()
    # The runtime calls its hook when a dump is complete; what no hook speaks of settles.
    a.config["sources"][0]["settle"] = "2s"
    a.config["agreement"] = {"settle": "200ms", "window": "2m", "listen": f"ipc://{a.path('run', 'bus')}"} | agreement
    return a


def report(a, key):
    """@return the document, or None: there is none yet"""
    result = a.cli("--json", "report", os.path.join(a.out, ".incidents", key))
    return json.loads(result.stdout) if result.stdout.strip() else None


def states(document):
    """{rank: `present`, `late`, or why it is missing}"""
    return {r["rank"]: r["reason"] if r["state"] == "missing" else r["state"]
            for r in document["ranks"]}


def wait_report(a, key, wanted, timeout=30):
    """@return the first report of a failure that has these states of ranks"""
    last = {}

    def found():
        document = last["document"] = report(a, key)
        return document and states(document) == wanted and document
    try:
        return wait_for("the report has every rank", found, timeout, every=0.3)
    except AssertionError:
        notes.append(f"the last report: {json.dumps(last.get('document'))}\nwanted: {wanted}")
        raise


def fail_in_turn(job, ranks, gap, **options):
    """These ranks fail so many seconds apart, in one directory."""
    for rank in ranks:
        job.fail(rank, date_time=DATE_TIME, cluster_id=CID, size=1 << 13, **options)
        time.sleep(gap)  # the order of a real failure, which is what is tested


def members_pids(manifest):
    """The processes that a bundle has files of, by their names."""
    return {int(found[1]) for m in manifest["members"]
            if (found := re.search(r"pid-(\d+)", os.path.basename(m["path"])))
            and not m["path"].startswith(".neuron-collectd")}


# --- ranks of one directory ---

@test
def ranks_of_one_directory_that_fail_a_moment_apart_are_all_present():
    a = node(settle="10s")
    a.start()
    job = Job(a, "trickle", 8).start(*range(8))
    job.wait_seen()
    pids = {rank: job.pid(rank) for rank in range(8)}
    fail_in_turn(job, [3, 0, 1, 2, 4, 5, 6, 7], 0.3)
    present = dict.fromkeys(range(8), "present")
    document = wait_report(a, job.incident_key, present)
    assert document["first_failure"]["rank"] == 3, document["first_failure"]
    manifests = {m["bundle"]["id"]: m for _, m in a.manifests()}
    assert len(manifests) > 1, "nothing came late"
    named = {row["rank"]: row["bundle"] for row in document["ranks"]}
    for rank, bundle in named.items():
        assert pids[rank] in members_pids(manifests[bundle]), (rank, bundle)
    rows = {b["id"]: b for b in a.bundles()}
    for bundle, manifest in manifests.items():
        inside = {r for r, pid in pids.items() if pid in members_pids(manifest)}
        if not inside:  # what was collected meanwhile
            continue
        rank = manifest["incident"]["job"]["rank"]
        assert rank in inside, (bundle, rank, inside)
        assert rows[bundle]["failure"]["rank"] == rank, rows[bundle]["failure"]
        if manifest["bundle"]["supplement_of"]:
            said = {f["rank"] for f in manifest.get("failures", [])} or {rank}
            assert said == inside, (said, inside)
    a.stop()
    a.start()
    # The notes are read again, and what was delivered stays delivered.
    again = report(a, job.incident_key)
    assert {row["rank"]: row["bundle"] for row in again["ranks"]} == named
    assert states(again) == present
    a.stop()


if __name__ == "__main__":
    sys.exit(main(cleanup))
