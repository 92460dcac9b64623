#!/usr/bin/env python3
"""What happens to sources after delivery, and when their file system has no room left: what may go
goes in order, and nothing else."""
import os
import shutil
import signal
import sys
import threading
import time

sys.dont_write_bytecode = True  # the source tree may be read-only, and is packed as it is
sys.path.insert(0, os.path.join(os.path.dirname(os.path.realpath(__file__)), "..", "harness"))
# pylint: disable=wrong-import-position
import agent
from agent import (DAEMON, INSTANCE, Agent, check_bundle, cleanup, family, need, need_root, run,
                   tree, wait_for)
from tap import Skip, main, test

MIB = 1 << 20
_mounted = []


def mount(*arguments):
    need_root()
    result = run("mount", *arguments)
    if result.returncode != 0:
        raise Skip(f"cannot mount here: {result.stderr.strip()}")
    _mounted.append(arguments[-1])


def clean(failed=False):
    for a in agent._live:  # pylint: disable=protected-access
        # it goes first, or it keeps the mounts busy
        if a.process is not None and a.process.poll() is None and _mounted:
            a.process.send_signal(signal.SIGKILL)
            a.process.wait()
    for place in reversed(_mounted):
        run("umount", "-l", place)
    _mounted.clear()
    cleanup(failed)


class Retention:
    """An agent with one source of plain directories, `work/jobs/job-N`, and what it may do."""

    def __init__(self, size=None, **retention):
        self.a = a = Agent()
        os.makedirs(a.path("work"))
        if size:
            mount("-t", "tmpfs", "-o", size, "tmpfs", a.path("work"))
        os.makedirs(a.path("work", "jobs"))
        a.config["sources"] = [a.source("jobs", "directory", "work/jobs/job-%p")]
        a.config["retention"] = {"max_use": "0", "keep_free": "0",
                                 "keep_free_undelivered": "0"} | retention

    def unit(self, n, *, size=4096, files=2, uid=None):
        """What is new appears complete and its owner's, by a rename: an agent that sees half of it
        has another idea of what it is."""
        final = self.path(n)
        path = final if os.path.exists(final) else self.a.path("work", f"coming-{n}")
        os.makedirs(os.path.join(path, "sub"), exist_ok=True)
        for i in range(files):
            name = os.path.join(path, "sub" if i % 2 else ".", f"file-{i}")
            with open(name, "wb") as f:
                f.write(os.urandom(size // files))
        if uid is not None:
            for base, _, names in os.walk(path):
                for name in ("", *names):
                    os.chown(os.path.join(base, name), uid, uid)
        if path != final:
            os.rename(path, final)
        return final

    def path(self, n):
        return self.a.path("work", "jobs", f"job-{n}")

    def pins(self):
        place = self.a.path("work", ".neuron-collectd", INSTANCE)
        return sorted(n for n in os.listdir(place)
                      if n[0] != ".") if os.path.isdir(place) else []

    def deliver(self, *numbers, **options):
        """One after the other, so that their order is known."""
        for n in numbers:
            before = self.a.counts()["delivered"]
            self.unit(n, **options)
            self.a.wait_delivered(before + 1)

    def bundle_of(self, n):
        found = [b for b in self.a.bundles("?limit=1000") if b["path"] == self.path(n)]
        assert len(found) == 1, found
        return found[0]

    def wait_gone(self, n):
        wait_for(f"job-{n} is deleted", lambda: not os.path.exists(self.path(n)), 40)

    def looks(self, n=2):
        """Waits until retention has looked: a unit that is new makes it look at once, and what it
        decides then is decided."""
        for i in range(n):
            self.deliver(9000 + len(os.listdir(self.a.path("work", "jobs"))) + i)


def n_files(directory):
    """Also while they are being deleted."""
    return sum(len(names) for _, _, names in os.walk(directory))


def stop_destination(a):
    """Nothing can be delivered from now on."""
    shutil.rmtree(a.out)
    with open(a.out, "wb"):
        pass


def restore_destination(a):
    os.unlink(a.out)
    os.makedirs(a.out)


def counter(a, name):
    return int(a.sql(f"select value from counters where name = '{name}'") or 0)


@test
def with_keep_nothing_is_ever_deleted():
    r = Retention(keep_for="0s", max_use="1", keep_free="100%")
    a = r.a.start()
    r.deliver(1, 2, 3)
    before = [tree(r.path(n)) for n in (1, 2, 3)]
    wait_for("the links are let go", lambda: not r.pins())
    r.looks()
    a.stop()
    a.start()
    r.looks()
    assert [tree(r.path(n)) for n in (1, 2, 3)] == before
    assert counter(a, "sources_deleted") == 0
    a.stop()


@test
def with_delete_a_source_goes_when_keep_for_is_over_and_not_before():
    r = Retention(after_delivery="delete", keep_for="6s")
    a = r.a.start()
    begun = time.monotonic()
    r.deliver(1, files=3)
    os.makedirs(r.path(1) + "-of-the-user")
    for n in (2, 3):  # each makes it look, while keep_for of the first is running
        is_there = os.path.exists(r.path(1))
        assert is_there or time.monotonic() - begun > 6, "deleted before keep_for was over"
        r.unit(n)
    assert a.bundles()[0]["links_held"]
    r.wait_gone(1)
    wait_for("the others go as well", lambda: not [n for n in (2, 3) if os.path.exists(r.path(n))],
             40)
    wait_for("the links are let go", lambda: not r.pins())
    wait_for("the rows say so", lambda: not [b for b in a.bundles() if b["links_held"]])
    assert os.path.isdir(a.path("work", "jobs")), "the fixed part was deleted"
    assert os.path.isdir(r.path(1) + "-of-the-user")
    assert counter(a, "sources_deleted") == 3 + 2 + 2
    assert a.assert_sum()["delivered"] == 3
    assert len(a.manifests()) == 3, "a deletion made a supplement"
    a.stop()


@test
def every_kind_of_source_is_deleted():
    a = Agent()
    a.use_all_kinds()
    a.config["retention"] = {"after_delivery": "delete", "keep_for": "1s", "max_use": "0",
                             "keep_free": "0"}
    a.start()
    dump, core, profile = a.dump(size=65536), a.core(), a.profile()
    a.wait_delivered(3)
    wait_for("all are deleted", lambda: not [p for p in (dump, core) if os.path.exists(p)], 40)
    wait_for("the profile too", lambda: n_files(a.path("profiles")) == 0, 40)
    assert os.path.isdir(a.path("cores")) and os.path.isdir(a.path("dumps")), profile
    a.stop()


@test
def what_changed_or_came_after_delivery_is_not_deleted_but_goes_out():
    r = Retention(after_delivery="delete", keep_for="8s")
    a = r.a.start()
    r.deliver(1, files=4)
    with open(os.path.join(r.path(1), "file-0"), "ab") as f:
        f.write(b"and more")
    with open(os.path.join(r.path(1), "of-the-user"), "wb") as f:
        f.write(b"new")
    changed = tree(r.path(1))
    wait_for("what did not change is deleted",
             lambda: not any(os.path.exists(os.path.join(r.path(1), name))
                             for name in ("file-2", "sub")), 40)
    wanted = {(name, changed[name.encode()][0]) for name in ("file-0", "of-the-user")}
    wait_for("the rest goes out, in one bundle or two",
             lambda: wanted <= {(e["path"], e["bytes"]) for _, m in a.manifests()
                                for e in m["members"]})
    wait_for("and then it is deleted, too", lambda: not os.path.exists(r.path(1)), 60)
    a.stop()


@test
def what_was_written_right_before_it_was_removed_goes_out_before_its_last_link_does():
    r = Retention(after_delivery="delete", keep_for="8s")
    a = r.a.start()
    r.deliver(1, 2, files=4)
    bundles = [r.bundle_of(n)["id"] for n in (1, 2)]
    a.process.send_signal(signal.SIGSTOP)  # so that it sees nothing of it but what its links hold
    for n in (1, 2):
        with open(os.path.join(r.path(n), "file-0"), "ab") as f:
            f.write(b"x" * (1000 + n))
        shutil.rmtree(r.path(n))
    a.process.send_signal(signal.SIGCONT)
    a.wait_delivered(4)
    sizes = sorted(e["bytes"] for _, m in a.manifests() for e in m["members"]
                   if e["path"] == "file-0")
    assert sizes[-2:] == [1024 + 1001, 1024 + 1002], sizes
    a.stop()
    a.start()  # else the rest of it is let go of in a minute
    wait_for("then the links go", lambda: not r.pins(), 60)
    assert not any(a.api(f"/v1/bundles/{b}")["links_held"] for b in bundles)
    a.stop()


@test
def a_pin_protects_files_whichever_source_saw_them():
    r = Retention(after_delivery="delete", keep_for="3s")
    a = r.a
    os.makedirs(a.path("second"))
    mount("--bind", a.path("work", "jobs"), a.path("second"))
    a.config["sources"].append(a.source("again", "directory", "second/job-%p"))
    a.start()
    r.unit(1)
    a.wait_delivered(2)  # the same directory by two paths: --check compares only their text
    before = tree(r.path(1))
    for bundle in a.bundles():
        if bundle["source"] == "jobs":
            assert a.cli("pin", bundle["id"]).returncode == 0
    r.unit(2)
    a.wait_delivered(4)
    r.wait_gone(2)  # what is not pinned is deleted
    r.looks()
    assert tree(r.path(1)) == before
    a.stop()


@test
def a_source_that_is_not_mounted_when_keep_for_ends_is_deleted_when_it_is_again():
    r = Retention(after_delivery="delete", keep_for="8s")
    a = r.a.start()
    r.deliver(1)
    bundle = r.bundle_of(1)["id"]
    os.rename(a.path("work"), a.path("elsewhere"))
    os.mkdir(a.path("work"))
    wait_for("it is said", lambda: "their file system is not mounted" in a.log, 40)
    assert a.api(f"/v1/bundles/{bundle}")["links_held"]
    a.stop()
    os.rmdir(a.path("work"))
    os.rename(a.path("elsewhere"), a.path("work"))
    assert os.path.exists(r.path(1))
    a.start()
    r.wait_gone(1)
    wait_for("its row says so", lambda: not a.api(f"/v1/bundles/{bundle}")["links_held"])
    a.stop()


@test
def a_name_that_was_used_again_is_not_deleted_nor_what_lies_behind_a_symlink():
    r = Retention(after_delivery="delete", keep_for="6s")
    a = r.a.start()
    r.deliver(1)
    bundle = r.bundle_of(1)["id"]
    stop_destination(a)  # so that what is new is not delivered, and deleted for that
    os.unlink(os.path.join(r.path(1), "file-0"))
    with open(os.path.join(r.path(1), "file-0"), "wb") as f:
        f.write(b"another file")
    outside = a.path("outside")
    os.rename(os.path.join(r.path(1), "sub"), outside)
    os.symlink(outside, os.path.join(r.path(1), "sub"))
    before = tree(r.path(1)), tree(outside)
    assert before[0] and before[1]
    wait_for("the bundle is through", lambda: bundle not in r.pins(), 40)
    wait_for("its row says so", lambda: not a.api(f"/v1/bundles/{bundle}")["links_held"])
    assert (tree(r.path(1)), tree(outside)) == before
    assert os.path.islink(os.path.join(r.path(1), "sub"))
    assert counter(a, "sources_deleted") == 0
    a.stop()


@test
def what_is_open_for_writing_is_left_until_it_is_closed():
    need_root()
    r = Retention(after_delivery="delete", keep_for="4s")
    a = r.a.start()
    r.deliver(1)
    with open(os.path.join(r.path(1), "file-0"), "ab"):
        wait_for("the other one is deleted",
                 lambda: not os.path.exists(os.path.join(r.path(1), "sub")), 40)
        wait_for("it is said", lambda: "open for writing, trying again" in a.log)
        assert os.path.exists(os.path.join(r.path(1), "file-0"))
        assert len(r.pins()) == 1
    a.stop()
    a.start()  # else it is tried again in a minute
    r.wait_gone(1)
    a.stop()


@test
def max_use_shortens_keep_for_oldest_first():
    r = Retention(after_delivery="delete", keep_for="1h", max_use="5MiB")
    a = r.a.start()
    r.deliver(1, 2, size=2 * MIB)
    assert os.path.exists(r.path(1)) and os.path.exists(r.path(2))
    r.deliver(3, size=2 * MIB)
    r.wait_gone(1)
    wait_for("two are held", lambda: len(r.pins()) == 2)
    assert os.path.exists(r.path(2)) and os.path.exists(r.path(3))
    assert "max_use was exceeded" in a.log
    a.stop()


@test
def keep_free_makes_room_by_deleting_the_oldest_delivered():
    r = Retention(size="size=32m", after_delivery="delete", keep_for="1h", keep_free="12MiB")
    a = r.a.start()
    r.deliver(1, 2, size=8 * MIB)
    assert os.path.exists(r.path(1))
    r.deliver(3, size=8 * MIB)  # 8 MiB are left
    r.wait_gone(1)
    r.looks()
    assert os.path.exists(r.path(2)) and os.path.exists(r.path(3))
    assert "keep_free was violated" in a.log
    a.stop()


@test
def keep_free_counts_inodes_too():
    r = Retention(size="size=64m,nr_inodes=400", after_delivery="delete", keep_for="1h",
                  keep_free="50%")
    a = r.a.start()
    r.deliver(1, files=40)
    assert os.path.exists(r.path(1))
    r.deliver(2, files=40)
    r.deliver(3, files=40)  # with their links they take more than half of all
    r.wait_gone(1)
    wait_for("there is room", lambda: os.statvfs(a.path("work")).f_ffree >= 200, 40)
    assert os.path.exists(r.path(3))
    a.stop()


@test
def what_only_our_links_hold_is_released_under_pressure_and_only_then():
    r = Retention(size="size=32m", keep_free_undelivered="4MiB")
    a = r.a
    stop_destination(a)
    a.start()
    r.unit(1, size=8 * MIB)
    a.wait_known(1)
    wait_for("it is ready", lambda: a.counts()["ready"] == 1)
    r.unit(2, size=8 * MIB)
    wait_for("both are ready", lambda: a.counts()["ready"] == 2)
    first, second = r.bundle_of(1)["id"], r.bundle_of(2)["id"]
    shutil.rmtree(r.path(1))
    r.unit(3)
    wait_for("three are ready", lambda: a.counts()["ready"] == 3)
    wait_for("it was looked at again", lambda: a.log.count("found '") == 3)
    assert first in r.pins() and a.counts()["evicted"] == 0, "released without pressure"
    with open(a.path("work", "of-the-job"), "wb") as f:
        f.write(bytes(13 * MIB))  # 3 MiB are left
    wait_for("it is released", lambda: a.counts()["evicted"] == 1, 40)
    wait_for("its links are gone", lambda: first not in r.pins())
    gone = r.bundle_of(1)
    assert gone["state"] == "evicted" and gone["reason"].startswith("deleted_by_user"), gone
    assert "deleted_by_user" in a.cli("show", first).stdout
    assert first in a.cli("list", "--state", "evicted").stdout
    assert second in r.pins() and os.path.exists(r.path(2)), "keep let an undelivered source go"
    assert 'bundle_discards_total{reason="deleted_by_user"} 1' in a.curl("/metrics").stdout
    assert "keep_free_undelivered requires 4.0 MiB" in gone["reason"], gone
    assert "discarded undelivered" in a.cli("explain", first).stdout
    for command in (("status",), ("drain", "--timeout", "1s")):
        said = a.cli(*command).stdout
        assert "discarded undelivered" in said and "list --state evicted" in said, said
    assert a.cli("resume").returncode == 0
    a.assert_sum()
    os.unlink(a.path("work", "of-the-job"))
    restore_destination(a)
    a.wait_delivered(2)
    a.stop()


def wait_ready(a, n):
    wait_for(f"{n} are ready", lambda: a.counts()["ready"] == n, 40)


def sleeps_between_questions():
    """Whether a child of this test's is `neuron-collect wait`, which has asked at least once."""
    for pid in family(os.getpid()):
        try:
            with open(f"/proc/{pid}/cmdline", "rb") as f:
                if b"\0wait\0--all\0" not in f.read():
                    continue
            with open(f"/proc/{pid}/wchan", encoding="ascii") as f:
                if "nanosleep" in f.read():
                    return True
        except OSError:
            pass
    return False


@test
def once_that_a_running_agent_serves_fails_by_what_is_discarded_meanwhile():
    r = Retention(size="size=32m", keep_free_undelivered="4MiB")
    a = r.a
    stop_destination(a)
    a.start()
    for n in (1, 2):
        r.unit(n, size=8 * MIB)
        wait_ready(a, n)
    gone = r.bundle_of(1)["id"]
    shutil.rmtree(r.path(1))
    results = []
    thread = threading.Thread(target=lambda: results.append(a.once("--timeout", "60s")))
    thread.start()
    wait_for("it has counted, and waits", sleeps_between_questions)
    with open(a.path("work", "of-the-job"), "wb") as f:
        f.write(bytes(13 * MIB))
    wait_for("one is discarded", lambda: a.counts()["evicted"] == 1, 40)
    os.unlink(a.path("work", "of-the-job"))
    restore_destination(a)
    thread.join()
    assert results[0].returncode == 1, results
    assert f"{gone} evicted: deleted_by_user" in results[0].stdout, results
    assert a.once("--timeout", "60s").returncode == 0, "an earlier one is not this run's"
    a.stop()


@test
def below_keep_free_undelivered_evidence_is_kept_at_the_defaults():
    r = Retention(size="size=64m")
    a = r.a
    del a.config["retention"]
    stop_destination(a)
    a.start()
    r.unit(1, size=8 * MIB)
    wait_ready(a, 1)
    bundle = r.bundle_of(1)["id"]
    said = a.cli("explain", bundle).stdout
    assert "loses nothing" not in said and "while 3 % of that file system are free" in said, said
    wanted = tree(r.path(1))
    shutil.rmtree(r.path(1))
    with open(a.path("work", "of-the-job"), "wb") as f:
        f.write(bytes(50 * MIB))  # 10 % are free
    rounds = a.log.count("short of free space")
    r.unit(2)
    wait_ready(a, 2)
    wait_for("it is known to be short", lambda: a.log.count("short of free space") > rounds, 40)
    time.sleep(12)  # nothing is to happen, in more than a round of retention
    assert a.counts()["evicted"] == 0 and bundle in r.pins(), a.log
    restore_destination(a)
    a.wait_delivered(2)
    path, = (p for p, m in a.manifests() if m["source"]["path"] == r.path(1))
    check_bundle(path, wanted, tools=("tar",))
    a.stop()


@test
def links_give_way_of_the_owner_whose_links_take_most_and_not_of_who_fills_the_disk():
    r = Retention(size="size=64m", keep_free_undelivered="20MiB")
    a = r.a
    stop_destination(a)
    a.start()
    for n, (uid, size) in enumerate(((1001, 2), (1002, 6), (1002, 6)), 1):
        r.unit(n, size=size * MIB, uid=uid)
        wait_ready(a, n)
    ids = [r.bundle_of(n)["id"] for n in (1, 2, 3)]
    for n in (1, 2, 3):
        shutil.rmtree(r.path(n))
    with open(a.path("work", "of-the-job"), "wb") as f:
        f.write(bytes(33 * MIB))  # 17 MiB are free
    os.chown(a.path("work", "of-the-job"), 1001, 1001)
    wait_for("one is released", lambda: a.counts()["evicted"] == 1, 40)
    wait_for("its links are gone", lambda: len(r.pins()) == 2)
    assert r.pins() == sorted((ids[0], ids[2])), (ids, r.pins())
    a.stop()
    result = a.once("--timeout", "2s")  # and what this run discards it says
    assert result.returncode == 1 and "discarded undelivered" not in result.stdout, result
    with open(a.path("work", "of-the-job"), "ab") as f:
        f.write(bytes(8 * MIB))
    result = a.once("--timeout", "15s")
    assert result.returncode == 1, result
    assert f"{ids[2]} discarded undelivered: deleted_by_user" in result.stdout, result
    assert result.stdout.count("discarded undelivered") == 1, result
    restore_destination(a)
    a.start()
    a.wait_delivered(1)
    a.stop()


@test
def evict_undelivered_lets_the_oldest_go_with_a_tombstone_but_not_what_is_pinned():
    r = Retention(size="size=32m", after_delivery="delete", evict_undelivered="oldest",
                  keep_free="4MiB")
    a = r.a
    stop_destination(a)
    a.start()
    for n in (1, 2, 3):
        r.unit(n, size=6 * MIB)
        wait_for(f"{n} are ready", lambda n=n: a.counts()["ready"] == n)
    ids = [r.bundle_of(n)["id"] for n in (1, 2, 3)]
    assert a.cli("pin", ids[0]).returncode == 0
    with open(a.path("work", "of-the-job"), "wb") as f:
        f.write(bytes(12 * MIB))  # 2 MiB are left
    wait_for("one is evicted", lambda: a.counts()["evicted"] == 1, 40)
    r.wait_gone(2)
    wait_for("its links are gone", lambda: ids[1] not in r.pins())
    gone = r.bundle_of(2)
    assert gone["state"] == "evicted" and gone["reason"].startswith("keep_free"), gone
    assert "keep_free" in a.cli("show", ids[1]).stdout and ids[1] in a.cli(
        "list", "--state", "evicted").stdout
    assert os.path.exists(r.path(1)), "the operator's pin did not protect it"
    assert os.path.exists(r.path(3)), "one more than was needed went"
    assert 'bundle_discards_total{reason="keep_free"} 1' in a.curl("/metrics").stdout
    a.assert_sum()
    a.stop()


@test
def a_pin_of_the_operator_protects_what_is_delivered_until_it_is_removed():
    r = Retention(after_delivery="delete", keep_for="5s")
    a = r.a.start()
    r.deliver(1)
    bundle = r.bundle_of(1)["id"]
    assert a.cli("pin", bundle).returncode == 0
    r.deliver(2)
    r.wait_gone(2)
    assert os.path.exists(r.path(1)) and r.pins() == [bundle]
    assert a.cli("unpin", bundle).returncode == 0
    r.wait_gone(1)
    a.stop()


@test
def from_delete_to_keep_the_links_are_released_and_the_files_stay():
    r = Retention(after_delivery="delete", keep_for="1h")
    a = r.a.start()
    r.deliver(1)
    before = tree(r.path(1))
    assert len(r.pins()) == 1
    a.config["retention"]["after_delivery"] = "keep"
    a.write_config()
    a.reload()
    wait_for("the links are let go", lambda: not r.pins())
    wait_for("the row says so", lambda: not r.bundle_of(1)["links_held"])
    a.config["retention"] |= {"after_delivery": "delete", "keep_for": "0s"}
    a.write_config()
    a.reload()
    r.deliver(2)
    r.wait_gone(2)
    assert tree(r.path(1)) == before, "what was delivered under keep was deleted"
    a.stop()


@test
def a_restart_in_between_forgets_nothing_and_kill_9_while_it_deletes_leaves_nothing_behind():
    r = Retention(after_delivery="delete", keep_for="1h")
    a = r.a.start()
    for n in range(1, 7):
        r.unit(n, files=60, size=60 * 1024)
    a.wait_delivered(6)
    wait_for("all are held", lambda: len(r.pins()) == 6)
    a.kill()
    a.start()
    r.looks(1)
    assert len([n for n in range(1, 7) if os.path.exists(r.path(n))]) == 6
    a.stop()
    a.config["retention"]["keep_for"] = "0s"
    for _ in range(8):  # at another moment each time: what is left differs
        left = n_files(a.path("work", "jobs"))
        if left == 0:
            break
        a.start(wait=False)
        wait_for("something more is deleted",
                 lambda left=left: n_files(a.path("work", "jobs")) < left, 40, every=0.0001)
        a.kill()
    a.start()
    for n in range(1, 7):
        r.wait_gone(n)
    wait_for("no link is left", lambda: not r.pins(), 40)
    wait_for("no row says so", lambda: not [b for b in a.bundles("?limit=100") if b["links_held"]])
    assert len(a.manifests()) == 7, "a deletion made a supplement"
    a.assert_sum()
    a.stop()


@test
def kill_9_while_it_evicts_leaves_no_file_without_a_bundle():
    r = Retention(size="size=32m", after_delivery="delete", evict_undelivered="oldest",
                  keep_free="0")
    a = r.a
    stop_destination(a)
    a.start()
    r.unit(1, files=300, size=6 * MIB)
    wait_for("it is ready", lambda: a.counts()["ready"] == 1)
    bundle = r.bundle_of(1)["id"]
    a.stop()
    a.config["retention"]["keep_free"] = "30MiB"
    a.start(wait=False)
    wait_for("some of it is deleted", lambda: n_files(r.path(1)) < 300, 40, every=0.0001)
    a.kill()
    state, held = a.sql(f"select state, links_held from bundles where id = '{bundle}'").split("|")
    assert state == "evicted", f"files are gone while the row says {state}"
    assert held == "1" or n_files(r.path(1)) == 0, "files are left that nobody would delete"
    a.start()
    r.wait_gone(1)
    wait_for("no link is left", lambda: not r.pins())
    a.assert_sum()
    a.stop()


@test
def on_ext4_room_is_made_as_well():
    need_root()
    need("mkfs.ext4")
    r = Retention(after_delivery="delete", keep_for="1h", keep_free="20MiB")
    a = r.a
    image = a.path("image")
    with open(image, "wb") as f:
        f.truncate(64 * MIB)
    assert run("mkfs.ext4", "-q", "-m", "0", image).returncode == 0
    mount("-o", "loop", image, a.path("work"))
    os.makedirs(a.path("work", "jobs"))
    a.start()
    r.deliver(1, 2, size=12 * MIB)
    assert os.path.exists(r.path(1))
    r.deliver(3, size=12 * MIB)
    r.wait_gone(1)
    r.looks()
    assert os.path.exists(r.path(2)) and os.path.exists(r.path(3))
    a.stop()


@test
def what_links_could_not_hold_is_never_deleted_and_counted():
    need_root()
    r = Retention(size="size=32m", after_delivery="delete", keep_for="0s", keep_free="100%")
    a = r.a
    for place in (a.path("work", ".neuron-collectd"), a.path("work", "jobs", ".neuron-collectd")):
        with open(place, "wb"):  # in the way of the links
            pass
    a.start()
    r.deliver(1)
    before = tree(r.path(1))
    r.looks()
    assert tree(r.path(1)) == before
    assert counter(a, "sources_unheld:jobs") == a.counts()["delivered"]
    assert counter(a, "sources_deleted") == 0
    a.stop()


@test
def where_it_may_not_delete_it_reports_the_remedy_and_continues():
    need_root()
    need("setpriv")
    a = Agent(owner=65534)
    r = Retention.__new__(Retention)
    r.a = a
    os.makedirs(a.path("work", "jobs"))
    os.chown(a.path("work"), 65534, 65534)
    os.chown(a.path("work", "jobs"), 65534, 65534)
    a.config["sources"] = [a.source("jobs", "directory", "work/jobs/job-%p")]
    a.config["retention"] = {"after_delivery": "delete", "keep_for": "1s", "max_use": "0",
                             "keep_free": "0"}
    capabilities = "-all,+dac_read_search,+fowner,+lease"  # as the unit has it
    a.prefix = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups",
                f"--inh-caps={capabilities}",
                f"--ambient-caps={capabilities}", f"--bounding-set={capabilities}"]
    a.start()
    r.deliver(1)  # of root's, 0755
    wait_for("it is said", lambda: "cannot delete delivered files" in a.log
             and "CAP_DAC_OVERRIDE" in a.log, 40)
    assert len(tree(r.path(1))) == 2 and len(r.pins()) == 1
    coming = a.path("work", "coming")
    os.makedirs(coming)
    with open(os.path.join(coming, "file"), "wb") as f:
        f.write(b"of its own")
    for path in (coming, os.path.join(coming, "file")):
        os.chown(path, 65534, 65534)
    os.rename(coming, r.path(2))
    r.wait_gone(2)
    a.stop()


@test
def a_source_continues_after_a_quarantined_bundle_was_cancelled():
    r = Retention()
    a = r.a
    a.config["retry"] |= {"quarantine_after": 1}
    a.start()
    r.deliver(1)
    manifest = a.only_manifest()[0]
    with open(manifest, "w", encoding="ascii") as f:
        f.write('{"no": "manifest of ours"}')  # it cannot be delivered there
    a.stop()
    for name in os.listdir(a.path("state")):
        if name.startswith("state.db"):
            os.unlink(a.path("state", name))
    a.start()
    wait_for("it is quarantined", lambda: a.counts()["quarantined"] == 1)
    bundle = a.bundles("?state=quarantined")[0]["id"]
    assert a.cli("cancel", bundle).returncode == 0
    r.deliver(2)
    a.stop()


@test
def evict_with_keep_is_a_fault():
    r = Retention(evict_undelivered="oldest")
    r.a.write_config()
    result = run(DAEMON, "--config", r.a.config_file, "--check")
    assert (result.returncode == 2
            and "retention.evict_undelivered: " in result.stderr), result.stderr
    assert "after_delivery: delete" in result.stderr, result.stderr
    r.a.config["retention"]["after_delivery"] = "delete"
    r.a.write_config()
    result = run(DAEMON, "--config", r.a.config_file, "--check")
    assert result.returncode == 0, result.stderr


if __name__ == "__main__":
    sys.exit(main(clean))
