#!/usr/bin/env python3
"""Cores and libraries that were damaged on purpose cost a report, and no more: each run is over in
ten seconds, with a report or a sentence. A reader that dies is counted; in a build with sanitizers
none may. NC_MUTATIONS: how many of each of the four kinds (default 40; ./run-tests has 250)."""
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

sys.dont_write_bytecode = True
# pylint: disable=wrong-import-position
from cores import CLI, CRASHER, core_of, is_instrumented, report, run
from tap import figures, in_time, main, test

MUTATIONS = int(os.environ.get("NC_MUTATIONS", "40"))
LIMIT_S = 10
SEED = 15
AT_ONCE = os.cpu_count()
REASONS = ("it is not an ELF core of 64 bits, little-endian",
           "it is of a machine other than x86-64 and arm64", "it cannot be decompressed")
LOST = ("its reader died by", "Cannot allocate memory")
# what tends to break readers: the ends of ranges, and small and large counts
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


# Looking for leaks is half of what such a command costs, and the reader does not: it ends first.
ENVIRONMENT = {**os.environ, "ASAN_OPTIONS": "detect_leaks=0"}


def check_run(*arguments):
    """@return (what became of it, seconds)"""
    begun = time.monotonic()
    result = run(CLI, "--json", "crash", *arguments, env=ENVIRONMENT)
    seconds = time.monotonic() - begun
    assert result.returncode in (0, 1), result
    if result.returncode == 0:
        json.loads(result.stdout)
        return "a report", seconds
    assert "no crash report of" in result.stderr, result.stderr
    reason = result.stderr.strip().split(": ", 2)[2]
    found = [r for r in REASONS + LOST if reason.startswith(r)]
    assert found, result.stderr
    return found[0], seconds


def run_mutations(make):
    """@param make  (random numbers, a name that nobody else has) -> arguments of the command"""
    def run_one(n):
        with tempfile.TemporaryDirectory(dir="/var/tmp") as directory:
            return check_run(*make(random.Random(SEED * 1000003 + n), directory))
    with ThreadPoolExecutor(AT_ONCE) as pool:
        results = list(pool.map(run_one, range(MUTATIONS)))
    outcomes, slowest = Counter(o for o, _ in results), max(s for _, s in results)
    figures.append(f"{MUTATIONS} mutations, slowest {slowest:.2f} s: {dict(outcomes)}")
    in_time(slowest, LIMIT_S, "a mutation")
    assert outcomes["a report"] > 0, outcomes
    if is_instrumented():
        assert not any(outcomes[r] for r in LOST), outcomes


def damage(content, directory, rng, areas, times=1):
    """@param areas  how much of the beginning may be changed; one of them"""
    path = os.path.join(directory, "core")
    with open(path, "wb") as f:
        f.write(content)
    for _ in range(times):
        mutate(rng, path, rng.choice(areas))
    return path


@test
def a_damaged_core_is_over_in_time():
    with core_of(CRASHER, "null", "10") as core:
        with open(core, "rb") as f:
            head = f.read(8 << 20)
    # headers and notes more often than pages
    run_mutations(lambda rng, directory: [
        damage(head, directory, rng, (4096, 65536, 65536, len(head)))])


@test
def a_damaged_core_of_python_is_over_in_time():
    with core_of("/usr/bin/python3", "-c", "import os; os.abort()") as core:
        with open(core, "rb") as f:
            whole = f.read()
    run_mutations(lambda rng, directory: [damage(whole, directory, rng, (len(whole),), times=50)])


@test
def a_damaged_compressed_core_is_over_in_time():
    with core_of(CRASHER, "double-free", "10") as core:
        with open(core, "rb") as f:
            whole = f.read()
        packed = subprocess.run(["zstd", "-qc", core], check=True, capture_output=True).stdout

    def make(rng, directory):
        if rng.random() < 0.5:  # what is compressed, or the compressed
            return [damage(packed, directory, rng, (len(packed),))]
        path = damage(whole, directory, rng, (4096, 65536, len(whole)))
        subprocess.run(["zstd", "-q", "--rm", path], check=True)
        return [path + ".zst"]
    run_mutations(make)


@test
def damaged_programs_and_libraries_are_over_in_time():
    with core_of(CRASHER, "null", "10") as core:
        paths = [m["path"] for m in report(core)["modules"] if m["path"].startswith("/")]
        # a build id that cannot be compared is not compared
        with core_of(CRASHER, "null", "10", core_filter=0x23) as bare:
            def make(rng, directory):
                for path in paths:
                    os.makedirs(directory + os.path.dirname(path), exist_ok=True)
                    shutil.copy(path, directory + path)
                    mutate(rng, directory + path, rng.choice((4096, os.stat(path).st_size)))
                return [rng.choice((core, bare)), "--root", directory]
            run_mutations(make)


if __name__ == "__main__":
    sys.exit(main())
