#!/usr/bin/env python3
"""What a process of a container can open and write, found out by trying: joins the container's
device cgroup (version 1) and mount namespace and keeps no more capabilities than it has.

usage: inside.py PID    by root of the node; prints {"before": {PATH: ERROR}, "devices": {PATH:
                    ERROR}, "writable": [PATH]}: devices before it joined, and then
"""
import ctypes
import errno
import json
import os
import stat
import sys
import tempfile

CLONE_NEWNS = 0x20000
CAPABILITY_VERSION_3 = 0x20080522
libc = ctypes.CDLL(None, use_errno=True)


def join_device_group(pid):
    with open(f"/proc/{pid}/cgroup", encoding="ascii") as f:
        group = [line.rstrip().split(":", 2)[2] for line in f if ":devices:" in line][0]
    with open(f"/sys/fs/cgroup/devices{group}/cgroup.procs", "w", encoding="ascii") as f:
        f.write(str(os.getpid()))


def limit_capabilities(pid):
    with open(f"/proc/{pid}/status", encoding="ascii") as f:
        mask = int([line.split()[1] for line in f if line.startswith("CapEff:")][0], 16)
    header = (ctypes.c_uint32 * 2)(CAPABILITY_VERSION_3, 0)
    low, high = mask & 0xffffffff, mask >> 32
    data = (ctypes.c_uint32 * 6)(low, low, 0, high, high, 0)
    if libc.capset(header, data) != 0:
        raise OSError(ctypes.get_errno(), "capset")


def error_of(path, flags):
    try:
        os.close(os.open(path, flags | os.O_NONBLOCK | os.O_CLOEXEC, 0o600))
    except OSError as error:
        return errno.errorcode[error.errno]
    return ""


def writable_directories():
    """Without /proc and /sys, whose files are the kernel's."""
    for top, names, _ in os.walk("/"):
        if top == "/":
            names[:] = sorted(set(names) - {"proc", "sys"})
        path = os.path.join(top, ".inside")
        if error_of(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL) == "":
            os.unlink(path)
            yield top


def main(pid):
    with tempfile.TemporaryDirectory(dir="/var/tmp") as top:
        # the number of no driver: outside of the group it is ENXIO
        device = os.path.join(top, "neuron0")
        os.mknod(device, 0o600 | stat.S_IFCHR, os.makedev(260, 0))
        paths = {"/dev/neuron0": device, "/dev/kmsg": "/dev/kmsg", "/dev/null": "/dev/null"}
        before = {name: error_of(path, os.O_RDONLY) for name, path in paths.items()}
        join_device_group(pid)
        devices = {name: error_of(path, os.O_RDONLY) for name, path in paths.items()}
    with open(f"/proc/{pid}/ns/mnt", "rb") as f:
        if libc.setns(f.fileno(), CLONE_NEWNS) != 0:
            raise OSError(ctypes.get_errno(), "setns")
    limit_capabilities(pid)
    print(json.dumps({"before": before, "devices": devices,
                      "writable": list(writable_directories())}))


if __name__ == "__main__":
    main(int(sys.argv[1]))
