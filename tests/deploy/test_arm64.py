#!/usr/bin/env python3
"""arm64: the packages are cross-built in a clean root and get into one image index with this
machine's; unit tests and the hook run under qemu."""
import glob
import io
import json
import os
import re
import shutil
import sys
import tarfile
import tempfile

sys.dont_write_bytecode = True
sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../harness"))
# pylint: disable=wrong-import-position
from image import blob, build, load, podman
from packages import clean_root, directory, in_root, package, run
from tap import main, test

TRIPLET = "aarch64-linux-gnu"
_scratch = tempfile.mkdtemp(prefix="neuron-arm64.", dir="/var/tmp")
_root = os.path.join(_scratch, "root")
MACHINES = {"amd64": "Advanced Micro Devices X86-64", "arm64": "AArch64"}
PROGRAMS = {"usr/sbin/neuron-collectd", "usr/bin/neuron-collect",
            "usr/libexec/neuron-collectd/neuron-dump"}


def cross_built(name):
    found = glob.glob(f"{_root}/root/{name}_*_arm64.deb")
    assert len(found) == 1, found
    return found[0]


@test
def the_packages_are_cross_built_in_a_clean_root():
    tarball = glob.glob(os.path.join(os.path.dirname(directory()), "neuron-collectd-*.tar.xz"))[0]
    clean_root(_root, "bookworm", "arm64")
    run("tar", "-xf", tarball, "-C", f"{_root}/root")
    in_root(_root, "cd /root/neuron-collectd-*/ && cp -r deploy/debian debian && "
            "dpkg-buildpackage -us -uc -b -aarm64")
    for name in ("neuron-collectd", "neuron-collectd-hook"):
        run("dpkg-deb", "-x", cross_built(name), f"{_root}/x")
    for program in ("usr/sbin/neuron-collectd", "opt/aws/neuron/bin/neuron-dump"):
        assert "AArch64" in run("readelf", "-h", f"{_root}/x/{program}")


def machines(tar, manifest, to):
    """@return {path: machine} of each program and library in an image's layers"""
    for layer in manifest["layers"]:
        with tarfile.open(fileobj=io.BytesIO(blob(tar, layer["digest"]))) as files:
            files.extractall(to)
    found = {}
    for top, _, names in os.walk(to):
        for path in (os.path.join(top, name) for name in names):
            if os.path.isfile(path) and not os.path.islink(path):
                with open(path, "rb") as f:
                    is_elf = f.read(4) == b"\x7fELF"
                if is_elf:
                    said = run("readelf", "-h", path)
                    found[os.path.relpath(path, to)] = re.search(r"Machine: +(.*)", said)[1]
    return found


@test
def both_architectures_are_in_one_index_each_with_its_own_programs():
    path = build("both.tar", package("neuron-collectd"), cross_built("neuron-collectd"))
    with tarfile.open(path) as tar:
        top = json.load(tar.extractfile("index.json"))["manifests"]
        index = json.loads(blob(tar, top[0]["digest"]))
        images = {m["platform"]["architecture"]: m["digest"] for m in index["manifests"]}
        assert len(top) == 1 and set(images) == set(MACHINES), (top, index)
        for name, digest in images.items():
            found = machines(tar, json.loads(blob(tar, digest)), os.path.join(_scratch, name))
            assert PROGRAMS <= set(found) and len(found) > 40, found
            assert set(found.values()) == {MACHINES[name]}, (name, found)
    # whoever loads it gets the image of his machine
    assert podman("inspect", "-f", "{{.Architecture}}", load(path)).strip() == "amd64"


@test
def the_programs_start_under_qemu():
    for program in ("opt/aws/neuron/bin/neuron-dump", "usr/sbin/neuron-collectd",
                    "usr/bin/neuron-collect"):
        said = in_root(_root, f"qemu-aarch64-static -L / /x/{program} --version")
        assert re.search(r"^neuron-collect\w*( neuron-dump)? \d", said, re.M), said


@test
def the_hook_writes_its_note_under_qemu():
    in_root(_root, "mkdir -p /tmp/dump && qemu-aarch64-static /x/opt/aws/neuron/bin/neuron-dump "
            "--pid 1 --tid 1 --date-time 20260527-051500 --cluster-id 00000000000000cc "
            "--error-code 1200 --error-location nrt_execute --local-output-dir /tmp/dump")
    assert glob.glob(f"{_root}/tmp/dump/*"), "neither a record nor a snapshot beside the dump"


@test
def the_unit_tests_pass_under_qemu():
    in_root(_root, "cd /root/neuron-collectd-*/ && mkdir -p arm && cd arm && ../configure -q "
            f"--host={TRIPLET} CFLAGS='-g -O1' && make -s -j2 all && make -s -j2 check TESTS= "
            ">/dev/null")
    # Not the agent's: SQLite's take minutes under qemu, and the bus starts itself anew. Nor
    # test_spawn: qemu's vfork() does not report what the child could not execute.
    programs = in_root(_root, "cd /root/neuron-collectd-*/arm && find tests/lib/base tests/config "
                       "tests/hook tests/uploaders -type f -executable -name 'test_*' "
                       "! -name test_spawn")
    failed = []
    for program in sorted(programs.split()):
        said = in_root(_root, "cd /root/neuron-collectd-*/arm && srcdir=$(realpath ..) "
                       "builddir=$PWD "
                       f"CMOCKA_MESSAGE_OUTPUT=TAP timeout 60 qemu-aarch64-static -L / {program} "
                       "2>&1 || true")
        if re.search(r"^not ok", said, re.M) or not re.search(r"^ok", said, re.M):
            failed.append((program, said[-400:]))
    assert len(programs.split()) > 40 and not failed, failed


if __name__ == "__main__":
    try:
        STATUS = main()
    finally:
        shutil.rmtree(_scratch, ignore_errors=True)
    sys.exit(STATUS)
