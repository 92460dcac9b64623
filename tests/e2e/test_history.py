#!/usr/bin/env python3
"""Rows of bundles that ended long ago (retention.history): they go when their files have gone,
never before, and go on counting. And a start with very many of them."""
import os
import shutil
import sys

sys.dont_write_bytecode = True  # the source tree may be read-only, and is packed as it is
sys.path.insert(0, os.path.join(os.path.dirname(os.path.realpath(__file__)), "..", "harness"))
# pylint: disable=wrong-import-position
from agent import Agent, cleanup, need, need_root, run, wait_for
from tap import Skip, main, test

MAX = 100_000
_mounted = []


def clean(failed=False):
    for place in _mounted:
        run("umount", "-l", place)
    _mounted.clear()
    cleanup(failed)


def delivered(names, **more):
    """An agent that has delivered a directory of each name, `jobs/job-NAME`, and forgets soon."""
    a = Agent()
    a.use_directories(scan_interval="1s", **more)
    a.config["retention"] = {"history": "1s"}
    a.start()
    for name in names:
        a.incompressible(4096, name)
    a.wait_delivered(len(names))
    a.wait_all()
    return a


def ids(a):
    """{name of the directory: id of its bundle}"""
    return {os.path.basename(b["path"]): b["id"] for b in a.bundles()}


def remove(a, name):
    shutil.rmtree(a.path("jobs", f"job-{name}"))


def wait_gone(a, name):
    wait_for(f"the row of {name} is gone", lambda: f"job-{name}" not in ids(a), 60)


@test
def the_row_of_what_is_gone_from_its_source_goes_and_still_counts():
    a = delivered(["a", "b"])
    bundle = ids(a)["job-a"]
    manifests = len(a.manifests())
    remove(a, "a")
    wait_gone(a, "a")
    wait_for("it is said", lambda: "deleted the rows of 1 bundles" in a.log)
    assert list(ids(a)) == ["job-b"]
    for _ in range(2):
        counts = a.assert_sum()
        assert counts["delivered"] == counts["discovered"] == 2, counts
        assert a.status()["accounting_ok"]
        metrics = a.curl("/metrics").stdout
        assert 'bundles_total{state="delivered"} 2\n' in metrics
        for command in ("show", "explain"):
            result = a.cli(command, bundle)
            assert result.returncode == 1 and "retention.history" in result.stderr, result
        a.stop()
        a.start()
        a.wait_all()
    assert a.ask("redeliver")["bundles"] == 0
    assert len(a.manifests()) == manifests
    a.stop()


@test
def what_is_there_is_pinned_or_may_only_be_unmounted_keeps_its_row():
    a = delivered(["gone", "there", "pinned"])
    known = ids(a)
    assert a.cli("pin", known["job-pinned"]).returncode == 0
    remove(a, "pinned")
    # as it looks where the source is on a file system that is not mounted
    os.rename(a.path("jobs"), a.path("elsewhere"))
    shutil.rmtree(a.path("elsewhere", "job-gone"))
    a.cli("scan")
    a.wait_all()
    a.stop()
    a.start()
    a.wait_all()
    assert ids(a) == known
    os.rename(a.path("elsewhere"), a.path("jobs"))
    wait_gone(a, "gone")
    a.stop()
    a.start()
    a.wait_all()
    known.pop("job-gone")
    assert ids(a) == known and a.counts()["discovered"] == 3
    assert a.cli("unpin", known["job-pinned"]).returncode == 0
    wait_gone(a, "pinned")
    a.stop()


@test
def another_file_system_in_the_source_s_place_is_no_deletion():
    need_root()
    a = delivered(["a", "b"])
    known = ids(a)
    a.stop()
    result = run("mount", "-t", "tmpfs", "tmpfs", a.path("jobs"))
    if result.returncode != 0:
        raise Skip(f"cannot mount here: {result.stderr.strip()}")
    _mounted.append(a.path("jobs"))
    a.start()
    a.incompressible(4096, "c")
    a.wait_delivered(3)
    remove(a, "c")
    wait_gone(a, "c")
    assert ids(a) == known
    a.stop()
    run("umount", a.path("jobs"))
    _mounted.clear()
    a.start()
    a.wait_all()
    assert ids(a) == known and a.assert_sum()["delivered"] == 3
    a.stop()


@test
def a_directory_made_again_under_its_name_has_the_row_of_the_last_one_alone():
    a = delivered(["a"])
    first = ids(a)["job-a"]
    remove(a, "a")
    a.incompressible(8192, "a")
    a.wait_delivered(2)
    wait_for("the first row is gone", lambda: first not in [b["id"] for b in a.bundles()], 60)
    a.stop()
    a.start()
    a.wait_all()
    assert len(a.bundles()) == 1 and a.assert_sum()["delivered"] == 2
    a.stop()


def add_rows(a, n):
    """Copies of the one row there is, of units that are gone; seen before it."""
    columns = [c.split("|")[1] for c in a.sql("PRAGMA table_info(bundles)").splitlines()]
    new = {"row": "1000000 + i", "id": "printf('directory-20260527T052135-%012x', i)",
           "path": "CAST(path || i AS BLOB)", "first_seen_usec": f"first_seen_usec - {n} + i",
           "changed_usec": "changed_usec"}
    a.sql("PRAGMA foreign_keys=ON; PRAGMA synchronous=OFF; WITH RECURSIVE n (i) AS (SELECT 1 UNION "
          f"ALL SELECT i + 1 FROM n WHERE i < {n}) INSERT INTO bundles ({', '.join(columns)}) "
          f"SELECT {', '.join(new.get(c, c) for c in columns)} FROM bundles, n")
    a.sql("INSERT INTO deliveries SELECT b.row, d.position, d.destination, d.state, d.proof, "
          "d.object, d.bytes, d.attempts, d.last_error, d.next_try_usec, d.done_usec "
          "FROM bundles b, deliveries d WHERE b.row > 1000000")


@test
def of_more_than_100000_the_oldest_go_after_a_start_that_waits_for_none_of_them():
    need("sqlite3")
    a = delivered(["a"])
    a.stop()
    add_rows(a, MAX + 200)
    a.config["retention"] = {"history": "90d"}
    a.start()
    wait_for("the oldest have gone",
             lambda: int(a.sql("SELECT count(*) FROM bundles")) <= MAX + 1, 120)
    assert a.sql("SELECT count(*) FROM bundles WHERE row BETWEEN 1000001 AND 1000100"
                 ) == "0"
    assert a.assert_sum()["delivered"] == MAX + 201
    a.incompressible(4096, "b")
    a.wait_delivered(MAX + 202)
    a.stop()


if __name__ == "__main__":
    sys.exit(main(clean))
