#!/usr/bin/env python3
"""What the agent costs a node that has nothing to do, and how much memory a large bundle takes."""
import os
import sys
import time

sys.dont_write_bytecode = True  # the source tree may be read-only, and is packed as it is
sys.path.insert(0, os.path.join(os.path.dirname(os.path.realpath(__file__)), "..", "harness"))
# pylint: disable=wrong-import-position
from agent import (Agent, check_bundle, cleanup, is_instrumented, object_of, process_memory, tree,
                   wait_for)
from tap import Skip, figures, main, test

MIB = 1 << 20


def switches(pid):
    """Voluntary context switches of all threads: every wake-up ends in one."""
    total = 0
    for tid in os.listdir(f"/proc/{pid}/task"):
        try:
            with open(f"/proc/{pid}/task/{tid}/status", encoding="ascii", errors="replace") as f:
                total += next(int(line.split()[1]) for line in f
                              if line.startswith("voluntary_ctxt_switches"))
        except (FileNotFoundError, ProcessLookupError):
            pass  # a thread that has just ended: the sum is another one next time
    return total


def woken_in(pid, seconds):
    before = switches(pid)
    time.sleep(seconds)  # here the passing of time is what is tested
    return switches(pid) - before


@test
def idle_it_sleeps_and_is_small():
    if is_instrumented():
        raise Skip("instrumented: memory and wake-ups mean nothing")
    a = Agent()
    a.config["sources"][0] |= {"settle": "10s", "scan_interval": "1h"}
    a.config["log"]["level"] = "info"
    a.config.pop("retry")
    os.makedirs(a.path("dumps"))
    a.start()
    memory = process_memory(a.pid)
    pid = a.pid
    wait_for("what starting up leaves to be done is done", lambda: woken_in(pid, 1) == 0, 20)
    woken = woken_in(pid, 5)
    figures.append(f"idle: RSS {memory['VmRSS'] / MIB:.1f} MiB, RssAnon "
                   f"{memory['RssAnon'] / MIB:.1f} MiB, {woken} wake-ups in 5 s")
    assert woken == 0, f"{woken} wake-ups in 5 s"
    assert memory["RssAnon"] <= 6 * MIB, memory["RssAnon"]
    assert memory["VmRSS"] <= 24 * MIB, memory["VmRSS"]
    a.stop()


@test
def after_work_it_sleeps_again_and_gives_memory_back():
    if is_instrumented():
        raise Skip("instrumented: memory and wake-ups mean nothing")
    a = Agent()
    a.config["sources"][0]["scan_interval"] = "1h"
    a.config["log"]["level"] = "info"
    a.start()
    unit = a.dump(size=256 * MIB)
    a.wait_known(1)
    a.wait_all()
    memory = process_memory(a.pid)
    figures.append(f"256 MiB delivered: peak RSS {memory['VmHWM'] / MIB:.1f} MiB, now "
                   f"{memory['VmRSS'] / MIB:.1f} MiB")
    assert memory["VmHWM"] <= 96 * MIB, memory["VmHWM"]
    path, _ = a.only_manifest()
    check_bundle(path, unit, tools=("tar",))
    wait_for("it sleeps for three seconds", lambda: woken_in(a.pid, 3) == 0, 20)
    assert process_memory(a.pid)["VmRSS"] <= 48 * MIB, process_memory(a.pid)
    a.stop()


def database_bytes(a):
    return sum(os.path.getsize(a.path("state", n)) for n in os.listdir(a.path("state"))
               if n.startswith("state.db"))


@test
def nothing_is_written_outside_the_state_and_the_destination():
    a = Agent()
    a.start()  # the database takes what it reserves
    a.stop()
    reserved = database_bytes(a)
    assert reserved <= 12 * MIB, reserved
    outside = a.path("tmp")
    os.mkdir(outside)
    a.environment["TMPDIR"] = outside
    unit = a.dump(size=8 * MIB)
    before = {p: v for p, v in tree(a.dir).items()
              if not p.startswith((b"state/", b"out/", b"log", b"run/"))}
    a.start()
    a.wait_known(1)
    a.wait_all()
    a.stop()
    after = {p: v for p, v in tree(a.dir).items()
             if not p.startswith((b"state/", b"out/", b"log", b"run/"))}
    after.pop(b"neuron-collectd.yaml", None)
    before.pop(b"neuron-collectd.yaml", None)
    assert after == before, set(after) ^ set(before)
    assert database_bytes(a) <= reserved + 4 * MIB, (database_bytes(a), reserved)
    assert os.path.getsize(object_of(a.only_manifest()[0])) < sum(n for n, _ in tree(unit).values())


if __name__ == "__main__":
    sys.exit(main(cleanup))
