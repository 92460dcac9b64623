#!/usr/bin/env python3
"""A store, or what stands before it, that refuses everything is at fault itself: no bundle is given
up, the destination says what it answers, and all is delivered when it takes requests again.

All answers with NC_REFUSALS=all, else a sample by NC_SEED.
"""
import contextlib
import os
import random
import sys
import time

sys.dont_write_bytecode = True  # the source tree may be read-only, and is packed as it is
sys.path.insert(0, os.path.join(os.path.dirname(os.path.realpath(__file__)), "..", "harness"))
# pylint: disable=wrong-import-position
from agent import Agent, cleanup, wait_for
from credential_server import CredentialServer
from s3_server import S3Server
from s3tools import Endpoint, judge_server
from tap import figures, main, notes, test

MIB = 1 << 20
WRITES = ("PutObject", "CreateMultipartUpload", "UploadPart", "CompleteMultipartUpload")


def page(status, title, **headers):
    """What a proxy, a portal or a load balancer says: nothing of it is S3's."""
    body = (f"<html><head><title>{title}</title></head><body><h1>{title}</h1><hr>nginx</body>"
            "</html>").encode()
    return {"status": status, "body": body, "says": (str(status), title),
            "headers": {"x-amz-request-id": None, "Content-Type": "text/html", **headers}}


def bare(status, **headers):
    return {"status": status, "body": b"", "says": (str(status),),
            "headers": {"x-amz-request-id": None, **headers}}


def error(status, code, message="as the test wants it", **headers):
    return {"status": status, "code": code, "message": message, "says": (code,),
            "headers": headers}


LOGIN = "https://login.example.com/?next=s3"
# name → an answer; `says`: what the destination's error must have (of one that is given to HEAD,
# which has no body, the status alone)
ANSWERS = {
    # about a setting
    "not-implemented": error(501, "NotImplemented", "A header you provided implies functionality "
                                                    "that is not implemented"),
    "storage-class": error(400, "InvalidStorageClass"),
    "object-lock": error(400, "InvalidRequest", "Content-MD5 OR x-amz-checksum- HTTP header is "
                         "required for Put Object requests with Object Lock parameters"),
    "argument": error(400, "InvalidArgument", "unsupported header"),
    "sse": error(400, "InvalidEncryptionAlgorithmError"),
    "kms-disabled": error(400, "KMS.DisabledException"),
    "kms-state": error(400, "KMS.KMSInvalidStateException"),
    "tag": error(400, "InvalidTag"),
    "metadata": error(400, "MetadataTooLarge"),
    "key-length": error(400, "KeyTooLongError"),
    "object-name": error(400, "InvalidObjectName"),
    "bucket-state": error(409, "InvalidBucketState"),
    "object-state": error(403, "InvalidObjectState"),
    "policy": error(403, "AccessDenied", "User is not authorized to perform: s3:PutObject with an "
                                         "explicit deny in a resource-based policy"),
    "account": error(403, "AllAccessDisabled"),
    "owner": error(403, "AccountProblem"),
    # S3's, of another kind
    "too-large": error(400, "EntityTooLarge"),
    "too-small": error(400, "EntityTooSmall"),
    "method": error(405, "MethodNotAllowed"),
    "malformed": error(400, "MalformedXML"),
    "part": error(400, "InvalidPart"),
    "range": error(416, "InvalidRange"),
    "precondition": error(412, "PreconditionFailed"),
    "no-upload": error(404, "NoSuchUpload"),
    "no-bucket": error(404, "NoSuchBucket"),
    "unknown-code": error(400, "TeapotExploded"),
    "unknown-code-of-200": error(200, "TeapotExploded"),
    "quota": error(403, "QuotaExceeded"),
    "slow": error(503, "SlowDown"),
    "internal": error(500, "InternalError"),
    "redirect": error(301, "PermanentRedirect"),
    # none of S3's
    "bare-501": bare(501),
    "bare-400": bare(400),
    "bare-401": bare(401),
    "bare-409": bare(409),
    "bare-411": bare(411),
    "bare-412": bare(412),
    "bare-505": bare(505),
    "bare-200": bare(200),
    "bare-204": bare(204),
    "login-302": page(302, "Found", Location=LOGIN),
    "login-307": page(307, "Temporary Redirect", Location=LOGIN),
    "login-200": page(200, "Sign in"),
    "login-200-with-etag": page(200, "Sign in", ETag='"5f3c-1a2b"'),
    "nginx-400": page(400, "400 Bad Request"),
    "nginx-403": page(403, "403 Forbidden"),
    "nginx-404": page(404, "404 Not Found"),
    "nginx-405": page(405, "405 Not Allowed"),
    "nginx-413": page(413, "413 Request Entity Too Large"),
    "nginx-502": page(502, "502 Bad Gateway"),
    "waf-418": page(418, "Blocked"),
    "upgrade-426": page(426, "Upgrade Required"),
    "json-400": {**bare(400), "body": b'{"error":"bad request"}'},
}
GROUP = 9       # destinations of one agent


def groups(cases):
    return [cases[i:i + GROUP] for i in range(0, len(cases), GROUP)]


class Store:
    """One server, a bucket a case; all refuse until recover()."""

    def __init__(self, s3, cases):
        self.s3, self.cases = s3, cases
        for name, where in cases:
            s3.buckets[self.bucket(name, where)] = {}
            self._refuse(name, where)

    @staticmethod
    def bucket(name, where):
        return f"{where}-{name}"

    def _refuse(self, name, where):
        bucket = self.bucket(name, where)
        answer = {k: v for k, v in ANSWERS[name].items() if k != "says"}
        for operation in (WRITES if where == "writes" else ("*",)):
            self.s3.fault(operation, times=None, when=lambda r: r.bucket == bucket, **answer)

    def refused(self, name, where):
        bucket = self.bucket(name, where)
        return [r for r in self.s3.log if r.bucket == bucket and r.fault]


def destinations(a):
    return {d["name"]: d for d in a.status()["destinations"]}


def refuse_and_recover(cases):
    """@return the seconds from the recovery to the last delivery"""
    with S3Server() as s3:
        store = Store(s3, cases)
        a = Agent()
        a.use_directories()
        a.config["destinations"] = [
            a.s3(store.bucket(*case), s3, store.bucket(*case), part_size="5MiB")
            for case in cases]
        a.config["limits"] = {"memory": "600MiB", "memory_max": "600MiB"}
        a.config["retry"] = {"initial": "50ms", "maximum": "500ms", "quarantine_after": 2}
        units = [a.incompressible(30_000, "1"), a.incompressible(31_000, "2"),
                 a.incompressible(6 * MIB, "3")]
        a.start()
        for case in cases:  # each bundle more often than it takes to be given up
            name = store.bucket(*case)
            wait_for(f"{name} was asked often enough",
                     lambda case=case: len(store.refused(*case)) >= 16, 90)

        def says_so(case):
            d = destinations(a)[store.bucket(*case)]
            words = ANSWERS[case[0]]["says"]
            words = words[:1] if case[1] == "everything" and not words[0].isdigit() else words
            said = d["last_error"] or ""
            # a HEAD has no body that could name a code
            status = str(ANSWERS[case[0]]["status"])
            return d["state"] != "ok" and (all(w in said for w in words)
                                           or case[1] == "everything" and status in said)
        for case in cases:
            try:
                wait_for(f"the destination says what {case} is", lambda case=case: says_so(case),
                         20)
            except AssertionError:
                notes.append(destinations(a)[store.bucket(*case)])
                raise
        counts = a.counts()
        assert counts["quarantined"] == 0 and counts["delivered"] == 0, (
            counts, [(b["id"], b["reason"]) for b in a.bundles("?state=quarantined")])
        assert a.curl("/readyz").returncode != 0
        text = a.cli("status").stdout
        assert "destination" in text and "failing" in text, text
        s3.clear_faults()
        at = time.monotonic()
        a.wait_delivered(3, 120)
        took = time.monotonic() - at
        assert a.counts()["quarantined"] == 0
        wait_for("all destinations are well", lambda: a.curl("/readyz").returncode == 0)
        for case in cases:
            judge_server(s3, units, bucket=store.bucket(*case), tools=())
        wait_for("no upload is left", lambda: not s3.uploads)
        a.stop()
        return took


def small_store(s3):
    a = Agent()
    a.use_directories()
    a.config["destinations"] = [a.s3("s3", s3, "bucket", part_size="5MiB")]
    a.config["retry"] = {"initial": "20ms", "maximum": "100ms", "quarantine_after": 3}
    return a


@test
def what_is_refused_while_others_are_accepted_is_given_up():
    with S3Server() as s3:
        a = small_store(s3)
        a.incompressible(30_000, "refused")
        s3.fault("PutObject", times=None, status=400, code="EntityTooLarge",
                 when=lambda r: r.body_bytes == 0 and int(r.headers["content-length"]) > 30_000)
        a.start()
        a.wait_known(1)
        s3.wait_for("it is asked often", lambda: len(s3.seen("PutObject")) >= 12)
        assert a.counts()["quarantined"] == 0 and destinations(a)["s3"]["state"] != "ok"
        others = []
        for i in range(20):     # each of them is one more that gets through
            if a.counts()["quarantined"]:
                break
            others.append(a.incompressible(1000, str(i)))
            a.wait_delivered(len(others))
            before = len(s3.seen("PutObject"))
            wait_for("it was tried since", lambda n=before: len(s3.seen("PutObject")) > n
                     or a.counts()["quarantined"])
        wait_for("it is given up", lambda: a.counts()["quarantined"] == 1)
        assert 3 <= len(others) <= 10, len(others)
        wait_for("the destination is well", lambda: destinations(a)["s3"]["state"] == "ok")
        judge_server(s3, others)
        a.stop()


@test
def a_limit_on_parts_is_not_shown_to_be_a_large_bundles_fault_by_small_ones():
    with S3Server() as s3:
        a = small_store(s3)
        units = [a.incompressible(6 * MIB, "large")]
        answer = {k: v for k, v in ANSWERS["nginx-413"].items() if k != "says"}
        s3.fault("UploadPart", times=None, **answer)
        a.start()
        a.wait_known(1)
        for i in range(6):
            units.append(a.incompressible(1000, str(i)))
            a.wait_delivered(i + 1)
            before = len(s3.seen("UploadPart"))
            s3.wait_for("it is tried again", lambda n=before: len(s3.seen("UploadPart")) > n)
        assert a.counts()["quarantined"] == 0
        wait_for("the destination says so", lambda: "413 Request Entity Too Large" in (
            destinations(a)["s3"]["last_error"] or ""))
        assert destinations(a)["s3"]["state"] == "failing" and a.curl("/readyz").returncode != 0
        s3.clear_faults()
        a.wait_all()
        judge_server(s3, units)
        a.stop()


CREDENTIALS = {
    "page": (200, {"Content-Type": "text/html"}, b"<html><title>Sign in</title></html>"),
    "login": (302, {"Location": LOGIN}, b""),
    "nothing": (200, {}, b""),
    "no keys": (200, {"Content-Type": "application/json"}, b"{}"),
    "cut": (200, {"Content-Type": "application/json"}, b'{"AccessKeyId": "AK'),
    "denied": (403, {"Content-Type": "text/xml"},
               b'<ErrorResponse xmlns="https://sts.amazonaws.com/doc/2011-06-15/"><Error>'
               b"<Type>Sender</Type><Code>AccessDenied</Code><Message>Not authorized to perform "
               b"sts:AssumeRoleWithWebIdentity</Message></Error></ErrorResponse>"),
    "missing": (404, {}, b"404 page not found"),
    "busy": (503, {"Retry-After": "1"}, b"Throttling"),
}


def from_container(a, keys):
    a.environment["AWS_CONTAINER_CREDENTIALS_FULL_URI"] = keys.endpoint + "/container/creds"


def from_sts(a, keys):
    keys.web_token = "canary-web-token"
    with open(a.path("token"), "w", encoding="ascii") as f:
        f.write(keys.web_token)
    a.environment |= {"AWS_ENDPOINT_URL_STS": keys.endpoint, "AWS_WEB_IDENTITY_TOKEN_FILE":
                      a.path("token"), "AWS_ROLE_ARN": "arn:aws:iam::111122223333:role/node",
                      "AWS_REGION": "us-east-1"}


def from_instance(a, keys):
    a.environment |= {"AWS_EC2_METADATA_DISABLED": "false",
                      "AWS_EC2_METADATA_SERVICE_ENDPOINT": keys.endpoint}


@test
def who_gives_no_credentials_is_no_bundles_fault():
    """All places at once, each with an answer that changes; then all are well."""
    places = (from_container, from_sts, from_instance)
    with contextlib.ExitStack() as stack:
        s3 = stack.enter_context(S3Server(token="canary-session-token"))
        handed_out = Endpoint(s3.endpoint, s3.access_key, s3.secret_key,
                              token="canary-session-token")
        runs = []
        for i, place in enumerate(places):
            for name in list(CREDENTIALS)[i::len(places)] + ["page", "denied"]:
                keys = CredentialServer(handed_out)
                stack.callback(keys.close)
                a = small_store(s3)
                a.config["destinations"][0]["prefix"] = f"neuron/{len(runs)}/%d-%c"
                a.use_keys(None)
                place(a, keys)
                keys.says = CREDENTIALS[name]
                runs.append((place.__name__, name, a, keys, a.incompressible(1000)))
                a.start()
        for place, name, a, keys, _ in runs:
            wait_for(f"{place} was asked: {name}", lambda keys=keys: len(keys.asked) >= 2)
            said = wait_for("it is said", lambda a=a: destinations(a)["s3"]["last_error"])
            words = ("credentials", "STS", "metadata", "endpoint")
            assert any(w in said for w in words), (place, name, said)
            assert a.counts()["quarantined"] == 0 and a.curl("/readyz").returncode != 0
            keys.says = None
        for place, name, a, _, _ in runs:
            try:
                a.wait_delivered(1, 120)
            except AssertionError:
                notes.append(f"{place}, {name}: {destinations(a)['s3']}")
                raise
            a.stop()
        judge_server(s3, [unit for *_, unit in runs])


def test_group(number, cases):
    def check():
        figures.append(f"{len(cases)} refusing stores: all delivered "
                       f"{refuse_and_recover(cases):.1f} s after they took requests again")
    check.__name__ = f"{'_'.join(n for n, _ in cases[:3])}_are_the_stores_fault_{number}"
    check.__module__ = "__main__"
    return test(check)


def chosen():
    cases = [(name, where) for where in ("writes", "everything") for name in ANSWERS]
    if os.environ.get("NC_REFUSALS") == "all":
        return cases
    seed = int(os.environ.get("NC_SEED", time.time()))
    print(f"# again with NC_SEED={seed}")
    return random.Random(seed).sample(cases, 3 * GROUP)


if __name__ == "__main__":
    for n, group in enumerate(groups(chosen())):
        test_group(n, group)
    sys.exit(main(cleanup))
