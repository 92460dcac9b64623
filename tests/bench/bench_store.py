#!/usr/bin/env python3
"""How long a start takes with many delivered bundles in the state: from exec to READY=1 and to the
API's first answer.

    builddir=build srcdir=. tests/bench/bench_store.py [--rows 100000] [--sources 1] [--runs 5]
    [--directory DIR] [--assert]

The database is made by the real daemon and filled with rows by SQLite in Python: a delivery and
fifty prints a bundle. "killed" is after kill -9; "cold" drops the page cache before the start (root
only). Medians; with --assert the exit is 1 when READY takes 1 s or more.
"""
import argparse
import os
import random
import shutil
import signal
import sqlite3
import statistics
import struct
import sys
import tempfile
import time

sys.dont_write_bytecode = True
sys.path.insert(0, os.path.join(os.path.dirname(os.path.realpath(__file__)), "..", "harness"))
# pylint: disable=wrong-import-position
import agent
from agent import Agent, NotifySocket

PRINTS = 50


def make_agent(directory, n_sources):
    a = Agent(directory=directory)
    a.config["sources"] = [a.source(f"s{i}", "neuron-core-dump", f"dumps-{i}/dt-%d-cid-%c")
                           for i in range(n_sources)]
    a.config["log"]["level"] = "info"
    a.notify = "to be set"
    a.bell = NotifySocket(a.dir)
    a.bell.socket.settimeout(10)
    a.notify = a.bell.path
    return a


def fill(a, n, n_sources):
    """Rows as a year of failures leaves them."""
    rng = random.Random(1)
    db = sqlite3.connect(a.path("state", "state.db"))
    db.execute("PRAGMA synchronous=OFF")
    columns = [c[1] for c in db.execute("PRAGMA table_info(bundles)")]
    with db:
        for i in range(n):
            source = i % n_sources
            cluster = f"{rng.getrandbits(64):016x}"
            path = a.path(f"dumps-{source}", f"dt-20260527-052135-cid-{cluster}")
            usec = 1779859295_000000 + i
            row = dict.fromkeys(columns, 0) | {
                "row": i + 1, "id": f"neuron-core-dump-20260527T052135-{rng.getrandbits(48):012x}",
                "source": f"s{source}",
                "kind": "neuron-core-dump", "path": path.encode(), "state": "delivered",
                "reason": None, "complete": 1,
                "incomplete": None, "date_time": "20260527-052135", "cluster_id": cluster,
                "supplement_of": "", "uid": 1000,
                "unit_dev": 2049, "unit_ino": rng.getrandbits(40), "n_files": PRINTS,
                "bytes": 1 << 28, "oldest_mtime_usec": usec,
                "digest": rng.getrandbits(62), "first_seen_usec": usec, "changed_usec": usec}
            db.execute(f"INSERT INTO bundles VALUES ({','.join('?' * len(columns))})",
                       [row[c] for c in columns])
            db.execute("INSERT INTO deliveries VALUES (?, 0, 'archive', 'delivered', 'readback', "
                       "?, ?, 0, NULL, 0, ?)",
                       (i + 1, f"{a.out}/20260527-052135-{cluster}/"
                        f"{agent.INSTANCE}/{row['id']}.tar.zst".encode(), 1 << 27, usec))
            db.execute("INSERT INTO prints VALUES (?, ?)", (
                i + 1, struct.pack(f"<{PRINTS}Q", *(rng.getrandbits(64) for _ in range(PRINTS)))))
    db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    db.close()


def wait_ready(a, begun):
    """@return seconds to READY=1 and to the first answer of the API"""
    heard = ""
    while "READY=1" not in heard:
        heard = a.bell.socket.recv(65536).decode()
    ready = time.monotonic() - begun
    while a.curl("/healthz").returncode != 0:
        pass
    return ready, time.monotonic() - begun


def drain_bell(a):
    a.bell.socket.settimeout(0)
    try:
        while True:
            a.bell.socket.recv(65536)
    except OSError:
        a.bell.socket.settimeout(10)


def start(a, way):
    drain_bell(a)
    if way == "cold":
        os.sync()
        with open("/proc/sys/vm/drop_caches", "w", encoding="ascii") as f:
            f.write("3")
    begun = time.monotonic()
    a.start(wait=False)
    return wait_ready(a, begun)


def measure(a, way, runs):
    """@return medians of the seconds to READY=1 and to the API's answer"""
    found = []
    for _ in range(runs):
        found.append(start(a, way))
        if way == "killed":
            a.kill()
        else:
            a.stop()
    return [statistics.median(x) for x in zip(*found)]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--rows", type=int, default=100_000)
    parser.add_argument("--sources", type=int, default=1)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--directory")
    parser.add_argument("--assert", action="store_true", dest="judge")
    options = parser.parse_args()
    directory = tempfile.mkdtemp(prefix="neuron-bench.", dir=options.directory)
    slow = 0
    try:
        a = make_agent(directory, options.sources)
        a.start()
        a.stop()
        fill(a, options.rows, options.sources)
        print(f"{options.rows} rows of {options.sources} sources, "
              f"{os.path.getsize(a.path('state', 'state.db')) / 1e6:.0f} MB")
        print(f"{'start':8} {'READY=1':>9} {'API':>9}")
        for way in ("warm", "killed", "cold"):
            if way == "cold" and os.geteuid() != 0:
                print("cold     needs root")
                continue
            ready, api = measure(a, way, options.runs)
            print(f"{way:8} {ready:8.3f}s {api:8.3f}s")
            slow = max(slow, ready)
    finally:
        for one in agent._live:  # pylint: disable=protected-access
            if one.process and one.process.poll() is None:
                os.kill(one.pid, signal.SIGKILL)
                one.process.wait()
        shutil.rmtree(directory)
    if options.judge and slow >= 1:
        print(f"READY took {slow:.2f} s, which must be below 1 s")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
