#!/usr/bin/env python3
"""The stacks of Python's threads are those that faulthandler prints when the process crashes, for
each interpreter that is here: python3.11, 3.12 and 3.13 of PATH, those of pyenv, and those that
NC_PYTHONS names, separated by colons."""
import glob
import os
import re
import shutil
import subprocess
import sys
import tempfile

sys.dont_write_bytecode = True
# pylint: disable=wrong-import-position
from cores import CLI, SOURCE_DIR, core_of, report, run
from tap import Skip, figures, main, test

SCRIPT = '''
import ctypes, faulthandler, sys, threading
faulthandler.enable(open(sys.argv[1], "w"))
started = threading.Barrier(int(sys.argv[2]) + 1)

def wait(n):
    if n:
        return wait(n - 1)
    started.wait()
    threading.Event().wait()

class Größe:
    def größe(self, crash):
        return [crash() for _ in
                range(1)]

    def 例(self, crash):
        with open("/dev/null"):
            yield self.größe(crash)

def crash():
    x = (
        1,
        ctypes.string_at(
            0),
    )

for i in range(int(sys.argv[2])):
    threading.Thread(target=wait, args=(i % 7,), daemon=True).start()
started.wait()
import time; time.sleep(0.3)
list(Größe().例(lambda: sorted([1], key=lambda v: crash())))
'''
THREADS = 20


def interpreters():
    named = [p for p in os.environ.get("NC_PYTHONS", "").split(":") if p]
    if shutil.which("pyenv"):
        named += glob.glob(run("pyenv", "root").stdout.strip() + "/versions/3.1[123].*/bin/python3")
    found = {}
    for program in named + ["python3.11", "python3.12", "python3.13", "python3"]:
        result = subprocess.run([program, "-c", "import sys; print(*sys.version_info[:2])"],
                                capture_output=True, text=True, check=False) \
            if shutil.which(program) else None
        if result and result.returncode == 0:
            version = tuple(map(int, result.stdout.split()))
            if (3, 11) <= version <= (3, 13):
                found.setdefault(version, program)
    if not found:
        raise Skip("no Python 3.11, 3.12 or 3.13 is here")
    return found


def expected(text):
    """@return the threads of faulthandler's text: (is current, [(file, line, function)])"""
    threads = []
    for line in text.splitlines():
        if "(most recent call first)" in line:
            threads.append((line.startswith("Current"), []))
        match = re.fullmatch(r'  File "(.*)", line (\d+) in (.*)', line)
        if match:
            threads[-1][1].append((match[1], int(match[2]), match[3]))
    return threads


def plain(name):
    """As faulthandler spells it."""
    return name.encode("ascii", "backslashreplace").decode()


@test
def all_threads_have_the_stacks_that_faulthandler_prints():
    for version, program in sorted(interpreters().items()):
        with tempfile.TemporaryDirectory() as directory:
            script, out = os.path.join(directory, "größe.py"), os.path.join(directory, "out")
            with open(script, "w", encoding="utf-8") as f:
                f.write(SCRIPT)
            with core_of(program, script, out, str(THREADS)) as core:
                document = report(core)
            with open(out, encoding="utf-8", errors="replace") as f:
                wanted = expected(f.read())
        python = document["python"]
        assert python["version"] == ".".join(map(str, version)) and python["fault"] is None, python
        assert len(wanted) == THREADS + 1
        crashed = document["fault"]["thread"]
        ours = [(t["thread"] == crashed, [(plain(f["file"]), f["line"], plain(f["function"]))
                                          for f in t["frames"]]) for t in python["threads"]]
        assert ours == wanted, (ours, wanted)
        assert {t["thread"] for t in python["threads"]} <= {
            tid for g in document["threads"]["groups"] for tid in g["threads"]}
        figures.append(f"Python {python['version']}: {len(ours)} threads as faulthandler has them")


@test
def a_function_whose_table_of_lines_is_too_long_loses_its_line_alone():
    script_text = ("import ctypes\ndef long():\n    x = 0\n" + "    x = x + 1\n" * 20000 +
                   "    ctypes.string_at(0)\ndef caller():\n    long()\ncaller()\n")
    for version, program in sorted(interpreters().items()):
        with tempfile.TemporaryDirectory() as directory:
            script = os.path.join(directory, "long.py")
            with open(script, "w", encoding="utf-8") as f:
                f.write(script_text)
            with core_of(program, script) as core:
                document, text = report(core), run(CLI, "crash", core).stdout
        frames = [(f["function"], f["line"]) for f in document["python"]["threads"][0]["frames"]]
        assert frames[1:] == [("long", None), ("caller", 20006), ("<module>", 20007)], (
            version, frames)
        assert "| `long` |" in text, text


@test
def a_core_without_the_interpreters_memory_says_so():
    program = sorted(interpreters().items())[0][1]
    with core_of(program, "-c", "import os; os.abort()", core_filter=0) as core:
        document = report(core)
    # the version is a constant, which the program's file has
    assert document["python"]["version"] and not document["python"]["threads"], document["python"]
    assert document["python"]["fault"], document["python"]


@test
def the_offsets_are_what_the_interpreters_headers_say():
    source = os.path.join(SOURCE_DIR, "tests/collectors/crash/python_offsets.c")
    with open(os.path.join(SOURCE_DIR, "collectors/crash/python_offsets.def"),
              encoding="ascii") as f:
        rows = f.read()
    checked = []
    for version, program in sorted(interpreters().items()):
        include = run(program, "-c", "import sysconfig; print(sysconfig.get_path('include'))")
        include = include.stdout.strip()
        if not os.path.exists(os.path.join(include, "internal/pycore_runtime.h")):
            continue
        with tempfile.TemporaryDirectory() as directory:
            tool = os.path.join(directory, "offsets")
            result = run("cc", "-DNDEBUG", f"-I{include}", f"-I{include}/internal", source, "-o",
                         tool)
            assert result.returncode == 0, result.stderr
            assert run(tool).stdout in rows, version
        checked.append(".".join(map(str, version)))
    if not checked:
        raise Skip("no interpreter's headers are installed (python3-dev)")
    figures.append("offsets computed again: " + ", ".join(checked))


if __name__ == "__main__":
    sys.exit(main())
