#!/usr/bin/env python3
"""README's commands alone, on a Debian 12 that has nothing: to the first delivered bundle."""
import os
import re
import shutil
import sys
import tempfile
import time

sys.dont_write_bytecode = True
sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../harness"))
# pylint: disable=wrong-import-position
import make_dump
from agent import wait_for
from packages import SRCDIR, Box, plain_base, run
from tap import figures, in_time, main, test

LIMIT_SECONDS = 300
_boxes = []


def commands():
    with open(os.path.join(SRCDIR, "README.md"), encoding="utf-8") as f:
        section = re.search(r"(?ms)^## Install$(.*?)^## ", f.read()).group(1)
    return re.search(r"(?ms)^```\n(.*?)^```$", section).group(1)


def copy_tree(to):
    """What a checkout has: nothing that a build has made."""
    ignored = ("build", ".git", "build-aux", "autom4te.cache", "m4", "configure", "Makefile.in",
               "aclocal.m4", "__pycache__")
    with tempfile.TemporaryDirectory() as scratch:
        shutil.copytree(SRCDIR, f"{scratch}/tree", ignore=shutil.ignore_patterns(*ignored))
        run("cp", "-r", f"{scratch}/tree", to)


@test
def readmes_commands_lead_to_a_delivered_bundle_within_five_minutes():
    box = Box(plain_base())
    _boxes.append(box)
    copy_tree(box.path("/root/neuron-collectd"))
    shutil.copy("/etc/resolv.conf", box.path("/etc/resolv.conf"))
    box.shell("install -d -m 1777 /fsx/neuron")  # the share
    begun = time.monotonic()
    box.run("env", "HOME=/root", "DEBIAN_FRONTEND=noninteractive",
            "PATH=/usr/sbin:/usr/bin:/sbin:/bin", "bash", "-euc",
            "cd /root/neuron-collectd\n" + commands())
    installed = time.monotonic() - begun
    make_dump.make_dump(box.path("/tmp/neuron-core-dump"), owner=(1000, 1000), size=4 << 20)
    wait_for("a manifest", lambda: box.run("find", "/fsx/neuron", "-name", "*.manifest.json"), 60)
    took = time.monotonic() - begun
    box.run("neuron-collect", "verify", box.shell("echo /fsx/neuron/*/*/*.tar.zst").strip())
    figures.append(f"{took:.0f} s to the first delivered bundle, {installed:.0f} to install")
    in_time(took, LIMIT_SECONDS, "the way to the first delivered bundle")


def end(failed):  # pylint: disable=unused-argument
    while _boxes:
        _boxes.pop().remove()


if __name__ == "__main__":
    sys.exit(main(end))
