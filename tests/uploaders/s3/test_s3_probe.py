#!/usr/bin/env python3
"""Can the bucket be written? Every permission by name, and nothing is left behind."""
import os
import sys

sys.path.insert(0, os.path.dirname(os.path.realpath(__file__)))
from drive import AWAY, DENIED, NETWORK, OK, S3Server, drive  # noqa: E402
from tap import main, test  # noqa: E402

ALL = ["credentials", "clock", "bucket", "PutObject", "conditional writes", "HeadObject",
       "GetObject", "CreateMultipartUpload", "UploadPart",
       "ListParts", "ListMultipartUploads", "AbortMultipartUpload", "ListObjectsV2", "DeleteObject"]
# operation: (permission, does anything work without it)
PERMISSIONS = {"HeadBucket": ("s3:ListBucket", True), "HeadObject": ("s3:GetObject", True),
               "GetObject": ("s3:GetObject", True),
               "ListParts": ("s3:ListMultipartUploadParts", True),
               "ListMultipartUploads": ("s3:ListBucketMultipartUploads", True),
               "AbortMultipartUpload": ("s3:AbortMultipartUpload", True),
               "ListObjectsV2": ("s3:ListBucket", True),
               "DeleteObject": ("s3:DeleteObject", True), "PutObject": ("s3:PutObject", False),
               "CreateMultipartUpload": ("s3:PutObject", False),
               "UploadPart": ("s3:PutObject", False)}


class Probed:
    def __init__(self, run):
        self.steps = {s[0]: (int(s[1]), s[2] == "1", s[3], s[4]) for s in run.all("step")}
        self.names = [s[0] for s in run.all("step")]
        outcome, self.error = run.one("probed")
        self.outcome = int(outcome)

    def failed(self):
        return {n: (o, optional) for n, (o, optional, _, _) in self.steps.items() if o}


def probe(server, **options):
    return Probed(drive(server, "probe", "p/.probe", **options))


def check_nothing_left(server):
    assert not server.objects and not server.uploads, (server.objects, server.uploads)


@test
def everything_the_agent_does_is_tried_and_removed():
    with S3Server() as s:
        p = probe(s, thorough=True)
        assert p.outcome == OK and p.names == ALL and not p.failed()
        assert "AWS_ACCESS_KEY_ID" in p.steps["credentials"][3] and s.secret_key not in str(p.steps)
        assert "agrees" in p.steps["clock"][3]
        check_nothing_left(s)


@test
def a_probe_that_was_cut_is_none_in_the_way():
    with S3Server() as s:
        s.put("p/.probe", b"left over")
        assert probe(s, thorough=True).outcome == OK
        check_nothing_left(s)


@test
def each_missing_permission_is_reported_by_name():
    for operation, (permission, works) in PERMISSIONS.items():
        with S3Server() as s:
            s.deny = {operation}
            p = probe(s, thorough=True)
            name = "bucket" if operation == "HeadBucket" else operation
            outcome, optional, told, detail = p.steps[name]
            assert (outcome, optional, told) == (DENIED, works,
                                                 permission), (operation, p.steps[name])
            assert permission in detail, detail
            assert ("without it" in detail) == works, detail
            assert (p.outcome == (OK if works else DENIED)
                    and (permission in p.error) == (not works)), p.error
            others = {n for n in p.failed() if n != name}
            assert not others, (operation, others)
            if operation == "DeleteObject":
                s.objects.clear()
            if operation == "AbortMultipartUpload":
                s.uploads.clear()
            check_nothing_left(s)


@test
def what_the_first_step_could_not_make_is_not_asked_for():
    with S3Server() as s:
        s.deny = {"PutObject", "CreateMultipartUpload"}
        p = probe(s, thorough=True)
        assert p.outcome == DENIED
        assert not {"HeadObject", "GetObject", "DeleteObject", "UploadPart",
                    "ListParts"} & set(p.names), p.names


@test
def stores_without_conditional_writes_are_reported():
    for conditions, words in (("aws", ""), ("radosgw", ""), ("none", "has none"),
                              ("ignored", "is ignored")):
        with S3Server() as s:
            s.conditions = conditions
            p = probe(s, thorough=True)
            outcome, optional, _, detail = p.steps["conditional writes"]
            assert p.outcome == OK and words in detail and bool(words) == bool(
                outcome) == optional, p.steps
            check_nothing_left(s)


@test
def no_bucket_and_nobody_there_end_it():
    with S3Server() as s:
        p = probe(s, thorough=True, bucket="no-such-bucket")
        assert p.outcome == DENIED and "no-such-bucket" in p.error and p.names == [
            "credentials", "clock", "bucket"], p.names
        endpoint = s.endpoint
    p = probe(s, thorough=True, endpoint=endpoint)
    assert p.outcome == NETWORK and p.names == ["credentials", "bucket"]


@test
def what_was_made_is_removed_when_the_store_fails_in_between():
    for operation in ("GetObject", "UploadPart", "ListObjectsV2"):
        with S3Server() as s:
            s.fault(operation, status=503, code="SlowDown", times=None)
            p = probe(s, thorough=True)
            assert p.outcome == AWAY
            check_nothing_left(s)
    with S3Server() as s:
        s.fault("PutObject", drop="answer", done=True, times=None)
        assert probe(s, thorough=True).outcome == NETWORK
        check_nothing_left(s)


@test
def a_wrong_clock_is_reported_and_allowed_for():
    for offset, word in ((7200, "2h ahead"), (-7200, "2h behind")):
        with S3Server() as s:
            s.clock_offset = offset
            p = probe(s, thorough=True)
            assert p.outcome == OK, p.steps
            detail = p.steps["clock"][3]
            assert word in detail or ("1h 59m" in detail and word.split()[1] in detail), detail


@test
def wrong_keys_and_no_keys_are_reported():
    with S3Server() as s:
        p = probe(s, thorough=True, environment={"AWS_ACCESS_KEY_ID": s.access_key,
                                                 "AWS_SECRET_ACCESS_KEY": "wrong"})
        assert (p.outcome == DENIED and "SignatureDoesNotMatch" in p.error
                and "wrong" not in p.error.split()), p.error
        p = probe(s, thorough=True, environment={})
        assert p.outcome == DENIED and p.names == ["credentials"] and p.error
        assert probe(s, environment={}).outcome == DENIED


@test
def one_cause_for_all_is_reported_once():
    with S3Server() as s:
        p = probe(s, thorough=True, environment={"AWS_ACCESS_KEY_ID": s.access_key,
                                                 "AWS_SECRET_ACCESS_KEY": "wrong"})
        assert (p.names == ["credentials", "clock", "bucket"] and "SignatureDoesNotMatch"
                in p.steps["bucket"][3] and p.steps["bucket"][1:3] == (False, "")), p.steps
    with S3Server() as s:
        s.fault("PutObject", status=403, code="RequestTimeTooSkewed", times=None)
        p = probe(s, thorough=True)
        assert p.outcome == DENIED and p.names[-1] == "PutObject" and "clock" in p.error, p.steps
    with S3Server() as s:      # and what was made is taken away all the same
        s.fault("GetObject", status=403, code="InvalidAccessKeyId", times=None)
        p = probe(s, thorough=True)
        assert p.outcome == DENIED and p.names[-2:] == ["GetObject", "DeleteObject"], p.names
        check_nothing_left(s)


@test
def the_quick_question_writes_nothing():
    with S3Server() as s:
        p = probe(s)
        assert p.outcome == OK and [r.operation for r in s.log] == ["HeadBucket"]


@test
def whoever_may_only_write_passes_the_quick_question():
    with S3Server() as s:
        s.deny = {"HeadBucket", "GetObject", "HeadObject"}
        assert probe(s).outcome == OK
        s.deny = {"HeadBucket"}
        assert probe(s).outcome == OK
        assert probe(s, environment={"AWS_ACCESS_KEY_ID": s.access_key,
                                     "AWS_SECRET_ACCESS_KEY": "wrong"}).outcome == DENIED
        assert probe(s, bucket="no-such-bucket").outcome == DENIED
        assert not s.seen("PutObject")


@test
def the_quick_question_reports_who_is_away():
    with S3Server() as s:
        s.fault("HeadBucket", status=503, times=None)
        assert probe(s).outcome == AWAY


sys.exit(main())
