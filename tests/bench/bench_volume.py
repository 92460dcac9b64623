#!/usr/bin/env python3
"""What delivering to a volume costs, against `tar | zstd -3 -T2 > file; sync` in the same run.

    builddir=build srcdir=. tests/bench/bench_volume.py [--size 4GiB] [--runs 3] [--directory DIR]
    [--assert] [PART...]

Parts: large, sparse, zeros, files, directories; default all. Runs alternate with the rival's, the
source is read into the page cache before each run of either, and medians are shown. With --assert
the exit is 1 when a bound of the project is broken. Needs about 2.5 times --size of disk below
--directory, and gives it back.
"""
import argparse
import os
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time

sys.dont_write_bytecode = True
sys.path.insert(0, os.path.join(os.path.dirname(os.path.realpath(__file__)), "..", "harness"))
# pylint: disable=wrong-import-position
import agent
import make_dump
from agent import family
from make_dump import GIB, MIB
from tap import Skip

broken = []
SETTLE = 10.5  # seconds, a little more than the default


class Run:
    """One finished process tree: wall and CPU seconds, peak RSS (sum over its processes), and what
    /proc/PID/io said at its end."""

    def __init__(self, command, watch=None, **options):
        self.peak_watched = 0
        peaks = {}
        stop = threading.Event()

        def look():
            # ru_maxrss would be our own size, which a child inherits until it has grown beyond it.
            while not stop.wait(0.02):
                for pid in family(process.pid):
                    try:
                        peaks[pid] = agent.process_memory(pid).get("VmHWM", peaks.get(pid, 0))
                    except OSError:
                        pass
                if watch:
                    self.peak_watched = max(self.peak_watched, watch())

        begun = time.monotonic()
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, **options)
        thread = threading.Thread(target=look)
        thread.start()
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        self.wall = time.monotonic() - begun
        try:
            self.io = agent.process_io(process.pid)
        except OSError:
            self.io = {}
        stop.set()
        thread.join()
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        assert process.returncode == 0, f"{command}: exit {process.returncode}"
        self.cpu = usage.ru_utime + usage.ru_stime
        self.rss = sum(peaks.values())


def median(runs, field):
    return statistics.median(getattr(r, field) for r in runs)


def warm(path):
    for base, _, names in os.walk(path):
        for name in names:
            with open(os.path.join(base, name), "rb", buffering=0) as f:
                while f.read(4 * MIB):
                    pass


def let_settle(unit):
    """Waits until nothing has changed for `settle`, our own hard links included: waiting is not
    what is measured."""
    newest = max(os.stat(os.path.join(base, name)).st_ctime for base, _,
                 names in os.walk(unit) for name in names)
    time.sleep(max(newest + SETTLE - time.time(), 0))


def bound(what, value, limit, text):
    verdict = "ok" if value <= limit else "BROKEN"
    if value > limit:
        broken.append(what)
    print(f"| {what} | {text} | {verdict} |", flush=True)


def arguments(doc, parts=()):
    """A parser with the options of all benchmarks. They measure the agent's defaults."""
    agent.Agent.rests = True
    p = argparse.ArgumentParser(description=doc.split("\n", maxsplit=1)[0])
    p.add_argument("--directory", default="/var/tmp", help="for the data (default %(default)s)")
    p.add_argument("--assert", dest="must", action="store_true",
                   help="exit 1 when a bound is broken")
    if parts:
        p.add_argument("parts", nargs="*", metavar="PART", help=", ".join(parts))
    return p


def parsed(p, parts):
    options = p.parse_args()
    if unknown := set(options.parts) - set(parts):
        p.error(f"no such part: {', '.join(unknown)}")
    return options


def measured(options, measure):
    """Calls measure() with a temporary directory. @return the exit code"""
    work = tempfile.mkdtemp(prefix="neuron-bench.", dir=options.directory)
    try:
        measure(work)
    except Skip as skip:
        print(f"cannot run here: {skip}")
        return 77
    finally:
        agent.cleanup()
        subprocess.run(["rm", "-rf", "--", work], check=False)
    if broken:
        print("\nbroken: " + ", ".join(broken))
    return 1 if broken and options.must else 0


def state_size(directory):
    total = 0
    for name in ("state.db", "state.db-wal", "state.db-shm"):
        try:
            total += os.path.getsize(os.path.join(directory, name))
        except FileNotFoundError:
            pass
    return total


def ours(work, unit, n, kind="directory"):
    """One --once over the finished directory `unit` with defaults. @return Run, with .size and
    .manifest"""
    place = os.path.join(work, f"ours-{n}")
    os.makedirs(place)
    a = agent.Agent(directory=place)
    source = {"name": "bench", "kind": kind, "path": unit}
    if kind == "neuron-core-dump":
        source["path"] = os.path.join(os.path.dirname(unit), "dt-%d-cid-%c")
    a.config["sources"] = [source]
    a.config["log"] = {"format": "text"}
    del a.config["retry"]
    a.config["destinations"] = [{"name": "archive", "type": "volume",
                                 "path": os.path.join(a.out, "%d-%c"), "min_free": "0"}]
    a.write_config()
    with open(a.path("log"), "wb") as log:
        run = Run([agent.DAEMON, "--config", a.config_file, "--once"],
                  watch=lambda: state_size(a.path("state")), stdout=log, stderr=log)
    path, run.manifest = a.only_manifest()
    run.object = agent.object_of(path)
    run.size = os.path.getsize(run.object)
    run.place = place
    agent.cleanup()
    return run


def rival(work, unit, n):
    out = os.path.join(work, f"rival-{n}.tar.zst")
    run = Run(["sh", "-c", 'tar -C "$1" -c . | zstd -q -3 -T2 > "$2"; sync', "sh", unit, out])
    run.size = os.path.getsize(out)
    os.unlink(out)
    return run


def compare(work, unit, what, runs, kind="directory"):
    mine, theirs = [], []
    for i in range(runs):
        warm(unit)
        theirs.append(rival(work, unit, i))
        warm(unit)
        let_settle(unit)
        mine.append(ours(work, unit, i, kind))
        if i < runs - 1:
            shutil.rmtree(mine[-1].place)
    print(f"\n{what}, medians of {runs} alternating runs\n\n| | wall s | CPU s | peak RSS MiB | "
          "size MiB |\n|---|---|---|---|---|")
    for name, group in (("neuron-collectd --once", mine), ("tar, zstd -3 -T2, sync", theirs)):
        print(f"| {name} | {median(group, 'wall'):.2f} | {median(group, 'cpu'):.2f} | "
              f"{median(group, 'rss') / MIB:.1f} | {median(group, 'size') / MIB:.1f} |")
    ratios = {f: median(mine, f) / median(theirs, f) for f in ("wall", "cpu", "size")}
    print(f"| ratio | {ratios['wall']:.2f} | {ratios['cpu']:.2f} | | {ratios['size']:.3f} |",
          flush=True)
    return mine, ratios


def part_large(work, options):
    unit = make_dump.make_dump(os.path.join(work, "dumps"), size=options.size,
                               instance_id=agent.INSTANCE)
    for name in os.listdir(unit):
        os.utime(os.path.join(unit, name), (time.time() - 60, time.time() - 60))
    os.sync()
    mine, ratios = compare(work, unit, f"{options.size / GIB:.1f} GiB dump directory",
                           options.runs, "neuron-core-dump")
    last = mine[-1]
    agent.check_bundle(last.object.removesuffix(".tar.zst") + ".manifest.json", unit, tools=("tar",
                       ))
    total = sum(e["bytes"] for e in last.manifest["members"])
    print("\n| bound | value | |\n|---|---|---|")
    bound("wall against the rival", ratios["wall"], 1.1, f"{ratios['wall']:.2f} of 1.1")
    bound("CPU against the rival", ratios["cpu"], 1.2, f"{ratios['cpu']:.2f} of 1.2")
    bound("size against the rival", ratios["size"], 1.02, f"{ratios['size']:.3f} of 1.02")
    bound("peak RSS", median(mine, "rss"), 96 * MIB, f"{median(mine, 'rss') / MIB:.1f} of 96 MiB")
    bound("state.db, -wal, -shm at their largest", max(r.peak_watched for r in mine), 16 * MIB,
          f"{max(r.peak_watched for r in mine) / MIB:.2f} of 16 MiB, some 11 of them reserved")
    read = last.io.get("rchar", 0)
    bound("read: source once, copy once", read, total + last.size + 16 * MIB,
          f"rchar {read / MIB:.0f} MiB; source {total / MIB:.0f} "
          f"+ object {last.size / MIB:.0f} MiB")
    shutil.rmtree(unit)
    shutil.rmtree(last.place)


def one_file(work, name, size, write):
    unit = os.path.join(work, name)
    os.makedirs(unit)
    path = os.path.join(unit, name)
    with open(path, "wb") as f:
        write(f)
        f.truncate(size)
    os.utime(path, (time.time() - 60, time.time() - 60))
    return unit


def part_sparse(work, options):
    def write(f):
        pool = iter(make_dump.state_pieces(100 * MIB, "sparse", 1, big=True))
        data = b"".join(bytes(p) for p in pool)
        for i in range(100):
            f.seek(i * 320 * MIB)
            f.write(data[i * MIB:(i + 1) * MIB])
    unit = one_file(work, "sparse", 32 * GIB, write)
    run = ours(work, unit, "sparse")
    print("\n32 GiB sparse file with 100 MiB of data\n\n| bound | value | |\n|---|---|---|")
    bound("sparse: CPU", run.cpu, 1.0, f"{run.cpu:.2f} of 1 s (wall {run.wall:.2f} s)")
    bound("sparse: peak RSS", run.rss, 96 * MIB, f"{run.rss / MIB:.1f} of 96 MiB")
    shutil.rmtree(run.place)


def part_zeros(work, options):
    def write(f):
        zeros = bytes(4 * MIB)
        for _ in range(1024):
            f.write(zeros)
    unit = one_file(work, "zeros", 4 * GIB, write)
    warm(unit)
    run = ours(work, unit, "zeros")
    print("\n4 GiB of zeros that are no hole\n\n| bound | value | |\n|---|---|---|")
    bound("zeros: CPU", run.cpu, 2.0, f"{run.cpu:.2f} of 2 s (wall {run.wall:.2f} s)")
    bound("zeros: peak RSS", run.rss, 96 * MIB, f"{run.rss / MIB:.1f} of 96 MiB")
    shutil.rmtree(run.place)
    shutil.rmtree(unit)


def part_files(work, options):
    unit = make_dump.make_tree(os.path.join(work, "files"), files=100_000)
    time.sleep(10)  # `settle` counts from the newest mtime; it is not part of what is measured
    mine, _ = compare(work, unit, "100,000 small files", min(options.runs, 1))
    print("\n| bound | value | |\n|---|---|---|")
    bound("100,000 files: peak RSS", median(mine, "rss"), 96 * MIB,
          f"{median(mine, 'rss') / MIB:.1f} of 96 MiB")
    assert len(mine[-1].manifest["members"]) == 100_000
    shutil.rmtree(unit)


def part_directories(work, options):
    place = os.path.join(work, "directories")
    os.makedirs(place)
    a = agent.Agent(directory=place)
    a.config["sources"] = [a.source("bench", "directory", "tree/job-%p", settle="10m")]
    make_dump.make_tree(a.path("tree", "job-1"), directories=100_000)
    # warm, as the bound says
    subprocess.run(["find", a.path("tree"), "-name", "nothing"], check=True)
    begun = time.monotonic()
    a.start()
    up = time.monotonic() - begun
    agent.wait_for("all directories are watched",
                   lambda: a.status()["sources"][0]["watches"] >= 100_000, 60)
    watched = time.monotonic() - begun
    with open(a.path("tree", "job-1", "d-0099", "e-099999", "state"), "wb") as f:
        f.write(b"x")
    closed = time.monotonic()
    a.wait_known(1, 60)
    seen = time.monotonic() - closed
    memory = agent.process_memory(a.pid)
    print("\n100,000 directories below a source\n\n| bound | value | |\n|---|---|---|")
    bound("directories: start-up", watched, 5, f"API answers after {up:.2f} s, all are watched "
          f"after {watched:.2f} of 5 s; then a new file is known after {seen * 1000:.0f} ms")
    bound("directories: RSS", memory["VmHWM"], 96 * MIB, f"{memory['VmHWM'] / MIB:.1f} of 96 MiB")
    a.process.send_signal(signal.SIGTERM)
    a.process.wait()
    a.process = None
    agent.cleanup()


PARTS = {"large": part_large, "sparse": part_sparse, "zeros": part_zeros, "files": part_files,
         "directories": part_directories}


def main():
    p = arguments(__doc__, PARTS)
    p.add_argument("--size", type=make_dump.parse_size, default=4 * GIB)
    p.add_argument("--runs", type=int, default=3)
    options = parsed(p, PARTS)

    def measure(work):
        print(f"{os.cpu_count()} CPUs, kernel {os.uname().release}, "
              f"{agent.run('zstd', '--version').stdout.strip()}")
        for name in options.parts or PARTS:
            PARTS[name](work, options)

    return measured(options, measure)


if __name__ == "__main__":
    sys.exit(main())
