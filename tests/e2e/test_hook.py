#!/usr/bin/env python3
"""The hook alone, against an agent of Python that does what an agent should not: hang, stop, go
away, talk nonsense. Whatever happens, the hook ends in time with 0, its note is somewhere, and its
files are whole."""
import fcntl
import json
import os
import random
import re
import resource
import select
import shutil
import signal
import socket
import stat
import subprocess
import sys
import tempfile
import threading
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "harness"))
import neuron_devices  # noqa: E402
import tap  # noqa: E402
from tap import Skip, in_time, plain_test, test  # noqa: E402

BUILD = os.environ.get("builddir", ".")
# deadlines of what is waited for are multiplied by it
PATIENCE = float(os.environ.get("NC_PATIENCE", "1"))
HOOK = os.path.join(BUILD, "neuron-dump")
STATIC = os.path.join(BUILD, "tests", "hook", "neuron-dump-static")
FLAGS = {"--neff-name": "file.neff", "--neff-uuid": "00ff", "--date-time": "20260527-051233",
         "--pid": "17", "--tid": "18", "--log-id": "1",
         "--instance-id": "i-0123456789abcdef0", "--cluster-id": "d99e36ea74c263ca",
         "--error-location": "nrt_execute", "--error-code": "1200"}
STEM = "i-0123456789abcdef0-neuron-dump-pid-17-tid-18-lid-1"
RECORD, SNAPSHOT = STEM + ".json", STEM + "-snapshot.json"


def is_instrumented():
    with open(HOOK, "rb") as f:
        return b"__asan_init" in f.read()


SLACK = 0.5 if is_instrumented() else 0.1   # beyond the deadline
SLOWNESS = 3 if is_instrumented() else 1    # of a start, which 128 wait for

_places = []


class Place:
    """A directory with all that a hook may touch."""

    def __init__(self):
        self.root = tempfile.mkdtemp(prefix="nc-hook-")
        os.chmod(self.root, 0o755)
        _places.append(self.root)
        self.socket = os.path.join(self.root, "hook.sock")
        self.mailbox = os.path.join(self.root, "mailbox")
        self.out = os.path.join(self.root, "out", "dt-1-cid-2")
        self.sysfs = os.path.join(self.root, "sys")
        os.mkdir(self.mailbox)
        os.chmod(self.mailbox, 0o1733)
        os.makedirs(os.path.join(self.sysfs, "devices/virtual/neuron_device"))

    def device(self, number):
        core = os.path.join(self.sysfs,
                            f"devices/virtual/neuron_device/neuron{number}/stats/hardware")
        os.makedirs(core)
        with open(os.path.join(core, "mem_ecc_uncorrected"), "w", encoding="ascii") as f:
            f.write("7\n")

    def environment(self, deadline="2s", **more):
        return {"PATH": os.environ["PATH"], "NEURON_COLLECTD_HOOK_SOCKET": self.socket,
                "NEURON_COLLECTD_MAILBOX": self.mailbox,
                "NEURON_COLLECTD_SYSFS": self.sysfs, "NEURON_COLLECTD_DEADLINE": deadline,
                "RANK": "3", "LOCAL_RANK": "1", "WORLD_SIZE": "8",
                "HF_TOKEN": "hf_planted", "NEURON_X": "http://me:planted@h/", **more}

    def arguments(self, **more):
        flags = {**FLAGS, "--local-output-dir": self.out,
                 **{"--" + k.replace("_", "-"): v for k, v in more.items()}}
        return [word for flag, value in flags.items() for word in (flag, value)]

    def start(self, arguments=None, program=HOOK, **environment):
        return subprocess.Popen([program] + (self.arguments() if arguments is None else arguments),
                                env=self.environment(**environment), stdin=subprocess.DEVNULL,
                                stdout=subprocess.PIPE, stderr=subprocess.PIPE)

    def run(self, arguments=None, program=HOOK, **environment):
        """@return seconds, stderr. It ended with 0."""
        begun = time.monotonic()
        process = self.start(arguments, program, **environment)
        _, errors = process.communicate(timeout=30 * PATIENCE)
        took = time.monotonic() - begun
        tap.notes.append(f"{took:.3f} s, {process.returncode}: {errors!r}")
        assert process.returncode == 0, process.returncode
        return took, errors.decode()

    def mail(self):
        notes = []
        for name in os.listdir(self.mailbox):
            path = os.path.join(self.mailbox, name)
            with open(path, encoding="utf-8") as f:
                note = json.load(f)
            assert name == note["id"] + ".json", name
            assert stat.S_IMODE(os.stat(path).st_mode) == 0o600
            notes.append(note)
        return notes

    def files(self):
        return sorted(os.listdir(self.out)) if os.path.isdir(self.out) else []

    def read(self, name):
        with open(os.path.join(self.out, name), encoding="utf-8") as f:
            return json.load(f)


class Agent:
    """Answers each hook by what `answer(agent, connection, note)` does, in a thread."""

    def __init__(self, place, answer):
        self.listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.listener.bind(place.socket)
        self.listener.listen(128)
        os.chmod(place.socket, 0o666)
        self.answer, self.notes, self.finished, self.waits = answer, [], [], []
        self.credentials = []
        self.thread = threading.Thread(target=self.serve, daemon=True)
        self.thread.start()

    def serve(self):
        while True:
            try:
                connection = self.listener.accept()[0]
            except OSError:
                return
            threading.Thread(target=self.talk, args=(connection,), daemon=True).start()

    def talk(self, connection):
        with connection:
            note = connection.recv(65537)
            if not note:
                return   # killed before it could say anything
            self.notes.append(json.loads(note))
            self.credentials.append(connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED,
                                                          12))
            try:
                self.answer(self, connection)
                while True:
                    word = connection.recv(4096)
                    self.finished.append(word)
                    if not word:
                        return
            except OSError:
                return


def memory(content, seal=True):
    fd = os.memfd_create("snapshot", os.MFD_ALLOW_SEALING)
    os.write(fd, content)
    if seal:
        fcntl.fcntl(fd, 1033, 0x2 | 0x4 | 0x8)   # F_ADD_SEALS: SHRINK, GROW, WRITE
    return fd


def accept(_agent, connection):
    connection.send(b"accepted 1500000")


def accept_and_give(_agent, connection):
    accept(_agent, connection)
    fd = memory(b'{"schema": "neuron-collectd/snapshot/1"}')
    socket.send_fds(connection, [b"snapshot done"], [fd])
    os.close(fd)


def hang(_agent, _connection):
    time.sleep(60)


def wait_for(condition, seconds=5):
    end = time.monotonic() + seconds * PATIENCE
    while not condition():
        assert time.monotonic() < end, "it did not come"
        time.sleep(0.01)


def assert_complete(place):
    for name in place.files():
        if not name.startswith("."):
            place.read(name)
    place.mail()


# ---- an agent that is well ----

def place_of_all():
    """Where any user may write, for a hook that runs as another one."""
    if os.getuid() != 0:
        raise Skip("needs root, to be somebody else")
    place = Place()
    os.makedirs(place.out)
    os.chmod(place.out, 0o777)
    return place


@test
def the_agent_gets_the_note_and_the_snapshot_lies_beside_the_record():
    place = Place()
    agent = Agent(place, accept_and_give)
    took, errors = place.run()
    in_time(took, 1)
    assert errors == "", errors
    wait_for(lambda: agent.finished[-1:] == [b""])
    assert agent.finished == [b"finished", b""], agent.finished
    note = agent.notes[0]
    assert note["arguments"]["error_code"] == "1200" and note[
        "error_name"] == "NRT_EXEC_HW_ERR_COLLECTIVES", note
    assert note["arguments"]["local_output_dir"] == place.out
    assert note["job"]["source"] == "torchrun" and note["job"]["rank"] == 3, note
    assert note["files"] == {"record": RECORD, "snapshot": SNAPSHOT}, note
    assert note["hook"]["ppid"] == os.getpid()
    assert place.files() == [SNAPSHOT,
                             RECORD] or place.files() == sorted([SNAPSHOT, RECORD]), place.files()
    record = place.read(RECORD)
    assert {k: v for k, v in record.items() if k != "packages"} == note
    assert "dpkg" in record["packages"], record
    assert place.read(SNAPSHOT) == {"schema": "neuron-collectd/snapshot/1"}
    assert place.mail() == []


@test
def secrets_of_the_environment_and_the_flags_go_nowhere():
    place = Place()
    agent = Agent(place, accept)
    place.run(place.arguments(neff_name="--x token=planted")
              + ["--api-key", "planted", "--note", "AKIAPLANTEDPLANTED12"], deadline="300ms")
    text = json.dumps(agent.notes) + json.dumps(place.read(RECORD))
    assert "planted" not in text.lower(), text


@test
def without_a_snapshot_it_withdraws_the_promise_of_one():
    place = Place()
    agent = Agent(place, lambda a, c: c.send(b"accepted 1000000")
                  and c.send(b"snapshot none not today"))
    place.run()
    assert (agent.notes[0]["files"] == {"record": RECORD, "snapshot": SNAPSHOT}
            and place.files() == [RECORD]), place.files()
    wait_for(lambda: agent.finished)
    assert agent.finished[0] == b"finished without snapshot", agent.finished


@test
def flags_in_any_order_unknown_and_missing_ones_are_accepted():
    place = Place()
    agent = Agent(place, lambda a, c: c.send(b"accepted 1000000")
                  and c.send(b"snapshot none not today"))
    for seed in range(20):
        shutil.rmtree(place.out, ignore_errors=True)
        pairs = list({**FLAGS, "--local-output-dir": place.out, "--new-flag": "x"}.items())
        random.Random(seed).shuffle(pairs)
        words = [w for flag, value in pairs for w in ([f"{flag}={value}"] if seed % 2
                                                      else [flag, value])]
        _, errors = place.run(words + ["--alone"])
        assert errors == "", errors
        assert agent.notes[-1]["unknown"] == [{"flag": "--new-flag", "value": "x"},
                                              {"flag": "--alone"}], agent.notes[-1]
        assert place.files() == [RECORD], place.files()
    place.run(["--neff-name", "", "--error-code", "--pid=5"])
    note = agent.notes[-1]
    assert note["arguments"] == {"neff_name": "", "pid": "5"} and "error_number" not in note, note
    assert note["files"] == {}, note
    place.run(["--error-code", "nrt_timeout"])
    assert agent.notes[-1]["error_number"] == 5
    place.run(["--error-code", "4711"])
    assert agent.notes[-1]["error_number"] == 4711 and "error_name" not in agent.notes[-1]


@test
def only_a_command_line_that_is_none_ends_with_2():
    place = Place()
    for arguments in ([], ["word"], ["word", "--pid", "1"]):
        process = place.start(arguments)
        _, errors = process.communicate(timeout=10 * PATIENCE)
        assert process.returncode == 2 and b"--help" in errors, (arguments, process.returncode,
                                                                 errors)
    assert place.mail() == []
    process = place.start(["--version"])
    out, _ = process.communicate(timeout=10 * PATIENCE)
    assert process.returncode == 0 and out.startswith(b"neuron-collectd neuron-dump "), out


@test
def dumps_that_are_switched_off_leave_nothing():
    place = Place()
    place.run(NEURON_RT_LOCAL_CORE_DUMP_DIRECTORY="", NEURON_RT_S3_CORE_DUMP_PREFIX="")
    assert place.mail() == [] and place.files() == []
    place.run(NEURON_RT_LOCAL_CORE_DUMP_DIRECTORY="")
    assert len(place.mail()) == 1


@test
def files_that_the_agent_refuses_are_reported():
    place = Place()
    Agent(place, lambda a, c: c.send(b"accepted 300000\nrefused: /x is in no source")
          and c.send(b"snapshot none \x1b[2J"))
    _, errors = place.run()
    assert "/x is in no source" in errors and "\x1b" not in errors, errors
    # it has no directory, and so nothing that could be refused
    _, errors = place.run(["--pid", "1"])
    assert errors == "", errors


# ---- an agent that is not ----

@test
def without_an_agent_the_note_waits_in_the_mailbox_and_sysfs_is_read():
    place = Place()
    place.device(0)
    place.device(1)
    took, _ = place.run()
    in_time(took, 1.5)
    assert len(place.mail()) == 1 and place.mail()[0]["arguments"]["pid"] == "17"
    assert place.files() == sorted([RECORD, SNAPSHOT]), place.files()
    snapshot = place.read(SNAPSHOT)
    assert snapshot["schema"] == "neuron-collectd/snapshot/1"
    section = snapshot["sections"][0]
    assert section["name"] == "neuron_sysfs" and section["state"] == "complete", section
    text = json.dumps(section["records"])
    assert "mem_ecc_uncorrected" in text and "neuron0" in text and "neuron1" in text, text


@test
def a_machine_without_devices_has_no_snapshot():
    place = Place()
    shutil.rmtree(place.sysfs)
    place.run()
    assert place.files() == [RECORD], place.files()


@test
def a_socket_whose_agent_has_died_counts_as_none():
    place = Place()
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
        listener.bind(place.socket)
        listener.listen(1)
    took, _ = place.run()
    assert len(place.mail()) == 1
    in_time(took, 1)


@test
def an_agent_that_hangs_costs_no_more_than_the_deadline():
    for deadline, seconds in (("500ms", 0.5), ("1s", 1.0)):
        place = Place()
        place.device(0)
        Agent(place, hang)
        took, _ = place.run(deadline=deadline)
        tap.figures.append(f"deadline {deadline}: {took:.3f} s")
        in_time(took, seconds + SLACK)
        assert len(place.mail()) == 1
        assert place.files() == sorted([RECORD, SNAPSHOT]), place.files()


@test
def an_agent_that_is_stopped_costs_no_more_than_the_deadline():
    place = Place()
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    listener.bind(place.socket)
    listener.listen(2)
    pid = os.fork()
    if pid == 0:
        while True:
            listener.accept()[0].send(b"accepted 9000000")
    try:
        os.kill(pid, signal.SIGSTOP)
        for n in range(1, 6):   # more than its queue holds: then already connecting waits
            shutil.rmtree(place.out, ignore_errors=True)
            took, _ = place.run(deadline="500ms")
            in_time(took, 0.5 + SLACK)
            assert len(place.mail()) == n and RECORD in place.files()
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


@test
def the_agents_own_deadline_counts_once_it_has_accepted():
    place = Place()
    agent = Agent(place, lambda a, c: c.send(b"accepted 700000"))
    took, _ = place.run(deadline="300ms")
    assert took >= 0.7, took
    in_time(took, 0.7 + SLACK + 0.05)
    assert place.mail() == []
    wait_for(lambda: agent.finished)
    assert agent.finished[0] == b"finished without snapshot"  # no time is left for one


@test
def what_a_late_agent_grants_counts_from_the_beginning():
    for granted, seconds in ((1000000, 1.0), (1500000, 1.5), (200000, 0.6)):
        place = Place()

        def answer(_agent, connection, granted=granted):
            time.sleep(0.4)   # its queue, for which it does not account
            connection.send(b"accepted %d" % granted)
        Agent(place, answer)
        took, _ = place.run(deadline="1s")
        in_time(took, seconds + SLACK, f"a hook of 1 s that was granted {granted} µs after 0.4 s")
        assert took >= seconds - 0.01, (granted, took)


@test
def a_deadline_without_end_has_one():
    place = Place()
    place.device(0)
    # all the time that fits: a moment added to it would be none
    took, errors = place.run(deadline="18446744073709551615us")
    in_time(took, 1.5)
    assert errors == "" and place.files() == sorted([RECORD, SNAPSHOT]), (errors, place.files())


@test
def with_a_full_mailbox_the_record_lies_beside_the_dump():
    place = Place()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=4k,nr_inodes=2,mode=1733",
                              "tmpfs", place.mailbox], capture_output=True, check=False)
    if mounted.returncode != 0:
        raise Skip("cannot mount a tmpfs")
    try:
        with open(os.path.join(place.mailbox, "filler"), "wb") as f:
            f.write(b" " * 4096)
        place.device(0)
        _, errors = place.run()
        assert os.listdir(place.mailbox) == ["filler"], os.listdir(place.mailbox)
        assert "No space left" in errors, errors
        assert {RECORD, SNAPSHOT} <= set(place.files()), place.files()
        assert place.read(RECORD)["schema"].startswith("neuron-collectd/"), place.read(RECORD)
    finally:
        subprocess.run(["umount", place.mailbox], check=True)


@test
def garbage_and_refusals_lead_to_the_mailbox():
    answers = [b"", b"hello", b"accepted", b"accepted -5", b"\xff" * 4096,
               b"accepted 5" + b"0" * 60, b"refused too many hooks", b"snapshot done"]
    for answer in answers:
        place = Place()
        Agent(place, lambda a, c, text=answer: c.send(text))
        took, _ = place.run(deadline="1s")
        in_time(took, 1 + SLACK, f"the hook, told {answer[:30]},")
        assert len(place.mail()) == 1, answer
        assert place.files() in ([RECORD], sorted([RECORD, SNAPSHOT])), (answer, place.files())
        assert_complete(place)


@test
def an_agent_that_goes_away_after_accepting_leaves_the_rest_to_the_hook():
    place = Place()
    place.device(0)

    def leave(_agent, connection):
        accept(_agent, connection)
        connection.close()
    Agent(place, leave)
    took, _ = place.run()
    in_time(took, 1.5)
    assert place.mail() == [] and place.files() == sorted([RECORD, SNAPSHOT]), place.files()


@test
def a_snapshot_that_is_no_sealed_memory_is_not_read():
    place = Place()

    def give(_agent, connection):
        accept(_agent, connection)
        read_end, write_end = os.pipe()
        socket.send_fds(connection, [b"snapshot done"], [read_end])   # would block for ever
        time.sleep(5)
        os.close(write_end)
    Agent(place, give)
    took, _ = place.run()
    in_time(took, 1.5 + SLACK)
    assert RECORD in place.files()
    place = Place()
    fd = memory(b"{}", seal=False)
    Agent(place, lambda a, c: (accept(a, c), socket.send_fds(c, [b"snapshot done"], [fd])))
    place.run()
    if SNAPSHOT in place.files():
        assert place.read(SNAPSHOT) != {}, "what is not sealed was copied"


# ---- directories ----

@test
def a_directory_that_cannot_be_written_does_not_hinder_the_note():
    if os.getuid() != 0:
        raise Skip("needs root, to be somebody else")
    for mode, owner in ((0o555, 65534), (0o700, 0)):
        place = Place()
        agent = Agent(place, lambda a, c: c.send(b"accepted 300000") and c.send(b"snapshot none x"))
        os.makedirs(place.out)
        os.chown(place.out, owner, owner)
        os.chmod(place.out, mode)
        process = subprocess.run(["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups",
                                  HOOK] + place.arguments(), env=place.environment(),
                                 stderr=subprocess.PIPE, timeout=20 * PATIENCE, check=False)
        assert process.returncode == 0 and b"Permission denied" in process.stderr, process
        assert os.listdir(place.out) == [] and place.mail() == []
        wait_for(lambda: agent.finished)   # pylint: disable=cell-var-from-loop
        assert agent.finished[0] == b"finished without record snapshot", agent.finished


@test
def another_user_without_an_agent_leaves_its_note_too():
    place = place_of_all()
    subprocess.run(["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", HOOK]
                   + place.arguments(), env=place.environment(), timeout=20 * PATIENCE, check=True)
    assert len(place.mail()) == 1
    name = os.listdir(place.mailbox)[0]
    assert os.stat(os.path.join(place.mailbox, name)).st_uid == 65534
    assert RECORD in place.files()


@test
def a_file_in_the_place_of_the_directory_does_not_hinder_the_note():
    place = Place()
    os.makedirs(os.path.dirname(place.out))
    with open(place.out, "w", encoding="ascii"):
        pass
    _, errors = place.run()
    assert "Not a directory" in errors and len(place.mail()) == 1, errors


def run_watched(place, number):
    """@return seconds, the process, which has ended, and its children, which got the signal"""
    begun = time.monotonic()
    # whoever looks for leaks at the end is a child too, and would never end if it were stopped
    process = place.start(ASAN_OPTIONS="detect_leaks=0")
    caught = children(process.pid, 0.2, number)
    process.wait(timeout=20 * PATIENCE)
    return time.monotonic() - begun, process, caught


def time_of_the_deadline():
    """What the same 300 ms take in this moment, watched in the same way, when nothing hangs and no
    snapshot comes."""
    place = Place()
    Agent(place, lambda a, c: c.send(b"accepted 300000"))
    took, process, _ = run_watched(place, 0)
    process.communicate(timeout=20 * PATIENCE)
    assert process.returncode == 0
    return max(took, 0.3)


@test
def a_write_that_hangs_is_abandoned():
    # until the child that writes is caught before it is done: a stopped one is as stuck as one in a
    # dead file system
    for _ in range(50):
        before = time_of_the_deadline()
        place = Place()
        agent = Agent(place, lambda a, c: c.send(b"accepted 300000") and c.send(b"snapshot none x"))
        took, process, caught = run_watched(place, signal.SIGSTOP)
        # one that was stopped before it could ask to die with the hook has its stderr
        for pid in caught:
            send(pid, signal.SIGKILL)
        _, errors = process.communicate(timeout=20 * PATIENCE)
        assert process.returncode == 0
        if not place.files():
            # files that are being written have 50 ms beyond the deadline (GRACE_USEC)
            in_time(took, max(before, time_of_the_deadline()) + 0.05 + SLACK,
                    "a hook whose write hangs")
            assert took >= 0.3 and b"timed out" in errors, (took, errors)
            wait_for(lambda: agent.finished)   # pylint: disable=cell-var-from-loop
            assert agent.finished == [b""], "it said finished, though a file may still appear"
            return
    raise AssertionError("no child was caught in 50 tries")


def send(pid, number):
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        pass


def children(pid, seconds, number):
    """The children that show up within this time; each gets the signal as soon as it is seen."""
    end, seen = time.monotonic() + seconds, set()
    while time.monotonic() < end:
        try:
            with open(f"/proc/{pid}/task/{pid}/children", encoding="ascii") as f:
                found = {int(n) for n in f.read().split()} - seen
        except OSError:
            return seen
        seen |= found
        for child in found:
            send(child, number)
    return seen


# ---- being killed, being many, being somewhere else ----

@test
def killed_at_any_moment_it_leaves_only_complete_files():
    def scene(n):
        place = Place()
        place.device(0)
        if n % 2:
            Agent(place, accept_and_give)
        return place
    # how long one takes that is left alone
    lives = [sorted(scene(n).run(deadline="500ms")[0] for _ in range(3))[1] for n in range(2)]
    seen = set()
    for n in range(120):
        place = scene(n)
        process = place.start(deadline="500ms")
        time.sleep(random.Random(n).random() * 1.2 * lives[n % 2])
        process.kill()
        # its children die with it: they have its stderr
        process.communicate(timeout=10 * PATIENCE)
        assert_complete(place)
        # O_TMPFILE leaves not even those here
        assert all(not name.startswith(".") for name in place.files()), place.files()
        seen.add(len(place.files()))
    tap.figures.append(f"numbers of files seen: {sorted(seen)}")
    assert 0 in seen and max(seen) >= 1, seen   # the moments were in the middle indeed


@test
def a_parent_that_is_a_zombie_is_no_matter():
    place = Place()
    read_end, write_end = os.pipe()
    pid = os.fork()
    if pid == 0:
        child = subprocess.Popen([HOOK] + place.arguments(),
                                 env=place.environment(deadline="500ms"), pass_fds=[write_end])
        os.write(write_end, b"%d " % child.pid)
        os._exit(0)   # not waited for by the test until the hook has ended
    os.close(write_end)
    while select.select([read_end], [], [], 20)[0] and os.read(read_end, 100):
        pass
    wait_for(lambda: place.mail() and RECORD in place.files())
    os.close(read_end)
    os.waitpid(pid, 0)
    assert_complete(place)


@test
def a_hundred_and_twenty_eight_notes_at_once_are_all_accepted():
    place = Place()
    agent = Agent(place, accept_and_give)
    begun = time.monotonic()
    processes = [place.start(place.arguments(log_id=str(i))) for i in range(128)]
    for process in processes:
        process.communicate(timeout=30 * PATIENCE)
        assert process.returncode == 0
    took = time.monotonic() - begun
    tap.figures.append(f"128 hooks: {took:.2f} s")
    in_time(took, (2 + 1) * SLOWNESS)
    ids = {n["id"] for n in agent.notes} | {n["id"] for n in place.mail()}
    assert len(ids) == 128, len(ids)
    assert len([f for f in place.files() if f.endswith(".json")
                and not f.endswith("-snapshot.json")]) == 128
    assert_complete(place)


@test
def a_hundred_and_twenty_eight_without_an_agent_all_leave_a_note():
    place = Place()
    place.device(0)
    processes = [place.start(place.arguments(log_id=str(i))) for i in range(128)]
    begun = time.monotonic()
    for process in processes:
        process.communicate(timeout=30 * PATIENCE)
        assert process.returncode == 0
    in_time(time.monotonic() - begun, (2 + 1) * SLOWNESS)
    assert len(place.mail()) == 128
    assert_complete(place)


@test
def in_namespaces_of_its_own_the_kernel_reports_its_identity():
    if os.getuid() != 0 or not shutil.which("unshare"):
        raise Skip("needs root and unshare")
    place = Place()
    agent = Agent(place, accept_and_give)
    subprocess.run(["unshare", "--user", "--map-root-user", "--pid", "--fork", "--mount",
                    "--mount-proc", HOOK] + place.arguments(),
                   env=place.environment(), timeout=20 * PATIENCE, check=True)
    note = agent.notes[0]
    assert note["hook"]["pid"] == 1 and note["hook"]["ppid"] == 0, note["hook"]
    assert note["hook"]["pid_namespace"] not in (0, os.stat("/proc/self/ns/pid").st_ino)
    assert int.from_bytes(agent.credentials[0][:4], sys.byteorder) > 1   # as this machine counts
    assert place.files() == sorted([RECORD, SNAPSHOT]), place.files()


@test
def a_static_hook_runs_in_an_empty_root():
    if os.getuid() != 0:
        raise Skip("needs root, for chroot")
    if not os.path.exists(STATIC):
        raise Skip("there is no static C library here, or the build is an instrumented one")
    said = subprocess.run(["readelf", "-ldW", STATIC], stdout=subprocess.PIPE,
                          timeout=20 * PATIENCE, check=True).stdout
    assert b"INTERP" not in said and b"NEEDED" not in said, said
    place = Place()
    agent = Agent(place, accept_and_give)
    shutil.copy(STATIC, os.path.join(place.root, "neuron-dump"))
    process = subprocess.run(["chroot", place.root,
                              "/neuron-dump"] + place.arguments(local_output_dir="/out/dt-1-cid-2"),
                             env=place.environment(NEURON_COLLECTD_HOOK_SOCKET="/hook.sock",
                                                   NEURON_COLLECTD_MAILBOX="/mailbox"),
                             stderr=subprocess.PIPE, timeout=20 * PATIENCE, check=True)
    assert process.stderr == b"", process.stderr
    assert agent.notes[0]["hook"]["pid_namespace"] == 0   # no /proc in there
    # by a dot-name and a rename, then
    assert place.files() == sorted([RECORD, SNAPSHOT]), place.files()


def full_pipe(room):
    """@return its ends. As many bytes are free in it; a longer write waits."""
    read_end, write_end = os.pipe()
    os.set_blocking(write_end, False)
    try:
        while True:
            os.write(write_end, b"x" * 4096)
    except BlockingIOError:
        pass
    os.set_blocking(write_end, True)
    if room:
        os.read(read_end, room)
    return read_end, write_end


@test
def a_full_stderr_that_many_share_makes_none_of_them_wait():
    place = Place()
    read_end, write_end = full_pipe(4096)   # room for some of the lines: all see that there is room
    environment = place.environment(deadline="nonsense", NEURON_COLLECTD_MAILBOX="/nonexistent")
    begun = time.monotonic()
    hooks = [subprocess.Popen([HOOK] + place.arguments(), env=environment,
                              stdin=subprocess.DEVNULL, stderr=write_end) for _ in range(64)]
    try:
        for hook in hooks:
            assert hook.wait(max(0.1, begun + 20 * PATIENCE - time.monotonic())) == 0
    finally:
        for hook in hooks:
            if hook.poll() is None:
                hook.kill()
                hook.wait()
        os.close(write_end)
    said = b""
    while len(said) < 1 << 20 and (more := os.read(read_end, 65536)):
        said += more
    os.close(read_end)
    lines = said.lstrip(b"x").replace(b"x" * 4096, b"").splitlines()
    assert lines and all(line.startswith(b"neuron-dump: ") for line in lines), lines[:3]


@test
def a_stderr_of_any_kind_is_written_to():
    place = Place()
    log = os.path.join(place.root, "stderr")
    ours, theirs = socket.socketpair()
    read_end, write_end = os.pipe()
    with open(log, "ab") as f:
        for stderr in (f, theirs, write_end):
            subprocess.run([HOOK] + place.arguments(), env=place.environment(deadline="nonsense"),
                           stdin=subprocess.DEVNULL, stderr=stderr, timeout=20 * PATIENCE,
                           check=True)
    with open(log, "rb") as f:
        for said in (f.read(), ours.recv(4096), os.read(read_end, 4096)):
            assert said.startswith(b"neuron-dump: invalid duration "
                                   b"NEURON_COLLECTD_DEADLINE='nonsense'") and said.endswith(
                                       b"\n"), said
    for end in (read_end, write_end):
        os.close(end)
    ours.close()
    theirs.close()


@plain_test
def a_stderr_that_hangs_costs_a_moment():
    if not shutil.which("strace") or is_instrumented():
        raise Skip("needs strace and a build without sanitizers")
    place = Place()
    log = os.path.join(place.root, "stderr")
    trace = os.path.join(place.root, "trace")
    begun = time.time()
    # each plain write to it takes 8 s, and none without waiting is possible
    with open(log, "ab") as f:
        subprocess.run(["strace", "-f", "-ttt", "-o", trace, "-P", log, "-e",
                        "trace=write,pwritev2", "-e", "inject=write:delay_enter=8000000", "-e",
                        "inject=pwritev2:error=EOPNOTSUPP", HOOK] + place.arguments(),
                       env=place.environment(deadline="nonsense",
                                             NEURON_COLLECTD_MAILBOX="/nonexistent"),
                       stdin=subprocess.DEVNULL, stderr=f, timeout=60 * PATIENCE, check=True)
    with open(trace, encoding="ascii") as f:   # strace itself waits for the child that hangs
        ends = [float(line.split()[1]) - begun for line in f if "+++ exited with 0 +++" in line]
    assert ends, "none has ended in good order"
    in_time(ends[-1], 5, "the hook, with those it started,")


@test
def a_directory_behind_hundreds_of_unknown_flags_is_found_and_what_is_left_out_is_reported():
    place = Place()
    unknown = [word for i in range(600) for word in (f"--new-{i}", "v")]
    _, errors = place.run(unknown + place.arguments())
    assert "536 unknown arguments are not in the note" in errors, errors
    with open(os.path.join(place.out, RECORD), encoding="utf-8") as f:
        note = json.load(f)
    assert note["cut"] is True and len(note["unknown"]) == 64, note
    place = Place()
    _, errors = place.run(unknown[:128] + place.arguments())
    assert "unknown arguments" not in errors, errors


@test
def the_variables_that_are_always_recorded_are_those_of_the_documentation():
    source = os.path.join(os.environ.get("srcdir", "."), "lib", "neuron", "job.c")
    document = os.path.join(os.environ.get("srcdir", "."), "docs", "API.md")
    with open(source, encoding="utf-8") as f:
        block = re.search(r"identity_names\[\] = \{(.*?)\};", f.read(), re.S).group(1)
    with open(document, encoding="utf-8") as f:
        listed = re.search(r"\*\*Always recorded\*\*.*?\n((?:  .*\n)+)", f.read()).group(0)
    names = set(re.findall(r'"(\w+)"', block))
    assert len(names) > 40 and set(re.findall(r"`(\w+)`", listed)) - {
        "snapshot"} == names, names ^ set(re.findall(r"`(\w+)`", listed))
    place = Place()
    place.run(**{name: "1" for name in names}, NOT_LISTED="1")
    with open(os.path.join(place.out, RECORD), encoding="utf-8") as f:
        assert set(json.load(f)["environment"]) - {"NEURON_X"} >= names


@plain_test
def no_library_comes_with_it():
    process = subprocess.run(["readelf", "-d", HOOK], stdout=subprocess.PIPE,
                             timeout=20 * PATIENCE, check=True)
    needed = [line for line in process.stdout.decode().splitlines() if "(NEEDED)" in line]
    if is_instrumented():
        raise Skip("an instrumented build")
    assert all("libc.so" in line or "ld-linux" in line for line in needed), needed


# ---- what it inherits ----

def ignore_signals():
    for number in (signal.SIGCHLD, signal.SIGALRM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)


def block_signals():
    signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())


def close_standard_fds():
    for fd in range(3):
        os.close(fd)


def lose_directory():
    directory = tempfile.mkdtemp()
    os.chdir(directory)
    os.rmdir(directory)


def as_nobody_without_children():
    os.setgroups([])
    os.setgid(65534)
    os.setuid(65534)
    # last: execve(2) checks what setuid(2) set
    resource.setrlimit(resource.RLIMIT_NPROC, (0, 0))


def run_with(place, prepare, **more):
    """@return seconds, stderr. It ended with 0."""
    begun = time.monotonic()
    hook = shutil.copy(HOOK, place.root)  # the build may lie where other users may not go
    process = subprocess.run([hook] + place.arguments(),
                             env=place.environment(**more), preexec_fn=prepare,
                             stdin=subprocess.DEVNULL,
                             # pylint: disable=subprocess-popen-preexec-fn
                             stderr=subprocess.PIPE, timeout=30 * PATIENCE, check=False)
    tap.notes.append(f"{prepare}: {process}")
    assert process.returncode == 0, process
    return time.monotonic() - begun, process.stderr.decode()


@test
def whatever_the_job_has_done_to_itself_both_files_are_there():
    for prepare in (ignore_signals, block_signals, close_standard_fds, lose_directory,
                    lambda: os.umask(0o777)):
        for has_agent in (True, False):
            place = Place()
            place.device(0)
            agent = Agent(place, accept_and_give) if has_agent else None
            took, errors = run_with(place, prepare)
            in_time(took, 1)
            assert errors == "" and place.files() == sorted([RECORD, SNAPSHOT]), (
                prepare, errors, place.files())
            if agent:
                wait_for(lambda: agent.finished)   # pylint: disable=cell-var-from-loop
                assert agent.finished[0] == b"finished", agent.finished
            else:
                assert len(place.mail()) == 1
                assert place.read(SNAPSHOT)["sections"][0]["state"] == "complete", place.read(
                    SNAPSHOT)


@test
def another_user_with_a_mask_that_forbids_everything_can_write_what_it_makes():
    if os.getuid() != 0:
        raise Skip("needs root, to be somebody else")
    place = Place()
    Agent(place, accept_and_give)
    os.mkdir(os.path.dirname(place.out))
    os.chmod(os.path.dirname(place.out), 0o777)

    def prepare():
        os.umask(0o777)
        os.setuid(65534)
    _, errors = run_with(place, prepare)
    assert errors == "" and place.files() == sorted([RECORD, SNAPSHOT]), (errors, place.files())
    assert stat.S_IMODE(os.stat(place.out).st_mode) == 0o700


@test
def the_mask_of_the_job_decides_who_may_read_what_it_makes():
    for mask, mode in ((0o022, 0o755), (0o077, 0o700), (0o000, 0o777)):
        place = Place()
        Agent(place, accept_and_give)
        run_with(place, lambda m=mask: os.umask(m))
        assert stat.S_IMODE(os.stat(place.out).st_mode) == mode, (
            mask, oct(os.stat(place.out).st_mode))
        assert stat.S_IMODE(os.stat(os.path.join(place.out, RECORD)).st_mode) == mode & 0o666


@test
def where_no_file_may_be_written_the_agent_has_the_note():
    place = Place()
    agent = Agent(place, accept_and_give)
    _, errors = run_with(place, lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0)))
    wait_for(lambda: agent.finished)
    assert len(agent.notes) == 1 and agent.finished[
        0] == b"finished without record snapshot", agent.finished
    assert errors.count("File too large") == 2, errors


@test
def where_no_process_can_be_made_the_agent_has_the_note():
    place = place_of_all()
    agent = Agent(place, accept_and_give)
    # that needs a process, too
    took, errors = run_with(place, as_nobody_without_children, ASAN_OPTIONS="detect_leaks=0")
    in_time(took, 1)
    wait_for(lambda: agent.finished)
    assert len(agent.notes) == 1 and agent.finished[
        0] == b"finished without record snapshot", agent.finished
    assert errors.count("Resource temporarily unavailable") == 2, errors


@test
def where_no_process_can_be_made_and_no_agent_runs_the_mailbox_has_the_note():
    place = place_of_all()
    took, errors = run_with(place, as_nobody_without_children, ASAN_OPTIONS="detect_leaks=0")
    in_time(took, 1)
    assert len(place.mail()) == 1 and "the note" not in errors, (place.mail(), errors)
    assert errors.count("Resource temporarily unavailable") == 2, errors  # the files


@test
def where_no_process_can_be_made_a_mailbox_that_hangs_costs_no_more_than_the_deadline():
    # a file system that does not answer, once its server is stopped
    devices = neuron_devices.Devices(count=1)
    try:
        place = Place()
        os.chmod(neuron_devices.place(), 0o755)
        os.kill(devices.server.pid, signal.SIGSTOP)
        hook = shutil.copy(HOOK, place.root)  # the build may lie where other users may not go
        process = subprocess.Popen(  # pylint: disable=subprocess-popen-preexec-fn
            [hook] + place.arguments(),
            env=place.environment(
                deadline="500ms", NEURON_COLLECTD_MAILBOX=os.path.join(devices.directory, "new")),
            preexec_fn=as_nobody_without_children)
        begun = time.monotonic()
        status = process.wait(timeout=20 * PATIENCE)
        took = time.monotonic() - begun
        assert took >= 0.5, "it did not hang"
        in_time(took, 0.5 + SLACK)
        assert status in (0, -signal.SIGKILL), status   # no other signal ends such a wait
    finally:
        os.kill(devices.server.pid, signal.SIGCONT)
        neuron_devices.cleanup()


def a_device_whose_close_hangs(devices, number):
    fd = os.open(f"{devices.directory}/neuron{number}", os.O_RDWR)
    devices.control(f"{number} close hang")
    return fd


@test
def a_close_that_hangs_is_somebody_elses():
    """Of a device that is being reset; of the file that stderr is, on a server that is gone."""
    for numbers, is_stderr, has_agent in ((1, False, True), (1, False, False), (5, False, True),
                                          (5, False, False), (1, True, True), (1, True, False)):
        devices = neuron_devices.Devices(count=5)
        fds = []
        try:
            place = Place()
            place.device(0)
            agent = Agent(place, accept_and_give) if has_agent else None
            fds = [a_device_whose_close_hangs(devices, i) for i in range(numbers)]
            begun = time.monotonic()
            process = subprocess.Popen(
                [HOOK] + place.arguments(), env=place.environment(deadline="1s"),
                stdin=subprocess.DEVNULL, stderr=fds[0] if is_stderr else None, pass_fds=fds)
            process.wait(timeout=20 * PATIENCE)
            in_time(time.monotonic() - begun, 1 + SLACK)
            assert process.returncode == 0 and RECORD in place.files(), (
                numbers, is_stderr, has_agent, place.files())
            if agent:
                wait_for(lambda: agent.finished)   # pylint: disable=cell-var-from-loop
                assert agent.finished[0] == b"finished", agent.finished
            else:
                assert len(place.mail()) == 1
        finally:
            devices.control("* close ok")
            devices.control("release")
            for fd in fds:
                os.close(fd)
            neuron_devices.cleanup()


# ---- the chain ----

def chained(place, script):
    directory = os.path.join(place.root, "bin")
    os.mkdir(directory)
    hook = shutil.copy(HOOK, os.path.join(directory, "neuron-dump"))
    vendor = os.path.join(directory, "neuron-dump.vendor")
    with open(vendor, "w", encoding="ascii") as f:
        f.write("#!/bin/sh\n" + script)
    os.chmod(vendor, 0o755)
    os.symlink("neuron-dump.vendor", os.path.join(directory, "neuron-dump.chain"))
    return hook


@test
def a_chained_hook_gets_the_same_arguments_and_environment():
    place = Place()
    Agent(place, accept_and_give)
    told = os.path.join(place.root, "told")
    hook = chained(place,
                   f'printf "%s\\n" "$@" >{told}; echo "$RANK" >>{told}; echo from the chain')
    process = place.start(program=hook)
    out, _ = process.communicate(timeout=20 * PATIENCE)
    assert process.returncode == 0
    with open(told, encoding="utf-8") as f:
        assert f.read().splitlines() == place.arguments() + ["3"]
    assert out == b"from the chain\n", out   # its streams are the job's
    assert place.files() == sorted([RECORD, SNAPSHOT])


@test
def a_chained_hook_that_hangs_or_fails_costs_no_more_than_the_deadline():
    place = Place()
    pid_file = os.path.join(place.root, "pid")
    hook = chained(place, f"sleep 8 & echo $! >{pid_file}; wait")
    begun = time.monotonic()
    process = place.start(program=hook, deadline="500ms")
    process.communicate(timeout=90 * PATIENCE)   # the streams end: its children are gone too
    assert process.returncode == 0
    in_time(time.monotonic() - begun, 0.5 + SLACK)
    assert len(place.mail()) == 1 and RECORD in place.files()
    place = Place()
    took, _ = place.run(program=chained(place, "exit 3"))
    in_time(took, 1.5)


@test
def a_chained_hook_comes_after_the_note_and_has_nothing_else_of_the_jobs():
    place = Place()
    told = os.path.join(place.root, "told")
    moments = []

    def answer(agent, connection):
        moments.append(time.clock_gettime(time.CLOCK_REALTIME))
        time.sleep(0.3)
        accept_and_give(agent, connection)
    Agent(place, answer)
    hook = chained(place, f"date +%s.%N >{told}; ls -l /proc/self/fd >>{told}; grep Sig "
                          f"/proc/self/status >>{told}")
    secret = os.open(os.path.join(place.root, "opened-by-the-job"), os.O_CREAT | os.O_RDWR)
    process = subprocess.run([hook] + place.arguments(), env=place.environment(),
                             pass_fds=[secret], preexec_fn=block_signals,
                             # pylint: disable=subprocess-popen-preexec-fn
                             stdin=subprocess.DEVNULL, timeout=20 * PATIENCE, check=True)
    os.close(secret)
    assert process.returncode == 0
    with open(told, encoding="ascii") as f:
        began, *lines = f.read().splitlines()
    # with the note in the socket, it may be quicker than a thread of Python that reads it
    in_time(moments[0] - float(began), 0.1, "the note, after the chained hook,")
    assert not any("opened-by-the-job" in line for line in lines), lines
    masks = dict(line.split(":") for line in lines if line.startswith("Sig"))
    assert (int(masks["SigBlk"], 16) == 0 and int(masks["SigIgn"], 16)
            & (1 << (signal.SIGPIPE - 1) | 1 << (signal.SIGXFSZ - 1)) == 0), masks


@test
def a_chained_hook_does_not_begin_before_an_agent_without_room_has_the_note():
    place = Place()
    told = os.path.join(place.root, "told")
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    listener.bind(place.socket)
    listener.listen(0)
    first = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    first.connect(place.socket)   # its queue is full: the hook tries again
    process = place.start(program=chained(place, f"echo >{told}"), deadline="20s")
    time.sleep(0.3)
    assert not os.path.exists(told), "it began before the note was out"
    listener.accept()[0].close()
    connection = listener.accept()[0]
    connection.recv(65537)
    connection.send(b"accepted 500000")
    process.communicate(timeout=30 * PATIENCE)
    assert os.path.exists(told)
    for end in (connection, first, listener):
        end.close()


@test
def a_chain_that_leads_back_ends():
    place = Place()
    Agent(place, accept_and_give)
    hook = chained(place, "")
    link = os.path.join(os.path.dirname(hook), "neuron-dump.chain")
    os.unlink(link)
    os.symlink("neuron-dump", link)
    place.run(program=hook)
    os.unlink(link)
    shutil.copy(hook, link)   # another file of the same program
    took, _ = place.run(program=hook)
    in_time(took, 1.9)


# ---- how quick ----

@test
def an_idle_agent_is_notified_within_milliseconds():
    place = Place()
    times = []

    def note_time(_agent, connection):
        times.append(time.monotonic())
        connection.send(b"accepted 300000")
        connection.send(b"snapshot none x")
    Agent(place, note_time)
    delays = []
    for n in range(100):
        begun = time.monotonic()
        place.run(place.arguments(log_id=str(n)))
        delays.append(times[-1] - begun)
    delays.sort()
    tap.figures.append("from starting the program to its note in the agent's hands: median "
                       f"{delays[50] * 1e3:.1f} ms, 99 of 100 within {delays[98] * 1e3:.1f} ms")
    in_time(delays[50], 0.05, "half of the notes")


def cleanup(failed):
    del failed
    while _places:
        shutil.rmtree(_places.pop(), ignore_errors=True)


if __name__ == "__main__":
    sys.exit(tap.main(cleanup))
