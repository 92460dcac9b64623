#!/usr/bin/env python3
"""Small objects in a bucket: what a create means among refusals, lost answers and stores without
conditional writes, judged by what the server was asked and holds afterwards."""
import os
import socket
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass

sys.path.insert(0, os.path.join(os.path.dirname(os.path.realpath(__file__)), "..", "..", "harness"))
from s3_server import S3Server      # noqa: E402  pylint: disable=wrong-import-position
from tap import main, notes, test   # noqa: E402  pylint: disable=wrong-import-position

DRIVE = os.path.join(os.path.realpath(os.environ.get("builddir") or "."),
                     "tests/agent/delivery/objects_drive")
PATIENCE = 60 * float(os.environ.get("NC_PATIENCE", "1"))
NAME = ".incidents/00112233445566aa/1.json"
KEY = "neuron/" + NAME
PROBE = "neuron/.incidents/.probe-i-1"


@dataclass
class Answer:
    outcome: str
    data: str
    modified: int
    has_clock: bool
    offset: int
    uncertainty: int
    error: str


def drive(server, *words, instance="i-1", keys="", bucket="bucket",
          endpoint=None):
    """@param words  operation, name, data; and so on  @return an Answer of each"""
    place = (f"type: s3, bucket: {bucket}, prefix: 'neuron/%d-%c', region: us-east-1, "
             f"endpoint: '{endpoint or server.endpoint}', addressing: path, "
             f"request_timeout: 5s{keys}")
    env = {"PATH": os.environ["PATH"], "HOME": "/nonexistent", "AWS_EC2_METADATA_DISABLED": "true",
           "no_proxy": "*", "AWS_ACCESS_KEY_ID": server.access_key,
           "AWS_SECRET_ACCESS_KEY": server.secret_key,
           **{n: v for n, v in os.environ.items()
              if n in ("ASAN_OPTIONS", "UBSAN_OPTIONS", "LSAN_OPTIONS", "TSAN_OPTIONS")}}
    with tempfile.TemporaryDirectory() as state:
        result = subprocess.run([DRIVE, state, instance, place, *words], capture_output=True,
                                text=True, timeout=PATIENCE, env=env, check=False)
    notes.append(result.stdout + result.stderr + getattr(server, "story", str)())
    assert result.returncode == 0, f"exit {result.returncode}: {result.stderr}"
    lines = [line.split("\t") for line in result.stdout.splitlines() if line != "cancelled"]
    return [Answer(w[0], w[1], int(w[2]), w[3] == "1", int(w[4]), int(w[5]), w[6]) for w in lines]


def outcomes(server, *words, **options):
    return [a.outcome for a in drive(server, *words, **options)]


def operations(server, key=None):
    return [r.operation for r in server.log if key in (None, r.key)]


@test
def an_object_is_created_once_and_read():
    with S3Server() as s:
        first, second, read = drive(s, "create", NAME, "one", "create", NAME, "two",
                                    "get", NAME, "-")
        assert (first.outcome, second.outcome, read.outcome) == ("ok", "exists", "ok")
        assert read.data == "one" and s.objects[KEY].body == b"one"
        assert read.modified == first.modified == int(s.objects[KEY].modified) * 10**6
        puts = s.seen("PutObject", key=KEY)
        assert all(r.headers["if-none-match"] == "*" for r in puts) and len(puts) == 2


@test
def a_put_replaces_and_asks_for_no_condition():
    with S3Server() as s:
        answers = drive(s, "put", NAME, "one", "put", NAME, "two", "get", NAME, "-",
                        "get", "missing", "-")
        assert [a.outcome for a in answers] == ["ok", "ok", "ok", "not-found"]
        assert answers[2].data == "two" and answers[3].error == ""
        assert not any("if-none-match" in r.headers for r in s.log)
        assert operations(s) == ["PutObject", "PutObject", "GetObject", "GetObject"]


@test
def conditions_are_tried_once_before_the_first_create():
    with S3Server() as s:
        drive(s, "create", NAME, "one", "create", NAME + "2", "two")
        assert operations(s, PROBE) == ["PutObject", "PutObject", "DeleteObject"]
        assert operations(s)[:2] == ["PutObject", "PutObject"] and s.log[1].status == 412
        assert PROBE not in s.objects
    with S3Server() as s:                                   # also for two at once
        assert sorted(outcomes(s, "twice", NAME, "x")) == ["exists", "ok"]
        assert operations(s, PROBE) == ["PutObject", "PutObject", "DeleteObject"]


@test
def a_probe_that_is_left_does_no_harm():
    with S3Server() as s:
        s.put(PROBE, b"of an earlier life")
        s.deny = {"DeleteObject"}
        assert outcomes(s, "create", NAME, "one", "create", NAME, "two") == ["ok", "exists"]
        assert s.objects[PROBE].body == b"of an earlier life"
        assert drive(s, "list", ".incidents/", "-")[0].data == f"{NAME} 3;"


@test
def a_store_that_ignores_the_condition_is_no_arbiter():
    with S3Server() as s:
        s.conditions = "ignored"
        answers = drive(s, "create", NAME, "one", "create", NAME, "two", "put", NAME, "x")
        assert [a.outcome for a in answers] == ["unable", "unable", "ok"]
        assert all("ignores" in a.error for a in answers[:2])
        assert not [r for r in s.seen("PutObject", key=KEY) if "if-none-match" in r.headers]
        assert operations(s, PROBE) == ["PutObject", "PutObject", "DeleteObject"]


@test
def a_store_that_refuses_the_condition_is_no_arbiter():
    with S3Server() as s:
        s.conditions = "none"
        answers = drive(s, "create", NAME, "one", "create", NAME, "two", "put", NAME, "x")
        assert [a.outcome for a in answers] == ["unable", "unable", "ok"]
        assert answers[0].error and operations(s, PROBE) == ["PutObject"]


@test
def what_is_forbidden_is_reported_as_such():
    with S3Server() as s:
        s.deny = {"PutObject", "GetObject", "ListObjectsV2"}
        answers = drive(s, "create", NAME, "one", "put", NAME, "two", "get", NAME, "-", "list",
                        ".incidents/", "-")
        assert [a.outcome for a in answers] == ["unable"] * 4
        assert all("AccessDenied" in a.error for a in answers), answers
    with S3Server() as s:                                   # but what may only be written is
        s.deny = {"GetObject"}
        answers = drive(s, "create", NAME, "one", "create", NAME, "one")
        assert [a.outcome for a in answers] == ["ok", "exists"]
        assert abs(answers[0].modified / 1e6 - time.time()) < 3600
    with S3Server() as s:
        assert outcomes(s, "create", NAME, "one", bucket="other") == ["unable"]


@test
def a_refusal_may_end():
    with S3Server() as s:
        s.fault("PutObject", status=403, code="AccessDenied")
        assert outcomes(s, "create", NAME, "one", "create", NAME, "one") == ["unable", "ok"]


@test
def a_conflict_is_no_answer():
    with S3Server() as s:
        s.fault("PutObject", key=KEY, status=409, code="ConditionalRequestConflict")
        assert outcomes(s, "create", NAME, "one", "create", NAME, "one") == ["unreachable", "ok"]
    with S3Server() as s:
        s.fault("PutObject", key=PROBE, status=409, code="ConditionalRequestConflict")
        assert outcomes(s, "create", NAME, "one", "create", NAME, "one") == ["unreachable", "ok"]


@test
def trouble_is_tried_again_a_few_times():
    with S3Server() as s:
        s.fault("PutObject", times=2, key=KEY, status=503, code="SlowDown")
        assert outcomes(s, "create", NAME, "one") == ["ok"]
        assert len(s.seen("PutObject", key=KEY)) == 3
    for fault in ({"status": 500, "code": "InternalError"}, {"drop": "head"}):
        with S3Server() as s:
            s.fault("*", times=None, **fault)
            answers = drive(s, "create", NAME, "one", "put", NAME, "x", "get", NAME, "-",
                            "list", ".incidents/", "-")
            assert [a.outcome for a in answers] == ["unreachable"] * 4
            assert all(a.error for a in answers)
            assert len(s.log) == 4 * 3, s.story()


@test
def nobody_there_is_trouble():
    with S3Server() as s, socket.create_server(("127.0.0.1", 0)) as closed:
        port = closed.getsockname()[1]
        closed.close()
        assert outcomes(s, "create", NAME, "one", "get", NAME, "-",
                        endpoint=f"http://127.0.0.1:{port}") == ["unreachable"] * 2
        assert not s.log


@test
def a_create_whose_answer_was_lost_is_ours():
    with S3Server() as s:
        s.fault("PutObject", key=KEY, drop="answer", done=True)
        first, second = drive(s, "create", NAME, "one", "create", NAME, "one")
        assert (first.outcome, second.outcome) == ("ok", "exists")
        assert first.modified == int(s.objects[KEY].modified) * 10**6
    with S3Server() as s:                                   # the same as a status, and all lost
        s.fault("PutObject", key=KEY, status=500, code="InternalError", done=True)
        assert outcomes(s, "create", NAME, "one") == ["ok"]
    with S3Server() as s:
        s.fault("PutObject", key=KEY, drop="answer", done=True, times=None)
        assert outcomes(s, "create", NAME, "one", "get", NAME, "-") == ["unreachable", "ok"]


@test
def after_a_lost_try_the_object_of_another_is_not_ours():
    for there in (b"two", b"onE", b"x" * (4 << 20) + b"x"):
        with S3Server() as s:
            s.put(KEY, there)
            s.fault("PutObject", key=KEY, drop="head")
            assert outcomes(s, "create", NAME, "one") == ["exists"]
            assert s.objects[KEY].body == there
    with S3Server() as s:                                   # and unknown where it cannot be read
        s.put(KEY, b"one")
        s.fault("PutObject", key=KEY, drop="head")
        s.deny = {"GetObject"}
        assert outcomes(s, "create", NAME, "one") == ["unable"]
    with S3Server() as s:
        s.put(KEY, b"one")
        s.fault("PutObject", key=KEY, drop="head")
        s.fault("GetObject", times=None, status=503, code="SlowDown")
        assert outcomes(s, "create", NAME, "one") == ["unreachable"]
    with S3Server() as s:
        s.put(KEY, b"one")
        s.fault("PutObject", key=KEY, drop="head")
        s.fault("GetObject", status=404, code="NoSuchKey")
        assert outcomes(s, "create", NAME, "one") == ["unreachable"]


@test
def a_create_that_was_overwritten_at_once_is_not_ours():
    with S3Server() as s:
        s.fault("GetObject", edit=lambda _request, reply: setattr(reply, "body", b"two"))
        assert outcomes(s, "create", NAME, "one") == ["exists"]


@test
def a_listing_goes_through_all_pages():
    with S3Server() as s:
        s.page_size = 3
        for n in range(8):
            s.put(f"neuron/.incidents/k/{n}.json", b"x" * n)
        for other in ("neuron/.incidents/kk/1.json", "neuron/.incidents/k", "else"):
            s.put(other, b"")
        for odd in ("", "/", "a//b", "../x", "a/./b", ".x", "a/", "a/.y"):
            s.put("neuron/.incidents/k/" + odd, b"")
        s.put("neuron/.incidents/k/a b+%?é.json", b"")
        answer = drive(s, "list", ".incidents/k/", "-")[0]
        assert answer.outcome == "ok" and answer.data == "".join(
            f".incidents/k/{n}.json {n};" for n in range(8)) + ".incidents/k/a b+%?é.json 0;"
        assert len(s.seen("ListObjectsV2")) == 6 and answer.has_clock
        assert drive(s, "list", ".incidents/none/", "-")[0].data == ""


@test
def a_listing_that_never_ends_is_given_up():
    with S3Server() as s:
        s.put(KEY, b"x")

        def lie(_request, reply):
            reply.body = reply.body.replace(
                b"<IsTruncated>false</IsTruncated>", b"<IsTruncated>true</IsTruncated>"
                b"<NextContinuationToken>dA==</NextContinuationToken>")

        s.fault("ListObjectsV2", times=None, edit=lie)
        answer = drive(s, "list", ".incidents/", "-")[0]
        assert answer.outcome == "invalid" and len(s.seen("ListObjectsV2")) == 1000, answer
    with S3Server() as s:
        s.fault("ListObjectsV2", times=None,
                edit=lambda _request, reply: setattr(reply, "body", b"<html/>"))
        answer = drive(s, "list", ".incidents/", "-")[0]
        assert answer.outcome == "unreachable" and "not S3's" in answer.error, answer


@test
def what_is_larger_than_it_may_be_is_not_read():
    with S3Server() as s:
        s.put(KEY, b"x" * ((4 << 20) + 1))
        answer = drive(s, "get", NAME, "-")[0]
        assert answer.outcome == "invalid" and KEY in answer.error, answer.error[:200]
        s.put(KEY, b"x" * (4 << 20))
        assert len(drive(s, "get", NAME, "-")[0].data) == 4 << 20


@test
def every_answer_tells_the_stores_clock():
    with S3Server() as s:
        for ahead in (0, 300, -300):
            s.clock_offset = ahead
            for a in drive(s, "create", f"{NAME}{ahead}", "x", "create", f"{NAME}{ahead}", "y",
                           "get", f"{NAME}{ahead}", "-", "put", "a", "x", "list", ".incidents/",
                           "-"):
                wanted = (time.time() + ahead - time.clock_gettime(time.CLOCK_BOOTTIME)) * 1e6
                assert a.has_clock and a.uncertainty >= 500_000, a
                assert abs(a.offset - wanted) <= a.uncertainty, (a, wanted)
        s.fault("GetObject", edit=lambda _request, reply: reply.headers.update({"Date": None}))
        assert not drive(s, "get", "a", "-")[0].has_clock


@test
def a_cancelled_call_reports_nothing():
    with S3Server() as s:
        s.latency = 0.05
        assert outcomes(s, "cancel", NAME, "one", "create", NAME + "2", "two",
                        "cancel", NAME, "one", "get", NAME + "2", "-") == ["ok", "ok"]


@test
def objects_have_the_headers_of_the_destination():
    with S3Server() as s:
        assert outcomes(s, "create", NAME, "x", keys=", storage_class: STANDARD_IA") == ["ok"]
        assert all(r.headers["x-amz-storage-class"] == "STANDARD_IA" for r in s.seen("PutObject"))
        assert s.seen("PutObject", key=KEY)[0].headers["content-type"] == "application/json"


if __name__ == "__main__":
    sys.exit(main())
