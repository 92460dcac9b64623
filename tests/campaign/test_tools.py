#!/usr/bin/env python3
"""What the campaign does harm with does the harm that it says: the preloaded library to a small
program, the proxy between a client and a server."""
import http.client
import http.server
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time

sys.dont_write_bytecode = True
HERE = os.path.dirname(os.path.realpath(__file__))
sys.path[:0] = [HERE, os.path.join(HERE, "..", "harness")]
# pylint: disable=wrong-import-position
from agent import PATIENCE
from crashpoint import CrashPoint
from fault_proxy import AT_COMPLETE, FaultProxy
from rounds import LIBRARY
from tap import Skip, main, test

PROGRAM = """
import os, sys
fd = os.open("file", os.O_WRONLY | os.O_CREAT, 0o600)
for i in range(4):
    try:
        n = os.write(fd, b"0123456789")
    except OSError as error:
        n = error.errno
    print(n, flush=True)
os.fsync(fd)
os.rename("file", "new")
"""


def run(*armed, places=("here",), operations=("write",), **terms):
    """The program with one crash point. @return (exit code, what it printed, {name: bytes} of the
    directory, what acted)"""
    if not os.path.exists(LIBRARY):
        raise Skip(f"{LIBRARY} is not built")
    with tempfile.TemporaryDirectory(prefix="campaign-tools.") as directory:
        work = os.path.join(directory, "work")
        os.mkdir(work)
        crash = CrashPoint(LIBRARY, os.path.join(directory, "control"),
                           {"here": work, "elsewhere": os.path.join(directory, "elsewhere")})
        if armed:
            crash.arm(*armed, operations=operations, places=places, **terms)
        done = subprocess.run([sys.executable, "-c", PROGRAM], cwd=work, env=os.environ
                              | crash.environment(), capture_output=True, text=True, check=False)
        files = {}
        for name in os.listdir(work):
            with open(os.path.join(work, name), "rb") as f:
                files[name] = f.read()
        return done.returncode, done.stdout.split(), files, crash.what.replace(
            os.path.realpath(work), "")


@test
def a_process_is_killed_before_and_after_a_call_and_in_the_middle_of_it():
    tenfold = b"0123456789"
    assert run("kill-before", 3) == (-signal.SIGKILL, ["10", "10"], {"file": tenfold * 2},
                                     "write /file")
    assert run("kill-after", 3) == (-signal.SIGKILL, ["10", "10"], {"file": tenfold * 3},
                                    "write /file")
    assert run("tear", 3) == (-signal.SIGKILL, ["10", "10"], {"file": tenfold * 2 + b"01234"},
                              "write /file")
    code, _, files, what = run("kill-before", 1, operations=("rename",))
    assert code == -signal.SIGKILL and list(files) == ["file"] and what.startswith("rename"), (
        code, files, what)
    code, _, files, _ = run("kill-after", 1, operations=("rename",))
    assert code == -signal.SIGKILL and list(files) == ["new"], (code, files)


@test
def calls_fail_for_a_while_fall_short_and_fail_although_they_were_done():
    code, said, files, _ = run("fail", 2, error="ENOSPC", times=2)
    assert (code, said, files) == (0, ["10", "28", "28", "10"],
                                   {"new": b"0123456789" * 2}), (code, said, files)
    code, said, files, _ = run("shorten", 2)
    assert (said, files) == (["10", "5", "10", "10"],
                             {"new": b"0123456789" + b"01234" + b"0123456789" * 2}), (said, files)
    code, said, files, _ = run("do-and-fail", 4, error="EIO")
    assert (said, files) == (["10", "10", "10", "5"], {"new": b"0123456789" * 4}), (said, files)


@test
def calls_elsewhere_are_not_counted():
    code, said, _, what = run("kill-before", 1, places=("elsewhere", "network"))
    assert code == 0 and len(said) == 4 and not what, (code, said, what)


@test
def the_clock_is_wrong_by_as_much_as_is_reported_and_may_jump():
    if not os.path.exists(LIBRARY):
        raise Skip(f"{LIBRARY} is not built")
    with tempfile.TemporaryDirectory(prefix="campaign-tools.") as directory:
        crash = CrashPoint(LIBRARY, os.path.join(directory, "control"), {"here": directory})
        crash.clock_offset = -86400
        with subprocess.Popen([sys.executable, "-c", "import time\nwhile input(): "
                                                     "print(time.time(), flush=True)"], text=True,
                              env=os.environ | crash.environment(), stdin=subprocess.PIPE,
                              stdout=subprocess.PIPE) as process:
            for offset in (-86400, 86400, 0):
                crash.clock_offset = offset
                process.stdin.write("now\n")
                process.stdin.flush()
                assert abs(float(process.stdout.readline()) - time.time() - offset) < 600, offset
            process.communicate("\n")


class Server(http.server.ThreadingHTTPServer):
    """Notes the requests that came through in full, and answers them with 20,000 bytes."""

    def __init__(self):
        super().__init__(("127.0.0.1", 0), Handler)
        self.daemon_threads = True
        self.endpoint = f"http://127.0.0.1:{self.server_address[1]}"
        self.seen = []
        threading.Thread(target=self.serve_forever, daemon=True).start()

    def handle_error(self, request, client_address):
        pass  # a client that hangs up is what this is about


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_PUT(self):
        length = int(self.headers["Content-Length"])
        body = self.rfile.read(length)
        if len(body) == length:
            self.server.seen.append(self.path)
        self.send_response(200)
        self.send_header("Content-Length", "20000")
        self.end_headers()
        self.wfile.write(bytes(20000))

    do_POST = do_PUT

    def log_message(self, *_):
        pass


def through(kind, method="PUT", path="/b/k"):
    """One request that meets this fault. @return (status and body or None when the connection
    broke, whether the server had it in full)"""
    server = Server()
    proxy = FaultProxy(server, 1)
    proxy.still_seconds = (0.2, 0.2)
    proxy.storm(1.0, (kind,) if kind else ())
    client = http.client.HTTPConnection("127.0.0.1", proxy.port, timeout=20)
    try:
        client.request(method, path, body=bytes(3 << 20))
        answer = client.getresponse()
        result = (answer.status, answer.read())
    except (OSError, http.client.HTTPException):
        result = None
    finally:
        client.close()
    assert not kind or proxy.done == {kind: 1}, proxy.done
    deadline = time.monotonic() + PATIENCE
    while not server.seen and time.monotonic() < deadline and kind in (
            "lost-answer", "half-open", "cut-answer"):
        time.sleep(0.01)
    seen = bool(server.seen)
    proxy.close()
    server.shutdown()
    server.server_close()
    return result, seen


@test
def without_a_fault_everything_passes():
    assert through(None) == ((200, bytes(20000)), True)
    for kind in ("delay", "trickle", "stand-still"):
        assert through(kind) == ((200, bytes(20000)), True), kind


@test
def requests_are_cut_on_the_way():
    for kind in ("reset-at-once", "cut-body", "reset-body", "still-body"):
        assert through(kind) == (None, False), kind


@test
def answers_are_lost_after_the_server_has_acted():
    for kind in ("lost-answer", "half-open", "cut-answer"):
        assert through(kind) == (None, True), kind


@test
def errors_are_answered_in_the_servers_place():
    for kind, status, code in (("error-500", 500, b"InternalError"),
                               ("error-503", 503, b"ServiceUnavailable"),
                               ("slow-down", 503, b"SlowDown")):
        for _ in range(3):
            result, seen = through(kind)
            assert not seen and (result is None or result[0] == status
                                 and code in result[1]), (kind, result)


@test
def complete_is_answered_with_an_error_in_a_200_whether_it_was_done_or_not():
    for kind in AT_COMPLETE[:2]:
        result, seen = through(kind, "POST", "/b/k?uploadId=1")
        assert result[0] == 200 and b"<Code>InternalError" in result[1] and seen == kind.startswith(
            "done"), (kind, result, seen)


if __name__ == "__main__":
    sys.exit(main())
