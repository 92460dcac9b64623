#!/usr/bin/env python3
"""A small programmable S3: for the answers that a real server will not give on request.

It runs in threads of the test's own process, on 127.0.0.1, and keeps everything in memory:

    with S3Server() as s3:                       # or S3Server(bucket="b", region="us-east-1",
    tls=ssl_context, …)
        s3.endpoint                              # http://127.0.0.1:PORT, path style; virtual-host
        style works as well
        s3.access_key, s3.secret_key             # S3Server(token="…") wants a session token;
        s3.keys[access] = (secret, token) adds one
        s3.objects["a/key"].body                 # .etag .headers (x-amz-*, content-type); also
        s3.buckets["other"]["key"]
        s3.uploads                               # {upload id: Upload(.key .parts{number: Part(.body
        .etag .modified)} .initiated)}
        s3.put("a/key", b"…", **{"x-amz-meta-a": "b"}); s3.create("a/key"); s3.put_part(upload_id,
        1, b"…")

It verifies SigV4 by its own code (all of x-amz-* must be signed), x-amz-content-sha256 and
x-amz-checksum-sha256 against the body, and the per-part checksums that AWS demands in
CompleteMultipartUpload. It does If-None-Match on PUT and Complete, If-Match, ranges, paged lists.
It speaks HTTP/1.1 with kept-alive connections and `Expect: 100-continue`.

What it is like, changed at any time:

    s3.conditions = "aws" | "radosgw" | "none"   # radosgw: Complete ignores If-None-Match and
    overwrites; none: 501 (Swift)
    s3.dialect = "aws" | "radosgw" | "swift"     # radosgw: ListParts of no upload is NoSuchKey,
    empty <Message>, needs all parts listed;
                                                 # swift: checksums in Complete are MalformedXML
    s3.checksums = "aws" | "b2" | "r2" | "demanded"  # b2, r2: refuse x-amz-checksum-… in their own
    words; demanded: refuse a write without (a bucket with object lock)
    s3.hides_length, s3.hides_date = True, True  # no Content-Length in answers to HEAD, no Date
    s3.deny = {"HeadObject"}                     # 403 AccessDenied to these operations
    s3.page_size = 1000                          # of all lists
    s3.clock_offset = 3600                       # its clock, seconds ahead; beyond 15 min of
    difference: RequestTimeTooSkewed
    s3.region, s3.redirect_status = …            # another region in the signature: 400
    AuthorizationHeaderMalformed, 301 or 307
    s3.quota_bytes, s3.owner, s3.min_part_bytes, s3.latency

What goes wrong, for the operations named as AWS names them ("*" = all), the next time (`times`,
None = for ever) after `skip` requests that match (`key`, `part` narrow it down, or
`when=function(request)`):

    s3.fault("UploadPart", part=2, status=503, code="SlowDown", headers={"Retry-After": "1"})   #
    instead of doing it
    s3.fault("CompleteMultipartUpload", status=200, code="InternalError")                       #
    200 with an <Error>
    s3.fault("PutObject", drop="head")           # closed when the head is read; "body": in the
    middle of it; "answer": before the answer
    s3.fault("PutObject", drop="answer", done=True)      # the answer is lost: done, but nobody
    hears of it; done=True goes with status too
    s3.fault("PutObject", drop="reset", done=True)       # as "answer", by RST
    s3.fault("PutObject", twice=True)            # done twice, as by a proxy that repeats: the second
    answer is given
    s3.fault("PutObject", late=2.0, status=500)  # answered at once, and done so many seconds later
    s3.fault("UploadPart", early=True, status=403, code="AccessDenied")                         #
    answered before the body was read
    s3.fault("ListParts", cut=20)                # so many bytes of the reply's body, then closed;
    "head": in the middle of the headers
    s3.fault("UploadPart", stall="body")         # stops reading there; "head", "answer" likewise;
    until s3.release() or the client gives up
    s3.fault("UploadPart", slow=65536)           # reads so many bytes a second
    s3.fault("HeadObject", delay=0.5)            # answers later
    s3.fault("ListParts", edit=function(request, reply))   # reply.status, .headers, .body may be
    changed: a lie; None = not this header

    s3.faults                                    # those not used up yet; fault.n_hits;
    s3.clear_faults()

What was asked, in order of arrival (`Request`: .operation .bucket .key .part .query .headers
.body_bytes .body (small ones) .status .code .connection .access_key .scope_region .fault .begun
.ended):

    s3.log; s3.seen("UploadPart", part=2); s3.counts()            # Counter of operations
    s3.wait_for("two parts", lambda: len(s3.seen("UploadPart")) == 2)   # woken by every request;
    raises AssertionError after 20 s

Alone: `s3_server.py [PORT]` prints the environment to use and its log until it is interrupted.
"""
import base64
import calendar
import collections
import dataclasses
import hashlib
import hmac
import os
import re
import select
import socket
import struct
import sys
import threading
import time
import urllib.parse
import uuid
from dataclasses import dataclass, field
from email.utils import formatdate
from xml.sax.saxutils import escape

MAX_SKEW = 15 * 60
KEPT_BODY = 64 * 1024
PATIENCE = 20.0 * float(os.environ.get("NC_PATIENCE", "1"))
STATUS_TEXT = {100: "Continue", 200: "OK", 204: "No Content", 206: "Partial Content",
               301: "Moved Permanently", 307: "Temporary Redirect",
               400: "Bad Request", 403: "Forbidden", 404: "Not Found", 409: "Conflict",
               411: "Length Required", 412: "Precondition Failed",
               416: "Range Not Satisfiable", 500: "Internal Server Error", 501: "Not Implemented",
               503: "Slow Down"}


@dataclass
class Object:
    body: bytes
    etag: str
    headers: dict
    modified: float


@dataclass
class Part:
    body: bytes
    etag: str
    sha256: str
    modified: float


@dataclass
class Upload:
    bucket: str
    key: str
    headers: dict
    initiated: float
    parts: dict = field(default_factory=dict)


@dataclass
class Request:
    method: str
    path: str            # as it came
    raw_query: str
    headers: dict        # lower case
    connection: int
    operation: str = "?"
    bucket: str = ""
    key: str = ""
    query: dict = field(default_factory=dict)
    part: int = 0
    body: bytes = b""    # emptied after the request when it is large
    body_bytes: int = 0
    access_key: str = ""
    scope_region: str = ""
    status: int = 0      # 0 = no answer was sent
    code: str = ""
    fault: object = None
    begun: float = 0.0
    ended: float = 0.0


@dataclass
class Reply:
    status: int = 200
    headers: dict = field(default_factory=dict)
    body: bytes = b""
    code: str = ""


@dataclass
class Fault:
    operation: str
    skip: int = 0
    times: object = 1
    key: object = None
    part: object = None
    when: object = None
    status: object = None
    code: str = ""
    message: str = "as the test wants it"
    headers: dict = field(default_factory=dict)
    body: object = None
    done: bool = False
    twice: bool = False
    late: float = 0.0
    drop: str = ""
    early: bool = False
    cut: object = None
    stall: str = ""
    slow: int = 0
    delay: float = 0.0
    edit: object = None
    n_hits: int = 0
    released: object = field(default_factory=threading.Event)

    def matches(self, request):
        return (self.operation in ("*", request.operation) and self.key in (None, request.key)
                and self.part in (None, request.part) and (self.when is None or self.when(request)))


class Gone(Exception):
    """The connection is over."""


class S3Error(Exception):
    def __init__(self, status, code, message="", headers=None, **more):
        super().__init__(code)
        self.status, self.code, self.message, self.headers, self.more = (status, code, message,
                                                                         headers or {}, more)


def _quote(text, safe="-_.~"):
    return urllib.parse.quote(text, safe=safe)


def _iso(stamp):
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(stamp)) + ".%03dZ" % (stamp % 1 * 1000)


def _parse_query(raw):
    pairs = []
    for piece in raw.split("&") if raw else []:
        name, _, value = piece.partition("=")
        pairs.append((urllib.parse.unquote(name), urllib.parse.unquote(value)))
    return pairs


def _b64(data):
    return base64.b64encode(data).decode()


class S3Server:
    def __init__(self, bucket="bucket", region="us-east-1", access_key="AKIATEST",
                 secret_key="secret/+key", token=None, tls=None, address="127.0.0.1"):
        self.bucket, self.region, self.access_key, self.secret_key = (bucket, region, access_key,
                                                                      secret_key)
        self.keys = {access_key: (secret_key, token)}
        self.tls = tls
        self.buckets = {bucket: {}}
        self.uploads = {}
        self.conditions, self.dialect, self.checksums = "aws", "aws", "aws"
        self.hides_length = self.hides_date = False
        self.deny = set()
        self.page_size = 1000
        self.clock_offset = 0.0
        self.redirect_status = 400
        self.quota_bytes = None
        self.owner = "111122223333"
        self.min_part_bytes = 0
        self.latency = 0.0
        self.log = []
        self.faults = []
        self._news = threading.Condition(threading.RLock())
        self._all_faults = []
        self._stopping = False
        self._sockets = set()
        self._n_connections = 0
        self.address = address
        self._listener = socket.create_server((address, 0), backlog=128)

    # --- the test's side

    def __enter__(self):
        return self.start()

    def __exit__(self, *_):
        self.stop()

    def start(self):
        threading.Thread(target=self._accept, daemon=True).start()
        return self

    def stop(self):
        self._stopping = True
        self.release()
        self._listener.close()
        with self._news:
            for s in list(self._sockets):
                try:
                    s.shutdown(socket.SHUT_RDWR)
                except OSError:
                    pass

    @property
    def port(self):
        return self._listener.getsockname()[1]

    @property
    def endpoint(self):
        return f"{'https' if self.tls else 'http'}://{self.address}:{self.port}"

    @property
    def objects(self):
        return self.buckets[self.bucket]

    def environment(self):
        secret, token = self.keys[self.access_key]
        pairs = {"AWS_ACCESS_KEY_ID": self.access_key, "AWS_SECRET_ACCESS_KEY": secret}
        return {**pairs, "AWS_SESSION_TOKEN": token} if token else pairs

    def now(self):
        return time.time() + self.clock_offset

    def put(self, key, body, **headers):
        with self._news:
            self.objects[key] = Object(body, hashlib.md5(body).hexdigest(), headers, self.now())
        return self.objects[key]

    def create(self, key, age=0.0, **headers):
        upload_id = "u+" + uuid.uuid4().hex
        with self._news:
            self.uploads[upload_id] = Upload(self.bucket, key, headers, self.now() - age)
        return upload_id

    def put_part(self, upload_id, number, body, age=0.0):
        part = Part(body, hashlib.md5(body).hexdigest(), _b64(hashlib.sha256(body).digest()),
                    self.now() - age)
        with self._news:
            self.uploads[upload_id].parts[number] = part
        return part.etag

    def fault(self, operation, **what):
        fault = Fault(operation, **what)
        with self._news:
            self.faults.append(fault)
            self._all_faults.append(fault)
        return fault

    def clear_faults(self):
        with self._news:
            self.faults.clear()

    def release(self):
        """Lets all go on that stall by a fault asked for before now, or are about to."""
        with self._news:
            for fault in self._all_faults:
                fault.released.set()

    def seen(self, operation, key=None, part=None):
        with self._news:
            return [r for r in self.log if r.operation == operation and key in (None, r.key)
                    and part in (None, r.part)]

    def counts(self):
        with self._news:
            return collections.Counter(r.operation for r in self.log)

    def wait_for(self, what, condition, timeout=PATIENCE):
        deadline = time.monotonic() + timeout
        with self._news:
            while not condition():  # bytes of a body wake nobody
                if time.monotonic() < deadline:
                    self._news.wait(0.1)
                    continue
                raise AssertionError(f"waited {timeout:.0f} s in vain: {what}; asked so far: "
                                     f"{self.story()}")

    def story(self):
        """The log in one line, for the reader of a failure."""
        def line(r):
            part, code = f"#{r.part}" if r.part else "", f" {r.code}" if r.code else ""
            return f"{r.operation}{part}={r.status or 'none'}{code};"

        return " ".join(map(line, self.log))

    # --- connections

    def _accept(self):
        while not self._stopping:
            try:
                s, _ = self._listener.accept()
            except OSError:
                return
            self._n_connections += 1
            threading.Thread(target=self._serve, args=(s, self._n_connections), daemon=True).start()

    def _serve(self, s, number):
        s.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        try:
            if self.tls:
                s = self.tls.wrap_socket(s, server_side=True)
            with self._news:
                self._sockets.add(s)
            connection = _Connection(self, s, number)
            while not self._stopping:
                connection.one_request()
        except (Gone, OSError):
            pass
        finally:
            with self._news:
                self._sockets.discard(s)
            s.close()

    # --- what a request is

    def _classify(self, request):
        path = urllib.parse.unquote(request.path)
        host = request.headers.get("host", "").rsplit(":", 1)[0]
        virtual = next((b for b in self.buckets if host.startswith(b + ".")), None)
        if virtual:
            request.bucket, request.key = virtual, path[1:]
        else:
            request.bucket, _, request.key = path[1:].partition("/")
        request.query = dict(_parse_query(request.raw_query))
        request.part = int(request.query.get("partNumber", 0) or 0)
        q, m = request.query, request.method
        if request.key:
            names = {"PUT": "UploadPart" if "uploadId" in q else "PutObject", "HEAD": "HeadObject",
                     "GET": "ListParts" if "uploadId" in q else "GetObject",
                     "POST": "CreateMultipartUpload" if "uploads" in q
                     else "CompleteMultipartUpload",
                     "DELETE": "AbortMultipartUpload" if "uploadId" in q else "DeleteObject"}
        else:
            names = {"HEAD": "HeadBucket", "PUT": "CreateBucket",
                     "GET": "ListMultipartUploads" if "uploads" in q else "ListObjectsV2"}
        request.operation = names.get(m, "?")

    def _find_fault(self, request):
        for fault in self.faults:
            if not fault.matches(request):
                continue
            if fault.skip > 0:
                fault.skip -= 1
                continue
            fault.n_hits += 1
            if fault.times is not None:
                fault.times -= 1
                if fault.times <= 0:
                    self.faults.remove(fault)
            return fault
        return None

    # --- who asks

    def _check_signature(self, request):
        h = request.headers
        found = re.fullmatch(
            r"AWS4-HMAC-SHA256 Credential=([^/]+)/(\d{8})/([^/]+)/s3/aws4_request, ?"
            r"SignedHeaders=([^,]+), ?Signature=([0-9a-f]{64})", h.get("authorization", ""))
        if not found:
            raise S3Error(403, "AccessDenied", "Anonymous access is forbidden")
        access, day, region, signed, signature = found.groups()
        request.access_key, request.scope_region = access, region
        if access not in self.keys:
            raise S3Error(403, "InvalidAccessKeyId",
                          "The AWS Access Key Id you provided does not exist in our records.")
        secret, token = self.keys[access]
        if h.get("x-amz-security-token") != token:
            raise S3Error(400, "InvalidToken",
                          "The provided token is malformed or otherwise invalid.")
        self._check_clock(h.get("x-amz-date", ""), day)
        self._check_region(request, region)
        names = signed.split(";")
        missing = [n for n in h if (n.startswith("x-amz-") or n == "host") and n not in names]
        if missing or names != sorted(names):
            raise S3Error(403, "AccessDenied", "There were headers present in the request which "
                          "were not signed", HeadersNotSigned=",".join(missing))
        query = "&".join(f"{a}={b}" for a, b in sorted((_quote(n), _quote(v)) for n,
                                                       v in _parse_query(request.raw_query)))
        payload = h.get("x-amz-content-sha256", "")
        canonical = "\n".join([request.method, _quote(urllib.parse.unquote(request.path), "-_.~/"),
                               query] + [f"{n}:{' '.join(h.get(n, '').split())}" for n in names]
                              + ["", signed, payload])
        to_sign = "\n".join(["AWS4-HMAC-SHA256", h["x-amz-date"], f"{day}/{region}/s3/aws4_request",
                             hashlib.sha256(canonical.encode()).hexdigest()])
        key = ("AWS4" + secret).encode()
        for piece in (day, region, "s3", "aws4_request"):
            key = hmac.new(key, piece.encode(), hashlib.sha256).digest()
        if not hmac.compare_digest(hmac.new(key, to_sign.encode(), hashlib.sha256).hexdigest(),
                                   signature):
            raise S3Error(403, "SignatureDoesNotMatch", "The request signature we calculated does "
                          "not match the signature you provided.", CanonicalRequest=canonical)

    def _check_clock(self, amz_date, day):
        try:
            stamp = calendar.timegm(time.strptime(amz_date, "%Y%m%dT%H%M%SZ"))
        except ValueError:
            raise S3Error(403, "AccessDenied", "AWS authentication requires a valid Date or "
                                               "x-amz-date header") from None
        if abs(stamp - self.now()) > MAX_SKEW:
            raise S3Error(403, "RequestTimeTooSkewed", "The difference between the request time "
                                                       "and the current time is too large.",
                          RequestTime=amz_date, ServerTime=_iso(self.now()),
                          MaxAllowedSkewMilliseconds=str(MAX_SKEW * 1000))
        if not amz_date.startswith(day):
            raise S3Error(403, "SignatureDoesNotMatch", "Invalid credential date")

    def _check_region(self, request, region):
        if region == self.region:
            return
        headers = {"x-amz-bucket-region": self.region}
        if self.redirect_status == 400:
            raise S3Error(400, "AuthorizationHeaderMalformed", f"the region '{region}' is wrong; "
                          f"expecting '{self.region}'", headers, Region=self.region)
        code = "PermanentRedirect" if self.redirect_status == 301 else "TemporaryRedirect"
        raise S3Error(self.redirect_status, code, "The bucket must be addressed elsewhere.",
                      headers, Bucket=request.bucket,
                      Endpoint=f"{request.bucket}.s3.{self.region}.amazonaws.com")

    def _check_checksums(self, request):
        sent = [h for h in request.headers if h.startswith("x-amz-checksum-")]
        if sent and self.checksums == "b2":
            raise S3Error(400, "InvalidArgument",
                          f"Unsupported header '{sent[0]}' received for this API call.")
        if sent and self.checksums == "r2":
            raise S3Error(501, "NotImplemented", f"Header '{sent[0]}' not implemented")
        if (not sent and self.checksums == "demanded"
            and request.operation in ("PutObject", "UploadPart")):
            raise S3Error(400, "InvalidRequest", "Content-MD5 OR x-amz-checksum- HTTP header is "
                          "required for Put Part requests with Object Lock parameters")

    def _check_body(self, request):
        h = request.headers
        said = h.get("x-amz-content-sha256", "")
        digest = hashlib.sha256(request.body)
        if not said:
            raise S3Error(400, "InvalidRequest",
                          "Missing required header for this request: x-amz-content-sha256")
        if said not in (digest.hexdigest(), "UNSIGNED-PAYLOAD"):
            raise S3Error(400, "XAmzContentSHA256Mismatch", "The provided 'x-amz-content-sha256' "
                          "header does not match what was computed.")
        if h.get("x-amz-checksum-sha256", _b64(digest.digest())) != _b64(digest.digest()):
            raise S3Error(400, "BadDigest",
                          "The SHA256 you specified did not match the calculated checksum.")

    # --- what it does

    def perform(self, request):
        self._check_signature(request)
        if request.operation in self.deny:
            raise S3Error(403, "AccessDenied", "Access Denied")
        if h_owner := request.headers.get("x-amz-expected-bucket-owner"):
            if h_owner != self.owner:
                raise S3Error(403, "AccessDenied", "Access Denied")
        if request.operation == "CreateBucket":
            self.buckets.setdefault(request.bucket, {})
            return Reply()
        if request.bucket not in self.buckets:
            raise S3Error(404, "NoSuchBucket", "The specified bucket does not exist",
                          BucketName=request.bucket)
        self._check_checksums(request)
        self._check_body(request)
        method = getattr(self, "_do_" + re.sub(r"(?<!^)(?=[A-Z])", "_",
                                               request.operation).lower().replace("_v2", ""), None)
        if not method:
            raise S3Error(405, "MethodNotAllowed")
        return method(request)

    def _store(self, request):
        return self.buckets[request.bucket]

    def _object(self, request):
        found = self._store(request).get(request.key)
        if not found:
            raise S3Error(404, "NoSuchKey", "The specified key does not exist.", Key=request.key)
        return found

    def _upload(self, request):
        found = self.uploads.get(request.query["uploadId"])
        if not found or (found.bucket, found.key) != (request.bucket, request.key):
            raise S3Error(404, "NoSuchUpload", "The specified upload does not exist.",
                          UploadId=request.query["uploadId"])
        return found

    def _check_conditions(self, request, honoured):
        if_none_match = request.headers.get("if-none-match")
        if if_none_match and self.conditions == "none":
            raise S3Error(501, "NotImplemented",
                          "A header you provided implies functionality that is not implemented")
        if (if_none_match == "*" and honoured and self.conditions != "ignored"
            and request.key in self._store(request)):
            raise S3Error(412, "PreconditionFailed", "At least one of the pre-conditions you "
                          "specified did not hold", Condition="If-None-Match")

    def _check_quota(self, n):
        if self.quota_bytes is None:
            return
        used = sum(len(o.body) for b in self.buckets.values() for o in b.values())
        used += sum(len(p.body) for u in self.uploads.values() for p in u.parts.values())
        if used + n > self.quota_bytes:
            raise S3Error(403, "QuotaExceeded")

    @staticmethod
    def _kept_headers(request):
        keep = ("x-amz-meta-", "x-amz-server-side", "x-amz-storage", "x-amz-tagging",
                "x-amz-checksum", "x-amz-object-lock")
        return {n: v for n, v in request.headers.items() if n == "content-type"
                or n.startswith(keep)}

    def _do_head_bucket(self, _request):
        return Reply(headers={"x-amz-bucket-region": self.region})

    def _do_head_object(self, request):
        return self._do_get_object(request)

    def _do_get_object(self, request):
        found = self._object(request)
        headers = {n: v for n, v in found.headers.items()
                   if not n.startswith(("x-amz-checksum", "x-amz-tagging"))}
        headers.update({"ETag": f'"{found.etag}"', "Accept-Ranges": "bytes",
                        "Last-Modified": formatdate(found.modified, usegmt=True)})
        asked = re.fullmatch(r"bytes=(\d*)-(\d*)", request.headers.get("range", ""))
        if not asked:
            return Reply(200, headers, found.body)
        first, last = asked.groups()
        size = len(found.body)
        begin = int(first) if first else max(0, size - int(last))
        end = min(size, int(last) + 1) if first and last else size
        if begin >= size:
            raise S3Error(416, "InvalidRange", "The requested range is not satisfiable")
        headers["Content-Range"] = f"bytes {begin}-{end - 1}/{size}"
        return Reply(206, headers, found.body[begin:end])

    def _do_put_object(self, request):
        self._check_conditions(request, honoured=True)
        self._check_quota(len(request.body))
        etag = hashlib.md5(request.body).hexdigest()
        self._store(request)[request.key] = Object(request.body, etag, self._kept_headers(request),
                                                   self.now())
        return Reply(headers={"ETag": f'"{etag}"'})

    def _do_delete_object(self, request):
        self._store(request).pop(request.key, None)
        return Reply(204)

    def _do_create_multipart_upload(self, request):
        upload_id = "u+" + uuid.uuid4().hex      # the + is to be escaped
        self.uploads[upload_id] = Upload(request.bucket, request.key, self._kept_headers(request),
                                         self.now())
        return self._xml("InitiateMultipartUploadResult", f"<Bucket>{escape(request.bucket)}</"
                         f"Bucket><Key>{escape(request.key)}</Key><UploadId>{upload_id}</UploadId>")

    def _do_upload_part(self, request):
        upload = self._upload(request)
        self._check_quota(len(request.body))
        if not 1 <= request.part <= 10000:
            raise S3Error(400, "InvalidArgument",
                          "Part number must be an integer between 1 and 10000, inclusive")
        if ("x-amz-checksum-algorithm" in upload.headers
            and "x-amz-checksum-sha256" not in request.headers):
            raise S3Error(400, "InvalidRequest", "Checksum Type mismatch occurred, expected "
                          "checksum Type: sha256, actual checksum Type: null")
        etag = hashlib.md5(request.body).hexdigest()
        upload.parts[request.part] = Part(request.body, etag,
                                          _b64(hashlib.sha256(request.body).digest()), self.now())
        return Reply(headers={"ETag": f'"{etag}"'})

    def _do_complete_multipart_upload(self, request):
        upload = self._upload(request)
        listed = [(int(n), etag, checksum) for n, etag, checksum in re.findall(
            r"<Part>\s*<PartNumber>(\d+)</PartNumber>\s*"
            r"<ETag>(?:&quot;|\")?([^<&\"]+)(?:&quot;|\")?</ETag>\s*"
            r"(?:<ChecksumSHA256>([^<]*)</ChecksumSHA256>)?\s*</Part>", request.body.decode())]
        if not listed or (self.dialect == "swift" and b"<Checksum" in request.body):
            raise S3Error(400, "MalformedXML", "The XML you provided was not well-formed")
        if [n for n, _, _ in listed] != sorted({n for n, _, _ in listed}):
            raise S3Error(400, "InvalidPartOrder", "The list of parts was not in ascending order.")
        for number, etag, checksum in listed:
            part = upload.parts.get(number)
            if not part or part.etag != etag or (checksum and checksum != part.sha256):
                raise S3Error(400, "InvalidPart",
                              "One or more of the specified parts could not be found.")
            if ("x-amz-checksum-algorithm" in upload.headers and self.dialect == "aws"
                and not checksum):
                raise S3Error(400, "InvalidRequest", "The upload was created using "
                              "a sha256 checksum. The complete request must include the checksum "
                              f"for each part. It was missing for part {number} in the request.")
            if number != listed[-1][0] and len(part.body) < self.min_part_bytes:
                raise S3Error(400, "EntityTooSmall",
                              "Your proposed upload is smaller than the minimum allowed size")
        if self.dialect == "radosgw" and len(listed) != len(upload.parts):
            raise S3Error(400, "InvalidPart")
        self._check_conditions(request, honoured=self.conditions == "aws")
        chosen = [upload.parts[n] for n, _, _ in listed]
        etag = hashlib.md5(b"".join(bytes.fromhex(p.etag)
                                    for p in chosen)).hexdigest() + f"-{len(chosen)}"
        self._store(request)[request.key] = Object(b"".join(p.body for p in chosen), etag,
                                                   upload.headers, self.now())
        del self.uploads[request.query["uploadId"]]
        return self._xml("CompleteMultipartUploadResult", f"<Bucket>{escape(request.bucket)}</"
                         f"Bucket><Key>{escape(request.key)}</Key><ETag>&quot;{etag}&quot;</ETag>")

    def _do_abort_multipart_upload(self, request):
        self._upload(request)
        del self.uploads[request.query["uploadId"]]
        return Reply(204)

    def _do_list_parts(self, request):
        try:
            upload = self._upload(request)
        except S3Error as e:
            raise S3Error(404, "NoSuchKey") if self.dialect == "radosgw" else e
        after = int(request.query.get("part-number-marker") or 0)
        limit = min(self.page_size, int(request.query.get("max-parts") or 1000))
        numbers = sorted(n for n in upload.parts if n > after)
        shown = numbers[:limit]
        text = "".join(f"<Part><PartNumber>{n}</PartNumber>"
                       f"<LastModified>{_iso(upload.parts[n].modified)}</LastModified>"
                       f"<ETag>&quot;{upload.parts[n].etag}&"
                       f"quot;</ETag><Size>{len(upload.parts[n].body)}</Size></Part>"
                       for n in shown)
        return self._xml(
            "ListPartsResult",
            f"<Key>{escape(request.key)}</Key><UploadId>{request.query['uploadId']}</UploadId>"
            f"<NextPartNumberMarker>{shown[-1] if shown else after}</NextPartNumberMarker>"
            f"<IsTruncated>{str(len(shown) < len(numbers)).lower()}</IsTruncated>{text}")

    def _do_list_multipart_uploads(self, request):
        q = request.query
        marker = (q.get("key-marker", ""), q.get("upload-id-marker", ""))
        everything = sorted((u.key, i) for i, u in self.uploads.items()
                            if u.bucket == request.bucket and u.key.startswith(q.get("prefix", "")))
        rest = [e for e in everything if (e > marker if marker[1] else e[0] > marker[0])]
        limit = min(self.page_size, int(q.get("max-uploads") or 1000))
        text = "".join(f"<Upload><Key>{escape(k)}</Key><UploadId>{i}</UploadId>"
                       f"<Initiated>{_iso(self.uploads[i].initiated)}</Initiated></Upload>" for k,
                       i in rest[:limit])
        more = len(rest) > limit
        if more:
            text = (f"<NextKeyMarker>{escape(rest[limit - 1][0])}</"
                    f"NextKeyMarker><NextUploadIdMarker>{rest[limit - 1][1]}</NextUploadIdMarker>"
                    + text)
        return self._xml("ListMultipartUploadsResult", f"<Bucket>{escape(request.bucket)}</"
                         f"Bucket><IsTruncated>{str(more).lower()}</IsTruncated>{text}")

    def _do_list_objects(self, request):
        q = request.query
        prefix, delimiter = q.get("prefix", ""), q.get("delimiter", "")
        after = base64.b64decode(q["continuation-token"]).decode() if q.get(
            "continuation-token") else q.get("start-after", "")
        show = _quote if q.get("encoding-type") == "url" else escape
        entries = {}      # what is shown → None or the object
        for key in sorted(self._store(request)):
            if not key.startswith(prefix):
                continue
            folded = prefix + key[len(prefix):].partition(delimiter)[
                0] + delimiter if delimiter and delimiter in key[len(prefix):] else None
            entries.setdefault(folded or key, None if folded else self._store(request)[key])
        names = [n for n in sorted(entries) if n > after]
        limit = min(self.page_size, int(q.get("max-keys") or 1000))
        text = ""
        for name in names[:limit]:
            o = entries[name]
            text += (f"<Contents><Key>{show(name)}</Key><LastModified>{_iso(o.modified)}</"
                     f"LastModified><ETag>&quot;{o.etag}&quot;</ETag>"
                     f"<Size>{len(o.body)}</Size></Contents>" if o
                     else f"<CommonPrefixes><Prefix>{show(name)}</Prefix></CommonPrefixes>")
        more = len(names) > limit
        if more:
            text += (
                f"<NextContinuationToken>{_b64(names[limit - 1].encode())}</NextContinuationToken>")
        if q.get("encoding-type") == "url":
            text += "<EncodingType>url</EncodingType>"
        return self._xml("ListBucketResult", f"<Name>{escape(request.bucket)}</"
                         f"Name><IsTruncated>{str(more).lower()}</IsTruncated>{text}")

    @staticmethod
    def _xml(root, text):
        return Reply(200, {"Content-Type": "application/xml"},
                     f'<?xml version="1.0" encoding="UTF-8"?>\n<{root} '
                     f'xmlns="http://s3.amazonaws.com/doc/2006-03-01/">{text}</{root}>'.encode())

    def error_reply(self, error):
        message = "" if self.dialect == "radosgw" else error.message
        more = "".join(f"<{n}>{escape(v)}</{n}>" for n, v in error.more.items())
        body = ('<?xml version="1.0" encoding="UTF-8"?>\n<Error>'
                f'<Code>{escape(error.code)}</Code><Message>{escape(message)}</Message>{more}'
                "<RequestId>4442587FB7D0A2F9</RequestId></Error>")
        return Reply(error.status, {"Content-Type": "application/xml", **error.headers},
                     body.encode(), error.code)


class _Connection:
    """One client's connection: reads requests, lets the faults happen, writes replies."""

    def __init__(self, server, sock, number):
        self.server, self.sock, self.number, self.buffer = server, sock, number, b""

    def _receive(self, n=65536):
        data = self.sock.recv(n)
        if not data:
            raise Gone
        return data

    def _read_head(self):
        while b"\r\n\r\n" not in self.buffer:
            self.buffer += self._receive()
        head, _, self.buffer = self.buffer.partition(b"\r\n\r\n")
        lines = head.decode("latin-1").split("\r\n")
        method, target, _ = lines[0].split(" ", 2)
        path, _, query = target.partition("?")
        headers = {}
        for line in lines[1:]:
            name, _, value = line.partition(":")
            name, value = name.strip().lower(), value.strip().encode("latin-1").decode(
                "utf-8", "replace")
            headers[name] = f"{headers[name]},{value}" if name in headers else value
        return Request(method, path, query, headers, self.number, begun=time.monotonic())

    def _read_body(self, request, fault):
        left = int(request.headers.get("content-length", 0) or 0)
        if "transfer-encoding" in request.headers:
            raise S3Error(411, "MissingContentLength")
        if request.headers.get("expect", "").lower() == "100-continue":
            self.sock.sendall(b"HTTP/1.1 100 Continue\r\n\r\n")
        # what is left when it goes wrong
        half = left // 2 if fault and "body" in (fault.drop, fault.stall) else None
        pieces = []
        while left > 0:
            if half is not None and left <= half:
                if fault.drop == "body":
                    raise Gone
                self._stall(fault)
                half = None
            most = left if half is None else left - half
            if fault and fault.slow:
                most = min(most, max(fault.slow // 20, 1))
            if self.buffer:
                data, self.buffer = self.buffer[:most], self.buffer[most:]
            else:
                data = self._receive(min(most, 262144))
            if fault and fault.slow:
                time.sleep(len(data) / fault.slow)
            pieces.append(data)
            left -= len(data)
            request.body_bytes += len(data)
        request.body = b"".join(pieces)

    def _stall(self, fault):
        """Until the test lets it go on, or the client has gone."""
        while not fault.released.wait(0.02):
            if select.select([self.sock], [], [], 0)[0] and not self._peek():
                raise Gone

    def _peek(self):
        if self.server.tls:
            return True
        return self.sock.recv(1, socket.MSG_PEEK)

    def one_request(self):
        server = self.server
        request = self._read_head()
        with server._news:      # pylint: disable=protected-access
            server._classify(request)      # pylint: disable=protected-access
            fault = request.fault = server._find_fault(request)  # pylint: disable=protected-access
            server.log.append(request)
            server._news.notify_all()      # pylint: disable=protected-access
        try:
            if fault and fault.drop == "head":
                raise Gone
            if fault and fault.stall == "head":
                self._stall(fault)
            if fault and fault.early:
                self._answer_early(request, fault)
            reply = self._work(request, fault)
            self._answer(request, reply, fault)
        finally:
            with server._news:      # pylint: disable=protected-access
                request.ended = time.monotonic()
                if len(request.body) > KEPT_BODY:
                    request.body = b""
                server._news.notify_all()      # pylint: disable=protected-access

    def _work(self, request, fault):
        server = self.server
        try:
            self._read_body(request, fault)
            if server.latency:
                time.sleep(server.latency)
            reply = None
            if fault and fault.late:
                self._perform_later(dataclasses.replace(request), fault.late)
            if not fault or fault.done or (fault.status is None and not fault.drop):
                with server._news:      # pylint: disable=protected-access
                    for _ in range(2 if fault and fault.twice else 1):
                        reply = server.perform(request)
            if fault and fault.status is not None:
                reply = self._scripted(fault)
        except S3Error as error:
            reply = server.error_reply(error)
        if fault and fault.edit:
            fault.edit(request, reply)
        return reply

    def _perform_later(self, request, seconds):
        def perform():
            try:
                with self.server._news:      # pylint: disable=protected-access
                    self.server.perform(request)
            except S3Error:
                pass      # nobody hears of it
        timer = threading.Timer(seconds, perform)
        timer.daemon = True
        timer.start()

    def _scripted(self, fault):
        if fault.body is not None:
            return Reply(fault.status, dict(fault.headers), fault.body, fault.code)
        if not fault.code:
            return Reply(fault.status, dict(fault.headers))
        return self.server.error_reply(S3Error(fault.status, fault.code, fault.message,
                                               fault.headers))

    def _answer_early(self, request, fault):
        reply = self._scripted(fault)
        reply.headers["Connection"] = "close"
        request.status, request.code = reply.status, reply.code
        self.sock.sendall(self._head(request, reply) + (b"" if request.method == "HEAD"
                                                        else reply.body))
        self.sock.shutdown(socket.SHUT_WR)
        # what is underway is swallowed, or a reset would eat the answer
        deadline = time.monotonic() + 1
        while time.monotonic() < deadline and select.select([self.sock], [], [], 0.05)[0]:
            self._receive()
        raise Gone

    def _head(self, request, reply):
        headers = {"Date": None if self.server.hides_date else formatdate(self.server.now(),
                                                                          usegmt=True),
                   "Server": "s3_server.py",
                   "x-amz-request-id": "4442587FB7D0A2F9",
                   **reply.headers}
        headers = {n: v for n, v in headers.items() if v is not None}
        if reply.status != 204 and not (request.method == "HEAD" and self.server.hides_length):
            headers["Content-Length"] = str(0 if request.method == "HEAD" and reply.status >= 300
                                            else len(reply.body))
        lines = [f"HTTP/1.1 {reply.status} {STATUS_TEXT.get(reply.status, 'Whatever')}"] + [
            f"{n}: {v}" for n, v in headers.items()]
        return ("\r\n".join(lines) + "\r\n\r\n").encode()

    def _answer(self, request, reply, fault):
        if fault and fault.stall == "answer":
            self._stall(fault)
        if fault and fault.delay:
            time.sleep(fault.delay)
        if fault and fault.drop == "reset":
            self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        if fault and (fault.drop in ("answer", "reset") or reply is None):
            raise Gone
        head = self._head(request, reply)
        body = b"" if request.method == "HEAD" else reply.body
        if fault and fault.cut is not None:
            self.sock.sendall(head[:len(head) // 2] if fault.cut == "head"
                              else head + body[:fault.cut])
            raise Gone
        with self.server._news:      # pylint: disable=protected-access
            request.status, request.code = reply.status, reply.code
        self.sock.sendall(head + body)
        if reply.headers.get("Connection", "").lower() == "close":
            raise Gone


def main():
    server = S3Server().start()
    print(f"S3_ENDPOINT={server.endpoint} S3_BUCKET={server.bucket} S3_REGION={server.region}",
          " ".join(f"{n}='{v}'" for n, v in server.environment().items()), flush=True)
    shown = 0
    try:
        while True:
            time.sleep(0.2)
            for r in server.log[shown:]:
                print(r.operation, r.key, r.query, r.status, r.code, flush=True)
                shown += 1
    except KeyboardInterrupt:
        server.stop()


if __name__ == "__main__":
    sys.exit(main())
