#!/usr/bin/env python3
"""Dumps in containers that real runtimes have made: runc, containerd and Podman, as root, as
another user and rootless. The job inside is a shell and our hook, set up as docs/HOOK.md tells; the
agent outside is the real one, and what it says is compared with what the runtime says of the same
container."""
import json
import os
import sys

sys.dont_write_bytecode = True  # the source tree may be read-only, and is packed as it is
sys.path.insert(0, os.path.join(os.path.dirname(os.path.realpath(__file__)), "..", "harness"))
# pylint: disable=wrong-import-position
import containers
import test_containers as scene
from agent import INSTANCE, Agent, cleanup, object_of, run, wait_for
from containers import Containerd, Job, Podman, RootlessCrun, RootlessPodman, Runc
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
        flags = {"neff-name": "model.neff", "date-time": "20260527-051233", "tid": 1, "log-id": 1,
                 "instance-id": INSTANCE, "cluster-id": scene.CID,
                 "error-location": "nrt_execute", "error-code": 1200,
                 "local-output-dir": f"{INSIDE}/{scene.UNIT}"}
        command = ["/bin/sh", "-c", JOB, "sh"] + [word for name, value in flags.items()
                                                  for word in (f"--{name}", str(value))]
        environment = {"PATH": "/bin", "UNIT": flags["local-output-dir"], "SIZE": size,
                       "STATE_FILE": STATE_FILE,
                       "RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": 16,
                       "TORCHELASTIC_RUN_ID": "run-7", "MASTER_ADDR": "10.0.0.1",
                       # LeakSanitizer wants ptrace(2); test_hook.py has it
                       "MASTER_PORT": 41000, "ASAN_OPTIONS": "detect_leaks=0"}
        given = [(self.go, "/go", "rw"), (a.path("run"), "/run/neuron-collectd", "ro"),
                 (a.path("state", "mailbox"), "/var/lib/neuron-collectd/mailbox", "rw")]
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
    """What the context of a snapshot says: [(pid, container)]"""
    found = run("tar", "--zstd", "-x", "-O", "-f", archive, "snapshot-context.json")
    return [(p["pid"], p.get("container"))
            for p in json.loads(found.stdout)["processes"]] if found.returncode == 0 else []


def assert_named(a, rank, m, name):
    """@param name  of the container, None where nothing outside of the runtime tells it"""
    assert m["failure"].get("container") == name and m["failure"]["code"] == 1200, m["failure"]
    job = m["incident"]["job"]
    assert (job["rank"], job["world_size"], job["source"]) == (rank.rank, 16, "torchrun"), job
    wait_for(f"a snapshot names process {rank.pid} and {name}",
             lambda: [1 for path, other in a.manifests() if other["bundle"]["kind"] == "snapshot"
                      and m["bundle"]["id"] in [b["id"] for b in other["bundle"]["related"]]
                      and (rank.pid, name) in processes_in(object_of(path))], 90, 0.2)


def collected(a, rank, name):
    """The dump of a rank, which is complete and names its container."""
    wait_for("it has arrived", lambda: [1 for _, m in a.manifests() if m["failure"]
                                        and m["incident"]["job"]["rank"] == rank.rank], 60, 0.2)
    a.wait_all()
    m, = [m for _, m in a.manifests() if m["bundle"]["supplement_of"] is None
          and m["source"]["name"] == "core-dumps" and m["incident"]["job"]["rank"] == rank.rank]
    assert m["source"]["name"] == "core-dumps" and m["bundle"]["complete"], m
    assert_named(a, rank, m, name)
    return m


def is_counted_where_only_the_container_sees_it(make):
    a = node()
    runtime = make(scene.HOOK)
    a.start()
    ranks = [Rank(a, runtime, user, rank) for rank, user in enumerate(runtime.uid)]
    for rank in ranks:
        rank.fail()
        assert "mount the dump directory from the host" in rank.said(), rank.said()
        rank.remove()
    assert scene.unseen(a) == len(ranks) and not a.manifests(), a.status()["hook"]
    a.stop()


def on_a_directory_of_the_node_is_collected_there(make):
    a = node()
    runtime = make(scene.HOOK)
    a.start()
    rank = Rank(a, runtime, max(runtime.uid), mounts=[(a.path("dumps"), INSIDE, "rw")])
    rank.fail()
    rank.remove()
    m = collected(a, rank, rank.id if runtime.does_name else None)
    assert {"nc-state", "hook-record"} <= scene.kinds(m), scene.kinds(m)
    assert scene.unseen(a) == 0, a.status()["hook"]
    a.assert_sum()
    a.stop()


POD = "12345678_1234_1234_1234_123456789abc"


@test
def a_container_is_known_by_the_control_groups_of_kubernetes_and_one_of_another_name_is_not():
    # runc without systemd, given systemd's
    groups = [f"kubepods/burstable/pod{POD.replace('_', '-')}/",
              f"kubepods-besteffort-pod{POD}.slice:cri-containerd:"]
    for number, more in enumerate([{"group": groups[0]}, {"group": groups[1]},
                                   {"container": "training-7", "group": ""}]):
        a = node()
        runtime = Runc(scene.HOOK)
        a.start()
        rank = Rank(a, runtime, (0, containers.USER, 4712)[number], number,
                    mounts=[(a.path("dumps"), INSIDE, "rw")], **more)
        rank.fail()
        rank.remove()
        collected(a, rank, rank.id if number < 2 else None)
        a.stop()


@test
def a_job_in_a_user_namespace_with_a_range_of_numbers_is_the_user_that_it_is_outside():
    a = node()
    runtime = Runc(scene.HOOK)
    a.start()
    rank = Rank(a, runtime, containers.USER, first_uid=100000,
                mounts=[(a.path("dumps"), INSIDE, "rw")])
    rank.fail()
    collected(a, rank, rank.id)
    rank.remove()
    assert a.sql("select uid from notes").strip() == str(100000 + containers.USER)
    a.stop()


def for_each_runtime():
    for check in (is_counted_where_only_the_container_sees_it,
                  on_a_directory_of_the_node_is_collected_there):
        for make in (Runc, Containerd, Podman, RootlessPodman, RootlessCrun):
            def one(check=check, make=make):
                check(make)
            one.__name__ = f"a dump in a container of {make.name} {check.__name__}".replace(
                " ", "_")
            test(one)


for_each_runtime()

if __name__ == "__main__":
    sys.exit(main(clean_up))
