#!/usr/bin/env python3
"""Two builds at different places, by different users, on different days, are the same bytes."""
import filecmp
import glob
import os
import shutil
import sys
import tempfile

sys.dont_write_bytecode = True
sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../harness"))
# pylint: disable=wrong-import-position
from packages import SRCDIR, directory, run
from tap import Skip, main, test

OTHER_USER = 12345
_scratch = tempfile.mkdtemp(prefix="neuron-reproducible.", dir="/var/tmp")


def build_elsewhere():
    """@return the build directory of a second build"""
    if os.geteuid() != 0 or not shutil.which("faketime"):
        raise Skip("needs root and faketime")
    tree = os.path.join(_scratch, "elsewhere-with-a-longer-name")
    ignored = shutil.ignore_patterns("build", ".git", "autom4te.cache", "configure", "Makefile.in",
                                     "__pycache__", "build-aux", "m4", "aclocal.m4")
    shutil.copytree(SRCDIR, tree, symlinks=True, ignore=ignored)
    run("chown", "-R", f"{OTHER_USER}:{OTHER_USER}", _scratch)
    os.chmod(_scratch, 0o755)
    environment = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "HOME": _scratch, "LANG": "C.UTF-8",
                   "TZ": "Asia/Kolkata", "DEB_BUILD_OPTIONS": "parallel=2"}
    run("setpriv", "--reuid", str(OTHER_USER), "--regid", str(OTHER_USER), "--clear-groups",
        "faketime", "-f", "+40d", "sh", "-euc", "umask 077; autoreconf -fi; mkdir out; cd out; "
        "../configure -q; make deb", cwd=tree, env=environment)
    return os.path.join(tree, "out")


@test
def two_builds_are_byte_identical():
    first, second = os.path.dirname(directory()), build_elsewhere()
    tarballs = glob.glob(os.path.join(first, "neuron-collectd-*.tar.xz"))
    packages = glob.glob(os.path.join(directory(), "*.deb"))
    assert len(tarballs) == 1 and len(packages) == 4, (tarballs, packages)
    for path in tarballs + packages:
        other = os.path.join(second, os.path.relpath(path, first))
        if not filecmp.cmp(path, other, shallow=False):
            if shutil.which("diffoscope"):
                run("diffoscope", path, other, check=False)
            raise AssertionError(f"{os.path.basename(path)} differs")


if __name__ == "__main__":
    try:
        STATUS = main()
    finally:
        shutil.rmtree(_scratch, ignore_errors=True)
    sys.exit(STATUS)
