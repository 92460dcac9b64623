"""A wire between a client and a server that a test can measure, hold, slow down and cut; it can
also speak TLS to the client.

It reads what passes as HTTP/1.1 to count requests and the bytes of their bodies, and hands it on
unchanged (ForwardProxy: as far as a proxy may). All of it runs in threads of the test's process.
"""
import dataclasses
import select
import socket
import ssl
import struct
import threading
import time
import urllib.parse

import s3tools

PIECE = 256 << 10


@dataclasses.dataclass
class Request:
    method: str
    target: str
    headers: dict
    length: int = 0       # as announced
    body_bytes: int = 0   # as seen here
    status: int = 0       # of the answer; 0 = none came by

    @property
    def query(self):
        return dict(urllib.parse.parse_qsl(urllib.parse.urlsplit(self.target).query,
                                           keep_blank_values=True))

    @property
    def key(self):
        """What the path names behind the bucket."""
        return urllib.parse.unquote(urllib.parse.urlsplit(self.target).path.lstrip("/").partition(
            "/")[2])

    @property
    def part(self):
        return int(self.query[
            "partNumber"]) if self.method == "PUT" and "partNumber" in self.query else None


class _Wire:
    """One connection: two threads that hand bytes on, and what the bytes mean."""

    def __init__(self, proxy, client):
        self.proxy, self.client, self.server = proxy, client, None
        self.head = b""
        self.left = 0         # of the request's body
        self.request = None
        self.awaits_answer = False
        self.budget = next(proxy.budgets) if proxy.budgets else None
        threading.Thread(target=self._run, daemon=True).start()

    def _run(self):
        try:
            if self.proxy.tls:
                self.client = self.proxy.tls.wrap_socket(self.client, server_side=True)
            first = self.proxy.open_server(self)
        except (OSError, ValueError):
            self.close()
            return
        if first:
            self._hand_up(first)
        if self.proxy.tls:
            self._guarded(self._pump_both)
            return
        threading.Thread(target=self._guarded, args=(self._pump_down,), daemon=True).start()
        self._guarded(self._pump_up)

    def _guarded(self, pump):
        try:
            pump()
        except (OSError, ValueError):
            self.close()

    def _pump_up(self):
        while data := self.client.recv(PIECE):
            self._hand_up(data)
        self.server.shutdown(socket.SHUT_WR)

    def _pump_down(self):
        while data := self.server.recv(PIECE):
            self._hand_down(data)
        self.client.shutdown(socket.SHUT_WR)

    def _pump_both(self):
        """TLS: one connection must not be read and written by two threads at once."""
        while True:
            ready = [self.client] if self.client.pending() else select.select(
                [self.client, self.server], [], [])[0]
            for s in ready:
                data = s.recv(PIECE)
                if not data:
                    self.close()
                    return
                (self._hand_up if s is self.client else self._hand_down)(data)

    def _hand_up(self, data):
        out = self._understand(data)
        self.proxy.count("up", len(data))
        self.proxy.gate(len(data))
        self.server.sendall(out)
        if self.budget is not None:
            self.budget -= len(data)
            if self.budget < 0:
                self.close(reset=True)
                raise OSError("it has carried what it may")

    def _hand_down(self, data):
        self.proxy.gate(0)
        if self.awaits_answer:
            self._note_status(data)
        self.proxy.count("down", len(data))
        self.client.sendall(data)

    def _understand(self, data):
        """Follows requests and their bodies; requests with chunked bodies are not expected of S3
        clients. @return what to hand on"""
        if self.proxy.is_opaque(self):
            return data
        out = bytearray()
        while data:
            if self.left:
                n = min(self.left, len(data))
                self.left -= n
                self.request.body_bytes += n
                self.proxy.note_body(self.request, n)
                out += data[:n]
                data = data[n:]
                continue
            self.head += data
            end = self.head.find(b"\r\n\r\n")
            if end < 0:
                break
            head, data = self.head[:end + 4], self.head[end + 4:]
            self.head = b""
            lines = head.decode("latin-1").split("\r\n")
            method, target, _ = lines[0].split(" ", 2)
            headers = {k.strip().lower(): v.strip() for k, _,
                       v in (line.partition(":") for line in lines[1:] if line)}
            self.request = Request(method, target, headers,
                                   length=int(headers.get("content-length", 0)))
            self.left = self.request.length
            self.awaits_answer = True
            self.proxy.note_request(self.request)
            out += self.proxy.head_for_server(self.request, head)
        return bytes(out)

    def _note_status(self, data):
        """A client waits for its answer before it asks again, so what comes first after a request
        begins with its status."""
        while data.startswith(b"HTTP/1.") and data[9:10] == b"1":
            data = data.partition(b"\r\n\r\n")[2]
        if data.startswith(b"HTTP/1."):
            self.request.status = int(data[9:12])
            self.awaits_answer = False

    def close(self, reset=False):
        self.proxy.wires.discard(self)
        for s in (self.client, self.server):
            if s is None:
                continue
            try:
                if reset:
                    s.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                # Also wakes the thread that reads it: while that waits, close() would close
                # nothing.
                s.shutdown(socket.SHUT_RD if reset else socket.SHUT_RDWR)
            except OSError:
                pass
            s.close()


class TcpProxy:
    """@param server       whom to connect to: anything with an `endpoint` (plain HTTP)
    @param certificate  PEM with certificate and key: clients are spoken to in TLS
    @param ca_file      for those clients"""

    def __init__(self, server, certificate=None, ca_file=None):
        self.server = server
        self.ca_file = ca_file
        self.tls = None
        if certificate:
            self.tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            self.tls.load_cert_chain(certificate)
        self.wires = set()
        self.requests = []
        self.up_bytes = self.down_bytes = self.part_bytes = 0
        self.rate = None                  # bytes per second, both ways together
        # an iterator: how much each further connection carries up before it is reset
        self.budgets = None
        self._hold_at = None              # of part_bytes
        self._flows = threading.Event()   # not set: everything stands still
        self._flows.set()
        self._lock = threading.Lock()
        self._due = 0.0
        self._listener = None
        self.port = None
        self.accept()

    # --- for the test ---

    @property
    def endpoint(self):
        return f"{'https' if self.tls else 'http'}://127.0.0.1:{self.port}"

    def __getattr__(self, name):
        """Keys and region are the server's, so that a proxy stands where a server could."""
        if name in ("access_key", "secret_key", "region"):
            return getattr(self.server, name)
        raise AttributeError(name)

    def accept(self):
        listener = socket.socket()
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        # little is on the way when it is held
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, PIECE)
        listener.bind(("127.0.0.1", self.port or 0))
        listener.listen(64)
        self.port = listener.getsockname()[1]
        self._listener = listener
        threading.Thread(target=self._accept_loop, args=(listener,), daemon=True).start()

    def refuse(self):
        """Nobody listens any more, and what was connected is reset."""
        listener, self._listener = self._listener, None
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()
        self.cut()

    def cut(self):
        """Resets every connection; new ones are welcome, and nothing is held any more."""
        self._hold_at = None
        for wire in list(self.wires):
            wire.close(reset=True)
        self._flows.set()

    def hold(self):
        """A black hole: connections are accepted and stay, nothing passes."""
        self._flows.clear()

    def hold_after(self, part_bytes):
        """Everything stands still once so many bytes of parts have come by, counted from now."""
        self._hold_at = self.part_bytes + part_bytes

    def release(self):
        self._hold_at = None
        self._flows.set()

    def is_holding(self):
        return not self._flows.is_set()

    def part_bodies(self):
        """{part number: [bytes seen of each try]}"""
        found = {}
        for r in list(self.requests):
            if r.part is not None:
                found.setdefault(r.part, []).append(r.body_bytes)
        return found

    def forget(self):
        self.requests.clear()
        self.up_bytes = self.down_bytes = self.part_bytes = 0

    def close(self):
        if self._listener:
            self.refuse()

    # --- for the wires ---

    def _accept_loop(self, listener):
        while True:
            try:
                client, _ = listener.accept()
            except OSError:
                return
            client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self.wires.add(_Wire(self, client))

    def connect(self, host, port):
        s = socket.create_connection((host, port), timeout=10)
        s.settimeout(None)
        s.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return s

    def open_server(self, wire):
        """Connects the other end. @return what the client has said already"""
        url = urllib.parse.urlsplit(self.server.endpoint)
        wire.server = self.connect(url.hostname, url.port)
        return b""

    def is_opaque(self, wire):
        return False

    def head_for_server(self, request, head):
        return head

    def gate(self, n):
        if n and self.rate:
            with self._lock:
                now = time.monotonic()
                self._due = max(self._due, now) + n / self.rate
                pause = self._due - now
            time.sleep(pause)
        self._flows.wait()

    def count(self, way, n):
        with self._lock:
            if way == "up":
                self.up_bytes += n
            else:
                self.down_bytes += n

    def note_request(self, request):
        self.requests.append(request)

    def note_body(self, request, n):
        if request.part is None:
            return
        with self._lock:
            self.part_bytes += n
            if self._hold_at is not None and self.part_bytes >= self._hold_at:
                self._hold_at = None
                self._flows.clear()


class ForwardProxy(TcpProxy):
    """What `proxy:` names: CONNECT for https, whole URLs for http. Counts connections by target."""

    def __init__(self, server):
        self.targets = []
        self.tunnels = set()
        super().__init__(server)

    def open_server(self, wire):
        head = b""
        while b"\r\n\r\n" not in head:
            data = wire.client.recv(PIECE)
            if not data:
                raise OSError("it ended before it had asked for anything")
            head += data
        method, target, _ = head.split(b"\r\n", 1)[0].decode("latin-1").split(" ", 2)
        if method == "CONNECT":
            host, _, port = target.rpartition(":")
            wire.server = self.connect(host.strip("[]"), int(port))
            self.targets.append(target)
            self.tunnels.add(wire)
            wire.client.sendall(b"HTTP/1.1 200 Connection established\r\n\r\n")
            return head.partition(b"\r\n\r\n")[2]
        url = urllib.parse.urlsplit(target)
        wire.server = self.connect(url.hostname, url.port or 80)
        self.targets.append(url.netloc)
        return head

    def is_opaque(self, wire):
        return wire in self.tunnels

    def head_for_server(self, request, head):
        url = urllib.parse.urlsplit(request.target)
        request.target = request.target[len(f"{url.scheme}://{url.netloc}"):] or "/"
        line, _, rest = head.partition(b"\r\n")
        version = line.rpartition(b" ")[2]
        return f"{request.method} {request.target} ".encode("latin-1") + version + b"\r\n" + rest


def through(server, **options):
    """A proxy in front of `server`, and an Endpoint that leads through it."""
    proxy = TcpProxy(server, **options)
    return proxy, s3tools.Endpoint(proxy.endpoint, server.access_key, server.secret_key,
                                   server.region, proxy.ca_file)
