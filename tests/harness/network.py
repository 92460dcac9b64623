"""Nodes on a network: each a namespace with an address of its own on a bridge, an agent inside, and
a wall clock that is wrong.

The bridge lies in a network namespace of this test's process, which enter() makes: nothing of it is
seen by the machine or by another run, and the kernel removes all of it when the processes end,
however they end. What listens on 0.0.0.0 in the test (radosgw, Swift, a proxy) is at HUB for the
nodes; what listens on loopback is for the test alone.
"""
import ctypes
import os
import signal
import subprocess

from agent import BUILD_DIR, Agent, is_instrumented, need, need_root, run, wait_for
from tap import Skip

HUB = "10.77.0.254"
# Where nothing is: packets to HUB are lost on the wire, as behind a broken switch.
NOWHERE = "02:00:00:00:00:01"
SHIFT_CLOCK = os.path.join(BUILD_DIR, "tests", "e2e", "shift_clock.so")
CLONE_NEWNET = 0x40000000
BUS_PORT = 7733
MASTER_PORT = 46820

_entered = []
_networks = []


def _ip(*arguments, inside=None):
    prefix = inside.prefix if inside else []
    result = run(*prefix, "ip", *arguments)
    assert result.returncode == 0, f"ip {' '.join(arguments)}: {result.stderr}"
    return result.stdout


def enter():
    """Moves this process into a network namespace of its own with the first bridge. Before servers
    are started and before there is a thread."""
    if _entered:
        return
    need_root()
    need("ip", "nsenter", "unshare", "setpriv")
    if ctypes.CDLL(None, use_errno=True).unshare(CLONE_NEWNET) != 0:
        raise Skip(f"no network namespace: {os.strerror(ctypes.get_errno())}")
    _entered.append(True)
    _ip("link", "set", "lo", "up")
    if run("ip", "link", "add", "hub0", "type", "bridge").returncode != 0:
        raise Skip("the kernel has no bridges")
    _ip("address", "add", f"{HUB}/24", "dev", "hub0")
    _ip("link", "set", "hub0", "up")


class NodeAgent(Agent):
    """What is made for it bears the times of its node's clock, as what is written on that node
    would."""

    node = None

    def _make(self, make, place, **options):
        unit = make(self.path("coming"), **options)
        there = self.path(place, os.path.relpath(unit, self.path("coming")))
        for base, _, names in os.walk(unit):
            for name in names:
                path = os.path.join(base, name)
                when = os.stat(path).st_mtime + self.node.shift
                os.utime(path, (when, when))
        if os.path.exists(there):
            for name in os.listdir(unit):
                os.rename(os.path.join(unit, name), os.path.join(there, name))
            os.rmdir(unit)
        else:
            os.makedirs(os.path.dirname(there), exist_ok=True)
            os.rename(unit, there)
        return there


class Node:
    """A machine of the network. @param shift  seconds that its wall clock is wrong"""

    def __init__(self, index, shift):
        self.index, self.shift = index, shift
        self.address = f"10.77.0.{index + 1}"
        self.port = f"port{index}"
        # it holds the namespace
        self._keeper = subprocess.Popen(
            ["setpriv", "--pdeathsig", "KILL", "--", "unshare", "--net", "cat"],
            stdin=subprocess.PIPE, start_new_session=True)
        self.namespace = f"/proc/{self._keeper.pid}/ns/net"
        self.agent = None

    @property
    def prefix(self):
        return ["nsenter", f"--net={self.namespace}", "--"]

    def connect(self):
        ours = os.readlink("/proc/self/ns/net")
        wait_for("the node has a namespace", lambda: os.readlink(self.namespace) != ours)
        _ip("link", "add", self.port, "type", "veth", "peer", "name", "eth0", "netns",
            str(self._keeper.pid))
        _ip("link", "set", self.port, "master", "hub0", "up")
        _ip("address", "add", f"{self.address}/24", "dev", "eth0", inside=self)
        _ip("link", "set", "eth0", "up", inside=self)
        _ip("link", "set", "lo", "up", inside=self)

    def install_agent(self):
        a = NodeAgent()
        a.node = self
        a.prefix = self.prefix
        a.config["node"]["instance_id"] = f"i-0a1b2c3d4e5f607{self.index:02x}"
        os.makedirs(a.path("sys"), exist_ok=True)
        a.config["snapshot"] |= {"sysfs_root": a.path("sys")}
        if self.shift:
            if not os.path.exists(SHIFT_CLOCK):
                raise Skip(f"{SHIFT_CLOCK} is not built")
            a.environment |= {"LD_PRELOAD": SHIFT_CLOCK, "NC_SHIFT_SECONDS": str(self.shift)}
        self.agent = a

    def run(self, *command, **options):
        """A program on this node."""
        return run(*self.prefix, *command, **options)

    def popen(self, *command, **options):
        return subprocess.Popen([*self.prefix, *command], **options)

    def cut_store(self, silently):
        if silently:
            _ip("neighbour", "replace", HUB, "dev", "eth0", "nud", "permanent", "lladdr", NOWHERE,
                inside=self)
        else:
            _ip("route", "add", "unreachable", f"{HUB}/32", inside=self)

    def join_store(self):
        run(*self.prefix, "ip", "neighbour", "delete", HUB, "dev", "eth0")
        run(*self.prefix, "ip", "route", "delete", "unreachable", f"{HUB}/32")

    def remove(self):
        self._keeper.send_signal(signal.SIGKILL)
        self._keeper.wait()
        self._keeper.stdin.close()
        # the kernel removes a namespace a moment after its last process
        run("ip", "link", "delete", self.port)


class Network:
    """@param n  nodes  @param shifts  of their clocks, in seconds; one for each, again and again"""

    def __init__(self, n, shifts=(0,)):
        enter()
        self.n_bridges = 0
        self.nodes = []
        _networks.append(self)
        try:
            for i in range(n):
                # a sanitizer's library has to be the first one
                self.nodes.append(Node(i, 0 if is_instrumented() else shifts[i % len(shifts)]))
            for node in self.nodes:
                node.connect()
                node.install_agent()
        except BaseException:
            self.close()
            raise

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def __getitem__(self, i):
        return self.nodes[i].agent

    @property
    def agents(self):
        return [node.agent for node in self.nodes]

    @property
    def root(self):
        """NEURON_RT_ROOT_COMM_ID of a job whose root is the first node."""
        return f"{self.nodes[0].address}:{MASTER_PORT}"

    # --- what breaks ---

    def cut(self, *indices):
        """Their cables are pulled."""
        for i in indices:
            _ip("link", "set", self.nodes[i].port, "down")

    def join(self, *indices):
        for i in indices:
            _ip("link", "set", self.nodes[i].port, "up")

    def split(self, *groups):
        """Nodes of one group see each other alone; HUB is with the first."""
        for number, group in enumerate(groups[1:], 1):
            if number > self.n_bridges:
                _ip("link", "add", f"hub{number}", "type", "bridge")
                _ip("link", "set", f"hub{number}", "up")
                self.n_bridges = number
            for i in group:
                _ip("link", "set", self.nodes[i].port, "master", f"hub{number}")

    def heal(self):
        for node in self.nodes:
            _ip("link", "set", node.port, "master", "hub0")

    def cut_store(self, *indices, silently=True):
        """Nothing of what they send reaches HUB; they see each other. @param silently  packets are
        lost, else connections are refused at once, but for those that stand"""
        for i in indices:
            self.nodes[i].cut_store(silently)

    def join_store(self, *indices):
        for i in indices:
            self.nodes[i].join_store()

    def close(self):
        if self not in _networks:
            return
        _networks.remove(self)
        for node in self.nodes:  # agents that still run are left to their own cleanup()
            node.remove()
        for number in range(1, self.n_bridges + 1):
            run("ip", "link", "delete", f"hub{number}")


def cleanup(failed=False):  # pylint: disable=unused-argument
    """Before the agents' own, which prints their logs."""
    while _networks:
        _networks[-1].close()
