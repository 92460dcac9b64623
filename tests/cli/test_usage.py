#!/usr/bin/env python3
"""Exit codes, wrong usage, and an agent that is not there. UPDATE_GOLDEN=1 rewrites
tests/golden/cli."""
import json
import os
import shutil
import socket
import sys
import tempfile

sys.dont_write_bytecode = True  # the source tree may be read-only, and is packed as it is
# pylint: disable=wrong-import-position
from cli_test import (CLI, SHIPPING, CannedApi, Skip, ask, check_golden, golden_api, main, run,
                      session, test)

GOOD = ("version: 1\nsources: [{name: a, kind: directory, path: /nowhere/dumps}]\ndestinations: "
        "[{name: v, type: volume, path: /nowhere/archive}]\n")


class Scratch:
    """A temporary directory that goes away with the test."""

    def __enter__(self):
        self.path = tempfile.mkdtemp(prefix="neuron-cli.")
        return self

    def __exit__(self, *_):
        shutil.rmtree(self.path)

    def __call__(self, name, text=None):
        path = os.path.join(self.path, name)
        if text is not None:
            with open(path, "w", encoding="utf-8") as f:
                f.write(text)
        return path


@test
def wrong_usage_is_reported_with_the_culprit_and_exits_2():
    text = ""
    for arguments in ([], ["frobnicate"], ["--bogus"], ["-x"], ["--socket"], ["--config"],
                      ["--json=yes", "status"], ["--js", "status"], ["--sock=/x", "status"],
                      ["status", "now"], ["status", "--bogus"],
                      ["status", "-x"], ["list", "all"], ["list", "--state"],
                      ["list", "--state", "done"], ["list", "--sate", "ready"],
                      ["redeliver", "--destination", "a", "--destination", "b"], ["show"],
                      ["show", "a", "b"], ["explain", ""], ["show", "--id"], ["wait", "a", "b"],
                      ["wait", "a", "--all"], ["wait", "--all=yes"],
                      ["wait", ""], ["wait", "--timeout", "soon"], ["wait", "--timeout", "5"],
                      ["wait", "--timeout"], ["retry"], ["cancel"], ["pin"],
                      ["unpin", "a", "b"], ["flush", "now"], ["drain", "now"],
                      ["drain", "--timeout"], ["drain", "--timeout", "soon"], ["drain", "--all"],
                      ["resume", "now"], ["resume", "--timeout", "5s"], ["verify"],
                      ["verify", "a", "b"], ["verify", ""], ["verify", "/"],
                      ["verify", "s3:/bucket/key.tar.zst"], ["verify", "s3://bucket/"],
                      ["verify", "a.tar.zst", "--region"], ["ls"], ["ls", "a", "b"], ["ls", ""],
                      ["ls", "a", "--recursive"], ["ls", "s3://"], ["doctor", "now"],
                      ["doctor", "--destination"], ["estimate", "it"], ["config"],
                      ["config", "fix"], ["key"], ["key", "old"], ["key", "new", "a", "b"],
                      ["key", "new", "--force"], ["crash"], ["crash", "--exe"],
                      ["crash", "a", "b"], ["crash", "a", "--bogus"]):
        # a socket that no process listens on: whatever asks the agent before it has looked at its
        # arguments would exit with 3
        given = arguments if not arguments or arguments[0].startswith("-") else [
            "--socket", "/nowhere/api.sock", *arguments]
        result = run(CLI, *given)
        assert result.returncode == 2 and not result.stdout and len(result.stderr.splitlines(
            )) == 1, (arguments, result)
        assert result.stderr.startswith("neuron-collect") and result.stderr.rstrip().endswith(
            "--help"), result.stderr
        text += session(arguments, result)
    check_golden("usage", text)


@test
def what_the_agent_does_not_understand_is_wrong_usage_too():
    result, _ = ask({"GET /v1/bundles": golden_api("error-source")}, "list", "--source", "x")
    assert result.returncode == 2 and golden_api("error-source")[1]["error"][
        "message"] in result.stderr, result


@test
def own_options_are_understood_before_and_after_the_command():
    with CannedApi({"GET /v1/status": golden_api("status")}) as api:
        before = run(CLI, "--json", "--socket", api.path, "status")
        assert before.returncode == 0 and json.loads(before.stdout) == golden_api("status")[1]
        for arguments in (["status", "--socket", api.path, "--json"],
                          ["status", "--json", f"--socket={api.path}"],
                          ["--json", "status", f"--socket={api.path}"]):
            result = run(CLI, *arguments)
            assert (result.returncode, result.stdout) == (0, before.stdout), (arguments, result)
        # behind -- it is an argument
        result = run(CLI, "--socket", api.path, "status", "--", "--json")
        assert result.returncode == 2, result


@test
def json_is_what_the_agent_reported_for_every_command():
    ok = {"id": SHIPPING, "action": "pin", "message": None}
    b = golden_api("bundle-shipping")[1]
    one = {f"GET /v1/bundles/{SHIPPING}": b}
    done = {f"GET /v1/bundles/{SHIPPING}": {**b, "state": "delivered"}}
    status = golden_api("status")[1]
    idle = {**status, "idle": True, "bundles": {**status["bundles"], "quarantined": 0}}
    cases = [
        (["status"], {"GET /v1/status": status}, 0, status),
        (["list"], {"GET /v1/bundles": golden_api("bundles")}, 0,
         golden_api("bundles")[1]["bundles"]),
        (["list"], {"GET /v1/bundles": {"bundles": [], "next": None}}, 0, []),
        (["show", SHIPPING], one, 0, b),
        (["explain", SHIPPING], one, 0, b),
        (["pin", SHIPPING], {f"POST /v1/bundles/{SHIPPING}/pin": ok, **one}, 0, b),
        (["flush"], {"POST /v1/flush": {"action": "flush", "message": None}}, 0,
         {"action": "flush", "message": None}),
        (["resume"], {"POST /v1/resume": {"action": "resume", "message": None}}, 0,
         {"action": "resume", "message": None}),
        (["wait", SHIPPING], done, 0, {**b, "state": "delivered"}),
        (["wait", SHIPPING, "--timeout", "0"], one, 1, b),
        (["wait", "--all"], {"GET /v1/status": idle}, 0, {"delivered": True, "left": []}),
        (["wait", "--all", "--timeout", "0"], {"GET /v1/status": status,
                                               "GET /v1/bundles": {"bundles": [], "next": None},
                                               "GET /v1/bundles?limit=1000&state=ready": {
                                                   "bundles": [b], "next": None}}, 1,
         {"delivered": False, "left": [b]}),
    ]
    for arguments, answers, code, wanted in cases:
        result, _ = ask(answers, "--json", *arguments)
        assert result.returncode == code and not result.stderr, (arguments, result)
        assert json.loads(result.stdout) == wanted, (arguments, result.stdout)
    # a refusal is no JSON on stdout, and its exit code says so
    result, _ = ask({f"POST /v1/bundles/{SHIPPING}/cancel": golden_api("error-not-possible")},
                    "--json", "cancel", SHIPPING)
    assert result.returncode == 1 and not result.stdout and result.stderr


@test
def without_an_agent_it_exits_3_and_reports_which_socket_and_what_to_do():
    with Scratch() as s:
        s("file", "")
        os.mkdir(s("closed"))
        with socket.socket(socket.AF_UNIX) as left_over:
            left_over.bind(s("left-over.sock"))
        text = ""
        for name in ("missing.sock", "file", "left-over.sock"):
            result = run(CLI, "--socket", s(name), "status")
            assert result.returncode == 3 and not result.stdout, result
            text += session(["--socket", name, "status"], result, [(s.path, "DIR")])
        for command in (["list"], ["show", "a"], ["explain", "a"], ["wait", "--all"],
                        ["wait", "a"], ["retry", "a"], ["cancel", "a"], ["pin", "a"],
                        ["unpin", "a"], ["flush"], ["drain"], ["resume"]):
            assert run(CLI, "--socket", s("missing.sock"), *command).returncode == 3, command
        for path in ("", "/tmp/" + "x" * 200):
            result = run(CLI, "--socket", path, "status")
            assert result.returncode == 3, result
            text += session(["--socket", f"'{path}'", "status"], result)
        check_golden("no-agent", text)


@test
def without_permission_for_the_socket_it_names_the_group():
    with Scratch() as s, CannedApi({"GET /v1/status": golden_api("status")}) as api:
        os.chmod(s.path, 0o755)
        os.chmod(api.directory, 0o755)
        os.chmod(api.path, 0)
        options = {}
        program = CLI
        if os.geteuid() == 0:
            # the build may lie where nobody else may go
            program = shutil.copy(CLI, s("neuron-collect"))
            options = {"user": 65534, "group": 65534, "extra_groups": []}
        try:
            result = run(program, "--socket", api.path, "status", **options)
        except PermissionError as e:
            raise Skip(f"cannot become nobody: {e}") from e
        assert result.returncode == 3, result
        check_golden("no-permission", session(["status"], result, [(api.path, "SOCKET")]))


@test
def something_else_on_the_socket_is_recognized():
    for answers, said in (({"GET /v1/status": b"<html>hello</html>"}, "not JSON"),
                          ({"GET /v1/status": (500, b"oops")}, "status 500"),
                          ({"GET /v1/status": (503, {})}, "status 503"),
                          ({"GET /v1/status": b""}, "not JSON"),
                          ({"GET /v1/status": (500, {"error": {"message": 7}})}, "status 500"),
                          ({}, "no such path")):
        result, _ = ask(answers, "status")
        assert result.returncode == 1 and said in result.stderr and not result.stdout, (
            answers, result)
    for nonsense in ([], {}, {"bundles": 7}, None, "x",
                     {"agent": [], "bundles": {"ready": "many"}, "shipping": {},
                      "destinations": [1, None, "x", []]}):
        for command in (["status"], ["list"], ["show", "a"], ["explain", "a"],
                        ["wait", "--timeout", "0", "a"], ["wait", "--timeout", "0"]):
            result, _ = ask({"GET /v1/status": nonsense, "GET /v1/bundles": nonsense,
                             "GET /v1/bundles/a": nonsense}, *command)
            assert result.returncode in (0, 1), ("a crash", command, nonsense, result)


@test
def the_socket_is_found_in_the_configuration():
    with Scratch() as s, CannedApi({"GET /v1/status": golden_api("status")}) as api:
        good = s("good.yaml", GOOD + f"api: {{socket: {api.path}}}\n")
        assert run(CLI, "--config", good, "status").returncode == 0
        assert run(CLI, "status", "--config", good).returncode == 0
        # given by hand and faulty: the faults, and what now
        bad = s("bad.yaml", GOOD + f"api: {{soket: {api.path}}}\n")
        result = run(CLI, "--config", bad, "status")
        assert (result.returncode == 2 and "did you mean 'socket'?" in result.stderr
                and "--socket" in result.stderr), result
        assert run(CLI, "--config", bad, "--socket", api.path,
                   "status").returncode == 0, "--socket needs no configuration"
        result = run(CLI, "--config", s("missing.yaml"), "status")
        assert result.returncode == 2 and "missing.yaml" in result.stderr, result


@test
def config_check_and_show_report_what_the_daemon_reports():
    with Scratch() as s:
        good, bad = s("good.yaml", GOOD), s("bad.yaml",
                                            GOOD + "limits: {memory: 1MiB, memroy: 2}\n")
        result = run(CLI, "--config", good, "config", "check")
        assert (result.returncode, result.stdout, result.stderr) == (0, f"'{good}': no faults\n",
                                                                     ""), result
        result = run(CLI, "config", "check", "--config", bad)
        daemon = run(os.path.join(os.path.dirname(CLI), "neuron-collectd"), "--config", bad,
                     "--check")
        assert (result.returncode == daemon.returncode == 2 and result.stderr == daemon.stderr
                and not result.stdout), (result, daemon)
        assert len(result.stderr.splitlines()) == 2, result.stderr
        result = run(CLI, "--config", bad, "--json", "config", "check")
        answer = json.loads(result.stdout)
        assert result.returncode == 2 and answer["ok"] is False and answer[
            "file"] == bad and not result.stderr, result
        assert [(f["line"], f["key"]) for f in answer["faults"]] == [(4, "limits.memory"),
                                                                     (4, "limits.memroy")], answer
        shown = run(CLI, "--config", good, "config", "show")
        daemon = run(os.path.join(os.path.dirname(CLI), "neuron-collectd"), "--config", good,
                     "--print-config")
        assert (shown.returncode == 0 and shown.stdout == daemon.stdout
                and "/nowhere/dumps" in shown.stdout)
        answer = json.loads(run(CLI, "--json", "--config", good, "config", "show").stdout)
        assert answer == {"file": good, "yaml": shown.stdout}


@test
def a_full_disk_behind_stdout_is_a_failure():
    with CannedApi({"GET /v1/status": golden_api("status")}) as api, open(
            "/dev/full", "w", encoding="ascii") as full:
        import subprocess  # pylint: disable=import-outside-toplevel
        for more in ([], ["--json"]):
            result = subprocess.run([CLI, "--socket", api.path, *more, "status"], stdout=full,
                                    stderr=subprocess.PIPE, text=True, check=False)
            assert result.returncode == 1 and "No space left" in result.stderr, result


@test
def version_reports_which():
    result = run(CLI, "--version")
    assert result.returncode == 0 and result.stdout.startswith("neuron-collect ") and len(
        result.stdout.split()) == 2


if __name__ == "__main__":
    sys.exit(main())
