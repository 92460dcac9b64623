#!/usr/bin/env python3
"""Uploads that nobody goes on with are found and aborted; all others are let be."""
import os
import re
import sys

sys.path.insert(0, os.path.dirname(os.path.realpath(__file__)))
from drive import AWAY, DENIED, OK, S3Server, drive  # noqa: E402
from tap import main, test  # noqa: E402


def sweep(server, prefix, **options):
    run = drive(server, "sweep", prefix, **options)
    outcome, n_aborted, error = run.one("swept")
    assert len(run.all("abort")) == int(n_aborted)
    return int(outcome), sorted(u for _, u, _ in run.all("abort")), error


@test
def all_uploads_below_a_prefix_are_aborted():
    with S3Server() as s:
        ids = sorted(s.create(k) for k in ("p/a", "p/a", "p/b c+d", "p/é"))
        kept = [s.create("q/a"), s.create("p")]
        s.put("p/a", b"an object")
        assert sweep(s, "p/") == (OK, ids, "")
        assert sorted(s.uploads) == sorted(kept) and "p/a" in s.objects


@test
def nothing_to_do_is_done():
    with S3Server() as s:
        assert sweep(s, "p/") == (OK, [], "")
        assert [r.operation for r in s.log] == ["ListMultipartUploads"]


@test
def an_exact_key_is_no_prefix():
    with S3Server() as s:
        ids = sorted([s.create("p/a"), s.create("p/a")])
        kept = s.create("p/a.manifest")
        assert sweep(s, "p/a", exact=True) == (OK, ids, "")
        assert list(s.uploads) == [kept]


@test
def a_store_that_ignores_the_prefix_costs_nobody_an_upload():
    with S3Server() as s:
        mine, kept = s.create("p/a"), s.create("q/a")
        s.fault("ListMultipartUploads", edit=lambda request,
                reply: setattr(reply, "body", reply.body.replace(
                    b"</ListM", f"<Upload><Key>q/a</Key><UploadId>{kept}</"
                    "UploadId><Initiated>2026-01-01T00:00:00.000Z</"
                    "Initiated></Upload></ListM".encode())))
        assert sweep(s, "p/") == (OK, [mine], "")
        assert list(s.uploads) == [kept]


@test
def one_upload_is_aborted_without_looking_for_it():
    with S3Server() as s:
        one, other = s.create("k"), s.create("k")
        assert sweep(s, "k", exact=True, id=one) == (OK, [one], "")
        assert [r.operation
                for r in s.log] == ["AbortMultipartUpload"] and list(s.uploads) == [other]
        assert sweep(s, "k", exact=True, id=one) == (OK, [], "")


@test
def an_upload_that_somebody_goes_on_with_is_let_be():
    with S3Server() as s:
        gone, kept = s.create("k"), s.create("k")
        assert sweep(s, "k", exact=True, known_id=kept) == (OK, [gone], "")
        assert list(s.uploads) == [kept]


@test
def the_age_is_that_of_the_newest_part():
    with S3Server() as s:
        young = s.create("p/young", age=10)
        old = s.create("p/old", age=1000)
        busy = s.create("p/busy", age=1000)
        idle = s.create("p/idle", age=1000)
        s.put_part(busy, 1, b"a", age=900)
        s.put_part(busy, 2, b"b", age=10)
        s.put_part(idle, 1, b"a", age=900)
        s.put_part(idle, 2, b"b", age=500)
        for page_size in (1000, 1):
            s.page_size = page_size
            assert sweep(s, "p/", min_age=600) == (OK, [old] if page_size == 1000 else [], "")
        assert sweep(s, "p/", min_age=400) == (OK, [idle], "")
        assert sorted(s.uploads) == sorted([young, busy])
        assert not [r for r in s.seen("ListParts") if r.key == "p/young"]      # too young anyhow


def spoil_list(server, operation, old, new):
    def edit(_request, reply):
        assert old in reply.body, reply.body
        reply.body = re.sub(old + b"[^<]*", new, reply.body)

    server.fault(operation, times=None, edit=edit)


@test
def what_does_not_report_its_time_is_new():
    for told in (b"<Initiated>", b"<Initiated>yesterday"):
        with S3Server() as s:
            kept = s.create("p/a", age=1000)
            spoil_list(s, "ListMultipartUploads", b"<Initiated>", told)
            assert sweep(s, "p/", min_age=60) == (OK, [], "")
            assert list(s.uploads) == [kept] and not s.seen("ListParts")
            assert sweep(s, "p/") == (OK, [kept], "")      # of any age
    with S3Server() as s:
        kept = s.create("p/a", age=1000)
        s.put_part(kept, 1, b"a", age=900)
        spoil_list(s, "ListParts", b"<LastModified>", b"<LastModified>")
        assert sweep(s, "p/", min_age=60) == (OK, [], "")
        assert list(s.uploads) == [kept]


@test
def an_odd_upload_hides_no_other():
    odd = (b"<Key>" + b"p" * 1025 + b"</Key><UploadId>u1</UploadId>", b"<Key>p/a</Key><UploadId>"
           + b"u" * 1025 + b"</UploadId>", b"<Key>p/\x01b</Key><UploadId>u3</UploadId>",
           b"<Key>p/&#x1f;</Key><UploadId>u4</UploadId>", b"<Key/><UploadId>u5</UploadId>",
           b"<Key>" + b"p" * 20000 + b"</Key><UploadId>u6</UploadId>", b"<UploadId>u7</UploadId>",
           b"<Key>p/a</Key>")
    for item in odd:
        with S3Server() as s:
            ids = sorted([s.create("p/a"), s.create("p/b")])
            s.fault("ListMultipartUploads", edit=lambda request, reply,
                    item=item: setattr(reply, "body", reply.body.replace(
                b"<Upload>", b"<Upload>" + item
                + b"<Initiated>2026-01-01T00:00:00.000Z</Initiated></Upload><Upload>", 1)))
            assert sweep(s, "p") == (OK, ids, ""), item[:40]
            assert len(s.seen("AbortMultipartUpload")) == 2


@test
def an_odd_key_as_a_marker_does_not_end_the_list():
    with S3Server() as s:
        s.page_size = 1
        ids = sorted([s.create("p/a"), s.create("p/b")])
        s.fault("ListMultipartUploads", edit=lambda request,
                reply: setattr(reply, "body", reply.body.replace(
            b"<NextKeyMarker>p/a<", b"<NextKeyMarker>p/a" + b"\x01" * 1020 + b"<")))
        assert sweep(s, "p/") == (OK, ids, "")


@test
def the_servers_clock_counts():
    with S3Server() as s:
        s.clock_offset = 600
        kept = s.create("p/a", age=10)
        assert sweep(s, "p/", min_age=300) == (OK, [], "")
        assert list(s.uploads) == [kept]


@test
def long_lists_are_read_to_their_end():
    with S3Server() as s:
        s.page_size = 2
        ids = sorted(s.create(f"p/{n % 3}") for n in range(7))
        kept = s.create("p/1")
        assert sweep(s, "p/", known_id=kept) == (OK, ids, "")
        assert len(s.seen("ListMultipartUploads")) >= 4 and list(s.uploads) == [kept]


@test
def a_list_that_does_not_go_on_ends():
    with S3Server() as s:
        s.page_size = 1
        s.create("p/a")
        s.create("p/b")
        s.deny = set()
        s.fault("ListMultipartUploads", times=None, edit=lambda request, reply: setattr(
            reply, "body", (b"<ListMultipartUploadsResult><IsTruncated>true</IsTruncated>"
                            b"<NextKeyMarker>p/a</NextKeyMarker></ListMultipartUploadsResult>")))
        outcome, aborted, error = sweep(s, "p/")
        assert outcome == AWAY and not aborted and "does not continue" in error
        assert len(s.seen("ListMultipartUploads")) == 2


@test
def an_upload_that_ends_meanwhile_is_gone_as_well():
    with S3Server() as s:
        s.create("p/a", age=100)
        s.create("p/b", age=100)
        s.fault("AbortMultipartUpload", key="p/a", status=404, code="NoSuchUpload")
        s.fault("ListParts", key="p/b", status=404, code="NoSuchUpload")
        outcome, aborted, _ = sweep(s, "p/", min_age=10)
        assert (outcome, aborted) == (OK, [])


@test
def one_that_cannot_be_aborted_does_not_keep_the_others():
    with S3Server() as s:
        bad, good = s.create("p/a"), s.create("p/b")
        s.fault("AbortMultipartUpload", key="p/a", status=400, code="InvalidRequest", times=None)
        outcome, aborted, error = sweep(s, "p/")
        assert outcome > 0 and aborted == [good] and "InvalidRequest" in error
        assert list(s.uploads) == [bad]


@test
def what_is_forbidden_or_away_ends_it_with_a_sentence():
    for operation in ("ListMultipartUploads", "ListParts", "AbortMultipartUpload"):
        for fault, outcome in (({"status": 403, "code": "AccessDenied"}, DENIED),
                               ({"status": 503, "code": "SlowDown"}, AWAY)):
            with S3Server() as s:
                s.create("p/a", age=100)
                s.create("p/b", age=100)
                s.fault(operation, times=None, **fault)
                told, aborted, error = sweep(s, "p/", min_age=10)
                assert (told, aborted) == (outcome, []) and error, (operation, fault, error)
                assert len(s.uploads) == 2
                assert len(s.seen(operation)) == (1 if outcome == DENIED else 3)


@test
def a_list_that_cannot_be_read_is_no_empty_list():
    with S3Server() as s:
        s.create("p/a")
        s.fault("ListMultipartUploads", times=None, edit=lambda request,
                reply: setattr(reply, "body", b"<html/>"))
        outcome, _, error = sweep(s, "p/")
        assert outcome == AWAY and "not S3's" in error, error


sys.exit(main())
