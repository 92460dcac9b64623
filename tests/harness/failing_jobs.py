"""A job on a node, as its agent sees it: rank processes with the environment of their launcher that
hold a Neuron device, and what each leaves behind when it fails, is killed or hangs.

A job on several nodes is one Job for each agent, with the same key, world size and root. Each agent
has a device directory of its own, so that on one machine it sees the ranks of its node alone.
"""
import hashlib
import os
import shlex
import signal
import subprocess
import time

from agent import BUILD_DIR, Agent, wait_for
from tap import Skip

HOOK = os.path.join(BUILD_DIR, "neuron-dump")
ZEROS = "0" * 16  # the cluster id of a rank that was in no collective
MASTER_PORT = "29500"

_jobs = []


def cleanup(failed=False):  # pylint: disable=unused-argument
    """Ends all ranks and hooks; before the agents' own cleanup."""
    while _jobs:
        _jobs.pop().stop()


class Hook:
    """A hook that a rank runs."""

    def __init__(self, status):
        self.status, self.returncode = status, None

    def poll(self):
        if self.returncode is None and os.path.exists(self.status):
            with open(self.status, encoding="ascii") as f:
                self.returncode = int(f.read())
        return self.returncode

    def wait(self, timeout=60):
        wait_for("the hook has ended", lambda: self.poll() is not None, timeout)
        return self.returncode


class Job:
    """The ranks of a job on the node of `agent`.
    @param key  what its launcher calls it: TORCHELASTIC_RUN_ID or SLURM_JOB_ID
    @param root  NEURON_RT_ROOT_COMM_ID, `host:port`, whose host is MASTER_ADDR too; None: neither
    @param launcher  torchrun, neuron-pjrt, slurm (srun alone, on a cluster that is called prod) or
        openmpi
    @param set_by_program  variables that only the hook sees: the program has set them itself, and
        /proc/PID/environ is without
    @param sets_ranks  the program sets torchrun's variables, whatever its launcher is
    @param uid  of the ranks and their dumps; None: as this program"""

    def __init__(self, agent: Agent, key, world_size, root=None, launcher="torchrun",
                 set_by_program=(), sets_ranks=False, uid=None):
        self.agent, self.key, self.world_size, self.root = agent, key, world_size, root
        self.launcher, self.set_by_program = launcher, set_by_program
        self.sets_ranks, self.uid = sets_ranks, uid
        self.processes, self.hooks = {}, []
        _jobs.append(self)

    # --- what identifies it ---

    @property
    def master(self):
        return self.root.rpartition(":")[0].strip("[]") if self.root else None

    @property
    def job_key(self):
        """As lib/neuron/job.c builds it."""
        if self.launcher == "neuron-pjrt":
            return f"neuron-pjrt:slurm={self.key}"
        if self.launcher == "slurm":
            return f"slurm:slurm={self.key}@prod,step=0"
        if self.launcher == "openmpi":
            return f"openmpi:namespace=prterun-{self.key}@1"
        master = f",master={self.master}:{MASTER_PORT}" if self.root else ""
        return f"torchrun:run={self.key}{master}"

    @property
    def incident_key(self):
        """The directory below `.incidents` at the destination."""
        return hashlib.sha256(self.job_key.encode()).hexdigest()[:16]

    def environment(self, rank):
        """Of the rank's program, and so of its hook."""
        local = str([*self.processes, rank].index(rank))  # in the order of their starts
        env = {"PATH": os.environ["PATH"]}
        by_launcher = {
            "slurm": {"SLURM_JOB_ID": self.key, "SLURM_CLUSTER_NAME": "prod", "SLURM_STEP_ID": "0",
                      "SLURM_PROCID": str(rank), "SLURM_STEP_NUM_TASKS": str(self.world_size),
                      "SLURM_LOCALID": local},
            "openmpi": {"OMPI_COMM_WORLD_RANK": str(rank), "OMPI_COMM_WORLD_LOCAL_RANK": local,
                        "OMPI_COMM_WORLD_SIZE": str(self.world_size),
                        "PMIX_NAMESPACE": f"prterun-{self.key}@1"}}
        if self.launcher in by_launcher:
            env |= by_launcher[self.launcher]
        elif self.launcher == "neuron-pjrt":
            env |= {"SLURM_JOB_ID": self.key, "SLURM_LOCALID": local,
                    "NEURON_PJRT_PROCESS_INDEX": str(rank),
                    "NEURON_PJRT_PROCESSES_NUM_DEVICES": ",".join(["4"] * self.world_size)}
        else:
            env |= {"TORCHELASTIC_RUN_ID": self.key, "TORCHELASTIC_RESTART_COUNT": "0",
                    "RANK": str(rank), "LOCAL_RANK": local, "WORLD_SIZE": str(self.world_size)}
        if self.root:
            env |= {"MASTER_ADDR": self.master, "MASTER_PORT": MASTER_PORT,
                    "NEURON_RT_ROOT_COMM_ID": self.root}
        return env

    # --- its processes ---

    def start(self, *ranks):
        """Each holds a device. They live until they are ended, or this program is. @return self"""
        for rank in ranks:
            assert rank not in self.processes, f"rank {rank} runs already"
            device = os.path.join(self.agent.config["snapshot"]["device_directory"],
                                  f"neuron{len(self.processes) % 16}")
            fd = os.open(device, os.O_RDWR | os.O_CREAT, 0o666)
            env = {k: v for k, v in self.environment(rank).items() if k not in self.set_by_program}
            self.processes[rank] = subprocess.Popen(
                ["/bin/sh", "-c", 'while read -r line; do eval "$line"; done'],
                stdin=subprocess.PIPE, pass_fds=(fd,), env=env, user=self.uid, group=self.uid,
                extra_groups=None if self.uid is None else [])
            os.close(fd)
        return self

    def pid(self, rank):
        return self.processes[rank].pid

    def wait_seen(self, timeout=45):
        """Until the agent has seen all ranks that run, with the environment of their own program.
        Its scans are 30 s apart; a reload starts one."""
        self.agent.reload()
        pids = ",".join(str(p.pid) for p in self.processes.values() if p.poll() is None)
        n = pids.count(",") + 1
        wait_for("the agent has seen the ranks", lambda: self.agent.sql(
            f"SELECT count(*) FROM jobs WHERE pid IN ({pids}) AND "
            f"instr(CAST(document AS TEXT), '\"{self.launcher}')") == str(n), timeout)
        return self

    def kill(self, *ranks):
        """Without a word, and without a dump."""
        for rank in ranks:
            self.processes[rank].kill()
            self.processes[rank].wait()

    def hang(self, *ranks):
        """Alive, and nothing comes of it any more."""
        for rank in ranks:
            self.processes[rank].send_signal(signal.SIGSTOP)

    # --- its failures ---

    def dump(self, rank, *, date_time=None, cluster_id=ZEROS, size=1 << 16, **options):
        """What the runtime writes for the rank: files named by its pid, in a directory that ranks
        of one node share when they have the same names. @return the directory"""
        if self.uid is not None:
            options["owner"] = (self.uid, self.uid)
        return self.agent.dump(pid=self.pid(rank), rank=rank, world_size=self.world_size,
                               date_time=date_time or date_time_now(), cluster_id=cluster_id,
                               instance_id=self.agent.config["node"]["instance_id"], size=size,
                               cores=2, cc_cores=1, **options)

    def hook(self, rank, directory, *, date_time=None, cluster_id=ZEROS, code=1200,
             location="nrt_execute"):
        """The rank runs the real hook, with its environment. @return a Hook, which need not be
        waited for"""
        if not os.path.exists(HOOK):
            raise Skip("neuron-dump is not built")
        flags = {"neff-name": "model.neff", "neff-uuid": "0f" * 16,
                 "date-time": date_time or date_time_now(), "pid": self.pid(rank),
                 "tid": self.pid(rank), "log-id": 1,
                 "instance-id": self.agent.config["node"]["instance_id"], "cluster-id": cluster_id,
                 "error-location": location, "error-code": code, "local-output-dir": directory}
        own = self.agent.config["hook"]
        env = self.environment(rank)
        if self.sets_ranks:
            env |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(self.world_size),
                    "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": MASTER_PORT}
        env |= {"NEURON_COLLECTD_HOOK_SOCKET": own["socket"],
                "NEURON_COLLECTD_MAILBOX": own["mailbox"],
                "NEURON_COLLECTD_SYSFS": self.agent.path("sys")}
        words = [word for name, value in flags.items() for word in (f"--{name}", str(value))]
        status = self.agent.path(f"hook-{self.pid(rank)}-{len(self.hooks)}")
        command = shlex.join(["env", "-i", *(f"{k}={v}" for k, v in env.items()), HOOK, *words])
        self.processes[rank].stdin.write(
            f"{command} </dev/null >/dev/null 2>&1; echo $? >{status}.new; "
            f"mv {status}.new {status}\n".encode())
        self.processes[rank].stdin.flush()
        self.hooks.append(Hook(status))
        return self.hooks[-1]

    def fail(self, rank, *, date_time=None, cluster_id=ZEROS, code=1200, location="nrt_execute",
             hook=True, exits=True, **options):
        """A failure from its dump to its end. @param hook  whether the runtime calls the hook
        @param exits  whether the process ends after it @return the dump's directory"""
        date_time = date_time or date_time_now()
        directory = self.dump(rank, date_time=date_time, cluster_id=cluster_id, **options)
        if hook:
            self.hook(rank, directory, date_time=date_time, cluster_id=cluster_id, code=code,
                      location=location)
        if exits:
            if hook:
                self.hooks[-1].wait()
            self.kill(rank)
        return directory

    def stop(self):
        """Ends what is left of it."""
        for process in self.processes.values():
            if process.poll() is None:
                process.kill()
            process.wait()
            process.stdin.close()
        self.processes.clear()
        self.hooks.clear()


def date_time_now():
    """As a rank without a collective spells it: local."""
    return time.strftime("%Y%m%d-%H%M%S")
