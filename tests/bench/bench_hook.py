#!/usr/bin/env python3
"""How long a hook waits: until `accepted` with an idle agent, with a dead and with a stopped one,
and when 128 come at once. And what the look at sysfs costs.

    bench_hook.py [--runs N] [--assert] [accepted absent stopped burst sysfs]...

The build is the current directory, or $builddir. Figures are told, and with --assert compared with
what issue and docs/PERFORMANCE.md promise.
"""
import argparse
import json
import os
import resource
import secrets
import signal
import socket
import statistics
import subprocess
import sys
import time

sys.dont_write_bytecode = True
HERE = os.path.dirname(os.path.realpath(__file__))
sys.path[:0] = [os.path.join(HERE, "..", "e2e"), os.path.join(HERE, "..", "harness")]
# pylint: disable=wrong-import-position
import agent as harness
import neuron_sysfs
import test_incident as scene

faults = []


def report(what, value, unit, limit=None):
    print(f"{what}: {value:.2f} {unit}" + (f" (at most {limit})" if limit else ""), flush=True)
    if limit and value > limit:
        faults.append(f"{what}: {value:.2f} {unit} is above {limit}")


def percentile(values, share):
    return sorted(values)[min(len(values) - 1, int(len(values) * share))]


def note_for(unit, lid):
    return json.dumps({"schema": "neuron-collectd/hook-note/1", "id": secrets.token_hex(16),
                       "written_usec": int(time.time() * 1e6),
                       "arguments": {"pid": str(os.getpid()), "tid": "1", "log_id": str(lid),
                                     "instance_id": harness.INSTANCE, "error_code": "1200",
                                     "cluster_id": scene.CID, "date_time": "20260527-051233",
                                     "local_output_dir": unit}, "environment": {}}).encode()


def accepted(runs):
    """From connect(2) to the answer, as a client of the socket sees it, and the whole life of our
    hook; the agent is idle in between."""
    a = scene.node(devices=16, enabled=False)
    a.start()
    unit = a.path("dumps", scene.UNIT)
    scene.state_file(unit, os.getpid())
    wire, whole = [], []
    for i in range(runs := min(runs, 500)):  # one user's share, above which notes are refused
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as s:
            note = note_for(unit, i)
            begun = time.monotonic()
            s.connect(a.config["hook"]["socket"])
            s.send(note)
            answer = s.recv(4096)
            wire.append((time.monotonic() - begun) * 1e3)
            assert answer.startswith(b"accepted"), answer
            s.send(b"finished")
        time.sleep(0.01)
    a.stop()
    a = scene.node(devices=16, enabled=False)
    a.start()
    unit = a.path("dumps", scene.UNIT)
    scene.state_file(unit, os.getpid())
    for i in range(min(runs, 200)):
        command = scene.hook_command(unit, os.getpid(), 1, i)
        begun = time.monotonic()
        subprocess.run(command, env=scene.hook_environment(a), check=True, capture_output=True)
        whole.append((time.monotonic() - begun) * 1e3)
        time.sleep(0.01)
    report(f"accepted, p50 of {runs}", percentile(wire, 0.5), "ms")
    report(f"accepted, p99 of {runs}", percentile(wire, 0.99), "ms", 5)
    report(f"the hook as a whole without a snapshot, p50 of {len(whole)}", percentile(whole, 0.5),
         "ms")
    report(f"the hook as a whole without a snapshot, p99 of {len(whole)}", percentile(whole, 0.99),
         "ms")
    a.stop()


def with_deadline(a, runs, what):
    unit = a.path("dumps", scene.UNIT)
    took = []
    for i in range(runs):
        begun = time.monotonic()
        subprocess.run(scene.hook_command(unit, 4711, 1, i),
                       env=scene.hook_environment(a, NEURON_COLLECTD_DEADLINE="1s"), check=True,
                       capture_output=True)
        took.append((time.monotonic() - begun) * 1e3)
    report(f"hook, deadline 1 s, {what}, most of {runs}", max(took), "ms", 1100)


def absent(runs):
    a = scene.node(devices=16)
    a.start()
    a.stop()
    scene.state_file(a.path("dumps", scene.UNIT), 4711)
    with_deadline(a, min(runs, 20), "no agent")


def stopped(runs):
    a = scene.node(devices=16)
    a.start()
    scene.state_file(a.path("dumps", scene.UNIT), 4711)
    os.kill(a.pid, signal.SIGSTOP)
    try:
        with_deadline(a, min(runs, 10), "stopped agent")
    finally:
        os.kill(a.pid, signal.SIGCONT)
    a.stop()


def burst(_):
    for rounds in range(3):
        a = scene.node(devices=16)
        a.start()
        unit = a.path("dumps", scene.UNIT)
        with scene.failing_process() as rank:
            scene.state_file(unit, rank.pid)
            begun = time.monotonic()
            hooks = [subprocess.Popen(scene.hook_command(unit, rank.pid, i + 1, i + 1),
                                      env=scene.hook_environment(a, i)) for i in range(128)]
            assert all(h.wait() == 0 for h in hooks)
            report(f"128 hooks at once, deadline {scene.DEADLINE} s, all ended, round {rounds + 1}",
                 time.monotonic() - begun, "s", scene.DEADLINE + 1)
            rank.stdin.close()
        a.stop()


def sysfs(runs):
    """The collector in a process of its own: 16 devices with 8 cores each."""
    a = harness.Agent()
    neuron_sysfs.tree(a.path("sys"), "v3", 16)
    took = []
    for _ in range(max(3, min(runs, 10))):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        out = subprocess.run([os.path.join(harness.BUILD_DIR, "tests/collectors/run_collector"),
                              "neuron_sysfs", f"sysfs_root={a.path('sys')}"],
                             check=True, capture_output=True)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        took.append((after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime) * 1e3)
    files = sum(len(names) for _, _, names in os.walk(a.path("sys")))
    devices = {json.loads(line).get("device") for line in out.stdout.splitlines()} - {None}
    assert len(devices) == 16, devices
    print(f"sysfs: {files} files, {len(out.stdout)} bytes of records")
    report(f"sysfs, CPU, median of {len(took)}", statistics.median(took), "ms", 250)


def main():
    parts = {"accepted": accepted, "absent": absent, "stopped": stopped, "burst": burst,
             "sysfs": sysfs}
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=500)
    parser.add_argument("--assert", dest="check", action="store_true")
    parser.add_argument("parts", nargs="*", choices=[*parts, []], default=[])
    options = parser.parse_args()
    try:
        for name in options.parts or parts:
            parts[name](options.runs)
            harness.cleanup()
    finally:
        harness.cleanup()
    for fault in faults:
        print("FAULT:", fault)
    return 1 if faults and options.check else 0


if __name__ == "__main__":
    sys.exit(main())
