#!/usr/bin/env python3
"""Dumps of jobs in mount namespaces of their own. A directory that is mounted from the host is
collected like any other; a note about a directory that only the container sees is counted and
reported with the remedy."""
import os
import subprocess
import sys

sys.dont_write_bytecode = True  # the source tree may be read-only, and is packed as it is
sys.path.insert(0, os.path.join(os.path.dirname(os.path.realpath(__file__)), "..", "harness"))
# pylint: disable=wrong-import-position
import neuron_sysfs
from agent import (BUILD_DIR, INSTANCE, PATIENCE, Agent, cleanup, for_other_users, need, need_root,
                   wait_for)
from tap import Skip, main, test

HOOK = os.path.join(BUILD_DIR, "neuron-dump")
CID = "d99e36ea74c263ca"
UNIT = f"dt-20260527-051233-cid-{CID}"
MIB = 1 << 20
REMEDY = "mount the dump directory"

# What runs in a container: first its mounts, then what the runtime does, and then the hook. $1 is
# where the dumps are in the container, $2 the directory of the dump; the rest is the command line
# of the hook.
OWN = 'mount -t tmpfs -o mode=1777,size=3g none "$1"\n'
BEGIN = """
mkdir -p "$2"
unit=$2
shift 2
"""
STATE_FILE = f"{INSTANCE}-nd0-nc1-pid-7-tid-1-lid-1"
NOISE = 'head -c %d /dev/urandom >"$unit/%s"\n'
RUN = '"$@"\n'


def node():
    """An agent that inspects nothing of this machine but its processes."""
    need_root()
    need("unshare")
    if not os.path.exists(HOOK):
        raise Skip("neuron-dump is not built")
    if subprocess.run(["unshare", "--mount", "true"], check=False).returncode != 0:
        raise Skip("no mount namespace can be made here")
    a = Agent()
    neuron_sysfs.tree(a.path("sys"), "v3", 1)
    for name in ("dev", "dumps", "inside"):
        os.makedirs(a.path(name))
    a.config["hook"] |= {"deadline": "4s"}
    a.config["snapshot"] = {"sysfs_root": a.path("sys"), "device_directory": a.path("dev")}
    return a


def hook_command(unit, lid=1, **more):
    flags = {"neff-name": "model.neff", "neff-uuid": "0f" * 16, "date-time": "20260527-051233",
             "pid": 7, "tid": 1, "log-id": lid,
             "instance-id": INSTANCE, "cluster-id": CID, "error-location": "nrt_execute",
             "error-code": 1200, "local-output-dir": unit, **more}
    return [HOOK] + [word for name, value in flags.items() for word in (f"--{name}", str(value))]


def hook_environment(a, rank=0):
    # LeakSanitizer looks for its process in /proc, which is another pid namespace's here;
    # test_hook.py has it.
    return {"PATH": os.environ["PATH"], "ASAN_OPTIONS": "detect_leaks=0", "RANK": str(rank),
            "LOCAL_RANK": str(rank), "WORLD_SIZE": "16", "TORCHELASTIC_RUN_ID": "run-7",
            "MASTER_ADDR": "10.0.0.1", "MASTER_PORT": "41000",
            "NEURON_COLLECTD_HOOK_SOCKET": a.config["hook"]["socket"],
            "NEURON_COLLECTD_MAILBOX": a.config["hook"]["mailbox"],
            "NEURON_COLLECTD_SYSFS": a.path("sys")}


def mounted(a):
    """The directory of the host, wherever the container has it."""
    return f'[ "$1" = "{a.path("dumps")}" ] || mount --bind "{a.path("dumps")}" "$1"\n'


def run_container(a, mounts=OWN, script=NOISE % (MIB, STATE_FILE) + RUN, where="dumps", prefix=(),
                  namespaces=()):
    """Runs a job in namespaces of its own to its end. @param where  where the dumps are in the
    container @return what its hook has printed"""
    unit = os.path.join(a.path(where), UNIT)
    hook, *arguments = hook_command(unit)
    hook = for_other_users(hook, a.dir) if prefix else hook
    done = subprocess.run(
        [*prefix, "unshare", *namespaces, "--mount", "--pid", "--fork", "--kill-child", "sh", "-ec",
         mounts + BEGIN + script, "sh", a.path(where), unit, hook, *arguments],
        env=hook_environment(a), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT, timeout=60 * PATIENCE, start_new_session=True, check=False)
    if prefix and done.returncode != 0 and b"unshare" in done.stdout:
        raise Skip("no user namespaces for users")
    assert done.returncode == 0, done.stdout
    return done.stdout.decode(errors="replace")


def delivered(a):
    """The manifest of the only dump, complete, from the configured source."""
    a.wait_delivered(1)
    a.wait_all()
    m, = [m for _, m in a.manifests() if m["bundle"]["supplement_of"] is None
          and m["source"]["name"] != "agent"]
    assert m["source"]["name"] == "core-dumps" and m["bundle"]["complete"], m
    return m


def unseen(a):
    return a.status()["hook"]["unseen"]


def kinds(manifest):
    return {m["kind"] for m in manifest["members"]}


def is_unseen_with_the_path(where):
    a = node().start()
    run_container(a, where=where)
    wait_for("it is counted", lambda: unseen(a) == 1)
    assert REMEDY in a.log, a.log
    metrics = a.curl("/metrics").stdout
    assert "neuron_collectd_hook_unseen_total 1" in metrics, metrics
    assert REMEDY in a.cli("status").stdout, a.cli("status").stdout
    doctor = a.cli("--config", a.config_file, "doctor").stdout
    assert "cannot see" in doctor and REMEDY in doctor, doctor
    assert not a.manifests() and not os.listdir(a.path("dumps")), a.manifests()
    a.stop()
    a.start()
    assert unseen(a) == 1, a.status()["hook"]
    a.stop()


@test
def a_directory_that_only_its_container_sees_is_counted_and_reported_with_the_remedy():
    is_unseen_with_the_path("dumps")


@test
def so_is_one_that_has_another_path_there():
    is_unseen_with_the_path("inside")


@test
def a_dump_of_the_machine_itself_is_not_counted():
    a = node().start()
    unit = os.path.join(a.path("dumps"), UNIT)
    done = subprocess.run(hook_command(unit), env=hook_environment(a), stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT, timeout=60, check=False)
    assert done.returncode == 0, done.stdout
    delivered(a)
    assert unseen(a) == 0, a.status()["hook"]
    a.stop()


@test
def a_directory_of_the_host_is_collected_whatever_path_the_container_has_it_at():
    for where in ("dumps", "inside"):
        a = node().start()
        run_container(a, mounted(a), where=where)
        m = delivered(a)
        assert {"nc-state", "hook-record"} <= kinds(m) and m["failure"]["code"] == 1200, m
        assert unseen(a) == 0, a.status()["hook"]
        a.stop()


@test
def another_user_in_a_user_namespace_of_his_own_annotates_as_himself():
    a = node()
    need("setpriv")
    a.start()
    os.chmod(a.path("dumps"), 0o1777)
    run_container(a, "", prefix=("setpriv", "--reuid=4711", "--regid=4711", "--clear-groups"),
                  namespaces=("--user", "--map-root-user"))
    m = delivered(a)
    assert "hook-record" in kinds(m) and m["failure"]["code"] == 1200, m
    a.stop()


def cgroup(name):
    """@return a new control group below whatever hierarchy there is"""
    with open("/proc/mounts", encoding="ascii", errors="replace") as f:
        mounts = [line.split() for line in f]
    for where in [m[1] for m in mounts if m[2] == "cgroup2"] + [m[1] for m in mounts
                                                                if m[2] == "cgroup"]:
        group = os.path.join(where, name)
        try:
            os.mkdir(group)
        except OSError:
            continue
        if os.path.exists(os.path.join(group, "cgroup.procs")):
            return group
        os.rmdir(group)
    raise Skip("no control group can be made here")


@test
def the_container_of_a_failure_is_in_the_manifest():
    container_id = f"{os.getpid():016x}" * 4
    a = node()
    group = cgroup(f"docker-{container_id}.scope")
    try:
        a.start()
        run_container(a, mounted(a), f"echo 0 >{group}/cgroup.procs\n" + NOISE
                      % (4096, STATE_FILE) + RUN)
        m = delivered(a)
        assert m["failure"]["container"] == container_id, m["failure"]
        a.stop()
    finally:
        wait_for("the group is empty", lambda: not open(os.path.join(group, "cgroup.procs"),
                                                        encoding="ascii").read())
        os.rmdir(group)


if __name__ == "__main__":
    sys.exit(main(cleanup))
