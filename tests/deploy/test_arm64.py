#!/usr/bin/env python3
"""arm64: the packages are cross-built in a clean root; unit tests and the hook run under qemu."""
import glob
import os
import re
import shutil
import sys
import tempfile

sys.dont_write_bytecode = True
sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../harness"))
# pylint: disable=wrong-import-position
from packages import clean_root, directory, in_root, run
from tap import main, test

TRIPLET = "aarch64-linux-gnu"
_scratch = tempfile.mkdtemp(prefix="neuron-arm64.", dir="/var/tmp")
_root = os.path.join(_scratch, "root")


@test
def the_packages_are_cross_built_in_a_clean_root():
    tarball = glob.glob(os.path.join(os.path.dirname(directory()), "neuron-collectd-*.tar.xz"))[0]
    clean_root(_root, "bookworm", "arm64")
    run("tar", "-xf", tarball, "-C", f"{_root}/root")
    in_root(_root, "cd /root/neuron-collectd-*/ && cp -r deploy/debian debian && "
            "dpkg-buildpackage -us -uc -b -aarm64")
    for name in ("neuron-collectd", "neuron-collectd-hook"):
        package = glob.glob(f"{_root}/root/{name}_*_arm64.deb")
        assert len(package) == 1, package
        run("dpkg-deb", "-x", package[0], f"{_root}/x")
    for program in ("usr/sbin/neuron-collectd", "opt/aws/neuron/bin/neuron-dump"):
        assert "AArch64" in run("readelf", "-h", f"{_root}/x/{program}")


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
    programs = in_root(_root, "cd /root/neuron-collectd-*/arm && find tests/lib tests/config "
                       "tests/hook tests/uploaders tests/agent -type f -name 'test_*' -executable")
    failed = []
    for program in sorted(programs.split()):
        said = in_root(_root, "cd /root/neuron-collectd-*/arm && srcdir=.. builddir=. "
                       f"CMOCKA_MESSAGE_OUTPUT=TAP timeout 300 qemu-aarch64-static -L / {program} "
                       "2>&1 || true")
        if re.search(r"^not ok", said, re.M) or not re.search(r"^ok", said, re.M):
            failed.append((program, said[-400:]))
    assert len(programs.split()) > 50 and not failed, failed


if __name__ == "__main__":
    try:
        STATUS = main()
    finally:
        shutil.rmtree(_scratch, ignore_errors=True)
    sys.exit(STATUS)
