#!/usr/bin/env python3
"""Dumps that only their container sees: in its own mount namespace, on a file system that goes with it. The hook inside is the real one, the agent outside is
the real one; what arrives is judged with tar and zstd."""
import json
import os
import secrets
import shlex
import signal
import socket
import subprocess
import sys
import time

sys.dont_write_bytecode = True  # the source tree may be read-only, and is packed as it is
sys.path.insert(0, os.path.join(os.path.dirname(os.path.realpath(__file__)), "..", "harness"))
# pylint: disable=wrong-import-position
import neuron_sysfs
from agent import BUILD_DIR, INSTANCE, PATIENCE, Agent, cleanup, extract, need, need_root, object_of, unescape, wait_for
from tap import Skip, main, test

HOOK = os.path.join(BUILD_DIR, "neuron-dump")
CID = "d99e36ea74c263ca"
UNIT = f"dt-20260527-051233-cid-{CID}"
MIB = 1 << 20

# What runs in a container: first its file system, then what the runtime does, and then the hook, whose files tell the agent when it is through. $1 is where the
# file system goes, $2 the directory of the dump in it; the rest is the command line of the hook.
BEGIN = """
set -e
mount -t tmpfs -o mode=1777,size=3g none "$1"
mkdir -p "$2"
unit=$2
shift 2
"""
STATE_FILE = f"{INSTANCE}-nd0-nc1-pid-7-tid-1-lid-1"
NOISE = 'head -c %d /dev/urandom >"$unit/%s"\n'
RUN = '"$@"\n'


def node(**hook):
    """An agent that looks at nothing of this machine but its processes."""
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
    a.config["hook"] |= {"deadline": "4s", **hook}
    a.config["snapshot"] = {"sysfs_root": a.path("sys"), "device_directory": a.path("dev")}
    return a


def hook_command(unit, lid=1, **more):
    flags = {"neff-name": "model.neff", "neff-uuid": "0f" * 16, "date-time": "20260527-051233", "pid": 7, "tid": 1, "log-id": lid,
             "instance-id": INSTANCE, "cluster-id": CID, "error-location": "nrt_execute", "error-code": 1200, "local-output-dir": unit, **more}
    return [HOOK] + [word for name, value in flags.items() for word in (f"--{name}", str(value))]


def hook_environment(a, rank=0):
    # LeakSanitizer looks for its process in /proc, which is another pid namespace's here; test_hook.py has it.
    return {"PATH": os.environ["PATH"], "ASAN_OPTIONS": "detect_leaks=0", "RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": "16", "TORCHELASTIC_RUN_ID": "run-7",
            "MASTER_ADDR": "10.0.0.1", "MASTER_PORT": "41000", "NEURON_COLLECTD_HOOK_SOCKET": a.config["hook"]["socket"],
            "NEURON_COLLECTD_MAILBOX": a.config["hook"]["mailbox"], "NEURON_COLLECTD_SYSFS": a.path("sys")}


def container(a, script=NOISE % (MIB, STATE_FILE) + RUN, rank=0, where="dumps", **more):
    """Starts a process in namespaces of its own. @param script  what it does once it has a file system of its own at `where`"""
    unit = os.path.join(a.path(where), UNIT)
    return subprocess.Popen(["unshare", "--mount", "--pid", "--fork", "--kill-child", "sh", "-c", BEGIN + script, "sh", a.path(where), unit,
                             *hook_command(unit, rank + 1, **more)], env=hook_environment(a, rank), stdin=subprocess.PIPE,
                            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True)


def finish(process, timeout=60):
    said = process.communicate(timeout=timeout * PATIENCE)[0]
    assert process.returncode == 0, said
    return said


# A hook that stays for as long as it is wanted to: it says on its standard output that its note was accepted.
LASTING = """
import socket, sys
s = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
s.connect(sys.argv[1])
s.send(sys.argv[2].encode())
print(s.recv(1000).decode(), flush=True)
sys.stdin.read()
"""


def note_about(unit, rank=0):
    return json.dumps({"schema": "neuron-collectd/hook-note/1", "id": secrets.token_hex(16), "written_usec": 1779859295123456, "environment": {},
                       "arguments": {"neff_name": "model.neff", "neff_uuid": "0f" * 16, "date_time": "20260527-051233", "pid": "7",
                                     "tid": "1", "log_id": str(rank + 1), "instance_id": INSTANCE, "cluster_id": CID,
                                     "error_location": "nrt_execute", "error_code": "1200", "local_output_dir": unit}})


def lasting(a, rank=0, size=4096, where="dumps"):
    """Starts a container with such a hook, which ends with its standard input; without a size it has no such directory."""
    unit = os.path.join(a.path(where), UNIT)
    speak = shlex.join(["exec", "python3", "-c", LASTING, a.config["hook"]["socket"], note_about(unit, rank)])
    process = container(a, (NOISE % (size, STATE_FILE) if size else 'rm -rf "$unit"\n') + speak + "\n", rank, where)
    said = process.stdout.readline()
    assert said.startswith(b"accepted"), said
    return process


def of_containers(a):
    """The base bundles from containers: [(manifest, directory)]"""
    return [(m, extract(object_of(path), "tar")) for path, m in a.manifests()
            if m["source"]["name"] == "containers-core-dumps" and m["bundle"]["supplement_of"] is None]


def only_one(a, timeout=60):
    wait_for("the dump of the container has arrived", lambda: of_containers(a), timeout)
    a.wait_all()
    found = of_containers(a)
    assert len(found) == 1, found
    return found[0]


def copy_of(directory):
    with open(os.path.join(directory, "neuron-collectd", "container-copy.json"), encoding="utf-8") as f:
        return json.load(f)


def kinds(manifest):
    return {m["kind"] for m in manifest["members"]}


def members(manifest):
    return {unescape(m["path"]).decode() for m in manifest["members"]}


def copies(a):
    """What still lies in the agent's state."""
    found = []
    for base, directories, names in os.walk(a.path("state", "containers")):
        directories[:] = [d for d in directories if d != ".neuron-collectd"]
        found += [os.path.join(base, name) for name in names]
    return found


def containers_status(a):
    return a.status()["hook"]["containers"]


@test
def a_dump_that_only_its_container_sees_arrives_whole():
    a = node().start()
    finish(container(a, rank=3))
    m, directory = only_one(a)
    assert not os.listdir(a.path("dumps")), os.listdir(a.path("dumps"))
    assert m["bundle"]["complete"], m["bundle"]
    assert {"nc-state", "hook-record", "snapshot"} <= kinds(m), kinds(m)
    assert (m["failure"]["code"], m["incident"]["date_time"], m["incident"]["cluster_id"]) == (1200, "20260527-051233", CID), m
    assert m["incident"]["job"]["rank"] == 3, m["incident"]
    assert os.path.getsize(os.path.join(directory, STATE_FILE)) == MIB, os.listdir(directory)
    told = copy_of(directory)
    assert told["schema"] == "neuron-collectd/container-copy/1" and told["is_whole"] and not told["left_out"], told
    assert told["path"] == os.path.join(a.path("dumps"), UNIT) and told["uid"] == 0 and len(told["notes"]) == 1, told
    assert [n for n in os.listdir(os.path.join(directory, "neuron-collectd")) if n.startswith("snapshot")], directory
    wait_for("the copy has gone", lambda: not copies(a), 30)
    assert containers_status(a)["whole"] == 1, containers_status(a)
    a.assert_sum()
    a.stop()


@test
def another_path_in_the_container_is_found_by_its_name():
    a = node().start()
    finish(container(a, where="inside"))
    m, directory = only_one(a)
    assert m["bundle"]["complete"], m["bundle"]
    assert copy_of(directory)["path"] == os.path.join(a.path("inside"), UNIT), copy_of(directory)
    a.stop()


@test
def sixteen_containers_that_write_under_one_name_are_sixteen_bundles():
    a = node().start()
    running = [container(a, NOISE % (1000 + rank, STATE_FILE) + RUN, rank) for rank in range(16)]
    for process in running:
        finish(process)
    wait_for("all have arrived", lambda: len(of_containers(a)) == 16, 120)
    a.wait_all()
    found = of_containers(a)
    assert len({m["bundle"]["object"] for m, _ in found}) == 16, [m["bundle"]["object"] for m, _ in found]
    assert all(m["bundle"]["complete"] for m, _ in found), [m["bundle"] for m, _ in found]
    sizes = {os.path.getsize(os.path.join(d, STATE_FILE)) - 1000 for _, d in found}
    assert sizes == set(range(16)), sizes
    assert {m["incident"]["job"]["rank"] for m, _ in found} == set(range(16)), [m["incident"] for m, _ in found]
    a.stop()


@test
def what_is_no_file_of_the_dump_is_left_out_with_a_reason():
    a = node().start()
    finish(container(a, NOISE % (4096, STATE_FILE) + 'ln -s /etc/shadow "$unit/link"\nmkfifo "$unit/pipe"\nmknod "$unit/null" c 1 3\n'
                     'cp "$unit/' + STATE_FILE + '" "$unit/foreign"\nchown 4711 "$unit/foreign"\n' + RUN))
    m, directory = only_one(a)
    told = copy_of(directory)
    left = {e["path"]: e["detail"] for e in told["left_out"]}
    assert {"pipe", "null", "foreign"} <= set(left) and all(left.values()), told
    assert not {"link", "pipe", "null", "foreign"} & members(m), members(m)
    assert not m["bundle"]["complete"] and "pipe" in json.dumps(m["bundle"]["reasons"]), m["bundle"]
    a.stop()


@test
def what_exceeds_the_bound_is_named_and_the_bundle_is_labelled():
    a = node(container_bytes="32MiB").start()
    finish(container(a, NOISE % (4096, STATE_FILE) + NOISE % (40 * MIB, "big") + RUN))
    m, directory = only_one(a)
    assert not m["bundle"]["complete"] and "big" in json.dumps(m["bundle"]["reasons"]), m["bundle"]
    assert "big" not in members(m) and STATE_FILE in members(m), members(m)
    assert [e for e in copy_of(directory)["left_out"] if e["path"] == "big"], copy_of(directory)
    wait_for("it is counted", lambda: containers_status(a)["incomplete"] == 1)
    a.stop()


@test
def where_nothing_may_be_copied_nothing_is():
    a = node(container_bytes="0").start()
    finish(container(a))
    a.wait_all()
    assert not of_containers(a) and not copies(a), copies(a)
    a.stop()


@test
def a_dump_of_the_machine_itself_is_not_copied():
    a = node().start()
    unit = os.path.join(a.path("dumps"), UNIT)
    process = subprocess.run(hook_command(unit), env=hook_environment(a), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=60, check=False)
    assert process.returncode == 0, process.stdout
    a.wait_delivered(1)
    a.wait_all()
    assert not of_containers(a), a.manifests()
    wait_for("nothing is left of the question", lambda: containers_status(a)["underway"] == 0, 30)
    assert not copies(a), copies(a)
    a.stop()


@test
def a_directory_of_another_user_is_not_copied():
    a = node().start()
    finish(container(a, NOISE % (4096, STATE_FILE) + 'chown -R 4711 "$unit"\n' + RUN))
    wait_for("it has been judged", lambda: "another user" in a.log and containers_status(a)["underway"] == 0, 30)
    a.wait_all()
    assert not of_containers(a) and not copies(a), copies(a)
    a.stop()


@test
def a_sparse_file_of_eight_gigabytes_stays_sparse():
    a = node(container_bytes="64MiB").start()
    finish(container(a, NOISE % (4096, STATE_FILE) + f'truncate -s 8G "$unit/sparse"\nprintf x | dd of="$unit/sparse" bs=1 seek=4096000 conv=notrunc\n' + RUN))
    m, _ = only_one(a, 120)
    sparse = [e for e in m["members"] if unescape(e["path"]) == b"sparse"]
    assert m["bundle"]["complete"] and sparse and sparse[0]["bytes"] == 8 << 30, m["bundle"]
    a.stop()


def overlay(a):
    """A root of layers as container runtimes make it. @return (script's first part, directories)"""
    for name in ("lower", "upper", "work", "merged"):
        os.makedirs(a.path("layers", name))
    if subprocess.run(["unshare", "--mount", "sh", "-c", 'mount -t tmpfs none "$1/layers" && cd "$1/layers" && mkdir l u w m && '
                       'mount -t overlay -o lowerdir=l,upperdir=u,workdir=w none m', "sh", a.dir], stderr=subprocess.DEVNULL,
                      check=False).returncode != 0:
        raise Skip("no overlay can be mounted here")


@test
def a_container_that_is_removed_while_it_is_copied_arrives_whole():
    a = node()
    overlay(a)
    a.start()
    # The container's own file system goes, with all in it, as soon as its process has ended; the agent is in the middle of copying it then.
    script = (NOISE % (200 * MIB, STATE_FILE) + RUN + 'umount -l "$(dirname "$unit")"\nrm -rf "$0/layers/u"\n')
    before = 'mkdir -p "$1"; cd /; mount -t tmpfs none "$0/layers"; mkdir "$0/layers/l" "$0/layers/u" "$0/layers/w"; ' \
             'mount -t overlay -o lowerdir="$0/layers/l",upperdir="$0/layers/u",workdir="$0/layers/w" none "$1"; mkdir -p "$2"; unit=$2; shift 2\n'
    unit = os.path.join(a.path("dumps"), UNIT)
    process = subprocess.Popen(["unshare", "--mount", "--pid", "--fork", "sh", "-ec", before + script, a.dir, a.path("dumps"), unit,
                                *hook_command(unit)], env=hook_environment(a), stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                               start_new_session=True)
    finish(process)
    m, directory = only_one(a, 120)
    assert os.path.getsize(os.path.join(directory, STATE_FILE)) == 200 * MIB, members(m)
    # What the hook wrote in its last milliseconds may have gone before anybody could open it: then that is said, and nothing else is missing.
    assert all("neuron-dump-pid-7" in reason for reason in m["bundle"]["reasons"]), m["bundle"]
    assert m["bundle"]["complete"] == (not m["bundle"]["reasons"]), m["bundle"]
    a.stop()


def coming(a):
    where = a.path("state", "containers", ".coming")
    return [os.path.join(base, name) for base, _, names in os.walk(where) for name in names] if os.path.isdir(where) else []


@test
def killed_in_the_middle_the_agent_ships_what_was_copied_by_then():
    a = node().start()
    process = container(a, NOISE % (4096, STATE_FILE) + NOISE % (300 * MIB, "big") + RUN)
    wait_for("it is being copied", lambda: [n for n in coming(a) if os.path.basename(n).startswith("f0")], 60)
    a.kill()
    process.communicate(timeout=60 * PATIENCE)
    a.start()
    m, _ = only_one(a, 120)
    assert STATE_FILE in members(m), members(m)
    assert m["bundle"]["complete"] == ("big" in members(m)), m["bundle"]
    wait_for("the copy has gone", lambda: not copies(a), 30)
    a.stop()


def supervisors():
    found = []
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{pid}/cmdline", "rb") as f:
                if b"--child=collect:container_dumps" in f.read():
                    found.append(int(pid))
        except OSError:
            pass
    return found


def descends_from(pid, ancestor):
    while pid > 1:
        if pid == ancestor:
            return True
        try:
            with open(f"/proc/{pid}/stat", encoding="ascii", errors="replace") as f:
                pid = int(f.read().rsplit(")", 1)[1].split()[1])
        except OSError:
            return False
    return False


@test
def a_collector_that_is_killed_in_the_middle_leaves_what_it_had_copied():
    a = node().start()
    process = container(a, NOISE % (4096, STATE_FILE) + NOISE % (300 * MIB, "big") + RUN)
    wait_for("it is being copied", lambda: [n for n in coming(a) if os.path.basename(n).startswith("f0")], 60)
    for pid in supervisors():
        if descends_from(pid, a.pid):
            os.kill(pid, signal.SIGKILL)
    process.communicate(timeout=60 * PATIENCE)
    m, directory = only_one(a, 120)
    assert not m["bundle"]["complete"] and m["bundle"]["reasons"], m["bundle"]
    assert not copy_of(directory)["is_whole"], copy_of(directory)
    wait_for("nothing is left over", lambda: not copies(a), 30)
    a.stop()


@test
def another_user_in_a_user_namespace_of_his_own_is_heard_as_himself():
    a = node()
    need("setpriv")
    a.start()
    os.chmod(a.path("dumps"), 0o777)
    unit = os.path.join(a.path("dumps"), UNIT)
    script = 'mount -t tmpfs none "$1"; mkdir -p "$2"; unit=$2; shift 2; ' + NOISE % (4096, STATE_FILE) + RUN
    process = subprocess.Popen(["setpriv", "--reuid=4711", "--regid=4711", "--clear-groups", "unshare", "--user", "--map-root-user", "--mount",
                                "--pid", "--fork", "sh", "-ec", script, "sh", a.path("dumps"), unit, *hook_command(unit)],
                               env=hook_environment(a), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True)
    said = process.communicate(timeout=60 * PATIENCE)[0]
    if process.returncode != 0 and b"unshare" in said:
        raise Skip("no user namespaces for users")
    assert process.returncode == 0, said
    m, directory = only_one(a)
    assert m["bundle"]["complete"] and copy_of(directory)["uid"] == 4711, (m["bundle"], copy_of(directory))
    a.stop()


@test
def a_later_hook_of_the_same_container_adds_what_is_new():
    a = node().start()
    unit = os.path.join(a.path("dumps"), UNIT)
    later = " ".join(f"'{word}'" for word in hook_command(unit, 2))
    process = container(a, NOISE % (4096, STATE_FILE) + RUN + 'head -c1 >/dev/null\n' + NOISE % (5000, "later") + later + "\n")
    only_one(a)
    process.stdin.write(b"x")
    process.stdin.flush()
    finish(process)
    wait_for("what came later has arrived", lambda: any("later" in members(m) for _, m in a.manifests()), 60)
    a.wait_all()
    base = of_containers(a)
    assert len(base) == 1, base
    supplements = [m for _, m in a.manifests() if m["bundle"]["supplement_of"] == base[0][0]["bundle"]["id"]]
    brought = [path for m in supplements for path in members(m)]
    assert brought.count("later") == 1 and STATE_FILE not in brought, brought
    wait_for("the copy has gone", lambda: not copies(a), 40)
    a.stop()


def tree(a):
    """Files of copies that lie in their places."""
    return [path for path in copies(a) if "/.coming/" not in path and "/.units/" not in path]


def reload(a):
    a.write_config()
    seen = a.log.count("configuration reloaded")
    a.reload()
    wait_for("it is reloaded", lambda: a.log.count("configuration reloaded") > seen, 60)


def cut_copy(a):
    """Starts a container of whose dump only a part may be copied, and comes back when that part is in its place, and not yet taken."""
    process = container(a, NOISE % (4096, STATE_FILE) + NOISE % (40 * MIB, "big") + RUN)
    wait_for("the copy is in its place", lambda: any(STATE_FILE in path for path in tree(a)), 60)
    return process


def assert_cut(a):
    wait_for("the dump of the container has arrived", lambda: of_containers(a), 60)
    (m, _), = of_containers(a)
    assert not m["bundle"]["complete"] and "big" in json.dumps(m["bundle"]["reasons"]), m["bundle"]
    assert "big" not in members(m) and STATE_FILE in members(m), members(m)


@test
def killed_before_it_took_the_copy_the_agent_still_knows_what_is_missing():
    a = node(container_bytes="32MiB").start()
    process = cut_copy(a)
    a.kill()
    finish(process)
    assert not of_containers(a)
    a.start()
    assert_cut(a)
    a.stop()


@test
def run_once_after_that_the_agent_knows_it_as_well():
    a = node(container_bytes="32MiB").start()
    process = cut_copy(a)
    a.kill()
    finish(process)
    done = a.once()
    assert done.returncode == 0, done.stderr
    assert_cut(a)


@test
def with_new_sources_the_agent_still_knows_what_is_missing():
    a = node(container_bytes="32MiB").start()
    process = cut_copy(a)
    a.config["sources"].append(a.source("others", "directory", "others/job-%p"))
    reload(a)
    finish(process)
    assert_cut(a)
    a.stop()


@test
def a_copy_that_cannot_be_put_into_its_place_is_tried_again():
    a = node().start()
    obstacle = a.path("state", "containers", ".units")
    with open(obstacle, "w", encoding="ascii"):
        pass
    finish(container(a))
    wait_for("it is said", lambda: "it is tried again" in a.log, 60)
    wait_for("what waits takes room", lambda: containers_status(a)["bytes"] >= MIB)
    assert containers_status(a)["underway"] == 1 and not of_containers(a), containers_status(a)
    os.unlink(obstacle)
    m, _ = only_one(a, 90)
    assert m["bundle"]["complete"], m["bundle"]
    assert a.log.count("it is tried again") == 1 and "now it is in its place" in a.log, a.log
    wait_for("the copy has gone", lambda: not copies(a) and containers_status(a)["bytes"] == 0, 30)
    assert containers_status(a)["whole"] == 1, containers_status(a)
    a.stop()


@test
def a_copy_whose_source_has_gone_is_said_counted_and_shipped_when_it_is_named_again():
    a = node().start()
    process = lasting(a)
    wait_for("it is placed", lambda: "is copied to" in a.log, 60)
    sources = a.config["sources"]
    a.config["sources"] = [a.source("others", "directory", "others/job-%p")]
    reload(a)
    process.stdin.close()
    process.wait(60 * PATIENCE)
    wait_for("it is counted", lambda: containers_status(a)["stranded"] == 1, 60)
    assert f"lie in '{a.path('state', 'containers', 'core-dumps')}'" in a.log, a.log
    said = a.cli("status").stdout
    assert "any more: 1 dump (" in said, said
    a.kill()
    a.start()
    assert containers_status(a)["stranded"] == 1 and not of_containers(a), containers_status(a)
    a.config["sources"] = sources
    reload(a)
    m, _ = only_one(a)
    assert m["bundle"]["complete"], m["bundle"]
    wait_for("the copy has gone", lambda: not copies(a) and containers_status(a)["stranded"] == 0, 30)
    a.stop()


def cgroup(name):
    """@return a new control group below whatever hierarchy there is"""
    with open("/proc/mounts", encoding="ascii", errors="replace") as f:
        mounts = [line.split() for line in f]
    for where in [m[1] for m in mounts if m[2] == "cgroup2"] + [m[1] for m in mounts if m[2] == "cgroup"]:
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
        finish(container(a, f"echo 0 >{group}/cgroup.procs\n" + NOISE % (4096, STATE_FILE) + RUN))
        m, directory = only_one(a)
        assert m["failure"]["container"] == container_id, m["failure"]
        assert copy_of(directory)["container"] == container_id, copy_of(directory)
        a.stop()
    finally:
        wait_for("the group is empty", lambda: not open(os.path.join(group, "cgroup.procs"), encoding="ascii").read())
        os.rmdir(group)


@test
def a_user_whose_room_is_taken_is_refused_and_counted():
    a = node(container_bytes="1MiB").start()
    finish(container(a))
    wait_for("it is counted", lambda: containers_status(a)["refused"] == 1)
    assert "hook.container_bytes" in a.log and not of_containers(a), a.log
    metrics = a.curl("/metrics").stdout
    assert 'neuron_collectd_container_copies_total{result="refused"} 1' in metrics, metrics
    a.stop()


@test
def a_second_dump_of_a_user_has_room_beside_the_first():
    a = node(container_bytes="256MiB").start()
    first = lasting(a)
    wait_for("it is being copied", lambda: any(os.path.basename(n).startswith("f0") for n in coming(a)), 60)
    finish(container(a, NOISE % (20 * MIB, STATE_FILE) + RUN, rank=1))
    finish(first)
    wait_for("both have arrived", lambda: len(of_containers(a)) == 2, 60)
    assert all(m["bundle"]["complete"] for m, _ in of_containers(a)), [m["bundle"] for m, _ in of_containers(a)]
    a.stop()


def eight(a):
    """As many as one user may have at once."""
    running = []
    for rank in range(8):
        running.append(lasting(a, rank))
        wait_for("it is being copied", lambda: len([n for n in coming(a) if n.endswith("batch.json")]) == len(running), 60)
    return running


@test
def eight_of_a_user_are_copied_at_once_and_the_hook_of_the_ninth_is_held_and_then_counted():
    a = node().start()
    running = eight(a)
    began = time.monotonic()
    finish(container(a, rank=8))
    assert time.monotonic() - began > 2.5, "of a deadline of 4 s it was held for half, or less"
    wait_for("it is counted", lambda: containers_status(a)["refused"] == 1)
    assert "as many as may be at once" in a.log, a.log
    for process in running:
        finish(process)
    wait_for("the others have arrived", lambda: len(of_containers(a)) == 8, 120)
    a.wait_all()
    assert len(of_containers(a)) == 8 and all(m["bundle"]["complete"] for m, _ in of_containers(a)), [m["bundle"] for m, _ in of_containers(a)]
    a.stop()


@test
def the_ninth_is_copied_when_another_ends_while_its_hook_is_held():
    a = node(deadline="20s").start()
    running = eight(a)
    ninth = container(a, rank=8)
    wait_for("it waits", lambda: containers_status(a)["underway"] == 9, 60)
    for process in running:
        finish(process)
    finish(ninth)
    wait_for("all have arrived", lambda: len(of_containers(a)) == 9, 120)
    assert containers_status(a)["refused"] == 0, containers_status(a)
    a.stop()


@test
def what_waits_when_the_agent_is_stopped_is_copied_all_the_same():
    a = node(container_bytes="64GiB").start()
    running = eight(a)
    running.append(lasting(a, rank=8))
    wait_for("it waits", lambda: containers_status(a)["underway"] == 9, 60)
    a.stop()
    a.start()
    for process in running:
        finish(process)
    wait_for("all have arrived", lambda: len(of_containers(a)) == 9, 120)
    a.stop()


@test
def of_one_user_only_so_many_notes_wait():
    a = node().start()
    running = eight(a)
    hooks = [socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) for _ in range(66)]
    for hook in hooks:
        hook.connect(a.config["hook"]["socket"])
        hook.send(note_about(os.path.join(a.path("dumps"), UNIT)).encode())
        assert hook.recv(1000).startswith(b"accepted")
    wait_for("it is counted", lambda: containers_status(a)["refused"] == 2)
    assert "too many of its user's wait" in a.log and containers_status(a)["underway"] == 8 + 64, containers_status(a)
    for hook in hooks:
        hook.close()
    for process in running:
        finish(process)
    a.stop()


@test
def a_directory_that_is_in_no_container_is_counted():
    a = node().start()
    process = lasting(a, size=0)
    finish(process)
    wait_for("it is counted", lambda: containers_status(a)["not_found"] == 1, 60)
    metrics = a.curl("/metrics").stdout
    assert 'neuron_collectd_container_copies_total{result="not_found"} 1' in metrics, metrics
    assert a.log.count("cannot be copied out of a container") == 1, a.log
    unit = os.path.join(a.path("dumps"), UNIT)
    subprocess.run(hook_command(unit), env=hook_environment(a), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=60, check=True)
    a.wait_delivered(1)
    wait_for("what this machine has is not counted", lambda: containers_status(a)["underway"] == 0, 60)
    assert containers_status(a)["not_found"] == 1, containers_status(a)
    a.stop()


def is_safe(a):
    return a.status()["drain"]["safe_to_terminate"]


@test
def what_is_being_copied_is_shipped_before_it_is_safe():
    a = node().start()
    process = lasting(a)
    wait_for("it is being copied", lambda: any(os.path.basename(n).startswith("f0") for n in coming(a)), 60)
    a.cli("drain", "--timeout", "0")
    time.sleep(7)
    assert not is_safe(a) and "being copied out" in a.status()["drain"]["missing"], a.status()["drain"]
    finish(process)
    wait_for("it is safe", lambda: is_safe(a), 60)
    assert len(of_containers(a)) == 1, a.manifests()
    a.stop()


@test
def what_hooks_tell_in_a_drain_keeps_nobody_waiting():
    a = node().start()
    a.cli("drain", "--timeout", "0")
    wait_for("it is safe", lambda: is_safe(a), 60)
    time.sleep(1.5)
    process = lasting(a)
    wait_for("it is being copied", lambda: any(os.path.basename(n).startswith("f0") for n in coming(a)), 60)
    wait_for("only the snapshot is waited for", lambda: is_safe(a), 30)
    assert containers_status(a)["underway"] == 1, containers_status(a)
    finish(process)
    wait_for("it is there", lambda: containers_status(a)["underway"] == 0 and containers_status(a)["whole"] == 1, 60)
    assert not of_containers(a), a.status()["drain"]
    a.cli("resume")
    only_one(a)
    a.stop()


if __name__ == "__main__":
    sys.exit(main(cleanup))
