#!/usr/bin/env python3
"""The examples of docs/API.md, taken from the page as they stand there, and run: against a stand-in
that speaks as the page says, and against the agent."""
import array
import contextlib
import json
import os
import re
import shutil
import socket
import subprocess
import sys
import threading
import time

sys.dont_write_bytecode = True  # the source tree may be read-only, and is packed as it is
sys.path.insert(0, os.path.join(os.path.dirname(os.path.realpath(__file__)), "..", "harness"))
# pylint: disable=wrong-import-position
from agent import PATIENCE, SOURCE_DIR, Agent, cleanup, clean_environment, need, wait_for
from tap import Skip, in_time, main, test

LANGUAGES = {"python": ("python3",), "bash": ("bash", "socat")}
SNAPSHOT = {"schema": "stand-in", "answer": 42}
UNIT = "dt-20260527-051233-cid-d99e36ea74c263ca"


def example(language):
    with open(os.path.join(SOURCE_DIR, "docs/API.md"), encoding="utf-8") as f:
        found = re.findall(rf"^```{language}\n(#!.*?)^```$", f.read(), re.M | re.S)
    assert len(found) == 1, (language, len(found))
    lines = [line for line in found[0].splitlines() if line.strip() and not line.startswith("#")]
    assert len(
        lines) <= 25, f"{language}: the example should stay short, and has {len(lines)} lines"
    return found[0]


@contextlib.contextmanager
def hook_of(language, directory):
    need(*LANGUAGES[language])
    path = os.path.join(directory, "hook-" + language)
    with open(path, "w", encoding="utf-8") as f:
        f.write(example(language))
    os.chmod(path, 0o755)
    yield path


def arguments(directory, **more):
    flags = {"neff-name": 'a "model" \\ of ours', "date-time": "20260527-051233",
             "pid": str(os.getpid()), "tid": "39861", "log-id": "7",
             "instance-id": "i-0a1b2c3d4e5f60718",
             "cluster-id": "d99e36ea74c263ca", "error-location": "nrt_execute",
             "error-code": "1200", "local-output-dir": directory} | more
    return [text for name, value in flags.items() if value for text in ("--" + name, value)]


class StandIn:
    """One conversation, as the page tells it."""

    def __init__(self, path, accept=True, snapshot=True, pause=0):
        self.server = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.server.bind(path)
        self.server.listen(1)
        self.server.settimeout(30 * PATIENCE)
        self.accept, self.snapshot, self.pause = accept, snapshot, pause
        self.note = self.last = self.files = None
        self.thread = threading.Thread(target=self.talk)
        self.thread.start()

    def talk(self):
        peer, _ = self.server.accept()
        with peer:
            peer.settimeout(30 * PATIENCE)
            self.note = json.loads(peer.recv(65537))
            if not self.accept:
                peer.send(b"refused it is Sunday")
                self.last = peer.recv(100)
                return
            peer.send(b"accepted 1900000\nrefused: no source has this directory")
            time.sleep(self.pause)
            if self.snapshot:
                fd = os.memfd_create("snapshot")
                os.write(fd, json.dumps(SNAPSHOT).encode())
                peer.sendmsg([b"snapshot done"],
                             [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [fd]))])
                os.close(fd)
            else:
                peer.send(b"snapshot none there is no device")
            self.last = peer.recv(100)
            directory = self.note["arguments"]["local_output_dir"].replace("\\x5c", "\\")
            self.files = os.listdir(directory)

    def done(self):
        self.thread.join(60 * PATIENCE)
        self.server.close()
        assert not self.thread.is_alive()


def run_hook(hook, path, flags, parent=()):
    return subprocess.run([*parent, hook, *flags],
                          env=clean_environment(NEURON_COLLECTD_HOOK_SOCKET=path),
                          timeout=60 * PATIENCE, capture_output=True, text=True, check=False)


def against_a_stand_in(language):
    a = Agent()  # for its directory; it is not started
    directory = a.path("dumps", 'back\\slash', "which is not there")
    with hook_of(language, a.dir) as hook:
        # both answers at once may arrive as one; waiting for a second one then takes too long
        for i, (accept, snapshot, pause) in enumerate(
                [(True, True, 0)] * 5 + [(True, False, 0), (True, True, 0.3), (False, False, 0)]):
            path = a.path("run", f"stand-in-{i}")
            agent = StandIn(path, accept, snapshot, pause)
            begun = time.monotonic()
            result = run_hook(hook, path, arguments(directory))
            in_time(time.monotonic() - begun, 1 + pause)
            agent.done()
            assert (agent.last == b"finished") == accept, (agent.last, result)
            assert agent.note["schema"] == "neuron-collectd/hook-note/1" and re.fullmatch(
                "[0-9a-f]{32}", agent.note["id"]), agent.note
            assert agent.note["arguments"]["error_code"] == "1200" and agent.note["arguments"][
                "local_output_dir"] == directory.replace("\\", "\\x5c"), agent.note
            assert agent.note["arguments"]["neff_name"] == 'a "model" \\x5c of ours', agent.note
            if accept:
                assert result.returncode == 0 and not result.stderr, result
                assert agent.files == [agent.note["files"]["record"]], (
                    "its record is there, and only that, when it says finished", agent.files)
            if accept and language == "python":
                with open(os.path.join(directory, agent.files[0]), encoding="utf-8") as f:
                    assert json.load(f)["snapshot"] == (SNAPSHOT if snapshot else None)
            shutil.rmtree(directory, ignore_errors=True)
        for flags in (arguments(directory), arguments(None)):   # nobody to tell; nothing to write
            result = run_hook(hook, a.path("run", "nobody"), flags)
            assert (result.returncode == 0 and "Traceback" not in result.stderr
                    and not os.path.exists(directory)), result


@test
def the_python_example_speaks_as_the_page_has_it():
    against_a_stand_in("python")


@test
def the_shell_example_speaks_as_the_page_has_it():
    against_a_stand_in("bash")


def against_the_agent(language):
    a = Agent()
    a.config["sources"][0]["settle"] = "60s"  # what is delivered sooner is due to the hook
    a.config["hook"]["deadline"] = "30s"      # and that ends when it says so
    a.start()
    if not os.path.exists(a.path("run", "hook.sock")):
        raise Skip("this daemon has no hook socket")
    directory = a.path("dumps", UNIT)
    os.makedirs(directory)
    with open(os.path.join(directory, "i-0a1b2c3d4e5f60718-nrt-pid-39738.log"), "w",
              encoding="ascii") as f:
        f.write("the runtime was here\n")
    with hook_of(language, a.dir) as hook:
        # its parent is the process that failed, and ends
        result = run_hook(hook, a.path("run", "hook.sock"), arguments(directory, pid=None),
                          ["sh", "-c", '"$0" "$@" --pid $$; exit $?'])
    assert result.returncode == 0 and not result.stderr, result
    (record,) = [name for name in os.listdir(directory) if name.startswith("my-hook")]
    manifests = wait_for("its bundle is delivered",
                         lambda: [os.path.join(base, name) for base, _, names in os.walk(a.out)
                                  for name in names if name.endswith(".manifest.json")], timeout=30)
    with open(manifests[0], encoding="utf-8") as f:
        manifest = json.load(f)
    assert record in [m["path"] for m in manifest["members"]], manifest["members"]
    assert manifest["failure"]["code"] == 1200 and manifest["failure"][
        "name"] == "NRT_EXEC_HW_ERR_COLLECTIVES", manifest["failure"]


@test
def the_agent_understands_the_python_example():
    against_the_agent("python")


@test
def the_agent_understands_the_shell_example():
    against_the_agent("bash")


if __name__ == "__main__":
    sys.exit(main(cleanup))
