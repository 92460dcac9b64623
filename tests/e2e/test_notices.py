#!/usr/bin/env python3
"""What EC2 announces: a spot interruption, maintenance, a rebalance recommendation; and what IMDS
says instead."""
import calendar
import os
import sys
import time

sys.dont_write_bytecode = True  # the source tree may be read-only, and is packed as it is
sys.path.insert(0, os.path.join(os.path.dirname(os.path.realpath(__file__)), "..", "harness"))
# pylint: disable=wrong-import-position
from agent import Agent, check_bundle, cleanup, wait_for
from credential_server import IMDS_TOKEN, CredentialServer, maintenance, spot_interruption
from tap import in_time, main, test

MIB = 1 << 20


class Node:
    """An agent on an EC2 instance."""

    def __init__(self, environment=None):
        self.imds = CredentialServer(None)
        self.agent = Agent()
        self.agent.environment |= {"AWS_EC2_METADATA_DISABLED": "false",
                                   "AWS_EC2_METADATA_SERVICE_ENDPOINT": self.imds.endpoint} | (
                                       environment or {})

    def __enter__(self):
        return self.agent, self.imds

    def __exit__(self, kind, *_):
        if kind is None and self.agent.process is not None:
            self.agent.stop()
        self.imds.close()


def when(text):
    """The moment as the API spells it, in seconds."""
    return calendar.timegm(time.strptime(text.partition(".")[0].rstrip("Z"), "%Y-%m-%dT%H:%M:%S"))


def draining(a):
    return a.status()["drain"]


@test
def a_spot_interruption_drains_with_its_deadline_until_it_is_safe():
    with Node() as (a, imds):
        a.use_directories()
        a.send_slowly()  # so that it comes in the middle of a delivery
        large = a.incompressible(10 * MIB, name="large")
        small = [a.incompressible(MIB // 4, name=f"small-{i}") for i in range(6)]
        a.start()
        wait_for("the large one is under way", lambda: a.status()["shipping"]
                 or a.counts()["delivered"] > 0, 60)
        announced = time.time()
        imds.notices["spot"] = spot_interruption(120)
        drain = wait_for("status says so", lambda: draining(a), 10)
        assert "spot" in drain["reason"] and "terminate" in drain["reason"], drain
        assert abs(when(drain["deadline"]) - announced - 120) < 5, (drain, announced)
        assert a.status()["agent"]["state"] == "draining"
        result = a.cli("drain", "--timeout", "110s", timeout=150)
        assert (result.returncode, result.stdout) == (0, "safe to terminate\n"), result
        by_path = {m["source"]["path"]: p for p, m in a.manifests()}
        assert sorted(by_path) == sorted([large, *small])
        for unit, path in by_path.items():
            check_bundle(path, unit, tools=("tar",))
        assert IMDS_TOKEN not in a.log


@test
def small_bundles_that_wait_go_before_a_large_one_that_waits():
    with Node() as (a, imds):
        a.use_directories()
        # its parent is not there
        a.config["destinations"][0]["path"] = a.path("later", "archive", "%d-%c")
        large = a.incompressible(24 * MIB, name="a-large")
        a.start()
        a.wait_known(1)
        small = [a.incompressible(MIB // 4, name=f"small-{i}") for i in range(6)]
        a.wait_known(7)
        wait_for("all are ready", lambda: a.counts()["ready"] == 7)
        imds.notices["spot"] = spot_interruption(120)
        wait_for("it drains", lambda: draining(a), 10)
        os.makedirs(a.path("later"))
        result = a.cli("drain", "--timeout", "110s", timeout=150)
        assert (result.returncode, result.stdout) == (0, "safe to terminate\n"), result
        age = {m["source"]["path"]: os.stat(p).st_mtime_ns for p, m in a.manifests(a.path("later"))}
        assert sorted(age) == sorted([large, *small])
        assert all(age[unit] < age[large] for unit in small), "a small one came after the large one"


@test
def what_is_withdrawn_ends_the_drain():
    with Node() as (a, imds):
        imds.notices["spot"] = spot_interruption(120, "stop")
        a.start()
        wait_for("it drains", lambda: draining(a), 10)
        del imds.notices["spot"]
        wait_for("it runs again", lambda: not draining(a)
                 and a.status()["agent"]["state"] == "running", 20)
        unit = a.dump()
        a.wait_delivered(1)
        check_bundle(a.only_manifest()[0], unit, tools=("tar",))


@test
def maintenance_that_is_near_drains_and_one_that_is_far_does_not():
    with Node() as (a, imds):
        imds.notices["maintenance"] = maintenance(600)
        begun = time.time()
        a.start()
        drain = wait_for("it drains", lambda: draining(a), 10)
        assert "maintenance" in drain["reason"] and "system-reboot" in drain["reason"], drain
        assert abs(when(drain["deadline"]) - begun - 600) < 5, (drain, begun)
    with Node() as (a, imds):
        imds.notices["maintenance"] = maintenance(24 * 3600)
        a.start()
        wait_for("it was asked for and said", lambda: "maintenance" in imds.asked_notices
                 and "system-reboot" in a.log, 10)
        assert not draining(a) and a.status()["agent"]["state"] == "running"


@test
def maintenance_that_comes_near_is_drained_for_by_its_name():
    with Node() as (a, imds):
        imds.notices["maintenance"] = maintenance(15 * 60 + 5)
        a.start()
        drain = wait_for("it drains", lambda: draining(a), 30)
        assert "system-reboot" in drain["reason"] and drain["deadline"], drain


@test
def an_operator_who_drains_too_loses_no_deadline():
    with Node() as (a, imds):
        imds.notices["spot"] = spot_interruption(120)
        a.start()
        deadline = wait_for("it drains", lambda: draining(a), 10)["deadline"]
        assert a.cli("drain").returncode == 0
        assert draining(a)["deadline"] == deadline, ("a preStop hook has made the agent forget "
                                                     "when the instance ends")


@test
def what_is_withdrawn_ends_no_drain_of_an_operator():
    for operator_first in (True, False):
        with Node() as (a, imds):
            a.start()
            if operator_first:
                assert a.cli("drain").returncode == 0
            imds.notices["spot"] = spot_interruption(120)
            wait_for("it is heard", lambda: (draining(a) or {}).get("deadline"), 10)
            if not operator_first:
                assert a.cli("drain").returncode == 0
            del imds.notices["spot"]
            wait_for("it is withdrawn", lambda: "withdrawn" in a.log, 20)
            drain = draining(a)
            assert drain and drain["deadline"] is None and "operator" in drain["reason"], (
                operator_first, drain)


@test
def a_rebalance_recommendation_is_only_reported():
    with Node() as (a, imds):
        imds.notices["rebalance"] = '{"noticeTime": "2020-11-05T08:22:00Z"}'
        a.start()
        wait_for("it is said", lambda: "rebalance" in a.log, 10)
        assert not draining(a)
        unit = a.dump()
        a.wait_delivered(1)
        check_bundle(a.only_manifest()[0], unit, tools=("tar",))


@test
def garbage_and_a_service_that_trickles_do_no_harm():
    with Node() as (a, imds):
        imds.notices = {"spot": b"<html>\x00\xff" * 1000, "maintenance": "[" * 60000,
                        "rebalance": b"{" + b"x" * (80 << 10)}
        a.start()
        wait_for("all were asked",
                 lambda: set(imds.asked_notices) == {"spot", "maintenance", "rebalance"}, 20)
        unit = a.dump()
        a.wait_delivered(1)
        check_bundle(a.only_manifest()[0], unit, tools=("tar",))
        assert not draining(a)
        imds.notices["spot"] = "slow"
        n = len(imds.asked_notices)
        wait_for("it trickles", lambda: "spot" in imds.asked_notices[n:], 30)
        begun = time.monotonic()
        assert a.is_healthy()
        in_time(time.monotonic() - begun, 3, "a question to the loop")
        later = a.dump(cluster_id="00000000000000bb", pid=5)
        a.wait_delivered(2)
        assert later in [m["source"]["path"] for _, m in a.manifests()] and not draining(a)
        n = a.log.count("cannot query whether EC2 terminates this instance")
        assert n == 1, "it is logged once"
        # and in the end it is heard
        imds.notices = {"spot": spot_interruption(300)}
        wait_for("it drains", lambda: draining(a), 100)


@test
def a_token_that_is_not_valid_any_more_is_replaced():
    with Node() as (a, imds):
        a.start()
        wait_for("it was asked", lambda: "spot" in imds.asked_notices, 10)
        imds.imds_token = "canary-imds-token-0000002"
        imds.notices["spot"] = spot_interruption(120)
        wait_for("it drains", lambda: draining(a), 10)
        assert imds.asked.count("imds token") == 2, imds.asked
        assert "canary-imds-token" not in a.log


@test
def a_service_that_is_switched_off_is_never_asked():
    with Node({"AWS_EC2_METADATA_DISABLED": "true"}) as (a, imds):
        imds.notices["spot"] = spot_interruption(120)
        a.start()
        a.dump()
        a.wait_delivered(1)
        assert not imds.asked and not imds.asked_notices and not draining(a)


if __name__ == "__main__":
    sys.exit(main(cleanup))
