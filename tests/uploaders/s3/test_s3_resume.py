#!/usr/bin/env python3
"""An upload that was cut resumes where it stopped: only what has not arrived is sent, and what does
not fit starts over."""
import os
import sys

sys.path.insert(0, os.path.dirname(os.path.realpath(__file__)))
from drive import (AWAY, EXISTS, OK, PLAN_HEADER, SAME, STALE, PLAN,  # noqa: E402
                   S3Server, check_object, etag_of, part_data, start, upload)
from tap import main, test  # noqa: E402

SIZE, LAST = 100_000, 500
MANY = {"parts": 4, "part_bytes": SIZE, "last_bytes": LAST}


def size_of(number):
    return LAST if number == 4 else SIZE


def known(number, etag=None):
    """A ledger's row. @param etag  "-" = not known to have arrived"""
    return f"{number}:{size_of(number)}:{etag or etag_of(number, size_of(number))}" + (
        ":last" if number == 4 else "")


def cut_upload(server, *numbers, key="k"):
    """As a crash leaves it: these parts are on the server."""
    upload_id = server.create(key, **{PLAN_HEADER: PLAN, "content-type": "application/zstd",
                                      "x-amz-checksum-algorithm": "SHA256"})
    for n in numbers:
        server.put_part(upload_id, n, part_data(n, size_of(n)))
    return upload_id


def resume(server, upload_id, *rows, **options):
    # the rows' checksums need the sizes
    return upload(server, **{**MANY, **options}, id=upload_id, known=list(rows))


def operations(server):
    return [r.operation for r in server.log]


def sent_parts(server):
    return sorted(r.part for r in server.seen("UploadPart"))


@test
def only_the_parts_that_have_not_arrived_are_sent():
    with S3Server() as s:
        run = resume(s, cut_upload(s, 1, 2), known(1), known(2))
        assert (run.outcome, run.proof) == (OK, "head")
        assert run.wants == [3, 4] and sent_parts(s) == [3, 4]
        assert operations(s)[0] == "ListParts" and not run.all("begin") and not run.all("id")
        check_object(s, **MANY)
        assert not s.uploads


@test
def gaps_are_filled_first_in_order():
    with S3Server() as s:
        run = resume(s, cut_upload(s, 2), known(1, "-"), known(2), known(3, "-"), in_flight=1)
        assert run.outcome == OK and run.wants == [1, 3, 4]
        assert [r.part for r in s.seen("UploadPart")] == [1, 3, 4]
        check_object(s, **MANY)


@test
def a_last_part_that_is_known_is_not_gone_beyond():
    with S3Server() as s:
        run = resume(s, cut_upload(s, 1, 2, 4), known(1), known(2), known(3, "-"), known(4))
        assert run.outcome == OK and run.wants == [3]
        check_object(s, **MANY)


@test
def an_upload_that_only_lacked_its_end_sends_no_part():
    with S3Server() as s:
        run = resume(s, cut_upload(s, 1, 2, 3, 4), *[known(n) for n in (1, 2, 3, 4)])
        assert run.outcome == OK and run.wants == []
        assert operations(s) == ["ListParts", "HeadObject", "CompleteMultipartUpload", "HeadObject"]
        check_object(s, **MANY)


@test
def an_upload_without_parts_goes_on_under_its_id():
    with S3Server() as s:
        run = resume(s, cut_upload(s))
        assert run.outcome == OK and run.wants == [1, 2, 3, 4]
        assert not s.seen("CreateMultipartUpload") and not s.uploads
        check_object(s, **MANY)


@test
def a_part_that_arrived_without_our_knowledge_is_sent_again():
    with S3Server() as s:
        upload_id = cut_upload(s, 1, 3)
        s.put_part(upload_id, 2, b"older bytes of the same number")
        run = resume(s, upload_id, known(1), known(2, "-"))
        assert run.outcome == OK and run.wants == [2, 3, 4]
        check_object(s, **MANY)


@test
def what_the_server_lists_is_believed_over_the_ledger():
    def changed(s, upload_id):
        s.put_part(upload_id, 2, part_data(7, SIZE))

    def shorter(s, upload_id):
        s.put_part(upload_id, 2, part_data(2, SIZE - 1))

    def missing(s, upload_id):
        del s.uploads[upload_id].parts[2]

    for spoil in (changed, shorter, missing):
        with S3Server() as s:
            upload_id = cut_upload(s, 1, 2)
            spoil(s, upload_id)
            run = resume(s, upload_id, known(1), known(2))
            assert run.outcome == STALE and run.wants == [], (spoil, run.lines)
            assert not s.seen("UploadPart") and not s.uploads and not s.objects
            assert "starting over" in run.error


@test
def a_size_alone_that_differs_is_another_part():
    with S3Server() as s:
        s.fault("ListParts", edit=lambda request, reply: setattr(
            reply, "body", reply.body.replace(b"<Size>100000<", b"<Size>99999<")))
        assert resume(s, cut_upload(s, 1), known(1)).outcome == STALE
        assert not s.uploads


@test
def long_lists_are_read_to_their_end():
    for page_size in (1, 2, 3):
        with S3Server() as s:
            s.page_size = page_size
            upload_id = cut_upload(s, 1, 2, 3)
            assert resume(s, upload_id, known(1), known(2), known(3)).outcome == OK
            assert len(s.seen("ListParts")) == -(-3 // page_size)
            check_object(s, **MANY)
    with S3Server() as s:
        s.page_size = 1
        upload_id = cut_upload(s, 1, 2)
        assert resume(s, upload_id, known(1), known(2), known(3)).outcome == STALE


@test
def a_list_that_does_not_go_on_ends():
    with S3Server() as s:
        s.page_size = 1
        s.fault("ListParts", times=None, edit=lambda request, reply: setattr(
            reply, "body", reply.body.replace(b"<NextPartNumberMarker>2<",
                                              b"<NextPartNumberMarker>1<")))
        run = resume(s, cut_upload(s, 1, 2, 3), known(1), known(2), known(3))
        assert run.outcome == AWAY and "does not continue" in run.error, run.lines
        assert len(s.seen("ListParts")) == 2 and len(s.uploads) == 1


@test
def a_complete_whose_answer_was_lost_before_the_crash_is_found_out():
    with S3Server() as s:
        s.put("k", b"x" * (3 * SIZE + LAST), **{PLAN_HEADER: PLAN})
        run = resume(s, "u+gone", *[known(n) for n in (1, 2, 3, 4)])
        assert (run.outcome, run.proof) == (SAME, "head")
        assert operations(s) == ["ListParts", "HeadObject"]


@test
def an_upload_that_is_gone_begins_anew():
    everything = [known(n) for n in (1, 2, 3, 4)]
    for dialect in ("aws", "radosgw"):
        with S3Server() as s:
            s.dialect = dialect
            assert resume(s, "u+gone", known(1)).outcome == STALE
            assert operations(s) == ["ListParts"]
            assert resume(s, "u+gone", *everything).outcome == STALE
            assert operations(s)[1:] == ["ListParts", "HeadObject"]
            s.put("k", b"somebody else's")
            assert resume(s, "u+gone", *everything).outcome == EXISTS
            assert resume(s, "u+gone", *everything, may_replace=True).outcome == STALE
            assert s.objects["k"].body == b"somebody else's"


@test
def where_listing_is_forbidden_the_ledger_will_do():
    for forbid in ({"status": 403, "code": "AccessDenied"},
                   {"status": 501, "code": "NotImplemented"}):
        with S3Server() as s:
            s.fault("ListParts", times=None, **forbid)
            assert resume(s, cut_upload(s, 1, 2), known(1), known(2)).outcome == OK
            check_object(s, **MANY)
        with S3Server() as s:      # and where the ledger is wrong, Complete tells
            s.fault("ListParts", times=None, **forbid)
            assert resume(s, cut_upload(s, 1), known(1), known(2)).outcome == STALE
            assert not s.uploads and not s.objects


@test
def a_list_that_cannot_be_had_now_leaves_all_as_it_is():
    with S3Server() as s:
        s.fault("ListParts", status=503, times=None)
        assert resume(s, cut_upload(s, 1), known(1)).outcome == AWAY
        assert len(s.uploads) == 1 and len(s.seen("ListParts")) == 4
    with S3Server() as s:
        s.fault("ListParts", times=None,
                edit=lambda request, reply: setattr(reply, "body", b"<html>"))
        assert resume(s, cut_upload(s, 1), known(1)).outcome == AWAY
        assert len(s.uploads) == 1


@test
def a_killed_upload_goes_on_without_sending_anything_twice():
    for stop_at in (1, 2, 3, 4):
        with S3Server() as s:
            s.fault("UploadPart", part=stop_at, stall="body")
            process = start(s, "upload", "k", in_flight=1, timeout_msec=20000, **MANY)
            s.wait_for("the part that is cut", lambda: s.seen("UploadPart", part=stop_at)
                       and s.seen("UploadPart", part=stop_at)[0].body_bytes)
            process.kill()
            out, _ = process.communicate()
            # what was flushed: the ledger is the server's log here
            lines = [line.split("\t") for line in out.splitlines()]
            upload_id = next(iter(s.uploads))
            assert not any(line[0] == "done" for line in lines)
            rows = [known(n) for n in range(1, stop_at)] + [known(stop_at, "-")]
            run = resume(s, upload_id, *rows)
            assert run.outcome == OK
            check_object(s, **MANY)
            assert not s.uploads
            assert sent_parts(s) == sorted([1, 2, 3, 4, stop_at])


@test
def the_second_run_may_be_cut_as_well():
    with S3Server() as s:
        upload_id = cut_upload(s, 1)
        run = resume(s, upload_id, known(1), free_after=1, in_flight=1)
        assert not run.all("done") and list(run.etags) == [2]
        assert resume(s, upload_id, known(1), known(2)).outcome == OK
        check_object(s, **MANY)


@test
def rows_out_of_order_are_no_ledger():
    with S3Server() as s:
        process = start(s, "upload", "k", **MANY, id=cut_upload(s, 1, 2),
                        known=[known(2), known(1)])
        _, errors = process.communicate(timeout=60)
        assert process.returncode == 1 and "Invalid argument" in errors
        assert not s.log


sys.exit(main())
