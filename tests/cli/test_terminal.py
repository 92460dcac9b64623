#!/usr/bin/env python3
"""With a terminal and without: colour and progress only where they belong, and nothing hostile ever
gets through."""
import os
import re
import subprocess
import sys
import tempfile

sys.dont_write_bytecode = True  # the source tree may be read-only, and is packed as it is
# pylint: disable=wrong-import-position
from cli_test import (CLI, SHIPPING, CannedApi, InTurn, Skip, ask, assert_harmless, golden_api,
                      main, run, run_in_terminal, test)

# Each of these would do something to a terminal or to whoever reads line by line; \u009b is CSI in
# one character.
EVIL = "\x1b[2J\x1b]0;owned\x07\u009b31m\r\n\x7f\x08evil"
COLOUR = re.compile(rb"\x1b\[(?:3[123]|0)m")


def poison(value, keep=()):
    """The same answer with something hostile in each of its strings."""
    if isinstance(value, dict):
        return {k: v if k in keep else poison(v, keep) for k, v in value.items()}
    if isinstance(value, list):
        return [poison(v, keep) for v in value]
    return value + EVIL if isinstance(value, str) else value


def hostile_answers(keep=()):
    b = poison(golden_api("bundle-shipping")[1], keep)
    ok = poison({"id": SHIPPING, "action": "pin", "message": "done"})
    answers = {
        "GET /v1/status": poison(golden_api("status-draining")[1], keep),
        "GET /v1/bundles": {**poison(golden_api("bundles")[1], keep), "next": None},
        f"GET /v1/bundles/{SHIPPING}": b,
        "POST /v1/flush": poison({"action": "flush", "message": "x"}),
        "POST /v1/drain": poison({"action": "drain", "message": "x"}),
        "POST /v1/resume": poison({"action": "resume", "message": "x"}),
    }
    answers.update({f"POST /v1/bundles/{SHIPPING}/{a}": ok
                    for a in ("retry", "cancel", "pin", "unpin")})
    answers["GET /v1/bundles/refused"] = (409, poison({"error": {"code": "x", "message": "no"}}))
    answers["POST /v1/bundles/refused/cancel"] = answers["GET /v1/bundles/refused"]
    return answers


HOSTILE_COMMANDS = [["status"], ["list"], ["show", SHIPPING], ["explain", SHIPPING],
                    ["retry", SHIPPING], ["cancel", SHIPPING], ["pin", SHIPPING],
                    ["unpin", SHIPPING], ["flush"], ["wait", SHIPPING, "--timeout", "0"],
                    ["wait", "--all", "--timeout", "0"], ["drain", "--timeout", "0"], ["resume"],
                    ["drain", EVIL],
                    ["show", "refused"], ["cancel", "refused"], ["show", EVIL], ["wait", EVIL],
                    ["status", EVIL], [EVIL], ["--" + EVIL], ["list", "--state", EVIL],
                    ["list", "--" + EVIL], ["verify", EVIL], ["verify", EVIL + ".tar.zst"],
                    ["wait", "--timeout", EVIL], ["config", EVIL],
                    ["--config", EVIL, "config", "check"], ["--config", EVIL, "estimate"],
                    ["list", "--source", EVIL], ["ls", EVIL], ["get", EVIL],
                    ["get", "s3://" + EVIL],
                    ["ls", "s3://b/" + EVIL, "--endpoint-url", EVIL],
                    ["doctor", "--destination", EVIL], ["--config", EVIL, "doctor"],
                    ["verify", "s3:" + EVIL]]


@test
def no_control_character_gets_through_whoever_sent_it():
    for keep in ((), ("state",)):
        with CannedApi(hostile_answers(keep)) as api:
            for command in HOSTILE_COMMANDS:
                result = run(CLI, "--socket", api.path, *command, text=False)
                assert_harmless(result.stdout, command)
                assert_harmless(result.stderr, command)
                clean, _ = ask({}, *command)
                assert len(result.stderr.splitlines()) <= max(1, len(clean.stderr.splitlines())), (
                    command, "a line was forged", result.stderr)
            for command in ["status"], ["list"], ["show", SHIPPING], ["explain", SHIPPING], [
                    "cancel", "refused"], ["wait", SHIPPING, "--timeout", "0"]:
                result = run(CLI, "--socket", api.path, *command)
                assert (r"\x1b[2J\x1b]0;owned\x07\xc2\x9b31m\x0d\x0a\x7f\x08evil" in result.stdout
                        + result.stderr), ("nothing was tried", command, result)
            # as many lines as without the poison
            result = run(CLI, "--socket", api.path, "list")
            assert len(result.stdout.splitlines()) == len(
                golden_api("bundles")[1]["bundles"]), result.stdout
    result = run(CLI, "--socket", "/nowhere/" + EVIL, "status")
    assert result.returncode == 3
    assert_harmless(result.stderr, "--socket")


@test
def json_on_a_terminal_is_harmless_too():
    with CannedApi(hostile_answers()) as api:
        for command in ["status"], ["list"], ["show", SHIPPING], ["flush"], ["wait", SHIPPING,
                                                                             "--timeout", "0"]:
            # no progress
            code, out = run_in_terminal("--socket", api.path, "--json", *command,
                                        environment={"TERM": "dumb"})
            assert code in (0, 1) and b"evil" in out, (command, code, out)
            assert not [b for b in out.replace(b"\r\n", b"\n") if b != 0x0a
                        and (b < 0x20 or b >= 0x80)], (command, out)


@test
def colour_is_for_terminals_that_have_it():
    answers = {"GET /v1/status": golden_api("status"), "GET /v1/bundles": golden_api("bundles"),
               f"GET /v1/bundles/{SHIPPING}": golden_api("bundle-shipping")}
    with CannedApi(answers) as api:
        for command in ["status"], ["list"], ["show", SHIPPING], ["explain", SHIPPING]:
            plain = run(CLI, "--socket", api.path, *command, text=False).stdout
            assert b"\x1b" not in plain
            _, out = run_in_terminal("--socket", api.path, *command)
            without = COLOUR.sub(b"", out).replace(b"\r\n", b"\n")
            if command == ["list"]:
                header, _, without = without.partition(b"\n")
                assert header.startswith(b"STATE"), header
            assert without == plain, (command, out)
            assert COLOUR.search(out) or command[0] in ("show", "explain"), (command, out)
            for environment in {"NO_COLOR": "1"}, {"TERM": "dumb"}:
                _, out = run_in_terminal("--socket", api.path, *command, environment=environment)
                assert b"\x1b" not in out, (command, environment, out)
        _, out = run_in_terminal("--socket", api.path, "--json", "status")
        assert b"\x1b" not in out


@test
def an_empty_list_reports_so_to_a_person():
    status = {"sources": [{"name": "a"}]}
    with CannedApi({"GET /v1/bundles": {"bundles": [], "next": None},
                    "GET /v1/status": status}) as api:
        assert run_in_terminal("--socket", api.path, "list") == (0, b"no bundles\r\n")
        assert run_in_terminal("--socket", api.path, "list", "--state", "ready", "--source",
                               "a")[1] == b"no bundles that are ready of source a\r\n"


def waiting():
    status = golden_api("status")[1]
    idle = {**status, "idle": True, "bundles": {**status["bundles"], "quarantined": 0}}
    b = golden_api("bundle-shipping")[1]
    return {"GET /v1/status": InTurn([status, idle]),
            f"GET /v1/bundles/{SHIPPING}": InTurn([b, {**b, "state": "delivered"}])}


@test
def wait_draws_a_bar_on_a_terminal_and_wipes_it():
    for arguments, first, last in (["wait", SHIPPING], b"shipping", SHIPPING.encode()), (
            ["wait", "--all"], b"2 waiting", b"everything is delivered"):
        with CannedApi(waiting()) as api:
            code, out = run_in_terminal("--socket", api.path, *arguments,
                                        environment={"NO_COLOR": "1"})
            lines = out.split(b"\r\x1b[K")
            bar = (b" [##########..........] 50 % of 8.0 MiB of files, 2.0 MiB/s, 2s left, "
                   b"1.0 MiB compressed sent")
            assert code == 0 and lines[0] == b"" and lines[1] == first + bar, out
            assert lines[-1].startswith(last) and lines[-1].endswith(
                b"\r\n") and b"\n" not in b"".join(lines[:-1]), out
        with CannedApi(waiting()) as api:
            code, out = run_in_terminal("--socket", api.path, *arguments,
                                        environment={"TERM": "dumb"})
            assert code == 0 and b"\x1b" not in out and b"#" not in out, out
        with CannedApi(waiting()) as api, tempfile.TemporaryFile() as f:
            code, out = run_in_terminal("--socket", api.path, "--json", *arguments, stdout=f)
            f.seek(0)
            assert (code == 0 and b"50 %" in out
                    and b"50 %" not in f.read()), "the bar is on stderr, the answer is not"


@test
def wait_without_a_terminal_draws_nothing():
    for arguments in (["wait", SHIPPING], ["wait", "--all"]):
        result, _ = ask(waiting(), *arguments)
        assert result.returncode == 0 and "#" not in result.stdout and not result.stderr and len(
            result.stdout.splitlines()) == 1, result


@test
def an_agent_that_goes_away_while_one_waits_ends_the_bar_and_the_waiting():
    with CannedApi({"GET /v1/status": InTurn([golden_api("status")[1], (500, b"bye")])}) as api:
        code, out = run_in_terminal("--socket", api.path, "wait")
    assert code == 1 and out.endswith(
        b"not JSON; check what listens there\r\n") and b"\r\x1b[Kneuron-collect: " in out, out


@test
def hostile_file_names_are_spelled_by_estimate():
    if os.pathsep == ";":
        raise Skip("no such names here")
    with tempfile.TemporaryDirectory(prefix="neuron-cli.") as directory:
        unit = os.fsencode(directory) + b"/src/\x1b[31m\n\xff\xc2\x9b/i-0a1b2c3d4e5f60718_pid_7"
        os.makedirs(unit)
        with open(unit + b"/profile_rank_0.ntff", "wb") as f:
            f.write(b"x")
        os.symlink("/etc/shadow", unit + b"/li\x1b[1mnk\n")
        config = os.path.join(directory, "c.yaml")
        with open(config, "w", encoding="utf-8") as f:
            f.write(f"version: 1\nnode: {{instance_id: i-0a1b2c3d4e5f60718}}\nsources: [{{name: p, "
                    f"kind: neuron-profile, path: {directory}/src}}]\n"
                    f"destinations: [{{name: v, type: volume, path: {directory}/out}}]\n")
        result = subprocess.run([CLI, "--config", config, "estimate"], capture_output=True,
                                check=False)
        assert (result.returncode == 0 and rb"\x1b[31m\x0a\xff" in result.stdout
                and rb"li\x1b[1mnk\x0a" in result.stdout), result
        assert_harmless(result.stdout, "estimate")
        assert_harmless(result.stderr, "estimate")
        assert len(result.stdout.splitlines()) == 4, result.stdout


if __name__ == "__main__":
    sys.exit(main())
