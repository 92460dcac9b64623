#!/usr/bin/env python3
"""What a source may do to the agent: nothing is lost, nothing is taken that must not be, and it is
said."""
import json
import os
import random
import shutil
import signal
import socket
import sys
import threading
import time

sys.dont_write_bytecode = True  # the source tree may be read-only, and is packed as it is
sys.path.insert(0, os.path.join(os.path.dirname(os.path.realpath(__file__)), "..", "harness"))
# pylint: disable=wrong-import-position
import make_dump
from agent import (INSTANCE, Agent, check_bundle, cleanup, extract, is_instrumented, need,
                   need_root, object_of, process_io, sha256_file, tree, wait_for)
from tap import main, test

NOBODY = 65534
LONG_NAMES = 100000


def reasons_text(m):
    return json.dumps(m["bundle"]["reasons"])


@test
def fifo_socket_device_and_symlink_are_left_out_and_named():
    need_root()
    a = Agent()
    a.config["sources"][0]["max_wait"] = "5s"
    unit = a.dump(size=65536)
    wanted = tree(unit)
    os.mkfifo(os.path.join(unit, "a-fifo"))
    s = socket.socket(socket.AF_UNIX)
    s.bind(os.path.join(unit, "a-socket"))
    os.mknod(os.path.join(unit, "a-device"), 0o20666, os.makedev(1, 5))
    os.symlink("/etc/shadow", os.path.join(unit, "a-symlink"))
    os.symlink("/etc", os.path.join(unit, "a-directory-symlink"))
    a.start()
    a.wait_known(1)
    a.wait_all()
    s.close()
    path, m = a.only_manifest()
    check_bundle(path, wanted)
    text = reasons_text(m)
    assert "symlink" in text and not m["bundle"]["complete"], text
    # What holds no bytes is no loss, but it is reported and counted.
    metrics = a.curl("/metrics").stdout
    assert 'neuron_collectd_bundle_discards_total{reason="special-file"} 3' in metrics, [
        x for x in metrics.splitlines() if "discards" in x]
    assert "special" in a.log and ("a-fifo" in a.log or "a-socket" in a.log or "a-device" in a.log)
    a.stop()


@test
def whatever_is_left_out_is_a_reason_in_manifest_show_and_explain():
    need_root()
    a = Agent()
    a.config["sources"][0].update(max_bytes="1MiB", settle="1s")
    unit = a.dump(size=65536, owner=(NOBODY, NOBODY))
    for name, size in (("outside", 9), (os.path.join(unit, "large"), 2 << 20)):
        with open(a.path(name), "wb") as f:
            f.truncate(size)
    os.mkfifo(os.path.join(unit, "fifo"))
    os.symlink("/etc/shadow", os.path.join(unit, "link"))
    os.link(a.path("outside"), os.path.join(unit, "stranger"))
    os.makedirs(os.path.join(unit, ".neuron-collectd", "x"))
    os.makedirs(os.path.join(unit, *["d"] * 70))
    expected = ("fifo", "large", "link", "stranger", ".neuron-collectd", "d/d/d")
    words = ("special-file", "too-big", "symlink", "hard-link", "reserved-name", "too-deep")
    a.start()
    a.wait_known(1)
    a.wait_all()
    _, m = a.only_manifest()
    reasons = m["bundle"]["reasons"]
    for word, example in zip(words, expected):
        assert [r for r in reasons if r.startswith(word + ": 1 ") and example in r], (word, reasons)
    assert len(reasons) == len(words) and not m["bundle"]["complete"], reasons
    for command in ("show", "explain"):
        text = a.cli(command, m["bundle"]["id"]).stdout
        assert all(r in text for r in reasons), (command, text)
    a.stop()


@test
def what_holds_no_bytes_is_a_reason_but_no_loss():
    a = Agent()
    unit = a.dump(size=65536)
    os.mkfifo(os.path.join(unit, "fifo"))
    a.start()
    a.wait_known(1)
    a.wait_all()
    _, m = a.only_manifest()
    assert m["bundle"]["complete"] and m["bundle"]["reasons"] == [
        "special-file: 1 left out, such as 'fifo'"], m["bundle"]
    text = a.cli("show", m["bundle"]["id"]).stdout
    assert "yes, but for" in text and "fifo" in text, text
    a.stop()


@test
def what_was_left_out_of_a_dump_that_is_removed_while_it_settles_is_still_a_reason():
    a = Agent()
    a.config["sources"][0]["settle"] = "4s"
    unit = a.dump(size=65536)
    os.symlink("/etc/shadow", os.path.join(unit, "link"))
    a.start()
    a.wait_known(1)
    wait_for("links hold it", lambda: any(
        b["links_held"] for b in a.ask("list")))
    shutil.rmtree(unit)
    a.wait_all()
    _, m = a.only_manifest()
    assert "symlink: 1 left out" in reasons_text(m) and not m["bundle"]["complete"], m["bundle"]
    a.stop()


@test
def a_dump_of_which_nothing_can_be_collected_is_reported():
    a = Agent()
    a.config["sources"] = [a.source("cores", "process-core", "cores", max_bytes="1MiB")]
    os.makedirs(a.path("cores"))
    with open(a.path("cores", "core.1"), "wb") as f:
        f.truncate(2 << 20)
    a.start()
    wait_for("it is counted", lambda: 'discards_total{reason="too-big"} 1' in a.curl(
        "/metrics").stdout)
    assert "core.1" in a.log and "max_bytes" in a.log, a.log
    a.stop()


@test
def a_hard_link_to_another_users_file_is_refused():
    need_root()
    a = Agent()
    a.config["sources"][0]["max_wait"] = "5s"
    secret = a.path("secret")
    with open(secret, "w", encoding="ascii") as f:
        f.write("root:$6$secret\n")
    os.chmod(secret, 0o600)
    unit = a.dump(size=65536, owner=(NOBODY, NOBODY))
    wanted = tree(unit)
    os.link(secret, os.path.join(unit, f"{INSTANCE}-nd0-nc9-pid-39738-tid-1-lid-1"))
    a.start()
    a.wait_known(1)
    a.wait_all()
    path, m = a.only_manifest()
    check_bundle(path, wanted, tools=("tar",))
    assert "hard-link" in reasons_text(m), reasons_text(m)
    a.stop()


@test
def a_symlinked_unit_is_not_followed():
    a = Agent()
    os.makedirs(a.path("dumps"))
    os.makedirs(a.path("elsewhere"))
    with open(a.path("elsewhere", "secret"), "w", encoding="ascii") as f:
        f.write("not for the archive")
    os.symlink(a.path("elsewhere"), a.path("dumps", "dt-20260101-000000-cid-00000000000000ee"))
    a.start()
    unit = a.dump(size=65536)
    a.wait_delivered(1)
    path, _ = a.only_manifest()
    check_bundle(path, unit, tools=("tar",))
    a.stop()


@test
def an_unreadable_file_is_named_and_the_rest_is_delivered():
    need_root()
    need("setpriv")
    a = Agent(owner=NOBODY)
    a.prefix = ["setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups",
                "--inh-caps=-all", "--bounding-set=-all"]
    a.config["sources"][0]["max_wait"] = "3s"
    os.chown(a.dir, NOBODY, NOBODY)
    unit = a.dump(size=65536)
    wanted = tree(unit)
    locked = os.path.join(unit, f"{INSTANCE}-nd0-nc9-pid-39738-tid-1-lid-1")
    with open(locked, "w", encoding="ascii") as f:
        f.write("mine alone")
    os.chmod(locked, 0o600)
    a.start()
    a.wait_known(1)
    a.wait_all()
    path, m = a.only_manifest()
    check_bundle(path, wanted, tools=("tar",))
    assert "unreadable" in reasons_text(m) and "nc9" in reasons_text(m), reasons_text(m)
    assert not m["bundle"]["complete"]
    a.stop()


@test
def rm_rf_of_the_source_during_delivery_loses_nothing():
    a = Agent()
    a.send_slowly()
    unit = a.dump(size=12 << 20)
    wanted = tree(unit)
    a.start()
    wait_for("it is being shipped", lambda: a.counts()["shipping"])
    shutil.rmtree(a.path("dumps"))
    a.wait_all()
    path, m = a.only_manifest()
    check_bundle(path, wanted, tools=("tar",))
    assert m["bundle"]["complete"], m["bundle"]["reasons"]
    wait_for("the pins are gone", lambda: not [f for f in tree(a.dir)
                                               if b"/.neuron-collectd/" in b"/" + f])
    a.stop()


@test
def rm_rf_while_it_settles_loses_nothing_that_was_pinned():
    a = Agent()
    a.config["sources"][0]["settle"] = "3s"
    a.start()
    unit = a.dump()
    wanted = tree(unit)
    wait_for("all files are pinned", lambda: all(os.stat(os.path.join(unit, n)).st_nlink == 2
                                                 for n in os.listdir(unit)))
    shutil.rmtree(unit)
    a.wait_all()
    check_bundle(a.only_manifest()[0], wanted, tools=("tar",))
    a.assert_sum()
    a.stop()


@test
def a_file_that_changes_while_it_is_read_is_delivered_as_one_moment_had_it():
    a = Agent()
    a.send_slowly()
    unit = a.dump(size=16 << 20)
    victim = os.path.join(unit, sorted(os.listdir(unit))[-3])
    a.start()
    wait_for("it is being shipped", lambda: a.counts()["shipping"])
    with open(victim, "r+b") as f:
        f.write(b"CHANGED" * 1000)
        f.seek(0, os.SEEK_END)
        f.write(b"GROWN" * 1000)
    a.wait_all()
    path, _ = a.only_manifest()
    check_bundle(path, unit, tools=("tar",))
    a.stop()


@test
def a_file_that_never_stops_changing_goes_out_marked_after_max_wait():
    a = Agent()
    a.config["sources"][0]["max_wait"] = "2s"
    unit = a.dump(size=65536)
    growing = os.path.join(unit, f"{INSTANCE}-nrt-pid-1.log")
    stop = threading.Event()

    def grow():
        with open(growing, "wb") as f:
            while not stop.is_set():
                f.write(b"another line\n" * 10)
                f.flush()
                time.sleep(0.01)

    writer = threading.Thread(target=grow)
    writer.start()
    try:
        a.start()
        wait_for("it is delivered although somebody writes", lambda: a.counts()["delivered"], 40)
        found = [m for _, m in a.manifests() if m["bundle"]["supplement_of"] is None]
        assert len(found) == 1 and not found[0]["bundle"]["complete"] and found[0]["bundle"][
            "reasons"], found
    finally:
        stop.set()
        writer.join()
    path = next(p for p, m in a.manifests() if m["bundle"]["supplement_of"] is None)
    a.cli("verify", object_of(path))
    extract(object_of(path), "tar")
    # What was written afterwards comes as a supplement, with the complete file.
    def last_is_whole():
        for p, m in a.manifests():
            for e in m["members"]:
                if e["path"] == os.path.basename(growing) and e["bytes"] == os.path.getsize(
                        growing) and e["sha256"] == sha256_file(growing):
                    return p
        return None
    wait_for("the end of the file arrives too", last_is_whole, 40)
    a.assert_sum()
    a.stop()


@test
def a_file_deleted_while_it_is_read_is_delivered_from_the_pin():
    a = Agent()
    a.send_slowly()
    unit = a.dump(size=12 << 20)
    wanted = tree(unit)
    a.start()
    wait_for("it is being shipped", lambda: a.counts()["shipping"])
    os.unlink(os.path.join(unit, sorted(os.listdir(unit))[0]))
    os.unlink(os.path.join(unit, sorted(os.listdir(unit))[-1]))
    a.wait_all()
    check_bundle(a.only_manifest()[0], wanted, tools=("tar",))
    a.stop()


@test
def a_truncated_file_while_it_is_read_does_not_stop_the_agent():
    a = Agent()
    a.send_slowly()
    unit = a.dump(size=12 << 20)
    a.start()
    wait_for("it is being shipped", lambda: a.counts()["shipping"])
    os.truncate(os.path.join(unit, sorted(os.listdir(unit))[-3]), 1000)
    a.wait_all()
    check_bundle(a.only_manifest()[0], unit, tools=("tar",))
    a.stop()


@test
def a_squatter_in_the_place_of_the_pins_is_refused_and_reported():
    need_root()
    a = Agent()
    os.makedirs(a.path("elsewhere"))
    os.symlink(a.path("elsewhere"), a.path(".neuron-collectd"))
    unit = a.dump(size=65536)
    a.start()
    a.wait_known(1)
    a.wait_all()
    check_bundle(a.only_manifest()[0], unit, tools=("tar",))
    assert os.listdir(a.path("elsewhere")) == [], "the squatter's symlink was followed"
    a.stop()


@test
def too_many_files_are_bounded_and_the_bundle_lists_them():
    a = Agent()
    a.config["sources"][0] |= {"max_files": 20, "max_wait": "3s"}
    unit = a.dump(size=65536)
    for i in range(50):
        with open(os.path.join(unit, f"extra-{i:02d}"), "w", encoding="ascii") as f:
            f.write(str(i))
    a.start()
    a.wait_known(1)
    a.wait_all()
    _, m = a.only_manifest()
    assert len(m["members"]) == 20 and not m["bundle"]["complete"] and m["bundle"]["reasons"], (
        len(m["members"]), m["bundle"]["reasons"])
    a.stop()


@test
def a_directory_of_long_names_without_number_needs_little_memory():
    a = Agent()
    a.config["sources"] = [a.source("jobs", "directory", "jobs/job-%p", max_files=100,
                                    max_wait="3s")]
    unit = a.path("jobs", "job-1")
    os.makedirs(unit)
    fd = os.open(unit, os.O_RDONLY)
    for i in range(LONG_NAMES):
        os.mknod(f"{i:06d}" + "x" * 249, 0o644, dir_fd=fd)
    os.close(fd)
    a.start()
    a.wait_known(1, 60)
    a.wait_all("120s")
    _, m = a.only_manifest()
    assert [e["path"][:6] for e in m["members"]] == [f"{i:06d}" for i in range(100)]
    assert f"too-many-files: {LONG_NAMES - 100} left out" in reasons_text(m), reasons_text(m)
    with open(f"/proc/{a.pid}/status", encoding="ascii") as f:
        peak = next(int(line.split()[1]) for line in f if line.startswith("VmHWM"))
    assert peak < 50 * 1024 or is_instrumented(), f"{peak} KiB"
    # a stop leaves a worker behind that is still listing the directory after 2 s, and its memory
    wait_for("nothing runs any more", lambda: a.status()["idle"], 60)
    a.stop()


@test
def a_hundred_units_with_all_kinds_of_rubbish_do_not_stop_the_agent():
    rng = random.Random(99)
    a = Agent()
    a.config["sources"][0]["max_wait"] = "3s"
    os.makedirs(a.path("dumps"))
    a.start()
    for i in range(100):
        unit = a.path("coming")  # each comes whole, or there would be supplements
        os.makedirs(unit)
        for j in range(rng.randrange(4)):
            name = bytes(rng.choice(b"abc\n\\\xff %\"'-.i0123")
                         for _ in range(rng.randrange(1, 40)))
            if name in (b".", b".."):
                continue
            place = os.path.join(os.fsencode(unit), name)
            if rng.random() < 0.2:
                os.makedirs(place, exist_ok=True)
            elif not os.path.isdir(place):
                with open(place, "wb") as f:
                    f.write(rng.randbytes(rng.randrange(3000)))
        os.rename(unit, a.path("dumps", f"dt-20260527-0512{i % 60:02d}-cid-{i:016x}"))
    want = sum(1 for d in os.listdir(a.path("dumps")) if tree(a.path("dumps", d)))
    wait_for(f"{want} are delivered", lambda: a.counts()["delivered"] == want, 60)
    delivered = {m["source"]["path"]: p for p, m in a.manifests()}
    for path, manifest in list(delivered.items())[::10]:
        check_bundle(manifest, path, tools=("tar",))
    a.stop()


@test
def each_source_byte_is_read_once():
    need_root()
    a = Agent()
    a.start()
    before = process_io(a.pid)["rchar"]
    unit = a.dump(size=64 << 20)
    a.wait_known(1)
    a.wait_all()
    delivered = os.path.getsize(object_of(a.only_manifest()[0]))
    size = sum(n for n, _ in tree(unit).values())
    read = process_io(a.pid)["rchar"] - before
    # The source once, the copy once (the read-back), and something for directories, the database
    # and manifests.
    assert size <= read <= size + delivered + (4 << 20), (size, delivered, read)
    a.stop()


@test
def a_producer_that_is_stopped_holds_its_file_open_and_is_waited_for():
    need_root()
    a = Agent()
    a.config["sources"][0]["max_wait"] = "60s"
    unit = a.dump(size=65536)
    held = os.path.join(unit, f"{INSTANCE}-nd3-nc0-pid-39738-tid-1-lid-1")
    pid = os.fork()
    if pid == 0:
        f = os.open(held, os.O_WRONLY | os.O_CREAT, 0o644)
        os.write(f, b"first half ")
        os.kill(os.getpid(), signal.SIGSTOP)
        os.write(f, b"second half")
        os._exit(0)
    try:
        os.waitpid(pid, os.WUNTRACED)
        a.start()
        a.wait_known(1)
        # Quiet for far longer than settle (300 ms), but the writer is there: nothing may go out.
        deadline = time.monotonic() + 2
        while time.monotonic() < deadline:
            assert not a.manifests(), "delivered while its writer held the file open"
            time.sleep(0.1)
        assert "writ" in a.cli("explain", a.bundles()[0]["id"]).stdout, a.cli("explain", a.bundles(
            )[0]["id"]).stdout
    finally:
        os.kill(pid, signal.SIGCONT)
        os.waitpid(pid, 0)
    a.wait_all()
    path, _ = a.only_manifest()
    check_bundle(path, unit, tools=("tar",))
    a.stop()


@test
def pins_and_objects_belong_to_the_agent_alone():
    a = Agent()
    a.config["sources"][0]["settle"] = "30s"
    a.start()
    make_dump.make_dump(a.path("dumps"), size=65536)
    pins = a.path(".neuron-collectd")
    wait_for("pins exist", lambda: os.path.isdir(os.path.join(pins, INSTANCE)) and tree(pins))
    assert os.stat(os.path.join(pins, INSTANCE)).st_mode & 0o777 == 0o700
    result = a.cli("flush")
    assert result.returncode == 0, result.stderr
    a.wait_all()
    a.stop()


if __name__ == "__main__":
    sys.exit(main(cleanup))
