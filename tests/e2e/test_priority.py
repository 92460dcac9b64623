#!/usr/bin/env python3
"""The job comes first: threads that can wait are idle ones, the machine's pressure makes them rest,
and the API answers nevertheless."""
import contextlib
import hashlib
import json
import multiprocessing
import os
import socket
import sys
import threading
import time

sys.dont_write_bytecode = True  # the source tree may be read-only, and is packed as it is
sys.path.insert(0, os.path.join(os.path.dirname(os.path.realpath(__file__)), "..", "harness"))
# pylint: disable=wrong-import-position
from agent import (PATIENCE, Agent, check_bundle, cleanup, is_instrumented, need, process_io, run,
                   wait_for)
from tap import Late, Skip, figures, in_time, main, test

Agent.rests = True  # it is what is judged

MIB = 1 << 20
NO_PRESSURE = "the kernel has no pressure information"


def threads(pid):
    """{name: (policy, class of I/O)} of all threads"""
    found = {}
    for tid in os.listdir(f"/proc/{pid}/task"):
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # one that has just ended
            with open(f"/proc/{pid}/task/{tid}/comm", encoding="utf-8") as f:
                name = f.read().strip()
            found[name] = os.sched_getscheduler(
                int(tid)), run("ionice", "-p", tid).stdout.split(":")[0].strip()
    return found


@test
def threads_that_read_compress_and_write_are_idle_and_no_other():
    need("ionice")
    a = Agent()
    unit = a.dump()
    own = os.sched_getscheduler(0), run("ionice", "-p",
                                        str(os.getpid())).stdout.split(":")[0].strip()
    a.start()
    a.wait_delivered(1)
    found = threads(a.pid)
    idle = {name for name, priority in found.items() if priority == (os.SCHED_IDLE, "idle")}
    assert idle == {"nc-ship", "nc-zstd"}, found
    others = {name: priority for name, priority in found.items() if name not in idle}
    assert len(others) >= 2 and set(others.values()) == {own}, (found, own)
    path, _ = a.only_manifest()
    check_bundle(path, unit, tools=("tar",))
    a.stop()


def burn():
    data = bytes(MIB)
    while True:
        hashlib.sha256(data).digest()


class Job:
    """Takes all CPUs."""

    def __enter__(self):
        self.processes = [multiprocessing.Process(target=burn, daemon=True)
                          for _ in os.sched_getaffinity(0)]
        for p in self.processes:
            p.start()

    def __exit__(self, *_):
        for p in self.processes:
            p.kill()
            p.join()


def ask(path):
    """GET /healthz on a connection of its own. @return seconds"""
    begun = time.monotonic()
    with socket.socket(socket.AF_UNIX) as s:
        s.connect(path)
        s.sendall(b"GET /healthz HTTP/1.0\r\nHost: localhost\r\n\r\n")
        answer = b""
        while more := s.recv(4096):
            answer += more
    assert answer.startswith(b"HTTP/1.1 200 ") or answer.startswith(b"HTTP/1.0 200 "), answer
    return time.monotonic() - begun


@test
def while_a_job_uses_all_cpus_and_bundles_are_shipped_the_api_answers():
    if is_instrumented():
        raise Skip("instrumented: times mean nothing")
    a = Agent()
    a.use_directories()
    a.slow_down()
    a.incompressible(256 * MIB)
    a.start()
    wait_for("it ships", lambda: a.counts()["shipping"] == 1)
    with Job():
        took = sorted(ask(a.socket) for _ in range(1000))
        assert a.counts()["shipping"] == 1, "it was to ship all the while"
    figures.append(f"GET /healthz beside a job on all CPUs: median {took[500] * 1000:.1f} ms, p99 "
                   f"{took[990] * 1000:.1f} ms, worst {took[-1] * 1000:.1f} ms")
    in_time(took[990], 0.5, "99 of 100 answers")
    in_time(took[-1], 5, "the slowest answer")
    a.stop()


class FakeProc:
    """A procfs with nothing but pressure, of which there is as much as pressed() says."""

    def __init__(self, a):
        self.where = a.path("proc")
        os.makedirs(os.path.join(self.where, "pressure"))
        a.config["snapshot"] = {"proc_root": self.where}
        self.total = 0
        self.over = threading.Event()
        self.pressed = True
        self.write()
        self.thread = threading.Thread(target=self.go_on, daemon=True)
        self.thread.start()

    def write(self):
        for name, total in (("cpu", self.total), ("io", 0)):
            path = os.path.join(self.where, "pressure", name)
            with open(path + ".new", "w", encoding="ascii") as f:
                f.write(f"some avg10=0.00 avg60=0.00 avg300=0.00 total={total}\nfull avg10=0.00 "
                        "avg60=0.00 avg300=0.00 total=0\n")
            os.rename(path + ".new", path)

    def go_on(self):
        before = time.monotonic()
        while not self.over.wait(0.05):
            now = time.monotonic()
            if self.pressed:
                self.total += int((now - before) * 1e6)
                self.write()
            before = now

    def close(self):
        self.over.set()
        self.thread.join()


@test
def under_pressure_it_rests_and_after_it_it_works():
    if is_instrumented():
        raise Skip("instrumented: times mean nothing")
    a = Agent()
    proc = FakeProc(a)
    try:
        a.config["limits"] = {"compression_level": 9}
        a.dump(size=768 * MIB)
        a.start()
        wait_for("it ships", lambda: a.counts()["shipping"] == 1)
        time.sleep(5)  # ten readings: more than from all to the least

        def rate(seconds):
            read, begun = process_io(a.pid)["rchar"], time.monotonic()
            time.sleep(seconds)  # the passing of time is what is measured
            return (process_io(a.pid)["rchar"] - read) / (time.monotonic() - begun)
        resting = rate(4)
        assert a.counts()["shipping"] == 1
        proc.pressed = False
        fastest, end = 0, time.monotonic() + 180 * PATIENCE
        while a.counts()["delivered"] == 0:
            assert time.monotonic() < end, "it is not delivered"
            fastest = max(fastest, rate(0.5))
        figures.append(f"pressed {resting / MIB:.1f} MiB/s, then up to {fastest / MIB:.1f} MiB/s")
        if fastest <= 3 * resting:  # or what else this machine does leaves idle threads nothing
            raise Late(str(figures))
    finally:
        proc.close()
    a.stop()


@test
def a_kernel_without_pressure_information_is_reported_when_it_is_needed():
    for threads_wanted, is_said in (("auto", True), (1, False)):
        a = Agent()
        a.config["limits"] = {"compression_threads": threads_wanted}
        a.config["snapshot"] = {"proc_root": a.path("proc")}
        a.dump()
        a.start()
        a.wait_delivered(1)
        assert (NO_PRESSURE in json.dumps(a.status())) == is_said, a.status()
        a.stop()


if __name__ == "__main__":
    sys.exit(main(cleanup))
