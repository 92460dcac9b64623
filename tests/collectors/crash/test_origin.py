#!/usr/bin/env python3
"""Where the files of a process of a container are found: below another process of it, in layers of
images that podman made, and nowhere else; and to which packages they belong."""
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time

sys.dont_write_bytecode = True
# pylint: disable=wrong-import-position
from cores import (CLI, CRASHER, Skip, core_of, dpkg_version, kernel_writes_cores, need, report,
                   report_with, run)
from tap import main, test

PROGRAM = "/opt/job/crasher"  # which this node has not
PODMAN = "/var/lib/containers/storage"
CONTAINERD = "/var/lib/containerd/io.containerd.snapshotter.v1.overlayfs/snapshots"


def image_root(directory):
    """A root with a program and its libraries, and nothing else."""
    if os.geteuid() != 0 or not kernel_writes_cores():
        raise Skip("needs root, and a kernel.core_pattern that is a plain file name")
    libraries = [w for w in run("ldd", CRASHER).stdout.split() if w.startswith("/")]
    own = [(CRASHER, PROGRAM), ("/bin/sleep", "/bin/sleep")]
    for source, target in own + [(lib, lib) for lib in libraries]:
        os.makedirs(os.path.dirname(directory + target), exist_ok=True)
        shutil.copy(os.path.realpath(source), directory + target)
    return directory


def crash_in(root):
    """@return its core, with which the root goes"""
    return core_of("chroot", root, PROGRAM, "null", "2", directory=root)


def found(document):
    return {m["path"]: (m["file"], m["found_in"]) for m in document["modules"]}


class Container:
    """A process in a root and a control group of its own."""
    def __init__(self, root):
        self.name = f"/origin-{os.getpid()}"
        self.path = "/sys/fs/cgroup/pids" + self.name
        if not os.path.isdir("/sys/fs/cgroup/pids"):
            self.path = "/sys/fs/cgroup" + self.name
        try:
            os.mkdir(self.path)
        except OSError as error:
            raise Skip(f"no control group can be made: {error}") from error
        self.process = subprocess.Popen(["chroot", root, "/bin/sleep", "1000"],
                                        preexec_fn=self.enter)

    def enter(self):
        with open(f"{self.path}/cgroup.procs", "w", encoding="ascii") as f:
            f.write(str(os.getpid()))

    def end(self):
        self.process.kill()
        self.process.wait()
        for _ in range(100):
            try:
                return os.rmdir(self.path)
            except OSError:
                time.sleep(0.05)
        raise AssertionError(f"{self.path} cannot be removed")


@test
def a_living_process_of_the_container_has_the_files():
    root = image_root(tempfile.mkdtemp(prefix="crash-", dir="/var/tmp"))
    with crash_in(root) as core:
        container = Container(root)
        try:
            with_it, _ = report_with(core, {}, container.name)
        finally:
            container.end()
        without, _ = report_with(core, {}, container.name)
    name = f"process {container.process.pid}"
    assert set(found(with_it).values()) == {("verified", name), ("verified", "core")}, \
        found(with_it)
    assert with_it["threads"]["chains_by_end"] == {"complete": 3}, with_it["threads"]
    assert found(without)[PROGRAM] == ("missing", None), found(without)


def crash_with(mounts, core):
    """The report where other directories stand at some paths, for this command only."""
    lines = [f"mkdir -p {at}; mount --bind {source} {at}" for source, at in mounts]
    result = run("unshare", "-m", "sh", "-euc", "; ".join(lines + ['exec "$0" "$@"']), CLI,
                 "--json", "crash", core)
    assert result.returncode == 0, result.stderr
    return json.loads(result.stdout)


@test
def layers_of_podman_and_containerd_have_the_files():
    need("podman")
    with tempfile.TemporaryDirectory(dir="/var/tmp") as place:
        root = image_root(f"{place}/image")
        for command in (("tar", "-C", root, "-cf", f"{place}/image.tar", "."),
                        ("podman", "--root", f"{place}/storage", "--runroot", f"{place}/run",
                         "--storage-driver", "overlay", "import", f"{place}/image.tar", "job")):
            result = run(*command)
            assert result.returncode == 0, result.stderr
        os.makedirs(f"{place}/snapshots/7")
        shutil.copytree(root, f"{place}/snapshots/7/fs")
        with crash_in(root) as core:
            podman = crash_with([(f"{place}/storage", PODMAN)], core)
            containerd = crash_with([(f"{place}/snapshots", CONTAINERD)], core)
            shutil.copy("/bin/true", f"{place}/snapshots/7/fs{PROGRAM}")
            other = crash_with([(f"{place}/snapshots", CONTAINERD)], core)
    for document, name in ((podman, "layer "), (containerd, "layer 7")):
        state, where = found(document)[PROGRAM]
        assert state == "verified" and where.startswith(name), found(document)
        assert document["threads"]["chains_by_end"] == {"complete": 3}, document["threads"]
    assert found(other)[PROGRAM] == ("mismatch", None), found(other)


def programs(document):
    return {m["path"]: m for m in document["modules"] if m["path"] != "[vdso]"}


@test
def versions_are_those_that_dpkg_names():
    with core_of("python3", "-c", "import ctypes, ssl; ctypes.string_at(0)") as core:
        document = report(core)
    for path, m in programs(document).items():
        owner, version = dpkg_version(path)
        assert (m["package"], m["version"]) == (owner, version), m
    assert document["has_all_versions"]


CRASHING = "void crash(void) { __builtin_trap(); } int own(void) { return 1; }"
COMMIT = "0123456789abcdef0123456789abcdef01234567"


def write(path, text):
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, "w", encoding="ascii") as f:
        f.write(text)


def build_library(path, *flags):
    write(f"{path}.c", CRASHING)
    result = run("cc", "-shared", "-fPIC", "-Wl,--build-id", *flags, "-o", path, f"{path}.c")
    assert result.returncode == 0, result.stderr


@test
def a_python_package_and_a_note_name_their_versions():
    need("cc")
    with tempfile.TemporaryDirectory(dir="/var/tmp") as place:
        site = f"{place}/lib/python3.11/site-packages"
        write(f"{site}/torch_neuronx/version.py",
              f"__version__ = '2.1.2'\ngit_version = '{COMMIT}'\n")
        write(f"{site}/torch_neuronx-2.1.2.dist-info/METADATA",
              "Metadata-Version: 2.1\nName: torch-neuronx\nVersion: 2.1.2+cpu\n\nText.\n")
        write(f"{site}/torch_neuronx-2.1.2.dist-info/RECORD",
              "torch_neuronx/version.py,,\ntorch_neuronx/lib/libcrash.so,sha256=x,1\n")
        package = f"{site}/torch_neuronx/lib/libcrash.so"
        os.makedirs(os.path.dirname(package))
        build_library(package)
        noted = f"{place}/libnoted.so"
        note = {"type": "rpm", "name": "libnoted", "version": "1.2-3.fc40"}
        build_library(noted, "-Xlinker", f"--package-metadata={json.dumps(note)}")
        found = {}
        for path in (package, noted):
            with core_of("python3", "-c", f"import ctypes; ctypes.CDLL('{path}').crash()") as core:
                found[path] = programs(report(core))[path]
                text = run(CLI, "crash", core).stdout
            row = [line for line in text.splitlines() if path in line and "verified" in line]
            assert row and found[path]["version"] in row[0], text
    assert [found[package][k] for k in ("package", "version", "git")] == \
        ["torch-neuronx", "2.1.2+cpu", COMMIT], found[package]
    assert [found[noted][k] for k in ("package", "version", "git")] == \
        ["libnoted", "1.2-3.fc40", None], found[noted]


if __name__ == "__main__":
    sys.exit(main())
