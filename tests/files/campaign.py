#!/usr/bin/env python3
"""Agents on NFS, btrfs and xfs in a VM, by a seed (inside.py has the rounds). Two nodes share a
source over NFS 3, 4.0 and 4.2, with and without delegations and root_squash, as one or two uids, at
two mount paths, while agents are killed, the server is stopped and its export withdrawn, and a node
dies; one delivers to NFS; btrfs and xfs fill up.

    campaign.py [--seed N] [--minutes M] [--round N] [--only source|destination|full]

The build is the current directory, or $builddir. Exit 77: no VM boots here, and why.
"""
import argparse
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import time

sys.dont_write_bytecode = True
HERE = os.path.dirname(os.path.realpath(__file__))
BUILD = os.path.realpath(os.environ.get("builddir") or ".")
IMAGE = os.environ.get("NC_VM_IMAGE") or os.path.join(BUILD, "tests", "files", "root.img")
PACKAGES = ["mount", "e2fsprogs", "nfs-kernel-server", "nfs-common", "btrfs-progs", "xfsprogs",
            "python3", "zstd", "procps", "util-linux", "iproute2", "kmod", "curl", "strace",
            # of the daemon
            "libcurl4", "libmicrohttpd12", "libarchive13", "libzstd1", "libsqlite3-0",
            "libyaml-0-2", "libexpat1", "libnanomsg5", "libdw1", "libjansson4", "libssl3",
            "libsystemd0"]


class NoVm(Exception):
    """Why there is none."""


def vm(*arguments, **options):
    return subprocess.run([os.path.join(HERE, "vm"), *arguments], stdin=subprocess.DEVNULL,
                          check=False, **options)


def make_image():
    if os.geteuid() != 0 or not shutil.which("mmdebstrap"):
        raise NoVm("needs root and mmdebstrap for the VM's image")
    os.makedirs(os.path.dirname(IMAGE), exist_ok=True)
    result = vm("image", IMAGE, *PACKAGES, capture_output=True, text=True)
    if result.returncode:
        raise NoVm(f"the VM's image cannot be made: {result.stderr.strip()[-300:]}")


def pack(target):
    """The programs and the tests, as a tar."""
    with tarfile.open(target, "w") as tar:
        for name in ("neuron-collectd", "neuron-collect"):
            tar.add(os.path.join(BUILD, name), f"vm/{name}")
        tar.add(os.path.join(HERE, "inside.py"), "vm/inside.py")
        tar.add(os.path.join(HERE, "..", "harness"), "vm/harness",
                filter=lambda t: t if t.isdir() or t.name.endswith(".py") else None)


def boots():
    """@raise NoVm"""
    with tempfile.NamedTemporaryFile(suffix=".tar") as empty:
        with tarfile.open(empty.name, "w"):
            pass
        result = vm("run", IMAGE, empty.name, "echo", "it boots", capture_output=True, text=True,
                    env=os.environ | {"VM_TIMEOUT": "120"})
    if "it boots" not in result.stdout:
        raise NoVm(f"no VM boots here: {result.stderr.strip()[-300:]}")


def play(seed, minutes, first=0, only=""):
    """@return the exit status; what the rounds say is printed"""
    make_image()
    with tempfile.NamedTemporaryFile(suffix=".tar") as files:
        pack(files.name)
        environment = {"VM_TIMEOUT": str(int(minutes * 60) + 900)} | os.environ
        return vm("run", IMAGE, files.name, "env", "NEURON_COLLECTD=/vm/neuron-collectd",
                  "NEURON_COLLECT=/vm/neuron-collect", "srcdir=/vm", "builddir=/vm",
                  "NC_PATIENCE=2", "python3", "/vm/inside.py", str(seed), str(minutes), str(first),
                  *([only] if only else []), env=environment).returncode


def main():
    p = argparse.ArgumentParser(description=__doc__.split("\n\n", maxsplit=1)[0],
                                formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--seed", type=int, default=int(time.time()),
                   help="default: the clock; it is printed")
    p.add_argument("--minutes", type=float, default=60)
    p.add_argument("--round", type=int, help="only this one of the seed's rounds")
    p.add_argument("--only", default="", help="source, destination or full")
    arguments = p.parse_args()
    print(f"seed {arguments.seed}", flush=True)
    one = arguments.round is not None
    try:
        return play(arguments.seed, 0 if one else arguments.minutes, arguments.round or 0,
                    arguments.only)
    except NoVm as reason:
        print(f"skipped: {reason}")
        return 77


if __name__ == "__main__":
    sys.exit(main())
