#!/usr/bin/env python3
"""Single requests: what is learned from answers, and what is tried again."""
import http.server
import json
import os
import sys
import tempfile
import threading
import time
from email.utils import formatdate

sys.path.insert(0, os.path.dirname(os.path.realpath(__file__)))
from drive import S3Server, drive, finish, start  # noqa: E402
from tap import in_time, main, test  # noqa: E402

RETRIES, SENT_BYTES, TOTAL, IN_TIME, CONDITIONS, OFFSET, REGION = range(7)


def call(server, operation="HeadObject", key="k", **options):
    run = drive(server, "call", operation, key, **options)
    return run.answers[0] if len(run.answers) == 1 else run.answers, run


class KeySource:
    """Gives keys as the container endpoint of ECS does: a new pair each time it is asked."""

    def __init__(self, *pairs):
        self.pairs, self.n_asked = list(pairs), 0
        source = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self):      # pylint: disable=invalid-name
                pair = source.pairs[min(source.n_asked, len(source.pairs) - 1)]
                source.n_asked += 1
                body = json.dumps({"AccessKeyId": pair[0], "SecretAccessKey": pair[1],
                                   "Token": pair[2],
                                   "Expiration": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(
                                       time.time() + 3600))}).encode()
                self.send_response(200)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_):      # pylint: disable=arguments-differ
                pass

        self.http = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)

    def __enter__(self):
        threading.Thread(target=self.http.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *_):
        self.http.shutdown()
        self.http.server_close()

    @property
    def environment(self):
        return {"AWS_CONTAINER_CREDENTIALS_FULL_URI":
                f"http://127.0.0.1:{self.http.server_address[1]}/keys"}


@test
def how_often_it_was_tried_is_reported():
    with S3Server() as s:
        assert drive(s, "call", "PutObject", "k").n_tries == [1]
        s.fault("PutObject", status=503, times=2)
        assert drive(s, "call", "PutObject", "k", tries=4).n_tries == [3]
        s.fault("PutObject", drop="head", times=None)
        assert drive(s, "call", "PutObject", "k", tries=2).n_tries == [2]


@test
def what_passes_is_tried_again_as_often_as_the_request_allows():
    for trouble in ({"status": 500}, {"status": 503, "code": "SlowDown"}, {"status": 429},
                    {"drop": "head"}, {"drop": "answer"}, {"stall": "head"}):
        for tries, n in ((0, 1), (1, 1), (3, 3)):
            with S3Server() as s:
                s.fault("HeadObject", times=None, **trouble)
                (verdict, *_), run = call(s, tries=tries, timeout_msec=300)
                assert verdict in ("RETRY", "UNREACHABLE"), verdict
                assert len(s.log) == n and run.stats[RETRIES] == n - 1, s.story()


@test
def what_does_not_pass_is_asked_once():
    for status, code, verdict in ((403, "AccessDenied", "DENIED"), (404, "NoSuchKey", "NOT_FOUND"),
                                  (400, "InvalidRequest", "REFUSED"),
                                  (404, "NoSuchBucket", "NO_BUCKET"),
                                  (403, "QuotaExceeded", "FULL"),
                                  (405, "MethodNotAllowed", "REFUSED")):
        with S3Server() as s:
            s.fault("GetObject", status=status, code=code, times=None)
            answer, _ = call(s, "GetObject", tries=4)
            assert answer[:3] == (verdict, status, code) and answer[5], answer
            assert len(s.log) == 1


@test
def retry_after_is_heeded_and_waits_are_short_of_it():
    with S3Server() as s:
        s.fault("HeadObject", status=503, code="SlowDown", headers={"Retry-After": "1"})
        s.put("k", b"x")
        answer, _ = call(s, tries=2)
        assert answer[0] == "OK" and s.log[1].begun - s.log[0].ended > 0.9
    with S3Server() as s:
        s.fault("HeadObject", status=503, times=3)
        s.put("k", b"x")
        answer, _ = call(s, tries=4)
        assert answer[0] == "OK" and s.log[3].begun - s.log[0].ended > 0.006, s.log[
            3].begun - s.log[0].ended
        in_time(s.log[3].begun - s.log[0].ended, 1, "three waits")


@test
def a_date_to_try_again_at_is_heeded_also_by_a_wrong_clock():
    for offset in (0, 600, -600):      # not so wrong that the signature is refused
        with S3Server() as s:
            s.clock_offset = offset
            s.put("k", b"x")

            def later(request, reply, s=s):
                reply.headers.update({"Date": formatdate(s.now(), usegmt=True),
                                      "Retry-After": formatdate(int(s.now()) + 2, usegmt=True)})
            s.fault("GetObject", status=503, code="SlowDown", edit=later)
            answer, _ = call(s, "GetObject", tries=2)
            assert answer[0] == "OK" and 1.9 < s.log[1].begun - s.log[0].ended < 10, s.log[
                1].begun - s.log[0].ended


@test
def a_head_that_is_denied_for_the_clock_is_distinguished_from_one_for_the_keys():
    with S3Server() as s:
        s.clock_offset = 3600
        s.put("k", b"x")
        answer, _ = call(s, "HeadBucket", "")
        assert answer[0] == "OK" and [r.status for r in s.log] == [403, 200]
        answer, _ = call(s, environment={"AWS_ACCESS_KEY_ID": s.access_key,
                                         "AWS_SECRET_ACCESS_KEY": "wrong"})
        # once it was learned, it is not to blame any more
        assert answer[:2] == ("DENIED", 403) and "clock" not in answer[5], answer
        assert [r.code
                for r in s.log[2:]][-1] == "SignatureDoesNotMatch" and len(s.log) <= 4, s.story()
    with S3Server() as s:      # it says the time, and takes it back
        s.clock_offset = 3600
        s.fault("HeadObject", times=None,
                when=lambda request: setattr(s, "clock_offset", s.clock_offset + 3600))
        answer, _ = call(s, tries=4)
        assert answer[0] == "SKEWED" and "clock" in answer[5] and len(s.log) == 2, (answer, s.story(
            ))


@test
def a_wrong_clock_is_learned_from_the_answer():
    for offset in (3600, -86400):
        with S3Server() as s:
            s.clock_offset = offset
            s.put("k", b"x")
            # the answer to HEAD has no body
            for n, operation in enumerate(("GetObject", "HeadObject"), 1):
                answer, run = call(s, operation)
                assert answer[0] == "OK" and [r.status for r in s.log] == [403, 200] * n
                assert abs(run.stats[OFFSET] - offset) <= 2
            # one learns it for all
            answers, run = call(s, "GetObject", calls=5, connections=1, stream=True)
            assert [a[0] for a in answers] == ["OK"] * 5 and len(s.log) == 4 + 6


@test
def a_clock_that_cannot_be_learned_is_reported():
    with S3Server() as s:
        s.fault("HeadObject", status=403, code="RequestTimeTooSkewed", times=None)
        s.fault("GetObject", status=403, code="RequestTimeTooSkewed", times=None)
        answer, _ = call(s, "GetObject", tries=4)
        assert answer[0] == "SKEWED" and "clock" in answer[5], answer
        assert len(s.log) <= 2


@test
def another_region_is_followed_and_kept():
    for redirect_status in (400, 301, 307):
        for operation in ("GetObject", "HeadObject", "PutObject"):
            with S3Server(region="eu-west-1") as s:
                s.redirect_status = redirect_status
                s.put("k", b"x")
                answer, run = call(s, operation)
                assert answer[0] == "OK", (redirect_status, operation, answer, s.story())
                assert ([r.scope_region for r in s.log] == ["us-east-1", "eu-west-1"]
                        and run.stats[REGION] == "eu-west-1")
                assert run.stats[RETRIES] == 1


@test
def redirects_in_a_circle_end():
    with S3Server() as s:
        def elsewhere(request, reply):
            reply.headers["x-amz-bucket-region"] = ("eu-west-1" if request.scope_region
                                                    == "us-east-1" else "us-east-1")
            reply.status, reply.body = 301, b"<Error><Code>PermanentRedirect</Code></Error>"
        s._check_region = lambda request, region: None      # pylint: disable=protected-access
        s.fault("GetObject", times=None, edit=elsewhere)
        answer, _ = call(s, "GetObject", tries=4)
        assert answer[0] == "REDIRECT" and len(s.log) <= 3, s.story()


@test
def expired_keys_are_fetched_anew_once():
    for status, code in ((400, "ExpiredToken"), (400, "InvalidToken")):
        with S3Server() as s, KeySource(("AKIAOLD", "old", "t1"),
                                        ("AKIANEW", "new", "t2")) as source:
            s.keys = {"AKIAOLD": ("old", "t1"), "AKIANEW": ("new", "t2")}
            s.put("k", b"x")
            s.fault("GetObject", status=status, code=code,
                    when=lambda r: "AKIAOLD" in r.headers["authorization"], times=None)
            answer, _ = call(s, "GetObject", environment=source.environment)
            assert answer[0] == "OK" and source.n_asked == 2, (answer, source.n_asked)
            s.fault("GetObject", status=status, code=code, times=None)
            source.n_asked = 0
            answer, run = call(s, "GetObject", environment=source.environment, tries=4)
            assert (answer[0] == "DENIED" and answer[1:3] == (status, code)
                    and source.n_asked == 2), answer
            assert run.stats[RETRIES] == 1      # with the others, which are no better


@test
def replaced_keys_are_fetched_anew_when_the_old_ones_are_denied():
    with S3Server() as s, KeySource(("AKIAOLD", "old", None), ("AKIANEW", "new", None)) as source:
        s.keys = {"AKIANEW": ("new", None)}
        s.put("k", b"x")
        answer, _ = call(s, "GetObject", environment=source.environment)
        assert answer[0] == "OK" and source.n_asked == 2


@test
def a_missing_permission_is_not_worth_new_keys_each_time():
    with S3Server() as s, KeySource(("AKIATEST", "secret/+key", None)) as source:
        s.deny = {"GetObject"}
        s.fault("GetObject", delay=0.1, times=1)
        answers, _ = call(s, "GetObject", environment=source.environment, calls=6, connections=1,
                          stream=True)
        assert ({a[:3] for a in answers} == {("DENIED", 403, "AccessDenied")}
                and source.n_asked == 2), (answers, source.n_asked)
        assert len(s.log) == 6      # the same keys are not tried twice
    with S3Server() as s, KeySource(("AKIATEST", "secret/+key", None)) as source:
        s.deny = {"GetObject"}
        s.fault("GetObject", delay=0.1, times=None)
        process = start(s, "call", "GetObject", "k", calls=6, connections=1, stream=True,
                        environment=source.environment)
        s.wait_for("one was denied", lambda: s.log and s.log[0].status)
        # who is denied one thing keeps what the keys are good for, also when their source is away
        source.http.shutdown()
        source.http.server_close()
        s.deny = set()
        s.put("k", b"x")
        answers = finish(process, s).answers
        assert [a[0] for a in answers].count("OK") >= 4, answers
    with S3Server() as s:      # keys of the environment do not change
        s.deny = {"GetObject"}
        answer, _ = call(s, "GetObject", tries=4)
        assert answer[0] == "DENIED" and len(s.log) == 1


def write_keys(home, access_key, secret, token=None):
    os.makedirs(f"{home}/.aws", exist_ok=True)
    path = f"{home}/.aws/credentials"
    with open(path + ".new", "w", encoding="ascii") as f:
        f.write(f"[default]\naws_access_key_id = {access_key}\naws_secret_access_key = {secret}\n"
                + (f"aws_session_token = {token}\n" if token else ""))
    os.replace(path + ".new", path)


@test
def a_secret_that_is_corrected_in_its_file_is_used_by_the_next_call():
    # One connection: the calls are sent one after the other, and all want the same keys.
    for wrong, right in ((("AKIATEST", "wrong", None), ("AKIATEST", "secret/+key", None)),
                         (("AKIAOLD", "old", None), ("AKIATEST", "secret/+key", None)),
                         (("AKIATEST", "secret/+key", "old"),
                          ("AKIATEST", "secret/+key", "fresh"))):
        with S3Server(token=right[2]) as s, tempfile.TemporaryDirectory() as home:
            s.put("k", b"x")
            write_keys(home, *wrong)

            # before the third hears that it is denied
            def correct(request, reply, s=s, home=home, right=right):
                if len(s.log) == 3:
                    write_keys(home, *right)
            s.fault("GetObject", edit=correct, times=None)
            answers, run = call(s, "GetObject", environment={"HOME": home}, calls=5, connections=1,
                                stream=True)
            assert [a[0] for a in answers] == ["DENIED", "DENIED", "OK", "OK",
                                               "OK"], (answers, s.story())
            assert [r.status for r in s.log][2:] == [403, 200, 200, 200] or wrong[2], s.story()
            assert run.stats[RETRIES] == 1 and f"{home}/.aws/credentials" in answers[0][5]


@test
def a_file_that_was_broken_by_its_correction_is_reported_beside_the_denial():
    with S3Server() as s, tempfile.TemporaryDirectory() as home:
        write_keys(home, "AKIATEST", "wrong")

        def spoil(request, reply):
            with open(f"{home}/.aws/credentials", "w", encoding="ascii") as f:
                f.write("[default]\naws_access_key_id = AKIATEST\n")
        s.fault("GetObject", edit=spoil, times=None)
        answer, _ = call(s, "GetObject", environment={"HOME": home})
        assert answer[:3] == ("DENIED", 403, "SignatureDoesNotMatch"), answer
        assert "no aws_secret_access_key" in answer[5] and "SignatureDoesNotMatch" in answer[
            5], answer
        assert len(s.log) == 1


@test
def another_owner_than_expected_is_named():
    with S3Server() as s:
        s.owner = "111122223333"
        s.put("k", b"x")
        for operation in ("GetObject", "HeadObject", "PutObject"):
            answer, _ = call(s, operation, owner="444455556666")
            assert (answer[:2] == ("DENIED", 403)
                    and "expected_bucket_owner '444455556666'" in answer[5]), answer
        assert call(s, "GetObject", owner="111122223333")[0][0] == "OK"
        s.deny = {"GetObject"}
        assert "expected_bucket_owner" not in call(s, "GetObject")[0][5]      # it was not sent


@test
def without_keys_nothing_is_sent_and_the_sentence_reports_why():
    with S3Server() as s:
        answer, run = call(s, environment={})
        assert answer[:2] == ("DENIED", 0) and "credentials" in answer[5], answer
        assert not s.log and run.stats[TOTAL] == 0


@test
def session_tokens_are_sent():
    with S3Server(token="a/session+token==") as s:
        s.put("k", b"x")
        assert call(s)[0][0] == "OK"
        assert s.log[0].headers["x-amz-security-token"] == "a/session+token=="


def most_at_once(requests):
    return max(sum(a.begun <= b.begun < a.ended for a in requests) for b in requests)


@test
def large_bodies_share_the_connections_and_leave_one_for_the_rest():
    with S3Server() as s:
        s.fault("PutObject", delay=0.05, times=None)
        answers, _ = call(s, "PutObject", calls=7, part_bytes=100_000, connections=2)
        assert [a[0] for a in answers] == ["OK"] * 7
        assert most_at_once(s.log) == 2 and len({r.connection for r in s.log}) <= 3
    with S3Server() as s:
        s.fault("HeadObject", delay=0.05, times=None)
        answers, _ = call(s, calls=7, connections=2)
        assert most_at_once(s.log) == 3


@test
def a_body_that_was_handed_out_is_not_asked_for_again():
    with S3Server() as s:
        s.put("k", b"x" * 100_000)
        answer, run = call(s, "GetObject", stream=True)
        assert answer[0] == "OK" and sum(int(n) for n,
                                         in run.all("data")) == 100_000 and answer[3] == 0
        s.fault("GetObject", cut=50_000)
        answer, run = call(s, "GetObject", stream=True, tries=4)
        assert answer[0] == "UNREACHABLE" and len(s.log) == 2 and run.all("data")
        s.fault("GetObject", status=503)
        answer, run = call(s, "GetObject", stream=True, tries=4)
        assert answer[0] == "OK" and len(s.log) == 4
        answer, _ = call(s, "GetObject", stream=True, range="bytes=5-9")
        assert answer[:2] == ("OK", 206)


@test
def a_store_without_conditions_is_asked_once():
    with S3Server() as s:
        s.conditions = "none"
        answers, run = call(s, "PutObject", conditional=True, calls=3, connections=1,
                            part_bytes=100_000)
        assert [a[0] for a in answers] == ["UNCONDITIONAL"] * 3 and len(s.log) == 1 and run.stats[
            CONDITIONS] == 0
        assert not s.objects


@test
def what_was_asked_is_counted():
    with S3Server() as s:
        # first: what fails on a kept connection is sent again without being told
        s.fault("PutObject", drop="head")
        s.fault("PutObject", status=503)
        answer, run = call(s, "PutObject", part_bytes=1000, tries=3)
        assert answer[0] == "OK"
        assert sorted(map(tuple, run.all("stat"))) == [("PutObject", "0", "1"),
                                                       ("PutObject", "200", "1"),
                                                       ("PutObject", "503", "1")]
        assert run.stats[RETRIES] == 2 and run.stats[TOTAL] == 3 == run.stats[IN_TIME]
        assert 2000 <= run.stats[SENT_BYTES] <= 3000


@test
def the_bucket_itself_and_lists_are_asked_for_in_both_styles():
    with S3Server() as s:
        s.put("p/a b", b"x")
        assert call(s, "HeadBucket", "")[0][0] == "OK"
        answer, _ = call(s, "ListObjectsV2", "p/")
        assert answer[0] == "OK" and answer[3] > 100


@test
def a_bad_endpoint_is_reported_by_its_fault():
    with S3Server() as s:
        process = start(s, "call", "HeadObject", "k", endpoint="ftp://nowhere")
        _, errors = process.communicate(timeout=60)
        assert process.returncode == 1 and "ftp://nowhere" in errors, errors


@test
def secrets_are_never_printed():
    with S3Server() as s:
        process = start(s, "call", "GetObject", "k", debug=True, environment={
            "AWS_ACCESS_KEY_ID": s.access_key, "AWS_SECRET_ACCESS_KEY": "hush/hush"})
        run = finish(process, s)
        assert run.answers[0][0] == "DENIED" and "hush/hush" not in run.errors + str(run.lines)


sys.exit(main())
