"""What the tests of neuron-collect share: running it, with and without a terminal, and golden
files. UPDATE_GOLDEN=1 writes tests/golden/cli anew."""
import os
import pty
import re
import subprocess
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.realpath(__file__)), "..", "harness"))
# pylint: disable=wrong-import-position,unused-import
from agent import CLI, PATIENCE, SOURCE_DIR, run
from canned_api import CannedApi, InTurn, from_golden
from tap import Skip, main, test

GOLDEN = os.path.join(SOURCE_DIR, "tests/golden/cli")
SHIPPING = "neuron-core-dump-20260527T052100-0000000000a1"
QUARANTINED = "neuron-core-dump-20260527T052100-0000000000a3"


def golden_api(name):
    return from_golden(SOURCE_DIR, name)


def check_golden(name, text):
    path = os.path.join(GOLDEN, name + ".txt")
    if os.environ.get("UPDATE_GOLDEN"):
        with open(path, "w", encoding="utf-8") as f:
            f.write(text)
        return
    with open(path, encoding="utf-8") as f:
        wanted = f.read()
    assert text == wanted, (f"{path} says\n{wanted}--- but it is\n{text}--- UPDATE_GOLDEN=1 "
                            "rewrites it")


def session(arguments, result, replace=()):
    """A run as it is kept in a golden file. @param replace  (what, by what): paths that differ from
    run to run"""
    text = "$ neuron-collect " + " ".join(arguments) + "\n" + result.stdout
    text += "".join(f"stderr: {line}\n" for line in result.stderr.splitlines())
    text += f"exit {result.returncode}\n"
    for old, new in replace:
        text = text.replace(old, new)
    return re.sub(r"[^ '(]*/neuron-collectd/neuron-collectd\.yaml",
                  "SYSCONFDIR/neuron-collectd/neuron-collectd.yaml", text)


def ask(answers, *arguments):
    """Runs it against canned answers. @return (result, what was requested)"""
    with CannedApi(answers) as api:
        return run(CLI, "--socket", api.path, *arguments), api.requests


def ask_golden(name, answers, *arguments):
    with CannedApi(answers) as api:
        result = run(CLI, "--socket", api.path, *arguments)
        check_golden(name, session(arguments, result, [(api.path, "SOCKET")]))
    return result


def run_in_terminal(*arguments, environment=None, stdout=None):
    """Runs it with a terminal. @param stdout  None: the terminal; else where it goes  @return (exit
    code, bytes written to the terminal)"""
    leader, follower = pty.openpty()
    env = {**os.environ, "TERM": "xterm", **(environment or {})}
    if not environment or "NO_COLOR" not in environment:
        env.pop("NO_COLOR", None)
    with subprocess.Popen([CLI, *arguments], stdin=follower, stdout=follower if stdout is None
                          else stdout, stderr=follower, env=env) as process:
        os.close(follower)
        out = b""
        while True:
            try:
                piece = os.read(leader, 65536)
            except OSError:  # EIO: the other side is gone
                break
            if not piece:
                break
            out += piece
        code = process.wait(60 * PATIENCE)
    os.close(leader)
    return code, out


def assert_harmless(raw, what):
    """No control character but the newline, neither C0 nor C1, and no byte that is not UTF-8."""
    text = raw.decode("utf-8") if isinstance(raw, bytes) else raw
    bad = [c for c in text if c != "\n" and (ord(c) < 0x20 or 0x7f <= ord(c) < 0xa0
                                             or 0xdc80 <= ord(c) <= 0xdcff)]
    assert not bad, f"{what} lets {bad!r} through: {text!r}"
