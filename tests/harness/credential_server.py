"""The places from which the AWS SDKs fetch credentials, on one port of 127.0.0.1: IMDSv2, the
container endpoint (ECS, EKS Pod Identity) and STS AssumeRoleWithWebIdentity. What they hand out is
real for the S3 server at hand. IMDS also says what it was told to say of the instance's end: spot
interruption, scheduled maintenance, rebalance recommendation.
"""
import http.server
import json
import threading
import time
import urllib.parse

ROLE = "node-role"
IMDS_TOKEN = "canary-imds-token-0000001"
NOTICES = {"/latest/meta-data/spot/instance-action": "spot",
           "/latest/meta-data/events/maintenance/scheduled": "maintenance",
           "/latest/meta-data/events/recommendations/rebalance": "rebalance"}


def stamp(seconds):
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(time.time() + seconds))


def spot_interruption(seconds, action="terminate"):
    """What spot/instance-action says of an end in so many seconds."""
    return json.dumps({"action": action, "time": stamp(seconds)})


def maintenance(seconds, state="active"):
    """What events/maintenance/scheduled says of a reboot that begins in so many seconds."""
    begin, end = (time.strftime("%-d %b %Y %H:%M:%S GMT", time.gmtime(time.time() + s))
                  for s in (seconds, seconds + 3600))
    return json.dumps([{"NotBefore": begin, "Code": "system-reboot", "Description": "scheduled "
                        "reboot", "EventId": "instance-event-0d59937288b749b32", "NotAfter": end,
                        "State": state}])


class CredentialServer:
    """@param keys  what has access_key, secret_key and perhaps token; may be set anew at any time
    @param life  seconds until they expire"""

    def __init__(self, keys, life=3600, address="127.0.0.1"):
        self.keys, self.life = keys, life
        self.fails = None         # a status instead of an answer
        self.says = None          # status, headers and body instead of an answer
        self.authorization = None  # what the container endpoint must be told
        self.web_token = None      # what AssumeRoleWithWebIdentity must be told
        self.imds_token = IMDS_TOKEN  # set anew, the one before is not valid any more
        # "spot", "maintenance", "rebalance": the document, or a status, or "slow": a byte a second;
        # none = 404
        self.notices = {}
        self.asked_notices = []   # their names
        self.asked = []           # "imds token", "imds", "container", "web identity"
        outer = self

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, format, *args):  # pylint: disable=redefined-builtin
                pass

            def do_GET(self):
                outer.answer(self, b"")

            def do_PUT(self):
                outer.answer(self, b"")

            def do_POST(self):
                outer.answer(self, self.rfile.read(int(self.headers.get("content-length", 0))))

        self._server = http.server.ThreadingHTTPServer((address, 0), Handler)
        self._server.daemon_threads = True
        self._server.handle_error = lambda *_: None  # whoever asked may go away in the middle
        self.endpoint = f"http://{address}:{self._server.server_address[1]}"
        threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.05},
                         daemon=True).start()

    def close(self):
        self._server.shutdown()
        self._server.server_close()

    def answer(self, h, body):
        url = urllib.parse.urlsplit(h.path)
        if self.fails:
            self.reply(h, self.fails, b"no")
        elif self.says:
            self.asked.append("refused")
            self.reply(h, self.says[0], self.says[2], self.says[1])
        elif h.command == "PUT" and url.path == "/latest/api/token":
            self.asked.append("imds token")
            self.reply(h, 200, self.imds_token.encode(),
                       {"X-aws-ec2-metadata-token-ttl-seconds": h.headers[
                           "X-aws-ec2-metadata-token-ttl-seconds"]})
        elif url.path.startswith("/latest/"):
            self.imds(h, url.path)
        elif url.path.startswith("/container"):
            self.container(h)
        elif h.command == "POST":
            self.sts(h, dict(urllib.parse.parse_qsl(body.decode())))
        else:
            self.reply(h, 404, b"no such page")

    def imds(self, h, path):
        if h.headers.get("X-aws-ec2-metadata-token") != self.imds_token:
            self.reply(h, 401, b"Unauthorized")  # as an instance that insists on version 2
        elif path in NOTICES:
            self.asked_notices.append(NOTICES[path])
            self.notice(h, self.notices.get(NOTICES[path], 404))
        elif path.rstrip("/") == "/latest/meta-data/iam/security-credentials":
            self.reply(h, 200, ROLE.encode())
        elif path == f"/latest/meta-data/iam/security-credentials/{ROLE}":
            self.asked.append("imds")
            self.reply(h, 200, json.dumps({
                "Code": "Success", "Type": "AWS-HMAC", "LastUpdated": stamp(0),
                "AccessKeyId": self.keys.access_key,
                "SecretAccessKey": self.keys.secret_key, "Token": getattr(self.keys, "token", None)
                or "", "Expiration": stamp(self.life)}).encode())
        else:
            self.reply(h, 404, b"")

    def notice(self, h, said):
        if isinstance(said, int):
            self.reply(h, said, b"")
        elif said != "slow":
            self.reply(h, 200, said if isinstance(said, bytes) else said.encode(),
                       {"Content-Type": "text/plain"})
        else:
            h.send_response(200)
            h.send_header("Content-Length", "60")
            h.end_headers()
            try:
                for _ in range(60):
                    h.wfile.write(b" ")
                    time.sleep(1)
            except OSError:
                pass  # they have better things to do

    def container(self, h):
        if self.authorization is not None and h.headers.get("Authorization") != self.authorization:
            self.reply(h, 401, b"{}")
            return
        self.asked.append("container")
        self.reply(h, 200, json.dumps({
            "AccessKeyId": self.keys.access_key, "SecretAccessKey": self.keys.secret_key,
            "Token": getattr(self.keys, "token", None) or "",
            "Expiration": stamp(self.life)}).encode(), {"Content-Type": "application/json"})

    def sts(self, h, form):
        if form.get("Action") != "AssumeRoleWithWebIdentity" or form.get(
                "WebIdentityToken") != self.web_token:
            self.reply(h, 400, b'<ErrorResponse xmlns="https://sts.amazonaws.com/'
                       b'doc/2011-06-15/"><Error><Type>Sender</Type>'
                       b"<Code>InvalidIdentityToken</Code><Message>not the "
                       b"token</Message></Error></ErrorResponse>")
            return
        self.asked.append("web identity")
        token = getattr(self.keys, "token", None) or ""
        answer = (
            "<AssumeRoleWithWebIdentityResponse "
            'xmlns="https://sts.amazonaws.com/doc/2011-06-15/">\n'
            "<AssumeRoleWithWebIdentityResult>"
            "<SubjectFromWebIdentityToken>system:serviceaccount:ns:sa"
            "</SubjectFromWebIdentityToken>\n"
            f'<AssumedRoleUser><Arn>{form["RoleArn"]}/s</Arn><AssumedRoleId>AROA:s</AssumedRoleId>'
            f"</AssumedRoleUser>\n<Credentials><SessionToken>{token}</SessionToken>"
            f"<SecretAccessKey>{self.keys.secret_key}</SecretAccessKey>\n"
            f"<Expiration>{stamp(self.life)}</Expiration>"
            f"<AccessKeyId>{self.keys.access_key}</AccessKeyId></Credentials>\n"
            "</AssumeRoleWithWebIdentityResult></AssumeRoleWithWebIdentityResponse>")
        self.reply(h, 200, answer.encode(), {"Content-Type": "text/xml"})

    @staticmethod
    def reply(h, status, body, headers=None):
        h.send_response(status)
        h.send_header("Content-Length", str(len(body)))
        for name, value in (headers or {}).items():
            h.send_header(name, value)
        h.end_headers()
        h.wfile.write(body)
