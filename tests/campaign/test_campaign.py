#!/usr/bin/env python3
"""The short form of the campaign: a round of each theme, at least 100 kills in all. The seed is
always the same, so that a failure is the change's and not the draw's; each failure prints the
command that does it again. NC_SEED takes another seed, NC_CAMPAIGN_KILLS another number of kills a
round."""
import os
import sys
import time

sys.dont_write_bytecode = True
HERE = os.path.dirname(os.path.realpath(__file__))
sys.path[:0] = [HERE, os.path.join(HERE, "..", "harness")]
# pylint: disable=wrong-import-position
import campaign
from agent import cleanup, is_instrumented
from rounds import KILLS_A_ROUND
from tap import Skip, figures, main, notes, test
from themes import THEMES

done = []


SEED = int(os.environ.get("NC_SEED", "20260527"))
KILLS = int(os.environ.get("NC_CAMPAIGN_KILLS", KILLS_A_ROUND if not is_instrumented() else 3))


def add_test(theme, number):
    def function():
        kills = f" --kills {KILLS}" if KILLS != KILLS_A_ROUND else ""
        notes.append(f"again: builddir=BUILD {campaign.replay(theme, SEED, number)}{kills}")
        begun = time.monotonic()
        finished = campaign.run_round(theme, SEED, number, KILLS)
        done.append(finished)
        notes.extend(finished.notes)
        figures.append(f"campaign: {theme.theme}: {finished.kills} kills, {finished.crashes} at a "
                       f"system call, {len(finished.sources.units)} dumps, "
                       f"{finished.watcher.n} samples, {time.monotonic() - begun:.0f} s")
        assert not finished.faults, "\n".join(finished.faults)
        assert finished.kills >= KILLS, finished.notes
    function.__name__ = f"{theme.theme.replace('-', '_')}_loses_and_doubles_nothing"
    test(function)


for _number, _theme in enumerate(THEMES):
    add_test(_theme, _number)


@test
def at_least_a_hundred_kills_were_survived_many_of_them_at_a_system_call():
    if len(done) < len(THEMES) - 3 or KILLS < KILLS_A_ROUND:
        raise Skip("not all themes ran in full")
    kills, crashes = sum(r.kills for r in done), sum(r.crashes for r in done)
    figures.append(f"campaign: seed {SEED}: {kills} kills, {crashes} of them at a system call")
    assert kills >= min(100, KILLS * len(done)) and crashes >= kills // 5, (kills, crashes)


if __name__ == "__main__":
    print(f"# seed {SEED}; again: NC_SEED={SEED} tests/campaign/test_campaign.py", flush=True)
    sys.exit(main(cleanup))
