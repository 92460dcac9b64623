#!/usr/bin/env python3
"""Which process a note is about, with namespaces and cgroups that the kernel really has: a job in a
pid namespace of its own, an agent in one, and an agent from which, as in its unit, the processes of
others are hidden. Only the agent's side is private to a test: nothing here mounts or remounts what
the machine uses."""
import json
import os
import secrets
import shutil
import socket
import subprocess
import sys
import threading

sys.dont_write_bytecode = True  # the source tree may be read-only, and is packed as it is
sys.path.insert(0, os.path.join(os.path.dirname(os.path.realpath(__file__)), "..", "harness"))
# pylint: disable=wrong-import-position
import test_incident as scene
from agent import (DAEMON, INSTANCE, PATIENCE, Agent, cleanup, for_other_users, need, need_root,
                   run, wait_for)
from tap import Skip, main, test
from test_notes import BUCKET, as_user, note_of

AGENT_USER, JOB_USER = 64000, 65534
# the machine's cgroups are shared with other runs of this test
CONTAINER = secrets.token_hex(32)
RIGHTS = "+dac_read_search,+fowner,+lease"  # what the unit leaves the daemon
PROBE_RIGHTS = "+sys_ptrace,+dac_read_search,+syslog"

_cgroups = []
_listeners = []
_jobs = []


def clean_up(failed=False):
    while _jobs:
        job = _jobs.pop()
        job.stdin.close()
        job.wait(30 * PATIENCE)
    while _listeners:
        _listeners.pop().close()
    cleanup(failed)
    while _cgroups:
        os.rmdir(_cgroups.pop())


def namespaces():
    need_root()
    need("unshare", "setpriv")
    if run("unshare", "--pid", "--fork", "--mount-proc", "true").returncode != 0:
        raise Skip("no pid namespace can be made here")


def in_a_pid_namespace(a, unit):
    """The hook, called by the first process of a namespace, which lives on for a moment. @return
    its pid in ours"""
    script = (f'echo up; {scene.HOOK} --pid $$ --tid 1 --log-id 1 --instance-id '
              f'{INSTANCE} --error-code 1200 --local-output-dir {unit}; read -r line')
    job = subprocess.Popen(["unshare", "--pid", "--fork", "--mount-proc", "sh", "-c", script],
                           env=scene.hook_environment(a),
                           stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    _jobs.append(job)
    assert job.stdout.readline() == b"up\n"
    with open(f"/proc/{job.pid}/task/{job.pid}/children", encoding="ascii") as f:
        return job, int(f.read())


def end(job):
    job.stdin.close()
    job.stdout.close()
    assert job.wait(30 * PATIENCE) == 1, job.returncode  # of its read, at the end of its input


def row(a, columns):
    return a.sql(f"SELECT {columns} FROM notes")


def reported_of(a, words):
    return [line for line in a.log.splitlines() if words in line]


@test
def the_first_process_of_a_pid_namespace_is_known_by_its_number_outside():
    scene.need_hook()
    namespaces()
    a = scene.node(devices=1).start()
    unit = a.path("dumps", scene.UNIT)
    scene.state_file(unit, 1)
    job, real = in_a_pid_namespace(a, unit)
    assert real > 1
    wait_for("its number outside is in the note's row", lambda: row(a, "pid") == str(real))
    wait_for("the incident's document",
             lambda: [1 for d in os.listdir(a.path("state", "snapshots"))
                      if os.path.exists(a.path("state", "snapshots", d, "snapshot.json"))])
    end(job)
    document = scene.snapshot_of(a)
    assert [p["pid"] for p in document["processes"]] == [real], document["processes"]
    section = scene.section(document, "process")
    assert section["state"] == "complete" and {r["pid"] for r in section["records"]
                                               if "pid" in r} == {real}, section["state"]
    assert [p["pid"] for p in scene.snapshot_of(a, "snapshot-context.json")["processes"]] == [
        real]
    assert not reported_of(a, "is not known to this agent")
    a.stop()


@test
def an_agent_that_cannot_see_the_hooks_namespace_receives_pid_0_and_reports_it():
    scene.need_hook()
    namespaces()
    a = scene.node(devices=1)
    a.prefix = ["unshare", "--pid", "--fork", "--kill-child", "--mount-proc"]
    a.start()
    unit = a.path("dumps", scene.UNIT)
    scene.state_file(unit, os.getpid())
    done = subprocess.run(scene.hook_command(unit, os.getpid()), env=scene.hook_environment(a),
                          capture_output=True, timeout=60 * PATIENCE, check=False)
    assert done.returncode == 0 and not done.stderr, done
    line = wait_for("it is said", lambda: reported_of(a, "reported"))
    assert len(line) == 1 and "the hook runs in a pid namespace that this agent cannot see" in line[
        0], line
    assert row(a, "pid, container") == "0|unknown"  # root of which container, if of any
    document = scene.snapshot_of(a)
    assert document["processes"] == [], document["processes"]
    skipped = scene.section(document, "process")
    assert skipped["state"] == "skipped" and "no process is known" in skipped["detail"], skipped
    assert scene.section(document, "neuron_sysfs")["state"] == "complete"
    assert scene.only_manifest(a)["failure"]["code"] == 1200
    a.stop()


# ---- as in the shipped unit ----

class Listener:
    """The probe's socket, as systemd would serve it: each connection to a supervisor of the agent's
    user, with more rights than the agent."""

    def __init__(self, a):
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.socket.bind(a.path("run", "probe.sock"))
        os.chmod(a.path("run", "probe.sock"), 0o666)
        self.socket.listen(16)
        self.children = []
        self.config = ["--config", a.config_file]
        self.thread = threading.Thread(target=self.serve)
        self.thread.start()
        _listeners.append(self)

    def serve(self):
        while True:
            try:
                connection = self.socket.accept()[0]
            except OSError:
                return
            with connection:
                self.children.append(subprocess.Popen(
                    with_rights(PROBE_RIGHTS) + [DAEMON, "--child=probe", *self.config],
                    stdin=connection))

    def close(self):
        self.socket.shutdown(socket.SHUT_RDWR)
        self.thread.join()
        self.socket.close()
        for child in self.children:
            try:
                child.wait(30 * PATIENCE)
            except subprocess.TimeoutExpired:
                child.kill()
                child.wait()


def with_rights(rights):
    only = f"-all,{rights}"
    return ["setpriv", f"--reuid={AGENT_USER}", f"--regid={AGENT_USER}", "--clear-groups",
            f"--inh-caps={only}", f"--ambient-caps={only}", f"--bounding-set={only}", "--"]


def hidden_agent():
    """From its /proc, which is a mount of its own in a mount namespace of its own, the processes of
    others are hidden."""
    release = tuple(int("".join(c for c in word if c.isdigit()) or 0)
                    for word in os.uname().release.split(".")[:2])
    if release < (5, 8):
        raise Skip("before Linux 5.8 all mounts of procfs have one hidepid= together")
    a = Agent(owner=AGENT_USER)
    os.makedirs(a.path("dumps"))
    os.chmod(a.path("dumps"), 0o1777)
    os.makedirs(a.path("proc"))
    a.config["snapshot"] = {"sysfs_root": a.path("sys"), "device_directory": a.path("dev")}
    a.config["sources"][0]["settle"] = "15s"  # as scene.node() has it
    a.config["hook"]["deadline"] = "20s"
    a.prefix = ["unshare", "--mount", "sh", "-c", 'mount -t proc -o hidepid=invisible proc '
                f'{a.path("proc")} && mount --bind {a.path("proc")} /proc && exec "$@"', "sh",
                *with_rights(RIGHTS)]
    Listener(a)
    return a


def container_cgroup():
    """A cgroup that is called as a container's is. @return its directory"""
    for root in ("/sys/fs/cgroup", "/sys/fs/cgroup/unified", "/sys/fs/cgroup/pids",
                 "/sys/fs/cgroup/systemd"):
        if not os.path.exists(os.path.join(root, "cgroup.procs")):
            continue
        path = os.path.join(root, f"cri-containerd-{CONTAINER}.scope")
        try:
            os.mkdir(path)
        except OSError:
            continue
        _cgroups.append(path)
        return path
    raise Skip("no cgroup can be made here")


JOB = f"""echo $$ > "$1/cgroup.procs" || exit 9
exec setpriv --reuid={JOB_USER} --regid={JOB_USER} --clear-groups sh -c 'echo "$$"; "$0" \\
    --pid $$ --tid 1 --log-id 1 --instance-id {INSTANCE} --error-code 1200 \\
    --local-output-dir "$1"; read -r line' "$3" "$2"
"""


def calls_hook(a, cgroup):
    unit = a.path("dumps", scene.UNIT)
    as_user(JOB_USER, lambda: scene.state_file(unit, 1))
    job = subprocess.Popen(["sh", "-c", JOB, "sh", cgroup, unit,
                            for_other_users(scene.HOOK, a.dir)],
                           env=scene.hook_environment(a), stdin=subprocess.PIPE,
                           stdout=subprocess.PIPE)
    _jobs.append(job)
    return job, int(job.stdout.readline())


def processes_of_incident(a):
    """Of the only one, as (pid, container); None as long as it is not written."""
    names = os.listdir(a.path("state", "snapshots"))
    assert len(names) <= 1, names
    try:
        with open(a.path("state", "snapshots", *names, "snapshot-context.json"),
                  encoding="utf-8") as f:
            return [(p["pid"], p.get("container")) for p in json.load(f)["processes"]]
    except FileNotFoundError:
        return None


@test
def a_process_that_is_hidden_from_the_agent_is_found_by_the_probe_with_its_container():
    scene.need_hook()
    namespaces()
    cgroup = container_cgroup()
    a = hidden_agent().start()
    job, pid = calls_hook(a, cgroup)
    wait_for("process and container are in the note's row",
             lambda: row(a, "pid, container") == f"{pid}|{CONTAINER}")
    end(job)
    wait_for("they are in its context", lambda: processes_of_incident(a) == [(pid, CONTAINER)])
    assert not reported_of(a, "is not known to this agent") and not reported_of(
        a, "could not be found"), reported_of(a, "process")
    document = scene.snapshot_of(a)
    assert [p["pid"] for p in document["processes"]] == [pid]
    assert scene.section(document, "process")["records"][0]["pid"] == pid
    a.stop()


@test
def a_process_that_the_agent_sees_itself_has_its_container_in_the_row_at_once_and_after_a_restart():
    scene.need_hook()
    namespaces()
    cgroup = container_cgroup()
    a = scene.node(devices=1)
    os.chmod(a.path("dumps"), 0o1777)
    a.start()
    job, pid = calls_hook(a, cgroup)
    wait_for("process and container are in the note's row",
             lambda: row(a, "pid, container") == f"{pid}|{CONTAINER}")
    wait_for("they are in its context", lambda: processes_of_incident(a) == [(pid, CONTAINER)])
    wait_for("the incident waits for its end", lambda: reported_of(a, ": waiting"))
    a.kill()
    a.start()
    end(job)
    context = scene.snapshot_of(a, "snapshot-context.json")
    assert [(p["pid"], p.get("container")) for p in context["processes"]] == [(pid, CONTAINER)]
    a.stop()


# Has a file system of its own alone, as a container of another pod.
LEAVE = """
import ctypes, os, platform, socket, sys
with open(os.path.join(sys.argv[1], "cgroup.procs"), "w") as f:
    f.write(str(os.getpid()))
s = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
s.connect(sys.argv[2])
libc = ctypes.CDLL(None, use_errno=True)
def call(result):
    assert result == 0, os.strerror(ctypes.get_errno())
if sys.argv[4] == "elsewhere":
    call(libc.unshare(0x20000))
    call(libc.mount(b"none", b"/", None, 0x44000, None))
    call(libc.mount(b"none", sys.argv[5].encode(), b"tmpfs", 0, None))
    os.chdir(sys.argv[5])
    call(libc.syscall(155 if platform.machine() == "x86_64" else 41, b".", b"."))
    call(libc.umount2(b".", 2))
s.send(sys.argv[3].encode())
print(s.recv(10000).decode())
"""


@test
def root_of_a_container_cannot_annotate_a_directory_that_is_not_mounted_in_there():
    namespaces()
    cgroup = container_cgroup()
    a = Agent()
    a.config["destinations"] = [BUCKET]
    a.config["snapshot"] = {"enabled": False}
    os.makedirs(a.path("dumps"))
    os.makedirs(a.path("root"))
    a.start()
    unit = a.path("dumps", scene.UNIT)
    scene.state_file(unit, 1)
    os.chmod(unit, 0o755)

    def send(place):
        note = note_of(unit, s3_output_prefix=f"s3://my-bucket/neuron/{place}").decode()
        done = run(sys.executable, "-c", LEAVE, cgroup, a.config["hook"]["socket"], note, place,
                   a.path("root"))
        assert done.returncode == 0, done.stderr
        return done.stdout
    answer = send("elsewhere")
    assert "accepted" in answer and "is not mounted in the hook's container" in answer, answer
    assert row(a, "ifnull(source, '-'), ifnull(s3_prefix, '-'), container") == f"-|-|{CONTAINER}"
    answer = send("here")
    assert "accepted" in answer and "refused" not in answer, answer
    assert a.sql("SELECT s3_prefix FROM notes WHERE source IS NOT NULL"
                 ) == "s3://my-bucket/neuron/here"
    a.stop()


@test
def a_process_that_the_probe_does_not_find_either_is_reported_by_the_incident():
    scene.need_hook()
    namespaces()
    a = hidden_agent().start()
    unit = a.path("dumps", scene.UNIT)
    hook = for_other_users(scene.HOOK, a.dir)

    def call():
        scene.state_file(unit, 4194303)
        done = subprocess.run([hook] + scene.hook_command(unit, 4194303)[1:],
                              env=scene.hook_environment(a), capture_output=True,
                              timeout=60 * PATIENCE, check=False)
        return done.returncode
    assert as_user(JOB_USER, call) == 0
    line = wait_for("the incident says so", lambda: reported_of(a, "could not be found"))
    assert len(line) == 1 and "4194303" in line[0] and row(a, "id") in line[0], line
    assert not reported_of(a, "is not known to this agent")
    a.wait_all()
    a.stop()


if __name__ == "__main__":
    if not shutil.which("unshare"):
        print("1..0 # SKIP unshare is not installed")
        sys.exit(0)
    sys.exit(main(clean_up))
