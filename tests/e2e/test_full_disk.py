#!/usr/bin/env python3
"""A state directory that is full or fails: on a full disk bookkeeping continues with the space
reserved in the database, across restarts and crashes; beyond that, and on a disk that fails, intake
pauses, readiness says why, and it continues by itself. Nothing is lost, nothing is doubled, and the
counts add up."""
import os
import shutil
import signal
import subprocess
import sys

sys.dont_write_bytecode = True  # the source tree may be read-only, and is packed as it is
sys.path.insert(0, os.path.join(os.path.dirname(os.path.realpath(__file__)), "..", "harness"))
# pylint: disable=wrong-import-position
import agent
import radosgw
from agent import (Agent, DAEMON, SOURCE_DIR, check_bundle, need, need_root, object_of, run, tree,
                   wait_for)
from s3tools import judge, new_bucket
from tap import Skip, main, test
from tcp_proxy import through

MIB = 1 << 20
_mounted = []
_servers = []


def mount(*arguments):
    need_root()
    result = run("mount", *arguments)
    if result.returncode:
        raise Skip(f"cannot mount here: {result.stderr.strip()}")
    _mounted.append(arguments[-1])


def cleanup(failed=False):
    """The daemon goes first, then the mounts, then the directories."""
    directories = list(agent._directories)  # pylint: disable=protected-access
    agent._directories.clear()              # pylint: disable=protected-access
    try:
        agent.cleanup(failed)
    finally:
        for server in _servers:
            server.kill()
            server.wait()
        _servers.clear()
        for place in reversed(_mounted):
            run("umount", "-l", place)
        _mounted.clear()
        for directory in directories:
            subprocess.run(["rm", "-rf", "--", directory], check=False)


def small_state(size="24m"):
    """An agent whose state directory is a disk of its own."""
    a = Agent()
    mount("-t", "tmpfs", "-o", f"size={size}", "tmpfs", a.path("state"))
    return a


def fill(a):
    """Until nothing more can be written."""
    fd = os.open(a.path("state", "filler"), os.O_CREAT | os.O_WRONLY | os.O_APPEND)
    try:
        while True:
            os.write(fd, bytes(4096))
    except OSError:
        os.close(fd)


def use_up_reserve(a):
    """Something else in the database takes what is left of the space for new bundles, bit by bit.
    The agent is started again on a disk that is full: while it runs it locks its database."""
    a.stop()
    free_space(a)
    a.sql("CREATE TABLE other (x); DELETE FROM reserve")
    while int(a.sql("PRAGMA freelist_count")) > 200:
        a.sql("INSERT INTO other VALUES (zeroblob(131072))")
    with open(a.path("state", "state.db-wal"), "wb") as f:  # sqlite3 has removed it
        f.write(bytes(4 * MIB))
    fill(a)
    a.start()


def free_space(a):
    os.unlink(a.path("state", "filler"))


def rows(a, where="true"):
    """{id: state} in the database, as another program sees it."""
    return dict(line.split("|") for line in a.sql(f"SELECT id, state FROM bundles WHERE {where}"
                                                  ).splitlines())


def pins(a):
    """Links; the mark of an agent whose state directory is on a network file system is none."""
    return [f for f in tree(a.dir) if b"/.neuron-collectd/" in b"/" + f and b"/@nodes/" not in f]


def check_all(a, units):
    """Each arrived once and complete."""
    by_path = {}
    for path, m in a.manifests():
        assert m["bundle"]["supplement_of"] is None, path
        assert m["source"]["path"] not in by_path, ("twice", m["source"]["path"])
        by_path[m["source"]["path"]] = path
    assert set(by_path) == set(units), (set(units) - set(by_path), set(by_path) - set(units))
    for unit, path in by_path.items():
        check_bundle(path, unit, tools=("tar",))
    return by_path


def reports_pause(a, word="full"):
    """Status, readiness and log report it; the log once."""
    wait_for("it is reported",
             lambda: "no new bundle is accepted" in (a.status()["ready_note"] or ""), 20)
    status = a.status()
    assert not status["ready"] and word in status["ready_note"], status["ready_note"]
    assert a.curl("/readyz").returncode != 0
    assert status["accounting_ok"], status
    assert a.log.count("cannot write the state database") == 1, a.log


def back_to_normal(a, n, timeout=30):
    wait_for("it is ready again", lambda: a.status()["ready"], timeout)
    wait_for("all are known", lambda: a.counts()["discovered"] == n, timeout)
    a.wait_all()
    counts = a.assert_sum()
    assert counts["delivered"] == counts["discovered"] == n, counts
    assert sorted(rows(a).values()) == ["delivered"] * n
    wait_for("nothing is held any more", lambda: not pins(a))
    assert a.status()["accounting_ok"]
    metrics = a.curl("/metrics").stdout
    assert ("neuron_collectd_accounting_errors 0\n" in metrics
            and f'bundles_total{{state="discovered"}} {n}\n' in metrics)
    assert a.sql("SELECT count(*) FROM reserve") == "4"


def dumps(a, n, first=0):
    return [a.dump(size=65536, cluster_id=f"0000000000{first + i:06x}", pid=100 + first + i)
            for i in range(n)]


@test
def a_disk_that_fills_up_while_the_agent_runs_stops_nothing():
    a = small_state()
    first = a.dump(size=65536, cluster_id="000000000000000a", pid=1)
    a.start()
    a.wait_known(1)
    a.wait_all()
    fill(a)
    units = dumps(a, 12, first=256)
    wait_for("all are delivered", lambda: a.assert_sum()["delivered"] == 13, 60)
    assert a.status()["ready"], a.status()
    check_all(a, [first, *units])
    assert sorted(rows(a).values()) == ["delivered"] * 13
    wait_for("nothing is held any more", lambda: not pins(a))
    a.stop()
    a.start()  # the disk is still full
    units += dumps(a, 3, first=512)
    wait_for("the next are delivered", lambda: a.assert_sum()["delivered"] == 16, 60)
    free_space(a)
    a.dump(size=65536, cluster_id="00000000000000ff", pid=2)
    back_to_normal(a, 17)
    a.stop()
    assert a.sql("PRAGMA integrity_check") == "ok"


@test
def two_destinations_get_one_bundle_each_and_no_supplement():
    a = small_state()
    os.makedirs(a.path("out2"))
    a.config["destinations"] = [a.volume("archive", "out"), a.volume("second", "out2")]
    a.start()
    fill(a)
    unit = a.dump(size=65536)
    wait_for("both have it", lambda: a.manifests() and a.manifests(a.path("out2")), 60)
    wait_for("and it is shown as delivered", lambda: a.assert_sum()["delivered"] >= 1)
    free_space(a)
    back_to_normal(a, 1)
    for place in (a.out, a.path("out2")):
        (path, manifest), = a.manifests(place)
        assert manifest["bundle"]["supplement_of"] is None, path
        check_bundle(path, unit, tools=("tar",))
    a.stop()


@test
def kill_9_on_a_full_disk_loses_and_doubles_nothing():
    a = small_state()
    a.start()
    fill(a)
    units = dumps(a, 4)
    wait_for("all are at their destination", lambda: len(a.manifests()) == 4, 60)
    before = {p: (os.stat(p).st_ino, os.stat(p).st_mtime_ns) for m,
              _ in a.manifests() for p in (m, object_of(m))}
    a.kill()
    assert len(rows(a)) == 4
    units += dumps(a, 1, first=256)
    a.start()  # still full
    wait_for("all are known to be delivered", lambda: a.assert_sum()["delivered"] == 5, 60)
    a.kill()
    free_space(a)
    a.start()
    wait_for("all are delivered", lambda: a.assert_sum()["delivered"] == 5, 60)
    a.wait_all()
    check_all(a, units)
    assert {p: (os.stat(p).st_ino, os.stat(p).st_mtime_ns)
            for p in before} == before, "what was delivered was written again"
    back_to_normal(a, 5)
    a.stop()


@test
def with_the_reserve_used_up_intake_pauses_and_continues_by_itself():
    a = small_state()
    os.rmdir(a.out)
    with open(a.out, "wb"):
        pass  # nothing can be delivered
    a.start()
    held = a.dump(size=65536, cluster_id="000000000000000a", pid=1)
    a.wait_known(1)
    wait_for("it is held", lambda: all(os.stat(os.path.join(b, n)).st_nlink == 2 for b, _,
                                       f in os.walk(held) for n in f))
    fill(a)
    use_up_reserve(a)
    units = dumps(a, 3, first=256)
    reports_pause(a)
    os.unlink(a.out)
    os.mkdir(a.out)
    a.cli("retry", a.bundles()[0]["id"])  # refused when it is delivered already
    wait_for("what is known is delivered", lambda: a.assert_sum()["delivered"] == 1, 60)
    assert a.assert_sum()["discovered"] == 1 and not a.status()["ready"]
    a.kill()
    a.start()  # and it still is full
    wait_for("it is not ready", lambda: not a.status()["ready"], 20)
    assert a.assert_sum()["discovered"] == 1
    free_space(a)
    back_to_normal(a, 4)
    check_all(a, [held, *units])
    a.stop()


@test
def sources_that_go_while_the_disk_is_full_are_delivered_from_their_links():
    a = small_state()
    a.config["sources"][0]["settle"] = "3s"
    a.start()
    fill(a)
    unit = a.dump(size=300_000)
    wait_for("all of it is held", lambda: all(os.stat(os.path.join(b, n)).st_nlink == 2 for b, _,
                                              f in os.walk(unit) for n in f))
    wanted = tree(unit)
    shutil.rmtree(unit)
    wait_for("it is at its destination", lambda: len(a.manifests()) == 1, 30)
    free_space(a)
    back_to_normal(a, 1)
    check_bundle(a.only_manifest()[0], wanted, tools=("tar",))
    a.stop()


@test
def a_source_whose_disk_is_full_too_is_held_by_descriptors():
    a = small_state()
    os.makedirs(a.path("jobs"))
    mount("-t", "tmpfs", "-o", "size=8m,nr_inodes=9", "tmpfs", a.path("jobs"))
    a.use_directories(settle="8s")
    a.start()
    fill(a)
    unit = a.path("jobs", "job-1")
    os.kill(a.pid, signal.SIGSTOP)  # else directories of links take the inodes first
    os.makedirs(unit)
    for i in range(20):
        try:
            with open(os.path.join(unit, f"f{i}"), "wb") as f:
                f.write(os.urandom(20_000))
        except OSError:
            break
    os.kill(a.pid, signal.SIGCONT)
    names = sorted(os.listdir(unit))
    assert len(names) >= 3, names
    wait_for("links cannot be made", lambda: any(s["note"] for s in a.status()["sources"]), 30)
    wait_for("descriptors hold it",
             lambda: "open descriptors hold" in a.cli("explain", a.bundles()[0]["id"]).stdout, 30)
    shutil.rmtree(unit)
    wait_for("it is at its destination", lambda: len(a.manifests()) == 1, 60)
    assert sorted(m["path"] for m in a.only_manifest()[1]["members"]) == names
    free_space(a)
    wait_for("it is delivered", lambda: a.assert_sum()["delivered"] == 1, 30)
    a.stop()


@test
def a_disk_that_answers_eio_pauses_intake_and_loses_and_doubles_nothing():
    need_root()
    need("fusermount3", "pkg-config", "gcc")
    a = Agent()
    flags = run("pkg-config", "--cflags", "--libs", "fuse3")
    if flags.returncode or not os.path.exists("/dev/fuse"):
        raise Skip("libfuse3-dev or /dev/fuse is not there")
    result = run("gcc", "-std=gnu11", "-D_GNU_SOURCE", "-O1", "-o", a.path("faultfs"),
                 os.path.join(SOURCE_DIR, "tests", "harness", "faultfs.c"), *flags.stdout.split(),
                 "-lpthread")
    assert result.returncode == 0, result.stderr
    place = a.path("state")
    os.makedirs(place + ".real")
    _servers.append(subprocess.Popen(
        [a.path("faultfs"), "-f", "-o", f"allow_other,modules=subdir,subdir={place}.real", place],
        stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL))
    wait_for("the file system is mounted", lambda: os.path.ismount(place))
    _mounted.append(place)
    a.config["sources"][0]["settle"] = "2s"
    units = []
    for number, rule in enumerate(("write EIO 0 -wal", "fsync EIO 0", "write EROFS 0 -wal"), 1):
        a.start()
        units.append(a.dump(size=65536, cluster_id=f"{2 * number:016x}", pid=2 * number))
        a.wait_known(2 * number - 1)
        log = len(a.log)
        with open(os.path.join(place, ".faultfs"), "w", encoding="ascii") as f:
            f.write(rule + "\n")
        units.append(a.dump(size=65536, cluster_id=f"{2 * number + 1:016x}", pid=2 * number + 1))
        wait_for("what was known is at its destination",
                 lambda n=number: len(a.manifests()) == 2 * n - 1, 60)
        wait_for("it is reported",
                 lambda: "no new bundle is accepted" in (a.status()["ready_note"] or ""))
        assert a.log[log:].count("cannot write the state database") == 1
        assert pins(a), "links were released though no row says that it is delivered"
        with open(os.path.join(place, ".faultfs"), "w", encoding="ascii") as f:
            f.write("clear\n")
        back_to_normal(a, 2 * number, 60)
        a.stop()
    check_all(a, units)


@test
def btrfs_that_fills_up_ends_no_agent_and_loses_and_doubles_nothing():
    need_root()
    need("mkfs.btrfs", "losetup")
    a = Agent()
    image = a.path("disk")
    with open(image, "wb") as f:
        f.truncate(128 * MIB)
    assert run("mkfs.btrfs", "-q", "--mixed", image).returncode == 0
    mount("-o", "loop", "-t", "btrfs", image, a.path("state"))
    a.start()
    units = dumps(a, 2)
    wait_for("the first are delivered", lambda: a.assert_sum()["delivered"] == 2, 60)
    for _ in range(2):
        fill(a)
        units += dumps(a, 3, first=256 * len(units))
        wait_for("it is reported",
                 lambda: "no new bundle is accepted" in (a.status()["ready_note"] or ""), 20)
        log = len(a.log)
        a.stop()
        a.start(wait=False)  # the disk is full at the start as well
        wait_for("it answers, or says why it ends", lambda: a.process.poll() is not None
                 or "no new bundle is accepted" in a.log[log:]
                 or a.curl("/healthz").returncode == 0, 20)
        if a.process.poll() is not None:  # not even the lock can be written
            assert a.process.returncode > 0 and "cannot open the state" in a.log[log:], a.log
            free_space(a)
            a.start()
        else:
            free_space(a)
        back_to_normal(a, len(units), 60)
    check_all(a, units)
    a.stop()


@test
def an_agent_that_cannot_create_its_database_reports_it_and_ends():
    a = small_state()
    fill(a)
    a.write_config()
    result = run(DAEMON, "--config", a.config_file, timeout=20)
    assert result.returncode not in (0, 2) and "cannot open the state in" in result.stderr, result
    free_space(a)
    units = dumps(a, 3)
    a.start()
    back_to_normal(a, 3)
    check_all(a, units)
    a.stop()


# --- to S3 ---

def to_bucket(size):
    """An agent with a disk of its own for the state, behind a wire that can be held. @return agent,
    proxy, bucket, its unit"""
    a = small_state()
    proxy, way = through(radosgw.shared())
    bucket = new_bucket(radosgw.shared())
    a.use_directories()
    a.config["destinations"] = [a.s3("s3", way, bucket, part_size="5MiB", connections=2)]
    return a, proxy, bucket, a.incompressible(size)


@test
def an_upload_continues_when_the_disk_fills_up_in_its_middle():
    a, proxy, bucket, unit = to_bucket(33 * MIB)
    proxy.hold_after(12 * MIB)
    a.start()
    wait_for("the wire stands still", proxy.is_holding)
    fill(a)
    proxy.release()
    wait_for("it is delivered", lambda: a.assert_sum()["delivered"] == 1, 60)
    assert a.status()["ready"]
    judge(a, bucket, [unit])
    free_space(a)
    back_to_normal(a, 1)
    a.stop()
    a.start()
    a.wait_all()
    judge(a, bucket, [unit])
    a.stop()


@test
def an_upload_that_began_on_a_full_disk_is_resumed_when_its_wire_is_cut():
    a, proxy, bucket, unit = to_bucket(33 * MIB)
    a.config["sources"][0]["settle"] = "2s"
    a.start()
    wait_for("it is known", lambda: a.counts()["discovered"] == 1)
    fill(a)
    proxy.hold_after(20 * MIB)
    wait_for("the wire stands still", proxy.is_holding, 60)
    assert len(bucket.uploads()) == 1
    proxy.cut()
    wait_for("it is delivered", lambda: a.assert_sum()["delivered"] == 1, 90)
    judge(a, bucket, [unit])
    free_space(a)
    back_to_normal(a, 1)
    judge(a, bucket, [unit])
    a.stop()


@test
def an_upload_that_began_on_a_full_disk_is_resumed_after_a_kill_and_leaves_nothing_behind():
    a, proxy, bucket, unit = to_bucket(33 * MIB)
    a.start(wait=True)
    fill(a)
    second = a.incompressible(12 * MIB, name="2")
    proxy.hold_after(20 * MIB)
    wait_for("the wire stands still", proxy.is_holding, 60)
    assert bucket.uploads()
    a.kill()
    proxy.release()
    a.start()
    wait_for("both are delivered", lambda: a.counts()["delivered"] == 2, 90)
    judge(a, bucket, [unit, second])
    free_space(a)
    back_to_normal(a, 2)
    a.stop()


if __name__ == "__main__":
    sys.exit(main(cleanup))
