"""What the daemon stands on and the campaign takes away: a volume with faults, a disk whose power
fails."""
import os
import signal
import subprocess

from agent import SOURCE_DIR, need, run, wait_for
from tap import Skip


def can_serve_faults():
    if os.geteuid() != 0 or not os.path.exists("/dev/fuse"):
        raise Skip("needs root and /dev/fuse")
    need("fusermount3", "pkg-config", "gcc")
    if run("pkg-config", "fuse3").returncode:
        raise Skip("libfuse3-dev is not installed")


def can_cut_power():
    if os.geteuid() != 0 or not os.path.exists("/dev/loop-control"):
        raise Skip("needs root and loop devices")
    need("xfs_io", "mkfs.ext4")


class FaultVolume:
    """The file system of tests/harness/faultfs.c on `place`, over `place`.real."""

    def __init__(self, agent, place):
        self.place = place
        for directory in (place, place + ".real"):
            os.makedirs(directory)
        flags = run("pkg-config", "--cflags", "--libs", "fuse3").stdout.split()
        binary = agent.path("faultfs")
        result = run("gcc", "-std=gnu11", "-D_GNU_SOURCE", "-O1", "-o", binary,
                     os.path.join(SOURCE_DIR, "tests", "harness", "faultfs.c"), *flags, "-lpthread")
        assert result.returncode == 0, result.stderr
        self.server = subprocess.Popen(
            [binary, "-f", "-o", f"allow_other,modules=subdir,subdir={place}.real", place],
            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        wait_for("the file system is mounted", lambda: os.path.ismount(place))

    def fault(self, rule):
        with open(os.path.join(self.place, ".faultfs"), "w", encoding="ascii") as f:
            f.write(rule + "\n")

    def hang(self):
        self.server.send_signal(signal.SIGSTOP)

    def go_on(self):
        self.server.send_signal(signal.SIGCONT)

    def close(self):
        self.go_on()
        run("fusermount3", "-u", "-z", self.place)
        try:
            self.server.wait(5)
        except subprocess.TimeoutExpired:
            self.server.kill()
            self.server.wait()


class Disk:
    """An ext4 file system in a file, which can lose what was not synced."""

    def __init__(self, image, place, mib):
        self.image, self.place = image, place
        self.is_mounted = False
        os.mkdir(place)
        with open(image, "wb") as f:
            f.truncate(mib << 20)
        self._do("mkfs.ext4", "-q", "-E", "lazy_itable_init=1,lazy_journal_init=1,nodiscard", image)
        self._mount()

    @staticmethod
    def _do(*command):
        result = run(*command)
        if result.returncode != 0:
            raise AssertionError(f"{' '.join(command)}: {result.stderr}")

    def _mount(self):
        result = run("mount", "-o", "loop,nodiscard", self.image, self.place)
        if result.returncode != 0:
            raise Skip(f"no loop device can be mounted here: {result.stderr.strip()}")
        self.is_mounted = True

    def _unmount(self):
        wait_for("nobody holds the disk", lambda: run("umount", self.place).returncode == 0, 20,
                 every=0.05)
        # A mount namespace that was made meanwhile, of a container in another test, has a copy of
        # the mount: the file system lives as long.
        wait_for("no other mount namespace holds it",
                 lambda: not run("losetup", "-j", self.image).stdout.strip(), 60, every=0.05)
        self.is_mounted = False

    def cut(self):
        """From now on every call is an I/O error, and what was not synced is gone."""
        self._do("xfs_io", "-x", "-c", "shutdown", self.place)

    def mount_again(self):
        self._unmount()
        self._mount()

    def close(self):
        if self.is_mounted:
            self._unmount()
