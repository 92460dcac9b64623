#!/usr/bin/env python3
"""One account does all that it may at once, and the others do not suffer: what another user dumps
is discovered, its hook is accepted, and the bundle is delivered byte for byte, while the agent
stays small and answers. The strict figures on an idle machine: tests/bench/bench_attack.py."""
import glob
import os
import secrets
import signal
import socket
import sys
import threading
import time

sys.dont_write_bytecode = True  # the source tree may be read-only, and is packed as it is
sys.path.insert(0, os.path.join(os.path.dirname(os.path.realpath(__file__)), "..", "harness"))
sys.path.insert(0, os.path.dirname(os.path.realpath(__file__)))
# pylint: disable=wrong-import-position
import make_dump
import test_notes
from agent import (INSTANCE, PATIENCE, Agent, assert_same_tree, check_manifest, cleanup, extract,
                   family, is_instrumented, need, need_root, object_of, process_memory, slowness,
                   tree, wait_for)
from tap import Late, figures, in_time, main, test

MIB = 1 << 20
ATTACKER, VICTIM = 65533, 65534
DESCRIPTORS = 1024     # of the agent: what a service has without LimitNOFILE=
CONNECTIONS = 600      # more than there may be of hooks
OPEN_FILES = 300
SLOW_NOTES = 40        # at a time
# of the issue; the test itself is generous with time, see SLACK
DISCOVERED_MAX, ACCEPTED_MAX, HEALTHZ_MAX, RSS_MAX = 10.0, 1.0, 0.5, 128 * MIB
SLACK = 4              # a busy machine


def resident(pid):
    """The pages of the agent and of all its children, each page once: a child is the same program,
    so the pages of its files are the agent's."""
    total = process_memory(pid)["VmRSS"]
    for one in family(pid)[1:]:
        try:
            memory = process_memory(one)
            total += memory.get("RssAnon", 0) + memory.get("RssShmem", 0)
        except OSError:
            pass  # it has ended
    return total


def ask_healthz(a):
    """@return how long the answer took"""
    begun = time.monotonic()
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as s:
        s.settimeout(60 * PATIENCE)
        s.connect(a.socket)
        s.sendall(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
        head = s.recv(64)
    assert head.startswith(b"HTTP/1.1 200"), head
    return time.monotonic() - begun


class Watched:
    """with Watched(a) as w: … → w.peak, w.worst: the agent's memory, and its slowest /healthz."""

    def __init__(self, a):
        self.a, self.peak, self.worst, self.answers = a, 0, 0.0, []
        self.fault = None
        self._end = threading.Event()
        self._threads = [threading.Thread(target=self._run, args=(look, every)) for look, every in
                         ((self._look_at_memory, 0.02), (self._look_at_health, 0.05))]

    def _look_at_memory(self):
        self.peak = max(self.peak, resident(self.a.pid))

    def _look_at_health(self):
        self.answers.append(ask_healthz(self.a))
        self.worst = max(self.worst, self.answers[-1])

    def _run(self, look, every):
        try:
            while not self._end.wait(every):
                look()
        except (OSError, AssertionError) as e:
            self.fault = e

    def __enter__(self):
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_):
        self._end.set()
        for thread in self._threads:
            thread.join()
        # a child that lived between two looks is not seen, the agent's own highest value is
        self.peak = max(self.peak, process_memory(self.a.pid)["VmHWM"])


# --- the attacker: processes of one uid ---

class Attack:
    """What is to come is made outside of the source; start() moves it in and goes on with the
    rest."""

    def __init__(self, a, names, units):
        self.a, self.names, self.units = a, names, units
        self.place, self.dumps = a.path("attacker"), a.path("dumps")
        self.pids = []
        os.mkdir(self.place)
        os.chown(self.place, ATTACKER, ATTACKER)
        self._finish(self._fork(self.prepare), "prepared")

    @staticmethod
    def unit(n):
        return f"dt-20260101-000000-cid-{0xaaaa000000000000 + n:016x}"

    def _fork(self, function):
        pid = os.fork()
        if pid:
            return pid
        code = 1
        try:
            os.setgroups([])
            os.setgid(ATTACKER)
            os.setuid(ATTACKER)
            signal.alarm(int(900 * PATIENCE))
            function()
            code = 0
        except BaseException as e:  # pylint: disable=broad-except  # for the log of the test
            print(f"# attacker: {e!r}", flush=True)
        finally:
            os._exit(code)

    @staticmethod
    def _finish(pid, what):
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0, what

    @staticmethod
    def add_names(directory, first, n):
        fd = os.open(directory, os.O_RDONLY)
        for i in range(first, first + n):
            os.mknod(f"{i:08d}" + "x" * 247, 0o644, dir_fd=fd)
        os.close(fd)

    def prepare(self):
        """B1: two directories of long names, one of which stays as it is. B2: units."""
        for unit in 0, 1:
            os.mkdir(os.path.join(self.place, self.unit(unit)))
            self.add_names(os.path.join(self.place, self.unit(unit)), 0, self.names)
        for n in range(2, 2 + self.units):
            unit = os.path.join(self.place, self.unit(n))
            os.mkdir(unit)
            with open(os.path.join(unit, f"{INSTANCE}-nrt-pid-{n}.log"), "wb") as f:
                f.write(b"a line\n" * 10)

    def files(self):
        """B1 and B2 come, B4: files that stay open for writing, and grow; names come on and on."""
        opened = []
        for n in range(2 + self.units):
            os.rename(os.path.join(self.place, self.unit(n)),
                      os.path.join(self.dumps, self.unit(n)))
            if 2 <= n < 2 + OPEN_FILES:
                # pylint: disable-next=consider-using-with
                opened.append(open(os.path.join(self.dumps, self.unit(n), "open"), "wb",
                                   buffering=0))
        at = self.names
        while True:
            self.add_names(os.path.join(self.dumps, self.unit(1)), at, 20)
            at += 20
            for f in opened[at % 7::7]:
                f.write(b"more\n")
            time.sleep(0.05)

    def connections(self):
        """B5: silent ones, always as many as there may be."""
        held = []
        while True:
            try:
                held.append(test_notes.Hook(self.a))
            except OSError:
                time.sleep(0.01)
            if len(held) > CONNECTIONS:
                held.pop(0).close()

    def notes(self):
        """B6: as large as they may be, and made to be slow to search for secrets."""
        unit = os.path.join(self.dumps, self.unit(2))
        while True:
            hooks = []
            try:
                for _ in range(SLOW_NOTES):
                    hooks.append(test_notes.Hook(self.a, test_notes.slow_note(unit)))
                for hook in hooks:
                    hook.hear()
            except OSError:
                time.sleep(0.01)
            for hook in hooks:
                hook.close()

    def __enter__(self):
        self.pids = [self._fork(f) for f in (self.files, self.connections, self.notes)]
        return self

    def __exit__(self, *_):
        ended = [pid for pid in self.pids if os.waitpid(pid, os.WNOHANG)[0] != 0]
        for pid in set(self.pids) - set(ended):
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
        assert not ended, "a part of the attack ended by itself"


# --- the victim ---

class Dump:
    """One of the victim's, with or without a hook's note, timed by the row in the database: from
    there on it survives a crash."""

    def __init__(self, a, n, has_hook):
        self.a, self.id = a, None
        cluster = f"{0xbbbb000000000000 + n:016x}"
        coming = make_dump.make_dump(a.path("coming"), size=MIB, cluster_id=cluster, pid=1000 + n,
                                     owner=(VICTIM, VICTIM))
        self.unit = a.path("dumps", os.path.basename(coming))
        self.accepted = None
        self.begun = time.monotonic()
        os.rename(coming, self.unit)
        if has_hook:
            note = test_notes.note_of(self.unit, secrets.token_hex(16), cluster_id=cluster)
            answer, self.accepted = test_notes.as_user(VICTIM, lambda: self._notify(note))
            if not answer:  # closed: the time of the hook was up
                raise Late("another user's hook was not answered in time")
            assert answer.startswith("accepted"), answer

    def _notify(self, note):
        begun = time.monotonic()
        hook = test_notes.Hook(self.a, note, timeout=60)
        answer = hook.hear()
        return answer, time.monotonic() - begun

    def row(self):
        found = self.a.sql("SELECT id, state FROM bundles WHERE source = 'core-dumps' AND "
                           f"path = X'{os.fsencode(self.unit).hex()}'")
        return found.split("|") if found else None

    def wait(self):
        self.id = wait_for(f"{self.unit} is discovered", self.row, 10 * DISCOVERED_MAX, every=0.2)[0]
        self.discovered = time.monotonic() - self.begun
        # By the API: to copy the database the agent is stopped, each time.
        wait_for(f"{self.id} is delivered",
                 lambda: self.a.api("/v1/bundles/" + self.id)["state"] == "delivered", 180, every=0.2)
        self.delivered = time.monotonic() - self.begun

    def check(self):
        manifests = glob.glob(self.a.path("out", "*", INSTANCE, self.id + ".manifest.json"))
        assert len(manifests) == 1, manifests
        found = tree(extract(object_of(manifests[0]), "tar"))
        assert_same_tree(found, tree(self.unit), "tar")
        check_manifest(manifests[0], found, source={"uid": VICTIM}, bundle={"complete": True})


class Measured:
    """Of all dumps of one run, the worst."""

    def __init__(self, dumps, watched):
        self.discovered = max(d.discovered for d in dumps)
        self.accepted = max(d.accepted for d in dumps if d.accepted is not None)
        self.delivered = max(d.delivered for d in dumps)
        self.healthz, self.peak = watched.worst, watched.peak
        answers = sorted(watched.answers)
        self.healthz_p99 = answers[len(answers) * 99 // 100]


def run_attack(a, names, units, n_dumps):
    """Starts the agent, attacks it, and lets the victim dump. Every second dump has a hook.
    @return Measured"""
    os.makedirs(a.path("dumps"))
    os.chmod(a.path("dumps"), 0o1777)
    a.config["hook"]["deadline"] = "60s"  # what is measured is not cut short
    a.prefix = ["prlimit", f"--nofile={DESCRIPTORS}:{DESCRIPTORS}", "--"]
    attack = Attack(a, names, units)
    a.start()
    wait_for("the hook socket", lambda: os.path.exists(a.config["hook"]["socket"]))
    dumps = []
    with attack, Watched(a) as watched:  # it forks before there are threads
        wait_for("the attack is discovered", lambda: a.counts()["discovered"] >= 1, 60)
        for n in range(n_dumps):
            dumps.append(Dump(a, n, has_hook=n % 2 == 1))
            dumps[-1].wait()
        bounded = {b["what"]: b for b in a.status()["bounded"]}
    assert watched.fault is None, watched.fault
    for dump in dumps:
        dump.check()
    assert bounded["connections of hooks"]["refused"] > 0, bounded
    return Measured(dumps, watched)


@test
def one_account_that_does_all_at_once_takes_nothing_from_another():
    need_root()
    need("prlimit")
    a = Agent()
    m = run_attack(a, names=20000, units=2000, n_dumps=4)
    figures.append(f"victim's dumps, the slowest: discovered after {m.discovered:.2f} s, hook "
                   f"accepted after {m.accepted:.3f} s, delivered after {m.delivered:.1f} s; "
                   f"/healthz {m.healthz:.3f} s at worst; RSS of the agent and its children "
                   f"{m.peak / MIB:.1f} MiB at most")
    slack = SLACK * PATIENCE * slowness()
    in_time(m.discovered, DISCOVERED_MAX * slack, "discovery of another user's dump")
    in_time(m.accepted, ACCEPTED_MAX * slack, "another user's hook")
    in_time(m.healthz, HEALTHZ_MAX * slack, "/healthz")
    assert m.peak <= RSS_MAX or is_instrumented(), f"{m.peak / MIB:.1f} MiB"
    a.stop()


if __name__ == "__main__":
    sys.exit(main(cleanup))
