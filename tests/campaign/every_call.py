#!/usr/bin/env python3
"""Every call fails once: the N-th call of a kind, at one place, fails with each errno that it can
give (or returns half, or is done and reported as failed), for a small bundle to a volume, a
multipart bundle to S3, and a `--once`; and the N-th allocation returns NULL. docs/RELIABILITY.md.

    every_call.py [--seed N] [--cases N] [--only TEXT] [--stride N]

A case is named `SCENE/PLACE/OPERATION/ERROR/N`, which is what --only searches for. Without --cases
all are run, in an order by the seed; with --stride only every so many-th call. The build is the
current directory, or $builddir."""
import argparse
import http.client
import os
import random
import signal
import subprocess
import sys
import time

sys.dont_write_bytecode = True
HERE = os.path.dirname(os.path.realpath(__file__))
sys.path[:0] = [HERE, os.path.join(HERE, "..", "harness")]
# pylint: disable=wrong-import-position
import agent as harness
from agent import Agent, check_bundle, object_of, tree, wait_for
from crashpoint import CrashPoint
from rounds import LIBRARY
from s3_server import S3Server
from tap import Skip

MIB = 1 << 20
ERRORS = {"open": ("EIO", "ENOSPC", "EACCES", "EMFILE", "EROFS"),
          "write": ("EIO", "ENOSPC", "EDQUOT", "short"), "fsync": ("EIO", "ENOSPC"), "truncate": ("EIO", "ENOSPC"),
          "rename": ("EIO", "ENOSPC", "done"), "link": ("EIO", "ENOSPC", "EMLINK", "EPERM", "done"),
          "unlink": ("EIO", "EACCES", "done"), "mkdir": ("EIO", "ENOSPC", "EACCES"),
          "send": ("ECONNRESET", "EPIPE", "EINTR", "EAGAIN", "short"),
          "open-read": ("EIO", "EACCES", "EMFILE", "ENOMEM", "EINTR"),
          "read": ("EIO", "EINTR", "short"), "allocate": ("ENOMEM",)}
PLACES = {"volume": ("state", "volume", "sources", "links"),
          "s3": ("state", "sources", "links", "network"),
          "once": ("state", "volume", "sources", "links")}
ENDS = (0, 1, 2)  # as documented; a signal is a crash


class Scene:
    """One agent and what it is to deliver."""

    def __init__(self, name):
        self.name, self.server = name, None
        a = self.agent = Agent()
        a.use_directories(settle="100ms", scan_interval="1s")
        a.config["retry"] = {"initial": "50ms", "maximum": "500ms"}
        a.config["snapshot"] = {"enabled": False}
        a.config["log"] = {"level": "debug", "format": "text"}
        if name == "s3":
            self.server = S3Server()
            self.server.__enter__()
            a.config["destinations"] = [a.s3("s3", self.server, "bucket", part_size="5MiB")]
        os.makedirs(a.path("jobs"))
        a.once("--timeout", "10s")  # the state is there: a new one takes thousands of calls
        self.unit = a.incompressible(12 * MIB if name == "s3" else 65536)
        os.makedirs(os.path.join(self.unit, "sub"))
        with open(os.path.join(self.unit, "sub", "small"), "wb") as f:
            f.write(b"small")
        self.wanted = tree(self.unit)
        for place in ("state", "out"):
            os.makedirs(a.path(place), exist_ok=True)
        self.crash = CrashPoint(LIBRARY, a.path("control"), {
            "state": a.path("state"), "volume": a.path("out"), "sources": a.path("jobs"),
            "links": a.path(".neuron-collectd")})
        a.environment |= self.crash.environment()

    def deliver(self, seconds):
        """@return None, or what is wrong: of the time until all is delivered, or an end"""
        a = self.agent
        if self.name == "once":
            done = a.once("--timeout", f"{seconds:.0f}s", timeout=seconds + 30)
            if done.returncode == 1 and not done.stdout + done.stderr:
                return "--once ended with 1 and said nothing"
            if done.returncode not in ENDS:
                return f"--once ended with {done.returncode}: {done.stderr[-800:]}"
            self.is_done = done.returncode == 0
            return None
        a.start(wait=False)
        deadline, self.is_done = time.monotonic() + seconds, False
        while time.monotonic() < deadline and a.process.poll() is None and not self.is_done:
            time.sleep(0.05)
            try:
                counts = a.counts()
                self.is_done = counts["delivered"] > 0 and sum(
                    counts[s] for s in ("settling", "ready", "shipping")) == 0
            except ValueError as error:
                return f"the API's answer is no JSON: {error}"
            except (AssertionError, OSError, http.client.HTTPException):
                pass  # it starts, or the fault met the API
        if a.process.poll() is None:
            a.process.send_signal(signal.SIGTERM)
            try:
                a.process.wait(20 * harness.PATIENCE)
            except subprocess.TimeoutExpired:
                a.kill()
                return "it did not end within 20 s of SIGTERM"
        code, a.process = a.process.returncode, None
        return None if code in ENDS else f"the daemon ended with {code}: {a.log[-1500:]}"

    def judge(self):
        """@return what is wrong with what has arrived"""
        a = self.agent
        where = a.out
        if self.server:
            where = a.path("fetched")
            for key, item in self.server.objects.items():
                path = os.path.join(where, key)
                os.makedirs(os.path.dirname(path), exist_ok=True)
                with open(path, "wb") as f:
                    f.write(item.body)
        manifests = a.manifests(where)
        bases = [(p, m) for p, m in manifests if not m["bundle"]["supplement_of"]]
        faults = []
        if len(bases) != 1:
            return [f"{len(bases)} bundles: {[p for p, _ in manifests]}"]
        members = {m["path"] for _, found in manifests for m in found["members"]}
        missing = {os.fsdecode(p) for p in self.wanted} - members
        is_complete = all(m["bundle"]["complete"] for _, m in manifests)
        if missing and is_complete:
            faults.append(f"it is called complete and lacks {missing}")
        if len(manifests) > 1 and not missing and bases[0][1]["bundle"]["complete"]:
            faults.append(f"a supplement of a complete bundle: {[p for p, _ in manifests]}")
        if len(manifests) == 1 and not missing:
            check_bundle(bases[0][0], self.wanted, tools=("tar",))
        objects = {p for p in tree(where) if p.endswith(b".tar.zst")}
        proven = {os.fsencode(os.path.relpath(object_of(p), where)) for p, _ in manifests}
        if objects != proven:
            faults.append(f"objects without a manifest: {objects - proven}")
        rests = [p for p in tree(where) if b"neuron-collectd-tmp" in p]
        if rests:
            faults.append(f"temporary files are left: {rests}")
        if self.server and self.server.uploads:
            faults.append(f"uploads are left: {list(self.server.uploads)}")
        if not os.path.isdir(self.unit) or tree(self.unit) != self.wanted:
            faults.append("the source was changed")
        return faults

    def close(self):
        if self.agent.process is not None:
            self.agent.kill()
        if self.server:
            self.server.__exit__(None, None, None)
        harness.cleanup(False)


def count_calls(name):
    """@return {(place, operation): calls} of a run without a fault"""
    scene = Scene(name)
    try:
        problem = scene.deliver(30)
        assert not problem and scene.is_done, problem or scene.agent.log
        return scene.crash.totals()
    finally:
        scene.close()


def list_cases(stride=1):
    found = []
    for name, places in PLACES.items():
        for (place, operation), n in count_calls(name).items():
            if place not in (*places, "memory"):
                continue
            step = stride * (10 if operation in ("allocate", "read") else 1)
            found += [(name, place, operation, error, at) for error in ERRORS[operation]
                      for at in range(1, n + 1, step)]
    return found


def run_case(case):
    """@return faults"""
    name, place, operation, error, at = case
    scene = Scene(name)
    try:
        action = {"short": "shorten", "done": "do-and-fail"}.get(error, "fail")
        scene.crash.arm(action, at, operations=(operation,), places=(place,),
                        error="EIO" if error in ("short", "done") else error)
        problem = scene.deliver(8 * harness.PATIENCE)
        what = scene.crash.what
        scene.crash.disarm()
        faults = [problem] if problem else []
        if not faults and not scene.is_done or name == "once":
            problem = scene.deliver(20 * harness.PATIENCE)
            if problem or not scene.is_done:
                faults.append(problem or "it does not recover in a run without a fault: "
                              + scene.agent.log[-1500:])
        if not faults:
            faults = scene.judge()
        return [f"{'/'.join(map(str, case))} ({what}): {f}" for f in faults]
    finally:
        scene.close()


def run_cases(cases, seconds=None, on_fault=print):
    """@return (cases run, faults)"""
    begun, n, faults = time.monotonic(), 0, []
    for case in cases:
        if seconds is not None and time.monotonic() - begun > seconds:
            break
        try:
            found = run_case(case)
        except AssertionError as error:
            found = [f"{'/'.join(map(str, case))}: {error}"]
        n += 1
        for fault in found:
            on_fault(fault)
        faults += found
    return n, faults


def need_library():
    if not os.path.exists(LIBRARY):
        raise Skip(f"{LIBRARY} is not built: make {os.path.relpath(LIBRARY, harness.BUILD_DIR)}")
    if harness.WRAP or harness.is_instrumented():
        raise Skip("a sanitizer or wrapper has an allocator of its own")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--seed", type=int, default=20261128)
    parser.add_argument("--cases", type=int)
    parser.add_argument("--only", default="")
    parser.add_argument("--stride", type=int, default=1)
    options = parser.parse_args()
    cases = [c for c in list_cases(options.stride) if options.only in "/".join(map(str, c))]
    random.Random(options.seed).shuffle(cases)
    print(f"{len(cases)} cases", flush=True)
    n, faults = run_cases(cases[:options.cases],
                          on_fault=lambda f: print("FAULT", f, flush=True))
    print(f"{n} cases, {len(faults)} faults")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
