"""Servers that a test starts beside the daemon: processes of this test alone, on loopback, in a
temporary directory; nothing of them is left when the test ends, also when it is killed.

Each process gets SIGKILL from the kernel when the thread that started it ends (setpriv
--pdeathsig), so servers are started by the main thread. The directory is removed by a guard that
waits for the end of a pipe which only the test holds.
"""
import atexit
import os
import random
import signal
import socket
import subprocess
import tempfile

from agent import PATIENCE, need, wait_for

GUARD = ('trap "" HUP INT TERM; read -r _; for i in 1 2 3 4 5 6 7 8 9 10; do rm -rf '
         '-- "$1" 2>/dev/null && exit; sleep 0.3; done')
LOOPBACK = "127.0.0.1"
_homes = []


def listen_address(address):
    """Where a server listens that is reached at `address`: other tests of the machine's own network
    are not to reach one on loopback; what is on another is in a network of its own."""
    return LOOPBACK if address == LOOPBACK else "0.0.0.0"


def free_port(count=1):
    """A port (and the `count` - 1 behind it) that no process listens on, below those that the
    kernel gives to clients: so it is still free when a server comes back to it."""
    with open("/proc/sys/net/ipv4/ip_local_port_range", encoding="ascii") as f:
        first = int(f.read().split()[0])
    top = first if first > 11000 else 32768
    for _ in range(200):
        port = random.randrange(10000, top - count)
        try:
            for i in range(count):
                with socket.socket() as s:
                    s.bind(("127.0.0.1", port + i))
        except OSError:
            continue
        return port
    raise AssertionError("no free port was found")


def has_ipv6():
    try:
        with socket.socket(socket.AF_INET6) as s:
            s.bind(("::1", 0))
        return True
    except OSError:
        return False


class Home:
    """A temporary directory and the processes that live in it, by name."""

    def __init__(self, name):
        need("setpriv")
        self.dir = tempfile.mkdtemp(prefix=f"neuron-{name}.")
        self.processes = {}
        self._guard = subprocess.Popen(["sh", "-c", GUARD, "guard", self.dir],
                                       stdin=subprocess.PIPE, start_new_session=True)
        _homes.append(self)

    def path(self, *parts):
        return os.path.join(self.dir, *parts)

    def write(self, name, text):
        with open(self.path(name), "w", encoding="utf-8") as f:
            f.write(text)
        return self.path(name)

    def spawn(self, name, *command, environment=None):
        """Starts a server in the foreground; what it says goes to NAME.out."""
        with open(self.path(f"{name}.out"), "ab") as out:
            self.processes[name] = subprocess.Popen(
                ["setpriv", "--pdeathsig", "KILL", "--", *command], stdin=subprocess.DEVNULL,
                stdout=out, stderr=out, start_new_session=True, cwd=self.dir, env=environment)

    def is_alive(self, name):
        return name in self.processes and self.processes[name].poll() is None

    def wait_until(self, name, what, condition, timeout=30):
        """As wait_for, but ends with the server's last words when it dies meanwhile."""
        def look():
            if not self.is_alive(name):
                raise AssertionError(f"{name} ended while it was waited for: "
                                     f"{what}\n{self.words(name)}")
            return condition()
        return wait_for(what, look, timeout)

    def words(self, name, lines=15):
        try:
            with open(self.path(f"{name}.out"), encoding="utf-8", errors="replace") as f:
                return "".join(f.readlines()[-lines:])
        except FileNotFoundError:
            return ""

    def send(self, name, number):
        if self.is_alive(name):
            os.kill(self.processes[name].pid, number)

    def end(self, name, number=signal.SIGTERM, timeout=15):
        """Ends one process and waits for it; SIGKILL when it does not obey."""
        process = self.processes.pop(name, None)
        if process is None:
            return
        if process.poll() is None:
            process.send_signal(signal.SIGCONT)
            process.send_signal(number)
        try:
            process.wait(timeout * PATIENCE)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()

    def close(self):
        for name in list(self.processes):
            self.processes[name].kill()
            self.end(name, signal.SIGKILL)
        if self._guard.poll() is None:
            self._guard.stdin.close()  # it removes the directory
            self._guard.wait()
        if self in _homes:
            _homes.remove(self)


def can_connect(host, port):
    try:
        with socket.create_connection((host, port), timeout=1):
            return True
    except OSError:
        return False


def wait_for_port(home, name, port, host="127.0.0.1", timeout=30):
    home.wait_until(name, f"{name} listens on {host}:{port}", lambda: can_connect(host, port),
                    timeout)


def stop_all():
    while _homes:
        _homes[-1].close()


atexit.register(stop_all)

