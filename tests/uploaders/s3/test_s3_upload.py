#!/usr/bin/env python3
"""One object on its way: each branch of the machine, judged by what the server was asked and what
it holds afterwards."""
import os
import sys

sys.path.insert(0, os.path.dirname(os.path.realpath(__file__)))
# noqa: E402
from drive import (AWAY, DENIED, EXISTS, FULL, MISMATCH, NETWORK, OK, PLAN, PLAN_HEADER, REFUSED,
                   SAME, SHA256_HEADER, STALE,
                   S3Server, check_object, drive, etag_of, put_ours, start, finish, upload)
from tap import in_time, main, test  # noqa: E402

MANY = {"parts": 4, "part_bytes": 100_000, "last_bytes": 500}
EDQUOT = -122


def operations(server):
    return [r.operation for r in server.log]


def check_many(server, key="k"):
    check_object(server, key, **MANY)


def check_nothing_left(server):
    assert not server.uploads, f"uploads are left: {server.uploads}"


# --- one PUT

@test
def what_fits_into_one_part_is_one_conditional_put_proven_by_head():
    with S3Server() as s:
        run = upload(s)
        assert (run.outcome, run.proof) == (OK, "head")
        assert operations(s) == ["PutObject", "HeadObject"]
        check_object(s)
        h = s.log[0].headers
        assert h["if-none-match"] == "*" and h["content-type"] == "application/zstd" and h[
            PLAN_HEADER] == PLAN
        assert len(h["x-amz-content-sha256"]) == 64 and h["x-amz-checksum-sha256"].endswith("=")
        assert run.wants == [1] and not run.all("begin")


@test
def headers_of_the_object_go_with_put_and_create_and_nothing_else():
    options = {"sse": "aws:kms", "kms_key": "key-1", "storage_class": "STANDARD_IA", "tags": True,
               "owner": "111122223333"}
    with S3Server() as s:
        assert upload(s, **options).outcome == OK
        assert upload(s, "m", **MANY, **options).outcome == OK
        for r in s.log:
            writes = r.operation in ("PutObject", "CreateMultipartUpload")
            assert r.headers["x-amz-expected-bucket-owner"] == "111122223333"
            assert (r.headers.get(
                "x-amz-server-side-encryption") == "aws:kms") == writes, r.operation
            assert (r.headers.get(
                "x-amz-server-side-encryption-aws-kms-key-id") == "key-1") == writes
            assert (r.headers.get("x-amz-storage-class") == "STANDARD_IA") == writes
            assert (r.headers.get("x-amz-tagging") == "team=a%20b&x%2By=z%3D1") == writes


@test
def odd_keys_arrive_as_they_are():
    for key in ("a b+c=d%e*f~g", "ünï/ço∂é", "x//y/../z/.", "k" * 1024, "q'\"()!$&,;:@"):
        with S3Server() as s:
            assert upload(s, key).outcome == OK
            assert upload(s, key + "m"[:1024 - len(key.encode())], **MANY).outcome in (OK, EXISTS)
            assert key in s.objects, list(s.objects)


@test
def the_same_object_that_is_there_already_is_reported_as_the_same():
    with S3Server() as s:
        put_ours(s)
        run = upload(s)
        assert (run.outcome, run.proof) == (SAME, "head")
        assert operations(s) == ["PutObject", "HeadObject"]


@test
def another_object_in_the_way_is_not_overwritten():
    for other in ({"plan": "00bb"}, {"part_bytes": 999}):
        with S3Server() as s:
            there = put_ours(s, **other)
            run = upload(s)
            assert run.outcome == EXISTS and "move it away" in run.error, run.error
            assert s.objects["k"] is there


@test
def of_a_single_put_other_bytes_of_the_same_plan_and_size_are_something_else():
    for told in ({}, {SHA256_HEADER: "00" * 32}):
        for conditions in ("aws", "none"):
            with S3Server() as s:
                s.conditions = conditions
                there = s.put("k", b"x" * 1000, **{PLAN_HEADER: PLAN, **told})
                run = upload(s)
                assert run.outcome == EXISTS and "already and differs" in run.error, (
                    conditions, told, run.lines)
                assert s.objects["k"] is there
                assert upload(s, may_replace=True).outcome == OK
                check_object(s)


@test
def an_object_of_no_bundle_is_replaced_when_the_caller_wants_it():
    with S3Server() as s:
        put_ours(s, plan="00bb")
        run = upload(s, may_replace=True)
        assert (run.outcome, run.proof) == (OK, "head")
        assert operations(s) == ["PutObject", "HeadObject", "PutObject", "HeadObject"]
        assert "if-none-match" not in s.log[2].headers
        check_object(s)


@test
def what_is_ours_to_replace_is_written_over_without_a_question():
    def is_conditional(s):
        return any("if-none-match" in r.headers for r in s.log)

    for conditions in ("aws", "none"):
        with S3Server() as s:
            s.conditions = conditions
            put_ours(s, plan="00bb")
            s.put("guard", b"", **{PLAN_HEADER: "00bb"})
            run = upload(s, write_over=True, guard="guard")
            assert (run.outcome, run.proof) == (OK, "head")
            assert operations(s) == ["PutObject", "HeadObject"] and not is_conditional(s)
            check_object(s)
            assert upload(s, write_over=True).outcome == OK      # it is the same now
            assert operations(s)[2:] == ["PutObject", "HeadObject"]
        with S3Server() as s:
            s.conditions = conditions
            s.put("k", b"x" * 300_500, **{PLAN_HEADER: PLAN})      # of the same plan and size
            assert upload(s, write_over=True, **MANY).outcome == OK
            assert operations(s)[5:] == ["CompleteMultipartUpload",
                                         "HeadObject"] and not is_conditional(s)
            check_many(s)
            check_nothing_left(s)


@test
def what_is_written_over_is_never_reported_as_the_same():
    for trouble in ({"status": 409, "code": "OperationAborted", "done": True},
                    {"edit": lambda request, reply: reply.headers.pop("ETag")}):
        with S3Server() as s:
            s.fault("PutObject", **trouble)
            run = upload(s, write_over=True)
            assert (run.outcome, run.proof) == (OK, "head"), run.lines
            assert operations(s) == ["PutObject", "HeadObject"]
    # plan and size do not tell whether it is the new one or the one before
    with S3Server() as s:
        s.put("k", b"x" * 300_500, **{PLAN_HEADER: PLAN})
        s.fault("CompleteMultipartUpload", status=404, code="NoSuchUpload")
        assert upload(s, write_over=True, **MANY).outcome == STALE


@test
def a_bundle_delivered_meanwhile_guards_its_object():
    for options in ({}, MANY):
        for conditions in ("aws", "radosgw", "none"):
            with S3Server() as s:
                s.conditions = conditions
                there = put_ours(s, plan="00bb")
                s.put("guard", b"{}", **{PLAN_HEADER: "00bb"})
                run = upload(s, may_replace=True, guard="guard", **options)
                assert (run.outcome == EXISTS
                        and "was delivered under this name" in run.error), run.lines
                assert s.objects["k"] is there
                check_nothing_left(s)
    with S3Server() as s:      # nor is one without our header a manifest of ours
        there = put_ours(s, plan="00bb")
        s.put("guard", b"{}")
        assert upload(s, may_replace=True,
                      guard="guard").outcome == EXISTS and s.objects["k"] is there


@test
def what_has_no_guard_or_ours_is_replaced():
    for options in ({}, MANY):
        for guard in (None, PLAN):
            with S3Server() as s:
                put_ours(s, plan="00bb")
                if guard:
                    s.put("guard", b"{}", **{PLAN_HEADER: guard})
                assert upload(s, may_replace=True, guard="guard", **options).outcome == OK
                assert len(s.seen("HeadObject", key="guard")) == 1
                check_object(s, **options)
    with S3Server() as s:      # and nobody is asked where nothing is replaced
        assert upload(s, may_replace=True, guard="guard").outcome == OK
        assert not s.seen("HeadObject", key="guard")


@test
def a_guard_that_cannot_be_asked_lets_nothing_be_replaced():
    for options in ({}, MANY):
        with S3Server() as s:
            there = put_ours(s, plan="00bb")
            s.fault("HeadObject", key="guard", status=403, times=None)
            run = upload(s, may_replace=True, guard="guard", **options)
            assert run.outcome == EXISTS and "s3:GetObject" in run.error, run.lines
            assert s.objects["k"] is there
        with S3Server() as s:
            there = put_ours(s, plan="00bb")
            s.fault("HeadObject", key="guard", status=503, times=None)
            run = upload(s, may_replace=True, guard="guard", **options)
            assert run.outcome == AWAY and "guard" in run.error, run.lines
            assert s.objects["k"] is there and len(s.uploads) == bool(options)


@test
def what_vanished_after_it_was_examined_is_not_written_over_blindly():
    with S3Server() as s:
        put_ours(s, plan="00bb")
        s.fault("PutObject", skip=1, status=409, code="ConditionalRequestConflict")
        s.fault("HeadObject", key="k", skip=1, status=404)
        assert upload(s, may_replace=True, guard="guard").outcome == OK
        assert [(r.status, "if-none-match" in r.headers)
                for r in s.seen("PutObject")] == [(412, True), (409, False), (412, True),
                                                  (200, False)]
        assert len(s.seen("HeadObject", key="guard")) == 2


@test
def a_lost_answer_to_put_is_found_out_by_head():
    with S3Server() as s:
        s.fault("PutObject", drop="answer", done=True)
        run = upload(s)
        assert (run.outcome, run.proof) == (SAME, "head")
        assert operations(s) == ["PutObject", "PutObject", "HeadObject"]
        check_object(s)


@test
def a_conflict_of_conditional_puts_is_tried_again():
    with S3Server() as s:
        s.fault("PutObject", status=409, code="ConditionalRequestConflict")
        assert upload(s).outcome == OK
        assert operations(s) == ["PutObject", "HeadObject", "PutObject", "HeadObject"]
    with S3Server() as s:
        s.fault("PutObject", status=409, code="ConditionalRequestConflict", times=None)
        assert upload(s).outcome == AWAY
        assert len(s.seen("PutObject")) == 5


@test
def a_put_without_etag_proves_nothing():
    with S3Server() as s:
        s.fault("PutObject", edit=lambda request, reply: reply.headers.pop("ETag"))
        assert upload(s).outcome == SAME
        assert operations(s) == ["PutObject", "HeadObject"]


# --- several parts

@test
def several_parts_are_created_sent_examined_completed_and_proven():
    with S3Server() as s:
        run = upload(s, **MANY)
        assert (run.outcome, run.proof, run.one("done")[2]) == (OK, "head", "300500")
        check_many(s)
        check_nothing_left(s)
        assert operations(s)[0] == "CreateMultipartUpload"
        assert operations(s)[1:5] == ["UploadPart"] * 4
        assert operations(s)[5:] == ["HeadObject", "CompleteMultipartUpload", "HeadObject"]
        assert run.wants == [1, 2, 3, 4] and not run.may_have_orphans
        assert [w for w, *_ in run.lines[:3]] == ["want", "begin", "id"]
        assert run.etags == {n: etag_of(n, 100_000 if n < 4 else 500) for n in (1, 2, 3, 4)}
        create, complete = s.log[0].headers, s.log[6].headers
        assert create[
            "x-amz-checksum-algorithm"] == "SHA256" and "x-amz-checksum-type" not in create
        assert create[PLAN_HEADER] == PLAN
        assert complete["if-none-match"] == "*"
        assert all("x-amz-checksum-sha256" in r.headers for r in s.seen("UploadPart"))
        assert run.one("done")[5] == "300500"


@test
def parts_may_be_given_later():
    with S3Server() as s:
        assert upload(s, later=True, **MANY).outcome == OK
        check_many(s)


def most_at_once(requests):
    return max(sum(a.begun <= b.begun < a.ended for a in requests) for b in requests)


@test
def no_more_parts_are_on_their_way_than_allowed():
    for in_flight in (1, 2, 3):
        with S3Server() as s:
            s.fault("UploadPart", delay=0.05, times=None)
            run = upload(s, parts=7, part_bytes=70_000, in_flight=in_flight)
            assert run.outcome == OK
            assert most_at_once(s.seen("UploadPart")) == in_flight
            assert run.wants == [1, 2, 3, 4, 5, 6, 7]


@test
def no_part_is_wanted_while_as_many_as_allowed_are_on_their_way():
    with S3Server() as s:
        s.fault("UploadPart", stall="answer", times=None)
        process = start(s, "upload", "k", parts=7, part_bytes=70_000, in_flight=2,
                        timeout_msec=20000)
        s.wait_for("two parts", lambda: len(s.seen("UploadPart")) == 2)
        s.clear_faults()
        s.release()
        run = finish(process, s)
        assert run.outcome == OK
        told = [line for line in run.lines if line[0] in ("want", "etag")]
        assert [w[0] for w in told[:3]] == ["want", "want", "etag"], told


@test
def connections_are_kept_alive():
    with S3Server() as s:
        assert upload(s, parts=20, part_bytes=70_000, in_flight=2).outcome == OK
        assert len({r.connection for r in s.log}) <= 3, s.log[-1].connection


@test
def somebody_elses_object_is_seen_before_complete_where_conditions_are_ignored():
    with S3Server() as s:
        s.conditions = "radosgw"
        there = put_ours(s, plan="00bb")
        run = upload(s, **MANY)
        assert run.outcome == EXISTS and s.objects["k"] is there
        assert not s.seen("CompleteMultipartUpload")
        check_nothing_left(s)
        assert not run.may_have_orphans


@test
def a_finished_object_of_the_same_plan_is_not_uploaded_over():
    with S3Server() as s:
        s.put("k", b"x" * 300_500, **{PLAN_HEADER: PLAN})
        run = upload(s, **MANY)
        assert (run.outcome, run.proof) == (SAME, "head")
        check_nothing_left(s)


@test
def complete_replaces_an_object_of_no_bundle_when_the_caller_wants_it():
    for conditions in ("aws", "radosgw", "none"):
        with S3Server() as s:
            s.conditions = conditions
            put_ours(s, plan="00bb")
            assert upload(s, may_replace=True, **MANY).outcome == OK
            check_many(s)
            check_nothing_left(s)
            assert all("if-none-match" not in r.headers for r in s.seen("CompleteMultipartUpload"))


@test
def an_object_that_comes_between_head_and_complete_is_judged():
    for plan, outcome in (("00bb", EXISTS), (PLAN, SAME)):
        with S3Server() as s:
            s.fault("HeadObject", edit=lambda request,
                    reply: s.put("k", b"x" * 300_500, **{PLAN_HEADER: plan}))
            run = upload(s, **MANY)
            assert run.outcome == outcome
            assert operations(s)[5:] == ["HeadObject", "CompleteMultipartUpload", "HeadObject",
                                         "AbortMultipartUpload"]
            assert s.objects["k"].body == b"x" * 300_500
            check_nothing_left(s)


@test
def a_conflict_of_complete_begins_anew_and_leaves_nothing():
    with S3Server() as s:
        s.fault("CompleteMultipartUpload", status=409, code="ConditionalRequestConflict")
        run = upload(s, **MANY)
        assert run.outcome == STALE and "another writer" in run.error
        assert operations(s)[-3:] == ["CompleteMultipartUpload", "HeadObject",
                                      "AbortMultipartUpload"]
        check_nothing_left(s)
        assert not s.objects and not run.may_have_orphans


@test
def a_conflict_with_an_earlier_try_of_ours_is_found_out_by_head():
    with S3Server() as s:
        s.fault("CompleteMultipartUpload", drop="answer", done=True)
        s.fault("CompleteMultipartUpload", status=409, code="OperationAborted")
        run = upload(s, **MANY)
        assert (run.outcome, run.proof, run.may_have_orphans) == (SAME, "head", False)
        check_many(s)
        check_nothing_left(s)
    with S3Server() as s:      # and while nobody answers, all is left as it is
        s.fault("CompleteMultipartUpload", status=409, code="OperationAborted")
        s.fault("HeadObject", skip=1, status=503, times=None)
        assert upload(s, **MANY).outcome == AWAY
        assert len(s.uploads) == 1


@test
def a_200_with_an_error_in_it_is_an_error():
    with S3Server() as s:
        s.fault("CompleteMultipartUpload", status=200, code="InternalError")
        assert upload(s, **MANY).outcome == OK
        assert len(s.seen("CompleteMultipartUpload")) == 2
        check_many(s)
    with S3Server() as s:
        s.fault("CompleteMultipartUpload", status=200, code="InternalError", times=None)
        assert upload(s, **MANY).outcome == AWAY
        assert len(s.seen("CompleteMultipartUpload")) == 4
        assert len(s.uploads) == 1 and not s.objects


@test
def a_lost_answer_to_complete_is_found_out_by_head():
    with S3Server() as s:
        s.fault("CompleteMultipartUpload", drop="answer", done=True)
        run = upload(s, **MANY)
        assert (run.outcome, run.proof) == (SAME, "head")
        assert operations(s)[5:] == ["HeadObject", "CompleteMultipartUpload",
                                     "CompleteMultipartUpload", "HeadObject"]
        check_many(s)
        check_nothing_left(s)


@test
def a_complete_without_etag_proves_nothing_by_itself():
    with S3Server() as s:
        s.fault("CompleteMultipartUpload", edit=lambda request,
                reply: setattr(reply, "body", b"<CompleteMultipartUploadResult/>"))
        assert upload(s, **MANY).outcome == SAME
        check_many(s)


@test
def an_upload_that_is_gone_is_begun_anew():
    with S3Server() as s:
        s.fault("UploadPart", part=2, status=404, code="NoSuchUpload")
        run = upload(s, **MANY)
        assert run.outcome == STALE
        assert not s.seen("AbortMultipartUpload")
    with S3Server() as s:
        s.fault("CompleteMultipartUpload", status=404, code="NoSuchUpload")
        assert upload(s, **MANY).outcome == STALE
        assert operations(s)[-1] == "HeadObject"


@test
def parts_that_the_store_does_not_know_begin_the_upload_anew():
    for code in ("InvalidPart", "InvalidPartOrder"):
        with S3Server() as s:
            s.fault("CompleteMultipartUpload", status=400, code=code)
            assert upload(s, **MANY).outcome == STALE
            check_nothing_left(s)
            assert not s.objects


@test
def a_lost_answer_to_create_costs_an_orphan_and_nothing_else():
    with S3Server() as s:
        s.fault("CreateMultipartUpload", drop="answer", done=True)
        run = upload(s, **MANY)
        assert run.outcome == OK and run.may_have_orphans      # so that somebody looks for it
        check_many(s)
        assert len(s.uploads) == 1 and run.one("id")[0] not in s.uploads
    with S3Server() as s:
        s.fault("CreateMultipartUpload", drop="answer", done=True, times=None)
        run = upload(s, **MANY)
        assert run.outcome == NETWORK and run.may_have_orphans and s.uploads


@test
def a_create_without_upload_id_is_no_create():
    with S3Server() as s:
        s.fault("CreateMultipartUpload", edit=lambda request,
                reply: setattr(reply, "body", b"<x/>"))
        run = upload(s, **MANY)
        assert run.outcome == AWAY and "upload id" in run.error
        assert run.may_have_orphans and s.uploads


# --- trouble on the way

@test
def a_part_is_sent_again_after_every_trouble_that_passes():
    troubles = [{"status": 503, "code": "SlowDown"}, {"status": 500, "code": "InternalError"},
                {"status": 500}, {"drop": "head"},
                {"drop": "body"}, {"drop": "answer"}, {"drop": "answer", "done": True},
                {"cut": "head"},
                {"status": 400, "code": "RequestTimeout"},
                {"status": 400, "code": "XAmzContentSHA256Mismatch"},
                {"status": 400, "code": "BadDigest"},
                {"early": True, "status": 503, "code": "SlowDown"}, {"stall": "body"},
                {"stall": "answer"},
                {"edit": lambda request, reply: reply.headers.pop("ETag")}]
    for trouble in troubles[:-1]:
        with S3Server() as s:
            s.fault("UploadPart", part=2, **trouble)
            run = upload(s, timeout_msec=400, **MANY)
            assert run.outcome == OK, (trouble, run.lines)
            assert len(s.seen("UploadPart",
                              part=2)) == 2 and len(s.seen("UploadPart")) == 5, (trouble, s.story())
            check_many(s)
            check_nothing_left(s)
    with S3Server() as s:      # an answer without ETag cannot be told to Complete
        s.fault("UploadPart", part=2, **troubles[-1])
        run = upload(s, **MANY)
        assert run.outcome == AWAY and "ETag" in run.error, run.lines
        assert len(s.uploads) == 1


# --- whose move it is

@test
def while_our_own_data_is_late_the_store_is_not_called_silent():
    with S3Server() as s:
        run = upload(s, parts=3, part_bytes=100_000, in_flight=1, late_msec=2000, look_msec=20)
        assert run.outcome == OK and run.stats[0] == 0, run.lines
        assert run.silence < 1.5, (f"{run.silence} s of the 2 s in which there was nothing to "
                                   "send are charged to the store")
        check_object(s, parts=3, part_bytes=100_000)


@test
def a_store_that_is_really_silent_is_found_out_also_through_several_tries():
    with S3Server() as s:
        s.fault("UploadPart", part=2, stall="answer", times=2)
        run = upload(s, timeout_msec=1000, look_msec=20, in_flight=1, **MANY)
        assert run.outcome == OK and run.stats[0] == 2, run.lines
        assert run.silence >= 1.9, ("two tries of a second each went without an answer, and "
                                    f"{run.silence} s of it were noticed")
        check_many(s)


@test
def the_404_of_something_before_the_store_proves_nothing_of_the_object():
    def page(request, reply):
        reply.status, reply.body, reply.headers = 404, b"<html>no backend</html>", {
            "content-type": "text/html", "x-amz-request-id": None}

    for operation, options in (("UploadPart", MANY), ("CreateMultipartUpload", MANY),
                               ("CompleteMultipartUpload", MANY), ("PutObject", {}),
                               ("HeadObject", {}), ("HeadObject", MANY)):
        with S3Server() as s:
            s.fault(operation, edit=page)
            run = upload(s, **options)
            assert run.outcome == (SAME if operation in ("CompleteMultipartUpload", "PutObject")
                                   else OK), (operation, run.lines)
            check_object(s, **options)
    with S3Server() as s:      # on and on
        s.fault("UploadPart", edit=page, part=2, times=None)
        run = upload(s, **MANY)
        assert run.outcome == AWAY and "does not answer like an S3 store" in run.error
        assert len(s.uploads) == 1


@test
def a_store_without_request_ids_is_believed_when_it_answers_404():
    with S3Server() as s:
        s.fault("*", times=None, edit=lambda request,
                reply: reply.headers.update({"x-amz-request-id": None}))
        assert upload(s, **MANY).outcome == OK
        check_many(s)


@test
def every_other_request_is_sent_again_too():
    for operation, skip in (("CreateMultipartUpload", 0), ("HeadObject", 0), ("HeadObject", 1),
                            ("CompleteMultipartUpload", 0)):
        for trouble in ({"status": 503}, {"drop": "head"}, {"drop": "answer"}, {"cut": "head"},
                        {"stall": "head"}):
            with S3Server() as s:
                s.fault(operation, skip=skip, **trouble)
                run = upload(s, timeout_msec=400, **MANY)
                assert run.outcome == (SAME if operation.startswith("Complete") and "cut"
                                       in trouble else OK), (operation, trouble, run.lines)
                check_many(s)


@test
def retry_after_is_heeded():
    with S3Server() as s:
        s.fault("UploadPart", part=1, status=503, code="SlowDown", headers={"Retry-After": "1"})
        assert upload(s, **MANY).outcome == OK
        first, second = s.seen("UploadPart", part=1)
        assert second.begun - first.ended > 0.9, second.begun - first.ended
        in_time(second.begun - first.ended, 3, "the wait")


@test
def a_server_that_stays_away_leaves_the_upload_to_be_gone_on_with():
    for operation, part in (("CreateMultipartUpload", None), ("UploadPart", 2),
                            ("HeadObject", None), ("CompleteMultipartUpload", None)):
        with S3Server() as s:
            s.fault(operation, part=part, status=503, code="ServiceUnavailable", times=None)
            run = upload(s, **MANY)
            assert run.outcome == AWAY and "k" in run.error, run.lines
            assert len(s.seen(operation, part=part)) == 4
            assert not s.seen("AbortMultipartUpload") and not s.objects
            assert len(s.uploads) == (operation != "CreateMultipartUpload")


@test
def nobody_there_is_away():
    with S3Server() as s:
        endpoint = s.endpoint
    run = drive(s, "upload", "k", endpoint=endpoint)
    assert run.outcome == NETWORK and "127.0.0.1" in run.error, run.error


@test
def what_is_denied_leaves_the_upload_to_be_gone_on_with():
    with S3Server() as s:
        s.fault("UploadPart", part=2, early=True, status=403, code="AccessDenied")
        run = upload(s, **MANY)
        assert run.outcome == DENIED and "s3:PutObject" in run.error, run.error
        assert len(s.seen("UploadPart", part=2)) == 1
        assert len(s.uploads) == 1 and not s.seen("AbortMultipartUpload")
    with S3Server() as s:
        s.deny = {"PutObject"}
        assert upload(s).outcome == DENIED
    with S3Server() as s:
        run = upload(s, bucket="no-such-bucket")
        assert run.outcome == DENIED and "no-such-bucket" in run.error, run.error


@test
def a_full_store_leaves_what_was_sent():
    with S3Server() as s:
        s.quota_bytes = 150_000
        run = upload(s, in_flight=1, **MANY)
        assert run.outcome == FULL, run.lines
        assert sorted(next(iter(s.uploads.values())).parts) == [1]
        assert not s.seen("AbortMultipartUpload")


@test
def what_no_waiting_helps_leaves_nothing():
    with S3Server() as s:
        s.fault("UploadPart", part=2, status=400, code="EntityTooLarge", times=None)
        assert upload(s, **MANY).outcome == REFUSED
        check_nothing_left(s)


@test
def an_upload_whose_abort_fails_is_reported():
    with S3Server() as s:
        s.deny = {"AbortMultipartUpload"}
        s.fault("CompleteMultipartUpload", status=409, code="ConditionalRequestConflict")
        run = upload(s, **MANY)
        assert run.outcome == STALE and run.may_have_orphans
        assert len(s.uploads) == 1


# --- proof

@test
def where_head_is_forbidden_the_answer_is_the_proof():
    for options in ({}, MANY):
        with S3Server() as s:
            s.deny = {"HeadObject"}
            run = upload(s, **options)
            assert (run.outcome, run.proof) == (OK, "response")
            check_object(s, **options)
            check_nothing_left(s)


@test
def what_is_in_the_way_and_may_not_be_examined_is_this_objects_own_failure():
    for options in ({}, MANY):
        with S3Server() as s:
            there = put_ours(s, plan="00bb")
            s.deny = {"HeadObject"}
            run = upload(s, **options)
            assert (run.outcome == EXISTS and "s3:GetObject" in run.error
                    and "already" in run.error), run.lines
            assert s.objects["k"] is there
            check_nothing_left(s)


@test
def a_conflict_where_head_is_forbidden_is_tried_again_under_the_condition():
    with S3Server() as s:
        s.deny = {"HeadObject"}
        s.fault("PutObject", status=409, code="ConditionalRequestConflict")
        run = upload(s)
        assert (run.outcome, run.proof) == (OK, "response")
        assert all("if-none-match" in r.headers for r in s.seen("PutObject"))


@test
def nothing_is_written_blindly():
    for conditions, may_replace, outcome in (("none", {}, DENIED),
                                             ("none", {"may_replace": True}, OK)):
        with S3Server() as s:
            s.conditions = conditions
            s.deny = {"HeadObject"}
            assert upload(s, **may_replace).outcome == outcome
            assert upload(s, "m", **may_replace, **MANY).outcome == outcome


@test
def what_head_reports_must_be_what_was_sent():
    lies = [lambda request, reply: reply.headers.update({"ETag": '"0123"'}),
            lambda request, reply: reply.headers.update({PLAN_HEADER: "00bb"}),
            lambda request, reply: reply.headers.pop(PLAN_HEADER),
            lambda request, reply: setattr(reply, "body", reply.body[1:])]
    for lie in lies:
        for skip, options in ((0, {}), (1, MANY)):
            with S3Server() as s:
                s.fault("HeadObject", skip=skip, edit=lie)
                run = upload(s, **options)
                assert run.outcome == MISMATCH and run.proof == "none", run.lines
    with S3Server() as s:
        s.fault("HeadObject", edit=lambda request,
                reply: reply.headers.update({SHA256_HEADER: "00" * 32}))
        assert upload(s).outcome == MISMATCH
    for skip, options in ((0, {}), (1, MANY)):
        with S3Server() as s:
            s.fault("HeadObject", skip=skip, status=404)
            run = upload(s, **options)
            assert run.outcome == MISMATCH and "is not there" in run.error, run.error


# --- stores without conditional writes

@test
def without_conditions_head_decides_before_the_put():
    with S3Server() as s:
        s.conditions = "none"
        assert upload(s).outcome == OK
        assert operations(s) == ["PutObject", "HeadObject", "PutObject", "HeadObject"]
        assert "if-none-match" not in s.log[2].headers
        check_object(s)
        assert upload(s).outcome == SAME
    with S3Server() as s:
        s.conditions = "none"
        there = put_ours(s, plan="00bb")
        assert upload(s).outcome == EXISTS and s.objects["k"] is there


@test
def without_conditions_head_decides_before_complete():
    with S3Server() as s:
        s.conditions = "none"
        assert upload(s, **MANY).outcome == OK
        assert operations(s)[5:] == ["HeadObject", "CompleteMultipartUpload", "HeadObject",
                                     "CompleteMultipartUpload", "HeadObject"]
        check_many(s)


@test
def a_store_that_finds_checksums_malformed_gets_none():
    with S3Server() as s:
        s.conditions, s.dialect = "none", "swift"
        assert upload(s, **MANY).outcome == OK
        check_many(s)
        assert [b"<ChecksumSHA256>" in r.body
                for r in s.seen("CompleteMultipartUpload")] == [True, False, False]
    with S3Server() as s:      # and one that takes everything for malformed is refused
        s.fault("CompleteMultipartUpload", status=400, code="MalformedXML", times=None)
        assert upload(s, **MANY).outcome == REFUSED
        assert len(s.seen("CompleteMultipartUpload")) == 2
        check_nothing_left(s)


# --- the caller's side

@test
def nothing_goes_on_before_the_caller_has_written_it_down():
    for where, asked in (("begin", []), ("id", ["CreateMultipartUpload"])):
        with S3Server() as s:
            run = upload(s, fail_in=where, **MANY)
            assert run.outcome == EDQUOT and operations(s) == asked and "quota" in run.error
    with S3Server() as s:
        run = upload(s, fail_in="etag", in_flight=1, **MANY)
        assert run.outcome == EDQUOT and operations(s) == ["CreateMultipartUpload", "UploadPart"]
        assert len(s.uploads) == 1


@test
def an_upload_is_freed_in_the_middle_without_a_trace():
    for later in ({}, {"later": True}):
        with S3Server() as s:
            run = upload(s, parts=9, part_bytes=200_000, free_after=2, **later)
            assert not run.all("done") and len(run.etags) == 2
            assert len(s.uploads) == 1 and not s.objects and not s.seen("AbortMultipartUpload")


sys.exit(main())
