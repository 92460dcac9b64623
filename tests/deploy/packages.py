"""The packages that `make deb` has built, and boxes (tests/harness/box) in which they are
installed."""
import functools
import glob
import hashlib
import json
import os
import re
import shutil
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


def assert_hardened(said, program):
    """@param said  by readelf -hldW"""
    assert re.search(r"Type: +DYN", said), program
    assert re.search(r"BIND_NOW|FLAGS_1.*NOW", said), program
    assert re.search(r"GNU_STACK.* RW ", said) and "GNU_RELRO" in said, program
    is_static = program.endswith("neuron-dump")
    assert ("INTERP" not in said and "NEEDED" not in said) == is_static, program


def assert_contents_listed(root, name, there):
    """@param root  what a package unpacks to  @param there  absolute paths of its files"""
    place = f"/usr/share/doc/{name}/{name}.spdx.json"
    with open(root + place, encoding="utf-8") as f:
        found = json.load(f)
    sums = "".join(f"{c['checksumValue']}  {file['fileName']}\n" for file in found["files"]
                   for c in file["checksums"] if c["algorithm"] == "SHA256")
    checked = subprocess.run(["sha256sum", "--quiet", "-c"], input=sums, text=True, cwd=root,
                             check=False, stdout=subprocess.PIPE)
    assert checked.returncode == 0, checked.stdout
    listed = {file["fileName"][1:] for file in found["files"]}
    assert listed == there - {place}, listed ^ there
    linked = {p["name"]: p["licenseDeclared"] for p in found["packages"]}
    assert linked["glibc"] == "LGPL-2.1-or-later", linked


def package(name):
    """@return path of the package's file"""
    found = glob.glob(os.path.join(directory(), f"{name}_*.deb"))
    assert len(found) == 1, found
    return found[0]


# What apt and npm say of a server that cannot be reached, and of none that answers.
UNREACHABLE = re.compile(
    r"Temporary failure resolving|Could not resolve|(Could not|Unable to) connect to|"
    r"Cannot initiate the connection|Connection timed out|Network is unreachable|"
    r"EAI_AGAIN|ENOTFOUND|ECONNREFUSED|ETIMEDOUT|ENETUNREACH")


def run(*command, check=True, **more):
    """@return what it printed, also what went to stderr"""
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                          check=False, stdin=subprocess.DEVNULL, **more)
    notes.append(f"$ {' '.join(command)}\n{done.stdout[-4000:]}")
    if check:
        assert done.returncode == 0, (command, done.returncode)
    return done.stdout


def download(*command, **more):
    """Runs what fetches packages: only a mirror that cannot be reached is a reason to skip."""
    try:
        return run(*command, **more)
    except AssertionError as error:
        found = UNREACHABLE.search(notes[-1])
        if not found:
            raise
        raise Skip(f"a mirror cannot be reached: {found[0]}") from error


def dependencies(path):
    """@return names of the packages that it depends on"""
    depends = run("dpkg-deb", "-f", path, "Depends").strip()
    return sorted({re.match(r"[a-z0-9.+-]+", d.strip()).group()
                   for d in depends.split(",") if d.strip()})


def clean_root(path, suite, foreign=None):
    """A root with what a build of the packages needs and nothing else.
    @param foreign  architecture that is built for, if it is not this machine's"""
    if os.geteuid() != 0 or not shutil.which("mmdebstrap"):
        raise Skip("needs root and mmdebstrap")
    with open(os.path.join(SRCDIR, "deploy/debian/control"), encoding="utf-8") as f:
        needed = re.search(r"(?ms)^Build-Depends:(.*?)^\S", f.read()).group(1).split(",")
    names = [re.match(r"[a-z0-9.+-]+", n.strip()).group() for n in needed]
    names = [n for n in names if n not in ("debhelper-compat", "pkgconf", "python3")]
    options = ["--variant=buildd", "--include=debhelper,python3,fakeroot,libcmocka-dev,pkg-config"]
    if foreign:
        options = [f"--architectures={run('dpkg', '--print-architecture').strip()},{foreign}",
                   "--variant=buildd", f"--include=debhelper,python3,fakeroot,pkgconf:{foreign},"
                   f"qemu-user-static,crossbuild-essential-{foreign},libcmocka-dev:{foreign},"
                   f"libc6-dev:{foreign}"]
        names = [f"{n}:{foreign}" for n in names]
    download("mmdebstrap", *options, f"--include={','.join(names)}", suite, path)


def in_root(root, script):
    """Runs a shell script in a root, which sees processes of its own only."""
    return run("unshare", "--mount", "--pid", "--fork", "sh", "-euc",
               'mount -t proc proc "$0/proc"; mount --bind /dev "$0/dev"; '
               'exec chroot "$0" env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/root '
               'LC_ALL=C.UTF-8 DEB_BUILD_OPTIONS=parallel=2 sh -euc "$1"', root, script)


def repack(file, suffix):
    """The same package as another version. @return path of the file, which this process removes"""
    root = tempfile.mkdtemp(prefix="neuron-repack.", dir=_scratch().name)
    run("dpkg-deb", "-R", file, f"{root}/x")
    run("sed", "-i", f"/^Version:/s/$/{suffix}/", f"{root}/x/DEBIAN/control")
    run("dpkg-deb", "-Zgzip", "-z1", "-b", f"{root}/x", f"{root}/changed{suffix}.deb")
    return f"{root}/changed{suffix}.deb"


def build_package(name, version, files):
    """@param files  {path: text}, programs  @return path of the package's file"""
    root = tempfile.mkdtemp(prefix="neuron-package.", dir=_scratch().name)
    for path, text in files.items():
        os.makedirs(os.path.dirname(f"{root}/x{path}"), exist_ok=True)
        with open(f"{root}/x{path}", "w", encoding="utf-8") as f:
            f.write(text)
        os.chmod(f"{root}/x{path}", 0o755)
    os.makedirs(f"{root}/x/DEBIAN")
    with open(f"{root}/x/DEBIAN/control", "w", encoding="utf-8") as f:
        f.write(f"Package: {name}\nVersion: {version}\nArchitecture: all\n"
                "Maintainer: nobody <nobody@example.org>\nDescription: a test\n")
    os.chmod(f"{root}/x", 0o755)
    run("dpkg-deb", "--root-owner-group", "-b", f"{root}/x", f"{root}/{name}_{version}.deb")
    return f"{root}/{name}_{version}.deb"


@functools.cache
def _scratch():
    return tempfile.TemporaryDirectory(prefix="neuron-deploy-files.")


def root_of_boxes(release, *names):
    """A root with systemd and the packages, made once. @return its path"""
    if os.geteuid() != 0:
        raise Skip("needs root")
    key = hashlib.sha256(" ".join(names).encode()).hexdigest()[:12]
    path = os.path.join(CACHE, f"deploy-{release}-{key}")
    os.makedirs(CACHE, exist_ok=True)
    download("flock", os.path.join(CACHE, "lock"), BOX, "base", path, *names,
             env=dict(os.environ, BOX_SUITE=release))
    return path


def this_release():
    return run("sed", "-n", "s/^VERSION_CODENAME=//p", "/etc/os-release").strip()


def base():
    """A root with systemd and what the agent's package depends on. @return its path"""
    return root_of_boxes(os.environ.get("BOX_SUITE") or this_release(),
                         *dependencies(package("neuron-collectd")))


def plain_base():
    """A small Debian 12 with systemd, apt and sudo. @return its path"""
    return root_of_boxes("bookworm", "apt", "ca-certificates", "sudo")


@functools.cache
def need_boxes():
    """Skips where not even root may do what the script `box` does."""
    missing = [p for p in ("systemd-nspawn", "unshare", "nsenter") if not shutil.which(p)]
    if missing:
        raise Skip(f"not installed: {', '.join(missing)}")
    with tempfile.TemporaryDirectory(prefix="neuron-deploy.", dir="/var/tmp") as top:
        said = run("unshare", "--mount", "sh", "-euc",
                   "cd $0; mkdir upper work root; mount --make-rprivate /; mount -t overlay "
                   "overlay -o lowerdir=/usr,upperdir=$0/upper,workdir=$0/work root; umount root; "
                   "mount -t cgroup2 cgroup2 root; umount root; echo yes", top, check=False)
    if not said.endswith("yes\n"):
        raise Skip(f"no boxes here: {said.strip()}")


class Box:
    """A booted throw-away host with real systemd."""
    _n = 0

    def __init__(self, root):
        need_boxes()
        Box._n += 1
        self.name = f"deb-{os.getpid()}-{Box._n}"
        self.directory = tempfile.mkdtemp(prefix="neuron-deploy.", dir="/var/tmp")
        self.environment = dict(os.environ, BOX_DIR=self.directory)
        self.base = root
        try:
            self.boot()
        except AssertionError:
            self.remove()
            raise

    def boot(self):
        self._box("start", self.name, self.base)
        self.root = self._box("root", self.name).strip()
        assert os.path.isdir(self.root) and self.root != "/"

    def reboot(self):
        self._box("stop", self.name)
        self.boot()

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

    def install_file(self, file):
        return self.run("dpkg", "-i", *self.copy(file))

    def remove(self):
        for command in ("kill", "remove"):
            subprocess.run([BOX, command, self.name], env=self.environment, check=False,
                           stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        subprocess.run(["rm", "-rf", self.directory], check=False)
