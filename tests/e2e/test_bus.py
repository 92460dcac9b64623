#!/usr/bin/env python3
"""What the bus meets: its child is killed, others have no key or a wrong one, strangers connect,
send what they like and stay. The daemon keeps its process and its descriptors, delivers meanwhile,
and the nodes of a job agree afterwards.

What is taken from other parts of the agent, and is to be changed here when it changes there:
- the status: `agreement.bus` with `state`, `has_key`, `connected`, `rejected` and `restarts`;
- the child's command line has `--child=bus`;
- `doctor` names `agreement.key_file` when there is no key;
- agents send at a failure to whoever is connected.
NC_STRANGERS says how many connections are opened (1,600; the issue wants 5,000 by hand).
"""
import contextlib
import os
import resource
import secrets
import signal
import socket
import struct
import sys
import time

sys.dont_write_bytecode = True  # the source tree may be read-only, and is packed as it is
sys.path.insert(0, os.path.join(os.path.dirname(os.path.realpath(__file__)), "..", "harness"))
# pylint: disable=wrong-import-position
import network
import test_agreement as scene
from agent import DAEMON, PATIENCE, family, is_instrumented, process_memory, wait_for
from places import View
from tap import Skip, figures, main, test

MIB = 1 << 20
MESSAGE_MAX = 16 << 10
CHILD_BYTES_MAX = 32 * MIB
STRANGERS = int(os.environ.get("NC_STRANGERS", "1600"))
# nanomsg over TCP: what each side says first; then each message has its length before it
GREETING = b"\0SP\0" + struct.pack(">HH", 7 * 16, 0)


# --- the scene ---

def nodes_of_a_bus(n=2, **agreement):
    """No store decides: what is agreed came over the bus. @return the network"""
    net = scene.nodes(n, shifts=(0,), bus=True, **agreement)
    for a in net.agents:
        a.config["destinations"][0].pop("durable")
        a.config["sources"].append(a.source("jobs", "directory", "jobs/job-%p"))
    return net


def bus(a):
    return a.status()["agreement"]["bus"]


def child_of(a):
    """@return the pid of the process that runs nanomsg; 0: there is none"""
    for pid in family(a.pid)[1:]:
        try:
            with open(f"/proc/{pid}/cmdline", "rb") as f:
                if b"--child=bus" in f.read().split(b"\0"):
                    return pid
        except OSError:
            pass
    return 0


def wait_child(a, other_than=0):
    return wait_for("the child runs", lambda: (lambda pid: pid != other_than and pid)(child_of(a)),
                    40)


def n_descriptors(a):
    """What it has open of sources and destinations is left out."""
    n = 0
    for name in os.listdir(f"/proc/{a.pid}/fd"):
        with contextlib.suppress(OSError):
            n += not os.readlink(f"/proc/{a.pid}/fd/{name}").startswith("/")
    return n


def port_range(node, value=None):
    """Of a node's network namespace. @return what it was"""
    path = "/proc/sys/net/ipv4/ip_local_port_range"
    was = node.run("cat", path).stdout.strip()
    if value:
        result = node.run("sh", "-c", f"echo '{value}' >{path}")
        assert result.returncode == 0, result.stderr
    return was


def cannot_connect(node):
    result = node.run(sys.executable, "-c", "import socket\nsocket.create_connection(("
                      f"'{network.HUB}', 1), 1)")
    return result.stderr.strip().endswith("Cannot assign requested address")


class Unharmed:
    """That a daemon is the same process with no more descriptors at the end."""

    def __init__(self, a):
        self.a, self.pid = a, a.pid
        self.n = n_descriptors(a)
        self.n_units = 0

    def assert_delivers(self):
        """What it delivers has nothing to do with the bus."""
        self.n_units += 1
        self.a.incompressible(1 << 16, f"{self.n_units}")
        wait_for("it delivers meanwhile", lambda: len(
            self.a.bundles("?state=delivered&source=jobs")) == self.n_units)

    def assert_same(self):
        assert self.a.pid == self.pid and self.a.process.poll() is None
        # some are made when they are first needed
        wait_for("it has no more descriptors than before",
                 lambda: n_descriptors(self.a) <= self.n + 4)


def assert_agree(net, ranks, indices=(0, 1)):
    """A failure of the job has one name, which came over the bus."""
    scene.fail(ranks)
    for i in indices:
        scene.wait_bundles(net[i], len({r for r, job in ranks.items() if job.agent is net[i]}))
    found = {(place, m["incident"]["agreed"]) for i in indices
             for place, b in View(net[i].out).bundles.items() for m in b}
    assert len(found) == 1 and found.pop()[1] == "bus", found


class Stranger:
    """A connection from outside of all agents. @param greets  whether it speaks nanomsg"""

    def __init__(self, address, greets=True):
        self.socket = socket.create_connection((address, network.BUS_PORT), timeout=10 * PATIENCE)
        self.received = b""
        if greets:
            self.socket.sendall(GREETING)

    def send(self, body, length=None):
        """@return whether it was taken: else the other end has closed"""
        try:
            self.socket.sendall(struct.pack(">Q", len(body) if length is None else length) + body)
            return True
        except OSError:
            return False

    def messages(self, seconds):
        """What comes within this time."""
        self.socket.settimeout(0.1)
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            try:
                data = self.socket.recv(65536)
            except TimeoutError:
                continue
            if not data:
                break
            self.received += data
        found, at = [], len(GREETING)
        while at + 8 <= len(self.received):
            n, = struct.unpack_from(">Q", self.received, at)
            if at + 8 + n > len(self.received):
                break
            found.append(self.received[at + 8:at + 8 + n])
            at += 8 + n
        return found

    def close(self):
        self.socket.close()


def rejected(a):
    return bus(a)["rejected"]


# --- the tests ---

@test
def a_child_that_is_killed_is_replaced_and_the_nodes_agree():
    with nodes_of_a_bus() as net:
        scene.start(net)
        ranks = scene.launch(net, "killed")
        scene.wait_bus(net, ranks)
        daemons = [Unharmed(a) for a in net.agents]
        for a in (net[0], net[1], net[0]):
            child = wait_child(a)
            os.kill(child, signal.SIGKILL)
            wait_child(a, other_than=child)
        for daemon in daemons:
            daemon.assert_delivers()
        assert bus(net[0])["restarts"] >= 2 and bus(net[1])["restarts"] >= 1
        scene.wait_bus(net, ranks)
        assert_agree(net, ranks)
        for daemon in daemons:
            daemon.assert_same()
        scene.stop(net)


@test
def what_is_not_signed_truncated_or_too_large_changes_nothing():
    with nodes_of_a_bus(3) as net:
        wrong = net[2]  # a node of the same job with another key
        os.chmod(wrong.path("key"), 0o600)
        with open(wrong.path("key"), "w", encoding="ascii") as f:
            f.write(f"test:{secrets.token_hex(32)}\n")
        scene.start(net)
        ranks = scene.launch(net, "hostile")
        scene.wait_bus(net, ranks)
        daemon = Unharmed(net[0])
        address = net.nodes[0].address
        listener = Stranger(address)
        # A failure of another job: what the centre says of it is signed by it.
        other = scene.launch(net, "other", indices=(0, 1), world_size=4)
        assert_agree(net, other)
        real = listener.messages(3)
        assert real, "nothing was sent to who is connected"
        before = rejected(net[0])
        peer = Stranger(address)
        bad = [b"", b"\0", secrets.token_bytes(64), secrets.token_bytes(MESSAGE_MAX),
               bytes(MESSAGE_MAX)]
        for m in real[:20]:
            bad += [m[:n] for n in (1, 8, len(m) // 2, len(m) - 33, len(m) - 1) if n > 0]
            bad += [m + b"\0", flipped(m, 0), flipped(m, len(m) // 2), flipped(m, len(m) - 1)]
        for m in bad:
            peer = peer if peer.send(m) else Stranger(address)
        wait_for("they are counted", lambda: rejected(net[0]) >= before + len(bad) // 2)
        for m in real * 20:  # replays change nothing
            assert peer.send(m)
        for body, length in ((bytes(MIB), None), (b"x", 1 << 63), (b"x", MESSAGE_MAX + 1)):
            for _ in range(20):
                s = Stranger(address)
                s.send(body, length)
                s.close()
        for greeting in (b"GET / HTTP/1.1\r\n\r\n", b"\0SP\1\0\x70\0\0", b"\0", b"\xff" * 4096):
            s = Stranger(address, greets=False)
            s.socket.sendall(greeting)
            s.close()
        flood(address, seconds=2)
        daemon.assert_delivers()
        assert_memory(net[0])
        peer.close()
        listener.close()
        assert_agree_of(net, ranks, "hostile")
        daemon.assert_same()
        assert rejected(net[0]) > before
        scene.stop(net)


def flipped(message, at):
    return message[:at] + bytes([message[at] ^ 1]) + message[at + 1:]


def flood(address, seconds):
    """As many messages as go through."""
    frame = struct.pack(">Q", 200) + secrets.token_bytes(200)
    block, n = frame * 300, 0
    s = Stranger(address)
    s.socket.settimeout(0.2)
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        try:
            n += s.socket.send(block) // len(frame)
        except TimeoutError:
            continue
        except OSError:
            break
    s.close()
    figures.append(f"{n / seconds:.0f} messages a second were sent")


def assert_memory(a):
    if not is_instrumented():
        memory = process_memory(wait_child(a))["VmHWM"]
        figures.append(f"the child's memory: {memory / MIB:.1f} MiB")
        assert memory <= CHILD_BYTES_MAX, memory


def assert_agree_of(net, ranks, key):
    """As assert_agree(), beside failures that were before. @param key  of the job"""
    assert next(iter(ranks.values())).key == key
    before = [set(View(net[i].out).bundles) for i in (0, 1)]
    own = {r: job for r, job in ranks.items() if job.agent in (net[0], net[1])}
    n = [len(scene.base_bundles(net[i])) for i in (0, 1)]
    scene.fail(own)
    for i in (0, 1):
        scene.wait_bundles(net[i], n[i] + 2)
    found = {(p, m["incident"]["agreed"]) for i in (0, 1)
             for p, b in View(net[i].out).bundles.items() if p not in before[i] for m in b}
    assert len(found) == 1 and found.pop()[1] == "bus", found


@test
def a_bus_process_that_is_taken_over_reaches_neither_its_agent_nor_others():
    """attacked_bus.c is the daemon whose bus does what a stranger wants."""
    with nodes_of_a_bus() as net:
        a = net[0]
        attacked = os.path.join(os.path.dirname(DAEMON), "tests", "e2e",
                                "neuron-collectd-attacked")
        a.program = lambda: attacked
        scene.start(net)
        ranks = scene.launch(net, "attacked")
        scene.wait_bus(net, ranks)
        daemon, child = Unharmed(a), wait_child(a)
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as probe:
            probe.bind(a.path("run", "probe.sock"))
            probe.listen(8)
            stranger = Stranger(net.nodes[0].address)
            paths = a.socket, a.path("run", "probe.sock"), a.path("state")
            assert stranger.send(f"attack {' '.join(paths)}".encode())
            answers = [m for m in stranger.messages(5 * PATIENCE) if m.startswith(b"api=")]
            stranger.close()
        assert len(answers) == 1, answers
        ways = dict(line.split("=") for line in answers[0].decode().split())
        assert len(ways) == 26, ways
        figures.append(f"{len(ways)} ways out were tried")
        assert [way for way, error in ways.items() if error == "0"] == [], ways
        assert wait_child(a) == child and bus(a)["restarts"] == 0
        assert a.status()["drain"] is None, a.status()["drain"]
        assert not os.path.exists(a.path("state", "planted"))
        daemon.assert_delivers()
        assert_agree(net, ranks)
        daemon.assert_same()
        scene.stop(net)


@test
def very_many_strangers_are_borne_and_the_nodes_agree_when_they_have_left():
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard < STRANGERS + 100:
        raise Skip(f"at most {hard} descriptors")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, STRANGERS + 100), hard))
    with nodes_of_a_bus() as net:
        scene.start(net)
        ranks = scene.launch(net, "strangers")
        scene.wait_bus(net, ranks)
        daemon = Unharmed(net[0])
        address = net.nodes[0].address
        strangers, refused = [], 0
        for i in range(STRANGERS):
            try:
                strangers.append(Stranger(address, greets=i % 2 == 0))
            except OSError:
                refused += 1
        figures.append(f"{len(strangers)} connected, {refused} were refused")
        daemon.assert_delivers()
        daemon.assert_same()
        assert_memory(net[0])
        for s in strangers:
            s.close()
        scene.wait_bus(net, ranks, timeout=90)
        assert_agree(net, ranks)
        daemon.assert_same()
        scene.stop(net)


@test
def without_a_key_nothing_listens_for_other_nodes_and_that_is_reported():
    with scene.nodes(1, settle="1s") as net:
        a = net[0]
        scene.start(net)
        assert bus(a)["has_key"] is False, bus(a)
        result = a.cli("doctor", "--config", a.config_file)
        assert "agreement.key_file" in result.stdout, result.stdout
        try:
            Stranger(net.nodes[0].address).close()
            raise AssertionError("it listens without a key")
        except ConnectionRefusedError:
            pass
        scene.stop(net)


@test
def ports_that_are_taken_and_addresses_that_are_not_ours_do_not_end_the_daemon():
    with nodes_of_a_bus() as net:
        taken = net.nodes[0].popen(
            sys.executable, "-c", "import socket, sys; s = socket.socket(); s.bind(('0.0.0.0', "
            f"{network.BUS_PORT})); s.listen(1); print('up', flush=True); sys.stdin.read()",
            stdin=-1, stdout=-1)
        try:
            assert taken.stdout.readline() == b"up\n"
            net[1].config["agreement"]["listen"] = "tcp://192.0.2.1:7733"
            scene.start(net)
            daemons = [Unharmed(a) for a in net.agents]
            for a, daemon in zip(net.agents, daemons):
                wait_for("it says that it cannot listen", lambda a=a: bus(a)["last_error"], 40)
                daemon.assert_delivers()
        finally:
            taken.stdin.close()
            taken.stdout.close()
            taken.wait()
        wait_for("it listens when the port is free", lambda: bus(net[0])["state"] == "listening",
                 90)
        for daemon in daemons:
            daemon.assert_same()
        scene.stop(net)


@test
def a_node_without_free_local_ports_goes_on_and_connects_when_there_are_some():
    """nanomsg 1.1.5 aborts its process at some of these errors, which is why it has its own."""
    with nodes_of_a_bus() as net:
        node = net.nodes[1]
        usual = port_range(node)
        port_range(node, "40000 40000")
        holder = node.popen(sys.executable, "-c", "import socket, sys; s = socket.socket(); "
                            "s.bind(('0.0.0.0', 40000)); print('up', flush=True); sys.stdin.read()",
                            stdin=-1, stdout=-1)
        try:
            assert holder.stdout.readline() == b"up\n"
            assert cannot_connect(node), "there are free ports: this test has tested nothing"
            scene.start(net)
            daemons = [Unharmed(a) for a in net.agents]
            ranks = scene.launch(net, "no-ports")
            wait_for("it cannot connect", lambda: bus(net[1])["restarts"] or
                     bus(net[1])["last_error"], 60)
            for daemon in daemons:
                daemon.assert_delivers()
            seen = bus(net[1])
            assert not seen["connected"], seen
            figures.append(f"no local port: {seen['restarts']} restarts, {seen['last_error']}")
        finally:
            holder.stdin.close()
            holder.stdout.close()
            holder.wait()
            port_range(node, usual)
        wait_for("it is connected when there are ports", lambda: bus(net[1])["connected"], 90)
        assert_agree(net, ranks)
        for daemon in daemons:
            daemon.assert_same()
        scene.stop(net)


if __name__ == "__main__":
    sys.exit(main(scene.cleanup))
