#!/usr/bin/env python3
"""A store that fails while a bundle waits for what it decides: the destination is called failing
wherever its state is shown, the bundle waits no longer than it has to, and all is delivered once
the store is back."""
import os
import sys
import time

sys.dont_write_bytecode = True  # the source tree may be read-only, and is packed as it is
sys.path.insert(0, os.path.join(os.path.dirname(os.path.realpath(__file__)), "..", "harness"))
# pylint: disable=wrong-import-position
import failing_jobs
from agent import PATIENCE, Agent, wait_for
from agent import cleanup as remove_agents
from failing_jobs import Job
from s3_server import S3Server
from s3tools import Endpoint
from tap import figures, main, test
from tcp_proxy import TcpProxy

SETTLE, WAIT = 1, 15  # how long a bundle waits for its name: agreement.settle, and then so long
ELSEWHERE = "192.0.2.1:29500"  # the other ranks of the job, of which nobody hears


def cleanup(failed=False):
    failing_jobs.cleanup(failed)
    remove_agents(failed)


class Scene:
    """A node of a job of two nodes, and a store that works still."""

    def __init__(self, s3, **more):
        self.s3, self.proxy = s3, TcpProxy(s3)
        a = self.agent = Agent()
        # The runtime calls its hook when a dump is complete; what no hook speaks of settles.
        a.config["sources"][0]["settle"] = "15s"
        a.config["agreement"] = {"settle": f"{SETTLE}s", "window": "30s"}
        way = Endpoint(self.proxy.endpoint, s3.access_key, s3.secret_key, s3.region, None)
        options = {"request_timeout": "3s"} | more
        a.config["destinations"] = [a.s3("s3", way, s3.bucket, **options)]
        a.start()
        s3.wait_for("the destination was looked at", lambda: s3.seen("HeadBucket"))
        wait_for("it is well", lambda: self.state() == "ok" and a.curl("/readyz").returncode == 0)
        self.job = Job(a, "away", 4, root=ELSEWHERE).start(0, 1)

    def fail(self):
        self.job.fail(0)
        wait_for("the dump is ready", lambda: self.bundles("ready"))

    def bundles(self, state):
        return [b for b in self.agent.bundles() if b["state"] == state]

    def destination(self):
        return self.agent.status()["destinations"][0]

    def state(self):
        return self.destination()["state"]

    def assert_shown(self, *words, timeout=15, doctor=True):
        """In status, readyz, metric and doctor, which asks the store itself, too, and has
        request_timeout for it."""
        a = self.agent

        def said():
            error = (self.destination()["last_error"] or "").lower()
            return any(w in error for w in words) and self.state() != "ok"
        wait_for(f"the destination's state says {words}", said, timeout)
        status = a.cli("status").stdout.lower()
        assert "can deliver: no" in status and any(w in status for w in words), status
        assert a.curl("/readyz").returncode != 0
        assert 'neuron_collectd_destination_up{destination="s3"} 0' in a.curl("/metrics").stdout
        if doctor:
            doctor = a.cli("--config", a.config_file, "doctor")
            assert doctor.returncode != 0 and any(w in doctor.stdout.lower() for w in words), doctor

    def assert_well(self, agreed, timeout=60):
        a = self.agent
        wait_for("the dump is delivered", lambda: any(
            b["source"] == "core-dumps" for b in self.bundles("delivered")), timeout)
        a.wait_all()  # and its snapshot, under the same name
        found = a.sql("SELECT DISTINCT agreed FROM bundles WHERE supplement_of = ''")
        assert found == agreed, found
        wait_for("the destination is well", lambda: self.state() == "ok")
        assert a.curl("/readyz").returncode == 0
        assert 'neuron_collectd_destination_up{destination="s3"} 1' in a.curl("/metrics").stdout
        a.assert_sum()
        a.stop()


def outlives(begin, end, *words, agreed="store", **more):
    """@param begin, end  of the fault  @param words  one of them is in the destination's error"""
    with S3Server() as s3:
        scene = Scene(s3, **more)
        begin(scene)
        scene.fail()
        scene.assert_shown(*words)
        end(scene)
        scene.assert_well(agreed)


def clear(scene):
    scene.s3.clear_faults()


@test
def a_store_that_answers_503_is_shown_and_waited_for():
    outlives(lambda s: s.s3.fault("*", status=503, code="SlowDown", times=None), clear,
             "slowdown", "503")


@test
def a_store_that_refuses_connections_is_shown_and_waited_for():
    outlives(lambda s: s.proxy.refuse(), lambda s: s.proxy.accept(), "refused", "connect")


@test
def a_store_that_forbids_everything_is_shown_and_what_it_does_not_decide_has_its_own_name():
    outlives(lambda s: s.s3.fault("*", status=403, code="AccessDenied", times=None), clear,
             "denied", agreed="alone")


@test
def a_store_that_hangs_is_shown_and_waited_for():
    outlives(lambda s: s.proxy.hold(), lambda s: s.proxy.release(), "nothing moved")


@test
def before_a_request_s_own_time_is_over_a_store_that_hangs_is_shown_after_a_minute():
    with S3Server() as s3:
        scene = Scene(s3, request_timeout="10m")
        scene.proxy.hold()
        scene.fail()
        scene.assert_shown("no answer for", timeout=90, doctor=False)
        assert scene.bundles("ready"), scene.agent.bundles()
        scene.proxy.release()
        scene.assert_well("store")


@test
def a_store_that_takes_bundles_and_lists_nothing_is_waited_for_no_longer_than_settle_and_15_s():
    with S3Server() as s3:
        scene = Scene(s3)
        s3.fault("ListObjectsV2", status=500, code="InternalError", times=None)
        failed = time.monotonic()
        scene.fail()
        ready = time.monotonic()  # or later, as far as this is seen late
        scene.assert_shown("listobjectsv2")
        wait_for("the dump is delivered", lambda: scene.bundles("delivered"), 60)
        delivered = time.monotonic()
        figures.append(f"delivered {delivered - ready:.1f} s after it was ready, settle {SETTLE} s")
        assert delivered - failed >= SETTLE + WAIT, delivered - failed
        assert delivered - ready <= SETTLE + WAIT + 4 * PATIENCE, delivered - ready
        s3.clear_faults()
        scene.assert_well("alone")


if __name__ == "__main__":
    sys.exit(main(cleanup))
