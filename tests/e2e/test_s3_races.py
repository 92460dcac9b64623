#!/usr/bin/env python3
"""What real servers will not do on request: AWS' own rules, lost answers, other writers, other
people's uploads. Against the programmable server, judged by what it holds and by its log."""
import contextlib
import glob
import hashlib
import json
import os
import random
import shutil
import sqlite3
import sys

sys.dont_write_bytecode = True  # the source tree may be read-only, and is packed as it is
sys.path.insert(0, os.path.join(os.path.dirname(os.path.realpath(__file__)), "..", "harness"))
# pylint: disable=wrong-import-position
from agent import INSTANCE, Agent, cleanup, wait_for
from s3_server import S3Server
from tap import main, test

MIB = 1 << 20
OURS = f"neuron/x/{INSTANCE}/neuron-core-dump-20260101T000000-aabbccddeeff.tar.zst"
PLAN = "x-amz-meta-neuron-collectd-plan"


def agent(s3, size=0, **more):
    a = Agent()
    a.use_directories()
    a.config["limits"] = {"compression_threads": 2}  # a busy machine does not make it rest
    a.config["destinations"] = [a.s3("s3", s3, "bucket", part_size="5MiB", connections=2, **more)]
    if size:
        a.incompressible(size, "1")
    return a


def judge(s3, n=1):
    """Each object is what its manifest says, and there is nothing else."""
    manifests = {k: json.loads(o.body) for k, o in s3.objects.items()
                 if k.endswith(".manifest.json")}
    assert len(manifests) == n and len(s3.objects) == 2 * n, list(s3.objects)
    for key, manifest in manifests.items():
        body = s3.objects[key.replace(".manifest.json", ".tar.zst")].body
        assert len(body) == manifest["bundle"]["bytes"], key
        offset = 0
        for part in manifest["bundle"]["parts"]:
            assert hashlib.sha256(body[offset:offset + part["bytes"]]).hexdigest() == part[
                "sha256"], (key, offset)
            offset += part["bytes"]
    return manifests


def destination(a):
    return a.status()["destinations"][0]


def arrived(s3, n, where=""):
    return sum(r.status == 200 and where in r.key for r in s3.seen("UploadPart")) >= n


def cut_after_three_parts(a, s3, where=""):
    s3.fault("UploadPart", stall="answer", skip=3, times=None, when=lambda r: where in r.key)
    a.start(wait=False)
    s3.wait_for("three parts have arrived", lambda: arrived(s3, 3, where))
    wait_for("the ledger knows them", lambda: int(a.sql(
        "select count(*) from upload_parts join uploads using (upload) where etag is not null and "
        f"instr(CAST(key AS TEXT), '{where}')")) >= 3)
    a.kill()
    s3.clear_faults()
    s3.release()


@test
def a_resumed_upload_is_completed_with_the_checksums_of_all_its_parts():
    with S3Server() as s3:
        a = agent(s3, 40 * MIB)
        cut_after_three_parts(a, s3)
        before = len(s3.log)
        a.start()
        a.wait_known(1)
        a.wait_all()
        after = s3.log[before:]
        assert not [r for r in after if r.operation in (
            "CreateMultipartUpload", "AbortMultipartUpload")], [r.operation for r in after]
        assert [r.status for r in after if r.operation == "CompleteMultipartUpload"] == [200]
        assert not {1, 2, 3} & {r.part for r in after if r.operation == "UploadPart"}
        judge(s3)
        assert not s3.uploads
        a.stop()


@test
def two_destinations_in_one_bucket_leave_each_others_uploads_alone():
    with S3Server() as s3:
        a = agent(s3, 40 * MIB)
        a.config["destinations"].append(a.s3("second", s3, "bucket", part_size="5MiB",
                                             connections=2) | {"prefix": "neuron/second/%d-%c"})
        cut_after_three_parts(a, s3, "second")
        before = len(s3.log)
        a.start()
        a.wait_known(1)
        a.wait_all()
        again = {r.part for r in s3.log[before:] if r.operation == "UploadPart"
                 and "second" in r.key}
        assert not {1, 2, 3} & again, again
        judge(s3, 2)
        assert not s3.uploads
        a.stop()


@test
def a_lost_answer_to_create_leaves_no_upload_behind():
    with S3Server() as s3:
        a = agent(s3, 20 * MIB)
        s3.fault("CreateMultipartUpload", drop="answer", done=True)
        a.start()
        a.wait_known(1)
        a.wait_all()
        wait_for("the upload whose answer was lost is aborted", lambda: not s3.uploads)
        judge(s3)
        a.stop()


@test
def a_create_that_the_store_executes_late_leaves_no_upload_behind():
    with S3Server() as s3:
        a = agent(s3, 20 * MIB)
        a.config["retry"] |= {"initial": "50ms", "maximum": "1s"}
        s3.fault("CreateMultipartUpload", drop="answer", times=4)  # one attempt
        a.start()
        a.wait_known(1)
        a.wait_all()
        judge(s3)
        key = next(k for k in s3.objects if k.endswith(".tar.zst"))
        seen = len(s3.seen("ListMultipartUploads"))
        s3.wait_for("its uploads have been listed after it was delivered",
                    lambda: len(s3.seen("ListMultipartUploads")) > seen)
        s3.create(key)
        wait_for("the late upload is aborted", lambda: not s3.uploads)
        judge(s3)
        a.stop()


@test
def an_agent_whose_bundle_another_delivered_aborts_its_own_upload():
    with S3Server() as s3:
        a = agent(s3, 40 * MIB)
        cut_after_three_parts(a, s3)
        ours = next(iter(s3.uploads))
        state = a.path("state")
        os.rename(state, state + ".kept")
        a.start()  # with the same name, and no memory of the upload
        a.wait_known(1)
        a.wait_all()
        a.stop()
        judge(s3)
        key = next(k for k in s3.objects if k.endswith(".tar.zst"))
        s3.uploads.clear()
        shutil.rmtree(state)
        os.rename(state + ".kept", state)
        with contextlib.closing(sqlite3.connect(a.path("state", "state.db"))) as db, db:
            ours = s3.create(key)
            db.execute("update uploads set key = ?, upload_id = ?", (key.encode(), ours.encode()))
        a.start()
        a.wait_all()
        wait_for("its own upload is aborted", lambda: not s3.uploads)
        judge(s3)
        a.stop()


@test
def an_abort_that_fails_is_tried_again_as_retry_reports():
    with S3Server() as s3:
        a = agent(s3)
        a.config["retry"] |= {"initial": "50ms", "maximum": "1s"}
        a.start()
        a.stop()
        upload = s3.create(OURS)
        with contextlib.closing(sqlite3.connect(a.path("state", "state.db"))) as db, db:
            db.execute("insert into aborts (destination, key, upload_id, since_usec) values ('s3', "
                       "?, ?, 1)", (OURS.encode(), upload.encode()))
        s3.deny = {"AbortMultipartUpload"}
        a.start()
        s3.wait_for("it was refused", lambda: s3.seen("AbortMultipartUpload"))
        s3.deny = set()
        wait_for("the upload is aborted", lambda: not s3.uploads)
        a.stop()


@test
def a_cancel_leaves_no_object_without_its_manifest():
    for operation, size in (("PutObject", 1000), ("CompleteMultipartUpload", 20 * MIB)):
        with S3Server() as s3:
            a = agent(s3, size)
            s3.fault(operation, stall="answer", done=True, when=lambda r: "manifest" not in r.key)
            a.start()
            a.wait_known(1)
            s3.wait_for("the object is there", lambda s3=s3: s3.objects)
            assert a.cli("cancel", a.bundles()[0]["id"]).returncode == 0
            s3.release()
            s3.wait_for("its manifest is there", lambda s3=s3: len(s3.objects) == 2)
            judge(s3)
            wait_for("it is over", lambda a=a: a.counts()["shipping"] == 0)
            assert not s3.uploads
            a.stop()


@test
def aborts_that_cannot_be_done_hold_up_no_others():
    with S3Server() as s3:
        a = agent(s3)
        a.start()
        a.stop()
        upload = s3.create(OURS)
        with contextlib.closing(sqlite3.connect(a.path("state", "state.db"))) as db, db:
            db.execute("insert into aborts (destination, key, upload_id, since_usec) values ('s3', "
                       "?, NULL, 1)", (b"neuron/x/i/a.manifest.json",))
            db.execute("insert into aborts (destination, key, upload_id, since_usec) values ('s3', "
                       "?, ?, 1)", (OURS.encode(), upload.encode()))
        s3.deny = {"ListMultipartUploads"}
        a.start()
        wait_for("the one whose id is known is aborted", lambda: not s3.uploads)
        assert a.curl("/metrics").stdout.count("neuron_collectd_uploads_to_abort 1\n") == 1
        a.stop()


@test
def strangers_uploads_are_let_be_whatever_the_prefix():
    with S3Server() as s3:
        a = agent(s3)
        a.config["destinations"][0]["prefix"] = "%d-%c"
        strangers = [s3.create(k) for k in ("backups/postgres.tar.zst",
                                            "x/y/db-20260101T000000.tar.zst",
                                            f"a/{INSTANCE}/notes.tar.zst")]
        ours = s3.create(
            f"20260101-000000-00/{INSTANCE}/neuron-core-dump-20260101T000000-aabbccddeeff.tar.zst")
        dead = s3.create("20260101-000000-00/i-0ffffffff/"
                         "directory-20260101T000000-aabbccddeeff-s2.manifest.json")
        for upload in s3.uploads.values():
            upload.initiated -= 2 * 86400
        a.start()
        wait_for("ours and a dead node's are aborted", lambda: not {ours, dead} & set(s3.uploads))
        assert set(strangers) == set(s3.uploads)
        a.stop()


@test
def another_writers_delivered_bundle_is_never_written_over():
    with S3Server() as s3:
        a = agent(s3, 20 * MIB)
        a.config["retry"] |= {"quarantine_after": 2}
        s3.fault("UploadPart", delay=0.3, times=None)
        a.start(wait=False)
        s3.wait_for("parts are on their way", lambda: len(s3.seen("UploadPart")) >= 2)
        key = s3.seen("UploadPart")[0].key
        theirs = {PLAN: "0" * 64}
        s3.put(key, b"the other node's bundle", **theirs)
        s3.put(key.replace(".tar.zst", ".manifest.json"),
               b'{"schema":"neuron-collectd/manifest/1","bundle":{"plan":"' + b"0" * 64 + b'"}}',
               **theirs)
        wait_for("it is given up, with a reason",
                 lambda: a.is_healthy() and a.counts()["quarantined"] == 1, 60)
        assert s3.objects[key].body == b"the other node's bundle"
        assert "retry" in a.cli("explain", a.bundles()[0]["id"]).stdout
        assert a.status()["destinations"][0]["state"] == "ok"
        a.stop()


@test
def a_manifest_whose_object_is_gone_is_written_anew_with_its_object():
    with S3Server() as s3:
        a = agent(s3, 1000)
        rng = random.Random(1)
        with open(os.path.join(a.path("jobs", "job-1"), "text"), "w", encoding="ascii") as f:
            f.write(" ".join(rng.choice(("alpha", "beta", "gamma", f"zeta{rng.randrange(1000)}"))
                             for _ in range(500_000)))
        a.config["limits"] = {"compression_level": 3, "compression_threads": 2}
        a.start()
        a.wait_known(1)
        a.wait_all()
        a.stop()
        del s3.buckets["bucket"][next(k for k in s3.objects if k.endswith(".tar.zst"))]
        for path in glob.glob(a.path("state", "state.db*")):
            os.unlink(path)
        a.config["limits"] = {"compression_level": 5, "compression_threads": 2}
        a.start()
        a.wait_known(1)
        a.wait_all()
        judge(s3)
        a.stop()


@test
def a_page_of_somebody_on_the_way_is_not_the_stores_answer():
    def page(_request, reply):
        reply.status = 404
        reply.body = b"<html>default backend - 404</html>"
        reply.headers = {"content-type": "text/html"}

    with S3Server() as s3:
        a = agent(s3, 20 * MIB)
        s3.fault("GetObject", edit=page, times=2)
        s3.fault("UploadPart", part=2, edit=page)
        a.start()
        a.wait_known(1)
        a.wait_all()
        tries = {}
        for r in s3.seen("UploadPart"):
            tries[r.part] = tries.get(r.part, 0) + 1
        assert max(n for part, n in tries.items() if part != 2) == 1, tries
        assert s3.counts()["CreateMultipartUpload"] == 1
        judge(s3)
        a.stop()


@test
def an_ambiguous_error_counts_for_the_bundle_and_not_for_the_destination():
    with S3Server() as s3:
        s3.deny = {"GetObject", "HeadObject", "HeadBucket", "ListObjectsV2"}
        a = agent(s3, 1000)
        a.config["retry"] |= {"quarantine_after": 2}
        s3.fault("PutObject", drop="answer", done=True)
        a.start()
        wait_for("it is given up, with a reason", lambda: a.counts()["quarantined"] == 1, 30)
        a.incompressible(1000, "2")
        a.wait_delivered(1)
        assert a.status()["destinations"][0]["state"] == "ok"
        assert "s3:GetObject" in a.cli("explain", next(b["id"] for b in a.bundles()
                                                       if b["state"] == "quarantined")).stdout
        a.stop()


@test
def a_member_that_changes_while_its_parts_are_on_their_way_is_packed_anew():
    with S3Server() as s3:
        a = agent(s3, 60 * MIB)
        s3.fault("UploadPart", part=1, stall="answer", done=True)
        s3.fault("UploadPart", delay=0.5, times=None)
        a.start(wait=False)
        s3.wait_for("part 3 is on its way", lambda: s3.seen("UploadPart", part=3))
        big = max(glob.glob(a.path("jobs", "job-1", "**"), recursive=True),
                  key=lambda p: os.path.getsize(p) if os.path.isfile(p) else -1)
        with open(big, "r+b") as f:
            f.seek(55 * MIB)
            f.write(os.urandom(100))
        wait_for("it begins anew", lambda: "restarting its upload" in a.log
                 or "waiting for it to settle" in a.log, 30)
        s3.clear_faults()
        s3.release()
        wait_for("the daemon answers", a.is_healthy)
        a.wait_delivered(1)
        wait_for("no upload is left", lambda: not s3.uploads)
        assert "state directory" not in a.log, ("an answer of the old upload was taken for "
                                                "one of the new")
        judge(s3)
        a.stop()


def cancelled(a):
    return a.counts()["cancelled"] == 1


@test
def a_cancel_between_two_tries_leaves_no_object_without_its_manifest():
    for size in (1000, 20 * MIB):
        with S3Server() as s3:
            a = agent(s3, size)
            a.config["retry"] = {"initial": "3s", "maximum": "10m"}
            s3.fault("PutObject", status=403, code="AccessDenied", times=None,
                     when=lambda r: r.key.endswith(".manifest.json"))
            a.start()
            a.wait_known(1)
            wait_for("a try has ended behind the object", lambda: a.bundles()[0]["state"] == "ready"
                     and destination(a)["state"] == "paused")
            assert len(s3.objects) == 1
            s3.clear_faults()
            assert a.cli("cancel", a.bundles()[0]["id"]).returncode == 0
            wait_for("it is completed", lambda: len(s3.objects) == 2)
            wait_for("it is over", lambda: a.counts()["delivered"] == 1)
            judge(s3)
            a.stop()


@test
def a_cancel_whose_object_cannot_be_completed_says_so():
    with S3Server() as s3:
        a = agent(s3, 1000)
        s3.fault("PutObject", status=403, code="AccessDenied", times=None,
                 when=lambda r: r.key.endswith(".manifest.json"))
        a.start()
        a.wait_known(1)
        s3.wait_for("it was tried", lambda: len(s3.seen("PutObject")) >= 2)
        s3.fault("*", times=None, drop="head")
        s3.faults.reverse()
        wait_for("the store is away", lambda: destination(a)["state"] == "failing")
        a.cli("cancel", a.bundles()[0]["id"])
        wait_for("it is cancelled", lambda: cancelled(a))
        assert "without a manifest" in a.bundles("?state=cancelled")[0]["reason"]
        a.stop()


if __name__ == "__main__":
    sys.exit(main(cleanup))
