#!/usr/bin/env python3
"""Cores and libraries that were damaged on purpose cost a report, and no more: each run is over in
ten seconds, with a report or a sentence. NC_MUTATIONS: how many of each kind (default 40)."""
import json
import os
import random
import shutil
import sys
import tempfile
import time
from collections import Counter

sys.dont_write_bytecode = True
# pylint: disable=wrong-import-position
from cores import CLI, CRASHER, core_of, report, run
from tap import figures, in_time, main, test

MUTATIONS = int(os.environ.get("NC_MUTATIONS", "40"))
LIMIT_S = 10
SEED = 15
# what tends to break readers: the ends of ranges, and small and large counts
REASONS = ("it is not an ELF core of 64 bits, little-endian",
           "it is of a machine other than x86-64 and arm64")
VALUES = [0, 1, 2**31 - 1, 2**31, 2**32 - 1, 2**63 - 1, 2**63, 2**64 - 1, 0x1000, 0xfff]


def mutate(rng, path, n_bytes):
    """Changes some of the first n_bytes of a file, mostly where structures are."""
    with open(path, "r+b") as f:
        for _ in range(rng.choice((1, 3, 20, 200))):
            f.seek(rng.randrange(n_bytes) & ~rng.choice((0, 3, 7)))
            if rng.random() < 0.5:
                f.write(bytes([rng.randrange(256)]))
            else:
                f.write(rng.choice(VALUES).to_bytes(8, "little"))


def check_run(*arguments):
    """@return (what became of it, seconds)"""
    begun = time.monotonic()
    result = run(CLI, "--json", "crash", *arguments)
    seconds = time.monotonic() - begun
    assert result.returncode in (0, 1), result
    if result.returncode == 0:
        json.loads(result.stdout)
        return "a report", seconds
    assert "no crash report of" in result.stderr, result.stderr
    reason = result.stderr.strip().rsplit(": ", 1)[1]
    assert reason in REASONS, result.stderr  # not that its reader died
    return reason, seconds


def run_mutations(make):
    """@param make  (random numbers) -> arguments of the command"""
    outcomes, slowest = Counter(), 0
    for n in range(MUTATIONS):
        outcome, seconds = check_run(*make(random.Random(SEED * 1000003 + n)))
        outcomes[outcome] += 1
        slowest = max(slowest, seconds)
        in_time(seconds, LIMIT_S, f"mutation {n}")
    figures.append(f"{MUTATIONS} mutations, slowest {slowest:.2f} s: {dict(outcomes)}")
    assert outcomes["a report"] > 0, outcomes


@test
def a_damaged_core_is_over_in_time():
    with core_of(CRASHER, "null", "10") as core:
        damaged = core + ".damaged"
        with open(core, "rb") as f:
            head = f.read(8 << 20)

        def make(rng):
            with open(damaged, "wb") as f:
                f.write(head)
            # headers and notes more often than pages
            mutate(rng, damaged, rng.choice((4096, 65536, 65536, len(head))))
            return [damaged]
        run_mutations(make)


@test
def a_damaged_core_of_python_is_over_in_time():
    with core_of("/usr/bin/python3", "-c", "import os; os.abort()") as core:
        damaged = core + ".damaged"
        with open(core, "rb") as f:
            whole = f.read()

        def make(rng):
            with open(damaged, "wb") as f:
                f.write(whole)
            for _ in range(50):
                mutate(rng, damaged, len(whole))
            return [damaged]
        run_mutations(make)


@test
def damaged_programs_and_libraries_are_over_in_time():
    with core_of(CRASHER, "null", "10") as core, tempfile.TemporaryDirectory() as root:
        paths = [m["path"] for m in report(core)["modules"] if m["path"].startswith("/")]
        for path in paths:
            os.makedirs(root + os.path.dirname(path), exist_ok=True)
        # a build id that cannot be compared is not compared
        with core_of(CRASHER, "null", "10", core_filter=0x23) as bare:
            def make(rng):
                for path in paths:
                    shutil.copy(path, root + path)
                    mutate(rng, root + path, rng.choice((4096, os.stat(path).st_size)))
                return [rng.choice((core, bare)), "--root", root]
            run_mutations(make)


if __name__ == "__main__":
    sys.exit(main())
