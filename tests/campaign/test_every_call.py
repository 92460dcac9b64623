#!/usr/bin/env python3
"""A sample, by a seed, of every_call.py: a call that fails once loses, doubles and mislabels nothing
and ends no agent by a signal. NC_SEED takes another seed, NC_EVERY_CALL_SECONDS another time."""
import os
import random
import sys

sys.dont_write_bytecode = True
HERE = os.path.dirname(os.path.realpath(__file__))
sys.path[:0] = [HERE, os.path.join(HERE, "..", "harness")]
# pylint: disable=wrong-import-position
import every_call
from agent import cleanup
from tap import figures, main, notes, test

SEED = int(os.environ.get("NC_SEED", "20261128"))
SECONDS = float(os.environ.get("NC_EVERY_CALL_SECONDS", "90"))


@test
def a_call_that_fails_once_loses_doubles_and_mislabels_nothing():
    every_call.need_library()
    cases = every_call.list_cases()
    random.Random(SEED).shuffle(cases)
    kinds = {c[:4]: c for c in reversed(cases)}  # of each kind one at first
    first = sorted(kinds.values(), key=cases.index)
    n, faults = every_call.run_cases([*first, *cases], SECONDS, on_fault=notes.append)
    figures.append(f"campaign: every call: seed {SEED}: {n} of {len(cases)} cases, "
                   f"{len(kinds)} kinds")
    assert not faults, "\n".join(faults)
    assert n >= 10, n


if __name__ == "__main__":
    sys.exit(main(cleanup))
