"""The devices of neuron_devices.c, the collectors as tests/collectors/run_collector runs them, and
what came of it."""
import json
import os
import re
import shutil
import subprocess
import tempfile
import time

from agent import BUILD_DIR, SOURCE_DIR, need, wait_for
from tap import Skip, notes

_place = []
_servers = []


def place():
    """A directory of this test's own."""
    if not _place:
        _place.append(tempfile.mkdtemp(prefix="nc-neuron-"))
    return _place[0]


def cleanup(failed=False):  # pylint: disable=unused-argument
    while _servers:
        _servers.pop().stop()
    while _place:
        shutil.rmtree(_place.pop(), ignore_errors=True)


def run_collector():
    """Runs one collector. A check program: `make` alone does not build it."""
    program = os.path.join(BUILD_DIR, "tests", "collectors", "run_collector")
    if not os.path.exists(program):
        raise Skip("tests/collectors/run_collector is not built")
    return program


def build():
    need("fusermount3", "pkg-config", "gcc")
    if not os.path.exists("/dev/fuse"):
        raise Skip("no /dev/fuse")
    flags = subprocess.run(["pkg-config", "--cflags", "--libs", "fuse3"], capture_output=True,
                           text=True, check=False)
    if flags.returncode:
        raise Skip("libfuse3-dev is not installed")
    binary = os.path.join(place(), "neuron_devices")
    source = os.path.join(SOURCE_DIR, "tests", "harness", "neuron_devices.c")
    result = subprocess.run(["gcc", "-std=gnu11", "-D_GNU_SOURCE", "-O1", "-o", binary, source,
                             *flags.stdout.split()], capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    return binary


class Devices:
    """neuron0 … below `directory`."""

    def __init__(self, count=16, architecture=3, driver="2.30.2"):
        if os.geteuid() != 0:
            raise Skip("needs root: the emulator writes into the memory of whoever asks it")
        self.directory = os.path.join(place(), "dev")
        self.log_path = os.path.join(place(), "devices.log")
        binary = build()
        os.makedirs(self.directory)
        self.server = subprocess.Popen(
            [binary, "-f", "-o", "allow_other", self.directory], stdin=subprocess.DEVNULL,
            env={**os.environ, "NEURON_DEVICES": str(count),
                 "NEURON_ARCHITECTURE": str(architecture), "NEURON_DRIVER": driver,
                 "NEURON_LOG": self.log_path})
        _servers.append(self)
        wait_for("the devices are mounted", lambda: os.path.ismount(self.directory))

    def control(self, line):
        with open(os.path.join(self.directory, ".control"), "w", encoding="ascii") as f:
            f.write(line)

    def log(self, pattern=""):
        with open(self.log_path, encoding="ascii") as f:
            return [line.rstrip("\n") for line in f if re.search(pattern, line)]

    def commands(self, device=""):
        return {m.group(1) for line in self.log("^ioctl")
                for m in [re.match(rf"ioctl neuron{device or '[0-9]+'} (0x[0-9a-f]+) ", line)] if m}

    def assert_unharmed(self):
        """Nothing was done to them that would have hurt a real one."""
        bad = self.log("^FORBIDDEN")
        assert not bad, bad[:5]
        for line in self.log("^open"):
            flags = int(re.search(r"flags=(\S+)", line).group(1), 16)
            assert flags & os.O_ACCMODE in (os.O_RDONLY, os.O_WRONLY), line

    def stop(self):
        try:
            if self.server.poll() is None:
                self.control("release")
        except OSError:
            pass
        self.server.terminate()
        try:
            self.server.wait(5)
        except subprocess.TimeoutExpired:
            self.server.kill()
            self.server.wait(5)
        subprocess.run(["fusermount3", "-q", "-u", "-z", self.directory], check=False,
                       stderr=subprocess.DEVNULL)


class Result:
    def __init__(self, name, arguments, timeout):
        program = run_collector()
        begun = time.monotonic()
        done = subprocess.run([program, name, *arguments], capture_output=True, timeout=timeout,
                              check=False)
        self.seconds = time.monotonic() - begun
        notes.append(done.stdout[-2000:].decode(errors="replace"))
        notes.append(done.stderr.decode(errors="replace"))
        self.text = done.stdout.decode()      # the records are UTF-8, whatever was read
        self.records = [json.loads(line) for line in done.stdout.splitlines()]
        last = done.stderr.decode().strip().splitlines()[-1]
        self.figures = {k: int(v) for k, v in re.findall(r"(\w+)=(-?\d+)", last)}
        assert self.figures["result"] == 0, last

    def ends(self):
        """The records that close a device, by its name."""
        return {r["device"]: r for r in self.records if "device" in r and "state" in r}

    def values(self):
        """Of neuron_sysfs: (device, path) to value."""
        found = {}
        for r in self.records:
            if "directory" in r:
                for name, value in r["values"].items():
                    key = (r["device"], os.path.join(r["directory"], name))
                    assert key not in found, f"twice: {key}"
                    found[key] = value
        return found

    def answers(self, device, query):
        return [r for r in self.records if r.get("device") == device and r.get("query") == query]


def collect(name, *arguments, timeout=60):
    return Result(name, arguments, timeout)
