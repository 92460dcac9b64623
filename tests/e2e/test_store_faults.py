#!/usr/bin/env python3
"""The store, every fault at every request, with kill -9 at that moment and without: nothing is
lost, doubled, left without its manifest or given up, and no upload is left. Judged by what the
server holds, and by tar and zstd.

    test_store_faults.py                         a sample by NC_SEED
    test_store_faults.py --full [--jobs N]       everything: minutes times ten
    test_store_faults.py FAULT/REQUEST[/kill]    one case; parts of names will do

A run goes through all requests: an upload of ours that nobody knows is aborted; a small and a large
bundle and a dump with its records are sent; the upload is cut by kill -9 in the middle and resumed;
then the state is lost, and what is there has to be recognised.
"""
import concurrent.futures
import itertools
import os
import random
import re
import shutil
import subprocess
import sys
import time
import traceback

sys.dont_write_bytecode = True  # the source tree may be read-only, and is packed as it is
sys.path.insert(0, os.path.join(os.path.dirname(os.path.realpath(__file__)), "..", "harness"))
# pylint: disable=wrong-import-position
from agent import INSTANCE, Agent, cleanup, wait_for
from s3_server import S3Server
from s3tools import judge_server
from tap import figures, main, notes, test

MIB = 1 << 20
SAMPLE = 12
PAGE = b"<html><title>Sign in</title></html>"
MANIFEST, OBJECT, RECORD = ".manifest.json", ".tar.zst", ".incidents/"


# --- requests: name → (operation, whether it is the one)

REQUESTS = {
    "HeadBucket": ("HeadBucket", lambda r: True),
    "HeadObject-manifest": ("HeadObject", lambda r: r.key.endswith(MANIFEST)),
    "HeadObject-object": ("HeadObject", lambda r: r.key.endswith(OBJECT)),
    "GetObject-manifest": ("GetObject", lambda r: r.key.endswith(MANIFEST)),
    "GetObject-record": ("GetObject", lambda r: RECORD in r.key),
    "PutObject-object": ("PutObject", lambda r: r.key.endswith(OBJECT)),
    "PutObject-manifest": ("PutObject", lambda r: r.key.endswith(MANIFEST)),
    "PutObject-record": ("PutObject", lambda r: RECORD in r.key),
    "CreateMultipartUpload": ("CreateMultipartUpload", lambda r: True),
    "UploadPart": ("UploadPart", lambda r: True),
    "ListParts": ("ListParts", lambda r: True),
    "CompleteMultipartUpload": ("CompleteMultipartUpload", lambda r: True),
    "AbortMultipartUpload": ("AbortMultipartUpload", lambda r: True),
    "ListObjects": ("ListObjectsV2", lambda r: True),
    "ListMultipartUploads": ("ListMultipartUploads", lambda r: True),
    "DeleteObject": ("DeleteObject", lambda r: True),
}


# of which there are several in each run
OFTEN = ("HeadBucket", "HeadObject-manifest", "HeadObject-object", "PutObject-object",
         "PutObject-manifest", "PutObject-record", "GetObject-record", "UploadPart", "ListObjects",
         "ListMultipartUploads")


# --- faults: name → what the server does once or twice

def other_etag(_request, reply):
    reply.headers["ETag"] = '"00000000000000000000000000000000"'
    reply.body = re.sub(rb"&quot;[0-9a-f]{32}", b"&quot;" + b"0" * 32, reply.body)


def without_etag(_request, reply):
    reply.headers["ETag"] = None
    reply.body = re.sub(rb"<ETag>.*?</ETag>", b"", reply.body)


def other_object(request, reply):
    """Of HEAD and GET: somebody else's; of lists: none of what is there, and what was not asked
    for."""
    if request.operation in ("HeadObject", "GetObject"):
        reply.status, reply.headers, reply.body = 200, {"ETag": '"0123"'}, b"nobody's object"
    reply.body = re.sub(rb"<Key>", b"<Key>elsewhere/", reply.body)
    reply.body = re.sub(rb"<Size>\d+</Size>", b"<Size>7</Size>", reply.body)


def nothing_there(request, reply):
    """A list that is empty, an object that is not there: a store that is behind."""
    if request.operation in ("HeadObject", "GetObject"):
        reply.status, reply.headers, reply.body = 404, {}, (
            b"<Error><Code>NoSuchKey</Code><Message>stale</Message></Error>")
    reply.body = re.sub(rb"<(Contents|Part|Upload)>.*</\1>", b"", reply.body, flags=re.S)


def goes_on_for_ever(_request, reply):
    reply.body = reply.body.replace(b"<IsTruncated>false", b"<IsTruncated>true")


def cut_xml(_request, reply):
    reply.body = reply.body[:len(reply.body) // 2]


def error(status, code, **more):
    return {"status": status, "code": code, **more}


FAULTS = {
    "500": error(500, "InternalError"),
    "500-done": error(500, "InternalError", done=True),
    "503": error(503, "SlowDown", headers={"Retry-After": "1"}),
    "cut-head": {"drop": "head"},
    "cut-body": {"drop": "body"},
    "cut-answer": {"drop": "answer", "done": True},
    "cut-in-head-of-answer": {"cut": "head"},
    "cut-in-body-of-answer": {"cut": 20},
    "reset": {"drop": "reset", "done": True},
    "stalled": {"stall": "answer"},
    "done-twice": {"twice": True},
    "done-late": error(500, "InternalError", late=1.5),
    "done-late-and-cut": {"drop": "answer", "late": 1.5},
    "200-with-error": error(200, "InternalError"),
    "200-with-error-done": error(200, "InternalError", done=True),
    "wrong-etag": {"edit": other_etag},
    "no-etag": {"edit": without_etag},
    "page": {"status": 200, "body": PAGE, "headers": {"x-amz-request-id": None}},
    "page-404": {"status": 404, "body": PAGE, "headers": {"x-amz-request-id": None}},
    "nothing": {"status": 200, "body": b""},
    "412": error(412, "PreconditionFailed"),
    "409": error(409, "OperationAborted"),
    "refused": error(400, "InvalidRequest"),
    "denied": error(403, "AccessDenied"),
    "expired": error(400, "ExpiredToken"),
    "other-object": {"edit": other_object},
    "nothing-there": {"edit": nothing_there},
    "endless": {"edit": goes_on_for_ever},
    "cut-xml": {"edit": cut_xml},
}
CASES = [(fault, request, kill) for fault, request, kill in itertools.product(FAULTS, REQUESTS,
                                                                              (False, True))]


def name_of(case):
    return f"{case[0]}/{case[1]}" + ("/kill" if case[2] else "")


# --- one run

class Run:
    def __init__(self, s3, case, rng):
        self.s3, self.case, self.rng = s3, case, rng
        operation, chosen = REQUESTS[case[1]]
        self.a = a = Agent()
        a.use_directories()
        a.config["sources"].append(a.source("dumps", "neuron-core-dump", "dumps/dt-%d-cid-%c"))
        a.config["destinations"] = [a.s3("s3", s3, "bucket", part_size="5MiB", connections=2,
                                         request_timeout="2s")]
        a.config["agreement"] = {"settle": "200ms", "window": "1s",
                                 "listen": f"ipc://{a.path('run', 'bus')}"}
        a.config["retry"] = {"initial": "20ms", "maximum": "200ms", "quarantine_after": 1}
        self.units = [a.incompressible(20_000, "small"), a.incompressible(12 * MIB, "large"),
                      a.dump(size=65536)]
        at = f"neuron/20260101-000000-0000000000000000/{INSTANCE}"
        s3.create(f"{at}/directory-20260101T000000-aabbccddeeff.tar.zst")
        self.stranger = s3.create("elsewhere/backup")
        self.fault = s3.fault(operation, when=chosen, times=rng.choice((1, 1, 2)),
                              skip=rng.choice((0, 0, 0, 1)) if case[1] in OFTEN else 0,
                              **FAULTS[case[0]])
        self.was_killed = not case[2]

    def start(self):
        self.a.start(wait=False)

    def step(self, what, condition, timeout=60):
        """Waits, and kills the agent once when the fault has happened."""
        def done():
            if not self.was_killed and self.fault.n_hits > 0:
                self.was_killed = True
                time.sleep(self.rng.random() * 0.1)
                self.a.kill()
                self.start()
                return False
            if self.a.process.poll() is not None:
                raise RuntimeError(f"the daemon ended with {self.a.process.returncode}")
            try:
                return condition()
            except (OSError, AssertionError):
                return False      # it is starting
        return wait_for(what, done, timeout)

    def delivered(self, n):
        counts = self.a.counts()
        if counts["quarantined"]:
            raise RuntimeError("it was given up")
        return counts["delivered"] >= n and self.a.curl("/readyz").returncode == 0

    def cut_the_upload(self):
        """kill -9 when a part has arrived and another one is on its way."""
        self.s3.fault("UploadPart", stall="answer", skip=1, times=None)
        self.start()
        self.step("a part is on its way", lambda: len(self.s3.seen("UploadPart")) >= 2)
        wait_for("a part has arrived", lambda: any(u.parts for u in self.s3.uploads.values()))
        if self.a.process.poll() is None:
            self.a.kill()
        self.s3.faults[:] = [f for f in self.s3.faults if f is self.fault]
        self.s3.release()

    def lose_the_state(self):
        self.a.stop()
        for name in os.listdir(self.a.path("state")):
            if name.startswith("state.db"):
                os.unlink(self.a.path("state", name))
        self.units.append(self.a.incompressible(1000, "late"))
        self.start()

    def judge(self):
        assert self.a.counts()["quarantined"] == 0
        self.step("no upload of ours is left", lambda: set(self.s3.uploads) == {self.stranger}, 40)
        bundles = {k: o for k, o in self.s3.objects.items() if RECORD not in k
                   and not re.search(r"/(incident\.json|[^/]*\.see\.json|\.neuron[^/]*)$", k)}
        del self.s3.uploads[self.stranger]
        self.s3.buckets["judged"] = bundles
        judge_server(self.s3, self.units, bucket="judged", directory=self.a.dir)

    def run(self):
        self.cut_the_upload()
        self.start()
        self.step("all is delivered", lambda: self.delivered(3))
        time.sleep(2 * FAULTS[self.case[0]].get("late", 0))
        self.lose_the_state()
        self.step("all is recognised", lambda: self.delivered(4))
        self.judge()
        self.a.stop()
        return self.fault.n_hits


def run_case(case, seed):
    """@return how often the fault was met"""
    with S3Server() as s3:
        run = Run(s3, case, random.Random(f"{seed}/{name_of(case)}"))
        try:
            return run.run()
        except BaseException:
            notes.append(f"{name_of(case)} NC_SEED={seed}: {s3.story()[-3000:]}")
            raise


# --- a sample, or everything

def seed_of_run():
    return int(os.environ.get("NC_SEED", time.time()))


def make_test(case, seed):
    def check():
        figures.append(f"met {run_case(case, seed)} times")
    check.__name__ = f"{case[0]}_at_{case[1]}" + ("_with_a_kill" if case[2] else "")
    check.__module__ = "__main__"
    return test(check)


def run_full(jobs, seed, cases):
    def one(case):
        result = subprocess.run([sys.executable, __file__, "=" + name_of(case)],
                                env=os.environ | {"NC_SEED": str(seed)}, text=True,
                                capture_output=True, check=False)
        return case, result
    random.Random(seed).shuffle(cases)      # what fails early shows where to look
    n_failed = n_met = 0
    begun = time.monotonic()
    with concurrent.futures.ThreadPoolExecutor(jobs) as pool:
        for n, (case, result) in enumerate(pool.map(one, cases), 1):
            n_met += not re.search(r"met 0 times", result.stdout)
            if result.returncode:
                n_failed += 1
                print(f"not ok {name_of(case)}\n{result.stdout}{result.stderr}", flush=True)
            if n % 25 == 0:
                print(f"# {n} of {len(cases)}, {n_failed} failed, {time.monotonic() - begun:.0f} s",
                      flush=True)
    print(f"# NC_SEED={seed}: {len(cases)} cases, {n_met} met their fault, {n_failed} failed, "
          f"{time.monotonic() - begun:.0f} s")
    return 1 if n_failed else 0


def start():
    words, seed = sys.argv[1:], seed_of_run()
    if words[:1] == ["--full"]:
        jobs = int(words[2]) if words[1:2] == ["--jobs"] else 2
        only = words[3:] if words[1:2] == ["--jobs"] else words[1:]
        return run_full(jobs, seed, [c for c in CASES if not only
                                     or any(w in name_of(c) for w in only)])
    print(f"# again with NC_SEED={seed}")
    if words:
        chosen = [c for c in CASES for w in words if (name_of(c) == w[1:] if w[0] == "="
                                                      else w in name_of(c))]
        sys.argv[1:] = []
    else:
        chosen = random.Random(seed).sample(CASES, SAMPLE)
    for case in chosen:
        make_test(case, seed)
    return main(cleanup)


if __name__ == "__main__":
    sys.exit(start())
