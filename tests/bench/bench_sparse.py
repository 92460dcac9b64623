#!/usr/bin/env python3
"""A sparse dump far larger than memory and disk, to a store that stands still half of the time: the
daemon's memory, and what it leaves on disk.

    builddir=build srcdir=. tests/bench/bench_sparse.py [--scale 1.0] [--directory DIR] [--assert]

At scale 1: 100 GiB with 10 GiB of data that zstd -3 makes 1 of 2.4, defaults but for one
compression thread, a radosgw in memory on loopback, and a wire between them that holds everything
for a second and lets it pass for a second. State directory and TMPDIR are a tmpfs of their own, so
what is in use there is the daemon's. Needs root, twice the data below --directory (the bundle is
extracted and compared) and half of it as memory for the server. With --assert the exit is 1 when a
bound of the project is broken.
"""
import os
import shutil
import subprocess
import sys
import threading
import time

sys.dont_write_bytecode = True
sys.path.insert(0, os.path.join(os.path.dirname(os.path.realpath(__file__)), "..", "harness"))
sys.path.insert(0, os.path.dirname(os.path.realpath(__file__)))
# pylint: disable=wrong-import-position
import agent
import s3tools
from bench_s3 import mixed_pool
from bench_volume import arguments, bound, measured
from make_dump import GIB, MIB
from radosgw import Radosgw
from tap import Skip
from tcp_proxy import through

STALL_SECONDS = 1.0
PIECE = 16 * MIB


def make_sparse(path, size, data):
    """Runs of 16 MiB of data, evenly spread."""
    pool = mixed_pool()
    n = max(data // PIECE, 1)
    with open(path, "wb") as f:
        for i in range(n):
            f.seek(size // n * i // 4096 * 4096)
            at = i % (len(pool) // PIECE) * PIECE
            f.write(pool[at:at + PIECE])
        f.truncate(size)


def data_runs(fd, size):
    """(offset, bytes) of what a sparse file holds."""
    at = 0
    while at < size:
        try:
            at = os.lseek(fd, at, os.SEEK_DATA)
        except OSError:
            return
        end = os.lseek(fd, at, os.SEEK_HOLE)
        yield at, end - at
        at = end


def same_content(one, other):
    """Of two sparse files, without reading what is a hole in both."""
    size = os.path.getsize(one)
    if os.path.getsize(other) != size:
        return False
    with open(one, "rb", buffering=0) as a, open(other, "rb", buffering=0) as b:
        for runs_of in (a, b):
            for at, n in data_runs(runs_of.fileno(), size):
                for piece in range(at, at + n, MIB):
                    want = min(MIB, at + n - piece)
                    if os.pread(a.fileno(), want, piece) != os.pread(b.fileno(), want, piece):
                        return False
    return True


def hidden_bytes(pid):
    """Of files that are open and have no name."""
    total = 0
    for fd in os.listdir(f"/proc/{pid}/fd"):
        path = os.readlink(f"/proc/{pid}/fd/{fd}")
        if path.endswith(" (deleted)") or path.startswith("/memfd:"):
            total += os.stat(f"/proc/{pid}/fd/{fd}").st_blocks * 512
    return total


class Watch(threading.Thread):
    """The highest that was seen of what the daemon uses, until end()."""

    def __init__(self, pid, place):
        super().__init__()
        self.pid, self.place = pid, place
        self.used = self.hidden = self.rss = 0
        self._end = threading.Event()
        self.start()

    def run(self):
        while not self._end.wait(0.02):
            v = os.statvfs(self.place)
            self.used = max(self.used, (v.f_blocks - v.f_bfree) * v.f_frsize)
            try:
                self.hidden = max(self.hidden, hidden_bytes(self.pid))
                self.rss = agent.process_memory(self.pid)["VmHWM"]
            except OSError:
                pass  # a descriptor that was closed between two looks

    def end(self):
        self._end.set()
        self.join()


class Stutter(threading.Thread):
    """Holds a proxy half of the time, until end()."""

    def __init__(self, proxy):
        super().__init__()
        self.proxy, self.n, self.held = proxy, 0, 0.0
        self._end = threading.Event()
        self.start()

    def run(self):
        while not self._end.wait(STALL_SECONDS):
            begun = time.monotonic()
            self.proxy.hold()
            self._end.wait(STALL_SECONDS)
            self.proxy.release()
            self.n += 1
            self.held += time.monotonic() - begun

    def end(self):
        self._end.set()
        self.join()


def tmpfs(place):
    os.makedirs(place)
    result = agent.run("mount", "-t", "tmpfs", "-o", "size=256m", "tmpfs", place)
    if result.returncode:
        raise Skip(f"cannot mount: {result.stderr.strip()}")


def ship(a, proxy, place):
    """@return (Watch, Stutter, wall seconds, /proc/PID/io)"""
    a.start()
    watch, stutter, begun = Watch(a.pid, place), Stutter(proxy), time.monotonic()
    try:
        a.wait_known(1)
        agent.wait_for("it is delivered", lambda: a.counts()["delivered"] == 1, 7200, every=0.5)
        wall = time.monotonic() - begun
        io = agent.process_io(a.pid)
    finally:
        stutter.end()
        watch.end()
    a.stop()
    return watch, stutter, wall, io


def measure(work, options):
    size, data = int(100 * GIB * options.scale), int(10 * GIB * options.scale)
    unit, own = os.path.join(work, "jobs", "job-1"), os.path.join(work, "own")
    os.makedirs(unit)
    make_sparse(os.path.join(unit, "sparse"), size, data)
    tmpfs(own)
    server = Radosgw(bytes_=max(data, GIB), fast=True)
    try:
        bucket = s3tools.new_bucket(server)
        proxy, way = through(server)
        a = agent.Agent(directory=work)
        a.use_directories()
        a.config["state_directory"] = os.path.join(own, "state")
        a.config["hook"]["mailbox"] = os.path.join(own, "state", "mailbox")
        a.config["log"] = {"format": "text", "level": "notice"}
        a.config["limits"] = {"compression_threads": 1}  # auto would back off from the server
        a.config["destinations"] = [a.s3("archive", way, bucket)]
        a.environment["TMPDIR"] = own
        watch, stutter, wall, io = ship(a, proxy, own)
        proxy.close()
        (key, stored), = [(k, n) for k, n in bucket.objects().items()
                          if not k.endswith(".manifest.json")]
        print(f"\n{size / GIB:.1f} GiB with {data / GIB:.2f} GiB of data: {wall:.0f} s, the wire "
              f"stood still in {stutter.held:.0f} s of them ({stutter.n} times); "
              f"object {stored / MIB:.0f} MiB; read {io['rchar'] / MIB:.0f} MiB\n\n| bound | value "
              "| |\n|---|---|---|")
        bound("peak RSS (VmHWM)", watch.rss, 96 * MIB, f"{watch.rss / MIB:.1f} of 96 MiB")
        bound("in use on the file system of state directory and TMPDIR", watch.used, 16 * MIB,
              f"{watch.used / MIB:.2f} of 16 MiB, all of it the database, some 11 reserved")
        bound("open files without a name", watch.hidden, MIB, f"{watch.hidden / MIB:.2f} of 1 MiB")
        bound("written to other disks", io["write_bytes"], MIB,
              f"{io['write_bytes'] / MIB:.2f} of 1 MiB, the log")
        bound("uploads left", len(bucket.uploads()), 0, str(len(bucket.uploads())))
        target = os.path.join(work, "check")
        os.makedirs(target)
        subprocess.run(f"rclone cat {bucket.remote(key)} | tar --zstd -x -C {target}", shell=True,
                       check=True, env=bucket.environment)
        same = same_content(os.path.join(unit, "sparse"), os.path.join(target, "sparse"))
        bound("bit for bit", 0 if same else 1, 0, "the same" if same else "DIFFERENT")
    finally:
        agent.cleanup(failed=sys.exc_info()[0] is not None)
        server.close()


def main():
    p = arguments(__doc__)
    p.add_argument("--scale", type=float, default=1.0, help="of all sizes (default %(default)s)")
    options = p.parse_args()
    if os.geteuid() != 0:
        print("cannot run here: needs root")
        return 77
    need = int(2 * 10 * GIB * options.scale) + GIB
    if shutil.disk_usage(options.directory).free < need:
        p.error(f"{options.directory} has less than {need / GIB:.0f} GiB free")

    def measure_and_unmount(work):
        try:
            measure(work, options)
        finally:
            agent.run("umount", "-l", os.path.join(work, "own"))

    return measured(options, measure_and_unmount)


if __name__ == "__main__":
    sys.exit(main())
