"""Cores made for real, and what gdb and eu-stack say of them.

A core comes from the kernel where kernel.core_pattern names a plain file, else (or by_gdb) from
gdb, which stops at the signal. The setting is the whole machine's: nothing here writes it."""
import contextlib
import json
import os
import resource
import shutil
import subprocess
import sys
import tempfile

sys.path.insert(0, os.path.join(os.path.dirname(os.path.realpath(__file__)), "../../harness"))
# pylint: disable=wrong-import-position
from agent import BUILD_DIR, CLI, PATIENCE, SOURCE_DIR, Skip, is_instrumented, need, run

os.environ.pop("DEBUGINFOD_URLS", None)  # gdb and eu-stack would ask a server
CRASHER = os.path.join(BUILD_DIR, "tests/collectors/crash/crasher")
REPORT_WITH = os.path.join(BUILD_DIR, "tests/collectors/crash/report_with")
GDB_SCRIPT = """
import gdb
gdb.execute("set pagination off")
gdb.execute("set backtrace past-main on")
gdb.execute("set backtrace past-entry on")
for thread in gdb.selected_inferior().threads():
    thread.switch()
    frame, chain = gdb.newest_frame(), []
    while frame is not None:
        # those that are not on the stack, but in debug information alone
        if frame.type() not in (gdb.INLINE_FRAME, gdb.TAILCALL_FRAME):
            chain.append("%x %s" % (frame.pc(), (frame.name() or "??").replace(" ", "")))
        frame = frame.older()
    print("CHAIN", thread.ptid[1], "|".join(chain))
"""


def kernel_writes_cores():
    with open("/proc/sys/kernel/core_pattern", encoding="utf-8") as f:
        pattern = f.read().strip()
    return pattern and pattern[0] != "|" and "/" not in pattern and "%" not in pattern


def _kernel_core(command, directory, limit, core_filter, environment):
    def prepare():
        resource.setrlimit(resource.RLIMIT_CORE, (limit, limit))
        resource.setrlimit(resource.RLIMIT_STACK, (8 << 20, resource.RLIM_INFINITY))
        if core_filter is not None:
            with open("/proc/self/coredump_filter", "w", encoding="ascii") as f:
                f.write(hex(core_filter))
    before = set(os.listdir(directory))
    subprocess.run(command, cwd=directory, check=False, preexec_fn=prepare, timeout=120 * PATIENCE,
                   stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                   stderr=subprocess.DEVNULL, env={**os.environ, **environment})
    new = [n for n in set(os.listdir(directory)) - before if n.startswith("core")]
    assert len(new) == 1, f"{command} left {new or 'no core'}"
    return os.path.join(directory, new[0])


def _gdb_core(command, directory, environment):
    need("gdb")
    path = os.path.join(directory, "core")
    result = run("gdb", "-nx", "-batch", "-ex", "run", "-ex", f"gcore {path}", "--args", *command,
                 env={**os.environ, **environment})
    assert os.path.exists(path), result.stdout + result.stderr
    return path


@contextlib.contextmanager
def core_of(*command, limit=resource.RLIM_INFINITY, core_filter=None, environment=None,
            directory=None, by_gdb=False):
    """The core of a program that crashes, in a directory that goes with it. @return its path"""
    directory = directory or tempfile.mkdtemp(prefix="crash-", dir="/var/tmp")
    try:
        if kernel_writes_cores() and not by_gdb:
            yield _kernel_core(command, directory, limit, core_filter, environment or {})
        elif limit != resource.RLIM_INFINITY or core_filter is not None:
            raise Skip("kernel.core_pattern names no plain file: only the kernel makes such a core")
        else:
            yield _gdb_core(command, directory, environment or {})
    finally:
        shutil.rmtree(directory)


def report(core, *arguments):
    """@return the document"""
    result = run(CLI, "--json", "crash", core, *arguments)
    assert result.returncode == 0, result.stderr
    return json.loads(result.stdout)


def report_with(core, context, *cgroup, program=REPORT_WITH):
    """@return (document, text) of a core and of what is known beside it"""
    result = run(program, core, json.dumps(context), *cgroup)
    assert result.returncode == 0, result.stderr
    document, text = result.stdout.split("\0")
    return json.loads(document), text


def chains(document):
    """@return {thread: [(pc, function)]}"""
    return {tid: [(int(f["pc"], 16), f["function"]) for f in group["frames"]]
            for group in document["threads"]["groups"] for tid in group["threads"]}


def gdb_chains(program, core, sysroot="/"):
    need("gdb")
    with tempfile.NamedTemporaryFile("w", suffix=".py") as script:
        script.write(GDB_SCRIPT)
        script.flush()
        result = run("gdb", "-nx", "-batch", "-ex", f"set sysroot {sysroot}", "-x",
                     script.name, program, core)
    found = {}
    for line in result.stdout.splitlines():
        if line.startswith("CHAIN "):
            _, tid, frames = line.split(" ", 2)
            pairs = [f.split(" ", 1) for f in frames.split("|")]
            found[int(tid)] = [(int(pc, 16), name) for pc, name in pairs]
    assert found, result.stdout + result.stderr
    return found


LINES_SCRIPT = """
import gdb, os
gdb.execute("set backtrace past-main on")
gdb.execute("set backtrace past-entry on")
frame = gdb.newest_frame()
while frame is not None:
    if frame.type() != gdb.TAILCALL_FRAME:
        sal = frame.find_sal()
        name = os.path.basename(sal.symtab.filename) if sal.symtab else ""
        print("LINE %s|%s|%d" % (frame.name(), name, sal.line if sal.symtab else 0))
    frame = frame.older()
"""


def gdb_lines(program, core):
    """@return [(function, file's name, line)] of the thread that crashed, inlined ones too"""
    with tempfile.NamedTemporaryFile("w", suffix=".py") as script:
        script.write(LINES_SCRIPT)
        script.flush()
        result = run("gdb", "-nx", "-batch", "-x", script.name, program, core)
    found = [line[5:].split("|") for line in result.stdout.splitlines() if line[:5] == "LINE "]
    return [(name, file, int(line)) for name, file, line in found]


def eu_stack(core):
    """@return {thread: [pc]}"""
    need("eu-stack")
    result = run("eu-stack", "-n", "0", "--core", core)
    found, tid = {}, None
    for line in result.stdout.splitlines():
        if line.startswith("TID "):
            tid = int(line[4:].rstrip(":"))
            found[tid] = []
        elif line.startswith("#"):
            found[tid].append(int(line.split()[1], 16))
    return found


def dpkg_version(path, root="/"):
    """@return (package, version) as dpkg says, (None, None): it knows no such file"""
    need("dpkg-query")
    spellings = [path] + ([path[4:]] if path.startswith("/usr/") else [])
    for spelling in spellings:
        owner = run("dpkg-query", f"--root={root}", "-S", spelling).stdout.partition(": ")[0]
        if owner:
            return owner, run("dpkg-query", f"--root={root}", "-W", "-f=${Version}", owner).stdout
    return None, None
