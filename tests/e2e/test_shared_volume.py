#!/usr/bin/env python3
"""One volume for many nodes, whose agents have one user id or others; and a root that refuses one of
them."""
import grp
import json
import os
import re
import stat
import subprocess
import sys

sys.dont_write_bytecode = True  # the source tree may be read-only, and is packed as it is
sys.path.insert(0, os.path.join(os.path.dirname(os.path.realpath(__file__)), "..", "harness"))
# pylint: disable=wrong-import-position
from agent import Agent, cleanup, need, need_root, wait_for
from tap import main, test

AGENT_USERS = (20001, 20002)


def node(uid, groups="--clear-groups"):
    """The daemon runs as uid, without capabilities, as two nodes' sysusers may number them."""
    need_root()
    need("setpriv")
    a = Agent()
    a.owner = uid
    a.prefix = ["setpriv", f"--reuid={uid}", f"--regid={uid}", groups, "--inh-caps=-all",
                "--bounding-set=-all"]
    for name in ("", "state", "run", "home", "out"):
        os.chown(a.path(name), uid, uid)
    return a


def dump(a, **options):
    unit = a.dump(size=65536, **options)
    subprocess.run(["chown", "-R", str(a.owner), a.path("dumps")], check=True)
    return unit


def mode(path):
    return stat.S_IMODE(os.stat(path).st_mode)


def tries(a):
    return sum(float(line.rsplit(" ", 1)[1]) for line in a.curl("/metrics").stdout.splitlines()
               if line.startswith("neuron_collectd_retries_total"))


def state_of(a):
    return a.status()["destinations"][0]


def some_group():
    return next(g for g in grp.getgrall() if g.gr_gid != 0)


@test
def three_agents_with_other_uids_deliver_one_incident_by_group_mode_and_trusted_uids():
    place, group = Agent(), some_group()
    share = place.path("share")
    os.mkdir(share)
    os.chown(share, 0, group.gr_gid)
    os.chmod(share, 0o2775)
    uids = (990, 0, 991)
    for i, uid in enumerate(uids):
        a = node(uid, f"--groups={group.gr_gid}")
        a.config["node"]["instance_id"] = f"i-0a1b2c3d4e5f6071{i}"
        a.config["agreement"]["trusted_uids"] = [990, 991]
        a.config["destinations"][0] |= {"path": os.path.join(share, "%d-%c"), "mode": "2775",
                                        "group": group.gr_name}
        dump(a, instance_id=a.config["node"]["instance_id"])
        a.start()
        a.wait_delivered(1)
        assert state_of(a)["state"] == "ok", state_of(a)
        a.stop()
    assert len(place.manifests(share)) == 3, place.manifests(share)
    incident, = os.listdir(share)
    assert mode(os.path.join(share, incident)) == 0o2775
    for own in os.listdir(os.path.join(share, incident)):
        assert mode(os.path.join(share, incident, own)) & 0o777 == 0o755


@test
def agents_with_one_uid_need_no_mode_and_one_with_another_delivers_beside():
    place = Agent()
    share = place.path("share")
    os.mkdir(share)
    os.chmod(share, 0o1777)
    for i, uid in enumerate((*AGENT_USERS[:1], *AGENT_USERS)):
        a = node(uid)
        a.config["node"]["instance_id"] = f"i-0a1b2c3d4e5f6071{i}"
        a.config["destinations"][0]["path"] = os.path.join(share, "%d-%c")
        dump(a, instance_id=a.config["node"]["instance_id"])
        a.start()
        a.wait_delivered(1)
        assert state_of(a)["state"] == "ok", state_of(a)
        a.stop()
    agreed, beside = sorted(os.listdir(share))
    assert beside == f"{agreed}.i-0a1b2c3d4e5f60712", beside
    assert sorted(os.listdir(os.path.join(share, agreed))) == [
        "i-0a1b2c3d4e5f60710", "i-0a1b2c3d4e5f60711"]
    for name in (agreed, beside):
        assert mode(os.path.join(share, name)) == 0o755, name


def volume_findings(a):
    findings = json.loads(a.cli("--json", "doctor", "--config", a.config_file).stdout)
    return [f for f in findings["findings"] if f["what"] == "destination archive"
            and f["state"] == "warning"]


@test
def doctor_prints_what_agents_of_three_users_need_and_they_pass_with_it():
    need("systemd-sysusers")
    place, agents = Agent(), []
    share = place.path("share")
    os.mkdir(share)
    os.chmod(share, 0o1777)
    for i, uid in enumerate((990, 0, 991)):
        a = node(uid)
        a.config["node"]["instance_id"] = f"i-0a1b2c3d4e5f6071{i}"
        a.config["destinations"][0]["path"] = os.path.join(share, "%d-%c")
        dump(a, instance_id=a.config["node"]["instance_id"])
        a.start()
        a.wait_delivered(1)
        a.stop()
        agents.append(a)
    assert len(os.listdir(share)) > 1, "they share a directory already"
    everybody, users = volume_findings(agents[0])
    assert "all users may write" in everybody["detail"], everybody
    assert "991" in users["detail"] and "990" in users["detail"], users
    lines = re.findall("`([^`]*)`", users["remedy"])
    group, member, change = lines[0], lines[1], lines[-1]
    root = place.path("root")
    os.makedirs(os.path.join(root, "etc"))
    place_conf = os.path.join(root, "lines.conf")
    with open(place_conf, "w", encoding="ascii") as f:
        f.write(f"u neuron-collectd 990\n{group}\n{member}\n")
    subprocess.run(["systemd-sysusers", f"--root={root}", place_conf], check=True,
                   capture_output=True)
    with open(os.path.join(root, "etc", "group"), encoding="ascii") as f:
        name, _, gid, members = next(line.strip().split(":") for line in f if line.startswith(
            group.split()[1] + ":"))
    assert members == "neuron-collectd", (name, members)
    subprocess.run(["sh", "-c", change], check=True)
    own = {k: v for k, v in (line.split(": ", 1) for line in lines if ": " in line)}
    assert own["group"] == gid, (own, gid)
    for a in agents:
        a.prefix = [f"--groups={gid}" if word == "--clear-groups" else word for word in a.prefix]
        a.config["destinations"][0] |= {"group": own["group"], "mode": own["mode"]}
        a.config["agreement"]["trusted_uids"] = own["trusted_uids"].strip("[]").split(", ")
        dump(a, instance_id=a.config["node"]["instance_id"], cluster_id="00000000000000bb", pid=5)
        a.start()
        a.wait_delivered(2)
        a.stop()
    assert len(os.listdir(os.path.join(share, "20260527-051233-00000000000000bb"))) == 3
    assert not [name for name in os.listdir(share) if "bb.i-" in name], os.listdir(share)
    assert not volume_findings(agents[2]), volume_findings(agents[2])


@test
def mode_and_group_are_those_of_the_destination():
    group = some_group()
    a = node(AGENT_USERS[0], f"--groups={group.gr_gid}")
    a.config["destinations"][0] |= {"path": a.path("out", "neuron", "%d-%c"), "mode": "3770",
                                    "group": group.gr_name}
    dump(a)
    a.start()
    a.wait_delivered(1)
    a.stop()
    root = a.path("out", "neuron")
    incident = os.path.join(root, os.listdir(root)[0])
    for shared in (root, incident):
        assert mode(shared) == 0o3770 and os.stat(shared).st_gid == group.gr_gid, shared
    path, _ = a.only_manifest(root)
    assert mode(os.path.dirname(path)) & 0o777 == 0o755
    assert os.stat(path).st_gid == group.gr_gid and mode(path) == 0o640


@test
def a_group_that_is_not_known_or_not_ours_is_named():
    for group, said in (("no-such-group", "no-such-group"), ("0", "member")):
        a = node(AGENT_USERS[0])
        a.config["destinations"][0]["group"] = group
        dump(a)
        a.start()
        wait_for("the destination says so", lambda a=a, said=said: said in (
            state_of(a)["last_error"] or ""))
        a.stop()


@test
def a_root_that_refuses_a_node_is_reported_everywhere_and_never_given_up():
    a = node(AGENT_USERS[0])
    a.config["retry"] = {"initial": "10ms", "maximum": "50ms", "quarantine_after": 2}
    dump(a)
    os.chown(a.out, 0, 0)
    os.chmod(a.out, 0o755)
    a.start()
    wait_for("it is tried more than once", lambda: tries(a) > 5)
    # After any number of tries, with probes in between.
    assert [b["state"] for b in a.bundles()] in (["ready"], ["shipping"])
    wait_for("readyz says so", lambda: "ermission denied" in a.curl("/readyz").stdout)
    destination = state_of(a)
    assert destination["state"] != "ok" and a.out in json.dumps(destination), destination
    metrics = a.curl("/metrics").stdout
    assert 'neuron_collectd_destination_up{destination="archive"} 0' in metrics, metrics
    assert "neuron_collectd_ready 0" in metrics, metrics  # what the alert in docs/METRICS.md asks
    doctor = a.cli("doctor", "--config", a.config_file)
    assert doctor.returncode != 0 and "ermission denied" in doctor.stdout, doctor.stdout
    os.chmod(a.out, 0o1777)
    a.wait_all()
    wait_for("all is well", lambda: state_of(a)["state"] == "ok" and "not ready" not in a.curl(
        "/readyz").stdout)
    assert a.counts()["quarantined"] == 0
    a.stop()


if __name__ == "__main__":
    sys.exit(main(cleanup))
