#!/usr/bin/env python3
"""A core of arm64, made by qemu-aarch64, which leaves out the list of mapped files: the test adds
it from the program's headers. eu-stack judges, by the program alone."""
import glob
import os
import resource
import struct
import subprocess
import sys
import tempfile

sys.dont_write_bytecode = True
# pylint: disable=wrong-import-position
from cores import PATIENCE, chains, need, report, run
from tap import main, test

PROGRAM = """
#define KEEP_FRAME() __asm__ volatile("" ::: "memory")
__attribute__((noinline)) static int read_through(volatile int *p)
{ int v = p[4]; KEEP_FRAME(); return v; }
__attribute__((noinline)) static int recurse(int n, volatile int *p)
{ int v = n > 0 ? recurse(n - 1, p) : read_through(p); KEEP_FRAME(); return v + 1; }
int main(void) { int v = recurse(5, (int *)0); KEEP_FRAME(); return v; }
"""
PAGE = 4096


def headers(data):
    offset, = struct.unpack_from("<Q", data, 32)
    n, = struct.unpack_from("<H", data, 56)
    return [(offset + 56 * i, struct.unpack_from("<IIQQQQQQ", data, offset + 56 * i))
            for i in range(n)]


def add_files(core, program):
    """Appends the notes again, with NT_FILE behind them, and points the header there."""
    with open(program, "rb") as f:
        loads = [h for _, h in headers(f.read()) if h[0] == 1]
    entries = [(vaddr & -PAGE, (vaddr + filesz + PAGE - 1) & -PAGE, offset // PAGE)
               for _, _, offset, vaddr, _, filesz, _, _ in loads]
    files = struct.pack("<QQ", len(entries), PAGE) + b"".join(
        struct.pack("<QQQ", *e) for e in entries) + (program.encode() + b"\0") * len(entries)
    files += bytes(-len(files) % 4)
    with open(core, "r+b") as f:
        data = f.read()
        at, head = next((at, h) for at, h in headers(data) if h[0] == 4)
        notes = data[head[2]:head[2] + head[5]] + struct.pack(
            "<III", 5, len(files), 0x46494c45) + b"CORE\0\0\0\0" + files
        f.write(notes)
        f.seek(at)
        f.write(struct.pack("<IIQQQQQQ", *head[:2], len(data), *head[3:5], len(notes), *head[6:]))


def make_core(directory):
    source, program = os.path.join(directory, "arm.c"), os.path.join(directory, "arm")
    with open(source, "w", encoding="ascii") as f:
        f.write(PROGRAM)
    subprocess.run(["aarch64-linux-gnu-gcc", "-g", "-O1", "-static", "-Wl,--build-id", source, "-o",
                    program], check=True)
    subprocess.run(["qemu-aarch64", program], cwd=directory, check=False, timeout=60 * PATIENCE,
                   stderr=subprocess.DEVNULL, preexec_fn=lambda: resource.setrlimit(
                       resource.RLIMIT_CORE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY)))
    core, = glob.glob(os.path.join(directory, "qemu_*.core"))
    return program, core


@test
def a_core_of_arm64_has_its_chain_and_its_fault():
    need("qemu-aarch64", "aarch64-linux-gnu-gcc", "eu-stack")
    with tempfile.TemporaryDirectory() as directory:
        program, core = make_core(directory)
        theirs = [int(line.split()[1], 16) for line in run(
            "eu-stack", "--core", core, "-e", program).stdout.splitlines() if line[:1] == "#"]
        add_files(core, program)
        document = report(core)
    crashed = document["threads"]["groups"][0]
    names = [f["function"] for f in crashed["frames"]]
    assert names[:8] == ["read_through"] + ["recurse"] * 6 + ["main"], names
    assert [pc for pc, _ in chains(document)[crashed["threads"][0]]] == theirs, theirs
    assert crashed["end"] == "complete" and names[-1] == "_start", crashed
    assert document["core"]["machine"] == "aarch64"
    registers = {r["name"]: r for r in document["fault"]["registers"]}
    assert registers["x0"]["points_to"] == "null page" and registers["sp"]["points_to"] == "stack"


if __name__ == "__main__":
    sys.exit(main())
