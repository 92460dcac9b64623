#!/usr/bin/env python3
"""drain and resume: `safe to terminate` is said when the agent says it, and never else.
UPDATE_GOLDEN=1 rewrites tests/golden/cli."""
import copy
import json
import os
import signal
import subprocess
import sys
import tempfile
import time

sys.dont_write_bytecode = True  # the source tree may be read-only, and is packed as it is
# pylint: disable=wrong-import-position
from cli_test import (CLI, PATIENCE, CannedApi, InTurn, ask, check_golden, golden_api, main, run,
                      run_in_terminal, session, test)

DRAIN = ("POST /v1/drain", {"action": "drain", "message": None})
NONE = {"bundles": [], "next": None}


def status(golden="status-draining", shipping=True, idle=False, **counts):
    """What the agent says while it drains: without changes 1 settling, 1 shipping, 1
    quarantined."""
    s = copy.deepcopy(golden_api(golden)[1])
    s["bundles"].update(counts)
    s["idle"] = idle
    if not shipping:
        s["shipping"] = []
    return s


def safe():
    return status("status-safe", shipping=False, idle=True, settling=0, quarantined=0)


def bundles(state, *changes):
    """{request: page} of a state, a bundle for each of `changes`."""
    one = next((b for b in golden_api("bundles")[1]["bundles"] if b["state"] == state),
               golden_api("bundles")[1]["bundles"][0])
    page = {"bundles": [{**copy.deepcopy(one), "state": state, "reason": None, "deliveries": [],
                         **c} for c in changes], "next": None}
    return {f"GET /v1/bundles?limit={n}&state={state}": page for n in (100, 1000)}


def delivery(destination, **more):
    return {"destination": destination, "state": "pending", "last_error": None, **more}


def drained(states, pages, *arguments):
    return ask({DRAIN[0]: DRAIN[1], "GET /v1/status": InTurn(states), "GET /v1/bundles": NONE,
                **pages}, "drain", *arguments)


@test
def it_asks_waits_and_reports_safe_in_three_words():
    result, requests = drained([status(), status(), safe()], {})
    assert (result.returncode, result.stdout, result.stderr) == (0, "safe to terminate\n",
                                                                 ""), result
    assert requests == ["POST /v1/drain"] + ["GET /v1/status"] * 3, requests


@test
def when_time_is_up_it_reports_what_is_missing_and_a_line_a_bundle():
    pages = (bundles("settling", {"id": "a", "reason": "quiet for 2s of 10s"})
             | bundles("shipping", {"id": "b", "deliveries": [delivery("fsx", state="shipping")]},
                       {"id": "e", "deliveries": [delivery("back\\up \"2\"")]}) | bundles("ready", {
                           "id": "c", "deliveries": [delivery("fsx", last_error="no space left")]})
             | bundles("quarantined", {"id": "d", "reason": "gave up"}))
    result, _ = drained([status(ready=1)], pages, "--timeout", "0")
    assert result.returncode == 1 and not result.stderr, result
    lines = result.stdout.splitlines()
    assert lines == [
        "not safe to terminate: 2 bundles are not delivered", "a settling: quiet for 2s of 10s",
        "c ready: destination 'fsx': no space left", "b shipping",
        r"""e shipping: destination 'back\up "2"' is failing: cannot write """
        r"""'/mnt/b\xff': no space left\x0aon it""",
        "d quarantined: gave up"], lines
    check_golden("drain", session(["drain", "--timeout", "0"], result))


@test
def it_waits_no_longer_than_it_was_reported():
    begun = time.monotonic()
    result, requests = drained([status()], {}, "--timeout", "700ms")
    took = time.monotonic() - begun
    assert result.returncode == 1 and 0.7 <= took < 20 * PATIENCE, (result, took)
    assert 2 <= requests.count("GET /v1/status") <= 5, ("it polls gently", requests)


@test
def what_was_given_up_is_not_waited_for():
    left = status(shipping=False, idle=True, settling=0, quarantined=1)
    left["bundles"]["shipping"] = 0
    pages = bundles("quarantined", {"id": "q", "reason": "gave up after 20 failures"})
    result, _ = drained([status(), left], pages)
    assert result.returncode == 1 and result.stdout.splitlines()[1:] == [
        "q quarantined: gave up after 20 failures"], result
    # as long as something is still looked at, it may yet turn out well
    busy = {**left, "idle": False}
    result, requests = drained([busy, busy, safe()], pages)
    assert result.returncode == 0 and requests.count("GET /v1/status") == 3, (result, requests)


@test
def what_waits_for_something_that_is_not_configured_is_not_waited_for():
    waiting = status(shipping=False, settling=1, ready=2)
    waiting["bundles"]["shipping"] = 0
    lost = bundles("ready", {"id": "r1", "deliveries": [delivery("fsx", state="delivered"),
                                                        delivery("gone")]},
                   {"id": "r2", "source": "profiles", "deliveries": [delivery("gone")]}) | bundles(
                       "settling", {"id": "s", "source": "old"})
    result, _ = drained([waiting], lost)
    assert result.returncode == 1, result
    lines = result.stdout.splitlines()
    assert lines[0].startswith("not safe to terminate: "), lines
    assert [x.split(": ")[0] for x in lines[1:]] == ["s settling", "r1 ready", "r2 ready"], lines
    assert "its source 'old' is no longer configured" in lines[
        1] and "its destination 'gone' is no longer configured" in lines[2], lines
    check_golden("drain-hopeless", session(["drain"], result))
    # one of them that can go on is enough to wait for
    for hope in (bundles("settling", {"id": "s"}),
                 bundles("ready", {"id": "r1", "deliveries": [delivery("gone"), delivery("fsx")]})):
        result, requests = drained([waiting, waiting, safe()], lost | hope)
        assert result.returncode == 0 and requests.count("GET /v1/status") == 3, (result, requests)


@test
def all_pages_are_checked_at_for_hope_and_none_for_ever():
    waiting = status(shipping=False, settling=0, ready=3)
    waiting["bundles"]["shipping"] = 0
    last = "neuron-core-dump-20260527T052100-0000000000a7"
    first = {"bundles": [{"id": "x", "state": "ready", "source": "old"}], "next": last}
    url = "GET /v1/bundles?limit=100&state=ready"
    result, _ = drained([waiting, waiting, safe()],
                        {url: first, f"{url}&after={last}": bundles("ready", {"id": "r"})[url]})
    assert result.returncode == 0, result
    waiting["bundles"]["ready"] = 1
    for after in (last, "no id\n"):
        result, requests = drained([waiting], {url: {**first, "next": after},
                                               f"{url}&after={last}": first})
        assert result.returncode == 1 and len(requests) < 12, (result, requests)


@test
def a_bundle_that_moves_between_two_questions_is_not_given_up():
    waiting = status(shipping=False, settling=0, ready=1)
    waiting["bundles"]["shipping"] = 0
    nothing = {"GET /v1/bundles?limit=100&state=ready": {"bundles": [], "next": None}}
    result, _ = drained([waiting, waiting, safe()], nothing)
    assert (result.returncode, result.stdout) == (0, "safe to terminate\n"), result


@test
def a_drain_that_somebody_else_ended_is_not_safe():
    running = golden_api("status")[1]
    result, _ = drained([status(), running], {})
    assert result.returncode == 1 and result.stdout.startswith(
        "not safe to terminate: the drain was cancelled by `resume`\n"), result


@test
def without_an_agent_it_is_not_safe():
    result = run(CLI, "--socket", "/nowhere/api.sock", "drain")
    assert result.returncode == 3 and not result.stdout, result
    assert (result.stderr.splitlines()[-1] == "neuron-collect: an agent that does not run "
            "ships nothing: not safe to terminate"), result
    assert run(CLI, "--socket", "/nowhere/api.sock", "resume").returncode == 3
    # one that goes away meanwhile is as bad
    with CannedApi({DRAIN[0]: DRAIN[1], "GET /v1/status": status()}) as api:
        moved = api.path + ".gone"
        with subprocess.Popen([CLI, "--socket", api.path, "drain"], stdout=subprocess.PIPE,
                              stderr=subprocess.PIPE, text=True) as process:
            deadline = time.monotonic() + 20 * PATIENCE
            while len(api.requests) < 2 and time.monotonic() < deadline:
                time.sleep(0.02)
            os.rename(api.path, moved)
            out, err = process.communicate(timeout=60 * PATIENCE)
        os.rename(moved, api.path)
    assert process.returncode == 3 and not out and "not safe to terminate" in err, (
        process.returncode, out, err)


@test
def what_the_agent_refuses_is_not_safe():
    for answer in ((409, {"error": {"code": "not_possible", "message": "it is stopping"}}),
                   (500, b"oops"), (200, b"<html>")):
        result, requests = ask({DRAIN[0]: answer, "GET /v1/status": safe()}, "drain")
        assert result.returncode == 1 and not result.stdout and result.stderr and requests == [
            "POST /v1/drain"], (answer, result)


@test
def nonsense_is_never_safe():
    for nonsense in ([], {}, None, "x", {"drain": []}, {"drain": "safe"},
                     {"drain": {"safe_to_terminate": "true"}}, {"drain": {"safe_to_terminate": 1}},
                     {"drain": {}, "bundles": 7, "shipping": {}, "sources": 3,
                      "destinations": None}):
        result, _ = ask({DRAIN[0]: DRAIN[1], "GET /v1/status": nonsense,
                         "GET /v1/bundles": nonsense}, "drain", "--timeout", "0")
        assert result.returncode == 1, (nonsense, result)
        assert result.stdout.startswith("not safe to terminate: ") or (
            result.stderr and not result.stdout), (nonsense, result)


@test
def interrupted_it_reports_that_the_agent_goes_on():
    with CannedApi({DRAIN[0]: DRAIN[1], "GET /v1/status": status()}) as api:
        with subprocess.Popen([CLI, "--socket", api.path, "drain"], stdout=subprocess.PIPE,
                              stderr=subprocess.PIPE, text=True) as process:
            deadline = time.monotonic() + 20 * PATIENCE
            while len(api.requests) < 2 and time.monotonic() < deadline:
                time.sleep(0.02)
            process.send_signal(signal.SIGTERM)
            out, err = process.communicate(timeout=60 * PATIENCE)
    assert process.returncode == -signal.SIGTERM and not out and "neuron-collect resume" in err, (
        process.returncode, out, err)


@test
def json_is_one_object():
    result, _ = drained([safe()], {}, "--json")
    assert result.returncode == 0 and json.loads(result.stdout) == {"safe_to_terminate": True,
                                                                    "missing": None,
                                                                    "left": []}, result
    pages = bundles("shipping", {"id": "b"})
    result, _ = drained([status()], pages, "--json", "--timeout", "0")
    answer = json.loads(result.stdout)
    assert result.returncode == 1 and not result.stderr, result
    assert (answer["safe_to_terminate"] is False and answer["missing"] == "2 bundles are "
            "not delivered" and [b["id"] for b in answer["left"]] == ["b"]), answer


@test
def it_draws_a_bar_on_a_terminal_and_wipes_it():
    answers = {DRAIN[0]: DRAIN[1], "GET /v1/status": InTurn([status(), safe()])}
    with CannedApi(answers) as api:
        code, out = run_in_terminal("--socket", api.path, "drain", environment={"NO_COLOR": "1"})
    lines = out.split(b"\r\x1b[K")
    assert code == 0 and lines[0] == b"" and lines[1] == (
        b"draining, 2 left [##########..........] 50 % of 8.0 MiB of files, 2.0 MiB/s, 2s left, "
        b"1.0 MiB compressed sent"), out
    assert lines[-1] == b"safe to terminate\r\n" and b"\n" not in b"".join(lines[:-1]), out
    with CannedApi(answers) as api, tempfile.TemporaryFile() as f:
        code, out = run_in_terminal("--socket", api.path, "--json", "drain", stdout=f)
        f.seek(0)
        assert code == 0 and b"50 %" in out and json.load(f)[
            "safe_to_terminate"], "the bar is on stderr, the answer is not"


@test
def resume_undoes_it():
    answer = {"action": "resume", "message": None}
    result, requests = ask({"POST /v1/resume": answer}, "resume")
    assert (result.returncode, result.stdout, result.stderr,
            requests) == (0, "drain cancelled\n", "", ["POST /v1/resume"]), result
    result, _ = ask({"POST /v1/resume": answer}, "--json", "resume")
    assert result.returncode == 0 and json.loads(result.stdout) == answer, result


@test
def status_shows_a_drain_with_its_deadline():
    text = ""
    for name in ("status-draining", "status-safe"):
        result, _ = ask({"GET /v1/status": golden_api(name)}, "status")
        assert result.returncode == 0 and not result.stderr, result
        text += session(["status"], result)
    assert ("draining since 2026-05-27T05:21:35Z: EC2: spot interruption (terminate)" in text
            and "ends at 2026-05-27T05:23:35Z" in text), text
    assert ("safe to terminate: no, 2 bundles are not delivered\n" in text
            and "safe to terminate: yes\n" in text), text
    check_golden("status-drain", text)
    result, _ = ask({"GET /v1/status": golden_api("status")}, "status")
    assert "drain" not in result.stdout and "terminate" not in result.stdout, result


if __name__ == "__main__":
    sys.exit(main())
