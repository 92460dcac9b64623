#!/usr/bin/env python3
"""Snapshots of the hardware by the real daemon: asked for, begun by the kernel log and by notes,
interrupted, and shipped."""
import contextlib
import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time

sys.path.insert(0, os.path.join(os.environ.get("srcdir") or os.path.join(
    os.path.dirname(__file__), "..", ".."), "tests", "harness"))
import agent as harness  # noqa: E402
from agent import Agent, run, wait_for  # noqa: E402
from servers import free_port  # noqa: E402
from tap import Skip, in_time, main, test  # noqa: E402

SECTIONS = {"neuron_sysfs", "neuron_device", "kmsg", "process", "process_packages", "jobs",
            "packages", "runtime_log", "commands"}
HW_ERROR = ("3,{},5000000,-;NEURON_HW_ERR=HBM_UNCORRECTABLE_ERROR instance-id=i-1 "
            "hostname=h nd-id=0 nc-id=0 serial-num=1 action=TERMINATE_INSTANCE\n")


def make_agent(**snapshot):
    """An agent with roots of its own: no device of the machine, and a kernel log that the test
    writes."""
    a = Agent()
    for name in ("sys/devices/virtual/neuron_device", "dev"):
        os.makedirs(a.path(name))
    os.mkfifo(a.path("dev", "kmsg"))
    a.config["snapshot"] = {"sysfs_root": a.path("sys"), "device_directory": a.path("dev"),
                            "probe_timeout": f"{3 * harness.PATIENCE:.0f}s"} | snapshot
    # the sender of a note learns of its snapshot, however long it takes
    a.config["hook"]["deadline"] = "60s"
    return a


def cli(a, *arguments, **options):
    return run(harness.CLI, "--socket", a.socket, *arguments, env=a.whole_environment(), cwd=a.dir,
               **options)


def children_of(pid):
    """The process and all below it: [(pid, command line)]"""
    found = []
    # what ends meanwhile has no children
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):
        for name in os.listdir(f"/proc/{pid}/task"):
            with open(f"/proc/{pid}/task/{name}/children", encoding="ascii") as f:
                pids = [int(p) for p in f.read().split()]
            for child in pids:
                with contextlib.suppress(FileNotFoundError, ProcessLookupError):
                    with open(f"/proc/{child}/cmdline", encoding="utf-8") as f:
                        found.append((child, f.read().replace("\0", " ").strip()))
                    found += children_of(child)
    return found


def snapshots(a):
    """Names of those that are being taken, or that an operator requested."""
    try:
        return sorted(os.listdir(a.path("state", "snapshots")))
    except FileNotFoundError:
        return []


def published(a):
    """Names of those that wait to be delivered."""
    return sorted(n.removeprefix("snapshot-") for n in os.listdir(a.path("state", "evidence"))
                  if n.startswith("snapshot-"))


def document(a, name, file="snapshot.json"):
    """Where it was made, or where it lies until it is delivered."""
    for where in (("snapshots", name), ("evidence", "snapshot-" + name)):
        with contextlib.suppress(FileNotFoundError), open(a.path("state", *where, file),
                                                          encoding="utf-8") as f:
            return json.load(f)
    return None


def delivered(a):
    """[(path of the manifest, manifest)] of snapshots"""
    return [(path, m) for path, m in a.manifests() if m["bundle"]["kind"] == "snapshot"]


def members_of(manifest):
    return {e["path"] for e in manifest["members"]}


def wait_incident(a, name, what, condition=lambda incident: True):
    """@return its context, once the condition holds for it"""
    return wait_for(what, lambda: (lambda i: i and condition(i)
                                   and i)(document(a, name, "snapshot-context.json")))


def sections(d):
    return {s["name"]: s for s in d["sections"]}


def write_to_kernel_log(a, *lines):
    """Writes to the FIFO that the agent follows: each line a record."""
    fd = wait_for("somebody follows the kernel log", lambda: open_fifo(a.path("dev", "kmsg")), 15)
    try:
        for line in lines:
            os.write(fd, line.encode())
    finally:
        os.close(fd)


def open_fifo(path):
    try:
        return os.open(path, os.O_WRONLY | os.O_NONBLOCK)
    except OSError:
        return None


@test
def a_snapshot_is_made_when_an_operator_asks_and_brought_with_its_files():
    a = make_agent(commands=[{"name": "greet", "run": ["/bin/echo", "hello", "--password=hunter2"],
                              "timeout": "5s"}]).start()
    result = cli(a, "snapshot", "-o", "here")
    assert result.returncode == 0, result.stderr
    assert result.stdout.split("\n")[0] == a.path("here"), result.stdout
    with open(a.path("here", "snapshot.json"), encoding="utf-8") as f:
        text = f.read()
    d = json.loads(text)
    assert d["schema"] == "neuron-collectd/snapshot/1"
    found = sections(d)
    assert set(found) == SECTIONS, found.keys()
    assert found["neuron_sysfs"]["state"] == "complete", found["neuron_sysfs"]
    assert found["process"]["state"] == "skipped" and found["process"]["detail"], found["process"]
    command = found["commands"]
    assert command["files"] == ["command-greet.txt"] and command["records"][0][
        "exit_status"] == 0, command
    with open(a.path("here", "command-greet.txt"), encoding="utf-8") as f:
        assert f.read() == "hello --password=[redacted]\n"
    assert "hunter2" not in text
    a.stop()


@test
def the_document_is_printed_for_scripts_and_a_second_one_at_once_is_refused():
    a = make_agent().start()
    begun = time.monotonic()
    result = cli(a, "--json", "snapshot")
    assert result.returncode == 0, result.stderr
    assert set(sections(json.loads(result.stdout))) == SECTIONS
    again = cli(a, "snapshot")
    in_time(time.monotonic() - begun, 10, "a snapshot and the question for another one")
    assert again.returncode == 1 and "10 seconds" in again.stderr, again.stderr
    a.stop()


@test
def what_a_snapshot_holds_is_not_for_the_open_listener():
    a = make_agent()
    port = free_port()
    a.config["api"]["listen"] = f"127.0.0.1:{port}"
    a.start()
    result = cli(a, "snapshot")
    assert result.returncode == 0, result.stderr
    name = snapshots(a)[0]
    url = f"/v1/snapshots/{name}"
    assert json.loads(a.curl(url).stdout)["done"] is True
    answer = run("curl", "-s", "-o", "/dev/null", "-w", "%{http_code}",
                 f"http://127.0.0.1:{port}{url}")
    assert answer.stdout == "404", answer.stdout
    a.stop()


@test
def a_command_that_hangs_and_one_that_floods_are_labelled_and_the_rest_is_complete():
    a = make_agent(probe_bytes="64KiB", commands=[
        {"name": "hang", "run": ["/bin/sleep", "600"], "timeout": "300ms"},
        {"name": "flood", "run": ["/usr/bin/yes"], "timeout": "60s"},
        {"name": "missing", "run": ["/nonexistent/program"], "timeout": "20s"},
    ]).start()
    result = cli(a, "--json", "snapshot")
    assert result.returncode == 0, result.stderr
    found = sections(json.loads(result.stdout))
    records = {r["command"]: r for r in found["commands"]["records"]}
    assert records["hang"]["timed_out"] is True, records
    assert records["flood"]["cut"] is True, records
    assert "No such file" in records["missing"]["error"], records
    assert found["commands"]["state"] == "cut", found["commands"]
    assert found["neuron_sysfs"]["state"] == "complete"
    a.stop()


@test
def with_snapshots_off_nothing_of_it_runs():
    a = make_agent(enabled=False).start()
    result = cli(a, "snapshot")
    assert result.returncode == 1 and "snapshot.enabled" in result.stderr, result.stderr
    assert not [c for c in children_of(a.pid) if "--child" in c[1]]
    a.stop()


@test
def what_a_killed_supervisor_had_written_becomes_a_document_that_is_marked_so():
    a = make_agent(commands=[{"name": "slow", "run": ["/bin/sleep", "20"],
                              "timeout": "20s"}]).start()
    waiting = subprocess.Popen([harness.CLI, "--socket", a.socket, "--json", "snapshot"],
                               stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                               env=a.whole_environment(), text=True)
    name = wait_for("a snapshot begins", lambda: snapshots(a))[0]
    wait_for("the public part is there", lambda: document(a, name, "public.json"))
    probes = [pid for pid, command in children_of(a.pid) if "--child=probe" in command]
    slow = wait_for("the slow one runs", lambda: [pid for pid, command in children_of(a.pid)
                                                  if "collect:commands" in command])
    taking = [pid for pid in probes if any(child == slow[0] for child, _ in children_of(pid))]
    os.kill(taking[0], signal.SIGKILL)
    out, err = waiting.communicate(timeout=30 * harness.PATIENCE)
    assert waiting.returncode == 0, err
    found = sections(json.loads(out))
    assert found["commands"]["state"] == "cut" and "interrupted" in found["commands"][
        "detail"], found["commands"]
    assert found["neuron_sysfs"]["records"], found["neuron_sysfs"]
    a.stop()


@test
def a_snapshot_whose_agent_was_killed_is_there_after_the_next_start():
    a = make_agent(commands=[{"name": "slow", "run": ["/bin/sleep", "1"], "timeout": "5s"}]).start()
    run("curl", "-s", "--unix-socket", a.socket, "-X", "POST", "http://localhost/v1/snapshot")
    name = wait_for("a snapshot begins", lambda: snapshots(a))[0]
    wait_for("the public part is there", lambda: document(a, name, "public.json"))
    a.kill()
    a.start()
    d = wait_for("the document is there", lambda: document(a, name))
    assert set(sections(d)) == SECTIONS
    wait_for("the agent knows it",
             lambda: json.loads(a.curl(f"/v1/snapshots/{name}").stdout).get("done"))
    a.stop()


@test
def a_line_of_the_kernel_log_begins_an_incident_which_is_shipped_and_removed():
    a = make_agent().start()
    write_to_kernel_log(a, HW_ERROR.format(7), HW_ERROR.format(8))
    name = wait_for("an incident begins", lambda: snapshots(a))[0]
    d = wait_for("its document is there", lambda: document(a, name))
    assert "HBM_UNCORRECTABLE_ERROR" in d["trigger"], d["trigger"]
    wait_incident(a, name, "both lines are in it", lambda i: len(i["kernel_log"]) == 2)
    assert snapshots(a) + published(a) == [name], "two lines at once are one incident"
    ((_, m),) = wait_for("it is shipped", lambda: delivered(a), 60)
    assert m["source"]["name"] == "agent" and m["bundle"]["complete"], m["bundle"]
    assert {"snapshot.json", "snapshot-context.json"} <= members_of(m), m["members"]
    wait_for("its directory is removed", lambda: not published(a) and not snapshots(a))
    a.stop()


def hook_note(number, pid, directory):
    namespace = os.stat("/proc/self/ns/pid").st_ino
    return json.dumps({"schema": "neuron-collectd/hook-note/1", "id": f"{number:032x}",
                       "hook": {"pid": os.getpid(), "pid_namespace": namespace},
                       "arguments": {"pid": str(pid), "local_output_dir": directory}})


def send_note(a, number, pid, directory, answers, before_it_ends=lambda: None):
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as s:
        s.settimeout(20 * harness.PATIENCE)
        s.connect(a.path("run", "hook.sock"))
        s.send(hook_note(number, pid, directory).encode())
        got = []
        while True:
            data, fds, _, _ = socket.recv_fds(s, 65536, 4)
            if not data:
                break
            got.append(data.decode())
            if data.startswith(b"snapshot"):
                for fd in fds:  # all notes of an incident have the same open file
                    got.append(os.pread(fd, os.fstat(fd).st_size, 0))
                    os.close(fd)
                break
        answers[number] = got
        before_it_ends()
        s.send(b"finished")


def send_notes(a, notes):
    """All at once. @param notes  [(pid, directory)]  @return {number from 1 on: what was
    answered}"""
    answers = {}
    threads = [threading.Thread(target=send_note, args=(a, n, pid, directory, answers)) for n,
               (pid, directory) in enumerate(notes, 1)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert len(answers) == len(notes), len(answers)
    return answers


@test
def a_hundred_and_twenty_eight_notes_at_once_are_one_incident_and_one_snapshot():
    a = make_agent().start()
    with subprocess.Popen(["/bin/sleep", "600"]) as process:
        begun = time.monotonic()
        answers = send_notes(a, [(process.pid, a.path("nowhere"))] * 128)
        names = snapshots(a)
        d = wait_for("the document is there", lambda: names and document(a, names[0]))
        took = time.monotonic() - begun
        wait_incident(a, names[0], "the incident has all notes", lambda i: len(i["notes"]) == 128)
        assert len(names) == 1 and snapshots(a) == names, (names, snapshots(a))
        process.kill()
    in_time(took, 30, "their answers and the document")
    parts = [got[-1] for got in answers.values() if isinstance(got[-1], bytes)]
    assert len(parts) == 128, [got for got in answers.values()
                               if not isinstance(got[-1], bytes)][:3]
    public = json.loads(parts[0])
    assert set(sections(public)) == {"neuron_sysfs",
                                     "packages"} and public["processes"] == [], public.keys()
    assert [p["pid"] for p in d["processes"]] == [process.pid], d["processes"]
    a.stop()


@test
def a_second_pass_follows_when_the_process_has_ended():
    a = make_agent().start()
    with subprocess.Popen(["/bin/sleep", "600"]) as process:
        answers = {}
        send_note(a, 1, process.pid, a.path("nowhere"), answers)
        name = snapshots(a)[0]
        wait_for("the document is there", lambda: document(a, name))
        assert document(a, name, "snapshot-after.json") is None
        process.kill()
    after = wait_for("the second look is there", lambda: document(a, name, "snapshot-after.json"))
    assert set(sections(after)) == {"neuron_sysfs"} and after["differences"] == [], after
    a.stop()


@test
def a_process_that_is_named_later_gets_sections_of_its_own():
    a = make_agent().start()
    with subprocess.Popen(["/bin/sleep",
                           "600"]) as first, subprocess.Popen(["/bin/sleep", "600"]) as second:
        answers = {}
        send_note(a, 1, first.pid, a.path("nowhere"), answers)
        name = snapshots(a)[0]
        wait_for("the document is there", lambda: document(a, name))
        send_note(a, 2, second.pid, a.path("nowhere"), answers)
        assert isinstance(answers[2][-1], bytes), answers[2]
        more = wait_for("the later one was looked at",
                        lambda: document(a, name, "snapshot-more-1.json"))
        first.kill()
        second.kill()
    assert set(sections(more)) == {"process", "process_packages",
                                   "runtime_log"}, sections(more).keys()
    assert [p["pid"] for p in more["processes"]] == [second.pid], more["processes"]
    assert sections(more)["process"]["records"], more
    after = wait_for("the second look is there", lambda: document(a, name, "snapshot-after.json"))
    assert after["differences"] == []
    assert snapshots(a) == [name]
    a.stop()


def can_connect(path):
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as s:
        return s.connect_ex(path) == 0


def is_awaited(path):
    """Whether a connection waits to be accepted there."""
    with open("/proc/net/unix", encoding="utf-8", errors="replace") as f:
        return [line for line in f if line.split()[5] == "02" and line.endswith(f" {path}\n")]


@test
def a_supervisor_that_listens_beside_the_api_is_used():
    harness.need("systemd-socket-activate")
    a = make_agent()
    log = a.path("activate.log")
    with open(log, "wb") as out, subprocess.Popen(
            ["systemd-socket-activate", "--accept", "--inetd", "--seqpacket", "-l",
             a.path("run", "probe.sock"), harness.DAEMON, "--child=probe", "--config",
             a.config_file],
            stdin=subprocess.DEVNULL, stdout=out, stderr=out) as activate:
        try:
            wait_for("it listens", lambda: os.path.exists(a.path("run", "probe.sock")))
            a.start()
            result = cli(a, "--json", "snapshot")
            assert result.returncode == 0, result.stderr
            assert set(sections(json.loads(result.stdout))) == SECTIONS
            assert not [c for c in children_of(a.pid)
                        if "--child" in c[1]], "the agent has started one itself"
            assert [c for c in children_of(activate.pid)
                    if "--child=probe" in c[1]], "nobody watches"
            a.stop()
        finally:
            activate.terminate()


@test
def a_probe_that_listens_itself_serves_until_the_agent_has_ended():
    a = make_agent()
    path = a.path("run", "probe.sock")
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as stale:
        stale.bind(path)
    with subprocess.Popen([harness.DAEMON, "--child=probe:" + path, "--config", a.config_file],
                          stdin=subprocess.DEVNULL) as probe:
        try:
            wait_for("it listens", lambda: oct(os.stat(path).st_mode)[-3:] == "600" and
                     can_connect(path))
            a.start()
            wait_for("it watches", lambda: [c for c in children_of(probe.pid)
                                            if "--child=probe" in c[1]])
            probe.terminate()  # the agent is still there
            result = cli(a, "--json", "snapshot")
            assert result.returncode == 0, result.stderr
            assert set(sections(json.loads(result.stdout))) == SECTIONS
            assert not [c for c in children_of(a.pid)
                        if "--child=probe" in c[1]], "the agent has started one itself"
            a.stop()
            assert probe.wait(10) == 0
            assert not os.path.exists(path)
        finally:
            probe.kill()
    result = subprocess.run([harness.DAEMON, "--child=probe:" + a.path("nowhere", "probe.sock")],
                            stderr=subprocess.PIPE, text=True, check=False)
    assert result.returncode == 1 and "cannot listen for the agent" in result.stderr, result


def ask_probe(path, order):
    """As an agent does. @return its first answer"""
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as s:
        s.settimeout(30 * harness.PATIENCE)
        s.connect(path)
        memory, out = os.memfd_create("order"), os.open(os.path.dirname(path), os.O_DIRECTORY)
        try:
            os.write(memory, json.dumps(order).encode())
            with contextlib.suppress(BrokenPipeError):  # it is refused already
                socket.send_fds(s, [b"order"], [memory, out])
            return s.recv(65536).decode()
        finally:
            os.close(memory)
            os.close(out)


def command_records(d):
    return [r["command"] for r in sections(d)["commands"]["records"]]


@test
def a_probe_serves_its_agent_alone_and_runs_the_commands_of_the_file():
    """The agent's children, the bus's for one, have the agent's user."""
    a = make_agent(commands=[{"name": "old", "run": ["/bin/echo", "old"]}])
    path, planted = a.path("run", "probe.sock"), a.path("planted")
    a.write_config()
    with subprocess.Popen([harness.DAEMON, "--child=probe:" + path, "--config", a.config_file],
                          stdin=subprocess.DEVNULL) as probe:
        try:
            wait_for("it listens", lambda: can_connect(path))
            a.start()
            order = {"mode": "snapshot", "collectors": ["commands"], "sysfs_root": "/sys",
                     "device_directory": "/dev", "proc_root": "/proc", "timeout_usec": 10**7,
                     "max_bytes": 1 << 20, "environment": ["*"], "processes": [],
                     "commands": [{"name": "planted", "run": ["/bin/touch", planted],
                                   "timeout_usec": 10**7}]}
            answer = ask_probe(path, order)
            assert answer.startswith("failed the caller is not the process that holds the lock"), \
                answer
            a.config["snapshot"]["commands"] = [{"name": "new", "run": ["/bin/echo", "new"]}]
            a.write_config()  # the agent, which has not read it, orders the old one
            result = cli(a, "--json", "snapshot")
            assert result.returncode == 0, result.stderr
            assert command_records(json.loads(result.stdout)) == ["new"], result.stdout
            assert not os.path.exists(planted)
            a.stop()
            assert "failed" in ask_probe(path, order)
        finally:
            probe.kill()


@test
def a_probe_that_begins_to_listen_later_takes_over_the_watch():
    a = make_agent()
    a.start()
    own = wait_for("the agent has started one itself", lambda: [
        c[0] for c in children_of(a.pid) if "--child=probe" in c[1]])
    path = a.path("run", "probe.sock")
    with subprocess.Popen([harness.DAEMON, "--child=probe:" + path, "--config", a.config_file],
                          stdin=subprocess.DEVNULL) as probe:
        try:
            wait_for("it listens", lambda: can_connect(path))
            wait_for("it has accepted that", lambda: not is_awaited(path))
            probe.send_signal(signal.SIGSTOP)
            wait_for("the agent is in its queue", lambda: is_awaited(path), 45)
            assert os.path.exists(f"/proc/{own[0]}"), "nobody follows the kernel log"
            probe.send_signal(signal.SIGCONT)
            wait_for("it watches", lambda: [c for c in children_of(probe.pid)
                                            if "--child=probe" in c[1]], 45)
            wait_for("the agent's own has ended", lambda: not os.path.exists(f"/proc/{own[0]}"))
            a.stop()
        finally:
            probe.kill()


def proc_text(pid, name):
    with open(f"/proc/{pid}/{name}", encoding="ascii") as f:
        return f.read()


def confined_followers(pid):
    return [c[0] for probe in children_of(pid) if "--child=probe" in probe[1]
            for c in children_of(probe[0]) if "--child=follow:kmsg" in c[1]
            and "\nSeccomp:\t2\n" in proc_text(c[0], "status")]


@test
def who_follows_the_kernel_log_has_no_time_after_which_it_is_killed():
    a = make_agent()
    a.start()
    (follower,) = wait_for("the kernel log is followed", lambda: confined_followers(a.pid))
    limits = proc_text(follower, "limits")
    assert re.search(r"^Max cpu time +unlimited +unlimited ", limits, re.M), limits
    a.stop()


@test
def a_snapshot_lies_beside_the_dump_that_a_note_is_about_and_the_dump_does_not_wait():
    a = make_agent()
    a.config["sources"][0]["settle"] = "1s"
    a.start()
    answers = {}
    send_note(a, 1, 1 << 21, a_dump(a), answers)
    assert isinstance(answers[1][-1], bytes), answers
    (dump, m), = wait_for("the dump is shipped", a.manifests, 20)
    assert m["source"]["name"] == "core-dumps", m["source"]
    assert not [p for p in members_of(m) if "snapshot" in p], members_of(m)
    ((path, found),) = wait_for("the snapshot is shipped", lambda: delivered(a), 60)
    assert {"snapshot.json", "snapshot-context.json"} <= members_of(found), members_of(found)
    assert {e["kind"] for e in found["members"]} == {"snapshot"}, found["members"]
    assert os.path.dirname(path) == os.path.dirname(dump), (path, dump)
    assert found["bundle"]["related"] == [{"kind": "neuron-core-dump", "id": m["bundle"]["id"]}]
    assert len(a.manifests()) == 2
    wait_for("its directory is removed", lambda: not published(a))
    a.stop()


@test
def a_directory_that_is_made_after_its_note_is_named_by_the_snapshot():
    a = make_agent()
    a.config["sources"][0]["settle"] = "1s"
    a.start()
    answers = {}
    os.makedirs(a.path("dumps"))
    directory = a.path("dumps", "dt-20260527-051233-cid-d99e36ea74c263ca")
    send_note(a, 1, 1 << 21, directory, answers, before_it_ends=lambda: a_dump(a))
    assert "refused" not in answers[1][0] and isinstance(answers[1][-1], bytes), answers
    name = snapshots(a)[0]
    context = wait_incident(a, name, "its bundle is known",
                            lambda c: [u for u in c["units"] if u.get("bundle")])
    assert [u["path"] for u in context["units"]] == [directory], context
    ((_, m),) = wait_for("the snapshot is shipped", lambda: delivered(a), 60)
    assert [b["id"] for b in m["bundle"]["related"]] == [context["units"][0]["bundle"]], m["bundle"]
    assert f"its directory exists now: files are expected in {directory}" in a.log, a.log
    a.stop()


@test
def a_snapshot_that_was_killed_still_belongs_to_its_dump():
    a = make_agent(commands=[{"name": "slow", "run": ["/bin/sleep", "3"], "timeout": "9s"}]).start()
    send_note(a, 1, 1 << 21, a_dump(a), {})
    name = snapshots(a)[0]
    incident = wait_incident(a, name, "note and dump are in it",
                             lambda i: len(i["units"]) == 1 and len(i["notes"]) == 1)
    assert not incident["over"], incident
    wait_for("it is known that its hook has ended", lambda: a.sql(
        "SELECT count(*) FROM notes WHERE finished_usec > 0") == "1")
    a.kill()
    a.start()
    wait_for("the document is there", lambda: document(a, name))
    incident = document(a, name, "snapshot-context.json")
    assert len(incident["units"]) == 1 and len(incident["notes"]) == 1, incident
    assert "hook" in incident["trigger"], incident
    ((_, m),) = wait_for("it is shipped", lambda: delivered(a), 60)
    assert [b["kind"] for b in m["bundle"]["related"]] == ["neuron-core-dump"], m["bundle"]
    a.stop()


@test
def the_end_of_a_watch_is_reported_for_both_of_its_processes():
    a = make_agent().start()
    watching = wait_for("somebody watches", lambda: [pid for pid, command in children_of(a.pid)
                                                     if "--child=probe" in command])
    os.kill(watching[0], signal.SIGKILL)
    wait_for("it is said",
             lambda: "neither the kernel log nor who holds a device is followed" in a.log)
    a.stop()


@test
def a_name_that_is_in_use_is_left_alone():
    a = make_agent().start()
    for second in range(60):
        stamp = time.strftime("%Y%m%dT%H%M%S", time.gmtime(time.time() + second))
        os.makedirs(a.path("state", "snapshots", f"{stamp}-1"))
        with open(a.path("state", "snapshots", f"{stamp}-1", "evidence"), "w",
                  encoding="utf-8") as f:
            f.write("x")
    result = cli(a, "--json", "snapshot")
    assert result.returncode == 0, result.stderr
    kept = [name for name in snapshots(a)
            if os.path.exists(a.path("state", "snapshots", name, "evidence"))]
    assert len(kept) == 60 and len(snapshots(a)) == 61, snapshots(a)
    taken = [name for name in snapshots(a) if name not in kept]
    assert taken[0].endswith("-2"), taken
    a.kill()
    a.start()
    assert len(snapshots(a)) == 61, snapshots(a)
    result = cli(a, "--json", "snapshot")
    assert result.returncode == 0, result.stderr
    assert [name for name in snapshots(a) if name.endswith("-3")], "numbers begin anew"
    a.stop()


@test
def a_second_pass_follows_a_restart_too():
    a = make_agent().start()
    with subprocess.Popen(["/bin/sleep", "600"]) as process:
        send_note(a, 1, process.pid, a.path("nowhere"), {})
        name = snapshots(a)[0]
        wait_for("the document is there", lambda: document(a, name))
        wait_incident(a, name, "the process is in it", lambda i: i["processes"])
        a.kill()
        a.start()
        incident = document(a, name, "snapshot-context.json")
        assert (len(incident["notes"]) == 1
                and [p["pid"] for p in incident["processes"]] == [process.pid]), incident
        assert document(a, name, "snapshot-after.json") is None
        process.kill()
    wait_for("the second look is there", lambda: document(a, name, "snapshot-after.json"))
    a.stop()


def a_dump(a):
    unit = a.path("dumps", "dt-20260527-051233-cid-d99e36ea74c263ca")
    os.makedirs(unit)
    with open(os.path.join(unit, "i-0a1b2c3d4e5f60718-nrt-pid-1-tid-1-lid-1.log"), "w",
              encoding="utf-8") as f:
        f.write("a log\n")
    return unit


@test
def a_snapshot_that_was_killed_gets_its_second_pass_too():
    a = make_agent(commands=[{"name": "slow", "run": ["/bin/sleep", "20"],
                              "timeout": "20s"}]).start()
    with subprocess.Popen(["/bin/sleep", "600"]) as process:
        send_note(a, 1, process.pid, a.path("nowhere"), {})
        name = snapshots(a)[0]
        slow = wait_for("the slow one runs", lambda: [pid for pid, command in children_of(a.pid)
                                                      if "collect:commands" in command])
        taking = [pid for pid, command in children_of(a.pid) if "--child=probe" in command
                  and any(child == slow[0] for child, _ in children_of(pid))]
        os.kill(taking[0], signal.SIGKILL)
        d = wait_for("what there was is a document", lambda: document(a, name), 30)
        assert sections(d)["commands"]["state"] == "cut" and sections(d)["neuron_sysfs"][
            "state"] != "skipped", sections(d)
        assert document(a, name, "snapshot-after.json") is None
        process.kill()
    after = wait_for("the second look is there", lambda: document(a, name, "snapshot-after.json"),
                     30)
    assert set(sections(after)) == {"neuron_sysfs"} and after["differences"] == [], after
    a.stop()


@test
def both_looks_are_in_one_bundle_after_a_restart_too():
    a = make_agent()
    a.config["sources"][0]["settle"] = "1s"
    a.start()
    unit = a_dump(a)
    with subprocess.Popen(["/bin/sleep", "600"]) as process:
        send_note(a, 1, process.pid, unit, {})
        name = snapshots(a)[0]
        wait_for("the dump is shipped", a.manifests, 30)
        wait_incident(a, name, "the process is known", lambda i: i["processes"])
        a.kill()
        a.start()
        process.kill()
    ((_, m),) = wait_for("the snapshot is shipped", lambda: delivered(a), 90)
    assert {"snapshot.json", "snapshot-after.json"} <= members_of(m), m["members"]
    wait_for("all is quiet", lambda: all(b["state"] == "delivered" for b in a.bundles()))
    assert len(a.manifests()) == 2, [m["bundle"]["id"] for _, m in a.manifests()]
    a.stop()


@test
def an_incident_whose_bundle_is_cancelled_leaves_no_directory():
    a = make_agent()
    a.config["destinations"][0]["path"] = a.path("nowhere", "out")
    a.start()
    write_to_kernel_log(a, HW_ERROR.format(7))
    wait_for("it is to be shipped", lambda: published(a), 60)
    b = wait_for("it is a bundle", lambda: [b for b in a.bundles() if b["source"] == "agent"],
                 30)[0]
    assert published(a)
    a.ask("cancel", b["id"])
    wait_for("its directory is removed", lambda: not published(a) and not snapshots(a))
    a.stop()


@test
def one_user_does_not_get_any_number_of_dumps_into_an_incident():
    a = make_agent().start()
    units = [a.path("dumps", f"dt-20260527-051233-cid-d99e36ea74c2{n:04x}") for n in range(1, 41)]
    for unit in units:
        os.makedirs(unit)
    with subprocess.Popen(["/bin/sleep", "600"]) as process:
        send_notes(a, [(process.pid, unit) for unit in units])
        name = snapshots(a)[0]
        process.kill()
    limit = 32 if os.getuid() == 0 else 8
    incident = wait_incident(a, name, "all are in it", lambda i: len(i["notes"]) == 40)
    assert len(incident["units"]) == limit and incident["units_left_out"] == 40 - limit, (
        len(incident["units"]), incident["units_left_out"])
    wait_for("all hooks have ended", lambda: a.sql("SELECT count(*) FROM notes WHERE finished_usec "
                                                   "> 0") == "40")
    incident = wait_incident(a, name, "it is over", lambda i: i["over"])
    assert incident["units_left_out"] == 40 - limit, "they are counted once"
    a.stop()


@test
def a_drain_waits_for_a_snapshot_that_is_underway_and_for_its_delivery():
    a = make_agent(commands=[{"name": "slow", "run": ["/bin/sleep", "10"],
                              "timeout": "20s"}]).start()
    write_to_kernel_log(a, HW_ERROR.format(7))
    name = wait_for("an incident begins", lambda: snapshots(a))[0]
    wait_for("it is being taken", lambda: document(a, name, "public.json"))
    drained = run("curl", "-s", "--unix-socket", a.socket, "-X", "POST",
                  "http://localhost/v1/drain")
    assert drained.returncode == 0, drained
    missing = json.loads(a.curl("/v1/status").stdout)["drain"]
    assert missing["safe_to_terminate"] is False and "1 snapshot is being taken" in missing[
        "missing"], missing
    assert "\nsnapshots: 1 taken since the start, 0 dropped, 1 underway\n" in cli(
        a, "status").stdout, cli(a, "status")
    seen = wait_for("it is safe", lambda: (d := json.loads(a.curl("/v1/status").stdout)["drain"])[
        "safe_to_terminate"] and d, 90)
    assert seen["missing"] is None, seen
    delivered = [f for _, _, files in os.walk(a.out) for f in files if f.startswith("snapshot-")
                 and f.endswith(".manifest.json")]
    assert delivered, "it was called safe before the incident was at its destination"
    assert json.loads(a.curl("/v1/status").stdout)["hook"]["snapshots"] == {
        "taken": 1, "dropped": 0, "underway": 0}
    a.stop()


if __name__ == "__main__":
    sys.exit(main(harness.cleanup))
