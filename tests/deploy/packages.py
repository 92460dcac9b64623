"""The packages that `make deb` has built, and boxes (tests/harness/box) in which they are installed."""
import glob
import os
import re
import subprocess
import tempfile

from tap import Skip, notes

SRCDIR = os.path.realpath(os.environ.get("srcdir", "."))
BOX = os.path.join(SRCDIR, "tests/harness/box")
CACHE = os.environ.get("NC_TEST_CACHE", "/var/tmp/neuron-collectd-tests")
VENDOR_HOOK = "/opt/aws/neuron/bin/neuron-dump"


def directory():
    place = os.environ.get("NC_DEB_DIR")
    if not place:
        raise Skip("NC_DEB_DIR is not set: make deb")
    return os.path.realpath(place)


def package(name):
    """@return path of the package's file"""
    found = glob.glob(os.path.join(directory(), f"{name}_*.deb"))
    assert len(found) == 1, found
    return found[0]


def run(*command, check=True, **more):
    """@return what it printed, also what went to stderr"""
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                          check=False, stdin=subprocess.DEVNULL, **more)
    notes.append(f"$ {' '.join(command)}\n{done.stdout[-4000:]}")
    if check:
        assert done.returncode == 0, (command, done.returncode)
    return done.stdout


def dependencies(path):
    """@return names of the packages that it depends on"""
    depends = run("dpkg-deb", "-f", path, "Depends").strip()
    return sorted({re.match(r"[a-z0-9.+-]+", d.strip()).group() for d in depends.split(",") if d.strip()})


def base():
    """A root with systemd and what the agent's package depends on. @return its path"""
    if os.geteuid() != 0:
        raise Skip("needs root")
    names = dependencies(package("neuron-collectd"))
    release = run("sed", "-n", "s/^VERSION_CODENAME=//p", "/etc/os-release").strip()
    path = os.path.join(CACHE, f"deploy-{release}")
    os.makedirs(CACHE, exist_ok=True)
    try:
        run("flock", os.path.join(CACHE, "lock"), BOX, "base", path, *names)
    except AssertionError as error:
        raise Skip("mmdebstrap could not make a root (no network?)") from error
    return path


class Box:
    """A booted throw-away host with real systemd."""
    _n = 0

    def __init__(self, root):
        Box._n += 1
        self.name = f"deb-{os.getpid()}-{Box._n}"
        self.directory = tempfile.mkdtemp(prefix="neuron-deploy.", dir="/var/tmp")
        self.environment = dict(os.environ, BOX_DIR=self.directory)
        try:
            self._box("start", self.name, root)
        except AssertionError as error:
            self.remove()
            raise Skip("systemd does not come up in a box here") from error
        self.root = self._box("root", self.name).strip()
        assert os.path.isdir(self.root) and self.root != "/"

    def _box(self, *arguments):
        return run(BOX, *arguments, env=self.environment)

    def run(self, *command, check=True):
        return run(BOX, "run", self.name, *command, check=check, env=self.environment)

    def shell(self, text, check=True):
        return self.run("sh", "-euc", text, check=check)

    def path(self, inside):
        return self.root + inside

    def write(self, inside, text, mode=0o644):
        os.makedirs(os.path.dirname(self.path(inside)), exist_ok=True)
        with open(self.path(inside), "w", encoding="utf-8") as f:
            f.write(text)
        os.chmod(self.path(inside), mode)

    def read(self, inside):
        with open(self.path(inside), encoding="utf-8") as f:
            return f.read()

    def copy(self, *files):
        """@return their paths in the box"""
        run("cp", *files, self.path("/root/"))
        return ["/root/" + os.path.basename(f) for f in files]

    def install(self, *names, check=True):
        return self.run("dpkg", "-i", *self.copy(*map(package, names)), check=check)

    def remove(self):
        for command in ("kill", "remove"):
            subprocess.run([BOX, command, self.name], env=self.environment, check=False,
                           stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        subprocess.run(["rm", "-rf", self.directory], check=False)
