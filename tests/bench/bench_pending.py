#!/usr/bin/env python3
"""What a bundle costs when many are pending: small dumps that gathered while the destination was
away, few against many of them.

    builddir=build srcdir=. tests/bench/bench_pending.py [--few 100] [--many 10000] [--runs 3]
    [--directory DIR] [--assert] [PART...]

Parts, default both:
  volume  a directory that is not there until everything is pending
  s3      a radosgw in memory on loopback that is stopped until everything is pending

Measured from the first delivery to the last, so neither the wait for the next try nor the start
counts: a wait of fixed length would make the few look dear. Of --runs runs with few the median
counts; with many there is one run. CPU is the daemon's, all threads. With --assert the exit is 1
when a bundle among many costs more than twice the wall time of one among few, or anything is
missing at the destination.
"""
import os
import random
import shutil
import statistics
import sys
import time

sys.dont_write_bytecode = True
sys.path.insert(0, os.path.join(os.path.dirname(os.path.realpath(__file__)), "..", "harness"))
sys.path.insert(0, os.path.dirname(os.path.realpath(__file__)))
# pylint: disable=wrong-import-position
import agent
import s3tools
from bench_volume import arguments, bound, measured, parsed
from make_dump import MIB
from radosgw import Radosgw

TICKS = os.sysconf("SC_CLK_TCK")
AWAY_SECONDS = 5  # how long the cost of waiting is looked at


def make_dumps(root, n):
    """`n` dumps of three files, about 6 KiB each: half text, half noise."""
    rng = random.Random(n)
    for i in range(n):
        unit = os.path.join(root, f"dt-20260527-0521{i % 60:02d}-cid-{i + 1:016x}")
        os.makedirs(unit)
        if os.geteuid() == 0:  # more than 1,000 of one owner would wait
            os.chown(unit, 2000 + i // 1000, -1)
        for name, text in (
                (f"{agent.INSTANCE}-nrt-pid-{i + 1}.log",
                 b"2026-May-27 05:21:35 ERROR TDRV: a line of the log\n" * 40),
                (f"{agent.INSTANCE}-nd0-nc0-pid-{i + 1}-tid-1-lid-1", rng.randbytes(2048)),
                (f"{agent.INSTANCE}-nd0-nc1-pid-{i + 1}-tid-2-lid-2", rng.randbytes(2048))):
            with open(os.path.join(unit, name), "wb") as f:
                f.write(text)


def cpu_seconds(pid):
    with open(f"/proc/{pid}/stat", encoding="ascii", errors="replace") as f:
        fields = f.read().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / TICKS


class Volume:
    """A destination below a mount point that is not there."""

    def __init__(self, a):
        self.a = a
        a.config["destinations"] = [a.volume("archive", "mount/root")]

    def come(self):
        os.mkdir(self.a.path("mount"))

    def count(self):
        return sum(name.endswith(".manifest.json") for _, _,
                   names in os.walk(self.a.path("mount")) for name in names)

    def close(self):
        pass


class Bucket:
    """A bucket whose gateway is stopped."""

    def __init__(self, a):
        self.server = Radosgw(bytes_=4 << 30, fast=True)
        self.bucket = s3tools.new_bucket(self.server)
        self.server.stop_gateway()
        a.config["destinations"] = [a.s3("archive", self.server, self.bucket)]

    def come(self):
        self.server.start_gateway()

    def count(self):
        return len(self.bucket.manifests())

    def close(self):
        self.server.close()


class Measured:
    """One run with n bundles: wall and CPU of each, seconds."""

    def __init__(self, work, kind, n):
        place = os.path.join(work, "run")
        shutil.rmtree(place, ignore_errors=True)
        os.makedirs(place)
        self.n = n
        a = agent.Agent(directory=place)
        a.config["log"] = {"format": "text", "level": "notice"}
        # auto would back off from the server
        a.config["limits"] = {"request_rate": 0, "compression_threads": 1}
        target = kind(a)
        try:
            make_dumps(a.path("dumps"), n)
            self._measure(a, target)
            a.stop()
            agent.cleanup()
            self.missing = n - target.count()
        finally:
            agent.cleanup(failed=sys.exc_info()[0] is not None)
            target.close()
            shutil.rmtree(place, ignore_errors=True)

    def _measure(self, a, target):
        a.start()
        agent.wait_for("all are ready", lambda: a.counts()["ready"] + a.counts(
            )["shipping"] == self.n, 120 + self.n / 20, every=0.2)
        self.take_cpu = cpu_seconds(a.pid) / self.n
        before = cpu_seconds(a.pid)
        time.sleep(AWAY_SECONDS)  # the passing of time is what is measured
        self.away_cpu = (cpu_seconds(a.pid) - before) / AWAY_SECONDS
        target.come()
        first = agent.wait_for("the first is delivered", lambda: a.counts()["delivered"], 60,
                               every=0.005)
        begun, before = time.monotonic(), cpu_seconds(a.pid)
        agent.wait_for("all are delivered", lambda: a.counts()["delivered"] == self.n,
                       120 + self.n / 5, every=0.02 if self.n < 1000 else 0.2)
        self.wall = (time.monotonic() - begun) / max(self.n - first, 1)
        self.cpu = (cpu_seconds(a.pid) - before) / max(self.n - first, 1)
        self.rss = agent.process_memory(a.pid)["VmHWM"]


def median_run(runs):
    return sorted(runs, key=lambda r: r.wall)[len(runs) // 2]


def part(work, options, name, kind):
    few = [Measured(work, kind, options.few) for _ in range(options.runs)]
    many = Measured(work, kind, options.many)
    print(f"\n{name}: pending bundles of about 6 KiB, delivered once the destination was there\n\n"
          "| pending | wall ms a bundle | CPU ms a bundle | CPU ms to take it | CPU % while away | "
          "peak RSS MiB |\n|---|---|---|---|---|---|")
    for r in (median_run(few), many):
        print(f"| {r.n} | {r.wall * 1000:.2f} | {r.cpu * 1000:.2f} | {r.take_cpu * 1000:.2f} | "
              f"{r.away_cpu * 100:.1f} | {r.rss / MIB:.1f} |")
    walls = statistics.median(r.wall for r in few)
    cpus = statistics.median(r.cpu for r in few)
    print(f"\nwall of the runs with {options.few}: "
          f"{', '.join(f'{r.wall * 1000:.2f}' for r in few)} ms; CPU with {options.many}: "
          f"{many.cpu / cpus:.2f} times\n\n"
          "| bound | value | |\n|---|---|---|")
    bound(f"{name}: wall of a bundle among {options.many}", many.wall / walls, 2.0,
          f"{many.wall / walls:.2f} of 2 times that among {options.few}")
    missing = many.missing + sum(r.missing for r in few)
    bound(f"{name}: missing at the destination", missing, 0, str(missing))


PARTS = {"volume": Volume, "s3": Bucket}


def main():
    p = arguments(__doc__, PARTS)
    p.add_argument("--few", type=int, default=100)
    p.add_argument("--many", type=int, default=10000)
    p.add_argument("--runs", type=int, default=3, help="with few (default %(default)s)")
    options = parsed(p, PARTS)

    def measure(work):
        for name in options.parts or PARTS:
            part(work, options, name, PARTS[name])

    return measured(options, measure)


if __name__ == "__main__":
    sys.exit(main())
