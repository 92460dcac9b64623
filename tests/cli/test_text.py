#!/usr/bin/env python3
"""What people read: help, and text made from what the API's own tests have it say. UPDATE_GOLDEN=1
rewrites tests/golden/cli."""
import copy
import sys

sys.dont_write_bytecode = True  # the source tree may be read-only, and is packed as it is
# pylint: disable=wrong-import-position
from cli_test import (CLI, QUARANTINED, SHIPPING, InTurn, ask, ask_golden, check_golden, golden_api,
                      main, run, session, test)

COMMANDS = ("status", "list", "show", "explain", "wait", "retry", "redeliver", "cancel",
            "pin", "unpin", "flush", "drain", "resume", "ls", "report", "get", "verify", "estimate",
            "doctor", "config")
BUNDLE = f"GET /v1/bundles/{SHIPPING}"
# of no failure that another bundle belongs to
ALONE = {"GET /v1/bundles": {"bundles": [], "next": None}}


def bundle(**changes):
    """The shipping bundle of the API's golden file, changed."""
    b = copy.deepcopy(golden_api("bundle-shipping")[1])
    b.update(changes)
    return b


def delivered():
    return bundle(state="delivered", explain="Delivered: every destination has proof of a whole "
                                             "copy, and the source is no longer held.",
                  deliveries=golden_api("bundles")[1]["bundles"][1]["deliveries"])


@test
def help_of_all_and_of_each_command():
    result = run(CLI, "--help")
    assert result.returncode == 0 and not result.stderr
    check_golden("help", session(["--help"], result))
    assert run(CLI, "-h").stdout == result.stdout
    text = ""
    for command in COMMANDS:
        assert f"\n  {command} " in result.stdout
        one = run(CLI, command, "--help")
        assert (one.returncode == 0 and not one.stderr
                and one.stdout.startswith(f"neuron-collect [OPTIONS] {command}")), one
        assert run(CLI, command, "anything", "-h").stdout == one.stdout
        text += session([command, "--help"], one)
    check_golden("help-commands", text)
    too_long = [line for line in (result.stdout + text).splitlines() if len(line) > 100
                and "--config FILE" not in line]
    assert not too_long, too_long


@test
def status_of_an_agent_with_trouble():
    result = ask_golden("status", {"GET /v1/status": golden_api("status")}, "status")
    assert result.returncode == 0 and not result.stderr


@test
def status_of_an_idle_agent_without_a_file_that_cannot_deliver():
    s = copy.deepcopy(golden_api("status")[1])
    s.update(idle=True, ready=False, ready_note="the state database cannot be written", shipping=[])
    s["config"] = {"file": None, "loaded": "2026-05-27T04:21:35.250000Z", "last_error": None}
    s["bundles"] = {k: 0 for k in s["bundles"]}
    ask_golden("status-idle", {"GET /v1/status": s}, "status")


@test
def status_of_an_agent_that_agrees_with_others():
    failure = {"key": "0123456789abcdef", "n": 2, "cluster_id": "d99e36ea74c263ca",
               "date_time": "20260527-051233", "derived": False, "agreed": "store",
               "job": "run/1", "processes": 64, "failed": 3}
    bus = {"state": "listening", "last_error": None, "has_key": True, "connected": 3}
    agreement = {"enabled": True, "arbiter": None, "last_error": None, "bus": bus,
                 "failures": [failure, {**failure, "n": 0, "agreed": "alone", "processes": 1,
                                        "failed": 1}]}
    s = copy.deepcopy(golden_api("status")[1])
    s["agreement"] = agreement
    ask_golden("status-agreement", {"GET /v1/status": s}, "status")
    agreement.update(arbiter="archive", last_error="no answer\x1b[2J for 60 s",
                     failures=11 * [failure])
    bus.update(state="failing", has_key=False, last_error="tcp://[::]:7733: Address in use")
    ask_golden("status-agreement-trouble", {"GET /v1/status": s}, "status")


@test
def list_of_bundles():
    result = ask_golden("list", {"GET /v1/bundles": golden_api("bundles")}, "list")
    assert len(result.stdout.splitlines()) == len(
        golden_api("bundles")[1]["bundles"]), "one line a bundle"


@test
def an_empty_list_is_empty():
    result, _ = ask({"GET /v1/bundles": {"bundles": [], "next": None}}, "list")
    assert (result.returncode, result.stdout, result.stderr) == (0, "", "")


@test
def list_asks_for_what_was_wanted_page_after_page():
    one, two = golden_api("bundles")[1]["bundles"][:2]
    query = "/v1/bundles?limit=500&state=ready&source=core%20dumps%26x"
    answers = {f"GET {query}": {"bundles": [one], "next": one["id"]},
               f"GET {query}&after={one['id']}": {"bundles": [two], "next": None}}
    result, requests = ask(answers, "list", "--state", "ready", "--source", "core dumps&x")
    assert result.returncode == 0 and len(result.stdout.splitlines()) == 2, result
    assert requests == list(answers)


@test
def a_page_that_comes_again_and_again_does_not_hang_it():
    one = golden_api("bundles")[1]["bundles"][0]
    result, requests = ask({"GET /v1/bundles": {"bundles": [one], "next": one["id"]}}, "list")
    assert result.returncode == 0 and len(requests) == 2, requests


@test
def show_of_bundles():
    ask_golden("show-shipping", ALONE | {BUNDLE: golden_api("bundle-shipping")}, "show", SHIPPING)
    ask_golden("show-quarantined",
               ALONE | {f"GET /v1/bundles/{QUARANTINED}": golden_api("bundle-quarantined")}, "show",
               QUARANTINED)
    ask_golden("show-delivered", ALONE | {BUNDLE: delivered()}, "show", SHIPPING)


@test
def deliveries_to_s3_have_progress_proof_and_their_last_error():
    shipping = {"destination": "archive", "state": "shipping", "proof": None,
                "object": "s3://my-bucket/neuron/x.tar.zst", "bytes": 0, "sent_bytes": 3 << 20,
                "done_bytes": 4 << 20, "total_bytes": 8 << 20, "rate": 1 << 20, "eta_seconds": 4,
                "attempts": 0, "last_error": None, "next_try": None}
    paused = {**shipping, "destination": "second", "state": "pending",
              "last_error": "403 AccessDenied; allow s3:PutObject",
              "next_try": "2026-05-27T05:22:35Z"}
    done = {**shipping, "destination": "third", "state": "delivered", "proof": "head",
            "bytes": 5 << 20}
    b = bundle(deliveries=[shipping, paused, done])
    result = ask_golden("show-s3", ALONE | {BUNDLE: b}, "show", SHIPPING)
    assert ("50 % of 8.0 MiB of files, 1.0 MiB/s, 4s left, 3.0 MiB compressed sent" in result.stdout
            and "proof: head" in result.stdout), result.stdout
    result, _ = ask({"GET /v1/bundles": {"bundles": [b], "next": None}}, "list")
    assert ("  -> archive: 50 % of 8.0 MiB" in result.stdout and "  -> second: pending, last "
            "error: 403 AccessDenied" in result.stdout), result.stdout
    assert "third" not in result.stdout and len(result.stdout.splitlines()) == 1, result.stdout


@test
def explain_of_bundles():
    ask_golden("explain-shipping", {BUNDLE: golden_api("bundle-shipping")}, "explain", SHIPPING)
    ask_golden("explain-quarantined",
               {f"GET /v1/bundles/{QUARANTINED}": golden_api("bundle-quarantined")}, "explain",
               QUARANTINED)
    ask_golden("explain-delivered", {BUNDLE: delivered()}, "explain", SHIPPING)


@test
def what_is_done_is_reported_and_so_is_what_is_refused():
    text = ""
    ok = {"id": SHIPPING, "action": "x", "message": None}
    for action, state in (("retry", "ready"), ("retry", "shipping"), ("cancel", "cancelled"),
                          ("cancel", "shipping"), ("pin", "ready"), ("unpin", "ready")):
        result, requests = ask({f"POST /v1/bundles/{SHIPPING}/{action}": ok,
                                BUNDLE: bundle(state=state)}, action, SHIPPING)
        assert requests[0] == f"POST /v1/bundles/{SHIPPING}/{action}" and result.returncode == 0, (
            requests, result)
        text += session([action, SHIPPING], result)
    result, _ = ask({f"POST /v1/bundles/{SHIPPING}/cancel": golden_api("error-not-possible")},
                    "cancel", SHIPPING)
    assert result.returncode == 1 and not result.stdout
    text += session(["cancel", SHIPPING], result)
    result, requests = ask({"POST /v1/flush": {"action": "flush", "message": None}}, "flush")
    assert requests == ["POST /v1/flush"] and result.returncode == 0
    check_golden("act", text + session(["flush"], result))


@test
def an_unknown_bundle_is_reported_to_be_unknown():
    unknown = "neuron-core-dump-20260527T052100-0000000000a9"
    text = ""
    for command in ("show", "explain", "wait", "pin"):
        method = "POST" if command == "pin" else "GET"
        path = f"{method} /v1/bundles/{unknown}" + ("/pin" if command == "pin" else "")
        result, _ = ask({path: golden_api("error-no-bundle")}, command, unknown)
        assert result.returncode == 1 and not result.stdout
        text += session([command, unknown], result)
    check_golden("unknown-bundle", text)


@test
def wait_for_one_bundle_ends_with_what_became_of_it():
    text = ""
    for state, code, more in (("delivered", 0, {}),
                              ("quarantined", 1, {"reason": "gave up after 20 failures: no good"}),
                              ("cancelled", 1, {}),
                              ("evicted", 1, {}),
                              ("vanished", 1, {"reason": "removed before it could be held"})):
        arguments = ["wait", SHIPPING]
        result, requests = ask({BUNDLE: InTurn([bundle(), bundle(), bundle(state=state, **more)])},
                               *arguments)
        assert result.returncode == code and len(requests) == 3 and not result.stderr, (
            state, result, requests)
        text += session(arguments, result)
    arguments = ["wait", SHIPPING, "--timeout", "10ms"]
    result, _ = ask({BUNDLE: bundle()}, *arguments)
    assert result.returncode == 1
    check_golden("wait-one", text + session(arguments, result))


@test
def wait_for_all_ends_when_nothing_is_left_or_reports_what_is():
    status = golden_api("status")[1]
    idle = {**status, "idle": True, "bundles": {**status["bundles"], "quarantined": 0,
                                                "vanished": 2, "cancelled": 1}}
    result, requests = ask({"GET /v1/status": InTurn([status, idle])}, "wait", "--all")
    assert result.returncode == 0 and len(requests) == 2, result
    text = session(["wait", "--all"], result)
    pages = {f"GET /v1/bundles?limit=1000&state={b['state']}": {"bundles": [b], "next": None}
             for b in golden_api("bundles")[1]["bundles"]}
    pages["GET /v1/bundles?limit=1000&state=ready"] = {"bundles": [], "next": None}
    arguments = ["wait", "--timeout", "0"]
    result, _ = ask({"GET /v1/status": status, **pages}, *arguments)
    assert result.returncode == 1 and len(result.stdout.splitlines()) == 3, result
    text += session(arguments, result)
    for state in ("settling", "shipping"):
        pages[f"GET /v1/bundles?limit=1000&state={state}"] = {"bundles": [], "next": None}
    result, _ = ask({"GET /v1/status": {**status, "idle": True}, **pages}, "wait", "--all")
    assert (result.returncode == 1
            and QUARANTINED in result.stdout), "what is quarantined is not delivered"
    check_golden("wait-all", text + session(["wait", "--all"], result))


@test
def a_bundle_that_is_discarded_meanwhile_is_named_behind_any_number_of_older_ones():
    def evicted(i, changed):
        return {"id": f"neuron-core-dump-20260527T052100-{i:012x}", "state": "evicted",
                "reason": "no space", "changed": changed}

    status = golden_api("status")[1]
    before, after = ({**status, "idle": idle, "bundles": {"discovered": n, "evicted": n}}
                     for idle, n in ((False, 1000), (True, 1001)))
    old = [evicted(i, "2020-01-01T00:00:00.000000Z") for i in range(1000)]
    new, page = evicted(1000, "2099-01-01T00:00:00.000000Z"), "GET /v1/bundles?limit=1000&state="
    result, _ = ask({"GET /v1/status": InTurn([before, after]),
                     "GET /v1/bundles": {"bundles": [], "next": None},
                     page + "evicted": {"bundles": old, "next": old[-1]["id"]},
                     f"{page}evicted&after={old[-1]['id']}": {"bundles": [new], "next": None}},
                    "wait", "--all")
    assert result.returncode == 1 and result.stdout == f"{new['id']} evicted: no space\n", result


if __name__ == "__main__":
    sys.exit(main())
