#!/usr/bin/env python3
"""The campaign: the daemon is killed, its disks, its volume, its network and its store misbehave,
its sources change under it – and in the end every dump has arrived once and bit for bit.
docs/RELIABILITY.md says what is injected and what is judged.

    campaign.py [--seed N] [--kills N] [--minutes M] [--only THEME] [--round N] [--keep]

A run is a list of rounds, each with a theme. The seed decides what is written, what goes wrong and
when the daemon is to die; the moment itself is the machine's. `--seed N --round K` (and its
`--only`, as a failure prints them) is round K of that run again. The build is the current
directory, or $builddir.
"""
import argparse
import math
import os
import sys
import time

sys.dont_write_bytecode = True
HERE = os.path.dirname(os.path.realpath(__file__))
sys.path[:0] = [HERE, os.path.join(HERE, "..", "harness")]
# pylint: disable=wrong-import-position
import agent as harness
from rounds import KILLS_A_ROUND, LIBRARY
from tap import Skip
from themes import THEMES


def need_library():
    if not os.path.exists(LIBRARY):
        raise Skip(f"{LIBRARY} is not built: make {os.path.relpath(LIBRARY, harness.BUILD_DIR)}")
    if harness.WRAP:
        raise Skip("what wraps the daemon would be killed in its place")


def replay(theme, seed, number):
    return (f"python3 {os.path.join('tests', 'campaign', 'campaign.py')} --seed {seed} "
            f"--round {number} --only {theme.theme}")


def run_round(theme, seed, number, kills=KILLS_A_ROUND):
    """@return the round, with its faults in .faults"""
    need_library()
    done = theme(seed, number, kills)
    done.faults = done.run()
    return done


def choose(arguments):
    """@return [(theme, number)]; endless when there is no end to it but time"""
    wanted = [(t, i) for i, t in enumerate(THEMES) if arguments.only in (None, t.theme)]
    if not wanted:
        sys.exit(f"campaign.py: no theme '{arguments.only}'; there are "
                 f"{', '.join(t.theme for t in THEMES)}")
    if arguments.round is not None:
        return [(wanted[arguments.round % len(wanted)][0], arguments.round)]
    return [(t, lap * len(THEMES) + i) for lap in range(10000) for t, i in wanted]


def main():
    p = argparse.ArgumentParser(description=__doc__.split("\n\n", maxsplit=1)[0],
                                formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--seed", type=int, default=int(time.time()),
                   help="default: the clock; it is printed")
    p.add_argument("--kills", type=int, help="in all, default 100; with --round, in that round")
    p.add_argument("--minutes", type=float, default=math.inf)
    p.add_argument("--only", metavar="THEME", help=", ".join(t.theme for t in THEMES))
    p.add_argument("--round", type=int, help="only this one of the seed's rounds")
    p.add_argument("--keep", action="store_true", help="leave the directories of failed rounds")
    arguments = p.parse_args()
    print(f"seed {arguments.seed}", flush=True)
    begun, kills, crashes, failed, met, units, skipped, memory, samples = (time.monotonic(), 0, 0,
                                                                           0, {}, 0, set(), 0, 0)
    for theme, number in choose(arguments):
        if theme in skipped:
            continue
        if kills >= (arguments.kills or 100) or time.monotonic() - begun > arguments.minutes * 60:
            break
        since = time.monotonic()
        try:
            done = run_round(theme, arguments.seed, number, arguments.kills
                             if arguments.round is not None and arguments.kills else KILLS_A_ROUND)
        except Skip as skip:
            print(f"round {number} {theme.theme}: skipped: {skip}", flush=True)
            skipped.add(theme)
            harness.cleanup()
            continue
        kills, crashes, units = kills + done.kills, crashes + done.crashes, units + len(
            done.sources.units)
        memory, samples = max(memory, done.watcher.most_memory), samples + done.watcher.n
        for what, n in done.met.items():
            met[what] = met.get(what, 0) + n
        print(f"round {number} {theme.theme}: {done.kills} kills, {done.crashes} of them at a "
              f"system call, {len(done.sources.units)} dumps, {done.watcher.n} samples, at most "
              f"{done.watcher.most_memory >> 20} MiB, {time.monotonic() - since:.0f} "
              f"s: {'FAILED' if done.faults else 'in order'}", flush=True)
        if done.faults:
            failed += 1
            for line in done.faults + done.notes:
                print(f"  {line}")
            print(f"  again: {replay(theme, arguments.seed, number)}; directory {done.agent.dir}",
                  flush=True)
        if arguments.keep and done.faults:
            os.environ["NC_KEEP"] = "1"
        harness.cleanup(failed=False)
        os.environ.pop("NC_KEEP", None)
    print(f"seed {arguments.seed}: {kills} kills, {crashes} of them at a system call, {units} "
          f"dumps, {samples} samples, at most {memory >> 20} MiB, "
          f"{time.monotonic() - begun:.0f} s, {failed} rounds failed")
    for what, n in sorted(met.items()):
        print(f"  {n:6} {what}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
