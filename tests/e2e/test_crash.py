#!/usr/bin/env python3
"""kill -9 at any moment, two agents, a database gone bad: every dump arrives once and bit for
bit."""
import contextlib
import os
import re
import random
import shutil
import signal
import sqlite3
import sys
import time

sys.dont_write_bytecode = True  # the source tree may be read-only, and is packed as it is
sys.path.insert(0, os.path.join(os.path.dirname(os.path.realpath(__file__)), "..", "harness"))
# pylint: disable=wrong-import-position
import test_notes
from agent import (DAEMON, PATIENCE, Agent, NotifySocket, check_bundle, cleanup, is_instrumented,
                   leftovers, need, need_root, run, sha256_file, slowness, tree, wait_for)
from tap import Skip, in_time, main, notes, plain_test, test

ROUNDS = int(os.environ.get("NC_KILLS", "40"))


def judge_exactly_once(a, units):
    by_path = {}
    for path, m in a.manifests():
        assert m["bundle"]["supplement_of"] is None, (path, "a supplement of an unchanged dump")
        by_path.setdefault(m["source"]["path"], []).append(path)
    twice = {u: p for u, p in by_path.items() if len(p) > 1}
    assert not twice, twice
    assert set(by_path) == set(units), (set(units) - set(by_path), set(by_path) - set(units))
    for unit, (path,) in by_path.items():
        check_bundle(path, unit, tools=("tar",))


@plain_test
def kill_9_at_random_moments_loses_and_doubles_nothing():
    seed = int(os.environ.get("NC_SEED", "20260527"))
    notes.append(f"again with NC_SEED={seed}")
    rng = random.Random(seed)
    a = Agent()
    a.config["sources"][0]["settle"] = "100ms"
    units = []
    kills = 0
    rounds = ROUNDS if not is_instrumented() else max(ROUNDS // 4, 3)
    for i in range(rounds):
        a.start(wait=False)
        for _ in range(rng.randrange(3)):
            n = len(units) + 1
            units.append(a.dump(size=rng.choice((4096, 300_000, 3 << 20)), cluster_id=f"{n:016x}",
                                pid=1000 + n, seed=n))
        # the moment is chance, nothing is waited for
        time.sleep(rng.choice((0.005, 0.02, 0.05, 0.1, 0.2, 0.3, 0.5)) * rng.random() * 2)
        if a.process.poll() is None:
            a.kill()
            kills += 1
        else:
            raise AssertionError(f"round {i}: the daemon ended by itself with "
                                 f"{a.process.returncode}")
    a.start()
    a.wait_delivered(len(units))
    a.wait_all()
    judge_exactly_once(a, units)
    wait_for("no temporary file is left", lambda: not leftovers(a.out))
    counts = a.assert_sum()
    assert counts["delivered"] == len(units), counts
    wait_for("no pin is left", lambda: not [f for f in tree(a.dir)
                                            if b"/.neuron-collectd/" in b"/" + f])
    notes.append(f"{kills} kills, {len(units)} dumps")
    a.stop()
    assert a.sql("pragma integrity_check") == "ok"


@test
def kill_9_in_the_middle_of_a_large_bundle_starts_its_copy_over():
    a = Agent()
    a.send_slowly()
    unit = a.dump(size=30 << 20)
    for _ in range(3):
        a.start()
        wait_for("it is being shipped", lambda: a.counts()["shipping"])
        wait_for("some of it is written", lambda: any(s["sent_bytes"]
                                                      for s in a.status()["shipping"]))
        a.kill()
        assert not a.manifests()
    a.config["limits"] = {}
    a.start()
    a.wait_all()
    judge_exactly_once(a, [unit])
    assert not leftovers(a.out)
    a.stop()


@test
def a_second_agent_on_the_same_state_is_refused_with_the_first_ones_pid():
    a = Agent().start()
    b = Agent(directory=a.dir)
    b.config["api"]["socket"] = a.path("run", "second.sock")
    b.write_config()
    result = run(DAEMON, "--config", b.config_file, timeout=20)
    assert result.returncode not in (0, 2), result.returncode
    assert str(a.pid) in result.stderr and a.path("state") in result.stderr, result.stderr
    unit = a.dump()
    a.wait_delivered(1)
    check_bundle(a.only_manifest()[0], unit, tools=("tar",))
    a.stop()


@test
def a_corrupt_database_is_moved_aside_and_rebuilt_from_what_is_there():
    for damage in ("zeros in the middle", "cut", "no database at all", "rubbish"):
        a = Agent()
        units = [a.dump(size=65536, cluster_id=f"{i:016x}", pid=i) for i in range(1, 4)]
        a.start()
        a.wait_known(3)
        a.wait_all()
        a.stop()
        db = a.path("state", "state.db")
        before = {p: os.stat(p).st_mtime_ns for p, _ in a.manifests()}
        for extra in ("-wal", "-shm"):
            if os.path.exists(db + extra):
                os.unlink(db + extra)
        if damage == "zeros in the middle":
            with open(db, "r+b") as f:
                f.seek(100)
                f.write(bytes(os.path.getsize(db) - 100))
        elif damage == "cut":
            os.truncate(db, 5000)
        elif damage == "rubbish":
            with open(db, "wb") as f:
                f.write(os.urandom(50_000))
        else:
            os.truncate(db, 0)
        late = a.dump(size=65536, cluster_id="00000000000000ff", pid=99)
        a.start()
        wait_for(f"after {damage}: all four are delivered", lambda: a.counts()["delivered"] == 4)
        if damage in ("zeros in the middle", "rubbish"):
            assert [n for n in os.listdir(a.path("state"))
                    if n.startswith("state.db.corrupt-")], os.listdir(a.path("state"))
            assert "corrupt" in a.log
        judge_exactly_once(a, [*units, late])
        assert {p: os.stat(p).st_mtime_ns
                for p in before} == before, "a delivered bundle was written again"
        a.stop()


@test
def a_database_that_another_program_has_open_is_named_and_left():
    a = Agent()
    a.dump()
    a.start()
    a.wait_delivered(1)
    a.stop()
    with sqlite3.connect(a.path("state", "state.db")) as db:
        assert db.execute("SELECT count(*) FROM bundles").fetchone() == (1,)
        for options in ((), ("--remains",)):
            result = run(DAEMON, "--config", a.config_file, *options, env=a.whole_environment(),
                         cwd=a.dir)
            assert result.returncode == 1, result
            assert "open; close it" in result.stderr, result
    db.close()
    a.start()
    assert a.counts()["delivered"] == 1
    a.stop()


def remove_state(a):
    shutil.rmtree(a.path("state"))


def replace_state(a):
    os.rename(a.path("state"), a.path("state.moved"))
    os.mkdir(a.path("state"))


def remove_log(a):
    os.unlink(a.path("state", "state.db-wal"))


@test
def an_agent_whose_state_directory_is_removed_accepts_nothing_more_and_ends():
    for remove in (remove_state, replace_state, remove_log):
        a = Agent()
        units = [a.dump(size=65536, cluster_id="0000000000000001", pid=1)]
        a.start()
        a.wait_delivered(1)
        note = test_notes.note_of(a.path("dumps", test_notes.UNIT))
        a.process.send_signal(signal.SIGSTOP)
        hook = test_notes.Hook(a, note)  # waits for its answer when the state is removed
        remove(a)
        a.process.send_signal(signal.SIGCONT)
        try:
            answer = hook.hear()
            assert not answer.startswith("accepted"), (remove, answer)
        except ConnectionError:
            pass  # it has ended
        hook.close()
        assert a.process.wait(20 * PATIENCE) == 1, remove
        assert a.log.count(f"the state directory '{a.path('state')}' was removed or replaced") == 1
        a.process = None
        units.append(a.dump(size=65536, cluster_id="0000000000000002", pid=2))
        a.start()
        a.wait_delivered(2)
        judge_exactly_once(a, units)
        a.stop()


@test
def a_state_directory_whose_parent_is_removed_is_missed_at_the_next_bundle():
    a = Agent()
    a.config["state_directory"] = a.path("above", "state")
    os.mkdir(a.path("above"))
    a.start()
    os.rename(a.path("above"), a.path("moved"))
    a.dump(size=65536)
    assert a.process.wait(20 * PATIENCE) == 1
    a.process = None
    a.start()
    a.wait_delivered(1)
    a.stop()


@test
def a_database_of_another_build_keeps_its_name_while_no_new_one_can_be_created():
    a = Agent()
    state = a.path("state")
    need_root()
    if run("mount", "-t", "tmpfs", "-o", "size=32m", "tmpfs", state).returncode != 0:
        raise Skip("cannot mount a tmpfs")
    try:
        a.dump(size=65536)
        a.start()
        a.wait_delivered(1)
        a.stop()
        a.sql("PRAGMA user_version = 11")
        with open(os.path.join(state, "fill"), "wb") as f:
            with contextlib.suppress(OSError):
                while True:
                    f.write(bytes(1 << 16))
                    f.flush()
        with contextlib.suppress(OSError):
            with open(os.path.join(state, "rest"), "wb", buffering=0) as f:
                while True:
                    f.write(bytes(1))
        a.start(wait=False)
        assert a.process.wait(20 * PATIENCE) == 1
        a.process = None
        assert "No space left" in a.log, a.log
        assert a.sql("PRAGMA user_version") == "11", os.listdir(state)
        for name in ("fill", "rest"):
            os.unlink(os.path.join(state, name))
        a.start()
        assert "another build" in a.log
        a.wait_all()
        a.stop()
    finally:
        if a.process:
            a.kill()
        run("umount", "-l", state)


@test
def a_database_of_another_build_is_put_aside_and_what_was_delivered_is_known():
    a = Agent()
    unit = a.dump()
    a.start()
    a.wait_known(1)
    a.wait_all()
    a.stop()
    kept = {}
    for change in ("user_version = 4711", "user_version = 11", "application_id = 7"):
        a.sql(f"pragma {change}")
        before = sha256_file(a.path("state", "state.db"))
        a.start()
        a.wait_known(1)
        a.wait_all()
        name, = [n for n in os.listdir(a.path("state")) if n not in kept
                 and re.fullmatch(r"state\.db\.other-build-\d+T\d+(\.\d+)?", n)]
        assert (f"written by another build of neuron-collectd, whose tables differ; it was put "
                f"aside as '{name}'" in a.log), a.log
        kept[name] = before
        assert all(sha256_file(a.path("state", n)) == kept[n] for n in kept)
        judge_exactly_once(a, [unit])
        a.stop()
    a.start()
    a.wait_all()
    assert len([n for n in os.listdir(a.path("state")) if ".other-build-" in n
                and not n.endswith(("-wal", "-shm"))]) == len(kept)
    judge_exactly_once(a, [unit])
    a.stop()


@test
def sigterm_in_the_middle_of_a_delivery_ends_soon_and_the_next_start_continues():
    a = Agent()
    # A worker that packs looks up between two blocks: with a sanitizer on a busy machine that is
    # too late, and what it holds counts as a leak.
    (a.send_slowly if is_instrumented() else a.slow_down)()
    unit = a.dump(size=100 << 20)
    a.start()
    wait_for("it is being shipped", lambda: a.counts()["shipping"])
    begun = time.monotonic()
    a.stop()
    took = time.monotonic() - begun
    in_time(took, 12 * slowness(), "the stop")
    assert not a.manifests(), "it waited for the whole delivery"
    a.config["limits"] = {}
    a.start()
    a.wait_all()
    judge_exactly_once(a, [unit])
    assert not leftovers(a.out), leftovers(a.out)
    a.stop()


@test
def systemd_hears_ready_status_reloading_watchdog_and_stopping():
    a = Agent()
    a.notify = "to be set"
    n = NotifySocket(a.dir)
    a.notify = n.path
    a.environment |= {"WATCHDOG_USEC": "400000"}
    a.start()
    wait_for("READY=1", lambda: "READY=1" in n.lines())
    wait_for("three signs of life", lambda: n.lines().count("WATCHDOG=1") >= 3)
    assert any(line.startswith("STATUS=") for line in n.lines())
    a.reload()
    wait_for("RELOADING=1 with its time", lambda: "RELOADING=1" in n.lines()
             and any(x.startswith("MONOTONIC_USEC=") for x in n.lines()))
    wait_for("READY=1 again", lambda: n.lines().count("READY=1") >= 2)
    a.stop()
    assert "STOPPING=1" in n.lines()


@test
def a_stale_socket_of_a_dead_agent_is_no_obstacle():
    a = Agent().start()
    a.kill()
    assert os.path.exists(a.socket)
    a.start()
    assert a.is_healthy()
    a.stop()


@plain_test
def a_clock_that_goes_back_is_no_obstacle():
    need("faketime")
    if is_instrumented():
        raise Skip("libfaketime and sanitizers do not go together")
    a = Agent()
    a.environment |= {"NO_FAKE_STAT": "1"}  # the clock alone: what files say stays true
    a.prefix = ["faketime", "-f", "+400d"]
    first = a.dump(size=65536, cluster_id="000000000000000a", pid=1)
    a.start()
    a.wait_known(1)
    a.wait_all()
    a.stop()
    a.prefix = []  # back by 400 days
    second = a.dump(size=65536, cluster_id="000000000000000b", pid=2)
    a.start()
    a.wait_delivered(2)
    judge_exactly_once(a, [first, second])
    a.assert_sum()
    a.stop()
    a.prefix = ["faketime", "-f", "-400d"]  # files from the future
    third = a.dump(size=65536, cluster_id="000000000000000c", pid=3)
    a.start()
    a.wait_delivered(3)
    judge_exactly_once(a, [first, second, third])
    a.stop()


@plain_test
def a_directory_from_the_future_is_shipped_completely_and_not_mistaken_for_another():
    need("faketime")
    if is_instrumented():
        raise Skip("libfaketime and sanitizers do not go together")
    a = Agent()
    a.use_directories(settle="3s", scan_interval="1h")
    a.environment |= {"NO_FAKE_STAT": "1"}
    a.prefix = ["faketime", "-f", "-600s"]
    a.start()
    unit = a.incompressible(4096)
    a.wait_known(1)
    for name in ("later", "latest"):
        with open(os.path.join(unit, name), "wb") as f:
            f.write(os.urandom(4096))
    a.wait_delivered(1)
    judge_exactly_once(a, [unit])
    with open(os.path.join(unit, "supplement"), "wb") as f:
        f.write(b"more")
    a.wait_delivered(2)
    first, more = sorted(m["bundle"]["id"] for _, m in a.manifests())
    assert more == first + "-s1", (first, more)
    assert [m["name"] if "name" in m else m["path"] for _,
            s in a.manifests() if s["bundle"]["id"] == more for m in s["members"]] == ["supplement"]
    a.stop()


@test
def an_agent_that_was_away_for_longer_than_max_wait_does_not_call_a_complete_dump_incomplete():
    a = Agent()
    a.config["sources"][0] |= {"settle": "2s", "max_wait": "4s"}
    a.start()
    unit = a.dump()
    wait_for("it settles", lambda: a.counts()["settling"] == 1)
    a.kill()
    time.sleep(5)
    a.start()
    a.wait_all()
    path, manifest = a.only_manifest()
    assert manifest["bundle"]["complete"], manifest["bundle"]["reasons"]
    check_bundle(path, unit)
    a.stop()


if __name__ == "__main__":
    sys.exit(main(cleanup))
