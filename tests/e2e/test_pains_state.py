#!/usr/bin/env python3
"""What users of comparable tools suffer from: a local state that has gone bad stops the agent, or
makes it loop. docs/TESTING.md has the list."""
import contextlib
import os
import random
import shutil
import sqlite3
import sys

sys.dont_write_bytecode = True  # the source tree may be read-only, and is packed as it is
sys.path.insert(0, os.path.join(os.path.dirname(os.path.realpath(__file__)), "..", "harness"))
# pylint: disable=wrong-import-position
import radosgw
from agent import STATES, Agent, cleanup, object_of, wait_for
from s3tools import judge, new_bucket
from tap import main, notes, test
from tcp_proxy import through


def scribble(path, seed):
    """Random bytes over a third of the pages."""
    rng = random.Random(seed)
    with open(path, "r+b") as f:
        for at in range(0, os.path.getsize(path), 4096):
            if rng.random() < 0.34:
                f.seek(at)
                f.write(rng.randbytes(4096))


def drop_table(path):
    with contextlib.closing(sqlite3.connect(path)) as db, db:
        db.execute("pragma foreign_keys = off")
        db.execute("drop table deliveries")


def wrong_words(path):
    """Sound SQLite, and rows that the agent never writes."""
    with contextlib.closing(sqlite3.connect(path)) as db, db:
        db.execute("pragma ignore_check_constraints = on")
        rows = db.execute("select rowid from bundles order by rowid").fetchall()
        db.execute("update bundles set state = 'no such state' where rowid = ?", rows[0])
        db.execute("update bundles set kind = 'no such kind' where rowid = ?", rows[-1])


def a_directory(path):
    os.unlink(path)
    os.mkdir(path)


def half(path):
    os.truncate(path, os.path.getsize(path) // 2)


def of_another_build(path):
    db = sqlite3.connect(path)
    db.execute("pragma user_version = 4711")
    db.close()


DAMAGES = {"random pages": lambda p: scribble(p, 1),
           "other random pages": lambda p: scribble(p, 2), "cut in half": half,
           "a table is gone": drop_table,
           "a directory in its place": a_directory, "another build": of_another_build}


def put_aside(a):
    return [n for n in os.listdir(a.path("state")) if n.startswith(("state.db.corrupt-",
                                                                         "state.db.other-build-"))
            and not n.endswith(("-wal", "-shm", "-journal"))]


def survives(damages):
    """Three bundles are delivered and two are pending when it happens.
    @param damages  {what: function(path of the database)}"""
    for what, damage in damages.items():
        notes.append(what)
        proxy, way = through(radosgw.shared())
        bucket = new_bucket(radosgw.shared())
        a = Agent()
        a.config["destinations"] = [a.s3("s3", way, bucket)]
        units = [a.dump(size=65536, cluster_id=f"{i:016x}", pid=i) for i in range(1, 4)]
        a.start()
        a.wait_delivered(3)
        proxy.refuse()
        units += [a.dump(size=65536, cluster_id=f"{i:016x}", pid=i) for i in range(4, 6)]
        wait_for("two are pending", lambda a=a: a.counts()["ready"] == 2)
        a.stop()
        db = a.path("state", "state.db")
        before = bucket.objects()
        assert len(before) == 6
        os.unlink(db + "-wal")  # a log that stays would repair some of the damage
        damage(db)
        proxy.accept()
        proxy.forget()
        a.start()
        wait_for(f"after {what}: all five are delivered", lambda a=a: a.counts()["delivered"] == 5,
                 40)
        a.wait_all()
        name, = put_aside(a)
        assert name in a.log, (what, name)
        judge(a, bucket, units)
        written = {r.key for r in proxy.requests if r.method == "PUT"}
        assert not written & set(before), f"after {what} it was sent again: {written & set(before)}"
        a.assert_sum()
        a.stop()
        a.start()  # and the next start finds nothing to complain of
        assert a.counts()["delivered"] == 5 and put_aside(a) == [name], what
        a.stop()
        proxy.close()


@test
def whatever_became_of_the_state_it_runs_puts_it_aside_and_delivers_everything_once():
    """21: corrupt local state stops the agent or loops."""
    survives(DAMAGES)


@test
def a_sound_database_with_unknown_values_is_moved_aside_too():
    """21, for rows that no check of SQLite's finds."""
    survives({"rows of unknown words": wrong_words})


def mutate(path, rng):
    """Other values in some rows of every table: nulls, absurd numbers, bytes that are no text,
    other rows' values. SQLite finds them sound."""
    with contextlib.closing(sqlite3.connect(path)) as db, db:
        db.execute("pragma ignore_check_constraints = on")
        db.execute("pragma foreign_keys = off")
        for table, in db.execute("select name from sqlite_schema where type = 'table' and name not "
                                 "like 'sqlite_%'").fetchall():
            columns = [(name, in_key) for _, name, _, _, _,
                       in_key in db.execute(f"pragma table_info({table})")]
            key = [name for name, in_key in columns if in_key] or ["rowid"]
            for row in db.execute(f"select {', '.join(key)} from {table}").fetchall():
                if rng.random() < 0.5:
                    value = rng.choice((None, -1, 2 ** 63 - 1, -2 ** 63, b"", rng.randbytes(20),
                                        "x" * 5000, "../../etc/passwd", 1.5))
                    where = " and ".join(f"{k} = ?" for k in key)
                    try:
                        db.execute(f"update or ignore {table} set {rng.choice(columns)[0]} = ? "
                                   f"where {where}", (value, *row))
                    except sqlite3.Error:
                        pass  # a trigger or NOT NULL would not have it


@test
def rows_of_any_content_neither_stop_it_nor_keep_the_next_dump_away():
    """21, fuzzed: values that SQLite cannot find wrong. What they said may be lost; what comes next
    is not, and the sum holds."""
    seed = int(os.environ.get("NC_SEED", "20260527"))
    notes.append(f"again with NC_SEED={seed}")
    a = Agent()
    a.dump(size=4096, cluster_id="00000000000000a1", pid=1)
    a.dump(size=4096, cluster_id="00000000000000a2", pid=2)
    a.start()
    a.wait_delivered(2)
    a.stop()
    kept = a.path("kept.db")
    shutil.copy(a.path("state", "state.db"), kept)
    for i in range(12):
        notes.append(f"round {i}")
        for name in os.listdir(a.path("state")):
            if name.startswith("state.db"):
                os.unlink(a.path("state", name))
        shutil.copy(kept, a.path("state", "state.db"))
        mutate(a.path("state", "state.db"), random.Random(seed + i))
        unit = a.dump(size=4096, cluster_id=f"{i + 1:016x}", pid=100 + i)
        a.start()
        wait_for("the new dump is delivered",
                 lambda unit=unit: any(m["source"]["path"] == unit for _, m in a.manifests()))
        status = a.status()  # a sum that was spoiled is told as such
        counts = status["bundles"]
        assert status["accounting_ok"] == (counts["discovered"] == sum(
            counts[s] for s in STATES)), status
        a.bundles("?limit=1000")
        a.stop()
    found = {}
    for path, m in a.manifests():
        assert m["source"]["path"] not in found, f"two bundles of {m['source']['path']}: {path}"
        found[m["source"]["path"]] = path
        assert os.path.exists(object_of(path))


if __name__ == "__main__":
    sys.exit(main(cleanup))
