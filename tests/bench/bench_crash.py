#!/usr/bin/env python3
"""Crash reports beside eu-stack and gdb: bench_crash.py [--assert]

A core of 64 GiB with 2 GiB of data and 200 threads, plain and compressed (beside `zstd -dc`), a
compressed one of Python, one of 200 threads in a library of 45,000 symbols, and cores that are cut
or filtered. With --assert it fails where the limits are exceeded. Needs 5 GiB in /var/tmp."""
import os
import resource
import subprocess
import sys
import tempfile
import time

sys.dont_write_bytecode = True
sys.path.insert(0, os.path.join(os.path.dirname(os.path.realpath(__file__)),
                                "../collectors/crash"))
# pylint: disable=wrong-import-position
from cores import CLI, CRASHER, chains, core_of, eu_stack, gdb_chains, report

THREADS, SYMBOLS = 200, 45000
SECONDS_MAX, MIB_MAX = 1.0, 64
ZSTD_RATIO_MAX, ZSTD_MIB_MAX = 1.2, 128


def measure(*command):
    """@return (seconds, seconds of CPU, MiB at most), of the command and its children"""
    with tempfile.NamedTemporaryFile("r") as out:
        begun = time.monotonic()
        # a program that is started from here would begin with our own memory as its maximum
        subprocess.run(["time", "-o", out.name, "-f", "%U %S %M", *command], check=False,
                       stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        seconds = time.monotonic() - begun
        user, system, kib = out.read().split()[-3:]
    return seconds, float(user) + float(system), int(kib) / 1024


def compare(what, program, core):
    """@return ours"""
    ours = min(measure(CLI, "--json", "crash", core) for _ in range(3))
    print(f"{what}: {os.stat(core).st_size / 2**30:.1f} GiB, "
          f"{os.stat(core).st_blocks / 2**21:.1f} GiB of data")
    for name, result in (
            ("neuron-collect crash", ours),
            ("eu-stack", min(measure("eu-stack", "-n", "0", "--core", core) for _ in range(3))),
            ("gdb", min(measure("gdb", "-nx", "-batch", "-ex", "thread apply all bt", program, core)
                        for _ in range(3)))):
        print(f"  {name:21} {result[0]:6.3f} s, {result[1]:6.3f} s of CPU, {result[2]:6.1f} MiB")
    return ours


# A third of it does not compress.
PYTHON = "import os; x = os.urandom(200 << 20), b'ab' * (200 << 20); os.abort()"


def check_compressed(core):
    """@return whether it is within the limits"""
    path = core + ".zst"
    with open(core, "rb") as f:  # as a pipe, as systemd-coredump does it
        subprocess.run(["zstd", "-q", "-o", path], stdin=f, check=True)
    pairs = [(measure(CLI, "--json", "crash", path), measure("zstd", "-dcq", path))
             for _ in range(3)]
    ours, theirs = min(p[0] for p in pairs), min(p[1] for p in pairs)
    same = chains(report(path)) == chains(report(core))
    print(f"compressed: {os.stat(core).st_size / 2**20:.0f} MiB to "
          f"{os.stat(path).st_size / 2**20:.0f}; "
          f"{'the same frames' if same else 'OTHER FRAMES'}; {ours[0] / theirs[0]:.2f} of zstd -dc")
    for name, result in ("neuron-collect crash", ours), ("zstd -dc", theirs):
        print(f"  {name:21} {result[0]:6.3f} s, {result[1]:6.3f} s of CPU, {result[2]:6.1f} MiB")
    os.unlink(path)
    good = same and ours[0] <= ZSTD_RATIO_MAX * theirs[0] and ours[2] <= ZSTD_MIB_MAX
    return good or "--assert" not in sys.argv


def check_frames(program, core):
    document = report(core)
    ours = {tid: [pc for pc, _ in c] for tid, c in chains(document).items()}
    theirs = {tid: [pc for pc, _ in c] for tid, c in gdb_chains(program, core).items()}
    for tid, chain in theirs.items():
        assert ours[tid] == chain, (tid, [hex(pc) for pc in ours[tid]], [hex(pc) for pc in chain])
    print(f"  {sum(map(len, ours.values()))} frames, the same in gdb; "
          f"{document['core']['bytes_read'] / 2**20:.1f} MiB of memory read")


def check_part(what, core, whole):
    """@return whether each chain ends where its stack does, and each thread has its pc"""
    document = report(core)
    n_ours, n_eu, n_gdb = (sum(map(len, c.values())) for c in (
        chains(document), eu_stack(core), gdb_chains(CRASHER, core)))
    groups = document["threads"]["groups"]
    good = document["threads"]["count"] == THREADS + 1 and all(
        g["frames"] and g["end"] in ("complete", "no-stack") for g in groups)
    n_cut = sum(len(g["threads"]) for g in groups if g["end"] != "complete")
    print(f"  {what}: {n_ours} frames of {whole}, eu-stack {n_eu}, gdb {n_gdb}; "
          f"{n_cut} stacks are not in it{'' if good else '; OTHER ENDS'}")
    return good


def check_parts():
    command = (CRASHER, "null", str(THREADS))
    print("cut and filtered cores")
    with core_of(*command) as core:
        st, whole = os.stat(core), sum(map(len, chains(report(core)).values()))
        os.truncate(core, st.st_size // 2)
        good = check_part("cut at half", core, whole)
    for what, limit, core_filter in (("ulimit -c of half its data", st.st_blocks * 256, None),
                                     ("filter 0x23", resource.RLIM_INFINITY, 0x23),
                                     ("filter 0", resource.RLIM_INFINITY, 0)):
        with core_of(*command, limit=limit, core_filter=core_filter) as core:
            good = check_part(what, core, whole) and good
    return good


def build_large(directory):
    """A program whose threads wait in a library of many functions, each in one of its own."""
    library, source = os.path.join(directory, "liblarge.so"), os.path.join(directory, "large.s")
    with open(source, "w", encoding="ascii") as f:
        f.write(".text\n")
        for n in range(SYMBOLS):
            f.write(f".globl large_{n}\n.type large_{n},@function\nlarge_{n}:\n.cfi_startproc\n"
                    "sub $8,%rsp\n.cfi_def_cfa_offset 16\ncall *%rdi\nadd $8,%rsp\n"
                    f".cfi_def_cfa_offset 8\nret\n.cfi_endproc\n.size large_{n},.-large_{n}\n")
        f.write('.section .note.GNU-stack,"",@progbits\n')
    main = os.path.join(directory, "main.c")
    with open(main, "w", encoding="ascii") as f:
        f.write("#define _GNU_SOURCE\n#include <dlfcn.h>\n#include <pthread.h>\n"
                "#include <stdio.h>\n"
                "#include <stdlib.h>\n#include <unistd.h>\nstatic void *library;\n"
                "static void wait(void) { for (;;) pause(); }\n"
                "static void *run(void *n) { char name[32];\n"
                "  snprintf(name, sizeof name, \"large_%ld\", (long)n);\n"
                "  ((void (*)(void (*)(void)))dlsym(library, name))(wait); return NULL; }\n"
                f"int main(void) {{ library = dlopen(\"{library}\", RTLD_NOW);\n"
                f"  for (long i = 0; i < {THREADS}; i++) {{ pthread_t t;\n"
                f"    pthread_create(&t, NULL, run, (void *)(i * {SYMBOLS // THREADS})); }}\n"
                "  usleep(500000); abort(); }\n")
    program = os.path.join(directory, "large")
    subprocess.run(["cc", "-shared", "-Wl,--build-id", source, "-o", library], check=True)
    subprocess.run(["cc", "-pthread", main, "-o", program], check=True)
    return program


def check(ours, cpu_only=False):
    if "--assert" not in sys.argv:
        return True
    return (ours[1] if cpu_only else ours[0]) <= SECONDS_MAX and ours[2] <= MIB_MAX


def main():
    good = True
    with core_of(CRASHER, "fill", str(THREADS)) as core:
        good = check(compare("large core", CRASHER, core)) and good
        check_frames(CRASHER, core)
        good = check_compressed(core) and good
    with core_of("/usr/bin/python3", "-c", PYTHON) as core:
        good = check_compressed(core) and good
    with tempfile.TemporaryDirectory() as directory:
        program = build_large(directory)
        with core_of(program) as core:
            good = check(compare(f"{SYMBOLS} symbols", program, core), cpu_only=True) and good
            check_frames(program, core)
    return 0 if check_parts() and good else 1


if __name__ == "__main__":
    sys.exit(main())
