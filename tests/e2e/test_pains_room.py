#!/usr/bin/env python3
"""What users of comparable tools suffer from, on the node: disks that are full, memory that is
short, events that are lost. docs/TESTING.md has the list. A test's docstring names its pain. They
need root."""
import os
import signal
import subprocess
import sys
import threading

sys.dont_write_bytecode = True  # the source tree may be read-only, and is packed as it is
sys.path.insert(0, os.path.join(os.path.dirname(os.path.realpath(__file__)), "..", "harness"))
# pylint: disable=wrong-import-position
import agent
import inotify_queue
import radosgw
from agent import (Agent, assert_same_tree, check_bundle, extract, is_instrumented, need,
                   need_root, object_of, process_memory, run, tree, wait_for)
from s3tools import judge, new_bucket
from tap import Skip, figures, main, plain_test, test
from tcp_proxy import through

MIB = 1 << 20
BUSY = {"compression_threads": 1}  # `auto` would make room for whatever else this machine does
_undo = []


def cleanup(failed=False):
    """The daemons go first, or their open files keep mounts and groups busy."""
    directories = list(agent._directories)  # pylint: disable=protected-access
    agent._directories.clear()              # pylint: disable=protected-access
    try:
        agent.cleanup(failed)
    finally:
        for undo in reversed(_undo):
            undo()
        _undo.clear()
        for directory in directories:
            subprocess.run(["rm", "-rf", "--", directory], check=False)


def server():
    return radosgw.shared()


def noise(path, size):
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, "wb") as f:
        for at in range(0, size, MIB):
            f.write(os.urandom(min(MIB, size - at)))
        f.flush()
        os.fsync(f.fileno())


def forget_pages(unit):
    """Takes a source out of the page cache: who reads it next pays for the pages."""
    for base, _, names in os.walk(unit):
        for name in names:
            fd = os.open(os.path.join(base, name), os.O_RDONLY)
            os.fsync(fd)
            os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
            os.close(fd)


class Sampled:
    """with Sampled(look) as s: … → s.first, s.highest: what look() gave before and at most while it
    went on."""

    def __init__(self, look):
        self.look = look
        self.first = self.highest = look()
        self.n = 0
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def _run(self):
        while not self._end.wait(0.005):
            try:
                self.highest = max(self.highest, self.look())
                self.n += 1
            except OSError:
                pass

    def __enter__(self):
        self._thread.start()
        return self

    def __exit__(self, *_):
        self._end.set()
        self._thread.join()


class Stuttering:
    """A proxy that stands still half of the time."""

    def __init__(self, proxy, seconds=0.4):
        self.proxy, self.seconds, self.n_stops = proxy, seconds, 0
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def _run(self):
        while not self._end.wait(self.seconds):
            self.proxy.hold()
            self.n_stops += 1
            self._end.wait(self.seconds)
            self.proxy.release()

    def __enter__(self):
        self._thread.start()
        return self

    def __exit__(self, *_):
        self._end.set()
        self._thread.join()
        self.proxy.release()


# --- a small disk ---

def small_disk(a, size):
    """An ext4 of its own. @return where it is mounted"""
    need_root()
    need("mkfs.ext4")
    place, image = a.path("disk"), a.path("disk.img")
    os.mkdir(place)
    with open(image, "wb") as f:
        f.truncate(size)
    # No reserve for root and no lazy initialisation: what grows is what the daemon writes.
    result = run("mkfs.ext4", "-q", "-m", "0", "-E", "lazy_itable_init=0,lazy_journal_init=0",
                 image)
    assert result.returncode == 0, result.stderr
    result = run("mount", "-o", "loop", image, place)
    if result.returncode:
        raise Skip(f"cannot mount a loop device here: {result.stderr.strip()}")
    _undo.append(lambda: run("umount", "-l", place))
    return place


def used_bytes(place):
    v = os.statvfs(place)
    return (v.f_blocks - v.f_bfree) * v.f_frsize


def hidden_bytes(pid):
    """Of files that are open and have no name."""
    total = 0
    for fd in os.listdir(f"/proc/{pid}/fd"):
        try:
            path = os.readlink(f"/proc/{pid}/fd/{fd}")
            if path.endswith(" (deleted)") or path.startswith("/memfd:"):
                total += os.stat(f"/proc/{pid}/fd/{fd}").st_blocks * 512
        except OSError:
            pass
    return total


@test
def a_bundle_larger_than_the_free_disk_is_shipped_without_a_copy():
    """6: twice the disk is needed just to compress and ship."""
    free = 5 * MIB
    size = 200 * MIB
    a = Agent()
    disk = small_disk(a, size + 60 * MIB)
    unit = os.path.join(disk, "jobs", "job-1")
    a.config["state_directory"] = os.path.join(disk, "state")
    a.config["hook"]["mailbox"] = os.path.join(disk, "state", "mailbox")
    os.mkdir(os.path.join(disk, "state"))
    os.mkdir(os.path.join(disk, "tmp"))
    a.environment |= {"TMPDIR": os.path.join(disk, "tmp")}
    bucket = new_bucket(server())
    a.config["sources"] = [a.source("jobs", "directory", os.path.join(disk, "jobs", "job-%p"))]
    a.config["destinations"] = [a.s3("s3", server(), bucket)]
    a.config["limits"] = BUSY
    a.start()  # the database takes what it reserves
    a.stop()
    noise(os.path.join(unit, "noise"), size)
    left = os.statvfs(disk)
    with open(os.path.join(disk, "filler"), "wb") as f:
        os.posix_fallocate(f.fileno(), 0, left.f_bavail * left.f_frsize - free)
    os.sync()
    assert os.statvfs(disk).f_bavail * left.f_frsize <= free + MIB
    with Sampled(lambda: used_bytes(disk)) as used:
        a.start()
        with Sampled(lambda pid=a.pid: hidden_bytes(pid)) as hidden:
            a.wait_known(1)
            a.wait_delivered(1, 300)
    grown = used.highest - used.first
    figures.append(f"{size / MIB:.0f} MiB shipped with {free / MIB:.0f} MiB free: "
                   f"{grown / MIB:.2f} MiB more in use at most ({used.n} looks)")
    assert grown <= 2 * MIB, f"{grown / MIB:.1f} MiB"  # the database and its log
    assert hidden.highest <= MIB, hidden.highest
    assert not os.listdir(os.path.join(disk, "tmp"))
    judge(a, bucket, [unit])
    a.stop()


# --- lost events ---

@test
def a_queue_of_16_events_loses_no_dump():
    """13: inotify misses events."""
    need_root()
    a = Agent()
    a.config["sources"] = [a.source("jobs", "directory", "jobs/job-%p", scan_interval="1h"),
                           a.source("cores", "process-core", "cores", scan_interval="1h",
                                    crash_reports=False)]
    os.makedirs(a.path("jobs"))
    os.makedirs(a.path("cores"))
    inotify_queue.start(a, 16)
    for i in range(60):
        unit = a.path("jobs", f"job-{i}", "a", "b")
        if i == 30:
            # whatever the scheduler does, from here on the queue runs over
            os.kill(a.pid, signal.SIGSTOP)
        os.makedirs(unit)
        for name in ("x", "y", "z"):
            with open(os.path.join(unit, name), "w", encoding="ascii") as f:
                f.write(f"{name} of {i}")
        a.core(f"core.{i}", size=65536)
    os.kill(a.pid, signal.SIGCONT)
    a.wait_delivered(120)
    a.wait_all()
    overflows = sum(s["overflows"] for s in a.status()["sources"])
    assert overflows >= 1, "no event was lost: this test has tested nothing"
    by_path = {}
    for path, m in a.manifests():
        by_path.setdefault(m["source"]["path"], []).append((path, m))
    for i in range(60):
        (path, m), = by_path[a.path("jobs", f"job-{i}")]
        assert sorted(e["path"] for e in m["members"]) == ["a/b/x", "a/b/y", "a/b/z"]
        check_bundle(path, a.path("jobs", f"job-{i}"), tools=("tar",))
        assert len(by_path[a.path("cores", f"core.{i}")]) == 1
    figures.append(f"a queue of 16: {overflows} overflows, 120 bundles")
    # And what comes then is seen by events again: the next scan is an hour away.
    a.core("core.afterwards", size=65536)
    a.wait_delivered(121)
    a.stop()


# --- memory ---

class MemoryGroup:
    """A cgroup for the daemon alone. @param limit  bytes; None = it is only counted"""

    def __init__(self, limit=None):
        need_root()
        self.path, self.v1 = self._make()
        _undo.append(self._remove)
        if limit is not None:
            try:
                self._write("memory.limit_in_bytes" if self.v1 else "memory.max", limit)
                if not self.v1:
                    self._write("memory.swap.max", 0)
            except OSError as e:
                raise Skip(f"no limit can be set on memory: {e.strerror}") from e
            if self.v1:
                try:
                    self._write("memory.memsw.limit_in_bytes", limit)
                except OSError:
                    pass  # a kernel that does not count swap

    @staticmethod
    def _make():
        with open("/proc/self/cgroup", encoding="ascii") as f:
            own = {c: path.strip() for _, controllers, path in (line.split(":", 2) for line in f)
                   for c in (controllers.split(",") or [""])}
        name = f"neuron-e2e.{os.getpid()}.{len(_undo)}"
        tried = []
        for mount, v1, base in (("/sys/fs/cgroup/memory", True, own.get("memory", "/")),
                                ("/sys/fs/cgroup/memory", True, "/"),
                                ("/sys/fs/cgroup", False, "/")):
            path = os.path.join(mount, base.lstrip("/"), name)
            try:
                os.mkdir(path)
            except OSError as e:
                tried.append(f"{path}: {e.strerror}")
                continue
            if os.path.exists(os.path.join(path, "memory.stat")):
                return path, v1
            os.rmdir(path)
        raise Skip(f"no memory cgroup can be made: {'; '.join(tried) or 'no controller'}")

    def _write(self, name, value):
        with open(os.path.join(self.path, name), "w", encoding="ascii") as f:
            f.write(str(value))

    def _read(self, name):
        with open(os.path.join(self.path, name), encoding="ascii") as f:
            return f.read()

    def _remove(self):
        wait_for(f"{self.path} is empty", lambda: not self._read("cgroup.procs").strip())
        os.rmdir(self.path)

    @property
    def prefix(self):
        return ["sh", "-c", f'echo $$ >{self.path}/cgroup.procs && exec "$@"', "sh"]

    def stat(self):
        return {k: int(v) for k, v in (line.split()
                                       for line in self._read("memory.stat").splitlines())}

    def page_cache(self):
        """Of files, without shared memory."""
        stat = self.stat()
        return stat["cache" if self.v1 else "file"] - stat["shmem"]

    def peak(self):
        return int(self._read("memory.max_usage_in_bytes" if self.v1 else "memory.peak"))

    def oom_kills(self):
        text = self._read("memory.oom_control" if self.v1 else "memory.events")
        return int({k: v for k, v in (line.split() for line in text.splitlines())}["oom_kill"])


@plain_test
def in_64_mib_of_memory_it_ships_gigabytes_to_a_store_that_stalls_half_of_the_time():
    """15: memory grows with the size of files and parts until the agent is killed."""
    if is_instrumented():
        raise Skip("instrumented: memory means nothing")
    group = MemoryGroup(64 * MIB)
    proxy, way = through(server())
    bucket = new_bucket(server())
    a = Agent()
    a.prefix = group.prefix
    a.use_directories()
    a.config["limits"] = {"memory": "32MiB", "memory_max": "32MiB"} | BUSY
    a.config["destinations"] = [a.s3("s3", way, bucket)]
    a.config["log"]["level"] = "info"
    unit = a.path("jobs", "job-1")
    os.makedirs(unit)
    with open(os.path.join(unit, "sparse"), "wb") as f:
        for i in range(120):
            f.seek(i * 30 * MIB)
            f.write(os.urandom(MIB))
        f.truncate(4 << 30)
    noise(os.path.join(unit, "noise"), 80 * MIB)
    forget_pages(unit)
    with Stuttering(proxy) as stutter:
        a.start()
        a.wait_known(1)
        a.wait_delivered(1, 300)
    memory = process_memory(a.pid)
    figures.append(f"4 GiB sparse with 200 MiB of data, cgroup of 64 MiB, {stutter.n_stops} "
                   f"stalls: peak of the group {group.peak() / MIB:.1f} MiB, "
                   f"of RSS {memory['VmHWM'] / MIB:.1f} MiB")
    assert stutter.n_stops >= 3, stutter.n_stops
    assert group.oom_kills() == 0
    assert memory["VmHWM"] <= 64 * MIB, memory
    assert not bucket.uploads()
    path, _ = a.only_manifest(bucket.fetch())
    assert_same_tree(tree(extract(object_of(path), "tar")), tree(unit), "tar")
    a.stop()


def ships_without_the_page_cache(prepare, expected_peak):
    """@param prepare  function(a): sets the destination"""
    size = 300 * MIB
    control = MemoryGroup()
    a = Agent()
    a.use_directories()
    a.config["limits"] = BUSY
    a.config["log"]["level"] = "info"
    prepare(a)
    unit = a.path("jobs", "job-1")
    noise(os.path.join(unit, "noise"), size)
    forget_pages(unit)
    run(*control.prefix, "cat", os.path.join(unit, "noise"), text=False)
    counted = control.page_cache()
    assert (counted >= size
            // 2), f"reading {size} bytes charged only {counted}: this would measure nothing"
    forget_pages(unit)
    assert (control.page_cache() <= size
            // 10), "the pages are still there: whoever reads them would pay nothing"
    group = MemoryGroup()
    a.prefix = group.prefix
    a.start(wait=False)
    with Sampled(group.page_cache) as cache:
        wait_for("the daemon answers", a.is_healthy)
        a.wait_known(1)
        a.wait_delivered(1, 300)
    figures.append(f"{size / MIB:.0f} MiB shipped: page cache of its cgroup at most "
                   f"{cache.highest / MIB:.1f} MiB ({cache.n} looks); "
                   f"of `cat` {counted / MIB:.0f} MiB")
    assert cache.n >= 50, cache.n
    assert cache.highest < expected_peak, f"{cache.highest / MIB:.1f} MiB"
    return a, unit


@plain_test
def shipping_to_a_store_leaves_the_page_cache_alone():
    """16: the agent's page cache is charged to the pod, or evicts the workload's."""
    if is_instrumented():
        raise Skip("instrumented: memory means nothing")
    bucket = new_bucket(server())

    def prepare(a):
        a.config["destinations"] = [a.s3("s3", server(), bucket)]
    a, unit = ships_without_the_page_cache(prepare, 32 * MIB)
    judge(a, bucket, [unit], tools=())
    a.stop()


@plain_test
def shipping_to_a_volume_leaves_the_page_cache_alone():
    """16, for what is written and read back."""
    if is_instrumented():
        raise Skip("instrumented: memory means nothing")
    a, unit = ships_without_the_page_cache(lambda a: None, 32 * MIB)
    check_bundle(a.only_manifest()[0], unit, tools=())
    a.stop()


if __name__ == "__main__":
    sys.exit(main(cleanup))
