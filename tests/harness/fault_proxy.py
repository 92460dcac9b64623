"""A proxy between an S3 client and a real server that does, by a seed, what networks and stores do
on bad days.

It understands one HTTP/1.1 request after the other on each connection, draws for each whether and
how it goes wrong, and counts what it did. With rate 0 it hands everything on. All of it runs in
threads of the test's process.
"""
import random
import socket
import struct
import threading
import time
import urllib.parse

PIECE = 128 << 10
ERROR = ('<?xml version="1.0" '
         'encoding="UTF-8"?>\n<Error><Code>{code}</Code><Message>{message}</Message>'
         "<RequestId>tx0000fa017</RequestId><HostId>fault-proxy</HostId></Error>")

ANYWHERE = ("delay", "reset-at-once", "error-500", "error-503", "slow-down", "lost-answer",
            "cut-answer", "half-open", "stand-still")
WITH_BODY = ("cut-body", "reset-body", "trickle", "still-body")
AT_COMPLETE = ("error-in-200", "done-but-error-in-200", "lost-answer")


class _Gone(Exception):
    """The connection ends here, one way or the other."""


class _Request:
    def __init__(self, head):
        lines = head.decode("latin-1").split("\r\n")
        self.method, self.target, _ = lines[0].split(" ", 2)
        self.headers = [line.partition(":")[::2] for line in lines[1:] if line]
        self.fields = {k.strip().lower(): v.strip() for k, v in self.headers}
        self.length = int(self.fields.get("content-length", 0))
        self.query = dict(urllib.parse.parse_qsl(urllib.parse.urlsplit(self.target).query,
                                                 keep_blank_values=True))

    @property
    def is_complete(self):
        return self.method == "POST" and "uploadId" in self.query

    def head(self):
        kept = [f"{k}:{v}" for k, v in self.headers if k.strip().lower() != "expect"]
        return ("\r\n".join([f"{self.method} {self.target} HTTP/1.1",
                             *kept]) + "\r\n\r\n").encode("latin-1")


class _Wire:
    def __init__(self, proxy, client):
        self.proxy, self.client, self.server = proxy, client, None
        self.from_client, self.from_server = client.makefile("rb"), None
        threading.Thread(target=self._run, daemon=True).start()

    def _run(self):
        try:
            while self._one():
                pass
        except (_Gone, OSError, ValueError):
            pass
        finally:
            self.close()

    def close(self, reset=False):
        self.proxy.wires.discard(self)
        for s in (self.client, self.server):
            if s is None:
                continue
            try:
                if reset:
                    s.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                s.shutdown(socket.SHUT_RD if reset else socket.SHUT_RDWR)  # wakes whoever reads it
            except OSError:
                pass
        for f in (self.from_client, self.from_server, self.client, self.server):
            if f is not None:
                try:
                    f.close()
                except OSError:
                    pass

    # --- one request ---

    def _one(self):
        head = self._head_from(self.from_client)
        if not head:
            return False
        request = _Request(head)
        fault = self.proxy.draw(request)
        self._pause_before(fault)
        if fault in ("error-500", "error-503", "slow-down", "error-in-200"):
            return self._answer_instead(request, fault)
        self._connect()
        if "100-continue" in request.fields.get("expect", ""):
            self.client.sendall(b"HTTP/1.1 100 Continue\r\n\r\n")
        self.server.sendall(request.head())
        self._body_up(request, fault)
        self._answer_down(request, fault)
        return True

    def _pause_before(self, fault):
        if fault == "reset-at-once":
            self.close(reset=True)
            raise _Gone
        if fault == "delay":
            time.sleep(self.proxy.chance(0.05, 0.4))
        elif fault == "stand-still":
            self.proxy.stand_still()

    def _connect(self):
        if self.server is not None:
            return
        url = urllib.parse.urlsplit(self.proxy.server.endpoint)
        try:
            self.server = socket.create_connection((url.hostname, url.port), timeout=10)
        except OSError as error:
            self.close(reset=True)
            raise _Gone from error
        self.server.settimeout(None)
        self.server.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.from_server = self.server.makefile("rb")

    def _body_up(self, request, fault):
        stop_at = int(request.length * self.proxy.chance(
            0.0, 1.0)) if fault in WITH_BODY else request.length
        slow_until = 0.0
        left = request.length
        while left:
            if request.length - left >= stop_at and fault:
                if fault == "trickle":
                    slow_until = slow_until or time.monotonic() + self.proxy.chance(0.2, 1.0)
                elif fault in WITH_BODY:
                    self._stop_in_the_body(fault)
            slow = time.monotonic() < slow_until
            piece = self.from_client.read(min(left, 2048 if slow else PIECE))
            if not piece:
                raise _Gone
            if slow:
                time.sleep(0.02)
            self.server.sendall(piece)
            left -= len(piece)

    def _stop_in_the_body(self, fault):
        if fault == "still-body":
            self.proxy.stand_still()
        self.close(reset=fault == "reset-body")
        raise _Gone

    def _answer_down(self, request, fault):
        head = self._head_from(self.from_server)
        while head[9:10] == b"1":
            head = self._head_from(self.from_server)
        if not head:
            raise _Gone
        answer = self._whole_answer(request, head)
        if fault == "lost-answer":
            self.close(reset=True)
            raise _Gone
        if fault == "done-but-error-in-200":
            self._say(200, "OK", "InternalError",
                      "We encountered an internal error. Please try again.")
            return
        if fault == "half-open":
            self.proxy.stand_still()
            raise _Gone
        if fault == "cut-answer":
            self.client.sendall(answer[:int(len(answer) * self.proxy.chance(0.0, 1.0))])
            raise _Gone
        self.client.sendall(answer)

    def _whole_answer(self, request, head):
        """Answers to this client are small: documents, headers, or a manifest."""
        fields = {k.strip().lower(): v.strip() for k, _,
                  v in (line.partition(":") for line in head.decode("latin-1").split("\r\n")[1:])}
        status = int(head[9:12])
        if request.method == "HEAD" or status in (204, 304):
            return head
        if "chunked" in fields.get("transfer-encoding", ""):
            out = bytearray(head)
            while True:
                line = self.from_server.readline()
                size = int(line.split(b";")[0], 16)
                out += line + self.from_server.read(size + 2)
                if size == 0:
                    return bytes(out)
        return head + self.from_server.read(int(fields.get("content-length", 0)))

    def _answer_instead(self, request, fault):
        """As a store under load does: sometimes before it has read the body, and then it hangs
        up."""
        reads = fault == "error-in-200" or self.proxy.chance(0.0, 1.0) < 0.5
        if reads:
            left = request.length
            if left and "100-continue" in request.fields.get("expect", ""):
                self.client.sendall(b"HTTP/1.1 100 Continue\r\n\r\n")
            while left:
                piece = self.from_client.read(min(left, PIECE))
                if not piece:
                    raise _Gone
                left -= len(piece)
        if fault == "error-in-200":
            self._say(200, "OK", "InternalError",
                      "We encountered an internal error. Please try again.")
        elif fault == "error-500":
            self._say(500, "Internal Server Error", "InternalError",
                      "We encountered an internal error. Please try again.", close=not reads)
        elif fault == "error-503":
            self._say(503, "Service Unavailable", "ServiceUnavailable",
                      "Please reduce your request rate.", "Retry-After: 1", close=not reads)
        else:
            self._say(503, "Slow Down", "SlowDown", "Please reduce your request rate.",
                      close=not reads)
        return reads

    def _say(self, status, phrase, code, message, *headers, close=False):
        body = ERROR.format(code=code, message=message).encode()
        lines = [f"HTTP/1.1 {status} {phrase}", "Content-Type: application/xml",
                 f"Content-Length: {len(body)}", "x-amz-request-id: tx0000fa017",
                 f"Date: {time.strftime('%a, %d %b %Y %H:%M:%S GMT', time.gmtime())}", *headers]
        if close:
            lines.append("Connection: close")
        self.client.sendall(("\r\n".join(lines) + "\r\n\r\n").encode() + body)

    @staticmethod
    def _head_from(stream):
        head = b""
        while not head.endswith(b"\r\n\r\n"):
            line = stream.readline()
            if not line:
                return b""
            head += line
            if head == b"\r\n":
                head = b""
        return head


class FaultProxy:
    """@param server  whom to connect to: anything with an `endpoint` (plain HTTP)
    @param seed    the order of faults follows from it; which request meets which depends on
        timing"""

    def __init__(self, server, seed):
        self.server = server
        self.rate = 0.0                   # the share of requests that something happens to
        self.kinds = None                 # only these, if set
        self.still_seconds = (0.5, 3.0)   # how long standing still lasts
        self.done = {}                    # {fault: how often}
        self.requests = 0
        self.wires = set()
        self._random = random.Random(f"proxy {seed}")
        self._lock = threading.Lock()
        self._calm = threading.Event()
        self._listener = socket.socket()
        self._listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self._listener.bind(("127.0.0.1", 0))
        self._listener.listen(128)
        self.port = self._listener.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    @property
    def endpoint(self):
        return f"http://127.0.0.1:{self.port}"

    def __getattr__(self, name):
        if name in ("access_key", "secret_key", "region"):
            return getattr(self.server, name)
        raise AttributeError(name)

    def storm(self, rate, kinds=None):
        self._calm.clear()
        self.rate, self.kinds = rate, kinds

    def calm(self):
        """From here on nothing happens to requests, and what stood still ends."""
        self.rate = 0.0
        self._calm.set()

    def cut(self):
        """Resets every connection; new ones are welcome."""
        for wire in list(self.wires):
            wire.close(reset=True)

    def close(self):
        self.calm()
        self._listener.close()
        self.cut()

    # --- for the wires ---

    def _accept(self):
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self.wires.add(_Wire(self, client))

    def chance(self, low, high):
        with self._lock:
            return self._random.uniform(low, high)

    def draw(self, request):
        """@return what is to happen to this request, or None"""
        with self._lock:
            self.requests += 1
            # Few requests complete an upload, and much can go wrong there.
            if self._random.random() >= (min(4 * self.rate, 0.7) if request.is_complete
                                         and self.rate < 1 else self.rate):
                return None
            kinds = (AT_COMPLETE * 3 + ANYWHERE if request.is_complete else ANYWHERE + WITH_BODY * 2
                     if request.length else ANYWHERE)
            kinds = [k for k in kinds if self.kinds is None or k in self.kinds]
            if not kinds:
                return None
            fault = self._random.choice(kinds)
            self.done[fault] = self.done.get(fault, 0) + 1
            return fault

    def stand_still(self):
        self._calm.wait(self.chance(*self.still_seconds))
