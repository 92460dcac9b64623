#!/usr/bin/env python3
"""Stores that are not AWS, and what stands before them: headers that they do not know, leave out
or make up."""
import contextlib
import os
import re
import sys

sys.dont_write_bytecode = True  # the source tree may be read-only, and is packed as it is
sys.path.insert(0, os.path.join(os.path.dirname(os.path.realpath(__file__)), "..", "harness"))
# pylint: disable=wrong-import-position
from agent import Agent, cleanup, run, wait_for
from s3_server import S3Server
from s3tools import judge_server
from tap import main, test

MIB = 1 << 20


@contextlib.contextmanager
def store_and_agent(units=(30_000, 6 * MIB), **more):
    """@return server, agent, the units' paths; the agent is not started"""
    with S3Server() as s3:
        a = Agent()
        a.use_directories()
        a.config["destinations"] = [a.s3("s3", s3, "bucket", part_size="5MiB", **more)]
        yield s3, a, [a.incompressible(n, str(i)) for i, n in enumerate(units)]


def with_checksums(s3):
    return [r for r in s3.log if any(h.startswith("x-amz-checksum-") for h in r.headers)]


def deliver(a, n):
    a.start()
    a.wait_known(n)
    a.wait_all()
    assert a.counts()["quarantined"] == 0


@test
def a_store_that_does_not_know_our_checksums_is_asked_once_and_gets_none_from_then_on():
    for kind in ("b2", "r2"):
        with store_and_agent() as (s3, a, units):
            s3.checksums = kind
            deliver(a, len(units))
            refused = [r for r in s3.log if r.code in ("InvalidArgument", "NotImplemented")]
            # with Create or PUT, and once more without a condition where that may be the reason
            assert 1 <= len(refused) <= 3, (kind, s3.story())
            units.append(a.incompressible(20_000, "late"))
            before = len(s3.log)
            a.wait_delivered(len(units))
            late = s3.log[before:]
            assert not [r for r in late if any(h.startswith("x-amz-checksum-") for h in r.headers)]
            assert [r for r in late if r.operation == "PutObject"
                    and r.headers.get("if-none-match") == "*"], "conditions were given up, too"
            judge_server(s3, units)
            a.stop()


@test
def a_bucket_that_demands_a_checksum_gets_it_though_they_are_sent_only_when_required():
    for kind in ("aws", "demanded"):
        with store_and_agent() as (s3, a, units):
            s3.checksums = kind
            a.environment["AWS_REQUEST_CHECKSUM_CALCULATION"] = "WHEN_REQUIRED"
            deliver(a, len(units))
            assert bool(with_checksums(s3)) == (kind == "demanded"), s3.story()
            judge_server(s3, units)
            a.stop()


@test
def doctor_asks_a_store_without_checksums_for_what_it_can():
    for kind in ("b2", "r2"):
        with store_and_agent() as (s3, a, _):
            s3.checksums = kind
            a.write_config()
            result = a.cli("--config", a.config_file, "doctor")
            for operation in ("PutObject", "CreateMultipartUpload", "UploadPart"):
                lines = [line for line in result.stdout.splitlines() if operation in line]
                assert lines and not any("Unsupported" in line or "NotImplemented" in line
                                         for line in lines), result.stdout


@test
def a_size_that_a_proxy_removes_is_not_missed():
    with store_and_agent() as (s3, a, units):
        s3.hides_length = True
        deliver(a, len(units))
        judge_server(s3, units)
        a.stop()
        for name in os.listdir(a.path("state")):  # what is there is recognised all the same
            if name.startswith("state.db"):
                os.unlink(a.path("state", name))
        before = len(s3.log)
        deliver(a, len(units))
        assert not [r for r in s3.log[before:] if r.operation in ("PutObject", "UploadPart")
                    and r.status == 200], s3.story()
        judge_server(s3, units)
        assert "was delivered before, by an earlier run" in a.log
        assert "18446744073709551615" not in a.log
        a.stop()


@test
def a_page_in_answer_to_the_manifest_is_not_believed():
    page = b"<html><title>Sign in</title></html>"
    for headers, body in (({"ETag": '"5f3c-1a"'}, page),
                          ({"ETag": '"5f3c-1a"', "x-amz-request-id": None}, b""),
                          ({}, page), ({}, b"")):
        with store_and_agent() as (s3, a, units):
            fault = s3.fault("PutObject", status=200, body=body, headers=headers, times=2,
                             when=lambda r: r.key.endswith(".manifest.json"))
            deliver(a, len(units))
            assert fault.n_hits == 2
            judge_server(s3, units)
            a.stop()


@test
def after_a_5xx_another_connection_is_taken():
    with store_and_agent(units=(30_000,)) as (s3, a, units):
        for operation in ("PutObject", "HeadObject"):
            s3.fault(operation, status=500, code="InternalError", times=4)
        deliver(a, len(units))
        log = list(s3.log)
        same = [r for i, r in enumerate(log[:-1])
                if r.status >= 500 and log[i + 1].connection == r.connection]
        # one: a call that is cancelled before its answer is read has learned nothing
        assert len(same) <= 1, [(r.operation, r.status, r.connection) for r in log]
        judge_server(s3, units)
        a.stop()


@test
def a_clock_is_learned_from_the_error_where_no_answer_has_a_date():
    with store_and_agent() as (s3, a, units):
        s3.hides_date = True
        s3.clock_offset = 7200
        deliver(a, len(units))
        assert 1 <= len([r for r in s3.log if r.code == "RequestTimeTooSkewed"]) <= 3
        judge_server(s3, units)
        a.stop()


@test
def the_ids_of_a_failed_request_are_shown_and_do_not_fill_the_log():
    with store_and_agent(units=(30_000,)) as (s3, a, units):
        numbers = iter(range(1 << 30))

        def other_ids(_request, reply):
            reply.headers["x-amz-request-id"] = f"REQUEST{next(numbers)}"
            reply.headers["x-amz-id-2"] = "vlR7PnpV2Ce81l0PRw6j+/="
        s3.fault("PutObject", status=403, code="AccessDenied", edit=other_ids, times=None)
        a.start()
        a.wait_known(1)
        s3.wait_for("it is asked often", lambda: len(s3.seen("PutObject")) >= 6)
        bundle = a.bundles()[0]["id"]
        # While a try is under way, explain tells of that one.
        for who, text in (("explain", lambda: a.cli("explain", bundle).stdout),
                          ("status", lambda: a.cli("status").stdout), ("the log", lambda: a.log)):
            wait_for(f"{who} has the ids", lambda said=text: re.search(
                r"\[x-amz-request-id REQUEST\d+[^]]*x-amz-id-2 vlR7PnpV2Ce81l0PRw6j\+/=\]",
                " ".join(said().split())))
        assert sum("x-amz-request-id" in line and line.startswith("warning")
                   for line in a.log.splitlines()) == 1
        s3.clear_faults()
        a.wait_all()
        judge_server(s3, units)
        a.stop()


if __name__ == "__main__":
    sys.exit(main(cleanup))
