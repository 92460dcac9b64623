#!/usr/bin/env python3
"""Before a node is taken away: drain, what is safe and what is not, resume."""
import json
import os
import shutil
import subprocess
import sys
import time

sys.dont_write_bytecode = True  # the source tree may be read-only, and is packed as it is
sys.path.insert(0, os.path.join(os.path.dirname(os.path.realpath(__file__)), "..", "harness"))
# pylint: disable=wrong-import-position
from agent import CLI, PATIENCE, Agent, check_bundle, cleanup, object_of, wait_for
from s3_server import S3Server
from s3tools import Endpoint
from servers import free_port
from tap import main, test

SAFE = (0, "safe to terminate\n", "")


def drain(a, *arguments, timeout=90):
    result = a.cli("drain", *arguments, timeout=timeout)
    return result.returncode, result.stdout, result.stderr


def dumps(a, n, size=65536, first=1):
    return [a.dump(size=size, pid=i, cluster_id=f"{i:016x}") for i in range(first, first + n)]


def all_arrived(a, units, where=None):
    by_path = {m["source"]["path"]: p for p, m in a.manifests(where)}
    assert sorted(by_path) == sorted(units), (sorted(by_path), sorted(units))
    for unit in units:
        check_bundle(by_path[unit], unit, tools=("tar",))


def reload(a):
    before = a.status()["config"]["loaded"]
    a.write_config()
    a.reload()
    wait_for("it has reloaded", lambda: a.status()["config"]["loaded"] != before)


def blocked(a):
    """A destination that cannot work until unblock(): its parent is not there."""
    a.config["destinations"][0]["path"] = a.path("later", "archive", "%d-%c")
    return a


def unblock(a):
    os.makedirs(a.path("later"))


@test
def what_is_there_is_delivered_and_then_it_is_safe():
    a = Agent()
    units = dumps(a, 5, size=1 << 20)
    a.start()
    assert drain(a) == SAFE
    # at this moment, not a little later: its reader terminates the node
    all_arrived(a, units)
    status = a.status()
    assert status["agent"]["state"] == "draining" and status["drain"][
        "safe_to_terminate"] and status["drain"]["missing"] is None, status["drain"]
    assert status["drain"]["deadline"] is None and "operator" in status["drain"]["reason"], status[
        "drain"]
    a.assert_sum()
    text = a.cli("status").stdout
    assert "safe to terminate: yes" in text and "draining since" in text, text
    a.stop()


@test
def and_only_when_the_record_of_its_failure_says_where_it_is():
    def is_record(request):
        return (request.key or "").rpartition(".incidents/")[2].count("/") == 2

    with S3Server() as s:
        a = Agent()
        a.config["destinations"][0] = a.s3("archive", Endpoint(
            s.endpoint, s.access_key, s.secret_key, s.region), "bucket")
        a.config["agreement"] = {"settle": "1s", "listen": f"tcp://127.0.0.1:{free_port()}"}
        units = dumps(a, 1)
        s.fault("PutObject", times=None, delay=1.0, when=is_record)
        a.start()
        assert drain(a) == SAFE
        records = [json.loads(s.objects[k].body) for k in list(s.objects)
                   if ".incidents/" in k]
        bundles = max((r for r in records if "claims" in r),
                      key=lambda r: r["revision"])["bundles"]
        assert [(b["state"], b["object"].startswith("s3://bucket/")) for b in bundles] == [
            ("delivered", True)] * len(units), records
        a.stop()


@test
def a_node_without_anything_is_safe_at_once_and_both_requests_may_be_repeated():
    a = Agent().start()
    assert a.status()["drain"] is None
    for _ in range(2):
        assert drain(a) == SAFE
    since = a.status()["drain"]["since"]
    assert drain(a) == SAFE and a.status()["drain"][
        "since"] == since, "asked again it is still the same drain"
    for _ in range(2):
        result = a.cli("resume")
        assert result.returncode == 0 and not result.stderr, result
        status = a.status()
        assert status["agent"]["state"] == "running" and status["drain"] is None, status
    a.stop()


@test
def what_comes_after_a_drain_waits_for_resume():
    a = Agent()
    units = dumps(a, 1)
    a.start()
    assert drain(a) == SAFE
    units += dumps(a, 1, first=7)
    time.sleep(1.5)  # what is to be seen is that nothing happens; settle is 0.3 s
    assert len(a.manifests()) == 1, "a new bundle was taken while draining"
    assert a.cli("resume").returncode == 0
    a.wait_delivered(2)
    all_arrived(a, units)
    a.assert_sum()
    a.stop()


@test
def a_directory_that_appears_after_the_drain_waits_for_resume_too():
    a = Agent()
    a.start()
    assert drain(a) == SAFE
    os.mkdir(a.path("dumps"))
    units = dumps(a, 1)
    wait_for("it is watched", lambda: "source core-dumps: scanning, because the directory is "
             "watched now" in a.log)
    assert drain(a) == SAFE
    assert not a.manifests(), "a new bundle was taken while draining"
    assert a.cli("resume").returncode == 0
    a.wait_delivered(1)
    all_arrived(a, units)
    a.stop()


@test
def not_everything_there_in_time_is_not_safe_and_reports_what():
    a = blocked(Agent())
    units = dumps(a, 2)
    a.start()
    a.wait_known(2)
    code, out, err = drain(a, "--timeout", "1s")
    lines = out.splitlines()
    assert code == 1 and not err and lines[0].startswith(
        "not safe to terminate: ") and "2 bundles" in lines[0], (code, out, err)
    ids = {b["id"] for b in a.bundles()}
    assert ({line.split()[0] for line in lines[1:]} == ids
            and all(len(line.split()) >= 2 for line in lines[1:])), out
    wait_for("it says why", lambda: a.path("later") in drain(a, "--timeout", "0")[1])
    assert "safe to terminate: no, 2 bundles" in a.cli("status").stdout
    answer = a.cli("--json", "drain", "--timeout", "0")
    assert answer.returncode == 1 and '"safe_to_terminate": false' in answer.stdout, answer
    # it goes on draining, so another one waits on
    with subprocess.Popen([CLI, "--socket", a.socket, "drain"], stdout=subprocess.PIPE,
                          text=True) as waiting:
        unblock(a)
        out, _ = waiting.communicate(timeout=60 * PATIENCE)
    assert (waiting.returncode, out) == (0, "safe to terminate\n"), out
    all_arrived(a, units, a.path("later"))
    a.stop()


@test
def a_bundle_in_quarantine_is_not_safe_and_not_waited_for():
    a = Agent()
    a.config["retry"]["quarantine_after"] = 2
    bad = a.dump(size=65536, cluster_id="000000000000000a", pid=1)
    a.start()
    a.wait_known(1)
    a.wait_all()
    delivered = object_of(a.only_manifest()[0])
    a.stop()
    # The state is lost, the source has changed, and what was delivered is damaged.
    with open(delivered, "ab") as f:
        f.write(b"more than was written")
    shutil.rmtree(a.path("state"))
    os.mkdir(a.path("state"))
    with open(os.path.join(bad, sorted(os.listdir(bad))[0]), "ab") as f:
        f.write(b"more of it")
    good = a.dump(size=65536, cluster_id="000000000000000b", pid=2)
    a.start()
    a.wait_known(2)
    code, out, _ = drain(a)  # no time limit: it must end by itself
    bundle = a.bundles("?state=quarantined")[0]["id"]
    lines = out.splitlines()
    assert code == 1 and "quarantine" in lines[0] and lines[1].startswith(
        f"{bundle} quarantined: ") and len(lines) == 2, out
    by_path = {m["source"]["path"]: p for p, m in a.manifests()}
    check_bundle(by_path[good], good, tools=("tar",))
    shutil.rmtree(os.path.dirname(delivered))
    assert a.cli("retry", bundle).returncode == 0
    assert drain(a) == SAFE
    a.stop()


@test
def a_destination_that_is_gone_from_the_configuration_is_not_waited_for():
    a = blocked(Agent())
    dumps(a, 1)
    a.start()
    a.wait_known(1)
    wait_for("it is ready", lambda: a.bundles()[0]["state"] == "ready")
    a.config["destinations"] = [a.volume("other", "out")]
    reload(a)
    code, out, _ = drain(a)
    lines = out.splitlines()
    assert code == 1 and len(
        lines) == 2 and "destination 'archive' is no longer configured" in lines[1], out
    assert a.cli("cancel", lines[1].split()[0]).returncode == 0
    assert drain(a) == SAFE, "an operator cancelled it"
    a.stop()


@test
def draining_survives_a_reload():
    a = Agent()
    a.start()
    assert drain(a) == SAFE
    a.config["log"]["level"] = "info"
    reload(a)
    assert a.status()["agent"]["state"] == "draining"
    late = dumps(a, 1)
    time.sleep(1.5)  # as above
    assert not a.manifests()
    assert a.cli("resume").returncode == 0
    a.wait_delivered(1)
    all_arrived(a, late)
    a.stop()


@test
def without_an_agent_nothing_is_safe():
    a = Agent()
    a.write_config()
    code, out, err = drain(a)
    assert code == 3 and not out and "not safe to terminate" in err, (code, out, err)


if __name__ == "__main__":
    sys.exit(main(cleanup))
