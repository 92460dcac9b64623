#!/usr/bin/env python3
"""SIGTERM: within 5 s the daemon is gone, what was on its way to S3 has arrived or is known, and
nothing has to be sent again."""
import os
import signal
import sys
import time

sys.dont_write_bytecode = True  # the source tree may be read-only, and is packed as it is
sys.path.insert(0, os.path.join(os.path.dirname(os.path.realpath(__file__)), "..", "harness"))
# pylint: disable=wrong-import-position
import radosgw
from agent import Agent, NotifySocket, cleanup, slowness, wait_for
from s3tools import judge, new_bucket
from tap import figures, in_time, main, test
from tcp_proxy import through

MIB = 1 << 20


def server():
    return radosgw.shared()


def uploading(size, rate, prepare=None):
    """A daemon in the middle of an upload that takes a while. @return (agent, bucket, proxy, unit)
    @param prepare  is given the agent before it starts"""
    proxy, way = through(server())
    bucket = new_bucket(server())
    a = Agent()
    a.use_directories()
    a.config["destinations"] = [a.s3("s3", way, bucket, part_size="5MiB", connections=3)]
    unit = a.incompressible(size)
    proxy.rate = rate
    if prepare:
        prepare(a)
    a.start()
    wait_for("three parts are on the wire", lambda: len(proxy.part_bodies()) >= 3, 60)
    return a, bucket, proxy, unit


def finished(proxy):
    return {r.part for r in proxy.requests if r.part is not None and r.status == 200}


@test
def sigterm_lets_the_parts_in_flight_arrive_and_none_is_sent_again():
    a, bucket, proxy, unit = uploading(96 * MIB, 30 * MIB)
    begun = time.monotonic()
    a.stop()
    took = time.monotonic() - begun
    in_time(took, 5 * slowness(), "the stop")
    figures.append(f"stop in the middle of an upload: {took:.2f} s")
    there = finished(proxy)
    assert len(there) >= 3 and len(bucket.uploads()) == 1 and not bucket.bundles(), (
        there, bucket.uploads())
    proxy.rate = None
    a.start()
    a.wait_all("120s")
    judge(a, bucket, [unit])
    twice = {part: tries for part, tries in proxy.part_bodies().items() if part in there
             and len(tries) > 1}
    assert not twice, f"sent again: {twice}"
    assert "resuming its upload behind part" in a.log
    a.stop()


@test
def sigterm_is_over_in_five_seconds_even_when_the_server_stands_still():
    a, bucket, proxy, unit = uploading(48 * MIB, 30 * MIB)
    proxy.hold()
    begun = time.monotonic()
    a.stop()
    took = time.monotonic() - begun
    in_time(took, 5.5 * slowness(), "the stop")
    proxy.cut()
    proxy.rate = None
    a.start()
    a.wait_all("120s")
    judge(a, bucket, [unit])
    a.stop()


@test
def a_second_sigterm_ends_it_at_once():
    a, _, proxy, _ = uploading(48 * MIB, 30 * MIB)
    proxy.hold()
    os.kill(a.pid, signal.SIGTERM)
    wait_for("it says that it stops", lambda: "stopping: received" in a.log)
    begun = time.monotonic()
    a.stop()
    in_time(time.monotonic() - begun, 3 * slowness(), "the stop")
    proxy.cut()


@test
def a_small_copy_to_a_volume_is_finished_before_the_end():
    a = Agent()
    a.use_directories()
    a.send_slowly()
    unit = a.incompressible(3 * MIB)
    a.start()
    wait_for("it is being copied", lambda: any(files for _, _, files in os.walk(a.path("out"))))
    a.stop()
    assert len(a.manifests()) == 1, "the copy of a few MiB was cut"
    a.start()
    a.wait_all()
    assert a.counts()["delivered"] == 1 and os.path.isdir(unit)
    a.stop()


def heard_by(systemd, line):
    return lambda: any(heard.startswith(line) for heard in systemd.lines())


def with_systemd(a):
    a.notify = a.path("notify")


@test
def it_asks_systemd_for_time_and_reports_what_it_does():
    systemd = []
    a, _, proxy, _ = uploading(48 * MIB, 30 * MIB,
                               lambda a: (with_systemd(a), systemd.append(NotifySocket(a.dir))))
    assert not heard_by(systemd[0], "EXTEND_TIMEOUT_USEC=")()
    proxy.hold()
    os.kill(a.pid, signal.SIGTERM)
    wait_for("status says stopping", lambda: '"stopping"' in a.curl("/v1/status").stdout, 4)
    wait_for("it is said to systemd", heard_by(systemd[0], "STOPPING=1"), 4)
    wait_for("time is asked for", heard_by(systemd[0], "EXTEND_TIMEOUT_USEC="), 4)
    a.stop()
    proxy.cut()


@test
def while_it_drains_it_asks_systemd_for_time_until_it_is_safe():
    systemd = []
    a, _, proxy, _ = uploading(48 * MIB, 30 * MIB,
                               lambda a: (with_systemd(a), systemd.append(NotifySocket(a.dir))))
    proxy.hold()
    assert a.curl("/v1/drain", "-X", "POST").returncode == 0
    wait_for("time is asked for", heard_by(systemd[0], "EXTEND_TIMEOUT_USEC="), 10)
    assert not a.status()["drain"]["safe_to_terminate"]
    proxy.release()
    proxy.rate = None
    wait_for("it is safe", lambda: a.status()["drain"]["safe_to_terminate"], 60)
    wait_for("systemd is told so", heard_by(systemd[0], "STATUS=drained, safe to terminate"), 10)
    a.stop()


@test
def a_reload_that_comes_while_it_stops_begins_nothing():
    a, _, proxy, _ = uploading(48 * MIB, 30 * MIB)
    proxy.hold()
    os.kill(a.pid, signal.SIGTERM)
    wait_for("it says that it stops", lambda: "stopping: received" in a.log)
    a.config["limits"] = {"compression_level": 1}
    a.write_config()
    a.reload()
    begun = time.monotonic()
    a.stop()
    in_time(time.monotonic() - begun, 6 * slowness(), "the stop")
    assert "configuration reloaded" not in a.log
    proxy.cut()


@test
def a_stop_that_comes_while_it_reloads_is_carried_out_and_the_reload_is_not():
    a, _, proxy, _ = uploading(48 * MIB, 30 * MIB)
    proxy.hold()
    a.config["limits"] = {"compression_level": 1}
    a.write_config()
    a.reload()
    time.sleep(0.5)
    begun = time.monotonic()
    a.stop()
    in_time(time.monotonic() - begun, 6 * slowness(), "the stop")
    assert "configuration reloaded" not in a.log
    proxy.cut()


@test
def a_reload_with_other_limits_sends_no_part_again():
    a, bucket, proxy, unit = uploading(96 * MIB, 30 * MIB)
    a.config["limits"] = {"memory": "96MiB"}
    a.write_config()
    a.reload()
    wait_for("it is in force", lambda: "configuration reloaded" in a.log, 10)
    proxy.rate = None
    a.wait_all("120s")
    judge(a, bucket, [unit])
    twice = {part: tries for part, tries in proxy.part_bodies().items() if len(tries) > 1}
    assert len(proxy.part_bodies()) > 10 and not twice, f"sent again: {twice}"
    a.stop()


if __name__ == "__main__":
    sys.exit(main(cleanup))
