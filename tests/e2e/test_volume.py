#!/usr/bin/env python3
"""A destination that is full, read-only, gone or hung: it is reported, retried, and nobody else
suffers."""
import os
import shutil
import signal
import subprocess
import sys
import time

sys.dont_write_bytecode = True  # the source tree may be read-only, and is packed as it is
sys.path.insert(0, os.path.join(os.path.dirname(os.path.realpath(__file__)), "..", "harness"))
# pylint: disable=wrong-import-position
import agent
from agent import (DAEMON, Agent, SOURCE_DIR, check_bundle, leftovers, need, need_root, object_of,
                   run, wait_for)
from tap import Skip, main, test

_mounted = []


def mount(*arguments):
    need_root()
    result = run("mount", *arguments)
    if result.returncode:
        raise Skip(f"cannot mount here: {result.stderr.strip()}")
    _mounted.append(arguments[-1])


def cleanup(failed=False):
    for server in _servers:
        server.send_signal(signal.SIGCONT)
        server.kill()
        server.wait()
    _servers.clear()
    agents_first = None
    try:
        # The daemon goes first, or its open files keep the mounts busy. Directories under a mount
        # are removed after it.
        directories = list(agent._directories)  # pylint: disable=protected-access
        agent._directories.clear()              # pylint: disable=protected-access
        agent.cleanup(failed)
    except AssertionError as fault:
        agents_first = fault
    for place in reversed(_mounted):
        run("umount", "-l", place)
    _mounted.clear()
    for directory in directories:
        subprocess.run(["rm", "-rf", "--", directory], check=False)
    if agents_first:
        raise agents_first


_servers = []


def destination(a, name):
    return next(d for d in a.status()["destinations"] if d["name"] == name)


def error_of(a, name):
    return destination(a, name)["last_error"] or ""


@test
def a_full_volume_is_waited_for_and_then_served():
    a = Agent()
    mount("-t", "tmpfs", "-o", "size=3m", "tmpfs", a.out)
    unit = a.dump(size=16 << 20)
    a.start()
    error = wait_for("the destination says that it is full", lambda: error_of(a, "archive"))
    assert a.out in error and ("space" in error or "full" in error or "room" in error), error
    assert destination(a, "archive")["state"] in ("paused", "failing")
    assert a.curl("/readyz").returncode != 0
    assert a.counts()["delivered"] == 0 and not a.manifests()
    explained = a.cli("explain", a.bundles()[0]["id"]).stdout
    assert "archive" in explained, explained
    assert run("mount", "-o", "remount,size=100m", a.out).returncode == 0
    a.wait_all()
    check_bundle(a.only_manifest()[0], unit, tools=("tar",))
    assert not leftovers(a.out)
    assert destination(a, "archive")["state"] == "ok"
    a.assert_sum()
    a.stop()


@test
def min_free_pauses_before_the_volume_is_full():
    a = Agent()
    mount("-t", "tmpfs", "-o", "size=32m", "tmpfs", a.out)
    a.config["destinations"][0]["min_free"] = "30MiB"
    unit = a.dump(size=8 << 20)
    a.start()
    wait_for("the destination is paused", lambda: destination(a, "archive")["state"] == "paused"
             or "min_free" in error_of(a, "archive"))
    assert not a.manifests()
    assert run("mount", "-o", "remount,size=100m", a.out).returncode == 0
    a.wait_all()
    check_bundle(a.only_manifest()[0], unit, tools=("tar",))
    a.stop()


@test
def a_read_only_volume_is_waited_for():
    a = Agent()
    mount("-t", "tmpfs", "-o", "size=100m,ro", "tmpfs", a.out)
    unit = a.dump()
    a.start()
    error = wait_for("the destination says that it is read-only", lambda: error_of(a, "archive"))
    assert "read-only" in error.lower() and a.out in error, error
    assert run("mount", "-o", "remount,rw", a.out).returncode == 0
    a.wait_all()
    check_bundle(a.only_manifest()[0], unit, tools=("tar",))
    a.stop()


@test
def a_volume_that_vanishes_and_comes_back_is_served_then():
    a = Agent()
    os.makedirs(a.path("mnt"))
    mount("-t", "tmpfs", "-o", "size=100m", "tmpfs", a.path("mnt"))
    os.makedirs(a.path("mnt", "archive"))
    a.config["destinations"][0]["path"] = a.path("mnt", "archive", "neuron", "%d-%c")
    first = a.dump(cluster_id="000000000000000a")
    a.start()
    a.wait_known(1)
    a.wait_all()
    run("umount", "-l", a.path("mnt"))
    _mounted.remove(a.path("mnt"))
    second = a.dump(cluster_id="000000000000000b", pid=2)
    wait_for("the destination says that it is away", lambda: error_of(a, "archive"))
    assert not os.listdir(a.path("mnt")), "the bundle went onto the disk below the mount point"
    assert a.counts()["delivered"] == 1
    mount("-t", "tmpfs", "-o", "size=100m", "tmpfs", a.path("mnt"))
    os.makedirs(a.path("mnt", "archive"))
    a.wait_all()
    path, _ = a.only_manifest(a.path("mnt"))
    check_bundle(path, second, tools=("tar",))
    assert os.path.isdir(first)
    a.stop()


def build_faultfs(a):
    need("fusermount3", "pkg-config", "gcc")
    source = os.path.join(SOURCE_DIR, "tests", "harness", "faultfs.c")
    if not os.path.exists(source) or not os.path.exists("/dev/fuse"):
        raise Skip("no faultfs.c or no /dev/fuse")
    flags = run("pkg-config", "--cflags", "--libs", "fuse3")
    if flags.returncode:
        raise Skip("libfuse3-dev is not installed")
    binary = a.path("faultfs")
    result = run("gcc", "-std=gnu11", "-D_GNU_SOURCE", "-O1", "-o", binary, source,
                 *flags.stdout.split(), "-lpthread")
    assert result.returncode == 0, result.stderr
    return binary


def serve_faultfs(a, place):
    """Mounts a pass-through file system with faults on `place`. @return its server"""
    binary = build_faultfs(a)
    real = place + ".real"
    os.makedirs(real, exist_ok=True)
    os.makedirs(place, exist_ok=True)
    server = subprocess.Popen([binary, "-f", "-o", f"allow_other,modules=subdir,subdir={real}",
                               place], stdin=subprocess.DEVNULL,
                              stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    _servers.append(server)
    wait_for("the file system is mounted", lambda: os.path.ismount(place))
    _mounted.append(place)
    return server


def fault(place, rule):
    """What the file system on `place` does from now on: faultfs.c has the rules."""
    with open(os.path.join(place, ".faultfs"), "w", encoding="ascii") as f:
        f.write(rule + "\n")


@test
def a_hung_volume_does_not_hold_up_the_other_one():
    need_root()
    a = Agent()
    server = serve_faultfs(a, a.path("slow"))
    a.config["destinations"].append(a.volume("hung", "slow"))
    a.start()
    a.dump(size=65536, cluster_id="000000000000000a")
    a.wait_known(1)
    a.wait_all()
    server.send_signal(signal.SIGSTOP)
    units = [a.dump(size=65536, cluster_id=f"00000000000001{i:02x}", pid=100 + i) for i in range(4)]
    wait_for("the healthy volume has all of them", lambda: len(a.manifests()) == 5)
    # The agent itself stays quick: the loop does not touch the volume.
    result = a.curl("/v1/status", timeout=2)
    assert result.returncode == 0, result.stderr
    assert a.counts()["delivered"] == 1
    server.send_signal(signal.SIGCONT)
    a.wait_all()
    by_path = {m["source"]["path"]: p for p, m in a.manifests(a.path("slow.real"))}
    assert len(by_path) == 5
    for unit in units:
        check_bundle(by_path[unit], unit, tools=("tar",))
    a.stop()


@test
def an_agent_that_was_killed_and_waits_for_a_volume_is_named_by_the_next_one():
    need_root()
    a = Agent()
    place = a.path("slow")
    serve_faultfs(a, place)
    a.config["destinations"] = [a.volume("hung", "slow")]
    unit = a.dump(size=65536)
    fault(place, "fsync hold")
    a.start()

    def waits_for_the_volume():
        """Whether a thread is in a call that the file system has begun, which outlives kill -9."""
        with open(os.path.join(place, ".faultfs"), encoding="ascii") as f:
            return set(f.read().split()) & set(os.listdir(f"/proc/{a.pid}/task"))

    wait_for("the agent waits for the volume", waits_for_the_volume)
    os.kill(a.pid, signal.SIGKILL)
    wait_for("its first thread has ended", lambda: a.state_of_process() == "Z")
    result = run(DAEMON, "--config", a.config_file, env=a.whole_environment(), timeout=30)
    assert result.returncode != 0, result
    for words in (f"the agent with pid {a.pid}", "which has ended", "umount -f", place):
        assert words in result.stderr, (words, result.stderr)
    fault(place, "clear")
    a.process.wait(60)
    a.start()
    a.wait_known(1)
    a.wait_all()
    check_bundle(a.only_manifest(place)[0], unit, tools=("tar",))
    a.stop()


@test
def a_volume_that_returns_eio_in_the_middle_is_tried_again():
    need_root()
    a = Agent()
    serve_faultfs(a, a.path("bad"))
    a.config["destinations"][0] = a.volume("bad", "bad")
    fault(a.path("bad"), "write EIO 1000000")
    unit = a.dump(size=8 << 20)
    a.start()
    error = wait_for("the fault is said", lambda: error_of(a, "bad"))
    assert a.path("bad") in error, error
    assert not a.manifests(a.path("bad.real"))
    fault(a.path("bad"), "clear")
    a.wait_all()
    check_bundle(a.only_manifest(a.path("bad.real"))[0], unit, tools=("tar",))
    assert not leftovers(a.path("bad.real"))
    a.stop()


@test
def fsync_that_fails_is_no_delivery():
    need_root()
    a = Agent()
    serve_faultfs(a, a.path("bad"))
    a.config["destinations"][0] = a.volume("bad", "bad")
    fault(a.path("bad"), "fsync EIO 0")
    unit = a.dump()
    a.start()
    wait_for("the fault is said", lambda: error_of(a, "bad"))
    assert not a.manifests(a.path("bad.real"))
    fault(a.path("bad"), "clear")
    a.wait_all()
    check_bundle(a.only_manifest(a.path("bad.real"))[0], unit, tools=("tar",))
    a.stop()


@test
def a_volume_that_gives_back_other_bytes_than_it_was_given_is_found_out():
    need_root()
    a = Agent()
    serve_faultfs(a, a.path("bad"))
    a.config["destinations"][0] = a.volume("bad", "bad")
    fault(a.path("bad"), "read flip 100000")
    unit = a.dump()
    a.start()
    wait_for("the fault is said", lambda: "reads back differently" in a.log)
    assert not a.manifests(a.path("bad.real"))
    fault(a.path("bad"), "clear")
    a.wait_all()
    check_bundle(a.only_manifest(a.path("bad.real"))[0], unit, tools=("tar",))
    a.stop()


@test
def an_object_without_a_manifest_is_no_bundle_and_is_replaced():
    a = Agent()
    unit = a.dump()
    a.start()
    a.wait_known(1)
    a.wait_all()
    path, _ = a.only_manifest()
    a.stop()
    os.unlink(path)
    with open(object_of(path), "wb") as f:
        f.write(b"what a crash left of an earlier plan")
    shutil.rmtree(a.path("state"))
    os.mkdir(a.path("state"))
    a.start()
    a.wait_delivered(1)
    check_bundle(a.only_manifest()[0], unit, tools=("tar",))
    assert not leftovers(a.out)
    a.stop()


@test
def what_an_abandoned_copy_left_is_removed_when_the_volume_is_back():
    a = Agent()
    a.use_directories()
    a.config["destinations"][0]["path"] = a.path("out", "neuron")
    a.incompressible(1000, "first")
    a.start()
    a.wait_delivered(1)
    a.stop()
    a.config["limits"] = {"upload_rate": "64KiB/s"}
    a.incompressible(8 << 20, "large")
    a.start()
    wait_for("a copy has begun", lambda: leftovers(a.out))
    a.kill()
    os.rename(a.path("out", "neuron"), a.path("out", "away"))
    a.start()
    wait_for("the volume is away", lambda: error_of(a, "archive"))
    bundle = next(b["id"] for b in a.bundles() if b["state"] != "delivered")
    assert a.cli("cancel", bundle).returncode == 0
    wait_for("it is cancelled", lambda: a.counts()["cancelled"] == 1)
    assert leftovers(a.out)
    a.stop()  # what is to be removed is known after a start, too
    os.rename(a.path("out", "away"), a.path("out", "neuron"))
    a.start()
    wait_for("nothing is left", lambda: not leftovers(a.out))
    a.stop()


def abandon(a, key):
    """A row that an earlier run has left: the temporary file of this object is to be removed."""
    a.sql("INSERT INTO aborts (destination, key, upload_id, since_usec) "
          f"VALUES ('archive', '{key}', NULL, 1)")


@test
def a_temporary_file_that_cannot_be_removed_keeps_no_other_one():
    a = Agent().start()
    a.stop()
    with open(os.path.join(a.out, "no-directory"), "wb"):
        pass
    os.mkdir(os.path.join(a.out, "incident"))
    left = os.path.join(a.out, "incident", ".b.tar.zst.neuron-collectd-tmp")
    with open(left, "wb"):
        pass
    abandon(a, "no-directory/a.tar.zst")
    abandon(a, "incident/b.tar.zst")
    a.start()
    wait_for("the other one is removed", lambda: not os.path.exists(left))
    os.remove(os.path.join(a.out, "no-directory"))
    wait_for("nothing is to be removed", lambda: a.sql("SELECT count(*) FROM aborts") == "0")
    a.stop()


@test
def a_temporary_file_that_a_delivered_bundle_leaves_is_removed_later():
    need_root()
    a = Agent()
    serve_faultfs(a, a.path("bad"))
    a.config["destinations"][0] = a.volume("bad", "bad")
    fault(a.path("bad"), "unlink EIO 0 .manifest.json")
    a.dump()
    a.start()
    a.wait_delivered(1)
    assert leftovers(a.path("bad.real")), "nothing was left: this test has tested nothing"
    fault(a.path("bad"), "clear")
    wait_for("it is removed", lambda: not leftovers(a.path("bad.real")))
    wait_for("nothing is to be removed", lambda: a.sql("SELECT count(*) FROM aborts") == "0")
    a.stop()


@test
def a_row_that_stays_keeps_no_delivery_back():
    a = Agent().start()
    a.stop()
    abandon(a, "incident/a.tar.zst")
    a.sql("CREATE TRIGGER stays BEFORE DELETE ON aborts BEGIN SELECT RAISE(ABORT, 'it stays'); END")
    a.use_directories()
    a.incompressible(8 << 20)  # of those that a second worker does not copy
    a.start()
    a.wait_delivered(1)
    assert "cannot remove the temporary file" in a.log
    a.stop()


@test
def a_cancel_between_two_tries_leaves_no_object_without_its_manifest():
    need_root()
    a = Agent()
    place = a.path("bad")
    serve_faultfs(a, place)
    a.config["destinations"][0] = a.volume("archive", "bad")
    a.config["retry"] = {"initial": "3s", "maximum": "10m"}
    unit = a.dump()
    fault(place, "link EIO 0 .manifest.json\nrename EIO 0 .manifest.json\n"
                 "rename-flags EIO 0 .manifest.json")
    a.start()
    a.wait_known(1)
    wait_for("a try has ended behind the object", lambda: a.bundles()[0]["state"] == "ready"
             and destination(a, "archive")["state"] == "failing", 30)
    fault(place, "clear")
    assert not a.manifests(place)
    assert a.cli("cancel", a.bundles()[0]["id"]).returncode == 0
    wait_for("it is completed", lambda: a.counts()["delivered"] == 1, 30)
    check_bundle(a.only_manifest(place)[0], unit, tools=("tar",))
    a.stop()


@test
def a_path_that_is_too_long_for_every_bundle_is_no_bundles_fault():
    a = Agent()
    a.config["destinations"][0]["path"] = os.path.join(a.out, "x" * 230 + "-%d-%c")
    a.config["retry"] = {"initial": "20ms", "maximum": "50ms", "quarantine_after": 2}
    a.dump()
    a.dump(cluster_id="1" * 16, pid=77)
    a.start()
    a.wait_known(2)
    wait_for("the destination says so",
             lambda: "shorten" in (destination(a, "archive")["last_error"] or ""))
    time.sleep(1)
    assert a.counts()["quarantined"] == 0 and a.curl("/readyz").returncode != 0
    bundle = a.bundles()[0]["id"]
    assert "failed 0 times" not in a.cli("explain", bundle).stdout
    a.config["destinations"][0] = a.volume("archive", "out")
    a.write_config()
    a.reload()
    a.wait_all()
    a.stop()


@test
def the_same_bytes_under_the_same_name_count_as_delivered():
    a = Agent()
    unit = a.dump()
    a.start()
    a.wait_known(1)
    a.wait_all()
    path, _ = a.only_manifest()
    before = os.stat(object_of(path))
    a.stop()
    shutil.rmtree(a.path("state"))
    os.mkdir(a.path("state"))
    a.start()
    a.wait_known(1)
    a.wait_all()
    check_bundle(a.only_manifest()[0], unit, tools=("tar",))
    after = os.stat(object_of(path))
    assert (after.st_ino, after.st_mtime_ns) == (before.st_ino,
                                                 before.st_mtime_ns), "the object was written again"
    a.stop()


if __name__ == "__main__":
    sys.exit(main(cleanup))
