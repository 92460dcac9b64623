#!/usr/bin/env python3
"""Dumps in containers that real runtimes have made: runc, containerd and Podman, as root, as another user and rootless. The job inside is a shell and our
hook, set up as docs/HOOK.md tells; the agent outside is the real one, and what it says is compared with what the runtime says of the same container."""
import json
import os
import sys

sys.dont_write_bytecode = True  # the source tree may be read-only, and is packed as it is
sys.path.insert(0, os.path.join(os.path.dirname(os.path.realpath(__file__)), "..", "harness"))
# pylint: disable=wrong-import-position
import containers
import test_containers as scene
from agent import INSTANCE, Agent, cleanup, object_of, run, wait_for
from containers import Containerd, Job, Podman, RootlessCrun, RootlessFuse, RootlessPodman, Runc
from tap import Skip, main, notes, test

INSIDE = "/var/neuron-dumps"
STATE_FILE = f"{INSTANCE}-nd0-nc1-pid-1-tid-1-lid-1"
MIB = scene.MIB

# The runtime's process is the container's first one. /go is how the test and the job speak.
JOB = """
exec >/go/said 2>&1
until [ -e /go/start ]; do sleep 0.05; done
mkdir -p "$UNIT"
head -c "$SIZE" /dev/urandom >"$UNIT/$STATE_FILE"
/opt/aws/neuron/bin/neuron-dump "$@" --pid $$
echo $? >/go/.ended
mv /go/.ended /go/ended
until [ -e /go/leave ]; do sleep 0.05; done
"""


def clean_up(failed=False):
    try:
        cleanup(failed)
    finally:
        containers.end_all()


def node():
    if not os.path.exists(scene.HOOK):
        raise Skip("neuron-dump is not built")
    a = Agent()
    for name in ("sys", "dev", "dumps"):
        os.makedirs(a.path(name))
    os.chmod(a.path("dumps"), 0o1777)
    a.config["hook"]["deadline"] = "20s"
    a.config["snapshot"] = {"sysfs_root": a.path("sys"), "device_directory": a.path("dev")}
    return a


class Rank:
    """A job in a container that waits for the word to fail."""

    def __init__(self, a, runtime, user=0, rank=0, size=MIB, mounts=(), **more):
        self.runtime, self.rank, self.uid = runtime, rank, runtime.uid.get(user, user)
        self.go = a.path(f"go-{rank}")
        os.mkdir(self.go)
        os.chmod(self.go, 0o777)
        flags = {"neff-name": "model.neff", "date-time": "20260527-051233", "tid": 1, "log-id": 1, "instance-id": INSTANCE, "cluster-id": scene.CID,
                 "error-location": "nrt_execute", "error-code": 1200, "local-output-dir": f"{INSIDE}/{scene.UNIT}"}
        command = ["/bin/sh", "-c", JOB, "sh"] + [word for name, value in flags.items() for word in (f"--{name}", str(value))]
        environment = {"PATH": "/bin", "UNIT": flags["local-output-dir"], "SIZE": size, "STATE_FILE": STATE_FILE,
                       "RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": 16, "TORCHELASTIC_RUN_ID": "run-7", "MASTER_ADDR": "10.0.0.1",
                       "MASTER_PORT": 41000, "ASAN_OPTIONS": "detect_leaks=0"}  # LeakSanitizer wants ptrace(2); test_hook.py has it
        given = [(self.go, "/go", "rw"), (a.path("run"), "/run/neuron-collectd", "ro"), (a.path("state", "mailbox"), "/var/lib/neuron-collectd/mailbox", "rw")]
        self.id = runtime.start(Job(command, user, [*given, *mounts], environment), **more)
        self.pid = runtime.known()[self.id]

    def said(self):
        with open(os.path.join(self.go, "said"), encoding="utf-8", errors="replace") as f:
            return f.read()

    def tell(self, word):
        with open(os.path.join(self.go, word), "w", encoding="ascii"):
            pass

    def fail(self):
        self.tell("start")
        wait_for("its hook has ended", lambda: os.path.exists(os.path.join(self.go, "ended")), 60)
        notes.append(f"rank {self.rank}: {self.said()}")
        with open(os.path.join(self.go, "ended"), encoding="ascii") as f:
            assert f.read() == "0\n", self.said()

    def remove(self):
        self.runtime.remove(self.id)


def processes_in(archive):
    """What the incident.json of a bundle says, where it has one: [(pid, container)]"""
    found = run("tar", "--zstd", "-x", "-O", "-f", archive, "neuron-collectd/incident.json")
    return [(p["pid"], p.get("container")) for p in json.loads(found.stdout)["processes"]] if found.returncode == 0 else []


def assert_named(a, rank, m, name):
    """@param name  of the container, None where nothing outside of the runtime tells it"""
    assert m["failure"].get("container") == name and m["failure"]["code"] == 1200, m["failure"]
    job = m["incident"]["job"]
    assert (job["rank"], job["world_size"], job["source"]) == (rank.rank, 16, "torchrun"), job
    # A snapshot that takes longer than its source's `settle` comes by a supplement.
    wait_for(f"the incident names process {rank.pid} and {name}",
             lambda: [1 for path, other in a.manifests() if m["bundle"]["id"] in (other["bundle"]["id"], other["bundle"]["supplement_of"])
                      and (rank.pid, name) in processes_in(object_of(path))], 60, 0.2)


def arrived(a, n):
    wait_for(f"{n} dumps have arrived", lambda: len([1 for _, m in a.manifests() if m["bundle"]["supplement_of"] is None]) >= n, 60, 0.2)
    a.wait_all()
    found = {scene.copy_of(directory)["uid"]: (m, directory) for m, directory in scene.of_containers(a)}
    assert len(found) == n == len(scene.of_containers(a)), [m for m, _ in scene.of_containers(a)]
    return found


def is_copied_out_whole_and_named(make):
    a = node()
    runtime = make(scene.HOOK)
    a.start()
    ranks = [Rank(a, runtime, user, rank) for rank, user in enumerate(runtime.uid)]
    for rank in ranks:
        rank.fail()
    wait_for("all is copied", lambda: scene.containers_status(a)["whole"] == len(ranks), 60)
    for rank in ranks:
        rank.tell("leave")
    wait_for("they have ended", lambda: not runtime.known(), 60)
    found = arrived(a, len(ranks))
    for rank in ranks:
        m, directory = found[rank.uid]
        assert m["bundle"]["complete"], m["bundle"]
        assert {"nc-state", "hook-record"} <= scene.kinds(m), scene.kinds(m)
        assert os.path.getsize(os.path.join(directory, STATE_FILE)) == MIB
        assert "where the hook is in a container it is looked for there" in rank.said(), rank.said()
        told = scene.copy_of(directory)
        name = rank.id if runtime.does_name else None
        assert told["is_whole"] and (told["container"], told["path"]) == (name, f"{INSIDE}/{scene.UNIT}"), told
        assert_named(a, rank, m, name)
    a.assert_sum()
    a.stop()


def removed_right_after_its_hook_is_copied_out(make):
    a = node()
    runtime = make(scene.HOOK)
    a.start()
    rank = Rank(a, runtime, max(runtime.uid), size=16 * MIB)
    rank.fail()
    rank.remove()
    assert rank.id not in runtime.known()
    (m, directory), = arrived(a, 1).values()
    assert os.path.getsize(os.path.join(directory, STATE_FILE)) == 16 * MIB, scene.members(m)
    # What the hook wrote in its last milliseconds may have gone before anybody could open it: then that is said, and nothing else is missing.
    assert all("neuron-dump-pid-1" in reason for reason in m["bundle"]["reasons"]), m["bundle"]
    assert m["bundle"]["complete"] == (not m["bundle"]["reasons"]), m["bundle"]
    a.stop()


def on_a_directory_of_the_node_is_taken_there(make):
    a = node()
    runtime = make(scene.HOOK)
    a.start()
    rank = Rank(a, runtime, max(runtime.uid), mounts=[(a.path("dumps"), INSIDE, "rw")])
    rank.fail()
    rank.remove()
    a.wait_delivered(1)
    a.wait_all()
    m, = [m for _, m in a.manifests() if m["bundle"]["supplement_of"] is None]
    assert m["source"]["name"] == "core-dumps" and m["bundle"]["complete"], m["bundle"]
    assert_named(a, rank, m, rank.id if runtime.does_name else None)
    wait_for("nothing is left of the question", lambda: scene.containers_status(a)["underway"] == 0, 30)
    status = scene.containers_status(a)
    assert (status["whole"], status["incomplete"], status["refused"], status["not_found"]) == (0, 0, 0, 0) and not scene.copies(a), status
    a.stop()


POD = "12345678_1234_1234_1234_123456789abc"


@test
def a_container_is_known_by_the_control_groups_of_kubernetes_and_one_of_another_name_is_copied_without_it():
    a = node()
    runtime = Runc(scene.HOOK)
    a.start()
    pod = Rank(a, runtime, 0, 0, group=f"kubepods/burstable/pod{POD.replace('_', '-')}/")
    other = Rank(a, runtime, containers.USER, 1, group=f"kubepods-besteffort-pod{POD}.slice:cri-containerd:")  # runc without systemd, told systemd's
    for rank in (pod, other):
        rank.fail()
        rank.remove()
    found = arrived(a, 2)
    for rank in (pod, other):
        m, directory = found[rank.uid]
        assert scene.copy_of(directory)["container"] == rank.id, scene.copy_of(directory)
        assert_named(a, rank, m, rank.id)
    by_hand = Rank(a, runtime, 4712, 2, container="training-7", group="")
    by_hand.fail()
    by_hand.remove()
    m, directory = arrived(a, 3)[4712]
    assert scene.copy_of(directory)["container"] is None, scene.copy_of(directory)
    assert_named(a, by_hand, m, None)
    a.stop()


@test
def a_job_in_a_user_namespace_with_a_range_of_numbers_is_the_user_that_it_is_outside():
    a = node()
    runtime = Runc(scene.HOOK)
    a.start()
    rank = Rank(a, runtime, containers.USER, first_uid=100000)
    rank.fail()
    m, _ = arrived(a, 1)[100000 + containers.USER]
    rank.remove()
    assert m["bundle"]["complete"], m["bundle"]
    assert_named(a, rank, m, rank.id)
    a.stop()


@test
def a_root_directory_in_another_users_fuse_lets_nobody_in_which_is_said_with_the_remedy():
    a = node()
    runtime = RootlessFuse(scene.HOOK)
    a.start()
    rank = Rank(a, runtime)
    rank.fail()
    wait_for("it is counted", lambda: scene.containers_status(a)["not_found"] == 1, 60)
    assert a.log.count("give the dump a directory of the node") == 1, a.log
    rank.remove()
    a.stop()


def for_each_runtime():
    for check in (is_copied_out_whole_and_named, removed_right_after_its_hook_is_copied_out, on_a_directory_of_the_node_is_taken_there):
        for make in (Runc, Containerd, Podman, RootlessPodman, RootlessCrun):
            def one(check=check, make=make):
                check(make)
            one.__name__ = f"a dump in a container of {make.name} {check.__name__}".replace(" ", "_")
            test(one)


for_each_runtime()

if __name__ == "__main__":
    sys.exit(main(clean_up))
