"""A Slurm cluster of one node: Debian's munged, slurmctld and slurmd, as root, in a network
namespace with an address that is not loopback, and in a mount and UTS namespace of the test's
process, so that nothing of it is seen by the machine. All of it ends with the test.

The system directories, users and programs that the scripts name exist in that mount namespace
alone.
"""
import ctypes
import os
import pwd
import shutil
import socket

import network
from agent import CLI, DAEMON, need, run, wait_for
from servers import Home
from tap import Skip

CLONE_NEWNS, CLONE_NEWUTS = 0x20000, 0x4000000
MS_REC, MS_PRIVATE = 0x4000, 0x40000
HOST = "node1"
# of a node that is done with its job
DONE = ("idle", "drained", "draining", "down")
USERS = ("neuron-collectd:x:64101:64101::/:/usr/sbin/nologin", "trainer:x:64102:64102::/:/bin/sh")
PLACES = ("/var/lib/neuron-dumps", "/run/neuron-collectd", "/var/lib/neuron-collectd")
PROGRAMS = {CLI: "/usr/local/bin", DAEMON: "/usr/local/sbin"}

_entered = []
_cpu = []  # on which the mount namespace was made


def _mount(*arguments):
    result = run("mount", *arguments)
    assert result.returncode == 0, f"mount {arguments}: {result.stderr}"


def _cover(path, home):
    """A directory below a path of the system: an overlay, of which the machine sees nothing."""
    top = path
    while not os.path.isdir(top):
        top = os.path.dirname(top)
    name = top.strip("/").replace("/", "-")
    for part in ("upper", "work"):
        os.makedirs(home.path(name, part), exist_ok=True)
    if not any((top + "/").startswith(covered + "/") for covered in _entered):
        _mount("-t", "overlay", "overlay", "-o", f"lowerdir={top},upperdir={home.path(name)}/upper,"
               f"workdir={home.path(name)}/work", top)
        _entered.append(top)
    os.makedirs(path, exist_ok=True)


def enter(home):
    """Before there is a thread: namespaces of this process, users, and the directories that the
    scripts name."""
    if _entered:
        return
    need("slurmctld", "slurmd", "munged", "sbatch", "setpriv", "taskset")
    network.enter()
    libc = ctypes.CDLL(None, use_errno=True)
    # Linux 6.18 numbers namespaces in a row for each CPU and refuses to bind one of a lower number
    # than one's own (EINVAL). job_container/tmpfs, which does that, runs where this one was made.
    cpus = os.sched_getaffinity(0)
    _cpu.append(min(cpus))
    os.sched_setaffinity(0, set(_cpu))
    if libc.unshare(CLONE_NEWNS | CLONE_NEWUTS) != 0 or libc.mount(
            None, b"/", None, MS_REC | MS_PRIVATE, None) != 0:
        raise Skip(f"no mount namespace: {os.strerror(ctypes.get_errno())}")
    os.sched_setaffinity(0, cpus)
    socket.sethostname(HOST)
    _entered.append("namespaces")
    _cover("/etc", home)
    with open("/etc/passwd", "a", encoding="ascii") as f:
        f.writelines(u + "\n" for u in USERS)
    with open("/etc/group", "a", encoding="ascii") as f:
        f.writelines(":".join(u.split(":")[:3]) + ":\n" for u in USERS)
    for path in PLACES:
        _cover(path, home)
        for name in os.listdir(path):
            run("rm", "-rf", os.path.join(path, name))
    for program, directory in PROGRAMS.items():
        _cover(directory, home)
        shutil.copy(program, directory)
    os.chmod(PLACES[0], 0o1777)
    for path in PLACES[1:]:
        os.chown(path, 64101, 64101)


def place(home, source, path):
    """A file of the test under a name of the system."""
    _cover(os.path.dirname(path), home)
    shutil.copy(source, path)


class Slurm:
    """@param settings  lines of slurm.conf, {name: value}"""

    def __init__(self, home, **settings):
        self.home = home
        for name in ("state", "spool", "job"):
            os.makedirs(home.path(name), exist_ok=True)
        os.chmod(home.path("job"), 0o1777)
        os.chmod(home.dir, 0o755)
        with open(home.path("munge.key"), "wb") as f:
            f.write(os.urandom(128))
        os.chmod(f.name, 0o600)
        self.settings = {
            "ClusterName": "test", "SlurmctldHost": f"{HOST}({network.HUB})",
            "AuthInfo": f"socket={home.path('munge.sock')}", "SlurmUser": "root",
            "StateSaveLocation": home.path("state"), "SlurmdSpoolDir": home.path("spool"),
            "SlurmctldPidFile": home.path("slurmctld.pid"),
            "SlurmdPidFile": home.path("slurmd.pid"),
            "ProctrackType": "proctrack/linuxproc", "TaskPlugin": "task/none",
            "ReturnToService": "2", "SlurmdParameters": "config_overrides", "KillWait": "1",
            "SelectType": "select/cons_tres", "MpiDefault": "none", "SchedulerParameters":
            "sched_interval=1,batch_sched_delay=0",
            "NodeName": f"{HOST} NodeAddr={network.HUB} CPUs=4 State=UNKNOWN",
            "PartitionName": f"all Nodes={HOST} Default=YES MaxTime=10 State=UP OverSubscribe=YES",
        } | settings
        self.write()

    def write(self):
        self.home.write("slurm.conf", "".join(f"{k}={v}\n" for k, v in self.settings.items()))

    def start(self):
        conf = self.home.path("slurm.conf")
        self.environment = os.environ | {"SLURM_CONF": conf}
        self.home.spawn("munged", "munged", "--foreground", "--force", "--socket",
                        self.home.path("munge.sock"), "--key-file", self.home.path("munge.key"),
                        "--pid-file", self.home.path("munged.pid"), "--seed-file",
                        self.home.path("munged.seed"), "--log-file", self.home.path("munged.log"))
        self.home.wait_until("munged", "munged listens",
                             lambda: os.path.exists(self.home.path("munge.sock")))
        self.home.spawn("slurmctld", "slurmctld", "-D", "-c", "-f", conf)
        pinned = ["taskset", "-c", str(_cpu[0])] if "JobContainerType" in self.settings else []
        self.home.spawn("slurmd", *pinned, "slurmd", "-D", "-c", "-f", conf, "-N", HOST)
        self.home.wait_until("slurmd", "the node is idle", lambda: self.state() == "idle", 30)
        return self

    def stop(self):
        for name in ("slurmd", "slurmctld", "munged"):
            self.home.end(name)

    def run(self, *command, **options):
        return run(*command, env=self.environment, **options)

    def state(self):
        """Of the node: idle, allocated, mixed, completing, drained …"""
        return self.run("sinfo", "-h", "-N", "-o", "%T").stdout.strip().rstrip("*")

    def submit(self, script, user="trainer", **environment):
        """@return the id of a batch job that runs this script"""
        who = pwd.getpwnam(user)
        with open(self.home.path("job", "script"), "w", encoding="utf-8") as f:
            f.write("#!/bin/sh\n" + script)
        result = run("setpriv", "--reuid", str(who.pw_uid), "--regid", str(who.pw_gid),
                     "--clear-groups", "sbatch", "--parsable", "-n1", "-o",
                     self.home.path("job", "out.%j"), f.name, cwd=self.home.path("job"),
                     env=self.environment | environment)
        assert result.returncode == 0, f"sbatch: {result.stderr}{self.words()}"
        return int(result.stdout)

    def job_state(self, job):
        shown = self.run("scontrol", "show", "job", str(job)).stdout
        return next((w.split("=")[1] for w in shown.split() if w.startswith("JobState=")), "GONE")

    def output(self, job):
        with open(self.home.path("job", f"out.{job}"), encoding="utf-8") as f:
            return f.read()

    def wait_ended(self, job, timeout=60):
        """Until the script has ended; its Epilog may still run."""
        wait_for(f"job {job} has ended", lambda: self.job_state(job) not in (
            "PENDING", "CONFIGURING", "RUNNING"), timeout, 0.02)

    def wait_idle(self, job, timeout=60):
        """@return the node's state when it is done with a job: idle, or that it takes no other"""
        self.wait_ended(job, timeout)
        wait_for("the node is done with it", lambda: self.state() in DONE, timeout, 0.02)
        return self.state()

    def words(self):
        return "".join(f"--- {n}\n{self.home.words(n)}" for n in ("munged", "slurmctld", "slurmd"))
