#!/usr/bin/env python3
"""A shared volume to which other people can write: a dump arrives whatever they have put in its
way, and what they say of a failure does not count."""
import json
import os
import socket
import subprocess
import sys

sys.dont_write_bytecode = True  # the source tree may be read-only, and is packed as it is
sys.path.insert(0, os.path.join(os.path.dirname(os.path.realpath(__file__)), "..", "harness"))
# pylint: disable=wrong-import-position
import failing_jobs
import incidents
from agent import INSTANCE, Agent, need, need_root, wait_for
from agent import cleanup as remove_agents
from failing_jobs import Job
from tap import main, test
from test_shared_volume import dump, node

AGENT, STRANGER, NOBODY = 20001, 20005, 65534
ELSEWHERE = "192.0.2.1:29500"  # the other ranks of the job, of which nobody hears


def cleanup(failed=False):
    failing_jobs.cleanup(failed)
    remove_agents(failed)


def give(path, uid=STRANGER):
    os.chown(path, uid, uid, follow_symlinks=False)


def directory(mode, uid=STRANGER):
    def put(path):
        os.mkdir(path)
        os.chmod(path, mode)
        give(path, uid)
    return put


def link(target):
    def put(path):
        os.symlink(target, path)
        give(path)
    return put


def put_file(path):
    with open(path, "xb"):
        pass
    give(path)


def put_fifo(path):
    os.mkfifo(path)
    give(path)


def put_socket(path):
    with socket.socket(socket.AF_UNIX) as s:
        s.bind(path)
    give(path)


def below(put):
    """In an agent's directory, as older versions have made it."""
    def put_below(path):
        directory(0o1777, AGENT)(path)
        put(os.path.join(path, INSTANCE))
    return put_below


IN_THE_WAY = [directory(0o755), directory(0o700), directory(0o777), directory(0o1777), link("../elsewhere"),
              link("nowhere"), put_file, put_fifo, put_socket, below(directory(0o777)),
              below(link("../../elsewhere")), below(put_file)]


@test
def whatever_a_stranger_has_put_in_its_way_each_dump_arrives():
    a = node(AGENT)
    share = a.path("share")
    os.mkdir(share)
    os.chmod(share, 0o1777)
    a.config["destinations"][0]["path"] = os.path.join(share, "%d-%c")
    directory(0o777)(a.path("elsewhere"))
    os.mkdir(a.path("got"))
    names = []
    for i, put in enumerate(IN_THE_WAY):
        unit = dump(a, cluster_id=f"{i + 1:016x}", pid=100 + i)
        names.append(os.path.basename(unit).replace("dt-", "").replace("cid-", ""))
        put(os.path.join(share, names[-1]))
    a.start()
    a.wait_delivered(len(names), timeout=30)
    found = {os.path.relpath(path, share).split(os.sep)[0]: (path, m)
             for path, m in a.manifests(share)}
    assert sorted(found) == sorted(f"{name}.{INSTANCE}" for name in names), sorted(found)
    for path, m in found.values():  # what may be removed there is nobody else's
        for d in (os.path.dirname(path), os.path.dirname(os.path.dirname(path))):
            assert os.stat(d).st_uid == AGENT and os.stat(d).st_mode & 0o777 == 0o755, d
        assert m["bundle"]["complete"], m
    for b in a.bundles():  # where the agent says that they are
        object_ = b["deliveries"][0]["object"]
        assert f".{INSTANCE}/{INSTANCE}/" in object_ and os.path.isfile(object_), b
    assert a.status()["destinations"][0]["state"] == "ok", a.status()
    listed = json.loads(a.cli("--json", "ls", share).stdout)
    assert sum(len(i["bundles"]) for i in listed) == len(names), listed
    for name in names:  # by the name that all nodes use
        bundles = [b for i in json.loads(a.cli("--json", "ls", os.path.join(share, name)).stdout)
                   for b in i["bundles"]]
        assert len(bundles) == 1 and bundles[0]["node"] == INSTANCE, (name, bundles)
        # by the place that the agreed name gives
        agreed = bundles[0]["url"].replace(f".{INSTANCE}/", "/", 1)
        result = a.cli("get", agreed, "--output", a.path("got", name))
        assert result.returncode == 0, result
    a.stop()


@test
def a_dump_both_names_of_which_are_taken_is_named_and_keeps_no_other_back():
    a = node(AGENT)
    share = a.path("share")
    os.mkdir(share)
    os.chmod(share, 0o1777)
    a.config["destinations"][0]["path"] = os.path.join(share, "%d-%c")
    a.config["retry"] = {"initial": "10ms", "maximum": "50ms", "quarantine_after": 2}
    unit = dump(a)
    name = os.path.basename(unit).replace("dt-", "").replace("cid-", "")
    for taken in (name, f"{name}.{INSTANCE}"):
        directory(0o755)(os.path.join(share, taken))
    dump(a, cluster_id="00000000000000bb", pid=5)
    a.start()
    a.wait_delivered(1)

    def error():
        return a.status()["destinations"][0]["last_error"] or ""
    wait_for("the destination names it", lambda: f"{name}.{INSTANCE}" in error()
             and "agreement.trusted_uids" in error())
    assert a.counts()["quarantined"] == 0, a.counts()
    os.rmdir(os.path.join(share, f"{name}.{INSTANCE}"))
    a.wait_delivered(2)
    a.stop()


class Scene:
    """A node of a job of two nodes on a volume. The agent runs as root; a stranger can write."""

    def __init__(self):
        need_root()
        a = self.agent = Agent()
        # The runtime calls its hook when a dump is complete; what no hook speaks of settles.
        a.config["sources"][0]["settle"] = "15s"
        a.config["agreement"] = {"settle": "1s", "window": "30s", "listen": f"ipc://{a.path('bus')}"}
        self.share = a.path("share")
        os.mkdir(self.share)
        os.chmod(self.share, 0o1777)
        a.config["destinations"] = [a.volume("archive", "share")]
        self.job = Job(a, "planted", 2, root=ELSEWHERE)
        self.key = self.job.incident_key

    def plant(self, files, uid=STRANGER):
        incidents.write(self.share, files)
        for name in files:
            give(os.path.join(self.share, name), uid)

    def fail(self):
        self.job.start(0)
        self.job.fail(0)
        wait_for("the dump is delivered", lambda: self.agent.counts()["delivered"] >= 1, 60)

    def decision(self):
        """What the row says of the failure."""
        return self.agent.sql("SELECT agreed, failure_n, cluster_id FROM bundles "
                              "WHERE supplement_of = ''", "-readonly")



    def published(self):
        return [os.path.join(base, "incident.json") for base, _, names in os.walk(self.share)
                if "incident.json" in names]

    def published_anew(self):
        """incident.json as it is written once more, 15 or 60 s after the decision."""
        for path in wait_for("incident.json is there", self.published, 60):
            os.unlink(path)
        path, = wait_for("it is there again", self.published, 120)
        with open(path, encoding="utf-8") as f:
            return f.read()

    def report(self, place=""):
        result = self.agent.cli("--json", "report", os.path.join(self.share, place))
        return (json.loads(result.stdout) if result.stdout else None), result


def planted(key, n=1):
    """An innocent node is the first failure, by a record of any account."""
    return {incidents.record_name("i-0bad", key, n): incidents.record("i-0bad", [
        incidents.claim(1, incidents.OPENED - 3000, error_code=1202)], key, n)}


@test
def a_record_of_another_account_is_in_no_roster_and_is_named():
    s = Scene()
    s.agent.start()
    s.fail()
    wait_for("the record is there", lambda: any("-" + INSTANCE in name for _, _, names in os.walk(
        os.path.join(s.share, ".incidents", s.key, "1")) for name in names))
    s.plant(planted(s.key))
    d, result = s.report()
    assert d["first_failure"]["instance_id"] == INSTANCE, d["first_failure"]
    assert not [r for r in d["ranks"] if r.get("instance_id") == "i-0bad"], d
    assert str(STRANGER) in result.stderr and "i-0bad" in result.stderr, result
    assert "i-0bad" not in s.published_anew()
    s.agent.stop()


@test
def where_the_server_squashes_root_nobody_s_files_count_and_root_s_do_not():
    need("bindfs", "umount")
    s = Scene()
    behind = s.agent.path("behind")
    os.mkdir(behind)
    give(behind, NOBODY)
    # FUSE has no O_TMPFILE: a probe file has a name, which somebody may have taken.
    put_fifo(os.path.join(behind, f".neuron-collectd-probe-{INSTANCE}"))
    # What is made through the mount is nobody's, as under root_squash.
    subprocess.run(["bindfs", f"--create-for-user={NOBODY}", f"--create-for-group={NOBODY}",
                    behind, s.share], check=True)
    try:
        s.agent.start()
        s.fail()
        assert s.decision().startswith("store|1|"), s.decision()
        where = os.path.join(behind, ".incidents", s.key, "1")
        record = wait_for("the record is there", lambda: os.path.isdir(where) and [
            name for name in os.listdir(where) if name.endswith(f"{INSTANCE}.json")])[0]
        assert os.stat(os.path.join(where, record)).st_uid == NOBODY
        assert not [name for name in os.listdir(behind) if name.endswith(f".{INSTANCE}")]
        s.share = behind
        s.plant(planted(s.key), 0)
        text = s.published_anew()
        assert "i-0bad" not in text and INSTANCE in text, text
        s.agent.stop()
    finally:
        subprocess.run(["umount", "-l", s.agent.path("share")], check=False)


@test
def a_decision_of_another_account_moves_no_bundle():
    s = Scene()
    os.makedirs(os.path.join(s.share, ".incidents", s.key))
    s.plant({incidents.decision_name(s.key, n): incidents.decision(s.key, n, settle_ms=1000)
             for n in (1, 2)})
    s.agent.start()
    s.fail()
    agreed, n, cluster_id = s.decision().split("|")
    assert cluster_id != "d99e36ea74c263ca" and (agreed, n) == ("store", "3"), s.decision()
    assert "agreement.trusted_uids" in s.agent.log
    s.agent.stop()


@test
def trusted_uids_take_effect_by_a_reload():
    need_root()
    a = Agent()
    share = a.path("share")
    os.mkdir(share)
    os.chmod(share, 0o1777)
    a.config["destinations"] = [a.volume("archive", "share")]
    a.start()
    for i, uids in enumerate(([], [STRANGER], [])):
        if i > 0:
            a.config["agreement"] = {"trusted_uids": uids}
            a.write_config()
            a.reload()
            wait_for("it is applied", lambda n=i: a.log.count("changed: agreement.trusted_uids") == n)
        cluster_id = f"{i + 1:016x}"
        directory(0o777)(os.path.join(share, f"20260527-051233-{cluster_id}"))
        a.dump(cluster_id=cluster_id)
        a.wait_delivered(i + 1)
        beside = os.path.isdir(os.path.join(share, f"20260527-051233-{cluster_id}.{INSTANCE}"))
        assert beside == (STRANGER not in uids), (uids, os.listdir(share))
    a.stop()


@test
def a_record_that_the_directory_refuses_is_beside_it_and_in_the_roster():
    s = Scene()
    s.agent.config["agreement"]["trusted_uids"] = [AGENT]
    s.agent.start()
    other = node(AGENT)
    other.config["node"]["instance_id"] = "i-0b"
    other.config["sources"][0]["settle"] = "15s"  # as in Scene
    other.config["agreement"] = s.agent.config["agreement"] | {"listen": f"ipc://{other.path('bus')}"}
    other.config["destinations"] = s.agent.config["destinations"]
    job = Job(other, "planted", 2, root=ELSEWHERE)
    job.start(1)  # a process that starts after a failure belongs to the next one
    s.fail()
    other.start()
    job.fail(1)
    other.wait_delivered(1)
    beside = os.path.join(s.share, ".incidents.i-0b", s.key, "1")
    wait_for("the record is there", lambda: os.path.isdir(beside) and os.listdir(beside), 60)
    assert os.stat(os.path.join(s.share, ".incidents", s.key, "1")).st_uid == 0
    wait_for("incident.json has both", lambda: any(
        "i-0b" in open(path, encoding="utf-8").read() for path in s.published()), 120)

    def rank_states():
        result = other.cli("--json", "--config", other.config_file, "report", s.share)
        d = json.loads(result.stdout)
        assert {n["instance_id"] for n in d["nodes"]} == {INSTANCE, "i-0b"}, d["nodes"]
        return [r["state"] for r in d["ranks"]]

    wait_for("both ranks are there, the second as soon as its record says so",
             lambda: len(rank_states()) == 2 and set(rank_states()) <= {"present", "late"}, 60)
    other.stop()
    s.agent.stop()


@test
def a_squatted_directory_of_incidents_costs_the_common_name_and_no_dump():
    s = Scene()
    directory(0o777)(os.path.join(s.share, ".incidents"))
    s.plant(incidents.failure(s.key))
    give(os.path.join(s.share, ".incidents", s.key))
    s.agent.start()
    s.fail()
    assert s.decision().startswith("alone|"), s.decision()
    # The reader's machine does not know the agents' user: what the stranger wrote is no answer.
    for place in ("", f".incidents/{s.key}", f".incidents/{s.key}/1"):
        d, result = s.report(place)
        assert d is None and result.returncode == 3, (place, result)
        assert f"uid {STRANGER}" in result.stderr and "--trust-uid" in result.stderr, result
        assert "some below" not in result.stderr, result
    trusting = s.agent.cli("--json", "report", s.share, "--trust-uid", str(STRANGER))
    assert json.loads(trusting.stdout)["job"] == "torchrun:job-1", trusting
    # Beside an agent's failure it is left out as well, and named after the answer.
    other = "fedcba9876543210"
    incidents.write(s.share, incidents.failure(other))
    text = s.agent.cli("report", s.share)
    assert f"failure     {other}/1" in text.stdout and s.key not in text.stdout, text
    assert f"uid {STRANGER}" in text.stderr, text
    s.agent.stop()


@test
def a_temporary_file_of_a_record_that_a_kill_has_left_is_removed():
    s = Scene()
    s.agent.start()
    s.fail()
    where = os.path.join(s.share, ".incidents", s.key, "1")
    wait_for("the record is there", lambda: os.path.isdir(where) and os.listdir(where))
    s.agent.kill()
    own = os.path.join(where, f".20260101T000000000-{INSTANCE}.json.{INSTANCE}.neuron-collectd-tmp")
    others = [own.replace(INSTANCE, "i-0other"),
              own.replace("20260101", "20260102")]  # another node's, and another user's
    for path in (own, *others):
        with open(path, "xb"):
            pass
    give(others[1])
    s.agent.start()
    wait_for("it is gone", lambda: not os.path.exists(own), 60)
    assert all(os.path.exists(path) for path in others)
    s.agent.stop()


if __name__ == "__main__":
    sys.exit(main(cleanup))
