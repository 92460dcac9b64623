#!/usr/bin/env python3
"""Runs in the VM (campaign.py beside this): rounds of agents on NFS, btrfs and xfs, each drawn by a
seed. What was delivered is judged by tar, zstd and sha256sum.

    inside.py SEED MINUTES [FIRST-ROUND [THEME]]
"""
import glob
import os
import random
import shutil
import signal
import subprocess
import sys
import time
import traceback

sys.path.insert(0, os.path.join(os.path.dirname(os.path.realpath(__file__)), "harness"))
# pylint: disable=wrong-import-position
import agent as harness
import make_dump
from agent import Agent, tree, wait_for

EXPORT = "/export"
SERVER = "10.9.0.1"
NODES = ("i-0a1b2c3d4e5f60710", "i-0a1b2c3d4e5f60711")
USER = 1001
DEAD_SECONDS = 11 * 60
MARK_SECONDS = 10  # from a manifest, or the share's return, to the mark of the delivery
ROUND_SECONDS = 400  # longer is a fault, wherever it waits


def run(*command, check=True):
    result = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True,
                            check=False, timeout=300)
    if check and result.returncode:
        raise RuntimeError(f"{command}: {result.returncode}: {result.stderr}{result.stdout}")
    return result


def write(path, text):
    with open(path, "w", encoding="ascii") as f:
        f.write(text)


class Server:
    """NFS, in the VM's own network; each client has a network and a host name of its own, or the
    server would take both for one."""

    def __init__(self):
        for module in ("nfsd", "nfsv3", "nfsv4", "veth", "loop"):
            run("modprobe", module)
        os.makedirs(EXPORT, exist_ok=True)
        run("mount", "-t", "nfsd", "nfsd", "/proc/fs/nfsd")
        for name in ("nfsv4gracetime", "nfsv4leasetime"):
            write(f"/proc/fs/nfsd/{name}", "10\n")
        run("rpcbind", "-w")
        run("rpc.mountd")
        for i in range(2):
            run("ip", "netns", "add", f"n{i}")
            run("ip", "link", "add", f"v{i}", "type", "veth", "peer", "name", "eth0", "netns",
                f"n{i}")
            run("ip", "addr", "add", f"10.9.{i}.1/24", "dev", f"v{i}")
            run("ip", "link", "set", f"v{i}", "up")
            for command in (["link", "set", "lo", "up"], ["addr", "add", f"10.9.{i}.2/24", "dev",
                                                         "eth0"],
                            ["link", "set", "eth0", "up"],
                            ["route", "add", "default", "via", f"10.9.{i}.1"]):
                run("ip", "-n", f"n{i}", *command)
        self.options = None

    def start(self):
        run("rpc.nfsd", "4")

    def stop(self):
        run("rpc.nfsd", "0")

    def export(self, squash):
        self.options = f"rw,async,no_subtree_check,fsid=7,{squash}"
        run("exportfs", "-o", self.options, f"10.9.0.0/16:{EXPORT}")

    def withdraw(self):
        run("exportfs", "-u", f"10.9.0.0/16:{EXPORT}")
        run("exportfs", "-f")

    def grant_again(self):
        run("exportfs", "-o", self.options, f"10.9.0.0/16:{EXPORT}")


def mount_nfs(i, options, place):
    os.makedirs(place, exist_ok=True)
    run("nsenter", f"--net=/run/netns/n{i}", "unshare", "--uts", "sh", "-c",
        f"hostname node{i}; mount -t nfs -o {options} 10.9.{i}.1:{EXPORT} {place}")


def unmount(place):
    if os.path.ismount(place):
        for _ in range(20):
            if run("umount", place, check=False).returncode == 0:
                return
            time.sleep(0.5)
        run("umount", "-l", place)


def loop_fs(kind, megabytes, image, place):
    os.makedirs(place, exist_ok=True)
    with open(image, "wb") as f:
        f.truncate(megabytes << 20)
    run("mkfs." + kind, "-q", image)
    run("mount", "-o", "loop", image, place)
    os.chmod(place, 0o1777)


class Round:
    """@param at  a fresh directory. What is drawn is drawn in __init__(), so that a seed says it"""

    theme = ""

    def __init__(self, server, rng, at):
        self.server, self.rng, self.at = server, rng, at
        self.units = {}   # name -> {path: sha256}
        self.faults, self.events, self.agents, self.mounts = [], [], [], []
        self.n_made = 0
        self.not_idle = []
        self.allowed = []  # units that are twice by design
        self.may_lack = set()  # (unit, path)

    def event(self, text):
        self.events.append(text)

    # --- units ---

    def unit(self, where, name=None):
        """A directory with files of a user. @return it"""
        self.n_made += 1
        name = name or f"job-{self.n_made}"
        files = {}
        # complete when it appears, also on a busy machine
        unit = os.path.join(os.path.dirname(where), f"coming-{name}")
        os.makedirs(unit)
        for i in range(self.rng.randint(1, 4)):
            data = self.rng.randbytes(self.rng.choice((10, 5000, 300000)))
            with open(os.path.join(unit, f"file-{i}"), "wb") as f:
                f.write(data)
            os.chown(os.path.join(unit, f"file-{i}"), USER, USER)
            files[f"file-{i}"] = harness.hashlib.sha256(data).hexdigest()
        os.chown(unit, USER, USER)
        self.units[name] = files
        os.rename(unit, os.path.join(where, name))
        return os.path.join(where, name)

    # --- agents ---

    def agent(self, i, source, out, uid=0, **more):
        directory = os.path.join(self.at, f"agent{i}")
        os.makedirs(directory)
        a = Agent(directory, owner=uid or None)
        os.chmod(directory, 0o755)
        if uid:
            os.chown(directory, uid, uid)
            a.prefix = ["setpriv", f"--reuid={uid}", f"--regid={uid}", "--clear-groups",
                        "--inh-caps=-all", "--bounding-set=-all"]
        a.config["node"]["instance_id"] = NODES[i]
        a.config["sources"] = [a.source("jobs", "directory", os.path.join(source, "job-%p"),
                                        scan_interval="500ms", max_wait="30m", **more)]
        a.config["destinations"] = [a.volume("archive", out)]
        self.agents.append(a)
        return a

    def counts(self):
        for a in self.agents:
            if a.process and a.process.poll() is not None:
                raise AssertionError(f"an agent ended with {a.process.returncode}")
        return [a.counts() for a in self.agents if a.process]

    def is_quiet(self):
        """Nothing is underway, and by the manifests all is there: then it is worth judging."""
        if sum(c["settling"] + c["ready"] + c["shipping"] for c in self.counts()):
            return False
        self.not_idle = [a.config["node"]["instance_id"] for a in self.agents
                         if a.process and not a.status()["idle"]]
        return not self.missing() and not self.not_idle

    def missing(self):
        wanted = {(name, path) for name, files in self.units.items() for path in files}
        there = set()
        for manifest in self.archived():
            with open(manifest, encoding="utf-8") as f:
                m = harness.json.load(f)
            there |= {(os.path.basename(m["source"]["path"]), e["path"]) for e in m["members"]}
        return wanted - there - self.may_lack

    # --- the judge ---

    def archived(self):
        found = []
        for base, _, names in os.walk(self.archive):
            found += [os.path.join(base, n) for n in names if n.endswith(".manifest.json")]
        return found

    def judge(self):
        """tar, zstd and sha256sum say what is in each object; the manifest only which unit it is
        of."""
        found = {}
        for manifest in self.archived():
            with open(manifest, encoding="utf-8") as f:
                m = harness.json.load(f)
            name = os.path.basename(m["source"]["path"])
            archive = manifest.removesuffix(".manifest.json") + ".tar.zst"
            if run("zstd", "-tq", archive, check=False).returncode:
                self.faults.append(f"{name}: '{archive}' is damaged")
                continue
            if not m["bundle"]["complete"]:
                self.faults.append(f"{name}: labelled incomplete: {m['bundle']['reasons']}")
            target = os.path.join(self.at, "extracted")
            os.makedirs(target)
            run("tar", "--zstd", "-x", "-C", target, "-f", archive)
            for base, _, names in os.walk(target):
                for n in names:
                    path = os.path.join(base, n)
                    digest = run("sha256sum", path).stdout.split()[0].lstrip("\\")
                    found.setdefault(name, []).append(((os.path.relpath(path, target), digest),
                                                       manifest))
            shutil.rmtree(target)
        for name, files in self.units.items():
            deliveries = found.pop(name, [])
            got = [f for f, _ in deliveries]
            lost = {(p, d) for p, d in set(files.items()) - set(got)
                    if (name, p) not in self.may_lack}
            doubled = [f for f in set(got) if got.count(f) > 1 and not self.may_be_twice(
                name, [m for g, m in deliveries if g == f], {m for _, m in deliveries})]
            if lost:
                self.faults.append(f"{name}: lost: {sorted(p for p, _ in lost)}")
            if doubled:
                self.faults.append(f"{name}: {len(doubled)} files more than once, such as "
                                   f"{min(doubled)[0]}")
            if set(got) - set(files.items()):
                self.faults.append(f"{name}: not what was there: {set(got) - set(files.items())}")
        for name in found:
            self.faults.append(f"{name}: nobody made it")
        for a in self.agents:
            if not a.process or a.process.poll() is not None:
                continue
            c = a.counts()
            for state in ("vanished", "quarantined", "settling", "ready", "shipping"):
                if c[state]:
                    self.faults.append(f"{a.config['node']['instance_id']}: {c[state]} {state}")

    def may_be_twice(self, _unit, _manifests, _all_manifests):
        return False

    def finish(self):
        for a in self.agents:
            if a.process:
                if a.process.poll() is not None:
                    self.faults.append(f"an agent ended with {a.process.returncode}")
                    a.process = None
                else:
                    a.kill()

    def clean_up(self):
        for a in self.agents:
            if a.process and a.process.poll() is None:
                a.process.kill()
                a.process.wait()
            a.process = None
        harness._live.clear()  # pylint: disable=protected-access
        for place in reversed(self.mounts):
            unmount(place)

    def settle(self, timeout=100):
        try:
            wait_for(f"all {len(self.units)} units are delivered",
                     self.is_quiet, timeout, every=0.3)
        except AssertionError as e:
            self.faults += [str(e), f"missing: {sorted(self.missing())[:4]}, not idle: "
                                    f"{self.not_idle}"]
            for a in self.agents:
                if a.process and a.process.poll() is None:
                    for b in a.bundles():
                        if b["state"] not in ("delivered",):
                            self.faults.append(
                                f"{b['id']} {b['path']} {b['state']}: "
                                f"{a.api('/v1/bundles/' + b['id']).get('explain')}")


class NfsSource(Round):
    """Two nodes, one source."""

    theme = "source"

    def __init__(self, server, rng, at):
        super().__init__(server, rng, at)
        self.version = rng.choice(("3", "4.0", "4.2"))
        self.delegations = rng.choice((True, False))
        self.squash = rng.choice(("root_squash", "no_root_squash"))
        self.uids = rng.choice(((0, 0), (990, 990), (0, 990), (990, 991)))
        self.hard = rng.choice(("hard", "softerr"))
        self.what = rng.sample(("restart", "server", "withdraw", "kill", "late"), rng.randint(1, 3))
        self.dies = rng.random() < 0.5
        self.named = rng.random() < 0.4  # dumps of ranks of both nodes in one directory
        self.deletes = rng.random() < 0.3
        if not self.dies and rng.random() < 0.5:
            self.what.append("remove")
        # Agents that do not know each other's users: twice, but never lost. What has a dead node's
        # id in its names is left to that node then.
        self.strangers = self.uids in ((0, 990), (990, 991)) and rng.random() < 0.25

        self.dead, self.died_at, self.last_back = None, 0, 0

    def may_be_twice(self, unit, manifests, all_manifests):
        """The one case that docs/DESIGN.md allows: a node died after its manifest, and before its
        mark of the delivery; a survivor has taken the unit over.
        @param manifests  of the bundles that have one file; all_manifests: any of the unit's"""
        if self.strangers:
            return True
        if not self.dead or len(manifests) != 2:
            return False
        ends = (f"/{self.dead}/", f"/{next(n for n in NODES if n != self.dead)}/")
        if not all(any(end in m for m in manifests) for end in ends):
            return False
        last = max(os.stat(m).st_mtime for m in all_manifests if ends[0] in m)
        if self.died_at - max(last, self.last_back) > MARK_SECONDS:
            return False
        locks = os.path.join(EXPORT, "dumps", ".neuron-collectd", "@units")
        for name in os.listdir(locks):
            path = os.path.join(locks, name)
            with open(path, encoding="utf-8") as f:
                lines = f.read().split("\n", 4)
            if name.endswith(".done") and lines[1:2] + lines[4:] == [self.dead, unit] and \
                    os.stat(path).st_mtime >= last:
                return False
        self.allowed.append(f"{unit} ({self.died_at - last:.1f} s)")
        return True

    def describe(self):
        return (f"vers={self.version} {'with' if self.delegations else 'without'} delegations, "
                f"{self.squash}, {self.hard}, uids {self.uids}"
                f"{' unknown to each other' if self.strangers else ''}, "
                f"{'named dumps, ' if self.named else ''}{'+'.join(self.what)}"
                f"{', deleted when delivered' if self.deletes else ''}"
                f"{', one dies' if self.dies else ''}")

    def set_up(self):
        write("/proc/sys/fs/leases-enable", "1" if self.delegations else "0")
        shutil.rmtree(EXPORT, ignore_errors=True)
        os.makedirs(os.path.join(EXPORT, "dumps"), exist_ok=True)
        os.chmod(EXPORT, 0o755)
        os.chmod(os.path.join(EXPORT, "dumps"), 0o1777)
        self.server.export(self.squash)
        self.server.start()
        self.archive = os.path.join(self.at, "archive")
        os.makedirs(self.archive)
        os.chmod(self.archive, 0o1777)
        options = f"vers={self.version},{self.hard},timeo=20,retrans=2" + (
            ",nolock" if self.version == "3" else "")
        self.roots = []
        for i, place in enumerate(("/mnt/one", "/srv/another/place")):
            mount_nfs(i, options, place)
            self.mounts.append(place)
            self.roots.append(os.path.join(place, "dumps"))
        for i, uid in enumerate(self.uids):
            a = self.agent(i, self.roots[i], self.archive, uid)
            if not self.strangers:
                a.config["agreement"]["trusted_uids"] = [990, 991] + (
                    [65534] if self.squash == "root_squash" else [])
            if self.named:
                a.config["sources"][0] |= {"kind": "neuron-core-dump", "path": os.path.join(
                    self.roots[i], "dt-%d-cid-%c")}
            if self.deletes:
                a.config["retention"] = {"after_delivery": "delete", "keep_for": "0"}
            a.start()

    def disturb(self, what):
        self.event(what)
        if what == "restart":
            a = self.rng.choice(self.agents)
            a.stop()
            a.start()
        elif what == "kill":
            a = self.rng.choice(self.agents)
            a.kill()
            a.start()
        elif what == "server":
            self.server.stop()
            time.sleep(self.rng.uniform(0.5, 4))
            self.server.start()
        elif what == "withdraw":
            self.server.withdraw()
            time.sleep(self.rng.uniform(0.5, 4))
            self.server.grant_again()
        elif what == "late":
            self.add_late()
        elif what == "remove":
            self.remove_held()
        if what not in ("late", "remove"):
            self.last_back = time.time()

    def bundles_of(self, name):
        return [b for a in self.agents if a.process for b in a.bundles()
                if os.path.basename(b["path"]) == name]

    def add_late(self):
        """A file of a unit that was delivered: a supplement."""
        name = self.rng.choice(sorted(self.units))
        path = os.path.join(EXPORT, "dumps", name, f"{NODES[0]}-nrt-pid-77777.log"
                            if self.named else "late")
        if self.deletes or os.path.exists(path):
            return
        wait_for(f"{name} is delivered", lambda: any(b["state"] == "delivered" for b in
                                                     self.bundles_of(name)), 90)
        coming = os.path.join(EXPORT, "coming")
        with open(coming, "wb") as f:
            f.write(b"late\n" * 100)
        os.chown(coming, USER, USER)
        os.rename(coming, path)
        self.units[name][os.path.basename(path)] = harness.sha256_file(path)
        if self.dies:  # what a node had delivered of a unit that grew is delivered again
            wait_for(f"what is late of {name} is there", self.is_quiet, 90)

    def remove_held(self):
        """Its owner removes a unit once it is held by links, or delivered."""
        name = os.path.basename(self.make(1))
        # of each node whose ranks are in it; a descriptor holds nothing that another client removes
        n = len({n for n in NODES for path in self.units[name] if n in path}) or 1
        wait_for(f"{name} is held", lambda: sum(b["links_held"] or b["state"] == "delivered" for b
                                                in self.bundles_of(name)) >= n, 90)
        shutil.rmtree(os.path.join(EXPORT, "dumps", name), ignore_errors=True)

    def make_named(self):
        """Ranks of both nodes, in one directory. @return it"""
        self.n_made += 1
        root, coming = os.path.join(EXPORT, "dumps"), os.path.join(EXPORT, "coming")
        for i in self.rng.sample(range(2), self.rng.randint(1, 2)):
            made = make_dump.make_dump(coming, size=65536, instance_id=NODES[i],
                                       owner=(USER, USER), pid=70000 + 2 * self.n_made + i,
                                       cluster_id=f"{self.n_made:016x}")
            unit = os.path.join(root, os.path.basename(made))
            os.makedirs(unit, exist_ok=True)
            os.chown(unit, USER, USER)
            for name in os.listdir(made):  # complete, whatever `settle` is on a busy machine
                os.rename(os.path.join(made, name), os.path.join(unit, name))
            shutil.rmtree(coming)
        self.units[os.path.basename(unit)] = {os.fsdecode(p): d for p, (_, d) in tree(unit).items()}
        return unit

    def make(self, n):
        unit = None
        for _ in range(n):
            if self.named:
                unit = self.make_named()
                continue
            # by a job of either node, or by one of the server's own
            where = self.rng.choice([*self.roots, os.path.join(EXPORT, "dumps")])
            if where in self.roots and self.squash == "root_squash":
                where = os.path.join(EXPORT, "dumps")  # chown() of root is refused there
            unit = self.unit(where)
        return unit

    def play(self):
        self.make(self.rng.randint(1, 3))
        for what in self.what:
            time.sleep(self.rng.uniform(0, 2))
            self.disturb(what)
            self.make(self.rng.randint(1, 3))
        if self.dies:
            time.sleep(self.rng.uniform(0, 3))
            dead = self.rng.randrange(2)
            nodes = os.path.join(EXPORT, "dumps", ".neuron-collectd", "@nodes")
            if self.named:  # without a mark the ctime of its files counts, which nobody can set
                wait_for(f"{NODES[dead]} has made its mark", lambda: glob.glob(
                    os.path.join(nodes, f"{NODES[dead]}*", "alive")), 90)
            self.event(f"{NODES[dead]} dies")
            self.agents[dead].kill()
            self.dead, self.died_at = NODES[dead], time.time()
            self.make(1)
            if self.strangers and self.named:
                self.may_lack = {(unit, path) for unit, files in self.units.items()
                                 for path in files if NODES[dead] in path}
            then = time.time() - DEAD_SECONDS
            # A node that dies while its export is withdrawn may never have made a mark.
            for name in os.listdir(nodes) if os.path.isdir(nodes) else ():
                if name.startswith(NODES[dead]):
                    os.utime(os.path.join(nodes, name, "alive"), (then, then))
        self.settle()

    def tear_down(self):
        self.clean_up()
        self.server.withdraw()
        self.server.stop()


class NfsDestination(NfsSource):
    """One node delivers from a local disk to a share."""

    theme = "destination"

    def __init__(self, server, rng, at):
        super().__init__(server, rng, at)
        self.dies = self.named = self.deletes = self.strangers = False
        self.what = [w for w in self.what if w not in ("late", "remove")] or ["server"]

    def describe(self):
        return (f"vers={self.version}, {self.squash}, {self.hard}, uid {self.uids[0]}, "
                f"{'+'.join(self.what)}")

    def set_up(self):
        write("/proc/sys/fs/leases-enable", "1")
        shutil.rmtree(EXPORT, ignore_errors=True)
        self.archive = os.path.join(EXPORT, "archive")
        os.makedirs(self.archive)
        os.chmod(self.archive, 0o1777)
        self.server.export(self.squash)
        self.server.start()
        options = f"vers={self.version},{self.hard},timeo=20,retrans=2" + (
            ",nolock" if self.version == "3" else "")
        mount_nfs(0, options, "/mnt/one")
        self.mounts.append("/mnt/one")
        source = os.path.join(self.at, "dumps")
        os.makedirs(source)
        os.chmod(source, 0o1777)
        self.roots = [source]
        self.agent(0, source, "/mnt/one/archive", self.uids[0]).start()

    def make(self, n):
        for _ in range(n):
            self.unit(self.roots[0])


class Full(Round):
    """A local file system that fills up and is freed again, with source, destination or state
    directory on it."""

    theme = "full"

    def __init__(self, server, rng, at):
        super().__init__(server, rng, at)
        self.kind = rng.choice(("btrfs", "xfs"))
        self.role = rng.choice(("source", "destination", "state"))
        self.kills = rng.random() < 0.5

    def describe(self):
        return f"{self.kind} as {self.role}{', killed while full' if self.kills else ''}"

    def set_up(self):
        run("modprobe", self.kind)
        self.place = os.path.join(self.at, "place")
        loop_fs(self.kind, 320 if self.kind == "xfs" else 128, os.path.join("/var/tmp", "image"),
                self.place)
        self.mounts.append(self.place)
        where = {r: os.path.join(self.place if r == self.role else self.at, r)
                 for r in ("source", "destination", "state")}
        for path in where.values():
            os.makedirs(path, exist_ok=True)
            os.chmod(path, 0o1777)
        self.source, self.archive = where["source"], where["destination"]
        a = self.agent(0, self.source, self.archive)
        a.config["state_directory"] = where["state"]
        a.config["hook"]["mailbox"] = os.path.join(where["state"], "mailbox")
        a.config["retention"] = {"keep_free": "0", "max_use": "0"}
        a.start()

    def fill(self):
        path = os.path.join(self.place, "filler")
        for size in (1 << 20, 4096, 100):
            with open(path, "ab", buffering=0) as f:
                try:
                    while f.write(bytes([1]) * size) == size:
                        pass
                except OSError:
                    pass

    def play(self):
        for _ in range(3):
            self.unit(self.source)
        time.sleep(self.rng.uniform(0, 1))
        self.event("full")
        self.fill()
        if self.role != "source":
            for _ in range(3):
                self.unit(self.source)
        time.sleep(self.rng.uniform(1, 3))
        a = self.agents[0]
        if a.process.poll() is not None:
            self.faults.append(f"the agent died with {a.process.returncode} while it was full")
            a.process = None
        elif self.kills:
            self.event("killed")
            a.kill()
        os.unlink(os.path.join(self.place, "filler"))
        run("sync")
        self.event("freed")
        if not a.process:
            a.start()
        self.unit(self.source)
        self.settle()

    def tear_down(self):
        self.clean_up()
        if os.path.exists("/var/tmp/image"):
            os.unlink("/var/tmp/image")


THEMES = (NfsSource, NfsSource, NfsDestination, NfsSource, Full)


def one_round(server, seed, number, only):
    rng = random.Random(f"{seed} {number}")
    theme = THEMES[number % len(THEMES)]
    if only and theme.theme != only:
        return None
    at = f"/tmp/round{number}"
    os.makedirs(at)
    os.chmod(at, 0o755)
    r = theme(server, rng, at)
    since = time.monotonic()
    signal.alarm(ROUND_SECONDS)
    try:
        r.set_up()
        r.play()
        r.judge()
        r.finish()
    except Exception:  # pylint: disable=broad-except  # the next round is to run
        r.faults.append(traceback.format_exc())
    signal.alarm(0)
    print(f"round {number} {r.theme}: {r.describe()}; {len(r.units)} units, "
          f"{time.monotonic() - since:.0f} s: {'FAILED' if r.faults else 'in order'}"
          f"{', twice by design: ' + ', '.join(sorted(set(r.allowed))) if r.allowed else ''}",
          flush=True)
    if r.faults:
        for line in r.events + r.faults:
            print("  " + line.replace("\n", "\n  "))
        for a in r.agents:
            print(f"  log of {a.config['node']['instance_id']}:")
            for line in a.log.splitlines()[-40:]:
                print("    " + line)
        for line in run("dmesg", check=False).stdout.splitlines()[-8:]:
            print("  kernel: " + line)
        sys.stdout.flush()
    try:
        r.tear_down()
    except Exception:  # pylint: disable=broad-except
        print("  " + traceback.format_exc().replace("\n", "\n  "), flush=True)
    shutil.rmtree(at, ignore_errors=True)
    return r


def on_alarm(*_):
    raise TimeoutError("the round takes too long")


def main():
    signal.signal(signal.SIGALRM, on_alarm)
    seed, minutes = sys.argv[1], float(sys.argv[2])
    first = int(sys.argv[3]) if len(sys.argv) > 3 else 0
    only = sys.argv[4] if len(sys.argv) > 4 else ""
    until = time.monotonic() + minutes * 60
    server = Server()
    done = failed = units = 0
    number = first
    while True:
        r = one_round(server, seed, number, only)
        number += 1
        if r:
            done += 1
            units += len(r.units)
            failed += bool(r.faults)
        if time.monotonic() > until:
            break
    print(f"seed {seed}: {done} rounds, {units} units, {failed} failed", flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
