#!/usr/bin/env python3
"""Debian 13: the packages are built in a clean root of it and pass the tests of the box there."""
import glob
import os
import shutil
import subprocess
import sys
import tempfile

sys.dont_write_bytecode = True
sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../harness"))
# pylint: disable=wrong-import-position
from packages import SRCDIR, clean_root, directory, in_root, run
from tap import main, notes, test

SUITE = "trixie"
_scratch = tempfile.mkdtemp(prefix="neuron-debian13.", dir="/var/tmp")


@test
def the_packages_are_built_in_a_clean_root_and_pass_in_a_box_of_that_release():
    tarball = glob.glob(os.path.join(os.path.dirname(directory()), "neuron-collectd-*.tar.xz"))[0]
    root = os.path.join(_scratch, "root")
    clean_root(root, SUITE)
    run("tar", "-xf", tarball, "-C", f"{root}/root")
    in_root(root, "cd /root/neuron-collectd-*/ && cp -r deploy/debian debian && "
            "dpkg-buildpackage -us -uc -b")
    packages = os.path.join(_scratch, "packages")
    os.mkdir(packages)
    run("cp", *glob.glob(f"{root}/root/*.deb"), packages)
    shutil.rmtree(root)
    done = subprocess.run([sys.executable, os.path.join(SRCDIR, "tests/deploy/test_box.py")],
                          env=dict(os.environ, NC_DEB_DIR=packages, BOX_SUITE=SUITE,
                                   NC_BOX_BYTES="256MiB"),
                          stdout=subprocess.PIPE, text=True, check=False)
    notes.append(done.stdout)
    for line in done.stdout.splitlines():
        if line.startswith(("ok", "not ok")):
            print("# " + line)
    assert done.returncode == 0 and "# SKIP" not in done.stdout


if __name__ == "__main__":
    try:
        STATUS = main()
    finally:
        shutil.rmtree(_scratch, ignore_errors=True)
    sys.exit(STATUS)
