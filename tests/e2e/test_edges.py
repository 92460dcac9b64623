#!/usr/bin/env python3
"""What an operator relies on at the edges: "safe to terminate" is said only where it is true, and
what is wrong with a configuration is reported where it is looked for."""
import contextlib
import json
import os
import resource
import socket
import subprocess
import sys
import time

sys.dont_write_bytecode = True  # the source tree may be read-only, and is packed as it is
sys.path.insert(0, os.path.join(os.path.dirname(os.path.realpath(__file__)), "..", "harness"))
# pylint: disable=wrong-import-position
from agent import DAEMON, Agent, need_root, run, wait_for
from servers import free_port
from tap import main, test
from test_notes import clean_up, serve_faultfs


def cpu_seconds(pid):
    with open(f"/proc/{pid}/stat", encoding="ascii") as f:
        fields = f.read().rpartition(")")[2].split()
    return sum(int(n) for n in fields[11:13]) / os.sysconf("SC_CLK_TCK")


@contextlib.contextmanager
def no_descriptor_left(pid):
    """No number below the limit is free, whatever is open above."""
    before = resource.prlimit(pid, resource.RLIMIT_NOFILE)
    taken = {int(n) for n in os.listdir(f"/proc/{pid}/fd")}
    lowest = next(n for n in range(len(taken) + 1) if n not in taken)
    resource.prlimit(pid, resource.RLIMIT_NOFILE, (lowest, before[1]))
    try:
        yield
    finally:
        resource.prlimit(pid, resource.RLIMIT_NOFILE, before)


def connect(stack, kind, address):
    family = socket.AF_INET if isinstance(address, tuple) else socket.AF_UNIX
    s = stack.enter_context(socket.socket(family, kind))
    s.settimeout(20)
    s.connect(address)
    return s


def check_no_spin(pid, name):
    begin, seconds = cpu_seconds(pid), 3
    time.sleep(seconds)
    spent = cpu_seconds(pid) - begin
    assert spent < 0.05 * seconds, f"{spent:.2f} s of CPU in {seconds} s with {name} waiting"


@test
def without_a_free_descriptor_no_listener_spins_and_who_waits_is_served_later():
    a = Agent()
    port = free_port()
    a.config["api"]["listen"] = f"127.0.0.1:{port}"
    a.start()
    web = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n"
    for kind, address, request in (
            (socket.SOCK_STREAM, a.path("run", "api.sock"), web),
            (socket.SOCK_STREAM, ("127.0.0.1", port), web),
            (socket.SOCK_SEQPACKET, a.config["hook"]["socket"], b"no note")):
        with contextlib.ExitStack() as stack:
            with no_descriptor_left(a.pid):
                s = connect(stack, kind, address)
                s.send(request)
                check_no_spin(a.pid, address)
            answer = s.recv(4096)
            assert (b"200 OK" if request is web else b"refused") in answer, (address, answer)
    a.stop()


@test
def a_probe_without_a_free_descriptor_does_not_spin_either():
    a = Agent()
    path = a.path("probe.sock")
    with subprocess.Popen([DAEMON, "--child=probe:" + path], stdin=subprocess.DEVNULL) as probe:
        try:
            wait_for("it listens", lambda: os.path.exists(path))
            with contextlib.ExitStack() as stack, no_descriptor_left(probe.pid):
                connect(stack, socket.SOCK_SEQPACKET, path)
                check_no_spin(probe.pid, path)
            probe.terminate()
            assert probe.wait(10) == 0
        finally:
            probe.kill()


@test
def without_a_configuration_file_it_does_not_start_and_reports_what_to_write():
    a = Agent()
    missing = a.path("nothing-here.yaml")
    for more in ([], ["--once"], ["--check"]):
        result = run(DAEMON, "--config", missing, *more, env=a.whole_environment(), cwd=a.dir)
        assert result.returncode == 2, (more, result)
        for text in (missing, "sources:", "destinations:", "version: 1"):
            assert text in result.stderr, (more, result.stderr)


@test
def a_copy_on_this_nodes_own_disk_is_not_safe_to_terminate():
    a = Agent()
    del a.config["destinations"][0]["durable"]
    a.dump(size=65536)
    a.start()
    a.wait_all()
    result = a.cli("drain", "--timeout", "2s")
    assert result.returncode == 1 and result.stdout.startswith("not safe to terminate"), result
    assert "archive" in result.stdout and "durable: true" in result.stdout, result
    a.cli("resume")
    a.config["destinations"][0]["durable"] = True
    a.write_config()
    a.reload()
    assert a.cli("drain", "--timeout", "20s").stdout == "safe to terminate\n"
    a.stop()


@test
def copies_of_the_past_count_where_they_are_though_their_source_goes_elsewhere_now():
    a = Agent()
    a.config["destinations"][0]["durable"] = False
    a.dump(size=65536)
    a.start()
    a.wait_all()
    os.mkdir(a.path("second"))
    a.config["destinations"].append(a.volume("second", "second"))
    a.write_config()
    a.reload()
    wait_for("the second destination is configured", lambda: len(
        a.status()["destinations"]) == 2, 20)
    result = a.cli("drain", "--timeout", "2s")
    assert result.returncode == 1 and result.stdout.startswith("not safe to terminate"), result
    assert "archive" in result.stdout and "redeliver" in result.stdout, result
    os.rename(a.out, a.path("taken away"))
    assert a.cli("drain", "--timeout", "20s").stdout.startswith("safe to terminate\n")
    os.rename(a.path("taken away"), a.out)
    assert a.cli("drain", "--timeout", "0").returncode == 1
    a.cli("resume")
    assert a.cli("redeliver").returncode == 0
    a.wait_all()
    assert a.cli("drain", "--timeout", "20s").stdout == "safe to terminate\n"
    a.stop()


@test
def a_file_system_of_a_program_on_this_node_is_no_network():
    need_root()
    a = Agent()
    serve_faultfs(a, a.path("mounted"))
    a.config["destinations"] = [a.volume("archive", "mounted")]
    del a.config["destinations"][0]["durable"]
    a.dump(size=65536)
    a.start()
    a.wait_all()
    result = a.cli("drain", "--timeout", "2s")
    assert result.returncode == 1 and "durable: true" in result.stdout, result
    a.stop()


@test
def a_reload_that_failed_stands_in_status_until_it_is_corrected():
    a = Agent().start()
    a.write_config("version: 1\nsauces: []\n")
    a.reload()
    wait_for("status says so", lambda: "sauces" in json.dumps(a.status()), 20)
    text = a.cli("status").stdout
    assert "sauces" in text and a.config_file in text, text
    os.remove(a.config_file)
    a.reload()
    wait_for("status names the file that is gone", lambda: "No such file" in json.dumps(
        a.status()), 20)
    a.write_config()
    a.reload()
    wait_for("status is quiet again", lambda: "No such file" not in json.dumps(a.status()), 20)
    a.stop()


@test
def a_prefix_without_a_fixed_part_is_warned_of():
    a = Agent()
    def check(prefix, allowed):
        a.config["destinations"] = [{"name": "s3", "type": "s3", "bucket": "bucket",
                                     "prefix": prefix, "region": "us-east-1"}]
        a.config["hook"]["allow_prefixes"] = allowed
        a.write_config()
        results = [run(DAEMON, "--config", a.config_file, "--check"),
                   a.cli("--config", a.config_file, "config", "check")]
        assert all(r.returncode == 0 for r in results), results
        warned = ["warning: destinations[0].prefix" in r.stderr for r in results]
        assert warned[0] == warned[1], results
        return warned[0]
    assert check("%d-%c", [])
    assert check("%d-%c", ["s3://bucket/"])
    assert check("fixed/%d-%c", ["s3://bucket"])
    assert not check("fixed/%d-%c", [])
    assert not check("%d-%c", ["s3://bucket/below", "s3://bucket2"])


if __name__ == "__main__":
    sys.exit(main(clean_up))
