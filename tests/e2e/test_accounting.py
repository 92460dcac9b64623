#!/usr/bin/env python3
"""Every bundle and every discard is accounted for: at every moment, after every crash, and what
does not add up is said."""
import os
import shutil
import re
import sys

sys.dont_write_bytecode = True  # the source tree may be read-only, and is packed as it is
sys.path.insert(0, os.path.join(os.path.dirname(os.path.realpath(__file__)), "..", "harness"))
# pylint: disable=wrong-import-position
from agent import STATES, Agent, cleanup, need, wait_for
from tap import main, test


def metrics(a):
    """{name with labels: value}"""
    text = a.curl("/metrics").stdout
    return {name: float(value) for name,
            value in re.findall(r"^neuron_collectd_(\S+) (\S+)$", text, re.MULTILINE)}


def examine(a):
    """One look at status and one at the metrics: each adds up. @return the counts of status"""
    status, numbers = a.status(), metrics(a)
    counts = status["bundles"]
    assert counts["discovered"] == sum(counts[s] for s in STATES), counts
    assert status["accounting_ok"] is True, status
    assert numbers['bundles_total{state="discovered"}'] == sum(numbers[f'bundles{{state="{s}"}}']
                                                               for s in STATES), numbers
    assert numbers["accounting_errors"] == 0
    return counts


@test
def it_adds_up_at_every_moment_and_after_every_kill():
    a = Agent()
    a.config["sources"][0]["settle"] = "50ms"
    n = 0
    for _ in range(4):
        a.start()
        before = examine(a)["discovered"]
        for _ in range(6):
            n += 1
            a.dump(size=30_000, cluster_id=f"{n:016x}", pid=1000 + n)
            assert before <= examine(a)["discovered"] <= n
            before = examine(a)["discovered"]
        a.cli("cancel", (a.bundles() or [{"id": "none"}])[-1]["id"])
        examine(a)
        a.kill()
    a.start()

    def all_over():
        counts = examine(a)
        return counts["discovered"] == n and counts["delivered"] + counts["cancelled"] == n
    wait_for("all have come to their end", all_over, 60, every=0.005)
    a.stop()


@test
def discards_are_counted_for_as_long_as_the_state_lives():
    a = Agent()
    a.config["sources"][0]["settle"] = "100ms"
    unit = a.dump(size=30_000)
    for i in range(3):
        os.symlink("/etc/passwd", os.path.join(unit, f"link-{i}"))
    a.start()
    a.wait_known(1)
    a.wait_all()
    name = 'bundle_discards_total{reason="symlink"}'
    counted = metrics(a)[name]
    assert counted >= 3, metrics(a)
    a.kill()
    a.start()
    assert metrics(a)[name] == counted, metrics(a)
    a.stop()


@test
def a_row_that_another_program_deletes_is_missed():
    need("sqlite3")
    a = Agent()
    for i in range(3):
        a.dump(size=30_000, cluster_id=f"{i:016x}", pid=100 + i)
    a.start()
    a.wait_known(3)
    a.wait_all()
    examine(a)
    a.stop()
    shutil.rmtree(a.sql("SELECT path FROM bundles WHERE row = 2"))  # else it is found again
    a.sql("PRAGMA foreign_keys=1; DELETE FROM bundles WHERE row = 2")
    a.start()
    status = a.status()
    assert status["accounting_ok"] is False, status
    assert status["bundles"]["discovered"] == 3 and status["bundles"]["delivered"] == 2, status[
        "bundles"]
    assert metrics(a)["accounting_errors"] == 1
    for _ in range(3):
        a.status()
    assert a.log.count("differ by 1") == 1, a.log
    a.stop()


if __name__ == "__main__":
    sys.exit(main(cleanup))
