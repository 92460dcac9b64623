#!/usr/bin/env python3
"""Who is who in a job: one real agent, processes with the environment of their launcher that hold a
device, the real hook. What `report`, incident.json, manifests and `list` say of each rank is what
happened to it, whatever the order of notes, dumps and deliveries.
"""
import hashlib
import json
import os
import re
import shutil
import signal
import sys
import time

sys.dont_write_bytecode = True  # the source tree may be read-only, and is packed as it is
sys.path.insert(0, os.path.join(os.path.dirname(os.path.realpath(__file__)), "..", "harness"))
# pylint: disable=wrong-import-position
import agent
import failing_jobs
import make_dump
from agent import Agent, need_root, wait_for
from failing_jobs import Job
from test_notes import clean_up as unmount, serve_faultfs, stand_still
from tap import main, notes, test

CID = "d99e36ea74c263ca"
DATE_TIME = "20260527-051259"


def cleanup(failed=False):
    failing_jobs.cleanup(failed)
    unmount(failed)


# --- the scene ---

def node(**agreement):
    """An agent that agrees with others, of whom there are none."""
    a = Agent()
    # The runtime calls its hook when a dump is complete; what no hook speaks of settles.
    a.config["sources"][0]["settle"] = "2s"
    a.config["agreement"] = {"settle": "20s", "window": "2m",
                             "listen": f"ipc://{a.path('run', 'bus')}"} | agreement
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
    a = node()
    a.start()
    job = Job(a, "trickle", 8).start(*range(8))
    job.wait_seen()
    pids = {rank: job.pid(rank) for rank in range(8)}
    fail_in_turn(job, [3], 0)
    a.wait_delivered(1)
    fail_in_turn(job, [0, 1, 2, 4, 5, 6, 7], 0.3)
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


# --- who a process belongs to ---

@test
def two_jobs_of_a_slurm_cluster_that_fail_together_are_two_failures():
    a = node()
    a.start()
    jobs = [Job(a, number, 2, launcher="slurm").start(0, 1) for number in ("77", "78")]
    jobs[0].wait_seen()
    jobs[1].wait_seen()
    for n, job in enumerate(jobs):
        for rank in (0, 1):
            job.fail(rank, date_time=f"20260527-0512{n}{rank}", code=1201 + n, size=1 << 13)
    for n, job in enumerate(jobs):
        document = wait_report(a, job.incident_key, {0: "present", 1: "present"})
        assert document["job"] == job.job_key, document["job"]
        assert {r["pid"] for r in document["ranks"]} == {job.pid(0), job.pid(1)}, document
        assert {r["error_code"] for r in document["ranks"]} == {1201 + n}, document
    a.wait_delivered(4)
    said = {m["incident"]["job"]["key"] for _, m in a.manifests()}
    assert said == {job.job_key for job in jobs}, said
    a.stop()


@test
def a_note_of_a_program_that_sets_ranks_itself_joins_the_process_of_its_launcher():
    a = node()
    a.start()
    jobs = [Job(a, "79", 4, launcher=launcher, sets_ranks=True).start(*range(4))
            for launcher in ("slurm", "openmpi")]
    for job in jobs:
        job.wait_seen()
        fail_in_turn(job, range(4), 0, code=1202)
    for job in jobs:
        document = wait_report(a, job.incident_key, dict.fromkeys(range(4), "present"))
        assert {r["error_code"] for r in document["ranks"]} == {1202}, document
        assert document["first_failure"]["error_code"] == 1202, document
    found = {f["key"] for f in a.status()["agreement"]["failures"]}
    assert found == {job.incident_key for job in jobs}, found
    a.stop()


@test
def after_an_elastic_restart_with_fewer_ranks_nobody_is_missing():
    a = node()
    a.start()
    before = Job(a, "elastic", 6).start(*range(6)).wait_seen()
    before.kill(*range(6))
    wait_for("their end is known", lambda: a.status()["agreement"]["ranks"] == 0)
    after = Job(a, "elastic", 4).start(*range(4)).wait_seen()
    for rank in range(4):
        after.fail(rank, date_time=DATE_TIME, cluster_id=CID, size=1 << 13)
    document = wait_report(a, after.incident_key, dict.fromkeys(range(4), "present"))
    assert document["world_size"] == 4 and not document["suspects"], document
    result = a.cli("report", os.path.join(a.out, ".incidents", after.incident_key))
    assert result.returncode == 0 and "4 present, 0 late, 0 missing, of 4" in result.stdout, result
    a.stop()


@test
def a_note_whose_directory_did_not_answer_is_checked_again():
    need_root()
    a = node()
    slow = a.path("slow")
    server = serve_faultfs(a, slow)
    a.config["sources"].append(a.source("slow", "neuron-core-dump", "slow/dt-%d-cid-%c",
                                        watch="scan", settle="2s"))
    a.start()
    job = Job(a, "slow", 2).start(0, 1).wait_seen()
    directory = os.path.join(slow, f"dt-{DATE_TIME}-cid-{CID}")
    os.makedirs(directory)
    time.sleep(1.1)  # what the kernel remembers of the directory is over
    stand_still(server)
    hooks = [job.hook(rank, directory, date_time=DATE_TIME, cluster_id=CID, code=1202)
             for rank in (0, 1)]
    for hook in hooks:
        assert hook.wait() == 0
    wait_for("a check was late", lambda: "does not answer; hooks are answered" in a.log)
    time.sleep(0.6)  # the check at the hooks' end is late, too
    server.send_signal(signal.SIGCONT)
    for rank in (0, 1):
        make_dump.make_dump(a.path("made"), pid=job.pid(rank), rank=rank, world_size=2,
                            date_time=DATE_TIME, cluster_id=CID, size=1 << 13, cores=2, cc_cores=1)
    for name in os.listdir(a.path("made", os.path.basename(directory))):
        shutil.copy(a.path("made", os.path.basename(directory), name), directory)
    document = wait_report(a, job.incident_key, {0: "present", 1: "present"}, 60)
    assert {r["error_code"] for r in document["ranks"]} == {1202}, document
    log = a.log
    assert log.count("its directory exists now") == 2, "the notes were not checked again"
    a.stop()


# --- what nobody saw ---

@test
def a_dump_that_nobody_spoke_of_is_of_the_process_that_its_files_name_and_else_of_none():
    a = node()
    a.config["sources"][0]["settle"] = "300ms"
    a.start()
    a.dump(date_time="20260527-061259", cluster_id="beef", pid=4000001, size=1 << 13)
    key = hashlib.sha256(b"beef").hexdigest()[:16]
    document = wait_report(a, key, {None: "present"})
    assert document["ranks"][0]["pid"] is None, document["ranks"]
    assert document["first_failure"]["pid"] is None, document["first_failure"]
    text = a.cli("report", os.path.join(a.out, ".incidents", key)).stdout
    assert not re.search(r"\b[2-4]\d{9}\b", text), text
    job = Job(a, "silent", 2).start(0, 1).wait_seen()
    for rank in (0, 1):
        job.fail(rank, date_time=DATE_TIME, cluster_id=CID, size=1 << 13, hook=False)
    document = wait_report(a, job.incident_key, {0: "present", 1: "present"})
    assert {r["pid"] for r in document["ranks"]} == {job.pid(0), job.pid(1)}, document
    a.stop()


@test
def report_says_where_failures_are_or_why_there_are_none():
    a = node()
    os.makedirs(a.path("out", "below"))
    a.config["destinations"] = [a.volume("archive", "out/below/neuron")]
    a.start()
    job = Job(a, "below", 1).start(0).wait_seen()
    job.fail(0, date_time=DATE_TIME, cluster_id=CID, size=1 << 13)
    place = a.path("out", "below", "neuron")
    wait_for("the failure is recorded",
             lambda: os.path.isdir(os.path.join(place, ".incidents", job.incident_key)))
    a.wait_delivered(1)
    result = a.cli("report", a.out)
    assert result.returncode == 3 and f"some below '{place}" in result.stderr, result
    result = a.cli("report", a.path("home"))
    assert result.returncode == 3 and "durable" in result.stderr and "bus" in result.stderr, result
    a.stop()


# --- at a start ---

@test
def a_note_in_the_mailbox_is_read_before_the_first_delivery_of_a_start():
    a = node()
    a.config["sources"][0]["settle"] = "1ms"
    a.config["destinations"] = [a.volume("archive", "out"), a.volume("second", "second")]
    a.start()
    a.stop()
    job = Job(a, "mailbox", 1).start(0)
    for i in range(20):
        names = {"date_time": f"20260527-0512{10 + i}", "cluster_id": f"{i + 1:016x}"}
        assert job.hook(0, job.dump(0, size=1 << 13, **names), **names).wait() == 0
    a.start()
    for where in ("out", "second"):
        def failures(where=where):
            return [m["failure"] for _, m in a.manifests(a.path(where))
                    if not m["bundle"]["supplement_of"]]
        wait_for(f"20 are in {where}, beside supplements", lambda f=failures: len(f()) == 20, 60)
        assert all(failures()), (where, failures())
    a.stop()


if __name__ == "__main__":
    sys.exit(main(cleanup))
