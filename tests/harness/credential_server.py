"""The places from which the AWS SDKs fetch credentials, on one port of 127.0.0.1: IMDSv2, the container endpoint (ECS, EKS Pod
Identity) and STS AssumeRoleWithWebIdentity. What they hand out is real for the S3 server at hand.
"""
import http.server
import json
import threading
import time
import urllib.parse

ROLE = "node-role"
IMDS_TOKEN = "canary-imds-token-0000001"


def stamp(seconds):
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(time.time() + seconds))


class CredentialServer:
    """@param keys  what has access_key, secret_key and perhaps token; may be set anew at any time
    @param life  seconds until they expire"""

    def __init__(self, keys, life=3600):
        self.keys, self.life = keys, life
        self.fails = None         # a status instead of an answer
        self.authorization = None  # what the container endpoint must be told
        self.web_token = None      # what AssumeRoleWithWebIdentity must be told
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

        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.endpoint = f"http://127.0.0.1:{self._server.server_address[1]}"
        threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()

    def close(self):
        self._server.shutdown()
        self._server.server_close()

    def answer(self, h, body):
        url = urllib.parse.urlsplit(h.path)
        if self.fails:
            self.reply(h, self.fails, b"no")
        elif h.command == "PUT" and url.path == "/latest/api/token":
            self.asked.append("imds token")
            self.reply(h, 200, IMDS_TOKEN.encode(), {"X-aws-ec2-metadata-token-ttl-seconds": h.headers["X-aws-ec2-metadata-token-ttl-seconds"]})
        elif url.path.startswith("/latest/"):
            self.imds(h, url.path)
        elif url.path.startswith("/container"):
            self.container(h)
        elif h.command == "POST":
            self.sts(h, dict(urllib.parse.parse_qsl(body.decode())))
        else:
            self.reply(h, 404, b"no such page")

    def imds(self, h, path):
        if h.headers.get("X-aws-ec2-metadata-token") != IMDS_TOKEN:
            self.reply(h, 401, b"Unauthorized")  # as an instance that insists on version 2
        elif path.rstrip("/") == "/latest/meta-data/iam/security-credentials":
            self.reply(h, 200, ROLE.encode())
        elif path == f"/latest/meta-data/iam/security-credentials/{ROLE}":
            self.asked.append("imds")
            self.reply(h, 200, json.dumps({
                "Code": "Success", "Type": "AWS-HMAC", "LastUpdated": stamp(0), "AccessKeyId": self.keys.access_key,
                "SecretAccessKey": self.keys.secret_key, "Token": getattr(self.keys, "token", None) or "", "Expiration": stamp(self.life)}).encode())
        else:
            self.reply(h, 404, b"")

    def container(self, h):
        if self.authorization is not None and h.headers.get("Authorization") != self.authorization:
            self.reply(h, 401, b"{}")
            return
        self.asked.append("container")
        self.reply(h, 200, json.dumps({
            "AccessKeyId": self.keys.access_key, "SecretAccessKey": self.keys.secret_key, "Token": getattr(self.keys, "token", None) or "",
            "Expiration": stamp(self.life)}).encode(), {"Content-Type": "application/json"})

    def sts(self, h, form):
        if form.get("Action") != "AssumeRoleWithWebIdentity" or form.get("WebIdentityToken") != self.web_token:
            self.reply(h, 400, b'<ErrorResponse xmlns="https://sts.amazonaws.com/doc/2011-06-15/"><Error><Type>Sender</Type>'
                               b"<Code>InvalidIdentityToken</Code><Message>not the token</Message></Error></ErrorResponse>")
            return
        self.asked.append("web identity")
        self.reply(h, 200, f"""<AssumeRoleWithWebIdentityResponse xmlns="https://sts.amazonaws.com/doc/2011-06-15/">
<AssumeRoleWithWebIdentityResult><SubjectFromWebIdentityToken>system:serviceaccount:ns:sa</SubjectFromWebIdentityToken>
<AssumedRoleUser><Arn>{form["RoleArn"]}/s</Arn><AssumedRoleId>AROA:s</AssumedRoleId></AssumedRoleUser>
<Credentials><SessionToken>{getattr(self.keys, "token", None) or ""}</SessionToken><SecretAccessKey>{self.keys.secret_key}</SecretAccessKey>
<Expiration>{stamp(self.life)}</Expiration><AccessKeyId>{self.keys.access_key}</AccessKeyId></Credentials>
</AssumeRoleWithWebIdentityResult></AssumeRoleWithWebIdentityResponse>""".encode(), {"Content-Type": "text/xml"})

    @staticmethod
    def reply(h, status, body, headers=None):
        h.send_response(status)
        h.send_header("Content-Length", str(len(body)))
        for name, value in (headers or {}).items():
            h.send_header(name, value)
        h.end_headers()
        h.wfile.write(body)
