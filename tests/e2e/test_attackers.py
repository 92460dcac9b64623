#!/usr/bin/env python3
"""Attackers of all kinds at once, on a node of a job of two: one fills the disk, one takes each
name that it sees on the shared volume and plants records there, one has taken over the process
of the bus, one was first in the directory of the dumps, forty accounts leave cores that are
costly to read, and hooks flood the agent. The dumps of a job that fails meanwhile are delivered in
30 s, and the failure names the rank that failed first; where the attacker has made `.incidents`
before any agent, all dumps have one name, and what he invents is not the report's answer."""
import os
import shutil
import signal
import subprocess
import sys
import threading
import time

sys.dont_write_bytecode = True  # the source tree may be read-only, and is packed as it is
sys.path.insert(0, os.path.join(os.path.dirname(os.path.realpath(__file__)), "..", "harness"))
# pylint: disable=wrong-import-position
import incidents
import network
import test_agreement as scene
from agent import DAEMON, family, need_root, wait_for
from failing_jobs import Job
from places import SharedVolume
from tap import figures, in_time, main, notes, test
from test_bus import Stranger
from test_notes import Hook, note_of

ATTACKER, VICTIM = 65533, 65534
N_COSTLY, N_HOOKS = 40, 300
DELIVERED_MAX = 30  # seconds
MIB = 1 << 20
ATTACKED = os.path.join(os.path.dirname(DAEMON), "tests", "e2e", "neuron-collectd-attacked")


def free_bytes(path):
    s = os.statvfs(path)
    return s.f_bavail * s.f_frsize


class SmallDisk:
    """All that an agent has, the volume excepted, is on a file system of 192 MiB."""

    def __init__(self, a):
        self.a, kept = a, a.dir + ".kept"
        shutil.copytree(a.dir, kept, symlinks=True)
        subprocess.run(["mount", "-t", "tmpfs", "-o", "size=192m,mode=1777", "none", a.dir],
                       check=True)
        shutil.copytree(kept, a.dir, symlinks=True, dirs_exist_ok=True)
        shutil.rmtree(kept)
        os.chmod(a.dir, 0o1777)

    def close(self):
        subprocess.run(["umount", "-l", self.a.dir], check=True)


class Attackers:
    """Threads of this program for what needs no account, processes of ATTACKER for the rest."""

    def __init__(self, net, share, key):
        self.net, self.a, self.share, self.key = net, net[0], share, key
        self.end, self.pids, self.threads, self.counts = threading.Event(), [], [], {}
        self.faults = []

    # --- before the agents start ---

    def prepare(self, is_squatted):
        for path in ("dumps", "cores", "work"):
            os.makedirs(self.a.path(path), exist_ok=True)
            os.chmod(self.a.path(path), 0o1777)
        os.mkdir(self.a.path("dumps", ".neuron-collectd"), 0o777)
        os.chown(self.a.path("dumps", ".neuron-collectd"), ATTACKER, ATTACKER)
        # of an earlier failure, or the attacker's
        os.mkdir(os.path.join(self.share.path, ".incidents"), 0o755)
        if is_squatted:
            os.chown(os.path.join(self.share.path, ".incidents"), ATTACKER, ATTACKER)

    # --- at once ---

    def fill_disk(self):
        """And what it leaves it removes at once, so that only links hold it."""
        n = 0
        with open(self.a.path("work", "filler"), "ab", buffering=0) as f:
            while True:
                while free_bytes(self.a.dir) > 12 * MIB:
                    f.write(bytes(MIB))
                unit = self.a.path("dumps", f"dt-20260101-000000-cid-{n:016x}")
                os.mkdir(unit)
                with open(os.path.join(unit, f"i-0-nrt-pid-{n}.log"), "wb") as log:
                    log.write(bytes(1 << 16))
                time.sleep(0.3)
                shutil.rmtree(unit)
                n += 1

    def squat_names(self):
        """Names on the volume, as soon as an incident's is seen."""
        while True:
            for name in os.listdir(self.share.path):
                if name.endswith(".x"):
                    continue
                for place in (name + ".x", os.path.join(name, "i-0bad"),
                              f"{name}.{self.a.config['node']['instance_id']}"):
                    try:
                        os.mkdir(os.path.join(self.share.path, place), 0o700)
                    except OSError:
                        pass
            time.sleep(0.02)

    def plant_records(self):
        """An innocent node is the first failure of the job, and of each other one."""
        at = os.path.join(self.share.path, ".incidents")
        while True:
            for key in {self.key, *os.listdir(at)}:
                files = {incidents.record_name(f"i-0bad{n}", key): incidents.record(
                    f"i-0bad{n}", [incidents.claim(1, time.time() - 300, error_code=1202)], key)
                    for n in range(3)} | {
                        incidents.decision_name(key): incidents.decision(key)}
                try:
                    incidents.write(self.share.path, files)
                except OSError:
                    pass
            time.sleep(0.05)

    def flood_hooks(self):
        held = []
        while True:
            try:
                held.append(Hook(self.a, note_of("/nowhere", pid=1)))
            except OSError:
                time.sleep(0.01)
            if len(held) > N_HOOKS:
                held.pop(0).close()

    def run_bus(self):
        """What the process of the bus tries, each second."""
        paths = self.a.socket, self.a.path("run", "probe.sock"), self.a.path("state")
        while not self.end.wait(1):
            stranger = Stranger(self.net.nodes[0].address)
            stranger.send(f"attack {' '.join(paths)}".encode())
            stranger.close()
            self.counts["bus"] = self.counts.get("bus", 0) + 1

    def leave_cores(self):
        """Of many accounts; a reader that has begun never ends by itself."""
        for n in range(N_COSTLY):
            path = self.a.path("cores", f"core.{n}")
            with open(path + ".new", "wb") as f:
                f.write(b"no core")
            os.chown(path + ".new", 100000 + n, 100000 + n)
            os.rename(path + ".new", path)
        while not self.end.wait(0.05):
            for pid in family(self.a.pid)[1:]:
                try:
                    with open(f"/proc/{pid}/cmdline", "rb") as f:
                        if b"--child=crash" in f.read():
                            os.kill(pid, signal.SIGSTOP)
                            self.counts["cores"] = self.counts.get("cores", 0) + 1
                except OSError:
                    pass

    # --- their life ---

    def _fork(self, function):
        pid = os.fork()
        if pid:
            self.pids.append(pid)
            return
        try:
            os.setgroups([])
            os.setgid(ATTACKER)
            os.setuid(ATTACKER)
            signal.alarm(900)
            function()
        except BaseException as e:  # pylint: disable=broad-except  # for the log of the test
            print(f"# attacker: {function.__name__}: {e!r}", flush=True)
        finally:
            os._exit(1)

    def _run(self, function):
        try:
            function()
        except Exception as e:  # pylint: disable=broad-except  # told by close()
            self.faults.append(f"{function.__name__}: {e!r}")

    def start(self):
        for function in (self.fill_disk, self.squat_names, self.plant_records,
                         self.flood_hooks):
            self._fork(function)
        for function in (self.run_bus, self.leave_cores):
            self.threads.append(threading.Thread(target=self._run, args=(function,)))
            self.threads[-1].start()

    def close(self):
        self.end.set()
        ended = [pid for pid in self.pids if os.waitpid(pid, os.WNOHANG)[0] != 0]
        for pid in set(self.pids) - set(ended):
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
        for thread in self.threads:
            thread.join()
        assert not ended and not self.faults, ("an attack ended by itself", ended, self.faults)


def attack(is_squatted):
    need_root()
    with scene.nodes(2, shifts=(0,), bus=True) as net:
        share, a = SharedVolume(net), net[0]
        disk = SmallDisk(a)
        a.program = lambda: ATTACKED
        for agent in net.agents:
            os.chmod(agent.dir, 0o1777)  # where ranks leave the status of their hooks
            agent.config["log"] = {"format": "text", "level": "debug"}
        a.config["sources"].append(a.source("cores", "process-core", "cores", settle="1s"))
        jobs = [Job(agent, "victim", 4, root=net.root, uid=VICTIM) for agent in net.agents]
        attackers = Attackers(net, share, jobs[0].incident_key)
        attackers.prepare(is_squatted)
        try:
            scene.start(net)
            ranks = {rank: jobs[rank // 2] for rank in range(4)}
            for rank, job in ranks.items():
                job.start(rank)
            scene.wait_bus(net, ranks)
            attackers.start()
            wait_for("the disk is full", lambda: free_bytes(a.dir) < 14 * MIB, 60)
            wait_for("readers of cores are stopped", lambda: attackers.counts.get("cores"), 60)
            begin = time.monotonic()
            scene.fail(ranks, 2, code=scene.HW_ERROR)
            time.sleep(0.7)  # the order of failures that are closer is not known
            last = time.monotonic()
            scene.fail(ranks, 0, 1, 3)
            for agent, job in zip(net.agents, jobs):
                wait_for("the job's dumps are delivered", lambda agent=agent: delivered(agent), 120)
            seconds = time.monotonic() - last
            (check_squatted if is_squatted else check_report)(net, share, jobs)
            figures.append(f"delivered {seconds:.1f} s after the last hooks began, "
                           f"{time.monotonic() - begin:.1f} s to the report; {attackers.counts}")
            assert a.status()["drain"] is None, a.status()["drain"]
            assert not os.path.exists(a.path("state", "planted"))
            attackers.close()
            in_time(seconds, DELIVERED_MAX, "the delivery of the victim's dumps")
            for agent in net.agents:
                agent.stop()
        except BaseException:
            notes.append(subprocess.run(["find", share.path, "-path", "*incident*", "-printf",
                                         "%U %m %p\n"], capture_output=True, text=True,
                                        check=False).stdout[-4000:])
            for where in ("", f".incidents/{jobs[0].incident_key}", place_of(a)):
                result = a.cli("report", share.url(where))
                notes.append(f"report {where}: {result.returncode} {result.stdout[:1500]} "
                             f"{result.stderr[:1500]}")
            notes.extend(f"{agent.dir}:\n" + "\n".join(agent.log.splitlines()[-60:])
                         for agent in net.agents)
            attackers.end.set()
            raise
        finally:
            for pid in attackers.pids:
                try:
                    os.kill(pid, signal.SIGKILL)
                except OSError:
                    pass
            for agent in net.agents:
                if agent.process:
                    agent.kill()
            disk.close()


def check_report(net, share, jobs):
    """The first failure is the victim's."""
    document = wait_for("the report has every rank", lambda: present(
        scene.report(net[0], share, f".incidents/{jobs[0].incident_key}")), 60)
    first = document["first_failure"]
    assert (first["rank"], first["error_code"]) == (2, scene.HW_ERROR), first
    assert "i-0bad" not in str(document), document


def check_squatted(net, share, jobs):
    """The bus has decided, so that both nodes use one name, and the report has no answer."""
    named = {place_of(a).split(".")[0] for a in net.agents}
    assert len(named) == 1 and "" not in named, named
    for place in ("", f".incidents/{jobs[0].incident_key}"):
        result = net[0].cli("report", share.url(place))
        assert result.returncode == 3 and not result.stdout, (place, result)
        assert f"uid {ATTACKER}" in result.stderr, (place, result)


@test
def the_dumps_of_a_job_are_delivered_and_its_first_failure_is_right_beside_all_attackers():
    attack(is_squatted=False)


@test
def where_the_attacker_has_made_the_directory_of_incidents_his_failure_is_no_answer():
    attack(is_squatted=True)


def delivered(a):
    """Whether all dumps of the job on a node are; those of the attacker are others."""
    found = [b for b in scene.base_bundles(a) if "20260101-000000" not in b["path"]]
    return len(found) >= 2 and all(b["state"] == "delivered" for b in found)


def place_of(a):
    """Where the job's dumps are on the volume."""
    for b in scene.base_bundles(a):
        if "20260101-000000" not in b["path"] and b["deliveries"][0]["object"]:
            return os.path.basename(os.path.dirname(os.path.dirname(b["deliveries"][0]["object"])))
    return ""


def present(document):
    """@return the document, if all ranks are there"""
    states = [r["state"] for r in document["ranks"]] if document else []
    return states.count("present") == 4 and document


if __name__ == "__main__":
    sys.exit(main(scene.cleanup))
