"""What the tests of credentials share: places that hand credentials out (IMDSv2, container
endpoint, STS with its signatures checked), each on an address of its own, and the program under
test driven by commands.

As root the whole test lives in a network namespace of its own, where the real addresses are ours:
nobody asks the metadata service of the machine that the test runs on.
"""
import atexit
import datetime
import hashlib
import hmac
import http.server
import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import time
import urllib.parse

HERE = os.path.dirname(os.path.realpath(__file__))
sys.path.insert(0, os.path.join(HERE, "..", "..", "harness"))
# pylint: disable-next=wrong-import-position,unused-import
from tap import Skip, in_time, main, notes, test

PROGRAM = os.path.join(os.environ.get("builddir", os.getcwd()),
                       "tests/uploaders/aws/fetch_credentials")
PATIENCE = 30
LINK_LOCAL = ["169.254.169.254", "169.254.170.2", "169.254.170.23", "fd00:ec2::254", "fd00:ec2::23"]


def enter_namespace():
    """Starts this script again in a network namespace with the link-local addresses on its
    loopback; without root it stays outside."""
    if os.environ.get("NC_CREDENTIALS_NETNS") or os.geteuid() != 0 or not shutil.which(
            "unshare") or not shutil.which("ip"):
        return
    if subprocess.run(["unshare", "-n", "true"], capture_output=True, check=False).returncode != 0:
        return
    script = "ip link set lo up && " + " && ".join(
        f"ip {'-6 ' if ':' in a else ''}addr add {a}/{128 if ':' in a else 32} dev lo"
        for a in LINK_LOCAL) + ' && exec "$@"'
    environment = dict(os.environ, NC_CREDENTIALS_NETNS="1")
    os.execvpe("unshare", ["unshare", "-n", "sh", "-c", script, "sh", sys.executable] + sys.argv,
               environment)


def need_addresses():
    if not os.environ.get("NC_CREDENTIALS_NETNS"):
        raise Skip("needs root and a network namespace for the link-local addresses")


def sha256(text):
    return hashlib.sha256(text.encode()).hexdigest()


def iso(seconds):
    return datetime.datetime.fromtimestamp(seconds,
                                           datetime.timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")


class Keys:
    """A set of keys that is unlike any other."""
    count = 0

    def __init__(self, name="KEY", token=True):
        Keys.count += 1
        self.access_key = f"ASIA{name.upper()}{Keys.count:06d}"
        # longer than a register, see test_secrets.py
        self.secret_key = f"secret-{name}-{Keys.count:06d}/+=" + os.urandom(48).hex()
        self.token = f"token-{name}-{Keys.count:06d}//{'T' * 300}==" + os.urandom(
            6).hex() if token else None

    def file(self):
        text = f"aws_access_key_id = {self.access_key}\naws_secret_access_key = {self.secret_key}\n"
        return text + (f"aws_session_token = {self.token}\n" if self.token else "")

    def environment(self):
        e = {"AWS_ACCESS_KEY_ID": self.access_key, "AWS_SECRET_ACCESS_KEY": self.secret_key}
        return dict(e, AWS_SESSION_TOKEN=self.token) if self.token else e

    def service_json(self, expires, **more):
        return json.dumps({"Code": "Success", "LastUpdated": iso(time.time()), "Type": "AWS-HMAC",
                           "AccessKeyId": self.access_key,
                           "SecretAccessKey": self.secret_key, "Token": self.token,
                           "Expiration": iso(expires), **more})

    def process_json(self, expires=None, **more):
        document = {"Version": 1, "AccessKeyId": self.access_key,
                    "SecretAccessKey": self.secret_key}
        if self.token:
            document["SessionToken"] = self.token
        if expires:
            document["Expiration"] = iso(expires)
        return json.dumps({**document, **more})

    def secrets(self):
        return [s for s in (self.secret_key, self.token) if s]


class Request:
    def __init__(self, handler, body):
        self.method, self.path, self.body = handler.command, handler.path, body
        self.headers = {name.lower(): value for name, value in handler.headers.items()}
        self.fields = dict(urllib.parse.parse_qsl(body.decode("utf-8", "replace"),
                                                  keep_blank_values=True))


class Server:
    """Answers by `answer(request)`: (status, text) or (status, text, headers); None = never. What
    was asked is in `requests`."""
    running = []

    def __init__(self, answer, address="127.0.0.1", port=0):
        self.answer, self.requests = answer, []
        outer = self

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def handle_any(self):
                request = Request(self, self.rfile.read(int(self.headers.get("Content-Length")
                                                            or 0)))
                outer.requests.append(request)
                reply = outer.answer(request)
                if reply is None:
                    outer.stopped.wait(PATIENCE)
                    return
                status, text = reply[0], reply[1]
                self.send_response_only(status)
                headers = dict({"Content-Length": str(len(text.encode())),
                                "Date": self.date_time_string()},
                                **(reply[2] if len(reply) > 2 else {}))
                for name, value in headers.items():
                    self.send_header(name, value)
                self.end_headers()
                self.wfile.write(text.encode())

            do_GET = do_PUT = do_POST = handle_any

            def log_message(self, format, *args):  # pylint: disable=redefined-builtin
                pass

        class Threads(http.server.ThreadingHTTPServer):
            address_family = socket.AF_INET6 if ":" in address else socket.AF_INET
            daemon_threads = True

            def handle_error(self, request, client_address):
                """The program hangs up as it likes; what matters is what it was told."""

        self.stopped = threading.Event()
        self.server = Threads((address, port), Handler)
        host = f"[{address}]" if ":" in address else address
        self.port = self.server.server_address[1]
        self.url = f"http://{host}:{self.port}"
        threading.Thread(target=self.server.serve_forever, kwargs={"poll_interval": 0.05},
                         daemon=True).start()
        Server.running.append(self)

    def close(self):
        self.stopped.set()
        self.server.shutdown()
        self.server.server_close()

    def asked(self):
        return [f"{r.method} {r.path}" for r in self.requests]


class Imds(Server):
    """Version 2 only. `keys`, `expires`, `role` and `fail` (path → reply) may be changed at any
    time."""
    ROLES = "/latest/meta-data/iam/security-credentials/"

    def __init__(self, keys, expires, **where):
        self.keys, self.expires, self.role, self.fail, self.tokens = (keys, expires, "node-role",
                                                                      {}, [])
        super().__init__(self.imds, **where)

    def imds(self, r):
        if r.path in self.fail:
            return self.fail[r.path]
        if r.path == "/latest/api/token":
            if r.method != "PUT" or not 1 <= int(r.headers.get(
                    "x-aws-ec2-metadata-token-ttl-seconds", 0)) <= 21600:
                return 400, "bad token request"
            if r.headers.get("content-length") != "0":
                return 411, "length required"
            self.tokens.append(f"imds-token-{len(self.tokens)}==")
            return 200, self.tokens[-1]
        if r.method != "GET" or not self.tokens or r.headers.get(
                "x-aws-ec2-metadata-token") != self.tokens[-1]:
            return 401, "unauthorized"
        if r.path == self.ROLES:
            return (200, self.role) if self.role else (404, "none")
        if self.role and r.path == self.ROLES + self.role:
            return 200, self.keys.service_json(self.expires)
        return 404, "no such thing"


def signing_key(secret, date, region, service):
    key = ("AWS4" + secret).encode()
    for part in (date, region, service, "aws4_request"):
        key = hmac.new(key, part.encode(), hashlib.sha256).digest()
    return key


def signature_fault(request, secrets, region, now=None):
    """SigV4 as a server computes it. @param secrets  access key → secret key  @return None when the
    signature is right"""
    scheme, _, rest = request.headers.get("authorization", "").partition(" ")
    if scheme != "AWS4-HMAC-SHA256":
        return "not signed"
    parts = dict(p.strip().split("=", 1) for p in rest.split(","))
    access_key, date, signed_region, service, end = parts["Credential"].split("/")
    if (signed_region, service, end) != (region, "sts", "aws4_request"):
        return f"signed for {signed_region}/{service}/{end}"
    if access_key not in secrets:
        return "unknown access key"
    names = parts["SignedHeaders"].split(";")
    for must in ("host", "x-amz-date") + (("x-amz-security-token",
                                          ) if "x-amz-security-token" in request.headers else ()):
        if must not in names:
            return f"{must} is not signed"
    if now is not None:
        told = datetime.datetime.strptime(request.headers["x-amz-date"],
                                          "%Y%m%dT%H%M%SZ").replace(tzinfo=datetime.timezone.utc)
        if abs(told.timestamp() - now) > 900:
            return "skewed"
    canonical = "\n".join([request.method, request.path,
                           ""] + [f"{n}:{request.headers[n].strip()}" for n in names] +
                          ["", ";".join(names), hashlib.sha256(request.body).hexdigest()])
    to_sign = "\n".join([scheme, request.headers["x-amz-date"],
                         f"{date}/{region}/sts/aws4_request", sha256(canonical)])
    signature = hmac.new(signing_key(secrets[access_key], date, region, "sts"), to_sign.encode(),
                         hashlib.sha256).hexdigest()
    return None if signature == parts["Signature"] else "the signature does not match"


def sts_error(status, code, message):
    return status, ('<ErrorResponse xmlns="https://sts.amazonaws.com/'
                    f'doc/2011-06-15/"><Error><Type>Sender</Type><Code>{code}</Code>'
                    f"<Message>{message}</Message></Error><RequestId>1</RequestId>"
                    "</ErrorResponse>"), {"Content-Type": "text/xml"}


class Sts(Server):
    """Roles it knows: arn → Keys; AssumeRole is checked against `callers` (Keys), web identities
    against `web_token`.
    @param now  what its clock says, in seconds; None = it does not look at the time"""

    def __init__(self, roles, callers=(), region="us-east-1", **where):
        self.roles, self.callers, self.region = roles, list(callers), region
        self.web_token, self.expires, self.now, self.fault = None, time.time() + 3600, None, None
        super().__init__(self.sts, **where)

    def sts(self, r):
        if self.fault:
            return self.fault
        date = {"Date": datetime.datetime.fromtimestamp(self.now, datetime.timezone.utc).strftime(
            "%a, %d %b %Y %H:%M:%S GMT")} if self.now else {}
        status, text, headers = self.decide(r)
        return status, text, dict(headers, **date)

    def decide(self, r):
        f = r.fields
        if r.method != "POST" or f.get("Version") != "2011-06-15" or not r.headers.get(
                "content-type", "").startswith("application/x-www-form-urlencoded"):
            return sts_error(400, "InvalidAction", "what is this?")
        if f.get("Action") == "AssumeRoleWithWebIdentity":
            if "authorization" in r.headers or f.get("WebIdentityToken") != self.web_token:
                return sts_error(400, "InvalidIdentityToken",
                                 "No OpenIDConnect provider found in your account")
        elif f.get("Action") == "AssumeRole":
            fault = signature_fault(r, {k.access_key: k.secret_key for k in self.callers},
                                    self.region, self.now)
            if fault == "skewed":
                return sts_error(403, "SignatureDoesNotMatch", "Signature expired: it is now later")
            if fault:
                return sts_error(403, "SignatureDoesNotMatch", fault)
            caller = next(k for k in self.callers
                          if f"Credential={k.access_key}/" in r.headers["authorization"])
            if r.headers.get("x-amz-security-token") != caller.token:
                return sts_error(403, "InvalidClientTokenId",
                                 "The security token included in the request is invalid")
        else:
            return sts_error(400, "InvalidAction", "no such action")
        keys = self.roles.get(f.get("RoleArn"))
        if not keys:
            return sts_error(403, "AccessDenied", "User is not authorized to perform: "
                                                  f"sts:AssumeRole on resource: {f.get('RoleArn')}")
        action = f["Action"]
        return 200, (f'<{action}Response '
                     f'xmlns="https://sts.amazonaws.com/doc/2011-06-15/"><{action}Result>'
                     '<AssumedRoleUser><Arn>x</Arn></AssumedRoleUser>'
                     f"<Credentials><AccessKeyId>{keys.access_key}</"
                     f"AccessKeyId><SecretAccessKey>{keys.secret_key}</SecretAccessKey>"
                     f"<SessionToken>{keys.token}</SessionToken><Expiration>{iso(self.expires)}</"
                     "Expiration></Credentials>"
                     f"</{action}Result><ResponseMetadata><RequestId>1</RequestId></"
                     f"ResponseMetadata></{action}Response>"), {"Content-Type": "text/xml"}


class Driver:
    """The program under test, alone with the environment that is given. Its stderr is kept apart
    and must never hold a secret."""
    running = []

    def __init__(self, environment=None, home=None, **options):
        self.home = make_home() if home is None else home
        self.errors = tempfile.TemporaryFile()
        environment = {"PATH": os.environ["PATH"], **({} if environment is None else environment)}
        for name in ("ASAN_OPTIONS", "UBSAN_OPTIONS"):
            if name in os.environ:
                environment[name] = os.environ[name]
        if not os.environ.get("NC_CREDENTIALS_NETNS"):  # never the machine's own
            environment.setdefault("AWS_EC2_METADATA_SERVICE_ENDPOINT", "http://127.0.0.1:9")
        arguments = [PROGRAM, "--home", self.home]
        for name, value in options.items():
            arguments += ["--" + name.replace("_", "-"), str(value)]
        self.process = subprocess.Popen(arguments, env=environment, stdin=subprocess.PIPE,
                                        stdout=subprocess.PIPE, stderr=self.errors, text=True)
        Driver.running.append(self)

    def __call__(self, command):
        self.process.stdin.write(command + "\n")
        self.process.stdin.flush()
        line = self.process.stdout.readline()
        notes.append(f"{command}: {line.strip()}")
        assert line, f"{command!r} ended the program: {self.said()}"
        answer = json.loads(line)
        assert not answer.get("late"), f"{command!r} took too long: {answer}"
        return answer

    def holds(self, keys, command="fetch"):
        """@return the answer, after checking that it is these keys that are held"""
        answer = self(command)
        assert answer["error"] is None, answer["error"]
        got = (answer["access_key"], answer["secret_key"], answer["token"])
        assert got == (sha256(keys.access_key), sha256(keys.secret_key),
                       sha256(keys.token) if keys.token else None), answer
        return answer

    def error(self, command="fetch"):
        answer = self(command)
        assert answer["error"] and not answer["has"], f"it should have failed: {answer}"
        return answer["error"]

    def said(self):
        self.errors.seek(0)
        return self.errors.read().decode("utf-8", "replace")

    def close(self):
        self.process.stdin.close()
        code = self.process.wait(PATIENCE)
        self.process.stdout.close()
        said = self.said()
        self.errors.close()
        assert code == 0, f"exit {code}: {said}"


_homes = []


def make_home(config=None, credentials=None):
    home = tempfile.mkdtemp(prefix="neuron-credentials.")
    _homes.append(home)
    os.mkdir(os.path.join(home, ".aws"))
    for name, text in (("config", config), ("credentials", credentials)):
        if text is not None:
            write(os.path.join(home, ".aws", name), text)
    return home


def write(path, text, mode=0o600):
    with open(path, "wb") as f:
        f.write(text if isinstance(text, bytes) else text.encode())
    os.chmod(path, mode)
    return path


def cleanup(failed=False):
    faults = []
    for driver in Driver.running:
        try:
            driver.close()
        except Exception as fault:  # pylint: disable=broad-except
            driver.process.kill()
            faults.append(str(fault))
    for server in Server.running:
        server.close()
    Driver.running.clear()
    Server.running.clear()
    remove_homes()
    if faults and not failed:
        raise AssertionError("; ".join(faults))


def remove_homes():
    while _homes:
        shutil.rmtree(_homes.pop(), ignore_errors=True)


atexit.register(remove_homes)
enter_namespace()
